"""Directed tests of failing messages, for the types that track ranges: one test for each rule."""

from __future__ import annotations

import pytest

from danube.dispatch import Cursor, Poisoned, Span, make_subscription
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType, change_policy

EXCLUSIVE, FAILOVER, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER, SubscriptionType.SHARED
RANGED = [EXCLUSIVE, FAILOVER, SHARED]


def machine_of(kind, *names, limits=None, **policy):
    machine = make_subscription(kind, Cursor(), limits or Limits(), change_policy(SubscriptionPolicy(), policy))
    for consumer_id, name in enumerate(names or ("ann",), 1):
        machine.join(consumer_id, name, 0.0)
        machine.credit(consumer_id, 10**6, 10**9)
    return machine


def span(base, size, due=0.0):
    return Span(base, base + size, 10 * size, None, None, due)


def got(deliveries):
    return [(delivery.consumer_id, delivery.ranges, delivery.attempt) for delivery in deliveries]


def fail_once(machine, base, size, now=0.0, reason=""):
    """Refuse everything that is in flight, and have it again at once."""
    machine.nack(None, [base, base + size], 0.0, now, reason)
    return machine.offered(span(base, size), now)


@pytest.mark.parametrize("kind", RANGED)
def test_pauses_grow_with_failures_and_an_explicit_delay_is_taken_as_it_is(kind):
    machine = machine_of(kind, max_redelivery_count=-1, max_redelivery_delay_s=3.0)
    machine.offered(span(0, 1), 0.0)
    for now, due in ((0.0, 1.0), (1.0, 3.0), (3.0, 6.0), (6.0, 9.0)):  # pauses of 1, 2, 3 (the longest), 3
        machine.nack(1, [0, 1], None, now)
        assert machine.next_deadline() == due
        assert machine.next_read(due - 0.001) == (1, False)
        assert machine.offered(span(0, 1), due - 0.001) == []
        assert len(machine.offered(span(0, 1), due)) == 1
    machine.nack(1, [0, 1], 0.25, 9.0)
    assert machine.next_deadline() == 9.25
    machine.tick(9.25)
    assert machine.next_read(9.25) == (0, True)


@pytest.mark.parametrize("kind", RANGED)
def test_a_timeout_is_a_failure_and_a_lost_consumer_is_none(kind):
    machine = machine_of(kind, max_redelivery_count=1, poison="dead_letter", ack_timeout_s=10.0)
    machine.offered(span(0, 1), 0.0)
    for attempt in range(2, 9):
        machine.leave(attempt - 1, 0.0)
        machine.join(attempt, f"c{attempt}", 0.0)
        machine.credit(attempt, 10, 1000)
        assert got(machine.offered(span(0, 1), 0.0)) == [(attempt, [0, 1], attempt)], "at once, however often"
    machine.tick(10.0)
    assert machine.poisoned(9) == []
    machine.tick(11.0)
    assert got(machine.offered(span(0, 1), 11.0)) == [(8, [0, 1], 9)]
    machine.tick(21.0)
    assert machine.poisoned(9) == [Poisoned(0, 1, 9, 2, "ack timeout")]


@pytest.mark.parametrize("kind", RANGED)
def test_six_deliveries_and_then_poison(kind):
    machine = machine_of(kind)
    machine.offered(span(0, 1), 0.0)
    for attempt in range(2, 7):
        assert got(fail_once(machine, 0, 1)) == [(1, [0, 1], attempt)]
    assert fail_once(machine, 0, 1) == []
    assert machine.describe(1).poisoned_messages == 1


@pytest.mark.parametrize("kind", RANGED)
def test_block_stops_everything_and_what_is_in_flight_may_be_acknowledged(kind):
    machine = machine_of(kind, max_redelivery_count=0)
    machine.offered(span(0, 10), 0.0)
    machine.nack(1, [3, 5], None, 1.0, "cannot parse")
    assert machine.next_read(1.0) is None
    assert machine.offered(span(0, 10), 1.0) == machine.offered(span(10, 10), 1.0) == []
    assert machine.ack([0, 3, 5, 8], 1, 2.0) == [0, 3, 5, 8]
    explanation = machine.explain(2.0, 20)
    assert explanation.state == "blocked"
    assert explanation.sentence.startswith("2 messages from 3 on have failed once (cannot parse)")
    assert machine.poisoned(10) == [], "nothing is to be copied"
    machine.leave(1, 3.0)
    machine.join(2, "bob", 3.0)
    machine.credit(2, 100, 1000)
    assert machine.next_read(3.0) is None, "what waits is blocked, too"
    assert machine.ack([3, 4], None, 4.0) == [3, 4]
    assert machine.next_read(4.0) is None
    assert machine.ack([4, 5], None, 4.0) == [4, 5], "a late acknowledgement of the poison unblocks"
    assert machine.next_read(4.0) == (8, True)
    assert got(machine.offered(span(0, 10), 4.0)) == [(2, [8, 10], 2)]
    assert machine.next_read(4.0) == (10, False)


