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
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import trio
from trio._core import _run as trio_run

from danube.model.errors import InternalError
from danube.testing.clock import SimulatedClock

__all__ = ["check_trio", "run_seeded"]

T = TypeVar("T")


def check_trio() -> None:
    """Raise InternalError if this Trio does not have the switch that the simulation is built on."""
    flag = getattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", None)
    if not isinstance(flag, bool) or not isinstance(getattr(trio_run, "_r", None), Random):
        raise InternalError(
            f"Trio {trio.__version__} has no _core._run._ALLOW_DETERMINISTIC_SCHEDULING or no _r any more;"
            " the simulation needs a version that has both (0.30 to 0.33 do)"
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
