"""Statistics for the tables: medians, spreads, percentiles."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Summary", "percentile", "summarise"]


class Summary(msgspec.Struct, frozen=True):
    """Median and extremes of some repetitions."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """(high - low) / median; 0 when the median is 0."""
        return (self.high - self.low) / self.median if self.median else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest value that at least ``percent`` % of the values do not exceed.

    Raises:
        ValueError: there are no values, or ``percent`` is not within 0..100.
    """
    if not values:
        raise ValueError("no values to take a percentile of")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is not a percentage")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # ceiling
    return ordered[max(0, int(rank) - 1)]


def summarise(values: Sequence[float]) -> Summary:
    """Median (the mean of the middle two when their number is even), lowest and highest.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to summarise")
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Summary(median, ordered[0], ordered[-1])
