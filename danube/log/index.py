"""Sparse index of one topic: maps offsets and append times to positions in the journal. Pure.

It has one entry per topic and 64 KiB region of a journal file: base offset, place (file id and position of the entry
header, in one number), append time, and the bytes of the topic before it, 32 bytes in four arrays. A reader finds the
entry at or below its offset and walks on from there; a region holds at most a few hundred batches. Ten million messages
in batches of 64 KiB cost 500 KB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from danube.model.ids import FIRST_OFFSET, Offset

__all__ = ["REGION_BYTES", "Location", "TopicIndex", "interpolated"]

REGION_BYTES: Final = 64 * 1024
_POSITION_BITS: Final = 32
_POSITION_MASK: Final = (1 << _POSITION_BITS) - 1


class Location(NamedTuple):
    """A place in the journal: the id of a file and the position of an entry header (or of a block) in it."""

    file: int
    position: int


def interpolated(offset: int, start: int, start_us: int, end: int, end_us: int) -> int:
    """Return a time for an offset between two others whose times are known, as if messages had come evenly."""
    if end_us <= start_us or not start < offset < end:
        return end_us if offset >= end and end_us > start_us else start_us
    return start_us + (end_us - start_us) * (offset - start) // (end - start)


class TopicIndex:
    """Offset and append time to :class:`Location`, for one topic. Entries are added in the order of the log."""

    __slots__ = ("_last_region", "_offsets", "_places", "_sizes", "_times", "_total_bytes")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._places = array("Q")
        self._times = array("Q")
        self._sizes = array("Q")
        """Bytes of all batches before this entry, counted from the start of the index."""
        self._total_bytes = 0
        self._last_region = -1

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, base_offset: Offset, file: int, position: int, append_time_us: int, size_bytes: int) -> None:
        """Add a batch; only the first of each region is indexed."""
        place = file << _POSITION_BITS | position
        region = place // REGION_BYTES
        before = self._total_bytes
        self._total_bytes = before + size_bytes
        if region == self._last_region:
            return
        self._last_region = region
        times = self._times
        if times and append_time_us < times[-1]:
            append_time_us = times[-1]  # keeps the binary search valid if the clock steps back
        self._offsets.append(base_offset)
        self._places.append(place)
        self._sizes.append(before)
        times.append(append_time_us)

    def find(self, offset: Offset) -> Location | None:
        """Return the place of the last entry at or below ``offset``; the first one if all are above."""
        if not self._offsets:
            return None
        return self._location(max(0, bisect_right(self._offsets, offset) - 1))

    def after(self, location: Location) -> tuple[Offset, Location] | None:
        """Return base offset and place of the first entry behind ``location``."""
        at = bisect_right(self._places, location.file << _POSITION_BITS | location.position)
        if at == len(self._places):
            return None
        return Offset(self._offsets[at]), self._location(at)

    def before_time(self, time_us: int) -> Offset | None:
        """Return the base offset of the last entry appended before ``time_us``, None if there is none."""
        at = bisect_left(self._times, time_us)
        return Offset(self._offsets[at - 1]) if at else None

    def time_of(self, offset: Offset, end_offset: Offset, end_us: int) -> int:
        """Estimate when the batch with an offset was appended, from the entries around it; 0: there are none.

        Args:
            offset: of a batch in the journal.
            end_offset, end_us: a later batch, and when it was appended; 0: the estimate is that of the entry before.
        """
        if not self._offsets:
            return 0
        at = max(0, bisect_right(self._offsets, offset) - 1)
        base, time_us = self._offsets[at], self._times[at]
        if at + 1 < len(self._offsets):
            end_offset, end_us = Offset(self._offsets[at + 1]), self._times[at + 1]
        return interpolated(offset, base, time_us, end_offset, end_us)

    def first_time(self) -> int | None:
        """Return the append time of the first entry."""
        return self._times[0] if self._times else None

    def bytes_from(self, offset: Offset) -> int:
        """Return the bytes of the batches at and behind an offset; up to one region too many."""
        if not self._offsets:
            return 0
        return self._total_bytes - self._sizes[max(0, bisect_right(self._offsets, offset) - 1)]

    def surplus(self, offset: Offset) -> int:
        """Return the maximum by which :meth:`bytes_from` this offset may be too high; 0: it is exact."""
        at = max(0, bisect_right(self._offsets, offset) - 1)
        if not self._offsets or self._offsets[at] >= offset:
            return 0
        return (self._sizes[at + 1] if at + 1 < len(self._sizes) else self._total_bytes) - self._sizes[at]

    def offset_keeping(self, size_bytes: int) -> Offset:
        """Return the highest base offset known to have at least ``size_bytes`` at and behind it."""
        at = bisect_right(self._sizes, self._total_bytes - size_bytes) - 1
        return Offset(self._offsets[at]) if at >= 0 else FIRST_OFFSET

    def drop_before(self, offset: Offset) -> None:
        """Remove entries that a reader at ``offset`` or behind it does not need."""
        count = bisect_right(self._offsets, offset) - 1
        if count > 0:
            self._delete(0, count)

    def drop_file(self, file: int) -> None:
        """Remove the entries of one journal file."""
        low = bisect_left(self._places, file << _POSITION_BITS)
        high = bisect_left(self._places, (file + 1) << _POSITION_BITS)
        if low < high:
            self._delete(low, high)

    def _location(self, at: int) -> Location:
        place = self._places[at]
        return Location(place >> _POSITION_BITS, place & _POSITION_MASK)

    def _delete(self, low: int, high: int) -> None:
        if high == len(self._places):
            self._last_region = -1
        for column in (self._offsets, self._places, self._sizes, self._times):
            del column[low:high]
