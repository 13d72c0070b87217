"""What a client waits for, in a sentence; and how long a call may take with all its attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from fake_cluster import FakeCluster, cluster_client, memory_cluster

import danube
from danube.cli._client import run_with_client
from danube.client import Client
from danube.model.errors import ConnectionLostError, DeadlineExceededError, OwnerAwayError

Clock = trio.testing.MockClock
TOPIC = "/default/orders"
AWAY = "topic '/default/orders' waits for broker b9, whose disk holds offsets from 0 on"


async def describe(client: Client) -> None:
    await client.admin.describe_topic(TOPIC)


async def produce(client: Client) -> None:
    async with client.producer(TOPIC):
        pass


async def read(client: Client) -> None:
    async with client.reader(TOPIC) as reader:
        await reader.receive()


async def refused(work: Callable[[Client], Awaitable[None]], client: Client) -> None:
    with pytest.raises(OwnerAwayError):
        await work(client)


def away() -> FakeCluster:
    cluster = FakeCluster(2)
    cluster.topics[TOPIC] = cluster.brokers["b1"].topic(TOPIC)
    cluster.owner[TOPIC] = "", 1
    return cluster


async def silent(*_: Any) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("work", [describe, produce, read])
async def test_the_owner_for_which_it_waits_is_named(
    work: Callable[[Client], Awaitable[None]], autojump_clock: Clock
) -> None:
    async with cluster_client(away(), request_timeout_s=20.0) as client:
        assert client.waiting is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, work, client)
            await trio.sleep(0.9)
            assert client.waiting is None
            for _ in range(4):
                await trio.sleep(0.5)
                assert client.waiting == AWAY
        assert client.waiting is None


async def test_a_broker_that_does_not_answer_is_named(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(1)
    monkeypatch.setattr(cluster.brokers["b1"], "info", silent)
    async with cluster_client(cluster) as client:
        with trio.move_on_after(5) as some_time:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.admin.info)
                await trio.sleep(2)
                assert client.waiting == "no answer yet from b1:6650"
        assert some_time.cancelled_caught
        assert client.waiting is None


async def test_a_lost_connection_is_named_also_while_no_call_waits(autojump_clock: Clock) -> None:
    cluster = FakeCluster(1)
    async with cluster_client(cluster, reconnect_timeout_s=None) as client:
        await cluster.stop("b1")
        await trio.sleep(3)
        assert "b1 refuses" in str(client.waiting)
        cluster.away.clear()
        await trio.sleep(6)
        assert client.waiting is None


async def test_a_stream_that_is_lost_waits_again(autojump_clock: Clock) -> None:
    cluster = away()
    cluster.owner[TOPIC] = "b1", 1
    async with cluster_client(cluster) as client, client.producer(TOPIC) as producer:
        await producer.send(b"x")
        await trio.sleep(5)
        assert client.waiting is None
        cluster.move(TOPIC, "")
        await trio.sleep(3)
        assert client.waiting == AWAY
        cluster.owner[TOPIC] = "b2", 3
        await producer.send(b"y")
        assert client.waiting is None


async def test_a_call_ends_after_its_time_also_while_there_is_no_connection(autojump_clock: Clock) -> None:
    cluster = FakeCluster(1)
    async with cluster_client(cluster, request_timeout_s=5.0, reconnect_timeout_s=None) as client:
        await cluster.stop("b1")
        await trio.sleep(0.1)
        for call in (client.admin.info(), client.admin.delete_topic(TOPIC), client.storages.status()):
            began = trio.current_time()
            with pytest.raises((DeadlineExceededError, ConnectionLostError)):
                await call
            assert trio.current_time() - began == pytest.approx(5.0, abs=0.2)


async def test_the_time_of_a_call_is_that_of_all_attempts(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt gets what the first one has left."""
    cluster = away()
    cluster.owner[TOPIC] = "b1", 1
    refused: list[float] = []

    async def lookup(*_: Any) -> Any:
        if not refused:
            await trio.sleep(4)
            refused.append(trio.current_time())
            raise OwnerAwayError("not now")
        await trio.sleep_forever()

    monkeypatch.setattr(cluster.brokers["b1"], "lookup", lookup)
    async with cluster_client(cluster, request_timeout_s=5.0) as client:
        began = trio.current_time()
        with pytest.raises(DeadlineExceededError):
            await client.admin.lookup_topic(TOPIC)
        assert len(refused) == 1
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.1)


def test_a_command_says_for_what_it_waits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run, connect, cluster = trio.run, danube.connect, away()

    @asynccontextmanager
    async def connect_in_memory(url: str, **options: Any) -> AsyncIterator[Client]:
        async with memory_cluster(cluster) as environment, connect(url, environment=environment, **options) as client:
            yield client

    monkeypatch.setattr(danube, "connect", connect_in_memory, raising=False)
    monkeypatch.setattr(trio, "run", lambda main: run(main, clock=Clock(autojump_threshold=0)))
    with pytest.raises(OwnerAwayError, match="waits for broker b9"):
        run_with_client(describe, "danube://b1", None)
    assert capsys.readouterr().err == f"waiting: {AWAY}; Ctrl-C ends it\n"
