"""The native API for engines that read ranges of topics: extents of logs, and locations of sealed parts.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the
end with a default. All calls are unary. An engine requests the states of logs, then the sealed parts of a range,
which it reads from the storage directly; data behind ``sealed_offset`` is read from the broker, as a reader::

    start_offset            sealed_offset            end_offset
         | parts in a storage     | the broker's journal |

``State`` with a wait is a long poll: the broker answers when a log has grown or a topic was created, and does no work
until then. Matching topics against a pattern is done by the client, so that no pattern can load the broker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from danube.model.batch import count_records
from danube.model.errors import InvalidArgumentError
from danube.model.ids import Offset, OwnerEpoch, TopicId
from danube.model.policies import Durability
from danube.model.ranges import RangeSet

__all__ = [
    "FindOffset",
    "FoundOffset",
    "GetLogParts",
    "GetLogStates",
    "GetTopicNames",
    "LogPart",
    "LogParts",
    "LogPartsPage",
    "LogState",
    "LogStates",
    "QueryMethod",
    "RawBatch",
    "TopicNames",
    "gaps_of",
    "undeclared_of",
    "name_matcher",
]


class QueryMethod:
    """Paths of the calls."""

    NAMES: Final = "/danube.native.v1.Logs/Names"
    STATE: Final = "/danube.native.v1.Logs/State"
    PARTS: Final = "/danube.native.v1.Logs/Parts"
    OFFSET_AT: Final = "/danube.native.v1.Logs/OffsetAt"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""


# --- States ----------------------------------------------------------------------------------------------------------


class GetTopicNames(_Message):
    """Asks for the names of all topics; answered with TopicNames."""


class TopicNames(_Message):
    """The plain topics and the base names of partitioned ones, sorted."""

    version: int
    """Changes when any topic or partition is created or deleted, and at a restart of the broker."""
    names: list[str]


class GetLogStates(_Message):
    """Asks for the states of logs; answered with LogStates."""

    topics: list[str]
    """Plain topics, partitions, or base names, which stand for all of their partitions."""
    beyond: dict[str, Offset] | None = None
    """With ``wait_ms``: known end offsets, by name of the plain topic or partition."""
    wait_ms: int = 0
    """Answer when a log extends beyond its known end, when there is a log that is not known, or after this time. The
    broker may answer earlier: ``Limits.max_log_wait_s`` is the longest wait."""
    version: int = 0
    """With ``wait_ms``: answer also when the version of the topic names differs from this one; 0: ignore it."""


class LogState(_Message, kw_only=True):
    """Extent of the log of one plain topic or partition. Offsets are of messages; ranges are half-open."""

    topic: str
    """The plain topic, or the base name of the partitioned one."""
    partition: int
    """0 for a plain topic."""
    name: str
    """Name of the plain topic or partition, as used by the other calls."""
    topic_id: TopicId
    """Differs after the topic was deleted and created again: its offsets then start again."""
    durability: Durability
    """A topic of durability ``none`` stores nothing, so there is nothing to read."""
    start_offset: Offset
    """Offset of the first retained message."""
    sealed_offset: Offset
    """Messages below it are in the storage."""
    end_offset: Offset
    """Offset behind the last message that has reached the topic's durability."""
    storage: str
    """Name of the storage for its history."""
    storage_url: str
    """URL of the storage for other processes: absolute, with all options except secrets."""
    is_framed: bool = False
    """Whether payloads of batches whose header names no schema begin with Confluent's frame (``schema_framing``)."""
    gaps: list[tuple[Offset, Offset]] = []
    """Its declared gaps, without what they were filled with, in order and disjoint: no message has these offsets."""


class LogStates(_Message):
    """Answer to GetLogStates: one row for each plain topic or partition, in the requested order."""

    states: list[LogState]
    version: int
    """Version of the topic names."""


# --- Parts -----------------------------------------------------------------------------------------------------------


class GetLogParts(_Message):
    """Asks for the locations of the sealed batches in a range of offsets; answered with LogPartsPage."""

    topic: str
    """A plain topic or one partition."""
    start: Offset
    end: Offset


