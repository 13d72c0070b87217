"""The journal's report of itself: its identity, the known metadata revision, its usage, and its files on the disk."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from log_lives import FILE_SIZE, LIMITS, make_part
from trio.testing import MockClock, wait_all_tasks_blocked

from danube.log import BatchCache, Entry, EntryType, Journal, TopicLog
from danube.log._files import FREED_MARGIN, JournalFile, journal_name
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    ENTRY_HEADER_SIZE,
    FILE_HEADER_SIZE,
    METADATA_ENTRY,
    TERMINATOR,
    Block,
    parse_blocks,
    parse_entries,
    read_file_header,
)
from danube.log.reader import CHUNK_BYTES, JournalReader
from danube.log.recovered import Standing
from danube.model import DanubeError, Durability, Limits
from danube.model.batch import check_part
from danube.model.errors import InternalError, JournalFencedError, MessageTooLargeError, NotFoundError, UnavailableError
from danube.model.limits import MIB
from danube.testing.disk import SimulatedDisk


class Keeper:
    """A journal, and what it has settled."""

    def __init__(self, disk: SimulatedDisk, limits: Limits, clock: Callable[[], float] = trio.current_time) -> None:
        self.disk = disk
        self.settled: list[Entry] = []
        self.groups: list[list[Entry]] = []
        self.logs: dict[int, TopicLog] = {}
        self.rolls = 0
        self.snapshots: list[int] = []
        self.journal = Journal(
            disk, limits, file_size=FILE_SIZE, on_commit=self.on_commit, snapshot=self.snapshot, clock=clock
        )
        self.journal.on_roll += [self.rolled, self.rolled]

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        assert error is None
        self.groups.append(list(entries))
        self.settled += entries
        for entry in entries:
            if entry.type is EntryType.BATCH:
                self.logs[entry.topic_id].settled(entry)

    def snapshot(self, topic_id: int) -> bytes:
        self.snapshots.append(topic_id)
        return b"state of %d" % topic_id

    def rolled(self) -> None:
        self.rolls += 1

    def log(self, topic_id: int, durability: Durability = Durability.DISK) -> TopicLog:
        recovered = self.journal.recovered
        assert recovered is not None
        self.logs[topic_id] = TopicLog(
            topic_id, durability, self.journal, BatchCache(0), recovered=recovered.topics.get(topic_id)
        )
        return self.logs[topic_id]

    async def put(self, log: TopicLog, size: int = 100) -> None:
        part = make_part([bytes(size)])
        log.append(part, check_part(part), 1)
        while log.end_offset < log.next_offset:  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.001)

    async def roll(self) -> None:
        """Go on in another file."""
        while not self.journal._stock.can_roll():
            await self.journal._keeper.news.wait()
        self.journal._roll()

    def control(self, size: int, durability: Durability = Durability.DISK) -> Entry:
        entry = Entry(EntryType.CURSOR, 1, durability, (bytes(size),))
        self.journal.submit(entry)
        return entry


@asynccontextmanager
async def keeper(
    disk: SimulatedDisk | None = None,
    limits: Limits = LIMITS,
    *,
    identity: int | None = None,
    clock: Callable[[], float] = trio.current_time,
) -> AsyncIterator[Keeper]:
    found = Keeper(disk or SimulatedDisk(Random(1)), limits, clock)
    await found.journal.recover(identity=identity)
    async with trio.open_nursery() as nursery:
        await nursery.start(found.journal.run)
        yield found
        await found.journal.aclose()


async def survey(disk: SimulatedDisk) -> Standing:
    return await Journal(disk, LIMITS, file_size=FILE_SIZE).survey()


def notes(disk: SimulatedDisk) -> list[tuple[int, int]]:
    """Return identity and revision in all METADATA entries, in their order."""
    found = []
    for name in disk.names():
        data = bytes(disk.content(name))
        for block in parse_blocks(data, int(name[8:24], 16) if name.startswith("journal") else -1, FILE_HEADER_SIZE):
            if isinstance(block, Block):
                entries = (entry for entry in parse_entries(data, block) if entry.type == EntryType.METADATA)
                found += [METADATA_ENTRY.unpack(data[entry.start : entry.end]) for entry in entries]
    return found


# --- Identity, and what is known of the metadata ---


async def test_a_journal_has_the_name_that_it_is_given_and_keeps_it(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    standing = await survey(disk)
    assert standing == Standing(False, 0, 0, 0, 0, (), {}, frozenset())
    async with keeper(disk, identity=5) as k:
        k.journal.note_metadata(30)
        await k.put(k.log(1))
    standing = await survey(disk)
    assert (standing.begun, standing.identity, standing.metadata, standing.missing_files) == (True, 5, 30, ())
    async with keeper(disk) as k:
        assert (k.journal.noted_revision, k.journal.told_revision) == (30, 30), "it still has that name"
    async with keeper(disk, identity=5) as k:
        assert k.journal.noted_revision == 30
    standing = await survey(disk)
    assert (standing.identity, standing.metadata) == (5, 30)
    async with keeper(disk, identity=6) as k:
        assert (k.journal.noted_revision, k.journal.told_revision) == (0, 0), "of these metadata nothing is known"
    standing = await survey(disk)
    assert (standing.identity, standing.metadata) == (6, 0)


async def test_notes_made_before_the_journal_runs_are_delivered_when_it_runs(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    journal = Journal(disk, LIMITS, file_size=FILE_SIZE)
    journal.note_metadata(7)
    assert journal.noted_revision == 7
    await journal.recover(identity=5)
    assert journal.told_revision == 7, "it is in the header of the new file"
    called: list[int] = []
    journal.note_metadata(9, lambda: called.append(9))
    assert called == [9], "there is nothing to wait for"
    assert journal.told_revision == 7
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await trio.sleep(1)
        assert journal.told_revision == 9
        heir = disk.crash(power_loss=True)
        nursery.cancel_scope.cancel()
    standing = await survey(heir)
    assert (standing.identity, standing.metadata) == (5, 9)


async def test_notes_gather_while_one_waits_and_never_go_back(autojump_clock: MockClock) -> None:
    async with keeper(identity=5) as k:
        journal = k.journal
        for revision in (10, 11, 12):
            journal.note_metadata(revision)
        journal.note_metadata(4)
        assert (journal.noted_revision, journal.told_revision) == (12, 0)
        await trio.sleep(1)
        assert journal.told_revision == 12
        assert notes(k.disk) == [(5, 12)], "three that wait are one entry"
        assert journal.usage().pending_bytes == 0
        commits = journal.usage().commits
        journal.note_metadata(12)
        await trio.sleep(1)
        assert journal.usage().commits == commits, "it is known"
        journal.note_metadata(13)
        await wait_all_tasks_blocked()  # it is being written
        journal.note_metadata(14)
        await trio.sleep(1)
        assert notes(k.disk) == [(5, 12), (5, 13), (5, 14)]
        called: list[int] = []
        journal.note_metadata(3, lambda: called.append(journal.told_revision))
        assert (called, journal.noted_revision) == ([], 14)
        await trio.sleep(1)
        assert called == [14]
        assert notes(k.disk)[3:] == [(5, 14)]
        assert not k.settled, "these entries are the journal's own"
    assert journal.told_revision == 14
    journal.note_metadata(20, lambda: called.append(0))
    assert called == [14, 0], "it never will be durable, and that is said"


async def test_a_clean_end_says_that_everything_was_synced(autojump_clock: MockClock) -> None:
    async with keeper(identity=5) as k:
        log = k.log(1, Durability.OS)
        await k.put(log)
        k.journal.note_metadata(8)
        before: list[int] = []

        async def before_end() -> None:
            before.append(log.end_offset)

        k.journal.before_end = before_end
        await k.put(log)
    assert before == [2]
    heir = k.disk.crash(power_loss=True)
    assert notes(heir)[-1] == (5, 8)
    name = next(name for name in heir.names() if any(bytes(heir.content(name)[:4])))
    heir.flip(name, bytes(heir.content(name)).rindex(b"DNB1") + 50)
    journal = Journal(heir, LIMITS, file_size=FILE_SIZE)
    recovered = await journal.recover()
    assert recovered.torn is None
    assert [found.topics for found in recovered.corruptions] == [{1: (1, 2)}], "it was synced, so it is damage"


async def test_a_clean_end_needs_no_other_file(autojump_clock: MockClock) -> None:
    """The block at the end goes into the margin of the file; if that is used up, too, it is left out."""
    frame = BLOCK_HEADER_SIZE + ENTRY_HEADER_SIZE
    closing = frame + METADATA_ENTRY.size
    for left in (closing, closing - 1):
        async with keeper(identity=5) as k:
            await k.put(k.log(1))
            file = k.journal._stock.active
            await trio.sleep(0.1)
            file.end = file.written = FILE_SIZE - len(TERMINATOR) - left
            k.disk.content(file.name)[file.end :] = bytes(FILE_SIZE - file.end)
            files, writes = k.journal.usage().files, k.disk.writes
        assert k.journal.usage().files == files
        assert k.disk.writes == writes + (left == closing)


async def test_an_unused_journal_ends_without_a_block(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        await trio.sleep(1)
        k.journal._stock.active.end = 0
        writes = k.disk.writes
    assert k.disk.writes == writes


async def test_the_proven_position_is_the_last_sync(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        journal = k.journal
        first = journal._stock.active.file_id
        assert journal.proven() == (first, journal.usage().watermark)
        await k.put(k.log(1))
        assert journal.proven() == (first, journal.usage().sequence)
        synced = journal.usage().sequence
        await k.put(k.log(2, Durability.OS))
        assert journal.proven() == (first, synced), "written is not synced"
        assert journal.usage().sequence == synced + 1
        await k.roll()
        await trio.sleep(1)
        assert journal.proven() == (first, synced + 1), "a closed file is synced"
        await k.put(k.logs[1])
        assert journal.proven() == (journal._stock.active.file_id, synced + 2)
        assert journal._stock.active.file_id != first


# --- Blocks and files ---


async def test_blocks_fill_a_file_to_its_margin(autojump_clock: MockClock) -> None:
    room = FILE_SIZE - FILE_HEADER_SIZE - len(TERMINATOR) - FREED_MARGIN
    frame = BLOCK_HEADER_SIZE + ENTRY_HEADER_SIZE
    limits = Limits(max_batch_bytes=8 * 1024, journal_commit_bytes=1024 * 1024)
    async with keeper(limits=limits) as k:
        k.journal.snapshot = None
        with pytest.raises(MessageTooLargeError):
            k.control(room - frame + 1)
        await k.roll()
        fresh = k.journal._stock.active
        whole = k.control(room - frame)
        await trio.sleep(1)
        assert whole.file == fresh.file_id
        assert fresh.end == FILE_SIZE - len(TERMINATOR) - FREED_MARGIN
        assert k.rolls == 2
        small = k.control(1)
        await trio.sleep(1)
        assert small.file != fresh.file_id
        assert k.rolls == 4, "each of two was told"
        active = k.journal._stock.active
        rest = active.room() - frame
        fits = k.control(rest)
        await trio.sleep(1)
        assert (fits.file, k.rolls) == (active.file_id, 4)
        assert active.room() == 0


async def test_a_commit_takes_what_fits_into_its_limit_and_its_file(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        most = LIMITS.journal_commit_bytes
        size = 1000
        fit = (most - BLOCK_HEADER_SIZE) // (size + ENTRY_HEADER_SIZE)
        for _ in range(2 * fit + 1):
            k.control(size)
        await trio.sleep(1)
        assert len(k.groups[0]) == fit
        exact = (most - BLOCK_HEADER_SIZE) // 2 - ENTRY_HEADER_SIZE
        k.groups.clear()
        await k.roll()
        for add in (0, 0, 0, 1):
            k.control(exact + add)
        await trio.sleep(1)
        assert [len(group) for group in k.groups] == [2, 1, 1], "two fill a commit, and a byte more is too much"
        k.groups.clear()
        k.control(most + 100)
        k.control(10)
        await trio.sleep(1)
        assert [len(group) for group in k.groups] == [1, 1], "what is larger goes by itself"
        assert k.journal.usage().pending_bytes == 0


async def test_a_header_goes_with_the_first_block_of_its_file(autojump_clock: MockClock) -> None:
    async with keeper(identity=5) as k:
        await k.put(k.log(1))
        k.journal.note_metadata(3)
        await trio.sleep(1)
        full = k.journal._stock.active
        await k.roll()
        await k.put(k.logs[1])
        active = k.journal._stock.active
        sequence = k.journal.usage().sequence
        header = read_file_header(bytes(k.disk.content(active.name)), active.file_id)
        assert header is not None
        assert (header.first_sequence, header.resume_after, header.watermark) == (sequence, sequence - 1, sequence - 1)
        assert header.live == ((full.file_id, sequence - 1),)
        assert (header.file_size, header.identity, header.metadata) == (FILE_SIZE, 5, 3)
        assert active.end == FILE_HEADER_SIZE + BLOCK_HEADER_SIZE + ENTRY_HEADER_SIZE + k.settled[-1].size
        assert active.written == active.end


async def test_entries_under_way_are_reported(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        journal, file = k.journal, k.journal._stock.active
        await k.put(k.log(1))
        done = journal.usage().sequence
        written = file.written
        assert (journal.settled_sequence(), file.in_flight) == (done, 0)
        k.disk.sync_delay_s = 100.0
        k.control(50)
        await wait_all_tasks_blocked()
        assert (journal.settled_sequence(), file.in_flight) == (done, 1)
        k.control(60, Durability.OS)
        await wait_all_tasks_blocked()
        assert (journal.settled_sequence(), file.in_flight) == (done, 2)
        await trio.sleep(0.01)
        assert (journal.settled_sequence(), file.in_flight) == (done, 1), "a later one has settled"
        assert file.written == file.end > written
        assert journal.usage().sequence == done + 2
        await trio.sleep(100)
        assert (journal.settled_sequence(), file.in_flight) == (done + 2, 0)
        assert file.written == file.end


async def test_a_closed_file_whose_end_is_not_synced_is_synced_before_what_follows(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        k.journal.snapshot = None
        log = k.log(1, Durability.OS)
        await k.put(log)
        await k.roll()
        syncs = k.disk.syncs
        await trio.sleep(1)
        assert k.disk.syncs == syncs + 1
        assert k.journal.usage().watermark == k.journal.usage().sequence
        await k.roll()
        await trio.sleep(1)
        assert k.disk.syncs == syncs + 1, "there is nothing in it"


# --- What is still needed ---


async def test_usage_says_what_is_there(autojump_clock: MockClock) -> None:
    times: Iterator[float] = iter((0.0, 4.0, 10.0, 16.0, 20.0, 20.0))
    async with keeper(clock=lambda: next(times)) as k:
        before = k.journal.usage()
        assert (before.files, before.commits, before.syncs, before.sync_time_s) == (1, 0, 0, 0.0)
        assert (before.limit_bytes, before.pending_bytes, before.disk_full) == (LIMITS.journal_max_bytes, 0, False)
        await trio.sleep(1)
        assert k.journal.usage().spare_files == 2
        await k.put(k.log(1))
        assert k.journal.usage().sync_time_s == 4.0
        await k.put(k.log(2))
        usage = k.journal.usage()
        assert usage.sync_time_s == pytest.approx(4.0 + 0.1 * (6.0 - 4.0))
        assert (usage.commits, usage.syncs) == (2, 2)
        assert usage.live_bytes == sum(entry.size for entry in k.settled)
        assert usage.used_bytes == k.journal.used_bytes == k.journal._stock.active.end
        assert k.journal.stored_bytes(1) == k.settled[0].size
        assert k.journal.stored_bytes(9) == 0
        assert k.journal.is_live(k.settled[0].file)
        assert not k.journal.is_live(999)
        k.journal.drop_topic(1)
        assert k.journal.usage().live_bytes == k.settled[1].size
        times = iter([math.nan] * 9)


async def test_topics_of_the_oldest_files(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        for topics in ((1, 2), (2, 3), (4,), (5,)):
            for topic_id in topics:
                await k.put(k.logs.get(topic_id) or k.log(topic_id))
            if topics != (5,):
                await k.roll()
            await trio.sleep(1)
        ask = k.journal.topics_of_oldest
        assert [ask(size) for size in (0, 1, FILE_SIZE)] == [[], [1, 2], [1, 2]]
        assert ask(FILE_SIZE + 1) == [1, 2, 3]
        assert ask(2 * FILE_SIZE + 1) == ask(99 * FILE_SIZE) == [1, 2, 3, 4], "the active file is not full yet"


async def test_released_files_are_recycled_at_once_and_forgotten(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        log, other = k.log(1), k.log(2)
        await k.put(log)
        await k.roll()
        await k.put(other)
        await k.roll()
        await k.put(log)
        await trio.sleep(1)
        first, second = k.settled[0].file, k.settled[1].file
        for topic in (log, other):
            assert len(await topic.read(0, 10)) == 1
        assert {file_id for file_id, _ in k.journal._reader._chunks} == {first, second}
        k.journal.release(1, 1)
        await trio.sleep(1)
        assert (k.journal.is_live(first), k.journal.is_live(second)) == (False, True)
        assert {file_id for file_id, _ in k.journal._reader._chunks} == {second}
        k.journal.drop_topic(2)
        await trio.sleep(1)
        assert not k.journal.is_live(second)
        assert not k.journal._reader._chunks
        assert k.journal.usage().pending_bytes == 0
        assert k.snapshots == [1], "topic 2 was deleted"


async def test_no_damaged_block_makes_a_freed_file_look_missing(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        logs = [k.log(topic_id) for topic_id in (1, 2, 3)]
        for log in logs:
            await k.put(log)
            await k.roll()
        await k.put(logs[2])
        for topic_id in (1, 2):
            k.journal.drop_topic(topic_id)
            await trio.sleep(1)
        await k.put(logs[2])
        name = k.journal._stock.active.name
        gone = {entry.file for entry in k.settled[:2]}
        data, file_id = bytes(k.disk.content(name)), k.journal._stock.active.file_id
        header = read_file_header(data, file_id)
        assert header is not None
        assert gone < {listed for listed, _ in header.live}
        assert not any(k.journal.is_live(listed) for listed in gone)
        for block in parse_blocks(data, file_id, FILE_HEADER_SIZE):
            for place in range(block.position, block.position + block.length, 9) if isinstance(block, Block) else ():
                k.disk.flip(name, place)
                assert (await survey(k.disk)).missing_files == (), place
                k.disk.flip(name, place)
        k.disk.lose(journal_name(k.settled[2].file))
        assert (await survey(k.disk)).missing_files == (k.settled[2].file,)


async def test_a_file_is_freed_as_soon_as_its_commits_have_settled(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        log = k.log(1, Durability.OS)
        await k.put(log)
        await trio.sleep(1)
        k.disk.sync_delay_s = 50.0
        first = k.journal._stock.active
        k.control(10)
        await wait_all_tasks_blocked()
        await k.roll()
        k.journal.drop_topic(1)
        await trio.sleep(0.5)
        assert k.journal.is_live(first.file_id), "what it says of a cursor is in no snapshot yet"
        assert k.journal._stock.waits_for_commits
        k.disk.sync_delay_s = 0.001
        while not k.settled[1:]:  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.1)
        await trio.sleep(1)
        assert not k.journal.is_live(first.file_id)


async def test_entries_that_free_a_file_go_into_the_margin_of_a_full_one(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        await k.put(k.log(1))
        first = k.journal._stock.active
        await k.roll()
        await k.put(k.log(2))
        active = k.journal._stock.active
        k.control(active.room() - BLOCK_HEADER_SIZE - ENTRY_HEADER_SIZE)
        await trio.sleep(1)
        assert active.room() == 0
        rolls, end = k.rolls, active.end
        k.journal.drop_topic(1)
        await trio.sleep(1)
        assert not k.journal.is_live(first.file_id)
        assert (k.rolls, k.journal._stock.active) == (rolls, active)
        assert active.end > end


async def test_nothing_is_freed_by_a_journal_that_ends(autojump_clock: MockClock) -> None:
    answers: list[bool] = []
    found = Keeper(SimulatedDisk(Random(1)), LIMITS)
    await found.journal.recover()
    async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
        await nursery.start(found.journal.run)
        await trio.sleep(1)

        async def ask() -> None:
            nursery.cancel_scope.cancel()
            answers.append(await found.journal.write_freed(bytes(16)))

        outer.start_soon(ask)
        await trio.sleep(1)
    assert answers == [False], "it was never written"
    assert found.journal.usage().pending_bytes == 0
    assert await found.journal.write_freed(bytes(16)) is False


async def test_files_that_a_fence_overtakes_are_not_freed(autojump_clock: MockClock) -> None:
    found = Keeper(SimulatedDisk(Random(1)), LIMITS)
    await found.journal.recover()
    answers: list[bool] = []
    with pytest.RaisesGroup(JournalFencedError):
        async with trio.open_nursery() as nursery:
            await nursery.start(found.journal.run)
            await trio.sleep(1)
            found.disk.fail("sync", errno.EIO)

            async def ask() -> None:
                with trio.CancelScope(shield=True):  # bounded: the journal ends
                    answers.append(await found.journal.write_freed(bytes(16)))

            nursery.start_soon(ask)
            await trio.sleep(10)
    assert answers == [False]


async def test_a_journal_that_has_ended_admits_nothing(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        assert k.journal.try_admit(10)
    assert not k.journal.try_admit(10)
    with trio.fail_after(100), pytest.raises(UnavailableError, match="clos"):
        await k.journal.admit(10)


async def test_a_publish_that_meets_a_full_disk_looks_at_once_whether_it_still_is(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        log = k.log(1)
        k.disk.capacity = 4 * FILE_SIZE
        while k.journal.try_admit(4000):
            await k.put(log, 3900)
        looks: list[float] = []
        free_bytes = k.disk.free_bytes

        async def looked() -> int:
            looks.append(trio.current_time())
            return await free_bytes()

        k.disk.free_bytes = looked  # type: ignore[method-assign]
        while not looks:  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.001)
        k.disk.capacity = 100 * FILE_SIZE
        begun = trio.current_time()
        await k.journal.admit(4000)
        assert trio.current_time() - begun < 0.5


async def test_stopped_topics_leave_room_for_others(autojump_clock: MockClock) -> None:
    async with keeper() as k:
        log = k.log(1)
        while k.journal.try_admit(4000):
            await k.put(log, 3900)
        used = k.journal.used_bytes
        closed = sum(file.size for file in k.journal._stock.files if file.closed)
        k.journal.stop_topic(1)
        assert k.journal.used_bytes == used - closed
        assert k.journal.try_admit(4000)
        k.journal.drop_topic(1)
        assert k.journal.used_bytes == used, "they count until they are freed"
        await trio.sleep(1)
        assert k.journal.used_bytes < FILE_SIZE


async def test_entries_without_a_taker_are_an_error(autojump_clock: MockClock) -> None:
    journal = Journal(SimulatedDisk(Random(1)), LIMITS, file_size=FILE_SIZE)
    await journal.recover()
    with pytest.RaisesGroup(InternalError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            journal.submit(Entry(EntryType.CURSOR, 1, Durability.OS, (b"x",)))
            await trio.sleep(1)


# --- Reads behind the writer ---


class Reads:
    """A disk whose bytes show their position, and which counts reads."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    async def read(self, name: str, position: int, size: int) -> bytes:
        self.asked.append((name, position, size))
        await trio.lowlevel.checkpoint()
        return position.to_bytes(8, "little").ljust(size, b"\0")


