"""Opens producers: checks their options, and runs their lanes while their block lasts."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec

from danube.client._checks import check_count, check_seconds
from danube.client._encoding import EncodingProducer
from danube.client._lane import Lane
from danube.client._outbox import Budget, Outbox
from danube.client._producer import Producer
from danube.client._tasks import background_tasks, start_all
from danube.model.batch import Codec, SchemaRef
from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from danube.client._pool import Pool
    from danube.client._values import Writing
    from danube.model import api

__all__ = ["Batching", "open_producer"]


class Batching(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer makes batches, and how much it buffers; see :meth:`Client.producer`."""

    compression: Literal["lz4", "zstd"] | None
    batch_max_bytes: int
    batch_max_messages: int
    max_in_flight_batches: int
    max_buffered_bytes: int
    send_timeout_s: float | None

    def __post_init__(self) -> None:
        for option in ("batch_max_bytes", "batch_max_messages", "max_in_flight_batches", "max_buffered_bytes"):
            check_count(option, getattr(self, option), 1)
        if self.compression not in (None, "lz4", "zstd"):
            raise InvalidArgumentError(f"compression {self.compression!r} is unknown; known are 'lz4' and 'zstd'")
        if self.send_timeout_s is not None:
            check_seconds("send_timeout_s", self.send_timeout_s)


@asynccontextmanager
async def open_producer(
    pool: Pool,
    request: api.PublishOpen,
    topics: Sequence[str],
    batching: Batching,
    writing: Writing | None = None,
) -> AsyncIterator[Producer[Any]]:
    """Open a producer for ``request.topic``; ``topics`` are the topic itself or its partitions."""
    options = pool.options
    topic, base_name = request.topic, request.producer_name
    partitioned = topics != [topic]
    budget = Budget(batching.max_buffered_bytes)
    lanes: list[Lane] = []
    telemetry = options.telemetry
    arguments = (topic, base_name, lanes, budget, batching.send_timeout_s, options.environment.clock_us)
    producer: Producer[Any]
    if writing is None:
        producer = (Producer if telemetry is None else telemetry.producer)(*arguments)
        schema = SchemaRef()
    else:
        encoding = (EncodingProducer if telemetry is None else telemetry.encoding_producer)(*arguments)
        encoding._writing = writing
        producer, schema = encoding, writing.ref
    for index, one in enumerate(topics):
        outbox = Outbox(
            budget,
            codec=Codec[batching.compression.upper()] if batching.compression else Codec.NONE,
            batch_max_bytes=batching.batch_max_bytes,
            batch_max_messages=min(batching.batch_max_messages, options.limits.max_batch_records),
            max_in_flight=batching.max_in_flight_batches,
            schema=schema,
        )
        message = copy.copy(request)
        message.topic = one
        if partitioned:
            message.producer_name = f"{base_name}-{index}"
        lanes.append(Lane(pool, index, message, outbox, producer._wake))
    async with background_tasks() as group:
        await group.start(producer._run_sender)
        await start_all(group, [lane.run for lane in lanes])
        producer._opened()
        try:
            yield producer
            with anyio.move_on_after(options.close_timeout_s) as scope:
                await producer.flush()
            producer._check_flushed(timed_out=scope.cancelled_caught)
        finally:
            producer._close()
