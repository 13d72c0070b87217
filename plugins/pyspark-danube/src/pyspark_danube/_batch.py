"""Batch queries: ``spark.read.format("danube")``.

The driver plans (:meth:`BatchReader.partitions`): it queries the extent of the topics and the locations of their
parts, and splits them into tasks. Executors read. Only the tasks are passed between them, so the reader can be pickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_danube._columns import Columns
from pyspark_danube._filters import Bounds, bounds_of
from pyspark_danube._logs import locate, log_states, open_logs, report_losses
from pyspark_danube._plan import ReadTask, check_named, choose_spans, pack
from pyspark_danube._positions import LogKey, Span
from pyspark_danube._reading import read_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from pyspark_danube._options import ReadOptions
    from pyspark_danube._values import Pinned

__all__ = ["BatchReader", "PruningReader", "plan_batch"]


class BatchReader(DataSourceReader):
    """Reads a range of each topic."""

    def __init__(self, options: ReadOptions, schema: StructType, pinned: Pinned | None = None) -> None:
        self._options = options
        self._columns = Columns(schema, payload_format=options.payload_format, mode=options.mode, pinned=pinned)
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """Plan: return the tasks.

        Raises:
            TopicNotFoundError: a topic does not exist.
            DataLossError: requested messages no longer exist, and ``failOnDataLoss`` is true.
            ConnectionLostError, StorageError: the broker or the storage does not answer.
        """
        tasks = plan_batch(self._options, self._bounds)
        # Spark makes one task without a partition of an empty list.
        return tasks or [ReadTask((), {})]  # type: ignore[return-value]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task; runs on an executor."""
        assert isinstance(partition, ReadTask)
        return read_task(partition, self._options, self._columns)


class PruningReader(BatchReader):
    """A reader that knows the query's filters (option ``pushdown``).

    A class of its own, because Spark refuses any query of a reader that can take filters while
    ``spark.sql.python.filterPushdown.enabled`` is false, which it is by default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Record filters, and return all of them: Spark still checks each row."""
        self._bounds = bounds_of(filters)
        return filters


def plan_batch(options: ReadOptions, bounds: Bounds) -> list[ReadTask]:
    """Return the tasks of a batch query for the present state of the topics."""
    with open_logs(options) as logs:
        everything = log_states(logs, options)
        check_named(options, everything)
        states = {key: state for key, state in everything.items() if bounds.takes(key)}

        def find_time(key: LogKey, time_us: int) -> int:
            return logs.find_time(states[key].name, time_us)

        include_tail = options.include_tail and bool(options.servers)
        spans, losses = choose_spans(options.starting, options.ending, states, find_time, include_tail=include_tail)
        report_losses(losses, options)
        spans = [narrowed for span in spans if (narrowed := bounds.narrow(span)) is not None]
        if options.max_clock_skew_us is not None and bounds.published_us:
            appended_us = max(0, bounds.published_us - options.max_clock_skew_us)
            spans = [later for span in spans if (later := _from(span, find_time(span.key, appended_us))) is not None]
        sources, storages = locate(logs, options, spans, states)
    return pack(sources, storages, target_bytes=options.target_partition_bytes, min_tasks=options.min_partitions)


def _from(span: Span, offset: int) -> Span | None:
    return Span(span.key, max(span.start, offset), span.end) if offset < span.end else None
