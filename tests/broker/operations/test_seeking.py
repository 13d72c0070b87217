"""What a seek would do: planned from the cursor, and the same that the seek then does."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.broker_harness import running_broker, small_config
from hypothesis import given
from hypothesis import strategies as st

from danube.broker.operations.seeking import moved_by, plan_of
from danube.dispatch import Cursor
from danube.model.errors import SubscriptionNotFoundError

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
