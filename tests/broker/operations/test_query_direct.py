"""Reading sealed parts directly from the storage, located by the broker or by the manifests alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import running_broker
from broker.sealed_topics import bucket, publish
from storage_servers import S3_KEY, S3_SECRET, MotoServer, SeaweedServer

import danube
from danube.history.direct import DirectStorage, direct_parts, open_direct
from danube.model.batch import open_records, read_header
from danube.model.errors import (
    DataLossError,
    InvalidArgumentError,
    StorageDeniedError,
    StorageNotFoundError,
    TopicNotFoundError,
)
from danube.model.query_api import LogPart, LogParts, RawBatch

T = "/default/t"


def payloads(batches: list[RawBatch]) -> list[Any]:
    return [record for batch in batches for record in open_records(batch.part, read_header(batch.part), 1 << 24)]


async def in_thread(function: Any, *arguments: Any, **options: Any) -> Any:
    return await trio.to_thread.run_sync(partial(function, *arguments, **options))


def read_parts(storage: DirectStorage, found: LogParts) -> list[RawBatch]:
    return list(storage.read_all([(part, found.start, found.end) for part in direct_parts(found)]))


def read_directly(found: LogParts, **options: Any) -> list[RawBatch]:
    """What a Spark executor does."""
    (url,) = found.storages.values()
    with open_direct(url, options) as storage:
        return read_parts(storage, found)


async def fill(client: danube.Client, topic: str, pieces: int = 4) -> list[bytes]:
    sent: list[bytes] = []
    for piece in range(pieces):
        sent += await publish(client, topic, 10, seed=piece)
        await client.admin.seal_topic(topic)
    return sent


async def test_history_and_tail_meet_at_an_exact_offset(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        sent = await fill(client, T)
        sent += await publish(client, T, 7, seed=99)
        (state,) = await client.logs.states([T])
        assert state.storage_url == f"disk://{tmp_path}/storage"
        found = await client.logs.parts(T)
        assert (found.end, state.sealed_offset, state.end_offset) == (40, 40, 47)
        history = await in_thread(read_directly, found)
        async with client.logs.read(T, found.end, state.end_offset) as batches:
            tail = [batch async for batch in batches]
        assert payloads(history) + payloads(tail) == sent
        assert history[-1].end_offset == tail[0].base_offset == 40
        # The broker and the storage say the same of each batch.
        async with client.logs.read(T, 0, 40) as batches:
            assert [batch async for batch in batches] == history
        # Without the broker, the same comes out of the bucket.
        assert await in_thread(from_bucket, state.storage_url, T) == history


def from_bucket(url: str, topic: str) -> list[RawBatch]:
    with open_direct(url) as storage:
        return read_parts(storage, storage.bucket().log_parts(topic))


async def test_a_remote_topic_is_read_from_its_commits(tmp_path: Path) -> None:
    options = {"storage": f"disk://{tmp_path}/remote"}
    async with running_broker(tmp_path / "data", **options) as running, running.client() as client:
        await client.admin.create_topic(T, durability="remote")
        sent = []
        for piece in range(3):
            sent += await publish(client, T, 10, seed=piece)
        found = await client.logs.parts(T)
        assert payloads(await in_thread(read_directly, found)) == sent


async def test_a_query_goes_on_when_its_parts_are_merged(tmp_path: Path) -> None:
    limits = {"segment_merge_parts": 2}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        sent = await fill(client, T)
        before = await client.logs.parts(T)
        await running.broker.directory.history.keep()
        after = await client.logs.parts(T)
        assert len(before.parts) == 4
        assert len(after.parts) == 1
        for found in (before, after):  # the old objects have their grace
            assert payloads(await in_thread(read_directly, found)) == sent


async def test_the_bucket_and_the_broker_report_the_same_parts(tmp_path: Path) -> None:
    url = f"disk://{tmp_path}/bucket"
    async with running_broker(tmp_path / "data", storage=url) as running, running.client() as client:
        await client.admin.create_topic("/default/p", partitions=2)
        await client.admin.create_topic("/default/empty")
        sent = await fill(client, T)
        await fill(client, "/default/p", 2)
        topic = running.topic(T)
        await running.broker.directory.history.catalogue.expire(topic.topic_id, 15, 1)
        topic.log.expire(15)
        await running.broker.directory.history.keep()
        names = [T, "/default/p"]
        states = await client.logs.states(names)
        parts = [await client.logs.parts(state.name, 0) for state in states]
        some = await client.logs.parts(T, 22, 23)

        def look() -> None:
            with open_direct(url) as storage:
                bucket = storage.bucket()
                assert bucket.epoch
                assert bucket.created_us
                assert bucket.log_state(names) == states
                assert [state.name for state in bucket.log_state(pattern=".*/p")] == [
                    "/default/p-part-0",
                    "/default/p-part-1",
                ]
                assert [state.name for state in bucket.log_state()][-1] == T
                for state, wanted in zip(states, parts, strict=True):
                    assert without_sizes(bucket.log_parts(state.name)) == without_sizes(wanted)
                assert without_sizes(bucket.log_parts(T, 22, 23)) == without_sizes(some)
                first = bucket.log_parts(T)
                assert (first.start, first.parts[0].base_offset, first.gaps) == (15, 10, [])
                batches = read_parts(storage, first)
                assert batches[0].base_offset <= 15
                assert payloads(batches) == sent[batches[0].base_offset :]
                with pytest.raises(TopicNotFoundError, match="has no history in"):
                    bucket.log_state(["/default/unknown"])
                with pytest.raises(TopicNotFoundError):
                    bucket.log_parts("/default/p-part-2")
                with pytest.raises(InvalidArgumentError, match="partitioned"):
                    bucket.log_parts("/default/p")
                with pytest.raises(InvalidArgumentError, match="not a range"):
                    bucket.log_parts(T, -1, 5)
                with pytest.raises(StorageNotFoundError, match="no manifests of cluster 'other'"):
                    storage.bucket("other")

        await in_thread(look)


def without_sizes(found: LogParts) -> Any:
    """Manifests do not tell the sizes of objects."""
    return (
        found.topic,
        found.topic_id,
        (found.start, found.end, found.start_offset, found.sealed_offset, found.gaps),
        [[getattr(part, name) for name in part.__struct_fields__ if name != "object_bytes"] for part in found.parts],
        found.storages,
    )


async def test_a_damaged_manifest_is_told(tmp_path: Path) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await fill(client, T, 1)

    def look() -> None:
        for key in [key for key in space.objects if key.startswith("manifests/")]:
            data, modified_us = space.objects[key]
            space.store(key, data[:30] + b"?" + data[31:], modified_us)
        with open_direct(url) as storage, pytest.raises(DataLossError, match="the manifest is damaged"):
            storage.bucket()

    await in_thread(look)


async def test_s3_through_the_same_plugin(tmp_path: Path, moto: MotoServer) -> None:
    name = moto.bucket()
    place = f"s3://{name}/history"
    options = {"endpoint_url": moto.endpoint, "region": "us-east-1", "key": S3_KEY, "secret": S3_SECRET}
    storage = {"url": place, "options": options}
    async with running_broker(tmp_path, patience_s=30, storage=storage) as running, running.client() as client:
        sent = await fill(client, T, 2)
        found = await client.logs.parts(T)
        (url,) = found.storages.values()
    # The URL has what another process needs but for the secrets, which it brings along.
    assert url.startswith(f"{place}?")
    assert moto.endpoint in url
    assert S3_SECRET not in url
    assert S3_KEY not in url
    secrets = {"key": S3_KEY, "secret": S3_SECRET}
    assert payloads(await in_thread(read_directly, found, **secrets)) == sent

    def look() -> None:
        with open_direct(url, secrets) as opened:
            assert payloads(read_parts(opened, opened.bucket().log_parts(T))) == sent

    await in_thread(look)


def test_refused_credentials_say_what_to_grant(seaweed: SeaweedServer) -> None:
    name = seaweed.bucket()
    url = f"s3://{name}/history?endpoint_url={seaweed.endpoint}&region=us-east-1"
    wrong = "sesame-open-sesame"
    with open_direct(url, {"key": S3_KEY, "secret": wrong}) as storage:
        with pytest.raises(StorageDeniedError) as caught:
            storage.bucket()
        assert "give this process credentials that may read and list the objects below s3://" in str(caught.value)
        assert wrong not in str(caught.value) + repr(caught.value.__cause__)
        with pytest.raises(StorageDeniedError, match="give this process credentials"):
            read_parts(storage, LogParts(T, 7, 0, 9, 0, 9, 9, [PART], [], {}))


PART = LogPart("default", "segments/danube/x.seg", 9000, 0, 9, 1, 2, 3, 32, 5000, 6, 7000, 8, 9, 10)
