"""Many idle topics in a small journal: their snapshots neither fill it nor are written again at every roll."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import trio
from trio.testing import MockClock

from danube.log import BatchCache, Entry, EntryType, Journal, Location, TopicLog
from danube.model import BatchHeader, Durability, Limits, Stamp
from danube.model.batch import check_part, encode_part
from danube.model.errors import DanubeError
from danube.model.limits import KIB, MIB
from danube.testing.disk import SimulatedDisk

BUSY = 1
STATE_BYTES = 120


class Visitor:
    """What a recovery finds of each topic: the highest number, out of entries and snapshots."""

    def __init__(self) -> None:
        self.states: dict[int, int] = {}

    def batch(self, topic_id: int, stamp: Stamp, header: BatchHeader, location: Location) -> None:
        assert topic_id == BUSY

    def control(self, entry_type: int, topic_id: int, payload: bytes, durability: Durability) -> None:
        self._raise(topic_id, int(payload))

    def snapshot(self, topic_id: int, state: bytes) -> None:
        self._raise(topic_id, int(state[:20]))

    def forget(self, topic_id: int) -> None:
        raise AssertionError("nothing was deleted")

    def _raise(self, topic_id: int, number: int) -> None:
        self.states[topic_id] = max(self.states.get(topic_id, 0), number)


class Broker:
    """Its topics are numbers, which only rise."""

    def __init__(self, disk: SimulatedDisk, journal_bytes: int, file_size: int) -> None:
        self.states: dict[int, int] = {}
        self.written: list[int] = []
        self.log: TopicLog
        self.failed = False
        limits = Limits(
            max_batch_bytes=file_size // 4,
            journal_max_bytes=journal_bytes,
            journal_reserve_bytes=2 * file_size,
            journal_full_wait_s=5.0,
        )
        self.journal = Journal(disk, limits, file_size=file_size, on_commit=self.settled, snapshot=self.snapshot)

    def settled(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        self.failed = self.failed or error is not None
        for entry in entries:
            if entry.type is EntryType.BATCH and error is None:
                self.log.settled(entry)

    def snapshot(self, topic_id: int) -> bytes:
        self.written.append(topic_id)
        return (b"%020d" % self.states.get(topic_id, 0)).ljust(STATE_BYTES, b".")

    def open_log(self) -> None:
        recovered = self.journal.recovered
        assert recovered is not None
        found = recovered.topics.get(BUSY)
        start = found.first_offset if found is not None else 0
        self.log = TopicLog(BUSY, Durability.DISK, self.journal, BatchCache(0), recovered=found, start_offset=start)

    async def move(self, topic_ids: Sequence[int]) -> None:
        """Let the state of topics change."""
        for topic_id in topic_ids:
            self.states[topic_id] = self.states.get(topic_id, 0) + 1
            payload = b"%d" % self.states[topic_id]
            self.journal.submit(Entry(EntryType.CURSOR, topic_id, Durability.DISK, (payload,)))
        await trio.sleep(0.01)

    async def traffic(self, size: int, batch: int) -> None:
        """Publish to one topic, and release what was published a little later, as the sealer does."""
        part = encode_part([bytes(batch)], producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1)
        header = check_part(part)
        for _ in range(size // len(part)):
            await self.journal.admit(len(part))
            self.log.append(part, header, 1)
            await trio.sleep(0.001)
            if self.log.end_offset > 3:
                self.log.expire(self.log.end_offset - 3)


@pytest.mark.parametrize(
    ("topics", "journal_bytes", "file_size"),
    [
        (2_000, 64 * MIB // 50, 64 * KIB),
        pytest.param(100_000, 64 * MIB, 4 * MIB, marks=pytest.mark.extended),
    ],
)
async def test_idle_topics_neither_fill_the_journal_nor_are_written_again_and_again(
    autojump_clock: MockClock, topics: int, journal_bytes: int, file_size: int
) -> None:
    disk = SimulatedDisk(Random(1))
    ids = range(100, 100 + topics)
    broker = Broker(disk, journal_bytes, file_size)
    await broker.journal.recover(Visitor())
    broker.open_log()
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.journal.run)
        for first in range(0, topics, 1000):
            await broker.move(ids[first : first + 1000])
        await broker.traffic(journal_bytes, file_size // 16)
        written = len(broker.written)
        # The journal is used once more from end to end, and again, by one topic; the others are idle.
        for _ in range(2):
            await broker.traffic(journal_bytes, file_size // 16)
            usage = broker.journal.usage()
            assert usage.used_bytes <= journal_bytes
        rolls = 2 * journal_bytes // file_size
        again = len(broker.written) - written
        assert again <= 2 * rolls + topics // 10, "the snapshots of idle topics stay where they are"
        assert written <= 2 * topics + 2 * rolls, "each was written once, or not at all, and a few again"
        assert usage.files * file_size < journal_bytes / 2
        # All wake up, which makes new snapshots necessary as well as the space for them.
        for first in range(0, topics, 1000):
            await broker.move(ids[first : first + 1000])
        await broker.traffic(journal_bytes, file_size // 16)
        assert broker.journal.usage().used_bytes <= journal_bytes
        nursery.cancel_scope.cancel()
    heir = disk.crash(power_loss=True)
    found = Visitor()
    await Broker(heir, journal_bytes, file_size).journal.recover(found)
    assert not broker.failed
    assert {topic_id: found.states.get(topic_id) for topic_id in ids} == dict.fromkeys(ids, 2)


async def test_topics_that_are_all_busy_cost_at_most_half_of_what_they_free(autojump_clock: MockClock) -> None:
    """Each file has entries of each topic: freeing one alone would write more than it frees."""
    disk = SimulatedDisk(Random(1))
    journal_bytes, file_size, topics = 2 * MIB, 64 * KIB, 600
    ids = range(100, 100 + topics)
    broker = Broker(disk, journal_bytes, file_size)
    await broker.journal.recover(Visitor())
    broker.open_log()
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.journal.run)
        rounds = 150
        for _ in range(rounds):
            await broker.move(ids)
            assert broker.journal.usage().used_bytes < journal_bytes / 2
        assert topics <= len(broker.written) < rounds * topics / 4
        nursery.cancel_scope.cancel()
    heir = disk.crash(power_loss=False)
    found = Visitor()
    await Broker(heir, journal_bytes, file_size).journal.recover(found)
    assert found.states == dict.fromkeys(ids, rounds)
