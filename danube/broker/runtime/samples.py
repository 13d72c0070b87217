"""The last minute of a broker in samples: traffic and the lag of its loop. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

__all__ = ["SAMPLE_S", "Samples", "Traffic"]

SAMPLE_S: Final = 0.5
"""Pause between samples."""
_KEPT: Final = 120
_RATE_SAMPLES: Final = 20
"""Rates are means over as many pauses: ten seconds."""


class Traffic(NamedTuple):
    """Bytes in both directions: since the start, or per second."""

    received: float
    sent: float


class _Sample(NamedTuple):
    at: float
    received: int
    sent: int
    lag_s: float


class Samples:
    """A ring of samples."""

    def __init__(self) -> None:
        self._ring: deque[_Sample] = deque(maxlen=_KEPT)

    def add(self, at: float, received: int, sent: int, lag_s: float) -> None:
        """Add a sample.

        Args:
            at: the time, in seconds.
            received: bytes since the start.
            sent: the same, in the other direction.
            lag_s: by how much the timer of this sample was late.
        """
        self._ring.append(_Sample(at, received, sent, lag_s))

    def rates(self, at: float, received: int, sent: int) -> Traffic:
        """Return the mean rates of the last seconds, given the present numbers; 0 without a sample."""
        if not self._ring:
            return Traffic(0.0, 0.0)
        first = self._ring[max(0, len(self._ring) - _RATE_SAMPLES)]
        if at <= first.at:
            return Traffic(0.0, 0.0)
        return Traffic((received - first.received) / (at - first.at), (sent - first.sent) / (at - first.at))

    def lag_s(self) -> float | None:
        """Return by how much timers were late, for 99 of 100 samples of the last minute; None without a sample."""
        if not self._ring:
            return None
        lags = sorted(sample.lag_s for sample in self._ring)
        return lags[math.ceil(0.99 * len(lags)) - 1]
