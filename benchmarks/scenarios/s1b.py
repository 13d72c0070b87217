"""S1b: as S1, message by message in the application."""

from __future__ import annotations

from benchmarks._run import simple
from benchmarks.scenarios._base import Arm, Scenario, Target

__all__ = ["SCENARIO"]

SCENARIO = Scenario(
    name="s1b",
    title="As S1, message by message: one call for each message sent, received and acknowledged",
    metrics=("messages_per_s",),
    arms=(
        Arm("danube", 600_000, 100, "send_nowait; async for, message.ack()", simple("publish_nowait", "consume_each")),
        Arm(
            "jetstream",
            40_000,
            100,
            "publish_async; push consumer, msg.ack()",
            simple("publish_nowait", "consume_each"),
        ),
        Arm("redis", 150_000, 100, "pipelined XADD; XREADGROUP, XACK each", simple("publish_nowait", "consume_each")),
    ),
    targets=(Target("s1b", "messages_per_s", 150_000),),
)
