"""What of a key-shared subscription is in flight, and until when.

A :class:`KeyFlight` is what one consumer got of one batch at one time: offsets of many keys, not a range. It times out
as a whole, so there is one deadline for many messages. Extending the lease of only some of them cuts it in two.

The heap of deadlines is lazy: a flight that is over, or whose deadline was moved, leaves its old entry behind, which is
dropped or pushed again when it surfaces.
"""

from __future__ import annotations

import heapq
import math

from danube.dispatch.inflight import Member

__all__ = ["KeyFlight", "KeyFlights"]


class KeyFlight:
    """What one consumer got of one batch at one time."""

    __slots__ = ("deadline", "extended", "member", "offsets", "open", "since")

    def __init__(self, member: Member, since: float, deadline: float, offsets: list[int]) -> None:
        self.member = member
        self.since = since
        self.deadline = deadline
        """Infinite if it never times out."""
        self.extended = False
        """Its deadline comes from a lease, not from the policy."""
        self.offsets = offsets
        self.open = len(offsets)
        """How many of them are still in flight by this delivery."""


class KeyFlights:
    """All flights of one subscription.

    Attributes:
        of: the flight of each offset in flight. :meth:`add` and :meth:`take` change it; who removes an offset otherwise
            (the machine's hot path does) counts ``open`` down and calls :meth:`close` at 0.
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
        """Note a delivery; ``timeout_s`` 0 means that it never times out."""
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
        """Nothing of a flight is in flight any more."""
        self._count -= 1
        flight.offsets = []

    def extend(self, consumer_id: int, offsets: list[int], deadline: float, most: int) -> None:
        """Move the deadline of some offsets in flight at a consumer, never to an earlier time.

        With ``most`` flights there already, none is cut in two: it is extended as a whole.
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

    def retime(self, timeout_s: float) -> None:
        """Give every flight the deadline of another timeout; extended ones keep theirs."""
        self._deadlines.clear()
        for flight in dict.fromkeys(self.of.values()):
            if not flight.extended:
                flight.deadline = flight.since + timeout_s if timeout_s else math.inf
            self._arm(flight)

    def expired(self, now: float) -> list[KeyFlight]:
        """Return the flights that have timed out; their offsets stay in flight until somebody takes them out."""
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
        """Forget everything (after a seek)."""
        for flight in self.of.values():
            flight.member.in_flight = 0
            flight.open = 0
        self.of.clear()
        self._deadlines.clear()
        self._count = 0
