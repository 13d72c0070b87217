"""Merges changes from three sources, in any order, into the in-memory rows of a table. Pure: no I/O, no clock.

Changes come from a list (a snapshot at a revision), from a watch (all changes, in order), and from the answers to the
owner's own changes, which may arrive before or after the watch reports them. Revisions decide which change of a row is
the later one, not the order of arrival. An answer at a revision that list or watch have passed is ignored, since the
mirror already has it. A deleted row is remembered until list or watch have passed the deletion; otherwise an older
event would restore the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from danube.metadata._rows import PlainRows, Rows

__all__ = ["Mirror", "RowChange"]

T = TypeVar("T")


class RowChange(NamedTuple, Generic[T]):
    """A row that has changed in a mirror."""

    name: str
    before: T | None
    """None: it was created."""
    after: T | None
    """None: it was deleted."""


class Mirror(Generic[T]):
    """The rows of one table, with the revisions that they are known at.

    Args:
        watched: whether list or watch continue after the first list. If not, the owner is the only one that changes
            rows, its changes arrive in order, and deletions need not be remembered.
        rows: keeps the rows; None: as objects.
    """

    __slots__ = ("_gone", "_rows", "_watched", "position", "values")

    def __init__(self, *, watched: bool, rows: Rows[T] | None = None) -> None:
        self._watched = watched
        self._rows: Rows[T] = rows if rows is not None else PlainRows()
        self.values: Mapping[str, T] = self._rows.values
        """The rows. Always the same object; only this class changes it."""
        self.position = 0
        """Everything up to this revision has been seen by list and watch; 0: nothing was listed yet."""
        self._gone: dict[str, int] = {}
        """Rows that were deleted after :attr:`position`, with the revision of that."""

    def revision(self, name: str) -> int:
        """Return the revision of a row, 0 if there is none."""
        return self._rows.revision(name)

    def every(self) -> Iterator[tuple[str, T, int]]:
        """Yield the names, values and revisions of all rows."""
        return self._rows.every()

    def batches(self, size: int) -> Iterator[list[tuple[str, T, int]]]:
        """Yield lists of so many of :meth:`every`. Between them rows may change: each is yielded as it is then."""
        return self._rows.batches(size)

    def _is_news(self, name: str, revision: int) -> bool:
        # What list and watch have passed is in the mirror, or was replaced or deleted since.
        return revision > self.position and revision > (self._rows.revision(name) or self._gone.get(name, 0))

    def put(self, name: str, value: T, revision: int) -> RowChange[T] | None:
        """Enter a row as of a revision; return None if this change, or a later one of the row, is known."""
        if not self._is_news(name, revision):
            return None
        before = self.values.get(name)
        self._gone.pop(name, None)
        self._rows.put(name, value, revision)
        return RowChange(name, before, value)

    def delete(self, name: str, revision: int) -> RowChange[T] | None:
        """Remove a row that was deleted at a revision; return None if this change, or a later one, is known."""
        if not self._is_news(name, revision):
            return None
        if self._watched and revision > self.position:
            self._gone[name] = revision
        if name not in self.values:
            return None
        return RowChange(name, self._rows.remove(name), None)

    def reset(self, rows: Iterable[tuple[str, T, int]], revision: int) -> Iterator[RowChange[T] | None]:
        """Enter a snapshot: all rows as of a revision, each with its own; yield the changes as they are made.

        A snapshot older than :attr:`position` is ignored. The rows are taken one by one, so a large snapshot need not
        be in memory a second time. For each one that is not news None is yielded. Between two rows other changes may be
        entered; those of later revisions stay. If the iteration is not completed, the same or a later snapshot has to
        be entered again.
        """
        if revision < self.position:
            return
        left = {name for name, changed_at in self._rows.revisions() if changed_at <= revision}
        for name, value, changed_at in rows:
            left.discard(name)
            yield self.put(name, value, changed_at)
        for name in left:
            yield self.delete(name, revision)
        self.passed(revision)

    def passed(self, revision: int) -> None:
        """Record that list or watch have reported everything up to this revision."""
        self.position = max(self.position, revision)
        if self._gone:
            self._gone = {name: gone_at for name, gone_at in self._gone.items() if gone_at > self.position}
