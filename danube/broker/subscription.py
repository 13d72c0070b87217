"""A subscription at work: the shell around one pure state machine of :mod:`danube.dispatch`.

:class:`danube.broker.pump.Pump` moves the messages; what is added here is what a subscription has and a plain reading of
the log has not: acknowledgements and a cursor that is kept (:mod:`danube.broker.cursor_journal`), several consumers who
take turns, and deliveries that are parts of a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from danube.broker.consumer import Consumer
from danube.broker.cursor_journal import CursorJournal
from danube.broker.delivering import encode_delivery
from danube.broker.pump import Pump
from danube.dispatch import Cursor, Delivery, Machine, Span
from danube.log import StoredBatch
from danube.model import SubscriptionType, api
from danube.model.batch import slice_part
from danube.model.errors import ConsumerDisplacedError, CorruptBatchError

if TYPE_CHECKING:
    from danube.broker.catalogue import SubscriptionRecord
    from danube.broker.settling import Settling
    from danube.broker.topic import Topic

__all__ = ["Subscription"]

_log = logging.getLogger("danube.subscription")


class Subscription(Pump):
    """One subscription of one topic or partition."""

    def __init__(
        self, topic: Topic, name: str, subscription_id: int, kind: SubscriptionType, cursor: Cursor, machine: Machine
    ) -> None:
        super().__init__(topic, machine)
        self.name = name
        self.subscription_id = subscription_id
        self.kind = kind
        self.cursor = cursor
        self.creation: Settling | None = None
        """Settles when a subscription of durability ``remote`` is durable; None for one that was restored."""
        self.record: SubscriptionRecord | None = None
        """Its durable record; None for one that lives in memory."""
        self._journal = CursorJournal(topic, subscription_id, cursor)
        self._active: int | None = None
        self._slices = kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
        self._former_end = 0
        """What lies below may have been delivered before the broker was started again."""

    def __repr__(self) -> str:
        return f"<Subscription {self.name} of {self.topic.name} {self.kind} floor={self.cursor.floor}>"

    # --- Consumers ---

    def restored(self) -> None:
        """The subscription was there before the broker was started; all of its topic may have been delivered."""
        self._former_end = self.topic.end_offset

    def join(self, consumer: Consumer) -> None:
        """Connect a consumer; one of the same name that is still there is displaced.

        Raises:
            SubscriptionBusyError: exclusive, and another consumer is connected.
            DataLossError: the subscription stopped because stored data is damaged.
        """
        if self.failure is not None:
            raise self.failure
        displaced = self.machine.join(consumer.consumer_id, consumer.name, trio.current_time())
        self._active = self.machine.active
        if displaced is not None:
            old = self.consumers.pop(displaced, None)
            if old is not None:
                old.end(
                    ConsumerDisplacedError(
                        f"consumer {consumer.name!r} of subscription {self.name!r} has connected again and taken over;"
                        " give each consumer a name of its own"
                    )
                )
        self._connected(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Disconnect a consumer; what it had is delivered again to others. A displaced consumer is gone already."""
        self._journal.forget(consumer)
        super().leave(consumer)

    def pump(self) -> None:
        """Deliver what can be delivered now from memory; leave the rest to the tasks."""
        if self.machine.active != self._active:
            self._tell_active()
        super().pump()

    def _tell_active(self) -> None:
        """Tell a failover consumer that was on standby that it is its turn."""
        active = self._active = self.machine.active
        if active is not None:
            self.consumers[active].send(api.ActiveChanged(True))

    def is_active(self, consumer: Consumer) -> bool:
        """Whether messages go to this consumer (False for a failover consumer that stands by)."""
        return self.machine.active in (None, consumer.consumer_id)

    # --- What consumers say ---

    def ack(self, consumer: Consumer, ranges: Sequence[int]) -> None:
        """Acknowledge flat ranges."""
        new = self.machine.ack(ranges, consumer.consumer_id, trio.current_time())
        self._acked(new + self._acked_before(ranges))

    def ack_cumulative(self, consumer: Consumer, offset: int) -> None:
        """Acknowledge everything up to and including an offset."""
        new = self.machine.ack_cumulative(offset, consumer.consumer_id, trio.current_time())
        self._acked(new + self._acked_before((self.cursor.floor, offset + 1)))

    def _acked_before(self, ranges: Sequence[int]) -> list[int]:
        """Take acknowledgements of what was delivered before the broker was started again, and not yet since.

        A client repeats those that were not confirmed to it when its connection broke. It asks for confirmation, and
        after that nothing of them may come again.
        """
        position = self.machine.position
        if position >= self._former_end:
            return []
        clipped = [min(max(offset, position), self._former_end) for offset in ranges]
        pairs = zip(clipped[::2], clipped[1::2], strict=True)
        return self.machine.discard(
            [offset for pair in pairs if pair[0] < pair[1] for offset in pair], trio.current_time()
        )

    def _acked(self, ranges: Sequence[int]) -> None:
        if ranges:
            self._journal.add(ranges)
        self.pump()

    def _skip(self, ranges: Sequence[int]) -> None:
        self._acked(self.machine.discard(ranges, trio.current_time()))

    def nack(self, consumer: Consumer, ranges: Sequence[int], delay_s: float | None) -> None:
        """Deliver flat ranges again after a delay."""
        self.machine.nack(consumer.consumer_id, ranges, delay_s, trio.current_time())
        self.pump()

    def flush_acks(self, consumer: Consumer, token: int) -> None:
        """Answer with AcksFlushed once all that was acknowledged is durable; end the consumer if it never will be."""
        self._journal.flush(consumer, token)

    def snapshot(self) -> bytes:
        """Return what a checkpoint stores of the cursor."""
        return self._journal.snapshot()

    async def seek(self, offset: int) -> None:
        """Move the cursor and return when that is durable. Connected consumers go on from there.

        Raises:
            JournalFencedError, UnavailableError: it is not durable; the broker is about to end.
        """
        await self._journal.saved()  # entries reach the journal in order; the reset goes after the deltas
        self._ahead.clear()
        self._former_end = 0
        self.machine.seek(offset, trio.current_time())
        for consumer in self.consumers.values():
            consumer.caught_up_at = None
        self._journal.reset()
        self.pump()
        await self._journal.saved()

    # --- Deliveries ---

    def _span(self, batch: StoredBatch) -> Span:
        keys = None
        if self.kind is SubscriptionType.KEY_SHARED:
            try:
                opened = self.topic.opened.open(self.topic.topic_id, batch)
                keys = opened.keys(self.topic.producer_name(batch.header.producer_id))
            except CorruptBatchError as error:
                _log.error("%s, batch at %d: %s", self, batch.base_offset, error)
        return Span(batch.base_offset, batch.end_offset, len(batch.part), batch, keys)

    def _deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        if delivery.attempt > 1 and consumer.caught_up_at is None:
            consumer.caught_up_at = 0  # what others have left over belongs to what was there: say it again behind it
        if self._slices and not delivery.whole:
            batch: StoredBatch = delivery.token
            part = self._slice(batch, delivery.ranges)
            consumer.stream.send_nowait(encode_delivery(batch, delivery, self._producer(batch), part))
        else:
            super()._deliver(consumer, delivery)

    def _slice(self, batch: StoredBatch, ranges: Sequence[int]) -> bytes:
        try:
            opened = self.topic.opened.open(self.topic.topic_id, batch)
        except CorruptBatchError:
            # The producer made records that do not decode. The part goes out whole: the consumer's client reports it.
            return batch.part
        return slice_part(batch.header, opened.take(ranges))

    # --- Telling ---

    def info(self) -> api.SubscriptionInfo:
        """Return the subscription as it stands."""
        facts = self.machine.describe(self.topic.end_offset)
        return api.SubscriptionInfo(
            self.topic.name,
            self.name,
            self.kind,
            facts.floor,
            facts.position,
            self.topic.end_offset,
            facts.backlog_messages,
            facts.in_flight_messages,
            facts.acked_ranges,
            facts.redelivered_messages,
            facts.dropped_messages,
            [
                api.ConsumerInfo(
                    state.name,
                    state.consumer_id,
                    state.active,
                    state.credit_messages,
                    state.in_flight_messages,
                    state.delivered_messages,
                    state.acked_messages,
                )
                for state in facts.consumers
            ],
        )

    def explain(self) -> api.Explanation:
        """Say why it moves or does not."""
        if self.failure is not None:
            return api.Explanation(self.topic.name, self.name, "failed", str(self.failure))
        if self.waits_for is not None:
            sentence = f"it waits for its history, and tries again: {self.waits_for}"
            return api.Explanation(self.topic.name, self.name, "waiting-for-storage", sentence)
        explanation = self.machine.explain(trio.current_time(), self.topic.end_offset)
        return api.Explanation(self.topic.name, self.name, explanation.state, explanation.sentence)
