"""A received message, as returned by the streams of both sides."""

from __future__ import annotations

from typing import Protocol

from danube.wire.connection import GrpcConnection

__all__ = ["Message"]


class _Wakes(Protocol):
    def wake_writer(self) -> None: ...


class Message:
    """One message of a stream. Until :meth:`release`, its bytes count against the peer's window of this stream."""

    __slots__ = ("_connection", "_flow_size", "_stream_id", "_waker", "data")

    def __init__(self, connection: GrpcConnection, waker: _Wakes, stream_id: int, data: bytes, flow_size: int) -> None:
        self.data = data
        self._connection = connection
        self._waker = waker
        self._stream_id = stream_id
        self._flow_size = flow_size

    def release(self) -> None:
        """Return the bytes as credit to the peer, once the message is processed. Repeated calls have no effect."""
        size = self._flow_size
        if size:
            self._flow_size = 0
            self._connection.credit(self._stream_id, size)
            if self._connection.wants_write:
                self._waker.wake_writer()