@pytest.mark.parametrize("kind", RANGED)
@pytest.mark.parametrize("way", ["discard", "seek", "policy", "more chances"])
def test_ways_out_of_a_block(kind, way):
    machine = machine_of(kind, max_redelivery_count=0)
    machine.offered(span(0, 2), 0.0)
    machine.nack(1, [0, 2], 0.0, 0.0)
    assert machine.next_read(0.0) is None
    if way == "discard":
        assert machine.discard([0, 2], 1.0) == [0, 2]
        assert machine.next_read(1.0) == (2, False)
    elif way == "seek":
        machine.seek(0, 1.0)
        assert machine.next_read(1.0) == (0, False)
        assert got(machine.offered(span(0, 2), 1.0)) == [(1, [0, 2], 1)], "a seek forgets its failures"
    elif way == "policy":
        machine.change_policy(change_policy(machine.policy, {"poison": "drop"}), 1.0)
        assert machine.take_settled() == [0, 2]
        assert machine.next_read(1.0) == (2, False)
    else:
        machine.change_policy(change_policy(machine.policy, {"max_redelivery_count": 1}), 1.0)
        assert machine.next_read(1.0) == (0, True)
        assert machine.describe(2).poisoned_messages == 0


@pytest.mark.parametrize("kind", RANGED)
def test_drop_acknowledges_and_counts_and_tells_the_owner_once(kind):
    machine = machine_of(kind, max_redelivery_count=0, poison="drop")
    machine.offered(span(0, 10), 0.0)
    assert not machine.settled_itself
    machine.nack(1, [4, 6], None, 0.0)
    machine.nack(1, [2, 4, 8, 9], None, 0.0)
    assert machine.settled_itself
    assert machine.take_settled() == [2, 6, 8, 9], "sorted and joined"
    assert not machine.settled_itself
    assert machine.take_settled() == []
    assert machine.describe(10).dropped_messages == 5
    assert machine.ack([0, 10], 1, 0.0) == [0, 2, 6, 8, 9, 10]
    assert machine.cursor.floor == 10
    assert machine.next_deadline() is None


@pytest.mark.parametrize("kind", RANGED)
def test_dead_letters_are_set_aside_until_they_are_discarded(kind):
    machine = machine_of(kind, max_redelivery_count=0, poison="dead_letter")
    machine.offered(span(0, 10), 0.0)
    machine.nack(1, [6, 8], None, 0.0, "second")
    machine.nack(1, [1, 3], None, 0.0, "first")
    assert machine.poisoned(1) == [Poisoned(1, 3, 1, 1, "first")]
    assert machine.poisoned(5) == [Poisoned(1, 3, 1, 1, "first"), Poisoned(6, 8, 1, 1, "second")]
    assert machine.next_read(0.0) == (10, False), "others go on"
    facts = machine.describe(10)
    assert (facts.poisoned_messages, facts.waiting_messages, facts.in_flight_messages) == (4, 0, 6)
    assert machine.ack([0, 7], 1, 0.0) == [0, 7], "also what is set aside, late"
    assert machine.poisoned(5) == [Poisoned(7, 8, 1, 1, "second")]
    assert machine.explain(0.0, 10).state == "dead-lettering"
    assert machine.discard([7, 8], 0.0) == [7, 8]
    assert machine.poisoned(5) == []
    machine.nack(1, [8, 9], None, 0.0)
    assert machine.poisoned(5) == [Poisoned(8, 9, 1, 1, "nack")]


@pytest.mark.parametrize("kind", RANGED)
def test_messages_that_a_new_policy_makes_poison(kind):
    """The new policy applies to waiting messages at once, and to those in flight when they are returned."""
    machine = machine_of(kind, max_redelivery_count=5, poison="dead_letter")
    machine.offered(span(0, 3), 0.0)
    fail_once(machine, 0, 3)
    fail_once(machine, 0, 3)
    machine.nack(1, [0, 1], 50.0, 0.0, "later")
    machine.nack(1, [1, 2], 0.0, 0.0, "now")
    machine.change_policy(change_policy(machine.policy, {"max_redelivery_count": 1}), 1.0)
    assert machine.poisoned(5) == [Poisoned(0, 1, 3, 3, "later"), Poisoned(1, 2, 3, 3, "now")]
    machine.leave(1, 1.0)
    assert machine.poisoned(5)[-1] == Poisoned(2, 3, 3, 2, "nack"), "it had failed twice before"


