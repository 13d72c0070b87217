"""Effects of policies: rates that delay, times to live that settle messages, and policies restored on a new machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from broker.broker_harness import RunningBroker, raw_consumer, raw_producer, running_broker, take, wait_until
from broker.sealed_topics import bucket, publish

import danube
from danube.broker.delivery.expiry import MessageExpiry, round_s
from danube.broker.runtime.publish_rate import Pace
from danube.model import PoisonPolicy, Rate, Retention, TopicPolicies, api
from danube.model.errors import LimitExceededError, StorageUnavailableError, TopicNotFoundError

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"


# --- Publish rate ---


async def publish_timed(channel: Any, name: str, count: int, batch: int = 1, topic: str = TOPIC) -> float:
    """Publish ``count`` batches as fast as it goes; return how long it took until the last was acknowledged."""
    started = trio.current_time()
    async with raw_producer(channel, topic, name) as producer:
        for number in range(count):
            producer.send(number * batch, *[b"x" * 100] * batch)
        await producer.acked(count)
    return trio.current_time() - started


async def test_a_publish_rate_delays_and_drops_nothing(tmp_path: Path) -> None:
    """50 a second: of 100 messages a burst of 50 goes at once, and the others in about a second."""
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        assert await publish_timed(channel, "free", 100) < 5
        await client.admin.change_policies("default", publish_rate=Rate(messages_per_s=50))
        took = await publish_timed(channel, "p", 100)
        assert 0.9 <= took < 8
        assert running.topic(TOPIC).end_offset == 200


async def test_all_producers_of_a_topic_share_its_rate_and_none_starves(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/other")
        await client.admin.change_policies(TOPIC, publish_rate=Rate(messages_per_s=400))
        await publish_timed(channel, "burst", 1, 400)
        took: dict[str, float] = {}

        async def run(name: str) -> None:
            took[name] = await publish_timed(channel, name, 10, 10)

        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c", "d"):
                nursery.start_soon(run, name)
            # Neither a topic without a rate nor an acknowledgement is held up.
            assert await publish_timed(channel, "e", 20, 10, "/default/other") < 5
        assert 0.5 <= max(took.values()) < 8  # 400 messages
        assert min(took.values()) > 0.5 * max(took.values())  # in turn, not one after the other
        assert running.topic(TOPIC).end_offset == 800


async def test_the_rate_in_bytes(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        await client.admin.change_policies(TOPIC, publish_rate=Rate(bytes_per_s=20_000))
        async with raw_producer(channel, TOPIC) as producer:
            started = trio.current_time()
            producer.send(0, bytes(40_000))  # one second more than there is
            producer.send(1, b"waits for that")
            await producer.acked(2)
            assert 0.95 <= trio.current_time() - started < 8


async def test_another_rate_counts_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/other")
        await client.admin.change_policies(TOPIC, publish_rate=Rate(messages_per_s=0.01))
        async with raw_producer(channel, TOPIC) as producer:
            producer.send(0, b"overdraws")
            producer.send(1, b"would wait for 100 s")
            producer.send(2, b"and this for 200 s")
            assert await producer.acked() == [(0, 0, 1)]
            with trio.move_on_after(0.1) as patience:
                await producer.acked()
            assert patience.cancelled_caught
            with trio.fail_after(10):  # no other topic waits with it
                await publish_timed(channel, "e", 20, 10, "/default/other")
            await client.admin.change_policies(TOPIC, publish_rate=Rate(messages_per_s=10_000))
            assert await producer.acked(2) == [(1, 1, 1), (2, 2, 1)]
            await client.admin.change_policies(TOPIC, publish_rate=Rate(messages_per_s=0.01))
            producer.send(3, *[b"overdraws"] * 20_000)
            producer.send(4 + 19_999, b"waits")
            await producer.acked()
            await client.admin.change_policies(TOPIC, publish_rate=None)
            await producer.acked()


async def test_a_producer_that_waits_for_a_rate_can_close(tmp_path: Path) -> None:
    """A drain, the deletion of the topic and a producer that goes away do not wait for a rate; nothing is half sent."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with running.channel() as channel:
            await client.admin.create_topic(TOPIC)
            await client.admin.change_policies("default", publish_rate=Rate(messages_per_s=0.001))
            async with raw_producer(channel, TOPIC, "a") as producer:
                producer.send(0, b"goes")
                await producer.acked()
                producer.send(1, b"waits")
                async with raw_producer(channel, TOPIC, "b") as other:
                    other.send(0, b"waits behind it")
                    await trio.sleep(0.05)
            await wait_until(lambda: not running.topic(TOPIC).intake.infos())
            assert running.topic(TOPIC).end_offset == 1
            async with raw_producer(channel, TOPIC, "a") as producer:
                producer.send(1, b"waits")
                await trio.sleep(0.05)
                await client.admin.delete_topic(TOPIC)
                with pytest.raises(TopicNotFoundError):
                    await producer.reply()
            await client.admin.create_topic(TOPIC)
            async with raw_producer(channel, TOPIC, "a") as producer:
                producer.send(0, b"goes")
                await producer.acked()
                producer.send(1, b"waits")
                await trio.sleep(0.05)
                started = trio.current_time()
                await running.drain()
                assert trio.current_time() - started < 8
        await running.start()
        assert running.topic(TOPIC).end_offset == 1


