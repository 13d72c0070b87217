"""Exclusive and failover subscriptions: one consumer at a time gets all messages, in order, as whole batches.

They differ in the consumers they admit. Exclusive refuses a second consumer. Failover lets consumers stand by in the
order in which they joined; when the active one leaves, the next one becomes active at once and starts with the messages
that its predecessor did not acknowledge.

A failover consumer that lets a message time out is *suspended* until it sends any sign of life. If another consumer is
not suspended, it becomes active and gets the messages of the first one, so no message is stuck at a consumer that is
connected and hanging. The first one stands by when it resumes.

A batch is delivered whole while the active consumer has any credit, so its balance may go below zero, once; the same
holds for the window of unacknowledged messages, if the policy sets one.
"""

from __future__ import annotations

from collections.abc import Iterable

from danube.dispatch.cursor import Cursor
from danube.dispatch.failures import FIRST
from danube.dispatch.inflight import Member
from danube.dispatch.ranged import RangedMachine
from danube.dispatch.spans import Delivery, Span
from danube.dispatch.waiting import Redelivery
from danube.model.errors import SubscriptionBusyError
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionTraits, SubscriptionType

__all__ = ["ExclusiveMachine"]


class ExclusiveMachine(RangedMachine):
    """Machine of exclusive and failover subscriptions."""

    def __init__(self, kind: SubscriptionType, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        super().__init__(kind, cursor, limits, policy)
        self._active: Member | None = None

    @property
    def active(self) -> int | None:
        """The consumer that gets the messages, None if there is none."""
        return self._active.consumer_id if self._active is not None else None

    def _admit(self, name: str, displaced: Member | None) -> None:
        refuse_second(self.traits, self._active, name)

    def _joined(self, member: Member, now: float) -> None:
        self._choose(now)

    def _left(self, member: Member, now: float) -> None:
        super()._left(member, now)
        self._choose(now)

    def _replaced(self, old: Member, fresh: Member, now: float) -> None:
        if self._active is old:
            self._active = fresh
        super()._replaced(old, fresh, now)

    def _timed_out(self, members: Iterable[Member], now: float) -> None:
        if self.traits.has_standbys:
            for member in members:
                self._suspend(member)
            self._choose(now)

    def _resumed(self, member: Member) -> None:
        self._choose(0.0)  # messages that change hands are delivered at once, at any time

    def _choose(self, now: float) -> None:
        """Activate the next consumer if the active one is gone, or suspended while another one is not."""
        active = self._active
        members = self._members
        if active is not None and active.consumer_id in members and not active.suspended:
            return
        chosen = next((member for member in members.values() if not member.suspended), None)
        if chosen is None:
            if active is not None and active.consumer_id in members:
                return
            chosen = next(iter(members.values()), None)
        self._active = chosen
        if active is not None and active is not chosen:
            self._lost(self._flights.release_all(active), now)

    def _any_credit(self) -> bool:
        active = self._active
        return active is not None and active.credit_messages > 0 and active.credit_bytes > 0

    def offered(self, span: Span, now: float) -> list[Delivery]:
        """Take a batch; see :meth:`Machine.offered`."""
        member = self._active
        if member is None or not self._any_credit() or (self._aside.items and self._blocking() is not None):
            return []
        base, end = span.base_offset, span.end_offset
        out: list[Delivery] = []
        if self._delayed.some:
            self._let_due(now)
        waiting = self._waiting
        if waiting.ready or waiting.paused:
            waiting.promote(now)
            while (first := waiting.peek()) is not None:
                if not base <= first.start < end or not self._any_credit():
                    return out  # older messages go first
                out.append(self._redeliver(member, span, first.history.attempt, now))
        if base <= self.position < end and (not out or self._any_credit()) and not self._full():
            if span.due > now:
                self._delay(span)
                return out
            end = self._recalled.before(end)
            ranges: list[int] = []
            messages = 0
            for low, high in self.cursor.live(self.position, end):
                ranges += (low, high)
                self._flights.add(low, high, member, FIRST, now)
                messages += high - low
            self.position = self.cursor.next_live(end)
            if messages:
                self._unacked += messages
                out.append(_charge(member, span, ranges, 1, messages))
        return out

    def _redeliver(self, member: Member, span: Span, attempt: int, now: float) -> Delivery:
        """Deliver the lowest waiting messages of a batch that may go out as the same attempt."""
        waiting, add = self._waiting, self._flights.add
        end = span.end_offset
        ranges: list[int] = []
        messages = 0
        following: Redelivery | None
        while True:
            taken = waiting.take(end)
            for low, high in self.cursor.live(taken.start, taken.end):
                ranges += (low, high)
                add(low, high, member, taken.history, now)
                messages += high - low
                if attempt == 1:
                    self._delayed.deliver(low, high)
            following = waiting.peek()
            if following is None or following.start >= end or following.history.attempt != attempt:
                break
        if attempt > 1:
            self._redelivered += messages
        return _charge(member, span, ranges, attempt, messages)


def _charge(member: Member, span: Span, ranges: list[int], attempt: int, messages: int) -> Delivery:
    """Charge a consumer for a delivery, and build it."""
    base, size = span.base_offset, span.size_bytes
    member.charge(messages, size)
    whole = messages == span.end_offset - base
    return Delivery(member.consumer_id, span.token, base, ranges, attempt, whole, messages, size)


def refuse_second(traits: SubscriptionTraits, active: Member | None, name: str) -> None:
    """Raise SubscriptionBusyError if a subscription of a single consumer has one of another name."""
    if traits.single_consumer and active is not None and active.name != name:
        raise SubscriptionBusyError(
            f"the exclusive subscription has a consumer already, {active.name!r}; close that one, join under its name"
            " to take over, or use another subscription or type"
        )
