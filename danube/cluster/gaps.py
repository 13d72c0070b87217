"""Declared gaps: offsets of a topic that were lost with the disk of a broker that will not return. Pure.

An operator says that a broker is gone for good (``danube cluster forget``). Its topics of durability ``disk`` and
``os`` go on elsewhere. How far the lost broker got is unknown, so the new owner begins behind every offset that the
journal of the lost one can hold, and what lies between is declared as a gap::

    start        end of the history                       first offset of the new owner
      | sealed         | declared gap: at most RESERVE        | journal of the new owner
                       ^ GapRecord.start                      ^ GapRecord.end

So no offset is used twice, and what the lost broker has in its journal fits into the gap if it does return. Keys::

    /gaps/{topic id}/{start}     GapRecord, as long as the topic exists

Readers pass over a gap. Subscriptions keep it as unacknowledged until it is *settled*: filled with what was found on
the lost disk, or forgotten by an operator. The row stays after that, because offsets are missing there for ever.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from danube.cluster.records import broker_name
from danube.model.api import DeclaredGap
from danube.model.errors import DataLossError
from danube.model.ids import BrokerId, Offset, TopicId
from danube.model.ranges import RangeSet
from danube.model.spoken import spoken_duration

__all__ = [
    "DEFAULT_RESERVE",
    "GAPS",
    "GapRecord",
    "GapState",
    "gap_name",
    "is_gap_name",
    "lost_with",
    "open_ranges",
    "read_gap",
    "reserve_of",
    "restored_gap",
    "settled_ranges",
    "shown_gap",
    "spoken_gap",
    "spoken_since",
    "topic_gaps",
    "topic_of_gap",
    "undeclared",
]

GAPS: Final = "/gaps/"
"""Prefix of the rows of gaps."""
SMALLEST_BATCH_BYTES: Final = 128
"""A batch takes at least so many bytes of a journal: its entry, stamp and header."""
DEFAULT_RESERVE: Final = 1 << 42
"""The reserve for a broker that has not registered the limits of its journal: that of the default limits."""


class GapState(enum.StrEnum):
    """What has become of a gap."""

    OPEN = "open"
    """Subscriptions wait for its messages."""
    FILLED = "filled"
    """What the lost disk had of it is sealed; the rest was never used."""
    FORGOTTEN = "forgotten"
    """An operator has acknowledged the loss."""


class GapRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A declared gap in the offsets of a topic or partition."""

    start: Offset
    """The end of what was sealed when the broker was forgotten, or of the gap before if nothing is sealed behind it."""
    end: Offset
    """The first offset of the new owner."""
    broker: BrokerId
    """The one that was forgotten."""
    since_s: float
    """When, in seconds since 1970."""
    by: str = ""
    """The principal who has accepted the loss; empty: not known."""
    state: GapState = GapState.OPEN
    move: int = 0
    """The move that had brought the topic to the lost broker: in its journal the topic begins there. 0: none."""
    filled_end: Offset = Offset(0)
    """Of a filled gap: the end of what was found. Nothing was ever stored from there on."""


_GAP: Final = msgspec.msgpack.Decoder(GapRecord)


def reserve_of(journal_max_bytes: int, max_batch_records: int) -> int:
    """Return how many offsets the journal of a broker can use at most, rounded up to a power of two.

    Args:
        journal_max_bytes, max_batch_records: limits of the broker.
    """
    most = max(1, journal_max_bytes // SMALLEST_BATCH_BYTES * max_batch_records)
    return 1 << (most - 1).bit_length()


def topic_gaps(topic_id: TopicId) -> str:
    """Return the prefix of the keys of a topic's gaps."""
    return f"{GAPS}{topic_id:016x}/"


def gap_name(topic_id: TopicId, start: Offset) -> str:
    """Return the name of a row below :data:`GAPS`."""
    return f"{topic_id:016x}/{start:016x}"


def is_gap_name(name: str) -> bool:
    """Whether this can be the name of a row below :data:`GAPS`."""
    topic, slash, start = name.partition("/")
    return bool(slash) and all(len(each) == 16 and not set(each) - set("0123456789abcdef") for each in (topic, start))


def topic_of_gap(name: str) -> TopicId:
    """Return the topic of a row below :data:`GAPS`."""
    return TopicId(int(name[:16], 16))


def read_gap(record: bytes, topic: str) -> GapRecord:
    """Decode a record that was kept elsewhere.

    Raises:
        DataLossError: it cannot be decoded.
    """
    try:
        return _GAP.decode(record)
    except msgspec.DecodeError as error:
        raise DataLossError(f"the record of a declared gap of topic {topic!r} cannot be decoded: {error}") from error


def restored_gap(gap: GapRecord) -> GapRecord:
    """Return a gap as it is in other metadata, where nothing can fill it any more."""
    return gap if gap.state is GapState.FILLED else msgspec.structs.replace(gap, state=GapState.FORGOTTEN)


def settled_ranges(gaps: Iterable[GapRecord], parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of gaps that nothing waits for any more, and that no message has, in order.

    Args:
        gaps: of a topic or partition.
        parts: what is sealed of it.
    """
    sealed = RangeSet(parts)
    settled = [gap for gap in gaps if gap.state is not GapState.OPEN]
    return sorted(pair for gap in settled for pair in sealed.gaps(gap.start, gap.end))


def open_ranges(gaps: Iterable[GapRecord]) -> list[tuple[int, int]]:
    """Return the ranges for which subscriptions wait, in order."""
    return sorted((gap.start, gap.end) for gap in gaps if gap.state is GapState.OPEN)


def lost_with(gaps: Mapping[TopicId, Sequence[GapRecord]]) -> dict[BrokerId, list[tuple[TopicId, GapRecord]]]:
    """Return the open gaps by the brokers that were lost, each with its topic or partition, in the order of topics."""
    found: dict[BrokerId, list[tuple[TopicId, GapRecord]]] = {}
    for topic_id in sorted(gaps):
        for gap in gaps[topic_id]:
            if gap.state is GapState.OPEN:
                found.setdefault(gap.broker, []).append((topic_id, gap))
    return found


def shown_gap(topic: str, gap: GapRecord) -> DeclaredGap:
    """Return a gap in the form of the API; a filled one is what was never used of it."""
    start = gap.filled_end if gap.state is GapState.FILLED else gap.start
    return DeclaredGap(
        topic=topic,
        start=start,
        end=gap.end,
        broker=broker_name(gap.broker),
        since_us=int(gap.since_s * 1e6),
        by=gap.by,
        open=gap.state is GapState.OPEN,
    )


def spoken_gap(gap: DeclaredGap) -> str:
    """Name a gap in a sentence: ``offsets 2 to 1,025 of /default/t``; the last one is included."""
    return f"offsets {gap.start:,} to {gap.end - 1:,} of {gap.topic}"


def spoken_since(gap: DeclaredGap, now_s: float) -> str:
    """Say when a gap was declared, and by which principal: ``3 h ago by ann``.

    Args:
        gap: the gap.
        now_s: seconds since 1970.
    """
    ago = f"{spoken_duration(max(0.0, now_s - gap.since_us / 1e6))} ago"
    return f"{ago} by {gap.by}" if gap.by else ago


def undeclared(low: int, high: int, gaps: Iterable[GapRecord]) -> list[tuple[int, int]]:
    """Return the parts of ``[low, high)``, which holds no messages, that no gap declares."""
    declared = RangeSet((gap.start, gap.end) for gap in gaps)
    return list(declared.gaps(low, high)) if low < high else []
