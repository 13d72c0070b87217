"""The gate of a broker: who calls is proven, each call is judged, and open streams end with proofs and rights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import RawConsumer, RawProducer, RunningBroker, running_broker
from token_helpers import CLUSTER_KEY, STRANGER_KEY

import danube
from danube.metadata import Delete, Put
from danube.model import SubscriptionType, api, schema_api
from danube.model.cluster_api import ClusterMethod, GetClusterStatus
from danube.model.errors import (
    CallRefusedError,
    DanubeError,
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
    Status,
    UnauthenticatedError,
    UnavailableError,
)
from danube.model.policy_api import ChangeSubscriptionPolicy, PolicyMethod
from danube.model.query_api import GetLogStates, GetTopicNames, LogStates, QueryMethod, TopicNames
from danube.model.quotas import PrincipalQuota
from danube.model.schema_api import SchemaMethod
from danube.model.stage_api import AbortedStages, AbortStages, StageMethod, StageOpen
from danube.security.book import Change, first_records
from danube.security.flaws import NO_PROOF
from danube.security.proofs import mint
from danube.security.records import (
    BINDINGS,
    REVOKED,
    BindingRecord,
    PrincipalRecord,
    RevocationRecord,
    encode_record,
    principal_key,
)
from danube.wire.client import Channel

ORDERS, SALARIES = "/shop/orders", "/hr/salaries"
YEAR_2027_S = 1_800_000_000
DAY_S = 86_400
_encode = msgspec.msgpack.encode

AUDIT_LOGS = {"/system/audit-b1"}
"""Which the broker itself creates, soon after its start."""


class Secured:
    """A broker with security on, in virtual time, with an administrator, whose records the test writes."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running
        self._tokens = 0

    @property
    def now_s(self) -> int:
        return self.running.broker.runtime.clock_us() // 1_000_000

    async def write(self, *changes: Change) -> int:
        """Write records as another broker does; this one learns of them by its watch."""
        operations: list[Put | Delete] = [Put("/security-changes", b"")]
        for key, record in changes:
            operations.append(Delete(key) if record is None else Put(key, encode_record(record)))
        result = await self.running.broker.metadata.transact([], operations)
        return result.revision

    async def known(self, *changes: Change) -> None:
        """Write records, and wait until the broker knows them."""
        revision = await self.write(*changes)
        assert self.running.broker._access.gate is not None
        replica = self.running.broker._access.gate._replica
        assert replica is not None
        await replica.at(revision)

    async def begin(self) -> None:
        await self.known(
            *first_records(
                self.running.config.cluster, CLUSTER_KEY.public_bytes, "user:admin", {}, now_us=self.now_s * 1_000_000
            )
        )

    async def bind(self, subject: str, role: str, scope: str, number: int = 1) -> str:
        binding = f"{subject.partition(':')[2]}-{number}"
        await self.known(Change(BINDINGS + binding, BindingRecord(subject=subject, roles=(role,), scope=scope)))
        return binding

    def token(self, subject: str, *, life_s: int = DAY_S, key: Any = CLUSTER_KEY, token_id: str = "") -> str:
        self._tokens += 1
        cluster = self.running.config.cluster
        return mint(
            key,
            issuer=cluster,
            cluster=cluster,
            subject=subject,
            token_id=token_id or f"t-{self._tokens}",
            issued_at_s=self.now_s,
            expires_at_s=self.now_s + life_s,
        )

    @asynccontextmanager
    async def calling(
        self, subject: str = "", *, authorization: str = "", **options: Any
    ) -> AsyncGenerator[Calls, None]:
        if subject:
            authorization = f"Bearer {self.token(subject, **options)}"
        async with self.running.channel() as channel:
            yield Calls(channel, {"authorization": authorization} if authorization else {})


