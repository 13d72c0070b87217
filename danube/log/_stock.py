"""The journal's stock of files: what is prepared, how many there may be, which ones are freed. Pure.

**Ready.** Two files are kept ready, zero-filled and under their final names, so that a commit never waits for one to be
created. A spare is used before a new file is created, and a new one only within the limits and the space of the disk.

**The reserve.** On a full disk these two files are the reserve, which batches may not use: one is for control entries,
because acknowledgements free space, and the last one is for the next recovery, which rewrites the end of the log.

**Behind the reserve.** When it is used up as well, commits wait for a file. The entries that free files do not;
otherwise no file could ever be freed. Each file ends with a margin for FREED entries
(:data:`~danube.log._files.FREED_MARGIN`). Snapshots may take further files: up to a quarter of ``journal_max_bytes``
beyond the reserve, and on a full disk the one for the next recovery, which is replaced by the file that they free.
(After a crash between the two, the next start is refused until there is space for another file; nothing is lost.)

**Freeing.** A closed file without needed batches, of which all commits have settled, is free if that is worth it
(:func:`~danube.log.snapshots.worth_freeing`). First the topics in it get snapshots, and tombstones in it are written
again; then a FREED entry is written; and only when that is synced, the file is renamed to a spare, or removed if it
is one more than the limits allow, or of another size.

**A full table of descriptors** is not an error of the disk. A new file then waits until one is available.

Each method that changes something returns :class:`Orders`: which tasks have something to do, and what the log says.
"""

from __future__ import annotations

import enum
import math
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol

from danube.log._files import FileTable, JournalFile, spare_name
from danube.log._quota import Quota
from danube.log.format import encode_file_header
from danube.log.snapshots import PRESSED_SHARE, USUAL_SHARE, worth_freeing
from danube.model.descriptors import is_out_of_descriptors
from danube.model.ids import TopicId
from danube.model.limits import Limits
from danube.model.space import is_out_of_space

__all__ = [
    "NOTHING",
    "SNAPSHOT_RATIO",
    "Cost",
    "Create",
    "FileStock",
    "Leaving",
    "Orders",
    "Promote",
    "Remark",
    "Signal",
]

_U64: Final = struct.Struct("<Q")
_RETRY_S: Final = 1.0
_RESERVED_FILES: Final = 2
_MOST_FREED: Final = 50
"""Most files that one FREED entry names: two entries of this length fit into the margin of a file."""
SNAPSHOT_RATIO: Final = 4
"""Snapshots may take this part of ``journal_max_bytes``: so much beyond the limits, for as long as files are freed."""


class Signal(enum.Flag):
    """What a change means for the tasks around the stock."""

    NONE = 0
    PREPARE = enum.auto()
    """Another file is to be prepared."""
    RECYCLE = enum.auto()
    """Files may be free."""
    NEWS = enum.auto()
    """The result of :meth:`FileStock.can_roll` may have changed."""
    ADMIT = enum.auto()
    """Publishers that wait for space may go on."""


class Remark(NamedTuple):
    """A line for the log."""

    level: Literal["error", "warning"]
    event: str
    """Its name, see :mod:`danube.model.log_events`."""
    text: str


class Orders(NamedTuple):
    """What is to be done after a change."""

    signal: Signal = Signal.NONE
    remarks: tuple[Remark, ...] = ()


NOTHING: Final = Orders()


class Create(NamedTuple):
    """Create a spare; then call :meth:`FileStock.created`."""

    name: str
    size: int
    is_extra: bool
    """It is beyond the limits, for snapshots."""


class Promote(NamedTuple):
    """Rename a spare to a journal file; then :meth:`FileStock.promoted`, and :meth:`FileStock.prepared` when synced."""

    spare: str
    file: JournalFile


class Leaving(NamedTuple):
    """Files that are chosen to be freed, and what has to be written to later ones before."""

    files: list[JournalFile]
    topic_ids: set[TopicId]
    """Topics that need a snapshot."""
    tombstones: dict[TopicId, int]
    """Deleted topics that need their tombstone again, with its horizon."""


