"""The audit log of a real broker: what is denied, refused, changed and opened is there, and only brokers write it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import running_broker
from test_security_floods import administrator

import danube
import danube.compat
from danube.compat.codec import PROTO
from danube.compat.proto import danube_api_pb2 as pb
from danube.model import Durability, PoisonPolicy, Rate, Retention, SubscriptionPolicy, SubscriptionType
from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    PermissionDeniedError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from danube.wire import connect_channel

LOG = "/system/audit-b1"


async def entries(client: danube.Client, *, least: int = 1, log: str = LOG, **wanted: str) -> list[dict[str, Any]]:
    """Return the entries with these members, once there are so many."""
    with trio.fail_after(20):
        while True:
            found = []
            try:
                end = (await client.admin.describe_topic(log)).end_offset
            except TopicNotFoundError:
                end = 0
            async with AsyncExitStack() as stack:
                reader = await stack.enter_async_context(client.reader(log, start="earliest")) if end else None
                for _ in range(end):
                    assert reader is not None
                    message = await reader.receive()
                    found.append(json.loads(message.payload))
            chosen = [each for each in found if wanted.items() <= each.items()]
            if len(chosen) >= least:
                return chosen
            await trio.sleep(0.1)


async def test_what_happens_is_entered(tmp_path: Path) -> None:
    async with running_broker(tmp_path, faces=(danube.compat.face,), security={"enabled": True}) as running:
        token = await administrator(running)
        async with danube.connect(running.url, token=token) as admin:
            await admin.admin.create_namespace("shop")
            await admin.admin.create_topic("/shop/orders")
            await admin.security.grant("service:api", ["producer"], "/shop/orders")
            made = await admin.security.issue_token("service:api", life_s=600)
            async with danube.connect(running.url, token=made.token) as api:
                async with api.producer("/shop/orders") as producer:
                    await producer.send(b"1")
                for _ in range(3):
                    with pytest.raises(DanubeError):
                        await api.admin.delete_topic("/shop/orders")
            async with danube.connect(running.url, token="nonsense") as stranger:
                with pytest.raises(UnauthenticatedError):
                    await stranger.admin.list_topics()
            (created,) = await entries(admin, kind="changed", resource="topic:/shop/orders")
            assert created["principal"] == "user:admin"
            assert created["proof"] == "token t"
            assert created["path"] == "/danube.native.v1.Topics/Create"
            assert created["address"] == "127.0.0.1"
            assert (created["broker"], created["outcome"]) == ("b1", "done")
            (granted,) = await entries(admin, path="/danube.native.v1.Security/PutBinding")
            assert granted["request"] == "subject=service:api roles=producer scope=/shop/orders"
            (opened,) = await entries(admin, kind="opened", principal="service:api")
            assert opened["resource"] == "topic:/shop/orders"
            (denied,) = await entries(admin, kind="denied", principal="service:api")
            assert "may not call /danube.native.v1.Topics/Delete" in denied["reason"]
            assert "count" not in denied  # the repetitions follow
            (refused,) = await entries(admin, kind="refused")
            assert refused["reason"] == "malformed"
            every = json.dumps(await entries(admin))
            assert made.token not in every
            assert token not in every
            assert "nonsense" not in every
        await running.restart()
        async with danube.connect(running.url, token=token) as admin:
            _, counted = await entries(admin, kind="denied", principal="service:api", least=2)
            assert counted["count"] == 2


async def test_only_brokers_write_to_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path, security={"enabled": True}) as running:
        token = await administrator(running)
        async with danube.connect(running.url, token=token) as admin:
            await admin.admin.create_topic("/default/t")
            await entries(admin, kind="changed")

            async def produce(topic: str) -> None:
                async with admin.producer(topic) as producer:
                    await producer.send(b"{}")

            async def dead_letters() -> None:
                policy = SubscriptionPolicy(
                    poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=LOG, max_redelivery_count=1
                )
                async with admin.consumer("/default/t", subscription="s", type=SubscriptionType.SHARED, policy=policy):
                    pass

            for attempt in (
                lambda: produce(LOG),
                lambda: produce("/system/audit-b9"),
                lambda: admin.admin.create_topic("/system/audit-b9"),
                lambda: admin.admin.delete_topic(LOG),
                lambda: admin.admin.change_policies(LOG, max_message_bytes=1),
                lambda: admin.admin.change_policies("system", publish_rate=Rate(messages_per_s=1)),
                lambda: admin.admin.change_retention(LOG, Retention(max_age_s=1.0)),
                dead_letters,
            ):
                with pytest.raises(PermissionDeniedError):
                    await attempt()
            assert "only brokers write" in (await admin.security.explain("user:admin", "Produce", LOG)).reason
            assert (await admin.admin.describe_topic(LOG)).retention.max_age_s == 90 * 86400


async def test_a_flood_of_denials_makes_few_entries(tmp_path: Path) -> None:
    async with running_broker(tmp_path, security={"enabled": True}) as running:
        token = await administrator(running)
        async with danube.connect(running.url, token=token) as admin:
            await admin.admin.create_topic("/default/t")
            made = await admin.security.issue_token("service:api", life_s=600)
            async with danube.connect(running.url, token=made.token) as api:
                for _ in range(500):
                    with pytest.raises(DanubeError):
                        await api.admin.delete_topic("/default/t")
            await entries(admin, kind="denied")
            assert (await admin.admin.describe_topic(LOG)).end_offset < 10


async def test_a_topic_that_cannot_be_the_log_is_left_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, danube.connect(running.url) as client:
        await client.admin.create_topic(LOG, partitions=2)
        await client.admin.create_topic(f"{LOG}-2", durability=Durability.NONE)
    async with running_broker(tmp_path, security={"enabled": True}) as running:
        token = await administrator(running)
        async with danube.connect(running.url, token=token) as admin:
            await admin.admin.create_topic("/default/t")
            (created,) = await entries(admin, log=f"{LOG}-3", kind="changed")
            assert created["resource"] == "topic:/default/t"
            assert (await admin.admin.describe_topic(f"{LOG}-2")).end_offset == 0
        await running.restart()
        async with danube.connect(running.url, token=token) as admin:
            await admin.admin.create_topic("/default/u")
            assert len(await entries(admin, log=f"{LOG}-3", kind="changed", least=2)) == 2


async def test_no_quota_holds_it_up(tmp_path: Path) -> None:
    async with running_broker(tmp_path, security={"enabled": True}) as running:
        token = await administrator(running)
        async with danube.connect(running.url, token=token) as admin:
            with pytest.raises(InvalidArgumentError, match="the namespace system has no quota"):
                await admin.admin.change_quota("system", max_topics=0)


async def test_what_was_entered_outlives_a_crash(tmp_path: Path) -> None:
    async with running_broker(tmp_path, security={"enabled": True}) as running:
        token = await administrator(running)
        async with danube.connect(running.url, token=token) as admin:
            for number in range(20):
                await admin.admin.create_topic(f"/default/t{number}")
            before = await entries(admin, kind="changed", least=20)
        await running.restart(crash=True)
        async with danube.connect(running.url, token=token) as admin:
            assert (await entries(admin, kind="changed", least=20))[:20] == before


async def test_a_client_of_the_upstream_protocol_is_entered_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path, faces=(danube.compat.face,), security={"enabled": True}) as running:
        token = await administrator(running)
        async with connect_channel("127.0.0.1", running.port, codec=PROTO) as channel:
            request = pb.ProducerRequest(producer_name="p", topic_name="/default/new", dispatch_strategy=pb.Reliable)
            await channel.unary(
                "/danube.ProducerService/CreateProducer",
                request,
                pb.ProducerResponse,
                metadata={"authorization": f"Bearer {token}"},
            )
        async with danube.connect(running.url, token=token) as admin:
            (opened,) = await entries(admin, kind="opened")
            assert (opened["principal"], opened["resource"]) == ("user:admin", "topic:/default/new")
            (created,) = await entries(admin, kind="changed", resource="topic:/default/new")
            assert created["outcome"] == "created on demand"


async def test_without_access_control_there_is_none(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, danube.connect(running.url) as client:
        await client.admin.create_topic("/default/t")
        await trio.sleep(0.3)
        assert [each.topic for each in await client.admin.list_topics("system")] == []
