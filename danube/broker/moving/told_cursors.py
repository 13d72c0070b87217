"""Finds the cursors of a lost broker's subscriptions in the manifests of its storages.

What is sealed is listed in a manifest, with the cursors of that moment. So a subscription whose cursor was lost with a
journal need not begin again where it was created: at most what was acknowledged since the last sealing is delivered
again. Two rules keep that safe:

* Of the brokers that list a topic, the last owner *before* this one counts: this one may have written a manifest since
  the topic is assigned to it, and knows nothing of the cursors yet.
* A cursor is clamped at the end of what the same manifests list. What was acknowledged beyond it may come back with the
  disk, or, of durability ``os``, its offset may stand for another message since a power loss.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import trio

from danube.broker.topic.recovered import new_cursor
from danube.cluster.gaps import settled_ranges
from danube.dispatch import decode_entry, encode_entry
from danube.history import read_streams
from danube.model.errors import DanubeError, StorageError
from danube.model.ids import FIRST_OFFSET, NO_OWNER_EPOCH
from danube.model.log_events import log_event
from danube.model.records import decode_subscription

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.cluster.gaps import GapRecord
    from danube.model.ids import Offset, OwnerEpoch, TopicId
    from danube.model.records import SubscriptionRecord

__all__ = ["ToldCursors"]

_log = logging.getLogger("danube.broker")

_PATIENCE_S: Final = 30.0
"""How long topics wait for a storage that does not answer; then their subscriptions begin where they were created."""
_GIVEN_UP_S: Final = 1.0
"""The same for topics that come to wait after it was given up, until it answers."""
_AGAIN_S: Final = 1.0
"""For so long a storage that has failed is not asked again."""


class _Told(NamedTuple):
    """What the manifests of one broker say about a topic."""

    epoch: OwnerEpoch
    end: Offset
    subscriptions: Mapping[str, tuple[bytes, bytes]]


class _Place:
    """One storage."""

    def __init__(self) -> None:
        self.asked_at_s = 0.0
        """When the question that is not answered yet was asked first."""
        self.patience_s = _PATIENCE_S
        """How long an answer to it is waited for."""
        self.failure: StorageError | None = None
        self.failed_at_s = 0.0
        self.read_for: Collection[TopicId] = ()
        self.told: dict[TopicId, list[_Told]] = {}


class ToldCursors:
    """What the manifests say. Each storage is read once for all topics that wait.

    Args:
        directory: of the topics.
        waiting: the topics that wait; changes.
    """

    def __init__(self, directory: Directory, waiting: Collection[TopicId]) -> None:
        self._directory = directory
        self._waiting = waiting
        self._places: dict[str, _Place] = {}

    def clear(self) -> None:
        """Forget what was read, and which storages have failed: no topic waits."""
        self._places.clear()

    async def of_topic(
        self,
        topic_id: TopicId,
        storage: str,
        epoch: OwnerEpoch,
        rows: Mapping[str, SubscriptionRecord],
        gaps: Sequence[GapRecord],
    ) -> list[bytes]:
        """Return the snapshots of the cursors of a topic's subscriptions, of those that were told.

        Args:
            topic_id: of the topic or partition, one of those that wait.
            storage: the one that it is sealed into.
            epoch: the first one of this owner.
            rows: its subscriptions.
            gaps: its declared gaps, in order; the last one begins where the lost owner's history ends.

        Raises:
            StorageError: the storage does not answer, and may do so in a moment.
        """
        told = await self._last_before(epoch, topic_id, storage) if rows else None
        if told is None:
            return []
        history = self._directory.history.catalogue.find(topic_id)
        parts = [(each.part.base_offset, each.part.end_offset) for each in history.parts] if history else []
        settled = settled_ranges(gaps, parts)
        end = min(told.end, gaps[-1].start)
        found: list[bytes] = []
        for name, (record, snapshot) in told.subscriptions.items():
            row = rows.get(name)
            try:
                if row is None or decode_subscription(record).subscription_id != row.subscription_id:
                    continue  # it was deleted, and possibly created again
                cursor = new_cursor(row, self._directory.runtime.limits)
                cursor.apply(decode_entry(snapshot))
            except (DanubeError, msgspec.MsgspecError) as error:
                self._lost(storage, f"what they say about subscription {name!r} cannot be decoded: {error}")
                continue
            cursor.clamp(end)
            for low, high in settled:
                if high <= gaps[-1].start:
                    cursor.ack(low, high, force=True)
            found.append(encode_entry(cursor.snapshot(row.subscription_id)))
        return found

    async def _last_before(self, epoch: OwnerEpoch, topic_id: TopicId, storage: str) -> _Told | None:
        """Return what the last owner before an epoch has told."""
        place = self._places.get(storage)
        if place is None:
            place = self._places[storage] = _Place()
        if topic_id not in place.read_for:
            await self._read(storage, place)
        former = [each for each in place.told.get(topic_id, ()) if each.epoch < epoch]
        return max(former, key=lambda each: each.epoch, default=None)

    async def _read(self, name: str, place: _Place) -> None:
        """Read the manifests of a storage, for all topics that wait now."""
        now_s, wanted = trio.current_time(), frozenset(self._waiting)
        if place.failure is not None and now_s < place.failed_at_s + _AGAIN_S:
            raise place.failure
        if place.failure is None:
            place.asked_at_s = now_s
        give_up_at_s = place.asked_at_s + place.patience_s
        told: dict[TopicId, list[_Told]] = {}
        storage, is_given_up = self._directory.history.storages.get(name), False
        if storage is not None and storage.capabilities.shared:
            try:
                with trio.move_on_at(give_up_at_s) as scope:
                    streams = await read_streams(storage, self._directory.runtime.config.cluster)
                    for bucket in streams:
                        epochs = bucket.topic_epochs()
                        for topic_id in wanted & bucket.subscriptions.keys():
                            parts = bucket.parts.get(topic_id, {}).values()
                            start = bucket.starts.get(topic_id, FIRST_OFFSET)
                            one = _Told(
                                epochs.get(topic_id, NO_OWNER_EPOCH),
                                max([start, *(part.end_offset for _, part in parts)]),
                                bucket.subscriptions[topic_id],
                            )
                            told.setdefault(topic_id, []).append(one)
                    place.told = told
                if scope.cancelled_caught:
                    is_given_up = True
                    self._lost(name, f"the storage has not answered for {place.patience_s:g} s")
            except StorageError as error:
                if trio.current_time() < give_up_at_s:
                    place.failure, place.failed_at_s = error, trio.current_time()
                    raise
                is_given_up = True
                self._lost(name, str(error))
            except DanubeError as error:
                self._lost(name, str(error))
        place.failure, place.read_for = None, wanted  # of those that were read before, the answer is still there
        place.patience_s = _GIVEN_UP_S if is_given_up else _PATIENCE_S

    def _lost(self, storage: str, why: str) -> None:
        _log.warning(
            "subscriptions of topics in storage %r, whose broker is gone, begin where they were created, because the"
            " manifests cannot be read: %s",
            storage,
            why,
            extra=log_event("topic.cursors_lost", storage=storage),
        )
