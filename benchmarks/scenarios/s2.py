"""S2: throughput in bytes, with larger messages."""

from __future__ import annotations

from benchmarks._run import simple
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._redis_benchmark import redis_benchmark

__all__ = ["SCENARIO"]

SCENARIO = Scenario(
    name="s2",
    title="As S1, 1 KiB",
    metrics=("mb_per_s", "messages_per_s"),
    arms=(
        Arm("danube", 700_000, 1024, "send_many; batches(), batch.ack()", simple("publish", "consume")),
        Arm("jetstream", 30_000, 1024, "publish_async; push consumer, ack all", simple("publish", "consume")),
        Arm("redis", 100_000, 1024, "XADD in pipelines of 500; XREADGROUP, XACK", simple("publish", "consume")),
        redis_benchmark(200_000, 1024),
    ),
    targets=(Target("s2", "mb_per_s", 200),),
)
