"""Reading without a subscription, as an application sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from consumer_groups import publish

from danube import connect
from danube.model.errors import FailedPreconditionError


async def test_a_reader_goes_through_a_topic_and_leaves_no_trace(shared_broker: BrokerProcess) -> None:
    topic = "/default/read"
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client:
            await client.admin.create_topic(topic, partitions=2)
            await publish(client, topic, 0, 100)
            async with client.reader(topic, start="earliest") as reader:
                found = [
                    payload async for batch in reader.batches(until_caught_up=True) for payload in batch.payloads()
                ]
                assert sorted(map(int, found)) == list(range(100))
                place = reader.position
                await publish(client, topic, 100, 20)
                message = await reader.receive()
                assert int(message.payload) >= 100
                with pytest.raises(FailedPreconditionError):
                    await message.ack()
            async with client.reader(topic, start=place) as reader:
                assert sorted([int((await reader.receive()).payload) for _ in range(20)]) == list(range(100, 120))
                await reader.seek({0: 0, 1: place[1]})
                message = await reader.receive()
                assert (message.partition, message.offset) in ((0, 0), (1, place[1]))
            assert await client.admin.list_subscriptions(topic) == []


async def test_a_reader_goes_on_where_it_was_when_the_broker_was_killed(tmp_path: Path) -> None:
    topic = "/default/read-on"
    with (
        BrokerProcess(tmp_path / "data", "--journal-file-size", "16MiB", "--log-level", "warning") as broker,
        trio.fail_after(30),
    ):
        async with (
            connect(broker.url, reconnect_initial_s=0.02) as client,
            connect(broker.url, reconnect_initial_s=0.02) as other,
        ):
            await publish(client, topic, 0, 50)
            async with client.reader(topic, start=10, credit_messages=20) as reader:
                found = [(await reader.receive()).offset for _ in range(15)]
                broker.kill()
                await trio.to_thread.run_sync(broker.start)
                await publish(other, topic, 50, 10)
                found += [(await reader.receive()).offset for _ in range(35)]
    assert found == list(range(10, 60))
