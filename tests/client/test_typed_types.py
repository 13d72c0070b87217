"""Type checkers know the values of producers, consumers, messages and batches, in both halves of the client.

mypy checks this module, too (``files`` in pyproject.toml). Each ``type: ignore`` stands behind a mistake that it must
find: if it does not, the comment is unused, which is an error as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import msgspec
import pytest
from brokers import BrokerProcess  # type: ignore[import-not-found]

import danube
from danube.client import Batch, Consumer, Message, Producer, Reader, sync
from danube.model.errors import InvalidArgumentError, SchemaError


class Order(msgspec.Struct):
    id: int


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running.url


async def test_the_types_of_producers(url: str) -> None:
    async with danube.connect(url) as client:
        async with client.producer("/default/typed", schema=Order) as producer:
            assert_type(producer, Producer[Order])
            await producer.send(Order(1))
            await producer.send_many([Order(2)])
            with pytest.raises(SchemaError):
                await producer.send(b"no order")  # type: ignore[arg-type]
        async with client.producer("/default/avro", schema=danube.Avro(Order)) as avro:
            assert_type(avro, Producer[Order])
        subject = danube.Subject("orders", danube.Json(Order))
        async with client.producer("/default/others", schema=subject) as other:
            assert_type(other, Producer[Order])
        async with client.producer("/default/others", schema=danube.Subject("orders")) as registered:
            assert_type(registered, Producer[Any])
        async with client.producer("/default/text", schema=danube.Avro('"long"')) as text:
            assert_type(text, Producer[Any])
        async with client.producer("/default/bytes") as raw:
            await raw.send(bytearray(b"bytes"))
            with pytest.raises(InvalidArgumentError):
                await raw.send("text")  # type: ignore[arg-type]
            same: Producer = raw
            assert same is raw


async def test_the_types_of_messages_and_batches(url: str) -> None:
    topic = "/default/messages"
    async with danube.connect(url) as client:
        async with client.producer(topic, schema=Order) as producer:
            await producer.send_many([Order(1), Order(2)])
        async with client.consumer(topic, subscription="s", start="earliest", schema=Order) as consumer:
            assert_type(consumer, Consumer[Order])
            async for message in consumer:
                assert_type(message, Message[Order])
                assert_type(message.value, Order)
                with pytest.raises(AttributeError):
                    message.value.total  # type: ignore[attr-defined]  # noqa: B018
                break
        async with client.reader(topic, start="earliest", schema=Order) as reader:
            assert_type(reader, Reader[Order])
            batch = await reader.receive_batch()
            assert_type(batch, Batch[Order])
            assert_type(batch.values(), list[Order])
            assert_type(batch[0], Message[Order])
            assert batch.values() == [Order(1), Order(2)]
        async with client.reader(topic, start="earliest") as plain:
            untyped: Message = await plain.receive()
            assert assert_type(untyped.value, bytes) == b'{"id":1}'


def test_the_types_of_the_blocking_client(url: str) -> None:
    topic = "/default/blocking"
    with sync.connect(url) as client:
        with client.producer(topic, schema=Order) as producer:
            assert_type(producer, sync.Producer[Order])
            producer.send(Order(1))
            producer.send_many([Order(2), Order(3)])
            with pytest.raises(SchemaError):
                producer.send(b"no order")  # type: ignore[arg-type]
        with client.consumer(topic, subscription="s", start="earliest", schema=Order) as consumer:
            assert assert_type(consumer.receive().value, Order) == Order(1)
            for message in consumer:
                assert_type(message, sync.Message[Order])
                assert message.value is message.value
                assert message.value == Order(2)
                message.ack()
                break
        with client.reader(topic, start="earliest", schema=Order) as reader:
            values = [value for batch in reader.batches(until_caught_up=True) for value in batch.values()]
            assert_type(values, list[Order])
            assert values == [Order(1), Order(2), Order(3)]
        with client.reader(topic, start="earliest") as plain:
            assert type(plain.receive()) is sync.Message
