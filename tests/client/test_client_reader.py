"""Readers against a small broker."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
import trio
import trio.testing
from fake_broker import FakeBroker, memory_client

from danube.client import Batch, Reader, _consume_stream
from danube.model import api
from danube.model.batch import check_part, encode_part
from danube.model.errors import (
    ClosedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    TopicNotFoundError,
)
from danube.model.policies import Durability

Clock = trio.testing.MockClock
TOPIC = "/default/orders"


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def store(broker: FakeBroker, *counts: int, topic: str = TOPIC) -> None:
    for count in counts:
        payloads = [b"x"] * count
        part = encode_part(payloads, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1)
        broker.topic(topic).append(part, check_part(part), "maker")


async def offsets(reader: Reader, count: int) -> list[int]:
    return [(await reader.receive()).offset for _ in range(count)]


async def test_a_reader_reads_and_leaves_nothing_behind(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10, 5)
    async with memory_client(broker) as client:
        async with client.reader(TOPIC, start="earliest", name="looking") as reader:
            assert (reader.position, reader.caught_up) == ({0: 0}, False)
            assert await offsets(reader, 3) == [0, 1, 2]
            assert reader.position == {0: 3}
            assert list((await reader.receive_batch()).offsets) == list(range(10, 15)), "what is open stays open"
            assert reader.position == {0: 3}
            assert await offsets(reader, 7) == list(range(3, 10))
            assert reader.position == {0: 15}
            assert [batch async for batch in reader.batches(until_caught_up=True)] == []
            await reader.wait_caught_up()
            store(broker, 2)
            async for message in reader:
                assert message.offset == 15
                break
            assert reader.position == {0: 16}
        with pytest.raises(ClosedError, match="the reader on /default/orders is closed"):
            await reader.receive_batch()
    (opened,) = broker.opens
    assert isinstance(opened, api.ConsumeOpen)
    assert (opened.reader, opened.subscription, opened.consumer_name) == (True, "", "looking")
    assert broker.topic(TOPIC).subscriptions == {}


async def test_messages_of_a_reader_have_no_acknowledgement(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10, 5)
    async with memory_client(broker) as client, client.reader(TOPIC, start="earliest") as reader:
        message, batch = await reader.receive(), await reader.receive_batch()
        calls: list[Any] = [message.ack, message.nack, message.extend_lease, batch.ack, batch.nack, batch.extend_lease]
        for call in calls:
            with pytest.raises(FailedPreconditionError, match=r"use client\.consumer\(\)"):
                await call()
        with pytest.raises(FailedPreconditionError, match="neither acknowledged"):
            message.ack_nowait()


@pytest.mark.parametrize("start", ["earliest", 3])
async def test_a_reconnect_makes_no_gap_and_no_repeat(
    broker: FakeBroker, autojump_clock: Clock, start: str | int
) -> None:
    async with memory_client(broker) as client:
        store(broker, *[10] * 20)
        async with client.reader(TOPIC, start=start, credit_messages=40) as reader:
            seen: list[int] = []
            while len(seen) < 190:
                seen += await offsets(reader, 7)
                assert reader.position == {0: seen[-1] + 1}
                if len(seen) % 21 == 0:
                    await broker.cut()
                    assert reader.position == {0: seen[-1] + 1}
                    if len(seen) % 2:
                        await trio.sleep(1)
    first = 3 if start == 3 else 0
    assert seen == list(range(first, first + len(seen)))


async def test_a_reader_that_has_seen_nothing_yet_keeps_its_place(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10)
    async with memory_client(broker) as client, client.reader(TOPIC) as reader:
        assert (reader.position, reader.caught_up) == ({0: 10}, True)
        await broker.cut()
        store(broker, 5)
        assert await offsets(reader, 5) == [10, 11, 12, 13, 14]


async def test_a_former_owner_does_not_set_a_reader_back(broker: FakeBroker, autojump_clock: Clock) -> None:
    """It lacked what its successor had delivered: the reader went back to its end, and got the rest once more."""
    store(broker, *[10] * 4)
    broker.owner_epoch = 2
    batches = broker.topic(TOPIC).batches
    async with memory_client(broker) as client, client.reader(TOPIC, start="earliest") as reader:
        assert await offsets(reader, 35) == list(range(35))
        broker.owner_epoch, kept = 1, batches[2:]
        del batches[2:]
        await broker.cut()
        await trio.sleep(3)
        assert reader.position == {0: 35}
        broker.owner_epoch = 3
        batches += kept
        store(broker, 10)
        assert await offsets(reader, 15) == list(range(35, 50))


async def test_an_owner_that_lost_its_newest_messages_is_believed(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, *[10] * 4)
    batches = broker.topic(TOPIC).batches
    async with memory_client(broker) as client, client.reader(TOPIC, start="earliest") as reader:
        assert await offsets(reader, 40) == list(range(40))
        broker.owner_epoch = 2
        del batches[2:]
        await broker.cut()
        await trio.sleep(3)
        store(broker, 10)
        assert await offsets(reader, 10) == list(range(20, 30))


async def test_a_reader_of_a_topic_without_durability_continues_with_new_messages(
    broker: FakeBroker, autojump_clock: Clock
) -> None:
    broker.topic(TOPIC).durability = Durability.NONE
    store(broker, 10)
    async with memory_client(broker) as client, client.reader(TOPIC, start="earliest") as reader:
        await trio.sleep(1)
        await broker.cut()
        store(broker, 5)
        await trio.sleep(1)
        store(broker, 2)
        assert await offsets(reader, 12) == [*range(10), 15, 16]


async def test_seeking(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, *[10] * 5)
    async with memory_client(broker) as client, client.reader(TOPIC, start="earliest") as reader:
        assert await offsets(reader, 15) == list(range(15))
        await reader.seek(32)
        assert reader.position == {0: 32}
        assert await offsets(reader, 18) == list(range(32, 50))
        await reader.seek("earliest")
        assert (reader.position, reader.caught_up) == ({0: 0}, False)
        assert sum([len(batch) async for batch in reader.batches(until_caught_up=True)]) == 50
        await reader.seek("latest")
        assert (reader.position, reader.caught_up) == ({0: 50}, True)
        with trio.move_on_after(1) as scope:
            await reader.receive()
        assert scope.cancelled_caught
        with pytest.raises(InvalidArgumentError):
            await reader.seek("yesterday")


async def test_seeking_while_receiving_and_while_disconnected(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, *[10] * 5)
    async with memory_client(broker) as client, client.reader(TOPIC) as reader, trio.open_nursery() as nursery:
        seen: list[int] = []

        async def receive() -> None:
            while True:
                seen.append((await reader.receive()).offset)

        nursery.start_soon(receive)
        await trio.sleep(1)
        for place in (48, 49, 47):
            await reader.seek(place)
            await trio.sleep(1)
        await broker.cut()
        with trio.move_on_after(0) as scope:
            await reader.seek(46)
        assert scope.cancelled_caught
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert seen == [48, 49, 49, 47, 48, 49, 46, 47, 48, 49]


async def test_seeking_when_the_broker_has_just_answered_a_reconnect(
    broker: FakeBroker, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(broker, *[10] * 5)
    receive_reply, armed = _consume_stream.receive_reply, False

    async def received(*args: Any) -> Any:
        nonlocal armed
        reply = await receive_reply(*args)
        if armed and isinstance(reply, api.ConsumeOpened):
            # The answer is here, and the task that waits for it has not run yet: too late for the cancellation.
            armed = False
            reader._feeds[0].seek(32, 0)  # what seek() does before it waits
        return reply

    monkeypatch.setattr(_consume_stream, "receive_reply", received)
    async with memory_client(broker) as client, client.reader(TOPIC, start="earliest") as reader:
        assert await offsets(reader, 15) == list(range(15))
        armed = True
        await broker.cut()
        await trio.sleep(1)
        assert reader.position == {0: 32}
        assert await offsets(reader, 18) == list(range(32, 50))


async def test_partitions_have_places_of_their_own(broker: FakeBroker, autojump_clock: Clock) -> None:
    broker.partitioned[TOPIC] = 3
    for index in range(3):
        store(broker, 10, topic=f"{TOPIC}-part-{index}")
    async with memory_client(broker) as client:
        async with client.reader(TOPIC, start={0: 4, 2: "latest"}) as reader:
            await trio.sleep(1)
            assert reader.position == {0: 4, 1: 0, 2: 10}
            found = [(message.partition, message.offset) for message in [await reader.receive() for _ in range(10)]]
            assert sorted(found) == sorted([(0, n) for n in range(4, 10)] + [(1, n) for n in range(10)])[: len(found)]
            kept = reader.position
        async with client.reader(TOPIC, start=kept) as reader:
            rest = [batch async for batch in reader.batches(until_caught_up=True)]
            assert sum(map(len, rest)) == 16 - len(found)
            assert all(isinstance(batch, Batch) for batch in rest)
            await reader.seek({1: 9})
            assert reader.position == {0: 0, 1: 9, 2: 0}
        for wrong in ({3: 0}, {"0": 1}, {0: "soon"}, {0: -1}):
            with pytest.raises(InvalidArgumentError):
                async with client.reader(TOPIC, start=wrong):  # type: ignore[arg-type]
                    pytest.fail("must not open")


async def test_damage_is_told_and_passed(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10, 10)
    broker.corrupt = lambda stored: stored.base_offset == 0
    async with memory_client(broker) as client, client.reader(TOPIC, start="earliest") as reader:
        with pytest.raises(DataLossError, match=r"The reader goes on behind them"):
            await reader.receive()
        assert reader.position == {0: 10}
        assert await offsets(reader, 1) == [10]


async def test_invalid_readers_are_refused(broker: FakeBroker, autojump_clock: Clock) -> None:
    async with memory_client(broker) as client:
        broker.open_errors = [TopicNotFoundError("no such topic")]
        with pytest.raises(TopicNotFoundError):
            async with client.reader(TOPIC, start="earliest"):
                pytest.fail("must not open")
        for wrong in ({"start": "soon"}, {"start": -1}, {"start": datetime(2020, 1, 1)}, {"credit_bytes": 0}):
            with pytest.raises(InvalidArgumentError):
                async with client.reader(TOPIC, **wrong):  # type: ignore[arg-type]
                    pytest.fail("must not open")
        async with client.reader(TOPIC) as reader:
            broker.open_errors = [TopicNotFoundError("it was deleted")]
            await broker.cut()
            with pytest.raises(TopicNotFoundError, match="deleted"):
                await reader.receive()
            with pytest.raises(TopicNotFoundError, match="deleted"):
                await reader.seek(0)
