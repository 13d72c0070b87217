"""Stored batches become exactly the columns that Spark expects: against a slow and obvious conversion."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from pyspark_danube import DefaultSource, _arrow
from pyspark_danube._arrow import MAX_BATCH_ROWS, ArrowRows, _ShortPayloads
from pyspark_danube._columns import COLUMNS, SCHEMA, Columns

from danube.model.batch import (
    PART_HEADER_SIZE,
    Codec,
    CompositeRecord,
    Record,
    encode_composite,
    encode_part,
    seal_part,
)
from danube.model.batch import header_at as header_of
from danube.model.errors import ConfigurationError, DataLossError, InvalidArgumentError
from danube.model.query_api import RawBatch

TIME_US = 1_700_000_000_000_000


def columns(*names: str, payload_format: str = "binary", mode: str = "PERMISSIVE", **others: DataType) -> Columns:
    """Columns of a topic by name (all if none is given), and others with their types."""
    kinds = {name: COLUMNS[name] for name in names} | others or COLUMNS
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    return Columns(schema, payload_format=payload_format, mode=mode)


def part_of(records: list[Any], *, codec: Codec = Codec.NONE, **fields: int) -> bytes:
    if isinstance(records[0], CompositeRecord):
        return encode_composite(records, publish_time_us=TIME_US, **fields)
    header = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 0, "publish_time_us": TIME_US} | fields
    return encode_part(records, codec=codec, **header)


def raw(base: int, records: list[Any], producer: str = "p", **options: Any) -> RawBatch:
    return RawBatch(base, TIME_US + 5, producer, part_of(records, **options))


def record_batches(batches: list[RawBatch], rows: ArrowRows, start: int, end: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows.add(batch, start, end)
        if rows.full:
            yield rows.take()
    if rows.rows:
        yield rows.take()


def read(batches: list[RawBatch], asked: Columns, start: int = 0, end: int = 1 << 60) -> list[dict[str, Any]]:
    made = list(record_batches(batches, ArrowRows(asked, "/default/t", 3), start, end))
    for batch in made:
        assert batch.schema.equals(asked.schema)
        batch.validate(full=True)
    return [row for batch in made for row in batch.to_pylist()]


def expected(batch: RawBatch, records: list[Any], start: int, end: int, ids: tuple[int, int]) -> list[dict[str, Any]]:
    rows = []
    for offset, given_record in enumerate(records, batch.base_offset):
        record = Record(given_record) if isinstance(given_record, bytes) else given_record
        producer = record.producer if isinstance(record, CompositeRecord) else batch.producer
        if start <= offset < end:
            rows.append(
                {
                    "topic": "/default/t",
                    "partition": 3,
                    "offset": offset,
                    "publish_time": TIME_US + record.publish_delta_us,
                    "key": None if record.key is None else record.key.decode(errors="backslashreplace"),
                    "payload": record.payload,
                    "attributes": None if record.attributes is None else list(record.attributes.items()),
                    "producer": producer or None,
                    "schema_id": ids[0],
                    "schema_version": ids[1],
                }
            )
    return rows


def with_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        if "publish_time" in row:
            row["publish_time"] = int(pa.scalar(row["publish_time"], pa.timestamp("us", "UTC")).value)
    return rows


TEXT = st.text(max_size=6)
ATTRIBUTES = st.none() | st.dictionaries(TEXT, TEXT, max_size=3)
SAME_SIZE = st.integers(0, 300).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=20)
)
KEYS = st.none() | TEXT.map(str.encode) | st.binary(max_size=6)
RECORD = st.builds(Record, st.binary(max_size=20), KEYS, ATTRIBUTES, st.integers(-5, 1000))
COMPOSITE = st.builds(
    CompositeRecord,
    st.binary(max_size=20),
    KEYS,
    ATTRIBUTES,
    st.integers(0, 9),
    st.sampled_from(["", "a", "b"]),
)
RECORDS = st.one_of(
    SAME_SIZE,
    st.lists(st.binary(max_size=300), min_size=1, max_size=20),
    st.lists(RECORD, min_size=1, max_size=20),
    st.lists(COMPOSITE, min_size=1, max_size=20),
)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[RawBatch, list[Any], tuple[int, int]]]:
    base, log = draw(st.integers(0, 1000)), []
    for records in draw(st.lists(RECORDS, min_size=1, max_size=5)):
        ids = draw(st.sampled_from([(0, 0), (4, 2)]))
        options: dict[str, Any] = {"schema_id": ids[0], "schema_version": ids[1]}
        if not isinstance(records[0], CompositeRecord):
            options["codec"] = draw(st.sampled_from(list(Codec)))
        log.append((raw(base, records, draw(st.sampled_from(["", "p", "q"])), **options), records, ids))
        base += len(records) + draw(st.integers(0, 2))
    return log


@settings(deadline=None, max_examples=150)
@given(log=logs(), data=st.data())
def test_rows_are_what_was_published(
    log: list[tuple[RawBatch, list[Any], tuple[int, int]]], data: st.DataObject
) -> None:
    low, high = log[0][0].base_offset, log[-1][0].end_offset
    start = data.draw(st.integers(max(0, low - 2), high), label="start")
    end = data.draw(st.integers(start, high + 2), label="end")
    wanted = data.draw(
        st.permutations(list(COLUMNS)).flatmap(lambda names: st.integers(1, 10).map(lambda n: names[:n]))
    )
    asked = columns(*wanted)
    rows = with_numbers(read([batch for batch, _, _ in log], asked, start, end))
    everything = [row for batch, records, ids in log for row in expected(batch, records, start, end, ids)]
    assert rows == [{name: row[name] for name in wanted} for row in everything]


HEADER_LIKE = st.lists(st.sampled_from([b"\xc4", b"\x00", b"\x01", b"\x02", b"\x05", b"ab"]), max_size=12).map(b"".join)


FEW = st.lists(HEADER_LIKE | st.binary(max_size=300), min_size=1, max_size=60)
MANY = st.builds(
    lambda few, number, at, odd: [*(few * number)[:at], odd, *(few * number)[at:]],
    st.lists(HEADER_LIKE | st.binary(max_size=260), min_size=1, max_size=6),
    st.integers(1, 200),
    st.integers(0, 200),
    HEADER_LIKE | st.binary(min_size=250, max_size=260),
)


@settings(deadline=None, max_examples=300)
@given(payloads=FEW | MANY, data=st.data())
def test_short_payloads_are_told_from_bytes_that_look_like_their_headers(
    payloads: list[bytes], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(payloads)), label="start")
    with patch.object(_arrow, "_MIN_SHORT", 1):
        found = read([raw(0, payloads), raw(len(payloads), payloads[::-1])], columns("payload"), start)
    assert [row["payload"] for row in found] == [*payloads[start:], *payloads[::-1]]
    body = msgspec.msgpack.encode(payloads)
    with patch.object(_arrow, "_MIN_SHORT", 1):
        column = _ShortPayloads().column(body, len(payloads))
        assert column is None or column.to_pylist() == payloads
        for cut in (body[:-1], body + b"\xc4", body[: len(body) // 2]):
            assert _ShortPayloads().column(cut, len(payloads)) is None


@pytest.mark.parametrize("most", [107, 255])
def test_many_short_payloads_become_a_column_without_an_object_for_each(most: int) -> None:
    random = Random(most)
    short = _ShortPayloads()
    for count in (1_000, 20_000, 5_000):
        payloads = [random.randbytes(random.randint(0, most)) for _ in range(count)]
        column = short.column(msgspec.msgpack.encode(payloads), count)
        assert column is not None
        column.validate(full=True)
        assert column.to_pylist() == payloads
    assert not short._reached.any()
    alternating = [random.randbytes(40 if number % 2 else 258) for number in range(1_000)]
    for others in (alternating, alternating[1:] + alternating[:1]):
        assert short.column(msgspec.msgpack.encode(others), len(others)) is None
        assert [row["payload"] for row in read([raw(0, others)], columns("payload"))] == others
    # A payload that is too long for the short form, so many that it does not pay, and none of them.
    for others in ([b"x" * 300, *payloads], [b"x" * 200] * 1_000, [b"\xc4" * 100] * 2_000, [b""] * 999):
        assert short.column(msgspec.msgpack.encode(others), len(others)) is None


def test_payloads_of_one_size_are_told_from_ones_that_look_like_it() -> None:
    # The second payload's header has another length, and a third makes up for it.
    lengths = [5, 4, 6, 5]
    records = [bytes([0xC4, 5] * 3)[:length] for length in lengths]
    assert [row["payload"] for row in read([raw(0, records)], columns("payload"))] == records
    for size in (0, 1, 255, 256, 65535, 65536):
        records = [bytes([number]) * size for number in range(3)]
        assert [row["payload"] for row in read([raw(0, records)], columns("payload"))] == records


def test_record_batches_are_neither_tiny_nor_huge() -> None:
    small = [raw(number * 10, [b"x" * 20] * 10) for number in range(10_000)]
    made = list(record_batches(small, ArrowRows(columns(), "/default/t", 0), 0, 100_000))
    assert sum(map(len, made)) == 100_000
    assert [len(batch) for batch in made[:-1]] == [32770] * 3
    large = [raw(number * 100, [b"x" * 10_000] * 100) for number in range(20)]
    made = list(record_batches(large, ArrowRows(columns(), "/default/t", 0), 0, 2_000))
    assert [len(batch) for batch in made] == [500] * 4
    assert made[0].column(made[0].schema.get_field_index("topic")).nbytes < MAX_BATCH_ROWS


def test_batches_are_not_opened_for_what_their_header_says() -> None:
    part = part_of([b"x"] * 5)
    header = header_of(part, 0)
    broken = RawBatch(10, TIME_US, "p", seal_part(header, b"\xff" * header.packed_size))
    asked = columns("offset", "publish_time", "producer", "partition", "schema_id")
    assert [row["offset"] for row in read([broken], asked)] == [10, 11, 12, 13, 14]
    with pytest.raises(DataLossError, match=r"/default/t, partition 3: .*\[10, 15\) cannot be decoded"):
        read([broken], columns("payload"))


@pytest.mark.parametrize(
    "record", [b"\x91" * 3000, b"\x95\xc4\x01x\xa1k\x80\x00" + b"\x91" * 3000, b"\x92\xc4\x01x\xa2\xff\xfe"]
)
def test_records_that_do_not_decode_are_damage(record: bytes) -> None:
    """Also those that are nested too deeply, or hold a text that is no UTF-8."""
    body = b"\x91" + record
    header = header_of(part_of([b"x"]), 0)
    header = header._replace(flags=0, unpacked_size=len(body), packed_size=len(body))
    with pytest.raises(DataLossError, match="cannot be decoded"):
        read([RawBatch(10, TIME_US, "p", seal_part(header, body))], columns("payload", "key"))


def test_a_wrong_count_is_damage() -> None:
    part = part_of([b"ab", b"c"])
    header = header_of(part, 0)
    wrong = RawBatch(0, TIME_US, "p", seal_part(header._replace(record_count=3), part[PART_HEADER_SIZE:-4]))
    with pytest.raises(DataLossError, match="2 records instead of the 3"):
        read([wrong], columns("payload"))


def test_the_schema_is_what_the_source_says() -> None:
    assert issubclass(DefaultSource, DataSource)
    assert DefaultSource({}).schema() == SCHEMA
    assert columns().names == list(COLUMNS)
    copy = pickle.loads(pickle.dumps(columns("offset")))
    assert copy.schema == pa.schema([pa.field("offset", pa.int64())])


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("offsett", IntegerType(), "did you mean 'offset'?"),
        ("nothing_like_it", IntegerType(), "it has topic, partition"),
        ("offset", StringType(), "column 'offset' is bigint, not string"),
        ("publish_time", TimestampNTZType(), "column 'publish_time' is timestamp"),
    ],
)
def test_a_wrong_schema_is_refused(name: str, kind: DataType, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        columns(**{name: kind})
    assert said in str(caught.value)


# --- JSON ---

FLIGHTS: dict[str, DataType] = {
    "carrier": StringType(),
    "delay": DoubleType(),
    "at": TimestampType(),
    "legs": ArrayType(StructType([StructField("to", StringType())])),
    "n": IntegerType(),
}


def test_json_fields_become_columns() -> None:
    records = [
        b'{"carrier": "UA", "delay": 2.5, "at": "2013-01-01T10:00:00Z", "legs": [{"to": "IAH"}], "n": 1, "other": [1]}',
        b' {"carrier": null,\n "delay": 3} ',
        b"{}",
    ]
    rows = read([raw(5, records)], columns("offset", payload_format="json", mode="FAILFAST", **FLIGHTS))
    assert [row["offset"] for row in rows] == [5, 6, 7]
    assert rows[0]["carrier"] == "UA"
    assert rows[0]["legs"] == [{"to": "IAH"}]
    assert rows[0]["at"].isoformat() == "2013-01-01T10:00:00+00:00"
    assert (rows[1]["carrier"], rows[1]["delay"], rows[1]["n"]) == (None, 3.0, None)
    assert set(rows[2].values()) == {7, None}


def test_json_dates_are_written_as_dates() -> None:
    asked = columns(payload_format="json", day=DateType())
    rows = read([raw(0, [b'{"day": "2013-01-31"}', b'{"day": null}', b'{"day": "31.1.2013"}'])], asked)
    assert [row["day"] and row["day"].isoformat() for row in rows] == ["2013-01-31", None, None]


def test_json_times_may_have_nanoseconds() -> None:
    at, inner = TimestampType(), ArrayType(StructType([StructField("at", TimestampType())]))
    texts = ["10:00:00Z", "10:00:00.123456Z", "10:00:00.1234567Z", "10:00:00.123456789Z", "in the morning"]
    records = [b'{"at": "2013-01-01T%s", "legs": [{"at": "2013-01-01T%s"}]}' % ((text.encode(),) * 2) for text in texts]
    # A year that nanoseconds do not reach, and a time with nanoseconds beside a date, which is read as text.
    records += [b'{"at": "2500-01-01T10:00:00Z"}', b'{"at": "2013-01-01T10:00:00.123456789Z", "day": "2013-01-31"}']
    rows = read([raw(0, records)], columns(payload_format="json", at=at, legs=inner, day=DateType()))
    fine = "2013-01-01T10:00:00.123456+00:00"
    seen = [row["at"] and row["at"].isoformat() for row in rows]
    assert seen == ["2013-01-01T10:00:00+00:00", fine, fine, fine, None, "2500-01-01T10:00:00+00:00", fine]
    assert [row["legs"] and row["legs"][0]["at"] for row in rows][:5] == [row["at"] for row in rows][:5]
    assert rows[6]["day"].isoformat() == "2013-01-31"


def test_json_times_may_have_any_number_of_digits() -> None:
    """They are cut off behind the microseconds, as Spark's own reader of JSON does; texts stay as they are."""
    legs = ArrayType(StructType([StructField("at", TimestampNTZType()), StructField("to", StringType())]))
    asked = columns(payload_format="json", at=TimestampType(), legs=legs, note=StringType())
    many = "2013-01-01T10:00:00.1234567890123"
    texts = [
        (f"{many}Z", "2013-01-01T10:00:00.123456+00:00"),
        (f"{many}+01:00", "2013-01-01T09:00:00.123456+00:00"),
        (many, "2013-01-01T10:00:00.123456+00:00"),
        ("1500-01-01 00:00:00.9999999Z", "1500-01-01T00:00:00.999999+00:00"),
        ("2013-01-01", "2013-01-01T00:00:00+00:00"),
        ("2013-01-01T10:00:00.1234567890123x", None),
        ('2013-01-01\\"}\\n{\\"t\\":\\"2013-01-01', None),
        ("12345678901234567890", None),
    ]
    records = [
        f'{{"at": "{text}", "note": "{many}", "legs": [null, {{"at": "{text}", "to": "{many}"}}, {{}}]}}'.encode()
        for text, _ in texts
    ]
    records += [b'{"at": null, "legs": null, "note": "n"}', b'{"legs": []}']
    rows = read([raw(0, records)], asked)
    for row, (_, at) in zip(rows, texts, strict=False):
        assert (row["at"] and row["at"].isoformat()) == at
        naive = row["at"] and row["at"].replace(tzinfo=None)
        assert row["legs"] == (at and [None, {"at": naive, "to": many}, {"at": None, "to": None}])
        assert row["note"] == (at and many)
    assert [(row["at"], row["legs"], row["note"]) for row in rows[-2:]] == [(None, None, "n"), (None, [], None)]


