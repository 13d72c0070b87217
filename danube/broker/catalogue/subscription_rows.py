"""The records of subscriptions in the metadata store.

They have no table, because their topics know them. Several are written concurrently, and an unknown outcome of such a
write is not resolved: the next start of the broker finds the subscription, or does not.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from danube.broker.catalogue.changes import Changes
from danube.metadata import MetadataStore
from danube.model import SubscriptionPolicy, SubscriptionType
from danube.model.errors import SubscriptionNotFoundError
from danube.model.ids import Offset, TopicId
from danube.model.records import SubscriptionRecord, decode_subscription

__all__ = ["SubscriptionRows"]

_encode = msgspec.msgpack.encode


def _key(topic_id: TopicId, subscription: str) -> str:
    return f"/subscriptions/{topic_id:016x}/{subscription}"


class SubscriptionRows:
    """Reads and writes the records; see the module.

    Args:
        store: the metadata.
        changes: of this broker; a change of a record waits for the others.
        new_id: returns a random id.
        clock_us: microseconds since 1970.
    """

    def __init__(
        self, store: MetadataStore, changes: Changes, new_id: Callable[[], int], clock_us: Callable[[], int]
    ) -> None:
        self._store = store
        self._changes = changes
        self._new_id = new_id
        self._clock_us = clock_us

    async def every(self) -> dict[TopicId, dict[str, SubscriptionRecord]]:
        """Return all durable subscriptions, by topic id and name."""
        found: dict[TopicId, dict[str, SubscriptionRecord]] = {}
        for item in (await self._store.list("/subscriptions/"))[0]:
            _, _, topic_id, name = item.key.split("/", 3)
            found.setdefault(TopicId(int(topic_id, 16)), {})[name] = decode_subscription(item.value)
        return found

    async def of_topic(self, topic_id: TopicId) -> dict[str, SubscriptionRecord]:
        """Return the durable subscriptions of a topic or partition, by their names."""
        items = (await self._store.list(f"/subscriptions/{topic_id:016x}/"))[0]
        return {item.key.rsplit("/", 1)[1]: decode_subscription(item.value) for item in items}

    async def create(
        self,
        topic_id: TopicId,
        name: str,
        kind: SubscriptionType,
        start_offset: Offset,
        policy: SubscriptionPolicy,
    ) -> SubscriptionRecord:
        """Store a new subscription. If this is cancelled the next start of the broker may find it."""
        record = SubscriptionRecord(self._new_id(), kind, start_offset, self._clock_us(), policy)
        await self.enter(topic_id, name, record)
        return record

    async def enter(self, topic_id: TopicId, name: str, record: SubscriptionRecord) -> None:
        """Store the record of a subscription, or replace it."""
        await self._store.put(_key(topic_id, name), _encode(record))

    async def change(self, topic_id: TopicId, name: str, record: SubscriptionRecord) -> None:
        """Replace the record of a subscription.

        Raises:
            SubscriptionNotFoundError: it was deleted in the meantime.
        """
        async with self._changes.changing():
            key = _key(topic_id, name)
            present = await self._store.get(key)
            if present is None or decode_subscription(present.value).subscription_id != record.subscription_id:
                raise SubscriptionNotFoundError(f"subscription {name!r} was deleted while its policy was being changed")
            await self._store.put(key, _encode(record), expected_revision=present.mod_revision)

    async def delete(self, topic_id: TopicId, name: str) -> None:
        """Delete the record of a subscription; its cursor in the journal is void without it."""
        await self._store.delete(_key(topic_id, name))

    async def delete_all(self, topic_id: TopicId) -> None:
        """Delete the records of all subscriptions of a topic or partition."""
        for item in (await self._store.list(f"/subscriptions/{topic_id:016x}/"))[0]:
            await self._store.delete(item.key)
