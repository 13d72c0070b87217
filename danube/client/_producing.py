"""Client methods that open producers."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import anyio

from danube.client._admin import AdminCalls, as_durability, choice
from danube.client._checks import check_count, check_seconds
from danube.client._lane import Lane
from danube.client._outbox import Budget, Outbox
from danube.client._producer import Producer
from danube.client._tasks import background_tasks, start_all
from danube.model import api
from danube.model.batch import Codec
from danube.model.errors import InvalidArgumentError
from danube.model.limits import MIB
from danube.model.names import validate_name, validate_topic
from danube.model.policies import Durability, ProducerAccess

__all__ = ["ProduceCalls"]


class ProduceCalls(AdminCalls):
    """The part of :class:`Client` that opens producers."""

    @asynccontextmanager
    async def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        durability: Durability | str | None = None,
        access: ProducerAccess | str = ProducerAccess.SHARED,
        compression: Literal["lz4", "zstd"] | None = None,
        batch_max_bytes: int = 1 * MIB,
        batch_max_messages: int = 50_000,
        max_in_flight_batches: int = 8,
        max_buffered_bytes: int = 64 * MIB,
        partitions: int = 0,
        send_timeout_s: float | None = None,
    ) -> AsyncIterator[Producer]:
        """Open a producer: ``async with client.producer("/default/orders") as producer``.

        Leaving the block waits until all messages are settled, at most ``close_timeout_s``, and raises the first
        failure that was not reported before. Leaving it by an exception abandons unsettled messages.

        Args:
            topic: ``/namespace/topic``; created if it does not exist and the broker allows that.
            name: identity for idempotence across runs, with one live session at a time; None generates one.
            durability: required of the topic (``"none"``, ``"os"``, ``"disk"``, ``"remote"``); None accepts any.
            access: ``"shared"`` or ``"exclusive"`` (the only producer of the topic).
            compression: of batches.
            batch_max_bytes: target size of a batch; a larger message is sent alone.
            batch_max_messages: maximum number of messages in a batch.
            max_in_flight_batches: maximum number of unanswered batches of each partition.
            max_buffered_bytes: limit of accepted and unsettled bytes; beyond it ``send`` waits and ``send_nowait``
                raises LimitExceededError.
            partitions: number of partitions if opening creates the topic; 0 makes a plain topic.
            send_timeout_s: timeout of one ``send`` or ``send_many``; None waits as long as the connection is kept.

        Raises:
            DurabilityMismatchError, TopicNotFoundError, InvalidNameError, ProducerFencedError, DanubeError: the
                broker does not open the producer.
        """
        validate_topic(topic)
        if name is not None:
            validate_name("producer", name)
        for option, value in (
            ("batch_max_bytes", batch_max_bytes),
            ("batch_max_messages", batch_max_messages),
            ("max_in_flight_batches", max_in_flight_batches),
            ("max_buffered_bytes", max_buffered_bytes),
        ):
            check_count(option, value, 1)
        check_count("partitions", partitions)
        if compression not in (None, "lz4", "zstd"):
            raise InvalidArgumentError(f"compression {compression!r} is unknown; known are 'lz4' and 'zstd'")
        if send_timeout_s is not None:
            check_seconds("send_timeout_s", send_timeout_s)
        base_name = name or self._options.environment.made_up_name("producer")
        topics = await self._topics(topic, partitions)
        partitioned = topics != [topic]
        open_message = api.PublishOpen(
            topic,
            base_name,
            anonymous=name is None,
            access=choice(ProducerAccess, "access", access),
            durability=as_durability(durability),
            partitions=partitions,
        )
        budget = Budget(max_buffered_bytes)
        lanes: list[Lane] = []
        producer = Producer(topic, base_name, lanes, budget, send_timeout_s, self._options.environment.clock_us)
        for index, one in enumerate(topics):
            outbox = Outbox(
                budget,
                codec=Codec[compression.upper()] if compression else Codec.NONE,
                batch_max_bytes=batch_max_bytes,
                batch_max_messages=min(batch_max_messages, self._options.limits.max_batch_records),
                max_in_flight=max_in_flight_batches,
            )
            message = copy.copy(open_message)
            message.topic = one
            if partitioned:
                message.producer_name = f"{base_name}-{index}"
            lanes.append(Lane(self._connection, index, message, outbox, producer._wake))
        async with background_tasks() as group:
            await group.start(producer._run_sender)
            await start_all(group, [lane.run for lane in lanes])
            producer._opened()
            try:
                yield producer
                with anyio.move_on_after(self._options.close_timeout_s) as scope:
                    await producer.flush()
                producer._check_flushed(timed_out=scope.cancelled_caught)
            finally:
                producer._close()
