"""When a member's core is told that time has passed, and when its loop looks at the clock next. Pure.

The core counts in ticks. However long the loop stood still, one tick at most passes at a time: what has arrived
meanwhile is processed before an election is called. A long standstill is reported as a *gap*, because keep-alives may
have waited for the loop.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from danube.metadata.raft.options import NodeOptions

__all__ = ["Pace", "Passed"]


class Passed(NamedTuple):
    """What has become due."""

    ticks: bool
    """Whether a tick has passed."""
    gap_s: float
    """How long the loop stood still, if that was long; otherwise 0."""
    campaigns: bool
    """Whether the wait for a campaign is over."""


_IDLE = Passed(ticks=False, gap_s=0.0, campaigns=False)


class Pace:
    """The clock of a member's loop.

    Args:
        options: ``tick_s``, ``lone_tick_s`` and ``gap_s`` are used.
    """

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._looked_at = 0.0
        self._tick_at = math.inf
        self._campaign_at = math.inf

    def begin(self, now: float, *, alone: bool) -> None:
        """Begin to count, when the loop begins."""
        self._looked_at = now
        self._tick_at = now + self._tick_s(alone=alone)

    def _tick_s(self, *, alone: bool) -> float:
        return self._options.lone_tick_s if alone else self._options.tick_s

    def look(self, now: float, *, alone: bool, idle: bool) -> Passed:
        """Return what has become due since the last look.

        Args:
            now: the present time.
            alone: whether this member is its group's only one: its ticks are longer.
            idle: whether it needs no ticks at all.
        """
        looked_at, self._looked_at = self._looked_at, now
        tick_s = self._tick_s(alone=alone)
        campaigns = now >= self._campaign_at
        if campaigns:
            self._campaign_at = math.inf
        if idle:
            self._tick_at = now + tick_s
        elif now >= self._tick_at:
            gap_s = now - looked_at if now - self._tick_at > self._options.gap_s else 0.0
            self._tick_at += tick_s
            if self._tick_at <= now:
                self._tick_at = now + tick_s
            return Passed(ticks=True, gap_s=gap_s, campaigns=campaigns)
        return _IDLE if not campaigns else Passed(ticks=False, gap_s=0.0, campaigns=True)

    def campaign_at(self, when: float) -> None:
        """Report at a time that a campaign is due."""
        self._campaign_at = when

    @property
    def next_look(self) -> float:
        """When :meth:`look` has news."""
        return min(self._tick_at, self._campaign_at)
