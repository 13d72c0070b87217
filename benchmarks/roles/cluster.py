"""Workers that use a cluster of three brokers: failover, many topics, and the memory of the view of many topics."""

from __future__ import annotations

import ctypes
import gc
import os
import time
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import msgspec
import psutil
import trio

import danube
from benchmarks._processes import Outcome, Work
from benchmarks.worker import Control
from danube.broker.catalogue.catalogue import Catalogue
from danube.broker.runtime.process_memory import collect_rarely, keep_large_buffers
from danube.client import Client
from danube.cluster.features import FEATURE_LEVEL
from danube.cluster.membership import Membership
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    CLUSTER_KEY,
    Assignment,
    BrokerRecord,
    ClusterRecord,
    LastStart,
    SessionRecord,
    broker_name,
    topic_key,
)
from danube.metadata import MetadataStore, Put, open_store
from danube.model import Durability, Limits
from danube.model.cluster_api import ClusterStatus
from danube.model.errors import AlreadyExistsError, DanubeError
from danube.model.ids import BrokerId, OwnerEpoch, TopicId
from danube.model.records import TopicRecord

__all__ = ["ROLES", "connect_to", "owner_of", "until", "whole"]

CALLERS = 64
"""That create topics at the same time."""
_BROKERS = 3
_LOOK_S = 0.01
_WHOLE_LOOK_S = 0.2
_LONGEST_S = 120.0
_OWNED_TRIES = 100
_TOPICS_PER_TRANSACTION = 50


@asynccontextmanager
async def connect_to(address: str) -> AsyncGenerator[Client]:
    """Connect to one broker, or to several with commas between their addresses.

    Pauses are short, so that the figures are those of the cluster.
    """
    async with danube.connect(
        f"danube://{address}",
        connect_timeout_s=0.5,
        request_timeout_s=10.0,
        reconnect_initial_s=0.02,
        reconnect_max_s=0.1,
    ) as client:
        yield client


async def until(call: Callable[[], Awaitable[bool]], pause_s: float = _LOOK_S) -> float:
    """Repeat a call until it returns true; return the monotonic clock then. Errors of Danube count as false.

    Raises:
        trio.TooSlowError: that takes longer than two minutes.
    """
    with trio.fail_after(_LONGEST_S):
        while True:
            with suppress(DanubeError):  # what is measured is how long calls fail
                if await call():
                    return time.monotonic()
            await trio.sleep(pause_s)


def _is_whole(status: ClusterStatus) -> bool:
    """Whether all brokers are active, and all vote."""
    roles = [member.role for member in status.metadata.members]
    active = [row for row in status.brokers if row.state == "active"]
    return len(active) == _BROKERS and roles.count("voter") == _BROKERS - 1 and roles.count("leader") == 1


async def whole(address: str) -> ClusterStatus:
    """Wait until the cluster is whole, as seen by one broker."""
    found: list[ClusterStatus] = []

    async def ask() -> bool:
        async with connect_to(address) as client:
            found.append(await client.admin.cluster_status())
        return _is_whole(found[-1])

    await until(ask, _WHOLE_LOOK_S)
    return found[-1]


async def owner_of(client: Client, topic: str, own: str) -> str:
    """Return the address of a topic's owner; ``own`` is that of the broker that is asked. Empty: it is away."""
    owners = (await client.admin.lookup_topic(topic)).owners
    return owners[0].address if owners else own


async def _topic_of(client: Client, own: str, wanted: str, prefix: str) -> str:
    """Create topics without durability until one is owned by the broker at the address ``wanted``."""
    for number in range(_OWNED_TRIES):
        topic = f"{prefix}-{number}"
        await client.admin.create_topic(topic, durability="none")
        if await owner_of(client, topic, own) == wanted:
            return topic
    raise RuntimeError(f"none of {_OWNED_TRIES} new topics is owned by the broker at {wanted}")


async def _failover(work: Work, control: Control) -> Outcome:
    """Send a signal to the broker that leads the metadata; measure until the others have taken over."""
    addresses = work.address.split(",")
    pids = dict(zip(addresses, map(int, str(work.settings["pids"]).split(",")), strict=True))
    status = await whole(addresses[0])
    leader = next(member.broker for member in status.metadata.members if member.role == "leader")
    dead = next(row.address for row in status.brokers if row.broker == leader)
    first, second = (address for address in addresses if address != dead)
    values: dict[str, float] = {"pid": pids[dead]}
    async with connect_to(first) as writer, connect_to(second) as watcher:
        topic = await _topic_of(writer, first, dead, f"{work.topic}-owned")
        ready = control.ready()
        os.kill(pids[dead], int(work.settings["signal"]))
        began = time.monotonic()

        async def write() -> bool:
            with suppress(AlreadyExistsError):  # an earlier call has created it, and its answer was lost
                await writer.admin.create_topic(f"{work.topic}-next", durability="none")
            return True

        async def notice() -> bool:
            rows = (await watcher.admin.cluster_status(gather=False)).brokers
            return next(row for row in rows if row.broker == leader).state == "away"

        async def serve() -> bool:
            if await owner_of(watcher, topic, second) in ("", dead):
                return False
            async with watcher.producer(topic) as producer:
                await producer.send(b"x" * work.size)
            return True

        async def measure(name: str, call: Callable[[], Awaitable[bool]]) -> None:
            values[f"{name}_s"] = await until(call) - began

        async with trio.open_nursery() as nursery:
            for name, call in (("write", write), ("noticed", notice), ("served", serve)):
                nursery.start_soon(measure, name, call)
    return Outcome(started_ns=ready, finished_ns=time.monotonic_ns(), count=1, cpu_s=control.cpu_s(), values=values)


