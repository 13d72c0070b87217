"""When failed, lost and delayed messages may go out: the clockwork alone, against a model made of plain dictionaries.

One message each is what the model knows; ranges of several must behave as their messages do.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from danube.dispatch.cursor import Cursor
from danube.dispatch.delayed import Delayed
from danube.dispatch.failures import FIRST, DeliveryHistory, retry_at
from danube.dispatch.waiting import Aside, Redelivery, Waiting
from danube.model.policies import SubscriptionPolicy, change_policy

CHANGES = [
    {"max_redelivery_count": -1},
    {"max_redelivery_count": 1},
    {"max_redelivery_count": 4},
    {"redelivery_delay_s": 0.0},
    {"redelivery_delay_s": 3.0},
    {"backoff": "fixed"},
    {"max_redelivery_delay_s": 5.0},
]


class Clock(RuleBasedStateMachine):
    """Pauses, delivery times and poison."""

    @initialize()
    def begin(self):
        self.now = 0.0
        self.policy = SubscriptionPolicy(max_redelivery_count=2)
        self.cursor = Cursor()
        self.waiting, self.aside, self.delayed = Waiting(self.cursor), Aside(self.cursor), Delayed()
        self.end = 0
        self.due = {}  # offset -> when it may go out
        self.back = {}  # offset -> (failures, asked-for delay, since), of what waits or is poison
        self.poison = set()
        self.not_due = {}  # offset -> delivery time

    def next_range(self, size):
        start, self.end = self.end, self.end + size
        return start, self.end

    @rule(size=st.integers(1, 4), failures=st.integers(0, 4), delay=st.sampled_from([None, 0.0, 2.0, 30.0]))
    def come_back(self, size, failures, delay):
        start, end = self.next_range(size)
        delay = delay if failures else 0.0
        self.put(Redelivery(start, end, DeliveryHistory(failures + 2, failures, "no"), None, self.now, delay))
        for offset in range(start, end):
            self.back[offset] = (failures, delay, self.now)
            self.place(offset)

    def put(self, item):
        due = retry_at(self.policy, item.history.failures, item.delay_s, item.since)
        if due is None:
            self.aside.add(item)
        else:
            self.waiting.add(item, due, self.now)

    def place(self, offset):
        failures, delay, since = self.back[offset]
        most = self.policy.max_redelivery_count
        if failures > most >= 0:
            self.poison.add(offset)
        elif delay is not None:
            self.due[offset] = since + delay
        else:
            growth = 2 ** (failures - 1) if self.policy.backoff == "exponential" else 1
            self.due[offset] = since + min(self.policy.redelivery_delay_s * growth, self.policy.max_redelivery_delay_s)

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), ahead=st.sampled_from([1.0, 5.0, 5.0, 20.0]))
    def delay(self, sizes, ahead):
        pairs = []
        for size in sizes:
            pairs.append(self.next_range(size))
            self.next_range(1)  # something that was acknowledged before
        self.delayed.add(pairs, self.now + ahead)
        self.not_due |= {offset: self.now + ahead for start, end in pairs for offset in range(start, end)}

    @rule(seconds=st.sampled_from([0.5, 2.0, 7.0, 40.0]))
    def wait(self, seconds):
        self.now += seconds
        for start, end in self.delayed.take_due(self.now):
            self.waiting.add(Redelivery(start, end, FIRST, None, self.now, 0.0), self.now, self.now)
            for offset in range(start, end):
                assert self.not_due.pop(offset) <= self.now
                self.due[offset] = self.now
        assert all(due > self.now for due in self.not_due.values())

    @rule(start=st.integers(0, 60), size=st.integers(1, 6))
    def settle(self, start, size):
        """Acknowledged, discarded or expired: all the same here."""
        start, end = min(start, self.end), min(start + size, self.end)
        gone = self.delayed.discard(start, end)
        assert gone == sum(start <= offset < end for offset in self.not_due)
        self.cursor.ack(start, end, force=True)
        for offset in range(start, end):
            self.due.pop(offset, None)
            self.not_due.pop(offset, None)
            self.poison.discard(offset)

    @precondition(lambda self: any(due <= self.now for due in self.due.values()))
    @rule(size=st.integers(1, 5))
    def deliver(self, size):
        self.waiting.promote(self.now)
        first = self.waiting.peek()
        taken = self.waiting.take(first.start + size)
        ready = sorted(offset for offset, due in self.due.items() if due <= self.now)
        assert first.start == taken.start == ready[0]
        self.delayed.deliver(taken.start, taken.end)
        for start, end in self.cursor.live(taken.start, taken.end):
            for offset in range(start, end):
                assert self.due.pop(offset) <= self.now, "not before its time"
        self.cursor.ack(taken.start, taken.end, force=True)

    @rule(change=st.sampled_from(CHANGES))
    def change(self, change):
        """New pauses for what is paused, a new judgement of the poison; what is ready stays so."""
        self.policy = change_policy(self.policy, change)
        self.waiting.promote(self.now)
        for item in [*self.waiting.take_paused(), *self.aside.take()]:
            self.put(item)
        again = {offset for offset, due in self.due.items() if due > self.now} | self.poison
        for offset in again:
            self.due.pop(offset, None)
            self.poison.discard(offset)
            self.place(offset)

    @invariant()
    def agrees(self):
        if not hasattr(self, "waiting"):
            return
        assert self.waiting.messages() == len(self.due)
        assert self.aside.messages() == len(self.poison)
        assert self.delayed.messages() == len(self.not_due)
        self.waiting.promote(self.now)
        assert self.waiting.next_due() == min((due for due in self.due.values() if due > self.now), default=None)
        assert self.delayed.next_due() == min(self.not_due.values(), default=None)
        first = self.waiting.peek()
        assert (first and first.start) == min((o for o, due in self.due.items() if due <= self.now), default=None)
        worst = self.aside.first()
        assert (worst is None) == (not self.poison)
        poisoned = self.aside.poisoned(1000)
        assert sorted(self.poison) == [o for item in poisoned for o in range(item.start, item.end)]
        assert self.delayed.some == bool(self.delayed._undelivered)


Clock.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestClock = Clock.TestCase


@given(
    failures=st.integers(0, 200), delay=st.none() | st.floats(0, 100), most=st.integers(-1, 10), at=st.floats(0, 1e6)
)
def test_when_it_is_tried_again(failures, delay, most, at):
    policy = SubscriptionPolicy(max_redelivery_count=most)
    due = retry_at(policy, failures, delay, at)
    if 0 <= most < failures:
        assert due is None
    else:
        assert due is not None
        assert at <= due <= at + (60.0 if delay is None else delay)


@pytest.mark.parametrize(
    ("backoff", "pauses"), [("exponential", [1, 2, 4, 8, 16, 32, 60, 60]), ("fixed", [1, 1, 1, 1, 1, 1, 1, 1])]
)
def test_pauses_grow_up_to_the_longest(backoff, pauses):
    policy = change_policy(SubscriptionPolicy(max_redelivery_count=-1), {"backoff": backoff})
    assert [retry_at(policy, failures, None, 100.0) - 100.0 for failures in range(1, 9)] == pauses
    assert retry_at(policy, 0, None, 100.0) == 100.0, "the loss of a consumer is no failure"


def test_histories():
    history = FIRST.failed("bad").lost().failed("worse")
    assert (history.attempt, history.failures, history.reason) == (4, 2, "worse")
    assert history.lost().reason == "worse"
