"""Trio with virtual time and a seeded scheduler: the same seed makes the same run.

Trio shuffles the tasks of each pass of its loop, which is good for finding races and bad for finding them again. It
has a private switch for tests that makes the shuffle follow a known source of chance; it was made for Hypothesis, and
Trio's own tests guard it. :func:`check_trio` says clearly if a new Trio has moved it.

What else must hold for a run to repeat: no threads, no real clock or randomness, no order that comes from addresses in
memory (sets of objects), ``PYTHONHASHSEED`` fixed (sets of texts), and no garbage collector at work, because it decides
when abandoned generators are closed. :func:`run_seeded` looks after the last one; the meta-test looks after all.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from random import Random
from typing import TypeVar

import trio
from trio._core import _run as trio_run

from danube.model.errors import InternalError
from danube.testing.clock import SimulatedClock

__all__ = ["MACHINE", "Pauses", "check_trio", "run_seeded"]

T = TypeVar("T")

MACHINE: ContextVar[str] = ContextVar("MACHINE", default="")
"""The simulated machine that a task runs on. Tasks inherit it from those that start them."""


class _RunQueue(deque[trio.lowlevel.Task]):
    """Trio's queue of tasks that can run, in which those of paused machines are set aside."""

    def __init__(self, paused: dict[str, list[trio.lowlevel.Task]]) -> None:
        super().__init__()
        self._paused = paused

    def append(self, task: trio.lowlevel.Task) -> None:
        """Take a task that can run."""
        if self._paused:
            aside = self._paused.get(task.context.get(MACHINE, ""))
            if aside is not None:
                aside.append(task)
                return
        super().append(task)


class Pauses:
    """Stops all tasks of a machine and lets them go on, as SIGSTOP and SIGCONT do; what happens to it meanwhile waits.

    Timeouts that run out meanwhile have run out when it goes on. Make it inside the run.
    """

    def __init__(self) -> None:
        self._paused: dict[str, list[trio.lowlevel.Task]] = {}
        runner = trio_run.GLOBAL_RUN_CONTEXT.runner
        queue = _RunQueue(self._paused)
        queue.extend(runner.runq)
        runner.runq = queue

    def pause(self, machine: str) -> None:
        """Stop a machine from the next pass of the scheduler on."""
        if machine not in self._paused:
            queue = trio_run.GLOBAL_RUN_CONTEXT.runner.runq
            mine = [task for task in queue if task.context.get(MACHINE, "") == machine]
            for task in mine:
                queue.remove(task)
            self._paused[machine] = mine

    def resume(self, machine: str) -> None:
        """Let it go on; does nothing if it is not stopped."""
        for task in self._paused.pop(machine, ()):
            trio_run.GLOBAL_RUN_CONTEXT.runner.runq.append(task)


def check_trio() -> None:
    """Raise InternalError if this Trio does not have the switch that the simulation is built on."""
    flag = getattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", None)
    queue = getattr(getattr(trio_run, "Runner", None), "runq", None)
    if not isinstance(flag, bool) or not isinstance(getattr(trio_run, "_r", None), Random) or queue is None:
        raise InternalError(
            f"Trio {trio.__version__} has no _core._run._ALLOW_DETERMINISTIC_SCHEDULING, no _r or no Runner.runq any"
            " more; the simulation needs a version that has them (0.30 to 0.35 do)"
        )


def run_seeded(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Run ``main`` under Trio, with virtual time from 0 and a scheduler that obeys ``seed``.

    Time jumps when everybody waits. Everything that Trio was set to before is set back at the end.
    """
    check_trio()
    before = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r.getstate()
    collecting = gc.isenabled()
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(f"scheduler {seed}")
    gc.collect()
    gc.disable()
    try:
        return trio.run(main, clock=SimulatedClock())
    finally:
        if collecting:
            gc.enable()
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = before[0]  # type: ignore[misc]
        trio_run._r.setstate(before[1])
