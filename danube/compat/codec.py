"""The codec of the upstream protocol: protobuf messages by their generated classes.

It is used for ``application/grpc`` without a subtype and ``application/grpc+proto``; the classes are in
``danube.compat.proto``. Native methods cannot be called with it, because their messages are not protobuf.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError

from danube.model.errors import InvalidArgumentError, UnimplementedError

__all__ = ["PROTO", "ProtoCodec"]

T = TypeVar("T")


class ProtoCodec:
    """Encodes and decodes protobuf messages. Stateless."""

    subtype = "proto"

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a message."""
        data: bytes = value.SerializeToString()
        return data

    def decode(self, kind: type[T], data: bytes) -> T:
        """Return the message of a generated class in ``data``.

        Raises:
            InvalidArgumentError: the data is invalid; the error names the class.
            UnimplementedError: ``kind`` belongs to a method of the native API.
        """
        parse = getattr(kind, "FromString", None)
        if parse is None:
            raise UnimplementedError("this is a method of the native API: it speaks application/grpc+msgpack only")
        try:
            value: T = parse(data)
        except DecodeError as error:
            raise InvalidArgumentError(f"a message of {len(data)} bytes is not a {kind.__name__}: {error}") from error
        return value


PROTO: Final = ProtoCodec()
"""The shared instance."""
