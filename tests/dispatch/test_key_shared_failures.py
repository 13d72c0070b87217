"""Key-shared subscriptions, directed: failures, poison, late acknowledgements, leases."""

from __future__ import annotations

import pytest
from key_helpers import KEYS, batch, change, fail, machine_of, pump

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
def test_events_that_end_a_block(how):
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


def test_messages_acknowledged_behind_dropped_poison_are_settled():
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


def test_messages_set_aside_return_when_the_policy_changes():
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


def test_a_pause_that_is_over_stays_over():
    span = batch(0, ["a"])
    machine = machine_of((), redelivery_delay_s=2.0)
    pump(machine, span)
    machine.nack(1, [0, 1], None, 0.0)
    assert machine.next_read(2.0) is not None
    change(machine, now=2.0, redelivery_delay_s=30.0)
    assert pump(machine, span, now=2.0) == {1: [0]}


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


def test_messages_acknowledged_early_do_not_time_out():
    first, second = batch(0, ["a"]), batch(1, ["a"])
    machine = machine_of(())
    pump(machine, first, second)
    machine.extend(1, [0, 1], 60.0, 0.0)
    assert machine.ack([1, 2], 1, 1.0) == []
    machine.tick(10.0)
    assert machine.next_deadline() == 60.0
    assert machine.ack([0, 1], 1, 20.0) == [0, 2]
