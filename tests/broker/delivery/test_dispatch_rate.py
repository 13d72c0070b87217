"""Dispatch rates: deliveries are delayed, and never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker.broker_harness import RawConsumer, raw_consumer, running_broker, wait_until

import danube
from danube.model import api
from danube.model.batch import read_header
from danube.model.errors import DataLossError

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"


async def fill(client: danube.Client, batches: int, topic: str = TOPIC) -> None:
    """Publish batches of ten messages of 100 bytes."""
    async with client.producer(topic) as producer:
        for _ in range(batches):
            await producer.send_many([bytes(100)] * 10)


async def received(consumer: RawConsumer, count: int) -> list[float]:
    """Receive ``count`` messages; return when each of their deliveries came, from now on."""
    began = trio.current_time()
    times: list[float] = []
    seen = 0
    while seen < count:
        delivery = await consumer.reply_of(api.ConsumeBatch)
        seen += read_header(delivery.part).record_count
        times.append(trio.current_time() - began)
    return times


@pytest.mark.parametrize("rate", [{"messages_per_s": 100}, {"bytes_per_s": 11_000}], ids=["messages", "bytes"])
@pytest.mark.parametrize("level", ["subscription", "topic"])
async def test_deliveries_keep_to_the_rate(tmp_path: Path, rate: dict[str, float], level: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 30)
        policy = {"dispatch_rate": rate} if level == "subscription" else {}
        if level == "topic":
            await client.admin.change_policies(TOPIC, dispatch_rate=rate)
        async with raw_consumer(channel, TOPIC, policy=policy) as consumer:
            consumer.credit(1_000)
            # A second's worth (ten batches or so) comes at once, then one batch every tenth of a second.
            times = await received(consumer, 150)
            assert 0.35 <= times[-1] < 5
            assert (await client.admin.explain_subscription(TOPIC, "s")).state == "rate-limited"
            consumer.send(api.Ack([0, 150]))
            await consumer.flush()
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert info.floor == 150


async def test_a_changed_rate_counts_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 30)
        async with raw_consumer(channel, TOPIC, policy={"dispatch_rate": {"messages_per_s": 1}}) as consumer:
            consumer.credit(1_000)
            await received(consumer, 10)  # which is ten seconds' worth
            with trio.move_on_after(0.05) as scope:
                await received(consumer, 10)
            assert scope.cancelled_caught
            await client.admin.change_subscription_policy(TOPIC, "s", dispatch_rate={"messages_per_s": 1_000})
            assert (await received(consumer, 100))[-1] < 5
            await client.admin.change_subscription_policy(TOPIC, "s", dispatch_rate={"messages_per_s": 1})
            await wait_until(lambda: _limited(client))
            await client.admin.change_subscription_policy(TOPIC, "s", dispatch_rate=None)
            assert (await received(consumer, 10))[-1] < 5


async def _limited(client: danube.Client) -> bool:
    return (await client.admin.explain_subscription(TOPIC, "s")).state in ("rate-limited", "waiting-for-acks")


async def test_a_limited_subscription_does_not_limit_the_others(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 20)
        async with (
            raw_consumer(channel, TOPIC, "slow", policy={"dispatch_rate": {"messages_per_s": 10}}) as slow,
            raw_consumer(channel, TOPIC, "own", policy={"dispatch_rate": {"messages_per_s": 0}}) as own,
            raw_consumer(channel, TOPIC, "free") as free,
        ):
            for consumer in (slow, own, free):
                consumer.credit(1_000)
            await client.admin.change_policies(TOPIC, dispatch_rate={"messages_per_s": 100_000})
            assert (await received(free, 200))[-1] < 5
            assert (await received(own, 200))[-1] < 5
            await slow.flush()
            slow.send(api.Ack([0, 10]))
            await slow.flush()  # and its acknowledgements do not wait
            (info,) = await client.admin.describe_subscription(TOPIC, "slow")
            assert info.floor == 10


async def test_timeouts_are_kept_while_the_rate_is_used_up(tmp_path: Path) -> None:
    policy = {
        "dispatch_rate": {"messages_per_s": 10},
        "ack_timeout_s": 0.1,
        "max_redelivery_count": 0,
        "poison": "drop",
    }
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 20)
        async with raw_consumer(channel, TOPIC, policy=policy) as consumer:
            consumer.credit(1_000)
            await received(consumer, 20)
            await wait_until(lambda: _dropped(client, 20))


async def _dropped(client: danube.Client, count: int) -> bool:
    (info,) = await client.admin.describe_subscription(TOPIC, "s")
    return info.dropped_messages >= count


@pytest.mark.parametrize("reason", ["moving", "failure"])
async def test_a_rate_does_not_spin_while_nothing_is_delivered(tmp_path: Path, reason: str) -> None:
    """A seek may take as long as the disk does, and the rate lets the next batch go meanwhile."""
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 30)
        async with raw_consumer(channel, TOPIC, policy={"dispatch_rate": {"messages_per_s": 100}}) as consumer:
            consumer.credit(1_000)
            await received(consumer, 100)
            found = running.topic(TOPIC).subscriptions["s"]
            await wait_until(lambda: found.paced_until < trio.current_time() + 60)
            ticks, tick = 0, found.machine.tick

            def counted(now: float) -> None:
                nonlocal ticks
                ticks += 1
                assert ticks < 100, "it spins"
                tick(now)

            found.machine.tick = counted  # type: ignore[method-assign]
            setattr(found, reason, True if reason == "moving" else DataLossError("damaged"))
            await trio.sleep(5)
            assert ticks <= 2
            found.moving, found.failure = False, None
            found.pump()
            await received(consumer, 150)


# --- The rate of a namespace ---


async def test_all_that_read_a_namespace_share_its_rate_and_none_starves(tmp_path: Path) -> None:
    """Two topics, two subscriptions of one, one of the other, and a reader: 100 messages a second in all."""
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_namespace("shop")
        await client.admin.change_quota("shop", dispatch_rate={"messages_per_s": 100})
        for topic in ("/shop/a", "/shop/b", TOPIC):
            await fill(client, 20, topic)
        took: dict[str, float] = {}

        async def consume(topic: str, name: str, policy: dict[str, object] | None = None) -> None:
            async with raw_consumer(channel, topic, name, policy=policy or {}) as consumer:
                consumer.credit(1_000)
                took[f"{topic} {name}"] = (await received(consumer, 200))[-1]

        async def read() -> None:
            began = trio.current_time()
            async with client.reader("/shop/b", start="earliest") as reader:
                for _ in range(200):
                    await reader.receive()
            took["reader"] = trio.current_time() - began

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, "/shop/a", "s")
            nursery.start_soon(consume, "/shop/a", "own", {"dispatch_rate": {"messages_per_s": 10_000}})
            nursery.start_soon(consume, "/shop/b", "s")
            nursery.start_soon(read)
            nursery.start_soon(consume, TOPIC, "s")
        assert 6.7 <= trio.current_time() - began < 8.5, "800 messages, 100 of which go at once"
        assert took.pop(f"{TOPIC} s") < 1, "another namespace does not wait"
        assert len(took) == 4
        # One has the 100 that go at once; after that they take turns.
        assert sorted(took.values())[0] > 3.2
        assert sorted(took.values())[1] > 6.4


async def test_another_rate_of_a_namespace_counts_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.change_quota("default", dispatch_rate={"messages_per_s": 2})
        await fill(client, 30)
        async with (
            raw_consumer(channel, TOPIC) as consumer,
            client.reader(TOPIC, start="earliest") as reader,
        ):
            consumer.credit(1_000)
            await received(consumer, 10)
            with trio.move_on_after(3) as scope:
                await received(consumer, 10)
            assert scope.cancelled_caught
            found = await client.admin.explain_subscription(TOPIC, "s")
            assert (found.state, "all topics of its namespace share" in found.sentence) == ("rate-limited", True)
            await client.admin.change_quota("default", dispatch_rate={"messages_per_s": 1_000})
            assert (await received(consumer, 100))[-1] < 1
            await client.admin.change_quota("default", dispatch_rate={"messages_per_s": 0.001})
            await client.admin.change_quota("default", dispatch_rate=None)
            assert (await received(consumer, 190))[-1] < 1
            with trio.fail_after(2):
                for _ in range(300):
                    await reader.receive()


async def test_topics_that_store_nothing_are_not_delayed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.change_quota("default", dispatch_rate={"messages_per_s": 1})
        await client.admin.create_topic(TOPIC, durability="none")
        async with raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(1_000)
            await consumer.flush()
            await fill(client, 10)
            assert (await received(consumer, 100))[-1] < 1
