"""Sends the bodies of puts in pieces, without a copy of the whole.

Given as bytes, the client's HTTP library copies a body twice, each time all of it in one step that holds the
interpreter: for an object of 16 MiB, the broker's event loop, which runs in another thread, stands still for some
10 ms each time. Therefore botocore signs the body as it is (it also takes a ``bytearray``), and just before the
request is sent, the body is replaced by one that is written piece by piece, as fast as the connection takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

__all__ = ["PIECE_BYTES", "pieces_of", "send_in_pieces"]

PIECE_BYTES: Final = 256 * 1024
"""Bytes that are copied, checksummed or sent in one step."""


def pieces_of(data: bytes | bytearray, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the data in a range, a copy of a piece at a time. Until the last one, the data may not be resized."""
    with memoryview(data) as view:
        end = len(view) if end is None else min(end, len(view))
        for at in range(start, end, PIECE_BYTES):
            yield bytes(view[at : min(at + PIECE_BYTES, end)])


class _Pieces(Payload):
    """A body in memory. It can be sent again, as after a redirection."""

    _autoclose = True

    def __init__(self, data: bytes | bytearray) -> None:
        super().__init__(data)
        self._size = len(data)

    def seek(self, position: int) -> None:
        """Go back to the beginning, before it is sent again: it is always there."""
        assert position == 0

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return it as text."""
        return bytes(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of it; waits while the connection does not take more."""
        for piece in pieces_of(self._value):
            await writer.write(piece)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send all of it: botocore has set the length of the content, which is its size."""
        assert content_length is None or content_length == self._size
        await self.write(writer)


def send_in_pieces(request: Any, **_event: Any) -> None:
    """Handle botocore's event ``before-send``: replace a body of more than one piece."""
    body = request.body
    if isinstance(body, bytes | bytearray) and len(body) > PIECE_BYTES:
        request.body = _Pieces(body)
