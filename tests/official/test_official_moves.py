"""Official clients publish and consume while their topic moves: no message is lost, none is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from cluster_processes import Cluster
from official_client import Official, official_python

import danube

pytestmark = [pytest.mark.timeout(300), pytest.mark.extended]

_MOVES = 3


async def test_an_official_client_goes_on_while_its_topic_moves_every_second(tmp_path: Path) -> None:
    official_python()
    topic = "/default/moving"
    with Cluster(tmp_path) as cluster, trio.fail_after(150):
        async with danube.connect(cluster.url()) as client:
            await client.admin.create_topic(topic)
            await cluster.settle([topic])
            official = Official(cluster.brokers[0], topic, tmp_path)
            async with (
                official.producing(endless=True, pause_s=0.01) as producer,
                official.consuming() as consumer,
            ):
                await producer.go()
                await producer.until(lambda script: len(script.sent) > 10)
                for turn in range(_MOVES):
                    rows = (await client.admin.cluster_status(gather=False)).brokers
                    address = (await cluster.owners(client, [topic]))[topic]
                    others = sorted(row.name for row in rows if row.address != address)
                    await client.admin.move_topic(topic, others[turn % 2])
                    before = address
                    while (await cluster.owners(client, [topic]))[topic] == before:  # noqa: ASYNC110 - processes
                        await trio.sleep(0.05)
                    await cluster.settle([topic])
                    await trio.sleep(1)
                before_end = len(producer.sent)
                await producer.until(lambda script: len(script.sent) > before_end + 30)
                await producer.stop()
                assert producer.with_field("failed") == []
                await consumer.until(lambda script: script.distinct_texts.issuperset(producer.sent))
                await consumer.stop()
            assert producer.sent == [f"p-{number}" for number in range(len(producer.sent))]
            # A send without an answer is sent again under another number, so it may be there twice.
            assert list(dict.fromkeys(consumer.texts)) == producer.sent
