"""Recovery of a few files, to the last number, and its results for topics and producers."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

import msgspec
import pytest
import trio
from log_lives import make_part
from trio.testing import MockClock

from danube.log import Entry, EntryType, Location, ProducedBatch, ProducerTable, StoredBatch, Verdict
from danube.log._actions import Create, Steps, SyncDirectory
from danube.log._carrying import carry_out
from danube.log._copy import TailCopy, block_of
from danube.log._files import FREED_MARGIN, FileTable, JournalFile, damaged_name, journal_name, spare_name
from danube.log._sources import read_sources
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    METADATA_ENTRY,
    TERMINATOR,
    Block,
    encode_block,
    encode_file_header,
    parse_blocks,
    parse_entries,
    read_file_header,
)
from danube.log.producers import ProducerEntry
from danube.log.recovered import Corruption, Recovered, RecoveredTopic, TornTail
from danube.log.recovery import Recovery
from danube.log.snapshots import cut
from danube.model import BatchHeader, Durability, Limits, Stamp
from danube.model.batch import BatchFlags, check_part, read_stamp, write_stamp
from danube.model.errors import (
    CorruptBatchError,
    DataLossError,
    DuplicateSequenceError,
    JournalFullError,
    ProducerFencedError,
)
from danube.testing.disk import SimulatedDisk

SIZE = 16 * 1024
START = FILE_HEADER_SIZE


def control(topic_id: int = 1, payload: bytes = b"x", kind: EntryType = EntryType.CURSOR) -> Entry:
    return Entry(kind, topic_id, Durability.OS, (payload,))


def batch(topic_id: int, base: int, records: int = 1, size: int = 30, *, sequence: int = 0) -> Entry:
    part = make_part([bytes([6]) * size] * records, sequence)
    return Entry(
        EntryType.BATCH, topic_id, Durability.DISK, (write_stamp(len(part), topic_id, base, 100 + base, 1), part)
    )


def freed(*ids: int) -> Entry:
    payload = b"".join(number.to_bytes(8, "little") for number in ids)
    return Entry(EntryType.FREED, 0, Durability.DISK, (payload,))


def metadata(identity: int, revision: int) -> Entry:
    return Entry(EntryType.METADATA, 0, Durability.DISK, (METADATA_ENTRY.pack(identity, revision),))


def block(file_id: int, sequence: int, *entries: Entry, watermark: int = 0) -> bytes:
    buffers, length = encode_block(entries, file_id=file_id, position=0, sequence=sequence, watermark=watermark)
    return b"".join(buffers)[:length]


def file(
    file_id: int, first: int, *blocks: bytes, live: Sequence[tuple[int, int]] = (), size: int = SIZE, **more: int
) -> tuple[str, bytes]:
    fields = {"watermark": 0, "identity": 9, "metadata": 0, "resume_after": first - 1} | more
    head = encode_file_header(
        file_id,
        first,
        fields["resume_after"],
        fields["watermark"],
        live,
        file_size=size,
        identity=fields["identity"],
        metadata=fields["metadata"],
    )
    return journal_name(file_id), (head + b"".join(blocks) + TERMINATOR).ljust(size, b"\0")


class Witness:
    def __init__(self) -> None:
        self.batches: list[tuple[int, int, Location]] = []
        self.controls: list[tuple[int, int, bytes, Durability]] = []
        self.snapshots: list[tuple[int, bytes]] = []
        self.forgotten: list[int] = []

    def batch(self, topic_id: int, stamp: Stamp, header: BatchHeader, location: Location) -> None:
        self.batches.append((topic_id, stamp.base_offset, location))

    def control(self, entry_type: int, topic_id: int, payload: bytes, durability: Durability) -> None:
        self.controls.append((entry_type, topic_id, payload, durability))

    def snapshot(self, topic_id: int, state: bytes) -> None:
        self.snapshots.append((topic_id, state))

    def forget(self, topic_id: int) -> None:
        self.forgotten.append(topic_id)


class Found:
    """A recovery, and all that it has to say."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.disk = SimulatedDisk(Random(1))
        self.table = FileTable()
        self.witness = Witness()
        self.recovered: Recovered
        self.recovery = Recovery(self.table, SIZE)

    async def run(self, synced: int = 0) -> Found:
        await self.write()
        return await self.look(synced)

    async def write(self) -> None:
        for name, content in self.files.items():
            await self.disk.create(name, len(content))
            await self.disk.write(name, 0, [content], sync=True)
        await self.disk.sync_directory()

    async def look(self, synced: int = 0) -> Found:
        self.standing = await carry_out(self.disk, self.recovery.survey())
        self.recovered = await carry_out(self.disk, self.recovery.run(self.witness, synced))
        return self

    def blocks(self) -> list[tuple[int, list[int]]]:
        """Return sequence and entry types of the blocks of the file that it goes on in."""
        data = bytes(self.disk.content(self.recovery.active.name))
        blocks = parse_blocks(data, self.recovery.active.file_id, START)
        return [
            (item.sequence, [int(entry.type) for entry in parse_entries(data, item)])
            for item in blocks
            if isinstance(item, Block)
        ]


async def recover(*files: tuple[str, bytes], synced: int = 0) -> Found:
    return await Found(dict(files)).run(synced)


def damaged(content: tuple[str, bytes], position: int) -> tuple[str, bytes]:
    name, data = content
    return name, data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


BODY = [block(1, 10, batch(1, 0, 2)), block(1, 11, batch(2, 5), control(1, b"a")), block(1, 12, batch(1, 2))]
TAIL = [block(3, 13, control(2, b"b"), batch(2, 6, 3), watermark=12), block(3, 14, batch(1, 3), control(1, b"c"))]
BODY_AT = [START, START + len(BODY[0]), START + len(BODY[0]) + len(BODY[1])]
BODY_END = START + sum(map(len, BODY))


