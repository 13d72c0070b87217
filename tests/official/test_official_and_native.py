"""Official and native clients share a topic: each receives the other's messages unchanged."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
import trio
from official_client import Line, Official

import danube
from danube.client import Message

pytestmark = pytest.mark.timeout(300)

COUNT = 30
MESSAGES: list[Line] = [
    {"text": f"n{i}"}
    | ({"key": f"key-{i % 3}"} if i % 2 else {})
    | ({"attributes": {"number": str(i), "Größe": "klein"}} if i % 5 else {})
    for i in range(COUNT)
]


def of_official(lines: Iterable[Line]) -> list[tuple[Any, ...]]:
    """What an official consumer has seen, in the order of the offsets."""
    fields = ("offset", "text", "key", "attributes", "publish_time", "producer", "topic")
    return sorted(tuple(line[field] for field in fields) for line in lines)


def of_native(messages: Iterable[Message]) -> list[tuple[Any, ...]]:
    """The same of a native one; an official client cannot tell no attributes from none."""
    return sorted(
        (
            message.offset,
            message.payload.decode(),
            message.key,
            message.attributes or {},
            message.publish_time_us // 1000,
            message.producer,
            message.topic,
        )
        for message in messages
    )


async def replayed(client: danube.Client, topic: str, subscription: str, count: int) -> list[Message]:
    """Consume a topic from its beginning."""
    async with client.consumer(topic, subscription=subscription, start="earliest") as consumer:
        messages = [await consumer.receive() for _ in range(count)]
        for message in messages:
            await message.ack()
        await consumer.flush_acks()
    return messages


async def test_an_official_producer_and_both_consumers(official: Official) -> None:
    """Its messages come alone and in composite batches, and look the same either way, also when sealed."""
    before_ms = int(time.time() * 1000)
    with trio.fail_after(40):
        async with (
            official.producing(messages=MESSAGES) as alone,
            official.producing(producers=["a", "b", "c"], count=40, in_flight=16) as together,
            official.consuming(in_flight=8) as consumer,
            danube.connect(official.broker.url) as client,
        ):
            await alone.go()
            await alone.done()
            await together.go()
            await together.done()
            total = COUNT + 120
            await consumer.until(lambda script: len(script.distinct_acked) == total)
            await consumer.stop()
            native = await replayed(client, official.topic, "live", total)
            (sealed,) = await client.admin.seal_topic(official.topic)
            assert sealed.sealed_offset == total
            again = await replayed(client, official.topic, "sealed", total)
    after_ms = int(time.time() * 1000)
    seen = of_native(native)
    assert of_native(again) == seen == of_official(consumer.messages)
    assert [message[0] for message in seen] == list(range(total))
    assert [message[1:4] for message in seen[:COUNT]] == [
        (message["text"], message.get("key"), message.get("attributes", {})) for message in MESSAGES
    ]
    assert {message[5] for message in seen[:COUNT]} == {"p"}
    assert all(before_ms <= message[4] <= after_ms for message in seen)
    for name in "abc":
        assert sorted(message[1] for message in seen if message[5] == name) == sorted(f"{name}-{i}" for i in range(40))


async def test_a_native_producer_and_both_consumers(official: Official) -> None:
    """Its batches come message by message, and its sequences as request ids."""
    before_ms = int(time.time() * 1000)
    with trio.fail_after(40):
        async with danube.connect(official.broker.url) as client:
            await client.admin.create_topic(official.topic)
            async with official.consuming(in_flight=8) as consumer:
                async with client.producer(official.topic, name="native") as producer:
                    pending = [
                        producer.send_nowait(
                            message["text"].encode(), key=message.get("key"), attributes=message.get("attributes")
                        )
                        for message in MESSAGES
                    ]
                    receipts = [await each for each in pending]
                    await producer.send_many([f"m{i}".encode() for i in range(100)])
                total = COUNT + 100
                await consumer.until(lambda script: len(script.distinct_acked) == total)
                await consumer.stop()
            native = await replayed(client, official.topic, "native", total)
            (described,) = await client.admin.describe_subscription(official.topic, "s")
            assert described.floor == described.end_offset == total
    after_ms = int(time.time() * 1000)
    seen = of_official(consumer.messages)
    assert seen == of_native(native)
    assert [message[0] for message in seen[:COUNT]] == [receipt.offset for receipt in receipts] == list(range(COUNT))
    assert [message[1:4] for message in seen[:COUNT]] == [
        (message["text"], message.get("key"), message.get("attributes", {})) for message in MESSAGES
    ]
    assert {message[5] for message in seen} == {"native"}
    assert all(before_ms <= message[4] <= after_ms for message in seen)
    requests = [line["request_id"] for line in sorted(consumer.messages, key=lambda line: line["offset"])]
    assert requests == list(range(requests[0], requests[0] + total))


async def test_both_producers_and_both_consumers_at_once(official: Official) -> None:
    """In one shared subscription, consumers of both kinds divide the messages of producers of both kinds."""
    total = 200
    seen: list[str] = []
    with trio.fail_after(40):
        async with (
            official.producing(count=100, pause_s=0.005) as theirs,
            official.consuming(type="SHARED") as consumer,
            danube.connect(official.broker.url) as client,
            client.consumer(official.topic, subscription="s", type="shared") as ours,
            client.producer(official.topic, name="native") as producer,
            trio.open_nursery() as nursery,
        ):

            async def consume() -> None:
                async for message in ours:
                    seen.append(message.payload.decode())
                    await message.ack()

            nursery.start_soon(consume)
            await theirs.go()
            for number in range(100):
                await producer.send(f"native-{number}".encode())
            await theirs.done()
            while len(consumer.distinct_texts.union(seen)) < total:  # noqa: ASYNC110 - no single event stands for both
                await trio.sleep(0.02)
            await consumer.stop()
            nursery.cancel_scope.cancel()
    assert seen
    assert consumer.texts
    assert sorted(seen + consumer.texts) == sorted(
        [f"p-{number}" for number in range(100)] + [f"native-{number}" for number in range(100)]
    )


async def test_an_official_backlog_that_was_sealed(official: Official) -> None:
    """An official consumer that comes back reads on, whether the messages are in the journal or in the storage."""
    with trio.fail_after(40):
        async with official.producing(messages=MESSAGES) as producer, danube.connect(official.broker.url) as client:
            async with official.consuming() as consumer:
                await consumer.stop()
            await producer.go()
            await producer.done()
            (unloaded,) = await client.admin.unload_topic(official.topic)
            assert unloaded.sealed_offset == COUNT
            async with official.consuming() as consumer:
                await consumer.until(lambda script: len(script.distinct_acked) == COUNT)
                await consumer.stop()
    assert consumer.texts == [message["text"] for message in MESSAGES]
    assert [line["offset"] for line in consumer.messages] == list(range(COUNT))
