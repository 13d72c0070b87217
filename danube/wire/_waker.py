"""Wakes one sleeping task, under Trio or asyncio."""

from __future__ import annotations

import anyio
import trio

from danube.loop import Waker

__all__ = ["EventWaker", "new_waker"]


class EventWaker:
    """A :class:`~danube.loop.Waker` under asyncio."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    async def wait(self) -> None:
        """Sleep until :meth:`wake`. A checkpoint; cancellation is safe."""
        event = self._event = anyio.Event()
        await event.wait()

    def wake(self) -> None:
        """Wake the sleeper in the next turn of the loop."""
        event = self._event
        if event is not None:
            self._event = None
            event.set()


def new_waker() -> Waker | EventWaker:
    """Return a waker for the running event loop."""
    return Waker() if trio.lowlevel.in_trio_run() else EventWaker()
