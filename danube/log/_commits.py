"""Commits of the journal: which entries form the next block, where it goes, and what has settled. Pure.

Entries wait in two *lanes*, one for those that must be synced and one for those that must only be written. Each lane
has at most one block in flight. What it does next (:meth:`Commits.next`), the first that applies:

1. The synced lane syncs closed files whose end was written without a sync, in their order. Later blocks build on them.
2. The synced lane writes FREED entries, all in one block. They may use the margin of a file, because they are what
   releases space (:data:`~danube.log._files.FREED_MARGIN`).
3. The synced lane writes snapshots and tombstones: before other entries, and to files that those may not use.
4. A lane writes its queue, as far as it fits into the file and into ``journal_commit_bytes``; an entry is never split,
   and one that is larger than that goes by itself.
5. The synced lane syncs the active file, if that is waited for.

What does not fit into the active file waits until the log can continue in another one. While the synced lane waits for
a file, it syncs on demand: the task that wants that may be the one that frees space.

Positions and sequences are assigned in the order of these decisions, so each has to be written at once, without a wait
in between. The last sequence known to be synced is the *watermark*; each block carries it.

A block settles when it was written, or synced if its lane is. From a failure on nothing is written, and nothing more
is acknowledged: after a failed sync the kernel may have dropped the pages that it could not write.
"""

from __future__ import annotations

import enum
import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from danube.log._files import FREED_MARGIN, JournalFile
from danube.log._quota import Quota
from danube.log._stock import FileStock, Orders
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    ENTRY_HEADER_SIZE,
    FILE_HEADER_SIZE,
    METADATA_ENTRY,
    TERMINATOR,
    Entry,
    EntryType,
    block_size,
    encode_block,
)
from danube.metrics.histogram import COUNT_BOUNDS, Histogram
from danube.model.batch import STAMP_SIZE
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    JournalFencedError,
    MessageTooLargeError,
    UnavailableError,
)
from danube.model.ids import NO_TOPIC, TopicId
from danube.model.limits import Limits
from danube.model.policies import Durability

__all__ = ["Commits", "Lane", "Pause", "Write", "check_file_size"]

_FILE_OVERHEAD: Final = (
    FILE_HEADER_SIZE + BLOCK_HEADER_SIZE + ENTRY_HEADER_SIZE + STAMP_SIZE + len(TERMINATOR) + FREED_MARGIN
)
_EWMA_WEIGHT: Final = 0.1
_OWN: Final = frozenset({EntryType.FREED, EntryType.METADATA, EntryType.SNAPSHOT, EntryType.TOMBSTONE})


def check_file_size(file_size: int, limits: Limits) -> None:
    """Check that a file can hold the largest batch.

    Raises:
        ConfigurationError: it cannot.
    """
    if file_size < limits.max_batch_bytes + _FILE_OVERHEAD:
        raise ConfigurationError(
            f"journal files of {file_size} bytes cannot hold a batch of max_batch_bytes = {limits.max_batch_bytes}; "
            f"raise the file size to at least {limits.max_batch_bytes + _FILE_OVERHEAD} or lower the limit"
        )


class Lane:
    """A queue of entries."""

    __slots__ = ("commits", "in_flight_sequence", "queue", "sync")

    def __init__(self, *, sync: bool) -> None:
        self.sync = sync
        self.commits = 0
        """Blocks written."""
        self.queue: deque[Entry] = deque()
        self.in_flight_sequence = 0
        """Sequence of the block being written, 0 for none."""


class Write(NamedTuple):
    """To be written at once; then call :meth:`Commits.done`. Without buffers: to be synced."""

    file: JournalFile
    position: int
    buffers: Sequence[bytes]
    sync: bool
    sequence: int
    """When it is synced, everything up to this sequence is."""
    lane: Lane | None = None
    """Of the block, None if it holds nothing that was submitted."""
    entries: Sequence[Entry] = ()
    size: int = 0
    """Bytes of the entries."""
    end: int = 0
    """Of the block."""


class Pause(enum.Enum):
    """Why a lane writes nothing now."""

    IDLE = enum.auto()
    """Nothing is queued."""
    FILE = enum.auto()
    """What is queued waits for another file."""
    URGENT_FILE = enum.auto()
    """The same, and it is what frees files."""
    ROLL = enum.auto()
    """The log has to continue in another file: call :meth:`Commits.roll`."""
    END = enum.auto()
    """Nothing is queued, and nothing more will be."""


