"""A restore that was interrupted at one broker of a cluster, and is made again, there or at another broker."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from broker.broker_harness import read_all, wait_until
from broker.directory.cluster_harness import cluster
from broker.directory.test_forgetting import forget, lose, served_by, topic_of
from broker.sealed_topics import publish

from danube.broker.catalogue.creations import Creations
from danube.history import HistoryCatalogue, read_bucket
from danube.history._direct_bucket import DirectBucket
from danube.history.manifest import ManifestLog
from danube.model import Limits
from danube.model.errors import FailedPreconditionError, OwnerAwayError, StorageUnavailableError
from danube.storage import MemoryBackend, MemorySpace, Storage

pytestmark = pytest.mark.virtual

LIMITS = {"segment_retry_max_s": 0.2}


async def fill(directory: Path, url: str) -> tuple[dict[str, list[bytes]], dict[str, tuple[bytes, int]]]:
    """Let a broker seal some topics, and return what it was sent, and the objects of its storage."""
    sent: dict[str, list[bytes]] = {}
    async with cluster(directory, 1, seed=100, storage=url, shared_buckets=True, limits=LIMITS) as world:
        async with world.machines[0].client() as client:
            await client.admin.create_topic("/default/plain")
            await client.admin.create_topic("/default/parts", partitions=3)
            for number, topic in enumerate(["/default/plain", *(f"/default/parts-part-{each}" for each in range(3))]):
                sent[topic] = await publish(client, topic, 50 + number, seed=number)
            for topic in ("/default/plain", "/default/parts"):
                await client.admin.seal_topic(topic)
        await world.machines[0].broker.directory.history.keep()
        (space,) = world.buckets[""].values()
        return sent, dict(space.objects)


@pytest.mark.parametrize("then", ["again", "elsewhere", "elsewhere-later", "killed"])
@pytest.mark.parametrize("step", ["parts", "record", "manifest"])
async def test_it_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, then: str) -> None:
    url = "memory://lost?durable=true"
    sent, kept = await fill(tmp_path / "lost", url)
    owner, method = {
        "parts": (HistoryCatalogue, "enter"),
        "record": (Creations, "restore"),
        "manifest": (ManifestLog, "take_over"),
    }[step]
    real = getattr(owner, method)
    calls = 0

    async def fail_at_the_second(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (1 if step == "manifest" else 2):
            raise StorageUnavailableError("not now")
        return await real(*arguments, **options)

    async with cluster(tmp_path, 2, storage=url, shared_buckets=True, limits=LIMITS) as world:
        first, second = world.machines
        (space,) = world.buckets[""].values()
        for key, (data, modified_us) in kept.items():
            space.store(key, data, modified_us)
        with monkeypatch.context() as patched:
            patched.setattr(owner, method, fail_at_the_second)
            async with first.client() as client:
                with pytest.raises(StorageUnavailableError, match="not now"):
                    await client.storages.restore_topics(url)
        if then == "killed":
            await first.kill()
        if then in ("killed", "elsewhere-later"):
            await trio.sleep(60)
        chosen = first if then == "again" else second
        async with chosen.client(reconnect_timeout_s=1.0) as client:
            if then == "killed" and step != "manifest":
                # Some of it is assigned to the dead broker, and may be in its journal.
                with pytest.raises(FailedPreconditionError, match="Start b1, and restore again"):
                    await client.storages.restore_topics(url)
                await first.start()
            report = await client.storages.restore_topics(url, deep=True)
            assert {row.state for row in report.topics} <= {"restored", "present"}
            if then == "killed" and step == "manifest":
                with pytest.raises(OwnerAwayError, match="waits for broker b1"):
                    await read_all(client, "/default/plain")
                await first.start()
            for topic, payloads in sent.items():
                assert await read_all(client, topic) == payloads


async def test_declared_gaps_are_restored(tmp_path: Path) -> None:
    """What was lost with a broker is known from the bucket alone: it is no damage, and no offset of it is used."""
    url = "memory://lost?durable=true"
    options: dict[str, Any] = {"shared_buckets": True, "limits": LIMITS}
    lost_world = cluster(tmp_path / "lost", 3, seed=100, storage=url, shared_storages=True, **options)
    async with lost_world as world, world.machines[0].client() as client:
        topic = await topic_of(client, world, world.machines[1])
        async with client.consumer(topic, subscription="s", start="earliest"):
            pass
        sent = await publish(client, topic, 20)
        await client.admin.seal_topic(topic)
        await publish(client, topic, 5)
        name = await lose(world, world.machines[1])
        (lost,) = (await forget(client, name)).topics
        await wait_until(lambda: served_by(world, topic) is not None)
        sent += await publish(client, topic, 20, seed=1)
        await client.admin.seal_topic(topic)
        (state,) = await client.logs.states([topic])
        assert state.gaps == [(20, lost.gap_end)]
        (space,) = world.buckets[""].values()
        kept, folder = dict(space.objects), world.machines[0].broker.runtime.config.cluster

    space = MemorySpace()
    for key, (data, modified_us) in kept.items():
        space.store(key, data, modified_us)
    storage = Storage(MemoryBackend(space, url=url), random=Random(1), limits=Limits())
    direct = DirectBucket(await read_bucket(storage, folder), url)
    (found,) = direct.log_state([topic])
    assert (found.gaps, found.end_offset) == (state.gaps, lost.gap_end + 20)
    parts = direct.log_parts(topic)
    assert [(each.base_offset, each.end_offset) for each in parts.parts] == [(0, 20), (lost.gap_end, found.end_offset)]
    assert parts.gaps == []

    async with cluster(tmp_path / "new", 1, storage=url, **options) as world:
        (space,) = world.buckets[""].values()
        for key, (data, modified_us) in kept.items():
            space.store(key, data, modified_us)
        async with world.machines[0].client() as client:
            await client.storages.restore_topics(url)
            (state,) = await client.logs.states([topic])
            assert (state.gaps, state.end_offset) == (found.gaps, found.end_offset)
            assert await read_all(client, topic) == sent
            (row,) = await client.admin.list_subscriptions(topic)
            assert row.backlog_messages == 40, "not what was lost"
            async with client.consumer(topic, subscription="s") as consumer:
                for payload in sent:
                    message = await consumer.receive()
                    assert message.payload == payload
                    message.ack_nowait()
                await consumer.flush_acks()
            (row,) = await client.admin.list_subscriptions(topic)
            assert row.backlog_messages == 0
            (again,) = (await client.admin.describe_topic(topic)).gaps
            assert (again.start, again.end, again.open) == (20, lost.gap_end, False)
