"""Manages journal files off the hot path: prepares the next file ahead of time, and recycles files no longer needed.

It runs two tasks. One keeps two files ready, zero-filled and under their final names. The other waits for closed files
without needed batches, chooses those that are worth it (:func:`~danube.log.snapshots.worth_freeing`), has snapshots of
the topics in them written, then an entry that they are free, and renames them to spares.

On a full disk these two files are the reserve, which batches may not use: one is for control entries, because
acknowledgements free space, and the last one is for the next recovery, which rewrites the end of the log.

When the reserve is used up as well, commits wait for a file. The entries that free files do not; otherwise no file
could ever be freed. Each file ends with a margin for FREED entries (:data:`~danube.log._files.FREED_MARGIN`). Snapshots
may take further files: up to a quarter of ``journal_max_bytes`` beyond the reserve, and on a full disk the one for the
next recovery, which is replaced by the file that they free. (After a crash between the two, the next start is refused
until there is space for another file; nothing is lost.)

A full table of file descriptors is not a disk error. A new file then waits until a descriptor is available; the disk
keeps some in reserve.
"""

from __future__ import annotations

import errno
import logging
import math
import struct
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import trio

from danube.log._admission import Admission
from danube.log._files import FileTable, JournalFile, spare_name
from danube.log.disk import Disk
from danube.log.format import encode_file_header
from danube.log.recovery import Recovery
from danube.log.snapshots import PRESSED_SHARE, USUAL_SHARE, worth_freeing
from danube.model.descriptors import is_out_of_descriptors
from danube.model.ids import TopicId
from danube.model.limits import Limits

__all__ = ["SNAPSHOT_RATIO", "FileKeeper", "Owner"]

_log = logging.getLogger("danube.journal")

_U64: Final = struct.Struct("<Q")
_RETRY_S: Final = 1.0
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_RESERVED_FILES: Final = 2
_MOST_FREED: Final = 50
"""Most files that one FREED entry names: two entries of this length fit into the margin of a file."""
SNAPSHOT_RATIO: Final = 4
"""Snapshots may take this part of ``journal_max_bytes``: so much beyond the limits, for as long as files are freed."""


class Owner(Protocol):
    """What the keeper needs from its journal."""

    @property
    def recycles(self) -> bool:
        """Whether snapshots can be written, so that files can be freed."""
        ...

    @property
    def noted_revision(self) -> int:
        """The highest metadata revision known to be durable."""
        ...

    def settled_sequence(self) -> int:
        """Return the last sequence up to which all entries have been reported."""
        ...

    def snapshot_cost(self, topic_id: TopicId, *, exact: bool = False) -> int:
        """Return how many bytes the snapshot of a topic takes; not ``exact``: as far as is known without taking it."""
        ...

    async def write_snapshots(self, topic_ids: Collection[TopicId], tombstones: Mapping[TopicId, int]) -> None:
        """Write snapshots of topics, and tombstones with their horizons; return when they are synced.

        A topic that has none stays in its files; so do all if the journal is ending.
        """
        ...

    async def write_freed(self, payload: bytes) -> bool:
        """Write a FREED entry; return whether it is durable."""
        ...

    def forget_file(self, file: JournalFile) -> None:
        """Drop all cached data of a file."""
        ...


