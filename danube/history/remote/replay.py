"""Replays commits read from a bucket into the recovered state of its topics. Pure.

A replay starts with a snapshot, or empty, and applies every commit after it. Where the two overlap (a snapshot
has the broker's state when it was built, slightly more than had settled by then), applying a change twice has no
effect: the last change of metadata wins, and changes of cursors and producers are idempotent.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from danube.history.remote.format import (
    Change,
    CommitKind,
    DecodedCommit,
    Position,
    RemoteState,
    SnapshotBody,
    SubscriptionDeleted,
    SubscriptionStored,
    TopicDeleted,
    TopicStored,
    decode_change,
)
from danube.history.segment import ControlEntry, SegmentPart, cut_batches
from danube.log.format import EntryType
from danube.log.recovered import WINDOW_BATCHES, ProducedBatch, Visitor
from danube.model.batch import BatchFlags
from danube.model.errors import CorruptBatchError, DataLossError
from danube.model.ids import FIRST_OFFSET, Offset, ProducerId, TopicId
from danube.model.policies import Durability

__all__ = ["LiveObject", "RemoteRecovered", "RemoteTopicState", "Replay"]


class RemoteTopicState:
    """Recovered state of one topic.

    Attributes:
        next_offset: offset after its last record.
        producers: producer id to its last batches, at most 64, oldest first; only of batches after the snapshot.
    """

    __slots__ = ("next_offset", "producers")

    def __init__(self, next_offset: Offset = FIRST_OFFSET) -> None:
        self.next_offset = next_offset
        self.producers: dict[ProducerId, deque[ProducedBatch]] = {}


class LiveObject(NamedTuple):
    """A commit with parts that may still be needed."""

    position: Position
    size_bytes: int
    created_us: int
    parts: list[SegmentPart]


class RemoteRecovered:
    """Recovered state of the topics of durability ``remote``: everything that was ever acknowledged.

    Attributes:
        state: topics and subscriptions as recovered; snapshots of topics and cursors as of the newest snapshot (pass
            them to the visitor first, then call :meth:`replay`).
        topics: topic id to the state from its batches; existing topics only.
        commits, batches: numbers of commits and batches read.
    """

    def __init__(self) -> None:
        self.state = RemoteState({}, {}, {}, {})
        self.topics: dict[TopicId, RemoteTopicState] = {}
        self.control: list[ControlEntry] = []
        self.commits = 0
        self.batches = 0

    def replay(self, visitor: Visitor) -> None:
        """Pass the control entries after the snapshot to a visitor, in the order of the log."""
        for entry in self.control:
            visitor.control(entry.type, entry.topic_id, entry.payload, Durability.REMOTE)


class Replay:
    """Combines commits. Call ``begin`` at most once, ``apply`` in order; then read ``recovered`` and ``objects``.

    Attributes:
        recovered: the result for the broker.
        objects: position to the parts of existing topics there.
    """

    def __init__(self) -> None:
        self.recovered = RemoteRecovered()
        self.objects: dict[Position, LiveObject] = {}
        self._known: set[int] = set()

    def begin(self, body: SnapshotBody) -> None:
        """Start from a snapshot."""
        self.recovered.state = body.state
        self._known = {topic_id for ids, _ in body.state.topics.values() for topic_id in ids}
        for topic_id, next_offset in body.next_offsets.items():
            self.recovered.topics[topic_id] = RemoteTopicState(next_offset)
        for item in body.objects:
            position = Position(item.epoch, item.sequence)
            self.objects[position] = LiveObject(position, item.size_bytes, item.created_us, item.parts)

    def apply(self, commit: DecodedCommit, where: str) -> None:
        """Apply the next commit; ``where`` names it in errors.

        Raises:
            DataLossError: its batches are damaged, or do not continue the previous ones.
        """
        self.recovered.commits += 1
        if commit.head.kind != CommitKind.ENTRIES:
            return  # a later snapshot adds nothing
        for entry in commit.entries:
            if entry.type == EntryType.TOPIC:
                self._change(decode_change(entry.payload))
            else:
                self.recovered.control.append(entry)
        parts = [part for part in commit.parts if part.topic_id in self._known]
        for part in parts:
            self._part(part, commit.data, where)
        if parts:
            position = commit.head.position
            self.objects[position] = LiveObject(position, len(commit.data), commit.created_us, parts)

    def finish(self) -> None:
        """Remove the parts of topics that were deleted later."""
        for position, item in list(self.objects.items()):
            parts = [part for part in item.parts if part.topic_id in self._known]
            if parts:
                self.objects[position] = item._replace(parts=parts)
            else:
                del self.objects[position]

    def _change(self, change: Change) -> None:
        state = self.recovered.state
        match change:
            case TopicStored():
                state.topics[change.name] = (change.topic_ids, change.record)
                self._known.update(change.topic_ids)
            case TopicDeleted():
                # The snapshot may be ahead and already have a new topic of this name: compare the first id. Further
                # ids may differ: the deleted topic may have been enlarged without that being stored.
                if change.name in state.topics and state.topics[change.name][0][0] == change.topic_ids[0]:
                    del state.topics[change.name]
                for topic_id in change.topic_ids:
                    self._known.discard(topic_id)
                    state.subscriptions.pop(topic_id, None)
                    state.topic_snapshots.pop(topic_id, None)
                    self.recovered.topics.pop(topic_id, None)
            case SubscriptionStored():
                if change.topic_id in self._known:
                    state.subscriptions.setdefault(change.topic_id, {})[change.name] = change.record
            case SubscriptionDeleted():
                state.subscriptions.get(change.topic_id, {}).pop(change.name, None)

    def _part(self, part: SegmentPart, data: bytes, where: str) -> None:
        topic = self.recovered.topics.get(part.topic_id)
        if topic is None:
            topic = self.recovered.topics[part.topic_id] = RemoteTopicState()
        if part.base_offset != topic.next_offset:
            low, high = sorted((part.base_offset, topic.next_offset))
            raise DataLossError(
                f"{where}: topic {part.topic_id:016x} continues at offset {part.base_offset} instead of"
                f" {topic.next_offset}: offsets [{low}, {high}) are lost or stored twice; restore the objects from a"
                " copy"
            )
        try:
            for batch, _, _ in cut_batches(data, part.start, part.end, part.topic_id):
                if batch is None:
                    break
                header = batch.header
                if not header.flags & BatchFlags.COMPOSITE:
                    batches = topic.producers.get(header.producer_id)
                    if batches is None:
                        batches = topic.producers[header.producer_id] = deque(maxlen=WINDOW_BATCHES)
                    batches.append(
                        ProducedBatch(
                            header.producer_epoch,
                            header.base_sequence,
                            header.record_count,
                            batch.base_offset,
                            batch.append_time_us,
                        )
                    )
                topic.next_offset = batch.end_offset
                self.recovered.batches += 1
        except CorruptBatchError as error:
            raise DataLossError(
                f"{where}: topic {part.topic_id:016x} is damaged after offset {topic.next_offset}: {error}; restore"
                " the object from a copy"
            ) from error
