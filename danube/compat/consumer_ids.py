"""Assigns and stores durable consumer ids, by which official clients open their streams.

Such a client requests its id once, by topic, subscription and consumer name, and then opens its streams with the id
alone. An id therefore stays valid as long as its subscription exists, also after a restart of the broker; the Python
client, for example, cannot resume otherwise. Ids are in the metadata store::

    /compat/consumers/{broker}/{id}     ConsumerRecord
    /writers/{broker}/consumers         guard of the writer

An id is removed with its subscription, or after ``Limits.compat_consumer_expiry_s`` without use. Beyond
``Limits.max_compat_consumers`` ids, the least recently used ones are removed; a client with a removed id gets a status
that makes it subscribe again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import trio

from danube.compat.consumer_index import ConsumerIndex, ConsumerRecord, KnownConsumer, is_outdated
from danube.metadata import MetadataStore, RowChange, Table, TableWriter
from danube.metadata.table import decode_record
from danube.model import Limits
from danube.model.ids import TopicId

__all__ = ["ConsumerIds", "find_topic"]

_PREFIX: Final = "/compat/consumers/"
_RECORD: Final = msgspec.msgpack.Decoder(ConsumerRecord)
_DELETES_PER_TRANSACTION: Final = 100

_LOOKS_PER_TURN: Final = 1_000
"""Number of ids that a sweep checks before it lets other tasks run."""


class ConsumerIds:
    """All ids of one broker. Must be loaded (:meth:`load`) before anything is registered or removed.

    Args:
        store: the metadata store.
        broker: name of the broker; each one has ids of its own.
        limits: bound their number and age.
        new_id: returns a random id.
        exists: whether the topic and the subscription of a consumer still exist.
    """

    def __init__(
        self,
        store: MetadataStore,
        broker: str,
        limits: Limits,
        new_id: Callable[[], int],
        exists: Callable[[KnownConsumer], bool],
    ) -> None:
        self._store = store
        self._guard = f"/writers/{broker}/consumers"
        self._limits = limits
        self._new_id = new_id
        self._exists = exists
        self._table = Table(store, f"{_PREFIX}{broker}/", ConsumerRecord, on_change=self._changed)
        self._writer: TableWriter
        self._index = ConsumerIndex()

    def __len__(self) -> int:
        return len(self._index)

    async def load(self) -> None:
        """Read all ids from the store."""
        self._writer = await TableWriter.open(self._store, self._guard)
        await self._table.load()

    def _changed(self, change: RowChange[ConsumerRecord]) -> None:
        """Update the index after a record was created, changed or deleted."""
        self._index.changed(int(change.name, 16), change.after, trio.current_time())

    def find(self, consumer_id: int) -> KnownConsumer | None:
        """Return the consumer with an id, or None if the id is unknown or its subscription does not exist."""
        return self._seen(self._index.get(consumer_id))

    def look(self, consumer_id: int) -> KnownConsumer | None:
        """Return what :meth:`find` does, without noting that the id is in use."""
        consumer = self._index.get(consumer_id)
        return None if consumer is None or consumer.leaving or not self._exists(consumer) else consumer

    def named(self, topic_id: TopicId, subscription: str, name: str) -> KnownConsumer | None:
        """Return the consumer with a name, or None if it has no id or its subscription does not exist."""
        return self._seen(self._index.named(topic_id, subscription, name))

    def _seen(self, consumer: KnownConsumer | None) -> KnownConsumer | None:
        if consumer is None or consumer.leaving or not self._exists(consumer):
            return None
        consumer.used = trio.current_time()
        return consumer

    def of(self, topic_id: TopicId, subscription: str = "") -> list[KnownConsumer]:
        """Return the consumers of a subscription or topic that are connected or have a reserved place."""
        return self._index.present(topic_id, subscription, trio.current_time())

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
                former = self._index.named(*name)
                if former is not None:
                    await self._forget([former])  # it belongs to a deleted subscription of the same name
                await self._make_room()
                consumer_id = self._new_id()
                await self._writer.apply(self._table.create(_name(consumer_id), record))
                consumer = self._index.get(consumer_id)
                assert consumer is not None
            elif consumer.record != record:
                await self._writer.apply(self._table.put(_name(consumer.consumer_id), record))
            consumer.subscription_id = subscription_id
            return consumer

    async def _make_room(self) -> None:
        most = self._limits.max_compat_consumers
        if len(self._index) < most:
            return
        await self._forget(await self._outdated())
        await self._forget(self._index.to_make_room(most))

    async def sweep(self) -> int:
        """Remove the ids of deleted subscriptions and unused ids; return their number."""
        async with self._writer.changing():
            outdated = await self._outdated()
            await self._forget(outdated)
        return len(outdated)

    async def _outdated(self) -> list[KnownConsumer]:
        before = trio.current_time() - self._limits.compat_consumer_expiry_s
        found: list[KnownConsumer] = []
        for count, consumer in enumerate(self._index, 1):
            if is_outdated(consumer, before, exists=self._exists(consumer)):
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


async def find_topic(store: MetadataStore, brokers: Iterable[str], consumer_id: int) -> str | None:
    """Return the topic of a consumer of any broker; None if no broker has stored the id.

    Args:
        store: the metadata store, which is asked for each broker.
        brokers: the names of all brokers.
        consumer_id: from a client.

    Raises:
        DanubeError: the store cannot answer, or has a record that does not decode.
    """
    for broker in brokers:
        item = await store.get(f"{_PREFIX}{broker}/{_name(consumer_id)}")
        if item is not None:
            return decode_record(item, _RECORD.decode).topic
    return None


def _name(consumer_id: int) -> str:
    return f"{consumer_id:016x}"