class FileKeeper:
    """The files of one journal.

    Attributes:
        files: the live files.
        active: the file being written.
        identity: of the journal.
        disk_full: there is no space for another file.
        news: an event that is set and replaced whenever the result of :meth:`can_roll` may have changed.
        waits_for_commits: files are free as soon as commits in progress settle; then call :meth:`want_recycling`.
    """

    def __init__(self, disk: Disk, limits: Limits, file_size: int, admission: Admission, owner: Owner) -> None:
        self._disk = disk
        self._limits = limits
        self._file_size = file_size
        self._admission = admission
        self._owner = owner
        self.files = FileTable()
        self.active: JournalFile
        self.disk_full = False
        self.waits_for_commits = False
        self._prepared: deque[JournalFile] = deque()
        self._spares: list[str] = []
        self._next_number = 1
        self.identity = 0
        self._free_files = 0
        self._stopped_bytes = 0
        """Bytes of files that do not count against the limit, because only stopped topics need them."""
        self._usable = max(file_size - limits.max_batch_bytes, file_size // 2)
        self.news = trio.Event()
        self._no_descriptor = False
        self._waiting = False
        self._urgent = False
        """Snapshots wait for a file."""
        self._extra_files = 0
        """Files beyond the limits, created for snapshots; as many are removed as soon as files are free."""
        self._prepare_wanted = trio.Event()
        self._recycle_wanted = trio.Event()
        self._warned = False

    async def adopt(self, recovery: Recovery) -> None:
        """Take over the files that recovery produced."""
        self.active = recovery.active
        self._spares = recovery.spares
        self._next_number = recovery.next_number
        self.identity = recovery.identity
        self._note_free(await self._disk.free_bytes() // self._file_size)

    @property
    def spare_count(self) -> int:
        """Number of files beside the live ones."""
        return len(self._spares) + len(self._prepared)

    def want_file(self) -> None:
        """Try (again) to have a file ready."""
        self._prepare_wanted.set()

    def want_recycling(self) -> None:
        """Look for files that are no longer needed."""
        self._recycle_wanted.set()

    def grown(self) -> None:
        """Update the used space after the active file has grown."""
        self._note_space()

    def files_released(self) -> None:
        """Update the used space after a topic has released data or stopped."""
        stopped = min(self.files.stopped_bytes, self._limits.journal_max_bytes)
        if stopped != self._stopped_bytes:
            self._stopped_bytes = stopped
            self._note_space()
            self._prepare_wanted.set()
            self._admission.wake()

    def _note_space(self) -> None:
        """Tell the admission how many bytes are used, and how many are left for batches."""
        self._admission.used_bytes = self.files.closed_bytes - self._stopped_bytes + self.active.end
        # Admitted batches must find room even if no disk space is freed: they cannot be refused any more. Two files are
        # not counted: for control entries, and for the next recovery. The others are not counted fully, because an
        # entry is never split.
        files = self.spare_count + self._free_files - _RESERVED_FILES
        self._admission.space_left = self.active.room() + files * self._usable if files >= 0 else 0

    def header(self, file: JournalFile, sequence: int, watermark: int) -> bytes:
        """Return the header of a file whose first block has the given sequence."""
        older = [item for item in self.files.listed() if item[0] != file.file_id]
        return encode_file_header(
            file.file_id,
            sequence,
            sequence - 1,
            watermark,
            older,
            file_size=file.size,
            identity=self.identity,
            metadata=self._owner.noted_revision,
        )

    def can_roll(self, *, urgent: bool = False) -> bool:
        """Return whether another file is ready to be written; ``urgent``: by entries that free others."""
        if not self._prepared:
            return False
        if urgent:
            return True
        return self.spare_count > self._extra_files and not (self.disk_full and self.spare_count < _RESERVED_FILES)

    def note_waiting(self, *, urgent: bool = False) -> None:
        """Note that a commit waits for a file: have one prepared, and log the reason if that takes long."""
        self._prepare_wanted.set()
        if urgent:
            self._urgent = True
        else:
            self._recycle_wanted.set()  # any gain counts now
        if self._waiting or not (self.disk_full or self._no_descriptor or not self._may_have_another()):
            return
        self._waiting = True
        if self.disk_full:
            why = "the disk of the journal is full; free space on it"
        elif self._no_descriptor:
            why = "the process has no file descriptor left; raise its limit (ulimit -n)"
        else:
            why = (
                f"its {len(self.files)} files use up limits.journal_max_bytes and limits.journal_reserve_bytes; look"
                " for subscriptions that do not acknowledge and storages that cannot be reached, or raise the limits"
            )
        _log.error("the journal waits for a file, and nothing is committed, not even acknowledgements: %s", why)

    def announce(self) -> None:
        """Wake the tasks that wait for :attr:`news`."""
        self.news.set()
        self.news = trio.Event()

    def roll(self) -> None:
        """Continue in the next prepared file; there must be one (:meth:`can_roll`)."""
        self.files.close(self.active)
        self.files_released()
        self._recycle_wanted.set()
        self._urgent = False
        self.active = self._prepared.popleft()
        self.files.add(self.active)
        self._note_space()
        self._prepare_wanted.set()
        self._warn_when_filling()
        if self._waiting:
            self._waiting = False
            _log.warning("the journal continues in another file")

    def _warn_when_filling(self) -> None:
        used, limit = self._admission.used_bytes, self._limits.journal_max_bytes
        filling = used > limit * self._limits.journal_warn_ratio
        if filling and not self._warned:
            _log.warning(
                "the journal uses %d of %d bytes (limits.journal_max_bytes); at the limit publishing waits. "
                "Look for subscriptions that do not acknowledge, or raise the limit",
                used,
                limit,
            )
        self._warned = filling

    async def prepare_files(self) -> None:
        """Task: keep two files ready, the next one and the one that recovery would need."""
        while True:
            self._prepare_wanted = trio.Event()
            self._note_free(await self._disk.free_bytes() // self._file_size)
            self._no_descriptor = False
            while len(self._prepared) < _RESERVED_FILES and self._may_have_another():
                try:
                    await self._prepare_one()
                except OSError as error:
                    if is_out_of_descriptors(error):
                        self._no_descriptor = True
                        _log.error(
                            "no file descriptor is left for the next file of the journal (%s); raise the limit of the"
                            " process (ulimit -n). Retrying in %g s",
                            error.strerror,
                            _RETRY_S,
                        )
                        break
                    if error.errno not in _NO_SPACE:
                        raise
                    self._note_free(0)
            # There is no notification when space or a descriptor becomes available, so waiting tasks poll.
            with trio.move_on_after(_RETRY_S if self.disk_full or self._no_descriptor else math.inf):
                await self._prepare_wanted.wait()

    def _note_free(self, files: int) -> None:
        """Note how many more files the disk has space for."""
        self._free_files = files
        full = not files and not self._spares
        if full and not self.disk_full:
            _log.error("the disk has no space for another journal file: publishing waits, acknowledgements go on")
        if self.disk_full and not full:
            self.announce()  # the last prepared file need not be kept any more
        self.disk_full = full
        self._note_space()
        self._admission.wake()

    def _may_have_another(self) -> bool:
        if self._spares:
            return True
        return self._free_files > 0 and self._within(self._most_bytes(urgent=self._urgent))

    def _within(self, most_bytes: int) -> bool:
        """Return whether another file may be created."""
        return (len(self.files) + len(self._prepared)) * self._file_size < most_bytes

    def _most_bytes(self, *, urgent: bool = False) -> int:
        """Return how many bytes the files may take: all of them, or without those that only ``urgent`` entries use."""
        reserve = max(self._limits.journal_reserve_bytes, self._file_size)
        most = self._limits.journal_max_bytes + self._stopped_bytes + reserve
        if urgent:
            most += max(self._limits.journal_max_bytes // SNAPSHOT_RATIO, self._file_size)
        return most

    async def _prepare_one(self) -> None:
        if self._spares:
            name = self._spares[-1]
        else:
            name = spare_name(self._take_number())
            extra = not self._within(self._most_bytes())
            await self._disk.create(name, self._file_size)
            self._free_files -= 1
            self._extra_files += extra
            self._spares.append(name)
        file = JournalFile(self._take_number(), self._file_size)
        with trio.CancelScope(shield=True):  # bounded: a rename; the list must follow it
            await self._disk.rename(name, file.name)
            self._spares.remove(name)
        # Write to the file only now: if a power loss undid its rename, its blocks would be lost, and its id could be
        # given to another file.
        await self._disk.sync_directory()
        self._prepared.append(file)
        self._note_free(self._free_files)
        self.announce()

    def _take_number(self) -> int:
        """Return a number that no file name has used before."""
        number = self._next_number
        self._next_number += 1
        return number

    async def recycle_files(self) -> None:
        """Task: turn closed files without needed data into spares."""
        owner = self._owner
        while True:
            self._recycle_wanted = trio.Event()
            leaving = self._choose() if owner.recycles else []
            if leaving:
                topic_ids: set[TopicId] = set().union(*(file.topics for file in leaving))
                tombstones = self.files.tombstones_needed(leaving)
                if topic_ids or tombstones:
                    await owner.write_snapshots(topic_ids, tombstones)
                ready = self._free_of_ties(leaving)
                for first in range(0, len(ready), _MOST_FREED):
                    await self._free(ready[first : first + _MOST_FREED])
            settled = owner.settled_sequence()
            self.waits_for_commits = any(file.last_sequence > settled for file in self.files.unneeded())
            await self._recycle_wanted.wait()

    def _choose(self) -> list[JournalFile]:
        """Return the files to be freed now."""
        # Entries that have not settled are in no snapshot yet.
        settled = self._owner.settled_sequence()
        ready = [file for file in self.files.unneeded() if file.last_sequence <= settled]
        pressed = self._waiting or self._admission.used_bytes + self._file_size > self._limits.journal_max_bytes
        share = PRESSED_SHARE if pressed or self.disk_full else USUAL_SHARE
        cost, room = self._owner.snapshot_cost, self._snapshot_room()
        chosen = worth_freeing([(file.size, file.topics) for file in ready], cost, share, room)
        if share == PRESSED_SHARE:
            # Snapshots that are larger than assumed would not fit, and block all others: determine their sizes.
            ready = [ready[index] for index in chosen]
            chosen = worth_freeing([(file.size, file.topics) for file in ready], partial(cost, exact=True), share, room)
        return [ready[index] for index in chosen]

    def _snapshot_room(self) -> int:
        """Return how many bytes of snapshots can certainly be written before files are free."""
        most = self._most_bytes(urgent=True) // self._file_size - len(self.files) - len(self._prepared)
        creatable = max(0, min(self._free_files + len(self._spares), most))
        # The parts of a snapshot are not split, so that a quarter of each file may stay empty.
        return (self.active.room() + (len(self._prepared) + creatable) * self._file_size) * 3 // 4

    def _free_of_ties(self, leaving: Sequence[JournalFile]) -> list[JournalFile]:
        """Return the files whose topics are covered, and whose tombstones are not needed or elsewhere."""
        ready = [file for file in leaving if not file.topics]
        while True:
            needed = self.files.tombstones_needed(ready).keys()
            free = [file for file in ready if needed.isdisjoint(file.tombstones)]
            if len(free) == len(ready):
                return free
            ready = free

    async def _free(self, files: Sequence[JournalFile]) -> None:
        """Write durably that files are no longer needed, and only then remove them from the log."""
        for file in files:
            file.freed = True
        payload = b"".join(_U64.pack(file.file_id) for file in files)
        if not await self._owner.write_freed(payload):
            return
        for file in files:
            name = spare_name(self._take_number())
            with trio.CancelScope(shield=True):  # bounded: a rename; the table must follow it
                self.files.remove(file)
                self._owner.forget_file(file)
                if self._extra_files or file.size != self._file_size:
                    self._extra_files = max(0, self._extra_files - 1)
                    await self._disk.remove(file.name)
                    continue
                await self._disk.rename(file.name, name)
                self._spares.append(name)
        await self._disk.sync_directory()
        self._note_space()
        self._prepare_wanted.set()
        self._warn_when_filling()
        self._admission.wake()
