"""The native API for engines that read whole ranges of topics: how far each log reaches, and where its parts are.

A sister of :mod:`danube.model.api`, with the same rules: msgspec Structs, encoded as msgpack arrays, new fields at the
end with a default. All calls are unary. An engine asks for the states of logs, then for the sealed parts of a range,
which it reads from the storage by itself; what lies behind ``sealed_offset`` it reads from the broker, as a reader::

    start_offset            sealed_offset            end_offset
         | parts in a storage     | the broker's journal |

``State`` with a wait is a long poll: the broker answers when a log has grown or a topic has come, and is idle until
then. Which topics match a pattern is decided by the client, so that no pattern can keep a broker busy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from danube.model.errors import InvalidArgumentError
from danube.model.policies import Durability

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
    """Another one after any topic or partition has come or gone, and after a restart of the broker."""
    names: list[str]


class GetLogStates(_Message):
    """Asks for the states of logs; answered with LogStates."""

    topics: list[str]
    """Plain topics, partitions, or base names, which stand for all of their partitions."""
    beyond: dict[str, int] | None = None
    """With ``wait_ms``: end offsets that are known, by name of the plain topic or partition."""
    wait_ms: int = 0
    """Answer when a log reaches beyond what is known, when one is there that is not known, or after this time. The
    broker may answer earlier: ``Limits.max_log_wait_s`` is the longest wait."""
    version: int = 0
    """With ``wait_ms``: answer also when the version of the topic names is another one; 0: never mind."""


class LogState(_Message):
    """How far the log of one plain topic or partition reaches. Offsets are of messages; ranges are half-open."""

    topic: str
    """The plain topic, or the base name of the partitioned one."""
    partition: int
    """0 for a plain topic."""
    name: str
    """Of the plain topic or partition: what the other calls take."""
    topic_id: int
    """Another one after the topic was deleted and created again: its offsets then begin anew."""
    durability: Durability
    """A topic of durability ``none`` keeps nothing, so there is nothing to read."""
    start_offset: int
    """The first message that is kept."""
    sealed_offset: int
    """What lies below is in the storage."""
    end_offset: int
    """Behind the last message that has reached the topic's durability."""
    storage: str
    """Name of the storage that its history goes to."""
    storage_url: str
    """Where that is, for other processes: absolute, with the options that are no secrets."""


class LogStates(_Message):
    """Answer to GetLogStates: one row for each plain topic or partition, in the order asked for."""

    states: list[LogState]
    version: int
    """Of the topic names."""


# --- Parts -----------------------------------------------------------------------------------------------------------


class GetLogParts(_Message):
    """Asks where the sealed batches of a range of offsets are; answered with LogPartsPage."""

    topic: str
    """A plain topic or one partition."""
    start: int
    end: int


class LogPart(_Message):
    """A run of sealed batches in one object of a storage. What it may hold beside the range is not cut off."""

    storage: str
    """Name of the storage."""
    object: str
    """Key of the object."""
    object_bytes: int
    """Size of the object."""
    base_offset: int
    end_offset: int
    first_time_us: int
    """Append time of the first batch."""
    last_time_us: int
    """Highest append time."""
    batches: int
    start: int
    """The batches are the bytes ``[start, end)`` of the object."""
    end: int
    crc: int
    """CRC32C over the batches."""
    index_start: int
    """Where the index of the part begins in the object."""
    index_count: int
    index_crc: int
    epoch: int
    """Of the owner who sealed it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return self.end - self.start


class LogPartsPage(_Message):
    """Answer to GetLogParts: parts in the order of their offsets, without overlaps."""

    topic_id: int
    start_offset: int
    sealed_offset: int
    end_offset: int
    parts: list[LogPart]
    more: bool
    """There are more: ask again from the end of the last one."""
    storages: dict[str, str]
    """URLs (as ``LogState.storage_url``) of the storages by name."""


class LogParts(msgspec.Struct, frozen=True):
    """The sealed parts that overlap a range of offsets of one plain topic or partition.

    They cover ``[start, end)`` but for the ``gaps``.
    """

    topic: str
    topic_id: int
    start: int
    """What was asked for, or where the log begins if that is later."""
    end: int
    """What was asked for, or ``sealed_offset`` if that is less (then the rest is to be read from the broker)."""
    start_offset: int
    sealed_offset: int
    end_offset: int
    parts: list[LogPart]
    gaps: list[tuple[int, int]]
    """Ranges within ``[start, end)`` that no part holds: a loss of power has taken them from a topic that does not ask
    for a sync, or the topic has lost them to damage."""
    storages: dict[str, str]
    """URLs of the storages by name, without secrets."""


class FindOffset(_Message):
    """Asks for the first message that was appended at or after a time; answered with FoundOffset."""

    topic: str
    """A plain topic or one partition."""
    time_us: int


class FoundOffset(_Message):
    """Answer to FindOffset."""

    offset: int
    """The end of the log if there is no such message."""


# --- Batches ---------------------------------------------------------------------------------------------------------


class RawBatch(NamedTuple):
    """A stored batch, verified and not opened; see :mod:`danube.model.batch` for what is in ``part``."""

    base_offset: int
    """Offset of its first record."""
    append_time_us: int
    """When the broker appended it, microseconds since the epoch."""
    producer: str
    """Name of its producer; empty if nobody's, or if the records say it themselves (flag ``COMPOSITE``)."""
    part: bytes

    @property
    def record_count(self) -> int:
        """How many records it holds."""
        return int.from_bytes(self.part[4:8], "little")

    @property
    def end_offset(self) -> int:
        """The offset behind its last record."""
        return self.base_offset + int.from_bytes(self.part[4:8], "little")


# --- Rules that the broker's answers and a bucket's have in common ---------------------------------------------------


def gaps_of(parts: Sequence[LogPart], start: int, end: int) -> list[tuple[int, int]]:
    """Return what parts, in their order, leave out of ``[start, end)``."""
    gaps = []
    for part in parts:
        if part.base_offset > start:
            gaps.append((start, min(part.base_offset, end)))
        start = max(start, part.end_offset)
    if start < end:
        gaps.append((start, end))
    return gaps


def name_matcher(topics: Sequence[str], pattern: str) -> Callable[[str], object] | None:
    """Return what says whether a name is wanted, if topics are chosen by a pattern; None: all are, or they are named.

    Raises:
        InvalidArgumentError: ``topics`` is no list, both are given, or the pattern is no regular expression.
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