def reader_of(*files: JournalFile) -> tuple[JournalReader, Reads]:
    disk = Reads()
    return JournalReader(disk, {file.file_id: file for file in files}), disk  # type: ignore[arg-type]


def closed(file_id: int) -> JournalFile:
    file = JournalFile(file_id, 64 * CHUNK_BYTES)
    file.closed = True
    return file


async def test_chunks_of_closed_files_are_read_once() -> None:
    reader, disk = reader_of(closed(1))
    for position in (CHUNK_BYTES, CHUNK_BYTES + 5, 2 * CHUNK_BYTES - 10):
        data, at = await reader.window(1, position, 10)
        assert (len(data), int.from_bytes(data[:8], "little"), at) == (CHUNK_BYTES, CHUNK_BYTES, position - CHUNK_BYTES)
    assert disk.asked == [(journal_name(1), CHUNK_BYTES, CHUNK_BYTES)]
    data, at = await reader.window(1, 2 * CHUNK_BYTES - 10, 11)
    assert (int.from_bytes(data[:8], "little"), len(data), at) == (2 * CHUNK_BYTES - 10, 11, 0), "across the edge"


async def test_bytes_that_may_still_change_are_not_kept() -> None:
    file = JournalFile(1, 64 * CHUNK_BYTES)
    reader, disk = reader_of(file)

    async def ask() -> tuple[int, int]:
        data, at = await reader.window(1, 100, 10)
        return int.from_bytes(data[:8], "little"), at

    file.written = CHUNK_BYTES - 1
    assert await ask() == await ask() == (100, 0)
    assert disk.asked == [(journal_name(1), 100, CHUNK_BYTES - 100)] * 2
    file.closed, file.in_flight = True, 1
    assert await ask() == (100, 0), "it is closed, but a write is under way"
    file.in_flight = 0
    assert await ask() == await ask() == (0, 100)
    assert len(disk.asked) == 4
    other = JournalFile(1, 64 * CHUNK_BYTES)
    other.written = CHUNK_BYTES
    reader, disk = reader_of(other)
    assert await ask() == await ask() == (0, 100), "an active file has chunks that are complete"
    assert len(disk.asked) == 1


