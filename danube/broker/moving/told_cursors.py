"""Finds the cursors of a lost broker's subscriptions in the manifests of its storages.

Whatever was sealed is listed in a manifest with the cursors of that moment. So a subscription whose cursor was lost
with a journal need not begin again where it was created: at most what was acknowledged since the last sealing is
delivered again. A cursor is clamped at the declared gap: what was acknowledged behind it may come back with the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from danube.broker.topic.recovered import new_cursor
from danube.dispatch import decode_entry, encode_entry
from danube.history import read_bucket
from danube.model.errors import DanubeError, StorageError
from danube.model.log_events import log_event
from danube.model.records import decode_subscription

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.history import Bucket
    from danube.model.ids import Offset, TopicId
    from danube.model.records import SubscriptionRecord

__all__ = ["ToldCursors"]

_log = logging.getLogger("danube.broker")

_PATIENCE_S: Final = 30.0
"""How long topics wait for a storage that does not answer; then their subscriptions begin where they were created."""


class ToldCursors:
    """What the manifests say; each storage is read once.

    Args:
        directory: of the topics.
        since_s: since when topics wait for it, by the clock of the loop.
    """

    def __init__(self, directory: Directory, since_s: float) -> None:
        self._directory = directory
        self._until_s = since_s + _PATIENCE_S
        self._buckets: dict[str, Bucket | None] = {}

    async def of_topic(
        self, topic_id: TopicId, storage: str, rows: Mapping[str, SubscriptionRecord], end: Offset
    ) -> list[bytes]:
        """Return the snapshots of the cursors of a topic's subscriptions, of those that were told.

        Args:
            topic_id: of the topic or partition.
            storage: the one that it is sealed into.
            rows: its subscriptions.
            end: the end of what is sealed.

        Raises:
            StorageError: the storage does not answer, and may do so in a moment.
        """
        bucket = await self._bucket(storage) if rows else None
        told = bucket.subscriptions.get(topic_id, {}) if bucket is not None else {}
        found: list[bytes] = []
        for name, (record, snapshot) in told.items():
            row = rows.get(name)
            if row is None or decode_subscription(record).subscription_id != row.subscription_id:
                continue  # it was deleted, and possibly created again
            cursor = new_cursor(row, self._directory.runtime.limits)
            cursor.apply(decode_entry(snapshot))
            cursor.clamp(end)
            found.append(encode_entry(cursor.snapshot(row.subscription_id)))
        return found

    async def _bucket(self, name: str) -> Bucket | None:
        """Return what the manifests of a storage say; None: it is not shared, or they cannot be read."""
        if name in self._buckets:
            return self._buckets[name]
        storage = self._directory.history.storages.get(name)
        bucket: Bucket | None = None
        if storage is not None and storage.capabilities.shared:
            try:
                bucket = await read_bucket(storage, self._directory.runtime.config.cluster)
            except DanubeError as error:
                if isinstance(error, StorageError) and trio.current_time() < self._until_s:
                    raise
                _log.warning(
                    "subscriptions of topics in storage %r, whose broker is gone, begin where they were created: the"
                    " manifests cannot be read: %s",
                    name,
                    error,
                    extra=log_event("topic.cursors_lost", storage=name),
                )
        self._buckets[name] = bucket
        return bucket
