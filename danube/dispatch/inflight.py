"""Bookkeeping for what is delivered and not acknowledged, by range and never by message.

A :class:`Flight` is one contiguous range that was delivered to one consumer. Flights are disjoint and kept sorted by
offset, so settling an acknowledged range is a binary search. Which of a flight's offsets are still open is not stored
here: the cursor knows. A heap of deadlines finds the flights that time out; it is pruned lazily.

:class:`Waiting` keeps the ranges that must be delivered again: a heap by offset of those that are due, and a heap by
time of those that are delayed. An acknowledgement does not touch it; what was acknowledged meanwhile is skipped when
its turn comes.

At any time an offset below the position of its subscription is in exactly one of: the cursor, a flight, the waiting
set.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from typing import NamedTuple

from danube.dispatch.cursor import Cursor

__all__ = ["Flight", "InFlight", "Member", "Redelivery", "Waiting"]

_PRUNE_AT = 64
"""Smallest deadline heap that is worth pruning."""


class Member:
    """One connected consumer, its credit and its counters. Belongs to the machine it joined."""

    __slots__ = (
        "acked", "consumer_id", "credit_bytes", "credit_messages", "delivered", "filters", "gap_end", "gap_start",
        "in_flight", "name", "queued", "suspended",
    )  # fmt: skip

    def __init__(self, consumer_id: int, name: str, filters: tuple[str, ...] = ()) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.filters = filters
        """Key filters; empty: every key matches."""
        self.suspended = False
        """It let a message time out and has said nothing since."""
        self.credit_messages = 0
        self.credit_bytes = 0
        self.in_flight = 0
        self.delivered = 0
        self.acked = 0
        self.queued = False
        """True while it stands in a line of consumers with credit."""
        self.gap_start = self.gap_end = -1
        """Dropped messages that it was not told about yet (lossy machines only)."""

    @property
    def has_credit(self) -> bool:
        """True if something may be delivered to it."""
        return self.credit_messages > 0 and self.credit_bytes > 0

    def charge(self, messages: int, size_bytes: int) -> None:
        """Use up credit for a delivery."""
        self.credit_messages -= messages
        self.credit_bytes -= size_bytes
        self.delivered += messages


class Flight:
    """One contiguous range at one consumer."""

    __slots__ = ("attempt", "end", "member", "open", "since", "start")

    def __init__(self, start: int, end: int, open_count: int, member: Member, attempt: int, since: float) -> None:
        self.start = start
        self.end = end
        self.open = open_count
        """Offsets of it that are not settled; 0 once the flight is over."""
        self.member = member
        self.attempt = attempt
        self.since = since


class Redelivery(NamedTuple):
    """A range that must be delivered again. Compares by its start."""

    start: int
    end: int
    attempt: int
    """The attempt that the next delivery will be."""
    avoid: int | None
    """A consumer that should rather not get it: the one that refused it."""


class InFlight:
    """All flights of one subscription."""

    __slots__ = ("_cursor", "_deadlines", "_flights", "_sequence", "_starts", "_timeout_s", "messages")

    def __init__(self, cursor: Cursor, timeout_s: float) -> None:
        """Build an empty set; ``timeout_s`` 0 means that nothing times out."""
        self._cursor = cursor
        self._timeout_s = timeout_s
        self._starts: list[int] = []
        self._flights: list[Flight] = []
        self._deadlines: list[tuple[float, int, Flight]] = []
        self._sequence = 0
        self.messages = 0
        """Offsets in flight."""

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, start: int, end: int, member: Member, attempt: int, now: float) -> None:
        """Note the delivery of ``[start, end)``, of which nothing is acknowledged or in flight."""
        count = end - start
        member.in_flight += count
        self.messages += count
        self._insert(Flight(start, end, count, member, attempt, now))

    def _insert(self, flight: Flight) -> None:
        starts = self._starts
        if not starts or flight.start > starts[-1]:  # new messages: the common case
            starts.append(flight.start)
            self._flights.append(flight)
        else:
            index = bisect_right(starts, flight.start)
            starts.insert(index, flight.start)
            self._flights.insert(index, flight)
        if self._timeout_s:
            self._sequence += 1
            deadlines = self._deadlines
            heapq.heappush(deadlines, (flight.since + self._timeout_s, self._sequence, flight))
            if len(deadlines) > _PRUNE_AT + 2 * len(starts):
                self._deadlines = [entry for entry in deadlines if entry[2].open]
                heapq.heapify(self._deadlines)

    def _find(self, start: int) -> int:
        """Return the index of the first flight that ends after ``start``."""
        index = bisect_right(self._starts, start) - 1
        return index if index >= 0 and self._flights[index].end > start else index + 1

    def settle(self, start: int, end: int) -> None:
        """Note that ``[start, end)`` was newly acknowledged, whether or not all of it is in flight."""
        starts, flights = self._starts, self._flights
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

    def release(self, start: int, end: int, consumer_id: int | None, *, whole: bool = False) -> list[Redelivery]:
        """Take what is open of ``[start, end)`` out of flight, to be delivered again.

        Args:
            start: first offset.
            end: first offset after the range.
            consumer_id: only what is in flight at this consumer; None: at any.
            whole: do not cut flights: one that is touched is released completely.
        """
        released: list[Redelivery] = []
        index = self._find(start)
        while index < len(self._starts) and self._starts[index] < end:
            flight = self._flights[index]
            if consumer_id is not None and flight.member.consumer_id != consumer_id:
                index += 1
                continue
            low, high = (flight.start, flight.end) if whole else (max(start, flight.start), min(end, flight.end))
            self._drop(index, flight, low, high, released)
            for kept_start, kept_end in ((flight.start, low), (high, flight.end)):
                count = sum(b - a for a, b in self._cursor.live(kept_start, kept_end))
                if count:
                    self._insert(Flight(kept_start, kept_end, count, flight.member, flight.attempt, flight.since))
            index = self._find(high)
        return released

    def release_all(self, member: Member) -> list[Redelivery]:
        """Take everything of a consumer out of flight."""
        if not member.in_flight:
            return []
        kept: list[Flight] = []
        released: list[Redelivery] = []
        for flight in self._flights:
            if flight.member is member:
                self._end(flight, flight.start, flight.end, released)
            else:
                kept.append(flight)
        self._flights = kept
        self._starts = [flight.start for flight in kept]
        return released

    def expire(self, now: float) -> list[Redelivery]:
        """Take out of flight what was delivered longer ago than the timeout."""
        released: list[Redelivery] = []
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or not deadlines[0][2].open):
            flight = heapq.heappop(deadlines)[2]
            if flight.open:
                index = bisect_right(self._starts, flight.start) - 1
                self._drop(index, flight, flight.start, flight.end, released)
        return released

    def next_deadline(self) -> float | None:
        """Return when the next flight times out."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].open:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def clear(self) -> None:
        """Forget everything (after a seek)."""
        for flight in self._flights:
            flight.member.in_flight = 0
            flight.open = 0
        self._starts.clear()
        self._flights.clear()
        self._deadlines.clear()
        self.messages = 0

    def oldest(self) -> tuple[int, int, Flight] | None:
        """Return the lowest open range in flight, and its flight."""
        if not self._flights:
            return None
        flight = self._flights[0]
        start, end = self._cursor.live(flight.start, flight.end)[0]
        return start, end, flight

    def _drop(self, index: int, flight: Flight, low: int, high: int, released: list[Redelivery]) -> None:
        """Remove the flight at ``index``; list what is open of ``[low, high)``, the rest is the caller's."""
        del self._starts[index], self._flights[index]
        self._end(flight, low, high, released)

    def _end(self, flight: Flight, low: int, high: int, released: list[Redelivery]) -> None:
        count = 0
        for start, end in self._cursor.live(low, high):
            released.append(Redelivery(start, end, flight.attempt + 1, flight.member.consumer_id))
            count += end - start
        flight.open = 0
        flight.member.in_flight -= count
        self.messages -= count


