"""The sending side of one channel of a link that is up."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

from danube.model.errors import ConnectionLostError, DanubeError, MessageTooLargeError, from_wire, to_wire
from danube.model.limits import Limits
from danube.peers.frames import Answer, Ask, Cancel, Note, decode_reply, encode
from danube.wire import ClientStream, Message

__all__ = ["Outlet", "check_size"]

_PREFIX_BYTES = 5
"""Bytes of a message's prefix on the wire."""
_LONGEST_S = 1e6


def check_size(payload: bytes, channel: str, limits: Limits) -> None:
    """Raise MessageTooLargeError for a payload beyond ``max_peer_message_bytes``."""
    if len(payload) > limits.max_peer_message_bytes:
        raise MessageTooLargeError(
            f"a message of {len(payload)} bytes on the channel {channel!r} between brokers exceeds"
            f" max_peer_message_bytes = {limits.max_peer_message_bytes}; send it in pieces"
        )


class _Call:
    """A call that waits for its answer."""

    __slots__ = ("answer", "answered", "error")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.answer = b""
        self.error: DanubeError | None = None


class Outlet:
    """One channel's stream to another broker.

    Args:
        name: of the channel.
        stream: its stream, just opened.
        limits: of the broker.
    """

    def __init__(self, name: str, stream: ClientStream, limits: Limits) -> None:
        self.name = name
        self._stream = stream
        self._limits = limits
        self._calls: dict[int, _Call] = {}
        self._slots = trio.Semaphore(limits.max_peer_calls)
        self._last_number = 0
        self._queued = 0
        """Bytes of all messages so far."""
        self._ends: deque[int] = deque()
        """For each message that is not sent completely, how many bytes were queued with it."""
        stream.divert(self._take)

    @property
    def over(self) -> bool:
        """Whether the stream has ended."""
        return self._stream.over

    async def run(self, ended: Callable[[DanubeError], None]) -> None:
        """Run until the other broker ends the stream; ``ended`` gets the reason, unless this is cancelled."""
        error: DanubeError = ConnectionLostError("the link was closed")
        try:
            async with self._stream as stream:
                try:
                    await stream.receive()
                    error = ConnectionLostError(f"the other broker ended the channel {self.name!r}")
                except DanubeError as failure:
                    error = failure
                ended(error)
        finally:
            calls, self._calls = self._calls, {}
            for call in calls.values():
                call.error = from_wire(*to_wire(error))
                call.answered.set()

    # -- messages

    def send(self, payload: bytes) -> bool:
        """Queue a message; False if the queue is full or the stream has ended."""
        if self._is_full():
            return False
        data = encode(Note(payload))
        self._count(len(data))
        return self._stream.send_at_once(data)

    def _is_full(self) -> bool:
        limits = self._limits
        waiting = self._forget_sent()
        return len(self._ends) >= limits.peer_queue_messages or waiting >= limits.peer_queue_bytes

    def _forget_sent(self) -> int:
        waiting = self._stream.send_buffered
        sent, ends = self._queued - waiting, self._ends
        while ends and ends[0] <= sent:
            ends.popleft()
        return waiting

    def _push(self, data: bytes) -> bool:
        self._forget_sent()
        self._count(len(data))
        return self._stream.send_nowait(data)

    def _count(self, size: int) -> None:
        self._queued += size + _PREFIX_BYTES
        self._ends.append(self._queued)

    # -- calls

    async def call(self, payload: bytes, deadline: float) -> bytes:
        """Call, and return the answer; see :meth:`danube.peers.Peers.call`. The caller enforces the deadline."""
        async with self._slots:
            await self._stream.wait_send_capacity()
            self._last_number = number = self._last_number + 1
            timeout_ms = math.ceil(1000 * min(max(deadline - trio.current_time(), 0.0), _LONGEST_S))
            if not self._push(encode(Ask(number, timeout_ms, payload))):
                raise ConnectionLostError(f"the channel {self.name!r} has ended; try again")
            call = self._calls[number] = _Call()
            try:
                await call.answered.wait()
            except trio.Cancelled:
                if self._calls.pop(number, None) is not None:
                    self._push(encode(Cancel(number)))
                raise
        if call.error is not None:
            raise call.error
        return call.answer

    def _take(self, message: Message) -> bool:
        reply = decode_reply(message.data)
        message.release()
        call = self._calls.pop(reply.number, None)
        if call is not None:  # otherwise its caller has gone
            if isinstance(reply, Answer):
                call.answer = reply.payload
            else:
                call.error = from_wire(reply.status, reply.code, reply.text, reply.details)
            call.answered.set()
        return True
