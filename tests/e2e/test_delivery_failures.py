"""Failing messages, as applications and operators see them: pauses, poison, dead letters, leases."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio
from brokers import BrokerProcess
from consumer_groups import backlog, consumer_group, publish, until

from danube import Client, connect
from danube.client import Consumer, Message

AT_ONCE = {"redelivery_delay_s": 0.0, "backoff": "fixed"}
QUIET_S = 0.15
"""After so long without a message none is expected any more."""


async def command(broker: BrokerProcess, *arguments: str) -> Any:
    """Run a ``danube`` command and return what its JSON says."""
    line = [sys.executable, "-m", "danube", *arguments, "--url", broker.url, "-o", "json"]
    done = await trio.run_process(line, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout.decode()
    return json.loads(done.stdout)


async def handle(consumer: Consumer, is_bad: Callable[[Message], bool], handled: list[Message]) -> None:
    """Be an application: refuse what is bad, acknowledge the rest."""
    async for message in consumer:
        if is_bad(message):
            await message.nack(reason="total is no number")
        else:
            handled.append(message)
            await message.ack()


async def quiet(consumer: Consumer) -> None:
    """Check that nothing comes."""
    with trio.move_on_after(QUIET_S):
        message = await consumer.receive()
        raise AssertionError(f"message {message.offset} came, attempt {message.attempt}")


async def state(client: Client, topic: str) -> str:
    return (await client.admin.explain_subscription(topic, "s")).state


async def test_poison_is_set_aside_with_its_story_and_comes_back_by_replay(shared_broker: BrokerProcess) -> None:
    topic, letters, kind = "/default/orders", "/default/orders-s-dlq", "key_shared"
    policy = {**AT_ONCE, "max_redelivery_count": 2, "poison": "dead_letter"}
    handled: list[Message] = []
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client, client.producer(topic, name="shop") as producer:
            async with (
                client.consumer(topic, subscription="s", type=kind, start="earliest", policy=policy) as consumer,
                trio.open_nursery() as nursery,
            ):
                for number in range(6):
                    await producer.send(b"%d" % number, key="ada", attributes={"v": "1"})
                nursery.start_soon(handle, consumer, lambda one: one.payload == b"3", handled)
                await until(lambda: len(handled) == 5)
                await until(lambda: backlog_is(client, topic, 0))
                nursery.cancel_scope.cancel()
            assert [one.payload for one in handled] == [b"0", b"1", b"2", b"4", b"5"]  # its key went on without it
            async with client.reader(topic, start=3) as originals, client.reader(letters, start=0) as copies:
                original, letter = await originals.receive(), await copies.receive()
            assert (letter.payload, letter.key) == (original.payload, original.key) == (b"3", "ada")
            assert letter.publish_time == original.publish_time
            assert letter.attributes is not None
            assert (
                letter.attributes.items()
                >= {
                    "v": "1",
                    "x-original-topic": topic,
                    "x-original-subscription": "s",
                    "x-original-topic-offset": "3",
                    "x-original-producer": "shop",
                    "x-poison-policy": "dead_letter",
                    "x-delivery-attempt": "3",
                    "x-failure-reason": "total is no number",
                }.items()
            )
            # The operator inspects it, the application is repaired, and it is replayed.
            (row,) = await command(shared_broker, "dlq", "list", letters)
            assert "total is no number" in row.values()
            for expected in (1, 0):
                assert (await command(shared_broker, "dlq", "replay", letters))["replayed"] == expected
            async with client.consumer(topic, subscription="s", type=kind) as consumer:
                again = await consumer.receive()
                assert (again.payload, again.key, again.attributes, again.attempt) == (b"3", "ada", {"v": "1"}, 1)
                await again.ack()
                await quiet(consumer)


async def backlog_is(client: Client, topic: str, count: int) -> bool:
    return await backlog(client, topic, "s") == count


async def test_block_stops_everything_until_the_policy_is_changed(shared_broker: BrokerProcess) -> None:
    topic = "/default/blocked"
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client:
            await publish(client, topic, 0, 3)
            policy = {**AT_ONCE, "max_redelivery_count": 0}
            async with client.consumer(
                topic, subscription="s", start="earliest", policy=policy, credit_messages=1
            ) as consumer:
                await (await consumer.receive()).nack(reason="no such user")
                await until(lambda: is_blocked(client, topic))
                explanation = await client.admin.explain_subscription(topic, "s")
                assert "message 0" in explanation.sentence
                assert "no such user" in explanation.sentence
                await publish(client, topic, 3, 3)
                # What was published with it may have been on its way when it was refused; nothing else passes it.
                passed: list[int] = []
                with trio.move_on_after(QUIET_S):
                    while True:
                        passed.append((await consumer.receive()).offset)
                assert passed == [1, 2][: len(passed)]
                await client.admin.change_subscription_policy(topic, "s", poison="drop")
                while len(passed) < 5:
                    passed.append((await consumer.receive()).offset)
                assert passed == [1, 2, 3, 4, 5]
                (row,) = await client.admin.describe_subscription(topic, "s")
                assert row.dropped_messages == 1


async def is_blocked(client: Client, topic: str) -> bool:
    return await state(client, topic) == "blocked"


async def test_block_stops_only_the_key_in_key_shared(shared_broker: BrokerProcess) -> None:
    topic = "/default/blocked-key"
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client:
            await publish(client, topic, 0, 30, keys=3)
            policy = {**AT_ONCE, "max_redelivery_count": 0}
            handled: list[Message] = []
            async with (
                client.consumer(
                    topic, subscription="s", type="key_shared", start="earliest", policy=policy, credit_messages=1
                ) as consumer,
                trio.open_nursery() as nursery,
            ):
                bad = {b"4"}
                nursery.start_soon(handle, consumer, lambda one: one.payload in bad, handled)
                await until(lambda: len(handled) >= 21)
                await until(lambda: backlog_is(client, topic, 9))
                assert {int(one.payload) for one in handled} == {*range(0, 30, 3), 1, *range(2, 30, 3)}
                bad.clear()
                await client.admin.change_subscription_policy(topic, "s", max_redelivery_count=5)
                await until(lambda: backlog_is(client, topic, 0))
                assert [int(one.payload) for one in handled if one.key == "k1"] == list(range(1, 30, 3))
                nursery.cancel_scope.cancel()


async def test_pauses_grow_and_a_nack_may_choose_its_own(shared_broker: BrokerProcess) -> None:
    topic = "/default/pauses"
    policy = {"redelivery_delay_s": 0.1, "max_redelivery_delay_s": 0.4, "max_redelivery_count": -1}
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client:
            await publish(client, topic, 0, 1)
            async with client.consumer(topic, subscription="s", start="earliest", policy=policy) as consumer:
                message = await consumer.receive()
                for attempt, (delay_s, pause_s) in enumerate([(None, 0.1), (None, 0.2), (0.0, 0.0), (0.5, 0.5)], 2):
                    began = trio.current_time()
                    await message.nack(delay_s)
                    message = await consumer.receive()
                    took_s = trio.current_time() - began
                    assert pause_s <= took_s < pause_s + 5.0
                    assert message.attempt == attempt
                await message.ack()


async def test_the_loss_of_a_consumer_is_not_held_against_its_messages(shared_broker: BrokerProcess) -> None:
    topic = "/default/lost-consumers"
    with trio.fail_after(20):
        async with (
            connect(shared_broker.url) as client,
            consumer_group(shared_broker.url, topic, "s", "shared") as group,
        ):
            await publish(client, topic, 0, 10)
            for number in range(4):
                policy = {"max_redelivery_count": 0, "poison": "drop"}
                await group.join(f"c{number}", acks=math.inf if number == 3 else 0, policy=policy)
                await group.until(lambda it, last=f"c{number}": len(it.seen_by(last)) == 10)  # type: ignore[misc]
                if number < 3:
                    await group.lose(f"c{number}")
            assert {one.attempt for one in group.seen_by("c3")} == {4}
            await group.flush()
            assert await backlog(client, topic, "s") == 0


# --- Leases ---

TIMEOUT_S = 6.0
WORK_S = 1.25 * TIMEOUT_S


@pytest.mark.parametrize("way", ["extend", "renew", "neither"])
async def test_a_slow_handler_keeps_its_message_if_it_says_so(shared_broker: BrokerProcess, way: str) -> None:
    topic = f"/default/slow-{way}"
    with trio.fail_after(30):
        async with connect(shared_broker.url) as client, connect(shared_broker.url) as other:
            await publish(client, topic, 0, 1)
            policy = {**AT_ONCE, "ack_timeout_s": 0.5 if way == "neither" else TIMEOUT_S}
            async with client.consumer(
                topic, subscription="s", type="shared", start="earliest", policy=policy, renew_leases=way == "renew"
            ) as slow:
                message = await slow.receive()
                if way == "extend":
                    await message.extend_lease(WORK_S + 10.0)
                async with other.consumer(topic, subscription="s", type="shared") as waiting:
                    came = None
                    with trio.move_on_after(10.0 if way == "neither" else WORK_S):
                        came = await waiting.receive()
                    if way == "neither":
                        assert came is not None
                        assert came.attempt == 2
                        (row,) = await client.admin.describe_subscription(topic, "s")
                        assert row.redelivered_messages >= 1
                    else:
                        assert came is None
                    await message.ack()
                    await slow.flush_acks()
                    assert await backlog(client, topic, "s") == 0


async def test_an_ack_after_the_timeout_and_before_the_redelivery_counts(shared_broker: BrokerProcess) -> None:
    topic = "/default/late"
    with trio.fail_after(20):
        async with connect(shared_broker.url) as client:
            await publish(client, topic, 0, 2)
            policy = {"ack_timeout_s": 0.3, "redelivery_delay_s": 30.0}
            async with client.consumer(topic, subscription="s", start="earliest", policy=policy) as consumer:
                first, second = await consumer.receive(), await consumer.receive()
                await until(lambda: waiting_are(client, topic, 2))
                assert await state(client, topic) == "waiting-for-retry"
                await first.ack()
                await consumer.flush_acks()
                assert await backlog(client, topic, "s") == 1
                # The pause is shortened while it lasts: the other one comes at once.
                await client.admin.change_subscription_policy(topic, "s", **AT_ONCE)
                again = await consumer.receive()
                assert (again.offset, again.attempt) == (second.offset, 2)
                await again.ack()
                await consumer.flush_acks()
                assert await backlog(client, topic, "s") == 0


async def waiting_are(client: Client, topic: str, count: int) -> bool:
    (row,) = await client.admin.describe_subscription(topic, "s")
    return row.waiting_messages == count