class Waiting:
    """The ranges that must be delivered again."""

    __slots__ = ("_cursor", "delayed", "ready")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.ready: list[Redelivery] = []
        """Heap by offset. For others to see whether there is something; some may be acknowledged by now."""
        self.delayed: list[tuple[float, Redelivery]] = []
        """Heap by due time; the same."""

    def __len__(self) -> int:
        """Return the number of ranges; some may be acknowledged by now."""
        return len(self.ready) + len(self.delayed)

    def add(self, ranges: list[Redelivery], due: float, now: float) -> None:
        """Add ranges that may be delivered again from ``due`` on."""
        if due <= now:
            for item in ranges:
                heapq.heappush(self.ready, item)
        else:
            for item in ranges:
                heapq.heappush(self.delayed, (due, item))

    def promote(self, now: float) -> None:
        """Move what is due by now to the ranges that are ready."""
        while self.delayed and self.delayed[0][0] <= now:
            heapq.heappush(self.ready, heapq.heappop(self.delayed)[1])

    def peek(self) -> Redelivery | None:
        """Return the lowest ready range, beginning with an offset that is not acknowledged; None if there is none."""
        ready = self.ready
        while ready:
            item = ready[0]
            start = self._cursor.next_live(item.start)
            if start < item.end:
                if start > item.start:
                    item = item._replace(start=start)
                    heapq.heapreplace(ready, item)
                    continue
                return item
            heapq.heappop(ready)
        return None

    def take(self, end: int) -> Redelivery:
        """Remove the range that :meth:`peek` returned, up to ``end``; the rest of it stays."""
        item = self.ready[0]
        if item.end <= end:
            return heapq.heappop(self.ready)
        heapq.heapreplace(self.ready, item._replace(start=end))
        return item._replace(end=end)

    def put_back(self, item: Redelivery) -> None:
        """Return a range that was taken and not delivered."""
        heapq.heappush(self.ready, item)

    def next_due(self) -> float | None:
        """Return when the next delayed range is due; acknowledged ones are dropped first."""
        delayed = self.delayed
        while delayed and not self._cursor.live(delayed[0][1].start, delayed[0][1].end):
            heapq.heappop(delayed)
        return delayed[0][0] if delayed else None

    def messages(self) -> int:
        """Count the offsets that wait and are not acknowledged. Walks all of them: for describing only."""
        items = self.ready + [item for _, item in self.delayed]
        return sum(end - start for item in items for start, end in self._cursor.live(item.start, item.end))

    def clear(self) -> None:
        """Forget everything (after a seek)."""
        self.ready.clear()
        self.delayed.clear()
