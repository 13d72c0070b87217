"""A declared gap is filled while its topic is consumed: none of it is acknowledged, and no confirmed ack is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import raw_consumer, running_broker, wait_until

from danube.model import api

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
