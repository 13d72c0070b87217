"""The journal of durability ``remote``: writes each commit to a bucket as one object, and recovers from the bucket.

Topics of this durability do not use the local journal. Their batches, cursors, producers and metadata changes
go to a :class:`RemoteJournal`, which has the interface of the local journal and writes one object per commit for all
topics. The object is put with ``if_absent`` under the owner's epoch and the next number, and never replaced.
Entries settle in the order of the numbers, each commit only after all commits before it: then its batches become
visible in the history (:meth:`HistoryCatalogue.add_commit`, in memory only: the object describes itself), and then
``on_commit`` is called.

* **The order** of commits, and when the next one starts: :mod:`danube.history.remote.queue`.
* **Recovery and fencing**: :mod:`danube.history.remote.claim`. A new owner needs only the bucket.
* **The contents of an object**: :mod:`danube.history.remote.format`.

A put that fails is repeated with the same bytes until it succeeds, whatever the error: the numbers must not have gaps,
and the put may have succeeded. So all entries wait while the backend is unavailable. After ``remote_stall_s`` their
owners are notified with a retryable error (``on_stall``), while the entries stay pending; they may still settle. A put
that finds a foreign object under its key means that another owner has taken over: nothing more is acknowledged, and
``run`` ends with :class:`OwnerFencedError`.

**Snapshots** keep recovery short. From time to time, and at its start and end, the owner writes a commit with all
settled state. An earlier commit is deleted in three steps: its batches are sealed in ordinary segments
(:meth:`HistoryCatalogue.replace`) *and the bucket's manifests list these segments*; the next snapshot no longer
mentions the commit; and a later commit that names this snapshot has settled. So a new owner must read the manifests
after it has put the fence: then they list all batches that the newest snapshot of the fenced epoch leaves out. Read
earlier, they may lack segments that the former owner sealed in between, and whose commits it has deleted.

Use a :class:`Storage` of its own: otherwise commits would queue behind uploads of segments.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol

import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.parts import ObjectRef, PartRecord
from danube.history.pieces import ROOM_BYTES, cut, piece_bytes, piece_key
from danube.history.remote.claim import Claim, put_once
from danube.history.remote.format import (
    CommitHead,
    CommitKind,
    Position,
    RemoteState,
    SnapshotObject,
    commit_key,
    encode_entries,
    encode_marker,
    parse_key,
    parse_pieces_key,
    pieces_entry,
    pieces_key,
    pieces_prefix,
    snapshot_body,
    snapshot_entry,
    wal_prefix,
)
from danube.history.remote.queue import Commit, CommitQueue
from danube.history.remote.replay import RemoteRecovered
from danube.history.remote.settled import Settled
from danube.history.remote.stalls import STEPS_PER_STALL, Stalls
from danube.history.remote.stored import StoredCommits
from danube.history.segment import ControlEntry, SegmentPart
from danube.log import Admission, Entry
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    OwnerFencedError,
    StorageError,
    StorageUnavailableError,
    UnavailableError,
)
from danube.model.ids import NO_OWNER_EPOCH, Offset, ProducerId, TopicId
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.storage import Storage

__all__ = ["RemoteBroker", "RemoteJournal"]

_log = logging.getLogger("danube.remote")

_FIRST_PAUSE_S: Final = 0.1


class RemoteBroker(Protocol):
    """Interface of the broker for its remote journal."""

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        """Handle settled entries, in the order of submission. With an error, they may or may not be durable."""
        ...

    def on_stall(self, entries: Sequence[Entry], error: DanubeError) -> None:
        """Handle entries that have waited for ``remote_stall_s``, or a multiple of it. They stay pending."""
        ...

    def remote_state(self) -> RemoteState:
        """Return the state of all topics of durability ``remote``.

        It must include all settled changes, and may include later ones: so a change is applied to the state before its
        entry is submitted, not when the entry has settled.
        """
        ...

    def topic_name(self, topic_id: TopicId) -> str:
        """Return the name of a topic; empty if it is deleted."""
        ...

    def producer_name(self, topic_id: TopicId, producer_id: ProducerId) -> str:
        """Return the name of a producer; empty if its state has expired."""
        ...


async def _enter_nothing(recovered: RemoteRecovered) -> None:
    """Default for ``recover``: the catalogue already has the contents of the bucket's manifests."""