class Cost(Protocol):
    """Returns how many bytes the snapshot of a topic takes; not ``exact``: as far as is known without taking it."""

    def __call__(self, topic_id: TopicId, *, exact: bool = False) -> int:
        """See the class."""
        ...


class FileStock:
    """The files of one journal; see the module.

    Args:
        limits: ``journal_*`` and ``max_batch_bytes`` are used.
        file_size: bytes of one file.
        quota: told how many bytes are used, and how many are left for batches.

    Attributes:
        files: the live files.
        active: the file being written.
        identity: of the journal.
        disk_full: there is no space for another file.
        usable: bytes of a file that batches can certainly use, in whatever sizes they come.
        waits_for_commits: files are free as soon as commits in progress settle.
    """

    def __init__(self, limits: Limits, file_size: int, quota: Quota) -> None:
        self._limits = limits
        self._file_size = file_size
        self._quota = quota
        self.files = FileTable()
        self.active: JournalFile
        self.identity = 0
        self.disk_full = False
        self.waits_for_commits = False
        self.usable = max(file_size - limits.max_batch_bytes, file_size // 2)
        self._prepared: deque[JournalFile] = deque()
        self._spares: list[str] = []
        self._next_number = 1
        self._free_files = 0
        self._stopped_bytes = 0
        """Bytes of files that do not count against the limit, because only stopped topics need them."""
        self._no_descriptor = False
        self._waiting = False
        """A commit waits for a file, and the log has said so."""
        self._urgent = False
        """Snapshots wait for a file."""
        self._extra_files = 0
        """Files beyond the limits, created for snapshots; as many are removed as soon as files are free."""
        self._warned = False

    def adopt(self, active: JournalFile, spares: list[str], next_number: int, identity: int) -> None:
        """Take over the files that recovery produced. What the disk has left must be noted before they are used."""
        self.active = active
        self._spares = spares
        self._next_number = next_number
        self.identity = identity

    # --- Figures ---

    @property
    def spare_count(self) -> int:
        """Number of files beside the live ones."""
        return len(self._spares) + len(self._prepared)

    def grown(self) -> None:
        """Update the used space after the active file has grown."""
        self._note_space()

    def released(self) -> Orders:
        """Update the used space after a topic has released data or stopped."""
        stopped = min(self.files.stopped_bytes, self._limits.journal_max_bytes)
        if stopped == self._stopped_bytes:
            return NOTHING
        self._stopped_bytes = stopped
        self._note_space()
        return Orders(Signal.PREPARE | Signal.ADMIT)

    def _note_space(self) -> None:
        """Tell the quota how many bytes are used, and how many are left for batches."""
        self._quota.used_bytes = self.files.closed_bytes - self._stopped_bytes + self.active.end
        # Admitted batches must find room even if no disk space is freed: they cannot be refused any more. Two files are
        # not counted: for control entries, and for the next recovery. The others are not counted fully, because an
        # entry is never split.
        files = self.spare_count + self._free_files - _RESERVED_FILES
        self._quota.space_left = self.active.room() + files * self.usable if files >= 0 else 0

    def note_free_bytes(self, size: int) -> Orders:
        """Note the free bytes of the disk, at the beginning of a round of preparations."""
        orders = self._note_free(size // self._file_size)
        self._no_descriptor = False
        return orders

    def _note_free(self, files: int) -> Orders:
        """Note how many more files the disk has space for."""
        signal = Signal.ADMIT
        remarks: tuple[Remark, ...] = ()
        self._free_files = files
        full = not files and not self._spares
        if full and not self.disk_full:
            text = "the disk has no space for another journal file: publishing waits, acknowledgements go on"
            remarks = (Remark("error", "journal.disk_full", text),)
        if self.disk_full and not full:
            signal |= Signal.NEWS  # the last prepared file need not be kept any more
        self.disk_full = full
        self._note_space()
        return Orders(signal, remarks)

    def _filling(self) -> tuple[Remark, ...]:
        """Return what the log says when the journal begins to fill."""
        used, limit = self._quota.used_bytes, self._limits.journal_max_bytes
        warned, self._warned = self._warned, used > limit * self._limits.journal_warn_ratio
        if warned or not self._warned:
            return ()
        text = (
            f"the journal uses {used} of {limit} bytes (limits.journal_max_bytes); at the limit publishing waits. "
            "Look for subscriptions that do not acknowledge, or raise the limit"
        )
        return (Remark("warning", "journal.nearly_full", text),)

    # --- The next file ---

    def header(self, file: JournalFile, sequence: int, watermark: int, revision: int) -> bytes:
        """Return the header of a file whose first block has the given sequence.

        Args:
            file: one of the live files.
            sequence: of its first block.
            watermark: the last sequence known to be synced.
            revision: the highest metadata revision known to be durable.
        """
        older = [item for item in self.files.listed() if item[0] != file.file_id]
        return encode_file_header(
            file.file_id,
            sequence,
            sequence - 1,
            watermark,
            older,
            file_size=file.size,
            identity=self.identity,
            metadata=revision,
        )

    def can_roll(self, *, urgent: bool = False) -> bool:
        """Return whether another file is ready to be written; ``urgent``: by entries that free others."""
        if not self._prepared:
            return False
        if urgent:
            return True
        return self.spare_count > self._extra_files and not (self.disk_full and self.spare_count < _RESERVED_FILES)

    def note_waiting(self, *, urgent: bool = False) -> Orders:
        """Note that a commit waits for a file, and say why if that takes long."""
        signal = Signal.PREPARE
        if urgent:
            self._urgent = True
        else:
            signal |= Signal.RECYCLE  # any gain counts now
        if self._waiting or not (self.disk_full or self._no_descriptor or not self._may_have_another()):
            return Orders(signal)
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
        text = f"the journal waits for a file, and nothing is committed, not even acknowledgements: {why}"
        return Orders(signal, (Remark("error", "journal.waits", text),))

    def roll(self) -> Orders:
        """Continue in the next prepared file; there must be one (:meth:`can_roll`)."""
        self.files.close(self.active)
        signal = self.released().signal | Signal.RECYCLE | Signal.PREPARE
        self._urgent = False
        self.active = self._prepared.popleft()
        self.files.add(self.active)
        self._note_space()
        remarks = self._filling()
        if self._waiting:
            self._waiting = False
            remarks += (Remark("warning", "journal.continues", "the journal continues in another file"),)
        return Orders(signal, remarks)

    # --- Preparing files ---

    def next_preparation(self) -> Create | Promote | None:
        """Return the next step towards two ready files; None if none is needed, or possible, in this round."""
        if len(self._prepared) >= _RESERVED_FILES or self._no_descriptor or not self._may_have_another():
            return None
        if self._spares:
            return Promote(self._spares[-1], JournalFile(self._take_number(), self._file_size))
        return Create(spare_name(self._take_number()), self._file_size, not self._within(self._most_bytes()))

    def created(self, step: Create) -> None:
        """Note a new spare."""
        self._free_files -= 1
        self._extra_files += step.is_extra
        self._spares.append(step.name)

    def promoted(self, step: Promote) -> None:
        """Note that a spare has its new name. It may be written when that is durable, and not before.

        If a power loss undid the rename, blocks in the file would be lost, and its id could be given to another one.
        """
        self._spares.remove(step.spare)

    def prepared(self, step: Promote) -> Orders:
        """Note that a file is ready."""
        self._prepared.append(step.file)
        orders = self._note_free(self._free_files)
        return Orders(orders.signal | Signal.NEWS, orders.remarks)

    def not_prepared(self, error: OSError) -> Orders:
        """Note that a step has failed, for want of space or of a descriptor.

        Raises:
            OSError: for another reason.
        """
        if is_out_of_descriptors(error):
            self._no_descriptor = True
            text = (
                f"no file descriptor is left for the next file of the journal ({error.strerror}); raise the limit of"
                f" the process (ulimit -n). Retrying in {_RETRY_S:g} s"
            )
            return Orders(Signal.NONE, (Remark("error", "descriptors.none_left", text),))
        if not is_out_of_space(error):
            raise error
        return self._note_free(0)

    @property
    def retry_s(self) -> float:
        """Seconds until the next round; nothing tells when space or a descriptor becomes available."""
        return _RETRY_S if self.disk_full or self._no_descriptor else math.inf

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

    def _take_number(self) -> int:
        """Return a number that no file name has used before."""
        number = self._next_number
        self._next_number += 1
        return number

    # --- Freeing files ---

    def choose(self, settled: int, cost: Cost) -> Leaving | None:
        """Return the files to be freed now, None if there are none.

        Args:
            settled: the sequence up to which all entries have been reported. Others are in no snapshot yet.
            cost: of a topic's snapshot.
        """
        ready = [file for file in self.files.unneeded() if file.last_sequence <= settled]
        pressed = self._waiting or self._quota.used_bytes + self._file_size > self._limits.journal_max_bytes
        share = PRESSED_SHARE if pressed or self.disk_full else USUAL_SHARE
        room = self._snapshot_room()
        ready = _worth(ready, cost, share, room)
        if share == PRESSED_SHARE:
            # Snapshots that are larger than assumed would not fit, and block all others: determine their sizes.
            ready = _worth(ready, partial(cost, exact=True), share, room)
        if not ready:
            return None
        topic_ids: set[TopicId] = set().union(*(file.topics for file in ready))
        return Leaving(ready, topic_ids, self.files.tombstones_needed(ready))

    def _snapshot_room(self) -> int:
        """Return how many bytes of snapshots can certainly be written before files are free."""
        most = self._most_bytes(urgent=True) // self._file_size - len(self.files) - len(self._prepared)
        creatable = max(0, min(self._free_files + len(self._spares), most))
        # The parts of a snapshot are not split, so that a quarter of each file may stay empty.
        return (self.active.room() + (len(self._prepared) + creatable) * self._file_size) * 3 // 4

    def groups(self, leaving: Sequence[JournalFile]) -> list[list[JournalFile]]:
        """Return the files whose topics are covered by now, and whose tombstones are not needed or elsewhere.

        One FREED entry names the files of one group.
        """
        ready = [file for file in leaving if not file.topics]
        while True:
            needed = self.files.tombstones_needed(ready).keys()
            free = [file for file in ready if needed.isdisjoint(file.tombstones)]
            if len(free) == len(ready):
                return [free[first : first + _MOST_FREED] for first in range(0, len(free), _MOST_FREED)]
            ready = free

    def free(self, group: Iterable[JournalFile]) -> bytes:
        """Leave files out of the headers from now on; return the payload of the FREED entry that says so."""
        payload = b""
        for file in group:
            file.freed = True
            payload += _U64.pack(file.file_id)
        return payload

    def retire(self, file: JournalFile) -> str | None:
        """Take a file out of the log, after its FREED entry was synced.

        Returns:
            The name under which it becomes a spare, to be given to :meth:`retired`; None: it is to be removed.
        """
        name = spare_name(self._take_number())
        self.files.remove(file)
        if self._extra_files or file.size != self._file_size:
            self._extra_files = max(0, self._extra_files - 1)
            return None
        return name

    def retired(self, name: str) -> None:
        """Note that a file has become a spare."""
        self._spares.append(name)

    def freed(self) -> Orders:
        """Note that a group of files has left."""
        self._note_space()
        return Orders(Signal.PREPARE | Signal.ADMIT, self._filling())

    def note_settled(self, settled: int) -> None:
        """Note up to where all entries have been reported; see ``waits_for_commits``."""
        self.waits_for_commits = any(file.last_sequence > settled for file in self.files.unneeded())


def _worth(files: list[JournalFile], cost: Callable[[TopicId], int], share: float, room: int) -> list[JournalFile]:
    return [files[index] for index in worth_freeing([(file.size, file.topics) for file in files], cost, share, room)]
