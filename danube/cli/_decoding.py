"""Shows payloads as JSON, by the schemas with which they were written: ``danube consume --decode``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from danube.model.errors import InvalidSchemaError, NotFoundError, SchemaError

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["Decoding"]

Decode = Callable[[bytes], Any]


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
        self._decoders: dict[int, Decode | None] = {}
        self._told: set[str] = set()

    async def shown(self, number: int, messages: Sequence[Any]) -> Sequence[Any]:
        """Return messages with their payloads as JSON.

        Args:
            number: of their schema; 0: they have none, and stay as they are.
            messages: those of one batch.

        Raises:
            DanubeError: no broker answers.
        """
        if number not in self._decoders:
            self._decoders[number] = await self._decoder(number) if number else None
        decode = self._decoders[number]
        return messages if decode is None else [self._one(number, decode, message) for message in messages]

    async def _decoder(self, number: int) -> Decode | None:
        from danube.client._values import source_of
        from danube.schema.typed import codec_of_source

        try:
            return codec_of_source(source_of(await self._client.schemas.get(number))).decoder()
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
            self._told.add(text)
            print(f"not decoded: {text}", file=sys.stderr)


def _json(value: Any) -> bytes:
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        value = MessageToDict(value, preserving_proto_field_name=True)
    return msgspec.json.encode(value, enc_hook=str)
