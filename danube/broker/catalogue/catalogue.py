"""The catalogue: records of the existing namespaces, topics and subscriptions, in the metadata store.

Keys::

    /policies/broker                           TopicPolicies of the whole broker
    /namespaces/{namespace}                    NamespaceRecord
    /topics/{namespace}/{topic}                TopicRecord; a partitioned topic is one record
    /subscriptions/{topic id}/{subscription}   SubscriptionRecord
    /withheld/{storage}/{namespace}/{topic}    TopicRecord of a topic of a bucket that is not served: its name is taken
    /storages/{storage}                        identity of the marker by which it is recognized (text)
    /snapshots/...                             see danube.broker.catalogue.snapshots
    /writers/catalogue                         guard of the changes of all but subscriptions and snapshots

A topic incarnation has an id of its own: a topic that is deleted and created again never meets its old data or cursors.
The store is the source of truth; lookups are answered by tables (:class:`~danube.metadata.Table`). All changes pass
through one writer, so that a check and the change that follows it are atomic for other tasks. A caller may be cancelled
while it waits for its turn, but not during its change.

A change that has failed has not happened: the broker goes on as before, with the topic that was to be deleted, say.
If the store was away so long that a change stayed in doubt, and it turns out that it was applied, then it is undone
before the next change. Subscriptions have no table (their topics know them): several are written at the same time, and
a change of one whose answer is lost is not settled.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec
import trio

from danube.broker.catalogue.snapshots import Snapshots
from danube.metadata import Change, MetadataStore, Table, TableWriter
from danube.model import (
    Durability,
    Limits,
    SubscriptionPolicy,
    SubscriptionType,
    TopicPolicies,
    partition_name,
    validate_namespace,
    validate_topic,
)
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    NamespaceNotFoundError,
    OwnerFencedError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from danube.model.names import split_partition
from danube.model.policies import change_policy
from danube.model.records import NamespaceRecord, SubscriptionRecord, TopicRecord, decode_subscription

__all__ = ["Catalogue"]

_log = logging.getLogger("danube.broker")

T = TypeVar("T")

BUILT_IN_NAMESPACES = ("default", "system")

_encode = msgspec.msgpack.encode
_NAMESPACE = msgspec.msgpack.Decoder(NamespaceRecord)
_BROKER: Final = "broker"
_NO_POLICIES: Final = TopicPolicies()
_SETTLE_S: Final = 1.0
"""Pause before a change in doubt is settled."""
_POLICIES = msgspec.msgpack.Decoder(TopicPolicies)


def _subscription_key(topic_id: int, subscription: str) -> str:
    return f"/subscriptions/{topic_id:016x}/{subscription}"


def _together() -> trio.CancelScope:
    """Return a scope for a change of the store together with the corresponding change in memory.

    Shielded, and bounded by the time that the store takes for one change.
    """
    return trio.CancelScope(shield=True)


class Catalogue:
    """Namespaces, topics and subscriptions of one broker. Create it with :meth:`load`."""

    def __init__(self, store: MetadataStore, limits: Limits, rng: random.Random, clock_us: Callable[[], int]) -> None:
        self._store = store
        self._limits = limits
        self._rng = rng
        self._clock_us = clock_us
        self._writer: TableWriter
        self._undo: Callable[[], Change | None] = _nothing
        """Makes the change that undoes a change in doubt, should it have been applied."""
        self._doubt = trio.Event()
        self.snapshots = Snapshots(store)
        """Stored by checkpoints of the journal."""
        self._namespace_table = Table(store, "/namespaces/", NamespaceRecord)
        self._topic_table = Table(store, "/topics", TopicRecord)
        self._storage_table = Table(store, "/storages/", str, encode=str.encode, decode=bytes.decode)
        self._policy_table = Table(store, "/policies/", TopicPolicies)
        self._withheld_table = Table(store, "/withheld/", TopicRecord)
        self._namespaces = self._namespace_table.values
        self._topics = self._topic_table.values
        self._withheld = self._withheld_table.values
        self.unknown: Callable[[str], DanubeError | None] = lambda topic: None
        """Returns why it is unknown whether a topic without a record exists; None if it does not."""

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
            if undo is not None:
                with _together():
                    await self._writer.apply(undo)
            self._undo = _nothing
            yield

    async def _put(self, table: Table[T], name: str, record: T) -> None:
        """Create or replace a record, inside :meth:`_changing`."""
        await self._apply(table, name, table.put(name, record))

    async def _delete(self, table: Table[T], name: str) -> None:
        await self._apply(table, name, table.delete(name))

    async def _apply(self, table: Table[T], name: str, change: Change) -> None:
        before = table.values.get(name)

        def undo() -> Change | None:
            if table.values.get(name) is before:
                return None
            return table.put(name, before) if before is not None else table.delete(name)

        with _together():
            try:
                await self._writer.apply(change)
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

    def storage_identity(self, name: str) -> str:
        """Return the identity of a storage; empty if it was never written to."""
        return self._storage_table.values.get(name, "")

    async def remember_storage(self, name: str, identity: str) -> None:
        """Store the identity of a storage."""
        async with self._changing():
            await self._put(self._storage_table, name, identity)

    # --- Namespaces ---

    @property
    def namespaces(self) -> list[str]:
        """Names of all namespaces, sorted."""
        return sorted(self._namespaces)

    async def create_namespace(self, name: str) -> None:
        """Create a namespace."""
        validate_namespace(name)
        async with self._changing():
            if name in self._namespaces:
                raise AlreadyExistsError(f"namespace {name!r} exists already")
            if len(self._namespaces) >= self._limits.max_namespaces:
                raise LimitExceededError(
                    f"namespace {name!r} cannot be created: limit max_namespaces ="
                    f" {self._limits.max_namespaces} is reached"
                )
            await self._put(self._namespace_table, name, NamespaceRecord(self._clock_us()))

    async def delete_namespace(self, name: str) -> None:
        """Delete a namespace without topics."""
        validate_namespace(name)
        async with self._changing():
            if name not in self._namespaces:
                raise NamespaceNotFoundError(f"namespace {name!r} does not exist")
            if name in BUILT_IN_NAMESPACES:
                raise FailedPreconditionError(f"namespace {name!r} is built in and cannot be deleted")
            held = sum(topic.startswith(f"/{name}/") for topic in self._topics)
            if held:
                raise FailedPreconditionError(
                    f"namespace {name!r} still holds {held} topic(s); delete them first (danube topics list)"
                )
            await self._delete(self._namespace_table, name)

    # --- Topics ---

    def topics(self, namespace: str = "") -> Iterator[tuple[str, TopicRecord]]:
        """Yield ``(name, record)`` of all topics, sorted; partitioned ones once, under their base name."""
        prefix = f"/{namespace}/" if namespace else "/"
        for name in sorted(self._topics):
            if name.startswith(prefix):
                yield name, self._topics[name]

    def find(self, topic: str) -> TopicRecord | None:
        """Return the record of a plain or base topic, or None."""
        return self._topics.get(topic)

    def locate(self, topic: str) -> tuple[TopicRecord, int]:
        """Return the record of a plain topic or of one partition, and that topic's id.

        Raises:
            TopicNotFoundError: the topic or partition does not exist.
            InvalidArgumentError: a partitioned base name, which holds no messages itself.
            StorageUnavailableError: it is not known yet whether it exists; see :attr:`unknown`.
        """
        record = self._topics.get(topic)
        if record is not None:
            if record.partitions:
                raise InvalidArgumentError(
                    f"topic {topic!r} has {record.partitions} partitions; open {partition_name(topic, 0)!r} and so on"
                )
            return record, record.topic_ids[0]
        split = split_partition(topic)
        base = self._topics.get(split[0]) if split else None
        if split and base is not None and split[1] < base.partitions:
            return base, base.topic_ids[split[1]]
        unknown = self.unknown(topic)
        if unknown is not None:
            raise unknown
        if split:
            # A plain topic cannot have this name, so the advice to create it would be wrong.
            create = f"does not exist; create that with: danube topics create {split[0]} --partitions N"
            has = f"has {base.partitions} partitions" if base is not None else create
            raise TopicNotFoundError(
                f"topic {topic!r} does not exist: it is the name of partition {split[1]} of {split[0]!r}, which {has}"
            )
        raise TopicNotFoundError(f"topic {topic!r} does not exist; create it with: danube topics create {topic}")

    async def create_topic(
        self,
        topic: str,
        durability: Durability,
        partitions: int,
        storage: str = "default",
        policies: TopicPolicies | None = None,
    ) -> TopicRecord:
        """Create a plain (0 partitions) or partitioned topic in one step."""
        name = validate_topic(topic)
        if split_partition(topic):
            raise InvalidNameError(
                f"topic {topic!r} is named like a partition; create its base topic with --partitions instead"
            )
        self._check_partitions(topic, partitions)
        async with self._changing():
            if name.namespace not in self._namespaces:
                raise NamespaceNotFoundError(
                    f"namespace {name.namespace!r} of topic {topic!r} does not exist; create it with:"
                    f" danube namespaces create {name.namespace}"
                )
            if topic in self._topics:
                raise AlreadyExistsError(f"topic {topic!r} exists already")
            self._check_room(topic, max(1, partitions))
            ids = [self.new_id() for _ in range(max(1, partitions))]
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
            self._check_partitions(topic, partitions)
            self._check_room(topic, added)
            ids = [*record.topic_ids, *(self.new_id() for _ in range(added))]
            return await self._put_topic(topic, msgspec.structs.replace(record, partitions=partitions, topic_ids=ids))

    def _check_partitions(self, topic: str, partitions: int) -> None:
        if not 0 <= partitions <= self._limits.max_partitions:
            raise InvalidArgumentError(
                f"topic {topic!r}: {partitions} partitions asked for, limit max_partitions ="
                f" {self._limits.max_partitions}"
            )

    def _check_room(self, topic: str, added: int) -> None:
        if sum(len(record.topic_ids) for record in self._topics.values()) + added > self._limits.max_topics:
            raise LimitExceededError(
                f"topic {topic!r} cannot be created: limit max_topics = {self._limits.max_topics} is reached"
            )

    async def restore_topic(
        self,
        topic: str,
        record: TopicRecord,
        subscriptions: Mapping[int, Mapping[str, tuple[SubscriptionRecord, bytes]]],
    ) -> None:
        """Enter a topic that existed elsewhere, with its ids and subscriptions. May be repeated after an interruption.

        Args:
            topic: its name; a namespace that is missing is created.
            record: its former record.
            subscriptions: by topic id and name: the record, and the snapshot of the cursor.

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
                for subscription, (entry, cursor) in subscriptions.get(topic_id, {}).items():
                    await self.snapshots.save([("cursors", entry.subscription_id, cursor)])
                    await self._store.put(_subscription_key(topic_id, subscription), _encode(entry))
            # The record comes last: until then nothing of this is visible.
            await self._put_topic(topic, record)

    def alive(self) -> set[int]:
        """Return the ids of all topics, including those that are withheld."""
        return {
            number for known in (self._topics, self._withheld) for each in known.values() for number in each.topic_ids
        }

    def withheld(self, storage: str) -> dict[str, TopicRecord]:
        """Return the withheld topics of a storage by name; see :meth:`withhold`."""
        return {
            name.removeprefix(storage): record
            for name, record in self._withheld.items()
            if name.startswith(storage + "/")
        }

    async def withhold(self, topic: str, record: TopicRecord) -> None:
        """Note a topic of a bucket that is not served, because another topic has its name: its history is kept."""
        async with self._changing():
            await self._put(self._withheld_table, record.storage + topic, record)

    async def release(self, topic: str, storage: str) -> None:
        """Remove the note of :meth:`withhold`: the topic has its name now, or does not exist any more."""
        async with self._changing():
            await self._delete(self._withheld_table, storage + topic)

    def expect(self, topic: str) -> TopicRecord:
        """Return the record of a plain or base topic that is to be deleted.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is a partition.
        """
        validate_topic(topic)
        record = self._topics.get(topic)
        if record is None:
            split = split_partition(topic)
            if split and split[0] in self._topics:
                raise FailedPreconditionError(
                    f"topic {topic!r} is a partition; only {split[0]!r} as a whole can be deleted"
                )
            raise TopicNotFoundError(f"topic {topic!r} does not exist")
        return record

    async def delete_topic(self, topic: str) -> TopicRecord:
        """Delete a plain or partitioned topic with all records of its ids, and return its last record.

        Raises:
            TopicNotFoundError, FailedPreconditionError: as :meth:`expect`.
        """
        async with self._changing():
            record = self.expect(topic)
            # The record is deleted first: the records of its ids are unreachable from then on, and removed at the next
            # start if the broker crashes in between.
            await self._delete(self._topic_table, topic)
            try:
                for topic_id in record.topic_ids:
                    await self._sweep(topic_id)
            except DanubeError as error:
                _log.warning("what is left of topic %r is swept at the next start: %s", topic, error)
            return record

    async def _sweep(self, topic_id: int) -> None:
        for item in (await self._store.list(f"/subscriptions/{topic_id:016x}/"))[0]:
            record = decode_subscription(item.value)
            await self.snapshots.delete("cursors", record.subscription_id)
            await self._store.delete(item.key)
        await self.snapshots.delete("topics", topic_id)

    async def sweep_orphans(self) -> int:
        """Delete records of topics and subscriptions that were deleted (an interrupted deletion); return how many."""
        alive = {topic_id for record in self._topics.values() for topic_id in record.topic_ids}
        orphans = {int(item.key.split("/")[2], 16) for item in (await self._store.list("/subscriptions/"))[0]} - alive
        orphans |= await self.snapshots.ids("topics") - alive
        for topic_id in orphans:
            await self._sweep(topic_id)
        # A checkpoint that was under way may have stored the cursor of a subscription that was just deleted.
        known = {
            record.subscription_id for records in (await self.subscriptions()).values() for record in records.values()
        }
        return len(orphans) + await self.snapshots.sweep("topics", alive) + await self.snapshots.sweep("cursors", known)

    # --- Policies ---

    @property
    def broker_policies(self) -> TopicPolicies:
        """Policies of the whole broker, as set by command; those of the configuration come after them."""
        return self._policy_table.values.get(_BROKER, _NO_POLICIES)

    def namespace_policies(self, name: str) -> TopicPolicies:
        """Return the policies of a namespace.

        Raises:
            NamespaceNotFoundError: it does not exist.
        """
        return self._namespace(name).policies

    def _namespace(self, name: str) -> NamespaceRecord:
        record = self._namespaces.get(name)
        if record is None:
            raise NamespaceNotFoundError(f"namespace {name!r} does not exist; list them with: danube namespaces list")
        return record

    async def change_broker_policies(self, changes: Mapping[str, Any]) -> None:
        """Change the policies of the broker; ``changes`` as in :func:`danube.model.policies.change_policy`."""
        async with self._changing():
            policies = change_policy(self.broker_policies, changes)
            await self._put(self._policy_table, _BROKER, policies)

    async def change_namespace_policies(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change the policies of a namespace.

        Raises:
            NamespaceNotFoundError: it does not exist.
            InvalidArgumentError: see :func:`danube.model.policies.change_policy`.
        """
        validate_namespace(name)
        async with self._changing():
            record = self._namespace(name)
            record = msgspec.structs.replace(record, policies=change_policy(record.policies, changes))
            await self._put(self._namespace_table, name, record)

    def records_above(self, topic: str) -> dict[str, bytes]:
        """Return the record of a topic's namespace by its name, and the policies of the broker under an empty one.

        Manifests store them beside the topic's own record.
        """
        namespace = topic.split("/", 2)[1]
        found = {"": _encode(self.broker_policies)}
        if namespace in self._namespaces:
            found[namespace] = _encode(self._namespaces[namespace])
        return found

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
                        await self._put(self._policy_table, _BROKER, policies)
                        restored.append(name)
                    continue
                record = self._namespace(name)
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
        self, topic: str, topic_id: int, subscription: str, changes: Mapping[str, Any], existing: Container[str] = ()
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
            record = self._existing(topic)
            planned = {each: dict(names) for each, names in record.planned.items()}
            for names in planned.values():
                for name in [name for name in names if name in existing]:
                    del names[name]
            if not topic_id:
                for each, names in planned.items():
                    if each and subscription in names:  # changes for the whole topic apply in each partition
                        names[subscription] = {**names[subscription], **changes}
            known = planned.setdefault(topic_id, {})
            known[subscription] = {**known.get(subscription, {}), **changes}
            if sum(map(len, planned.values())) > self._limits.max_planned_subscriptions:
                raise LimitExceededError(
                    f"topic {topic!r}: the policy of subscription {subscription!r}, which does not exist, cannot be"
                    f" kept: limit max_planned_subscriptions = {self._limits.max_planned_subscriptions} is reached;"
                    " subscribe first, or delete a subscription that has a policy and does not exist"
                )
            return await self._put_planned(topic, record, planned)

    async def forget_planned(self, topic: str, topic_id: int, subscription: str) -> TopicRecord | None:
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
            planned = {each: dict(names) for each, names in record.planned.items()}
            for each, names in planned.items():
                if topic_id in (0, each):
                    names.pop(subscription, None)
            if planned == record.planned:
                return None
            return await self._put_planned(topic, record, planned)

    async def _put_planned(
        self, topic: str, record: TopicRecord, planned: Mapping[int, dict[str, dict[str, Any]]]
    ) -> TopicRecord:
        kept = {each: names for each, names in planned.items() if names}
        return await self._put_topic(topic, msgspec.structs.replace(record, planned=kept))

    def _existing(self, topic: str) -> TopicRecord:
        record = self._topics.get(topic)
        if record is None:
            raise TopicNotFoundError(f"topic {topic!r} was deleted while it was being changed")
        return record

    async def replace_topic(self, topic: str, record: TopicRecord) -> None:
        """Replace the record of an existing topic by a copy that takes precedence."""
        async with self._changing():
            await self._put_topic(topic, record)

    async def _put_topic(self, topic: str, record: TopicRecord) -> TopicRecord:
        await self._put(self._topic_table, topic, record)
        return record

    async def change_subscription(self, topic_id: int, name: str, record: SubscriptionRecord) -> None:
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

    async def subscriptions(self) -> dict[int, dict[str, SubscriptionRecord]]:
        """Return all durable subscriptions, by topic id and name."""
        found: dict[int, dict[str, SubscriptionRecord]] = {}
        for item in (await self._store.list("/subscriptions/"))[0]:
            _, _, topic_id, name = item.key.split("/", 3)
            found.setdefault(int(topic_id, 16), {})[name] = decode_subscription(item.value)
        return found

    async def create_subscription(
        self,
        topic_id: int,
        name: str,
        kind: SubscriptionType,
        start_offset: int,
        policy: SubscriptionPolicy,
    ) -> SubscriptionRecord:
        """Store a new subscription; there is no checkpoint after that, so that the caller can create it."""
        record = SubscriptionRecord(self.new_id(), kind, start_offset, self._clock_us(), policy)
        with _together():
            await self._store.put(_subscription_key(topic_id, name), _encode(record))
        return record

    async def delete_subscription(self, topic_id: int, name: str, subscription_id: int) -> None:
        """Delete the records of a subscription and its cursor."""
        await self._store.delete(_subscription_key(topic_id, name))
        try:
            await self.snapshots.delete("cursors", subscription_id)
        except DanubeError as error:
            _log.warning("what is left of subscription %r is swept at the next start: %s", name, error)

    @staticmethod
    def encode(record: TopicRecord | SubscriptionRecord) -> bytes:
        """Return the stored form of a record, for copies of it."""
        return _encode(record)

    def new_id(self) -> int:
        """Return a random id for a topic, subscription or producer; never 0, fits a signed 64-bit integer."""
        return self._rng.getrandbits(63) or 1


def _nothing() -> Change | None:
    """No change is in doubt."""
    return None
