"""A broker in a simulated world: the machine that outlives it, and its successive runs (*lives*).

The machine has the disk, the metadata and a host on the network. A *life* is one run of the real
:class:`~danube.broker.Broker` on them. A life accesses all of them through handles that check whether it is
over: actions of a dead broker in its ``finally`` blocks have no effect.

A crash marks the life as over, removes disk and network, and only then cancels its tasks.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Collection, Container, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import deepcopy
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

import danube.compat
from danube.broker import Broker, BrokerConfig, FaceMaker, Seams
from danube.broker.runtime.config import StorageConfig
from danube.log._files import journal_name
from danube.metadata import (
    Capabilities,
    Condition,
    Delete,
    Group,
    KeyValue,
    LeaseId,
    MemoryStore,
    MetadataStore,
    Put,
    TransactionResult,
    Watch,
)
from danube.metadata._machine import StoreMachine
from danube.metadata._memory_table import MemoryTable
from danube.model.errors import DanubeError, StorageUnavailableError, UnavailableError
from danube.model.limits import Limits
from danube.storage import MemoryBackend, MemorySpace, parse_url
from danube.testing.disk import SimulatedDisk
from danube.testing.metadata import FaultyMetadataStore
from danube.testing.simulation._scheduler import MACHINE, Pauses
from danube.testing.simulation.network import Network
from danube.testing.simulation.raft_machine import RaftMachine
from danube.testing.simulation.trace import Trace
from danube.testing.storage_faults import FaultyStorage

__all__ = ["BrokerNode", "Life", "SharedMetadata", "danube_error", "shown_error"]

T = TypeVar("T")

PORT = 6650


class Life:
    """One run of a broker, from its start to its end or death."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.over = False
        self.broker: Broker
        self.scope = trio.CancelScope()
        self.ended = trio.Event()


class _KeptStore(MemoryStore):
    """A life's handle on metadata that outlive it: answered changes are durable, and a dead broker changes nothing."""

    def __init__(self, table: MemoryTable, limits: Limits, life: Life) -> None:
        super().__init__(limits=limits)
        self._state = StoreMachine(table, limits)
        self._table = table
        self._life = life

    @property
    def capabilities(self) -> Capabilities:
        """As seen by a life: everything is still there in the next one."""
        return Capabilities(durable=True, linearizable=True, watch_replay=True, leases=True)

    async def _call(self, work: Callable[[StoreMachine], T]) -> T:
        await trio.lowlevel.checkpoint()
        self._check_open()
        if self._life.over:
            raise UnavailableError("the process is dead")
        result = work(self._state)
        self._publish()
        return result

    async def _open(self, nursery: trio.Nursery) -> list[tuple[LeaseId, float]]:
        await trio.lowlevel.checkpoint()
        self._revision = self._table.revision
        return self._table.leases()


class SharedMetadata(MemoryStore):
    """Metadata that several brokers share, and that outlive all of them."""

    @property
    def capabilities(self) -> Capabilities:
        """As seen by a life: everything is still there in the next one."""
        return Capabilities(durable=True, linearizable=True, watch_replay=True, leases=True)


