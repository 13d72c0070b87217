"""Exclusive, failover and shared against the model, through joins, leaves, credit, acks, nacks, seeks and time."""

from __future__ import annotations

from dispatch_models import LIMITS, Model
from hypothesis import settings
from hypothesis.stateful import invariant

from danube.model.policies import SubscriptionType

SETTINGS = settings(max_examples=100, stateful_step_count=40, deadline=None)


class OneReceiver(Model):
    """Exclusive and failover: in order, whole batches."""

    def receivers(self):
        active = next(iter(self.consumers), None)
        return [active] if active in self.with_credit() else []

    def check_credit(self, delivery, messages, size):
        """A batch is delivered whole while there is any credit."""

    def check_full(self):
        assert self.flying or self.waiting
        assert self.machine.cursor.range_count >= LIMITS.max_ack_ranges

    def check_order(self, offset, consumer_id):
        assert consumer_id == next(iter(self.consumers))
        due = [other for other, due in self.waiting.items() if due <= self.now]
        if offset in self.delivered:
            assert offset == min(due)
        else:
            assert not due
            assert offset == min(set(range(self.end)) - self.acked - self.delivered)

    @invariant()
    def agrees(self):
        if hasattr(self, "machine"):
            self.check()
            assert self.machine.active == next(iter(self.consumers), None)


class Exclusive(OneReceiver):
    kind = SubscriptionType.EXCLUSIVE

    def may_join(self, name):
        return not self.consumers or name in self.consumers.values()


class Failover(OneReceiver):
    kind = SubscriptionType.FAILOVER


class Shared(Model):
    kind = SubscriptionType.SHARED

    @invariant()
    def agrees(self):
        if hasattr(self, "machine"):
            self.check()
            assert len(self.flying) + len(self.waiting) <= LIMITS.max_unacked_messages


for _case in (Exclusive, Failover, Shared):
    _case.TestCase.settings = SETTINGS

TestExclusive = Exclusive.TestCase
TestFailover = Failover.TestCase
TestShared = Shared.TestCase
