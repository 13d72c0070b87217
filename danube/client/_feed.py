"""The stream of a subscription: deliveries in; acknowledgements, refusals and leases out. Pure: no I/O, no clock.

Acknowledgements, refusals and leases are collected and sent together, once per turn of the loop. After a loss the feed
opens a stream under the same consumer name, repeats the acknowledgements that the broker has not confirmed, and drops
redeliveries of messages that were acknowledged here.

When the subscription is moved (a seek, by any client), all earlier deliveries are void: waiting messages are dropped,
and acknowledgements, refusals and leases of the others are ignored. The broker does the same for those in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from danube.client._acks import AckLedger, HandedOut
from danube.client._checks import check_seconds, check_text
from danube.client._delivered import live_ranges, message_count
from danube.client._inflow import Inflow
from danube.client._leases import Leases, RenewalClock, chunks, clip
from danube.model import api
from danube.model.batch import BatchFlags, read_header
from danube.model.ids import Offset
from danube.model.policies import Durability
from danube.model.ranges import RangeSet

if TYPE_CHECKING:
    from danube.client._delivered import BareMessage, DeliveredBatch, OpenBatch
    from danube.client._inflow import RequestStream
    from danube.model.limits import Limits

__all__ = ["Feed"]

_encode = msgspec.msgpack.Encoder().encode

_CONFIRM_INTERVAL_S = 1.0
_CONFIRM_RANGES = 1_000
_MAX_KINDS = 100
"""Maximum number of different delays and reasons, or lease lengths, that are collected; more are sent at once."""

K = TypeVar("K", bound=Hashable)


class Feed(Inflow):
    """A topic (or one partition) as seen by one consumer."""

    damage_advice = (
        "They stay unacknowledged; connect again to have them delivered again, or skip them with ack_range()"
    )

    def __init__(
        self,
        partition: int,
        open_message: api.ConsumeOpen,
        *,
        limits: Limits,
        confirmed: Callable[[Feed], None],
        renewals: RenewalClock,
        renew_leases: bool = False,
        **inflow: Any,
    ) -> None:
        super().__init__(partition, open_message, **inflow)
        self.awaited_token = 0
        """The last token whose confirmation the application waits for."""
        self._confirmed = confirmed
        """Called when the broker confirms acknowledgements, or the feed fails."""
        self.confirmed_token = 0
        self.ledger = AckLedger()
        self.ack_timeout_s = 0.0
        """The subscription's ack timeout; 0 if messages do not time out."""
        self._limits = limits
        self._keeps = renew_leases
        self._leases = Leases(keep=renew_leases, max_ranges=limits.max_in_flight_ranges)
        self._renewals = renewals
        self._nacks: dict[tuple[int, str], RangeSet] = {}
        self._extensions: dict[int, RangeSet] = {}
        self._handed = HandedOut(limits.max_in_flight_ranges)
        self._cumulates = open_message.type.traits.has_active
        self._waiting: RangeSet | None = None  # offsets of the messages in `queue`, computed on demand
        self._given_back: RangeSet | None = None
        self._owed_messages = 0  # credit of messages that were given back
        self._owed_bytes = 0
        self._filter_all = False
        self._last_token_s = 0.0
        self._place: tuple[int, int, int] | None = None
        """Topic id, subscription id and generation of current deliveries."""

    # --- Requests of the application ---------------------------------------------------------------------------------

    def ack(self, start: int, end: int, moves: int) -> None:
        """Acknowledge ``[start, end)``, delivered after ``moves`` seeks, at the end of this turn of the loop."""
        if moves == self.moves and self.ledger.add(start, end):
            self._wake()

    def ack_cumulative(self, offset: int, batch: DeliveredBatch) -> None:
        """Acknowledge everything up to and including ``offset``, a message of ``batch``."""
        if batch.moves != self.moves:
            return
        handed_out = self._handed.take_below(offset + 1)
        # The broker refuses cumulative acknowledgements for a shared subscription.
        if not self._cumulates:
            self.ledger.add_cumulative(offset, handed_out)  # let the broker return the error
            self._wake()
            return
        # Always sent as ranges. A cumulative request would cover all delivered messages, including those that the
        # application has not seen: lost with a connection, waiting here, or delivered after this one.
        self.ack(offset, offset + 1, self.moves)
        for start, end in handed_out:
            self.ack(start, end, self.moves)

    def nack(self, ranges: list[int], delay_s: float | None, reason: str, moves: int) -> None:
        """Refuse ranges; they are redelivered after a delay (None: that of the subscription's policy).

        Without a stream this does nothing: all unacknowledged messages are delivered again on the next one.

        Raises:
            InvalidArgumentError: the delay is negative, or longer than the limit.
        """
        check_text("reason", reason)
        if delay_s is not None:
            longest_s = self._limits.max_delivery_delay_s
            check_seconds("delay_s", delay_s, zero=True, most=longest_s, limit="max_delivery_delay_s")
        if moves != self.moves:
            return
        self._leases.settled(ranges)
        delay_ms = -1 if delay_s is None else round(delay_s * 1000)
        self._gather(self._nacks, (delay_ms, reason[: self._limits.max_nack_reason_chars]), ranges)

    def extend(self, ranges: list[int], lease_s: float | None, moves: int) -> None:
        """Move the ack timeout of ranges to ``lease_s`` from now (None: the subscription's ack timeout).

        Raises:
            InvalidArgumentError: the lease is not more than 0, or longer than the limit.
        """
        if lease_s is not None:
            check_seconds("lease_s", lease_s, most=self._limits.max_lease_s, limit="max_lease_s")
        self._renewals.alive = True
        if moves == self.moves:
            self._gather(self._extensions, 0 if lease_s is None else max(1, round(lease_s * 1000)), ranges)

    def _gather(self, table: dict[K, RangeSet], kind: K, ranges: list[int]) -> None:
        if self.stream is None or self.stream.over:
            return
        gathered = table.get(kind)
        if gathered is None:
            if len(table) >= _MAX_KINDS:
                self.send_gathered(self._clock())
            gathered = table[kind] = RangeSet()
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            gathered.add(start, end)
        self._wake()

    # --- Deliveries to the application -------------------------------------------------------------------------------

    def taken(self, delivery: api.ConsumeBatch, ranges: list[int], count: int) -> None:
        """Return the credit of a delivery that the application has taken. Its timeout counts from here."""
        super().taken(delivery, ranges, count)
        self._renewals.alive = True
        if self._cumulates and ranges:
            self._handed.add(ranges)
        if self._waiting is not None:
            if not self.queue:
                self._waiting = None
            else:
                for start, end in _pairs(ranges):
                    self._waiting.remove(start, end)
        if self.ack_timeout_s or self._keeps:
            self._handed_out(ranges)

    def _handed_out(self, ranges: list[int]) -> None:
        if self._leases.handed_out(ranges):
            self.extend(self._leases.renewal(), None, self.moves)

    def _finished(self, opened: OpenBatch[BareMessage[Any]]) -> None:
        if opened.renewed_from is not None and not self._keeps:
            self._handed_out(clip(opened.batch.ranges, opened.renewed_from))

    def drop_waiting(self) -> None:
        """Drop all messages that have arrived and were not handed out yet."""
        self._waiting = None
        super().drop_waiting()

    def give_back(self) -> None:
        """Give the waiting messages back to the broker for other consumers, because the application is stuck.

        Their credit is withheld until :meth:`resume_credit`.
        """
        found: list[int] = []
        for opened in self.open_batches:
            if opened.next_offset is not None:
                found += clip(opened.batch.ranges, opened.next_offset)
        self._leases.settled(found)
        for delivery in self._deliveries():
            found += live_ranges(delivery)
            self._owed_messages += message_count(delivery)
            self._owed_bytes += delivery.charged_bytes
        notices = [item for item in self.queue if not isinstance(item, api.ConsumeBatch)]
        self.drop_waiting()
        self.queue.extend(notices)
        self._arrived(self)
        if found:
            if self._given_back is None:
                self._given_back = RangeSet()
            for start, end in _pairs(found):
                self._given_back.add(start, end)
            self._wake()

    def resume_credit(self) -> None:
        """Return the withheld credit: the application asks for messages again."""
        if self._owed_messages:
            self._returned_messages += self._owed_messages
            self._returned_bytes += self._owed_bytes
            self._owed_messages = self._owed_bytes = 0
            self._wake()

    # --- Leases ------------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether messages have arrived and were not handed out yet."""
        return bool(self.queue) or any(opened.next_offset is not None for opened in self.open_batches)

    def moved(self) -> bool:
        """Return whether messages of opened batches were handed out since the last renewal."""
        return any(opened.next_offset != opened.renewed_from for opened in self.open_batches)

    def renew(self) -> bool:
        """Extend leases at the end of this turn: of messages handed out since the last renewal, and of waiting ones.

        Return whether there were any.
        """
        if not self.ack_timeout_s:
            return False
        found: list[int] = []
        left = []
        for opened in self.open_batches:
            if not self._keeps and opened.renewed_from is not None:
                # Otherwise the batch was taken since the last renewal, and is recorded as a whole.
                found += clip(opened.batch.ranges, opened.renewed_from)
            if opened.next_offset is not None:
                opened.renewed_from = opened.next_offset
                left.append(opened)
        self.open_batches = left
        found += self._leases.renewal()
        for delivery in self._deliveries():
            found += live_ranges(delivery)
        if not found:
            return False
        self._gather(self._extensions, 0, found)
        return True

    # --- Sending -----------------------------------------------------------------------------------------------------

    @property
    def unconfirmed(self) -> bool:
        """Whether sent acknowledgements still need a token to be confirmed."""
        return self.ledger.unconfirmed and not self.ledger.token_pending

    @property
    def _is_awaited(self) -> bool:
        """Whether the application waits for a confirmation by this topic, not only by others."""
        return self.awaited_token > self.confirmed_token

    def _send_requests(self, stream: RequestStream, now_s: float) -> None:
        ledger = self.ledger
        place = self._place
        generation = place[2] if place is not None else 0
        if ledger.collected:
            self._renewals.alive = True
            ranges, cumulative = ledger.take()
            if cumulative >= 0:
                stream.send_nowait(_encode(api.AckCumulative(Offset(cumulative), generation)))
                self._leases.settled([0, cumulative + 1])
            if ranges:
                stream.send_nowait(_encode(api.Ack(ranges, generation)))
                self._leases.settled(ranges)
        if not ledger.token_pending and (
            self._is_awaited
            or (
                ledger.unconfirmed
                and (now_s - self._last_token_s >= _CONFIRM_INTERVAL_S or ledger.sent_ranges >= _CONFIRM_RANGES)
            )
        ):
            self._last_token_s = now_s
            stream.send_nowait(_encode(api.FlushAcks(ledger.token())))
        if self._nacks:
            self._renewals.alive = True
            for (delay_ms, reason), failed in self._nacks.items():
                for ranges in chunks(failed.to_flat()):
                    stream.send_nowait(_encode(api.Nack(ranges, delay_ms, reason, generation)))
            self._nacks.clear()
        if self._given_back is not None:
            for ranges in chunks(self._given_back.to_flat()):
                stream.send_nowait(_encode(api.GiveBack(ranges, generation)))
            self._given_back = None
        if self._extensions:
            for lease_ms, extended in self._extensions.items():
                for ranges in chunks(extended.to_flat()):
                    stream.send_nowait(_encode(api.ExtendLease(ranges, lease_ms, generation)))
            self._extensions.clear()

    # --- The stream --------------------------------------------------------------------------------------------------

    def _resume(self, answer: api.ConsumeOpened) -> None:
        self.caught_up = answer.floor >= answer.end_offset
        if self.generation and self.durability is not Durability.NONE:
            # All unacknowledged messages are delivered again, including those that wait here.
            self.drop_waiting()
        self._set_timeout(answer.ack_timeout_s)
        self._nacks.clear()
        self._extensions.clear()
        self._given_back = None
        self._owed_messages = self._owed_bytes = 0
        self._leases.lost()
        place = answer.topic_id, answer.subscription_id, answer.generation
        if self._place is not None and place != self._place and self.durability is not Durability.NONE:
            self._moved()
        self._place = place
        self._filter_all = not self.ledger.settled
        self.ledger.lost()

    def _moved(self) -> None:
        """Invalidate earlier deliveries and requests of the application: the subscription was moved or replaced."""
        self.moves += 1
        self.ledger.forget()
        self._handed.clear()
        self._leases.forget()
        self._nacks.clear()
        self._extensions.clear()
        self._given_back = None

    def _sought(self, generation: int) -> None:
        """Reset the state after a seek; the new position is that of the next delivery."""
        assert self._place is not None
        self._place = (*self._place[:2], generation)
        for delivery in self._deliveries():
            self._returned_messages += message_count(delivery)
            self._returned_bytes += delivery.charged_bytes
        self.drop_waiting()
        self._moved()
        self._filter_all = False
        self.caught_up = False
        self._wake()  # there may be credit to return, or a confirmation to request

    def _set_timeout(self, ack_timeout_s: float) -> None:
        self.ack_timeout_s = 0.0 if self.durability is Durability.NONE else ack_timeout_s
        if self.ack_timeout_s:
            self._renewals.arm(self._clock(), self.ack_timeout_s)
            self._wake()

    def _ended(self) -> None:
        self._confirmed(self)

    def _deliveries(self) -> Iterator[api.ConsumeBatch]:
        return (item for item in self.queue if isinstance(item, api.ConsumeBatch))

    def take(self, reply: api.ConsumeReply) -> None:
        """Handle a reply; as :meth:`Inflow.take`."""
        if isinstance(reply, api.ConsumeBatch):
            if reply.attempt > 1 or self._filter_all:
                filtered = self._without_known(reply)
                if filtered is None:
                    super().taken(reply, [], message_count(reply))
                    return
                reply = filtered
            if reply.attempt > 1:
                self.caught_up = False  # the broker reports it again after its redeliveries
            if self._waiting is not None:
                for start, end in _pairs(live_ranges(reply)):
                    self._waiting.add(start, end)
            if self.ack_timeout_s and self._renewals.idle:
                self._renewals.arm(self._clock(), self.ack_timeout_s)
                self._wake()
            self.queue.append(reply)
            self._arrived(self)
        elif isinstance(reply, api.AcksFlushed):
            self.ledger.confirmed(reply.token)
            self.confirmed_token = max(self.confirmed_token, reply.token)
            self._filter_all = False
            self._confirmed(self)
            if self._is_awaited:
                self._wake()
        elif isinstance(reply, api.Sought):
            self._sought(reply.generation)
        elif isinstance(reply, api.LeaseChanged):
            self._set_timeout(reply.ack_timeout_s)
        else:
            super().take(reply)

    def _without_known(self, delivery: api.ConsumeBatch) -> api.ConsumeBatch | None:
        """Return a redelivery without the messages that were acknowledged or still wait here; None if nothing remains.

        Acknowledged messages are acknowledged again: their redelivery may mean that the broker has lost the
        acknowledgement. A slice is passed on whole unless all its messages are known, because its records cannot be
        separated without opening it.
        """
        ranges = live_ranges(delivery)
        left = RangeSet(self.ledger.unacknowledged(_pairs(ranges)))
        for start, end in _pairs(ranges):
            for low, high in left.gaps(start, end):
                self.ack(low, high, self.moves)
        if self._waiting is None and self.queue:
            self._waiting = RangeSet(pair for waiting in self._deliveries() for pair in _pairs(live_ranges(waiting)))
        if self._waiting:
            for low, high in [pair for start, end in left for pair in self._waiting.overlap(start, end)]:
                left.remove(low, high)
        if not left:
            return None
        flat = left.to_flat()
        if flat == ranges or read_header(delivery.part).flags & BatchFlags.SLICE:
            return delivery
        # The credit of removed messages is returned at once; that of the others, and of the bytes, when they are taken.
        self._returned_messages += message_count(delivery) - left.count()
        delivery.ranges = flat
        return delivery


def _pairs(flat: list[int]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)
