"""Copies of topics in the journal: a TAKEOVER voids what was there before, and nothing else voids the copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

import pytest
import trio
from trio.testing import MockClock

from danube.log import Entry, EntryType, Journal
from danube.log.format import TAKEOVER_ENTRY
from danube.model import Durability, Limits
from danube.model.batch import check_part, encode_part, write_stamp
from danube.model.errors import DanubeError
from danube.model.ids import Offset, OwnerEpoch, TopicId
from danube.testing.disk import SimulatedDisk

FILE_SIZE = 24 * 1024
LIMITS = Limits(
    max_batch_bytes=8 * 1024,
    journal_max_bytes=16 * FILE_SIZE,
    journal_reserve_bytes=2 * FILE_SIZE,
    cache_bytes=16 * 1024,
)
PINNED, MOVING, FILLER = TopicId(1), TopicId(2), TopicId(3)


class Life:
    """One life of a journal whose topics are as simple as possible."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._done: dict[Entry, trio.Event] = {}
        journal.on_commit = self._settled
        self._filled = 0

    def _settled(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        assert error is None
        for entry in entries:
            self._done.pop(entry).set()

    async def write(self, entry: Entry) -> None:
        done = self._done[entry] = trio.Event()
        self.journal.submit(entry)
        await done.wait()

    async def batch(
        self, topic_id: TopicId, offset: int, size: int = 100, durability: Durability = Durability.DISK
    ) -> None:
        part = encode_part([bytes(size)], producer_id=1, producer_epoch=1, base_sequence=offset, publish_time_us=1)
        end = Offset(offset + check_part(part).record_count)
        stamp = write_stamp(len(part), topic_id, Offset(offset), 1, OwnerEpoch(1))
        await self.write(Entry(EntryType.BATCH, topic_id, durability, (stamp, part), end_offset=end))

    async def take_over(self, move: int, first: int, durability: Durability = Durability.DISK) -> None:
        payload = TAKEOVER_ENTRY.pack(move, first, 2)
        await self.write(Entry(EntryType.TAKEOVER, MOVING, durability, (payload,)))

    async def fill(self, files: int) -> None:
        """Write so many files full, and release what is in them."""
        for _ in range(files * 6):
            await self.batch(FILLER, self._filled, 4000)
            self._filled += 1
            self.journal.release(FILLER, Offset(self._filled))
            await trio.sleep(0.01)


@pytest.mark.parametrize("is_released", [True, False])
async def test_what_returns_is_voided_by_nothing_that_was_there_before(
    autojump_clock: MockClock, *, is_released: bool
) -> None:
    """A topic moves away, and returns, while an older file is needed: its tombstone may not get behind its copy."""
    disk = SimulatedDisk(Random(1))

    def snapshot(topic_id: TopicId) -> bytes | None:
        return b"state"

    async with Journal.open(disk, LIMITS, file_size=FILE_SIZE, snapshot=snapshot) as journal:
        life = Life(journal)
        await life.batch(PINNED, 0)
        for offset in range(5):
            await life.batch(MOVING, offset)
        await life.fill(1)
        await journal.bury([MOVING])
        assert journal.is_buried(MOVING)
        await life.fill(1)
        await life.take_over(7, 8)
        assert not journal.is_buried(MOVING)
        for offset in range(8, 11):
            await life.batch(MOVING, offset)
        await life.fill(1)
        for offset in range(11, 14):
            await life.batch(MOVING, offset)
        journal.release(MOVING, Offset(11))  # from now on the file with the tombstone is not needed for batches
        await life.fill(4)
        if is_released:
            journal.release(PINNED, Offset(1))
            await life.fill(4)
            assert journal.usage().files <= 4, "with the older file the tombstone goes, too"
    async with Journal.open(disk, LIMITS, file_size=FILE_SIZE, snapshot=snapshot) as journal:
        assert journal.recovered is not None
        found = journal.recovered.topics[MOVING]
        assert found.next_offset == 14
        assert journal.stored_bytes(MOVING)
        assert found.first_offset <= 11
        assert (PINNED in journal.recovered.topics) is not is_released


@pytest.mark.parametrize("is_queued", [True, False])
async def test_what_returns_without_a_sync_outlives_a_tombstone_under_way(
    autojump_clock: MockClock, *, is_queued: bool
) -> None:
    """The file with the tombstone is recycled, and the tombstone is in the lane that syncs while the topic returns."""
    disk = SimulatedDisk(Random(1))
    returned = trio.Event()

    def snapshot(topic_id: TopicId) -> bytes | None:
        return b"state"

    async with Journal.open(disk, LIMITS, file_size=FILE_SIZE, snapshot=snapshot) as journal, trio.open_nursery() as n:
        life = Life(journal)

        async def come_back() -> None:
            disk.write_delay_s = 0.0
            await life.take_over(7, 8, Durability.OS)
            for offset in range(8, 11):
                await life.batch(MOVING, offset, durability=Durability.OS)
            disk.write_delay_s, disk.sync_delay_s = 0.0002, 0.002
            returned.set()

        async def relocate(topic_ids: Collection[TopicId], tombstones: Mapping[TopicId, int]) -> None:
            if MOVING in tombstones and not returned.is_set():
                disk.sync_delay_s = 1.0
                if is_queued:  # behind this one
                    n.start_soon(life.batch, PINNED, 1)
                    await trio.sleep(0.0001)
                n.start_soon(come_back)
            await write_snapshots(topic_ids, tombstones)

        write_snapshots = journal.write_snapshots
        journal.write_snapshots = relocate  # type: ignore[method-assign]
        await life.batch(PINNED, 0)
        for offset in range(5):
            await life.batch(MOVING, offset)
        await life.fill(1)
        await journal.bury([MOVING])
        await life.fill(4)
        await returned.wait()
        assert not journal.is_buried(MOVING)
        assert journal.stored_bytes(MOVING) > 300
        await life.fill(4)
    async with Journal.open(disk, LIMITS, file_size=FILE_SIZE, snapshot=snapshot) as journal:
        assert journal.recovered is not None
        found = journal.recovered.topics[MOVING]
        assert (found.first_offset, found.next_offset) == (8, 11)
        assert journal.stored_bytes(MOVING) > 300


async def test_a_second_copy_takes_the_place_of_the_first(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    async with Journal.open(disk, LIMITS, file_size=FILE_SIZE) as journal:
        life = Life(journal)
        await life.take_over(7, 0)
        for offset in range(5):
            await life.batch(MOVING, offset)
        await life.take_over(8, 2)
        for offset in range(2, 4):
            await life.batch(MOVING, offset)
    async with Journal.open(disk, LIMITS, file_size=FILE_SIZE) as journal:
        assert journal.recovered is not None
        found = journal.recovered.topics[MOVING]
        assert (found.first_offset, found.next_offset) == (2, 4)
