"""The ids of official clients' consumers in memory: which are known, and which are removed. Pure.

* A name has one id in each subscription of a topic.
* An id is outdated if its subscription does not exist any more, or if it has had no stream and no request for longer
  than ``compat_consumer_expiry_s``.
* Where no room is left for another id, the least recently used ones without a stream make room, one percent of all at
  a time, because the search is slow. A connected consumer never loses its id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import msgspec

from danube.broker.faces import ConnectedConsumer
from danube.model.errors import LimitExceededError
from danube.model.ids import TopicId
from danube.model.policies import SubscriptionType

__all__ = ["ConsumerIndex", "ConsumerRecord", "KnownConsumer", "OpenStream", "is_outdated"]


class ConsumerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The stored record of a consumer."""

    topic_id: TopicId
    topic: str
    subscription: str
    subscription_id: int
    """0 if its topic stores no messages: the id of the subscription then changes at each start of the broker."""
    name: str
    type: SubscriptionType
    key_filters: tuple[str, ...] = ()


class OpenStream(ConnectedConsumer, Protocol):
    """What consumers with an id need from the stream of one; see :class:`danube.compat.receiving.CompatConsumer`."""

    began: float
    """When it connected, in monotonic seconds."""


class KnownConsumer:
    """A consumer with an id, its stored record, and its connection state."""

    __slots__ = ("active", "consumer_id", "expected_until", "leaving", "record", "stream", "subscription_id", "used")

    def __init__(self, consumer_id: int, record: ConsumerRecord, now: float) -> None:
        self.consumer_id = consumer_id
        self.record = record
        self.subscription_id = record.subscription_id
        """Id of its subscription; 0 if it has not been seen since the broker was started."""
        self.stream: OpenStream | None = None
        """Its open stream."""
        self.active = True
        """False once its stream has ended. True while it has one, and before it has opened one since it subscribed or
        since the broker was started."""
        self.expected_until = -math.inf
        """Time (monotonic seconds) until which its place in the subscription is reserved after it has subscribed."""
        self.used = now
        """Time of its last request, in monotonic seconds."""
        self.leaving = False
        """Whether its id is being removed: it is not found any more."""


class ConsumerIndex:
    """All known consumers, by id and by topic, subscription and name."""

    __slots__ = ("_by_topic", "_known")

    def __init__(self) -> None:
        self._known: dict[int, KnownConsumer] = {}
        self._by_topic: dict[TopicId, dict[tuple[str, str], KnownConsumer]] = {}
        """By topic id, then by subscription and name. A topic without consumers is not in it."""

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[KnownConsumer]:
        """Yield all consumers of this moment; the index may change meanwhile."""
        return iter(list(self._known.values()))

    def get(self, consumer_id: int) -> KnownConsumer | None:
        """Return the consumer with an id."""
        return self._known.get(consumer_id)

    def named(self, topic_id: TopicId, subscription: str, name: str) -> KnownConsumer | None:
        """Return the consumer with a name."""
        return self._by_topic.get(topic_id, {}).get((subscription, name))

    def changed(self, consumer_id: int, record: ConsumerRecord | None, now: float) -> None:
        """Follow a stored record: created, changed (neither its names nor its topic), or deleted (None).

        Args:
            consumer_id: whose record it is.
            record: the record.
            now: monotonic seconds.
        """
        known = self._known.get(consumer_id)
        if known is None:
            if record is not None:
                known = self._known[consumer_id] = KnownConsumer(consumer_id, record, now)
                self._by_topic.setdefault(record.topic_id, {})[record.subscription, record.name] = known
        elif record is None:
            self._unlearn(known)
        else:
            known.record = record

    def _unlearn(self, consumer: KnownConsumer) -> None:
        record = consumer.record
        del self._known[consumer.consumer_id]
        of_topic = self._by_topic.get(record.topic_id, {})
        if of_topic.get((record.subscription, record.name)) is consumer:
            del of_topic[record.subscription, record.name]
        if not of_topic:
            self._by_topic.pop(record.topic_id, None)

    def present(self, topic_id: TopicId, subscription: str, now: float) -> list[KnownConsumer]:
        """Return the consumers of a topic that are connected or have a reserved place.

        Args:
            topic_id: of the topic.
            subscription: only its consumers; those of all if empty.
            now: monotonic seconds.
        """
        return [
            consumer
            for (of, _), consumer in self._by_topic.get(topic_id, {}).items()
            if (not subscription or of == subscription)
            and (consumer.stream is not None or consumer.expected_until > now)
        ]

    def to_make_room(self, most: int) -> list[KnownConsumer]:
        """Return the consumers to forget before another one may be registered; none if fewer than ``most`` are known.

        Raises:
            LimitExceededError: all consumers are connected.
        """
        if len(self._known) < most:
            return []
        idle = [consumer for consumer in self._known.values() if consumer.stream is None]
        if not idle:
            raise LimitExceededError(
                f"limit max_compat_consumers = {most} is reached, and all of these consumers are connected; disconnect"
                " some, or raise it"
            )
        idle.sort(key=lambda consumer: consumer.used)
        return idle[: 1 + most // 100]


def is_outdated(consumer: KnownConsumer, before: float, *, exists: bool) -> bool:
    """Whether an id is to be removed: its subscription does not exist, or it was not used since ``before``."""
    return not exists or (consumer.stream is None and consumer.used < before)
