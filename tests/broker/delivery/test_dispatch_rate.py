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


async def fill(client: danube.Client, batches: int) -> None:
    """Publish batches of ten messages of 100 bytes."""
    async with client.producer(TOPIC) as producer:
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
