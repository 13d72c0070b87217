"""The cursor against a plain set of offsets."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from danube.dispatch import Cursor, CursorDelta, CursorReset, CursorSnapshot, decode_entry, encode_entry
from danube.model.errors import DataLossError
from danube.model.limits import Limits

OFFSETS = st.integers(0, 40)


def ranges_of(offsets):
    """A set of offsets as ranges, in order."""
    found = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


class CursorAgainstSet(RuleBasedStateMachine):
    """Everything a cursor does, done to a set of acknowledged offsets; and its journal, replayed.

    The cursor is only ever compared: what is expected comes from the set, and so do the entries of the journal.
    """

    @initialize(floor=st.integers(0, 5), most=st.sampled_from([None, 1, 2, 4]))
    def begin(self, floor, most):
        self.cursor = Cursor(floor, max_ranges=most)
        self.most = math.inf if most is None else most
        self.acked = set(range(floor))
        self.start = floor
        self.generation = 0
        self.journal = []

    def floor(self):
        return next(offset for offset in range(1_000) if offset not in self.acked)

    def above(self):
        return ranges_of({offset for offset in self.acked if offset > self.floor()})

    def too_many(self, wanted):
        """Whether the cursor would have more ranges than it may with these offsets, too."""
        acked = self.acked | wanted
        return len(ranges_of(acked)) - (0 in acked) > self.most

    def snapshot_entry(self):
        floor, steps = self.floor(), []
        place = floor
        for start, end in self.above():
            steps += [start - place, end - start]
            place = end
        return CursorSnapshot(7, self.generation, floor, steps)

    @rule(start=OFFSETS, size=st.integers(0, 8))
    def ack(self, start, size):
        wanted = set(range(start, start + size)) - self.acked
        if self.too_many(wanted):
            wanted = set()
        assert self.cursor.ack(start, start + size) == ranges_of(wanted)
        self.acked |= wanted
        if wanted:
            flat = [number for pair in ranges_of(wanted) for number in pair]
            entry = CursorDelta(7, self.generation, flat)
            assert self.cursor.delta(7, flat) == entry
            self.journal.append(entry)

    @rule(offset=OFFSETS)
    def seek(self, offset):
        self.cursor.seek(offset)
        self.acked = set(range(offset))
        self.generation += 1
        entry = CursorReset(7, self.generation, offset)
        assert self.cursor.reset(7) == entry
        self.journal.append(entry)

    @rule()
    def snapshot(self):
        entry = self.snapshot_entry()
        assert self.cursor.snapshot(7) == entry
        self.journal.append(entry)

    @rule(end=OFFSETS)
    def clamp(self, end):
        beyond = any(offset >= end for offset in self.acked)
        assert self.cursor.clamp(end) is beyond
        self.acked = {offset for offset in self.acked if offset < end}
        assert self.cursor.floor == self.floor()
        assert self.cursor.ranges() == self.above()
        self.seek(self.floor())  # clamping is no entry of the journal, so begin a new one
        self.snapshot()

    @rule(end=OFFSETS)
    def set_back(self, end):
        beyond = any(offset >= end for offset in self.acked)
        assert self.cursor.set_back(end) is beyond
        self.acked = {offset for offset in self.acked if offset < end}
        self.generation += beyond
        if beyond:
            self.snapshot()  # as the broker does

    @rule(repeats=st.lists(st.booleans(), max_size=60))
    def recover(self, repeats):
        recovered = Cursor(self.start)
        for index, entry in enumerate(self.journal):
            again = decode_entry(encode_entry(entry))
            assert again == entry
            recovered.apply(again)
            if index < len(repeats) and repeats[index]:
                recovered.apply(again)
        assert (recovered.floor, recovered.ranges()) == (self.floor(), self.above())
        assert recovered.generation == self.generation

    @rule(start=OFFSETS, size=st.integers(0, 20))
    def questions(self, start, size):
        live = self.cursor.live(start, start + size)
        expected = set(range(start, start + size)) - self.acked
        assert {offset for low, high in live for offset in range(low, high)} == expected
        assert self.cursor.is_acked(start) is (start in self.acked)
        following = self.cursor.next_live(start)
        assert following >= start
        assert following not in self.acked
        assert all(offset in self.acked for offset in range(start, following))
        assert self.cursor.backlog(start) == len(set(range(start)) - self.acked)

    @invariant()
    def it_is_the_set(self):
        assert self.cursor.floor == self.floor(), "every offset below is acknowledged, and this one is not"
        assert self.cursor.ranges() == self.above()
        assert self.cursor.range_count == len(self.above())
        assert self.cursor.end == max(self.acked, default=-1) + 1
        assert self.cursor.generation == self.generation


CursorAgainstSet.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCursorAgainstSet = CursorAgainstSet.TestCase


def test_an_acknowledgement_that_needs_too_many_ranges_is_refused():
    cursor = Cursor(0, max_ranges=2)
    assert cursor.ack(2, 3) == [(2, 3)]
    assert cursor.ack(5, 6) == [(5, 6)]
    assert cursor.ack(8, 9) == []
    assert not cursor.is_acked(8)
    assert cursor.ack(6, 9) == [(6, 9)], "growing a range needs no new one"
    assert cursor.ack(0, 2) == [(0, 2)], "moving the floor needs no new one"
    assert cursor.ranges() == [(5, 9)]
    cursor.ack(20, 21)
    assert cursor.ack(30, 31, force=True) == [(30, 31)]


@pytest.mark.parametrize("offset", [2, 5, 8])
def test_the_limit_of_ranges_holds_wherever_the_next_one_lies(offset):
    others = [(other, other + 1) for other in (2, 5, 8) if other != offset]
    cursor = Cursor(0, ranges=others, max_ranges=2)
    assert cursor.ack(offset, offset + 1) == []
    assert cursor.ranges() == others


def test_entries_of_an_older_generation_mean_nothing():
    cursor = Cursor(10, generation=3)
    cursor.apply(CursorDelta(1, 2, [10, 20]))
    cursor.apply(CursorReset(1, 1, 99))
    cursor.apply(CursorSnapshot(1, 2, 50, [10, 10]))
    assert (cursor.floor, cursor.ranges()) == (10, [])


def test_a_delta_without_its_reset_says_that_a_seek_is_lost_and_acknowledges_nothing_else():
    cursor = Cursor(10, generation=1)
    assert cursor.apply(CursorDelta(1, 1, [12, 13]))
    assert not cursor.apply(CursorDelta(1, 2, [15, 20]))
    assert (cursor.floor, cursor.ranges(), cursor.generation) == (10, [(12, 13), (15, 20)], 2)
    assert cursor.apply(CursorDelta(1, 2, [10, 12]))
    assert cursor.floor == 13
    assert cursor.apply(CursorDelta(1, 1, [13, 14]))
    assert cursor.floor == 13, "an entry of the older generation"


def test_a_newer_snapshot_replaces_and_an_equal_one_is_merged():
    cursor = Cursor(0)
    cursor.ack(0, 5)
    cursor.apply(CursorSnapshot(1, 0, 3, [4, 2]))
    assert (cursor.floor, cursor.ranges()) == (5, [(7, 9)])
    cursor.apply(CursorSnapshot(1, 2, 1, [2, 1]))
    assert (cursor.floor, cursor.ranges(), cursor.generation) == (1, [(3, 4)], 2)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x93\x09\x01\x02", b"\xc1"])
def test_damaged_entries_are_data_loss(data):
    with pytest.raises(DataLossError, match="cannot be decoded"):
        decode_entry(data)


def test_a_snapshot_of_as_many_ranges_as_there_may_be_is_small():
    """It fits into two values of the metadata store, which takes larger ones in parts."""
    limits = Limits()
    cursor = Cursor(10**12)
    most = Cursor.most_ranges(limits)
    for index in range(most):
        start = 10**12 + 2_000 * index + 1_000
        assert cursor.ack(start, start + 1_000, force=True)
    entry = encode_entry(cursor.snapshot(2**62))
    assert len(entry) < 2 * limits.metadata_max_value_bytes
    again = Cursor(0)
    again.apply(decode_entry(entry))
    assert (again.floor, again.ranges()) == (cursor.floor, cursor.ranges())
