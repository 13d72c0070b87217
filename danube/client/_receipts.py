"""Receipts: where messages are stored. Pure."""

from __future__ import annotations

import msgspec

__all__ = ["OffsetRange", "RangeReceipt", "Receipt"]


class Receipt(msgspec.Struct, frozen=True):
    """Where a message is stored."""

    topic: str
    """The topic; of a partitioned topic, the partition."""
    offset: int
    """-1 in one rare case: a retry of a message stored so long ago that the broker no longer knows its offset."""
    partition: int = 0
    """Index of the partition; 0 in a plain topic."""


class OffsetRange(msgspec.Struct, frozen=True):
    """``count`` messages stored at consecutive offsets, in the order in which they were passed."""

    topic: str
    start: int
    """Offset of the first one; -1 if the broker no longer knows (see :class:`Receipt`)."""
    count: int
    partition: int = 0

    @property
    def end(self) -> int:
        """Offset behind the last one; -1 if the broker no longer knows the offsets."""
        return self.start + self.count if self.start >= 0 else self.start


class RangeReceipt(msgspec.Struct, frozen=True):
    """Where the messages of one ``send_many`` are stored."""

    ranges: list[OffsetRange]
    """Within a partition in the order of the messages. Neighbouring batches are joined."""

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(part.count for part in self.ranges)
