"""Attempts, failures and pauses of a machine that go on in another one, on another broker."""

from __future__ import annotations

import pytest
from dispatch_models import offsets_of

from danube.dispatch import Cursor, Span, make_subscription
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType, change_policy

BATCH = Span(0, 6, 60, None, [b"a", b"b", b"c", b"d", b"e", b"f"], 0.0)
KINDS = [
    SubscriptionType.EXCLUSIVE,
    SubscriptionType.FAILOVER,
    SubscriptionType.SHARED,
    SubscriptionType.KEY_SHARED,
]


def machine_of(kind: SubscriptionType, cursor: Cursor | None = None, **policy: object):
    changed = change_policy(SubscriptionPolicy(redelivery_delay_s=0.0, max_redelivery_count=3), policy)
    return make_subscription(kind, cursor if cursor is not None else Cursor(), Limits(), changed)


def join(machine, now: float = 0.0) -> None:
    machine.join(1, "c", now)
    machine.credit(1, 1000, 10**6)


def pump(machine, now: float = 0.0) -> dict[int, int]:
    """Return the attempts of what is delivered, by offset."""
    got: dict[int, int] = {}
    while (request := machine.next_read(now)) is not None and request.offset < BATCH.end_offset:
        for delivery in machine.offered(BATCH, now):
            got |= dict.fromkeys(offsets_of(delivery.ranges), delivery.attempt)
    return got


def fail(machine, offset: int, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        machine.nack(1, [offset, offset + 1], None, now, "bad")
        pump(machine, now)


def moved(machine, kind: SubscriptionType, now: float, later: float, **policy: object):
    past = machine.past_deliveries(100, now)
    cursor = Cursor()
    cursor.ack(0, machine.cursor.floor)
    fresh = machine_of(kind, cursor, **policy)
    fresh.recall(past, later)
    return fresh


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_at_its_third_attempt_is_at_its_third_elsewhere(kind: SubscriptionType) -> None:
    machine = machine_of(kind)
    join(machine)
    assert pump(machine) == dict.fromkeys(range(6), 1)
    machine.ack([0, 1], 1, 0.0)
    fail(machine, 3, 2)
    fail(machine, 5, 1)
    fresh = moved(machine, kind, 1.0, 500.0)
    join(fresh, 500.0)
    assert pump(fresh, 500.0) == {1: 1, 2: 1, 3: 3, 4: 1, 5: 2}
    assert fresh.failures(3) == 2
    assert fresh.failures(4) == 0
    fail(fresh, 3, 1, 500.0)
    assert fresh.failures(3) == 3
    assert fresh.ack([1, 6], 1, 501.0) == [1, 6]
    assert fresh.describe(6).backlog_messages == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_goes_on_elsewhere(kind: SubscriptionType) -> None:
    policy = {"redelivery_delay_s": 10.0, "backoff": "fixed"}
    machine = machine_of(kind, **policy)
    join(machine)
    pump(machine)
    machine.nack(1, [2, 3], None, 1.0, "bad")
    fresh = moved(machine, kind, 5.0, 100.0, **policy)
    join(fresh, 100.0)
    assert 2 not in pump(fresh, 100.0)
    assert 2 not in pump(fresh, 105.9)
    assert fresh.next_deadline() == pytest.approx(106.0)
    fresh.tick(106.0)
    assert pump(fresh, 106.0) == {2: 2}


@pytest.mark.parametrize("kind", KINDS)
def test_poison_is_poison_elsewhere(kind: SubscriptionType) -> None:
    policy = {"poison": "dead_letter", "max_redelivery_count": 1}
    machine = machine_of(kind, **policy)
    join(machine)
    pump(machine)
    fail(machine, 4, 2)
    assert [(each.start, each.failures) for each in machine.poisoned(9)] == [(4, 2)]
    fresh = moved(machine, kind, 0.0, 0.0, **policy)
    join(fresh)
    assert pump(fresh) == {0: 1, 1: 1, 2: 1, 3: 1, 5: 1}
    assert [(each.start, each.failures, each.reason) for each in fresh.poisoned(9)] == [(4, 2, "bad")]
    assert fresh.discard([4, 5], 0.0) == [4, 5]
    assert fresh.poisoned(9) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_reached_moves_on(kind: SubscriptionType) -> None:
    machine = machine_of(kind)
    join(machine)
    pump(machine)
    fail(machine, 3, 2)
    second = moved(machine, kind, 0.0, 10.0)
    third = moved(second, kind, 11.0, 20.0)
    join(third, 20.0)
    assert pump(third, 20.0)[3] == 3
    assert machine.past_deliveries(0, 0.0) == []
    third.seek(0, 21.0)
    assert pump(third, 21.0) == dict.fromkeys(range(6), 1)
