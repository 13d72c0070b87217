"""S5: a work queue."""

from __future__ import annotations

from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target

__all__ = ["SCENARIO"]

CONSUMERS = 4


def _repeat(run: Run) -> Sample:
    return run.flow([run.work("publish")], [run.work("consume_shared", consumers=CONSUMERS)])[0]


SCENARIO = Scenario(
    name="s5",
    title="Shared subscription, 4 consumers, 100 B, each message acknowledged by itself",
    metrics=("messages_per_s",),
    arms=(
        Arm("danube", 400_000, 100, "send_many; async for, message.ack(), 4 connections", _repeat),
        Arm("jetstream", 40_000, 100, "publish_async; push consumer, msg.ack(), 4 connections", _repeat),
        Arm("redis", 150_000, 100, "pipelined XADD; XREADGROUP, XACK each, 4 connections", _repeat),
    ),
    targets=(Target("s5", "messages_per_s", 100_000),),
)