@pytest.mark.parametrize("kind", RANGED)
def test_new_pauses_and_timeouts_count_at_once(kind):
    machine = machine_of(kind, ack_timeout_s=100.0, redelivery_delay_s=50.0)
    machine.offered(span(0, 4), 0.0)
    machine.nack(1, [0, 1], None, 10.0)
    machine.nack(1, [1, 2], 30.0, 10.0)
    machine.extend(1, [2, 3], 70.0, 10.0)
    assert machine.next_deadline() == 40.0
    machine.extend(1, [3, 4], 95.0, 10.0)
    policy = change_policy(machine.policy, {"redelivery_delay_s": 5.0, "ack_timeout_s": 20.0})
    machine.change_policy(policy, 12.0)
    assert machine.next_deadline() == 15.0, "5 s after it failed"
    machine.tick(15.0)
    assert machine.next_read(15.0) == (0, True)
    machine.ack([0, 1], 1, 15.0)
    assert machine.next_deadline() == 20.0, "the one that was extended to an earlier time than its own was not extended"
    machine.tick(20.0)
    assert machine.describe(4).in_flight_messages == 1
    machine.ack([1, 3], 1, 20.0)
    assert machine.next_deadline() == 105.0, "an extended one keeps its time"
    machine.change_policy(change_policy(policy, {"ack_timeout_s": 0.0}), 30.0)
    assert machine.next_deadline() is None
    machine.change_policy(change_policy(policy, {"ack_timeout_s": 25.0}), 120.0)
    assert machine.describe(4).in_flight_messages == 0, "it was due when the policy came"


def test_an_extended_lease_never_ends_earlier_and_cuts_exactly():
    machine = machine_of(EXCLUSIVE, ack_timeout_s=10.0, redelivery_delay_s=0.0)
    machine.offered(span(0, 10), 0.0)
    machine.extend(1, [0, 10], 3.0, 1.0)
    assert machine.next_deadline() == 10.0
    machine.extend(1, [4, 6], 20.0, 1.0)
    machine.extend(2, [0, 10], 99.0, 1.0)
    assert machine.next_deadline() == 10.0, "a stranger extends nothing"
    machine.tick(10.0)
    assert got(machine.offered(span(0, 10), 10.0)) == [(1, [0, 4, 6, 10], 2)]
    assert machine.next_deadline() == 20.0
    machine.tick(20.9)
    assert machine.ack([0, 4, 6, 10], 1, 20.9) == [0, 4, 6, 10]
    assert machine.next_deadline() == 21.0
    machine.tick(21.0)
    assert got(machine.offered(span(0, 10), 21.0)) == [(1, [4, 6], 2)]


def test_at_the_bound_of_ranges_a_lease_takes_the_whole_flight():
    machine = machine_of(EXCLUSIVE, ack_timeout_s=10.0, limits=Limits(max_in_flight_ranges=3))
    machine.offered(span(0, 100), 0.0)
    for offset in range(0, 100, 10):
        machine.extend(1, [offset, offset + 1], 20.0 + offset, 0.0)
    assert machine._tracked() <= 4
    assert machine.next_deadline() >= 10.0
    assert machine.describe(100).in_flight_messages == 100


# --- suspension ------------------------------------------------------------------------------------------------------


def test_a_failover_consumer_that_lets_a_message_time_out_is_passed_over():
    machine = machine_of(FAILOVER, "ann", "bob", "cyd", ack_timeout_s=10.0)
    machine.offered(span(0, 4), 0.0)
    machine.offered(span(4, 4), 5.0)
    machine.tick(10.0)
    assert machine.active == 2
    assert [consumer.suspended for consumer in machine.describe(8).consumers] == [True, False, False]
    assert machine.next_read(10.0) == (4, True), "what had not timed out comes at once, the other after its pause"
    assert got(machine.offered(span(4, 4), 10.0)) == [(2, [4, 8], 2)]
    assert got(machine.offered(span(0, 4), 11.0)) == [(2, [0, 4], 2)]
    assert machine.ack([0, 2], 1, 12.0) == [0, 2], "a late acknowledgement counts, and is a sign of life"
    assert machine.active == 2, "it stands by from now on"
    assert not machine.describe(8).consumers[0].suspended
    machine.leave(2, 12.0)
    assert machine.active == 1


