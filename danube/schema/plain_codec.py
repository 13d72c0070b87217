"""Codecs for the schema types without a text: string, bytes and number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from danube.schema.kinds import Source
from danube.schema.modes import SchemaType
from danube.schema.value_codec import ValueCodec, misfit, undecodable

__all__ = ["BytesCodec", "NumberCodec", "TextCodec"]


class BytesCodec(ValueCodec[bytes]):
    """Payloads are the values."""

    name = ""

    def __init__(self) -> None:
        self.source = Source(SchemaType.BYTES, "")

    def encode(self, value: bytes) -> bytes:
        """Return the value as bytes; as :meth:`ValueCodec.encode`."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise misfit(f"expected bytes, got {type(value).__name__}")

    def _decoder(self, writer: Source | None) -> Callable[[bytes], bytes]:
        return bytes

    def _pinned(self, source: Source) -> ValueCodec[bytes]:
        return self


class TextCodec(ValueCodec[str]):
    """Payloads are UTF-8."""

    name = ""

    def __init__(self) -> None:
        self.source = Source(SchemaType.STRING, "")

    def encode(self, value: str) -> bytes:
        """Return the text in UTF-8; as :meth:`ValueCodec.encode`."""
        if not isinstance(value, str):
            raise misfit(f"expected str, got {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise misfit(f"the text has a lone surrogate at index {error.start}") from error

    def _decoder(self, writer: Source | None) -> Callable[[bytes], str]:
        return _decode_text

    def _pinned(self, source: Source) -> ValueCodec[str]:
        return self


class NumberCodec(ValueCodec[Any]):
    """Payloads are numbers as in JSON: decimal digits, which do not depend on the size or the kind of the number.

    A reader of floats reads integers too. Infinities and NaN have no such form.
    """

    name = ""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.source = Source(SchemaType.NUMBER, "")
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        self._kind = kind.__name__

    def encode(self, value: Any) -> bytes:
        """Return the digits of a number; as :meth:`ValueCodec.encode`."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise misfit(f"expected {self._kind}, got {type(value).__name__}")
        payload = msgspec.json.encode(value)
        try:
            self._decode(payload)
        except msgspec.DecodeError:
            raise misfit(f"{value} is no {self._kind}; infinities and NaN have no digits") from None
        return payload

    def _decoder(self, writer: Source | None) -> Callable[[bytes], Any]:
        decode = self._decode

        def decode_number(payload: bytes) -> Any:
            try:
                return decode(payload)
            except msgspec.DecodeError as error:
                raise undecodable(SchemaType.NUMBER, error) from error

        return decode_number

    def _pinned(self, source: Source) -> ValueCodec[Any]:
        return self


def _decode_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise undecodable(SchemaType.STRING, error) from error
