"""Delayed batches of a subscription: a heap ordered by delivery time.

When a machine is offered a new batch with a future delivery time, it moves its position past the batch and stores the
range here. When it is due, the range is returned, and the batch is read again for its first delivery.

So there may be undelivered messages below the position. An acknowledgement must not include them (a
cumulative one would), hence :meth:`Delayed.delivered_part`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from danube.model.ranges import RangeSet

__all__ = ["Delayed"]


class Delayed:
    """The delayed ranges of one subscription."""

    __slots__ = ("_heap", "_pending", "_undelivered", "some")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int]] = []
        """Due time, start and end; parts of a range may have been discarded since."""
        self._pending = RangeSet()
        """Offsets that are neither due nor discarded."""
        self._undelivered = RangeSet()
        """The same, and offsets that became due and were not delivered yet."""
        self.some = False
        """True while there are undelivered offsets, due or not. A cheap check for other objects."""

    def __len__(self) -> int:
        """Return the number of ranges that are not due; some may have been discarded since."""
        return len(self._heap)

    def add(self, pairs: Sequence[tuple[int, int]], due: float) -> None:
        """Store the parts of one batch until ``due``: sorted, disjoint, neither acknowledged nor delivered."""
        if pairs:
            heapq.heappush(self._heap, (due, pairs[0][0], pairs[-1][1]))
            for start, end in pairs:
                self._pending.add(start, end)
                self._undelivered.add(start, end)
            self.some = True

    def take_due(self, now: float) -> list[tuple[int, int]]:
        """Remove the ranges due by ``now`` and return them in order of time."""
        heap, pending = self._heap, self._pending
        due: list[tuple[int, int]] = []
        while heap and heap[0][0] <= now:
            _, start, end = heapq.heappop(heap)
            parts = list(pending.overlap(start, end))
            for low, high in parts:
                pending.remove(low, high)
            due += parts
        return due

    def deliver(self, start: int, end: int) -> None:
        """Record the first delivery of a range that was due."""
        self._undelivered.remove(start, end)
        self._tidy()

    def discard(self, start: int, end: int) -> int:
        """Discard a range; return how many of its messages were not due."""
        parts = list(self._pending.overlap(start, end))
        self._pending.remove(start, end)
        self._undelivered.remove(start, end)
        self._tidy()
        return sum(high - low for low, high in parts)

    def _tidy(self) -> None:
        if not self._undelivered:
            self._heap.clear()
            self.some = False

    def delivered_part(self, ranges: Sequence[int]) -> list[int]:
        """Return a flat list of ranges without undelivered delayed offsets."""
        return [
            number
            for index in range(0, len(ranges), 2)
            for pair in self._undelivered.gaps(ranges[index], ranges[index + 1])
            for number in pair
        ]

    def next_due(self) -> float | None:
        """Return when the next range is due; discarded ranges are dropped first."""
        heap, pending = self._heap, self._pending
        while heap and next(pending.overlap(heap[0][1], heap[0][2]), None) is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due_of(self, offset: int) -> float | None:
        """Return when an offset is due; None if it is not delayed. Iterates over all ranges."""
        if offset not in self._pending:
            return None
        return min((due for due, start, end in self._heap if start <= offset < end), default=None)

    def messages(self) -> int:
        """Return the number of messages that are not due."""
        return self._pending.count()

    def shift(self, by_s: float) -> bool:
        """Delay all ranges that are not due by ``by_s`` seconds more (negative: less); return whether there are any."""
        if by_s:
            self._heap = [(due + by_s, start, end) for due, start, end in self._heap]  # still a heap
        return bool(self._heap)

    def clear(self) -> None:
        """Discard everything (after a seek)."""
        self._heap.clear()
        self._pending.clear()
        self._undelivered.clear()
        self.some = False
