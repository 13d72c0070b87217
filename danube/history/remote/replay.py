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
    TopicGone,
    TopicKept,
    TopicLeaving,
    TopicStored,
    TopicTaken,
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
        self._begun: dict[TopicId, int] = {}
        """How many control entries of a topic that was moved are from before."""
        self.commits = 0
        self.batches = 0

    def keep(self, taken: TopicTaken) -> None:
        """Make a topic that a move has brought one of this log; what the log has of an earlier stay is void."""
        state, topic_id = self.state, taken.topic_id
        ids, record = state.topics.get(taken.name, ([], taken.record))
        state.topics[taken.name] = ([*ids, *([] if topic_id in ids else [topic_id])], record)
        state.subscriptions[topic_id] = dict(taken.subscriptions)
        state.topic_snapshots[topic_id] = taken.snapshot
        state.cursor_snapshots.update(taken.cursors)
        state.moves[topic_id] = taken.move
        state.epochs[topic_id] = taken.epoch
        state.left.discard(topic_id)
        self.topics[topic_id] = RemoteTopicState(taken.next_offset)
        self._begun[topic_id] = len(self.control)

    def drop(self, topic_id: TopicId) -> None:
        """Remove a topic that has moved away, or a partition. No-op if there is none."""
        state = self.state
        for name, (ids, record) in list(state.topics.items()):
            if topic_id in ids:
                state.topics[name] = ([each for each in ids if each != topic_id], record)
                if len(ids) == 1:
                    del state.topics[name]
        state.subscriptions.pop(topic_id, None)
        state.topic_snapshots.pop(topic_id, None)
        state.moves.pop(topic_id, None)
        state.epochs.pop(topic_id, None)
        self.topics.pop(topic_id, None)
        self._begun[topic_id] = len(self.control)

    def replay(self, visitor: Visitor) -> None:
        """Pass the control entries after the snapshot to a visitor, in the order of the log."""
        for number, entry in enumerate(self.control):
            if number < self._begun.get(entry.topic_id, 0):
                continue
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
                state.left.difference_update(change.topic_ids)
            case TopicDeleted():
                # The snapshot may be ahead and already have a new topic of this name: compare the ids. Some
                # ids may differ: the deleted topic may have been enlarged without that being stored.
                if change.name in state.topics and not set(state.topics[change.name][0]).isdisjoint(change.topic_ids):
                    del state.topics[change.name]
                for topic_id in change.topic_ids:
                    self._known.discard(topic_id)
                    state.copies.pop(topic_id, None)
                    state.moves.pop(topic_id, None)
                    state.epochs.pop(topic_id, None)
                    state.left.discard(topic_id)
                    state.subscriptions.pop(topic_id, None)
                    state.topic_snapshots.pop(topic_id, None)
                    self.recovered.topics.pop(topic_id, None)
            case SubscriptionStored():
                if change.topic_id in self._known:
                    state.subscriptions.setdefault(change.topic_id, {})[change.name] = change.record
            case SubscriptionDeleted():
                state.subscriptions.get(change.topic_id, {}).pop(change.name, None)
            case TopicTaken():
                if change.topic_id not in self._known or state.moves.get(change.topic_id) != change.move:
                    state.copies[change.topic_id] = change
            case TopicKept():
                taken = state.copies.get(change.topic_id)
                if taken is not None and taken.move == change.move:
                    del state.copies[change.topic_id]
                    taken.record = change.record
                    self.recovered.keep(taken)
                    self._known.add(change.topic_id)
                if change.topic_id in state.leaving:
                    state.leaving.remove(change.topic_id)
            case TopicGone():
                taken = state.copies.get(change.topic_id)
                if taken is not None and taken.move == change.move:
                    del state.copies[change.topic_id]
                # The snapshot may know less of its moves: then a change before this one has brought it back.
                elif change.topic_id in self._known and state.moves.get(change.topic_id, change.move) == change.move:
                    self._known.discard(change.topic_id)
                    self.recovered.drop(change.topic_id)
                    state.left.add(change.topic_id)
            case TopicLeaving():
                if change.topic_id in state.leaving:
                    state.leaving.remove(change.topic_id)
                if change.is_leaving:
                    state.leaving.append(change.topic_id)

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
