"""Scenarios of applications with the official Python client alone, against this broker."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

import pytest
import trio
from official_client import Line, Official, Script

pytestmark = pytest.mark.timeout(300)

MIB = 1024 * 1024


def seen(count: int) -> object:
    """So many different texts have come."""
    return lambda script: len(script.distinct_texts) >= count


def settled(count: int) -> object:
    """So many messages were acknowledged, and the broker has said so."""
    return lambda script: len(script.distinct_acked) >= count


def texts(producer: str, count: int) -> list[str]:
    return [f"{producer}-{number}" for number in range(count)]


def by(field: str, messages: Iterable[Line]) -> dict[str, list[str]]:
    """Group the texts."""
    groups: dict[str, list[str]] = defaultdict(list)
    for message in messages:
        groups[message[field]].append(message["text"])
    return dict(groups)


def keyed(keys: Iterable[str], each: int) -> list[Line]:
    return [{"text": f"{key}/{number}", "key": key} for number in range(each) for key in keys]


async def together(count: int, *scripts: Script) -> None:
    """Wait until so many different texts have come to several processes."""
    while len(set().union(*(script.distinct_texts for script in scripts))) < count:  # noqa: ASYNC110 - no single event stands for both
        await trio.sleep(0.02)


async def test_reliable(official: Official) -> None:
    with trio.fail_after(30):
        async with (
            official.producing(
                messages=[{"text": f"n{i}", "attributes": {"number": str(i), "é": "ü"}} for i in range(20)]
            ) as producer,
            official.consuming() as consumer,
        ):
            await producer.go()
            assert await producer.done() == [f"n{i}" for i in range(20)]
            await consumer.until(settled(20))
            await consumer.stop()
    messages = consumer.messages
    assert consumer.texts == producer.sent
    assert [message["offset"] for message in messages] == list(range(20))
    assert [message["attributes"] for message in messages] == [{"number": str(i), "é": "ü"} for i in range(20)]
    sequences = [line["sequence"] for line in producer.with_field("sent")]
    assert [message["request_id"] for message in messages] == sequences
    assert {message["producer"] for message in messages} == {"p"}
    assert {message["topic"] for message in messages} == {official.topic}


async def test_non_reliable(official: Official) -> None:
    with trio.fail_after(30):
        async with (
            official.producing(reliable=False, endless=True, pause_s=0.01) as producer,
            official.consuming(type="SHARED") as consumer,
        ):
            await producer.go()
            await consumer.until(lambda script: len(script.texts) >= 20)  # all of them have the offset 0
            await producer.stop()
            await consumer.stop()
    assert {message["offset"] for message in consumer.messages} == {0}
    numbers = [int(text.removeprefix("p-")) for text in consumer.texts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_partitioned(official: Official) -> None:
    with trio.fail_after(30):
        async with (
            official.producing(partitions=3, messages=keyed(["a", "b", "c", "d", "e"], 6)) as keys,
            official.producing(partitions=3, producers=["q"], count=9) as rounds,
            official.consuming() as consumer,
        ):
            await keys.go()
            await keys.done()
            await rounds.go()
            await rounds.done()
            await consumer.until(seen(39))
            await consumer.stop()
    assert sorted(consumer.texts) == sorted(keys.sent + rounds.sent)
    with_key = [message for message in consumer.messages if message["key"]]
    for key, each in by("key", with_key).items():
        assert each == [f"{key}/{number}" for number in range(6)]
        assert len({message["topic"] for message in with_key if message["key"] == key}) == 1
    without = by("topic", (message for message in consumer.messages if message["key"] is None))
    assert {topic: len(each) for topic, each in without.items()} == {f"{official.topic}-part-{i}": 3 for i in range(3)}
    for message in consumer.messages:
        producer = "p" if message["key"] else "q"
        assert message["producer"] == f"{producer}-{message['topic'][-1]}"


async def test_acks_and_nacks(official: Official) -> None:
    """Refused messages come again, acknowledged ones do not, also to the same consumer in another process."""
    nack = {"p-3": 300, "p-7": 0}
    with trio.fail_after(40):
        async with official.producing(count=10) as producer:
            async with official.consuming(type="SHARED", nack=nack) as consumer:
                await producer.go()
                await producer.done()
                await consumer.until(settled(10))
                await consumer.stop()
            assert sorted(consumer.texts) == sorted([*texts("p", 10), *nack])
            assert len(consumer.with_field("nacked")) == 2
            async with official.producing(producers=["q"], count=5) as second:
                await second.go()
                await second.done()
            async with official.consuming(type="SHARED", ack=False) as careless:
                await careless.until(seen(5))
                await careless.stop()
            assert sorted(careless.texts) == texts("q", 5)
            async with official.consuming(type="SHARED") as again:
                await again.until(settled(5))
                await again.stop()
            assert sorted(again.texts) == texts("q", 5)


async def test_exclusive(official: Official) -> None:
    """A second name is refused while the first is there, and takes over when it has gone."""
    with trio.fail_after(30):
        async with official.producing(endless=True, pause_s=0.02) as producer:
            async with official.consuming(consumers=[{"name": "first"}]) as first:
                await producer.go()
                await first.until(seen(5))
                async with official.consuming(consumers=[{"name": "second"}]) as second:
                    (refusal,) = second.with_field("refused")
                    assert refusal["status"] == "PERMISSION_DENIED"
                    await first.until(seen(len(first.distinct_texts) + 5))
                await first.stop()
            async with official.consuming(consumers=[{"name": "second"}]) as second:
                await second.until(settled(5))
                await producer.stop()
                await second.until(lambda script: script.texts and script.texts[-1] == producer.sent[-1])
                await second.stop()
    assert first.texts == texts("p", len(first.texts))
    assert list(dict.fromkeys(first.texts + second.texts)) == producer.sent


async def test_shared(official: Official) -> None:
    with trio.fail_after(30):
        async with (
            official.producing(count=60, in_flight=4) as producer,
            official.consuming(type="SHARED", consumers=[{"name": "a"}, {"name": "b"}]) as both,
            official.consuming(type="SHARED", consumers=[{"name": "c"}]) as third,
        ):
            await producer.go()
            await producer.done()
            await together(60, both, third)
            await both.stop()
            await third.stop()
    shares = by("consumer", both.messages + third.messages)
    assert set(shares) == {"a", "b", "c"}
    assert sorted(text for share in shares.values() for text in share) == sorted(texts("p", 60))


async def test_failover(official: Official) -> None:
    """The second consumer gets nothing until the first is killed; then it gets what was not acknowledged, and all
    that follows.
    """
    with trio.fail_after(40):
        async with (
            official.producing(endless=True, pause_s=0.02) as producer,
            official.consuming(type="FAILOVER", consumers=[{"name": "a"}]) as first,
            official.consuming(type="FAILOVER", consumers=[{"name": "b"}]) as second,
        ):
            await producer.go()
            await first.until(seen(10))
            assert second.texts == []
            await first.kill()
            await second.until(seen(10))
            await producer.stop()
            await second.until(lambda script: script.texts[-1] == producer.sent[-1])
            await second.stop()
    assert list(dict.fromkeys(first.texts + second.texts)) == producer.sent
    overlap = {*first.texts} & {*second.texts}
    acknowledged = {line["text"] for line in first.messages if line["offset"] in first.acked}
    assert overlap.isdisjoint(acknowledged)


async def test_key_shared_with_filters(official: Official) -> None:
    keys = ["eu-1", "eu-2", "us-1", "us-22"]
    consumers = [{"name": "europe", "filters": ["eu-*"]}, {"name": "states", "filters": ["us-?", "us-22"]}]
    with trio.fail_after(30):
        async with (
            official.producing(messages=keyed(keys, 10)) as producer,
            official.consuming(type="KEY_SHARED", consumers=consumers) as both,
        ):
            await producer.go()
            await producer.done()
            await both.until(settled(40))
            await both.stop()
    for key, each in by("key", both.messages).items():
        assert each == [f"{key}/{number}" for number in range(10)]
        (consumer,) = {message["consumer"] for message in both.messages if message["key"] == key}
        assert consumer == ("europe" if key.startswith("eu") else "states")
    assert sorted(both.texts) == sorted(producer.sent)


async def test_key_shared_without_filters(official: Official) -> None:
    """Each key has one consumer at a time, and its order; many keys are spread over both."""
    keys = [f"key-{i}" for i in range(16)]
    with trio.fail_after(30):
        async with (
            official.producing(messages=keyed(keys, 5)) as producer,
            official.consuming(type="KEY_SHARED", consumers=[{"name": "a"}, {"name": "b"}]) as both,
        ):
            await producer.go()
            await producer.done()
            await both.until(settled(80))
            await both.stop()
    assert {message["consumer"] for message in both.messages} == {"a", "b"}
    assert by("key", both.messages) == {key: [f"{key}/{number}" for number in range(5)] for key in keys}


async def test_many_producers(official: Official) -> None:
    names = [f"producer-{i}" for i in range(40)]
    with trio.fail_after(40):
        async with (
            official.producing(producers=names[:20], count=10) as some,
            official.producing(producers=names[20:], count=10) as others,
            official.consuming(in_flight=8) as consumer,
        ):
            await some.go()
            await others.go()
            await some.done()
            await others.done()
            await consumer.until(settled(400))
            await consumer.stop()
    messages = consumer.messages
    assert by("producer", messages) == {name: texts(name, 10) for name in names}
    assert [message["offset"] for message in messages] == list(range(400))
    assert len({message["producer_id"] for message in messages}) == 40


def padded(text: str, size: int) -> tuple[int, str]:
    return size, hashlib.sha256(text.encode().ljust(size, b".")).hexdigest()


async def test_large_payloads(official: Official) -> None:
    sizes = [100_000] * 20 + [3_900_000] * 3
    with trio.fail_after(40):
        async with (
            official.producing(messages=[{"text": f"n{i}", "size": size} for i, size in enumerate(sizes)]) as producer,
            official.consuming() as consumer,
        ):
            await producer.go()
            await producer.done()
            await consumer.until(settled(23))
            await consumer.stop()
    got = [(message["size"], message["sha256"]) for message in consumer.messages]
    assert got == [padded(f"n{i}", size) for i, size in enumerate(sizes)]


async def test_too_large_payload(official: Official) -> None:
    """5 MB: the producer is told so, and is the only one who notices."""
    messages = [{"text": "before"}, {"text": "large", "size": 5 * MIB}, {"text": "after"}]

    def all_sent(script: Script) -> bool:
        return bool(script.with_field("done"))

    with trio.fail_after(40):
        async with (
            official.producing(messages=messages) as producer,
            official.producing(producers=["other"], endless=True, pause_s=0.01) as other,
            official.consuming() as consumer,
        ):
            await other.go()
            await other.until(lambda script: len(script.sent) > 5)
            await producer.go()
            await producer.until(all_sent)
            before = len(other.sent)
            await other.until(lambda script: len(script.sent) > before + 5)
            await other.stop()
            await consumer.until(settled(2 + len(other.sent)))
            await consumer.stop()
    (failure,) = producer.with_field("failed")
    assert failure["failed"] == "large"
    assert failure["status"] not in {"UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN", "INTERNAL", "CANCELLED"}
    assert "bytes" in failure["details"]
    assert producer.sent == ["before", "after"]
    assert other.sent == texts("other", len(other.sent))
    groups = by("producer", consumer.messages)
    assert groups == {"p": producer.sent, "other": other.sent}


@pytest.mark.parametrize("count", [10_000, pytest.param(50_000, marks=pytest.mark.long)])
async def test_backlog(official: Official, count: int) -> None:
    """A subscription without a consumer loses nothing, and its next consumer catches up."""
    with trio.fail_after(150):
        async with official.producing(count=count, in_flight=64, total_only=True) as producer:
            async with official.consuming() as consumer:
                await consumer.stop()
            await producer.go()
            await producer.done()
            assert producer.lines[-1] == {"done": count}
        async with official.consuming(in_flight=64) as consumer:
            await consumer.until(settled(count))
            await consumer.stop()
    assert [message["offset"] for message in consumer.messages] == list(range(count))
    assert sorted(consumer.texts) == sorted(texts("p", count))
