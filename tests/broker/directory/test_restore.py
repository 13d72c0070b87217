"""A broker loses its data directory; another one restores its topics from the bucket alone."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from broker.broker_harness import read_all, running_broker, take, wait_until
from broker.sealed_topics import bucket, damage, objects_of, publish

import danube
from danube.broker.catalogue.creations import Creations
from danube.broker.directory import restore
from danube.history import HistoryCatalogue, read_bucket, verify_chains
from danube.history.manifest import ManifestLog
from danube.model import Retention
from danube.model.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
    StorageUnavailableError,
    TopicNotFoundError,
)
from danube.storage import MemorySpace

LIMITS = {"segment_retry_max_s": 0.2}


async def fill(directory: Path, url: str, **settings: Any) -> dict[str, list[bytes]]:
    """Let a broker publish to some topics and seal them, and let it go."""
    sent: dict[str, list[bytes]] = {}
    async with running_broker(directory, storage=url, limits=LIMITS, **settings) as first, first.client() as client:
        await client.admin.create_namespace("shop")
        await client.admin.create_topic("/shop/orders", retention=Retention(max_age_s=1e6))
        await client.admin.create_topic("/default/parts", partitions=2)
        await client.admin.create_topic("/default/none", durability="none")
        async with client.consumer("/shop/orders", subscription="billing", start="earliest") as consumer:
            sent["/shop/orders"] = await publish(client, "/shop/orders", 300, seed=1)
            messages = await take(consumer, 10)
            for message in messages[:4] + messages[6:7]:
                await message.ack()
            await consumer.flush_acks()
        for part in (0, 1):
            topic = f"/default/parts-part-{part}"
            sent[topic] = await publish(client, topic, 50 + part, seed=2 + part)
        await client.admin.seal_topic("/default/parts")
        await client.admin.seal_topic("/shop/orders")
        for piece in range(3):
            sent["/shop/orders"] += await publish(client, "/shop/orders", 100, seed=10 + piece)
            await client.admin.seal_topic("/shop/orders")
        await first.crash()
    return sent


async def check_topics(client: danube.Client, sent: dict[str, list[bytes]]) -> None:
    for topic, payloads in sent.items():
        assert await read_all(client, topic) == payloads


async def test_topics_come_back_from_nothing_but_the_bucket(tmp_path: Path) -> None:
    url, space = bucket()
    sent = await fill(tmp_path / "lost", url)
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        # The new broker knows nothing of all that, and lets it be.
        await publish(client, "/default/own", 10)
        with pytest.raises(StorageError, match=r"danube topics restore --from memory://bucket-"):
            await client.admin.seal_topic("/default/own")
        with pytest.raises(FailedPreconditionError, match="topics restore"):
            await client.storages.repair()
        before = dict(space.objects)
        planned = await client.storages.restore_topics(url, dry_run=True, deep=True)
        assert [(row.topic, row.state) for row in planned.topics] == [
            ("/default/none", "restored"),
            ("/default/parts", "restored"),
            ("/shop/orders", "restored"),
        ]
        assert planned.dry_run
        assert space.objects == before
        assert [topic.topic for topic in await client.admin.list_topics()] == ["/default/own"]

        report = await client.storages.restore_topics(url)
        assert report.topics == planned.topics
        orders = report.topics[2]
        assert (orders.start_offset, orders.end_offset, orders.parts, orders.subscriptions) == (0, 600, 4, ["billing"])
        assert (report.objects, report.unused, report.unused_objects) == (5, 0, [])
        await check_topics(client, sent)
        info = await client.admin.describe_topic("/shop/orders")
        assert (info.start_offset, info.sealed_offset, info.end_offset) == (0, 600, 600)
        assert (info.retention, info.storage, info.durability) == (Retention(max_age_s=1e6), "default", "disk")
        assert (await client.admin.describe_topic("/default/none")).durability == "none"
        # The subscription goes on where it was, holes and all.
        async with client.consumer("/shop/orders", subscription="billing") as consumer:
            assert [message.offset for message in await take(consumer, 4)] == [4, 5, 7, 8]
        # Publishing goes on at the next offset, and sealing into the bucket works.
        async with client.producer("/shop/orders") as producer:
            assert (await producer.send(b"next")).offset == 600
        sent["/shop/orders"].append(b"next")
        await client.admin.seal_topic("/shop/orders")
        await client.admin.seal_topic("/default/own")
        assert (await client.storages.check(deep=True)).ok
        assert (await client.storages.repair()).deleted == 0
        await second.restart(crash=True)
        await check_topics(client, sent)
        async with client.consumer("/shop/orders", subscription="billing") as consumer:
            assert [message.offset for message in await take(consumer, 2)] == [4, 5]
        with pytest.raises(
            FailedPreconditionError, match="belongs to this broker already: there is nothing to restore"
        ):
            await client.storages.restore_topics(url)
        sent["/default/own"] = await read_all(client, "/default/own")
    # And once more, from the bucket that the second broker has left.
    async with running_broker(tmp_path / "third", storage=url, limits=LIMITS) as third, third.client() as client:
        await client.storages.restore_topics(url, deep=True)
        await check_topics(client, sent)


async def test_the_former_owner_finds_that_the_bucket_is_not_its_own_any_more(tmp_path: Path) -> None:
    url, space = bucket()
    await fill(tmp_path / "lost", url)
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        await client.storages.restore_topics(url)
    before = objects_of(space, "segments/danube")
    async with running_broker(tmp_path / "lost", storage=url, limits=LIMITS) as first, first.client() as client:
        await publish(client, "/shop/orders", 10)
        with pytest.raises(StorageError, match="has written with other metadata"):
            await client.admin.seal_topic("/shop/orders")
        with pytest.raises(FailedPreconditionError, match="has written with other metadata"):
            await client.storages.repair()
    assert objects_of(space, "segments/danube") == before


async def test_nothing_is_restored_from_a_bucket_whose_broker_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sealed or deleted while the bucket was verified was missing in the restored topics."""
    url, space = bucket()
    sent: list[bytes] = []
    async with (
        running_broker(tmp_path / "living", storage=url, limits=LIMITS) as first,
        running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second,
        first.client() as owner,
        second.client() as client,
    ):

        async def verify(*args: Any, **options: Any) -> None:
            await verify_chains(*args, **options)
            sent.extend(await publish(owner, "/default/busy", 20, seed=len(sent)))
            await owner.admin.seal_topic("/default/busy")

        sent += await publish(owner, "/default/busy", 20)
        await owner.admin.seal_topic("/default/busy")
        monkeypatch.setattr(restore, "verify_chains", verify)
        with pytest.raises(FailedPreconditionError, match=r"still runs\. Nothing was restored"):
            await client.storages.restore_topics(url)
        assert await client.admin.list_topics() == []
        sent += await publish(owner, "/default/busy", 20, seed=99)
        await owner.admin.seal_topic("/default/busy")
        monkeypatch.undo()
        await first.crash()
        await client.storages.restore_topics(url)
        assert await read_all(client, "/default/busy") == sent
        assert objects_of(space, "segments/danube")


