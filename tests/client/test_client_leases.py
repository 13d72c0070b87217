"""Leases: which ones a client renews, when, and when it stops."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing
from fake_broker import FakeBroker, FakeSubscription, memory_client
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.client._leases import Leases, RenewalClock, chunks, clip
from danube.model import api
from danube.model.batch import check_part, encode_part
from danube.model.errors import InvalidArgumentError
from danube.model.policies import Durability
from danube.model.ranges import RangeSet

Clock = trio.testing.MockClock
TOPIC = "/default/orders"
TIMEOUT_S = 30.0


def store(broker: FakeBroker, *counts: int) -> None:
    for count in counts:
        payloads = [b"x"] * count
        part = encode_part(payloads, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1)
        broker.topic(TOPIC).append(part, check_part(part), "maker")


def renewed(subscription: FakeSubscription) -> list[int]:
    """What was renewed since the last call."""
    found = RangeSet()
    for _, ranges, lease_ms in subscription.leases:
        assert lease_ms == 0
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            found.add(start, end)
    subscription.leases.clear()
    return found.to_flat()


# --- The parts


def test_leases_of_messages_handed_out_are_renewed_once() -> None:
    leases = Leases(keep=False, max_ranges=10)
    leases.handed_out([0, 10])
    leases.handed_out([10, 20, 30, 40])
    leases.handed_out([35, 36])
    assert leases.renewal() == [0, 20, 30, 40, 35, 36]
    assert leases.renewal() == []


def test_leases_that_are_kept_are_renewed_until_the_messages_settle() -> None:
    leases = Leases(keep=True, max_ranges=3)
    leases.handed_out([0, 10])
    leases.settled([2, 5])
    assert leases.renewal() == leases.renewal() == [0, 2, 5, 10]
    leases.lost()
    leases.handed_out([20, 21, 30, 31])
    assert leases.renewal() == [5, 10, 20, 21, 30, 31], "the oldest are forgotten beyond the bound"


def test_much_that_was_handed_out_asks_to_be_renewed_early() -> None:
    leases = Leases(keep=False, max_ranges=10)
    assert not any(leases.handed_out([offset, offset + 1]) for offset in range(0, 20_000, 2))
    assert leases.handed_out([30_000, 30_001])


def test_the_clock_counts_from_the_first_arrival() -> None:
    clock = RenewalClock()
    assert (clock.idle, clock.next_s) == (True, math.inf)
    clock.arm(100.0, 30.0)
    clock.arm(105.0, 30.0)
    assert clock.next_s == 110.0
    assert not clock.stuck(129.0, 30.0)
    assert clock.stuck(130.0, 30.0)
    clock.alive = True
    assert not clock.stuck(131.0, 30.0)
    assert not clock.stuck(160.0, 30.0)
    assert clock.stuck(161.0, 30.0)
    clock.rest()
    assert clock.idle


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 60), unique=True), st.integers(0, 60), st.integers(0, 60))
def test_clip(numbers: list[int], start: int, end: int) -> None:
    flat = RangeSet((number, number + 1) for number in numbers).to_flat()
    inside = [
        number for low, high in zip(*[iter(clip(flat, start, end))] * 2, strict=True) for number in range(low, high)
    ]
    assert inside == [number for number in sorted(numbers) if start <= number < end]
    assert clip(flat, start) == clip(flat, start, 100)


def test_long_lists_are_cut_between_ranges() -> None:
    flat = list(range(50_000))
    pieces = list(chunks(flat))
    assert [number for piece in pieces for number in piece] == flat
    assert all(len(piece) % 2 == 0 and len(piece) <= 20_000 for piece in pieces)


# --- A consumer


@pytest.fixture
def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.ack_timeout_s = TIMEOUT_S
    return broker


async def test_leases_of_queued_and_handed_out_messages_are_renewed(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10, 10, 10)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer,
    ):
        subscription = broker.topic(TOPIC).subscriptions["s"]
        await trio.sleep(11)
        assert renewed(subscription) == [0, 30], "all waits in the queue"
        first = await consumer.receive_batch()
        assert list(first.offsets) == list(range(10))
        await trio.sleep(10)
        assert renewed(subscription) == [0, 30], "once more after the hand-out"
        await trio.sleep(10)
        assert renewed(subscription) == [10, 30], "its timeout counts from there"
        await trio.sleep(20)
        renewed(subscription)
        assert subscription.given_back == [[10, 30]], "the application has given no sign of life: others may have it"
        await trio.sleep(100)
        assert renewed(subscription) == []
        assert subscription.given_back == [[10, 30]]
        await first.ack()
        await trio.sleep(10)
        assert renewed(subscription) == [], "it lives, and does not ask for more"
        batches = [await consumer.receive_batch() for _ in range(2)]
        assert [list(batch.offsets) for batch in batches] == [list(range(10, 20)), list(range(20, 30))]
        await trio.sleep(10)
        assert renewed(subscription) == [10, 30]
        with trio.move_on_after(100):
            await consumer.receive()
        assert subscription.leases == []
        assert consumer._renewals.idle, "nothing is left to do, not even a timer"
        store(broker, 5)
        await trio.sleep(11)
        assert renewed(subscription) == [30, 35]


async def test_messages_that_are_handed_out_one_by_one(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10, 10)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer,
    ):
        subscription = broker.topic(TOPIC).subscriptions["s"]
        await trio.sleep(1)
        for taken, expected in ((4, [0, 20]), (3, [4, 20]), (6, [7, 20]), (0, [13, 20])):
            for _ in range(taken):
                await consumer.receive()
            await trio.sleep(10)
            assert renewed(subscription) == expected


async def test_an_exclusive_consumer_never_lets_go(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10, 10)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
    ):
        await consumer.receive()
        await trio.sleep(100)
        subscription = broker.topic(TOPIC).subscriptions["s"]
        subscription.leases.clear()
        await trio.sleep(10)
        assert renewed(subscription) == [1, 20]


async def test_leases_of_messages_that_are_being_handled_are_renewed(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 5, 5, 5)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", type="shared", start="earliest", renew_leases=True) as consumer,
    ):
        subscription = broker.topic(TOPIC).subscriptions["s"]
        batch = await consumer.receive_batch()
        messages = [await consumer.receive() for _ in range(3)]
        await batch[0].ack()
        await batch[4].ack()
        await messages[2].ack()
        await trio.sleep(10.5)
        assert renewed(subscription) == [1, 4, 5, 7, 8, 15]
        await trio.sleep(30)
        renewed(subscription)
        await trio.sleep(1_000)
        assert renewed(subscription) == [1, 4, 5, 7], "not what waited, for the application looks stuck"
        assert subscription.given_back == [[8, 15]]
        await consumer.receive()
        consumer.ack_range(0, messages[1].offset + 1)
        await trio.sleep(10)
        assert renewed(subscription) == [8, 15]


async def test_a_new_stream_begins_anew(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 5, 5)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", type="shared", start="earliest", renew_leases=True) as consumer,
    ):
        subscription = broker.topic(TOPIC).subscriptions["s"]
        batch = await consumer.receive_batch()
        await broker.cut()
        await batch.nack(reason="not sent")
        await batch.extend_lease()
        await trio.sleep(5)
        assert (subscription.nacks, subscription.leases) == ([], [])
        await trio.sleep(20)
        assert renewed(subscription) == [0, 10]
        assert list((await consumer.receive_batch()).offsets) == [0, 1, 2, 3, 4], "it has come again"


async def test_extending_a_lease_by_hand(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
    ):
        batch = await consumer.receive_batch()
        await batch.extend_lease()
        await batch[3].extend_lease(lease_s=60)
        await batch[4].extend_lease(lease_s=60)
        await trio.sleep(1)
        leases = [(ranges, lease_ms) for _, ranges, lease_ms in broker.topic(TOPIC).subscriptions["s"].leases]
        assert leases == [([0, 10], 0), ([3, 5], 60_000)]
        for wrong in (0, -1, math.nan, 1e9):
            with pytest.raises(InvalidArgumentError, match="max_lease_s"):
                await batch.extend_lease(wrong)


async def test_a_changed_timeout_counts_at_once(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 10)
    broker.ack_timeout_s = 0.0
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", type="shared", start="earliest"),
    ):
        subscription = broker.topic(TOPIC).subscriptions["s"]
        stream = subscription.consumer.stream  # type: ignore[union-attr]
        await trio.sleep(1_000)
        assert renewed(subscription) == []
        stream.send_nowait(stream.encode(api.LeaseChanged(6.0)))
        await trio.sleep(2.5)
        assert renewed(subscription) == [0, 10]
        stream.send_nowait(stream.encode(api.LeaseChanged(0.0)))
        await trio.sleep(100)
        assert renewed(subscription) == []


async def test_nothing_is_renewed_in_a_topic_that_forgets(broker: FakeBroker, autojump_clock: Clock) -> None:
    broker.topic(TOPIC).durability = Durability.NONE
    store(broker, 10)
    async with memory_client(broker) as client, client.consumer(TOPIC, subscription="s", start="earliest"):
        await trio.sleep(100)
        assert broker.topic(TOPIC).subscriptions["s"].leases == []


async def test_refusals_gather_by_delay_and_reason(broker: FakeBroker, autojump_clock: Clock) -> None:
    store(broker, 300)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
    ):
        batch = await consumer.receive_batch()
        await batch[0].nack(reason="late")
        await batch[1].nack(reason="late")
        await batch[2].nack(delay_s=1, reason="late")
        await batch[4].nack(reason="late")
        await trio.sleep(1)
        subscription = broker.topic(TOPIC).subscriptions["s"]
        assert list(zip(subscription.nacks, subscription.reasons, strict=True)) == [
            (([0, 2, 4, 5], -1), "late"), (([2, 3], 1000), "late"),
        ]  # fmt: skip
        subscription.nacks.clear()
        for message in batch[10:300]:
            await message.nack(reason=f"number {message.offset}" + "!" * 1000)
        assert len(consumer._feeds[0]._nacks) <= 100
        await trio.sleep(1)
        assert [ranges[0] for ranges, _ in subscription.nacks] == list(range(10, 300))
        assert max(map(len, subscription.reasons)) == 512
        for wrong in (-1, math.nan, 1e9):
            with pytest.raises(InvalidArgumentError, match="max_delivery_delay_s"):
                await batch.nack(wrong)


async def test_a_redelivery_of_an_acknowledged_message_is_acknowledged_again(
    broker: FakeBroker, autojump_clock: Clock
) -> None:
    broker.slices = True
    store(broker, 10)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
    ):
        batch = await consumer.receive_batch()
        broker.forgets_acks = True
        await batch.ack()
        await trio.sleep(0.1)
        subscription = broker.topic(TOPIC).subscriptions["s"]
        assert not subscription.acked
        broker.deliver_again(TOPIC, "s", [0, 10])
        await trio.sleep(0.1)
        assert subscription.acked.to_flat() == [0, 10]
        with trio.move_on_after(1):
            await consumer.receive()
            pytest.fail("it was acknowledged")


async def test_a_queued_message_that_is_redelivered_is_handed_out_once(
    broker: FakeBroker, autojump_clock: Clock
) -> None:
    broker.slices = True
    store(broker, *[1] * 50)
    async with (
        memory_client(broker) as client,
        client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer,
    ):
        seen = [(await consumer.receive()).offset for _ in range(10)]
        for first in (10, 20):
            broker.deliver_again(TOPIC, "s", [first, 50])
            await trio.sleep(1)
            seen += [(await consumer.receive()).offset for _ in range(10)]
        store(broker, 1)
        seen += [(await consumer.receive()).offset for _ in range(21)]
        assert seen == list(range(51))
        broker.deliver_again(TOPIC, "s", [50, 51])
        assert ((await consumer.receive()).offset, consumer._feeds[0]._waiting) == (50, None)
