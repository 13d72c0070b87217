"""The Raft log in memory: the entries behind a base index, and up to which index they are synced.

::

      base          synced            handed           last
       |              |                 |                |
       o--------------+-----------------+----------------o
    in the table      durable           being written    not given to the disk yet

Several writes may be in progress at once, and entries may be replaced while they are being written. A finished write
then counts only for the entries that were not replaced in the meantime. This is tracked for each write, because terms
cannot distinguish an entry from an equal one that returns later (the A-B-A case of etcd's asynchronous storage).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from danube.raft.conf import Conf
from danube.raft.messages import Entry

__all__ = ["Base", "RaftLog"]


class Base(msgspec.Struct, frozen=True, array_like=True):
    """Start of a log: the state machine holds everything up to ``index``."""

    index: int
    term: int
    conf: Conf
    """The configuration as of ``index``."""


class _Write(msgspec.Struct, gc=False):
    """A write in progress."""

    number: int
    end: int
    """The last index that the write makes durable; lowered if that entry is replaced."""


class RaftLog:
    """The entries of one node.

    Attributes:
        base_index: index of the last entry no longer in the log; 0 in a new log.
        base_term: term of that entry.
        synced: the highest index that is durable on this node's own disk.
    """

    __slots__ = ("_entries", "_handed", "_writes", "base_index", "base_term", "synced")

    def __init__(self, base_index: int, base_term: int, entries: Sequence[Entry]) -> None:
        for position, entry in enumerate(entries, base_index + 1):
            assert entry.index == position, f"entry {entry.index} stands at {position}"
        self.base_index = base_index
        self.base_term = base_term
        self._entries = list(entries)
        self.synced = self._handed = base_index + len(entries)
        self._writes: deque[_Write] = deque()

    @property
    def last_index(self) -> int:
        """The index of the last entry."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._entries[-1].term if self._entries else self.base_term

    def term(self, index: int) -> int | None:
        """Return the term of an entry, or None if the log does not contain it."""
        if index == self.base_index:
            return self.base_term
        position = index - self.base_index - 1
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether another log is at least as complete as this one (R4)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def between(self, first: int, end: int, *, max_bytes: int | None = None) -> tuple[Entry, ...]:
        """Return the entries ``[first, end)``; with ``max_bytes`` only as many as fit, but at least one."""
        low = first - self.base_index - 1
        assert low >= 0, f"entry {first} is not kept: the log begins behind {self.base_index}"
        entries = self._entries[low : end - self.base_index - 1]
        if max_bytes is not None:
            size = 0
            for count, entry in enumerate(entries):
                size += entry.size
                if size > max_bytes and count:
                    return tuple(entries[:count])
        return tuple(entries)

    def last_not_above(self, index: int, term: int) -> int:
        """Return the highest index, up to ``index``, whose term is not above ``term``.

        A log whose entry at ``index`` has that term cannot contain the same entries above the result. The search ends
        at the base.
        """
        index = min(index, self.last_index)
        while index > self.base_index:
            own = self.term(index)
            assert own is not None
            if own <= term:
                break
            index -= 1
        return index

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries that follow the last one."""
        for entry in entries:
            assert entry.index == self.last_index + 1, f"entry {entry.index} follows {self.last_index}"
            assert entry.term >= self.last_term, "terms never fall along a log"
            self._entries.append(entry)

    def merge(self, entries: Sequence[Entry], commit: int) -> None:
        """Take entries of the leader that follow a matching position.

        Equal entries are kept, and so are entries behind them; only a conflicting entry truncates the log (R8).
        """
        for position, entry in enumerate(entries):
            own = self.term(entry.index)
            if own is None:
                self.append(entries[position:])
                return
            if own != entry.term:
                assert entry.index > commit, f"entry {entry.index} would replace a committed one"
                self._cut(entry.index - 1)
                self.append(entries[position:])
                return

    def _cut(self, last: int) -> None:
        del self._entries[last - self.base_index :]
        self.synced = min(self.synced, last)
        self._handed = min(self._handed, last)
        for write in self._writes:
            write.end = min(write.end, last)

    def reset(self, index: int, term: int, commit: int) -> None:
        """Restart behind a snapshot, which is synced once the write that includes it is done (:meth:`hand_out`)."""
        self._entries.clear()
        self.base_index, self.base_term = index, term
        self.synced = min(self.synced, commit)
        self._handed = index
        for write in self._writes:
            write.end = min(write.end, commit)

    def compact(self, index: int) -> None:
        """Drop entries up to ``index``, which the state machine holds durably."""
        assert index <= self.synced, f"entry {index} is not durable here"
        if index <= self.base_index:
            return
        term = self.term(index)
        assert term is not None
        del self._entries[: index - self.base_index]
        self.base_index, self.base_term = index, term

    @property
    def has_unhanded(self) -> bool:
        """Whether there are entries to be written."""
        return self._handed < self.last_index

    def hand_out(self, number: int) -> tuple[Entry, ...]:
        """Return the entries to be written by the write ``number``; when it has finished, the whole log is durable."""
        entries = self.between(self._handed + 1, self.last_index + 1) if self.has_unhanded else ()
        self._handed = self.last_index
        self._writes.append(_Write(number, self.last_index))
        return entries

    def written(self, number: int) -> None:
        """Record that a write, and each one before it, is durable."""
        while self._writes and self._writes[0].number <= number:
            self.synced = max(self.synced, self._writes.popleft().end)
