"""One consume stream: deliveries in, credit and acknowledgements out.

A feed lives as long as its consumer; streams come and go below it. Deliveries wait in ``queue`` until the application
takes them. Credit is granted ahead, for messages and bytes, and given back as the application takes deliveries, so a
slow application stops the broker and nothing else. After a loss the feed opens a stream under the same consumer name,
repeats the acknowledgements that the broker has not confirmed, and drops what it delivers again although it was
acknowledged here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import msgspec

from danube.client._acks import AckLedger
from danube.client._retry import Retry, ask, receive_reply
from danube.model import api
from danube.model.batch import BatchFlags, read_header
from danube.model.errors import DanubeError, ProtocolError, SubscriptionBusyError
from danube.model.policies import Durability
from danube.model.ranges import RangeSet

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from danube.client._connection import Connection
    from danube.wire.client import Channel, ClientStream

__all__ = ["Feed"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(api.ConsumeReply).decode

_CONFIRM_INTERVAL_S = 1.0
_CONFIRM_RANGES = 1_000


class Feed:
    """A topic (or one partition) as one consumer sees it."""

    def __init__(
        self,
        connection: Connection,
        partition: int,
        open_message: api.ConsumeOpen,
        *,
        credit_messages: int,
        credit_bytes: int,
        arrived: Callable[[Feed], None],
        restarted: Callable[[Feed], None],
        wake: Callable[[], None],
    ) -> None:
        self.topic = open_message.topic
        self.partition = partition
        self.queue: deque[api.Delivery | api.CaughtUp] = deque()
        """What has arrived and was not taken yet."""
        self.generation = 0
        """Counts the streams: what was delivered on an older one may come again."""
        self.active = False
        self.caught_up = False
        self.durability = Durability.DISK
        self.flush_waiters = 0
        self.confirmed = anyio.Event()
        """Set (and replaced) when the broker confirms acknowledgements, or the feed fails."""
        self.confirmed_token = 0
        self.gaps: deque[api.Gap] = deque(maxlen=1_000)
        self.dropped_messages = 0
        self.error: DanubeError | None = None
        self.ledger = AckLedger()
        self._open_message = open_message
        self._connection = connection
        self._credit_messages = credit_messages
        self._credit_bytes = credit_bytes
        self._returned_messages = 0
        self._returned_bytes = 0
        self._nacks: dict[int, RangeSet] = {}
        self.listed = False
        """Whether this feed is in the consumer's ring of feeds that have something."""
        self._arrived = arrived
        self._restarted = restarted
        self._wake = wake
        self._stream: ClientStream | None = None
        self._filter_all = False
        self._last_token_s = 0.0

    # --- What the application says -----------------------------------------------------------------------------------

    def ack(self, start: int, end: int) -> None:
        """Acknowledge ``[start, end)`` at the end of this turn of the loop."""
        if self.ledger.add(start, end):
            self._wake()

    def ack_cumulative(self, offset: int) -> None:
        """Acknowledge everything up to and including ``offset``."""
        self.ledger.add_cumulative(offset)
        self._wake()

    def nack(self, ranges: list[int], delay_s: float) -> None:
        """Ask for ranges again after a delay."""
        pending = self._nacks.setdefault(max(0, round(delay_s * 1000)), RangeSet())
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            pending.add(start, end)
        self._wake()

    def taken(self, delivery: api.Delivery) -> None:
        """Give back the credit of a delivery that the application has taken."""
        self._returned_messages += _message_count(delivery)
        self._returned_bytes += delivery.charged_bytes
        # A quarter of the window, or everything when nothing is left here: few Credit messages, and never a stall.
        if (
            not self.queue
            or self._returned_messages * 4 >= self._credit_messages
            or self._returned_bytes * 4 >= self._credit_bytes
        ):
            self._wake()

    # --- Sending -----------------------------------------------------------------------------------------------------

    @property
    def unconfirmed(self) -> bool:
        """Whether sent acknowledgements still need a token to be confirmed."""
        return self.ledger.unconfirmed and not self.ledger.token_pending

    def send_gathered(self, now_s: float) -> None:
        """Send acknowledgements, credit and nacks that have gathered, if there is a stream."""
        stream = self._stream
        if stream is None or stream.over:
            # What matters stays gathered; _attach() sends it on the next stream.
            return
        ledger = self.ledger
        if ledger.collected:
            ranges, cumulative = ledger.take()
            if cumulative >= 0:
                stream.send_nowait(_encode(api.AckCumulative(cumulative)))
            if ranges:
                stream.send_nowait(_encode(api.Ack(ranges)))
        if not ledger.token_pending and (
            self.flush_waiters
            or (
                ledger.unconfirmed
                and (now_s - self._last_token_s >= _CONFIRM_INTERVAL_S or ledger.sent_ranges >= _CONFIRM_RANGES)
            )
        ):
            self._last_token_s = now_s
            stream.send_nowait(_encode(api.FlushAcks(ledger.token())))
        if self._nacks:
            for delay_ms, pending in self._nacks.items():
                stream.send_nowait(_encode(api.Nack(pending.to_flat(), delay_ms)))
            self._nacks.clear()
        if self._returned_messages or self._returned_bytes:
            stream.send_nowait(_encode(api.Credit(self._returned_messages, self._returned_bytes)))
            self._returned_messages = self._returned_bytes = 0

    # --- The stream --------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Keep a stream open until cancelled; ``started()`` is called when the first one is open.

        An error that retrying does not help ends the feed: before ``started()`` it is raised, afterwards the consumer
        raises it once everything that has arrived was taken.
        """
        retry = Retry(self._connection.options)
        while True:
            try:
                channel = await self._connection.channel()
                await self._session(channel, retry, task_status)
            except DanubeError as error:
                # After an outage the broker may still count this consumer's former stream as connected.
                again = error.retryable or isinstance(error, ProtocolError)
                again = again or (retry.succeeded_once and isinstance(error, SubscriptionBusyError))
                if again and await retry.wait(error):
                    continue
                if not retry.succeeded_once:
                    raise
                self.error = error
                self._notify_confirmed()
                self._arrived(self)
                return
            finally:
                self._stream = None

    async def _session(self, channel: Channel, retry: Retry, task_status: TaskStatus[None]) -> None:
        async with ask(channel, api.Method.CONSUME) as stream:
            with retry.opening(f"opening a consumer on {self.topic}"):
                await stream.send(_encode(self._open_message))
                answer = await receive_reply(stream, _decode, self.topic)
            if not isinstance(answer, api.ConsumeOpened):
                raise ProtocolError(f"the broker answered ConsumeOpen with {type(answer).__name__}")
            self._attach(stream, answer)
            if not retry.succeeded_once:
                task_status.started()
            retry.succeeded()
            while True:
                self._take(await receive_reply(stream, _decode, self.topic))

    def _attach(self, stream: ClientStream, answer: api.ConsumeOpened) -> None:
        self.active = answer.active
        self.durability = answer.durability
        self.caught_up = answer.floor >= answer.end_offset
        if self.generation and self.durability is not Durability.NONE:
            # Everything that is not acknowledged comes again, also what waits here.
            self.queue.clear()
            self._restarted(self)
        self.generation += 1
        self._filter_all = not self.ledger.settled
        self.ledger.lost()
        self._stream = stream
        self._returned_messages = self._credit_messages - sum(map(_message_count, self._deliveries()))
        self._returned_bytes = self._credit_bytes - sum(delivery.charged_bytes for delivery in self._deliveries())
        self.send_gathered(anyio.current_time())
        self._wake()  # the sender also has to ask, in a while, for the confirmation of what was just repeated
        self._arrived(self)

    def _deliveries(self) -> list[api.Delivery]:
        return [item for item in self.queue if isinstance(item, api.Delivery)]

    def _take(self, reply: api.ConsumeReply) -> None:
        if isinstance(reply, api.Delivery):
            if reply.attempt > 1 or self._filter_all:
                filtered = self._without_known(reply)
                if filtered is None:
                    self.taken(reply)
                    return
                reply = filtered
            if reply.attempt > 1:
                self.caught_up = False  # the broker says it again behind what it delivers again
            self.queue.append(reply)
            self._arrived(self)
        elif isinstance(reply, api.CaughtUp):
            self.queue.append(reply)
            self._arrived(self)
        elif isinstance(reply, api.AcksFlushed):
            self.ledger.confirmed(reply.token)
            self.confirmed_token = max(self.confirmed_token, reply.token)
            self._filter_all = False
            self._notify_confirmed()
            if self.flush_waiters:
                self._wake()
        elif isinstance(reply, api.Gap):
            self.gaps.append(reply)
            self.dropped_messages += reply.end - reply.start
        elif isinstance(reply, api.ActiveChanged):
            self.active = reply.active
            self._arrived(self)
        else:
            raise ProtocolError("the broker sent ConsumeOpened twice")

    def _notify_confirmed(self) -> None:
        self.confirmed.set()
        self.confirmed = anyio.Event()

    def _without_known(self, delivery: api.Delivery) -> api.Delivery | None:
        """Return a repeated delivery without what was acknowledged here or still waits here; None if nothing is left.

        A slice is passed on whole unless all of it is known: its records cannot be told apart without opening it.
        """
        ranges = delivery.ranges or [delivery.base_offset, delivery.base_offset + _message_count(delivery)]
        left = RangeSet(self.ledger.unacknowledged(zip(ranges[::2], ranges[1::2], strict=True)))
        for waiting in self._deliveries():
            known = waiting.ranges or [waiting.base_offset, waiting.base_offset + _message_count(waiting)]
            for start, end in zip(known[::2], known[1::2], strict=True):
                left.remove(start, end)
        if not left:
            return None
        flat = left.to_flat()
        if flat == ranges or read_header(delivery.part).flags & BatchFlags.SLICE:
            return delivery
        # The credit of what is left out goes back at once; that of the rest, and of the bytes, when it is taken.
        self._returned_messages += _message_count(delivery) - left.count()
        delivery.ranges = flat
        return delivery


def _message_count(delivery: api.Delivery) -> int:
    ranges = delivery.ranges
    if ranges:
        return sum(ranges[1::2]) - sum(ranges[::2])
    return read_header(delivery.part).record_count
