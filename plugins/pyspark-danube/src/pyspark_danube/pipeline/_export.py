"""Exports topics to tables: Parquet files by Spark itself, Delta and Iceberg by the writers in this package."""

from __future__ import annotations

import difflib
import enum
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from danube.model.errors import ConfigurationError, InvalidArgumentError
from pyspark_danube.pipeline._topics import default_checkpoint, start_stream, stream_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["TableKind", "export_table"]


class TableKind(enum.StrEnum):
    """Kind of the target table."""

    PARQUET = "parquet"
    """A directory of Parquet files. The valid ones are listed in its ``_spark_metadata``, which Spark reads."""
    DELTA = "delta"
    ICEBERG = "iceberg"


def export_table(
    session: SparkSession,
    topics: str | Sequence[str],
    target: str,
    *,
    servers: str,
    kind: TableKind | str = TableKind.DELTA,
    checkpoint: str = "",
    once: bool = False,
    every_s: float = 10.0,
    starting: str = "earliest",
    schema: str = "",
    columns: Sequence[str] = (),
    warehouse: str = "",
    catalog: Mapping[str, str] | None = None,
    storage: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Export topics to a table: every message once, even if the job is killed and restarted.

    A restart with the same checkpoint continues at its position. With a new checkpoint the job begins at ``starting``,
    and appends all messages from there on to the table.

    Args:
        session: a Spark session.
        topics: one topic or several.
        target: of Parquet and Delta a directory or URL; of Iceberg ``namespace.table``.
        servers: URL of the broker, ``danube://host:port``.
        kind: kind of ``target``.
        checkpoint: directory with the query's progress; by default inside a local table.
        once: end when all messages that existed at the start are exported; otherwise continue indefinitely.
        every_s: seconds between two commits of the table, without ``once``. Each commit adds new files.
        starting: ``earliest``, ``latest``, offsets as JSON, or a time, for a new checkpoint.
        schema: payloads are JSON objects with these fields (``"id BIGINT, total DOUBLE"``), which become columns beside
            topic, partition, offset, publish_time and key; empty: payloads stay as they are.
        columns: only these columns; all by default.
        warehouse: of Iceberg: directory of the tables, with a catalogue in an SQLite file if there is no other.
        catalog: of Iceberg: properties of pyiceberg's catalogue.
        storage: of Delta: storage options of delta-rs.
        options: further options of the data source, such as ``maxBytesPerTrigger`` or ``storage.options.*``.

    Raises:
        InvalidArgumentError: an argument is wrong or missing.
        ConfigurationError: the package for this kind of table is not installed.
    """
    kind = TableKind(kind)
    rows = stream_topics(session, servers, topics, starting=starting, schema=schema, options=options)
    if columns:
        rows = _choose(rows, columns)
    if kind is TableKind.ICEBERG:
        writer = _iceberg(session, rows, target, warehouse, catalog or {})
        if not checkpoint:
            if not warehouse:
                raise InvalidArgumentError("an export to a catalogue of Iceberg needs a checkpoint, or a warehouse")
            checkpoint = default_checkpoint(_absolute(warehouse), f"_checkpoints/{target}")
    else:
        target = _absolute(target)
        checkpoint = checkpoint or default_checkpoint(target, "_checkpoint")
        if kind is TableKind.DELTA:
            writer = _delta(session, rows, target, storage or {})
        else:
            writer = rows.writeStream.format("parquet").option("path", target).option("compression", "zstd")
    return start_stream(writer, checkpoint, once=once, every_s=every_s)


def _choose(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    for name in columns:
        if name not in rows.columns:
            near = difflib.get_close_matches(name, rows.columns, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(rows.columns)}"
            raise InvalidArgumentError(f"the topic has no column {name!r}; {hint}")
    return rows.select(*columns)


def _delta(session: SparkSession, rows: DataFrame, target: str, storage: Mapping[str, str]) -> DataStreamWriter:
    try:
        from pyspark_danube.pipeline._delta import DeltaSource
    except ModuleNotFoundError as error:
        raise _not_installed(TableKind.DELTA, error) from error
    session.dataSource.register(DeltaSource)
    writer = rows.writeStream.format(DeltaSource.name()).option("path", target)
    return writer.option("storageOptions", json.dumps(dict(storage))) if storage else writer


def _iceberg(
    session: SparkSession, rows: DataFrame, table: str, warehouse: str, catalog: Mapping[str, str]
) -> DataStreamWriter:
    try:
        from pyspark_danube.pipeline._iceberg import IcebergSource, catalog_properties
    except ModuleNotFoundError as error:
        raise _not_installed(TableKind.ICEBERG, error) from error
    properties = catalog_properties(_absolute(warehouse) if warehouse else None, catalog)
    session.dataSource.register(IcebergSource)
    writer = rows.writeStream.format(IcebergSource.name()).option("table", table)
    return writer.option("catalog", json.dumps(properties))


def _absolute(path: str) -> str:
    """Return a path with the same meaning in all processes of Spark."""
    return path if "://" in path else os.path.abspath(path)


def _not_installed(kind: TableKind, error: ModuleNotFoundError) -> ConfigurationError:
    return ConfigurationError(
        f"an export to {kind} needs the package {error.name}: pip install 'pyspark-danube[pipeline]'"
    )
