"""Topics without durability: which consumer gets a batch, dropped messages, and notifications of consumers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.dispatch import Cursor, Delivery, Gap, Span, make_subscription
from danube.dispatch.ring import ring_hash
from danube.model.errors import SubscriptionBusyError
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

EXCLUSIVE, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER
SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


def lossy(kind, *names, credit=0):
    machine = make_subscription(kind, Cursor(), Limits(), lossy=True)
    for consumer_id, name in enumerate(names, 1):
        machine.join(consumer_id, name, 0.0)
        machine.credit(consumer_id, credit, 10**9)
    return machine


def span(base, size, keys=None):
    return Span(base, base + size, 10 * size, "t", keys and [key.encode() for key in keys])


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_one_receiver_gets_whole_batches_and_hears_of_gaps(kind):
    machine = lossy(kind, "ann", credit=1)
    assert machine.offered(span(0, 5), 0.0) == [Delivery(1, "t", 0, [0, 5], 1, True, 5, 50)]
    assert machine.offered(span(5, 5), 0.0) == []
    assert machine.offered(span(10, 5), 0.0) == []
    machine.credit(1, 5, 0)
    assert machine.offered(span(15, 5), 0.0) == [Gap(1, 5, 15), Delivery(1, "t", 15, [15, 20], 1, True, 5, 50)]
    assert machine.describe(20).dropped_messages == 10
    assert machine.cursor.floor == machine.position == 20


def test_exclusive_refuses_and_failover_promotes():
    with pytest.raises(SubscriptionBusyError):
        lossy(EXCLUSIVE, "ann", "bob")
    machine = lossy(FAILOVER, "ann", "bob", credit=100)
    assert machine.active == 1
    machine.leave(1, 0.0)
    assert machine.active == 2
    assert [d.consumer_id for d in machine.offered(span(0, 5), 0.0)] == [2]


def test_shared_uses_the_credit_of_all_before_it_drops():
    machine = lossy(SHARED, "ann", "bob", credit=4)
    deliveries = machine.offered(span(0, 10), 0.0)
    assert [(d.consumer_id, d.ranges) for d in deliveries] == [(1, [0, 4]), (2, [4, 8])]
    machine.credit(1, 5, 0)
    assert machine.offered(span(10, 1), 0.0)[0] == Gap(1, 8, 10)


def test_a_consumer_whose_credit_is_withdrawn_gets_nothing_until_it_has_it_again():
    machine = lossy(SHARED, "ann", "bob", credit=100)
    assert machine.withdraw(1) == (100, 10**9)
    assert machine.withdraw(1) == machine.withdraw(7) == (0, 0)
    assert [d.consumer_id for d in machine.offered(span(0, 10), 0.0)] == [2]
    machine.credit(1, 100, 10**9)
    assert sorted(d.consumer_id for d in machine.offered(span(10, 10), 0.0)) == [1, 2]


def test_nothing_is_kept_acknowledged_or_repeated():
    machine = lossy(SHARED, "ann", credit=100)
    machine.offered(span(0, 5), 0.0)
    assert machine.offered(span(0, 5), 0.0) == []
    assert machine.ack([0, 5], 1, 0.0) == machine.discard([0, 5], 0.0) == []
    machine.nack(1, [0, 5], 0.0, 0.0)
    machine.tick(1e6)
    assert machine.next_read(1e6) is None
    assert machine.next_deadline() is None
    machine.seek(8, 0.0)
    assert machine.offered(span(5, 5), 0.0)[0].ranges == [8, 10]


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from([SHARED, KEY_SHARED, FAILOVER]),
    steps=st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=6), st.integers(0, 2), st.integers(0, 5)), max_size=30
    ),
)
def test_every_message_is_delivered_once_or_counted_as_dropped(kind, steps):
    machine = lossy(kind, "ann", "bob")
    balance = {1: 0, 2: 0}
    base = 0
    seen = []
    for keys, consumer_id, credit in steps:
        if consumer_id:
            machine.credit(consumer_id, credit, 10**9)
            balance[consumer_id] += credit
        for item in machine.offered(span(base, len(keys), list(keys)), 0.0):
            if isinstance(item, Gap):
                assert item.start < item.end <= base
                continue
            if kind is not FAILOVER:
                assert item.messages <= balance[item.consumer_id]
            balance[item.consumer_id] -= item.messages
            for index in range(0, len(item.ranges), 2):
                for offset in range(item.ranges[index], item.ranges[index + 1]):
                    seen.append(offset)
                    if kind is KEY_SHARED:
                        owner = machine._ring.owner(ring_hash(keys[offset - base].encode()))
                        assert owner.consumer_id == item.consumer_id
        base += len(keys)
    assert len(set(seen)) == len(seen)
    assert len(seen) + machine.describe(base).dropped_messages == base


def test_keys_that_no_filter_lets_through_are_skipped_and_no_loss():
    machine = make_subscription(KEY_SHARED, Cursor(), Limits(), lossy=True)
    machine.join(1, "ann", 0.0, ["a*"])
    machine.join(2, "bob", 0.0, ["b?"])
    for consumer_id in (1, 2):
        machine.credit(consumer_id, 10, 1000)
    deliveries = machine.offered(span(0, 5, ["a", "b", "b1", "abc", "c"]), 0.0)
    assert sorted((d.consumer_id, d.ranges) for d in deliveries) == [(1, [0, 1, 3, 4]), (2, [2, 3])]
    assert machine.describe(5).dropped_messages == 0
    assert [consumer.key_filters for consumer in machine.describe(5).consumers] == [("a*",), ("b?",)]
    machine.leave(1, 0.0)
    machine.leave(2, 0.0)
    machine.offered(span(5, 1, ["a"]), 0.0)
    assert machine.describe(6).dropped_messages == 1, "no consumer is connected"


def test_policies_and_delivery_times_mean_nothing():
    machine = lossy(SHARED, "ann", credit=10)
    machine.change_policy(SubscriptionPolicy(max_redelivery_count=0, max_unacked_messages=1), 0.0)
    assert machine.offered(Span(0, 5, 50, "t", None, 99.0), 0.0)[0].messages == 5
    machine.nack(1, [0, 5], None, 0.0)
    machine.extend(1, [0, 5], 9.0, 0.0)
    assert machine.take_settled() == machine.poisoned(5) == []
    assert machine.offered(span(5, 5), 0.0)[0].messages == 5
