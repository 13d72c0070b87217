"""A connected consumer of the native protocol: its identity, and its stream. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from danube.broker.calls.encoding import encode_delivery
from danube.dispatch import Delivery
from danube.log.cache import StoredBatch
from danube.model import api
from danube.model.batch import slice_part
from danube.model.errors import DanubeError
from danube.model.ids import Offset

if TYPE_CHECKING:
    from danube.broker.delivery.connected_consumer import Feeding, Origin
    from danube.wire.service import ServerStream

__all__ = ["Consumer"]

_encode = msgspec.msgpack.Encoder().encode


class Consumer:
    """One connected consumer of a subscription, or a reader; a :class:`danube.broker.faces.ConnectedConsumer`."""

    __slots__ = ("_held", "caught_up_at", "consumer_id", "key_filters", "name", "stream")

    wants_caught_up = True

    def __init__(
        self,
        consumer_id: int,
        name: str,
        stream: ServerStream,
        end_offset: Offset,
        key_filters: tuple[str, ...] = (),
    ) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.stream = stream
        self.key_filters = key_filters
        self._held: tuple[int, int] | None = None
        """Credit that is withheld while the connection accepts no more data."""
        self.caught_up_at: Offset | None = end_offset
        """Offset at which it has caught up: the end of the topic when it connected. None once it was notified."""

    def deliver(self, topic: Origin, batch: StoredBatch, delivery: Delivery, sliced: bool) -> None:
        """Send the bytes of a batch, or a slice of it.

        Raises:
            InvalidArgumentError: the batch has to be sliced, and cannot be opened.
        """
        producer_id = batch.header.producer_id
        if delivery.whole and delivery.attempt == 1:
            message: tuple[bytes, bytes] | None = batch.memo
            if message is None:
                # All consumers of the whole batch share one encoding.
                producer = topic.producer_name(producer_id)
                message = batch.memo = encode_delivery(batch, delivery, producer, batch.part)
        else:
            part = batch.part
            if sliced and not delivery.whole:
                part = slice_part(batch.header, topic.opened.open(batch).take(delivery.ranges))
            message = encode_delivery(batch, delivery, topic.producer_name(producer_id), part)
        self.stream.send_nowait(message)

    def send(self, reply: api.ConsumeReply) -> None:
        """Queue one reply."""
        self.stream.send_nowait(_encode(reply))

    def end(self, error: DanubeError) -> None:
        """End its call with an error."""
        self.stream.abandon(error)

    def crowded(self, lossy: bool) -> bool:
        """Whether its connection accepts no more data for now."""
        return self.stream.crowded(whole_connection=lossy)

    def hold(self, pump: Feeding, messages: int, size_bytes: int) -> None:
        """Withhold credit until the connection accepts data again."""
        held = self._held
        if held is None:
            self._held = (messages, size_bytes)
            self.stream.when_room(lambda: pump.resume_soon(self), pump.stalled)
        else:
            self._held = (held[0] + messages, held[1] + size_bytes)

    @property
    def holds(self) -> bool:
        """Whether credit is withheld."""
        return self._held is not None

    def resume(self, pump: Feeding, lossy: bool) -> None:
        """Return the withheld credit to the pump, if the connection accepts data again."""
        held, self._held = self._held, None
        if held is None:
            return
        if self.stream.crowded(whole_connection=lossy):
            self.hold(pump, *held)
        else:
            pump.machine.credit(self.consumer_id, *held)

    def resumed(self) -> None:
        """Release the room in the connection that was not used to other streams."""
        self.stream.pass_room_on()
