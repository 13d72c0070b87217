"""Recovery of files step by step: the scan of one, the choice of valid ones, and facts read from damaged bytes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from log_lives import make_part
from trio.testing import MockClock

from danube.log import _scan
from danube.log._carrying import carry_out
from danube.log._files import journal_name
from danube.log._salvage import salvage
from danube.log._scan import Found, Hole, Scanner
from danube.log._sources import UNKNOWN, Source, Sources, read_sources
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    ENTRY_HEADER_SIZE,
    FILE_HEADER_SIZE,
    TERMINATOR,
    Entry,
    EntryType,
    encode_block,
    encode_file_header,
)
from danube.model import Durability
from danube.model.batch import STAMP_SIZE, write_stamp
from danube.testing.disk import SimulatedDisk

FILE = 7
START = FILE_HEADER_SIZE


def control(size: int, topic_id: int = 1) -> Entry:
    return Entry(EntryType.CURSOR, topic_id, Durability.DISK, (bytes([5]) * size,))


def batch(topic_id: int, base: int, records: int = 1, size: int = 30) -> Entry:
    part = make_part([bytes([6]) * size] * records)
    stamp = write_stamp(len(part), topic_id, base, 1, 1)
    return Entry(EntryType.BATCH, topic_id, Durability.DISK, (stamp, part))


def block(sequence: int, *entries: Entry, file_id: int = FILE, watermark: int = 0) -> bytes:
    buffers, length = encode_block(entries, file_id=file_id, position=0, sequence=sequence, watermark=watermark)
    return b"".join(buffers)[:length]


async def disk_of(files: dict[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk(Random(1))
    for name, content in files.items():
        await disk.create(name, len(content))
        disk.content(name)[:] = content
    return disk


# --- The scan ---


@pytest.fixture(params=[50, 333, 4 << 20])
def reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is read at a time, the same is found."""
    monkeypatch.setattr(_scan, "READ_BYTES", request.param)


async def scan(content: bytes, **options: int | None) -> list[tuple[int, int] | Hole]:
    """Return position and sequence of each block, and the holes."""
    disk = await disk_of({"a": bytes(START) + content})
    scanner = Scanner("a", FILE, **options)
    found: list[tuple[int, int] | Hole] = []
    while (item := await carry_out(disk, scanner.next())) is not None:
        if isinstance(item, Found):
            data, at = item.data, item.block.position
            assert data[at : at + item.block.length] == content[item.position - START :][: item.block.length]
            found.append((item.position, item.block.sequence))
        else:
            found.append(item)
    assert await carry_out(disk, scanner.next()) is None, "the end stays the end"
    return found


BLOCKS = [block(3, control(10)), block(4, control(200), control(5)), block(5, control(100))]
AT = [START, START + len(BLOCKS[0]), START + len(BLOCKS[0]) + len(BLOCKS[1])]
END = START + sum(map(len, BLOCKS))
WHOLE = b"".join(BLOCKS)
OLD = b"".join(block(9 + number, control(40), file_id=FILE - 1) for number in range(9))


def flipped(content: bytes, position: int) -> bytes:
    at = position - START
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("behind", [TERMINATOR, TERMINATOR + OLD, OLD, bytes(5000)])
async def test_a_whole_file_is_found_block_by_block(autojump_clock: MockClock, behind: bytes) -> None:
    assert await scan(WHOLE + behind) == [(AT[0], 3), (AT[1], 4), (AT[2], 5)]


@pytest.mark.usefixtures("reads")
async def test_a_file_that_ends_without_zeros_was_cut(autojump_clock: MockClock) -> None:
    assert await scan(WHOLE) == [(AT[0], 3), (AT[1], 4), (AT[2], 5), Hole(END, END, 0)]


