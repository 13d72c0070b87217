"""Strikes between any two lines of a procedure of the product: when its tasks have been resumed a number of times.

An ambush is an instrument of Trio. While it lies in wait it looks at each task that is about to go on, on any machine,
and counts those that are inside of one of the functions it waits for: so each ``await`` of them, at any depth, is a
place where it may strike, without any seam in the product. It strikes in the same pass of the scheduler, before or
after the other tasks of that pass, or in the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from danube.testing.simulation._scheduler import MACHINE

__all__ = ["Ambush", "is_inside"]


class Ambush(trio.abc.Instrument):
    """See the module. Add it with ``trio.lowlevel.add_instrument``, and call :meth:`end` in any case.

    Args:
        functions: what it waits for: beginnings of qualified names, such as ``_Move.`` for all methods of that class.
        machine: counts tasks of this machine only; empty: of any.
        steps: it strikes when they are resumed for this time, from 1 on.
        strike: called once, with the machine of the task. It must not block, and may start tasks.
    """

    def __init__(self, functions: tuple[str, ...], machine: str, steps: int, strike: Callable[[str], None]) -> None:
        self._functions = functions
        self._machine = machine
        self._left = steps
        self._strike = strike
        self._is_over = False
        self.sprung = trio.Event()
        """Set when it has struck."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Trio: a task is about to go on."""
        if not self._left:
            return
        machine = task.context.get(MACHINE, "")
        if (self._machine and machine != self._machine) or not is_inside(task.coro, self._functions):
            return
        self._left -= 1
        if not self._left:
            self.sprung.set()
            self._strike(machine)

    def end(self) -> None:
        """Lie in wait no more."""
        if not self._is_over:
            self._is_over = True
            trio.lowlevel.remove_instrument(self)


def is_inside(coroutine: Any, functions: tuple[str, ...]) -> bool:
    """Whether a suspended coroutine is inside of one of these functions: itself, or what it waits for."""
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None)
        if code is not None and code.co_qualname.startswith(functions):
            return True
        coroutine = getattr(coroutine, "cr_await", None)
    return False
