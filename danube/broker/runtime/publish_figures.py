"""What a broker counts of publishing, all topics together, and how long it took in the last minute. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from danube.metrics.histogram import DURATION_BOUNDS_S, Histogram, Recent
from danube.model import Durability

__all__ = ["Durations", "Latencies", "PublishFigures"]


class PublishFigures:
    """What all intakes of a broker count.

    Args:
        clock_us: the wall clock.

    Attributes:
        durations: from the arrival of a batch to its durability, in seconds, by the durability of topics that store
            messages, and were served.
        duplicates: messages that a producer has repeated.
        mismatches: messages that were taken though they name no schema of their topic's subject.
        paused_s: how long batches have waited, by what they have waited for.
        now_us: the wall clock when a group of batches began to settle.
    """

    __slots__ = ("_clock_us", "duplicates", "durations", "mismatches", "now_us", "paused_s")

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self.durations: dict[Durability, Histogram] = {}
        self.duplicates = self.mismatches = 0
        self.paused_s = {"journal": 0.0, "publish_rate": 0.0, "namespace_rate": 0.0, "move": 0.0}
        self.now_us = 0

    def durations_of(self, durability: Durability) -> Histogram:
        """Return the histogram of a durability."""
        return self.durations.setdefault(durability, Histogram())

    def settling(self) -> None:
        """A group of entries begins to settle: one reading of the clock serves all of them."""
        self.now_us = self._clock_us()


class Durations(NamedTuple):
    """Seconds within which half of the last minute's, and 99 of 100 of them, were done; below 0: there were none."""

    p50_s: float
    p99_s: float


class Latencies:
    """How long publishing and syncs took in the last minute, from the histograms that the broker keeps anyway.

    Args:
        publishes: returns the histograms of the durations of publishing, by durability; together they count.
        syncs: returns that of the durations of the journal's syncs.
    """

    def __init__(self, publishes: Callable[[], Iterable[Histogram]], syncs: Callable[[], Histogram]) -> None:
        self._publishes = publishes
        self._syncs = syncs
        self._recent_publishes, self._recent_syncs = Recent(), Recent()

    def beat(self, now_s: float) -> None:
        """Keep the counts of now, if it is time: called twice a second, it does so each ten seconds."""
        if self._recent_publishes.is_due(now_s):
            self._recent_publishes.keep(self._published(), now_s)
            self._recent_syncs.keep(self._syncs().counts, now_s)

    def publishes(self) -> Durations:
        """Return how long batches took from their arrival to their durability."""
        return Durations(*self._recent_publishes.quantiles(self._published(), 0.5, 0.99))

    def syncs(self) -> Durations:
        """Return how long syncs of the journal took."""
        return Durations(*self._recent_syncs.quantiles(self._syncs().counts, 0.5, 0.99))

    def _published(self) -> list[int]:
        counts = [0] * (len(DURATION_BOUNDS_S) + 1)
        for each in self._publishes():
            counts = [mine + more for mine, more in zip(counts, each.counts, strict=True)]
        return counts