async def test_a_client_waits_and_loses_nothing(tmp_path: Path) -> None:
    """The client batches what gathers meanwhile; everything arrives once, in order."""
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.change_policies(TOPIC, publish_rate=Rate(messages_per_s=200))
        started = trio.current_time()
        async with client.producer(TOPIC) as producer:
            for number in range(40):
                await producer.send_many([b"%d" % index for index in range(number * 10, number * 10 + 10)])
        assert 0.9 <= trio.current_time() - started < 8
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert [message.payload for message in await take(consumer, 400)] == [b"%d" % n for n in range(400)]


async def test_pace_serves_in_order_under_a_virtual_clock(autojump_clock: trio.testing.MockClock) -> None:
    pace = Pace(Rate(messages_per_s=10))
    went: list[tuple[int, float]] = []

    async def publish_one(number: int) -> None:
        async with pace.turn():
            while not pace.is_paid:
                await pace.until_paid()
            pace.take(10, 0)
            went.append((number, trio.current_time()))

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(publish_one, number)
            await trio.testing.wait_all_tasks_blocked()
            assert number < 2 or not pace.is_free
    assert [number for number, _ in went] == [0, 1, 2, 3, 4]
    assert [at - start for _, at in went] == pytest.approx([0, 0, 1, 2, 3])


# --- Time to live ---


async def backlog(client: danube.Client, subscription: str = "s") -> tuple[int, int]:
    (info,) = await client.admin.describe_subscription(TOPIC, subscription)
    return info.floor, info.expired_messages


