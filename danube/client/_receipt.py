"""Pending messages, and waiting for their receipts."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import anyio
import msgspec

from danube.client._receipts import Receipt
from danube.client._tasks import copy_error

if TYPE_CHECKING:
    from danube.client._outbox import OutBatch

__all__ = ["Pending", "settled"]


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
