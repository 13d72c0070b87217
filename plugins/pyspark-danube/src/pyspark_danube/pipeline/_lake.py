"""Base of the streaming sinks for lakehouse tables, shared by Delta and Iceberg.

::

    executor   rows --Arrow--> danube-<query>-<batch>-<task>-<random>.parquet     beside the table's other files
                                        | path, size, rows (a few bytes)
    driver     commit(messages, batch) -+--> one commit of the table: these files, and "query <id> has stored batch <n>"

A file belongs to a table only once the table's own log names it, and the commit that does so also moves the marker of
the query. If Spark repeats a batch (the driver died between our commit and Spark's record of it), the marker is found,
and the files of the repetition are removed: every row is in the table once. The marker contains the id of the streaming
query, which is in its checkpoint: a new checkpoint is another export, which begins at its starting offsets.

Rows do not pass through the driver. So these are data sources, not functions for ``foreachBatch``, where the driver
would have to collect each batch first.

A killed task leaves its file behind. Such a file is harmless, because no commit names it. Its name begins with
``danube-`` and the query's id, and the table's own clean-up (``VACUUM`` of Delta, ``remove_orphan_files`` of Iceberg)
removes it.
"""

from __future__ import annotations

import difflib
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from danube.model.errors import DanubeError, FailedPreconditionError, InternalError, InvalidArgumentError
from pyspark_danube._spark_apis import DataSourceStreamArrowWriter, spark_version, to_arrow_schema

__all__ = ["DataFile", "LakeSource", "LakeTable", "file_prefix", "string_map"]

ROW_GROUP_ROWS: Final = 500_000
ROW_GROUP_BYTES: Final = 64 << 20
"""A row group of a Parquet file is closed at this many rows or Arrow bytes: it is what a reader can skip."""

_ALWAYS: Final = frozenset({"checkpointlocation", "path"})


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that no table refers to yet."""

    path: str
    """As the table's log names it: relative to the table for Delta, whole for Iceberg."""
    size: int
    """Bytes."""
    rows: int
    stats: str
    """Statistics of the columns for the table's log, in the form of that log; may be empty."""


class LakeTable(ABC):
    """A table in a lakehouse, for driver and executors. It is pickled to the executors."""

    @abstractmethod
    def ensure(self, schema: pa.Schema) -> None:
        """Create the table if it does not exist, else check that rows of ``schema`` fit into it (driver).

        Raises:
            FailedPreconditionError: the table has other columns.
        """

    @abstractmethod
    def open_file(self, name: str) -> tuple[str, Any]:
        """Return the path of a new data file and a writable binary stream for it (executor)."""

    @abstractmethod
    def remove_file(self, path: str) -> None:
        """Remove a data file that no commit names; a missing one is ignored."""

    @abstractmethod
    def commit(self, query: str, batch: int, files: Sequence[DataFile]) -> bool:
        """Add files and move the marker of the query in one commit; False if the log has this batch already (driver).

        Raises:
            StorageConflictError: every attempt conflicted with a concurrent change; a restart of the query retries.
        """

    def stats(self, metadata: Any) -> str:
        """Return statistics of a file for the log, from the metadata of its Parquet footer; by default none."""
        return ""


@dataclass
class _Written(WriterCommitMessage):
    """Message of a task to the driver."""

    query: str
    files: list[DataFile]


class _LakeWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query.

    It has no ``abort``: Spark also calls that after a ``commit`` that failed, and a commit whose answer was lost may
    have succeeded. A superfluous file is better than a table without one of its files.
    """

    def __init__(self, table: LakeTable, schema: pa.Schema) -> None:
        self._table = table
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the rows of a task into one Parquet file (none if there are no rows)."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if context is None or not query:
            raise InternalError(f"Spark {spark_version()} did not say which streaming query this task belongs to")
        batch = context.getLocalProperty("streaming.sql.batchId")
        name = f"{file_prefix(query)}{batch}-{context.partitionId()}-{uuid.uuid4().hex[:12]}.parquet"
        file: _ParquetFile | None = None
        try:
            for record_batch in iterator:
                if record_batch.num_rows:
                    file = file or _ParquetFile(self._table, name, self._schema)
                    file.add(record_batch)
            return _Written(query, [] if file is None else [file.finish()])
        except BaseException:
            if file is not None:
                file.drop()
            raise

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Enter the files of a batch in the table, unless its log has this batch already."""
        written = [message for message in messages if isinstance(message, _Written)]
        files = [file for message in written for file in message.files]
        if files and not self._table.commit(written[0].query, batchId, files):
            for file in files:
                self._table.remove_file(file.path)


class _ParquetFile:
    """One file being written."""

    def __init__(self, table: LakeTable, name: str, schema: pa.Schema) -> None:
        self._table = table
        self._schema = schema
        self._path, self._stream = table.open_file(name)
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd")
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._rows = 0

    def add(self, batch: Any) -> None:
        if batch.schema != self._schema:
            batch = pa.RecordBatch.from_struct_array(batch.to_struct_array().cast(pa.struct(self._schema)))
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> DataFile:
        self._flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        return DataFile(self._path, size, self._rows, self._table.stats(self._writer.writer.metadata))

    def drop(self) -> None:
        """Close and remove the file; errors here must not hide the original one."""
        for step in (self._writer.close, self._stream.close, lambda: self._table.remove_file(self._path)):
            try:
                step()
            except (OSError, ValueError, DanubeError):
                continue

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._waiting_rows)
            self._rows += self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


class LakeSource(DataSource):
    """Base of the data sources ``danube_delta`` and ``danube_iceberg``, which can only write streams."""

    known: ClassVar[frozenset[str]]
    """Names of the supported options, in lower case, without those that Spark adds."""

    def table(self) -> LakeTable:
        """Return the table that the options describe.

        Raises:
            InvalidArgumentError: an option is missing or wrong.
        """
        raise NotImplementedError

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the writer of a query; the table is created now if it does not exist.

        Raises:
            InvalidArgumentError: an option is missing or wrong.
            FailedPreconditionError: the table has other columns, or the query is not in append mode.
        """
        self._check_options()
        if overwrite:
            raise FailedPreconditionError(f"{self.name()} takes streams in append mode only, not complete mode")
        table = self.table()
        arrow = pa.schema([field.with_nullable(True) for field in to_arrow_schema(schema)])
        table.ensure(arrow)
        return _LakeWriter(table, arrow)

    def _check_options(self) -> None:
        for option in self.options:
            name = option.lower()
            if name not in self.known and name not in _ALWAYS:
                near = difflib.get_close_matches(name, self.known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(self.known))}"
                raise InvalidArgumentError(f"{self.name()} has no option {option!r}; {hint}")

    def required(self, option: str) -> str:
        """Return a required option."""
        value = self.options.get(option)
        if not value:
            raise InvalidArgumentError(f"{self.name()} needs the option {option!r}")
        return str(value)


def string_map(source: str, option: str, text: str | None) -> dict[str, str]:
    """Read an option that is a JSON object of strings; unlike Spark's options its names may have upper-case letters.

    Raises:
        InvalidArgumentError: it is something else. The message does not show the value, which may be secret.
    """
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
        raise InvalidArgumentError(
            f'{source}: the option {option!r} must be a JSON object of strings, {{"name": "value"}}'
        )
    return dict(value)


def file_prefix(query: str) -> str:
    """Return the prefix of the names of a query's data files."""
    return f"danube-{query}-"
