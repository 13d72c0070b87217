"""The sink: writes the rows of a batch as messages, atomically and exactly once.

Spark runs a write in two places. Its tasks call ``write`` on executors, possibly several times for the same rows (a
task failed, was too slow, or lost its executor), and pass small messages to the driver, which calls ``commit``,
possibly several times for the same batch (the driver was killed before it wrote the commit to the checkpoint). So:

* a task *stages*: the broker stores its messages invisibly, one stage for each topic or partition of the task's
  rows. The task passes the list of its stages to the driver;
* the driver *commits* the stages that Spark has accepted, in one call, under (producer id, batch id). A batch is
  committed once: a batch id that is not above the last committed one changes nothing. Other stages are dropped.

The identity of a stream's writer is its producer id: the option ``producerId``, else the id of the query, which is
stored in the checkpoint. The batch id is Spark's. A batch write has an identity only if the user gives it one
(``producerId`` and ``batchId``); without one it is still atomic, but a repetition stores it twice. With only a
``producerId`` it takes the next batch id, and a concurrent write may take the same one. Each commit carries a label of
its own, so the second one fails with an error that its rows are not stored.

Each attempt of a write has an id of its own, under which its tasks stage. When it fails the driver aborts that id:
running tasks are then refused, whenever they open or finish their stages. In a stream the tasks know the
attempt (the run of the query) and the driver does not, unless a task has reported it; its batch is retried, and the
commit drops the remaining stages.

With the option ``commitScope=partition`` each topic or partition has a producer of its own, derived from the producer
id, and commits its rows by itself (:mod:`pyspark_danube._scoping`). Then they are held by the broker that owns the
partition, while all stages of one producer are held by one broker, which sends them to the others when they are
committed.

Both classes are pickled and sent to the executors, or created for each call: they hold options and no connections.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from danube.model.errors import (
    ConfigurationError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from danube.model.names import split_partition
from danube.model.stage_api import StagedBatch
from pyspark_danube._connecting import EXECUTOR_PATIENCE_S, broker_client, enter_client
from pyspark_danube._registering import encoding_of, with_payload
from pyspark_danube._reporting import report_batch, report_failure
from pyspark_danube._routing import route_rows
from pyspark_danube._rows import check_columns, first_time_us, to_messages
from pyspark_danube._scoping import former_targets, record_routing, scoped
from pyspark_danube._spark_apis import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from danube.client.sync import Client, Stage
    from danube.model.batch import SchemaRef
    from pyspark_danube._encoding import Encoding
    from pyspark_danube._options import WriteOptions

__all__ = ["BatchWriter", "StreamWriter", "batch_writer", "stream_writer"]

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_JOB_GROUP = "spark.jobGroup.id"
"""Of a streaming query this is the id of its run."""

logger = logging.getLogger("pyspark_danube")


def batch_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch query; runs on the driver.

    Raises:
        ConfigurationError: columns that cannot be written, or a save mode that a topic does not have.
        ConnectionLostError: no broker answers at the address.
    """
    if overwrite:
        raise ConfigurationError(
            "a topic cannot be overwritten: it only grows. Use .mode('append'), or delete the topic first"
        )
    check_columns(with_payload(options, schema), has_topic=bool(options.topic))
    with broker_client(options.servers) as client:
        return BatchWriter(options, client, encoding_of(client, options, schema))