async def test_unacknowledged_messages_are_settled_when_they_expire(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        async with raw_consumer(channel, TOPIC, "s"), raw_consumer(channel, TOPIC, "in-flight") as holder:
            await publish(client, TOPIC, 10)
            holder.credit(5)
            await holder.reply_of(api.ConsumeBatch)
            assert await backlog(client) == (0, 0)
            await client.admin.change_policies("default", message_ttl_s=0.5)
            for name in ("s", "in-flight"):
                await wait_until(lambda name=name: settled(running, name) == 10)
                assert await backlog(client, name) == (10, 10)
            await client.admin.change_policies("default", message_ttl_s=None)
            await publish(client, TOPIC, 1)
            await trio.sleep(0.6)
            assert (await backlog(client))[0] == 10
        await running.restart(crash=True)
        assert (await backlog(client))[0] == 10  # that they have expired is durable


def settled(running: RunningBroker, subscription: str) -> int:
    return running.topic(TOPIC).subscriptions[subscription].cursor.floor


async def test_sealed_messages_expire_and_younger_ones_do_not(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        async with client.consumer(TOPIC, subscription="s", start="earliest"):
            pass
        await publish(client, TOPIC, 20)
        await client.admin.seal_topic(TOPIC)
        await trio.sleep(1.2)
        await publish(client, TOPIC, 5)
        # A day has passed for the first, one second has not for the last.
        await client.admin.change_policies(TOPIC, message_ttl_s=1.0)
        await wait_until(lambda: settled(running, "s") >= 20)
        assert settled(running, "s") == 20


class Aging:
    """A topic that notes when its messages were let expire."""

    def __init__(self, name: str, storage: str, ttl_s: float) -> None:
        self.name, self.storage, self.message_ttl_s = name, storage, ttl_s
        self.asked: list[tuple[float, int]] = []
        self.broken = False
        self.slow_s = 0.0

    async def expire_messages(self, before_us: int) -> None:
        self.asked.append((trio.current_time(), before_us))
        await trio.sleep(self.slow_s)
        if self.broken:
            raise StorageUnavailableError("away")


async def test_the_rounds_of_expiry(autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture) -> None:
    assert [round_s(ttl) for ttl in (0.1, 4.0, 40.0, 120.0, 1e9)] == [1.0, 1.0, 10.0, 30.0, 30.0]
    start = trio.current_time()
    short, long = Aging("/d/short", "a", 8.0), Aging("/d/long", "b", 1000.0)
    topics = [short, long]
    expiry = MessageExpiry(lambda: topics, lambda: int((trio.current_time() - start) * 1e6) + 10**9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(expiry.run)
        await trio.sleep(60.5)
        assert [at - start for at, _ in short.asked] == pytest.approx(range(0, 61, 2))
        assert [at - start for at, _ in long.asked] == pytest.approx([0, 30, 60])
        assert [before for _, before in short.asked[:2]] == [10**9 - 8 * 10**6, 10**9 - 6 * 10**6]
        # One that is new, or whose time has changed, has its first round at once.
        topics.append(Aging("/d/new", "a", 500.0))
        long.message_ttl_s = 0.0
        expiry.look_again()
        await trio.sleep(100)
        assert topics[2].asked[0][0] - start == pytest.approx(60.5)
        assert len(long.asked) == 3
        # A storage that is away is told of once; its other topics wait, those of other storages do not.
        short.broken = True
        other = Aging("/d/other", "b", 8.0)
        topics.append(other)
        before = len(short.asked)
        await trio.sleep(20)
        assert len(short.asked) - before == len(other.asked) == 10
        assert len([record for record in caplog.records if "/d/short" in record.message]) == 1
        short.broken = False
        await trio.sleep(4)
        short.broken = True
        await trio.sleep(4)
        assert len([record for record in caplog.records if "/d/short" in record.message]) == 2
        nursery.cancel_scope.cancel()


# --- Policies that outlive their machine ---


def lose_machine(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


async def test_remote_topics_bring_their_policies_along(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url, patience_s=20) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, durability="remote", retention=Retention(max_bytes=10**9))
        await client.admin.create_topic("/default/p", durability="remote", partitions=2)
        async with client.consumer(TOPIC, subscription="s", start="earliest"):
            pass
        await client.admin.change_policies(TOPIC, max_producers=1, message_ttl_s=1e6)
        await client.admin.change_policies("/default/p", max_consumers=3)
        await client.admin.change_subscription_policy(TOPIC, "s", poison="drop", max_redelivery_count=0)
        expected = TopicPolicies(max_producers=1, message_ttl_s=1e6, retention=Retention(max_bytes=10**9))
        assert running.topic(TOPIC).policies.values == expected
        for lost in (False, True):
            await running.crash()
            if lost:
                lose_machine(tmp_path)
            await running.start()
            assert (await client.admin.policies(TOPIC)).own == running.topic(TOPIC).policies.values == expected
            assert running.topic("/default/p-part-1").policies.values == TopicPolicies(max_consumers=3)
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (info.policy.poison, info.policy.max_redelivery_count) == (PoisonPolicy.DROP, 0)


async def test_the_bucket_decides_the_policies_of_a_remote_topic(tmp_path: Path) -> None:
    """A change that reached the metadata and not the bucket was never promised; both say the same afterwards."""
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, durability="remote")
        await client.admin.change_policies(TOPIC, max_producers=5)
        await running.broker.directory.catalogue.policy_changes.of_topic(TOPIC, {"max_producers": 9})
        await running.restart(crash=True)
        assert (await client.admin.policies(TOPIC)).own == TopicPolicies(max_producers=5)
        assert running.topic(TOPIC).policies.values.max_producers == 5


@pytest.mark.real("two machines share a bucket")
async def test_policies_come_back_from_a_bucket(tmp_path: Path) -> None:
    """They are in it soon after a change, even if nothing is sealed after that."""
    url, _ = bucket()
    async with running_broker(tmp_path / "lost", storage=url) as first, first.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/p", partitions=2)
        async with client.consumer(TOPIC, subscription="s", start="earliest"):
            pass
        await client.admin.change_subscription_policy(TOPIC, "s", max_redelivery_count=9)
        await publish(client, TOPIC, 10)
        await publish(client, "/default/p-part-1", 10)
        await client.admin.seal_topic(TOPIC)
        await client.admin.seal_topic("/default/p")
        await client.admin.change_policies(TOPIC, max_producers=3, publish_rate=Rate(1000.0))
        await client.admin.change_policies("/default/p", retention=Retention(max_age_s=1e6))
        manifests = first.broker.directory.history.manifests["default"]
        await wait_until(lambda: not manifests.pending)
        await manifests.flush()  # after the one that is being written
        await first.crash()
    async with running_broker(tmp_path / "new", storage=url) as second, second.client() as client:
        await client.storages.restore_topics(url)
        restored = TopicPolicies(max_producers=3, publish_rate=Rate(1000.0))
        assert (
            (await client.admin.policies(TOPIC)).own == second.broker.directory.find(TOPIC).policies.values == restored
        )
        assert second.broker.directory.find("/default/p-part-0").retention == Retention(max_age_s=1e6)
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.policy.max_redelivery_count == 9


# --- Quotas of namespaces ---


async def test_topics_of_a_namespace_share_its_publish_rate(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        admin = client.admin
        await admin.create_namespace("shop")
        await admin.create_topic("/shop/a")
        await admin.create_topic("/shop/b", durability="none")
        await admin.change_quota("shop", publish_rate=Rate(messages_per_s=100))
        await admin.create_topic("/shop/c")  # later ones, too
        await admin.change_policies("/shop/c", publish_rate=Rate(messages_per_s=10_000))
        await admin.create_topic(TOPIC)
        await publish_timed(channel, "burst", 1, 100, "/shop/a")
        took: dict[str, float] = {}

        async def publish(topic: str) -> None:
            took[topic] = await publish_timed(channel, "p", 20, 10, topic)

        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for topic in ("/shop/a", "/shop/b", "/shop/c", TOPIC):
                nursery.start_soon(publish, topic)
        assert 5.8 <= trio.current_time() - started < 8  # 600 messages
        assert min(took[topic] for topic in ("/shop/a", "/shop/b", "/shop/c")) > 5, "they take turns"
        assert took[TOPIC] < 1, "no other namespace waits with it"
        assert sum(running.topic(topic).end_offset for topic in ("/shop/a", "/shop/b", "/shop/c")) == 700


async def test_another_publish_rate_of_a_namespace_counts_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        admin = client.admin
        await admin.create_namespace("shop")
        await admin.create_topic("/shop/a")
        await admin.create_topic("/shop/b")
        await admin.change_quota("shop", publish_rate=Rate(messages_per_s=0.01))
        await running.restart()
        async with running.channel() as channel, raw_producer(channel, "/shop/a", "a") as producer:
            producer.send(0, b"goes")
            await producer.acked()
            async with raw_producer(channel, "/shop/b", "b") as other:
                other.send(0, b"waits for 100 s")
                producer.send(1, b"waits behind it")
                with trio.move_on_after(0.2) as patience:
                    await other.acked()
                assert patience.cancelled_caught
                assert running.topic("/shop/b").end_offset == 0
                await admin.change_quota("shop", publish_rate=Rate(messages_per_s=1000))
                assert await other.acked() == [(0, 0, 1)]
                assert await producer.acked() == [(1, 1, 1)]
                await admin.change_quota("shop", publish_rate=Rate(messages_per_s=0.01))
                producer.send(2, *[b"overdraws"] * 2_000)
                await producer.acked()
                other.send(1, b"waits")
                other.send(2, b"waits, too")
                await trio.sleep(0.1)
                assert running.topic("/shop/b").end_offset == 1
                await admin.change_quota("shop", publish_rate=None)
                assert await other.acked(2) == [(1, 1, 1), (2, 2, 1)]
                # One that waits can be deleted, and its producer can go.
                await admin.change_quota("shop", publish_rate=Rate(messages_per_s=0.001))
                producer.send(2_002, b"goes")
                await producer.acked()
                other.send(3, b"waits")
                await trio.sleep(0.1)
                await admin.delete_topic("/shop/b")
                with pytest.raises(TopicNotFoundError):
                    await other.reply()


async def test_a_namespace_stores_no_more_than_its_quota(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        admin = client.admin
        for namespace in ("shop", "free"):
            await admin.create_namespace(namespace)
        for topic in ("/shop/a", "/shop/b", "/free/a"):
            await admin.create_topic(topic)
        await admin.create_topic("/shop/none", durability="none")
        await admin.change_quota("shop", max_stored_bytes=100_000)
        await publish_timed(channel, "p", 80, 10, "/shop/a")
        async with raw_producer(channel, "/shop/b", "b") as producer:
            producer.send(0, b"x" * 50_000)
            refused = await producer.refused()
            assert refused.code == LimitExceededError.code
            assert "its quota max_stored_bytes is 100000" in refused.message
            producer.send(0, b"x" * 100)
            await producer.acked()  # what fits is taken
        for topic in ("/free/a", "/shop/none"):
            await publish_timed(channel, "p", 10, 100, topic)
        used = (await admin.quota("shop")).stored_bytes
        assert 80_000 < used <= 100_000
        await running.restart()
        await trio.sleep(0.1)
        async with running.client() as again, running.channel() as channel:
            assert (await again.admin.quota("shop")).stored_bytes == used
            async with again.producer("/shop/b") as sender, trio.open_nursery() as nursery:
                sent = trio.Event()

                async def send() -> None:
                    await sender.send(b"x" * 50_000)
                    sent.set()

                nursery.start_soon(send)
                await trio.sleep(2)
                assert not sent.is_set()
                await again.admin.delete_topic("/shop/a")  # makes room, which is seen within a second
                with trio.fail_after(5):
                    await sent.wait()
            await again.admin.change_quota("shop", max_stored_bytes=0)
            async with raw_producer(channel, "/shop/b", "c") as producer:
                producer.send(0, b"x")
                await producer.refused()
                await again.admin.change_quota("shop", max_stored_bytes=None)
                producer.send(0, b"x")
                await producer.acked()


async def test_sealed_messages_count_for_a_namespace(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await client.admin.change_quota("default", max_stored_bytes=1_000_000)
        await client.admin.create_topic(TOPIC)
        await publish(client, TOPIC, 200)
        before = (await client.admin.quota("default")).stored_bytes
        await client.admin.seal_topic(TOPIC)
        info = await client.admin.describe_topic(TOPIC)
        assert info.sealed_bytes > 10_000
        assert (await client.admin.quota("default")).stored_bytes == info.stored_bytes
        assert info.stored_bytes >= 0.9 * before
