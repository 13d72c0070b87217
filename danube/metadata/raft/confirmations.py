"""What waits until the leader has confirmed that it leads, and then for the member's own table. Pure.

Reads are answered from an index that the leader has confirmed; the same confirmation is needed by a leader before it
says that leases were renewed, or proposes their end. One question stands for all reads that wait at that moment::

    queue ──ask──▶ asked, by token ──confirm──▶ index ──due──▶ answered from the table
      ▲                │
      └── lost, late ──┘      (a leader's own concerns are not asked again here: their senders, or the clock, do it)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from danube.metadata._contract import LeaseId
from danube.metadata.raft.calls import Read
from danube.raft import NodeId

__all__ = ["Confirmations", "Confirmed", "EndingLeases", "KeptAlive"]


class KeptAlive(msgspec.Struct, frozen=True):
    """A keep-alive of a member, at the leader."""

    sender: NodeId
    token: int
    leases: tuple[LeaseId, ...]
    doubtful: tuple[LeaseId, ...]
    """Not renewed at receipt: the log decides."""
    index: int
    """End of the log at receipt."""


class EndingLeases(msgspec.Struct, frozen=True):
    """Leases whose time is up, at the leader."""

    leases: tuple[LeaseId, ...]


Confirmed = list[Read] | KeptAlive | EndingLeases
"""What waits for a confirmation by the leader."""


class _Asked(NamedTuple):
    since: float
    what: Confirmed


class Confirmations:
    """The book of what waits to be confirmed, and of what is confirmed and waits for the table."""

    def __init__(self) -> None:
        self._queue: list[Read] = []
        self._asked: dict[int, _Asked] = {}
        self._tokens = 0
        self._confirmed: deque[tuple[int, Confirmed]] = deque()

    def add(self, read: Read) -> None:
        """Queue a read."""
        self._queue.append(read)

    def take_queue(self) -> list[Read]:
        """Return the queued reads whose callers wait, for one question."""
        if not self._queue:
            return []
        queue, self._queue = self._queue, []
        return [read for read in queue if read.is_open]

    def ask(self, what: Confirmed, now: float) -> int:
        """Record a question; return its token."""
        self._tokens += 1
        self._asked[self._tokens] = _Asked(now, what)
        return self._tokens

    def lost(self, token: int) -> None:
        """Record that a question has no answer."""
        found = self._asked.pop(token, None)
        if found is not None:
            self._requeue(found)

    def ask_again(self, *, before: float | None = None) -> None:
        """Give up all questions, or those asked up to a time; their reads are asked about again."""
        for token, asked in list(self._asked.items()):
            if before is None or asked.since <= before:
                del self._asked[token]
                self._requeue(asked)

    def _requeue(self, asked: _Asked) -> None:
        if isinstance(asked.what, list):
            self._queue += asked.what

    def confirm(self, token: int, index: int) -> bool:
        """Record an answer: it holds from this index of the table on. Return False if nothing waits for it."""
        found = self._asked.pop(token, None)
        if found is None:
            return False
        what = found.what
        if isinstance(what, KeptAlive):
            index = max(index, what.index)
        self._confirmed.append((index, what))
        return True

    def add_confirmed(self, read: Read) -> None:
        """Add a read of the table as it is."""
        self._confirmed.append((0, [read]))

    @property
    def has_confirmed(self) -> bool:
        """Whether anything waits for the table."""
        return bool(self._confirmed)

    def put_back(self, index: int, due: Sequence[Confirmed]) -> None:
        """Have what :meth:`due` has returned wait for an index of the table again."""
        self._confirmed.extendleft((index, what) for what in reversed(due))

    def due(self, applied: int) -> list[Confirmed]:
        """Return, and forget, what a table that has applied so much can answer."""
        found: list[Confirmed] = []
        later: deque[tuple[int, Confirmed]] = deque()
        for index, what in self._confirmed:
            if index <= applied:
                found.append(what)
            else:
                later.append((index, what))
        self._confirmed = later
        return found
