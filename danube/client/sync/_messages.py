"""Messages and batches of blocking consumers and readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from danube.client._message import BareMessage, DeliveredBatch

__all__ = ["Batch", "Message"]


class Message(BareMessage, gc=False, eq=False):
    """One message; see :class:`danube.client.Message`."""

    def ack(self) -> None:
        """Acknowledge the message; returns at once, :meth:`Consumer.flush_acks` waits until it is durable."""
        self.ack_nowait()

    def nack(self, delay_s: float | None = None, reason: str = "") -> None:
        """Refuse the message; see :meth:`danube.client.Message.nack`."""
        self._batch.feed.nack([self.offset, self.offset + 1], delay_s, reason, self._batch.moves)

    def extend_lease(self, lease_s: float | None = None) -> None:
        """Ask for more time; see :meth:`danube.client.Message.extend_lease`."""
        self._batch.feed.extend([self.offset, self.offset + 1], lease_s, self._batch.moves)


class Batch(DeliveredBatch, Sequence[Message]):
    """Messages that were delivered together; see :class:`danube.client.Batch`."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self.pick(Message, index)

    def __iter__(self) -> Iterator[Message]:
        return self.build(Message)

    def ack(self) -> None:
        """Acknowledge all messages of the batch; as :meth:`Message.ack`."""
        self.ack_nowait()

    def nack(self, delay_s: float | None = None, reason: str = "") -> None:
        """Refuse all messages of the batch; as :meth:`Message.nack`."""
        self.feed.nack(self.ranges, delay_s, reason, self.moves)

    def extend_lease(self, lease_s: float | None = None) -> None:
        """Ask for more time for all messages of the batch; as :meth:`Message.extend_lease`."""
        self.feed.extend(self.ranges, lease_s, self.moves)
