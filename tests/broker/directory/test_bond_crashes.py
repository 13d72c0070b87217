"""After any crash or power cut journal and metadata match, and an older copy of either is detected."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest
import trio
from trio.testing import MockClock

from danube.broker.directory.bond import Bond
from danube.log import Entry, EntryType, Journal
from danube.metadata import ObservedStore
from danube.metadata._memory_table import MemoryTable
from danube.model import DanubeError, Durability, Limits
from danube.model.errors import DataLossError
from danube.testing.disk import SimulatedDisk
from danube.testing.metadata import FaultyMetadataStore
from danube.testing.simulation.node import Life, _KeptStore

FILE_SIZE = 24 * 1024
LIMITS = Limits(
    max_batch_bytes=8 * 1024,
    journal_max_bytes=16 * FILE_SIZE,
    journal_reserve_bytes=2 * FILE_SIZE,
    journal_pending_bytes=32 * 1024,
    journal_commit_bytes=12 * 1024,
)


class World:
    """A journal and its metadata, which live through many crashes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.table = MemoryTable()
        self.copies: list[MemoryTable] = [copy.deepcopy(self.table)]
        """What the metadata were, now and then."""
        self.told = 0
        """The revision that the journal of the last life had on its disk."""
        self.rolls = 0

    async def live(self) -> None:
        """Start, compare, work, crash."""
        random, life = self.random, Life(1)
        journal = Journal(
            self.disk, LIMITS, file_size=FILE_SIZE, on_commit=self._committed, snapshot=lambda topic_id: b"state"
        )
        self.journal = journal
        kept = FaultyMetadataStore(
            _KeptStore(self.table, LIMITS, life),
            Random(random.getrandbits(32)),
            latency_s=random.choice((0.0, 0.002, 0.1)),
            lose_answer=random.choice((0.0, 0.1)),
        )
        async with kept, trio.open_nursery() as nursery:
            nursery.start_soon(self._crash, random.choice((0.001, 0.01, 0.1, 0.2)) * random.random(), life, nursery)
            try:
                store = self.store = ObservedStore(kept, journal.note_metadata)
                bond = await Bond.examine(journal, self.disk, store, random, "here", directory_identity="d1")
                await self._change(0)
                await journal.recover(identity=bond.identity, synced=bond.synced)
                await bond.begin()
                async with trio.open_nursery() as inner:
                    await inner.start(journal.run)
                    inner.start_soon(bond.run)
                    for worker in range(3):
                        inner.start_soon(self._work, journal, worker)
            except* DataLossError:
                raise
            except* (OSError, DanubeError):
                pass  # a lost answer at the start, or the crash
            nursery.cancel_scope.cancel()

    async def look(self, table: MemoryTable) -> None:
        """Compare the journal with other metadata."""
        journal = Journal(self.disk, LIMITS, file_size=FILE_SIZE)
        async with _KeptStore(table, LIMITS, Life(1)) as store:
            await Bond.examine(journal, self.disk, store, Random(1), "here", directory_identity="d1")

    async def _crash(self, delay_s: float, life: Life, nursery: trio.Nursery) -> None:
        await trio.sleep(delay_s)
        life.over = True
        self.told = max(self.told, self.journal.told_revision)
        self.disk = self.disk.crash(power_loss=self.random.random() < 0.6)
        nursery.cancel_scope.cancel()

    async def _work(self, journal: Journal, worker: int) -> None:
        while True:
            if self.random.random() < 0.3:
                await self._change(worker)
            for _ in range(self.random.randrange(1, 6)):
                durability = self.random.choice((Durability.DISK, Durability.OS))
                payload = bytes(self.random.choice((8, 500, 4000)))
                journal.submit(Entry(EntryType.CURSOR, 1, durability, (payload,)))
            await trio.sleep(self.random.random() * 0.01)

    async def _change(self, worker: int) -> None:
        if self.random.random() < 0.5:
            self.copies.append(copy.deepcopy(self.table))
        await self.store.put(f"/k/{worker}", bytes(8))

    def _committed(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        pass


def run(main: Callable[[], Awaitable[None]], seed: int) -> None:
    """Run in virtual time; the order of tasks follows the seed."""
    scheduler = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = True, Random(seed)
    try:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = before


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(each, marks=pytest.mark.extended) for each in range(4, 40))]
)
def test_no_crash_is_taken_for_a_loss_and_no_loss_for_a_crash(seed: int) -> None:
    world = World(seed)
    refused = 0
    for life in range(10):
        run(world.live, 100 * seed + life)
        run(lambda: world.look(world.table), seed)
        before = {name: world.disk.held(name) for name in world.disk.names()}
        for older in [each for each in world.copies if each.revision < world.told][-2:]:
            revision = older.revision
            with pytest.raises(DataLossError, match="Nothing was changed"):
                run(lambda older=older: world.look(older), seed)  # type: ignore[misc]
            assert {name: world.disk.held(name) for name in world.disk.names()} == before
            assert older.revision == revision
            refused += 1
    assert refused or seed >= 3  # not every seed has the chance


def test_every_single_operation_of_the_first_start_may_be_the_last() -> None:
    """Whatever comes to be first, the next start finds both new, or both there."""

    async def start(disk: SimulatedDisk, table: MemoryTable, stop: trio.CancelScope | None = None) -> bool:
        life = Life(1)
        with stop or trio.CancelScope():
            async with _KeptStore(table, LIMITS, life) as kept:
                journal = Journal(disk, LIMITS, file_size=FILE_SIZE)
                store = ObservedStore(kept, journal.note_metadata)
                bond = await Bond.examine(journal, disk, store, Random(1), "here", directory_identity="d1")
                await store.put("/namespaces/default", b"")
                await journal.recover(identity=bond.identity, synced=bond.synced)
                await bond.begin()
                return True
        return False

    async def main() -> None:
        finished = False
        steps = 0
        while not finished:
            disk, table, stop = SimulatedDisk(Random(steps)), MemoryTable(), trio.CancelScope()
            stop.deadline = trio.current_time() + steps * 0.0005
            finished = await start(disk, table, stop)
            for power_loss in (True, False):
                disk = disk.crash(power_loss=power_loss)
                assert await start(disk, table)
            steps += 1
        assert steps > 10

    trio.run(main, clock=MockClock(autojump_threshold=0))
