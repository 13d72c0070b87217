"""Collects the recovered state of topics and cursors while the journal is read.

Snapshots come first (from the metadata store), then the journal's control entries in order. Applying an entry that a
snapshot already contains has no effect: producers and cursors are idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from danube.dispatch import Cursor, decode_entry
from danube.log.format import EntryType
from danube.log.index import Location
from danube.log.producers import ProducerTable
from danube.model import BatchHeader, Durability, Limits, Stamp
from danube.model.ids import FIRST_OFFSET, Offset, TopicId
from danube.model.records import SubscriptionRecord

__all__ = ["RecoveryVisitor", "TopicSnapshot", "TopicState", "new_cursor"]


class TopicSnapshot(msgspec.Struct, array_like=True):
    """The state of a topic in a checkpoint."""

    end_offset: Offset
    producers: bytes


_SNAPSHOT = msgspec.msgpack.Decoder(TopicSnapshot)


class TopicState:
    """The state of one topic, from snapshots and control entries."""

    __slots__ = ("end_offset", "producers")

    def __init__(self, producers: ProducerTable, end_offset: Offset = FIRST_OFFSET) -> None:
        self.producers = producers
        self.end_offset = end_offset


def new_cursor(record: SubscriptionRecord, limits: Limits) -> Cursor:
    """Return the initial cursor of a subscription."""
    return Cursor(record.start_offset, max_ranges=Cursor.most_ranges(limits))


class RecoveryVisitor:
    """Receives control entries from the journal's recovery.

    Attributes:
        topics: by topic id; only those with entries or snapshots.
        cursors: by subscription id; every subscription of the catalogue.
        lost_seeks: ids of subscriptions with a seek that is not in the journal, though entries after it are.
    """

    def __init__(
        self,
        names: Mapping[TopicId, str],
        subscriptions: Mapping[TopicId, Mapping[str, SubscriptionRecord]],
        topic_snapshots: Mapping[TopicId, bytes],
        cursor_snapshots: Mapping[int, bytes],
        limits: Limits,
    ) -> None:
        self._names = names
        self._limits = limits
        self.topics: dict[TopicId, TopicState] = {}
        self.cursors: dict[int, Cursor] = {}
        self.lost_seeks: set[int] = set()
        for topic_id, value in topic_snapshots.items():
            snapshot = _SNAPSHOT.decode(value)
            state = self._topic(topic_id)
            state.end_offset = snapshot.end_offset
            state.producers.restore(snapshot.producers)
        for records in subscriptions.values():
            for record in records.values():
                cursor = self.cursors[record.subscription_id] = new_cursor(record, limits)
                if record.subscription_id in cursor_snapshots:
                    cursor.apply(decode_entry(cursor_snapshots[record.subscription_id]))

    def _topic(self, topic_id: TopicId) -> TopicState:
        state = self.topics.get(topic_id)
        if state is None:
            name = self._names.get(topic_id, f"{topic_id:016x}")
            state = self.topics[topic_id] = TopicState(ProducerTable(self._limits, name))
        return state

    def batch(self, topic_id: TopicId, stamp: Stamp, header: BatchHeader, location: Location) -> None:
        """Journal: a batch. The journal itself collects its offsets and producer."""

    def control(self, entry_type: int, topic_id: TopicId, payload: bytes, durability: Durability) -> None:
        """Journal: a control entry. Entries of deleted topics and subscriptions are ignored."""
        if entry_type == EntryType.CURSOR:
            entry = decode_entry(payload)
            cursor = self.cursors.get(entry.subscription_id)
            if cursor is not None and not cursor.apply(entry):
                self.lost_seeks.add(entry.subscription_id)
        elif entry_type == EntryType.PRODUCER and topic_id in self._names:
            self._topic(topic_id).producers.apply_entry(payload)
