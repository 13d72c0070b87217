"""The journal's file table: names and states of its files, and which topics still need data in them.

A file is in one of four states, told apart by its name and its content::

    spare-<n>.log      zeros, or old contents of a recycled file; may become any file
    journal-<id>.log   prepared: renamed ahead of time, no block of its own yet
                       active: the file being written
                       closed: full; becomes a spare when no data in it is needed

A file is identified by the id in its header and in every block, so old contents of a recycled file are ignored. That
requires that no id is ever used twice, whatever a crash leaves behind. Ids and the numbers of spares
therefore come from one sequence, and **no file holds an id above the number in its name**: an id goes into a name, and
that name to the disk, before it goes into the content. The highest number in any name is then the highest number ever
used, and the next one is unused.

Batches are counted per file and topic. Apart from that, each file knows the topics with entries in it that no later
snapshot covers. A closed file without counted batches is free once it has no such topics; see
:mod:`danube.log.snapshots`. Files with entries of a *stranded* topic, which is not known to the metadata, stay.

A deleted topic has a TOMBSTONE in the journal, which is needed as long as there is an older file: it may hold entries
of the topic. Acknowledgements that were on their way may come behind it, and are void, too: only a batch, a snapshot
or a takeover means that the topic is there again (it was restored from a bucket, under its old id, or has returned).
Then the tombstone stays where it is, with its file, until no older file is left.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from danube.log.format import BLOCK_HEADER_SIZE, FILE_HEADER_SIZE, EntryType
from danube.log.snapshots import uncovered
from danube.model.ids import FIRST_OFFSET, Offset, TopicId

__all__ = [
    "FREED_MARGIN",
    "FileTable",
    "JournalFile",
    "damaged_name",
    "is_spare_name",
    "journal_name",
    "number_of",
    "parse_journal_name",
    "spare_name",
]

FREED_MARGIN: Final = 1024
"""Bytes at the end of each file that only FREED entries may use. When the disk, or the journal's share of it, is full,
FREED entries are what releases space, so unlike all other entries they must not wait for a file."""

_MAKES_KNOWN: Final = (EntryType.BATCH, EntryType.SNAPSHOT, EntryType.TAKEOVER)
_JOURNAL_NAME: Final = re.compile(r"journal-([0-9a-f]{16})\.log")
_SPARE_NAME: Final = re.compile(r"spare-([0-9a-f]{16})\.log")
_ANY_NAME: Final = re.compile(r"(?:journal|spare|damaged)-([0-9a-f]{16})\.log")


def journal_name(file_id: int) -> str:
    """Return the name of a journal file."""
    return f"journal-{file_id:016x}.log"


def parse_journal_name(name: str) -> int | None:
    """Return the id of a journal file, None for other names."""
    found = _JOURNAL_NAME.fullmatch(name)
    return int(found[1], 16) if found else None


def spare_name(number: int) -> str:
    """Return the name of a spare file."""
    return f"spare-{number:016x}.log"


def is_spare_name(name: str) -> bool:
    """Return whether this is the name of a spare file."""
    return _SPARE_NAME.fullmatch(name) is not None


def damaged_name(file_id: int) -> str:
    """Return the name under which a damaged journal file is kept for inspection."""
    return f"damaged-{file_id:016x}.log"


def number_of(name: str) -> int:
    """Return the number in a file's name, 0 if the name is not one of the journal's."""
    found = _ANY_NAME.fullmatch(name)
    return int(found[1], 16) if found else 0


class JournalFile:
    """One live journal file."""

    __slots__ = (
        "closed",
        "end",
        "explains",
        "file_id",
        "freed",
        "in_flight",
        "last_sequence",
        "live",
        "name",
        "size",
        "tombstones",
        "topics",
        "written",
    )

    def __init__(self, file_id: int, size: int) -> None:
        self.file_id = file_id
        self.size = size
        self.name = journal_name(file_id)
        self.end = 0
        """Position of the next block; 0 until the header is being written."""
        self.written = 0
        """All bytes below this position have been written."""
        self.in_flight = 0
        """Number of writes that have not returned."""
        self.last_sequence = 0
        self.closed = False
        """The file is full or finished; nothing more is written to it."""
        self.freed = False
        """No data in it is needed, and the next file's header says so; it becomes a spare when that is durable."""
        self.live: dict[TopicId, tuple[int, Offset]] = {}
        """Topic id to the bytes of its batches in this file and the highest end offset among them."""
        self.topics: set[TopicId] = set()
        """Topics with entries in this file that no later snapshot covers."""
        self.explains: set[int] = set()
        """Damaged files about which an entry in this file decides; it is needed as long as they are there."""
        self.tombstones: dict[TopicId, int] = {}
        """Deleted topics whose newest tombstone is in this file, and the newest file that may hold entries of each."""

    def count_batch(self, topic_id: TopicId, size: int, end_offset: Offset) -> None:
        """Count a batch as needed data."""
        found = self.live.get(topic_id)
        if found is not None:
            size += found[0]
            end_offset = max(end_offset, found[1])
        self.live[topic_id] = (size, end_offset)

    def room(self, *, margin: bool = False) -> int:
        """Return the length of the longest block that still fits; with ``margin``, of a block of FREED entries."""
        room = self.size - max(self.end, FILE_HEADER_SIZE) - BLOCK_HEADER_SIZE  # the terminator must fit too
        return room if margin else room - FREED_MARGIN


