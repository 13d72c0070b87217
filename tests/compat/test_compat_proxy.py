"""Proxy mode: calls that name another broker are relayed to it, streams included; UNAVAILABLE if it is gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import small_config, wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster

import danube.compat.proxy as proxy_module
from danube.compat.codec import PROTO
from danube.compat.proto import danube_api_pb2 as pb
from danube.compat.routing import OWNER, RELAYED, concerns, owner_address
from danube.model.errors import ConfigurationError, InvalidArgumentError, LimitExceededError, UnavailableError
from danube.wire import connect_channel
from danube.wire.client import Channel

pytestmark = pytest.mark.virtual

LB = "lb.example.org:7000"
_LARGE = 200_000


def test_the_header_names_a_broker_in_many_forms() -> None:
    assert owner_address("http://b:6650") == owner_address("http://b:6650/") == owner_address("https://b") == "b:6650"
    assert owner_address("http://[::1]:6651/") == "[::1]:6651"
    assert [owner_address(bad) for bad in ("", "http://", "http://b:x", "/", "b:99999")] == [""] * 5
    assert concerns({OWNER: "http://b:6650/"}, "b:6650")
    assert concerns({RELAYED: "1"}, "b:6650")
    assert not concerns({OWNER: "http://lb:7000"}, "b:6650")
    assert not concerns({}, "b:6650")


def test_a_wrong_client_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="client_url = 'ftp://x' is neither host:port nor a URL"):
        small_config(tmp_path, client_url="ftp://x")


class Caller:
    """An official client behind a load balancer that has chosen one broker."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.owner = ""

    async def unary(self, path: str, request: Any, answer: Any, **more: Any) -> Any:
        metadata = {OWNER: self.owner} if self.owner else {}
        return await self.channel.unary(f"/danube.{path}", request, answer, timeout_s=20, metadata=metadata, **more)

    async def look_up(self, topic: str) -> Any:
        request = pb.TopicLookupRequest(request_id=1, topic=topic)
        found = await self.channel.unary("/danube.Discovery/TopicLookup", request, pb.TopicLookupResponse)
        assert found.proxy
        self.owner = found.broker_url + "/"
        return found

    async def produce(self, topic: str, *payloads: bytes) -> int:
        request = pb.ProducerRequest(request_id=1, topic_name=topic, producer_name="p", dispatch_strategy=pb.Reliable)
        made = await self.unary("ProducerService/CreateProducer", request, pb.ProducerResponse)
        for number, payload in enumerate(payloads):
            message = pb.StreamMessage(
                request_id=number,
                msg_id=pb.MsgID(producer_id=made.producer_id, topic_name=topic),
                payload=payload,
                publish_time=1_700_000_000_000,
                producer_name="p",
            )
            answer = await self.unary("ProducerService/SendMessage", message, pb.MessageResponse)
            assert answer.request_id == number
        return int(made.producer_id)

    async def subscribe(self, topic: str, name: str = "c") -> int:
        request = pb.ConsumerRequest(request_id=1, topic_name=topic, consumer_name=name, subscription="s")
        made = await self.unary("ConsumerService/Subscribe", request, pb.ConsumerResponse)
        return int(made.consumer_id)

    @asynccontextmanager
    async def receiving(self, consumer_id: int) -> AsyncGenerator[Any, None]:
        async with self.channel.server_stream(
            "/danube.ConsumerService/ReceiveMessages",
            pb.ReceiveRequest(request_id=1, consumer_id=consumer_id),
            pb.StreamMessage,
            metadata={OWNER: self.owner},
        ) as messages:
            yield messages

    async def ack(self, message: Any) -> None:
        request = pb.AckRequest(request_id=message.request_id, msg_id=message.msg_id, subscription_name="s")
        await self.unary("ConsumerService/Ack", request, pb.AckResponse)

    async def is_healthy(self, kind: Any, number: int) -> bool:
        request = pb.HealthCheckRequest(client=kind, id=number)
        answer = await self.unary("HealthCheck/HealthCheck", request, pb.HealthCheckResponse)
        return bool(answer.status == pb.HealthCheckResponse.OK)


@asynccontextmanager
async def at(world: ClusterWorld, machine: Machine) -> AsyncGenerator[Caller, None]:
    async def connect() -> Any:
        return await world.network.connect("test", machine.name, 6650)

    async with connect_channel(machine.name, 6650, connect=connect, codec=PROTO) as channel:
        yield Caller(channel)


