"""Delayed messages, and messages that outlive their topic's time to live."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RawConsumer, RawProducer, raw_consumer, raw_producer, running_broker, wait_until

import danube
from danube.model import api
from danube.model.batch import read_header

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"
TYPES = ("exclusive", "failover", "shared", "key_shared")


LATER_S = 1.0


def in_s(seconds: float) -> int:
    return round((time.time() + seconds) * 1e6)


async def offsets(consumer: RawConsumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        delivery = await consumer.reply_of(api.ConsumeBatch)
        size = read_header(delivery.part).record_count
        ranges = delivery.ranges or [delivery.base_offset, delivery.base_offset + size]
        assert delivery.attempt == 1
        found += [n for low, high in zip(ranges[::2], ranges[1::2], strict=True) for n in range(low, high)]
    return found


async def publish(producer: RawProducer) -> None:
    """Two messages that are due later, two that are due at once, one that was due long ago."""
    producer.send(0, b"a", b"b", deliver_at_us=in_s(LATER_S))
    producer.send(2, b"c", b"d")
    producer.send(4, b"e", deliver_at_us=in_s(-100))
    await producer.acked(3)


@pytest.mark.real("compares with the real wall clock")
@pytest.mark.parametrize("kind", TYPES)
async def test_later_messages_overtake_those_that_are_not_due(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        async with raw_producer(channel, TOPIC) as producer, raw_consumer(channel, TOPIC, kind=kind) as consumer:
            consumer.credit(100)
            began = trio.current_time()
            await publish(producer)
            assert await offsets(consumer, 3) == [2, 3, 4]
            consumer.send(api.Ack([2, 5]))
            await consumer.flush()
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (info.delayed_messages, info.in_flight_messages, info.floor) == (2, 0, 0)
            explanation = await client.admin.explain_subscription(TOPIC, "s")
            assert explanation.state == "waiting-for-delivery-time"
            assert await offsets(consumer, 2) == [0, 1]
            assert trio.current_time() - began >= LATER_S - 0.05
            consumer.send(api.Ack([0, 2]))
            await consumer.flush()
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (info.delayed_messages, info.floor) == (0, 5)


@pytest.mark.real("compares with the real wall clock")
async def test_a_restart_forgets_no_delivery_time(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        async with running.client() as client, running.channel() as channel:
            await client.admin.create_topic(TOPIC)
            async with raw_producer(channel, TOPIC) as producer, raw_consumer(channel, TOPIC) as consumer:
                began = time.time()
                producer.send(0, b"later", deliver_at_us=in_s(2.0))
                producer.send(1, b"now")
                await producer.acked(2)
                consumer.credit(100)
                assert await offsets(consumer, 1) == [1]
                consumer.send(api.Ack([1, 2]))
                await consumer.flush()
        await running.restart(crash=True)
        async with running.channel() as channel, raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(100)
            assert await offsets(consumer, 1) == [0]
            assert time.time() - began >= 1.95


async def test_a_consumer_that_connects_later_gets_messages_that_became_due_meanwhile(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        async with raw_producer(channel, TOPIC) as producer:
            async with raw_consumer(channel, TOPIC) as consumer:
                consumer.credit(100)
                await publish(producer)
                await offsets(consumer, 3)
            await trio.sleep(LATER_S + 0.1)
        async with raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(100)
            found = [(await consumer.reply_of(api.ConsumeBatch)).base_offset for _ in range(3)]
            assert sorted(found) == [0, 2, 4]


async def test_a_delayed_message_is_read_from_the_disk_when_it_is_due(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"cache_bytes": 20_000}) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"later", deliver_after_s=LATER_S)
            for _ in range(5):
                await producer.send(bytes(30_000))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            found = [await consumer.receive() for _ in range(6)]
        assert [message.offset for message in found] == [1, 2, 3, 4, 5, 0]
        assert found[-1].payload == b"later"
        assert found[-1].attempt == 1


async def test_a_key_waits_for_no_delayed_message(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"first", key="k", deliver_after_s=LATER_S)
            await producer.send(b"second", key="k")
        async with client.consumer(TOPIC, subscription="s", type="key_shared", start="earliest") as consumer:
            for expected in (b"second", b"first"):
                message = await consumer.receive()
                assert message.payload == expected
                await message.ack()


async def test_a_reader_sees_delayed_messages_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"later", deliver_after_s=60)
        async with client.reader(TOPIC, start="earliest") as reader:
            assert (await reader.receive()).payload == b"later"


# --- Time to live ---


async def test_expired_messages_are_settled_instead_of_delivered(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"old"] * 10)
            await trio.sleep(1.7)
            await client.admin.change_policies(TOPIC, message_ttl_s=1.5)
            await producer.send(b"new")
        async with raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(100)
            assert await offsets(consumer, 1) == [10]
            await consumer.flush()
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert info.expired_messages == info.floor >= 10
        await running.restart(crash=True)
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.floor >= 10


@pytest.mark.parametrize("kind", TYPES)
async def test_expiry_settles_delivered_messages_too(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        async with client.producer(TOPIC) as producer:
            for n in range(20):
                await producer.send(b"%d" % n, key=f"k{n}")
        async with raw_consumer(channel, TOPIC, kind=kind) as consumer:
            consumer.credit(10)
            assert await offsets(consumer, 10) == list(range(10))
            consumer.send(api.Ack([2, 4]))
            await consumer.flush()
            running.topic(TOPIC).subscriptions["s"].expire_below(15)
            await consumer.flush()
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (info.floor, info.expired_messages, info.in_flight_messages) == (15, 13, 0)
            consumer.credit(100)
            assert await offsets(consumer, 5) == list(range(15, 20))
            running.topic(TOPIC).subscriptions["s"].expire_below(3)  # long past
            consumer.send(api.Ack([15, 20]))
            await consumer.flush()
        await running.restart(crash=True)
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.floor == 20


async def test_a_ttl_ends_poison_that_blocks(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as running,
        running.client() as client,
        running.channel() as channel,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b"poison")
        async with raw_consumer(channel, TOPIC, policy={"max_redelivery_count": 0}) as consumer:
            consumer.credit(100)
            await offsets(consumer, 1)
            consumer.send(api.Nack([0, 1]))
            await consumer.flush()
            await client.admin.change_policies(TOPIC, message_ttl_s=0.2)
            await wait_until(lambda: _floor_is(client, 1))
            await client.admin.change_policies(TOPIC, message_ttl_s=60.0)
            await producer.send(b"next")
            assert await offsets(consumer, 1) == [1]


async def _floor_is(client: danube.Client, floor: int) -> bool:
    (info,) = await client.admin.describe_subscription(TOPIC, "s")
    return info.floor == floor
