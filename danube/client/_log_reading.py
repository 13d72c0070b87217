"""Reads a range of a log from the broker as stored batches: a reader's stream that ends at an offset.

The credit in messages is the remainder of the range, so the broker stops by itself at the batch with the last message;
the credit in bytes is a window that advances as batches are taken, so a slow reader delays only itself. Either of them
may run out long before the other: well compressed messages take very few bytes.
"""

from __future__ import annotations

from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

import msgspec

from danube.client._retry import Retry, ask, decode_reply, receive_reply
from danube.model import api
from danube.model.batch import check_part
from danube.model.errors import (
    CorruptBatchError,
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    ProtocolError,
)
from danube.model.policies import Durability
from danube.model.query_api import RawBatch

if TYPE_CHECKING:
    from danube.client._connection import Connection
    from danube.wire.client import ClientStream

__all__ = ["LogReading"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(api.ConsumeReply).decode

_MOST_MESSAGES: Final = 1_000_000
"""Maximum credit in messages granted at a time."""


class LogReading:
    """A range of a log being read; made by :meth:`Logs.read`. Iterate over it, in one task at a time."""

    def __init__(
        self, connection: Connection, topic: str, topic_id: int, start: int, end: int, credit_bytes: int
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._topic_id = topic_id
        self._next = start
        self._end = end
        self._credit_bytes = credit_bytes
        self._granted = 0
        self._charged = 0
        self._retry = Retry(connection.options)
        self._stack = AsyncExitStack()
        self._stream: ClientStream | None = None
        self._arrived: deque[RawBatch] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RawBatch:
        while not self._arrived:
            if self._next >= self._end:
                raise StopAsyncIteration
            await self._receive()
        return self._arrived.popleft()

    async def next_batches(self) -> list[RawBatch]:
        """Return the next batch and others that have arrived; an empty list at the end. Raises as iteration does."""
        while not self._arrived and self._next < self._end:
            await self._receive()
        if self._arrived and self._stream is not None:
            for message in self._stream.receive_nowait():
                message.release()
                self._take(decode_reply(message.data, _decode, self._topic))
        batches = list(self._arrived)
        self._arrived.clear()
        return batches

    async def _close(self) -> None:
        """Close the stream and notify the broker."""
        self._stream = None
        await self._stack.aclose()

    async def _receive(self) -> None:
        """Wait for the next reply, on a new stream if necessary."""
        try:
            if self._stream is None:
                await self._open()
                return  # the range may be exhausted
            self._take(await receive_reply(self._stream, _decode, self._topic))
        except DanubeError as error:
            self._stream = None
            await self._stack.aclose()
            if not (error.retryable or isinstance(error, ProtocolError)) or not await self._retry.wait(error):
                raise

    async def _open(self) -> None:
        channel = await self._connection.channel()
        stream = await self._stack.enter_async_context(ask(channel, api.Method.CONSUME))
        with self._retry.opening(f"reading {self._topic}"):
            await stream.send(_encode(api.ConsumeOpen(self._topic, "", "", start=self._next, reader=True)))
            answer = await receive_reply(stream, _decode, self._topic)
        if not isinstance(answer, api.ConsumeOpened):
            raise ProtocolError(f"the broker answered ConsumeOpen with {type(answer).__name__}")
        if answer.durability is Durability.NONE:
            raise FailedPreconditionError(
                f"topic {self._topic!r} has durability 'none': it stores nothing, so nothing can be read"
            )
        if answer.topic_id != (self._topic_id or answer.topic_id):
            raise FailedPreconditionError(
                f"topic {self._topic!r} was deleted and created again, so its messages are gone; plan the query again"
            )
        self._topic_id = answer.topic_id
        if answer.end_offset < self._end:
            raise DataLossError(
                f"topic {self._topic!r}: offsets [{max(self._next, answer.end_offset)}, {self._end}) are not there: its"
                f" log ends at {answer.end_offset}"
            )
        self._retry.succeeded()
        self._stream = stream
        self._granted = 0
        self._charged = 0
        self._move_to(answer.start_offset)
        self._grant(self._credit_bytes)

    def _lacks_messages(self) -> bool:
        """Return whether the broker may soon lack credit in messages to send the rest of the range."""
        return self._granted < min(self._end - self._next, _MOST_MESSAGES // 2)

    def _grant(self, size_bytes: int) -> None:
        assert self._stream is not None
        messages = min(self._end - self._next - self._granted, _MOST_MESSAGES - self._granted)
        if messages > 0 or size_bytes:
            self._granted += max(0, messages)
            self._stream.send_nowait(_encode(api.Credit(max(0, messages), size_bytes)))

    def _move_to(self, offset: int) -> None:
        """Record that all messages below an offset have arrived or were removed."""
        self._next = max(self._next, offset)

    def _take(self, reply: api.ConsumeReply) -> None:
        if isinstance(reply, api.CaughtUp):
            # All messages below it were delivered or removed.
            self._move_to(reply.end_offset)
        elif isinstance(reply, api.Delivery) and reply.base_offset < self._end:
            part = reply.part
            try:
                count = check_part(part).record_count
            except CorruptBatchError as error:
                raise DataLossError(
                    f"topic {self._topic!r}: the batch at offset {reply.base_offset} arrived damaged: {error.message};"
                    " read it again"
                ) from error
            batch = RawBatch(reply.base_offset, reply.append_time_us, reply.producer_name, part)
            self._granted = max(0, self._granted - (reply.ranges[-1] - reply.ranges[0] if reply.ranges else count))
            self._move_to(reply.base_offset + count)
            self._arrived.append(batch)
            self._charged += reply.charged_bytes
            if self._next < self._end and (self._charged * 4 >= self._credit_bytes or self._lacks_messages()):
                charged, self._charged = self._charged, 0
                self._grant(charged)
        elif isinstance(reply, api.Delivery):
            self._move_to(reply.base_offset)  # the requested messages were removed; this batch is behind them
