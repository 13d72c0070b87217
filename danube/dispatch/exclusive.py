"""Exclusive and failover: one consumer at a time gets everything, in order, as whole batches.

They differ in who may join. Exclusive refuses a second consumer. Failover lets consumers stand by in the order in which
they joined; when the active one leaves, the next is active at once and begins with what its predecessor did not
acknowledge.

A batch is delivered whole while the active consumer has any credit, so its balance may go below zero, once.
"""

from __future__ import annotations

from danube.dispatch.cursor import Cursor
from danube.dispatch.inflight import Member
from danube.dispatch.ranged import RangedMachine
from danube.dispatch.spans import Delivery, Span
from danube.model.errors import SubscriptionBusyError
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

__all__ = ["ExclusiveMachine"]


class ExclusiveMachine(RangedMachine):
    """Machine of exclusive and failover subscriptions."""

    def __init__(self, kind: SubscriptionType, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        super().__init__(kind, cursor, limits, policy, window=None)
        self._active: Member | None = None

    @property
    def active(self) -> int | None:
        """Return the consumer that gets the messages, if there is one."""
        return self._active.consumer_id if self._active is not None else None

    def _admit(self, name: str, displaced: Member | None) -> None:
        refuse_second(self.type, self._active, name)

    def _joined(self, member: Member, now: float) -> None:
        self._active = next(iter(self._members.values()))

    def _left(self, member: Member, now: float) -> None:
        super()._left(member, now)
        self._active = next(iter(self._members.values()), None)

    def _any_credit(self) -> bool:
        active = self._active
        return active is not None and active.credit_messages > 0 and active.credit_bytes > 0

    def offered(self, span: Span, now: float) -> list[Delivery]:
        """Take a batch; see :meth:`Machine.offered`."""
        member = self._active
        if member is None or not self._any_credit():
            return []
        base, end = span.base_offset, span.end_offset
        out: list[Delivery] = []
        waiting = self._waiting
        if waiting.ready or waiting.delayed:
            waiting.promote(now)
            while (first := waiting.peek()) is not None:
                if not base <= first.start < end or not self._any_credit():
                    return out  # older messages go first
                ranges: list[int] = []
                attempt = first.attempt
                while True:
                    taken = waiting.take(end)
                    for low, high in self.cursor.live(taken.start, taken.end):
                        ranges += (low, high)
                    following = waiting.peek()
                    if following is None or following.start >= end or following.attempt != attempt:
                        break
                out.append(self._deliver(member, span, ranges, attempt, now))
        if base <= self.position < end and self._any_credit() and not self._full():
            ranges = [number for pair in self.cursor.live(self.position, end) for number in pair]
            self.position = self.cursor.next_live(end)
            if ranges:
                delivery = self._deliver(member, span, ranges, 1, now)
                self._unacked += delivery.messages
                out.append(delivery)
        return out

    def _deliver(self, member: Member, span: Span, ranges: list[int], attempt: int, now: float) -> Delivery:
        messages = 0
        add = self._flights.add
        for index in range(0, len(ranges), 2):
            start, end = ranges[index], ranges[index + 1]
            add(start, end, member, attempt, now)
            messages += end - start
        member.charge(messages, span.size_bytes)
        if attempt > 1:
            self._redelivered += messages
        base, end = span.base_offset, span.end_offset
        whole = messages == end - base
        return Delivery(member.consumer_id, span.token, base, ranges, attempt, whole, messages, span.size_bytes)


def refuse_second(kind: SubscriptionType, active: Member | None, name: str) -> None:
    """Raise SubscriptionBusyError if an exclusive subscription has an active consumer of another name."""
    if kind is SubscriptionType.EXCLUSIVE and active is not None and active.name != name:
        raise SubscriptionBusyError(
            f"the exclusive subscription has a consumer already, {active.name!r}; close that one, join under its name"
            " to take over, or use another subscription or type"
        )
