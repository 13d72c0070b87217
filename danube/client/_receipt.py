"""Results of sending: receipts of stored messages, and pending messages."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import anyio
import msgspec

from danube.client._tasks import copy_error

if TYPE_CHECKING:
    from danube.client._outbox import OutBatch

__all__ = ["OffsetRange", "Pending", "RangeReceipt", "Receipt", "settled"]


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


async def settled(batch: OutBatch) -> None:
    """Wait until a batch is settled, and raise its error if it has failed."""
    if not batch.settled:
        if batch.event is None:
            batch.event = anyio.Event()
        batch.waiters += 1
        try:
            await batch.event.wait()
        finally:
            batch.waiters -= 1
    if batch.error is not None:
        raise copy_error(batch.error)


class Pending(msgspec.Struct, gc=False, eq=False):
    """A message that was passed to :meth:`Producer.send_nowait`; ``await`` it for its receipt.

    Awaiting is optional and can be repeated or cancelled without effect on the message. A failure that was not awaited
    is raised by the next :meth:`Producer.flush`.
    """

    _batch: OutBatch
    _index: int
    _topic: str
    _partition: int

    @property
    def done(self) -> bool:
        """Whether the message is stored or has failed."""
        return self._batch.settled

    def __await__(self) -> Generator[object, object, Receipt]:
        return self.receipt().__await__()

    async def receipt(self) -> Receipt:
        """Wait for the receipt; the same as awaiting the object itself."""
        batch = self._batch
        await settled(batch)
        base = batch.base_offset
        return Receipt(self._topic, base + self._index if base >= 0 else base, self._partition)
