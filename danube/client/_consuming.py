"""Opens consumers and readers: checks their options, and runs their feeds while their block lasts."""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio

from danube.client._consume_stream import ConsumeStream
from danube.client._consumer import Consumer
from danube.client._feed import Feed
from danube.client._reader import Reader
from danube.client._reader_feed import ReaderFeed
from danube.client._tasks import background_tasks, start_all
from danube.model import api
from danube.model.errors import DanubeError, DeadlineExceededError

if TYPE_CHECKING:
    from danube.client._pool import Pool
    from danube.client._values import Reading

__all__ = ["open_consumer", "open_reader"]


@asynccontextmanager
async def open_consumer(
    pool: Pool,
    request: api.ConsumeOpen,
    topics: Sequence[str],
    *,
    renew_leases: bool,
    credit_messages: int,
    credit_bytes: int,
    reading: Reading | None = None,
) -> AsyncIterator[Consumer[Any]]:
    """Open a consumer for ``request.topic``; ``topics`` are the topic itself or its partitions."""
    close_timeout_s = pool.options.close_timeout_s
    make = Consumer if pool.options.telemetry is None else pool.options.telemetry.consumer
    consumer: Consumer[Any] = make(
        request.topic,
        request.subscription,
        request.consumer_name,
        request.type,
        pool.options.limits.max_batch_bytes,
    )
    consumer._reading = reading
    feeds = []
    for index, one in enumerate(topics):
        message = copy.copy(request)
        message.topic = one
        feeds.append(
            Feed(
                index,
                message,
                limits=pool.options.limits,
                confirmed=consumer._confirmed,
                renewals=consumer._renewals,
                renew_leases=renew_leases,
                credit_messages=credit_messages,
                credit_bytes=credit_bytes,
                arrived=consumer._arrived,
                restarted=consumer._restarted,
                wake=consumer._wake,
                clock=anyio.current_time,
            )
        )
    consumer._start(feeds)
    async with background_tasks() as group:
        await group.start(consumer._run_sender)
        await start_all(group, [ConsumeStream(pool, feed).run for feed in feeds])
        try:
            yield consumer
            with anyio.move_on_after(close_timeout_s) as scope:
                await consumer.flush_acks()
            if scope.cancelled_caught:
                raise DeadlineExceededError(
                    f"{consumer.topic}: acknowledgements not confirmed within close_timeout_s ="
                    f" {close_timeout_s:g} s; these messages may be delivered again"
                )
        except BaseException:
            # Acknowledgements given before the error should still count; if sending them fails, the original error
            # is more informative. If the caller's scope was cancelled, sending and confirming is cancelled as well.
            if anyio.current_effective_deadline() > -math.inf:
                patience_s = min(1.0, close_timeout_s)
                with anyio.move_on_after(patience_s, shield=True), suppress(DanubeError):
                    await consumer.flush_acks()
            raise
        finally:
            consumer._close()


@asynccontextmanager
async def open_reader(
    pool: Pool,
    topic: str,
    name: str,
    topics: Sequence[str],
    positions: Sequence[tuple[str | int, int]],
    *,
    credit_messages: int,
    credit_bytes: int,
    traced: bool = True,
    reading: Reading | None = None,
) -> AsyncIterator[Reader[Any]]:
    """Open a reader of a topic; ``topics`` are the topic or its partitions, read from their positions (or times).

    ``traced``: False for a reader whose messages are mostly those of others, such as a requester's.
    """
    telemetry = pool.options.telemetry if traced else None
    make: Callable[..., Reader[Any]] = Reader if telemetry is None else telemetry.reader
    reader: Reader[Any] = make(topic, name, pool.options.limits.max_batch_bytes)
    reader._reading = reading
    feeds = [
        ReaderFeed(
            index,
            api.ConsumeOpen(
                topic=one, subscription="", consumer_name=name, start=position, start_time_us=time_us, reader=True
            ),
            credit_messages=credit_messages,
            credit_bytes=credit_bytes,
            arrived=reader._arrived,
            restarted=reader._restarted,
            wake=reader._wake,
            clock=anyio.current_time,
        )
        for index, (one, (position, time_us)) in enumerate(zip(topics, positions, strict=True))
    ]
    reader._start(feeds)
    async with background_tasks() as group:
        await group.start(reader._run_sender)
        await start_all(group, [ConsumeStream(pool, feed).run for feed in feeds])
        try:
            yield reader
        finally:
            reader._close()
