"""Readers: a topic from some place on, without a subscription."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RawConsumer, raw_consumer, raw_producer, running_broker, wait_until

import danube
from danube.model import api
from danube.model.batch import read_header
from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    TopicNotFoundError,
)
from danube.wire.client import Channel

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"


async def fill(client: danube.Client, count: int, first: int = 0) -> None:
    """Publish ``count`` numbers in batches of ten."""
    async with client.producer(TOPIC) as producer:
        for start in range(first, first + count, 10):
            await producer.send_many([b"%d" % n for n in range(start, start + 10)])


@asynccontextmanager
async def raw_reader(
    channel: Channel, start: str | int = "earliest", name: str = "", **fields: Any
) -> AsyncGenerator[RawConsumer, None]:
    async with raw_consumer(channel, TOPIC, "", name, start=start, reader=True, **fields) as reader:
        yield reader


async def offsets(reader: RawConsumer, until: int) -> list[int]:
    """Return the offsets that are delivered, up to the one before ``until``."""
    found: list[int] = []
    while not found or found[-1] < until - 1:
        delivery = await reader.reply_of(api.ConsumeBatch)
        count = read_header(delivery.part).record_count
        ranges = delivery.ranges or [delivery.base_offset, delivery.base_offset + count]
        assert delivery.attempt == 1
        found += [n for low, high in zip(ranges[::2], ranges[1::2], strict=True) for n in range(low, high)]
    return found


async def test_it_reads_from_any_place_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 50)
        for start, first in (("earliest", 0), (37, 37), (1_000, 50)):
            async with raw_reader(channel, start) as reader:
                assert (reader.opened.start_offset, reader.opened.end_offset, reader.opened.active) == (first, 50, True)
                assert reader.opened.ack_timeout_s == 0
                reader.credit(1_000)
                if first < 50:
                    assert await offsets(reader, 50) == list(range(first, 50))
                assert (await reader.reply_of(api.CaughtUp)).end_offset == 50
                await reader.flush()  # there is nothing to wait for
                assert (await client.admin.describe_topic(TOPIC)).readers == 1
        await wait_until(lambda: not running.topic(TOPIC).readers)
        info = await client.admin.describe_topic(TOPIC)
        assert (info.readers, info.subscriptions) == (0, [])


async def test_a_reader_continues_with_new_messages_and_obeys_its_credit(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_reader(channel, "latest") as reader:
            reader.credit(15)
            await fill(client, 40, first=10)
            assert await offsets(reader, 30) == list(range(10, 30))  # batches are whole
            with trio.move_on_after(0.05) as scope:
                await reader.reply_of(api.ConsumeBatch)
            assert scope.cancelled_caught
            reader.credit(100)
            assert await offsets(reader, 50) == list(range(30, 50))


async def test_readers_do_not_know_of_each_other(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 20)
        async with raw_reader(channel, name="same") as one, raw_reader(channel, 10, name="same") as two:
            one.credit(100)
            two.credit(100)
            assert await offsets(one, 20) == list(range(20))
            assert await offsets(two, 20) == list(range(10, 20))


async def test_it_reads_history(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"cache_bytes": 20_000}) as running, running.client() as client:
        await fill(client, 200)
        await client.admin.unload_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(bytes(30_000))
        async with running.channel() as channel, raw_reader(channel, 5) as reader:
            reader.credit(1_000)
            assert await offsets(reader, 201) == list(range(5, 201))


async def test_a_reader_skips_expired_messages(tmp_path: Path) -> None:
    limits = {"segment_bytes": 2_000, "segment_max_age_s": 0.05}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        await fill(client, 200)
        async with running.channel() as channel, raw_reader(channel, 0) as reader:
            await client.admin.unload_topic(TOPIC)
            await client.admin.change_policies(TOPIC, retention={"max_bytes": 1})
            await wait_until(lambda: _starts_later(client))
            await client.admin.change_policies(TOPIC, retention=None)
            await fill(client, 10, first=200)
        async with running.channel() as channel, raw_reader(channel, 0) as reader:
            start = reader.opened.start_offset
            assert start > 0
            reader.credit(1_000)
            assert await offsets(reader, 210) == list(range(start, 210))


async def _starts_later(client: danube.Client) -> bool:
    return (await client.admin.describe_topic(TOPIC)).start_offset > 0


async def test_on_a_topic_without_durability_a_reader_gets_the_messages_that_it_has_credit_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC, durability="none")
        async with raw_producer(channel, TOPIC) as producer, raw_reader(channel) as reader:
            producer.send(0, b"a", b"b")
            await producer.acked()
            reader.credit(1)
            await reader.flush()
            producer.send(2, b"c", b"d")
            producer.send(4, b"e")
            await producer.acked(2)
            assert await offsets(reader, 4) == [2, 3]
            reader.credit(10)
            await reader.flush()
            producer.send(5, b"f")
            gap = await reader.reply_of(api.Gap)
            assert (gap.start, gap.end) == (4, 5)
            assert await offsets(reader, 6) == [5]


@pytest.mark.parametrize(
    "request_",
    [api.Ack([0, 1]), api.AckCumulative(3), api.Nack([0, 1]), api.ExtendLease([0, 1])],
    ids=lambda request: type(request).__name__,
)
async def test_it_acknowledges_nothing(tmp_path: Path, request_: Any) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_reader(channel) as reader:
            reader.send(request_)
            with pytest.raises(FailedPreconditionError, match="no subscription"):
                await reader.reply_of(api.AcksFlushed)


async def test_refusals(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"max_readers_per_topic": 1}) as running:
        async with running.channel() as channel:
            with pytest.raises(TopicNotFoundError):
                async with raw_reader(channel):
                    pass
        async with running.client() as client, running.channel() as channel:
            await client.admin.create_topic(TOPIC)
            with pytest.raises(InvalidArgumentError, match="not valid"):
                async with raw_reader(channel, "soon"):
                    pass
            with pytest.raises(InvalidArgumentError, match="key filters"):
                async with raw_reader(channel, key_filters=["a*"]):
                    pass
            async with raw_reader(channel):
                with pytest.raises(LimitExceededError, match="max_readers_per_topic = 1"):
                    async with raw_reader(channel):
                        pass


async def test_it_ends_with_its_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_reader(channel) as reader:
            await client.admin.delete_topic(TOPIC)
            with pytest.raises(TopicNotFoundError):
                await reader.reply_of(api.CaughtUp)


async def test_a_stuck_reader_stops_no_other_client(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_reader(channel), client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            await fill(client, 40, first=10)
            for n in range(50):
                message = await consumer.receive()
                assert message.payload == b"%d" % n
                await message.ack()
            await consumer.flush_acks()
