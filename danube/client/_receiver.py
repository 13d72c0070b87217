"""Hands out the deliveries of all partitions in turn, as messages or batches: shared base of consumers and readers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio
import anyio.lowlevel

from danube.client._delivered import OpenBatch, live_ranges, message_count, open_delivery
from danube.client._generics import V
from danube.client._inflow import Inflow
from danube.client._instruments import NOT_TRACED
from danube.client._message import Batch, Message
from danube.client._tasks import copy_error
from danube.model.api import CaughtUp
from danube.model.errors import ClosedError, CorruptBatchError, DataLossError

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from danube.client._delivered import BareMessage, DeliveredBatch
    from danube.client._instruments import Processing
    from danube.client._values import Reading

__all__ = ["Receiver"]

_TURN_MESSAGES = 500
"""Messages handed out before other tasks of the loop get a turn."""

F = TypeVar("F", bound=Inflow)


class Receiver(Generic[F, V]):
    """Common base of :class:`danube.client.Consumer` and :class:`danube.client.Reader`.

    Iterate over it for messages, or over :meth:`batches` for the fast path. Partitions are served in turn, one
    delivery each. Several tasks may take messages from one receiver.
    """

    topic: str
    """The topic as requested."""
    name: str
    """Name of this consumer within the subscription; a reader may have none."""

    def __init__(self, what: str, topic: str, name: str, max_batch_bytes: int) -> None:
        self.topic = topic
        self.name = name
        self._what = what
        self._feeds: Sequence[F] = ()
        self._max_batch_bytes = max_batch_bytes
        self._ready: deque[F] = deque()
        self._changed = anyio.Event()
        self._wake_event = anyio.Event()
        self._closed = False
        self._open_batches: list[OpenBatch[Message[V]]] = []
        self._source: Iterator[Message[V]] = iter(())
        self._messages: Iterator[Message[V]] = iter(())
        self._handed_out = 0
        self._reading: Reading | None = None
        """Decodes payloads; None without ``schema=``."""

    # --- Facts -------------------------------------------------------------------------------------------------------

    @property
    def caught_up(self) -> bool:
        """Whether all messages that were in the topic have been taken."""
        return all(feed.caught_up for feed in self._feeds)

    @property
    def dropped_messages(self) -> int:
        """Messages of a ``none`` topic that the broker dropped because they were not taken fast enough."""
        return sum(feed.dropped_messages for feed in self._feeds)

    @property
    def gaps(self) -> list[tuple[str, int, int]]:
        """The last dropped ranges as ``(topic, start, end)``, at most 1,000 of each partition."""
        return [(feed.topic, gap.start, gap.end) for feed in self._feeds for gap in feed.gaps]

    # --- Receiving ---------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[V]:
        message = next(self._messages, None)
        if message is not None:
            return message
        return await self._next_message()

    async def receive(self) -> Message[V]:
        """Return the next message; wait for one if necessary. Cancelling loses nothing.

        Raises:
            DataLossError: a batch arrived damaged; the error names topic and offsets. The next call continues with the
                next batch.
            DanubeError: the broker ended the subscription or the topic, or was unreachable for too long.
        """
        message = next(self._messages, None)
        if message is not None:
            return message
        return await self._next_message()

    async def receive_batch(self) -> Batch[V]:
        """Return the next batch; wait for one if necessary. Errors and cancellation as in :meth:`receive`."""
        batch = await self._next_batch(until_caught_up=False)
        assert batch is not None
        return batch

    def batches(self, *, until_caught_up: bool = False) -> AsyncIterator[Batch[V]]:
        """Iterate over batches; with ``until_caught_up``, end when the backlog has been taken."""
        return _Batches(self, until_caught_up)

    async def wait_caught_up(self) -> None:
        """Wait until :attr:`caught_up`. Another task has to take the messages meanwhile."""
        await self._wait_for(lambda: self.caught_up)

    def processing(self, message: BareMessage[Any] | DeliveredBatch) -> Processing:
        """Handle a message or batch within this block, to have it traced: ``with consumer.processing(message)``.

        With telemetry (see :func:`danube.connect`) the block is a span that belongs to the trace in which the message
        was sent; what is sent within goes on with it. Without telemetry the block has no effect.
        """
        return NOT_TRACED

    async def _next_message(self) -> Message[V]:
        while True:
            # Between two chunks of messages, let other tasks run (for example the sender of acks).
            await anyio.lowlevel.checkpoint()
            self._messages = islice(self._source, _TURN_MESSAGES)
            message = next(self._messages, None)
            if message is not None:
                return message
            self._open_batches.clear()
            batch = await self._next_batch(until_caught_up=False, or_message=True)
            if batch is None:
                continue  # another task has opened a batch with more than the one message that it takes
            if len(batch) == 1:
                return batch[0]
            self._open(batch)

    def _open(self, batch: Batch[V]) -> None:
        """Hand out the messages of a batch, after those of a batch that another task has opened in the meantime."""
        opened = self._feeds[batch.partition].open(batch, batch.kind)
        self._open_batches.append(opened)
        if len(self._open_batches) == 1:
            self._source = opened.messages
        else:
            self._source = chain.from_iterable([one.messages for one in self._open_batches])
        self._notify()  # tasks that wait for a message find one here

    async def _next_batch(self, *, until_caught_up: bool, or_message: bool = False) -> Batch[V] | None:
        """Return the next batch; wait for one if necessary.

        Args:
            until_caught_up: return None once the backlog has been taken.
            or_message: return None as soon as another task has opened a batch that still has messages.
        """
        if self._handed_out >= _TURN_MESSAGES:
            self._handed_out = 0
            await anyio.lowlevel.checkpoint()
        while True:
            while self._ready:
                if self._reading is not None:
                    feed = self._ready[0]
                    wanted = self._reading.unknown(feed.queue[0], self._max_batch_bytes, is_framed=feed.is_framed)
                    if wanted is not None:
                        # The delivery stays where it is meanwhile, so that cancelling loses nothing.
                        await self._reading.learn(wanted)
                        continue
                batch = self._pop()
                if batch is not None:
                    self._handed_out += len(batch)
                    return batch
            if until_caught_up and self.caught_up:
                return None
            self._check()
            self._handed_out = 0
            if or_message and any(one.next_offset is not None for one in self._open_batches):
                return None
            await self._changed.wait()

    def _pop(self) -> Batch[V] | None:
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
        try:
            batch: Batch[V] = open_delivery(Batch, feed, item, self._max_batch_bytes)
        except CorruptBatchError as error:
            feed.taken(item, live_ranges(item), message_count(item))
            ranges = item.ranges
            where = f"[{ranges[0]}, {ranges[-1]})" if ranges else f"from {item.base_offset} on"
            raise DataLossError(
                f"{feed.topic}: messages {where} arrived damaged: {error.message}. {feed.damage_advice}"
            ) from error
        feed.taken(item, batch.ranges, len(batch))
        batch.is_framed = feed.is_framed and not batch.schema_id
        if self._reading is not None:
            batch.decoder = self._reading.decoder(batch)
        return batch

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self._what} on {self.topic} is closed; open a new one")
        for feed in self._feeds:
            if feed.error is not None and not feed.queue:
                raise copy_error(feed.error)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._check()
            await self._changed.wait()

    # --- Life cycle --------------------------------------------------------------------------------------------------

    def _start(self, feeds: Sequence[F]) -> None:
        self._feeds = feeds

    def _arrived(self, feed: Inflow) -> None:
        if feed.queue and not feed.listed:
            feed.listed = True
            self._ready.append(self._feeds[feed.partition])
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _restarted(self, feed: Inflow) -> None:
        """Forget waiting messages, because the broker delivers from another position or again."""
        if feed.listed:
            feed.listed = False
            self._ready.remove(self._feeds[feed.partition])
        self._open_batches = [one for one in self._open_batches if one.batch.partition != feed.partition]
        self._source = chain.from_iterable([one.messages for one in self._open_batches])
        self._messages = iter(())

    def _wake(self) -> None:
        self._wake_event.set()

    def _next_duty_s(self) -> float:
        """Return the time in seconds after which requests have to be sent even if nothing happens until then."""
        return math.inf

    def _do_duties(self, now_s: float) -> None:
        """Perform timed duties before the collected requests are sent."""

    async def _run_sender(self, *, task_status: TaskStatus[None]) -> None:
        """Send, once per turn of the loop, the requests collected in it."""
        task_status.started()
        while True:
            patience_s = self._next_duty_s()
            if patience_s == math.inf:
                await self._wake_event.wait()
            else:
                with anyio.move_on_after(max(0.0, patience_s)):
                    await self._wake_event.wait()
            self._wake_event = anyio.Event()
            now_s = anyio.current_time()
            self._do_duties(now_s)
            for feed in self._feeds:
                feed.send_gathered(now_s)

    def _close(self) -> None:
        self._closed = True
        self._notify()


class _Batches(AsyncIterator[Batch[V]]):
    """The iterator of ``batches()``: not a generator, so that leaving the loop early needs no clean-up."""

    __slots__ = ("_receiver", "_until_caught_up")

    def __init__(self, receiver: Receiver[Any, V], until_caught_up: bool) -> None:
        self._receiver = receiver
        self._until_caught_up = until_caught_up

    async def __anext__(self) -> Batch[V]:
        batch = await self._receiver._next_batch(until_caught_up=self._until_caught_up)
        if batch is None:
            raise StopAsyncIteration
        return batch
