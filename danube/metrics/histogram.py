"""A histogram with fixed buckets: one binary search and two additions for each observation. Pure.

It counts since the start of the broker, so its quantiles hide what happens now. :class:`Recent` keeps a few former
states of its counts, and tells those of the last minute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

__all__ = ["COUNT_BOUNDS", "DURATION_BOUNDS_S", "KEPT", "PERIOD_S", "Histogram", "Recent", "quantile"]

DURATION_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0
)  # fmt: skip
"""Upper bounds of the buckets of durations, in seconds: from 100 µs to 10 s."""
COUNT_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Upper bounds of the buckets of numbers of things."""
PERIOD_S: Final = 10.0
"""Time between two states that are kept."""
KEPT: Final = 6
"""How many are kept: those of a minute."""


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


class Recent:
    """The last minute of a histogram, or of the sum of several.

    Args:
        bounds: of its buckets.
    """

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self._bounds = bounds
        self._kept: deque[tuple[float, list[int]]] = deque(maxlen=KEPT)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for :meth:`keep`."""
        return not self._kept or now_s - self._kept[-1][0] >= PERIOD_S

    def keep(self, counts: Sequence[int], now_s: float) -> None:
        """Keep the counts of now; a state that is older than a minute is forgotten."""
        self._kept.append((now_s, list(counts)))

    def quantiles(self, counts: Sequence[int], *shares: float) -> list[float]:
        """Return quantiles of what was observed since the oldest state that is kept; -1 if nothing was.

        Args:
            counts: of now.
            shares: 0.99 for that within which 99 of 100 observations are.
        """
        before = self._kept[0][1] if self._kept else [0] * len(counts)
        return [
            quantile(self._bounds, [now - then for now, then in zip(counts, before, strict=True)], each)
            for each in shares
        ]


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """Estimate a quantile of the observations in buckets, linearly within the bucket that it is in; -1: there are none.

    Of the last bucket, which has no end, the answer is the bound that it begins with.
    """
    wanted, below = share * sum(counts), 0
    if wanted <= 0:
        return -1.0
    for number, seen in enumerate(accumulate(counts)):
        if seen >= wanted:
            if number == len(bounds):
                break
            start = bounds[number - 1] if number else 0.0
            return start + (bounds[number] - start) * (wanted - below) / (seen - below)
        below = seen
    return bounds[-1]
