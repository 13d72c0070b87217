"""A stream whose caller has a quota of bytes: what it publishes is taken later, what it consumes is sent later.

A caller over its publish rate is not read until it has paid, so that the stream's flow control holds it up. One over
its consume rate counts as one whose connection is full: its credit is withheld, and messages wait in the log, or go to
other consumers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from danube.security.quotas import Flow

if TYPE_CHECKING:
    from danube.model.errors import DanubeError
    from danube.wire import Context, Message, ServerStream

__all__ = ["MeteredStream", "until_paid"]

T = TypeVar("T")

_LOOK_S: Final = 1.0
"""A quota that was raised takes effect after so long at most."""
_FULL: Final = 1 << 62


async def until_paid(flow: Flow) -> None:
    """Wait until more may flow."""
    while (pause_s := flow.pause_s(trio.current_time())) > 0:  # noqa: ASYNC110 - the clock makes it end, not a task
        await trio.sleep(min(pause_s, _LOOK_S))


class MeteredStream:
    """A stream with quotas of bytes; a :class:`danube.wire.ServerStream`.

    Args:
        stream: the stream itself.
        incoming: what is received from the caller; None: that is not counted.
        outgoing: what is sent to the caller; None: that is not counted.
        nursery: tasks run there that wait for the consume rate, until :meth:`close`.
    """

    def __init__(
        self, stream: ServerStream, incoming: Flow | None, outgoing: Flow | None, nursery: trio.Nursery
    ) -> None:
        self._stream = stream
        self._incoming = incoming
        self._outgoing = outgoing
        self._nursery = nursery
        self._waiting = trio.CancelScope()
        self._receiving = False
        """Whether a message waits for the publish rate; later ones have to stay behind it."""

    def close(self) -> None:
        """Stop to wait: the call has ended."""
        self._waiting.cancel()

    # --- What the caller sends

    async def receive(self) -> Message | None:
        """Return the next message when the caller may publish it."""
        message = await self._stream.receive()
        flow = self._incoming
        if flow is None or message is None:
            return message
        if flow.pause_s(trio.current_time()) > 0:
            self._receiving = True
            try:
                await until_paid(flow)
            finally:
                self._receiving = False
        flow.take(len(message.data), trio.current_time())
        return message

    def receive_nowait(self) -> list[Message]:
        """Return what has arrived, and count it."""
        messages = self._stream.receive_nowait()
        if self._incoming is not None and messages:
            self._incoming.take(sum(len(each.data) for each in messages), trio.current_time())
        return messages

    async def peek(self) -> Message | None:
        """Return the next message, and leave it to be received."""
        return await self._stream.peek()

    def divert(self, sink: Callable[[Message], bool]) -> None:
        """Pass messages to a function as they arrive, unless they have to wait for the publish rate."""
        flow = self._incoming
        if flow is None:
            self._stream.divert(sink)
            return

        def paced(message: Message) -> bool:
            now = trio.current_time()
            size = len(message.data)  # a message that was taken may be released
            if self._receiving or flow.pause_s(now) > 0 or not sink(message):
                return False
            flow.take(size, now)
            return True

        self._stream.divert(paced)

    def decode(self, kind: type[T], data: bytes) -> T:
        """Decode a message."""
        return self._stream.decode(kind, data)

    # --- What it is sent

    def encode(self, value: object) -> bytes:
        """Encode a message."""
        return self._stream.encode(value)

    def send_nowait(self, data: bytes | tuple[bytes, ...]) -> bool:
        """Queue a message, and count it."""
        if self._outgoing is not None:
            self._outgoing.take(_size(data), trio.current_time())
        return self._stream.send_nowait(data)

    async def send(self, data: bytes | tuple[bytes, ...]) -> None:
        """Queue a message when the caller may consume it."""
        if self._outgoing is not None:
            await until_paid(self._outgoing)
            self._outgoing.take(_size(data), trio.current_time())
        await self._stream.send(data)

    @property
    def send_buffered(self) -> int:
        """Bytes queued; as good as full while the caller owes for what it was sent."""
        return _FULL if self._owes else self._stream.send_buffered

    async def wait_send_capacity(self, limit_bytes: int | None = None) -> None:
        """Wait until less is queued, and the caller may consume more."""
        await self._stream.wait_send_capacity(limit_bytes)
        if self._outgoing is not None:
            await until_paid(self._outgoing)

    @property
    def _owes(self) -> bool:
        return self._outgoing is not None and self._outgoing.pause_s(trio.current_time()) > 0

    def crowded(self, *, whole_connection: bool = False) -> bool:
        """Whether too much is queued, or the caller owes for what it was sent."""
        return self._stream.crowded(whole_connection=whole_connection) or self._owes

    def when_room(self, on_room: Callable[[], None], on_stall: Callable[[], None]) -> None:
        """Call a function when there is room, and the caller may consume more."""
        if self._owes:
            self._waiting.cancel()  # nothing waits, or the former functions
            self._waiting = trio.CancelScope()
            self._nursery.start_soon(self._room_later, self._waiting, on_room, on_stall)
        else:
            self._stream.when_room(on_room, on_stall)

    async def _room_later(
        self, waiting: trio.CancelScope, on_room: Callable[[], None], on_stall: Callable[[], None]
    ) -> None:
        assert self._outgoing is not None
        with waiting:
            await until_paid(self._outgoing)
            if self._stream.crowded():
                self._stream.when_room(on_room, on_stall)
            else:
                on_room()

    def pass_room_on(self) -> None:
        """Offer unused room to another stream."""
        self._stream.pass_room_on()

    # --- The call

    @property
    def context(self) -> Context:
        """The context of the call."""
        return self._stream.context

    @property
    def gone(self) -> bool:
        """Whether the peer has abandoned the call."""
        return self._stream.gone

    def outlast(self) -> None:
        """Let the connection outlive a drain."""
        self._stream.outlast()

    def abandon(self, failure: DanubeError | None) -> None:
        """End the call."""
        self._stream.abandon(failure)


def _size(data: bytes | tuple[bytes, ...]) -> int:
    return len(data) if isinstance(data, bytes) else sum(map(len, data))
