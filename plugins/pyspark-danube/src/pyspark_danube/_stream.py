"""Reads topics as a stream: ``spark.readStream.format("danube")``.

The source lives in one process of the driver while the query runs. For each batch Spark first asks it for the end of
the batch (:meth:`~StreamReader.latestOffset`), writes the answer to its log, and then asks for the tasks that read the
batch (:meth:`~StreamReader.partitions`). After a crash Spark repeats the second call with the logged offsets. So the
first answer may depend on the present state of the topics, but the second one only on its arguments: a batch that is
read again is the same, while the broker has the messages.

A batch is planned and read like a batch query: sealed parts directly from the storage, the tail from the broker. A
query that begins in the distant past reaches the present in the same way.

Positions and losses of a query are decided in :mod:`pyspark_danube._positions`; the states of the topics are
provided by :mod:`pyspark_danube._watch`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from danube.model.errors import DanubeError, DataLossError
from pyspark_danube._columns import Columns
from pyspark_danube._logs import BrokerLogs, locate
from pyspark_danube._options import EARLIEST_OFFSET
from pyspark_danube._plan import ReadTask, Source, check_named, pack, resolve
from pyspark_danube._positions import (
    LogKey,
    Position,
    Positions,
    Span,
    admit,
    decode,
    encode,
    pieces,
    resume,
    retreats,
    spans,
)
from pyspark_danube._reading import read_task
from pyspark_danube._reporting import Reporter, standings
from pyspark_danube._spark_apis import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark_danube._watch import Watch
from pyspark_danube._weights import Weights

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from danube.client.sync import Client
    from danube.model.query_api import LogState
    from pyspark_danube._options import ReadOptions
    from pyspark_danube._values import Pinned

__all__ = ["StreamReader", "UnlimitedStreamReader"]

logger = logging.getLogger("pyspark_danube")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query.

    It is pickled and sent to the executors before it is used, so it connects to the broker at first use.
    """

    def __init__(self, options: ReadOptions, schema: StructType, pinned: Pinned | None = None) -> None:
        self._options = options
        self._columns = Columns(schema, payload_format=options.payload_format, mode=options.mode, pinned=pinned)
        self._watch: Watch | None = None
        self._reporter: Reporter | None = None
        self._first: Positions | None = None
        """Where this run of the query began."""
        self._weights = Weights()
        self._target: Positions | None = None
        self._answered: tuple[dict[str, Any], int, ReadLimit, dict[str, Any]] | None = None
        self._reported: tuple[int, dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_watch": None,
            "_reporter": None,
            "_first": None,
            "_target": None,
            "_answered": None,
            "_reported": None,
        }

    # --- Positions ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position where a query without a checkpoint begins, according to its options.

        Raises:
            ConfigurationError: offsets are given for a topic or partition that does not exist.
            TopicNotFoundError: a topic does not exist. ``failOnDataLoss`` has no effect on this.
            FailedPreconditionError: a topic stores nothing.
            ConnectionLostError: no broker answers.
        """
        watch = self._watching()
        states = watch.begin().states
        check_named(self._options, states)
        starts = resolve(
            self._options.starting,
            states,
            lambda key, time_us: watch.client.logs.offset_at(states[key].name, time_us),
            default=EARLIEST_OFFSET,
        )
        return encode({key: Position(offset, states[key].topic_id) for key, offset in starts.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch; if there are two, :meth:`latestOffset` enforces both."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the batch that begins at ``start``; ``start`` itself if there is nothing to read.

        Raises:
            DataLossError: the next messages are gone, and ``failOnDataLoss`` is true.
            DanubeError: the broker has been unavailable for too long.
        """
        with self._failures_reported():
            return self._latest(start, limit)

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        watch = self._watching()
        logs = watch.logs
        if self._answered is not None and self._answered[:3] == (start, logs.version, limit):
            return self._answered[3]
        at = decode(start)
        self._note(at, logs.states)
        states = self._visible(logs.states, at)
        resumed = resume(at, states)
        if resumed.losses:
            # Query the broker before reporting a loss.
            logs = watch.refresh()
            states = self._visible(logs.states, at)
            resumed = resume(at, states)
            self._lost(resumed.losses)
        unlimited = isinstance(limit, ReadAllAvailable)
        end = admit(
            resumed.positions,
            states,
            max_messages=None if unlimited else self._options.max_offsets_per_trigger,
            max_bytes=None if unlimited else self._options.max_bytes_per_trigger,
            runs=lambda key, begin, until: self._weights.runs(watch.client, states[key], begin, until),
        )
        self._answered = (start, logs.version, limit, encode(end))
        return self._answered[3]

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the logs: ``latestOffset`` of a progress event. It is ahead of ``endOffset`` by the lag."""
        logs = self._watching().logs
        if self._reported is None or self._reported[0] != logs.version:
            self._reported = (logs.version, encode(_ends(logs.states)))
        return self._reported[1]

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record the present end of the logs: the query ends there."""
        self._target = _ends(self._watching().refresh().states)

    # --- Tasks of a batch ---

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch.

        Raises:
            DataLossError: some of its messages are gone, and ``failOnDataLoss`` is true.
            DanubeError: the broker does not answer.
        """
        with self._failures_reported():
            return self._tasks(start, end)

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        until = decode(end)
        wanted = spans(decode(start), until)
        if not wanted:
            return []
        watch = self._watching()
        states = watch.refresh().states
        present: list[Span] = []
        losses = []
        for span in wanted:
            where = f"topic {span.key.topic}, partition {span.key.partition}"
            log = states.get(span.key)
            if log is None or log.topic_id != until[span.key].topic_id:
                losses.append(f"{where}, was deleted")
                continue
            begin, stop = max(span.start, log.start_offset), min(span.end, log.end_offset)
            if stop < span.end or pieces(span.start, min(begin, span.end), log.gaps):
                losses.append(
                    f"of the offsets {span.start} to {span.end - 1} of {where}, "
                    + (f"only {begin} to {stop - 1} exist" if begin < stop else "none exist")
                )
            if begin < stop:
                present.append(Span(span.key, begin, stop))
        self._lost(losses)
        sources, storages = self._locate(watch.client, present, states)
        options = self._options
        tasks = pack(sources, storages, target_bytes=options.target_partition_bytes, min_tasks=options.min_partitions)
        return list(tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task; runs on an executor."""
        assert isinstance(partition, ReadTask)
        return read_task(partition, self._options, self._columns)

    # --- Internals ---

    def _watching(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._options)
            name = self._options.job_name or f"spark-{uuid.uuid4().hex[:12]}"
            self._reporter = Reporter(self._watch.client, name)
        return self._watch

    @contextmanager
    def _failures_reported(self) -> Iterator[None]:
        try:
            yield
        except DanubeError as error:
            if self._reporter is not None:
                self._reporter.failed(error)
            raise

    def _note(self, at: Positions, states: Mapping[LogKey, LogState]) -> None:
        """Note for the reports how far the query is; what is before ``at`` is done."""
        if self._first is None:
            self._first = at
        if self._reporter is not None:
            self._reporter.note(standings(self._first, at, states))

    def _visible(self, states: Mapping[LogKey, LogState], at: Mapping[LogKey, Position]) -> dict[LogKey, LogState]:
        """Return the logs as a query with ``availableNow`` sees them: they end where they ended when it began."""
        if self._target is None:
            return dict(states)
        visible = {}
        for key, state in states.items():
            target, known = self._target.get(key), at.get(key)
            if target is not None and target.topic_id == state.topic_id:
                # The query may already be past that: it began at "latest", a moment later.
                end = target.offset if known is None else max(target.offset, known.offset)
            elif known is not None and known.topic_id == state.topic_id:
                end = known.offset  # the log was created between the two: the query ends where it begins
            else:
                continue
            visible[key] = msgspec.structs.replace(state, end_offset=min(end, state.end_offset))
        return visible

    def _locate(
        self, client: Client, wanted: list[Span], states: Mapping[LogKey, LogState]
    ) -> tuple[list[Source], dict[str, str]]:
        """Locate messages. Unsealed ones need no query: they are read from the broker."""
        tail = [span for span in wanted if span.start >= states[span.key].sealed_offset]
        sealed = [span for span in wanted if span.start < states[span.key].sealed_offset]
        sources, storages = locate(BrokerLogs(client), self._options, sealed, states)
        for span in tail:
            log = states[span.key]
            sources.append(Source(span, log.name, log.topic_id, span.start, (), log.is_framed, log.gaps))
        return sources, storages

    def _lost(self, losses: list[str]) -> None:
        if not losses:
            return
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"messages were lost before the query read them: {'; '.join(losses)}. Set the option"
                f" failOnDataLoss=false to continue after them, or start over with another checkpointLocation; to"
                f" keep messages for longer, change the topic's retention"
            )
        logger.warning("messages were lost before the query read them: %s", "; ".join(losses))


