"""Waiting for one entry of a journal: a session, or a change of a topic or subscription."""

from __future__ import annotations

from collections.abc import Callable

import trio

from danube.log.format import Entry
from danube.model.errors import DanubeError

__all__ = ["Settling"]


class Settling:
    """The owner of an entry that one task waits for.

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
