"""Reads the slices of a task on an executor: sealed parts from the storage, the rest from the broker.

Since the plan was made, the broker may have merged parts, or deleted expired ones. So a missing part is not an error:
the task queries the present location of its messages and continues at the next offset. The result has the same
messages, whichever object they are in.

Messages after the last part are read from the broker, from an exact offset on. The broker also serves messages that
were sealed since the plan was made.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import groupby
from typing import TYPE_CHECKING

from danube.model.errors import (
    ConnectionLostError,
    DataLossError,
    FailedPreconditionError,
    SchemaNotFoundError,
    StorageNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from pyspark_danube._arrow import ArrowRows
from pyspark_danube._connecting import EXECUTOR_PATIENCE_S, enter_client
from pyspark_danube._logs import BrokerLogs, BucketLogs, Logs, parts_of, report_losses

if TYPE_CHECKING:
    import pyarrow as pa

    from danube.client.sync import Client
    from danube.history.direct import DirectPart, DirectStorage
    from danube.model.query_api import RawBatch
    from danube.schema.kinds import Source
    from pyspark_danube._columns import Columns
    from pyspark_danube._options import ReadOptions
    from pyspark_danube._plan import ReadTask, Slice
from pyspark_danube._positions import pieces

__all__ = ["read_task"]

logger = logging.getLogger("pyspark_danube")

_REPLANS = 5
"""Successive attempts of a task to locate its messages, without reading any, before it considers them lost."""


def read_task(task: ReadTask, options: ReadOptions, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Read a task; runs on an executor, in any process.

    Raises:
        DataLossError: a batch is damaged, or messages are gone and ``failOnDataLoss`` is true.
        StorageError: the storage cannot be read, or not by this process.
        InvalidArgumentError: a payload does not parse, and ``mode`` is ``FAILFAST``.
    """
    _freeze()
    with _Reading(task, options, columns) as reading:
        for part in task.slices:
            yield from reading.read(part)


