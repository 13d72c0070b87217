"""The traits of the types of subscriptions are true for their machines, with a log and without."""

from __future__ import annotations

import pytest

from danube.dispatch import Cursor, Delivery, Machine, Span, make_subscription
from danube.model.errors import FailedPreconditionError, SubscriptionBusyError
from danube.model.limits import Limits
from danube.model.policies import SUBSCRIPTION_TRAITS, SubscriptionType

pytestmark = [
    pytest.mark.parametrize("lossy", [False, True], ids=["logged", "lossy"]),
    pytest.mark.parametrize("kind", list(SUBSCRIPTION_TRAITS)),
]


def machine_of(kind: SubscriptionType, *, lossy: bool) -> Machine:
    machine = make_subscription(kind, Cursor(), Limits(), lossy=lossy)
    assert machine.traits is kind.traits
    machine.join(1, "a", 0.0)
    return machine


def with_two(kind: SubscriptionType, *, lossy: bool) -> Machine:
    """Return a machine with two consumers of one name each, or one if the type permits only one."""
    machine = machine_of(kind, lossy=lossy)
    if not kind.traits.single_consumer:
        machine.join(2, "b", 0.0)
    for consumer_id in machine.consumer_ids:
        machine.credit(consumer_id, 1_000, 1_000_000)
    return machine


def delivered(machine: Machine, keys: list[bytes]) -> dict[int, list[int]]:
    """Offer a batch; return the offsets that each consumer gets of it."""
    machine.next_read(0.0)
    span = Span(0, len(keys), 100 * len(keys), None, keys)
    found: dict[int, list[int]] = {}
    for each in machine.offered(span, 0.0):
        assert isinstance(each, Delivery)
        for start, end in zip(each.ranges[::2], each.ranges[1::2], strict=True):
            found.setdefault(each.consumer_id, []).extend(range(start, end))
    return found


def test_a_single_consumer_refuses_a_second_one(kind: SubscriptionType, lossy: bool) -> None:
    machine = machine_of(kind, lossy=lossy)
    if kind.traits.single_consumer:
        with pytest.raises(SubscriptionBusyError):
            machine.join(2, "b", 0.0)
    else:
        machine.join(2, "b", 0.0)
        assert machine.consumer_ids == [1, 2]


def test_the_active_consumer_gets_all_messages(kind: SubscriptionType, lossy: bool) -> None:
    machine = with_two(kind, lossy=lossy)
    keys = [b"%d" % number for number in range(100)]
    found = delivered(machine, keys)
    assert sorted(offset for offsets in found.values() for offset in offsets) == list(range(100))
    assert machine.active == (1 if kind.traits.has_active else None)
    assert (len(found) == 1) == kind.traits.has_active == (not kind.traits.slices)


def test_a_standby_takes_over(kind: SubscriptionType, lossy: bool) -> None:
    machine = with_two(kind, lossy=lossy)
    machine.leave(1, 0.0)
    assert (machine.active == 2) == kind.traits.has_standbys


def test_messages_of_a_key_go_to_one_consumer(kind: SubscriptionType, lossy: bool) -> None:
    machine = with_two(kind, lossy=lossy)
    keys = [b"x", b"y", b"z"] * 40
    owners: dict[bytes, set[int]] = {}
    for consumer_id, offsets in delivered(machine, keys).items():
        for offset in offsets:
            owners.setdefault(keys[offset], set()).add(consumer_id)
    together = all(len(consumers) == 1 for consumers in owners.values())
    assert together == (kind.traits.wants_keys or kind.traits.has_active)


def test_a_subscription_with_an_active_consumer_acknowledges_cumulatively(kind: SubscriptionType, lossy: bool) -> None:
    machine = with_two(kind, lossy=lossy)
    delivered(machine, [b"x"] * 4)
    if kind.traits.has_active:
        assert machine.ack_cumulative(2, 1, 0.0) == ([] if lossy else [0, 3])
    else:
        with pytest.raises(FailedPreconditionError):
            machine.ack_cumulative(2, 1, 0.0)
