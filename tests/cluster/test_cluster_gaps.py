"""Records and arithmetic of declared gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cluster.gaps import (
    DEFAULT_RESERVE,
    GapRecord,
    GapState,
    gap_name,
    is_gap_name,
    open_ranges,
    reserve_of,
    topic_gaps,
    topic_of_gap,
    undeclared,
)
from danube.model import Limits
from danube.model.ids import BrokerId, Offset, TopicId


def gap(start: int, end: int, state: GapState = GapState.OPEN) -> GapRecord:
    return GapRecord(start=Offset(start), end=Offset(end), broker=BrokerId(2), since_s=1.0, state=state)


def test_the_reserve_of_the_default_limits() -> None:
    limits = Limits()
    assert reserve_of(limits.journal_max_bytes, limits.max_batch_records) == DEFAULT_RESERVE == 1 << 42


@given(st.integers(0, 1 << 45), st.integers(1, 1 << 20))
def test_the_reserve_is_a_power_of_two_and_no_less_than_the_journal_holds(size: int, records: int) -> None:
    found = reserve_of(size, records)
    assert found & (found - 1) == 0
    assert found >= size // 128 * records
    assert found == 1 or found // 2 < size // 128 * records


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 63) - 1))
def test_names_of_gaps(topic: int, start: int) -> None:
    name = gap_name(TopicId(topic), Offset(start))
    assert is_gap_name(name)
    assert topic_of_gap(name) == topic
    assert f"/gaps/{name}".startswith(topic_gaps(TopicId(topic)))


@pytest.mark.parametrize("name", ["", "0" * 16, "0" * 16 + "/", "0" * 16 + "/" + "g" * 16, "/" + "0" * 16])
def test_other_names(name: str) -> None:
    assert not is_gap_name(name)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=5), st.integers(0, 60), st.integers(0, 60))
def test_what_no_gap_declares(pairs: list[tuple[int, int]], low: int, high: int) -> None:
    gaps = [gap(start, start + size) for start, size in pairs]
    found = {offset for start, end in undeclared(low, high, gaps) for offset in range(start, end)}
    assert found == {each for each in range(low, high) if not any(one.start <= each < one.end for one in gaps)}


def test_subscriptions_wait_for_open_gaps_only() -> None:
    gaps = [gap(20, 30), gap(0, 10), gap(40, 50, GapState.FILLED), gap(60, 70, GapState.FORGOTTEN)]
    assert open_ranges(gaps) == [(0, 10), (20, 30)]
