"""A consumer's feed by itself: its requests, their times, and the effects of a lost connection or a seek."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from danube.client._delivered import OpenBatch, live_ranges, open_delivery
from danube.client._feed import Feed
from danube.client._leases import RenewalClock
from danube.client._message import Batch, Message
from danube.model import Limits, api
from danube.model.batch import PART_HEADER_SIZE, BatchFlags, encode_part, read_header, seal_part
from danube.model.errors import InvalidArgumentError
from danube.model.policies import Durability, SubscriptionType

Clock = trio.testing.MockClock
_REQUEST = msgspec.msgpack.Decoder(api.ConsumeRequest)
SHARED, FAILOVER = SubscriptionType.SHARED, SubscriptionType.FAILOVER


class FakeStream:
    def __init__(self) -> None:
        self.over = False
        self.sent: list[Any] = []

    def send_nowait(self, data: bytes) -> bool:
        self.sent.append(_REQUEST.decode(data))
        return True

    def said(self, *kinds: type) -> list[Any]:
        """What was sent since the last call, of these kinds; all if none is named."""
        sent, self.sent = self.sent, []
        return [each for each in sent if not kinds or type(each) in kinds]


class World:
    """A feed with its first stream open."""

    def __init__(self, kind: SubscriptionType = SHARED, *, keep: bool = False, opened: bool = True, **limits: Any):
        self.wakes = self.arrivals = self.restarts = self.confirmations = 0
        self.clock = RenewalClock()
        self.feed = Feed(
            0,
            api.ConsumeOpen(topic="/default/t", subscription="s", consumer_name="c", type=kind),
            limits=Limits(**limits),
            confirmed=lambda feed: self.count("confirmations"),
            renewals=self.clock,
            renew_leases=keep,
            credit_messages=100,
            credit_bytes=10_000,
            arrived=lambda feed: self.count("arrivals"),
            restarted=lambda feed: self.count("restarts"),
            wake=lambda: self.count("wakes"),
            clock=trio.current_time,
        )
        self.stream = FakeStream()
        if opened:
            self.attach()
            self.stream.said()

    def count(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)

    def attach(self, **fields: Any) -> FakeStream:
        """A new stream is open."""
        self.stream = FakeStream()
        given: dict[str, Any] = {
            "topic_id": 7,
            "consumer_id": 1,
            "durability": Durability.DISK,
            "active": True,
            "floor": 0,
            "end_offset": 100,
            "ack_timeout_s": 0.0,
            "subscription_id": 3,
            "generation": 5,
        }
        self.feed.opened(self.stream, api.ConsumeOpened(**(given | fields)))
        return self.stream

    def arrive(self, base: int, count: int, attempt: int = 1, ranges: list[int] | None = None) -> api.ConsumeBatch:
        part = encode_part([b"x"] * count, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1)
        delivery = api.ConsumeBatch(base, 1, attempt, ranges or [], "p", 10 * count, part)
        self.feed.take(delivery)
        return delivery

    def take(self) -> Batch:
        """The application takes the next delivery."""
        item = self.feed.queue.popleft()
        assert isinstance(item, api.ConsumeBatch)
        batch = open_delivery(Batch, self.feed, item, 1 << 20)
        self.feed.taken(item, batch.ranges, len(batch))
        return batch

    def send(self, *kinds: type) -> list[Any]:
        self.feed.send_gathered(trio.current_time())
        return self.stream.said(*kinds)

    def waits(self) -> list[list[int]]:
        return [live_ranges(item) for item in self.feed.queue if isinstance(item, api.ConsumeBatch)]


# --- Acknowledgements ---


async def test_acknowledgements_gather_and_go_out_together() -> None:
    world = World()
    wakes = world.wakes
    for offset in (0, 1, 5, 3):
        world.feed.ack(offset, offset + 1, 0)
    assert world.wakes == wakes + 1, "the sender is woken once"
    assert world.send(api.Ack) == [api.Ack([0, 2, 3, 4, 5, 6], 5)]
    assert world.send(api.Ack) == []
    assert not world.feed.ledger.settled


@pytest.mark.parametrize("kind", [FAILOVER, SubscriptionType.EXCLUSIVE])
async def test_a_cumulative_acknowledgement_is_sent_as_the_ranges_handed_out(kind: SubscriptionType) -> None:
    world = World(kind)
    world.arrive(0, 4)
    world.arrive(10, 4)
    world.arrive(20, 4)
    world.take()
    batch = world.take()
    world.feed.ack_cumulative(11, batch)
    assert world.send(api.Ack, api.AckCumulative) == [api.Ack([0, 4, 10, 12], 5)], "and not as what waits or was lost"
    world.feed.ack_cumulative(13, world.take())
    assert world.send(api.Ack, api.AckCumulative) == [api.Ack([12, 14], 5)]


async def test_a_cumulative_acknowledgement_of_a_shared_subscription_is_for_the_broker_to_refuse() -> None:
    world = World()
    world.arrive(0, 4)
    batch = world.take()
    wakes = world.wakes
    world.feed.ack_cumulative(2, batch)
    assert world.wakes > wakes
    assert world.send(api.Ack, api.AckCumulative) == [api.AckCumulative(2, 5)]


async def test_leases_of_acknowledged_messages_are_not_renewed() -> None:
    world = World(keep=True, opened=False)
    world.attach(ack_timeout_s=30.0)
    world.arrive(0, 6)
    batch = world.take()
    world.feed.ack_cumulative(2, batch)
    world.feed.ack(4, 5, 0)
    world.send()
    assert world.feed.renew()
    assert world.send(api.ExtendLease) == [api.ExtendLease([3, 4, 5, 6], 0, 5)]


async def test_confirmations_are_asked_for_now_and_then(autojump_clock: Clock) -> None:
    world = World()
    await trio.sleep(10)
    world.feed.ack(0, 1, 0)
    assert world.send(api.FlushAcks) == [api.FlushAcks(1)]
    world.feed.ack(1, 2, 0)
    await trio.sleep(10)
    assert world.send(api.FlushAcks) == [], "one at a time"
    world.feed.take(api.AcksFlushed(1))
    assert (world.feed.confirmed_token, world.feed.unconfirmed) == (1, True)
    assert world.send(api.FlushAcks) == [api.FlushAcks(2)]
    world.feed.take(api.AcksFlushed(2))
    assert world.feed.ledger.settled
    await trio.sleep(0.5)
    world.feed.ack(2, 3, 0)
    assert world.send(api.FlushAcks) == [], "not before a second has passed"
    await trio.sleep(0.5)
    assert world.send(api.FlushAcks) == [api.FlushAcks(3)]
    world.feed.take(api.AcksFlushed(3))
    assert world.send(api.FlushAcks) == [], "there is nothing to confirm"


async def test_confirmations_are_requested_for_waiting_callers_or_many_acknowledgements(autojump_clock: Clock) -> None:
    world = World()
    await trio.sleep(10)
    world.feed.ack(0, 1, 0)
    assert len(world.send(api.FlushAcks)) == 1
    world.feed.take(api.AcksFlushed(1))
    world.feed.awaited_token = 3
    assert world.send(api.FlushAcks) == [api.FlushAcks(2)]
    wakes, confirmations = world.wakes, world.confirmations
    world.feed.take(api.AcksFlushed(2))
    assert world.confirmations == confirmations + 1
    assert world.wakes > wakes, "the waiting caller needs another one"
    assert world.send(api.FlushAcks) == [api.FlushAcks(3)]
    wakes = world.wakes
    world.feed.take(api.AcksFlushed(3))
    assert world.wakes == wakes
    assert world.send(api.FlushAcks) == [], "the caller may still wait for other topics"
    for number in range(999):
        world.feed.ack(2 * number, 2 * number + 1, 0)
    assert world.send(api.FlushAcks) == []
    world.feed.ack(2 * 999, 2 * 999 + 1, 0)
    assert world.send(api.FlushAcks) == [api.FlushAcks(4)], "a thousand ranges are enough to remember"


# --- Refusals and leases ---


async def test_refusals_gather_by_delay_and_reason() -> None:
    world = World()
    world.feed.nack([0, 1], None, "", 0)
    world.feed.nack([3, 5], 1.5, "bad", 0)
    world.feed.nack([1, 2], None, "", 0)
    world.feed.nack([8, 9], 1.5, "bad", 0)
    world.feed.nack([9, 10], 1.5, "worse", 0)
    assert world.send(api.Nack) == [
        api.Nack([0, 2], -1, "", 5),
        api.Nack([3, 5, 8, 9], 1500, "bad", 5),
        api.Nack([9, 10], 1500, "worse", 5),
    ]
    assert world.send(api.Nack) == []
    assert world.clock.alive


async def test_reasons_are_cut_and_delays_and_leases_bounded() -> None:
    world = World(max_nack_reason_chars=5, max_delivery_delay_s=100.0, max_lease_s=50.0)
    world.feed.nack([0, 1], 100.0, "much too long", 0)
    world.feed.nack([1, 2], 0.0, "", 0)
    world.feed.extend([2, 3], 50.0, 0)
    world.feed.extend([3, 4], 0.0001, 0)
    world.feed.extend([4, 5], None, 0)
    for delay_s in (-0.1, 100.1, math.nan):
        with pytest.raises(InvalidArgumentError):
            world.feed.nack([9, 10], delay_s, "", 0)
    for lease_s in (0.0, 50.1, -1.0):
        with pytest.raises(InvalidArgumentError):
            world.feed.extend([9, 10], lease_s, 0)
    assert world.send(api.Nack, api.ExtendLease) == [
        api.Nack([0, 1], 100_000, "much ", 5),
        api.Nack([1, 2], 0, "", 5),
        api.ExtendLease([2, 3], 50_000, 5),
        api.ExtendLease([3, 4], 1, 5),
        api.ExtendLease([4, 5], 0, 5),
    ]


async def test_many_different_reasons_do_not_gather_for_ever() -> None:
    world = World()
    for number in range(100):
        world.feed.nack([number, number + 1], None, f"reason {number}", 0)
    assert world.stream.sent == []
    world.feed.nack([100, 101], None, "one more", 0)
    assert len(world.stream.said(api.Nack)) == 100
    assert world.send(api.Nack) == [api.Nack([100, 101], -1, "one more", 5)]


async def test_long_lists_travel_in_pieces() -> None:
    world = World()
    for number in range(10_001):
        world.feed.nack([2 * number, 2 * number + 1], None, "", 0)
        world.feed.extend([2 * number, 2 * number + 1], None, 0)
    for kind in (api.Nack, api.ExtendLease):
        world.feed.send_gathered(0.0)
        found = [each.ranges for each in world.stream.sent if type(each) is kind]
        assert [len(ranges) for ranges in found] == [20_000, 2]


async def test_without_a_stream_only_acknowledgements_are_kept() -> None:
    world = World(opened=False)
    world.feed.nack([0, 1], None, "", 0)
    world.feed.extend([0, 1], None, 0)
    assert world.attach().said(api.Nack, api.ExtendLease) == []
    world.stream.over = True
    wakes = world.wakes
    world.feed.nack([0, 1], None, "", 0)
    world.feed.extend([0, 1], None, 0)
    assert world.wakes == wakes
    world.feed.ack(4, 5, 0)
    world.feed.send_gathered(0.0)
    assert world.stream.sent == []
    assert world.attach().said(api.Ack, api.Nack, api.ExtendLease) == [api.Ack([4, 5], 5)]


async def test_leases_of_queued_and_recently_handed_out_messages_are_renewed() -> None:
    world = World(opened=False)
    world.attach(ack_timeout_s=30.0)
    assert world.clock.next_s == pytest.approx(trio.current_time() + 10.0, abs=1.0)
    world.stream.said()
    assert not world.feed.renew(), "there is nothing yet"
    world.arrive(0, 4)
    world.arrive(10, 2)
    assert world.feed.renew()
    assert world.send(api.ExtendLease) == [api.ExtendLease([0, 4, 10, 12], 0, 5)]
    world.take()
    assert world.feed.renew()
    assert world.send(api.ExtendLease) == [api.ExtendLease([0, 4, 10, 12], 0, 5)], "its time counts from the hand-out"
    assert world.feed.renew()
    assert world.send(api.ExtendLease) == [api.ExtendLease([10, 12], 0, 5)], "once"
    world.feed.take(api.LeaseChanged(0.0))
    assert not world.feed.renew(), "nothing times out"


async def test_a_batch_that_is_handed_out_one_by_one_is_renewed_as_far_as_it_was_handed_out() -> None:
    world = World(opened=False)
    world.attach(ack_timeout_s=30.0)
    world.arrive(0, 6)
    assert world.feed.waits
    opened: OpenBatch[Message] = world.feed.open(world.take(), Message)
    assert (world.feed.waits, world.feed.moved()) == (True, True)
    next(opened.messages)
    assert world.feed.renew()
    world.send()
    assert not world.feed.moved()
    next(opened.messages)
    next(opened.messages)
    assert world.feed.moved()
    assert world.feed.renew()
    assert world.send(api.ExtendLease) == [api.ExtendLease([1, 6], 0, 5)]
    list(opened.messages)
    assert not world.feed.waits
    assert world.feed.renew()
    assert world.send(api.ExtendLease) == [api.ExtendLease([3, 6], 0, 5)], "what was handed out since"
    assert not world.feed.renew()


async def test_leases_that_are_kept_are_renewed_until_the_messages_settle() -> None:
    world = World(FAILOVER, opened=False, keep=True)
    world.attach(ack_timeout_s=30.0)
    world.arrive(0, 8)
    batch = world.take()
    for _ in range(2):
        assert world.feed.renew()
        assert world.send(api.ExtendLease) == [api.ExtendLease([0, 8], 0, 5)]
    world.feed.ack(0, 2, 0)
    world.send()
    world.feed.nack([4, 5], None, "", 0)
    assert world.feed.renew()
    assert world.send(api.ExtendLease) == [api.ExtendLease([2, 4, 5, 8], 0, 5)]
    world.feed.ack_cumulative(6, batch)
    world.send()
    assert world.feed.renew()
    assert world.send(api.ExtendLease) == [api.ExtendLease([7, 8], 0, 5)]


async def test_a_sign_of_life_is_anything_that_the_application_does() -> None:
    world = World()
    world.arrive(0, 2)
    for sign in (
        world.take,
        lambda: (world.feed.ack(0, 1, 0), world.send()),
        lambda: world.feed.extend([0, 1], None, 0),
        lambda: (world.feed.nack([1, 2], None, "", 0), world.send()),
    ):
        world.clock.alive = False
        sign()
        assert world.clock.alive


# --- Giving back ---


async def test_messages_not_handed_out_are_given_back_and_their_credit_waits() -> None:
    world = World(opened=False)
    world.attach(ack_timeout_s=30.0)
    world.arrive(0, 4)
    world.arrive(10, 2)
    world.feed.take(api.CaughtUp(12))
    opened: OpenBatch[Message] = world.feed.open(world.take(), Message)
    next(opened.messages)
    world.send()
    arrivals = world.arrivals
    world.feed.give_back()
    assert world.arrivals > arrivals
    assert [type(item) for item in world.feed.queue] == [api.CaughtUp], "what is no delivery stays"
    assert list(opened.messages) == []
    assert world.send() == [api.GiveBack([1, 4, 10, 12], 5)], "without the credit for it"
    assert world.send() == []
    world.feed.resume_credit()
    assert world.send() == [api.Credit(2, 20)]
    world.feed.resume_credit()
    assert world.send() == []
    world.feed.give_back()
    assert world.send() == [], "there is nothing to give back"


# --- Credit ---


async def test_credit_counts_messages_that_have_not_arrived() -> None:
    world = World(opened=False)
    assert world.attach().said(api.Credit) == [api.Credit(100, 10_000)]
    world.arrive(0, 10)
    world.arrive(10, 10)
    world.take()
    assert world.send(api.Credit) == [api.Credit(10, 100)]
    assert world.send() == []


async def test_the_sender_is_woken_for_a_quarter_of_the_credit_or_when_nothing_is_left() -> None:
    world = World()
    for number in range(12):
        world.arrive(10 * number, 5)
    wakes = world.wakes
    for _ in range(4):
        world.take()
    assert world.wakes == wakes
    world.take()
    assert world.wakes == wakes + 1
    world.send()
    wakes = world.wakes
    for _ in range(4):
        world.take()
    assert world.wakes == wakes
    world.send()
    world.take()
    world.take()
    assert world.wakes == wakes
    world.take()
    assert world.wakes == wakes + 1, "nothing is left here"


# --- Losses ---


async def test_after_a_loss_unconfirmed_acknowledgements_are_repeated_and_queued_messages_arrive_again() -> None:
    world = World(FAILOVER)
    world.arrive(0, 4)
    world.arrive(10, 4)
    world.take()
    world.feed.ack(0, 3, 0)
    world.send()
    world.feed.nack([3, 4], None, "", 0)
    world.feed.extend([3, 4], None, 0)
    world.feed.give_back()
    restarts = world.restarts
    stream = world.attach()
    assert world.restarts > restarts
    assert world.waits() == []
    found = stream.said()
    assert found[0] == api.Ack([0, 3], 5)
    assert [each for each in found if type(each) in (api.Nack, api.ExtendLease, api.GiveBack)] == []
    assert found[-1] == api.Credit(100, 10_000)
    assert world.feed.moves == 0


async def test_a_topic_that_keeps_nothing_delivers_nothing_again() -> None:
    world = World(opened=False)
    world.attach(durability=Durability.NONE, ack_timeout_s=30.0)
    assert world.clock.idle, "nothing times out either"
    world.arrive(0, 4)
    stream = world.attach(durability=Durability.NONE)
    assert world.waits() == [[0, 4]]
    assert stream.said(api.Credit) == [api.Credit(96, 9_960)]


async def test_a_redelivery_of_acknowledged_messages_is_dropped_and_acknowledged_again() -> None:
    world = World(FAILOVER)
    world.feed.ack(0, 4, 0)
    world.feed.ack(6, 8, 0)
    world.send()
    world.attach().said()
    world.arrive(0, 4)  # the broker may not say that it is a repeat
    assert world.waits() == []
    assert world.send(api.Credit) == [api.Credit(4, 40)], "its credit goes back at once"
    world.arrive(4, 6, attempt=2)
    assert world.waits() == [[4, 6, 8, 10]]
    assert world.send(api.Ack, api.Credit) == [api.Ack([6, 8], 5), api.Credit(2, 0)]
    assert list(world.take().offsets) == [4, 5, 8, 9]
    assert world.send(api.Credit) == [api.Credit(4, 60)]


async def test_a_redelivery_of_queued_messages_is_dropped() -> None:
    world = World()
    world.arrive(0, 6)
    world.arrive(2, 6, attempt=2)
    assert world.waits() == [[0, 6], [6, 8]]
    world.take()
    world.arrive(0, 8, attempt=3)
    assert world.waits() == [[6, 8], [0, 6]], "what was taken is not here any more"


async def test_a_slice_is_passed_on_unless_all_of_it_is_known() -> None:
    world = World()
    world.feed.ack(0, 2, 0)
    world.send()
    part = encode_part([b"x"] * 3, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1)
    header = read_header(part)
    part = seal_part(header._replace(flags=header.flags | BatchFlags.SLICE), part[PART_HEADER_SIZE:-4])
    world.feed.take(api.ConsumeBatch(0, 1, 2, [0, 3], "p", 30, part))
    assert world.waits() == [[0, 3]]


async def test_repeats_are_looked_for_until_the_broker_has_confirmed() -> None:
    world = World()
    world.feed.ack(0, 4, 0)
    world.send()
    world.attach()
    assert world.feed._filter_all
    world.feed.take(api.AcksFlushed(world.feed.ledger.token()))
    assert not world.feed._filter_all
    world.attach()
    assert not world.feed._filter_all, "there is nothing that could come again"
    assert not world.feed.caught_up
    world.attach(floor=100)
    assert world.feed.caught_up
    world.arrive(0, 1, attempt=2)
    assert not world.feed.caught_up, "the broker says it again behind what it repeats"


# --- Seeks ---


@pytest.mark.parametrize("how", ["told", "another generation", "another subscription", "another topic"])
async def test_a_seek_makes_earlier_deliveries_void(how: str) -> None:
    world = World(FAILOVER, keep=True, opened=False)
    world.attach(ack_timeout_s=30.0)
    world.arrive(0, 4)
    world.arrive(10, 4)
    old = world.take()
    world.feed.ack(0, 1, 0)
    world.feed.nack([1, 2], None, "", 0)
    world.feed.extend([2, 3], None, 0)
    if how == "told":
        world.stream.said()
        wakes = world.wakes
        world.feed.take(api.Sought(6))
        assert world.wakes > wakes
        assert world.send() == [api.Credit(8, 80)], "what waited gives its credit back"
    else:
        place = {"generation": 6, "subscription_id": 3, "topic_id": 7}
        if how == "another subscription":
            place |= {"generation": 5, "subscription_id": 4}
        elif how == "another topic":
            place |= {"generation": 5, "topic_id": 8}
        assert world.attach(ack_timeout_s=30.0, **place).said() == [api.Credit(100, 10_000)]
    generation = 6 if how in ("told", "another generation") else 5
    assert (world.feed.moves, world.waits()) == (1, [])
    assert not world.feed.renew(), "leases of what is void are not renewed"
    # Calls of the application about it are ignored now.
    old.ack_nowait()
    world.feed.nack([1, 2], None, "", old.moves)
    world.feed.extend([1, 2], None, old.moves)
    world.feed.ack_cumulative(3, old)
    assert world.send() == []
    world.arrive(2, 4)
    batch = world.take()
    assert batch.moves == 1
    world.feed.ack_cumulative(3, batch)
    assert world.send(api.Ack) == [api.Ack([2, 4], generation)], "what was handed out before counts no more"


async def test_streams_of_a_topic_without_durability_are_never_moved() -> None:
    world = World(opened=False)
    world.attach(durability=Durability.NONE)
    world.attach(durability=Durability.NONE, subscription_id=99)
    assert world.feed.moves == 0


@pytest.mark.parametrize("how", ["told", "loss"])
async def test_messages_given_back_are_void_after_a_seek(how: str) -> None:
    world = World()
    world.arrive(0, 4)
    world.feed.give_back()
    if how == "told":
        world.feed.take(api.Sought(6))
        found = world.send()
    else:
        found = world.attach(generation=6).said()
    assert [each for each in found if type(each) is api.GiveBack] == []
    world.feed.give_back()
    assert world.send(api.GiveBack) == []
