"""Payloads with schemas of the registry: all versions of a type are one table. Only the last test needs Java."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest
from brokers import BrokerProcess

from danube.client.sync import Client, connect
from danube.history.direct import open_direct
from danube.model.errors import ConfigurationError, InvalidArgumentError, NotFoundError, SchemaNotFoundError
from danube.schema.kinds import Source
from danube.schema.modes import SchemaType
from danube.schema.typed import Avro, Json, Subject

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark_danube._batch import BatchReader
from pyspark_danube._options import read_options
from pyspark_danube._payloads import MalformedPayloadError
from pyspark_danube._plan import ReadTask
from pyspark_danube._source import DefaultSource
from pyspark_danube._stream import StreamReader
from pyspark_danube._values import Pinned, ValueDecoder, shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class First(msgspec.Struct):
    id: int
    user: str


class Second(msgspec.Struct):
    id: int
    user: str
    total: float = 0.5


class Third(msgspec.Struct):
    id: int
    user: str
    total: float = 0.5
    notes: list[str] = []
    at: datetime | None = None


AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
TABLE = [
    {"id": 1, "user": "ada", "total": 0.5, "notes": [], "at": None},
    {"id": 2, "user": "eve", "total": 2.0, "notes": [], "at": None},
    {"id": 3, "user": "bob", "total": 3.0, "notes": ["gift"], "at": AT},
]


def source_of(servers: str, topic: str, **options: str) -> DefaultSource:
    return DefaultSource({"servers": servers, "topic": topic} | options)


def rows(source: DefaultSource, schema: Any = None) -> list[dict[str, Any]]:
    """Read a topic as Spark does: the source and the reader are pickled between processes."""
    asked = schema or source.schema()
    reader: BatchReader = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(source)).reader(asked)))
    tasks = [task for task in reader.partitions() if isinstance(task, ReadTask)]
    batches = [batch for task in tasks for batch in reader.read(task)]
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def values(source: DefaultSource, schema: Any = None) -> list[Any]:
    return [row["value"] for row in rows(source, schema)]


def write(client: Client, topic: str, schema: Any, *items: Any, **options: Any) -> None:
    with client.producer(topic, schema=schema, **options) as producer:
        producer.send_many(list(items))


@pytest.fixture(scope="module")
def avro_topic(client: Client) -> str:
    topic = "/default/r-avro"
    write(client, topic, Avro(First, name="Order"), First(1, "ada"))
    write(client, topic, Avro(Second, name="Order"), Second(2, "eve", 2.0))
    write(client, topic, Avro(Third, name="Order"), Third(3, "bob", 3.0, ["gift"], AT))
    return topic


def test_three_versions_of_an_avro_type_are_one_table(broker: BrokerProcess, avro_topic: str) -> None:
    source = source_of(broker.url, avro_topic, payloadFormat="avro")
    assert source.schema()["value"].dataType.simpleString() == (
        "struct<id:bigint,user:string,total:double,notes:array<string>,at:timestamp>"
    )
    found = rows(source)
    assert [row["value"] for row in found] == TABLE
    assert [row["schema_version"] for row in found] == [1, 2, 3]
    assert "payload" not in found[0]


def test_the_version_of_the_reader_can_be_chosen(broker: BrokerProcess, avro_topic: str) -> None:
    second = source_of(broker.url, avro_topic, payloadFormat="registry", schemaVersion="2")
    assert values(second) == [{name: row[name] for name in ("id", "user", "total")} for row in TABLE]
    first = source_of(
        broker.url, avro_topic, payloadFormat="Avro", schemaVersion="1", schemaSubject=f"{avro_topic}-value"
    )
    assert values(first) == [{"id": row["id"], "user": row["user"]} for row in TABLE]


def test_a_query_may_ask_for_some_fields(broker: BrokerProcess, avro_topic: str) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    some = StructType([StructField("user", StringType()), StructField("id", LongType())])
    asked = StructType([StructField("offset", LongType()), StructField("value", some)])
    found = rows(source_of(broker.url, avro_topic, payloadFormat="registry"), asked)
    assert found == [{"offset": n, "value": {"user": TABLE[n]["user"], "id": n + 1}} for n in range(3)]
    plain = StructType([StructField("offset", LongType())])
    assert rows(source_of(broker.url, avro_topic, payloadFormat="registry"), plain) == [{"offset": n} for n in range(3)]


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        (
            "struct<id:int>",
            r"'value.id' is bigint, not int; convert it in the query, with cast\(\); the reader's schema",
        ),
        ("struct<usr:string>", "the column 'value' has no field 'usr'; did you mean 'user'?"),
        ("struct<notes:array<int>>", r"'value.notes\[\]' is string, not int"),
    ],
)
def test_columns_that_the_schema_does_not_have_are_refused(
    broker: BrokerProcess, avro_topic: str, ddl: str, why: str
) -> None:
    from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

    kinds = {"id:int": IntegerType(), "usr:string": StringType(), "notes:array<int>": ArrayType(IntegerType())}
    inner = ddl.removeprefix("struct<")[:-1]
    asked = StructType([StructField("value", StructType([StructField(inner.split(":")[0], kinds[inner])]))])
    with pytest.raises(ConfigurationError, match=why):
        source_of(broker.url, avro_topic, payloadFormat="avro").reader(asked)
    with pytest.raises(ConfigurationError, match=r"there is no column 'id'; there are topic, .* value STRUCT<id: int>"):
        source_of(broker.url, avro_topic, payloadFormat="avro").reader(StructType([StructField("id", IntegerType())]))


def test_json_of_all_versions_has_the_readers_defaults(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/r-json"
    write(client, topic, Json(First, name="Order"), First(1, "ada"))
    write(client, topic, Json(Second, name="Order"), Second(2, "eve", 2.0))
    write(client, topic, Json(Third, name="Order"), Third(3, "bob", 3.0, ["gift"], AT))
    source = source_of(broker.url, topic, payloadFormat="registry")
    text = {AT: "2026-01-31T12:00:00Z", None: None}
    expected = [{**row, "at": text[row["at"]]} for row in TABLE]
    assert values(source) == expected
    named = source_of(broker.url, topic, payloadFormat="json", schemaSubject=f"{topic}-value", schemaVersion="1")
    assert values(named) == [{"id": row["id"], "user": row["user"]} for row in TABLE]
    with pytest.raises(ConfigurationError, match=r"payloadFormat=avro does not fit version 3 of subject .*json_schema"):
        source_of(broker.url, topic, payloadFormat="avro").schema()


def message_class(*fields: tuple[str, int, Any], name: str = "Order") -> Any:
    """A class of messages with these fields: name, number, and the other fields of the descriptor."""
    described = FileDescriptorProto(name=f"r/{name.lower()}{len(fields)}.proto", package="r", syntax="proto3")
    described.enum_type.add(name="Size").value.add(name="SMALL", number=0)
    part = described.message_type.add(name="Part")
    part.field.add(name="sku", number=1, type=9, label=1)
    message = described.message_type.add(name=name)
    entry = message.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=1, label=1)
    for field, number, more in fields:
        if more.get("proto3_optional"):
            message.oneof_decl.add(name=f"_{field}")
            more = more | {"oneof_index": len(message.oneof_decl) - 1}
        message.field.add(name=field, number=number, **({"label": 1} | more))
    pool = DescriptorPool()
    pool.Add(described)
    return GetMessageClass(pool.FindMessageTypeByName(f"r.{name}"))


FIELDS: tuple[tuple[str, int, Any], ...] = (
    ("id", 1, {"type": 3}),
    ("user", 2, {"type": 9}),
    ("large", 3, {"type": 4}),
    ("size", 4, {"type": 14, "type_name": ".r.Size"}),
    ("parts", 5, {"type": 11, "type_name": ".r.Part", "label": 3}),
    ("prices", 6, {"type": 11, "type_name": ".r.Order.PricesEntry", "label": 3}),
    ("raw", 7, {"type": 12, "proto3_optional": True}),
    ("parent", 8, {"type": 11, "type_name": ".r.Order"}),
)


def test_three_versions_of_a_message_are_one_table(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/r-proto"
    kinds = [message_class(*FIELDS[:count]) for count in (2, 4, 8)]
    client.schemas.set_compatibility(f"{topic}-value", level="none")  # the files have different names
    write(client, topic, kinds[0], kinds[0](id=1, user="ada"))
    write(client, topic, kinds[1], kinds[1](id=2, user="eve", large=2**64 - 1))
    last = kinds[2](id=3, user="bob", raw=b"x", prices={"a": 1.5}, parent=kinds[2](id=4))
    last.parts.add(sku="p")
    write(client, topic, kinds[2], last)
    source = source_of(broker.url, topic, payloadFormat="protobuf")
    assert source.schema()["value"].dataType.simpleString() == (
        "struct<id:bigint,user:string,large:decimal(20,0),size:string,parts:array<struct<sku:string>>,"
        "prices:map<string,double>,raw:binary,parent:string>"
    )
    empty = {"large": Decimal(0), "size": "SMALL", "parts": [], "prices": {}, "raw": None, "parent": None}
    assert values(source) == [
        {"id": 1, "user": "ada", **empty},
        {"id": 2, "user": "eve", **empty, "large": Decimal(2**64 - 1)},
        {
            "id": 3,
            "user": "bob",
            "large": Decimal(0),
            "size": "SMALL",
            "parts": [{"sku": "p"}],
            "prices": {"a": 1.5},
            "raw": b"x",
            "parent": '{"id": "4"}',
        },
    ]


def test_payloads_that_do_not_decode_fail_the_query_or_are_null(
    broker: BrokerProcess, client: Client, avro_topic: str
) -> None:
    topic = "/default/r-bad"
    write(client, topic, Avro(First, name="Order"), First(1, "ada"))
    with client.producer(topic) as raw:
        raw.send_many([b"\xff", b"\x04\x06eve"])  # without a number: the reader's schema
    write(client, topic, Subject("r-bad-other", Json(First)), First(3, "bob"))
    with pytest.raises(
        InvalidArgumentError, match=rf"topic {topic}, partition 0, offset 1: the payload does not parse"
    ):
        rows(source_of(broker.url, topic, payloadFormat="avro"))
    source = source_of(broker.url, topic, payloadFormat="avro", mode="permissive")
    found = rows(source)
    assert [row["value"] for row in found] == [{"id": 1, "user": "ada"}, None, {"id": 2, "user": "eve"}, None]
    assert [row["_error"] is None for row in found] == [True, False, True, False]
    assert found[1]["_error"].startswith("the payload cannot be decoded (avro)")
    assert found[3]["_error"] == (
        "the payload was written with a schema of type json_schema, and the reader's schema is of type avro"
    )
    assert found[1]["payload"] == b"\xff"


def test_a_schema_that_is_gone_is_named(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/r-gone"
    write(client, topic, Avro(First, name="Order"), First(1, "ada"))
    gone = client.schemas.version(f"{topic}-value").number
    write(client, topic, Avro(Second, name="Gone"), Second(2, "eve"), strategy="record")
    number = client.schemas.version("Gone").number
    assert number != gone
    client.schemas.delete("Gone")
    client.schemas.delete("Gone", permanent=True)
    client.schemas.purge(number)
    with pytest.raises(InvalidArgumentError, match=f"offset 1: .*schema {number} is not in the registry"):
        rows(source_of(broker.url, topic, payloadFormat="registry"))


def test_a_stream_reads_the_same_table(broker: BrokerProcess, avro_topic: str) -> None:
    source = source_of(broker.url, avro_topic, payloadFormat="avro", startingOffsets="earliest", jobName="r-stream")
    asked = source.schema()
    reader = pickle.loads(pickle.dumps(source)).streamReader(asked)
    assert isinstance(reader, StreamReader)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        tasks = [task for task in reader.partitions(start, end) if isinstance(task, ReadTask)]
        executor = pickle.loads(pickle.dumps(reader))
        found = [row for task in tasks for batch in executor.read(task) for row in batch.to_pylist()]
    finally:
        reader.stop()
    assert [row["value"] for row in found] == TABLE


def test_the_subject_of_a_topic_is_the_one_that_it_is_bound_to(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/r-bound"
    write(client, topic, Subject("r-bound-orders", Avro(First, name="Order")), First(1, "ada"))
    with pytest.raises(NotFoundError, match=r"/default/r-bound-value.* option schemaSubject"):
        source_of(broker.url, topic, payloadFormat="avro").schema()
    client.schemas.bind(topic, "r-bound-orders")
    assert values(source_of(broker.url, topic, payloadFormat="avro")) == [{"id": 1, "user": "ada"}]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"schemaVersion": "1"}, "schemaSubject and schemaVersion need payloadFormat"),
        ({"payloadFormat": "avro", "schemaVersion": "0"}, "schemaVersion must be a whole number of at least 1"),
        (
            {"payloadFormat": "registry", "topic": "/default/a,/default/b"},
            "several topics needs the option schemaSubject",
        ),
        ({"payloadFormat": "avor"}, "did you mean 'avro'?"),
    ],
)
def test_options_are_checked(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        DefaultSource({"servers": "danube://127.0.0.1:1", "topic": "/default/t"} | options).schema()


def test_a_registry_needs_a_broker() -> None:
    given = {"storage.url": "memory://", "cluster": "c", "topic": "/default/t", "payloadFormat": "avro"}
    with pytest.raises(ConfigurationError, match="needs the option servers"):
        read_options(given)
    assert read_options(given | {"payloadFormat": "json"}).mode == "PERMISSIVE"


def decoder_of(schema: Any, kind: pa.DataType, *, fail_fast: bool = False) -> ValueDecoder:
    def writers(number: int) -> Source:
        raise NotFoundError(f"there is no schema {number}")

    source = Source(SchemaType.JSON, msgspec.json.encode(schema).decode())
    return ValueDecoder(Pinned(source, 7, "s", 1), kind, fail_fast=fail_fast, writers=writers)


def test_json_that_does_not_fit_its_columns_is_an_error_of_its_message() -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"default": {"x": 1}}}}
    decoder = decoder_of(schema, pa.struct([("a", pa.int64()), ("b", pa.string())]))
    payloads = [
        b'{"a":1}',
        b'{"a":9223372036854775808}',
        b'{"a":"x"}',
        b"{",
        b'{"b":[1, 2],"c":3}',
        b'{"b":null}',
        b"null",
    ]
    made = decoder.columns(pa.array(payloads, pa.binary()), [(7, 3), (0, 4)])
    assert made["value"].to_pylist() == [
        {"a": 1, "b": '{"x":1}'},
        None,
        None,
        None,
        {"a": None, "b": "[1, 2]"},
        {"a": None, "b": None},
        None,
    ]
    found = made["_error"].to_pylist()
    assert [text is None for text in found] == [True, False, False, False, True, True, True]
    assert found[1].startswith("the value does not fit the column 'value'")
    assert found[2] == "the payload cannot be decoded (json_schema): Expected `int | null`, got `str` - at `$.a`"
    strict = decoder_of(schema, pa.struct([("a", pa.int64())]), fail_fast=True)
    with pytest.raises(MalformedPayloadError, match="does not fit") as raised:
        strict.columns(pa.array(payloads[:2], pa.binary()), [(7, 2)])
    assert raised.value.row == 1


def kind_of(schema_type: SchemaType, schema: Any) -> str:
    return shape_of(Source(schema_type, msgspec.json.encode(schema).decode())).type.simpleString()


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("int", "int"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "bigint"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp_ntz"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "decimal(10,2)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}, "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        (["null", "float"], "float"),
        (["int", "null", "long"], "bigint"),
        (["int", "string"], "string"),
        ({"type": "map", "values": {"type": "array", "items": "boolean"}}, "map<string,array<boolean>>"),
        (
            {
                "type": "record",
                "name": "N",
                "fields": [{"name": "v", "type": "int"}, {"name": "n", "type": ["null", "N"]}],
            },
            "struct<v:int,n:string>",
        ),
    ],
)
def test_types_of_avro(schema: Any, kind: str) -> None:
    assert kind_of(SchemaType.AVRO, schema) == kind


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"properties": {"a": {"type": "integer"}, "b": {"type": ["null", "number"]}}}, "struct<a:bigint,b:double>"),
        ({"properties": {"a": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}}, "struct<a:boolean>"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"enum": ["p", "q"]}}}, "struct<a:string>"),
        ({"properties": {"a": {"$ref": "#"}, "b": True}}, "struct<a:string,b:string>"),
        ({"type": "object"}, "string"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        ({"type": "array", "items": {"type": "string"}}, "array<string>"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "string"),
    ],
)
def test_types_of_json_schema(schema: Any, kind: str) -> None:
    assert kind_of(SchemaType.JSON, schema) == kind


class Everything(msgspec.Struct):
    day: date
    hour: time
    key: UUID
    total: Decimal
    either: int | str
    by_name: dict[str, Second]
    local: datetime | None = None


def test_logical_types_have_the_values_of_spark(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/r-logical"
    value = Everything(
        date(2026, 1, 31), time(1, 0, 0, 5), UUID(int=7), Decimal("1.25"), "x", {"a": Second(1, "ada")}, AT
    )
    write(client, topic, Avro(Everything), value)
    assert values(source_of(broker.url, topic, payloadFormat="avro")) == [
        {
            "day": date(2026, 1, 31),
            "hour": 3_600_000_005,
            "key": str(UUID(int=7)),
            "total": Decimal("1.25"),
            "either": '"x"',
            "by_name": {"a": {"id": 1, "user": "ada", "total": 0.5}},
            "local": AT,
        }
    ]


@pytest.mark.spark
@pytest.mark.extended
def test_a_session_reads_and_writes_with_schemas(
    spark: SparkSession, broker: BrokerProcess, client: Client, avro_topic: str, tmp_path: Path
) -> None:
    options = {"servers": broker.url, "topic": avro_topic, "payloadFormat": "avro"}
    found = spark.read.format("danube").options(**options).load().selectExpr("value.*").collect()
    assert sorted((row.id, row.user, row.total, row.notes) for row in found) == [
        (row["id"], row["user"], row["total"], row["notes"]) for row in TABLE
    ]
    copy = "/default/r-copy"
    stream = spark.readStream.format("danube").options(**options, startingOffsets="earliest").load().select("value")
    sink = stream.writeStream.format("danube").options(servers=broker.url, topic=copy, payloadFormat="avro")
    query = sink.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    written = client.schemas.version(f"{copy}-value")
    again = rows(source_of(broker.url, copy, payloadFormat="registry"))
    assert sorted((row["value"] for row in again), key=lambda value: value["id"]) == TABLE
    assert {row["schema_id"] for row in again} == {written.number}


def test_writers_schemas_are_read_from_the_storage_when_no_broker_answers(tmp_path: Path) -> None:
    topic = "/default/r-alone"
    with BrokerProcess(tmp_path / "data", "--storage", f"disk://{tmp_path / 'history'}") as broker:
        with connect(broker.url) as client:
            write(client, topic, Avro(First, name="Order"), First(1, "ada"))
            write(client, topic, Avro(Second, name="Order"), Second(2, "eve", 2.0))
            client.admin.seal_topic(topic)
            numbers = [each.number for each in client.schemas.subject(f"{topic}-value").versions]
        source = source_of(broker.url, topic, payloadFormat="avro", schemaVersion="2")
        reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
        tasks = [task for task in reader.partitions() if isinstance(task, ReadTask)]
    found = [row["value"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert found == [{"id": 1, "user": "ada", "total": 0.5}, {"id": 2, "user": "eve", "total": 2.0}]
    with open_direct(f"disk://{tmp_path / 'history'}") as storage:
        assert [storage.schema(each).type.value for each in numbers] == ["avro", "avro"]
        with pytest.raises(SchemaNotFoundError, match="schema 99 is not in"):
            storage.schema(99)
