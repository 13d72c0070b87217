"""From rows to messages: the columns that the sink takes, and the partition that a key belongs to."""

from __future__ import annotations

import time

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
    TimestampNTZType,
    TimestampType,
)
from pyspark_danube._routing import route_keys, route_rows
from pyspark_danube._rows import check_columns, first_time_us, to_messages

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
        {"payload": BinaryType(), "partition": IntegerType(), "publish_time": TimestampType()},
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
        ({"payload": BinaryType(), "partition": LongType()}, r"CAST\(partition AS INT\)"),
        ({"payload": BinaryType(), "publish_time": TimestampNTZType()}, r"CAST\(publish_time AS TIMESTAMP\)"),
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


def test_a_partition_that_is_given_comes_before_that_of_the_key() -> None:
    keys = ["a", "b", "c", None, None]
    rows = pa.record_batch({"key": pa.array(keys), "partition": pa.array([4, None, 0, 2, None], pa.int32())})
    assert route_rows(rows, "/default/t", 5, without_key=3).tolist() == [4, route_key("b", 5), 0, 2, 3]
    assert route_rows(rows.select(["partition"]), "/default/t", 5, without_key=3).tolist() == [4, 3, 0, 2, 3]
    assert route_rows(rows.select(["key"]), "/default/t", 5, without_key=3).tolist() == [
        *(route_key(key, 5) for key in ("a", "b", "c")),
        3,
        3,
    ]
    with pytest.raises(InvalidArgumentError, match="for partition 4 of /default/t, and its partitions are 0 to 3"):
        route_rows(rows, "/default/t", 4, without_key=0)
    negative = pa.record_batch({"partition": pa.array([-1], pa.int32())})
    with pytest.raises(InvalidArgumentError, match="for partition -1 of /default/t, and it has no partitions but 0"):
        route_rows(negative, "/default/t", 1, without_key=0)


def test_times_count_from_the_first() -> None:
    times = pa.array([5_000_000, 2_000_000, None], pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"payload": pa.array([b"a", b"b", b"c"]), "publish_time": times})
    assert first_time_us(rows) == 2_000_000
    assert first_time_us(rows.select(["payload"])) is None
    before = time.time_ns() // 1000
    first, second, third = to_messages(rows, 3_000_000)
    assert [first, second] == [Record(b"a", None, None, 2_000_000), Record(b"b", None, None, -1_000_000)]
    assert isinstance(third, Record)
    assert before <= third.publish_delta_us + 3_000_000 <= time.time_ns() // 1000
    early = pa.record_batch({"payload": pa.array([b"a"]), "publish_time": pa.array([-1], pa.timestamp("us", "UTC"))})
    with pytest.raises(InvalidArgumentError, match="publish_time before 1970"):
        first_time_us(early)


def test_nothing_is_made_up_for_nulls() -> None:
    with pytest.raises(InvalidArgumentError, match="null payload"):
        to_messages(pa.record_batch({"payload": pa.array([b"a", None])}))
    attributes = pa.array([[("v", None)]], STRING_MAP)
    with pytest.raises(InvalidArgumentError, match="attribute 'v' of a row is null"):
        to_messages(pa.record_batch({"payload": pa.array([b"a"]), "attributes": attributes}))