def body(*blocks: bytes) -> tuple[str, bytes]:
    return file(1, 10, *(blocks or BODY))


def tail(*blocks: bytes, **more: int) -> tuple[str, bytes]:
    return file(3, 13, *(blocks or TAIL), live=[(1, 12)], **({"watermark": 12} | more))


# --- Healthy files ---


async def test_body_and_tail_of_a_healthy_journal(autojump_clock: MockClock) -> None:
    f = await recover(body(), tail(metadata=40), (spare_name(7), bytes(SIZE)), (spare_name(8), bytes(99)))
    r = f.recovery
    assert (f.standing.begun, f.standing.identity, f.standing.metadata, f.standing.end) == (True, 9, 40, 14)
    assert (f.standing.newest_file, f.standing.missing_files, f.standing.cut_files) == (3, (), {})
    assert (f.recovered.blocks, f.recovered.batches, f.recovered.torn) == (5, 5, None)
    assert (f.recovered.corruptions, f.recovered.missing_files) == ([], [])
    assert [(topic_id, base) for topic_id, base, _ in f.witness.batches] == [(1, 0), (2, 5), (1, 2), (2, 6), (1, 3)]
    assert f.witness.controls == [
        (EntryType.CURSOR, 1, b"a", Durability.OS),
        (EntryType.CURSOR, 2, b"b", Durability.OS),
        (EntryType.CURSOR, 1, b"c", Durability.OS),
    ]
    assert f.witness.batches[1][2] == Location(1, BODY_AT[1] + BLOCK_HEADER_SIZE)
    active = r.active
    assert f.witness.batches[3][2] == Location(active.file_id, START + BLOCK_HEADER_SIZE + 17)
    first, second = f.table
    assert second is active
    assert (first.file_id, first.closed, first.last_sequence, first.end, first.written) == (1, True, 12, SIZE, SIZE)
    assert {topic_id: end for topic_id, (_, end) in first.live.items()} == {1: 3, 2: 6}
    assert {topic_id: end for topic_id, (_, end) in active.live.items()} == {1: 4, 2: 9}
    assert (r.last_sequence, r.identity, r.metadata) == (16, 9, 40)
    assert f.blocks() == [(15, [2, 1]), (16, [1, 2])], "sequences are not used twice"
    assert (active.last_sequence, active.end, active.written, active.closed) == (16, active.end, active.end, False)
    assert active.end == START + len(TAIL[0]) + len(TAIL[1])
    header = read_file_header(bytes(f.disk.content(active.name)), active.file_id)
    assert header is not None
    assert (header.first_sequence, header.resume_after, header.watermark) == (15, 12, 12)
    assert (header.live, header.file_size, header.identity, header.metadata) == (((1, 12),), SIZE, 9, 40)
    # Of the old files the first stays, the other and the spare that was used got numbers that no file ever had.
    assert active.file_id == 9
    assert r.spares == [spare_name(10)]
    assert f.disk.names() == sorted([journal_name(1), active.name, spare_name(10)])
    assert r.next_number == 11
    assert f.disk._held_names.keys() == set(f.disk.names()), "and all of it is durable"


async def test_an_empty_directory(autojump_clock: MockClock) -> None:
    f = await recover()
    assert (f.standing.begun, f.recovered.blocks, f.recovery.last_sequence) == (False, 0, 0)
    assert (f.recovery.active.file_id, f.recovery.active.end, f.recovery.next_number) == (1, START, 2)
    assert f.blocks() == []


async def test_the_first_file_of_a_journal_may_have_lost_its_header(autojump_clock: MockClock) -> None:
    name, data = file(1, 1, block(1, 1, batch(1, 0)), block(1, 2, batch(1, 1)))
    f = await recover((name, b"\7" * START + data[START:]))
    assert (f.recovered.corruptions, f.recovered.torn, f.recovered.blocks) == ([], None, 2)


async def test_files_that_were_made_ready_become_spares_and_may_be_used_at_once(autojump_clock: MockClock) -> None:
    f = await recover(body(), tail(), (journal_name(4), bytes(SIZE)), (journal_name(5), bytes(SIZE - 1)))
    assert f.recovery.active.file_id == 7
    assert f.recovery.spares == [spare_name(8)]
    assert journal_name(5) not in f.disk.names(), "its size is another"
    assert f.disk.names() == sorted([journal_name(1), journal_name(7), spare_name(8)])


async def test_other_files_are_named_and_left_alone(autojump_clock: MockClock) -> None:
    f = await recover(body(), tail(), ("notes.txt", b"mine"), (damaged_name(2), b"kept"))
    assert f.standing.other_files == {"notes.txt"}
    assert {"notes.txt", damaged_name(2)} < set(f.disk.names())


def snapshot(topic_id: int, state: bytes, generation: int, *, covers: int = 0) -> list[Entry]:
    """A snapshot in parts of four bytes."""
    payloads = cut(state, generation=generation, covers=covers, part_bytes=4)
    return [Entry(EntryType.SNAPSHOT, topic_id, Durability.DISK, payload) for payload in payloads]