class Commits:
    """What is queued, in flight and settled; see the module.

    Args:
        limits: ``journal_commit_bytes`` is used.
        file_size: bytes of one file.
        stock: the files.
        quota: told of the bytes that are pending.

    Attributes:
        disk_lane, os_lane: for entries that must be synced, and for the others.
        sequence: the last one assigned.
        watermark: the last one known to be synced.
        synced_file: id of the file that was last synced.
        commits, syncs, sync_time_s: figures: numbers, and the moving average of write and sync together.
        sync_durations: how long writes with a sync took, in seconds.
        commit_sizes: entries of blocks.
        noted_revision: the highest metadata revision known to be durable; written to each new file.
        told_revision: the highest one that is recorded on disk; the next start requires it.
        failure: the error that ended everything.
        running: entries of the journal itself are written.
        closing: nothing more is accepted.
    """

    def __init__(self, limits: Limits, file_size: int, stock: FileStock, quota: Quota) -> None:
        self._commit_bytes = limits.journal_commit_bytes
        self._file_size = file_size
        self.capacity = file_size - FILE_HEADER_SIZE - len(TERMINATOR) - FREED_MARGIN
        """Bytes of the longest block that any file can hold."""
        self._stock = stock
        self._quota = quota
        self.disk_lane = Lane(sync=True)
        self.os_lane = Lane(sync=False)
        self.sequence = 0
        self.watermark = 0
        self.synced_file = 0
        self._sync_wanted = 0
        self._unsynced: deque[JournalFile] = deque()
        self._freed: deque[Entry] = deque()
        self._urgent: deque[Entry] = deque()
        self._own: dict[Entry, Callable[[], None]] = {}
        """The journal's own entries that something waits for, and what is called when they have settled."""
        self.noted_revision = 0
        self.told_revision = 0
        self._noting: Entry | None = None
        self.failure: DanubeError | None = None
        self.running = False
        self.closing = False
        self.commits = 0
        self.syncs = 0
        self.sync_time_s = 0.0
        self.sync_durations = Histogram()
        self.commit_sizes = Histogram(COUNT_BOUNDS)

    def adopt(self, sequence: int, file_id: int, revision: int) -> None:
        """Take over the end of the log that recovery found, which is synced, and the revision recorded there."""
        self.sequence = self.watermark = sequence
        self.synced_file = file_id
        self.told_revision = revision

    # --- What is queued ---

    def submit(self, entry: Entry) -> Lane:
        """Queue an entry; return its lane.

        Raises:
            MessageTooLargeError: larger than a journal file.
            JournalFencedError, UnavailableError: the journal accepts no more entries.
        """
        if self.failure is not None:
            raise self.failure
        if self.closing:
            raise UnavailableError("the journal is closing; nothing was written")
        if entry.size + ENTRY_HEADER_SIZE + BLOCK_HEADER_SIZE > self.capacity:
            raise MessageTooLargeError(
                f"journal entry of {entry.size} bytes is larger than a journal file of {self._file_size} bytes"
            )
        lane = self.disk_lane if entry.durability is Durability.DISK else self.os_lane
        lane.queue.append(entry)
        self._quota.pending_bytes += entry.size
        return lane

    def is_ending(self) -> bool:
        """Return whether nothing more is accepted."""
        return self.closing or self.failure is not None

    def free(self, payload: bytes, settled: Callable[[], None]) -> Entry | None:
        """Queue a FREED entry; return it, None if the journal is ending. ``settled`` is called in either case later."""
        if self.is_ending():
            return None
        # With the metadata revision that made it true: the entry that records that revision may have to wait for a
        # file.
        entry = Entry(EntryType.FREED, NO_TOPIC, Durability.DISK, (payload,))
        self._own[entry] = settled
        self._freed += (self._metadata_entry(), entry)
        self._quota.pending_bytes += entry.size + METADATA_ENTRY.size
        return entry

    def write_urgent(self, entries: Sequence[Entry], settled: Callable[[], None]) -> Entry | None:
        """Queue snapshots and tombstones; return the last one, None if the journal is ending (then all are dropped).

        Args:
            entries: at least one.
            settled: called when the last one has settled.
        """
        last = entries[-1]
        if self.is_ending():
            for entry in entries:
                self._own.pop(entry, None)
            return None
        noted = self._own.get(last)

        def both() -> None:
            if noted is not None:
                noted()
            settled()

        self._own[last] = both
        self._urgent += entries
        self._quota.pending_bytes += sum(entry.size for entry in entries)
        return last

    def tombstone(self, topic_id: TopicId, horizon: int | None = None) -> Entry:
        """Return the tombstone of a deleted topic.

        Args:
            topic_id: the topic.
            horizon: older files, up to this one, may hold its entries: the tombstone is written again, and left out if
                the topic has returned meanwhile. None: the topic is deleted now.
        """
        entry = Entry(EntryType.TOMBSTONE, topic_id, Durability.DISK, (), horizon)

        def written() -> None:
            file = self._stock.files.get(entry.file)
            if file is not None:
                self._stock.files.bury(topic_id, file, horizon)

        self._own[entry] = written
        return entry

    def note_metadata(self, revision: int, settled: Callable[[], None] | None = None) -> bool:
        """Record that the metadata have reached a revision, which is durable; return whether an entry was queued.

        Notes gather in one entry while it waits. An entry that is submitted later does not reach the disk before it.
        """
        if revision <= self.noted_revision and settled is None:
            return False
        self.noted_revision = max(revision, self.noted_revision)
        if self.is_ending() or not self.running:
            if settled is not None:
                settled()
            return False
        entry = self._metadata_entry()
        waiting = self._noting
        if waiting is not None and waiting.sequence < 0 and settled is None:
            waiting.buffers = entry.buffers  # not framed yet, so it still precedes later entries
            return False

        def done() -> None:
            if entry.sequence >= 0 and self.failure is None:
                self.told_revision = max(self.told_revision, METADATA_ENTRY.unpack(entry.buffers[0])[1])
            if settled is not None:
                settled()

        self._own[entry] = done
        if settled is None:
            self._noting = entry
        self.submit(entry)
        return True

    def _metadata_entry(self) -> Entry:
        payload = METADATA_ENTRY.pack(self._stock.identity, self.noted_revision)
        return Entry(EntryType.METADATA, NO_TOPIC, Durability.DISK, (payload,))

    def want_sync(self, sequence: int) -> None:
        """Have everything up to a sequence synced that was only written."""
        self._sync_wanted = max(self._sync_wanted, sequence)

    # --- What is written ---

    def next(self, lane: Lane) -> Write | Pause:
        """Return what a lane does next; it has no block in flight."""
        freed: deque[Entry] | tuple[()] = ()
        queue = lane.queue
        if lane.sync:
            if self._unsynced and (write := self._sync_closed()) is not None:
                return write
            self._drop_stale()
            freed = self._freed
            queue = self._urgent or queue
        if not freed and not queue:
            if lane.sync and self._sync_wanted > self.watermark and (write := self._sync_active()) is not None:
                return write
            return Pause.END if self.closing else Pause.IDLE
        active = self._stock.active
        fits = block_size(freed) <= active.room(margin=True) if freed else block_size((queue[0],)) <= active.room()
        if not fits:
            frees = bool(freed) or queue is self._urgent
            if self._stock.can_roll(urgent=frees):
                return Pause.ROLL
            if lane.sync and self._sync_wanted > self.watermark and (write := self._sync_active()) is not None:
                return write
            return Pause.URGENT_FILE if frees else Pause.FILE
        if freed:
            entries = list(freed)
            freed.clear()
            return self._block(lane, active, entries, sum(entry.size for entry in entries))
        return self._block(lane, active, *self._take(queue, active))

    def roll(self) -> Orders:
        """Continue in another file; :meth:`FileStock.can_roll` is true."""
        full = self._stock.active
        orders = self._stock.roll()
        if full.last_sequence > self.watermark:
            self._unsynced.append(full)
        return orders

    @property
    def has_unsynced(self) -> bool:
        """Whether the end of a closed file has to be synced."""
        return bool(self._unsynced)

    def last_sync(self) -> Write | None:
        """Return what is to be synced yet at the end, one after the other; None when everything is."""
        return self._sync_closed() or self._sync_active()

    def closing_block(self) -> Write | None:
        """Return the last block: it records that everything was synced, and the metadata revision. None: no room."""
        file = self._stock.active
        entry = self._metadata_entry()
        if not file.end or file.room(margin=True) < block_size((entry,)):
            return None
        self.sequence += 1
        buffers, _ = encode_block(
            (entry,), file_id=file.file_id, position=file.end, sequence=self.sequence, watermark=self.watermark
        )
        return Write(file, file.end, buffers, True, self.sequence)

    def _is_stale(self, entry: Entry) -> bool:
        """Return whether this is a tombstone, written again, whose topic has returned: it would void what is there."""
        relocated = entry.type is EntryType.TOMBSTONE and entry.owner is not None
        return relocated and entry.topic_id not in self._stock.files.buried

    def _drop_stale(self) -> None:
        """Drop tombstones that are next and stale; what was queued before them has settled."""
        while self._urgent and self._is_stale(self._urgent[0]):
            entry = self._urgent.popleft()
            self.settle((entry,), entry.size)

    def _take(self, queue: deque[Entry], file: JournalFile) -> tuple[list[Entry], int]:
        """Take the entries that fit into the file and into one block, and note them; return them, and their bytes."""
        room = min(file.room(), max(self._commit_bytes, block_size((queue[0],))))
        room -= BLOCK_HEADER_SIZE
        entries: list[Entry] = []
        size = 0
        urgent = queue is self._urgent
        note = self._stock.files.note
        while queue:
            entry = queue[0]
            room -= ENTRY_HEADER_SIZE + entry.size
            if room < 0 or (urgent and self._is_stale(entry)):
                break
            size += entry.size
            entries.append(queue.popleft())
            if entry.type is EntryType.BATCH:
                file.count_batch(entry.topic_id, entry.size, entry.end_offset)
            elif entry.type is EntryType.RAFT:
                file.count_batch(entry.topic_id, entry.size, entry.end_offset)
                continue
            if entry.topic_id and entry.type is not EntryType.TOMBSTONE:
                note(file, entry.topic_id, entry.type)
        return entries, size

    def _block(self, lane: Lane, file: JournalFile, entries: list[Entry], size: int) -> Write:
        self.sequence = sequence = self.sequence + 1
        fresh = not file.end
        position = file.end or FILE_HEADER_SIZE
        buffers, length = encode_block(
            entries, file_id=file.file_id, position=position, sequence=sequence, watermark=self.watermark
        )
        write_at = position
        if fresh:
            buffers.insert(0, self._stock.header(file, sequence, self.watermark, self.noted_revision))
            write_at = 0
        file.end = end = position + length
        assert end + len(TERMINATOR) <= self._file_size
        assert sequence > file.last_sequence
        file.last_sequence = sequence
        self._stock.grown()
        lane.in_flight_sequence = sequence
        return Write(file, write_at, buffers, lane.sync, sequence, lane, entries, size, end)

    def _sync_closed(self) -> Write | None:
        while self._unsynced:
            file = self._unsynced[0]
            if file.last_sequence > self.watermark:
                return Write(file, file.end, (), True, file.last_sequence)
            self._unsynced.popleft()
        return None

    def _sync_active(self) -> Write | None:
        file = self._stock.active
        if file.end and file.last_sequence > self.watermark:
            return Write(file, file.end, (), True, file.last_sequence)
        return None

    # --- What has settled ---

    def done(self, write: Write, taken_s: float) -> bool:
        """Note a write that has returned, and how long it took; return whether the watermark has moved.

        Its entries have to be settled next (:meth:`settle`).
        """
        moved = False
        if write.sync:
            if write.sequence > self.watermark:
                self.watermark = write.sequence
                self.synced_file = write.file.file_id
                moved = True
            self.syncs += 1
            self.sync_durations.observe(taken_s)
            self.sync_time_s += _EWMA_WEIGHT * (taken_s - self.sync_time_s) if self.syncs > 1 else taken_s
        if write.lane is not None:
            write.lane.in_flight_sequence = 0
            file = write.file
            file.written = max(file.written, write.end)
            self.commits += 1
            write.lane.commits += 1
            self.commit_sizes.observe(len(write.entries))
        return moved

    def settle(self, entries: Sequence[Entry], size: int) -> Sequence[Entry]:
        """Count entries as settled; return those that were submitted, which are to be reported in this order."""
        self._quota.pending_bytes -= size
        own = self._own
        if own:
            for entry in entries:
                if entry in own:
                    own.pop(entry)()
            entries = [entry for entry in entries if entry.type not in _OWN]
        return entries

    def settled_sequence(self) -> int:
        """Return the last sequence up to which all entries have been reported."""
        open_ones = [lane.in_flight_sequence for lane in (self.disk_lane, self.os_lane) if lane.in_flight_sequence]
        return min(open_ones) - 1 if open_ones else self.sequence

    def is_durable(self, entry: Entry) -> bool:
        """Return whether an entry that has settled is on the disk."""
        return self.failure is None and entry.sequence >= 0

    def fail(self, error: OSError, where: str) -> DanubeError:
        """Note an error of the disk, which is final; return the error that everything pending settles with."""
        if self.failure is None:
            hint = "free space on the disk" if error.errno == errno.ENOSPC else "check the disk"
            self.failure = JournalFencedError(
                f"{where}: {error.strerror or error}; nothing more is acknowledged. "
                f"Then {hint} and start the broker again: it recovers what was acknowledged"
            )
        return self.failure

    def rest(self) -> Iterator[list[Entry]]:
        """Take all that is queued and will never be written, in groups to be settled."""
        for queue in (self.os_lane.queue, self._freed, self._urgent, self.disk_lane.queue):
            rest = list(queue)
            queue.clear()
            if rest:
                yield rest
