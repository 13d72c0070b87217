"""Columns of a topic, and the selection of those requested by a query.

Spark's Python sources do not learn which columns a query uses, so each row is passed to Java completely, unless the
user restricts the columns with ``.schema("offset BIGINT, producer STRING")``. Then only these are built; as long as
the header of a batch has all of them, batches are not even decoded. With a ``payloadFormat`` the other columns of the
schema are fields of the payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from danube.model.errors import ConfigurationError
from pyspark_danube._options import nearest
from pyspark_danube._payloads import find_format

if TYPE_CHECKING:
    from pyspark_danube._payloads import PayloadDecoder

__all__ = ["BINARY_KEYS", "COLUMNS", "SCHEMA", "Columns"]

COLUMNS: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "publish_time": TimestampType(),
    "key": StringType(),
    "payload": BinaryType(),
    "attributes": MapType(StringType(), StringType()),
    "producer": StringType(),
    "schema_id": IntegerType(),
    "schema_version": IntegerType(),
}
"""Columns of a message. ``topic`` is the base name; ``partition`` is 0 for a plain topic; ``schema_id`` 0: none.

A query may ask for ``key`` as BINARY, too. In a STRING bytes that are not UTF-8 are escaped."""

_MAY_BE_NULL: Final = ("key", "attributes", "producer")

SCHEMA: Final = StructType([StructField(name, kind, name in _MAY_BE_NULL) for name, kind in COLUMNS.items()])
"""All columns. NOT NULL columns are declared so, because Spark then skips two null checks in each row."""


BINARY_KEYS: Final = StructType(
    [StructField(each.name, BinaryType(), each.nullable) if each.name == "key" else each for each in SCHEMA]
)
"""All columns, with keys as bytes."""


class Columns:
    """The columns requested by a query, in its order. Can be pickled."""

    def __init__(self, schema: StructType, *, payload_format: str = "binary", mode: str = "PERMISSIVE") -> None:
        """Check a schema.

        Raises:
            ConfigurationError: an unknown column, one of another type, or an unknown format.
        """
        self._format = find_format(payload_format)
        self._mode = mode
        payload_fields = []
        for field in schema.fields:
            expected = COLUMNS.get(field.name)
            if expected is None and self._format is not None:
                payload_fields.append(field)
            else:
                _check(field, expected, opened=self._format is not None)
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        """The exact schema that Spark expects."""
        self._fields: pa.Schema = pa.schema([self.schema.field(field.name) for field in payload_fields])
        if self._format is not None:
            self.decoder()  # an unsupported type is reported now, on the driver

    @property
    def names(self) -> list[str]:
        """All columns."""
        return list(self.schema.names)

    @property
    def fields(self) -> list[str]:
        """The columns decoded from the payload."""
        return list(self._fields.names)

    def decoder(self) -> PayloadDecoder | None:
        """Return the decoder of payloads; None if the query needs no fields of them."""
        if self._format is None or not self._fields.names:
            return None
        return self._format.decoder(self._fields, self._mode)


def _check(field: StructField, expected: DataType | None, *, opened: bool) -> None:
    if expected is None:
        remedy = nearest(field.name, list(COLUMNS)) or f" it has {', '.join(COLUMNS)}"
        raise ConfigurationError(
            f"a topic has no column {field.name!r};{remedy} (fields of the payload need the option payloadFormat)"
        )
    if field.dataType != expected and not (field.name == "key" and field.dataType == BinaryType()):
        also = "; a field of the payload cannot have this name" if opened else ""
        raise ConfigurationError(
            f"column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}; convert it in"
            f" the query, with cast(){also}"
        )
