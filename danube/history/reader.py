"""Reads sealed parts: ranged reads from the storage backends, with read-ahead and a bounded cache.

A reader that jumps to an offset gets one small range, so that the first message arrives soon. A reader that continues
from there gets read-ahead: first one chunk, then more while it keeps up, up to four. Chunks are 2 MiB of an object at
aligned positions, so several readers of the same history share them. Fetches run in tasks of their own: cancelling a
reader does not affect the others, and no two readers fetch the same chunk at the same time.

Every batch is verified before it is returned. Bytes that fail verification are fetched once more, past the cache,
before the damage is reported.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.objects import load_footer
from danube.history.parts import ObjectRef, PartRecord
from danube.history.segment import PartIndex, SegmentFooter, cut_batches, read_index
from danube.log import StoredBatch
from danube.model.errors import (
    CorruptBatchError,
    DataLossError,
    StorageError,
    StorageNotFoundError,
    StorageRangeError,
    StorageUnavailableError,
)
from danube.model.ids import FIRST_OFFSET, Offset, ProducerId, TopicId
from danube.model.limits import KIB, MIB, Limits
from danube.storage import Storage

__all__ = ["CHUNK_BYTES", "SegmentReader"]

CHUNK_BYTES: Final = 2 * MIB
_FIRST_BYTES: Final = 128 * KIB
"""Size of the first read after a jump."""
_MAX_FOOTERS: Final = 32
_MAX_FIRST_READS: Final = 4
_MAX_AHEAD: Final = 4
_MAX_STREAMS: Final = 1024
_INDEX_CACHE_BYTES: Final = 16 * MIB


class _Fetch:
    """A chunk that is being fetched."""

    __slots__ = ("data", "done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.data = b""
        self.error: BaseException | None = None


class _Place(NamedTuple):
    """Where a reader continues: a part, and the position in its object."""

    record: PartRecord
    position: int
    first_bytes: int
    """Size of the first read, if nothing is read ahead."""
    ahead: int


class SegmentReader:
    """Reads sealed history for all topics of a broker. Fetches run within :meth:`run`.

    Args:
        catalogue: lists the parts.
        storages: by name.
        limits: ``segment_cache_bytes`` is used.
        chunk_bytes, first_bytes: sizes of a fetch and of the first read after a jump.
    """

    def __init__(
        self,
        catalogue: HistoryCatalogue,
        storages: Mapping[str, Storage],
        limits: Limits,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        first_bytes: int = _FIRST_BYTES,
    ) -> None:
        self._catalogue = catalogue
        self._storages = storages
        self._chunk_bytes = chunk_bytes
        self._first_bytes = first_bytes
        self._max_chunks = max(2 * _MAX_AHEAD, limits.segment_cache_bytes // chunk_bytes)
        self._chunks: OrderedDict[tuple[ObjectRef, int], bytes] = OrderedDict()
        self._fetches: dict[tuple[ObjectRef, int], _Fetch] = {}
        self._indexes: OrderedDict[tuple[ObjectRef, int], PartIndex] = OrderedDict()
        self._index_bytes = 0
        self._first_reads: OrderedDict[tuple[ObjectRef, int, int], bytes] = OrderedDict()
        self._footers: OrderedDict[ObjectRef, SegmentFooter] = OrderedDict()
        self._streams: OrderedDict[tuple[TopicId, Offset], _Place] = OrderedDict()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the fetches until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    # --- Interface of TopicLog ---

    def end_offset(self, topic_id: TopicId) -> Offset:
        """Return the offset after the last sealed one."""
        topic = self._catalogue.find(topic_id)
        return topic.end_offset if topic is not None else FIRST_OFFSET

    async def read(self, topic_id: TopicId, offset: Offset, max_bytes: int) -> list[StoredBatch]:
        """Return sealed batches from the one that holds ``offset`` on (or the next one), about ``max_bytes``.

        All batches of one call come from one part. An empty list means that nothing from ``offset`` on is sealed.

        Raises:
            DataLossError: the stored bytes are damaged, or the object is missing; it names the offsets.
            StorageError: the backend cannot be reached now, or denies access.
        """
        place = self._streams.pop((topic_id, offset), None)
        while (record := self._lookup(topic_id, offset)) is not None:
            try:
                if place is None or place.record is not record:
                    place = _Place(record, *await self._locate(record, offset), 0)
                found, position = await self._read_part(place, offset, max_bytes)
            except (StorageNotFoundError, StorageRangeError) as error:
                if self._lookup(topic_id, offset) is record:
                    raise self._lost(record, offset, f"the object is missing or truncated: {error}") from error
                continue  # merged or expired in the meantime
            self._remember(topic_id, found[-1].end_offset, record, position, place.ahead)
            return found
        return []

    async def offset_at(self, topic_id: TopicId, time_us: int) -> Offset | None:
        """Return the first sealed offset appended at or after a time; None if all are older.

        Raises the errors of :meth:`read`.
        """
        while True:
            topic = self._catalogue.find(topic_id)
            record = topic.find_time(time_us) if topic is not None else None
            if record is None:
                return None
            base = record.part.base_offset
            if record.part.first_time_us >= time_us:
                break
            try:
                base, _ = (await self._index(record)).before_time(time_us)
                break
            except (StorageNotFoundError, StorageRangeError) as error:
                if self._lookup(topic_id, base) is record:
                    raise self._lost(record, base, f"the object is missing or truncated: {error}") from error
        while True:
            batches = await self.read(topic_id, base, self._first_bytes)
            if not batches:
                return None
            for batch in batches:
                if batch.append_time_us >= time_us:
                    return batch.base_offset
            base = batches[-1].end_offset

    async def names(self, record: PartRecord) -> tuple[str, dict[ProducerId, str]]:
        """Return the topic's name when the part's object was written, and the names of its producers.

        Raises the errors of :meth:`read`.
        """
        footer = self._footers.get(record.ref)
        if footer is None:
            footer = self._footers[record.ref] = await self.footer(record.storage, record.object)
            while len(self._footers) > _MAX_FOOTERS:
                self._footers.popitem(last=False)
        return footer.names.get(record.part.topic_id, ""), footer.producers

    async def footer(self, storage: str, key: str) -> SegmentFooter:
        """Read the footer of an object.

        Raises:
            DataLossError: it is damaged.
            StorageError: it cannot be read.
        """
        return await load_footer(self._storages[storage], key)

    async def check_index(self, record: PartRecord) -> None:
        """Read the index of a part past the cache.

        Raises the errors of :meth:`read`.
        """
        await self._fetch_index(record)

    # --- Parts ---

    def _lookup(self, topic_id: TopicId, offset: Offset) -> PartRecord | None:
        topic = self._catalogue.find(topic_id)
        return topic.find(max(offset, topic.start_offset)) if topic is not None else None

    async def _locate(self, record: PartRecord, offset: Offset) -> tuple[int, int]:
        """Return the position in the object at which to start searching for a batch, and the bytes to read there."""
        part = record.part
        if part.size_bytes <= self._first_bytes:
            return part.start, self._first_bytes
        # Read up to the next index entry: a large batch takes one read, and no more than needed is read.
        position, following = (await self._index(record)).find(offset)
        size = (following if following >= 0 else part.size_bytes) - position
        return part.start + position, max(size, self._first_bytes)

    async def _index(self, record: PartRecord) -> PartIndex:
        key = (record.ref, record.part.index_start)
        index = self._indexes.get(key)
        if index is None:
            try:
                index = await self._fetch_index(record)
            except DataLossError:
                index = await self._fetch_index(record)  # as with batches: the damage may be from the transfer
            if key not in self._indexes:
                self._indexes[key] = index
                self._index_bytes += index.size_bytes
            while self._index_bytes > _INDEX_CACHE_BYTES and len(self._indexes) > 1:
                _, old = self._indexes.popitem(last=False)
                self._index_bytes -= old.size_bytes
        else:
            self._indexes.move_to_end(key)
        return index

    async def _fetch_index(self, record: PartRecord) -> PartIndex:
        part = record.part
        data = await self._storage(record).get(record.object, part.index_start, part.index_end)
        return read_index(data, part, self._where(record))

    async def _read_part(self, place: _Place, offset: Offset, max_bytes: int) -> tuple[list[StoredBatch], int]:
        """Read batches of one part; return them, and the position of the next one."""
        fresh = False
        while True:
            try:
                return await self._cut(place, offset, max_bytes, fresh=fresh)
            except CorruptBatchError as error:
                if fresh:
                    raise self._lost(place.record, offset, str(error)) from error
                fresh = True

    async def _cut(
        self, place: _Place, offset: Offset, max_bytes: int, *, fresh: bool
    ) -> tuple[list[StoredBatch], int]:
        record, position, first_bytes, ahead = place
        part = record.part
        found: list[StoredBatch] = []
        size = 0
        try:
            # After a jump, return the result of the first read at once; chunks follow with the next call.
            while position < part.end and size < max_bytes and (ahead or not found):
                data, at, limit = await self._bytes_at(record, position, ahead, first_bytes, fresh=fresh)
                wanted = 0
                for batch, following, missing in cut_batches(data, at, limit, part.topic_id):
                    if batch is None:
                        wanted = missing
                        break
                    position += following - at
                    at = following
                    if batch.end_offset > offset:
                        found.append(batch)
                        size += len(batch.part)
                        if size >= max_bytes:
                            return found, position
                if wanted:
                    # A batch across the edge of the buffer; its length is known once its stamp is complete.
                    if found:
                        return found, position
                    batch, position = await self._one(record, position, limit - at + wanted, fresh=fresh)
                    if batch.end_offset > offset:
                        found.append(batch)
                        size += len(batch.part)
        except CorruptBatchError as error:
            # Return the batches before the damage; the next read reports it.
            if not found:
                raise CorruptBatchError(f"at byte {position}: {error}") from error
        if not found:
            raise CorruptBatchError(f"the part ends before offset {offset}")
        return found, position

    async def _one(self, record: PartRecord, position: int, size: int, *, fresh: bool) -> tuple[StoredBatch, int]:
        """Read one batch that crosses an edge, of at least ``size`` bytes."""
        part = record.part
        while position + size <= part.end:
            data = await self._span(record, position, position + size, fresh=fresh)
            for batch, following, missing in cut_batches(data, 0, len(data), part.topic_id):
                if batch is not None:
                    return batch, position + following
                size = len(data) + missing
        raise CorruptBatchError("the last batch extends beyond the end of its part")

    async def _first_read(self, record: PartRecord, start: int, end: int) -> bytes:
        """Read a small range. A seek by time and the reader after it request the same one: the last few are cached."""
        key = (record.ref, start, end)
        data = self._first_reads.get(key)
        if data is None:
            data = self._first_reads[key] = await self._storage(record).get(record.object, start, end)
            while len(self._first_reads) > _MAX_FIRST_READS:
                self._first_reads.popitem(last=False)
        return data

    async def _span(self, record: PartRecord, start: int, end: int, *, fresh: bool) -> bytes:
        """Return exactly these bytes, assembled from their chunks."""
        pieces = []
        while start < end:
            data, at, limit = await self._bytes_at(record, start, 1, 0, fresh=fresh)
            piece = data[at : min(limit, at + end - start)]
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)

    async def _bytes_at(
        self, record: PartRecord, position: int, ahead: int, first_bytes: int, *, fresh: bool
    ) -> tuple[bytes, int, int]:
        """Return a buffer, the index of ``position`` in it, and the end of the part's bytes in it."""
        part = record.part
        number = position // self._chunk_bytes
        start = number * self._chunk_bytes
        key = (record.ref, number)
        if fresh:
            self._chunks.pop(key, None)
            self._first_reads.clear()
        elif not ahead and key not in self._chunks and key not in self._fetches:
            data = await self._first_read(record, position, min(position + first_bytes, part.end))
            return data, 0, len(data)
        if ahead:
            self._read_ahead(record, number + 1, ahead)
        data = await self._chunk(record, number)
        at, limit = position - start, min(len(data), part.end - start)
        if at >= limit:
            raise CorruptBatchError("the object is truncated here")
        return data, at, limit

    # --- Chunks ---

    async def _chunk(self, record: PartRecord, number: int) -> bytes:
        key = (record.ref, number)
        data = self._chunks.get(key)
        if data is not None:
            self._chunks.move_to_end(key)
            return data
        fetch = self._fetches.get(key) or self._start_fetch(record, number)
        await fetch.done.wait()
        if fetch.error is not None:
            raise fetch.error
        return fetch.data

    def _read_ahead(self, record: PartRecord, number: int, count: int) -> None:
        """Start to fetch chunks that will be needed next, in this part or the following one."""
        for _ in range(count):
            if number * self._chunk_bytes >= record.part.end:
                topic = self._catalogue.find(record.part.topic_id)
                following = topic.find(record.part.end_offset) if topic is not None else None
                if following is None:
                    return
                record, number = following, following.part.start // self._chunk_bytes
            key = (record.ref, number)
            if key not in self._chunks and key not in self._fetches:
                self._start_fetch(record, number)
            number += 1

    def _start_fetch(self, record: PartRecord, number: int) -> _Fetch:
        fetch = _Fetch()
        self._fetches[(record.ref, number)] = fetch
        assert self._nursery is not None, "the reader is not running"
        self._nursery.start_soon(self._fetch, record, number, fetch)
        return fetch

    async def _fetch(self, record: PartRecord, number: int, fetch: _Fetch) -> None:
        key = (record.ref, number)
        try:
            start = number * self._chunk_bytes
            # The size is known from the object's parts: nothing after the last needed byte is requested.
            found = self._catalogue.objects.get(record.ref) or self._catalogue.commits.get(record.ref)
            size = found.size_bytes if found is not None else record.part.end
            fetch.data = await self._storage(record).get(record.object, start, min(start + self._chunk_bytes, size))
            self._chunks[key] = fetch.data
            while len(self._chunks) > self._max_chunks:
                self._chunks.popitem(last=False)
        except Exception as error:  # noqa: BLE001 - raised in the waiting readers; a read-ahead has none
            fetch.error = error
        except BaseException:
            fetch.error = StorageUnavailableError("the history is being closed; retry at its next owner")
            raise
        finally:
            del self._fetches[key]
            fetch.done.set()

    def _remember(self, topic_id: TopicId, offset: Offset, record: PartRecord, position: int, ahead: int) -> None:
        """Record that a reader is expected to continue here."""
        ahead = min(max(1, 2 * ahead), _MAX_AHEAD)
        if position >= record.part.end:
            following = self._lookup(topic_id, offset)
            if following is None:
                return
            record, position = following, following.part.start
        if self._worth_it(record, position):
            self._streams[(topic_id, offset)] = _Place(record, position, self._first_bytes, ahead)
            while len(self._streams) > _MAX_STREAMS:
                self._streams.popitem(last=False)

    def _worth_it(self, record: PartRecord, position: int) -> bool:
        """Return whether the rest of a part is larger than one small read."""
        return record.part.end - position > self._first_bytes

    # --- Errors ---

    def _storage(self, record: PartRecord) -> Storage:
        storage = self._storages.get(record.storage)
        if storage is None:
            raise StorageError(
                f"storage {record.storage!r} is not configured, but holds {record.object}; add it to the configuration"
            )
        return storage

    def _where(self, record: PartRecord) -> str:
        storage = self._storages.get(record.storage)
        return f"{storage.url if storage is not None else record.storage}/{record.object}"

    def _lost(self, record: PartRecord, offset: Offset, why: str) -> DataLossError:
        part = record.part
        return DataLossError(
            f"topic {part.topic_id:016x}: offsets [{max(offset, part.base_offset)}, {part.end_offset}) cannot be read"
            f" from {self._where(record)}, bytes [{part.start}, {part.end}): {why}; restore the object from a copy, or"
            " seek the subscription past them"
        )