@pytest.mark.usefixtures("reads")
async def test_a_range_is_scanned_from_its_start_to_its_end(autojump_clock: MockClock) -> None:
    assert await scan(WHOLE + TERMINATOR, start=AT[1], end=AT[2]) == [(AT[1], 4)]
    assert await scan(WHOLE + TERMINATOR, start=AT[1], end=AT[1]) == []


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("bad", [0, 60])
async def test_a_damaged_block_is_a_hole_up_to_the_next_one(autojump_clock: MockClock, bad: int) -> None:
    torn = len(BLOCKS[1]) if bad else 0
    expected = [(AT[0], 3), Hole(AT[1], AT[2], torn), (AT[2], 5)]
    assert await scan(flipped(WHOLE, AT[1] + bad) + TERMINATOR) == expected


@pytest.mark.usefixtures("reads")
async def test_a_damaged_first_and_last_block_are_holes(autojump_clock: MockClock) -> None:
    first = await scan(flipped(WHOLE, AT[0] + 60) + TERMINATOR)
    assert first == [Hole(AT[0], AT[1], len(BLOCKS[0])), (AT[1], 4), (AT[2], 5)]
    last = await scan(flipped(WHOLE, AT[2] + 60) + TERMINATOR + bytes(700))
    assert last[:2] == [(AT[0], 3), (AT[1], 4)]
    (hole,) = last[2:]
    assert isinstance(hole, Hole)
    assert (hole.start, hole.torn_bytes) == (AT[2], len(BLOCKS[2]))
    assert hole.end > hole.start


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("kept", [1, BLOCK_HEADER_SIZE - 1, BLOCK_HEADER_SIZE, BLOCK_HEADER_SIZE + 20])
async def test_a_file_that_ends_within_a_block_has_a_hole_there(autojump_clock: MockClock, kept: int) -> None:
    found = await scan(WHOLE[: AT[2] - START + kept])
    assert found[:2] == [(AT[0], 3), (AT[1], 4)]
    torn = len(BLOCKS[2]) if kept >= 16 else 0
    assert found[2:] == [Hole(AT[2], AT[2] + kept, torn)]


@pytest.mark.usefixtures("reads")
async def test_zeros_or_foreign_bytes_before_a_block_are_a_hole(autojump_clock: MockClock) -> None:
    for between in (TERMINATOR, bytes(500), OLD):
        found = await scan(BLOCKS[0] + between + BLOCKS[1] + TERMINATOR)
        where = AT[1] + len(between)
        assert found == [(AT[0], 3), Hole(AT[1], where, 0), (where, 4)]


@pytest.mark.usefixtures("reads")
async def test_sequences_only_grow(autojump_clock: MockClock) -> None:
    """A block of a lower sequence is left from before a recovery that has cut it off, or a copy."""
    found = await scan(BLOCKS[1] + BLOCKS[1] + BLOCKS[0] + BLOCKS[2] + TERMINATOR)
    where = START + 2 * len(BLOCKS[1]) + len(BLOCKS[0])
    assert found == [(START, 4), Hole(START + len(BLOCKS[1]), where, len(BLOCKS[1])), (where, 5)]


@pytest.mark.usefixtures("reads")
async def test_behind_the_last_known_sequence_nothing_is_looked_for(autojump_clock: MockClock) -> None:
    garbage = b"\7" * 300
    assert await scan(WHOLE + garbage, last=5) == [(AT[0], 3), (AT[1], 4), (AT[2], 5)]
    assert await scan(WHOLE + garbage + block(6), last=5) == [(AT[0], 3), (AT[1], 4), (AT[2], 5)]
    found = await scan(WHOLE + TERMINATOR + bytes(100), last=6)
    assert found[:3] == [(AT[0], 3), (AT[1], 4), (AT[2], 5)]
    (hole,) = found[3:]
    assert isinstance(hole, Hole), "it ends too early, although it ends cleanly"
    assert (hole.start, hole.torn_bytes) == (END, 0)


