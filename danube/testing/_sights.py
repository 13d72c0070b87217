"""The part of the history checker that is about places in a log: which message was seen where, and what a loss took.

A power loss may take the newest messages of an ``os`` topic, and the offsets of what it took are given again. So an
offset alone says little there. What is known of a message that was seen at an offset is between which power losses it
was stored: not before the last one that preceded its sending, and not after the last one that preceded its sighting
(whatever was on its way to an application when the power went arrives afterwards). From that follows what may not be:

* two messages were at one offset between the same two losses;
* a message is gone although no loss came after its sending;
* a message is gone, and one at its offset or behind it, which was stored before it could be lost, is not: what a loss
  takes is a tail.

In topics of other durability levels nothing is lost, so losses are not counted, and the same rules are the strict ones.
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
    """Power losses before it was sent."""
    high: int
    """Power losses before it was seen."""
    how: str
    """``acknowledged``, ``delivered`` or ``read``."""


class Sights:
    """What was seen where in one topic."""

    def __init__(self) -> None:
        self._at: dict[int, list[Sight]] = {}

    def note(self, offset: int, checksum: int, low: int, high: int, how: str) -> bool:
        """Note a message; return False if another one must have been at its offset at the same time."""
        found = self._at.get(offset)
        if found is None:
            self._at[offset] = [Sight(offset, checksum, low, high, how)]
            return True
        if any(each.checksum == checksum for each in found):
            return True  # the first sight says most: it is the earliest
        found.append(Sight(offset, checksum, low, high, how))
        return not any(each.low == each.high == low == high for each in found[:-1])

    def __iter__(self) -> Iterator[Sight]:
        for found in self._at.values():
            yield from found


class Losses:
    """What power losses have taken of one topic, compared with what they have left."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}
        self._lost: defaultdict[int, list[int]] = defaultdict(list)

    def kept(self, offset: int, high: int) -> None:
        """A message is there that was stored before the power loss number ``high``, counted from 0."""
        self._kept[high] = max(self._kept.get(high, -1), offset)

    def lost(self, offset: int, low: int) -> None:
        """A message is gone that was sent after ``low`` power losses."""
        self._lost[low].append(offset)

    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield ``(what is gone, what is there at its offset or behind it)`` for what was not the tail of the log."""
        for low, offsets in sorted(self._lost.items()):
            newest = max((offset for high, offset in self._kept.items() if high <= low), default=-1)
            for offset in sorted(set(offsets)):
                if newest >= offset:
                    yield offset, newest
