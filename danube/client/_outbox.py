"""The messages of one producer on one topic, from ``send`` to their offsets. Pure: no I/O, no clock.

The unit is the batch. A message joins the open batch; its :class:`Pending` is only (batch, index), so that an
acknowledgement settles ten thousand messages by writing one field. The life cycle of a batch::

    open --full, or a slot is free--> queued --next_part()--> in flight --acked()/refused()--> settled

* **No timers.** A batch is sent as soon as fewer than ``max_in_flight`` are unanswered; later messages are collected in
  the next one. So batches grow with the load.
* **A delayed batch is due as a whole.** The time is in its header, so messages that are due at different times are
  sent in different batches. Such a batch is never the open one: it is queued at once, and joined while it is last.
* **A retry has the same bytes.** The encoded part of a batch is kept until the batch is settled. On a new stream all
  such batches are sent again, in order; the broker answers stored ones with their original offsets.
* **A refused batch stops the series.** Batches after it are refused as gaps. When each one sent has its reply, the
  first refusal decides: retry all later, or fail its messages, close the gap in the sequence and send the others.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Protocol, cast

from danube.model.api import AckedSequence, PublishOpened
from danube.model.batch import (
    PART_OVERHEAD,
    Codec,
    Record,
    SchemaRef,
    encode_records,
    pack_part,
    read_header,
    replace_header,
)
from danube.model.errors import (
    DanubeError,
    DuplicateSequenceError,
    MessageTooLargeError,
    ProducerFencedError,
    ProtocolError,
    SequenceGapError,
)
from danube.model.ids import NO_PRODUCER, NO_PRODUCER_EPOCH

__all__ = ["RECORD_OVERHEAD", "UNKNOWN_OFFSET", "Budget", "OutBatch", "Outbox", "Signal", "Verdict", "record_size"]

RECORD_OVERHEAD = 8
"""Bytes of a message besides payload, key and attributes: array and length prefixes of msgpack, rounded up."""

_NO_SCHEMA = SchemaRef()

UNKNOWN_OFFSET = -1
"""Offset of a message that the broker has stored, but whose position it no longer knows."""


class Signal(Protocol):
    """An event of the shell, for tasks that wait; it is set here, and made and awaited there."""

    def set(self) -> object:
        """Wake the tasks."""
        ...

    def wait(self) -> Awaitable[None]:
        """Wait for :meth:`set`."""
        ...


def record_size(size: int, key: bytes | None, attributes: dict[str, str] | None) -> int:
    """Return an estimate of the bytes that a message takes in a batch (an upper bound for ASCII text)."""
    size += RECORD_OVERHEAD
    if key is not None:
        size += len(key) + RECORD_OVERHEAD
    if attributes:
        size += sum(len(name) + len(value) + RECORD_OVERHEAD for name, value in attributes.items())
    return size


class Budget:
    """Bytes that a producer has accepted and that are not settled, over all its partitions."""

    __slots__ = ("changed", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.changed: Signal | None = None
        """Set when bytes are released; created by the first waiter."""

    def give_back(self, size: int) -> None:
        """Release the bytes of settled messages and wake the tasks that wait for room."""
        self.used -= size
        if self.changed is not None:
            self.changed.set()
            self.changed = None


class OutBatch:
    """Messages that are sent, acknowledged and settled together."""

    __slots__ = (
        "base_offset",
        "base_sequence",
        "body",
        "count",
        "deliver_at_us",
        "error",
        "event",
        "items",
        "outbox",
        "part",
        "plain",
        "refusal",
        "settled",
        "size",
        "waiters",
    )

    def __init__(self, outbox: Outbox, deliver_at_us: int = 0) -> None:
        self.outbox = outbox
        self.deliver_at_us = deliver_at_us
        """Delivery time of its messages, in microseconds since the epoch; 0: at once."""
        self.items: list[bytes | Record] = []
        self.plain = True
        self.size = 0
        self.count = 0
        self.body = b""
        """The encoded records of a batch that was encoded when it was accepted."""
        self.part = b""
        """The batch as it is sent; set when it is first sent."""
        self.base_sequence = 0
        self.base_offset = UNKNOWN_OFFSET
        self.settled = False
        self.error: DanubeError | None = None
        self.refusal: DanubeError | None = None
        self.event: Signal | None = None
        self.waiters = 0


class Verdict(enum.Enum):
    """The required action of the shell after a refusal."""

    GO_ON = "nothing; go on sending"
    RETRY_LATER = "wait, then call resume()"
    REOPEN = "open the stream again: broker and client disagree about the sequence"
    FENCED = "stop: a newer session of the same producer has taken over"


class Outbox:
    """Batches of one topic and their sequence numbers."""

    def __init__(
        self,
        budget: Budget,
        *,
        codec: Codec = Codec.NONE,
        batch_max_bytes: int,
        batch_max_messages: int,
        max_in_flight: int,
        schema: SchemaRef = _NO_SCHEMA,
    ) -> None:
        self.budget = budget
        self.open: OutBatch | None = None
        """The batch that new messages join; None if there is none. The hot path of send_nowait works on it."""
        self.queued: deque[OutBatch] = deque()
        self.flight: deque[OutBatch] = deque()
        self.unreported: DanubeError | None = None
        """The first failure of a message that no caller was waiting for."""
        self.max_bytes = batch_max_bytes
        self.max_messages = batch_max_messages
        self.max_in_flight = max_in_flight
        self.max_message_bytes = batch_max_bytes
        self.next_sequence = 0
        """Sequence of the first record of the next batch to be encoded."""
        self.producer_id = NO_PRODUCER
        self.epoch = NO_PRODUCER_EPOCH
        self._max_part_bytes = batch_max_bytes
        self._codec = codec
        self.schema = schema
        """What the headers of batches say that are encoded from now on."""
        self._sent = 0  # number of batches at the head of `flight` that were sent on the current stream
        self._refused = 0  # number of those that were refused
        self._paused = True  # not connected, or waiting for resume()

    # --- Collecting --------------------------------------------------------------------------------------------------

    def add(self, item: bytes | Record, size: int) -> tuple[OutBatch, int]:
        """Put one message of about ``size`` bytes into the open batch; return the batch and its index there."""
        batch = self.open
        if batch is None:
            batch = self.open = OutBatch(self)
        elif batch.size + size > self.max_bytes or batch.count >= self.max_messages:
            self.queued.append(batch)
            batch = self.open = OutBatch(self)
        index = batch.count
        batch.items.append(item)
        batch.count = index + 1
        batch.size += size
        if type(item) is Record:
            batch.plain = False
        self.budget.used += size
        return batch, index

    def extend(
        self, items: Sequence[bytes] | Sequence[Record], size: int, *, plain: bool, deliver_at_us: int = 0
    ) -> tuple[OutBatch, int]:
        """Put several messages into one batch (no more than fit into an empty one); as :meth:`add`."""
        batch = self._last_delayed(deliver_at_us) if deliver_at_us else self.open
        if batch is not None and (batch.size + size > self.max_bytes or batch.count + len(items) > self.max_messages):
            self._close_open()
            batch = None
        if batch is None:
            batch = OutBatch(self, deliver_at_us)
            if deliver_at_us:
                self.queued.append(batch)
            else:
                self.open = batch
        index = batch.count
        batch.items.extend(items)
        batch.count += len(items)
        batch.size += size
        batch.plain = batch.plain and plain
        self.budget.used += size
        return batch, index

    def add_encoded(self, body: bytes, count: int, deliver_at_us: int = 0) -> OutBatch:
        """Append a batch of its own after the collected messages: ``count`` bare payloads, encoded already."""
        self._close_open()
        batch = OutBatch(self, deliver_at_us)
        batch.body, batch.count, batch.size = body, count, len(body)
        self.queued.append(batch)
        self.budget.used += batch.size
        return batch

    def _last_delayed(self, deliver_at_us: int) -> OutBatch | None:
        """Return the last batch if it is due at that time, not sent yet, and no message was accepted after it."""
        self._close_open()
        last = self.queued[-1] if self.queued else None
        return last if last is not None and last.deliver_at_us == deliver_at_us and not last.body else None

    def _close_open(self) -> None:
        if self.open is not None:
            self.queued.append(self.open)
            self.open = None

    @property
    def refuses(self) -> bool:
        """Whether a batch was refused while other sent batches have no reply yet."""
        return self._refused > 0

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self.flight

    def unsettled(self) -> list[OutBatch]:
        """Return the batches that are not settled, oldest first."""
        return [*self.flight, *self.queued, *([] if self.open is None else [self.open])]

    # --- The stream --------------------------------------------------------------------------------------------------

    def opened(self, answer: PublishOpened) -> None:
        """Handle a new stream: everything in flight is sent again on it, unless it was settled."""
        known = bool(self.epoch)
        same_session = answer.producer_id == self.producer_id and answer.epoch == self.epoch
        self.producer_id, self.epoch = answer.producer_id, answer.epoch
        self.max_message_bytes = answer.max_message_bytes
        self._max_part_bytes = answer.max_batch_bytes
        self.max_bytes = min(self.max_bytes, answer.max_batch_bytes - PART_OVERHEAD - RECORD_OVERHEAD)
        first = self.flight[0].base_sequence if self.flight else self.next_sequence
        # A broker that knows fewer messages than it acknowledged has lost them, as far as its durability level permits
        # (or has forgotten an idle producer); the sequence continues from the messages that it knows.
        if not known or answer.next_sequence < first:
            first = answer.next_sequence
            same_session = False
        if not same_session:
            self._renumber(first)
        self._restart()

    def lost(self) -> None:
        """Handle the loss of the stream: send nothing until the next one is opened."""
        self._paused = True

    def resume(self) -> None:
        """Send temporarily refused batches again."""
        self._restart()

    def next_part(self, now_us: int) -> bytes | None:
        """Return the bytes to send next, or None if nothing may be sent now."""
        if self._paused or self._refused:
            return None
        if self._sent < len(self.flight):
            self._sent += 1
            return self.flight[self._sent - 1].part
        while len(self.flight) < self.max_in_flight:
            if self.queued:
                batch = self.queued.popleft()
            elif self.open is not None:
                batch, self.open = self.open, None
            else:
                return None
            if self._encode(batch, now_us):
                self.flight.append(batch)
                self._sent += 1
                return batch.part
        return None

    def _encode(self, batch: OutBatch, now_us: int) -> bool:
        body = batch.body
        if not body:
            items = batch.items
            if not batch.plain:
                items = [item if type(item) is Record else Record(cast("bytes", item)) for item in items]
            body = encode_records(cast("list[Record]", items))
        part = pack_part(
            body,
            batch.count,
            plain=batch.plain,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.next_sequence,
            publish_time_us=now_us,
            codec=self._codec,
            schema_id=self.schema.schema_id,
            schema_version=self.schema.schema_version,
            deliver_at_us=batch.deliver_at_us,
        )
        if len(part) > self._max_part_bytes:
            self._settle(
                batch,
                MessageTooLargeError(
                    f"a batch of {batch.count} messages takes {len(part)} bytes, more than the broker's"
                    f" max_batch_bytes = {self._max_part_bytes}; send smaller keys and attributes"
                ),
            )
            return False
        batch.part = part
        batch.items, batch.body = [], b""  # they are in the part now
        batch.base_sequence = self.next_sequence
        self.next_sequence += batch.count
        return True

    # --- Replies -----------------------------------------------------------------------------------------------------

    def acked(self, acks: Sequence[AckedSequence]) -> Verdict:
        """Settle stored batches.

        Raises:
            ProtocolError: the broker acknowledges a batch that was not sent.
        """
        for ack in acks:
            batch = self._find(ack.base_sequence)
            if ack.record_count != batch.count or batch.refusal is not None:
                raise ProtocolError(
                    f"the broker acknowledged {ack.record_count} records from sequence {ack.base_sequence} on, but"
                    f" {batch.count} were sent"
                )
            self._stored(batch, ack.base_offset)
        return self._judge()

    def refused(self, base_sequence: int, error: DanubeError) -> Verdict:
        """Handle a refusal; return the required action.

        Raises:
            ProtocolError: the broker refuses a batch that was not sent.
        """
        batch = self._find(base_sequence)
        if isinstance(error, ProducerFencedError):
            return Verdict.FENCED
        if isinstance(error, DuplicateSequenceError):
            self._stored(batch, UNKNOWN_OFFSET)
        elif batch.refusal is None:
            batch.refusal = error
            self._refused += 1
        return self._judge()

    def fail(self, error: DanubeError) -> None:
        """Settle all batches with ``error``: this producer has ended."""
        self._paused = True
        while self.flight:
            self._settle(self.flight.popleft(), error)
        while self.queued:
            self._settle(self.queued.popleft(), error)
        if self.open is not None:
            batch, self.open = self.open, None
            self._settle(batch, error)
        self._sent = self._refused = 0

    def _find(self, base_sequence: int) -> OutBatch:
        for index in range(self._sent):
            if self.flight[index].base_sequence == base_sequence:
                return self.flight[index]
        raise ProtocolError(f"the broker answered sequence {base_sequence}, which is not in flight")

    def _stored(self, batch: OutBatch, base_offset: int) -> None:
        self.flight.remove(batch)
        self._sent -= 1
        batch.base_offset = base_offset
        self._settle(batch, None)

    def _settle(self, batch: OutBatch, error: DanubeError | None) -> None:
        batch.settled = True
        batch.error = error
        batch.part = batch.body = b""
        batch.items = []
        if error is not None and not batch.waiters and self.unreported is None:
            self.unreported = error
        if batch.event is not None:
            batch.event.set()
        self.budget.give_back(batch.size)

    def _judge(self) -> Verdict:
        if not self._refused or self._refused < self._sent:
            return Verdict.GO_ON
        head = self.flight[0]
        cause = head.refusal
        assert cause is not None
        if isinstance(cause, SequenceGapError):
            self._paused = True
            return Verdict.REOPEN
        if cause.retryable:
            self._paused = True
            return Verdict.RETRY_LATER
        self.flight.popleft()
        self._settle(head, cause)
        self._renumber(head.base_sequence)
        self._restart()
        return Verdict.GO_ON

    def _restart(self) -> None:
        for batch in self.flight:
            batch.refusal = None
        self._sent = self._refused = 0
        self._paused = False

    def _renumber(self, base_sequence: int) -> None:
        for batch in self.flight:
            header = read_header(batch.part)._replace(
                producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=base_sequence
            )
            batch.part = replace_header(batch.part, header)
            batch.base_sequence = base_sequence
            base_sequence += batch.count
        self.next_sequence = base_sequence
