"""A machine takes over topics of durability ``remote`` while their former owner lives and is busy: nothing may go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest
import trio

from danube.broker.catalogue.creations import Creations
from danube.client import Client
from danube.history import History
from danube.model.errors import DanubeError, OwnerFencedError, UnavailableError
from danube.testing.simulation import World, draw_plan
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.node import BrokerNode
from danube.testing.simulation.trace import Trace

TOPICS = ("/default/early", "/default/late")


def simulate(work: Callable[[World], Awaitable[None]], seed: int) -> None:
    """Run ``work`` in a world of one broker that may move five times, with frequent snapshots and little grace."""
    plan = draw_plan(seed, kind="moving")
    limits = msgspec.structs.replace(
        plan.configs["broker"].limits,
        remote_snapshot_commits=5,
        segment_merge_parts=2,
        segment_max_age_s=1.0,
        segment_grace_s=0.5,
    )
    config = msgspec.structs.replace(plan.configs["broker"], limits=limits)
    plan = plan._replace(configs={"broker": config}, most_moves=5)

    async def main() -> None:
        world = World(plan, Trace())
        async with world.machines():
            await world.node.ready.wait()
            with trio.fail_after(1_000):
                await work(world)
        assert world.history.violations == []

    run_seeded(main, seed)


def history_of(node: BrokerNode) -> History:
    assert node.life is not None
    return node.life.broker.directory.history


async def seal(node: BrokerNode) -> None:
    """Let an owner make segments of all commits, as it does when they are old enough."""
    history = history_of(node)
    assert await history.merger.merge("default", frozenset(history.catalogue.topics)) > 0


async def keep_house(world: World) -> None:
    """Let every owner that lives merge, write manifests and collect garbage without a pause."""
    while True:
        for node in world.nodes:
            if node.life is not None and not node.life.over and node.ready.is_set():
                history = history_of(node)
                with suppress(DanubeError):
                    await history.merger.merge("default", frozenset(history.catalogue.topics))
                with suppress(DanubeError):
                    await history.keep()
        await trio.sleep(0.1)


async def publish(client: Client, topic: str, acknowledged: dict[int, bytes]) -> None:
    """Publish one message after the other, until cancelled."""
    async with client.producer(topic, durability="remote") as producer:
        for number in count():
            payload = b"%d" % number
            with suppress(OwnerFencedError):  # it may be there, or not
                acknowledged[(await producer.send(payload)).offset] = payload
            await trio.sleep(0.03)


async def read(client: Client, topic: str) -> dict[int, bytes]:
    async with client.reader(topic, start="earliest") as reader:
        return {each.offset: each.payload async for batch in reader.batches(until_caught_up=True) for each in batch}


@pytest.mark.parametrize("seed", [2, 4, 6, 7])
def test_a_busy_former_owner_takes_nothing_along(seed: int) -> None:
    """Manifests were read before the fences: what was sealed in between, and its commits deleted, was lost."""

    async def work(world: World) -> None:
        random = Random(seed)
        acknowledged: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
        async with world.applications.client("here", Random(seed), "broker") as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_house, world)
                for move in range(3):
                    if move < len(TOPICS):
                        nursery.start_soon(publish, client, TOPICS[move], acknowledged[TOPICS[move]])
                    await trio.sleep(random.random())
                    new = world.replace(world.node)
                    new.set_storage_faults(latency_s=random.choice((0.01, 0.03, 0.05)))
                    await new.ready.wait()
                    new.set_storage_faults(latency_s=0.005)
                nursery.cancel_scope.cancel()
            for topic in TOPICS:
                assert (await read(client, topic)).items() >= acknowledged[topic].items()
                assert len(acknowledged[topic]) > 20

    simulate(work, seed)


async def send(client: Client, topic: str, first: int, count: int) -> None:
    """Publish some messages, each in a commit of its own."""
    async with client.producer(topic, durability="remote") as producer:
        for number in range(first, first + count):
            assert (await producer.send(b"%d" % number)).offset == number


def test_manifests_that_a_former_owner_writes_late_do_not_count() -> None:
    """They were the first in the bucket, so the new owner took it for another broker's, and never sealed anything."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            await send(client, TOPICS[0], 0, 10)
            former, new = world.node, world.replace(world.node)
            await new.ready.wait()
            await seal(former)  # it is idle, and has not found the fence
            await send(client, TOPICS[0], 10, 10)
            await client.admin.seal_topic(TOPICS[0])
            assert list((await read(client, TOPICS[0])).values()) == [b"%d" % number for number in range(20)]

    simulate(work, 1)


def test_an_attempt_that_was_cut_off_is_repeated_with_what_the_bucket_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had entered was in the way of what the former owner had made of it since: the topics stayed dead."""
    again = trio.Event()
    restore_topic = Creations.restore

    async def fail_once(*args: Any) -> None:
        if not again.is_set():
            again.set()
            raise UnavailableError("the metadata is away; try again")
        await restore_topic(*args)

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            await send(client, TOPICS[0], 0, 5)
            await seal(world.node)
            await send(client, TOPICS[0], 5, 15)
            monkeypatch.setattr(Creations, "restore", fail_once)
            former, new = world.node, world.replace(world.node)
            await again.wait()
            await seal(former)
            world.crash(former, power_loss=True)
            await new.ready.wait()
            with trio.fail_after(60):
                assert list((await read(client, TOPICS[0])).values()) == [b"%d" % number for number in range(20)]

    simulate(work, 1)


def test_garbage_stays_when_a_later_owner_has_come() -> None:
    """A former owner that slept deleted what it had merged, although its successor had read that it was there."""

    async def work(world: World) -> None:
        space = world.buckets["memory://bucket"]
        async with world.applications.client("here", Random(1), "broker") as client:
            for first in range(0, 20, 5):
                await send(client, TOPICS[0], first, 5)
                await seal(world.node)
            former, new = world.node, world.replace(world.node)
            await new.ready.wait()
            history = history_of(former)
            await history.merger.merge("default")
            await trio.sleep(3)
            assert history.catalogue.garbage_until(former.wall_clock_us() - 500_000)
            before = {key for key in space.objects if key.startswith("segments/")}
            with pytest.raises(OwnerFencedError):
                await history.janitor.collect("default")
            assert before <= set(space.objects)

    simulate(work, 1)
