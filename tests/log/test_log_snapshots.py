"""Snapshots in the journal: parts, generations, which one counts, and which files are worth freeing."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.log.snapshots import (
    PRESSED_SHARE,
    SNAPSHOT_OVERHEAD,
    USUAL_SHARE,
    Assembler,
    Snapshot,
    cut,
    read_part,
    uncovered,
    worth_freeing,
)
from danube.model.batch import crc32c
from danube.model.errors import DataLossError

STATES = st.binary(max_size=60)


def parts_of(state: bytes, generation: int, covers: int = 0, part_bytes: int = 8) -> list[bytes]:
    return [b"".join(each) for each in cut(state, generation=generation, covers=covers, part_bytes=part_bytes)]


def fed(*payloads: bytes, topic_id: int = 7) -> Snapshot | None:
    """Return the last snapshot that was completed."""
    assembler, found = Assembler(), None
    for payload in payloads:
        found = assembler.add(topic_id, payload) or found
    return found


def test_the_bytes_of_a_part() -> None:
    assert SNAPSHOT_OVERHEAD == 32
    first, second = parts_of(b"0123456789", 5, covers=9)
    crc = crc32c(b"0123456789")
    assert first == struct.pack("<QQIIII", 5, 9, 0, 2, 10, crc) + b"01234567"
    assert second == struct.pack("<QQIIII", 5, 9, 1, 2, 10, crc) + b"89"
    assert read_part(second) == (5, 9, 1, 2, 10, crc, b"89")
    assert parts_of(b"", 1) == [struct.pack("<QQIIII", 1, 0, 0, 1, 0, crc32c(b""))]


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"", "0 bytes"),
        (bytes(31), "31 bytes"),
        (struct.pack("<QQIIII", 1, 0, 2, 2, 1, 0) + b"x", "part 2 of 2"),
        (struct.pack("<QQIIII", 1, 0, 0, 0, 0, 0), "part 0 of 0"),
        (struct.pack("<QQIIII", 1, 0, 0, 1, 1, 0) + b"xx", "2 of 1 B"),
    ],
)
def test_invalid_parts_of_a_snapshot_are_refused(payload: bytes, what: str) -> None:
    with pytest.raises(DataLossError, match=what):
        read_part(payload)
    with pytest.raises(DataLossError, match=what):
        Assembler().add(1, payload)


@given(state=STATES, part_bytes=st.integers(1, 70), data=st.data())
def test_a_state_comes_back_out_of_its_parts_in_any_order(state: bytes, part_bytes: int, data: st.DataObject) -> None:
    payloads = parts_of(state, 3, 4, part_bytes)
    assert len(payloads) == max(1, -(-len(state) // part_bytes))
    assembler = Assembler()
    order = data.draw(st.permutations(payloads))
    found = [assembler.add(9, payload) for payload in order]
    assert found == [None] * (len(payloads) - 1) + [Snapshot(3, 4, state)]
    assert assembler.newest == {9: (3, 4, len(state))}
    assert assembler.generation == 3
    assert assembler._partial == {}
    assert [assembler.add(9, payload) for payload in order] == [None] * len(payloads), "copies are not new"


@given(
    states=st.lists(STATES, min_size=1, max_size=5),
    lost=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 7))),
    cut_at=st.integers(0, 40),
)
def test_the_newest_complete_generation_counts(states: list[bytes], lost: set[tuple[int, int]], cut_at: int) -> None:
    """Some parts are damaged, and the end is torn off: what is left of the log decides."""
    log = [
        (generation, number, payload)
        for generation, state in enumerate(states, 1)
        for number, payload in enumerate(parts_of(state, generation))
    ]
    log = [item for item in log[: len(log) - cut_at] if (item[0] - 1, item[1]) not in lost]
    assembler, found = Assembler(), None
    for _, _, payload in log:
        found = assembler.add(1, payload) or found
    complete = [
        generation
        for generation, state in enumerate(states, 1)
        if sum(item[0] == generation for item in log) == len(parts_of(state, generation))
    ]
    if complete:
        assert found == Snapshot(complete[-1], 0, states[complete[-1] - 1])
    else:
        assert found is None
    assert assembler.generation == max((item[0] for item in log), default=0)
    assert all(len(each) <= 2 for each in assembler._partial.values())


@given(old=st.binary(min_size=9, max_size=40), new=st.binary(min_size=9, max_size=40), data=st.data())
def test_two_generations_may_be_interleaved(old: bytes, new: bytes, data: st.DataObject) -> None:
    a, b = parts_of(old, 1), parts_of(new, 2)
    mixed = data.draw(st.permutations(a + b))
    assert fed(*mixed) == Snapshot(2, 0, new), "the older one is never the last word"
    without = [payload for payload in mixed if payload != b[-1]]
    assert fed(*without) == Snapshot(1, 0, old), "the newer one is incomplete"


def test_topics_are_kept_apart() -> None:
    assembler = Assembler()
    one, two = parts_of(b"x" * 12, 1), parts_of(b"y" * 12, 1)
    assert assembler.add(1, one[0]) is None
    assert assembler.add(2, two[1]) is None
    assert assembler.add(1, one[1]) == Snapshot(1, 0, b"x" * 12)
    assembler.forget(2)
    assert assembler.add(2, two[0]) is None, "its other part was forgotten"
    assembler.forget(1)
    assert assembler.newest == {}


def test_parts_of_two_states_are_not_mixed() -> None:
    a, b = parts_of(b"x" * 12, 1), parts_of(b"y" * 13, 1)
    assert fed(a[0], b[1]) is None
    assert fed(a[0], b[1], b[0]) == Snapshot(1, 0, b"y" * 13)
    same_head = a[0][:SNAPSHOT_OVERHEAD] + b"damaged!"
    assert fed(same_head, a[1]) is None, "the checksum of the whole state is wrong"


# --- Which files are free ---


def cost_of(files: Sequence[tuple[int, set[int]]], chosen: Sequence[int]) -> int:
    return sum({topic for index in chosen for topic in files[index][1]})  # a topic costs its number


@given(
    files=st.lists(st.tuples(st.integers(1, 100), st.sets(st.integers(1, 40), max_size=8)), max_size=8),
    share=st.sampled_from([USUAL_SHARE, PRESSED_SHARE]),
)
def test_freeing_never_costs_more_than_its_share(files: list[tuple[int, set[int]]], share: float) -> None:
    chosen = worth_freeing(files, lambda topic: topic, share)
    assert chosen == sorted(set(chosen))
    assert cost_of(files, chosen) <= share * sum(files[index][0] for index in chosen)
    assert {index for index, (_, topics) in enumerate(files) if not topics} <= set(chosen), "what is free for nothing"
    rest = [index for index in range(len(files)) if index not in chosen]
    covered = {topic for index in chosen for topic in files[index][1]}
    assert all(sum(files[index][1] - covered) > share * files[index][0] for index in rest[:1] if len(rest) == 1)


def test_a_file_of_idle_topics_stays_and_one_of_traffic_goes() -> None:
    idle, more, busy = (100, set(range(1, 90))), (100, set(range(100, 190))), (100, {1000})
    assert worth_freeing([idle, busy, more], lambda topic: 1) == [1]
    assert worth_freeing([idle, busy], lambda topic: 1, PRESSED_SHARE) == [0, 1]
    assert worth_freeing([], lambda topic: 1) == []


def test_topics_that_are_busy_everywhere_are_paid_once() -> None:
    busy = (100, set(range(120)))
    assert worth_freeing([busy], lambda topic: 1) == []
    assert worth_freeing([busy] * 2, lambda topic: 1) == []
    assert worth_freeing([busy] * 3, lambda topic: 1) == [0, 1, 2]


def test_each_cost_is_asked_once() -> None:
    asked: list[int] = []

    def cost(topic: int) -> int:
        asked.append(topic)
        return 1

    worth_freeing([(10, {1, 2}), (10, {2, 3})], cost)
    assert sorted(asked) == [1, 2, 3]


def test_entries_that_no_snapshot_covers() -> None:
    assert sorted(uncovered({1, 2, 3, 4}, 10, {1: 9, 2: 10, 3: 11})) == [1, 4]