class Calls:
    """Calls of one connection with some credentials."""

    def __init__(self, channel: Channel, metadata: dict[str, str]) -> None:
        self.channel = channel
        self.metadata = metadata

    async def __call__(self, path: str, request: Any, answer: Any = Any) -> Any:
        return await self.channel.unary(path, request, answer, metadata=self.metadata)

    async def create(self, *topics: str) -> None:
        for namespace in sorted({topic.split("/")[1] for topic in topics}):
            await self(api.Method.CREATE_NAMESPACE, api.CreateNamespace(namespace), api.Done)
        for topic in topics:
            await self(api.Method.CREATE_TOPIC, api.CreateTopic(topic), api.TopicInfo)

    @asynccontextmanager
    async def producing(self, topic: str = ORDERS, name: str = "raw") -> AsyncGenerator[RawProducer, None]:
        async with self.channel.open_stream(api.Method.PUBLISH, metadata=self.metadata) as stream:
            stream.send_nowait(_encode(api.PublishOpen(topic, name)))
            producer = RawProducer(stream)
            opened = await producer.reply()
            assert isinstance(opened, api.PublishOpened)
            producer.opened = opened
            yield producer

    @asynccontextmanager
    async def consuming(
        self, topic: str = ORDERS, subscription: str = "s", **fields: Any
    ) -> AsyncGenerator[RawConsumer, None]:
        async with self.channel.open_stream(api.Method.CONSUME, metadata=self.metadata) as stream:
            consumer = RawConsumer(stream)
            open_ = api.ConsumeOpen(
                topic=topic,
                subscription=subscription,
                consumer_name="raw",
                type=SubscriptionType.EXCLUSIVE,
                start="earliest",
                **fields,
            )
            consumer.send(open_)
            consumer.opened = await consumer.reply()
            assert isinstance(consumer.opened, api.ConsumeOpened)
            yield consumer


@asynccontextmanager
async def secured(
    directory: Path, topics: Sequence[str] = (ORDERS, SALARIES), **settings: Any
) -> AsyncGenerator[Secured, None]:
    security = {"enabled": True, **settings.pop("security", {})}
    async with running_broker(directory, security=security, **settings) as running:
        broker = Secured(running)
        await broker.begin()
        async with broker.calling("user:admin") as admin:
            await admin.create(*topics)
        yield broker


pytestmark = pytest.mark.virtual


async def test_calls_without_proof_are_unauthenticated_and_say_no_more(tmp_path: Path) -> None:
    async with secured(tmp_path, security={"limits": {"failed_proofs_burst": 100}}) as broker:
        for authorization in (
            "",
            "Bearer",
            "Bearer x.y.z",
            "Basic eDp5",
            f"Bearer {broker.token('user:admin', key=STRANGER_KEY)}",
            f"Bearer {broker.token('user:admin')}x",
        ):
            async with broker.calling(authorization=authorization) as calls:
                for path, request in (
                    (api.Method.INFO, api.Empty()),
                    (api.Method.DESCRIBE_TOPIC, api.DescribeTopic(ORDERS)),
                    (api.Method.CREATE_TOPIC, api.CreateTopic("/shop/more")),
                ):
                    with pytest.raises(UnauthenticatedError) as refused:
                        await calls(path, request)
                    assert refused.value.message == NO_PROOF
                with pytest.raises(UnauthenticatedError) as refused:
                    async with calls.producing():
                        pass
                assert refused.value.message == NO_PROOF


async def test_a_quota_bounds_what_a_principal_uses(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "producer", "/shop/*")
        key = principal_key("service:api")
        async with (
            broker.calling("service:api") as calls,
            broker.calling("user:admin") as admin,
            AsyncExitStack() as open_,
        ):
            for number in range(2):
                await open_.enter_async_context(calls.producing(name=f"p{number}"))
            await broker.known(Change(key, PrincipalRecord(quota=PrincipalQuota(max_streams=2, calls_per_s=3.0))))
            for _ in range(3):
                await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(ORDERS), api.TopicInfo)
            for path, request in (
                (api.Method.DESCRIBE_TOPIC, api.DescribeTopic(ORDERS)),
                (api.Method.DELETE_TOPIC, api.DeleteTopic(ORDERS)),  # denied, and it counts nevertheless
            ):
                with pytest.raises(LimitExceededError, match=r"service:api makes more calls than .* calls_per_s = 3"):
                    await calls(path, request)
            with pytest.raises(LimitExceededError, match=r"has 2 open streams .* max_streams is 2"):
                async with calls.producing(name="p3"):
                    pass
            for number in range(5):
                await admin(api.Method.CREATE_TOPIC, api.CreateTopic(f"/shop/t{number}"), api.TopicInfo)
            await trio.sleep(0.5)
            await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(ORDERS), api.TopicInfo)
            await open_.aclose()
            await trio.sleep(1)  # the broker notices
            async with calls.producing(name="p3"):
                pass
            await broker.known(Change(key, None))
            for _ in range(10):
                await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(ORDERS), api.TopicInfo)


