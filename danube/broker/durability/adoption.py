"""Adoption: a broker goes on with the wals of durability ``remote`` that it got from brokers that have died.

The coordinator names this broker in the row of a wal, and then assigns the topics in it
(:mod:`danube.cluster.failover`)::

    row of the wal ──▶ claimed, fenced, read ──▶ all its topics are assigned here ──▶ recovered, served
         ▲                                                                                   │
         └── another broker was named: given up ◀────────────────────────────────────────────┘

The wal stays what it is: the commits of this broker follow those of the dead one, under a higher epoch. So nothing is
copied, batches that are not sealed yet are read from the commits where they are, and if this broker dies the next one
finds one wal with everything in it. What a broker loses while it is away is not given back: when it returns, it begins
a wal under another name for new topics.

Everything is decided from the tables, whatever happened before: :meth:`Adoption.run` opens each wal that has topics,
belongs to this broker, and is not open. So it also opens them at the start of the broker, and again if a former owner,
that did not know better, has claimed one of them for a moment.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from danube.cluster.records import Wal, topic_key, wal_of
from danube.model import Durability
from danube.model.errors import DanubeError, StorageUnavailableError
from danube.model.log_events import log_event

if TYPE_CHECKING:
    from danube.broker.durability.claims import Claims
    from danube.cluster.membership import Membership
    from danube.cluster.records import DeletedRecord
    from danube.metadata import Table
    from danube.model.records import TopicRecord

__all__ = ["Adoption"]

_log = logging.getLogger("danube.remote")

_SETTLE_S: Final = 0.02
"""Pause after a change, so that one look covers all changes of a moment."""
_RETRY_S: Final = 0.25
_MOST_RETRY_S: Final = 30.0
_TOPICS_PER_TURN: Final = 1_000


class Adoption:
    """Opens the wals in which this broker has topics; see the module.

    Args:
        membership: of this broker.
        topics, deleted: the records of all topics, and the notes of those that were deleted.
        claims: of this broker.

    Attributes:
        failures: why a wal could not be opened at the last attempt.
    """

    def __init__(
        self, membership: Membership, topics: Table[TopicRecord], deleted: Table[DeletedRecord], claims: Claims
    ) -> None:
        self._membership = membership
        self._topics = topics
        self._deleted = deleted
        self._claims = claims
        self._wake = trio.Event()
        self._opening: set[Wal] = set()
        self.failures: dict[Wal, DanubeError] = {}

    def look_again(self) -> None:
        """A wal has another owner, or was lost."""
        self._wake.set()

    def unavailable(self, wal: Wal) -> StorageUnavailableError:
        """Return the error for those who use a topic of a wal that is not open yet."""
        why = self.failures.get(wal)
        return StorageUnavailableError(
            f"broker {self._membership.broker} takes over wal {wal.name} of storage {wal.storage!r}, which has the"
            f" topic: {why.message if why is not None else 'it is being read'}; try again"
        )

    async def run(self) -> None:
        """Task: open what is to be opened, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                for wal in await self._wanted():
                    self._opening.add(wal)
                    nursery.start_soon(self._open, wal)
                await self._wake.wait()
                await trio.sleep(_SETTLE_S)

    async def _open(self, wal: Wal) -> None:
        """Open a wal, whatever it takes, unless it is lost meanwhile."""
        pause_s = _RETRY_S
        began = trio.current_time()
        _log.info("wal %s of storage %r is taken over", wal.name, wal.storage)
        try:
            while self._membership.owner_of_wal(*wal) == self._membership.me:
                try:
                    await self._claims.open_wal(wal)
                    took_s = trio.current_time() - began
                    _log.info("the topics in wal %s of storage %r are served: %.2f s", wal.name, wal.storage, took_s)
                    break
                except DanubeError as error:
                    known = self.failures.get(wal)
                    self.failures[wal] = error
                    if known is None or type(known) is not type(error):
                        _log.error(
                            "topics in wal %s of storage %r wait: %s",
                            wal.name,
                            wal.storage,
                            error,
                            extra=log_event("remote.adoption_delayed", storage=wal.storage),
                        )
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MOST_RETRY_S)
        finally:
            self.failures.pop(wal, None)
            self._opening.discard(wal)
        self._wake.set()  # it may have been lost again at once

    async def _wanted(self) -> list[Wal]:
        """Return the wals that are to be opened: they have topics, and the metadata say that they are this broker's.

        Also one that has only topics whose deletion it has not noted yet.
        """
        me, open_ = self._membership.me, self._claims.wals
        assignments = self._membership.assignments.values
        found: set[Wal] = set()
        for note in self._deleted.values.values():
            given = [assignments.get(topic_key(topic_id)) for topic_id in note.topic_ids if note.storage]
            found.update(Wal(note.storage, wal_of(each)) for each in given if each is not None)
        for rows in self._topics.batches(_TOPICS_PER_TURN):
            for _, record, _ in rows:
                if record.durability is not Durability.REMOTE:
                    continue
                for topic_id in record.topic_ids:
                    assignment = assignments.get(topic_key(topic_id))
                    if assignment is not None:
                        found.add(Wal(record.storage, wal_of(assignment)))
            await trio.lowlevel.checkpoint()
        return sorted(
            wal
            for wal in found - self._opening
            if self._membership.owner_of_wal(*wal) == me and wal not in open_ and self._claims.may_open(wal)
        )
