"""Proxy mode with access control: the broker that relays proves the caller, and the owner judges the call."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster
from test_security_cluster import API, calling, owner_of, parts_of, token, write
from token_helpers import CLUSTER_KEY

from danube.compat.codec import PROTO
from danube.compat.proto import danube_api_pb2 as pb
from danube.compat.routing import OWNER, RELAYED
from danube.model import api
from danube.model.errors import PermissionDeniedError, UnauthenticatedError
from danube.security.book import first_records
from danube.security.records import encode_record
from danube.wire import connect_channel

pytestmark = pytest.mark.virtual

TOPIC = "/shop/orders-part-0"


@asynccontextmanager
async def secured(directory: Path) -> AsyncGenerator[tuple[ClusterWorld, Machine, Machine], None]:
    """A cluster in proxy mode, a broker, and another one, which owns the topic."""
    settings = {"security": {"enabled": True}, "cluster_secret": "/simulated/secret", "client_url": "lb:7000"}
    async with cluster(directory, 3, **settings) as world:
        for key, record in first_records("danube", CLUSTER_KEY.public_bytes, "user:admin", {}, now_us=1):
            assert record is not None
            await world.store.put(key, encode_record(record))
        await write(world, api=API)
        await trio.sleep(1)
        async with calling(world, world.machines[0], "user:admin") as admin:
            await admin(api.Method.CREATE_NAMESPACE, api.CreateNamespace("shop"), api.Done)
            await admin(api.Method.CREATE_TOPIC, api.CreateTopic("/shop/orders", 3), api.TopicInfo)
        await wait_until(lambda: len(parts_of(world)) == 3)
        owner = owner_of(world, TOPIC)
        yield world, next(each for each in world.machines if each is not owner), owner


async def create(world: ClusterWorld, door: Machine, owner: Machine, **headers: str) -> Any:
    """Create a producer of the topic through a broker, as an official client does."""
    connect = partial(world.network.connect, "test", door.name, 6650)
    request = pb.ProducerRequest(topic_name=TOPIC, producer_name="p", dispatch_strategy=pb.Reliable)
    metadata = {OWNER: f"http://{owner.name}:6650/", **headers}
    async with connect_channel(door.name, 6650, connect=connect, codec=PROTO) as channel:
        path = "/danube.ProducerService/CreateProducer"
        return await channel.unary(path, request, pb.ProducerResponse, timeout_s=20, metadata=metadata)


async def test_the_owner_judges_the_caller_of_a_relayed_call(tmp_path: Path) -> None:
    async with secured(tmp_path) as (world, door, owner):
        made = await create(world, door, owner, authorization=f"Bearer {token(world, 'service:api')}")
        assert made.producer_id
        with pytest.raises(PermissionDeniedError):
            await create(world, door, owner, authorization=f"Bearer {token(world, 'service:stranger')}")


async def test_a_wrong_credential_does_not_reach_the_owner(tmp_path: Path) -> None:
    async with secured(tmp_path) as (world, door, owner):
        for headers in ({}, {"authorization": "Bearer nonsense"}):
            for _ in range(30):  # an address with so many failures is blocked
                with pytest.raises(UnauthenticatedError):
                    await create(world, door, owner, **headers)
                await trio.sleep(1)
        assert owner.broker._access.denials() == (0, 0)
        assert door.broker._access.denials()[1] >= 30
        assert (await create(world, door, owner, authorization=f"Bearer {token(world, 'service:api')}")).producer_id


async def test_a_caller_that_says_that_it_was_relayed_gains_nothing(tmp_path: Path) -> None:
    async with secured(tmp_path) as (world, _, owner):
        with pytest.raises(UnauthenticatedError):
            await create(world, owner, owner, **{RELAYED: "1"})
