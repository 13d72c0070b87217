"""Three brokers as processes form a cluster: one set of metadata, kept by all of them, whichever dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess

import danube
from danube.model.errors import DanubeError


@contextmanager
def three(directory: Path) -> Iterator[list[BrokerProcess]]:
    brokers = [BrokerProcess(directory / f"b{number}", stderr=directory / f"b{number}.log") for number in range(3)]
    listed = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
    with ExitStack() as stack:
        for broker in brokers:
            broker.options = ("--peers", listed)
            broker.launch()
            stack.push(broker.__exit__)
        for broker in brokers:
            assert broker.wait_ready()
        yield brokers


async def namespaces(broker: BrokerProcess) -> set[str]:
    async with danube.connect(broker.url) as client:
        return set(await client.admin.list_namespaces())


async def whole(broker: BrokerProcess, *, brokers: int, voters: int) -> None:
    """Wait until a broker hears all of them, and all of them vote."""
    async with danube.connect(broker.url) as client:
        with trio.fail_after(20):
            while True:
                status = await client.admin.cluster_status()
                roles = [member.role for member in status.metadata.members]
                active = [row for row in status.brokers if row.state == "active"]
                if len(active) == brokers and roles.count("voter") + roles.count("leader") == voters:
                    return
                await trio.sleep(0.2)


async def leading(broker: BrokerProcess) -> int:
    async with danube.connect(broker.url) as client:
        return (await client.admin.cluster_status()).metadata.leader


async def create(broker: BrokerProcess, name: str, within_s: float) -> None:
    """Create a namespace; a broker that misses the leader refuses for a moment."""
    deadline = time.monotonic() + within_s
    async with danube.connect(broker.url) as client:
        while True:
            try:
                await client.admin.create_namespace(name)
                return
            except DanubeError:
                assert time.monotonic() < deadline
                await trio.sleep(0.1)


@pytest.mark.slow
async def test_three_processes_share_their_metadata_and_outlive_their_leader(tmp_path: Path) -> None:
    with three(tmp_path) as brokers:
        await create(brokers[0], "one", 10)
        for broker in brokers:
            assert "one" in await namespaces(broker)
            await whole(broker, brokers=3, voters=3)
        leader = brokers[await leading(brokers[0]) - 1]
        leader.kill()
        others = [broker for broker in brokers if broker is not leader]
        await create(others[0], "two", 15)
        assert "two" in await namespaces(others[1])
        leader.start()
        assert "two" in await namespaces(leader)
        for broker in brokers:
            broker.kill()
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            assert broker.wait_ready()
            assert {"one", "two"} <= await namespaces(broker)


@pytest.mark.slow
async def test_brokers_join_one_that_was_alone_and_outlive_it(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "b1", stderr=tmp_path / "b1.log")
    with ExitStack() as stack:
        stack.enter_context(first)
        await create(first, "one", 10)
        others = []
        for number in (2, 3):
            joining = BrokerProcess(tmp_path / f"b{number}", "--join", f"127.0.0.1:{first.port}")
            others.append(stack.enter_context(joining))
        await whole(others[1], brokers=3, voters=3)
        first.kill()
        await create(others[0], "two", 15)
        assert {"one", "two"} <= await namespaces(others[1])
        first.start()
        assert "two" in await namespaces(first)
