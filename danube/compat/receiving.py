"""The stream of one official client's consumer: sends messages as fast as the client reads them.

These clients grant no credit; the broker only knows how many bytes they have read. So the credit of such a
consumer is a small window, and used credit is returned when its messages have been passed on to the connection::

    subscription ──▶ window (messages, bytes) ──▶ send buffer (_BUFFER_BYTES) ──▶ HTTP/2 window ──▶ the client's queue
                     of batches: not encoded yet    encoded, one by one           the peer's own

A client that does not read holds no more than that; later messages go to other consumers, or wait in the log.

These clients do not extend leases either; the broker does it (:mod:`danube.compat.sent_ranges`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from danube.compat.errors import for_receivers
from danube.compat.messages import marked, messages_of
from danube.compat.sent_ranges import SentRanges
from danube.model import Limits, api
from danube.model.errors import DanubeError
from danube.model.ids import Offset
from danube.model.limits import KIB, MIB
from danube.wire import ServerStream

if TYPE_CHECKING:
    from danube.broker.faces import Delivery, Feeding, Origin, ServedSubscription, StoredBatch

__all__ = ["CompatConsumer"]

_BUFFER_BYTES: Final = 64 * KIB
"""Bytes encoded ahead of a client that does not read. Larger values are not faster."""
_LOSSY_BYTES: Final = 4 * MIB
"""The byte window of a consumer on a topic where messages without credit are lost."""
_PREFIX_BYTES: Final = 5
"""Length of gRPC's prefix of each message."""


class _Unsent(NamedTuple):
    """A delivery that is not completely sent."""

    messages: Iterator[tuple[int, bytes]]
    message_count: int
    size_bytes: int


