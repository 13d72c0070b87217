"""Waits until one journal entry has settled: a session, or a change of a topic or subscription."""

from __future__ import annotations

from collections.abc import Callable

import trio

from danube.log.format import Entry
from danube.model.errors import DanubeError

__all__ = ["Settling"]


class Settling:
    """The owner of an entry that one task waits for.

    Args:
        then: called when the entry has become durable, even if no task waits for it any more.
        patient: whether to wait without limit for a storage that does not answer.
    """

    __slots__ = ("_done", "_error", "_patient", "_then")

    def __init__(self, then: Callable[[], None] | None = None, *, patient: bool = False) -> None:
        self._done = trio.Event()
        self._error: DanubeError | None = None
        self._then = then
        self._patient = patient

    def settled(self, _entry: Entry, error: DanubeError | None) -> None:
        """Called by the journal: the entry is durable, or the journal has failed."""
        if error is None and self._then is not None:
            self._then()
        self._error = error
        self._done.set()

    def stalled(self, _entry: Entry, error: DanubeError) -> None:
        """Called by the journal: the entry waits for its storage, and may still become durable."""
        if not self._patient:
            self._error = error
            self._done.set()

    async def wait(self) -> None:
        """Return when the entry is durable; raise if it fails or takes too long."""
        await self._done.wait()
        if self._error is not None:
            raise type(self._error)(self._error.message)
