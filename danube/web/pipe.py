"""A connection within the process: two ends, each of which is a transport, with bounded buffers between them."""

from __future__ import annotations

from typing import Final

import trio

from danube.model.errors import ConnectionLostError

__all__ = ["PipeEnd", "open_pipe"]

_BUFFER_BYTES: Final = 256 * 1024
"""Bytes that the other end has not read; beyond it the sender waits."""


class _Buffer:
    """Bytes on their way in one direction."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        self.changed = trio.Event()

    def notify(self) -> None:
        """Wake whoever waits for bytes or for room."""
        self.changed.set()
        self.changed = trio.Event()


class PipeEnd(trio.abc.AsyncResource):
    """One end of a pipe; a :class:`danube.wire._transport.Transport`."""

    def __init__(self, incoming: _Buffer, outgoing: _Buffer) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def as_transport(self) -> PipeEnd:
        """Return itself: see :func:`danube.wire._transport.transport_of`."""
        return self

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end."""
        buffer = self._incoming
        await trio.lowlevel.checkpoint()
        while not buffer.data and not buffer.ended:
            await buffer.changed.wait()
        found = bytes(buffer.data[:max_bytes])
        if found:
            del buffer.data[:max_bytes]
            buffer.notify()
        return found

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as much as there is room for; return the number of bytes."""
        buffer = self._outgoing
        if buffer.ended:
            raise ConnectionLostError("the connection within the broker was closed")
        room = min(len(data), _BUFFER_BYTES - len(buffer.data))
        if room > 0:
            buffer.data += data[:room]
            buffer.notify()
        return max(room, 0)

    async def send(self, data: memoryview) -> None:
        """Send all of ``data``."""
        await trio.lowlevel.checkpoint()
        while data:
            data = data[self.send_now(data) :]
            if data:
                await self._outgoing.changed.wait()

    async def close(self) -> None:
        """Close both directions at once; bytes that were sent can still be received."""
        for buffer in (self._incoming, self._outgoing):
            buffer.ended = True
            buffer.notify()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def aclose(self) -> None:
        """As :meth:`close`."""
        await self.close()


def open_pipe() -> tuple[PipeEnd, PipeEnd]:
    """Return the two ends of a new pipe."""
    there, back = _Buffer(), _Buffer()
    return PipeEnd(back, there), PipeEnd(there, back)
