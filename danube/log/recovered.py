"""Results of a journal recovery: the topics found, damaged ranges, and the torn tail of a crash.

Memory is bounded by the number of topics and producers, not by the backlog: each topic has a sparse index, its
offsets, and the last batches of each producer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from danube.log.index import Location, TopicIndex
from danube.model.batch import BatchFlags, BatchHeader, Stamp
from danube.model.errors import DataLossError
from danube.model.ids import Offset, ProducerEpoch, ProducerId, TopicId
from danube.model.policies import Durability

__all__ = ["Corruption", "ProducedBatch", "Recovered", "RecoveredTopic", "Standing", "TornTail", "Visitor"]

WINDOW_BATCHES: Final = 64
"""Batches of one producer that are remembered to recognise a retry."""


class Visitor(Protocol):
    """Receives the batches and entries that recovery accepts, in the order of the log."""

    def batch(self, topic_id: TopicId, stamp: Stamp, header: BatchHeader, location: Location) -> None:
        """Receive a batch: its stamp, the header of the producer's part, and its location."""
        ...

    def control(self, entry_type: int, topic_id: TopicId, payload: bytes, durability: Durability) -> None:
        """Receive a control entry. An earlier snapshot may contain it, and a later one may follow."""
        ...

    def snapshot(self, topic_id: TopicId, state: bytes) -> None:
        """Receive a complete snapshot of a topic. Entries that it contains may follow."""
        ...

    def forget(self, topic_id: TopicId) -> None:
        """Note that a topic was deleted, or that another copy of it follows: all that was received of it is void."""
        ...


class ProducedBatch(NamedTuple):
    """A batch as recorded in its producer's sequence."""

    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int
    base_offset: Offset
    append_time_us: int


class Standing(NamedTuple):
    """State that a journal claims for itself, before any of it is trusted or changed."""

    begun: bool
    """Whether any file was ever written."""
    identity: int
    """Identity of the journal, also stored in the metadata; 0: bound to no metadata."""
    metadata: int
    """The highest metadata revision recorded as durable."""
    newest_file: int
    """Id of the newest file that was begun."""
    end: int
    """The highest sequence found."""
    missing_files: tuple[int, ...]
    """Ids of files that should exist."""
    cut_files: Mapping[str, int]
    """Files that are shorter than they should be, with their present sizes."""
    other_files: frozenset[str]
    """Names of other files in the directory."""


class Corruption(msgspec.Struct, frozen=True):
    """A damaged range of a journal file. Also the payload of a DAMAGE entry (msgpack)."""

    file: int
    start: int
    end: int
    """0: the whole file is missing."""
    topics: dict[TopicId, tuple[Offset, Offset]]
    """Topics known to have batches in the range: topic id to ``[first offset, end)``; end 0: not known."""
    complete: bool
    """False if some bytes of the range were not identified: it may hold more than ``topics``."""

    def known(self) -> Corruption:
        """Return what is certain of it: the topics of which lost offsets are known."""
        topics = {topic_id: (low, high) for topic_id, (low, high) in self.topics.items() if high}
        return Corruption(self.file, self.start, self.end, topics, complete=True)

    def error(self) -> DataLossError:
        """Return the error that names the range."""
        where = f"is damaged at bytes [{self.start}, {self.end})" if self.end else "is missing"
        topics = ", ".join(
            f"{topic:016x}: offsets [{low}, {high})" if high else f"{topic:016x}: offsets from {low} on"
            for topic, (low, high) in self.topics.items()
        )
        return DataLossError(
            f"journal file {self.file} {where}; topics: {topics or 'unknown'}"
            f"{'' if self.complete else ' and perhaps others'}; restore these offsets from a copy, or delete the topics"
        )


class TornTail(NamedTuple):
    """Blocks cut off by a crash: written, but never known to be synced, so never acknowledged as durable."""

    file: int
    position: int
    size: int


