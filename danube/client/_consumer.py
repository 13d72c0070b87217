"""The consumer: takes what its feeds have received, fairly, and hands it out as messages or batches."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from danube.client._message import BareMessage, Batch, Message, open_delivery
from danube.client._tasks import copy_error
from danube.model.api import CaughtUp
from danube.model.errors import ClosedError, CorruptBatchError, DataLossError, InvalidArgumentError

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from danube.client._feed import Feed

__all__ = ["Consumer"]

_TURN_MESSAGES = 500
"""Messages handed out before other tasks of the loop get a turn."""


class Consumer:
    """Receives the messages of one subscription; made by :meth:`Client.consumer`.

    Iterate over it for messages, or over :meth:`batches` for the fast path. Partitions are taken in turn, one
    delivery each. Delivery is at least once: what is not acknowledged comes again after a reconnect.
    Several tasks may take messages from one consumer.
    """

    def __init__(self, topic: str, subscription: str, name: str, max_batch_bytes: int) -> None:
        self.topic = topic
        """The topic as it was asked for."""
        self.subscription = subscription
        self.name = name
        """Name of this consumer within the subscription."""
        self._feeds: Sequence[Feed] = ()
        self._max_batch_bytes = max_batch_bytes
        self._ready: deque[Feed] = deque()
        self._changed = anyio.Event()
        self._wake_event = anyio.Event()
        self._closed = False
        self._batch: Batch | None = None
        self._source: Iterator[Message] = iter(())
        self._messages: Iterator[Message] = iter(())
        self._handed_out = 0

    # --- Facts -------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """False for a failover consumer that stands by."""
        return any(feed.active for feed in self._feeds)

    @property
    def caught_up(self) -> bool:
        """Whether everything that was in the topic has been taken from this consumer."""
        return all(feed.caught_up for feed in self._feeds)

    @property
    def dropped_messages(self) -> int:
        """Messages of a ``none`` topic that the broker dropped because this consumer was too slow."""
        return sum(feed.dropped_messages for feed in self._feeds)

    @property
    def gaps(self) -> list[tuple[str, int, int]]:
        """The last dropped ranges as ``(topic, start, end)``, at most 1,000 of each partition."""
        return [(feed.topic, gap.start, gap.end) for feed in self._feeds for gap in feed.gaps]

    # --- Receiving ---------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Message:
        message = next(self._messages, None)
        if message is not None:
            return message
        return await self._next_message()

    async def receive(self) -> Message:
        """Return the next message; wait for one if need be. Cancelling loses nothing.

        Raises:
            DataLossError: a batch arrived damaged; the message names topic and offsets. The consumer goes on with the
                next batch, the damaged one stays unacknowledged.
            DanubeError: the broker ended the subscription, or stayed away for too long.
        """
        message = next(self._messages, None)
        if message is not None:
            return message
        return await self._next_message()

    async def receive_batch(self) -> Batch:
        """Return the next batch; wait for one if need be. Errors and cancellation as in :meth:`receive`."""
        batch = await self._next_batch(until_caught_up=False)
        assert batch is not None
        return batch

    def batches(self, *, until_caught_up: bool = False) -> AsyncIterator[Batch]:
        """Iterate over batches; with ``until_caught_up``, end when everything that was there has been taken."""
        return _Batches(self, until_caught_up)

    async def wait_caught_up(self) -> None:
        """Wait until :attr:`caught_up`. Somebody has to take the messages meanwhile."""
        while not self.caught_up:
            self._check()
            await self._changed.wait()

    async def wait_active(self) -> None:
        """Wait until this consumer of a failover subscription is the active one."""
        while not self.active:
            self._check()
            await self._changed.wait()

    async def _next_message(self) -> Message:
        while True:
            # Here, between two chunks of messages, the other tasks get their turn (the sender of acks, for one).
            await anyio.lowlevel.checkpoint()
            self._messages = islice(self._source, _TURN_MESSAGES)
            message = next(self._messages, None)
            if message is not None:
                return message
            self._batch = None
            batch = await self._next_batch(until_caught_up=False)
            assert batch is not None
            self._open(batch)

    def _open(self, batch: Batch) -> None:
        """Hand out the messages of a batch; after those of one that another task has opened meanwhile."""
        self._source = iter(batch) if self._batch is None else chain(self._source, batch)
        self._batch = batch

    async def _next_batch(self, *, until_caught_up: bool) -> Batch | None:
        if self._handed_out >= _TURN_MESSAGES:
            self._handed_out = 0
            await anyio.lowlevel.checkpoint()
        while True:
            while self._ready:
                batch = self._pop()
                if batch is not None:
                    self._handed_out += len(batch)
                    return batch
            if until_caught_up and self.caught_up:
                return None
            self._check()
            self._handed_out = 0
            await self._changed.wait()

    def _pop(self) -> Batch | None:
        """Take one delivery from the feed whose turn it is."""
        feed = self._ready.popleft()
        queue = feed.queue
        item = queue.popleft()
        if queue:
            self._ready.append(feed)
        else:
            feed.listed = False
        if isinstance(item, CaughtUp):
            feed.caught_up = True
            self._notify()
            return None
        feed.taken(item)
        try:
            return open_delivery(Batch, feed, item, self._max_batch_bytes)
        except CorruptBatchError as error:
            ranges = item.ranges
            where = f"[{ranges[0]}, {ranges[-1]})" if ranges else f"from {item.base_offset} on"
            raise DataLossError(
                f"{feed.topic}: messages {where} arrived damaged: {error.message}. They stay unacknowledged;"
                " connect again to have them delivered again, or skip them with ack_range()"
            ) from error

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"the consumer on {self.topic} is closed; open a new one")
        for feed in self._feeds:
            if feed.error is not None and not feed.queue:
                raise copy_error(feed.error)

    # --- Acknowledging -----------------------------------------------------------------------------------------------

    async def ack_cumulative(self, message: BareMessage) -> None:
        """Acknowledge everything in the message's topic (partition) up to and including it.

        For exclusive and failover subscriptions only.
        """
        message._batch.feed.ack_cumulative(message.offset)

    def ack_range(self, start: int, end: int, *, partition: int = 0) -> None:
        """Acknowledge the offsets ``start`` up to, not including, ``end``, for example to skip damaged messages."""
        if not 0 <= start < end:
            raise InvalidArgumentError(f"ack_range needs 0 <= start < end, got {start} and {end}")
        self._feeds[partition].ack(start, end)

    async def flush_acks(self) -> None:
        """Wait until every acknowledgement given so far is durable at the broker.

        In a key-shared subscription acknowledgements take effect in the order of their key: one that was given before
        that of an earlier message of the same key becomes durable together with that one, which this does not wait for.

        Raises:
            DanubeError: the subscription has ended, so that the acknowledgements will never arrive.
        """
        await anyio.lowlevel.checkpoint()
        targets = [(feed, feed.ledger.next_token) for feed in self._feeds if not feed.ledger.settled]
        for feed, _ in targets:
            feed.flush_waiters += 1
        self._wake()
        try:
            for feed, token in targets:
                while feed.confirmed_token < token:
                    if feed.error is not None:
                        raise copy_error(feed.error)
                    await feed.confirmed.wait()
        finally:
            for feed, _ in targets:
                feed.flush_waiters -= 1

    # --- Life --------------------------------------------------------------------------------------------------------

    def _start(self, feeds: Sequence[Feed]) -> None:
        self._feeds = feeds

    def _arrived(self, feed: Feed) -> None:
        if feed.queue and not feed.listed:
            feed.listed = True
            self._ready.append(feed)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _restarted(self, feed: Feed) -> None:
        """Drop what is left of an opened batch: the broker delivers it again."""
        if feed.listed:
            feed.listed = False
            self._ready.remove(feed)
        if self._batch is not None and self._batch.feed is feed:
            self._source = self._messages = iter(())

    def _wake(self) -> None:
        self._wake_event.set()

    async def _run_sender(self, *, task_status: TaskStatus[None]) -> None:
        """Send, once per turn of the loop, what the application has said in it."""
        task_status.started()
        while True:
            if any(feed.unconfirmed for feed in self._feeds):
                # Nothing may follow that asks for confirmation, so that is done after a while of silence.
                with anyio.move_on_after(1.0):
                    await self._wake_event.wait()
            else:
                await self._wake_event.wait()
            self._wake_event = anyio.Event()
            now_s = anyio.current_time()
            for feed in self._feeds:
                feed.send_gathered(now_s)

    def _close(self) -> None:
        self._closed = True
        self._notify()


class _Batches(AsyncIterator[Batch]):
    """What ``consumer.batches()`` returns: no generator, so that leaving the loop early needs no clean-up."""

    __slots__ = ("_consumer", "_until_caught_up")

    def __init__(self, consumer: Consumer, until_caught_up: bool) -> None:
        self._consumer = consumer
        self._until_caught_up = until_caught_up

    async def __anext__(self) -> Batch:
        batch = await self._consumer._next_batch(until_caught_up=self._until_caught_up)
        if batch is None:
            raise StopAsyncIteration
        return batch
