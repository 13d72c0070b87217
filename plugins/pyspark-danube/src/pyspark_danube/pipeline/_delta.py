"""Delta tables, written with delta-rs (the package ``deltalake``): no jar and no Spark catalogue needed.

The marker of a query is an *application transaction* of Delta, which any commit may contain and no clean-up of the log
removes. Files are also opened with delta-rs, so that one set of storage options applies to the log and the data.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from danube.model.errors import FailedPreconditionError, StorageConflictError
from pyspark_danube.pipeline._lake import DataFile, LakeSource, LakeTable, string_map

__all__ = ["DeltaSource"]

_ATTEMPTS: Final = 5
_INTEGERS: Final = frozenset({"INT32", "INT64"})


class DeltaSource(LakeSource):
    """``writeStream.format("danube_delta")``, after ``spark.dataSource.register(DeltaSource)``.

    Options: ``path`` (or the argument of ``start``): a directory or a URL such as ``s3://bucket/table``;
    ``storageOptions``: a JSON object with the options of delta-rs for it (``{"AWS_REGION": "eu-west-1"}``). Leave
    credentials out of it where the machines have their own.
    """

    known: ClassVar[frozenset[str]] = frozenset({"path", "storageoptions"})

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "danube_delta"

    def table(self) -> LakeTable:
        """Return the table that the options describe."""
        return _Delta(
            self.required("path"), string_map(self.name(), "storageOptions", self.options.get("storageOptions"))
        )


class _Delta(LakeTable):
    def __init__(self, url: str, storage: dict[str, str]) -> None:
        self._url = url
        self._storage = storage

    def __repr__(self) -> str:
        return f"delta table {self._url}"

    def _open(self) -> DeltaTable:
        return DeltaTable(self._url, storage_options=self._storage)

    def ensure(self, schema: pa.Schema) -> None:
        try:
            table = self._open()
        except TableNotFoundError:
            DeltaTable.create(self._url, schema, mode="ignore", storage_options=self._storage)
            table = self._open()
        if by := table.metadata().partition_columns:
            # Delta takes the value of such a column from the name of a file's partition, never from the file.
            raise FailedPreconditionError(
                f"the Delta table {self._url} is partitioned by {', '.join(by)}, and an export cannot write partitioned"
                " files; export to a table without partitions, and from there into this one"
            )
        there = {field.name: field.type for field in table.schema().fields}
        for field in Schema.from_arrow(schema).fields:
            if there.get(field.name) != field.type:
                listed = ", ".join(f"{name} {_type_name(kind)}" for name, kind in there.items())
                raise FailedPreconditionError(
                    f"the Delta table {self._url} has no column {field.name!r} of type {_type_name(field.type)}, but"
                    f" {listed}; export to another table or choose the columns that it has"
                )

    def open_file(self, name: str) -> tuple[str, Any]:
        return name, self._files().open_output_stream(name)

    def remove_file(self, path: str) -> None:
        try:
            self._files().delete_file(path)
        except FileNotFoundError:
            return

    def _files(self) -> Any:
        return DeltaStorageHandler(self._url, self._storage)

    def commit(self, query: str, batch: int, files: Sequence[DataFile]) -> bool:
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, now_ms, True, file.stats) for file in files
        ]
        failure: CommitFailedError | None = None
        for _ in range(_ATTEMPTS):
            table = self._open()
            last = table.transaction_version(query)
            if last is not None and last >= batch:
                return failure is not None  # the entry may be from our failed attempt: then the files are needed
            try:
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    commit_properties=CommitProperties(
                        custom_metadata={"danube.query": query, "danube.batch": str(batch)},
                        app_transactions=[Transaction(query, batch)],
                    ),
                )
            except CommitFailedError as error:
                failure = error
            else:
                return True
        raise StorageConflictError(f"concurrent changes of the Delta table {self._url}: {failure}") from failure

    def stats(self, metadata: Any) -> str:
        """Return number of rows, and minimum and maximum of integer columns (offsets included), in Delta's format."""
        least: dict[str, int] = {}
        greatest: dict[str, int] = {}
        for index in range(metadata.num_columns):
            column = metadata.schema.column(index)
            if column.path != column.name or column.physical_type not in _INTEGERS:
                continue
            if column.logical_type.type not in ("NONE", "INT"):  # dates and times are integers here, but not in Delta
                continue
            groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
            if all(group is not None and group.has_min_max for group in groups):
                least[column.name] = min(group.min for group in groups)
                greatest[column.name] = max(group.max for group in groups)
        return json.dumps({"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest})


def _type_name(kind: Any) -> str:
    """Return a Delta type in its usual notation; nested ones as in Delta's log."""
    return str(kind.type) if isinstance(kind, PrimitiveType) else str(kind.to_json())