async def test_what_a_principal_publishes_is_delayed(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "producer", "/shop/*")
        key = principal_key("service:api")

        async def limit(per_s: float | None) -> None:
            await broker.known(Change(key, PrincipalRecord(quota=PrincipalQuota(publish_bytes_per_s=per_s))))

        async def publish(producer: RawProducer, first: int, count: int = 30) -> float:
            began = trio.current_time()
            for number in range(first, first + count):
                producer.send(number, b"x" * 1000)
            await producer.acked(count)
            return trio.current_time() - began

        async with (
            broker.calling("service:api") as calls,
            broker.calling("service:api") as others,
            broker.calling("user:admin") as admin,
            calls.producing(name="a") as one,
            others.producing(name="b") as two,
            admin.producing(name="c") as free,
        ):
            assert await publish(one, 0) < 0.5
            await limit(10_000)
            took: dict[str, float] = {}

            async def timed(name: str, producer: RawProducer, first: int) -> None:
                took[name] = await publish(producer, first)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(timed, "one", one, 30)
                nursery.start_soon(timed, "two", two, 0)
                nursery.start_soon(timed, "free", free, 0)
            assert 4.5 <= max(took["one"], took["two"]) <= 7.5, "60 kB, of which 10 kB and a batch go at once"
            assert took["free"] < 0.5
            await limit(1)
            one.send(60, b"x" * 1000)
            await one.acked()
            one.send(61, b"waits for 1000 s")
            await trio.sleep(2)
            began = trio.current_time()
            await limit(None)
            await one.acked()
            assert trio.current_time() - began <= 1.1
            assert broker.running.topic(ORDERS).end_offset == 30 + 60 + 30 + 2


async def test_what_a_principal_consumes_is_delayed(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "consumer", "/shop/*")
        async with broker.calling("user:admin") as admin, admin.producing() as producer:
            for number in range(40):
                producer.send(number, b"x" * 1000)
            await producer.acked(40)
        quota = PrincipalQuota(consume_bytes_per_s=10_000)
        await broker.known(Change(principal_key("service:api"), PrincipalRecord(quota=quota)))

        async def consume(calls: Calls, subscription: str) -> float:
            began, found = trio.current_time(), 0
            async with calls.consuming(subscription=subscription) as consumer:
                consumer.credit(1000)
                while found < 40:
                    found += isinstance(await consumer.reply(), api.ConsumeBatch)
            return trio.current_time() - began

        async with broker.calling("service:api") as calls, broker.calling("user:admin") as admin:
            took: dict[str, float] = {}

            async def timed(name: str, calls: Calls) -> None:
                took[name] = await consume(calls, name)

            async with trio.open_nursery() as nursery:
                for name in ("s", "t"):
                    nursery.start_soon(timed, name, calls)
                nursery.start_soon(timed, "free", admin)
            assert 5.5 <= max(took["s"], took["t"]) <= 10, "80 kB and their headers, of which 10 kB go at once"
            assert min(took["s"], took["t"]) > 3, "they take turns"
            assert took["free"] < 0.5
            async with calls.consuming(subscription="u") as consumer:
                consumer.credit(1000)
                await trio.sleep(0.5)
            # The end of a consumer that waits is no hindrance, neither for the next one nor for the end of the broker.
            assert await consume(admin, "v") < 0.5


async def test_internal_headers_give_no_rights(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, broker.calling() as calls:
        calls.metadata = {"x-danube-internal-broker": "true", "x-danube-broker-url": "http://127.0.0.1:6650"}
        with pytest.raises(UnauthenticatedError):
            await calls(api.Method.INFO, api.Empty())


async def test_rights_decide_and_what_may_not_be_seen_is_not_there(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "producer", "/shop/*")
        async with broker.calling("service:api") as calls:
            await calls(api.Method.INFO, api.Empty(), api.BrokerInfo)
            found = await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(ORDERS), api.TopicInfo)
            assert found.topic == ORDERS
            for hidden in (SALARIES, "/hr/nothing"):
                with pytest.raises(NotFoundError, match="or these credentials may not see it"):
                    await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(hidden))
            with pytest.raises(NotFoundError, match="does not exist"):
                await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic("/shop/nothing"))
            for path, request in (
                (api.Method.DELETE_TOPIC, api.DeleteTopic(ORDERS)),
                (api.Method.CREATE_NAMESPACE, api.CreateNamespace("mine")),
                (ClusterMethod.STATUS, GetClusterStatus()),
            ):
                with pytest.raises(PermissionDeniedError, match="service:api may not call"):
                    await calls(path, request)
            async with calls.producing() as producer:
                producer.send(0, b"x")
                await producer.acked()
            with pytest.raises(PermissionDeniedError):
                async with calls.producing(SALARIES):
                    pass
            with pytest.raises(PermissionDeniedError):
                async with calls.consuming():
                    pass


