"""Fake brokers that share their topics, as after a hand-over: each topic has one owner, the others name it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio.abc
import trio
import trio.testing
from fake_broker import FakeBroker, FakeTopic, _MemoryListener, _MemoryStream, broker_in_a_thread

import danube
from danube.client import Client, Environment
from danube.model import api
from danube.model.errors import DanubeError, NotOwnerError, OwnerAwayError
from danube.model.limits import Limits
from danube.wire import Server


class FakeCluster:
    """Brokers ``b1``, ``b2`` ... at port 6650 of hosts of the same names, or at ports of this machine."""

    def __init__(self, count: int) -> None:
        self.brokers = {f"b{index + 1}": FakeBroker() for index in range(count)}
        self.topics: dict[str, FakeTopic] = {}
        self.addresses = {name: f"{name}:6650" for name in self.brokers}
        self.owner: dict[str, tuple[str, int]] = {}
        """Broker and epoch of each topic; others belong to b1."""
        self.views: dict[str, dict[str, tuple[str, int]]] = {}
        """What a broker believes instead."""
        self.home = ""
        """The broker that holds all stages; empty: each one those of its own topics."""
        self.away: set[str] = set()
        self.dialled: Counter[str] = Counter()
        self.names_owners = True
        for name, broker in self.brokers.items():
            broker.topics = self.topics
            broker.not_mine = partial(self._not_mine, name)
            broker.owners = partial(self._owners, name)
            broker.not_home = partial(self._not_home, name)
            broker.is_home = lambda name=name: self.home == name

    def _believes(self, broker: str, topic: str) -> tuple[str, int]:
        owner = self.owner.get(topic, ("b1", 1))
        return self.views.get(broker, {}).get(topic, owner)

    def _not_mine(self, broker: str, topic: str) -> DanubeError | None:
        owner, epoch = self._believes(broker, topic)
        if owner == broker:
            return None
        if owner == "":
            return OwnerAwayError(f"topic {topic!r} waits for broker b9, whose disk holds offsets from 0 on")
        details = {"address": self.addresses[owner], "epoch": str(epoch)}
        return NotOwnerError(f"topic {topic!r} belongs to broker {owner}", details)

    def _not_home(self, broker: str) -> DanubeError | None:
        if self.home in ("", broker):
            return None
        if self.home in self.away:
            return OwnerAwayError(f"the producer waits for broker {self.home}, which holds its stages")
        return NotOwnerError(f"broker {self.home} holds the stages", {"address": self.addresses[self.home]})

    def _owners(self, broker: str, topics: list[str]) -> list[api.TopicOwner]:
        if not self.names_owners:
            return []
        rows = [self._believes(broker, topic) for topic in topics]
        return [api.TopicOwner(self.addresses[owner] if owner else "", epoch) for owner, epoch in rows]

    def move(self, topic: str, to: str) -> None:
        """Hand a topic over; its streams end."""
        owner, epoch = self.owner.get(topic, ("b1", 1))
        self.owner[topic] = to, epoch + 1
        if owner:
            error = self._not_mine(owner, topic)
            assert error is not None
            self.brokers[owner].evict(topic, error)

    def name_each_other(self) -> None:
        """Let lookups name all brokers."""
        for broker in self.brokers.values():
            broker.others = list(self.addresses.values())

    async def stop(self, name: str) -> None:
        """Kill a broker: its connections break, and it refuses new ones."""
        self.away.add(name)
        await self.brokers[name].cut()


@asynccontextmanager
async def memory_cluster(cluster: FakeCluster) -> AsyncIterator[Environment]:
    """Serve the brokers without sockets, so that a test's clock may jump."""
    arriving = {}
    async with trio.open_nursery() as nursery:
        for name, broker in cluster.brokers.items():
            sending, accepting = trio.open_memory_channel[trio.abc.Stream](1_000)
            arriving[name] = sending
            server = Server([broker.methods()], Limits(max_resets_per_minute=10**9))
            await nursery.start(server.run, [_MemoryListener(accepting)])

        async def connect(host: str, port: int) -> anyio.abc.ByteStream:
            cluster.dialled[host] += 1
            await trio.lowlevel.checkpoint()
            if host in cluster.away or host not in arriving:
                raise ConnectionRefusedError(f"{host} refuses")
            here, there = trio.testing.memory_stream_pair()
            cluster.brokers[host].connections.append(there)
            await arriving[host].send(there)
            return _MemoryStream(here)

        yield Environment(connect=connect)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def cluster_client(cluster: FakeCluster, seeds: str = "b1", **options: Any) -> AsyncIterator[Client]:
    """Serve the brokers, and connect to one or several of them."""
    async with (
        memory_cluster(cluster) as environment,
        danube.connect(f"danube://{seeds}", environment=environment, **options) as client,
    ):
        yield client


@contextmanager
def cluster_in_threads(count: int) -> Iterator[FakeCluster]:
    """Serve the brokers on ports of this machine, for clients of any kind."""
    cluster = FakeCluster(count)
    with ExitStack() as stack:
        for name, broker in cluster.brokers.items():
            stack.enter_context(broker_in_a_thread(broker))
            cluster.addresses[name] = f"127.0.0.1:{broker.port}"
        yield cluster
