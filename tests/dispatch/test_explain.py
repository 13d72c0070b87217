"""Why does my subscription not move? Every answer, with its names and numbers."""

from __future__ import annotations

import pytest

from danube.dispatch import Cursor, Span, make_subscription
from danube.dispatch.ring import ring_hash
from danube.model.limits import Limits
from danube.model.policies import SubscriptionType, change_policy

EXCLUSIVE, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER
SHARED, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


def machine_of(kind, *names, credit=1000, **limits):
    machine = make_subscription(kind, Cursor(), Limits(**limits))
    for consumer_id, name in enumerate(names, 1):
        machine.join(consumer_id, name, 0.0)
        machine.credit(consumer_id, credit, 10**9)
    return machine


def said(machine, now, end):
    explanation = machine.explain(now, end)
    return explanation.state, explanation.sentence


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_no_consumer(kind):
    expected = ("no-consumer", "no consumer is connected; 40 messages in the backlog")
    assert said(machine_of(kind), 0.0, 40) == expected


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_caught_up_and_moving(kind):
    machine = machine_of(kind, "c1")
    assert said(machine, 0.0, 0) == ("caught-up", "caught up: everything is acknowledged")
    assert said(machine, 0.0, 9) == ("moving", "moving: messages from offset 0 on are about to be delivered")


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_no_credit(kind):
    machine = machine_of(kind, "c1", credit=0)
    assert said(machine, 0.0, 1) == ("no-credit", "consumer 'c1' has no credit; 1 message to be delivered")


def test_no_credit_anywhere_and_standbys_do_not_count():
    machine = machine_of(SHARED, "c1", "c2", credit=0)
    assert said(machine, 0.0, 5) == ("no-credit", "none of the 2 consumers has credit; 5 messages to be delivered")
    machine = machine_of(FAILOVER, "c1", "c2", credit=0)
    machine.credit(2, 100, 100)
    assert said(machine, 0.0, 5) == ("no-credit", "consumer 'c1' has no credit; 5 messages to be delivered")


def test_waiting_for_acknowledgements():
    machine = machine_of(EXCLUSIVE, "c1")
    machine.offered(Span(0, 41, 100), 1.0)
    machine.ack([0, 12], 1, 2.0)
    assert said(machine, 4.2, 41) == (
        "waiting-for-acks",
        "everything is delivered; waiting for the acknowledgement of 12\N{EN DASH}40 by 'c1' for 3.2 s",
    )
    explanation = machine.explain(4.2, 41)
    assert (explanation.oldest_start, explanation.oldest_end, explanation.oldest_consumer) == (12, 41, "c1")
    assert explanation.oldest_age_s == pytest.approx(3.2)
    assert explanation.description.backlog_messages == 29


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_window_full(kind):
    machine = machine_of(kind, "c1", max_unacked_messages=1000, credit=5000)
    machine.offered(Span(0, 2000, 100), 0.0)
    assert said(machine, 1.0, 2000) == (
        "window-full",
        (
            "the window of 1,000 unacknowledged messages is full (max_unacked_messages);"
            " waiting for the acknowledgement of 0\N{EN DASH}999 by 'c1' for 1.0 s"
        ),
    )


def test_too_many_acknowledged_ranges():
    for kind in (SHARED, KEY_SHARED):
        machine = machine_of(kind, "c1", max_ack_ranges=2)
        machine.offered(Span(0, 10, 100, None, [b"%d" % number for number in range(10)]), 0.0)
        machine.ack([1, 2, 3, 4], 1, 0.0)
        state, sentence = said(machine, 1.0, 20)
        assert state == "window-full"
        assert sentence == (
            "2 acknowledged ranges wait for older messages (max_ack_ranges);"
            " waiting for the acknowledgement of 0 by 'c1' for 1.0 s"
        )


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_waiting_for_retry(kind):
    machine = machine_of(kind, "c1")
    machine.offered(Span(0, 17, 100), 0.0)
    machine.nack(1, [0, 17], 5.0, 0.0)
    assert said(machine, 3.5, 17) == (
        "waiting-for-retry",
        "17 messages wait for redelivery, the next in 1.5 s",
    )
    assert machine.explain(3.5, 17).next_retry_s == 1.5
    assert machine.next_deadline() == 5.0
    machine.tick(5.0)
    assert said(machine, 5.0, 17) == ("moving", "moving: messages from offset 0 on are about to be redelivered")


