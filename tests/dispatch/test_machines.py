"""Directed tests: taking over, failover, fairness, keys that move, bounds, refusals."""

from __future__ import annotations

import pytest

from danube.dispatch import Cursor, Span, make_subscription
from danube.model.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    LimitExceededError,
    SubscriptionBusyError,
)
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

EXCLUSIVE, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER
SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


def machine_of(kind, *names, credit=1_000_000, policy=None, **limits):
    machine = make_subscription(kind, Cursor(), Limits(**limits), SubscriptionPolicy(**policy or {}))
    for consumer_id, name in enumerate(names, 1):
        machine.join(consumer_id, name, 0.0)
        machine.credit(consumer_id, credit, 10**9)
    return machine


def span(base, size, keys=None):
    return Span(base, base + size, 10 * size, None, keys and [key.encode() for key in keys])


def offsets_of(delivery):
    flat = delivery.ranges
    return [offset for index in range(0, len(flat), 2) for offset in range(flat[index], flat[index + 1])]


def test_exclusive_refuses_a_second_name_and_lets_the_same_name_take_over():
    machine = machine_of(EXCLUSIVE, "ann")
    machine.offered(span(0, 10), 0.0)
    with pytest.raises(SubscriptionBusyError, match="'ann'"):
        machine.join(2, "bob", 1.0)
    assert machine.consumer_ids == [1]
    assert machine.join(3, "ann", 1.0) == 1
    assert machine.active == 3
    machine.credit(3, 5, 1000)
    assert machine.next_read(1.0) == (0, True)
    (delivery,) = machine.offered(span(0, 10), 1.0)
    assert (delivery.consumer_id, delivery.ranges, delivery.attempt, delivery.whole) == (3, [0, 10], 2, True)
    machine.credit(1, 100, 100)
    machine.leave(1, 1.0)
    assert machine.active == 3, "late frames of the displaced consumer change nothing"
    machine.leave(3, 2.0)
    machine.join(4, "bob", 2.0)
    assert machine.active == 4


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED, FAILOVER])
def test_the_same_name_takes_over_in_its_place(kind):
    machine = machine_of(kind, "ann", "bob")
    assert machine.join(9, "ann", 0.0) == 1
    assert machine.consumer_ids == [9, 2]
    assert machine.active == (9 if kind is FAILOVER else None)


