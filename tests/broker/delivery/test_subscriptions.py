"""Subscriptions end to end: the four types, where they start, acknowledgements, redelivery, takeover."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import trio
from broker.broker_harness import RunningBroker, raw_consumer, raw_producer, read_all, running_broker, take, wait_until

import danube
from danube.model import api
from danube.model.errors import (
    ConsumerDisplacedError,
    FailedPreconditionError,
    InvalidArgumentError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    SubscriptionTypeMismatchError,
)

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"
TYPES = ("exclusive", "failover", "shared", "key_shared")


async def fill(client: danube.Client, count: int, *, topic: str = TOPIC, first: int = 0) -> None:
    """Publish ``count`` numbers in batches of ten."""
    async with client.producer(topic) as producer:
        for start in range(first, first + count, 10):
            await producer.send_many([b"%d" % n for n in range(start, min(start + 10, first + count))])


async def floor_of(client: danube.Client, subscription: str = "s") -> int:
    (info,) = await client.admin.describe_subscription(TOPIC, subscription)
    return info.floor


async def no_consumers_left(running: RunningBroker) -> None:
    await wait_until(lambda: not running.topic(TOPIC).subscriptions["s"].consumers)


# --- The four types ---


@pytest.mark.parametrize("kind", TYPES)
async def test_each_type_delivers_everything_once_and_remembers_it(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 100)
        async with client.consumer(TOPIC, subscription="s", type=kind, start="earliest") as consumer:
            messages = await take(consumer, 60)
            assert [message.offset for message in messages] == list(range(60))
            assert [message.payload for message in messages] == [b"%d" % n for n in range(60)]
            assert {message.attempt for message in messages} == {1}
            for message in messages[:50]:
                await message.ack()
            await consumer.flush_acks()
            assert await floor_of(client) == 50
        await running.restart(crash=True)
        async with client.consumer(TOPIC, subscription="s", type=kind) as consumer:
            assert [message.offset for message in await take(consumer, 50)] == list(range(50, 100))
            await fill(client, 10, first=100)
            assert [message.offset for message in await take(consumer, 10)] == list(range(100, 110))


async def test_the_type_is_fixed_by_the_first_consumer(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        async with client.consumer(TOPIC, subscription="s", type="shared"):
            pass
        await running.restart()
        with pytest.raises(SubscriptionTypeMismatchError, match="is shared, not exclusive"):
            async with client.consumer(TOPIC, subscription="s"):
                pass


async def test_a_second_exclusive_consumer_is_busy_but_the_same_name_takes_over(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_consumer(channel, TOPIC, name="one") as one:
            one.credit(100)
            await one.reply_of(api.ConsumeBatch)
            with pytest.raises(SubscriptionBusyError, match="'one'"):
                async with client.consumer(TOPIC, subscription="s", name="two"):
                    pass
            # Half-open: the broker still believes in the old connection when the consumer comes back.
            with trio.fail_after(5):
                async with client.consumer(TOPIC, subscription="s", name="one") as again:
                    assert [message.offset for message in await take(again, 10)] == list(range(10))
            with pytest.raises(ConsumerDisplacedError):
                await one.reply_of(api.AcksFlushed)
        await no_consumers_left(running)
        async with client.consumer(TOPIC, subscription="s", name="two") as consumer:
            assert [message.offset for message in await take(consumer, 10)] == list(range(10))


async def test_a_standby_gets_nothing_until_it_is_its_turn(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.client() as other:
        await fill(client, 20)
        async with client.consumer(TOPIC, subscription="s", type="failover", start="earliest", name="b") as standby:
            async with other.consumer(TOPIC, subscription="s", type="failover", name="a") as active:
                # The one that came first stays active, whatever its name is.
                active, standby = standby, active
                assert active.active
                assert not standby.active
                for message in await take(active, 5):
                    await message.ack()
                await active.flush_acks()
                with trio.move_on_after(0.05) as scope:
                    await standby.receive()
                assert scope.cancelled_caught
                (info,) = await client.admin.describe_subscription(TOPIC, "s")
                assert {one.name: one.active for one in info.consumers} == {"a": False, "b": True}
            assert active.active


@pytest.mark.parametrize("clean", [True, False])
async def test_failover_takes_less_than_a_second(tmp_path: Path, clean: bool) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 20)
        async with (
            raw_consumer(channel, TOPIC, name="first", kind="failover") as first,
            client.consumer(TOPIC, subscription="s", type="failover", name="second") as second,
        ):
            first.credit(100)
            await first.reply_of(api.ConsumeBatch)
            assert not second.active
            began = trio.current_time()
            if clean:
                first.stream.end()
            else:
                channel.close()
            await second.wait_active()
            message = await second.receive()
            took_s = trio.current_time() - began
            assert message.offset == 0
            assert took_s < 5.0
            print(f"the standby had its first message after {took_s * 1e3:.1f} ms")  # noqa: T201 - pytest -rP shows it


async def test_shared_consumers_get_fair_shares(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        counts: dict[str, int] = defaultdict(int)
        seen: set[int] = set()

        async def consume(name: str, *, task_status: trio.TaskStatus[None]) -> None:
            async with client.consumer(TOPIC, subscription="s", type="shared", name=name) as consumer:
                task_status.started()
                async for message in consumer:
                    assert message.offset not in seen
                    seen.add(message.offset)
                    counts[name] += 1
                    await message.ack()

        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                await nursery.start(consume, name)
            await fill(client, 600)
            await wait_until(lambda: len(seen) == 600)
            nursery.cancel_scope.cancel()
        assert min(counts.values()) >= 100, dict(counts)


async def test_key_shared_keeps_the_order_of_each_key_while_consumers_come_and_go(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        log: dict[str, list[int]] = defaultdict(list)
        owners: dict[str, set[str]] = defaultdict(set)

        async def consume(name: str, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                async with client.consumer(
                    TOPIC, subscription="s", type="key_shared", name=name, credit_messages=20
                ) as consumer:
                    task_status.started()
                    async for message in consumer:
                        assert message.key is not None
                        log[message.key].append(int(message.payload))
                        owners[name].add(message.key)
                        await message.ack()
                        if message.offset % 7 == 0:
                            await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            scopes = {name: trio.CancelScope() for name in "abcd"}
            for name in "ab":
                await nursery.start(consume, name, scopes[name])
            async with client.producer(TOPIC) as producer:
                for number in range(600):
                    producer.send_nowait(b"%d" % number, key=f"k{number % 13}")
                    if number % 20 == 0:
                        await producer.flush()
                    if number == 200:
                        await nursery.start(consume, "c", scopes["c"])
                    if number == 300:
                        scopes["a"].cancel()
                    if number == 400:
                        await nursery.start(consume, "d", scopes["d"])
            await wait_until(lambda: sum(len(set(numbers)) for numbers in log.values()) == 600)
            nursery.cancel_scope.cancel()
        for key, numbers in log.items():
            firsts = list(dict.fromkeys(numbers))
            assert firsts == list(range(int(key[1:]), 600, 13)), key
        assert len(owners["b"]) > 1
        assert owners["c"]


async def test_the_key_of_a_message_without_one_is_its_producer(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        async with (
            client.consumer(TOPIC, subscription="s", type="key_shared", name="a") as one,
            client.consumer(TOPIC, subscription="s", type="key_shared", name="b") as two,
        ):
            seen: dict[str, set[str]] = defaultdict(set)

            async def consume(consumer: danube.Consumer) -> None:
                async for message in consumer:
                    assert message.key is None
                    seen[message.producer].add(consumer.name)
                    count[0] += 1

            count = [0]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume, one)
                nursery.start_soon(consume, two)
                for name in ("p1", "p2", "p3", "p4", "p5", "p6"):
                    async with client.producer(TOPIC, name=name) as producer:
                        for _ in range(5):
                            await producer.send(b"x")
                await wait_until(lambda: count[0] == 30)
                nursery.cancel_scope.cancel()
        assert all(len(names) == 1 for names in seen.values())
        assert len(seen) == 6


# --- Where a subscription starts, and moves to ---


@pytest.mark.real("compares with the real wall clock")
async def test_start_positions(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 50)
        await trio.sleep(0.02)
        middle = datetime.now(UTC)
        await trio.sleep(0.02)
        await fill(client, 50, first=50)
        for name, start, first in (("e", "earliest", 0), ("o", 37, 37), ("t", middle, 50), ("far", 1000, 100)):
            async with client.consumer(TOPIC, subscription=name, start=start) as consumer:
                assert await floor_of(client, name) == first
                if first < 100:
                    assert (await consumer.receive()).offset == first
        async with client.consumer(TOPIC, subscription="l") as consumer:
            await fill(client, 1, first=100)
            assert (await consumer.receive()).offset == 100
        # The start counts for a new subscription only.
        async with client.consumer(TOPIC, subscription="o", start="earliest") as consumer:
            assert (await consumer.receive()).offset == 37


@pytest.mark.parametrize("kind", TYPES)
async def test_seek_moves_connected_consumers(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 100)
        async with client.consumer(TOPIC, subscription="s", type=kind, start="earliest") as consumer:
            for message in await take(consumer, 100):
                await message.ack()
            await consumer.flush_acks()
            assert await floor_of(client) == 100
            await client.admin.seek_subscription(TOPIC, "s", 40)
            assert await floor_of(client) == 40
            assert [message.offset for message in await take(consumer, 60)] == list(range(40, 100))
            await client.admin.seek_subscription(TOPIC, "s", "earliest")
            assert (await consumer.receive()).offset == 0
            await client.admin.seek_subscription(TOPIC, "s", "latest")
        await running.restart(crash=True)
        assert await floor_of(client) == 100
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert (info.backlog_messages, info.acked_ranges) == (0, 0)
        for wrong in (-1, "soon"):
            with pytest.raises(InvalidArgumentError):
                await client.admin.seek_subscription(TOPIC, "s", wrong)


async def test_a_sought_cursor_is_durable_when_the_call_returns(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 100)
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            for message in (await take(consumer, 60))[20:]:
                await message.ack()
            await consumer.flush_acks()
        await client.admin.seek_subscription(TOPIC, "s", 10)
        await running.crash()
        await running.start()
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert (info.floor, info.acked_ranges, info.backlog_messages) == (10, 0, 90)


async def test_deleting_a_subscription_disconnects_and_forgets(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 10)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            for message in await take(consumer, 10):
                await message.ack()
            await consumer.flush_acks()
            await client.admin.delete_subscription(TOPIC, "s")
            with pytest.raises(SubscriptionNotFoundError, match="deleted"):
                await consumer.receive()
        with pytest.raises(SubscriptionNotFoundError):
            await client.admin.delete_subscription(TOPIC, "s")
        await running.restart(crash=True)
        assert await client.admin.list_subscriptions(TOPIC) == []
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert (await consumer.receive()).offset == 0


# --- Acknowledging and redelivery ---


async def test_cumulative_acks(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 30)
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            messages = await take(consumer, 20)
            await consumer.ack_cumulative(messages[14])
            await consumer.flush_acks()
            assert await floor_of(client) == 15
        async with running.channel() as channel, raw_consumer(channel, TOPIC, "shared", kind="shared") as shared:
            shared.send(api.AckCumulative(3))
            with pytest.raises(FailedPreconditionError, match="cumulative acknowledgement needs an exclusive"):
                await shared.reply_of(api.AcksFlushed)


async def fill_keys(client: danube.Client, count: int) -> None:
    """Publish one batch of ``count`` numbers, each with a key of its own."""
    async with client.producer(TOPIC) as producer:
        await producer.send_many([b"%d" % n for n in range(count)], keys=[f"k{n}" for n in range(count)])


async def test_nacked_messages_come_again_after_their_delay(tmp_path: Path) -> None:
    """Of every type at the same time, since it takes its time."""
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill_keys(client, 10)

        async def check(kind: str) -> None:
            async with client.consumer(TOPIC, subscription=kind, type=kind, start="earliest") as consumer:
                messages = await take(consumer, 10)
                began = trio.current_time()
                await messages[3].nack(delay_s=1.0)
                await messages[7].nack(delay_s=0)
                for message in messages:
                    if message.offset not in (3, 7):
                        await message.ack()
                again = await take(consumer, 2)
                assert trio.current_time() - began >= 1.0
                assert [(message.offset, message.attempt) for message in again] == [(7, 2), (3, 2)], kind
                for message in again:
                    await message.ack()
                await consumer.flush_acks()
            assert await floor_of(client, kind) == 10, kind

        async with trio.open_nursery() as nursery:
            for kind in TYPES:
                nursery.start_soon(check, kind)


async def test_a_nack_holds_back_the_later_messages_of_its_key_only(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % n for n in range(6)], keys=["a", "b"] * 3)
        async with client.consumer(TOPIC, subscription="s", type="key_shared", start="earliest") as consumer:
            messages = await take(consumer, 6)
            await messages[0].nack(delay_s=0.8)
            for message in messages[1:]:
                await message.ack()
            # The early acknowledgements of 2 and 4 lapse with the delivery of 0: the key is worked off in order.
            assert [message.offset for message in await take(consumer, 3)] == [0, 2, 4]


@pytest.mark.parametrize("kind", TYPES)
async def test_messages_of_a_lost_consumer_go_to_the_next(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill_keys(client, 10)
        async with running.channel() as channel, raw_consumer(channel, TOPIC, kind=kind) as first:
            first.credit(100)
            await first.reply_of(api.ConsumeBatch)
            first.send(api.Ack([0, 3]))
            first.send(api.Ack([5, 6]))
            await first.flush()
        await no_consumers_left(running)
        async with client.consumer(TOPIC, subscription="s", type=kind) as second:
            messages = await take(second, 6)
        assert [message.offset for message in messages] == [3, 4, 6, 7, 8, 9]


async def test_a_silent_consumer_loses_its_messages_after_the_ack_timeout(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, subscription_policy={"ack_timeout_s": 1.0}) as running,
        running.client() as client,
    ):
        await fill(client, 10)
        async with running.channel() as channel, raw_consumer(channel, TOPIC, kind="shared") as silent:
            silent.credit(10)
            await silent.reply_of(api.ConsumeBatch)
            async with client.consumer(TOPIC, subscription="s", type="shared", name="other") as other:
                messages = await take(other, 10)
                assert [message.offset for message in messages] == list(range(10))
                assert {message.attempt for message in messages} == {2}
                for message in messages:
                    await message.ack()
                await other.flush_acks()
            assert await floor_of(client) == 10


async def test_a_timed_out_key_is_delivered_again_in_order(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, subscription_policy={"ack_timeout_s": 1.0}) as running,
        running.client() as client,
    ):
        await fill(client, 10)
        async with client.consumer(TOPIC, subscription="s", type="key_shared", start="earliest") as consumer:
            messages = await take(consumer, 10)
            await messages[0].ack()
            again = await take(consumer, 9)
            assert [(message.offset, message.attempt) for message in again] == [(n, 2) for n in range(1, 10)]


async def test_two_living_consumers_of_one_name_do_not_displace_each_other_for_ever(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.client() as other:
        await fill(client, 10)
        async with client.consumer(TOPIC, subscription="s", name="me", start="earliest", credit_messages=1) as old:
            await old.receive()
            async with other.consumer(TOPIC, subscription="s", name="me") as new:
                assert [message.offset for message in await take(new, 10)] == list(range(10))
                with pytest.raises(ConsumerDisplacedError, match="a name of its own"):
                    await take(old, 10)
                await trio.sleep(0.3)
                (info,) = await client.admin.describe_subscription(TOPIC, "s")
                assert [one.name for one in info.consumers] == ["me"]
                assert running.broker.runtime._consumer_id == 2, (
                    "the displaced consumer came back and displaced the new one"
                )


async def test_out_of_order_acks_are_exact_after_drain_and_crash(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 100)
        acked = {n for n in range(100) if n % 3 == 0 or n in range(40, 60)}
        async with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:
            for message in await take(consumer, 100):
                if message.offset in acked:
                    await message.ack()
            await consumer.flush_acks()
            (before,) = await client.admin.describe_subscription(TOPIC, "s")
        for crash in (True, False, True):
            await running.restart(crash=crash)
            (after,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (after.floor, after.acked_ranges, after.backlog_messages) == (
                before.floor,
                before.acked_ranges,
                100 - len(acked),
            )
        async with client.consumer(TOPIC, subscription="s", type="shared") as consumer:
            rest = [message.offset for message in await take(consumer, 100 - len(acked))]
        assert rest == [n for n in range(100) if n not in acked]


async def test_a_consumer_without_credit_blocks_no_other(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        async with raw_consumer(channel, TOPIC, "stuck"), raw_consumer(channel, TOPIC, "s", kind="shared"):
            await fill(client, 100)
            async with client.consumer(TOPIC, subscription="s", type="shared", name="other") as other:
                for message in await take(other, 100):
                    await message.ack()
                await other.flush_acks()
            assert len(await read_all(client, TOPIC)) == 100


@pytest.mark.parametrize(
    "request_",
    [
        api.Ack([5]),
        api.Ack([5, 2]),
        api.Nack([0, 1], -5),
        api.Nack([3, 3]),
        api.Credit(-1, 0),
        api.Credit(0, -1),
        api.AckCumulative(-1),
        api.ConsumeOpen(topic=TOPIC, subscription="s", consumer_name="raw"),
    ],
    ids=lambda request: type(request).__name__ + str(msgspec.structs.astuple(request)[:2]),
)
async def test_nonsense_from_a_consumer_ends_its_call_only(tmp_path: Path, request_: msgspec.Struct) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(100)
            await consumer.reply_of(api.ConsumeBatch)
            consumer.send(request_)
            with pytest.raises(InvalidArgumentError):
                await consumer.flush()
        assert await floor_of(client) == 0
        assert len(await read_all(client, TOPIC)) == 10


async def test_acks_beyond_the_delivered_messages_are_ignored(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 20)
        async with raw_consumer(channel, TOPIC, kind="shared") as consumer:
            consumer.credit(5)
            await consumer.reply_of(api.ConsumeBatch)
            consumer.send(api.Ack([0, 2**62]))
            await consumer.flush()
            assert await floor_of(client) == 5
            consumer.send(api.Credit(2**62, 2**62))
            delivery = await consumer.reply_of(api.ConsumeBatch)
            assert (delivery.base_offset, delivery.ranges) == (0, [5, 10])


# --- Topics of durability none ---


async def test_a_slow_consumer_of_a_none_topic_gets_a_counted_gap(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC, durability="none")
        async with (
            raw_consumer(channel, TOPIC, "slow") as slow,
            client.consumer(TOPIC, subscription="fast") as fast,
            raw_producer(channel, TOPIC) as producer,
        ):
            slow.credit(3)
            machine = running.topic(TOPIC).subscriptions["slow"].machine
            await wait_until(lambda: machine.describe(0).consumers[0].credit_messages == 3)
            for sequence in range(10):
                producer.send(sequence, b"%d" % sequence)
            await producer.acked(10)
            assert [message.payload for message in await take(fast, 10)] == [b"%d" % n for n in range(10)]
            offsets = [(await slow.reply_of(api.ConsumeBatch)).base_offset for _ in range(3)]
            assert offsets == [0, 1, 2]
            slow.credit(100)
            await wait_until(lambda: machine.describe(0).consumers[0].credit_messages == 100)
            producer.send(10, b"10")
            gap = await slow.reply_of(api.Gap)
            assert (gap.start, gap.end) == (3, 10)
            assert (await slow.reply_of(api.ConsumeBatch)).base_offset == 10
            (info,) = await client.admin.describe_subscription(TOPIC, "slow")
            assert info.dropped_messages == 7


# --- Explanations ---


async def explanation(client: danube.Client) -> tuple[str, str]:
    found = await client.admin.explain_subscription(TOPIC, "s")
    return found.state, found.sentence


async def test_explanations(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 10)
        async with raw_consumer(channel, TOPIC, name="me") as consumer:
            state, sentence = await explanation(client)
            assert state == "no-credit"
            assert "'me'" in sentence
            assert "10 messages" in sentence
            consumer.credit(100)
            await consumer.reply_of(api.ConsumeBatch)
            state, sentence = await explanation(client)
            assert state == "waiting-for-acks"
            assert "'me'" in sentence
            consumer.send(api.AckCumulative(9))
            await consumer.flush()
            state, sentence = await explanation(client)
            assert state == "caught-up"
            assert sentence.startswith("caught up")
        await no_consumers_left(running)
        await fill(client, 1)
        assert await explanation(client) == ("no-consumer", "no consumer is connected; 1 message in the backlog")


async def test_an_explanation_of_a_partitioned_subscription_has_a_line_for_each(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, partitions=2)
        async with client.consumer(TOPIC, subscription="s"):
            state, sentence = await explanation(client)
        assert state == "caught-up"
        assert [line.partition(":")[0] for line in sentence.splitlines()] == [f"{TOPIC}-part-0", f"{TOPIC}-part-1"]


async def test_a_subscription_that_is_far_behind_reads_from_the_journal(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"cache_bytes": 100_000}) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            for number in range(300):
                producer.send_nowait(b"%06d" % number + bytes(20_000))
                if number % 10 == 9:
                    await producer.flush()
        for kind in TYPES:
            async with client.consumer(TOPIC, subscription=kind, type=kind, start="earliest") as consumer:
                for number in range(300):
                    message = await consumer.receive()
                    assert message.payload.startswith(b"%06d" % number)
                    await message.ack()
                await consumer.flush_acks()
            assert await floor_of(client, kind) == 300
