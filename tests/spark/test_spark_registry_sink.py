"""The sink with a schema: rows are encoded, and batches carry the number of the schema. No Java is needed for that."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from brokers import BrokerProcess

from danube.client.sync import Client
from danube.model.batch import read_header
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    NotFoundError,
)
from danube.schema.typed import Subject

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
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
from pyspark_danube._batch import BatchReader
from pyspark_danube._plan import ReadTask
from pyspark_danube._source import DefaultSource


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


ORDER = struct(id=LongType(), user=StringType())
WIDE = struct(
    id=IntegerType(),
    total=DecimalType(10, 2),
    day=DateType(),
    at=TimestampType(),
    local=TimestampNTZType(),
    raw=BinaryType(),
    tags=ArrayType(StringType()),
    by_name=MapType(StringType(), DoubleType()),
    inner=struct(x=DoubleType()),
    nothing=StringType(),
)
ROW = {
    "id": 1,
    "total": Decimal("1.25"),
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC),
    "local": datetime(2026, 1, 31, 12),
    "raw": b"\x00",
    "tags": ["a", None],
    "by_name": {"k": 0.5},
    "inner": {"x": 1.5},
    "nothing": None,
}


def write(
    broker: BrokerProcess, kind: DataType, values: list[Any], keys: list[str] | None = None, **options: str
) -> Any:
    """Write values as Spark does: the writer is pickled to the tasks."""
    schema = struct(value=kind, **({"key": StringType()} if keys else {}))
    columns = {"value": values} | ({"key": keys} if keys else {})
    rows = pa.RecordBatch.from_pydict(columns, schema=to_arrow_schema(schema, timezone="UTC"))
    source = DefaultSource({"servers": broker.url} | options)
    writer = source.writer(schema, overwrite=False)
    written = pickle.loads(pickle.dumps(writer)).write(iter([rows]))
    writer.commit([written])
    return writer


def read(broker: BrokerProcess, topic: str) -> list[Any]:
    source = DefaultSource({"servers": broker.url, "topic": topic, "payloadFormat": "registry"})
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    tasks = [task for task in reader.partitions() if isinstance(task, ReadTask)]
    batches = [batch for task in tasks for batch in reader.read(task)]
    return [row["value"] for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def refs(client: Client, topic: str) -> set[tuple[int, int]]:
    found = set()
    for state in client.logs.states([topic]):
        with client.logs.read(state.name, state.start_offset, state.end_offset) as batches:
            for batch in batches:
                header = read_header(batch.part)
                found.add((header.schema_id, header.schema_version))
    return found


def test_rows_are_written_in_avro_with_their_schema(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/w-avro"
    client.admin.create_topic(topic, partitions=2)
    write(broker, WIDE, [ROW, ROW], ["a", "b"], topic=topic, payloadFormat="avro")
    info = client.schemas.version(f"{topic}-value")
    assert (info.schema_type, info.version) == ("avro", 1)
    assert refs(client, topic) == {(info.number, 1)}
    assert read(broker, topic) == [ROW, ROW]
    with client.reader(topic, start="earliest", schema=Subject(f"{topic}-value")) as reader:
        first = next(iter(reader))
        assert first.value["total"] == Decimal("1.25")


def test_rows_are_written_in_json_with_their_schema(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/w-json"
    write(broker, WIDE, [ROW], topic=topic, payloadFormat="json", schemaSubject="w-json-rows")
    assert client.schemas.version("w-json-rows").schema_type == "json_schema"
    with client.reader(topic, start="earliest", schema=Subject("w-json-rows")) as reader:
        value = next(iter(reader)).value  # checked against the schema
    assert value == ROW | {
        "total": "1.25",
        "day": "2026-01-31",
        "at": "2026-01-31T12:00:00.000005Z",
        "local": "2026-01-31T12:00:00",
        "raw": "AA==",
    }


def test_a_new_column_is_a_new_version(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/w-versions"
    options = {"topic": topic, "payloadFormat": "avro"}
    write(broker, ORDER, [{"id": 1, "user": "ada"}], **options)
    write(broker, struct(id=LongType(), user=StringType(), total=DoubleType()), [{"id": 2, "total": 2.0}], **options)
    write(broker, ORDER, [{"id": 3, "user": "bob"}], **options)
    assert [each.version for each in client.schemas.subject(f"{topic}-value").versions] == [1, 2]
    assert {version for _, version in refs(client, topic)} == {1, 2}
    assert read(broker, topic) == [
        {"id": 1, "user": "ada", "total": None},
        {"id": 2, "user": None, "total": 2.0},
        {"id": 3, "user": "bob", "total": None},
    ]
    with pytest.raises(IncompatibleSchemaError):
        write(broker, struct(id=StringType()), [{"id": "x"}], **options)
    assert len(read(broker, topic)) == 3


def test_a_sink_may_be_kept_from_registering(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/w-find"
    options = {"topic": topic, "payloadFormat": "avro"}
    with pytest.raises(NotFoundError, match="/default/w-find-value"):
        write(broker, ORDER, [{"id": 1}], registerSchema="false", **options)
    write(broker, ORDER, [{"id": 1, "user": "ada"}], **options)
    write(broker, ORDER, [{"id": 2, "user": "eve"}], registerSchema="false", **options)
    with pytest.raises(NotFoundError):
        write(broker, struct(id=LongType()), [{"id": 3}], registerSchema="false", **options)
    assert [row["id"] for row in read(broker, topic)] == [1, 2]


def test_the_policy_of_the_topic_is_met(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/w-enforced"
    write(broker, ORDER, [{"id": 1, "user": "ada"}], topic=topic, payloadFormat="avro")
    client.schemas.bind(topic, f"{topic}-value")
    client.admin.change_policies(topic, schema_validation="enforce")
    write(broker, ORDER, [{"id": 2, "user": "eve"}], topic=topic, payloadFormat="avro")
    plain = DefaultSource({"servers": broker.url, "topic": topic}).writer(struct(payload=BinaryType()), overwrite=False)
    with pytest.raises(DanubeError, match="schema"):
        plain.write(iter([pa.RecordBatch.from_pydict({"payload": [b"x"]})]))
    assert [row["id"] for row in read(broker, topic)] == [1, 2]


def test_rows_without_a_value_are_refused(broker: BrokerProcess) -> None:
    with pytest.raises(InvalidArgumentError, match="a row has a null value"):
        write(broker, ORDER, [None], topic="/default/w-null", payloadFormat="avro")


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (struct(a=DayTimeIntervalType()), {"payloadFormat": "avro"}, "does not support 'value.a' of type interval"),
        (struct(a=DayTimeIntervalType()), {"payloadFormat": "json"}, "does not support 'value.a' of type interval"),
        (
            StructType([StructField("a b", LongType())]),
            {"payloadFormat": "avro"},
            "rename it, for example `a b` AS a_b",
        ),
        (ORDER, {"payloadFormat": "xml"}, "must be avro, json, protobuf or binary"),
        (ORDER, {"schemaSubject": "s"}, "need payloadFormat=avro, json or protobuf"),
        (ORDER, {"schemaFraming": "confluent"}, "need payloadFormat=avro, json or protobuf"),
        (ORDER, {"payloadFormat": "avro", "schemaFraming": "kafka"}, "must be none or confluent"),
    ],
)
def test_what_a_schema_cannot_say_is_refused(
    broker: BrokerProcess, kind: StructType, options: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        write(broker, kind, [], topic="/default/w-refused", **options)


def test_the_value_needs_a_column_of_its_own(broker: BrokerProcess) -> None:
    source = DefaultSource({"servers": broker.url, "topic": "/default/w-refused", "payloadFormat": "avro"})
    for schema in (ORDER, struct(value=ORDER, payload=BinaryType())):
        with pytest.raises(ConfigurationError, match=r"select the fields of the value, .*'struct\(\*\) AS value'"):
            source.writer(schema, overwrite=False)
    with pytest.raises(ConfigurationError, match="needs the option schemaSubject"):
        DefaultSource({"servers": broker.url, "payloadFormat": "avro"}).writer(ORDER, overwrite=False)
