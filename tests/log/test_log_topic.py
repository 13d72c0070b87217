"""The log of one topic by itself, over a journal of plain bytes: offsets, reads, and unsealed messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from log_lives import make_part

from danube.log import BatchCache, Entry, EntryType, Location, StoredBatch, TopicLog
from danube.log.format import FILE_HEADER_SIZE, TERMINATOR, encode_block
from danube.log.index import REGION_BYTES
from danube.log.recovered import RecoveredTopic
from danube.model import Durability
from danube.model.batch import STAMP_SIZE, check_part, read_stamp
from danube.model.errors import DataLossError, InternalError, NotFoundError

SIZE = 100
PART = make_part([bytes(SIZE)] * 2)
STORED = STAMP_SIZE + len(PART)
COST = len(PART) + len(PART) // 2 + 700
"""Of such a batch in the cache."""


class Shelf:
    """Stands in for the journal: its files are bytes, and what is submitted is committed when a test says so."""

    def __init__(self, chunk: int = 300) -> None:
        self.chunk = chunk
        self.files: dict[int, bytearray] = {}
        self.waiting: list[Entry] = []
        self.released: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.sequence = 0
        self.on_window: Callable[[int, int], None] = lambda file_id, position: None
        self.roll()

    def roll(self) -> None:
        self.active = len(self.files) + 1
        self.files[self.active] = bytearray(FILE_HEADER_SIZE) + TERMINATOR

    def submit(self, entry: Entry) -> None:
        self.waiting.append(entry)

    def commit(self) -> list[Entry]:
        entries, self.waiting = self.waiting, []
        self.sequence += 1
        file = self.files[self.active]
        position = len(file) - len(TERMINATOR)
        buffers, _ = encode_block(entries, file_id=self.active, position=position, sequence=self.sequence, watermark=0)
        file[position:] = b"".join(buffers)
        return entries

    async def window(self, file_id: int, position: int, size: int) -> tuple[bytes, int]:
        await trio.lowlevel.checkpoint()
        self.on_window(file_id, position)
        if file_id not in self.files:
            raise NotFoundError("recycled")
        before = min(position, 7)
        return bytes(self.files[file_id][position - before : position + max(size, self.chunk)]), before

    def is_live(self, file_id: int) -> bool:
        return file_id in self.files

    def release(self, topic_id: int, up_to_offset: int) -> None:
        self.released.append((topic_id, up_to_offset))

    def drop_topic(self, topic_id: int) -> None:
        self.dropped.append(topic_id)

    def stored_bytes(self, topic_id: int) -> int:
        return 1000 + topic_id


class Sealed:
    """A history of batches of one record each, at even offsets."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.asked: list[tuple[int, ...]] = []

    async def read(self, topic_id: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        self.asked.append((topic_id, offset, max_bytes))
        await trio.lowlevel.checkpoint()
        if offset >= self.end:
            return []
        base = offset + offset % 2
        return [StoredBatch(base, base + 1, b"", PART, check_part(PART), 1)]

    async def offset_at(self, topic_id: int, time_us: int) -> int | None:
        self.asked.append((topic_id, time_us))
        await trio.lowlevel.checkpoint()
        return time_us if time_us < self.end else None


class Bench:
    """A log on a shelf."""

    def __init__(
        self, *, chunk: int = 300, cached: int = 0, durability: Durability = Durability.DISK, **more: Any
    ) -> None:
        self.shelf = Shelf(chunk)
        self.told: list[int] = []
        self.log = TopicLog(
            1,
            durability,
            self.shelf,  # type: ignore[arg-type]
            BatchCache(cached * COST),
            9,
            on_unsealed=lambda log: self.told.append(log.unsealed_bytes),
            **more,
        )

    def put(self, count: int = 1, *, time_us: int = 1, settle: bool = True, noise: int = 0) -> list[StoredBatch]:
        """Append batches of two records, all in one commit."""
        batches = []
        for _ in range(count):
            for _ in range(noise):
                self.shelf.submit(Entry(EntryType.BATCH, 2, Durability.DISK, (b"D" * 61,)))
                self.shelf.submit(Entry(EntryType.CURSOR, 1, Durability.DISK, (b"D" * 61,)))
            batches.append(self.log.append(PART, check_part(PART), time_us))
        if settle:
            self.settle()
        return batches

    def settle(self) -> None:
        for entry in self.shelf.commit():
            if entry.batch is not None:
                self.log.settled(entry)

    async def read_all(self, offset: int = 0, max_bytes: int = 1) -> list[int]:
        """Return the base offsets of what is read one after the other, from an offset."""
        found: list[int] = []
        while batches := await self.log.read(offset, max_bytes):
            assert batches[0].base_offset <= offset or not found
            found += [batch.base_offset for batch in batches]
            for batch in batches:
                assert (batch.part, batch.header, batch.end_offset) == (PART, check_part(PART), batch.base_offset + 2)
                assert read_stamp(batch.stamp).base_offset == batch.base_offset
            offset = batches[-1].end_offset
        return found


# --- Writing ---


def test_a_batch_gets_its_offsets_and_its_stamp_when_it_is_appended() -> None:
    b = Bench(next_offset=7)
    owner = object()
    batch = b.log.append(PART, check_part(PART), 555, owner)
    assert (b.log.next_offset, b.log.end_offset, b.log.start_offset, b.log.journal_start) == (9, 7, 0, 0)
    assert (batch.base_offset, batch.end_offset, batch.append_time_us) == (7, 9, 555)
    stamp = read_stamp(batch.stamp)
    assert (stamp.total_size, stamp.topic_id, stamp.base_offset) == (STORED, 1, 7)
    assert (stamp.append_time_us, stamp.owner_epoch) == (555, 9)
    (entry,) = b.shelf.waiting
    assert (entry.type, entry.topic_id, entry.durability) == (EntryType.BATCH, 1, Durability.DISK)
    assert (entry.owner, entry.batch, entry.end_offset, entry.size) == (owner, batch, 9, STORED)
    assert b"".join(entry.buffers) == batch.stamp + PART
    assert b.log.get_cached(7) is None
    b.settle()
    assert b.log.end_offset == 9


def test_batches_settle_in_their_order() -> None:
    b = Bench(cached=9)
    first, second = b.put(2, settle=False)
    entries = b.shelf.commit()
    with pytest.raises(InternalError, match="out of order"):
        b.log.settled(entries[1])
    for entry in entries:
        b.log.settled(entry)
    assert b.log.end_offset == 4
    assert [b.log.get_cached(offset) for offset in range(5)] == [first, first, second, second, None]


def test_unsealed_bytes_are_reported_with_the_first_batch_and_at_each_segment() -> None:
    b = Bench(seal_bytes=3 * STORED)
    for number in range(10):
        b.put(time_us=100 + number)
    assert b.log.unsealed_bytes == 10 * STORED
    assert b.log.unsealed_since_us == 100
    assert [told // STORED for told in b.told] == [1, 3, 6, 9]
    b.log.sealed_up_to(8, 4 * STORED)
    assert (b.log.journal_start, b.log.unsealed_bytes) == (8, 6 * STORED)
    assert [told // STORED for told in b.told[4:]] == [6], "the rest has an age of its own"
    assert b.shelf.released == [(1, 8)]
    for _ in range(4):
        b.put()
    assert [told // STORED for told in b.told[5:]] == [9]
    b.log.sealed_up_to(8, 4 * STORED)
    b.log.sealed_up_to(3, 4 * STORED)
    assert b.log.unsealed_bytes == 10 * STORED, "that was said before"
    b.log.sealed_up_to(99, 10 * STORED)
    assert (b.log.journal_start, b.log.unsealed_bytes, b.log.unsealed_since_us) == (28, 0, 0)
    assert b.shelf.released[1:] == [(1, 28)]
    assert len(b.told) == 6
    b.put(time_us=900)
    assert b.told[6:] == [STORED], "again the first batch counts"
    assert b.log.unsealed_since_us == 900


def test_unsealed_bytes_are_never_negative_and_0_at_the_end() -> None:
    b = Bench()
    b.put(4)
    b.log.sealed_up_to(6, 99 * STORED)
    assert b.log.unsealed_bytes == 0
    b.put(4)
    b.log.sealed_up_to(16, STORED)
    assert b.log.unsealed_bytes == 0


@pytest.mark.parametrize("sealed", range(6, 17, 2))
def test_the_index_measures_what_is_left_of_a_part_of_unknown_size(sealed: int) -> None:
    b = Bench()
    for _ in range(4):
        b.shelf.roll()  # each pair of batches is in a region of its own
        b.put(2)
    b.log.expire(4)
    b.log.sealed_up_to(sealed, None)
    left = (16 - sealed) // 2 * STORED
    surplus = STORED if sealed % 4 and left else 0
    assert b.log.journal_start == sealed
    assert b.log.unsealed_bytes == left + surplus
    assert surplus <= b.log.unsealed_surplus_bytes <= 2 * surplus, "a whole region at most"
    assert bool(b.log.unsealed_since_us) == bool(left)


def test_the_unsealed_rest_is_as_old_as_its_first_batch() -> None:
    b = Bench()
    for number in range(4):
        b.shelf.roll()  # each batch is in a region of its own
        b.put(time_us=100 + number)
    b.log.sealed_up_to(4, 2 * STORED)
    assert b.log.unsealed_since_us == 102
    only = Bench()
    only.put(2, time_us=0)
    only.log.sealed_up_to(2, STORED)
    assert only.log.unsealed_since_us == 1, "0: no unsealed batch"


def test_expired_batches_are_stored_nowhere() -> None:
    b = Bench()
    for _ in range(4):
        b.shelf.roll()
        b.put()
    b.log.expire(4)
    assert (b.log.start_offset, b.log.journal_start) == (4, 4)
    assert b.log.unsealed_bytes == 2 * STORED
    assert b.shelf.released == [(1, 4)]
    for offset in (4, 3, 0):
        b.log.expire(offset)
    assert b.log.start_offset == 4
    b.log.sealed_up_to(6, STORED)
    b.log.expire(5)
    assert (b.log.start_offset, b.log.journal_start, b.log.unsealed_bytes) == (5, 6, STORED)
    b.log.expire(99)
    assert (b.log.start_offset, b.log.journal_start, b.log.unsealed_bytes) == (8, 8, 0)


@pytest.mark.parametrize("sealed", [4, 6])
def test_expiry_of_sealed_batches_does_not_change_the_rest(sealed: int) -> None:
    b = Bench()
    b.put(4)  # in one region, of which nothing tells how much is left behind an offset
    b.log.sealed_up_to(sealed, sealed // 2 * STORED)
    rest = b.log.unsealed_bytes, b.log.unsealed_since_us, list(b.told), list(b.shelf.released)
    assert rest[0] == (4 - sealed // 2) * STORED
    b.log.expire(4)
    assert b.log.start_offset == 4
    assert (b.log.unsealed_bytes, b.log.unsealed_since_us, b.told, b.shelf.released) == rest


def test_the_rest_of_many_segments_is_reported_when_it_fills_one_again() -> None:
    b = Bench(seal_bytes=3 * STORED)
    for _ in range(10):
        b.shelf.roll()
        b.put()
    b.log.expire(18)
    assert b.log.unsealed_bytes == STORED
    b.told.clear()
    b.put(3)
    assert [told // STORED for told in b.told] == [3]


def test_a_topic_that_is_gone_lets_go_of_everything() -> None:
    b = Bench(cached=9)
    b.put(3)
    assert b.log.stored_bytes == 1001
    b.log.drop()
    assert b.shelf.dropped == [1]
    assert b.log.get_cached(0) is None


# --- A next life ---


def recovered(count: int = 4, base: int = 10) -> RecoveredTopic:
    """A topic of batches of two records, each in a region of its own."""
    topic = RecoveredTopic(1, base)
    for number in range(count):
        b = Bench(next_offset=base + 2 * number)
        (batch,) = b.put(time_us=500 + number, settle=False)
        topic.add(read_stamp(batch.stamp), batch.header, Location(1, number * REGION_BYTES))
    return topic


@pytest.mark.parametrize(
    ("given", "offsets", "unsealed"),
    [
        ({}, (0, 0, 18), 4),
        ({"next_offset": 30}, (0, 0, 30), 4),
        ({"start_offset": 12}, (12, 12, 18), 3),
        ({"sealed_offset": 14}, (0, 14, 18), 2),
        ({"start_offset": 12, "sealed_offset": 14}, (12, 14, 18), 2),
        ({"start_offset": 16, "sealed_offset": 14}, (16, 16, 18), 1),
        ({"sealed_offset": 18}, (0, 18, 18), 0),
        ({"sealed_offset": 40}, (0, 40, 40), 0),
        ({"start_offset": 40}, (18, 18, 18), 0),
    ],
)
def test_a_log_goes_on_where_journal_history_and_metadata_say(
    given: dict[str, int], offsets: tuple[int, int, int], unsealed: int
) -> None:
    b = Bench(recovered=recovered(), **given)
    assert (b.log.start_offset, b.log.journal_start, b.log.end_offset) == offsets
    assert b.log.next_offset == b.log.end_offset
    assert b.log.unsealed_bytes == unsealed * STORED
    assert b.log.unsealed_since_us == (500 if unsealed else 0)
    assert b.told == [unsealed * STORED] * bool(unsealed)
    assert b.shelf.released == ([(1, offsets[1])] if offsets[1] else [])
    assert len(b.log.index) == max(unsealed, 1)


def test_a_log_without_a_journal_continues_behind_the_sealed_batches() -> None:
    b = Bench(next_offset=5, sealed_offset=8, start_offset=2)
    assert (b.log.start_offset, b.log.journal_start, b.log.end_offset, b.log.next_offset) == (2, 8, 8, 8)
    assert (b.log.unsealed_bytes, b.told) == (0, [])


def test_a_remote_log_has_nothing_in_the_journal() -> None:
    submitted: list[Entry] = []

    class Submitter:
        def submit(self, entry: Entry) -> None:
            submitted.append(entry)

    b = Bench(durability=Durability.REMOTE, submitter=Submitter(), next_offset=4, cached=5)
    assert b.log.journal_start == 4
    (batch,) = b.put(settle=False)
    assert not b.shelf.waiting
    b.log.settled(submitted[0])
    assert (b.log.journal_start, b.log.end_offset, b.log.unsealed_bytes, len(b.log.index)) == (6, 6, 0, 0)
    assert b.told == []
    assert b.log.get_cached(5) is batch


# --- Reading ---


@pytest.mark.parametrize("chunk", [1, 60, 300, 10_000])
@pytest.mark.parametrize("cached", [0, 3])
async def test_everything_is_read_from_every_offset_in_any_portions(chunk: int, cached: int) -> None:
    b = Bench(chunk=chunk, cached=cached)
    for number in range(8):
        if number in {3, 6}:
            b.shelf.roll()
        b.put(1 + number % 2, noise=number % 3)
    bases = list(range(0, b.log.end_offset, 2))
    for offset in range(b.log.end_offset):
        for max_bytes in (1, len(PART), len(PART) + 1, 3 * len(PART), 10**9):
            expected = [base for base in bases if base + 2 > offset]
            assert await b.read_all(offset, max_bytes) == expected
    assert await b.log.read(b.log.end_offset, 10**9) == []
    assert await b.log.read(b.log.end_offset + 5, 10**9) == []


@pytest.mark.parametrize("cached", [0, 3, 20])
async def test_a_read_returns_about_the_requested_bytes_and_at_least_one_batch(cached: int) -> None:
    b = Bench(cached=cached)
    for _ in range(4):
        b.put(3)
    for offset in (0, 1, 12, 20):
        for batches, max_bytes in ((1, 1), (1, len(PART)), (2, len(PART) + 1), (2, 2 * len(PART))):
            found = await b.log.read(offset, max_bytes)
            assert len(found) == min(batches, (24 - offset + 1) // 2)


async def test_a_read_from_the_disk_goes_on_in_the_cache() -> None:
    b = Bench(cached=3)
    b.put(6)
    windows: list[int] = []
    b.shelf.on_window = lambda file_id, position: windows.append(position)
    found = await b.log.read(4, 4 * len(PART))
    assert [batch.base_offset for batch in found] == [4, 6, 8, 10]
    assert found[1] is b.log.get_cached(6)
    windows.clear()
    assert [batch.base_offset for batch in await b.log.read(6, 10**9)] == [6, 8, 10]
    assert not windows, "without a look at the disk"


async def test_a_continued_read_does_not_start_from_the_beginning() -> None:
    b = Bench(chunk=1)
    for _ in range(6):
        b.put(2)
    windows: list[int] = []
    b.shelf.on_window = lambda file_id, position: windows.append(position)
    await b.log.read(20, 1)
    walked = len(windows)
    windows.clear()
    await b.log.read(22, 1)
    assert len(windows) < walked / 3
    windows.clear()
    await b.log.read(20, 1)
    assert len(windows) == walked, "only who reads on is expected"


async def test_reads_begin_where_the_topic_begins() -> None:
    b = Bench()
    b.put(5)
    b.log.expire(5)
    assert [batch.base_offset for batch in await b.log.read(0, 1)] == [4]
    assert await b.read_all(0) == [4, 6, 8]


async def test_sealed_batches_are_read_from_history() -> None:
    sealed = Sealed(4)
    b = Bench(sealed=sealed)
    b.put(5)
    b.log.sealed_up_to(6, STORED)
    (found,) = await b.log.read(1, 77)
    assert found.base_offset == 2
    assert sealed.asked == [(1, 1, 77)]
    # [4, 6) is in neither: a power loss took what was not synced, and numbers went on behind it.
    assert [batch.base_offset for batch in await b.log.read(4, 1)] == [6]
    assert [batch.base_offset for batch in await b.log.read(5, 1)] == [6]
    sealed.asked.clear()
    assert await b.read_all(6) == [6, 8]
    assert sealed.asked == []


async def test_behind_a_hole_the_very_first_message_is_read() -> None:
    b = Bench(sealed=Sealed(0))
    single = make_part([b"one"])
    for _ in range(4):
        b.log.append(single, check_part(single), 1)
    b.settle()
    b.log.sealed_up_to(2, 1)
    for offset in (0, 1, 2):
        assert [batch.base_offset for batch in await b.log.read(offset, 1)] == [2]


async def test_batches_that_leave_the_journal_during_a_read_are_read_from_history() -> None:
    sealed = Sealed(99)
    b = Bench(sealed=sealed)
    b.put(2)
    b.shelf.roll()
    b.put(2)

    def leave(file_id: int, position: int) -> None:
        if file_id in b.shelf.files and b.log.journal_start < 4:
            del b.shelf.files[file_id]
            b.log.sealed_up_to(4, STORED)

    b.shelf.on_window = leave
    (found,) = await b.log.read(1, 88)
    assert (found.base_offset, sealed.asked) == (2, [(1, 1, 88)])


async def test_batches_read_before_their_file_was_removed_are_valid() -> None:
    b = Bench(sealed=Sealed(99))
    b.put(2)
    b.shelf.roll()
    b.put(2)

    def leave(file_id: int, position: int) -> None:
        if file_id == 2:
            b.shelf.files.pop(2, None)

    b.shelf.on_window = leave
    assert [batch.base_offset for batch in await b.log.read(0, 10**9)] == [0, 2]
    with pytest.raises(DataLossError, match="offset 4 was in a journal file that is gone"):
        await b.log.read(4, 10**9)


async def test_who_reads_on_at_the_end_of_a_file_that_is_gone_finds_the_next_one() -> None:
    b = Bench()
    b.put(2)
    b.shelf.roll()
    b.put(2)
    assert len(await b.log.read(0, 2 * len(PART))) == 2
    b.log.expire(4)
    del b.shelf.files[1]
    assert [batch.base_offset for batch in await b.log.read(4, 10**9)] == [4, 6]


@pytest.mark.parametrize("at", [5, STAMP_SIZE + 40], ids=["stamp", "part"])
async def test_damage_is_named_and_batches_before_it_are_read(at: int) -> None:
    b = Bench()
    b.put(2)
    entry = b.put(1)[0]
    b.shelf.roll()
    b.put(1)
    place = bytes(b.shelf.files[1]).rindex(entry.stamp)
    b.shelf.files[1][place + at] ^= 1
    assert [batch.base_offset for batch in await b.log.read(0, 10**9)] == [0, 2]
    with pytest.raises(DataLossError, match=r"offsets \[4, 6\) are damaged, in journal file 1 at byte") as caught:
        await b.log.read(4, 10**9)
    assert str(place - 16) in str(caught.value)
    assert await b.read_all(6) == [6]


async def test_damage_at_the_end_reaches_to_the_end() -> None:
    b = Bench()
    b.put(1)
    last = b.put(1)[0]
    b.put(1)
    place = bytes(b.shelf.files[1]).rindex(last.stamp)
    b.shelf.files[1][place + 5] ^= 1
    with pytest.raises(DataLossError, match=r"offsets \[2, 6\) are damaged"):
        await b.log.read(2, 1)


async def test_a_batch_of_another_topic_or_of_later_offsets_is_damage() -> None:
    b = Bench()
    b.put(1)
    other = TopicLog(5, Durability.DISK, b.shelf, BatchCache(0), next_offset=2)  # type: ignore[arg-type]
    wrong = other.append(PART, check_part(PART), 1)
    b.shelf.waiting[-1].topic_id = 1
    (entry,) = b.shelf.commit()
    entry.batch = StoredBatch(2, 4, wrong.stamp, PART, wrong.header, 1)
    b.log.settled(entry)
    with pytest.raises(DataLossError, match=r"\[2, 4\)"):
        await b.log.read(2, 1)
    gap = Bench()
    gap.put(2)
    data = bytes(gap.shelf.files[1])
    first = data.index(b"DNB1")
    gap.shelf.files[1][first - 16] = EntryType.CURSOR  # the first batch is no batch any more
    with pytest.raises(DataLossError, match=r"offsets \[0, 2\) are damaged"):
        await gap.log.read(0, 1)


async def test_damage_in_a_file_that_is_gone_or_released_is_none() -> None:
    sealed = Sealed(99)
    b = Bench(sealed=sealed)
    b.put(3)
    place = bytes(b.shelf.files[1]).index(b"DNB1")

    def recycle(file_id: int, position: int) -> None:
        b.shelf.files[1][place + 5] ^= 1
        b.log.sealed_up_to(4, STORED)
        b.shelf.is_live = lambda file_id: False  # type: ignore[method-assign]
        b.shelf.on_window = lambda file_id, position: None

    b.shelf.on_window = recycle
    (found,) = await b.log.read(0, 5)
    assert (found.base_offset, sealed.asked) == (0, [(1, 0, 5)])

    c = Bench(sealed=sealed)
    c.put(3)

    def release(file_id: int, position: int) -> None:
        c.shelf.files[1][place + 5] ^= 1
        c.log.sealed_up_to(4, STORED)
        c.shelf.on_window = lambda file_id, position: None

    c.shelf.on_window = release
    (found,) = await c.log.read(0, 5)
    assert found.base_offset == 0, "what is released need not be good"


# --- Times ---


async def test_offsets_by_time_in_history_and_journal() -> None:
    sealed = Sealed(150)
    b = Bench(sealed=sealed)
    for number in range(6):
        b.shelf.roll()
        b.put(time_us=100 * number)
    assert [await b.log.offset_at(at) for at in (0, 1, 100, 101, 500, 501)] == [0, 2, 2, 4, 10, 12]
    assert sealed.asked == [], "nothing is sealed"
    b.log.sealed_up_to(4, STORED)
    assert await b.log.offset_at(3) == 3, "history knows"
    assert sealed.asked == [(1, 3)]
    assert await b.log.offset_at(201) == 6, "and if it does not, the journal does"
    b.log.expire(3)
    assert await b.log.offset_at(2) == 3
    b.log.expire(5)
    sealed.asked.clear()
    assert await b.log.offset_at(2) == 5
    assert sealed.asked == [], "all of it has expired"
    assert await b.log.offset_at(10**9) == 12


async def test_a_search_by_time_begins_near_its_end() -> None:
    b = Bench(chunk=1)
    for number in range(20):
        b.shelf.roll()
        b.put(time_us=100 * number)
    files: set[int] = set()
    b.shelf.on_window = lambda file_id, position: files.add(file_id)
    assert await b.log.offset_at(1801) == 38
    assert len(files) <= 3
