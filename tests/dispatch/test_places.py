"""Where one message is: every machine knows it at every step of its life."""

from __future__ import annotations

import math
from typing import Any

import pytest

from danube.dispatch import Cursor, Machine, Span, make_subscription
from danube.dispatch.spans import ACKNOWLEDGED, DELAYED, IN_FLIGHT, POISONED, UNDELIVERED, WAITING, Place
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType, change_policy

KINDS = [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]
KEYS = [b"a", b"b", b"a", b"b"]


def machine_of(kind: SubscriptionType, **changes: Any) -> Machine:
    policy = change_policy(SubscriptionPolicy(ack_timeout_s=30.0, redelivery_delay_s=5.0), changes)
    machine = make_subscription(kind, Cursor(), Limits(), policy)
    machine.join(1, "c1", 0.0)
    machine.credit(1, 1_000, 10**9)
    return machine


def span_of(kind: SubscriptionType, base: int = 0, due: float = 0.0) -> Span:
    return Span(base, base + 4, 400, keys=KEYS if kind is SubscriptionType.KEY_SHARED else None, due=due)


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_log_to_the_acknowledgement(kind: SubscriptionType) -> None:
    machine = machine_of(kind)
    assert machine.place_of(1, 0.0) == Place(UNDELIVERED)
    assert machine.offered(span_of(kind), 2.0)
    assert machine.place_of(1, 5.0) == Place(IN_FLIGHT, "c1", 2.0, 32.0, None, 1, 0, "")
    machine.ack([1, 2], 1, 6.0)
    assert machine.place_of(1, 6.0) == Place(ACKNOWLEDGED)
    assert machine.place_of(3, 6.0).state == IN_FLIGHT
    assert machine.place_of(4, 6.0) == Place(UNDELIVERED)
    machine.leave(1, 7.0)
    assert machine.place_of(3, 7.0) == Place(WAITING, attempt=1)


@pytest.mark.parametrize("kind", KINDS)
def test_failures(kind: SubscriptionType) -> None:
    machine = machine_of(kind, max_redelivery_count=1, poison="dead_letter")
    machine.offered(span_of(kind), 0.0)
    machine.nack(1, [1, 2], None, 1.0, "no such customer")
    assert machine.place_of(1, 2.0) == Place(WAITING, due=6.0, attempt=1, failures=1, reason="no such customer")
    machine.tick(6.0)
    assert machine.place_of(1, 6.0) == Place(WAITING, attempt=1, failures=1, reason="no such customer")
    request = machine.next_read(6.0)
    assert request is not None
    machine.offered(span_of(kind), 6.0)
    assert machine.place_of(1, 7.0) == Place(IN_FLIGHT, "c1", 6.0, 36.0, None, 2, 1, "no such customer")
    machine.nack(1, [1, 2], None, 8.0, "again")
    assert machine.place_of(1, 8.0) == Place(POISONED, attempt=2, failures=2, reason="again")
    machine.discard([1, 2], 9.0)
    assert machine.place_of(1, 9.0) == Place(ACKNOWLEDGED)


@pytest.mark.parametrize("kind", KINDS)
def test_delays(kind: SubscriptionType) -> None:
    machine = machine_of(kind, ack_timeout_s=0)
    machine.offered(span_of(kind, due=10.0), 0.0)
    assert machine.place_of(1, 3.0) == Place(DELAYED, due=10.0)
    machine.tick(10.0)
    assert machine.place_of(1, 10.0) == Place(WAITING)
    while machine.next_read(10.0) is not None and machine.place_of(1, 10.0).state != IN_FLIGHT:
        machine.offered(span_of(kind), 10.0)
    assert machine.place_of(1, 11.0) == Place(IN_FLIGHT, "c1", 10.0, math.inf, None, 1, 0, "")


def test_a_key_shared_message_that_is_acknowledged_before_its_turn() -> None:
    machine = machine_of(SubscriptionType.KEY_SHARED)
    machine.offered(span_of(SubscriptionType.KEY_SHARED), 0.0)
    machine.ack([2, 3], 1, 1.0)
    assert not machine.cursor.is_acked(2)
    assert machine.place_of(2, 1.0) == Place(ACKNOWLEDGED)
    assert machine.place_of(0, 1.0).state == IN_FLIGHT