def test_failover_promotes_the_next_in_line_and_redelivers_in_order():
    machine = machine_of(FAILOVER, "ann", "bob", "cyd")
    for base in (0, 10, 20):
        assert [d.consumer_id for d in machine.offered(span(base, 10), 0.0)] == [1]
    machine.ack([3, 12], 1, 0.0)
    machine.leave(2, 1.0)
    assert machine.active == 1, "a standby that leaves changes nothing"
    machine.leave(1, 1.0)
    assert machine.active == 3
    seen = []
    while (request := machine.next_read(1.0)) is not None and request.offset < 40:
        seen += machine.offered(span(request.offset // 10 * 10, 10), 1.0)
    assert [(d.consumer_id, d.ranges, d.attempt, d.whole) for d in seen] == [
        (3, [0, 3], 2, False),
        (3, [12, 20], 2, False),
        (3, [20, 30], 2, True),
        (3, [30, 40], 1, True),
    ]


def test_an_exclusive_batch_is_delivered_whole_and_overdraws_once():
    machine = machine_of(EXCLUSIVE, "ann", credit=1)
    assert machine.offered(span(0, 10), 0.0)[0].messages == 10
    assert machine.describe(20).consumers[0].credit_messages == -9
    assert machine.next_read(0.0) is None
    assert machine.offered(span(10, 10), 0.0) == []
    machine.credit(1, 9, 0)
    assert machine.next_read(0.0) is None
    machine.credit(1, 1, 0)
    assert machine.next_read(0.0) == (10, False)


def test_cumulative_acknowledgement():
    machine = machine_of(EXCLUSIVE, "ann")
    machine.offered(span(0, 10), 0.0)
    assert machine.ack_cumulative(4, 1, 0.0) == [0, 5]
    assert machine.ack_cumulative(3, 1, 0.0) == []
    assert machine.ack_cumulative(99, 1, 0.0) == [5, 10], "only what was delivered"
    for kind in (SHARED, KEY_SHARED):
        with pytest.raises(FailedPreconditionError, match="cumulative"):
            machine_of(kind, "ann").ack_cumulative(4, 1, 0.0)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_an_ack_after_the_timeout_and_before_redelivery_counts(kind):
    machine = machine_of(kind, "ann", policy={"ack_timeout_s": 10.0, "redelivery_delay_s": 0.0})
    machine.offered(span(0, 4), 0.0)
    assert machine.next_deadline() == 10.0
    machine.tick(10.0)
    assert machine.next_read(10.0) == (0, True)
    assert machine.ack([0, 4], 1, 10.5) == [0, 4]
    assert machine.next_read(10.5) == (4, False)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_timeout_zero_means_never(kind):
    machine = machine_of(kind, "ann", policy={"ack_timeout_s": 0.0})
    machine.offered(span(0, 4), 0.0)
    assert machine.next_deadline() is None
    machine.tick(1e9)
    assert machine.next_read(1e9) == (4, False)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_too_many_consumers_and_wrong_input(kind):
    names = ["ann"] if kind is EXCLUSIVE else ["ann", "bob"]
    machine = machine_of(kind, *names, max_consumers_per_subscription=len(names))
    with pytest.raises(LimitExceededError if kind is not EXCLUSIVE else SubscriptionBusyError):
        machine.join(7, "eve", 0.0)
    assert machine.join(8, "ann", 0.0) == 1, "taking over needs no extra place"
    with pytest.raises(InvalidArgumentError, match="negative"):
        machine.credit(8, -1, 0)
    with pytest.raises(InternalError, match="twice"):
        machine.join(8, "zed", 0.0)
    machine.credit(8, 10**12, 1)
    assert machine.describe(0).consumers[0].credit_messages == Limits().max_consumer_credit_messages


def test_shared_gives_equal_shares_and_a_hog_gets_no_more():
    machine = make_subscription(SHARED, Cursor(), Limits())
    for consumer_id, credit in ((1, 1_000_000), (2, 2_000), (3, 2_000), (4, 2_000)):
        machine.join(consumer_id, f"c{consumer_id}", 0.0)
        machine.credit(consumer_id, credit, 10**9)
    base = 0
    for size in [1, 1, 1, 1, 7, 100, 13, 1, 1, 875, 1000, 999, 1000] * 1:
        machine.offered(span(base, size), 0.0)
        base += size
    delivered = [consumer.delivered_messages for consumer in machine.describe(base).consumers]
    assert sum(delivered) == base
    assert max(delivered) - min(delivered) <= 13, delivered  # at most one message a batch


def test_shared_uses_all_credit_when_shares_are_uneven():
    machine = make_subscription(SHARED, Cursor(), Limits())
    for consumer_id, credit in ((1, 3), (2, 50), (3, 1000)):
        machine.join(consumer_id, f"c{consumer_id}", 0.0)
        machine.credit(consumer_id, credit, 10**9)
    deliveries = machine.offered(span(0, 600), 0.0)
    got = {consumer.consumer_id: consumer.delivered_messages for consumer in machine.describe(600).consumers}
    assert got == {1: 3, 2: 50, 3: 547}
    assert sorted(offset for d in deliveries for offset in offsets_of(d)) == list(range(600))


def test_a_refused_message_goes_to_another_consumer_if_one_has_credit():
    machine = machine_of(SHARED, "ann", "bob")
    first = {d.consumer_id: d for d in machine.offered(span(0, 2), 0.0)}
    assert first[1].ranges == [0, 1]
    for attempt in (2, 3):
        machine.nack(1, [0, 1], 0.0, 0.0)
        machine.nack(2, [0, 1], 0.0, 0.0)
        (again,) = machine.offered(span(0, 2), 0.0)
        assert (again.consumer_id, again.ranges, again.attempt) == (2 if attempt == 2 else 1, [0, 1], attempt)
    machine.leave(2, 0.0)
    machine.nack(1, [0, 1], 0.0, 0.0)
    machine.offered(span(0, 2), 0.0)
    assert machine.describe(2).consumers[0].in_flight_messages == 2, "the only consumer gets them again"


def test_the_window_stops_new_messages_and_an_ack_opens_it():
    for kind in (SHARED, KEY_SHARED):
        machine = machine_of(kind, "ann", max_unacked_messages=10)
        assert sum(d.messages for d in machine.offered(span(0, 25), 0.0)) == 10
        assert machine.next_read(0.0) is None
        machine.ack([4, 5] if kind is SHARED else [0, 1], 1, 0.0)
        assert machine.next_read(0.0) == (10, False)
        (delivery,) = machine.offered(span(0, 25), 0.0)
        assert delivery.ranges == [10, 11]


def test_bookkeeping_is_bounded_and_a_nack_at_the_bound_takes_the_whole_flight():
    machine = machine_of(EXCLUSIVE, "ann", max_in_flight_ranges=4)
    machine.offered(span(0, 100), 0.0)
    for offset in range(0, 100, 2):
        machine.nack(1, [offset, offset + 1], 5.0, 0.0)
    tracked = machine._tracked()
    assert tracked <= 5
    assert machine.describe(100).in_flight_messages + machine.describe(100).waiting_messages == 100
    assert machine.next_read(0.0) is None
    assert machine.explain(0.0, 200).state == "window-full"
    machine.tick(5.0)
    assert machine.next_read(5.0).redelivery


def test_a_cursor_with_more_holes_than_allowed_still_moves():
    cursor = Cursor(0, ranges=[(offset, offset + 1) for offset in range(1, 40, 2)])
    machine = make_subscription(SHARED, cursor, Limits(max_ack_ranges=2))
    machine.join(1, "ann", 0.0)
    machine.credit(1, 1000, 10**6)
    for _ in range(100):
        request = machine.next_read(0.0)
        if request is None or request.offset >= 40:
            break
        for delivery in machine.offered(span(request.offset // 10 * 10, 10), 0.0):
            machine.ack(delivery.ranges, 1, 0.0)
    assert machine.cursor.floor == 40


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_discard_skips_what_the_log_no_longer_holds(kind):
    machine = machine_of(kind, "ann")
    assert machine.next_read(0.0) == (0, False)
    assert machine.discard([0, 15], 0.0) == [0, 15]
    assert machine.next_read(0.0) == (15, False)
    (delivery,) = machine.offered(span(10, 10), 0.0)
    assert delivery.ranges == [15, 20]
    assert machine.discard([16, 17, 19, 22], 0.0) == [16, 17, 19, 22]
    assert machine.position == 22


def test_a_leaving_member_does_not_keep_deadlines_alive():
    for kind in (SHARED, KEY_SHARED):
        machine = machine_of(kind, "ann", "bob")
        machine.offered(span(0, 10, [f"k{i}" for i in range(10)]), 0.0)
        machine.leave(1, 0.0)
        machine.leave(2, 0.0)
        assert machine.next_deadline() is None
        assert machine.describe(10).waiting_messages == 10


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_deadline_books_stay_small_behind_one_stuck_message(kind):
    machine = machine_of(kind, "ann", max_ack_ranges=10**6)
    machine.offered(span(0, 1, ["stuck"]), 0.0)
    for base in range(1, 2001):
        machine.offered(span(base, 1, ["fine"]), 0.001 * base)
        machine.ack([base, base + 1], 1, 0.001 * base)
    books = machine._flights._deadlines
    assert len(books) < 200
    assert machine.cursor.floor == 0
    assert machine.next_deadline() == SubscriptionPolicy().ack_timeout_s
