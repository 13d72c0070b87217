"""The history checker: a good history passes, and each way of being wrong is named."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import pytest

from danube.model import Durability, SubscriptionType
from danube.testing.history import Audited, History, Session

TOPIC = "/default/t"


def payload(number: int) -> bytes:
    return b"m%d" % number


def spot(number: int) -> tuple[int, int]:
    return number, zlib.crc32(payload(number))


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
        history.given(session, TOPIC, number, payload(number))
    return history, session


def audited(numbers: Sequence[int]) -> list[Audited]:
    return [Audited(offset, payload(number), None) for offset, number in enumerate(numbers)]


def test_good_history() -> None:
    history, session = good_history()
    history.confirmed(session, TOPIC, [spot(number) for number in range(6)], 1, (0, 0))
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
    history.confirmed(session, TOPIC, [spot(2)], 1, (0, 0))
    history.deliver(history.session("s", SubscriptionType.EXCLUSIVE, [TOPIC]), 1, TOPIC, 2, payload(2), None)


def came_again_after_a_reconnect(history: History, session: Session) -> None:
    history.confirmed(session, TOPIC, [spot(2)], 1, (0, 0))
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
        (delivered_from_nowhere, "which was never published"),
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
    history.confirmed(session, TOPIC, [spot(2)], 1, (0, 0))
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


@pytest.mark.parametrize("durability", [Durability.OS, Durability.DISK])
@pytest.mark.parametrize(("told", "well"), [(3, True), (2, False), (4, False), (0, False)])
def test_a_producer_is_told_what_a_power_loss_has_left(durability: Durability, told: int, well: bool) -> None:
    history = History()
    history.topic(TOPIC, durability)
    history.producer_run("p", 1, TOPIC, 0)
    for number in range(3 if durability is Durability.DISK else 6):
        history.publish("p", 1, number, TOPIC, payload(number), None)
    history.power_loss()
    history.producer_run("p", 2, TOPIC, told)
    history.audit("hot", TOPIC, audited(range(3)))
    assert any("was told that" in violation for violation in history.check()) is not well


def test_a_report_to_a_producer_may_be_lost_on_its_way() -> None:
    for losses, well in ((0, True), (1, False)):
        history, _ = good_history(durability=Durability.OS)
        history.power_loss()
        history.producer_run("p", 2, TOPIC, 6, losses=losses)
        history.audit("hot", TOPIC, audited(range(3)))
        assert any("was told that" in violation for violation in history.check()) is not well


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


@pytest.mark.parametrize("opening_first", [True, False])
def test_what_was_sent_to_a_consumer_while_it_was_being_opened_is_no_repetition(opening_first: bool) -> None:
    """A consumer of a partitioned topic is open when all its partitions are: the first may have sent long before."""
    history, former = good_history(1, kind=SubscriptionType.SHARED)
    began = history.opening() if opening_first else 0
    history.confirmed(former, TOPIC, [spot(0)], 1, (0, 0))
    if not opening_first:
        began = history.opening()
    fresh = history.session("s", SubscriptionType.SHARED, [TOPIC], began=began)
    history.deliver(fresh, 1, TOPIC, 0, payload(0), None, attempt=2)
    if opening_first:
        assert history.violations == []
    else:
        assert [text.partition(":")[0] for text in history.violations] == ["P1"]


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


# --- Stored, place unknown


def stored_somewhere(
    *, durability: Durability = Durability.DISK, retention: bool = False, lossy_power: bool = False
) -> History:
    """Six messages of one producer, of which the one in the middle (3) was acknowledged without an offset."""
    history = History()
    history.topic(TOPIC, durability, retention=retention)
    for number in range(6):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.acknowledge(payload(number), TOPIC, -1 if number == 3 else number)
    if lossy_power:
        history.power_loss()
    return history


def test_a_message_stored_at_an_unknown_offset_is_stored() -> None:
    history = stored_somewhere()
    history.audit("hot", TOPIC, audited(range(6)))
    assert history.check() == []


@pytest.mark.parametrize(
    ("retention", "found", "well"),
    [
        (False, [0, 1, 2, 4, 5], False),
        (True, [4, 5], True),  # it may have expired
        (True, [2, 4, 5], False),
    ],
)
def test_a_message_reported_at_an_unknown_offset_exists(retention: bool, found: list[int], well: bool) -> None:
    history = History()
    history.topic(TOPIC, Durability.DISK, retention=retention)
    for number in range(6):
        history.publish("p", 1, number, TOPIC, payload(number), None)
    for offset, number in enumerate(number for number in range(6) if number != 3):
        history.acknowledge(payload(number), TOPIC, offset)
    history.acknowledge(payload(3), TOPIC, -1)
    at = {number: offset for offset, number in enumerate(number for number in range(6) if number != 3)}
    history.audit("hot", TOPIC, [Audited(at[number], payload(number), None) for number in found])
    violations = history.check()
    assert (violations == []) is well
    assert well or "acknowledged as stored in /default/t, place unknown" in violations[0]


def test_a_message_at_an_unknown_place_may_be_lost_with_a_tail_only() -> None:
    history = stored_somewhere(durability=Durability.OS, lossy_power=True)
    history.audit("hot", TOPIC, audited(range(3)))
    assert history.check() == []
    history = History()
    history.topic(TOPIC, Durability.OS)
    for number in range(3):
        history.publish("p", 1, number, TOPIC, payload(number), None)
    for number, offset in ((0, 0), (1, -1), (2, 1)):
        history.acknowledge(payload(number), TOPIC, offset)
    history.power_loss()
    history.audit("hot", TOPIC, audited([0, 2]))
    assert any("though it was not in a lost tail" in violation for violation in history.check())


# --- Offsets that are given again


def lost_tail(*, delivered: bool = True) -> tuple[History, Session]:
    """Six messages of an ``os`` topic; a power loss takes the last three, and others get their offsets."""
    history, session = good_history(durability=Durability.OS)
    history.power_loss()
    history.new_life()
    history.new_life()
    for number in (6, 7, 8):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.acknowledge(payload(number), TOPIC, number - 3)
        if delivered:
            history.deliver(session, 2, TOPIC, number - 3, payload(number), None)
            history.given(session, TOPIC, number - 3, payload(number))
    return history, session


def test_offsets_of_a_lost_tail_are_given_again() -> None:
    history, session = lost_tail()
    history.deliver(session, 1, TOPIC, 4, payload(4), None)  # was on its way when the power went
    history.audit("hot", TOPIC, audited([0, 1, 2, 6, 7, 8]))
    history.audit("sealed", TOPIC, audited([0, 1, 2, 6, 7, 8]))
    assert history.check() == []


def test_a_delivery_of_what_was_lost_does_not_count_for_what_has_its_offset() -> None:
    history, _ = lost_tail(delivered=False)
    history.audit("hot", TOPIC, audited([0, 1, 2, 6, 7, 8]))
    violations = history.check()
    assert any("3 messages were never delivered, the first is @3" in violation for violation in violations)
    assert any("has passed 3 unacknowledged messages" in violation for violation in violations)


def test_an_acknowledgement_of_what_was_lost_does_not_count_for_what_has_its_offset() -> None:
    history, session = lost_tail(delivered=False)
    for number in (6, 7, 8):
        history.deliver(session, 2, TOPIC, number - 3, payload(number), None)
    history.audit("hot", TOPIC, audited([0, 1, 2, 6, 7, 8]))
    assert [violation.split(": ")[-1] for violation in history.check()] == [
        "the cursor has passed 3 unacknowledged messages, the first is @3, delivered 1 times"
    ]


def test_only_a_power_loss_gives_an_offset_again() -> None:
    history, session = lost_tail()
    history.publish("p", 1, 9, TOPIC, payload(9), None)
    history.deliver(session, 2, TOPIC, 4, payload(9), None)
    assert any("delivered where another message was before" in violation for violation in history.violations)


@pytest.mark.parametrize("acknowledged", [True, False])
def test_delivered_messages_are_lost_with_a_tail_only(acknowledged: bool) -> None:
    """Seed 20261213010063 of a cluster: a message that its producer had to repeat got the offset that it had before."""
    history = History()
    history.topic(TOPIC, Durability.OS)
    session = history.session("s", SubscriptionType.EXCLUSIVE, [TOPIC])
    for number in range(4):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.deliver(session, 1, TOPIC, number, payload(number), None)
        history.given(session, TOPIC, number, payload(number))
    if acknowledged:
        history.acknowledge(payload(3), TOPIC, 3)
    history.power_loss()
    history.publish("p", 1, 4, TOPIC, payload(4), None)
    history.deliver(session, 2, TOPIC, 2, payload(4), None)
    if not acknowledged:
        history.acknowledge(payload(3), TOPIC, 3)
    history.audit("hot", TOPIC, audited([0, 1, 4, 3]))
    assert any("@2 is gone, but 3 at or behind it is not" in each for each in history.check()) is acknowledged


def test_first_attempts_come_in_order_after_a_power_loss_too() -> None:
    history, session = good_history(durability=Durability.OS)
    history.new_life()
    history.new_life()
    history.power_loss()
    for number in (6, 7):
        history.publish("p", 1, number, TOPIC, payload(number), None)
    history.deliver(session, 2, TOPIC, 7, payload(7), None)
    history.deliver(session, 2, TOPIC, 6, payload(6), None)
    assert any("seen for the first time after 7" in violation for violation in history.violations)


@pytest.mark.parametrize(("lost_before", "well"), [(True, True), (False, False)])
def test_a_reader_of_what_was_lost_goes_on_behind_the_loss(lost_before: bool, well: bool) -> None:
    history, _ = good_history(durability=Durability.OS)
    history.read(TOPIC, 5, payload(5), None, before=None)
    history.power_loss()
    history.publish("p", 1, 6, TOPIC, payload(6), None)
    history.publish("p", 1, 7, TOPIC, payload(7), None)
    if not lost_before:
        history.read(TOPIC, 3, payload(6), None, before=(5, payload(5)))
    before = (5, payload(5)) if lost_before else (3, payload(6))
    history.read(TOPIC, 5, payload(7), None, before=before)
    assert (history.violations == []) is well


# --- Retention


@pytest.mark.parametrize(
    ("found", "start", "violated"),
    [
        ([3, 4, 5], 3, ""),
        ([0, 1, 4, 5], 4, ""),  # it overtook the reading
        ([0, 1, 2, 3, 4, 5], 4, ""),  # and here it did so behind it
        ([], 6, ""),
        ([0, 1, 4, 5], 0, "offset 4 follows where 2 should"),
        ([0, 1, 4, 5], 3, "offset 4 follows where 3 should"),
        ([4, 5], 3, "offset 4 follows where 3 should"),
        ([3, 4], 3, "P1: b'm5' was acknowledged @5 of /default/t and is not there"),
        ([], 5, "P1: b'm5' was acknowledged @5 of /default/t and is not there"),
    ],
)
def test_retention_takes_what_lies_before_the_start_and_nothing_else(
    found: list[int], start: int, violated: str
) -> None:
    history = History()
    history.topic(TOPIC, Durability.DISK, retention=True)
    for number in range(6):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.acknowledge(payload(number), TOPIC, number)
    history.audit("hot", TOPIC, [Audited(number, payload(number), None) for number in found], start)
    violations = history.check()
    assert bool(violations) is bool(violated)
    assert not violated or any(violated in violation for violation in violations), violations


@pytest.mark.parametrize(("least_bytes", "well"), [(3 * 300, True), (4 * 300, False)])
def test_retention_leaves_what_its_rule_says(least_bytes: int, well: bool) -> None:
    """Three messages are left: with all that may belong to them they are below the larger of the two rules."""
    history = History()
    history.topic(TOPIC, Durability.DISK, retention=True, least_bytes=least_bytes)
    for number in range(6):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.acknowledge(payload(number), TOPIC, number)
    history.audit("hot", TOPIC, audited(range(6))[3:], 3)
    assert bool(history.check()) is not well
    assert well or "has to leave" in history.violations[0]


@pytest.mark.parametrize(("start", "well"), [(3, True), (1, False)])
def test_a_reader_passes_over_only_what_retention_has_taken(start: int, well: bool) -> None:
    history = History()
    history.topic(TOPIC, Durability.DISK, retention=True)
    for number in range(6):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.acknowledge(payload(number), TOPIC, number)
    history.read(TOPIC, 3, payload(3), None, before=(0, payload(0)))
    history.audit("hot", TOPIC, audited(range(6))[start:], start)
    assert bool(history.check()) is not well
    assert well or "has jumped to 3, and it begins at 1" in history.violations[0]


# --- Moves of a cursor that a power loss undoes


def seek(history: History, target: int, between: Callable[[], None] = lambda: None) -> None:
    """Move the cursor; ``between``: what happens while the call is on its way."""
    moves = history.moved(TOPIC, "s", target)
    between()
    history.moved(TOPIC, "s", target)
    history.sought(TOPIC, "s", target, moves)


STEPS: dict[str, Callable[[History], None]] = {
    "forward": lambda history: seek(history, 4),
    "back": lambda history: seek(history, 0),
    "back-across-a-loss": lambda history: seek(history, 0, history.power_loss),
    "start": lambda history: history.new_life(),
    "ready": lambda history: history.recovered(),
    "ready-elsewhere": lambda history: history.recovered("elsewhere"),
    "loss": lambda history: history.power_loss(),
    "loss-elsewhere": lambda history: history.power_loss("elsewhere"),
}


@pytest.mark.parametrize(
    ("steps", "durability", "excused_below"),
    [
        ("forward back", Durability.OS, 0),
        ("forward back loss", Durability.OS, 4),
        ("forward back loss", Durability.DISK, 0),
        ("forward back loss-elsewhere", Durability.OS, 0),
        ("forward back start loss", Durability.OS, 4),  # it has not synced what it recovers yet
        ("forward back ready loss", Durability.OS, 0),
        ("forward ready back loss", Durability.OS, 4),
        ("forward back loss ready", Durability.OS, 4),
        ("forward back loss back", Durability.OS, 0),
        ("forward back loss back loss", Durability.OS, 4),
        ("forward back loss ready back ready loss", Durability.OS, 0),
        ("forward back-across-a-loss", Durability.OS, 4),  # the loss may have come after the move
        ("forward back-across-a-loss", Durability.DISK, 0),
        ("loss forward back loss-elsewhere", Durability.OS, 0),
        ("forward back ready-elsewhere loss", Durability.OS, 4),
        ("back loss", Durability.OS, 0),
    ],
)
def test_a_power_loss_undoes_moves_since_the_broker_was_ready(
    steps: str, durability: Durability, excused_below: int
) -> None:
    """Seed 20261201002158: a seek back was lost, so what the one before it had skipped was never delivered."""
    for first in (0, 3, 4, 5):
        history = History()
        history.topic(TOPIC, durability)
        session = history.session("s", SubscriptionType.EXCLUSIVE, [TOPIC])
        history.recovered()
        for number in range(6):
            history.publish("p", 1, number, TOPIC, payload(number), None)
            history.acknowledge(payload(number), TOPIC, number)
        for step in steps.split():
            STEPS[step](history)
        for number in range(first, 6):
            history.deliver(session, 1, TOPIC, number, payload(number), None)
            history.given(session, TOPIC, number, payload(number), history.moment(session, TOPIC))
        history.audit("hot", TOPIC, audited(range(6)))
        assert bool(history.check()) is (first > excused_below), (first, history.violations)


@pytest.mark.parametrize(
    ("steps", "again"),
    [("back", True), ("back loss", False), ("back ready loss", True), ("loss back", True), ("back loss back", True)],
)
def test_a_power_loss_undoes_that_messages_must_come_again(steps: str, again: bool) -> None:
    history, _ = good_history(durability=Durability.OS)
    for step in steps.split():
        STEPS[step](history)
    history.audit("hot", TOPIC, audited(range(6)))
    assert any("were not delivered again after a seek" in violation for violation in history.check()) is again


# --- Messages that an operator skips


@pytest.mark.parametrize("voids", [False, True])
def test_after_a_skip_nothing_acknowledged_comes_again_other_than_after_a_move(voids: bool) -> None:
    history, session = good_history()
    history.confirmed(session, TOPIC, [spot(number) for number in range(6)], 1, (0, 0))
    for _ in range(2):  # before and after the call
        history.moved(TOPIC, "s", 2, voids=voids)
    again = history.session("s", SubscriptionType.EXCLUSIVE, [TOPIC])
    history.deliver(again, 1, TOPIC, 4, payload(4), None, attempt=2)
    history.audit("hot", TOPIC, audited(range(6)))
    assert any("came again after its acknowledgement" in violation for violation in history.check()) is not voids


@pytest.mark.parametrize(("below", "well"), [(2, True), (1, False)])
def test_what_was_skipped_need_not_be_delivered(below: int, well: bool) -> None:
    history = History()
    history.topic(TOPIC, Durability.DISK)
    session = history.session("s", SubscriptionType.EXCLUSIVE, [TOPIC])
    for number in range(4):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.acknowledge(payload(number), TOPIC, number)
    for _ in range(2):
        history.moved(TOPIC, "s", below, voids=False)
    for number in (2, 3):
        history.deliver(session, 1, TOPIC, number, payload(number), None)
        history.given(session, TOPIC, number, payload(number), history.moment(session, TOPIC))
    history.audit("hot", TOPIC, audited(range(4)))
    assert bool(history.check()) is not well


# --- Topics that are handed over


@pytest.mark.parametrize("durability", [Durability.OS, Durability.DISK])
@pytest.mark.parametrize(
    ("steps", "well"),
    [
        ("hand-over loss", False),
        ("loss hand-over", True),  # it may have been lost before that
        ("loss", True),
        ("hand-over", False),
        ("elsewhere hand-over loss", False),
    ],
)
def test_no_power_loss_takes_what_was_acknowledged_before_a_hand_over(
    steps: str, durability: Durability, well: bool
) -> None:
    history = History()
    history.topic(TOPIC, durability)
    history.at_home(TOPIC, TOPIC)
    for number in range(6):
        history.publish("p", 1, number, TOPIC, payload(number), None)
        history.acknowledge(payload(number), TOPIC, number)
    for step in steps.split():
        if step == "hand-over":
            history.handed_over(TOPIC)
        else:
            history.power_loss(TOPIC if step == "loss" else "elsewhere")
    history.audit("hot", TOPIC, audited(range(5)))
    assert (history.check() == []) is (well and durability is Durability.OS), history.violations


def test_a_producer_without_durability_may_repeat_to_the_next_owner_what_the_former_one_has_delivered() -> None:
    for is_handed_over in (False, True):
        history = History()
        history.topic(TOPIC, Durability.NONE)
        history.at_home(TOPIC, TOPIC)
        session = history.session("s", SubscriptionType.EXCLUSIVE, [TOPIC])
        history.publish("p", 1, 0, TOPIC, payload(0), None)
        history.deliver(session, 1, TOPIC, 0, payload(0), None)
        if is_handed_over:
            history.handed_over(TOPIC)
        history.deliver(session, 1, TOPIC, 0, payload(0), None)
        assert (history.violations == []) is is_handed_over
