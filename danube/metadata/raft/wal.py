"""The log of a Raft member on its disk: a journal of its own, and nothing but that.

Each write is one commit of the journal, with one sync: everything that the core handed out at once, and what arrived
while the write before was on its way. Recovery, torn tails, recycled files and reports of damage are the journal's.

What the journal reports as damaged was once confirmed as synced: perhaps a vote, perhaps an entry that was committed
because this member had it. Such a member must take part in nothing any more (R25); :meth:`Wal.recover` refuses. A
failed sync ends :meth:`Wal.run` and with it the member (R24).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from danube.log import Disk, EntryType, Journal, Location
from danube.log import Entry as JournalEntry
from danube.metadata.raft.options import FILE_BYTES
from danube.metadata.raft.records import (
    LOG,
    STANDING,
    Contents,
    Standing,
    encode_entry,
    encode_standing,
    recover_contents,
)
from danube.model.batch import BatchHeader, Stamp
from danube.model.errors import DanubeError, DataLossError, UnavailableError
from danube.model.ids import Offset, TopicId
from danube.model.limits import MIB, Limits
from danube.model.policies import Durability
from danube.raft import Base, HardState, NodeId, Ready

__all__ = ["Wal"]

_MOST_BYTES: Final = 512 * MIB
"""What the journal may take on the disk: several times of what a member keeps for slow ones."""


class _Reader:
    """Collects the entries that the journal's recovery accepts."""

    def __init__(self) -> None:
        self.payloads: list[tuple[int, bytes]] = []

    def batch(self, topic_id: TopicId, stamp: Stamp, header: BatchHeader, location: Location) -> None:
        raise DataLossError("the metadata log holds a batch of messages; it was written by something else")

    def control(self, entry_type: int, topic_id: TopicId, payload: bytes, durability: Durability) -> None:
        if entry_type != EntryType.RAFT:
            raise DataLossError(f"the metadata log holds an entry of type {entry_type}, which it never writes")
        self.payloads.append((topic_id, payload))

    def snapshot(self, topic_id: TopicId, state: bytes) -> None:
        raise DataLossError("the metadata log holds the snapshot of a topic; it was written by something else")

    def forget(self, topic_id: TopicId) -> None:
        raise DataLossError("the metadata log holds the end of a topic; it was written by something else")


class _Tag(NamedTuple):
    """What becomes durable with an entry."""

    number: int
    """Of the Ready; 0: none ends here."""
    generation: int
    """Of the standing; 0: the entry is no standing."""


