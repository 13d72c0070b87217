# ruff: noqa: SIM117 - a nested "async with" shows what is inside of what
"""Native clients in a cluster of real brokers, on simulated machines in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster

from danube.client import Client
from danube.model.batch import Record, open_records, read_header
from danube.model.errors import OwnerAwayError, SubscriptionNotFoundError, TopicNotFoundError

pytestmark = pytest.mark.virtual


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % index for index in range(start, start + count)]


async def served(world: ClusterWorld, count: int) -> None:
    """Wait until the brokers serve so many topics and partitions."""
    await wait_until(lambda: sum(len(each.broker.directory) for each in world.machines if each.node.life) == count)


def owners(world: ClusterWorld) -> dict[str, Machine]:
    return {topic.name: each for each in world.machines for topic in each.broker.directory.topics()}


async def all_of(client: Client, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with client.reader(topic, start="earliest") as reader:
        while len(found) < count:
            found += (await reader.receive_batch()).payloads()
    return found


async def test_a_client_of_one_seed_uses_topics_of_all_brokers(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world, world.machines[1].client() as client:
        await client.admin.create_topic("/default/t", partitions=6)
        await served(world, 6)
        assert {machine.name for machine in owners(world).values()} == {"h1", "h2", "h3"}
        keys = [str(index) for index in range(300)]
        async with client.producer("/default/t") as producer:
            async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
                await producer.send_many(numbered(300), keys=keys)
                found: list[bytes] = []
                while len(found) < 300:
                    batch = await consumer.receive_batch()
                    found += batch.payloads()
                    await batch.ack()
                await consumer.flush_acks()
        assert sorted(found) == sorted(numbered(300))
        assert sorted(await all_of(client, "/default/t", 300)) == sorted(numbered(300))
        assert len(client._pool._lines) == 3


async def test_producers_create_topics_wherever_they_are_placed(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world, world.machines[0].client() as client:
        for index in range(6):
            async with client.producer(f"/default/t{index}") as producer:
                await producer.send(b"x")
        await served(world, 6)
        assert {machine.name for machine in owners(world).values()} == {"h1", "h2", "h3"}
        async with client.requester("/default/rpc") as requester:

            async def handle(request: object) -> bytes:
                return b"yes"

            async with client.responder("/default/rpc", handle):
                assert (await requester.request(b"?")).payload == b"yes"


async def test_the_ends_and_ranges_of_logs_come_from_their_owners(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world, world.machines[0].client() as client:
        await client.admin.create_topic("/default/t", partitions=6)
        await served(world, 6)
        async with client.producer("/default/t") as producer:
            await producer.send_many(numbered(600), keys=[str(index) for index in range(600)])
        states = await client.logs.states(["/default/t"])
        assert [state.partition for state in states] == list(range(6))
        assert sum(state.end_offset for state in states) == 600
        assert await client.logs.states(pattern="/default/.*") == states
        found: list[bytes] = []
        async with world.machines[2].client() as fresh:
            for state in states:
                assert await fresh.logs.offset_at(state.name, 0) == 0
                assert (await fresh.logs.parts(state.name)).end_offset == state.end_offset
                async with fresh.logs.read(state.name, 0, state.end_offset) as batches:
                    async for part in batches:
                        records = open_records(part.part, read_header(part.part), 1 << 20)
                        found += [one.payload if isinstance(one, Record) else one for one in records]
        assert sorted(found) == sorted(numbered(600))
        known = {state.name: state.end_offset for state in states}

        async def publish() -> None:
            await trio.sleep(3)
            async with client.producer("/default/t-part-4") as producer:
                await producer.send(b"x")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            began = trio.current_time()
            later = await client.logs.states(["/default/t"], beyond=known, timeout_s=20)
            assert 2.9 < trio.current_time() - began < 4
        assert sum(state.end_offset for state in later) == 601


async def test_streams_at_other_brokers_outlive_the_first_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world, world.machines[0].client() as client:
        await client.admin.create_topic("/default/t", partitions=3)
        await served(world, 3)
        place = {machine.name: topic for topic, machine in owners(world).items()}
        async with (
            client.producer(place["h2"]) as near,
            client.producer(place["h1"]) as lost,
            client.consumer(place["h3"], subscription="s", start="earliest") as consumer,
            client.producer(place["h3"]) as far,
        ):
            for producer in (near, lost, far):
                await producer.send(b"0")
            await world.machines[0].kill()
            began = trio.current_time()
            await near.send(b"1")
            await far.send(b"1")
            assert [(await consumer.receive()).payload for _ in range(2)] == [b"0", b"1"]
            assert trio.current_time() - began < 0.5
            assert place["h2"] in (await client.admin.lookup_topic("/default/t")).topics
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lost.send, b"1")
                await trio.sleep(10)
                await world.machines[0].start()
            assert await all_of(client, place["h1"], 2) == [b"0", b"1"]


async def test_a_topic_of_a_killed_broker_waits_for_it_by_name(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world, world.machines[0].client(request_timeout_s=5.0) as client:
        await client.admin.create_topic("/default/t", partitions=3)
        await served(world, 3)
        place = {machine.name: topic for topic, machine in owners(world).items()}
        await world.machines[2].kill()
        await trio.sleep(6)
        with pytest.raises(OwnerAwayError, match=r"waits for broker b3, whose disk holds offsets from 0 on"):
            async with client.producer(place["h3"]):
                pass
        with pytest.raises(OwnerAwayError, match="broker b3"):
            await client.logs.states(["/default/t"])
        await world.machines[2].start()
        async with client.producer(place["h3"]) as producer:
            await producer.send(b"x")


async def test_a_topic_of_several_owners_is_managed_as_one(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as world, world.machines[0].client() as client:
        admin = client.admin
        await admin.create_topic("/default/t", partitions=6)
        await served(world, 6)
        async with client.producer("/default/t") as producer:
            await producer.send_many(numbered(600), keys=[str(index) for index in range(600)])
        async with client.consumer("/default/t", subscription="s", start="earliest"):
            info = await admin.describe_topic("/default/t")
            assert (info.topic, info.partitions, info.end_offset) == ("/default/t", 6, 600)
            assert info.subscriptions == ["s"]
        for rows in (
            await admin.list_subscriptions("/default/t"),
            await admin.describe_subscription("/default/t", "s"),
            await admin.change_subscription_policy("/default/t", "s", ack_timeout_s=7.0),
        ):
            assert [row.topic for row in rows] == [f"/default/t-part-{index}" for index in range(6)]
            assert sum(row.backlog_messages for row in rows) == 600
        assert {row.policy.ack_timeout_s for row in rows} == {7.0}
        explained = await admin.explain_subscription("/default/t", "s")
        assert (explained.topic, explained.state) == ("/default/t", "no-consumer")
        assert explained.sentence.count("/default/t-part-") == 6
        await admin.seek_subscription("/default/t", "s", "latest")
        assert {row.backlog_messages for row in await admin.describe_subscription("/default/t", "s")} == {0}
        assert sum(row.end_offset for row in await admin.seal_topic("/default/t")) == 600
        await admin.delete_subscription("/default/t", "s")
        with pytest.raises(SubscriptionNotFoundError):
            await admin.describe_subscription("/default/t", "s")
        await admin.delete_topic("/default/t")
        with pytest.raises(TopicNotFoundError):
            await admin.describe_topic("/default/t")
