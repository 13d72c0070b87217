"""Answers log state and log part queries from the manifests in a storage, in the same form as a broker."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danube.history.manifest_format import Bucket
from danube.history.parts import to_log_part
from danube.history.segment import SegmentPart
from danube.model.errors import InvalidArgumentError, TopicNotFoundError
from danube.model.ids import FIRST_OFFSET, Offset, TopicId
from danube.model.names import partition_name, split_partition, validate_topic
from danube.model.policies import Durability
from danube.model.query_api import LogParts, LogState, gaps_of, name_matcher, undeclared_of
from danube.model.ranges import RangeSet

__all__ = ["DirectBucket"]


class _TopicHead(msgspec.Struct, array_like=True):
    """The first fields of a topic's record, the only ones needed here; later fields are ignored."""

    durability: Durability
    partitions: int
    topic_ids: list[TopicId]
    created_us: int = 0
    storage: str = "default"


class _GapHead(msgspec.Struct, array_like=True):
    """The first fields of the record of a declared gap."""

    start: Offset
    end: Offset


_HEAD = msgspec.msgpack.Decoder(_TopicHead)
_GAP = msgspec.msgpack.Decoder(_GapHead)


class DirectBucket:
    """The sealed history of a cluster according to its manifests; created by :meth:`DirectStorage.bucket`.

    A snapshot: later sealed batches are not included. Neither are batches that a broker still has in its journal (or in
    commits of durability ``remote`` that were not merged yet), so a log ends with its last sealed part.

    Attributes:
        url: the storage's URL, without secrets.
        epoch: epoch of the broker that wrote the manifests.
        created_us: when the newest manifest was written.
    """

    def __init__(self, bucket: Bucket, url: str) -> None:
        self.url = url
        self.epoch = bucket.epoch
        self.created_us = bucket.created_us
        self._bucket = bucket
        self._topics = {name: _HEAD.decode(record) for name, record in sorted(bucket.topics.items())}

    def log_state(self, topics: Sequence[str] = (), *, pattern: str = "") -> list[LogState]:
        """Return the extent of the logs, as :meth:`danube.client.Logs.states` does.

        Raises:
            TopicNotFoundError: a named topic has no history here.
            InvalidArgumentError: both ``topics`` and ``pattern``, or an invalid pattern.
        """
        matches = name_matcher(topics, pattern)
        if not topics:
            topics = [name for name in self._topics if matches is None or matches(name)]
        return [self._state(name) for topic in topics for name in self._members(topic)]

    def log_parts(self, topic: str, start: int = 0, end: int | None = None) -> LogParts:
        """Return the parts that hold a range of offsets, as :meth:`danube.client.Logs.parts` does.

        Raises:
            TopicNotFoundError: there is no such topic or partition here.
            InvalidArgumentError: the base name of a partitioned topic, or an invalid range.
        """
        if self._members(topic) != [topic]:
            raise InvalidArgumentError(f"topic {topic!r} is partitioned; read {partition_name(topic, 0)!r} and so on")
        state = self._state(topic)
        if end is None:
            end = max(start, state.end_offset)
        if not 0 <= start <= end:
            raise InvalidArgumentError(f"offsets [{start}, {end}) are not a range")
        high = max(Offset(start), min(Offset(end), state.end_offset))
        low = min(max(Offset(start), state.start_offset), high)
        found = [
            to_log_part(state.storage, key, 0, part)
            for key, part in self._parts(state.topic_id)
            if part.end_offset > low and part.base_offset < high
        ]
        return LogParts(
            topic,
            state.topic_id,
            low,
            high,
            state.start_offset,
            state.end_offset,
            state.end_offset,
            found,
            undeclared_of(gaps_of(found, low, high), state.gaps),
            {state.storage: self.url} if found else {},
        )

    def _members(self, topic: str) -> list[str]:
        """Return the topic or the partitions that a name refers to."""
        validate_topic(topic)
        head = self._topics.get(topic)
        if head is not None:
            return [partition_name(topic, index) for index in range(head.partitions)] or [topic]
        split = split_partition(topic)
        base = self._topics.get(split[0]) if split is not None else None
        if split is None or base is None or split[1] >= base.partitions:
            raise TopicNotFoundError(
                f"topic {topic!r} has no history in {self.url}; there are {', '.join(self._topics) or 'none'}"
            )
        return [topic]

    def _state(self, name: str) -> LogState:
        base, partition = split_partition(name) or (name, 0)
        head = self._topics[base]
        topic_id = head.topic_ids[partition]
        parts = self._parts(topic_id)
        start = self._bucket.starts.get(topic_id, parts[0][1].base_offset if parts else FIRST_OFFSET)
        end = max(start, parts[-1][1].end_offset if parts else FIRST_OFFSET)
        return LogState(
            topic=base,
            partition=partition,
            name=name,
            topic_id=topic_id,
            durability=head.durability,
            start_offset=start,
            sealed_offset=end,
            end_offset=end,
            storage=head.storage,
            storage_url=self.url,
            gaps=self._gaps(topic_id, start, end),
        )

    def _gaps(self, topic_id: TopicId, start: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """Return the declared gaps within the log, without what they were filled with."""
        declared = [_GAP.decode(record) for record in self._bucket.gaps.get(topic_id, ())]
        parts = RangeSet((part.base_offset, part.end_offset) for _, part in self._parts(topic_id))
        found = [pair for gap in declared for pair in parts.gaps(max(gap.start, start), min(gap.end, end))]
        return [(Offset(low), Offset(high)) for low, high in found]

    def _parts(self, topic_id: TopicId) -> list[tuple[str, SegmentPart]]:
        start = self._bucket.starts.get(topic_id, 0)
        return [
            (key, part)
            for _, (key, part) in sorted(self._bucket.parts.get(topic_id, {}).items())
            if part.end_offset > start
        ]
