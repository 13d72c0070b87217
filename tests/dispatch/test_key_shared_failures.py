"""Key-shared subscriptions, directed: failures, poison, late acknowledgements, leases, filters, suspension, delays."""

from __future__ import annotations

import pytest
from dispatch_models import offsets_of

from danube.dispatch import Cursor, Span, make_subscription
from danube.dispatch.ring import ring_hash
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
    return Span(base, base + len(keys), 10 * len(keys), None, keys, due)


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


# --- poison ----------------------------------------------------------------------------------------------------------


def blocked_machine():
    """Offset 1 is poison and blocks: 0 (in flight) is before it and 2 behind it; keys b and c are in flight."""
    span = batch(0, KEYS)
    machine = machine_of((), max_redelivery_count=1)
    assert pump(machine, span) == {1: [0, 1, 2, 3, 4, 5]}
    assert fail(machine, 1, span, 1) == {1: [1, 2]}
    assert fail(machine, 1, span, 1) == {}
    return machine, span


def test_block_stops_only_the_key():
    machine, _ = blocked_machine()
    assert machine.ack([3, 5], 1, 0.0) == [3, 5], "what is in flight may still be acknowledged"
    assert pump(machine, batch(6, list("ab"))) == {1: [7]}
    assert machine.ack([0, 1], 1, 0.0) == [0, 1]
    assert machine.describe(8).poisoned_messages == 1
    assert machine.poisoned(9) == []
    machine.ack([5, 8], 1, 0.0)
    explanation = machine.explain(0.0, 8)
    assert explanation.state == "blocked"
    assert "3 messages of key 'a' wait: 1 failed 2 times (the last: bad)" in explanation.sentence
    assert machine.next_deadline() is None


@pytest.mark.parametrize("how", ["ack", "ack before its turn", "discard", "policy", "count", "seek"])
def test_what_ends_a_block(how):
    machine, span = blocked_machine()
    if how == "seek":
        machine.seek(1, 0.0)
        assert pump(machine, span) == {1: [1, 2, 3, 4, 5]}
        return
    if how == "ack before its turn":
        assert machine.ack([1, 2], 1, 0.0) == [], "0 is before it and in flight"
        assert pump(machine, span) == {1: [2]}, "it is passed over"
        assert machine.ack([0, 1], 1, 0.0) == [0, 2]
        return
    machine.ack([0, 1], 1, 0.0)
    if how == "ack":
        assert machine.ack([1, 2], None, 0.0) == [1, 2]
    elif how == "discard":
        assert machine.discard([1, 2], 0.0) == [1, 2]
    elif how == "policy":
        change(machine, poison="drop")
        assert machine.take_settled() == [1, 2]
    else:
        change(machine, max_redelivery_count=-1)
        assert pump(machine, span) == {1: [1, 2]}
        return
    assert pump(machine, span) == {1: [2]}


@pytest.mark.parametrize("poison", ["drop", "dead_letter"])
def test_poison_that_was_acknowledged_before_its_turn_is_done_when_the_policy_gives_it_up(poison):
    machine, span = blocked_machine()
    assert machine.ack([1, 2], 1, 0.0) == []
    change(machine, poison=poison)
    assert machine.take_settled() == [1, 2]
    assert machine.poisoned(9) == []
    assert machine.describe(6).dropped_messages == 0
    assert pump(machine, span) == {1: [2]}


def test_poison_whose_acknowledgement_was_forgotten_follows_the_new_policy():
    machine, span = blocked_machine()
    assert machine.ack([1, 2], 1, 0.0) == []
    change(machine, max_redelivery_count=-1)
    machine.nack(1, [0, 1], None, 0.0)
    assert pump(machine, span) == {1: [0, 1, 2]}