async def test_a_snapshot_comes_with_its_last_part_and_in_its_place_of_the_log(autojump_clock: MockClock) -> None:
    first, last = snapshot(1, b"state 1", 7, covers=12)
    f = await recover(
        body(block(1, 10, batch(1, 0, 2)), block(1, 11, control(1, b"a")), block(1, 12, control(2, b"b"), first)),
        tail(block(3, 13, control(1, b"c"), last, watermark=12), block(3, 14, control(1, b"d"))),
    )
    assert f.witness.snapshots == [(1, b"state 1")]
    assert [payload for _, _, payload, _ in f.witness.controls] == [b"a", b"b", b"c", b"d"], (
        "it may contain some of them"
    )
    assert f.recovery.snapshots.generation == 7
    old, active = f.table
    assert (old.topics, active.topics) == ({2}, {1}), "what the first file has of topic 1 is covered"


async def test_a_snapshot_covers_no_file_with_later_entries(autojump_clock: MockClock) -> None:
    f = await recover(
        body(block(1, 10, control(1, b"a")), block(1, 11, batch(1, 0)), block(1, 12, control(1, b"b"))),
        tail(block(3, 13, *snapshot(1, b"s", 1, covers=11), watermark=12)),
    )
    assert f.witness.snapshots == [(1, b"s")]
    assert [file.topics for file in f.table] == [{1}, {1}], "that of sequence 12 had not settled"


@pytest.mark.parametrize("harm", ["torn", "damaged", "missing"])
async def test_without_one_of_its_parts_a_snapshot_is_none_and_the_one_before_counts(
    autojump_clock: MockClock, harm: str
) -> None:
    new = snapshot(1, b"new state", 2, covers=12)
    assert len(new) == 3
    blocks = [
        block(3, 13, new[0], watermark=12),
        block(3, 14, new[1], watermark=12),
        block(3, 15, new[2], watermark=12),
    ]
    log = {
        "torn": tail(*blocks[:2]),
        "damaged": damaged(tail(*blocks), START + len(blocks[0]) + 80),
        "missing": tail(blocks[0], block(3, 14, control(2)), block(3, 15, new[2])),
    }[harm]
    old = body(block(1, 10, *snapshot(1, b"old", 1)), block(1, 11, control(1, b"a")), block(1, 12, control(1, b"b")))
    f = await recover(old, log)
    assert f.witness.snapshots == [(1, b"old")]
    assert [payload for kind, topic_id, payload, _ in f.witness.controls if topic_id == 1] == [b"a", b"b"]
    assert 1 in f.table.get(1).topics, "the file that it needs is not free"  # type: ignore[union-attr]
    assert f.recovery.snapshots.generation == 2, "the next one is newer than both"


async def test_a_tombstone_voids_what_was_before_it(autojump_clock: MockClock) -> None:
    grave = Entry(EntryType.TOMBSTONE, 1, Durability.DISK, ())
    f = await recover(
        body(block(1, 10, batch(1, 0, 2), *snapshot(1, b"s", 1)), block(1, 11, batch(2, 5)), block(1, 12, control(1))),
        tail(block(3, 13, grave, watermark=12)),
    )
    assert f.witness.forgotten == [1]
    assert set(f.recovered.topics) == {2}
    old, active = f.table
    assert (old.topics, set(old.live), active.topics) == ({2}, {2}, set())
    assert active.tombstones == {1: active.file_id}
    # An acknowledgement that was on its way makes it no unknown topic.
    f = await recover(body(block(1, 10, batch(1, 0)), block(1, 11, grave), block(1, 12, control(1))), tail())
    assert f.table.get(1).topics == set()  # type: ignore[union-attr]
    # A topic that was restored has a new life behind it.
    f = await recover(
        body(block(1, 10, batch(1, 0, 2)), block(1, 11, control(1, b"a")), block(1, 12, grave)),
        tail(block(3, 13, *snapshot(1, b"s", 2), watermark=12), block(3, 14, batch(1, 7))),
    )
    assert f.witness.snapshots == [(1, b"s")]
    assert (f.recovered.topics[1].first_offset, f.recovered.topics[1].damaged) == (7, [])
    assert [file.topics for file in f.table] == [set(), {1}]


async def test_freed_files_are_not_missed(autojump_clock: MockClock) -> None:
    gone = [block(3, 13, freed(1, 2)), block(3, 14, control(1, b"c"))]
    f = await recover(file(3, 13, *gone, live=[(1, 12), (2, 12)], watermark=12))
    assert f.standing.missing_files == ()
    assert f.recovered.missing_files == []
    assert [payload for _, _, payload, _ in f.witness.controls] == [b"c"]
    header = read_file_header(bytes(f.disk.content(f.recovery.active.name)), f.recovery.active.file_id)
    assert header is not None
    assert header.live == ()
    late = file(3, 13, block(3, 13, freed(1)), live=[(1, 12), (2, 12)], watermark=12)
    assert (await recover(late)).standing.missing_files == (2,)
    # The one that says so may itself be cut off: then they are missing.
    torn = damaged(file(3, 13, *gone, live=[(1, 12)], watermark=12), START + 60)
    f = await recover(torn)
    assert f.standing.missing_files == (1,)
    assert f.recovered.missing_files == [1]
    assert f.recovered.torn == TornTail(3, START, len(gone[0]))


FREEING = [
    block(5, 20, batch(1, 3), watermark=19),
    block(5, 21, freed(1, 2, 3), watermark=20),
    block(5, 22, batch(1, 4), watermark=21),
]
FREED_AT = START + len(FREEING[0])


def freeing() -> tuple[str, bytes]:
    """The newest file of a journal, which has freed all others; the block that says so is damaged."""
    fifth = file(5, 20, *FREEING, live=[(1, 12), (2, 15), (3, 19)], watermark=19)
    return damaged(fifth, FREED_AT + BLOCK_HEADER_SIZE + 20)


