"""Producers whose last batches are damaged in the journal, and sealed: the history has their number of messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, raw_producer, read_all, running_broker

import danube
from danube.log import StoredBatch
from danube.model.errors import DataLossError, StorageUnavailableError

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"


async def publish(running: RunningBroker, name: str, *payloads: bytes) -> int:
    """Open a producer, send messages in batches of one, and return how many it was told to have stored before."""
    async with running.channel() as channel, raw_producer(channel, TOPIC, name) as producer:
        stored = producer.opened.next_sequence
        for number, payload in enumerate(payloads):
            producer.send(stored + number, payload)
        await producer.acked(len(payloads))
        return stored


def damage(running: RunningBroker, payload: bytes) -> None:
    """Flip a bit of a message in the journal."""
    assert running.machine is not None
    disk = running.machine.node.disk
    (found,) = [(name, at) for name in disk.names() if (at := disk.content(name).find(payload)) >= 0]
    disk.flip(*found)


async def lose_last_batch(running: RunningBroker, client: danube.Client) -> None:
    """Damage the last batch of producer ann in the journal, behind which other batches follow."""
    await client.admin.create_topic(TOPIC)
    assert await publish(running, "ann", b"ann-0", b"ann-1", b"ann-2-to-be-damaged") == 0
    await publish(running, "bob", b"bob-0")
    await running.broker.directory.history.sealer.seal_now([running.topic(TOPIC)])
    await publish(running, "carl", b"carl-0")
    await running.crash()
    damage(running, b"ann-2-to-be-damaged")
    await running.start()
    assert running.topic(TOPIC).failure is None


async def test_a_producer_is_told_of_its_last_batch(tmp_path: Path) -> None:
    """It was told of one message too few, and would have stored that one twice."""
    async with running_broker(tmp_path) as running, running.client() as client:
        await lose_last_batch(running, client)
        assert await publish(running, "ann", b"ann-3") == 3
        assert await publish(running, "bob") == 1
        wanted = [b"ann-0", b"ann-1", b"ann-2-to-be-damaged", b"bob-0", b"carl-0", b"ann-3"]
        assert await read_all(client, TOPIC) == wanted


async def test_a_restart_keeps_producers_that_were_not_read(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await lose_last_batch(running, client)
        for _ in range(2):
            await running.restart()
        assert running.topic(TOPIC).producers.unread is not None
        assert await publish(running, "ann", b"ann-3") == 3
        await running.restart()
        assert await publish(running, "ann") == 4


async def test_a_session_goes_on_behind_its_last_batch(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await lose_last_batch(running, client)
        async with running.channel() as channel, raw_producer(channel, TOPIC, "ann", epoch=1) as producer:
            assert producer.opened.next_sequence == 3
            producer.send(2, b"ann-2-to-be-damaged")  # a repeat
            producer.send(3, b"ann-3")
            assert [offset for _, offset, _ in await producer.acked(2)] == [2, 5]


async def test_producers_wait_for_a_history_that_is_away(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"storage_operation_timeout_s": 0.1}) as running:
        async with running.client() as client:
            await lose_last_batch(running, client)
        backend: Any = running.broker.directory.history.storages["default"]._backend
        real_get = backend.get

        async def refuse(*_args: Any, **_keywords: Any) -> bytes:
            raise StorageUnavailableError("the host does not answer")

        backend.get = refuse
        with pytest.raises(StorageUnavailableError, match="the host does not answer"):
            await publish(running, "ann")
        backend.get = real_get
        assert await publish(running, "ann") == 3


async def test_a_batch_of_which_nothing_is_left_in_the_journal(tmp_path: Path) -> None:
    """Recovery did not see the topic at all, and its producer was told that it had stored nothing."""
    async with running_broker(tmp_path) as running, running.client() as client:
        for topic in (TOPIC, "/default/other"):
            await client.admin.create_topic(topic)
        await publish(running, "ann", b"ann-0-to-be-overwritten")
        await running.broker.directory.history.sealer.seal_now([running.topic(TOPIC)])
        async with client.producer("/default/other") as producer:
            await producer.send(b"behind the damage")
        await running.crash()
        assert running.machine is not None
        disk = running.machine.node.disk
        (name,) = [name for name in disk.names() if b"ann-0-to-be" in disk.content(name)]
        place = disk.content(name).index(b"ann-0-to-be")
        for at in range(place - 150, place + 20):  # with the headers of the batch, the entry and its block
            disk.flip(name, at, 0xFF)
        await running.start()
        assert await publish(running, "ann", b"ann-1") == 1
        assert await read_all(client, TOPIC) == [b"ann-0-to-be-overwritten", b"ann-1"]


async def test_a_read_that_is_cancelled_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await lose_last_batch(running, client)
        topic = running.topic(TOPIC)
        read, done = topic.log.read, 0

        async def read_one(offset: int, max_bytes: int) -> list[StoredBatch]:
            nonlocal done
            done += 1
            if done == 2:
                await trio.sleep_forever()
            return (await read(offset, max_bytes))[:1]

        topic.log.read = read_one  # type: ignore[method-assign]
        left = topic.producers.unread
        with trio.move_on_after(1):
            await publish(running, "ann")
        assert topic.producers.unread not in (left, None)
        assert await publish(running, "ann") == 3


async def test_damage_to_journal_and_history_is_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await lose_last_batch(running, client)

        async def lost(offset: int, max_bytes: int) -> list[StoredBatch]:
            raise DataLossError("no such object")

        running.topic(TOPIC).log.read = lost  # type: ignore[method-assign]
        with pytest.raises(DataLossError, match=r"stored at offsets \[0, 3\) is not known.*no such object; restore"):
            await publish(running, "ann")
