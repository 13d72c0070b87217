"""Chooses the topics that have series of their own, if there are too many topics for that. Pure.

The busiest ones are chosen by what they have moved since the last choice. A chosen one stays until another one is twice
as busy, and the choice is made once a minute: a topic whose series come and go would leave holes in each graph.

Topics are offered some at a time, so that a choice among ten thousand does not hold up the event loop.
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
    """The busiest topics; see the module. A scrape calls :meth:`begin`, :meth:`offer` for all topics, and :meth:`end`.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._chosen: frozenset[str] = frozenset()
        self._before: dict[str, int] = {}
        self._chosen_at: float | None = None
        self._chooses = False
        self._offered: dict[str, int] = {}
        self._best: list[tuple[int, bool, str]] = []

    def begin(self, topics: int, now: float) -> None:
        """Begin a scrape.

        Args:
            topics: how many there are.
            now: monotonic seconds.
        """
        self._offered, self._best = {}, []
        if topics <= self._most:
            self._chosen_at, self._chooses = None, False
        elif self._chosen_at is None or now - self._chosen_at >= CHOICE_S:
            self._chosen_at, self._chooses = now, True
        else:
            self._chooses = False

    def offer(self, moved: Mapping[str, int]) -> None:
        """Offer some topics, by name, with the number of messages that they have received and delivered so far."""
        self._offered.update(moved)
        if self._chooses:
            ranks = [self._rank(name, count) for name, count in moved.items()]
            self._best = nlargest(self._most, [*self._best, *ranks])

    def end(self) -> frozenset[str]:
        """Return the names of the chosen topics, of those that were offered."""
        if self._chosen_at is None:
            self._chosen = frozenset(self._offered)
        elif self._chooses:
            self._chosen = frozenset(name for _, _, name in self._best)
            self._before = self._offered
        else:
            self._chosen &= self._offered.keys()  # the places of deleted topics remain free until the next choice
        self._offered, self._best = {}, []
        return self._chosen

    def _rank(self, name: str, count: int) -> tuple[int, bool, str]:
        before = self._before.get(name, 0)
        grown = count - before if count >= before else count
        stays = name in self._chosen
        return grown * (_STAYS if stays else 1), stays, name
