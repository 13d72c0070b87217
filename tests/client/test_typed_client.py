"""Producers, consumers and readers with ``schema=``, against a broker: versions, subjects, strategies, bad payloads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import running_broker
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from telemetry_helpers import Collected

import danube
from danube.client import Batch, Message, _values
from danube.client.replaying import Replay, ReplayOptions
from danube.model.errors import (
    FailedPreconditionError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    InvalidSchemaError,
    SchemaError,
    SchemaNotFoundError,
    SubjectNotFoundError,
    UnavailableError,
)
from danube.model.schema_api import SchemaInfo

pytestmark = pytest.mark.virtual

TOPIC = "/default/orders"
SUBJECT = "/default/orders-value"


class First(msgspec.Struct):
    id: int


class Second(msgspec.Struct):
    id: int
    user: str = "nobody"


class Order(msgspec.Struct):
    """The newest version."""

    id: int
    user: str = "nobody"
    total: float = 0.0


def versions(make: Any) -> list[Any]:
    return [make(each, name="Order") for each in (First, Second, Order)]


@pytest.mark.parametrize("make", [danube.Json, danube.Avro])
async def test_one_consumer_reads_all_versions_as_the_newest(make: Any, tmp_path: Path) -> None:
    first, second, newest = versions(make)
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC, schema=first) as producer:
            await producer.send(First(1), key="a")
        async with client.producer(TOPIC, schema=second) as producer:
            await producer.send_many([Second(2, "ada"), Second(3)])
        async with client.producer(TOPIC, schema=newest) as producer:
            pending = producer.send_nowait(Order(4, "eve", 1.5))
            await pending
        rows = (await client.schemas.subject(SUBJECT)).versions
        assert [row.version for row in rows] == [1, 2, 3]
        wanted = [Order(1), Order(2, "ada"), Order(3), Order(4, "eve", 1.5)]
        async with client.consumer(TOPIC, subscription="s", start="earliest", schema=newest) as consumer:
            got = []
            async for message in consumer:
                assert message.value is message.value
                got.append(message.value)
                await message.ack()
                if len(got) == 4:
                    break
            assert got == wanted
        async with client.reader(TOPIC, start="earliest", schema=newest) as reader:
            values, numbers = [], []
            async for batch in reader.batches(until_caught_up=True):
                values += batch.values()
                numbers.append((batch.schema_id, batch.schema_version))
                assert [message.value for message in batch] == batch.values()
                assert batch[0].value == batch.values()[0]
            assert values == wanted
            assert numbers == [(row.number, row.version) for row in rows]
        async with client.reader(TOPIC, start="earliest", schema=first) as reader:
            assert [(await reader.receive()).value.id for _ in range(4)] == [1, 2, 3, 4]


async def test_a_schema_is_registered_once_and_an_incompatible_one_is_refused(tmp_path: Path) -> None:
    class Other(msgspec.Struct):
        id: int
        note: str

    async with running_broker(tmp_path) as running, running.client() as client:
        for _ in range(2):
            async with client.producer(TOPIC, schema=Order) as producer:
                await producer.send(Order(1))
        assert len((await client.schemas.subject(SUBJECT)).versions) == 1
        with pytest.raises(IncompatibleSchemaError, match="note"):
            async with client.producer(TOPIC, schema=Other):
                pass
        with pytest.raises(SchemaNotFoundError):
            async with client.producer(TOPIC, schema=Second, register=False):
                pass
        with pytest.raises(SubjectNotFoundError):
            async with client.producer("/default/others", schema=Second, register=False):
                pass
        async with client.producer(TOPIC, schema=Order, register=False) as producer:
            await producer.send(Order(2))


async def test_values_that_do_not_fit_are_not_sent(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC, schema=Order) as producer:
            with pytest.raises(SchemaError, match=r"\$.id"):
                await producer.send(Order("x"))  # type: ignore[arg-type]
            with pytest.raises(SchemaError, match=r"value 1: .*\$.user"):
                await producer.send_many([Order(1), Order(2, 3)])  # type: ignore[arg-type]
            with pytest.raises(SchemaError, match="does not fit"):
                producer.send_nowait(b"bytes")  # type: ignore[arg-type]
            await producer.send(Order(7))
        async with client.reader(TOPIC, start="earliest", schema=Order) as reader:
            assert [batch.values() async for batch in reader.batches(until_caught_up=True)] == [[Order(7)]]


async def test_a_payload_that_does_not_decode_fails_its_message_only(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b'{"id": 1}', b'{"id": "x"}', b'{"id": 3}'])
        async with client.producer(TOPIC, schema=str, strategy="topic") as texts:
            await texts.send("not an order")
        async with client.producer(TOPIC) as producer:
            await producer.send(b'{"id": 5}')
        async with client.consumer(TOPIC, subscription="s", start="earliest", schema=Order) as consumer:
            ids: list[int | str] = []
            for _ in range(5):
                message = await consumer.receive()
                try:
                    ids.append(message.value.id)
                except SchemaError as error:
                    ids.append(error.message)
                await message.ack()
            await consumer.flush_acks()
        assert [ids[0], ids[2], ids[4]] == [1, 3, 5]
        why = "the payload cannot be decoded (json_schema): Expected `int`, got `str` - at `$.id`"
        assert ids[1] == f"/default/orders, offset 1: {why}"
        assert "offset 3: the payload was written with a schema of type string" in str(ids[3])
        async with client.reader(TOPIC, start="earliest", schema=Order) as reader:
            batch = await reader.receive_batch()
            with pytest.raises(SchemaError, match="offset 1: "):
                batch.values()
            assert batch.payloads()[1] == b'{"id": "x"}'


async def test_a_number_that_the_registry_lacks_fails_the_messages_of_its_batches(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC, schema=Order) as producer:
            await producer.send(Order(1))
            number = (await client.schemas.version(SUBJECT)).number
            await client.schemas.delete(SUBJECT)
            await client.schemas.delete(SUBJECT, permanent=True)
            async with client.reader(TOPIC, start="earliest", schema=Order) as reader:
                assert (await reader.receive()).value == Order(1), "a deleted version is still found by its number"
            await client.schemas.purge(number)
            await producer.send(Order(2))
        async with client.producer(TOPIC, schema=Second) as other:
            await other.send(Second(3))
        async with client.reader(TOPIC, start="earliest", schema=Order) as reader:
            for _ in range(2):
                message = await reader.receive()
                with pytest.raises(SchemaError, match=f"schema {number} is not in the registry"):
                    _ = message.value
            assert (await reader.receive()).value == Order(3)


@pytest.mark.parametrize("make", [danube.Json, danube.Avro])
async def test_a_pinned_version_is_written_whatever_the_type_has(make: Any, tmp_path: Path) -> None:
    first, second, newest = versions(make)
    async with running_broker(tmp_path) as running, running.client() as client:
        for each in (first, second, newest):
            async with client.producer(TOPIC, schema=danube.Subject("orders", each)):
                pass
        pinned = danube.Subject("orders", newest, version=1)
        async with client.producer(TOPIC, schema=pinned) as producer:
            await producer.send(Order(1, "ada", 2.0))
        latest = danube.Subject("orders", min_version=3)
        async with client.producer(TOPIC, schema=latest) as plain:
            await plain.send({"id": 2, "user": "eve", "total": 1.0})
            with pytest.raises(SchemaError):
                await plain.send({"id": "x"})
        async with client.reader(TOPIC, start="earliest", schema=first) as reader:
            batch = await reader.receive_batch()
            assert (batch.schema_version, batch.values()) == (1, [First(1)])
        newest_there = danube.Subject("orders", version="latest")
        async with client.reader(TOPIC, start="earliest", schema=newest_there) as plain_reader:
            value: dict[str, Any] = (await plain_reader.receive()).value
            assert value["id"] == 1
            if make is danube.Avro:
                assert value == {"id": 1, "user": "nobody", "total": 0.0}
            assert (await plain_reader.receive()).value == {"id": 2, "user": "eve", "total": 1.0}
        with pytest.raises(
            FailedPreconditionError, match="latest version of subject orders is 3, and min_version is 4"
        ):
            async with client.reader(TOPIC, schema=danube.Subject("orders", min_version=4)):
                pass
        with pytest.raises(SchemaError, match="the values need one of type"):
            async with client.producer(TOPIC, schema=danube.Subject("orders", str, version=1)):
                pass


async def test_consumers_register_only_if_they_are_asked_to(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC):
            pass
        async with client.consumer(TOPIC, subscription="s", schema=Order):
            assert await client.schemas.subjects() == []
        async with client.consumer(TOPIC, subscription="s", schema=Order, register=True) as consumer:
            assert [row.subject for row in await client.schemas.subjects()] == [SUBJECT]
            async with client.producer(TOPIC, schema=Order, register=False) as producer:
                await producer.send(Order(1))
            assert (await consumer.receive()).value == Order(1)


async def test_strategies_name_the_subjects(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        shop = danube.Avro(Order, namespace="shop")
        async with client.producer("/default/parts", partitions=2, schema=shop) as producer:
            await producer.send_many([Order(each) for each in range(4)], keys=["a", "b", "c", "d"])
        async with client.producer(TOPIC, schema=shop, strategy="record"):
            pass
        async with client.producer(TOPIC, schema=Timestamp, strategy="topic_record") as stamps:
            await stamps.send(Timestamp(seconds=5))
        subjects = {row.subject: row.schema_type for row in await client.schemas.subjects()}
        assert subjects == {
            "/default/parts-value": "avro",
            "shop.Order": "avro",
            "/default/orders-google.protobuf.Timestamp": "protobuf",
        }
        async with client.reader("/default/parts", start="earliest", schema=shop) as reader:
            assert sorted([(await reader.receive()).value.id for _ in range(4)]) == [0, 1, 2, 3]
        subject = danube.Subject("/default/orders-google.protobuf.Timestamp")
        for schema in (Timestamp, subject):
            async with client.reader(TOPIC, start="earliest", schema=schema) as reader:
                assert (await reader.receive()).value.seconds == 5
        for schema, options, why in (
            (list[int], {"strategy": "record"}, "has no name"),
            (Order, {"strategy": "best"}, "strategy 'best' is unknown"),
            (object(), {}, "no JSON Schema"),
        ):
            with pytest.raises((InvalidArgumentError, InvalidSchemaError), match=why):
                async with client.producer(TOPIC, schema=schema, **options):  # type: ignore[arg-type]
                    pass


async def test_without_a_schema_messages_are_what_they_were(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            assert type(producer).__name__ == "Producer"
            await producer.send_many([b"a", b"b"])
        async with client.reader(TOPIC, start="earliest") as reader:
            message = await reader.receive()
            assert type(message) is Message
            assert message.__struct_fields__[:3] == ("payload", "offset", "_batch")
            assert "_value" not in message.__struct_fields__
            assert message.value is message.payload
            batch = message._batch
            assert isinstance(batch, Batch)
            assert batch.values() is batch.payloads()
            assert (batch.schema_id, batch.schema_version) == (0, 0)


async def test_a_cancelled_receive_loses_nothing_while_a_schema_is_asked_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC, schema=Order) as producer:
            await producer.send_many([Order(1), Order(2)])
        async with client.reader(TOPIC, start="earliest", schema=Order) as reader:
            await reader._wait_for(lambda: bool(reader._ready))
            asked = trio.Event()
            get = reader._reading._schemas.get  # type: ignore[union-attr]

            async def slow(number: int) -> Any:
                asked.set()
                await trio.sleep(1)
                return await get(number)

            reader._reading._schemas.get = slow  # type: ignore[union-attr, method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.receive)
                await asked.wait()
                nursery.cancel_scope.cancel()
            assert [(await reader.receive()).value.id for _ in range(2)] == [1, 2]


def shop_classes() -> dict[str, Any]:
    """Message classes of three files, of which the last imports the second, and that the first."""
    pool = DescriptorPool()
    field = FieldDescriptorProto
    for name, package, message, inner in (
        ("money.proto", "money", "Amount", ""),
        ("shop/line.proto", "shop", "Line", "money.Amount"),
        ("shop/order.proto", "shop", "Order", "shop.Line"),
    ):
        file = FileDescriptorProto(name=name, package=package, syntax="proto3")
        file.dependency.append("google/protobuf/timestamp.proto")
        file.dependency.extend({"money.Amount": ["money.proto"], "shop.Line": ["shop/line.proto"]}.get(inner, []))
        made = file.message_type.add(name=message)
        made.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
        stamp = ".google.protobuf.Timestamp"
        made.field.add(name="at", number=2, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=stamp)
        if inner:
            made.field.add(
                name="inner", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=f".{inner}"
            )
        if name == "money.proto":
            timestamp = FileDescriptorProto()
            Timestamp.DESCRIPTOR.file.CopyToProto(timestamp)
            pool.Add(timestamp)
        pool.Add(file)
    return {each: GetMessageClass(pool.FindMessageTypeByName(each)) for each in ("shop.Order", "shop.Line")}


async def test_imports_of_protobuf_files_are_registered_under_their_names(tmp_path: Path) -> None:
    order = shop_classes()["shop.Order"]
    async with running_broker(tmp_path) as running, running.client() as client:
        for register in (True, True, False):
            async with client.producer(TOPIC, schema=danube.Protobuf(order), register=register) as producer:
                value = order(id=1)
                value.inner.inner.id = 7
                await producer.send(value)
        subjects = [row.subject for row in await client.schemas.subjects()]
        assert subjects == [SUBJECT, "money.proto", "shop/line.proto"]
        known = await client.schemas.version(SUBJECT)
        assert [(each.name, each.version) for each in known.references] == [("shop/line.proto", 1)]
        assert known.name == "shop.Order"
        for schema in (order, danube.Subject(SUBJECT)):
            async with client.reader(TOPIC, start="earliest", schema=schema) as reader:
                values = (await reader.receive_batch()).values()
                assert [each.inner.inner.id for each in values] == [7] * len(values)
        line = shop_classes()["shop.Line"]
        async with client.reader(TOPIC, start="earliest", schema=line) as reader:
            with pytest.raises(SchemaError, match=r"is a shop.Order, and the reader's message is shop.Line"):
                (await reader.receive_batch()).values()


async def test_decoders_of_a_bounded_number_of_writers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_values, "MOST_WRITERS", 3)
    asked: list[int] = []

    class Registry:
        async def get(self, number: int) -> SchemaInfo:
            asked.append(number)
            return SchemaInfo(number, "string" if number == 7 else "json_schema", "{}")

    reading = await _values.open_reading(Registry(), TOPIC, Order, register=False, strategy="topic")  # type: ignore[arg-type]
    assert asked == []
    for number in (1, 2, 3, 4, 7, 1):
        await reading.learn(_values.Written(number))
        assert len(reading._decoders) <= 4
    assert asked == [1, 2, 3, 4, 7, 1]

    def decoder(number: int) -> Any:
        return reading.decoder(SimpleNamespace(schema_id=number, is_framed=False))  # type: ignore[arg-type]

    assert decoder(0)(b'{"id": 1}') == decoder(1)(b'{"id": 1}') == Order(1)
    with pytest.raises(SchemaError, match="of type string"):
        decoder(7)(b"{}")


async def test_a_traced_producer_encodes_as_others_do(tmp_path: Path) -> None:
    collected = Collected()
    async with running_broker(tmp_path) as running, running.client(telemetry=collected.telemetry) as client:
        async with client.producer(TOPIC, schema=Order) as producer:
            await producer.send(Order(1))
            await producer.send_nowait(Order(2))
            await producer.send_many([Order(3)])
            with pytest.raises(SchemaError):
                await producer.send(Order("x"))  # type: ignore[arg-type]
        async with client.consumer(TOPIC, subscription="s", start="earliest", schema=Order) as consumer:
            for number in (1, 2, 3):
                message = await consumer.receive()
                assert message.value == Order(number)
                assert "traceparent" in (message.attributes or {})
                with consumer.processing(message):
                    await message.ack()
        async with client.reader(TOPIC, start="earliest", schema=Order) as reader:
            assert (await reader.receive()).value == Order(1)
    assert len(collected.spans("send")) == 3
    collected.close()


async def test_a_registry_that_does_not_answer_loses_no_messages(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC, schema=Order) as producer:
            await producer.send(Order(1))
        async with client.reader(TOPIC, start="earliest", schema=Order) as reader:
            schemas = reader._reading._schemas  # type: ignore[union-attr]
            get = schemas.get

            async def fail(number: int) -> Any:
                schemas.get = get  # type: ignore[method-assign]
                raise UnavailableError("no broker answers")

            schemas.get = fail  # type: ignore[method-assign]
            with pytest.raises(UnavailableError):
                await reader.receive()
            assert (await reader.receive()).value == Order(1)


@pytest.mark.parametrize("to", [None, "/default/repaired"])
async def test_replayed_dead_letters_keep_their_schema(to: str | None, tmp_path: Path) -> None:
    first, _, newest = versions(danube.Avro)
    letters = "/default/letters"
    policy = {"poison": "dead-letter", "max_redelivery_count": 0, "dead_letter_topic": letters}
    async with running_broker(tmp_path) as running, running.client() as client:
        for topic in (letters, "/default/repaired"):
            await client.admin.create_topic(topic)
        for schema, value in ((first, First(1)), (newest, Order(2, "eve"))):
            async with client.producer(TOPIC, schema=schema) as producer:
                await producer.send(value)
        rows = (await client.schemas.subject(SUBJECT)).versions
        consuming = client.consumer(TOPIC, subscription="billing", start="earliest", schema=newest, policy=policy)
        async with consuming as consumer, client.reader(letters, start="earliest", schema=newest) as reader:
            for _ in range(2):
                await (await consumer.receive()).nack(reason="refused")
            assert [(await reader.receive()).value for _ in range(2)] == [Order(1), Order(2, "eve")]
        replay = Replay(client, ReplayOptions(topic=letters, to=to))
        await replay.run()
        assert replay.count == 2
        start = 2 if to is None else 0
        async with client.reader(to or TOPIC, start=start, schema=newest) as moved:
            for row, wanted in zip(rows, [Order(1), Order(2, "eve")], strict=True):
                message = await moved.receive()
                assert message.value == wanted
                # The version counts in the subject of the topic; another topic has another.
                version = row.version if to is None else 0
                assert (message._batch.schema_id, message._batch.schema_version) == (row.number, version)
