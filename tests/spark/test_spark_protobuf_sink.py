"""The sink with protobuf, and with Confluent's frames in all formats: reader and Confluent's client read it back."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from brokers import BrokerProcess
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as F
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from registry.registry_broker import registry_url

from danube.client.sync import Client, connect
from danube.model.errors import ConfigurationError, InvalidArgumentError, NotFoundError
from danube.schema.typed import Protobuf, Subject

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark_danube._batch import BatchReader
from pyspark_danube._plan import ReadTask
from pyspark_danube._proto_deriving import grown
from pyspark_danube._source import DefaultSource


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


ORDER = struct(id=LongType(), user=StringType())
LINE = struct(sku=StringType(), count=IntegerType())
WIDE = struct(
    id=IntegerType(),
    long=LongType(),
    ok=BooleanType(),
    ratio=DoubleType(),
    single=FloatType(),
    name=StringType(),
    raw=BinaryType(),
    at=TimestampType(),
    tags=ArrayType(StringType()),
    lines=ArrayType(LINE),
    by_name=MapType(StringType(), DoubleType()),
    by_line=MapType(StringType(), LINE),
    inner=struct(x=DoubleType(), deeper=struct(y=LongType())),
    nothing=StringType(),
)
AT = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
ROW = {
    "id": -1,
    "long": 1 << 40,
    "ok": False,
    "ratio": 1.5,
    "single": 0.5,
    "name": "ada",
    "raw": b"\x00",
    "at": AT,
    "tags": ["a", ""],
    "lines": [{"sku": "s", "count": 2}, {"sku": None, "count": None}],
    "by_name": {"k": 0.5},
    "by_line": {"k": {"sku": "s", "count": 1}},
    "inner": {"x": 0.0, "deeper": {"y": 7}},
    "nothing": None,
}
EMPTY: dict[str, Any] = dict.fromkeys(WIDE.fieldNames())
READ_EMPTY = EMPTY | {"tags": [], "lines": [], "by_name": {}, "by_line": {}}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("proto-sink") / "data", registry_listen="127.0.0.1:0") as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with connect(broker.url) as connection:
        yield connection


def write(broker: BrokerProcess, kind: DataType, values: list[Any], **options: str) -> None:
    """Write values as Spark does: the writer is pickled to the tasks."""
    schema = struct(value=kind)
    rows = pa.RecordBatch.from_pydict({"value": values}, schema=to_arrow_schema(schema, timezone="UTC"))
    source = DefaultSource({"servers": broker.url, "payloadFormat": "protobuf"} | options)
    writer = source.writer(schema, overwrite=False)
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([rows]))])


def read(broker: BrokerProcess, topic: str, **options: str) -> list[Any]:
    source = DefaultSource({"servers": broker.url, "topic": topic, "payloadFormat": "registry"} | options)
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    tasks = [task for task in reader.partitions() if isinstance(task, ReadTask)]
    batches = [batch for task in tasks for batch in reader.read(task)]
    return [row["value"] for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def payloads(client: Client, topic: str) -> list[bytes]:
    with client.reader(topic, start="earliest") as reader:
        return [payload for batch in reader.batches(until_caught_up=True) for payload in batch.payloads()]


def classes(file: FileDescriptorProto) -> dict[str, Any]:
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(each) for name, each in pool.FindFileByName(file.name).message_types_by_name.items()}


def shop(syntax: str = "proto3") -> FileDescriptorProto:
    """Return a file whose second message has what a DataFrame cannot say: numbers, enums, unsigned and required."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="PLAIN", number=0)
    kind.value.add(name="GIFT", number=5)
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    fields = (("id", 7, F.TYPE_INT64), ("small", 9, F.TYPE_UINT32), ("large", 10, F.TYPE_UINT64))
    for name, number, type_ in (*fields, ("user", 11, F.TYPE_STRING)):
        order.field.add(name=name, number=number, type=type_, label=F.LABEL_OPTIONAL)
    order.field.add(name="kind", number=12, type=F.TYPE_ENUM, type_name=".shop.Kind", label=F.LABEL_OPTIONAL)
    order.field.add(name="next", number=13, type=F.TYPE_MESSAGE, type_name=".shop.Order", label=F.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    order.field.add(
        name="counts", number=14, type=F.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=F.LABEL_REPEATED
    )
    return file


SHOP = struct(
    id=ShortType(),
    small=LongType(),
    large=DecimalType(20, 0),
    kind=StringType(),
    next=StringType(),
    counts=MapType(StringType(), LongType()),
)


def register(client: Client, subject: str, file: FileDescriptorProto, message: str) -> None:
    import base64

    text = base64.b64encode(file.SerializeToString()).decode()
    client.schemas.register(subject, "protobuf", text, message=message)


def test_rows_are_written_and_read_back(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/p-wide"
    write(broker, WIDE, [ROW, EMPTY], topic=topic)
    info = client.schemas.version(f"{topic}-value")
    assert (info.schema_type, info.version, info.name) == ("protobuf", 1, "Row")
    assert read(broker, topic) == [ROW, READ_EMPTY]
    write(broker, WIDE, [ROW], topic=topic)
    write(broker, struct(name=StringType(), id=IntegerType()), [{"name": "eve", "id": 2}], topic=topic)
    assert len(client.schemas.subject(f"{topic}-value").versions) == 1, "fewer columns are the same version"
    assert read(broker, topic)[2:] == [ROW, READ_EMPTY | {"name": "eve", "id": 2}]
    with client.reader(topic, start="earliest", schema=Subject(f"{topic}-value")) as reader:
        assert next(iter(reader)).value.inner.deeper.y == 7


def test_the_registered_message_says_numbers_and_types(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/p-shop"
    register(client, f"{topic}-value", shop(), "shop.Order")
    row = {"id": 1, "small": 1 << 31, "large": Decimal(1 << 63), "kind": "GIFT", "next": '{"id": "2"}'}
    write(broker, SHOP, [row | {"counts": {"3": 4}}, row | {"kind": "77", "counts": None}], topic=topic)
    assert len(client.schemas.subject(f"{topic}-value").versions) == 1
    order = classes(shop())["Order"]
    with client.reader(topic, start="earliest", schema=Protobuf(order)) as reader:
        first, second = (next(iter(reader)).value for _ in range(2))
    assert (first.id, first.small, first.large, first.kind, first.next.id) == (1, 1 << 31, 1 << 63, 5, 2)
    assert dict(first.counts) == {3: 4}
    assert second.kind == 77
    found = read(broker, topic)
    assert found[0] == row | {"user": "", "counts": {"3": 4}}
    assert found[1]["kind"] == "77"


def test_a_new_column_gets_a_number_that_no_version_has_used(broker: BrokerProcess, client: Client) -> None:
    topic, subject = "/default/p-grown", "/default/p-grown-value"
    file = shop()
    old = shop()
    old.message_type[1].field.add(name="gone", number=20, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    register(client, subject, old, "shop.Order")
    register(client, subject, file, "shop.Order")
    write(broker, struct(id=LongType(), note=StringType()), [{"id": 1, "note": "new"}], topic=topic)
    info = client.schemas.version(subject)
    assert info.version == 3
    order = FileDescriptorProto.FromString(info.descriptor).message_type[1]
    assert {field.name: field.number for field in order.field}["note"] == 21
    assert read(broker, topic)[0]["note"] == "new"
    with pytest.raises(ConfigurationError, match=r"no field for the column 'value\.nota'; did you mean 'note'\?"):
        write(broker, struct(nota=StringType()), [], topic=topic, registerSchema="false")


def test_columns_grow_within_structs_lists_and_maps() -> None:
    inner = struct(x=LongType())
    kind = struct(a=inner, b=ArrayType(inner), c=MapType(StringType(), inner))
    first = grown(kind, None, "Row")
    assert first is not None
    assert grown(kind, first, "Row") is None
    more = struct(x=LongType(), y=StringType())
    second = grown(struct(a=more, b=ArrayType(more), c=MapType(StringType(), more)), first, "Row", {"Row.B": 8})
    assert second is not None
    numbers = {each.name: [field.number for field in each.field] for each in second.message_type[0].nested_type}
    assert numbers == {"A": [1, 2], "B": [1, 9], "C": [1, 2], "CEntry": [1, 2]}


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (struct(small=LongType()), {"small": 1 << 32}, r"value 0: value\.small: "),
        (struct(large=LongType()), {"large": -1}, r"value 0: value\.large: "),
        (
            struct(kind=StringType()),
            {"kind": "NONE"},
            r"value\.kind: shop\.Kind has no value 'NONE'; it has PLAIN, GIFT",
        ),
        (struct(next=StringType()), {"next": "{"}, r"value\.next: "),
        (struct(counts=MapType(StringType(), LongType())), {"counts": {"x": 1}}, r"value\.counts\[x\]: "),
        (
            struct(counts=MapType(StringType(), LongType())),
            {"counts": {"1": None}},
            r"value\.counts\[1\]: a null in a map",
        ),
        (struct(next=struct(small=LongType())), {"next": {"small": -1}}, r"value\.next\.small: "),
        (struct(tags=ArrayType(StringType())), {"tags": ["a", None]}, r"value\.tags\[\]: a null in a list"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_column(
    broker: BrokerProcess, client: Client, kind: StructType, value: Any, why: str
) -> None:
    topic = "/default/p-misfit"
    register(client, f"{topic}-value", shop(), "shop.Order")
    with pytest.raises(InvalidArgumentError, match=rf"a row cannot be encoded: .*{why}"):
        write(broker, kind, [value], topic=topic)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (
            struct(id=StringType()),
            r"the column 'value\.id' is STRING, and the field shop\.Order\.id takes BIGINT; cast it",
        ),
        (struct(small=DoubleType()), "takes BIGINT"),
        (struct(large=DecimalType(10, 2)), r"takes DECIMAL\(20,0\)"),
        (struct(user=BinaryType()), "takes STRING"),
        (struct(kind=DoubleType()), "takes STRING"),
        (struct(next=LongType()), "takes STRUCT"),
        (struct(next=struct(id=StringType())), r"'value\.next\.id' is STRING"),
        (struct(counts=ArrayType(LongType())), "takes MAP"),
        (struct(day=DateType()), r"does not support 'value\.day' of type date .*; cast it"),
        (struct(lists=ArrayType(ArrayType(LongType()))), "wrap it in a STRUCT"),
        (StructType([StructField("a b", LongType())]), "rename it, for example `a b` AS a_b"),
        (StringType(), "payloadFormat=protobuf writes messages, and 'value' is string"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(
    broker: BrokerProcess, client: Client, kind: DataType, why: str
) -> None:
    topic = "/default/p-refused"
    register(client, f"{topic}-value", shop(), "shop.Order")
    with pytest.raises(ConfigurationError, match=why):
        write(broker, kind, [], topic=topic)
    assert len(client.schemas.subject(f"{topic}-value").versions) == 1


def test_required_fields_and_other_types_of_subjects(broker: BrokerProcess, client: Client) -> None:
    file = shop("proto2")
    file.message_type[1].field[0].label = F.LABEL_REQUIRED
    register(client, "p-required", file, "shop.Order")
    options = {"topic": "/default/p-required", "schemaSubject": "p-required"}
    with pytest.raises(ConfigurationError, match=r"shop\.Order requires id, and 'value' has no such field"):
        write(broker, struct(user=StringType()), [], **options)
    with pytest.raises(InvalidArgumentError, match="value 1: value: it has no id, which the message requires"):
        write(broker, ORDER, [{"id": 1, "user": "a"}, {"id": None, "user": "b"}], **options)
    client.schemas.register("p-string", "string")
    with pytest.raises(ConfigurationError, match=r"does not fit version 1 of subject p-string \(string\)"):
        write(broker, ORDER, [], topic="/default/p-required", schemaSubject="p-string")
    with pytest.raises(NotFoundError, match="p-none"):
        write(broker, ORDER, [], topic="/default/p-required", schemaSubject="p-none", registerSchema="false")


@given(
    st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            "user": st.none() | st.text(),
        }
    )
)
def test_rows_survive_encoding(row: dict[str, Any]) -> None:
    from pyspark_danube._proto_encoding import encoder_of
    from pyspark_danube._proto_shapes import proto_shape

    made = grown(ORDER, None, "Row")
    assert made is not None
    made.name = "row.proto"
    kind = classes(made)["Row"]
    shape = proto_shape(kind.DESCRIPTOR)
    assert shape.type == ORDER
    assert shape.convert is not None
    assert shape.convert(kind.FromString(encoder_of(kind.DESCRIPTOR, ORDER)(row))) == row


@pytest.mark.parametrize("written", ["protobuf", "avro", "json"])
def test_confluents_client_reads_framed_rows(broker: BrokerProcess, client: Client, written: str) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    topic = f"/default/p-framed-{written}"
    client.admin.create_topic(topic)
    client.admin.change_policies(topic, schema_framing="confluent")
    if written == "protobuf":
        register(client, f"{topic}-value", shop(), "shop.Order")
    rows = [{"id": 1, "user": "ada"}, {"id": 2, "user": "eve"}]
    write(broker, ORDER, rows, topic=topic, payloadFormat=written, schemaFraming="confluent")
    found = payloads(client, topic)
    number = client.schemas.version(f"{topic}-value").number
    head = b"\x00" + number.to_bytes(4, "big") + (b"\x02\x02" if written == "protobuf" else b"")
    assert all(each.startswith(head) for each in found)
    with SchemaRegistryClient({"url": registry_url(broker)}) as registry:
        deserialize: Any
        if written == "protobuf":
            order = classes(shop())["Order"]
            deserialize = ProtobufDeserializer(order, {"use.deprecated.format": False}, registry)
        elif written == "avro":
            deserialize = AvroDeserializer(registry)
        else:
            text = json.dumps({"type": "object", "title": "Row"})
            deserialize = JSONDeserializer(text, schema_registry_client=registry)
        values = [deserialize(each, SerializationContext(topic, MessageField.VALUE)) for each in found]
    if written == "protobuf":
        values = [{"id": each.id, "user": each.user} for each in values]
    assert values == rows
    assert [{"id": each["id"], "user": each["user"]} for each in read(broker, topic)] == rows


def test_confluents_client_parses_bare_rows_with_the_registered_message(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/p-bare"
    register(client, f"{topic}-value", shop(), "shop.Order")
    write(broker, ORDER, [{"id": 1, "user": "ada"}], topic=topic)
    (found,) = payloads(client, topic)
    assert found == classes(shop())["Order"](id=1, user="ada").SerializeToString()
