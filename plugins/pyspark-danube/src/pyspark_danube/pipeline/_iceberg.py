"""Iceberg tables, written with ``pyiceberg``: any of its catalogues, or one in an SQLite file in the warehouse.

The marker of a query is a *table property*, changed in the same transaction that adds the files. (A property of the
snapshot would be lost when the snapshot expires.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.table import Table

from danube.model.errors import FailedPreconditionError, InvalidArgumentError, StorageConflictError
from pyspark_danube.pipeline._lake import DataFile, LakeSource, LakeTable, string_map

__all__ = ["IcebergSource", "catalog_properties"]

_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.2
_MARKER: Final = "danube.export."


class IcebergSource(LakeSource):
    """``writeStream.format("danube_iceberg")``, after ``spark.dataSource.register(IcebergSource)``.

    Options: ``table``: ``name`` or ``namespace.name``; ``warehouse``: a directory, where a catalogue in an SQLite file
    is made if need be; or ``catalog``: a JSON object with the properties of pyiceberg's catalogue (``{"uri": ...,
    "warehouse": ..., "s3.region": ...}``, and ``name``, by default ``danube``). Leave credentials out of it where the
    machines have their own.
    """

    known: ClassVar[frozenset[str]] = frozenset({"table", "warehouse", "catalog"})

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "danube_iceberg"

    def table(self) -> LakeTable:
        """Return the table that the options describe."""
        given = string_map(self.name(), "catalog", self.options.get("catalog"))
        return _Iceberg(self.required("table"), catalog_properties(self.options.get("warehouse"), given))


def catalog_properties(warehouse: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a catalogue: those given, and an SQLite file in the warehouse if they name none.

    Raises:
        InvalidArgumentError: there is neither a warehouse nor a catalogue, or the warehouse is no directory of this
            machine and the catalogue is not given.
    """
    properties = ({"warehouse": warehouse} if warehouse else {}) | dict(given)
    if "uri" in properties or "type" in properties or "py-catalog-impl" in properties:
        return properties
    place = properties.get("warehouse", "")
    if not place or ("://" in place and not place.startswith("file://")):
        raise InvalidArgumentError(
            f"an Iceberg warehouse in {place!r} needs a catalogue: give its properties, such as uri=sqlite:////a/file.db"
            if place
            else "an Iceberg table needs a warehouse (a directory) or the properties of a catalogue"
        )
    directory = Path(place.removeprefix("file://")).absolute()
    return properties | {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}",
        "danube.directory": str(directory),
    }


class _Iceberg(LakeTable):
    def __init__(self, name: str, properties: dict[str, str]) -> None:
        parts = name.split(".")
        self._name = name if len(parts) > 1 else f"default.{name}"
        self._properties = properties
        self._data = ""
        """Location of data files; known once the table is."""

    def __repr__(self) -> str:
        return f"iceberg table {self._name}"

    def _catalog(self) -> Catalog:
        return load_catalog(**({"name": "danube"} | self._properties))

    def _open(self) -> Table:
        return self._catalog().load_table(self._name)

    def ensure(self, schema: pa.Schema) -> None:
        if "danube.directory" in self._properties:
            Path(self._properties["danube.directory"]).mkdir(parents=True, exist_ok=True)
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        table = catalog.create_table_if_not_exists(self._name, schema)
        self._check(table, schema)
        self._data = f"{table.location().rstrip('/')}/data"
        # Executors open files with the catalogue's properties of the storage; they do not need the catalogue.
        self._properties |= {name: str(value) for name, value in table.io.properties.items()}

    def _check(self, table: Table, schema: pa.Schema) -> None:
        there = {field.name: field.field_type for field in table.schema().fields}
        listed = ", ".join(f"{name} {kind}" for name, kind in there.items())
        remedy = "export to another table or choose the columns that it has"
        try:
            ours = pyarrow_to_schema(schema, name_mapping=table.schema().name_mapping)
        except ValueError as error:
            raise FailedPreconditionError(
                f"the Iceberg table {self._name} has other columns ({listed}): {error}; {remedy}"
            ) from error
        for field in ours.fields:
            if there.get(field.name) != field.field_type:
                raise FailedPreconditionError(
                    f"the Iceberg table {self._name} has no column {field.name!r} of type {field.field_type}, but"
                    f" {listed}; {remedy}"
                )

    def open_file(self, name: str) -> tuple[str, Any]:
        path = f"{self._data}/{name}"
        return path, load_file_io(self._properties, path).new_output(path).create()

    def remove_file(self, path: str) -> None:
        try:
            load_file_io(self._properties, path).delete(path)
        except FileNotFoundError:
            return

    def commit(self, query: str, batch: int, files: Sequence[DataFile]) -> bool:
        failure: CommitFailedException | None = None
        for attempt in range(_ATTEMPTS):
            table = self._open()
            last = _last_batch(table, query)
            if last is not None and last >= batch:
                return failure is not None  # the entry may be from our failed attempt: then the files are needed
            try:
                with table.transaction() as transaction:
                    transaction.set_properties({_MARKER + query: str(batch)})
                    transaction.add_files([file.path for file in files], check_duplicate_files=False)
            except CommitFailedException as error:
                failure = error
                time.sleep(random.uniform(0, _PAUSE_S * (attempt + 1)))
            else:
                return True
        raise StorageConflictError(f"concurrent changes of the Iceberg table {self._name}: {failure}") from failure


def _last_batch(table: Table, query: str) -> int | None:
    marker = table.properties.get(_MARKER + query)
    return None if marker is None else int(marker)
