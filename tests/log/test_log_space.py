"""A journal without space or descriptors: it waits, logs this, and continues automatically."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
import trio
from log_lives import FILE_SIZE, make_part
from trio.testing import MockClock

from danube.log import BatchCache, Entry, EntryType, Journal, RealDisk, TopicLog
from danube.log._files import FREED_MARGIN
from danube.model import Durability, Limits
from danube.model.batch import check_part
from danube.model.errors import DanubeError, OutOfDescriptorsError
from danube.testing.disk import SimulatedDisk

FILES = 6


class Desk:
    """A journal with one topic, whose batches and control entries use up its space."""

    def __init__(self, disk: SimulatedDisk, reserve_files: int = 2) -> None:
        self.disk = disk
        self.limits = Limits(
            max_batch_bytes=8 * 1024,
            journal_max_bytes=FILES * FILE_SIZE,
            journal_reserve_bytes=reserve_files * FILE_SIZE,
            journal_pending_bytes=32 * 1024,
            journal_commit_bytes=12 * 1024,
            journal_full_wait_s=1.0,
        )
        self.settled: set[Entry] = set()
        self.journal = Journal(
            disk, self.limits, file_size=FILE_SIZE, on_commit=self._on_commit, snapshot=self._snapshot
        )
        self.log: TopicLog

    def _on_commit(self, entries: list[Entry], error: DanubeError | None) -> None:
        assert error is None
        for entry in entries:
            self.settled.add(entry)
            if entry.type is EntryType.BATCH:
                self.log.settled(entry)

    def _snapshot(self, topic_id: int) -> bytes:
        return bytes(500)

    async def fill(self) -> None:
        """Publish until nothing more is admitted."""
        while True:
            part = make_part([bytes(2000)])
            with trio.move_on_after(0.5) as patience:
                await self.journal.admit(len(part))
            if patience.cancelled_caught:
                return
            self.log.append(part, check_part(part), 1)

    def control(self) -> Entry:
        part = make_part([bytes(10)])  # so that no file comes free by a snapshot alone
        self.log.append(part, check_part(part), 1)
        entry = Entry(EntryType.CURSOR, 1, Durability.DISK, (bytes(3000),))
        self.journal.submit(entry)
        return entry

    async def use_up(self) -> list[Entry]:
        """Submit control entries until they are stuck; return those that are."""
        entries: list[Entry] = []
        while True:
            entries.append(self.control())
            await trio.sleep(0.2)
            if entries[-1] not in self.settled:
                entries += [self.control() for _ in range(3)]
                await trio.sleep(20)
                assert not self.settled.intersection(entries[-4:])
                return entries[-4:]

    async def expect(self, entries: list[Entry], patience_s: float = 30) -> None:
        with trio.fail_after(patience_s):
            while not self.settled.issuperset(entries):  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.1)


@asynccontextmanager
async def desk(disk: SimulatedDisk, reserve_files: int = 2) -> AsyncIterator[Desk]:
    found = Desk(disk, reserve_files)
    recovered = await found.journal.recover()
    found.log = TopicLog(1, Durability.DISK, found.journal, BatchCache(0), recovered=recovered.topics.get(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(found.journal.run)
        yield found
        await found.journal.aclose()


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "nothing is committed" in record.message]


@pytest.mark.parametrize("reserve_files", [1, 2])
async def test_used_up_limits_are_left_as_soon_as_something_can_be_freed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, reserve_files: int
) -> None:
    """While the storage is away nothing comes free; what waits for a file then must not block what frees."""
    async with desk(SimulatedDisk(Random(1)), reserve_files) as d:
        await d.fill()
        stuck = await d.use_up()
        (said,) = waits(caplog)
        assert "journal_reserve_bytes" in said
        d.log.expire(d.log.end_offset)
        await d.expect(stuck)
        assert "continues in another file" in caplog.text
        await d.journal.admit(1000)
        # And once more.
        await d.fill()
        stuck = await d.use_up()
        assert len(waits(caplog)) == 2
        d.log.expire(d.log.end_offset)
        await d.expect(stuck)


async def test_a_full_disk_is_left_as_soon_as_something_can_be_freed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk(Random(1), capacity=5 * FILE_SIZE)
    async with desk(disk) as d:
        await d.fill()
        stuck = await d.use_up()
        (said,) = waits(caplog)
        assert "disk of the journal is full" in said
        d.log.expire(d.log.end_offset)
        await d.expect(stuck)
        files = [name for name in disk.names() if name.startswith(("journal", "spare"))]
        assert len(files) <= 5
    heir = disk.crash(power_loss=True)
    heir.capacity = math.inf
    async with desk(heir) as d:
        assert d.journal.recovered is not None
        assert not d.journal.recovered.stopped_topics({1: d.log.end_offset})


@pytest.mark.parametrize("full", ["disk", "limits"])
async def test_snapshots_that_do_not_fit_all_together_free_one_file_after_the_other(
    autojump_clock: MockClock, full: str
) -> None:
    """Each file has topics of its own, whose snapshots take most of a file, and more than one of them has no space."""
    disk = SimulatedDisk(Random(1), capacity=6 * FILE_SIZE if full == "disk" else math.inf)
    async with desk(disk) as d:
        d.journal.snapshot = lambda topic_id: bytes(1000)
        topic_id, last = 100, d.control()
        while last in d.settled or topic_id == 100:
            part = make_part([bytes(10)])
            d.log.append(part, check_part(part), 1)  # keeps the file
            for _ in range(15):
                topic_id += 1
                last = Entry(EntryType.CURSOR, topic_id, Durability.DISK, (bytes(1400),))
                d.journal.submit(last)
            await trio.sleep(5)
        d.log.expire(d.log.end_offset)
        with trio.fail_after(30):
            while last not in d.settled:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.1)
        if full == "disk":
            assert len([name for name in disk.names() if name.startswith(("journal", "spare"))]) <= 6
    heir = disk.crash(power_loss=True)
    heir.capacity = math.inf
    async with desk(heir) as d:
        assert d.journal.topic_ids() >= set(range(101, topic_id + 1)), "none is lost"


async def test_written_entries_can_be_synced_while_commits_wait(autojump_clock: MockClock) -> None:
    """Sealing waits for a sync, and it is what makes room."""
    async with desk(SimulatedDisk(Random(1))) as d:
        await d.fill()
        d.log.durability = Durability.OS
        part = make_part([bytes(3000)])
        for _ in range(10 * FILES):
            d.log.append(part, check_part(part), 1)
            await trio.sleep(1)
            if d.log.end_offset < d.log.next_offset:
                break
        stuck = [d.control() for _ in range(3)]
        await trio.sleep(20)
        usage = d.journal.usage()
        assert usage.watermark < usage.sequence
        with trio.fail_after(10):
            await d.journal.sync(usage.sequence)
        assert not d.settled.intersection(stuck)
        d.log.expire(d.log.end_offset)
        await d.expect(stuck)


async def test_a_full_disk_is_left_when_others_free_it(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1), capacity=5 * FILE_SIZE)
    async with desk(disk) as d:
        await d.fill()
        stuck = await d.use_up()
        disk.capacity = math.inf
        await d.expect(stuck)


async def test_a_full_table_of_descriptors_is_no_error_of_the_disk(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedDisk(Random(1))
    async with desk(disk) as d:
        disk.no_descriptors = True
        stuck = await d.use_up()
        assert any("file descriptor" in text for text in waits(caplog))
        assert d.journal.failure is None
        disk.no_descriptors = False
        await d.expect(stuck)


async def test_the_margin_is_for_what_frees_alone(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    async with desk(disk) as d:
        await d.fill()
        for name in disk.names():
            content = bytes(disk.content(name)).rstrip(b"\0")
            if name.startswith("journal") and content:
                assert len(content) <= FILE_SIZE - FREED_MARGIN


async def test_a_real_disk_has_descriptors_in_reserve(tmp_path: Path) -> None:
    async with RealDisk(tmp_path) as disk:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken: list[int] = []
        await disk.create("first", 4096)  # the thread that does it has what it needs
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 3, hard))
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            for number in range(16):
                await disk.create(f"file-{number}", 4096)
            with pytest.raises(OSError, match="Too many open files"):
                await disk.create("one-more", 4096)
            os.close(taken.pop())
            await disk.create("one-more", 4096)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
        await disk.write("one-more", 0, [b"x"], sync=True)
        await disk.create("another", 4096)
        assert len(disk._reserve) == 16


@pytest.mark.parametrize("written", [False, True])
async def test_a_start_waits_for_a_descriptor_and_says_so(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, written: bool
) -> None:
    disk = SimulatedDisk(Random(1))
    if written:
        async with desk(disk) as d:
            await d.expect([d.control()])
        disk.close_all()
    disk.no_descriptors = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lift_after, 7.5, disk)
        async with desk(disk) as d:
            assert trio.current_time() >= 7.5
            assert d.journal.failure is None
            await d.expect([d.control()])
            assert d.journal.recovered is not None
            assert d.journal.recovered.batches == written
    texts = [record.message for record in caplog.records if "file descriptor" in record.message]
    assert len(texts) == 8, "once in each second"
    assert all("ulimit -n" in text and "check the disk" not in text for text in texts)


async def test_a_start_that_gets_no_descriptor_is_refused_with_an_error_of_its_own(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    async with desk(disk) as d:
        await d.expect([d.control()])
    disk.close_all()
    before = {name: disk.held(name) for name in disk.names()}
    disk.no_descriptors = True
    begun = trio.current_time()
    with pytest.raises(OutOfDescriptorsError, match=r"recovery of the journal: .*ulimit -n.*start the broker again"):
        async with desk(disk):
            raise AssertionError("it has started")
    assert trio.current_time() - begun == pytest.approx(Limits().start_descriptor_wait_s, abs=1.5)
    assert {name: disk.held(name) for name in disk.names()} == before, "nothing was changed"
    disk.no_descriptors = False
    async with desk(disk) as d:
        assert d.journal.recovered is not None
        assert d.journal.recovered.batches == 1


async def lift_after(delay_s: float, disk: SimulatedDisk) -> None:
    """Have file descriptors again after a while."""
    await trio.sleep(delay_s)
    disk.no_descriptors = False


async def test_a_write_that_cannot_open_its_file_does_not_hold_up_later_ones(tmp_path: Path) -> None:
    async with RealDisk(tmp_path) as disk:
        await disk.create("first", 4096)
        with pytest.raises(FileNotFoundError):
            await disk.write("missing", 0, [b"x"], sync=False)
        with trio.fail_after(5):
            await disk.write("first", 0, [b"x"], sync=True)


async def test_files_that_are_free_already_when_snapshots_begin_are_freed_at_once(autojump_clock: MockClock) -> None:
    """A broker sets the function after its recovery, and nothing else may happen that wakes the task."""
    async with desk(SimulatedDisk(Random(1))) as d:
        d.journal.snapshot = None
        await d.fill()
        d.log.expire(d.log.end_offset)
        await trio.sleep(10)
        files = d.journal.usage().files
        d.journal.snapshot = lambda topic_id: bytes(100)
        await trio.sleep(10)
        assert d.journal.usage().files < files - 3
