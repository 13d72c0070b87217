"""Codec for protobuf: generated message classes, or classes made from a registered descriptor."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from danube.model.errors import InvalidSchemaError, SchemaError
from danube.schema import protobuf
from danube.schema.kinds import Needed, Source
from danube.schema.limits import DEFAULT_LIMITS
from danube.schema.modes import SchemaType
from danube.schema.value_codec import ValueCodec, misfit, undecodable

__all__ = ["ProtobufCodec", "imports"]

_LIBRARY = "google/protobuf/"
"""Where the library's own files are, which every parser knows."""


class ProtobufCodec(ValueCodec[Any]):
    """Values of one message class. Payloads of all versions are decoded as that class, by their field numbers."""

    def __init__(self, message: type[Message], source: Source | None = None) -> None:
        """Make a codec.

        Args:
            message: class of the values.
            source: the schema; None: that of the class.
        """
        self._class = message
        self.name = str(message.DESCRIPTOR.full_name)
        self.source = _source(message.DESCRIPTOR) if source is None else source

    @classmethod
    def of_source(cls, source: Source) -> ProtobufCodec:
        """Return the codec for a registered schema, with a class made for it.

        Raises:
            InvalidSchemaError: the schema is invalid, is the text of a .proto file, which needs a compiler, or has no
                message.
        """
        parsed = protobuf.parse(source, DEFAULT_LIMITS, None)
        if not parsed.name:
            raise InvalidSchemaError("the protobuf schema has no message")
        return cls(GetMessageClass(parsed.pool.FindMessageTypeByName(parsed.name)), source)

    @property
    def descriptor(self) -> Any:
        """The descriptor of the message."""
        return self._class.DESCRIPTOR

    def encode(self, value: Any) -> bytes:
        """Return a message in the wire format; as :meth:`ValueCodec.encode`."""
        if not isinstance(value, self._class):
            raise misfit(f"expected {self.name}, got {type(value).__name__}")
        try:
            return bytes(value.SerializeToString())
        except (EncodeError, ValueError) as error:
            raise misfit(error) from error

    def _decoder(self, writer: Source | None) -> Callable[[bytes], Any]:
        if writer is not None and writer.message and writer.message != self.name:
            raise SchemaError(f"the payload is a {writer.message}, and the reader's message is {self.name}")
        parse = self._class.FromString

        def decode(payload: bytes) -> Any:
            try:
                return parse(payload)
            except (DecodeError, ValueError) as error:
                raise undecodable(SchemaType.PROTOBUF, error) from error

        return decode

    def _pinned(self, source: Source) -> ValueCodec[Any]:
        return ProtobufCodec(self._class, source)


def imports(text: str) -> list[str]:
    """Return the names of the files that a descriptor in Base64 imports, without the library's own."""
    described = FileDescriptorProto.FromString(base64.b64decode(text))
    return [each for each in described.dependency if not each.startswith(_LIBRARY)]


def _source(descriptor: Any) -> Source:
    """Return the schema of a message class: the descriptor of its file, and those of the files that it imports."""
    needs: dict[str, Needed] = {}

    def add(file: Any) -> None:
        for each in file.dependencies:
            if not each.name.startswith(_LIBRARY) and each.name not in needs:
                add(each)
                needs[each.name] = Needed(each.name, _text(each))

    add(descriptor.file)
    return Source(SchemaType.PROTOBUF, _text(descriptor.file), tuple(needs.values()), str(descriptor.full_name))


def _text(file: Any) -> str:
    described = FileDescriptorProto()
    file.CopyToProto(described)
    return base64.b64encode(described.SerializeToString(deterministic=True)).decode()