async def test_lists_have_what_the_caller_may_see(tmp_path: Path) -> None:
    async with secured(tmp_path, [ORDERS, "/shop/returns", SALARIES]) as broker:
        await broker.bind("service:api", "consumer", ORDERS)
        async with broker.calling("user:admin") as admin, broker.calling("service:api") as calls:
            for caller, topics, namespaces in (
                (admin, [SALARIES, ORDERS, "/shop/returns"], ["default", "hr", "shop", "system"]),
                (calls, [ORDERS], ["shop"]),
            ):
                listed = await caller(api.Method.LIST_TOPICS, api.ListTopics(), api.TopicList)
                assert [row.topic for row in listed.topics if row.topic not in AUDIT_LOGS] == topics
                names = await caller(QueryMethod.NAMES, GetTopicNames(), TopicNames)
                assert [name for name in names.names if name not in AUDIT_LOGS] == topics
                spaces = await caller(api.Method.LIST_NAMESPACES, api.ListNamespaces(), api.NamespaceList)
                assert spaces.namespaces == namespaces
            async with calls.consuming():
                rows = await calls(api.Method.LIST_SUBSCRIPTIONS, api.ListSubscriptions(ORDERS), api.SubscriptionList)
                assert [row.subscription for row in rows.subscriptions] == ["s"]
            with pytest.raises(NotFoundError, match="may not see it"):
                await calls(api.Method.LIST_SUBSCRIPTIONS, api.ListSubscriptions(SALARIES))
        async with broker.calling("service:nobody") as nothing:
            for path, request in (
                (api.Method.LIST_TOPICS, api.ListTopics()),
                (api.Method.LIST_NAMESPACES, api.ListNamespaces()),
                (QueryMethod.NAMES, GetTopicNames()),
            ):
                with pytest.raises(PermissionDeniedError):
                    await nothing(path, request)


async def test_a_producer_creates_topics_only_with_that_right(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "producer", "/shop/*")
        async with broker.calling("service:api") as calls:
            with pytest.raises(
                PermissionDeniedError, match=r"creates the topic: that requires ManageTopic on /shop/new"
            ):
                async with calls.producing("/shop/new"):
                    pass
            async with calls.channel.open_stream(StageMethod.STAGE, metadata=calls.metadata) as stream:
                stream.send_nowait(_encode(StageOpen("/shop/new", "job", 0)))
                with pytest.raises(PermissionDeniedError, match="creates the topic"):
                    await stream.receive()
            await broker.bind("service:api", "namespace-admin", "namespace:shop", 2)
            async with calls.producing("/shop/new") as producer:
                producer.send(0, b"x")
                await producer.acked()


async def test_dead_letters_go_where_the_caller_may_produce(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "consumer", "/shop/*")
        wanted = {"poison": "dead_letter", "dead_letter_topic": SALARIES, "max_redelivery_count": 1}
        async with broker.calling("service:api") as calls:
            with pytest.raises(PermissionDeniedError, match=f"requires Produce on {SALARIES}"):
                async with calls.consuming(policy=wanted):
                    pass
            async with calls.consuming():
                pass
            change = ChangeSubscriptionPolicy(ORDERS, "s", wanted)
            with pytest.raises(PermissionDeniedError, match=f"requires Produce on {SALARIES}"):
                await calls(PolicyMethod.CHANGE_SUBSCRIPTION, change)
            await broker.bind("service:api", "producer", SALARIES, 2)
            await calls(PolicyMethod.CHANGE_SUBSCRIPTION, change, api.SubscriptionList)


