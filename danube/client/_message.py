"""Messages and batches of the asynchronous client; see :mod:`danube.client._delivered`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, cast, overload

import msgspec

from danube.client._delivered import BareMessage, DeliveredBatch
from danube.client._generics import V

__all__ = ["Batch", "Message"]


class Message(BareMessage[V], gc=False, eq=False):
    """One message. ``payload``, ``offset``, ``key_bytes`` and ``attributes`` are fields, the others are computed."""

    async def ack(self) -> None:
        """Acknowledge the message: it is not delivered to this subscription again.

        Returns as soon as the acknowledgement is scheduled; :meth:`Consumer.flush_acks` waits until it is durable.
        If the subscription was moved since the message was delivered, this does nothing: the delivery is void.
        """
        offset, batch = self.offset, self._batch
        batch.feed.ack(offset, offset + 1, batch.moves)

    async def nack(self, delay_s: float | None = None, reason: str = "") -> None:
        """Refuse the message: it is redelivered, or becomes poison according to the policy.

        Args:
            delay_s: pause before the redelivery; None: as the subscription's policy says.
            reason: for people, and for the dead-letter topic.

        Raises:
            InvalidArgumentError: the delay is negative or longer than ``max_delivery_delay_s``.
        """
        self._batch.feed.nack([self.offset, self.offset + 1], delay_s, reason, self._batch.moves)

    async def extend_lease(self, lease_s: float | None = None) -> None:
        """Ask for more time: the message does not time out before ``lease_s`` seconds from now.

        None: the subscription's ack timeout. Returns as soon as the request is scheduled. A message that has timed out
        already is not recovered.

        Raises:
            InvalidArgumentError: the lease is not more than 0, or longer than ``max_lease_s``.
        """
        self._batch.feed.extend([self.offset, self.offset + 1], lease_s, self._batch.moves)


class DecodedMessage(Message[V], gc=False, eq=False):
    """A message of a consumer or reader with a schema; it keeps its value once it is decoded."""

    _value: Any = msgspec.UNSET

    @property
    def value(self) -> V:
        """As :attr:`Message.value`."""
        if self._value is msgspec.UNSET:
            self._value = self._batch.decode(self.payload, self.offset)
        return cast("V", self._value)


class Batch(DeliveredBatch, Sequence[Message[V]], Generic[V]):
    """Messages that were delivered together: a sequence of :class:`Message`, created on access."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> Message[V]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message[V]]: ...

    def __getitem__(self, index: int | slice) -> Message[V] | list[Message[V]]:
        return self.pick(self.kind, index)

    def __iter__(self) -> Iterator[Message[V]]:
        return self.build(self.kind)

    @property
    def kind(self) -> type[Message[V]]:
        """The class of its messages."""
        return Message if self.decoder is None else DecodedMessage

    def values(self) -> list[V]:
        """Return the values of all messages, decoded at once; without ``schema=``, the payloads.

        Raises:
            SchemaError: a payload cannot be decoded; the message names its offset. The other messages have values.
        """
        return self.decode_all()

    async def ack(self) -> None:
        """Acknowledge all messages of the batch; as :meth:`Message.ack`."""
        self.ack_nowait()

    async def nack(self, delay_s: float | None = None, reason: str = "") -> None:
        """Refuse all messages of the batch; as :meth:`Message.nack`."""
        self.feed.nack(self.ranges, delay_s, reason, self.moves)

    async def extend_lease(self, lease_s: float | None = None) -> None:
        """Ask for more time for all messages of the batch; as :meth:`Message.extend_lease`."""
        self.feed.extend(self.ranges, lease_s, self.moves)
