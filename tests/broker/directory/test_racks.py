"""Brokers in racks: partitions are spread over racks first, and stay so through drains, deaths and balance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, cluster
from msgspec import structs

import danube
from danube.cluster.membership import Membership
from danube.model.ids import BrokerId

pytestmark = pytest.mark.virtual

RACKS = ("x", "y", "y", "y")


def member(world: ClusterWorld) -> Membership:
    return world.machines[-1].broker.directory.membership


def spread(world: ClusterWorld, topic: str) -> dict[BrokerId, int]:
    """Return how many partitions of a topic each broker owns, as the last broker sees it."""
    record = world.machines[-1].broker.directory.catalogue.find(topic)
    assert record is not None
    return Counter(owner for each in record.topic_ids if (owner := member(world).owner(each)) is not None)


def in_racks(world: ClusterWorld, topic: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for broker, count in spread(world, topic).items():
        counts[member(world).racks()[broker]] += count
    return counts


async def created(world: ClusterWorld, client: danube.Client, name: str, partitions: int, durability: str) -> None:
    await client.admin.create_topic(name, partitions=partitions, durability=durability)
    await wait_until(lambda: world.machines[-1].broker.directory.catalogue.find(name) is not None)
    await wait_until(lambda: sum(spread(world, name).values()) == max(1, partitions))


async def test_partitions_are_spread_over_racks_and_stay_so(tmp_path: Path) -> None:
    settings = {"balance": {"interval_s": 2.0, "rest_s": 10.0}, "cluster_secret": "file"}
    async with cluster(tmp_path, 4, patience_s=20_000, racks=RACKS, **settings) as world:
        async with world.machines[3].client() as client:
            await created(world, client, "/default/p", 6, "disk")
            await created(world, client, "/default/q", 6, "none")
            for topic in ("/default/p", "/default/q"):
                assert spread(world, topic) == {1: 3, 2: 1, 3: 1, 4: 1}
            # The balance would give topics of b1 to others, and leaves the partitions where they are.
            for number in range(40):
                await client.admin.create_topic(f"/default/t{number}")
            await trio.sleep(120)
            assert spread(world, "/default/p") == {1: 3, 2: 1, 3: 1, 4: 1}
            status = await client.admin.cluster_status()
            assert [row.rack for row in status.brokers] == list(RACKS)
            # A drained broker gives its partition to another one of its rack.
            await client.admin.drain_broker("b2")
            await wait_until(lambda: member(world).topics[BrokerId(2)] == 0)
            assert in_racks(world, "/default/p") == in_racks(world, "/default/q") == {"x": 3, "y": 3}
            await client.admin.activate_broker("b2")
        # What has no durability goes on elsewhere when a broker dies, in the same rack if that keeps the spread.
        before = spread(world, "/default/q")
        await world.machines[2].kill()
        await wait_until(lambda: BrokerId(3) not in spread(world, "/default/q"))
        assert in_racks(world, "/default/q") == {"x": 3, "y": 3}
        assert spread(world, "/default/q") != before
        assert spread(world, "/default/p")[BrokerId(3)] > 0, "its disk has them"


async def test_a_broker_says_its_rack_at_each_start(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, racks=("x", "")) as world:
        assert member(world).racks() == {1: "x"}
        first = world.machines[0]
        await first.drain()
        first.node.config = structs.replace(first.node.config, rack="z.1")
        await first.start()
        await wait_until(lambda: member(world).racks() == {1: "z.1"})


async def test_the_successor_of_a_dead_broker_keeps_remote_partitions_spread(tmp_path: Path) -> None:
    shared = {"storage": "memory://shared?durable=true&shared=true", "shared_buckets": True}
    settings = {"balance": {"enabled": False}, "cluster_secret": "file"} | shared
    async with cluster(tmp_path, 4, patience_s=20_000, racks=("x", "y", "x", "y"), **settings) as world:
        async with world.machines[0].client() as client:
            await created(world, client, "/default/p", 2, "remote")
            assert spread(world, "/default/p") == {1: 2}
            await client.admin.move_topic("/default/p-part-1", "b2")
            await wait_until(lambda: spread(world, "/default/p") == {1: 1, 2: 1})
        # Of the others, b4 has the fewest topics, but a partition is in its rack already.
        async with world.machines[2].client() as client:
            for number in range(3):
                await created(world, client, f"/default/r{number}", 0, "remote")
        await world.machines[0].kill()
        await wait_until(lambda: BrokerId(1) not in spread(world, "/default/p"))
        assert spread(world, "/default/p") == {2: 1, 3: 1}
