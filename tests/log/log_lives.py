"""A journal's life on a simulated disk, from a seed, and what the next life must find. Used by the crash tests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import trio
from trio.testing import MockClock

from danube.log import BatchCache, Entry, EntryType, Journal, Location, StoredBatch, TopicLog
from danube.model import BatchHeader, DanubeError, Durability, Limits, Stamp
from danube.model.batch import check_part, encode_part
from danube.testing.disk import SimulatedDisk

FILE_SIZE = 24 * 1024
STATE_BYTES = 7_000
"""Of a snapshot of a topic: it is cut into two parts."""
LIMITS = Limits(
    max_batch_bytes=8 * 1024,
    journal_max_bytes=16 * FILE_SIZE,
    journal_reserve_bytes=2 * FILE_SIZE,
    journal_pending_bytes=32 * 1024,
    journal_commit_bytes=12 * 1024,
    cache_bytes=16 * 1024,
    journal_full_wait_s=1.0,
)


def make_part(records: Sequence[bytes], sequence: int = 0, producer_id: int = 1) -> bytes:
    return encode_part(records, producer_id=producer_id, producer_epoch=1, base_sequence=sequence, publish_time_us=1)


class TopicModel:
    """What must be true of one topic."""

    def __init__(self, topic_id: int, durability: Durability) -> None:
        self.topic_id = topic_id
        self.durability = durability
        self.parts: list[tuple[int, int, bytes]] = []  # base, end, part: everything appended
        self.acked_end = 0
        self.released = 0
        self.cursor = 0  # last submitted
        self.cursor_acked = 0
        self.synced_end = 0  # whatever its durability
        self.cursor_synced = 0
        self.log: TopicLog

    def settled(self, entry: Entry, error: DanubeError | None) -> None:
        if error is not None:
            return
        if entry.type is EntryType.BATCH:
            self.log.settled(entry)
            batch = entry.batch
            assert isinstance(batch, StoredBatch)
            assert batch.base_offset == self.acked_end
            self.acked_end = batch.end_offset
        else:
            self.cursor_acked = int(entry.buffers[0])


class Replay:
    """The visitor: keeps what a broker would keep."""

    def __init__(self, topics: dict[int, TopicModel]) -> None:
        self.cursors = {topic.topic_id: 0 for topic in topics.values()}
        self.snapshots = 0
        self.batches = 0

    def batch(self, topic_id: int, stamp: Stamp, header: BatchHeader, location: Location) -> None:
        assert stamp.topic_id == topic_id
        self.batches += 1

    def control(self, entry_type: int, topic_id: int, payload: bytes, durability: Durability) -> None:
        assert entry_type == EntryType.CURSOR
        self.cursors[topic_id] = max(self.cursors[topic_id], int(payload))  # a snapshot may contain later ones

    def snapshot(self, topic_id: int, state: bytes) -> None:
        self.snapshots += 1
        assert len(state) == STATE_BYTES
        self.cursors[topic_id] = max(self.cursors[topic_id], int(state[:8]))

    def forget(self, topic_id: int) -> None:
        raise AssertionError("no topic was deleted")


class World:
    """Everything that outlives a broker: the disk, and the truth."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random)
        self.topics: dict[int, TopicModel] = {}
        for topic_id in range(1, 5):
            durability = Durability.OS if topic_id % 2 else Durability.DISK
            self.topics[topic_id] = TopicModel(topic_id, durability)
        self.power_loss = False
        self.lives = 0
        self.snapshots = 0
        """How many were asked for."""
        self.found_snapshots = 0

    def live(self) -> None:
        """One life: recover, check, work, crash."""
        # Trio orders tasks by chance on purpose; these two private names (Hypothesis uses them) make it repeatable.
        scheduler = trio._core._run
        before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = True, Random(self.seed * 1000 + self.lives)
        try:
            trio.run(self._live, clock=MockClock(autojump_threshold=0))
        finally:
            scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = before
        self.lives += 1

    async def _live(self) -> None:
        random = self.random
        journal = Journal(self.disk, LIMITS, file_size=FILE_SIZE, on_commit=self._on_commit, snapshot=self.snapshot_of)
        replay = Replay(self.topics)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._crash_at, random.choice((0.0005, 0.01, 0.1, 1.0)) * random.random(), nursery)
            try:
                await journal.recover(replay)
                await self._check(journal, replay)
                self.power_loss = False
                async with trio.open_nursery() as inner:
                    await inner.start(journal.run)
                    for topic in self.topics.values():
                        inner.start_soon(self._work, journal, topic)
            except* (OSError, DanubeError):
                assert self.crashed, "only the crash may end this life"
        assert self.crashed

    async def _crash_at(self, delay_s: float, nursery: trio.Nursery) -> None:
        self.crashed = False
        await trio.sleep(delay_s)
        self.crashed = True
        power_loss = self.random.random() < 0.5
        self.power_loss = self.power_loss or power_loss  # until a recovery has come to its end
        self.disk = self.disk.crash(power_loss=power_loss)
        nursery.cancel_scope.cancel()

    def _on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        assert error is None or self.crashed, error
        if self.crashed:
            return
        for entry in entries:
            self.topics[entry.topic_id].settled(entry, error)

    def snapshot_of(self, topic_id: int) -> bytes:
        self.snapshots += 1
        # As a broker: what was submitted counts, too. Larger than a part, so that crashes cut it.
        return (b"%08d" % self.topics[topic_id].cursor).ljust(STATE_BYTES, b"s")

    async def _work(self, journal: Journal, topic: TopicModel) -> None:
        random = self.random
        log = topic.log
        while True:
            for _ in range(random.randrange(1, 6)):
                base = log.next_offset
                count = random.randrange(1, 5)
                part = make_part([random.randbytes(random.choice((5, 80, 1500))) for _ in range(count)])
                await journal.admit(len(part))
                log.append(part, check_part(part), 1000 * base, topic)
                topic.parts.append((base, base + count, part))
            if random.random() < 0.3:
                topic.cursor += 1
                payload = b"%d" % topic.cursor
                journal.submit(Entry(EntryType.CURSOR, topic.topic_id, topic.durability, (payload,), topic))
            keep = random.choice((0, 0, 40, 10_000))
            if log.end_offset - keep > topic.released and random.random() < 0.3:
                topic.released = log.end_offset - keep
                log.expire(topic.released)
            if random.random() < 0.2:
                await self._read_some(topic)
            if random.random() < 0.1:
                end, cursor = topic.acked_end, topic.cursor_acked
                await journal.sync(journal.sequence)
                topic.synced_end, topic.cursor_synced = end, cursor
            await trio.sleep(random.choice((0, 0.0005, 0.004)) * random.random())

    async def _read_some(self, topic: TopicModel) -> None:
        log = topic.log
        if log.start_offset < log.end_offset:
            offset = self.random.randrange(log.start_offset, log.end_offset)
            truth = {base: (end, part) for base, end, part in topic.parts}
            found = await log.read(offset, 4000)
            assert found
            for batch in found:
                assert truth[batch.base_offset] == (batch.end_offset, batch.part)
                assert batch.end_offset > offset
                offset = batch.end_offset

    async def _check(self, journal: Journal, replay: Replay) -> None:
        recovered = journal.recovered
        assert recovered is not None
        self.found_snapshots += replay.snapshots
        where = f"seed {self.seed}, life {self.lives}, power loss {self.power_loss}"
        assert not recovered.corruptions, where
        assert not recovered.missing_files, where
        starts = {topic.topic_id: topic.released for topic in self.topics.values()}
        assert not recovered.stopped_topics(starts), where
        cache = BatchCache(LIMITS.cache_bytes)
        for topic in self.topics.values():
            found = recovered.topics.get(topic.topic_id)
            log = TopicLog(
                topic.topic_id,
                topic.durability,
                journal,
                cache,
                next_offset=topic.released,
                start_offset=topic.released,
                recovered=found,
            )
            survives = topic.durability is Durability.DISK or not self.power_loss
            if survives:
                assert log.next_offset >= topic.acked_end, f"{where}: {log} lost acknowledged messages"
                assert replay.cursors[topic.topic_id] >= topic.cursor_acked, f"{where}: {log} lost an ack"
            assert log.next_offset >= topic.synced_end, f"{where}: {log} lost synced messages"
            assert replay.cursors[topic.topic_id] >= topic.cursor_synced, f"{where}: {log} lost a synced ack"
            assert replay.cursors[topic.topic_id] <= topic.cursor
            ends = {0, topic.released, *(end for _, end, _ in topic.parts)}
            assert log.next_offset in ends, f"{where}: {log} ends within a batch"
            await self._check_content(topic, log, where)
            # What was not acknowledged and is gone may be given out again, by the next life.
            topic.parts = [item for item in topic.parts if item[1] <= log.next_offset]
            topic.acked_end = log.end_offset
            topic.cursor = topic.cursor_acked = replay.cursors[topic.topic_id]
            topic.synced_end, topic.cursor_synced = topic.acked_end, topic.cursor
            topic.log = log

    async def _check_content(self, topic: TopicModel, log: TopicLog, where: str) -> None:
        offset = log.start_offset
        truth = {base: (end, part) for base, end, part in topic.parts}
        while offset < log.end_offset:
            batches = await log.read(offset, 1)
            assert batches, f"{where}: {log} has nothing at {offset}"
            for batch in batches:
                assert truth[batch.base_offset] == (batch.end_offset, batch.part), where
                assert batch.base_offset <= offset, where
                offset = batch.end_offset