def test_a_key_that_waits_for_its_retry_or_for_credit():
    machine = machine_of(KEY_SHARED, "c1", credit=2)
    machine.offered(Span(0, 2, 100, None, [b"x", b"y"]), 0.0)
    machine.nack(1, [0, 1], 2.0, 0.0)
    assert said(machine, 0.5, 2) == (
        "waiting-for-retry",
        "1 message of key 'x' waits for redelivery in 1.5 s; waiting for the acknowledgement of 1 by 'c1' for 0.5 s",
    )
    machine = machine_of(KEY_SHARED, "c1", credit=1)
    machine.join(2, "c2", 0.0)
    mine = [key for key in "abcdefghijklmnop" if machine._ring.owner(ring_hash(key.encode())).name == "c1"]
    machine.offered(Span(0, 3, 90, None, [mine[0].encode(), mine[1].encode(), mine[1].encode()]), 0.0)
    machine.credit(2, 100, 100)
    state, sentence = said(machine, 1.0, 3)
    assert state == "no-credit"
    assert sentence.startswith(f"2 messages of key {mine[1]!r} wait for credit of consumer 'c1'; waiting for the")


def test_a_key_that_is_no_text_is_shown_as_bytes():
    machine = machine_of(KEY_SHARED, "c1", credit=1)
    machine.offered(Span(0, 1, 100, None, [b"\xff\x01"]), 0.0)
    machine.nack(1, [0, 1], 2.0, 0.0)
    assert said(machine, 0.5, 1)[1].startswith(r"1 message of key b'\xff\x01' waits for redelivery in 1.5 s")


def test_lossy():
    machine = make_subscription(SHARED, Cursor(), Limits(), lossy=True)
    machine.offered(Span(0, 10, 100), 0.0)
    assert said(machine, 0.0, 10) == ("no-consumer", "no consumer is connected; messages are dropped, 10 so far")
    machine.join(1, "c1", 0.0)
    machine.offered(Span(10, 12, 100), 0.0)
    assert said(machine, 0.0, 12) == ("no-credit", "consumer 'c1' has no credit; messages are dropped, 12 so far")
    machine.credit(1, 10, 1000)
    assert said(machine, 0.0, 12) == ("caught-up", "caught up: everything is delivered or dropped")


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED])
def test_blocked_names_the_poison_and_what_to_do(kind):
    machine = machine_of(kind, "c1")
    machine.change_policy(change_policy(machine.policy, {"max_redelivery_count": 0}), 0.0)
    machine.offered(Span(0, 17, 100), 0.0)
    machine.nack(1, [4, 5], None, 0.0, "no such customer")
    assert said(machine, 1.0, 40) == (
        "blocked",
        (
            "message 4 has failed once (no such customer) and the poison policy is block; acknowledge or discard it,"
            " change the policy, or seek"
        ),
    )
    machine.nack(1, [2, 4], None, 2.0)
    assert said(machine, 3.0, 40)[1].startswith("2 messages from 2 on have failed once (nack) and the poison policy is")


def test_dead_lettering():
    machine = machine_of(SHARED, "c1")
    machine.change_policy(change_policy(machine.policy, {"max_redelivery_count": 0, "poison": "dead_letter"}), 0.0)
    machine.offered(Span(0, 17, 100), 0.0)
    machine.nack(1, [4, 5], None, 0.0)
    assert said(machine, 1.0, 20)[0] == "moving", "it delays no other message"
    machine.ack([0, 3], 1, 1.0)
    assert said(machine, 1.5, 17) == (
        "dead-lettering",
        (
            "1 message waits to be copied to the dead-letter topic;"
            " waiting for the acknowledgement of 3 by 'c1' for 1.5 s"
        ),
    )
    machine.nack(1, [3, 4], None, 2.0)
    machine.ack([5, 17], 1, 2.0)
    assert said(machine, 2.0, 17) == ("dead-lettering", "2 messages wait to be copied to the dead-letter topic")


def test_waiting_for_the_delivery_time():
    machine = machine_of(SHARED, "c1")
    machine.offered(Span(0, 1, 100, due=10.0), 0.0)
    assert said(machine, 4.0, 1) == (
        "waiting-for-delivery-time",
        "1 message waits for its delivery time, the next in 6.0 s",
    )
    machine.offered(Span(1, 5, 100), 4.0)
    assert said(machine, 4.0, 5)[0] == "waiting-for-acks"
    machine.nack(1, [1, 2], 3.0, 4.0)
    machine.ack([2, 5], 1, 4.0)
    assert said(machine, 5.0, 5) == ("waiting-for-retry", "1 message waits for redelivery, the next in 2.0 s")
