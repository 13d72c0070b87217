"""The cursor of a subscription: the set of acknowledged offsets, and its journal entries.

It consists of a floor (everything below is acknowledged) and a set of acknowledged ranges above it, so acknowledgements
that arrive out of order survive a restart::

    offsets    0 . . . . . . . . 9 . . . . . . . . 19
    acked      # # # # # # # - - - # # - # # # - - -
                             ^ floor = 7   ranges = [10, 12) [13, 16)

The floor never passes an offset that is not acknowledged. A seek starts a new *generation*: journal entries of older
generations are ignored. Recovery applies entries in journal order; every entry may be applied twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise

import msgspec

from danube.model.errors import DataLossError
from danube.model.limits import Limits
from danube.model.ranges import RangeSet

__all__ = ["Cursor", "CursorDelta", "CursorEntry", "CursorReset", "CursorSnapshot", "decode_entry", "encode_entry"]


class CursorDelta(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Journal entry: these ranges were acknowledged."""

    subscription_id: int
    generation: int
    ranges: list[int]
    """Flat list."""


class CursorReset(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Journal entry: the cursor was moved to ``floor`` and started a new generation."""

    subscription_id: int
    generation: int
    floor: int


class CursorSnapshot(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The whole cursor. It replaces every earlier entry of its generation and of older ones."""

    subscription_id: int
    generation: int
    floor: int
    steps: list[int]
    """The ranges above the floor as steps, ``[gap, length, gap, length, ...]``: small numbers, encoded in one to three
    bytes each."""


CursorEntry = CursorDelta | CursorReset | CursorSnapshot

encode_entry = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[CursorEntry] = msgspec.msgpack.Decoder(CursorEntry)


def decode_entry(data: bytes | memoryview) -> CursorEntry:
    """Decode an entry encoded by :data:`encode_entry`.

    Raises:
        DataLossError: the bytes are not such an entry.
    """
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise DataLossError(f"a cursor entry of {len(data)} bytes cannot be decoded: {error}") from error


def _steps(floor: int, flat: Sequence[int]) -> list[int]:
    """Encode a flat list of ranges above ``floor`` as the differences between successive numbers."""
    return [after - before for before, after in pairwise(chain((floor,), flat))]


class _Acked(RangeSet):
    """A range set whose insert returns the newly added parts; the common cases take one search."""

    __slots__ = ()

    def insert(self, start: int, end: int, most: int | None) -> list[tuple[int, int]]:
        """Add ``[start, end)`` and return the newly added parts; do nothing if there would be > ``most`` ranges."""
        starts, ends = self._starts, self._ends
        index = bisect_right(starts, start)
        after = starts[index] if index < len(starts) else end + 1
        before = ends[index - 1] if index else start - 1
        if before <= start and end <= after:  # no overlap
            if before == start:
                if after == end:
                    ends[index - 1] = ends[index]
                    del starts[index], ends[index]
                else:
                    ends[index - 1] = end
            elif after == end:
                starts[index] = start
            elif most is not None and len(starts) >= most:
                return []
            else:
                starts.insert(index, start)
                ends.insert(index, end)
            return [(start, end)]
        new = list(self.gaps(start, end))
        if new:
            self.add(start, end)
        return new

    def raise_floor(self, start: int, end: int) -> tuple[list[tuple[int, int]], int]:
        """Take ``[start, end)`` below the set; return the parts that were not in it, and the resulting floor."""
        starts = self._starts
        if not starts or end < starts[0]:
            return [(start, end)], end
        if end == starts[0]:
            del starts[0]
            return [(start, end)], self._ends.pop(0)
        new = list(self.gaps(start, end))
        self.remove(start, end)
        return new, self.pop_front(end)

    def past(self, offset: int) -> int:
        """Return the first offset at or above ``offset`` that is not in the set."""
        index = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset

    def last_end(self, default: int) -> int:
        """Return the end of the highest range, or ``default`` if the set is empty."""
        return self._ends[-1] if self._ends else default


class Cursor:
    """A floor and the acknowledged ranges above it.

    Attributes:
        floor: every offset below it is acknowledged. Read-only for other objects.
        generation: number of seeks so far, and of times that it was set back. Read-only for other objects.
        holes: ranges of the log, in order, of which nobody has the messages now: they count in no backlog, and no
            cumulative acknowledgement includes them. They are not stored with the cursor.
    """

    __slots__ = ("_acked", "_max_ranges", "floor", "generation", "holes")

    def __init__(
        self,
        floor: int = 0,
        *,
        generation: int = 0,
        ranges: Iterable[tuple[int, int]] = (),
        max_ranges: int | None = None,
    ) -> None:
        """Build a cursor.

        Args:
            floor: first unacknowledged offset, apart from ``ranges``.
            generation: of the snapshot it is built from.
            ranges: acknowledged ranges above the floor.
            max_ranges: most separate ranges above the floor (None: no limit). An acknowledgement that would exceed it
                is refused, and its messages stay unacknowledged.
        """
        self.floor = floor
        self.generation = generation
        self.holes: Sequence[tuple[int, int]] = ()
        self._max_ranges = max_ranges
        self._acked = _Acked(ranges)
        self.floor = self._acked.pop_front(floor)

    @staticmethod
    def most_ranges(limits: Limits) -> int:
        """Return the limit of ranges of a cursor; dispatch stops earlier, to leave room for the messages in flight."""
        return limits.max_ack_ranges + limits.max_unacked_messages + limits.max_delayed_ranges

    @property
    def range_count(self) -> int:
        """Number of acknowledged ranges above the floor."""
        return len(self._acked._starts)

    @property
    def end(self) -> int:
        """First offset after all acknowledged ones."""
        return self._acked.last_end(self.floor)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the acknowledged ranges above the floor."""
        return list(self._acked)

    def ack(self, start: int, end: int, *, force: bool = False) -> list[tuple[int, int]]:
        """Acknowledge ``[start, end)`` and return the parts of it that were not acknowledged before.

        With ``force`` the limit of ranges does not apply: for callers that enforce another bound.
        """
        floor = self.floor
        if start > floor:
            if start >= end:
                return []
            return self._acked.insert(start, end, None if force else self._max_ranges)
        if end <= floor:
            return []  # acknowledged before
        new, self.floor = self._acked.raise_floor(floor, end)
        return new

    def is_acked(self, offset: int) -> bool:
        """Return whether ``offset`` is acknowledged."""
        return offset < self.floor or offset in self._acked

    def live(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the unacknowledged ranges of ``[start, end)``."""
        if start < self.floor:
            start = self.floor
        if start >= end:
            return []
        if not self._acked._starts:
            return [(start, end)]
        return list(self._acked.gaps(start, end))

    def next_live(self, offset: int) -> int:
        """Return the first unacknowledged offset at or above ``offset``."""
        return self.floor if offset < self.floor else self._acked.past(offset)

    def backlog(self, end: int) -> int:
        """Return the number of unacknowledged messages below ``end``."""
        found = sum(high - low for low, high in self.live(self.floor, end))
        for start, stop in self.holes:
            found -= sum(high - low for low, high in self.live(start, min(stop, end)))
        return found

    def solid(self, start: int, end: int) -> list[int]:
        """Return ``[start, end)`` without the holes, as a flat list."""
        flat: list[int] = []
        for low, high in self.holes:
            if low >= end:
                break
            if high > start:
                if low > start:
                    flat += (start, low)
                start = high
        if start < end:
            flat += (start, end)
        return flat

    def seek(self, offset: int) -> None:
        """Move to ``offset``: everything below counts as acknowledged, nothing above. Starts a new generation."""
        self.generation += 1
        self.floor = offset
        self._acked.clear()

    def clamp(self, end: int) -> bool:
        """Remove offsets at or above ``end``, the recovered end of the log; return whether there were any."""
        if self.end <= end:
            return False
        self._acked.remove(end, self.end)
        self.floor = min(self.floor, end)
        return True

    def set_back(self, end: int) -> bool:
        """As :meth:`clamp`, and start a new generation if there were any; it counts once a snapshot is stored.

        Older entries, which the next recovery may read again, must not acknowledge the messages that get these offsets
        next.
        """
        clamped = self.clamp(end)
        self.generation += clamped
        return clamped

    def delta(self, subscription_id: int, ranges: list[int]) -> CursorDelta:
        """Build the journal entry for newly acknowledged ``ranges`` (flat)."""
        return CursorDelta(subscription_id, self.generation, ranges)

    def reset(self, subscription_id: int) -> CursorReset:
        """Build the journal entry to write after a seek."""
        return CursorReset(subscription_id, self.generation, self.floor)

    def snapshot(self, subscription_id: int) -> CursorSnapshot:
        """Build the entry that holds the whole cursor."""
        return CursorSnapshot(subscription_id, self.generation, self.floor, _steps(self.floor, self._acked.to_flat()))

    def apply(self, entry: CursorEntry) -> bool:
        """Apply a recovered entry. Idempotent; entries of older generations are ignored.

        Returns:
            False if the entry is a delta of a generation whose reset was never seen: a seek is lost. The cursor stays
            at its place, in the new generation. It counts no message as acknowledged that is not, and may deliver
            messages that the seek would have passed over.
        """
        if entry.generation < self.generation:
            return True
        if isinstance(entry, CursorDelta):
            complete = entry.generation == self.generation
            self.generation = entry.generation
            self._merge(entry.ranges)
            return complete
        if entry.generation > self.generation:
            self.generation = entry.generation
            self.floor = entry.floor
            self._acked.clear()
        if isinstance(entry, CursorSnapshot):
            self._merge([self.floor, entry.floor] if entry.floor > self.floor else [])
            self._merge(list(accumulate(entry.steps, initial=entry.floor))[1:])
        return True

    def _merge(self, flat: Sequence[int]) -> None:
        """Acknowledge recovered ranges; they were accepted before, so the limit does not apply."""
        acked = self._acked
        for index in range(0, len(flat), 2):
            acked.add(max(flat[index], self.floor), flat[index + 1])
        self.floor = acked.pop_front(self.floor)
