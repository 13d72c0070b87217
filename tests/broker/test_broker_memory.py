"""Memory of a broker: idle, with many topics, many connections, and a backlog."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import trio
from brokers import BrokerProcess

import danube
from danube.model import api
from danube.model.limits import MIB
from danube.wire import connect_channel

SMALL_FILES = ("--journal-file-size", "16MiB", "--log-level", "warning")


def rss_mb(broker: BrokerProcess) -> float:
    return float(psutil.Process(broker.pid).memory_info().rss) / MIB


def own_mb(broker: BrokerProcess) -> float:
    """What no other process shares: pages of files, like the interpreter and its libraries, are in memory once."""
    return float(psutil.Process(broker.pid).memory_full_info().uss) / MIB


async def test_an_idle_broker_and_a_thousand_idle_connections(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SMALL_FILES) as broker, trio.fail_after(60):
        idle, own = rss_mb(broker), own_mb(broker)
        async with AsyncExitStack() as stack:
            for _ in range(1_000):
                channel = await stack.enter_async_context(connect_channel("127.0.0.1", broker.port))
            info = await channel.unary(api.Method.INFO, api.Empty(), api.BrokerInfo)
            assert info.connections == 1_000
            loaded = rss_mb(broker)
        print(f"idle {idle:.1f} MB, {own:.1f} its own; with 1,000 connections {loaded:.1f} MB")  # noqa: T201 - -rP
        # 54 and 39 to 42 MB were measured; how many pages of files the first one counts is for the kernel to decide.
        assert own <= 46
        assert idle <= 60
        assert loaded <= 120


async def test_a_thousand_topics_with_a_hundred_messages(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SMALL_FILES) as broker, trio.fail_after(60):
        async with danube.connect(broker.url) as client:

            async def publish(first: int) -> None:
                for number in range(first, 1_000, 10):
                    async with client.producer(f"/default/t{number}") as producer:
                        await producer.send_many([bytes(100)] * 100)

            async with trio.open_nursery() as nursery:
                for first in range(10):
                    nursery.start_soon(publish, first)
            assert (await client.admin.info()).topics == 1_000
            loaded = rss_mb(broker)
            broker.kill()
            broker.start()
            recovered = rss_mb(broker)
            assert (await client.admin.info()).topics == 1_000
            assert (await client.admin.describe_topic("/default/t999")).end_offset == 100
        print(f"1,000 topics: {loaded:.1f} MB, after recovery {recovered:.1f} MB")  # noqa: T201
        assert loaded <= 120
        assert recovered <= 120


async def test_a_backlog_adds_no_more_than_the_cache(tmp_path: Path) -> None:
    cache_mb = 16
    (tmp_path / "danube.toml").write_text(f"[limits]\ncache_bytes = {cache_mb * MIB}\n")
    options = (*SMALL_FILES, "--config", str(tmp_path / "danube.toml"))
    with BrokerProcess(tmp_path / "data", *options) as broker, trio.fail_after(60):
        async with danube.connect(broker.url) as client, client.producer("/default/t") as producer:

            async def publish(megabytes: int) -> float:
                for _ in range(megabytes * 2):
                    await producer.send_many([bytes(1_000)] * 500)
                return rss_mb(broker)

            first = await publish(4 * cache_mb)
            second = await publish(16 * cache_mb)
        broker.kill()
        broker.start()
        recovered = rss_mb(broker)
        print(f"backlog of 64 MB: {first:.1f} MB; of 320 MB: {second:.1f} MB; recovered {recovered:.1f}")  # noqa: T201
        sealing_mb = 2 * 18  # two segments on their way to the storage
        assert first <= 55 + cache_mb + 48 + sealing_mb  # the cache, and what is in flight
        assert second <= 55 + cache_mb + 48 + sealing_mb
        assert recovered <= 110
