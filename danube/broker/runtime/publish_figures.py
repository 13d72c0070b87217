"""What a broker counts of publishing, all topics together. Pure."""

from __future__ import annotations

from collections.abc import Callable

from danube.metrics.histogram import Histogram
from danube.model import Durability

__all__ = ["PublishFigures"]


class PublishFigures:
    """What all intakes of a broker count.

    Args:
        clock_us: the wall clock.

    Attributes:
        durations: from the arrival of a batch to its durability, in seconds, by the durability of topics that store
            messages, and were served.
        duplicates: messages that a producer has repeated.
        paused_s: how long batches have waited, by what they have waited for.
        now_us: the wall clock when a group of batches began to settle.
    """

    __slots__ = ("_clock_us", "duplicates", "durations", "now_us", "paused_s")

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self.durations: dict[Durability, Histogram] = {}
        self.duplicates = 0
        self.paused_s = {"journal": 0.0, "publish_rate": 0.0, "namespace_rate": 0.0}
        self.now_us = 0

    def durations_of(self, durability: Durability) -> Histogram:
        """Return the histogram of a durability."""
        return self.durations.setdefault(durability, Histogram())

    def settling(self) -> None:
        """A group of entries begins to settle: one reading of the clock serves all of them."""
        self.now_us = self._clock_us()
