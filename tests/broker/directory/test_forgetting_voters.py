"""A broker that will not return had a vote on the metadata; real Raft members in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, cluster

from danube.client import Client
from danube.cluster.records import BrokerState
from danube.model.cluster_api import MetadataStatus
from danube.model.errors import FailedPreconditionError, UnavailableError
from danube.raft import NodeId

pytestmark = pytest.mark.virtual

KEPT: dict[str, Any] = {
    "cluster_secret": "file",
    "shared_buckets": True,
    "shared_storages": True,
    "keeps_metadata": True,
}


async def metadata(client: Client) -> MetadataStatus:
    return (await client.admin.cluster_status()).metadata


def roles(found: MetadataStatus) -> dict[str, str]:
    return {f"b{each.broker}": each.role for each in found.members}


async def without(world: ClusterWorld, name: str) -> None:
    """Wait until nobody that runs sees a session of a broker."""
    for machine in world.machines:
        if machine.node.life is not None:
            sessions = machine.broker.directory.membership.sessions
            await wait_until(lambda sessions=sessions: name not in sessions.values)  # type: ignore[misc]


def voters(world: ClusterWorld, at: int) -> tuple[set[NodeId], set[NodeId]]:
    raft = world.machines[at].node.raft
    assert raft is not None
    assert raft.store is not None
    conf = raft.store.node.raft.conf
    return set(conf.voters), set(conf.members)


@pytest.mark.parametrize("count", [3, 4])
async def test_a_forgotten_broker_loses_its_vote(tmp_path: Path, count: int) -> None:
    async with cluster(tmp_path, count, **KEPT) as world, world.machines[0].client() as client:
        await client.admin.create_topic("/default/t")
        leader = next(each.broker for each in (await metadata(client)).members if each.role == "leader")
        victim = next(number for number in (2, 3) if number != leader)
        machine, name = world.machines[victim - 1], f"b{victim}"
        assert roles(await metadata(client))[name] == "voter"
        member = NodeId(next(each.member for each in (await metadata(client)).members if each.broker == victim))
        with pytest.raises(FailedPreconditionError, match="it runs, or has ended so recently"):
            await client.admin.forget_broker(name, accept_loss=True)
        await machine.kill()
        await without(world, name)

        told = await client.admin.forget_broker(name, accept_loss=True)
        assert (told.accepted, told.member_problem) == (True, "")
        expected = 1 if count == 3 else 3  # an odd number, of those that remain
        await wait_until(lambda: len(voters(world, 0)[0]) == expected)
        await wait_until(lambda: member not in voters(world, 0)[1])
        found = await client.admin.cluster_status()
        assert name not in roles(found.metadata)
        assert len(found.metadata.members) == count - 1
        assert not any("not heard" in each for each in found.warnings)
        assert (await client.admin.forget_broker(name, accept_loss=True)).member_problem == ""
        async with client.producer("/default/t") as producer:
            await producer.send(b"a")


async def test_without_a_majority_the_error_says_what_to_do(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, **KEPT) as world, world.machines[0].client() as client:
        for machine in world.machines[1:]:
            await machine.kill()
        with pytest.raises(UnavailableError) as raised:
            await client.admin.forget_broker("b3", accept_loss=True)
        assert "broker b3 cannot be forgotten now: the metadata have no leader" in str(raised.value)
        assert "too few of their 3 voters run. Start brokers that vote" in str(raised.value)
        assert "danube cluster recover --help" in str(raised.value)
        await world.machines[1].start()
        await without(world, "b3")
        assert (await client.admin.forget_broker("b3", accept_loss=True)).member_problem == ""
        brokers = world.machines[0].broker.directory.membership.brokers
        assert brokers.values["b3"].state is BrokerState.GONE
        await wait_until(lambda: len(voters(world, 0)[0]) == 1)


@pytest.mark.parametrize("failures", [1, 3])
async def test_a_vote_that_cannot_be_taken_away_now_is_told(tmp_path: Path, failures: int) -> None:
    async with cluster(tmp_path, 3, **KEPT) as world, world.machines[0].client() as client:
        await world.machines[2].kill()
        await without(world, "b3")
        operations = world.machines[0].broker.operations.forgetting
        remove, tried = operations._remove_member, list[NodeId]()
        assert remove is not None

        async def busy(member: NodeId) -> object:
            tried.append(member)
            if len(tried) <= failures:
                raise UnavailableError("the metadata members cannot be changed now: busy; try again")
            return await remove(member)

        operations._remove_member = busy
        told = await client.admin.forget_broker("b3", accept_loss=True)
        assert told.accepted
        if failures == 1:
            assert (told.member_problem, len(tried)) == ("", 2)
            return
        assert told.member_problem == "the metadata members cannot be changed now: busy; try again"
        assert tried[0] in voters(world, 0)[1]
        assert (await client.admin.forget_broker("b3", accept_loss=True)).member_problem == ""
        await wait_until(lambda: tried[0] not in voters(world, 0)[1])
