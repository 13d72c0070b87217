"""Three real brokers are drained and activated, one by one, while clients publish and consume; once with restarts."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from cluster_processes import PATIENCE_S, Cluster, Load, report

import danube
from danube.client import Client

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

_TOPICS = [f"/default/t{number}" for number in range(6)]
_UNDISTURBED_S = 3.0
_BATCH = [b"x" * 100] * 1_000


async def name_of(client: Client, address: str) -> str:
    rows = (await client.admin.cluster_status(gather=False)).brokers
    return next(row.name for row in rows if row.address == address)


async def drain(cluster: Cluster, client: Client, broker: BrokerProcess) -> str:
    """Drain a broker, wait until it has no topics any more, and return its name."""
    address = cluster.address(broker)
    name = await name_of(client, address)
    await client.admin.drain_broker(name)
    with trio.move_on_after(PATIENCE_S):
        while address in (await cluster.owners(client, _TOPICS)).values():  # noqa: ASYNC110 - processes
            await trio.sleep(0.05)
        return name
    raise AssertionError(f"{await client.admin.drain_broker(name, dry_run=True)}\n{cluster.logs()}")


async def restart(cluster: Cluster, client: Client, broker: BrokerProcess) -> None:
    name = await drain(cluster, client, broker)
    await trio.to_thread.run_sync(broker.terminate)
    await trio.to_thread.run_sync(broker.start)
    await client.admin.activate_broker(name)
    await cluster.settle([])


async def test_no_client_notices_a_rolling_restart(tmp_path: Path) -> None:
    """A topic that was without an owner for ten seconds would end its producer and its consumer with an error."""
    with Cluster(tmp_path) as cluster, trio.fail_after(200):
        async with (
            danube.connect(cluster.url()) as operator,
            danube.connect(cluster.url(), reconnect_timeout_s=10.0) as client,
        ):
            load = Load(client, _TOPICS, random.Random(5))
            await load.create()
            await cluster.settle(_TOPICS)
            async with load.running():
                await trio.sleep(_UNDISTURBED_S)
                before, began = acknowledged_by(load), time.monotonic()
                for broker in cluster.brokers:
                    await restart(cluster, operator, broker)
                rate = (acknowledged_by(load) - before) / (time.monotonic() - began)
            await load.check()
            share = rate / (before / _UNDISTURBED_S)
            report(f"{rate:.0f} messages/s during the restarts, {share:.0%} of undisturbed; {load.repeated} repeated")


def acknowledged_by(load: Load) -> int:
    """Return how many messages were acknowledged so far."""
    return sum(len(ledger.acknowledged) for ledger in load.ledgers.values())


async def test_brokers_that_are_saturated_are_drained(tmp_path: Path) -> None:
    """Topics have sealed history before the first drain: it has to be in a storage that the brokers share."""
    cluster = Cluster(tmp_path)
    for broker in cluster.brokers:
        broker.options = (*broker.options, "--storage", f"disk://{tmp_path}/shared?shared=true")
    acknowledged = dict.fromkeys(_TOPICS, 0)
    ended = trio.Event()

    async def publish(client: Client, topic: str) -> None:
        async with client.producer(topic, name="p") as producer:
            while not ended.is_set():
                await producer.send_many(_BATCH)
                acknowledged[topic] += len(_BATCH)

    with cluster, trio.fail_after(200):
        async with (
            danube.connect(cluster.url()) as operator,
            danube.connect(cluster.url(), reconnect_timeout_s=10.0) as client,
        ):
            for topic in _TOPICS:
                await operator.admin.create_topic(topic)
            await cluster.settle(_TOPICS)
            async with trio.open_nursery() as producers:
                for topic in _TOPICS:
                    producers.start_soon(publish, client, topic)
                while not await all_sealed(operator):  # noqa: ASYNC110 - processes
                    await trio.sleep(0.2)
                for broker in cluster.brokers:
                    began = time.monotonic()
                    name = await drain(cluster, operator, broker)
                    report(f"{name} was drained in {time.monotonic() - began:.2f} s")
                    await operator.admin.activate_broker(name)
                ended.set()
            stored = {topic: (await operator.admin.describe_topic(topic)).end_offset for topic in _TOPICS}
    assert stored == acknowledged


async def all_sealed(client: Client) -> bool:
    """Whether all topics have history in their storage."""
    return all([(await client.admin.describe_topic(topic)).sealed_offset > 0 for topic in _TOPICS])
