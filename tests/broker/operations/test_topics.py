"""Namespaces, topics and partitions, as a client sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.broker_harness import raw_producer, read_all, running_broker

from danube.model.errors import (
    AlreadyExistsError,
    DurabilityMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    NamespaceNotFoundError,
    NotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from danube.model.names import fnv1a_64, route_key
from danube.model.quotas import NamespaceQuota, QuotaReport

pytestmark = pytest.mark.virtual


async def test_namespaces(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        assert await client.admin.list_namespaces() == ["default", "system"]
        await client.admin.create_namespace("shop")
        with pytest.raises(AlreadyExistsError, match="'shop' exists"):
            await client.admin.create_namespace("shop")
        await client.admin.create_topic("/shop/orders")
        with pytest.raises(FailedPreconditionError, match="still holds 1 topic"):
            await client.admin.delete_namespace("shop")
        for built_in in ("default", "system"):
            with pytest.raises(FailedPreconditionError, match="built in"):
                await client.admin.delete_namespace(built_in)
        await running.restart()
        assert await client.admin.list_namespaces() == ["default", "shop", "system"]
        await client.admin.delete_topic("/shop/orders")
        await client.admin.delete_namespace("shop")
        assert await client.admin.list_namespaces() == ["default", "system"]
        with pytest.raises(NamespaceNotFoundError):
            await client.admin.delete_namespace("shop")
        with pytest.raises(NamespaceNotFoundError, match="namespaces create shop"):
            await client.admin.create_topic("/shop/orders")


async def test_describe_and_list(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_namespace("other")
        made = await client.admin.create_topic("/default/b", durability="os")
        await client.admin.create_topic("/default/a", partitions=3)
        await client.admin.create_topic("/other/c")
        assert made.durability == "os"
        assert made.created_us > 1_600_000_000_000_000
        assert [topic.topic for topic in await client.admin.list_topics()] == ["/default/a", "/default/b", "/other/c"]
        assert [topic.topic for topic in await client.admin.list_topics("other")] == ["/other/c"]
        async with client.producer("/default/b", name="p") as producer:
            await producer.send_many([b"1", b"2", b"3"])
            async with client.consumer("/default/b", subscription="s"):
                info = await client.admin.describe_topic("/default/b")
        assert (info.start_offset, info.end_offset, info.partitions, info.subscriptions) == (0, 3, 0, ["s"])
        assert info.stored_bytes > 3
        assert [(one.name, one.next_sequence, one.connected) for one in info.producers] == [("p", 3, True)]
        with pytest.raises(TopicNotFoundError):
            await client.admin.describe_topic("/default/none")
        with pytest.raises(SubscriptionNotFoundError, match="subscriptions list"):
            await client.admin.describe_subscription("/default/b", "none")
        broker = await client.admin.info()
        assert broker.topics == 5
        assert broker.connections == 1
        assert broker.journal_used_bytes > 0


async def test_creating_a_topic_twice_or_with_a_bad_name_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"max_topics": 2}) as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        with pytest.raises(AlreadyExistsError):
            await client.admin.create_topic("/default/t")
        with pytest.raises(InvalidNameError, match="part"):
            await client.admin.create_topic("/default/x-part-3")
        with pytest.raises(InvalidArgumentError):
            await client.admin.create_topic("/default/p", partitions=1_000_000)
        with pytest.raises(InvalidArgumentError):
            await client.admin.create_topic("/default/p", partitions=-1)
        with pytest.raises(LimitExceededError, match="max_topics = 2"):
            await client.admin.create_topic("/default/p", partitions=2)
        with pytest.raises(TopicNotFoundError, match="name of partition 3 of '/default/x', which does not exist"):
            async with client.producer("/default/x-part-3"):
                pass
        assert [topic.topic for topic in await client.admin.list_topics()] == ["/default/t"]


async def test_producers_create_topics_and_consumers_do_not(tmp_path: Path) -> None:
    async with running_broker(tmp_path, durability="os") as running, running.client() as client:
        with pytest.raises(TopicNotFoundError, match="topics create /default/new"):
            async with client.consumer("/default/new", subscription="s"):
                pass
        async with client.producer("/default/new") as producer:
            assert producer.durability == "os"
        async with client.producer("/default/none", durability="none") as producer:
            assert producer.durability == "none"
        async with client.producer("/default/parts", partitions=2) as producer:
            assert producer.partitions == 2
        assert [topic.topic for topic in await client.admin.list_topics()] == [
            "/default/new",
            "/default/none",
            "/default/parts",
        ]
        with pytest.raises(NotFoundError):
            async with client.producer("/nowhere/t"):
                pass


async def test_automatic_creation_can_be_switched_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, auto_create_topics=False) as running, running.client() as client:
        for partitions in (0, 2):
            with pytest.raises(TopicNotFoundError, match="topics create"):
                async with client.producer("/default/new", partitions=partitions):
                    pass
        assert await client.admin.list_topics() == []


def test_the_hash_that_routes_keys_gives_the_published_vectors() -> None:
    # From the reference code of the authors, test_fnv.c.
    assert fnv1a_64(b"") == 0xCBF29CE484222325
    assert fnv1a_64(b"a") == 0xAF63DC4C8601EC8C
    assert fnv1a_64(b"foobar") == 0x85944171F73967E8
    assert fnv1a_64("ü".encode()) % 7 == route_key("ü", 7)


async def test_a_partitioned_topic_routes_by_key_and_round_robin(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/t", partitions=4)
        lookup = await client.admin.lookup_topic("/default/t")
        assert lookup.topics == [f"/default/t-part-{index}" for index in range(4)]
        keys = ["a", "foobar", "user-7", "ü", "x" * 100]
        async with client.producer("/default/t") as producer:
            for _ in range(2):
                for key in keys:
                    receipt = await producer.send(b"k", key=key)
                    assert receipt.topic == f"/default/t-part-{fnv1a_64(key.encode()) % 4}"
            turns = [(await producer.send(b"r")).partition for _ in range(8)]
        assert sorted(turns[:4]) == [0, 1, 2, 3]
        assert turns[4:] == turns[:4]
        info = await client.admin.describe_topic("/default/t")
        assert (info.partitions, info.end_offset) == (4, 18)
        async with client.consumer("/default/t", subscription="s", start="earliest") as consumer:
            seen = [await consumer.receive() for _ in range(18)]
        for message in seen:
            if message.key is not None:
                assert message.topic == f"/default/t-part-{route_key(message.key, 4)}"
        rows = await client.admin.list_subscriptions("/default/t")
        assert [row.topic for row in rows] == lookup.topics


async def test_a_base_name_or_a_missing_partition_cannot_be_opened(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic("/default/t", partitions=2)
        with pytest.raises(InvalidArgumentError, match="has 2 partitions"):
            async with raw_producer(channel, "/default/t"):
                pass
        with pytest.raises(TopicNotFoundError):
            async with raw_producer(channel, "/default/t-part-2"):
                pass
        with pytest.raises(FailedPreconditionError, match="as a whole"):
            await client.admin.delete_topic("/default/t-part-1")
        async with client.producer("/default/t-part-1") as producer:
            assert (await producer.send(b"x")).offset == 0
        assert (await client.admin.describe_topic("/default/t-part-1")).end_offset == 1
        assert (await client.admin.describe_topic("/default/t-part-0")).end_offset == 0


@pytest.mark.parametrize("crash", [False, True])
async def test_a_topic_that_is_created_again_shows_nothing_of_the_old_one(tmp_path: Path, crash: bool) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for life in range(3):
            async with client.producer("/default/t", name="p") as producer:
                receipt = await producer.send_many([b"%d-%d" % (life, number) for number in range(5 - life)])
                assert receipt.ranges[0].start == 0
            assert await read_all(client, "/default/t") == [b"%d-%d" % (life, number) for number in range(5 - life)]
            async with client.consumer("/default/t", subscription="kept", start="earliest") as consumer:
                assert (await consumer.receive()).payload == b"%d-0" % life
                await (await consumer.receive()).ack()
                await consumer.flush_acks()
            await client.admin.delete_topic("/default/t")
            with pytest.raises(TopicNotFoundError):
                await client.admin.describe_topic("/default/t")
            if life == 1:
                await running.restart(crash=crash)
                assert await client.admin.list_topics() == []
        await client.admin.create_topic("/default/t")
        await running.restart(crash=crash)
        info = await client.admin.describe_topic("/default/t")
        assert (info.end_offset, info.stored_bytes, info.producers, info.subscriptions) == (0, 0, [], [])


async def test_deleting_a_topic_disconnects_its_users(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        async with running.channel() as channel, raw_producer(channel, "/default/t") as producer:
            async with client.consumer("/default/t", subscription="s") as consumer:
                await client.admin.delete_topic("/default/t")
                with pytest.raises(TopicNotFoundError, match="deleted"):
                    await consumer.receive()
            with pytest.raises(TopicNotFoundError, match="deleted"):
                await producer.reply()


async def test_durability_is_fixed_at_creation(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for durability in ("none", "os", "disk"):
            topic = f"/default/{durability}"
            await client.admin.create_topic(topic, durability=durability)
            for other in {"none", "os", "disk"} - {durability}:
                with pytest.raises(DurabilityMismatchError, match="fixed when a topic is created"):
                    async with client.producer(topic, durability=other):
                        pass
            async with client.producer(topic, durability=durability) as producer:
                await producer.send_many([b"1", b"2"])
            async with client.producer(topic) as producer:
                assert producer.durability == durability
        await running.restart(crash=True)
        assert {topic.topic: topic.end_offset for topic in await client.admin.list_topics()} == {
            "/default/none": 0,
            "/default/os": 2,
            "/default/disk": 2,
        }


async def test_a_quota_of_topics(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        admin = client.admin
        for change in (admin.change_quota("shop", max_topics=3), admin.quota("shop")):
            with pytest.raises(NamespaceNotFoundError):
                await change
        await admin.create_namespace("shop")
        assert await admin.quota("shop") == QuotaReport("shop", NamespaceQuota(), 0)
        await admin.create_topic("/shop/a")
        assert await admin.change_quota("shop", max_topics=3) == QuotaReport("shop", NamespaceQuota(max_topics=3), 1)
        with pytest.raises(InvalidArgumentError, match="known names are max_topics"):
            await admin.change_quota("shop", max_topic=3)
        with pytest.raises(InvalidArgumentError, match="must not be negative"):
            await admin.change_quota("shop", max_topics=-1)
        with pytest.raises(
            LimitExceededError,
            match="'shop' has 1 topics and partitions, and its quota max_topics is 3: 3 more cannot be created",
        ):
            await admin.create_topic("/shop/b", partitions=3)
        await admin.create_topic("/shop/b", partitions=2)
        with pytest.raises(LimitExceededError, match="quota max_topics is 3"):
            async with client.producer("/shop/automatic"):
                pass
        await admin.create_topic("/default/other", partitions=5)  # another namespace
        async with client.producer("/shop/a") as producer:
            await producer.send(b"what exists is served")
        await running.restart()
        report = await admin.quota("shop")
        assert (report.quota, report.topics) == (NamespaceQuota(max_topics=3), 3)
        assert report.stored_bytes == (await admin.describe_topic("/shop/a")).stored_bytes > 0
        with pytest.raises(LimitExceededError, match="has 3 topics and partitions"):
            await admin.create_topic("/shop/c")
        await admin.delete_topic("/shop/b")
        assert (await admin.change_quota("shop", max_topics=0)).topics == 1
        with pytest.raises(LimitExceededError, match="max_topics is 0"):
            await admin.create_topic("/shop/c")
        await admin.delete_topic("/shop/a")
        with pytest.raises(FailedPreconditionError, match="namespaces quota unset shop max_topics"):
            await admin.delete_namespace("shop")
        await admin.change_quota("shop", max_topics=None)
        await admin.create_topic("/shop/c", partitions=5)
        await admin.delete_topic("/shop/c")
        await admin.delete_namespace("shop")
