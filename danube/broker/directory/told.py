"""Provides the records of topics and subscriptions that history writes to the manifests of buckets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from danube.model.names import split_partition

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic
    from danube.history import Subscriptions
    from danube.model.ids import TopicId

__all__ = ["ToldOfTopics"]

_encode = msgspec.msgpack.encode


class ToldOfTopics:
    """Implements :class:`danube.history.RecordSource` on a directory."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._catalogue = directory.catalogue

    def of_topics(self, names: Iterable[str]) -> tuple[dict[str, bytes], Subscriptions]:
        """Return the records of the topics that these topics and partitions belong to, and their subscriptions.

        The records include those of their namespaces, and the policies of the broker.
        """
        catalogue = self._catalogue
        found: dict[str, bytes] = {}
        subscriptions: Subscriptions = {}
        for name in names:
            split = split_partition(name)
            base = split[0] if split else name
            record = catalogue.find(base)
            if record is not None:
                found[base] = catalogue.encode(record)
                found |= catalogue.records_above(base)
                topic = self._directory.find(name)
                subscriptions[topic.topic_id] = self._subscriptions_of(topic)
        return found, subscriptions

    def record_of(self, name: str) -> bytes | None:
        """Return the record of a topic, None if it does not exist."""
        record = self._catalogue.find(name)
        return self._catalogue.encode(record) if record is not None else None

    def _subscriptions_of(self, topic: Topic) -> dict[str, tuple[bytes, bytes]]:
        return {
            name: (self._catalogue.encode(found.record), found.snapshot())
            for name, found in topic.subscriptions.items()
            if found.record is not None
        }

    def gaps_of(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, list[bytes]]:
        """Return the records of the declared gaps of topics, in their order, of those that have any."""
        known = self._catalogue.gaps
        return {topic_id: [_encode(gap) for gap in gaps] for topic_id in topic_ids if (gaps := known.of(topic_id))}

    def everything(self, storage: str) -> tuple[dict[str, bytes], Subscriptions]:
        """Return the records of all topics of a storage and of the levels above them, and their durable subscriptions.

        The subscriptions are given as topic id, name, (record, cursor).
        """
        catalogue = self._catalogue
        records: dict[str, bytes] = {}
        for name, record in catalogue.topics():
            if record.storage == storage:
                records[name] = catalogue.encode(record)
                records |= catalogue.records_above(name)
        subscriptions = {
            topic.topic_id: self._subscriptions_of(topic)
            for topic in self._directory.topics()
            if topic.subscriptions and topic.storage == storage
        }
        return records, subscriptions
