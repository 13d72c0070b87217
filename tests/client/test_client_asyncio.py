# ruff: noqa: SIM117, PT012 - a nested "async with" shows what is inside of what
"""The client under asyncio, the blocking facade, and admin calls: a broker in another thread serves them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fake_broker import broker_in_a_thread

import danube
from danube.client import sync
from danube.model.errors import ClosedError, DeadlineExceededError, InvalidArgumentError, TopicNotFoundError

TOPIC = "/default/orders"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


def test_asyncio_end_to_end() -> None:
    async def main(url: str) -> list[bytes]:
        async with danube.connect(url) as client:
            async with client.producer(TOPIC) as producer:
                await producer.send(b"first", key="k")
                pending = [producer.send_nowait(payload) for payload in numbered(100)]
                await producer.send_many(numbered(2_000))
                assert (await pending[99]).offset == 100
            found = []
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                async for batch in consumer.batches(until_caught_up=True):
                    found += batch.payloads()
                    await batch.ack()
            assert [topic.topic for topic in await client.admin.list_topics()] == [TOPIC]
            return found

    with broker_in_a_thread() as broker:
        found = asyncio.run(main(broker.url))
        assert found == [b"first", *numbered(100), *numbered(2_000)]
        assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 2_101]


def test_asyncio_errors_and_cancellation() -> None:
    async def main(url: str) -> None:
        with pytest.raises(ZeroDivisionError):
            async with danube.connect(url) as client, client.producer(TOPIC) as producer:
                await producer.send(b"x")
                raise ZeroDivisionError
        async with danube.connect(url) as client:
            async with client.consumer(TOPIC, subscription="s") as consumer:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await consumer.receive()
            with pytest.raises(TopicNotFoundError):
                await client.admin.lookup_topic("/default/none")
        with pytest.raises(ClosedError):
            await client.admin.list_topics()

    with broker_in_a_thread() as broker:
        asyncio.run(main(broker.url))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_blocking_facade(backend: str) -> None:
    with broker_in_a_thread() as broker, sync.connect(broker.url, backend=backend) as client:  # type: ignore[arg-type]
        with client.producer(TOPIC) as producer:
            assert producer.send(b"first", key="k", attributes={"a": "1"}).offset == 0
            assert producer.send_many(numbered(50)).count == 50
            pending = producer.send_nowait(b"last")
            producer.flush()
            assert pending.done
            assert pending.receipt().offset == 51
            with pytest.raises(InvalidArgumentError):
                producer.send("text")  # type: ignore[arg-type]
            assert (producer.partitions, producer.stored_before) == (0, [0])
        assert client.connected
        assert [topic.end_offset for topic in client.admin.list_topics()] == [52]
        with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            first = next(iter(consumer))
            assert (first.payload, first.key, first.attributes, first.topic) == (b"first", "k", {"a": "1"}, TOPIC)
            first.ack()
            rest = [consumer.receive(timeout_s=5) for _ in range(51)]
            assert [message.payload for message in rest] == [*numbered(50), b"last"]
            with pytest.raises(DeadlineExceededError, match="no message within"):
                consumer.receive(timeout_s=0.02)
            rest[0].ack()
            consumer.flush_acks()
            assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 2]
            rest[50].nack()
            again = consumer.receive_batch(timeout_s=5)
            assert (again.payloads(), again.attempt, again[0].payload) == ([b"last"], 2, b"last")
            again.ack()
            consumer.ack_cumulative(rest[49])
        assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 52]
        with client.consumer(TOPIC, subscription="t", start="earliest") as consumer:
            assert sum(len(batch) for batch in consumer.batches(until_caught_up=True)) == 52


def test_blocking_facade_from_many_threads() -> None:
    with broker_in_a_thread() as broker, sync.connect(broker.url) as client:
        with client.producer(TOPIC) as producer:
            threads = [
                threading.Thread(target=lambda: [producer.send(payload) for payload in numbered(20)]) for _ in range(5)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:

            def work() -> None:
                for _ in range(25):
                    consumer.receive(timeout_s=5).ack()

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 100]


def test_an_exception_leaves_the_blocking_block_as_it_is() -> None:
    with broker_in_a_thread() as broker, pytest.raises(ZeroDivisionError):
        with sync.connect(broker.url) as client, client.producer(TOPIC):
            raise ZeroDivisionError
