"""The codec of etcd's messages: protobuf by the generated classes."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError

from danube.model.errors import ProtocolError

__all__ = ["ETCD"]

T = TypeVar("T")


class _EtcdCodec:
    """Encodes and decodes messages of :mod:`danube_metadata_etcd.proto`. Stateless."""

    subtype = "proto"

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a message."""
        data: bytes = value.SerializeToString()
        return data

    def decode(self, kind: type[T], data: bytes) -> T:
        """Return the message of a generated class; ProtocolError if the data is invalid."""
        try:
            value: T = kind.FromString(data)  # type: ignore[attr-defined]
        except DecodeError as error:
            raise ProtocolError(f"a message of {len(data)} bytes is not a {kind.__name__}: {error}") from error
        return value


ETCD: Final = _EtcdCodec()
"""The shared instance."""
