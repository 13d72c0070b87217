"""Access control in a cluster, on simulated machines in virtual time: what is taken away ends everywhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster
from test_security_gate import Calls, ended
from token_helpers import CLUSTER_KEY

from danube.metadata import Delete, Put
from danube.model import SubscriptionType, api
from danube.model.errors import CallRefusedError, PermissionDeniedError, Status, UnavailableError
from danube.model.names import partition_name
from danube.model.policy_api import ChangeSubscriptionPolicy, PolicyMethod
from danube.security.book import first_records
from danube.security.proofs import mint
from danube.security.records import BINDINGS, REVOKED, BindingRecord, RevocationRecord, SecurityRecord, encode_record
from danube.wire import connect_channel

pytestmark = pytest.mark.virtual

TOPIC = "/shop/orders"
STALE_S = 20.0
API = BindingRecord(subject="service:api", roles=("namespace-admin",), scope="namespace:shop")


async def write(world: ClusterWorld, **records: SecurityRecord | None) -> None:
    """Change bindings, by id, as any broker does."""
    operations: list[Put | Delete] = [Put("/security-changes", b"")]
    for name, record in records.items():
        operations.append(Delete(BINDINGS + name) if record is None else Put(BINDINGS + name, encode_record(record)))
    await world.store.transact([], operations)


def token(world: ClusterWorld, subject: str, token_id: str = "t") -> str:
    now_s = world.wall_clock_us() // 1_000_000
    return mint(
        CLUSTER_KEY,
        issuer="danube",
        cluster="danube",
        subject=subject,
        token_id=token_id,
        issued_at_s=now_s,
        expires_at_s=now_s + 86_400,
    )


@asynccontextmanager
async def calling(world: ClusterWorld, machine: Machine, subject: str, **options: Any) -> AsyncGenerator[Calls, None]:
    connect = partial(world.network.connect, "test", machine.name, 6650)
    async with connect_channel(machine.name, 6650, connect=connect) as channel:
        yield Calls(channel, {"authorization": f"Bearer {token(world, subject, **options)}"})


@asynccontextmanager
async def secured(directory: Path) -> AsyncGenerator[ClusterWorld, None]:
    """Run three brokers with a topic of six partitions, which service:api may use."""
    security = {"enabled": True, "limits": {"security_stale_s": STALE_S}}
    async with cluster(directory, 3, cluster_secret="/simulated/secret", security=security) as world:
        for key, record in first_records("danube", CLUSTER_KEY.public_bytes, "user:admin", {}, now_us=1):
            assert record is not None
            await world.store.put(key, encode_record(record))
        await write(world, api=API)
        await trio.sleep(1)
        async with calling(world, world.machines[0], "user:admin") as admin:
            await admin(api.Method.CREATE_NAMESPACE, api.CreateNamespace("shop"), api.Done)
            await admin(api.Method.CREATE_TOPIC, api.CreateTopic(TOPIC, 6), api.TopicInfo)
        await wait_until(lambda: len(parts_of(world)) == 6)
        yield world


def parts_of(world: ClusterWorld) -> list[Any]:
    """Return the partitions of the topic that are served."""
    served = (topic for each in world.machines for topic in each.broker.directory.topics())
    return [topic for topic in served if topic.name.startswith(TOPIC)]


def owner_of(world: ClusterWorld, topic: str) -> Machine:
    return next(each for each in world.machines if any(one.name == topic for one in each.broker.directory.topics()))


async def test_calls_about_topics_of_several_brokers_are_judged_once(tmp_path: Path) -> None:
    async with secured(tmp_path) as world:
        for machine in world.machines:
            async with calling(world, machine, "service:api") as calls, calling(world, machine, "service:x") as other:
                found = await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(TOPIC), api.TopicInfo)
                assert found.partitions == 6
                listed = await calls(api.Method.LIST_TOPICS, api.ListTopics("shop"), api.TopicList)
                assert [(row.topic, row.silent) for row in listed.topics] == [(TOPIC, [])]
                with pytest.raises(PermissionDeniedError):
                    await other(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(TOPIC))
                with pytest.raises(PermissionDeniedError):
                    await other(api.Method.LIST_TOPICS, api.ListTopics("shop"))


async def test_each_broker_keeps_an_audit_log_of_its_own(tmp_path: Path) -> None:
    async with secured(tmp_path) as world:
        second = world.machines[1]

        def end_of(machine: Machine) -> int:
            (log,) = [topic for topic in machine.broker.directory.topics() if topic.name.startswith("/system/")]
            assert log.name == f"/system/audit-b{world.machines.index(machine) + 1}"
            return int(log.end_offset)

        async def deny() -> None:
            async with calling(world, second, "service:x") as other:
                with pytest.raises(PermissionDeniedError):
                    await other(api.Method.DELETE_TOPIC, api.DeleteTopic(TOPIC))

        await trio.sleep(1)
        before = [end_of(each) for each in world.machines]
        assert before[0] > 0  # where the administrator called
        await deny()
        await trio.sleep(1)
        assert [end_of(each) for each in world.machines] == [before[0], before[1] + 1, before[2]]
        await second.kill()
        await second.start()
        await wait_until(lambda: end_of(second) == before[1] + 1)
        await deny()
        await wait_until(lambda: end_of(second) == before[1] + 2)


async def test_dead_letters_of_partitions_at_other_brokers_go_where_the_caller_may_produce(tmp_path: Path) -> None:
    async with secured(tmp_path) as world:
        secret = "/hr/salaries"
        parts = parts_of(world)
        for topic in parts:
            await topic.subscribe(
                api.ConsumeOpen(
                    topic=topic.name,
                    subscription="s",
                    consumer_name="c",
                    type=SubscriptionType.SHARED,
                    start="earliest",
                )
            )
        policies = {"poison": "dead_letter", "dead_letter_topic": secret, "max_redelivery_count": 1}

        def targets() -> set[tuple[str, str]]:
            found = [topic.subscriptions["s"].policy for topic in parts]
            return {(policy.poison.value, policy.dead_letter_topic) for policy in found}

        before = targets()
        async with calling(world, world.machines[0], "service:api") as calls:

            async def change(**changes: Any) -> None:
                request = ChangeSubscriptionPolicy(TOPIC, "s", changes)
                await calls(PolicyMethod.CHANGE_SUBSCRIPTION, request, api.SubscriptionList)

            with pytest.raises(PermissionDeniedError, match=f"service:api may not .* requires Produce on {secret}"):
                await change(**policies)
            assert targets() == before
            # The name alone sends nothing there; only the owner knows it when dead letters are wanted later.
            await change(dead_letter_topic=secret)
            named = targets()
            assert {name for _, name in named} == {secret}
            with pytest.raises(PermissionDeniedError, match=f"service:api may not .* requires Produce on {secret}"):
                await change(poison="dead_letter")
            assert targets() == named
            await write(world, api=API, more=BindingRecord(subject="service:api", roles=("producer",), scope=secret))
            await trio.sleep(1)
            await change(poison="dead_letter")
            assert targets() == {("dead_letter", secret)}


@pytest.mark.parametrize("revoked", [False, True])
async def test_streams_end_at_all_brokers_within_two_seconds(tmp_path: Path, revoked: bool) -> None:
    async with secured(tmp_path) as world, AsyncExitStack() as stack:
        streams = []
        for index in range(6):
            name = partition_name(TOPIC, index)
            calls = await stack.enter_async_context(
                calling(world, owner_of(world, name), "service:api", token_id="stolen")
            )
            producer = await stack.enter_async_context(calls.producing(name))
            producer.send(0, b"x")
            await producer.acked()
            streams.append(producer.stream)
        assert len({owner_of(world, partition_name(TOPIC, index)).name for index in range(6)}) == 3
        began = trio.current_time()
        if revoked:
            record = RevocationRecord(expires_us=world.wall_clock_us() + 10**12)
            await world.store.put(f"{REVOKED}stolen", encode_record(record))
        else:
            await write(world, api=None)
        for stream in streams:
            error = await ended(stream, 2.0)
            assert error.status is (Status.UNAUTHENTICATED if revoked else Status.PERMISSION_DENIED)
        assert trio.current_time() - began < 2.0


async def test_a_broker_that_does_not_reach_the_metadata_keeps_rights_for_a_while(tmp_path: Path) -> None:
    async with secured(tmp_path) as world:
        name = partition_name(TOPIC, 0)
        lost = owner_of(world, name)
        async with calling(world, lost, "service:api") as calls:
            async with calls.producing(name) as producer:
                lost.cut_off()
                await trio.sleep(STALE_S / 2)
                producer.send(0, b"x")
                await producer.acked()
                async with calling(world, lost, "service:api", token_id="new") as late:
                    with pytest.raises(UnavailableError, match="nothing new can be proven"):
                        await late(api.Method.INFO, api.Empty())
                error = await ended(producer.stream, STALE_S)
                assert error.status is Status.UNAVAILABLE
            with pytest.raises(UnavailableError):
                await calls(api.Method.INFO, api.Empty())
            lost.heal()
            await trio.sleep(5)
            async with calls.producing(name) as producer:
                producer.send(1, b"x")
                await producer.acked()


async def test_what_was_revoked_is_refused_where_it_is_known(tmp_path: Path) -> None:
    """A broker that does not reach the metadata keeps rights for a while, but not at the others, which know better."""
    async with secured(tmp_path) as world:
        parts = parts_of(world)
        for topic in parts:
            await topic.subscribe(
                api.ConsumeOpen(topic=topic.name, subscription="s", consumer_name="c", start="earliest")
            )
        lost = world.machines[0]
        assert 0 < len([topic for topic in parts if topic in lost.broker.directory.topics()]) < len(parts)
        async with calling(world, lost, "service:api") as calls:
            listed = await calls(api.Method.LIST_SUBSCRIPTIONS, api.ListSubscriptions(TOPIC), api.SubscriptionList)
            assert [each.subscription for each in listed.subscriptions] == ["s"] * 6
            lost.cut_off()
            lost.node.faults.break_watch = 1.0
            await write(world, last=BindingRecord(subject="service:x", roles=("viewer",), scope="cluster"))
            await trio.sleep(0.1)  # what a watch was waiting for still arrives; nothing else does
            await calls(api.Method.LIST_SUBSCRIPTIONS, api.ListSubscriptions(TOPIC), api.SubscriptionList)
            await write(world, api=None)
            await trio.sleep(2.0)
            with pytest.raises(CallRefusedError, match="not heard of the latest change of access control"):
                await calls(api.Method.LIST_SUBSCRIPTIONS, api.ListSubscriptions(TOPIC), api.SubscriptionList)
            with pytest.raises(UnavailableError):  # its own part needs the metadata, and may fail first
                await calls(api.Method.DELETE_SUBSCRIPTION, api.DeleteSubscription(TOPIC, "s"), api.Done)
            elsewhere = [topic for topic in parts if topic not in lost.broker.directory.topics()]
            assert all("s" in topic.subscriptions for topic in elsewhere)
            await calls(api.Method.INFO, api.Empty())  # which it answers itself
            lost.heal()
            lost.node.faults.break_watch = 0.0
            await trio.sleep(5)
            with pytest.raises(PermissionDeniedError):
                await calls(api.Method.LIST_SUBSCRIPTIONS, api.ListSubscriptions(TOPIC), api.SubscriptionList)


async def test_calls_are_passed_on_while_rights_of_others_change(tmp_path: Path) -> None:
    """Brokers that reach the metadata hear of each change before the others demand it."""
    async with secured(tmp_path) as world, calling(world, world.machines[0], "service:api") as calls:
        for number in range(40):
            await write(world, other=BindingRecord(subject=f"service:n{number}", roles=("viewer",), scope="cluster"))
            await trio.sleep(0.13)
            found = await calls(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(TOPIC), api.TopicInfo)
            assert found.partitions == 6


async def test_a_relayed_call_says_what_its_judge_has_seen(tmp_path: Path) -> None:
    """Also one whose sender leaves that out, as brokers of earlier versions do."""
    async with secured(tmp_path) as world:
        await trio.sleep(2)
        across = world.machines[1].broker.operations.topics.across
        known = across.security_known()
        assert known > 0
        owned = next(topic.name for topic in parts_of(world) if owner_of(world, topic.name) is world.machines[1])
        part = [api.Method.DESCRIBE_TOPIC, msgspec.msgpack.encode(api.DescribeTopic(TOPIC)), [owned], []]
        for seen in ([], [0], [known - 1]):
            with pytest.raises(CallRefusedError, match="latest change of access control"):
                await across.answer(None, msgspec.msgpack.encode(part + seen))
        for seen in (known, known + 1):
            (reply,) = msgspec.msgpack.decode(await across.answer(None, msgspec.msgpack.encode([*part, seen])))
            assert reply[1] == 0
