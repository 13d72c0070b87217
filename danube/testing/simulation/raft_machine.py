"""The metadata of a simulated machine: its broker's member of the Raft group, and the disk and table that outlive it.

The member is the real one (:mod:`danube.metadata.raft`), with a disk and a table in memory. It talks to the others over
the links between the brokers, so over the simulated network. What its callers see is recorded, and so is what a watch
on it tells, through all its lives (:class:`~danube.testing.metadata_history.MetadataHistory`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import trio

from danube.broker import BrokerConfig
from danube.log import Disk
from danube.metadata import Condition, Delete, Group, KeyValue, LeaseId, MetadataStore, Put, TransactionResult
from danube.metadata.raft import NodeOptions, RaftStore
from danube.model.errors import ClosedError, UnavailableError
from danube.model.limits import KIB
from danube.testing.clock import sleep
from danube.testing.disk import SimulatedDisk
from danube.testing.metadata_history import MetadataHistory
from danube.testing.simulated_table import SimulatedTable, inline

__all__ = ["ROOMY", "TIGHT", "RaftMachine"]

ROOMY: Final = NodeOptions(file_bytes=512 * KIB)
"""Members that never cut their log in a world."""
TIGHT: Final = NodeOptions(
    file_bytes=256 * KIB,
    piece_bytes=2 * KIB,
    cut_entries=10,
    cut_bytes=16 * KIB,
    kept_entries=2,
    most_kept_entries=5,
    most_kept_bytes=32 * KIB,
    compare_s=5.0,
)
"""Members that cut their log all the time, so that one that was away is sent a copy of the table."""
_AWAY_S: Final = 0.1


class RaftMachine:
    """The part of a machine that keeps metadata.

    Args:
        name: of the machine.
        random: the only source of randomness.
        history: gets what callers and watches see.
        options: of the member.
    """

    def __init__(self, name: str, random: Random, history: MetadataHistory, options: NodeOptions) -> None:
        self.name = name
        self.store: RaftStore | None = None
        """The member, while its process lives."""
        self._random = random
        self._history = history
        self._options = options
        self.disk: SimulatedDisk
        self.table: SimulatedTable
        self.wipe()

    def wipe(self) -> None:
        """Replace the disk by an empty one. Only while no process runs."""
        assert self.store is None
        self.disk = SimulatedDisk(Random(self._random.getrandbits(64)))
        self.table = SimulatedTable(Random(self._random.getrandbits(64)))

    def crash(self, *, power_loss: bool) -> None:
        """Take the disk away from the process, as it is found afterwards; the process is to be cancelled."""
        self.store = None
        self.disk = self.disk.crash(power_loss=power_loss)
        self.table = self.table.crash(power_loss=power_loss)

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        store = self.store
        return store is not None and store.node.failure is None and store.node.raft.is_leader

    @property
    def is_new(self) -> bool:
        """Whether the machine has no metadata."""
        return not self.disk.names()

    @asynccontextmanager
    async def open(
        self,
        config: BrokerConfig,
        group: Group,
        wrap: Callable[[SimulatedDisk], Disk],
        is_over: Callable[[], bool],
    ) -> AsyncIterator[MetadataStore]:
        """Open the member in a life.

        Args:
            config: of the broker.
            group: its place.
            wrap: returns the disk as the life sees it.
            is_over: tells whether its process is dead.
        """
        assert group.links is not None
        self.disk.close_all()
        store = _RecordedStore(
            wrap(self.disk),
            self.table,
            member=group.member,
            first_conf=group.first_conf,
            links=group.links,
            limits=config.limits,
            random=Random(self._random.getrandbits(64)),
            work=inline,
            options=self._options,
        )
        store.history, store.is_over = self._history, is_over
        group.links.connect(store.node)
        try:
            async with store:
                self.store = store
                yield store
        finally:
            if self.store is store:
                self.store = None

    async def follow(self) -> None:
        """Task: watch everything on this member, through all its lives."""
        history = self._history
        while True:
            store = self.store
            if store is None or store.node.failure is not None:
                await sleep(_AWAY_S)
                continue
            try:
                async with store.watch("/", history.position[self.name] + 1) as watch:
                    async for batch in watch:
                        if self.store is store:  # else its process has died meanwhile
                            history.told(self.name, batch, trio.current_time())
            except (ClosedError, UnavailableError):
                await sleep(_AWAY_S)


class _RecordedStore(RaftStore):
    """A member that records what its callers see, as long as their process lives."""

    history: MetadataHistory
    is_over: Callable[[], bool]

    async def get(self, key: str) -> KeyValue | None:
        start = trio.current_time()
        found = await super().get(key)
        if not self.is_over():
            self.history.read(start, trio.current_time(), key, found)
        return found

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        start = trio.current_time()
        items, revision = await super().list(prefix)
        if not self.is_over():
            self.history.listed(start, trio.current_time(), prefix, items, revision)
        return items, revision

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        start = trio.current_time()
        result = await super().transact(conditions, operations)
        if not self.is_over() and (any(result.replaced) or any(isinstance(each, Put) for each in operations)):
            self.history.changed(start, trio.current_time(), conditions, operations, result.revision)
        return result

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        start = trio.current_time()
        lease = await super().grant_lease(ttl_s)
        self.history.kept(lease, ttl_s, start, trio.current_time())
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        start = trio.current_time()
        await super().keep_alive(lease)
        if not self.is_over() and (ttl_s := self.history.ttl(lease)):
            self.history.kept(lease, ttl_s, start, trio.current_time())

    async def revoke(self, lease: LeaseId) -> int | None:
        self.history.revoking(lease)
        return await super().revoke(lease)
