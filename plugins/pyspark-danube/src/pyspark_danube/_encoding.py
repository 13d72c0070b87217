"""Encodes rows of the sink with a schema: for Avro and JSON it is derived from the DataFrame. Pure: no registry.

Every field may be null and has null as its default, whatever the DataFrame says: Spark's own notes on what may be null
change with the plan of a query, and each change would be another version. So a new column is always compatible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from danube.model.batch import SchemaRef
from danube.model.errors import ConfigurationError, InvalidArgumentError, SchemaError
from danube.schema.kinds import Source, encode_json
from danube.schema.modes import SchemaType
from pyspark_danube._values import VALUE

__all__ = ["DEFAULT_NAME", "Encoding", "derived"]

DEFAULT_NAME: Final = "Row"
"""Name of the record of a subject's first version."""

_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

_AVRO: Final[dict[type[DataType], Any]] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    CharType: "string",
    VarcharType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_JSON: Final[dict[type[DataType], dict[str, Any]]] = {
    BooleanType: {"type": "boolean"},
    ByteType: {"type": "integer"},
    ShortType: {"type": "integer"},
    IntegerType: {"type": "integer"},
    LongType: {"type": "integer"},
    FloatType: {"type": "number"},
    DoubleType: {"type": "number"},
    StringType: {"type": "string"},
    CharType: {"type": "string"},
    VarcharType: {"type": "string"},
    BinaryType: {"type": "string", "contentEncoding": "base64"},
    DateType: {"type": "string", "format": "date"},
    TimestampType: {"type": "string", "format": "date-time"},
    TimestampNTZType: {"type": "string"},
}


def derived(kind: DataType, schema_type: SchemaType, name: str = DEFAULT_NAME) -> Source:
    """Return the schema of a column.

    Args:
        kind: type of the column.
        schema_type: Avro or JSON Schema.
        name: of the record; readers of Avro need the same one in all versions.

    Raises:
        ConfigurationError: a type or the name of a field has no counterpart in such schemas.
    """
    if schema_type is SchemaType.AVRO:
        return Source(schema_type, encode_json(_avro(kind, VALUE, name)))
    return Source(schema_type, encode_json({"$schema": _DRAFT, "title": name} | _json(kind, VALUE)))


def _avro(kind: DataType, path: str, name: str) -> Any:
    if isinstance(kind, StructType):
        return {
            "type": "record",
            "name": name,
            "fields": [
                {
                    "name": _avro_name(field.name, path),
                    "type": _avro_or_null(field.dataType, f"{path}.{field.name}", f"{name}_{field.name}"),
                    "default": None,
                }
                for field in kind
            ],
        }
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _avro_or_null(kind.elementType, f"{path}[]", name)}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return {"type": "map", "values": _avro_or_null(kind.valueType, f"{path}[]", name)}
    if isinstance(kind, DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    found = _AVRO.get(type(kind))
    if found is None:
        raise _unsupported(kind, path, "avro")
    return found


def _avro_or_null(kind: DataType, path: str, name: str) -> list[Any]:
    return ["null", _avro(kind, path, name)]


def _avro_name(name: str, path: str) -> str:
    if not _AVRO_NAME.fullmatch(name):
        raise ConfigurationError(
            f"the field {name!r} of {path!r} has no valid name for Avro (letters, digits and _); rename it, for example"
            f" `{name}` AS {re.sub('[^A-Za-z0-9_]', '_', name)}"
        )
    return name


def _json(kind: DataType, path: str) -> dict[str, Any]:
    if isinstance(kind, StructType):
        return {
            "type": "object",
            "properties": {
                field.name: _json_or_null(field.dataType, f"{path}.{field.name}") | {"default": None} for field in kind
            },
        }
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _json_or_null(kind.elementType, f"{path}[]")}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return {"type": "object", "additionalProperties": _json_or_null(kind.valueType, f"{path}[]")}
    if isinstance(kind, DecimalType):
        return {"type": "string"}
    found = _JSON.get(type(kind))
    if found is None:
        raise _unsupported(kind, path, "json")
    return dict(found)


def _json_or_null(kind: DataType, path: str) -> dict[str, Any]:
    found = _json(kind, path)
    return found | {"type": [found["type"], "null"]}


def _unsupported(kind: DataType, path: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"payloadFormat={name} does not support {path!r} of type {kind.simpleString()}; cast it, for example to STRING"
    )


class Encoding(msgspec.Struct, frozen=True):
    """What a sink writes with: made by the driver, and pickled to the tasks."""

    source: Source
    ref: SchemaRef
    """The schema's number, and its version in the subject."""
    kind: DataType
    """Type of the column ``value``."""
    is_framed: bool = False
    """Whether payloads name the schema, in Confluent's frame; else the headers of batches do."""

    @property
    def header(self) -> SchemaRef | None:
        """What the headers of batches say."""
        return None if self.is_framed else self.ref

    def encoder(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return what replaces the column ``value`` of rows by ``payload``.

        It raises InvalidArgumentError for a row without a value, or with one that cannot be encoded.

        Raises:
            InvalidSchemaError: the library for the schema is not installed; the message says which.
        """
        encode_many = self._encode_many()
        head = self._head() if self.is_framed else b""

        def encode(rows: pa.RecordBatch) -> pa.RecordBatch:
            index = rows.schema.get_field_index(VALUE)
            column = rows.column(index)
            if column.null_count:
                raise InvalidArgumentError(
                    f"a row has a null {VALUE}, and a message always has a payload; filter such rows"
                )
            try:
                payloads = encode_many(column.to_pylist(maps_as_pydicts="strict"))
            except SchemaError as error:
                raise InvalidArgumentError(f"a row cannot be encoded: {error.message}") from error
            if self.is_framed:
                payloads = [head + payload for payload in payloads]
            return rows.remove_column(index).add_column(0, "payload", pa.array(payloads, pa.binary()))

        return encode

    def _encode_many(self) -> Callable[[Sequence[Any]], list[bytes]]:
        if self.source.type is SchemaType.AVRO:
            from danube.schema.avro_codec import AvroCodec

            return AvroCodec(self.source).encode_many
        if self.source.type is SchemaType.PROTOBUF:
            from danube.schema.protobuf_codec import ProtobufCodec
            from pyspark_danube._proto_encoding import encoder_of

            return _each_of(encoder_of(ProtobufCodec.of_source(self.source).descriptor, self.kind))
        encode = msgspec.json.Encoder().encode
        return lambda values: [encode(value) for value in values]

    def _head(self) -> bytes:
        """Return the frame of all payloads."""
        from danube.schema.frames import encode_frame

        indexes: tuple[int, ...] = ()
        if self.source.type is SchemaType.PROTOBUF:
            from danube.schema import protobuf
            from danube.schema.framed import message_indexes
            from danube.schema.limits import DEFAULT_LIMITS

            parsed = protobuf.parse(self.source, DEFAULT_LIMITS, None)
            indexes = message_indexes(parsed.file, parsed.name)
        return encode_frame(self.ref.schema_id, b"", indexes)


def _each_of(encode: Callable[[Any], bytes]) -> Callable[[Sequence[Any]], list[bytes]]:
    def encode_many(values: Sequence[Any]) -> list[bytes]:
        payloads: list[bytes] = []
        try:
            for value in values:
                payloads.append(encode(value))  # noqa: PERF401 - the length is the index in the error
        except SchemaError as error:
            raise SchemaError(f"value {len(payloads)}: {error.message}") from error
        return payloads

    return encode_many
