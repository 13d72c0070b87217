"""Checks the payloads of batches against their schemas, for brokers that do not leave this to their clients.

Payloads are hostile: ten bytes of Avro decode to an array of a billion elements, and a recursive JSON Schema can take
time exponential in the depth of a document. So this runs in a process whose memory and time are limited
(:mod:`danube.checker`), and the batch is opened there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from danube.model.batch import Record, open_records, read_header
from danube.model.errors import InvalidSchemaError, SchemaError, SchemaPayloadError
from danube.schema.framed import named_message
from danube.schema.frames import decode_frame
from danube.schema.kinds import Compile, Source
from danube.schema.limits import DEFAULT_LIMITS
from danube.schema.modes import SchemaType

__all__ = ["PayloadCheck", "PayloadChecks"]

Decode = Callable[[bytes], Any]


class PayloadCheck(msgspec.Struct, frozen=True, array_like=True):
    """A batch to check. Schemas that were sent once are named by their number only."""

    part: bytes
    """The batch, whose checksum is right."""
    max_unpacked_bytes: int
    is_framed: bool
    """Whether each payload begins with a Confluent frame, which names its schema; else the batch's header does."""
    new: tuple[tuple[int, Source], ...] = ()
    """Numbers and schemas that were not sent before."""
    forgets: bool = False
    """Whether all schemas that were sent before are to be forgotten first."""


class PayloadChecks:
    """The schemas that are known, compiled, and the checks by them.

    Args:
        compile_proto: compiles .proto files.
    """

    def __init__(self, compile_proto: Compile | None = None) -> None:
        self._compile = compile_proto
        self._schemas: dict[int, _Plain | _Protobuf] = {}

    def check(self, request: PayloadCheck) -> None:
        """Check all payloads of a batch.

        Raises:
            SchemaPayloadError: one does not fit its schema; the message has the index of the first one.
            InvalidSchemaError: a schema cannot be used here, because a library is missing.
            CorruptBatchError, MessageTooLargeError: the batch cannot be opened.
        """
        if request.forgets:
            self._schemas.clear()
        for number, source in request.new:
            self._schemas[number] = self._compiled(source)
        header = read_header(request.part)
        records: list[Any] = open_records(request.part, header, request.max_unpacked_bytes)
        payloads: list[bytes] = [each.payload if isinstance(each, Record) else each for each in records]
        number, index = header.schema_id, 0
        try:
            if not request.is_framed:
                check = self._schemas[number].decode
                for index, payload in enumerate(payloads):  # noqa: B007 - it is in the error
                    check(payload)
                return
            for index, payload in enumerate(payloads):  # noqa: B007 - as above
                number = decode_frame(payload, is_protobuf=False).number
                self._schemas[number].decode_framed(payload)
        except SchemaError as error:
            raise SchemaPayloadError(
                f"message {index} of the batch does not fit schema {number}: {error.message}"
            ) from error
        except RecursionError as error:
            raise SchemaPayloadError(
                f"message {index} of the batch does not fit schema {number}: it is nested too deeply"
            ) from error

    def _compiled(self, source: Source) -> _Plain | _Protobuf:
        if source.type is SchemaType.PROTOBUF:
            return _Protobuf(source, self._compile)
        from danube.schema.typed import codec_of_source

        return _Plain(codec_of_source(source).decoder())


class _Plain:
    def __init__(self, decode: Decode) -> None:
        self.decode = decode

    def decode_framed(self, payload: bytes) -> None:
        self.decode(decode_frame(payload, is_protobuf=False).payload)


class _Protobuf:
    """The messages of a protobuf schema: frames name one of the file by its indexes."""

    def __init__(self, source: Source, compile_proto: Compile | None) -> None:
        from danube.schema import protobuf

        self._parsed = protobuf.parse(source, DEFAULT_LIMITS, compile_proto)
        self._classes: dict[tuple[int, ...], Decode] = {}
        """By indexes; a schema has few messages, and others are not kept."""
        self.decode: Decode = self._of(self._parsed.name)

    def _of(self, name: str) -> Decode:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        if not name:
            raise InvalidSchemaError("the protobuf schema has no message, so it has no payloads")
        parse = GetMessageClass(self._parsed.pool.FindMessageTypeByName(name)).FromString

        def decode(payload: bytes) -> Any:
            try:
                message = parse(payload)
            except (DecodeError, ValueError) as error:
                raise SchemaPayloadError(f"the payload is no {name}: {error}") from error
            if not message.IsInitialized():
                absent = ", ".join(message.FindInitializationErrors())
                raise SchemaPayloadError(f"the payload is no {name}: without {absent}, which is required")
            return message

        return decode

    def decode_framed(self, payload: bytes) -> None:
        frame = decode_frame(payload, is_protobuf=True)
        decode = self._classes.get(frame.indexes)
        if decode is None:
            decode = self._classes[frame.indexes] = self._of(named_message(self._parsed.file, frame.indexes))
        decode(frame.payload)
