"""The state of one consume stream: deliveries and credit. Shared base of consumers and readers. Pure: no I/O, no clock.

An inflow exists as long as its consumer or reader; its streams are replaced after a loss
(:class:`~danube.client._consume_stream.ConsumeStream`). Deliveries wait in ``queue`` until the application takes them.
Credit is granted ahead, for messages and bytes, and returned as the application takes deliveries, so a slow application
stops only its own deliveries. Subclasses define the start of a new stream and the treatment of deliveries from the old
one: :class:`~danube.client._feed.Feed` for a subscription, :class:`~danube.client._reader_feed.ReaderFeed` for a
reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from danube.client._delivered import BareMessage, DeliveredBatch, OpenBatch, message_count
from danube.model import api
from danube.model.errors import DanubeError, ProtocolError, UnavailableError
from danube.model.policies import Durability

__all__ = ["Inflow", "RequestStream"]

_encode = msgspec.msgpack.Encoder().encode

M = TypeVar("M", bound=BareMessage[Any])


class RequestStream(Protocol):
    """The part of a stream that an inflow uses: it takes requests."""

    @property
    def over(self) -> bool:
        """Whether the stream has ended."""

    def send_nowait(self, data: bytes) -> bool:
        """Queue an encoded request. False if the stream is over."""


class Inflow:
    """A topic (or one partition) as seen by one consumer or reader."""

    damage_advice = ""
    """Advice to the application in the error about a damaged delivery."""

    def __init__(
        self,
        partition: int,
        open_message: api.ConsumeOpen,
        *,
        credit_messages: int,
        credit_bytes: int,
        arrived: Callable[[Inflow], None],
        restarted: Callable[[Inflow], None],
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.topic = open_message.topic
        self.partition = partition
        self.queue: deque[api.ConsumeBatch | api.CaughtUp] = deque()
        """Deliveries that have arrived and were not taken yet."""
        self.generation = 0
        """Number of the stream: messages delivered on an older one may be delivered again."""
        self.moves = 0
        """Number of observed seeks of the subscription: messages delivered before a seek are void after it."""
        self.active = False
        self.caught_up = False
        self.durability = Durability.DISK
        self.is_framed = False
        """Whether payloads of batches without a schema in their header have Confluent's frame."""
        self.gaps: deque[api.Gap] = deque(maxlen=1_000)
        self.dropped_messages = 0
        self.error: DanubeError | None = None
        self.open_batches: list[OpenBatch[BareMessage[Any]]] = []
        """Batches whose messages are being handed out one by one, oldest first."""
        self.listed = False
        """Whether this is in the receiver's ring of inflows with deliveries."""
        self.open_message = open_message
        """The request that opens the next stream."""
        self.interrupt: Callable[[], None] = _nothing
        """Ends the stream that is open or being opened, so that another one is opened."""
        self._credit_messages = credit_messages
        self._credit_bytes = credit_bytes
        self._returned_messages = 0
        self._returned_bytes = 0
        self._arrived = arrived
        self._restarted = restarted
        self._wake = wake
        self._clock = clock
        self.stream: RequestStream | None = None
        """The current stream; replies of others are ignored."""
        self._owner = (0, 0)
        """Id and owner's epoch of the topic, when the last stream was opened."""

    # --- Requests of the application ---------------------------------------------------------------------------------

    def ack(self, start: int, end: int, moves: int) -> None:
        """Acknowledge ``[start, end)``, delivered after ``moves`` seeks."""
        raise NotImplementedError

    def nack(self, ranges: list[int], delay_s: float | None, reason: str, moves: int) -> None:
        """Refuse ranges."""
        raise NotImplementedError

    def extend(self, ranges: list[int], lease_s: float | None, moves: int) -> None:
        """Move the ack timeout of ranges."""
        raise NotImplementedError

    # --- Deliveries to the application -------------------------------------------------------------------------------

    def taken(self, delivery: api.ConsumeBatch, ranges: list[int], count: int) -> None:
        """Return the credit of a delivery that the application has taken: ``count`` messages with these offsets."""
        self._returned_messages += count
        self._returned_bytes += delivery.charged_bytes
        # A quarter of the window, or all credit when no delivery waits: few Credit messages, and never a stall.
        if (
            not self.queue
            or self._returned_messages * 4 >= self._credit_messages
            or self._returned_bytes * 4 >= self._credit_bytes
        ):
            self._wake()

    def open(self, batch: DeliveredBatch, kind: type[M]) -> OpenBatch[M]:
        """Start to hand out the messages of a batch one by one, as objects of ``kind``."""
        if self.open_batches:
            done = [one for one in self.open_batches if one.next_offset is None]
            for one in done:
                self.open_batches.remove(one)
                self._finished(one)
        opened = OpenBatch(batch, kind)
        self.open_batches.append(opened)
        return opened

    def _finished(self, opened: OpenBatch[BareMessage[Any]]) -> None:
        """Called when all messages of an opened batch were handed out."""

    def drop_waiting(self) -> None:
        """Drop all messages that have arrived and were not handed out yet."""
        self.queue.clear()
        for opened in self.open_batches:
            opened.drop()
        self.open_batches = []
        self._restarted(self)

    # --- Sending -----------------------------------------------------------------------------------------------------

    @property
    def unconfirmed(self) -> bool:
        """Whether sent requests need a confirmation that was not requested yet."""
        return False

    def send_gathered(self, now_s: float) -> None:
        """Send the collected requests, if there is a stream."""
        stream = self.stream
        if stream is None or stream.over:
            # Requests that must not be lost stay collected; _attach() sends them on the next stream.
            return
        self._send_requests(stream, now_s)
        if self._returned_messages or self._returned_bytes:
            stream.send_nowait(_encode(api.Credit(self._returned_messages, self._returned_bytes)))
            self._returned_messages = self._returned_bytes = 0

    def _send_requests(self, stream: RequestStream, now_s: float) -> None:
        """Send the requests other than credit."""

    # --- The stream --------------------------------------------------------------------------------------------------

    def opening(self) -> None:
        """Prepare for a stream that is about to be opened with :attr:`open_message`."""

    def opened(self, stream: RequestStream, answer: api.ConsumeOpened) -> None:
        """Use a stream that the broker has opened.

        Raises:
            UnavailableError: the broker is a former owner of the topic.
        """
        self._check_owner(answer)
        self._attach(stream, answer)

    def lost(self) -> None:
        """Stop using the current stream."""
        self.stream = None
        self.interrupt = _nothing

    def fail(self, error: DanubeError) -> None:
        """End: the application gets the error once it has taken all deliveries that have arrived."""
        self.error = error
        self._ended()
        self._arrived(self)

    def _check_owner(self, answer: api.ConsumeOpened) -> None:
        """Refuse a former owner of the topic: it lacks its successor's cursor, and would deliver messages again."""
        topic_id, epoch = self._owner
        if answer.topic_id == topic_id and answer.owner_epoch < epoch:
            raise UnavailableError(
                f"{self.topic}: the broker owned this topic in epoch {answer.owner_epoch}, but another one has taken it"
                f" over in epoch {epoch}; retrying"
            )
        self._owner = answer.topic_id, answer.owner_epoch

    def _attach(self, stream: RequestStream, answer: api.ConsumeOpened) -> None:
        self.active = answer.active
        self.durability = answer.durability
        self.is_framed = answer.is_framed
        self._resume(answer)
        self.generation += 1
        self.stream = stream
        waiting = [item for item in self.queue if isinstance(item, api.ConsumeBatch)]
        self._returned_messages = self._credit_messages - sum(map(message_count, waiting))
        self._returned_bytes = self._credit_bytes - sum(delivery.charged_bytes for delivery in waiting)
        self.send_gathered(self._clock())
        self._wake()  # wake the sender, which later requests the confirmation of the repeated requests
        self._arrived(self)

    def _resume(self, answer: api.ConsumeOpened) -> None:
        """Decide which deliveries of the last stream remain valid after the broker has opened the next one."""
        raise NotImplementedError

    def _ended(self) -> None:
        """Called when no further stream will be opened."""

    def take(self, reply: api.ConsumeReply) -> None:
        """Handle a reply of the current stream.

        Raises:
            ProtocolError: the broker must not send this.
        """
        if isinstance(reply, api.ConsumeBatch | api.CaughtUp):
            self.queue.append(reply)
            self._arrived(self)
        elif isinstance(reply, api.Gap):
            self.gaps.append(reply)
            self.dropped_messages += reply.end - reply.start
        elif isinstance(reply, api.ActiveChanged):
            self.active = reply.active
            self._arrived(self)
        elif isinstance(reply, api.ConsumeOpened):
            raise ProtocolError("the broker sent ConsumeOpened twice")


def _nothing() -> None:
    """Initial callback: does nothing."""
