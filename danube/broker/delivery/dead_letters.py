"""Dead letters: copies messages that a subscription gave up on to a topic of their own.

The machine sets poison aside (:meth:`danube.dispatch.Machine.poisoned`). A task, which exists only while there is some,
reads it, publishes copies, waits until they are durable, and only then counts the originals as acknowledged. A crash in
between repeats the copy. Delivery does not wait for it: other messages pass those that are set aside. The copies
are made in :mod:`danube.broker.delivery.letters`.

"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Protocol

import trio

from danube.broker.delivery.forwarding import ForwardedTopic, ForwardingProducer, open_producer
from danube.broker.delivery.letters import Letter, Origin, letters_of, sort_letters, within
from danube.dispatch import Machine
from danube.log import StoredBatch
from danube.model import RangeSet, SubscriptionPolicy
from danube.model.batch import Codec
from danube.model.dead_letters import check_dead_letters, dead_letter_topic
from danube.model.errors import (
    CorruptBatchError,
    DanubeError,
    UnavailableError,
)
from danube.model.ids import Offset
from danube.model.log_events import log_event

if TYPE_CHECKING:
    from danube.broker.delivery.source import Source
    from danube.broker.intake.internal_producer import InternalProducer, Target
    from danube.broker.runtime.opened_batches import OpenedBatch
    from danube.broker.runtime.runtime import Runtime

__all__ = ["DeadLetters", "GivingUp"]

_log = logging.getLogger("danube.subscription")

_RANGES_AT_A_TIME = 1_000
_KNOWN_RANGES = 1_000
"""Ranges of copied messages that are remembered."""
_READ_BYTES = 1 * 2**20
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


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
        self.is_publishing = False
        """Whether copies are being published whose originals are not settled yet."""
        self._known = RangeSet()

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

    def has(self, offset: int) -> bool:
        """Whether a message is known to be copied: since the broker was started, among the latest ranges."""
        return offset in self._known

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
            _log.error(
                "%s cannot send dead letters to %s; retrying: %s",
                self._subscription,
                self.target,
                error,
                extra=log_event(
                    "dead_letters.failing",
                    topic=self._subscription.topic.name,
                    subscription=self._subscription.name,
                    target=self.target,
                ),
            )
        elif error is None and self.problem is not None:
            _log.warning(
                "%s sends dead letters again",
                self._subscription,
                extra=log_event(
                    "dead_letters.working", topic=self._subscription.topic.name, subscription=self._subscription.name
                ),
            )
        self.problem = error

    async def _copy_all(self) -> None:
        """Copy until nothing is set aside any more. A failure leaves the remaining messages where they are."""
        machine = self._subscription.machine
        with ExitStack() as stack:
            producers: dict[Target | ForwardedTopic, InternalProducer | ForwardingProducer] = {}
            while found := machine.poisoned(_RANGES_AT_A_TIME):
                generation = machine.cursor.generation
                batch = await self._read(Offset(found[0].start))
                if batch is None:
                    continue
                targets = await self._targets()
                self._turn += 1
                copies = letters_of(batch, self._opened(batch), within(batch, found), self._origin(batch))
                for share, letters in sort_letters(copies, len(targets), self._turn, self._runtime.limits):
                    topic = targets[share]
                    if topic not in producers:
                        opened: AbstractContextManager[InternalProducer | ForwardingProducer] = await open_producer(
                            topic, self._producer_name(), self._say
                        )
                        producers[topic] = stack.enter_context(opened)
                    await self._subscription.topic.until_thawed()
                    settled = RangeSet((letter.start, letter.end) for letter in letters)
                    self.is_publishing = True
                    try:
                        await self._publish(producers[topic], batch, letters)
                        if machine.cursor.generation != generation:
                            break  # the cursor was moved: copied messages are to be delivered again
                        self._subscription.settle(settled.to_flat())
                    finally:
                        self.is_publishing = False
                    self.copied += settled.count()
                    for start, end in settled:
                        self._known.add(start, end)
                    while len(self._known) > _KNOWN_RANGES:
                        self._known.remove(*next(iter(self._known)))

    def _producer_name(self) -> str:
        subscription = self._subscription
        return f"dead-letters-{subscription.topic.topic_id:016x}-{subscription.subscription_id:016x}"

    async def _read(self, offset: Offset) -> StoredBatch | None:
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

    async def _targets(self) -> Sequence[Target | ForwardedTopic]:
        """Return the topic, or the partitions, to publish to; create the topic if it does not exist."""
        source = self._subscription.topic
        check_dead_letters(source.name, self._subscription.name, self._subscription.policy)
        return await source.dead_letter_topics(self.target)

    def _opened(self, batch: StoredBatch) -> OpenedBatch | CorruptBatchError:
        topic = self._subscription.topic
        try:
            return topic.opened.open(batch)
        except CorruptBatchError as error:
            return error

    def _origin(self, batch: StoredBatch) -> Origin:
        subscription, producer_id = self._subscription, batch.header.producer_id
        topic = subscription.topic
        addresses = ",".join(self._runtime.addresses)
        return Origin(topic.name, subscription.name, topic.producer_name(producer_id), producer_id, addresses)

    async def _publish(
        self, producer: InternalProducer | ForwardingProducer, batch: StoredBatch, letters: Sequence[Letter]
    ) -> None:
        header = batch.header
        await producer.publish(
            [letter.record for letter in letters],
            header.publish_time_us,
            codec=Codec(header.codec),
            schema_id=header.schema_id,
            schema_version=header.schema_version,
        )
