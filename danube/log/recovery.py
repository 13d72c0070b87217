"""Journal recovery: turns files left by any kind of end into a journal that can be trusted and written.

1. Read all file headers. The highest watermark in them says up to where everything was certainly synced. Files that
   hold nothing newer are the *body* of the log, the others (the last one, seldom more) its *tail*.
2. Scan the tail: blocks form *runs*, and their watermarks raise the limit. The first hole above the highest watermark
   is where a crash cut the log off; blocks behind it are dropped. A hole below it is corruption.
3. Read the body and pass its entries to the visitor. Its holes are corruption.
4. Copy the accepted runs of the tail to a fresh file, sync it, rename it, and pass its entries to the visitor.
   The page cache may hold bytes that a failed sync never wrote to the disk, so the old copy is not trusted; the
   new file's header lists the older files that still count, and its rename makes the change atomic.

The first two steps are the *survey*. Its result can be compared with the journal's state recorded in the metadata,
before anything is trusted. Nothing is changed before step 4, so a crash during recovery only repeats it. Sequences
continue above the highest one seen, so that one that was cut off is never used again.

Reads and changes of files are actions (:mod:`danube.log._actions`), so recovery can be stopped between any two of them.
Pure.
"""

from __future__ import annotations

import errno
import logging
import struct
from typing import Final, NamedTuple

import msgspec

from danube.log._actions import Create, ListFiles, Remove, Rename, Steps, SyncDirectory
from danube.log._copy import TailCopy, block_of
from danube.log._damages import Damages
from danube.log._files import (
    FileTable,
    JournalFile,
    damaged_name,
    is_spare_name,
    number_of,
    spare_name,
)
from danube.log._salvage import salvage
from danube.log._scan import Hole, Scanner
from danube.log._sources import UNKNOWN, Source, Sources, find_recycled, read_sources
from danube.log.format import (
    DURABILITIES,
    FILE_HEADER_SIZE,
    METADATA_ENTRY,
    Block,
    Entry,
    EntryType,
    parse_entries,
)
from danube.log.index import Location
from danube.log.recovered import Corruption, Recovered, Standing, TornTail, Visitor
from danube.log.snapshots import Assembler
from danube.model.batch import MIN_PART_SIZE, STAMP_SIZE, header_at, read_stamp
from danube.model.errors import CorruptBatchError, JournalFullError
from danube.model.ids import NO_TOPIC, Offset, TopicId
from danube.model.log_events import log_event
from danube.model.policies import Durability
from danube.model.space import is_out_of_space

__all__ = ["Recovery"]

_log = logging.getLogger("danube.journal")

_U64: Final = struct.Struct("<Q")
_OWN: Final = (EntryType.FREED, EntryType.METADATA)


class _Run(NamedTuple):
    """Valid blocks of one file without a hole between them."""

    source: Source
    start: int
    end: int
    first: int
    last: int


class _Gap(NamedTuple):
    """A hole in the log in place of sequence ``first``. ``bounded``: a valid block follows in the same file."""

    source: Source
    hole: Hole
    first: int
    bounded: bool


