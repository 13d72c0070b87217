"""What a seek would do, planned from the cursor; and skipping, which acknowledges and moves nothing back."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.broker_harness import raw_consumer, running_broker, small_config, wait_until
from hypothesis import given
from hypothesis import strategies as st

from danube.broker.operations.seeking import moved_by, plan_of, unacked_below
from danube.dispatch import Cursor
from danube.model import api
from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)

pytestmark = pytest.mark.virtual

END = 30


@given(st.integers(0, END), st.sets(st.integers(0, END - 1)), st.integers(0, END), st.integers(0, END))
def test_a_plan_counts_what_is_skipped_and_what_comes_again(floor, acked, target, start):
    cursor = Cursor(floor)
    for offset in acked:
        cursor.ack(offset, offset + 1)
    target = max(target, start)
    unacked = {offset for offset in range(start, END) if offset >= floor and offset not in acked}
    plan = plan_of("/a/b", cursor, target, start, END)
    assert plan.skipped_messages == sum(offset < target for offset in unacked)
    assert plan.repeated_messages == END - target - sum(offset >= target for offset in unacked)


@given(st.integers(0, END), st.sets(st.integers(0, END - 1)), st.integers(1, END + 5), st.integers(0, 5))
def test_skipping_skips_as_many_unacknowledged_messages(floor, acked, count, start):
    cursor = Cursor(floor)
    for offset in acked:
        cursor.ack(offset, offset + 1)
    target = moved_by(cursor, count, start, END)
    unacked = [offset for offset in range(start, END) if offset >= floor and offset not in acked]
    assert sum(offset < target for offset in unacked) == min(count, len(unacked))
    assert target in {*unacked, END}


@given(st.integers(0, END), st.sets(st.integers(0, END - 1)), st.integers(1, END + 5), st.integers(0, 5))
def test_what_is_skipped_is_the_next_unacknowledged_messages_and_nothing_else(floor, acked, count, start):
    cursor = Cursor(floor)
    for offset in acked:
        cursor.ack(offset, offset + 1)
    before = {offset for offset in range(END) if cursor.is_acked(offset)}
    unacked = [offset for offset in range(start, END) if offset not in before]
    target = moved_by(cursor, count, start, END)
    ranges, number = unacked_below(cursor, target, start, END)
    assert number == min(count, len(unacked))
    for low, high in zip(ranges[::2], ranges[1::2], strict=True):
        cursor.ack(low, high)
    after = {offset for offset in range(start, END) if cursor.is_acked(offset)}
    assert after == {offset for offset in before if offset >= start} | set(unacked[:count])
    assert unacked_below(cursor, target, start, END) == ([], 0), "once more does nothing"


@pytest.mark.parametrize(("by", "target"), [(-3, 7), (-100, 2), (0, 10)])
def test_moving_back_stays_within_the_log(by, target):
    assert moved_by(Cursor(10), by, 2, 30) == target


async def test_plans_of_partitions(tmp_path: Path) -> None:
    async with running_broker(small_config(tmp_path)) as broker, broker.client() as client:
        await client.admin.create_topic("/default/a", partitions=2)
        async with client.consumer("/default/a", subscription="s", start="earliest"):
            pass
        async with client.producer("/default/a") as producer:
            await producer.send_many([b"x"] * 40, keys=[str(number) for number in range(40)])
        plans = await client.admin.plan_seek("/default/a", "s", "latest")
        assert [plan.topic for plan in plans] == ["/default/a-part-0", "/default/a-part-1"]
        assert sum(plan.skipped_messages for plan in plans) == 40
        assert all(plan.target == plan.end_offset and not plan.repeated_messages for plan in plans)
        for plan in await client.admin.plan_seek("/default/a", "s", by=5):
            assert (plan.floor, plan.target, plan.skipped_messages) == (0, 5, 5)
            await client.admin.seek_subscription(plan.topic, "s", plan.target)
        plans = await client.admin.plan_seek("/default/a", "s", by=-2)
        assert [(plan.floor, plan.target, plan.repeated_messages) for plan in plans] == [(5, 3, 2)] * 2
        with pytest.raises(SubscriptionNotFoundError):
            await client.admin.plan_seek("/default/a", "none")


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_skipping_delivers_nothing_again_and_outlives_a_crash(tmp_path: Path, kind: str) -> None:
    """What was acknowledged out of order stays so; what a consumer has, and what waits, is skipped alike."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer("/default/t") as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with running.channel() as channel, raw_consumer(channel, "/default/t", kind=kind) as consumer:
            consumer.credit(4)
            await wait_until(lambda: running.topic("/default/t").subscriptions["s"].machine.position >= 4)
            consumer.send(api.Ack([0, 1]))
            if kind != "key_shared":  # without keys, all are of one producer, and take effect in order
                consumer.send(api.Ack([2, 3]))
            await consumer.flush(1)
            early = kind != "key_shared"
            (plan,) = await client.admin.plan_seek("/default/t", "s", by=4)
            (done,) = await client.admin.skip_messages("/default/t", "s", 4)
            assert (done.skipped_messages, done.floor) == (4, 6 if early else 5)
            consumer.send(api.Ack([1, 4]))  # of what was skipped under its hands
            await consumer.flush(2)
            (row,) = await client.admin.describe_subscription("/default/t", "s")
            assert (row.floor, row.backlog_messages) == (done.floor, 10 - done.floor)
            left = row.in_flight_messages + row.waiting_messages
            assert left == row.position - done.floor, "nothing of what was skipped is in flight, or waits"
        (again,) = await client.admin.skip_planned("s", [plan])
        assert (again.skipped_messages, again.floor) == (0, done.floor), "repeating it does nothing"
        await running.restart(crash=True)
        async with running.client() as client, client.consumer("/default/t", subscription="s", type=kind) as consumer:
            got = [message.offset async for batch in consumer.batches(until_caught_up=True) for message in batch]
        assert got == list(range(done.floor, 10))


