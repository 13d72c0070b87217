"""Subscriptions that are created before their first consumer."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from broker.broker_harness import running_broker

from danube.model.errors import InvalidArgumentError, SubscriptionTypeMismatchError, TopicNotFoundError

TOPIC = "/default/orders"


async def test_messages_wait_for_the_first_consumer_across_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, partitions=3)
        rows = await client.admin.create_subscription(TOPIC, "billing", type="shared")
        assert [row.topic for row in rows] == [f"{TOPIC}-part-{number}" for number in range(3)]
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(30)], keys=[str(n) for n in range(30)])
        assert await client.admin.create_subscription(TOPIC, "billing", type="shared", start="latest")
    async with running_broker(tmp_path) as running, running.client() as client:
        rows = await client.admin.describe_subscription(TOPIC, "billing")
        assert sum(row.backlog_messages for row in rows) == 30
        async with client.consumer(TOPIC, subscription="billing", type="shared") as consumer:
            found = set()
            while len(found) < 30:
                for message in await consumer.receive_batch():
                    found.add(message.payload)
                    await message.ack()
        assert found == {b"%d" % number for number in range(30)}


async def test_it_starts_where_the_caller_says(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 10)
        starts = {"earliest": 10, "latest": 0, 4: 6, datetime(2000, 1, 1, tzinfo=UTC): 10}
        for number, (start, backlog) in enumerate(starts.items()):
            (row,) = await client.admin.create_subscription(TOPIC, f"s{number}", start=start)
            assert (row.backlog_messages, row.type.value) == (backlog, "exclusive")


async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        with pytest.raises(TopicNotFoundError):
            await client.admin.create_subscription(TOPIC, "billing")
        await client.admin.create_topic(TOPIC)
        await client.admin.create_subscription(TOPIC, "billing")
        with pytest.raises(SubscriptionTypeMismatchError, match="its type is fixed"):
            await client.admin.create_subscription(TOPIC, "billing", type="shared")
        with pytest.raises(InvalidArgumentError, match="type 'odd' is unknown"):
            await client.admin.create_subscription(TOPIC, "billing", type="odd")
