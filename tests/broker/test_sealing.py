"""A whole broker that seals its topics into a storage, and reads them back from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, read_all, running_broker, take, wait_until

import danube
from danube.broker.intake.effective_policies import stack
from danube.broker.topic.topic import Topic
from danube.dispatch import decode_entry
from danube.history import read_bucket
from danube.history.tenure import owner_epoch
from danube.model.limits import KIB, MIB
from danube.model.policies import Retention, TopicPolicies

pytestmark = pytest.mark.virtual

SEALING = {"segment_bytes": 256 * KIB, "journal_max_bytes": 16 * MIB, "segment_merge_parts": 4}


def payloads_of(first: int, count: int, size: int = 1000) -> list[bytes]:
    return [f"{number:08}".encode() * (size // 8) for number in range(first, first + count)]


async def publish(client: danube.Client, topic: str, payloads: Sequence[bytes], at_once: int = 50) -> None:
    async with client.producer(topic) as producer:
        for start in range(0, len(payloads), at_once):
            await producer.send_many(payloads[start : start + at_once])


def sealed(running: RunningBroker, topic: str) -> tuple[int, int, int]:
    """Return (parts, sealed end, start of the journal's share)."""
    found = running.topic(topic)
    history = running.broker.directory.history.catalogue.find(found.topic_id)
    parts = len(history.parts) if history is not None else 0
    return parts, history.end_offset if history is not None else 0, found.log.journal_start


async def seal(running: RunningBroker, *topics: str) -> None:
    await running.broker.directory.history.sealer.seal_now([running.topic(topic) for topic in topics])


@pytest.mark.parametrize("storage", ["disk", "memory"])
async def test_a_full_segment_is_sealed_by_itself_and_read_back(tmp_path: Path, storage: str) -> None:
    url = {"disk": "disk", "memory": "memory://?durable=true"}[storage]
    wanted = payloads_of(0, 2000)
    async with running_broker(tmp_path, storage=url, limits=SEALING) as running, running.client() as client:
        await publish(client, "/default/t", wanted)
        await wait_until(lambda: running.topic("/default/t").log.unsealed_bytes < 256 * KIB)
        parts, end, journal_start = sealed(running, "/default/t")
        assert 5 <= parts <= 8
        assert end == journal_start
        assert 1600 < end <= 2000  # the rest is less than a segment's worth
        running.topic("/default/t").log._cached.clear()
        assert await read_all(client, "/default/t") == wanted


async def test_history_and_tail_survive_restarts_and_crashes(tmp_path: Path) -> None:
    wanted: list[bytes] = []
    async with running_broker(tmp_path, limits=SEALING, patience_s=30) as running, running.client() as client:
        for life in range(4):
            more = payloads_of(len(wanted), 700)
            await publish(client, "/default/t", more)
            wanted += more
            await publish(client, "/default/quiet", [b"%d" % life])
            if life % 2:
                await seal(running, "/default/t", "/default/quiet")
            await running.restart(crash=life != 1)
            assert await read_all(client, "/default/t", f"audit-{life}") == wanted
        assert await read_all(client, "/default/quiet") == [b"0", b"1", b"2", b"3"]
        topic = running.topic("/default/t")
        assert topic.end_offset == len(wanted)
        assert topic.log.owner_epoch == owner_epoch(1, 5)


async def test_topics_that_trickle_share_objects_and_are_merged(tmp_path: Path) -> None:
    topics = [f"/default/t{number}" for number in range(20)]
    settings = {**SEALING, "segment_grace_s": 0.05}
    async with running_broker(tmp_path, limits=settings, patience_s=30) as running, running.client() as client:
        history = running.broker.directory.history
        for turn in range(5):
            for topic in topics:
                await publish(client, topic, [b"%s %d" % (topic.encode(), turn)])
            await seal(running, *topics)
        assert {sealed(running, topic)[0] for topic in topics} == {5}
        assert len(history.catalogue.objects) == 5
        await history.keep()
        assert {sealed(running, topic)[0] for topic in topics} == {1}
        assert [record.references for record in history.catalogue.objects.values()] == [20]
        await wait_until(lambda: not history.catalogue.garbage_until(1 << 62) or history.keep())
        assert len(history.catalogue.objects) == 1
        report = await history.janitor.check("default", deep=True)
        assert (report.objects, report.referenced, report.orphans, report.missing, report.damaged) == (1, 1, [], [], [])
        await running.restart(crash=True)
        for topic in topics:
            assert await read_all(client, topic) == [b"%s %d" % (topic.encode(), turn) for turn in range(5)]


async def test_the_journal_stays_small_under_many_times_its_size(tmp_path: Path) -> None:
    limits = {**SEALING, "segment_bytes": 1 * MIB, "journal_max_bytes": 8 * MIB}
    wanted = payloads_of(0, 400, 100_000)
    async with running_broker(tmp_path, limits=limits, patience_s=60) as running, running.client() as client:
        await publish(client, "/default/t", wanted, 5)
        usage = running.broker.runtime.journal.usage()
        assert usage.used_bytes <= 8 * MIB
        assert usage.files <= 6
        assert await read_all(client, "/default/t") == wanted


async def test_many_small_topics_are_sealed_when_the_journal_fills(tmp_path: Path) -> None:
    limits = {**SEALING, "segment_bytes": 4 * MIB, "journal_max_bytes": 8 * MIB}
    async with running_broker(tmp_path, limits=limits, patience_s=60) as running, running.client() as client:
        topics = [f"/default/t{number}" for number in range(40)]
        for turn in range(10):
            for topic in topics:
                await publish(client, topic, payloads_of(turn * 50, 50))
        assert running.broker.runtime.journal.usage().used_bytes <= 8 * MIB
        for topic in topics[::13]:
            assert await read_all(client, topic) == payloads_of(0, 500)


async def test_a_backend_that_fails_does_not_stop_the_broker(tmp_path: Path) -> None:
    limits = {**SEALING, "storage_operation_timeout_s": 0.2, "segment_retry_max_s": 0.2}
    async with running_broker(tmp_path, limits=limits, patience_s=30) as running, running.client() as client:
        storage = running.broker.directory.history.storages["default"]
        backend: Any = storage._backend
        real_put = backend.put

        async def refuse(*_args: Any, **_keywords: Any) -> None:
            raise danube.model.errors.StorageDeniedError("the credentials have expired")

        backend.put = refuse
        wanted = payloads_of(0, 1000)
        await publish(client, "/default/t", wanted)
        await wait_until(lambda: running.broker.directory.history.sealer.status().failing_for_s > 0)
        status = running.broker.directory.history.sealer.status()
        assert "credentials have expired" in status.last_error
        assert status.unsealed_bytes > 1_000_000
        assert await read_all(client, "/default/t") == wanted
        backend.put = real_put
        await wait_until(lambda: running.broker.directory.history.sealer.status().failing_for_s == 0)
        await wait_until(lambda: sealed(running, "/default/t")[0] >= 3)
        assert await read_all(client, "/default/t") == wanted


async def test_a_reader_waits_for_a_backend_that_is_away(tmp_path: Path) -> None:
    limits = {**SEALING, "storage_operation_timeout_s": 0.1}
    async with running_broker(tmp_path, limits=limits, patience_s=30) as running, running.client() as client:
        wanted = payloads_of(0, 600)
        await publish(client, "/default/t", wanted)
        await seal(running, "/default/t")
        running.topic("/default/t").log._cached.clear()
        backend: Any = running.broker.directory.history.storages["default"]._backend
        real_get = backend.get

        async def refuse(*_args: Any, **_keywords: Any) -> bytes:
            raise danube.model.errors.StorageUnavailableError("no route")

        backend.get = refuse
        async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
            subscription = running.topic("/default/t").subscriptions
            await wait_until(lambda: "s" in subscription and subscription["s"].waits_for is not None)
            explanation = await client.admin.explain_subscription("/default/t", "s")
            assert explanation.state == "waiting-for-storage"
            assert "no route" in explanation.sentence
            backend.get = real_get
            assert [message.payload for message in await take(consumer, 600)] == wanted


async def test_retention_by_size_age_and_acknowledgement(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits=SEALING, patience_s=30) as running, running.client() as client:
        broker = running.broker
        for name in ("size", "age", "acked"):
            await publish(client, f"/default/{name}", payloads_of(0, 1000))
            await seal(running, f"/default/{name}")
            assert sealed(running, f"/default/{name}")[0] >= 3

        def retain(topic: Topic, retention: Retention) -> None:
            record = broker.directory.catalogue.find(topic.name)
            assert record is not None
            topic.apply(stack([("topic", TopicPolicies(retention=retention))]), record)

        by_size = broker.directory.find("/default/size")
        retain(by_size, Retention(max_bytes=600_000))
        plan = broker.directory.history.plan(by_size)
        assert by_size.start_offset == plan.start_offset == 0  # a plan changes nothing
        await broker.directory.history.expire(by_size)
        assert by_size.start_offset == plan.new_start_offset > 0
        assert (
            broker.directory.history.catalogue.topic(by_size.topic_id).size_bytes <= 600_000 + SEALING["segment_bytes"]
        )
        assert await read_all(client, "/default/size") == payloads_of(0, 1000)[by_size.start_offset :]

        by_age = broker.directory.find("/default/age")
        retain(by_age, Retention(max_age_s=1e-6))
        await broker.directory.history.expire(by_age)
        assert by_age.start_offset == by_age.end_offset == 1000
        assert await read_all(client, "/default/age") == []
        await publish(client, "/default/age", [b"goes on"])
        assert by_age.end_offset == 1001

        acked = broker.directory.find("/default/acked")
        retain(acked, Retention(acknowledged=True))
        assert broker.directory.history.plan(acked).new_start_offset == 0  # nothing is acknowledged
        async with client.consumer("/default/acked", subscription="s", start="earliest") as consumer:
            for message in await take(consumer, 600):
                await message.ack()
            await consumer.flush_acks()
            await broker.directory.history.expire(acked)
            assert 0 < acked.start_offset <= 600
        start = acked.start_offset
        await running.restart(crash=True)
        assert running.topic("/default/acked").start_offset == start
        assert running.topic("/default/age").end_offset == 1001


async def test_objects_shared_with_a_deleted_topic_stay_for_the_others(tmp_path: Path) -> None:
    settings = {**SEALING, "segment_grace_s": 0.5}
    async with running_broker(tmp_path, limits=settings, patience_s=30) as running, running.client() as client:
        history = running.broker.directory.history
        await publish(client, "/default/kept", [b"kept"])
        await publish(client, "/default/gone", [b"gone"])
        await seal(running, "/default/kept", "/default/gone")
        (old,) = history.catalogue.objects
        await client.admin.delete_topic("/default/gone")
        await history.keep()
        assert old not in history.catalogue.objects
        await wait_until(lambda: old not in history.catalogue.garbage or history.keep())
        keys = [item.key for item in (await history.storages["default"].list("segments/")).objects]
        assert len(keys) == 1
        assert b"gone" not in await history.storages["default"].get(keys[0])
        running.topic("/default/kept").log._cached.clear()
        assert await read_all(client, "/default/kept") == [b"kept"]


async def test_a_quiet_topic_is_sealed_by_age_beside_a_busy_one(tmp_path: Path) -> None:
    limits = {**SEALING, "segment_max_age_s": 1.0}
    async with running_broker(tmp_path, limits=limits, patience_s=30) as running, running.client() as client:
        await publish(client, "/default/busy", payloads_of(0, 10))
        await publish(client, "/default/quiet", [b"one"])
        await publish(client, "/default/busy", payloads_of(10, 700))  # the busy one goes by size, again and again
        await wait_until(lambda: sealed(running, "/default/quiet")[0] == 1)
        assert running.broker.directory.history.sealer.status().oldest_age_s <= 1.5
        assert await read_all(client, "/default/quiet") == [b"one"]


async def test_an_unavailable_storage_delays_no_other(tmp_path: Path) -> None:
    storages = {"cold": {"url": f"disk://{tmp_path}/cold"}}
    async with (
        running_broker(tmp_path / "data", storages=storages, limits=SEALING, patience_s=30) as running,
        running.client() as client,
    ):
        await client.admin.create_topic("/default/stuck", storage="cold")
        backend: Any = running.broker.directory.history.storages["cold"]._backend

        async def hang(*_args: Any, **_keywords: Any) -> None:
            await trio.sleep_forever()

        backend.put = hang
        await publish(client, "/default/stuck", payloads_of(0, 600))
        await publish(client, "/default/flows", payloads_of(0, 600))
        await wait_until(lambda: sealed(running, "/default/flows")[0] >= 2)
        assert sealed(running, "/default/stuck")[0] == 0


async def test_manifests_follow_cursors(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits=SEALING, patience_s=30) as running, running.client() as client:
        await publish(client, "/default/t", payloads_of(0, 10))
        await seal(running, "/default/t")
        async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
            for message in await take(consumer, 7):
                await message.ack()
            await consumer.flush_acks()
        await publish(client, "/default/t", payloads_of(10, 10))
        await seal(running, "/default/t")
        bucket = await read_bucket(running.broker.directory.history.storages["default"], "danube")
        topic = running.topic("/default/t")
        (name,) = bucket.subscriptions[topic.topic_id]
        assert name == "s"
        assert decode_entry(bucket.subscriptions[topic.topic_id]["s"][1]).floor == 7
