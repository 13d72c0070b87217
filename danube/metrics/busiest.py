"""Chooses the topics that have series of their own, if there are too many topics for that. Pure.

The busiest ones are chosen by what they have moved since the last choice. A chosen one stays until another one is twice
as busy, and the choice is made once a minute: a topic whose series come and go would leave holes in each graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Final

__all__ = ["CHOICE_S", "Busiest"]

CHOICE_S: Final = 60.0
"""Pause between two choices."""
_STAYS: Final = 2
"""How many times as busy another topic has to be."""


class Busiest:
    """The busiest topics; see the module.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._chosen: frozenset[str] = frozenset()
        self._before: dict[str, int] = {}
        self._chosen_at: float | None = None

    def choose(self, moved: Mapping[str, int], now: float) -> frozenset[str]:
        """Return the names of the chosen topics.

        Args:
            moved: all topics by name, with the number of messages that they have received and delivered so far.
            now: monotonic seconds.
        """
        if len(moved) <= self._most:
            self._chosen_at = None
            self._chosen = frozenset(moved)
            return self._chosen
        if self._chosen_at is None or now - self._chosen_at >= CHOICE_S:
            self._chosen = frozenset(nlargest(self._most, moved, lambda name: self._rank(name, moved[name])))
            self._chosen_at = now
            self._before = dict(moved)
        else:
            self._chosen &= moved.keys()  # the places of deleted topics remain free until the next choice
        return self._chosen

    def _rank(self, name: str, count: int) -> tuple[int, bool, str]:
        before = self._before.get(name, 0)
        grown = count - before if count >= before else count
        stays = name in self._chosen
        return grown * (_STAYS if stays else 1), stays, name
