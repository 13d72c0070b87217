"""Official clients at a broker with security on: calls are judged by the topics and subscriptions they belong to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker
from compat_harness import Caller, admin_port, compat_broker
from consumer_harness import SERVICE, Receiving, ack, health, nack, subscribe

from danube.compat.codec import PROTO
from danube.compat.proto import danube_admin_pb2 as admin_pb
from danube.compat.proto import danube_api_pb2 as pb
from danube.metadata import Delete, Put
from danube.model.errors import NotFoundError, PermissionDeniedError, UnauthenticatedError, UnavailableError
from danube.model.quotas import PrincipalQuota
from danube.security.book import first_records
from danube.security.keys import signing_key
from danube.security.proofs import mint
from danube.security.records import BINDINGS, BindingRecord, PrincipalRecord, encode_record, principal_key
from danube.wire import connect_channel

KEY = signing_key(bytes(range(32)))
ORDERS, SALARIES = "/shop/orders", "/hr/salaries"
TOPICS = "/danube_admin.TopicAdmin/"


class Client(Caller):
    """Calls of one connection with a token."""

    def __init__(self, channel: Any, metadata: dict[str, str]) -> None:
        super().__init__(channel)
        self.metadata = metadata

    async def unary(self, path: str, request: Any, response_type: Any, timeout_s: float = 10) -> Any:
        return await self.channel.unary(path, request, response_type, timeout_s=timeout_s, metadata=self.metadata)

    @asynccontextmanager
    async def receiving(self, consumer_id: int) -> AsyncGenerator[Receiving, None]:
        async with self.channel.open_stream(f"{SERVICE}ReceiveMessages", metadata=self.metadata) as stream:
            stream.send_nowait(pb.ReceiveRequest(request_id=4, consumer_id=consumer_id).SerializeToString())
            stream.end()
            yield Receiving(stream)


class Secured:
    """A broker with the face, and with security on."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running

    async def write(self, **records: BindingRecord | None) -> None:
        operations: list[Put | Delete] = [Put("/security-changes", b"")]
        for name, record in records.items():
            operations.append(
                Delete(BINDINGS + name) if record is None else Put(BINDINGS + name, encode_record(record))
            )
        result = await self.running.broker.metadata.transact([], operations)
        assert self.running.broker._access.gate is not None
        await self.running.broker._access.gate.replica.at(result.revision)

    async def limit(self, subject: str, **fields: float) -> None:
        record = PrincipalRecord(quota=PrincipalQuota(**fields))  # type: ignore[arg-type]
        operations = [Put("/security-changes", b""), Put(principal_key(subject), encode_record(record))]
        result = await self.running.broker.metadata.transact([], operations)
        assert self.running.broker._access.gate is not None
        await self.running.broker._access.gate.replica.at(result.revision)

    async def begin(self) -> None:
        cluster = self.running.config.cluster
        for key, record in first_records(cluster, KEY.public_bytes, "user:admin", {}, now_us=1):
            assert record is not None
            await self.running.broker.metadata.put(key, encode_record(record))
        await self.write(
            shop=BindingRecord(subject="service:shop", roles=("namespace-admin",), scope="namespace:shop"),
            hr=BindingRecord(subject="service:hr", roles=("namespace-admin",), scope="namespace:hr"),
        )

    @asynccontextmanager
    async def calling(self, subject: str, *, admin: bool = False, spoilt: str = "") -> AsyncGenerator[Client, None]:
        cluster, now_s = self.running.config.cluster, self.running.broker.runtime.clock_us() // 1_000_000
        token = mint(
            KEY,
            issuer=cluster,
            cluster=cluster,
            subject=subject,
            token_id="t",
            issued_at_s=now_s,
            expires_at_s=now_s + 3600,
        )
        port = admin_port(self.running) if admin else self.running.port
        async with connect_channel("127.0.0.1", port, codec=PROTO) as channel:
            yield Client(channel, {"authorization": f"Bearer {token}{spoilt}"})


