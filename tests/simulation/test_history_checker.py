"""The history checker: a good history passes, and each way of being wrong is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from danube.model import Durability, SubscriptionType
from danube.testing.history import Audited, History, Session

TOPIC = "/default/t"


def payload(number: int) -> bytes:
    return b"m%d" % number


def good_history(
    count: int = 6, *, durability: Durability = Durability.DISK, kind: SubscriptionType = SubscriptionType.EXCLUSIVE
) -> tuple[History, Session]:
    """Messages of one producer, acknowledged and delivered in order; the audit is the test's."""
    history = History()
    history.topic(TOPIC, durability)
    history.producer_run("p", 1, TOPIC, 0)
    session = history.session("s", kind, [TOPIC])
    for number in range(count):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.acknowledge(payload(number), TOPIC, number)
        history.deliver(session, 1, TOPIC, number, payload(number), None)
        history.given(session, TOPIC, number)
    return history, session


def audited(numbers: Sequence[int]) -> list[Audited]:
    return [Audited(offset, payload(number), None) for offset, number in enumerate(numbers)]


def test_good_history() -> None:
    history, session = good_history()
    history.confirmed(session, TOPIC, range(6), 1, (0, 0))
    history.audit("hot", TOPIC, audited(range(6)))
    history.audit("sealed", TOPIC, audited(range(6)))
    assert history.check() == []


def lost(history: History, session: Session) -> None:
    history.audit("hot", TOPIC, audited(range(5)))


def twice(history: History, session: Session) -> None:
    history.audit("hot", TOPIC, audited([0, 1, 2, 3, 4, 5, 3]))


def hole(history: History, session: Session) -> None:
    history.audit("hot", TOPIC, [item for item in audited(range(6)) if item.offset != 2])


def swapped(history: History, session: Session) -> None:
    history.audit("hot", TOPIC, audited([0, 1, 3, 2, 4, 5]))


def invented(history: History, session: Session) -> None:
    history.audit("hot", TOPIC, [*audited(range(6)), Audited(6, b"from nowhere", None)])


def changed_between_audits(history: History, session: Session) -> None:
    history.audit("hot", TOPIC, audited(range(6)))
    history.audit("sealed", TOPIC, audited([0, 1, 2, 3, 5, 4]))


def gone_between_audits(history: History, session: Session) -> None:
    history.audit("hot", TOPIC, audited(range(6)))
    history.audit("sealed", TOPIC, audited(range(4)))


def delivered_from_nowhere(history: History, session: Session) -> None:
    history.deliver(session, 1, TOPIC, 6, b"from nowhere", None)


def delivered_with_another_key(history: History, session: Session) -> None:
    history.deliver(session, 1, TOPIC, 0, payload(0), "k")


def delivered_elsewhere(history: History, session: Session) -> None:
    history.deliver(session, 1, TOPIC, 0, payload(1), None)


def delivered_in_another_order(history: History, session: Session) -> None:
    for number in (6, 7):
        history.publish("p", 1, number, TOPIC, payload(number), None)
    history.deliver(session, 1, TOPIC, 7, payload(7), None)
    history.deliver(session, 1, TOPIC, 6, payload(6), None)


def never_delivered(history: History, session: Session) -> None:
    history.publish("p", 1, 6, TOPIC, payload(6), None)
    history.audit("hot", TOPIC, audited(range(7)))


def came_again(history: History, session: Session) -> None:
    history.confirmed(session, TOPIC, [2], 1, (0, 0))
    history.deliver(history.session("s", SubscriptionType.EXCLUSIVE, [TOPIC]), 1, TOPIC, 2, payload(2), None)


def came_again_after_a_reconnect(history: History, session: Session) -> None:
    history.confirmed(session, TOPIC, [2], 1, (0, 0))
    history.deliver(session, 2, TOPIC, 2, payload(2), None)


def miscounted(history: History, session: Session) -> None:
    history.producer_run("p", 2, TOPIC, 5)
    history.audit("hot", TOPIC, audited(range(6)))


def acknowledged_at_two_offsets(history: History, session: Session) -> None:
    history.acknowledge(payload(0), TOPIC, 7)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lost, "is not there"),
        (twice, "is there twice"),
        (hole, "offset 3 follows where 2 should"),
        (swapped, "is behind"),
        (invented, "was never published"),
        (changed_between_audits, "not what the first audit found"),
        (gone_between_audits, "messages are gone"),
        (delivered_from_nowhere, "which nobody has published"),
        (delivered_with_another_key, "with key 'k' instead of None"),
        (delivered_elsewhere, "where another message was before"),
        (delivered_in_another_order, "seen for the first time after 7"),
        (never_delivered, "were never delivered"),
        (came_again, "came again after its acknowledgement was durable"),
        (came_again_after_a_reconnect, "came again after its acknowledgement was durable"),
        (miscounted, "was told that"),
        (acknowledged_at_two_offsets, "was acknowledged at 0 and at 7"),
    ],
)
def test_wrong_history(spoil: Callable[[History, Session], None], said: str) -> None:
    history, session = good_history()
    spoil(history, session)
    found = history.check()
    assert any(said in violation for violation in found), found


