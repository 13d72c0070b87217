"""Decodes payloads that were written with schemas of the registry, into one column. Pure: schemas are given to it.

The driver pins the reader's schema (:class:`Pinned`), and its shape is the type of the column ``value``. A task finds
the writer's schema by the number in the header of each stored batch, once for each number, and decodes a whole record
batch at a time. Payloads of batches without a number are decoded as if they had been written with the reader's schema.

The libraries for Avro and protobuf are imported when a schema of that type is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, DoubleType, StringType

from danube.model.errors import DanubeError, InvalidSchemaError, NotFoundError, SchemaError
from danube.schema.framed import framed
from danube.schema.frames import frame_number
from danube.schema.kinds import Source, decode_json
from danube.schema.limits import DEFAULT_LIMITS
from danube.schema.modes import SchemaType
from pyspark_danube._columns import ERROR, VALUE
from pyspark_danube._payloads import MalformedPayloadError
from pyspark_danube._shapes import Shape, avro_shape

if TYPE_CHECKING:
    from danube.schema.avro_codec import AvroCodec
    from danube.schema.protobuf_codec import ProtobufCodec

__all__ = ["ERROR", "VALUE", "Pinned", "ValueDecoder", "Writers", "shape_of"]

_MOST_WRITERS: Final = 1_000
"""Schemas of writers whose decoders a task keeps; the oldest are made again when they are needed."""
_MISFITS: Final = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError)
"""What conversions and Arrow raise for values that do not fit, msgspec's errors included."""

Decode = Callable[[bytes], Any]
_Written = tuple[int, bool]
"""Number of a writer's schema, and whether it is in the payloads' frames."""
Writers = Callable[[int], Source]
"""Returns the schema with a number; NotFoundError: there is none."""


class Pinned(msgspec.Struct, frozen=True):
    """The reader's schema of a query. Can be pickled."""

    source: Source
    number: int
    """Of the schema."""
    subject: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of subject {self.subject} ({self.source.type.value})"


def shape_of(source: Source) -> Shape:
    """Return the shape of a schema.

    Raises:
        InvalidSchemaError: it is invalid, or the library for its type is not installed; the message says which.
    """
    if source.type is SchemaType.AVRO:
        codec = _avro(source)
        return avro_shape(*codec.definition)
    if source.type is SchemaType.JSON:
        from pyspark_danube._json_shapes import json_shape

        return json_shape(decode_json(source.text, DEFAULT_LIMITS))
    if source.type is SchemaType.PROTOBUF:
        return _proto_shape(_protobuf(source))
    return Shape(_PLAIN[source.type])


_PLAIN: Final[dict[SchemaType, DataType]] = {
    SchemaType.STRING: StringType(),
    SchemaType.BYTES: BinaryType(),
    SchemaType.NUMBER: DoubleType(),
}


