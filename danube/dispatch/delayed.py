"""Batches that are not due yet: a heap by delivery time.

A machine that is offered a new batch with a delivery time ahead of it moves its position past the batch and keeps its
range here. When it is due, the range comes back, and the batch is read again for its first delivery.

So below the position there may be messages that were never delivered. An acknowledgement must not touch them (a
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
        """Due time, start and end; some of it may be discarded by now."""
        self._pending = RangeSet()
        """What is not due and not discarded."""
        self._undelivered = RangeSet()
        """That, and what became due and was not delivered yet."""
        self.some = False
        """True while something is here, due or not, that was not delivered. For others a cheap question."""

    def __len__(self) -> int:
        """Return the number of ranges that are not due; some may be discarded by now."""
        return len(self._heap)

    def add(self, pairs: Sequence[tuple[int, int]], due: float) -> None:
        """Keep the parts of one batch until ``due``: sorted, disjoint, neither acknowledged nor delivered."""
        if pairs:
            heapq.heappush(self._heap, (due, pairs[0][0], pairs[-1][1]))
            for start, end in pairs:
                self._pending.add(start, end)
                self._undelivered.add(start, end)
            self.some = True

    def take_due(self, now: float) -> list[tuple[int, int]]:
        """Remove what is due by ``now`` and return it as ranges, in order of time."""
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
        """Note the first delivery of a range that was due."""
        self._undelivered.remove(start, end)
        self._tidy()

    def discard(self, start: int, end: int) -> int:
        """Forget what of a range is here; return how many messages of it were not due."""
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
        """Return a flat list of ranges without what was not delivered yet."""
        return [
            number
            for index in range(0, len(ranges), 2)
            for pair in self._undelivered.gaps(ranges[index], ranges[index + 1])
            for number in pair
        ]

    def next_due(self) -> float | None:
        """Return when the next range is due; what was discarded is dropped first."""
        heap, pending = self._heap, self._pending
        while heap and next(pending.overlap(heap[0][1], heap[0][2]), None) is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def messages(self) -> int:
        """Count the messages that are not due."""
        return self._pending.count()

    def shift(self, by_s: float) -> bool:
        """Let everything that is not due be due so much later, or (negative) sooner; tell if there is any."""
        if by_s:
            self._heap = [(due + by_s, start, end) for due, start, end in self._heap]  # and it is still a heap
        return bool(self._heap)

    def clear(self) -> None:
        """Forget everything (after a seek)."""
        self._heap.clear()
        self._pending.clear()
        self._undelivered.clear()
        self.some = False
