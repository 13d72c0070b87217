"""The official client reaches a cluster through one address (proxy mode), and survives the death of an owner."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from brokers import BrokerProcess
from cluster_processes import Cluster
from official_client import Official, official_python
from ports import free_ports

import danube

pytestmark = pytest.mark.timeout(300)


class Balancer:
    """A load balancer: it connects each client to the next broker that answers."""

    def __init__(self, port: int, brokers: list[BrokerProcess]) -> None:
        self.port = port
        self.passed: Counter[int] = Counter()
        self._turns = itertools.cycle(brokers)
        self._brokers = brokers

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_tcp, self._serve, self.port)
            task_status.started()

    async def _serve(self, client: trio.SocketStream) -> None:
        for _ in self._brokers:
            broker = next(self._turns)
            try:
                server = await trio.open_tcp_stream("127.0.0.1", broker.port)
            except OSError:
                continue
            self.passed[broker.port] += 1
            async with server, trio.open_nursery() as nursery:
                for source, target in ((client, server), (server, client)):
                    nursery.start_soon(_pump, source, target, nursery.cancel_scope)
            return


async def _pump(source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        async for data in source:
            await target.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # either end is gone, and so is the connection
    scope.cancel()


@asynccontextmanager
async def proxied(directory: Path) -> AsyncIterator[tuple[Cluster, Balancer]]:
    (port,) = free_ports(1)
    cluster = Cluster(directory)
    for broker in cluster.brokers:
        broker.options = (*broker.options, "--client-url", f"127.0.0.1:{port}")
    with cluster:
        balancer = Balancer(port, cluster.brokers)
        async with trio.open_nursery() as nursery:
            await nursery.start(balancer.run)
            yield cluster, balancer
            nursery.cancel_scope.cancel()


def through(balancer: Balancer, topic: str, directory: Path) -> Official:
    behind: Any = SimpleNamespace(port=balancer.port)
    return Official(behind, topic, directory)


@pytest.mark.extended
async def test_official_clients_reach_a_cluster_through_one_address(tmp_path: Path) -> None:
    official_python()
    with trio.fail_after(150):
        async with proxied(tmp_path) as (cluster, balancer), danube.connect(cluster.url()) as client:
            topics = [f"/default/t{number}" for number in range(3)]
            for topic in topics:
                await client.admin.create_topic(topic)
            await client.admin.create_topic("/default/fast", durability="none")
            await cluster.settle([*topics, "/default/fast"])
            owners = await cluster.owners(client, [*topics, "/default/fast"])
            assert len({owners[topic] for topic in topics}) == 3
            for topic in topics[:2]:
                await _use(through(balancer, topic, tmp_path))
            assert len(balancer.passed) > 1
            topic = next(each for each in topics if owners[each] == owners["/default/fast"])
            await _outlive_owner(cluster.at(owners[topic]), balancer, topic, tmp_path)


async def _use(official: Official) -> None:
    """Each topic has another owner than most of the connections that the load balancer opens."""
    texts = [f"m{number}" for number in range(20)]
    async with (
        official.producing(messages=[{"text": each} for each in texts]) as producer,
        official.consuming() as consumer,
    ):
        await producer.go()
        assert await producer.done() == texts
        await consumer.until(lambda script: len(script.acked) >= len(texts))
        assert consumer.texts == texts
        await consumer.stop()


async def _outlive_owner(owner: BrokerProcess, balancer: Balancer, topic: str, directory: Path) -> None:
    """A topic on a disk waits for its owner, by the retries of the clients; one without durability gets another."""
    kept, fast = through(balancer, topic, directory), through(balancer, "/default/fast", directory / "fast")
    (directory / "fast").mkdir()
    async with (
        kept.producing(endless=True, pause_s=0.002, retries=60) as producer,
        kept.consuming(subscription="live") as consumer,
        fast.producing(endless=True, pause_s=0.005, retries=8, reliable=False) as fast_producer,
        fast.consuming() as fast_consumer,
    ):
        await producer.go()
        await fast_producer.go()
        for each in (producer, fast_producer):
            await each.until(lambda script: len(script.sent) > 30)
        for each in (consumer, fast_consumer):
            await each.until(lambda script: len(script.messages) > 10)
        owner.kill()
        before, received = len(fast_producer.sent), len(fast_consumer.messages)
        await fast_producer.until(lambda script: len(script.sent) > before + 50)
        await fast_consumer.until(lambda script: len(script.messages) > received + 30)
        await fast_producer.stop()
        await fast_consumer.stop()
        await trio.to_thread.run_sync(owner.start)
        before = len(producer.sent)
        await producer.until(lambda script: len(script.sent) > before + 30)
        await producer.stop()
        for each in (producer, fast_producer):
            assert each.with_field("failed") == []
        await consumer.until(lambda script: script.distinct_texts.issuperset(producer.sent))
        await consumer.stop()
    assert list(dict.fromkeys(consumer.texts)) == producer.sent
