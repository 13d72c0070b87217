"""The order of remote commits: what goes into the next one, when it may start, and who settles when. Pure.

Entries wait in one queue. A commit takes what has gathered, up to a number of bytes, and gets the next sequence number.
Several commits may be on their way, and they may land in any order; they settle in the order of their numbers.

With nothing on its way the next commit starts at once, so an idle topic waits for one put. With ``n`` on their way it
starts when ``n`` times 256 KiB have gathered: load makes larger commits instead of more of them, and a slow backend is
not asked to store confetti.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from danube.history.remote.format import CommitKind, Position
from danube.history.segment import SegmentPart
from danube.log import Entry
from danube.model.limits import KIB

__all__ = ["GATHER_BYTES", "Commit", "CommitQueue"]

GATHER_BYTES: Final = 256 * KIB
"""For each commit that is on its way, so much must gather before the next one starts."""


class Commit:
    """One commit on its way.

    Attributes:
        sequence, kind: of the commit.
        entries, size: what it holds, and the bytes of it that count as pending.
        settled: what had settled when it was made (``CommitHead.settled``).
        data, parts, created_us: the object, once it is built; ``snapshot``: the one that it names.
        pieces: of a large snapshot; those that are stored before the object, and are not yet; ``None``: they are.
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
    """See the module.

    Args:
        first_sequence: of the next commit.
        max_in_flight: commits on their way at a time.
        commit_bytes: most bytes of one commit; a larger entry goes alone.

    Attributes:
        waiting_bytes: of entries that are in no commit yet.
        in_flight: commits on their way, in order; those at the end may have landed.
        submitted, settled: how many entries, since the beginning.
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
        """Whether anything is waiting or on its way."""
        return bool(self._waiting or self.in_flight)

    @property
    def next_sequence(self) -> int:
        """Of the next commit."""
        return self._next

    @property
    def first_unsettled(self) -> int:
        """Every commit below this sequence has settled."""
        return self.in_flight[0].sequence if self.in_flight else self._next

    @property
    def has_room(self) -> bool:
        """Whether another commit may be on its way at all."""
        return len(self.in_flight) < self._max_in_flight

    @property
    def ready(self) -> bool:
        """Whether the next commit of entries is to start now."""
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
        """Make the next commit of what has gathered."""
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
        """Make the next commit one without entries: a SNAPSHOT of all that has settled, or the FENCE at the end."""
        return self._start(kind, [], 0)

    def _start(self, kind: CommitKind, entries: list[Entry], size: int) -> Commit:
        commit = Commit(self._next, kind, self.first_unsettled, entries, size)
        self._next += 1
        self.in_flight.append(commit)
        return commit

    def landed(self, commit: Commit) -> Iterator[Commit]:
        """Note that a commit is in the backend; yield the commits that settle now, in order."""
        commit.landed = True
        while self.in_flight and self.in_flight[0].landed:
            first = self.in_flight.popleft()
            self.settled += len(first.entries)
            yield first

    def unsettled(self) -> Iterator[Entry]:
        """Yield the entries that have not settled, in order; the first one has the number ``settled``."""
        for commit in self.in_flight:
            yield from commit.entries
        yield from self._waiting

    def give_up(self) -> tuple[list[Entry], int]:
        """Forget everything; return the entries and their bytes."""
        entries = list(self.unsettled())
        self.in_flight.clear()
        self._waiting.clear()
        self.waiting_bytes = 0
        return entries, sum(entry.size for entry in entries)
