"""Three real brokers are drained, restarted and activated, one by one, while clients publish and consume."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from cluster_processes import PATIENCE_S, Cluster, Load, report

import danube
from danube.client import Client

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]

_TOPICS = [f"/default/t{number}" for number in range(6)]
_UNDISTURBED_S = 3.0


async def name_of(client: Client, address: str) -> str:
    rows = (await client.admin.cluster_status(gather=False)).brokers
    return next(row.name for row in rows if row.address == address)


async def empty(cluster: Cluster, client: Client, address: str) -> None:
    """Wait until a broker has no topics any more."""
    with trio.fail_after(PATIENCE_S):
        while address in (await cluster.owners(client, _TOPICS)).values():  # noqa: ASYNC110 - processes
            await trio.sleep(0.05)


async def restart(cluster: Cluster, client: Client, broker: BrokerProcess) -> None:
    address = cluster.address(broker)
    name = await name_of(client, address)
    await client.admin.drain_broker(name)
    await empty(cluster, client, address)
    await trio.to_thread.run_sync(broker.terminate)
    await trio.to_thread.run_sync(broker.start)
    await client.admin.activate_broker(name)
    await cluster.settle([])


async def test_no_client_notices_a_rolling_restart(tmp_path: Path) -> None:
    """A topic that was without an owner for ten seconds would end its producer and its consumer with an error."""
    with Cluster(tmp_path) as cluster, trio.fail_after(200):
        async with (
            danube.connect(cluster.url()) as operator,
            danube.connect(cluster.url(), reconnect_timeout_s=10.0) as client,
        ):
            load = Load(client, _TOPICS, random.Random(5))
            await load.create()
            await cluster.settle(_TOPICS)
            async with load.running():
                await trio.sleep(_UNDISTURBED_S)
                before, began = stored(load), time.monotonic()
                for broker in cluster.brokers:
                    await restart(cluster, operator, broker)
                rate = (stored(load) - before) / (time.monotonic() - began)
            await load.check()
            share = rate / (before / _UNDISTURBED_S)
            report(f"{rate:.0f} messages/s during the restarts, {share:.0%} of undisturbed; {load.repeated} repeated")


def stored(load: Load) -> int:
    """Return how many messages were acknowledged so far."""
    return sum(len(ledger.acknowledged) for ledger in load.ledgers.values())
