"""A declared gap is filled while its topic is consumed: none of it is acknowledged, and no confirmed ack is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import raw_consumer, running_broker, wait_until

from danube.model import api
from danube.model.errors import DataLossError
from danube.model.ids import Offset

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"
KINDS = ["exclusive", "failover", "shared", "key_shared"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other_hole", [False, True], ids=["the-only-gap", "another-gap"])
async def test_a_read_from_before_the_gap_was_filled_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, other_hole: bool
) -> None:
    """It found the messages behind the gap, and the filled ones were taken for expired: acknowledged, and lost."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            for number in range(10):
                await producer.send(b"%d" % number, key=b"k")
        topic = running.topic(TOPIC)
        read, reading, filled = topic.kept.read, trio.Event(), trio.Event()

        async def slow(offset: Any, size: int) -> Any:
            if filled.is_set():
                return await read(offset, size)
            found = await read(6, size)  # the lookup is done, and the gap is [0, 6)
            reading.set()
            await filled.wait()
            return found

        monkeypatch.setattr(topic.kept, "get_cached", lambda offset: None)
        monkeypatch.setattr(topic.kept, "read", slow)
        async with client.consumer(TOPIC, subscription="s", type=kind, start="earliest") as consumer:
            await reading.wait()
            subscription = topic.subscriptions["s"]
            holes = [(1_000, 2_000)] if other_hole else []
            subscription.cursor.holes = [(0, 6), *holes]
            subscription.holes_changed(holes, [], True)
            filled.set()
            with trio.fail_after(30):
                found = [(await consumer.receive()).payload for _ in range(10)]
            assert found == [b"%d" % number for number in range(10)]
            assert subscription.cursor.floor == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_read_from_before_a_seek_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It found the messages behind an open gap: all that the seek had gone back to was passed over with the gap."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            for number in range(10):
                await producer.send(b"%d" % number, key=b"k")
        topic = running.topic(TOPIC)
        read, reading, moved = topic.kept.read, trio.Event(), trio.Event()

        async def slow(offset: Any, size: int) -> Any:  # the gap is [4, 6)
            if offset < 4:
                return [batch for batch in await read(offset, size) if batch.end_offset <= 4]
            found = await read(max(offset, 6), size)
            if not moved.is_set():
                reading.set()
                await moved.wait()
            return found

        monkeypatch.setattr(topic.kept, "get_cached", lambda offset: None)
        monkeypatch.setattr(topic.kept, "read", slow)
        async with client.consumer(TOPIC, subscription="s", type=kind, start="earliest") as consumer:
            topic.subscriptions["s"].cursor.holes = [(4, 6)]
            for _ in range(4):
                await consumer.receive()
            await reading.wait()
            await topic.subscriptions["s"].seek(Offset(0))
            moved.set()
            with trio.fail_after(30):
                found = [(await consumer.receive()).payload for _ in range(8)]
            assert found == [b"%d" % number for number in (0, 1, 2, 3, 6, 7, 8, 9)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_gap_that_is_filled_before_a_seek_is_durable_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The reading goes on meanwhile, and had passed over the gap: it stayed passed over."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            for number in range(10):
                await producer.send(b"%d" % number, key=b"k")
        topic = running.topic(TOPIC)
        read, filled = topic.kept.read, trio.Event()

        async def with_gap(offset: Any, size: int) -> Any:
            return await read(offset if filled.is_set() else max(offset, 6), size)

        monkeypatch.setattr(topic.kept, "get_cached", lambda offset: None)
        monkeypatch.setattr(topic.kept, "read", with_gap)
        await client.admin.create_subscription(TOPIC, "s", type=kind, start="earliest")
        subscription = topic.subscriptions["s"]
        subscription.cursor.holes = [(0, 6)]
        async with client.consumer(TOPIC, subscription="s", type=kind) as consumer:
            for _ in range(4):
                await consumer.receive()
            monkeypatch.setattr(subscription, "_sought", lambda: None)  # its entry stays on its way
            await subscription.seek(Offset(0))
            await subscription._read_ahead()
            assert subscription.machine.position == 6
            filled.set()
            subscription.holes_changed([], [], True)
            monkeypatch.undo()
            subscription._sought()
            with trio.fail_after(30):
                found = [(await consumer.receive()).payload for _ in range(10)]
            assert found == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("way", ["seek", "skip"])
async def test_a_read_that_fails_where_the_cursor_has_left_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The damage was behind it, and it stopped: for good, as that offset stayed unreadable."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            for number in range(10):
                await producer.send(b"%d" % number)
        topic = running.topic(TOPIC)
        read, reading, moved = topic.kept.read, trio.Event(), trio.Event()

        async def damaged(offset: Any, size: int) -> Any:
            if offset >= 6:
                return await read(offset, size)
            reading.set()
            await moved.wait()
            raise DataLossError("damaged")

        monkeypatch.setattr(topic.kept, "get_cached", lambda offset: None)
        monkeypatch.setattr(topic.kept, "read", damaged)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            await reading.wait()
            subscription = topic.subscriptions["s"]
            if way == "seek":
                await subscription.seek(Offset(6))
            else:
                await subscription.skip([0, 6])
            moved.set()
            with trio.fail_after(30):
                found = [(await consumer.receive()).payload for _ in range(4)]
            assert found == [b"6", b"7", b"8", b"9"]
            assert subscription.failure is None


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_delivered_before_a_gap_was_filled_can_be_acknowledged(tmp_path: Path, kind: str) -> None:
    """It was confirmed, and dropped: the delivery began again at the gap."""
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        async with client.producer(TOPIC) as producer:
            for number in range(10):
                await producer.send(b"%d" % number, key=b"k")
        async with raw_consumer(channel, TOPIC, kind=kind) as consumer:
            subscription = running.topic(TOPIC).subscriptions["s"]
            consumer.credit(10)
            await wait_until(lambda: subscription.machine.position == 10)
            subscription.holes_changed([], [], True)
            assert subscription.machine.position == 0, "it delivers all of it again, as far as there is credit"
            consumer.send(api.Ack([4, 8]))
            await consumer.flush()
            assert subscription.cursor.live(0, 10) == [(0, 4), (8, 10)]
            consumer.credit(10)
            await wait_until(lambda: subscription.machine.position == 10)
            consumer.send(api.Ack([0, 4, 8, 10]))
            await consumer.flush(2)
            assert subscription.cursor.floor == 10
        async with client.consumer(TOPIC, subscription="s", type=kind) as again:
            with trio.move_on_after(5) as scope:
                await again.receive()
            assert scope.cancelled_caught
