"""The Spark type of a registered schema, and what makes decoded values fit it. Pure: no registry, no broker.

A *shape* is a Spark type with a conversion of the values that the libraries decode. Whatever has no counterpart in
Spark (unions of several types, recursive types, objects without known fields, decimals of more than 38 digits) is a
STRING with the value as JSON. All fields may be null: which ones are required is a matter of the schema's versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import time
from typing import Any, Final, NamedTuple

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

__all__ = ["Convert", "Shape", "avro_shape", "each", "per_key", "struct"]

MOST_DIGITS: Final = 38
"""Digits of the largest decimal of Spark."""

Convert = Callable[[Any], Any]


class Shape(NamedTuple):
    """A Spark type, and what makes a decoded value fit it."""

    type: DataType
    convert: Convert | None = None
    """Takes a value that is not None; None: values fit as they are."""


def as_json(value: Any) -> str:
    """Return a value as JSON: times in ISO 8601, bytes in Base64, decimals as text."""
    return msgspec.json.encode(value).decode()


AS_JSON: Final = Shape(StringType(), as_json)


def each(inner: Shape) -> Shape:
    """Return the shape of lists."""
    convert = inner.convert
    if convert is None:
        return Shape(ArrayType(inner.type))
    return Shape(ArrayType(inner.type), lambda value: [None if one is None else convert(one) for one in value])


def per_key(inner: Shape) -> Shape:
    """Return the shape of dicts with any keys, which are texts."""
    kind = MapType(StringType(), inner.type)
    convert = inner.convert
    if convert is None:
        return Shape(kind)
    return Shape(kind, lambda value: {key: None if one is None else convert(one) for key, one in value.items()})


def struct(fields: Sequence[tuple[str, Shape]]) -> Shape:
    """Return the shape of dicts with these keys; without any it is JSON, since files have no empty structs."""
    if not fields:
        return AS_JSON
    kind = StructType([StructField(name, shape.type) for name, shape in fields])
    changed = [(name, shape.convert) for name, shape in fields if shape.convert is not None]
    if not changed:
        return Shape(kind)

    def convert(value: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(value)
        for name, inner in changed:
            found = made.get(name)
            if found is not None:
                made[name] = inner(found)
        return made

    return Shape(kind, convert)


# ---------------------------------------------------------------------------------------------------------------------
# Avro

_PLAIN: Final[dict[str, Shape]] = {
    "boolean": Shape(BooleanType()),
    "int": Shape(IntegerType()),
    "long": Shape(LongType()),
    "float": Shape(FloatType()),
    "double": Shape(DoubleType()),
    "bytes": Shape(BinaryType()),
    "fixed": Shape(BinaryType()),
    "string": Shape(StringType()),
    "enum": Shape(StringType()),
    "null": AS_JSON,
}


def _microseconds(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


_TIME: Final = Shape(LongType(), _microseconds)
_LOGICAL: Final[dict[tuple[str, str], Shape]] = {
    ("int", "date"): Shape(DateType()),
    ("int", "time-millis"): _TIME,
    ("long", "time-micros"): _TIME,
    ("long", "timestamp-millis"): Shape(TimestampType()),
    ("long", "timestamp-micros"): Shape(TimestampType()),
    ("long", "local-timestamp-millis"): Shape(TimestampNTZType()),
    ("long", "local-timestamp-micros"): Shape(TimestampNTZType()),
    ("string", "uuid"): Shape(StringType(), str),
}
_WIDER: Final = ({"int", "long"}, "long"), ({"float", "double"}, "double")


def avro_shape(schema: Any, names: Mapping[str, Any], inside: frozenset[str] = frozenset()) -> Shape:
    """Return the shape of an Avro schema.

    Args:
        schema: as fastavro has parsed it, with full names of types.
        names: the named types.
        inside: names of the records around it.
    """
    if isinstance(schema, list):
        return _union_shape(schema, names, inside)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        schema = names[schema]
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind in ("record", "error"):
        name = schema["name"]
        if name in inside:
            return AS_JSON
        inside |= {name}
        return struct([(field["name"], avro_shape(field["type"], names, inside)) for field in schema["fields"]])
    if kind == "array":
        return each(avro_shape(schema["items"], names, inside))
    if kind == "map":
        return per_key(avro_shape(schema["values"], names, inside))
    if logical == "decimal":
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        return Shape(DecimalType(precision, scale)) if precision <= MOST_DIGITS else AS_JSON
    if not isinstance(kind, str):
        return avro_shape(kind, names, inside)
    return _LOGICAL.get((kind, logical)) or _PLAIN[kind]


def _union_shape(branches: Sequence[Any], names: Mapping[str, Any], inside: frozenset[str]) -> Shape:
    """Return the shape of a union: of its only branch beside null, of the wider of two numbers, or JSON."""
    there = [branch for branch in branches if branch != "null"]
    if len(there) == 1:
        return avro_shape(there[0], names, inside)
    for narrow, wide in _WIDER:
        if there and all(isinstance(branch, str) and branch in narrow for branch in there):
            return _PLAIN[wide]
    return AS_JSON
