"""Delayed messages while the wall clock is set."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RawConsumer, raw_consumer, raw_producer, running_broker, wait_until
from broker.delivery.test_delayed import TYPES, offsets

from danube.broker.runtime import clock_steps
from danube.broker.runtime.clock_steps import ClockSteps
from danube.model import api

TOPIC = "/default/t"


class WallClock:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> int:
        return round((time.time() + self.ahead_s) * 1e6)


async def nothing_comes(consumer: RawConsumer, seconds: float) -> None:
    with trio.move_on_after(seconds) as scope:
        await consumer.reply_of(api.ConsumeBatch)
    assert scope.cancelled_caught


@pytest.mark.parametrize("kind", TYPES)
async def test_a_clock_that_was_behind_and_is_corrected_holds_nothing_back(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_steps, "_LOOK_S", 0.02)
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        clock = WallClock()
        running.broker.runtime.clock_steps._clock_us = clock
        await client.admin.create_topic(TOPIC)
        async with raw_producer(channel, TOPIC) as producer, raw_consumer(channel, TOPIC, kind=kind) as consumer:
            running.topic(TOPIC).subscriptions["s"]._wall_clock_us = clock
            consumer.credit(100)
            clock.ahead_s = -3600.0  # an hour slow while the messages arrive
            producer.send(0, b"a", b"b", deliver_at_us=round((time.time() + 0.3) * 1e6))
            await producer.acked(1)
            await wait_until(lambda: running.topic(TOPIC).subscriptions["s"].machine.delayed_messages() == 2)
            clock.ahead_s = 0.0
            assert await offsets(consumer, 2) == [0, 1]
            clock.ahead_s = 3600.0  # an hour fast
            producer.send(2, b"c", deliver_at_us=round((time.time() + 3601.0) * 1e6))
            await producer.acked(1)
            await wait_until(lambda: running.topic(TOPIC).subscriptions["s"].machine.delayed_messages() == 1)
            clock.ahead_s = 0.0
            await nothing_comes(consumer, 1.2)
            clock.ahead_s = 3600.0
            assert await offsets(consumer, 1) == [2]


class Waits:
    def __init__(self) -> None:
        self.steps: list[float] = []
        self.waits = True

    def clock_stepped(self, by_s: float) -> None:
        self.steps.append(by_s)

    def waits_for_time(self) -> bool:
        return self.waits


async def test_steps_are_told_and_drift_adds_up(autojump_clock: trio.testing.MockClock) -> None:
    ahead_s, began = 0.0, trio.current_time()
    steps = ClockSteps(lambda: round((1_000_000 + trio.current_time() - began + ahead_s) * 1e6))
    first, second = Waits(), Waits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(steps.run)
        steps.now_us(first)
        await trio.sleep(10.5)  # what happens here lies between two looks
        assert first.steps == []
        ahead_s = 7200.0
        steps.now_us(second)  # meets the step before the next look, and is not told: it begins with the new time
        assert (first.steps, second.steps) == ([pytest.approx(7200)], [])
        for _ in range(10):
            ahead_s -= 0.011
            await trio.sleep(1)
        assert first.steps[1:] == second.steps
        assert all(step <= -0.05 for step in second.steps)
        assert -0.12 < sum(second.steps) < -0.05  # what is not worth a step yet is kept
        told = len(first.steps)
        first.waits = False
        await trio.sleep(2)
        ahead_s = 0.0
        await trio.sleep(2)
        assert (len(first.steps), len(second.steps)) == (told, told)
        second.waits = False
        await trio.sleep(2)
        ahead_s = 50.0  # nothing waits
        await trio.sleep(10)
        steps.now_us(first)
        await trio.sleep(10)
        assert len(first.steps) == told
        nursery.cancel_scope.cancel()