def freed_files() -> list[tuple[str, bytes]]:
    """Where a journal keeps the files it has freed: as spares, and made ready to be written again."""
    return [
        (spare_name(9), body()[1]),
        (journal_name(8), file(2, 13, block(2, 13, batch(2, 9)))[1]),
        (spare_name(7), damaged(file(3, 16), 30)[1]),  # each header is there twice
        (spare_name(6), bytes(SIZE)),
    ]


async def test_freed_files_are_not_missed_if_their_freed_entry_is_damaged(autojump_clock: MockClock) -> None:
    f = await recover(freeing(), *freed_files())
    assert f.standing.missing_files == ()
    assert f.recovered.missing_files == []
    corruption = f.recovered.corruptions[0]
    assert (corruption.file, corruption.start, corruption.complete) == (5, FREED_AT, True)
    assert f.recovered.stopped_topics() == {}, "no message is lost"
    for kept in range(3):  # each file that is really missing is
        files = freed_files()
        files[kept] = (files[kept][0], file(4, 20)[1])
        f = await recover(freeing(), *files)
        assert f.standing.missing_files == (kept + 1,)
        assert f.recovered.missing_files == [kept + 1]


async def test_freed_files_are_not_missed_if_their_freed_entry_is_cut_off(autojump_clock: MockClock) -> None:
    blocks = FREEING[0], block(5, 21, freed(1, 2, 3), watermark=19)
    fifth = file(5, 20, *blocks, live=[(1, 12), (2, 15), (3, 19)], watermark=19)
    f = await recover(damaged(fifth, START + 60), *freed_files())
    assert f.recovered.torn is not None
    assert (f.standing.missing_files, f.recovered.missing_files) == ((), [])


async def test_no_crash_of_a_recovery_destroys_the_proof_that_a_file_was_freed(autojump_clock: MockClock) -> None:
    steps = 0
    done = False
    while not done:
        for power_loss in (True, False):
            found = Found(dict([freeing(), *freed_files()]))
            found.disk = SimulatedDisk(Random(steps))
            found.recovery = Recovery(found.table, SIZE)
            await found.write()
            with trio.move_on_after(steps * 0.0005) as crash:
                await found.look()
            done = not crash.cancelled_caught
            heir = found.disk.crash(power_loss=power_loss)
            standing = await carry_out(heir, Recovery(FileTable(), SIZE).survey())
            assert standing.missing_files == (), steps
        steps += 1
    assert steps > 10


async def test_revisions_of_our_metadata_count_and_of_others_do_not(autojump_clock: MockClock) -> None:
    entries = [metadata(9, 70), metadata(8, 99), metadata(9, 50)]
    f = await recover(body(), tail(block(3, 13, *entries), TAIL[1], metadata=60))
    assert f.standing.metadata == f.recovery.metadata == 70
    assert [kind for kind, *_ in f.witness.controls] == [EntryType.CURSOR, EntryType.CURSOR], (
        "they are the journal's own"
    )


async def test_files_that_are_missing_are_named_and_make_what_came_before_suspect(autojump_clock: MockClock) -> None:
    late = file(5, 20, block(5, 20, batch(1, 3)), live=[(1, 12), (2, 15), (4, 19)], watermark=19)
    f = await recover(body(), late)
    assert f.standing.missing_files == (2, 4)
    assert f.recovered.missing_files == [2, 4]
    topics = f.recovered.topics
    assert (topics[1].suspect, topics[2].suspect) == (False, True), "a later batch shows that nothing is missing"
    assert set(f.recovered.stopped_topics()) == {2}
    f = await recover(late)
    assert f.recovered.missing_files == [1, 2, 4]
    assert not f.recovered.topics[1].suspect


# --- Damage ---


async def test_a_hole_in_the_body_keeps_its_file_until_it_is_not_wanted(autojump_clock: MockClock) -> None:
    f = await recover(damaged(body(), BODY_AT[1] + 60), tail())
    assert f.recovered.corruptions == [Corruption(1, BODY_AT[1], BODY_AT[2], {2: (5, 6)}, True)]
    first = next(iter(f.table))
    assert first.live[2] == (0, 6)
    assert first.last_sequence == 12
    assert (f.recovered.blocks, f.recovered.topics[2].damaged) == (4, [(5, 6)])
    f = await recover(damaged(body(), BODY_AT[0] + 60), tail())
    assert f.recovered.corruptions == [Corruption(1, BODY_AT[0], BODY_AT[1], {1: (0, 2)}, True)]


async def test_a_hole_of_unknown_extent_is_kept_for_good(autojump_clock: MockClock) -> None:
    name, data = body()
    at = BODY_AT[1] + BLOCK_HEADER_SIZE
    f = await recover((name, data[:at] + b"\xee" * 70 + data[at + 70 :]), tail())
    corruption = f.recovered.corruptions[0]
    assert (corruption.topics, corruption.complete) == ({}, False)
    assert f.recovered.topics[1].suspect is False
    only = body(block(1, 10, batch(1, 0, 2), batch(4, 0)), *BODY[1:])
    at += len(only[1].rstrip(b"\0")) - len(data.rstrip(b"\0"))
    f = await recover((name, only[1][:at] + b"\xee" * 70 + only[1][at + 70 :]), tail())
    assert [f.recovered.topics[number].suspect for number in (1, 4)] == [False, True], "4 may have had something there"
    assert [found.topics for found in f.recovered.corruptions] == [{}, {4: (1, 0)}]
    assert f.recovery.active.live[4] == (0, 2**63 - 1)
    f = await recover(damaged(only, at + 12), tail())
    assert (f.recovered.corruptions[0].complete, f.recovered.topics[4].suspect) == (True, False)
    stamp_at = data.index(b"DNB1", BODY_AT[1])
    f = await recover(damaged((name, data), stamp_at + 9), tail())
    corruption = f.recovered.corruptions[0]
    assert (corruption.topics, corruption.complete) == ({2: (0, 0)}, True)
    assert f.recovered.topics[2].damaged == [(0, 6)], "the next batch shows what is missing"
    assert f.recovered.corruptions[1].topics == {2: (0, 6)}
    assert f.recovery.active.live[2][1] == 9
    assert f.recovery.active.explains == {1}


