"""The records of access control, as the metadata have them: followed by a watch, and confirmed once a second.

Each change of the records rewrites the key :data:`CHANGES` in the same transaction. So reading that key tells whether
the replica has everything: it has if it has seen the revision at which the key was written. A watch alone cannot tell
a quiet cluster from one that this broker no longer hears of.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from danube.metadata import MetadataStore, RowChange, Table, may_pass
from danube.model.errors import DanubeError
from danube.model.log_events import log_event
from danube.security.book import SecurityBook
from danube.security.guard import Guard
from danube.security.records import PREFIX

__all__ = ["CHANGES", "CONFIRM_S", "Replica"]

_log = logging.getLogger("danube.broker")

CHANGES: Final = "/security-changes"
"""Key that each change of access control rewrites."""
CONFIRM_S: Final = 1.0
"""Interval at which the metadata are asked whether the replica is current, in seconds."""
_ANSWER_S: Final = 2.0
"""How long the metadata may take to answer that."""
_WATCH_S: Final = 0.2
"""How long a change that is known to exist may take to arrive by the watch, before the records are compared."""


class Replica:
    """The records of one broker; applies their changes to its guard.

    Args:
        store: the metadata.
        guard: of the broker.
    """

    def __init__(self, store: MetadataStore, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._table: Table[bytes] = Table(
            store, PREFIX, bytes, encode=bytes, decode=bytes, watched=True, on_change=self._apply
        )
        self._compared = 0
        """Revision at which the records were found to be the same as those of the metadata."""
        self.changed = trio.Event()
        """Set, and replaced, after each change."""
        self.loaded = False
        self.latest = 0
        """Revision of the latest change of access control that is known to exist, as last confirmed."""

    @property
    def seen(self) -> int:
        """Revision of the metadata up to which all changes of access control are known and in effect."""
        return max(self._table.position, self._compared)

    def _apply(self, change: RowChange[bytes]) -> None:
        key = PREFIX + change.name
        self._guard.apply(key, change.after)
        if key in self._guard.book.unusable:
            _log.error(
                "the record %s of access control is unusable: %s",
                key,
                self._guard.book.unusable[key],
                extra=log_event("security.record_unusable", record=key),
            )
        self.changed.set()
        self.changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the records until cancelled; started once they are loaded.

        Raises:
            DanubeError: the metadata failed for good, or have refused the first query.
        """
        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            await nursery.start(self._table.follow)
            self._guard.freshness.confirmed(began)
            self.loaded = True
            nursery.start_soon(self._confirm)
            task_status.started()

    async def _confirm(self) -> None:
        while True:
            await trio.sleep(CONFIRM_S)
            began = trio.current_time()
            try:
                with trio.move_on_after(_ANSWER_S) as patience:
                    known = await self._store.get(CHANGES)
                    self.latest = known.mod_revision if known is not None else 0
                    await self.at(self.latest)
                if not patience.cancelled_caught:
                    self._guard.freshness.confirmed(began)
            except DanubeError as error:
                if not may_pass(error):
                    raise
                _log.debug("the records of access control are not confirmed: %s", error)

    async def at(self, revision: int) -> SecurityBook:
        """Return the records with all changes up to a revision of the metadata; wait until they are known.

        Raises:
            DanubeError: the metadata do not answer.
        """
        while self.seen < revision:
            with trio.move_on_after(_WATCH_S):
                await self._table.reached(revision)
                break
            # The change may have been one that changed no record: removing one that was gone already, say.
            items, at = await self._store.list(PREFIX)
            if {PREFIX + name: changed_at for name, _, changed_at in self._table.every()} == {
                item.key: item.mod_revision for item in items
            }:
                self._compared = at
        return self._guard.book