@pytest.mark.parametrize("sign", ["ack", "nack", "extend", "credit"])
def test_signs_of_life(sign):
    machine = machine_of(FAILOVER, "ann", "bob", ack_timeout_s=10.0, redelivery_delay_s=0.0)
    machine.offered(span(0, 4), 0.0)
    machine.tick(10.0)
    machine.offered(span(0, 4), 10.0)
    machine.tick(20.0)
    assert machine.active == 2, "no other one is better: it stays"
    if sign == "ack":
        machine.ack([], 1, 20.0)
    elif sign == "nack":
        machine.nack(1, [], None, 20.0)
    elif sign == "extend":
        machine.extend(1, [], 1.0, 20.0)
    else:
        machine.credit(1, 0, 0)
        assert machine.active == 2, "no credit, no sign"
        machine.credit(1, 1, 0)
    assert machine.active == 1
    assert machine.next_read(20.0) == (0, True)


def test_a_newcomer_takes_over_from_a_suspended_consumer_and_a_successor_takes_its_place():
    machine = machine_of(FAILOVER, "ann", ack_timeout_s=10.0, redelivery_delay_s=0.0)
    machine.offered(span(0, 4), 0.0)
    machine.tick(10.0)
    assert machine.active == 1
    machine.offered(span(0, 4), 10.0)
    machine.join(2, "bob", 11.0)
    machine.credit(2, 10, 1000)
    assert machine.active == 2
    assert got(machine.offered(span(0, 4), 11.0)) == [(2, [0, 4], 3)]
    machine.credit(1, 1, 0)
    assert machine.join(3, "bob", 12.0) == 2
    assert machine.active == 3, "the same consumer, though ann is before it in the line"


def test_exclusive_and_shared_suspend_no_consumer():
    for kind in (EXCLUSIVE, SHARED):
        machine = machine_of(kind, ack_timeout_s=10.0)
        machine.offered(span(0, 4), 0.0)
        machine.tick(10.0)
        assert not machine.describe(4).consumers[0].suspended


# --- the window ------------------------------------------------------------------------------------------------------


def test_the_window_is_the_policys_and_changes_at_once():
    machine = machine_of(SHARED, max_unacked_messages=5)
    assert got(machine.offered(span(0, 20), 0.0)) == [(1, [0, 5], 1)]
    assert machine.next_read(0.0) is None
    machine.change_policy(change_policy(machine.policy, {"max_unacked_messages": 8}), 0.0)
    assert got(machine.offered(span(0, 20), 0.0)) == [(1, [5, 8], 1)]
    machine.change_policy(change_policy(machine.policy, {"max_unacked_messages": 2}), 0.0)
    assert machine.next_read(0.0) is None
    machine.ack([0, 7], 1, 0.0)
    assert machine.next_read(0.0) == (8, False)
    assert "window of 2 " in machine_explained_full(machine)


def machine_explained_full(machine):
    machine.offered(span(0, 20), 0.0)
    return machine.explain(0.0, 20).sentence


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_one_receiver_has_a_window_only_by_policy_and_batches_stay_whole(kind):
    limits = Limits(max_unacked_messages=3)
    assert got(machine_of(kind, limits=limits).offered(span(0, 20), 0.0)) == [(1, [0, 20], 1)]
    machine = machine_of(kind, max_unacked_messages=15)
    machine.offered(span(0, 10), 0.0)
    machine.offered(span(10, 10), 0.0)
    assert machine.next_read(0.0) is None
    assert machine.offered(span(20, 10), 0.0) == []
    machine.ack([0, 6], 1, 0.0)
    assert machine.next_read(0.0) == (20, False)


