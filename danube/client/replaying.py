"""Sends dead letters back to the topics in which they failed, or gives them up: for the command line and the HTTP API.

::

    subscription "dlq-replay" --batch--> send_nowait ... all of the batch --receipts--> acknowledge each

Batch by batch: a message is acknowledged in the dead-letter topic only when its copy is durable, so that a failure at
any point loses nothing; messages that were sent and not acknowledged are sent again by the next run. What is dropped is
acknowledged without a copy, and stays in the topic until its retention removes it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.model.batch import SchemaRef
from danube.model.dead_letters import ORIGINAL_TOPIC, REPLAY_SUBSCRIPTION, Selection, own_attributes
from danube.model.errors import InvalidArgumentError, LimitExceededError, NotFoundError
from danube.model.names import split_partition, validate_topic
from danube.model.policies import EARLIEST, SubscriptionPolicy

if TYPE_CHECKING:
    from danube.client import Batch, Client, Consumer, Message, Pending, Producer, Reader

__all__ = ["Replay", "ReplayOptions"]

MOST_HELD: Final = 10_000
"""Messages that one run leaves in place before it stops: they are in flight until it ends, which brokers bound."""
_MAX_REASONS: Final = 10
"""Number of messages left in place whose reasons are listed; the others are counted."""

_PATIENT: Final = SubscriptionPolicy(ack_timeout_s=0, max_redelivery_count=-1)
"""Policy of the subscription that tracks replayed messages: they do not time out or become poison."""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed or dropped."""

    topic: str
    """The dead-letter topic."""
    to: str | None = None
    """Where all messages go; None: to their original topics."""
    limit: int | None = None
    """Most messages that are replayed or dropped; None: all that are there."""
    dry_run: bool = False
    """Change nothing; find out what would happen."""
    subscription: str = REPLAY_SUBSCRIPTION
    """The subscription that tracks what was replayed and dropped."""
    selection: Selection = Selection()
    """Which messages are meant."""
    drop: bool = False
    """Whether they are given up, not sent."""

    def check(self) -> None:
        """Check names.

        Raises:
            InvalidArgumentError: ``to`` is the dead-letter topic itself, or no topic.
        """
        if self.to is None:
            return
        validate_topic(self.to)
        if base_of(self.to) == base_of(self.topic):
            raise InvalidArgumentError(f"{self.to} is the dead-letter topic itself; give --to another topic, or none")


def base_of(topic: str) -> str:
    """Return the topic that a partition belongs to; a plain topic is returned unchanged."""
    split = split_partition(topic)
    return split[0] if split else topic