async def test_sixteen_chunks_are_kept_and_the_ones_used_last() -> None:
    reader, disk = reader_of(closed(1), closed(2))
    for chunk in range(16):
        await reader.window(1, chunk * CHUNK_BYTES, 10)
    await reader.window(1, 0, 10)
    assert len(disk.asked) == 16
    await reader.window(2, 0, 10)
    await reader.window(1, 0, 10)
    assert len(disk.asked) == 17
    await reader.window(1, CHUNK_BYTES, 10)
    assert len(disk.asked) == 18, "the one that was used least lately has gone"
    assert len(reader._chunks) * CHUNK_BYTES == 16 * MIB


async def test_a_file_that_is_gone_is_not_found_and_not_kept() -> None:
    file = closed(1)
    reader, _ = reader_of(file, closed(2))
    await reader.window(1, 0, 10)
    await reader.window(2, 0, 10)
    reader.forget(file)
    del reader._files[1]  # type: ignore[attr-defined]
    for size in (10, CHUNK_BYTES + 1):
        with pytest.raises(NotFoundError, match="1 was recycled"):
            await reader.window(1, 0, size)
    assert list(reader._chunks) == [(2, 0)]

    class Vanishing(Reads):
        async def read(self, name: str, position: int, size: int) -> bytes:
            del files[3]
            return await super().read(name, position, size)

    files = {3: closed(3)}
    reader = JournalReader(Vanishing(), files)  # type: ignore[arg-type]
    data, _ = await reader.window(3, 0, 10)
    assert len(data) == CHUNK_BYTES, "what was read before is good"
    assert not reader._chunks, "and is not kept for another file of that id"
