"""Rows of tables in memory, as objects and packed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.metadata import HexNames, KeyValue, TextNames
from danube.metadata._rows import PackedRows, PlainRows, released
from danube.model import Durability, TopicPolicies
from danube.model.ids import TopicId
from danube.model.records import TopicRecord, decode_topic, encode_briefly

NAMES = ("00000000000000ff", "0000000000000100", "7fffffffffffffff")
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.one_of(st.none(), st.text(max_size=3)), st.integers(1, 1 << 62)), max_size=20
)


@pytest.mark.parametrize("names", [TextNames(), HexNames(16)])
@given(steps=STEPS)
def test_packed_rows_are_as_plain_ones(names: Any, steps: list[tuple[str, str | None, int]]) -> None:
    plain: PlainRows[str] = PlainRows()
    packed: PackedRows[str] = PackedRows(names, str.encode, bytes.decode)
    for name, value, revision in steps:
        for rows in (plain, packed):
            if value is not None:
                rows.put(name, value, revision)
            elif name in rows.values:
                known = rows.values[name]
                assert rows.remove(name) == known
        assert list(plain.every()) == list(packed.every())
        assert list(plain.revisions()) == list(packed.revisions())
        for rows in (plain, packed):
            assert [row for batch in rows.batches(2) for row in batch] == list(plain.every())
        assert dict(plain.values) == dict(packed.values)
        assert len(plain.values) == len(packed.values)
        for each in (*NAMES, "another"):
            assert (each in plain.values) is (each in packed.values)
            assert plain.values.get(each) == packed.values.get(each)
            assert plain.revision(each) == packed.revision(each)


@pytest.mark.parametrize("rows", [PlainRows[str](), PackedRows[str](TextNames(), str.encode, bytes.decode)])
def test_rows_may_change_between_batches(rows: Any) -> None:
    for name in "abcdef":
        rows.put(name, "first", 1)
    batches = rows.batches(2)
    assert next(batches) == [("a", "first", 1), ("b", "first", 1)]
    rows.remove("a")
    rows.remove("c")
    rows.put("d", "second", 2)
    rows.put("g", "first", 3)
    assert list(batches) == [[("d", "second", 2)], [("e", "first", 1), ("f", "first", 1)]]


@pytest.mark.parametrize(
    "name", ["", "ff", "00000000000000FF", "00000000000000fg", " 0000000000000ff", "+000000000000ff0"]
)
def test_what_is_no_number_of_that_many_digits_has_no_row(name: str) -> None:
    rows: PackedRows[str] = PackedRows(HexNames(16), str.encode, bytes.decode)
    rows.put("00000000000000ff", "value", 1)
    assert name not in rows.values
    assert rows.values.get(name) is None
    assert rows.revision(name) == 0
    with pytest.raises(KeyError):
        rows.remove(name)
    with pytest.raises(ValueError, match="not a name"):
        rows.put(name, "value", 1)


@pytest.mark.parametrize("count", [0, 3, 2_500])
def test_a_list_is_released_in_its_order(count: int) -> None:
    items = [KeyValue(f"/k/{number}", bytes(3), number, number, 1, None) for number in range(1, count + 1)]
    expected = list(items)
    found = released(items)
    assert list(found) == expected
    assert not items or count <= 1_000, "it does not stay in memory"


def test_records_without_their_last_defaults_decode_alike() -> None:
    plain = TopicRecord(Durability.DISK, 0, [TopicId(5)], 7)
    changes: list[dict[str, Any]] = [
        {},
        {"storage": "cold"},
        {"policies": TopicPolicies(max_producers=3)},
        {"planned": {TopicId(0): {"s": {"ack_timeout_s": 3}}}},
        {"partitions": 2, "topic_ids": [TopicId(1), TopicId(2)]},
    ]
    for change in changes:
        record = msgspec.structs.replace(plain, **change)
        assert decode_topic(encode_briefly(record)) == record
    assert len(encode_briefly(plain)) < 20
