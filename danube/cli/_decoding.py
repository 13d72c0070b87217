"""Shows payloads as JSON, by the schemas with which they were written: ``danube consume --decode``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danube.model.errors import InvalidSchemaError, NotFoundError, SchemaError

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["Decoding"]

Decode = Callable[[bytes], Any]

_MOST_TOLD: Final = 1_000
"""Reasons that are remembered, to be told once."""


class _Decoded:
    """A message with another payload."""

    def __init__(self, message: Any, payload: bytes) -> None:
        self._message = message
        self.payload = payload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


class Decoding:
    """Decodes messages of any schemas; what does not decode stays as it is, and standard error says why, once.

    Args:
        client: asks for the schemas.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._decoders: dict[tuple[int, bool], Decode | None] = {}
        """By the numbers of schemas, and whether they are in frames."""
        self._told: dict[str, None] = {}

    async def shown(self, number: int, messages: Sequence[Any], *, is_framed: bool = False) -> Sequence[Any]:
        """Return messages with their payloads as JSON.

        Args:
            number: of their schema; 0: they have none, and stay as they are.
            messages: those of one batch.
            is_framed: whether each payload names its schema instead, in Confluent's frame.

        Raises:
            DanubeError: no broker answers.
        """
        if is_framed:
            return [await self._framed(message) for message in messages]
        if not number or (decode := await self._decoder(number, is_framed=False)) is None:
            return messages
        return [self._one(number, decode, message) for message in messages]

    async def _framed(self, message: Any) -> Any:
        from danube.schema.frames import frame_number

        try:
            number = frame_number(message.payload)
        except SchemaError as error:
            self._tell(error.message)
            return message
        decode = await self._decoder(number, is_framed=True)
        return message if decode is None else self._one(number, decode, message)

    async def _decoder(self, number: int, *, is_framed: bool) -> Decode | None:
        from danube.client._values import MOST_WRITERS

        key = number, is_framed
        if key not in self._decoders:
            if len(self._decoders) >= MOST_WRITERS:
                del self._decoders[next(iter(self._decoders))]
            self._decoders[key] = await self._learned(number, is_framed=is_framed)
        return self._decoders[key]

    async def _learned(self, number: int, *, is_framed: bool) -> Decode | None:
        from danube.client._values import source_of
        from danube.schema.framed import framed
        from danube.schema.typed import codec_of_source

        try:
            source = source_of(await self._client.schemas.get(number))
            if is_framed:
                return framed(source, lambda each: codec_of_source(each).decoder())
            return codec_of_source(source).decoder()
        except (NotFoundError, InvalidSchemaError) as error:
            self._tell(f"schema {number}: {error}")
            return None

    def _one(self, number: int, decode: Decode, message: Any) -> Any:
        try:
            return _Decoded(message, _json(decode(message.payload)))
        except SchemaError as error:
            self._tell(f"schema {number}: {error}")
            return message

    def _tell(self, text: str) -> None:
        if text not in self._told:
            if len(self._told) >= _MOST_TOLD:
                del self._told[next(iter(self._told))]
            self._told[text] = None
            print(f"not decoded: {text}", file=sys.stderr)


def _json(value: Any) -> bytes:
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        value = MessageToDict(value, preserving_proto_field_name=True)
    return msgspec.json.encode(value, enc_hook=str)
