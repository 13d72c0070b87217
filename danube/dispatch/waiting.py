"""Messages waiting for redelivery, and poison set aside: as ranges, never as single messages.

:class:`Waiting` has a heap by offset of the ranges that may go out now, and a heap by time of paused
ranges. :class:`Aside` stores the poison. Acknowledgements change neither: acknowledged offsets are
skipped when their turn comes.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from typing import NamedTuple

from danube.dispatch.cursor import Cursor
from danube.dispatch.failures import DeliveryHistory
from danube.dispatch.spans import Poisoned

__all__ = ["Aside", "Redelivery", "Waiting"]


class Redelivery(NamedTuple):
    """A range that must be delivered again. Compares by its start."""

    start: int
    end: int
    history: DeliveryHistory
    avoid: int | None
    """A consumer to avoid if possible: the one that had it last."""
    since: float
    """Time when it was returned."""
    delay_s: float | None
    """The requested pause; None: the policy's."""


class Waiting:
    """The ranges that must be delivered again."""

    __slots__ = ("_cursor", "paused", "ready")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.ready: list[Redelivery] = []
        """Heap by offset. Other objects may check whether it is empty; some ranges may be acknowledged by now."""
        self.paused: list[tuple[float, Redelivery]] = []
        """Heap by due time; likewise."""

    def __len__(self) -> int:
        """Return the number of ranges; some may be acknowledged by now."""
        return len(self.ready) + len(self.paused)

    def add(self, item: Redelivery, due: float, now: float) -> None:
        """Add a range that may be redelivered from ``due`` on."""
        if due <= now:
            heapq.heappush(self.ready, item)
        else:
            heapq.heappush(self.paused, (due, item))

    def promote(self, now: float) -> None:
        """Move ranges due by now to the ready ones."""
        while self.paused and self.paused[0][0] <= now:
            heapq.heappush(self.ready, heapq.heappop(self.paused)[1])

    def peek(self) -> Redelivery | None:
        """Return the lowest ready range, from its first unacknowledged offset on; None if there is none."""
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

    def take_paused(self) -> list[Redelivery]:
        """Remove paused ranges and return their unacknowledged parts, for new pauses under a new policy."""
        items = [item for _, item in self.paused]
        self.paused.clear()
        return _live(self._cursor, items)

    def take_ready(self) -> list[Redelivery]:
        """Remove ready ranges and return their unacknowledged parts."""
        items = sorted(self.ready)
        self.ready.clear()
        return _live(self._cursor, items)

    def repeated(self) -> list[Redelivery]:
        """Return the unacknowledged parts of all ranges that were delivered before."""
        items = [*self.ready, *(item for _, item in self.paused)]
        return _live(self._cursor, [item for item in items if item.history.attempt > 1])

    def at(self, offset: int) -> tuple[Redelivery, float | None] | None:
        """Return the range that an unacknowledged offset waits in, and the end of its pause. Iterates over all."""
        for item in self.ready:
            if item.start <= offset < item.end:
                return item, None
        return next(((item, due) for due, item in self.paused if item.start <= offset < item.end), None)

    def next_due(self) -> float | None:
        """Return when the next pause is over; acknowledged ranges are dropped first."""
        paused = self.paused
        while paused and not self._cursor.live(paused[0][1].start, paused[0][1].end):
            heapq.heappop(paused)
        return paused[0][0] if paused else None

    def messages(self) -> int:
        """Return the number of waiting unacknowledged offsets. Iterates over all ranges: for descriptions only."""
        return _count(self._cursor, [*self.ready, *(item for _, item in self.paused)])

    def clear(self) -> None:
        """Remove all ranges (after a seek)."""
        self.ready.clear()
        self.paused.clear()


class Aside:
    """The ranges that have failed too often: they block, or wait to be copied."""

    __slots__ = ("_cursor", "items")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.items: list[Redelivery] = []
        """Ordered by offset. Other objects may check whether it is empty; some ranges may be acknowledged by now."""

    def __len__(self) -> int:
        """Return the number of ranges; some may be acknowledged by now."""
        return len(self.items)

    def add(self, item: Redelivery) -> None:
        """Set a range aside."""
        insort(self.items, item)

    def first(self) -> Redelivery | None:
        """Return the lowest range with an unacknowledged offset; None if there is none."""
        items = self.items
        gone = 0
        while gone < len(items) and not self._cursor.live(items[gone].start, items[gone].end):
            gone += 1
        del items[:gone]
        return items[0] if items else None

    def poisoned(self, limit: int) -> list[Poisoned]:
        """Return the lowest ``limit`` unacknowledged ranges."""
        found: list[Poisoned] = []
        if self.first() is not None:
            for start, end, history in self._parts():
                if len(found) >= limit:
                    break
                found.append(Poisoned(start, end, history.attempt - 1, history.failures, history.reason))
        return found

    def _parts(self) -> Iterator[tuple[int, int, DeliveryHistory]]:
        for item in self.items:
            for start, end in self._cursor.live(item.start, item.end):
                yield start, end, item.history

    def at(self, offset: int) -> Redelivery | None:
        """Return the range of an unacknowledged offset; None if it is not set aside."""
        return next((item for item in self.items if item.start <= offset < item.end), None)

    def parts(self) -> list[Redelivery]:
        """Return the unacknowledged parts of all ranges."""
        return _live(self._cursor, self.items)

    def take(self) -> list[Redelivery]:
        """Remove all ranges and return their unacknowledged parts."""
        items, self.items = self.items, []
        return _live(self._cursor, items)

    def messages(self) -> int:
        """Return the number of unacknowledged offsets."""
        return _count(self._cursor, self.items)

    def clear(self) -> None:
        """Remove all ranges (after a seek)."""
        self.items.clear()


def _live(cursor: Cursor, items: list[Redelivery]) -> list[Redelivery]:
    return [item._replace(start=start, end=end) for item in items for start, end in cursor.live(item.start, item.end)]


def _count(cursor: Cursor, items: list[Redelivery]) -> int:
    return sum(end - start for item in items for start, end in cursor.live(item.start, item.end))