@pytest.mark.usefixtures("reads")
async def test_the_end_of_a_scan_holds_the_buffer_of_its_block(autojump_clock: MockClock) -> None:
    large = block(9, control(1000), control(2000))
    assert await scan(large + BLOCKS[0] + block(10) + TERMINATOR) == [
        (START, 9),
        Hole(START + len(large), START + len(large) + len(BLOCKS[0]), len(BLOCKS[0])),
        (START + len(large) + len(BLOCKS[0]), 10),
    ]


# --- Which files count ---


def header(file_id: int, first: int, live: Sequence[tuple[int, int]] = (), **more: int) -> bytes:
    fields = {
        "resume_after": first - 1,
        "watermark": 0,
        "file_size": 5000,
        "identity": 9,
        "metadata": 0,
    }
    fields |= more
    return encode_file_header(
        file_id,
        first,
        fields["resume_after"],
        fields["watermark"],
        live,
        file_size=fields["file_size"],
        identity=fields["identity"],
        metadata=fields["metadata"],
        prelude=bool(fields.get("prelude")),
    )


async def sources(files: dict[int, bytes], size: int = 5000) -> Sources:
    disk = await disk_of({journal_name(number): head.ljust(size, b"\0") for number, head in files.items()})
    return await carry_out(disk, read_sources(await disk.list() | {"spare-0000000000000063.log": 5000, "notes.txt": 3}))


async def test_a_directory_without_files_says_nothing(autojump_clock: MockClock) -> None:
    found = await sources({})
    assert (found.live, found.unused, found.void, found.cut) == ([], [], [], {})
    assert (found.newest_id, found.watermark, found.highest) == (0, 0, 0)
    assert (found.expected_ids, found.identity, found.metadata) == (set(), 0, 0)


async def test_the_newest_header_says_which_older_files_count_and_where_they_end(autojump_clock: MockClock) -> None:
    found = await sources(
        {
            2: header(2, 11, watermark=30, metadata=50),
            3: header(3, 21),
            5: header(5, 41, [(2, 20), (4, 40)], watermark=25, metadata=40),
        }
    )
    assert found.live == [Source(2, 5000, 11, 20, True), Source(5, 5000, 41, None, True)]
    assert found.void == [Source(3, 5000, 21, 40, False)]
    assert found.live[0].name == journal_name(2)
    assert (found.newest_id, found.identity, found.expected_ids) == (5, 9, {2, 4})
    assert (found.watermark, found.highest, found.metadata) == (30, 40, 50)


async def test_void_files_and_other_identities_say_nothing(autojump_clock: MockClock) -> None:
    found = await sources(
        {
            1: header(1, 1, metadata=70, identity=8),
            2: header(2, 11, watermark=99, metadata=99),
            3: header(3, 21, [(1, 10)], metadata=60),
        }
    )
    assert [source.file_id for source in found.live] == [1, 3]
    assert (found.watermark, found.metadata, found.highest) == (0, 60, 20)


async def test_files_that_did_not_fit_into_the_list_count_and_end_where_a_later_one_begins(
    autojump_clock: MockClock,
) -> None:
    listed = [(number, 10 * number) for number in range(2, 126)]
    found = await sources(
        {
            1: header(1, 5),
            2: header(2, 11),
            3: header(3, 21),
            4: b"\7" * 100,
            60: header(60, 591, metadata=7),
            200: header(200, 1251, listed),
            30: header(30, 700, resume_after=650),
        }
    )
    limits = {source.file_id: (source.limit, source.exact) for source in found.live}
    assert limits == {
        1: (10, False),
        2: (20, False),
        3: (30, True),
        4: (40, True),
        30: (300, True),
        60: (600, True),
        200: (None, True),
    }
    assert found.expected_ids == set(range(3, 126)), "of 124 the oldest one did not fit"
    without = await sources({126: header(126, 1300), 200: header(200, 1251, listed)})
    assert [source.file_id for source in without.void] == [126], "it is newer than the list begins, and not in it"