async def _settle(work: Work, control: Control) -> Outcome:
    """Wait until the cluster is whole, as seen by each broker; then delete the topics of failovers.

    The placement evens out the numbers of topics: with those of earlier ones a broker might be given no new ones.
    """
    began = control.ready()
    addresses = work.address.split(",")
    for address in addresses:
        await whole(address)
    ended = time.monotonic_ns()
    async with connect_to(addresses[0]) as client:
        for topic in await client.admin.list_topics():
            if topic.topic.startswith(work.topic):
                await client.admin.delete_topic(topic.topic)
    return Outcome(started_ns=began, finished_ns=ended, count=1)


async def _create_topics(work: Work, control: Control) -> Outcome:
    """Create plain topics through one client."""
    left = iter(range(work.count))
    latencies: list[float] = []
    async with danube.connect(f"danube://{work.address.partition(',')[0]}") as client:

        async def one_caller() -> None:
            for number in left:
                called = time.perf_counter_ns()
                await client.admin.create_topic(f"{work.topic}-{number}")
                latencies.append((time.perf_counter_ns() - called) / 1e3)

        began = control.ready()
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(one_caller)
        ended = time.monotonic_ns()
    return Outcome(
        started_ns=began,
        finished_ns=ended,
        count=work.count,
        latencies_us={"create": latencies},
        cpu_s=control.cpu_s(),
    )


async def _fill_view(work: Work, control: Control) -> Outcome:
    """Write the metadata of a cluster of three brokers with many topics to an embedded store."""
    began = control.ready()
    encode = msgspec.msgpack.encode
    random = Random(0)
    async with open_store("embedded://", data_directory=Path(str(work.settings["directory"]))) as store:
        cluster = ClusterRecord(name="danube", incarnation=1, feature_level=FEATURE_LEVEL, next_broker=_BROKERS + 1)
        puts = [Put(CLUSTER_KEY, encode(cluster))]
        for number in range(1, _BROKERS + 1):
            record = BrokerRecord(identity=f"{number:016x}", storages=("default",), life=1, start=number)
            puts.append(Put(BROKERS + broker_name(BrokerId(number)), encode(record)))
        await store.transact([], puts)
        for first in range(0, work.count, _TOPICS_PER_TRANSACTION):
            puts = []
            for number in range(first, min(work.count, first + _TOPICS_PER_TRANSACTION)):
                topic_id = TopicId(random.getrandbits(63))
                record_of = TopicRecord(Durability.DISK, 0, [topic_id], 1_700_000_000_000_000 + number)
                assignment = Assignment(BrokerId(number % _BROKERS + 1), OwnerEpoch(1))
                puts.append(Put(f"/topics/default/measured-{number:06}", encode(record_of)))
                puts.append(Put(ASSIGNMENTS + topic_key(topic_id), encode(assignment)))
            await store.transact([], puts)
    return Outcome(started_ns=began, finished_ns=time.monotonic_ns(), count=work.count, cpu_s=control.cpu_s())


async def _view(work: Work, control: Control) -> Outcome:
    """Load what a broker knows of all topics; measure how much memory that takes.

    The process is configured as that of a broker. What loading has freed is returned to the kernel before the resident
    memory is read: a broker uses it for other things, or returns it when it is quiet. With the setting ``traced``, the
    memory of all objects that stay is summed up instead.
    """
    keep_large_buffers()
    traced = bool(work.settings.get("traced"))
    async with open_store("embedded://", data_directory=Path(str(work.settings["directory"]))) as store:
        began = control.ready()
        collect_rarely()
        before = _resident_bytes()
        if traced:
            tracemalloc.start()
        membership, catalogue = await _load_view(store)
        if traced:
            gc.collect()
            values = {"view_live_mb": tracemalloc.get_traced_memory()[0] / 1e6}
        else:
            values = {"view_mb": (_resident_bytes() - before) / 1e6}
        found = len(list(catalogue.topics())), len(membership.assignments.values)
    if found != (work.count, work.count):
        raise RuntimeError(f"the view has {found[0]} topics and {found[1]} assignments instead of {work.count}")
    return Outcome(
        started_ns=began,
        finished_ns=time.monotonic_ns(),
        count=work.count,
        cpu_s=control.cpu_s(),
        values=values,
    )


async def _load_view(store: MetadataStore) -> tuple[Membership, Catalogue]:
    membership = Membership(
        store,
        cluster="danube",
        identity="measured",
        record=SessionRecord(address="127.0.0.1:1"),
        storages=("default",),
        random=Random(0),
    )
    await membership.join(0, LastStart(0, 0), _keep_no_start)
    await membership.assignments.load()
    catalogue = await Catalogue.load(store, membership, Limits(), Random(0), lambda: time.time_ns() // 1000)
    return membership, catalogue


async def _keep_no_start(_life: int, _start: int) -> None:
    """The directory is used once."""


def _resident_bytes() -> int:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


def _role(run: Callable[[Work, Control], Awaitable[Outcome]]) -> Callable[[Work, Control], Outcome]:
    return lambda work, control: trio.run(run, work, control)


ROLES = {
    "failover": _role(_failover),
    "settle": _role(_settle),
    "create_topics": _role(_create_topics),
    "fill_view": _role(_fill_view),
    "view": _role(_view),
}
