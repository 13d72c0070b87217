"""Directed tests of machines, for mutants that no other test detected."""

from __future__ import annotations

import pytest
from dispatch_models import offsets_of
from key_helpers import batch, change, fail, machine_of, pump

from danube.dispatch import Cursor, Span, make_subscription
from danube.model.limits import Limits
from danube.model.policies import PoisonPolicy, SubscriptionPolicy, SubscriptionType, change_policy

RANGED = [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER, SubscriptionType.SHARED]


def ranged_of(kind, *names, **policy):
    changed = change_policy(SubscriptionPolicy(ack_timeout_s=10.0, redelivery_delay_s=0.0), policy)
    machine = make_subscription(kind, Cursor(), Limits(), changed)
    for consumer_id, name in enumerate(names, 1):
        machine.join(consumer_id, name, 0.0)
        machine.credit(consumer_id, 1000, 10**6)
    return machine


def test_waiting_messages_are_read_from_the_lowest_offset_for_any_consumer():
    machine = machine_of(["a*"], ["b*"])
    span = batch(0, list("ab"))
    assert pump(machine, span) == {1: [0], 2: [1]}
    machine.nack(None, [0, 2], 5.0, 0.0)
    assert machine.next_read(6.0).offset == 0


def test_a_retry_that_is_due_when_the_batch_comes_goes_out_with_it():
    """The batch was asked for before; reading it took a while."""
    machine = machine_of([])
    first, second = batch(0, ["a"]), batch(1, ["b", "c"])
    assert pump(machine, first) == {1: [0]}
    machine.nack(1, [0, 1], 5.0, 0.0)
    assert machine.next_read(4.0).offset == 1
    assert [offsets_of(delivery.ranges) for delivery in machine.offered(first, 6.0)] == [[0]]
    assert pump(machine, second, now=6.0) == {1: [1, 2]}


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_delayed_message_that_was_delivered_can_be_acknowledged_by_everything_below(kind):
    machine = make_subscription(kind, Cursor(), Limits(), SubscriptionPolicy())
    machine.join(1, "c", 0.0)
    machine.credit(1, 100, 10**6)
    late = Span(0, 2, 20, None, [b"a", b"b"], 50.0)
    machine.offered(late, 0.0)
    assert machine.ack([0, 2], None, 1.0) == [], "it was not delivered"
    pump(machine, late, now=60.0)
    assert machine.ack([0, 2], None, 61.0) == [0, 2]
    assert machine.explain(61.0, 2).state == "caught-up"


def test_several_ranges_may_be_refused_extended_and_given_back_at_once():
    for kind in RANGED:
        machine = ranged_of(kind, "c")
        span = Span(0, 6, 60)
        machine.offered(span, 0.0)
        machine.extend(1, [0, 1, 2, 3, 5, 6], 30.0, 0.0)
        machine.tick(10.0)
        assert machine.describe(6).waiting_messages == 3
        machine.nack(1, [0, 1, 2, 3, 5, 6], 99.0, 10.0)
        assert machine.describe(6).waiting_messages == 6
        assert machine.describe(6).in_flight_messages == 0
        machine = ranged_of(kind, "c")
        machine.offered(span, 0.0)
        machine.give_back(1, [0, 1, 2, 3, 5, 6], 1.0)
        assert machine.describe(6).waiting_messages == 3
    machine = machine_of([])
    span = batch(0, list("abcdef"))
    pump(machine, span)
    machine.extend(1, [0, 1, 2, 3, 5, 6], 30.0, 0.0)
    machine.tick(10.0)
    assert machine.describe(6).waiting_messages == 3
    machine.nack(1, [0, 1, 2, 3, 5, 6], 99.0, 10.0)
    assert machine.describe(6).waiting_messages == 6


def test_poison_side_by_side_with_one_history_is_one_range():
    machine = machine_of([], max_redelivery_count=1, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead")
    span = batch(0, list("abcde"))
    pump(machine, span)
    for offset in (0, 1, 2):
        fail(machine, offset, span, 2)
    fail(machine, 4, span, 2)
    fresh = machine.poisoned(10)
    assert [(one.start, one.end) for one in fresh] == [(0, 3), (4, 5)]
    assert [(one.start, one.end) for one in machine.poisoned(1)] == [(0, 3)]
    assert [one.failures for one in fresh] == [2, 2]


def test_poison_that_is_forgiven_goes_back_between_its_neighbours():
    """Behind what was sent of its key, in the order of offsets, however many wait."""
    machine = machine_of([], max_redelivery_count=1, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead")
    span = batch(0, ["k"] * 6)
    pump(machine, span)
    fail(machine, 2, span, 2)
    assert [one.start for one in machine.poisoned(10)] == [2]
    machine.nack(1, [3, 6], 50.0, 0.0)
    change(machine, poison=PoisonPolicy.BLOCK)
    machine.ack([0, 2], 1, 0.0)
    change(machine, max_redelivery_count=5)
    assert pump(machine, span, now=60.0) == {1: [2, 3, 4, 5]}


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_seek_forgets_what_failed(kind):
    machine = make_subscription(kind, Cursor(), Limits(), SubscriptionPolicy(redelivery_delay_s=100.0))
    machine.join(1, "c", 0.0)
    machine.credit(1, 100, 10**6)
    span = Span(0, 2, 20, None, [b"a", b"b"])
    machine.offered(span, 0.0)
    machine.nack(1, [0, 1], None, 0.0, "bad")
    machine.seek(0, 1.0)
    (delivery,) = machine.offered(span, 1.0)
    assert (offsets_of(delivery.ranges), delivery.attempt) == ([0, 1], 1)
    assert machine.failures(0) == machine.failures(1) == 0


def test_failures_are_those_of_the_flight_at_an_offset():
    for kind in RANGED:
        machine = ranged_of(kind, "c", redelivery_delay_s=0.0)
        span = Span(0, 8, 80)
        assert machine.failures(0) == 0, "nothing is in flight"
        machine.offered(span, 0.0)
        machine.nack(1, [2, 4], 0.0, 0.0)
        machine.ack([6, 8], 1, 0.0)
        machine.offered(span, 0.0)
        assert [machine.failures(offset) for offset in (0, 1, 2, 3, 4, 5, 8, 9)] == [0, 0, 1, 1, 0, 0, 0, 0]


def test_the_key_with_the_oldest_waiting_message_is_named():
    machine = machine_of([])
    span = batch(0, list("ba"))
    pump(machine, span)
    machine.nack(1, [1, 2], 30.0, 0.0)
    machine.nack(1, [0, 1], 30.0, 0.0)
    assert machine.explain(1.0, 2).sentence.startswith("1 message of key 'b' waits for redelivery")
    machine.ack([0, 1], 1, 1.0)
    assert machine.explain(1.0, 2).sentence.startswith("1 message of key 'a' waits for redelivery")


def test_without_credit_for_bytes_a_lossy_consumer_of_keys_gets_nothing():
    machine = make_subscription(SubscriptionType.KEY_SHARED, Cursor(), Limits(), SubscriptionPolicy(), lossy=True)
    machine.join(1, "c", 0.0)
    machine.credit(1, 100, 0)
    assert machine.offered(Span(0, 2, 20, None, [b"a", b"b"]), 0.0) == []
    assert machine.describe(2).dropped_messages == 2
    machine.credit(1, 0, 1)
    deliveries = machine.offered(Span(2, 4, 20, None, [b"a", b"b"]), 0.0)
    assert [type(one).__name__ for one in deliveries] == ["Gap", "Delivery"]
    assert (deliveries[0].start, deliveries[0].end) == (0, 2)
