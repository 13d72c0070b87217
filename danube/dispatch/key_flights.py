"""Tracks the messages of a key-shared subscription that are in flight, with their deadlines.

A :class:`KeyFlight` is one delivery: messages of one batch, of many keys, to one consumer; not a range. It times out
as a whole, so there is one deadline for many messages. Extending the lease of only some of them splits it in two.

The heap of deadlines is lazy: a finished flight, or one whose deadline was moved, leaves its old entry behind, which is
dropped or pushed again when it surfaces.
"""

from __future__ import annotations

import heapq
import math

from danube.dispatch.inflight import Member

__all__ = ["KeyFlight", "KeyFlights"]


class KeyFlight:
    """Messages of one batch that were delivered to one consumer at one time."""

    __slots__ = ("deadline", "extended", "member", "offsets", "open", "since")

    def __init__(self, member: Member, since: float, deadline: float, offsets: list[int]) -> None:
        self.member = member
        self.since = since
        self.deadline = deadline
        """Infinite if there is no timeout."""
        self.extended = False
        """Its deadline is set by a lease, not by the policy."""
        self.offsets = offsets
        self.open = len(offsets)
        """Number of its offsets that are still in flight by this delivery."""


class KeyFlights:
    """All flights of one subscription.

    Attributes:
        of: the flight of each offset in flight. :meth:`add` and :meth:`take` change it; code that removes an offset
            directly (the machine's hot path does) must decrement ``open`` and call :meth:`close` at 0.
    """

    __slots__ = ("_count", "_deadlines", "_sequence", "of")

    def __init__(self) -> None:
        self.of: dict[int, KeyFlight] = {}
        self._deadlines: list[tuple[float, int, KeyFlight]] = []
        self._sequence = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of flights that are not over."""
        return self._count

    def add(self, member: Member, offsets: list[int], now: float, timeout_s: float) -> None:
        """Record a delivery; ``timeout_s`` 0 means no timeout."""
        self._insert(KeyFlight(member, now, now + timeout_s if timeout_s else math.inf, offsets))
        member.in_flight += len(offsets)

    def _insert(self, flight: KeyFlight) -> None:
        self.of.update(dict.fromkeys(flight.offsets, flight))
        self._count += 1
        self._arm(flight)

    def _arm(self, flight: KeyFlight) -> None:
        if flight.deadline == math.inf:
            return
        deadlines = self._deadlines
        self._sequence += 1
        heapq.heappush(deadlines, (flight.deadline, self._sequence, flight))
        if len(deadlines) > 2 * self._count + 64:
            self._deadlines = [entry for entry in deadlines if entry[2].open and entry[0] == entry[2].deadline]
            heapq.heapify(self._deadlines)

    def take(self, offset: int) -> KeyFlight | None:
        """Take an offset out of flight, if it is in flight, and return the flight."""
        flight = self.of.pop(offset, None)
        if flight is not None:
            flight.member.in_flight -= 1
            flight.open -= 1
            if not flight.open:
                self.close(flight)
        return flight

    def close(self, flight: KeyFlight) -> None:
        """Remove a flight that has no offsets in flight any more."""
        self._count -= 1
        flight.offsets = []

    def extend(self, consumer_id: int, offsets: list[int], deadline: float, most: int) -> None:
        """Move the deadline of some offsets in flight at a consumer; never to an earlier time.

        If there are already ``most`` flights, none is split in two: each is extended as a whole.
        """
        touched: dict[KeyFlight, list[int]] = {}
        for offset in offsets:
            flight = self.of.get(offset)
            if flight is not None and flight.member.consumer_id == consumer_id and flight.deadline < deadline:
                touched.setdefault(flight, []).append(offset)
        for flight, part in touched.items():
            if len(part) < flight.open and self._count < most:
                flight.open -= len(part)
                cut = KeyFlight(flight.member, flight.since, deadline, part)
                cut.extended = True
                self._insert(cut)
            else:
                flight.deadline = deadline
                flight.extended = True
                self._arm(flight)

    def postpone(self, until: float) -> None:
        """Move every deadline before ``until`` to it."""
        for flight in dict.fromkeys(self.of.values()):
            if flight.deadline < until:
                flight.deadline = until
                flight.extended = True
                self._arm(flight)

    def retime(self, timeout_s: float) -> None:
        """Set the deadlines of all flights by another timeout; extended ones keep theirs."""
        self._deadlines.clear()
        for flight in dict.fromkeys(self.of.values()):
            if not flight.extended:
                flight.deadline = flight.since + timeout_s if timeout_s else math.inf
            self._arm(flight)

    def expired(self, now: float) -> list[KeyFlight]:
        """Return the flights that have timed out; their offsets stay in flight until the caller takes them out."""
        late: list[KeyFlight] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            late.append(heapq.heappop(self._deadlines)[2])
        return late

    def next_deadline(self) -> float | None:
        """Return when the next flight times out."""
        deadlines = self._deadlines
        while deadlines:
            deadline, _, flight = deadlines[0]
            if flight.open and flight.deadline == deadline:
                return deadline
            heapq.heappop(deadlines)
        return None

    def clear(self) -> None:
        """Remove all flights (after a seek)."""
        for flight in self.of.values():
            flight.member.in_flight = 0
            flight.open = 0
        self.of.clear()
        self._deadlines.clear()
        self._count = 0
