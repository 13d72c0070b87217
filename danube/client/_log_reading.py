"""Reads a range of a log from the broker as stored batches: a reader's stream that ends at an offset.

The credit in messages is the remainder of the range, so the broker stops by itself at the batch with the last message;
the credit in bytes is a window that advances as batches are taken, so a slow reader delays only itself. Either of them
may run out long before the other: well compressed messages take very few bytes.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import msgspec

from danube.client._log_range import LogRange
from danube.client._retry import Retry, ask, decode_reply, receive_reply
from danube.model import api
from danube.model.errors import (
    DanubeError,
    ProtocolError,
)
from danube.model.ids import TopicId
from danube.model.query_api import RawBatch

if TYPE_CHECKING:
    from danube.client._pool import Pool
    from danube.wire.client import ClientStream

__all__ = ["LogReading"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(api.ConsumeReply).decode


class LogReading:
    """A range of a log being read; made by :meth:`Logs.read`. Iterate over it, in one task at a time."""

    def __init__(self, pool: Pool, topic: str, topic_id: TopicId, start: int, end: int, credit_bytes: int) -> None:
        self._pool = pool
        self._route = pool.route(topic)
        self._topic = topic
        self._range = LogRange(topic, topic_id, start, end, credit_bytes)
        self._retry = Retry(pool)
        self._stack = AsyncExitStack()
        self._stream: ClientStream | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RawBatch:
        arrived = self._range.arrived
        while not arrived:
            if self._range.is_exhausted:
                raise StopAsyncIteration
            await self._receive()
        return arrived.popleft()

    async def next_batches(self) -> list[RawBatch]:
        """Return the next batch and others that have arrived; an empty list at the end. Raises as iteration does."""
        arrived = self._range.arrived
        while not arrived and not self._range.is_exhausted:
            await self._receive()
        if arrived and self._stream is not None:
            for message in self._stream.receive_nowait():
                message.release()
                self._range.take(decode_reply(message.data, _decode, self._topic))
        batches = list(arrived)
        arrived.clear()
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
            self._range.take(await receive_reply(self._stream, _decode, self._topic))
        except DanubeError as error:
            self._stream = None
            await self._stack.aclose()
            if self._route.failed(error):
                return
            if not (error.retryable or isinstance(error, ProtocolError)) or not await self._retry.wait(error):
                raise self._route.explained(error) from error.__cause__

    async def _open(self) -> None:
        channel = await self._pool.follow(self._route)
        stream = await self._stack.enter_async_context(ask(channel, api.Method.CONSUME))
        with self._retry.opening(f"reading {self._topic}"):
            request = api.ConsumeOpen(
                topic=self._topic, subscription="", consumer_name="", start=self._range.next_offset, reader=True
            )
            await stream.send(_encode(request))
            answer = await receive_reply(stream, _decode, self._topic)
        if not isinstance(answer, api.ConsumeOpened):
            raise ProtocolError(f"the broker answered ConsumeOpen with {type(answer).__name__}")
        self._range.check(answer)
        self._route.served()
        self._retry.succeeded()
        self._stream = stream
        self._range.begin(stream, answer)