BAD = [
    b"",
    b"5",
    b"{",
    b'{"n": 1}{"n": 2}',
    b'{"n": "x"}',
    b"\xff",
    b'{"n": 1} {"n": 2}',
    b'{"carrier": "a\nb"}',
    b"[]",
]


@pytest.mark.parametrize("bad", BAD)
def test_malformed_json_is_null_or_an_error(bad: bytes) -> None:
    records = [b'{"n": %d}' % number for number in range(50)]
    records[33] = bad
    rows = read([raw(100, records)], columns("payload", payload_format="JSON", n=IntegerType()))
    assert [row["n"] for row in rows] == [None if number == 33 else number for number in range(50)]
    assert rows[33]["payload"] == bad
    with pytest.raises(InvalidArgumentError, match="partition 3, offset 133: the payload does not parse"):
        read([raw(100, records)], columns(payload_format="json", mode="FAILFAST", n=IntegerType()))


def test_two_objects_do_not_make_up_for_none() -> None:
    rows = read([raw(0, [b'{"n": 1}{"n": 2}', b"", b'{"n": 3}'])], columns(payload_format="json", n=IntegerType()))
    assert [row["n"] for row in rows] == [None, None, 3]


NOT_NULL = [
    ([("key", StringType(), False)], "binary", [Record(b"1", b"k"), Record(b"2")], 1, "column 'key'"),
    ([("key", StringType(), False)], "binary", [b"1", b"2"], 0, "column 'key'"),
    ([("producer", StringType(), False), ("offset", LongType(), False)], "binary", [b"1"], 0, "column 'producer'"),
    ([("attributes", COLUMNS["attributes"], False)], "binary", [Record(b"1", None, {"a": "b"}), b"2"], 1, "column"),
    ([("n", IntegerType(), False)], "json", [b'{"n": 1}', b"{}"], 1, "field 'n'"),
    ([("n", IntegerType(), False)], "json", [b'{"n": 1}', b"malformed"], 1, "field 'n'"),
    (
        [("a", ArrayType(StructType([StructField("n", LongType(), False)]), False), True)],
        "json",
        [b'{"a": [{"n": 1}, {"n": 2}]}', b"{}", b'{"a": null}', b'{"a": []}', b'{"a": [{"n": 3}, {}]}'],
        4,
        r"field 'a\[\].n'",
    ),
    (
        [("a", ArrayType(LongType(), False), True)],
        "json",
        [b'{"a": [1]}', b"{}", b'{"a": [2, null]}'],
        2,
        r"field 'a\[\]'",
    ),
    (
        [("s", StructType([StructField("n", IntegerType(), False), StructField("t", StringType())]), True)],
        "json",
        [b'{"s": null}', b'{"s": {"n": 1}}', b'{"s": {"t": "x"}}'],
        2,
        "field 's.n'",
    ),
]


