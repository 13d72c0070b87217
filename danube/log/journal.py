"""The journal: one write-ahead log for all topics of a broker, with group commit.

Entries are submitted without waiting. Two lanes write them to disk, one for entries that must be synced and one for
those that must only be written, so that a slow sync never delays the acknowledgement of a topic that does not need
it. Each lane repeats one step: take all queued entries, frame them as one commit block, write it (and sync it), and
report all of them with one callback. There is no timer: entries that arrive during one write form the next block.

What a lane does next, and where a block goes, is decided by :mod:`danube.log._commits`; which files are prepared and
freed, by :mod:`danube.log._stock`; what is admitted, by :mod:`danube.log._quota`; what snapshots take, by
:mod:`danube.log._states`. Here are the tasks that carry it out, on the disk.

Positions and commit sequences are assigned in the order of the calls to ``Disk.write``, and the disk keeps that order,
so everything before a returned write survives the death of the process, and everything before a returned sync
survives a power loss.

Two more tasks keep file handling off the hot path: one prepares the next file ahead of time, one
recycles files without needed data. Recovery is in :mod:`danube.log.recovery`.

An I/O error is final. Everything pending settles with :class:`JournalFencedError`, ``run`` raises it, and the broker
exits: after a failed sync the kernel may have dropped the pages that it could not write, so a retry is pointless.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from danube.log._admission import Admission
from danube.log._carrying import carry_out
from danube.log._commits import Commits, Lane, Pause, Write, check_file_size
from danube.log._files import JournalFile
from danube.log._keeper import FileKeeper
from danube.log._states import StateBook
from danube.log._stock import FileStock
from danube.log.disk import Disk
from danube.log.format import Entry
from danube.log.patience import PatientDisk
from danube.log.reader import JournalReader
from danube.log.recovered import Recovered, Standing, Visitor
from danube.log.recovery import Recovery
from danube.log.usage import JournalUsage, usage_of
from danube.metrics.histogram import Histogram
from danube.model.errors import DanubeError, InternalError, UnavailableError
from danube.model.ids import Offset, TopicId
from danube.model.limits import MIB, Limits
from danube.model.log_events import log_event

__all__ = ["Journal"]

_log = logging.getLogger("danube.journal")

_RECOVERY: Final = "recovery of the journal"

OnCommit = Callable[[Sequence[Entry], DanubeError | None], None]


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
        check_file_size(file_size, limits)
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
        self._clock = clock
        self._admission = Admission(limits)
        self._stock = FileStock(limits, file_size, self._admission)
        self._files = self._stock.files
        self._commits = Commits(limits, file_size, self._stock, self._admission)
        self._states = StateBook(limits.journal_max_bytes, self._commits.capacity)
        self._keeper = FileKeeper(disk, self._stock, self._admission, self)
        self._reader = JournalReader(disk, self._files)
        self._idle: dict[bool, trio.Event] = {}
        """By whether they sync: the lanes whose tasks wait for entries."""
        self._synced: trio.Event | None = None
        """Set when the watermark moves, or can no longer move."""
        self._recovery: Recovery | None = None
        self._ended = trio.Event()

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
        recovery = Recovery(self._files, self._file_size)
        try:
            standing = await carry_out(self._patient_disk(), recovery.survey())
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
        commits = self._commits
        recovery.metadata = commits.noted_revision = max(recovery.metadata, commits.noted_revision)
        try:
            recovered = await carry_out(self._patient_disk(), recovery.run(visitor, synced))
            await self._keeper.adopt(recovery)
        except OSError as error:
            raise self._fence(error, _RECOVERY) from error
        commits.adopt(recovery.last_sequence, recovery.active.file_id, recovery.metadata)
        self._states.adopt(recovery.snapshots)
        self._recovery = None
        self.recovered = recovered
        return recovered

    def _patient_disk(self) -> Disk:
        return PatientDisk(self._disk, _RECOVERY, self._limits.start_descriptor_wait_s)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit submitted entries until :meth:`aclose` (or cancellation, which settles the rest with an error).

        Raises:
            JournalFencedError: an I/O error. The process should exit and recover on its next start.
        """
        assert self.recovered is not None
        commits = self._commits
        assert not commits.running
        commits.running = True
        if commits.noted_revision > commits.told_revision:
            self.note_metadata(0, _nothing)  # changes since the header was written
        try:
            async with trio.open_nursery() as helpers:
                helpers.start_soon(self._keep_files, self._keeper.prepare_files)
                helpers.start_soon(self._keep_files, self._keeper.recycle_files)
                task_status.started()
                async with trio.open_nursery() as lanes:
                    lanes.start_soon(self._run_lane, commits.os_lane)
                    lanes.start_soon(self._run_lane, commits.disk_lane)
                helpers.cancel_scope.cancel()
            while (write := commits.last_sync()) is not None:
                await self._write(write)
            await self.before_end()
            if (write := commits.closing_block()) is not None:
                await self._write(write)
        except BaseExceptionGroup as group:
            # Lanes and helpers fail together; the fence is the cause to report.
            if commits.failure is not None and group.split(trio.Cancelled)[1] is not None:
                raise commits.failure from group
            raise
        finally:
            commits.closing = True
            error = commits.failure or UnavailableError("the journal is closed; nothing was written")
            for rest in commits.rest():
                self._settle(rest, sum(entry.size for entry in rest), error)
            self._admission.close(commits.failure)
            self._ended.set()
            self._tell_synced()

    async def aclose(self) -> None:
        """Commit pending entries and end :meth:`run`. If cancelled, the journal still ends by itself."""
        self._commits.closing = True
        self._wake(sync=False)
        self._wake(sync=True)
        if self._commits.running:
            await self._ended.wait()

    @property
    def failure(self) -> DanubeError | None:
        """The error that fenced the journal."""
        return self._commits.failure

    # --- Writing ---

    def submit(self, entry: Entry) -> None:
        """Queue an entry; ``on_commit`` reports it. Never waits: publishes call :meth:`admit` before.

        Raises:
            MessageTooLargeError: larger than a journal file.
            JournalFencedError, UnavailableError: the journal accepts no more entries.
        """
        idle = self._idle.pop(self._commits.submit(entry).sync, None)
        if idle is not None:
            idle.set()

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
            if self._stock.disk_full:
                self._keeper.want_file()  # disk space may have been freed in the meantime: try again
            await self._admission.admit(size)

    @property
    def sequence(self) -> int:
        """The last sequence assigned; every settled entry has this one or an earlier one."""
        return self._commits.sequence

    async def sync(self, sequence: int) -> None:
        """Return when everything up to a sequence survives a power loss, including entries that only had to be written.

        Returns at once if that is so already, and costs one sync of the disk at most. May be cancelled.

        Args:
            sequence: the value of :attr:`sequence` when the last entry in question had settled.

        Raises:
            JournalFencedError, UnavailableError: the journal ended before.
        """
        commits = self._commits
        assert sequence <= commits.sequence
        while sequence > commits.watermark:
            if commits.failure is not None:
                raise commits.failure
            if self._ended.is_set():
                raise UnavailableError("the journal is closed; its end was not synced")
            commits.want_sync(sequence)
            self._wake(sync=True)
            self._keeper.announce()  # the lane may wait for a file
            if self._synced is None:
                self._synced = trio.Event()
            await self._synced.wait()

    def _tell_synced(self) -> None:
        if self._synced is not None:
            self._synced.set()
            self._synced = None

    def _wake(self, *, sync: bool) -> None:
        """Let the task of a lane check its queue."""
        idle = self._idle.pop(sync, None)
        if idle is not None:
            idle.set()

    async def _run_lane(self, lane: Lane) -> None:
        commits, keeper = self._commits, self._keeper
        while True:
            step = commits.next(lane)
            if isinstance(step, Write):
                await self._write(step)  # calls the disk at once: sequences and the order of writes agree
            elif step is Pause.IDLE:
                idle = self._idle[lane.sync] = trio.Event()
                await idle.wait()
            elif step is Pause.ROLL:
                self._roll()
            elif step is Pause.END:
                return
            else:
                keeper.follow(self._stock.note_waiting(urgent=step is Pause.URGENT_FILE))
                await keeper.news.wait()

    def _roll(self) -> None:
        self._keeper.follow(self._commits.roll())
        for rolled in self.on_roll:
            rolled()
        if self._commits.has_unsynced:
            self._wake(sync=True)

    async def _write(self, write: Write) -> None:
        """Write and settle, or fence on any error."""
        commits, file = self._commits, write.file
        started = self._clock()
        file.in_flight += 1
        try:
            await self._disk.write(file.name, write.position, write.buffers, sync=write.sync)
        except OSError as error:
            failure = self._fence(error, f"journal file {file.name}")
            self._settle(write.entries, write.size, failure)
            raise failure from error
        finally:
            file.in_flight -= 1
        if commits.failure is not None:
            # The other lane failed while this write was in flight; an os write was done, but it must not be
            # acknowledged any more.
            self._settle(write.entries, write.size, commits.failure)
            raise commits.failure
        if commits.done(write, self._clock() - started if write.sync else 0.0):
            self._tell_synced()
        if write.entries:
            self._settle(write.entries, write.size, None)
            if self._stock.waits_for_commits:
                self._keeper.want_recycling()

    def _settle(self, entries: Sequence[Entry], size: int, error: DanubeError | None) -> None:
        entries = self._commits.settle(entries, size)
        if entries:
            self.on_commit(entries, error)
        self._admission.wake()

    def _fence(self, error: OSError, where: str) -> DanubeError:
        known = self._commits.failure
        failure = self._commits.fail(error, where)
        if known is None:
            _log.critical("%s", failure, extra=log_event("journal.fenced"))
            self._admission.close(failure)
        return failure

    async def _keep_files(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except OSError as error:
            raise self._fence(error, "the directory of the journal") from error

    # --- Interface of the file keeper ---

    def settled_sequence(self) -> int:
        """Return the last sequence up to which all entries have been reported."""
        return self._commits.settled_sequence()

    async def write_freed(self, payload: bytes) -> bool:
        """Write a FREED entry; return whether it is durable. False: the journal is ending."""
        done = trio.Event()
        return await self._durable(self._commits.free(payload, done.set), done)

    async def _durable(self, entry: Entry | None, settled: trio.Event) -> bool:
        """Have an entry written that was queued, before all others; return whether it is durable."""
        if entry is None:
            return False
        self._wake(sync=True)
        self._keeper.announce()  # the lane may wait for a file, and this entry need not
        await settled.wait()
        return self._commits.is_durable(entry)

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
            return self._states.cost(self._snapshot(topic_id))
        return self._states.usual_cost(topic_id)

    def expect_states(self, topic_ids: Iterable[TopicId]) -> None:
        """Count the states of topics whose snapshots are not known yet; see :meth:`check_states`."""
        self._states.expect(topic_ids)

    def check_states(self, what: str, topics: int = 0) -> None:
        """Check that the states of all topics take at most a quarter of the journal.

        What a topic has grown by since its last snapshot is not counted; it is in the journal otherwise.

        Args:
            what: is to be added, for the message.
            topics: how many new topics or partitions it is.

        Raises:
            LimitExceededError: with it they would take more.
        """
        self._states.check(what, topics)

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
            raise self.failure or UnavailableError("the journal is closing; its snapshots were not written")
        self._files.claim(states)
        self._keeper.follow(self._stock.released())

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
            raise self.failure or UnavailableError("the journal is closing; the deletion of a topic was not noted")
        self._keeper.want_recycling()

    def strand(self, topic_ids: Collection[TopicId]) -> None:
        """Keep all entries of topics that are not known to the metadata."""
        self._files.strand(topic_ids)
        self._keeper.follow(self._stock.released())

    def stranded(self) -> dict[TopicId, tuple[int, Offset]]:
        """Return the stranded topics: the bytes of their batches, and the end of the newest one (0: no batches)."""
        return self._files.stranded_batches()

    def is_buried(self, topic_id: TopicId) -> bool:
        """Return whether all that the journal holds of a topic is void: its tombstone is behind it."""
        return topic_id in self._files.buried

    def topic_ids(self) -> set[TopicId]:
        """Return all topics with entries that are kept."""
        return self._files.topic_ids()

    def _tombstone(self, topic_id: TopicId, horizon: int | None = None) -> Entry:
        self._states.forget(topic_id)
        return self._commits.tombstone(topic_id, horizon)

    async def _write_states(self, states: Iterator[tuple[TopicId, bytes]]) -> bool:
        """Write snapshots, some at a time; return whether all are durable."""
        while True:
            # No await until they are queued: they contain the effects of all that has settled.
            group = self._states.group(states, self._commits.settled_sequence())
            if not await self._write_urgent(group.entries):
                return False
            self._files.cover(group.covers)
            if group.is_last:
                return True

    async def _write_urgent(self, entries: Sequence[Entry]) -> bool:
        """Write entries before all others; return whether they are durable. False: the journal has failed or ends."""
        if not entries:
            return True
        done = trio.Event()
        return await self._durable(self._commits.write_urgent(entries, done.set), done)

    @property
    def noted_revision(self) -> int:
        """The highest metadata revision given to :meth:`note_metadata`; written to each new file."""
        return self._commits.noted_revision

    def note_metadata(self, revision: int, settled: Callable[[], None] | None = None) -> None:
        """Record that the metadata have reached a revision, which is durable: they must never fall behind it.

        It is written with the next commit, or by itself; nothing waits for it. An entry that is submitted
        later does not reach the disk before it.

        Args:
            revision: the metadata revision.
            settled: called when the record is durable, or can no longer become so.
        """
        if self._commits.note_metadata(revision, settled):
            self._wake(sync=True)

    @property
    def told_revision(self) -> int:
        """The highest metadata revision recorded on disk; the next start requires it."""
        return self._commits.told_revision

    def proven(self) -> tuple[int, int]:
        """Return the file last synced, and the sequence up to which everything is synced: they never vanish."""
        return self._commits.synced_file, self._commits.watermark

    def forget_file(self, file: JournalFile) -> None:
        """Drop all cached data of a file."""
        self._reader.forget(file)

    # --- Needed data ---

    def drop_topic(self, topic_id: TopicId) -> None:
        """Release all data of a topic."""
        if self._files.drop_topic(topic_id):
            self._keeper.want_recycling()
        self._keeper.follow(self._stock.released())

    def release(self, topic_id: TopicId, up_to_offset: Offset) -> None:
        """Release a topic's batches below ``up_to_offset`` (they are sealed elsewhere, or expired)."""
        if self._files.release(topic_id, up_to_offset):
            self._keeper.want_recycling()
        self._keeper.follow(self._stock.released())

    def stop_topic(self, topic_id: TopicId) -> None:
        """Keep the data of a topic for good: it is damaged, takes no more batches, and cannot be sealed.

        Files that hold no other needed data no longer count against ``journal_max_bytes`` (up to as much again);
        otherwise one stopped topic would make all topics wait for space.
        """
        self._files.stop_topic(topic_id)
        self._keeper.follow(self._stock.released())

    def is_live(self, file_id: int) -> bool:
        """Return whether a file is (still) part of the log."""
        return self._files.get(file_id) is not None

    def stored_bytes(self, topic_id: TopicId) -> int:
        """Return the bytes of a topic's batches that are still needed."""
        return self._files.stored_bytes(topic_id)

    @property
    def used_bytes(self) -> int:
        """The part of the disk limit in use, in bytes."""
        return self._admission.used_bytes

    def topics_of_oldest(self, size_bytes: int) -> list[TopicId]:
        """Return the topics whose batches keep the oldest closed files, ``size_bytes`` in total, from being freed."""
        return self._files.topics_of_oldest(size_bytes)

    async def window(self, file_id: int, position: int, size: int) -> tuple[bytes, int]:
        """Read at least ``size`` bytes of a file; see :meth:`JournalReader.window`."""
        return await self._reader.window(file_id, position, size)

    # --- Introspection ---

    def usage(self) -> JournalUsage:
        """Return the journal's usage and activity."""
        return usage_of(self._stock, self._commits, self._admission, self._limits.journal_max_bytes)

    @property
    def sync_durations(self) -> Histogram:
        """How long writes with a sync took, in seconds."""
        return self._commits.sync_durations

    @property
    def commit_sizes(self) -> Histogram:
        """Entries of the blocks that were written."""
        return self._commits.commit_sizes


def _nothing() -> None:
    """Callback that does nothing."""


async def _at_once() -> None:
    """Awaitable callback that does nothing."""


def _refuse_commit(entries: Sequence[Entry], error: DanubeError | None) -> None:
    raise InternalError(f"{len(entries)} journal entries settled ({error}), but on_commit was never set")
