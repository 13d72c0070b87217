"""Sets of offsets as sorted, disjoint, half-open ranges ``[start, end)``.

Acknowledgements, live offsets of a delivery and gaps are all such sets. Most have one or two ranges, so a plain sorted
list is faster than more complex structures; operations are O(log n) to find and O(n) to insert.
On the wire and in the journal a set is the flat list ``[start, end, start, end, ...]``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from danube.model.errors import InvalidArgumentError

__all__ = ["RangeSet", "check_flat"]


def check_flat(flat: Sequence[int], what: str) -> None:
    """Check a flat list from the wire: even length, ``0 <= start < end``, sorted and disjoint.

    Raises:
        InvalidArgumentError: naming ``what``.
    """
    previous = 0
    if len(flat) % 2:
        raise InvalidArgumentError(f"{what}: a list of ranges needs pairs of start and end, got {len(flat)} numbers")
    for index in range(0, len(flat), 2):
        start, end = flat[index], flat[index + 1]
        if start < previous or end <= start:
            raise InvalidArgumentError(f"{what}: ranges must be sorted, disjoint and not empty, got [{start}, {end})")
        previous = end


class RangeSet:
    """A mutable set of integers kept as ranges. Iterates over ``(start, end)`` pairs in order."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in pairs:
            self.add(start, end)

    @classmethod
    def from_flat(cls, flat: Sequence[int]) -> RangeSet:
        """Build a set from ``[start, end, start, end, ...]`` in any order."""
        return cls(zip(flat[::2], flat[1::2], strict=True))

    def to_flat(self) -> list[int]:
        """Return ``[start, end, start, end, ...]``."""
        return [number for pair in self for number in pair]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges (not of members; see :meth:`count`)."""
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "RangeSet(" + ", ".join(f"[{start}, {end})" for start, end in self) + ")"

    def count(self) -> int:
        """Return the number of members."""
        return sum(self._ends) - sum(self._starts)

    def first(self) -> tuple[int, int]:
        """Return the lowest range; the set must not be empty."""
        return self._starts[0], self._ends[0]

    def copy(self) -> RangeSet:
        """Return an independent copy."""
        other = RangeSet()
        other._starts = self._starts.copy()
        other._ends = self._ends.copy()
        return other

    def clear(self) -> None:
        """Remove everything."""
        self._starts.clear()
        self._ends.clear()

    def add(self, start: int, end: int) -> None:
        """Add ``[start, end)``; touching ranges merge."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if not ends or start > ends[-1]:  # appending in order is the common case
            starts.append(start)
            ends.append(end)
            return
        low = bisect_left(ends, start)
        high = bisect_right(starts, end)
        if low < high:
            start = min(start, starts[low])
            end = max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]

    def remove(self, start: int, end: int) -> None:
        """Remove ``[start, end)``, or the part of it that is in the set."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, start)
        high = bisect_left(starts, end)
        if low >= high:
            return
        kept_starts: list[int] = []
        kept_ends: list[int] = []
        if starts[low] < start:
            kept_starts.append(starts[low])
            kept_ends.append(start)
        if ends[high - 1] > end:
            kept_starts.append(end)
            kept_ends.append(ends[high - 1])
        starts[low:high] = kept_starts
        ends[low:high] = kept_ends

    def pop_front(self, start: int) -> int:
        """If the lowest range begins at or below ``start``, remove it and return its end, else return ``start``.

        A cursor uses this to move its floor over acknowledged offsets above it.
        """
        while self._starts and self._starts[0] <= start:
            start = max(start, self._ends.pop(0))
            del self._starts[0]
        return start

    def overlap(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the intersection of this set with ``[start, end)``."""
        for index in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[index] >= end:
                return
            yield max(start, self._starts[index]), min(end, self._ends[index])

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``[start, end)`` that are not in this set."""
        for low, high in self.overlap(start, end):
            if low > start:
                yield start, low
            start = high
        if start < end:
            yield start, end
