"""Decodes payloads in Confluent's frames: by the schema, and of protobuf by the message, that each of them names. Pure.

Frames are never guessed: a caller decodes so what a topic with the policy ``schema_framing`` delivers without a schema
in the header of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from danube.model.errors import InvalidSchemaError, SchemaError, SchemaPayloadError
from danube.schema.frames import HEAD_BYTES, decode_frame, frame_number
from danube.schema.kinds import Source
from danube.schema.limits import DEFAULT_LIMITS
from danube.schema.modes import SchemaType

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

__all__ = ["by_frame", "framed", "message_indexes", "named_message"]

Decode = Callable[[bytes], Any]


def by_frame(decoders: Mapping[int, Decode]) -> Decode:
    """Return what decodes framed payloads with the decoder for the number in the frame of each.

    It raises SchemaError for a payload without a frame, or with another number.

    Args:
        decoders: of framed payloads (:func:`framed`), by the numbers of their schemas.
    """

    def decode(payload: bytes) -> Any:
        number = frame_number(payload)
        found = decoders.get(number)
        if found is None:
            raise SchemaError(
                f"the payload has schema {number} in its frame, and its batch names {len(decoders)} others before, as"
                " many as are kept; send messages of so many schemas in smaller batches"
            )
        return found(payload)

    return decode


def framed(source: Source, decoder: Callable[[Source], Decode]) -> Decode:
    """Return what decodes framed payloads of one schema.

    It raises SchemaError for a payload that it cannot decode. Of protobuf, a frame names one of the schema's messages.

    Args:
        source: the schema with the number in the frames.
        decoder: makes the decoder of bare payloads; for protobuf, ``Source.message`` says of which message.

    Raises:
        SchemaError, InvalidSchemaError: as ``decoder`` does.
    """
    if source.type is not SchemaType.PROTOBUF:
        bare = decoder(source)
        return lambda payload: bare(payload[HEAD_BYTES:])
    from danube.schema import protobuf

    file = protobuf.parse(source, DEFAULT_LIMITS, None).file
    decoders: dict[tuple[int, ...], Decode] = {}

    def decode(payload: bytes) -> Any:
        frame = decode_frame(payload, is_protobuf=True)
        found = decoders.get(frame.indexes)
        if found is None:
            named = msgspec.structs.replace(source, message=named_message(file, frame.indexes))
            try:
                found = decoders[frame.indexes] = decoder(named)  # as many as the file has messages
            except InvalidSchemaError as error:
                raise SchemaError(f"message {named.message} cannot be used: {error.message}") from error
        return found(frame.payload)

    return decode


def named_message(file: FileDescriptorProto, indexes: tuple[int, ...]) -> str:
    """Return the full name of the message that a frame's indexes name.

    Raises:
        SchemaPayloadError: the file has no such message.
    """
    names, inside = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if index >= len(inside):
            raise SchemaPayloadError(f"its frame names message {list(indexes)} of the schema, which has none there")
        names.append(inside[index].name)
        inside = inside[index].nested_type
    return ".".join(names)


def message_indexes(file: FileDescriptorProto, name: str) -> tuple[int, ...]:
    """Return the indexes that name a message of a file in frames; the inverse of :func:`named_message`.

    Raises:
        SchemaError: the file has no such message.
    """
    relative = name.removeprefix(f"{file.package}.") if file.package else name
    indexes: list[int] = []
    inside = file.message_type
    for part in relative.split("."):
        index = next((index for index, each in enumerate(inside) if each.name == part), None)
        if index is None:
            raise SchemaError(f"the protobuf schema has no message {name!r}")
        indexes.append(index)
        inside = inside[index].nested_type
    return tuple(indexes)