async def test_blocks_that_are_missing_without_a_gap_between_them(autojump_clock: MockClock) -> None:
    f = await recover(body(BODY[0], BODY[2]), tail())
    assert f.recovered.corruptions == [Corruption(1, BODY_AT[1], BODY_AT[1], {}, True)]
    f = await recover(body(), tail(TAIL[0], block(3, 15, batch(1, 3), watermark=14)))
    at = START + len(TAIL[0])
    assert f.recovered.corruptions[0] == Corruption(3, at, at, {}, True)


async def test_a_body_that_ends_too_early_is_damaged_to_its_end(autojump_clock: MockClock) -> None:
    for blocks, end in (((BODY[0], BODY[1]), BODY_AT[2]), ((BODY[0],), BODY_AT[1])):
        f = await recover(body(*blocks), tail())
        corruption = f.recovered.corruptions[0]
        assert (corruption.file, corruption.start, corruption.complete) == (1, end, False)
        first = next(iter(f.table))
        assert (first.last_sequence, first.end, first.written) == (12, SIZE, SIZE), "the next start notices it, too"
        assert f.recovered.topics[1].next_offset == 4


OTHERS = [(number, 12) for number in range(2, 126)]
"""More files than a header names: it names the youngest, and says nothing of the last sequences of older ones."""


async def test_a_body_that_is_not_listed_may_end_before_its_limit(autojump_clock: MockClock) -> None:
    newest = file(200, 13, block(200, 13, batch(1, 9)), live=OTHERS, watermark=12)
    f = await recover(body(BODY[0], BODY[1]), newest)
    assert f.recovered.corruptions == [Corruption(3, 0, 0, {1: (2, 9), 2: (6, 0)}, True)], "of the missing files"
    assert [each.file_id for each in f.table] == [1, f.recovery.active.file_id]


async def test_damage_at_the_end_of_a_body_that_is_not_listed_is_told(autojump_clock: MockClock) -> None:
    newest = file(200, 13, block(200, 13, batch(1, 9)), live=OTHERS, watermark=12)
    f = await recover(damaged(body(), BODY_AT[2] + 60), newest)
    corruption = f.recovered.corruptions[0]
    assert (corruption.file, corruption.start, corruption.topics) == (1, BODY_AT[2], {1: (2, 3)})
    assert [each.file_id for each in f.table] == [1, f.recovery.active.file_id]


async def test_a_torn_end_is_cut_off_and_told(autojump_clock: MockClock) -> None:
    at = START + len(TAIL[0])
    f = await recover(body(), damaged(tail(), at + 60))
    assert f.recovered.torn == TornTail(3, at, len(TAIL[1]))
    assert f.recovered.corruptions == []
    assert (f.recovered.blocks, f.recovered.topics[1].next_offset) == (4, 3)
    assert f.blocks() == [(14, [2, 1])]
    more = block(3, 15, batch(1, 4))
    f = await recover(body(), damaged(tail(*TAIL, more), at + 60))
    assert f.recovered.torn == TornTail(3, at, max(len(more), len(TAIL[1]))), "what follows is dropped"
    assert f.recovery.last_sequence == 16
    assert journal_name(3) not in f.disk.names()
    assert damaged_name(3) not in f.disk.names(), "a torn end is no damage"


async def test_a_file_of_the_tail_that_ends_too_early_cuts_off_what_follows(autojump_clock: MockClock) -> None:
    late = block(4, 15, batch(1, 4))
    f = await recover(body(), file(3, 13, TAIL[0]), file(4, 15, late, live=[(1, 12), (3, 14)], watermark=12))
    assert f.recovered.torn == TornTail(3, START + len(TAIL[0]), len(late))
    assert f.recovered.corruptions == []
    f = await recover(body(), file(3, 13, TAIL[0]), file(4, 15, late, live=[(1, 12), (3, 14)], watermark=12), synced=15)
    assert f.recovered.torn is None
    corruption = f.recovered.corruptions[0]
    assert (corruption.file, corruption.start, corruption.end) == (3, START + len(TAIL[0]), SIZE)
    assert f.recovered.topics[1].damaged == [(3, 4)]


async def test_a_tail_that_others_know_to_be_synced_is_damaged_and_not_torn(autojump_clock: MockClock) -> None:
    at = START + len(TAIL[0])
    f = await recover(body(), damaged(tail(), at + 60), synced=14)
    assert f.recovered.torn is None
    corruption = f.recovered.corruptions[0]
    assert (corruption.file, corruption.start, corruption.topics) == (3, at, {1: (3, 4)})
    assert f.recovered.topics[1].damaged == [(3, 4)]
    assert damaged_name(3) in f.disk.names()
    assert f.blocks()[1:] == [(16, [7]), (17, [7])], "the damage is remembered, and what may be missing besides"
    assert f.recovered.corruptions[1].topics == {1: (4, 0), 2: (9, 0)}
    f = await recover(body(), damaged(tail(), at + 60), synced=13)
    assert f.recovered.corruptions == []
    f = await recover(body(), tail(), synced=50)
    assert f.recovery.last_sequence == 52, "no sequence up to it is used again"