class FileTable:
    """All live files in the order of their ids; the last one is active."""

    def __init__(self) -> None:
        self._files: dict[int, JournalFile] = {}
        self._stopped: set[TopicId] = set()
        self.buried: set[TopicId] = set()
        """Topics whose tombstone is behind all their batches and snapshots."""
        self.stranded: frozenset[TopicId] = frozenset()
        """Topics that are not known: their entries stay."""
        self.closed_bytes = 0
        self.stopped_bytes = 0
        """Bytes of closed files in which only stopped and stranded topics need data."""

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[JournalFile]:
        return iter(self._files.values())

    def get(self, file_id: int) -> JournalFile | None:
        """Return a live file."""
        return self._files.get(file_id)

    def add(self, file: JournalFile) -> None:
        """Add a file at the end."""
        assert not self._files or file.file_id > next(reversed(self._files))
        self._files[file.file_id] = file

    def close(self, file: JournalFile) -> None:
        """Mark this file as closed."""
        assert not file.closed
        file.closed = True
        self.closed_bytes += file.size
        self._count_stopped()

    def remove(self, file: JournalFile) -> None:
        """Remove a closed file from the table."""
        assert file.closed
        del self._files[file.file_id]
        self.closed_bytes -= file.size
        self.buried -= file.tombstones.keys()

    def drop_topic(self, topic_id: TopicId) -> bool:
        """Stop keeping entries of a topic; return whether a file lost its last needed batch."""
        freed = False
        self.claim((topic_id,))
        for file in self._files.values():
            file.topics.discard(topic_id)
            if file.live.pop(topic_id, None) is not None and not file.live:
                freed = True
        self._count_stopped()
        self._stopped.discard(topic_id)
        return freed

    def release(self, topic_id: TopicId, up_to_offset: Offset) -> bool:
        """Stop counting a topic in files where its batches end at or below an offset; returns as :meth:`drop_topic`."""
        freed = False
        for file in self._files.values():
            found = file.live.get(topic_id)
            if found is not None and found[1] <= up_to_offset:
                del file.live[topic_id]
                freed = freed or not file.live
        self._count_stopped()
        return freed

    def cover(self, covers: Mapping[TopicId, int]) -> None:
        """Note snapshots that are complete and synced: topic ids, and the sequence up to which entries are covered."""
        for file in self._files.values():
            if len(covers) < len(file.topics):
                file.topics -= {topic_id for topic_id, covered in covers.items() if covered >= file.last_sequence}
            elif file.topics:
                file.topics = set(uncovered(file.topics, file.last_sequence, covers))

    def bury(self, topic_id: TopicId, file: JournalFile, horizon: int | None = None) -> None:
        """Note the tombstone of a deleted topic, in ``file``.

        With a ``horizon`` it was written again, because older files, up to that one, may hold entries of the topic;
        then the topic may have returned behind it, and keeps what it has.
        """
        if horizon is None:
            self.drop_topic(topic_id)
            self.buried.add(topic_id)
        for each in self._files.values():
            each.tombstones.pop(topic_id, None)
        file.tombstones[topic_id] = file.file_id if horizon is None else horizon

    def note(self, file: JournalFile, topic_id: TopicId, kind: EntryType | int) -> None:
        """Note an entry of a topic in a file."""
        if topic_id in self.buried:
            if kind not in _MAKES_KNOWN:
                return
            self.buried.discard(topic_id)
        file.topics.add(topic_id)

    def tombstones_needed(self, leaving: Collection[JournalFile]) -> dict[TopicId, int]:
        """Return the tombstones in files that are about to be freed and are still needed, each with its horizon."""
        gone = {file.file_id for file in leaving}
        oldest = next((file_id for file_id in self._files if file_id not in gone), 0)
        return {
            topic_id: horizon for file in leaving for topic_id, horizon in file.tombstones.items() if oldest <= horizon
        }

    def strand(self, topic_ids: Iterable[TopicId]) -> None:
        """Keep the entries of topics that are not known."""
        self.stranded = frozenset(topic_ids)
        self._count_stopped()

    def claim(self, topic_ids: Iterable[TopicId]) -> None:
        """Note that topics are not stranded any more: they are known again, or deleted."""
        if self.stranded:
            self.stranded = self.stranded.difference(topic_ids)

    def topic_ids(self) -> set[TopicId]:
        """Return all topics with entries that are kept."""
        found: set[TopicId] = set()
        for file in self._files.values():
            found |= file.topics
            found.update(file.live)
        return found

    def live_bytes(self) -> int:
        """Return the bytes of all batches that are still needed."""
        return sum(size for file in self._files.values() for size, _ in file.live.values())

    def stored_bytes(self, topic_id: TopicId) -> int:
        """Return the bytes of a topic's batches that are still needed."""
        return sum(file.live[topic_id][0] for file in self._files.values() if topic_id in file.live)

    def stranded_batches(self) -> dict[TopicId, tuple[int, Offset]]:
        """Return the stranded topics: the bytes of their batches, and the end of the newest one (0: no batches)."""
        found = dict.fromkeys(sorted(self.stranded), (0, FIRST_OFFSET))
        for file in self._files.values() if found else ():
            for topic_id in found.keys() & file.live.keys():
                size, end = found[topic_id]
                found[topic_id] = size + file.live[topic_id][0], max(end, file.live[topic_id][1])
        return found

    def topics_of_oldest(self, size_bytes: int) -> list[TopicId]:
        """Return the topics whose batches keep the oldest closed files, ``size_bytes`` in total, from being freed."""
        topics: dict[TopicId, None] = {}
        for file in self._files.values():
            if size_bytes <= 0 or not file.closed:
                break
            size_bytes -= file.size
            topics |= dict.fromkeys(file.live)
        return list(topics)

    def stop_topic(self, topic_id: TopicId) -> None:
        """Note that a topic has stopped: it takes no more batches, and those it needs stay until it is deleted."""
        self._stopped.add(topic_id)
        self._count_stopped()

    def _count_stopped(self) -> None:
        if not self._stopped and not self.stranded and not self.stopped_bytes:
            return
        stuck = self._stopped | self.stranded
        self.stopped_bytes = sum(
            file.size
            for file in self._files.values()
            if file.closed and (file.live or not self.stranded.isdisjoint(file.topics)) and file.live.keys() <= stuck
        )

    def _keeps_graves(self, file: JournalFile, oldest: int) -> bool:
        """Return whether a tombstone has to stay where it is.

        Its topic is there again, and older files may hold entries from before. Written again, it would be behind the
        present ones, and void them.
        """
        return any(
            topic_id not in self.buried and oldest != file.file_id and oldest <= horizon
            for topic_id, horizon in file.tombstones.items()
        )

    def listed(self) -> list[tuple[int, int]]:
        """Return ids and last sequences of the live files, for the header of the next file."""
        return [(file.file_id, file.last_sequence) for file in self._files.values() if not file.freed]

    def unneeded(self) -> list[JournalFile]:
        """Return the closed files that hold no needed batch, nothing of a stranded topic, and explain no other one."""
        stranded = self.stranded
        oldest = next(iter(self._files), 0)
        return [
            file
            for file in self._files.values()
            if file.closed
            and not file.live
            and not (file.tombstones and self._keeps_graves(file, oldest))
            and (not stranded or stranded.isdisjoint(file.topics))
            and (not file.explains or file.explains.isdisjoint(self._files))
        ]
