"""The programs: scenarios of :mod:`benchmarks.scenarios`, made small, with broker and clients in one process.

Each does the same with several numbers of messages, one after the other, and has each counted by itself. Connections,
topics, producers and consumers are made before; payloads are made before and compared afterwards. What it costs to
begin and to end is equal for all numbers, so it drops out of their difference.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, MutableSequence, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Any, NamedTuple

import trio
from trio._core import _run as trio_run

from benchmarks._payloads import CheckError, make_payloads
from benchmarks.counting.machine import Counted, Machine
from danube.client import Batch, Consumer, Producer
from danube.compat.proto import danube_api_pb2 as pb
from danube.model.batch import SchemaRef
from danube.model.limits import MIB, Limits
from danube.model.policies import SchemaValidation
from danube.testing.simulation._scheduler import run_seeded

__all__ = ["PROGRAMS", "Program", "run_program"]

_TOPIC = "/default/t"
_NOWAIT_STEP = 1_000


class Program(NamedTuple):
    """A scenario."""

    name: str
    title: str
    calls: str
    """The calls that are counted."""
    messages: int
    """Messages of the first counted part; the second one has twice as many."""
    run: Callable[[Machine, Sequence[int]], Awaitable[None]]
    """Called with the machine, whose broker runs, and the numbers of messages."""
    limits: Limits = Limits()
    """Of the broker."""


class _InOrder(Random):
    """Makes Trio run tasks in the order in which they were made.

    At random, batches would be of other sizes whenever a change makes one draw more or less.
    """

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Do nothing."""


def run_program(
    program: Program,
    counts: Sequence[int],
    start: Callable[[], None] = lambda: None,
    stop: Callable[[int], None] = lambda part: None,
) -> list[Counted]:
    """Run a program with so many messages, and again with so many; blocks.

    Args:
        start, stop: called where counting begins and ends; ``stop`` gets the number of the part, from 0 on.

    Raises:
        CheckError: what arrived is not what was sent.
    """

    async def main() -> list[Counted]:
        machine = Machine(program.limits, start, stop)
        with trio.fail_after(3600):  # virtual
            async with machine.running():
                await program.run(machine, counts)
        return machine.counted

    before, trio_run._r = trio_run._r, _InOrder()
    gc.collect()
    gc.freeze()
    try:
        return run_seeded(main, 0)
    finally:
        gc.unfreeze()
        trio_run._r = before


def _check(received: Sequence[bytes], sent: Sequence[bytes], *, ordered: bool = True) -> None:
    same = received == sent if ordered else sorted(received) == sorted(sent)
    if not same:
        raise CheckError(f"{len(sent)} messages were sent, {len(received)} arrived, or other ones")


async def _take_batches(consumer: Consumer, batches: AsyncIterator[Batch], count: int, into: list[bytes]) -> None:
    """Take and acknowledge so many messages, batch by batch."""
    while len(into) < count:
        batch = await anext(batches)
        into += batch.payloads()
        await batch.ack()
    await consumer.flush_acks()


async def _take_each(consumer: Consumer, count: int, into: list[bytes]) -> None:
    """Take and acknowledge so many messages, one by one."""
    while len(into) < count:
        message = await consumer.receive()
        into.append(message.payload)
        await message.ack()
    await consumer.flush_acks()


