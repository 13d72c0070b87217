"""Metadata that were set back to before a topic had moved: nothing of it is removed, whichever broker starts."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, SharedStore, cluster
from broker.directory.test_moves import NAME, moved, order, other, serves, topic_id_of
from broker.directory.test_several_brokers import created

from danube.broker.directory.identity_file import ACCEPT_NAME
from danube.metadata import begin_incarnation
from danube.model import Durability
from danube.model.errors import DanubeError, DataLossError

pytestmark = pytest.mark.virtual

SHARED: dict[str, Any] = {
    "cluster_secret": "file",
    "storage": "memory://shared?durable=true&shared=true",
    "shared_buckets": True,
}


@asynccontextmanager
async def with_metadata(world: ClusterWorld, table: Any, incarnation: int) -> AsyncGenerator[None, None]:
    """Let all brokers go on with other metadata; they are dead before and afterwards."""
    former = world.store
    for machine in world.machines:
        if machine.node.life is not None:
            await machine.kill()
    async with SharedStore(table=copy.deepcopy(table)) as store:
        if incarnation:
            await begin_incarnation(store, incarnation, "a backup was restored")
        world.store = store
        for machine in world.machines:
            machine.node.shared = store
        for machine in world.machines:
            await machine.start()
        yield
        for machine in world.machines:
            await machine.kill()
    world.store = former
    for machine in world.machines:
        machine.node.shared = former


def table_of(world: ClusterWorld) -> Any:
    return copy.deepcopy(world.store._state.table)


async def filled(machine: Machine, first: int, count: int) -> None:
    async with machine.client() as client, client.producer(NAME, name="p") as producer:
        for number in range(first, first + count):
            await producer.send(b"%d" % number)


async def stored(machine: Machine, count: int) -> list[int]:
    async with machine.client() as client, client.reader(NAME, start="earliest") as reader:
        return [int((await reader.receive()).payload) for _ in range(count)]


def refusal(machine: Machine) -> DanubeError:
    """Return the error for a client that wants to publish."""
    with pytest.raises(DanubeError) as caught:
        machine.broker.directory.find(NAME)
    return caught.value


@pytest.mark.parametrize("commits_more", [True, False])
async def test_a_remote_topic_that_has_moved_away_is_refused_and_not_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, commits_more: bool
) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        source = await created(world, NAME, durability=Durability.REMOTE)
        target = other(world, source)
        await filled(source, 0, 5)
        table = table_of(world)
        await moved(source, target)
        await wait_until(lambda: not source.broker.directory.levels.bucket.by_id)
        await filled(target, 5, 5)
        newest = table_of(world)
        async with with_metadata(world, table, 7):
            await trio.sleep(1)
            for machine in world.machines:
                assert machine.broker.directory.catalogue.find(NAME) is not None
                assert not serves(machine)
            error = refusal(source)
            assert isinstance(error, DataLossError)
            assert "moved" in error.message
            assert "metadata" in error.message
            assert "it has moved away from this broker, and the metadata, which are older" in caplog.text
            if commits_more:  # so that there are new snapshots of both wals
                for machine in world.machines:
                    await machine.kill()
                    await machine.start()
                await trio.sleep(1)
        for machine in world.machines:  # their journals belong to the older metadata by now
            await machine.node.disk.create(ACCEPT_NAME, 0)
        async with with_metadata(world, newest, 8):
            await wait_until(lambda: serves(target))
            assert await stored(source, 10) == list(range(10))
            await filled(source, 10, 5)
            assert await stored(source, 15) == list(range(15))


async def test_a_refused_remote_topic_can_be_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        source = await created(world, NAME, durability=Durability.REMOTE)
        target = other(world, source)
        await filled(source, 0, 5)
        table = table_of(world)
        await moved(source, target)
        await wait_until(lambda: not source.broker.directory.levels.bucket.by_id)
        async with with_metadata(world, table, 7):
            await trio.sleep(1)
            async with source.client() as client:
                await client.admin.delete_topic(NAME)
            await wait_until(lambda: not target.broker.directory.levels.bucket.by_id)
            await trio.sleep(1)
            for machine in world.machines:
                await machine.kill()
                await machine.start()
            await trio.sleep(1)
            for machine in world.machines:
                assert machine.broker.directory.catalogue.find(NAME) is None
                bucket = machine.broker.directory.levels.bucket
                assert not bucket.kept
                assert not any(bucket.left.values())
            async with source.client() as client:  # the name is free
                await client.admin.create_topic(NAME, durability="remote")


async def test_a_wal_forgets_topics_that_were_deleted_or_came_back(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, **SHARED) as world:
        source = await created(world, NAME, durability=Durability.REMOTE)
        target = other(world, source)
        left = {each.name: each.broker.directory.levels.bucket.left for each in world.machines}
        await moved(source, target)
        await wait_until(lambda: any(left[source.name].values()))
        await moved(target, source)
        await wait_until(lambda: any(left[target.name].values()))
        assert not any(left[source.name].values())
        await source.kill()
        await source.start()
        await target.kill()
        await target.start()
        left = {each.name: each.broker.directory.levels.bucket.left for each in world.machines}
        await wait_until(lambda: serves(source) and any(left[target.name].values()))
        assert not any(left[source.name].values())
        async with source.client() as client:
            await client.admin.delete_topic(NAME)
        await wait_until(lambda: not any(left[target.name].values()))


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("confirms", [True, False])
async def test_a_disk_topic_stays_in_the_journal_of_the_broker_that_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, starts: int, confirms: bool
) -> None:
    """The target had a pending copy, or a confirmed one: it is the only one, and the metadata say it is none."""
    async with cluster(tmp_path, 2, **SHARED) as world:
        source = await created(world, NAME, durability=Durability.DISK)
        target = other(world, source)
        topic_id = topic_id_of(source)
        await filled(source, 0, 5)
        table = table_of(world)
        if not confirms:  # a crash comes before the snapshot that says that the move was confirmed
            target.broker.directory.runtime.journal.save = nothing_is_saved  # type: ignore[method-assign]
        await moved(source, target)
        await wait_until(lambda: source.broker.directory.runtime.journal.is_buried(topic_id))
        await filled(target, 5, 5)
        newest = table_of(world)
        async with with_metadata(world, table, 7):
            for _ in range(starts - 1):
                for machine in world.machines:
                    await machine.kill()
                    await machine.start()
            await trio.sleep(1)
            assert topic_id in target.broker.directory.runtime.journal.topic_ids()
            assert not serves(target)
            # A move would void what the target has: it refuses the copy.
            assert serves(source)
            await order(source, target)
            await wait_until(lambda: "has messages of the topic from an earlier move" in caplog.text)
            await wait_until(lambda: not source.broker.directory.membership.moves.values)
            assert not serves(target)
            assert topic_id in target.broker.directory.runtime.journal.topic_ids()
        for machine in world.machines:
            await machine.node.disk.create(ACCEPT_NAME, 0)
        async with with_metadata(world, newest, 8):
            await wait_until(lambda: serves(target))
            assert await stored(source, 10) == list(range(10))


async def nothing_is_saved(states: object) -> None:
    pass
