"""Sealing, retention and storages, as an administrator sees them through the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, read_all, running_broker, wait_until
from broker.sealed_topics import bucket, damage, objects_of, publish

from danube.model import Retention
from danube.model.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
    TopicNotFoundError,
)
from danube.model.limits import KIB


async def test_seal_moves_a_topic_into_its_storage(tmp_path: Path) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        sent = await publish(client, "/default/t", 500)
        before = await client.admin.describe_topic("/default/t")
        assert (before.storage, before.sealed_offset, before.parts, before.sealed_bytes) == ("default", 0, 0, 0)
        assert before.journal_bytes == before.stored_bytes > 50_000
        (sealed,) = await client.admin.seal_topic("/default/t")
        assert (sealed.start_offset, sealed.sealed_offset, sealed.end_offset) == (0, 500, 500)
        assert (sealed.parts, sealed.objects) == (1, 1)
        assert len(objects_of(space, "segments/danube")) == 1
        after = await client.admin.describe_topic("/default/t")
        assert (after.sealed_offset, after.end_offset, after.journal_bytes) == (500, 500, 0)
        assert after.sealed_bytes == after.stored_bytes == sealed.sealed_bytes > 50_000
        assert await read_all(client, "/default/t") == sent
        info = await client.admin.info()
        assert (info.unsealed_bytes, info.sealed_objects, info.sealing_failing_s) == (0, 1, 0)
        # There is nothing more to do, and nothing is done.
        assert (await client.admin.seal_topic("/default/t"))[0].objects == 1
        await running.restart(crash=True)
        assert await read_all(client, "/default/t") == sent


async def test_a_partitioned_topic_is_sealed_whole(tmp_path: Path) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await client.admin.create_topic("/default/p", partitions=3)
        async with client.producer("/default/p") as producer:
            for number in range(9):
                await producer.send(b"%d" % number)
        rows = await client.admin.seal_topic("/default/p")
        assert [row.topic for row in rows] == [f"/default/p-part-{index}" for index in range(3)]
        assert [(row.sealed_offset, row.end_offset, row.objects) for row in rows] == [(3, 3, 1)] * 3
        assert len(objects_of(space, "segments/danube")) == 1
        whole = await client.admin.describe_topic("/default/p")
        assert (whole.sealed_offset, whole.parts, whole.objects) == (9, 3, 1)


async def test_unload_disconnects_and_seals(tmp_path: Path) -> None:
    url, _ = bucket()
    async with (
        running_broker(tmp_path, storage=url) as running,
        running.client() as client,
        client.producer("/default/t", name="p") as producer,
    ):
        await producer.send_many([b"1", b"2"])
        async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
            assert (await consumer.receive()).payload == b"1"
            (row,) = await client.admin.unload_topic("/default/t")
            assert (row.sealed_offset, row.end_offset) == (2, 2)
            # Producer and consumer come back by themselves.
            assert (await producer.send(b"3")).offset == 2
            with trio.fail_after(5):
                while (await consumer.receive()).payload != b"3":
                    pass


async def test_refusals_to_seal_say_why(tmp_path: Path) -> None:
    async with running_broker(tmp_path, storage="memory://") as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        await client.admin.create_topic("/default/none", durability="none")
        with pytest.raises(FailedPreconditionError, match="is not durable"):
            await client.admin.seal_topic("/default/t")
        with pytest.raises(FailedPreconditionError, match="stores nothing"):
            await client.admin.seal_topic("/default/none")
        with pytest.raises(FailedPreconditionError, match="stores nothing"):
            await client.admin.change_retention("/default/none", Retention(max_bytes=1), dry_run=True)
        with pytest.raises(TopicNotFoundError):
            await client.admin.unload_topic("/default/missing")
        with pytest.raises(NotFoundError, match="no storage 'cold'; configured are default"):
            await client.storages.check("cold")
        with pytest.raises(InvalidArgumentError, match="storage 'cold' is not configured; configured are default"):
            await client.admin.create_topic("/default/cold", storage="cold")
        assert not (await client.storages.status()).storages[0].durable


async def test_a_topic_goes_to_the_storage_that_it_names(tmp_path: Path) -> None:
    (url, space), (cold_url, cold) = bucket(), bucket()
    settings: dict[str, Any] = {"storage": url, "storages": {"cold": {"url": cold_url}}}
    async with running_broker(tmp_path, **settings) as running, running.client() as client:
        made = await client.admin.create_topic(
            "/default/c", storage="cold", retention=Retention(max_age_s=7 * 86400.0, acknowledged=True)
        )
        assert (made.storage, made.retention) == ("cold", Retention(7 * 86400.0, 0, True))
        await publish(client, "/default/c", 10)
        await publish(client, "/default/d", 10)
        for topic in ("/default/c", "/default/d"):
            await client.admin.seal_topic(topic)
        assert len(objects_of(space, "segments/danube")) == len(objects_of(cold, "segments/danube")) == 1
        await running.restart()
        assert (await client.admin.describe_topic("/default/c")).retention == Retention(7 * 86400.0, 0, True)
        status = await client.storages.status()
        assert [(row.storage, row.topics, row.parts, row.objects) for row in status.storages] == [
            ("cold", 1, 1, 1),
            ("default", 1, 1, 1),
        ]
        assert status.storages[0].object_bytes == len(cold.objects[objects_of(cold, "segments/danube")[0]][0])
        assert all(row.healthy and row.durable and row.conditional_put for row in status.storages)


async def test_retention_reports_the_parts_that_would_expire_and_removes_them(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        for piece in range(4):
            await publish(client, "/default/t", 100, 1000, seed=piece)
            await client.admin.seal_topic("/default/t")
        total = (await client.admin.describe_topic("/default/t")).sealed_bytes
        plans = await client.admin.change_retention("/default/t", Retention(max_bytes=total // 2), dry_run=True)
        assert not plans.applied
        (plan,) = plans.plans
        assert (plan.start_offset, plan.new_start_offset, plan.end_offset) == (0, 200, 400)
        assert (plan.freed_parts, plan.freed_bytes) == (2, total // 2)
        # Nothing has changed.
        info = await client.admin.describe_topic("/default/t")
        assert (info.start_offset, info.retention) == (0, Retention())
        plans = await client.admin.change_retention("/default/t", Retention(max_bytes=total // 2), now=True)
        assert plans.applied
        assert plans.plans == [plan]
        info = await client.admin.describe_topic("/default/t")
        assert (info.start_offset, info.parts, info.retention.max_bytes) == (200, 2, total // 2)
        # The rules stay until others are given; asked without any, they say what they would do now.
        plans = await client.admin.change_retention("/default/t", dry_run=True)
        assert plans.retention.max_bytes == total // 2
        assert (plans.plans[0].start_offset, plans.plans[0].new_start_offset) == (200, 200)
        plans = await client.admin.change_retention("/default/t", Retention())
        assert not plans.retention
        (status,) = (await client.storages.status()).storages
        assert (status.objects, status.garbage_objects) == (2, 2)
        with pytest.raises(InvalidArgumentError, match="max_bytes = -1"):
            await client.admin.change_retention("/default/t", Retention(max_bytes=-1))
        with pytest.raises(InvalidArgumentError, match="max_age_s = nan"):
            await client.admin.change_retention("/default/t", Retention(max_age_s=float("nan")))
        with pytest.raises(InvalidArgumentError, match="exclude each other"):
            await client.admin.change_retention("/default/t", dry_run=True, now=True)


async def test_retention_by_acknowledgement_in_a_partitioned_topic(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await client.admin.create_topic("/default/p", partitions=2, retention=Retention(acknowledged=True))
        async with client.consumer("/default/p", subscription="s", start="earliest") as consumer:
            async with client.producer("/default/p") as producer:
                for number in range(10):
                    await producer.send(b"%d" % number)
            for _ in range(10):
                await (await consumer.receive()).ack()
            await consumer.flush_acks()
        plans = await client.admin.change_retention("/default/p", now=True)
        assert [(plan.topic, plan.new_start_offset) for plan in plans.plans] == [
            ("/default/p-part-0", 5),
            ("/default/p-part-1", 5),
        ]
        assert (await client.admin.describe_topic("/default/p")).start_offset == 10


async def test_check_finds_missing_and_damaged_objects(tmp_path: Path) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        for piece in range(3):
            await publish(client, "/default/t", 100, seed=piece)
            await client.admin.seal_topic("/default/t")
        found = await client.storages.check(deep=True)
        assert found.ok
        assert (found.objects, found.referenced, found.orphans, found.missing, found.damaged) == (3, 3, 0, 0, 0)
        assert found.manifests >= 3
        first, second, _ = objects_of(space, "segments/danube")
        damage(space, first, 200)
        assert (await client.storages.check()).ok  # sizes alone do not tell
        found = await client.storages.check(deep=True)
        assert not found.ok
        assert found.damaged == 1
        assert f"offsets [0, 100), in {first}" in found.damaged_parts[0]
        space.remove(second)
        found = await client.storages.check()
        assert not found.ok
        assert found.missing_objects == [f"{second}: not there"]
        damage(space, objects_of(space, "manifests/danube")[-1], 30)
        found = await client.storages.check()
        assert "manifest" in found.damaged_parts[0]


async def test_repair_removes_orphans_that_are_old_enough_and_nothing_else(tmp_path: Path) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        sent = await publish(client, "/default/t", 100)
        await client.admin.seal_topic("/default/t")
        (known,) = objects_of(space, "segments/danube")
        data, now_us = space.objects[known]
        old = f"segments/danube/{now_us - 7200 * 10**6:016x}-b1.1-{1:016x}.seg"
        young = f"segments/danube/{now_us:016x}-b1.1-{2:016x}.seg"
        foreign = "segments/danube/notes.txt"
        for key in (old, young, foreign):
            space.store(key, data, now_us)
        found = await client.storages.check()
        assert (found.ok, found.orphans, found.orphan_keys, found.recent) == (True, 1, [old], 2)
        assert old in space.objects
        repaired = await client.storages.repair()
        assert (repaired.orphans, repaired.deleted) == (1, 1)
        assert objects_of(space, "segments/danube") == sorted([known, young, foreign])
        assert (await client.storages.repair()).deleted == 0
        assert await read_all(client, "/default/t") == sent


async def test_a_check_outlasts_the_timeout_of_other_requests(tmp_path: Path) -> None:
    url, _ = bucket()
    async with (
        running_broker(tmp_path, storage=f"{url}&latency_ms=150") as running,
        running.client() as client,
        running.client(request_timeout_s=0.5) as hasty,
    ):
        await publish(client, "/default/t", 10)
        await client.admin.seal_topic("/default/t")
        with pytest.raises(DeadlineExceededError):
            await hasty.storages.check(deep=True, timeout_s=0.2)
        begin = trio.current_time()
        assert (await hasty.storages.check(deep=True)).ok
        assert trio.current_time() - begin > 0.5


async def test_status_tells_of_a_storage_that_fails(tmp_path: Path) -> None:
    directory = tmp_path / "history"
    limits = {"storage_max_attempts": 1, "storage_operation_timeout_s": 2.0, "segment_retry_max_s": 0.2}
    async with (
        running_broker(tmp_path / "data", storage=f"disk://{directory}", limits=limits) as running,
        running.client() as client,
    ):
        sent = await publish(client, "/default/t", 100)
        await client.admin.seal_topic("/default/t")
        (directory / "segments").rename(directory / "elsewhere")
        (directory / "segments").write_bytes(b"in the way")
        sent += await publish(client, "/default/t", 100, seed=1)
        with pytest.raises(StorageError, match="sealing failed"):
            await client.admin.seal_topic("/default/t")
        status = await client.storages.status()
        assert status.sealing.failing_for_s > 0
        assert status.sealing.last_error
        assert 0 < status.sealing.unsealed_bytes == status.storages[0].unsealed_bytes
        assert status.storages[0].last_error
        assert status.storages[0].operations["put"].failures > 0
        info = await client.admin.info()
        assert info.sealing_failing_s > 0
        assert info.sealing_error == status.sealing.last_error
        (directory / "segments").unlink()
        (directory / "elsewhere").rename(directory / "segments")

        async def sealed() -> bool:
            return (await client.admin.info()).unsealed_bytes == 0

        await wait_until(sealed)
        assert (await client.admin.info()).sealing_failing_s == 0
        assert await read_all(client, "/default/t") == sent


async def test_the_blocking_client_has_the_same_calls(tmp_path: Path) -> None:
    url, _ = bucket()

    def administer(running: RunningBroker) -> None:
        from danube.client.sync import connect

        with connect(running.url) as client:
            client.admin.create_topic("/default/t", storage="default", retention=Retention(max_bytes=10**9))
            with client.producer("/default/t") as producer:
                producer.send(b"x" * KIB)
            assert client.admin.seal_topic("/default/t")[0].sealed_offset == 1
            assert client.admin.unload_topic("/default/t")[0].objects == 1
            assert client.admin.change_retention("/default/t", dry_run=True).plans[0].new_start_offset == 0
            assert client.storages.status().storages[0].objects == 1
            assert client.storages.check(deep=True).ok
            assert client.storages.repair().ok

    async with running_broker(tmp_path, storage=url) as running:
        await trio.to_thread.run_sync(administer, running)
