"""The quota of connections of a namespace: which streams count, what one more is told, and when a place is free."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from broker.broker_harness import raw_consumer, raw_producer, running_broker, wait_until

import danube
from danube.model import stage_api
from danube.model.errors import LimitExceededError
from danube.wire.client import Channel

pytestmark = pytest.mark.virtual

FULL = r"'shop' is used by \d connections at this broker, and its quota max_connections is \d: .*max_connections=N"


async def shop(client: danube.Client, connections: int) -> None:
    """Make a namespace with two topics and a quota of connections."""
    await client.admin.create_namespace("shop")
    await client.admin.create_topic("/shop/a")
    await client.admin.create_topic("/shop/b")
    report = await client.admin.change_quota("shop", max_connections=connections)
    assert (report.quota.max_connections, report.connections) == (connections, 0)


async def wait_for(client: danube.Client, connections: int) -> None:
    """Wait until so many connections use the namespace, as its quota shows."""

    async def reached() -> bool:
        return (await client.admin.quota("shop")).connections == connections

    await wait_until(reached)


async def refused(channel: Channel) -> None:
    """Check that a connection cannot open any stream in the namespace."""
    with pytest.raises(LimitExceededError, match=FULL):
        async with raw_producer(channel, "/shop/b", name="late"):
            pass
    for reader in (False, True):
        with pytest.raises(LimitExceededError, match=FULL):
            async with raw_consumer(channel, "/shop/b", "late", reader=reader):
                pass
    async with channel.open_stream(stage_api.StageMethod.STAGE) as stream:
        stream.send_nowait(stream.encode(stage_api.StageOpen("/shop/b", "late", 1)))
        with pytest.raises(LimitExceededError, match=FULL):
            await stream.receive()


async def test_any_stream_of_a_new_connection_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as admin:
        await shop(admin, 1)
        async with running.channel() as first, running.channel() as second:
            async with raw_producer(first, "/shop/a"):
                async with raw_consumer(first, "/shop/a"), raw_consumer(first, "/shop/b", reader=True, subscription=""):
                    await wait_for(admin, 1)
                    await refused(second)
                topic = running.topic("/shop/b")
                assert not topic.subscriptions, "a refused consumer has changed nothing"
                assert not [each for each in topic.producers.ids() if topic.producers.name_of(each) == "late"]
                await refused(second)  # one stream of the first one is left
                async with raw_producer(second, "/default/free"):
                    pass  # another namespace
            await wait_for(admin, 0)
            async with raw_consumer(second, "/shop/a"):
                await refused(first)


async def test_a_staged_write_takes_a_place(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as admin:
        await shop(admin, 1)
        async with running.channel() as first, running.channel() as second:
            async with first.open_stream(stage_api.StageMethod.STAGE) as stream:
                stream.send_nowait(stream.encode(stage_api.StageOpen("/shop/a", "job", 1)))
                assert await stream.receive() is not None
                await refused(second)
            await wait_for(admin, 0)


async def test_a_changed_quota_counts_at_once_and_closes_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as admin, AsyncExitStack() as streams:
        await shop(admin, 3)
        channels = [await streams.enter_async_context(running.channel()) for _ in range(4)]
        producers = [
            await streams.enter_async_context(raw_producer(each, "/shop/a", f"p{number}"))
            for number, each in enumerate(channels[:3])
        ]
        await refused(channels[3])
        report = await admin.admin.change_quota("shop", max_connections=1)
        assert report.connections == 3
        for producer in producers:
            producer.send(0, b"goes on")
            assert len(await producer.acked()) == 1
        async with raw_consumer(channels[0], "/shop/b"):
            pass  # it has a place
        await refused(channels[3])
        await admin.admin.change_quota("shop", max_connections=4)
        async with raw_consumer(channels[3], "/shop/b"):
            await wait_for(admin, 4)
        await admin.admin.change_quota("shop", max_connections=0)
        await refused(channels[3])
        await admin.admin.change_quota("shop", max_connections=None)
        async with raw_consumer(channels[3], "/shop/b"):
            pass


async def test_a_connection_that_is_cut_frees_its_place(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as admin, trio.open_nursery() as nursery:
        await shop(admin, 1)

        async def use(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                async with running.channel() as first, raw_producer(first, "/shop/a"), raw_consumer(first, "/shop/a"):
                    task_status.started(scope)
                    await trio.sleep_forever()

        scope = await nursery.start(use)
        async with running.channel() as second:
            await refused(second)
            scope.cancel()
            await wait_for(admin, 0)
            async with raw_producer(second, "/shop/a"):
                await wait_for(admin, 1)


async def test_a_client_is_told_at_once_and_gets_a_place_that_is_free(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as admin:
        await shop(admin, 1)
        async with running.client() as late:
            async with running.client() as first, first.producer("/shop/a") as producer:
                await producer.send(b"message")
                with pytest.raises(LimitExceededError, match=FULL):
                    async with late.consumer("/shop/a", subscription="s", start="earliest"):
                        pass
            await wait_for(admin, 0)
            async with late.consumer("/shop/a", subscription="s", start="earliest") as consumer:
                assert (await consumer.receive()).payload == b"message"