async def test_skipping_goes_on_with_delivery_and_needs_a_current_plan(tmp_path: Path) -> None:
    async with running_broker(small_config(tmp_path)) as broker, broker.client() as client:
        await client.admin.create_topic("/default/p", partitions=2)
        await client.admin.create_topic("/default/n", durability="none")
        for topic in ("/default/p", "/default/n"):
            async with client.consumer(topic, subscription="s", start="earliest"):
                pass
        async with client.producer("/default/p") as producer:
            await producer.send_many([b"x"] * 40, keys=[str(number) for number in range(40)])
        rows = await client.admin.skip_messages("/default/p", "s", 5)
        assert [(row.topic, row.skipped_messages, row.floor) for row in rows] == [
            ("/default/p-part-0", 5, 5),
            ("/default/p-part-1", 5, 5),
        ]
        plans = await client.admin.plan_seek("/default/p", "s", by=1)
        await client.admin.seek_subscription("/default/p", "s", "earliest")
        with pytest.raises(FailedPreconditionError, match="moved since this was planned"):
            await client.admin.skip_planned("s", plans)
        whole = plans[0]
        whole.topic = "/default/p"
        with pytest.raises(InvalidArgumentError, match="such as '/default/p-part-0'"):
            await client.admin.skip_planned("s", [whole])
        with pytest.raises(FailedPreconditionError, match="durability none"):
            await client.admin.skip_messages("/default/n", "s", 1)
        with pytest.raises(InvalidArgumentError, match="messages = 0 must be at least 1"):
            await client.admin.skip_messages("/default/p", "s", 0)
        with pytest.raises(TopicNotFoundError):
            await client.admin.skip_messages("/default/none", "s", 1)
        # A window that was full has room again: what was skipped does not count as in flight.
        policy = {"max_unacked_messages": 4}
        async with (
            client.producer("/default/w") as producer,
            client.consumer("/default/w", subscription="s", start="earliest", policy=policy) as consumer,
        ):
            for number in range(8):
                await producer.send(b"%d" % number)
            assert [(await consumer.receive()).offset for _ in range(4)] == [0, 1, 2, 3]
            await client.admin.skip_messages("/default/w", "s", 3)
            assert [(await consumer.receive()).offset for _ in range(3)] == [4, 5, 6]
