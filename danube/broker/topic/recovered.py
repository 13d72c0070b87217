"""Collects the recovered state of topics and cursors while the journal is read.

Snapshots and control entries are applied in the order of the log. An entry that a snapshot contains already, or a
snapshot that is older than what was read before it, has no effect: producers and cursors are idempotent, and only grow.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from danube.dispatch import Cursor, CursorSnapshot, PastDelivery, decode_entry
from danube.log.format import TAKEOVER_ENTRY, EntryType
from danube.log.index import Location
from danube.log.producers import ProducerTable
from danube.model import BatchHeader, Durability, Limits, Stamp
from danube.model.ids import FIRST_OFFSET, Offset, TopicId
from danube.model.records import SubscriptionRecord

__all__ = ["RecoveryVisitor", "TopicSnapshot", "TopicState", "new_cursor"]


class TopicSnapshot(msgspec.Struct, array_like=True):
    """The state of a topic in a snapshot."""

    end_offset: Offset
    producers: bytes
    cursors: list[bytes] = []
    """Of its subscriptions; empty in buckets, where they have snapshots of their own."""
    move: int = 0
    """The move that has brought the topic here; 0: it was not moved. The TAKEOVER entry may be gone with its file."""
    epoch: int = 0
    """The epoch of that move."""
    pending: bool = False
    """Whether the snapshot was taken while the move was not confirmed."""
    deliveries: dict[int, list[PastDelivery]] = {}
    """While the topic moves: what is known of messages that were delivered before, by the ids of its subscriptions."""
    life: int = 0
    """While the topic moves: what distinguishes its offsets from those before a power loss; 0: nothing."""


_SNAPSHOT = msgspec.msgpack.Decoder(TopicSnapshot)


class TopicState:
    """The state of one topic, from snapshots and control entries."""

    __slots__ = ("end_offset", "epoch", "move", "pending", "producers")

    def __init__(self, producers: ProducerTable, end_offset: Offset = FIRST_OFFSET) -> None:
        self.producers = producers
        self.end_offset = end_offset
        self.move = 0
        """The move that has brought the topic to this journal; 0: it was not moved."""
        self.epoch = 0
        """The epoch of that move."""
        self.pending = False
        """Whether the journal does not show that the move was confirmed."""


def new_cursor(record: SubscriptionRecord, limits: Limits) -> Cursor:
    """Return the initial cursor of a subscription."""
    return Cursor(record.start_offset, max_ranges=Cursor.most_ranges(limits))


class RecoveryVisitor:
    """Receives control entries from the journal's recovery.

    Attributes:
        topics: by topic id; only those in the catalogue with entries or snapshots.
        cursors: by subscription id; every subscription of the catalogue.
        lost_seeks: of subscriptions with a seek that is not in the journal, though entries after it are: its generation
            by the subscription's id.
    """

    def __init__(
        self,
        names: Mapping[TopicId, str],
        subscriptions: Mapping[TopicId, Mapping[str, SubscriptionRecord]],
        limits: Limits,
        topic_snapshots: Mapping[TopicId, bytes] | None = None,
        cursor_snapshots: Mapping[int, bytes] | None = None,
    ) -> None:
        """Start with initial cursors.

        Args:
            names: of all topics, by their ids.
            subscriptions: by topic id and name.
            limits: of the broker.
            topic_snapshots, cursor_snapshots: by topic id and subscription id, of a bucket.
        """
        self._names = names
        self._subscriptions = subscriptions
        self._limits = limits
        self.topics: dict[TopicId, TopicState] = {}
        self.cursors: dict[int, Cursor] = {}
        self.lost_seeks: dict[int, int] = {}
        for topic_id in subscriptions:
            self._start_cursors(topic_id)
        for topic_id, value in (topic_snapshots or {}).items():
            self._restore(topic_id, value)
        for subscription_id, value in (cursor_snapshots or {}).items():
            if subscription_id in self.cursors:
                self.cursors[subscription_id].apply(decode_entry(value))

    def _start_cursors(self, topic_id: TopicId) -> None:
        for record in self._subscriptions.get(topic_id, {}).values():
            self.cursors[record.subscription_id] = new_cursor(record, self._limits)
            self.lost_seeks.pop(record.subscription_id, None)

    def _topic(self, topic_id: TopicId) -> TopicState:
        state = self.topics.get(topic_id)
        if state is None:
            name = self._names.get(topic_id, f"{topic_id:016x}")
            state = self.topics[topic_id] = TopicState(ProducerTable(self._limits, name))
        return state

    def _restore(self, topic_id: TopicId, value: bytes) -> list[bytes]:
        """Apply the snapshot of a topic, and return those of its cursors."""
        snapshot = _SNAPSHOT.decode(value)
        state = self._topic(topic_id)
        state.end_offset = max(state.end_offset, snapshot.end_offset)
        state.producers.restore(snapshot.producers)
        if snapshot.move:
            state.move, state.epoch, state.pending = snapshot.move, snapshot.epoch, snapshot.pending
        return snapshot.cursors

    def snapshot(self, topic_id: TopicId, state: bytes) -> None:
        """Journal: a snapshot of a topic. Those of unknown topics, and of deleted subscriptions, are ignored."""
        if topic_id not in self._names:
            return
        for value in self._restore(topic_id, state):
            entry = decode_entry(value)
            cursor = self.cursors.get(entry.subscription_id)
            if cursor is not None and isinstance(entry, CursorSnapshot):
                # The file with the seek was not needed any more. The next seek may come before the snapshot.
                if entry.generation >= self.lost_seeks.get(entry.subscription_id, 0):
                    self.lost_seeks.pop(entry.subscription_id, None)
                cursor.apply(entry)

    def forget(self, topic_id: TopicId) -> None:
        """Journal: a topic was deleted, or is copied once more. If it is known, it was restored, or has returned."""
        self.topics.pop(topic_id, None)
        self._start_cursors(topic_id)

    def batch(self, topic_id: TopicId, stamp: Stamp, header: BatchHeader, location: Location) -> None:
        """Journal: a batch. The journal itself collects its offsets and producer."""

    def control(self, entry_type: int, topic_id: TopicId, payload: bytes, durability: Durability) -> None:
        """Journal: a control entry. Entries of unknown topics and deleted subscriptions are ignored."""
        if entry_type == EntryType.CURSOR:
            entry = decode_entry(payload)
            cursor = self.cursors.get(entry.subscription_id)
            if cursor is not None and not cursor.apply(entry):
                self.lost_seeks[entry.subscription_id] = entry.generation
        elif entry_type == EntryType.PRODUCER and topic_id in self._names:
            self._topic(topic_id).producers.apply_entry(payload)
        elif entry_type == EntryType.TAKEOVER and topic_id in self._names:
            state = self._topic(topic_id)
            state.move, _, state.epoch = TAKEOVER_ENTRY.unpack(payload)
            state.pending = True
