"""Stored records of namespaces, topics and subscriptions, in the metadata store and as copies in buckets.

Each is a msgpack array; new fields are added at the end and have a default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from danube.model import Durability, SubscriptionPolicy, SubscriptionType, TopicPolicies, partition_name
from danube.model.errors import TopicReplacedError
from danube.model.ids import NO_TOPIC, Offset, TopicId
from danube.model.quotas import NamespaceQuota

__all__ = [
    "NamespaceRecord",
    "SubscriptionRecord",
    "TopicRecord",
    "check_topic_ids",
    "decode_subscription",
    "decode_topic",
    "encode_briefly",
    "members",
]


class NamespaceRecord(msgspec.Struct, array_like=True):
    """A namespace."""

    created_us: int
    policies: TopicPolicies = TopicPolicies()
    quota: NamespaceQuota = NamespaceQuota()


class TopicRecord(msgspec.Struct, array_like=True):
    """A topic, plain (one id) or partitioned (one id for each partition)."""

    durability: Durability
    partitions: int
    topic_ids: list[TopicId]
    created_us: int
    storage: str = "default"
    """Name of the storage for its history."""
    policies: TopicPolicies = TopicPolicies()
    planned: dict[TopicId, dict[str, dict[str, Any]]] = {}
    """Policies of subscriptions that do not exist yet: topic id (0: all partitions) and name to the changed fields."""
    schema_subject: str = ""
    """Subject of the schemas of its messages; empty: none."""

    def planned_for(self, topic_id: TopicId, subscription: str) -> Mapping[str, Any]:
        """Return the planned policy changes for a new subscription of the topic or partition with this id."""
        every, own = (self.planned.get(each, {}).get(subscription, {}) for each in (NO_TOPIC, topic_id))
        return {**every, **own}


class SubscriptionRecord(msgspec.Struct, array_like=True):
    """A subscription of a topic or partition."""

    subscription_id: int
    type: SubscriptionType
    start_offset: Offset
    """Its initial cursor floor."""
    created_us: int
    policy: SubscriptionPolicy = SubscriptionPolicy()


def members(name: str, record: TopicRecord) -> list[tuple[str, TopicId]]:
    """Return the names and ids of the topics or partitions of a record."""
    if not record.partitions:
        return [(name, record.topic_ids[0])]
    return [(partition_name(name, index), topic_id) for index, topic_id in enumerate(record.topic_ids)]


_TOPIC = msgspec.msgpack.Decoder(TopicRecord)
_SUBSCRIPTION = msgspec.msgpack.Decoder(SubscriptionRecord)


_encode = msgspec.msgpack.Encoder().encode
_NO_POLICIES = TopicPolicies()


def encode_briefly(record: TopicRecord) -> bytes:
    """Encode the record of a topic without those fields at its end that have their defaults. It decodes like any other.

    For the memory of a broker, which has the records of all topics of a cluster.
    """
    fields = [record.durability, record.partitions, record.topic_ids, record.created_us]
    if record.schema_subject:
        fields += [record.storage, record.policies, record.planned, record.schema_subject]
    elif record.storage != "default" or record.policies != _NO_POLICIES or record.planned:
        fields += [record.storage, record.policies, record.planned]
    return _encode(fields)


def decode_topic(record: bytes) -> TopicRecord:
    """Decode the record of a topic."""
    return _TOPIC.decode(record)


def decode_subscription(record: bytes) -> SubscriptionRecord:
    """Decode the record of a subscription."""
    return _SUBSCRIPTION.decode(record)


def check_topic_ids(topic: str, wanted: Collection[TopicId], *found: TopicId) -> None:
    """Check that a topic is one that a caller means.

    Args:
        topic: its name.
        wanted: the ids that it may have; empty: any.
        found: its ids: the first one of a partitioned topic, and that of a partition.

    Raises:
        TopicReplacedError: it has none of them.
    """
    if wanted and not any(each in wanted for each in found):
        raise TopicReplacedError(
            f"topic {topic} has the id {found[0]}, not the one that the call names: it was deleted and created again;"
            " read it again before you change it"
        )
