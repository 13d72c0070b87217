"""Takes over the commits in a bucket: claims it, reads the commits, and fences former owners.

The results go into a :class:`Replay`. A bucket has no locks, but a put with ``if_absent`` has exactly one winner, and a
listing includes every put that has returned. That is enough:

1. **Claim.** The new owner puts commit 0 of its epoch. Then it lists. Of two owners that claim at the same time, at
   least one sees the other in its listing, and the one with the lower epoch stops. Two owners of the same epoch put
   the same key, and only one of them succeeds.
2. **Read and fence**, epoch by epoch, in order. The commits of an epoch are read up to the first missing one,
   and a fence is put into that gap. If the put finds an object there, the former owner was faster: continue reading
   after it. Once the fence is stored, the former owner can still put later commits but not that one, and since it
   acknowledges in order, it acknowledges nothing more.
3. **Check the gap**, before and after. A living former owner also deletes old commits, and a deleted commit looks
   like one that never existed. But every commit records up to which sequence the log had settled when it was built. If
   the last object after the gap records that the gap had settled, the gap is not the end of the log: the procedure
   starts again from a listing, which now leads to a newer snapshot. If it leads to the same gap again, a commit is
   lost, and that is reported.
4. **Check for a newer snapshot.** Commits that were written after the listing may name a newer snapshot than the one
   that recovery started from. The former owner may delete the commits that the newer snapshot does not need. So the
   procedure starts again from that snapshot, once; after the fences there can be no newer one.

The starting point: every commit names the newest snapshot that had settled when it was built, and nothing that this
snapshot needs is deleted before a commit that names it has settled. So the last commit leads to a snapshot from
which on everything exists.

A fence is never deleted, unless the owner wrote it itself when it closed: a former owner that was disconnected for a
month still finds its next number taken. The cost is one small object for each broker that crashed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from danube.history.pieces import join_pieces
from danube.history.remote.format import (
    CommitHead,
    CommitKind,
    DecodedCommit,
    Position,
    SnapshotBody,
    commit_key,
    decode_commit,
    decode_snapshot,
    encode_marker,
    parse_key,
    pieces_key,
    snapshot_pieces,
    wal_prefix,
)
from danube.history.remote.replay import Replay
from danube.model.errors import DanubeError, DataLossError, OwnerFencedError, StorageExistsError, StorageNotFoundError
from danube.model.ids import NO_OWNER_EPOCH, OwnerEpoch
from danube.storage import Storage

__all__ = ["Claim", "Listing", "brokers_with_commits", "highest_epoch", "put_once"]

_AT_ONCE: Final = 4
"""Number of commits read concurrently."""

Listing = dict[OwnerEpoch, list[int]]
"""Epoch to its sequences, in order."""


async def highest_epoch(storage: Storage, place: str) -> OwnerEpoch:
    """Return the highest epoch with commits in a bucket, 0 if there are none. A new owner takes a higher one.

    Raises:
        StorageError: the backend cannot be read.
    """
    return max(await _list(storage, place), default=NO_OWNER_EPOCH)


async def brokers_with_commits(storage: Storage, cluster: str) -> set[str]:
    """Return the names of the brokers that have commits in a bucket.

    Raises:
        StorageError: the backend cannot be read.
    """
    prefix = wal_prefix(cluster)
    return {
        item.key.removeprefix(prefix).partition("/")[0]
        async for page in storage.list_all(prefix)
        for item in page.objects
    }


async def _list(storage: Storage, place: str) -> Listing:
    found: Listing = {}
    async for page in storage.list_all(wal_prefix(place)):
        for item in page.objects:
            position = parse_key(place, item.key)
            found.setdefault(position.epoch, []).append(position.sequence)
    return found


async def put_once(storage: Storage, key: str, data: bytes | bytearray) -> bool:
    """Put an object that must never be replaced; return whether the stored object is this one.

    Raises:
        StorageError: the backend failed; the put may have succeeded, and may be repeated with the same bytes.
    """
    while True:
        try:
            await storage.put(key, data, if_absent=True)
            return True
        except StorageExistsError:
            pass
        try:
            # The object may be our own, from an earlier call whose answer was lost. A read of unknown size has a
            # deadline of more than a minute, and all later commits would wait for it if it hangs.
            if (await storage.head(key)).size_bytes != len(data):
                return False
            return await storage.get(key, 0, len(data)) == data
        except StorageNotFoundError:
            continue  # deleted since: put again


class _MovedError(Exception):
    """An active former owner has deleted objects that were to be read; recovery must start again."""

    def __init__(self, position: Position) -> None:
        super().__init__(position)
        self.position = position


class Claim:
    """Takeover of a bucket by one owner. Call :meth:`run` once.

    Args:
        storage, place: the bucket, and the place of the commits in it.
        epoch: higher than :func:`highest_epoch`.
        owner: a unique name of this broker process.
        wall_clock_us: microseconds since the epoch.

    Attributes:
        replay: the recovered commits.
        snapshot: the newest one named by any commit up to the fences, from which recovery starts; None if there is
            none.
        in_pieces: whether a snapshot in pieces was found.
        stored: positions of all former commits that may be deleted later.
    """

    def __init__(
        self, storage: Storage, place: str, epoch: OwnerEpoch, owner: str, wall_clock_us: Callable[[], int]
    ) -> None:
        self._storage = storage
        self._place = place
        self._epoch = epoch
        self._owner = owner
        self._clock_us = wall_clock_us
        self._begun: Position | None = None
        self.replay = Replay()
        self.snapshot: Position | None = None
        self.in_pieces = False
        self.stored: list[Position] = []

    async def run(self) -> None:
        """Claim the bucket; after this returns, no other owner can acknowledge anything there.

        Raises:
            OwnerFencedError: another owner has the bucket.
            DataLossError: a commit is damaged or missing; it names the object.
            StorageError: the backend cannot be read or written.
        """
        self._check_higher(await _list(self._storage, self._place), self._epoch - 1)
        mine = Position(self._epoch, 0)
        if not await self._put_marker(CommitKind.CLAIM, mine):
            raise self._fenced(self._epoch)
        missing: tuple[Position, Position | None] | None = None
        while True:
            listing = await _list(self._storage, self._place)
            self._check_higher(listing, self._epoch)
            former = {epoch: sequences for epoch, sequences in listing.items() if epoch < self._epoch}
            try:
                await self._recover(former)
                if self.snapshot == self._begun:
                    break
            except _MovedError as moved:
                if missing == (moved.position, self._begun):  # no former owner is active: it is missing
                    raise self._lost(moved.position) from None
                missing = (moved.position, self._begun)
        self.stored.append(mine)
        self.replay.finish()

    def _check_higher(self, listing: Listing, ours: int) -> None:
        highest = max(listing, default=NO_OWNER_EPOCH)
        if highest > ours:
            raise self._fenced(highest)

    def _fenced(self, epoch: OwnerEpoch) -> OwnerFencedError:
        return OwnerFencedError(
            f"{self._storage.url}: another broker, of epoch {epoch}, owns the topics of durability 'remote' of"
            f" {self._place!r}; this one, of epoch {self._epoch}, stops"
        )

    async def _put_marker(self, kind: CommitKind, position: Position) -> bool:
        head = CommitHead(kind, self._place, self._owner, self._epoch, *position, None, position.sequence)
        return await put_once(self._storage, commit_key(self._place, position), encode_marker(head, self._clock_us()))

    # --- One attempt ---

    async def _recover(self, former: Listing) -> None:
        self.replay, self.stored = Replay(), []
        self.snapshot = start = await self._find_snapshot(former)
        self._begun = start
        first = Position(NO_OWNER_EPOCH, 0)
        if start is not None:
            commit = await self._read_listed(start)
            self.replay.begin(await self._read_snapshot(commit, start))
            first = Position(start.epoch, commit.head.settled)
        for epoch in sorted(former):
            sequences = former[epoch]
            if epoch < first.epoch:
                await self._leave(epoch, sequences)
                continue
            begin = first.sequence if epoch == first.epoch else 0
            self.stored += [Position(epoch, sequence) for sequence in sequences if sequence < begin]
            await self._read_epoch(epoch, begin, set(sequences))

    async def _read_snapshot(self, commit: DecodedCommit, position: Position) -> SnapshotBody:
        where, pieces = self._where(position), snapshot_pieces(commit)
        if pieces is None:
            return decode_snapshot(commit, where)
        self.in_pieces = True
        key = pieces_key(self._place, position)
        try:
            try:
                return decode_snapshot(commit, where, await join_pieces(self._storage, key, pieces.count))
            except DataLossError:
                # The answer may have been damaged in transfer.
                return decode_snapshot(commit, where, await join_pieces(self._storage, key, pieces.count))
        except StorageNotFoundError:
            raise _MovedError(position) from None

    async def _find_snapshot(self, former: Listing) -> Position | None:
        """Return the newest snapshot that is known to have settled."""
        for epoch in sorted(former, reverse=True):
            for sequence in reversed(former[epoch]):
                head = (await self._read_listed(Position(epoch, sequence))).head
                if head.snapshot is not None:
                    return Position(*head.snapshot)
                if head.kind == CommitKind.ENTRIES:
                    return None  # there is none yet
        return None

    async def _leave(self, epoch: OwnerEpoch, sequences: list[int]) -> None:
        """Record the remaining commits of an epoch that the snapshot covers: all but its fence may be deleted."""
        for sequence in reversed(sequences):
            head = (await self._read_listed(Position(epoch, sequence))).head
            if head.kind == CommitKind.FENCE:
                if head.writer_epoch != epoch:
                    sequences = [other for other in sequences if other != sequence]
                break
        self.stored += [Position(epoch, sequence) for sequence in sequences]

    async def _read_epoch(self, epoch: OwnerEpoch, sequence: int, listed: set[int]) -> None:
        """Read the commits of an epoch from ``sequence`` on, up to the fence, which is put if it is missing."""
        while True:
            run = 0
            while run < _AT_ONCE and sequence + run in listed:
                run += 1
            if run:
                commits = await self._read_run([Position(epoch, sequence + at) for at in range(run)])
            else:
                position = Position(epoch, sequence)
                found = await self._read(position)
                if found is None:
                    await self._check_gap(position)
                    await self._put_marker(CommitKind.FENCE, position)
                    continue  # read it: our fence, or a commit that the former owner put first
                commits = [found]
            for commit in commits:
                if commit.head.kind == CommitKind.FENCE:
                    await self._pass_fence(commit.head)
                    return
                if commit.head.snapshot is not None:
                    self.snapshot = max(Position(*commit.head.snapshot), self.snapshot or Position(NO_OWNER_EPOCH, 0))
                self.replay.apply(commit, self._where(commit.head.position))
                self.stored.append(commit.head.position)
                sequence += 1

    async def _pass_fence(self, head: CommitHead) -> None:
        """Ensure that there is a fence at the end of its epoch, and remove objects after it."""
        if head.writer_epoch > self._epoch:
            raise self._fenced(head.writer_epoch)
        strays = await self._check_gap(head.position)
        await self._storage.delete([commit_key(self._place, position) for position in strays])
        if head.writer_epoch == head.epoch:
            self.stored.append(head.position)

    async def _check_gap(self, gap: Position) -> list[Position]:
        """Ensure that nothing was ever acknowledged from ``gap`` on; return the positions after it."""
        prefix = f"{wal_prefix(self._place)}{gap.epoch:016x}/"
        behind = [
            parse_key(self._place, item.key)
            async for page in self._storage.list_all(prefix, commit_key(self._place, gap))
            for item in page.objects
        ]
        if behind:
            last = (await self._read_listed(behind[-1])).head  # later ones record more
            if last.settled > gap.sequence:
                raise _MovedError(gap)
        return behind

    async def _read_run(self, positions: list[Position]) -> list[DecodedCommit]:
        """Read listed commits concurrently."""
        found: dict[Position, DecodedCommit] = {}
        failures: list[DanubeError | _MovedError] = []

        async def read(position: Position) -> None:
            try:
                found[position] = await self._read_listed(position)
            except (DanubeError, _MovedError) as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for position in positions:
                nursery.start_soon(read, position)
        if failures:
            raise failures[0]
        return [found[position] for position in positions]

    # --- Objects ---

    def _where(self, position: Position) -> str:
        return f"{self._storage.url}/{commit_key(self._place, position)}"

    async def _read(self, position: Position) -> DecodedCommit | None:
        """Return a commit, or None if it does not exist."""
        key, where = commit_key(self._place, position), self._where(position)
        try:
            try:
                return decode_commit(await self._storage.get(key), self._place, position, where)
            except DataLossError:
                # The answer may have been damaged in transfer.
                return decode_commit(await self._storage.get(key), self._place, position, where)
        except StorageNotFoundError:
            return None

    async def _read_listed(self, position: Position) -> DecodedCommit:
        """Return a commit that was listed shortly before."""
        commit = await self._read(position)
        if commit is None:
            raise _MovedError(position)
        return commit

    def _lost(self, position: Position) -> DataLossError:
        return DataLossError(
            f"{self._where(position)}: this commit is missing, and later commits depend on it; restore the object from"
            " a copy"
        )
