"""What the journal decides about its files, without a disk: how many there are, which are used, which are freed."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.log._files import JournalFile, number_of
from danube.log._quota import Quota
from danube.log._states import StateBook
from danube.log._stock import NOTHING, Create, FileStock, Promote, Signal
from danube.log.snapshots import Assembler
from danube.model.errors import JournalFullError, LimitExceededError, UnavailableError
from danube.model.limits import KIB, Limits

FILE_SIZE = 64 * KIB
FILES = 6
LIMITS = Limits(
    max_batch_bytes=8 * KIB,
    journal_max_bytes=FILES * FILE_SIZE,
    journal_reserve_bytes=2 * FILE_SIZE,
    journal_pending_bytes=1_000,
    journal_full_wait_s=10.0,
)
EXTRA_FILES = 1
"""Beyond the limits, for snapshots: a quarter of the journal is one file and a half."""


def cost(topic_id: int, *, exact: bool = False) -> int:
    return 100


class Shelf:
    """A stock, and the directory that its decisions lead to."""

    def __init__(self, space: int = 1_000) -> None:
        self.quota = Quota(LIMITS)
        self.stock = FileStock(LIMITS, FILE_SIZE, self.quota)
        active = JournalFile(1, FILE_SIZE)
        self.stock.files.add(active)
        self.stock.adopt(active, [], 2, identity=9)
        self.space = space
        self.names = {active.name}
        self.numbers = {1}
        self.sequence = 0
        self.stock.note_free_bytes(space * FILE_SIZE)

    def new_name(self, name: str) -> None:
        assert number_of(name) not in self.numbers, "no number is used twice"
        self.numbers.add(number_of(name))
        self.names.add(name)

    def prepare(self) -> None:
        self.stock.note_free_bytes(self.space * FILE_SIZE)
        while (step := self.stock.next_preparation()) is not None:
            if isinstance(step, Create):
                assert self.space, "it is known how many fit"
                self.space -= 1
                self.new_name(step.name)
                self.stock.created(step)
            else:
                self.names.remove(step.spare)
                self.new_name(step.file.name)
                self.stock.promoted(step)
                assert self.stock.prepared(step).signal & Signal.NEWS

    def roll(self, *, urgent: bool = False, keep: bool = True) -> JournalFile | None:
        if not self.stock.can_roll(urgent=urgent):
            self.stock.note_waiting(urgent=urgent)
            return None
        full = self.stock.active
        self.sequence += 1
        full.end, full.last_sequence = FILE_SIZE - 2_000, self.sequence
        if keep:
            full.count_batch(7, 10, self.sequence)
        self.stock.grown()
        self.stock.roll()
        return full

    def free(self, settled: int) -> int:
        leaving = self.stock.choose(settled, cost)
        if leaving is None:
            return 0
        self.stock.files.cover(dict.fromkeys(leaving.topic_ids, settled))
        gone = 0
        for group in self.stock.groups(leaving.files):
            assert len(group) <= 50
            assert self.stock.free(group) == b"".join(file.file_id.to_bytes(8, "little") for file in group)
            for file in group:
                assert not file.live
                name = self.stock.retire(file)
                self.names.remove(file.name)
                if name is None:
                    self.space += 1
                else:
                    self.new_name(name)
                    self.stock.retired(name)
                gone += 1
            self.stock.freed()
        return gone


@given(
    st.integers(0, 12),
    st.lists(
        st.tuples(
            st.sampled_from(["prepare", "roll", "idle", "urgent", "release", "free", "space"]), st.integers(0, 4)
        ),
        max_size=80,
    ),
)
def test_files_stay_within_limits_and_the_reserve_stays_for_what_frees(
    space: int, steps: list[tuple[str, int]]
) -> None:
    shelf = Shelf(space)
    stock = shelf.stock
    for what, number in steps:
        if what == "prepare":
            shelf.prepare()
        elif what == "roll":
            before = stock.spare_count
            rolled = shelf.roll()
            assert rolled is None or not stock.disk_full or before >= 2, "the last file is not for batches"
        elif what == "idle":
            stock.active.topics.add(number)
            shelf.roll(keep=False)
        elif what == "urgent":
            rolled = shelf.roll(urgent=True, keep=False)
            assert rolled is not None or not stock.can_roll(urgent=True)
        elif what == "release":
            stock.files.release(7, number * 4)
            stock.released()
        elif what == "free":
            shelf.free(max(0, shelf.sequence - number // 2))
        else:
            shelf.space += number
        total = len(stock.files) + stock.spare_count
        assert total == len(shelf.names), "the directory is what the stock says"
        assert total <= FILES + 2 + EXTRA_FILES, "the limit, its reserve, and what snapshots may take"
        assert len(stock.files) <= FILES + 2 + EXTRA_FILES
        used = sum(file.size for file in stock.files if file.closed) + stock.active.end
        assert shelf.quota.used_bytes == used
        assert shelf.quota.space_left >= 0
    # Once nothing is needed any more, everything is free but the active file, and nothing is beyond the limits.
    stock.files.drop_topic(7)
    while shelf.free(shelf.sequence):
        pass
    assert all(file.topics or not file.closed for file in stock.files)
    assert len(stock.files) + stock.spare_count == len(shelf.names)


def test_batches_and_what_frees_space_wait_for_different_files() -> None:
    shelf = Shelf(space=2)
    shelf.prepare()
    assert shelf.stock.disk_full
    assert shelf.stock.can_roll()
    shelf.roll()
    assert not shelf.stock.can_roll()
    assert shelf.stock.can_roll(urgent=True)
    orders = shelf.stock.note_waiting()
    assert orders.signal == Signal.PREPARE | Signal.RECYCLE
    assert [(remark.level, "the disk of the journal is full" in remark.text) for remark in orders.remarks] == [
        ("error", True)
    ]
    assert shelf.stock.note_waiting().remarks == (), "it is said once"
    shelf.stock.files.drop_topic(7)
    assert shelf.free(shelf.sequence) == 1
    assert shelf.stock.note_free_bytes(0).signal & Signal.NEWS, "a spare is there, so another file may be used"
    assert [remark.text for remark in shelf.stock.roll().remarks] == ["the journal continues in another file"]


def test_a_file_beyond_the_limits_is_for_snapshots_and_goes_again() -> None:
    shelf = Shelf()
    while True:
        shelf.prepare()
        if shelf.roll() is None:
            break
    assert len(shelf.stock.files) == FILES + 2
    orders = shelf.stock.note_waiting(urgent=True)
    assert orders.signal == Signal.PREPARE
    shelf.prepare()
    assert not shelf.stock.can_roll()
    assert shelf.stock.can_roll(urgent=True)
    shelf.stock.files.release(7, 1)
    names = len(shelf.names)
    assert shelf.free(shelf.sequence) == 1
    assert len(shelf.names) == names - 1, "removed, not kept as a spare"


def test_what_fails_for_want_of_a_descriptor_or_space_is_tried_again_and_the_rest_is_final() -> None:
    shelf = Shelf()
    stock = shelf.stock
    assert stock.retry_s == math.inf
    step = stock.next_preparation()
    assert isinstance(step, Create)
    orders = stock.not_prepared(OSError(errno.EMFILE, "Too many open files"))
    assert "no file descriptor is left for the next file of the journal (Too many open files)" in orders.remarks[0].text
    assert stock.next_preparation() is None
    assert stock.retry_s == 1.0
    assert "ulimit -n" in stock.note_waiting().remarks[0].text
    stock.note_free_bytes(10 * FILE_SIZE)
    assert stock.next_preparation() is not None
    for number in (errno.ENOSPC, errno.EDQUOT):
        orders = stock.not_prepared(OSError(number, "full"))
        assert (orders.remarks[0].level, stock.disk_full, stock.retry_s) == ("error", True, 1.0)
        assert stock.next_preparation() is None
        stock.note_free_bytes(10 * FILE_SIZE)
    with pytest.raises(OSError, match="broken"):
        stock.not_prepared(OSError(errno.EIO, "broken"))


def test_a_rename_counts_when_it_is_durable() -> None:
    stock = Shelf().stock
    step = stock.next_preparation()
    assert isinstance(step, Create)
    stock.created(step)
    promotion = stock.next_preparation()
    assert isinstance(promotion, Promote)
    stock.promoted(promotion)
    assert not stock.can_roll()
    stock.prepared(promotion)
    assert stock.can_roll()


def test_nothing_changes_without_a_stopped_topic() -> None:
    shelf = Shelf()
    shelf.prepare()
    shelf.roll()
    assert shelf.stock.released() == NOTHING
    shelf.stock.files.stop_topic(7)
    assert shelf.stock.released().signal == Signal.PREPARE | Signal.ADMIT
    assert shelf.stock.released() == NOTHING


# --- What snapshots take ---


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3_000)), max_size=30), st.integers(0, 1))
def test_states_are_counted_as_they_are_written(states: list[tuple[int, int]], expected: int) -> None:
    book = StateBook(1 << 30, 4 * KIB)
    book.expect(range(1, 6) if expected else ())
    generations: list[int] = []
    remaining: Iterator[tuple[int, bytes]] = iter([(topic_id, bytes(size)) for topic_id, size in states])
    newest: dict[int, bytes] = {}
    assembler = Assembler()
    while True:
        group = book.group(remaining, settled=40)
        assert set(group.covers.values()) <= {40}
        for entry in group.entries:
            found = assembler.add(entry.topic_id, b"".join(entry.buffers))
            if found is not None:
                newest[entry.topic_id] = found.state
                generations.append(found.generation)
        if group.is_last:
            break
        assert sum(entry.size for entry in group.entries) >= 100 * KIB
    assert newest == {topic_id: bytes(size) for topic_id, size in states}
    assert generations == list(range(1, len(states) + 1))
    for topic_id, state in newest.items():
        assert book.usual_cost(topic_id) == book.cost(state) >= len(state)
    assert book.cost(None) == 0
    total = sum(map(book.usual_cost, newest)) + (128 * (5 - len(newest)) if expected else 0)
    assert book._total == total
    heir = StateBook(1 << 30, 4 * KIB)
    heir.adopt(assembler)
    assert heir.group(iter([(9, b"")]), settled=50).entries[0].buffers[0][:8] == (len(states) + 1).to_bytes(8, "little")
    for topic_id in range(1, 6):
        book.forget(topic_id)
    assert book._total == 0


def test_states_are_written_some_at_a_time() -> None:
    book = StateBook(1 << 30, 1 << 20)
    states = iter([(topic_id, bytes(50 * KIB)) for topic_id in range(1, 8)])
    groups = []
    while True:
        group = book.group(states, settled=1)
        groups.append((len(group.entries), group.is_last))
        if group.is_last:
            break
    assert groups == [(3, False), (3, False), (1, True)]


def test_states_may_take_a_quarter_of_the_journal() -> None:
    book = StateBook(4 * 1_280, 1 << 20)
    book.check("topic t", 10)
    with pytest.raises(LimitExceededError, match="topic t cannot be added: the states of 0 topics"):
        book.check("topic t", 11)
    book.expect(range(10))
    book.check("a subscription", 0)
    with pytest.raises(LimitExceededError, match="journal_max_bytes = 5120"):
        book.check("topic t", 1)


# --- What is admitted ---


def test_the_first_publisher_waits_for_space_and_is_refused_with_the_limits_name() -> None:
    quota = Quota(LIMITS)
    assert quota.wait_until(10, 0.0, 0.0) is None
    quota.pending_bytes = LIMITS.journal_pending_bytes
    assert quota.wait_until(10, 0.0, 0.0) == math.inf, "settling makes room, sooner or later"
    quota.pending_bytes, quota.used_bytes = 0, LIMITS.journal_max_bytes
    assert quota.wait_until(10, 0.0, 5.0) == 15.0
    assert quota.wait_until(10, 7.0, 9.0) == 17.0, "the whole time for the next one"
    with pytest.raises(JournalFullError, match=r"no space came free in 10 s; .* limits\.journal_max_bytes"):
        quota.wait_until(10, 0.0, 15.0)
    quota.used_bytes, quota.space_left = 0, 5
    with pytest.raises(JournalFullError, match="the disk of the journal is full"):
        quota.wait_until(10, 0.0, 15.0)
    assert quota.wait_until(5, 0.0, 15.0) is None
    quota.space_left = 0
    assert quota.wait_until(5, 0.0, 100.0) == 110.0, "there was space in between"
    quota.end(None)
    quota.end(JournalFullError("later"))
    with pytest.raises(UnavailableError, match="closing"):
        quota.wait_until(1, 0.0, 0.0)


def test_none_is_admitted_past_those_who_wait() -> None:
    quota = Quota(LIMITS)
    assert quota.try_admit(1)
    quota.waiting = 1
    assert not quota.try_admit(1)
