"""Several brokers that share one metadata store, on simulated machines in virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import trio
from broker.broker_harness import PATIENCE_S, small_config

import danube
from danube.broker import Broker, BrokerConfig, Seams
from danube.client import Environment
from danube.metadata import Capabilities, MemoryStore, MetadataStore
from danube.storage import MemorySpace
from danube.testing.metadata import FaultyMetadataStore
from danube.testing.metadata_history import MetadataHistory
from danube.testing.simulation.network import Network
from danube.testing.simulation.node import BrokerNode, Life
from danube.testing.simulation.raft_machine import ROOMY, RaftMachine
from danube.testing.simulation.trace import Trace


class SharedStore(MemoryStore):
    """Metadata that outlive all brokers."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, linearizable=True, watch_replay=True, leases=True)


class SharedNode(BrokerNode):
    """A machine whose broker reaches the shared metadata in its own, perhaps bad way."""

    shared: MetadataStore
    faults: FaultyMetadataStore

    def _seams(self, life: Life) -> Seams:
        faults = self.faults = FaultyMetadataStore(self.shared, Random(5))

        @asynccontextmanager
        async def open_metadata(config: BrokerConfig, group: object) -> AsyncIterator[MetadataStore]:
            yield faults

        return super()._seams(life)._replace(open_metadata=open_metadata)

    def crash(self, *, power_loss: bool) -> None:
        self.faults.refuse = 1.0  # a dead process says nothing
        super().crash(power_loss=power_loss)


class Machine:
    """A machine with a broker that can be stopped, killed, cut off from the metadata, and started again."""

    def __init__(self, world: ClusterWorld, number: int) -> None:
        self.name = f"h{number}"
        self.error: BaseException | None = None
        self._world = world
        rack = world.racks[number - 1] if world.racks else ""
        config = small_config(world.directory / self.name, listen=[f"{self.name}:6650"], rack=rack, **world.settings)
        make: Any = SharedNode
        if world.metadata_history is not None:
            random = Random(world.seed + 1_000 + number)
            make = partial(BrokerNode, raft=RaftMachine(self.name, random, world.metadata_history, ROOMY))
        self.node = make(
            self.name,
            config,
            network=world.network,
            buckets=world.buckets.setdefault("" if world.shared_buckets else self.name, {}),
            random=Random(world.seed + number),
            wall_clock_us=world.wall_clock_us,
            pauses=SimpleNamespace(resume=lambda name: None),
            trace=world.trace,
            started=lambda node: None,
            failed=self._failed,
        )
        self.node.shared = world.store
        self.node.shares_storages = world.shared_storages
        self._ended = trio.Event()

    def _failed(self, node: BrokerNode, life: Life, error: BaseException) -> None:
        self.error = error

    @property
    def broker(self) -> Broker:
        assert self.node.life is not None
        return self.node.life.broker

    async def start(self) -> None:
        self._ended = trio.Event()
        self._world.nursery.start_soon(self._live)
        await trio.lowlevel.checkpoint()
        while not self.node.ready.is_set():
            if self.error is not None:
                raise self.error
            await trio.sleep(0.01)

    async def _live(self) -> None:
        try:
            await self.node.live()
        finally:
            self._ended.set()
        if self.error is not None:
            raise self.error

    async def drain(self) -> None:
        self.broker.drain()
        await self._ended.wait()

    async def kill(self, *, power_loss: bool = False) -> None:
        self.node.crash(power_loss=power_loss)
        await self._ended.wait()

    def cut_off(self) -> None:
        """From now on the metadata do not answer."""
        self.node.faults.refuse = 1.0

    def heal(self) -> None:
        self.node.faults.refuse = 0.0

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncGenerator[danube.Client, None]:
        options = {"reconnect_initial_s": 0.02, "reconnect_max_s": 0.1, **options}
        environment = Environment(
            connect=partial(self._world.network.connect, "test"),
            clock_us=self._world.wall_clock_us,
            random=Random(3),
        )
        async with danube.connect(f"danube://{self.name}:6650", environment=environment, **options) as client:
            yield client


class ClusterWorld:
    """The machines, their network, and the metadata."""

    def __init__(self, directory: Path, store: SharedStore, nursery: trio.Nursery, **settings: Any) -> None:
        self.directory = directory
        self.store = store
        self.nursery = nursery
        self.shared_buckets = bool(settings.pop("shared_buckets", False))
        """Whether storages of the same URL are the same for all brokers."""
        self.shared_storages = bool(settings.pop("shared_storages", False))
        """Whether the storages say that they are shared."""
        self.seed = int(settings.pop("seed", 0))
        """Worlds that share nothing but a storage need different ones: what their brokers draw has to differ."""
        self.metadata_history: MetadataHistory | None = None
        """If the brokers keep the metadata themselves, as a Raft group."""
        if settings.pop("keeps_metadata", False):
            self.metadata_history = MetadataHistory()
        self.racks: Sequence[str] = settings.pop("racks", ())
        """Of the brokers, in their order; empty: they have none."""
        self.settings = settings
        self.trace = Trace(keep=100)
        self.network = Network(Random(1), self.trace)
        self.buckets: dict[str, dict[str, MemorySpace]] = settings.pop("buckets", {})
        """Those of an earlier world, whose metadata are lost; else new ones."""
        self.machines: list[Machine] = []

    def wall_clock_us(self) -> int:
        return 1_800_000_000_000_000 + round(self.network.clock.now * 1e6)


@asynccontextmanager
async def cluster(
    directory: Path, count: int = 2, *, patience_s: float = PATIENCE_S * 10, **settings: Any
) -> AsyncGenerator[ClusterWorld, None]:
    """Run a cluster around the body; its brokers have the ids 1 and up, in their order."""
    if settings.get("keeps_metadata"):
        settings["peers"] = ",".join(f"h{number}:6650" for number in range(1, count + 1))
    failure: BaseException | None = None
    try:
        with trio.fail_after(patience_s):
            async with SharedStore() as store, trio.open_nursery() as nursery:
                world = ClusterWorld(directory, store, nursery, **settings)
                for number in range(1, count + 1):
                    machine = Machine(world, number)
                    world.machines.append(machine)
                    if world.metadata_history is None:
                        await machine.start()
                if world.metadata_history is not None:  # they wait for each other
                    async with trio.open_nursery() as starting:
                        for machine in world.machines:
                            starting.start_soon(machine.start)
                yield world
                for machine in world.machines:
                    if machine.node.life is not None:
                        if world.metadata_history is None:
                            machine.heal()
                        await machine.drain()
                nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        failure = group
        while isinstance(failure, ExceptionGroup) and len(failure.exceptions) == 1:
            failure = failure.exceptions[0]
    if failure is not None:
        raise failure
