"""The part of the history checker about offsets: which message was seen at which offset, and the effects of losses.

A power loss may lose the newest messages of an ``os`` topic, and their offsets are assigned again. So an
offset alone is ambiguous there. For a message seen at an offset it is known between which power losses it
was stored: not before the last one that preceded its sending, and not after the last one that preceded its sighting
(data in flight to an application at a power loss arrives afterwards). So the following is a violation:

* two messages were at one offset between the same two losses;
* a message is gone although no loss came after its sending;
* a message is gone, and one at its offset or behind it, which was stored before it could be lost, is not: a loss
  takes a tail of the log.

In topics of other durability levels nothing is lost, so losses are not counted, and the same rules are strict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Losses", "Sight", "Sights"]


class Sight(NamedTuple):
    """A message was at an offset."""

    offset: int
    checksum: int
    low: int
    """Number of power losses before it was sent."""
    high: int
    """Number of power losses before it was seen."""
    how: str
    """``acknowledged``, ``delivered`` or ``read``."""


class Sights:
    """The sightings of one topic, by offset."""

    def __init__(self) -> None:
        self._at: dict[int, list[Sight]] = {}

    def note(self, offset: int, checksum: int, low: int, high: int, how: str) -> bool:
        """Record a message; return False if another one must have been at its offset at the same time."""
        found = self._at.get(offset)
        if found is None:
            self._at[offset] = [Sight(offset, checksum, low, high, how)]
            return True
        if any(each.checksum == checksum for each in found):
            return True  # the first sighting is the strongest: it is the earliest
        found.append(Sight(offset, checksum, low, high, how))
        return not any(each.low == each.high == low == high for each in found[:-1])

    def __iter__(self) -> Iterator[Sight]:
        for found in self._at.values():
            yield from found


class Losses:
    """Messages lost and kept by the power losses of one topic."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}
        self._lost: defaultdict[int, list[int]] = defaultdict(list)

    def kept(self, offset: int, high: int) -> None:
        """Record that a message exists that was stored before the power loss number ``high``, counted from 0."""
        self._kept[high] = max(self._kept.get(high, -1), offset)

    def lost(self, offset: int, low: int) -> None:
        """Record that a message is gone that was sent after ``low`` power losses."""
        self._lost[low].append(offset)

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield ``(lost message, kept message at its offset or behind it)`` for losses other than a tail of the log."""
        for low, offsets in sorted(self._lost.items()):
            newest = max((offset for high, offset in self._kept.items() if high <= low), default=-1)
            for offset in sorted(set(offsets)):
                if newest >= offset:
                    yield offset, newest
