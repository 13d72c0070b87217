"""Wakes one sleeping task of Trio: cheaper than an Event, which must be created for each sleep."""

from __future__ import annotations

import trio
from trio.lowlevel import Abort, RaiseCancelT, Task

__all__ = ["Waker"]


class Waker:
    """At most one task waits; :meth:`wake` is synchronous and does nothing if none does.

    The awaited condition is stored by the caller: set it, then wake; check it, then wait.
    """

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: Task | None = None

    async def wait(self) -> None:
        """Sleep until :meth:`wake`. A checkpoint; cancellation is safe."""
        if self._task is not None:
            raise trio.BusyResourceError("another task waits on this waker already")
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: RaiseCancelT) -> Abort:
        self._task = None
        return Abort.SUCCEEDED

    def wake(self) -> None:
        """Wake the sleeper in this or the next turn of the loop."""
        task = self._task
        if task is not None:
            self._task = None
            trio.lowlevel.reschedule(task)
