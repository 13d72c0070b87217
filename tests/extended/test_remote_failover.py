"""kill -9 of the owner of topics of durability ``remote``: its clients go on at another broker, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from cluster_processes import Cluster

import danube

pytestmark = [pytest.mark.extended, pytest.mark.slow]

TOPICS = [f"/default/t{number}" for number in range(20)]


async def test_the_topics_of_a_killed_broker_go_on_at_another(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for broker in cluster.brokers:
        broker.options = (*broker.options, "--storage", f"disk://{tmp_path}/shared?shared=true")
    with cluster:
        await cluster.settle([])
        victim = cluster.others(await cluster.leader())[0]
        async with danube.connect(victim.url) as client:
            for topic in TOPICS:
                await client.admin.create_topic(topic, durability="remote")
        acknowledged = dict.fromkeys(TOPICS, 0)
        async with danube.connect(cluster.url(cluster.others(victim))) as client:

            async def publish(topic: str, until: int) -> None:
                async with client.producer(topic, name="p") as producer:
                    for number in range(acknowledged[topic], until):
                        await producer.send(b"%d" % number)
                        acknowledged[topic] += 1

            async def publish_all(until: int) -> None:
                async with trio.open_nursery() as nursery:
                    for topic in TOPICS:
                        nursery.start_soon(publish, topic, until)

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(publish_all, 40)
                    while min(acknowledged.values()) < 10:  # noqa: ASYNC110 - other processes
                        await trio.sleep(0.02)
                    victim.kill()
                for topic in TOPICS:
                    found: list[bytes] = []
                    async with client.reader(topic, start="earliest") as reader:
                        while len(found) < 40:
                            found += (await reader.receive_batch()).payloads()
                    assert found == [b"%d" % number for number in range(40)]
                owners = await cluster.owners(client, TOPICS)
                assert len(set(owners.values())) == 1, "all are in one wal"
                assert cluster.address(victim) not in owners.values()
                await self_check(victim, TOPICS)


async def self_check(victim: BrokerProcess, topics: list[str]) -> None:
    """The killed broker comes back: it serves nothing that it has lost, and finds the new owner."""
    victim.start()
    async with danube.connect(victim.url) as client:
        async with client.producer(topics[0], name="again") as producer:
            await producer.send(b"40")
        await client.admin.create_topic("/default/new", durability="remote")
        async with client.producer("/default/new") as producer:
            await producer.send(b"x")
