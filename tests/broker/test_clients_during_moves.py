"""How long native clients pause when topics move: they go to the next owner at once, without a backoff."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster

from danube.client import Client
from danube.client._route import MAX_HOPS
from danube.cluster.ordering import order_move

pytestmark = pytest.mark.virtual

SETTINGS: dict[str, Any] = {"cluster_secret": "file", "shared_buckets": True, "shared_storages": True}
RECONNECT: dict[str, Any] = {"reconnect_initial_s": 2.0, "reconnect_max_s": 5.0}
"""A client that backs off would pause for seconds."""
PAUSE_S = 0.3
"""Much longer than a move takes here, and much shorter than a backoff."""


async def move(world: ClusterWorld, topic: str, target: Machine) -> None:
    directory = world.machines[0].broker.directory
    topic_id = directory.catalogue.locate(topic)[1]
    me = target.broker.directory.membership.me
    await order_move(world.machines[0].node.faults, directory.membership, topic_id, me, random=Random(7))
    await wait_until(lambda: target.broker.directory.served(topic_id) is not None)


def owner_of(world: ClusterWorld, topic: str) -> Machine:
    return next(each for each in world.machines if topic in {found.name for found in each.broker.directory.topics()})


class Pauses:
    """The longest time between two events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.longest_s = 0.0
        self._last_s = trio.current_time()
        self.events = 0

    def note(self) -> None:
        now_s = trio.current_time()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        self.events += 1


async def publishing(client: Client, topic: str, pauses: Pauses, *, task_status: Any) -> None:
    async with client.producer(topic, name=pauses.name) as producer:
        await producer.send(b"first")
        task_status.started()
        number = 0
        while True:
            await producer.send(b"%d" % number)
            pauses.note()
            number += 1
            await trio.sleep(0.01)


async def consuming(client: Client, topic: str, pauses: Pauses, *, task_status: Any) -> None:
    async with client.consumer(topic, subscription="s", start="earliest") as consumer:
        await (await consumer.receive()).ack()
        task_status.started()
        async for message in consumer:
            pauses.note()
            await message.ack()


async def reading(client: Client, topic: str, pauses: Pauses, *, task_status: Any) -> None:
    async with client.reader(topic, start="earliest") as reader:
        await reader.receive()
        task_status.started()
        while True:
            await reader.receive()
            pauses.note()


@pytest.mark.parametrize("work", [publishing, consuming, reading])
async def test_a_move_pauses_a_client_for_a_moment(tmp_path: Path, work: Callable[..., Any]) -> None:
    async with cluster(tmp_path, 3, **SETTINGS) as world, world.machines[0].client(**RECONNECT) as client:
        await client.admin.create_topic("/default/t")
        await wait_until(lambda: sum(len(each.broker.directory) for each in world.machines) == 1)
        async with trio.open_nursery() as nursery, world.machines[1].client(**RECONNECT) as other:
            await nursery.start(publishing, other, "/default/t", Pauses("beside"))
            pauses = Pauses("measured")
            await nursery.start(work, client, "/default/t", pauses)
            pauses.note()
            pauses.longest_s = 0.0
            for turn in range(6):
                source = owner_of(world, "/default/t")
                target = [each for each in world.machines if each is not source][turn % 2]
                await move(world, "/default/t", target)
                await trio.sleep(0.5)
            assert pauses.events > 100
            assert pauses.longest_s < PAUSE_S
            nursery.cancel_scope.cancel()


async def test_an_idle_client_finds_topics_that_have_moved_often(tmp_path: Path) -> None:
    """Its knowledge is several moves old: it asks the last owner that it knew, and follows at most three names."""
    async with cluster(tmp_path, 3, **SETTINGS) as world, world.machines[0].client(**RECONNECT) as client:
        topics = [f"/default/t{number}" for number in range(6)]
        for topic in topics:
            await client.admin.create_topic(topic)
        await wait_until(lambda: sum(len(each.broker.directory) for each in world.machines) == len(topics))
        producers = {}
        async with trio.open_nursery() as nursery:
            for topic in topics:
                await nursery.start(_hold, client, topic, producers)
            for turn in range(4):
                for topic in topics:
                    source = owner_of(world, topic)
                    target = [each for each in world.machines if each is not source][turn % 2]
                    await move(world, topic, target)
            began = trio.current_time()
            for topic in topics:
                await producers[topic].send(b"x")
            assert trio.current_time() - began < len(topics) * PAUSE_S
            # A client that starts now is told at once, wherever it asks.
            async with world.machines[2].client(**RECONNECT) as fresh:
                began = trio.current_time()
                for topic in topics:
                    async with fresh.reader(topic, start="earliest") as reader:
                        assert (await reader.receive()).payload == b"x"
                assert trio.current_time() - began < len(topics) * PAUSE_S
            nursery.cancel_scope.cancel()


