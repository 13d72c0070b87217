"""Policies and quotas hold at each owner of a topic, after moves and when they are changed at another broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster
from broker.test_clients_during_moves import move, owner_of

from danube.client import Client, Producer
from danube.model import SubscriptionPolicy
from danube.model.errors import LimitExceededError, MessageTooLargeError
from danube.model.policies import PoisonPolicy

pytestmark = pytest.mark.virtual

SETTINGS: dict[str, Any] = {"cluster_secret": "file", "shared_buckets": True, "shared_storages": True}

DATA = Random(1)
"""Draws what compression does not make smaller."""


@asynccontextmanager
async def shop(tmp_path: Path, *topics: str) -> AsyncGenerator[tuple[ClusterWorld, Client], None]:
    """Run three brokers, and create topics in a namespace; the client is at the third broker."""
    async with cluster(tmp_path, 3, patience_s=20_000, **SETTINGS) as world, world.machines[2].client() as client:
        await client.admin.create_namespace("shop")
        for topic in topics:
            await client.admin.create_topic(topic)
        await wait_until(lambda: all(find(world, topic) is not None for topic in topics))
        yield world, client


def find(world: ClusterWorld, topic: str) -> Machine | None:
    found = [each for each in world.machines if topic in {its.name for its in each.broker.directory.topics()}]
    return found[0] if found else None


async def next_owner(world: ClusterWorld, topic: str) -> Machine:
    """Move a topic to a broker at which it was not, as far as there is one, and return that."""
    owner = owner_of(world, topic)
    target = world.machines[(world.machines.index(owner) + 1) % len(world.machines)]
    await move(world, topic, target)
    assert owner_of(world, topic) is target
    return target


def stranger(world: ClusterWorld, topic: str) -> Machine:
    """Return a broker that does not own a topic."""
    owner = owner_of(world, topic)
    return next(each for each in world.machines if each is not owner)


@pytest.mark.parametrize("target", ["/shop/t", "shop", ""])
async def test_policies_hold_at_the_next_owner(tmp_path: Path, target: str) -> None:
    """Set at a broker that does not own the topic, and changed again after it has moved twice."""
    async with shop(tmp_path, "/shop/t") as (world, _):
        changes: dict[str, Any] = {"max_message_bytes": 100, "max_producers": 1, "max_subscriptions": 2}
        changes |= {"max_consumers": 1, "message_ttl_s": 60.0, "publish_rate": {"messages_per_s": 50}}
        async with stranger(world, "/shop/t").client() as other:
            await other.admin.change_policies(target, **changes)
        for turn in range(3):
            owner = owner_of(world, "/shop/t") if not turn else await next_owner(world, "/shop/t")
            async with stranger(world, "/shop/t").client() as client:
                await wait_until(lambda owner=owner: owner.broker.directory.find("/shop/t").message_ttl_s == 60.0)
                await holds(client)
        async with stranger(world, "/shop/t").client() as other:
            await other.admin.change_policies(target, **dict.fromkeys(changes))
            owner = await next_owner(world, "/shop/t")
            await wait_until(lambda: owner.broker.directory.find("/shop/t").message_ttl_s == 0)
            async with other.producer("/shop/t", name="large") as producer:
                await producer.send(bytes(200))


async def holds(client: Client) -> None:
    """Check each policy at the present owner."""
    async with client.producer("/shop/t", name="a") as producer:
        with pytest.raises(MessageTooLargeError):
            await producer.send(bytes(200))
        with pytest.raises(LimitExceededError, match="producers"):
            async with client.producer("/shop/t", name="b") as another:
                await another.send(b"x")
        began = trio.current_time()
        for _ in range(150):
            await producer.send(b"x")
        assert trio.current_time() - began > 1.5, "at most 50 in a second"
    async with client.consumer("/shop/t", subscription="s", type="shared"):
        with pytest.raises(LimitExceededError, match="consumers"):
            async with client.consumer("/shop/t", subscription="s", type="shared"):
                pass


async def test_the_policy_of_a_subscription_moves_along_and_is_changed_at_another_broker(tmp_path: Path) -> None:
    async with shop(tmp_path, "/shop/t") as (world, _):
        policy = SubscriptionPolicy(max_redelivery_count=5, redelivery_delay_s=0.01, poison=PoisonPolicy.DROP)
        async with stranger(world, "/shop/t").client() as client:
            async with client.consumer("/shop/t", subscription="s", policy=policy):
                pass
            await next_owner(world, "/shop/t")
            (row,) = await client.admin.describe_subscription("/shop/t", "s")
            assert row.policy.max_redelivery_count == 5
        async with stranger(world, "/shop/t").client() as other:
            await other.admin.change_subscription_policy("/shop/t", "s", max_redelivery_count=1)
            await next_owner(world, "/shop/t")
            async with other.producer("/shop/t") as producer:
                await producer.send(b"poison")
                await producer.send(b"last")
            async with other.consumer("/shop/t", subscription="s") as consumer:
                seen = []
                while not seen or seen[-1] != b"last" or seen.count(b"poison") < 2:
                    message = await consumer.receive()
                    seen.append(message.payload)
                    if message.payload == b"poison":
                        await message.nack()
                with trio.move_on_after(5):
                    seen.append((await consumer.receive()).payload)
                assert seen.count(b"poison") == 2, "delivered, and once again"


async def test_the_quota_of_stored_bytes_counts_topics_where_they_are(tmp_path: Path) -> None:
    async with shop(tmp_path, "/shop/t", "/shop/u") as (world, client):
        first = owner_of(world, "/shop/t")
        if owner_of(world, "/shop/u") is not first:
            await move(world, "/shop/u", first)
        async with stranger(world, "/shop/t").client() as other:
            await other.admin.change_quota("shop", max_stored_bytes=100_000)
        async with client.producer("/shop/t", name="t") as t, client.producer("/shop/u", name="u") as u:
            for producer in (t, u):
                for _ in range(4):
                    await producer.send(DATA.randbytes(10_000))
            async with trio.open_nursery() as nursery:
                large = await sending(nursery, t, 30_000)
                assert not large.is_set(), "80 of 100 kB are used where both topics are"
                # At a broker of its own it has room, and what waits is sent there: the quota is of each broker.
                owner = await next_owner(world, "/shop/t")
                with trio.fail_after(10):
                    await large.wait()
                    await u.send(DATA.randbytes(30_000))
                await trio.sleep(3)
                assert 70_000 <= space(owner).used_bytes < 80_000, "what has moved counts at its owner"
                assert 70_000 <= space(first).used_bytes < 80_000, "and no more where it was"
                # The other one follows: together they have used more than there is.
                await move(world, "/shop/u", owner)
                await trio.sleep(3)
                small = await sending(nursery, u, 10)
                assert not small.is_set()
                async with stranger(world, "/shop/u").client() as other:
                    await other.admin.change_quota("shop", max_stored_bytes=200_000)
                with trio.fail_after(10):
                    await small.wait()


async def sending(nursery: trio.Nursery, producer: Producer, size_bytes: int) -> trio.Event:
    """Send a message in the background; return what is set once it is stored, after some time."""
    sent = trio.Event()

    async def send() -> None:
        await producer.send(DATA.randbytes(size_bytes))
        sent.set()

    nursery.start_soon(send)
    await trio.sleep(3)
    return sent


def space(machine: Machine) -> Any:
    found = machine.broker.directory.runtime.namespace_spaces.of_topic("/shop/t")
    assert found is not None
    return found


async def test_the_rates_and_connections_of_a_namespace_hold_at_the_next_owner(tmp_path: Path) -> None:
    async with shop(tmp_path, "/shop/t") as (world, client):
        async with stranger(world, "/shop/t").client() as other:
            await other.admin.change_quota("shop", publish_rate={"messages_per_s": 50}, max_connections=1)
        for machine in world.machines:
            async with machine.client() as each:
                await wait_until(partial(knows_of_quota, each))
        for _ in range(3):
            await next_owner(world, "/shop/t")
            async with client.producer("/shop/t", name="a") as producer:
                began = trio.current_time()
                for _ in range(150):
                    await producer.send(b"x")
                assert trio.current_time() - began > 1.5
                async with world.machines[0].client() as second:
                    with pytest.raises(LimitExceededError, match="max_connections"):
                        async with second.producer("/shop/t", name="b"):
                            pass


async def knows_of_quota(client: Client) -> bool:
    return (await client.admin.quota("shop")).quota.max_connections == 1


async def test_the_quota_of_topics_counts_those_that_have_moved_once(tmp_path: Path) -> None:
    async with shop(tmp_path, "/shop/t", "/shop/u") as (world, _):
        async with stranger(world, "/shop/t").client() as other:
            await other.admin.change_quota("shop", max_topics=3)
        for topic in ("/shop/t", "/shop/u"):
            await next_owner(world, topic)
        for number, machine in enumerate(world.machines):
            async with machine.client() as client:
                if number == 0:
                    await client.admin.create_topic("/shop/third")
                with pytest.raises(LimitExceededError, match="max_topics is 3"):
                    await client.admin.create_topic("/shop/fourth")
