"""The keeper of the journal's files by itself: its counters, its retries, its log messages."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from log_lives import FILE_SIZE
from trio.testing import MockClock, wait_all_tasks_blocked

from danube.log._admission import Admission
from danube.log._files import FileTable, JournalFile, journal_name, spare_name
from danube.log._keeper import FileKeeper
from danube.log._stock import FileStock
from danube.log.format import read_file_header
from danube.model.limits import Limits
from danube.testing.disk import SimulatedDisk

FILES = 10


class Owner:
    """A journal that writes nothing, and remembers what it was asked to."""

    def __init__(self) -> None:
        self.recycles = True
        self.settled = 1_000
        self.snapshots: list[set[int]] = []
        self.tombstones: list[dict[int, int]] = []
        self.unknown: set[int] = set()
        self.cost = 10
        self.freed: list[tuple[int, ...]] = []
        self.forgotten: list[int] = []
        self.is_ending = False
        self.files: FileTable

    def snapshot_cost(self, topic_id: int, *, exact: bool = False) -> int:
        return self.cost

    async def write_snapshots(self, topic_ids: Collection[int], tombstones: Mapping[int, int]) -> None:
        self.snapshots.append(set(topic_ids))
        self.tombstones.append(dict(tombstones))
        self.files.cover(dict.fromkeys(set(topic_ids) - self.unknown, self.settled))
        for topic_id, horizon in tombstones.items():
            self.files.bury(topic_id, list(self.files)[-1], horizon)

    def settled_sequence(self) -> int:
        return self.settled

    async def write_freed(self, payload: bytes) -> bool:
        numbers = (int.from_bytes(payload[at : at + 8], "little") for at in range(0, len(payload), 8))
        self.freed.append(tuple(numbers))
        return not self.is_ending

    def forget_file(self, file: JournalFile) -> None:
        self.forgotten.append(file.file_id)


class Bench:
    """A keeper on a disk of its own, with an active file."""

    def __init__(self, **limits: Any) -> None:
        self.disk = SimulatedDisk(Random(1))
        defaults: dict[str, Any] = {
            "max_batch_bytes": 8 * 1024,
            "journal_max_bytes": FILES * FILE_SIZE,
            "journal_reserve_bytes": 2 * FILE_SIZE,
        }
        self.limits = Limits(**(defaults | limits))
        self.admission = Admission(self.limits)
        self.owner = Owner()
        self.stock = FileStock(self.limits, FILE_SIZE, self.admission)
        self.keeper = FileKeeper(self.disk, self.stock, self.admission, self.owner)
        self.owner.files = self.stock.files

    async def adopt(self, *, spares: int = 0) -> None:
        names = [spare_name(20 + number) for number in range(spares)]
        for name in (journal_name(1), *names):
            await self.disk.create(name, FILE_SIZE)
        active = JournalFile(1, FILE_SIZE)
        self.stock.files.add(active)
        found = SimpleNamespace(active=active, spares=names, next_number=50, identity=9)
        await self.keeper.adopt(found)  # type: ignore[arg-type]

    def fill(self, sequence: int, end: int = FILE_SIZE - 2_000) -> JournalFile:
        """Write the active file full, and go on in another one."""
        full = self.stock.active
        full.end, full.last_sequence = end, sequence
        self.stock.grown()
        self.keeper.follow(self.stock.roll())
        return full


@asynccontextmanager
async def bench(*, spares: int = 0, recycle: bool = False, **limits: Any) -> AsyncIterator[Bench]:
    found = Bench(**limits)
    await found.adopt(spares=spares)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.keeper.prepare_files)
        if recycle:
            nursery.start_soon(found.keeper.recycle_files)
        await trio.sleep(1)
        yield found
        nursery.cancel_scope.cancel()


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.message for record in caplog.records)


async def test_two_files_are_ready_out_of_spares_or_new_and_no_number_is_given_twice(autojump_clock: MockClock) -> None:
    async with bench() as b:
        assert b.stock.spare_count == 2
        assert b.disk.names() == [journal_name(1), journal_name(51), journal_name(53)]
        assert (await b.disk.list())[journal_name(51)] == FILE_SIZE
    async with bench(spares=3) as b:
        assert b.stock.spare_count == 3, "one spare is left, two are ready"
        assert b.disk.names() == [journal_name(1), journal_name(50), journal_name(51), spare_name(20)]
        assert b.stock.can_roll()


async def test_ready_files_survive_a_power_loss_before_they_are_written(autojump_clock: MockClock) -> None:
    b = Bench()
    await b.adopt()
    heir: list[list[str]] = []

    async def watch() -> None:
        while not b.stock.can_roll():
            await b.keeper.news.wait()
        # By chance each time one of the states that the directory may be in.
        heir.extend(b.disk.crash(power_loss=True).names() for _ in range(10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(b.keeper.prepare_files)
        with trio.move_on_after(5):
            await watch()
        nursery.cancel_scope.cancel()
    assert len(heir) == 10
    assert all(journal_name(51) in names for names in heir)


async def test_a_header_says_where_the_log_goes_on_and_what_is_needed_behind_it(autojump_clock: MockClock) -> None:
    async with bench() as b:
        first = b.fill(40)
        second = b.fill(60)
        active = b.stock.active
        header = read_file_header(b.stock.header(active, 61, 55, 77), active.file_id)
        assert header is not None
        assert (header.file_id, header.first_sequence, header.resume_after) == (active.file_id, 61, 60)
        assert header.watermark == 55
        assert header.live == ((first.file_id, 40), (second.file_id, 60)), "not itself"
        assert (header.complete, header.prelude) == (True, False)
        assert (header.file_size, header.identity, header.metadata) == (FILE_SIZE, 9, 77)
        first.freed = True
        header = read_file_header(b.stock.header(active, 61, 55, 77), active.file_id)
        assert header is not None
        assert header.live == ((second.file_id, 60),), "what is freed is not needed"


async def test_the_space_that_batches_may_use_leaves_two_files_out(autojump_clock: MockClock) -> None:
    async with bench() as b:
        keeper, stock, admission = b.keeper, b.stock, b.admission
        b.disk.capacity = b.disk._used() + 3 * FILE_SIZE
        keeper.want_file()
        await trio.sleep(1)
        usable = FILE_SIZE - b.limits.max_batch_bytes
        room = stock.active.room()
        assert admission.space_left == room + (2 + 3 - 2) * usable
        stock.active.end = 10_000
        stock.grown()
        assert admission.space_left == stock.active.room() + 3 * usable < room + 3 * usable
        assert admission.used_bytes == 10_000
        b.disk.capacity = b.disk._used()
        keeper.want_file()
        await trio.sleep(1)
        assert admission.space_left == stock.active.room(), "two files are ready, and both are left out"
        assert stock.disk_full
        assert stock.can_roll()
        b.fill(40)
        assert not stock.can_roll(), "the last file is for the next recovery"
        assert admission.space_left == 0
        assert admission.used_bytes == FILE_SIZE + stock.active.end


def test_large_batches_leave_half_of_each_file_usable() -> None:
    for batch_bytes, usable in ((8 * 1024, FILE_SIZE - 8 * 1024), (16 * 1024, FILE_SIZE // 2)):
        stock = Bench(max_batch_bytes=batch_bytes).stock
        assert stock.usable == usable


async def test_spares_are_used_whatever_is_free_and_allowed(autojump_clock: MockClock) -> None:
    async with bench(spares=4, journal_max_bytes=2 * FILE_SIZE, journal_reserve_bytes=1) as b:
        b.disk.capacity = 0
        for left in (3, 2):
            assert b.stock.spare_count == left + 1
            b.fill(b.stock.active.file_id).count_batch(7, 10, 1)
            await trio.sleep(1)
            assert b.stock.spare_count == left
            assert b.stock.can_roll()
        assert b.stock.disk_full, "no file is left"


async def test_files_are_created_up_to_the_limit_and_its_reserve(autojump_clock: MockClock) -> None:
    async with bench() as b:
        while b.stock.can_roll():
            b.fill(b.stock.active.file_id).count_batch(7, 10, 1)
            await trio.sleep(1)
        assert len(b.stock.files) == FILES + 2
        assert not b.stock.disk_full


async def test_a_reserve_is_one_file_at_least(autojump_clock: MockClock) -> None:
    async with bench(journal_reserve_bytes=1) as b:
        while b.stock.can_roll():
            b.fill(b.stock.active.file_id).count_batch(7, 10, 1)
            await trio.sleep(1)
        assert len(b.stock.files) == FILES + 1


async def test_files_that_only_stopped_topics_need_count_up_to_the_limit(autojump_clock: MockClock) -> None:
    async with bench() as b:
        keeper, stock = b.keeper, b.stock
        while stock.can_roll():
            b.fill(stock.active.file_id).count_batch(7, 10, 1)
            await trio.sleep(1)
        used = b.admission.used_bytes
        assert used >= (FILES + 1) * FILE_SIZE
        stock.files.stop_topic(7)
        waiter_is_served: list[int] = []

        async def wait() -> None:
            await b.admission.admit(100)
            waiter_is_served.append(stock.files.stopped_bytes)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            keeper.follow(stock.released())
            await wait_all_tasks_blocked()
            assert waiter_is_served, "who waits for space is told"
        assert stock.files.stopped_bytes == (FILES + 1) * FILE_SIZE
        assert b.admission.used_bytes == used - FILES * FILE_SIZE, "as much again as the limit, and no more"
        await trio.sleep(1)
        assert stock.can_roll(), "and files are prepared again"


async def test_a_full_disk_and_a_full_table_of_descriptors_are_tried_again_each_second(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench() as b:
        attempts: list[float] = []
        create, free_bytes = b.disk.create, b.disk.free_bytes

        async def counted(name: str, size: int) -> None:
            attempts.append(trio.current_time())
            await create(name, size)

        looks: list[float] = []

        async def looked() -> int:
            looks.append(trio.current_time())
            return await free_bytes()

        b.disk.create, b.disk.free_bytes = counted, looked  # type: ignore[method-assign]
        await trio.sleep(100)
        assert not looks, "nothing is wanted, so nothing is looked at"
        b.disk.no_descriptors = True
        b.fill(40)
        begun = trio.current_time()
        await trio.sleep(5.5)
        assert [round(at - begun) for at in attempts] == [0, 1, 2, 3, 4, 5], "once each time"
        assert said(caplog, "no file descriptor is left") == 6
        b.disk.no_descriptors = False
        await trio.sleep(1.5)
        assert b.stock.spare_count == 2
        b.disk.capacity = b.disk._used()
        looks.clear()
        b.fill(50)
        begun = trio.current_time()
        await trio.sleep(5.5)
        assert [round(at - begun) for at in looks] == [0, 1, 2, 3, 4, 5]
        assert said(caplog, "no space for another journal file") == 1, "while it lasts, it is said once"
        b.disk.capacity += 10 * FILE_SIZE
        await trio.sleep(1.5)
        assert b.stock.spare_count == 2
        assert not b.stock.disk_full


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_file_that_finds_no_space_leaves_the_disk_full_and_others_are_errors(
    autojump_clock: MockClock, number: int
) -> None:
    async with bench() as b:
        b.disk.fail("create", number)
        b.fill(40)
        full: list[bool] = []
        with trio.move_on_after(0.5):
            while not full:
                await trio.sleep(0.001)
                full += [True] * b.stock.disk_full
        assert full
        await trio.sleep(2)
        assert not b.stock.disk_full, "there was space again"
        assert b.stock.spare_count == 2
    with pytest.RaisesGroup(OSError):
        async with bench() as b:
            b.disk.fail("create", errno.EIO)
            b.fill(40)
            await trio.sleep(1)


async def test_filling_is_said_once_and_again_after_it_has_passed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(journal_warn_ratio=0.5) as b:
        stock = b.stock
        for closed in range(1, FILES // 2 + 1):
            b.fill(closed * 10).count_batch(7, 10, 1)
            await trio.sleep(1)
            assert said(caplog, "limits.journal_max_bytes") == 0, "half is not more than half"
        stock.active.end = 5_000
        for _ in range(2):
            b.fill(900).count_batch(7, 10, 1)
            await trio.sleep(1)
        assert said(caplog, f"uses {6 * FILE_SIZE} of {FILES * FILE_SIZE} bytes") == 1
        assert said(caplog, "limits.journal_max_bytes") == 1
        for file in list(stock.files)[:4]:
            stock.files.remove(file)
        stock._note_space()
        stock._filling()
        for _ in range(4):
            b.fill(990)
            await trio.sleep(1)
        assert said(caplog, "limits.journal_max_bytes") == 2


async def test_only_what_has_settled_and_is_needed_by_nothing_is_freed(autojump_clock: MockClock) -> None:
    async with bench(recycle=True) as b:
        needed, empty = b.fill(10), b.fill(1_000)
        await trio.sleep(1)
        needed.count_batch(7, 10, 1)
        b.stock.active.topics = {3, 4}
        unsettled = b.fill(1_001)
        await trio.sleep(1)
        assert empty.file_id in b.owner.forgotten
        assert unsettled.file_id not in b.owner.forgotten
        assert b.stock.waits_for_commits, "the other one is free as soon as its commits have settled"
        assert unsettled in list(b.stock.files)
        assert b.owner.snapshots == [], "a snapshot would not contain what has not settled"
        b.owner.settled = 1_001
        b.keeper.want_recycling()
        await trio.sleep(1)
        assert unsettled.file_id in b.owner.forgotten
        assert b.owner.snapshots == [{3, 4}]
        assert b.owner.freed[-1] == (unsettled.file_id,)
        assert not b.stock.waits_for_commits


async def test_snapshots_that_a_later_one_covers_are_not_written_again(autojump_clock: MockClock) -> None:
    async with bench(recycle=True) as b:
        b.stock.active.topics = {1, 2}
        first = b.fill(10)
        first.count_batch(7, 10, 5)
        b.stock.active.topics = {2, 3}
        second = b.fill(20)
        await trio.sleep(1)
        assert b.owner.snapshots == [{2, 3}]
        assert b.owner.freed == [(second.file_id,)]
        assert first.topics == {1}
        b.stock.files.release(7, 5)
        b.keeper.want_recycling()
        await trio.sleep(1)
        assert b.owner.snapshots == [{2, 3}, {1}]
        assert b.owner.freed[1:] == [(first.file_id,)]


async def test_files_that_are_not_worth_it_stay_until_space_is_short(autojump_clock: MockClock) -> None:
    async with bench(recycle=True) as b:
        b.owner.cost = FILE_SIZE // 10
        b.stock.active.topics = set(range(1, 7))
        idle = b.fill(10)
        b.stock.active.topics = {7, 8}
        busy = b.fill(20)
        await trio.sleep(1)
        assert b.owner.snapshots == [{7, 8}]
        assert b.owner.forgotten == [busy.file_id]
        b.keeper.want_recycling()
        await trio.sleep(1)
        assert b.owner.snapshots == [{7, 8}]
        assert not b.stock.waits_for_commits, "no commit changes that"
        for number in range(FILES - 1):
            b.stock.active.count_batch(9, 1, 1)
            b.fill(30 + number)
            await trio.sleep(1)
        assert b.owner.snapshots == [{7, 8}, set(range(1, 7))]
        assert b.owner.forgotten == [busy.file_id, idle.file_id]


async def test_files_of_topics_that_are_not_known_stay(autojump_clock: MockClock) -> None:
    async with bench(recycle=True) as b:
        b.owner.unknown = {1}
        b.stock.active.topics = {1}
        unknown = b.fill(10)
        b.stock.files.strand([2])
        b.stock.active.topics = {2}
        stranded = b.fill(20)
        await trio.sleep(1)
        b.stock.active.topics = {3}
        free = b.fill(30)
        await trio.sleep(1)
        assert b.owner.forgotten == [free.file_id]
        assert b.owner.snapshots[-1] == {1, 3}, "stranded ones are not asked for"
        b.stock.files.strand([])
        b.owner.unknown = set()
        b.keeper.want_recycling()
        await trio.sleep(1)
        assert b.owner.forgotten == [free.file_id, unknown.file_id, stranded.file_id]


async def test_a_tombstone_is_needed_as_long_as_an_older_file_may_hold_its_topic(autojump_clock: MockClock) -> None:
    async with bench(recycle=True) as b:
        older = b.fill(10)
        older.count_batch(7, 10, 5)
        grave = b.stock.active
        b.stock.files.bury(1, grave)
        b.fill(20)
        await trio.sleep(1)
        assert b.owner.tombstones == [{1: grave.file_id}], "it is written again"
        assert b.owner.forgotten == [grave.file_id]
        second = b.stock.active
        assert second.tombstones == {1: grave.file_id}
        b.stock.files.release(7, 5)
        b.fill(30)
        await trio.sleep(1)
        assert b.owner.forgotten == [grave.file_id, older.file_id, second.file_id]
        assert b.owner.tombstones == [{1: grave.file_id}], "nothing is left that it could be about"


async def test_files_go_fifty_at_a_time_and_become_spares_or_go_if_their_size_is_another(
    autojump_clock: MockClock,
) -> None:
    async with bench(recycle=True, journal_max_bytes=200 * FILE_SIZE) as b:
        files = []
        for number in range(52):
            b.stock.active.count_batch(7, 1, number)
            if number == 7:
                b.stock.active.size -= 1  # of a former life with another limit
            files.append(b.fill(number + 4))
            await trio.sleep(0.05)
        odd = files[7]
        b.stock.files.drop_topic(7)
        announced = b.stock.spare_count
        b.keeper.want_recycling()
        await trio.sleep(1)
        assert [len(ids) for ids in b.owner.freed] == [50, 2]
        assert b.owner.forgotten == [file.file_id for file in files]
        assert b.stock.spare_count == announced + 51
        names = b.disk.names()
        assert odd.name not in names
        assert sum(name.startswith("spare") for name in names) == 51
        assert len(b.stock.files) == 1
        assert b.admission.used_bytes == b.stock.active.end
        # And all of it is durable.
        assert sorted(b.disk._held_names) == names


async def test_a_journal_that_ends_frees_nothing(autojump_clock: MockClock) -> None:
    async with bench(recycle=True) as b:
        b.owner.is_ending = True
        file = b.fill(10)
        await trio.sleep(1)
        assert b.owner.freed == [(file.file_id,)]
        assert file in list(b.stock.files)
        assert b.owner.forgotten == []


async def test_why_the_journal_waits_is_said_once(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with bench() as b:
        b.keeper.follow(b.stock.note_waiting())
        assert said(caplog, "nothing is committed") == 0, "another file comes at once"
        while b.stock.can_roll():
            b.fill(10).count_batch(7, 1, 1)
            await trio.sleep(1)
        b.keeper.follow(b.stock.note_waiting())
        b.keeper.follow(b.stock.note_waiting())
        assert said(caplog, f"its {FILES + 2} files use up limits.journal_max_bytes") == 1
        file = next(iter(b.stock.files))
        b.stock.files.drop_topic(7)
        b.stock.files.remove(file)
        b.keeper.want_file()
        await trio.sleep(1)
        assert b.stock.can_roll()
        b.fill(20)
        assert said(caplog, "continues in another file") == 1
        await trio.sleep(1)
        if b.stock.can_roll():
            b.fill(20)
        assert said(caplog, "continues in another file") == 1


async def test_who_waits_for_news_is_told_when_a_disk_is_full_no_more(autojump_clock: MockClock) -> None:
    async with bench() as b:
        b.disk.capacity = b.disk._used()
        b.keeper.want_file()
        await trio.sleep(0.5)
        assert b.stock.disk_full
        news = b.keeper.news
        assert not news.is_set()
        b.disk.capacity += FILE_SIZE
        await trio.sleep(1.5)
        assert not b.stock.disk_full
        assert news.is_set()
