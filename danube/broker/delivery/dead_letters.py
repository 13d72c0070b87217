"""Dead letters: copies messages that a subscription gave up on to a topic of their own.

The machine sets poison aside (:meth:`danube.dispatch.Machine.poisoned`). A task, which exists only while there is some,
reads it, publishes copies, waits until they are durable, and only then counts the originals as acknowledged. A crash in
between repeats the copy. Delivery does not wait for it: other messages pass those that are set aside.

A copy has the payload, key, attributes, schema and publish time of its original, and further attributes that state its
origin and cause::

    x-original-topic              topic or partition
    x-original-subscription
    x-original-topic-offset
    x-original-producer           name
    x-original-producer-id
    x-original-broker-addr        where the broker listens
    x-poison-policy               dead_letter
    x-delivery-attempt            deliveries so far
    x-failure-reason              of the last failure: what the nack said, "nack" or "ack timeout"
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import trio

from danube.broker.intake.internal_producer import InternalProducer
from danube.dispatch import Machine, Poisoned
from danube.log import StoredBatch
from danube.model import PoisonPolicy, RangeSet, SubscriptionPolicy
from danube.model.batch import PART_OVERHEAD, BatchFlags, Codec, CompositeRecord, Record
from danube.model.dead_letters import check_dead_letters, dead_letter_topic
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    CorruptBatchError,
    DanubeError,
    UnavailableError,
)
from danube.model.names import route_key

if TYPE_CHECKING:
    from danube.broker.delivery.source import Source
    from danube.broker.intake.internal_producer import Target
    from danube.broker.runtime.runtime import Runtime

__all__ = ["DeadLetters", "GivingUp"]

_log = logging.getLogger("danube.subscription")

_RANGES_AT_A_TIME = 1_000
_READ_BYTES = 1 * 2**20
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0

_ARRAY_HEAD = 5
"""Bytes of a msgpack array header."""

_encode = msgspec.msgpack.Encoder().encode
_PAYLOAD = msgspec.msgpack.Decoder(bytes)
_RECORD = msgspec.msgpack.Decoder(Record)
_COMPOSITE = msgspec.msgpack.Decoder(CompositeRecord)


class _Letter(NamedTuple):
    """A copy, and the offsets of its originals."""

    start: int
    end: int
    record: Record


class GivingUp(Protocol):
    """The part of a subscription that dead letters use."""

    name: str
    subscription_id: int
    topic: Source
    machine: Machine

    @property
    def policy(self) -> SubscriptionPolicy:
        """Its policy."""
        ...

    def settle(self, ranges: Sequence[int], /) -> list[int]:
        """Treat flat ranges as acknowledged; return those that were not acknowledged before."""
        ...


class DeadLetters:
    """The dead letters of one subscription.

    Attributes:
        problem: why the last attempt to copy failed; None while copying succeeds.
        copied: number of messages copied since the broker was started.
    """

    def __init__(self, runtime: Runtime, subscription: GivingUp) -> None:
        self._runtime = runtime
        self._subscription = subscription
        self._task: trio.CancelScope | None = None
        self._attempt = trio.CancelScope()
        self._closed = False
        self._turn = 0
        self.problem: DanubeError | None = None
        self.copied = 0

    def look(self) -> None:
        """Start to copy messages that the machine has set aside, if there are any and no copy is under way."""
        if self._task is None and not self._closed and self._subscription.machine.poisoned(1):
            self._task = trio.CancelScope()
            self._runtime.start(self._run, self._task)

    def changed(self) -> None:
        """Handle a change of the policy: a failing copy is retried at once."""
        if self.problem is not None:
            self._attempt.cancel()

    def close(self) -> None:
        """Stop: the subscription was deleted."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    @property
    def target(self) -> str:
        """Name of the topic for the copies."""
        subscription = self._subscription
        return dead_letter_topic(subscription.topic.name, subscription.name, subscription.policy)

    # --- The task ---

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            pause_s = _FIRST_PAUSE_S
            while not await self._tried(pause_s):
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if not self._attempt.cancelled_caught else _FIRST_PAUSE_S
            # There is no await between the last look and this: messages set aside from now on start another task.
            self._task = None
            self._say(None)

    async def _tried(self, pause_s: float) -> bool:
        """Return whether everything is copied; after a failure wait for ``pause_s``, or a change of the policy."""
        with trio.CancelScope() as self._attempt:
            try:
                await self._copy_all()
                return True
            except DanubeError as error:
                self._say(error)
            except OSError as error:
                self._say(UnavailableError(f"the journal cannot be read: {error}"))
            await trio.sleep(pause_s)
        return False

    def _say(self, error: DanubeError | None) -> None:
        """Record and log why copying fails, or that it succeeds again."""
        if error is not None and self.problem is None:
            _log.error("%s cannot send dead letters to %s; retrying: %s", self._subscription, self.target, error)
        elif error is None and self.problem is not None:
            _log.warning("%s sends dead letters again", self._subscription)
        self.problem = error

    async def _copy_all(self) -> None:
        """Copy until nothing is set aside any more. A failure leaves the remaining messages where they are."""
        machine = self._subscription.machine
        with ExitStack() as stack:
            producers: dict[Target, InternalProducer] = {}
            while found := machine.poisoned(_RANGES_AT_A_TIME):
                generation = machine.cursor.generation
                batch = await self._read(found[0].start)
                if batch is None:
                    continue
                targets = await self._targets()
                for topic, letters in self._sort(self._letters(batch, _within(batch, found)), targets):
                    if topic not in producers:
                        producer = await InternalProducer.open(topic, self._producer_name(), self._say)
                        producers[topic] = stack.enter_context(producer)
                    await self._publish(producers[topic], batch, letters)
                    if machine.cursor.generation != generation:
                        break  # the cursor was moved: copied messages are to be delivered again
                    settled = RangeSet((letter.start, letter.end) for letter in letters)
                    self._subscription.settle(settled.to_flat())
                    self.copied += settled.count()

    def _producer_name(self) -> str:
        subscription = self._subscription
        return f"dead-letters-{subscription.topic.topic_id:016x}-{subscription.subscription_id:016x}"

    async def _read(self, offset: int) -> StoredBatch | None:
        """Return the batch that holds an offset; None if the log has lost it, which settles it."""
        kept = self._subscription.topic.kept
        batch = kept.get_cached(offset)
        if batch is not None:
            return batch
        found = await kept.read(offset, _READ_BYTES)
        if not found:
            raise UnavailableError(f"offset {offset} of topic {self._subscription.topic.name!r} cannot be read now")
        if found[0].base_offset > offset:
            self._subscription.settle([offset, found[0].base_offset])
            return None
        return found[0]

    async def _targets(self) -> Sequence[Target]:
        """Return the topic, or the partitions, to publish to; create the topic if it does not exist."""
        source = self._subscription.topic
        check_dead_letters(source.name, self._subscription.name, self._subscription.policy)
        return await source.dead_letter_topics(self.target)

    # --- Copies ---

    def _letters(self, batch: StoredBatch, found: Sequence[Poisoned]) -> list[_Letter]:
        """Return the copies of poisoned messages of a batch."""
        topic = self._subscription.topic
        try:
            opened = topic.opened.open(topic.topic_id, batch)
        except CorruptBatchError as error:
            # Its messages cannot be told apart: one letter stands for all of them.
            reason = f"the batch cannot be opened, so the payload is its raw bytes: {error}"
            attributes = self._attributes(batch, found[0]._replace(start=batch.base_offset, reason=reason))
            return [_Letter(batch.base_offset, batch.end_offset, Record(batch.part, attributes=attributes))]
        flags = batch.header.flags
        decode: Callable[[msgspec.Raw], Record] = _plain if flags & BatchFlags.PAYLOADS_ONLY else _RECORD.decode
        if flags & BatchFlags.COMPOSITE:
            decode = _COMPOSITE.decode
        letters = []
        for item in found:
            for offset in range(item.start, item.end):
                raw = opened.raws[offset - batch.base_offset]
                about = item._replace(start=offset)
                try:
                    record = decode(raw)
                except UNDECODABLE as error:
                    record = Record(bytes(raw))
                    about = about._replace(
                        reason=f"the record does not decode, so the payload is its raw bytes: {error}"
                    )
                attributes = {**(record.attributes or {}), **self._attributes(batch, about)}
                if isinstance(record, CompositeRecord):
                    attributes |= _producer(record.producer, record.producer_id)
                record = Record(record.payload, record.key, attributes, record.publish_delta_us)
                letters.append(_Letter(offset, offset + 1, record))
        return letters

    def _attributes(self, batch: StoredBatch, item: Poisoned) -> dict[str, str]:
        subscription = self._subscription
        producer_id = batch.header.producer_id
        return {
            "x-original-topic": subscription.topic.name,
            "x-original-subscription": subscription.name,
            "x-original-topic-offset": str(item.start),
            **_producer(subscription.topic.producer_name(producer_id), producer_id),
            "x-original-broker-addr": ",".join(self._runtime.addresses),
            "x-poison-policy": PoisonPolicy.DEAD_LETTER.value,
            "x-delivery-attempt": str(item.attempt),
            "x-failure-reason": item.reason,
        }

    def _sort(self, letters: list[_Letter], targets: Sequence[Target]) -> Iterator[tuple[Target, list[_Letter]]]:
        """Distribute letters to partitions (by key, else in turn) and cut them into batches of bounded size."""
        limits = self._runtime.limits
        self._turn += 1
        shares: dict[int, list[_Letter]] = {}
        for letter in letters:
            key = letter.record.key
            share = route_key(key, len(targets)) if key else self._turn % len(targets)
            shares.setdefault(share, []).append(letter)
        for share, mine in shares.items():
            begin = size = 0
            for index, letter in enumerate(mine):
                cost = len(_encode(letter.record))
                # A letter that is too large because of its added attributes is published nevertheless.
                full = size + cost > limits.max_batch_bytes - PART_OVERHEAD - _ARRAY_HEAD
                if index > begin and (full or index - begin >= limits.max_batch_records):
                    yield targets[share], mine[begin:index]
                    begin, size = index, 0
                size += cost
            yield targets[share], mine[begin:]

    async def _publish(self, producer: InternalProducer, batch: StoredBatch, letters: list[_Letter]) -> None:
        header = batch.header
        await producer.publish(
            [letter.record for letter in letters],
            header.publish_time_us,
            codec=Codec(header.codec),
            schema_id=header.schema_id,
            schema_version=header.schema_version,
        )


def _producer(name: str, producer_id: int) -> dict[str, str]:
    return {"x-original-producer": name, "x-original-producer-id": str(producer_id)}


def _plain(raw: msgspec.Raw) -> Record:
    return Record(_PAYLOAD.decode(raw))


def _within(batch: StoredBatch, found: Sequence[Poisoned]) -> list[Poisoned]:
    """Return the parts of poisoned ranges that lie in a batch."""
    return [
        item._replace(start=max(item.start, batch.base_offset), end=min(item.end, batch.end_offset))
        for item in found
        if item.start < batch.end_offset and item.end > batch.base_offset
    ]
