"""Workers that use a cluster of three brokers whose topics move: planned moves, drains, restarts, and a failover."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import trio

import danube
from benchmarks._payloads import CheckError
from benchmarks._processes import Outcome, Work
from benchmarks._stats import percentile
from benchmarks.roles.cluster import connect_to, owner_of, until, whole
from benchmarks.worker import Control
from danube.client import Client
from danube.model.errors import DanubeError

__all__ = ["ROLES"]

CLIENTS = 10
"""Among which the producers of many topics are divided."""
FILLED = 10
"""Messages that each of many topics has before it moves."""
_CALLERS = 64
_LOOK_S = 0.02
_DRAIN_LOOK_S = 0.25
_REFUSED_S = 10.0
"""After that a move is ordered again."""
_AFTER_S = 0.2
"""For how long a topic is observed after its move."""
_MANY = 1_000
"""Messages of one call of those that publish without a pause."""
_END = b"end"
"""The last message of a topic."""
_AWAY_S = 10.0
"""How long a client looks for the owner of a topic before it reports an error."""
_OPEN_S = 120.0


# --- One topic that moves ---


async def _move(work: Work, control: Control) -> Outcome:
    """Move a topic ``work.count`` times, while one message at a time is published to it.

    The pause of a move is the longest time between two acknowledgements from its order on, until a little after the
    cluster shows the new owner.
    """
    addresses = work.address.split(",")
    names = {row.address: row.name for row in (await whole(addresses[0])).brokers}
    pauses: list[float] = []
    moved_s: list[float] = []
    acknowledged: list[float] = []
    waits: list[float] = []
    ended = trio.Event()
    payload = b"x" * work.size
    async with connect_to(addresses[0]) as operator, connect_to(work.address) as client:
        await operator.admin.create_topic(work.topic, durability="disk")

        async def publish() -> None:
            async with client.producer(work.topic) as producer:
                while not ended.is_set():
                    called = time.monotonic()
                    await producer.send(payload)
                    acknowledged.append(time.monotonic())
                    waits.append(acknowledged[-1] - called)

        async def move() -> None:
            owner = await owner_of(operator, work.topic, addresses[0])
            target = addresses[(addresses.index(owner) + 1) % len(addresses)]

            async def there() -> bool:
                return await owner_of(operator, work.topic, addresses[0]) == target

            moved = False
            while not moved:  # a target that is starting refuses it
                first, ordered = len(acknowledged) - 1, time.monotonic()
                await operator.admin.move_topic(work.topic, names[target])
                with trio.move_on_after(_REFUSED_S):
                    moved_s.append(await until(there, _LOOK_S) - ordered)
                    moved = True
            with trio.fail_after(_OPEN_S):
                count = len(acknowledged)
                while len(acknowledged) < count + 2:  # noqa: ASYNC110 - the first one may have been sent before
                    await trio.sleep(_LOOK_S)
            await trio.sleep(_AFTER_S)
            pauses.append(max(later - earlier for earlier, later in pairwise(acknowledged[first:])))

        began = control.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            while len(acknowledged) < FILLED:  # noqa: ASYNC110 - each send would have to tell
                await trio.sleep(_LOOK_S)
            for _ in range(work.count):
                await move()
            ended.set()
        stored = (await operator.admin.describe_topic(work.topic)).end_offset
        await operator.admin.delete_topic(work.topic)
    if stored != len(acknowledged):
        raise CheckError(f"{len(acknowledged)} messages were acknowledged, and {stored} are stored")
    values = {
        "pause_p50_ms": 1e3 * percentile(pauses, 50),
        "pause_p99_ms": 1e3 * percentile(pauses, 99),
        "move_p50_ms": 1e3 * percentile(moved_s, 50),
        "send_p50_ms": 1e3 * percentile(waits, 50),
    }
    return _outcome(began, len(acknowledged), control, values)


# --- Many topics of one broker ---


class _Publishers:
    """One producer of each topic; all of them send once more as soon as they are told to.

    Attributes:
        acknowledged: when the last message of each topic was, by the monotonic clock.
        most_redirects: the most redirects that any call or stream of their clients took; known at the end.
    """

    def __init__(self, topics: Sequence[str], payload: bytes) -> None:
        self.acknowledged: dict[str, float] = {}
        self.most_redirects = 0
        self._topics = topics
        self._payload = payload
        self._opening = trio.Semaphore(_CALLERS)
        self._left = len(topics)
        self._opened = trio.Event()
        self._again = trio.Event()

    @asynccontextmanager
    async def open(self, addresses: str) -> AsyncGenerator[None]:
        """Open them all and send :data:`FILLED` messages of each topic; at the end, wait for the last ones."""
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(self._run_client, addresses, self._topics[number::CLIENTS])
            with trio.fail_after(_OPEN_S):
                await self._opened.wait()
            yield

    def send_again(self) -> None:
        """Have all of them send one message."""
        self._again.set()

    async def _run_client(self, addresses: str, topics: Sequence[str]) -> None:
        async with connect_to(addresses) as client:
            async with trio.open_nursery() as nursery:
                for topic in topics:
                    nursery.start_soon(self._run, client, topic)
            self.most_redirects = max(self.most_redirects, *client.redirects)

    async def _run(self, client: Client, topic: str) -> None:
        await self._opening.acquire()
        async with client.producer(topic, send_timeout_s=_OPEN_S) as producer:
            await producer.send_many([self._payload] * FILLED)
            self._opening.release()
            self._left -= 1
            if not self._left:
                self._opened.set()
            await self._again.wait()
            await producer.send(self._payload)
            self.acknowledged[topic] = time.monotonic()


async def _each(items: Sequence[str], call: Callable[[str], Awaitable[None]]) -> None:
    """Make a call for each item, some at the same time."""
    left = iter(items)

    async def one_caller() -> None:
        for item in left:
            await call(item)

    async with trio.open_nursery() as nursery:
        for _ in range(min(_CALLERS, len(items))):
            nursery.start_soon(one_caller)


async def _create_all_on(address: str, work: Work, durability: str) -> list[str]:
    """Create ``work.count`` topics that are all owned by the broker at an address; the cluster is whole."""
    topics = [f"{work.topic}-{number}" for number in range(work.count)]
    async with connect_to(address) as client:
        rows = (await client.admin.cluster_status(gather=False)).brokers
        others = [row.name for row in rows if row.address != address]
        for name in others:
            await client.admin.drain_broker(name)

        async def alone() -> bool:
            rows = (await client.admin.cluster_status(gather=False)).brokers
            return all(row.state == "draining" and not row.topics for row in rows if row.name in others)

        await until(alone, _DRAIN_LOOK_S)

        async def create(topic: str) -> None:
            await client.admin.create_topic(topic, durability=durability)

        await _each(topics, create)
        for name in others:
            await client.admin.activate_broker(name)
    await whole(address)
    return topics


async def _check_stored(client: Client, topics: Sequence[str], expected: int) -> None:
    """Raise if one of the topics does not have so many messages."""
    wrong: dict[str, int] = {}

    async def check(topic: str) -> None:
        stored = (await client.admin.describe_topic(topic)).end_offset
        if stored != expected:
            wrong[topic] = stored

    await _each(topics, check)
    if wrong:
        topic, stored = next(iter(wrong.items()))
        raise CheckError(f"{len(wrong)} of {len(topics)} topics do not have {expected} messages; {topic} has {stored}")


async def _drain(work: Work, control: Control) -> Outcome:
    """Drain the broker that owns all topics; then have the producers of all topics, idle meanwhile, send again."""
    addresses = work.address.split(",")
    await whole(addresses[0])
    topics = await _create_all_on(addresses[0], work, "disk")
    publishers = _Publishers(topics, b"x" * work.size)
    async with connect_to(addresses[1]) as operator:
        rows = (await operator.admin.cluster_status(gather=False)).brokers
        name = next(row.name for row in rows if row.address == addresses[0])

        async def empty() -> bool:
            rows = (await operator.admin.cluster_status(gather=False)).brokers
            return next(row for row in rows if row.name == name).topics == 0

        async with publishers.open(work.address):
            ready = control.ready()
            began = time.monotonic()
            await operator.admin.drain_broker(name)
            drained = await until(empty, _DRAIN_LOOK_S)
            publishers.send_again()
        settled = max(publishers.acknowledged.values())
        await _check_stored(operator, topics, FILLED + 1)
        await operator.admin.activate_broker(name)
    values = {
        "drain_s": drained - began,
        "topics_per_s": len(topics) / (drained - began),
        "settle_s": settled - drained,
        "hops": publishers.most_redirects,
    }
    return _outcome(ready, len(topics), control, values)


async def _kill(work: Work, control: Control) -> Outcome:
    """Kill the broker that owns all topics, which have durability ``remote``, and publish to each of them at once."""
    addresses = work.address.split(",")
    pids = dict(zip(addresses, map(int, str(work.settings["pids"]).split(",")), strict=True))
    await whole(addresses[0])
    victim = addresses[int(work.settings["number"])]
    topics = await _create_all_on(victim, work, "remote")
    publishers = _Publishers(topics, b"x" * work.size)
    async with publishers.open(work.address):
        ready = control.ready()
        os.kill(pids[victim], signal.SIGKILL)
        began = time.monotonic()
        publishers.send_again()
    waits = [at - began for at in publishers.acknowledged.values()]
    async with connect_to(next(address for address in addresses if address != victim)) as operator:
        await _check_read(operator, topics, [b"x" * work.size] * (FILLED + 1))
    values = {f"served_p{share}_s": percentile(waits, share) for share in (50, 99)} | {"served_all_s": max(waits)}
    return _outcome(ready, len(topics), control, values | {"pid": pids[victim]})


async def _check_read(client: Client, topics: Sequence[str], expected: list[bytes]) -> None:
    """Read all topics from their beginning; raise if one has other messages."""

    async def check(topic: str) -> None:
        found: list[bytes] = []
        async with client.reader(topic, start="earliest") as reader:
            with trio.move_on_after(_OPEN_S):
                while len(found) < len(expected):
                    found += (await reader.receive_batch()).payloads()
        if found != expected:
            raise CheckError(f"topic {topic} has {len(found)} of {len(expected)} messages, or others")

    await _each(topics, check)


# --- Traffic without a pause ---


async def _publish_through(work: Work, control: Control) -> Outcome:
    """Publish to ``settings.topics`` topics without a pause, before and while the harness restarts the brokers.

    The harness is told when the undisturbed part is over, and says when the restarts are.
    """
    topics = [f"{work.topic}-{number}" for number in range(int(work.settings["topics"]))]
    batch = [b"x" * work.size] * _MANY
    acknowledged = dict.fromkeys(topics, 0)
    longest = dict.fromkeys(topics, 0.0)
    errors: list[DanubeError] = []
    ended, disturbed = trio.Event(), trio.Event()
    async with _lasting(work) as client:

        async def publish(topic: str) -> None:
            async with client.producer(topic, name="measured") as producer:
                last = time.monotonic()
                while not ended.is_set():
                    try:
                        acknowledged[topic] += (await producer.send_many(batch)).count
                    except DanubeError as error:
                        errors.append(error)
                    now = time.monotonic()
                    if disturbed.is_set():
                        longest[topic] = max(longest[topic], now - last)
                    last = now
                await producer.send(_END)

        async def publish_until_error(topic: str) -> None:
            try:
                await publish(topic)
            except DanubeError as error:
                errors.append(error)

        began = control.ready()
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(publish_until_error, topic)
            await trio.sleep(float(work.settings["warm_up_s"]))
            warm, warm_at = sum(acknowledged.values()), time.monotonic()
            await trio.sleep(float(work.settings["undisturbed_s"]))
            before, before_at = sum(acknowledged.values()), time.monotonic()
            disturbed.set()
            await trio.to_thread.run_sync(control.hold)
            during, during_at = sum(acknowledged.values()) - before, time.monotonic()
            ended.set()
    if errors:
        print(f"{len(errors)} errors; the first one: {errors[0]!r}")  # in the worker's log
    undisturbed = (before - warm) / (before_at - warm_at)
    disturbed_rate = during / (during_at - before_at)
    values = {
        "errors": float(len(errors)),
        "undisturbed_per_s": undisturbed,
        "messages_per_s": disturbed_rate,
        "share": disturbed_rate / undisturbed,
        "restarts_s": during_at - before_at,
        "longest_wait_s": max(longest.values()),
    }
    return _outcome(began, sum(acknowledged.values()) + len(topics), control, values)


async def _consume_through(work: Work, control: Control) -> Outcome:
    """Consume ``settings.topics`` topics to their last messages; raise if an offset is missing."""
    topics = [f"{work.topic}-{number}" for number in range(int(work.settings["topics"]))]
    ends: dict[str, int] = {}
    errors: list[DanubeError] = []
    repeated = 0
    async with _lasting(work) as client:

        async def consume(topic: str) -> None:
            nonlocal repeated
            due = -1
            async with client.consumer(topic, subscription="measured", start="earliest") as consumer:
                async for batch in consumer.batches():
                    first, last = batch[0].offset, batch[-1].offset
                    due = first if due < 0 else due
                    if first > due or last - first + 1 != len(batch):
                        raise CheckError(f"{topic}: offset {due} was due, and {len(batch)} from {first} to {last} came")
                    repeated += min(due, last + 1) - first
                    due = max(due, last + 1)
                    await batch.ack()
                    if batch[-1].payload == _END:
                        break
                await consumer.flush_acks()
            ends[topic] = due

        async def consume_until_error(topic: str) -> None:
            try:
                await consume(topic)
            except DanubeError as error:
                errors.append(error)

        began = control.ready()
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(consume_until_error, topic)
    if errors:
        print(f"{len(errors)} errors; the first one: {errors[0]!r}")  # in the worker's log
    values = {"errors": float(len(errors)), "repeated": float(repeated)}
    return _outcome(began, sum(ends.values()), control, values)


@asynccontextmanager
async def _lasting(work: Work) -> AsyncGenerator[Client]:
    """Connect to the cluster as applications do; a topic without an owner for ten seconds is an error."""
    async with danube.connect(f"danube://{work.address}", reconnect_timeout_s=_AWAY_S) as client:
        yield client


async def _create_few(work: Work, control: Control) -> Outcome:
    """Create ``settings.topics`` topics, once the cluster is whole."""
    addresses = work.address.split(",")
    await whole(addresses[0])
    began = control.ready()
    async with connect_to(addresses[0]) as client:
        for number in range(int(work.settings["topics"])):
            await client.admin.create_topic(f"{work.topic}-{number}", durability="disk")
    return _outcome(began, 0, control, {})


async def _empty(work: Work, control: Control) -> Outcome:
    """Drain the broker at ``settings.broker``, and wait until it has no topics."""
    own = str(work.settings["broker"])
    began = control.ready()
    async with connect_to(next(each for each in work.address.split(",") if each != own)) as operator:
        rows = (await operator.admin.cluster_status(gather=False)).brokers
        name = next(row.name for row in rows if row.address == own)
        await operator.admin.drain_broker(name)

        async def empty() -> bool:
            return (await operator.admin.drain_broker(name, dry_run=True)).topics == 0

        await until(empty, _DRAIN_LOOK_S)
    return _outcome(began, 0, control, {})


async def _activate(work: Work, control: Control) -> Outcome:
    """Activate the broker at ``settings.broker``, which was started again; wait until the cluster is whole."""
    own = str(work.settings["broker"])
    began = control.ready()

    async def activate() -> bool:
        async with connect_to(own) as operator:
            rows = (await operator.admin.cluster_status(gather=False)).brokers
            await operator.admin.activate_broker(next(row.name for row in rows if row.address == own))
        return True

    await until(activate, _DRAIN_LOOK_S)
    await whole(own)
    return _outcome(began, 0, control, {})


def _outcome(began_ns: int, count: int, control: Control, values: dict[str, float]) -> Outcome:
    return Outcome(
        started_ns=began_ns, finished_ns=time.monotonic_ns(), count=count, cpu_s=control.cpu_s(), values=values
    )


def _role(run: Callable[[Work, Control], Awaitable[Outcome]]) -> Callable[[Work, Control], Outcome]:
    return lambda work, control: trio.run(run, work, control)


ROLES = {
    "move": _role(_move),
    "drain": _role(_drain),
    "kill": _role(_kill),
    "create_few": _role(_create_few),
    "publish": _role(_publish_through),
    "consume": _role(_consume_through),
    "empty": _role(_empty),
    "activate": _role(_activate),
}
