"""Virtual time: it stands still while anybody can run, and jumps to what is next when nobody can.

Trio's ``MockClock`` does the same for deadlines. This clock also has *timers*, plain functions that it calls when their
time has come: bytes that arrive, disks that have written. A timer that wakes a task costs a fifth of a cancel scope
with a deadline, and simulated worlds do little else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import trio
from trio.lowlevel import Abort, RaiseCancelT

__all__ = ["SimulatedClock", "Timer", "simulated_clock", "sleep"]


class Timer:
    """A function that will be called, unless it is cancelled before; made by :meth:`SimulatedClock.call_at`."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] = call

    def cancel(self) -> None:
        """Do not call it."""
        self.call = _nothing


def _nothing() -> None:
    """What a cancelled timer does."""


class SimulatedClock(trio.abc.Clock):
    """See the module. Give it to ``trio.run``; seconds from 0."""

    def __init__(self) -> None:
        self.now: float = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._number = 0

    def start_clock(self) -> None:
        """Nothing to do."""

    def current_time(self) -> float:
        """Return the virtual time."""
        return self.now

    def call_at(self, time_s: float, call: Callable[[], None]) -> Timer:
        """Call a function at a time, between two passes of the scheduler; it must not raise or wait.

        What is due at the same time is called in the order of its coming here.
        """
        timer = Timer(call)
        self._number += 1
        heappush(self._timers, (time_s, self._number, timer))
        return timer

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Trio asks for this when nobody can run: go on to the deadline, or to the next timer if that is earlier."""
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
