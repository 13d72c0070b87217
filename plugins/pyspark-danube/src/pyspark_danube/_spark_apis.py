"""Classes and functions of the Spark that is installed, under the names of the newest version.

Only this module asks for the version of Spark to choose what to import; :mod:`pyspark_danube._versions` says since when
each exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.version import __version__

from pyspark_danube._versions import Needs, SparkVersion, check_supported, has, parse_version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "spark_version",
    "to_arrow_schema",
    "to_arrow_type",
]


@cache
def spark_version() -> SparkVersion:
    """Return the version of the installed pyspark.

    Raises:
        ConfigurationError: it is too old.
    """
    version = parse_version(__version__)
    check_supported(version)
    return version


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a source with these columns; times are in UTC."""
    from pyspark.sql.pandas import types

    return types.to_arrow_schema(schema, **_zone())


def to_arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type that Spark expects for a column; times are in UTC."""
    from pyspark.sql.pandas import types

    return types.to_arrow_type(kind, **_zone())


def _zone() -> dict[str, Any]:
    return {"timezone": "UTC"} if has(spark_version(), Needs.NAMED_TIME_ZONE) else {"timestamp_utc": True}


if TYPE_CHECKING:
    pass
elif has(spark_version(), Needs.STREAM_ARROW_WRITER):
    DataSourceStreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """A streaming sink that takes Arrow.

        Spark 4.0 passes Arrow to every writer that is a ``DataSourceArrowWriter``, also in streams.
        """


if TYPE_CHECKING:
    pass
elif has(spark_version(), Needs.READ_LIMITS):
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    # Spark does not ask for limits: they are what the reader passes to itself.

    class ReadLimit:
        """Limit of a micro-batch."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """About so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Spark asks for the end of the logs once instead, and reads up to there in one micro-batch."""