@asynccontextmanager
async def placed(
    directory: Path, topic: str = "/default/t", durability: Any = None, **settings: Any
) -> AsyncGenerator[tuple[ClusterWorld, Machine, Machine], None]:
    """A cluster, the broker that a client reaches, and the one that owns the topic."""
    async with cluster(directory, 3, client_url=LB, **settings) as world:
        directories = [each.broker.directory for each in world.machines]
        record = await directories[0].create(topic, durability, 0)
        (topic_id,) = record.topic_ids
        await wait_until(lambda: any(each.served(topic_id) for each in directories))
        await wait_until(lambda: all(each.catalogue.find(topic) for each in directories))
        owner = next(each for each in world.machines if each.broker.directory.served(topic_id))
        yield world, next(each for each in world.machines if each is not owner), owner


async def test_lookups_name_the_load_balancer_and_the_owner(tmp_path: Path) -> None:
    async with placed(tmp_path) as (world, door, owner):
        for machine in world.machines:
            async with at(world, machine) as caller:
                found = await caller.look_up("/default/t")
                assert (found.connect_url, found.broker_url) == (f"http://{LB}", f"http://{owner.name}:6650")
        assert door is not owner


async def test_a_topic_of_another_broker_is_used_through_any_one(tmp_path: Path) -> None:
    async with placed(tmp_path) as (world, door, _), at(world, door) as caller:
        await caller.look_up("/default/t")
        consumer = await caller.subscribe("/default/t")
        payloads = [b"small", b"", bytes(_LARGE)]
        producer = await caller.produce("/default/t", *payloads)
        async with caller.receiving(consumer) as messages:
            for payload in payloads:
                message = await anext(messages)
                assert message.payload == payload
                await caller.ack(message)
            assert await caller.is_healthy(pb.HealthCheckRequest.Producer, producer)
            assert await caller.is_healthy(pb.HealthCheckRequest.Consumer, consumer)
            assert not await caller.is_healthy(pb.HealthCheckRequest.Producer, producer + 1)
            caller.owner = ""  # as the Rust client asks
            assert await caller.is_healthy(pb.HealthCheckRequest.Producer, producer)
            caller.owner = f"http://{LB}/"
            assert await caller.is_healthy(pb.HealthCheckRequest.Producer, producer)


async def test_the_owner_itself_serves_a_call_that_names_it(tmp_path: Path) -> None:
    async with placed(tmp_path) as (world, _, owner), at(world, owner) as caller:
        await caller.look_up("/default/t")
        producer = await caller.produce("/default/t", b"x")
        assert await caller.is_healthy(pb.HealthCheckRequest.Producer, producer)
        assert not await caller.is_healthy(pb.HealthCheckRequest.Producer, producer + 1)


async def test_the_errors_of_the_owner_come_back(tmp_path: Path) -> None:
    async with placed(tmp_path) as (world, door, _), at(world, door) as caller:
        await caller.look_up("/default/t")
        request = pb.ConsumerRequest(
            request_id=1, topic_name="/default/t", consumer_name="c", subscription="s", subscription_type=9
        )
        with pytest.raises(InvalidArgumentError, match="subscription type 9 is unknown"):
            await caller.unary("ConsumerService/Subscribe", request, pb.ConsumerResponse)


async def test_only_running_brokers_of_the_cluster_are_called(tmp_path: Path) -> None:
    async with placed(tmp_path) as (world, door, _), at(world, door) as caller:
        for stranger in ("http://10.1.2.3:22", "h9:6650"):
            caller.owner = stranger
            with pytest.raises(UnavailableError, match=r"no broker of the cluster runs at .*look it up again"):
                await caller.produce("/default/t", b"x")


async def test_a_relayed_call_is_not_relayed_again(tmp_path: Path) -> None:
    async with placed(tmp_path) as (world, door, owner), at(world, door) as caller:
        other = next(each for each in world.machines if each not in (door, owner))
        caller.owner = f"http://{other.name}:6650"
        with pytest.raises(UnavailableError, match=r"h[123]"):  # it is not the owner, and says so
            await caller.produce("/default/t", b"x")


