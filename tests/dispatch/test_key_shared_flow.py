"""Key-shared subscriptions, directed: key filters, suspension, delayed messages, the window."""

from __future__ import annotations

import pytest
from key_helpers import KEYS, batch, change, machine_of, pump

from danube.dispatch.ring import ring_hash

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
    return names, {name for name in names if machine._ring.owner(ring_hash(name.encode())).consumer_id == 2}


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
    machine = machine_of((), limits={"max_ack_ranges": 3, "max_delayed_ranges": 8}, max_unacked_messages=1)
    batches = [batch(number, ["a"], due=50.0 if number % 2 == 0 else 0.0) for number in range(40)]
    while got := pump(machine, *batches):
        machine.ack([got[1][0], got[1][-1] + 1], 1, 0.0)
    assert machine.cursor.range_count == 7, "the holes that they make have a bound of their own"
    assert "max_delayed_ranges" in machine.explain(0.0, 40).sentence
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
