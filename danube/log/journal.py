"""The journal: one write-ahead log for all topics of a broker, with group commit.

Entries are submitted without waiting. Two lanes write them to disk, one for entries that must be synced and one for
those that must only be written, so that a slow sync never delays the acknowledgement of a topic that does not need
it. Each lane repeats one step: take all queued entries, frame them as one commit block, write it (and sync it), and
report all of them with one callback. There is no timer: entries that arrive during one write form the next block.

Positions and commit sequences are assigned in the order of the calls to ``Disk.write``, and the disk keeps that order,
so everything before a returned write survives the death of the process, and everything before a returned sync
survives a power loss. The last sequence known to be synced is the *watermark*; each block carries it.

Two more tasks keep file handling off the hot path: one prepares the next file ahead of time, one
recycles files without needed data. Recovery is in :mod:`danube.log.recovery`.

An I/O error is final. Everything pending settles with :class:`JournalFencedError`, ``run`` raises it, and the broker
exits: after a failed sync the kernel may have dropped the pages that it could not write, so a retry is pointless.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from danube.log._admission import Admission
from danube.log._files import FREED_MARGIN, JournalFile
from danube.log._keeper import SNAPSHOT_RATIO, FileKeeper
from danube.log.disk import Disk
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    ENTRY_HEADER_SIZE,
    FILE_HEADER_SIZE,
    METADATA_ENTRY,
    TERMINATOR,
    Entry,
    EntryType,
    encode_block,
)
from danube.log.patience import PatientDisk
from danube.log.reader import JournalReader
from danube.log.recovered import Recovered, Standing, Visitor
from danube.log.recovery import Recovery
from danube.log.snapshots import SNAPSHOT_OVERHEAD, cut
from danube.model.batch import STAMP_SIZE
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    InternalError,
    JournalFencedError,
    LimitExceededError,
    MessageTooLargeError,
    UnavailableError,
)
from danube.model.ids import FIRST_OFFSET, NO_TOPIC, Offset, TopicId
from danube.model.limits import KIB, MIB, Limits
from danube.model.policies import Durability

__all__ = ["Journal", "JournalUsage"]

_log = logging.getLogger("danube.journal")

_FILE_OVERHEAD: Final = (
    FILE_HEADER_SIZE + BLOCK_HEADER_SIZE + ENTRY_HEADER_SIZE + STAMP_SIZE + len(TERMINATOR) + FREED_MARGIN
)
_EWMA_WEIGHT: Final = 0.1
_RECOVERY: Final = "recovery of the journal"
_OWN: Final = (EntryType.FREED, EntryType.METADATA, EntryType.SNAPSHOT, EntryType.TOMBSTONE)
_PART_BYTES: Final = 256 * KIB
"""Most bytes of a state in one entry."""
_PART_OVERHEAD: Final = ENTRY_HEADER_SIZE + SNAPSHOT_OVERHEAD
_SNAPSHOT_GROUP_BYTES: Final = 128 * KIB
"""Snapshots of about this size are written together; other entries are committed in between."""
_USUAL_SNAPSHOT_BYTES: Final = 128
"""Assumed of topics whose snapshot was not seen: one subscription, and a producer or two."""

OnCommit = Callable[[Sequence[Entry], DanubeError | None], None]


class JournalUsage(NamedTuple):
    """Usage and activity of a journal. Sizes in bytes, times in seconds."""

    used_bytes: int
    """Part of the disk limit in use: closed files, and the written part of the active one."""
    limit_bytes: int
    live_bytes: int
    """Bytes of batches that are still needed."""
    pending_bytes: int
    """Bytes submitted and not settled."""
    files: int
    spare_files: int
    commits: int
    syncs: int
    sync_time_s: float
    """Moving average of write and sync together."""
    sequence: int
    watermark: int
    disk_full: bool
    """The file system has no space for another file."""
    stranded_topics: int = 0
    """Topics with entries in the journal that the metadata do not know."""
    stranded_bytes: int = 0
    """Bytes of their batches."""


class _Lane:
    """A queue of entries and the task that commits them."""

    __slots__ = ("idle", "in_flight_sequence", "queue", "sync")

    def __init__(self, *, sync: bool) -> None:
        self.sync = sync
        self.queue: deque[Entry] = deque()
        self.idle: trio.Event | None = None
        self.in_flight_sequence = 0
        """Sequence of the block being written, 0 for none."""

    def wake(self) -> None:
        """Let the task check its queue."""
        if self.idle is not None:
            self.idle.set()
            self.idle = None


class Journal:
    """The journal; see the module. Use ``async with Journal.open(...)``, or ``recover``, ``start(run)`` and ``aclose``.

    Args:
        disk: holds the files; it belongs to the caller, and is not closed.
        limits: ``journal_*`` and ``max_batch_bytes`` are used.
        file_size: bytes of one file (default 64 MiB). Changing it is safe: spares of another size are replaced,
            live files are read as they are.
        on_commit: called in the loop's thread with each group of settled entries, and an error or None. Entries of
            one topic settle in the order of their submission. May be set later (``journal.on_commit``), but before
            anything is submitted. It must not raise.
        snapshot: returns the present state of a topic (the effect of all its settled entries), None if the topic is not
            known. It must not raise. What it returns is written before the files with the topic's entries are recycled,
            and the visitor of the next recovery receives it. Without this function no file is ever recycled. May also
            be set later (``journal.snapshot``).
        clock: a monotonic clock in seconds (default: Trio's).

    Raises:
        ConfigurationError: a file cannot hold the largest batch.
    """

    def __init__(
        self,
        disk: Disk,
        limits: Limits,
        *,
        file_size: int = 64 * MIB,
        on_commit: OnCommit | None = None,
        snapshot: Callable[[TopicId], bytes | None] | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        if file_size < limits.max_batch_bytes + _FILE_OVERHEAD:
            raise ConfigurationError(
                f"journal files of {file_size} bytes cannot hold a batch of max_batch_bytes = "
                f"{limits.max_batch_bytes}; "
                f"raise the file size to at least {limits.max_batch_bytes + _FILE_OVERHEAD} or lower the limit"
            )
        self.on_commit: OnCommit = on_commit if on_commit is not None else _refuse_commit
        self._snapshot = snapshot
        self.on_roll: list[Callable[[], None]] = []
        """Called when the journal continues in another file."""
        self.before_end: Callable[[], Awaitable[None]] = _at_once
        """Awaited at a clean end, when everything has settled and only the last block is left to write."""
        self.recovered: Recovered | None = None
        self._disk = disk
        self._limits = limits
        self._file_size = file_size
        self._capacity = file_size - FILE_HEADER_SIZE - len(TERMINATOR) - FREED_MARGIN
        self._part_bytes = min(_PART_BYTES, self._capacity // 4)
        self._clock = clock
        self._admission = Admission(limits)
        self._keeper = FileKeeper(disk, limits, file_size, self._admission, self)
        self._reader = JournalReader(disk, self._keeper.files)
        self._sequence = 0
        self._watermark = 0
        self._disk_lane = _Lane(sync=True)
        self._os_lane = _Lane(sync=False)
        self._unsynced: deque[JournalFile] = deque()
        self._sync_wanted = 0
        """The highest sequence that a caller of :meth:`sync` waits for."""
        self._synced: trio.Event | None = None
        """Set when the watermark moves, or can no longer move."""
        self._freed: deque[Entry] = deque()
        """Written before everything else in the synced lane, and into the margin of a file that is full."""
        self._urgent: deque[Entry] = deque()
        """Snapshots and tombstones: written before other entries, and to files that those may not use."""
        self._generation = 0
        self._snapshot_bytes: dict[TopicId, int] = {}
        """Bytes that the newest snapshot of a topic takes, or of a new topic will take."""
        self._states_bytes = 0
        """The sum of these."""
        self._internal: dict[Entry, Callable[[], None]] = {}
        self._recovery: Recovery | None = None
        self._noted_revision = 0
        self._told_revision = 0
        self._noting: Entry | None = None
        self._synced_file = 0
        self._failure: DanubeError | None = None
        self._closing = False
        self._running = False
        self._ended = trio.Event()
        self._commits = 0
        self._syncs = 0
        self._sync_time_s = 0.0

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        disk: Disk,
        limits: Limits,
        *,
        visitor: Visitor | None = None,
        file_size: int = 64 * MIB,
        on_commit: OnCommit | None = None,
        snapshot: Callable[[TopicId], bytes | None] | None = None,
        clock: Callable[[], float] = trio.current_time,
    ) -> AsyncIterator[Journal]:
        """Recover and run a journal; the result of recovery is in ``journal.recovered``.

        Leaving commits pending entries. An I/O error cancels the body (and is raised in an exception group).
        """
        journal = cls(disk, limits, file_size=file_size, on_commit=on_commit, snapshot=snapshot, clock=clock)
        await journal.recover(visitor)
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            yield journal
            await journal.aclose()

    # --- Life ---

    async def survey(self) -> Standing:
        """Read the journal's own state without changing anything. May be called once, before :meth:`recover`.

        Raises:
            DataDirectoryError: the files are of another format.
            JournalFencedError: the disk cannot be read.
            OutOfDescriptorsError: no file descriptor was available for ``start_descriptor_wait_s``.
        """
        assert self._recovery is None
        disk = PatientDisk(self._disk, _RECOVERY, self._limits.start_descriptor_wait_s)
        recovery = Recovery(disk, self._keeper.files, self._file_size)
        try:
            standing = await recovery.survey()
        except OSError as error:
            raise self._fence(error, _RECOVERY) from error
        self._recovery = recovery
        return standing

    async def recover(
        self, visitor: Visitor | None = None, *, identity: int | None = None, synced: int = 0
    ) -> Recovered:
        """Read and repair the files on disk, and prepare to :meth:`run`. To be called once.

        Args:
            visitor: receives every accepted batch and control entry, in the order of the log.
            identity: the journal's identity from now on (default: the one it has).
            synced: a sequence that the metadata know to be synced; damage up to it is not a torn write.

        Raises:
            DataDirectoryError: the files are of another format.
            JournalFencedError: an I/O error. Retrying loses nothing.
            JournalFullError: no space for a fresh file. Retrying loses nothing.
            OutOfDescriptorsError: no file descriptor was available for ``start_descriptor_wait_s``. Retrying loses
                nothing.
        """
        assert self.recovered is None
        if self._recovery is None:
            await self.survey()
        recovery = self._recovery
        assert recovery is not None
        if identity is not None and identity != recovery.identity:
            recovery.identity, recovery.metadata = identity, 0
        recovery.metadata = self._noted_revision = max(recovery.metadata, self._noted_revision)
        try:
            recovered = await recovery.run(visitor, synced)
            self._sequence = self._watermark = recovery.last_sequence
            await self._keeper.adopt(recovery)
            self._synced_file = recovery.active.file_id
        except OSError as error:
            raise self._fence(error, _RECOVERY) from error
        snapshots = recovery.snapshots
        self._generation = snapshots.generation
        for topic_id, (_, _, size) in snapshots.newest.items():
            self._note_state(topic_id, size + _PART_OVERHEAD)
        self._recovery = None
        self._told_revision = recovery.metadata
        self.recovered = recovered
        return recovered

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit submitted entries until :meth:`aclose` (or cancellation, which settles the rest with an error).

        Raises:
            JournalFencedError: an I/O error. The process should exit and recover on its next start.
        """
        assert self.recovered is not None
        assert not self._running
        self._running = True
        if self._noted_revision > self._told_revision:
            self.note_metadata(0, _nothing)  # changes since the header was written
        try:
            async with trio.open_nursery() as helpers:
                helpers.start_soon(self._keep_files, self._keeper.prepare_files)
                helpers.start_soon(self._keep_files, self._keeper.recycle_files)
                task_status.started()
                async with trio.open_nursery() as lanes:
                    lanes.start_soon(self._run_lane, self._os_lane)
                    lanes.start_soon(self._run_lane, self._disk_lane)
                helpers.cancel_scope.cancel()
            await self._sync_rest()
            await self.before_end()
            await self._write_closing_block()
        except BaseExceptionGroup as group:
            # Lanes and helpers fail together; the fence is the cause to report.
            if self._failure is not None and group.split(trio.Cancelled)[1] is not None:
                raise self._failure from group
            raise
        finally:
            self._closing = True
            self._settle_rest(self._failure or UnavailableError("the journal is closed; nothing was written"))
            self._admission.close(self._failure)
            self._ended.set()
            self._tell_synced()

    async def aclose(self) -> None:
        """Commit pending entries and end :meth:`run`. If cancelled, the journal still ends by itself."""
        self._closing = True
        self._os_lane.wake()
        self._disk_lane.wake()
        if self._running:
            await self._ended.wait()

    @property
    def failure(self) -> DanubeError | None:
        """The error that fenced the journal."""
        return self._failure

    # --- Writing ---

    def submit(self, entry: Entry) -> None:
        """Queue an entry; ``on_commit`` reports it. Never waits: publishes call :meth:`admit` before.

        Raises:
            MessageTooLargeError: larger than a journal file.
            JournalFencedError, UnavailableError: the journal accepts no more entries.
        """
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise UnavailableError("the journal is closing; nothing was written")
        if entry.size + ENTRY_HEADER_SIZE + BLOCK_HEADER_SIZE > self._capacity:
            raise MessageTooLargeError(
                f"journal entry of {entry.size} bytes is larger than a journal file of {self._file_size} bytes"
            )
        lane = self._disk_lane if entry.durability is Durability.DISK else self._os_lane
        lane.queue.append(entry)
        self._admission.pending_bytes += entry.size
        if lane.idle is not None:
            lane.wake()

    def try_admit(self, size: int) -> bool:
        """Return whether a batch of ``size`` bytes may be submitted now; the caller must then do so without waiting."""
        return self._admission.try_admit(size)

    async def admit(self, size: int) -> None:
        """Wait until a batch of ``size`` bytes may be submitted; the caller must then do so without waiting in between.

        Waits while more than ``journal_pending_bytes`` are pending, and while the journal is at its disk limit.

        Raises:
            JournalFullError: at the disk limit for ``journal_full_wait_s``.
            JournalFencedError, UnavailableError: the journal accepts no more entries.
        """
        if not self._admission.try_admit(size):
            if self._keeper.disk_full:
                self._keeper.want_file()  # disk space may have been freed in the meantime: try again
            await self._admission.admit(size)

    @property
    def sequence(self) -> int:
        """The last sequence assigned; every settled entry has this one or an earlier one."""
        return self._sequence

    async def sync(self, sequence: int) -> None:
        """Return when everything up to a sequence survives a power loss, including entries that only had to be written.

        Returns at once if that is so already, and costs one sync of the disk at most. May be cancelled.

        Args:
            sequence: the value of :attr:`sequence` when the last entry in question had settled.

        Raises:
            JournalFencedError, UnavailableError: the journal ended before.
        """
        assert sequence <= self._sequence
        while sequence > self._watermark:
            if self._failure is not None:
                raise self._failure
            if self._ended.is_set():
                raise UnavailableError("the journal is closed; its end was not synced")
            self._sync_wanted = max(self._sync_wanted, sequence)
            self._disk_lane.wake()
            self._keeper.announce()  # the lane may wait for a file
            if self._synced is None:
                self._synced = trio.Event()
            await self._synced.wait()

    def _tell_synced(self) -> None:
        if self._synced is not None:
            self._synced.set()
            self._synced = None

    async def _run_lane(self, lane: _Lane) -> None:
        queue = lane.queue
        while True:
            freed = self._freed if lane.sync else None
            urgent = self._urgent if lane.sync else None
            if lane.sync and self._unsynced:
                await self._sync_closed(lane)
                continue
            if not freed and not urgent and not queue:
                if lane.sync and self._sync_wanted > self._watermark:
                    await self._sync_active()
                    continue
                if self._closing:
                    return
                lane.idle = trio.Event()
                await lane.idle.wait()
                continue
            active = self._keeper.active
            if freed:
                fits = _framed(*freed) <= active.room(margin=True)
            else:
                fits = _framed((urgent or queue)[0]) <= active.room()
            if not fits:
                frees = bool(freed or urgent)
                if self._keeper.can_roll(urgent=frees):
                    self._roll()
                elif lane.sync and self._sync_wanted > self._watermark:
                    await self._sync_active()  # the waiting task may be the one that frees space
                else:
                    self._keeper.note_waiting(urgent=frees)
                    await self._keeper.news.wait()
                continue
            # No await from here to the call of Disk.write: position, sequence and the order of writes agree.
            if freed:
                entries = list(freed)
                freed.clear()
                await self._commit(lane, active, entries, sum(entry.size for entry in entries))
            else:
                await self._commit(lane, active, *self._take(urgent or queue, active))

    def _roll(self) -> None:
        full = self._keeper.active
        self._keeper.roll()
        for rolled in self.on_roll:
            rolled()
        if full.last_sequence > self._watermark:
            self._unsynced.append(full)
            self._disk_lane.wake()

    async def _commit(self, lane: _Lane, file: JournalFile, entries: list[Entry], size: int) -> None:
        self._sequence = sequence = self._sequence + 1
        fresh = not file.end
        position = file.end or FILE_HEADER_SIZE
        buffers, length = encode_block(
            entries, file_id=file.file_id, position=position, sequence=sequence, watermark=self._watermark
        )
        write_at = position
        if fresh:
            buffers.insert(0, self._keeper.header(file, sequence, self._watermark))
            write_at = 0
        file.end = position + length
        assert file.end + len(TERMINATOR) <= self._file_size
        assert sequence > file.last_sequence
        file.last_sequence = sequence
        note = self._keeper.files.note
        for entry in entries:
            if entry.type is EntryType.BATCH:
                file.count_batch(entry.topic_id, entry.size, entry.end_offset)
            elif entry.type is EntryType.RAFT:
                file.count_batch(entry.topic_id, entry.size, entry.end_offset)
                continue
            if entry.topic_id and entry.type is not EntryType.TOMBSTONE:
                note(file, entry.topic_id, entry.type)
        self._keeper.grown()
        lane.in_flight_sequence = sequence
        await self._write(file, write_at, buffers, sync=lane.sync, sequence=sequence, settling=(entries, size))
        lane.in_flight_sequence = 0
        file.written = max(file.written, position + length)
        self._commits += 1
        self._settle(entries, size, None)
        if self._keeper.waits_for_commits:
            self._keeper.want_recycling()

    def _take(self, queue: deque[Entry], file: JournalFile) -> tuple[list[Entry], int]:
        """Take the entries that fit into the file and into one block."""
        room = min(file.room(), max(self._limits.journal_commit_bytes, _framed(queue[0])))
        room -= BLOCK_HEADER_SIZE
        entries: list[Entry] = []
        size = 0
        while queue:
            entry = queue[0]
            room -= ENTRY_HEADER_SIZE + entry.size
            if room < 0:
                break
            size += entry.size
            entries.append(queue.popleft())
        return entries, size

    async def _write(
        self,
        file: JournalFile,
        position: int,
        buffers: Sequence[bytes],
        *,
        sync: bool,
        sequence: int,
        settling: tuple[list[Entry], int] = ([], 0),
    ) -> None:
        """Write, and fence on any error. A synced write moves the watermark to ``sequence``."""
        started = self._clock()
        file.in_flight += 1
        try:
            await self._disk.write(file.name, position, buffers, sync=sync)
        except OSError as error:
            failure = self._fence(error, f"journal file {file.name}")
            self._settle(*settling, failure)
            raise failure from error
        finally:
            file.in_flight -= 1
        if self._failure is not None:
            # The other lane failed while this write was in flight; an os write was done, but it must not be
            # acknowledged any more.
            self._settle(*settling, self._failure)
            raise self._failure
        if sync:
            if sequence > self._watermark:
                self._watermark = sequence
                self._synced_file = file.file_id
                self._tell_synced()
            self._syncs += 1
            taken = self._clock() - started
            self._sync_time_s += _EWMA_WEIGHT * (taken - self._sync_time_s) if self._syncs > 1 else taken

    async def _sync_closed(self, lane: _Lane) -> None:
        """Sync the oldest closed file whose end was written without a sync. Later blocks build on it."""
        file = self._unsynced[0]
        if file.last_sequence > self._watermark:
            await self._write(file, file.end, [], sync=True, sequence=file.last_sequence)
        self._unsynced.popleft()
        if not self._unsynced:
            lane.wake()

    def _settle(self, entries: list[Entry], size: int, error: DanubeError | None) -> None:
        self._admission.pending_bytes -= size
        if self._internal:
            own = self._internal
            for entry in entries:
                if entry in own:
                    own.pop(entry)()
            entries = [entry for entry in entries if entry.type not in _OWN]
        if entries:
            self.on_commit(entries, error)
        self._admission.wake()

    def _settle_rest(self, error: DanubeError) -> None:
        for queue in (self._os_lane.queue, self._freed, self._urgent, self._disk_lane.queue):
            rest = list(queue)
            queue.clear()
            if rest:
                self._settle(rest, sum(entry.size for entry in rest), error)

    def _fence(self, error: OSError, where: str) -> DanubeError:
        if self._failure is None:
            hint = "free space on the disk" if error.errno == errno.ENOSPC else "check the disk"
            self._failure = JournalFencedError(
                f"{where}: {error.strerror or error}; nothing more is acknowledged. "
                f"Then {hint} and start the broker again: it recovers what was acknowledged"
            )
            _log.critical("%s", self._failure)
            self._admission.close(self._failure)
        return self._failure

    async def _keep_files(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except OSError as error:
            raise self._fence(error, "the directory of the journal") from error

    # --- Interface of the file keeper ---

    def settled_sequence(self) -> int:
        """Return the last sequence up to which all entries have been reported."""
        open_ones = [lane.in_flight_sequence for lane in (self._disk_lane, self._os_lane) if lane.in_flight_sequence]
        return min(open_ones) - 1 if open_ones else self._sequence

    async def write_freed(self, payload: bytes) -> bool:
        """Write a FREED entry; return whether it is durable. False: the journal is ending."""
        if self._closing or self._failure is not None:
            return False
        # With the metadata revision that made it true: the entry that records that revision may have to wait for a
        # file.
        seen = METADATA_ENTRY.pack(self._keeper.identity, self._noted_revision)
        entry = Entry(EntryType.FREED, NO_TOPIC, Durability.DISK, (payload,))
        done = trio.Event()
        self._internal[entry] = done.set
        self._freed += (Entry(EntryType.METADATA, NO_TOPIC, Durability.DISK, (seen,)), entry)
        self._admission.pending_bytes += entry.size + METADATA_ENTRY.size
        self._disk_lane.wake()
        self._keeper.announce()
        await done.wait()
        return self.failure is None and entry.sequence >= 0

    @property
    def snapshot(self) -> Callable[[TopicId], bytes | None] | None:
        """Returns the present state of a topic; see the class. Files are recycled from the moment that it is set."""
        return self._snapshot

    @snapshot.setter
    def snapshot(self, take: Callable[[TopicId], bytes | None] | None) -> None:
        self._snapshot = take
        self._keeper.want_recycling()

    @property
    def recycles(self) -> bool:
        """Whether snapshots can be written."""
        return self._snapshot is not None

    def snapshot_cost(self, topic_id: TopicId, *, exact: bool = False) -> int:
        """Return how many bytes the snapshot of a topic takes; not ``exact``: as far as is known without taking it."""
        if exact and self._snapshot is not None:
            state = self._snapshot(topic_id)
            return len(state) + _PART_OVERHEAD * self._parts_of(state) if state is not None else 0
        return self._snapshot_bytes.get(topic_id, _USUAL_SNAPSHOT_BYTES)

    def _parts_of(self, state: bytes) -> int:
        return max(1, -(-len(state) // self._part_bytes))

    def _note_state(self, topic_id: TopicId, size: int) -> None:
        self._states_bytes += size - self._snapshot_bytes.get(topic_id, 0)
        self._snapshot_bytes[topic_id] = size

    def expect_states(self, topic_ids: Iterable[TopicId]) -> None:
        """Count the states of topics whose snapshots are not known yet; see :meth:`check_states`."""
        for topic_id in topic_ids:
            if topic_id not in self._snapshot_bytes:
                self._note_state(topic_id, _USUAL_SNAPSHOT_BYTES)

    def check_states(self, what: str, topics: int = 0) -> None:
        """Check that the states of all topics take at most a quarter of the journal.

        What a topic has grown by since its last snapshot is not counted; it is in the journal otherwise.

        Args:
            what: is to be added, for the message.
            topics: how many new topics or partitions it is.

        Raises:
            LimitExceededError: with it they would take more.
        """
        most = self._limits.journal_max_bytes // SNAPSHOT_RATIO
        if self._states_bytes + topics * _USUAL_SNAPSHOT_BYTES > most:
            raise LimitExceededError(
                f"{what} cannot be added: the states of {len(self._snapshot_bytes)} topics (producers and cursors) take"
                f" {self._states_bytes} bytes of the journal, and may take a quarter of limit journal_max_bytes ="
                f" {self._limits.journal_max_bytes}; delete topics or subscriptions, or raise the limit"
            )

    async def write_snapshots(self, topic_ids: Collection[TopicId], tombstones: Mapping[TopicId, int]) -> None:
        """Write snapshots of topics as they are now, and tombstones with their horizons; return when they are synced.

        Topics that are not known stay in their files; so do all if the journal is ending.
        """
        if tombstones:
            await self._write_urgent([self._tombstone(topic_id, horizon) for topic_id, horizon in tombstones.items()])
        take = self._snapshot
        if take is None:
            return
        states = ((topic_id, state) for topic_id in topic_ids if (state := take(topic_id)) is not None)
        await self._write_states(states)

    async def save(self, states: Mapping[TopicId, bytes]) -> None:
        """Write snapshots of topics, by their ids; return when they are synced. None of them is stranded from then on.

        Raises:
            JournalFencedError, UnavailableError: the journal has failed, or is ending.
        """
        if not await self._write_states(iter(states.items())):
            raise self._failure or UnavailableError("the journal is closing; its snapshots were not written")
        self._keeper.files.claim(states)
        self._keeper.files_released()

    async def bury(self, topic_ids: Iterable[TopicId]) -> None:
        """Release all data of deleted topics, and note that they were deleted; return when that is synced.

        No more batches may be submitted for them, and those that were submitted must have settled.

        Raises:
            JournalFencedError, UnavailableError: the journal has failed, or is ending.
        """
        entries = []
        for topic_id in topic_ids:
            self.drop_topic(topic_id)
            entries.append(self._tombstone(topic_id))
        if not await self._write_urgent(entries):
            raise self._failure or UnavailableError("the journal is closing; the deletion of a topic was not noted")
        self._keeper.want_recycling()

    def strand(self, topic_ids: Collection[TopicId]) -> None:
        """Keep all entries of topics that are not known to the metadata."""
        self._keeper.files.strand(topic_ids)
        self._keeper.files_released()

    def stranded(self) -> dict[TopicId, tuple[int, Offset]]:
        """Return the stranded topics: the bytes of their batches, and the end of the newest one (0: no batches)."""
        found = dict.fromkeys(sorted(self._keeper.files.stranded), (0, FIRST_OFFSET))
        for file in self._keeper.files:
            for topic_id in found.keys() & file.live.keys():
                size, end = found[topic_id]
                found[topic_id] = size + file.live[topic_id][0], max(end, file.live[topic_id][1])
        return found

    def is_buried(self, topic_id: TopicId) -> bool:
        """Return whether all that the journal holds of a topic is void: its tombstone is behind it."""
        return topic_id in self._keeper.files.buried

    def topic_ids(self) -> set[TopicId]:
        """Return all topics with entries that are kept."""
        return self._keeper.files.topic_ids()

    def _tombstone(self, topic_id: TopicId, horizon: int | None = None) -> Entry:
        entry = Entry(EntryType.TOMBSTONE, topic_id, Durability.DISK, ())

        def written() -> None:
            file = self._keeper.files.get(entry.file)
            if file is not None:
                self._keeper.files.bury(topic_id, file, horizon)

        self._internal[entry] = written
        self._states_bytes -= self._snapshot_bytes.pop(topic_id, 0)
        return entry

    async def _write_states(self, states: Iterator[tuple[TopicId, bytes]]) -> bool:
        """Write snapshots, some at a time; return whether all are durable."""
        done = False
        while not done:
            # No await until they are queued: they contain the effects of all that has settled.
            settled = self.settled_sequence()
            entries: list[Entry] = []
            covers: dict[TopicId, int] = {}
            size = 0
            while size < _SNAPSHOT_GROUP_BYTES:
                item = next(states, None)
                if item is None:
                    done = True
                    break
                topic_id, state = item
                self._generation += 1
                payloads = cut(state, generation=self._generation, covers=settled, part_bytes=self._part_bytes)
                entries += [Entry(EntryType.SNAPSHOT, topic_id, Durability.DISK, payload) for payload in payloads]
                taken = len(state) + _PART_OVERHEAD * len(payloads)
                self._note_state(topic_id, taken)
                size += taken
                covers[topic_id] = settled
            if entries and not await self._write_urgent(entries):
                return False
            self._keeper.files.cover(covers)
        return True

    async def _write_urgent(self, entries: Sequence[Entry]) -> bool:
        """Write entries before all others; return whether they are durable. False: the journal has failed or ends."""
        if not entries:
            return True
        if self._closing or self._failure is not None:
            for entry in entries:
                self._internal.pop(entry, None)
            return False
        last, done = entries[-1], trio.Event()
        noted = self._internal.get(last)

        def settled() -> None:
            if noted is not None:
                noted()
            done.set()

        self._internal[last] = settled
        self._urgent += entries
        self._admission.pending_bytes += sum(entry.size for entry in entries)
        self._disk_lane.wake()
        self._keeper.announce()
        await done.wait()
        return self.failure is None and last.sequence >= 0

    @property
    def noted_revision(self) -> int:
        """The highest metadata revision given to :meth:`note_metadata`; written to each new file."""
        return self._noted_revision

    def note_metadata(self, revision: int, settled: Callable[[], None] | None = None) -> None:
        """Record that the metadata have reached a revision, which is durable: they must never fall behind it.

        It is written with the next commit, or by itself; nothing waits for it. An entry that is submitted
        later does not reach the disk before it.

        Args:
            revision: the metadata revision.
            settled: called when the record is durable, or can no longer become so.
        """
        if revision <= self._noted_revision and settled is None:
            return
        self._noted_revision = revision = max(revision, self._noted_revision)
        if self._closing or self._failure is not None or not self._running:
            if settled is not None:
                settled()
            return
        payload = METADATA_ENTRY.pack(self._keeper.identity, revision)
        waiting = self._noting
        if waiting is not None and waiting.sequence < 0 and settled is None:
            waiting.buffers = (payload,)  # not framed yet, so it still precedes later entries
            return
        entry = Entry(EntryType.METADATA, NO_TOPIC, Durability.DISK, (payload,))

        def done() -> None:
            if entry.sequence >= 0 and self._failure is None:
                self._told_revision = max(self._told_revision, METADATA_ENTRY.unpack(entry.buffers[0])[1])
            if settled is not None:
                settled()

        self._internal[entry] = done
        if settled is None:
            self._noting = entry
        self.submit(entry)

    @property
    def told_revision(self) -> int:
        """The highest metadata revision recorded on disk; the next start requires it."""
        return self._told_revision

    def proven(self) -> tuple[int, int]:
        """Return the file last synced, and the sequence up to which everything is synced: they never vanish."""
        return self._synced_file, self._watermark

    def forget_file(self, file: JournalFile) -> None:
        """Drop all cached data of a file."""
        self._reader.forget(file)

    async def _sync_rest(self) -> None:
        while self._unsynced:
            await self._sync_closed(self._disk_lane)
        await self._sync_active()

    async def _sync_active(self) -> None:
        file = self._keeper.active
        if file.end and file.last_sequence > self._watermark:
            await self._write(file, file.end, [], sync=True, sequence=file.last_sequence)

    async def _write_closing_block(self) -> None:
        """After a clean end, record for the next start that everything was synced, and the metadata revision."""
        file = self._keeper.active
        entry = Entry(
            EntryType.METADATA,
            NO_TOPIC,
            Durability.DISK,
            (METADATA_ENTRY.pack(self._keeper.identity, self._noted_revision),),
        )
        if not file.end or file.room(margin=True) < _framed(entry):
            return
        self._sequence += 1
        buffers, _ = encode_block(
            (entry,), file_id=file.file_id, position=file.end, sequence=self._sequence, watermark=self._watermark
        )
        await self._write(file, file.end, buffers, sync=True, sequence=self._sequence)

    # --- Needed data ---

    def drop_topic(self, topic_id: TopicId) -> None:
        """Release all data of a topic."""
        if self._keeper.files.drop_topic(topic_id):
            self._keeper.want_recycling()
        self._keeper.files_released()

    def release(self, topic_id: TopicId, up_to_offset: Offset) -> None:
        """Release a topic's batches below ``up_to_offset`` (they are sealed elsewhere, or expired)."""
        if self._keeper.files.release(topic_id, up_to_offset):
            self._keeper.want_recycling()
        self._keeper.files_released()

    def stop_topic(self, topic_id: TopicId) -> None:
        """Keep the data of a topic for good: it is damaged, takes no more batches, and cannot be sealed.

        Files that hold no other needed data no longer count against ``journal_max_bytes`` (up to as much again);
        otherwise one stopped topic would make all topics wait for space.
        """
        self._keeper.files.stop_topic(topic_id)
        self._keeper.files_released()

    def is_live(self, file_id: int) -> bool:
        """Return whether a file is (still) part of the log."""
        return self._keeper.files.get(file_id) is not None

    def stored_bytes(self, topic_id: TopicId) -> int:
        """Return the bytes of a topic's batches that are still needed."""
        return sum(file.live[topic_id][0] for file in self._keeper.files if topic_id in file.live)

    @property
    def used_bytes(self) -> int:
        """The part of the disk limit in use, in bytes."""
        return self._admission.used_bytes

    def topics_of_oldest(self, size_bytes: int) -> list[TopicId]:
        """Return the topics whose batches keep the oldest closed files, ``size_bytes`` in total, from being freed."""
        topics: dict[TopicId, None] = {}
        for file in self._keeper.files:
            if size_bytes <= 0 or not file.closed:
                break
            size_bytes -= file.size
            topics |= dict.fromkeys(file.live)
        return list(topics)

    async def window(self, file_id: int, position: int, size: int) -> tuple[bytes, int]:
        """Read at least ``size`` bytes of a file; see :meth:`JournalReader.window`."""
        return await self._reader.window(file_id, position, size)

    # --- Introspection ---

    def usage(self) -> JournalUsage:
        """Return the journal's usage and activity."""
        return JournalUsage(
            used_bytes=self._admission.used_bytes,
            limit_bytes=self._limits.journal_max_bytes,
            live_bytes=sum(size for file in self._keeper.files for size, _ in file.live.values()),
            pending_bytes=self._admission.pending_bytes,
            files=len(self._keeper.files),
            spare_files=self._keeper.spare_count,
            commits=self._commits,
            syncs=self._syncs,
            sync_time_s=self._sync_time_s,
            sequence=self._sequence,
            watermark=self._watermark,
            disk_full=self._keeper.disk_full,
            stranded_topics=len(self._keeper.files.stranded),
            stranded_bytes=sum(size for size, _ in self.stranded().values()) if self._keeper.files.stranded else 0,
        )


def _framed(*entries: Entry) -> int:
    """Return the length of a block with only these entries."""
    return BLOCK_HEADER_SIZE + sum(ENTRY_HEADER_SIZE + entry.size for entry in entries)


def _nothing() -> None:
    """Callback that does nothing."""


async def _at_once() -> None:
    """Awaitable callback that does nothing."""


def _refuse_commit(entries: Sequence[Entry], error: DanubeError | None) -> None:
    raise InternalError(f"{len(entries)} journal entries settled ({error}), but on_commit was never set")
