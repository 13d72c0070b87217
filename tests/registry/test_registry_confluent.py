"""Confluent's Python client and its serializers, unmodified, against a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import (
    AsyncJSONDeserializer,
    AsyncJSONSerializer,
    JSONDeserializer,
    JSONSerializer,
)
from confluent_kafka.schema_registry.protobuf import (
    AsyncProtobufDeserializer,
    AsyncProtobufSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
)
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from registry_broker import registry_broker
from registry_harness import avro

ORDER = {"id": 7, "user": "ada"}
AVRO = avro("Order", ("id", "long"), ("user", "string"))
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "user": {"type": "string"}},
        "required": ["id"],
    }
)
DEPRECATED = {"use.deprecated.format": False}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry_broker(tmp_path_factory.mktemp("registry") / "data") as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as found:
        yield found


def value(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


@cache
def message_class() -> Any:
    """Return the class of a message that refers to a message of another file."""
    pool = DescriptorPool()
    user = FileDescriptorProto(name="user.proto", package="shop", syntax="proto3")
    user.message_type.add(name="User").field.add(name="name", number=1, type=9, label=1)
    order = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3", dependency=["user.proto"])
    message = order.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="user", number=2, type=11, label=1, type_name=".shop.User")
    for file in (user, order):
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def order_message() -> Any:
    made = message_class()(id=7)
    made.user.name = "ada"
    return made


def frame_id(payload: bytes) -> int:
    assert payload[0] == 0
    return int.from_bytes(payload[1:5], "big")


# ---------------------------------------------------------------------------------------------------------------------
# Serializers


def test_avro_is_written_and_read_with_the_registered_schema(client: SchemaRegistryClient) -> None:
    payload = AvroSerializer(client, AVRO)(ORDER, value("avro"))
    found = client.get_latest_version("avro-value")
    assert frame_id(payload) == found.schema_id
    assert json.loads(found.schema.schema_str) == json.loads(AVRO)
    assert AvroDeserializer(client)(payload, value("avro")) == ORDER


def test_a_reader_with_a_newer_avro_schema_gets_defaults(client: SchemaRegistryClient) -> None:
    payload = AvroSerializer(client, AVRO)(ORDER, value("evolved"))
    newer = avro("Order", ("id", "long"), ("user", "string"), ("note", ["null", "string"]))
    assert AvroDeserializer(client, newer)(payload, value("evolved")) == ORDER | {"note": None}
    assert AvroSerializer(client, newer)(ORDER, value("evolved"))
    assert client.get_versions("evolved-value") == [1, 2]


def test_an_avro_schema_can_refer_to_another_subject(client: SchemaRegistryClient) -> None:
    client.register_schema("user", Schema(avro("User", ("name", "string")), "AVRO"))
    reference = SchemaReference("User", "user", 1)
    schema = Schema(avro("Order", ("id", "long"), ("user", "User")), "AVRO", [reference])
    payload = AvroSerializer(client, schema)({"id": 1, "user": {"name": "ada"}}, value("nested"))
    assert AvroDeserializer(client)(payload, value("nested")) == {"id": 1, "user": {"name": "ada"}}
    found = client.get_latest_version("nested-value")
    assert found.schema.references == [reference]
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_version("user", 1)
    assert refused.value.error_code == 42206


def test_json_is_written_and_read_with_the_registered_schema(client: SchemaRegistryClient) -> None:
    payload = JSONSerializer(JSON, client)(ORDER, value("json"))
    assert frame_id(payload) == client.get_latest_version("json-value").schema_id
    assert JSONDeserializer(None, schema_registry_client=client)(payload, value("json")) == ORDER


def test_protobuf_is_written_and_read_with_the_registered_schema(client: SchemaRegistryClient) -> None:
    kind = message_class()
    payload = ProtobufSerializer(kind, client, DEPRECATED)(order_message(), value("proto"))
    assert frame_id(payload) == client.get_latest_version("proto-value").schema_id
    assert client.get_latest_version("user.proto").version == 1  # what it imports is registered, too
    read = ProtobufDeserializer(kind, DEPRECATED, client)(payload, value("proto"))
    assert (read.id, read.user.name) == (7, "ada")


def test_the_text_of_a_schema_that_came_as_a_descriptor_is_a_proto_file(client: SchemaRegistryClient) -> None:
    ProtobufSerializer(message_class(), client, DEPRECATED)(order_message(), value("proto-text"))
    text = client.get_latest_version("proto-text-value").schema.schema_str
    assert 'import "user.proto";' in text
    assert "message Order {" in text


def test_a_proto_file_and_its_descriptor_are_the_same_schema(client: SchemaRegistryClient) -> None:
    ProtobufSerializer(message_class(), client, DEPRECATED)(order_message(), value("proto-same"))
    found = client.get_latest_version("proto-same-value")
    text = """
        syntax = "proto3";
        package shop;
        import "user.proto";
        // People write comments.
        message Order { int64 id = 1; User user = 2; }
    """
    written = Schema(text, "PROTOBUF", found.schema.references)
    assert client.register_schema("proto-text-only", written) == found.schema_id
    assert client.lookup_schema("proto-same-value", written).version == 1


async def all_serializers(url: str) -> list[Any]:
    """Write and read one message of each type with the asynchronous client."""
    async with AsyncSchemaRegistryClient({"url": url}) as client:
        avro_payload = await (await AsyncAvroSerializer(client, AVRO))(ORDER, value("async-avro"))
        json_payload = await (await AsyncJSONSerializer(JSON, client))(ORDER, value("async-json"))
        kind = message_class()
        proto_payload = await (await AsyncProtobufSerializer(kind, client, DEPRECATED))(
            order_message(), value("async-proto")
        )
        read = await (await AsyncProtobufDeserializer(kind, DEPRECATED, client))(proto_payload, value("async-proto"))
        return [
            await (await AsyncAvroDeserializer(client))(avro_payload, value("async-avro")),
            await (await AsyncJSONDeserializer(None, schema_registry_client=client))(json_payload, value("async-json")),
            {"id": read.id, "user": read.user.name},
            await client.get_subjects(subject_prefix="async-"),
        ]


def test_the_asynchronous_client_writes_and_reads_all_types(url: str) -> None:
    *read, subjects = asyncio.run(all_serializers(url))
    assert read == [ORDER, ORDER, ORDER]
    assert subjects == ["async-avro-value", "async-json-value", "async-proto-value"]


# ---------------------------------------------------------------------------------------------------------------------
# The client itself


def test_subjects_with_slashes_and_spaces_are_whole_names(client: SchemaRegistryClient) -> None:
    for name in ("/default/orders-value", "a b/c%d?e#f", "größe-value"):
        registered = client.register_schema(name, Schema(AVRO, "AVRO"))
        assert name in client.get_subjects()
        assert client.get_latest_version(name).schema_id == registered
        assert client.lookup_schema(name, Schema(AVRO, "AVRO")).version == 1
        assert client.delete_subject(name) == [1]


def test_the_same_content_has_one_id_and_one_guid(client: SchemaRegistryClient) -> None:
    first = client.register_schema_full_response("same-1", Schema(AVRO, "AVRO"))
    spaced = json.dumps(json.loads(AVRO), indent=2)
    second = client.register_schema_full_response("same-2", Schema(spaced, "AVRO"), normalize_schemas=True)
    assert (first.schema_id, first.guid) == (second.schema_id, second.guid)
    found = client.get_schema_by_guid(first.guid).schema_str
    assert found is not None
    assert json.loads(found) == json.loads(AVRO)
    pairs = [(each.subject, each.version) for each in client.get_schema_versions(first.schema_id)]
    assert {("same-1", 1), ("same-2", 1)} <= set(pairs)


def test_what_is_incompatible_is_refused_and_can_be_asked_for(client: SchemaRegistryClient) -> None:
    client.register_schema("strict", Schema(AVRO, "AVRO"))
    other = Schema(avro("Order", ("id", "string")), "AVRO")
    assert not client.test_compatibility("strict", other)
    assert client.test_compatibility("strict", Schema(AVRO, "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("strict", other)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    client.set_compatibility("strict", "NONE")
    assert client.get_compatibility("strict") == "NONE"
    assert client.register_schema("strict", other) > 0


def test_deletion_has_two_steps(client: SchemaRegistryClient) -> None:
    registered = client.register_schema("gone", Schema(AVRO, "AVRO"))
    assert client.delete_version("gone", 1) == 1
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_version("gone", 1)
    assert refused.value.error_code == 40401
    assert client.get_version("gone", 1, deleted=True).schema_id == registered
    assert "gone" in client.get_subjects(deleted=True)
    assert client.delete_version("gone", 1, permanent=True) == 1
    assert "gone" not in client.get_subjects(deleted=True)


def test_settings_of_subjects_and_of_the_registry(client: SchemaRegistryClient) -> None:
    client.set_config("settings", ServerConfig(compatibility=ConfigCompatibilityLevel.FULL_TRANSITIVE))
    assert client.get_config("settings").compatibility_level is ConfigCompatibilityLevel.FULL_TRANSITIVE
    client.delete_config("settings")
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_config("settings")
    assert refused.value.error_code == 40408
    assert client.get_global_mode() == "READWRITE"
    assert client.update_mode("settings", "READONLY") == "READONLY"
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("settings", Schema(AVRO, "AVRO"))
    assert refused.value.error_code == 42205
    assert client.delete_mode("settings") == "READONLY"


def test_metadata_come_back_and_find_versions(client: SchemaRegistryClient) -> None:
    metadata = Metadata(tags=None, properties=MetadataProperties({"owner": "ada"}), sensitive=None)
    client.register_schema("described", Schema(AVRO, "AVRO", [], metadata))
    assert client.get_latest_with_metadata("described", {"owner": "ada"}).version == 1
    assert client.get_latest_version("described").schema.metadata.properties == metadata.properties
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_latest_with_metadata("described", {"owner": "bob"})
    assert refused.value.error_code == 40402


def test_facts_about_the_registry(client: SchemaRegistryClient) -> None:
    assert sorted(client.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]
    assert client.get_contexts() == ["."]
    assert client.get_associations_by_resource_name("orders", "-") == []
