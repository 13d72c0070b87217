"""The log of one topic: assigns offsets, and finds batches again in the cache or in the journal.

A batch gets its offset when it is appended and becomes visible when its journal entry settles, in the same order.
Readers see ``[start_offset, end_offset)`` and ask for "the batches from offset X on"; whether those come out of memory,
off the disk or from far away is not theirs to know. Three places follow each other::

    start_offset              journal_start                 (cache begins)         end_offset
         | sealed: SealedReader     | journal files: index        | cache               |

The cache always holds the end of the log without a gap, so a read from the disk stops where the cache begins. Sealing
moves ``journal_start`` up, retention ``start_offset``; a reader that is overtaken by one of them looks again. A topic
of durability ``remote`` has no share of the journal: what has reached its durability is sealed already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from danube.log.cache import BatchCache, StoredBatch, TopicCache
from danube.log.format import BLOCK_HEADER_SIZE, BLOCK_MAGIC, ENTRY_HEADER_SIZE, Entry, EntryType, entry_at
from danube.log.index import REGION_BYTES, Location, TopicIndex
from danube.log.journal import Journal
from danube.log.recovered import RecoveredTopic
from danube.model.batch import STAMP_SIZE, BatchHeader, check_part, read_stamp, write_stamp
from danube.model.errors import CorruptBatchError, DanubeError, DataLossError, InternalError, NotFoundError
from danube.model.policies import Durability

__all__ = ["SealedReader", "Submitter", "TopicLog"]

_HEAD_BYTES: Final = max(BLOCK_HEADER_SIZE, ENTRY_HEADER_SIZE)
_NOWHERE: Final = (-1, Location(0, 0))


class SealedReader(Protocol):
    """Reads what the journal has given away."""

    async def read(self, topic_id: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Return batches from the one that holds ``offset`` on (or the next behind it); none if nothing is sealed."""
        ...

    async def offset_at(self, topic_id: int, time_us: int) -> int | None:
        """Return the first sealed offset that was appended at or after a time; None if all is older."""
        ...


class Submitter(Protocol):
    """Takes entries and brings them to their durability."""

    def submit(self, entry: Entry) -> None:
        """Take an entry; whoever owns it is told when it has settled."""
        ...


