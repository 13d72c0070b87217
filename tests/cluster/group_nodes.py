"""Brokers that consist of links, data directory and metadata, on a simulated network in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random

import trio
from metadata.raft_members import OPTIONS

from danube.cluster.group import MetadataGroup
from danube.metadata import MetadataStore
from danube.metadata.raft import RaftStore
from danube.model.errors import DanubeError
from danube.model.limits import Limits
from danube.peers import Peer
from danube.peers.links import WirePeers, open_peers
from danube.testing.disk import SimulatedDisk
from danube.testing.simulated_table import SimulatedTable, inline
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.network import ClientStream, Network
from danube.testing.simulation.trace import Trace
from danube.wire import Server

SECRET = bytes(range(32))


class Broker:
    """A machine with a broker on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.address = f"{name}:6650"
        self.advertised = self.address
        self.cluster = "danube"
        self.life = 0
        self.error: DanubeError | None = None
        self.replace_disks()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.ready = trio.Event()
        self.store: RaftStore
        self.group: MetadataGroup
        self.peers: WirePeers

    def replace_disks(self) -> None:
        random = self.world.random
        self.identity = f"{random.getrandbits(64):016x}"
        self.disk = SimulatedDisk(random)
        self.log = SimulatedDisk(random, sync_delay_s=0.002)
        self.table = SimulatedTable(random)

    def start(self, listed: Sequence[str] = (), join: str | None = None) -> Broker:
        self.life += 1
        self._scope, self._ended, self.ready = trio.CancelScope(), trio.Event(), trio.Event()
        self.error = None
        self.world.network.power_on(self.name)
        self.world.nursery.start_soon(self._live, tuple(listed), join)
        return self

    async def up(self) -> Broker:
        with trio.fail_after(60):
            await self.ready.wait()
        return self

    async def _live(self, listed: tuple[str, ...], join: str | None) -> None:
        world = self.world
        own = Peer(
            cluster=self.cluster, identity=self.identity, life=self.life, address=self.advertised, level=1, required=0
        )
        try:
            with self._scope:
                async with (
                    open_peers(
                        own,
                        SECRET,
                        world.limits,
                        connect=self._connect,
                        random_bytes=world.random.randbytes,
                    ) as peers,
                    trio.open_nursery() as nursery,
                ):
                    self.peers = peers
                    server = Server([peers.service()], world.limits)
                    await nursery.start(server.run, world.network.listen(self.name, [self.address]))
                    await self._take_part(peers, listed, join)
        except* DanubeError as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self.error = error
            self.ready.set()
        finally:
            self._ended.set()

    async def _connect(self, host: str, port: int) -> ClientStream:
        if (self.name, host) in self.world.refusing:
            raise ConnectionRefusedError(f"a firewall refuses connections from {self.name} to {host}")
        return await self.world.network.connect(self.name, host, port)

    async def _take_part(self, peers: WirePeers, listed: tuple[str, ...], join: str | None) -> None:
        world = self.world
        group = self.group = MetadataGroup(
            peers, self.disk, identity=self.identity, cluster=self.cluster, random=world.random, place=self.name
        )
        await group.settle(listed, join, is_new=not self.log.names())
        place = group.place()
        store = self.store = RaftStore(
            self.log,
            self.table,
            member=place.member,
            first_conf=place.first_conf,
            links=place.links,
            limits=world.limits,
            random=world.random,
            work=inline,
            options=OPTIONS,
        )
        async with store:
            place.links.connect(store.node)
            async with group.present(store):
                group.announce()
                await self._work(store)

    async def _work(self, store: MetadataStore) -> None:
        """Do what the broker is there for; it is killed meanwhile."""
        self.ready.set()
        await trio.sleep_forever()

    async def kill(self, *, silently: bool = False) -> None:
        """Kill the process; silently: with its machine, so that connections hang."""
        self.world.network.crash(self.name, silently=silently)
        disks = self.disk.crash(power_loss=False), self.log.crash(power_loss=False), self.table.crash(power_loss=False)
        self._scope.cancel()
        await self._ended.wait()
        self.disk, self.log, self.table = disks

    @property
    def is_leader(self) -> bool:
        return self.ready.is_set() and not self._ended.is_set() and self.store.node.raft.is_leader


class World:
    """Brokers and their network."""

    def __init__(self, nursery: trio.Nursery, seed: int) -> None:
        self.nursery = nursery
        self.limits = Limits()
        self.random = Random(seed)
        self.network = Network(self.random, Trace())
        self.brokers: list[Broker] = []
        self.refusing: set[tuple[str, str]] = set()
        """Hosts whose connections to another one are refused, though a process listens there."""

    def broker(self, name: str) -> Broker:
        broker = Broker(self, name)
        self.brokers.append(broker)
        return broker

    async def leader(self, *others: Broker) -> Broker:
        """Wait until one of them leads."""
        with trio.fail_after(60):
            while True:
                for broker in others or self.brokers:
                    if broker.is_leader:
                        return broker
                await trio.sleep(0.05)


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait for a condition."""
    with trio.move_on_after(within_s):
        while not condition():  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.05)
    assert condition()


def simulate(work: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    """Run ``work`` in virtual time; all brokers end with it."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(3600):
                await work(World(nursery, seed))
            nursery.cancel_scope.cancel()

    run_seeded(main, seed)