async def test_the_death_of_the_owner_ends_streams_and_calls_as_unavailable(tmp_path: Path) -> None:
    async with placed(tmp_path, durability="none") as (world, door, owner), at(world, door) as caller:
        request = pb.ProducerRequest(topic_name="/default/t", producer_name="p", dispatch_strategy=pb.NonReliable)
        await caller.look_up("/default/t")
        consumer = await caller.subscribe("/default/t")
        async with caller.receiving(consumer) as messages:
            await owner.kill()
            with pytest.raises(UnavailableError), trio.fail_after(5):
                await anext(messages)
        with pytest.raises(UnavailableError, match="look it up again"):
            await caller.unary("ProducerService/CreateProducer", request, pb.ProducerResponse)
        former = caller.owner
        assert await caller.is_healthy(pb.HealthCheckRequest.Consumer, consumer)  # its topic waits for an owner
        assert await caller.is_healthy(pb.HealthCheckRequest.Producer, 1)
        with trio.fail_after(20):
            while caller.owner == former:  # a topic without durability gets another owner
                await trio.sleep(0.1)
                try:
                    await caller.look_up("/default/t")
                except UnavailableError:
                    continue
        caller.owner = former
        assert not await caller.is_healthy(pb.HealthCheckRequest.Consumer, consumer)  # it has to look the topic up
        assert not await caller.is_healthy(pb.HealthCheckRequest.Consumer, consumer + 1)
        await caller.look_up("/default/t")
        made = await caller.unary("ProducerService/CreateProducer", request, pb.ProducerResponse)
        assert made.producer_id


async def test_a_consumer_waits_for_the_owner_that_has_its_messages(tmp_path: Path) -> None:
    async with placed(tmp_path) as (world, door, owner), at(world, door) as caller:
        await caller.look_up("/default/t")
        consumer = await caller.subscribe("/default/t")
        await owner.kill()
        for _ in range(10):
            assert await caller.is_healthy(pb.HealthCheckRequest.Consumer, consumer)
            began = trio.current_time()
            with pytest.raises(UnavailableError):
                async with caller.receiving(consumer) as messages:
                    await anext(messages)
            assert trio.current_time() - began >= 0.25  # no busy loop
        await owner.start()
        await trio.sleep(1)
        async with caller.receiving(consumer) as messages:
            await caller.produce("/default/t", b"back")
            assert (await anext(messages)).payload == b"back"


async def test_a_slow_consumer_holds_up_its_own_stream_only(tmp_path: Path) -> None:
    limits = {"stream_window_bytes": 100_000, "max_send_buffer_bytes": 100_000}
    async with placed(tmp_path, limits=limits) as (world, door, _), at(world, door) as caller:
        await caller.look_up("/default/t")
        consumer = await caller.subscribe("/default/t")
        count = 60
        async with caller.receiving(consumer) as messages:
            await caller.produce("/default/t", *([bytes(50_000)] * count))
            await trio.sleep(5)  # nothing is taken meanwhile
            held = sum(
                stream.send_buffered
                for connection in door.broker._ports.client._connections
                for stream in connection._streams.values()
            )
            assert held < 400_000
            assert await caller.is_healthy(pb.HealthCheckRequest.Consumer, consumer)
            with trio.fail_after(60):
                for _ in range(count):
                    await caller.ack(await anext(messages))


async def test_many_calls_use_more_connections_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "MOST_CONNECTIONS", 2)
    async with placed(tmp_path, limits={"max_streams_per_connection": 4}) as (world, door, owner):
        async with at(world, door) as one, at(world, door) as two, at(world, door) as three:
            callers = (one, two, three)
            for caller in callers:
                await caller.look_up("/default/t")
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    subscribed = f"c{number}"
                    await nursery.start(_shared, callers[number % 3], subscribed)
                    await trio.sleep(0.1)
                with pytest.raises(LimitExceededError, match=r"2 connections to .* are full of relayed calls"):
                    await callers[2].produce("/default/t", b"x")
                nursery.cancel_scope.cancel()
        assert owner.node.life is not None


async def _shared(caller: Caller, name: str, *, task_status: Any) -> None:
    request = pb.ConsumerRequest(
        request_id=1, topic_name="/default/t", consumer_name=name, subscription="shared", subscription_type=1
    )
    made = await caller.unary("ConsumerService/Subscribe", request, pb.ConsumerResponse)
    async with caller.receiving(made.consumer_id) as messages:
        task_status.started()
        await anext(messages)
