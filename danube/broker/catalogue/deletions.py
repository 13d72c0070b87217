"""Deletes topics in the metadata, and removes what is left of them once their owners' journals have noted that.

A deleted topic is listed in a note with the ids of its partitions. Each owner buries those of its own and removes their
assignments; the last one removes the note. Of durability ``remote`` they are the owners of the wals: an assignment, and
so the note, stays until the wal has noted the deletion, because the topic would come back with a wal that has not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from danube.broker.catalogue.assigning import groups
from danube.broker.catalogue.catalogue_records import CatalogueRecords
from danube.broker.catalogue.changes import Changes, Row, Step
from danube.broker.catalogue.gap_book import GapBook
from danube.broker.catalogue.subscription_rows import SubscriptionRows
from danube.broker.catalogue.tables import Tables
from danube.cluster.membership import Membership
from danube.cluster.records import DeletedRecord, topic_key
from danube.model.ids import TopicId
from danube.model.records import TopicRecord, check_topic_ids

__all__ = ["Deletions"]


class Deletions:
    """The deletions of topics; see the module.

    Args:
        tables, records: of the catalogue.
        changes: of this broker.
        subscriptions: the records of all subscriptions.
        membership: this broker in the cluster.
        gaps: the declared gaps of topics.
    """

    def __init__(
        self,
        tables: Tables,
        records: CatalogueRecords,
        changes: Changes,
        subscriptions: SubscriptionRows,
        membership: Membership,
        gaps: GapBook,
    ) -> None:
        self._tables = tables
        self._records = records
        self._changes = changes
        self._subscriptions = subscriptions
        self._membership = membership
        self._gaps = gaps

    async def delete(self, topic: str, topic_ids: Collection[TopicId] = (), storage: str = "") -> TopicRecord:
        """Delete a plain or partitioned topic, and return its last record.

        What belongs to its ids is unreachable from then on. The owners remove it, and then call :meth:`buried`.

        Args:
            topic: its name.
            topic_ids: one of them is its first id; empty: any may be.
            storage: the one with the wals that hold it; empty: it is in the journals of brokers.

        Raises:
            TopicNotFoundError, FailedPreconditionError: as :meth:`CatalogueRecords.expect`.
            TopicReplacedError: it has none of the ids.
        """
        table, deleted = self._tables.topics, self._tables.deleted
        found: list[TopicRecord] = []

        def make() -> list[Step]:
            found[:] = [self._records.expect(topic)]
            check_topic_ids(topic, topic_ids, found[0].topic_ids[0])
            name = topic_key(found[0].topic_ids[0])
            # The ids are noted: what the journal holds of unknown topics stays.
            return [
                Step(table, topic, table.delete(topic)),
                Step(deleted, name, deleted.put(name, DeletedRecord(tuple(found[0].topic_ids), storage))),
            ]

        await self._changes.change(make, Row(table, topic))
        return found[0]

    def noted(self) -> list[DeletedRecord]:
        """Return the deleted topics whose deletion a journal or a wal has perhaps not noted."""
        return list(self._tables.deleted.values.values())

    async def buried(self, topic_ids: Sequence[TopicId], noted: Collection[TopicId] | None = None) -> None:
        """Remove what is left of the topics of this broker that were deleted together: its journal has noted that.

        Args:
            topic_ids: of all partitions. The last owner removes the note of the deletion.
            noted: those whose deletion is noted, if these are not all of this broker's.
        """
        assignments, deleted = self._membership.assignments, self._tables.deleted
        candidates = topic_ids if noted is None else noted
        mine = [each for each in candidates if self._membership.owns(each)]
        for topic_id in mine:
            await self._subscriptions.delete_all(topic_id)
        await self._gaps.drop(mine)
        for ids in groups(mine):
            names = [topic_key(each) for each in ids]
            await self._changes.change(
                lambda names=names: [  # type: ignore[misc]
                    Step(assignments, name, assignments.delete(name)) for name in names if name in assignments.values
                ],
                *(Row(assignments, name) for name in names),
            )
        name = topic_key(topic_ids[0])
        note = deleted.values.get(name)
        if note is not None and not any(topic_key(each) in assignments.values for each in note.topic_ids):
            await self._changes.delete(deleted, name)

    async def restored(self, note: DeletedRecord) -> None:
        """Remove the note of a topic that was restored under its former ids: nothing of it is to be buried."""
        name = topic_key(note.topic_ids[0])
        if name in self._tables.deleted.values:
            await self._changes.delete(self._tables.deleted, name)

    async def forget(self) -> None:
        """Remove the notes of deletions that concern no owner any more."""
        for note in self.noted():
            if not any(topic_key(each) in self._membership.assignments.values for each in note.topic_ids):
                await self.buried(note.topic_ids)

    async def sweep_orphans(self) -> int:
        """Delete records of subscriptions without a topic (an interrupted restore), and return of how many topics.

        While there are other brokers, one of them may be restoring: then nothing is deleted.
        """
        if not self._membership.is_alone:
            return 0
        alive = {topic_id for record in self._tables.topics.values.values() for topic_id in record.topic_ids}
        orphans = (await self._subscriptions.every()).keys() - alive
        for topic_id in orphans:
            await self._subscriptions.delete_all(topic_id)
        return len(orphans)