async def test_newer_than_the_newest_header_are_files_without_blocks_only(autojump_clock: MockClock) -> None:
    former = header(2, 11)
    found = await sources(
        {
            3: header(3, 21, [(1, 10)]),
            4: bytes(START) + b"something of a former life",
            5: former,
            6: header(6, 31, prelude=1),
            7: b"\7" * START + block(33, file_id=7, watermark=32),
            8: b"\7" * START,
        },
        size=6000,
    )
    assert [source.file_id for source in found.unused] == [5, 4]
    assert [source.file_id for source in found.void] == [6]
    assert found.live == [
        Source(3, 6000, 21, 32, True),
        Source(7, 6000, 33, None, True),
        Source(8, 6000, UNKNOWN, None, True),
    ]
    assert (found.newest_id, found.watermark, found.highest) == (3, 32, 32)


async def test_a_prelude_that_is_listed_counts(autojump_clock: MockClock) -> None:
    found = await sources({2: header(2, 11, prelude=1), 3: header(3, 21, [(2, 20)])})
    assert found.live == [Source(2, 5000, 11, 20, True), Source(3, 5000, 21, None, True)]


async def test_files_that_are_shorter_than_they_were_are_cut(autojump_clock: MockClock) -> None:
    heads = {1: header(1, 1), 2: header(2, 11), 3: header(3, 21, [(1, 10)])}
    assert (await sources(heads, 5000)).cut == {}
    assert (await sources(heads, 4999)).cut == {journal_name(1): 4999, journal_name(3): 4999}
    disk = await disk_of({journal_name(3): header(3, 21, [(1, 10)]).ljust(5000, b"\0"), journal_name(1): b"\7" * 4095})
    assert (await carry_out(disk, read_sources(await disk.list()))).cut == {journal_name(1): 4095}
    disk = await disk_of({journal_name(3): header(3, 21, [(1, 10)]).ljust(5000, b"\0"), journal_name(1): b"\7" * 4096})
    assert (await carry_out(disk, read_sources(await disk.list()))).cut == {}


# --- What damaged bytes still tell ---


async def salvaged(data: bytes, *, bounded: bool = True) -> tuple[dict[int, tuple[int, int]], bool]:
    disk = await disk_of({"a": b"\1" * 100 + data + b"\1" * 1000})
    found = await carry_out(disk, salvage("a", FILE, 100, 100 + len(data), bounded=bounded))
    assert (found.file, found.start, found.end) == (FILE, 100, 100 + len(data))
    return found.topics, found.complete


def framed(*entries: Entry) -> list[bytes]:
    """Block header and entries, one by one."""
    data = block(3, *entries)
    pieces, at = [data[:BLOCK_HEADER_SIZE]], BLOCK_HEADER_SIZE
    for entry in entries:
        pieces.append(data[at : at + ENTRY_HEADER_SIZE + entry.size])
        at += ENTRY_HEADER_SIZE + entry.size
    return pieces


async def test_a_block_with_only_a_wrong_checksum_is_reported_completely(autojump_clock: MockClock) -> None:
    pieces = framed(batch(1, 10, 3), control(20, 5), batch(2, 7), batch(1, 13, 2), batch(1, 4))
    expected = {1: (4, 15), 2: (7, 8)}
    for bounded in (True, False):
        assert await salvaged(b"".join(pieces), bounded=bounded) == (expected, bounded)
    two = b"".join(pieces) + block(4, batch(3, 0)) + TERMINATOR
    assert await salvaged(two) == (expected | {3: (0, 1)}, True)
    assert await salvaged(b"") == ({}, True)
    empty = framed(control(0))[1]
    assert await salvaged(b"".join(pieces) + empty) == (expected, True), "an entry without a payload is whole"


async def test_an_entry_without_its_stamp_names_its_topic(autojump_clock: MockClock) -> None:
    head, first, second = framed(batch(1, 10), batch(2, 5))
    broken = bytearray(first)
    broken[ENTRY_HEADER_SIZE + 9] ^= 1
    assert await salvaged(head + broken + second) == ({1: (0, 0), 2: (5, 6)}, True)
    again = framed(batch(1, 11))[1]
    assert await salvaged(head + broken + again) == ({1: (11, 12)}, True), "what is known of another batch counts"
    assert await salvaged(head + again + broken) == ({1: (11, 12)}, True)