async def test_stages_are_judged_by_their_topics(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "producer", "/shop/*")
        async with (
            broker.calling("user:admin") as admin,
            broker.calling("service:api") as calls,
            admin.channel.open_stream(StageMethod.STAGE, metadata=admin.metadata) as stream,
        ):
            stream.send_nowait(_encode(StageOpen(SALARIES, "payroll", 0)))
            assert await stream.receive() is not None
            with pytest.raises(PermissionDeniedError, match="Produce on topics of the stages"):
                await calls(StageMethod.ABORT, AbortStages("payroll", 0, []))


# --- Open streams


async def ended(stream: Any, within_s: float) -> DanubeError:
    """Wait for the error with which a stream ends."""
    with trio.fail_after(within_s):
        while True:
            try:
                message = await stream.receive()
            except DanubeError as error:
                return error
            assert message is not None
            message.release()


def suspension() -> Change:
    return Change(principal_key("service:api"), PrincipalRecord(is_suspended=True))


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (Change(f"{BINDINGS}api-1", None), Status.PERMISSION_DENIED),
        (suspension(), Status.PERMISSION_DENIED),
        (Change(f"{REVOKED}stolen", RevocationRecord(expires_us=2_000_000_000_000_000)), Status.UNAUTHENTICATED),
    ],
)
async def test_open_streams_end_within_a_second(tmp_path: Path, change: Change, status: Status) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "namespace-admin", "namespace:shop")
        async with (
            broker.calling("service:api", token_id="stolen") as calls,
            broker.calling("user:admin") as admin,
            calls.producing() as producer,
            calls.consuming() as consumer,
            admin.producing(name="other") as other,
        ):
            consumer.credit(100)
            producer.send(0, b"before")
            await producer.acked()
            await trio.sleep(5)
            await broker.write(change)
            for stream in (producer.stream, consumer.stream):
                assert (await ended(stream, 1.0)).status is status
            for path, request in (
                (api.Method.DESCRIBE_TOPIC, api.DescribeTopic(ORDERS)),
                (api.Method.DELETE_TOPIC, api.DeleteTopic(ORDERS)),
            ):
                with pytest.raises(DanubeError) as refused:
                    await calls(path, request)
                assert refused.value.status is status
            other.send(0, b"after")  # what nobody has taken away goes on
            assert await other.acked() == [(0, 1, 1)]


async def test_a_producer_that_lost_its_right_publishes_nothing_more(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        binding = await broker.bind("service:api", "producer", "/shop/*")
        async with broker.calling("service:api") as calls, calls.producing() as producer:
            await broker.write(Change(BINDINGS + binding, None))
            await trio.sleep(1.0)
            producer.send(0, b"late")
            await ended(producer.stream, 1.0)
        assert broker.running.topic(ORDERS).end_offset == 0


async def test_streams_end_when_their_token_expires(tmp_path: Path) -> None:
    async with secured(tmp_path, patience_s=100) as broker:
        await broker.bind("service:api", "producer", "/shop/*")
        async with broker.calling("service:api", life_s=10) as calls, calls.producing() as producer:
            began = trio.current_time()
            error = await ended(producer.stream, 60)
            assert error.status is Status.UNAUTHENTICATED
            leeway_s = 30.0
            assert 9 <= trio.current_time() - began <= 10 + leeway_s + 1


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (suspension(), Status.PERMISSION_DENIED),
        (Change(f"{REVOKED}stolen", RevocationRecord(expires_us=2_000_000_000_000_000)), Status.UNAUTHENTICATED),
        (None, Status.UNAUTHENTICATED),  # it expires
    ],
)
async def test_streams_without_a_first_message_end_with_their_proof(
    tmp_path: Path, change: Change | None, status: Status
) -> None:
    leeway_s = 30.0
    async with secured(tmp_path, patience_s=100, security={"limits": {"first_message_s": 90}}) as broker:
        await broker.bind("service:api", "namespace-admin", "namespace:shop")
        async with (
            broker.calling("service:api", token_id="stolen", life_s=10 if change is None else DAY_S) as calls,
            calls.channel.open_stream(api.Method.PUBLISH, metadata=calls.metadata) as silent,
            calls.channel.open_stream(api.Method.PUBLISH, metadata=calls.metadata) as late,
        ):
            await trio.sleep(5)
            if change is not None:
                await broker.known(change)
                late.send_nowait(_encode(api.PublishOpen(ORDERS, "late")))
            for stream in (silent, late):
                assert (await ended(stream, 1.0 if change is not None else 6.0 + leeway_s)).status is status
        assert broker.running.topic(ORDERS).end_offset == 0