class NothingSealed:
    """The reader of a log without history."""

    async def read(self, topic_id: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Return nothing."""
        return []

    async def offset_at(self, topic_id: int, time_us: int) -> int | None:
        """Return None."""
        return None


class TopicLog:
    """See the module.

    Args:
        topic_id, durability: of the topic.
        journal: where its batches are, while they are not sealed.
        cache: shared by all topics of the broker.
        owner_epoch: goes into every stamp.
        next_offset: the first offset to be given out; what recovery found is taken into account.
        start_offset: the first offset that readers may still want.
        sealed_offset: what lies below is sealed, and not wanted from the journal.
        recovered: what the journal holds of the topic.
        sealed: reads what lies below ``sealed_offset``.
        submitter: where entries go instead of the journal (durability ``remote``).
        on_unsealed: called when there is something to seal again, and when it has grown by ``seal_bytes``.
        seal_bytes: see ``on_unsealed``.

    Attributes:
        unsealed_bytes: of batches that are settled and not sealed. After a restart it may be too high by
            ``unsealed_surplus_bytes``, because the index is sparse.
        unsealed_surplus_bytes: see ``unsealed_bytes``; 0 once all that a restart found is sealed.
        unsealed_since_us: append time of the oldest of them; 0 if there is none.
    """

    def __init__(
        self,
        topic_id: int,
        durability: Durability,
        journal: Journal,
        cache: BatchCache,
        owner_epoch: int = 0,
        next_offset: int = 0,
        start_offset: int = 0,
        recovered: RecoveredTopic | None = None,
        *,
        sealed_offset: int = 0,
        sealed: SealedReader | None = None,
        submitter: Submitter | None = None,
        on_unsealed: Callable[[TopicLog], None] | None = None,
        seal_bytes: int = 0,
    ) -> None:
        self.topic_id = topic_id
        self.durability = durability
        self.owner_epoch = owner_epoch
        self._journal = journal
        self._cache = cache
        self._cached = TopicCache()
        assert durability is not Durability.NONE, "a topic that keeps nothing has no log"
        self._resume: tuple[int, Location] = _NOWHERE
        if recovered is not None:
            self.index = recovered.index
            next_offset = max(next_offset, recovered.next_offset)
        else:
            self.index = TopicIndex()
        self._sealed: SealedReader = sealed if sealed is not None else NothingSealed()
        self._submitter: Submitter = submitter if submitter is not None else journal
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
        """Behind the last record that has reached the topic's durability; readers see what is below."""
        self.start_offset = min(start_offset, next_offset)
        """The first record that is kept."""
        self.journal_start = next_offset if self._is_remote else min(max(start_offset, sealed_offset), next_offset)
        """The first record that is looked for in the journal."""
        if self.journal_start:
            # Released in an earlier life; the file may still be there for the sake of other topics.
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

    # --- Writing ---

    def append(self, part: bytes, header: BatchHeader, now_us: int, owner: object = None) -> StoredBatch:
        """Give a batch its offsets and submit it; ``Journal.admit`` comes before.

        Args:
            part: the producer's part, checked.
            header: of the part.
            now_us: append time, microseconds since the epoch.
            owner: goes into the entry, for ``on_commit``.

        Returns:
            The batch. Its journal entry has it as ``entry.batch``.

        Raises:
            JournalFencedError, UnavailableError: the journal takes nothing more; no offset was used.
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
        if self._is_remote:
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
        # The first batch counts, too: from then on the age of what is unsealed matters.
        self._seal_at = (self.unsealed_bytes // self._seal_bytes + 1) * self._seal_bytes
        self._on_unsealed(self)

    # --- Reading ---

    def get_cached(self, offset: int) -> StoredBatch | None:
        """Return the batch that holds ``offset`` if it is in memory."""
        return self._cached.get(offset)

    async def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Return batches from the one that holds ``offset`` on; at least one, and about ``max_bytes`` at most.

        An empty list means that nothing lies between ``offset`` and the end. Below ``start_offset`` it begins there.
        Wait-free if the first batch is cached.

        Raises:
            DataLossError: stored bytes are damaged; it names the offsets.
            StorageError: sealed batches cannot be read now.
            OSError: the disk cannot be read.
        """
        offset = max(offset, self.start_offset)
        if offset >= self.end_offset:
            return []
        found: list[StoredBatch] = []
        self._take_cached(found, offset, max_bytes)
        if found:
            return found
        if offset < self.journal_start:
            behind = self.journal_start  # what is sealed while we ask is not in the answer
            found = await self._sealed.read(self.topic_id, offset, max_bytes)
            if found:
                return found
            # A hole between what was sealed and what the journal has: a power loss took what was not synced.
            return await self.read(max(offset + 1, behind), max_bytes)
        return await self._read_journal(found, offset, max_bytes)

    async def _read_journal(self, found: list[StoredBatch], offset: int, max_bytes: int) -> list[StoredBatch]:
        while True:
            try:
                offset, size = await self._take_stored(found, offset, max_bytes)
                break
            except DataLossError:
                if found:
                    return found  # what lies before the damage is good; whoever goes on meets it again
                raise
            except NotFoundError:
                # A file went away while we read: what was in it is released.
                if found:
                    return found
                if offset < self.journal_start:
                    return await self.read(offset, max_bytes)  # sealed, or expired, meanwhile
                if self._resume[0] == offset:
                    self._resume = _NOWHERE  # the end of a file that is gone; the batch itself is in the next one
                else:
                    raise DataLossError(
                        f"topic {self.topic_id:016x}: offset {offset} was in a journal file that is gone; restore it, "
                        "or move the subscription behind it"
                    ) from None
        self._take_cached(found, offset, max_bytes - size)
        return found

    async def offset_at(self, time_us: int) -> int:
        """Return the first offset appended at or after a time; the end if there is none."""
        unsealed = self.journal_start  # what is sealed from here on while we ask is not in the answer
        if self.start_offset < unsealed:
            sealed = await self._sealed.offset_at(self.topic_id, time_us)
            if sealed is not None:
                return max(sealed, self.start_offset)
        offset = max(self.start_offset, unsealed, self.index.before_time(time_us) or 0)
        while offset < self.end_offset:
            for batch in await self.read(offset, 4 * REGION_BYTES):
                if batch.append_time_us >= time_us:
                    return max(batch.base_offset, self.start_offset)
                offset = batch.end_offset
        return self.end_offset

    def _take_cached(self, found: list[StoredBatch], offset: int, max_bytes: int) -> int:
        """Append cached batches from ``offset`` on, the first in any case; return their bytes."""
        size = 0
        get = self._cached.get
        while (not found or size < max_bytes) and (batch := get(offset)) is not None:
            found.append(batch)
            size += len(batch.part)
            offset = batch.end_offset
        return size

    async def _take_stored(self, found: list[StoredBatch], offset: int, max_bytes: int) -> tuple[int, int]:
        """Walk through the journal from the batch that holds ``offset``; return where it stopped, and the size."""
        resume_at, location = self._resume
        if resume_at != offset:
            start = self.index.find(offset)
            if start is None:
                raise NotFoundError(f"{self!r}: nothing is stored")
            location = start
        size = 0
        window = self._journal.window
        end = self.end_offset  # what settles later may be missing in a buffer that was read before
        data, at, (file, position) = b"", 0, location
        while True:
            if at + _HEAD_BYTES > len(data):
                data, at = await window(file, position, _HEAD_BYTES)
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
                    data, at = await window(file, position, length)
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

    def _jump(self, location: Location, offset: int) -> Location:
        """Return where the log goes on behind the end of a journal file."""
        following = self.index.after(location)
        if following is None:
            raise self._missing(offset, self.end_offset, location)
        return following[1]

    def _open(self, stored: bytes, offset: int, location: Location) -> StoredBatch:
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

    def _missing(self, low: int, high: int, location: Location) -> DanubeError:
        if low < self.journal_start:
            return NotFoundError(f"{self!r}: offset {low} has left the journal while it was read")
        return DataLossError(
            f"topic {self.topic_id:016x}: offsets [{low}, {high}) are damaged, in journal file {location.file} at byte "
            f"{location.position}; restore them from a copy, or move the subscription behind them"
        )

    # --- Forgetting ---

    def sealed_up_to(self, offset: int, size_bytes: int) -> None:
        """Keep nothing below an offset in the journal: its ``size_bytes`` of batches are sealed. Never goes back.

        The caller has made that durable: after a restart it gives ``sealed_offset``.
        """
        if offset <= self.journal_start:
            return
        self._leave_journal(offset)
        self.unsealed_bytes = max(0, self.unsealed_bytes - size_bytes)
        self._note_rest()

    def _leave_journal(self, offset: int) -> None:
        self.journal_start = min(offset, self.end_offset)
        self.index.drop_before(self.journal_start)
        self._journal.release(self.topic_id, self.journal_start)

    def _note_rest(self) -> None:
        """What is unsealed has become less: nothing, or something with an age of its own."""
        self.unsealed_since_us = 0
        self._seal_at = 0
        if self.journal_start == self.end_offset:
            self.unsealed_bytes = self.unsealed_surplus_bytes = 0
        else:
            # The age is that of the first batch behind, or a little more: the index is sparse.
            self.unsealed_since_us = self.index.first_time() or 1
            self._note_unsealed()

    def expire(self, up_to_offset: int) -> None:
        """Keep nothing below an offset anywhere. Never lowers anything.

        The caller has made the new ``start_offset`` durable: after a restart, what is missing below it is not missed.
        """
        if up_to_offset > self.start_offset:
            self.start_offset = min(up_to_offset, self.end_offset)
            if self.start_offset > self.journal_start:
                self._leave_journal(self.start_offset)
                # Not what the journal stores: a file keeps all of a topic until it needs nothing of it.
                self._measure_unsealed()
                self._note_rest()

    def drop(self) -> None:
        """The topic is gone: release everything in the journal and in memory."""
        self._cached.clear()
        self._journal.drop_topic(self.topic_id)

    @property
    def _is_remote(self) -> bool:
        return self.durability is Durability.REMOTE


def _ignore(log: TopicLog) -> None:
    """Nobody seals."""
