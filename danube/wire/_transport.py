"""Transports of a connection: direct access to a real socket under Trio, or any byte stream.

Trio's SocketStream makes a system call and a checkpoint, and may wait, for each operation: three passes through the
scheduler for an answer of 100 bytes. A :class:`SocketTransport` reads when the socket is readable, and writes without
waiting as long as the kernel accepts the bytes. That halves the cost of a small message. Simulated networks, memory
streams and asyncio have no such socket and are used as streams, unless a stream has a method ``as_transport`` that
returns a better :class:`Transport`. TLS is a transport over one of these (:mod:`danube.wire._tls_transport`).
"""

from __future__ import annotations

import os
import socket
import stat
from abc import ABC, abstractmethod
from typing import Protocol

import anyio
import anyio.abc
import trio

from danube.model.errors import ConnectionLostError

__all__ = ["AnyioTransport", "PolledTransport", "SocketTransport", "StreamTransport", "Transport", "transport_of"]


class Transport(Protocol):
    """Byte input and output. Every method raises ConnectionLostError when the connection is lost."""

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end."""

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as much as possible without waiting; return the number of bytes.

        If that is fewer than all, the next call, of this method or of :meth:`send`, begins with the byte that follows.
        """

    async def send(self, data: memoryview) -> None:
        """Send all of ``data``."""

    async def close(self) -> None:
        """Close at once."""


class PolledTransport(ABC):
    """A :class:`Transport` over a descriptor, which a poller can read without waiting."""

    __slots__ = ()

    @property
    @abstractmethod
    def fd(self) -> int:
        """The descriptor."""

    @property
    def is_over(self) -> bool:
        """Whether the end of the data was received together with its last bytes, so that nothing tells of it."""
        return False

    @abstractmethod
    def receive_now(self, max_bytes: int) -> bytes | None:
        """Return the next bytes, empty at the end; None if there are none now.

        After it everything that can be returned without reading the descriptor was returned.
        """

    @abstractmethod
    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end."""

    @abstractmethod
    def send_now(self, data: bytes | memoryview) -> int:
        """See :meth:`Transport.send_now`."""

    @abstractmethod
    async def send(self, data: memoryview) -> None:
        """Send all of ``data``."""

    @abstractmethod
    async def close(self) -> None:
        """Close at once."""


class StreamTransport:
    """A transport over any Trio stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end."""
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise _lost(exc) from exc

    def send_now(self, data: bytes | memoryview) -> int:
        """Send nothing: a stream can only be awaited."""
        return 0

    async def send(self, data: memoryview) -> None:
        """Send all of ``data``."""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise _lost(exc) from exc

    async def close(self) -> None:
        """Close at once, without a graceful shutdown."""
        await trio.aclose_forcefully(self._stream)


class SocketTransport(PolledTransport):
    """A transport over a non-blocking socket of the operating system, which it owns."""

    __slots__ = ("_socket",)

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @property
    def fd(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    def receive_now(self, max_bytes: int) -> bytes | None:
        """Return the next bytes, empty at the end; None if there are none now."""
        try:
            return self._socket.recv(max_bytes)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as exc:
            raise _lost(exc) from exc

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end."""
        while True:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(max_bytes)
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, trio.ClosedResourceError) as exc:
                raise _lost(exc) from exc

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as much as the kernel accepts at once."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as exc:
            raise _lost(exc) from exc

    async def send(self, data: memoryview) -> None:
        """Send all of ``data``, waiting for the peer to read."""
        while data:
            try:
                await trio.lowlevel.wait_writable(self._socket)
                data = data[self._socket.send(data) :]
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, trio.ClosedResourceError) as exc:
                raise _lost(exc) from exc

    def finish(self) -> None:
        """Tell the peer that nothing more is sent; what it sends can still be received."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as exc:
            raise _lost(exc) from exc

    async def close(self) -> None:
        """Close at once; bytes accepted by the kernel are still delivered."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class AnyioTransport:
    """A transport over any anyio byte stream, under either event loop."""

    __slots__ = ("_stream",)

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes; empty at the end."""
        try:
            return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as exc:
            raise _lost(exc) from exc

    def send_now(self, data: bytes | memoryview) -> int:
        """Send nothing: a stream can only be awaited."""
        return 0

    async def send(self, data: memoryview) -> None:
        """Send all of ``data``."""
        try:
            await self._stream.send(bytes(data))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as exc:
            raise _lost(exc) from exc

    async def close(self) -> None:
        """Close at once, without a graceful shutdown."""
        await anyio.aclose_forcefully(self._stream)


def _lost(exc: Exception) -> ConnectionLostError:
    return ConnectionLostError(f"the connection broke: {str(exc) or type(exc).__name__}")


def transport_of(stream: trio.abc.Stream | anyio.abc.ByteStream) -> Transport:
    """Return the transport for a stream, which it then owns."""
    own: Transport | None = stream.as_transport() if hasattr(stream, "as_transport") else None
    if own is not None:
        return own
    if isinstance(stream, anyio.abc.ByteStream):
        return AnyioTransport(stream)
    if type(stream) is trio.SocketStream and _is_real(stream.socket):
        sock = socket.socket(fileno=stream.socket.detach())
        sock.setblocking(False)
        return SocketTransport(sock)
    return StreamTransport(stream)


def _is_real(sock: trio.socket.SocketType) -> bool:
    # A socket of a custom socket factory (a simulated network) has no file descriptor of a real socket.
    try:
        return stat.S_ISSOCK(os.fstat(sock.fileno()).st_mode)
    except (OSError, AttributeError, NotImplementedError, TypeError, ValueError):
        return False
