"""Staged publishing through a real broker and the real client."""

from __future__ import annotations

from pathlib import Path

from broker_harness import read_all, running_broker

import danube
from danube.model.stage_api import StagedBatch


async def stage(
    client: danube.Client, topic: str, batch_id: int, payloads: list[bytes], *, producer: str = "job", attempt: str = ""
) -> StagedBatch:
    async with client.stage(topic, producer=producer, batch_id=batch_id, attempt=attempt) as one:
        await one.add(payloads)
        return await one.finish()


def rows(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{index}".encode() for index in range(count)]


async def test_stages_become_visible_together_when_they_are_committed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.create_topic("/default/a")
        await client.create_topic("/default/p", partitions=2)
        stages = [
            await stage(client, "/default/a", 0, rows("a", 10)),
            await stage(client, "/default/p-part-0", 0, rows("p0", 3)),
            await stage(client, "/default/p-part-1", 0, rows("p1", 4)),
        ]
        assert [one.records for one in stages] == [10, 3, 4]
        assert await read_all(client, "/default/a") == []
        outcome = await client.commit_stages("job", 0, stages)
        assert outcome.committed
        assert outcome.offsets == {"/default/a": (0, 10), "/default/p-part-0": (0, 3), "/default/p-part-1": (0, 4)}
        assert await read_all(client, "/default/a") == rows("a", 10)
        assert sorted(await read_all(client, "/default/p")) == sorted(rows("p0", 3) + rows("p1", 4))
        again = await client.commit_stages("job", 0, stages)
        assert not again.committed
        assert again.offsets == outcome.offsets
        assert await client.last_batch("job") == 0
        assert await client.list_stages() == []
        assert await read_all(client, "/default/a") == rows("a", 10)
