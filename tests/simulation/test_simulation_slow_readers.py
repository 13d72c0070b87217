"""Peers that grant credit and do not read: their queued data is bounded, and others are not affected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import msgspec
import pytest
import trio

from danube.client import Client
from danube.model import Durability, api
from danube.model.batch import read_header
from danube.model.errors import AlreadyExistsError
from danube.model.limits import GIB, KIB, Limits
from danube.testing.simulation import World, draw_plan
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.node import PORT
from danube.testing.simulation.trace import Trace
from danube.wire import Server, connect_channel
from danube.wire.client import ClientStream

TOPIC = "/default/much"
CREDIT: dict[str, Any] = {"credit_messages": 1_000_000, "credit_bytes": 1024 * GIB}
BATCH = 8 * KIB
COUNT = 600
"""Messages of about 1 KiB in a topic: several times of what may be on its way to one connection."""

_encode = msgspec.msgpack.encode


class House:
    """A broker with small send buffers in a simulated world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.most_waiting = 0

    @property
    def server(self) -> Server:
        assert self.world.node.life is not None
        return self.world.node.life.broker._server

    @property
    def limits(self) -> Limits:
        return self.server.limits

    @asynccontextmanager
    async def client(self, host: str) -> AsyncIterator[Client]:
        async with self.world.applications.client(host, Random(host), "broker") as client:
            yield client

    def pressed(self) -> bool:
        return self.server.pressed

    def stop_reading(self, host: str) -> None:
        self.world.network.set_reading(host, "broker", reads=False)

    def read_on(self, host: str) -> None:
        self.world.network.set_reading(host, "broker", reads=True)

    async def publish(self, count: int = COUNT, durability: Durability = Durability.OS) -> None:
        async with self.client("publisher") as client:
            with suppress(AlreadyExistsError):
                await client.admin.create_topic(TOPIC, durability=durability)
            async with client.producer(TOPIC, batch_max_bytes=BATCH) as producer:
                for first in range(0, count, 100):
                    await producer.send_many([bytes(1000) + b"%d" % number for number in range(first, first + 100)])

    async def watch(self) -> None:
        while True:
            waiting = sum(connection.waiting_bytes for connection in self.server._connections)
            self.most_waiting = max(self.most_waiting, waiting)
            await trio.sleep(0.01)


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    world = World(draw_plan(1, kind="single"), Trace())
    with trio.fail_after(10_000):
        async with world.machines():
            await world.node.ready.wait()
            async with trio.open_nursery() as nursery:
                found = House(world)
                nursery.start_soon(found.watch)
                yield found
                nursery.cancel_scope.cancel()
    assert world.history.violations == []


def opening(name: str) -> api.ConsumeOpen:
    """The request for a reader of everything."""
    return api.ConsumeOpen(topic=TOPIC, subscription="", consumer_name=name, start="earliest", reader=True)


@asynccontextmanager
async def raw_reader(house: House, host: str, streams: int) -> AsyncIterator[list[ClientStream]]:
    """One connection with readers that have all the credit of the world."""
    network = house.world.network
    async with connect_channel("broker", PORT, connect=lambda: network.connect(host, "broker", PORT)) as channel:
        opened = []
        for number in range(streams):
            stream = channel.open_stream(api.Method.CONSUME)
            stream.send_nowait(_encode(opening(f"{host}-{number}")))
            stream.send_nowait(_encode(api.Credit(1_000_000, 1024 * GIB)))
            opened.append(stream)
        yield opened


async def read_all(stream: ClientStream, count: int = COUNT) -> None:
    """Take a reader's messages up to a count; they must come once and in order."""
    expected = 0
    while expected < count:
        message = await stream.receive()
        assert message is not None
        reply = msgspec.msgpack.decode(message.data, type=api.ConsumeReply)
        message.release()
        if isinstance(reply, api.ConsumeBatch):
            assert reply.base_offset == expected
            expected += read_header(reply.part).record_count


def test_a_reader_that_pauses() -> None:
    async def main() -> None:
        async with house() as here:
            await here.publish(0)
            async with raw_reader(here, "slow", 1) as [stream]:
                here.stop_reading("slow")
                await here.publish()
                await trio.sleep(3)
                most = here.limits.max_send_buffer_bytes
                assert most / 2 < here.most_waiting <= most + 2 * BATCH
                here.read_on("slow")
                await read_all(stream)

    run_seeded(main, 1)