@pytest.mark.parametrize(
    "damage",
    [(0, 0x40), (1, 0x04), (1, 0x01 << 7), (4, 0x01), (7, 0x40)],
    ids=["type", "durability", "durability too", "length", "a length beyond the end"],
)
async def test_a_stamp_behind_a_damaged_entry_header_counts(autojump_clock: MockClock, damage: tuple[int, int]) -> None:
    head, first, second = framed(batch(1, 10, 4), batch(2, 5))
    broken = bytearray(first)
    broken[damage[0]] ^= damage[1]
    assert await salvaged(head + broken + second) == ({1: (10, 14), 2: (5, 6)}, True)
    assert await salvaged(head + broken) == ({1: (10, 14)}, True)


async def test_all_durabilities_are_known(autojump_clock: MockClock) -> None:
    for durability in (Durability.NONE, Durability.OS, Durability.DISK):
        entry = Entry(EntryType.CURSOR, 5, durability, (b"\7" * 30,))
        head, only = framed(entry)
        assert await salvaged(head + only + framed(batch(1, 0))[1]) == ({1: (0, 1)}, True)


async def test_an_entry_of_which_header_and_stamp_are_damaged_is_passed_over(autojump_clock: MockClock) -> None:
    head, first, second = framed(batch(1, 10), batch(2, 5))
    broken = bytearray(first)
    broken[0] ^= 0x40
    broken[ENTRY_HEADER_SIZE + 9] ^= 1
    assert await salvaged(head + broken + second) == ({2: (5, 6)}, False)
    broken = bytearray(framed(control(30))[1])
    broken[1] = 3
    assert await salvaged(head + broken + second) == ({2: (5, 6)}, False), "no durability has this number"


async def test_behind_garbage_it_goes_on_at_a_batch_or_a_block(autojump_clock: MockClock) -> None:
    head, first = framed(batch(1, 10))
    garbage = b"\xee" * 45
    assert await salvaged(head + garbage + first) == ({1: (10, 11)}, False)
    assert await salvaged(garbage + block(4, batch(2, 3)) + first) == ({2: (3, 4), 1: (10, 11)}, False)
    assert await salvaged(garbage + first + block(4, batch(2, 3))) == ({2: (3, 4), 1: (10, 11)}, False)
    assert await salvaged(head + garbage) == ({}, False)
    assert await salvaged(first + head[:10]) == ({1: (10, 11)}, True), "a block that was begun"
    assert await salvaged(first + b"\1" * (ENTRY_HEADER_SIZE - 1)) == ({1: (10, 11)}, False), "too short for an entry"


async def test_without_a_bound_what_lies_behind_garbage_may_be_of_a_former_life(autojump_clock: MockClock) -> None:
    head, first, second = framed(batch(1, 10), batch(2, 5))
    assert await salvaged(head + first + b"\xee" * 45 + second, bounded=False) == ({1: (10, 11)}, False)


async def test_a_count_that_cannot_be_is_not_believed(autojump_clock: MockClock) -> None:
    head, first = framed(batch(1, 10, 2))
    total = len(first) - ENTRY_HEADER_SIZE
    at = ENTRY_HEADER_SIZE + STAMP_SIZE + 8
    for count, behind in ((0, 11), (1, 11), (2, 12), (total, 10 + total), (total + 1, 11), (2**32 - 1, 11)):
        data = first[:at] + count.to_bytes(4, "little") + first[at + 4 :]
        assert await salvaged(head + data) == ({1: (10, behind)}, True)


async def test_a_batch_under_another_type_is_a_batch(autojump_clock: MockClock) -> None:
    head, first = framed(batch(1, 10))
    assert await salvaged(head + bytes([EntryType.CURSOR]) + first[1:]) == ({1: (10, 11)}, True)