def test_drop_acknowledges_poison_and_its_followers_go_on():
    span = batch(0, KEYS)
    machine = machine_of((), max_redelivery_count=1, poison="drop")
    pump(machine, span)
    assert machine.take_settled() == []
    assert fail(machine, 1, span, 2) == {1: [2]}
    assert machine.take_settled() == [1, 2]
    assert machine.describe(6).dropped_messages == 1
    assert machine.ack([0, 6], 1, 0.0) == [0, 1, 2, 6]


def test_what_was_acknowledged_behind_dropped_poison_has_its_turn():
    span = batch(0, KEYS)
    machine = machine_of((), max_redelivery_count=0, poison="drop")
    pump(machine, span)
    assert machine.ack([1, 3], 1, 0.0) == []
    machine.nack(1, [0, 1], None, 0.0)
    assert machine.take_settled() == [0, 3]


def test_dead_letters_leave_their_line_and_stay_until_they_are_copied():
    span = batch(0, KEYS)
    machine = machine_of((), max_redelivery_count=1, poison="dead_letter", max_unacked_messages=6)
    pump(machine, span)
    assert fail(machine, 0, span, 2) == {1: [1, 2]}, "its followers go on at once"
    assert fail(machine, 1, span, 1) == {1: [1, 2]}
    machine.nack(1, [1, 2], None, 0.0, "bad")
    machine.nack(1, [3, 4], 60.0, 0.0, "worse")
    machine.tick(60.0)
    pump(machine, span, now=60.0)
    machine.nack(1, [3, 4], 60.0, 60.0, "worse")
    assert machine.poisoned(9) == [(0, 1, 2, 2, "bad"), (1, 2, 4, 2, "bad"), (3, 4, 2, 2, "worse")]
    assert machine.poisoned(1) == [(0, 1, 2, 2, "bad")]
    facts = machine.describe(6)
    assert (facts.poisoned_messages, facts.backlog_messages) == (3, 6)
    assert machine.ack([0, 1], 1, 60.0) == [0, 1], "a late acknowledgement settles it as well"
    assert machine.ack([2, 3, 4, 6], 1, 60.0) == [2, 3, 4, 6]
    assert machine.explain(60.0, 6).state == "dead-lettering"
    assert machine.discard([1, 2, 3, 4], 60.0) == [1, 2, 3, 4]
    assert machine.poisoned(9) == []
    assert machine.cursor.floor == 6


def test_what_is_set_aside_takes_its_place_again_when_the_policy_changes():
    span = batch(0, KEYS)
    machine = machine_of((), max_redelivery_count=0, poison="dead_letter")
    pump(machine, span)
    machine.nack(1, [0, 1], None, 0.0)
    pump(machine, span)
    machine.nack(1, [1, 2], None, 0.0)
    assert [item[:2] for item in machine.poisoned(9)] == [(0, 1), (1, 2)]
    change(machine, poison="block")
    assert machine.poisoned(9) == []
    assert machine.describe(6).poisoned_messages == 2
    assert pump(machine, span) == {}
    change(machine, max_redelivery_count=5)
    assert pump(machine, span) == {1: [0, 1, 2]}


def test_only_the_first_of_a_key_fails_by_timeout():
    span = batch(0, KEYS)
    machine = machine_of((), max_redelivery_count=0, poison="dead_letter")
    pump(machine, span)
    machine.tick(10.0)
    assert [item[:2] + item[3:] for item in machine.poisoned(9)] == [
        (0, 1, 1, "ack timeout"),
        (3, 4, 1, "ack timeout"),
        (5, 6, 1, "ack timeout"),
    ]
    assert pump(machine, span, now=10.0) == {1: [1, 2, 4]}


def test_the_loss_of_a_consumer_is_no_failure():
    span = batch(0, KEYS)
    machine = machine_of((), max_redelivery_count=0)
    for consumer_id in range(1, 5):
        assert pump(machine, span) == {consumer_id: [0, 1, 2, 3, 4, 5]}
        machine.leave(consumer_id, 0.0)
        machine.join(consumer_id + 1, "next", 0.0)
        machine.credit(consumer_id + 1, 1000, 10**6)
    (delivery,) = machine.offered(span, 0.0)
    assert delivery.attempt == 5


