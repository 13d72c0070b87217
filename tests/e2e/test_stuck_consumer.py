"""A stuck consumer affects no other consumer, subscription, key, acknowledgement or producer.

It sticks in two ways: its application takes nothing more while its client lives on, or its whole process stands still,
so that its socket is not read either. How much the others are slowed down is measured by the benchmark ``d1``.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from brokers import BrokerProcess, danube
from consumer_groups import Group, backlog, by_key, consumer_group, numbers, publish, until

from danube import Client, connect
from danube.model.api import ConsumerInfo

COUNT = 3_000
ANSWERS = 60
KEYS = 100
CREDIT = 50
"""Of the consumer that sticks, if its process lives."""
ANSWER_S = 5.0
"""By far enough for one answer, and far less than any timeout that could be waited for."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("stuck") / "data"
    with BrokerProcess(directory, "--journal-file-size", "16MiB", "--log-level", "warning") as process:
        yield process


@contextmanager
def consumer_process(broker: BrokerProcess, topic: str, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``danube consume`` as the consumer ``stuck``."""
    command = ["consume", topic, "-s", "s", "--type", kind, "--start", "earliest", "--name", "stuck"]
    with danube(*command, "--url", broker.url, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def stuck(client: Client, topic: str) -> ConsumerInfo | None:
    """What the broker says about the consumer that sticks; None if it is not there."""
    rows = await client.admin.list_subscriptions(topic)
    return next((one for row in rows for one in row.consumers if row.subscription == "s" and one.name == "stuck"), None)


async def is_ready(client: Client, topic: str) -> bool:
    """Whether it holds a message: a consumer without credit blocks no other."""
    one = await stuck(client, topic)
    return one is not None and one.credit_messages > 0


@pytest.mark.parametrize("way", ["idle", "stopped"])
@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_a_stuck_consumer_disturbs_no_other(broker: BrokerProcess, kind: str, way: str) -> None:
    topic = f"/default/{kind}-{way}"
    with trio.fail_after(60):
        async with connect(broker.url) as client, consumer_group(broker.url, topic, "s", kind) as group:
            await client.admin.create_topic(topic)
            if way == "idle":
                await group.join("stuck", take=0, credit_messages=CREDIT)
                await check_others(client, group)
            else:
                with consumer_process(broker, topic, kind) as process:
                    await until(lambda: is_ready(client, topic))
                    process.send_signal(signal.SIGSTOP)
                    await check_others(client, group)


async def check_others(client: Client, group: Group) -> None:
    """Three consumers work beside the one that sticks, then get what it has."""
    topic = group.topic
    for name in ("a", "b", "c"):
        await group.join(name)
    async with client.consumer(topic, subscription="other", start="earliest") as other:
        await publish(client, topic, 0, COUNT, keys=KEYS, per_batch=100)
        began = time.monotonic()
        undisturbed = [int((await other.receive()).payload) for _ in range(COUNT)]
        assert undisturbed == list(range(COUNT))
        assert time.monotonic() - began < 5 * ANSWER_S

    async def nothing_left() -> bool:
        held = await stuck(client, topic)
        assert held is not None
        return bool(group.acked) and held.in_flight_messages > 0 and len(group.acked) == theirs(group, held)

    await until(nothing_left)
    assert COUNT / 2 < len(group.acked) < COUNT
    await acks_and_publishes_answer(client, group)

    # What sticks is not lost either: once its time is over, the others have it.
    await client.admin.change_subscription_policy(topic, "s", ack_timeout_s=0.3, redelivery_delay_s=0.0)
    everything = COUNT + ANSWERS
    await until(lambda: backlog_is(client, topic, 0))
    await group.until(lambda it: len(set(numbers(it.acked))) == everything)
    # Others whose machine stands still for so long may get some of theirs again.
    assert set(numbers(group.acked)) == set(range(everything))
    assert {one.consumer for one in group.acked} == {"a", "b", "c"}
    if group.kind == "key_shared":
        for key, found in by_key(group.acked).items():
            assert list(dict.fromkeys(found)) == sorted(set(found)), key


async def backlog_is(client: Client, topic: str, count: int) -> bool:
    return await backlog(client, topic, "s") == count


def theirs(group: Group, held: ConsumerInfo) -> int:
    """How many messages are for the consumers that do not stick."""
    if group.kind == "shared":
        return COUNT - held.in_flight_messages
    keys = {one.key for one in group.seen}  # of the others: the first batch has a message of each key
    return len(keys) * COUNT // KEYS


async def acks_and_publishes_answer(client: Client, group: Group) -> None:
    """Send one message at a time, and let all be acknowledged durably, one flush after the other."""
    slowest_s = 0.0

    async def flush(name: str) -> None:
        nonlocal slowest_s
        while True:
            began = time.monotonic()
            await group.consumers[name].flush_acks()
            slowest_s = max(slowest_s, time.monotonic() - began)
            await trio.sleep(0.02)

    async with client.producer(group.topic) as producer, trio.open_nursery() as nursery:
        for name in ("a", "b", "c"):
            nursery.start_soon(flush, name)
        for number in range(COUNT, COUNT + ANSWERS):
            began = time.monotonic()
            await producer.send(b"%d" % number, key=f"k{number % KEYS}")
            slowest_s = max(slowest_s, time.monotonic() - began)
        nursery.cancel_scope.cancel()
    assert slowest_s < ANSWER_S
