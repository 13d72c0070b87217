"""Payloads in Confluent's frames: the reader decodes each with the schema in its frame. No Java is needed for that."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from brokers import BrokerProcess

from danube.client.sync import Client
from danube.model.errors import InvalidArgumentError
from danube.schema.avro_codec import AvroCodec
from danube.schema.frames import encode_frame
from danube.schema.kinds import Source
from danube.schema.modes import SchemaType

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark_danube import _values
from pyspark_danube._batch import BatchReader
from pyspark_danube._options import read_options
from pyspark_danube._plan import ReadTask
from pyspark_danube._source import DefaultSource
from pyspark_danube._stream import StreamReader

ID = {"name": "id", "type": "long"}
USER = {"name": "user", "type": "string", "default": "nobody"}


def text(*fields: dict[str, str]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


FIRST, SECOND = text(ID), text(ID, USER)


def framed(number: int, schema: str, **value: Any) -> bytes:
    return encode_frame(number, AvroCodec(Source(SchemaType.AVRO, schema)).encode(value))


def rows(reader: Any) -> list[dict[str, Any]]:
    tasks = [task for task in reader.partitions() if isinstance(task, ReadTask)]
    tasks = pickle.loads(pickle.dumps(tasks))
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def batch_rows(broker: BrokerProcess, topic: str, **options: str) -> list[dict[str, Any]]:
    source = DefaultSource({"servers": broker.url, "topic": topic, "payloadFormat": "registry"} | options)
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return rows(reader)


def filled(client: Client, topic: str, *extra: bytes) -> None:
    client.admin.create_topic(topic)
    client.admin.change_policies(topic, schema_framing="confluent")
    first = client.schemas.register(f"{topic}-value", "avro", FIRST).number
    second = client.schemas.register(f"{topic}-value", "avro", SECOND).number
    payloads = [framed(first, FIRST, id=1), framed(second, SECOND, id=2, user="ada"), framed(first, FIRST, id=3)]
    with client.producer(topic) as producer:
        producer.send_many([*payloads, *extra])


WANTED = [{"id": 1, "user": "nobody"}, {"id": 2, "user": "ada"}, {"id": 3, "user": "nobody"}]


def test_frames_name_the_writers_schema(broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "/default/f-frames"
    filled(client, topic)
    assert [row["value"] for row in batch_rows(broker, topic)] == WANTED
    monkeypatch.setattr(_values, "_MOST_WRITERS", 2)  # one more than that is made again for each payload
    assert [row["value"] for row in batch_rows(broker, topic)] == WANTED
    client.admin.change_policies(topic, schema_framing="none")
    with pytest.raises(InvalidArgumentError, match=f"topic {topic}, partition 0, offset 0"):
        batch_rows(broker, topic)


def test_a_payload_without_a_frame_fails_by_itself(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/f-bad"
    filled(client, topic, b"bare", encode_frame(2**31 - 1, b""))
    with pytest.raises(InvalidArgumentError, match=r"offset 3: .*no Confluent frame"):
        batch_rows(broker, topic)
    found = batch_rows(broker, topic, mode="PERMISSIVE")
    assert [row["value"] for row in found] == [*WANTED, None, None]
    assert "no Confluent frame" in found[3]["_error"]
    assert "schema 2147483647 is not in the registry" in found[4]["_error"]


def test_streams_know_frames_too(broker: BrokerProcess, client: Client) -> None:
    topic = "/default/f-stream"
    filled(client, topic)
    options = {"servers": broker.url, "topic": topic, "payloadFormat": "registry", "startingOffsets": "earliest"}
    source = DefaultSource(options)
    schema = source.schema()
    reader = source.streamReader(schema)
    assert isinstance(reader, StreamReader)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    tasks = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    found = [row["value"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert found == WANTED
    assert read_options(options, streaming=True).by_registry
