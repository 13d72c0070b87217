"""Rules of dispatch one by one, which the model tests do not cover: bounds, counters, ended consumers."""

from __future__ import annotations

import math
from random import Random

import pytest
from dispatch_models import offsets_of
from key_helpers import batch, change, machine_of, pump

from danube.dispatch import Cursor, Gap, ReaderMachine, Span, make_subscription
from danube.dispatch.delayed import Delayed
from danube.dispatch.failures import FIRST, NACKED
from danube.dispatch.inflight import InFlight, Member
from danube.dispatch.key_flights import KeyFlights
from danube.dispatch.ring import Ring, ring_hash
from danube.dispatch.waiting import Aside, Redelivery, Waiting
from danube.model.errors import InvalidArgumentError
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType, change_policy

EXCLUSIVE, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER
SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED
KINDS = list(SubscriptionType)
RANGED = [EXCLUSIVE, FAILOVER, SHARED]
POLICY = SubscriptionPolicy(ack_timeout_s=10.0, redelivery_delay_s=0.0)


def subscription(kind, *names, cursor=None, limits=None, credit=1000, **policy):
    machine = make_subscription(kind, cursor or Cursor(), Limits(**limits or {}), change_policy(POLICY, policy))
    for consumer_id, name in enumerate(names, 1):
        machine.join(consumer_id, name, 0.0)
        machine.credit(consumer_id, credit, 10**6)
    return machine


def reader(credit=1000):
    machine = ReaderMachine(Limits())
    machine.join(1, "r", 0.0)
    machine.credit(1, credit, 10**6)
    return machine


def lossy(kind, *granted):
    machine = make_subscription(kind, Cursor(), Limits(), POLICY, lossy=True)
    for consumer_id, credit in enumerate(granted, 1):
        machine.join(consumer_id, f"c{consumer_id}", 0.0)
        machine.credit(consumer_id, credit, 10**6)
    return machine


def state_of(machine, consumer_id=1, end=0):
    return next(each for each in machine.describe(end).consumers if each.consumer_id == consumer_id)


def got(deliveries):
    return [(each.consumer_id, offsets_of(each.ranges)) for each in deliveries]


# --- Credit ---