async def test_streams_without_a_first_message_end_when_the_rights_are_stale(tmp_path: Path) -> None:
    async with (
        secured(tmp_path, patience_s=200, security={"limits": {"security_stale_s": 20}}) as broker,
        broker.calling("user:admin") as calls,
        calls.channel.open_stream(api.Method.PUBLISH, metadata=calls.metadata) as stream,
    ):
        await trio.sleep(1)
        gate = broker.running.broker._access.gate
        assert gate is not None

        async def silent(_key: str) -> Any:
            raise UnavailableError("no majority")

        gate._replica._store.get = silent  # type: ignore[union-attr, method-assign]
        assert isinstance(await ended(stream, 25), UnavailableError)


async def test_the_first_message_of_a_stream_is_awaited_for_a_limited_time(tmp_path: Path) -> None:
    async with (
        secured(tmp_path, patience_s=100) as broker,
        broker.calling("user:admin") as calls,
        calls.channel.open_stream(api.Method.PUBLISH, metadata=calls.metadata) as stream,
    ):
        began = trio.current_time()
        error = await ended(stream, 60)
        assert isinstance(error, DeadlineExceededError)
        assert "first_message_s = 30 s" in error.message
        assert trio.current_time() - began == pytest.approx(30, abs=1)


async def test_a_broker_that_does_not_reach_the_metadata_keeps_rights_for_a_while(tmp_path: Path) -> None:
    async with secured(tmp_path, patience_s=200, security={"limits": {"security_stale_s": 20}}) as broker:
        await broker.bind("service:api", "producer", "/shop/*")
        late = broker.token("service:api")
        async with broker.calling("service:api") as calls, calls.producing() as producer:
            gate = broker.running.broker._access.gate
            assert gate is not None

            async def silent(_key: str) -> Any:
                raise UnavailableError("no majority")

            gate._replica._store.get = silent  # type: ignore[union-attr, method-assign]
            await trio.sleep(10)
            producer.send(0, b"x")
            await producer.acked()
            async with broker.calling(authorization=f"Bearer {late}") as others:
                with pytest.raises(UnavailableError, match="nothing new can be proven"):
                    await others(api.Method.INFO, api.Empty())
            error = await ended(producer.stream, 12)
            assert isinstance(error, UnavailableError)
            with pytest.raises(UnavailableError, match="known rights count no longer"):
                await calls(api.Method.INFO, api.Empty())


async def test_a_call_that_waits_for_news_ends_with_its_right(tmp_path: Path) -> None:
    async with secured(tmp_path, patience_s=60) as broker:
        binding = await broker.bind("service:api", "consumer", "/shop/*")
        async with broker.calling("service:api") as calls, trio.open_nursery() as nursery:
            answers: list[DanubeError] = []

            async def wait() -> None:
                states = await calls(QueryMethod.STATE, GetLogStates([ORDERS]), LogStates)
                known = {state.name: state.end_offset for state in states.states}
                try:
                    await calls(QueryMethod.STATE, GetLogStates([ORDERS], known, wait_ms=30_000), LogStates)
                except DanubeError as error:
                    answers.append(error)

            nursery.start_soon(wait)
            await trio.sleep(2)
            await broker.write(Change(BINDINGS + binding, None))
            await trio.sleep(1)
            assert [type(error) for error in answers] == [PermissionDeniedError]