class RemoteJournal:
    """Writes entries to a bucket, one object per commit. Call ``recover``, ``nursery.start(run)``, finally ``aclose``.

    Args:
        storage: the backend; it must be durable and have conditional puts.
        catalogue: the history of this owner, including the contents of the bucket's manifests; its epoch is the
            owner's.
        broker: see :class:`RemoteBroker`.
        limits: ``remote_*``, ``journal_pending_bytes`` and ``journal_full_wait_s`` are used.
        place: of this broker's commits, see :func:`~danube.history.remote.format.wal_place`.
        owner: a unique name of this broker process.
        wall_clock_us: microseconds since the epoch.
        manifests_current: returns whether the bucket's manifests list everything in the catalogue now.

    Raises:
        ConfigurationError: the backend is not durable, or has no conditional puts.
    """

    def __init__(
        self,
        storage: Storage,
        catalogue: HistoryCatalogue,
        broker: RemoteBroker,
        limits: Limits,
        *,
        place: str,
        owner: str,
        wall_clock_us: Callable[[], int],
        manifests_current: Callable[[], bool],
    ) -> None:
        lacking = [
            text
            for there, text in (
                (storage.capabilities.durable, "is not durable"),
                (storage.capabilities.conditional_put, "has no conditional puts"),
            )
            if not there
        ]
        if lacking:
            raise ConfigurationError(
                f"{storage.url} cannot carry topics of durability 'remote': it {' and '.join(lacking)};"
                " choose another storage for them"
            )
        self._storage = storage
        self._catalogue = catalogue
        self._broker = broker
        self._limits = limits
        self._place = place
        self._owner = owner
        self._clock_us = wall_clock_us
        self._manifests_current = manifests_current
        self._epoch = catalogue.epoch
        self._admission = Admission(limits)
        # Names of topics and producers are added to the entries, many times their size if these are tiny.
        commit_bytes = min(limits.remote_commit_bytes, storage.capabilities.max_object_bytes // 16)
        self._queue = CommitQueue(1, limits.remote_in_flight, commit_bytes)
        self._settled = Settled(self._epoch, limits)
        self._idle: trio.Event | None = None
        self._to_clean = trio.Event()
        self._waits = trio.Event()
        self._last_error: StorageError | None = None
        self._recovered = False
        self.recovered_epoch = NO_OWNER_EPOCH
        """The highest epoch of an owner of the recovered topics, as far as their batches are in commits."""
        self._running = False
        self._closing = False
        self._failure: DanubeError | None = None
        self._ended = trio.Event()

    # --- Life ---

    async def recover(self, enter: Callable[[RemoteRecovered], Awaitable[None]] = _enter_nothing) -> RemoteRecovered:
        """Claim the bucket, and return everything that was ever acknowledged there. Call it once.

        When this returns, the catalogue includes the batches that are not in segments yet.

        Args:
            enter: awaited after the fences were put: from then on no commits of other owners are deleted, and the
                bucket's manifests are complete. An owner whose catalogue lacks the contents of the manifests must enter
                them here.

        Raises:
            OwnerFencedError: another owner has the bucket.
            DataLossError: a commit is damaged or missing; it names the object.
            StorageError: the backend cannot be read or written.
        """
        assert not self._recovered
        claim = Claim(self._storage, self._place, self._epoch, self._owner, self._clock_us)
        await claim.run()
        recovered = claim.replay.recovered
        parts = [part for item in claim.replay.objects.values() for part in item.parts]
        self.recovered_epoch = max((part.epoch for part in parts), default=NO_OWNER_EPOCH)
        self._settled = Settled(
            self._epoch,
            self._limits,
            stored=StoredCommits(claim.stored),
            snapshot=claim.snapshot,
            in_pieces=claim.in_pieces,
            next_offsets={topic_id: topic.next_offset for topic_id, topic in recovered.topics.items()},
            needed={
                position: SnapshotObject(*position, item.size_bytes, item.created_us, item.parts)
                for position, item in claim.replay.objects.items()
            },
        )
        self._catalogue.forget_commits(self._storage.name, wal_prefix(self._place))  # of an interrupted attempt
        await enter(recovered)
        for position in sorted(claim.replay.objects):
            item = claim.replay.objects[position]
            parts = [part for part in item.parts if self._is_needed(part)]
            if parts:
                self._catalogue.add_commit(self._ref(position), item.size_bytes, item.created_us, parts)
        self._recovered = True
        return recovered

    def _is_needed(self, part: SegmentPart) -> bool:
        """Return whether a part of a commit is neither sealed nor expired.

        Parts after it may be sealed already: small adjacent parts are merged before larger ones are old enough.
        """
        history = self._catalogue.topic(part.topic_id)
        found = history.find(part.base_offset)
        sealed = found is not None and found.part.base_offset <= part.base_offset
        return not sealed and part.end_offset > history.start_offset

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit submitted entries until :meth:`aclose` (or cancellation, which settles the rest with an error).

        Raises:
            OwnerFencedError: another owner has taken over. The process should exit.
        """
        assert self._recovered
        assert not self._running
        self._running = True
        try:
            async with trio.open_nursery() as helpers:
                helpers.start_soon(self._watch)
                helpers.start_soon(self._clean)
                task_status.started()
                async with trio.open_nursery() as puts:
                    await self._start_commits(puts)
                helpers.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # Several puts may find the fence at the same time; report one error.
            if self._failure is not None and group.split(trio.Cancelled)[1] is not None:
                raise self._failure from group
            raise
        finally:
            self._closing = True
            error = self._failure or UnavailableError("the journal of the remote topics is closed; try again")
            self._admission.close(error)
            entries, size = self._queue.give_up()
            self._admission.pending_bytes -= size
            if entries:
                self._broker.on_commit(entries, error)
            self._ended.set()

    async def aclose(self) -> None:
        """Commit pending entries, end the epoch in the bucket, and end :meth:`run`.

        Waits for the backend without limit. If this is cancelled, closing continues in :meth:`run`.
        """
        self._closing = True
        self._wake()
        if self._running:
            await self._ended.wait()

    async def check_owner(self) -> None:
        """Verify that no other owner has claimed the bucket since this one did.

        Raises:
            OwnerFencedError: another owner has claimed it.
            StorageError: the backend cannot be read.
        """
        last = commit_key(self._place, Position(self._epoch, 2**64 - 1))
        behind_ours = self._storage.list_all(wal_prefix(self._place), last)
        later = [item.key async for page in behind_ours for item in page.objects]
        if later:
            raise self._fenced(later[0])

    def abandon(self, error: OwnerFencedError) -> None:
        """End :meth:`run` with an error: another owner has taken over, and the fence was not found yet.

        Nothing more is built or acknowledged, above all no snapshot of a state that lacks what this owner has lost.
        What is on its way to the bucket may still arrive there, in front of the fence.
        """
        if self._failure is None:
            self._failure = error
            self._wake()

    @property
    def failure(self) -> DanubeError | None:
        """The error that ended the journal."""
        return self._failure

    @property
    def pending_bytes(self) -> int:
        """Bytes submitted and not settled."""
        return self._admission.pending_bytes

    # --- Writing ---

    def submit(self, entry: Entry) -> None:
        """Queue an entry; ``on_commit`` reports it. Never waits: publishes call :meth:`admit` before.

        Raises:
            OwnerFencedError, UnavailableError: the journal accepts no more entries.
        """
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise UnavailableError("the journal of the remote topics is closing; nothing was written")
        queue = self._queue
        if not queue:
            self._waits.set()
        queue.submit(entry)
        self._admission.pending_bytes += entry.size
        if self._idle is not None and queue.ready:
            self._wake()

    def begin_topic(self, topic_id: TopicId, next_offset: Offset) -> None:
        """Expect the batches of a topic that a move has brought, from an offset on. Nothing of it is pending."""
        self._settled.begin_topic(topic_id, next_offset)

    def try_admit(self, size: int) -> bool:
        """Return whether a batch of ``size`` bytes may be submitted now; the caller must then do so without waiting."""
        return self._admission.try_admit(size)

    async def admit(self, size: int) -> None:
        """Wait until a batch of ``size`` bytes may be submitted; the caller must then do so without waiting in between.

        Waits while more than ``journal_pending_bytes`` are pending.

        Raises:
            StorageUnavailableError: the wait exceeded ``journal_full_wait_s``.
            OwnerFencedError, UnavailableError: the journal accepts no more entries.
        """
        if self._admission.try_admit(size):
            return
        with trio.move_on_after(self._limits.journal_full_wait_s):
            await self._admission.admit(size)
            return
        raise self._stalled(f"{self._admission.pending_bytes} bytes are already pending")

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    # --- Commits ---

    async def _start_commits(self, puts: trio.Nursery) -> None:
        """Start commits one after the other; return when the epoch has ended."""
        queue = self._queue
        while True:
            if self._failure is not None:
                raise self._failure
            if self._settled.is_snapshot_due and queue.has_room:
                self._start(puts, queue.take_marker(CommitKind.SNAPSHOT))
            elif queue.ready:
                self._start(puts, queue.take())
            elif self._closing and not queue:
                if self._settled.commits_since:
                    self._settled.is_snapshot_due = True  # so that the next start is fast
                    continue
                await self._put(queue.take_marker(CommitKind.FENCE))
                return
            else:
                self._idle = trio.Event()
                await self._idle.wait()

    def _start(self, puts: trio.Nursery, commit: Commit) -> None:
        self._build(commit)
        puts.start_soon(self._put, commit)

    def _build(self, commit: Commit) -> None:
        """Build the object of a commit."""
        settled, broker = self._settled, self._broker
        commit.created_us = self._clock_us()
        commit.snapshot = settled.snapshot
        position = Position(self._epoch, commit.sequence)
        head = CommitHead(
            commit.kind, self._place, self._owner, self._epoch, *position, commit.snapshot, commit.settled
        )
        if commit.kind is CommitKind.ENTRIES:
            commit.data, commit.parts = encode_entries(
                head, commit.created_us, commit.entries, broker.topic_name, broker.producer_name
            )
            settled.built(len(commit.data))
        elif commit.kind is CommitKind.SNAPSHOT:
            state = broker.remote_state()
            body = settled.build_snapshot(commit, state, self._unsealed_parts(state.topic_ids))
            entry = self._snapshot_entry(commit, snapshot_body(body))
            commit.data = encode_marker(head, commit.created_us, [entry])
        else:
            commit.data = encode_marker(head, commit.created_us)

    def _snapshot_entry(self, commit: Commit, body: bytes) -> ControlEntry:
        """Return the entry of a snapshot, or one for the pieces that it is split into because it is too large."""
        most = piece_bytes(self._storage)
        if len(body) <= most - ROOM_BYTES:
            return snapshot_entry(body)
        commit.pieces = [*cut(body, most)]
        return pieces_entry(body, len(commit.pieces))

    async def _put(self, commit: Commit) -> None:
        """Put a commit into the bucket, with unlimited retries."""
        if not commit.data:
            self._build(commit)
        key = commit_key(self._place, Position(self._epoch, commit.sequence))
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                ours = await self._put_pieces(commit) and await put_once(self._storage, key, commit.data)
                break
            except StorageError as error:
                # Permanent errors (credentials, a missing bucket) last until an operator fixes them: keep trying.
                self._last_error = error
                _log.warning(
                    "commit %d of the remote topics is delayed: %s",
                    commit.sequence,
                    error,
                    extra=log_event("remote.commit_delayed", repeating=True),
                )
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._limits.storage_max_backoff_s)
        if not ours:
            self._failure = self._fenced(key)
            _log.critical("%s", self._failure, extra=log_event("remote.stopped"))
            raise self._failure
        self._last_error = None
        if self._failure is None:
            self._settle(commit)

    async def _put_pieces(self, commit: Commit) -> bool:
        """Store the pieces of a large snapshot; return whether all stored pieces are this owner's."""
        key = pieces_key(self._place, Position(self._epoch, commit.sequence))
        for number, piece in enumerate(commit.pieces):
            if piece is not None:
                if not await put_once(self._storage, piece_key(key, number), piece):
                    return False
                commit.pieces[number] = None
        return True

    def _fenced(self, key: str) -> OwnerFencedError:
        return OwnerFencedError(
            f"{self._storage.url}/{key}: another broker has taken over the topics of durability 'remote'; this one,"
            f" of epoch {self._epoch}, stops"
        )

    def _settle(self, landed: Commit) -> None:
        """Report a stored commit, and those after it that can settle now."""
        for commit in self._queue.landed(landed):
            if commit.parts:
                ref = self._ref(Position(self._epoch, commit.sequence))
                self._catalogue.add_commit(ref, len(commit.data), commit.created_us, commit.parts)
            if self._settled.settle(commit):
                self._to_clean.set()
            self._admission.pending_bytes -= commit.size
            if commit.entries:
                for entry in commit.entries:
                    entry.sequence = commit.sequence
                self._broker.on_commit(commit.entries, None)
        self._admission.wake()
        self._wake()

    # --- Snapshots, and deletion of superseded commits ---

    def _unsealed_parts(self, topic_ids: Iterable[TopicId]) -> dict[Position, list[SegmentPart]] | None:
        """Return the parts of topics that are only in commits, by these; None if the manifests lack sealed ones."""
        if not self._manifests_current():
            return None
        found: dict[Position, list[SegmentPart]] = {}
        for topic_id in sorted(topic_ids):
            for record in self.unsealed(topic_id):
                found.setdefault(parse_key(self._place, record.object), []).append(record.part)
        return found

    def unsealed(self, topic_id: TopicId) -> list[PartRecord]:
        """Return the parts of a topic that are only in commits, in the order of their offsets."""
        history = self._catalogue.find(topic_id)
        commits = self._catalogue.commits
        return [record for record in history.parts if record.ref in commits] if history is not None else []

    async def _clean(self) -> None:
        """Task: delete commits that are no longer needed."""
        while True:
            await self._to_clean.wait()
            self._to_clean = trio.Event()
            gone = self._settled.stored.superseded()
            try:
                if gone:
                    await self._storage.delete([commit_key(self._place, position) for position in gone])
                if self._settled.in_pieces:
                    await self._drop_pieces()
                self._settled.stored.deleted(gone)
            except DanubeError as error:
                _log.warning(
                    "deleting %d commits of the remote topics failed and will be retried: %s",
                    len(gone),
                    error,
                    extra=log_event("remote.deletion_delayed"),
                )

    async def _drop_pieces(self) -> None:
        """Delete the pieces of snapshots that are no longer needed, including those never completed."""
        settled = self._settled
        oldest = settled.stored.oldest_needed
        if oldest is None:
            return
        old: list[str] = []
        settled.in_pieces = False  # unless some are left; a snapshot in pieces that settles meanwhile sets it, too
        try:
            async for page in self._storage.list_all(pieces_prefix(self._place)):
                for item in page.objects:
                    position = parse_pieces_key(self._place, item.key)
                    if position is not None and position < oldest:
                        old.append(item.key)
                    else:
                        settled.in_pieces = True
            await self._storage.delete(old)
        except BaseException:
            settled.in_pieces = True
            raise

    def _ref(self, position: Position) -> ObjectRef:
        return ObjectRef(self._storage.name, commit_key(self._place, position))

    # --- Stalls ---

    async def _watch(self) -> None:
        """Report stalled entries, repeatedly."""
        queue = self._queue
        while True:
            self._waits = trio.Event()
            if not queue:
                await self._waits.wait()
            stalls = Stalls()
            while queue:
                stalls.mark(queue.submitted)
                await trio.sleep(self._limits.remote_stall_s / STEPS_PER_STALL)
                for begin, end in stalls.step(queue.settled):
                    self._report_stalled(begin, end)

    def _report_stalled(self, begin: int, end: int) -> None:
        late = list(islice(self._queue.unsettled(), begin, end))
        self._broker.on_stall(late, self._stalled("the messages may still be stored"))

    def _stalled(self, more: str) -> StorageUnavailableError:
        why = self._last_error.message if self._last_error is not None else "it does not answer"
        return StorageUnavailableError(
            f"{self._storage.url}: topics of durability 'remote' wait for this storage: {why}; {more}. Check the"
            " storage, and try again"
        )