def stream_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query.

    Raises:
        ConfigurationError: columns that cannot be written, or an output mode that a topic does not have.
    """
    if overwrite:
        raise ConfigurationError("a topic cannot be overwritten: use outputMode('append') or 'update', not 'complete'")
    check_columns(with_payload(options, schema), has_topic=bool(options.topic))
    if options.payload_format == "binary":
        return StreamWriter(options)
    with broker_client(options.servers) as client:
        return StreamWriter(options, encoding_of(client, options, schema))


@dataclass(frozen=True)
class StagedRows:
    """What was staged: the rows of a task, or of all tasks."""

    stages: tuple[StagedBatch, ...] = ()
    """One for each topic or partition that has rows, of each task."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """The number of partitions that the rows of a topic were routed to, if each partition commits by itself."""


@dataclass
class Written(WriterCommitMessage):
    """Message of a task to the driver."""

    producer: str
    rows: StagedRows
    query: str = ""
    """Id of the streaming query; a new checkpoint has a new one."""
    write_id: str = ""
    """Id under which its stages were opened."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame: ``df.write.format("danube")``.

    Created on the driver, and sent to the executors with its generated write id.
    """

    def __init__(self, options: WriteOptions, client: Client, encoding: Encoding | None = None) -> None:
        self._options = options
        self._encoding = encoding
        self._producer = options.producer_id or f"spark-{uuid.uuid4()}"
        if options.batch_id is not None:
            self._batch_id = options.batch_id
        else:
            last = client.stages.last_batch(self._producer) if options.producer_id else None
            self._batch_id = 0 if last is None else last + 1
        self._write_id = f"write-{uuid.uuid4()}"
        # With a batch id, a repetition by any writer must change nothing: no label.
        self._label = "" if options.batch_id is not None else self._write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of a task."""
        rows = stage_rows(
            self._options, self._producer, self._batch_id, iterator, write_id=self._write_id, encoding=self._encoding
        )
        return Written(self._producer, rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible.

        Raises:
            FailedPreconditionError: another write has taken the batch id; or stages have expired, or the broker has
                lost them. Nothing was written.
        """
        taken = (
            f"a concurrent write of producer {self._producer!r} has committed batch {self._batch_id}: the rows of this"
            " write were not written. Write them again, and give concurrent writes different producerIds"
        )
        if self._options.batch_id is not None:
            taken = (
                f"producer {self._producer!r} has committed batch {self._batch_id} or a later one in a stream, or in a"
                " write without a batchId. This write has written nothing; whether an earlier attempt has stored its"
                " rows is unknown: check the topic. Set batchId for all writes of a producer, or for none"
            )
        _commit(self._options, self._producer, self._batch_id, _joined(messages), self._label, taken)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the stages of this write, including future ones of tasks that are still running.

        Other stages of the batch remain: another write of the producer may be in progress for the same batch.
        """
        _abort(self._options, self._producer, self._batch_id, self._write_id, _topics(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream: ``df.writeStream.format("danube")``."""

    def __init__(self, options: WriteOptions, encoding: Encoding | None = None) -> None:
        self._options = options
        self._encoding = encoding

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of a task."""
        context = _task()
        query = _property(context, _QUERY_ID)
        producer = self._options.producer_id or f"spark-{query}"
        batch_id = int(_property(context, _BATCH_ID))
        write_id = _run(context)
        rows = stage_rows(self._options, producer, batch_id, iterator, write_id=write_id, encoding=self._encoding)
        return Written(producer, rows, query, write_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make all rows of a micro-batch visible, once.

        Raises:
            FailedPreconditionError: another query has written this batch under the producer id; or stages have
                expired, or the broker has lost them. Nothing was written.
        """
        for producer, query in {(each.producer, each.query) for each in messages if isinstance(each, Written)}:
            taken = (
                f"producer {producer!r} has committed batch {batchId} in another query; this one has a new checkpoint."
                " Its rows were not written, because their batch ids are in use: set another producerId"
            )
            _commit(self._options, producer, batchId, _joined(messages), query, taken, job=producer)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drop the stages of a micro-batch, including future ones of tasks that are still running.

        Without any message of a task the query and its run are unknown. Its stages, if any, are
        then dropped when the batch is retried.
        """
        writes = {(message.producer, message.write_id) for message in messages if isinstance(message, Written)}
        if self._options.producer_id:
            writes.add((self._options.producer_id, ""))
        for producer, write_id in sorted(writes):
            _abort(self._options, producer, batchId, write_id, _topics(messages), job=producer)


def stage_rows(
    options: WriteOptions,
    producer: str,
    batch_id: int,
    batches: Iterator[pa.RecordBatch],
    *,
    write_id: str = "",
    encoding: Encoding | None = None,
) -> StagedRows:
    """Stage the rows of one task.

    With an ``encoding`` the rows have a column ``value``, which is encoded; else ``payload``.

    Raises:
        FailedPreconditionError: the write was aborted.
        InvalidArgumentError: a row has no payload or no topic, its value cannot be encoded, its topic has not its
            partition, or its time is before 1970.
        DanubeError: the broker refuses them; the task has failed, and its stages are dropped.
    """
    with ExitStack() as stack:
        staging: _Staging | None = None
        encode = None if encoding is None else encoding.encoder()
        for rows in batches:
            if rows.num_rows:
                if staging is None:
                    client = enter_client(stack, options.servers, patience_s=EXECUTOR_PATIENCE_S)
                    ref = None if encoding is None else encoding.header
                    staging = _Staging(client, stack, producer, batch_id, write_id, options.by_partition, ref)
                staging.add(rows if encode is None else encode(rows), options.topic)
        return staging.finish() if staging else StagedRows()


@dataclass
class _Staging:
    """The open stages of one task."""

    client: Client
    stack: ExitStack
    producer: str
    batch_id: int
    write_id: str
    by_partition: bool
    schema: SchemaRef | None
    attempt: str = field(default_factory=lambda: _attempt(TaskContext.get()))
    turn: int = field(default_factory=lambda: _partition(TaskContext.get()))
    """Next partition: rows without a key go to one partition after the other, a batch at a time."""
    targets: dict[str, list[str]] = field(default_factory=dict)
    """For each topic, the topic itself or its partitions."""
    partitions: dict[str, int] = field(default_factory=dict)
    """As in :class:`StagedRows`."""
    stages: dict[str, Stage] = field(default_factory=dict)
    base_time_us: int | None = None
    """Earliest time of the first rows, if they have times. All batches count from it, so that small ones are joined."""

    def add(self, rows: pa.RecordBatch, topic: str) -> None:
        """Stage rows, for one topic or for those of the column."""
        if topic:
            self._add(rows, topic)
            return
        topics = rows.column("topic")
        if topics.null_count:
            raise InvalidArgumentError("a row has a null topic; filter such rows, or give the option 'topic'")
        for name in pc.unique(topics).to_pylist():
            self._add(rows.filter(pc.equal(topics, name)), name)

    def finish(self) -> StagedRows:
        """Wait until all stages are on the broker's disk, and return them."""
        stages = tuple(stage.finish() for stage in self.stages.values())
        return StagedRows(stages, self.partitions)

    def _add(self, rows: pa.RecordBatch, topic: str) -> None:
        targets = self.targets.get(topic)
        if targets is None:
            targets = self.targets[topic] = self._routed(topic)
        self.turn = (self.turn + 1) % len(targets)
        if self.base_time_us is None:
            self.base_time_us = first_time_us(rows)
        routes = route_rows(rows, topic, len(targets), without_key=self.turn)
        used = np.unique(routes).tolist()
        for index in used:
            part = rows if len(used) == 1 else rows.take(pa.array(np.flatnonzero(routes == index)))
            self._stage(targets[index]).add(to_messages(part, self.base_time_us), self.base_time_us)

    def _routed(self, topic: str) -> list[str]:
        targets = _targets(self.client, topic)
        if self.by_partition and targets != [topic]:
            targets = former_targets(self.client, self.producer, self.batch_id, topic, targets)
            self.partitions[topic] = len(targets)
        return targets

    def _stage(self, target: str) -> Stage:
        stage = self.stages.get(target)
        if stage is None:
            opening = self.client.stages.open(
                target,
                producer=scoped(self.producer, target) if self.by_partition else self.producer,
                batch_id=self.batch_id,
                attempt=self.attempt,
                write_id=self.write_id,
                schema=self.schema,
            )
            stage = self.stages[target] = self.stack.enter_context(opening)
        return stage


def _targets(client: Client, topic: str) -> list[str]:
    try:
        return client.admin.lookup_topic(topic).topics
    except NotFoundError:
        # The broker may be allowed to create it; otherwise it reports an error.
        return [topic]


def _commit(
    options: WriteOptions,
    producer: str,
    batch_id: int,
    rows: StagedRows,
    label: str,
    taken: str,
    *,
    job: str = "",
) -> None:
    """Commit a batch.

    Args:
        options, producer, batch_id, rows, label: of the batch.
        taken: the error text if the batch id was committed under another label.
        job: reported as this one; empty: not at all.
    """
    if not rows.stages:
        return  # nothing to commit or record: a repetition is empty, too
    with broker_client(options.servers, patience_s=EXECUTOR_PATIENCE_S) as client:
        written: list[StagedBatch] = []
        over = {
            topic
            for topic, count in sorted(rows.partitions.items())
            if not record_routing(client, producer, batch_id, topic, count, label, taken)
        }
        for topic in sorted(over):
            logger.warning("%s: batch %d of producer %s was committed before", topic, batch_id, producer)
        for name, share in _shares(producer, rows.stages, over, by_partition=options.by_partition).items():
            outcome = client.stages.commit(name, batch_id, share, label=label)
            if outcome.committed:
                written += share
                continue
            if outcome.label != label:
                # Treated as a repetition, rows of another write would be lost silently.
                raise FailedPreconditionError(taken)
            logger.warning("batch %d of producer %s was committed before", batch_id, name)
        if job:
            report_batch(client, job, written)


def _shares(
    producer: str, stages: Sequence[StagedBatch], over: Collection[str], *, by_partition: bool
) -> dict[str, list[StagedBatch]]:
    """Return the stages that each producer commits, without those of partitioned topics that are ``over``."""
    if not by_partition:
        return {producer: list(stages)}
    shares: dict[str, list[StagedBatch]] = {}
    for stage in sorted(stages, key=lambda stage: stage.topic):
        base, _ = split_partition(stage.topic) or (stage.topic, 0)
        if base not in over:
            shares.setdefault(scoped(producer, stage.topic), []).append(stage)
    return shares


def _abort(
    options: WriteOptions,
    producer: str,
    batch_id: int,
    write_id: str,
    topics: Collection[str],
    *,
    job: str = "",
) -> None:
    """Drop the stages of one write, or (empty) all of the batch; ``topics`` are those that tasks have reported.

    It is reported as a failure of ``job``, unless that is empty.
    """
    with broker_client(options.servers) as client:
        if job:
            named = {options.topic} if options.topic else set(topics)
            report_failure(client, job, named, f"batch {batch_id} has failed, and its rows were dropped")
        if not options.by_partition:
            client.stages.abort(producer, batch_id, write_id=write_id)
            return
        for topic in sorted({*topics, *(_targets(client, options.topic) if options.topic else ())}):
            client.stages.abort(scoped(producer, topic), batch_id, write_id=write_id)


def _topics(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    return {stage.topic for stage in _stages(messages)}


def _stages(messages: Sequence[WriterCommitMessage | None]) -> tuple[StagedBatch, ...]:
    return tuple(stage for message in messages if isinstance(message, Written) for stage in message.rows.stages)


def _joined(messages: Sequence[WriterCommitMessage | None]) -> StagedRows:
    """Return what all tasks have staged.

    Raises:
        FailedPreconditionError: a topic got more partitions meanwhile, and each partition commits by itself.
    """
    partitions: dict[str, int] = {}
    for message in messages:
        for topic, count in message.rows.partitions.items() if isinstance(message, Written) else ():
            if partitions.setdefault(topic, count) != count:
                raise FailedPreconditionError(
                    f"{topic} got more partitions while the batch was being written: nothing was written; write it"
                    " again"
                )
    return StagedRows(_stages(messages), partitions)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise FailedPreconditionError("the sink writes only in Spark tasks, and this code does not run in one")
    return context


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if value is None:
        raise FailedPreconditionError(
            f"Spark has not set {name!r} for the task; write with foreachBatch and the options producerId and batchId"
        )
    return value


def _run(context: TaskContext) -> str:
    """Return the id of a streaming query's run as write id; empty if Spark does not provide it."""
    try:
        return f"run-{uuid.UUID(context.getLocalProperty(_JOB_GROUP) or '')}"
    except ValueError:
        return ""  # its stages are dropped by the next commit of the batch


def _partition(context: TaskContext | None) -> int:
    return context.partitionId() if context else 0


def _attempt(context: TaskContext | None) -> str:
    """Return a readable name for an attempt of a task: stage, partition, attempt."""
    if context is None:
        return ""
    return f"{context.stageId()}.{context.partitionId()}.{context.attemptNumber()}"
