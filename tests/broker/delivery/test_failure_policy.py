"""Messages that fail: redelivery pauses, poison, and changes of the policy of a subscription in use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RawConsumer, RunningBroker, raw_consumer, raw_producer, running_broker, wait_until

import danube
from danube.model import Backoff, SubscriptionPolicy, api
from danube.model.batch import pack_part, read_header
from danube.model.errors import InvalidArgumentError
from danube.wire.client import Channel

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"
TYPES = ("exclusive", "failover", "shared", "key_shared")
AT_ONCE = {"redelivery_delay_s": 0.0, "backoff": "fixed"}


async def fill(client: danube.Client, count: int) -> None:
    """Publish one batch of ``count`` numbers, each with a key of its own."""
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"%d" % n for n in range(count)], keys=[f"k{n}" for n in range(count)])


async def explained(client: danube.Client, subscription: str = "s") -> api.Explanation:
    return await client.admin.explain_subscription(TOPIC, subscription)


async def described(client: danube.Client, subscription: str = "s") -> api.SubscriptionInfo:
    (info,) = await client.admin.describe_subscription(TOPIC, subscription)
    return info


async def deliveries(consumer: RawConsumer, messages: int) -> list[tuple[int, int]]:
    """Return (offset, attempt) of the next so many messages."""
    found: list[tuple[int, int]] = []
    while len(found) < messages:
        delivery = await consumer.reply_of(api.ConsumeBatch)
        count = read_header(delivery.part).record_count
        ranges = delivery.ranges or [delivery.base_offset, delivery.base_offset + count]
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            found += [(offset, delivery.attempt) for offset in range(start, end)]
    return found


@asynccontextmanager
async def consuming(
    directory: Path, policy: dict[str, Any], kind: str = "exclusive", count: int = 10
) -> AsyncGenerator[tuple[RunningBroker, danube.Client, RawConsumer], None]:
    """A consumer that has got ten messages of a subscription with a policy."""
    async with running_broker(directory) as running, running.client() as client, running.channel() as channel:
        await fill(client, count)
        async with raw_consumer(channel, TOPIC, kind=kind, policy=policy) as consumer:
            consumer.credit(1_000)
            assert await deliveries(consumer, 10) == [(n, 1) for n in range(10)]
            yield running, client, consumer


# --- Where a policy comes from ---


async def test_the_first_consumer_chooses_the_policy_and_it_is_durable(tmp_path: Path) -> None:
    async with running_broker(tmp_path, subscription_policy={"max_redelivery_count": 9}) as running:
        async with running.client() as client, running.channel() as channel:
            await client.admin.create_topic(TOPIC)
            async with raw_consumer(channel, TOPIC, policy={"ack_timeout_s": 7, "backoff": "fixed"}) as consumer:
                assert consumer.opened.ack_timeout_s == 7
        await running.restart(crash=True)
        expected = SubscriptionPolicy(max_redelivery_count=9, ack_timeout_s=7, backoff=Backoff.FIXED)
        async with running.client() as client, running.channel() as channel:
            assert (await described(client)).policy == expected
            async with raw_consumer(channel, TOPIC, policy={"ack_timeout_s": 8}) as consumer:
                assert consumer.opened.ack_timeout_s == 7
            assert (await described(client)).policy == expected


@pytest.mark.parametrize(
    "policy",
    [
        {"max_redeliveries": 3},
        {"ack_timeout_s": "long"},
        {"ack_timeout_s": -1},
        {"poison": "eat"},
        {"poison": "dead_letter", "dead_letter_topic": TOPIC},
        {"poison": "dead_letter", "dead_letter_topic": f"{TOPIC}-part-3"},
        {"poison": "dead_letter", "dead_letter_topic": "letters"},
    ],
)
async def test_a_policy_that_cannot_be_is_refused(tmp_path: Path, policy: dict[str, Any]) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        with pytest.raises(InvalidArgumentError):
            async with raw_consumer(channel, TOPIC, policy=policy):
                pass
        assert not running.topic(TOPIC).subscriptions
        async with raw_consumer(channel, TOPIC):
            with pytest.raises(InvalidArgumentError):
                await client.admin.change_subscription_policy(TOPIC, "s", **policy)
            assert (await described(client)).policy == SubscriptionPolicy()


# --- Pauses and poison ---


@pytest.mark.parametrize("kind", TYPES)
async def test_a_refused_message_comes_again_after_the_pause_of_the_policy(tmp_path: Path, kind: str) -> None:
    policy = {"redelivery_delay_s": 0.1, "max_redelivery_delay_s": 0.2}
    async with consuming(tmp_path, policy, kind) as (_, client, consumer):
        consumer.send(api.Ack([0, 3, 4, 10]))
        for attempt, pause_s in ((2, 0.1), (3, 0.2), (4, 0.2)):
            began = trio.current_time()
            consumer.send(api.Nack([3, 4], reason="no"))
            assert await deliveries(consumer, 1) == [(3, attempt)]
            assert pause_s <= trio.current_time() - began < pause_s + 5.0
        consumer.send(api.Nack([3, 4]))
        await consumer.flush()
        assert (await explained(client)).state == "waiting-for-retry"
        assert (await described(client)).waiting_messages == 1


@pytest.mark.parametrize("kind", TYPES)
async def test_poison_is_dropped_durably(tmp_path: Path, kind: str) -> None:
    policy = {**AT_ONCE, "max_redelivery_count": 2, "poison": "drop"}
    async with consuming(tmp_path, policy, kind) as (running, client, consumer):
        consumer.send(api.Ack([0, 3, 4, 10]))
        for attempt in (2, 3):
            consumer.send(api.Nack([3, 4]))
            assert await deliveries(consumer, 1) == [(3, attempt)]
        consumer.send(api.Nack([3, 4]))
        await consumer.flush()
        info = await described(client)
        assert (info.floor, info.dropped_messages, info.poisoned_messages) == (10, 1, 0)
        await running.restart(crash=True)
        assert (await described(client)).floor == 10


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared"])
@pytest.mark.parametrize("remedy", ["ack", "policy", "seek"])
async def test_poison_blocks_until_an_operator_acts(tmp_path: Path, kind: str, remedy: str) -> None:
    policy = {**AT_ONCE, "max_redelivery_count": 0}
    async with consuming(tmp_path, policy, kind) as (_, client, consumer):
        consumer.send(api.Nack([3, 4], reason="cannot read it"))
        await fill(client, 5)
        await consumer.flush()
        explanation = await explained(client)
        assert explanation.state == "blocked"
        assert "3" in explanation.sentence
        assert "cannot read it" in explanation.sentence
        with trio.move_on_after(0.05) as scope:
            await deliveries(consumer, 1)
        assert scope.cancelled_caught
        consumer.send(api.Ack([4, 6]))  # what is in flight may be acknowledged
        await consumer.flush()
        info = await described(client)
        assert (info.poisoned_messages, info.backlog_messages) == (1, 13)
        if remedy == "ack":
            consumer.send(api.Ack([3, 4]))
        elif remedy == "policy":
            await client.admin.change_subscription_policy(TOPIC, "s", max_redelivery_count=1)
            assert await deliveries(consumer, 1) == [(3, 2)]
        else:
            await client.admin.seek_subscription(TOPIC, "s", 10)
        assert await deliveries(consumer, 5) == [(n, 1) for n in range(10, 15)]
        assert (await described(client)).poisoned_messages == 0


async def test_in_key_shared_poison_blocks_its_key_only(tmp_path: Path) -> None:
    policy = {**AT_ONCE, "max_redelivery_count": 0}
    async with consuming(tmp_path, policy, "key_shared") as (_, client, consumer):
        consumer.send(api.Ack([0, 3, 4, 10]))
        consumer.send(api.Nack([3, 4]))
        await fill(client, 10)  # the same keys again
        assert [offset for offset, _ in await deliveries(consumer, 9)] == [n for n in range(10, 20) if n != 13]
        consumer.send(api.Ack([10, 13, 14, 20]))
        await consumer.flush()
        explanation = await explained(client)
        assert explanation.state == "blocked"
        assert "k3" in explanation.sentence
        await client.admin.change_subscription_policy(TOPIC, "s", poison="drop")
        assert await deliveries(consumer, 1) == [(13, 1)]


@pytest.mark.parametrize("kind", TYPES)
async def test_the_loss_of_a_consumer_is_no_failure(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        for attempt in range(1, 4):
            async with raw_consumer(channel, TOPIC, kind=kind, policy={"max_redelivery_count": 0}) as consumer:
                consumer.credit(1_000)
                assert await deliveries(consumer, 10) == [(n, attempt) for n in range(10)]


async def test_a_nack_says_how_long_and_why_within_limits(tmp_path: Path) -> None:
    policy = {"max_redelivery_count": 0}
    async with consuming(tmp_path, policy) as (running, client, consumer):
        most = running.config.limits.max_nack_reason_chars
        consumer.send(api.Nack([3, 4], reason="x" * (most + 1)))
        await consumer.flush()
        assert (await explained(client)).sentence.count("x") in range(most, most + 10)
        consumer.send(api.Nack([4, 5], round(running.config.limits.max_delivery_delay_s * 1000) + 1))
        with pytest.raises(InvalidArgumentError, match="max_delivery_delay_s"):
            await consumer.reply_of(api.AcksFlushed)


# --- Changes ---


async def test_a_new_ack_timeout_applies_to_messages_in_flight_and_is_sent_to_consumers(tmp_path: Path) -> None:
    async with consuming(tmp_path, {**AT_ONCE, "ack_timeout_s": 0}) as (_, client, consumer):
        assert consumer.opened.ack_timeout_s == 0
        (info,) = await client.admin.change_subscription_policy(TOPIC, "s", ack_timeout_s=0.5)
        assert info.policy.ack_timeout_s == 0.5
        assert (await consumer.reply_of(api.LeaseChanged)).ack_timeout_s == 0.5
        began = trio.current_time()
        assert await deliveries(consumer, 10) == [(n, 2) for n in range(10)]
        assert trio.current_time() - began < 5
        consumer.send(api.Ack([0, 10]))
        await consumer.flush()
        await client.admin.change_subscription_policy(TOPIC, "s", poison="drop")
        consumer.send(api.FlushAcks(7))
        assert isinstance(await consumer.reply(), api.AcksFlushed)  # nothing is told about other changes


async def test_a_smaller_window_counts_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_consumer(channel, TOPIC, kind="shared", policy={"max_unacked_messages": 5}) as consumer:
            consumer.credit(1_000)
            await deliveries(consumer, 5)
            await wait_until(lambda: _state_is(client, "window-full"))
            await client.admin.change_subscription_policy(TOPIC, "s", max_unacked_messages=7)
            await deliveries(consumer, 2)
            assert (await explained(client)).state == "window-full"


async def _state_is(client: danube.Client, state: str) -> bool:
    return (await explained(client)).state == state


async def test_a_changed_policy_is_durable_when_the_call_returns(tmp_path: Path) -> None:
    async with consuming(tmp_path, {}) as (running, client, _):
        await client.admin.change_subscription_policy(TOPIC, "s", poison="drop", max_redelivery_count=1)
        await running.restart(crash=True)
        policy = (await described(client)).policy
        assert (policy.poison, policy.max_redelivery_count) == ("drop", 1)


# --- Suspension ---


async def test_a_failover_consumer_that_lets_messages_time_out_is_passed_over(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        policy = {**AT_ONCE, "ack_timeout_s": 0.1}
        async with (
            raw_consumer(channel, TOPIC, name="dead", kind="failover", policy=policy) as dead,
            raw_consumer(channel, TOPIC, name="alive", kind="failover") as alive,
        ):
            assert (dead.opened.active, alive.opened.active) == (True, False)
            dead.credit(1_000)
            alive.credit(1_000)
            assert await deliveries(dead, 10) == [(n, 1) for n in range(10)]
            assert (await alive.reply_of(api.ActiveChanged)).active
            assert await deliveries(alive, 10) == [(n, 2) for n in range(10)]
            alive.send(api.Ack([0, 10]))
            await alive.flush()
            assert not (await dead.reply_of(api.ActiveChanged)).active
            info = await described(client)
            assert {one.name: (one.active, one.suspended) for one in info.consumers} == {
                "dead": (False, True),
                "alive": (True, False),
            }
            dead.credit(1)  # it is alive after all
            await dead.flush()
            assert not any(one.suspended for one in (await described(client)).consumers)


# --- Key filters ---


async def test_key_filters_are_checked(tmp_path: Path) -> None:
    limits = {"max_key_filters": 2, "max_key_filter_chars": 5}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        for filters, kind, message in (
            (["a"], "shared", "key-shared"),
            (["a", "b", "c"], "key_shared", "max_key_filters"),
            ([""], "key_shared", "empty"),
            (["abcdef"], "key_shared", "max_key_filter_chars"),
        ):
            async with running.channel() as channel:
                with pytest.raises(InvalidArgumentError, match=message):
                    async with raw_consumer(channel, TOPIC, kind=kind, key_filters=filters):
                        pass


async def test_a_message_that_no_filter_matches_is_held_or_skipped(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_consumer(channel, TOPIC, kind="key_shared", key_filters=["k[0-9]", "k1", "?2"]) as consumer:
            consumer.credit(1_000)
            assert await deliveries(consumer, 2) == [(1, 1), (2, 1)]
            assert (await consumer.reply_of(api.CaughtUp)).end_offset == 10  # what is held is not waited for
            consumer.send(api.Ack([1, 3]))
            await consumer.flush()
            explanation = await explained(client)
            assert explanation.state == "no-matching-consumer"
            assert "k0" in explanation.sentence
            (info,) = (await described(client)).consumers
            assert info.key_filters == ["k[0-9]", "k1", "?2"]
            await client.admin.change_subscription_policy(TOPIC, "s", unmatched="skip")
            await consumer.flush()
            assert (await described(client)).floor == 10
            await running.restart(crash=True)
            assert (await described(client)).floor == 10


# --- Batches that do not open ---


async def bad_batch(channel: Channel, topic: str = TOPIC) -> None:
    """Publish three messages, then a batch of three whose records are no msgpack, then three more."""
    async with raw_producer(channel, topic) as producer:
        opened = producer.opened
        producer.send(0, b"a", b"b", b"c")
        producer.send_part(
            pack_part(
                b"\xc1\xc1\xc1",
                3,
                plain=True,
                producer_id=opened.producer_id,
                producer_epoch=opened.epoch,
                base_sequence=3,
                publish_time_us=1,
            )
        )
        producer.send(6, b"d", b"e", b"f")
        await producer.acked(3)


async def test_a_batch_that_does_not_open_goes_the_way_of_poison(tmp_path: Path) -> None:
    policy = {**AT_ONCE, "max_redelivery_count": 2, "poison": "drop"}
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        await bad_batch(channel)
        async with raw_consumer(channel, TOPIC, kind="key_shared", policy=policy) as consumer:
            consumer.credit(9)  # what was not sent costs nothing
            assert [offset for offset, _ in await deliveries(consumer, 6)] == [0, 1, 2, 6, 7, 8]
            consumer.send(api.Ack([0, 3, 6, 9]))
            await consumer.flush()
            info = await described(client)
            assert (info.floor, info.dropped_messages, info.consumers[0].credit_messages) == (9, 3, 3)


async def test_a_batch_that_does_not_open_in_a_shared_subscription(tmp_path: Path) -> None:
    policy = {**AT_ONCE, "max_redelivery_count": 1, "poison": "drop"}
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        await bad_batch(channel)
        async with raw_consumer(channel, TOPIC, kind="shared", policy=policy) as consumer:
            found = []
            for _ in range(6):  # one at a time, so that every batch has to be cut
                consumer.credit(1)
                found += [offset for offset, _ in await deliveries(consumer, 1)]
            assert found == [0, 1, 2, 6, 7, 8]


# --- Others are not affected ---


STUCK: dict[str, dict[str, Any]] = {
    "blocked": {**AT_ONCE, "max_redelivery_count": 0},
    "dead-lettering": {
        **AT_ONCE,
        "max_redelivery_count": 0,
        "poison": "dead_letter",
        "dead_letter_topic": "/nowhere/letters",
    },
    "no-credit": {},
}


@pytest.mark.parametrize("state", list(STUCK))
async def test_a_stuck_subscription_does_not_slow_the_others_of_its_topic(tmp_path: Path, state: str) -> None:
    """It is blocked by poison, waits for its dead-letter topic, or has no credit: others are not affected."""
    async with (
        running_broker(tmp_path) as running,
        running.client() as client,
        running.channel() as channel,
    ):
        await fill(client, 10)
        async with client.consumer(TOPIC, subscription="free", start="earliest") as free:
            alone_s = await _round(client, free, 1_010)
            async with raw_consumer(channel, TOPIC, policy=STUCK[state]) as consumer:
                if state != "no-credit":
                    consumer.credit(10)
                    await deliveries(consumer, 10)
                    consumer.send(api.Nack([0, 10], reason="broken"))
                await wait_until(lambda: _state_is(client, state))
                together_s = await _round(client, free, 1_000)
                assert together_s < 2 * alone_s + 5.0
                assert (await explained(client)).state == state
                info = await described(client)
                assert info.backlog_messages == 2_010


async def _round(client: danube.Client, consumer: danube.Consumer, count: int) -> float:
    """Publish 1,000 messages one batch of ten after the other, take ``count``, and return how long it took."""
    began = trio.current_time()
    async with client.producer(TOPIC) as producer:
        for _ in range(100):
            await producer.send_many([b"x"] * 10)
    taken = 0
    async for batch in consumer.batches():
        await batch.ack()
        taken += len(batch)
        if taken == count:
            break
    await consumer.flush_acks()
    return trio.current_time() - began