class ValueDecoder:
    """Decodes the payloads of one task."""

    def __init__(self, pinned: Pinned, kind: pa.DataType, *, fail_fast: bool, writers: Writers) -> None:
        """Make a decoder.

        Args:
            pinned: the reader's schema.
            kind: Arrow type of the column; of structs it may have some of the fields only.
            fail_fast: whether a payload that does not decode is an error.
            writers: asked for each number of a schema that is not the reader's.
        """
        self._source = pinned.source
        self._kind = kind
        self._fail_fast = fail_fast
        self._writers = writers
        self._codec = _decoding(pinned.source)
        own = self._codec(None)
        self._decoders: dict[_Written, Decode] = {(0, False): own, (pinned.number, False): own}

    def columns(
        self, payloads: pa.Array, runs: Sequence[tuple[int, int]], *, is_framed: bool = False
    ) -> dict[str, pa.Array]:
        """Return the columns ``value`` and ``_error``, as long as ``payloads`` (binary, without nulls).

        Args:
            payloads: of stored batches, one after the other.
            runs: of each batch the number of its schema, and how many of its payloads there are.
            is_framed: whether the payloads of batches without a number have frames, which name their schemas.

        Raises:
            MalformedPayloadError: a payload does not decode, and ``fail_fast``.
            DanubeError: the registry does not answer.
        """
        rows = payloads.to_pylist()
        values: list[Any] = []
        errors: dict[int, str] = {}
        for number, count in _joined(runs):
            decode = self._decode_framed if is_framed and not number else self._decoder((number, False))
            part = rows[len(values) : len(values) + count]
            try:
                values += list(map(decode, part))
            except SchemaError:
                for payload in part:
                    values.append(self._one(decode, payload, len(values), errors))
        column = self._column(values, errors)
        if errors:
            texts = pa.array([errors.get(row) for row in range(len(rows))], pa.string())
        else:
            texts = pa.nulls(len(rows), pa.string())
        return {VALUE: column, ERROR: texts}

    def _one(self, decode: Decode, payload: bytes, row: int, errors: dict[int, str]) -> Any:
        try:
            return decode(payload)
        except SchemaError as error:
            self._failed(row, error.message, errors)
            return None

    def _failed(self, row: int, why: str, errors: dict[int, str]) -> None:
        if self._fail_fast:
            raise MalformedPayloadError(row, why)
        errors[row] = why

    def _column(self, values: list[Any], errors: dict[int, str]) -> pa.Array:
        try:
            return pa.array(values, self._kind)
        except _MISFITS:
            pass
        # A value is outside the range of the column's type, say: find it.
        parts = []
        for row, value in enumerate(values):
            try:
                parts.append(pa.array([value], self._kind))
            except _MISFITS as error:
                self._failed(row, f"the value does not fit the column {VALUE!r}: {error}", errors)
                parts.append(pa.nulls(1, self._kind))
        return pa.concat_arrays(parts)

    def _decode_framed(self, payload: bytes) -> Any:
        return self._decoder((frame_number(payload), True))(payload)

    def _decoder(self, written: _Written) -> Decode:
        decode = self._decoders.get(written)
        if decode is None:
            if len(self._decoders) > _MOST_WRITERS:
                del self._decoders[next(iter(list(self._decoders)[2:]))]
            decode = self._decoders[written] = self._learned(*written)
        return decode

    def _learned(self, number: int, is_framed: bool) -> Decode:
        """Return the decoder for a writer's schema; one that always fails if the schema cannot be used."""
        try:
            writer = self._writers(number)
        except NotFoundError:
            return _failing(f"schema {number} is not in the registry, or these credentials may not see it")
        if writer.type is not self._source.type:
            return _failing(
                f"the payload was written with a schema of type {writer.type.value}, and the reader's schema is of type"
                f" {self._source.type.value}"
            )
        try:
            return framed(writer, self._codec) if is_framed else self._codec(writer)
        except (SchemaError, InvalidSchemaError) as error:
            return _failing(f"schema {number} cannot be used: {error.message}")


def _joined(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return runs with neighbours of the same number put together."""
    joined: list[tuple[int, int]] = []
    for number, count in runs:
        if joined and joined[-1][0] == number:
            joined[-1] = (number, joined[-1][1] + count)
        else:
            joined.append((number, count))
    return joined


def _decoding(source: Source) -> Callable[[Source | None], Decode]:
    """Return what makes a decoder for a writer's schema, to values of the reader's shape."""
    shape = shape_of(source)
    if source.type is SchemaType.JSON:
        from pyspark_danube._json_shapes import json_decoder

        whole = _guarded(json_decoder(decode_json(source.text, DEFAULT_LIMITS)), source.type)
        return lambda writer: whole
    codec: Any
    if source.type is SchemaType.AVRO:
        codec = _avro(source)
    elif source.type is SchemaType.PROTOBUF:
        codec = _protobuf(source)
    else:
        from danube.schema.typed import codec_of_source

        codec = codec_of_source(source)
    convert = shape.convert

    def made(writer: Source | None) -> Decode:
        decode: Decode = codec.decoder(writer)
        if convert is None:
            return decode
        change = convert
        return _guarded(lambda payload: None if (value := decode(payload)) is None else change(value), source.type)

    return made


def _guarded(decode: Decode, kind: SchemaType) -> Decode:
    def guarded(payload: bytes) -> Any:
        try:
            return decode(payload)
        except DanubeError:
            raise
        except _MISFITS as error:
            raise SchemaError(f"the payload cannot be decoded ({kind.value}): {error}") from error

    return guarded


def _failing(why: str) -> Decode:
    def decode(payload: bytes) -> Any:
        raise SchemaError(why)

    return decode


def _avro(source: Source) -> AvroCodec:
    from danube.schema.avro_codec import AvroCodec

    return AvroCodec(source, shares_defaults=True)


def _protobuf(source: Source) -> ProtobufCodec:
    from danube.schema.protobuf_codec import ProtobufCodec

    return ProtobufCodec.of_source(source)


def _proto_shape(codec: ProtobufCodec) -> Shape:
    from pyspark_danube._proto_shapes import proto_shape

    return proto_shape(codec.descriptor)
