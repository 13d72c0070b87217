"""Policies of topics at three levels: which level takes effect, and that each policy is enforced."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, raw_consumer, raw_producer, running_broker, small_config, wait_until
from broker.sealed_topics import bucket, publish
from hypothesis import given, settings
from hypothesis import strategies as st

import danube
from danube.broker.intake.effective_policies import stack
from danube.model import Rate, Retention, SubscriptionPolicy, TopicPolicies
from danube.model.batch import Codec, read_header, seal_part
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    MessageTooLargeError,
    NamespaceNotFoundError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from danube.model.policies import SchemaFraming, SchemaPayloads, SchemaValidation

pytestmark = pytest.mark.virtual

TOPIC = "/shop/orders"
TARGETS = {"broker": "", "namespace": "shop", "topic": TOPIC}

EVERYTHING: dict[str, Any] = {
    "max_producers": 7,
    "max_subscriptions": 8,
    "max_consumers": 9,
    "max_consumers_per_subscription": 10,
    "max_message_bytes": 1000,
    "message_ttl_s": 3600.0,
    "retention": Retention(max_age_s=86400.0, max_bytes=10**9),
    "publish_rate": Rate(1000.0, 1e6),
    "dispatch_rate": Rate(bytes_per_s=1e6),
    "schema_validation": SchemaValidation.WARN,
    "schema_payloads": SchemaPayloads.BROKER,
    "schema_framing": SchemaFraming.CONFLUENT,
}

assert set(EVERYTHING) == set(TopicPolicies.__struct_fields__)


# --- Levels ---

values = st.builds(
    TopicPolicies,
    max_producers=st.none() | st.integers(0, 3),
    message_ttl_s=st.none() | st.just(0.0) | st.just(5.0),
    retention=st.none() | st.just(Retention()) | st.just(Retention(max_bytes=1)),
)


@given(values, values, values, values)
@settings(deadline=None, max_examples=100)
def test_the_nearest_level_that_says_something_counts(
    topic: TopicPolicies, namespace: TopicPolicies, broker: TopicPolicies, configured: TopicPolicies
) -> None:
    levels = [("topic", topic), ("namespace", namespace), ("broker", broker), ("broker", configured)]
    found = stack(levels)
    for name in TopicPolicies.__struct_fields__:
        said = [(level, value) for level, policies in levels if (value := getattr(policies, name)) is not None]
        assert getattr(found.values, name) == (said[0][1] if said else None)
        assert found.sources.get(name) == (said[0][0] if said else None)


async def test_every_policy_at_every_level(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_namespace("shop")
        await client.admin.create_topic(TOPIC)
        topic = running.topic(TOPIC)
        for level in ("broker", "namespace", "topic"):
            for name, value in EVERYTHING.items():
                report = await client.admin.change_policies(TARGETS[level], **{name: value})
                assert getattr(report.own, name) == getattr(report.effective, name) == value
                assert report.sources == {name: level}
                shown = await client.admin.policies(TOPIC)
                assert getattr(shown.effective, name) == value
                assert shown.sources == {name: level}
                assert getattr(topic.policies.values, name) == value
                report = await client.admin.change_policies(TARGETS[level], **{name: None})
                assert (report.own, report.effective, report.sources) == (TopicPolicies(), TopicPolicies(), {})
                assert topic.policies.values == TopicPolicies()


async def test_nearer_levels_win_and_can_be_taken_away(tmp_path: Path) -> None:
    config = {"policies": {"max_producers": 1, "max_consumers": 1}}
    async with running_broker(tmp_path, **config) as running, running.client() as client:
        await client.admin.create_namespace("shop")
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/other")

        async def counts(target: str = TOPIC) -> tuple[int | None, str]:
            report = await client.admin.policies(target)
            return report.effective.max_producers, report.sources["max_producers"]

        assert await counts() == (1, "broker")
        assert (
            await client.admin.policies()
        ).own == TopicPolicies()  # the configuration is not what was set by command
        await client.admin.change_policies("", max_producers=2)
        assert (await client.admin.policies()).own == TopicPolicies(max_producers=2)
        assert await counts() == await counts("") == (2, "broker")
        await client.admin.change_policies("shop", max_producers=3)
        await client.admin.change_policies(TOPIC, max_producers=4)
        assert [await counts(), await counts("shop"), await counts("/default/other")] == [
            (4, "topic"),
            (3, "namespace"),
            (2, "broker"),
        ]
        await running.restart(crash=True)
        assert await counts() == (4, "topic")
        assert (await client.admin.policies(TOPIC)).sources == {"max_producers": "topic", "max_consumers": "broker"}
        await client.admin.change_policies(TOPIC, max_producers=None)
        assert await counts() == (3, "namespace")
        await running.restart()
        await client.admin.change_policies("shop", max_producers=None)
        assert await counts() == (2, "broker")
        await client.admin.change_policies("", max_producers=None)
        await running.restart()
        assert await counts() == (1, "broker")


async def test_a_change_leaves_other_policies_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_namespace("shop")
        await client.admin.create_topic(TOPIC, retention=Retention(max_bytes=10**6))
        assert (await client.admin.policies(TOPIC)).own == TopicPolicies(retention=Retention(max_bytes=10**6))
        async with trio.open_nursery() as nursery:
            for name, value in EVERYTHING.items():
                nursery.start_soon(lambda name=name, value=value: client.admin.change_policies(TOPIC, **{name: value}))
        assert (await client.admin.policies(TOPIC)).own == TopicPolicies(**EVERYTHING)
        # The command for retention is the same thing.
        await client.admin.change_retention(TOPIC, Retention(acknowledged=True))
        assert (await client.admin.policies(TOPIC)).own.retention == Retention(acknowledged=True)
        await client.admin.change_policies(TOPIC, retention={"max_age_s": 5})
        assert (await client.admin.describe_topic(TOPIC)).retention == Retention(max_age_s=5)


async def test_the_retention_of_a_topic_takes_precedence_over_its_namespace(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_namespace("shop")
        await client.admin.change_policies("shop", retention=Retention(max_bytes=5))
        await client.admin.create_topic(TOPIC, retention=Retention())  # no rules say nothing
        topic = running.topic(TOPIC)
        assert topic.retention == Retention(max_bytes=5)
        await client.admin.change_retention(TOPIC, Retention())  # said in so many words: everything is kept
        assert topic.retention == Retention()
        await client.admin.change_policies(TOPIC, retention=None)
        assert topic.retention == Retention(max_bytes=5)


async def test_retention_of_a_namespace_takes_messages(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await client.admin.create_namespace("shop")
        await publish(client, TOPIC, 100)
        await client.admin.seal_topic(TOPIC)
        await publish(client, TOPIC, 10)
        await client.admin.change_policies("shop", retention=Retention(max_bytes=1))
        await wait_until(lambda: running.topic(TOPIC).start_offset >= 100)  # what was sealed is gone


async def test_partitions_have_the_policies_of_their_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/p", partitions=3)
        await client.admin.change_policies("/default/p", max_producers=2)
        parts = [running.topic(f"/default/p-part-{index}") for index in range(3)]
        assert [part.policies.values.max_producers for part in parts] == [2, 2, 2]
        shown = await client.admin.policies("/default/p-part-1")
        assert (shown.own.max_producers, shown.sources) == (2, {"max_producers": "topic"})
        with pytest.raises(FailedPreconditionError, match="is a partition"):
            await client.admin.change_policies("/default/p-part-1", max_producers=1)
        async with running.channel() as channel, AsyncExitStack() as producers:
            for name in ("a", "b"):
                await producers.enter_async_context(raw_producer(channel, "/default/p-part-1", name))
            with pytest.raises(LimitExceededError, match="max_producers = 2"):
                async with raw_producer(channel, "/default/p-part-1", "c"):
                    pass
            async with raw_producer(channel, "/default/p-part-0", "c"):  # each partition counts for itself
                pass
        await running.restart()
        assert running.topic("/default/p-part-2").policies.values.max_producers == 2


async def test_a_topic_created_later_has_the_policies_of_its_namespace(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.change_policies("default", max_producers=1)
        async with running.channel() as channel, raw_producer(channel, "/default/new", "a"):
            with pytest.raises(LimitExceededError, match=r"policy max_producers = 1 \(set for the namespace\)"):
                async with raw_producer(channel, "/default/new", "b"):
                    pass


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"max_producer": 1}, "max_producer"),
    ({"max_producers": -1}, "max_producers = -1"),
    ({"max_producers": "many"}, "max_producers"),
    ({"max_message_bytes": 0}, "max_message_bytes = 0"),
    ({"message_ttl_s": float("nan")}, "message_ttl_s = nan"),
    ({"message_ttl_s": float("inf")}, "message_ttl_s = inf"),
    ({"retention": {"max_bytes": -1}}, "retention.max_bytes"),
    ({"retention": {"max_lines": 1}}, "max_lines"),
    ({"publish_rate": {"messages_per_s": -1.0}}, "publish_rate.messages_per_s"),
    ({"dispatch_rate": 5}, "dispatch_rate"),
]


async def test_invalid_changes_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_namespace("shop")
        await client.admin.create_topic(TOPIC)
        for target in TARGETS.values():
            await client.admin.change_policies(target, max_consumers=3)
            for changes, said in IMPOSSIBLE:
                with pytest.raises(InvalidArgumentError, match=said):
                    await client.admin.change_policies(target, **{"max_subscriptions": 3} | changes)
            assert (await client.admin.policies(target)).own == TopicPolicies(max_consumers=3)


async def test_targets_that_are_not_there(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        cases: list[tuple[str, type[DanubeError]]] = [
            ("nowhere", NamespaceNotFoundError),
            ("/default/nothing", TopicNotFoundError),
            ("/default", InvalidNameError),
            ("no good", InvalidNameError),
        ]
        for target, error in cases:
            with pytest.raises(error):
                await client.admin.policies(target)
            with pytest.raises(error):
                await client.admin.change_policies(target, max_producers=1)


async def test_a_topic_that_keeps_nothing_has_no_history_to_rule(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/none", durability="none")
        for changes in ({"retention": Retention(max_bytes=1)}, {"message_ttl_s": 1.0}):
            with pytest.raises(FailedPreconditionError, match="durability 'none'"):
                await client.admin.change_policies("/default/none", **changes)
        await client.admin.change_policies("/default/none", max_producers=1, retention=None)
        await client.admin.change_policies("default", message_ttl_s=1.0)  # inherited, it does nothing
        assert running.topic("/default/none").message_ttl_s == 0


def test_a_configuration_with_policies_that_cannot_be(tmp_path: Path) -> None:
    for settings_, said in (
        ({"policies": {"max_producers": -1}}, r"\[policies\] max_producers = -1"),
        ({"policies": {"max_producer": 1}}, r"\[policies\]: unknown setting 'max_producer'; did you mean"),
        ({"subscription_policy": {"ack_timeout_s": -1}}, r"\[subscription_policy\] ack_timeout_s = -1"),
        ({"subscription_policy": {"ack_timeout": 1}}, "did you mean 'ack_timeout_s'"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            small_config(tmp_path, **settings_)


# --- How many there may be ---


async def refused(entering: Any, said: str) -> None:
    with pytest.raises(LimitExceededError, match=said):
        async with entering:
            pass


async def test_how_many_producers(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_namespace("shop")
        await client.admin.create_topic(TOPIC)
        async with raw_producer(channel, TOPIC, "a") as first, raw_producer(channel, TOPIC, "b"):
            await client.admin.change_policies(TOPIC, max_producers=1)
            await refused(raw_producer(channel, TOPIC, "c"), r"policy max_producers = 1 \(set for the topic\)")
            # No producer is disconnected, and one that returns under its name takes its own place.
            first.send(0, b"x")
            await first.acked()
            async with raw_producer(channel, TOPIC, "a") as again:
                assert again.opened.next_sequence == 1
            await client.admin.change_policies(TOPIC, max_producers=3)
            async with raw_producer(channel, TOPIC, "c"):
                pass
        await wait_until(lambda: not running.topic(TOPIC).intake.infos())
        await client.admin.change_policies(TOPIC, max_producers=0)
        await refused(raw_producer(channel, TOPIC, "a"), "max_producers = 0")
        # Those who come at the same time count, too, while their sessions are on their way to the disk.
        await client.admin.change_policies(TOPIC, max_producers=3)
        outcomes: list[str] = []
        leave = trio.Event()

        async def come(name: str) -> None:
            try:
                async with raw_producer(channel, TOPIC, name):
                    outcomes.append("in")
                    await leave.wait()
            except LimitExceededError:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(come, f"p{number}")
            await wait_until(lambda: len(outcomes) == 8)
            leave.set()
        assert sorted(outcomes) == ["in"] * 3 + ["refused"] * 5


async def test_how_many_subscriptions_and_consumers(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_namespace("shop")
        await client.admin.create_topic(TOPIC)
        await client.admin.change_policies(
            "shop", max_subscriptions=2, max_consumers=3, max_consumers_per_subscription=2
        )

        def consumer(subscription: str, name: str) -> Any:
            return raw_consumer(channel, TOPIC, subscription, name, "shared")

        async with consumer("one", "a"), consumer("one", "b"), consumer("two", "c"):
            await refused(consumer("three", "d"), r"policy max_subscriptions = 2 \(set for the namespace\)")
            await refused(consumer("one", "d"), r"policy max_consumers_per_subscription = 2 \(set for the namespace\)")
            await refused(consumer("two", "d"), r"policy max_consumers = 3 \(set for the namespace\)")
            async with consumer("two", "c") as again:  # its own place
                assert again.opened.consumer_id
            await client.admin.change_policies("shop", max_subscriptions=None, max_consumers=4)
            async with consumer("three", "d"):
                pass
        assert running.topic(TOPIC).subscriptions.keys() == {"one", "two", "three"}


async def test_a_policy_cannot_lift_the_limits_of_the_broker(tmp_path: Path) -> None:
    limits = {"max_producers_per_topic": 1, "max_subscriptions_per_topic": 1, "max_consumers_per_subscription": 1}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        await client.admin.change_policies(
            "",
            max_producers=9,
            max_subscriptions=9,
            max_consumers=9,
            max_consumers_per_subscription=9,
            max_message_bytes=10**9,
        )
        async with running.channel() as channel, raw_producer(channel, "/default/t", "a") as producer:
            assert producer.opened.max_message_bytes == running.config.limits.max_message_bytes
            await refused(raw_producer(channel, "/default/t", "b"), "limit max_producers_per_topic = 1")
            async with raw_consumer(channel, "/default/t", "s", "a", "shared"):
                await refused(
                    raw_consumer(channel, "/default/t", "s", "b", "shared"), "limit max_consumers_per_subscription = 1"
                )
                await refused(raw_consumer(channel, "/default/t", "z"), "limit max_subscriptions_per_topic = 1")


# --- How large ---


async def test_how_large_a_message_may_be(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic("/default/t")
        await client.admin.change_policies("default", max_message_bytes=1000)
        async with raw_producer(channel, "/default/t") as producer:
            assert producer.opened.max_message_bytes == 1000
            producer.send(0, bytes(1000))
            producer.send(1, *[bytes(900)] * 50)  # together they may be larger
            assert [count for _, _, count in await producer.acked(2)] == [1, 50]
            for payloads in ([bytes(1100)], [b"small", bytes(1100), b"small"]):
                for codec in Codec:
                    producer.send(51, *payloads, codec=codec)
                    refusal = await producer.refused()
                    assert refusal.code == MessageTooLargeError.code
                    assert "policy max_message_bytes = 1000 (set for the namespace)" in refusal.message
            await client.admin.change_policies("/default/t", max_message_bytes=1200)
            producer.send(51, b"small", bytes(1100), b"small")
            assert await producer.acked() == [(51, 51, 3)]
        # A batch that must be opened for the check and is malformed affects only its producer.
        async with raw_producer(channel, "/default/t", "broken") as producer:
            header = read_header(producer.part(0, [b"x", b"y"]))
            records = b"\xc1" * 5000
            producer.send_part(seal_part(header._replace(packed_size=5000, unpacked_size=5000), records))
            assert (await producer.refused()).code == "corrupt-batch"
            producer.send(0, b"fine")
            await producer.acked()


async def test_a_client_is_told_how_large(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        await client.admin.change_policies("/default/t", max_message_bytes=100)
        async with client.producer("/default/t") as producer:
            with pytest.raises(MessageTooLargeError, match="100"):
                await producer.send(bytes(500))
            await producer.send(bytes(50))


# --- When ---


async def test_how_far_ahead_a_message_may_be_scheduled(tmp_path: Path) -> None:
    limits = {"max_delivery_delay_s": 60.0}
    async with running_broker(tmp_path, limits=limits) as running, running.channel() as channel:
        now_us = running.broker.runtime.seams.wall_clock_us()
        async with raw_producer(channel, "/default/t") as producer:
            producer.send(0, b"too far", deliver_at_us=now_us + 90_000_000)
            refusal = await producer.refused()
            assert refusal.code == InvalidArgumentError.code
            assert "max_delivery_delay_s = 60" in refusal.message
            producer.send(0, b"far", deliver_at_us=now_us + 50_000_000)
            producer.send(1, b"long ago", deliver_at_us=1)
            await producer.acked(2)
        async with raw_producer(channel, "/default/none", durability="none") as producer:
            producer.send(0, b"later", deliver_at_us=now_us + 1_000_000)
            refusal = await producer.refused()
            assert refusal.code == FailedPreconditionError.code
            assert "durability 'none'" in refusal.message


# --- Policies of subscriptions ---


async def subscription_of(client: danube.Client, topic: str, name: str = "s") -> SubscriptionPolicy:
    (info,) = await client.admin.describe_subscription(topic, name)
    return info.policy


async def test_the_policy_of_a_subscription_is_durable(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic("/default/t")
        async with raw_consumer(channel, "/default/t"):
            pass
        assert await subscription_of(client, "/default/t") == SubscriptionPolicy()
        (info,) = await client.admin.change_subscription_policy("/default/t", "s", poison="drop", ack_timeout_s=5)
        expected = SubscriptionPolicy(poison=danube.model.PoisonPolicy.DROP, ack_timeout_s=5.0)
        assert info.policy == expected
        (info,) = await client.admin.change_subscription_policy("/default/t", "s", dispatch_rate=Rate(5.0))
        await running.restart(crash=True)
        assert await subscription_of(client, "/default/t") == info.policy
        with pytest.raises(InvalidArgumentError, match="ack_timeout_s = -1"):
            await client.admin.change_subscription_policy("/default/t", "s", ack_timeout_s=-1)
        with pytest.raises(InvalidArgumentError, match="known names are max_redelivery_count"):
            await client.admin.change_subscription_policy("/default/t", "s", colour="red")
        with pytest.raises(SubscriptionNotFoundError):
            await client.admin.change_subscription_policy("/default/t", "nobody", poison="drop")
        assert await subscription_of(client, "/default/t") == info.policy
        # Deleted and made again, it is another one.
        await client.admin.delete_subscription("/default/t", "s")
        async with running.channel() as channel, raw_consumer(channel, "/default/t"):
            assert await subscription_of(client, "/default/t") == SubscriptionPolicy()


async def test_the_policy_of_a_subscription_in_all_partitions(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic("/default/p", partitions=3)
        for index in range(3):
            async with raw_consumer(channel, f"/default/p-part-{index}"):
                pass
        infos = await client.admin.change_subscription_policy("/default/p", "s", max_redelivery_count=2)
        assert [info.policy.max_redelivery_count for info in infos] == [2, 2, 2]
        await client.admin.change_subscription_policy("/default/p-part-1", "s", max_redelivery_count=1)
        await running.restart()
        infos = await client.admin.describe_subscription("/default/p", "s")
        assert [info.policy.max_redelivery_count for info in infos] == [2, 1, 2]


async def test_the_policy_of_a_subscription_that_is_kept_nowhere(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic("/default/none", durability="none")
        async with raw_consumer(channel, "/default/none", kind="shared"):
            (info,) = await client.admin.change_subscription_policy("/default/none", "s", max_unacked_messages=5)
            assert info.policy.max_unacked_messages == 5


async def test_a_change_goes_on_when_its_client_goes_away(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        changing = trio.CancelScope()
        release = trio.Event()
        changes = running.broker.directory.catalogue.policy_changes
        change = changes.of_topic

        async def slow(*args: Any) -> Any:
            changing.cancel()
            await release.wait()
            return await change(*args)

        changes.of_topic = slow  # type: ignore[method-assign]
        with changing:
            await client.admin.change_policies("/default/t", max_producers=5)
        assert changing.cancelled_caught
        assert (await client.admin.policies("/default/t")).own == TopicPolicies()
        release.set()
        await wait_until(lambda: running.topic("/default/t").policies.values.max_producers == 5)


def level_of(running: RunningBroker, topic: str, policy: str) -> str:
    return running.topic(topic).policies.sources[policy]


async def test_many_topics_hear_of_a_change(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for number in range(30):
            await client.admin.create_topic(f"/default/t{number}")
        await client.admin.create_namespace("shop")
        await client.admin.create_topic(TOPIC)
        await client.admin.change_policies("default", max_producers=3)
        assert {level_of(running, f"/default/t{number}", "max_producers") for number in range(30)} == {"namespace"}
        assert not running.topic(TOPIC).policies.sources
