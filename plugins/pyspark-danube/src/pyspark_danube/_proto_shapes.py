"""The Spark type of a protobuf message, and the conversion of messages. Pure: no registry, no broker.

Fields with presence that are not set are null (or have the default that proto2 declares), others have their default. Of
an enumeration the column has the name, or the number if the reader's schema has no name for it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from decimal import Decimal
from typing import Any, Final

from google.protobuf.json_format import MessageToJson
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_danube._shapes import Convert, Shape, each, per_key

__all__ = ["proto_shape"]


def _as_json(message: Any) -> str:
    return str(MessageToJson(message, indent=None, preserving_proto_field_name=True))


def _moment(message: Any) -> Any:
    return message.ToDatetime(tzinfo=UTC)


_SPECIAL: Final = {
    "google.protobuf.Timestamp": Shape(TimestampType(), _moment),
    "google.protobuf.Struct": Shape(StringType(), _as_json),
    "google.protobuf.Value": Shape(StringType(), _as_json),
    "google.protobuf.ListValue": Shape(StringType(), _as_json),
}


def proto_shape(message: Any, inside: frozenset[str] = frozenset()) -> Shape:
    """Return the shape of a message type.

    Args:
        message: its descriptor.
        inside: full names of the messages around it.
    """
    name = message.full_name
    if name in _SPECIAL:
        return _SPECIAL[name]
    if name in inside or not message.fields:
        return Shape(StringType(), _as_json)
    inside |= {name}
    shapes = [(field, _field_shape(field, inside)) for field in message.fields]
    readers = [(field.name, _reader(field, shape.convert)) for field, shape in shapes]

    def convert(value: Any) -> dict[str, Any]:
        return {name: read(value) for name, read in readers}

    return Shape(StructType([StructField(field.name, shape.type) for field, shape in shapes]), convert)


def _field_shape(field: Any, inside: frozenset[str]) -> Shape:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return _map_shape(kind, inside)
    inner = _value_shape(field, inside)
    if not field.is_repeated:
        return inner
    made = each(inner)
    return made if made.convert is not None else Shape(made.type, list)


def _map_shape(entry: Any, inside: frozenset[str]) -> Shape:
    inner = _value_shape(entry.fields_by_name["value"], inside)
    convert = inner.convert
    return Shape(
        per_key(inner).type,
        lambda value: {_key(key): one if convert is None else convert(one) for key, one in value.items()},
    )


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value_shape(field: Any, inside: frozenset[str]) -> Shape:
    if field.message_type is not None:
        return proto_shape(field.message_type, inside)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return Shape(StringType(), lambda number: names.get(number, str(number)))
    return _scalar(field)


def _scalar(field: Any) -> Shape:
    if field.type in (field.TYPE_INT32, field.TYPE_SINT32, field.TYPE_SFIXED32):
        return Shape(IntegerType())
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return Shape(DecimalType(20, 0), Decimal)
    if field.type in (field.TYPE_INT64, field.TYPE_SINT64, field.TYPE_SFIXED64, field.TYPE_UINT32, field.TYPE_FIXED32):
        return Shape(LongType())
    if field.type == field.TYPE_DOUBLE:
        return Shape(DoubleType())
    if field.type == field.TYPE_FLOAT:
        return Shape(FloatType())
    if field.type == field.TYPE_BOOL:
        return Shape(BooleanType())
    return Shape(BinaryType() if field.type == field.TYPE_BYTES else StringType())


def _reader(field: Any, convert: Convert | None) -> Callable[[Any], Any]:
    name = field.name
    present = field.has_presence and not field.has_default_value

    def read(message: Any) -> Any:
        if present and not message.HasField(name):
            return None
        value = getattr(message, name)
        return value if convert is None else convert(value)

    return read
