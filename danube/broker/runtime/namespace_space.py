"""How much the topics of namespaces store at this broker: those of a namespace with such a quota share one count.

What is published is added at once; what retention and deletion have freed is seen when a task counts again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from danube.model.errors import LimitExceededError

__all__ = ["NamespaceSpaces", "Space"]

_EACH_S: Final = 1.0
"""Pause between two counts."""
_PER_TURN: Final = 200
"""Other tasks run after so many topics."""


class Space:
    """What the topics of one namespace store.

    Args:
        namespace: its name.
        limit_bytes: its quota.
    """

    __slots__ = ("limit_bytes", "namespace", "taken_bytes", "used_bytes")

    def __init__(self, namespace: str, limit_bytes: int) -> None:
        self.namespace = namespace
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.taken_bytes = 0
        """All that was ever taken."""

    def has(self, size_bytes: int) -> bool:
        """Whether there is room for a batch."""
        return self.used_bytes + size_bytes <= self.limit_bytes

    def check(self, size_bytes: int) -> None:
        """Raise LimitExceededError, which is retryable, if there is no room for a batch."""
        if not self.has(size_bytes):
            raise LimitExceededError(
                f"namespace {self.namespace!r} stores {self.used_bytes} bytes at this broker, and its quota"
                f" max_stored_bytes is {self.limit_bytes}: {size_bytes} more are refused until retention or deletion"
                " has made room, or an administrator raises it (danube namespaces quota set"
                f" {self.namespace} max_stored_bytes=N)"
            )

    def take(self, size_bytes: int) -> None:
        """Count a published batch."""
        self.used_bytes += size_bytes
        self.taken_bytes += size_bytes


class NamespaceSpaces:
    """The counts of all namespaces with a quota; see the module.

    Attributes:
        limit_of: returns the quota of a namespace in bytes; None: it has none. Set by the owner.
    """

    def __init__(self) -> None:
        self.limit_of: Callable[[str], int | None] = _no_limit
        self._spaces: dict[str, Space] = {}
        self._wake = trio.Event()

    def of_topic(self, topic: str) -> Space | None:
        """Return the count that a topic shares, with the quota that its namespace has now; None if it has none."""
        namespace = topic.split("/", 2)[1]
        limit = self.limit_of(namespace)
        if limit is None:
            self._spaces.pop(namespace, None)
            return None
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = Space(namespace, limit)
            self._wake.set()
        space.limit_bytes = limit
        return space

    async def run(self, topics: Callable[[], Sequence[str]], stored: Callable[[str], int]) -> None:
        """Count, until cancelled.

        Args:
            topics: returns the names of the topics that this broker serves.
            stored: returns the bytes that one of them stores; 0 if it is not served any more.
        """
        while True:
            self._wake = trio.Event()
            if not self._spaces:
                await self._wake.wait()
            began = trio.current_time()
            await self._count(topics(), stored)
            # It never takes more than a tenth of the time.
            with trio.move_on_after(max(_EACH_S, 9 * (trio.current_time() - began))):
                await self._wake.wait()

    async def _count(self, topics: Sequence[str], stored: Callable[[str], int]) -> None:
        spaces = dict(self._spaces)
        before = {name: space.taken_bytes for name, space in spaces.items()}
        found = dict.fromkeys(spaces, 0)
        for index, topic in enumerate(topics):
            namespace = topic.split("/", 2)[1]
            if namespace in found:
                found[namespace] += stored(topic)
            if index % _PER_TURN == _PER_TURN - 1:
                await trio.lowlevel.checkpoint()
        for name, space in spaces.items():
            # What was published meanwhile may be counted twice, until the next time.
            space.used_bytes = found[name] + space.taken_bytes - before[name]
        await trio.lowlevel.checkpoint()


def _no_limit(_namespace: str) -> None:
    """Initially no namespace has a quota."""