def test_pauses_belong_to_messages_and_are_changed_live():
    span = batch(0, KEYS)
    machine = machine_of((), redelivery_delay_s=8.0)
    pump(machine, span)
    machine.nack(1, [1, 2], None, 0.0)
    machine.nack(1, [3, 4], 5.0, 0.0)
    machine.nack(1, [0, 1], 1.0, 0.0)
    assert machine.next_deadline() == 1.0
    assert pump(machine, span, now=1.0) == {1: [0]}, "1 has a pause of its own"
    change(machine, now=1.0, redelivery_delay_s=3.0)
    assert pump(machine, span, now=2.9) == {}
    assert pump(machine, span, now=3.0) == {1: [1, 2]}, "the policy's pause is another one now"
    assert pump(machine, span, now=5.0) == {1: [3, 4]}, "a pause that was asked for is not"


# --- late acknowledgements -------------------------------------------------------------------------------------------


def test_late_acknowledgements_of_followers_count_unless_an_earlier_one_comes_again():
    span = batch(0, KEYS)
    machine = machine_of((), redelivery_delay_s=1.0)
    pump(machine, span)
    machine.tick(10.0)
    assert machine.ack([1, 3, 4, 5], 1, 10.5) == [], "0 and 3 are before them"
    assert machine.ack([0, 1], 1, 10.5) == [0, 3], "it was in time for all of its key"
    assert pump(machine, span, now=11.0) == {1: [3, 4, 5]}, "3 is delivered again, and so is 4 after it"
    assert machine.ack([3, 4], 1, 11.0) == [3, 4]
    assert machine.describe(6).in_flight_messages == 2


def test_a_late_acknowledgement_behind_what_is_in_flight_lets_the_next_one_go():
    span = batch(0, list("aaaa"))
    machine = machine_of(())
    pump(machine, span)
    machine.nack(1, [1, 2], 30.0, 0.0)
    assert pump(machine, span) == {}
    assert machine.ack([1, 2], 1, 1.0) == []
    assert pump(machine, span, now=1.0) == {1: [2, 3]}
    assert machine.ack([2, 3], 1, 1.0) == []
    assert machine.ack([0, 1], 1, 1.0) == [0, 3]


def test_a_message_with_two_entries_in_the_books_keeps_its_pause():
    span = batch(0, list("aaa"))
    machine = machine_of(())
    pump(machine, span)
    machine.join(2, "c1", 0.0)
    assert machine.discard([2, 3], 0.0) == [2, 3], "0 is registered a second time"
    machine.credit(2, 1, 10)
    (delivery,) = machine.offered(span, 0.0)
    assert delivery.ranges == [0, 1]
    machine.nack(2, [0, 1], 5.0, 0.0)
    machine.credit(2, 5, 100)
    assert pump(machine, span) == {}
    assert pump(machine, span, now=5.0) == {2: [0, 1]}


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_cuts_a_delivery_and_never_shortens():
    span = batch(0, KEYS)
    machine = machine_of((), redelivery_delay_s=100.0, max_redelivery_delay_s=100.0)
    pump(machine, span)
    machine.extend(1, [3, 5], 20.0, 5.0)
    machine.extend(1, [0, 6], 1.0, 5.0)
    machine.extend(7, [0, 6], 50.0, 5.0)
    assert machine.next_deadline() == 10.0
    machine.tick(10.0)
    assert machine.describe(6).in_flight_messages == 2
    assert machine.next_deadline() == 25.0
    change(machine, now=10.0, ack_timeout_s=4.0)
    assert machine.describe(6).in_flight_messages == 2, "an extended lease is kept"
    machine.extend(1, [3, 5], 20.0, 24.0)
    assert machine.next_deadline() == 44.0, "and the old deadline is forgotten"
    machine.tick(44.0)
    assert machine.describe(6).in_flight_messages == 0


