"""In-memory cache of recent batches: one byte-bounded queue for all topics of a broker. Pure.

Most consumers read the most recently committed batches next. Batches are evicted in the order of insertion, so the
cached part of a topic is always the end of its log without a gap, and a reader that falls out of the cache continues
in the journal. Reading promotes nothing: a slow reader must not evict recent batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Any, Final

from danube.model.batch import BatchHeader
from danube.model.ids import Offset

__all__ = ["BatchCache", "StoredBatch", "TopicCache"]

_OVERHEAD_BYTES: Final = 700
"""Objects around the bytes of a batch: header, stamp, batch, queue slots."""


class StoredBatch:
    """A batch with its place in a topic's log.

    Attributes:
        base_offset, end_offset: offset of its first record, and the offset behind its last one.
        stamp, part: the two parts of the stored bytes.
        header: header of the producer's part.
        append_time_us: taken from the stamp, microseconds since the epoch.
        memo: any object that a layer above keeps as long as the batch (the calls: its encoded delivery); not read here.
    """

    __slots__ = ("append_time_us", "base_offset", "end_offset", "header", "memo", "part", "stamp")

    def __init__(
        self,
        base_offset: Offset,
        end_offset: Offset,
        stamp: bytes,
        part: bytes,
        header: BatchHeader,
        append_time_us: int,
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.stamp = stamp
        self.part = part
        self.header = header
        self.append_time_us = append_time_us
        self.memo: Any = None

    def __repr__(self) -> str:
        return f"<StoredBatch [{self.base_offset}, {self.end_offset}) {len(self.part)} bytes>"


class TopicCache:
    """The cached batches of one topic, in the order of their offsets."""

    __slots__ = ("_bases", "_batches", "_head")

    def __init__(self) -> None:
        self._bases: list[Offset] = []
        self._batches: list[StoredBatch | None] = []
        self._head = 0

    def __len__(self) -> int:
        return len(self._bases) - self._head

    def get(self, offset: Offset) -> StoredBatch | None:
        """Return the batch that holds ``offset``."""
        at = bisect_right(self._bases, offset, self._head) - 1
        if at < self._head:
            return None
        batch = self._batches[at]
        assert batch is not None
        return batch if offset < batch.end_offset else None

    def first(self) -> StoredBatch | None:
        """Return the batch with the lowest offset."""
        return self._batches[self._head] if self._head < len(self._batches) else None

    def clear(self) -> None:
        """Remove all batches: at once for readers, while their bytes are released later by the cache's queue."""
        self._bases.clear()
        self._batches.clear()
        self._head = 0

    def _evict(self, batch: StoredBatch) -> None:
        head = self._head
        if head == len(self._batches) or self._batches[head] is not batch:
            return  # cleared in the meantime
        self._batches[head] = None
        self._head = head = head + 1
        if head * 2 >= len(self._bases):  # each batch is moved at most once on average
            del self._bases[:head], self._batches[:head]
            self._head = 0


class BatchCache:
    """The queue over all topics, bounded by ``limit_bytes`` (``Limits.cache_bytes``)."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._queue: deque[tuple[TopicCache, StoredBatch]] = deque()
        self.used_bytes = 0
        """Bytes of all cached batches, including an estimate for the objects around them."""
        self.hits = 0
        """Look-ups that have found their batch."""
        self.misses = 0
        """Look-ups that have not, so that a file or an object is read."""

    def append(self, topic: TopicCache, batch: StoredBatch) -> None:
        """Add the next batch of a topic, and drop the oldest ones of any topic until the limit is kept."""
        topic._bases.append(batch.base_offset)
        topic._batches.append(batch)
        queue = self._queue
        queue.append((topic, batch))
        used = self.used_bytes + _cost(batch)
        while used > self._limit:
            oldest_topic, oldest = queue.popleft()
            used -= _cost(oldest)
            oldest_topic._evict(oldest)
        self.used_bytes = used


def _cost(batch: StoredBatch) -> int:
    # Large buffers of varying size leave holes in the heap: resident memory was measured at up to 1.5 times their sum.
    size = len(batch.part)
    return size + size // 2 + _OVERHEAD_BYTES
