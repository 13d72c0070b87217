"""A streaming call on the server: receives and sends messages for its handler."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from danube.loop import Waker
from danube.model.errors import CallCancelledError, DanubeError, InternalError, to_wire
from danube.model.log_events import log_event
from danube.wire._context import Context
from danube.wire._message import Message

if TYPE_CHECKING:
    from danube.wire._server_connection import ServerConnection

__all__ = ["CallStream"]

T = TypeVar("T")

_log = logging.getLogger("danube.wire")


class CallStream:
    """A streaming call; a :class:`danube.wire.service.ServerStream`, which describes its methods for handlers."""

    __slots__ = (
        "_arrived",
        "_inbox",
        "_on_room",
        "_room",
        "_sink",
        "connection",
        "context",
        "ended",
        "failure",
        "gone",
        "scope",
        "stream_id",
    )

    def __init__(self, connection: ServerConnection, stream_id: int, context: Context) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.context = context
        self.scope = trio.CancelScope()
        self.ended = False
        """Whether the peer has sent its last message."""
        self.gone = False
        """Whether the peer has abandoned the call."""
        self.failure: DanubeError | None = None
        self._inbox: deque[Message] = deque()
        self._sink: Callable[[Message], bool] | None = None
        self._arrived = Waker()
        self._room: trio.Event | None = None
        self._on_room: tuple[Callable[[], None], Callable[[], None]] | None = None

    def __repr__(self) -> str:
        return f"<ServerStream {self.stream_id} {self.context.path} of {self.context.peer}>"

    # -- receiving

    async def receive(self) -> Message | None:
        """Return the next message, or None after the last. A checkpoint only if it has to wait."""
        while not self._inbox:
            if self.ended:
                return None
            await self._arrived.wait()
        return self._inbox.popleft()

    async def peek(self) -> Message | None:
        """Return the next message, or None after the last, and leave it to be received. Waits if none has arrived."""
        while not self._inbox:
            if self.ended:
                return None
            await self._arrived.wait()
        return self._inbox[0]

    def receive_nowait(self) -> list[Message]:
        """Return all messages that have arrived and were not received yet, possibly none."""
        if not self._inbox:
            return []
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def decode(self, kind: type[T], data: bytes) -> T:
        """Decode a message with the call's codec; InvalidArgumentError if it is not a ``kind``."""
        return self.context.codec.decode(kind, data)

    def divert(self, sink: Callable[[Message], bool]) -> None:
        """Pass messages to a plain function as they arrive, in the connection's own turn of the loop.

        For calls with many small messages: it avoids waking the handler's task (about 10 us). The function
        returns False for a message that it cannot process without waiting; that one is queued for :meth:`receive`. An
        exception ends the call as if the handler had raised it.
        """
        self._sink = sink

    # -- sending

    def encode(self, value: Any) -> bytes:
        """Encode a message with the call's codec."""
        return self.context.codec.encode(value)

    def send_nowait(self, data: bytes | tuple[bytes, ...]) -> bool:
        """Queue one encoded message (a tuple is one message in several buffers) and schedule sending.

        Never waits, so the caller must check :attr:`send_buffered`. Returns False, and sends nothing, if the
        call has ended or the peer is gone.
        """
        connection = self.connection
        if not connection.protocol.send_message(self.stream_id, data):
            return False
        connection.wake_writer()
        return True

    async def send(self, data: bytes | tuple[bytes, ...]) -> None:
        """Wait for room in the send buffer, then queue the message. CallCancelledError if the peer is gone."""
        await self.wait_send_capacity()
        if not self.send_nowait(data):
            raise CallCancelledError(f"the caller of {self.context.path} is gone; its stream accepts no more messages")

    async def wait_send_capacity(self, limit_bytes: int | None = None) -> None:
        """Wait until less than ``max_send_buffer_bytes`` are queued for the peer; returns at once if it is gone.

        It waits as well while its connection, or all of them, are beyond their limits (see
        :meth:`danube.wire._server_connection.ServerConnection.full`).

        Args:
            limit_bytes: wait until less than this is queued; must not exceed that limit.
        """
        connection = self.connection
        limit = connection.limits.max_send_buffer_bytes
        if limit_bytes is not None:
            limit = min(limit, limit_bytes)
        protocol = connection.protocol
        while not self.gone and (protocol.send_buffered(self.stream_id) >= limit or connection.full()):
            if self._room is None:
                self._room = trio.Event()
            connection.wait_for_room(self, limit - 1)
            try:
                await self._room.wait()
            finally:
                connection.pass_room_on()

    def crowded(self, *, whole_connection: bool = False) -> bool:
        """Send as much as possible, then return whether too much is queued for the peer to send it more.

        Args:
            whole_connection: compare with the full limit of the connection, because messages that are not sent now are
                lost.
        """
        connection = self.connection
        if connection.waiting_bytes < connection.server.least_crowded_bytes:
            return False
        connection.flush()
        return connection.full() or (
            not whole_connection and self.send_buffered >= connection.limits.max_send_buffer_bytes
        )

    def when_room(self, on_room: Callable[[], None], on_stall: Callable[[], None]) -> None:
        """Call ``on_room`` once there is room for this stream (see :meth:`crowded`), in a later turn.

        If ``on_room`` sends nothing, it must call :meth:`pass_room_on`. ``on_stall`` is called, possibly often, while
        the peer has accepted nothing for a second or two. No callback is called after the call has ended.
        """
        self._on_room = on_room, on_stall
        self.connection.wait_for_room(self, self.connection.limits.max_send_buffer_bytes // 2)

    def pass_room_on(self) -> None:
        """Offer unused room of this stream to another one."""
        self.connection.pass_room_on()

    @property
    def send_buffered(self) -> int:
        """Bytes queued for the peer to read."""
        return self.connection.protocol.send_buffered(self.stream_id)

    # -- called by the connection

    def deliver(self, message: Message) -> None:
        """Connection: deliver an arrived message."""
        sink = self._sink
        if sink is not None and not self._inbox:
            try:
                if sink(message):
                    return
            except DanubeError as error:
                self.abandon(error)
                return
            except Exception as error:  # noqa: BLE001 - a bug in one sink costs its own call
                _log.exception("the sink of %r failed", self, extra=log_event("call.failed", repeating=True))
                self.abandon(InternalError(to_wire(error).message))
                return
        self._inbox.append(message)
        self._arrived.wake()

    def deliver_end(self) -> None:
        """Connection: the peer has closed its side."""
        self.ended = True
        self._arrived.wake()

    def room_made(self) -> None:
        """Connection: this stream may send more."""
        room, self._room = self._room, None
        if room is not None:
            room.set()
        waiter, self._on_room = self._on_room, None
        if waiter is not None:
            waiter[0]()

    def stalled(self) -> None:
        """Connection: the peer has accepted nothing for a while."""
        if self._on_room is not None:
            self._on_room[1]()

    def outlast(self) -> None:
        """Let the connection outlive a drain: it ends when the server is cancelled."""
        self.connection.lasting = True

    def abandon(self, failure: DanubeError | None) -> None:
        """Connection: cancel the handler, and send ``failure`` to the caller; None if the caller is gone."""
        if failure is None:
            self.gone = True
        elif self.failure is None:
            self.failure = failure
        self._sink = None  # a handler that settles what is in flight takes nothing more
        self.scope.cancel()