class _Reading:
    """Open resources of a task: storages and a connection, each opened at first use."""

    def __init__(self, task: ReadTask, options: ReadOptions, columns: Columns) -> None:
        self._urls = task.storages
        self._options = options
        self._columns = columns
        self._stack = ExitStack()
        self._storages: dict[str, DirectStorage] = {}
        self._segments: dict[str, str] = {}
        """By the storages from which was read: the key of a segment."""
        self._client: Client | None = None
        self._values = columns.value_decoder(self._writer)

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, wanted: Slice) -> Iterator[pa.RecordBatch]:
        """Read one slice."""
        rows = ArrowRows(self._columns, wanted.topic, wanted.partition, self._values, is_framed=wanted.is_framed)
        position = wanted.start
        for batch in self._batches(wanted):
            if batch.base_offset > position:
                self._lost(wanted, position, batch.base_offset)
            rows.add(batch, position, wanted.end)
            position = max(position, batch.end_offset)
            if rows.full:
                yield rows.take()
        if position < wanted.end:
            self._lost(wanted, position, wanted.end)
        if rows.rows:
            yield rows.take()

    def _lost(self, wanted: Slice, start: int, end: int) -> None:
        where = f"topic {wanted.topic}, partition {wanted.partition}"
        missing = pieces(start, end, wanted.gaps)  # an operator has accepted the loss of the others
        report_losses(
            [f"{where}: offsets [{low}, {high}) have expired or were lost" for low, high in missing], self._options
        )

    def _batches(self, wanted: Slice) -> Iterator[RawBatch]:
        position = wanted.start
        sealed = min(wanted.end, wanted.sealed)
        parts = list(wanted.parts)
        replans = 0
        while position < sealed:
            try:
                for batch in self._sealed(parts, position, sealed):
                    yield batch
                    if batch.end_offset > position:
                        position, replans = batch.end_offset, 0
                break
            except StorageNotFoundError as error:
                replans += 1
                if replans > _REPLANS:
                    raise
                logger.info("%s; locating the messages from offset %d on again", error.message, position)
                known = {(part.storage, part.object) for part in parts if part.part.end_offset > position}
                position, parts = self._locate_again(wanted, position, sealed)
                if parts and {(part.storage, part.object) for part in parts} == known:
                    raise  # the location is unchanged, so the object is missing
        position = max(position, sealed, wanted.start)
        if position < wanted.end:
            yield from self._tail(wanted, position)

    def _tail(self, wanted: Slice, position: int) -> Iterator[RawBatch]:
        """Read messages from the broker; skip those lost since planning, if losses are allowed."""
        end = wanted.end
        while position < end:
            try:
                with self._broker().logs.read(wanted.name, position, end, topic_id=wanted.topic_id) as batches:
                    for batch in batches:
                        yield batch
                        position = max(position, batch.end_offset)
                return
            except (DataLossError, FailedPreconditionError, TopicNotFoundError) as error:
                if self._options.fail_on_data_loss:
                    raise
                left = self._end_now(wanted)
                if left >= end:
                    raise  # the log still has all requested messages: this is another error
                logger.info("%s; continuing with the remaining messages", error.message)
                end = left

    def _end_now(self, wanted: Slice) -> int:
        """Return the present end of the planned log at the broker; 0 if it no longer exists."""
        try:
            states = self._broker().logs.states([wanted.name])
        except TopicNotFoundError:
            return 0
        return next((state.end_offset for state in states if state.topic_id == wanted.topic_id), 0)

    def _sealed(self, parts: list[DirectPart], start: int, end: int) -> Iterator[RawBatch]:
        producers = "producer" in self._columns.names
        for name, group in groupby(parts, key=lambda part: part.storage):
            spans = [
                (part, start, end) for part in group if part.part.end_offset > start and part.part.base_offset < end
            ]
            if spans:
                self._segments[name] = spans[0][0].object
                yield from self._storage(name).read_all(spans, producers=producers)

    def _locate_again(self, wanted: Slice, position: int, sealed: int) -> tuple[int, list[DirectPart]]:
        """Return the offset where reading continues, and the present parts.

        Raises:
            DataLossError, TopicNotFoundError, FailedPreconditionError: the topic is gone, or another one has its name,
                and ``failOnDataLoss`` is true.
        """
        logs: Logs
        if self._options.servers:
            logs = BrokerLogs(self._broker())
        else:
            logs = BucketLogs(self._storage(next(iter(self._urls))), self._options.cluster)
        try:
            found = logs.log_parts(wanted.name, position, sealed)
        except (TopicNotFoundError, FailedPreconditionError) as error:
            if self._options.fail_on_data_loss:
                raise
            logger.info("%s; none of the requested messages are left", error.message)
            return wanted.end, []
        if found.topic_id != wanted.topic_id:
            if not self._options.fail_on_data_loss:
                return wanted.end, []
            raise DataLossError(
                f"topic {wanted.topic}, partition {wanted.partition}: it was deleted and created again while the query"
                f" was running; its messages from offset {position} on are lost; run the query again"
            )
        for name, url in found.storages.items():
            self._urls.setdefault(name, self._options.storage_url or url)
        return min(max(position, found.start_offset), sealed), parts_of(found)

    def _storage(self, name: str) -> DirectStorage:
        storage = self._storages.get(name)
        if storage is None:
            from danube.history.direct import open_direct

            storage = self._storages[name] = self._stack.enter_context(
                open_direct(self._urls[name], self._options.storage_options)
            )
        return storage

    def _writer(self, number: int) -> Source:
        """Return the schema with a number; the decoder keeps it.

        The broker is asked first, because storages have no schemas of messages that were not sealed. If it is not
        there, the storages from which this task has read are: they have the schemas of all that they hold.
        """
        from danube.client._values import source_of

        try:
            return source_of(self._broker(0.0 if self._segments else EXECUTOR_PATIENCE_S).schemas.get(number))
        except (ConnectionLostError, UnavailableError) as error:
            from danube.history.packing import cluster_of_key

            for name, segment in self._segments.items():
                storage = self._storage(name)
                with suppress(SchemaNotFoundError):
                    found = storage.schema(number, cluster_of_key(segment))
                    logger.info("%s; schema %d is read from %s", error.message, number, storage.url)
                    return found
        return source_of(self._broker().schemas.get(number))

    def _broker(self, patience_s: float = EXECUTOR_PATIENCE_S) -> Client:
        if self._client is None:
            self._client = enter_client(self._stack, self._options.servers, patience_s=patience_s)
        return self._client


_is_frozen = False


def _freeze() -> None:
    """Hide imported objects from the garbage collector, once per worker process.

    Spark collects garbage after each task, which costs 40 ms of scanning permanent modules.
    """
    global _is_frozen
    if not _is_frozen:
        _is_frozen = True
        gc.freeze()