@asynccontextmanager
async def secured(directory: Path) -> AsyncGenerator[Secured, None]:
    async with compat_broker(directory, security={"enabled": True}, admin_listen=["127.0.0.1:0"]) as running:
        broker = Secured(running)
        await broker.begin()
        async with broker.calling("user:admin", admin=True) as admin:
            for topic in (ORDERS, SALARIES):
                namespace = admin_pb.NamespaceRequest(name=topic.split("/")[1])
                await admin.unary("/danube_admin.NamespaceAdmin/CreateNamespace", namespace, admin_pb.NamespaceResponse)
                request = admin_pb.NewTopicRequest(name=topic, dispatch_strategy=pb.Reliable)
                await admin.unary(f"{TOPICS}CreateTopic", request, admin_pb.TopicResponse)
        yield broker


async def test_what_a_client_sends_and_receives_is_delayed(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, broker.calling("service:shop") as shop:
        producer = await shop.create(ORDERS)
        consumer = await subscribe(shop, ORDERS)
        await broker.limit("service:shop", publish_bytes_per_s=100_000.0, consume_bytes_per_s=100_000.0)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(shop.send, ORDERS, producer.producer_id, b"x" * 20_000)
        assert 4 <= trio.current_time() - began <= 9.5
        began = trio.current_time()
        async with shop.receiving(consumer) as stream:
            for _ in range(30):
                await ack(shop, await stream.next())
        assert 2 <= trio.current_time() - began <= 10, "buffer by buffer"
        # A message whose client has gone while it waited is not published.
        await broker.limit("service:shop", publish_bytes_per_s=1.0)
        await shop.send(ORDERS, producer.producer_id, b"x" * 1000)
        with trio.move_on_after(0.3):
            await shop.send(ORDERS, producer.producer_id, b"never")
        end = broker.running.topic(ORDERS).end_offset
        await broker.limit("service:shop")
        await trio.sleep(1.5)
        assert broker.running.topic(ORDERS).end_offset == end


async def test_a_client_sends_and_receives_what_it_may(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, broker.calling("service:shop") as shop:
        assert (await shop.lookup(ORDERS)).response_type == pb.TopicLookupResponse.Connect
        producer = await shop.create(ORDERS)
        consumer = await subscribe(shop, ORDERS)
        async with shop.receiving(consumer) as stream:
            await shop.send(ORDERS, producer.producer_id, b"one")
            message = await stream.next()
            assert message.payload == b"one"
            await ack(shop, message)
            await shop.send(ORDERS, producer.producer_id, b"two")
            await nack(shop, await stream.next())
            await stream.next()  # the redelivery
            # What is taken away ends the stream, at once.
            await broker.write(shop=None)
            with trio.fail_after(5), pytest.raises(PermissionDeniedError, match="has lost Consume on /shop/orders#s"):
                await stream.next()
        with pytest.raises(PermissionDeniedError):
            await shop.send(ORDERS, producer.producer_id, b"three")


async def test_numbers_are_no_way_to_topics_of_others(tmp_path: Path) -> None:
    async with (
        secured(tmp_path) as broker,
        broker.calling("service:shop") as shop,
        broker.calling("service:hr") as hr,
    ):
        mine = (await shop.create(ORDERS)).producer_id
        theirs = (await hr.create(SALARIES)).producer_id
        consumer = await subscribe(hr, SALARIES)
        await hr.send(SALARIES, theirs, b"secret")
        async with hr.receiving(consumer) as stream:
            secret = await stream.next()
        for topic, producer in ((SALARIES, mine), (SALARIES, theirs), (SALARIES, 4711)):
            with pytest.raises(PermissionDeniedError):
                await shop.send(topic, producer, b"forged")
        said = set()
        for producer in (theirs, 4711):
            with pytest.raises(UnavailableError, match="is unknown or has expired") as refused:
                await shop.send(ORDERS, producer, b"forged")
            said.add(refused.value.message.replace(str(producer), "ID"))
        assert len(said) == 1
        said = set()
        for number in (consumer, 4711):
            with pytest.raises(UnavailableError, match="unknown") as refused:
                async with shop.receiving(number) as stream:
                    await stream.next()
            said.add(refused.value.message)
        assert len(said) == 1
        for settle in (ack, nack):
            with pytest.raises(PermissionDeniedError):
                await settle(shop, secret)
        for call in (shop.create(SALARIES), subscribe(shop, SALARIES)):
            with pytest.raises(PermissionDeniedError):
                await call
        with pytest.raises(NotFoundError, match="may not see it"):
            await shop.lookup(SALARIES)
        found = broker.running.topic(SALARIES)
        assert found.end_offset == 1
        assert found.subscriptions["s"].cursor.floor == 0


async def test_health_answers_are_for_those_who_may_use_the_producer_or_consumer(tmp_path: Path) -> None:
    producers, consumers = pb.HealthCheckRequest.Producer, pb.HealthCheckRequest.Consumer
    async with (
        secured(tmp_path) as broker,
        broker.calling("service:shop") as shop,
        broker.calling("service:hr") as hr,
    ):
        theirs = (await hr.create(SALARIES)).producer_id
        consumer = await subscribe(hr, SALARIES)
        intake = broker.running.topic(SALARIES).intake
        seen, marked = intake.seen, []

        def watched(number: Any) -> str:
            marked.append(number)
            return seen(number)

        intake.seen = watched  # type: ignore[method-assign]
        for kind, number in ((producers, theirs), (producers, 4711), (consumers, consumer), (consumers, 4711)):
            assert await health(shop, kind, number) == pb.HealthCheckResponse.CLOSE
        with pytest.raises(UnavailableError):
            await shop.send(ORDERS, theirs, b"forged")
        assert not marked
        assert await health(hr, producers, theirs) == pb.HealthCheckResponse.OK
        assert await health(hr, consumers, consumer) == pb.HealthCheckResponse.OK
        assert marked == [theirs]


async def test_the_admin_port_is_judged_too_and_its_lists_are_filtered(tmp_path: Path) -> None:
    async with (
        secured(tmp_path) as broker,
        broker.calling("service:shop") as native,
        broker.calling("service:shop", admin=True) as shop,
    ):
        await subscribe(native, ORDERS)
        names = await shop.unary(
            "/danube_admin.BrokerAdmin/ListNamespaces", admin_pb.Empty(), admin_pb.NamespaceListResponse
        )
        assert list(names.namespaces) == ["shop"]
        request = admin_pb.TopicRequest(name=ORDERS)
        listed = await shop.unary(f"{TOPICS}ListSubscriptions", request, admin_pb.SubscriptionListResponse)
        assert list(listed.subscriptions) == ["s"]
        owner = admin_pb.BrokerRequest(broker_id=str(broker.running.broker.operations.cluster.me))
        topics = await shop.unary(f"{TOPICS}ListBrokerTopics", owner, admin_pb.TopicInfoListResponse)
        assert [row.name for row in topics.topics] == [ORDERS]
        with pytest.raises(NotFoundError, match="may not see it"):
            await shop.unary(
                f"{TOPICS}ListNamespaceTopics", admin_pb.NamespaceRequest(name="hr"), admin_pb.TopicInfoListResponse
            )
        with pytest.raises(PermissionDeniedError):
            await shop.unary(f"{TOPICS}DeleteTopic", admin_pb.TopicRequest(name=SALARIES), admin_pb.TopicResponse)
        shop.metadata = {"x-danube-internal-broker": "true"}
        with pytest.raises(UnauthenticatedError):
            await shop.unary(f"{TOPICS}DeleteTopic", request, admin_pb.TopicResponse)


async def test_a_producer_creates_a_topic_only_with_that_right(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, broker.calling("service:ship") as ship:
        await broker.write(ship=BindingRecord(subject="service:ship", roles=("producer",), scope="namespace:shop"))
        await ship.create(ORDERS, "ship")
        for name in ("/shop/new", "/shop/split-part-0"):
            with pytest.raises(PermissionDeniedError, match="creates the topic: that requires ManageTopic"):
                await ship.create(name)
        await broker.write(more=BindingRecord(subject="service:ship", roles=("operator",), scope="/shop/new"))
        await ship.create("/shop/new")


async def test_messages_with_a_wrong_token_are_slowed_down(tmp_path: Path) -> None:
    async with (
        secured(tmp_path) as broker,
        broker.calling("service:shop") as shop,
        broker.calling("service:shop", spoilt="x") as bad,
    ):
        producer = (await shop.create(ORDERS)).producer_id
        for _ in range(10):
            with pytest.raises(UnauthenticatedError):
                await bad.send(ORDERS, producer)
        began = trio.current_time()
        with pytest.raises(UnavailableError, match="were not checked"):
            await bad.send(ORDERS, producer)
        assert trio.current_time() - began >= 1.0
        await shop.send(ORDERS, producer)
        assert broker.running.topic(ORDERS).end_offset == 1
