"""A broker listens before it has its metadata: calls are refused as retryable, and health is answered, until it serves.

Its metadata may take long to open: those of a cluster wait for other brokers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from broker.broker_harness import VirtualMachine, small_config

import danube
import danube.compat
from danube.broker import Broker, Seams
from danube.client import Environment
from danube.compat.codec import PROTO
from danube.compat.proto import danube_admin_pb2, danube_api_pb2, health_pb2
from danube.model import api
from danube.model.errors import (
    CallRefusedError,
    ConfigurationError,
    ConnectionLostError,
    DanubeError,
    DataLossError,
    NotFoundError,
)
from danube.testing.simulation.node import Life
from danube.wire import Codec, connect_channel
from danube.wire.client import Channel
from danube.wire.codec import MSGPACK

pytestmark = pytest.mark.virtual

ADMIN_PORT = 50051
HEALTH = "/grpc.health.v1.Health/"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Held:
    """A machine whose broker gets its metadata only when it is let."""

    def __init__(self, config: Any) -> None:
        self.machine = VirtualMachine(config)
        self.node = self.machine.node
        self.wanted = trio.Event()
        """Set while the broker waits for its metadata."""
        self.let = trio.Event()
        self.failure: DanubeError | None = None
        """Raised instead of opening the metadata."""
        seams_of = self.node._seams

        def seams(life: Life) -> Seams:
            real = seams_of(life)

            @asynccontextmanager
            async def open_metadata(*arguments: Any) -> AsyncGenerator[Any, None]:
                self.wanted.set()
                await self.let.wait()
                if self.failure is not None:
                    raise self.failure
                async with real.open_metadata(*arguments) as store:
                    yield store

            return real._replace(open_metadata=open_metadata)

        self.node._seams = seams  # type: ignore[method-assign]

    @asynccontextmanager
    async def channel(self, codec: Codec = MSGPACK, port: int = 6650) -> AsyncGenerator[Channel, None]:
        connect = partial(self.machine.connect, "127.0.0.1", port)
        async with connect_channel("127.0.0.1", port, connect=connect, codec=codec) as channel:
            yield channel

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[danube.Client, None]:
        environment = Environment(connect=self.machine.connect, clock_us=self.machine.wall_clock_us, random=Random(3))
        async with danube.connect("danube://127.0.0.1:6650", environment=environment) as client:
            yield client


@asynccontextmanager
async def held_broker(directory: Path) -> AsyncGenerator[Held, None]:
    """Start a broker, and run the body while it waits for its metadata."""
    config = small_config(directory, listen=["127.0.0.1:6650"], admin_listen=[f"127.0.0.1:{ADMIN_PORT}"])
    held = Held(config)
    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.machine.run)
            await held.wanted.wait()
            yield held
            nursery.cancel_scope.cancel()


async def check(channel: Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    answer = await channel.unary(f"{HEALTH}Check", request, health_pb2.HealthCheckResponse)
    return int(answer.status)


async def test_calls_of_all_protocols_are_refused_until_it_serves(tmp_path: Path) -> None:
    lookup = danube_api_pb2.TopicLookupRequest(request_id=1, topic="/default/t")
    find = partial(
        Channel.unary,
        path="/danube.Discovery/TopicLookup",
        request=lookup,
        response_type=danube_api_pb2.TopicLookupResponse,
    )
    list_brokers = partial(
        Channel.unary,
        path="/danube_admin.BrokerAdmin/ListBrokers",
        request=danube_admin_pb2.Empty(),
        response_type=danube_admin_pb2.BrokerListResponse,
    )
    async with (
        held_broker(tmp_path) as held,
        held.channel() as native,
        held.channel(PROTO) as upstream,
        held.channel(PROTO, ADMIN_PORT) as admin,
    ):
        for _ in range(3):
            with pytest.raises(CallRefusedError, match="broker starting: it opens its metadata; try again"):
                await native.unary(api.Method.INFO, api.Empty(), api.BrokerInfo)
            async with native.open_stream(api.Method.PUBLISH) as stream:
                stream.send_nowait(MSGPACK.encode(api.PublishOpen("/default/t", "p")))
                with pytest.raises(CallRefusedError, match="broker starting"):
                    await stream.receive()
            for call in (partial(find, upstream), partial(list_brokers, admin)):
                with pytest.raises(CallRefusedError, match="broker starting"):
                    await call()
            await trio.sleep(1000)
        assert not held.node.ready.is_set()
        held.let.set()
        await held.node.ready.wait()
        await native.unary(api.Method.INFO, api.Empty(), api.BrokerInfo)
        assert len((await list_brokers(admin)).brokers) == 1
        with pytest.raises(NotFoundError):
            await find(upstream)


async def test_health_is_answered_from_the_beginning(tmp_path: Path) -> None:
    async with held_broker(tmp_path) as held, held.channel(PROTO) as client, held.channel(PROTO, ADMIN_PORT) as admin:
        request = health_pb2.HealthCheckRequest()
        async with client.server_stream(f"{HEALTH}Watch", request, health_pb2.HealthCheckResponse) as seen:
            assert (await anext(seen)).status == NOT_SERVING
            for channel in (client, admin):
                assert await check(channel) == await check(channel, "grpc.health.v1.Health") == NOT_SERVING
            held.let.set()
            assert (await anext(seen)).status == SERVING
            assert await check(client) == await check(admin) == SERVING
            held.node.drain()
            assert (await anext(seen)).status == NOT_SERVING


async def test_a_client_that_comes_early_waits(tmp_path: Path) -> None:
    async with held_broker(tmp_path) as held, held.client() as client, trio.open_nursery() as nursery:

        async def produce() -> None:
            async with client.producer("/default/t") as producer:
                await producer.send(b"x")

        nursery.start_soon(produce)
        nursery.start_soon(client.admin.create_topic, "/default/other")
        await trio.sleep(5)
        assert len(nursery.child_tasks) == 2
        held.let.set()


@pytest.mark.parametrize("how", ["kill", "cancel", "fail"])
async def test_a_start_that_ends_early_leaves_nothing_open(tmp_path: Path, how: str) -> None:
    async with held_broker(tmp_path) as held, held.channel(PROTO) as channel:
        life = held.node.life
        assert life is not None
        request = health_pb2.HealthCheckRequest()
        async with channel.server_stream(f"{HEALTH}Watch", request, health_pb2.HealthCheckResponse) as seen:
            await anext(seen)
            if how == "fail":
                held.failure = DataLossError("the metadata are damaged")
                held.machine._failed = lambda *_: None  # type: ignore[method-assign]
                held.node._failed = lambda node, life, error: errors.append(error)
                errors: list[BaseException] = []
                held.let.set()
            elif how == "kill":
                held.node.crash(power_loss=False)
            else:
                life.scope.cancel()
            with pytest.raises(DanubeError):
                await anext(seen)
        await life.ended.wait()
        if how == "fail":
            assert isinstance(errors[0], ExceptionGroup)
            assert errors[0].exceptions == (held.failure,), "only the node's nursery wraps it"
        assert held.machine.network.host("127.0.0.1").listeners == {}
        with pytest.raises((OSError, ConnectionLostError)):
            await held.machine.connect("127.0.0.1", 6650)


async def test_a_taken_port_ends_the_start_before_anything_is_changed(tmp_path: Path) -> None:
    config = small_config(tmp_path, listen=["127.0.0.1:6650"], admin_listen=["127.0.0.1:6651"])
    machine = VirtualMachine(config)
    machine.network.listen("127.0.0.1", ["127.0.0.1:6651"])
    with pytest.raises(ExceptionGroup) as refused:
        await machine.run()
    (error,) = refused.value.exceptions
    assert isinstance(error, ConfigurationError)
    assert "cannot listen on 127.0.0.1:6651" in str(error)
    assert machine.node.disk.names() == []


@pytest.mark.real("sockets")
async def test_the_port_that_was_not_taken_is_free_again(tmp_path: Path) -> None:
    (taken,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    (free,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    addresses = [f"127.0.0.1:{listener.socket.getsockname()[1]}" for listener in (free, taken)]
    await free.aclose()
    async with taken:
        config = small_config(tmp_path, listen=addresses[:1], admin_listen=addresses[1:])
        with pytest.raises(ConfigurationError, match=f"cannot listen on {addresses[1]}"):
            await Broker(config, Seams(lambda: 0, Random()), (danube.compat.face,)).run()
    assert os.listdir(tmp_path) == ["lock"]
    config = small_config(tmp_path, listen=addresses[:1], admin_listen=addresses[1:])
    async with trio.open_nursery() as nursery:
        broker = Broker(config, Seams(lambda: 0, Random()), (danube.compat.face,))
        assert await nursery.start(broker.run) == addresses[:1]
        broker.drain()