def test_an_extended_delivery_keeps_its_deadline_when_the_policy_changes():
    machine = machine_of(())
    pump(machine, batch(0, KEYS))
    machine.extend(1, [0, 6], 20.0, 5.0)
    change(machine, now=6.0, ack_timeout_s=3.0)
    assert machine.next_deadline() == 25.0


def test_a_shorter_timeout_acts_at_once_on_what_is_in_flight():
    machine = machine_of((), redelivery_delay_s=100.0, max_redelivery_delay_s=100.0)
    pump(machine, batch(0, KEYS))
    change(machine, now=3.0, ack_timeout_s=2.0)
    assert machine.describe(6).in_flight_messages == 0
    change(machine, now=3.0, ack_timeout_s=0.0)
    assert machine.next_deadline() == 103.0


def test_what_was_acknowledged_early_does_not_time_out():
    first, second = batch(0, ["a"]), batch(1, ["a"])
    machine = machine_of(())
    pump(machine, first, second)
    machine.extend(1, [0, 1], 60.0, 0.0)
    assert machine.ack([1, 2], 1, 1.0) == []
    machine.tick(10.0)
    assert machine.next_deadline() == 60.0
    assert machine.ack([0, 1], 1, 20.0) == [0, 2]


# --- filters ---------------------------------------------------------------------------------------------------------


def test_unmatched_messages_are_held_for_whom_they_match():
    span = batch(0, ["eu-1", "us-1", "us-2", "eu-2"])
    machine = machine_of(("eu-*",))
    assert pump(machine, span) == {1: [0, 3]}
    machine.ack([0, 4], 1, 0.0)
    explanation = machine.explain(0.0, 4)
    assert explanation.state == "no-matching-consumer"
    assert "1 message of key 'us-1' waits from offset 1 on" in explanation.sentence
    machine.join(2, "us", 0.0, ("us-?",))
    machine.credit(2, 10, 1000)
    assert pump(machine, span) == {2: [1, 2]}


def test_unmatched_messages_are_skipped_if_the_policy_says_so():
    span = batch(0, ["eu-1", "us-1", "us-2", "eu-2"])
    machine = machine_of(("eu-*",), unmatched="skip")
    assert pump(machine, span) == {1: [0, 3]}
    assert machine.take_settled() == [1, 3]
    machine.leave(1, 0.0)
    assert machine.take_settled() == [], "without any consumer they wait"
    machine.join(2, "us", 0.0, ("us-*",))
    assert machine.take_settled() == [0, 1, 3, 4]
    assert machine.describe(4).dropped_messages == 0


def test_held_messages_are_skipped_when_the_policy_changes():
    machine = machine_of(("x",))
    pump(machine, batch(0, KEYS))
    change(machine, unmatched="skip")
    assert machine.take_settled() == [0, 6]


def test_a_consumer_that_takes_over_its_name_loses_no_messages():
    span = batch(0, KEYS)
    machine = machine_of(("a",), ("b", "c"), unmatched="skip")
    pump(machine, span)
    machine.join(3, "c1", 0.0, ("a",))
    assert machine.take_settled() == []
    machine.credit(3, 10, 1000)
    assert pump(machine, span) == {3: [0, 1, 2]}


# --- suspension ------------------------------------------------------------------------------------------------------


def keys_of_two():
    """Names of keys, and those among them that belong to the second of two consumers."""
    names = [f"key-{number}" for number in range(40)]
    machine = machine_of((), ())
    return names, {name for name in names if machine._ring.owner(ring_hash(name)).consumer_id == 2}