class _Borrowed(MetadataStore):
    """A life's handle on shared metadata: a dead broker changes nothing, and closing it leaves the others theirs."""

    def __init__(self, store: MetadataStore, life: Life) -> None:
        self._store = store
        self._life = life

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def get(self, key: str) -> KeyValue | None:
        self._check()
        return await self._store.get(key)

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        self._check()
        return await self._store.list(prefix)

    async def put(
        self, key: str, value: bytes, *, expected_revision: int | None = None, lease: LeaseId | None = None
    ) -> int:
        self._check()
        return await self._store.put(key, value, expected_revision=expected_revision, lease=lease)

    async def delete(self, key: str, *, expected_revision: int | None = None) -> int | None:
        self._check()
        return await self._store.delete(key, expected_revision=expected_revision)

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        self._check()
        return await self._store.transact(conditions, operations)

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        self._check()
        return await self._store.grant_lease(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> None:
        self._check()
        await self._store.keep_alive(lease)

    async def revoke(self, lease: LeaseId) -> int | None:
        self._check()
        return await self._store.revoke(lease)

    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        return self._store.watch(prefix, start_revision)

    def _check(self) -> None:
        if self._life.over:
            raise UnavailableError("the process is dead")


class _LifeStorage(FaultyStorage):
    """A life's handle on a bucket. A put or delete in flight at the end of the life may still arrive."""

    def __init__(self, backend: MemoryBackend, random: Random, life: Life, touched: Callable[[str], None]) -> None:
        super().__init__(backend, random)
        self._life = life
        self._touched = touched

    async def _before(self, method: str, key: str) -> None:
        self._check()
        self._touched(f"storage-{method}")
        await super()._before(method, key)
        if self._life.over and (method not in ("put", "delete") or self._random.random() < 0.5):
            self._check()

    async def _after(self, method: str, key: str) -> None:
        await super()._after(method, key)
        self._check()

    def _check(self) -> None:
        if self._life.over:
            raise StorageUnavailableError("the process is dead")


class _LifeDisk:
    """A life's handle on the disk, which reports its writes for ambushes. A dead disk fails by itself."""

    def __init__(self, disk: SimulatedDisk, touched: Callable[[str], None], name: str = "disk") -> None:
        self._disk = disk
        self._touch = touched
        self._name = name
        self.list = disk.list
        self.remove = disk.remove
        self.read = disk.read
        self.free_bytes = disk.free_bytes
        self.sync_directory = disk.sync_directory

    async def create(self, name: str, size: int) -> None:
        """See :meth:`danube.log.Disk.create`."""
        self._touch(f"{self._name}-create")
        await self._disk.create(name, size)

    async def rename(self, old: str, new: str) -> None:
        """See :meth:`danube.log.Disk.rename`."""
        self._touch(f"{self._name}-rename")
        await self._disk.rename(old, new)
        self._touch(f"{self._name}-renamed")

    async def write(self, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        """See :meth:`danube.log.Disk.write`."""
        self._touch(f"{self._name}-write")
        await self._disk.write(name, position, buffers, sync=sync)
        self._touch(f"{self._name}-written")


class BrokerNode:
    """A machine with a broker.

    Args:
        name: of the host.
        config: of the broker; its storages name spaces of ``buckets``.
        network: where it listens.
        buckets: the storages of the world, by URL.
        random: the only source of randomness.
        wall_clock_us: the world's clock; the machine's own may be wrong by ``clock_error_us``.
        pauses: stops its tasks.
        trace: gets starts and ends.
        started: called with each new life.
        recovered: called when a life is ready.
        failed: called with an unexpected end: (node, life, error).
        metadata: those of its cluster; None: it has its own.
        raft: its member of the group that keeps the metadata of its cluster; None: it has none.
    """

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        *,
        network: Network,
        buckets: dict[str, MemorySpace],
        random: Random,
        wall_clock_us: Callable[[], int],
        pauses: Pauses,
        trace: Trace,
        started: Callable[[BrokerNode], None],
        failed: Callable[[BrokerNode, Life, BaseException], None],
        recovered: Callable[[BrokerNode], None] = lambda node: None,
        metadata: MetadataStore | None = None,
        raft: RaftMachine | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.disk: SimulatedDisk = SimulatedDisk(Random(random.getrandbits(64)))
        # Separate randomness: worlds without staging stay as they were.
        self.stage_disk: SimulatedDisk = SimulatedDisk(Random(f"stages of {name}"), growing=True)
        """The disk of staged data; it crashes with the other one."""
        self.faces: Sequence[FaceMaker] = (danube.compat.face,)
        """Of its brokers; a change applies to the next life."""
        self.life: Life | None = None
        """The current life, if there is one."""
        self.lives = 0
        self.ready = trio.Event()
        """Set while a broker listens; replaced at its end."""
        self.storage_faults: dict[str, Any] = {}
        """Present attributes of :class:`FaultyStorage`; change them with :meth:`set_storage_faults`."""
        self.metadata_faults: dict[str, float] = {}
        """Present attributes of :class:`FaultyMetadataStore`; see :meth:`set_metadata_faults`."""
        self.clock_error_us = 0
        self.retired = False
        """Whether it is not restarted: another machine has taken its place."""
        self.disk_errors = 0
        """Number of injected sync failures: a life may end because of them."""
        self.on_touch: Callable[[str], None] = lambda what: None
        """Called before each access of the broker to disk and storages, where crashes hurt most."""
        self.lost = ""
        """Data lost while the broker was dead: the next life must refuse to start with an error."""
        self._restore: Callable[[], None] = lambda: None
        self._before: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
        self._changed = False
        self._network = network
        self._buckets = buckets
        self.shares_storages = False
        """Whether its broker is told that other brokers reach its storages, too."""
        self._random = random
        self._wall_clock_us = wall_clock_us
        self._trace = trace
        self._started = started
        self._recovered = recovered
        self._failed = failed
        self._shared = metadata
        self.raft = raft
        self._metadata = MemoryTable()
        self._metadata_store: FaultyMetadataStore | None = None
        self._storages: list[_LifeStorage] = []
        self._pauses = pauses

    # --- Lives

    async def run(self, *, restart_delay_s: Callable[[], float]) -> None:
        """Run one life after the other, until retired: a supervisor restarts the broker after any end."""
        MACHINE.set(self.name)
        while not self.retired:
            await self.live()
            await trio.sleep(restart_delay_s())

    async def live(self) -> None:
        """Run one life, from the start of a broker to its end or death."""
        self.lives += 1
        self.life = life = Life(self.lives)
        life.broker = Broker(self.config, self._seams(life), self.faces)
        self._network.power_on(self.name)
        self._trace("start", self.name, life.number)
        self._started(self)
        try:
            with life.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(life.broker.run)
                    if self.lost:
                        raise AssertionError(f"the broker is ready, although it has lost {self.lost}")
                    self._trace("ready", self.name, life.number)
                    self._recovered(self)
                    self.ready.set()
        except Exception as error:  # noqa: BLE001 - whatever a broker can end with is judged by the world
            if not life.over:
                self._network.crash(self.name, silently=False)
                self._crash_disks(power_loss=False)
                life.over = True
                self._trace("failed", self.name, life.number, shown_error(error))
                self._failed(self, life, error)
        finally:
            life.over = True
            self.life = None
            self.ready = trio.Event()
            self._note_faults()
            life.ended.set()
            self._trace("end", self.name, life.number)

    def crash(self, *, power_loss: bool) -> None:
        """Kill the broker, or cut its power, at this moment. Does nothing while no broker runs."""
        life = self.life
        if life is None or life.over:
            return
        self._trace("power-loss" if power_loss else "kill", self.name, life.number)
        life.over = True
        self._crash_disks(power_loss=power_loss)
        self._network.crash(self.name, silently=power_loss)
        self._pauses.resume(self.name)
        life.scope.cancel()

    def _crash_disks(self, *, power_loss: bool) -> None:
        if self.lost:
            self._changed = self._changed or self.disk.writing or self._picture() != self._before
        self.disk = self.disk.crash(power_loss=power_loss)
        self.stage_disk = self.stage_disk.crash(power_loss=power_loss)
        if self.raft is not None:
            self.raft.crash(power_loss=power_loss)
        if self.lost and power_loss:
            self._before = self._picture()  # without what lives before the loss had not synced

    # --- Losses

    def wipe(self) -> None:
        """Cut the power, and replace all disks by empty ones: what starts again is another broker."""
        self.crash(power_loss=True)
        self.disk = SimulatedDisk(Random(self._random.getrandbits(64)))
        self.stage_disk = SimulatedDisk(Random(self._random.getrandbits(64)), growing=True)
        if self.raft is not None:
            self.raft.wipe()

    def copy_metadata(self) -> MemoryTable:
        """Return a copy of the present metadata."""
        return deepcopy(self._metadata)

    def lose_metadata(self, older: MemoryTable | None) -> bool:
        """Kill the broker, and restore older metadata (None: empty); return whether anything was lost.

        The lost revision must have been recorded on the journal's disk: the last change may not be recorded yet.
        """
        life = self.life
        if life is None or life.over or not self.ready.is_set():
            return False
        older = older if older is not None else MemoryTable()
        if older.revision >= life.broker.runtime.journal.told_revision:
            return False
        self.crash(power_loss=False)
        whole = self._metadata

        def restore() -> None:
            self._metadata = whole

        self._metadata = older
        self._lose(f"metadata behind revision {older.revision} of {whole.revision}", restore)
        return True

    def lose_journal(self) -> bool:
        """Kill the broker, and remove the journal file being written; return whether anything was lost."""
        life = self.life
        if life is None or life.over or not self.ready.is_set():
            return False
        name = journal_name(life.broker.runtime.journal.proven()[0])
        if life.broker.runtime.journal.proven()[0] != life.broker._bond.told_file:
            return False
        self.crash(power_loss=False)
        content = self.disk.lose(name)
        self._lose(name, lambda: self.disk.put_back(name, content))
        return True

    def _lose(self, what: str, restore: Callable[[], None]) -> None:
        self.lost = what
        self._restore = restore
        self._before = self._picture()
        self._changed = False
        self._trace.fault("lost", self.name, what)

    def _picture(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        # Without what has a lease: the former life's session ends by itself, if the next one is paused in its start.
        lasting = {item.key: item.value for item in self._metadata.scan("/") if not item.lease}
        return lasting, {name: bytes(self.disk.content(name)) for name in self.disk.names()}

    def mend(self) -> str:
        """Restore lost data, after the broker has refused to start; return what the broker has changed."""
        untouched = not self._changed and self._picture() == self._before
        changed = "" if untouched else f"something was changed although {self.lost} was lost"
        self.lost = ""
        self._restore()
        self._trace("mended", self.name)
        return changed

    def has_unsettled(self, topics: Container[str]) -> bool:
        """Whether the broker may have accepted messages of these topics (partitions) that are not in their logs yet."""
        if self.life is None or self.life.over or not self.ready.is_set():
            return True
        return any(
            not topic.intake.is_settled or (topic.composer is not None and not topic.composer.is_empty)
            for topic in self.life.broker.directory.topics()
            if topic.name in topics
        )

    def pause(self) -> None:
        """Pause the process: its connections stay, its timeouts continue."""
        self._pauses.pause(self.name)

    def resume(self) -> None:
        """Resume the process."""
        self._pauses.resume(self.name)

    def wall_clock_us(self) -> int:
        """Microseconds since the epoch, by this machine's clock."""
        return self._wall_clock_us() + self.clock_error_us

    def drain(self) -> None:
        """Make the broker shut down gracefully, as SIGTERM does."""
        if self.life is not None and not self.life.over:
            self._trace("drain", self.name, self.life.number)
            self.life.broker.drain()

    def set_storage_faults(self, **faults: Any) -> None:
        """Set attributes of :class:`FaultyStorage`, for this life and the following ones."""
        self.storage_faults |= faults
        for storage in self._storages:
            for name, value in faults.items():
                setattr(storage, name, value)

    def set_metadata_faults(self, **faults: float) -> None:
        """Set attributes of :class:`FaultyMetadataStore`, for this life and the following ones."""
        self.metadata_faults |= faults
        if self._metadata_store is not None:
            for name, value in faults.items():
                setattr(self._metadata_store, name, value)

    def _note_faults(self) -> None:
        """Add the faults of a life's storages to the world's totals."""
        for storage in self._storages:
            self._trace.faults.update(
                {f"storage-call-{fault}": count for fault, count in storage.faults.items() if count}
            )
        self._storages.clear()
        if self._metadata_store is not None:
            self._trace.faults.update({f"metadata-call-{fault}": n for fault, n in self._metadata_store.faults.items()})
            self._metadata_store = None

    # --- What a life gets

    def _seams(self, life: Life) -> Seams:
        @asynccontextmanager
        async def open_disk(config: BrokerConfig) -> AsyncIterator[_LifeDisk]:
            self.disk.close_all()  # those that the former life had open
            yield _LifeDisk(self.disk, self._touch)

        @asynccontextmanager
        async def open_stage_disk(config: BrokerConfig) -> AsyncIterator[_LifeDisk]:
            yield _LifeDisk(self.stage_disk, self._touch)

        def open_metadata(config: BrokerConfig, group: Group | None) -> AbstractAsyncContextManager[MetadataStore]:
            if self.raft is not None:
                assert group is not None
                return self.raft.open(
                    config, group, lambda disk: _LifeDisk(disk, self._touch, "raft"), lambda: life.over
                )
            self._metadata_store = FaultyMetadataStore(
                _Borrowed(self._shared, life) if self._shared else _KeptStore(self._metadata, config.limits, life),
                Random(self._random.getrandbits(64)),
                **self.metadata_faults,
            )
            return self._metadata_store

        @asynccontextmanager
        async def open_backend(
            config: BrokerConfig, storage: StorageConfig, wall_clock_us: Callable[[], int]
        ) -> AsyncIterator[_LifeStorage]:
            space = self._buckets.setdefault(storage.url, MemorySpace())
            backend = MemoryBackend(
                space,
                url=storage.url,
                durable=True,
                shared=self.shares_storages or parse_url(storage.url).options.get("shared") == "true",
                wall_clock_us=self._wall_clock_us,
            )
            handle = _LifeStorage(backend, Random(self._random.getrandbits(64)), life, self._touch)
            for name, value in self.storage_faults.items():
                setattr(handle, name, value)
            self._storages.append(handle)
            yield handle

        async def listen(addresses: Sequence[str]) -> list[trio.abc.Listener[Any]]:
            await trio.lowlevel.checkpoint()
            return [] if life.over else list(self._network.listen(self.name, addresses))

        async def holds_metadata(config: BrokerConfig) -> bool:
            await trio.lowlevel.checkpoint()
            return self.raft is not None and not self.raft.is_new

        async def connect(host: str, port: int) -> Any:
            if life.over:
                raise ConnectionAbortedError(errno.ECONNABORTED, "the process is dead")
            return await self._network.connect(self.name, host, port)

        async def own_addresses(host: str) -> Collection[str]:
            await trio.lowlevel.checkpoint()
            return [host] if host == self.name else []

        async def in_thread(work: Callable[[], T], /) -> T:
            await trio.lowlevel.checkpoint()
            return work()

        random = Random(self._random.getrandbits(64))
        return Seams(
            wall_clock_us=self.wall_clock_us,
            random=random,
            open_disk=open_disk,
            open_stage_disk=open_stage_disk,
            open_metadata=open_metadata,
            holds_metadata=holds_metadata,
            has_groups=self.raft is not None,
            open_backend=open_backend,
            listen=listen,
            connect=connect,
            own_addresses=own_addresses,
            read_secret=lambda path: b"the secret of simulated brokers",
            read_process=lambda: None,
            random_bytes=random.randbytes,
            in_thread=in_thread,
        )

    def _touch(self, what: str) -> None:
        self.on_touch(what)


def shown_error(error: BaseException) -> str:
    """Return an error, or the first of a group that says something, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".replace("\n", " ")


def danube_error(error: BaseException) -> DanubeError | None:
    """Return the first of our errors in an error or group; None if there is none."""
    if isinstance(error, DanubeError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = danube_error(inner)
            if found is not None:
                return found
    return None
