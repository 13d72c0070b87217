"""Pulled cables and packets lost one way, between brokers on machines of their own."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from cluster_processes import SERVED_WITHIN_S, Cluster, Load, patient, report
from network_namespaces import Machines, require_network_namespaces

TOPICS = [f"/default/t{number}" for number in range(6)]
CUT_S = 6.0
WRITABLE_WITHIN_S = 5.0


@asynccontextmanager
async def spread(directory: Path) -> AsyncIterator[tuple[Machines, Cluster, Load]]:
    """Three machines with a broker each and a load on them, which is checked at the end."""
    require_network_namespaces()
    secret = directory / "secret"
    secret.write_text("a secret of the brokers in this test, long enough\n")
    secret.chmod(0o600)
    with Machines() as machines, trio.fail_after(200):
        brokers = [
            BrokerProcess(
                directory / f"b{index}",
                prefix=machines.prefix(index),
                stderr=directory / f"b{index}.log",
                host=machines.addresses[index],
            )
            for index in range(3)
        ]
        listed = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        for broker in brokers:
            broker.options = ("--peers", listed, "--cluster-secret", str(secret), "--insecure")
        with Cluster(directory, brokers) as cluster:
            await cluster.settle([])
            async with patient(cluster.url()) as client:
                load = Load(client, TOPICS, random.Random(17))
                await load.create(durability="disk")
                await cluster.settle(TOPICS)
                async with load.running():
                    await trio.sleep(0.3)
                    yield machines, cluster, load
                    served = await cluster.settle(TOPICS)
                messages = await load.check()
    report(f"settled in {served:.2f} s, {messages} messages")
    assert served < SERVED_WITHIN_S


@pytest.mark.parametrize(
    "leader",
    [
        pytest.param(True, id="leader", marks=pytest.mark.extended),
        pytest.param(False, id="another", marks=pytest.mark.long),
    ],
)
async def test_a_pulled_cable_stops_no_other_broker_and_loses_nothing(tmp_path: Path, *, leader: bool) -> None:
    async with spread(tmp_path) as (machines, cluster, load):
        leading = await cluster.leader()
        victim = leading if leader else cluster.others(leading)[0]
        others = cluster.others(victim)
        async with patient(cluster.url(others)) as near:
            owners = await cluster.owners(near, TOPICS)
        mine = {topic for topic, owner in owners.items() if owner == cluster.address(victim)}
        assert mine
        pulled = cluster.brokers.index(victim)
        machines.pull(pulled)
        since = time.monotonic()
        writable = await cluster.metadata_write("while-pulled", others)
        elsewhere = await load.gap(since, lambda topic: topic not in mine)
        await trio.sleep(max(0.0, since + CUT_S - time.monotonic()))
        machines.plug(pulled)
        plugged = time.monotonic()
        back = await load.gap(plugged, mine.__contains__)
        report(
            f"cable of the {'leader' if leader else 'other'} pulled: metadata write {writable:.2f} s,"
            f" publish at other owners {elsewhere:.2f} s; plugged in: publish to its topics {back:.2f} s"
        )
        assert writable < WRITABLE_WITHIN_S


@pytest.mark.parametrize(
    "toward",
    [
        pytest.param(True, id="from-the-leader", marks=pytest.mark.extended),
        pytest.param(False, id="to-the-leader", marks=pytest.mark.long),
    ],
)
async def test_packets_lost_one_way_stop_no_broker_and_lose_nothing(tmp_path: Path, *, toward: bool) -> None:
    """What one follower hears, or says, is lost between it and the leader; the third broker reaches both.

    Clients reach all brokers. The follower cannot change metadata meanwhile, the two others can; it sends clients to
    them.
    """
    async with spread(tmp_path) as (machines, cluster, load):
        leading = await cluster.leader()
        follower = cluster.others(leading)[0]
        others = cluster.others(follower)
        ends = cluster.brokers.index(leading), cluster.brokers.index(follower)
        sender, receiver = ends if toward else ends[::-1]
        machines.mute(sender, receiver)
        since = time.monotonic()
        early = await cluster.metadata_write("one-way", others)
        await trio.sleep(max(0.0, since + CUT_S - time.monotonic()))
        late = await cluster.metadata_write("one-way-later", others)
        sent_on = await cluster.metadata_write("one-way-sent-on", [follower, *others])
        asked = time.monotonic()
        published = [await load.gap(asked, topic.__eq__) for topic in TOPICS]
        machines.unmute(sender, receiver)
        unmuted = time.monotonic()
        await cluster.metadata_write("both-ways", [follower])
        report(
            f"lost {'from' if toward else 'to'} the leader: metadata write elsewhere {early:.2f} s, later {late:.2f} s,"
            f" asked at the follower {sent_on:.2f} s, publish to all topics {max(published):.2f} s; writable at the"
            f" follower again {time.monotonic() - unmuted:.2f} s after"
        )
        assert early < WRITABLE_WITHIN_S
        assert late < WRITABLE_WITHIN_S
        assert sent_on < WRITABLE_WITHIN_S
