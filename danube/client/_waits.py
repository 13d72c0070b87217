"""What the calls and streams of a client wait for, for people who watch it. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from danube.client._url import Address

__all__ = ["Wait", "Waits"]


class Wait:
    """One call, or the opening of one stream, from its first attempt to its last. It counts while it is referenced."""

    __slots__ = ("__weakref__", "asked", "reason", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.asked: Address | None = None
        """The broker that has not answered yet."""
        self.reason = ""
        """The error of the last attempt; empty: none has failed."""

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        return f"no answer yet from {self.asked}" if self.asked is not None else "no connection to a broker yet"


class Waits:
    """The waits of one client."""

    def __init__(self) -> None:
        self._waits: WeakSet[Wait] = WeakSet()

    def begin(self, now_s: float) -> Wait:
        """Return a new wait; :meth:`end` ends it."""
        wait = Wait(now_s)
        self._waits.add(wait)
        return wait

    def end(self, wait: Wait) -> None:
        """End a wait, successful or not."""
        self._waits.discard(wait)

    def longest(self, now_s: float, least_s: float) -> str | None:
        """Return the sentence about the wait that is the longest; None if none has lasted at least ``least_s``.

        One with a reason comes before those without, and one that knows which broker it asked before the others.
        """
        old = [wait for wait in self._waits if now_s - wait.since_s >= least_s]
        return str(min(old, key=lambda wait: (not wait.reason, wait.asked is None, wait.since_s))) if old else None
