"""What the settled commits of an owner amount to: the contents of its next snapshot, and when that is due. Pure.

A snapshot mentions every commit with batches that may be in no manifest yet, and where each topic continues. Both are
kept up to date as commits settle, so that a snapshot never has to read the bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from danube.history.remote.format import CommitKind, Position, RemoteState, SnapshotBody, SnapshotObject
from danube.history.remote.queue import Commit
from danube.history.remote.stored import StoredCommits
from danube.history.segment import SegmentPart
from danube.model.ids import Offset, OwnerEpoch, TopicId
from danube.model.limits import Limits

__all__ = ["Settled"]


class Settled:
    """The settled state of an owner, beginning with what it has recovered.

    Args:
        epoch: of the owner.
        limits: ``remote_snapshot_commits`` and ``remote_snapshot_bytes`` are used.
        stored: the commits in the bucket.
        snapshot: the newest one.
        in_pieces: whether any stored snapshot is in pieces.
        next_offsets: where the topics continue.
        needed: commits with batches that may not be listed in any manifest.

    Attributes:
        stored: the commits in the bucket, until they may be deleted.
        snapshot: the newest snapshot that has settled.
        in_pieces: whether any stored snapshot is in pieces.
        is_snapshot_due: whether one must be written.
        commits_since: commits built since the last one.
    """

    def __init__(
        self,
        epoch: OwnerEpoch,
        limits: Limits,
        *,
        stored: StoredCommits | None = None,
        snapshot: Position | None = None,
        in_pieces: bool = False,
        next_offsets: Mapping[TopicId, Offset] | None = None,
        needed: Mapping[Position, SnapshotObject] | None = None,
    ) -> None:
        self._epoch = epoch
        self._limits = limits
        self.stored = stored if stored is not None else StoredCommits()
        self.snapshot = snapshot
        self.in_pieces = in_pieces
        self._next_offsets = dict(next_offsets or {})
        self._needed = dict(needed or {})
        self.is_snapshot_due = True
        self.commits_since = 0
        self._bytes_since = 0

    def begin_topic(self, topic_id: TopicId, next_offset: Offset) -> None:
        """Record where a topic continues that a move has brought."""
        self._next_offsets[topic_id] = next_offset

    def built(self, size: int) -> None:
        """Record a commit of entries that was built."""
        self.commits_since += 1
        self._bytes_since += size
        limits = self._limits
        self.is_snapshot_due = (
            self.commits_since >= limits.remote_snapshot_commits or self._bytes_since >= limits.remote_snapshot_bytes
        )

    def build_snapshot(
        self,
        commit: Commit,
        state: RemoteState,
        unsealed: Mapping[Position, Sequence[SegmentPart]] | None,
    ) -> SnapshotBody:
        """Return the contents of a snapshot, and forget what it does not mention.

        Args:
            commit: that will be the snapshot.
            state: of all topics; those that are not in it are deleted.
            unsealed: the parts that are in commits only, by their commits. None: the manifests do not list everything
                that was sealed, so only commits have it; if this owner's metadata are lost, they are needed.
        """
        ids = state.topic_ids
        parts = {at: item.parts for at, item in self._needed.items()} if unsealed is None else unsealed
        needed: dict[Position, SnapshotObject] = {}
        for position in sorted(parts):
            found = [part for part in parts[position] if part.topic_id in ids]
            if found:
                needed[position] = msgspec.structs.replace(self._needed[position], parts=found)
        self._needed = needed
        self._next_offsets = {number: offset for number, offset in self._next_offsets.items() if number in ids}
        self.stored.add_snapshot(
            Position(self._epoch, commit.sequence), Position(self._epoch, commit.settled), set(needed)
        )
        self.is_snapshot_due = False
        self.commits_since = self._bytes_since = 0
        return SnapshotBody(state, dict(self._next_offsets), list(needed.values()))

    def settle(self, commit: Commit) -> bool:
        """Record a settled commit, in order; return whether others may be deleted now."""
        position = Position(self._epoch, commit.sequence)
        if commit.parts:
            self._needed[position] = SnapshotObject(*position, len(commit.data), commit.created_us, commit.parts)
            for part in commit.parts:
                self._next_offsets[part.topic_id] = part.end_offset
        self.stored.add(position)
        if commit.kind is CommitKind.SNAPSHOT:
            self.snapshot = position
            self.in_pieces = self.in_pieces or bool(commit.pieces)
        return self.stored.named(commit.snapshot)
