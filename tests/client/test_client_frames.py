"""Typed consumers and readers of topics whose payloads have Confluent's frames (``schema_framing``)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from broker.broker_harness import running_broker
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

import danube
from danube.client import _values
from danube.model.errors import SchemaError
from danube.schema.avro_codec import AvroCodec
from danube.schema.frames import encode_frame
from danube.schema.kinds import Source
from danube.schema.modes import SchemaType

pytestmark = pytest.mark.virtual

TOPIC, SUBJECT = "/default/orders", "/default/orders-value"


class Order(msgspec.Struct):
    id: int
    user: str = "nobody"


def avro_text(*fields: dict[str, str]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


ID, USER = {"name": "id", "type": "long"}, {"name": "user", "type": "string", "default": "nobody"}
FIRST, SECOND = avro_text(ID), avro_text(ID, USER)


def datum(text: str, value: dict[str, Any]) -> bytes:
    return AvroCodec(Source(SchemaType.AVRO, text)).encode(value)


@asynccontextmanager
async def framed_topic(directory: Path, **options: Any) -> AsyncIterator[danube.Client]:
    async with running_broker(directory) as running, running.client(**options) as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.change_policies(TOPIC, schema_framing="confluent")
        yield client


async def send(client: danube.Client, *payloads: bytes, keys: Sequence[str] | None = None) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many(payloads, keys=keys)


async def values(client: danube.Client, schema: Any) -> list[Any]:
    found: list[Any] = []
    async with client.reader(TOPIC, start="earliest", schema=schema) as reader:
        async for batch in reader.batches(until_caught_up=True):
            for message in batch:
                try:
                    found.append(message.value)
                except SchemaError as error:
                    found.append(error.message)
    return found


async def test_each_payload_is_decoded_with_the_schema_in_its_frame(tmp_path: Path) -> None:
    async with framed_topic(tmp_path) as client:
        first = (await client.schemas.register(SUBJECT, "avro", FIRST)).number
        second = (await client.schemas.register(SUBJECT, "avro", SECOND)).number
        old = encode_frame(first, datum(FIRST, {"id": 1}))
        new = encode_frame(second, datum(SECOND, {"id": 2, "user": "ada"}))
        await send(client, old, new, old, keys=["a", "b", "c"])
        async with client.producer(TOPIC, schema=danube.Avro(Order)) as producer:
            await producer.send(Order(3, "eve"))  # a header with a number: a bare payload
        wanted = [Order(1), Order(2, "ada"), Order(1), Order(3, "eve")]
        assert await values(client, danube.Avro(Order)) == wanted
        async with client.reader(TOPIC, start="earliest", schema=danube.Avro(Order)) as reader:
            batch = await reader.receive_batch()
            assert batch.is_framed
            assert batch.values() == wanted[:3]
            assert batch.payloads()[0] == old, "payloads stay as they are"
            assert not (await reader.receive_batch()).is_framed
        async with client.consumer(
            TOPIC, subscription="s", start="earliest", schema=danube.Subject(SUBJECT, version=1)
        ) as consumer:
            assert [(await consumer.receive()).value["id"] for _ in range(4)] == [1, 2, 1, 3]


async def test_a_bad_frame_fails_its_own_message(tmp_path: Path) -> None:
    async with framed_topic(tmp_path) as client:
        number = (await client.schemas.register(SUBJECT, "json", '{"type": "object"}')).number
        text = (await client.schemas.register("other", "string")).number
        good = encode_frame(number, b'{"id": 1}')
        bare, zero, last = b'{"id": 2}', encode_frame(0, b"{}"), b"\x00\xff\xff\xff\xff{}"
        await send(client, good, bare, b"", zero, last, encode_frame(text, b"x"), encode_frame(number, b"{"), good)
        got = await values(client, Order)
        assert (got[0], got[7]) == (Order(1), Order(1))
        for at, why in (
            (1, "has no Confluent frame"),
            (2, "has no Confluent frame"),
            (3, "schema 0 is not in the registry"),
            (4, "schema 4294967295 is not in the registry"),
            (5, "a schema of type string"),
            (6, "cannot be decoded"),
        ):
            assert f"{TOPIC}, offset {at}: " in got[at]
            assert why in got[at]


async def test_without_the_policy_frames_are_not_guessed(tmp_path: Path) -> None:
    async with framed_topic(tmp_path) as client:
        number = (await client.schemas.register(SUBJECT, "json", '{"type": "object"}')).number
        await client.admin.change_policies(TOPIC, schema_framing="none")
        await send(client, encode_frame(number, b'{"id": 1}'), b'{"id": 2}')
        got = await values(client, Order)
        assert "cannot be decoded" in got[0]
        assert got[1] == Order(2)


def file_of_two() -> FileDescriptorProto:
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for name in ("Order", "Refund"):
        message = file.message_type.add(name=name)
        message.field.add(
            name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
    inner = file.message_type[1].nested_type.add(name="Part")
    inner.field.add(name="n", number=1, type=FieldDescriptorProto.TYPE_INT64, label=FieldDescriptorProto.LABEL_OPTIONAL)
    return file


async def test_protobuf_frames_name_a_message_of_the_file(tmp_path: Path) -> None:
    pool = DescriptorPool()
    pool.Add(file_of_two())
    order, refund = (GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}")) for name in ("Order", "Refund"))
    async with framed_topic(tmp_path) as client:
        async with client.producer(TOPIC, schema=order) as producer:
            await producer.send(order(id=1))
        number = (await client.schemas.version(SUBJECT)).number
        await send(
            client,
            encode_frame(number, order(id=2).SerializeToString(), (0,)),
            encode_frame(number, refund(id=3).SerializeToString(), (1,)),
            encode_frame(number, b"", (1, 0)),
            encode_frame(number, b"", (2,)),
        )
        got = await values(client, order)
        assert [each.id for each in got[:2]] == [1, 2]
        assert "the payload is a shop.Refund, and the reader's message is shop.Order" in got[2]
        assert "the payload is a shop.Refund.Part" in got[3]
        assert "its frame names message [2] of the schema, which has none there" in got[4]
        assert [each.id for each in await values(client, refund) if not isinstance(each, str)] == [3]


async def test_the_schemas_that_are_kept_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_values, "MOST_WRITERS", 3)
    async with framed_topic(tmp_path) as client:
        numbers = []
        for each in range(5):
            text = json.dumps({"type": "object", "title": f"t{each}"})
            numbers.append((await client.schemas.register(f"s{each}", "json", text)).number)
        payloads = [encode_frame(number, b'{"id": %d}' % number) for number in numbers]
        for payload in payloads * 2:
            await send(client, payload)
        assert await values(client, Order) == [Order(number) for number in numbers] * 2
        async with client.reader(TOPIC, start="latest", schema=Order) as reader:
            await send(client, *payloads)
            batch = await reader.receive_batch()
            assert [message.value for message in batch[:3]] == [Order(number) for number in numbers[:3]]
            with pytest.raises(SchemaError, match=f"has schema {numbers[3]} in its frame, .* smaller batches"):
                assert batch[3].value
            assert sum(written.is_framed for written in reader._reading._decoders) <= 3


async def test_compressed_batches_and_those_with_attributes_are_opened(tmp_path: Path) -> None:
    async with framed_topic(tmp_path) as client:
        number = (await client.schemas.register(SUBJECT, "json", '{"type": "object"}')).number
        for compression in (None, "lz4", "zstd"):
            async with client.producer(TOPIC, compression=compression) as producer:
                await producer.send(encode_frame(number, b'{"id": 1}'), attributes={"a": "b"})
        assert await values(client, Order) == [Order(1)] * 3