class LogPart(_Message):
    """A run of sealed batches in one object of a storage. It may extend beyond the requested range."""

    storage: str
    """Name of the storage."""
    object: str
    """Key of the object."""
    object_bytes: int
    """Size of the object."""
    base_offset: Offset
    end_offset: Offset
    first_time_us: int
    """Append time of the first batch."""
    last_time_us: int
    """Highest append time."""
    batches: int
    start: int
    """The batches are the bytes ``[start, end)`` of the object."""
    end: int
    crc: int
    """CRC32C of the batches."""
    index_start: int
    """Start of the part's index in the object."""
    index_count: int
    index_crc: int
    epoch: OwnerEpoch
    """Epoch of the owner that sealed it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return self.end - self.start


class LogPartsPage(_Message):
    """Answer to GetLogParts: parts in the order of their offsets, without overlaps."""

    topic_id: TopicId
    start_offset: Offset
    sealed_offset: Offset
    end_offset: Offset
    parts: list[LogPart]
    more: bool
    """There are more: ask again from the end of the last one."""
    storages: dict[str, str]
    """URLs (as ``LogState.storage_url``) of the storages by name."""
    declared: list[tuple[Offset, Offset]] = []
    """Ranges without messages that an operator has declared: see ``danube cluster forget``."""


class LogParts(msgspec.Struct, frozen=True):
    """The sealed parts that overlap a range of offsets of one plain topic or partition.

    They cover ``[start, end)`` except for the ``gaps``.
    """

    topic: str
    topic_id: TopicId
    start: Offset
    """The requested start, or the start of the log if that is later."""
    end: Offset
    """The requested end, or ``sealed_offset`` if that is less (then the rest must be read from the broker)."""
    start_offset: Offset
    sealed_offset: Offset
    end_offset: Offset
    parts: list[LogPart]
    gaps: list[tuple[Offset, Offset]]
    """Ranges within ``[start, end)`` that no part holds, and that are not declared as lost with a broker: lost by a
    power failure of a topic that does not require syncs, or lost by damage."""
    storages: dict[str, str]
    """URLs of the storages by name, without secrets."""


class FindOffset(_Message):
    """Asks for the first message that was appended at or after a time; answered with FoundOffset."""

    topic: str
    """A plain topic or one partition."""
    time_us: int


class FoundOffset(_Message):
    """Answer to FindOffset."""

    offset: Offset
    """The end of the log if there is no such message."""


# --- Batches ---------------------------------------------------------------------------------------------------------


class RawBatch(NamedTuple):
    """A stored batch, verified and not decoded; :mod:`danube.model.batch` defines the contents of ``part``."""

    base_offset: Offset
    """Offset of its first record."""
    append_time_us: int
    """When the broker appended it, microseconds since the epoch."""
    producer: str
    """Name of its producer; empty if it has none, or if each record names its own (flag ``COMPOSITE``)."""
    part: bytes

    @property
    def record_count(self) -> int:
        """Number of records."""
        return count_records(self.part)

    @property
    def end_offset(self) -> Offset:
        """The offset behind its last record."""
        return self.base_offset + count_records(self.part)


# --- Rules shared by brokers and buckets -----------------------------------------------------------------------------


def undeclared_of(
    gaps: Sequence[tuple[Offset, Offset]], declared: Sequence[tuple[Offset, Offset]]
) -> list[tuple[Offset, Offset]]:
    """Return what is missing in a log and was not declared."""
    known = RangeSet(declared)
    return [(Offset(low), Offset(high)) for gap in gaps for low, high in known.gaps(*gap)]


def gaps_of(parts: Sequence[LogPart], start: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
    """Return the ranges of ``[start, end)`` that parts, in their order, do not cover."""
    gaps = []
    for part in parts:
        if part.base_offset > start:
            gaps.append((start, min(part.base_offset, end)))
        start = max(start, part.end_offset)
    if start < end:
        gaps.append((start, end))
    return gaps


def name_matcher(topics: Sequence[str], pattern: str) -> Callable[[str], object] | None:
    """Return a predicate for topic names if topics are chosen by a pattern; None: all match, or they are named.

    Raises:
        InvalidArgumentError: ``topics`` is not a list, both are given, or the pattern is an invalid regular expression.
    """
    if isinstance(topics, str):
        raise InvalidArgumentError(f"topics {topics!r} is a text; give a list of names")
    if topics and pattern:
        raise InvalidArgumentError("topics and pattern exclude each other")
    if not pattern:
        return None
    try:
        return re.compile(pattern).fullmatch
    except re.error as error:
        raise InvalidArgumentError(f"pattern {pattern!r} is not a regular expression: {error}") from error