async def _in_bulk(
    machine: Machine, counts: Sequence[int], size: int, subscriptions: int, *, enforced: bool = False
) -> None:
    """One producer sends batches, and each subscription takes them; enforced: with the schema that the topic wants."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(machine.client())
        producer = await stack.enter_async_context(client.producer(_TOPIC, durability="disk"))
        if enforced:
            schema = await client.schemas.register(f"{_TOPIC}-value", "bytes")
            await client.schemas.bind(_TOPIC, f"{_TOPIC}-value")
            await client.admin.change_policies(_TOPIC, schema_validation=SchemaValidation.ENFORCE)
            producer._carry(SchemaRef(schema.number, schema.version))
        consumers = []
        for number in range(subscriptions):
            client = await stack.enter_async_context(machine.client())
            consumer = client.consumer(_TOPIC, subscription=f"reader-{number}", start="earliest")
            consumers.append(await stack.enter_async_context(consumer))
        batches = [consumer.batches() for consumer in consumers]
        for count in counts:
            payloads = make_payloads(count, size)
            received: list[list[bytes]] = [[] for _ in consumers]
            await machine.settle()
            with machine.count(count):
                async with trio.open_nursery() as nursery:
                    for each in zip(consumers, batches, received, strict=True):
                        nursery.start_soon(_take_batches, each[0], each[1], count, each[2])
                    await producer.send_many(payloads)
            for one in received:
                _check(one, payloads)


async def _s1(machine: Machine, counts: Sequence[int]) -> None:
    await _in_bulk(machine, counts, 100, 1)


async def _s1e(machine: Machine, counts: Sequence[int]) -> None:
    await _in_bulk(machine, counts, 100, 1, enforced=True)


async def _s2(machine: Machine, counts: Sequence[int]) -> None:
    await _in_bulk(machine, counts, 1024, 1)


async def _s7(machine: Machine, counts: Sequence[int]) -> None:
    await _in_bulk(machine, counts, 100, 10)


async def _send_nowait(producer: Producer, payloads: Sequence[bytes]) -> None:
    for first in range(0, len(payloads), _NOWAIT_STEP):
        for payload in payloads[first : first + _NOWAIT_STEP]:
            producer.send_nowait(payload)
        await trio.lowlevel.checkpoint()
    await producer.flush()


async def _send_each(producer: Producer, payloads: Sequence[bytes]) -> None:
    for payload in payloads:
        await producer.send(payload)


async def _one_by_one(
    machine: Machine, counts: Sequence[int], send: Callable[[Producer, Sequence[bytes]], Awaitable[None]]
) -> None:
    """One producer, one consumer that takes and acknowledges each message by itself."""
    async with (
        machine.client() as sender,
        machine.client() as receiver,
        sender.producer(_TOPIC, durability="disk") as producer,
        receiver.consumer(_TOPIC, subscription="reader", start="earliest") as consumer,
    ):
        for count in counts:
            payloads = make_payloads(count, 100)
            received: list[bytes] = []
            await machine.settle()
            with machine.count(count):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_take_each, consumer, count, received)
                    await send(producer, payloads)
            _check(received, payloads)


async def _s1b(machine: Machine, counts: Sequence[int]) -> None:
    await _one_by_one(machine, counts, _send_nowait)


async def _s3(machine: Machine, counts: Sequence[int]) -> None:
    await _one_by_one(machine, counts, _send_each)


async def _s4(machine: Machine, counts: Sequence[int]) -> None:
    """Store, and replay by a new subscription, which is opened while it is counted."""
    async with machine.client() as client:
        for number, count in enumerate(counts):
            topic = f"{_TOPIC}{number}"
            payloads = make_payloads(count, 100)
            received: list[bytes] = []
            async with client.producer(topic, durability="disk") as producer:
                await producer.send_many(payloads)
            await machine.settle()
            with machine.count(count):
                async with client.consumer(topic, subscription="replay", start="earliest") as consumer:
                    await _take_batches(consumer, consumer.batches(), count, received)
            _check(received, payloads)


async def _s5(machine: Machine, counts: Sequence[int]) -> None:
    """A subscription is shared by four consumers, each on its own connection."""

    async def take(consumer: Consumer, count: int, into: list[bytes], scope: trio.CancelScope) -> None:
        while True:
            message = await consumer.receive()
            into.append(message.payload)
            await message.ack()
            if len(into) >= count:
                scope.cancel()

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(machine.client())
        producer = await stack.enter_async_context(client.producer(_TOPIC, durability="disk"))
        consumers = []
        for _ in range(4):
            client = await stack.enter_async_context(machine.client())
            shared = client.consumer(_TOPIC, subscription="shared", type="shared", start="earliest")
            consumers.append(await stack.enter_async_context(shared))
        for count in counts:
            payloads = make_payloads(count, 100)
            received: list[bytes] = []
            await machine.settle()
            with machine.count(count):
                async with trio.open_nursery() as nursery:
                    for consumer in consumers:
                        nursery.start_soon(take, consumer, count, received, nursery.cancel_scope)
                    nursery.start_soon(producer.send_many, payloads)
                async with trio.open_nursery() as nursery:
                    for consumer in consumers:
                        nursery.start_soon(consumer.flush_acks)
            _check(received, payloads, ordered=False)


async def _s6(machine: Machine, counts: Sequence[int]) -> None:
    """Many connections, each with one message in flight."""
    connections = 50
    async with AsyncExitStack() as stack:
        producers = []
        for _ in range(connections):
            client = await stack.enter_async_context(machine.client())
            producers.append(await stack.enter_async_context(client.producer(_TOPIC, durability="disk")))
        for count in counts:
            payloads = make_payloads(count, 100)
            await machine.settle()
            with machine.count(count):
                async with trio.open_nursery() as nursery:
                    for number, producer in enumerate(producers):
                        nursery.start_soon(_send_each, producer, payloads[number::connections])


async def _u1(machine: Machine, counts: Sequence[int]) -> None:
    """Unary calls of the upstream protocol, one after the other, with a message in each."""
    async with machine.upstream() as channel:
        opening = pb.ProducerRequest(
            request_id=1, producer_name="benchmark", topic_name=_TOPIC, dispatch_strategy=pb.Reliable
        )
        opened = await channel.unary("/danube.ProducerService/CreateProducer", opening, pb.ProducerResponse)
        for count in counts:
            requests = [
                pb.StreamMessage(
                    request_id=number,
                    msg_id=pb.MsgID(
                        producer_id=opened.producer_id, topic_name=_TOPIC, broker_addr="http://127.0.0.1:6650"
                    ),
                    payload=payload,
                    publish_time=1_750_000_000_000,
                    producer_name="benchmark",
                )
                for number, payload in enumerate(make_payloads(count, 100))
            ]
            answers: list[int] = []
            await machine.settle()
            with machine.count(count):
                for request in requests:
                    answer = await channel.unary("/danube.ProducerService/SendMessage", request, pb.MessageResponse)
                    answers.append(answer.request_id)
            if answers != list(range(count)):
                raise CheckError(f"{count} calls were made, {len(answers)} were answered, or other ones")


_SMALL_CACHE = Limits(cache_bytes=1 * MIB)
"""Most of what is replayed has to be read from the disk."""

PROGRAMS = {
    one.name: one
    for one in (
        Program("s1", "Durable publish and consume at the same time, 100 B", "send_many; batches()", 60_000, _s1),
        Program("s1b", "As s1, message by message", "send_nowait; receive()", 6_000, _s1b),
        Program("s1e", "As s1, of a topic that enforces a schema", "send_many; batches()", 60_000, _s1e),
        Program("s2", "As s1, 1 KiB", "send_many; batches()", 10_000, _s2),
        Program("s3", "One durable message at a time, 100 B", "await send(); receive()", 200, _s3),
        Program("s4", "Replay of stored messages, 100 B", "batches()", 60_000, _s4, _SMALL_CACHE),
        Program("s5", "Shared subscription, 4 consumers", "send_many; receive()", 6_000, _s5),
        Program("s6", "50 connections, one durable message in flight on each", "await send()", 500, _s6),
        Program("s7", "Fan-out to 10 exclusive subscriptions", "send_many; batches()", 20_000, _s7),
        Program("u1", "One message a call, one call after the other", "SendMessage", 300, _u1),
    )
}
"""By name."""