async def test_damage_below_the_watermark_of_the_tail_is_no_torn_write(autojump_clock: MockClock) -> None:
    last = block(3, 15, batch(1, 4), watermark=14)
    at = START + len(TAIL[0])
    f = await recover(body(), damaged(tail(*TAIL, last), at + 60))
    assert f.recovered.torn is None
    assert [found.topics for found in f.recovered.corruptions] == [{1: (3, 4)}]
    assert f.blocks() == [(16, [2, 1]), (17, [7]), (18, [1])]
    again = await recover(*((name, bytes(f.disk.content(name))) for name in f.disk.names()))
    assert [found.topics for found in again.recovered.corruptions] == [{1: (3, 4)}], "the next start says so, too"
    assert again.recovered.topics[1].damaged == [(3, 4)]


@pytest.mark.parametrize("what", ["topic", "size", "small"])
async def test_an_entry_that_contradicts_its_batch_is_refused(autojump_clock: MockClock, what: str) -> None:
    wrong = batch(1, 4)
    if what == "topic":
        wrong.topic_id = 2
    elif what == "size":
        wrong = Entry(EntryType.BATCH, 1, Durability.DISK, (*wrong.buffers, b"z"))
    else:
        wrong = Entry(EntryType.BATCH, 1, Durability.DISK, (write_stamp(63, 1, 4, 1, 1), bytes(63)))
    with pytest.raises(CorruptBatchError, match="contradict each other"):
        await recover(body(), tail(*TAIL, block(3, 15, wrong)))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_no_space_for_a_fresh_file_is_said(autojump_clock: MockClock, number: int) -> None:
    f = Found({})
    f.disk.fail("create", number)
    with pytest.raises(OSError if number == errno.EIO else JournalFullError):
        await f.run()


async def test_a_disk_that_reads_differently_is_an_error(autojump_clock: MockClock) -> None:
    f = Found(dict((body(), tail())))
    survey = f.recovery.survey

    def surveyed() -> Steps[object]:
        standing = yield from survey()
        f.disk.flip(journal_name(3), START + 60)
        return standing

    f.recovery.survey = surveyed  # type: ignore[method-assign, assignment]
    with pytest.raises(OSError, match="returned other bytes"):
        await f.run()


# --- The copy ---


class CopyOwner:
    identity, metadata = 9, 33

    def __init__(self, size: int) -> None:
        self.size, self.number = size, 20
        self.visited: list[tuple[int, int]] = []

    def take_fresh(self) -> Steps[tuple[str, JournalFile]]:
        self.number += 1
        yield Create(spare_name(self.number), self.size)
        yield SyncDirectory()
        return spare_name(self.number), JournalFile(self.number, self.size)

    def visit(self, data: bytes, block: Block, file: JournalFile, written_at: int) -> None:
        self.visited.append((file.file_id, written_at))


async def test_a_copy_of_several_files_counts_with_the_name_of_the_last(autojump_clock: MockClock) -> None:
    size = START + FREED_MARGIN + 3_000
    disk = SimulatedDisk(Random(1))
    owner, table = CopyOwner(size), FileTable()
    copy = TailCopy(owner, table, 12, 15)
    await carry_out(disk, copy.start())
    for number, length in enumerate((1_000, 1_500, 2_000)):
        await carry_out(disk, copy.add(*block_of([control(payload=bytes(length))], 13 + number)))
    await carry_out(disk, copy.finish())
    assert copy.sequence == 17
    assert owner.visited == [(21, START), (21, START + 1_064), (22, START)]
    assert [each.last_sequence for each in table] == [16, 17]
    assert [each.closed for each in table] == [True, False]
    first, second = heads = [read_file_header(bytes(disk.content(journal_name(number))), number) for number in (21, 22)]
    assert first is not None
    assert second is not None
    assert (first.first_sequence, first.resume_after, first.prelude, first.live) == (15, 12, True, ())
    assert (second.first_sequence, second.resume_after, second.prelude, second.live) == (17, 16, False, ((21, 16),))
    for head in heads:
        assert head is not None
        assert (head.watermark, head.identity, head.metadata, head.file_size) == (12, 9, 33, size)
    for _ in range(10):  # whichever of the states that it may be in: it is synced
        after = disk.crash(power_loss=True)
        assert after.names() == [journal_name(21), journal_name(22)]
        for name in after.names():
            assert after.content(name) == disk.content(name)
    renames = 0
    rename = disk.rename

    async def cut_off(old: str, new: str) -> None:
        nonlocal renames
        renames += 1
        if renames == 2:
            assert journal_name(21) in disk._held_names, "what the last one lists is there before it"
            raise OSError(errno.EIO, "cut off")
        await rename(old, new)

    disk = SimulatedDisk(Random(1))
    owner, table = CopyOwner(size), FileTable()
    copy, rename = TailCopy(owner, table, 12, 15), disk.rename
    disk.rename = cut_off  # type: ignore[method-assign]
    await carry_out(disk, copy.start())
    for number, length in enumerate((1_000, 1_500, 2_000)):
        await carry_out(disk, copy.add(*block_of([control(payload=bytes(length))], 13 + number)))
    with pytest.raises(OSError, match="cut off"):
        await carry_out(disk, copy.finish())
    found = await carry_out(disk, read_sources(await disk.list()))
    assert [source.file_id for source in found.void] == [21]
    assert found.live == []


# --- A topic that was recovered ---


def stamped(base: int, time_us: int, *, size: int = 100) -> Stamp:
    return read_stamp(write_stamp(size, 1, base, time_us, 1))


def header_of(count: int, *, producer_id: int = 5, epoch: int = 3, sequence: int = 0, flags: int = 0) -> BatchHeader:
    header = check_part(make_part([b""] * count))
    return header._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        flags=flags,
        record_count=count,
    )


