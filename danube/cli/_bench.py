"""Implements ``danube bench``. Every result states the durability with which it was measured."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import trio

from danube.cli._client import run_with_client
from danube.model.policies import EARLIEST, Durability

if TYPE_CHECKING:
    from danube.client import Client, Consumer, Pending

__all__ = ["BenchOptions", "consume", "latency", "percentiles", "publish", "run"]

_FILL_RECORDS: Final = 5_000
_DRAIN_S: Final = 30.0
"""Maximum time to wait for the last messages of a latency run."""

_INDEX: Final = struct.Struct("<Q")


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a command."""

    topic: str | None
    size: int
    count: int
    batch: int = 1_000
    in_flight: int = 8
    rate: float = 0.0
    durability: Durability | None = None


_Bench: TypeAlias = Callable[["Client", BenchOptions, str], Awaitable[dict[str, Any]]]


def run(bench: _Bench, options: BenchOptions, url: str | None, context: str | None) -> dict[str, Any]:
    """Run a bench on its topic and return its figures."""

    async def work(client: Client) -> dict[str, Any]:
        async with _topic(client, options) as topic:
            return await bench(client, options, topic)

    return run_with_client(work, url, context)


@asynccontextmanager
async def _topic(client: Client, options: BenchOptions) -> AsyncIterator[str]:
    if options.topic is not None:
        yield options.topic
        return
    topic = f"/default/bench-{time.time_ns():x}"
    await client.admin.create_topic(topic, durability=options.durability)
    try:
        yield topic
    finally:
        with trio.move_on_after(5.0, shield=True):
            await client.admin.delete_topic(topic)


def percentiles(samples_s: Sequence[float], name: str) -> dict[str, float]:
    """Return p50, p99, p99.9 and the maximum in milliseconds (nearest rank)."""
    ordered = sorted(samples_s)
    figures = {}
    for label, share in (("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999), ("max", 1.0)):
        rank = max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))
        figures[f"{name}_{label}_ms"] = round(ordered[rank] * 1e3, 3)
    return figures


def _payloads(size: int, count: int) -> list[bytes]:
    return [_INDEX.pack(index).ljust(size, b".") for index in range(count)]


def _rates(messages: int, size_bytes: int, seconds: float) -> dict[str, Any]:
    return {
        "messages": messages,
        "seconds": round(seconds, 4),
        "messages_per_s": round(messages / seconds),
        "mib_per_s": round(size_bytes / seconds / 2**20, 2),
    }


# --- The three benchmarks ---------------------------------------------------------------------------------------------


async def publish(client: Client, options: BenchOptions, topic: str) -> dict[str, Any]:
    """Publish ``options.count`` messages with ``options.in_flight`` calls of ``options.batch`` at a time."""
    payloads = _payloads(options.size, min(options.batch, options.count))
    samples: list[float] = []
    left = options.count

    async with client.producer(topic, durability=options.durability) as producer:
        await producer.send(payloads[0])  # warm up the connection, the journal file, the code

        async def caller() -> None:
            nonlocal left
            while left > 0:
                chosen = payloads[: min(left, options.batch)]
                left -= len(chosen)
                began = time.perf_counter()
                await producer.send_many(chosen)
                samples.append(time.perf_counter() - began)

        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(options.in_flight):
                nursery.start_soon(caller)
        seconds = time.perf_counter() - began
        return {
            "bench": "publish",
            "durability": str(producer.durability),
            "payload_bytes": options.size,
            "batch": options.batch,
            "in_flight": options.in_flight,
            **_rates(options.count, options.count * options.size, seconds),
            **percentiles(samples, "call"),
        }


async def consume(client: Client, options: BenchOptions, topic: str) -> dict[str, Any]:
    """Read a topic to its end under a new subscription."""
    if options.topic is None:
        payloads = _payloads(options.size, _FILL_RECORDS)
        async with client.producer(topic) as producer:
            for done in range(0, options.count, _FILL_RECORDS):
                await producer.send_many(payloads[: options.count - done])
    durability = (await client.admin.describe_topic(topic)).durability
    subscription = f"bench-{time.time_ns():x}"
    messages = size_bytes = 0
    began = time.perf_counter()
    async with client.consumer(topic, subscription=subscription, start=EARLIEST) as consumer:
        async for batch in consumer.batches(until_caught_up=True):
            payloads = batch.payloads()
            messages += len(payloads)
            size_bytes += sum(map(len, payloads))
            batch.ack_nowait()
        seconds = time.perf_counter() - began
        await consumer.flush_acks()
    if options.topic is not None:
        await client.admin.delete_subscription(topic, subscription)
    return {
        "bench": "consume",
        "durability": str(durability),
        **_rates(messages, size_bytes, seconds),
    }


async def latency(client: Client, options: BenchOptions, topic: str) -> dict[str, Any]:
    """Send at ``options.rate`` and measure the times from the moment when each message was due."""
    receipts: list[float] = []
    arrivals: list[float] = []
    subscription = f"bench-{time.time_ns():x}"
    async with (
        client.producer(topic, durability=options.durability) as producer,
        client.consumer(topic, subscription=subscription) as consumer,
    ):
        await producer.send(_INDEX.pack(options.count).ljust(options.size, b"."))  # warm-up, not counted
        await consumer.receive()
        sender, receiver = trio.open_memory_channel[tuple["Pending", float]](options.count)
        async with trio.open_nursery() as nursery:
            began = time.perf_counter() + 0.01
            nursery.start_soon(_collect_receipts, receiver, receipts)
            nursery.start_soon(_collect_arrivals, consumer, options, began, arrivals)
            async with sender:
                for index in range(options.count):
                    due = began + index / options.rate
                    ahead_s = due - time.perf_counter()
                    await trio.sleep(max(0.0, ahead_s))
                    payload = _INDEX.pack(index).ljust(options.size, b".")
                    sender.send_nowait((producer.send_nowait(payload), due))
            nursery.cancel_scope.deadline = trio.current_time() + _DRAIN_S
        durability = producer.durability
    if options.topic is not None:
        await client.admin.delete_subscription(topic, subscription)
    return {
        "bench": "latency",
        "durability": str(durability),
        "payload_bytes": options.size,
        "rate_per_s": options.rate,
        "messages": options.count,
        "not_arrived": options.count - len(arrivals),
        **percentiles(receipts, "receipt"),
        **percentiles(arrivals, "arrival"),
    }


async def _collect_receipts(receiver: trio.MemoryReceiveChannel[tuple[Pending, float]], receipts: list[float]) -> None:
    async with receiver:
        async for pending, due in receiver:
            await pending
            receipts.append(time.perf_counter() - due)


async def _collect_arrivals(consumer: Consumer, options: BenchOptions, began: float, arrivals: list[float]) -> None:
    while len(arrivals) < options.count:
        batch = await consumer.receive_batch()
        now = time.perf_counter()
        for payload in batch.payloads():
            index = _INDEX.unpack_from(payload)[0]
            arrivals.append(now - (began + index / options.rate))
        batch.ack_nowait()
