"""The catalogue: the namespaces, topics and subscriptions that exist, as records in the metadata store.

A topic incarnation has an id of its own: a topic that is deleted and created again never meets its old data or cursors.
The assignments of a topic are written with its record, and removed once its deletion is noted in the owner's journal.
The store is the source of truth; lookups are answered by tables (:mod:`danube.broker.catalogue.tables`), which follow
it: all brokers of a cluster change the same records (:mod:`danube.broker.catalogue.changes`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import msgspec
import trio

from danube.broker.catalogue.assigning import Assigning
from danube.broker.catalogue.catalogue_records import BUILT_IN_NAMESPACES, CatalogueRecords
from danube.broker.catalogue.changes import Changes, Row, Step
from danube.broker.catalogue.creations import Creations
from danube.broker.catalogue.deletions import Deletions
from danube.broker.catalogue.entering import Entering
from danube.broker.catalogue.gap_book import GapBook
from danube.broker.catalogue.policy_changes import PolicyChanges
from danube.broker.catalogue.subscription_rows import SubscriptionRows
from danube.broker.catalogue.tables import Tables
from danube.cluster.membership import Membership
from danube.cluster.records import topic_key
from danube.metadata import MetadataStore, RowChange, TableWriter
from danube.model import Limits, validate_namespace
from danube.model.errors import AlreadyExistsError
from danube.model.ids import TopicId
from danube.model.names import split_partition
from danube.model.quotas import NamespaceQuota
from danube.model.records import NamespaceRecord, TopicRecord, members

__all__ = ["Catalogue"]


class Catalogue(CatalogueRecords):
    """Namespaces, topics and subscriptions of one broker. Create it with :meth:`load`.

    Attributes:
        membership: this broker in the cluster: who owns which topic.
        tables: the rows as this broker knows them.
        creations, deletions: of topics.
        assigning: assigns topics to their first owners.
        policy_changes: changes policies.
        subscriptions: the records of subscriptions.
        gaps: the declared gaps of topics.
        on_topic: called for each change of a topic's record, by any broker; must not raise.
        on_storage: called for each change of the identity of a storage; must not raise.
        on_policies: called with a namespace whose policies or quotas were changed, or an empty text for the broker's
            policies.
    """

    def __init__(
        self,
        store: MetadataStore,
        writer: TableWriter,
        membership: Membership,
        limits: Limits,
        rng: random.Random,
        clock_us: Callable[[], int],
    ) -> None:
        self.membership = membership
        self.on_topic: Callable[[RowChange[TopicRecord]], None] = _ignore
        self.on_storage: Callable[[RowChange[str]], None] = _ignore
        self.on_policies: Callable[[str], None] = _ignore
        self._unassigned: dict[TopicId, str] = {}
        """Topics and partitions whose assignment has not arrived, with the name of the topic as a whole."""
        tables = self.tables = Tables(
            store,
            on_namespace=self._namespace_changed,
            on_topic=self._topic_changed,
            on_storage=lambda change: self.on_storage(change),
            on_policies=lambda change: self.on_policies(""),
            on_gap=lambda change: self.gaps.changed(change),
        )
        self.gaps = GapBook(store, tables.gaps)
        super().__init__(
            limits,
            tables.namespaces.values,
            tables.topics.values,
            tables.storages.values,
            tables.policies.values,
            tables.withheld.values,
        )
        self._store = store
        self._rng = rng
        self._clock_us = clock_us
        changes = self._changes = Changes(writer, membership)
        subscriptions = self.subscriptions = SubscriptionRows(store, changes, self.new_id, clock_us)
        assigning = self.assigning = Assigning(tables, changes, membership)
        self._entering = Entering(store, tables, self, changes, assigning, membership, limits)
        self.creations = Creations(
            self._entering, self, subscriptions, membership, limits, self.new_id, clock_us, self.create_namespace
        )
        self.deletions = Deletions(tables, self, changes, subscriptions, membership, self.gaps)
        self.policy_changes = PolicyChanges(tables, self, changes, self.create_namespace)

    @classmethod
    async def load(
        cls,
        store: MetadataStore,
        membership: Membership,
        limits: Limits,
        rng: random.Random,
        clock_us: Callable[[], int],
    ) -> Catalogue:
        """Load everything from the store, and create the built-in namespaces if they are missing.

        If this is the only broker of these metadata, topics without an owner become its own.
        """
        writer = await TableWriter.open(store, f"/writers/{membership.broker}/catalogue")
        self = cls(store, writer, membership, limits, rng, clock_us)
        for table in self.tables.every:
            await table.load()
        for name in BUILT_IN_NAMESPACES:
            if name not in self._namespaces:
                with suppress(AlreadyExistsError):  # another broker starts at the same time
                    await self.create_namespace(name)
        if membership.is_alone:
            await self.assigning.assign_found()
            self._unassigned.clear()
        return self

    @property
    def store(self) -> MetadataStore:
        """The metadata store. A face may store its own keys there, under a prefix of its own."""
        return self._store

    def new_id(self) -> int:
        """Return a random id for a topic, subscription or producer; never 0, fits a signed 64-bit integer."""
        return self._rng.getrandbits(63) or 1

    async def run(self) -> None:
        """Task: follow the changes of other brokers, and settle changes that are in doubt, until cancelled.

        Raises:
            OwnerFencedError: another process with the identity of this broker has taken over.
            DataLossError: a record does not decode.
        """
        async with trio.open_nursery() as nursery:
            for table in self.tables.every:
                nursery.start_soon(table.follow)
            nursery.start_soon(self._entering.run)
            await self._changes.settle()

    # --- The view ---

    def _topic_changed(self, change: RowChange[TopicRecord]) -> None:
        after = change.after
        self.note_topic(change.name, change.before, after)
        if change.before is not None and (after is None or after.topic_ids != change.before.topic_ids):
            for topic_id in change.before.topic_ids:
                self._unassigned.pop(topic_id, None)
        if after is not None and (change.before is None or after.topic_ids != change.before.topic_ids):
            for topic_id in after.topic_ids:
                if self.membership.owner(topic_id) is None:
                    self._unassigned[topic_id] = change.name
        self.on_topic(change)

    def _namespace_changed(self, change: RowChange[NamespaceRecord]) -> None:
        before, after = change.before, change.after
        if before is None or after is None:
            return
        old, new = before.quota, after.quota
        # The quotas of topics and connections count where those are created and opened.
        is_felt = _felt(old) != _felt(new)
        if is_felt or before.policies != after.policies:
            self.on_policies(change.name)

    def newly_assigned(self, topic_id: TopicId) -> str:
        """Return, once, the topic of whose first assignment this broker has just heard, if it knows the record already.

        Returns:
            The name of the topic as a whole; empty if its record has not arrived, or it had an owner before.
        """
        return self._unassigned.pop(topic_id, "")

    async def refresh(self, topic: str) -> None:
        """Read the record of a plain topic, or of the one that a partition belongs to, and their assignments again.

        A topic that was created before this was called exists afterwards, whichever broker has created it.

        Raises:
            DanubeError: the store cannot answer.
        """
        split = split_partition(topic)
        for name in (topic, split[0]) if split else (topic,):
            await self.tables.topics.refresh(name)
            record = self._topics.get(name)
            if record is not None:
                for each, topic_id in members(name, record):
                    key = topic_key(topic_id)
                    if each in (topic, name) and key not in self.membership.assignments.values:
                        await self.membership.assignments.refresh(key)

    @property
    def revision(self) -> int:
        """The highest revision of the metadata at which this broker has changed the catalogue."""
        return self._changes.revision

    # --- Storages ---

    async def remember_storage(self, name: str, identity: str, *, replace: bool = False) -> str:
        """Store the identity of a storage that has none, or any if ``replace``; return the one that is stored."""
        table = self.tables.storages

        def make() -> list[Step]:
            if self.storage_identity(name) and not replace:
                return []  # another broker that shares the storage was first
            return [Step(table, name, table.put(name, identity))]

        await self._changes.change(make, Row(table, name))
        return self.storage_identity(name)

    # --- Namespaces ---

    async def create_namespace(self, name: str) -> None:
        """Create a namespace."""
        validate_namespace(name)
        table = self.tables.namespaces

        def make() -> list[Step]:
            self.check_new_namespace(name)
            return [Step(table, name, table.create(name, NamespaceRecord(self._clock_us())))]

        await self._changes.change(make, Row(table, name))

    async def delete_namespace(self, name: str) -> None:
        """Delete a namespace without topics."""
        validate_namespace(name)
        table = self.tables.namespaces
        record: list[NamespaceRecord] = []

        def make() -> list[Step]:
            self.check_delete_namespace(name)
            record[:] = [self.namespace(name)]
            return [Step(table, name, table.delete(name))]

        await self._changes.change(make, Row(table, name))
        if not self.membership.is_alone:
            # Another broker may have created a topic there that was not known here yet. From now on none can.
            await self.tables.topics.load()
            if any(topic.startswith(f"/{name}/") for topic in self._topics):
                await self._changes.put(table, name, record[0])
                self.check_delete_namespace(name)

    # --- Topics of buckets that are not served ---

    async def withhold(self, topic: str, record: TopicRecord) -> None:
        """Note a topic of a bucket that is not served, because another topic has its name: its history is kept."""
        await self._changes.put(self.tables.withheld, record.storage + topic, record)

    async def release(self, topic: str, storage: str) -> None:
        """Remove the note of :meth:`withhold`: the topic has its name now, or does not exist any more."""
        await self._changes.delete(self.tables.withheld, storage + topic)


def _felt(quota: NamespaceQuota) -> NamespaceQuota:
    """Return what topics that exist already have to know of a quota."""
    return msgspec.structs.replace(quota, max_topics=None, max_connections=None)


def _ignore(change: object) -> None:
    """Initial callback: does nothing."""
