"""Leases: more time for what is being handled."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker_harness import raw_consumer, running_broker

import danube
from danube.model import api
from danube.model.errors import InvalidArgumentError

TOPIC = "/default/t"
TYPES = ("exclusive", "failover", "shared", "key_shared")
POLICY = {"ack_timeout_s": 0.3, "redelivery_delay_s": 0.0}


async def fill(client: danube.Client, count: int) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"%d" % n for n in range(count)], keys=[f"k{n}" for n in range(count)])


@pytest.mark.parametrize("kind", TYPES)
async def test_what_is_extended_does_not_time_out(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 6)
        async with raw_consumer(channel, TOPIC, kind=kind, policy=POLICY) as consumer:
            assert consumer.opened.ack_timeout_s == 0.3
            consumer.credit(100)
            await consumer.reply_of(api.Delivery)
            consumer.send(api.ExtendLease([2, 4], 60_000))
            again = await consumer.reply_of(api.Delivery)
            found = list(again.ranges)
            while len(found) < 4:
                found += (await consumer.reply_of(api.Delivery)).ranges
            assert found == [0, 2, 4, 6]
            assert again.attempt == 2
            consumer.send(api.Ack([0, 2, 4, 6]))
            with trio.move_on_after(0.4) as scope:
                await consumer.reply_of(api.Delivery)
            assert scope.cancelled_caught
            consumer.send(api.Ack([2, 4]))
            await consumer.flush()
            (info,) = await client.describe_subscription(TOPIC, "s")
            assert info.floor == 6


async def test_a_lease_without_a_time_is_the_ack_timeout(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 1)
        async with raw_consumer(channel, TOPIC, policy=POLICY) as consumer:
            consumer.credit(100)
            await consumer.reply_of(api.Delivery)
            began = trio.current_time()
            await trio.sleep(0.2)
            consumer.send(api.ExtendLease([0, 1]))
            await consumer.reply_of(api.Delivery)
            assert 0.5 <= trio.current_time() - began < 0.9


async def test_a_lease_never_shortens_the_time(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 1)
        async with raw_consumer(channel, TOPIC, policy=POLICY) as consumer:
            consumer.credit(100)
            await consumer.reply_of(api.Delivery)
            began = trio.current_time()
            consumer.send(api.ExtendLease([0, 1], 1))
            await consumer.reply_of(api.Delivery)
            assert trio.current_time() - began >= 0.28


@pytest.mark.parametrize(("lease_ms", "message"), [(-1, "negative"), (3_600_001, "max_lease_s = 3600")])
async def test_a_lease_has_bounds(tmp_path: Path, lease_ms: int, message: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 1)
        async with raw_consumer(channel, TOPIC) as consumer:
            consumer.send(api.ExtendLease([0, 1], lease_ms))
            with pytest.raises(InvalidArgumentError, match=message):
                await consumer.reply_of(api.AcksFlushed)


async def test_a_stranger_extends_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 1)
        async with (
            raw_consumer(channel, TOPIC, name="a", kind="shared", policy=POLICY) as holder,
            raw_consumer(channel, TOPIC, name="b", kind="shared") as stranger,
        ):
            holder.credit(100)
            await holder.reply_of(api.Delivery)
            stranger.send(api.ExtendLease([0, 1], 60_000))
            await stranger.flush()
            assert (await holder.reply_of(api.Delivery)).attempt == 2


async def test_a_slow_handler_that_renews_is_not_punished(tmp_path: Path) -> None:
    """And one that does not renew is: through the client, as an application would see it."""
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 2)
        for name, renews in (("patient", True), ("impatient", False)):
            async with client.consumer(
                TOPIC, subscription=name, start="earliest", policy=POLICY, renew_leases=renews
            ) as consumer:
                message = await consumer.receive()
                await trio.sleep(0.8)
                await message.ack()
                await consumer.flush_acks()
            (info,) = await client.describe_subscription(TOPIC, name)
            assert (info.redelivered_messages == 0) is renews
