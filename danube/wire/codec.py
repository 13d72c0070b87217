"""Codecs: convert messages of a call to objects and back, chosen by the subtype of its ``content-type``.

``application/grpc+msgpack`` is the native API: msgspec Structs in msgpack. The registry allows others: a
protobuf face registers a codec under ``proto``, and ``application/grpc`` without a subtype means ``proto`` too, as the
gRPC specification says. A codec sees whole messages only; the connection handles framing and size limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.model.errors import InvalidArgumentError, UnimplementedError

__all__ = ["DEFAULT_CODECS", "MSGPACK", "Codec", "MsgpackCodec", "choose_codec"]

T = TypeVar("T")

_CONTENT_TYPE = "application/grpc"


class Codec(Protocol):
    """Encodes objects into messages and decodes messages into objects of a named type."""

    @property
    def subtype(self) -> str:
        """The content subtype, for instance ``msgpack``."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of ``value``."""

    def decode(self, kind: type[T], data: bytes) -> T:
        """Decode an object of type ``kind``; InvalidArgumentError if the data is invalid."""


class MsgpackCodec:
    """msgpack by msgspec. Decoders are compiled once for each type and cached."""

    subtype = "msgpack"

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}

    def encode(self, value: Any) -> bytes:
        """Return the msgpack bytes of ``value``; InvalidArgumentError if a part of it cannot be encoded."""
        try:
            return self._encode(value)
        except (TypeError, ValueError, OverflowError) as exc:
            raise InvalidArgumentError(f"{type(value).__name__} cannot be encoded as msgpack: {exc}") from exc

    def decode(self, kind: type[T], data: bytes) -> T:
        """Decode an object of type ``kind``; InvalidArgumentError names the type and the reason."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.msgpack.Decoder(kind)
        try:
            value: T = decoder.decode(data)
        except UNDECODABLE as exc:
            name = getattr(kind, "__name__", str(kind))
            raise InvalidArgumentError(f"a message of {len(data)} bytes is not a {name}: {exc}") from exc
        return value


MSGPACK = MsgpackCodec()
"""The codec of the native API; its only state is a cache of decoders, so one instance suffices."""

DEFAULT_CODECS: Mapping[str, Codec] = {MSGPACK.subtype: MSGPACK}
"""Codecs by content subtype. A face with another codec passes a mapping of its own to the server."""


def choose_codec(content_type: str, codecs: Mapping[str, Codec]) -> Codec:
    """Return the codec for a ``content-type``; UnimplementedError lists the known ones."""
    kind, _, _parameters = content_type.partition(";")
    subtype = kind.strip()[len(_CONTENT_TYPE) :].removeprefix("+") or "proto"
    codec = codecs.get(subtype)
    if codec is None:
        known = ", ".join(f"{_CONTENT_TYPE}+{name}" for name in sorted(codecs))
        raise UnimplementedError(f"content-type {content_type!r} is not supported; use one of: {known}")
    return codec
