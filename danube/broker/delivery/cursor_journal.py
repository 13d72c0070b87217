"""Writes the changes of a subscription's cursor to the journal, and waits for them.

Which entries are written, and when, is decided in :mod:`danube.broker.delivery.cursor_entries`.
"""

from __future__ import annotations

import trio

from danube.broker.delivery.cursor_entries import CursorEntries
from danube.broker.delivery.source import Source
from danube.dispatch import Cursor
from danube.model import api
from danube.model.errors import DanubeError

__all__ = ["CursorJournal"]


class CursorJournal(CursorEntries):
    """The cursor entries of one subscription, with the waits for them."""

    def __init__(self, topic: Source, subscription_id: int, cursor: Cursor) -> None:
        super().__init__(topic, subscription_id, cursor)
        self._source = topic

    async def quiet(self) -> None:
        """Wait until no cursor entry is in flight; raise if the last one was lost.

        Acknowledgements that arrive meanwhile are held back: under load there are new ones during every commit, and
        this would never return.
        """
        self.hold_back()
        quiet = False
        try:
            while self.in_flight:
                await self._source.next_commit()
            quiet = True
        finally:
            self.release(go_on=not quiet)
        self.check()

    async def saved(self) -> None:
        """Wait until every cursor entry that is in flight now is durable; raise if one was lost."""
        wanted = self.submitted
        while not self.has_saved(wanted):
            await self._source.next_commit()
        self.check()

    async def flushed(self) -> None:
        """Wait until all acknowledgements up to now are durable; raise if they never will be."""
        waiter = _Waiter()
        try:
            self.flush(waiter, 0)
            await waiter.done.wait()
        finally:
            self.forget(waiter)
        self.check()


class _Waiter:
    """Waits for a flush in the place of a consumer."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = trio.Event()

    def send(self, _reply: api.ConsumeReply, /) -> None:
        self.done.set()

    def end(self, _error: DanubeError, /) -> None:
        self.done.set()  # the journal's entries remember it