async def test_clients_send_their_token_with_every_call(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        binding = await broker.bind("service:api", "namespace-admin", "namespace:shop")
        async with (
            broker.running.client(token=broker.token("service:api")) as client,
            client.producer(ORDERS) as producer,
            client.consumer(ORDERS, subscription="s", start="earliest") as consumer,
        ):
            await producer.send(b"x")
            assert (await consumer.receive()).payload == b"x"
            assert [row.topic for row in await client.admin.list_topics()] == [ORDERS]
            await broker.known(Change(BINDINGS + binding, None))
            with trio.fail_after(5), pytest.raises(PermissionDeniedError):
                await consumer.receive()
            with trio.fail_after(5), pytest.raises(PermissionDeniedError):
                await producer.send(b"y")
        async with broker.running.client() as stranger:
            with trio.fail_after(5), pytest.raises(UnauthenticatedError):
                await stranger.admin.list_topics()


async def test_overviews_show_what_the_caller_may_describe(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "namespace-admin", "namespace:shop")
        async with (
            broker.running.client(token=broker.token("user:admin")) as admin,
            broker.running.client(token=broker.token("service:api")) as api_client,
            broker.running.client(token=broker.token("service:x")) as stranger,
        ):
            for topic in ("/hr/pay", ORDERS):
                async with admin.producer(topic), admin.consumer(topic, subscription="s"):
                    pass
                broker.running.topic(topic).stop(DataLossError("damaged"))

            async def seen(client: danube.Client) -> list[list[str]]:
                overview, findings = await client.admin.overview(), await client.admin.findings()
                return [[row.topic for row in overview.subscriptions], [row.topic for row in findings.findings]]

            assert await seen(admin) == [["/hr/pay", ORDERS]] * 2
            assert await seen(api_client) == [[ORDERS]] * 2
            for call in (stranger.admin.overview, stranger.admin.findings, api_client.admin.list_connections):
                with pytest.raises(PermissionDeniedError):
                    await call()
            with pytest.raises(PermissionDeniedError):
                await api_client.admin.kill_connection("b1-1")
            callers = {row.principal for row in await admin.admin.list_connections()}
            assert {"user:admin", "service:api"} <= callers


# --- Attacks


async def test_failed_proofs_are_slowed_down_and_good_ones_are_not(tmp_path: Path) -> None:
    async with (
        secured(tmp_path) as broker,
        broker.calling("user:admin") as good,
        broker.calling(authorization="Bearer x.y.z") as bad,
    ):
        await good(api.Method.INFO, api.Empty(), api.BrokerInfo)
        began = trio.current_time()
        for _ in range(10):
            with pytest.raises(UnauthenticatedError):
                await bad(api.Method.INFO, api.Empty())
        assert trio.current_time() - began < 0.5
        with pytest.raises(CallRefusedError, match="not checked"):
            await bad(api.Method.INFO, api.Empty())
        assert trio.current_time() - began >= 1.0
        paused = trio.current_time()
        await good(api.Method.INFO, api.Empty(), api.BrokerInfo)
        assert trio.current_time() - paused < 0.5


async def test_a_good_client_waits_for_strangers_at_its_address_and_is_not_refused_for_good(tmp_path: Path) -> None:
    """Its token was never seen before, and is not looked at while wrong ones come: that passes."""
    async with secured(tmp_path) as broker, broker.calling(authorization="Bearer x.y.z") as bad:
        async with trio.open_nursery() as nursery:

            async def guess() -> None:
                while True:
                    with suppress(UnauthenticatedError, CallRefusedError):
                        await bad(api.Method.INFO, api.Empty())

            for _ in range(12):
                nursery.start_soon(guess)
            await trio.sleep(2.0)
            began = trio.current_time()
            async with broker.calling("user:admin") as fresh:
                with pytest.raises(CallRefusedError, match="not checked"):
                    await fresh(api.Method.INFO, api.Empty(), api.BrokerInfo)
            nursery.cancel_scope.cancel()
        await trio.sleep(2.0)
        assert trio.current_time() - began < 10.0
        async with broker.calling("user:admin") as fresh:
            await fresh(api.Method.INFO, api.Empty(), api.BrokerInfo)


async def test_streams_that_begin_with_something_else_are_refused(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, broker.calling("user:admin") as calls:
        for path, first in (
            (api.Method.PUBLISH, _encode(api.PublishBatch(b""))),
            (api.Method.CONSUME, _encode(api.Credit(1, 1))),
            (StageMethod.STAGE, b"\xc1"),
        ):
            async with calls.channel.open_stream(path, metadata=calls.metadata) as stream:
                stream.send_nowait(first)
                with pytest.raises(InvalidArgumentError, match="first message"):
                    await stream.receive()


async def test_links_need_the_secret_of_a_cluster(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker, broker.calling("user:admin") as calls:
        for path in ("/danube.Peers/Link", "/danube.Peers/Channel"):
            async with calls.channel.open_stream(path, metadata=calls.metadata) as stream:
                stream.send_nowait(b"x")
                with pytest.raises(DanubeError, match="no cluster secret"):
                    await stream.receive()


async def test_numbers_that_nothing_has_are_for_callers_with_the_right_somewhere(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "producer", ORDERS)
        abort = AbortStages("payroll", 0, [], write_id="w1")
        async with broker.calling("service:api") as calls, broker.calling("service:nobody") as nothing:
            await calls(StageMethod.ABORT, abort, AbortedStages)
            for path, request in ((StageMethod.ABORT, abort), (QueryMethod.STATE, GetLogStates([]))):
                with pytest.raises(PermissionDeniedError):
                    await nothing(path, request)


async def test_schemas_are_seen_and_changed_within_the_scope_of_a_caller(tmp_path: Path) -> None:
    schema = schema_api.ProposedSchema("string", "")
    other = schema_api.ProposedSchema("bytes", "")
    async with secured(tmp_path) as broker:
        await broker.bind("service:api", "namespace-admin", "namespace:shop")
        async with broker.calling("user:admin") as admin, broker.calling("service:api") as calls:
            shared = await admin(
                SchemaMethod.REGISTER, schema_api.RegisterSchema("/hr/x", schema), schema_api.RegisteredSchema
            )
            secret = await admin(
                SchemaMethod.REGISTER, schema_api.RegisterSchema("/hr/y", other), schema_api.RegisteredSchema
            )
            with pytest.raises(NotFoundError, match="may not see it"):
                await calls(SchemaMethod.GET, schema_api.GetSchema(shared.number))
            made = await calls(
                SchemaMethod.REGISTER, schema_api.RegisterSchema("/shop/x", schema), schema_api.RegisteredSchema
            )
            assert made.number == shared.number
            found = await calls(SchemaMethod.GET, schema_api.GetSchema(made.number), schema_api.SchemaInfo)
            assert found.carriers == [("/shop/x", 1)], "and not that another subject has it, too"
            shown = await admin(SchemaMethod.VERSION, schema_api.GetSchemaVersion("/shop/x"), schema_api.SchemaInfo)
            assert shown.created_by == "service:api"
            listed = await calls(SchemaMethod.SUBJECTS, schema_api.ListSubjects(), schema_api.SubjectList)
            assert [row.subject for row in listed.subjects] == ["/shop/x"]
            hidden: list[tuple[str, Any]] = [
                (SchemaMethod.GET, schema_api.GetSchema(secret.number)),
                (SchemaMethod.VERSION, schema_api.GetSchemaVersion("/hr/y")),
                (SchemaMethod.SUBJECT, schema_api.ShowSubject("/hr/y")),
                (SchemaMethod.SUBJECT, schema_api.ShowSubject("")),
                (SchemaMethod.CHECK, schema_api.CheckSchema("/hr/y", other)),
                (SchemaMethod.FIND, schema_api.FindSchema("/hr/y", other)),
            ]
            for path, request in hidden:
                with pytest.raises(NotFoundError, match="may not see it"):
                    await calls(path, request)
            denied: list[tuple[str, Any]] = [
                (SchemaMethod.REGISTER, schema_api.RegisterSchema("/hr/y", schema)),
                (SchemaMethod.DELETE, schema_api.DeleteSchema("/hr/y")),
                (SchemaMethod.SET_MODE, schema_api.SetSchemaMode("/hr/y", "readonly")),
                (SchemaMethod.SET_MODE, schema_api.SetSchemaMode("", "readonly")),
                (SchemaMethod.SET_COMPATIBILITY, schema_api.SetCompatibility("", "none")),
                (SchemaMethod.PURGE, schema_api.PurgeSchema(made.number)),
                (SchemaMethod.BIND, schema_api.BindSchema(ORDERS, "/hr/y")),
                (SchemaMethod.BIND, schema_api.BindSchema(SALARIES, "/shop/x")),
            ]
            for path, request in denied:
                with pytest.raises(PermissionDeniedError):
                    await calls(path, request)
            await calls(SchemaMethod.BIND, schema_api.BindSchema(ORDERS, "/shop/x"), api.Done)
            subject = await calls(SchemaMethod.SUBJECT, schema_api.ShowSubject("/shop/x"), schema_api.SubjectInfo)
            assert subject.topics == [ORDERS]
            await calls(SchemaMethod.BIND, schema_api.BindSchema(ORDERS, ""), api.Done)
