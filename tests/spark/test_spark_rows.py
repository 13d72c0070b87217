"""From rows to messages: the columns that the sink takes, and the partition that a key belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.model.batch import Record
from danube.model.errors import ConfigurationError, InvalidArgumentError
from danube.model.names import route_key

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from pyspark_danube._routing import route_keys
from pyspark_danube._rows import check_columns, to_messages

STRING_MAP = pa.map_(pa.string(), pa.string())


def schema(**columns) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@given(st.lists(st.one_of(st.none(), st.text(max_size=12)), max_size=60), st.integers(1, 9), st.integers(0, 5))
@settings(deadline=None)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_key_goes_where_other_producers_send_it(kind, keys: list[str | None], partitions: int, cut: int) -> None:
    column = pa.array(keys, kind).slice(cut)
    expected = [0 if partitions == 1 else 7 if key is None else route_key(key, partitions) for key in keys[cut:]]
    assert route_keys(column, partitions, without_key=7).tolist() == expected


@pytest.mark.parametrize(
    "columns",
    [
        {"payload": BinaryType()},
        {"payload": StringType(), "key": StringType()},
        {"payload": StringType(), "key": BinaryType()},
        {"attributes": MapType(StringType(), StringType()), "payload": BinaryType()},
    ],
)
def test_columns_that_are_taken(columns) -> None:
    check_columns(schema(**columns), has_topic=True)
    check_columns(schema(topic=StringType(), **columns), has_topic=False)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"payload": BinaryType(), "keys": StringType()}, "did you mean 'key'"),
        ({"payload": BinaryType(), "amount": IntegerType()}, "no column 'amount'; leave it out"),
        ({"key": StringType()}, "there is no column 'payload' among 'key'"),
        ({}, "no columns at all"),
        ({"payload": IntegerType()}, "'payload' is INT, but the sink takes BINARY or STRING"),
        ({"payload": BinaryType(), "key": LongType()}, r"CAST\(key AS STRING\)"),
        ({"payload": BinaryType(), "attributes": MapType(StringType(), IntegerType())}, "MAP<STRING,INT>"),
    ],
)
def test_columns_that_are_refused(columns, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_columns(schema(**columns), has_topic=True)


def test_rows_have_to_go_somewhere() -> None:
    with pytest.raises(ConfigurationError, match="neither an option 'topic' nor a column 'topic'"):
        check_columns(schema(payload=BinaryType()), has_topic=False)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_payloads_alone_stay_payloads(kind) -> None:
    rows = pa.record_batch(
        {
            "payload": pa.array(["a", "", "ä"], pa.string()).cast(kind),
            "key": pa.nulls(3, pa.string()),
            "attributes": pa.nulls(3, STRING_MAP),
        }
    )
    assert to_messages(rows) == [b"a", b"", "ä".encode()]


def test_keys_and_attributes_make_records() -> None:
    rows = pa.record_batch(
        {
            "attributes": pa.array([[("v", "1")], None, []], STRING_MAP),
            "payload": pa.array([b"a", b"b", b"c"]),
            "key": pa.array(["k", None, ""]),
        }
    )
    assert to_messages(rows) == [Record(b"a", b"k", {"v": "1"}), Record(b"b"), Record(b"c", b"")]
    assert to_messages(rows.select(["payload", "key"])) == [Record(b"a", b"k"), Record(b"b"), Record(b"c", b"")]
    assert to_messages(rows.select(["payload", "attributes"])) == [
        Record(b"a", None, {"v": "1"}),
        Record(b"b"),
        Record(b"c"),
    ]


def test_nothing_is_made_up_for_nulls() -> None:
    with pytest.raises(InvalidArgumentError, match="null payload"):
        to_messages(pa.record_batch({"payload": pa.array([b"a", None])}))
    attributes = pa.array([[("v", None)]], STRING_MAP)
    with pytest.raises(InvalidArgumentError, match="attribute 'v' of a row is null"):
        to_messages(pa.record_batch({"payload": pa.array([b"a"]), "attributes": attributes}))