async def test_unlisted_objects_are_found_by_their_footers(tmp_path: Path) -> None:
    url, space = bucket()
    sent = await fill(tmp_path / "lost", url)
    # The last two manifests were never written; an upload was cut off; another one has a gap before it.
    for key in objects_of(space, "manifests/danube")[-2:]:
        space.remove(key)
    data, modified_us = space.objects[objects_of(space, "segments/danube")[-1]]
    space.store("segments/danube/half.seg", data[: len(data) // 2], modified_us)
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        report = await client.storages.restore_topics(url)
        assert [row.unlisted_parts for row in report.topics] == [0, 0, 2]
        assert report.unused == 1
        assert re.search(r"half\.seg.*no complete|half\.seg.*damaged", report.unused_objects[0])
        await check_topics(client, sent)


async def test_footers_add_no_parts_behind_a_gap(tmp_path: Path) -> None:
    url, space = bucket()
    sent = await fill(tmp_path / "lost", url)
    for key in objects_of(space, "manifests/danube")[-2:]:
        space.remove(key)
    space.remove(objects_of(space, "segments/danube")[-2])
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        report = await client.storages.restore_topics(url)
        assert (report.topics[2].end_offset, report.topics[2].unlisted_parts, report.unused) == (400, 0, 1)
        assert "[500, 600) of /shop/orders do not continue those that end at 400" in report.unused_objects[0]
        sent["/shop/orders"] = sent["/shop/orders"][:400]
        await check_topics(client, sent)


async def test_without_any_manifest_the_objects_tell_of_themselves(tmp_path: Path) -> None:
    url, space = bucket()
    sent = await fill(tmp_path / "lost", url)
    for key in objects_of(space, "manifests/danube"):
        space.remove(key)
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        report = await client.storages.restore_topics(url)
        assert [(row.topic, row.partitions) for row in report.topics] == [("/default/parts", 2), ("/shop/orders", 0)]
        await check_topics(client, sent)
        async with client.producer("/shop/orders") as producer:
            assert (await producer.send(b"next")).offset == 600


async def test_retention_and_deletion_are_remembered(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path / "lost", storage=url, limits=LIMITS) as first, first.client() as client:
        await publish(client, "/default/gone", 10)
        await client.admin.seal_topic("/default/gone")
        sent = await publish(client, "/default/t", 100)
        await client.admin.seal_topic("/default/t")
        size = (await client.admin.describe_topic("/default/t")).sealed_bytes
        sent += await publish(client, "/default/t", 100)
        await client.admin.seal_topic("/default/t")
        await client.admin.change_retention("/default/t", Retention(max_bytes=size), now=True)
        await client.admin.delete_topic("/default/gone")
        await first.broker.directory.history.keep()
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        report = await client.storages.restore_topics(url)
        (row,) = report.topics
        assert (row.topic, row.start_offset, row.end_offset, row.parts) == ("/default/t", 100, 200, 1)
        assert report.unused == 2
        assert report.unused_objects == []
        assert await read_all(client, "/default/t") == sent[100:]
        await second.restart()
        assert (await client.admin.describe_topic("/default/t")).start_offset == 100


async def test_damage_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    url, space = bucket()
    sent = await fill(tmp_path / "lost", url)
    parts, orders = objects_of(space, "segments/danube")[:2]
    whole = space.objects[orders]
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        damage(space, orders, 500)
        with pytest.raises(DataLossError, match=r"/shop/orders, offsets \[0, 300\): the bytes .* do not match"):
            await client.storages.restore_topics(url, deep=True)
        space.store(orders, whole[0][:-1], whole[1])
        with pytest.raises(DataLossError, match=r"/shop/orders, offsets \[0, 300\)"):
            await client.storages.restore_topics(url)
        space.remove(orders)
        with pytest.raises(DataLossError, match=r"/shop/orders, offsets \[0, 300\): .*is missing. Nothing was changed"):
            await client.storages.restore_topics(url)
        space.store(orders, space.objects[parts][0], whole[1])
        with pytest.raises(DataLossError, match="has other contents"):
            await client.storages.restore_topics(url)
        assert await client.admin.list_topics() == []
        # What is whole can be restored without it, at a price that has to be named.
        with pytest.raises(
            FailedPreconditionError, match=r"also holds /default/none; /shop/orders\. .*--give-up-others"
        ):
            await client.storages.restore_topics(url, topics=["/default/parts"])
        report = await client.storages.restore_topics(url, topics=["/default/parts"], give_up_others=True)
        assert {row.topic: row.state for row in report.topics} == {
            "/default/none": "given-up",
            "/default/parts": "restored",
            "/shop/orders": "given-up",
        }
        del sent["/shop/orders"]
        await check_topics(client, sent)


async def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    url, space = bucket()
    await fill(tmp_path / "lost", url)
    damage(space, objects_of(space, "manifests/danube")[-1], 40)
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        with pytest.raises(DataLossError, match="manifest"):
            await client.storages.restore_topics(url)
        assert await client.admin.list_topics() == []


async def test_obstacles_to_a_restore_are_named(tmp_path: Path) -> None:
    (url, _), (other, _) = bucket(), bucket()
    sent = await fill(tmp_path / "lost", url)
    settings: dict[str, Any] = {"storages": {"again": {"url": url}, "empty": {"url": other}}}
    async with (
        running_broker(tmp_path / "new", storage=url, limits=LIMITS, **settings) as second,
        second.client() as client,
    ):
        with pytest.raises(FailedPreconditionError, match=r"no storage at s3://b/p; configured are again .*\[storages"):
            await client.storages.restore_topics("s3://b/p")
        with pytest.raises(InvalidArgumentError, match=r"again, default; choose one \(--storage\)"):
            await client.storages.restore_topics(url)
        with pytest.raises(FailedPreconditionError, match="no storage called 'cold'"):
            await client.storages.restore_topics(url, storage="cold")
        with pytest.raises(NotFoundError, match="no history of cluster 'danube'"):
            await client.storages.restore_topics(other)
        with pytest.raises(TopicNotFoundError, match="holds nothing of topic '/default/x'"):
            await client.storages.restore_topics(url, storage="default", topics=["/default/x"])
        with pytest.raises(InvalidArgumentError, match="needs topics"):
            await client.storages.restore_topics(url, storage="default", give_up_others=True)
        await client.admin.create_namespace("shop")
        await client.admin.create_topic("/shop/orders")
        with pytest.raises(AlreadyExistsError, match="'/shop/orders' exists already, and is not the one"):
            await client.storages.restore_topics(url, storage="default")
        await client.admin.delete_topic("/shop/orders")
        # Topics go to the storage that the bucket is here, whatever it was called there.
        report = await client.storages.restore_topics(url, storage="again")
        assert report.storage == "again"
        assert {topic.storage for topic in await client.admin.list_topics()} == {"again"}
        await check_topics(client, sent)


@pytest.mark.parametrize("step", ["parts", "record", "manifest"])
@pytest.mark.parametrize("restart", [False, True])
async def test_cut_off_anywhere_it_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, restart: bool
) -> None:
    url, space = bucket()
    sent = await fill(tmp_path / "lost", url)
    before = objects_of(space, "segments/danube")
    owner, name = {
        "parts": (HistoryCatalogue, "enter"),
        "record": (Creations, "restore"),
        "manifest": (ManifestLog, "take_over"),
    }[step]
    real = getattr(owner, name)
    calls = 0

    async def fail_at_the_second(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (1 if step == "manifest" else 2):
            raise StorageUnavailableError("not now")
        return await real(*arguments, **options)

    limits = {**LIMITS, "segment_grace_s": 0.001}
    async with running_broker(tmp_path / "new", storage=url, limits=limits) as second, second.client() as client:
        monkeypatch.setattr(owner, name, fail_at_the_second)
        with pytest.raises(StorageUnavailableError, match="not now"):
            await client.storages.restore_topics(url)
        if restart:
            await second.restart(crash=True)
        # Half of it is there; the rest of the bucket must not be taken for garbage.
        history = second.broker.directory.history
        for tidy in (history.keep, partial(history.janitor.collect, "default")):
            with suppress(FailedPreconditionError):
                await tidy()
        assert objects_of(space, "segments/danube") == before
        report = await client.storages.restore_topics(url, deep=True)
        assert {row.state for row in report.topics} <= {"restored", "present"}
        await check_topics(client, sent)
        await second.restart(crash=True)
        await check_topics(client, sent)
        assert (await client.storages.check(deep=True)).ok
        await second.broker.directory.history.keep()
        assert (await client.storages.check(deep=True)).ok
        await check_topics(client, sent)


async def test_it_goes_on_when_the_client_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _ = bucket()
    sent = await fill(tmp_path / "lost", url)
    real = ManifestLog.take_over
    begun, go_on = trio.Event(), trio.Event()

    async def wait_first(self: ManifestLog, *arguments: Any) -> None:
        begun.set()
        await go_on.wait()
        await real(self, *arguments)

    monkeypatch.setattr(ManifestLog, "take_over", wait_first)
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.storages.restore_topics, url)
            await begun.wait()
            nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            # One that comes at the same time waits for its turn, and finds that all is done.
            nursery.start_soon(client.storages.restore_topics, url)
            await trio.testing.wait_all_tasks_blocked(0.05)
            go_on.set()
        await check_topics(client, sent)
        with pytest.raises(FailedPreconditionError, match="nothing to restore"):
            await client.storages.restore_topics(url)
        await publish(client, "/shop/orders", 1)
        await client.admin.seal_topic("/shop/orders")


async def test_cursors_beyond_the_sealed_messages_are_set_back(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path / "lost", storage=url, limits=LIMITS) as first, first.client() as client:
        sent = await publish(client, "/default/t", 100)
        await client.admin.seal_topic("/default/t")
        await publish(client, "/default/t", 100)
        async with client.consumer("/default/t", subscription="fast", start="earliest") as consumer:
            for message in await take(consumer, 150):
                await message.ack()
            await consumer.flush_acks()
        await first.restart()
        # The first manifest of a life is a snapshot, with all subscriptions; another topic is sealed, this one is not.
        await publish(client, "/default/other", 1)
        await client.admin.seal_topic("/default/other")
        await first.crash()
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        report = await client.storages.restore_topics(url)
        assert report.topics[1].clamped == ["fast"]
        (row,) = await client.admin.describe_subscription("/default/t", "fast")
        assert (row.floor, row.end_offset) == (100, 100)
        assert await read_all(client, "/default/t") == sent


def folders(space: MemorySpace) -> set[str]:
    return {key.rpartition("/")[0] for key in space.objects if key.startswith("manifests/")}


async def test_each_storage_tells_of_its_own_topics(tmp_path: Path) -> None:
    (url, _), (cold_url, cold) = bucket(), bucket()
    settings: dict[str, Any] = {"storage": url, "storages": {"cold": {"url": cold_url}}, "limits": LIMITS}
    sent = {}
    async with running_broker(tmp_path / "lost", **settings) as first, first.client() as client:
        await client.admin.create_topic("/default/cold", storage="cold")
        await client.admin.create_topic("/default/warm")
        for topic in ("/default/cold", "/default/warm"):
            sent[topic] = await publish(client, topic, 20, seed=len(topic))
            await client.admin.seal_topic(topic)
    async with running_broker(tmp_path / "new", **settings) as second, second.client() as client:
        report = await client.storages.restore_topics(cold_url)
        assert [row.topic for row in report.topics] == ["/default/cold"]
        assert sorted(folder[-19:] for folder in folders(cold)) == [f"b1/{epoch:016x}" for epoch in (1, 2)]
        # The other bucket is still the former owner's.
        await publish(client, "/default/x", 1)
        with pytest.raises(StorageError, match="topics restore"):
            await client.admin.seal_topic("/default/x")
        await client.storages.restore_topics(url)
        await check_topics(client, sent)
        await client.admin.seal_topic("/default/x")


async def test_policies_of_namespaces_and_of_the_broker_come_back(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path / "first", storage=url, limits=LIMITS) as first, first.client() as client:
        await client.admin.create_namespace("shop")
        await client.admin.change_policies("shop", message_ttl_s=4e6)
        await publish(client, "/shop/orders", 10)
        await publish(client, "/default/other", 10)
        await client.admin.seal_topic("/shop/orders")
        await client.admin.seal_topic("/default/other")
        # After the sealing: no topic is sealed any more that would bring them along.
        await client.admin.change_policies("shop", max_consumers=3, message_ttl_s=5e6)
        await client.admin.change_policies("", max_producers=7)
        await client.admin.change_policies("default", max_producers=5)
        await first.broker.directory.history.keep()
        await first.crash()
    async with running_broker(tmp_path / "second", storage=url, limits=LIMITS) as second, second.client() as client:
        await client.admin.change_policies("default", max_producers=9)
        await client.storages.restore_topics(url)
        found = (await client.admin.policies("/shop/orders")).effective
        assert (found.message_ttl_s, found.max_consumers, found.max_producers) == (5e6, 3, 7)
        assert second.topic("/shop/orders").message_ttl_s == 5e6
        assert (await client.admin.policies("/default/other")).effective.max_producers == 9  # what was said here stays
        await second.restart()
        assert (await client.admin.policies("/shop/orders")).effective == found


async def test_policies_of_namespaces_come_back_with_topics_of_durability_remote(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path / "first", storage=url, limits=LIMITS) as first, first.client() as client:
        await client.admin.create_namespace("shop")
        await client.admin.change_policies("shop", max_producers=4)
        await client.admin.create_topic("/shop/orders", durability="remote")
        await client.admin.create_topic("/default/other", durability="remote")
        await client.admin.change_policies("default", max_producers=5)
        await first.broker.directory.history.keep()
        await first.crash()
    async with running_broker(tmp_path / "second", storage=url, limits=LIMITS) as second, second.client() as client:
        assert (await client.admin.policies("/shop/orders")).effective.max_producers == 4
        assert (await client.admin.policies("/default/other")).effective.max_producers == 5


@pytest.mark.parametrize("crash", [False, True])
async def test_deleted_topics_of_which_nothing_was_left_stay_deleted(tmp_path: Path, crash: bool) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path / "first", storage=url, limits=LIMITS) as first, first.client() as client:
        history = first.broker.directory.history
        for topic in ("/default/kept", "/default/gone", "/default/parts", "/default/never"):
            await client.admin.create_topic(topic, partitions=2 if topic == "/default/parts" else 0)
        for topic in ("/default/kept", "/default/gone", "/default/parts-part-0"):
            await publish(client, topic, 10)
            await client.admin.seal_topic(topic.removesuffix("-part-0"))
        for topic in ("/default/gone", "/default/parts-part-0"):
            found = first.topic(topic)
            await history.catalogue.expire(found.topic_id, 10, 1)
            found.log.expire(10)
            assert not history.catalogue.topic(found.topic_id).parts
        history.manifests["default"].note()
        history.manifests["default"]._until_snapshot = 0  # tell of everything: also of the topic that was never sealed
        await history.keep()
        bucket_now = await read_bucket(history.storages["default"], "danube")
        assert len(bucket_now.topics) == 4
        if crash:  # the deletion is in the metadata, and nothing more has happened

            async def nothing(*_arguments: Any) -> None:
                return

            history.drop_topic = nothing  # type: ignore[method-assign]
        for topic in ("/default/gone", "/default/parts", "/default/never"):
            await client.admin.delete_topic(topic)
        if crash:
            await first.restart(crash=True)
            history = first.broker.directory.history
        await history.keep()
        bucket_now = await read_bucket(history.storages["default"], "danube")
        assert list(bucket_now.topics) == ["/default/kept"]


async def test_a_topic_of_the_same_name_is_not_forgotten_with_the_one_before(tmp_path: Path) -> None:
    """The history of a deleted topic may be forgotten late: the metadata was away."""
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url, limits=LIMITS) as first, first.client() as client:
        history = first.broker.directory.history
        await publish(client, "/default/t", 10)
        await client.admin.seal_topic("/default/t")
        drop, released = history.drop_topic, trio.Event()

        async def late(topic_id: int, name: str) -> None:
            await released.wait()
            await drop(topic_id, name)

        history.drop_topic = late  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.admin.delete_topic, "/default/t")
            await wait_until(lambda: first.broker.directory.catalogue.find("/default/t") is None)
            await publish(client, "/default/t", 20)
            await client.admin.seal_topic("/default/t")
            released.set()
        await history.keep()
        bucket_now = await read_bucket(history.storages["default"], "danube")
        assert bucket_now.topics["/default/t"] == history._records.record_of("/default/t")
