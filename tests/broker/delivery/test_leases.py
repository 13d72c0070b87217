"""Leases: extending the ack timeout of messages that are being processed."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker.broker_harness import raw_consumer, running_broker

import danube
from danube.model import api
from danube.model.errors import InvalidArgumentError

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"
TYPES = ("exclusive", "failover", "shared", "key_shared")
POLICY = {"ack_timeout_s": 0.3, "redelivery_delay_s": 0.0}
TIMEOUT_S = 1.0
"""Where something has to be said before it is over."""
PATIENT = {**POLICY, "ack_timeout_s": TIMEOUT_S}


async def fill(client: danube.Client, count: int) -> None:
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"%d" % n for n in range(count)], keys=[f"k{n}" for n in range(count)])


async def test_extended_leases_do_not_time_out(tmp_path: Path) -> None:
    """Of every type at the same time, since it takes its time."""
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 6)

        async def check(kind: str) -> None:
            async with raw_consumer(channel, TOPIC, kind, kind=kind, policy=PATIENT) as consumer:
                assert consumer.opened.ack_timeout_s == TIMEOUT_S
                consumer.credit(100)
                await consumer.reply_of(api.ConsumeBatch)
                consumer.send(api.ExtendLease([2, 4], 60_000))
                again = await consumer.reply_of(api.ConsumeBatch)
                found = list(again.ranges)
                while len(found) < 4:
                    found += (await consumer.reply_of(api.ConsumeBatch)).ranges
                assert found == [0, 2, 4, 6], kind
                assert again.attempt == 2
                consumer.send(api.Ack([0, 2, 4, 6]))
                with trio.move_on_after(TIMEOUT_S + 0.2) as scope:
                    await consumer.reply_of(api.ConsumeBatch)
                assert scope.cancelled_caught, kind
                consumer.send(api.Ack([2, 4]))
                await consumer.flush()
            (info,) = await client.admin.describe_subscription(TOPIC, kind)
            assert info.floor == 6, kind

        async with trio.open_nursery() as nursery:
            for kind in TYPES:
                nursery.start_soon(check, kind)


async def test_a_lease_without_a_time_is_the_ack_timeout(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 1)
        async with raw_consumer(channel, TOPIC, policy=PATIENT) as consumer:
            consumer.credit(100)
            await consumer.reply_of(api.ConsumeBatch)
            await trio.sleep(0.3)
            began = trio.current_time()
            consumer.send(api.ExtendLease([0, 1]))
            assert (await consumer.reply_of(api.ConsumeBatch)).attempt == 2
            assert trio.current_time() - began >= TIMEOUT_S


async def test_a_lease_never_shortens_the_time(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 1)
        async with raw_consumer(channel, TOPIC, policy=POLICY) as consumer:
            consumer.credit(100)
            await consumer.reply_of(api.ConsumeBatch)
            began = trio.current_time()
            consumer.send(api.ExtendLease([0, 1], 1))
            await consumer.reply_of(api.ConsumeBatch)
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
            await holder.reply_of(api.ConsumeBatch)
            stranger.send(api.ExtendLease([0, 1], 60_000))
            await stranger.flush()
            assert (await holder.reply_of(api.ConsumeBatch)).attempt == 2


async def test_a_slow_handler_that_renews_is_not_punished(tmp_path: Path) -> None:
    """And one that does not renew is: through the client, as an application would see it."""
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 2)
        for name, renews, policy in (("patient", True, {**POLICY, "ack_timeout_s": 2.4}), ("impatient", False, POLICY)):
            async with client.consumer(
                TOPIC, subscription=name, start="earliest", policy=policy, renew_leases=renews
            ) as consumer:
                message = await consumer.receive()
                await trio.sleep(3.0 if renews else 0.8)
                await message.ack()
                await consumer.flush_acks()
            (info,) = await client.admin.describe_subscription(TOPIC, name)
            assert (info.redelivered_messages == 0) is renews


@pytest.mark.parametrize("kind", ["failover", "shared", "key_shared"])
async def test_a_stuck_application_gives_back_messages_that_it_has_not_seen(tmp_path: Path, kind: str) -> None:
    """One message fails, the one that was handed out; with one allowed failure none of the others may become poison."""
    policy = {"ack_timeout_s": 1.5, "max_redelivery_count": 1, "redelivery_delay_s": 0.0}
    async with running_broker(tmp_path) as running, running.client() as client, running.client() as others:
        await fill(client, 50)
        stuck_options = {"type": kind, "start": "earliest", "policy": policy}
        async with client.consumer(TOPIC, subscription="s", name="stuck", **stuck_options) as stuck:
            first = await stuck.receive()
            async with others.consumer(TOPIC, subscription="s", name="other", type=kind) as other:
                seen: dict[int, int] = {}
                with trio.fail_after(10):
                    while len(seen) < 50:
                        message = await other.receive()
                        seen[message.offset] = message.attempt
                        await message.ack()
                assert first.offset in seen
                await other.flush_acks()
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (info.floor, info.poisoned_messages) == (50, 0)
            await fill(client, 3)
            with trio.fail_after(10):
                taken = [(await stuck.receive()).offset for _ in range(3)]
            assert sorted(taken) == [50, 51, 52], "it is alive again"
