"""An HTTP server that answers what a test tells it to: for what real services do and emulators do not.

``async with serve(answer) as server``: ``answer`` gets every :class:`Request` and returns an :class:`Answer`, or one of
the ways not to answer. ``server.requests`` has what was asked, whole; ``server.arrived`` is set when the head of one
is there, ``server.broken`` when one ended in the middle.
"""

from __future__ import annotations

import enum
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import trio

_PIECE = 1024 * 1024


class Request(NamedTuple):
    method: str
    path: str
    """Decoded."""
    query: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class Answer(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    cut: int = 0
    """So many bytes of the body are promised and never sent."""


class Silence(enum.Enum):
    """Ways not to answer."""

    CLOSE = enum.auto()
    """The connection is closed."""
    STALL = enum.auto()
    """It stays open, and nothing comes."""


class CannedServer:
    """What :func:`serve` gives out."""

    def __init__(self, answer: Callable[[Request], Answer | Silence], tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.port = 0
        self.requests: list[Request] = []
        self.arrived = trio.Event()
        self.broken = trio.Event()
        self.reading = trio.Event()
        self._answer = answer

    @property
    def endpoint(self) -> str:
        return f"https://localhost:{self.port}" if self.tls else f"http://127.0.0.1:{self.port}"

    async def handle(self, stream: trio.abc.Stream) -> None:
        buffer = bytearray()
        try:
            while await self._one(stream, buffer):
                pass
        except (trio.BrokenResourceError, ssl.SSLError):
            self.broken.set()
        await trio.aclose_forcefully(stream)

    async def _one(self, stream: trio.abc.Stream, buffer: bytearray) -> bool:
        while b"\r\n\r\n" not in buffer:
            data = await stream.receive_some()
            if not data:
                return False
            buffer += data
        head, _, rest = bytes(buffer).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = bytearray(rest)
        length = int(headers.get("content-length", 0))
        if headers.get("expect") == "100-continue":
            await stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.arrived.set()
        while len(body) < length:
            await self.reading.wait()
            data = await stream.receive_some(_PIECE)
            if not data:
                self.broken.set()
                return False
            body += data
        buffer[:] = body[length:]
        method, target, _ = first.split(" ")
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        request = Request(method, unquote(parts.path), query, headers, bytes(body[:length]))
        self.requests.append(request)
        answer = self._answer(request)
        if answer is Silence.STALL:
            await trio.sleep_forever()
        if not isinstance(answer, Answer):
            return False
        said = {"content-length": str(len(answer.body) + answer.cut), "connection": "keep-alive", **answer.headers}
        text = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        await stream.send_all(f"HTTP/1.1 {answer.status} Canned\r\n{text}\r\n".encode())
        if method != "HEAD":
            await stream.send_all(answer.body)
        return not answer.cut


@asynccontextmanager
async def serve(
    answer: Callable[[Request], Answer | Silence], *, reading: bool = True, tls: ssl.SSLContext | None = None
) -> AsyncIterator[CannedServer]:
    """Serve until the end of the block. Without ``reading`` no more than the beginning of a body is read until
    ``server.reading`` is set.
    """
    server = CannedServer(answer, tls)
    if reading:
        server.reading.set()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.handle, [trio.SSLListener(listener, tls) if tls else listener])
        yield server
        nursery.cancel_scope.cancel()
