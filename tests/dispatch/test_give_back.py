"""Messages returned by a stuck consumer are delivered to others at once, in order, and have not failed."""

from __future__ import annotations

import pytest

from danube.dispatch import Cursor, Span, make_subscription
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

FAILOVER, SHARED, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.SHARED, SubscriptionType.KEY_SHARED

STRICT = SubscriptionPolicy(max_redelivery_count=0)
"""One failure, and a message is poison."""


def machine_of(kind, *names):
    machine = make_subscription(kind, Cursor(), Limits(), STRICT)
    for consumer_id, name in enumerate(names, 1):
        machine.join(consumer_id, name, 0.0)
    return machine


def span(base, size):
    return Span(base, base + size, 10 * size, None, [b"k"] * size)


def delivered(machine, batch, now):
    found = {}
    for delivery in machine.offered(batch, now):
        flat = delivery.ranges
        offsets = [offset for low, high in zip(flat[::2], flat[1::2], strict=True) for offset in range(low, high)]
        found.setdefault(delivery.consumer_id, []).extend((offset, delivery.attempt) for offset in offsets)
    return found


@pytest.mark.parametrize("kind", [FAILOVER, SHARED, KEY_SHARED])
def test_messages_given_back_go_to_another_consumer_without_a_failure(kind):
    machine = machine_of(kind, "ann", "bob")
    batch = span(0, 6)
    machine.credit(1, 100, 10**6)
    owner = 1
    first = delivered(machine, batch, 0.0)
    if not first:  # bob has the key
        machine.credit(2, 100, 10**6)
        owner = 2
        first = delivered(machine, batch, 0.0)
    other = 3 - owner
    assert first == {owner: [(offset, 1) for offset in range(6)]}
    machine.ack([0, 1], owner, 1.0)
    machine.credit(other, 100, 10**6)
    machine.give_back(owner, [2, 6], 2.0)
    states = {state.consumer_id: state for state in machine.describe(6).consumers}
    # Offset 1 is still being handled; a failover consumer that stands by now has nothing any more.
    assert states[owner].in_flight_messages == (0 if kind is FAILOVER else 1)
    if kind is KEY_SHARED:
        # The others must not overtake offset 1.
        assert machine.next_read(2.0) is None or not delivered(machine, batch, 2.0)
        machine.ack([1, 2], None, 3.0)
    if kind is FAILOVER:
        assert machine.active == other, "a stuck consumer does not stay active"
    assert machine.next_read(3.0) is not None
    again = delivered(machine, batch, 3.0)
    taken = again[other]
    assert [offset for offset, _ in taken][-4:] == [2, 3, 4, 5]
    assert {attempt for offset, attempt in taken if offset > 1} == {2}
    assert machine.describe(6).poisoned_messages == 0
    machine.nack(other, [2, 3], None, 4.0, "really")
    assert machine.describe(6).poisoned_messages == 1, "a failure counts, unlike what was given back"


@pytest.mark.parametrize("kind", [FAILOVER, SHARED, KEY_SHARED])
def test_only_what_is_in_flight_at_the_consumer_counts(kind):
    machine = machine_of(kind, "ann")
    machine.credit(1, 100, 10**6)
    assert delivered(machine, span(0, 4), 0.0)
    machine.give_back(7, [0, 4], 1.0)
    machine.give_back(1, [10, 20], 1.0)
    assert machine.describe(4).in_flight_messages == 4
    machine.give_back(1, [0, 4], 2.0)
    assert machine.describe(4).in_flight_messages == 0
    assert delivered(machine, span(0, 4), 2.0) == {1: [(offset, 2) for offset in range(4)]}, "it is the only consumer"
