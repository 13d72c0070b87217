"""Queue of remote commits: what the next commit contains, when it starts, and the order of settling. Pure.

Entries wait in one queue. A commit takes the queued entries, up to a number of bytes, and gets the next sequence
number. Several commits may be in flight and may finish in any order; they settle in the order of their numbers.

With no commit in flight the next one starts at once, so an idle topic waits for one put. With ``n`` in flight it
starts when ``n`` times 256 KiB are queued: load makes larger commits instead of more of them, and a slow backend does
not get many tiny objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from danube.history.remote.format import CommitKind, Position
from danube.history.segment import SegmentPart
from danube.log.format import Entry
from danube.model.limits import KIB

__all__ = ["GATHER_BYTES", "Commit", "CommitQueue"]

GATHER_BYTES: Final = 256 * KIB
"""Bytes that must be queued per commit in flight before the next one starts."""


class Commit:
    """One commit in flight.

    Attributes:
        sequence, kind: of the commit.
        entries, size: its entries, and their bytes that count as pending.
        settled: first unsettled sequence when it was built (``CommitHead.settled``).
        data, parts, created_us: the object, once it is built; ``snapshot``: the one that it names.
        pieces: of a large snapshot, those still to be stored before the object; ``None``: all are stored.
        landed: whether its put has returned.
    """

    __slots__ = (
        "created_us",
        "data",
        "entries",
        "kind",
        "landed",
        "parts",
        "pieces",
        "sequence",
        "settled",
        "size",
        "snapshot",
    )

    def __init__(self, sequence: int, kind: CommitKind, settled: int, entries: list[Entry], size: int) -> None:
        self.sequence = sequence
        self.kind = kind
        self.entries = entries
        self.size = size
        self.settled = settled
        self.data: bytes | bytearray = b""
        self.pieces: list[bytes | None] = []
        self.parts: list[SegmentPart] = []
        self.created_us = 0
        self.snapshot: Position | None = None
        self.landed = False


class CommitQueue:
    """Queue of remote commits; see the module.

    Args:
        first_sequence: sequence of the next commit.
        max_in_flight: maximum number of commits in flight.
        commit_bytes: maximum bytes of one commit; a larger entry gets a commit of its own.

    Attributes:
        waiting_bytes: bytes of entries that are in no commit yet.
        in_flight: commits in flight, in order; those at the end may be stored already.
        submitted, settled: numbers of entries, counted from the start.
    """

    def __init__(self, first_sequence: int, max_in_flight: int, commit_bytes: int) -> None:
        self._next = first_sequence
        self._max_in_flight = max_in_flight
        self._commit_bytes = commit_bytes
        self._waiting: deque[Entry] = deque()
        self.waiting_bytes = 0
        self.in_flight: deque[Commit] = deque()
        self.submitted = 0
        self.settled = 0

    def __bool__(self) -> bool:
        """Whether any entry is queued or in flight."""
        return bool(self._waiting or self.in_flight)

    @property
    def next_sequence(self) -> int:
        """Sequence of the next commit."""
        return self._next

    @property
    def first_unsettled(self) -> int:
        """Every commit below this sequence has settled."""
        return self.in_flight[0].sequence if self.in_flight else self._next

    @property
    def has_room(self) -> bool:
        """Whether another commit may be in flight."""
        return len(self.in_flight) < self._max_in_flight

    @property
    def ready(self) -> bool:
        """Whether the next commit of entries must start now."""
        count = len(self.in_flight)
        if not count:
            return bool(self._waiting)
        return count < self._max_in_flight and self.waiting_bytes >= count * GATHER_BYTES

    def submit(self, entry: Entry) -> None:
        """Queue an entry."""
        self._waiting.append(entry)
        self.waiting_bytes += entry.size
        self.submitted += 1

    def take(self) -> Commit:
        """Build the next commit from the queued entries."""
        waiting = self._waiting
        entries = [waiting.popleft()]
        size = entries[0].size
        while waiting and size + waiting[0].size <= self._commit_bytes:
            entry = waiting.popleft()
            entries.append(entry)
            size += entry.size
        self.waiting_bytes -= size
        return self._start(CommitKind.ENTRIES, entries, size)

    def take_marker(self, kind: CommitKind) -> Commit:
        """Build a commit without entries: a SNAPSHOT of all settled state, or the final FENCE."""
        return self._start(kind, [], 0)

    def _start(self, kind: CommitKind, entries: list[Entry], size: int) -> Commit:
        commit = Commit(self._next, kind, self.first_unsettled, entries, size)
        self._next += 1
        self.in_flight.append(commit)
        return commit

    def landed(self, commit: Commit) -> Iterator[Commit]:
        """Record that a commit is stored; yield the commits that settle now, in order."""
        commit.landed = True
        while self.in_flight and self.in_flight[0].landed:
            first = self.in_flight.popleft()
            self.settled += len(first.entries)
            yield first

    def unsettled(self) -> Iterator[Entry]:
        """Yield the unsettled entries, in order; the first one has the number ``settled``."""
        for commit in self.in_flight:
            yield from commit.entries
        yield from self._waiting

    def give_up(self) -> tuple[list[Entry], int]:
        """Remove all entries; return them and their bytes."""
        entries = list(self.unsettled())
        self.in_flight.clear()
        self._waiting.clear()
        self.waiting_bytes = 0
        return entries, sum(entry.size for entry in entries)
