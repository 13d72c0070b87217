"""A subscription at work: the shell around one pure state machine of :mod:`danube.dispatch`.

The machine says which batch it wants to see and which messages go to whom; this shell reads the log, encodes deliveries
and keeps the cursor in the journal. Most work happens in :meth:`Subscription.pump`, a plain function called wherever
something changed (a commit, an ack, credit, a consumer that came or went): what is in the cache is delivered at once,
without waking a task. Only reading from the disk and waiting for a deadline need a task, and it exists while consumers
are connected.

Cursor changes are written like messages are: at most one entry of a subscription is on its way to the journal, and what
is acknowledged meanwhile becomes the next one. Load makes the batches.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import trio

from danube.dispatch import Cursor, Delivery, Gap, Machine, Span, encode_entry
from danube.log import Entry, EntryType, StoredBatch
from danube.model import Durability, RangeSet, SubscriptionType, api
from danube.model.batch import slice_part
from danube.model.errors import ConsumerDisplacedError, CorruptBatchError, DanubeError, DataLossError, StorageError
from danube.wire import ServerStream

if TYPE_CHECKING:
    from danube.broker.catalogue import SubscriptionRecord
    from danube.broker.settling import Settling
    from danube.broker.topic import Topic

__all__ = ["Consumer", "Subscription"]

_log = logging.getLogger("danube.subscription")

_READ_BYTES = 4 * 2**20
"""How much is read from the journal at a time for a subscription that is behind the cache."""
_AHEAD_BYTES = 8 * 2**20
"""How much a subscription may have read and not yet delivered."""
_STORAGE_RETRY_S = 1.0
"""Pause of a subscription whose history cannot be read now; the storage has its own, shorter ones before that."""
_PUMP_BATCHES = 64
"""After this many batches a pump lets other tasks run."""

_encode = msgspec.msgpack.Encoder().encode
_BIN_32 = b"\xc6"
_EMPTY_BIN = b"\xc4\x00"


class Consumer:
    """One connected consumer: its identity and the stream that leads to it."""

    __slots__ = ("_held", "_nursery", "caught_up_at", "consumer_id", "name", "stream")

    def __init__(
        self, consumer_id: int, name: str, stream: ServerStream, nursery: trio.Nursery, end_offset: int
    ) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.stream = stream
        self._nursery = nursery
        self._held: tuple[int, int] | None = None
        self.caught_up_at: int | None = end_offset
        """Where it has caught up: the end of the topic when it connected. None once it was told."""

    def send(self, reply: api.ConsumeReply) -> None:
        """Queue one reply."""
        self.stream.send_nowait(_encode(reply))

    def end(self, error: DanubeError) -> None:
        """End its call with an error."""
        self.stream.abandon(error)

    def hold(self, subscription: Subscription, messages: int, size_bytes: int) -> None:
        """Keep credit back until the consumer has read what is on its way."""
        held = self._held
        if held is None:
            self._held = (messages, size_bytes)
            self._nursery.start_soon(self._release, subscription)
        else:
            self._held = (held[0] + messages, held[1] + size_bytes)

    async def _release(self, subscription: Subscription) -> None:
        await self.stream.wait_send_capacity()
        held, self._held = self._held, None
        assert held is not None
        subscription.credit(self, *held)


class Subscription:
    """One subscription of one topic or partition."""

    def __init__(
        self, topic: Topic, name: str, subscription_id: int, kind: SubscriptionType, cursor: Cursor, machine: Machine
    ) -> None:
        self.topic = topic
        self.name = name
        self.subscription_id = subscription_id
        self.kind = kind
        self.cursor = cursor
        self.machine = machine
        self.consumers: dict[int, Consumer] = {}
        self._active: int | None = None
        self._slices = kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
        self._lossy = topic.durability is Durability.NONE
        # Cursor changes on their way to the journal, and those that wait for the next entry.
        self._unsaved = RangeSet()
        self._saving = False
        self._flushes: list[tuple[Consumer, int]] = []
        self._flushing: list[tuple[Consumer, int]] = []
        self._lost: DanubeError | None = None
        """Set when a cursor change did not reach the journal, which is then at its end: none after it will."""
        # What was read from the disk ahead of the machine.
        self._ahead: deque[StoredBatch] = deque()
        self._pumping = False
        self._wake = trio.Event()
        self._armed_s = math.inf
        self._task_scope: trio.CancelScope | None = None
        self.creation: Settling | None = None
        """Settles when a subscription of durability ``remote`` is durable; None for one that was restored."""
        self.record: SubscriptionRecord | None = None
        """Its durable record; None for one that lives in memory."""
        self._former_end = 0
        """What lies below may have been delivered before the broker was started again."""
        self.failure: DanubeError | None = None
        """Set when stored data is damaged: the subscription stops, loudly."""
        self.waits_for: StorageError | None = None
        """Why history cannot be read now."""

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
        self.consumers[consumer.consumer_id] = consumer
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
        if self._task_scope is None:
            self._task_scope = trio.CancelScope()
            self.topic.start_task(self._run, self._task_scope)

    def leave(self, consumer: Consumer) -> None:
        """Disconnect a consumer; what it had is delivered again to others. A displaced consumer is gone already."""
        if self.consumers.pop(consumer.consumer_id, None) is None:
            return
        self.machine.leave(consumer.consumer_id, trio.current_time())
        self._flushes = [item for item in self._flushes if item[0] is not consumer]
        self._tell_active()
        if not self.consumers:
            self._ahead.clear()
            if self._task_scope is not None:
                self._task_scope.cancel()
                self._task_scope = None
        self.pump()

    def _tell_active(self) -> None:
        """Tell a failover consumer that was on standby that it is its turn."""
        active = self.machine.active
        if active is not None and active != self._active:
            self.consumers[active].send(api.ActiveChanged(True))
        self._active = active

    def is_active(self, consumer: Consumer) -> bool:
        """Whether messages go to this consumer (False for a failover consumer that stands by)."""
        return self.machine.active in (None, consumer.consumer_id)

    def end(self, error: DanubeError) -> None:
        """Disconnect every consumer with an error."""
        for consumer in list(self.consumers.values()):
            consumer.end(error)

    # --- What consumers say ---

    def credit(self, consumer: Consumer, messages: int, size_bytes: int) -> None:
        """Let more be delivered to a consumer."""
        if consumer.stream.send_buffered >= self.topic.max_send_buffer_bytes:
            # It grants more than it reads. What it may have waits until it has read, so that its buffer stays bounded.
            consumer.hold(self, messages, size_bytes)
            return
        self.machine.credit(consumer.consumer_id, messages, size_bytes)
        self.pump()

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

    def nack(self, consumer: Consumer, ranges: Sequence[int], delay_s: float | None) -> None:
        """Deliver flat ranges again after a delay."""
        self.machine.nack(consumer.consumer_id, ranges, delay_s, trio.current_time())
        self.pump()

    def flush_acks(self, consumer: Consumer, token: int) -> None:
        """Answer with AcksFlushed once all that was acknowledged is durable; end the consumer if it never will be."""
        if self._lost is not None:
            consumer.end(self._lost)
            return
        if not self._saving and not self._unsaved:
            consumer.send(api.AcksFlushed(token))
            return
        self._flushes.append((consumer, token))
        if not self._saving:
            self._save()

    # --- The cursor in the journal ---

    def _acked(self, ranges: Sequence[int]) -> None:
        if ranges and not self._lossy:
            for index in range(0, len(ranges), 2):
                self._unsaved.add(ranges[index], ranges[index + 1])
            if not self._saving and self._lost is None:
                self._save()
        self.pump()

    def _save(self) -> None:
        ranges = self._unsaved.to_flat()
        self._unsaved.clear()
        self._submit(encode_entry(self.cursor.delta(self.subscription_id, ranges)))

    def _submit(self, payload: bytes) -> None:
        self._saving = True
        self._flushing, self._flushes = self._flushes, []
        topic = self.topic
        try:
            topic.submit(Entry(EntryType.CURSOR, topic.topic_id, topic.durability, (payload,), self))
        except DanubeError as error:
            self._not_saved(error)

    def _not_saved(self, error: DanubeError) -> None:
        """A cursor entry is not durable and none after it will be: who waits for that must not be told otherwise."""
        self._saving = False
        self._lost = error
        waiting = self._flushing + self._flushes
        self._flushing, self._flushes = [], []
        for consumer, _ in waiting:
            consumer.end(error)

    def stalled(self, _entry: Entry, _error: DanubeError) -> None:
        """A cursor entry waits for its storage: whoever has asked for it waits, too, and delivery goes on."""

    def settled(self, _entry: Entry, error: DanubeError | None) -> None:
        """A cursor entry is durable, or the journal has failed or is closing, which ends the broker."""
        if error is not None:
            self._not_saved(error)
            return
        self._saving = False
        flushed, self._flushing = self._flushing, []
        for consumer, token in flushed:
            consumer.send(api.AcksFlushed(token))
        if self._unsaved or self._flushes:
            self._save()

    def snapshot(self) -> bytes:
        """Return what a checkpoint stores of the cursor."""
        return encode_entry(self.cursor.snapshot(self.subscription_id))

    async def seek(self, offset: int) -> None:
        """Move the cursor and return when that is durable. Connected consumers go on from there.

        Raises:
            JournalFencedError, UnavailableError: it is not durable; the broker is about to end.
        """
        await self._saved()  # entries of a subscription reach the journal in order; the reset goes after the deltas
        self._unsaved.clear()
        self._ahead.clear()
        self._former_end = 0
        self.machine.seek(offset, trio.current_time())
        for consumer in self.consumers.values():
            consumer.caught_up_at = None
        if not self._lossy:
            self._submit(encode_entry(self.cursor.reset(self.subscription_id)))
        self.pump()
        await self._saved()

    async def _saved(self) -> None:
        """Wait until no cursor entry is on its way; raise if the last one did not arrive."""
        while self._saving:
            await self.topic.next_commit()
        if self._lost is not None:
            raise type(self._lost)(self._lost.message)

    # --- Moving messages ---

    def pump(self) -> None:
        """Deliver what can be delivered now from memory; leave the rest to the task."""
        if self._pumping or not self.consumers or self.failure is not None:
            return
        self._pumping = True
        try:
            self._pump()
        except DanubeError as error:
            self._fail(error)
        finally:
            self._pumping = False

    def _pump(self) -> None:
        machine = self.machine
        topic = self.topic
        now = trio.current_time()
        for _ in range(_PUMP_BATCHES):
            request = machine.next_read(now)
            if request is None or request.offset >= topic.end_offset:
                break
            batch = self._find(request.offset)
            if batch is None:
                self._wake.set()  # on disk: the task reads it
                break
            for item in machine.offered(self._span(batch), now):
                self._send(item)
        else:
            self._wake.set()
        self._tell_caught_up()
        deadline = machine.next_deadline()
        if deadline is not None and deadline < self._armed_s:
            self._wake.set()

    def offer(self, batch: StoredBatch) -> None:
        """Hand over a batch that is kept nowhere (topics of durability ``none``): now or never."""
        for item in self.machine.offered(self._span(batch), trio.current_time()):
            self._send(item)
        self._tell_caught_up()

    def _find(self, offset: int) -> StoredBatch | None:
        ahead = self._ahead
        while ahead and ahead[0].end_offset <= offset:
            ahead.popleft()
        if ahead and ahead[0].base_offset <= offset:
            return ahead[0]
        return self.topic.kept.get_cached(offset)

    def _span(self, batch: StoredBatch) -> Span:
        keys = None
        if self.kind is SubscriptionType.KEY_SHARED:
            try:
                opened = self.topic.opened.open(self.topic.topic_id, batch)
                keys = opened.keys(self.topic.producer_name(batch.header.producer_id))
            except CorruptBatchError as error:
                _log.error("%s, batch at %d: %s", self, batch.base_offset, error)
        return Span(batch.base_offset, batch.end_offset, len(batch.part), batch, keys)

    def _send(self, item: Delivery | Gap) -> None:
        consumer = self.consumers.get(item.consumer_id)
        if consumer is None:
            return
        if isinstance(item, Gap):
            consumer.send(api.Gap(item.start, item.end))
        else:
            self._deliver(consumer, item)

    def _deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        if delivery.attempt > 1 and consumer.caught_up_at is None:
            consumer.caught_up_at = 0  # what others have left over belongs to what was there: say it again behind it
        batch: StoredBatch = delivery.token
        if delivery.whole and delivery.attempt == 1:
            message = batch.delivery
            if message is None:
                # All subscriptions that take this batch whole share one encoding.
                message = batch.delivery = self._encode(batch, delivery, batch.part)
        elif self._slices and not delivery.whole:
            message = self._encode(batch, delivery, self._slice(batch, delivery.ranges))
        else:
            message = self._encode(batch, delivery, batch.part)
        consumer.stream.send_nowait(message)

    def _slice(self, batch: StoredBatch, ranges: Sequence[int]) -> bytes:
        try:
            opened = self.topic.opened.open(self.topic.topic_id, batch)
        except CorruptBatchError:
            # The producer made records that do not decode. The part goes out whole: the consumer's client reports it.
            return batch.part
        return slice_part(batch.header, opened.take(ranges))

    def _encode(self, batch: StoredBatch, delivery: Delivery, part: bytes) -> tuple[bytes, bytes]:
        head = _encode(
            api.Delivery(
                batch.base_offset,
                batch.append_time_us,
                delivery.attempt,
                [] if delivery.whole else delivery.ranges,
                self.topic.producer_name(batch.header.producer_id),
                delivery.size_bytes,
                b"",
            )
        )
        # The part is the last field: its msgpack header is written by hand, so that its bytes are not copied.
        assert head.endswith(_EMPTY_BIN)
        return head[:-2] + _BIN_32 + len(part).to_bytes(4, "big"), part

    def _tell_caught_up(self) -> None:
        machine = self.machine
        for consumer in self.consumers.values():
            goal = consumer.caught_up_at
            if goal is not None and machine.position >= goal and not machine.waiting_messages():
                consumer.send(api.CaughtUp(goal))
                consumer.caught_up_at = None

    def _storage_down(self, error: StorageError | None) -> None:
        if error is not None and self.waits_for is None:
            _log.error("%s waits for its history, and tries again: %s", self, error)
        elif error is None and self.waits_for is not None:
            _log.warning("%s reads its history again", self)
        self.waits_for = error

    def _fail(self, error: DanubeError) -> None:
        _log.error("%s stops: %s", self, error)
        self.failure = error
        self.end(error)

    # --- The task ---

    async def _run(self, scope: trio.CancelScope) -> None:
        """Read from the disk and wait for deadlines, while consumers are connected."""
        with scope:
            while True:
                deadline = self.machine.next_deadline()
                self._armed_s = math.inf if deadline is None else deadline
                with trio.move_on_at(self._armed_s):
                    await self._wake.wait()
                self._wake = trio.Event()
                self.machine.tick(trio.current_time())
                try:
                    await self._read_ahead()
                    self._storage_down(None)
                except StorageError as error:
                    # History is out of reach, not lost: try again, and wait for it as long as it takes.
                    self._storage_down(error)
                    await trio.sleep(_STORAGE_RETRY_S)
                    self._wake.set()
                    continue
                except DanubeError as error:
                    self._fail(error)
                    return
                except OSError as error:
                    self._fail(DataLossError(f"the journal of topic {self.topic.name!r} cannot be read: {error}"))
                    return
                self.pump()
                await trio.lowlevel.checkpoint()

    async def _read_ahead(self) -> None:
        while not self.failure:
            request = self.machine.next_read(trio.current_time())
            if request is None or request.offset >= self.topic.end_offset or self._find(request.offset) is not None:
                return
            batches = await self.topic.kept.read(request.offset, _READ_BYTES)
            if not batches:
                return
            self._ahead = deque(batches)
            found = batches[0].base_offset
            if found > request.offset:
                # Retention, or a power loss, has taken what lies between. Nobody can acknowledge it any more.
                self._acked(self.machine.discard([request.offset, found], trio.current_time()))
            else:
                self.pump()

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
