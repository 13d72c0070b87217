"""Implements ``danube dlq replay``: sends dead letters back to the topics in which they failed.

::

    subscription "dlq-replay" --batch--> send_nowait ... all of the batch --receipts--> acknowledge each

Batch by batch: a message is acknowledged in the dead-letter topic only when its copy is durable, so that killing the
command at any point loses nothing; messages that were sent and not acknowledged are sent again by the next run.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from danube.cli._client import run_with_client
from danube.cli._dead_letters import ORIGINAL_TOPIC, own_attributes
from danube.cli._output import Output, human_messages, print_json
from danube.model.errors import InvalidArgumentError, LimitExceededError, NotFoundError
from danube.model.names import split_partition, validate_topic
from danube.model.policies import EARLIEST, SubscriptionPolicy

if TYPE_CHECKING:
    from danube.client import Batch, Client, Consumer, Message, Pending, Producer, Reader

__all__ = ["ReplayOptions", "run"]

_RECONNECT_S: Final = 60.0
_LEFT: Final = 1
_INTERRUPTED: Final = 130
_MAX_REASONS: Final = 10
"""Number of messages left in place whose reasons are listed; the others are counted."""

_PATIENT: Final = SubscriptionPolicy(ack_timeout_s=0, max_redelivery_count=-1)
"""Policy of the subscription that tracks replayed messages: they do not time out or become poison."""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    topic: str
    to: str | None = None
    limit: int | None = None
    dry_run: bool = False
    subscription: str = "dlq-replay"


def run(options: ReplayOptions, url: str | None, context: str | None, output: Output) -> int:
    """Replay and print the sums; return the exit code.

    Raises:
        InvalidArgumentError: ``--to`` is the dead-letter topic itself.
        TopicNotFoundError: the dead-letter topic, or ``--to``, does not exist.
        DanubeError: the broker refused, or was unreachable; messages replayed before are reported on standard error.
    """
    if options.to is not None:
        validate_topic(options.to)
        if _base(options.to) == _base(options.topic):
            raise InvalidArgumentError(
                f"{options.to} is the dead-letter topic itself; give --to another topic, or none"
            )
    replay: _Replay | None = None

    async def work(client: Client) -> None:
        nonlocal replay
        replay = _Replay(client, options)
        await replay.run()

    try:
        run_with_client(work, url, context, _RECONNECT_S)
    except BaseException:
        if replay is not None and replay.count:
            print(f"{replay.count} messages had been replayed before the failure", file=sys.stderr)
        raise
    assert replay is not None
    _show(options, replay, output)
    if replay.interrupted:
        return _INTERRUPTED
    return _LEFT if replay.left else 0


def _base(topic: str) -> str:
    """Return the topic that a partition belongs to; a plain topic is returned unchanged."""
    split = split_partition(topic)
    return split[0] if split else topic


class _Replay:
    """One run of the command with a connected client."""

    def __init__(self, client: Client, options: ReplayOptions) -> None:
        self._client = client
        self._options = options
        self._targets: dict[str, Producer | str | None] = {}
        """For each topic its producer, or the reason why it has none; in a dry run None for a possible producer."""
        self._receiving = trio.CancelScope()
        self.sent: Counter[str] = Counter()
        """Messages by their (possible) target topic."""
        self.left = 0
        self.reasons: list[str] = []
        """Reasons why messages were left in place, of the first few."""
        self.interrupted = False

    @property
    def count(self) -> int:
        """Number of messages that were, or would be, replayed."""
        return self.sent.total()

    async def run(self) -> None:
        """Replay the present contents of the dead-letter topic, or as many messages as requested."""
        await self._client.admin.lookup_topic(self._options.topic)
        if self._options.to is not None:
            await self._client.admin.lookup_topic(self._options.to)
        async with await self._open() as source, trio.open_nursery() as nursery:
            await nursery.start(self._watch_signals)
            async with AsyncExitStack() as producers:  # innermost: it is entered step by step
                await self._replay_batches(source, producers)
            nursery.cancel_scope.cancel()

    async def _open(self) -> AbstractAsyncContextManager[Consumer | Reader]:
        options = self._options
        if options.dry_run:
            known = await self._client.admin.list_subscriptions(options.topic)
            if not any(row.subscription == options.subscription for row in known):
                return self._client.reader(options.topic, start=EARLIEST)  # leaves no subscription behind
        return self._client.consumer(
            options.topic, subscription=options.subscription, start=EARLIEST, policy=_PATIENT, renew_leases=True
        )

    async def _watch_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        """First signal: finish the batch under way and print the sums. Second: exit at once."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if self.interrupted:
                    raise KeyboardInterrupt
                self.interrupted = True
                self._receiving.cancel()

    async def _replay_batches(self, source: Consumer | Reader, producers: AsyncExitStack) -> None:
        limit = self._options.limit
        batches = source.batches(until_caught_up=True)
        while not self.interrupted and (limit is None or self.count < limit):
            with trio.CancelScope() as self._receiving:
                batch = await anext(batches, None)
            if self._receiving.cancelled_caught or batch is None:
                return
            await self._replay(batch, producers)

    async def _replay(self, batch: Batch, producers: AsyncExitStack) -> None:
        limit = self._options.limit
        under_way: list[tuple[Message, str, Pending]] = []
        for message in batch:
            if limit is not None and self.count + len(under_way) >= limit:
                break
            topic = self._options.to or _base((message.attributes or {}).get(ORIGINAL_TOPIC, ""))
            target = await self._target(topic, producers)
            if isinstance(target, str):
                self._leave(message, target)
            elif target is None:
                self.sent[topic] += 1
            else:
                attributes = own_attributes(message.attributes)
                under_way.append((message, topic, await _send(target, message, attributes)))
        for message, topic, pending in under_way:
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


def _show(options: ReplayOptions, replay: _Replay, output: Output) -> None:
    for reason in replay.reasons:
        print(f"left: {reason}", file=sys.stderr)
    if replay.left > len(replay.reasons):
        print(f"left: {replay.left - len(replay.reasons)} more", file=sys.stderr)
    if replay.left:
        print(
            f"--to TOPIC sends the messages that were left to another topic; {options.topic} still has them",
            file=sys.stderr,
        )
    topics = sorted(replay.sent.items())
    if output is Output.JSON:
        summary: dict[str, Any] = {
            "topic": options.topic,
            "replayed": replay.count,
            "left": replay.left,
            "dry_run": options.dry_run,
            "interrupted": replay.interrupted,
            "topics": [{"topic": topic, "messages": count} for topic, count in topics],
        }
        print_json(summary, indent=0)
    elif output is Output.RAW:
        for topic, count in topics:
            print(f"{topic}\t{count}")
    else:
        would = "would be replayed" if options.dry_run else "replayed"
        print(
            f"{human_messages(replay.count)} {would}"
            + (f", {replay.left:,} left" if replay.left else "")
            + ("; interrupted" if replay.interrupted else "")
        )
        for topic, count in topics:
            print(f"  {topic}: {human_messages(count)}")
