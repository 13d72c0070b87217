"""Virtual time for tests: stands still while any task can run, and jumps to the next deadline when none can.

Trio's ``MockClock`` does the same for deadlines. This clock also has *timers*, plain functions called at their
time: for bytes that arrive, or disks that have written. A timer that wakes a task costs a fifth of a cancel scope
with a deadline, and simulated worlds use them all the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import trio
from trio.lowlevel import Abort, RaiseCancelT

__all__ = ["SimulatedClock", "Timer", "simulated_clock", "sleep"]


class Timer:
    """A function to be called unless cancelled before; created by :meth:`SimulatedClock.call_at`."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] = call

    def cancel(self) -> None:
        """Cancel the call."""
        self.call = _nothing


def _nothing() -> None:
    """Replaces the function of a cancelled timer."""


class SimulatedClock(trio.abc.Clock):
    """A clock with virtual time; see the module. Pass it to ``trio.run``; starts at 0 seconds."""

    def __init__(self) -> None:
        self.now: float = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._number = 0

    def start_clock(self) -> None:
        """Do nothing."""

    def current_time(self) -> float:
        """Return the virtual time."""
        return self.now

    def call_at(self, time_s: float, call: Callable[[], None]) -> Timer:
        """Call a function at a time, between two passes of the scheduler; it must not raise or wait.

        Functions due at the same time are called in the order of these calls.
        """
        timer = Timer(call)
        self._number += 1
        heappush(self._timers, (time_s, self._number, timer))
        return timer

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by Trio when no task can run: advance to the deadline, or to the next timer if that is earlier."""
        timers = self._timers
        if timers and timers[0][0] <= deadline:
            self.now = max(self.now, timers[0][0])
            while timers and timers[0][0] <= self.now:
                heappop(timers)[2].call()
            return 0.0
        if deadline == math.inf:
            return math.inf
        self.now = max(self.now, deadline)
        return 0.0


def simulated_clock() -> SimulatedClock | None:
    """Return the clock of this run if it is a simulated one."""
    clock = trio.lowlevel.current_clock()
    return clock if isinstance(clock, SimulatedClock) else None


async def sleep(seconds: float) -> None:
    """Sleep; the same as ``trio.sleep``, and cheaper under a simulated clock."""
    clock = simulated_clock()
    if clock is None or seconds <= 0:
        await trio.sleep(seconds)
        return
    task = trio.lowlevel.current_task()
    timer = clock.call_at(clock.now + seconds, lambda: trio.lowlevel.reschedule(task))

    def abort(_raise_cancel: RaiseCancelT) -> Abort:
        timer.cancel()
        return Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(abort)
