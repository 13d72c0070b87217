"""``kill -9`` during commits of staged batches: each is in its topics once and complete, also after repetitions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess

import danube
from danube.model.errors import DanubeError
from danube.model.stage_api import StagedBatch

pytestmark = pytest.mark.timeout(300)

KILLS = 10
TOPICS = ("/default/plain", "/default/parts-part-0", "/default/parts-part-1")


async def stage(client: danube.Client, topic: str, batch: int, payloads: list[bytes]) -> StagedBatch:
    """A task, which is tried again until it has staged."""
    for attempt in range(1000):
        try:
            async with client.stages.open(topic, producer="job", batch_id=batch, attempt=str(attempt)) as one:
                await one.add(payloads)
                return await one.finish()
        except DanubeError as error:
            if not error.retryable:
                raise
            await trio.sleep(0.02)
    raise AssertionError("the broker did not come back")


async def test_kills_during_commits_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    rng = random.Random(5)
    broker = BrokerProcess(tmp_path / "data")
    expected: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    repeated = 0
    with broker, trio.fail_after(200):
        async with danube.connect(broker.url, reconnect_initial_s=0.02, reconnect_max_s=0.1) as client:
            await client.admin.create_topic("/default/plain")
            await client.admin.create_topic("/default/parts", partitions=2)
            killing = trio.Event()

            async def kill_again_and_again() -> None:
                for _ in range(KILLS):
                    await trio.sleep(rng.uniform(0.02, 0.25))
                    await trio.to_thread.run_sync(broker.kill)
                    await trio.to_thread.run_sync(broker.start)
                killing.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_again_and_again)
                batch = 0
                while not killing.is_set():
                    staged = []
                    for topic in TOPICS:
                        payloads = [b"%d %d " % (batch, row) + bytes(2000) for row in range(rng.randrange(400))]
                        staged.append(await stage(client, topic, batch, payloads))
                        expected[topic] += payloads
                    outcome = await client.stages.commit("job", batch, staged)
                    repeated += not outcome.committed
                    batch += 1
            assert await client.stages.last_batch("job") == batch - 1
            for topic in TOPICS:
                found: list[bytes] = []
                async with client.reader(topic, start="earliest") as reader:
                    async for one in reader.batches(until_caught_up=True):
                        found += one.payloads()
                assert found == expected[topic]
            assert await client.stages.abort("job", batch) is False
    assert batch > KILLS // 3
