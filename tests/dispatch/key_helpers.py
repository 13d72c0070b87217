"""Small tools for directed tests of key-shared subscriptions."""

from __future__ import annotations

from dispatch_models import offsets_of

from danube.dispatch import Cursor, Span, make_subscription
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType, change_policy

KEYS = list("aaabbc")


def machine_of(*filters, limits=None, **policy):
    """One consumer for each tuple of key filters, with plenty of credit."""
    policy = change_policy(SubscriptionPolicy(ack_timeout_s=10.0, redelivery_delay_s=0.0), policy)
    machine = make_subscription(SubscriptionType.KEY_SHARED, Cursor(), Limits(**limits or {}), policy)
    for consumer_id, patterns in enumerate(filters, 1):
        machine.join(consumer_id, f"c{consumer_id}", 0.0, patterns)
        machine.credit(consumer_id, 1000, 10**6)
    return machine


def batch(base, keys, due=0.0):
    return Span(base, base + len(keys), 10 * len(keys), None, keys and [key.encode() for key in keys], due)


def pump(machine, *batches, now=0.0):
    """Return what is delivered: {consumer: offsets}."""
    got = {}
    while (request := machine.next_read(now)) is not None:
        found = [span for span in batches if span.base_offset <= request.offset < span.end_offset]
        if not found:
            break
        for delivery in machine.offered(found[0], now):
            got.setdefault(delivery.consumer_id, []).extend(offsets_of(delivery.ranges))
    return got


def fail(machine, offset, span, times, now=0.0):
    for _ in range(times):
        machine.nack(None, [offset, offset + 1], None, now, "bad")
        last = pump(machine, span, now=now)
    return last


def change(machine, now=0.0, **changes):
    machine.change_policy(change_policy(machine.policy, changes), now)
