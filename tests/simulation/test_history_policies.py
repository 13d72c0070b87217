"""The history checker and its exceptions for policies, seeks, owners and damage: each rule can fail."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from danube.model import Durability, PoisonPolicy, SubscriptionType
from danube.testing.history import Audited, DeadLetter, History, Session, SubscriptionRules

TOPIC = "/default/t"
EXCLUSIVE = SubscriptionType.EXCLUSIVE


class Story:
    """Five messages of one producer, all delivered; of the subscription, all but the one at 2 are acknowledged."""

    def __init__(self, rules: SubscriptionRules | None = None, durability: Durability = Durability.DISK) -> None:
        self.now_s = 0.0
        self.history = History(lambda: self.now_s)
        self.history.topic(TOPIC, durability, home="here")
        self.history.new_life("here")
        if rules is not None:
            self.history.rules([TOPIC], "s", rules)
        self.session: Session = self.history.session("s", EXCLUSIVE, [TOPIC])
        for number in range(5):
            self.history.publish("p", 1, number, TOPIC, b"m%d" % number, "k")
            self.history.acknowledge(b"m%d" % number, TOPIC, number)

    def deliver(self, number: int, *, attempt: int = 1, session: Session | None = None, generation: int = 1) -> None:
        self.history.deliver(session or self.session, generation, TOPIC, number, b"m%d" % number, "k", attempt=attempt)

    def go_on(self, *, times: int = 1) -> None:
        for number in range(5):
            self.deliver(number)
            if number != 2:
                self.history.given(self.session, TOPIC, number, b"m%d" % number)
        for attempt in range(2, times + 1):
            self.deliver(2, attempt=attempt)

    def check(self) -> list[str]:
        self.history.audit("hot", TOPIC, [Audited(number, b"m%d" % number, "k") for number in range(5)])
        return self.history.check()


def poison(*policies: PoisonPolicy) -> SubscriptionRules:
    return SubscriptionRules(EXCLUSIVE, frozenset(policies), max_redelivery_count=2)


def letter(**changes: str) -> DeadLetter:
    attributes = {
        "x-original-topic": TOPIC,
        "x-original-subscription": "s",
        "x-original-topic-offset": "2",
        "x-poison-policy": "dead_letter",
        "x-failure-reason": "nack",
        "x-delivery-attempt": "3",
    }
    return DeadLetter(b"m2", "k", attributes | {name.replace("_", "-"): value for name, value in changes.items()})


def test_the_cursor_passes_no_unacknowledged_message() -> None:
    story = Story()
    story.go_on(times=9)
    assert any("the cursor has passed 1 unacknowledged messages" in found for found in story.check())


@pytest.mark.parametrize(("times", "well"), [(3, True), (2, False)])
def test_a_message_is_dropped_after_enough_failures(times: int, well: bool) -> None:
    story = Story(poison(PoisonPolicy.DROP))
    story.go_on(times=times)
    assert (story.check() == []) is well


def test_block_drops_nothing() -> None:
    story = Story(poison(PoisonPolicy.BLOCK))
    story.go_on(times=9)
    assert story.check()


def test_dead_letters_count_if_they_are_there() -> None:
    story = Story(poison(PoisonPolicy.DEAD_LETTER))
    story.go_on(times=3)
    story.history.dead_letters(TOPIC, "s", [letter(), letter()])
    assert story.check() == []


@pytest.mark.parametrize(
    ("found", "times", "said"),
    [
        ([], 3, "unacknowledged messages"),
        ([letter()], 2, "was handed out only 2 times"),
        ([letter(x_original_topic="/default/other")], 3, "x-original-topic is '/default/other'"),
        ([letter(x_original_topic_offset="3")], 3, "x-original-topic-offset is '3'"),
        ([letter(x_failure_reason="")], 3, "there is no x-failure-reason"),
        ([letter(x_delivery_attempt="2")], 3, "given up in attempt 2"),
    ],
)
def test_dead_letters_that_cannot_be(found: list[DeadLetter], times: int, said: str) -> None:
    story = Story(poison(PoisonPolicy.DEAD_LETTER))
    story.go_on(times=times)
    story.history.dead_letters(TOPIC, "s", found)
    violations = story.check()
    assert any(said in violation for violation in violations), violations


@pytest.mark.parametrize(("after_s", "well"), [(5.0, True), (3.0, False)])
def test_only_what_has_expired_may_be_passed_over(after_s: float, well: bool) -> None:
    story = Story(SubscriptionRules(EXCLUSIVE, message_ttl_s=4.0))
    for number in (0, 1, 3, 4):
        if number == 3:
            story.now_s = after_s
        story.deliver(number)
        story.history.given(story.session, TOPIC, number, b"m%d" % number)
    story.now_s = 10.0
    violations = story.check()
    assert (violations == []) is well
    assert well or "@2 was skipped at 3.000 s, and had not expired" in violations[0]


def test_a_message_that_was_lost_with_a_stream_may_pause_until_it_has_expired() -> None:
    """Seed 20261128000566: it waited for its third attempt when the next ones came by another stream."""
    story = Story(SubscriptionRules(EXCLUSIVE, message_ttl_s=4.0))
    for number in (0, 1, 3, 4):
        if number == 3:
            story.now_s = 3.0
        story.deliver(number, generation=1 if number < 3 else 2)
        story.history.given(story.session, TOPIC, number, b"m%d" % number)
    story.now_s = 10.0
    assert story.check() == []


@pytest.mark.parametrize(("rest_s", "well"), [(3.5, True), (1.0, False)])
def test_a_message_that_an_application_let_wait_may_pause_until_it_has_expired(rest_s: float, well: bool) -> None:
    """Seed 20261212004098: the application handled a message for so long that the client gave the next one back."""
    story = Story(SubscriptionRules(EXCLUSIVE, message_ttl_s=4.0, ack_timeout_s=3.0))
    for number in (0, 1, 3, 4):
        if number == 3:
            story.now_s += rest_s
        story.deliver(number)
        story.history.given(story.session, TOPIC, number, b"m%d" % number)
    story.now_s = 10.0
    assert (story.check() == []) is well


def test_a_message_is_not_delivered_before_its_time() -> None:
    story = Story(SubscriptionRules(EXCLUSIVE, in_order=False))
    story.history.publish("p", 1, 5, TOPIC, b"later", "k", due_s=3.0)
    story.now_s = 2.9
    story.history.deliver(story.session, 1, TOPIC, 5, b"later", "k")
    assert "was due at 3.0" in story.history.violations[0]


def test_filters() -> None:
    story = Story()
    fits = story.history.session("s", SubscriptionType.KEY_SHARED, [TOPIC], filters=("a*", "?"))
    misses = story.history.session("s", SubscriptionType.KEY_SHARED, [TOPIC], filters=("a*", "k?"))
    story.deliver(0, session=fits)
    assert story.history.violations == []
    story.deliver(1, session=misses)
    assert "do not match its key" in story.history.violations[0]


def test_second_attempts_may_come_late_and_first_ones_may_not() -> None:
    story = Story()
    for number in (0, 1, 3):
        story.deliver(number)
    story.deliver(2, attempt=2)
    assert story.history.violations == []
    story.history.publish("p", 1, 5, TOPIC, b"m5", "k")
    story.deliver(5)
    story.deliver(4)
    assert "seen for the first time after 5" in story.history.violations[0]


def test_a_new_life_begins_with_what_is_not_acknowledged() -> None:
    story = Story()
    story.deliver(3)
    story.history.new_life("here")
    story.deliver(1, generation=2)
    story.deliver(2, generation=2)
    assert story.history.violations == []
    story.deliver(0, generation=2)
    assert "seen for the first time after 2" in story.history.violations[0]


def confirm_and_repeat(story: Story, between: Callable[[], None]) -> list[str]:
    given = story.history.moment(story.session, TOPIC)
    story.deliver(0)
    story.history.confirmed(story.session, TOPIC, [(0, zlib.crc32(b"m0"))], 1, given)
    between()
    story.deliver(0, generation=2)
    return story.history.violations


def test_events_that_withdraw_confirmations() -> None:
    story = Story()
    assert confirm_and_repeat(story, lambda: None)
    for excuse in ("moved", "replaced", "damaged"):
        story = Story()
        history = story.history
        how = {
            "moved": lambda history=history: history.moved(TOPIC, "s", 0),
            "replaced": lambda history=history: history.replaced("here"),
            "damaged": lambda history=history: history.damaged(TOPIC),
        }
        assert confirm_and_repeat(story, how[excuse]) == [], excuse


def test_a_confirmation_of_what_was_given_before_a_seek_promises_nothing() -> None:
    story = Story()
    given = story.history.moment(story.session, TOPIC)
    story.deliver(0)
    story.history.moved(TOPIC, "s", 0)
    story.history.confirmed(story.session, TOPIC, [(0, zlib.crc32(b"m0"))], 1, given)
    story.deliver(0, generation=2)
    assert story.history.violations == []


def test_readers() -> None:
    story = Story()
    story.history.read(TOPIC, 0, b"m0", "k", before=None)
    story.history.read(TOPIC, 1, b"m1", "k", before=(0, b"m0"))
    assert story.history.violations == []
    story.history.read(TOPIC, 3, b"m3", "k", before=(1, b"m1"))
    story.history.read(TOPIC, 1, b"m4", "k", before=None)
    assert "2 should follow" in story.history.violations[0]
    assert "was read where another message was before" in story.history.violations[1]


def test_read_messages_are_those_of_the_log() -> None:
    story = Story()
    story.go_on(times=1)
    story.history.given(story.session, TOPIC, 2, b"m2")
    story.history.read(TOPIC, 1, b"m2", "k", before=None)
    assert any("was read, and the log has something else" in found for found in story.check())


def test_at_most_once() -> None:
    story = Story(durability=Durability.NONE)
    story.deliver(0)
    story.deliver(2)
    assert story.history.violations == []
    story.deliver(0)
    story.deliver(1)
    assert "came a second time" in story.history.violations[0]
    assert "came behind (1, 2)" not in story.history.violations[0]
    story.history.new_life("here")
    before = len(story.history.violations)
    story.deliver(2)
    assert len(story.history.violations) == before, "its producer may have repeated it"


def test_power_losses_are_those_of_a_home() -> None:
    history = History()
    for home in ("north", "south"):
        history.topic(f"/default/{home}", Durability.OS, home=home)
    history.power_loss("north")
    assert (history.power_losses("/default/north"), history.power_losses("/default/south")) == (1, 0)


def test_damage_excuses_what_is_missing_and_nothing_wrong() -> None:
    story = Story()
    story.go_on()
    story.history.damaged(TOPIC)
    assert story.history.is_damaged([TOPIC])
    assert story.check() == []
    story.history.deliver(story.session, 1, TOPIC, 0, b"m4", "k")
    assert "where another message was before" in story.history.violations[0]


@pytest.mark.parametrize(
    ("acknowledged_since", "again", "said"),
    [
        (True, range(1, 5), None),
        (False, range(1, 5), "the cursor has passed 3 unacknowledged messages"),
        (True, (1, 2, 4), "1 messages were not delivered again after a seek, the first is @3"),
        (False, (), "4 messages were not delivered again after a seek, the first is @1"),
    ],
)
def test_messages_that_a_seek_repeats(acknowledged_since: bool, again: range, said: str | None) -> None:
    story = Story()
    story.go_on()
    story.history.given(story.session, TOPIC, 2, b"m2")
    before = story.history.moment(story.session, TOPIC)
    moves = story.history.moved(TOPIC, "s", 1)
    story.history.moved(TOPIC, "s", 1)
    story.history.sought(TOPIC, "s", 1, moves)
    for number in again:
        story.deliver(number)
        now = story.history.moment(story.session, TOPIC)
        story.history.given(
            story.session, TOPIC, number, b"m%d" % number, now if acknowledged_since or number == 1 else before
        )
    found = story.check()
    assert found == [] if said is None else any(said in each for each in found), found


def test_a_seek_that_was_not_confirmed_may_happen_later() -> None:
    story = Story()
    story.go_on()
    story.history.moved(TOPIC, "s", 4)
    story.history.moved(TOPIC, "s", 4, failed=True)
    moves = story.history.moved(TOPIC, "s", 0)
    story.history.moved(TOPIC, "s", 0)
    story.history.sought(TOPIC, "s", 0, moves)
    assert any("4 messages" not in each and "first is @4" in each for each in story.check())


@pytest.mark.parametrize(("target", "well"), [(3, True), (1, False)])
def test_a_seek_before_the_first_consumer_counts(target: int, well: bool) -> None:
    """Policies may let no consumer in for long; what was passed over meanwhile is nothing that it has to get."""
    history = History()
    history.topic(TOPIC, Durability.DISK)
    history.rules([TOPIC], "s", SubscriptionRules(SubscriptionType.FAILOVER))
    for number in range(5):
        history.publish("p", 1, number, TOPIC, b"m%d" % number, None)
        history.acknowledge(b"m%d" % number, TOPIC, number)
    moves = history.moved(TOPIC, "s", target)
    history.moved(TOPIC, "s", target)
    history.sought(TOPIC, "s", target, moves)
    session = history.session("s", SubscriptionType.FAILOVER, [TOPIC])
    for number in (3, 4):
        history.deliver(session, 1, TOPIC, number, b"m%d" % number, None)
        history.given(session, TOPIC, number, b"m%d" % number, history.moment(session, TOPIC))
    history.audit("hot", TOPIC, [Audited(number, b"m%d" % number, None) for number in range(5)])
    assert (history.check() == []) is well
