"""What machines count of their messages: the same as their consumers, also of those that have left."""

from __future__ import annotations

import pytest

from danube.dispatch import Cursor, Machine, Span, make_subscription
from danube.model.limits import Limits
from danube.model.policies import PoisonPolicy, SubscriptionPolicy, SubscriptionType

TYPES = list(SubscriptionType)
LOG_END = 20


def subscribed(kind: SubscriptionType, *names: str, **policy: object) -> Machine:
    machine = make_subscription(kind, Cursor(), Limits(), SubscriptionPolicy(**policy))  # type: ignore[arg-type]
    for consumer_id, name in enumerate(names, 1):
        machine.join(consumer_id, name, 0.0)
        machine.credit(consumer_id, 1000, 10**9)
    return machine


def deliver(machine: Machine, now: float, keys: str = "a") -> list[tuple[int, list[int]]]:
    """Deliver whatever the machine wants, in batches of 5; return consumers and ranges."""
    found = []
    while (request := machine.next_read(now)) is not None and request.offset < LOG_END:
        base = request.offset // 5 * 5
        span_keys = [keys[offset % len(keys)].encode() for offset in range(base, base + 5)]
        offered = list(machine.offered(Span(base, base + 5, 50, "batch", span_keys), now))
        if not offered:
            break
        found += [(item.consumer_id, item.ranges) for item in offered]
    return found


@pytest.mark.parametrize("kind", TYPES)
def test_deliveries_and_acknowledgements_survive_the_consumer(kind: SubscriptionType) -> None:
    machine = subscribed(kind, "ann")
    deliver(machine, 0.0)
    assert machine.delivered_messages == LOG_END
    machine.ack([0, 7, 10, 12], 1, 1.0)
    machine.ack([5, 11], 1, 1.0)  # some of them again
    acked = machine.acked_messages
    assert acked == 12
    machine.leave(1, 2.0)
    assert (machine.delivered_messages, machine.acked_messages) == (LOG_END, acked)
    machine.join(2, "bob", 3.0)
    machine.credit(2, 1000, 10**9)
    deliver(machine, 3.0)
    assert machine.delivered_messages == LOG_END + LOG_END - acked
    machine.ack([0, LOG_END], 2, 4.0)
    assert machine.acked_messages == LOG_END
    assert machine.cursor.floor == LOG_END


@pytest.mark.parametrize("kind", TYPES)
def test_a_displaced_consumer_counts(kind: SubscriptionType) -> None:
    machine = subscribed(kind, "ann")
    deliver(machine, 0.0)
    machine.join(2, "ann", 1.0)
    assert machine.delivered_messages == LOG_END


@pytest.mark.parametrize("kind", TYPES)
def test_late_acknowledgements_count(kind: SubscriptionType) -> None:
    """Of messages that wait for redelivery: nothing is in flight any more."""
    machine = subscribed(kind, "ann", redelivery_delay_s=60.0)
    deliver(machine, 0.0)
    machine.nack(1, [0, 4], None, 1.0)
    machine.ack([0, 2], 1, 2.0)
    assert machine.describe(LOG_END).in_flight_messages <= LOG_END - 4
    assert machine.acked_messages == 2


@pytest.mark.parametrize("kind", TYPES)
def test_failures_are_counted_by_kind(kind: SubscriptionType) -> None:
    machine = subscribed(kind, "ann", ack_timeout_s=10.0)
    deliver(machine, 0.0, keys="abcde")
    machine.nack(1, [0, 3], None, 1.0)
    assert (machine.nacked_messages, machine.timed_out_messages) == (3, 0)
    machine.tick(10.0)
    # A failed message of a key takes those behind it back: of five keys, three wait.
    late = LOG_END - 3 if kind is not SubscriptionType.KEY_SHARED else LOG_END // 5 * 2
    assert (machine.nacked_messages, machine.timed_out_messages) == (3, late)


def test_an_early_acknowledgement_counts_when_poison_before_it_goes() -> None:
    machine = subscribed(SubscriptionType.KEY_SHARED, "ann", max_redelivery_count=0, poison=PoisonPolicy.DROP)
    deliver(machine, 0.0)
    machine.ack([1, 2], 1, 1.0)
    assert machine.acked_messages == 0
    machine.nack(1, [0, 1], None, 2.0)
    assert machine.take_settled() == [0, 2]
    assert machine.acked_messages == 1
    assert machine.describe(LOG_END).dropped_messages == 1


@pytest.mark.parametrize("kind", TYPES)
def test_without_a_log_deliveries_are_counted(kind: SubscriptionType) -> None:
    machine = make_subscription(kind, Cursor(), Limits(), lossy=True)
    machine.join(1, "ann", 0.0)
    machine.credit(1, 1000, 10**9)
    machine.offered(Span(0, 5, 50, "batch", [b"a"] * 5), 0.0)
    machine.leave(1, 0.0)
    assert machine.delivered_messages == 5


def test_bytes_of_a_consumer() -> None:
    machine = subscribed(SubscriptionType.EXCLUSIVE, "ann")
    deliver(machine, 0.0)
    (consumer,) = machine.describe(LOG_END).consumers
    assert consumer.delivered_bytes == LOG_END // 5 * 50