@pytest.mark.parametrize("kind", [*KINDS, "reader", *(f"lossy {kind}" for kind in KINDS)])
@pytest.mark.parametrize(("messages", "size"), [(5, 0), (0, 500)])
def test_nothing_is_delivered_without_credit_of_both_sorts(kind, messages, size):
    if kind == "reader":
        machine = reader(credit=0)
    elif str(kind).startswith("lossy"):
        machine = lossy(SubscriptionType(str(kind).partition(" ")[2]), 0)
    else:
        machine = subscription(kind, "c", credit=0)
    machine.withdraw(1)
    machine.credit(1, messages, size)
    assert machine.next_read(0.0) is None
    assert machine.offered(batch(0, ["a"] * 3), 0.0) == []
    assert state_of(machine).delivered_messages == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_and_a_message_of_credit_are_some(kind):
    machine = subscription(kind, "c", credit=0)
    machine.withdraw(1)
    machine.credit(1, 1, 1)
    assert machine.next_read(0.0) == (0, False)
    assert len(machine.offered(batch(0, ["a"]), 0.0)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_delays_are_forgotten_at_a_seek(kind):
    machine = subscription(kind, "c")
    machine.offered(batch(0, list("ab"), due=50.0), 0.0)
    assert machine._delayed.some
    machine.seek(0, 1.0)
    assert not machine._delayed.some
    assert (machine.delayed_messages(), machine.next_deadline()) == (0, None)


@pytest.mark.parametrize("credit", [(-1, 0), (0, -1)])
def test_credit_is_not_negative(credit):
    machine = subscription(SHARED, "c")
    with pytest.raises(InvalidArgumentError, match="negative"):
        machine.credit(1, *credit)


def test_key_shared_lossy_delivers_as_many_messages_as_there_is_credit_for():
    machine = lossy(KEY_SHARED, 4)
    (delivery,) = machine.offered(batch(0, ["a"] * 6), 0.0)
    assert (delivery.ranges, delivery.messages) == ([0, 4], 4)
    assert machine.describe(6).dropped_messages == 2
    machine.credit(1, 4, 0)
    gap, delivery = machine.offered(batch(6, ["a"]), 0.0)
    assert gap == Gap(1, 4, 6)
    assert delivery.ranges == [6, 7]


def test_who_left_a_shared_lossy_subscription_gets_nothing():
    machine = lossy(SHARED, 100, 100)
    machine.leave(1, 0.0)
    assert got(machine.offered(batch(0, ["a"] * 6), 0.0)) == [(2, list(range(6)))]
    machine.withdraw(2)
    assert machine.offered(batch(6, ["a"]), 0.0) == []


def test_a_cumulative_acknowledgement_of_the_first_message():
    machine = subscription(EXCLUSIVE, "c")
    pump(machine, batch(0, ["a"] * 3))
    assert machine.ack_cumulative(0, 1, 0.0) == [0, 1]
    assert machine.ack_cumulative(0, 1, 0.0) == []
    assert machine.ack_cumulative(1, 1, 0.0) == [1, 2]


def test_a_slice_with_holes_is_in_flight_without_them():
    machine = subscription(SHARED, "c", cursor=Cursor(0, ranges=[(2, 3), (5, 6)]))
    (delivery,) = machine.offered(batch(0, ["a"] * 8), 0.0)
    assert (delivery.ranges, delivery.messages, delivery.whole) == ([0, 2, 3, 5, 6, 8], 6, False)
    assert state_of(machine).in_flight_messages == 6
    assert machine.ack([0, 8], 1, 0.0) == [0, 2, 3, 5, 6, 8]
    assert (state_of(machine).in_flight_messages, state_of(machine).acked_messages) == (0, 6)


@pytest.mark.parametrize(("count", "share"), [(1, 34), (2, 67), (3, 100)])
def test_a_slice_costs_its_share_of_the_bytes(count, share):
    for kind in (SHARED, KEY_SHARED):
        machine = subscription(kind, "c", credit=count)
        (delivery,) = machine.offered(Span(0, 3, 100, None, [b"a"] * 3), 0.0)
        assert (delivery.messages, delivery.size_bytes) == (count, share)
        assert state_of(machine).credit_bytes == 10**6 - share


# --- Counters ---


@pytest.mark.parametrize("kind", KINDS)
def test_how_often_a_message_in_flight_has_failed(kind):
    machine = subscription(kind, "c")
    span = batch(0, list("abc"))
    pump(machine, span)
    assert [machine.failures(offset) for offset in range(4)] == [0, 0, 0, 0]
    machine.nack(1, [0, 1], None, 0.0)
    assert machine.failures(0) == 0, "it is not in flight"
    machine.tick(0.0)
    pump(machine, span)
    machine.nack(1, [2, 3], None, 0.0)
    assert [machine.failures(offset) for offset in range(3)] == [1, 0, 0]
    machine.tick(0.0)
    pump(machine, span)
    machine.nack(1, [2, 3], None, 0.0)
    pump(machine, span)
    assert [machine.failures(offset) for offset in range(4)] == [1, 0, 2, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_delivered_again_counts_as_redelivered(kind):
    machine = subscription(kind, "c")
    first, second = batch(0, list("aab")), batch(3, list("ab"), due=5.0)
    pump(machine, first, second)
    machine.nack(1, [0, 1], None, 0.0)
    pump(machine, first, second)
    again = machine.describe(5).redelivered_messages
    assert again == (2 if kind is KEY_SHARED else 1), "what is behind it in its key comes again, too"
    machine.tick(6.0)
    assert pump(machine, first, second, now=6.0) == {1: [3, 4]}
    assert machine.describe(5).redelivered_messages == again, "what was late is not a repeat"


@pytest.mark.parametrize("make", [reader, lambda: lossy(EXCLUSIVE, 100)])
def test_a_machine_without_tracking_counts_nothing(make):
    machine = make()
    machine.offered(batch(0, ["a"] * 3), 0.0)
    machine.offered(batch(3, ["a"] * 2), 0.0)
    facts = machine.describe(5)
    assert machine.failures(0) == 0
    assert (facts.poisoned_messages, facts.waiting_messages, facts.delayed_messages) == (0, 0, 0)
    assert (facts.redelivered_messages, facts.in_flight_messages) == (0, 0)
    assert facts.consumers[0].delivered_messages == 5
    assert not machine.shift_delayed(5.0)
    assert not machine.goes_on()


def test_a_reader_begins_at_the_first_offset_and_counts_what_it_reads_as_acknowledged():
    machine = reader()
    assert machine.next_read(0.0) == (0, False)
    machine.offered(batch(0, ["a"] * 3), 0.0)
    machine.offered(batch(3, ["a"] * 2), 0.0)
    assert (state_of(machine).acked_messages, state_of(machine).delivered_messages) == (5, 5)
    assert machine.discard([2, 3, 5, 9], 0.0) == []
    assert machine.position == 9, "any of the ranges may be the one at the position"


@pytest.mark.parametrize("kind", KINDS)
def test_reported_acknowledgements_are_in_the_cursor(kind):
    """Whatever limit of ranges the cursor has."""
    machine = subscription(kind, "c", cursor=Cursor(0, max_ranges=1))
    pump(machine, batch(0, list("abcdef")))
    acknowledged = machine.ack([1, 2, 3, 4], 1, 0.0)
    assert {1} <= set(offsets_of(acknowledged)) == {o for o in range(6) if machine.cursor.is_acked(o)}


# --- What is delayed ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_delivered_delayed_message_leaves_no_state(kind):
    machine = subscription(kind, "c", limits={"max_delayed_ranges": 2})
    late = [batch(0, list("ab"), due=5.0), batch(2, list("ab"), due=6.0)]
    assert pump(machine, *late) == {}
    assert machine._delayed.some
    assert pump(machine, *late, now=7.0) == {1: [0, 1, 2, 3]}
    assert not machine._delayed.some
    assert machine.ack([0, 4], 1, 8.0) == [0, 4]
    assert machine.next_read(8.0) == (4, False)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_delayed_batch_for_which_there_is_little_credit_goes_out_bit_by_bit(kind):
    machine = subscription(kind, "c", credit=1)
    late = batch(0, list("aaa"), due=5.0)
    machine.offered(late, 0.0)
    machine.tick(6.0)
    assert got(machine.offered(late, 6.0)) == [(1, [0])]
    assert machine.ack([0, 3], None, 6.0) == [0, 1], "what was not delivered is not acknowledged"
    machine.credit(1, 2, 0)
    assert pump(machine, late, now=7.0) == {1: [1, 2]}
    assert not machine._delayed.some
    assert machine.ack([0, 3], None, 8.0) == [1, 3]


def test_a_delayed_batch_with_holes_is_delivered_without_them():
    machine = subscription(SHARED, "c", credit=2, cursor=Cursor(0, ranges=[(2, 3), (5, 6)]))
    late = batch(0, ["a"] * 8, due=5.0)
    machine.offered(late, 0.0)
    machine.tick(6.0)
    for expected in ([0, 1], [3, 4], [6, 7]):
        assert machine.next_read(6.0) == (expected[0], True)
        assert got(machine.offered(late, 6.0)) == [(1, expected)]
        assert machine.ack([0, 8], None, 6.0) == [expected[0], expected[1] + 1]
        machine.credit(1, 2, 0)
    assert not machine._delayed.some


def test_a_delayed_batch_of_which_the_middle_was_discarded_goes_out_without_it():
    machine = subscription(SHARED, "c", credit=1)
    late = batch(0, ["a"] * 7, due=5.0)
    machine.offered(late, 0.0)
    machine.tick(6.0)
    assert machine.discard([2, 3, 4, 5], 6.0) == [2, 3, 4, 5]
    assert got(machine.offered(late, 6.0)) == [(1, [0])]
    assert machine.ack([0, 7], None, 6.0) == [0, 1], "what was not delivered is not acknowledged"
    machine.credit(1, 1, 0)
    assert got(machine.offered(late, 6.0)) == [(1, [1])]
    machine.credit(1, 9, 0)
    assert pump(machine, late, now=6.0) == {1: [3, 5, 6]}
    assert machine.ack([0, 7], None, 7.0) == [1, 2, 3, 4, 5, 7]
    assert not machine._delayed.some


@pytest.mark.parametrize("kind", KINDS)
def test_several_ranges_that_are_not_due_are_discarded_at_once(kind):
    machine = subscription(kind, "c", max_unacked_messages=3)
    late = [batch(0, list("abc"), due=5.0), batch(3, list("abc"), due=6.0)]
    assert pump(machine, *late) == {}
    assert machine.discard([0, 1, 4, 6], 1.0) == [0, 1, 4, 6]
    assert machine.delayed_messages() == 3
    assert machine.next_deadline() == 5.0
    machine.tick(7.0)
    assert machine.next_read(7.0) == (1, True), "what was delayed is not the next new message"
    assert pump(machine, *late, now=7.0) == {1: [1, 2, 3]}
    assert machine.next_read(7.0) is None, "the window is full"
    assert machine.ack([1, 2], 1, 8.0) == [1, 2]
    assert machine.next_read(8.0) == (6, False)
    machine.ack([2, 4], 1, 8.0)
    assert machine.explain(8.0, 6).state == "caught-up"


def test_a_discarded_delayed_message_bounds_no_other():
    delayed = Delayed()
    delayed.add([(0, 4)], 5.0)
    delayed.add([(4, 8)], 6.0)
    assert delayed.discard(4, 8) == 4
    assert delayed.discard(0, 3) == 3
    assert delayed.some
    assert delayed.discard(3, 4) == 1
    assert (len(delayed), delayed.some, delayed.next_due()) == (0, False, None)


def test_the_next_delivery_time_is_that_of_what_is_left():
    delayed = Delayed()
    delayed.add([(0, 4)], 5.0)
    delayed.add([(4, 8)], 6.0)
    assert delayed.discard(0, 4) == 4
    assert delayed.next_due() == 6.0


@pytest.mark.parametrize("kind", RANGED)
def test_messages_due_between_a_read_and_its_batch_go_first(kind):
    machine = subscription(kind, "c", max_unacked_messages=2)
    late = batch(0, list("ab"), due=5.0)
    machine.offered(late, 0.0)
    assert machine.next_read(4.0) == (2, False)
    assert machine.offered(batch(2, list("ab")), 5.0) == [], "those that are due fill the window"
    assert machine.next_read(5.0) == (0, True)
    assert got(machine.offered(late, 5.0)) == [(1, [0, 1])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_delayed_batch_is_read_from_its_first_message_that_is_left(kind):
    machine = subscription(kind, "c")
    late = batch(0, list("abcd"), due=5.0)
    machine.offered(late, 0.0)
    machine.tick(5.0)
    assert machine.next_read(5.0) == (0, True)
    assert machine.discard([0, 2], 5.0) == [0, 2]
    assert machine.next_read(5.0) == (2, True)
    assert got(machine.offered(late, 5.0)) == [(1, [2, 3])]


# --- What is in flight, and what waits ---


def flights(*places, timeout_s=10.0, **limits):
    cursor = Cursor()
    found = InFlight(cursor, timeout_s)
    for start, end, member in places:
        found.add(start, end, member, FIRST, 0.0)
    return cursor, found


def deadlines_of(found):
    return {start: flight.deadline for start, flight in zip(found.starts, found._flights, strict=True)}


def test_a_lease_is_for_what_it_names_and_whole_flights_of_it_at_the_bound():
    ann, bob = Member(1, "ann"), Member(2, "bob")
    places = [(0, 4, ann), (4, 8, ann), (8, 12, bob), (12, 16, ann)]
    _, found = flights(*places)
    found.extend(2, 4, 1, 50.0)
    assert deadlines_of(found) == {0: 10.0, 2: 50.0, 4: 10.0, 8: 10.0, 12: 10.0}
    _, found = flights(*places)
    found.extend(2, 4, 1, 50.0, whole=True)
    assert deadlines_of(found) == {0: 50.0, 4: 10.0, 8: 10.0, 12: 10.0}
    found.extend(5, 13, 1, 60.0, whole=True)
    assert deadlines_of(found) == {0: 50.0, 4: 60.0, 8: 10.0, 12: 60.0}
    found.extend(0, 16, 1, 55.0)
    assert deadlines_of(found) == {0: 55.0, 4: 60.0, 8: 10.0, 12: 60.0}, "never to an earlier time"
    assert found.next_deadline() == 10.0
    assert [(start, end) for start, end, _ in found.expire(10.0)] == [(8, 12)]
    assert found.next_deadline() == 55.0


def test_a_lease_that_ends_with_the_timeout_costs_no_range():
    _, found = flights((0, 9, Member(1, "ann")))
    found.extend(3, 6, 1, 10.0)
    assert deadlines_of(found) == {0: 10.0}


@pytest.mark.parametrize("seed", range(5))
def test_flights_time_out_in_order_of_time_however_many_are_over(seed):
    """Deadlines that are over are dropped all at once when they are many; the first of the others is still found."""
    random, ann = Random(seed), Member(1, "ann")
    cursor, found = flights()
    due = {}
    for offset in range(300):
        now = random.uniform(0.0, 100.0)
        found.add(offset, offset + 1, ann, FIRST, now)
        due[offset] = now + 10.0
        while len(due) > 30:
            settled = random.choice(list(due))
            cursor.ack(settled, settled + 1)
            found.settle(settled, settled + 1)
            del due[settled]
        assert found.next_deadline() == min(due.values())
    assert len(found._deadlines) < 300
    for deadline in sorted(due.values()):
        assert [due[start] for start, _, _ in found.expire(deadline)] == [deadline]
    assert found.next_deadline() is None


def test_a_release_takes_named_messages_or_whole_flights():
    ann, bob = Member(1, "ann"), Member(2, "bob")
    places = [(0, 4, ann), (4, 8, bob), (8, 12, ann)]
    cursor, found = flights(*places)
    cursor.ack(9, 10)
    found.settle(9, 10)
    assert [(a, b) for a, b, _ in found.release(2, 11, 1)] == [(2, 4), (8, 9), (10, 11)]
    assert (found.starts, found.messages) == ([0, 4, 11], 7)
    assert (ann.in_flight, bob.in_flight) == (3, 4)
    assert [(a, b) for a, b, _ in found.release(5, 6, None, whole=True)] == [(4, 8)]
    assert found.release(4, 11, None) == []
    assert (found.starts, found.messages) == ([0, 11], 3)
    assert [(a, b) for a, b, _ in found.release(0, 99, None)] == [(0, 2), (11, 12)]
    assert (found.messages, ann.in_flight, bob.in_flight) == (0, 0, 0)
    assert found.next_deadline() is None


def test_parts_of_a_flight_keep_its_deadline_and_lease():
    ann = Member(1, "ann")
    _, found = flights((0, 9, ann))
    found.extend(0, 9, 1, 30.0)
    assert [(a, b) for a, b, _ in found.release(3, 6, 1)] == [(3, 6)]
    assert deadlines_of(found) == {0: 30.0, 6: 30.0}
    found.change_timeout(0.0)
    assert deadlines_of(found) == {0: math.inf, 6: math.inf}
    assert found.next_deadline() is None
    found.change_timeout(5.0)
    assert deadlines_of(found) == {0: 30.0, 6: 30.0}, "no lease ends earlier"
    found.change_timeout(40.0)
    assert found.next_deadline() == 40.0


def item(start, end, since=0.0):
    return Redelivery(start, end, FIRST.failed(NACKED), None, since, None)


def test_a_range_that_waits_is_taken_up_to_the_end_of_its_batch():
    waiting = Waiting(Cursor())
    waiting.add(item(3, 9), 0.0, 0.0)
    waiting.add(item(20, 22), 5.0, 0.0)
    assert (len(waiting), waiting.messages()) == (2, 8)
    assert waiting.peek() == item(3, 9)
    assert waiting.take(6) == item(3, 6)
    assert waiting.peek() == item(6, 9)
    assert waiting.take(9) == item(6, 9)
    assert waiting.peek() is None
    assert waiting.next_due() == 5.0
    waiting.promote(4.9)
    assert waiting.peek() is None
    waiting.promote(5.0)
    assert waiting.peek() == item(20, 22)


def test_a_message_set_aside_and_acknowledged_is_settled():
    cursor = Cursor()
    aside = Aside(cursor)
    aside.add(item(7, 9))
    aside.add(item(3, 5))
    assert (len(aside), aside.messages(), aside.first()) == (2, 4, item(3, 5))
    cursor.ack(3, 4)
    assert [(each.start, each.end) for each in aside.poisoned(10)] == [(4, 5), (7, 9)]
    assert len(aside.poisoned(1)) == 1
    cursor.ack(4, 5)
    assert aside.first() == item(7, 9)
    cursor.ack(7, 9)
    assert (aside.first(), aside.poisoned(10), len(aside)) == (None, [], 0)


@pytest.mark.parametrize("kind", RANGED)
def test_the_next_deadline_is_the_first_of_all_sorts(kind):
    machine = subscription(kind, "c", ack_timeout_s=30.0)
    first, second, late = batch(0, list("ab")), batch(2, list("ab")), batch(4, list("ab"), due=20.0)
    pump(machine, first, second, late)
    assert machine.next_deadline() == 20.0
    machine.nack(1, [0, 1], 15.0, 1.0)
    assert machine.next_deadline() == 16.0
    machine.nack(1, [1, 2], 28.0, 1.0)
    assert machine.next_deadline() == 16.0
    machine.tick(16.0)
    assert machine.next_deadline() == 20.0
    machine.tick(20.0)
    assert machine.next_deadline() == 29.0
    machine.tick(29.0)
    assert machine.next_deadline() == 30.0


# --- Failure policies ---


@pytest.mark.parametrize("kind", KINDS)
def test_dropped_poison_is_settled_and_counted(kind):
    machine = subscription(kind, "c", poison="drop", max_redelivery_count=0)
    span = batch(0, list("abc"))
    pump(machine, span)
    machine.nack(1, [0, 2], None, 0.0)
    assert machine.take_settled() == [0, 2]
    assert machine.take_settled() == []
    facts = machine.describe(3)
    assert (facts.floor, facts.dropped_messages, facts.poisoned_messages) == (2, 2, 0)
    machine.tick(10.0)
    assert machine.take_settled() == [2, 3]
    assert machine.describe(3).dropped_messages == 3
    assert machine.explain(10.0, 3).state == "caught-up"


@pytest.mark.parametrize("kind", KINDS)
def test_another_policy_counts_for_what_waits_and_for_poison(kind):
    machine = subscription(kind, "c", redelivery_delay_s=5.0, max_redelivery_count=1)
    span = batch(0, list("abcd"))
    pump(machine, span)
    machine.nack(1, [0, 1], None, 0.0)
    machine.tick(5.0)
    pump(machine, span, now=5.0)
    machine.nack(1, [0, 1], None, 5.0)
    machine.nack(1, [1, 2], None, 5.0)
    assert machine.describe(4).poisoned_messages == 1
    change(machine, 6.0, redelivery_delay_s=30.0, max_redelivery_count=5)
    assert machine.describe(4).poisoned_messages == 0
    assert machine.next_deadline() == 10.0, "what is in flight times out as before"
    machine.ack([2, 4], 1, 6.0)
    assert machine.next_deadline() == 35.0, "pauses are counted from the failure"
    change(machine, 7.0, redelivery_delay_s=1.0)
    assert pump(machine, span, now=7.0) == {1: [0, 1]}
    change(machine, 7.0, ack_timeout_s=3.0)
    assert machine.next_deadline() == 10.0
    change(machine, 11.0, poison="dead_letter", max_redelivery_count=1)
    assert [(each.start, each.end, each.failures) for each in machine.poisoned(5)] == [(0, 1, 3), (1, 2, 2)]
    assert machine.describe(4).poisoned_messages == 2
    assert machine.discard([0, 1], 12.0) == [0, 1]
    change(machine, 12.0, poison="drop")
    assert machine.take_settled() == [1, 2]
    assert machine.describe(4).dropped_messages == 1


@pytest.mark.parametrize("kind", RANGED)
def test_a_pause_that_is_over_stays_over_under_another_policy(kind):
    machine = subscription(kind, "c", redelivery_delay_s=5.0)
    span = batch(0, list("ab"))
    pump(machine, span)
    machine.nack(1, [0, 2], None, 0.0)
    change(machine, 6.0, redelivery_delay_s=100.0)
    assert pump(machine, span, now=6.0) == {1: [0, 1]}


# --- Key-shared ---


def test_several_ranges_are_given_back_at_once():
    machine = machine_of([], limits={"max_unacked_messages": 100})
    span = batch(0, list("abcdef"))
    pump(machine, span)
    machine.give_back(1, [0, 2, 4, 6], 1.0)
    assert state_of(machine, 1, 6).in_flight_messages == 2
    assert pump(machine, span, now=1.0) == {1: [0, 1, 4, 5]}


def test_late_acknowledgements_in_any_order_settle_with_their_predecessors():
    """It waited, and was acknowledged out of turn, with one between that was not."""
    for order in ((3, 1, 2), (1, 3, 2), (2, 3, 1), (3, 2, 1), (1, 2, 3)):
        machine = machine_of([])
        span = batch(0, ["a"] * 5)
        assert pump(machine, span) == {1: [0, 1, 2, 3, 4]}
        machine.nack(1, [1, 2], 5.0, 0.0)
        for offset in order:
            assert machine.ack([offset, offset + 1], 1, 1.0) == []
        assert machine.ack([0, 1], 1, 2.0) == [0, 4]
        assert pump(machine, span, now=6.0) == {1: [4]}
        assert machine.ack([4, 5], 1, 7.0) == [4, 5]
        lines = machine._lines
        assert (lines.of, lines.past, lines.early, lines.late) == ({}, {}, set(), {})


def test_a_discard_says_what_it_settles_behind_it():
    machine = machine_of([])
    span = batch(0, ["a", "a", "b", "a"])
    pump(machine, span)
    assert machine.ack([1, 2, 3, 4], 1, 1.0) == []
    assert machine.discard([0, 1], 2.0) == [0, 2, 3, 4]
    assert machine.describe(4).backlog_messages == 1


def test_a_late_acknowledgement_is_forgotten_when_its_message_is_discarded():
    machine = machine_of([])
    pump(machine, batch(0, ["a"] * 4))
    machine.nack(1, [1, 2], 5.0, 0.0)
    machine.ack([2, 4], 1, 1.0)
    assert machine.discard([2, 4], 2.0) == [2, 4]
    assert machine._lines.late == {}
    assert machine.ack([0, 2], 1, 3.0) == [0, 2]


def test_holes_do_not_stop_what_fills_them_and_what_lies_behind_them_waits():
    """With nothing in the window, a subscription goes on below its acknowledged ranges: that adds none."""
    holes = Cursor(0, ranges=[(1, 2), (3, 4), (5, 6)])
    machine = subscription(KEY_SHARED, "c", cursor=holes, limits={"max_ack_ranges": 2})
    late, rest = batch(0, ["a"], due=50.0), batch(1, ["a"] * 5, due=50.0)
    machine.offered(late, 0.0)
    assert machine.next_read(0.0) == (2, False)
    machine.offered(rest, 0.0)
    assert machine.position == 6
    assert machine.next_read(0.0) == (6, False), "two of the holes are delayed batches, which have a bound of their own"
    holes = Cursor(0, ranges=[(1, 2), (3, 4), (5, 6)])
    machine = subscription(KEY_SHARED, "c", cursor=holes, limits={"max_ack_ranges": 2})
    machine.offered(batch(0, ["a"] * 6, due=50.0), 0.0)
    assert machine.position == 6
    assert machine.next_read(0.0) is None
    assert "max_ack_ranges" in machine.explain(0.0, 9).sentence


@pytest.mark.parametrize("size", [0, 3])
def test_one_message_more_than_the_window_waits(size):
    machine = machine_of([], limits={"max_unacked_messages": 3})
    span = batch(0, list("abcde"))
    assert pump(machine, span) == {1: [0, 1, 2]}
    assert machine.explain(0.0, 5).state == "window-full"
    machine.ack([0, size], 1, 0.0)
    assert pump(machine, span) == ({1: [3, 4]} if size else {})


def test_of_all_that_is_ready_the_lowest_offset_is_read_first():
    machine = machine_of(["a*"], ["b*"], ["c*"])
    span = batch(0, list("cba"))
    pump(machine, span)
    machine.nack(None, [0, 3], 0.0, 0.0)
    assert machine.next_read(0.0) == (0, True)
    machine.nack(None, [0, 3], 0.0, 0.0)
    machine.withdraw(3)
    assert machine.next_read(0.0) == (1, True)


def test_few_that_are_left_of_many_are_found_in_a_wide_range():
    machine = machine_of([], limits={"max_unacked_messages": 1000})
    pump(machine, batch(0, [f"key {number}" for number in range(100)]))
    machine.ack([1, 90, 91, 100], 1, 0.0)
    machine.nack(1, [0, 100], None, 1.0, "bad")
    assert pump(machine, batch(0, [f"key {number}" for number in range(100)]), now=1.0) == {1: [0, 90]}
    assert machine.ack([0, 100], 1, 2.0) == [0, 1, 90, 91]
    assert machine.describe(100).backlog_messages == 0


def test_poison_that_is_none_any_more_goes_back_to_its_place():
    machine = machine_of([], poison="dead_letter", max_redelivery_count=0)
    span = batch(0, ["a"] * 5)
    pump(machine, span)
    machine.withdraw(1)
    machine.nack(1, [1, 2], None, 0.0)
    machine.nack(1, [2, 3], None, 0.0)  # it is not in flight any more
    assert [(each.start, each.end) for each in machine.poisoned(5)] == [(1, 2)]
    change(machine, 1.0, max_redelivery_count=5)
    assert machine.poisoned(5) == []
    for offset in (1, 2, 3, 4):
        machine.credit(1, 1, 10**6)
        assert pump(machine, span, now=1.0) == {1: [offset]}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_wait_for_credit_become_poison_by_the_policy(kind):
    machine = subscription(kind, "c", redelivery_delay_s=2.0)
    span = batch(0, list("ab"))
    pump(machine, span)
    machine.withdraw(1)
    machine.nack(1, [0, 1], None, 0.0)
    machine.tick(5.0)
    change(machine, 6.0, poison="dead_letter", max_redelivery_count=0)
    assert [(each.start, each.end) for each in machine.poisoned(5)] == [(0, 1)]


def test_who_left_leaves_nothing_behind():
    machine = machine_of([], [], ["x*"])
    pump(machine, batch(0, list("abcdef")))
    for consumer_id in (1, 3):
        machine.leave(consumer_id, 0.0)
        assert set(machine._lines.ready) == set(machine.consumer_ids)
    assert machine.join(9, "c2", 1.0) == 2
    assert set(machine._lines.ready) == {9}


def test_a_flight_that_is_over_holds_no_offsets():
    flights = KeyFlights()
    flights.add(Member(1, "c"), [3, 4], 0.0, 10.0)
    flight = flights.of[3]
    assert flights.take(3) is flight
    assert flight.offsets == [3, 4]
    assert flights.take(4) is flight
    assert flight.offsets == []


def test_a_key_that_has_moved_with_nothing_in_flight_waits_for_credit():
    machine = machine_of([], [], [])
    names = [f"key {number}" for number in range(40)]
    owner = next(iter(pump(machine, batch(0, names[:1]))))
    machine.ack([0, 1], owner, 0.0)
    machine.leave(owner, 0.0)
    heir = machine._ring.owner(ring_hash(names[0].encode()), names[0].encode()).consumer_id
    machine.withdraw(heir)
    assert pump(machine, batch(1, names[:1])) == {}
    assert machine.explain(0.0, 2).state == "no-credit"
    assert f"'c{heir}'" in machine.explain(0.0, 2).sentence


@pytest.mark.parametrize("kind", KINDS)
def test_messages_without_durability_are_dropped_while_no_consumer_is_connected(kind):
    machine = lossy(kind)
    assert machine.offered(batch(0, list("abc")), 0.0) == []
    assert machine.describe(3).dropped_messages == 3
    assert machine.position == 3


# --- The ring ---


def reference_hash(text):
    """FNV-1a 64, folded, and the finaliser of MurmurHash3 without its first shift: as upstream has it."""
    digest = 14695981039346656037
    for byte in text.encode():
        digest = (digest ^ byte) * 1099511628211 % 2**64
    found = digest // 2**32 ^ digest % 2**32
    found = (found ^ found // 2**16) * 0x85EBCA6B % 2**32
    found = (found ^ found // 2**13) * 0xC2B2AE35 % 2**32
    return found ^ found // 2**16


def test_the_ring_is_the_one_that_is_described():
    assert all(ring_hash(f"key {number}".encode()) == reference_hash(f"key {number}") for number in range(300))
    ring = Ring()
    ring.add(Member(1, "ann"))
    ring.add(Member(2, "bob"))
    assert len(ring._points) == 200
    places = sorted((reference_hash(f"{name}-{point}"), name) for name in ("ann", "bob") for point in range(100))
    for number in range(300):
        place = ring_hash(f"key {number}".encode())
        expected = next((name for at, name in places if at >= place), places[0][1])
        assert ring.owner(place, f"key {number}".encode()).name == expected
    ring.remove(ring._members[0])
    assert len(ring._points) == 100
    assert ring.owner(0, b"any").name == "bob"


def test_a_key_of_a_suspended_consumer_goes_to_the_next_point_of_another():
    names = ("ann", "bob", "cyd", "dan")
    ring = Ring()
    members = [Member(number, name) for number, name in enumerate(names, 1)]
    for member in members:
        ring.add(member)
    places = sorted((reference_hash(f"{name}-{point}"), name) for name in names for point in range(100))

    def expected(place, able):
        behind = [name for at, name in places if at >= place] + [name for _, name in places]
        return next(name for name in behind if name in able)

    for gone in (["ann"], ["ann", "cyd"], ["ann", "cyd", "dan"], list(names)):
        for member in members:
            (ring.suspend if member.name in gone else ring.resume)(member)
        able = set(names) - set(gone) or set(names)
        for number in range(100):
            place = ring_hash(f"key {number}".encode())
            assert ring.owner(place, f"key {number}".encode()).name == expected(place, able)


def test_a_delivery_that_spans_nothing_is_none():
    for kind in KINDS:
        machine = subscription(kind, "c")
        assert machine.offered(Span(0, 3, 30, None, [b"a"] * 3), 0.0)
        assert machine.offered(Span(0, 3, 30, None, [b"a"] * 3), 0.0) == [], "once"
        assert machine.offered(Span(5, 8, 30, None, [b"a"] * 3), 0.0) == [], "in order"
