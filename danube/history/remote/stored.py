"""Which commits are in the bucket, and which of them nothing needs any more. Pure.

A commit may go when a snapshot covers it and does not mention it (none of its parts is needed as of the snapshot), and
when a later commit that names this snapshot has settled: recovery then begins with this snapshot or a newer one,
whatever happens.
"""

from __future__ import annotations

from collections.abc import Iterable

from danube.history.remote.format import Position

__all__ = ["StoredCommits"]


class StoredCommits:
    """See the module.

    Attributes:
        positions: of all commits that may be deleted one day, in order. The fences of others are not among them.
    """

    def __init__(self, positions: Iterable[Position] = ()) -> None:
        self.positions = list(positions)
        self._snapshots: dict[Position, tuple[Position, set[Position]]] = {}
        self._named: Position | None = None
        self._cleaned: Position | None = None

    def add(self, position: Position) -> None:
        """A commit has settled."""
        self.positions.append(position)

    def add_snapshot(self, position: Position, cover: Position, mentioned: set[Position]) -> None:
        """A snapshot is on its way; it covers what lies before ``cover``, and needs what it mentions."""
        self._snapshots[position] = cover, mentioned

    def named(self, snapshot: Position | None) -> bool:
        """A commit that names a snapshot has settled; return whether there may be something to delete."""
        if snapshot not in self._snapshots or snapshot == self._cleaned:
            return False
        self._named = snapshot
        return True

    def superseded(self) -> list[Position]:
        """Return the commits that may be deleted now, in order."""
        if self._named is None:
            return []
        cover, mentioned = self._snapshots[self._named]
        return [position for position in self.positions if position < cover and position not in mentioned]

    @property
    def oldest_needed(self) -> Position | None:
        """Recovery begins with this snapshot, or a newer one; None if that is not known."""
        return self._named

    def deleted(self, gone: list[Position]) -> None:
        """They are deleted: what :meth:`superseded` has returned just before."""
        self._cleaned = self._named
        away = set(gone)
        self.positions = [position for position in self.positions if position not in away]
        if self._named is not None:
            self._snapshots = {at: what for at, what in self._snapshots.items() if at >= self._named}