def test_many_streams_of_a_connection_that_is_not_read() -> None:
    async def main() -> None:
        async with house() as here:
            await here.publish()
            async with raw_reader(here, "slow", 20) as streams:
                here.stop_reading("slow")
                await trio.sleep(3)
                most = here.limits.max_send_buffer_bytes_per_connection
                assert most / 2 < here.most_waiting <= most + 2 * BATCH
                here.read_on("slow")
                async with trio.open_nursery() as nursery:
                    for stream in streams:  # all of them: no stream is left out
                        nursery.start_soon(read_all, stream)

    run_seeded(main, 1)


def test_many_connections_that_are_not_read() -> None:
    async def main() -> None:
        async with house() as here:
            await here.publish()
            slow = [f"slow-{number}" for number in range(20)]
            async with trio.open_nursery() as nursery:

                async def pause(host: str) -> None:
                    async with raw_reader(here, host, 3):
                        here.stop_reading(host)
                        await trio.sleep(60)

                for host in slow:
                    nursery.start_soon(pause, host)
                await trio.sleep(2)
                assert here.pressed()
                async with raw_reader(here, "quick", 3) as streams:
                    with trio.fail_after(2):
                        for stream in streams:
                            await read_all(stream)
                await trio.sleep(30)  # who takes nothing for write_timeout_s is cut off
                assert not here.pressed()
                assert here.server.waiting_bytes == 0
                nursery.cancel_scope.cancel()
            limits = here.limits
            assert here.most_waiting <= limits.max_send_buffer_bytes_in_all + len(slow) * 2 * BATCH

    run_seeded(main, 1)


def test_a_peer_that_reads_its_connection_and_opens_no_window() -> None:
    """Its socket is idle, so only what waits for its windows tells that it takes nothing."""

    async def main() -> None:
        async with house() as here:
            await here.publish()
            network = here.world.network
            limits = Limits(stream_window_bytes=16 * KIB)
            async with (
                connect_channel(
                    "broker", PORT, limits, connect=lambda: network.connect("hostile", "broker", PORT)
                ) as channel,
            ):
                for number in range(60):
                    stream = channel.open_stream(api.Method.CONSUME)
                    stream.send_nowait(_encode(opening(f"hostile-{number}")))
                    stream.send_nowait(_encode(api.Credit(1_000_000, 1024 * GIB)))
                with trio.fail_after(here.limits.write_timeout_s + 5):
                    await channel.wait_closed()
                most = here.limits.max_send_buffer_bytes_per_connection
                assert most / 2 < here.most_waiting <= most + 2 * BATCH

    run_seeded(main, 1)


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover"])
def test_others_get_what_a_consumer_does_not_read(kind: str) -> None:
    async def main() -> None:
        async with house() as here, here.client("slow") as slow, here.client("quick") as quick:
            await here.publish(0)
            options: dict[str, Any] = {"subscription": "s", "type": kind, "policy": {"ack_timeout_s": 2.0}, **CREDIT}
            async with (
                slow.consumer(TOPIC, name="slow", **options),
                quick.consumer(TOPIC, name="quick", **options) as consumer,
            ):
                here.stop_reading("slow")
                async with quick.producer(TOPIC, batch_max_bytes=BATCH) as producer:
                    for first in range(0, COUNT, 100):
                        keys = [f"k{number % 20}" for number in range(first, first + 100)]
                        for key in keys:
                            producer.send_nowait(bytes(1000), key=key)
                        await producer.flush()
                seen: set[int] = set()
                with trio.fail_after(30):
                    while len(seen) < COUNT:
                        message = await consumer.receive()
                        seen.add(message.offset)
                        await message.ack()
                assert here.most_waiting <= here.limits.max_send_buffer_bytes + 64 * KIB

    run_seeded(main, 1)


def test_messages_without_durability_are_dropped_for_a_slow_reader() -> None:
    async def main() -> None:
        async with house() as here, here.client("slow") as slow, here.client("quick") as quick:
            await here.publish(0, Durability.NONE)
            async with (
                slow.consumer(TOPIC, subscription="slow", **CREDIT) as paused,
                quick.consumer(TOPIC, subscription="quick", **CREDIT) as consumer,
                quick.producer(TOPIC, batch_max_bytes=BATCH) as producer,
            ):
                here.stop_reading("slow")
                for _ in range(COUNT // 100):
                    await producer.send_many([bytes(1000)] * 100)
                for expected in range(COUNT):
                    assert (await consumer.receive()).offset == expected
                most = here.limits.max_send_buffer_bytes_per_connection
                assert here.most_waiting <= most + 2 * BATCH
                here.read_on("slow")
                await producer.send(b"last")
                got = 0
                while (await paused.receive()).payload != b"last":
                    got += 1
                assert got < COUNT
                assert paused.dropped_messages == COUNT - got

    run_seeded(main, 1)