class RecoveredTopic:
    """The part of one topic that the journal holds.

    Attributes:
        index: of the batches in the journal.
        first_offset, next_offset: of the journal's share of the topic; the broker's snapshot may know a higher
        next_offset.
        first_time_us, append_time_us: first and highest append time seen.
        producers: producer id to its last batches, at most 64, oldest first.
        damaged: ``[from, to)`` offsets that are missing or damaged. If one is not released, the topic must stop.
        suspect: unidentified damage lies behind its last batch, so its last messages may be missing.
    """

    __slots__ = (
        "append_time_us",
        "damaged",
        "first_offset",
        "first_time_us",
        "index",
        "next_offset",
        "producers",
        "suspect",
        "topic_id",
    )

    def __init__(self, topic_id: TopicId, first_offset: Offset) -> None:
        self.topic_id = topic_id
        self.index = TopicIndex()
        self.first_offset = first_offset
        self.next_offset = first_offset
        self.first_time_us = 0
        self.append_time_us = 0
        self.producers: dict[ProducerId, deque[ProducedBatch]] = {}
        self.damaged: list[tuple[Offset, Offset]] = []
        self.suspect = False

    def add(self, stamp: Stamp, header: BatchHeader, location: Location) -> Offset:
        """Add the topic's next batch and return the offset behind it."""
        base = stamp.base_offset
        if base != self.next_offset:
            self.note_damage(min(base, self.next_offset), max(base, self.next_offset))
        self.next_offset = end = max(self.next_offset, base + header.record_count)
        self.first_time_us = self.first_time_us or stamp.append_time_us
        self.append_time_us = max(self.append_time_us, stamp.append_time_us)
        self.suspect = False  # the batch's offset shows whether a batch before it is missing
        self.index.add(base, location.file, location.position, stamp.append_time_us, stamp.total_size)
        if header.flags & BatchFlags.COMPOSITE:
            return end  # it has records of many producers, and advances no sequence
        batches = self.producers.get(header.producer_id)
        if batches is None:
            batches = self.producers[header.producer_id] = deque(maxlen=WINDOW_BATCHES)
        batches.append(
            ProducedBatch(header.producer_epoch, header.base_sequence, header.record_count, base, stamp.append_time_us)
        )
        return end

    def note_damage(self, low: Offset, high: Offset) -> None:
        """Record lost offsets; they are never assigned again."""
        if not any(start <= low and high <= end for start, end in self.damaged):
            self.damaged.append((low, high))
        self.next_offset = max(self.next_offset, high)


class Recovered:
    """The result of one recovery.

    Attributes:
        topics: by topic id.
        corruptions: damaged ranges before the end of the log. Normally empty.
        missing_files: ids of journal files that should exist and do not.
        torn: blocks that a crash cut off at the end, None if there are none.
        blocks, batches: numbers of blocks and batches read.
    """

    def __init__(self) -> None:
        self.topics: dict[TopicId, RecoveredTopic] = {}
        self.corruptions: list[Corruption] = []
        self.missing_files: list[int] = []
        self.torn: TornTail | None = None
        self.blocks = 0
        self.batches = 0

    def topic(self, topic_id: TopicId, first_offset: Offset) -> RecoveredTopic:
        """Return a topic; create it if it was not seen before."""
        topic = self.topics.get(topic_id)
        if topic is None:
            topic = self.topics[topic_id] = RecoveredTopic(topic_id, first_offset)
        return topic

    def stopped_topics(self, start_offsets: Mapping[TopicId, Offset] | None = None) -> dict[TopicId, DataLossError]:
        """Return the topics that must not be served, and the error of each.

        Args:
            start_offsets: topic id to its start offset; missing offsets below it were released.
        """
        starts = start_offsets or {}
        stopped: dict[TopicId, DataLossError] = {}
        for topic in self.topics.values():
            start = starts.get(topic.topic_id, 0)
            ranges = ", ".join(f"[{low}, {high})" for low, high in topic.damaged if high > start)
            if ranges:
                stopped[topic.topic_id] = DataLossError(
                    f"topic {topic.topic_id:016x}: offsets {ranges} are damaged or missing in the journal; "
                    "restore them from a copy, or delete the topic"
                )
            elif topic.suspect:
                stopped[topic.topic_id] = DataLossError(
                    f"topic {topic.topic_id:016x}: the journal is damaged behind offset {topic.next_offset}, and the "
                    f"last "
                    "messages of this topic may be missing; restore them from a copy, or delete the topic"
                )
        return stopped
