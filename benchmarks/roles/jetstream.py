"""NATS JetStream's workers: nats-py under asyncio.

``publish_async`` with the client's own limit of unacknowledged messages corresponds to ``send_many`` and
``send_nowait``; push consumers that acknowledge every 500th message (which covers those before it) correspond to
``batches()``. NATS does not confirm an acknowledgement, so a final ``flush`` (a round trip) replaces ``flush_acks``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from benchmarks._payloads import Tally, checksum, make_payloads
from benchmarks._processes import Outcome, Work
from benchmarks.roles._pace import Pace
from benchmarks.worker import Control

__all__ = ["ROLES"]

ACK_EVERY = 500
MAX_ACK_PENDING = 50_000


async def _create(work: Work, control: Control) -> Outcome:
    """Create the stream in file storage."""
    connection = await nats.connect(work.address)
    began = control.ready()
    await connection.jetstream().add_stream(
        StreamConfig(name=work.topic, subjects=[work.topic], storage=StorageType.FILE)
    )
    await connection.close()
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=0)


async def _delete(work: Work, control: Control) -> Outcome:
    """Delete the stream."""
    connection = await nats.connect(work.address)
    began = control.ready()
    await connection.jetstream().delete_stream(work.topic)
    await connection.close()
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=0)


async def _publish(work: Work, control: Control) -> Outcome:
    """Publish asynchronously; every acknowledgement is awaited and checked."""
    payloads = make_payloads(work.count, work.size)
    expected = checksum(payloads)
    connection = await nats.connect(work.address)
    stream = connection.jetstream()
    began = control.ready()
    acks = [await stream.publish_async(work.topic, payload) for payload in payloads]
    sequences = {ack.seq for ack in await asyncio.gather(*acks)}
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    await connection.close()
    return Outcome(started_ns=began, finished_ns=ended, count=len(sequences), checksum=expected, cpu_s=cpu_s)


class _Reader:
    """The receiver of a push consumer: checks payloads, acknowledges, detects the end.

    nats-py spends about 60 us on a message that is fetched and far less on one that is pushed to a callback, so push
    consumers are the fair choice.
    """

    def __init__(self, count: int, *, each: bool) -> None:
        self.received = 0
        self.checksum = 0
        self.done = asyncio.Event()
        self._count = count
        self._each = each
        self._fresh: list[bytes] = []

    async def take(self, message: Any) -> None:
        """Receive one message."""
        self._fresh.append(message.data)
        self.received += 1
        full = len(self._fresh) >= ACK_EVERY or self.received >= self._count
        if self._each or full:
            await message.ack()
        if full:
            self.checksum = checksum(self._fresh, self.checksum)
            self._fresh.clear()
        if self.received >= self._count:
            self.done.set()


def _config(policy: AckPolicy) -> ConsumerConfig:
    return ConsumerConfig(ack_policy=policy, deliver_policy=DeliverPolicy.ALL, max_ack_pending=MAX_ACK_PENDING)


async def _subscribe(connection: Any, work: Work, name: str, reader: _Reader, policy: AckPolicy) -> None:
    await connection.jetstream().subscribe(
        work.topic, durable=name, stream=work.topic, cb=reader.take, manual_ack=True, config=_config(policy)
    )


async def _consume(work: Work, control: Control) -> Outcome:
    """Read ``settings.subscriptions`` durable consumers; one acknowledgement for everything received so far."""
    prefix = work.settings.get("prefix", "reader")
    names = [f"{prefix}-{one}" for one in range(int(work.settings.get("subscriptions", 1)))]
    connections = [await nats.connect(work.address) for _ in names]
    readers = [_Reader(work.count, each=False) for _ in names]
    for connection, name, reader in zip(connections, names, readers, strict=True):
        await _subscribe(connection, work, name, reader, AckPolicy.ALL)
    began = control.ready()
    for connection, reader in zip(connections, readers, strict=True):
        await reader.done.wait()
        await connection.flush()
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    for connection in connections:
        await connection.close()
    values = {reader.checksum for reader in readers}
    return Outcome(
        started_ns=began,
        finished_ns=ended,
        count=sum(reader.received for reader in readers),
        checksum=values.pop() if len(values) == 1 else -1,
        cpu_s=cpu_s,
    )


async def _replay(work: Work, control: Control) -> Outcome:
    """Read stored messages through a new durable consumer, created inside the timed region."""
    reader = _Reader(work.count, each=False)
    connection = await nats.connect(work.address)
    began = control.ready()
    await _subscribe(connection, work, str(work.settings.get("prefix", "replay")), reader, AckPolicy.ALL)
    await reader.done.wait()
    await connection.flush()
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    await connection.close()
    return Outcome(started_ns=began, finished_ns=ended, count=reader.received, checksum=reader.checksum, cpu_s=cpu_s)


async def _consume_each(work: Work, control: Control) -> Outcome:
    """Read one durable consumer and acknowledge each message."""
    reader = _Reader(work.count, each=True)
    connection = await nats.connect(work.address)
    await _subscribe(connection, work, "reader", reader, AckPolicy.EXPLICIT)
    began = control.ready()
    await reader.done.wait()
    await connection.flush()
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    await connection.close()
    return Outcome(started_ns=began, finished_ns=ended, count=reader.received, checksum=reader.checksum, cpu_s=cpu_s)


async def _consume_shared(work: Work, control: Control) -> Outcome:
    """Share a queue group among ``settings.consumers`` connections; each message is acknowledged by itself."""
    payloads: list[bytes] = []
    done = asyncio.Event()

    async def take(message: Any) -> None:
        payloads.append(message.data)
        await message.ack()
        if len(payloads) >= work.count:
            done.set()

    connections = [await nats.connect(work.address) for _ in range(int(work.settings["consumers"]))]
    for connection in connections:
        await connection.jetstream().subscribe(
            work.topic,
            queue="shared",
            stream=work.topic,
            cb=take,
            manual_ack=True,
            config=_config(AckPolicy.EXPLICIT),
        )
    began = control.ready()
    await done.wait()
    for connection in connections:
        await connection.flush()
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    for connection in connections:
        await connection.close()
    tally = Tally(work.count)
    tally.add(payloads)
    return Outcome(started_ns=began, finished_ns=ended, count=tally.total, cpu_s=cpu_s)


async def _latency(work: Work, control: Control) -> Outcome:
    """Publish one message at a time: first back to back, then on a schedule."""
    payloads = make_payloads(2 * work.count, work.size)
    back_to_back: list[float] = []
    paced: list[float] = []
    connection = await nats.connect(work.address)
    stream = connection.jetstream()
    for payload in make_payloads(50, work.size):
        await stream.publish(work.topic, payload)
    began = control.ready()
    for payload in payloads[: work.count]:
        before = time.monotonic_ns()
        await stream.publish(work.topic, payload)
        back_to_back.append((time.monotonic_ns() - before) / 1000)
    cpu_s = control.cpu_s()
    pace = Pace(float(work.settings["rate"]))
    for payload in payloads[work.count :]:
        due = pace.wait()
        await stream.publish(work.topic, payload)
        paced.append((time.monotonic_ns() - due) / 1000)
    ended = time.monotonic_ns()
    await connection.close()
    return Outcome(
        started_ns=began,
        finished_ns=ended,
        count=2 * work.count,
        latencies_us={"back_to_back": back_to_back, "paced": paced},
        cpu_s=cpu_s,
    )


async def _connections(work: Work, control: Control) -> Outcome:
    """Keep one message in flight on each of ``settings.connections`` connections."""
    each = work.count // int(work.settings["connections"])
    connections = [await nats.connect(work.address) for _ in range(int(work.settings["connections"]))]
    payloads = make_payloads(each * len(connections), work.size)
    latencies: list[float] = []

    async def send_all(first: int, stream: Any) -> None:
        for payload in payloads[first : first + each]:
            before = time.monotonic_ns()
            await stream.publish(work.topic, payload)
            latencies.append((time.monotonic_ns() - before) / 1000)

    streams = [connection.jetstream() for connection in connections]
    began = control.ready()
    await asyncio.gather(*[send_all(index * each, stream) for index, stream in enumerate(streams)])
    ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    for connection in connections:
        await connection.close()
    return Outcome(
        started_ns=began, finished_ns=ended, count=len(latencies), latencies_us={"in_flight": latencies}, cpu_s=cpu_s
    )


async def _run(role: Callable[[Work, Control], Awaitable[Outcome]], work: Work, control: Control) -> Outcome:
    return await role(work, control)


def _blocking(role: Callable[[Work, Control], Awaitable[Outcome]]) -> Callable[[Work, Control], Outcome]:
    return lambda work, control: asyncio.run(_run(role, work, control))


ROLES = {
    name: _blocking(role)
    for name, role in {
        "create": _create,
        "delete": _delete,
        "publish": _publish,
        "publish_nowait": _publish,
        "consume": _consume,
        "consume_each": _consume_each,
        "consume_shared": _consume_shared,
        "replay": _replay,
        "latency": _latency,
        "connections": _connections,
    }.items()
}
