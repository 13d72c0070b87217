# ruff: noqa: SIM117, PT012 - a nested "async with" shows what is inside of what
"""Consumers against a small broker, over a real socket."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trio
import trio.lowlevel
import trio.testing
from fake_broker import FakeBroker, running_broker, wait_until

import danube
from danube.client import Consumer, Message
from danube.model import api
from danube.model.batch import Record, check_part, encode_part
from danube.model.errors import (
    ClosedError,
    ConnectionLostError,
    DataLossError,
    InvalidArgumentError,
    SubscriptionBusyError,
    SubscriptionTypeMismatchError,
)
from danube.model.policies import Durability, PoisonPolicy, Rate, SubscriptionPolicy, change_policy

TOPIC = "/default/orders"
FAST = {"reconnect_initial_s": 0.01, "reconnect_max_s": 0.05}


def store(broker: FakeBroker, *batches: list[bytes] | list[Record], topic: str = TOPIC) -> None:
    for batch in batches:
        part = encode_part(
            batch, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1_700_000_000_000_000
        )
        broker.topic(topic).append(part, check_part(part), "maker")


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % index for index in range(start, end)]


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive() for _ in range(count)]


async def test_messages_have_their_fields() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, [b"plain"], [Record(b"keyed", b"k", {"a": "1"}, 5), Record(b"bare")])
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            plain, keyed, bare = await take(consumer, 3)
    assert (plain.payload, plain.key, plain.attributes, plain.offset, plain.topic) == (b"plain", None, None, 0, TOPIC)
    assert (keyed.payload, keyed.key, keyed.attributes, keyed.offset) == (b"keyed", "k", {"a": "1"}, 1)
    assert keyed.publish_time_us == 1_700_000_000_000_005
    assert plain.publish_time == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert (bare.key, bare.offset, bare.partition, bare.attempt, bare.producer) == (None, 2, 0, 1, "maker")
    assert bare.append_time_us == 1_000_000


async def test_a_batch_is_a_sequence() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, numbered(0, 10), [Record(b"x", b"a"), Record(b"y")])
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            first, second = await consumer.receive_batch(), await consumer.receive_batch()
    assert len(first) == 10
    assert first.payloads() == numbered(0, 10)
    assert list(first.offsets) == list(range(10))
    assert first[-1].payload == b"9"
    assert [message.offset for message in first[2:4]] == [2, 3]
    assert [message.payload for message in first] == first.payloads()
    assert first.keys() == [None] * 10
    assert (second.payloads(), second.keys(), second[0].key) == ([b"x", b"y"], ["a", None], "a")
    with pytest.raises(IndexError):
        first[10]


@pytest.mark.parametrize("slices", [False, True])
async def test_only_live_offsets_are_delivered(slices: bool) -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        broker.slices = slices
        store(broker, numbered(0, 10), [Record(b"a", b"k"), Record(b"b"), Record(b"c", b"m")])
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            messages = await take(consumer, 13)
            for message in messages:
                if message.offset not in (2, 3, 7, 10, 12):
                    await message.ack()
        async with client.consumer(TOPIC, subscription="s") as consumer:
            batches = [await consumer.receive_batch(), await consumer.receive_batch()]
            assert [list(batch.offsets) for batch in batches] == [[2, 3, 7], [10, 12]]
            assert [batch.payloads() for batch in batches] == [[b"2", b"3", b"7"], [b"a", b"c"]]
            assert [(m.offset, m.key) for m in batches[1]] == [(10, "k"), (12, "m")]
            for batch in batches:
                await batch.ack()
            await consumer.flush_acks()
            assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 13]


async def test_acks_of_one_turn_travel_as_ranges() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, numbered(0, 400))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            for message in await take(consumer, 400):
                await message.ack()
            await consumer.flush_acks()
            await consumer.flush_acks()
        subscription = broker.topic(TOPIC).subscriptions["s"]
        assert subscription.acks == [[0, 400]]


async def test_leaving_the_block_makes_acks_durable() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, numbered(0, 10))
        with pytest.raises(ZeroDivisionError):
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                (await consumer.receive()).ack_nowait()
                raise ZeroDivisionError
        assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 1]
        with pytest.raises(ClosedError):
            await consumer.receive_batch()


async def test_ack_cumulative_and_ranges() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, numbered(0, 10))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            await consumer.ack_cumulative((await take(consumer, 5))[-1])
            consumer.ack_range(7, 9)
            with pytest.raises(InvalidArgumentError):
                consumer.ack_range(3, 3)
        assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 5, 7, 9]


async def test_a_cumulative_acknowledgement_lists_the_messages_handed_out() -> None:
    """The broker would cover all that it has delivered, and the application may never have seen some of that: what was
    lost with a connection comes again behind what is newer."""
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, numbered(0, 10))
        async with client.consumer(TOPIC, subscription="s", start=5) as consumer:
            messages = await take(consumer, 2)
            broker.topic(TOPIC).subscriptions["s"].acked.clear()
            await consumer.ack_cumulative(messages[-1])
        assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [5, 7]


async def test_nack_brings_messages_again() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, numbered(0, 5))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            batch = await consumer.receive_batch()
            await batch[3].nack(delay_s=0.25)
            await batch[4].nack(delay_s=0.25)
            for message in batch[:3]:
                await message.ack()
            again = await consumer.receive_batch()
            assert (list(again.offsets), again.attempt) == ([3, 4], 2)
            await again.nack(delay_s=0)
            await consumer.receive_batch()
        assert broker.topic(TOPIC).subscriptions["s"].nacks == [([3, 5], 250), ([3, 5], 0)]


async def test_credit_bounds_the_read_ahead() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, *(numbered(index, index + 10) for index in range(0, 1_000, 10)))
        async with client.consumer(TOPIC, subscription="s", start="earliest", credit_messages=40) as consumer:
            await wait_until(lambda: len(consumer._feeds[0].queue) >= 4)
            await trio.sleep(0.02)
            assert len(consumer._feeds[0].queue) == 4
            assert [message.payload for message in await take(consumer, 1_000)] == numbered(0, 1_000)
            granted = broker.topic(TOPIC).subscriptions["s"].consumer.credits  # type: ignore[union-attr]
            await wait_until(lambda: sum(messages for messages, _ in granted) >= 1_040)
            assert granted[0] == (40, 16 * 2**20)
            assert sum(messages for messages, _ in granted) == 1_040
        async with client.consumer(TOPIC, subscription="t", start="earliest", credit_bytes=250) as consumer:
            await wait_until(lambda: len(consumer._feeds[0].queue) >= 3)
            await trio.sleep(0.02)
            assert len(consumer._feeds[0].queue) == 3
            assert len(await take(consumer, 1_000)) == 1_000


async def test_caught_up() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, numbered(0, 10), numbered(10, 20))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            found = [payload async for batch in consumer.batches(until_caught_up=True) for payload in batch.payloads()]
            assert found == numbered(0, 20)
            assert consumer.caught_up
            await consumer.wait_caught_up()
            assert [batch async for batch in consumer.batches(until_caught_up=True)] == []
        async with client.consumer(TOPIC, subscription="empty") as consumer:
            assert [batch async for batch in consumer.batches(until_caught_up=True)] == []


async def test_partitions_are_merged_fairly() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        broker.partitioned[TOPIC] = 3
        for index in range(3):
            store(broker, *([b"%d" % index] for _ in range(20)), topic=f"{TOPIC}-part-{index}")
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            await wait_until(lambda: all(len(feed.queue) >= 20 for feed in consumer._feeds))
            messages = await take(consumer, 60)
            order = [message.partition for message in messages]
            assert sorted(order[:3]) == [0, 1, 2]
            assert order == order[:3] * 20
            assert messages[4].topic == f"{TOPIC}-part-{order[1]}"
            for message in messages:
                await message.ack()
        assert all(broker.topic(f"{TOPIC}-part-{i}").subscriptions["s"].acked.to_flat() == [0, 20] for i in range(3))


async def test_damage_is_reported_and_passed() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, numbered(0, 10), numbered(10, 20), numbered(20, 30))
        broker.corrupt = lambda stored: stored.base_offset == 10
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert len(await consumer.receive_batch()) == 10
            with pytest.raises(DataLossError, match=r"/default/orders: messages from 10 on arrived damaged"):
                await consumer.receive_batch()
            assert (await consumer.receive()).payload == b"20"


# --- Reconnecting


async def test_acks_survive_a_broken_connection() -> None:
    async with running_broker() as broker, danube.connect(broker.url, **FAST) as client:
        store(broker, numbered(0, 10), numbered(10, 20))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            first = await take(consumer, 5)
            broker.accepting = False
            await broker.cut()
            for message in first:
                await message.ack()
            broker.accepting = True
            rest = await take(consumer, 15)
            assert [message.payload for message in rest] == numbered(5, 20)
            for message in rest:
                await message.ack()
            await consumer.flush_acks()
            assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 20]
        names = {one.consumer_name for one in broker.opens if isinstance(one, api.ConsumeOpen)}
        assert len(names) == 1


async def test_everything_arrives_when_connections_break_all_the_time() -> None:
    async with running_broker() as broker, danube.connect(broker.url, **FAST) as client:
        store(broker, *(numbered(index, index + 10) for index in range(0, 500, 10)))
        async with client.consumer(TOPIC, subscription="s", start="earliest", credit_messages=50) as consumer:
            seen: list[int] = []
            async for message in consumer:
                seen.append(message.offset)
                await message.ack()
                if len(seen) % 97 == 0:
                    await broker.cut()
                if len(set(seen)) == 500:
                    break
            await consumer.flush_acks()
        assert set(seen) == set(range(500))
        assert broker.topic(TOPIC).subscriptions["s"].acked.to_flat() == [0, 500]


async def test_a_consumer_of_a_non_reliable_topic_keeps_messages_that_have_arrived() -> None:
    async with running_broker() as broker, danube.connect(broker.url, **FAST) as client:
        broker.topic(TOPIC).durability = Durability.NONE
        store(broker, numbered(0, 5))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            await wait_until(lambda: bool(consumer._feeds[0].queue))
            broker.topic(TOPIC).batches.clear()
            await broker.cut()
            await wait_until(lambda: len(broker.opens) == 2)
            assert [message.payload for message in await take(consumer, 5)] == numbered(0, 5)


async def test_losses_on_the_way_are_counted() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.consumer(TOPIC, subscription="s") as consumer:
            stream = broker.topic(TOPIC).subscriptions["s"].consumer.stream  # type: ignore[union-attr]
            stream.send_nowait(stream.encode(api.Gap(3, 8)))
            stream.send_nowait(stream.encode(api.ActiveChanged(False)))
            await wait_until(lambda: not consumer.active)
            assert consumer.dropped_messages == 5
            assert consumer.gaps == [(TOPIC, 3, 8)]
            stream.send_nowait(stream.encode(api.ActiveChanged(True)))
            await consumer.wait_active()


async def test_a_busy_subscription_is_refused_at_first_and_waited_for_later() -> None:
    async with running_broker() as broker, danube.connect(broker.url, **FAST) as client:
        store(broker, numbered(0, 3))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            with pytest.raises(SubscriptionBusyError):
                async with client.consumer(TOPIC, subscription="s"):
                    pytest.fail("must not open")
            broker.open_errors = [SubscriptionBusyError("still connected")] * 2
            await broker.cut()
            assert (await consumer.receive()).payload == b"0"


async def test_the_end_of_a_subscription_reaches_the_application() -> None:
    async with running_broker() as broker, danube.connect(broker.url, **FAST) as client:
        store(broker, numbered(0, 3))
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            assert len(await take(consumer, 3)) == 3
            broker.open_errors = [SubscriptionTypeMismatchError("it is shared now")]
            await broker.cut()
            with pytest.raises(SubscriptionTypeMismatchError, match="shared now"):
                await consumer.receive()


async def test_an_outage_reaches_the_application_after_a_while() -> None:
    async with running_broker() as broker, danube.connect(broker.url, reconnect_timeout_s=0.05, **FAST) as client:
        async with client.consumer(TOPIC, subscription="s") as consumer:
            broker.accepting = False
            await broker.cut()
            with pytest.raises(ConnectionLostError):
                await consumer.receive_batch()


async def test_wrong_arguments() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        for wrong in (
            {"type": "solo"},
            {"start": "now"},
            {"start": -1},
            {"start": datetime(2020, 1, 1)},
            {"subscription": "a b"},
            {"credit_messages": 0},
            {"key_filters": ["a*"]},
            {"key_filters": "a*", "type": "key_shared"},
            {"key_filters": [""], "type": "key_shared"},
            {"key_filters": [1], "type": "key_shared"},
            {"key_filters": ["x" * 257], "type": "key_shared"},
            {"key_filters": ["a"] * 65, "type": "key_shared"},
            {"policy": {"ack_timeout": 3}},
            {"policy": {"ack_timeout_s": -3.0}},
        ):
            with pytest.raises(InvalidArgumentError):
                async with client.consumer(TOPIC, **{"subscription": "s"} | wrong):  # type: ignore[arg-type]
                    pytest.fail("must not open")
        async with client.consumer(TOPIC, subscription="s", start=datetime(2020, 1, 1, tzinfo=UTC)):
            opened = broker.opens[-1]
            assert isinstance(opened, api.ConsumeOpen)
            assert opened.start_time_us == 1_577_836_800_000_000
            assert (opened.key_filters, opened.policy) == ([], {})


async def test_options_of_a_new_subscription_reach_the_broker() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        changes = {"poison": PoisonPolicy.DROP, "dispatch_rate": Rate(messages_per_s=5.0)}
        async with client.consumer(
            TOPIC, subscription="s", type="key_shared", key_filters=["a*", "?b"], policy=changes
        ):
            opened = broker.opens[-1]
            assert isinstance(opened, api.ConsumeOpen)
            assert opened.key_filters == ["a*", "?b"]
            assert opened.policy == {"poison": "drop", "dispatch_rate": {"messages_per_s": 5.0, "bytes_per_s": 0.0}}
        policy = SubscriptionPolicy(ack_timeout_s=7.0)
        async with client.consumer(TOPIC, subscription="t", policy=policy):
            opened = broker.opens[-1]
            assert isinstance(opened, api.ConsumeOpen)
            assert change_policy(SubscriptionPolicy(max_redelivery_count=1), opened.policy) == policy


async def test_cancelling_receive_at_any_point_loses_nothing() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.consumer(TOPIC, subscription="s", credit_messages=3) as consumer:
            seen: list[bytes] = []
            written = attempts = 0
            while len(seen) < 300:
                if written < 300:
                    store(broker, numbered(written, written + 3))
                    written += 3
                attempts += 1
                with trio.move_on_after(0.0005 * (attempts % 5)):
                    message = await consumer.receive()
                    seen.append(message.payload)
                    await message.ack()
            await consumer.flush_acks()
            assert seen == numbered(0, 300)


async def test_cancelling_a_whole_consumer_does_not_wait() -> None:
    async with running_broker() as broker:
        store(broker, numbered(0, 10))
        with trio.CancelScope() as scope:
            async with danube.connect(broker.url) as client:
                async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                    for message in await take(consumer, 5):
                        await message.ack()
                    began = trio.current_time()
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert trio.current_time() - began < 3


async def test_several_tasks_share_a_consumer() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        store(broker, *(numbered(index, index + 10) for index in range(0, 200, 10)))
        seen: list[bytes] = []
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:

            async def work() -> None:
                while True:
                    seen.append((await consumer.receive()).payload)
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(work)
                await wait_until(lambda: len(seen) >= 200)
                await trio.sleep(0.02)  # and nothing comes twice
                nursery.cancel_scope.cancel()
        assert sorted(seen, key=int) == numbered(0, 200)


async def test_tasks_that_wait_share_the_messages_of_one_batch() -> None:
    async with running_broker() as broker, danube.connect(broker.url) as client:
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            taken: list[bytes] = []

            async def one() -> None:
                taken.append((await consumer.receive()).payload)

            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(one)
                    await trio.testing.wait_all_tasks_blocked()
                    async with client.producer(TOPIC) as producer:
                        await producer.send_many(numbered(0, 3))
            assert sorted(taken) == numbered(0, 3)
