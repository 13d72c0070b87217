"""The Avro schema of a topic as a text for Spark's own functions. No Java is needed for that."""

from __future__ import annotations

import json

import pytest
from brokers import BrokerProcess

from danube.client.sync import Client
from danube.model.errors import ConfigurationError, NotFoundError
from danube.model.schema_api import SchemaReference

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

import fastavro
import pyspark_danube

FIRST = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
MONEY = '{"type": "fixed", "name": "shop.Money", "size": 8}'
NODE = {
    "type": "record",
    "name": "Node",
    "namespace": "shop",
    "fields": [
        {"name": "price", "type": ["null", "Money"], "default": None},
        {"name": "prices", "type": {"type": "array", "items": "shop.Money"}},
        {"name": "next", "type": ["null", "Node"], "default": None},
        {"name": "by_name", "type": {"type": "map", "values": "Money"}},
    ],
}


def test_the_text_is_that_of_the_version_of_the_topic(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/avro-text"
    client.admin.create_topic(topic)
    with pytest.raises(NotFoundError, match="avro-text-value"):
        pyspark_danube.avro_schema(topic, servers=broker.url)
    client.schemas.register(f"{topic}-value", "avro", FIRST)
    second = FIRST.replace("}]", '}, {"name": "note", "type": "string", "default": ""}]')
    client.schemas.register(f"{topic}-value", "avro", second)
    assert pyspark_danube.avro_schema(topic, servers=broker.url) == second
    assert pyspark_danube.avro_schema(topic, servers=broker.url, version=1) == FIRST
    client.schemas.register("avro-text-other", "avro", '"int"')
    assert pyspark_danube.avro_schema(topic, servers=broker.url, subject="avro-text-other") == '"int"'
    client.schemas.bind(topic, "avro-text-other")
    assert pyspark_danube.avro_schema(topic, servers=broker.url) == '"int"'
    client.schemas.register("avro-text-json", "json", "{}")
    with pytest.raises(ConfigurationError, match="is of type json_schema, not avro"):
        pyspark_danube.avro_schema(topic, servers=broker.url, subject="avro-text-json")
    with pytest.raises(NotFoundError):
        pyspark_danube.avro_schema("/default/avro-text-nothing", servers=broker.url)


def test_what_a_schema_refers_to_is_in_its_text(broker: BrokerProcess, client: Client) -> None:
    client.schemas.register("avro-text-money", "avro", MONEY)
    references = [SchemaReference("shop.Money", "avro-text-money", 1)]
    client.schemas.register("avro-text-node", "avro", json.dumps(NODE), references=references)
    text = pyspark_danube.avro_schema("/default/any", servers=broker.url, subject="avro-text-node")
    assert text.count('"fixed"') == 1
    alone = fastavro.parse_schema(json.loads(text))
    given = fastavro.parse_schema(NODE, named_schemas=_named())
    assert fastavro.schema.to_parsing_canonical_form(alone).count("shop.Money") >= 3
    assert alone["name"] == given["name"] == "shop.Node"
    assert [each["name"] for each in alone["fields"]] == ["price", "prices", "next", "by_name"]
    assert alone["fields"][2]["type"] == ["null", "shop.Node"]


def _named() -> dict[str, object]:
    names: dict[str, object] = {}
    fastavro.parse_schema(json.loads(MONEY), named_schemas=names)
    return names