def test_a_recovered_topic_knows_its_offsets_times_and_producers() -> None:
    topic = RecoveredTopic(1, 10)
    assert (topic.first_offset, topic.next_offset, topic.first_time_us, topic.append_time_us) == (10, 10, 0, 0)
    topic.suspect = True
    assert topic.add(stamped(10, 500), header_of(3, sequence=40), Location(1, 5000)) == 13
    assert not topic.suspect
    assert topic.add(stamped(13, 400), header_of(2, sequence=43, producer_id=6), Location(1, 9000)) == 15
    assert (topic.first_time_us, topic.append_time_us, topic.next_offset) == (500, 500, 15)
    assert topic.producers[5][0] == ProducedBatch(3, 40, 3, 10, 500)
    assert topic.producers[6][0] == ProducedBatch(3, 43, 2, 13, 400)
    assert topic.add(stamped(15, 900), header_of(1, flags=BatchFlags.COMPOSITE), Location(2, 5000)) == 16
    assert set(topic.producers) == {5, 6}
    assert (topic.append_time_us, topic.damaged, len(topic.index)) == (900, [], 2)
    assert topic.index.bytes_from(0) == 3 * 148
    for number in range(70):
        topic.add(stamped(16 + number, 1000), header_of(1, sequence=100 + number), Location(2, 6000))
    assert [len(topic.producers[5]), topic.producers[5][0].base_sequence] == [64, 106]


def test_offsets_that_do_not_follow_each_other_are_damage() -> None:
    topic = RecoveredTopic(1, 0)
    topic.add(stamped(5, 1), header_of(5), Location(1, 5000))
    assert (topic.damaged, topic.next_offset) == ([(0, 5)], 10)
    topic.add(stamped(8, 1), header_of(1), Location(1, 5000))
    assert (topic.damaged, topic.next_offset) == ([(0, 5), (8, 10)], 10)
    topic.note_damage(1, 5)
    topic.note_damage(0, 4)
    assert len(topic.damaged) == 2, "it is known"
    topic.note_damage(0, 6)
    topic.note_damage(9, 20)
    assert (topic.damaged[2:], topic.next_offset) == ([(0, 6), (9, 20)], 20)


def test_topics_stop_for_what_is_wanted_of_their_damage() -> None:
    recovered = Recovered()
    first = recovered.topic(1, 0)
    assert recovered.topic(1, 99) is first
    first.note_damage(3, 5)
    recovered.topic(2, 0).suspect = True
    recovered.topic(3, 7)
    stopped = recovered.stopped_topics()
    assert set(stopped) == {1, 2}
    assert "[3, 5)" in str(stopped[1])
    assert set(recovered.stopped_topics({1: 4})) == {1, 2}
    assert set(recovered.stopped_topics({1: 5})) == {2}, "it was released"


# --- Producers ---


LIMITS = Limits(producer_state_expiry_s=100.0, anonymous_producer_expiry_s=10.0)


def send(table: ProducerTable, producer_id: int, epoch: int, sequence: int, base: int, count: int = 1) -> StoredBatch:
    header = header_of(count, producer_id=producer_id, epoch=epoch, sequence=sequence)
    assert table.check(header).kind is Verdict.NEW
    batch = StoredBatch(base, base + count, b"", b"", header, 0)
    table.appended(header, batch, 1)
    return batch


def test_the_lowest_bit_of_an_id_says_whether_its_name_may_come_back() -> None:
    table = ProducerTable(LIMITS)
    ids = [
        table.open(f"n{number}", number, anonymous=anonymous, now_us=1).producer_id
        for number, anonymous in ((8, False), (9, False), (12, True), (15, True), (1, False))
    ]
    assert ids == [8, 8, 13, 15, 2]
    assert table.register("m", 0, now_us=1)[0].producer_id == 2


def test_a_window_of_64_settled_batches_and_all_that_are_pending() -> None:
    table = ProducerTable(LIMITS)
    session = table.open("p", 100, now_us=1)
    sent = [send(table, 100, session.epoch, number, 10 + number) for number in range(100)]

    def verdict(number: int) -> Verdict | None:
        try:
            return table.check(header_of(1, producer_id=100, epoch=session.epoch, sequence=number)).kind
        except DuplicateSequenceError:
            return None

    assert {verdict(number) for number in range(100)} == {Verdict.PENDING}, "what is on its way is never forgotten"
    for number in (1, 3, 2, 5):
        table.settled(sent[number])
    assert [verdict(number) for number in range(7)] == [Verdict.PENDING] + [Verdict.KNOWN] * 3 + [
        Verdict.PENDING,
        Verdict.KNOWN,
        Verdict.PENDING,
    ], "each of them, whatever lies between"
    for number in (0, 4):
        table.settled(sent[number])
    assert [verdict(number) for number in range(7)] == [None] * 6 + [Verdict.PENDING]
    for batch in sent:
        table.settled(batch)
    assert [verdict(number) for number in (35, 36, 99)] == [None, Verdict.KNOWN, Verdict.KNOWN]
    with pytest.raises(DuplicateSequenceError):
        table.check(header_of(2, producer_id=100, epoch=session.epoch, sequence=99))


