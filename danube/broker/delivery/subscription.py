"""A subscription: the shell around one pure state machine of :mod:`danube.dispatch`.

:class:`~danube.broker.delivery.pump.Pump` moves the messages. This module adds the features of a subscription that a
reader lacks: acknowledgements, and a durable cursor (:mod:`~danube.broker.delivery.cursor_journal`); a policy for
failed messages; several consumers that take turns, and deliveries that are parts of a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from danube.broker.delivery.connected_consumer import AckWaiter, ConnectedConsumer
from danube.broker.delivery.cursor_journal import CursorJournal
from danube.broker.delivery.dead_letters import DeadLetters
from danube.broker.delivery.pump import Pump
from danube.broker.delivery.source import Source
from danube.broker.runtime.token_bucket import TokenBucket
from danube.dispatch import Cursor, Delivery, Machine, Span
from danube.log import StoredBatch
from danube.model import PoisonPolicy, Rate, SubscriptionPolicy, SubscriptionType, Unmatched, api
from danube.model.dead_letters import check_dead_letters
from danube.model.errors import (
    ConsumerDisplacedError,
    DanubeError,
    InvalidArgumentError,
    SubscriptionNotFoundError,
)
from danube.model.ids import FIRST_OFFSET, Offset
from danube.model.log_events import log_event

if TYPE_CHECKING:
    from danube.broker.runtime.runtime import Runtime
    from danube.log import Settling
    from danube.model.records import SubscriptionRecord

__all__ = ["Subscription"]

_log = logging.getLogger("danube.subscription")

_UNREADABLE_PAUSE_S = 1.0
"""Pause before an undeliverable batch is tried again, if the policy has no delay and unlimited attempts."""


class Subscription(Pump):
    """One subscription of one topic or partition."""

    def __init__(
        self,
        runtime: Runtime,
        topic: Source,
        name: str,
        subscription_id: int,
        kind: SubscriptionType,
        cursor: Cursor,
        machine: Machine,
    ) -> None:
        super().__init__(topic, machine)
        self._own_rate: TokenBucket | None = None
        self.name = name
        self.subscription_id = subscription_id
        self.kind = kind
        self.cursor = cursor
        self.creation: Settling | None = None
        """Settles when a subscription of durability ``remote`` is durable; None for one that was restored."""
        self.record: SubscriptionRecord | None = None
        """Its durable record; None for one that lives in memory."""
        self.dead_letters = DeadLetters(runtime, self)
        self.expired_messages = 0
        """Messages that outlived the topic's ``message_ttl_s`` since the broker was started."""
        self.acked_from_before = 0
        """Messages acknowledged by consumers that had received them before the broker was started."""
        self._journal = CursorJournal(topic, subscription_id, cursor)
        self._life = topic.life
        self._wall_clock_us = runtime.clock_us
        self._clock_steps = runtime.clock_steps
        self._stalls = runtime.stalls
        self._active: int | None = None
        self._slices = machine.traits.slices
        self._wants_keys = machine.traits.wants_keys
        self._takes_turns = machine.traits.has_standbys
        self._former_end = 0
        """Messages below this offset may have been delivered before the broker was restarted, or a gap was filled."""
        self._unreadable_at = -1
        """Base offset of the last batch that had to be opened and could not be."""
        self._unreadable_why = ""
        self._ttl_us = 0.0
        self._policy_applied()

    def __repr__(self) -> str:
        return f"<Subscription {self.name} of {self.topic.name} {self.kind} floor={self.cursor.floor}>"

    # --- Consumers ---

    def restored(self) -> None:
        """Mark the subscription as restored at a start; all of its topic may have been delivered before."""
        self._former_end = self.topic.end_offset

    def join(self, consumer: ConnectedConsumer) -> None:
        """Connect a consumer; a connected one of the same name is displaced.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: it was deleted while it was being opened.
            SubscriptionBusyError: exclusive, and another consumer is connected.
            DataLossError: the subscription stopped because stored data is damaged, and it still is.
        """
        self.topic.check_not_deleted()
        if not self.topic.serves(self.name, self):
            raise SubscriptionNotFoundError(f"subscription {self.name!r} of topic {self.topic.name!r} was deleted")
        if self.failure is not None:
            raise self.failure
        displaced = self.machine.join(
            consumer.consumer_id, consumer.name, trio.current_time(), filters=consumer.key_filters
        )
        if displaced is not None:
            old = self.consumers.pop(displaced, None)
            if old is not None:
                old.end(
                    ConsumerDisplacedError(
                        f"consumer {consumer.name!r} of subscription {self.name!r} has connected again and taken over;"
                        " give each consumer a name of its own"
                    )
                )
        if self._takes_turns and self.machine.active == consumer.consumer_id:
            self._change_active(told=True)  # by the reply to ConsumeOpen
        self._connected(consumer)

    def leave(self, consumer: ConnectedConsumer) -> None:
        """Disconnect a consumer; its messages are redelivered to others. No-op if it has been displaced."""
        self._journal.forget(consumer)
        super().leave(consumer)
        self._clear_away()  # also after the last consumer

    def _change_active(self, *, told: bool = False) -> None:
        """Notify failover consumers which is on standby and which is active (unless ``told``: that one knows)."""
        former, active = self._active, self.machine.active
        self._active = active
        if former is not None and former in self.consumers:
            self.consumers[former].send(api.ActiveChanged(False))
        if active is not None and not told:
            self.consumers[active].send(api.ActiveChanged(True))

    def is_active(self, consumer: ConnectedConsumer) -> bool:
        """Whether this consumer receives messages (False for a failover consumer on standby)."""
        return self.machine.active in (None, consumer.consumer_id)

    def close(self, error: DanubeError) -> None:
        """Disconnect all consumers with an error and stop: the subscription is deleted."""
        self.dead_letters.close()
        self.end(error)

    # --- Moves ---

    def freeze(self) -> None:
        """Write no cursor entry from now on, until :meth:`thaw`: acknowledgements are not confirmed meanwhile."""
        self._journal.hold_back()

    def thaw(self) -> None:
        """Go on after :meth:`freeze`."""
        self._journal.release(go_on=True)

    def give_up(self, error: DanubeError) -> None:
        """The topic has moved to another broker while it was frozen: end all who wait for an entry."""
        self._journal.give_up(error)

    @property
    def is_quiet(self) -> bool:
        """Whether no entry of the cursor is on its way to the journal, and no dead letter to its topic."""
        return not self._journal.in_flight and not self.dead_letters.is_publishing

    # --- Policy ---

    @property
    def policy(self) -> SubscriptionPolicy:
        """Its policy for redelivery, poison and rates."""
        return self.machine.policy

    def check_policy(self, policy: SubscriptionPolicy) -> None:
        """Raise InvalidArgumentError if the policy is invalid for this subscription."""
        check_dead_letters(self.topic.name, self.name, policy)

    def change_policy(self, policy: SubscriptionPolicy) -> None:
        """Apply another policy from now on, also to messages that were delivered before.

        Raises:
            InvalidArgumentError: the policy is invalid for this subscription, which keeps its present one.
        """
        self.check_policy(policy)
        former = self.policy
        self.machine.change_policy(policy, trio.current_time())
        if policy.ack_timeout_s != former.ack_timeout_s:
            for consumer in self.consumers.values():
                consumer.send(api.LeaseChanged(policy.ack_timeout_s))
        self._policy_applied()
        self.dead_letters.changed()
        self.pump()
        self._clear_away()  # also without a consumer

    def _policy_applied(self) -> None:
        policy = self.policy
        self._clears_away = policy.poison is not PoisonPolicy.BLOCK or policy.unmatched is Unmatched.SKIP
        self.topic_policies_changed()

    @property
    def rate(self) -> Rate | None:
        """Its maximum delivery rate; None: no limit."""
        return self._own_rate.rate if self._own_rate is not None else None

    def topic_policies_changed(self) -> None:
        """Apply changed policies of the topic: delivery rate and message time to live."""
        self._ttl_us = self.topic.message_ttl_s * 1e6
        rate = self.policy.dispatch_rate
        if rate is None:
            rate = self.topic.dispatch_rate()
        if not rate or self._lossy:  # messages that are not delivered at once are lost, so delivery cannot be delayed
            self._own_rate = None
        elif self._own_rate is None:
            self._own_rate = TokenBucket(rate, trio.current_time())
        elif rate != self._own_rate.rate:
            self._own_rate.change(rate, trio.current_time())
        self._limit_rate(self._own_rate)
        self.pump()

    # --- Requests of consumers ---
    #
    # Each request about messages carries the generation of their delivery. A seek begins a new generation: a request
    # about earlier deliveries, from any consumer and however late, must not settle messages that are to be delivered
    # again. So does the start of the broker, for topics of durability `os`: a power loss may have lost delivered
    # messages, and other messages may have their offsets since. A planned move keeps the generation.

    @property
    def generation(self) -> int:
        """The generation of current deliveries."""
        return self._life << 32 | self.cursor.generation

    def _is_void(self, consumer: ConnectedConsumer | None, generation: int) -> bool:
        """Whether a request is about deliveries from before a seek; it then only counts as a sign of life."""
        if generation == self.generation:
            return False
        if consumer is not None:
            self.machine.ack((), consumer.consumer_id, trio.current_time())
            self.pump()
        return True

    def ack(self, consumer: ConnectedConsumer, ranges: Sequence[int], generation: int) -> None:
        """Acknowledge flat ranges."""
        if self._is_void(consumer, generation):
            return
        now = trio.current_time()
        new = self.machine.ack(ranges, consumer.consumer_id, now)
        self.progressed_s = now
        self._acked(new + self._acked_before(ranges))

    def ack_cumulative(self, consumer: ConnectedConsumer, offset: Offset, generation: int) -> None:
        """Acknowledge everything up to and including an offset that was delivered since the broker was started."""
        if self._is_void(consumer, generation):
            return
        # Nothing from before a restart: a client that repeats an acknowledgement lists the messages that it had.
        self.progressed_s = trio.current_time()
        self._acked(self.machine.ack_cumulative(offset, consumer.consumer_id, self.progressed_s))

    def _acked_before(self, ranges: Sequence[int]) -> list[int]:
        """Apply acknowledgements of messages that were delivered before the broker was restarted, and not again since.

        The same goes for what was delivered before a declared gap was filled.

        A client repeats acknowledgements that were not confirmed when its connection broke, and asks for confirmation;
        after that none of these messages may be delivered again.
        """
        position = self.machine.position
        if position >= self._former_end:
            return []
        clipped = [min(max(offset, position), self._former_end) for offset in ranges]
        pairs = zip(clipped[::2], clipped[1::2], strict=True)
        found = self.machine.discard(
            [offset for pair in pairs if pair[0] < pair[1] for offset in pair], trio.current_time()
        )
        self.acked_from_before += sum(found[1::2]) - sum(found[::2])
        return found

    def ack_for(self, waiter: AckWaiter, offset: int, consumer: ConnectedConsumer | None, generation: int) -> None:
        """Acknowledge one message for a waiter, which is notified as soon as that is durable.

        Args:
            waiter: is notified, perhaps before this returns.
            offset: of the message; unknown or already acknowledged offsets are ignored.
            consumer: the consumer for which this is a sign of life, if known.
            generation: of its delivery.
        """
        if self._is_void(consumer, generation):
            self._journal.add_for(waiter, ())
            return
        consumer_id = consumer.consumer_id if consumer is not None else None
        ranges = [offset, offset + 1]
        self.progressed_s = trio.current_time()
        new = self.machine.ack(ranges, consumer_id, self.progressed_s)
        self._journal.add_for(waiter, new + self._acked_before(ranges))
        self.pump()

    def _acked(self, ranges: Sequence[int]) -> None:
        if ranges:
            self._journal.add(ranges)
        self.pump()

    def settle(self, ranges: Sequence[int]) -> list[int]:
        """Treat flat ranges as acknowledged, without a consumer; return those that were not acknowledged before."""
        settled = self.machine.discard(ranges, trio.current_time())
        self._acked(settled)
        return settled

    async def skip(self, ranges: Sequence[int]) -> None:
        """Treat flat ranges as acknowledged, and return when that is durable: an operator gives them up.

        Messages among them that a consumer has are settled as well; its own acknowledgement then changes nothing. A
        subscription that has stopped at damaged data is tried again. If the caller is cancelled, they are skipped, and
        that becomes durable soon.

        Raises:
            JournalFencedError, UnavailableError: it is not durable; the broker is about to end.
        """
        self._forget_reads()
        self.forget_failure()
        self.settle(ranges)
        await self._journal.flushed()

    def expire_below(self, offset: Offset) -> None:
        """Settle all messages below an offset, delivered or not: they have outlived the topic's ``message_ttl_s``."""
        floor = self.cursor.floor
        if offset > floor:
            self._count_expired(self.settle(self.cursor.solid(floor, offset)))
            self.settle([floor, offset])  # what is missing there has outlived it, too

    def _count_expired(self, settled: Sequence[int]) -> None:
        self.expired_messages += sum(settled[1::2]) - sum(settled[::2])

    def nack(
        self, consumer: ConnectedConsumer, ranges: Sequence[int], delay_s: float | None, reason: str, generation: int
    ) -> None:
        """Record that flat ranges have failed; ``delay_s`` None: the pause is that of the policy."""
        if self._is_void(consumer, generation):
            return
        self.machine.nack(consumer.consumer_id, ranges, delay_s, trio.current_time(), reason)
        self.pump()

    def nack_for(self, offset: int, least_delay_s: float | None, reason: str, generation: int) -> None:
        """Record that one message has failed, in whichever consumer's flight it is.

        Args:
            offset: of the message; one that is not in flight is ignored.
            least_delay_s: the pause is that of the policy, but at least this, and at most the longest of the policy.
            reason: for people.
            generation: of its delivery.
        """
        if self._is_void(None, generation):
            return
        delay_s = None
        if least_delay_s is not None:
            policy = self.policy
            usual_s = policy.redelivery_delay(self.machine.failures(offset) + 1)
            delay_s = min(max(usual_s, least_delay_s), max(usual_s, policy.max_redelivery_delay_s))
        self.machine.nack(None, [offset, offset + 1], delay_s, trio.current_time(), reason)
        self.pump()

    def refuse(self, consumer: ConnectedConsumer, offset: int, reason: str) -> None:
        """Record a failure that a consumer has reported during delivery: it cannot take the message."""
        self._fail_undelivered(consumer, [offset, offset + 1], reason)

    def extend(
        self, consumer: ConnectedConsumer, ranges: Sequence[int], lease_s: float | None, generation: int
    ) -> None:
        """Move the ack timeout of flat ranges to ``lease_s`` seconds from now; None: the policy's ack timeout."""
        if self._is_void(consumer, generation):
            return
        if lease_s is None:
            lease_s = self.policy.ack_timeout_s
        self.machine.extend(consumer.consumer_id, ranges, lease_s, trio.current_time())
        self.pump()

    def give_back(self, consumer: ConnectedConsumer, ranges: Sequence[int], generation: int) -> None:
        """Redeliver flat ranges to others: the application of this consumer is stuck and has not seen them."""
        if generation != self.generation:
            return
        self.machine.give_back(consumer.consumer_id, ranges, trio.current_time())
        self.pump()

    def flush_acks(self, consumer: ConnectedConsumer, token: int) -> None:
        """Reply with AcksFlushed once all acknowledgements are durable; end the consumer if they never will be."""
        self._journal.flush(consumer, token)

    def snapshot(self) -> bytes:
        """Return the state of the cursor for a checkpoint."""
        return self._journal.snapshot()

    async def seek(self, offset: Offset) -> None:
        """Move the cursor and return when that is durable. Connected consumers continue from there.

        From now on acknowledgements of earlier deliveries are ignored. Nothing is delivered until the move is durable:
        after a crash that undoes it no consumer can have seen its generation, which is then assigned to another one. If
        the caller is cancelled, the cursor may have been moved.

        Raises:
            JournalFencedError, UnavailableError: it is not durable; the broker is about to end.
        """
        while True:
            await self.topic.until_thawed()
            await self._journal.quiet()  # entries reach the journal in order; the reset goes after the deltas
            if not self.topic.is_frozen:
                break
        self._forget_reads()
        self.forget_failure()
        self._former_end = 0
        self.moving = True
        self.machine.seek(offset, trio.current_time())
        self._journal.reset(self._sought)
        await self._journal.saved()

    def _sought(self) -> None:
        """Notify the consumers that a move of the cursor is durable; delivery starts again."""
        self.moving = False
        told = api.Sought(self.generation)
        for consumer in self.consumers.values():
            consumer.send(told)
            if consumer.wants_caught_up:
                consumer.caught_up_at, self._catching_up = self.topic.end_offset, True
        self.pump()

    # --- Moving messages ---

    def _turn(self) -> None:
        if self.machine.active != self._active:
            self._change_active()

    def _clear_away(self) -> None:
        if self.machine.settled_itself:
            self._journal.add(self.machine.take_settled())
        if self.policy.poison is PoisonPolicy.DEAD_LETTER:
            self.dead_letters.look()

    def _skip(self, ranges: Sequence[int]) -> None:
        if not self.cursor.holes:
            self.settle(ranges)
            return
        kept_from = self.topic.start_offset  # retention has given up what is missing below it
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            below = min(max(start, kept_from), end)
            self.settle([*([start, below] if start < below else []), *self.cursor.solid(below, end)])
            if self.machine.position < end:
                self.machine.pass_over(end)

    def holes_changed(self, holes: Sequence[tuple[int, int]], settled: Sequence[int], filled: bool) -> None:
        """Act on a change of the declared gaps of the topic.

        Args:
            holes: those for which subscriptions wait, from now on.
            settled: flat ranges that hold nothing, or whose loss an operator has accepted: they count as acknowledged.
            filled: whether there are messages now where none were.
        """
        self.cursor.holes = holes
        if settled:
            self.settle(settled)
        if filled:
            self._forget_reads()
            if self.machine.settled_itself:
                self._journal.add(self.machine.take_settled())
            # What was delivered behind the gap is delivered again, unless its acknowledgement comes first.
            self._former_end = max(self._former_end, self.machine.position)
            self.machine.rewind(trio.current_time())
        self.pump()

    def _span(self, batch: StoredBatch, now: float) -> Span | None:
        header = batch.header
        due = 0.0
        if header.deliver_at_us or self._ttl_us:
            now_us = self._wall_clock_us()
            if self._ttl_us and batch.append_time_us + self._ttl_us < now_us:
                self._count_expired(self.settle([batch.base_offset, batch.end_offset]))
                return None
            if header.deliver_at_us > now_us:
                due = now + (header.deliver_at_us - self._clock_steps.now_us(self)) / 1e6
        keys = None
        if self._wants_keys:
            try:
                opened = self.topic.opened.open(batch)
                keys = opened.keys(self.topic.producer_name(header.producer_id).encode())
            except InvalidArgumentError as error:
                self._unreadable_at, self._unreadable_why = batch.base_offset, str(error)
        return Span(batch.base_offset, batch.end_offset, len(batch.part), batch, keys, due)

    def _wake_up(self, now: float) -> None:
        until = self._stalls.patient_until(now)
        if until > now:
            self.machine.postpone(until)

    def clock_stepped(self, by_s: float) -> None:
        """The wall clock was set: shift the waiting delivery times accordingly."""
        self.machine.shift_delayed(-by_s)
        self.pump()

    def waits_for_time(self) -> bool:
        """Whether messages wait for their delivery time."""
        return self.topic.serves(self.name, self) and self.machine.shift_delayed(0)

    def _deliver(self, consumer: ConnectedConsumer, delivery: Delivery) -> None:
        batch: StoredBatch = delivery.token
        if delivery.attempt > 1 and consumer.caught_up_at is None and consumer.wants_caught_up:
            # Messages left over by other consumers belong to the backlog: report CaughtUp again after them.
            consumer.caught_up_at, self._catching_up = FIRST_OFFSET, True
        if batch.base_offset == self._unreadable_at:
            self._give_up(consumer, delivery, self._unreadable_why)
            return
        try:
            consumer.deliver(self.topic, batch, delivery, self._slices)
        except InvalidArgumentError as error:
            self._give_up(consumer, delivery, str(error))

    def _give_up(self, consumer: ConnectedConsumer, delivery: Delivery, reason: str) -> None:
        """Fail a batch that cannot be opened, and so cannot be delivered in parts, until its policy removes it."""
        _log.error(
            "%s cannot deliver the batch at %d: %s",
            self,
            delivery.base_offset,
            reason,
            extra=log_event(
                "subscription.batch_undeliverable",
                repeating=True,
                topic=self.topic.name,
                subscription=self.name,
                offset=delivery.base_offset,
            ),
        )
        self.machine.credit(consumer.consumer_id, delivery.messages, delivery.size_bytes)  # nothing was delivered
        self._fail_undelivered(consumer, delivery.ranges, reason)

    def _fail_undelivered(self, consumer: ConnectedConsumer, ranges: Sequence[int], reason: str) -> None:
        policy = self.policy
        endless = policy.max_redelivery_count < 0 and not policy.redelivery_delay_s
        delay_s = _UNREADABLE_PAUSE_S if endless else None
        self.machine.nack(consumer.consumer_id, ranges, delay_s, trio.current_time(), reason)
