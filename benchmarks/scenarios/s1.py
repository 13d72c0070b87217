"""S1: publish and consume at the same time, in bulk."""

from __future__ import annotations

from benchmarks._run import simple
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._redis_benchmark import LABEL, redis_benchmark

__all__ = ["SCENARIO"]

SCENARIO = Scenario(
    name="s1",
    title="Durable publish and consume at the same time, 100 B, one producer, one exclusive consumer",
    metrics=("messages_per_s",),
    arms=(
        Arm("danube", 3_000_000, 100, "send_many; batches(), batch.ack()", simple("publish", "consume")),
        Arm("jetstream", 40_000, 100, "publish_async; push consumer, ack all", simple("publish", "consume")),
        Arm("redis", 200_000, 100, "XADD in pipelines of 500; XREADGROUP, XACK", simple("publish", "consume")),
        redis_benchmark(400_000, 100),
    ),
    targets=(
        Target("s1", "messages_per_s", 1_000_000),
        Target("s1", "messages_per_s", 20, against="jetstream"),
        Target("s1", "messages_per_s", 2.5, against=LABEL),
    ),
)
