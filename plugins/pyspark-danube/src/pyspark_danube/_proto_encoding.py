"""Encodes rows of the sink as protobuf messages, by the names of fields. Pure: no registry, no broker.

The types are those that the source reads a message as (:mod:`pyspark_danube._proto_shapes`), and narrower ones. A null
leaves its field unset; without presence, that is the field's default.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import EncodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from danube.model.errors import ConfigurationError, SchemaError
from pyspark_danube._options import nearest
from pyspark_danube._values import VALUE

__all__ = ["encoder_of"]

Fill = Callable[[Any, Any], None]
"""Sets what a value says in a message."""
Convert = Callable[[Any], Any]

_INT32: Final = (ByteType, ShortType, IntegerType)
_INT64: Final = (*_INT32, LongType)
_TEXT: Final = (StringType, CharType, VarcharType)
_JSON_TYPES: Final = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
_FAILURES: Final = (ValueError, TypeError, ArithmeticError, LookupError, json_format.ParseError)
"""What the library and conversions raise for values that do not fit."""


def encoder_of(descriptor: Any, kind: DataType) -> Callable[[Any], bytes]:
    """Return what encodes a row, as a dict, to the bytes of a message.

    It raises SchemaError for a value that does not fit; the message names the column.

    Args:
        descriptor: of the message.
        kind: type of the column ``value``.

    Raises:
        ConfigurationError: a column has no field, or is of another type; or a required field has no column.
    """
    if not isinstance(kind, StructType):
        raise ConfigurationError(
            f"payloadFormat=protobuf writes messages, and {VALUE!r} is {kind.simpleString()}; select a struct, for"
            f" example df.selectExpr('struct(*) AS {VALUE}')"
        )
    make = GetMessageClass(descriptor)
    fill = _message(descriptor, kind, VALUE)

    def encode(value: Any) -> bytes:
        message = make()
        fill(message, value)
        try:
            return bytes(message.SerializeToString())
        except EncodeError as error:
            absent = ", ".join(message.FindInitializationErrors())
            why = f"it has no {absent}, which the message requires" if absent else str(error)
            raise SchemaError(f"{VALUE}: {why}") from error

    return encode


def _message(descriptor: Any, kind: StructType, path: str) -> Fill:
    fields = {field.name: field for field in descriptor.fields}
    puts: list[tuple[str, Fill]] = []
    for column in kind:
        where = f"{path}.{column.name}"
        field = fields.get(column.name)
        if field is None:
            remedy = nearest(column.name, list(fields)) or f" it has {', '.join(fields) or 'none'}"
            raise ConfigurationError(
                f"the message {descriptor.full_name} has no field for the column {where!r};{remedy}; rename or drop the"
                " column, or register a version that has the field (registerSchema=true does)"
            )
        puts.append((column.name, _field(field, column.dataType, where)))
    written = set(kind.fieldNames())
    absent = [name for name, field in fields.items() if field.is_required and name not in written]
    if absent:
        raise ConfigurationError(
            f"the message {descriptor.full_name} requires {', '.join(absent)}, and {path!r} has no such field"
        )

    def fill(message: Any, value: Any) -> None:
        for name, put in puts:
            found = value[name]
            if found is not None:
                put(message, found)

    return fill


def _field(field: Any, kind: DataType, path: str) -> Fill:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return _map(field, entry, kind, path)
    if field.is_repeated:
        if not isinstance(kind, ArrayType):
            raise _mismatch(field, kind, path, "ARRAY")
        return _list(field, kind, path)
    name = field.name
    inner = _inner(field, kind, path)
    if isinstance(inner, _Nested):
        into = inner.fill

        def put_message(message: Any, value: Any) -> None:
            made = getattr(message, name)
            made.SetInParent()
            into(made, value)

        return put_message
    convert = inner

    def put(message: Any, value: Any) -> None:
        try:
            setattr(message, name, convert(value))
        except _FAILURES as error:
            raise SchemaError(f"{path}: {error}") from error

    return put


def _list(field: Any, kind: ArrayType, path: str) -> Fill:
    name = field.name
    inner = _inner(field, kind.elementType, f"{path}[]")

    def put(message: Any, value: Any) -> None:
        made = getattr(message, name)
        for one in value:
            if one is None:
                raise SchemaError(f"{path}[]: a null in a list, which protobuf does not have; filter it out")
            if isinstance(inner, _Nested):
                inner.fill(made.add(), one)
                continue
            try:
                made.append(inner(one))
            except _FAILURES as error:
                raise SchemaError(f"{path}[]: {error}") from error

    return put


def _map(field: Any, entry: Any, kind: DataType, path: str) -> Fill:
    if not isinstance(kind, MapType):
        raise _mismatch(field, kind, path, "MAP")
    name = field.name
    keys = entry.fields_by_name["key"]
    as_key = str if keys.type == keys.TYPE_STRING else _truth if keys.type == keys.TYPE_BOOL else int
    if not isinstance(kind.keyType, (*_TEXT, *_INT64)):
        raise _mismatch(keys, kind.keyType, f"{path} (key)", "STRING")
    inner = _inner(entry.fields_by_name["value"], kind.valueType, f"{path}[]")

    def put(message: Any, value: Any) -> None:
        made = getattr(message, name)
        for key, one in value.items():
            where = f"{path}[{key}]"
            if one is None:
                raise SchemaError(f"{where}: a null in a map, which protobuf does not have; filter it out")
            try:
                if isinstance(inner, _Nested):
                    inner.fill(made[as_key(key)], one)
                else:
                    made[as_key(key)] = inner(one)
            except _FAILURES as error:
                raise SchemaError(f"{where}: {error}") from error

    return put


def _truth(key: str) -> bool:
    if key not in ("true", "false"):
        raise ValueError(f"the key is a bool, true or false, not {key!r}")
    return key == "true"


class _Nested:
    """What fills a message within another one."""

    def __init__(self, fill: Fill) -> None:
        self.fill = fill


def _inner(field: Any, kind: DataType, path: str) -> _Nested | Convert:
    """Return what fills a message, or converts a value of another type, of a field or of its elements."""
    message = field.message_type
    if message is not None:
        if message.full_name == "google.protobuf.Timestamp":
            if not isinstance(kind, TimestampType):
                raise _mismatch(field, kind, path, "TIMESTAMP")
            return _Nested(lambda made, value: made.FromDatetime(value))
        if isinstance(kind, _TEXT):
            return _Nested(_from_json(path))  # as recursive and empty messages, and JSON values, are read
        if message.full_name in _JSON_TYPES:
            raise _mismatch(field, kind, path, "STRING with JSON")
        if not isinstance(kind, StructType):
            raise _mismatch(field, kind, path, "STRUCT")
        return _Nested(_message(message, kind, path))
    if field.enum_type is not None:
        if isinstance(kind, _INT32):
            return int
        if not isinstance(kind, _TEXT):
            raise _mismatch(field, kind, path, "STRING")
        return _enum(field.enum_type)
    takes, name, convert = _scalar(field)
    if not isinstance(kind, takes) or (isinstance(kind, DecimalType) and kind.scale):
        raise _mismatch(field, kind, path, name)
    return convert


def _from_json(path: str) -> Fill:
    def fill(message: Any, value: Any) -> None:
        try:
            json_format.Parse(value, message)
        except json_format.ParseError as error:
            raise SchemaError(f"{path}: {error}") from error

    return fill


def _enum(kind: Any) -> Convert:
    numbers = {value.name: value.number for value in kind.values}

    def convert(value: str) -> int:
        if value in numbers:
            return int(numbers[value])
        try:
            return int(value)  # as numbers without a name are read
        except ValueError:
            raise ValueError(
                f"{kind.full_name} has no value {value!r}; it has {', '.join(list(numbers)[:10])}"
            ) from None

    return convert


def _same(value: Any) -> Any:
    return value


def _scalar(field: Any) -> tuple[tuple[type[DataType], ...], str, Convert]:
    """Return which Spark types a field takes, the one to cast to, and the conversion of values."""
    if field.type in (field.TYPE_INT32, field.TYPE_SINT32, field.TYPE_SFIXED32):
        return _INT32, "INT", _same
    if field.type in (field.TYPE_INT64, field.TYPE_SINT64, field.TYPE_SFIXED64):
        return _INT64, "BIGINT", _same
    if field.type in (field.TYPE_UINT32, field.TYPE_FIXED32):
        return _INT64, "BIGINT", _same
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return (*_INT64, DecimalType), "DECIMAL(20,0)", _whole
    if field.type == field.TYPE_DOUBLE:
        return (FloatType, DoubleType), "DOUBLE", _same
    if field.type == field.TYPE_FLOAT:
        return (FloatType,), "FLOAT", _same
    if field.type == field.TYPE_BOOL:
        return (BooleanType,), "BOOLEAN", _same
    if field.type == field.TYPE_BYTES:
        return (BinaryType,), "BINARY", _same
    return _TEXT, "STRING", _same


def _whole(value: int | Decimal) -> int:
    return int(value)


def _mismatch(field: Any, kind: DataType, path: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"payloadFormat=protobuf: the column {path!r} is {kind.simpleString().upper()}, and the field {field.full_name}"
        f" takes {wanted}; cast it"
    )
