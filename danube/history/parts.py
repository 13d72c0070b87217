"""Records of sealed parts and objects in the catalogue, and the ordered parts of one topic. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from danube.history.segment import SegmentPart
from danube.log.index import interpolated
from danube.model.ids import FIRST_OFFSET, NO_OWNER_EPOCH, Offset, OwnerEpoch, TopicId
from danube.model.query_api import LogPart

__all__ = ["GarbageRecord", "ObjectRecord", "ObjectRef", "PartRecord", "TopicHistory", "from_log_part", "to_log_part"]

# A LogPart has the fields of a SegmentPart, without the topic, after the location of its object.
assert LogPart.__struct_fields__[3:] == SegmentPart.__struct_fields__[1:]


def to_log_part(storage: str, key: str, object_bytes: int, part: SegmentPart) -> LogPart:
    """Convert a part to its form in the API."""
    return LogPart(storage, key, object_bytes, *msgspec.structs.astuple(part)[1:])


def from_log_part(topic_id: TopicId, part: LogPart) -> SegmentPart:
    """Convert a part from its form in the API."""
    return SegmentPart(topic_id, *msgspec.structs.astuple(part)[3:])


class ObjectRef(NamedTuple):
    """Identifies an object: its storage and its key."""

    storage: str
    key: str


class PartRecord(msgspec.Struct, frozen=True, array_like=True):
    """A sealed part and its location."""

    storage: str
    object: str
    part: SegmentPart

    @property
    def ref(self) -> ObjectRef:
        """The object that holds the part."""
        return ObjectRef(self.storage, self.object)


class ObjectRecord(msgspec.Struct, frozen=True, array_like=True):
    """An object that is referenced."""

    size_bytes: int
    references: int
    """Number of parts that point to it, of all topics and owners."""
    live_bytes: int
    """Total bytes of these parts."""
    created_us: int
    tainted: bool = False
    """Whether it holds data of a deleted topic. The merger moves its other parts to a new object."""


class GarbageRecord(msgspec.Struct, frozen=True, array_like=True):
    """An object that is not referenced any more, and is to be deleted."""

    broker: str
    """The broker that deletes it."""
    size_bytes: int
    created_us: int
    since_us: int
    """When the last reference was removed; the object is deleted a grace period later."""


class TopicHistory:
    """The sealed parts of one topic, in the order of their offsets."""

    __slots__ = ("_bases", "_highest_us", "epoch", "parts", "start_offset")

    def __init__(self, epoch: OwnerEpoch = NO_OWNER_EPOCH) -> None:
        self.epoch = epoch
        """Of the owner that reads it, when it was read; see :class:`danube.history.tenure.Tenure`."""
        self.parts: list[PartRecord] = []
        self._bases: list[Offset] = []
        # Highest append time up to the end of each part: keeps the binary search valid if the clock steps back.
        self._highest_us: list[int] = []
        self.start_offset = FIRST_OFFSET
        """Start offset set by retention."""

    @property
    def end_offset(self) -> Offset:
        """Offset after the last sealed one; 0 if nothing is sealed."""
        return self.parts[-1].part.end_offset if self.parts else FIRST_OFFSET

    @property
    def size_bytes(self) -> int:
        """Bytes of all sealed batches."""
        return sum(record.part.size_bytes for record in self.parts)

    def find(self, offset: Offset) -> PartRecord | None:
        """Return the part that holds ``offset``, or else the next one."""
        at = max(0, bisect_right(self._bases, offset) - 1)
        for record in self.parts[at : at + 2]:
            if record.part.end_offset > offset:
                return record
        return None

    def between(self, start: Offset, end: Offset, most: int) -> tuple[list[PartRecord], bool]:
        """Return the parts that overlap ``[start, end)``, at most ``most``, and whether there are more."""
        first = max(0, bisect_right(self._bases, start) - 1)
        if first < len(self.parts) and self.parts[first].part.end_offset <= start:
            first += 1
        last = bisect_left(self._bases, end)
        return self.parts[first : min(last, first + most)], last > first + most

    def find_time(self, time_us: int) -> PartRecord | None:
        """Return the first part with a batch appended at or after a time."""
        at = bisect_left(self._highest_us, time_us)
        return self.parts[at] if at < len(self.parts) else None

    def appended_us(self, offset: Offset) -> int:
        """Estimate when a sealed record was appended, from the times of its part; 0: it is not sealed."""
        record = self.find(offset)
        if record is None:
            return 0
        part = record.part
        return interpolated(
            offset, part.base_offset, part.first_time_us, part.end_offset, max(part.first_time_us, part.last_time_us)
        )

    def add(self, record: PartRecord) -> None:
        """Insert a part in order."""
        base = record.part.base_offset
        at = bisect_right(self._bases, base)
        self._bases.insert(at, base)
        self.parts.insert(at, record)
        self._note_times(at)

    def remove(self, records: Iterable[PartRecord]) -> None:
        """Remove parts."""
        gone = {record.part.base_offset for record in records}
        self.parts = [record for record in self.parts if record.part.base_offset not in gone]
        self._bases = [record.part.base_offset for record in self.parts]
        self._note_times(0)

    def _note_times(self, first: int) -> None:
        highest = self._highest_us
        del highest[first:]
        for record in self.parts[first:]:
            last_us = record.part.last_time_us
            highest.append(max(highest[-1], last_us) if highest else last_us)
