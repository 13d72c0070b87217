"""A broker against a model: random publishing, acknowledging, refusing, seeking, draining and crashing.

What was acknowledged is there once and in order; a cursor stands exactly where the confirmed acknowledgements put it,
and what was refused too often is dropped, or copied to the dead-letter topic, and counts as acknowledged.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio
from broker.broker_harness import (
    RawConsumer,
    RawProducer,
    RunningBroker,
    raw_consumer,
    raw_producer,
    read_all,
    small_config,
    wait_until,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.model import api

TOPIC = "/default/t"
KINDS = ("exclusive", "shared")
MOST_FAILURES = {"exclusive": 1, "shared": 2}
POISON = {"exclusive": "drop", "shared": "dead_letter"}
LETTERS = "/default/letters"

publish = st.tuples(st.just("publish"), st.lists(st.integers(1, 5), min_size=1, max_size=4))
repeat = st.tuples(st.just("repeat"), st.integers(0, 63))
ack = st.tuples(st.just("ack"), st.sampled_from(KINDS), st.integers(0, 40), st.integers(1, 10))
nack = st.tuples(st.just("nack"), st.sampled_from(KINDS), st.integers(0, 40), st.integers(1, 10))
seek = st.tuples(st.just("seek"), st.sampled_from(KINDS), st.integers(0, 40))
reconnect = st.tuples(st.just("reconnect"))
restart = st.tuples(st.just("restart"), st.booleans())
steps = st.lists(st.one_of(publish, publish, repeat, ack, ack, nack, seek, reconnect, restart), max_size=25)


class World:
    """A broker, its raw peers, and the model of what has to be true."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running
        self.stored: list[bytes] = []
        self.batches: list[tuple[int, list[bytes]]] = []
        self.acked: dict[str, set[int]] = {kind: set() for kind in KINDS}
        self.failures: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
        self.letters: set[int] = set()
        self.producer: RawProducer
        self.consumers: dict[str, RawConsumer] = {}
        self._stack = AsyncExitStack()

    async def connect(self) -> None:
        channel = await self._stack.enter_async_context(self.running.channel())
        # The connection from before may still be there: a named producer and a named consumer take over.
        self.producer = await self._stack.enter_async_context(raw_producer(channel, TOPIC, "p"))
        assert self.producer.opened.next_sequence == len(self.stored)
        for kind in KINDS:
            policy = {
                "max_redelivery_count": MOST_FAILURES[kind],
                "poison": POISON[kind],
                "dead_letter_topic": LETTERS,
            }
            entered = self._stack.enter_async_context(raw_consumer(channel, TOPIC, kind, "c", kind, policy=policy))
            consumer = self.consumers[kind] = await entered
            assert consumer.opened.end_offset == len(self.stored)
            consumer.credit(100_000)
        await self.delivered()

    async def disconnect(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()

    async def delivered(self) -> None:
        """Wait until everything was handed out, so that every offset can be acknowledged."""
        subscriptions = self.running.topic(TOPIC).subscriptions
        for kind in KINDS:
            await self.consumers[kind].flush(0)
            machine = subscriptions[kind].machine
            await wait_until(lambda machine=machine: machine.position >= len(self.stored))

    def generation(self, kind: str) -> int:
        """The generation of deliveries, which a seek raises; acknowledgements of an earlier one have no effect."""
        return self.running.topic(TOPIC).subscriptions[kind].generation

    # --- Steps ---

    async def publish(self, sizes: list[int]) -> None:
        expected = []
        for size in sizes:
            base = len(self.stored)
            payloads = [b"%d" % (base + index) for index in range(size)]
            self.producer.send(base, *payloads)
            self.stored += payloads
            self.batches.append((base, payloads))
            expected.append((base, base, size))
        assert await self.producer.acked(len(sizes)) == expected
        await self.delivered()

    async def repeat(self, index: int) -> None:
        """Send one of the last 64 batches again: it keeps its place."""
        recent = self.batches[-64:]
        if recent:
            base, payloads = recent[index % len(recent)]
            self.producer.send(base, *payloads)
            assert await self.producer.acked() == [(base, base, len(payloads))]

    async def ack(self, kind: str, start: int, count: int) -> None:
        self.consumers[kind].send(api.Ack([start, start + count], self.generation(kind)))
        await self.consumers[kind].flush(1)
        self.acked[kind] |= set(range(start, min(start + count, len(self.stored))))

    async def nack(self, kind: str, start: int, count: int) -> None:
        """Refuse messages; all that are not acknowledged are in flight, and are again at once."""
        self.consumers[kind].send(api.Nack([start, start + count], 0, "model", self.generation(kind)))
        await self.consumers[kind].flush(2)
        failures = self.failures[kind]
        for offset in set(range(start, min(start + count, len(self.stored)))) - self.acked[kind]:
            failures[offset] += 1
            if failures[offset] > MOST_FAILURES[kind]:
                self.acked[kind].add(offset)
                if POISON[kind] == "dead_letter":
                    self.letters.add(offset)
        await self.delivered()
        await self.settled(kind)

    async def settled(self, kind: str) -> None:
        """Wait until nothing is on its way to the dead-letter topic, and what was dropped is durable."""
        machine = self.running.topic(TOPIC).subscriptions[kind].machine
        await wait_until(lambda: not machine.poisoned_messages())
        await self.consumers[kind].flush(3)

    async def seek(self, kind: str, offset: int) -> None:
        async with self.running.client() as client:
            await client.admin.seek_subscription(TOPIC, kind, offset)
        self.acked[kind] = set(range(min(offset, len(self.stored))))
        self.failures[kind].clear()
        await self.delivered()

    async def reconnect(self) -> None:
        await self.disconnect()
        await self.connect()

    async def restart(self, crash: bool) -> None:
        if crash:
            await self.running.crash()
            await self.disconnect()
        else:
            await self.disconnect()
            await self.running.drain()
        await self.running.start()
        for failures in self.failures.values():
            failures.clear()  # they are not written down
        await self.connect()

    async def check(self) -> None:
        async with self.running.client() as client:
            assert await read_all(client, TOPIC) == self.stored
            for kind in KINDS:
                (info,) = await client.admin.describe_subscription(TOPIC, kind)
                floor = next(n for n in range(len(self.stored) + 1) if n not in self.acked[kind])
                assert (info.floor, info.backlog_messages) == (floor, len(self.stored) - len(self.acked[kind])), kind
                live = self.running.topic(TOPIC).subscriptions[kind].cursor.live(0, len(self.stored))
                assert {n for low, high in live for n in range(low, high)} == (
                    set(range(len(self.stored))) - self.acked[kind]
                )
            if self.letters:
                assert set(await read_all(client, LETTERS)) == {self.stored[offset] for offset in self.letters}


async def run(script: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            running = await RunningBroker(small_config(Path(directory)), nursery).start()
            world = World(running)
            await world.connect()
            for name, *arguments in script:
                step: Callable[..., Awaitable[None]] = getattr(world, name)
                await step(*arguments)
            await world.check()
            await world.restart(True)
            await world.check()
            await world.disconnect()
            await running.drain()
            nursery.cancel_scope.cancel()


@settings(max_examples=30, deadline=None)
@given(steps)
def test_acknowledged_messages_are_there_and_cursors_are_exact(script: list[tuple[Any, ...]]) -> None:
    trio.run(run, script)