class UnlimitedStreamReader(StreamReader):
    """The source for Spark 4.0 and 4.1, which ask for the end of a batch without a start or a limit.

    A batch ends where the topics end. What happened to a log since the batch before becomes known when the batch is
    planned, because only then Spark says where it begins.
    """

    _planned: Positions | None = None
    """End of the batch that was planned last; Spark asks for the next end when it is done."""
    _told: tuple[int, Positions | None, Positions, dict[str, Any]] | None = None
    """Version of the logs, the end that was planned, and the end that was returned then."""

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_planned": None, "_told": None}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Return the end of the topics.

        Raises:
            DanubeError: the broker has been unavailable for too long.
        """
        with self._failures_reported():
            watch = self._watching()
            logs = watch.logs
            if self._told is not None and self._told[0] == logs.version and self._told[1] is self._planned:
                return self._told[3]
            if self._planned is not None:
                self._note(self._planned, logs.states)
            end = _ends(logs.states)
            if self._told is not None and retreats(self._told[2], end):
                # Query the broker before reporting a loss: its answers may have arrived out of order.
                logs = watch.refresh()
                end = _ends(logs.states)
            self._told = (logs.version, self._planned, end, encode(end))
            return self._told[3]

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        at, until = decode(start), decode(end)
        if self._planned is None:
            self._note(at, self._watching().logs.states)
        self._lost(retreats(at, until))
        tasks = super()._tasks(start, end)
        self._planned = until
        return tasks


def _ends(states: Mapping[LogKey, LogState]) -> Positions:
    return {key: Position(state.end_offset, state.topic_id) for key, state in states.items()}
