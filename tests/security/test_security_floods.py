"""Floods of calls with wrong credentials: what they cost stays small, and clients with good ones are served."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import anyio
import msgspec
import trio
from broker.broker_harness import RunningBroker, running_broker
from token_helpers import CLUSTER_KEY

from danube.metadata import Put
from danube.model.api import ListNamespaces, Method, NamespaceList
from danube.model.errors import DanubeError
from danube.security.book import first_records
from danube.security.limits import SecurityLimits
from danube.security.proofs import mint
from danube.security.records import encode_record
from danube.security.throttle import FailedProofs
from danube.wire import connect_channel
from danube.wire.client import Channel

LIMITS = SecurityLimits(refused_proofs_burst=100, refused_proofs_per_s=10.0)


class TestBlocked:
    def test_an_address_is_blocked_until_it_has_made_up_for_its_refusals(self) -> None:
        throttle = FailedProofs(LIMITS)
        for _ in range(100):
            assert not throttle.is_blocked("10.0.0.1:1", 0)
            assert not throttle.refused("10.0.0.1:1", 0)
        assert throttle.is_blocked("10.0.0.1:2", 0)
        assert throttle.refused("10.0.0.1:2", 0)  # it counts, too
        assert not throttle.is_blocked("10.0.0.2:1", 0)
        assert throttle.is_blocked("10.0.0.1:3", 0.15)
        assert not throttle.is_blocked("10.0.0.1:3", 0.2)
        assert not throttle.refused("10.0.0.1:3", 0.2)
        assert throttle.is_blocked("10.0.0.1:3", 0.2)
        assert not throttle.is_blocked("10.0.0.1:3", 100)

    def test_an_address_from_which_a_proof_has_succeeded_gets_connections(self) -> None:
        throttle = FailedProofs(LIMITS)
        throttle.succeeded("10.0.0.1:1")
        for _ in range(100):
            throttle.refused("10.0.0.1:1", 0)
        assert not throttle.is_blocked("10.0.0.1:2", 0)
        assert throttle.refused("10.0.0.1:2", 0)  # but each wrong proof costs a connection

    def test_memory_is_bounded(self) -> None:
        throttle = FailedProofs(msgspec.structs.replace(LIMITS, throttled_addresses=100))
        for number in range(10_000):
            throttle.refused(f"10.{number >> 8}.{number & 255}.1", number)
        assert len(throttle) == 100


async def administrator(running: RunningBroker) -> str:
    """Write the first records; return a token of the administrator."""
    cluster, now_s = running.config.cluster, int(time.time())
    changes = first_records(cluster, CLUSTER_KEY.public_bytes, "user:admin", {}, now_us=1)
    result = await running.broker.metadata.transact(
        [], [Put(each.key, encode_record(each.record)) for each in changes if each.record is not None]
    )
    assert running.broker._access.gate is not None
    await running.broker._access.gate.replica.at(result.revision)
    return mint(
        CLUSTER_KEY,
        issuer=cluster,
        cluster=cluster,
        subject="user:admin",
        token_id="t",
        issued_at_s=now_s - 10,
        expires_at_s=now_s + 3600,
    )


async def test_a_flood_of_wrong_keys_ends_its_connections_and_no_others(tmp_path: Path) -> None:
    limits = {
        "refused_proofs_burst": 100,
        "refused_proofs_per_s": 0.01,
        "refused_proof_pause_s": 0.001,
        "failed_proofs_per_s": 0.01,
    }
    async with running_broker(tmp_path, security={"enabled": True, "limits": limits}) as running:
        good = {"authorization": f"Bearer {await administrator(running)}"}
        bad = {"authorization": "Bearer dnb_not_a_key"}

        async def from_another_address() -> anyio.abc.ByteStream:
            return await anyio.connect_tcp("127.0.0.1", running.port, local_host="127.0.0.2")

        def attacker() -> AbstractAsyncContextManager[Channel]:
            return connect_channel("127.0.0.1", running.port, connect=from_another_address)

        async with connect_channel("127.0.0.1", running.port) as victim:
            await victim.unary(Method.LIST_NAMESPACES, ListNamespaces(), NamespaceList, metadata=good)
            refusals: Counter[str] = Counter()
            for _ in range(3):
                try:
                    async with attacker() as channel:
                        for _ in range(200):
                            try:
                                await channel.unary(
                                    Method.LIST_NAMESPACES, ListNamespaces(), NamespaceList, metadata=bad
                                )
                            except DanubeError as error:
                                refusals[type(error).__name__] += 1
                            if channel.retired:
                                break
                except DanubeError as error:
                    refusals[f"no connection: {type(error).__name__}"] += 1
            assert refusals["UnauthenticatedError"] == 10
            assert refusals["no connection: ConnectionLostError"] == 2
            assert 101 <= refusals.total() <= 104
            await victim.unary(Method.LIST_NAMESPACES, ListNamespaces(), NamespaceList, metadata=good)
            async with connect_channel("127.0.0.1", running.port) as another:
                await another.unary(Method.LIST_NAMESPACES, ListNamespaces(), NamespaceList, metadata=good)


async def test_connections_that_prove_nothing_keep_no_client_out(tmp_path: Path) -> None:
    """More than the broker takes, from many addresses: each proves nothing, and some ask for the public health."""
    limits = {"max_connections": 40}
    async with (
        running_broker(tmp_path, security={"enabled": True}, limits=limits) as running,
        AsyncExitStack() as stack,
    ):
        good = {"authorization": f"Bearer {await administrator(running)}"}

        async def listed(channel: Channel) -> None:
            await channel.unary(Method.LIST_NAMESPACES, ListNamespaces(), NamespaceList, metadata=good)

        early = await stack.enter_async_context(connect_channel("127.0.0.1", running.port))
        await listed(early)
        strangers = [await stack.enter_async_context(connect_channel("127.0.0.1", running.port)) for _ in range(60)]
        for _ in range(18):  # 40 are taken, of which 20 may be strangers'
            client = await stack.enter_async_context(connect_channel("127.0.0.1", running.port))
            await listed(client)
        await trio.sleep(0.1)
        assert sum(not each.retired for each in strangers) <= 20
        assert strangers[0].retired
        await listed(early)


async def test_a_broker_without_access_control_ends_no_idle_connections(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"max_connections": 20}) as running, AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(connect_channel("127.0.0.1", running.port)) for _ in range(20)]
        await trio.sleep(0.1)
        assert not any(each.retired for each in idle)
