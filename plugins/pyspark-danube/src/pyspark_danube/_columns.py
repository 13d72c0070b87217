"""Columns of a topic, and the selection of those requested by a query.

Spark's Python sources do not learn which columns a query uses, so each row is passed to Java completely, unless the
user restricts the columns with ``.schema("offset BIGINT, producer STRING")``. Then only these are built; as long as
the header of a batch has all of them, batches are not even decoded. With a ``payloadFormat`` the other columns of the
schema are fields of the payload, and with schemas of the registry there is one column ``value``.

Each query imports this module twice before it reads a byte, in two processes: what only some queries need, and Arrow,
is imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
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
from pyspark_danube._spark_apis import to_arrow_schema, to_arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_danube._payloads import PayloadDecoder, PayloadFormat
    from pyspark_danube._values import Pinned, ValueDecoder, Writers

__all__ = ["BINARY_KEYS", "COLUMNS", "ERROR", "SCHEMA", "VALUE", "Columns", "format_of"]

VALUE: Final = "value"
"""Column of the decoded values."""
ERROR: Final = "_error"
"""Column that says why a payload did not decode; null if it did."""

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

    def __init__(
        self,
        schema: StructType,
        *,
        payload_format: str = "binary",
        mode: str = "PERMISSIVE",
        pinned: Pinned | None = None,
    ) -> None:
        """Check a schema.

        Args:
            schema: the columns.
            payload_format, mode: of payloads.
            pinned: the reader's schema, if payloads are decoded with schemas of the registry.

        Raises:
            ConfigurationError: an unknown column, one of another type, or an unknown format.
        """
        import pyarrow as pa

        self._pinned = pinned
        self._format = None if pinned is not None else format_of(payload_format)
        self._mode = mode
        payload_fields = []
        for field in schema.fields:
            expected = COLUMNS.get(field.name)
            if pinned is not None and field.name in (VALUE, ERROR):
                _check_decoded(field, pinned)
            elif expected is None and self._format is not None:
                payload_fields.append(field)
            else:
                _check(field, expected, opened=self._format is not None, by_registry=pinned is not None)
        self.schema: pa.Schema = to_arrow_schema(schema)
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

    def value_decoder(self, writers: Writers) -> ValueDecoder | None:
        """Return the decoder of values with schemas of the registry; None if the query needs no values.

        Args:
            writers: finds the schema with a number.
        """
        if self._pinned is None or not {VALUE, ERROR} & set(self.names):
            return None
        from pyspark_danube._values import ValueDecoder, shape_of

        kind = (
            self.schema.field(VALUE).type if VALUE in self.names else to_arrow_type(shape_of(self._pinned.source).type)
        )
        return ValueDecoder(self._pinned, kind, fail_fast=self._mode == "FAILFAST", writers=writers)


def format_of(name: str) -> PayloadFormat | None:
    """Return a payload format by its name; None for ``binary``.

    Raises:
        ConfigurationError: the format is unknown.
    """
    if name == "binary":
        return None  # the default: nothing to import
    from pyspark_danube._payloads import find_format

    return find_format(name)


def _check_decoded(field: StructField, pinned: Pinned) -> None:
    from pyspark_danube._values import shape_of

    expected = StringType() if field.name == ERROR else shape_of(pinned.source).type
    wrong = _difference(field.dataType, expected, field.name)
    if wrong is not None:
        raise ConfigurationError(f"{wrong}; the reader's schema is {pinned}")


def _difference(asked: DataType, known: DataType, path: str) -> str | None:
    """Return how a type differs from a known one, other than by lacking fields or in what may be null."""
    if isinstance(asked, StructType) and isinstance(known, StructType):
        types = {field.name: field.dataType for field in known}
        for field in asked:
            if field.name not in types:
                remedy = nearest(field.name, list(types)) or f" it has {', '.join(types)}"
                return f"the column {path!r} has no field {field.name!r};{remedy}"
            found = _difference(field.dataType, types[field.name], f"{path}.{field.name}")
            if found is not None:
                return found
        return None
    if isinstance(asked, ArrayType) and isinstance(known, ArrayType):
        return _difference(asked.elementType, known.elementType, f"{path}[]")
    if isinstance(asked, MapType) and isinstance(known, MapType) and asked.keyType == known.keyType:
        return _difference(asked.valueType, known.valueType, f"{path}[]")
    if asked == known:
        return None
    return f"{path!r} is {known.simpleString()}, not {asked.simpleString()}; convert it in the query, with cast()"


def _check(field: StructField, expected: DataType | None, *, opened: bool, by_registry: bool) -> None:
    if expected is None and by_registry:
        raise ConfigurationError(
            f"there is no column {field.name!r}; there are {', '.join(COLUMNS)}, {VALUE} with the decoded payload, such"
            f" as value STRUCT<{field.name}: {field.dataType.simpleString()}>, and {ERROR}"
        )
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
