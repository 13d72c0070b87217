"""A broker on a simulated machine, and clients that connect to it, in virtual time.

Everything that could differ between two runs is fixed: delays of disk and network are constant, clocks and random
numbers start from the same values, and nothing real is touched. Clients are apart by different distances, so that what
many of them send does not arrive at the same moment.

Only the seams are used that a broker and a client offer, so that the broker and client of another version run on the
same machine. The disk and the network are those of :mod:`danube.testing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Any, NamedTuple

import trio

import danube
import danube.compat
from danube.broker import Broker, BrokerConfig, Seams
from danube.client import Client, Environment
from danube.compat.codec import PROTO
from danube.metadata import Capabilities, MemoryStore
from danube.model.limits import MIB, Limits
from danube.testing.clock import simulated_clock
from danube.testing.disk import SimulatedDisk
from danube.testing.simulation.network import ClientStream, Network
from danube.testing.simulation.trace import Trace
from danube.wire import connect_channel
from danube.wire.client import Channel

__all__ = ["Counted", "Machine"]

_HOST = "broker"
_PORT = 6650
_EPOCH_US = 1_800_000_000_000_000
_NEAREST_S, _FURTHEST_S = 0.0002, 0.0008
_DISTANCES = 17
"""How many different distances clients have."""
_WRITE_S, _SYNC_S, _READ_S = 0.00005, 0.0005, 0.00005
_JOURNAL_FILE_BYTES = 16 * MIB
_SETTLED_S = 1.0
"""Virtual time after which nothing of a part of a program goes on any more."""


class _Constant(Random):
    """Delays are the middle of their range whatever was drawn before, and a read takes as much as it may."""

    def random(self) -> float:
        return 0.5

    def randint(self, a: int, b: int) -> int:
        return b


class _DurableStore(MemoryStore):
    """Metadata in memory that pass for durable."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, linearizable=True, watch_replay=True, leases=True)


class Counted(NamedTuple):
    """What happened in a counted part of a program, apart from its instructions."""

    messages: int
    writes: int
    """Of the journal."""
    syncs: int
    network_bytes: int
    virtual_s: float


class Machine:
    """The simulated machine. Create it inside the run; its broker runs during :meth:`running`.

    Args:
        limits: of the broker.
        start, stop: called where counting begins and ends; ``stop`` gets the number of the part, from 0 on.
    """

    def __init__(self, limits: Limits, start: Callable[[], None], stop: Callable[[int], None]) -> None:
        self.counted: list[Counted] = []
        self._start, self._stop = start, stop
        self._network = Network(_Constant(), Trace(keep=1))
        # A small write between large ones would otherwise stay a small read for the rest of the program.
        self._network.joins_reads = True
        self._disk = SimulatedDisk(
            _Constant(), write_delay_s=2 * _WRITE_S, sync_delay_s=2 * _SYNC_S, read_delay_s=2 * _READ_S
        )
        self._stage_disk = SimulatedDisk(_Constant(), growing=True)
        self._clients = count()
        self._config = BrokerConfig(
            listen=(f"{_HOST}:{_PORT}",),
            admin_listen=(),
            data_directory="/simulated",
            journal_file_size=_JOURNAL_FILE_BYTES,
            storage="memory://",
            limits=limits,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the broker around the body."""
        broker = Broker(self._config, self._seams(), (danube.compat.face,))
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            yield
            broker.drain()

    def _seams(self) -> Seams:
        @asynccontextmanager
        async def open_disk(config: BrokerConfig) -> AsyncIterator[SimulatedDisk]:
            yield self._disk

        @asynccontextmanager
        async def open_stage_disk(config: BrokerConfig) -> AsyncIterator[SimulatedDisk]:
            yield self._stage_disk

        async def listen(addresses: Sequence[str]) -> list[trio.abc.Listener[Any]]:
            return list(self._network.listen(_HOST, addresses))

        return Seams(
            wall_clock_us=self._wall_clock_us,
            random=Random(1),
            open_disk=open_disk,
            open_stage_disk=open_stage_disk,
            open_metadata=lambda config, group: _DurableStore(limits=config.limits),
            has_groups=False,
            listen=listen,
        )

    def _wall_clock_us(self) -> int:
        clock = simulated_clock()
        assert clock is not None
        return _EPOCH_US + round(clock.now * 1e6)

    # --- Clients

    def _connect(self, number: int) -> Callable[..., Any]:
        """Place a client on the network; gives the function with which it connects."""
        name = f"client-{number}"
        share = number % _DISTANCES / (_DISTANCES - 1)
        self._network.link(name, _HOST).latency_s = _NEAREST_S + share * (_FURTHEST_S - _NEAREST_S)

        async def connect(host: str, port: int) -> ClientStream:
            return await self._network.connect(name, host, port)

        return connect

    def client(self) -> AbstractAsyncContextManager[Client]:
        """Connect a client from a host of its own."""
        number = next(self._clients)
        environment = Environment(
            connect=self._connect(number), clock_us=self._wall_clock_us, random=Random(1000 + number)
        )
        return danube.connect(f"danube://{_HOST}:{_PORT}", environment=environment)

    def upstream(self) -> AbstractAsyncContextManager[Channel]:
        """Connect a caller of the upstream protocol from a host of its own."""
        connect = partial(self._connect(next(self._clients)), _HOST, _PORT)
        return connect_channel(_HOST, _PORT, connect=connect, codec=PROTO)

    # --- Counting

    @contextmanager
    def count(self, messages: int) -> Iterator[None]:
        """Count what is done in the block, which is about so many messages. Wait for :meth:`settle` before it."""
        disk, network = self._disk, self._network
        before = disk.writes, disk.syncs, network.bytes_delivered, network.clock.now
        self._start()
        yield
        self._stop(len(self.counted))
        writes, syncs, size, now = disk.writes, disk.syncs, network.bytes_delivered, network.clock.now
        self.counted.append(Counted(messages, writes - before[0], syncs - before[1], size - before[2], now - before[3]))

    async def settle(self) -> None:
        """Wait until nothing of what was done so far goes on in the background."""
        await trio.sleep(_SETTLED_S)
