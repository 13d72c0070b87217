"""Where a topic may start: the three rules, alone and together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.history.parts import PartRecord, TopicHistory
from danube.history.retention import plan_retention
from danube.history.segment import SegmentPart
from danube.log import TopicIndex
from danube.model.policies import Retention

SECOND_US = 1_000_000
NOW_US = 1_000 * SECOND_US


def history_of(*parts: tuple[int, int, int, int]) -> TopicHistory:
    """Parts as (base offset, end offset, age of the youngest batch in seconds, bytes)."""
    history = TopicHistory()
    for base, end, age_s, size in parts:
        time_us = NOW_US - age_s * SECOND_US
        part = SegmentPart(1, base, end, time_us, time_us, 1, 32, 32 + size, 0, 0, 0, 0, 1)
        history.add(PartRecord("default", f"object-{base}", part))
    return history


def log_of(start: int, journal_start: int, end: int, *unsealed: tuple[int, int]) -> Any:
    """A log whose journal holds regions, each (base offset, age in seconds) and 100 bytes."""
    index = TopicIndex()
    for number, (base, age_s) in enumerate(unsealed):
        index.add(base, 1, number * 64 * 1024, NOW_US - age_s * SECOND_US, 100)
    return SimpleNamespace(
        start_offset=start,
        journal_start=journal_start,
        end_offset=end,
        unsealed_bytes=100 * len(unsealed),
        unsealed_surplus_bytes=0,
        index=index,
    )


HISTORY = history_of((0, 10, 300, 1000), (10, 20, 200, 1000), (20, 30, 100, 1000))
LOG = log_of(0, 30, 40, (30, 50), (35, 20))


def start_of(rules: Retention, log: Any = LOG, history: TopicHistory | None = HISTORY, floors: Any = ()) -> int:
    plan = plan_retention("/default/t", rules, log, history, floors, NOW_US)
    assert plan.start_offset == log.start_offset
    assert plan.freed_bytes == 1000 * plan.freed_parts
    return plan.new_start_offset


def test_without_rules_everything_stays() -> None:
    assert start_of(Retention()) == 0
    assert not Retention()


@pytest.mark.parametrize(("age_s", "start"), [(400, 0), (300, 0), (299, 10), (150, 20), (99, 30), (30, 30), (10, 35)])
def test_age_takes_whole_parts_and_regions_of_the_journal(age_s: float, start: int) -> None:
    assert start_of(Retention(max_age_s=age_s)) == start


@pytest.mark.parametrize(("size", "start"), [(10_000, 0), (3200, 0), (3199, 0), (2200, 10), (1200, 20), (200, 30)])
def test_size_takes_the_oldest_as_long_as_enough_is_left(size: int, start: int) -> None:
    assert start_of(Retention(max_bytes=size)) == start


def test_retention_by_size_expires_journal_data_if_sealed_parts_do_not_suffice() -> None:
    log = log_of(0, 0, 100, (0, 9), (25, 8), (50, 7), (75, 6))
    assert start_of(Retention(max_bytes=200), log, None) == 50
    assert start_of(Retention(max_bytes=400), log, None) == 0


@pytest.mark.parametrize(
    ("floors", "start"), [((), 0), ((9,), 0), ((10,), 10), ((29, 40), 20), ((30,), 30), ((33, 38), 33), ((40, 40), 40)]
)
def test_acknowledgements_of_all_take_parts_and_any_offset_of_the_journal(floors: Any, start: int) -> None:
    assert start_of(Retention(acknowledged=True), floors=floors) == start


def test_the_strictest_rule_wins_and_the_start_never_goes_back() -> None:
    rules = Retention(max_age_s=250, max_bytes=1200, acknowledged=True)
    assert start_of(rules, floors=(0,)) == 20
    assert start_of(rules, floors=(36,)) == 36
    assert start_of(Retention(max_age_s=299), log_of(20, 30, 40, (30, 50))) == 20
    assert start_of(Retention(max_age_s=0.001), log_of(0, 30, 40)) == 30


def test_a_size_is_kept_round_after_round() -> None:
    """What the journal stores of a topic goes down by whole files only: each round cut the same share off once more."""
    index, size = TopicIndex(), 64 * 1024
    for number in range(192):
        index.add(number * 10, 1, 4096 + number * size, NOW_US, size)
    log = SimpleNamespace(
        start_offset=0,
        journal_start=0,
        end_offset=1920,
        unsealed_bytes=index.bytes_from(0),
        unsealed_surplus_bytes=0,
        index=index,
    )
    for _ in range(20):
        plan = plan_retention("/default/t", Retention(max_bytes=10 * 2**20), log, None, (), NOW_US)
        assert plan.new_start_offset == 320  # 160 of 192 batches are left
        log.start_offset = log.journal_start = plan.new_start_offset
        index.drop_before(log.journal_start)
        log.unsealed_bytes = index.bytes_from(log.journal_start)
        assert log.unsealed_bytes == 10 * 2**20


@pytest.mark.parametrize(("surplus", "start"), [(0, 20), (100, 20), (101, 10), (1100, 10), (1101, 0), (9999, 0)])
def test_bytes_that_may_not_be_there_push_nothing_out(surplus: int, start: int) -> None:
    """A restart knows what is unsealed to a region of the journal only: at least the size stays."""
    log = log_of(0, 30, 40)
    log.unsealed_bytes, log.unsealed_surplus_bytes = 1200, surplus
    assert start_of(Retention(max_bytes=2100), log) == start


def test_parts_that_the_journal_still_holds_count_once() -> None:
    """While a manifest could not be written, they counted twice, and sealed messages were removed in their place."""
    log = log_of(0, 20, 40, *((base, 50) for base in range(20, 40)))  # the journal holds 2,000 bytes from 20 on
    assert start_of(Retention(max_bytes=3000), log) == 10
    assert start_of(Retention(max_bytes=3001), log) == 0
    assert start_of(Retention(max_bytes=1000), log) == 20  # what the journal holds is looked at when it is released


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=8),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(1, 4000),
)
def test_size_always_leaves_its_bytes(sizes: list[int], entered: int, released: int, most: int) -> None:
    """Ten messages each, of so many bytes: the first ones entered as sealed parts, some of those released."""
    entered = min(entered, len(sizes))
    released = min(released, entered)
    history = history_of(*((10 * at, 10 * at + 10, 100, size) for at, size in enumerate(sizes[:entered])))
    log = log_of(0, 10 * released, 10 * len(sizes))
    for at, size in enumerate(sizes[released:], released):
        log.index.add(10 * at, 1, at * 64 * 1024, NOW_US, size)
    log.unsealed_bytes = sum(sizes[released:])
    start = plan_retention("/default/t", Retention(max_bytes=most), log, history, (), NOW_US).new_start_offset
    assert sum(sizes[start // 10 :]) >= min(most, sum(sizes))
