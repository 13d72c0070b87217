"""Danube's workers: the public client library under Trio."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import trio

import danube
from benchmarks._payloads import CheckError, Tally, checksum, make_payloads
from benchmarks._processes import Outcome, Work
from benchmarks.roles._connect import connect
from benchmarks.roles._pace import Pace
from benchmarks.roles._values import consume_values, publish_values
from benchmarks.worker import Control
from danube.client import Client, Consumer, Pending
from danube.model.errors import AlreadyExistsError

__all__ = ["ROLES"]

CALL_BYTES = 64 << 20
NOWAIT_STEP = 1_000
NOWAIT_WINDOW = 40
FILL_STEP = 100_000
POOL_TICKS = 200
TOPICS_AT_A_TIME = 16
FLUSH_INTERVAL_S = 0.01


async def _ensure_topic(client: Client, topic: str) -> None:
    with contextlib.suppress(AlreadyExistsError):
        await client.admin.create_topic(topic, durability="disk")


async def _create(work: Work, control: Control) -> Outcome:
    """Create the topic."""
    async with connect(work) as client:
        began = control.ready()
        await _ensure_topic(client, work.topic)
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=0)


async def _delete(work: Work, control: Control) -> Outcome:
    """Delete the topic, so that its space in the journal is free again."""
    async with connect(work) as client:
        began = control.ready()
        await client.admin.delete_topic(work.topic)
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=0)


async def _publish(work: Work, control: Control) -> Outcome:
    """Send everything through ``send_many``, one call after the other; with ``settings.keys`` different keys."""
    payloads = make_payloads(work.count, work.size)
    keys = _keys(work, work.count)
    expected = checksum(payloads)
    step = max(1, CALL_BYTES // work.size)
    async with connect(work) as client, client.producer(work.topic, durability="disk") as producer:
        began = control.ready()
        sent = 0
        for first in range(0, work.count, step):
            receipt = await producer.send_many(
                payloads[first : first + step], keys=None if keys is None else keys[first : first + step]
            )
            sent += receipt.count
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(started_ns=began, finished_ns=ended, count=sent, checksum=expected, cpu_s=cpu_s)


def _keys(work: Work, count: int) -> list[str | None] | None:
    """Keys for so many messages, ``settings.keys`` different ones in turn; None if they are to have none."""
    different = int(work.settings.get("keys", 0))
    return [f"key-{one % different}" for one in range(count)] if different else None


async def _publish_nowait(work: Work, control: Control) -> Outcome:
    """Send everything through ``send_nowait``; a bounded number of messages is unacknowledged."""
    payloads = make_payloads(work.count, work.size)
    expected = checksum(payloads)
    async with connect(work) as client, client.producer(work.topic, durability="disk") as producer:
        window: deque[Pending] = deque()
        began = control.ready()
        for first in range(0, work.count, NOWAIT_STEP):
            for payload in payloads[first : first + NOWAIT_STEP]:
                pending = producer.send_nowait(payload)
            window.append(pending)
            if len(window) > NOWAIT_WINDOW:
                await window.popleft()
            else:
                await trio.lowlevel.checkpoint()
        await producer.flush()
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(started_ns=began, finished_ns=ended, count=work.count, checksum=expected, cpu_s=cpu_s)


async def _take_batches(
    consumer: Consumer, count: int, arrivals: list[tuple[int, int]] | None = None
) -> tuple[int, int]:
    received, value = 0, 0
    async for batch in consumer.batches():
        payloads = batch.payloads()
        value = checksum(payloads, value)
        received += len(payloads)
        if arrivals is not None:
            arrivals.append((received, time.monotonic_ns()))
        await batch.ack()
        if received >= count:
            break
    await consumer.flush_acks()
    return received, value


async def _consume(work: Work, control: Control) -> Outcome:
    """Read ``settings.subscriptions`` exclusive subscriptions through ``batches()``, each on its own connection."""
    names = [
        f"{work.settings.get('prefix', 'reader')}-{one}" for one in range(int(work.settings.get("subscriptions", 1)))
    ]
    results: list[tuple[int, int]] = []

    async def read(consumer: Consumer) -> None:
        results.append(await _take_batches(consumer, work.count))

    async with AsyncExitStack() as stack:
        consumers = []
        for name in names:
            client = await stack.enter_async_context(connect(work))
            consumers.append(
                await stack.enter_async_context(client.consumer(work.topic, subscription=name, start="earliest"))
            )
        began = control.ready()
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(read, consumer)
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    values = {value for _, value in results}
    return Outcome(
        started_ns=began,
        finished_ns=ended,
        count=sum(received for received, _ in results),
        checksum=values.pop() if len(values) == 1 else -1,
        cpu_s=cpu_s,
    )


async def _replay(work: Work, control: Control) -> Outcome:
    """Read stored messages; the subscription is opened inside the timed region."""
    name = str(work.settings.get("prefix", "replay"))
    async with connect(work) as client:
        began = control.ready()
        async with client.consumer(work.topic, subscription=name, start="earliest") as consumer:
            received, value = await _take_batches(consumer, work.count)
            ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(started_ns=began, finished_ns=ended, count=received, checksum=value, cpu_s=cpu_s)


async def _fill(work: Work, control: Control) -> Outcome:
    """Create the topic and store messages; payloads are made as they are sent."""
    value = 0
    async with connect(work) as client:
        await _ensure_topic(client, work.topic)
        async with client.producer(work.topic, durability="disk") as producer:
            began = control.ready()
            for first in range(0, work.count, FILL_STEP):
                payloads = make_payloads(min(FILL_STEP, work.count - first), work.size, first)
                value = checksum(payloads, value)
                await producer.send_many(payloads)
            ended = time.monotonic_ns()
    return Outcome(started_ns=began, finished_ns=ended, count=work.count, checksum=value)


async def _publish_at_rate(work: Work, control: Control) -> Outcome:
    """Send ``settings.per_tick`` messages every ``settings.tick_s`` seconds; one call sends all due messages.

    Payloads are created in advance and reused after ``POOL_TICKS`` ticks, so that a long run fits into memory. With
    ``settings.keys`` they have so many different keys.
    """
    per_tick, interval_ns = int(work.settings["per_tick"]), int(float(work.settings["tick_s"]) * 1e9)
    ticks = work.count // per_tick
    pool = make_payloads(min(ticks, POOL_TICKS) * per_tick, work.size)
    keys = _keys(work, len(pool))
    latencies: list[float] = []
    value = 0
    async with connect(work) as client, client.producer(work.topic, durability="disk") as producer:
        began = control.ready()
        sent = 0
        while sent < ticks:
            now = time.monotonic_ns()
            due = min((now - began) // interval_ns + 1, ticks)
            if due == sent:
                await trio.sleep((began + sent * interval_ns - now) / 1e9)
                continue
            at = sent % POOL_TICKS
            due = min(due, sent + POOL_TICKS - at)
            piece = slice(at * per_tick, (at + due - sent) * per_tick)
            payloads = pool[piece]
            await producer.send_many(payloads, keys=None if keys is None else keys[piece])
            acked = time.monotonic_ns()
            latencies += [(acked - began - tick * interval_ns) / 1000 for tick in range(sent, due)]
            value = checksum(payloads, value)
            sent = due
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(
        started_ns=began,
        finished_ns=ended,
        count=ticks * per_tick,
        checksum=value,
        latencies_us={"ack": latencies},
        cpu_s=cpu_s,
    )


async def _consume_tail(work: Work, control: Control) -> Outcome:
    """Read one exclusive subscription from ``settings.start`` on, and report the times of arrival."""
    arrivals: list[tuple[int, int]] = []
    async with (
        connect(work) as client,
        client.consumer(
            work.topic, subscription=str(work.settings["prefix"]), start=str(work.settings["start"])
        ) as consumer,
    ):
        began = control.ready()
        received, value = await _take_batches(consumer, work.count, arrivals)
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(started_ns=began, finished_ns=ended, count=received, checksum=value, arrivals=arrivals, cpu_s=cpu_s)


async def _replay_again_and_again(work: Work, control: Control) -> Outcome:
    """Read the first ``count`` messages with ``settings.consumers`` connections, repeatedly for some seconds."""
    received = 0

    async def read(client: Client, number: int, until: float) -> None:
        nonlocal received
        for turn in itertools.count():
            name = f"{work.settings['prefix']}-{number}-{turn}"
            async with client.consumer(work.topic, subscription=name, start="earliest") as consumer:
                turn_end = 0
                async for batch in consumer.batches():
                    turn_end += len(batch.payloads())
                    received += len(batch)
                    await batch.ack()
                    if turn_end >= work.count or trio.current_time() >= until:
                        break
            await client.admin.delete_subscription(work.topic, name)
            if trio.current_time() >= until:
                return

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(work)) for _ in range(int(work.settings["consumers"]))]
        began = control.ready()
        until = trio.current_time() + float(work.settings["seconds"])
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(clients):
                nursery.start_soon(read, client, number, until)
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(started_ns=began, finished_ns=ended, count=received, cpu_s=cpu_s)


async def _consume_each(work: Work, control: Control) -> Outcome:
    """Read message by message and acknowledge each."""
    received: list[bytes] = []
    async with (
        connect(work) as client,
        client.consumer(work.topic, subscription="reader", start="earliest") as consumer,
    ):
        began = control.ready()
        async for message in consumer:
            received.append(message.payload)
            await message.ack()
            if len(received) >= work.count:
                break
        await consumer.flush_acks()
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(started_ns=began, finished_ns=ended, count=len(received), checksum=checksum(received), cpu_s=cpu_s)


async def _consume_shared(work: Work, control: Control) -> Outcome:
    """Share one subscription among ``settings.consumers`` connections; each message is acknowledged by itself."""
    tally = Tally(work.count)
    payloads: list[bytes] = []

    async def read(consumer: Consumer, scope: trio.CancelScope) -> None:
        async for message in consumer:
            payloads.append(message.payload)
            await message.ack()
            if len(payloads) >= work.count:
                scope.cancel()

    async with AsyncExitStack() as stack:
        consumers = []
        for _ in range(int(work.settings["consumers"])):
            client = await stack.enter_async_context(connect(work))
            consumers.append(
                await stack.enter_async_context(
                    client.consumer(work.topic, subscription="shared", type="shared", start="earliest")
                )
            )
        began = control.ready()
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(read, consumer, nursery.cancel_scope)
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(consumer.flush_acks)
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    tally.add(payloads)
    return Outcome(started_ns=began, finished_ns=ended, count=tally.total, cpu_s=cpu_s)


async def _consume_group(work: Work, control: Control) -> Outcome:
    """Take ``count`` messages with ``settings.consumers`` connections, each with a task that flushes acks.

    Each message is acknowledged by itself, and none may come twice. The latency ``flush`` is that of one
    ``flush_acks()``.
    """
    payloads: list[bytes] = []
    flushes: list[float] = []

    async def read(consumer: Consumer, scope: trio.CancelScope) -> None:
        async for message in consumer:
            payloads.append(message.payload)
            await message.ack()
            if len(payloads) >= work.count:
                scope.cancel()

    async def flush(consumer: Consumer) -> None:
        while True:
            await trio.sleep(FLUSH_INTERVAL_S)
            before = time.monotonic_ns()
            await consumer.flush_acks()
            flushes.append((time.monotonic_ns() - before) / 1000)

    async with AsyncExitStack() as stack:
        consumers = []
        for number in range(int(work.settings["consumers"])):
            client = await stack.enter_async_context(connect(work))
            consumers.append(await stack.enter_async_context(_member(client, work, f"worker-{number}")))
        began = control.ready()
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                nursery.start_soon(read, consumer, nursery.cancel_scope)
                nursery.start_soon(flush, consumer)
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    if not int(work.settings.get("repeated", 0)) and len(set(payloads)) < len(payloads):
        raise CheckError(f"{len(payloads) - len(set(payloads))} messages came twice")
    return Outcome(
        started_ns=began, finished_ns=ended, count=len(payloads), latencies_us={"flush": flushes}, cpu_s=cpu_s
    )


async def _stick(work: Work, control: Control) -> Outcome:
    """Take one batch as a consumer of the same subscription, and do not acknowledge it until the end signal.

    Batches in the client's read-ahead return to the broker after a time; the received one does not.
    """
    held = 0

    async def take(consumer: Consumer) -> None:
        nonlocal held
        async for batch in consumer.batches():
            held = len(batch)
            await trio.sleep_forever()

    async with (
        connect(work) as client,
        _member(client, work, "stuck") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(take, consumer)
        began = control.ready()
        await trio.to_thread.run_sync(control.hold)
        nursery.cancel_scope.cancel()
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=held)


def _member(client: Client, work: Work, name: str) -> AbstractAsyncContextManager[Consumer]:
    kind = str(work.settings["kind"])
    return client.consumer(work.topic, subscription="group", type=kind, start="earliest", name=name)


async def _latency(work: Work, control: Control) -> Outcome:
    """Send one durable message at a time: first back to back, then on a schedule."""
    payloads = make_payloads(2 * work.count, work.size)
    back_to_back: list[float] = []
    paced: list[float] = []
    async with connect(work) as client, client.producer(work.topic, durability="disk") as producer:
        for payload in make_payloads(50, work.size):
            await producer.send(payload)
        began = control.ready()
        for payload in payloads[: work.count]:
            before = time.monotonic_ns()
            await producer.send(payload)
            back_to_back.append((time.monotonic_ns() - before) / 1000)
        cpu_s = control.cpu_s()
        pace = Pace(float(work.settings["rate"]))
        for payload in payloads[work.count :]:
            due = pace.wait()
            await producer.send(payload)
            paced.append((time.monotonic_ns() - due) / 1000)
        ended = time.monotonic_ns()
    return Outcome(
        started_ns=began,
        finished_ns=ended,
        count=2 * work.count,
        latencies_us={"back_to_back": back_to_back, "paced": paced},
        cpu_s=cpu_s,
    )


async def _connections(work: Work, control: Control) -> Outcome:
    """Keep one durable message in flight on each of ``settings.connections`` connections."""
    connections = int(work.settings["connections"])
    each = work.count // connections
    payloads = make_payloads(each * connections, work.size)
    latencies: list[float] = []

    async def send_all(first: int, producer: danube.Producer) -> None:
        for payload in payloads[first : first + each]:
            before = time.monotonic_ns()
            await producer.send(payload)
            latencies.append((time.monotonic_ns() - before) / 1000)

    async with AsyncExitStack() as stack:
        producers = []
        for _ in range(connections):
            client = await stack.enter_async_context(connect(work))
            producers.append(await stack.enter_async_context(client.producer(work.topic, durability="disk")))
        began = control.ready()
        async with trio.open_nursery() as nursery:
            for index, producer in enumerate(producers):
                nursery.start_soon(send_all, index * each, producer)
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(
        started_ns=began, finished_ns=ended, count=len(latencies), latencies_us={"in_flight": latencies}, cpu_s=cpu_s
    )


async def _fill_topics(work: Work, control: Control) -> Outcome:
    """Store ``count`` messages in each of ``settings.topics`` topics, some topics at a time."""
    topics = int(work.settings["topics"])
    left = iter(range(topics))

    async def fill_some(client: Client) -> None:
        for number in left:
            async with client.producer(f"{work.topic}-{number}", durability="disk") as producer:
                await producer.send_many(make_payloads(work.count, work.size, number * work.count))

    async with connect(work) as client:
        began = control.ready()
        async with trio.open_nursery() as nursery:
            for _ in range(TOPICS_AT_A_TIME):
                nursery.start_soon(fill_some, client)
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=topics * work.count)


async def _hold_connections(work: Work, control: Control) -> Outcome:
    """Open ``settings.connections`` idle connections and keep them while the broker is measured."""
    connections = int(work.settings["connections"])
    async with AsyncExitStack() as stack:
        began = control.ready()
        for _ in range(connections):
            await stack.enter_async_context(connect(work))
        await trio.to_thread.run_sync(control.hold)
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=connections)


async def _backlog(work: Work, control: Control) -> Outcome:
    """Store a backlog for a subscription without a consumer; payloads are made as they are sent."""
    async with connect(work) as client:
        await _ensure_topic(client, work.topic)
        async with client.consumer(work.topic, subscription="absent", start="earliest"):
            pass
        async with client.producer(work.topic, durability="disk") as producer:
            began = control.ready()
            for first in range(0, work.count, 100_000):
                await producer.send_many(make_payloads(min(100_000, work.count - first), work.size, first))
            ended = time.monotonic_ns()
    return Outcome(started_ns=began, finished_ns=ended, count=work.count)


def _blocking(role: Callable[[Work, Control], Awaitable[Outcome]]) -> Callable[[Work, Control], Outcome]:
    return lambda work, control: trio.run(role, work, control, strict_exception_groups=False)


ROLES = {
    name: _blocking(role)
    for name, role in {
        "create": _create,
        "delete": _delete,
        "publish": _publish,
        "publish_nowait": _publish_nowait,
        "consume": _consume,
        "consume_each": _consume_each,
        "consume_shared": _consume_shared,
        "consume_group": _consume_group,
        "stick": _stick,
        "replay": _replay,
        "replay_again_and_again": _replay_again_and_again,
        "fill": _fill,
        "publish_at_rate": _publish_at_rate,
        "consume_tail": _consume_tail,
        "latency": _latency,
        "connections": _connections,
        "fill_topics": _fill_topics,
        "hold_connections": _hold_connections,
        "backlog": _backlog,
        "publish_values": publish_values,
        "consume_values": consume_values,
    }.items()
}
