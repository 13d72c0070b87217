"""Brokers that stand still (SIGSTOP): the others take what may be taken, and what wakes up gives way."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from cluster_processes import SERVED_WITHIN_S, Cluster, Load, patient, report

import danube
from danube.model.errors import DanubeError
from danube.model.limits import Limits

TOPICS = [f"/default/t{number}" for number in range(6)]
FLEETING = [f"/default/n{number}" for number in range(6)]
WRITABLE_WITHIN_S = 5.0


@asynccontextmanager
async def stopped(broker: BrokerProcess) -> AsyncIterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


class FleetingLoad:
    """Producers and consumers of topics of durability none, which notice nothing of a broker that stands still.

    Their connections are kept however long it is silent. So what was sent to it is in its socket when it wakes up, and
    what it then delivers is received.
    """

    def __init__(self, url: str, topics: list[str]) -> None:
        self._url = url
        self._topics = topics
        self.seen: dict[str, list[tuple[int, int, int]]] = {topic: [] for topic in topics}
        """When the broker took a message (microseconds), its offset, its number."""
        self._finished = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        limits = Limits(keepalive_idle_s=120.0, keepalive_timeout_s=120.0)
        async with (
            danube.connect(self._url, reconnect_timeout_s=None, reconnect_max_s=0.5, limits=limits) as client,
            trio.open_nursery() as consumers,
        ):
            async with trio.open_nursery() as producers:
                for topic in self._topics:
                    await consumers.start(self._consume, client, topic)
                    producers.start_soon(self._produce, client, topic)
                yield
                self._finished = True
            consumers.cancel_scope.cancel()

    async def _produce(self, client: danube.Client, topic: str) -> None:
        number = 0
        async with client.producer(topic, name="numbers") as producer:
            while not self._finished:
                await producer.send(str(number).encode())
                number += 1
                await trio.sleep(0.01)

    async def _consume(self, client: danube.Client, topic: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with client.consumer(topic, subscription="s") as consumer:
            task_status.started()
            async for batch in consumer.batches():
                self.seen[topic] += [
                    (batch.append_time_us, message.offset, int(message.payload))
                    for message in batch
                    if message.payload != b"x"
                ]

    def check(self, stopped_us: int) -> None:
        """From the moment a broker was stopped, one broker at a time has taken and delivered the messages of a topic.

        A former owner that went on would give out offsets beside those of the new one, and deliver messages that their
        producer has sent again.
        """
        for topic, seen in self.seen.items():
            since = [each for each in seen if each[0] > stopped_us]
            assert since, f"{topic} was not served again"
            offsets = [offset for _, offset, _ in since]
            assert offsets == sorted(set(offsets)), f"{topic}: offsets {offsets}"
            numbers = [number for _, _, number in since]
            assert numbers == sorted(set(numbers)), f"{topic}: messages {numbers}"


async def publish_everywhere(url: str, topics: list[str]) -> None:
    """Publish to topics of durability none, as clients that begin now."""
    with trio.fail_after(30):
        async with danube.connect(url, request_timeout_s=5) as client:
            for topic in topics:
                while True:
                    try:
                        async with client.producer(topic) as producer:
                            await producer.send(b"x")
                            break
                    except DanubeError:
                        await trio.sleep(0.1)


async def pause(directory: Path, *, leader: bool, pause_s: float) -> None:
    rng = random.Random(15)
    with Cluster(directory) as cluster, trio.fail_after(150 + pause_s):
        await cluster.settle([])
        async with patient(cluster.url()) as client:
            load = Load(client, TOPICS, rng)
            await load.create(durability="disk")
            for topic in FLEETING:
                await client.admin.create_topic(topic, durability="none")
            await cluster.settle([*TOPICS, *FLEETING])
            leading = await cluster.leader()
            victim = leading if leader else rng.choice(cluster.others(leading))
            others = cluster.others(victim)
            owners = await cluster.owners(client, TOPICS)
            fleeting = await cluster.owners(client, FLEETING)
            mine = {topic for topic, owner in owners.items() if owner == cluster.address(victim)}
            assert mine
            assert len(mine) < len(TOPICS)
            assert cluster.address(victim) in fleeting.values()
            none = FleetingLoad(cluster.url(), FLEETING)
            async with load.running(), none.running():
                await trio.sleep(0.5)
                async with stopped(victim):
                    since, stopped_us = time.monotonic(), time.time_ns() // 1000
                    writable = await cluster.metadata_write("while-stopped", others)
                    elsewhere = await load.gap(since, lambda topic: topic not in mine)
                    await publish_everywhere(cluster.url(others), FLEETING)
                    moved = time.monotonic() - since
                    async with danube.connect(cluster.url(others)) as near:
                        taken = await cluster.owners(near, FLEETING)
                    assert cluster.address(victim) not in taken.values(), taken
                    await trio.sleep(max(0.0, since + pause_s - time.monotonic()))
                continued = time.monotonic()
                owned = await load.gap(continued, mine.__contains__)
                served = await cluster.settle([*TOPICS, *FLEETING])
                # One owner, and all brokers know the same one.
                for broker in cluster.brokers:
                    async with danube.connect(broker.url) as near:
                        assert await cluster.owners(near, FLEETING) == taken
                        assert await cluster.owners(near, TOPICS) == owners
                await publish_everywhere(cluster.url(), FLEETING)
                await trio.sleep(1)
            none.check(stopped_us)
            messages = await load.check()
    report(
        f"{'leader' if leader else 'owner'} stopped for {pause_s:g} s: metadata write {writable:.2f} s,"
        f" publish at other owners {elsewhere:.2f} s, all none topics taken and written {moved:.2f} s;"
        f" after SIGCONT: publish to its topics {owned:.2f} s, settled in {served:.2f} s; {messages} messages"
    )
    assert writable < WRITABLE_WITHIN_S
    assert served < SERVED_WITHIN_S


@pytest.mark.extended
@pytest.mark.parametrize("leader", [True, False], ids=["leader", "owner"])
async def test_others_go_on_while_a_broker_stands_still(tmp_path: Path, *, leader: bool) -> None:
    await pause(tmp_path, leader=leader, pause_s=5.0)


@pytest.mark.long
@pytest.mark.parametrize("leader", [True, False], ids=["leader", "owner"])
async def test_others_go_on_while_a_broker_stands_still_for_long(tmp_path: Path, *, leader: bool) -> None:
    await pause(tmp_path, leader=leader, pause_s=20.0)
