"""The records of the catalogue in memory: lookups, and what a change must satisfy. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Final

import msgspec

from danube.model import Limits, Rate, TopicPolicies, partition_name, validate_topic
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    NamespaceNotFoundError,
    TopicNotFoundError,
)
from danube.model.ids import TopicId
from danube.model.names import SYSTEM_NAMESPACE, split_partition
from danube.model.quotas import NamespaceQuota
from danube.model.records import NamespaceRecord, SubscriptionRecord, TopicRecord

__all__ = ["BROKER", "BUILT_IN_NAMESPACES", "CatalogueRecords", "without_planned"]

BUILT_IN_NAMESPACES: Final = ("default", SYSTEM_NAMESPACE)
BROKER: Final = "broker"
"""Name of the record with the policies of the whole broker."""

_encode = msgspec.msgpack.encode
_NO_POLICIES: Final = TopicPolicies()
_NO_QUOTA: Final = NamespaceQuota()


class CatalogueRecords:
    """Namespaces, topics and policies, as mirrors of the metadata store that the owner keeps current.

    Args:
        limits: bound the number of namespaces, topics and planned policies.
        namespaces: by name.
        topics: by name; a partitioned topic is one record.
        storages: the identity of each storage, by name.
        policies: those of the broker, as :data:`BROKER`.
        withheld: topics of buckets that are not served, by storage and name.
    """

    def __init__(
        self,
        limits: Limits,
        namespaces: Mapping[str, NamespaceRecord],
        topics: Mapping[str, TopicRecord],
        storages: Mapping[str, str],
        policies: Mapping[str, TopicPolicies],
        withheld: Mapping[str, TopicRecord],
    ) -> None:
        self._limits = limits
        self._namespaces = namespaces
        self._topics = topics
        self._storages = storages
        self._policies = policies
        self._withheld = withheld
        self._partitions = sum(len(record.topic_ids) for record in topics.values())
        """Of all topics; plain ones count as one."""
        self._held: Counter[str] = Counter()
        """The same, of each namespace."""
        for name, record in topics.items():
            self._held[_namespace_of(name)] += len(record.topic_ids)
        self.unknown: Callable[[str], DanubeError | None] = lambda topic: None
        """Returns why it is unknown whether a topic without a record exists; None if it does not."""

    def storage_identity(self, name: str) -> str:
        """Return the identity of a storage; empty if it was never written to."""
        return self._storages.get(name, "")

    # --- Namespaces ---

    @property
    def namespaces(self) -> list[str]:
        """Names of all namespaces, sorted."""
        return sorted(self._namespaces)

    def namespace(self, name: str) -> NamespaceRecord:
        """Return the record of a namespace; raise NamespaceNotFoundError if it does not exist."""
        record = self._namespaces.get(name)
        if record is None:
            raise NamespaceNotFoundError(f"namespace {name!r} does not exist; list them with: danube namespaces list")
        return record

    def check_new_namespace(self, name: str) -> None:
        """Check that a namespace can be created.

        Raises:
            AlreadyExistsError: it exists.
            LimitExceededError: there are too many.
        """
        if name in self._namespaces:
            raise AlreadyExistsError(f"namespace {name!r} exists already")
        if len(self._namespaces) >= self._limits.max_namespaces:
            raise LimitExceededError(
                f"namespace {name!r} cannot be created: limit max_namespaces = {self._limits.max_namespaces} is reached"
            )

    def check_delete_namespace(self, name: str) -> None:
        """Check that a namespace can be deleted.

        Raises:
            NamespaceNotFoundError: it does not exist.
            FailedPreconditionError: it is built in, or has topics, or a quota: one who may delete namespaces, but not
                change quotas, would be rid of it.
        """
        if name not in self._namespaces:
            raise NamespaceNotFoundError(f"namespace {name!r} does not exist")
        if name in BUILT_IN_NAMESPACES:
            raise FailedPreconditionError(f"namespace {name!r} is built in and cannot be deleted")
        held = sum(topic.startswith(f"/{name}/") for topic in self._topics)
        if held:
            raise FailedPreconditionError(
                f"namespace {name!r} still holds {held} topic(s); delete them first (danube topics list)"
            )
        if self._namespaces[name].quota != _NO_QUOTA:
            raise FailedPreconditionError(
                f"namespace {name!r} has a quota; have an administrator remove it first: danube namespaces quota unset"
                f" {name} {' '.join(msgspec.to_builtins(self._namespaces[name].quota))}"
            )

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

    def locate(self, topic: str) -> tuple[TopicRecord, TopicId]:
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

    def alive(self) -> set[TopicId]:
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

    def existing(self, topic: str) -> TopicRecord:
        """Return the record of a topic that is being changed; raise TopicNotFoundError if it was deleted."""
        record = self._topics.get(topic)
        if record is None:
            raise TopicNotFoundError(f"topic {topic!r} was deleted while it was being changed")
        return record

    @staticmethod
    def check_base_name(topic: str) -> None:
        """Check the name of a topic that is to be created; raise InvalidNameError."""
        validate_topic(topic)
        if split_partition(topic):
            raise InvalidNameError(
                f"topic {topic!r} is named like a partition; create its base topic with --partitions instead"
            )

    def check_new_topic(self, topic: str, added: int) -> None:
        """Check that a topic can be created.

        Args:
            topic: its name.
            added: number of its partitions; 1 for a plain topic.

        Raises:
            NamespaceNotFoundError: its namespace does not exist.
            AlreadyExistsError: it exists.
            LimitExceededError: there are too many.
        """
        namespace = validate_topic(topic).namespace
        if namespace not in self._namespaces:
            raise NamespaceNotFoundError(
                f"namespace {namespace!r} of topic {topic!r} does not exist; create it with:"
                f" danube namespaces create {namespace}"
            )
        if topic in self._topics:
            raise AlreadyExistsError(f"topic {topic!r} exists already")
        self.check_room(topic, added)

    def check_partitions(self, topic: str, partitions: int) -> None:
        """Check the number of partitions of a topic; raise InvalidArgumentError."""
        if not 0 <= partitions <= self._limits.max_partitions:
            raise InvalidArgumentError(
                f"topic {topic!r}: {partitions} partitions asked for, limit max_partitions ="
                f" {self._limits.max_partitions}"
            )

    def check_room(self, topic: str, added: int) -> None:
        """Check that a topic may have so many more partitions; raise LimitExceededError."""
        if not self.has_room(added):
            raise LimitExceededError(
                f"topic {topic!r} cannot be created: limit max_topics = {self._limits.max_topics} is reached"
            )

    def has_room(self, added: int) -> bool:
        """Whether so many more topics and partitions are allowed."""
        return self._partitions + added <= self._limits.max_topics

    def note_topic(self, name: str, before: TopicRecord | None, after: TopicRecord | None) -> None:
        """Count the partitions of a topic whose record was created, changed or deleted."""
        more = (len(after.topic_ids) if after else 0) - (len(before.topic_ids) if before else 0)
        self._partitions += more
        namespace = _namespace_of(name)
        self._held[namespace] += more
        if not self._held[namespace]:
            del self._held[namespace]

    def topics_of(self, namespace: str) -> int:
        """Return how many topics and partitions of a namespace are known."""
        return self._held.get(namespace, 0)

    def publish_quota(self, namespace: str) -> Rate | None:
        """Return the publish rate in the quota of a namespace; None if it has none, or does not exist."""
        record = self._namespaces.get(namespace)
        return record.quota.publish_rate if record is not None else None

    def dispatch_quota(self, namespace: str) -> Rate | None:
        """Return the dispatch rate in the quota of a namespace; None if it has none, or does not exist."""
        record = self._namespaces.get(namespace)
        return record.quota.dispatch_rate if record is not None else None

    def space_quota(self, namespace: str) -> int | None:
        """Return how many bytes a namespace may store at each broker; None if it has no quota, or does not exist."""
        record = self._namespaces.get(namespace)
        return record.quota.max_stored_bytes if record is not None else None

    def connections_quota(self, namespace: str) -> int | None:
        """Return how many connections may use a namespace at each broker; None if it has no quota, or is not there."""
        record = self._namespaces.get(namespace)
        return record.quota.max_connections if record is not None else None

    def subjects_quota(self, namespace: str) -> int | None:
        """Return how many subjects of schemas a namespace may have; None if it has no quota, or is not there."""
        record = self._namespaces.get(namespace)
        return record.quota.max_subjects if record is not None else None

    # --- Policies ---

    @property
    def broker_policies(self) -> TopicPolicies:
        """Policies of the whole broker, as set by command; those of the configuration come after them."""
        return self._policies.get(BROKER, _NO_POLICIES)

    def namespace_policies(self, name: str) -> TopicPolicies:
        """Return the policies of a namespace.

        Raises:
            NamespaceNotFoundError: it does not exist.
        """
        return self.namespace(name).policies

    def records_above(self, topic: str) -> dict[str, bytes]:
        """Return the record of a topic's namespace by its name, and the policies of the broker under an empty one.

        Manifests store them beside the topic's own record.
        """
        namespace = topic.split("/", 2)[1]
        found = {"": _encode(self.broker_policies)}
        if namespace in self._namespaces:
            found[namespace] = _encode(self._namespaces[namespace])
        return found

    def planned_with(
        self, topic: str, topic_id: TopicId, subscription: str, changes: Mapping[str, Any], existing: Container[str]
    ) -> TopicRecord:
        """Return the record of a topic with planned policy changes of a subscription that does not exist yet.

        Args:
            topic: plain or partitioned.
            topic_id: of the one partition that this is for; 0: for all of them, and the plain topic.
            subscription: its name.
            changes: names and plain values; added to the stored ones.
            existing: subscriptions whose planned changes are not needed any more.

        Raises:
            TopicNotFoundError: the topic was deleted.
            LimitExceededError: too many are stored.
        """
        record = self.existing(topic)
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
        return _replaced(record, planned)

    @staticmethod
    def encode(record: TopicRecord | SubscriptionRecord) -> bytes:
        """Return the stored form of a record, for copies of it."""
        return _encode(record)


def without_planned(record: TopicRecord, topic_id: TopicId, subscription: str) -> TopicRecord | None:
    """Return the record of a topic without the planned changes of a subscription; None if there are none.

    Args:
        record: of a plain or partitioned topic.
        topic_id: of the one partition that this is for; 0: of all of them.
        subscription: its name.
    """
    planned = {each: dict(names) for each, names in record.planned.items()}
    for each, names in planned.items():
        if topic_id in (0, each):
            names.pop(subscription, None)
    return None if planned == record.planned else _replaced(record, planned)


def _namespace_of(topic: str) -> str:
    return topic.split("/", 2)[1]


def _replaced(record: TopicRecord, planned: Mapping[TopicId, dict[str, dict[str, Any]]]) -> TopicRecord:
    kept = {each: names for each, names in planned.items() if names}
    return msgspec.structs.replace(record, planned=kept)