async def _hold(client: Client, topic: str, producers: dict[str, Any], name: str = "", *, task_status: Any) -> None:
    async with client.producer(topic, name=name or None) as producer:
        producers[topic] = producer
        task_status.started()
        await trio.sleep_forever()


async def test_a_batch_without_an_answer_is_sent_again_as_it_was(tmp_path: Path) -> None:
    """A move while many batches are on their way: each is stored once, in order, under its producer and sequence."""
    async with cluster(tmp_path, 2, **SETTINGS) as world, world.machines[0].client(**RECONNECT) as client:
        await client.admin.create_topic("/default/t")
        await wait_until(lambda: sum(len(each.broker.directory) for each in world.machines) == 1)
        count = 400
        async with client.producer("/default/t") as producer, trio.open_nursery() as nursery:
            for turn in range(4):
                source = owner_of(world, "/default/t")
                target = next(each for each in world.machines if each is not source)
                nursery.start_soon(move, world, "/default/t", target)
                for number in range(count):
                    producer.send_nowait(b"%d" % (turn * count + number))
                    if not number % 40:
                        await trio.sleep(0.003)
                await producer.flush()
                await wait_until(lambda target=target: owner_of(world, "/default/t") is target)
        async with client.reader("/default/t", start="earliest") as reader:
            found = [int((await reader.receive()).payload) for _ in range(4 * count)]
        assert found == list(range(4 * count))


TOPICS = 12
ROUNDS = 25


@pytest.mark.timeout(300)
async def test_clients_are_redirected_at_most_three_times_in_hundreds_of_moves(tmp_path: Path) -> None:
    """One client follows every move, one asks again after each five moves, and one for the first time at the end."""
    async with cluster(tmp_path, 3, patience_s=20_000, **SETTINGS) as world:
        names = [f"/default/t{number}" for number in range(TOPICS)]
        random, moves = Random(11), 0
        async with (
            world.machines[0].client() as busy,
            world.machines[1].client() as lazy,
            trio.open_nursery() as nursery,
        ):
            for name in names:
                await busy.admin.create_topic(name)
            await wait_until(lambda: sum(len(each.broker.directory) for each in world.machines) == TOPICS)
            producers: dict[str, Any] = {}
            for name in names:
                await nursery.start(_hold, busy, name, producers, "busy")
                await nursery.start(_drop, busy, name)
            for turn in range(ROUNDS):
                async with trio.open_nursery() as moving:
                    for name in names:
                        source = owner_of(world, name)
                        target = random.choice([each for each in world.machines if each is not source])
                        moving.start_soon(move, world, name, target)
                        moves += 1
                for name in names:
                    await producers[name].send(b"busy")
                    if turn % 5 == 4:
                        async with lazy.producer(name, name="lazy") as producer:
                            await producer.send(b"lazy")
            async with world.machines[2].client() as fresh:
                for name in names:
                    await nursery.start(_hold, fresh, name, {}, "fresh")
                counted = {"busy": busy.redirects, "lazy": lazy.redirects, "fresh": fresh.redirects}
            nursery.cancel_scope.cancel()
        assert moves == TOPICS * ROUNDS
        assert sum(count for hops, count in counted["busy"].items() if hops) >= moves, "each move was noticed"
        assert all(max(each) <= MAX_HOPS for each in counted.values()), counted
        assert set(counted["fresh"]) == {0}, "any broker knows where topics are"


async def _drop(client: Client, topic: str, *, task_status: Any) -> None:
    """Consume and acknowledge."""
    async with client.consumer(topic, subscription="s") as consumer:
        task_status.started()
        async for message in consumer:
            await message.ack()