# --- delayed batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RANGED)
def test_a_delayed_batch_is_overtaken_and_comes_when_it_is_due(kind):
    machine = machine_of(kind)
    assert machine.offered(span(0, 5, due=30.0), 0.0) == []
    assert machine.position == 5
    assert machine.explain(10.0, 5).state == "waiting-for-delivery-time"
    assert machine.explain(10.0, 5).sentence == "5 messages wait for their delivery time, the next in 20.0 s"
    assert got(machine.offered(span(5, 5), 0.0)) == [(1, [5, 10], 1)]
    assert machine.next_deadline() == 30.0
    machine.ack([5, 10], 1, 1.0)
    facts = machine.describe(10)
    assert (facts.delayed_messages, facts.waiting_messages, facts.backlog_messages) == (5, 0, 5)
    assert machine.ack([0, 5], 1, 1.0) == [], "never delivered"
    assert machine.offered(span(0, 5, due=30.0), 29.9) == []
    machine.tick(30.0)
    assert machine.next_read(30.0) == (0, True)
    assert machine.ack([0, 5], 1, 30.0) == [], "due, and still not delivered"
    assert got(machine.offered(span(0, 5, due=30.1), 30.0)) == [(1, [0, 5], 1)], (
        "a clock that differs a bit is no matter"
    )
    assert machine.describe(10).redelivered_messages == 0
    assert machine.ack([0, 5], 1, 31.0) == [0, 5]
    assert machine.next_deadline() is None


def test_a_cumulative_acknowledgement_does_not_take_what_was_never_delivered():
    machine = machine_of(EXCLUSIVE)
    machine.offered(span(0, 5), 0.0)
    machine.offered(span(5, 5, due=9.0), 0.0)
    machine.offered(span(10, 5), 0.0)
    assert machine.ack_cumulative(14, 1, 1.0) == [0, 5, 10, 15]
    machine.tick(9.0)
    assert got(machine.offered(span(5, 5), 9.0)) == [(1, [5, 10], 1)]
    assert machine.ack_cumulative(14, 1, 9.0) == [5, 10]


@pytest.mark.parametrize("kind", RANGED)
def test_delayed_batches_are_outside_the_window_until_they_are_due(kind):
    machine = machine_of(kind, max_unacked_messages=10)
    for base in range(0, 40, 10):
        machine.offered(span(base, 10, due=5.0), 0.0)
    assert sum(delivery.messages for delivery in machine.offered(span(40, 10), 0.0)) == 10
    assert machine.next_read(0.0) is None
    machine.ack([40, 50], 1, 0.0)
    machine.tick(5.0)
    assert machine.next_read(5.0) == (0, True)
    assert machine.offered(span(50, 10), 5.0) == [], "they are in the window now, and before what is new"


@pytest.mark.parametrize("kind", RANGED)
def test_too_many_delayed_batches_stop_new_ones(kind):
    machine = machine_of(kind, limits=Limits(max_delayed_ranges=2))
    machine.offered(span(0, 5, due=8.0), 0.0)
    machine.offered(span(5, 5, due=9.0), 0.0)
    assert machine.next_read(0.0) is None
    assert machine.offered(span(10, 5), 0.0) == []
    explanation = machine.explain(0.0, 20)
    assert explanation.state == "window-full"
    assert "(max_delayed_ranges)" in explanation.sentence
    assert machine.discard([0, 10], 0.0) == [0, 10]
    assert machine.next_read(0.0) == (10, False)
    machine.offered(span(10, 5, due=8.0), 0.0)
    machine.tick(8.0)
    assert machine.next_read(8.0) == (10, True)


@pytest.mark.parametrize("kind", RANGED)
def test_delayed_batches_among_others_stop_nothing_before_their_own_bound(kind):
    """Each makes a hole between acknowledged messages, and these were stopped by ``max_ack_ranges``."""
    limits = Limits(max_ack_ranges=2, max_delayed_ranges=10)
    machine = machine_of(kind, limits=limits)
    taken = 0
    while machine.next_read(0.0) == (5 * taken, False):
        machine.offered(span(5 * taken, 5, due=0.0 if taken % 2 else 9.0), 0.0)
        machine.ack([0, 5 * taken + 5], 1, 0.0)
        taken += 1
    assert taken == 19
    assert machine.cursor.range_count == 9
    assert "(max_delayed_ranges)" in machine.explain(0.0, 200).sentence
    machine.tick(9.0)
    for number in range(0, 19, 2):
        assert machine.next_read(9.0) == (5 * number, True)
        machine.offered(span(5 * number, 5), 9.0)
        machine.ack([5 * number, 5 * number + 5], 1, 9.0)
    assert machine.next_read(9.0) == (95, False)
    assert machine.cursor.floor == 95


def test_an_expired_delayed_message_is_gone_and_wakes_no_consumer():
    machine = machine_of(SHARED)
    machine.offered(span(0, 5, due=30.0), 0.0)
    assert machine.discard([0, 5], 10.0) == [0, 5]
    assert machine.next_deadline() is None
    assert machine.describe(5).delayed_messages == 0
    assert machine.next_read(30.0) == (5, False)
