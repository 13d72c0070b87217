"""The producer: assigns messages to the outboxes of its partitions, and waits for their receipts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic

import anyio
import anyio.lowlevel

from danube.client._generics import P
from danube.client._many import ANYWHERE, Segment, by_partition, checked_lengths, encoded_pieces, joined
from danube.client._outbox import RECORD_OVERHEAD, Budget, OutBatch, record_size
from danube.client._payloads import (
    check_payloads,
    due_us,
    encoded_key,
    pieces,
    to_bytes,
    to_record,
    too_large,
)
from danube.client._receipt import Pending, settled
from danube.client._receipts import RangeReceipt, Receipt
from danube.client._router import Router
from danube.client._tasks import copy_error
from danube.model.batch import Record
from danube.model.errors import (
    ClosedError,
    DeadlineExceededError,
    LimitExceededError,
)

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from danube.client._lane import Lane
    from danube.model.batch import SchemaRef
    from danube.model.policies import Durability

__all__ = ["Producer"]

_ENCODE_AT_ONCE = 1_000
"""A ``send_many`` of more bare payloads than this makes batches of its own; smaller ones join the open batch."""


class Producer(Generic[P]):
    """Sends messages to one topic; made by :meth:`Client.producer`.

    Safe to use from many tasks of one event loop. Order: messages that one task sends to one partition are stored in
    the order of its calls. A message counts as accepted when ``send_nowait`` returns, or ``send`` has found room for
    it; from then on it is sent even if the caller is cancelled, and a retry never stores it twice.
    """

    topic: str
    """The topic as requested."""
    name: str
    """Name by which the broker identifies it."""

    def __init__(
        self,
        topic: str,
        name: str,
        lanes: Sequence[Lane],
        budget: Budget,
        send_timeout_s: float | None,
        clock_us: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.name = name
        self._lanes = lanes
        self._single: Lane | None = None
        self._sticky = 0
        self._sticky_batch: OutBatch | None = None
        self._router = Router(1)
        self._budget = budget
        self._send_timeout_s = send_timeout_s
        self._clock_us = clock_us
        self._closed = False
        self._wake_event = anyio.Event()

    # --- Facts -------------------------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """Number of partitions; 0 for a plain topic."""
        return 0 if self._single is not None and self._single.topic == self.topic else len(self._lanes)

    @property
    def durability(self) -> Durability | None:
        """When the topic acknowledges."""
        return self._lanes[0].durability

    @property
    def stored_before(self) -> list[int]:
        """For each partition: how many messages of this producer name the broker had when it was opened.

        A named producer that repeats its work after a crash skips that many messages of each partition.
        """
        return [lane.first_sequence for lane in self._lanes]

    @property
    def buffered_bytes(self) -> int:
        """Bytes accepted and not yet settled."""
        return self._budget.used

    def partition_for(self, key: str | bytes) -> int:
        """Return the index of the partition that messages with ``key`` go to."""
        return self._router.partition(encoded_key(key))

    # --- Sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        payload: P,
        *,
        key: str | bytes | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> Receipt:
        """Send one message and wait until it has reached the durability of its topic.

        Overlapping calls share batches. Cancelling before there is room in the buffer sends nothing; cancelling
        later abandons the receipt, not the message.

        Args:
            payload: the message; with ``schema=`` a value, which is encoded.
            key: for related messages: they keep their order, also in key-shared subscriptions. Any bytes; a text stands
                for its UTF-8 bytes.
            attributes: names and values for the consumers.
            deliver_at: a date with a time zone, before which subscriptions do not deliver the message (readers do).
                Others overtake it. Only messages that are due at the same time share a batch.
            deliver_after_s: the same as a delay from now, by the clock of this client, rounded up to a millisecond.

        Raises:
            InvalidArgumentError: the payload is not bytes; or :class:`MessageTooLargeError`, naming the limit.
            SchemaError: the value does not fit the schema; the message names the field.
            DeadlineExceededError: no answer within ``send_timeout_s``; the message may still be stored.
            DanubeError: the broker refused the message, or this producer has failed permanently.
        """
        if self._send_timeout_s is None:
            await self._wait_for_room()
            return await self._accept(
                payload, key=key, attributes=attributes, deliver_at=deliver_at, deliver_after_s=deliver_after_s
            )
        with anyio.move_on_after(self._send_timeout_s):
            await self._wait_for_room()
            return await self._accept(
                payload, key=key, attributes=attributes, deliver_at=deliver_at, deliver_after_s=deliver_after_s
            )
        raise self._timed_out("the message")

    def send_nowait(
        self,
        payload: P,
        *,
        key: str | bytes | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> Pending:
        """Accept one message and return at once; ``await`` the result or :meth:`flush` later.

        Arguments as :meth:`send`. The event loop must run: a loop that only calls ``send_nowait`` sends nothing until
        it awaits something, and eventually reaches the limit.

        Raises:
            LimitExceededError: ``max_buffered_bytes`` are waiting already; call :meth:`flush`, or use :meth:`send`,
                which waits.
            InvalidArgumentError, MessageTooLargeError, DanubeError: as :meth:`send`.
        """
        if self._budget.used >= self._budget.limit:
            self._check_usable()
            raise LimitExceededError(
                f"producer on {self.topic}: max_buffered_bytes = {self._budget.limit} are waiting for the broker;"
                " await flush() or send(), or raise the limit"
            )
        if deliver_at is not None or deliver_after_s is not None:
            return self._accept_delayed(payload, key, attributes, due_us(deliver_at, deliver_after_s, self._clock_us))
        data: bytes = payload if type(payload) is bytes else to_bytes(payload)  # type: ignore[assignment]
        if key is not None:
            key = encoded_key(key)
        lane = self._single
        if lane is None:
            lane = self._lane_for(key)
        outbox = lane.outbox
        size = len(data)
        if size > outbox.max_message_bytes:
            raise too_large(size, outbox.max_message_bytes, None)
        if key is None and attributes is None:
            item: bytes | Record = data
            size += RECORD_OVERHEAD
        else:
            item = to_record(data, key, attributes)
            size = record_size(size, key, attributes)
        before = outbox.open
        if before is None:
            # Only the first message of a batch must check whether the lane is closed, and start sending.
            self._check_usable(lane)
        batch, index = outbox.add(item, size)
        pending = Pending(batch, index, lane.topic, lane.partition)
        if key is None:
            self._sticky_batch = batch
        if batch is not before:
            lane.kick()
        return pending

    _accept = send_nowait
    """The same for :meth:`send`, also in a class that overrides the former."""

    def _carry(self, schema: SchemaRef) -> None:
        """Name a schema in the headers of later batches, for payloads that are encoded already.

        Messages that were accepted before must be settled, since batches are encoded when they are sent.
        """
        for lane in self._lanes:
            lane.outbox.schema = schema

    def _accept_delayed(
        self, payload: P, given: str | bytes | None, attributes: dict[str, str] | None, deliver_at_us: int
    ) -> Pending:
        """Accept a message with a delivery time (or 0); a separate method, to keep the hot path fast."""
        data = to_bytes(payload)
        key = None if given is None else encoded_key(given)
        lane = self._lane_for(key)
        self._check_usable(lane)
        outbox = lane.outbox
        size = len(data)
        if size > outbox.max_message_bytes:
            raise too_large(size, outbox.max_message_bytes, None)
        record = to_record(data, key, attributes)
        size = record_size(size, key, attributes)
        batch, index = outbox.extend([record], size, plain=False, deliver_at_us=deliver_at_us)
        if key is None:
            self._sticky_batch = batch
        lane.kick()
        return Pending(batch, index, lane.topic, lane.partition)

    async def send_many(
        self,
        payloads: Sequence[P],
        *,
        key: str | bytes | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> RangeReceipt:
        """Send many messages in one call, and wait until all are durable. The fastest way to publish.

        Arguments as :meth:`send`, for all of them; ``keys`` has a key for each. Messages without a key are spread over
        the partitions batch by batch. Nothing is accepted if a payload is not bytes. Batches are accepted one after
        the other, as the buffer has room: a call that is cancelled, or fails at a payload that is too large, may have
        sent the messages before it.

        Raises:
            InvalidArgumentError: a payload is not bytes (the message names its index), or ``keys`` has another length.
            SchemaError: a value does not fit the schema (the message names its index and the field); none is sent.
            MessageTooLargeError, DeadlineExceededError, DanubeError: as :meth:`send`.
        """
        due = due_us(deliver_at, deliver_after_s, self._clock_us)
        if self._send_timeout_s is None:
            return await self._send_many(payloads, key, keys, attributes, due)
        with anyio.move_on_after(self._send_timeout_s):
            return await self._send_many(payloads, key, keys, attributes, due)
        raise self._timed_out(f"{len(payloads)} messages")

    async def _send_many(
        self,
        payloads: Sequence[Any],
        key: str | bytes | None,
        keys: Sequence[str | bytes | None] | None,
        attributes: dict[str, str] | None,
        deliver_at_us: int,
    ) -> RangeReceipt:
        self._check_usable()
        checked = check_payloads(payloads)
        if not checked:
            await anyio.lowlevel.checkpoint()
            return RangeReceipt([])
        segments: list[Segment] = []
        if key is None and keys is None and attributes is None:
            if len(checked) > _ENCODE_AT_ONCE:
                await self._send_encoded(checked, segments, deliver_at_us)
            else:
                for start, end, size in self._pieces(self._checked_lengths(checked)):
                    chosen = self._lane_for(None)
                    await self._extend(chosen, checked[start:end], size, segments, deliver_at_us, plain=True)
        else:
            route = None if self._single is not None else self._router.partition
            most = self._lanes[0].outbox.max_message_bytes
            for index, records, sizes in by_partition(checked, most, key, keys, attributes, route):
                for start, end, size in self._pieces(sizes):
                    chosen = self._lane_for(None) if index == ANYWHERE else self._lanes[index]
                    await self._extend(chosen, records[start:end], size, segments, deliver_at_us, plain=False)
        for segment in segments:
            await settled(segment.batch)
        return RangeReceipt(joined(segments))

    async def _send_encoded(self, payloads: list[bytes], segments: list[Segment], deliver_at_us: int) -> None:
        """Send many bare payloads, in batches of their own."""
        outbox = self._lanes[0].outbox
        for body, count in encoded_pieces(payloads, outbox.max_bytes, outbox.max_messages, outbox.max_message_bytes):
            await self._wait_for_room()
            lane = self._lane_for(None)
            self._check_usable(lane)
            batch = lane.outbox.add_encoded(body, count, deliver_at_us)
            segments.append(Segment(lane.topic, lane.partition, batch, 0, count))
            self._sticky_batch = batch  # it is not the open batch: the next piece goes to the next partition
            lane.kick()

    async def _extend(
        self,
        lane: Lane,
        items: Sequence[bytes] | Sequence[Record],
        size: int,
        segments: list[Segment],
        deliver_at_us: int,
        *,
        plain: bool,
    ) -> None:
        await self._wait_for_room()
        self._check_usable(lane)
        before = lane.outbox.open
        batch, index = lane.outbox.extend(items, size, plain=plain, deliver_at_us=deliver_at_us)
        segments.append(Segment(lane.topic, lane.partition, batch, index, len(items)))
        if lane is self._lanes[self._sticky]:
            self._sticky_batch = batch
        if batch is not before:
            lane.kick()

    def _checked_lengths(self, payloads: Sequence[bytes]) -> list[int]:
        return checked_lengths(payloads, self._lanes[0].outbox.max_message_bytes)

    def _pieces(self, lengths: list[int]) -> list[tuple[int, int, int]]:
        outbox = self._lanes[0].outbox
        return pieces(lengths, outbox.max_bytes, outbox.max_messages)

    def _lane_for(self, key: bytes | None) -> Lane:
        if self._single is not None:
            return self._single
        if key is not None:
            return self._lanes[self._router.partition(key)]
        lane = self._lanes[self._sticky]
        if lane.outbox.open is not self._sticky_batch:  # the batch that the last message joined is closed
            self._sticky = (self._sticky + 1) % len(self._lanes)
            lane = self._lanes[self._sticky]
            self._sticky_batch = lane.outbox.open
        return lane

    # --- Waiting -----------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until every message accepted so far is settled.

        Raises:
            DanubeError: the first failure of a message that no caller was waiting for (it is raised once).
        """
        for lane in self._lanes:
            for batch in lane.outbox.unsettled():
                if not batch.settled:
                    if batch.event is None:
                        batch.event = anyio.Event()
                    await batch.event.wait()
        await anyio.lowlevel.checkpoint()
        for lane in self._lanes:
            error, lane.outbox.unreported = lane.outbox.unreported, None
            if error is not None:
                raise copy_error(error)

    async def _wait_for_room(self) -> None:
        budget = self._budget
        while budget.used >= budget.limit:
            self._check_usable()
            if budget.changed is None:
                budget.changed = anyio.Event()
            await budget.changed.wait()

    def _timed_out(self, what: str) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"{self.topic}: {what} not acknowledged within send_timeout_s = {self._send_timeout_s}; it may still be"
            " stored later, so do not send it again under another name"
        )

    def _check_usable(self, lane: Lane | None = None) -> None:
        if self._closed:
            raise ClosedError(f"the producer on {self.topic} is closed; open a new one")
        for one in self._lanes if lane is None else (lane,):
            if one.error is not None:
                raise copy_error(one.error)

    # --- Life cycle --------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._wake_event.set()

    async def _run_sender(self, *, task_status: TaskStatus[None]) -> None:
        """Send, once per turn of the loop, the messages collected in it."""
        task_status.started()
        while True:
            await self._wake_event.wait()
            self._wake_event = anyio.Event()
            for lane in self._lanes:
                lane.pump()

    def _opened(self) -> None:
        """Called when all lanes are open."""
        self._single = self._lanes[0] if len(self._lanes) == 1 else None
        self._router = Router(len(self._lanes))

    def _check_flushed(self, *, timed_out: bool) -> None:
        if timed_out:
            raise DeadlineExceededError(
                f"{self.topic}: {self._budget.used} bytes not acknowledged within close_timeout_s; they may or may not"
                " be stored"
            )

    def _close(self) -> None:
        self._closed = True
