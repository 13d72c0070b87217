"""A histogram with fixed buckets: one binary search and two additions for each observation. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["COUNT_BOUNDS", "DURATION_BOUNDS_S", "Histogram"]

DURATION_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0
)  # fmt: skip
"""Upper bounds of the buckets of durations, in seconds: from 100 µs to 10 s."""
COUNT_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Upper bounds of the buckets of numbers of things."""


class Histogram:
    """Counts observations by size.

    Args:
        bounds: upper bounds of the buckets, ascending, without infinity; an observation equal to a bound is within it.

    Attributes:
        counts: observations by bucket, not cumulative; the last bucket is that of all larger ones.
        total: the sum of all observations.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {sum(self.counts)} observations, total {self.total:g}>"

    def observe(self, value: float) -> None:
        """Count an observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the observations of another histogram with the same bounds."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self) -> Iterator[int]:
        """Yield for each bound how many observations are at most that large; last, the number of all."""
        seen = 0
        for count in self.counts:
            seen += count
            yield seen
