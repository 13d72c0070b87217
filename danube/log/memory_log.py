"""The log of a topic of durability ``none``: assigns offsets, stores nothing."""

from __future__ import annotations

from collections.abc import Callable

from danube.log.cache import StoredBatch
from danube.model.batch import BatchHeader, write_stamp
from danube.model.ids import FIRST_OFFSET, NO_OWNER_EPOCH, Offset, OwnerEpoch, TopicId

__all__ = ["MemoryLog"]


def _allow() -> None:
    """The topic has no other owner."""


class MemoryLog:
    """Counts offsets from 0 since the broker started. Reads return nothing: undelivered messages are lost.

    Args:
        topic_id: of its topic.
        owner_epoch: written to every stamp.
        check: called before each batch; raises a DanubeError while another broker may own the topic.
    """

    stored_bytes = 0

    def __init__(
        self, topic_id: TopicId, owner_epoch: OwnerEpoch = NO_OWNER_EPOCH, check: Callable[[], None] = _allow
    ) -> None:
        self._topic_id = topic_id
        self._check = check
        self.owner_epoch = owner_epoch
        self.next_offset = FIRST_OFFSET

    @property
    def end_offset(self) -> Offset:
        """The offset of the next message."""
        return self.next_offset

    @property
    def start_offset(self) -> Offset:
        """The same as ``end_offset``: there is nothing to read."""
        return self.next_offset

    def append(self, part: bytes, header: BatchHeader, now_us: int) -> StoredBatch:
        """Assign offsets to a batch.

        Raises:
            DanubeError: another broker may own the topic.
        """
        self._check()
        base = self.next_offset
        self.next_offset = base + header.record_count
        stamp = write_stamp(len(part), self._topic_id, base, now_us, self.owner_epoch)
        return StoredBatch(base, self.next_offset, stamp, part, header, now_us)

    def get_cached(self, offset: Offset) -> StoredBatch | None:
        """Return None."""
        return None

    async def read(self, offset: Offset, max_bytes: int) -> list[StoredBatch]:
        """Return nothing."""
        return []

    async def offset_at(self, time_us: int) -> Offset:
        """Return the end offset: no past messages are stored."""
        return self.next_offset
