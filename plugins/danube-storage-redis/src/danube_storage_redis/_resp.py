r"""A minimal client of RESP, the protocol of Redis and Valkey: sends commands and reads replies, in one exchange.

A command is an array of byte strings, a reply is one of five kinds. Every line ends with ``\r\n``::

    command   *2  $3  GET  $5  hello
    reply     +OK   -ERR text   :12   $5  hello   $-1 (nothing)   *2  reply  reply

The reasons for an own client: this backend needs only ten commands, must know the state of a connection after a
cancelled call, and transfers values of many megabytes, which are sent from the caller's buffer and received without
intermediate copies. The usual library would also need a second event loop.

The protocol: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import select
from collections.abc import Sequence

import trio

__all__ = ["Argument", "Command", "ConnectionEndedError", "Reply", "RespConnection", "ServerError"]

Argument = bytes | bytearray | str | int
"""One argument of a command."""
Command = Sequence[Argument]
"""A command: its name, then its arguments."""

_PIECE_BYTES = 1024 * 1024
"""Large values are sent and received in pieces of this size: a call can be cancelled between them."""
_INLINE_BYTES = 16 * 1024
"""Arguments up to this size are copied into one buffer; larger ones are sent without copying."""
_MAX_LINE_BYTES = 64 * 1024


class ConnectionEndedError(Exception):
    """The server closed the connection, or does not speak RESP."""


class ServerError:
    """An error reply. A value, not an exception: other replies must still be read."""

    __slots__ = ("code", "message")

    def __init__(self, text: str) -> None:
        self.code = text.partition(" ")[0]
        """The first word, for example ``NOAUTH``; ``ERR`` where Redis has no better one."""
        self.message = text

    def __repr__(self) -> str:
        return f"ServerError({self.message!r})"


Reply = bytes | int | None | ServerError | list["Reply"]


class RespConnection:
    """A connection to a server. If a call has raised or was cancelled, close it and do not use it again."""

    __slots__ = ("_buffer", "_descriptor", "_stream")

    def __init__(self, stream: trio.abc.Stream, descriptor: int) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self._buffer = bytearray()

    @property
    def alive(self) -> bool:
        """Whether the connection can be used for another exchange: it is neither ended nor in the middle of one."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not self._buffer and not poll.poll(0)

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands at once and return their replies, in order.

        Raises:
            ConnectionEndedError: the server has closed the connection, or does not send RESP.
            trio.BrokenResourceError: the connection broke.
        """
        await self._send(commands)
        return [await self._reply() for _ in commands]

    async def close(self) -> None:
        """Close at once, even if the caller is being cancelled."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)

    async def _send(self, commands: Sequence[Command]) -> None:
        small = bytearray()
        for command in commands:
            small += b"*%d\r\n" % len(command)
            for argument in command:
                data = argument if isinstance(argument, bytes | bytearray) else str(argument).encode()
                small += b"$%d\r\n" % len(data)
                if len(data) <= _INLINE_BYTES:
                    small += data
                else:
                    await self._stream.send_all(bytes(small))
                    small.clear()
                    with memoryview(data) as view:
                        for start in range(0, len(view), _PIECE_BYTES):
                            await self._stream.send_all(view[start : start + _PIECE_BYTES])
                small += b"\r\n"
        await self._stream.send_all(bytes(small))

    async def _reply(self) -> Reply:
        line = await self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else await self._bulk(size)
        if kind == b"*":
            return [await self._reply() for _ in range(max(0, int(rest)))]
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind == b"-":
            return ServerError(rest.decode("utf-8", "replace"))
        raise ConnectionEndedError(f"a reply begins with {line[:20]!r}, which is not RESP; is it a Redis server?")

    async def _line(self) -> bytes:
        begin = 0
        while (end := self._buffer.find(b"\r\n", begin)) < 0:
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise ConnectionEndedError("a reply has a line without end; is it a Redis server?")
            begin = max(0, len(self._buffer) - 1)
            self._buffer += await self._receive(_INLINE_BYTES)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    async def _bulk(self, size: int) -> bytes:
        # Bytes that have arrived already, then separate pieces: a large value is joined once and not copied otherwise.
        pieces = [bytes(self._buffer[:size])]
        missing = size - len(pieces[0])
        del self._buffer[:size]
        while missing:
            piece = await self._receive(min(missing, _PIECE_BYTES))
            pieces.append(piece)
            missing -= len(piece)
        while len(self._buffer) < 2:
            self._buffer += await self._receive(_INLINE_BYTES)
        if self._buffer[:2] != b"\r\n":
            raise ConnectionEndedError("a value of a reply is longer than announced; is it a Redis server?")
        del self._buffer[:2]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _receive(self, size: int) -> bytes:
        data = await self._stream.receive_some(size)
        if not data:
            raise ConnectionEndedError("the server closed the connection")
        return bytes(data)