class Wal:
    """The durable log of one member.

    Args:
        disk: a directory of its own.
        written: called with the number of each :class:`~danube.raft.Ready` that was to be synced, once it is. Must not
            raise.
        file_bytes: size of a file; an entry may have a third of it.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        disk: Disk,
        written: Callable[[int], None],
        *,
        file_bytes: int = FILE_BYTES,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        limits = Limits(
            max_batch_bytes=file_bytes // 3,
            journal_max_bytes=max(_MOST_BYTES, 64 * file_bytes),
            journal_reserve_bytes=2 * file_bytes,
            start_descriptor_wait_s=0.0,  # opening the member is tried again as a whole
        )
        self._written = written
        self._journal = Journal(
            disk, limits, file_size=file_bytes, on_commit=self._committed, snapshot=lambda topic_id: None, clock=clock
        )
        self._journal.on_roll.append(self._rolled)
        self._standing: Standing
        self._dirty = False
        self._synced_generation = 0
        self._synced_file = -1
        self._waiting: dict[int, trio.Event] = {}
        self._ended = False
        self.bytes_since_cut = 0
        """Bytes of entries written since the log was cut last."""

    @property
    def standing(self) -> Standing:
        """The present standing, written or about to be."""
        return self._standing

    async def recover(self) -> Contents | None:
        """Read the log; None if there is none yet: then :meth:`begin`, once running.

        Raises:
            DataLossError: it is damaged. The member must not take part in its group any more.
            DanubeError: the disk cannot be read.
        """
        found = await self._journal.survey()
        if found.missing_files or found.cut_files:
            raise _damaged(f"files {[*found.missing_files, *found.cut_files]} are missing or cut")
        reader = _Reader()
        recovered = await self._journal.recover(reader)
        if recovered.corruptions or recovered.missing_files:
            raise _damaged("; ".join(str(each.error()) for each in recovered.corruptions) or "files are missing")
        contents = recover_contents(reader.payloads)
        if contents is not None:
            self._standing = contents.standing
            last = contents.entries[-1].index if contents.entries else contents.standing.base.index
            self._standing = msgspec.structs.replace(contents.standing, last=last)
        return contents

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until :meth:`aclose`, or cancellation.

        Raises:
            JournalFencedError: the disk has failed.
        """
        try:
            await self._journal.run(task_status=task_status)
        finally:
            self._ended = True
            for event in self._waiting.values():
                event.set()

    async def aclose(self) -> None:
        """Write what is pending, and end :meth:`run`."""
        await self._journal.aclose()

    async def begin(self, member: NodeId, base: Base) -> None:
        """Write the first standing of a new member; return when it is durable."""
        self._standing = Standing(0, member, HardState(), base, base.index)
        await self._put()

    def write(self, ready: Ready) -> bool:
        """Begin to write what a Ready asks for; return whether ``written`` will be called with its number.

        A commit index alone is written together with the next entries: losing it is harmless, but no entry may be
        there without it.
        """
        if ready.hard is not None and ready.hard != self._standing.hard:
            self._standing = msgspec.structs.replace(self._standing, hard=ready.hard)
            self._dirty = True
        if not ready.must_sync:
            return False
        entries: list[JournalEntry] = []
        if ready.entries and ready.entries[0].index <= self._standing.last:
            self._standing = msgspec.structs.replace(self._standing, last=ready.entries[0].index - 1)
            self._dirty = True
        if self._dirty:
            entries.append(self._standing_entry())
        for entry in ready.entries:
            buffers = encode_entry(entry)
            end = Offset(entry.index + 1)
            entries.append(JournalEntry(EntryType.RAFT, LOG, Durability.DISK, buffers, end_offset=end))
            self.bytes_since_cut += entry.size
        if ready.entries:
            self._standing = msgspec.structs.replace(self._standing, last=ready.entries[-1].index)
        if not entries:  # an installed copy, whose standing is durable already
            return False
        tag = entries[-1].owner
        entries[-1].owner = _Tag(ready.number, tag.generation if isinstance(tag, _Tag) else 0)
        for each in entries:
            self._journal.submit(each)
        return True

    async def cut(self, base: Base) -> None:
        """Drop the entries up to ``base``, which the table holds durably; return when that is durable."""
        self._standing = msgspec.structs.replace(self._standing, base=base)
        self.bytes_since_cut = 0
        await self._put()
        self._journal.release(LOG, Offset(base.index + 1))

    async def begin_install(self, index: int) -> None:
        """Note that a copy replaces the table now; return when that is durable."""
        self._standing = msgspec.structs.replace(self._standing, installing=index)
        await self._put()

    async def end_install(self, base: Base) -> None:
        """Begin the log again behind an installed copy; return when that is durable."""
        self._standing = msgspec.structs.replace(self._standing, installing=0, last=base.index)
        await self.cut(base)

    def release(self) -> None:
        """Free what older files hold; to be called after recovery, once running."""
        self._journal.release(LOG, Offset(self._standing.base.index + 1))
        self._dirty = True

    def _standing_entry(self) -> JournalEntry:
        self._dirty = False
        self._standing = standing = msgspec.structs.replace(self._standing, generation=self._standing.generation + 1)
        end = Offset(standing.generation + 1)
        return JournalEntry(
            EntryType.RAFT,
            STANDING,
            Durability.DISK,
            encode_standing(standing),
            _Tag(0, standing.generation),
            end_offset=end,
        )

    async def _put(self) -> None:
        """Write the standing; return when it is durable."""
        entry = self._standing_entry()
        generation = self._standing.generation
        done = self._waiting[generation] = trio.Event()
        self._journal.submit(entry)
        try:
            await done.wait()
        finally:
            self._waiting.pop(generation, None)
        if self._synced_generation < generation:
            raise self._journal.failure or UnavailableError("the metadata log has ended")

    def _rolled(self) -> None:
        self._dirty = True  # the standing must not keep the file that is full now

    def _committed(self, entries: Sequence[JournalEntry], error: DanubeError | None) -> None:
        if error is not None:
            return  # `run` raises it
        for entry in entries:
            tag = entry.owner
            if not isinstance(tag, _Tag):
                continue
            number, generation = tag
            if generation:
                self._synced_generation = generation
                if entry.file != self._synced_file:
                    self._synced_file = entry.file
                    self._journal.release(STANDING, Offset(generation))
                waiting = self._waiting.get(generation)
                if waiting is not None:
                    waiting.set()
            if number:
                self._written(number)


def _damaged(what: str) -> DataLossError:
    return DataLossError(
        f"the metadata log is damaged, and what it has lost may have been promised to others: {what}. This member takes"
        " part in nothing any more: restore the metadata from a backup, or let this broker join again as a new member"
    )
