"""Shared subscriptions: all consumers get messages in turn, as far as their credit goes. No order.

A batch is cut into as many contiguous slices as there are consumers with credit, so all get an equal share and
the cost is one slice, not one message. A slice never exceeds the message credit of its consumer; byte credit may be
overdrawn by one message. A message that was refused or timed out goes to another consumer, if one has credit.
"""

from __future__ import annotations

from danube.dispatch.cursor import Cursor
from danube.dispatch.failures import FIRST, DeliveryHistory
from danube.dispatch.inflight import Member
from danube.dispatch.ranged import RangedMachine
from danube.dispatch.spans import Delivery, Span
from danube.dispatch.turns import Turns, cut, share_of
from danube.dispatch.waiting import Redelivery
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

__all__ = ["SharedMachine"]


class SharedMachine(RangedMachine):
    """Machine of shared subscriptions."""

    def __init__(self, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        super().__init__(SubscriptionType.SHARED, cursor, limits, policy)
        self._turns = Turns()

    def _window_of(self, policy: SubscriptionPolicy) -> int:
        return policy.max_unacked_messages or self._limits.max_unacked_messages

    def _credited(self, member: Member) -> None:
        self._turns.add(member)

    def _uncredited(self, member: Member) -> None:
        self._turns.remove(member)

    def _left(self, member: Member, now: float) -> None:
        self._turns.remove(member)
        super()._left(member, now)

    def _room(self) -> int:
        assert self._window is not None
        return self._window - self._unacked

    def _any_credit(self) -> bool:
        return len(self._turns) > 0

    def offered(self, span: Span, now: float) -> list[Delivery]:
        """Take a batch; see :meth:`Machine.offered`."""
        out: list[Delivery] = []
        if not self._turns or (self._aside.items and self._blocking() is not None):
            return out
        base, end = span.base_offset, span.end_offset
        if self._delayed.some:
            self._let_due(now)
        waiting = self._waiting
        if waiting.ready or waiting.paused:
            waiting.promote(now)
            while self._turns and (item := waiting.peek()) is not None and base <= item.start < end:
                self._redeliver(span, waiting.take(end), now, out)
        if base <= self.position < end and self._turns and not self._full():
            if span.due > now:
                self._delay(span)
                return out
            end = self._recalled.before(end)
            room = self._room()
            pairs = self.cursor.live(self.position, end)
            done = self._deal(span, pairs, room, FIRST, now, out)
            self._unacked += done
            self.position = self.cursor.next_live(pairs[-1][0] if pairs else end)
        return out

    def _redeliver(self, span: Span, item: Redelivery, now: float, out: list[Delivery]) -> None:
        """Deliver one waiting range; the part without a consumer with credit goes back to the waiting set."""
        pairs = self.cursor.live(item.start, item.end)
        avoided = self._members.get(item.avoid) if item.avoid is not None else None
        if avoided is not None and avoided.queued and len(self._turns) > 1:
            self._turns.remove(avoided)
        else:
            avoided = None
        done = self._deal(span, pairs, None, item.history, now, out)
        if item.history.attempt > 1:
            self._redelivered += done
        else:
            self._delayed.deliver(item.start, pairs[-1][0] if pairs else item.end)
        if avoided is not None:
            self._turns.add(avoided)
        for start, end in pairs:
            self._waiting.put_back(item._replace(start=start, end=end))

    def _deal(
        self,
        span: Span,
        pairs: list[tuple[int, int]],
        room: int | None,
        history: DeliveryHistory,
        now: float,
        out: list[Delivery],
    ) -> int:
        """Deal out ``pairs``, at most ``room`` messages; leave the rest in ``pairs``, reversed; return the number."""
        pairs.reverse()
        available = sum(end - start for start, end in pairs)
        total = 0
        attempt = history.attempt
        base, size = span.base_offset, span.end_offset - span.base_offset
        add = self._flights.add
        for member, count in self._turns.deal(available if room is None else min(available, room), span):
            ranges = cut(pairs, count)
            for index in range(0, len(ranges), 2):
                add(ranges[index], ranges[index + 1], member, history, now)
            share = share_of(span, count)
            member.charge(count, share)
            total += count
            out.append(Delivery(member.consumer_id, span.token, base, ranges, attempt, count == size, count, share))
        return total
