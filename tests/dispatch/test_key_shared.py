"""Key-shared subscriptions, directed: keys that move, keys that wait, acknowledgements in the order of a line."""

from __future__ import annotations

from danube.dispatch import Cursor, Span, make_subscription
from danube.dispatch.ring import ring_hash
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType


def machine_of(*names, credit=1_000_000, policy=None, **limits):
    machine = make_subscription(
        SubscriptionType.KEY_SHARED, Cursor(), Limits(**limits), SubscriptionPolicy(**policy or {})
    )
    for consumer_id, name in enumerate(names, 1):
        machine.join(consumer_id, name, 0.0)
        machine.credit(consumer_id, credit, 10**9)
    return machine


def span(base, size, keys=None, due=0.0):
    return Span(base, base + size, 10 * size, None, keys and [key.encode() for key in keys], due)


def offsets_of(delivery):
    flat = delivery.ranges
    return [offset for index in range(0, len(flat), 2) for offset in range(flat[index], flat[index + 1])]


def owners(deliveries, keys):
    return {keys[offset]: d.consumer_id for d in deliveries for offset in offsets_of(d)}


def test_a_busy_key_stays_until_it_is_settled_and_then_moves():
    names = [f"key-{number}" for number in range(50)]
    machine = machine_of("ann")
    machine.offered(span(0, 50, names), 0.0)
    machine.join(2, "bob", 1.0)
    machine.credit(2, 1000, 10**9)
    moved = {name for name in names if machine._ring.owner(ring_hash(name.encode())).consumer_id == 2}
    assert moved
    assert len(moved) < 50
    second = machine.offered(span(50, 50, names), 1.0)
    assert owners(second, names * 2) == dict.fromkeys(set(names) - moved, 1), "keys that move wait, others go on"
    assert machine.explain(1.0, 100).state == "waiting-for-acks"
    assert "before the key moves" in machine.explain(1.0, 100).sentence
    machine.ack([0, 50], 1, 2.0)
    assert machine.next_read(2.0).redelivery
    third = machine.offered(span(50, 50, names), 2.0)
    assert owners(third, names * 2) == dict.fromkeys(moved, 2)
    assert {d.attempt for d in third} == {1}


def test_a_consumer_without_credit_blocks_no_other_key():
    names = [f"key-{number}" for number in range(50)]
    machine = machine_of("ann")
    machine.join(2, "bob", 0.0)
    slow = {name for name in names if machine._ring.owner(ring_hash(name.encode())).consumer_id == 2}
    for batch in range(20):
        assert machine.next_read(0.0) == (50 * batch, False)
        got = machine.offered(span(50 * batch, 50, names), 0.0)
        assert set(owners(got, names * 20)) == set(names) - slow
    assert machine.describe(1000).waiting_messages == 20 * len(slow)
    assert machine.explain(0.0, 1000).state == "no-credit"
    machine.credit(2, 10_000, 10**9)
    received = []
    while (request := machine.next_read(0.0)).redelivery:
        for delivery in machine.offered(span(request.offset // 50 * 50, 50, names), 0.0):
            assert delivery.consumer_id == 2
            received += offsets_of(delivery)
    assert received == [offset for offset in range(1000) if names[offset % 50] in slow]


def test_a_nack_rewinds_its_key_and_only_its_key():
    keys = list("aabab")
    machine = machine_of("ann")
    machine.offered(span(0, 5, keys), 0.0)
    assert machine.ack([3, 5], 1, 0.0) == [], "early: earlier messages of both keys are out"
    machine.nack(1, [1, 2], 0.0, 0.0)
    assert machine.ack([0, 1], 1, 0.0) == [0, 1]
    assert machine.ack([2, 3], 1, 0.0) == [2, 3, 4, 5], "the early acknowledgement of 4 takes effect; that of 3 is void"
    deliveries = machine.offered(span(0, 5, keys), 0.0)
    assert [(offsets_of(d), d.attempt) for d in deliveries] == [([1, 3], 2)]
    machine.nack(1, [1, 2], 0.0, 0.0)
    deliveries = machine.offered(span(0, 5, keys), 0.0)
    assert [(offsets_of(d), d.attempt) for d in deliveries] == [([1, 3], 3)], "each delivery counts"
    assert machine.ack([1, 2], 1, 0.0) == [1, 2], "what was void stays void"
    assert machine.ack([3, 4], 1, 0.0) == [3, 4]


def test_idle_keys_are_forgotten(monkeypatch):
    monkeypatch.setattr("danube.dispatch.keys._IDLE_KEYS", 100)
    machine = machine_of("ann", max_unacked_messages=50)
    for base in range(0, 1000, 10):
        machine.offered(span(base, 10, [f"key-{offset}" for offset in range(base, base + 10)]), 0.0)
        machine.ack([base, base + 10], 1, 0.0)
    assert machine.cursor.floor == 1000
    assert len(machine._lines.keys) <= 170