def test_an_exclusive_producer_fences_every_older_session_of_its_topic() -> None:
    table = ProducerTable(LIMITS)
    old = table.open("p", 100, now_us=1)
    exclusive = table.open("q", 200, exclusive=True, now_us=1)
    young = table.open("r", 300, now_us=1)
    assert [table.is_fenced(session) for session in (old, exclusive, young)] == [True, False, False]
    with pytest.raises(ProducerFencedError, match="an exclusive producer has taken over"):
        table.check(header_of(1, producer_id=100, epoch=old.epoch))
    with pytest.raises(ProducerFencedError, match="an exclusive producer has taken over"):
        table.resume(100, old.epoch, now_us=2)
    for session in (exclusive, young):
        assert table.resume(session.producer_id, session.epoch, now_us=2) == session
        assert table.check(header_of(1, producer_id=session.producer_id, epoch=session.epoch)).kind is Verdict.NEW
    with pytest.raises(ProducerFencedError, match="was replaced by epoch"):
        table.resume(200, exclusive.epoch + 1, now_us=2)
    with pytest.raises(ProducerFencedError, match="is unknown"):
        table.resume(999, 1, now_us=2)


def test_a_registration_that_failed_leaves_its_name_free() -> None:
    table = ProducerTable(LIMITS)
    session, new = table.register("p", 100, now_us=5)
    assert (new, session.epoch, table.used_us("p"), table.name_of(100)) == (True, 0, 5, "p")
    assert table.register("p", 200, now_us=6) == (session, False)
    assert (table.used_us("p"), list(table.ids()), len(table)) == (6, [100], 1)
    table.forget(100)
    table.forget(100)
    assert (table.session_of("p"), table.used_us("p"), table.name_of(100), len(table)) == (None, 0, "", 0)
    session, new = table.register("p", 200, now_us=7)
    assert (new, session.producer_id) == (True, 200)


def test_producers_are_forgotten_when_they_were_idle_for_longer_than_allowed() -> None:
    table = ProducerTable(LIMITS)
    table.open("named", 100, now_us=0)
    table.open("made-up", 200, anonymous=True, now_us=0)
    busy = table.open("busy", 300, anonymous=True, now_us=0)
    table.open("there", 400, anonymous=True, now_us=0)
    batch = send(table, 301, busy.epoch, 0, 0)
    table._by_id[301].used_us = 0
    assert table.expire(10_000_000, {401}) == []
    assert table.expire(10_000_001, {401}) == [201]
    table.settled(batch)
    assert table.expire(10_000_001, {401}) == [301]
    assert table.expire(100_000_000) == [401]
    assert table.expire(100_000_001) == [100]
    assert len(table) == 0
    assert table.session_of("named") is None


def test_a_snapshot_holds_what_is_settled_and_is_taken_over() -> None:
    table = ProducerTable(LIMITS)
    first = table.open("p", 100, exclusive=True, now_us=3)
    second = table.open("q", 200, now_us=4)
    done = send(table, 100, first.epoch, 0, 0, 2)
    table.settled(done)
    send(table, 100, first.epoch, 2, 2, 3)
    again = ProducerTable(LIMITS)
    again.restore(table.snapshot())
    assert again.session_of("p") == first._replace(next_sequence=2)
    assert again.session_of("q") == second
    header = header_of(2, producer_id=100, epoch=first.epoch, sequence=0)
    assert again.check(header) == (Verdict.KNOWN, 0, None)
    assert again.open("r", 300, now_us=9).epoch == second.epoch + 1
    assert again.used_us("p") == 1


def test_entries_and_batches_of_the_journal_never_take_anything_back() -> None:
    table = ProducerTable(LIMITS)
    for epoch, sequence, exclusive, time_us in (
        (5, 10, True, 50),
        (3, 4, False, 20),
        (7, 2, False, 70),
        (7, 2, False, 60),
    ):
        table.apply_entry(ProducerEntry(100, "p", epoch, sequence, exclusive, False, time_us).encode())
    session = table.session_of("p")
    assert session is not None
    assert (session.epoch, session.next_sequence, session.exclusive, table.used_us("p")) == (7, 10, False, 70)
    assert table._exclusive_epoch == 5
    table.apply_batches(
        {
            100: [ProducedBatch(6, 20, 2, 9, 40), ProducedBatch(8, 10, 2, 5, 90), ProducedBatch(8, 10, 2, 5, 80)],
            301: [ProducedBatch(2, 0, 1, 3, 30)],
        }
    )
    session = table.session_of("p")
    assert session is not None
    assert (session.epoch, session.next_sequence, table.used_us("p")) == (8, 22, 90)
    assert table.check(header_of(2, producer_id=100, epoch=8, sequence=10)).base_offset == 5
    assert [item[2] for item in table._by_id[100].window] == [5, 9], "once each, in the order of their offsets"
    assert (table.name_of(301), table._by_id[301].anonymous, table._by_id[301].epoch) == ("", True, 2)
    assert table.open("z", 400, now_us=1).epoch == 9


def test_names_that_are_lost_are_missed_for_as_long_as_they_would_be_known() -> None:
    table = ProducerTable(LIMITS)
    table.apply_batches({100: [ProducedBatch(1, 0, 1, 3, 30)], 200: [ProducedBatch(1, 0, 1, 4, 50)]})
    assert table.note_lost_names() == 2
    until = 50 + 100_000_000
    with pytest.raises(DataLossError, match="is not known"):
        table.open("p", 300, now_us=until - 1)
    table.open("made-up", 300, anonymous=True, now_us=until - 1)
    again = ProducerTable(LIMITS)
    again.restore(table.snapshot())
    with pytest.raises(DataLossError):
        again.open("p", 300, now_us=until - 1)
    table.open("p", 500, now_us=until)
    none = ProducerTable(LIMITS)
    none.apply_batches({101: [ProducedBatch(1, 0, 1, 3, 30)]})
    assert none.note_lost_names() == 0
    none.open("p", 300, now_us=1)


def test_corruptions_come_back_from_their_bytes() -> None:
    found = Corruption(3, 10, 20, {1: (4, 5)}, False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Corruption) == found
