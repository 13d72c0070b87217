"""Counts the repeats of a line in the log, so that a flood of one event costs one line a minute. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ["MAX_REPEATS", "REPEAT_S", "Due", "Repeats"]

REPEAT_S: Final = 60.0
"""Shortest time between two lines of one event about the same thing, in seconds."""
MAX_REPEATS: Final = 1_000
"""Events and things that are remembered at a time. Beyond that the one that was noted first is forgotten: its next line
is written at once."""

T = TypeVar("T")


class Due(NamedTuple, Generic[T]):
    """Repeats to be reported: the latest line, and how many were not written."""

    line: T
    number: int


class _Known(Generic[T]):
    __slots__ = ("line", "number", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.number = 0
        self.line: T | None = None


class Repeats(Generic[T]):
    """Decides which lines are written.

    Args:
        repeat_s: shortest time between two lines of one key.
        most: keys that are remembered.
    """

    def __init__(self, repeat_s: float = REPEAT_S, most: int = MAX_REPEATS) -> None:
        self._repeat_s = repeat_s
        self._most = most
        self._known: dict[Hashable, _Known[T]] = {}
        """By key; that whose minute began first is the first."""

    def __len__(self) -> int:
        return len(self._known)

    def note(self, key: Hashable, line: T, now: float) -> bool:
        """Return whether a line is written now; if not, it is counted.

        Call :meth:`due` before, so that what was counted is written first.

        Args:
            key: the event, and the thing it is about.
            line: what would be written.
            now: seconds, of a clock that never goes back.
        """
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[key] = _Known(now)
            return True
        known.number += 1
        known.line = line
        return False

    def due(self, now: float) -> list[Due[T]]:
        """Return the repeats of each key whose minute is over; one with repeats begins another minute."""
        found = []
        while self._known:
            key, known = next(iter(self._known.items()))
            if now - known.since < self._repeat_s:
                break
            del self._known[key]
            if known.line is not None:
                found.append(Due(known.line, known.number))
                self._known[key] = _Known(now)
        return found

    def rest(self) -> list[Due[T]]:
        """Return all repeats that were not reported, and forget everything: the process ends."""
        found = [Due(known.line, known.number) for known in self._known.values() if known.line is not None]
        self._known.clear()
        return found
