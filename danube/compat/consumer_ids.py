"""Assigns and stores durable consumer ids, by which official clients open their streams.

Such a client requests its id once, by topic, subscription and consumer name, and then opens its streams with the id
alone. An id therefore stays valid as long as its subscription exists, also after a restart of the broker; the Python
client, for example, cannot resume otherwise. Ids are in the metadata store::

    /compat/consumers/{id}      ConsumerRecord
    /writers/consumers          guard of the writer

An id is removed with its subscription, or after ``Limits.compat_consumer_expiry_s`` without use. Beyond
``Limits.max_compat_consumers`` ids, the least recently used ones are removed; a client with a removed id gets a status
that makes it subscribe again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.metadata import MetadataStore, RowChange, Table, TableWriter
from danube.model import Limits, SubscriptionType
from danube.model.errors import LimitExceededError
from danube.model.ids import TopicId

if TYPE_CHECKING:
    from danube.compat.receiving import CompatConsumer

__all__ = ["ConsumerIds", "ConsumerRecord", "KnownConsumer"]

_PREFIX: Final = "/compat/consumers/"
_WRITER: Final = "/writers/consumers"
_DELETES_PER_TRANSACTION: Final = 100

_LOOKS_PER_TURN: Final = 1_000
"""Number of ids that a sweep checks before it lets other tasks run."""


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


class KnownConsumer:
    """A consumer with an id, its stored record, and its connection state."""

    __slots__ = ("active", "consumer_id", "expected_until", "leaving", "record", "stream", "subscription_id", "used")

    def __init__(self, consumer_id: int, record: ConsumerRecord, now: float) -> None:
        self.consumer_id = consumer_id
        self.record = record
        self.subscription_id = record.subscription_id
        """Id of its subscription; 0 if it has not been seen since the broker was started."""
        self.stream: CompatConsumer | None = None
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


class ConsumerIds:
    """All ids of one broker. Must be loaded (:meth:`load`) before anything is registered or removed.

    Args:
        store: the metadata store.
        limits: bound their number and age.
        new_id: returns a random id.
        exists: whether the topic and the subscription of a consumer still exist.
    """

    def __init__(
        self, store: MetadataStore, limits: Limits, new_id: Callable[[], int], exists: Callable[[KnownConsumer], bool]
    ) -> None:
        self._store = store
        self._limits = limits
        self._new_id = new_id
        self._exists = exists
        self._table = Table(store, _PREFIX, ConsumerRecord, on_change=self._changed)
        self._writer: TableWriter
        self._known: dict[int, KnownConsumer] = {}
        self._by_topic: dict[TopicId, dict[tuple[str, str], KnownConsumer]] = {}
        """By topic id, then by subscription and name."""

    def __len__(self) -> int:
        return len(self._known)

    async def load(self) -> None:
        """Read all ids from the store."""
        self._writer = await TableWriter.open(self._store, _WRITER)
        await self._table.load()

    def _changed(self, change: RowChange[ConsumerRecord]) -> None:
        """Update the indexes after a record was created, changed or deleted."""
        consumer_id = int(change.name, 16)
        known = self._known.get(consumer_id)
        if change.after is None:
            if known is not None:
                self._unlearn(known)
        elif known is None:
            self._learn(KnownConsumer(consumer_id, change.after, trio.current_time()))
        else:
            known.record = change.after

    def _learn(self, consumer: KnownConsumer) -> None:
        record = consumer.record
        self._known[consumer.consumer_id] = consumer
        self._by_topic.setdefault(record.topic_id, {})[record.subscription, record.name] = consumer

    def _unlearn(self, consumer: KnownConsumer) -> None:
        record = consumer.record
        self._known.pop(consumer.consumer_id, None)
        of_topic = self._by_topic.get(record.topic_id, {})
        if of_topic.get((record.subscription, record.name)) is consumer:
            del of_topic[record.subscription, record.name]
        if not of_topic:
            self._by_topic.pop(record.topic_id, None)

    def find(self, consumer_id: int) -> KnownConsumer | None:
        """Return the consumer with an id, or None if the id is unknown or its subscription does not exist."""
        return self._seen(self._known.get(consumer_id))

    def named(self, topic_id: TopicId, subscription: str, name: str) -> KnownConsumer | None:
        """Return the consumer with a name, or None if it has no id or its subscription does not exist."""
        return self._seen(self._named(topic_id, subscription, name))

    def _named(self, topic_id: TopicId, subscription: str, name: str) -> KnownConsumer | None:
        return self._by_topic.get(topic_id, {}).get((subscription, name))

    def _seen(self, consumer: KnownConsumer | None) -> KnownConsumer | None:
        if consumer is None or consumer.leaving or not self._exists(consumer):
            return None
        consumer.used = trio.current_time()
        return consumer

    def of(self, topic_id: TopicId, subscription: str = "") -> list[KnownConsumer]:
        """Return the consumers of a subscription or topic that are connected or have a reserved place."""
        now = trio.current_time()
        return [
            consumer
            for (of, _), consumer in self._by_topic.get(topic_id, {}).items()
            if (not subscription or of == subscription)
            and (consumer.stream is not None or consumer.expected_until > now)
        ]

    async def register(self, record: ConsumerRecord, subscription_id: int) -> KnownConsumer:
        """Store a record and return its consumer; a new consumer gets an id. Durable on return.

        Args:
            record: of the consumer.
            subscription_id: id of its subscription since the broker was started.

        Raises:
            LimitExceededError: the maximum number of ids is reached, and all their consumers are connected.
            DanubeError: the store failed. If it has stored the record nevertheless, the next call finds it.
        """
        async with self._writer.changing():
            name = (record.topic_id, record.subscription, record.name)
            consumer = self.named(*name)
            if consumer is None:
                former = self._named(*name)
                if former is not None:
                    await self._forget([former])  # it belongs to a deleted subscription of the same name
                await self._make_room()
                consumer_id = self._new_id()
                await self._writer.apply(self._table.create(_name(consumer_id), record))
                consumer = self._known[consumer_id]
            elif consumer.record != record:
                await self._writer.apply(self._table.put(_name(consumer.consumer_id), record))
            consumer.subscription_id = subscription_id
            return consumer

    async def _make_room(self) -> None:
        most = self._limits.max_compat_consumers
        if len(self._known) < most:
            return
        await self._forget(await self._outdated())
        if len(self._known) < most:
            return
        idle = [consumer for consumer in self._known.values() if consumer.stream is None]
        if not idle:
            raise LimitExceededError(
                f"limit max_compat_consumers = {most} is reached, and all of these consumers are connected; disconnect"
                " some, or raise it"
            )
        idle.sort(key=lambda consumer: consumer.used)
        await self._forget(idle[: 1 + most // 100])  # removed in groups, because the search is slow

    async def sweep(self) -> int:
        """Remove the ids of deleted subscriptions and unused ids; return their number."""
        async with self._writer.changing():
            outdated = await self._outdated()
            await self._forget(outdated)
        return len(outdated)

    async def _outdated(self) -> list[KnownConsumer]:
        before = trio.current_time() - self._limits.compat_consumer_expiry_s
        found: list[KnownConsumer] = []
        for count, consumer in enumerate(list(self._known.values()), 1):
            if (consumer.stream is None and consumer.used < before) or not self._exists(consumer):
                found.append(consumer)
            if not count % _LOOKS_PER_TURN:
                await trio.lowlevel.checkpoint()
        return found

    async def _forget(self, consumers: Sequence[KnownConsumer]) -> None:
        for start in range(0, len(consumers), _DELETES_PER_TRANSACTION):
            some = [
                consumer
                for consumer in consumers[start : start + _DELETES_PER_TRANSACTION]
                if consumer.stream is None or not self._exists(consumer)  # it may have connected since it was chosen
            ]
            if not some:
                continue
            for consumer in some:
                consumer.leaving = True
            try:
                await self._writer.apply(*[self._table.delete(_name(consumer.consumer_id)) for consumer in some])
            finally:
                for consumer in some:  # those that were removed are unknown by now
                    consumer.leaving = False


def _name(consumer_id: int) -> str:
    return f"{consumer_id:016x}"
