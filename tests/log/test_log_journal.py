"""The journal at work: settling, lanes, back-pressure, fences, files that come and go. On a simulated disk."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.lowlevel
from log_lives import FILE_SIZE, LIMITS, make_part
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from danube.log import BatchCache, Entry, EntryType, Journal, TopicLog
from danube.model import DanubeError, Durability, Limits
from danube.model.batch import check_part
from danube.model.errors import (
    ConfigurationError,
    JournalFencedError,
    JournalFullError,
    MessageTooLargeError,
    UnavailableError,
)
from danube.testing.disk import SimulatedDisk


class Desk:
    """A journal with its disk, and what it has settled."""

    def __init__(self, disk: SimulatedDisk, limits: Limits = LIMITS) -> None:
        self.disk = disk
        self.settled: list[tuple[Entry, DanubeError | None, float]] = []
        self.groups: list[int] = []
        self.snapshots: list[int] = []
        self.news = trio.Event()
        self.logs: dict[int, TopicLog] = {}
        self.cache = BatchCache(limits.cache_bytes)
        self.journal = Journal(disk, limits, file_size=FILE_SIZE, on_commit=self.on_commit, snapshot=self.snapshot)

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        self.groups.append(len(entries))
        self.news.set()
        self.news = trio.Event()
        for entry in entries:
            self.settled.append((entry, error, trio.current_time()))
            if entry.type is EntryType.BATCH and error is None:
                self.logs[entry.topic_id].settled(entry)

    def snapshot(self, topic_id: int) -> bytes:
        self.snapshots.append(topic_id)
        return b"state of %d" % topic_id

    def log(self, topic_id: int, durability: Durability = Durability.DISK) -> TopicLog:
        recovered = self.journal.recovered
        assert recovered is not None
        log = TopicLog(topic_id, durability, self.journal, self.cache, recovered=recovered.topics.get(topic_id))
        self.logs[topic_id] = log
        return log

    def control(self, durability: Durability = Durability.DISK, topic_id: int = 1, size: int = 8) -> Entry:
        entry = Entry(EntryType.CURSOR, topic_id, durability, (bytes(size),))
        self.journal.submit(entry)
        return entry

    def put(self, log: TopicLog, size: int = 100) -> None:
        part = make_part([bytes(size)])
        log.append(part, check_part(part), 1)

    async def wait_for(self, *entries: Entry) -> None:
        while not {id(entry) for entry in entries} <= {id(item[0]) for item in self.settled}:
            await self.news.wait()


@asynccontextmanager
async def desk(disk: SimulatedDisk | None = None, limits: Limits = LIMITS) -> AsyncIterator[Desk]:
    found = Desk(disk or SimulatedDisk(Random(1)), limits)
    await found.journal.recover()
    async with trio.open_nursery() as nursery:
        await nursery.start(found.journal.run)
        yield found
        await found.journal.aclose()


async def test_entries_that_arrive_during_a_commit_form_the_next_one(autojump_clock: MockClock) -> None:
    async with desk() as d:
        for _ in range(5):
            d.control()
        await wait_all_tasks_blocked()
        for _ in range(50):
            d.control()
    assert d.groups == [5, 50]
    assert [entry.sequence for entry, _, _ in d.settled] == [1] * 5 + [2] * 50
    usage = d.journal.usage()
    assert usage.commits == 2
    assert usage.pending_bytes == 0


async def test_one_sync_for_a_commit_and_none_for_os(autojump_clock: MockClock) -> None:
    async with desk() as d:
        await wait_all_tasks_blocked()
        before = d.disk.syncs
        await d.wait_for(d.control(Durability.OS), d.control(Durability.OS))
        assert d.disk.syncs == before
        await d.wait_for(d.control(), d.control())
        assert d.disk.syncs == before + 1


async def test_a_slow_sync_does_not_delay_os_acknowledgements(autojump_clock: MockClock) -> None:
    async with desk() as d:
        d.disk.sync_delay_s = 1000.0
        slow = d.control(topic_id=1)
        await wait_all_tasks_blocked()
        started = trio.current_time()
        fast = [d.control(Durability.OS, topic_id=2) for _ in range(3)]
        await d.wait_for(*fast)
        assert trio.current_time() - started < 0.1
        assert slow not in [entry for entry, _, _ in d.settled]
        assert slow.sequence < fast[0].sequence
        d.disk.sync_delay_s = 0.001
        await d.wait_for(slow)


async def test_written_entries_can_be_synced_later(autojump_clock: MockClock) -> None:
    async with desk() as d:
        await d.wait_for(d.control())
        before = d.disk.syncs
        await d.journal.sync(d.journal.sequence)
        assert d.disk.syncs == before  # it was
        await d.wait_for(d.control(Durability.OS))
        d.disk.sync_delay_s = 50.0
        usage = d.journal.usage()
        assert usage.watermark < usage.sequence
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(d.journal.sync, usage.sequence)
            with trio.move_on_after(0.0001):
                await d.journal.sync(usage.sequence)
            assert d.disk.syncs == before
        assert d.disk.syncs == before + 1
        assert d.journal.usage().watermark == usage.sequence


async def test_a_sync_covers_files_that_are_closed(autojump_clock: MockClock) -> None:
    async with desk() as d:
        await d.wait_for(d.control())
        d.disk.sync_delay_s = 100.0
        for _ in range(12):
            await d.wait_for(d.control(Durability.OS, size=5000))
        usage = d.journal.usage()
        assert usage.files > 2
        assert usage.watermark < usage.sequence
        d.disk.sync_delay_s = 0.001
        await d.journal.sync(usage.sequence)
        names = [name for name in d.disk.names() if name.startswith("journal")]
        assert all(d.disk.held(name) == d.disk.content(name) for name in names)


async def test_a_sync_ends_with_the_journal(autojump_clock: MockClock) -> None:
    found = Desk(SimulatedDisk(Random(1)))
    await found.journal.recover()
    refused = []

    async def sync() -> None:
        with trio.CancelScope(shield=True):
            try:
                await found.journal.sync(found.journal.sequence)
            except UnavailableError as error:
                refused.append(str(error))

    async with trio.open_nursery() as nursery:
        await nursery.start(found.journal.run)
        await found.wait_for(found.control(Durability.OS))
        nursery.start_soon(sync)
        nursery.cancel_scope.cancel()
    await sync()
    assert refused == ["the journal is closed; its end was not synced"] * 2


async def test_a_sync_that_fails_fences(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(JournalFencedError):
        async with desk() as d:
            await d.wait_for(d.control(Durability.OS))
            d.disk.fail("sync", errno.EIO)
            with pytest.raises(JournalFencedError), trio.CancelScope(shield=True):
                await d.journal.sync(d.journal.sequence)


async def test_a_clean_end_syncs_the_files_that_were_closed_last(autojump_clock: MockClock) -> None:
    """A file that was left behind while the journal ended was not synced, though the last block said so."""
    async with desk() as d:
        await d.wait_for(d.control())
        for _ in range(12):
            d.control(Durability.OS, size=5000)
    names = [name for name in d.disk.names() if name.startswith("journal")]
    assert len(d.disk.names()) > 3
    assert all(d.disk.held(name) == d.disk.content(name) for name in names)


async def test_entries_of_a_topic_settle_in_the_order_of_submission(autojump_clock: MockClock) -> None:
    random = Random(3)
    async with desk() as d:
        logs = [d.log(1), d.log(2, Durability.OS)]
        sent: dict[int, list[int]] = {1: [], 2: []}
        for _ in range(200):
            log = random.choice(logs)
            part = make_part([bytes(random.choice((10, 1500)))])
            await d.journal.admit(len(part))
            log.append(part, check_part(part), 1)
            sent[log.topic_id].append(log.next_offset)
            if random.random() < 0.3:
                await trio.sleep(0.0003)
    for topic_id, ends in sent.items():
        assert [e.end_offset for e, _, _ in d.settled if e.topic_id == topic_id] == ends
    assert d.journal.usage().files > 3


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_an_io_error_fences_the_journal(autojump_clock: MockClock, operation: str) -> None:
    d = Desk(SimulatedDisk(Random(1)))
    await d.journal.recover()
    with pytest.RaisesGroup(pytest.RaisesExc(JournalFencedError, match="Input/output")):
        async with trio.open_nursery() as nursery:
            await nursery.start(d.journal.run)
            await d.wait_for(d.control())
            d.disk.fail(operation, errno.EIO)
            failed = d.control()
            await trio.lowlevel.checkpoint()
            later = d.control()
            await d.wait_for(failed, later)
    errors = [error for _, error, _ in d.settled]
    assert errors[0] is None
    assert len(errors) == 3
    assert all(isinstance(error, JournalFencedError) for error in errors[1:])
    with pytest.raises(JournalFencedError):
        d.control()
    assert not d.journal.try_admit(1)
    with pytest.raises(JournalFencedError):
        await d.journal.admit(1)
    # What was acknowledged before is there in the next life, and what failed may not be served from the page cache.
    disk = d.disk.crash(power_loss=True)
    async with desk(disk) as again:
        assert again.journal.recovered is not None


async def test_a_failed_sync_never_serves_what_only_the_page_cache_holds(autojump_clock: MockClock) -> None:
    d = Desk(SimulatedDisk(Random(1)))
    await d.journal.recover()
    log = d.log(1)
    with pytest.RaisesGroup(JournalFencedError):
        async with trio.open_nursery() as nursery:
            await nursery.start(d.journal.run)
            d.put(log)
            await trio.sleep(0.1)
            d.disk.fail("sync", errno.EIO)
            d.put(log)
            await trio.sleep(1)
    assert (log.end_offset, log.next_offset) == (1, 2)
    # The process restarts. The second batch can be read, but is not on the medium: recovery brings it there.
    disk = d.disk.crash(power_loss=False)
    async with desk(disk) as again:
        assert again.log(1).end_offset == 2
    async with desk(disk.crash(power_loss=True)) as again:
        log = again.log(1)
        assert log.end_offset == 2
        assert [batch.base_offset for batch in await log.read(0, 1000)] == [0, 1]


async def test_a_fence_overtakes_a_write_that_takes_longer(autojump_clock: MockClock) -> None:
    """It is not acknowledged any more when it is done; and publishers in line do not wait for it."""
    d = Desk(SimulatedDisk(Random(1)))
    await d.journal.recover()
    begun, refused_after = 0.0, list[float]()

    async def publish() -> None:
        with trio.CancelScope(shield=True), pytest.raises(JournalFencedError):  # bounded: the journal ends
            await d.journal.admit(LIMITS.journal_pending_bytes)
        refused_after.append(trio.current_time() - begun)

    with pytest.RaisesGroup(JournalFencedError):
        async with trio.open_nursery() as nursery:
            await nursery.start(d.journal.run)
            await trio.sleep(1)
            begun = trio.current_time()
            d.disk.sync_delay_s = 1.0
            d.disk.fail("sync", errno.EIO)
            entries = [d.control()]
            await trio.sleep(0.001)  # it is written, and being synced
            d.disk.write_delay_s = 1000.0
            entries.append(d.control(Durability.OS))
            nursery.start_soon(publish)
            await trio.sleep(0.001)
            assert d.settled == []
    assert trio.current_time() - begun > 2.0, "the other write took that long"
    assert refused_after == [pytest.approx(0.5, abs=0.6)]
    assert [entry for entry, _, _ in d.settled] == entries, "each once"
    assert all(isinstance(error, JournalFencedError) for _, error, _ in d.settled)
    assert d.journal.usage().pending_bytes == 0


async def test_cancelling_run_settles_what_is_pending(autojump_clock: MockClock) -> None:
    d = Desk(SimulatedDisk(Random(1)))
    await d.journal.recover()
    async with trio.open_nursery() as nursery:
        await nursery.start(d.journal.run)
        entries = [d.control()]
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        entries += [d.control(), d.control(Durability.OS)]
    assert {item[0] for item in d.settled} == set(entries)
    assert len(d.settled) == 3
    assert d.settled[0][1] is None  # its write was under way
    for entry, error, _ in d.settled:
        assert isinstance(error, UnavailableError) if entry.sequence < 0 else error is None, "only what was written"
    assert entries[2].sequence < 0, "it was in the queue of a lane that did nothing"
    with pytest.raises(UnavailableError):
        d.control()


async def test_closing_commits_what_is_pending(autojump_clock: MockClock) -> None:
    async with desk() as d:
        log = d.log(1)
        for _ in range(10):
            d.put(log)
    assert log.end_offset == 10
    with pytest.raises(UnavailableError, match="clos"):
        d.control()


async def test_publishing_waits_while_too_much_is_pending(autojump_clock: MockClock) -> None:
    async with desk() as d:
        log = d.log(1)
        d.disk.sync_delay_s = 5.0
        done: list[int] = []

        async def publish(number: int) -> None:
            part = make_part([bytes(5000)])
            await d.journal.admit(len(part))
            log.append(part, check_part(part), 1)
            done.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(publish, number)
                await wait_all_tasks_blocked()
            assert len(done) == 6  # 32 KiB
            assert not d.journal.try_admit(1)
            d.control()  # never waits
        assert done == list(range(20))  # in line


async def test_a_waiting_publisher_that_gives_up_blocks_no_other(autojump_clock: MockClock) -> None:
    async with desk() as d:
        d.disk.sync_delay_s = 5.0
        log = d.log(1)
        for _ in range(7):
            d.put(log, 5000)
        admitted: list[str] = []

        async def wait(name: str, patience_s: float) -> None:
            with trio.move_on_after(patience_s):
                await d.journal.admit(5000)
                admitted.append(name)  # and submits nothing

        async with trio.open_nursery() as nursery:
            for name, patience_s in (("a", 0.01), ("b", 1000), ("c", 1000)):
                nursery.start_soon(wait, name, patience_s)
                await wait_all_tasks_blocked()
        assert admitted == ["b", "c"]


async def fill(d: Desk, log: TopicLog) -> None:
    while d.journal.try_admit(4000):
        d.put(log, 3900)
        await trio.sleep(0.01)


async def test_a_full_journal_refuses_publishes_and_takes_acks_until_a_topic_is_dropped(
    autojump_clock: MockClock,
) -> None:
    async with desk() as d:
        log, other = d.log(1), d.log(2)
        d.put(other)
        await fill(d, log)
        usage = d.journal.usage()
        assert usage.used_bytes > 0.9 * LIMITS.journal_max_bytes
        started = trio.current_time()
        with pytest.raises(JournalFullError, match=r"journal_max_bytes"):
            await d.journal.admit(4000)
        assert trio.current_time() - started == pytest.approx(1.0)
        acks = [d.control(size=2000) for _ in range(16)]  # from the reserve
        await d.wait_for(*acks)

        async def later() -> None:
            await trio.sleep(0.5)
            log.drop()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            await d.journal.admit(4000)
        usage = d.journal.usage()
        assert usage.files < 5
        assert usage.spare_files > 10
        before = len(d.disk.names())
        await fill(d, d.log(3))
        assert len(d.disk.names()) == before  # nothing was created or removed
        assert len(await other.read(0, 10)) == 1


async def test_release_frees_the_files_of_what_is_below(autojump_clock: MockClock) -> None:
    async with desk() as d:
        log = d.log(1)
        await fill(d, log)
        files = d.journal.usage().files
        stored = log.stored_bytes
        log.expire(log.end_offset // 2)
        await trio.sleep(1)
        assert d.journal.usage().files < files - 5
        assert log.stored_bytes < stored * 0.7
        assert (await log.read(0, 1))[0].base_offset == log.start_offset == log.end_offset // 2
        offset = log.start_offset
        while offset < log.end_offset:
            offset = (await log.read(offset, 10_000))[-1].end_offset


async def test_files_that_are_freed_among_very_many_leave_no_damage(autojump_clock: MockClock) -> None:
    """A header names 123 older files. One before those was taken for damaged if the next one was freed."""
    limits = replace(LIMITS, journal_max_bytes=400 * FILE_SIZE)
    async with desk(SimulatedDisk(Random(1)), limits) as d:
        logs = [d.log(topic_id) for topic_id in (1, 2, 3)]
        for log, files in ((logs[0], 2), (logs[1], 3), (logs[2], 125)):
            until = d.journal.usage().files + files
            while d.journal.usage().files < until:
                d.put(log, 3900)
                await trio.sleep(0.01)
        before = d.journal.usage().files
        logs[1].expire(logs[1].end_offset)
        await trio.sleep(1)
        assert 125 < d.journal.usage().files < before
        await d.wait_for(d.control(size=8000), d.control(size=8000), d.control(size=8000))  # goes on in another file
    async with desk(d.disk.crash(power_loss=False), limits) as again:
        recovered = again.journal.recovered
        assert recovered is not None
        assert (recovered.corruptions, recovered.missing_files) == ([], [])
        assert recovered.stopped_topics({2: logs[1].end_offset}) == {}, "idle topics, too, can go on"


async def test_without_snapshots_nothing_is_recycled(autojump_clock: MockClock) -> None:
    async with desk() as d:
        d.journal.snapshot = None
        log = d.log(1)
        await fill(d, log)
        files = d.journal.usage().files
        log.drop()
        await trio.sleep(10)
        assert d.journal.usage().files == files


async def test_a_full_disk_stops_publishes_and_not_acks(autojump_clock: MockClock) -> None:
    async with desk() as d:
        log = d.log(1)
        d.disk.capacity = 4 * FILE_SIZE
        await fill(d, log)
        assert d.journal.usage().disk_full
        with pytest.raises(JournalFullError, match="disk"):
            await d.journal.admit(4000)
        await d.wait_for(*[d.control(size=1000) for _ in range(10)])

        async def make_room() -> None:
            await trio.sleep(0.3)
            log.drop()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_room)
            await d.journal.admit(4000)
        d.disk.capacity = 100 * FILE_SIZE
        await fill(d, d.log(2))
        assert not d.journal.usage().disk_full


async def test_space_that_comes_free_on_the_disk_is_noticed_by_the_next_publish(autojump_clock: MockClock) -> None:
    async with desk() as d:
        d.disk.capacity = 4 * FILE_SIZE
        await fill(d, d.log(1))
        d.disk.capacity = 100 * FILE_SIZE
        await d.journal.admit(4000)
        assert not d.journal.usage().disk_full


async def test_entries_that_are_too_large_are_refused(autojump_clock: MockClock) -> None:
    with pytest.raises(ConfigurationError, match="max_batch_bytes"):
        Journal(SimulatedDisk(Random(1)), LIMITS, file_size=LIMITS.max_batch_bytes)
    async with desk() as d:
        with pytest.raises(MessageTooLargeError):
            d.control(size=FILE_SIZE)


async def test_reads_go_from_disk_to_cache_while_files_roll(autojump_clock: MockClock) -> None:
    async with desk() as d:
        log = d.log(1)
        noise = d.log(2, Durability.OS)
        seen: list[int] = []

        async def consume() -> None:
            offset = 0
            while offset < 300:
                batches = await log.read(offset, 3000)
                for batch in batches:
                    seen.append(batch.base_offset)
                    assert batch.base_offset == offset
                    offset = batch.end_offset
                await trio.sleep(0.004)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            for _ in range(300):
                await d.journal.admit(700)
                d.put(log, 400)
                d.put(noise, 200)
                await trio.sleep(0.001)
        assert seen == list(range(300))
        assert d.journal.usage().files > 8
        assert log.get_cached(0) is None


async def test_offsets_by_time(autojump_clock: MockClock) -> None:
    async with desk() as d:
        log = d.log(1)
        for number in range(60):
            part = make_part([bytes(1500)] * 2)
            await d.journal.admit(len(part))
            log.append(part, check_part(part), 1000 + 10 * number)
            await trio.sleep(0.01)
        for number in (0, 1, 30, 59):
            assert await log.offset_at(1000 + 10 * number) == 2 * number
            assert await log.offset_at(995 + 10 * number) == 2 * number
        assert await log.offset_at(5000) == 120
        log.expire(40)
        assert await log.offset_at(0) == 40


async def test_memory_does_not_grow_with_the_backlog(autojump_clock: MockClock) -> None:
    limits = Limits(
        max_batch_bytes=8 * 1024,
        journal_max_bytes=200 * FILE_SIZE,
        journal_commit_bytes=12 * 1024,
        cache_bytes=16 * 1024,
    )
    disk = SimulatedDisk(Random(1))
    async with desk(disk, limits) as d:
        log = d.log(1)
        part = make_part([bytes(10)] * 400)
        header = check_part(part)
        tracemalloc.start()
        try:
            async with trio.open_nursery():
                for number in range(800):
                    log.append(part, header, number)
                    await trio.sleep(0.003)
                    if number == 10:
                        d.settled.clear()
                        before, _ = tracemalloc.get_traced_memory()
                    d.settled.clear()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        on_disk = sum(len(disk.content(name)) for name in disk.names())
        assert log.stored_bytes > 3_000_000
        # The simulated disk itself is in memory, twice; it is not what is measured.
        assert after - before - 2 * on_disk < 500_000
