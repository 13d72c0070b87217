"""Waiting for what must come to its end: an entry of a journal (a session, a change), or work in several steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from danube.log import Entry
from danube.model.errors import DanubeError

__all__ = ["Settling", "to_the_end"]


async def to_the_end(nursery: trio.Nursery, work: Callable[[], Awaitable[None]]) -> None:
    """Do something in the broker's own nursery: it goes on when whoever waits for it goes away.

    Raises what ``work`` raises, if that is a DanubeError or an OSError; anything else ends the broker.
    """
    done = trio.Event()
    failure: list[DanubeError | OSError] = []

    async def run() -> None:
        try:
            await work()
        except (DanubeError, OSError) as error:
            failure.append(error)
        finally:
            done.set()

    nursery.start_soon(run)
    await done.wait()
    if failure:
        raise failure[0]


class Settling:
    """The owner of such an entry.

    Args:
        then: called when the entry has become durable, whether or not anybody still waits.
        patient: whether to go on waiting for a storage that does not answer, as long as it takes.
    """

    __slots__ = ("_done", "_error", "_patient", "_then")

    def __init__(self, then: Callable[[], None] | None = None, *, patient: bool = False) -> None:
        self._done = trio.Event()
        self._error: DanubeError | None = None
        self._then = then
        self._patient = patient

    def settled(self, _entry: Entry, error: DanubeError | None) -> None:
        """Journal: the entry is durable, or the journal has failed."""
        if error is None and self._then is not None:
            self._then()
        self._error = error
        self._done.set()

    def stalled(self, _entry: Entry, error: DanubeError) -> None:
        """Journal: the entry waits for its storage, and may still become durable."""
        if not self._patient:
            self._error = error
            self._done.set()

    async def wait(self) -> None:
        """Return when the entry is durable; raise if it is not, or not soon."""
        await self._done.wait()
        if self._error is not None:
            raise type(self._error)(self._error.message)
