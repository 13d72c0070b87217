"""Tracks delivered and unacknowledged messages as ranges with deadlines, never message by message.

A :class:`Flight` is one contiguous range that was delivered to one consumer. Flights are disjoint and sorted by
offset, so settling an acknowledged range is a binary search. A flight does not store which of its offsets are open:
the cursor has this information.

Every flight has a deadline, and a heap finds those that have passed. A lease only ever moves a deadline to a later
time, so the heap may be outdated: an entry that surfaces too early is pushed again with the current deadline.
Entries of finished flights are dropped when they surface, or when there are too many.

At any time an offset below the position of its subscription is in exactly one of: the cursor, a flight, the waiting
set, the poison set aside, the delayed batches.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from danube.dispatch.cursor import Cursor
from danube.dispatch.failures import DeliveryHistory

__all__ = ["Flight", "InFlight", "Member", "Piece"]

_PRUNE_AT = 64
"""Minimum size of the deadline heap before it is pruned."""


class Member:
    """One connected consumer, its credit and its counters. Belongs to the machine it joined."""

    __slots__ = (
        "acked", "consumer_id", "credit_bytes", "credit_messages", "delivered", "delivered_bytes", "filters", "gap_end",
        "gap_start", "in_flight", "name", "queued", "suspended",
    )  # fmt: skip

    def __init__(self, consumer_id: int, name: str, filters: tuple[str, ...] = ()) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.filters = filters
        """Key filters; empty: every key matches."""
        self.suspended = False
        """It let a message time out and has sent no sign of life since."""
        self.credit_messages = 0
        self.credit_bytes = 0
        self.in_flight = 0
        self.delivered = 0
        self.delivered_bytes = 0
        self.acked = 0
        self.queued = False
        """True while it is in a queue of consumers with credit."""
        self.gap_start = self.gap_end = -1
        """Range of dropped messages that it was not notified about yet (lossy machines only)."""

    @property
    def has_credit(self) -> bool:
        """True if messages may be delivered to it."""
        return self.credit_messages > 0 and self.credit_bytes > 0

    def charge(self, messages: int, size_bytes: int) -> None:
        """Deduct credit for a delivery."""
        self.credit_messages -= messages
        self.credit_bytes -= size_bytes
        self.delivered += messages
        self.delivered_bytes += size_bytes


class Flight:
    """One contiguous range delivered to one consumer."""

    __slots__ = ("deadline", "end", "history", "lease", "member", "open", "since", "start")

    def __init__(
        self,
        start: int,
        end: int,
        open_count: int,
        member: Member,
        history: DeliveryHistory,
        since: float,
        deadline: float,
    ) -> None:
        self.start = start
        self.end = end
        self.open = open_count
        """Number of its unsettled offsets; 0 once the flight is over."""
        self.member = member
        self.history = history
        self.since = since
        self.deadline = deadline
        """Time of its timeout (monotonic seconds); infinite if it has none."""
        self.lease = 0.0
        """End of its extension; it does not time out earlier, whatever the timeout is."""

    def part(self, start: int, end: int, open_count: int) -> Flight:
        """Return a flight for a part of this one."""
        part = Flight(start, end, open_count, self.member, self.history, self.since, self.deadline)
        part.lease = self.lease
        return part


Piece = tuple[int, int, Flight]
"""Start and end of a range that is no longer in flight, and its flight, which is over."""


class InFlight:
    """All flights of one subscription."""

    __slots__ = ("_cursor", "_deadlines", "_flights", "_sequence", "_timeout_s", "messages", "starts")

    def __init__(self, cursor: Cursor, timeout_s: float) -> None:
        """Create an empty set; ``timeout_s`` 0 means no timeouts."""
        self._cursor = cursor
        self._timeout_s = timeout_s or math.inf
        self.starts: list[int] = []
        """Start offsets of the flights, in order. Other objects may read its length."""
        self._flights: list[Flight] = []
        self._deadlines: list[tuple[float, int, Flight]] = []
        """Heap of (deadline or an earlier time, sequence, flight)."""
        self._sequence = 0
        self.messages = 0
        """Number of offsets in flight."""

    def add(self, start: int, end: int, member: Member, history: DeliveryHistory, now: float) -> None:
        """Record the delivery of ``[start, end)``; none of it may be acknowledged or in flight."""
        count = end - start
        member.in_flight += count
        self.messages += count
        flight = Flight(start, end, count, member, history, now, now + self._timeout_s)
        starts = self.starts
        if starts and start < starts[-1]:
            self._insert(flight)
        else:  # new messages: the common case
            starts.append(start)
            self._flights.append(flight)
        self._arm(flight)

    def _insert(self, flight: Flight) -> None:
        index = bisect_right(self.starts, flight.start)
        self.starts.insert(index, flight.start)
        self._flights.insert(index, flight)

    def _arm(self, flight: Flight) -> None:
        """Push the deadline of a flight to the heap."""
        deadline = flight.deadline
        if deadline < math.inf:
            self._sequence = number = self._sequence + 1
            deadlines = self._deadlines
            heappush(deadlines, (deadline, number, flight))
            if len(deadlines) > _PRUNE_AT + 2 * len(self.starts):
                self._deadlines = [entry for entry in deadlines if entry[2].open]
                heapify(self._deadlines)

    def _find(self, start: int) -> int:
        """Return the index of the first flight that ends after ``start``."""
        index = bisect_right(self.starts, start) - 1
        return index if index >= 0 and self._flights[index].end > start else index + 1

    def settle(self, start: int, end: int) -> None:
        """Record that ``[start, end)`` was newly acknowledged, whether or not all of it is in flight."""
        starts, flights = self.starts, self._flights
        index = bisect_right(starts, start) - 1
        if index >= 0:
            flight = flights[index]
            if flight.end <= start:
                index += 1
            elif end <= flight.end:  # within one flight: the common case
                count = end - start
                flight.open -= count
                flight.member.in_flight -= count
                flight.member.acked += count
                self.messages -= count
                if not flight.open:
                    del starts[index], flights[index]
                return
        first = index = max(index, 0)
        while index < len(starts) and starts[index] < end:
            flight = flights[index]
            count = min(end, flight.end) - max(start, flight.start)
            flight.open -= count
            flight.member.in_flight -= count
            flight.member.acked += count
            self.messages -= count
            if flight.open:
                if first < index:
                    del starts[first:index], flights[first:index]
                first = index = first + 1
            else:
                index += 1
        if first < index:
            del starts[first:index], flights[first:index]

    def release(self, start: int, end: int, consumer_id: int | None, *, whole: bool = False) -> list[Piece]:
        """Take the open offsets of ``[start, end)`` out of flight.

        Args:
            start: first offset.
            end: first offset after the range.
            consumer_id: only flights of this consumer; None: of any.
            whole: do not split flights: one that overlaps is released completely.
        """
        released: list[Piece] = []
        index = self._find(start)
        while index < len(self.starts) and self.starts[index] < end:
            flight = self._flights[index]
            if consumer_id is not None and flight.member.consumer_id != consumer_id:
                index += 1
                continue
            low, high = (flight.start, flight.end) if whole else (max(start, flight.start), min(end, flight.end))
            self._cut(index, flight, low, high)
            self._end(flight, low, high, released)
            index = self._find(high)
        return released

    def _cut(self, index: int, flight: Flight, low: int, high: int) -> None:
        """Remove the flight at ``index``; its open offsets outside of ``[low, high)`` stay as flights of their own."""
        del self.starts[index], self._flights[index]
        for start, end in ((flight.start, low), (high, flight.end)):
            count = sum(b - a for a, b in self._cursor.live(start, end))
            if count:
                part = flight.part(start, end, count)
                self._insert(part)
                self._arm(part)

    def failures(self, offset: int) -> int:
        """Return the failures so far of the message in flight at an offset; 0 if there is none."""
        index = bisect_right(self.starts, offset) - 1
        if index < 0:
            return 0
        flight = self._flights[index]
        return flight.history.failures if offset < flight.end else 0

    def extend(self, start: int, end: int, consumer_id: int, deadline: float, *, whole: bool = False) -> None:
        """Move the deadline of a consumer's flights to a later time; an earlier one changes nothing.

        Args:
            start: first offset.
            end: first offset after the range.
            consumer_id: consumer of the flights.
            deadline: monotonic seconds.
            whole: do not split flights: one that overlaps is extended completely.
        """
        index = self._find(start)
        while index < len(self.starts) and self.starts[index] < end:
            flight = self._flights[index]
            if flight.member.consumer_id == consumer_id and flight.deadline < deadline:
                low, high = max(start, flight.start), min(end, flight.end)
                count = flight.open if whole else sum(b - a for a, b in self._cursor.live(low, high))
                if count == flight.open:
                    flight.deadline = flight.lease = deadline
                elif count:
                    self._cut(index, flight, low, high)
                    flight.open = 0
                    part = flight.part(low, high, count)
                    part.deadline = part.lease = deadline
                    self._insert(part)
                    self._arm(part)
                    index = self._find(low)
            index += 1

    def release_all(self, member: Member) -> list[Piece]:
        """Take everything of a consumer out of flight."""
        if not member.in_flight:
            return []
        kept: list[Flight] = []
        released: list[Piece] = []
        for flight in self._flights:
            if flight.member is member:
                self._end(flight, flight.start, flight.end, released)
            else:
                kept.append(flight)
        self._flights = kept
        self.starts = [flight.start for flight in kept]
        return released

    def expire(self, now: float) -> list[Piece]:
        """Take expired flights out of flight."""
        released: list[Piece] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            flight = heappop(self._deadlines)[2]
            index = bisect_right(self.starts, flight.start) - 1
            del self.starts[index], self._flights[index]
            self._end(flight, flight.start, flight.end, released)
        return released

    def next_deadline(self) -> float | None:
        """Return when the next flight times out."""
        deadlines = self._deadlines
        while deadlines:
            first = deadlines[0]
            flight = first[2]
            if not flight.open:
                heappop(deadlines)
            elif first[0] < flight.deadline:
                self._sequence += 1
                heapreplace(deadlines, (flight.deadline, self._sequence, flight))
            else:
                return first[0]
        return None

    def postpone(self, until: float) -> None:
        """Move every deadline before ``until`` to it."""
        for flight in self._flights:
            if flight.deadline < until:
                flight.deadline = flight.lease = until

    def change_timeout(self, timeout_s: float) -> None:
        """Set deadlines to ``timeout_s`` seconds after delivery (0: no timeout), but not before the end of a lease."""
        self._timeout_s = timeout_s or math.inf
        for flight in self._flights:
            flight.deadline = max(flight.since + self._timeout_s, flight.lease)
        self._deadlines = [
            (flight.deadline, number, flight)
            for number, flight in enumerate(self._flights)
            if flight.deadline < math.inf
        ]
        self._sequence = len(self._flights)
        heapify(self._deadlines)

    def clear(self) -> None:
        """Remove all flights (after a seek)."""
        for flight in self._flights:
            flight.member.in_flight = 0
            flight.open = 0
        self.starts.clear()
        self._flights.clear()
        self._deadlines.clear()
        self.messages = 0

    def at(self, offset: int) -> Flight | None:
        """Return the flight that an unacknowledged offset is in; None if it is not in flight."""
        index = bisect_right(self.starts, offset) - 1
        return self._flights[index] if index >= 0 and offset < self._flights[index].end else None

    def repeated(self) -> Iterator[Piece]:
        """Yield the open ranges in flight that were delivered before, in the order of their offsets."""
        for flight in self._flights:
            if flight.history.attempt > 1:
                for start, end in self._cursor.live(flight.start, flight.end):
                    yield start, end, flight

    def oldest(self) -> tuple[int, int, Flight] | None:
        """Return the lowest open range in flight, and its flight."""
        if not self._flights:
            return None
        flight = self._flights[0]
        start, end = self._cursor.live(flight.start, flight.end)[0]
        return start, end, flight

    def _end(self, flight: Flight, low: int, high: int, released: list[Piece]) -> None:
        """End a flight that was removed; list its open parts of ``[low, high)``, the caller handles the rest."""
        count = 0
        for start, end in self._cursor.live(low, high):
            released.append((start, end, flight))
            count += end - start
        flight.open = 0
        flight.member.in_flight -= count
        self.messages -= count
