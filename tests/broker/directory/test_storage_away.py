"""A storage that is unavailable for a moment is not an empty one: nothing counts as lost or is written elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RunningBroker, read_all, running_broker, take, wait_until
from broker.directory.cluster_harness import cluster
from broker.sealed_topics import bucket, publish

import danube
from danube.model.errors import ConfigurationError, DataLossError, StorageError
from danube.storage import MemoryBackend, MemorySpace
from danube.storage._marker import TRUST_S

QUICK = {"storage_max_attempts": 2, "segment_retry_max_s": 0.2}


def files(directory: Path) -> list[str]:
    """Return the objects below a directory."""
    return sorted(str(each.relative_to(directory)) for each in directory.rglob("[!.]*") if each.is_file())


async def sealed_topic(running: RunningBroker, client: danube.Client, topic: str = "/default/t") -> list[bytes]:
    """Publish something, make a subscription that has seen nothing of it, and seal all of it."""
    payloads = await publish(client, topic, 50, 1000)
    async with client.consumer(topic, subscription="s", start="earliest"):
        pass
    await client.admin.seal_topic(topic)
    running.topic(topic).log._cached.clear()
    return payloads


@pytest.mark.parametrize("instead", ["nothing", "an empty directory"])
async def test_a_subscription_waits_for_a_missing_directory(tmp_path: Path, instead: str) -> None:
    place, away = tmp_path / "store", tmp_path / "away"
    async with (
        running_broker(tmp_path / "data", storage=f"disk://{place}", limits=QUICK) as running,
        running.client() as client,
    ):
        payloads = await sealed_topic(running, client)
        place.rename(away)
        if instead != "nothing":
            (place / ".uploads").mkdir(parents=True)  # the mount point has been used before
        async with client.consumer("/default/t", subscription="s") as consumer:
            waits = running.topic("/default/t").subscriptions["s"]
            await wait_until(lambda: waits.waits_for is not None)
            assert waits.failure is None
            found = await client.admin.explain_subscription("/default/t", "s")
            assert found.state == "waiting-for-storage"
            assert "--adopt" in found.sentence
            if instead != "nothing":
                shutil.rmtree(place)
            away.rename(place)
            assert [message.payload for message in await take(consumer, 50)] == payloads


async def test_nothing_is_sealed_into_an_empty_mount_point_also_after_a_restart(tmp_path: Path) -> None:
    place, away = tmp_path / "store", tmp_path / "away"
    async with (
        running_broker(tmp_path / "data", storage=f"disk://{place}", limits=QUICK) as running,
        running.client() as client,
    ):
        payloads = await sealed_topic(running, client)
        for restart in (False, True):
            place.rename(away)
            (place / ".uploads").mkdir(parents=True)
            if restart:
                await running.restart()
            payloads += await publish(client, "/default/t", 20, 1000, seed=restart)
            with pytest.raises(StorageError, match="no marker"):
                await client.admin.seal_topic("/default/t")
            with pytest.raises(StorageError, match="no marker"):
                await client.storages.check()
            assert files(place) == []
            shutil.rmtree(place)
            away.rename(place)
            assert (await client.admin.seal_topic("/default/t"))[0].sealed_offset == len(payloads)
        assert (await client.storages.check(deep=True)).ok
        assert await read_all(client, "/default/t") == payloads


def failures(running: RunningBroker) -> dict[str, Exception]:
    levels = getattr(getattr(running.broker, "directory", None), "levels", None)  # it may not have come so far
    return dict(levels.bucket.claims.failures) if levels is not None else {}


async def test_topics_of_durability_remote_wait_for_their_directory_at_the_start(tmp_path: Path) -> None:
    place, away = tmp_path / "store", tmp_path / "away"
    async with (
        running_broker(tmp_path / "data", storage=f"disk://{place}", limits=QUICK) as running,
        running.client(request_timeout_s=2.0) as client,
    ):
        await client.admin.create_topic("/default/r", durability="remote")
        payloads = await publish(client, "/default/r", 10)
        await running.drain()
        place.rename(away)
        place.mkdir()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.start)
            await wait_until(lambda: failures(running))
            assert isinstance(failures(running)["default"], StorageError)
            assert files(place) == []
            shutil.rmtree(place)
            away.rename(place)
        assert await read_all(client, "/default/r") == payloads


async def test_a_bucket_that_was_made_again_is_not_the_one_it_was(tmp_path: Path) -> None:
    """As a Redis that came back without its file, or a URL that names another place."""
    url, space = bucket()
    async with running_broker(tmp_path, storage=url, limits=QUICK) as running, running.client() as client:
        payloads = await sealed_topic(running, client)
        former = dict(space.objects)
        replace(space, {})
        async with client.consumer("/default/t", subscription="s") as consumer:
            waits = running.topic("/default/t").subscriptions["s"]
            await wait_until(lambda: waits.waits_for is not None)
            replace(space, former)
            assert [message.payload for message in await take(consumer, 50)] == payloads
        await running.drain()
        replace(space, {key: value for key, value in former.items() if key.startswith("markers/")})
        marker = next(iter(space.objects))
        space.store(marker, b"DNB-MARK 1 %032x\n" % 7, 0)
        await running.start()
        with pytest.raises(StorageError, match="marker of another storage"):
            await client.storages.check()


def replace(space: MemorySpace, objects: dict[str, tuple[bytes, int]]) -> None:
    for key in list(space.objects):
        space.remove(key)
    for key, (data, modified_us) in objects.items():
        space.store(key, data, modified_us)


async def test_a_place_that_was_given_up_is_adopted(tmp_path: Path) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url, limits=QUICK) as running, running.client() as client:
        await sealed_topic(running, client)
        replace(space, {})
        with pytest.raises(StorageError, match="no marker"):
            await client.storages.check()
        found = await client.storages.repair(adopt=True)
        assert found.missing == 1
        await running.restart()
        assert (await client.storages.check()).missing == 1
        with pytest.raises(DataLossError):
            async with client.consumer("/default/t", subscription="s") as consumer:
                await consumer.receive()


@pytest.mark.parametrize("remedy", ["the object is back", "seek", "unload"])
async def test_a_subscription_that_has_failed_is_looked_at_again(tmp_path: Path, remedy: str) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url, limits=QUICK) as running, running.client() as client:
        payloads = await sealed_topic(running, client)
        (key,) = [each for each in space.objects if each.startswith("segments/")]
        data, modified_us = space.objects[key]
        space.remove(key)
        for _ in range(2):
            with pytest.raises(DataLossError):
                async with client.consumer("/default/t", subscription="s") as consumer:
                    await consumer.receive()
            assert (await client.admin.explain_subscription("/default/t", "s")).state == "failed"
        if remedy == "seek":
            await client.admin.seek_subscription("/default/t", "s", "latest")
            assert (await client.admin.explain_subscription("/default/t", "s")).state != "failed"
            payloads = await publish(client, "/default/t", 3, seed=1)
        else:
            space.store(key, data, modified_us)
            if remedy == "unload":
                await client.admin.unload_topic("/default/t")
                assert (await client.admin.explain_subscription("/default/t", "s")).state != "failed"
        async with client.consumer("/default/t", subscription="s") as consumer:
            assert [message.payload for message in await take(consumer, len(payloads))] == payloads


async def test_a_storage_of_small_objects_is_refused_at_the_start(tmp_path: Path) -> None:
    """Sealing into it would fail again and again, until the journal is full."""
    with pytest.raises(ConfigurationError, match="in one object, and a segment may have"):
        async with running_broker(tmp_path, storage="memory://?durable=true&max_object_bytes=1000000"):
            pass


@pytest.mark.virtual
@pytest.mark.parametrize("heard", [True, False])
async def test_a_broker_without_the_shared_directory_does_not_decide_what_it_is(tmp_path: Path, heard: bool) -> None:
    """It has written nothing yet, and another broker has: the directory of the others stays the storage."""
    url = "disk:///shared?shared=true"
    async with cluster(tmp_path, 2, storage=url, shared_buckets=True, limits=QUICK) as world:
        ours, theirs = (machine.broker for machine in world.machines)
        storage = theirs.directory.history.storages["default"]
        away: MemoryBackend = storage._backend._backend  # type: ignore[attr-defined]
        shared, away.space = away.space, MemorySpace()
        async with world.machines[0].client() as client:
            payloads = await publish(client, "/default/t", 20)
            await ours.directory.history.seal_now(list(ours.directory.topics()))
            await trio.sleep(1)
            assert storage.was_written
            if not heard:  # both may write at the same moment, before one hears of the other
                storage._marker.expect("")  # type: ignore[union-attr]
            for _ in range(2):
                with pytest.raises(StorageError, match="no marker" if heard else "marker of another storage"):
                    await storage.put("segments/x", b"")
            assert [key for key in away.space.objects if not key.startswith("markers/")] == []
            away.space = shared
            await storage.put("segments/x", b"")
            for machine in world.machines:
                await machine.drain()
                await machine.start()
                await machine.broker.directory.history.storages["default"].put("segments/y", b"")
            assert await read_all(client, "/default/t") == payloads


@pytest.mark.virtual
async def test_an_adopted_storage_is_that_of_all_brokers(tmp_path: Path) -> None:
    url = "memory://adopted?durable=true"
    async with cluster(tmp_path, 2, storage=url, shared_buckets=True, shared_storages=True, limits=QUICK) as world:
        storages = [machine.broker.directory.history.storages["default"] for machine in world.machines]
        for storage in storages:
            await storage.put("segments/x", b"")
        (space,) = (spaces[url] for spaces in world.buckets.values())
        replace(space, {})
        await storages[0].adopt()
        await trio.sleep(2 * TRUST_S)
        for storage in storages:
            await storage.put("segments/y", b"")
