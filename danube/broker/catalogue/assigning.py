"""Assigns topics to their first owners: new topics, those of a broker that was alone, and those that are restored."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from danube.broker.catalogue.changes import Changes, Step, noted
from danube.broker.catalogue.tables import Tables
from danube.cluster.membership import Membership
from danube.cluster.records import Assignment, CreatingRecord, Reason, broker_name, topic_key
from danube.metadata import Change
from danube.model.errors import DanubeError
from danube.model.ids import BrokerId, OwnerEpoch, TopicId
from danube.model.log_events import log_event

__all__ = ["TOPICS_PER_TRANSACTION", "Assigning", "groups"]

_log = logging.getLogger("danube.broker")

TOPICS_PER_TRANSACTION: Final = 60
"""Most assignments that one transaction changes."""


def groups(topic_ids: Sequence[TopicId]) -> Iterator[Sequence[TopicId]]:
    """Yield as many ids at a time as one transaction can assign."""
    for begin in range(0, len(topic_ids), TOPICS_PER_TRANSACTION):
        yield topic_ids[begin : begin + TOPICS_PER_TRANSACTION]


class Assigning:
    """Makes the steps that assign topics; see the module.

    Args:
        tables: of the catalogue.
        changes: of this broker.
        membership: this broker in the cluster.
    """

    def __init__(self, tables: Tables, changes: Changes, membership: Membership) -> None:
        self._tables = tables
        self._changes = changes
        self._membership = membership

    def assigned(
        self, owners: Mapping[TopicId, BrokerId], reason: Reason, epoch: OwnerEpoch, wal: str = ""
    ) -> list[Step]:
        """Return the steps that assign topics to their first owners; ``wal``: see :class:`Assignment`."""
        table = self._membership.assignments
        return [
            Step(
                table,
                topic_key(topic_id),
                table.create(topic_key(topic_id), Assignment(owner, epoch, reason, wal=wal)),
            )
            for topic_id, owner in owners.items()
            if topic_key(topic_id) not in table.values  # else it was restored or withheld before
        ]

    def running(self, owners: Iterable[BrokerId]) -> list[Step]:
        """Return steps that change nothing, and are refused if one of these brokers has no session any more.

        Raises:
            UnavailableError: this broker has none.
        """
        table = self._membership.sessions
        return [
            Step(table, broker_name(owner), Change((self._membership.session_of(owner),), (), noted))
            for owner in sorted(set(owners))
        ]

    def _mine(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, BrokerId]:
        """Return those that have no owner, with this broker for each."""
        assignments = self._membership.assignments.values
        return {each: self._membership.me for each in topic_ids if topic_key(each) not in assignments}

    async def assign_found(self) -> None:
        """Assign all topics without an owner to this broker."""
        for record in list(self._tables.topics.values.values()):
            for ids in groups(list(self._mine(record.topic_ids))):
                epoch = self._membership.first_epoch
                await self._changes.change(partial(self.assigned, self._mine(ids), Reason.FOUND, epoch))

    @asynccontextmanager
    async def restoring(self, topic_ids: Iterable[TopicId], wal: str = "") -> AsyncIterator[None]:
        """Assign topics to this broker whose history is entered before their records, inside the block.

        Those that have an owner keep it. The epochs are as high as :meth:`Membership.raise_epoch` has demanded. Like a
        creation in several steps it is announced, so that the coordinator does not delete the assignments meanwhile.
        ``wal``: see :class:`Assignment`.
        """
        changes, creating = self._changes, self._tables.creating
        epoch = max(self._membership.first_epoch, self._membership.restored_epoch)
        announced = {f"/.restored/{ids[0]:016x}": ids for ids in groups(list(topic_ids))}
        try:
            for name, ids in announced.items():
                session = self._membership.session_condition.mod_revision
                record = CreatingRecord(creator=self._membership.me, session=session, topic_ids=tuple(ids))
                await changes.put(creating, name, record)
                await changes.change(partial(self.assigned, self._mine(ids), Reason.FOUND, epoch, wal))
            yield
        finally:
            for name in announced.keys() & creating.values.keys():
                try:
                    await changes.delete(creating, name)
                except DanubeError as error:
                    _log.warning(
                        "the announcement of a restore is removed later: %s",
                        error,
                        extra=log_event("restore.note_left"),
                    )
