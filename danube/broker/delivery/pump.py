"""The pump: moves messages from the log of a topic, through a state machine of :mod:`danube.dispatch`, to consumers.

The machine decides which batch it needs next and which messages each consumer gets; the pump reads the log and sends.
Most work happens in :meth:`Pump.pump`, a plain function called whenever something changed (a commit, an ack, credit, a
consumer that joined or left): cached messages are delivered at once, without waking a task. Only reading from the disk
and waiting for a deadline need a task, which runs while consumers are connected.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import trio

from danube.broker.delivery.connected_consumer import ConnectedConsumer
from danube.broker.delivery.source import Source
from danube.broker.runtime.token_bucket import BothBuckets, Bucket, TokenBucket
from danube.dispatch import Delivery, Gap, Machine, Span
from danube.log import StoredBatch
from danube.model import api
from danube.model.errors import DanubeError, DataLossError, StorageError
from danube.model.ids import Offset
from danube.model.log_events import log_event

__all__ = ["Pump"]

_log = logging.getLogger("danube.subscription")

_READ_BYTES = 4 * 2**20
"""Bytes read from the journal at a time for a subscription that is behind the cache."""
_STORAGE_RETRY_S = 1.0
"""Pause of a subscription whose history cannot be read now; the storage itself retries with shorter pauses first."""
_PUMP_BATCHES = 64
"""After this many batches a pump lets other tasks run."""


class Pump(ABC):
    """Moves the messages of one topic or partition to the consumers of one machine.

    Attributes:
        name: of the subscription; empty for a reader.
        topic: the source of the messages.
        machine: decides which consumer gets which messages.
        consumers: the connected ones, by id.
        failure: set when stored data is damaged: delivery stops until :meth:`look_again` finds the data repaired.
        waits_for: why history cannot be read now.
    """

    name: str = ""

    def __init__(self, topic: Source, machine: Machine) -> None:
        self.topic = topic
        self.machine = machine
        self.consumers: dict[int, ConnectedConsumer] = {}
        self.failure: DanubeError | None = None
        self._failed_at = -1
        """The offset that could not be read; -1: the failure had another cause."""
        self.waits_for: StorageError | None = None
        self._ahead: deque[StoredBatch] = deque()
        """Batches read from the disk ahead of the machine."""
        self._view = 0
        """Changes when what is being read counts no more; see :meth:`_forget_reads`."""
        self._bucket: Bucket | None = None
        """Limits the rate of deliveries: its own rate, that of its namespace, or both."""
        self.paced_until = math.inf
        """Time at which that rate permits the next batch; infinite if nothing waits for it."""
        self._catching_up = False
        """Whether a consumer has a ``caught_up_at``."""
        self._lossy = topic.lossy
        """Whether messages without a consumer that has credit are lost."""
        self._resuming: list[ConnectedConsumer] = []
        """Consumers that read again, and whose credit was withheld."""
        self._takes_turns = False
        self._clears_away = False
        self._pumping = False
        self.moving = False
        """Whether its cursor was moved, and that is not durable yet: nothing is delivered meanwhile."""
        self._wake = trio.Event()
        """Set when batches have to be read."""
        self._rearm = trio.Event()
        """Set when there is an earlier deadline."""
        self.progressed_s = trio.current_time()
        """When messages were last delivered or acknowledged; if none were, when this was created."""
        self._armed_s = math.inf
        self._task_scope: trio.CancelScope | None = None

    # --- Consumers ---

    def _connected(self, consumer: ConnectedConsumer) -> None:
        """Register a consumer that has joined the machine."""
        self.consumers[consumer.consumer_id] = consumer
        self._catching_up = True
        if self._task_scope is None:
            self._task_scope = trio.CancelScope()
            self.topic.start_task(self._run, self._task_scope)

    def leave(self, consumer: ConnectedConsumer) -> None:
        """Disconnect a consumer; its messages are redelivered to others. No-op if it has been displaced."""
        if self.consumers.pop(consumer.consumer_id, None) is None:
            return
        self.machine.leave(consumer.consumer_id, trio.current_time())
        if not self.consumers:
            self._ahead.clear()
            if self._task_scope is not None:
                self._task_scope.cancel()
                self._task_scope = None
        self.pump()

    def credit(self, consumer: ConnectedConsumer, messages: int, size_bytes: int) -> None:
        """Grant a consumer credit for further deliveries."""
        if consumer.holds or consumer.crowded(self._lossy):
            consumer.hold(self, messages, size_bytes)  # until it has read the deliveries in flight to it
            return
        self.machine.credit(consumer.consumer_id, messages, size_bytes)
        self.pump()

    def resume_soon(self, consumer: ConnectedConsumer) -> None:
        """Resume a consumer that reads again and whose credit is withheld, in a later turn of the loop."""
        self._resuming.append(consumer)
        self._rearm.set()

    def stalled(self) -> None:
        """Drop the batches read ahead, which can be read again: a consumer has not read for a while."""
        if all(consumer.holds for consumer in self.consumers.values()):
            self._ahead.clear()

    def end(self, error: DanubeError) -> None:
        """Disconnect every consumer with an error."""
        for consumer in list(self.consumers.values()):
            consumer.end(error)

    # --- Moving messages ---

    def pump(self) -> None:
        """Deliver all messages that can be delivered from memory now; leave the rest to the task."""
        if self._pumping or self.moving or not self.consumers or self.failure is not None:
            return
        self._pumping = True
        try:
            if self._takes_turns:
                self._turn()
            self._pump()
            if self._clears_away:
                self._clear_away()
        except DanubeError as error:
            self._fail(error)
        finally:
            self._pumping = False

    def _turn(self) -> None:  # noqa: B027 - a hook
        """Update which consumer's turn it is (if ``_takes_turns``)."""

    def _clear_away(self) -> None:  # noqa: B027 - a hook
        """Process messages that the machine has settled by itself or set aside (if ``_clears_away``)."""

    def _pump(self) -> None:
        machine = self.machine
        topic = self.topic
        bucket = self._bucket
        if len(self.consumers) == 1:
            # Its credit may be older than the data that fills its connection. Several consumers overdraw by a slice
            # each.
            for consumer in self.consumers.values():
                self._hold_if_crowded(consumer)
        if bucket is not None:
            self.paced_until = math.inf
        now = trio.current_time()
        for _ in range(_PUMP_BATCHES):
            request = machine.next_read(now)
            if request is None or request.offset >= topic.end_offset:
                break
            batch = self._find(request.offset)
            if batch is None:
                self._wake.set()  # on disk: the task reads it
                break
            if bucket is not None and bucket.paid_at > now:
                self.paced_until = bucket.look_at(now)
                break
            span = self._span(batch, now)
            if span is None:
                continue
            for item in machine.offered(span, now):
                self._send(item, now)
        else:
            self._wake.set()
        if self._catching_up:
            self._tell_caught_up()
        deadline = machine.next_deadline()
        if (deadline is not None and deadline < self._armed_s) or (
            bucket is not None and self.paced_until < self._armed_s
        ):
            self._rearm.set()

    def _limit_rate(self, own: TokenBucket | None) -> None:
        """Apply the rate of its own, if there is one, and that of its namespace."""
        # Messages of lossy topics that are not delivered at once are lost, so their delivery cannot be delayed.
        shared = None if self._lossy else self.topic.shared_rate()
        if shared is None:
            self._bucket = own
        else:
            share = shared.share()
            self._bucket = share if own is None else BothBuckets(own, share)
        if self._bucket is None:
            self.paced_until = math.inf

    def _next_deadline(self) -> float:
        deadline = self.machine.next_deadline()
        # While all delivery is stopped, the rate is no reason to wake up.
        paced = math.inf if self.moving or self.failure is not None else self.paced_until
        return min(paced, math.inf if deadline is None else deadline)

    def offer(self, batch: StoredBatch) -> None:
        """Deliver a batch that is not stored (topics of durability ``none``) now, or drop it."""
        now = trio.current_time()
        span = self._span(batch, now)
        if span is not None:
            for item in self.machine.offered(span, now):
                self._send(item, now)
            if self._catching_up:
                self._tell_caught_up()

    def _find(self, offset: int) -> StoredBatch | None:
        ahead = self._ahead
        while ahead and ahead[0].end_offset <= offset:
            ahead.popleft()
        if ahead and ahead[0].base_offset <= offset:
            return ahead[0]
        return self.topic.kept.get_cached(offset)  # type: ignore[arg-type] # an int from dispatch; no call per batch

    def _span(self, batch: StoredBatch, now: float) -> Span | None:
        """Return a batch as input of the machine; None if it was settled instead."""
        return Span(batch.base_offset, batch.end_offset, len(batch.part), batch)

    def _send(self, item: Delivery | Gap, now: float) -> None:
        consumer = self.consumers.get(item.consumer_id)
        if consumer is None:
            return
        if isinstance(item, Gap):
            consumer.send(api.Gap(item.start, item.end))
            return
        if self._bucket is not None:
            self._bucket.take(item.messages, item.size_bytes, now)
        self.progressed_s = now
        self._deliver(consumer, item)
        self._hold_if_crowded(consumer)

    def _hold_if_crowded(self, consumer: ConnectedConsumer) -> None:
        if not consumer.holds and consumer.crowded(self._lossy):
            # It grants more credit than it reads. Further messages wait in the log, or go to others.
            consumer.hold(self, *self.machine.withdraw(consumer.consumer_id))

    def _deliver(self, consumer: ConnectedConsumer, delivery: Delivery) -> None:
        """Send messages to a consumer."""
        consumer.deliver(self.topic, delivery.token, delivery, False)

    def _tell_caught_up(self) -> None:
        machine = self.machine
        self._catching_up = False
        for consumer in self.consumers.values():
            goal = consumer.caught_up_at
            if goal is None:
                continue
            if machine.position >= goal and not machine.goes_on():
                consumer.send(api.CaughtUp(goal))
                consumer.caught_up_at = None
            else:
                self._catching_up = True

    @abstractmethod
    def _skip(self, ranges: Sequence[int]) -> None:
        """Skip flat ranges that the log no longer holds."""

    # --- The tasks ---

    async def _run(self, scope: trio.CancelScope) -> None:
        """Read from the disk and wait for deadlines, while consumers are connected."""
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_time)  # a separate task: a storage may be slow to answer
                await self._keep_reading()
                nursery.cancel_scope.cancel()
        if self._task_scope is scope:
            self._task_scope = None  # it has failed: after a repair, a consumer that joins needs another task

    async def _keep_time(self) -> None:
        while True:
            self._armed_s = self._next_deadline()
            with trio.move_on_at(self._armed_s):
                await self._rearm.wait()
            self._rearm = trio.Event()
            resuming, self._resuming = self._resuming, []
            for consumer in resuming:
                if consumer.consumer_id in self.consumers:
                    consumer.resume(self, self._lossy)
            now = trio.current_time()
            self._wake_up(now)
            self.machine.tick(now)
            self.pump()
            for consumer in resuming:
                consumer.resumed()

    def _wake_up(self, now: float) -> None:  # noqa: B027 - a hook
        """Called before due events are processed."""

    async def _keep_reading(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            try:
                await self._read_ahead()
                self._storage_down(None)
            except StorageError as error:
                # History is unavailable, not lost: retry for as long as it takes.
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
            end, view = self.topic.end_offset, self._view
            try:
                batches = await self.topic.kept.read(Offset(request.offset), _READ_BYTES)
            except (DanubeError, OSError):
                if view != self._view:
                    continue
                self._failed_at = request.offset
                raise
            if view != self._view:
                continue
            if not batches:  # retention, or a loss of the journal, has removed all messages from there on
                self._skip([request.offset, max(end, self.topic.start_offset)])
                self.pump()
                return
            self._ahead = deque(batches)
            found = batches[0].base_offset
            if found > request.offset:
                # Retention, or a power loss, has removed the messages in between, so they cannot be acknowledged any
                # more.
                self._skip([request.offset, found])
            self.pump()

    def _forget_reads(self) -> None:
        """Drop what was read ahead or is being read: the position was moved, or there are messages where none were."""
        self._ahead.clear()
        self._view += 1

    def _storage_down(self, error: StorageError | None) -> None:
        if error is not None and self.waits_for is None:
            _log.error(
                "%s waits for history from the storage; retrying: %s",
                self,
                error,
                extra=log_event("subscription.history_waits", topic=self.topic.name, subscription=self.name or None),
            )
        elif error is None and self.waits_for is not None:
            _log.warning(
                "%s can read its history again",
                self,
                extra=log_event("subscription.history_working", topic=self.topic.name, subscription=self.name or None),
            )
        self.waits_for = error

    def _fail(self, error: DanubeError) -> None:
        _log.error(
            "%s stops: %s",
            self,
            error,
            extra=log_event("subscription.stopped", topic=self.topic.name, subscription=self.name or None),
        )
        self.failure = error
        self.end(error)

    def forget_failure(self) -> None:
        """Clear the failure and try again: its cause may be repaired, or the cursor may have been moved."""
        if self.failure is not None:
            _log.warning(
                "%s delivers again; it had stopped with: %s",
                self,
                self.failure,
                extra=log_event("subscription.working", topic=self.topic.name, subscription=self.name or None),
            )
        self.failure, self._failed_at = None, -1

    async def look_again(self) -> None:
        """If delivery has stopped, check whether the damaged data can be read now, and resume if so."""
        failure, offset = self.failure, self._failed_at
        if failure is None:
            return
        if offset >= 0:
            try:
                await self.topic.kept.read(Offset(offset), 1)
            except StorageError as error:
                _log.debug("%s: the storage is unreachable, which does not mean that data is lost: %s", self, error)
            except (DanubeError, OSError) as error:
                _log.debug("%s stays stopped: %s", self, error)
                return
        if self.failure is failure:
            self.forget_failure()
