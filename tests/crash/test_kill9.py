"""``kill -9``, many times: acknowledged messages exist afterwards, in order, once; cursors are exact."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess

import danube

pytestmark = pytest.mark.timeout(300)

TOPIC = "/default/killed"


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
async def test_kills_lose_nothing_and_repeat_nothing(tmp_path: Path, rounds: int) -> None:
    rng = random.Random(9)
    broker = BrokerProcess(tmp_path / "data")
    acknowledged: list[int] = []
    consumed: list[int] = []

    with broker:
        with trio.fail_after(7 * rounds + 100):
            # On a busy machine the client may miss many of these short lives before it meets one.
            patient = danube.connect(broker.url, reconnect_timeout_s=None, reconnect_max_s=0.5)
            async with patient as client, trio.open_nursery() as nursery:
                await client.admin.create_topic(TOPIC)
                done, produced_all = trio.Event(), trio.Event()

                async def produce() -> None:
                    number = 0
                    async with client.producer(TOPIC, name="numbers") as producer:
                        while not done.is_set():
                            count = rng.randrange(1, 50)
                            await producer.send_many([str(number + i).encode() for i in range(count)])
                            acknowledged.extend(range(number, number + count))
                            number += count
                    produced_all.set()

                async def consume() -> None:
                    async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                        while not (produced_all.is_set() and len(set(consumed)) >= len(acknowledged)):
                            with trio.move_on_after(0.5):
                                batch = await consumer.receive_batch()
                                consumed.extend(int(message.payload) for message in batch)
                                await batch.ack()
                        await consumer.flush_acks()

                nursery.start_soon(produce)
                nursery.start_soon(consume)
                for _ in range(rounds):
                    await trio.sleep(rng.uniform(0.0, 0.15))
                    await trio.to_thread.run_sync(broker.kill)
                    await trio.to_thread.run_sync(broker.start)
                await trio.sleep(0.2)
                done.set()

            # A fresh consumer of the same subscription: everything was acknowledged, nothing may come again.
            async with danube.connect(broker.url) as client:
                (info,) = await client.admin.describe_subscription(TOPIC, "s")
                assert info.floor == info.end_offset == len(acknowledged)
                everything: list[int] = []
                async with client.consumer(TOPIC, subscription="audit", start="earliest") as consumer:
                    while len(everything) < info.end_offset:
                        batch = await consumer.receive_batch()
                        everything.extend(int(message.payload) for message in batch)
                        await batch.ack()

    assert everything == acknowledged == list(range(len(acknowledged)))
    assert len(acknowledged) > rounds
    first_seen = list(dict.fromkeys(consumed))
    assert first_seen == acknowledged
