"""Messages and batches of blocking consumers and readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, cast, overload

import msgspec

from danube.client import _message
from danube.client._delivered import BareMessage, DeliveredBatch, Source
from danube.client._generics import V

if TYPE_CHECKING:
    from danube.client.sync._loop import Loop

__all__ = ["Batch", "LoopSource", "Message", "message_of"]


class Message(BareMessage[V], gc=False, eq=False):
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
    """Messages that were delivered together; see :class:`danube.client.Batch`."""

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
        """Return the values of all messages, decoded at once; see :meth:`danube.client.Batch.values`."""
        return self.decode_all()

    def ack(self) -> None:
        """Acknowledge all messages of the batch; as :meth:`Message.ack`."""
        self.ack_nowait()

    def nack(self, delay_s: float | None = None, reason: str = "") -> None:
        """Refuse all messages of the batch; as :meth:`Message.nack`."""
        self.feed.nack(self.ranges, delay_s, reason, self.moves)

    def extend_lease(self, lease_s: float | None = None) -> None:
        """Ask for more time for all messages of the batch; as :meth:`Message.extend_lease`."""
        self.feed.extend(self.ranges, lease_s, self.moves)


class LoopSource:
    """The source of messages and batches, for acknowledging, refusing and extending from any thread."""

    __slots__ = ("_loop", "feed", "partition", "topic")

    def __init__(self, feed: Source, loop: Loop) -> None:
        self.feed = feed
        self.topic = feed.topic
        self.partition = feed.partition
        self._loop = loop

    @property
    def generation(self) -> int:
        """Number of the stream: messages delivered on an older one may be delivered again."""
        return self.feed.generation

    @property
    def moves(self) -> int:
        """Number of observed seeks of the subscription: messages delivered before a seek are void after it."""
        return self.feed.moves

    def ack(self, start: int, end: int, moves: int) -> None:
        """Acknowledge ``[start, end)``, delivered after ``moves`` seeks."""
        self._loop.call(self.feed.ack, start, end, moves)

    def nack(self, ranges: list[int], delay_s: float | None, reason: str, moves: int) -> None:
        """Refuse ranges."""
        self._loop.call(self.feed.nack, ranges, delay_s, reason, moves)

    def extend(self, ranges: list[int], lease_s: float | None, moves: int) -> None:
        """Move the ack timeout of ranges."""
        self._loop.call(self.feed.extend, ranges, lease_s, moves)


def message_of(message: _message.Message, loop: Loop) -> Message:
    """Return the blocking form of a message."""
    made = Message(*msgspec.structs.astuple(message))
    made._batch = Batch.adopt(message._batch, LoopSource(message._batch.feed, loop))
    return made
