"""When the wall clock is set: by a person, or by the first answer of a time server.

A delivery time is a time of the wall clock; what waits for it waits by the monotonic one, which nobody sets. The two
are compared whenever a delayed batch is met, and once a second while some wait, because a clock that is set tells
nobody. A step moves all that waits by as much, so a message that was met while the clock was wrong is not late, or
early, by that for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

import trio

__all__ = ["ClockSteps", "Waiting"]

_log = logging.getLogger("danube.broker")

_LOOK_S: Final = 1.0
_STEP_S: Final = 0.05
"""What two clocks may differ by; slow drift adds up to this before it is taken for a step."""


class Waiting(Protocol):
    """What has messages that wait for a time of the wall clock."""

    def clock_stepped(self, by_s: float) -> None:
        """The wall clock is ``by_s`` further than it would be."""
        ...

    def waits_for_time(self) -> bool:
        """Whether something still waits."""
        ...


class ClockSteps:
    """See the module.

    Args:
        wall_clock_us: the seam.
    """

    def __init__(self, wall_clock_us: Callable[[], int]) -> None:
        self._clock_us = wall_clock_us
        self._ahead_us: float | None = None
        """What the wall clock is ahead of the monotonic one, as last seen."""
        self._waiting: dict[Waiting, None] = {}
        self._begun = trio.Event()

    def now_us(self, waiting: Waiting) -> int:
        """Return the time for what is going to wait for one; what waits already is moved first if it was set."""
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
            _log.warning("the wall clock was set by %+.3f s; messages that wait for a time follow it", step_s)
            for waiting in list(self._waiting):
                waiting.clock_stepped(step_s)
        return now_us

    async def run(self) -> None:
        """Compare the clocks while something waits, until cancelled."""
        while True:
            await self._begun.wait()
            self._begun = trio.Event()
            while self._waiting:
                await trio.sleep(_LOOK_S)
                self._look()
                for waiting in [each for each in self._waiting if not each.waits_for_time()]:
                    del self._waiting[waiting]