class Recovery:
    """One recovery of the files on a disk; see the module. The attributes are its results.

    Attributes:
        active: the file to continue in.
        last_sequence: everything up to it is recovered and synced.
        snapshots: those found; knows the newest complete generation of each topic.
        identity, metadata: the metadata fields of the new file's header; may be changed after the survey.
        next_number, spares: for the file keeper.
    """

    def __init__(self, files: FileTable, file_size: int) -> None:
        self._files = files
        self._file_size = file_size
        self._visitor: Visitor | None = None
        self._recovered = Recovered()
        self._sizes: dict[str, int] = {}
        self._found = Sources()
        self._chain: list[_Run | _Gap] = []
        self._freed: list[tuple[int, bytes]] = []
        self._recycled: set[str] = set()
        """Files that are the only proof that a listed file was freed; their headers are overwritten last."""
        self._watermark = 0
        self._highest = 0
        self._last = 0
        self._end = 0
        self._damages = Damages(self._recovered)
        self.active: JournalFile
        self.last_sequence = 0
        self.snapshots = Assembler()
        self.identity = 0
        self.metadata = 0
        self.next_number = 1
        self.spares: list[str] = []

    def survey(self) -> Steps[Standing]:
        """Read headers and tail without changing anything."""
        self._sizes = yield ListFiles()
        self.next_number = max(map(number_of, self._sizes), default=0) + 1
        found = self._found = yield from read_sources(self._sizes)
        self._watermark = self._end = found.watermark
        self._highest = found.highest
        self.identity, self.metadata = found.identity, found.metadata
        body = self._body()
        self._last = body[-1].limit or 0 if body else 0
        for source in found.live[len(body) :]:
            yield from self._scan_tail(source)
        # Frees are recorded behind the newest header, in a block that may be cut off: then the file must still exist.
        missing = found.expected_ids - {source.file_id for source in found.live}
        for _, payload in self._freed:
            missing.difference_update(file_id for (file_id,) in _U64.iter_unpack(payload))
        return Standing(
            bool(found.live),
            self.identity,
            self.metadata,
            found.newest_id,
            max(found.highest, self._end),
            tuple((yield from self._without_recycled(missing))),
            found.cut,
            frozenset(name for name in self._sizes if number_of(name) == 0),
        )

    def _without_recycled(self, missing: set[int]) -> Steps[list[int]]:
        """Leave out files that were freed, according to their contents: the entry that says so may be damaged."""
        if not missing:
            return []  # no need to read the spares
        recycled = yield from find_recycled(self._sizes)
        self._recycled = {recycled[file_id] for file_id in missing & recycled.keys()}
        return sorted(missing - recycled.keys())

    def _body(self) -> list[Source]:
        """Return the files that hold only sequences that were certainly synced."""
        found = self._found
        return [
            source
            for source in found.live
            if source.limit is not None and source.limit <= found.watermark and source.file_id < found.newest_id
        ]

    def run(self, visitor: Visitor | None, synced: int) -> Steps[Recovered]:
        """Recover the surveyed files; see the class for the results.

        Args:
            visitor: receives the accepted batches and entries.
            synced: a sequence known to be synced from a source other than the journal; 0 if there is none.

        Raises:
            JournalFullError: no space for the fresh file.
        """
        self._visitor = visitor
        found = self._found
        self._watermark = max(self._watermark, synced)
        self._highest = max(self._highest, synced)
        body = self._body()
        chain = self._cut(self._chain)
        end = max((item.last for item in chain if isinstance(item, _Run)), default=0)
        for sequence, payload in self._freed:
            if sequence <= end:
                found.expected_ids.difference_update(file_id for (file_id,) in _U64.iter_unpack(payload))
        present = {source.file_id for source in found.live}
        missing = yield from self._without_recycled(found.expected_ids - present)
        yield from self._collect_spares()
        for source in body:
            missing = self._report_missing(missing, source.file_id)
            yield from self._read_body(source)
        self._report_missing(missing, self.next_number)
        for source in found.unused:
            yield from self._retire(source, damaged=False)  # there may be no space for another file
        self.spares.sort(key=lambda name: name not in self._recycled)  # the last one is used first
        yield from self._copy(chain, (body[-1].limit or 0) if body else 0)
        damaged = {item.source.file_id for item in chain if isinstance(item, _Gap)}
        for source in (*found.void, *found.live[len(body) :]):
            yield from self._retire(source, damaged=source.file_id in damaged)
        yield SyncDirectory()
        self._files.cover({topic_id: covers for topic_id, (_, covers, _) in self.snapshots.newest.items()})
        return self._recovered

    def _collect_spares(self) -> Steps[None]:
        for name, size in self._sizes.items():
            if not is_spare_name(name):
                continue
            if size == self._file_size:
                self.spares.append(name)
            else:
                yield Remove(name)

    # --- 2. The tail ---

    def _scan_tail(self, source: Source) -> Steps[None]:
        """Append the runs and gaps of a file to the chain, and apply its entries about files and metadata."""
        chain, freed = self._chain, self._freed
        if source.first != UNKNOWN:
            self._last = source.first - 1
        hole: Hole | None = None
        joined = False
        end = FILE_HEADER_SIZE
        scanner = Scanner(source.name, source.file_id, last=source.limit)
        while (item := (yield from scanner.next())) is not None:
            if isinstance(item, Hole):
                hole, joined = item, False
                continue
            position, block, data = item
            self._highest = max(self._highest, block.sequence)
            if source.limit is not None and block.sequence > source.limit:
                continue
            if hole is None and block.sequence != self._last + 1:
                hole = Hole(position, position, 0)
                joined = False
            if hole is not None:
                chain.append(_Gap(source, hole, self._last + 1, bounded=True))
                hole = None
            self._last = block.sequence
            self._watermark = max(self._watermark, block.watermark)
            self._end = max(self._end, block.sequence)
            for entry in parse_entries(data, block):
                if entry.type == EntryType.FREED:
                    freed.append((block.sequence, data[entry.start : entry.end]))
                elif entry.type == EntryType.METADATA:
                    identity, revision = METADATA_ENTRY.unpack_from(data, entry.start)
                    if identity == self.identity:  # after an accepted loss, entries of an older identity remain
                        self.metadata = max(self.metadata, revision)
            end = position + block.length
            if joined:
                run = chain[-1]
                assert isinstance(run, _Run)
                chain[-1] = run._replace(end=end, last=block.sequence)
            else:
                chain.append(_Run(source, position, end, block.sequence, block.sequence))
                joined = True
        if hole is not None or (source.limit is not None and self._last < source.limit):
            hole = hole or Hole(end, source.size, 0)
            chain.append(_Gap(source, hole, self._last + 1, bounded=False))

    def _cut(self, chain: list[_Run | _Gap]) -> list[_Run | _Gap]:
        """Drop blocks behind the first gap above the watermark: they were never acknowledged as durable."""
        for index, item in enumerate(chain):
            if isinstance(item, _Gap) and item.first > self._watermark:
                dropped = [other for other in chain[index:] if isinstance(other, _Run)]
                size = sum(run.end - run.start for run in dropped)
                if size or item.hole.torn_bytes:
                    size = max(size, item.hole.torn_bytes)
                    self._recovered.torn = TornTail(item.source.file_id, item.hole.start, size)
                    _log.warning(
                        "journal file %s: the last write is incomplete at byte %d; dropped %d bytes that were not"
                        " confirmed as synced",
                        item.source.name,
                        item.hole.start,
                        size,
                        extra=log_event("journal.torn"),
                    )
                return chain[:index]
        return chain

    # --- 3. The body ---

    def _read_body(self, source: Source) -> Steps[None]:
        file = JournalFile(source.file_id, source.size)
        self._files.add(file)
        self._files.close(file)
        last = source.first - 1 if source.first != UNKNOWN else self._last
        hole: Hole | None = None
        assert source.limit is not None
        # A file that may end before its limit is damaged only where something is left of a block.
        scanner = Scanner(source.name, source.file_id, last=source.limit if source.exact else None)
        while (item := (yield from scanner.next())) is not None:
            if isinstance(item, Hole):
                hole = item
                continue
            position, block, data = item
            if block.sequence > source.limit:
                continue
            if hole is None and block.sequence != last + 1:
                hole = Hole(position, position, 0)
            if hole is not None:
                yield from self._damaged(_Gap(source, hole, last + 1, bounded=True), file)
                hole = None
            last = block.sequence
            file.last_sequence = last
            file.end = file.written = position + block.length
            self.visit(data, block, file, position)
        if last < source.limit and (hole is not None or source.exact):
            hole = hole or Hole(file.end or FILE_HEADER_SIZE, source.size, 0)
            yield from self._damaged(_Gap(source, hole, last + 1, bounded=False), file)
        if source.exact:
            file.last_sequence = source.limit  # even if its end is damaged: the next recovery must report it again
        file.end = file.written = source.size
        self._last = source.limit

    def _report_missing(self, missing: list[int], before: int) -> list[int]:
        """Report the missing files that came before ``before``; return the others."""
        gone = [file_id for file_id in missing if file_id < before]
        for file_id in gone:
            self._recovered.missing_files.append(file_id)
            self._damages.find(Corruption(file_id, 0, 0, {}, complete=False))
        return missing[len(gone) :]

    def _damaged(self, gap: _Gap, file: JournalFile) -> Steps[None]:
        """Report a gap that stays in its file."""
        corruption = yield from self._describe(gap)
        self._damages.find(corruption, file)

    def _describe(self, gap: _Gap) -> Steps[Corruption]:
        source, hole = gap.source, gap.hole
        return (yield from salvage(source.name, source.file_id, hole.start, hole.end, bounded=gap.bounded))

    # --- Shared by body and copy ---

    def visit(self, data: bytes, block: Block, file: JournalFile, written_at: int) -> None:
        """Pass the entries of a block to the visitor. ``written_at``: position of the block in ``file``."""
        recovered, visitor = self._recovered, self._visitor
        recovered.blocks += 1
        shift = written_at - block.position
        note = self._files.note
        for kind, durability, topic_id, position, start, end in parse_entries(data, block):
            if kind == EntryType.BATCH:
                stamp = read_stamp(data[start : start + STAMP_SIZE])
                if (
                    stamp.topic_id != topic_id
                    or stamp.total_size != end - start
                    or end - start < STAMP_SIZE + MIN_PART_SIZE
                ):
                    raise CorruptBatchError(
                        f"journal file {file.name}, byte {position + shift}: an entry and its batch contradict each "
                        f"other"
                    )
                header = header_at(data, start + STAMP_SIZE)
                location = Location(file.file_id, position + shift)
                note(file, topic_id, kind)
                topic = recovered.topic(topic_id, stamp.base_offset)
                behind = topic.add(stamp, header, location)
                file.count_batch(topic_id, end - start, behind)
                recovered.batches += 1
                if visitor is not None:
                    visitor.batch(topic_id, stamp, header, location)
            elif kind == EntryType.RAFT:
                file.count_batch(topic_id, end - start, Offset(int.from_bytes(data[start : start + 8], "little")))
                if visitor is not None:
                    visitor.control(kind, topic_id, data[start:end], DURABILITIES[durability])
            elif kind == EntryType.DAMAGE:
                self._damages.tell(msgspec.msgpack.decode(data[start:end], type=Corruption), file)
            elif kind == EntryType.SNAPSHOT:
                note(file, topic_id, kind)
                snapshot = self.snapshots.add(topic_id, data[start:end])
                if snapshot is not None and visitor is not None:
                    visitor.snapshot(topic_id, snapshot.state)
            elif kind == EntryType.TOMBSTONE:
                self._bury(topic_id, file)
            elif kind == EntryType.TAKEOVER:
                self._forget(topic_id)
                note(file, topic_id, kind)
                if visitor is not None:
                    visitor.control(kind, topic_id, data[start:end], DURABILITIES[durability])
            elif kind not in _OWN:
                note(file, topic_id, kind)
                if visitor is not None:
                    visitor.control(kind, topic_id, data[start:end], DURABILITIES[durability])

    def _bury(self, topic_id: TopicId, file: JournalFile) -> None:
        """Forget all that was read of a deleted topic."""
        self._files.bury(topic_id, file)
        self._forget(topic_id)

    def _forget(self, topic_id: TopicId) -> None:
        """Forget all that was read of a topic: it was deleted, or another copy of it follows."""
        self._files.drop_topic(topic_id)
        self._recovered.topics.pop(topic_id, None)
        self.snapshots.forget(topic_id)
        if self._visitor is not None:
            self._visitor.forget(topic_id)

    # --- 4. The fresh file ---

    def _copy(self, chain: list[_Run | _Gap], resume_after: int) -> Steps[None]:
        """Copy the tail to fresh files, the last of which is the active one."""
        writer = TailCopy(self, self._files, resume_after, self._highest + 1)
        yield from writer.start()
        for item in chain:
            if isinstance(item, _Gap):
                corruption = yield from self._describe(item)
                self._damages.find(corruption)
                yield from self._add_damage(writer, corruption.known())
                continue
            source = item.source
            scanner = Scanner(source.name, source.file_id, start=item.start, end=item.end, last=item.last)
            while (found := (yield from scanner.next())) is not None:
                # The same bytes were valid when scanned; if they are not now, the disk cannot be used.
                if isinstance(found, Hole):
                    raise OSError(
                        errno.EIO, f"{source.name} returned other bytes at {found.start} than in the first scan"
                    )
                if found.block.entry_count:
                    yield from writer.add(found.data, found.block)
        for corruption in self._damages.conclude():
            yield from self._add_damage(writer, corruption)
        yield from writer.finish()
        self.active = writer.file
        self.last_sequence = writer.sequence

    def _add_damage(self, writer: TailCopy, corruption: Corruption) -> Steps[None]:
        entry = Entry(EntryType.DAMAGE, NO_TOPIC, Durability.DISK, (msgspec.msgpack.encode(corruption),))
        yield from writer.add(*block_of([entry], self._highest))

    def take_fresh(self) -> Steps[tuple[str, JournalFile]]:
        """Return an unused file under its spare name, and the journal file it will become.

        Raises:
            JournalFullError: no space for one.
        """
        file = JournalFile(self._take_number(), self._file_size)
        name = spare_name(file.file_id)
        if self.spares:
            yield Rename(self.spares.pop(), name)
        else:
            yield from self._create(name)
        # Before anything is written: if this recovery is interrupted, the name tells the next one which id was used.
        yield SyncDirectory()
        return name, file

    def _create(self, name: str) -> Steps[None]:
        try:
            yield Create(name, self._file_size)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            raise JournalFullError(
                f"no space to recover the journal: it needs a new file of {self._file_size} bytes; free space on its "
                f"disk"
            ) from error

    def _take_number(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def _retire(self, source: Source, *, damaged: bool) -> Steps[None]:
        """Take a file out of the log. A damaged one is kept under another name for inspection."""
        if damaged:
            yield Rename(source.name, damaged_name(source.file_id))
        elif source.size != self._file_size:
            yield Remove(source.name)
        else:
            name = spare_name(self._take_number())
            yield Rename(source.name, name)
            self.spares.append(name)
            if source.name in self._recycled:
                self._recycled.add(name)
