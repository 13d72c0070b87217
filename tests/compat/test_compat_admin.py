"""The admin port: requests of upstream's tools, and the answers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from broker.broker_harness import RunningBroker, take, wait_until
from compat_harness import admin_port, calling, compat_broker
from consumer_harness import SHARED, nack, receiving, subscribe

from danube.compat.proto import danube_admin_pb2 as pb
from danube.compat.proto import danube_schema_pb2 as schema_pb
from danube.model import Durability, Rate
from danube.model.errors import (
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    UnimplementedError,
)

TOPIC, SUB = "/default/orders", "billing"
OUTPUTS = {
    f"{service.name}.{method.name}": (method.input_type.name, method.output_type.name)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
OK = {"success": True}


class Admin:
    """Calls of the admin port: ``await admin("TopicAdmin.CreateTopic", name=...)``."""

    def __init__(self, running: RunningBroker, caller: Any) -> None:
        self.running = running
        self.caller = caller

    async def __call__(self, method: str, **fields: Any) -> Any:
        given, returned = OUTPUTS[method]
        path = f"/danube_admin.{method.replace('.', '/')}"
        return await self.caller.unary(path, getattr(pb, given)(**fields), getattr(pb, returned))

    async def fails(self, kind: type[DanubeError], method: str, match: str | None = None, **fields: Any) -> None:
        with pytest.raises(kind, match=match) as caught:
            await self(method, **fields)
        assert caught.value.status is kind.status  # also if it is of a more special kind


@asynccontextmanager
async def administrating(directory: Path, **settings: Any) -> AsyncGenerator[Admin, None]:
    async with (
        compat_broker(directory, **{"admin_listen": ["127.0.0.1:0"], **settings}) as running,
        calling(running, admin_port(running)) as caller,
    ):
        await wait_until(lambda: running.broker.operations.cluster.view().coordinator)
        yield Admin(running, caller)


# --- Brokers ---


async def test_one_broker_leads_a_cluster_of_one(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin:
        running = admin.running
        (one,) = (await admin("BrokerAdmin.ListBrokers")).brokers
        assert one.broker_addr == f"http://127.0.0.1:{running.port}"
        assert one.admin_addr == f"http://127.0.0.1:{admin_port(running)}"
        assert (one.broker_role, one.broker_status, one.metrics_addr) == ("Cluster_Leader", "active", "")
        assert (await admin("BrokerAdmin.GetLeaderBroker")).leader == one.broker_id
        status = await admin("ClusterAdmin.ClusterStatus")
        me = int(one.broker_id)
        assert me > 0
        assert (status.leader_id, status.self_node_id, status.voters, status.learners) == (me, me, [me], [])
        assert (await admin("BrokerAdmin.ListNamespaces")).namespaces == ["default", "system"]


async def test_the_advertised_address_is_shown(tmp_path: Path) -> None:
    async with administrating(tmp_path, advertised_address="broker.example.org:1234") as admin:
        (one,) = (await admin("BrokerAdmin.ListBrokers")).brokers
        assert one.broker_addr == "http://broker.example.org:1234"


async def test_admin_calls_that_one_broker_cannot_carry_out(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin:
        me = (await admin("BrokerAdmin.GetLeaderBroker")).leader
        await admin.fails(InvalidArgumentError, "BrokerAdmin.UnloadBroker")
        await admin.fails(FailedPreconditionError, "BrokerAdmin.UnloadBroker", "only one", broker_id=me, dry_run=True)
        await admin.fails(InvalidArgumentError, "BrokerAdmin.ActivateBroker")
        await admin.fails(NotFoundError, "BrokerAdmin.ActivateBroker", "brokers of this cluster are 1", broker_id="77")
        assert (await admin("BrokerAdmin.ActivateBroker", broker_id=me, reason="why not")).success
        for method in ("AddNode", "PromoteNode", "RemoveNode"):
            await admin.fails(UnimplementedError, f"ClusterAdmin.{method}", "cannot be changed by this call", node_id=2)
        await admin.fails(FailedPreconditionError, "TopicAdmin.UnloadTopic", "no other broker", name=TOPIC)


async def test_a_draining_broker_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with administrating(tmp_path) as admin:
        broker, held = admin.running.broker, trio.Event()
        drain = broker._server.drain

        async def slow(*times_s: float) -> None:
            await held.wait()
            await drain(*times_s)

        monkeypatch.setattr(broker._server, "drain", slow)
        broker.drain()
        (one,) = (await admin("BrokerAdmin.ListBrokers")).brokers
        assert one.broker_status == "draining"
        await admin.fails(FailedPreconditionError, "BrokerAdmin.ActivateBroker", "draining", broker_id=one.broker_id)
        held.set()


async def test_one_broker_is_in_balance(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin:
        await admin("TopicAdmin.CreateTopic", name=TOPIC)
        await admin("TopicAdmin.CreatePartitionedTopic", base_name="/default/parts", partitions=3)
        balance = await admin("BrokerAdmin.GetClusterBalance")
        assert (balance.mean_load, balance.max_load, balance.min_load) == (4, 4, 4)
        assert balance.coefficient_of_variation == balance.std_deviation == 0
        (one,) = balance.brokers
        assert (balance.broker_count, one.topic_count, one.is_overloaded, one.is_underloaded) == (1, 4, False, False)
        moved = await admin("BrokerAdmin.TriggerRebalance", max_moves=3)
        assert (moved.success, moved.moves_executed, list(moved.proposed_moves)) == (True, 0, [])
        assert "nothing to move" in moved.error_message


async def test_the_schema_registry_is_here_too(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin:
        found = await admin.caller.unary(
            "/danube_schema.SchemaRegistry/ListSubjects",
            schema_pb.ListSubjectsRequest(),
            schema_pb.ListSubjectsResponse,
        )
        assert list(found.subjects) == []


async def test_each_port_serves_its_own(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin, calling(admin.running) as client:
        with pytest.raises(UnimplementedError):
            await client.unary("/danube_admin.BrokerAdmin/ListBrokers", pb.Empty(), pb.BrokerListResponse)
        with pytest.raises(UnimplementedError):
            await admin.caller.lookup(TOPIC)


# --- Namespaces ---


async def test_namespaces_come_and_go(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin:
        assert (await admin("NamespaceAdmin.CreateNamespace", name="shop")).success
        assert "shop" in (await admin("BrokerAdmin.ListNamespaces")).namespaces
        await admin.fails(NotFoundError, "NamespaceAdmin.CreateNamespace", "exists already", name="shop")
        await admin.fails(NotFoundError, "NamespaceAdmin.CreateNamespace", "not a valid name", name="a/b")
        await admin("TopicAdmin.CreateTopic", name="/shop/t")
        await admin("TopicAdmin.CreatePartitionedTopic", base_name="/shop/p", partitions=2)
        topics = (await admin("NamespaceAdmin.GetNamespaceTopics", name="shop")).topics
        assert topics == ["/shop/p-part-0", "/shop/p-part-1", "/shop/t"]
        await admin.fails(NotFoundError, "NamespaceAdmin.DeleteNamespace", "still holds 2", name="shop")
        for name in ("/shop/t", "/shop/p"):
            assert (await admin("TopicAdmin.DeleteTopic", name=name)).success
        assert (await admin("NamespaceAdmin.DeleteNamespace", name="shop")).success
        await admin.fails(NotFoundError, "NamespaceAdmin.DeleteNamespace", "does not exist", name="shop")
        await admin.fails(NotFoundError, "NamespaceAdmin.DeleteNamespace", "built in", name="default")
        for nothing in ("shop", ""):
            assert (await admin("NamespaceAdmin.GetNamespaceTopics", name=nothing)).topics == []
            assert list((await admin("TopicAdmin.ListNamespaceTopics", name=nothing)).topics) == []


async def test_policies_of_a_namespace_have_upstream_names(tmp_path: Path) -> None:
    async with administrating(tmp_path, policies={"max_producers": 7}) as admin, admin.running.client() as client:
        rate = Rate(messages_per_s=1.5)
        await client.admin.change_policies("default", max_consumers=3, publish_rate=rate, max_message_bytes=1000)
        shown = json.loads((await admin("NamespaceAdmin.GetNamespacePolicies", name="default")).policies)
        assert shown == {
            "max_producers_per_topic": 7,
            "max_subscriptions_per_topic": 0,
            "max_consumers_per_topic": 3,
            "max_consumers_per_subscription": 0,
            "max_publish_rate": 2,
            "max_subscription_dispatch_rate": 0,
            "max_message_size": 1000,
        }
        limit = admin.running.config.limits.max_message_bytes
        shown = json.loads((await admin("NamespaceAdmin.GetNamespacePolicies", name="system")).policies)
        assert shown["max_message_size"] == limit
        for nothing in ("nothing", "", "/default/x"):
            await admin.fails(NotFoundError, "NamespaceAdmin.GetNamespacePolicies", name=nothing)


# --- Topics ---


async def test_topics_are_created_as_they_are_to_be_delivered(tmp_path: Path) -> None:
    async with administrating(tmp_path, durability="os") as admin, admin.running.client() as client:
        me = (await admin("BrokerAdmin.GetLeaderBroker")).leader
        assert (await admin("TopicAdmin.CreateTopic", name=TOPIC, dispatch_strategy=pb.Reliable)).success
        assert (await admin("TopicAdmin.CreateTopic", name="/default/fast")).success
        assert (
            await admin(
                "TopicAdmin.CreatePartitionedTopic", base_name="/default/p", partitions=2, dispatch_strategy=pb.Reliable
            )
        ).success
        expected = [
            ("/default/fast", "NonReliable"),
            (TOPIC, "Reliable"),
            ("/default/p-part-0", "Reliable"),
            ("/default/p-part-1", "Reliable"),
        ]
        for found in (
            await admin("TopicAdmin.ListNamespaceTopics", name="default"),
            await admin("TopicAdmin.ListBrokerTopics", broker_id=me),
        ):
            assert [(each.name, each.delivery) for each in found.topics] == expected
            assert {each.broker_id for each in found.topics} == {me}
        for nothing in ("", "77"):
            assert list((await admin("TopicAdmin.ListBrokerTopics", broker_id=nothing)).topics) == []
        infos = {info.topic: info for info in await client.admin.list_topics()}
        assert infos[TOPIC].durability is Durability.OS
        assert infos["/default/fast"].durability is Durability.NONE
        assert infos["/default/p"].partitions == 2


async def test_topics_that_cannot_be_created(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin:
        create, parts = "TopicAdmin.CreateTopic", "TopicAdmin.CreatePartitionedTopic"
        await admin(create, name=TOPIC)
        await admin.fails(NotFoundError, create, "exists already", name=TOPIC)
        await admin.fails(NotFoundError, create, "must have the form", name="orders")
        await admin.fails(NotFoundError, create, "namespace 'shop'", name="/shop/orders")
        await admin.fails(NotFoundError, create, "named like a partition", name="/default/x-part-1")
        await admin.fails(NotFoundError, create, "subject 's' not found", name="/default/x", schema_subject="s")
        await admin.fails(InvalidArgumentError, create, "dispatch strategy 7", name="/default/x", dispatch_strategy=7)
        await admin.fails(NotFoundError, parts, "exists already", base_name=TOPIC, partitions=2)
        await admin.fails(NotFoundError, parts, "at least 1 partition", base_name="/default/x")
        await admin.fails(NotFoundError, parts, "max_partitions", base_name="/default/x", partitions=1_000_000)
        wrong = {"base_name": "/default/x", "partitions": 2, "dispatch_strategy": 7}
        await admin.fails(InvalidArgumentError, parts, "dispatch strategy 7", **wrong)
        assert (await admin("NamespaceAdmin.GetNamespaceTopics", name="default")).topics == [TOPIC]


async def test_topics_that_cannot_be_deleted(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin:
        delete = "TopicAdmin.DeleteTopic"
        await admin("TopicAdmin.CreatePartitionedTopic", base_name="/default/p", partitions=2)
        await admin.fails(NotFoundError, delete, "does not exist", name=TOPIC)
        # Upstream's tools look for these words.
        await admin.fails(NotFoundError, delete, "Cannot delete individual partition", name="/default/p-part-0")
        await admin.fails(NotFoundError, delete, "does not exist", name="/default/q-part-0")
        assert len((await admin("TopicAdmin.ListNamespaceTopics", name="default")).topics) == 2
        await admin.fails(NotFoundError, delete, "must have the form", name="orders")


async def test_describing_never_fails(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin, admin.running.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/p", partitions=2)
        async with (
            client.consumer(TOPIC, subscription="b"),
            client.consumer(TOPIC, subscription="a"),
            client.consumer("/default/p", subscription="c"),
        ):
            me = (await admin("BrokerAdmin.GetLeaderBroker")).leader
            found = await admin("TopicAdmin.DescribeTopic", name=TOPIC)
            assert (found.name, found.broker_id, found.delivery) == (TOPIC, me, "Reliable")
            assert found.subscriptions == ["a", "b"]
            assert not any(found.HasField(name) for name in ("schema_subject", "schema_id", "schema_version"))
            for name in ("/default/p", "/default/p-part-1"):
                assert (await admin("TopicAdmin.DescribeTopic", name=name)).subscriptions == ["c"]
            assert (await admin("TopicAdmin.ListSubscriptions", name=TOPIC)).subscriptions == ["a", "b"]
            assert (await admin("TopicAdmin.ListSubscriptions", name="/default/p")).subscriptions == ["c"]
        for nothing in ("/default/nothing", "nothing", ""):
            unknown = await admin("TopicAdmin.DescribeTopic", name=nothing)
            assert (unknown.subscriptions, unknown.broker_id, unknown.delivery) == ([], "", "NonReliable")
            assert (await admin("TopicAdmin.ListSubscriptions", name=nothing)).subscriptions == []


# --- Subscriptions ---


async def test_unsubscribing(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin, admin.running.client() as client:
        for topic, partitions in ((TOPIC, 0), ("/default/p", 2)):
            await client.admin.create_topic(topic, partitions=partitions)
            async with client.consumer(topic, subscription=SUB):
                pass
            assert (await admin("TopicAdmin.Unsubscribe", topic=topic, subscription=SUB)).success
            assert (await admin("TopicAdmin.ListSubscriptions", name=topic)).subscriptions == []
            await admin.fails(NotFoundError, "TopicAdmin.Unsubscribe", "no sub", topic=topic, subscription=SUB)
        await admin.fails(NotFoundError, "TopicAdmin.Unsubscribe", topic="/default/none", subscription=SUB)
        await admin.fails(NotFoundError, "TopicAdmin.Unsubscribe", topic="orders", subscription=SUB)


POLICY = {
    "max_redelivery_count": 2,
    "ack_timeout_ms": 1500,
    "base_redelivery_delay_ms": 100,
    "max_redelivery_delay_ms": 2000,
    "backoff_strategy": pb.Fixed,
    "poison_policy": pb.Drop,
}


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key_shared"])
async def test_failure_policies_go_back_and_forth(tmp_path: Path, kind: Any) -> None:
    async with administrating(tmp_path) as admin, admin.running.client() as client:
        await client.admin.create_topic(TOPIC)
        async with client.consumer(TOPIC, subscription=SUB, type=kind):
            get, sub = "TopicAdmin.GetSubscriptionFailurePolicy", {"topic": TOPIC, "subscription": SUB}
            first = await admin(get, **sub)
            policy = first.failure_policy
            assert first.subscription_type == {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}[kind]
            assert (policy.max_redelivery_count, policy.ack_timeout_ms) == (5, 30_000)
            assert (policy.base_redelivery_delay_ms, policy.max_redelivery_delay_ms) == (1000, 60_000)
            assert (policy.backoff_strategy, policy.poison_policy) == (pb.Exponential, pb.Block)
            assert not policy.HasField("dead_letter_topic")
            for wanted in (
                POLICY,
                {**POLICY, "poison_policy": pb.DeadLetter, "dead_letter_topic": "/default/dead"},
                {**POLICY, "backoff_strategy": pb.Exponential, "poison_policy": pb.Block},
                {**POLICY, "max_redelivery_count": 2**32 - 1},
            ):
                given = pb.SubscriptionFailurePolicy(**wanted)
                await admin("TopicAdmin.SetSubscriptionFailurePolicy", failure_policy=given, **sub)
                assert (await admin(get, **sub)).failure_policy == given
            (info,) = await client.admin.describe_subscription(TOPIC, SUB)
            assert info.policy.max_redelivery_count == -1
            assert info.policy.poison == "drop"
            assert info.policy.ack_timeout_s == 1.5


async def test_a_failure_policy_acts_at_once_and_survives(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin:
        running, sub = admin.running, {"topic": TOPIC, "subscription": SUB}
        async with running.client() as client:
            for topic in (TOPIC, "/default/dead"):
                await client.admin.create_topic(topic)
            async with client.consumer(TOPIC, subscription=SUB, type="shared") as consumer:
                async with client.producer(TOPIC) as producer:
                    await producer.send(b"poison")
                (message,) = await take(consumer, 1)
                policy = pb.SubscriptionFailurePolicy(
                    **{**POLICY, "max_redelivery_count": 0, "poison_policy": pb.DeadLetter},
                    dead_letter_topic="/default/dead",
                )
                await admin("TopicAdmin.SetSubscriptionFailurePolicy", failure_policy=policy, **sub)
                await message.nack()
                async with client.consumer("/default/dead", subscription="s", start="earliest") as dead:
                    assert (await dead.receive()).payload == b"poison"
        port = admin_port(running)
        running.config = msgspec.structs.replace(running.config, admin_listen=(f"127.0.0.1:{port}",))
        await running.restart()
        async with calling(running, port) as caller:
            again = Admin(running, caller)
            assert (await again("TopicAdmin.GetSubscriptionFailurePolicy", **sub)).failure_policy == policy


async def test_policies_that_cannot_be(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin, admin.running.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/fast", durability="none")
        method, sub = "TopicAdmin.SetSubscriptionFailurePolicy", {"topic": TOPIC, "subscription": SUB}
        async with (
            client.consumer(TOPIC, subscription=SUB),
            client.consumer("/default/fast", subscription=SUB),
        ):
            await admin.fails(InvalidArgumentError, method, "missing", **sub)
            for changed, said in (
                ({"poison_policy": pb.DeadLetter}, "needs a dead_letter_topic"),
                ({"poison_policy": pb.DeadLetter, "dead_letter_topic": "dead"}, "must have the form"),
                ({"poison_policy": pb.DeadLetter, "dead_letter_topic": TOPIC}, "where they come from"),
                ({"poison_policy": 7}, "poison policy 7"),
                ({"backoff_strategy": 7}, "backoff strategy 7"),
            ):
                policy = pb.SubscriptionFailurePolicy(**{**POLICY, **changed})
                await admin.fails(InvalidArgumentError, method, said, failure_policy=policy, **sub)
            policy = pb.SubscriptionFailurePolicy(**POLICY)
            await admin.fails(
                FailedPreconditionError, method, "NonReliable", topic="/default/fast", subscription=SUB,
                failure_policy=policy,
            )  # fmt: skip
            unknown = {**sub, "topic": "/default/none"}
            await admin.fails(NotFoundError, method, failure_policy=policy, **unknown)
            await admin.fails(NotFoundError, "TopicAdmin.GetSubscriptionFailurePolicy", **unknown)
            untouched = (await admin("TopicAdmin.GetSubscriptionFailurePolicy", **sub)).failure_policy
            assert (untouched.max_redelivery_count, untouched.poison_policy) == (5, pb.Block)


async def test_the_dispatch_config_limits_what_is_unacknowledged(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin, admin.running.client() as client:
        await client.admin.create_topic(TOPIC)
        put, get = "TopicAdmin.SetSubscriptionDispatchConfig", "TopicAdmin.GetSubscriptionDispatchConfig"
        sub = {"topic": TOPIC, "subscription": SUB}
        async with client.consumer(TOPIC, subscription=SUB, type="shared") as consumer:
            assert not (await admin(get, **sub)).HasField("dispatch_config")
            config = pb.SubscriptionDispatchConfig(max_unacked_messages=3)
            assert (await admin(put, dispatch_config=config, **sub)).success
            assert (await admin(get, **sub)).dispatch_config == config
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"%d" % number for number in range(10)])
            messages = await take(consumer, 3)
            with trio.move_on_after(0.3) as silence:
                await consumer.receive()
            assert silence.cancelled_caught
            await messages[0].ack()
            await take(consumer, 1)
            await admin(put, dispatch_config=pb.SubscriptionDispatchConfig(max_unacked_messages=10_000), **sub)
            await take(consumer, 6)
            for wrong in (0, 10_001):
                config = pb.SubscriptionDispatchConfig(max_unacked_messages=wrong)
                await admin.fails(InvalidArgumentError, put, "between 1 and 10000", dispatch_config=config, **sub)
            await admin.fails(InvalidArgumentError, put, **sub)
            config = pb.SubscriptionDispatchConfig(max_unacked_messages=3)
            unknown = {**sub, "topic": "/default/none"}
            await admin.fails(NotFoundError, put, dispatch_config=config, **unknown)
            await admin.fails(NotFoundError, get, **unknown)


# --- Subscriptions that do not exist yet ---

SET, GET = "TopicAdmin.SetSubscriptionFailurePolicy", "TopicAdmin.GetSubscriptionFailurePolicy"


async def reopened(admin: Admin) -> tuple[RunningBroker, int]:
    """Restart the broker on the same admin port, and return that."""
    running = admin.running
    port = admin_port(running)
    running.config = msgspec.structs.replace(running.config, admin_listen=(f"127.0.0.1:{port}",))
    await running.restart()
    return running, port


@pytest.mark.parametrize("durability", ["disk", "remote"])
async def test_a_policy_waits_for_its_subscription(tmp_path: Path, durability: Any) -> None:
    async with administrating(tmp_path) as admin:
        sub, given = {"topic": TOPIC, "subscription": SUB}, pb.SubscriptionFailurePolicy(**POLICY)
        async with admin.running.client() as client:
            await client.admin.create_topic(TOPIC, durability=durability)
        unset = await admin(GET, **sub)
        assert not unset.HasField("failure_policy")
        assert (await admin(SET, failure_policy=given, **sub)).success
        config = pb.SubscriptionDispatchConfig(max_unacked_messages=3)
        assert (await admin("TopicAdmin.SetSubscriptionDispatchConfig", dispatch_config=config, **sub)).success
        assert (await admin("TopicAdmin.ListSubscriptions", name=TOPIC)).subscriptions == []
        running, port = await reopened(admin)
        async with calling(running, port) as caller, calling(running) as plane, running.client() as client:
            again = Admin(running, caller)
            assert (await again(GET, **sub)).failure_policy == given
            assert (await again("TopicAdmin.GetSubscriptionDispatchConfig", **sub)).dispatch_config == config
            await subscribe(plane, TOPIC, subscription=SUB, kind=SHARED)
            assert (await again(GET, **sub)).failure_policy == given
            assert (await again(GET, **sub)).subscription_type == SHARED
            (info,) = await client.admin.describe_subscription(TOPIC, SUB)
            assert (info.policy.poison, info.policy.max_unacked_messages) == ("drop", 3)
            await client.admin.change_subscription_policy(TOPIC, SUB, poison="block")
            assert (await again("TopicAdmin.Unsubscribe", **sub)).success
            await subscribe(plane, TOPIC, subscription=SUB)  # a new one, without settings
            (info,) = await client.admin.describe_subscription(TOPIC, SUB)
            assert (info.policy.poison, info.policy.max_redelivery_count) == ("block", 5)


async def test_messages_dropped_by_an_earlier_policy(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin, calling(admin.running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        given = pb.SubscriptionFailurePolicy(**{**POLICY, "max_redelivery_count": 0})
        await admin(SET, failure_policy=given, topic=TOPIC, subscription="s")
        async with receiving(caller, await subscribe(caller, TOPIC)) as stream:
            await caller.send(TOPIC, producer_id, b"poison")
            await caller.send(TOPIC, producer_id, b"good")
            first = await stream.next()
            assert first.payload == b"poison"
            await nack(caller, first)
            assert (await stream.next()).payload == b"good"
            assert await stream.silent()


async def test_a_policy_waits_in_each_partition(tmp_path: Path) -> None:
    base = "/default/p"
    async with administrating(tmp_path) as admin, calling(admin.running) as caller, admin.running.client() as client:
        await client.admin.create_topic(base, partitions=2)
        await subscribe(caller, f"{base}-part-1", subscription=SUB)
        part = {"topic": f"{base}-part-0", "subscription": SUB}
        own = pb.SubscriptionFailurePolicy(**{**POLICY, "max_redelivery_count": 9})
        every = pb.SubscriptionFailurePolicy(**{**POLICY, "max_redelivery_count": 4})
        await admin(SET, failure_policy=own, **part)
        assert (await admin(GET, **part)).failure_policy == own
        assert (await admin(GET, topic=f"{base}-part-1", subscription=SUB)).failure_policy.max_redelivery_count == 5
        await admin(
            SET, failure_policy=every, topic=base, subscription=SUB
        )  # of one that exists, and one that does not
        await subscribe(caller, f"{base}-part-0", subscription=SUB)
        await caller.create(f"{base}-part-2")  # one more partition
        await subscribe(caller, f"{base}-part-2", subscription=SUB)
        assert {info.policy.max_redelivery_count for info in await client.admin.describe_subscription(base, SUB)} == {4}
        await client.admin.change_subscription_policy(base, SUB, max_redelivery_count=6)
        await caller.create(f"{base}-part-3")
        await subscribe(caller, f"{base}-part-3", subscription=SUB)
        assert {info.policy.max_redelivery_count for info in await client.admin.describe_subscription(base, SUB)} == {6}


async def test_a_policy_that_is_set_while_the_subscription_is_created(tmp_path: Path) -> None:
    async with administrating(tmp_path) as admin, calling(admin.running) as caller, trio.open_nursery() as nursery:
        await caller.create(TOPIC)
        rows, held, reached = admin.running.broker.directory.catalogue.subscriptions, trio.Event(), trio.Event()
        create = rows.create

        async def slow(*args: Any) -> Any:
            reached.set()
            await held.wait()
            return await create(*args)

        rows.create = slow  # type: ignore[method-assign]
        nursery.start_soon(subscribe, caller, TOPIC, "c", SUB)
        await reached.wait()
        given = pb.SubscriptionFailurePolicy(**POLICY)
        nursery.start_soon(lambda: admin(SET, failure_policy=given, topic=TOPIC, subscription=SUB))
        await trio.testing.wait_all_tasks_blocked(0.05)
        held.set()
        await wait_until(lambda: SUB in admin.running.topic(TOPIC).subscriptions)
        found = admin.running.topic(TOPIC).subscriptions[SUB]
        await wait_until(lambda: found.policy.max_redelivery_count == 2)


async def test_policies_that_wait_are_limited_and_can_be_dropped(tmp_path: Path) -> None:
    async with administrating(tmp_path, limits={"max_planned_subscriptions": 2}) as admin:
        given = pb.SubscriptionFailurePolicy(**POLICY)
        await admin("TopicAdmin.CreateTopic", name=TOPIC, dispatch_strategy=pb.Reliable)
        for name in ("a", "b", "a"):
            await admin(SET, failure_policy=given, topic=TOPIC, subscription=name)
        await admin.fails(
            LimitExceededError, SET, "max_planned_subscriptions = 2", failure_policy=given, topic=TOPIC,
            subscription="c",
        )  # fmt: skip
        assert (await admin("TopicAdmin.Unsubscribe", topic=TOPIC, subscription="a")).success
        assert not (await admin(GET, topic=TOPIC, subscription="a")).HasField("failure_policy")
        await admin.fails(NotFoundError, "TopicAdmin.Unsubscribe", "no sub", topic=TOPIC, subscription="a")
        async with calling(admin.running) as caller:
            await subscribe(caller, TOPIC, subscription="b")  # and is no plan any more
        for name in ("c", "d"):
            await admin(SET, failure_policy=given, topic=TOPIC, subscription=name)
        await admin.fails(InvalidArgumentError, SET, "not valid", failure_policy=given, topic=TOPIC, subscription="a b")
