"""Readers: whole batches in order from a given offset on."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from danube.dispatch import Delivery, ReaderMachine, Span
from danube.model.errors import SubscriptionBusyError
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy


def span(base, size, due=0.0):
    return Span(base, base + size, 10 * size, "t", None, due)


def reader(start=0, credit=100):
    machine = ReaderMachine(Limits(), start)
    machine.join(1, "r", 0.0)
    machine.credit(1, credit, 10**9)
    return machine


def test_it_begins_inside_a_batch_and_goes_on():
    machine = reader(start=3)
    assert machine.next_read(0.0) == (3, False)
    assert machine.offered(span(0, 10), 0.0) == [Delivery(1, "t", 0, [3, 10], 1, False, 7, 100)]
    assert machine.offered(span(0, 10), 0.0) == [], "once"
    assert machine.offered(span(20, 10), 0.0) == [], "in order"
    assert machine.offered(span(10, 5), 0.0) == [Delivery(1, "t", 10, [10, 15], 1, True, 5, 50)]
    assert machine.describe(20).backlog_messages == 5
    assert machine.position == machine.cursor.floor == 15


def test_nothing_is_acknowledged_repeated_or_timed():
    machine = reader()
    machine.offered(span(0, 10), 0.0)
    assert machine.ack([0, 10], 1, 0.0) == machine.ack_cumulative(5, 1, 0.0) == []
    machine.nack(1, [0, 10], 0.0, 0.0)
    machine.extend(1, [0, 10], 5.0, 0.0)
    machine.change_policy(SubscriptionPolicy(), 1.0)
    machine.tick(1e9)
    assert machine.next_deadline() is None
    assert machine.next_read(1e9) == (10, False)
    assert machine.take_settled() == machine.poisoned(5) == []
    assert machine.describe(10).in_flight_messages == 0


def test_a_delayed_batch_is_read_with_the_others():
    assert reader().offered(span(0, 10, due=99.0), 0.0)[0].ranges == [0, 10]


def test_one_consumer_and_a_successor():
    machine = reader()
    with pytest.raises(SubscriptionBusyError):
        machine.join(2, "other", 0.0)
    assert machine.join(3, "r", 0.0) == 1
    assert machine.active == 3
    assert machine.next_read(0.0) is None, "no credit yet"
    machine.leave(3, 0.0)
    assert machine.active is None
    assert machine.explain(0.0, 10).state == "no-consumer"


def test_lost_messages_are_skipped_and_a_seek_goes_anywhere():
    machine = reader()
    assert machine.discard([0, 15], 0.0) == []
    assert machine.next_read(0.0) == (15, False)
    machine.discard([20, 30], 0.0)
    assert machine.position == 15, "a hole further on is no matter yet"
    machine.seek(4, 0.0)
    assert machine.offered(span(0, 10), 0.0)[0].ranges == [4, 10]


def test_explanations():
    machine = reader(credit=5)
    assert machine.explain(0.0, 10).state == "moving"
    machine.offered(span(0, 10), 0.0)
    assert machine.explain(0.0, 10).state == "caught-up"
    assert machine.explain(0.0, 20).state == "no-credit"


class Reading(RuleBasedStateMachine):
    """The model is one number: the next offset."""

    @initialize(start=st.integers(0, 10))
    def begin(self, start):
        self.machine = ReaderMachine(Limits(), start)
        self.batches, self.end = [], 0
        self.next = start
        self.credit = None  # [messages, bytes] while a consumer is there
        self.ids = 0

    @rule(size=st.integers(1, 6), ahead=st.sampled_from([0.0, 50.0]))
    def publish(self, size, ahead):
        self.batches.append(span(self.end, size, ahead))
        self.end += size

    @rule()
    def join(self):
        self.ids += 1
        self.machine.join(self.ids, "r", 0.0)
        self.credit = [0, 0]

    @rule()
    def leave(self):
        self.machine.leave(self.ids, 0.0)
        self.credit = None

    @rule(messages=st.sampled_from([0, 1, 5]), size=st.sampled_from([0, 10, 100]))
    def grant(self, messages, size):
        self.machine.credit(self.ids, messages, size)
        if self.credit is not None:
            self.credit = [self.credit[0] + messages, self.credit[1] + size]

    @rule(offset=st.integers(0, 40))
    def seek(self, offset):
        self.machine.seek(offset, 0.0)
        self.next = offset

    @rule(start=st.integers(0, 40), size=st.integers(1, 9))
    def lose(self, start, size):
        assert self.machine.discard([start, start + size], 0.0) == []
        if start <= self.next < start + size:
            self.next = start + size

    @rule(index=st.integers(0, 50))
    def offer(self, index):
        if self.batches:
            self.take(self.batches[index % len(self.batches)])

    @rule()
    def pump(self):
        while (request := self.machine.next_read(0.0)) is not None and request.offset < self.end:
            batch = next(batch for batch in self.batches if request.offset < batch.end_offset)
            assert self.take(batch), "an answered request moves something"
        if self.credit is not None and min(self.credit) > 0:
            assert self.next >= self.end

    def take(self, batch):
        deliveries = self.machine.offered(batch, 0.0)
        for delivery in deliveries:
            assert min(self.credit) > 0
            assert batch.base_offset <= self.next < batch.end_offset
            assert delivery.ranges == [self.next, batch.end_offset]
            assert delivery.whole == (self.next == batch.base_offset)
            self.credit = [self.credit[0] - delivery.messages, self.credit[1] - delivery.size_bytes]
            self.next = batch.end_offset
        return deliveries

    @invariant()
    def agrees(self):
        if hasattr(self, "machine"):
            assert self.machine.position == self.machine.cursor.floor == self.next
            facts = self.machine.describe(self.end)
            assert facts.backlog_messages == max(0, self.end - self.next)
            states = [[c.credit_messages, c.credit_bytes] for c in facts.consumers]
            assert states == ([] if self.credit is None else [self.credit])
            assert (self.machine.next_read(0.0) is None) == (self.credit is None or min(self.credit) <= 0)


Reading.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestReading = Reading.TestCase
