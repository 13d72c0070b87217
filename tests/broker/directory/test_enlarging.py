"""Partitioned topics grow when their partitions are requested one by one, and keep their messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RunningBroker, read_all, running_broker

from danube.model import Durability
from danube.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    LimitExceededError,
    NamespaceNotFoundError,
    TopicNotFoundError,
)
from danube.storage import SHARED_SPACES

pytestmark = pytest.mark.virtual

BASE = "/default/orders"


def part(index: int) -> str:
    return f"{BASE}-part-{index}"


def lose_machine(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


async def ensure(running: RunningBroker, name: str, durability: Durability = Durability.DISK) -> int:
    return (await running.broker.directory.ensure(name, durability)).topic_id


async def test_partitions_keep_their_ids_when_others_come(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        second = await ensure(running, part(1))
        async with client.producer(part(1)) as producer:
            await producer.send(b"early")
        last = await ensure(running, part(4))
        assert await ensure(running, part(1)) == second
        assert len({await ensure(running, part(index)) for index in range(5)}) == 5
        found = await client.admin.lookup_topic(BASE)
        assert (found.partitions, found.durability) == (5, Durability.DISK)
        await running.restart(crash=True)
        assert await ensure(running, part(4)) == last
        async with running.client() as again:
            assert await read_all(again, part(1)) == [b"early"]


async def test_concurrent_requests_get_the_same_partitions(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        found: list[tuple[str, int]] = []

        async def ask(name: str) -> None:
            found.append((name, await ensure(running, name)))

        async with trio.open_nursery() as nursery:
            for index in (3, 0, 7, 3, 7, 1):
                nursery.start_soon(ask, part(index))
        record = running.broker.directory.catalogue.find(BASE)
        assert record is not None
        assert record.partitions == len(set(record.topic_ids)) == 8
        assert all(record.topic_ids[int(name[-1])] == topic_id for name, topic_id in found)


async def test_topics_that_cannot_grow_are_refused(tmp_path: Path) -> None:
    limits = {"max_topics": 6, "max_partitions": 10}
    async with running_broker(tmp_path, limits=limits) as running:
        await ensure(running, "/default/plain")
        await ensure(running, part(1))
        with pytest.raises(AlreadyExistsError, match="has no partitions"):
            await ensure(running, "/default/plain-part-0")
        with pytest.raises(AlreadyExistsError, match="has 2 partitions"):
            await ensure(running, BASE)
        with pytest.raises(InvalidArgumentError, match="max_partitions = 10"):
            await ensure(running, part(10))
        with pytest.raises(LimitExceededError, match="max_topics = 6"):
            await ensure(running, part(9))
        with pytest.raises(NamespaceNotFoundError):
            await ensure(running, "/nowhere/orders-part-0")
        record = running.broker.directory.catalogue.find(BASE)
        assert record is not None
        assert record.partitions == 2


async def test_nothing_is_created_if_that_is_switched_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, auto_create_topics=False) as running, running.client() as client:
        await client.admin.create_topic(BASE, partitions=2)
        await ensure(running, part(1))
        for missing in (part(2), "/default/plain"):
            with pytest.raises(TopicNotFoundError):
                await ensure(running, missing)


@pytest.mark.parametrize("lost", ["nothing", "the machine", "the last step"])
async def test_topics_of_a_bucket_grow_too(tmp_path: Path, lost: str) -> None:
    settings = {"storage": "memory://growing?durable=true"}
    try:
        async with running_broker(tmp_path, patience_s=30, **settings) as running:
            first = await ensure(running, part(0), Durability.REMOTE)
            third = await ensure(running, part(2), Durability.REMOTE)
            async with running.client() as client, client.producer(part(2)) as producer:
                await producer.send(b"kept")
            if lost == "the last step":
                # The catalogue has partitions that the bucket does not know; no client was told of them, either.
                await running.broker.directory.catalogue.creations.enlarge(BASE, 5)
            await running.crash()
            if lost == "the machine":
                lose_machine(tmp_path)
            await running.start()
            assert await ensure(running, part(0)) == first
            assert await ensure(running, part(2)) == third
            record = running.broker.directory.catalogue.find(BASE)
            assert record is not None
            assert record.partitions == 3
            async with running.client() as client:
                assert await read_all(client, part(2)) == [b"kept"]
            await ensure(running, part(3))
    finally:
        SHARED_SPACES.forget("growing")