class CompatConsumer:
    """One connected consumer of a subscription; a :class:`danube.broker.faces.ConnectedConsumer`.

    Args:
        subscription: the source of its messages.
        consumer_id: id of the connected consumer in the subscription; not the client's durable id.
        name, key_filters: name and key filters of the consumer.
        stream: the call.
        url: URL of the broker, for the ids of messages.
        limits: limits of the broker.
        schema_of: returns how official clients name a schema: the number of a subject, preferably the given one, and a
            version; None: no subject has it.
    """

    __slots__ = (
        "_blocked",
        "_earned_bytes",
        "_earned_messages",
        "_limits",
        "_max_bytes",
        "_parcels",
        "_schema_of",
        "_sent",
        "_stream",
        "_subscription",
        "_url",
        "began",
        "caught_up_at",
        "consumer_id",
        "key_filters",
        "name",
    )

    wants_caught_up = False

    def __init__(
        self,
        subscription: ServedSubscription,
        consumer_id: int,
        name: str,
        key_filters: tuple[str, ...],
        stream: ServerStream,
        url: str,
        limits: Limits,
        schema_of: Callable[[int, str], tuple[int, int] | None],
    ) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.key_filters = key_filters
        self.caught_up_at: Offset | None = None
        self.began = trio.current_time()
        """When it connected, in monotonic seconds."""
        self._subscription = subscription
        self._stream = stream
        self._url = url
        self._limits = limits
        self._schema_of = schema_of
        self._max_bytes = limits.compat_max_message_bytes
        self._parcels: deque[_Unsent] = deque()
        self._blocked = trio.Event()
        """Set when the send buffer is full, to wake the task that waits for room."""
        self._earned_messages = self._earned_bytes = 0
        self._sent = SentRanges()

    async def run(self) -> None:
        """Deliver until cancelled; call it after the consumer has joined its subscription."""
        limits = self._limits
        messages, size_bytes = limits.compat_prefetch_messages, limits.compat_prefetch_bytes
        if self._subscription.topic.lossy:
            # A consumer without credit loses messages there, so grant a whole batch as long as the client reads.
            messages, size_bytes = limits.max_batch_records, _LOSSY_BYTES
        self._subscription.credit(self, messages, size_bytes)
        while True:
            await self._blocked.wait()
            await self._stream.wait_send_capacity(_BUFFER_BYTES)
            self._blocked = trio.Event()
            self._pass_on()
            self._subscription.credit(self, *self._take_earned())

    def heard(self, offset: int) -> bool:
        """Handle an acknowledgement or nack: extend the leases of messages sent later than the acknowledged one.

        A few acknowledgements in each ack timeout are evaluated; the others are skipped.

        Returns:
            Whether the message is known to have been sent to this consumer.
        """
        now = trio.current_time()
        if now < self._sent.again_s:
            return False
        timeout_s = self._subscription.policy.ack_timeout_s
        later = self._sent.heard(offset, now, timeout_s)
        if later is None:
            return False
        if later and timeout_s:
            self._subscription.extend(self, later, None, self._subscription.generation)
        return True

    # --- Requests of the pump ---

    def deliver(self, topic: Origin, batch: StoredBatch, delivery: Delivery, _sliced: bool) -> None:
        """Queue messages of a batch, and send them at once if the send buffer has room.

        Raises:
            InvalidArgumentError: the batch cannot be opened.
        """
        url = marked(self._url, self._subscription.generation)
        number = batch.header.schema_id
        schema = self._schema_of(number, topic.schema_subject) if number else None
        messages = messages_of(topic, url, batch, delivery, self._limits.max_batch_bytes, schema)
        if not topic.lossy:
            self._sent.add(delivery.ranges)
        self._parcels.append(_Unsent(messages, delivery.messages, delivery.size_bytes))
        if not self._blocked.is_set():
            self._pass_on()
            self._subscription.machine.credit(self.consumer_id, *self._take_earned())  # called from within the pump

    def send(self, reply: api.ConsumeReply) -> None:
        """Drop waiting messages after a seek; ignore other replies, which this protocol does not have."""
        if isinstance(reply, api.Sought):
            for parcel in self._parcels:
                self._earned_messages += parcel.message_count
                self._earned_bytes += parcel.size_bytes
            self._parcels.clear()
            self._sent.clear()
            self._subscription.machine.credit(self.consumer_id, *self._take_earned())

    def end(self, error: DanubeError) -> None:
        """End its call with an error."""
        self._stream.abandon(for_receivers(error))

    @property
    def holds(self) -> bool:
        """Return False: credit is returned only when the send buffer has room."""
        return False

    def crowded(self, _lossy: bool) -> bool:
        """Return False: the window bounds the waiting messages."""
        return False

    def hold(self, _pump: Feeding, _messages: int, _size_bytes: int) -> None:
        """No-op: see :attr:`holds`."""

    def resume(self, _pump: Feeding, _lossy: bool) -> None:
        """No-op: see :attr:`holds`."""

    def resumed(self) -> None:
        """No-op: see :attr:`holds`."""

    # --- Sending ---

    def _pass_on(self) -> None:
        """Encode and send the messages that fit into the send buffer."""
        stream, parcels, most = self._stream, self._parcels, self._max_bytes
        send = stream.send_nowait
        room = _BUFFER_BYTES - stream.send_buffered
        while parcels:
            parcel = parcels[0]
            for offset, data in parcel.messages:
                size = len(data)
                if size > most:
                    self._refuse(offset, size)
                    continue
                send(data)
                room -= size + _PREFIX_BYTES
                if room <= 0:
                    self._blocked.set()
                    return
            parcels.popleft()
            self._earned_messages += parcel.message_count
            self._earned_bytes += parcel.size_bytes

    def _take_earned(self) -> tuple[int, int]:
        earned = self._earned_messages, self._earned_bytes
        self._earned_messages = self._earned_bytes = 0
        return earned

    def _refuse(self, offset: int, size: int) -> None:
        # The message is too large for the client: its stream would break, and again after each reconnect.
        self._subscription.refuse(
            self,
            offset,
            f"the message takes {size} bytes on its way to an official client, which receives no more than"
            f" compat_max_message_bytes = {self._max_bytes}; read it with a native client",
        )
