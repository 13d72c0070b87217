"""What the journal decides about commits, without a disk: blocks, their places, and what has settled."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.log import Entry, EntryType
from danube.log._commits import Commits, Lane, Pause, Write, check_file_size
from danube.log._files import FREED_MARGIN, JournalFile
from danube.log._quota import Quota
from danube.log._stock import FileStock, Promote, Signal
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    ENTRY_HEADER_SIZE,
    FILE_HEADER_SIZE,
    METADATA_ENTRY,
    TERMINATOR,
    Block,
    block_size,
    parse_blocks,
    parse_entries,
    read_file_header,
)
from danube.model import Durability, Limits
from danube.model.errors import ConfigurationError, JournalFencedError, MessageTooLargeError, UnavailableError
from danube.model.ids import Offset, TopicId

FILE_SIZE = 32 * 1024
COMMIT_BYTES = 4 * 1024
LIMITS = Limits(
    max_batch_bytes=8 * 1024,
    journal_commit_bytes=COMMIT_BYTES,
    journal_max_bytes=100 * FILE_SIZE,
    journal_reserve_bytes=2 * FILE_SIZE,
)


class Desk:
    """The machine, the bytes that it has written, and what is synced of them."""

    def __init__(self, *, ready: int = 2, running: bool = True) -> None:
        self.quota = Quota(LIMITS)
        self.stock = FileStock(LIMITS, FILE_SIZE, self.quota)
        active = JournalFile(1, FILE_SIZE)
        self.stock.files.add(active)
        self.stock.adopt(active, [], 2, identity=9)
        self.stock.note_free_bytes(1_000 * FILE_SIZE)
        for _ in range(ready):
            self.prepare()
        self.machine = Commits(LIMITS, FILE_SIZE, self.stock, self.quota)
        self.machine.adopt(10, 1, 0)
        self.machine.running = running
        self.files: dict[str, bytearray] = {}
        self.in_flight: dict[bool, Write] = {}
        self.submitted: dict[bool, list[Entry]] = {True: [], False: []}
        self.settled: list[Entry] = []
        self.unsynced: dict[int, str] = {}
        self.called: list[str] = []

    def prepare(self) -> None:
        """Have another file ready."""
        step = self.stock.next_preparation()
        if step is not None and not isinstance(step, Promote):
            self.stock.created(step)
            step = self.stock.next_preparation()
        if isinstance(step, Promote):
            self.stock.promoted(step)
            self.stock.prepared(step)

    def put(self, size: int, durability: Durability = Durability.DISK, kind: EntryType = EntryType.CURSOR) -> Entry:
        entry = Entry(kind, 1, durability, (bytes([size % 251]) * size,), end_offset=1)
        lane = self.machine.submit(entry)
        self.submitted[lane.sync].append(entry)
        return entry

    def lane(self, sync: bool) -> Lane:
        return self.machine.disk_lane if sync else self.machine.os_lane

    def begin(self, sync: bool = True) -> Write | Pause:
        """Begin what a lane does next; go on in another file if it has to."""
        step = self.machine.next(self.lane(sync))
        if step is Pause.ROLL:
            assert self.machine.roll().signal & Signal.RECYCLE
            step = self.machine.next(self.lane(sync))
            assert step is not Pause.ROLL
        if isinstance(step, Write):
            data = self.files.setdefault(step.file.name, bytearray(FILE_SIZE))
            written = b"".join(step.buffers)
            assert step.position + len(written) <= FILE_SIZE
            data[step.position : step.position + len(written)] = written
            if written:
                self.unsynced[step.sequence] = step.file.name
            self.in_flight[sync] = step
        return step

    def end(self, sync: bool = True, taken_s: float = 1.0) -> Sequence[Entry]:
        """End the write of a lane."""
        step = self.in_flight.pop(sync)
        if step.sync:
            begun = {sequence for sequence in self.unsynced if sequence <= step.sequence}  # before it
            for sequence in [each for each in begun if self.unsynced[each] == step.file.name]:
                del self.unsynced[sequence]
        self.machine.done(step, taken_s)
        settled = self.machine.settle(step.entries, step.size)
        self.settled += settled
        return settled

    def run(self, sync: bool = True) -> list[int]:
        """Write all that a lane has; return how many entries each write had."""
        counts = []
        while isinstance(step := self.begin(sync), Write):
            counts.append(len(step.entries))
            self.end(sync)
        return counts

    def found(self) -> list[tuple[int, int, bytes]]:
        """Return sequence, type and payload of all entries in the files, in their order."""
        found = []
        for name in sorted(self.files):
            data = bytes(self.files[name])
            file_id = int(name[8:24], 16)
            assert read_file_header(data, file_id) is not None
            for block in parse_blocks(data, file_id, FILE_HEADER_SIZE):
                if isinstance(block, Block):
                    entries = parse_entries(data, block)
                    found += [(block.sequence, entry.type, data[entry.start : entry.end]) for entry in entries]
        return found


SIZES = st.one_of(st.integers(0, 300), st.integers(0, 8 * 1024), st.just(COMMIT_BYTES - 64))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SIZES, st.sampled_from([Durability.DISK, Durability.OS])),
        st.tuples(st.just("go"), st.booleans(), st.none()),
        st.tuples(st.just("want"), st.none(), st.none()),
        st.tuples(st.just("free"), st.none(), st.none()),
        st.tuples(st.just("urgent"), SIZES, st.none()),
        st.tuples(st.just("file"), st.none(), st.none()),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_comes_is_written_once_in_order_where_it_fits(steps: list[tuple[str, object, object]]) -> None:
    desk = Desk()
    machine = desk.machine
    last = machine.sequence
    for what, size, durability in steps:
        if what == "put":
            assert isinstance(size, int)
            assert isinstance(durability, Durability)
            desk.put(size, durability)
        elif what == "free":
            machine.free(bytes(8), lambda: desk.called.append("free"))
        elif what == "urgent":
            assert isinstance(size, int)
            entry = Entry(EntryType.SNAPSHOT, 1, Durability.DISK, (bytes(size),))
            machine.write_urgent([entry], lambda: desk.called.append("urgent"))
        elif what == "want":
            machine.want_sync(machine.sequence)
        elif what == "file":
            desk.prepare()
        elif desk.in_flight.get(bool(size)) is not None:
            desk.end(bool(size))
        else:
            step = desk.begin(bool(size))
            if isinstance(step, Write) and step.entries:
                assert step.sequence == last + 1, "sequences have no gaps"
                last = step.sequence
                kinds = {entry.type for entry in step.entries}
                frees = EntryType.FREED in kinds
                margin = 0 if frees else FREED_MARGIN
                assert step.file.end <= FILE_SIZE - len(TERMINATOR) - margin
                assert frees or len(step.entries) == 1 or block_size(step.entries) <= COMMIT_BYTES
                assert not frees or kinds == {EntryType.FREED, EntryType.METADATA}
                assert desk.lane(bool(size)).in_flight_sequence == step.sequence
        assert machine.settled_sequence() <= machine.sequence
        waiting = [one for writes in desk.in_flight.values() for one in writes.entries]
        assert desk.quota.pending_bytes >= sum(one.size for one in waiting)
        assert all(sequence > machine.watermark for sequence in desk.unsynced), "a watermark is a promise"
    # Whatever waited for a file goes on when there is one.
    for sync in list(desk.in_flight):
        desk.end(sync)
    for _ in range(40):
        desk.prepare()
        for sync in (True, False):
            desk.run(sync)
    assert desk.quota.pending_bytes == 0
    assert not desk.unsynced or max(desk.unsynced) <= machine.sequence
    for sync, entries in desk.submitted.items():
        durability = Durability.DISK if sync else Durability.OS
        assert [entry for entry in desk.settled if entry.durability is durability] == entries
    found = desk.found()
    assert [sequence for sequence, _, _ in found] == sorted(sequence for sequence, _, _ in found)
    for sync, entries in desk.submitted.items():
        placed = [(entry.sequence, b"".join(entry.buffers)) for entry in entries]
        assert placed == sorted(placed, key=lambda pair: pair[0]), sync
    written = [payload for _, kind, payload in found if kind == EntryType.CURSOR]
    assert sorted(written) == sorted(b"".join(entry.buffers) for entry in desk.settled)
    assert desk.called.count("free") == sum(what == "free" for what, _, _ in steps)
    assert desk.called.count("urgent") == sum(what == "urgent" for what, _, _ in steps)
    while (step := machine.last_sync()) is not None:
        machine.done(step, 1.0)
    assert machine.watermark == machine.sequence


def test_freed_entries_go_first_then_snapshots_then_the_queue() -> None:
    desk = Desk()
    kinds = []
    desk.put(10)
    desk.machine.write_urgent([Entry(EntryType.SNAPSHOT, 1, Durability.DISK, (b"s",))], lambda: None)
    desk.machine.free(bytes(8), lambda: None)
    while isinstance(step := desk.begin(), Write):
        kinds.append([entry.type for entry in step.entries])
        desk.end()
    assert kinds == [[EntryType.METADATA, EntryType.FREED], [EntryType.SNAPSHOT], [EntryType.CURSOR]]
    assert step is Pause.IDLE


def test_a_full_file_takes_freed_entries_and_others_wait() -> None:
    desk = Desk(ready=0)
    active = desk.stock.active
    for size in (8_000, 8_000, 8_000):
        desk.put(size)
    desk.run()
    desk.put(active.room() - BLOCK_HEADER_SIZE - ENTRY_HEADER_SIZE)
    desk.run()
    assert active.room() == 0
    desk.put(0)
    assert desk.begin() is Pause.FILE
    desk.machine.write_urgent([Entry(EntryType.SNAPSHOT, 1, Durability.DISK, (b"s",))], lambda: None)
    assert desk.begin() is Pause.URGENT_FILE
    desk.machine.free(bytes(400), lambda: None)
    assert isinstance(desk.begin(), Write)
    desk.end()
    assert active.end <= FILE_SIZE - len(TERMINATOR)
    desk.put(1, Durability.OS)
    assert desk.begin(sync=False) is Pause.FILE
    desk.prepare()
    assert desk.run() == [1, 1]
    assert desk.stock.active is not active


def test_while_a_lane_waits_for_a_file_it_syncs_on_demand() -> None:
    desk = Desk(ready=0)
    for _ in range(3):
        desk.put(7_000, Durability.OS)
    assert desk.run(sync=False) == [1] * 3
    desk.put(7_000)
    assert desk.begin() is Pause.FILE
    desk.machine.want_sync(desk.machine.sequence)
    step = desk.begin()
    assert isinstance(step, Write)
    assert (step.buffers, step.sync, step.entries) == ((), True, ())
    desk.end()
    assert desk.machine.watermark == desk.machine.sequence
    assert desk.begin() is Pause.FILE


def test_a_closed_file_is_synced_before_later_blocks_are() -> None:
    desk = Desk()
    desk.put(100, Durability.OS)
    desk.run(sync=False)
    first = desk.stock.active
    desk.machine.roll()
    assert desk.machine.has_unsynced
    desk.put(100, Durability.OS)
    desk.run(sync=False)  # into the next file, which this sync does not reach
    desk.put(100)
    step = desk.begin()
    assert isinstance(step, Write)
    assert (step.file, step.entries) == (first, ())
    desk.end()
    assert (desk.machine.synced_file, desk.machine.watermark) == (first.file_id, 11)
    assert desk.run() == [1]
    assert not desk.machine.has_unsynced


def test_a_roll_behind_a_synced_block_needs_no_sync() -> None:
    desk = Desk()
    desk.put(100)
    desk.run()
    desk.machine.roll()
    assert not desk.machine.has_unsynced
    assert desk.begin() is Pause.IDLE


def test_nothing_is_reported_of_a_block_that_is_under_way_or_of_later_ones() -> None:
    desk = Desk()
    desk.put(1)
    desk.begin()
    desk.put(1, Durability.OS)
    desk.run(sync=False)
    assert desk.machine.sequence == 12
    assert desk.machine.settled_sequence() == 10
    desk.end()
    assert desk.machine.settled_sequence() == 12


def test_what_cannot_be_taken_is_refused_and_leaves_nothing() -> None:
    desk = Desk()
    room = desk.machine.capacity - ENTRY_HEADER_SIZE - BLOCK_HEADER_SIZE
    with pytest.raises(MessageTooLargeError, match=f"larger than a journal file of {FILE_SIZE} bytes"):
        desk.put(room + 1)
    desk.put(room)
    assert desk.quota.pending_bytes == room
    desk.machine.closing = True
    with pytest.raises(UnavailableError, match="closing"):
        desk.put(1)
    assert desk.machine.free(b"", lambda: None) is None
    assert not desk.machine.note_metadata(5, lambda: desk.called.append("told"))
    assert desk.called == ["told"], "there is nothing to wait for"
    assert desk.run() == [1], "what is queued is written"
    assert desk.begin() is Pause.END
    with pytest.raises(ConfigurationError, match="cannot hold a batch of max_batch_bytes = 8192"):
        check_file_size(9 * 1024, LIMITS)
    check_file_size(FILE_SIZE, LIMITS)


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "free space on the disk"), (errno.EIO, "check the disk")])
def test_the_first_failure_counts_and_takes_everything_along(number: int, hint: str) -> None:
    desk = Desk()
    waiting = [desk.put(1, Durability.OS), desk.put(2)]
    settled: list[str] = []
    desk.machine.free(bytes(8), lambda: settled.append("freed"))
    first = desk.machine.fail(OSError(number, "broken"), "journal file a")
    assert isinstance(first, JournalFencedError)
    assert first.message.startswith("journal file a: broken; nothing more is acknowledged")
    assert hint in first.message
    assert desk.machine.fail(OSError(errno.EIO, "later"), "journal file b") is first
    with pytest.raises(JournalFencedError):
        desk.put(3)
    rest = [desk.machine.settle(group, sum(entry.size for entry in group)) for group in desk.machine.rest()]
    assert [entry for group in rest for entry in group] == waiting
    assert settled == ["freed"]
    assert desk.quota.pending_bytes == 0
    assert not any(desk.machine.is_durable(entry) for entry in waiting)


def test_notes_gather_in_the_entry_that_waits() -> None:
    desk = Desk()
    told: list[int] = []
    machine = desk.machine
    assert machine.note_metadata(5)
    assert not machine.note_metadata(6), "it is in the entry that waits"
    assert not machine.note_metadata(2)
    assert machine.note_metadata(3, lambda: told.append(machine.told_revision)), "this one is waited for"
    assert machine.told_revision == 0
    assert desk.run() == [2]
    assert (machine.told_revision, told) == (6, [6])
    notes = [METADATA_ENTRY.unpack(payload) for _, kind, payload in desk.found() if kind == EntryType.METADATA]
    assert notes == [(9, 6), (9, 6)]
    assert desk.settled == []


def test_before_it_runs_notes_are_only_remembered() -> None:
    desk = Desk(running=False)
    assert not desk.machine.note_metadata(5)
    assert (desk.machine.noted_revision, desk.machine.told_revision) == (5, 0)
    assert desk.begin() is Pause.IDLE


def test_the_last_block_goes_into_the_margin_or_is_left_out() -> None:
    desk = Desk()
    assert desk.machine.closing_block() is None, "nothing was written"
    desk.put(10)
    desk.run()
    step = desk.machine.closing_block()
    assert step is not None
    assert (step.sequence, step.sync, step.entries) == (12, True, ())
    desk.stock.active.end = FILE_SIZE - len(TERMINATOR) - 10
    assert desk.machine.closing_block() is None


def test_figures_are_counted_and_averaged() -> None:
    desk = Desk()
    for taken_s in (2.0, 12.0):
        desk.put(1)
        desk.begin()
        desk.end(taken_s=taken_s)
    desk.put(1, Durability.OS)
    desk.run(sync=False)
    machine = desk.machine
    assert (machine.commits, machine.syncs) == (3, 2)
    assert machine.sync_time_s == pytest.approx(3.0)


GONE = TopicId(7)


class Burial:
    """A topic whose tombstone is in the second file and has to be written again, into the third one."""

    def __init__(self) -> None:
        self.desk = desk = Desk(ready=4)
        files = desk.stock.files
        desk.put(10, kind=EntryType.BATCH)
        while len(files) < 3:
            desk.put(8_000)
            desk.run()
        _, self.grave, self.active = files
        self.grave.topics.clear()
        files.bury(GONE, self.grave)
        self.horizon = files.tombstones_needed([self.grave])[GONE]

    def relocate(self) -> None:
        machine, called = self.desk.machine, self.desk.called
        others = [machine.tombstone(TopicId(8), self.horizon)]
        self.desk.stock.files.bury(TopicId(8), self.grave)
        machine.write_urgent([*others, machine.tombstone(GONE, self.horizon)], lambda: called.append("relocated"))

    def come_back(self, kind: EntryType) -> None:
        machine = self.desk.machine
        if kind is EntryType.SNAPSHOT:
            machine.write_urgent([Entry(kind, GONE, Durability.DISK, (b"state",))], lambda: None)
            return
        machine.submit(Entry(kind, GONE, Durability.OS, (bytes(24),)))
        machine.submit(Entry(EntryType.BATCH, GONE, Durability.OS, (bytes(200),), end_offset=Offset(3)))
        self.desk.run(sync=False)

    def order(self) -> list[str]:
        """Return what the tombstone and the entries of the topic are, as a start would read them."""
        of_topic: list[str] = []
        for name in sorted(self.desk.files):
            data, file_id = bytes(self.desk.files[name]), int(name[8:24], 16)
            for block in parse_blocks(data, file_id, FILE_HEADER_SIZE):
                if isinstance(block, Block):
                    entries = parse_entries(data, block)
                    of_topic += [EntryType(entry.type).name for entry in entries if entry.topic_id == GONE]
        return of_topic


@pytest.mark.parametrize("kind", [EntryType.TAKEOVER, EntryType.BATCH, EntryType.SNAPSHOT])
@pytest.mark.parametrize("is_framed", [False, True])
def test_a_tombstone_that_is_written_again_voids_nothing_of_a_topic_that_returns(
    kind: EntryType, *, is_framed: bool
) -> None:
    world = Burial()
    desk, files = world.desk, world.desk.stock.files
    if is_framed:
        world.relocate()
        assert isinstance(desk.begin(), Write)
        world.come_back(kind)
        desk.end()
    else:
        world.come_back(kind)
        world.relocate()
    desk.run()
    assert desk.called == ["relocated"]
    assert ("TOMBSTONE" in world.order()) is is_framed
    assert "TOMBSTONE" not in world.order()[1:], "behind what has returned"
    assert GONE not in files.buried
    assert GONE in world.active.topics
    assert bool(files.stored_bytes(GONE)) is (kind is not EntryType.SNAPSHOT)
    assert world.active.tombstones.get(GONE) == (world.horizon if is_framed else None)
    assert world.active.tombstones[TopicId(8)] == world.horizon
    assert bool(desk.stock.groups([world.grave])) is is_framed, "the file with the only tombstone stays"


def test_a_tombstone_whose_topic_has_not_returned_is_written_again() -> None:
    world = Burial()
    world.relocate()
    world.desk.run()
    assert world.order() == ["TOMBSTONE"]
    assert GONE in world.desk.stock.files.buried
    assert (world.active.tombstones[GONE], GONE in world.grave.tombstones) == (world.horizon, False)


def test_a_topic_that_is_deleted_now_is_buried_whatever_it_has() -> None:
    world = Burial()
    world.come_back(EntryType.TAKEOVER)
    world.desk.machine.write_urgent([world.desk.machine.tombstone(GONE)], lambda: None)
    world.desk.run()
    assert world.order() == ["TAKEOVER", "BATCH", "TOMBSTONE"]
    assert GONE in world.desk.stock.files.buried
    assert not world.desk.stock.files.stored_bytes(GONE)
