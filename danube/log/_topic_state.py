"""The state of one topic's log: offsets, what is unsealed, and how its batches are found in the journal. Pure.

A batch gets its offset when it is appended and becomes visible when its journal entry settles, in the same order.
Readers see ``[start_offset, end_offset)``. Three regions follow each other::

    start_offset              journal_start                 (cache begins)         end_offset
         | sealed: SealedReader     | journal files: index        | cache               |

* The cache always holds the end of the log without a gap, so a read from the disk stops where the cache begins.
* Sealing advances ``journal_start``, retention ``start_offset``; a reader that is overtaken by one of them tries again.
* A gap between sealed batches and the journal is passed over: a power loss took batches that were not synced.
* Batches before a damage are good; the damage is met, and reported, by the next read.
* A topic of durability ``remote`` has no share of the journal: its durable batches are already sealed.

Reads are generators: they yield what has to be read, and are sent the result, or thrown the ``NotFoundError`` of a
journal file that is gone. :class:`~danube.log.topic_log.TopicLog` carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from danube.log.cache import BatchCache, StoredBatch, TopicCache
from danube.log.format import BLOCK_HEADER_SIZE, BLOCK_MAGIC, ENTRY_HEADER_SIZE, Entry, EntryType, entry_at
from danube.log.index import REGION_BYTES, Location, TopicIndex
from danube.log.recovered import RecoveredTopic
from danube.model.batch import STAMP_SIZE, BatchHeader, check_part, read_stamp, write_stamp
from danube.model.errors import CorruptBatchError, DanubeError, DataLossError, InternalError, NotFoundError
from danube.model.ids import FIRST_OFFSET, NO_OWNER_EPOCH, Offset, OwnerEpoch, TopicId
from danube.model.policies import Durability

__all__ = ["FindSealed", "Reading", "ReadSealed", "Share", "Submitter", "TopicState", "Window"]

_T = TypeVar("_T")
_HEAD_BYTES: Final = max(BLOCK_HEADER_SIZE, ENTRY_HEADER_SIZE)
_NOWHERE: Final = (Offset(-1), Location(0, 0))


class Window(NamedTuple):
    """Read a journal file; the result is a buffer with at least so many bytes, and the index of the position in it."""

    file_id: int
    position: int
    size: int


class ReadSealed(NamedTuple):
    """Read sealed batches; the result is those from the one that holds ``offset`` on, or nothing."""

    offset: Offset
    max_bytes: int


class FindSealed(NamedTuple):
    """Find the first sealed offset appended at or after a time; the result is None if all are older."""

    time_us: int


Reading: TypeAlias = Generator[Window | ReadSealed | FindSealed, Any, _T]
"""What has to be read, and what follows from it."""


class Submitter(Protocol):
    """Takes entries and makes them durable."""

    def submit(self, entry: Entry) -> None:
        """Take an entry; its owner is notified when it has settled."""
        ...


class Share(Submitter, Protocol):
    """A topic's share of the journal."""

    def release(self, topic_id: TopicId, up_to_offset: Offset) -> None:
        """Release a topic's batches below an offset."""
        ...

    def drop_topic(self, topic_id: TopicId) -> None:
        """Release all data of a topic."""
        ...

    def is_live(self, file_id: int) -> bool:
        """Return whether a file is (still) part of the log."""
        ...

    def stored_bytes(self, topic_id: TopicId) -> int:
        """Return the bytes of a topic's batches that are still needed."""
        ...


