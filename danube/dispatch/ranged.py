"""What exclusive, failover and shared machines have in common: everything but the choice of the receiver.

Messages are tracked by range. New ones are delivered in order up to ``position``; what comes back (a nack, a timeout, a
consumer that left) waits, lowest offset first, and goes before new messages. A message that is acknowledged while it
waits is not delivered again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from danube.dispatch.cursor import Cursor
from danube.dispatch.explain import Facts, explain
from danube.dispatch.inflight import InFlight, Member, Waiting
from danube.dispatch.machine import Machine
from danube.dispatch.spans import Explanation, ReadRequest
from danube.dispatch.turns import merge
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

__all__ = ["RangedMachine"]


class RangedMachine(Machine):
    """A machine that tracks ranges."""

    def __init__(
        self, kind: SubscriptionType, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy, *, window: int | None
    ) -> None:
        """Build a machine; ``window`` is the most messages that are delivered and not acknowledged (None: no limit)."""
        super().__init__(kind, cursor, limits, policy)
        self._window = window
        self._unacked = 0
        """Offsets below ``position`` that are not acknowledged: in flight or waiting."""
        self._flights = InFlight(cursor, policy.ack_timeout_s)
        self._waiting = Waiting(cursor)

    @abstractmethod
    def _any_credit(self) -> bool:
        """Tell whether some consumer may get messages now."""

    def next_read(self, now: float) -> ReadRequest | None:
        """Return what to read; see :meth:`Machine.next_read`."""
        if not self._any_credit():
            return None
        waiting = self._waiting
        if waiting.ready or waiting.delayed:
            waiting.promote(now)
            item = waiting.peek()
            if item is not None:
                return ReadRequest(item.start, redelivery=True)
        if self._unacked and self._full():
            return None
        return ReadRequest(self.position, False)

    def _full(self) -> str | None:
        """Return which bound stops new messages, or None. Nothing is full while nothing is unacknowledged."""
        if not self._unacked:
            return None
        limits = self._limits
        if self._window is not None and self._unacked >= self._window:
            return f"the window of {self._window:,} unacknowledged messages is full (max_unacked_messages)"
        if self.cursor.range_count >= limits.max_ack_ranges:
            return f"{self.cursor.range_count:,} acknowledged ranges wait for older messages (max_ack_ranges)"
        if len(self._flights) + len(self._waiting) >= limits.max_in_flight_ranges:
            return f"{limits.max_in_flight_ranges:,} separate ranges are unacknowledged (max_in_flight_ranges)"
        return None

    def ack(self, ranges: Sequence[int], consumer_id: int | None, now: float) -> list[int]:
        """Acknowledge ranges; see :meth:`Machine.ack`."""
        return self._acknowledge(ranges, force=False)

    def _acknowledge(self, ranges: Sequence[int], *, force: bool) -> list[int]:
        new: list[int] = []
        cursor_ack, settle, position = self.cursor.ack, self._flights.settle, self.position
        count = 0
        for index in range(0, len(ranges), 2):
            high = ranges[index + 1]
            for start, end in cursor_ack(ranges[index], high if high < position else position, force=force):
                settle(start, end)
                new.append(start)
                new.append(end)
                count += end - start
        self._unacked -= count
        return new

    def nack(
        self, consumer_id: int | None, ranges: Sequence[int], delay_s: float | None, now: float, reason: str = ""
    ) -> None:
        """Have ranges delivered again; see :meth:`Machine.nack`."""
        for index in range(0, len(ranges), 2):
            # At the bound a nack takes the whole flight back: neighbours may come twice, memory does not grow.
            whole = len(self._flights) + len(self._waiting) >= self._limits.max_in_flight_ranges
            released = self._flights.release(ranges[index], ranges[index + 1], consumer_id, whole=whole)
            self._waiting.add(released, now + (delay_s or 0.0), now)

    def discard(self, ranges: Sequence[int], now: float) -> list[int]:
        """Settle ranges without a consumer; see :meth:`Machine.discard`."""
        new = self._acknowledge(ranges, force=True)
        position = self.position
        for index in range(0, len(ranges), 2):
            for start, end in self.cursor.ack(max(ranges[index], position), ranges[index + 1], force=True):
                new += (start, end)
        self.position = self.cursor.next_live(position)
        return merge(new)

    def seek(self, offset: int, now: float) -> None:
        """Begin again from ``offset``; see :meth:`Machine.seek`."""
        self.cursor.seek(offset)
        self._flights.clear()
        self._waiting.clear()
        self._unacked = 0
        self.position = offset

    def _left(self, member: Member, now: float) -> None:
        self._waiting.add(self._flights.release_all(member), now, now)

    def tick(self, now: float) -> None:
        """Time out deliveries and let delayed messages become ready."""
        self._waiting.add(self._flights.expire(now), now, now)
        self._waiting.promote(now)

    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` has something to do."""
        first, second = self._flights.next_deadline(), self._waiting.next_due()
        if first is None or second is None:
            return second if first is None else first
        return min(first, second)

    def waiting_messages(self) -> int:
        """Count the messages that wait for redelivery or for the owner of their key."""
        return self._waiting.messages()

    def explain(self, now: float, end_offset: int) -> Explanation:
        """Say why the subscription moves or does not."""
        oldest = self._flights.oldest()
        return explain(
            Facts(
                description=self.describe(end_offset),
                now=now,
                end_offset=end_offset,
                wants=self.next_read(now),
                full=self._full(),
                next_due=self._waiting.next_due(),
                oldest=oldest and (oldest[0], oldest[1], oldest[2].member.name, oldest[2].since),
            )
        )
