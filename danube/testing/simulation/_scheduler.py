"""Runs Trio with virtual time and a seeded scheduler, so that the same seed reproduces the same run.

Trio shuffles the tasks of each pass of its loop, which helps to find races but not to reproduce them. It
has a private switch for tests that seeds the shuffle; it was made for Hypothesis, and
Trio's own tests cover it. :func:`check_trio` raises a clear error if a new Trio has moved it.

Further conditions for a reproducible run: no threads, no real clock or randomness, no order that depends on addresses
in memory (sets of objects), ``PYTHONHASHSEED`` fixed (sets of strings), and no running garbage collector, because it
decides when abandoned generators are closed. :func:`run_seeded` ensures the last one; the meta-test checks all.
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
"""The simulated machine that a task runs on. Inherited from the parent task."""


class _RunQueue(deque[trio.lowlevel.Task]):
    """Trio's queue of runnable tasks, in which those of paused machines are set aside."""

    def __init__(self, paused: dict[str, list[trio.lowlevel.Task]]) -> None:
        super().__init__()
        self._paused = paused

    def append(self, task: trio.lowlevel.Task) -> None:
        """Add a runnable task."""
        if self._paused:
            aside = self._paused.get(task.context.get(MACHINE, ""))
            if aside is not None:
                aside.append(task)
                return
        super().append(task)


class Pauses:
    """Stops and resumes all tasks of a machine, as SIGSTOP and SIGCONT do; its events are delayed until it resumes.

    Timeouts that end in the meantime have ended when it resumes. Create it inside the run.
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
        """Resume a machine; does nothing if it is not stopped."""
        for task in self._paused.pop(machine, ()):
            trio_run.GLOBAL_RUN_CONTEXT.runner.runq.append(task)


def check_trio() -> None:
    """Raise InternalError if this version of Trio lacks the switch required by the simulation."""
    flag = getattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", None)
    queue = getattr(getattr(trio_run, "Runner", None), "runq", None)
    if not isinstance(flag, bool) or not isinstance(getattr(trio_run, "_r", None), Random) or queue is None:
        raise InternalError(
            f"Trio {trio.__version__} has no _core._run._ALLOW_DETERMINISTIC_SCHEDULING, no _r or no Runner.runq any"
            " more; the simulation needs a version that has them (0.30 to 0.35 do)"
        )


def run_seeded(main: Callable[[], Awaitable[T]], seed: int) -> T:
    """Run ``main`` under Trio, with virtual time from 0 and a scheduler seeded with ``seed``.

    Time jumps when all tasks wait. All changed settings of Trio are restored at the end.
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