@pytest.mark.parametrize(("fields", "payload_format", "records", "bad", "said"), NOT_NULL)
def test_not_null_is_a_demand(
    fields: list[tuple[str, DataType, bool]], payload_format: str, records: list[Any], bad: int, said: str
) -> None:
    """A null where the query's schema says that there is none ends the query; Spark would crash, or make it a 0."""
    schema = StructType([StructField(*field) for field in fields])
    records = [record if isinstance(record, Record) else Record(record) for record in records]
    for mode in ("PERMISSIVE", "FAILFAST"):
        if mode == "FAILFAST" and records[bad].payload == b"malformed":
            continue
        asked = Columns(schema, payload_format=payload_format, mode=mode)
        names = ["" if field[0] == "producer" else "p" for field in fields]
        batch = raw(10, records, producer=names[0])
        with pytest.raises(InvalidArgumentError, match=rf"partition 3, offset {10 + bad}: {said}.*NOT NULL"):
            read([batch], asked)
        assert len(read([batch], asked, 0, 10 + bad)) == bad  # what is before it is there, with its nulls


def test_a_payload_is_taken_apart_as_it_is_whatever_may_be_null() -> None:
    inner = StructType([StructField("n", IntegerType(), False)])
    schema = StructType([StructField("s", inner), StructField("l", ArrayType(IntegerType(), False))])
    asked = Columns(schema, payload_format="json", mode="FAILFAST")
    records = [b'{"s": {"n": 1}, "l": [1, 2]}', b'{"s": null, "l": [3]}', b'{"l": null}', b'{"s": {"n": 4}, "l": []}']
    assert [tuple(row.values()) for row in read([raw(0, records)], asked)] == [
        ({"n": 1}, [1, 2]),
        (None, [3]),
        (None, None),
        ({"n": 4}, []),
    ]


def test_json_cannot_make_every_type() -> None:
    inner = StructType([StructField("b", BinaryType())])
    texts, days = MapType(StringType(), StringType()), ArrayType(DateType())
    for kind, said in ((texts, "field 'a'"), (inner, "field 'a.b'"), (days, "field 'a[]'")):
        with pytest.raises(ConfigurationError) as caught:
            columns(payload_format="json", a=kind)
        assert said in str(caught.value)
    with pytest.raises(ConfigurationError, match="did you mean 'json'"):
        columns(payload_format="jsn", a=IntegerType())
    with pytest.raises(ConfigurationError, match="a field of the payload cannot have this name"):
        columns(payload_format="json", offset=StringType())


@given(st.lists(KEYS, min_size=1, max_size=20))
def test_keys_may_be_asked_for_as_bytes(keys: list[bytes | None]) -> None:
    asked = Columns(StructType([StructField("key", BinaryType())]))
    assert read([raw(0, [Record(b"x", key) for key in keys])], asked) == [{"key": key} for key in keys]