class TopicState:
    """The log of one topic, without its reads of files and storages; see the module.

    Args:
        topic_id, durability: of the topic.
        journal: holds its batches while they are not sealed.
        cache: shared by all topics of the broker.
        owner_epoch: written to every stamp.
        next_offset: the first offset to be assigned; raised to the one that recovery found.
        start_offset: the first offset that readers may still request.
        sealed_offset: batches below it are sealed, and not read from the journal.
        recovered: the topic's recovered state in the journal.
        submitter: receives entries instead of the journal (durability ``remote``).
        on_unsealed: called when there are unsealed batches again, and each time they have grown by ``seal_bytes``.
        seal_bytes: see ``on_unsealed``.

    Attributes:
        unsealed_bytes: bytes of batches that are settled and not sealed. Where the index measured them, it may be too
            high by ``unsealed_surplus_bytes``, because the index is sparse: after a restart, after batches in the
            journal expired, and after a part was sealed of which some had expired.
        unsealed_surplus_bytes: see ``unsealed_bytes``; 0 once all batches measured by the index are sealed.
        unsealed_since_us: append time of the oldest unsealed batch; 0 if there is none.
    """

    def __init__(
        self,
        topic_id: TopicId,
        durability: Durability,
        journal: Share,
        cache: BatchCache,
        owner_epoch: OwnerEpoch = NO_OWNER_EPOCH,
        next_offset: Offset = FIRST_OFFSET,
        start_offset: Offset = FIRST_OFFSET,
        recovered: RecoveredTopic | None = None,
        *,
        sealed_offset: Offset = FIRST_OFFSET,
        submitter: Submitter | None = None,
        on_unsealed: Callable[[Any], None] | None = None,
        seal_bytes: int = 0,
    ) -> None:
        self.topic_id = topic_id
        self.durability = durability
        self.owner_epoch = owner_epoch
        self._journal = journal
        self._cache = cache
        self._cached = TopicCache()
        assert durability is not Durability.NONE, "a topic that stores nothing has no log"
        self._resume: tuple[Offset, Location] = _NOWHERE
        self._recovered_end, self._recovered_us = FIRST_OFFSET, 0
        if recovered is not None:
            self._recovered_end, self._recovered_us = recovered.next_offset, recovered.append_time_us
            self.index = recovered.index
            next_offset = max(next_offset, recovered.next_offset)
        else:
            self.index = TopicIndex()
        self._submitter: Submitter = submitter if submitter is not None else journal
        self._bypasses_journal = submitter is not None
        self._on_unsealed = on_unsealed if on_unsealed is not None else _ignore
        self._seal_bytes = seal_bytes or (1 << 62)
        self._seal_at = 0
        self.unsealed_bytes = 0
        self.unsealed_surplus_bytes = 0
        self.unsealed_since_us = 0
        next_offset = max(next_offset, sealed_offset)
        self.next_offset = next_offset
        """Offset of the next record to be appended."""
        self.end_offset = next_offset
        """Offset behind the last record that has reached the topic's durability; readers see records below it."""
        self.start_offset = min(start_offset, next_offset)
        """Offset of the first retained record."""
        self.journal_start = (
            next_offset if self._bypasses_journal else min(max(start_offset, sealed_offset), next_offset)
        )
        """Offset of the first record that is read from the journal."""
        if self.journal_start:
            # Released before the restart; the file may still exist because other topics need it.
            self.index.drop_before(self.journal_start)
            journal.release(topic_id, self.journal_start)
        if recovered is not None and self.journal_start < next_offset:
            self._measure_unsealed()
            self.unsealed_since_us = recovered.first_time_us
            self._note_unsealed()

    def __repr__(self) -> str:
        return f"<TopicLog {self.topic_id:016x} [{self.start_offset}, {self.end_offset})>"

    @property
    def stored_bytes(self) -> int:
        """Bytes of the topic's batches in the journal that are still needed."""
        return self._journal.stored_bytes(self.topic_id)

    def appended_us(self, offset: Offset) -> int:
        """Return when a record in the journal was appended, microseconds since the epoch; 0: that is not known.

        That is exact for records in the cache; for others it is estimated from the times around them.
        """
        batch = self._cached.get(offset)
        if batch is not None:
            return batch.append_time_us
        later = self._cached.first()
        if later is not None:
            return self.index.time_of(offset, later.base_offset, later.append_time_us)
        return self.index.time_of(offset, self._recovered_end, self._recovered_us)

    # --- Writing ---

    def append(self, part: bytes, header: BatchHeader, now_us: int, owner: object = None) -> StoredBatch:
        """Assign offsets to a batch and submit it; call ``Journal.admit`` first.

        Args:
            part: the producer's part, checked.
            header: of the part.
            now_us: append time, microseconds since the epoch.
            owner: stored in the entry, for ``on_commit``.

        Returns:
            The batch. Its journal entry refers to it as ``entry.batch``.

        Raises:
            JournalFencedError, UnavailableError: the journal accepts no more entries; no offset was used.
        """
        base = self.next_offset
        end = base + header.record_count
        stamp = write_stamp(len(part), self.topic_id, base, now_us, self.owner_epoch)
        batch = StoredBatch(base, end, stamp, part, header, now_us)
        self._submitter.submit(
            Entry(
                EntryType.BATCH,
                self.topic_id,
                self.durability,
                (stamp, part),
                owner,
                end_offset=end,
                batch=batch,
                size=STAMP_SIZE + len(part),
            )
        )
        self.next_offset = end
        return batch

    def settled(self, entry: Entry) -> None:
        """Make a batch visible. Called from ``on_commit``, in order."""
        batch = entry.batch
        assert isinstance(batch, StoredBatch)
        if batch.base_offset != self.end_offset:
            raise InternalError(f"{self!r}: batch at {batch.base_offset} settled out of order")
        self.end_offset = batch.end_offset
        self._cache.append(self._cached, batch)
        if self._bypasses_journal:
            self.journal_start = batch.end_offset
            return
        self.index.add(batch.base_offset, entry.file, entry.position, batch.append_time_us, entry.size)
        self.unsealed_bytes = unsealed = self.unsealed_bytes + entry.size
        if unsealed >= self._seal_at:
            if not self.unsealed_since_us:
                self.unsealed_since_us = batch.append_time_us
            self._note_unsealed()

    def _measure_unsealed(self) -> None:
        self.unsealed_bytes = self.index.bytes_from(self.journal_start)
        self.unsealed_surplus_bytes = self.index.surplus(self.journal_start)

    def _note_unsealed(self) -> None:
        # The first batch counts, too: from then on the age of unsealed batches matters.
        self._seal_at = (self.unsealed_bytes // self._seal_bytes + 1) * self._seal_bytes
        self._on_unsealed(self)

    # --- Reading ---

    def get_cached(self, offset: Offset) -> StoredBatch | None:
        """Return the batch that holds ``offset`` if it is in memory."""
        batch = self._cached.get(offset)
        if batch is None:
            self._cache.misses += 1
        else:
            self._cache.hits += 1
        return batch

    def read_steps(self, offset: Offset, max_bytes: int) -> Reading[list[StoredBatch]]:
        """Read batches from the one that holds ``offset`` on; at least one, and about ``max_bytes`` at most.

        An empty list means that there is nothing between ``offset`` and the end. Below ``start_offset``, reading begins
        there. There are no steps if the first batch is cached.

        Raises:
            DataLossError: stored bytes are damaged; it names the offsets.
        """
        offset = max(offset, self.start_offset)
        if offset >= self.end_offset:
            return []
        found: list[StoredBatch] = []
        self._take_cached(found, offset, max_bytes)
        if found:
            return found
        if offset < self.journal_start:
            behind = self.journal_start  # batches sealed during the read are not in its result
            found = yield ReadSealed(offset, max_bytes)
            if found:
                return found
            # A gap between sealed batches and the journal: a power loss took batches that were not synced.
            return (yield from self.read_steps(max(offset + 1, behind), max_bytes))
        return (yield from self._read_journal(found, offset, max_bytes))

    def _read_journal(self, found: list[StoredBatch], offset: Offset, max_bytes: int) -> Reading[list[StoredBatch]]:
        while True:
            try:
                offset, size = yield from self._take_stored(found, offset, max_bytes)
                break
            except DataLossError:
                if found:
                    return found  # batches before the damage are good; the next read meets it again
                raise
            except NotFoundError:
                # A file was removed during the read: its batches are released.
                if found:
                    return found
                if offset < self.journal_start:
                    return (yield from self.read_steps(offset, max_bytes))  # sealed or expired in the meantime
                if self._resume[0] == offset:
                    self._resume = _NOWHERE  # the end of a removed file; the batch itself is in the next one
                else:
                    raise DataLossError(
                        f"topic {self.topic_id:016x}: offset {offset} was in a journal file that is gone; restore it, "
                        "or move the subscription behind it"
                    ) from None
        self._take_cached(found, offset, max_bytes - size)
        return found

    def offset_steps(self, time_us: int) -> Reading[Offset]:
        """Find the first offset appended at or after a time; the end offset if there is none."""
        unsealed = self.journal_start  # batches sealed from here on are not in the result
        if self.start_offset < unsealed:
            sealed: Offset | None = yield FindSealed(time_us)
            if sealed is not None:
                return max(sealed, self.start_offset)
        offset = max(self.start_offset, unsealed, self.index.before_time(time_us) or FIRST_OFFSET)
        while offset < self.end_offset:
            for batch in (yield from self.read_steps(offset, 4 * REGION_BYTES)):
                if batch.append_time_us >= time_us:
                    return max(batch.base_offset, self.start_offset)
                offset = batch.end_offset
        return self.end_offset

    def _take_cached(self, found: list[StoredBatch], offset: Offset, max_bytes: int) -> int:
        """Append cached batches from ``offset`` on, the first one regardless of its size; return their bytes."""
        size = 0
        get = self._cached.get
        while (not found or size < max_bytes) and (batch := get(offset)) is not None:
            found.append(batch)
            size += len(batch.part)
            offset = batch.end_offset
        return size

    def _take_stored(self, found: list[StoredBatch], offset: Offset, max_bytes: int) -> Reading[tuple[Offset, int]]:
        """Read the journal from the batch that holds ``offset`` on; return the offset reached, and the size."""
        resume_at, location = self._resume
        if resume_at != offset:
            start = self.index.find(offset)
            if start is None:
                raise NotFoundError(f"{self!r}: nothing is stored")
            location = start
        size = 0
        end = self.end_offset  # later batches may be missing in a buffer that was read before
        data, at, (file, position) = b"", 0, location
        while True:
            if at + _HEAD_BYTES > len(data):
                data, at = yield Window(file, position, _HEAD_BYTES)
            if data.startswith(BLOCK_MAGIC, at):
                at += BLOCK_HEADER_SIZE
                position += BLOCK_HEADER_SIZE
                continue
            entry = entry_at(data, at) if at + ENTRY_HEADER_SIZE <= len(data) else None
            if entry is None or not entry.type:
                file, position = self._jump(Location(file, position), offset)
                data, at = b"", 0
                continue
            length = entry.end - entry.position
            if entry.type == EntryType.BATCH and entry.topic_id == self.topic_id:
                if at + length > len(data):
                    data, at = yield Window(file, position, length)
                batch = self._open(data[at + ENTRY_HEADER_SIZE : at + length], offset, Location(file, position))
                if batch.end_offset > offset:
                    if batch.base_offset > offset:
                        raise self._missing(offset, batch.base_offset, Location(file, position))
                    found.append(batch)
                    size += len(batch.part)
                    offset = batch.end_offset
            at += length
            position += length
            if offset >= end or size >= max_bytes or (found and self._cached.get(offset) is not None):
                self._resume = (offset, Location(file, position))
                return offset, size

    def _jump(self, location: Location, offset: Offset) -> Location:
        """Return where the log continues after the end of a journal file."""
        following = self.index.after(location)
        if following is None:
            raise self._missing(offset, self.end_offset, location)
        return following[1]

    def _open(self, stored: bytes, offset: Offset, location: Location) -> StoredBatch:
        try:
            stamp = read_stamp(stored)
            part = stored[STAMP_SIZE:]
            header = check_part(part)
            if stamp.topic_id != self.topic_id:
                raise CorruptBatchError("the batch is of another topic")
        except CorruptBatchError as error:
            if not self._journal.is_live(location.file):
                raise NotFoundError("recycled while it was read") from error
            following = self.index.after(location)
            until = following[0] if following is not None else self.end_offset
            raise self._missing(offset, until, location) from error
        base = stamp.base_offset
        return StoredBatch(base, base + header.record_count, stored[:STAMP_SIZE], part, header, stamp.append_time_us)

    def _missing(self, low: Offset, high: Offset, location: Location) -> DanubeError:
        if low < self.journal_start:
            return NotFoundError(f"{self!r}: offset {low} has left the journal while it was read")
        return DataLossError(
            f"topic {self.topic_id:016x}: offsets [{low}, {high}) are damaged, in journal file {location.file} at byte "
            f"{location.position}; restore them from a copy, or move the subscription behind them"
        )

    # --- Release ---

    def sealed_up_to(self, offset: Offset, size_bytes: int | None) -> None:
        """Release batches below an offset from the journal, which are sealed. Never moves backwards.

        The caller has made that durable: after a restart it passes ``sealed_offset``.

        Args:
            offset: the end of the sealed batches.
            size_bytes: bytes of those from ``journal_start`` on; None: unknown, because ``journal_start`` is in the
                middle of a part. The index measures the rest then.
        """
        if offset <= self.journal_start:
            return
        self._leave_journal(offset)
        if size_bytes is None:
            self._measure_unsealed()
        else:
            self.unsealed_bytes = max(0, self.unsealed_bytes - size_bytes)
        self._note_rest()

    def _leave_journal(self, offset: Offset) -> None:
        self.journal_start = min(offset, self.end_offset)
        self.index.drop_before(self.journal_start)
        self._journal.release(self.topic_id, self.journal_start)

    def _note_rest(self) -> None:
        """Update the state of unsealed batches after a release: none left, or younger ones."""
        self.unsealed_since_us = 0
        self._seal_at = 0
        if self.journal_start == self.end_offset:
            self.unsealed_bytes = self.unsealed_surplus_bytes = 0
        else:
            # The age of the first remaining batch, or slightly more: the index is sparse.
            self.unsealed_since_us = self.index.first_time() or 1
            self._note_unsealed()

    def expire(self, up_to_offset: Offset) -> None:
        """Release everything below an offset, in the journal and in memory. Never moves backwards.

        The caller has made the new ``start_offset`` durable: after a restart, missing batches below it are ignored.
        """
        if up_to_offset > self.start_offset:
            self.start_offset = min(up_to_offset, self.end_offset)
            if self.start_offset > self.journal_start:
                self._leave_journal(self.start_offset)
                # Not the bytes in the journal: a file keeps all batches of a topic until it needs none of them.
                self._measure_unsealed()
                self._note_rest()

    def drop(self) -> None:
        """Release everything in the journal and in memory, after the topic was deleted."""
        self._cached.clear()
        self._journal.drop_topic(self.topic_id)


def _ignore(log: TopicState) -> None:
    """Callback of a log that is not sealed."""
