"""Upstream's tools and clients in a cluster: redirects, real brokers in the lists, admin calls at any broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster

import danube.broker.broker
from danube.broker.directory import recovery
from danube.broker.security.caller import calling
from danube.compat.admin import admin_services
from danube.compat.discovery import Discovery
from danube.compat.proto import danube_admin_pb2 as pb
from danube.compat.proto import danube_api_pb2 as api_pb
from danube.compat.relay import Relay
from danube.model.errors import (
    CallRefusedError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OwnerAwayError,
    PermissionDeniedError,
    UnavailableError,
    UnimplementedError,
)

pytestmark = pytest.mark.virtual

REDIRECT, CONNECT = api_pb.TopicLookupResponse.Redirect, api_pb.TopicLookupResponse.Connect


class Tool:
    """Upstream's tool at one broker, without the wire."""

    def __init__(self, world: ClusterWorld, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.handlers: dict[str, Any] = {}
        machine.broker.peers = self
        relay = Relay(machine.broker)
        self.methods = admin_services(machine.broker, relay)
        self.discovery = Discovery(machine.broker)
        relay.begin()

    def on_call(self, channel: str, handler: Any) -> None:
        self.handlers[channel] = handler

    def complete(self) -> None:
        """All channels have their handlers."""

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """The link to another broker."""
        other = next((each for each in self.world.tools if f"{each.machine.name}:6650" == to), None)
        if other is None or other.machine.node.life is None:
            raise CallRefusedError(f"the link to {to} is down")
        with calling(None):  # another process: it knows no caller
            return await other.handlers[channel](None, payload)

    async def __call__(self, method: str, **fields: Any) -> Any:
        service, _, name = method.partition(".")
        described = pb.DESCRIPTOR.services_by_name[service].methods_by_name[name]
        request = getattr(pb, described.input_type.name)(**fields)
        return await self.methods[f"/danube_admin.{service}/{name}"].handler(request, None)

    async def fails(self, kind: type[DanubeError], method: str, match: str, **fields: Any) -> None:
        with pytest.raises(DanubeError, match=match) as caught:
            await self(method, **fields)
        assert caught.value.status is kind.status

    async def look_up(self, topic: str) -> Any:
        context = SimpleNamespace(authority=f"{self.machine.name}.public:6650", secure=False)
        return await self.discovery.topic_lookup(api_pb.TopicLookupRequest(request_id=7, topic=topic), context)


@asynccontextmanager
async def tools(directory: Path, count: int = 3) -> AsyncGenerator[list[Tool], None]:
    async with cluster(directory, count) as world:
        world.tools = []
        for machine in world.machines:
            world.tools.append(Tool(world, machine))
        yield world.tools


async def created(found: list[Tool], name: str, partitions: int = 0, **more: Any) -> list[Tool]:
    """Create a topic; return the tools at its owners, in the order of its partitions, once they serve it."""
    directories = [tool.machine.broker.directory for tool in found]
    record = await directories[0].create(name, more.get("durability"), partitions)
    for topic_id in record.topic_ids:
        await wait_until(lambda topic_id=topic_id: any(each.served(topic_id) for each in directories))
    await wait_until(lambda: all(each.catalogue.find(name) for each in directories))
    return [
        next(tool for tool in found if tool.machine.broker.directory.served(topic_id)) for topic_id in record.topic_ids
    ]


async def test_lookups_redirect_to_the_owner(tmp_path: Path) -> None:
    async with tools(tmp_path) as found:
        owners = {}
        for number in range(3):
            (owners[f"/default/t{number}"],) = await created(found, f"/default/t{number}")
        assert len({tool.machine.name for tool in owners.values()}) == 3
        for topic, owner in owners.items():
            for tool in found:
                answer = await tool.look_up(topic)
                assert (answer.request_id, answer.proxy) == (7, False)
                assert answer.connect_url == answer.broker_url
                if tool is owner:
                    expected = (CONNECT, f"http://{tool.machine.name}.public:6650")
                else:
                    expected = (REDIRECT, f"http://{owner.machine.name}:6650")
                assert (answer.response_type, answer.connect_url) == expected


async def test_a_lookup_of_a_topic_whose_owner_is_away_is_to_be_repeated(tmp_path: Path) -> None:
    async with tools(tmp_path, 2) as found:
        for number in range(2):
            (owner,) = await created(found, f"/default/t{number}", durability="disk")
            if owner is found[1]:
                topic = f"/default/t{number}"
        await found[1].machine.kill()
        await wait_until(lambda: "b2" not in found[0].machine.broker.directory.membership.sessions.values)
        with pytest.raises(OwnerAwayError, match="b2") as caught:
            await found[0].look_up(topic)
        assert caught.value.status is UnavailableError.status
        with pytest.raises(NotFoundError):
            await found[0].look_up("/default/unknown")


async def test_tools_see_all_brokers(tmp_path: Path) -> None:
    async with tools(tmp_path) as found:
        for tool in found:
            brokers = (await tool("BrokerAdmin.ListBrokers")).brokers
            assert [each.broker_id for each in brokers] == ["1", "2", "3"]
            assert [each.broker_addr for each in brokers] == [f"http://h{number}:6650" for number in (1, 2, 3)]
            assert {each.broker_status for each in brokers} == {"active"}
        await found[2].machine.kill()
        await wait_until(lambda: "b3" not in found[0].machine.broker.directory.membership.sessions.values)
        assert [each.broker_id for each in (await found[0]("BrokerAdmin.ListBrokers")).brokers] == ["1", "2"]
        await found[0].fails(FailedPreconditionError, "BrokerAdmin.ActivateBroker", "b3 is away", broker_id="3")


async def test_topics_are_listed_by_their_brokers(tmp_path: Path) -> None:
    async with tools(tmp_path) as found:
        owners = await created(found, "/default/p", 6)
        for tool in found:
            topics = (await tool("TopicAdmin.ListNamespaceTopics", name="default")).topics
            shown = {each.name: each.broker_id for each in topics}
            assert shown == {
                f"/default/p-part-{index}": str(found.index(owner) + 1) for index, owner in enumerate(owners)
            }
            own = (await tool("TopicAdmin.ListBrokerTopics", broker_id="2")).topics
            assert [each.name for each in own] == [name for name, broker in shown.items() if broker == "2"]
            assert not (await tool("TopicAdmin.ListBrokerTopics", broker_id="9")).topics
        balance = await found[0]("BrokerAdmin.GetClusterBalance")
        assert (balance.broker_count, balance.mean_load, balance.coefficient_of_variation) == (3, 2.0, 0.0)
        assert [each.topic_count for each in balance.brokers] == [2, 2, 2]


async def test_subscriptions_are_managed_at_any_broker(tmp_path: Path) -> None:
    async with tools(tmp_path) as found:
        owners = await created(found, "/default/p", 3)
        assert len(set(owners)) == 3
        for index, owner in enumerate(owners):
            async with (
                owner.machine.client() as client,
                client.consumer(f"/default/p-part-{index}", subscription="every", type="shared"),
                client.consumer(f"/default/p-part-{index}", subscription=f"s{index}", type="shared"),
            ):
                pass
        for tool in found:
            for index, owner in enumerate(owners):
                name = f"/default/p-part-{index}"
                listed = await tool("TopicAdmin.ListSubscriptions", name=name)
                assert listed.subscriptions == ["every", f"s{index}"]
                described = await tool("TopicAdmin.DescribeTopic", name=name)
                assert described.broker_id == str(found.index(owner) + 1)
                assert described.subscriptions == listed.subscriptions
            whole = await tool("TopicAdmin.ListSubscriptions", name="/default/p")
            assert whole.subscriptions == ["every", "s0", "s1", "s2"]
            assert (await tool("TopicAdmin.DescribeTopic", name="/default/p")).subscriptions == whole.subscriptions
        away = next(tool for tool in found if tool is not owners[0])
        assert (await away("TopicAdmin.Unsubscribe", topic="/default/p-part-0", subscription="s0")).success
        assert (await away("TopicAdmin.ListSubscriptions", name="/default/p-part-0")).subscriptions == ["every"]
        await away.fails(
            NotFoundError, "TopicAdmin.Unsubscribe", "no subscription", topic="/default/p-part-0", subscription="s0"
        )


async def test_what_waits_for_its_owner_is_described_without_it(tmp_path: Path) -> None:
    async with tools(tmp_path, 2) as found:
        owners = await created(found, "/default/p", 2, durability="disk")
        index = owners.index(found[1])
        await found[1].machine.kill()
        await wait_until(lambda: "b2" not in found[0].machine.broker.directory.membership.sessions.values)
        described = await found[0]("TopicAdmin.DescribeTopic", name=f"/default/p-part-{index}")
        assert (described.broker_id, described.delivery, described.subscriptions) == ("2", "Reliable", [])
        await found[0].fails(UnavailableError, "TopicAdmin.ListSubscriptions", "b2", name=f"/default/p-part-{index}")


async def test_brokers_are_unloaded_activated_and_balanced(tmp_path: Path) -> None:
    async with tools(tmp_path, 2) as found:
        tool = found[0]
        for each in found:
            each.on_call("status", each.machine.broker.operations.cluster.answer)
        await created(found, "/default/p", 4, durability="disk")
        filters = {"namespaces_include": ["default"]}
        await tool.fails(UnimplementedError, "BrokerAdmin.UnloadBroker", "as a whole", broker_id="2", **filters)
        planned = await tool("BrokerAdmin.UnloadBroker", broker_id="2", dry_run=True)
        assert (planned.started, planned.total, planned.pending, planned.failed) == (False, 2, 2, 0)
        assert (await tool("BrokerAdmin.UnloadBroker", broker_id="2")).started
        brokers = (await tool("BrokerAdmin.ListBrokers")).brokers
        assert [each.broker_status for each in brokers] == ["active", "draining"]
        await tool.fails(FailedPreconditionError, "BrokerAdmin.UnloadBroker", "could go nowhere", broker_id="1")
        assert (await tool("BrokerAdmin.ActivateBroker", broker_id="2")).success
        even = await tool("BrokerAdmin.TriggerRebalance", dry_run=True)
        assert (even.success, even.moves_executed, list(even.proposed_moves)) == (True, 0, [])
        assert even.error_message == "nothing to move: the load is even"


async def test_what_a_cluster_cannot_do_is_refused(tmp_path: Path) -> None:
    async with tools(tmp_path, 2) as found:
        tool = found[0]
        await tool.fails(InvalidArgumentError, "BrokerAdmin.UnloadBroker", "missing")
        await tool.fails(NotFoundError, "BrokerAdmin.UnloadBroker", "brokers of this cluster are 1, 2", broker_id="5")
        await tool.fails(UnimplementedError, "ClusterAdmin.RemoveNode", "cannot be changed", node_id=2)
        assert (await tool("BrokerAdmin.ActivateBroker", broker_id="2")).success


class Producer:
    """A caller that may produce to one topic."""

    principal: Any = None
    seen = 0

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def require_creation(self, topic: str) -> None:
        raise PermissionDeniedError(f"no right to create {topic}")

    def require_dead_letters(self, topic: str) -> None:
        if topic != self._topic:
            raise PermissionDeniedError(f"no right to produce to {topic}")


async def test_relayed_calls_send_dead_letters_where_their_caller_may_produce(tmp_path: Path) -> None:
    async with tools(tmp_path) as found:
        (owner,) = await created(found, "/default/t")
        for tool in found:
            for target, is_allowed in (("/default/secret", False), ("/default/mine", True)):
                policy = pb.SubscriptionFailurePolicy(
                    max_redelivery_count=1,
                    ack_timeout_ms=1000,
                    dead_letter_topic=target,
                    poison_policy=pb.DeadLetter,
                )
                fields = {"topic": "/default/t", "subscription": f"s-{tool.machine.name}", "failure_policy": policy}
                with calling(Producer("/default/mine")):
                    if is_allowed:
                        await tool("TopicAdmin.SetSubscriptionFailurePolicy", **fields)
                    else:
                        with pytest.raises(PermissionDeniedError, match="no right to produce to /default/secret"):
                            await tool("TopicAdmin.SetSubscriptionFailurePolicy", **fields)
                del fields["failure_policy"]
                shown = await owner("TopicAdmin.GetSubscriptionFailurePolicy", **fields)
                assert shown.failure_policy.dead_letter_topic == (target if is_allowed else "")


async def test_an_unknown_relayed_call_is_refused(tmp_path: Path) -> None:
    async with tools(tmp_path, 1) as found:
        await trio.lowlevel.checkpoint()
        answer = found[0].handlers["admin"]
        with pytest.raises(UnimplementedError, match="Bogus"):
            await answer(None, b"\x92\xa5Bogus\xc4\x00")
        for payload in (b"\xc1", b"\x92\xb1ListSubscriptions\xc4\x01\xff"):
            with pytest.raises(InvalidArgumentError, match="cannot be decoded"):
                await answer(None, payload)


async def test_relayed_calls_are_refused_while_the_owner_starts_or_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reached, let = recovery.recover, trio.Event(), trio.Event()

    async def held(*arguments: Any, **more: Any) -> Any:
        reached.set()
        await let.wait()
        return await real(*arguments, **more)

    fields = ["ListSubscriptions", pb.TopicRequest(name="/default/t").SerializeToString()]
    payload = msgspec.msgpack.encode([*fields, None])
    async with tools(tmp_path, 2) as found:
        (owner,) = await created(found, "/default/t", durability="disk")
        answered = await owner.handlers["admin"](None, payload)
        await owner.machine.kill()
        monkeypatch.setattr(danube.broker.broker, "recover", held)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.machine.start)
            await reached.wait()
            relay = Tool(owner.world, owner.machine)
            with pytest.raises(CallRefusedError, match="the owner of the topic is starting; try again"):
                await relay.handlers["admin"](None, payload)
            let.set()
        assert await relay.handlers["admin"](None, payload) == answered
        with pytest.raises(FailedPreconditionError, match="earlier version, which does not say what its caller may do"):
            await relay.handlers["admin"](None, msgspec.msgpack.encode(fields))
        owner.machine.broker.drain()
        with pytest.raises(CallRefusedError, match="the owner of the topic is shutting down; try again"):
            await relay.handlers["admin"](None, payload)
