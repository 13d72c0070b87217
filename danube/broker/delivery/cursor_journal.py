"""Writes the changes of a subscription's cursor to the journal, and waits for them.

Which entries are written, and when, is decided in :mod:`danube.broker.delivery.cursor_entries`.
"""

from __future__ import annotations

from danube.broker.delivery.cursor_entries import CursorEntries
from danube.broker.delivery.source import Source
from danube.dispatch import Cursor

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
