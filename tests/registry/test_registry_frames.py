"""Payloads of Confluent's serializers, in topics that say so: typed readers and the command line decode them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from brokers import BrokerProcess
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from registry_broker import registry_url
from registry_harness import avro
from typer.testing import CliRunner

import danube
from danube.cli.app import app
from danube.client.sync import Client, connect

JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})


class Order(msgspec.Struct):
    id: int
    user: str = ""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    directory = tmp_path_factory.mktemp("frames") / "data"
    with BrokerProcess(directory, registry_listen="127.0.0.1:0") as broker:
        yield broker.url, registry_url(broker)


@pytest.fixture
def registry(urls: tuple[str, str]) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": urls[1]}) as found:
        yield found


@pytest.fixture
def client(urls: tuple[str, str]) -> Iterator[Client]:
    with connect(urls[0]) as found:
        yield found


def messages() -> tuple[Any, Any]:
    file = FileDescriptorProto(name="frames.proto", package="frames", syntax="proto3")
    for name in ("Other", "Order"):
        fields = file.message_type.add(name=name).field
        fields.add(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=FieldDescriptorProto.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    return tuple(GetMessageClass(pool.FindMessageTypeByName(f"frames.{name}")) for name in ("Other", "Order"))


def send(client: Client, topic: str, payloads: list[bytes]) -> None:
    client.admin.create_topic(topic)
    client.admin.change_policies(topic, schema_framing="confluent")
    with client.producer(topic) as producer:
        producer.send_many(payloads)


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def values(client: Client, topic: str, schema: Any) -> list[Any]:
    with client.reader(topic, start="earliest", schema=schema) as reader:
        return [value for batch in reader.batches(until_caught_up=True) for value in batch.values()]


def shown(urls: tuple[str, str], topic: str) -> tuple[list[str], str]:
    env = {"DANUBE_URL": urls[0], "XDG_CONFIG_HOME": "/nonexistent"}
    found = []
    for command in (["read", topic], ["consume", topic, "-s", "s", "--start", "earliest", "-e"]):
        done = CliRunner().invoke(app, [*command, "--decode"], env=env)
        assert done.exit_code == 0, done.output
        found.append((done.stdout.splitlines(), done.stderr))
    assert found[0][0] == found[1][0]
    return found[0]


def test_avro_of_several_versions(urls: tuple[str, str], registry: SchemaRegistryClient, client: Client) -> None:
    topic = "/default/frames-avro"
    first = AvroSerializer(registry, avro("Order", ("id", "long")))
    text = json.loads(avro("Order", ("id", "long"), ("user", "string")))
    text["fields"][1]["default"] = "nobody"
    second = AvroSerializer(registry, json.dumps(text))
    payloads = [first({"id": 1}, context(topic)), second({"id": 2, "user": "ada"}, context(topic))]
    send(client, topic, [*payloads, b"bare"])
    typed = danube.Avro(Order)
    with client.reader(topic, start="earliest", schema=typed) as reader:
        found = [reader.receive() for _ in range(3)]
        assert [each.value for each in found[:2]] == [Order(1), Order(2, "ada")]
        with pytest.raises(danube.SchemaError, match="no Confluent frame"):
            assert found[2].value
    lines, error = shown(urls, topic)
    assert lines == ['{"id":1}', '{"id":2,"user":"ada"}', "bare"]
    assert error.count("not decoded: the payload has no Confluent frame") == 1


def test_json(urls: tuple[str, str], registry: SchemaRegistryClient, client: Client) -> None:
    topic = "/default/frames-json"
    serialize = JSONSerializer(JSON, registry)
    send(client, topic, [serialize({"id": each}, context(topic)) for each in (1, 2)])
    assert values(client, topic, Order) == [Order(1), Order(2)]
    assert [json.loads(each) for each in shown(urls, topic)[0]] == [{"id": 1}, {"id": 2}]


def test_protobuf_messages_by_their_indexes(
    urls: tuple[str, str], registry: SchemaRegistryClient, client: Client
) -> None:
    topic = "/default/frames-protobuf"
    other, order = messages()
    options = {"use.deprecated.format": False}
    payloads = []
    for kind in (order, other):
        serialize = ProtobufSerializer(kind, registry, options)
        payloads.append(serialize(kind(id=7), context(topic)))
    send(client, topic, payloads)
    with client.reader(topic, start="earliest", schema=order) as reader:
        found = [reader.receive() for _ in range(2)]
        assert found[0].value == order(id=7)
        with pytest.raises(danube.SchemaError, match=r"a frames\.Other, and the reader's message is frames\.Order"):
            assert found[1].value
    assert shown(urls, topic)[0] == ['{"id":"7"}', '{"id":"7"}']
