"""Consumers of one subscription that can be lost one by one, and a record of what they saw and acknowledged."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import trio

import danube

PATIENCE_S = 20.0


class Seen(NamedTuple):
    """A message as a consumer got it. The payload is a number, which grows in the order of publishing."""

    consumer: str
    number: int
    key: str | None
    partition: int
    attempt: int


class Group:
    """Consumers of one subscription, each on a connection of its own. ``seen`` and ``acked`` are in order of time."""

    def __init__(self, nursery: trio.Nursery, url: str, topic: str, subscription: str, kind: str) -> None:
        self.topic = topic
        self.subscription = subscription
        self.kind = kind
        self.seen: list[Seen] = []
        self.acked: list[Seen] = []
        self.consumers: dict[str, danube.Consumer] = {}
        self._url = url
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}
        self._gone: dict[str, trio.Event] = {}

    async def join(self, name: str, *, take: float = math.inf, acks: float = math.inf, **options: Any) -> None:
        """Add a consumer, and return once it is connected.

        It takes at most ``take`` messages and then sits there; it acknowledges the first ``acks`` of them, of which
        the last one is durable before it takes another.
        """
        self._scopes[name], self._gone[name] = trio.CancelScope(), trio.Event()
        await self._nursery.start(self._consume, name, take, acks, options)

    async def lose(self, name: str) -> None:
        """Cut a consumer's connection, and return once the broker has noticed."""
        self._scopes[name].cancel()
        await self._gone[name].wait()
        async with danube.connect(self._url) as client:
            await until(lambda: self._is_gone(client, name))

    async def _is_gone(self, client: danube.Client, name: str) -> bool:
        rows = await client.admin.describe_subscription(self.topic, self.subscription)
        return all(consumer.name != name for row in rows for consumer in row.consumers)

    async def _consume(
        self, name: str, take: float, acks: float, options: dict[str, Any], *, task_status: trio.TaskStatus[None]
    ) -> None:
        with self._scopes[name]:
            async with (
                danube.connect(self._url) as client,
                client.consumer(
                    self.topic, subscription=self.subscription, type=self.kind, name=name, start="earliest", **options
                ) as consumer,
            ):
                self.consumers[name] = consumer
                task_status.started()
                taken = 0
                while taken < take:
                    message = await consumer.receive()
                    taken += 1
                    one = Seen(name, int(message.payload), message.key, message.partition, message.attempt)
                    self.seen.append(one)
                    if taken <= acks:
                        await message.ack()
                        if taken == acks:
                            await consumer.flush_acks()
                        self.acked.append(one)
                await trio.sleep_forever()
        self._gone[name].set()

    async def until(self, condition: Callable[[Group], Any]) -> None:
        """Wait until ``condition(self)`` holds."""
        await until(lambda: condition(self))

    async def flush(self) -> None:
        """Wait until what the connected consumers have acknowledged is durable."""
        for name, consumer in self.consumers.items():
            if not self._gone[name].is_set():
                await consumer.flush_acks()

    def seen_by(self, *names: str) -> list[Seen]:
        """What some of the consumers saw."""
        return [one for one in self.seen if one.consumer in names]


@asynccontextmanager
async def consumer_group(url: str, topic: str, subscription: str, kind: str) -> AsyncGenerator[Group, None]:
    """Yield a group without consumers; remaining ones are ended with the block."""
    async with trio.open_nursery() as nursery:
        yield Group(nursery, url, topic, subscription, kind)
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = PATIENCE_S) -> None:
    """Look every few milliseconds whether ``condition()`` (which may be asynchronous) holds."""
    with trio.fail_after(timeout_s):
        while True:
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            await trio.sleep(0.005)


def numbers(seen: list[Seen]) -> list[int]:
    """The numbers of messages."""
    return [one.number for one in seen]


def by_partition(seen: list[Seen]) -> dict[int, list[int]]:
    """The numbers of messages, in order, for each partition."""
    found: dict[int, list[int]] = defaultdict(list)
    for one in seen:
        found[one.partition].append(one.number)
    return dict(found)


def by_key(seen: list[Seen]) -> dict[str | None, list[int]]:
    """The numbers of messages, in order, for each key."""
    found: dict[str | None, list[int]] = defaultdict(list)
    for one in seen:
        found[one.key].append(one.number)
    return dict(found)


async def backlog(client: danube.Client, topic: str, subscription: str) -> int:
    """What a subscription has not acknowledged, in all partitions."""
    return sum(row.backlog_messages for row in await client.admin.describe_subscription(topic, subscription))


async def publish(
    client: danube.Client, topic: str, first: int, count: int, *, keys: int = 12, per_batch: int = 10, **options: Any
) -> None:
    """Publish ``count`` numbers from ``first`` on; the key is the number modulo ``keys`` (0: none has a key)."""
    async with client.producer(topic, **options) as producer:
        for start in range(first, first + count, per_batch):
            for number in range(start, min(start + per_batch, first + count)):
                producer.send_nowait(b"%d" % number, key=f"k{number % keys}" if keys else None)
            await producer.flush()