class Replay:
    """One run with a connected client.

    Attributes:
        sent: messages by their (possible) target topic; those that are dropped, by their original topic, or the
            dead-letter topic where they have none.
        left: messages that were meant, and cannot be sent.
        reasons: why, of the first few.
        passed: messages that were not meant.
        stopped: whether it ended early: by :meth:`stop`, or because it had left :data:`MOST_HELD` in place.
    """

    def __init__(self, client: Client, options: ReplayOptions) -> None:
        self._client = client
        self._options = options
        self._targets: dict[str, Producer | str | None] = {}
        """For each topic its producer, or the reason why it has none; in a dry run None for a possible producer."""
        self._receiving = trio.CancelScope()
        self.sent: Counter[str] = Counter()
        self.left = 0
        self.reasons: list[str] = []
        self.passed = 0
        self.stopped = False

    @property
    def count(self) -> int:
        """Number of messages that were, or would be, replayed or dropped."""
        return self.sent.total()

    def stop(self) -> None:
        """Finish the batch under way, and end."""
        self.stopped = True
        self._receiving.cancel()

    async def run(self) -> None:
        """Handle the present contents of the dead-letter topic, or as many messages as requested.

        Raises:
            TopicNotFoundError: the dead-letter topic, or the one of ``to``, does not exist.
            DanubeError: the broker refused, or was unreachable; the counts say what was done before.
        """
        await self._client.admin.lookup_topic(self._options.topic)
        if self._options.to is not None:
            await self._client.admin.lookup_topic(self._options.to)
        async with await self._open() as source, AsyncExitStack() as producers:
            await self._handle_batches(source, producers)

    async def _open(self) -> AbstractAsyncContextManager[Consumer | Reader]:
        options = self._options
        if options.dry_run:
            known = await self._client.admin.list_subscriptions(options.topic)
            if not any(row.subscription == options.subscription for row in known):
                return self._client.reader(options.topic, start=EARLIEST)  # leaves no subscription behind
        return self._client.consumer(
            options.topic, subscription=options.subscription, start=EARLIEST, policy=_PATIENT, renew_leases=True
        )

    async def _handle_batches(self, source: Consumer | Reader, producers: AsyncExitStack) -> None:
        limit = self._options.limit
        batches = source.batches(until_caught_up=True)
        while not self.stopped and (limit is None or self.count < limit):
            if self.left + self.passed >= MOST_HELD:
                self.stopped = True
                return
            with trio.CancelScope() as self._receiving:
                batch = await anext(batches, None)
            if self._receiving.cancelled_caught or batch is None:
                return
            await self.handle(batch, producers)

    async def handle(self, batch: Batch, producers: AsyncExitStack) -> None:
        """Send or drop the messages of a batch that are meant, and acknowledge them."""
        limit, selection = self._options.limit, self._options.selection
        under_way: list[tuple[Message, str, Pending | None]] = []
        schema = SchemaRef(batch.schema_id, batch.schema_version)
        for message in batch:
            if limit is not None and self.count + len(under_way) >= limit:
                break
            if not selection.takes(message.partition, message.offset, message.attributes):
                self.passed += 1
                continue
            original = base_of((message.attributes or {}).get(ORIGINAL_TOPIC, ""))
            topic = self._options.to or original
            if self._options.drop:
                topic = topic or self._options.topic
                if self._options.dry_run:
                    self.sent[topic] += 1
                else:
                    under_way.append((message, topic, None))
                continue
            target = await self._target(topic, producers)
            if isinstance(target, str):
                self._leave(message, target)
            elif target is None:
                self.sent[topic] += 1
            else:
                # A batch is settled before the next one begins, and its messages have one schema.
                target._carry(schema if topic == original else SchemaRef(batch.schema_id))
                attributes = own_attributes(message.attributes)
                under_way.append((message, topic, await _send(target, message, attributes)))
        for message, topic, pending in under_way:
            if pending is not None:
                await pending
            message.ack_nowait()
            self.sent[topic] += 1

    async def _target(self, topic: str, producers: AsyncExitStack) -> Producer | str | None:
        """Return the producer of a topic, or the reason why messages cannot be sent there."""
        if topic in self._targets:
            return self._targets[topic]
        target: Producer | str | None = None
        if not topic:
            target = f"it has no attribute {ORIGINAL_TOPIC}"
        else:
            try:
                # Opening a producer would create the topic; a deleted one must not be recreated by accident.
                await self._client.admin.lookup_topic(topic)
            except (NotFoundError, InvalidArgumentError) as error:
                target = str(error)
            else:
                if not self._options.dry_run:
                    target = await producers.enter_async_context(self._client.producer(topic))
        self._targets[topic] = target
        return target

    def _leave(self, message: Message, why: str) -> None:
        self.left += 1
        if len(self.reasons) < _MAX_REASONS:
            self.reasons.append(f"{message.topic}, offset {message.offset}: {why}")


async def _send(producer: Producer, message: Message, attributes: dict[str, str] | None) -> Pending:
    """Send without waiting for the receipt; if the producer's buffer is full, wait until it has been emptied."""
    try:
        return producer.send_nowait(message.payload, key=message.key_bytes, attributes=attributes)
    except LimitExceededError:
        await producer.flush()
        return producer.send_nowait(message.payload, key=message.key_bytes, attributes=attributes)
