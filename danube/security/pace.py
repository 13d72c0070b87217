"""Rates with bursts. Pure; the caller passes the time, of a clock that never steps back.

The state of a rate is one number, the time at which everything taken so far is paid (GCRA). A burst of ``n`` may be
taken at once; then it refills at the rate.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Pace"]

_MARGIN_S: Final = 1e-6


class Pace:
    """How much may be taken per second, and how much at once.

    Args:
        per_s: the rate; 0: no limit.
        burst: how much may be taken at once after a pause.
    """

    __slots__ = ("_cost_s", "_span_s")

    def __init__(self, per_s: float, burst: float) -> None:
        self._cost_s = 1 / per_s if per_s else 0.0
        # A sum of many costs is not exact; without the margin, the last one of a burst could be refused.
        self._span_s = burst * self._cost_s + _MARGIN_S

    def allowed_at(self, paid_at: float) -> float:
        """Return when something more may be taken: at once, if that is not later than now."""
        return paid_at - self._span_s + self._cost_s if self._cost_s else -math.inf

    def take(self, paid_at: float, amount: float, now: float) -> float:
        """Return the state after taking an amount; more may be taken than is there, which delays the next ones."""
        return max(paid_at, now) + amount * self._cost_s
