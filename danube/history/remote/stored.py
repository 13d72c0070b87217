"""Decides which commits in a bucket are no longer needed and may be deleted. Pure.

A commit may be deleted when a snapshot covers it and does not mention it (none of its parts is needed as of the
snapshot), and when a later commit that names this snapshot has settled: recovery then always starts from this snapshot
or a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable

from danube.history.remote.format import Position

__all__ = ["StoredCommits"]


class StoredCommits:
    """Tracks the commits stored in a bucket, until they may be deleted.

    Attributes:
        positions: of all commits that may be deleted later, in order. Fences of other owners are not among them.
    """

    def __init__(self, positions: Iterable[Position] = ()) -> None:
        self.positions = list(positions)
        self._snapshots: dict[Position, tuple[Position, set[Position]]] = {}
        self._named: Position | None = None
        self._cleaned: Position | None = None
        self._cleaning: Position | None = None
        """The snapshot of the latest :meth:`superseded`."""

    def add(self, position: Position) -> None:
        """Add a settled commit."""
        self.positions.append(position)

    def add_snapshot(self, position: Position, cover: Position, mentioned: set[Position]) -> None:
        """Add a snapshot in flight; it covers positions before ``cover``, and needs those it mentions."""
        self._snapshots[position] = cover, mentioned

    def named(self, snapshot: Position | None) -> bool:
        """Record that a commit naming a snapshot has settled; return whether there may be commits to delete."""
        if snapshot not in self._snapshots or snapshot == self._cleaned:
            return False
        self._named = snapshot
        return True

    def superseded(self) -> list[Position]:
        """Return the commits that may be deleted now, in order."""
        self._cleaning = self._named
        if self._named is None:
            return []
        cover, mentioned = self._snapshots[self._named]
        return [position for position in self.positions if position < cover and position not in mentioned]

    @property
    def oldest_needed(self) -> Position | None:
        """The snapshot from which recovery starts at the earliest; None if unknown."""
        return self._named

    def deleted(self, gone: list[Position]) -> None:
        """Remove deleted commits: the latest result of :meth:`superseded`."""
        self._cleaned = self._cleaning  # another one may have been named since
        away = set(gone)
        self.positions = [position for position in self.positions if position not in away]
        if self._named is not None:
            self._snapshots = {at: what for at, what in self._snapshots.items() if at >= self._named}
