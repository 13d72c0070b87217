"""How much flows, to whom and when, as applications see it: windows, key filters, delays, age, rates, limits.

All of it is changed while consumers and producers are connected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from consumer_groups import backlog, by_key, consumer_group, numbers, publish, until

from danube import Client, connect
from danube.client import Consumer, Message
from danube.model.errors import LimitExceededError, MessageTooLargeError

QUIET_S = 0.15
"""After so long without a message none is expected any more."""


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive() for _ in range(count)]


async def quiet(consumer: Consumer) -> None:
    """Check that nothing comes."""
    with trio.move_on_after(QUIET_S):
        message = await consumer.receive()
        raise AssertionError(f"message {message.offset} came, attempt {message.attempt}")


def explained(client: Client, topic: str, *words: str) -> Callable[[], object]:
    """Tell whether the explanation has these words."""

    async def look() -> bool:
        explanation = await client.admin.explain_subscription(topic, "s")
        return all(word in f"{explanation.state}: {explanation.sentence}" for word in words)

    return look


@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_the_window_of_unacknowledged_messages_is_changed_live(shared_broker: BrokerProcess, kind: str) -> None:
    topic = f"/default/window-{kind}"
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client:
            await publish(client, topic, 0, 60, per_batch=5)
            async with client.consumer(
                topic, subscription="s", type=kind, start="earliest", policy={"max_unacked_messages": 20}
            ) as consumer:
                first = await take(consumer, 20)
                await quiet(consumer)
                await until(explained(client, topic, "window-full", "max_unacked_messages"))
                await client.admin.change_subscription_policy(topic, "s", max_unacked_messages=30)
                first += await take(consumer, 10)
                await quiet(consumer)
                for message in first[:15]:
                    await message.ack()
                first += await take(consumer, 15)
                assert [message.offset for message in first] == list(range(45))
                await client.admin.change_subscription_policy(topic, "s", max_unacked_messages=0)
                first += await take(consumer, 15)


async def test_key_filters_share_the_keys_and_what_none_matches_is_held_or_skipped(
    shared_broker: BrokerProcess,
) -> None:
    topic = "/default/filters"
    keys = ["eu-1", "us-2", "eu-long", "asia", "us-33"]
    with trio.fail_after(20):
        async with (
            connect(shared_broker.url) as client,
            consumer_group(shared_broker.url, topic, "s", "key_shared") as group,
        ):
            async with client.producer(topic) as producer:
                await producer.send_many([b"%d" % one for one in range(50)], keys=[*keys * 10])
            await group.join("europe", key_filters=["eu-*"])
            await group.join("america", key_filters=["us-?", "u?-3*"])
            await group.until(lambda it: len(it.acked) == 40)
            assert set(by_key(group.seen_by("europe"))) == {"eu-1", "eu-long"}
            assert set(by_key(group.seen_by("america"))) == {"us-2", "us-33"}
            await group.flush()
            # Held, and named ...
            assert await backlog(client, topic, "s") == 10
            await until(explained(client, topic, "no-matching-consumer", "asia"))
            # ... until a consumer connects that takes it, in order.
            await group.join("world")
            await group.until(lambda it: len(it.acked) == 50)
            assert numbers(group.seen_by("world")) == list(range(3, 50, 5))
            await group.lose("world")
            await client.admin.change_subscription_policy(topic, "s", unmatched="skip")
            await publish(client, topic, 50, 10, keys=1)
            await group.flush()
            await until(lambda: backlog_is(client, topic, 0))
            assert len(group.seen) == 50


async def backlog_is(client: Client, topic: str, count: int) -> bool:
    return await backlog(client, topic, "s") == count


async def test_delayed_messages_are_overtaken_and_never_early_even_if_the_broker_is_killed(tmp_path: Path) -> None:
    topic = "/default/reminders"
    with (
        BrokerProcess(tmp_path / "data", "--journal-file-size", "16MiB", "--log-level", "warning") as broker,
        trio.fail_after(30),
    ):
        due_s = {}
        async with connect(broker.url) as client, client.producer(topic) as producer:
            due_s[b"after"] = time.time() + 3
            await producer.send(b"after", deliver_after_s=3)
            due_s[b"at"] = time.time() + 4
            await producer.send(b"at", deliver_at=datetime.now(UTC) + timedelta(seconds=4))
            await producer.send(b"now")
            async with client.consumer(topic, subscription="s", start="earliest") as consumer:
                (message,) = await take(consumer, 1)
                assert message.payload == b"now"
                await message.ack()
                await consumer.flush_acks()
                await until(explained(client, topic, "waiting-for-delivery-time"))
                (row,) = await client.admin.describe_subscription(topic, "s")
                assert row.delayed_messages == 2
        broker.kill()
        broker.start()
        async with (
            connect(broker.url) as client,
            client.consumer(topic, subscription="s") as consumer,
        ):
            for payload in (b"after", b"at"):
                (message,) = await take(consumer, 1)
                late_s = time.time() - due_s[payload]
                assert (message.payload, message.attempt) == (payload, 1)
                assert late_s > -0.05
                await message.ack()


async def test_messages_past_their_ttl_are_not_delivered_and_leave_the_backlog(
    shared_broker: BrokerProcess,
) -> None:
    topic = "/default/short-lived"
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client:
            await client.admin.create_topic(topic)
            async with client.consumer(topic, subscription="s", start="earliest"):
                pass
            await publish(client, topic, 0, 10)
            assert await backlog(client, topic, "s") == 10
            await client.admin.change_policies(topic, message_ttl_s=0.5)
            await until(lambda: backlog_is(client, topic, 0))
            (row,) = await client.admin.describe_subscription(topic, "s")
            assert row.expired_messages == 10
            await client.admin.change_policies(topic, message_ttl_s=60.0)
            await publish(client, topic, 10, 5)
            async with client.consumer(topic, subscription="s") as consumer:
                assert [message.offset for message in await take(consumer, 5)] == [10, 11, 12, 13, 14]


async def test_rates_delay_and_drop_nothing(shared_broker: BrokerProcess) -> None:
    topic = "/default/rates"
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client:
            await client.admin.create_topic(topic)
            # One second's worth may come at once; the other half takes its time.
            await client.admin.change_policies(topic, publish_rate={"messages_per_s": 100})
            began = time.monotonic()
            await publish(client, topic, 0, 200, per_batch=10)
            took_s = time.monotonic() - began
            assert 0.8 < took_s < 8.0
            # At this rate they would take minutes.
            await client.admin.change_policies(topic, publish_rate={"messages_per_s": 1})
            await client.admin.change_policies(topic, publish_rate=None)
            await publish(client, topic, 200, 200, per_batch=10)

            async with client.consumer(
                topic, subscription="s", start="earliest", policy={"dispatch_rate": {"messages_per_s": 200}}
            ) as consumer:
                began = time.monotonic()
                await take(consumer, 300)
                assert 0.2 < time.monotonic() - began < 8.0
                await client.admin.change_subscription_policy(topic, "s", dispatch_rate=None)
                assert [message.offset for message in await take(consumer, 100)] == list(range(300, 400))


async def test_limits_hold_at_every_level_and_the_nearest_one_counts(shared_broker: BrokerProcess) -> None:
    topic = "/limited/orders"
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client, connect(shared_broker.url, request_timeout_s=0.6) as hasty:
            await client.admin.create_namespace("limited")
            await client.admin.create_topic(topic)
            await client.admin.change_policies(
                "limited", max_producers=1, max_consumers=1, max_subscriptions=1, max_message_bytes=1_000
            )
            report = await client.admin.policies(topic)
            assert report.effective.max_producers == 1
            assert report.sources["max_producers"] == "namespace"
            async with client.producer(topic) as producer, client.consumer(topic, subscription="s", type="shared"):
                with pytest.raises(LimitExceededError, match="max_producers"):
                    async with hasty.producer(topic):
                        pass
                with pytest.raises(LimitExceededError, match="max_consumers"):
                    async with hasty.consumer(topic, subscription="s", type="shared"):
                        pass
                with pytest.raises(LimitExceededError, match="max_subscriptions"):
                    async with hasty.consumer(topic, subscription="t"):
                        pass
                with pytest.raises(MessageTooLargeError):
                    await producer.send(b"x" * 1_001)
                await client.admin.change_policies(topic, max_consumers=2, max_producers=2)
                async with client.producer(topic), client.consumer(topic, subscription="s", type="shared"):
                    pass
            await client.admin.change_policies("limited", max_message_bytes=None)
            async with client.producer(topic) as producer:
                await producer.send(b"x" * 1_001)
