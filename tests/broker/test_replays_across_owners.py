"""Dead letters are replayed although their topic and its origin have different owners, which move and die meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster
from broker.test_clients_during_moves import move, owner_of

from danube.client import Client
from danube.client.replaying import Replay, ReplayOptions
from danube.model import PoisonPolicy, SubscriptionPolicy
from danube.model.dead_letters import REPLAY_SUBSCRIPTION, dead_letter_topic

pytestmark = pytest.mark.virtual

TOPIC = "/default/orders"
POLICY = SubscriptionPolicy(max_redelivery_count=0, poison=PoisonPolicy.DEAD_LETTER)
LETTERS = dead_letter_topic(TOPIC, "billing", POLICY)
COUNT = 60
SETTINGS: dict[str, Any] = {"cluster_secret": "file", "shared_buckets": True, "shared_storages": True}


class Interrupted(Replay):
    """A run during which something happens after the first batches."""

    def __init__(self, client: Client, options: ReplayOptions, happens: Callable[[int], Awaitable[None]]) -> None:
        super().__init__(client, options)
        self._happens = happens
        self.batches = 0

    async def handle(self, *arguments: Any) -> None:
        await super().handle(*arguments)
        self.batches += 1
        await self._happens(self.batches)


async def let_fail(client: Client) -> None:
    """Publish messages, one in a batch, and refuse them until all of them are dead letters."""
    async with client.producer(TOPIC, name="till") as producer:
        for number in range(COUNT):
            await producer.send(b"%d" % number, key=b"k%d" % (number % 5), attributes={"color": "red"})
    async with client.consumer(TOPIC, subscription="billing", start="earliest", policy=POLICY) as consumer:
        for _ in range(COUNT):
            await (await consumer.receive()).nack(reason="refused")


@asynccontextmanager
async def failed(tmp_path: Path) -> AsyncGenerator[tuple[ClusterWorld, Client], None]:
    """Run three brokers: dead letters are at another one than the topic in which they have failed."""
    async with cluster(tmp_path, 3, patience_s=20_000, **SETTINGS) as world, world.machines[2].client() as client:
        await client.admin.create_topic(TOPIC)
        await wait_until(lambda: any(TOPIC in names(each) for each in world.machines))
        await let_fail(client)
        await wait_until(lambda: any(LETTERS in names(each) for each in world.machines))
        async with client.reader(LETTERS, start="earliest") as reader:
            for _ in range(COUNT):
                await reader.receive()
        owner = owner_of(world, TOPIC)
        if owner_of(world, LETTERS) is owner:
            await move(world, LETTERS, others(world, owner)[0])
        assert owner_of(world, LETTERS) is not owner_of(world, TOPIC)
        yield world, client


def names(machine: Machine) -> set[str]:
    return {each.name for each in machine.broker.directory.topics()} if machine.node.life is not None else set()


def others(world: ClusterWorld, *machines: Machine) -> list[Machine]:
    return [each for each in world.machines if each not in machines]


async def contents(client: Client, topic: str) -> list[tuple[int, dict[str, str]]]:
    found = []
    async with client.reader(topic, start="earliest") as reader:
        async for batch in reader.batches(until_caught_up=True):
            found.extend((int(message.payload), message.attributes or {}) for message in batch)
    return found


async def check_replayed(client: Client, *, most_copies: int = 1) -> None:
    """Every letter was replayed, with its attributes, and is acknowledged; a second run finds nothing."""
    found = await contents(client, TOPIC)
    assert [number for number, _ in found[:COUNT]] == list(range(COUNT))
    copies = Counter(number for number, _ in found[COUNT:])
    assert sorted(copies) == list(range(COUNT))
    assert max(copies.values()) <= most_copies
    assert all(attributes == {"color": "red"} for _, attributes in found)
    again = Replay(client, ReplayOptions(topic=LETTERS))
    await again.run()
    assert (again.count, again.left) == (0, 0)
    (row,) = await client.admin.list_subscriptions(LETTERS)
    assert (row.subscription, row.backlog_messages) == (REPLAY_SUBSCRIPTION, 0)


async def test_letters_go_back_to_a_topic_of_another_broker(tmp_path: Path) -> None:
    async with failed(tmp_path) as (_, client):
        dry = Replay(client, ReplayOptions(topic=LETTERS, dry_run=True))
        await dry.run()
        assert dry.sent == {TOPIC: COUNT}
        replay = Replay(client, ReplayOptions(topic=LETTERS))
        await replay.run()
        assert replay.sent == {TOPIC: COUNT}
        await check_replayed(client)


async def test_both_topics_move_between_the_failure_and_the_replay_and_during_it(tmp_path: Path) -> None:
    async with failed(tmp_path) as (world, client):
        await move(world, TOPIC, others(world, owner_of(world, TOPIC), owner_of(world, LETTERS))[0])

        async def happens(batch: int) -> None:
            if batch in (3, 20, 40):
                name = LETTERS if batch == 20 else TOPIC
                await move(world, name, others(world, owner_of(world, TOPIC), owner_of(world, LETTERS))[0])

        replay = Interrupted(client, ReplayOptions(topic=LETTERS), happens)
        await replay.run()
        assert replay.batches > 40
        # The letter that is under way while the letters move may be delivered, and sent, again.
        assert COUNT <= replay.count <= COUNT + 1
        await check_replayed(client, most_copies=2)


@pytest.mark.parametrize("victim", [TOPIC, LETTERS])
@pytest.mark.parametrize("moves", [False, True])
async def test_an_owner_is_killed_during_the_replay(tmp_path: Path, victim: str, moves: bool) -> None:
    """Its topics wait for it; the replay waits, and goes on when it is back."""
    async with failed(tmp_path) as (world, client):

        async def happens(batch: int) -> None:
            if moves and batch == 5:
                await move(world, TOPIC, others(world, owner_of(world, TOPIC), owner_of(world, LETTERS))[0])
            if batch == 10:
                dead = owner_of(world, victim)
                await dead.kill()
                world.nursery.start_soon(dead.start)

        replay = Interrupted(client, ReplayOptions(topic=LETTERS), happens)
        await replay.run()
        assert replay.batches > 10
        # What was acknowledged just before the kill may be delivered, and sent, again.
        await check_replayed(client, most_copies=2 if victim == LETTERS else 1)
        assert COUNT <= replay.count <= 2 * COUNT


async def test_a_run_that_was_broken_off_is_finished_by_the_next_one(tmp_path: Path) -> None:
    async with failed(tmp_path) as (world, client):
        failed_at = []

        async def happens(batch: int) -> None:
            if batch == 7:
                dead = owner_of(world, TOPIC)
                await dead.kill()
                failed_at.append(dead)

        replay = Interrupted(client, ReplayOptions(topic=LETTERS), happens)
        with trio.move_on_after(20) as scope:
            await replay.run()
        assert scope.cancelled_caught
        (dead,) = failed_at
        await dead.start()
        rest = Replay(client, ReplayOptions(topic=LETTERS))
        await rest.run()
        assert 0 < rest.count < COUNT
        await check_replayed(client, most_copies=2)