@pytest.mark.parametrize("sign", ["ack", "nack", "extend", "credit"])
def test_a_silent_consumer_lends_its_keys_until_it_says_something(sign):
    names, mine = keys_of_two()
    span = batch(0, names)
    machine = machine_of((), (), redelivery_delay_s=0.0)
    got = pump(machine, span)
    assert {names[offset] for offset in got[2]} == mine
    machine.extend(1, [0, 40], 30.0, 1.0)
    machine.tick(10.0)
    assert [consumer.suspended for consumer in machine.describe(40).consumers] == [False, True]
    assert pump(machine, span, now=10.0) == {1: got[2]}
    more = batch(40, names)
    assert set(pump(machine, more, now=10.0)) == {1}
    {
        "ack": lambda: machine.ack([0, 0], 2, 11.0),
        "nack": lambda: machine.nack(2, [0, 0], None, 11.0),
        "extend": lambda: machine.extend(2, [0, 0], 1.0, 11.0),
        "credit": lambda: machine.credit(2, 1, 1),
    }[sign]()
    assert not any(consumer.suspended for consumer in machine.describe(80).consumers)
    assert set(pump(machine, batch(80, names), now=11.0)) == {1}, "keys in flight stay where they are"
    machine.ack([0, 120], 1, 12.0)
    got = pump(machine, span, more, batch(80, names), now=12.0)
    assert {names[offset % 40] for offset in got[2]} == mine, "and move when they are settled"


def test_a_consumer_without_credit_does_not_hold_its_keys_for_ever():
    names, mine = keys_of_two()
    machine = machine_of((), ())
    machine.join(3, "c2", 0.0)
    batches = [batch(40 * number, names) for number in range(3)]
    assert set(pump(machine, *batches, now=1.0)) == {1}
    machine.ack([0, 120], 1, 1.0)
    assert machine.next_deadline() == 11.0
    machine.tick(11.0)
    assert machine.describe(120).consumers[1].suspended
    assert len(pump(machine, *batches, now=11.0)[1]) == 3 * len(mine)
    assert machine.ack([0, 1], 3, 12.0) is not None
    assert machine.describe(120).consumers[1].suspended, "only credit helps"
    machine.credit(3, 100, 1000)
    assert not machine.describe(120).consumers[1].suspended
    machine.ack([0, 120], 1, 13.0)
    got = pump(machine, *batches, batch(120, names), now=13.0)
    assert {names[offset % 40] for offset in got[3]} == mine


def test_a_starved_consumer_that_grants_too_little_gets_its_time_again():
    machine = machine_of(())
    machine.join(2, "c1", 0.0)
    span = batch(0, KEYS)
    machine.join(3, "other", 0.0, ("none",))
    machine.credit(3, 10, 1000)
    assert pump(machine, span) == {}
    machine.tick(10.0)
    assert machine.describe(6).consumers[0].suspended
    machine.credit(2, 0, 5)
    assert pump(machine, span, now=12.0) == {}
    machine.tick(12.0)
    assert not machine.describe(6).consumers[0].suspended
    assert machine.next_deadline() == 22.0


def test_the_window_opens_again_when_a_starved_consumer_is_suspended():
    names, _ = keys_of_two()
    machine = machine_of((), (), max_unacked_messages=20)
    machine.join(3, "c2", 0.0)
    batches = [batch(40 * number, names) for number in range(20)]
    now = 0.0
    while machine.cursor.floor < 800 and now < 60.0:
        machine.tick(now)
        for offset in pump(machine, *batches, now=now).get(1, []):
            machine.ack([offset, offset + 1], 1, now)
        now += 0.25
    assert machine.cursor.floor == 800
    assert 10.0 < now < 30.0


# --- delays, windows -------------------------------------------------------------------------------------------------


