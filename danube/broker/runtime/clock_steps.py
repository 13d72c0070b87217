"""Detects steps of the wall clock, set by a person or by the first answer of a time server, and corrects waits.

A delivery time is a time of the wall clock; waiting for it uses the monotonic clock, which is never set. The two are
compared whenever a delayed batch is encountered, and once a second while some wait, because setting a clock notifies no
process. A step shifts all waiting deliveries by the same amount, so a message that arrived while the clock was wrong is
not permanently late, or early, by that difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

import trio

from danube.model.log_events import log_event

__all__ = ["ClockSteps", "Waiting"]

_log = logging.getLogger("danube.broker")

_LOOK_S: Final = 1.0
_STEP_S: Final = 0.05
"""Tolerated difference of the two clocks; slow drift accumulates to this before it counts as a step."""


class Waiting(Protocol):
    """An object with messages that wait for a time of the wall clock."""

    def clock_stepped(self, by_s: float) -> None:
        """Handle a step: the wall clock is ``by_s`` further than it would be."""
        ...

    def waits_for_time(self) -> bool:
        """Return whether messages still wait."""
        ...


class ClockSteps:
    """Compares the wall clock with the monotonic one while deliveries wait; see the module.

    Args:
        wall_clock_us: the wall clock, a seam.
    """

    def __init__(self, wall_clock_us: Callable[[], int]) -> None:
        self._clock_us = wall_clock_us
        self._ahead_us: float | None = None
        """How far the wall clock is ahead of the monotonic one, as last observed."""
        self._waiting: dict[Waiting, None] = {}
        self._begun = trio.Event()

    def now_us(self, waiting: Waiting) -> int:
        """Return the time and register ``waiting``; registered waits are shifted first if the clock was set."""
        now_us = self._look()
        if waiting not in self._waiting:
            self._waiting[waiting] = None
            self._begun.set()
        return now_us

    def _look(self) -> int:
        now_us = self._clock_us()
        ahead_us = now_us - trio.current_time() * 1e6
        if self._ahead_us is None or not self._waiting:
            self._ahead_us = ahead_us
            return now_us
        step_s = (ahead_us - self._ahead_us) / 1e6
        if abs(step_s) >= _STEP_S:
            self._ahead_us = ahead_us
            _log.warning(
                "the wall clock was set by %+.3f s; the waits of delayed messages are adjusted",
                step_s,
                extra=log_event("clock.stepped"),
            )
            for waiting in list(self._waiting):
                waiting.clock_stepped(step_s)
        return now_us

    async def run(self) -> None:
        """Compare the clocks while messages wait, until cancelled."""
        while True:
            await self._begun.wait()
            self._begun = trio.Event()
            while self._waiting:
                await trio.sleep(_LOOK_S)
                self._look()
                for waiting in [each for each in self._waiting if not each.waits_for_time()]:
                    del self._waiting[waiting]
