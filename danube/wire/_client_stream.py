"""The client side of one call: sends and receives messages, and returns the final status."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from danube.loop import Waker
from danube.model.errors import CallCancelledError, DanubeError, DeadlineExceededError
from danube.wire._message import Message
from danube.wire._waker import EventWaker, new_waker

if TYPE_CHECKING:
    from danube.wire.client import Channel

__all__ = ["ClientStream"]

T = TypeVar("T")


class ClientStream:
    """One open call. ``async with stream:`` cancels it at the end unless it has already ended.

    One task receives; sending is open to all tasks of the event loop. Cancelling an await loses no message: queued
    messages are sent, received ones are returned by the next call.
    """

    __slots__ = (
        "_arrived",
        "_channel",
        "_deadline",
        "_error",
        "_inbox",
        "_over",
        "_room",
        "_sink",
        "path",
        "stream_id",
    )

    def __init__(self, channel: Channel, stream_id: int, path: str, deadline: float | None) -> None:
        self._channel = channel
        self.stream_id = stream_id
        self.path = path
        self._deadline = deadline
        self._inbox: deque[Message] = deque()
        self._sink: Callable[[Message], bool] | None = None
        self._over = False
        self._error: DanubeError | None = None
        self._arrived = new_waker()
        self._room: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<ClientStream {self.stream_id} {self.path}>"

    async def __aenter__(self) -> ClientStream:
        """Return the stream itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancel the call unless it has ended."""
        self.cancel()

    # -- sending

    def send_nowait(self, data: bytes | tuple[bytes, ...]) -> bool:
        """Queue one encoded message (a tuple is one message in several buffers). False if the call is over.

        Never waits, so the caller must check :attr:`send_buffered`.
        """
        channel = self._channel
        if not channel.protocol.send_message(self.stream_id, data):
            return False
        channel.wake_writer()
        return True

    def send_at_once(self, data: bytes | tuple[bytes, ...]) -> bool:
        """Send one encoded message like :meth:`send_nowait`, but in this turn of the loop, if the socket accepts it.

        For a single message that is waited for; several are cheaper together.
        """
        channel = self._channel
        if not channel.protocol.send_message(self.stream_id, data):
            return False
        channel.flush()
        return True

    async def send(self, data: bytes | tuple[bytes, ...]) -> None:
        """Wait for room in the send buffer, then queue the message. Raises the call's error if it is over."""
        await self.wait_send_capacity()
        if not self.send_nowait(data):
            raise self._error or CallCancelledError(f"the call of {self.path} has ended; open another one")

    async def wait_send_capacity(self) -> None:
        """Wait until less than ``max_send_buffer_bytes`` are queued; returns at once if the call is over."""
        limit = self._channel.limits.max_send_buffer_bytes
        while not self._over and self.send_buffered >= limit:
            if self._room is None:
                self._room = anyio.Event()
            await self._wait(self._room)

    @property
    def send_buffered(self) -> int:
        """Bytes queued for the broker to read."""
        return self._channel.protocol.send_buffered(self.stream_id)

    def end(self) -> None:
        """Close the sending side; the call continues until the broker ends it."""
        self._channel.protocol.end_stream(self.stream_id)
        self._channel.wake_writer()

    def cancel(self) -> None:
        """Abandon the call, if it is not over, and free its stream. Received messages are dropped."""
        self._inbox.clear()
        self._finish(CallCancelledError(f"the call of {self.path} was cancelled"))
        self._channel.wake_writer()

    # -- receiving

    async def receive(self) -> Message | None:
        """Return the next message, or None after the last one if the call succeeded.

        Raises the DanubeError that the broker ended it with, ConnectionLostError, or DeadlineExceededError. It is a
        checkpoint only if it has to wait.
        """
        while not self._inbox:
            if self._over:
                if self._error is not None:
                    raise self._error
                return None
            await self._wait(self._arrived)
        return self._inbox.popleft()

    def receive_nowait(self) -> list[Message]:
        """Return all messages that have arrived and were not received yet, possibly none."""
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def divert(self, sink: Callable[[Message], bool] | None) -> None:
        """Pass messages to a plain function as they arrive, in the channel's own turn of the loop; None stops that.

        For calls with many small messages: it avoids waking the caller's task. The function returns False for
        a message that must be queued for :meth:`receive`. A DanubeError that it raises ends the call with it.
        """
        self._sink = sink

    @property
    def over(self) -> bool:
        """Whether the call has ended, for any reason."""
        return self._over

    def encode(self, value: Any) -> bytes:
        """Encode a message with the channel's codec."""
        return self._channel.codec.encode(value)

    def decode(self, kind: type[T], data: bytes) -> T:
        """Decode a message with the channel's codec; InvalidArgumentError if it is not a ``kind``."""
        return self._channel.codec.decode(kind, data)

    async def _wait(self, event: anyio.Event | Waker | EventWaker) -> None:
        if self._deadline is None:
            await event.wait()
            return
        with anyio.CancelScope(deadline=self._deadline) as scope:
            await event.wait()
        if scope.cancelled_caught:
            self._finish(DeadlineExceededError(f"{self.path} was not answered within the deadline"))
            self._channel.wake_writer()

    # -- called by the channel

    def deliver(self, message: Message) -> None:
        """Channel: deliver an arrived message."""
        sink = self._sink
        if sink is not None and not self._inbox:
            try:
                if sink(message):
                    return
            except DanubeError as error:
                self._finish(error)
                self._channel.wake_writer()
                return
        self._inbox.append(message)
        self._arrived.wake()

    def check_room(self) -> None:
        """Channel: check whether the send buffer has become smaller."""
        if self._room is not None and (self._over or self.send_buffered < self._channel.limits.max_send_buffer_bytes):
            self._room.set()
            self._room = None

    @property
    def waits_for_room(self) -> bool:
        """Channel: return whether a task waits until the send buffer is smaller."""
        return self._room is not None

    def deliver_outcome(self, error: DanubeError | None) -> None:
        """Channel: end the call, successfully if ``error`` is None. Earlier messages can still be received."""
        self._finish(error)

    def _finish(self, error: DanubeError | None) -> None:
        if self._over:
            return
        self._over = True
        self._error = error
        self._channel.forget(self)
        self._arrived.wake()
        self.check_room()