def test_a_delayed_message_enters_its_line_when_it_is_due():
    late, later, soon = batch(0, list("ab"), due=9.0), batch(2, list("a"), due=5.0), batch(3, list("ab"))
    batches = (late, later, soon)
    machine = machine_of((), max_unacked_messages=2)
    assert pump(machine, *batches, now=1.0) == {1: [3, 4]}, "others overtake it, and it is not in the window"
    assert machine.describe(5).delayed_messages == 3
    assert machine.ack([0, 3], 1, 1.0) == [], "nothing of it was delivered"
    assert machine.next_deadline() == 5.0
    assert machine.next_read(5.0) is None, "the window is full"
    assert machine.ack([4, 5], 1, 5.0) == [4, 5]
    (delivery,) = machine.offered(later, 5.0)
    assert (delivery.ranges, delivery.attempt) == ([2, 3], 1)
    machine.nack(1, [3, 4], None, 6.0)
    assert pump(machine, *batches, now=6.0) == {1: [3, 2]}, "the order of a line is that of arrival"
    assert machine.ack([2, 4], 1, 6.0) == [2, 4]
    explanation = machine.explain(6.0, 5)
    assert explanation.state == "waiting-for-delivery-time"
    assert "2 messages" in explanation.sentence
    assert pump(machine, *batches, now=9.0) == {1: [0, 1]}
    machine.ack([0, 2], 1, 9.0)
    assert machine.explain(9.0, 5).state == "caught-up"


def test_delayed_messages_enter_their_line_in_the_order_in_which_they_are_due():
    batches = batch(0, list("ab"), due=9.0), batch(2, list("a"), due=5.0)
    machine = machine_of(())
    assert pump(machine, *batches, now=1.0) == {}
    assert pump(machine, *batches, now=10.0) == {1: [2, 0, 1]}


def test_delayed_batches_are_bounded_and_the_limit_is_named():
    machine = machine_of((), limits={"max_delayed_ranges": 3})
    batches = [batch(number, ["a"], due=50.0 + number) for number in range(5)]
    assert pump(machine, *batches) == {}
    assert machine.position == 3
    assert "max_delayed_ranges" in machine.explain(0.0, 5).sentence
    assert pump(machine, *batches, now=50.0) == {1: [0]}
    assert machine.position == 4


def test_a_discarded_delayed_message_is_not_delivered():
    span = batch(0, list("abc"), due=5.0)
    machine = machine_of(())
    pump(machine, span)
    assert machine.discard([1, 2], 0.0) == [1, 2]
    assert pump(machine, span, now=5.0) == {1: [0, 2]}


def test_delayed_batches_do_not_pile_up_ranges_in_the_cursor():
    machine = machine_of((), limits={"max_ack_ranges": 3}, max_unacked_messages=1)
    batches = [batch(number, ["a"], due=50.0 if number % 2 == 0 else 0.0) for number in range(40)]
    while got := pump(machine, *batches):
        machine.ack([got[1][0], got[1][-1] + 1], 1, 0.0)
    assert machine.cursor.range_count == 3
    assert "max_ack_ranges" in machine.explain(0.0, 40).sentence
    for now in (50.0, 51.0):
        while got := pump(machine, *batches, now=now):
            machine.ack([min(got[1]), max(got[1]) + 1], 1, now)
    assert machine.cursor.floor == 40


def test_the_window_is_changed_live():
    machine = machine_of((), max_unacked_messages=2)
    span = batch(0, KEYS)
    assert pump(machine, span) == {1: [0, 1]}
    assert "window of 2" in machine.explain(0.0, 6).sentence
    change(machine, max_unacked_messages=4)
    assert pump(machine, span) == {1: [2, 3]}
    change(machine, max_unacked_messages=1)
    assert machine.ack([0, 3], 1, 0.0) == [0, 3]
    assert pump(machine, span) == {}
    machine.ack([3, 4], 1, 0.0)
    assert pump(machine, span) == {1: [4]}


def test_a_pause_that_is_over_stays_over():
    span = batch(0, ["a"])
    machine = machine_of((), redelivery_delay_s=2.0)
    pump(machine, span)
    machine.nack(1, [0, 1], None, 0.0)
    assert machine.next_read(2.0) is not None
    change(machine, now=2.0, redelivery_delay_s=30.0)
    assert pump(machine, span, now=2.0) == {1: [0]}
