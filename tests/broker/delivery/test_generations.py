"""Requests about deliveries from before a seek have no effect, checked frame by frame."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker.broker_harness import RawConsumer, raw_consumer, running_broker, wait_until
from test_lost_acks import delivered

from danube.broker.delivery.explain import explanation_of, info_of
from danube.model import api

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"
SAYINGS = [
    api.Ack([0, 10]),
    api.Ack([0, 10], generation=2),
    api.Nack([0, 10], 0),
    api.GiveBack([0, 10]),
]


async def next_delivery(consumer: RawConsumer) -> api.ConsumeBatch:
    with trio.fail_after(5):
        delivery = await consumer.reply_of(api.ConsumeBatch)
    assert isinstance(delivery, api.ConsumeBatch)
    return delivery


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_requests_about_earlier_deliveries_are_void(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 10)
        async with raw_consumer(channel, TOPIC, kind=kind) as consumer:
            assert consumer.opened.generation == 0
            consumer.credit(100)
            await next_delivery(consumer)
            await client.admin.seek_subscription(TOPIC, "s", 0)
            assert (await consumer.reply_of(api.Sought)).generation == 1
            assert (await next_delivery(consumer)).attempt == 1
            ordered = kind in ("exclusive", "failover")
            for saying in [*SAYINGS, *([api.AckCumulative(9)] if ordered else [])]:
                consumer.send(saying)
            await consumer.flush(7)
            subscription = running.topic(TOPIC).subscriptions["s"]
            row = info_of(subscription)
            assert (row.backlog_messages, row.in_flight_messages, row.redelivered_messages) == (10, 10, 0)
            assert not any(each.suspended for each in subscription.machine.describe(10).consumers)
            consumer.send(api.Ack([0, 9], generation=1))
            consumer.send(api.AckCumulative(9, generation=1) if ordered else api.Ack([9, 10], generation=1))
            await consumer.flush(8)
            assert info_of(subscription).backlog_messages == 0
        async with raw_consumer(channel, TOPIC, kind=kind) as consumer:
            assert consumer.opened.generation == 1


async def test_an_old_lease_moves_no_new_deadline(tmp_path: Path) -> None:
    policy = {"ack_timeout_s": 0.2, "redelivery_delay_s": 0.0}
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
        async with raw_consumer(channel, TOPIC, policy=policy) as consumer:
            consumer.credit(100)
            await client.admin.seek_subscription(TOPIC, "s", 0)
            await consumer.reply_of(api.Sought)
            assert (await next_delivery(consumer)).attempt == 1
            consumer.send(api.ExtendLease([0, 1], 60_000))
            assert (await next_delivery(consumer)).attempt == 2


async def test_nothing_is_delivered_until_a_seek_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash the generation would be given again, and what was delivered in the lost one would count in it."""
    async with delivered(tmp_path, monkeypatch) as (consumer, subscription, journal), trio.open_nursery() as nursery:
        await consumer.reply_of(api.CaughtUp)
        nursery.start_soon(subscription.seek, 0)
        await wait_until(lambda: journal.entries)
        consumer.credit(100)
        with trio.move_on_after(0.1):
            raise AssertionError(f"it was told {await consumer.reply()}")
        told = explanation_of(subscription, trio.current_time())
        assert (told.state, "the seek to offset 0" in told.sentence) == ("waiting-for-storage", True)
        journal.settle_first(None)
        assert (await consumer.reply_of(api.Sought)).generation == 1
        await next_delivery(consumer)
        assert explanation_of(subscription, trio.current_time()).state != "waiting-for-storage"


async def test_a_cancelled_seek_does_not_hold_the_subscription(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with delivered(tmp_path, monkeypatch) as (consumer, subscription, journal):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscription.seek, 0)
            await wait_until(lambda: journal.entries)
            nursery.cancel_scope.cancel()
        # The cursor was moved, and its entry is on its way; only the caller does not wait for it any more.
        journal.settle_first(None)
        await consumer.reply_of(api.Sought)


async def test_after_restart_and_seek_only_messages_delivered_since_can_be_acknowledged(tmp_path: Path) -> None:
    """What a client repeats after a restart counts although nothing of it was delivered since; after a seek it must."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 10)
        async with running.channel() as channel, raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(100)
            await next_delivery(consumer)
        await client.admin.seek_subscription(TOPIC, "s", 0)
        await running.restart(crash=True)
        subscription = running.topic(TOPIC).subscriptions["s"]
        async with running.channel() as channel, raw_consumer(channel, TOPIC) as consumer:
            assert consumer.opened.generation == 1
            for generation in (0, 2):
                consumer.send(api.Ack([0, 10], generation))
            consumer.send(api.Ack([0, 3], 1))  # delivered and acknowledged before the restart, which cut the answer off
            await consumer.flush(1)
            assert subscription.cursor.floor == 3
            await client.admin.seek_subscription(TOPIC, "s", 0)
            await consumer.reply_of(api.Sought)
            consumer.send(api.Ack([0, 10], 1))
            consumer.send(api.Ack([4, 5], 2))  # there was no credit, hence no delivery
            await consumer.flush(2)
            row = info_of(subscription)
            assert (row.floor, row.backlog_messages) == (0, 10)
