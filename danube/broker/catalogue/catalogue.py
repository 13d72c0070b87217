"""The catalogue: records of the existing namespaces, topics and subscriptions, in the metadata store.

Keys::

    /policies/broker                           TopicPolicies of the whole broker
    /namespaces/{namespace}                    NamespaceRecord
    /topics/{namespace}/{topic}                TopicRecord; a partitioned topic is one record
    /subscriptions/{topic id}/{subscription}   SubscriptionRecord
    /withheld/{storage}/{namespace}/{topic}    TopicRecord of a topic of a bucket that is not served: its name is taken
    /storages/{storage}                        identity of the marker by which it is recognized (text)
    /deleted/{first topic id}                  ids of a topic that was deleted; until the journal notes that, too
    /writers/catalogue                         guard of the changes of all but subscriptions

A topic incarnation has an id of its own: a topic that is deleted and created again never meets its old data or cursors.
The store is the source of truth; lookups are answered by tables (:class:`~danube.metadata.Table`). All changes pass
through one writer, so that a check and the change that follows it are atomic for other tasks. A caller may be cancelled
while it waits for its turn, but not during its change.

A failed change has no effect: for example, a topic whose deletion failed is still served. If the store was unavailable
for so long that the outcome of a change is unknown, and it turns out later that it was applied, it is undone before the
next change. Subscriptions have no table (their topics know them): several are written concurrently, and an unknown
outcome of such a write is not resolved.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import trio

from danube.broker.catalogue.catalogue_records import BROKER, BUILT_IN_NAMESPACES, CatalogueRecords, without_planned
from danube.metadata import Change, MetadataStore, Table, TableWriter
from danube.model import (
    Durability,
    Limits,
    SubscriptionPolicy,
    SubscriptionType,
    TopicPolicies,
    validate_namespace,
    validate_topic,
)
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    FailedPreconditionError,
    LimitExceededError,
    OwnerFencedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from danube.model.ids import Offset, TopicId
from danube.model.policies import change_policy
from danube.model.records import NamespaceRecord, SubscriptionRecord, TopicRecord, decode_subscription

__all__ = ["Catalogue"]

_log = logging.getLogger("danube.broker")

T = TypeVar("T")

_encode = msgspec.msgpack.encode
_NAMESPACE = msgspec.msgpack.Decoder(NamespaceRecord)
_SETTLE_S: Final = 1.0
"""Pause before a change in doubt is settled."""
_POLICIES = msgspec.msgpack.Decoder(TopicPolicies)


def _subscription_key(topic_id: TopicId, subscription: str) -> str:
    return f"/subscriptions/{topic_id:016x}/{subscription}"


def _together() -> trio.CancelScope:
    """Return a scope for a change of the store together with the corresponding change in memory.

    Shielded, and bounded by the time that the store takes for one change.
    """
    return trio.CancelScope(shield=True)


class _Step(NamedTuple):
    """A change of one row."""

    table: Table[Any]
    name: str
    change: Change


class Catalogue(CatalogueRecords):
    """Namespaces, topics and subscriptions of one broker. Create it with :meth:`load`."""

    def __init__(self, store: MetadataStore, limits: Limits, rng: random.Random, clock_us: Callable[[], int]) -> None:
        self._namespace_table = Table(store, "/namespaces/", NamespaceRecord)
        self._topic_table = Table(store, "/topics", TopicRecord)
        self._storage_table = Table(store, "/storages/", str, encode=str.encode, decode=bytes.decode)
        self._policy_table = Table(store, "/policies/", TopicPolicies)
        self._withheld_table = Table(store, "/withheld/", TopicRecord)
        super().__init__(
            limits,
            self._namespace_table.values,
            self._topic_table.values,
            self._storage_table.values,
            self._policy_table.values,
            self._withheld_table.values,
        )
        self._store = store
        self._rng = rng
        self._clock_us = clock_us
        self._writer: TableWriter
        self._undo: Callable[[], list[Change]] = _nothing
        """Makes the changes that undo a change in doubt, should it have been applied."""
        self._doubt = trio.Event()
        self._deleted_table: Table[list[TopicId]] = Table(
            store, "/deleted/", list, decode=msgspec.msgpack.Decoder(list[TopicId]).decode
        )

    @classmethod
    async def load(
        cls, store: MetadataStore, limits: Limits, rng: random.Random, clock_us: Callable[[], int]
    ) -> Catalogue:
        """Load everything from the store, and create the built-in namespaces if they are missing."""
        self = cls(store, limits, rng, clock_us)
        self._writer = await TableWriter.open(store, "/writers/catalogue")
        for table in (
            self._namespace_table,
            self._topic_table,
            self._storage_table,
            self._policy_table,
            self._withheld_table,
            self._deleted_table,
        ):
            await table.load()
        for name in BUILT_IN_NAMESPACES:
            if name not in self._namespaces:
                await self.create_namespace(name)
        return self

    @property
    def store(self) -> MetadataStore:
        """The metadata store. A face may store its own keys there, under a prefix of its own."""
        return self._store

    # --- Changes ---

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Wait for other changes; one that has failed is undone, if it was applied after all."""
        async with self._writer.changing():
            undo = self._undo()
            if undo:
                with _together():
                    await self._writer.apply(*undo)
            self._undo = _nothing
            yield

    async def _put(self, table: Table[T], name: str, record: T) -> None:
        """Create or replace a record, inside :meth:`_changing`."""
        await self._apply(_Step(table, name, table.put(name, record)))

    async def _delete(self, table: Table[T], name: str) -> None:
        await self._apply(_Step(table, name, table.delete(name)))

    async def _apply(self, *steps: _Step) -> None:
        """Make some changes, all or none, inside :meth:`_changing`."""
        before = [step.table.values.get(step.name) for step in steps]

        def undo() -> list[Change]:
            return [
                step.table.put(step.name, value) if value is not None else step.table.delete(step.name)
                for step, value in zip(steps, before, strict=True)
                if step.table.values.get(step.name) is not value
            ]

        with _together():
            try:
                await self._writer.apply(*(step.change for step in steps))
            except DanubeError:
                if self._writer.in_doubt:
                    self._undo = undo
                    self._doubt.set()
                raise

    async def run(self) -> None:
        """Settle changes that are in doubt as soon as the store answers again, until cancelled.

        Raises:
            OwnerFencedError: another broker has taken over the metadata; this one has to stop.
        """
        failing = False
        while True:
            await self._doubt.wait()
            await trio.sleep(_SETTLE_S)
            try:
                async with self._changing():
                    self._doubt = trio.Event()
                failing = False
            except OwnerFencedError:
                raise
            except DanubeError as error:
                if not failing:
                    _log.warning("a change of the metadata is in doubt until the store answers again: %s", error)
                failing = True

    # --- Storages ---

    async def remember_storage(self, name: str, identity: str) -> None:
        """Store the identity of a storage."""
        async with self._changing():
            await self._put(self._storage_table, name, identity)

    # --- Namespaces ---

    async def create_namespace(self, name: str) -> None:
        """Create a namespace."""
        validate_namespace(name)
        async with self._changing():
            self.check_new_namespace(name)
            await self._put(self._namespace_table, name, NamespaceRecord(self._clock_us()))

    async def delete_namespace(self, name: str) -> None:
        """Delete a namespace without topics."""
        validate_namespace(name)
        async with self._changing():
            self.check_delete_namespace(name)
            await self._delete(self._namespace_table, name)

    # --- Topics ---

    async def create_topic(
        self,
        topic: str,
        durability: Durability,
        partitions: int,
        storage: str = "default",
        policies: TopicPolicies | None = None,
    ) -> TopicRecord:
        """Create a plain (0 partitions) or partitioned topic in one step."""
        self.check_base_name(topic)
        self.check_partitions(topic, partitions)
        async with self._changing():
            self.check_new_topic(topic, max(1, partitions))
            ids = [TopicId(self.new_id()) for _ in range(max(1, partitions))]
            record = TopicRecord(
                durability,
                partitions,
                ids,
                self._clock_us(),
                storage,
                policies if policies is not None else TopicPolicies(),
            )
            return await self._put_topic(topic, record)

    async def enlarge_topic(self, topic: str, partitions: int) -> TopicRecord:
        """Give a partitioned topic more partitions, and return its new record.

        Raises:
            TopicNotFoundError: the topic does not exist.
            InvalidArgumentError, LimitExceededError: too many partitions.
        """
        async with self._changing():
            record = self._topics.get(topic)
            if record is None:
                raise TopicNotFoundError(f"topic {topic!r} was deleted while it was to get more partitions")
            added = partitions - record.partitions
            self.check_partitions(topic, partitions)
            self.check_room(topic, added)
            ids = [*record.topic_ids, *(self.new_id() for _ in range(added))]
            return await self._put_topic(topic, msgspec.structs.replace(record, partitions=partitions, topic_ids=ids))

    async def restore_topic(
        self,
        topic: str,
        record: TopicRecord,
        subscriptions: Mapping[TopicId, Mapping[str, SubscriptionRecord]],
    ) -> None:
        """Enter a topic that existed elsewhere, with its ids and subscriptions. May be repeated after an interruption.

        Args:
            topic: its name; a namespace that is missing is created.
            record: its former record.
            subscriptions: by topic id and name. Their cursors are elsewhere, and durable.

        Raises:
            AlreadyExistsError: another topic of this name exists.
            LimitExceededError: there are too many topics or namespaces.
        """
        name = validate_topic(topic)
        if name.namespace not in self._namespaces:
            await self.create_namespace(name.namespace)
        async with self._changing():
            if topic in self._topics:
                raise AlreadyExistsError(f"topic {topic!r} exists already")
            count = sum(len(known.topic_ids) for known in self._topics.values()) + len(record.topic_ids)
            if count > self._limits.max_topics:
                raise LimitExceededError(
                    f"topic {topic!r} cannot be restored: limit max_topics = {self._limits.max_topics} is reached"
                )
            for topic_id in record.topic_ids:
                for subscription, entry in subscriptions.get(topic_id, {}).items():
                    await self._store.put(_subscription_key(topic_id, subscription), _encode(entry))
            # The record comes last: until then nothing of this is visible.
            await self._put_topic(topic, record)

    async def withhold(self, topic: str, record: TopicRecord) -> None:
        """Note a topic of a bucket that is not served, because another topic has its name: its history is kept."""
        async with self._changing():
            await self._put(self._withheld_table, record.storage + topic, record)

    async def release(self, topic: str, storage: str) -> None:
        """Remove the note of :meth:`withhold`: the topic has its name now, or does not exist any more."""
        async with self._changing():
            await self._delete(self._withheld_table, storage + topic)

    async def delete_topic(self, topic: str) -> TopicRecord:
        """Delete a plain or partitioned topic with all records of its ids, and return its last record.

        Raises:
            TopicNotFoundError, FailedPreconditionError: as :meth:`expect`.
        """
        async with self._changing():
            record = self.expect(topic)
            # The record is deleted first: the records of its ids are unreachable from then on, and removed at the next
            # start if the broker crashes in between. The ids are noted: what the journal holds of unknown topics stays.
            name = f"{record.topic_ids[0]:016x}"
            await self._apply(
                _Step(self._topic_table, topic, self._topic_table.delete(topic)),
                _Step(self._deleted_table, name, self._deleted_table.put(name, record.topic_ids)),
            )
            try:
                for topic_id in record.topic_ids:
                    await self._sweep(topic_id)
            except DanubeError as error:
                _log.warning("remains of topic %r are removed at the next start: %s", topic, error)
            return record

    def deleted(self) -> list[list[TopicId]]:
        """Return the ids of deleted topics whose deletion the journal has perhaps not noted; those of one together."""
        return list(self._deleted_table.values.values())

    async def buried(self, topic_ids: Sequence[TopicId]) -> None:
        """Forget the ids of a deleted topic: the journal has noted its deletion."""
        async with self._changing():
            name = f"{topic_ids[0]:016x}"
            if name in self._deleted_table.values:
                await self._delete(self._deleted_table, name)

    async def _sweep(self, topic_id: TopicId) -> None:
        for item in (await self._store.list(f"/subscriptions/{topic_id:016x}/"))[0]:
            await self._store.delete(item.key)

    async def sweep_orphans(self) -> int:
        """Delete records of topics and subscriptions that were deleted (an interrupted deletion); return how many."""
        alive = {topic_id for record in self._topics.values() for topic_id in record.topic_ids}
        orphans = {int(item.key.split("/")[2], 16) for item in (await self._store.list("/subscriptions/"))[0]} - alive
        for topic_id in orphans:
            await self._sweep(TopicId(topic_id))
        return len(orphans)

    # --- Policies ---

    async def change_broker_policies(self, changes: Mapping[str, Any]) -> None:
        """Change the policies of the broker; ``changes`` as in :func:`danube.model.policies.change_policy`."""
        async with self._changing():
            policies = change_policy(self.broker_policies, changes)
            await self._put(self._policy_table, BROKER, policies)

    async def change_namespace_policies(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change the policies of a namespace.

        Raises:
            NamespaceNotFoundError: it does not exist.
            InvalidArgumentError: see :func:`danube.model.policies.change_policy`.
        """
        validate_namespace(name)
        async with self._changing():
            record = self.namespace(name)
            record = msgspec.structs.replace(record, policies=change_policy(record.policies, changes))
            await self._put(self._namespace_table, name, record)

    async def restore_policies(self, records: Mapping[str, bytes]) -> list[str]:
        """Enter policies of namespaces and the broker from elsewhere; existing ones remain unchanged.

        Args:
            records: as returned by :meth:`records_above`.

        Returns:
            The names for which policies were entered.
        """
        restored: list[str] = []
        for name, encoded in sorted(records.items()):
            if name and name not in self._namespaces:
                await self.create_namespace(name)
            async with self._changing():
                if not name:
                    policies = _POLICIES.decode(encoded)
                    if self.broker_policies == TopicPolicies() != policies:
                        await self._put(self._policy_table, BROKER, policies)
                        restored.append(name)
                    continue
                record = self.namespace(name)
                policies = _NAMESPACE.decode(encoded).policies
                if record.policies == TopicPolicies() != policies:
                    record = msgspec.structs.replace(record, policies=policies)
                    await self._put(self._namespace_table, name, record)
                    restored.append(name)
        return restored

    async def change_topic_policies(self, topic: str, changes: Mapping[str, Any]) -> TopicRecord:
        """Change the policies of a plain or partitioned topic, and return its new record.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is a partition.
            InvalidArgumentError: see :func:`danube.model.policies.change_policy`.
        """
        async with self._changing():
            record = self._topics.get(topic)
            if record is None:
                self.locate(topic)
                raise FailedPreconditionError(
                    f"topic {topic!r} is a partition; policies belong to the partitioned topic as a whole"
                )
            policies = change_policy(record.policies, changes)
            return await self._put_topic(topic, msgspec.structs.replace(record, policies=policies))

    async def plan_subscription(
        self,
        topic: str,
        topic_id: TopicId,
        subscription: str,
        changes: Mapping[str, Any],
        existing: Container[str] = (),
    ) -> TopicRecord:
        """Store planned policy changes of a subscription that does not exist yet, and return the topic's new record.

        Args:
            topic: plain or partitioned.
            topic_id: of the one partition that this is for; 0: for all of them, and the plain topic.
            subscription: its name.
            changes: names and plain values, as in :func:`danube.model.policies.change_policy`; added to the stored
                ones.
            existing: subscriptions whose planned changes are not needed any more.

        Raises:
            TopicNotFoundError: the topic was deleted.
            LimitExceededError: too many are stored.
        """
        async with self._changing():
            return await self._put_topic(topic, self.planned_with(topic, topic_id, subscription, changes, existing))

    async def forget_planned(self, topic: str, topic_id: TopicId, subscription: str) -> TopicRecord | None:
        """Remove the planned changes of a subscription, and return the topic's new record; None if there were none.

        Args:
            topic: plain or partitioned.
            topic_id: of the one partition that this is for; 0: of all of them.
            subscription: its name.
        """
        async with self._changing():
            record = self._topics.get(topic)
            if record is None:
                return None
            changed = without_planned(record, topic_id, subscription)
            return await self._put_topic(topic, changed) if changed is not None else None

    async def replace_topic(self, topic: str, record: TopicRecord) -> None:
        """Replace the record of an existing topic by a copy that takes precedence."""
        async with self._changing():
            await self._put_topic(topic, record)

    async def _put_topic(self, topic: str, record: TopicRecord) -> TopicRecord:
        await self._put(self._topic_table, topic, record)
        return record

    async def change_subscription(self, topic_id: TopicId, name: str, record: SubscriptionRecord) -> None:
        """Replace the record of a subscription.

        Raises:
            SubscriptionNotFoundError: it was deleted in the meantime.
        """
        async with self._changing():
            key = _subscription_key(topic_id, name)
            present = await self._store.get(key)
            if present is None or decode_subscription(present.value).subscription_id != record.subscription_id:
                raise SubscriptionNotFoundError(f"subscription {name!r} was deleted while its policy was being changed")
            await self._store.put(key, _encode(record), expected_revision=present.mod_revision)

    # --- Subscriptions ---

    async def subscriptions(self) -> dict[TopicId, dict[str, SubscriptionRecord]]:
        """Return all durable subscriptions, by topic id and name."""
        found: dict[TopicId, dict[str, SubscriptionRecord]] = {}
        for item in (await self._store.list("/subscriptions/"))[0]:
            _, _, topic_id, name = item.key.split("/", 3)
            found.setdefault(TopicId(int(topic_id, 16)), {})[name] = decode_subscription(item.value)
        return found

    async def create_subscription(
        self,
        topic_id: TopicId,
        name: str,
        kind: SubscriptionType,
        start_offset: Offset,
        policy: SubscriptionPolicy,
    ) -> SubscriptionRecord:
        """Store a new subscription; it ends without a checkpoint of the loop, so that the caller can create it."""
        record = SubscriptionRecord(self.new_id(), kind, start_offset, self._clock_us(), policy)
        with _together():
            await self._store.put(_subscription_key(topic_id, name), _encode(record))
        return record

    async def delete_subscription(self, topic_id: TopicId, name: str) -> None:
        """Delete the record of a subscription; its cursor in the journal is void without it."""
        await self._store.delete(_subscription_key(topic_id, name))

    def new_id(self) -> int:
        """Return a random id for a topic, subscription or producer; never 0, fits a signed 64-bit integer."""
        return self._rng.getrandbits(63) or 1


def _nothing() -> list[Change]:
    """No change is in doubt."""
    return []
