"""The Avro schema of a topic as a text for Spark's own ``from_avro`` and ``to_avro``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danube.client._values import source_of
from danube.model.errors import ConfigurationError
from danube.schema.avro_codec import AvroCodec
from danube.schema.kinds import encode_json
from danube.schema.modes import SchemaType
from pyspark_danube._connecting import broker_client
from pyspark_danube._pinning import subject_of

__all__ = ["avro_schema", "whole_text"]


def avro_schema(topic: str, *, servers: str, subject: str = "", version: int = 0) -> str:
    """Return the Avro schema of a topic, with all that it refers to, for ``from_avro`` and ``to_avro``.

    These take one writer's schema: use them for topics whose messages have all been written with this version.
    ``payloadFormat=registry`` reads all versions, and finds the schema by itself.

    Args:
        topic: its name.
        servers: URL of the broker, ``danube://host:port``; credentials as for the source.
        subject: of the registry; empty: that of the topic.
        version: from 1; 0: the latest one.

    Raises:
        NotFoundError: there is no such topic, subject or version.
        ConfigurationError: the schema is not one of Avro.
        ConnectionLostError: no broker answers.
    """
    with broker_client(servers) as client:
        name = subject or subject_of(client, topic)
        info = client.schemas.version(name, version or -1)
    source = source_of(info)
    if source.type is not SchemaType.AVRO:
        raise ConfigurationError(
            f"version {info.version} of subject {name} is of type {source.type.value}, not avro: read the topic with"
            " payloadFormat=registry"
        )
    return whole_text(*AvroCodec(source).definition) if source.needs else source.text


def whole_text(schema: Any, names: Mapping[str, Any]) -> str:
    """Return the text of a schema in which each named type is defined where it is used first.

    Args:
        schema: with full names, as fastavro has it.
        names: all named types.
    """
    defined: set[str] = set()

    def whole(each: Any) -> Any:
        if isinstance(each, str) and each in names and each not in defined:
            each = names[each]
        if isinstance(each, list):
            return [whole(branch) for branch in each]
        if not isinstance(each, dict):
            return each
        if each.get("name") in names:
            if each["name"] in defined:
                return each["name"]
            defined.add(each["name"])
        found = {key: value for key, value in each.items() if not key.startswith("__")}
        for key in ("items", "values"):
            if key in found:
                found[key] = whole(found[key])
        if "fields" in found:
            found["fields"] = [{**field, "type": whole(field["type"])} for field in found["fields"]]
        return found

    return encode_json(whole(schema))
