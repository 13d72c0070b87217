"""Several brokers on one metadata store seal into one bucket, and commit to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.directory.cluster_harness import cluster

from danube.history import brokers_with_commits, read_bucket

pytestmark = pytest.mark.virtual


async def test_brokers_share_a_bucket(tmp_path: Path) -> None:
    url = "memory://shared-by-brokers?durable=true"
    async with cluster(tmp_path, 2, storage=url, shared_buckets=True) as world:
        for number in range(4):  # topics of durability remote belong to the broker that is asked for them
            async with world.machines[number % 2].client() as client:
                for durability in ("disk", "remote"):
                    topic = f"/default/{durability}{number}"
                    await client.admin.create_topic(topic, durability=durability)
                    async with client.producer(topic) as producer:
                        await producer.send(b"%d" % number)
        brokers = [machine.broker for machine in world.machines]
        topics = [list(broker.directory.topics()) for broker in brokers]
        assert all(topics)
        for broker, own in zip(brokers, topics, strict=True):
            await broker.directory.history.seal_now(own)
            await broker.directory.history.keep()
        storage = brokers[0].directory.history.storages["default"]
        assert await brokers_with_commits(storage, "danube") == {"b1", "b2"}
        bucket = await read_bucket(storage, "danube")
        assert set(bucket.parts) == {topic.topic_id for own in topics for topic in own}
        assert set(bucket.epochs) == {"b1", "b2"}
        assert all(machine.node.life is not None for machine in world.machines), "no broker was fenced"