def test_redelivery_to_the_same_stream_may_cross_its_acknowledgement() -> None:
    history, session = good_history()
    history.confirmed(session, TOPIC, [2], 1, (0, 0))
    history.deliver(session, 1, TOPIC, 2, payload(2), None)
    history.audit("hot", TOPIC, audited(range(6)))
    assert history.check() == []


def test_power_loss_takes_the_tail_of_an_os_topic() -> None:
    history, _ = good_history(durability=Durability.OS)
    history.power_loss()
    history.audit("hot", TOPIC, audited(range(3)))
    assert history.check() == []


def test_power_loss_takes_nothing_of_a_disk_topic() -> None:
    history, _ = good_history()
    history.power_loss()
    history.audit("hot", TOPIC, audited(range(3)))
    assert sum("is not there" in violation for violation in history.check()) == 3


def test_power_loss_takes_nothing_from_the_middle() -> None:
    history, _ = good_history(durability=Durability.OS)
    history.power_loss()
    history.publish("p", 1, 6, TOPIC, payload(6), None)
    found = [Audited(0, payload(0), None), Audited(1, payload(6), None), *audited(range(6))[2:]]
    history.audit("hot", TOPIC, found)
    assert any("not a lost tail" in violation for violation in history.check())


def test_key_shared_keeps_the_order_of_each_key() -> None:
    history = History()
    history.topic(TOPIC, Durability.DISK)
    for number, key in enumerate("abab"):
        history.publish("p", 1, number, TOPIC, payload(number), key)
    session = history.session("s", SubscriptionType.KEY_SHARED, [TOPIC])
    for number, key in ((1, "b"), (0, "a"), (2, "a")):
        history.deliver(session, 1, TOPIC, number, payload(number), key)
    assert history.violations == []
    late = history.session("late", SubscriptionType.KEY_SHARED, [TOPIC])
    history.deliver(late, 1, TOPIC, 2, payload(2), "a")
    history.deliver(late, 1, TOPIC, 0, payload(0), "a")
    assert any("seen for the first time after 2 of key a" in violation for violation in history.violations)


def failover_of_two(*, retention: bool, kind: SubscriptionType) -> tuple[History, Session, Session]:
    """Eight messages; the second consumer has seen the last four, and the first one only the first two."""
    history = History()
    history.topic(TOPIC, Durability.DISK, retention=retention)
    former, fresh = (history.session("s", kind, [TOPIC]) for _ in range(2))
    for number in range(8):
        history.publish("p", 1, number, TOPIC, payload(number), "k")
    for session, number in ((former, 0), (former, 1), (fresh, 4), (fresh, 5)):
        history.deliver(session, 1, TOPIC, number, payload(number), "k")
    return history, former, fresh


@pytest.mark.parametrize(
    ("retention", "kind"), [(False, SubscriptionType.FAILOVER), (True, SubscriptionType.KEY_SHARED)]
)
def test_the_queue_of_a_consumer_whose_turn_is_over_is_in_order_by_itself(
    retention: bool, kind: SubscriptionType
) -> None:
    """Its application may take what has expired, or pauses, after the next consumer has gone on behind it."""
    history, former, fresh = failover_of_two(retention=retention, kind=kind)
    for session, number in ((former, 2), (former, 3), (fresh, 6)):
        history.deliver(session, 1, TOPIC, number, payload(number), "k")
    assert history.violations == []
    for session, number in ((fresh, 7), (fresh, 4)):
        history.deliver(session, 1, TOPIC, number, payload(number), "k")
    assert history.violations == []


def test_one_stream_of_a_failover_subscription_is_in_order() -> None:
    history, _, fresh = failover_of_two(retention=True, kind=SubscriptionType.FAILOVER)
    history.deliver(fresh, 1, TOPIC, 3, payload(3), "k")
    assert "seen for the first time after 5" in history.violations[0]


def test_a_key_that_moves_is_in_order_across_consumers() -> None:
    history, former, _ = failover_of_two(retention=False, kind=SubscriptionType.KEY_SHARED)
    history.deliver(former, 1, TOPIC, 3, payload(3), "k")
    assert "seen for the first time after 5" in history.violations[0]
