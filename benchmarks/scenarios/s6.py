"""S6: many clients, each with one message in flight."""

from __future__ import annotations

from benchmarks._run import Run, Sample, latency_values
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._redis_benchmark import redis_benchmark

__all__ = ["SCENARIO"]

CONNECTIONS = 100
PROCESSES = 2


def _repeat(run: Run) -> Sample:
    share, each = max(run.count, CONNECTIONS) // PROCESSES, CONNECTIONS // PROCESSES
    works = [run.work("connections", count=share, connections=each) for _ in range(PROCESSES)]
    sample, sent, _ = run.flow(works)
    sample.values |= latency_values(sent, "in_flight")
    sample.values["broker_cpu_us"] = sample.cpu_s["broker"] / sample.messages * 1e6
    return sample


SCENARIO = Scenario(
    name="s6",
    title="100 connections in 2 processes, one durable 100 B message in flight on each (closed loop)",
    metrics=("messages_per_s", "broker_cpu_us", "p50_us", "p99_us"),
    arms=(
        Arm("danube", 60_000, 100, "await send()", _repeat),
        Arm("jetstream", 30_000, 100, "await publish()", _repeat),
        redis_benchmark(80_000, 100, clients=CONNECTIONS, pipeline=1),
    ),
    targets=(
        Target("s6", "messages_per_s", 10_000),
        Target("s6", "broker_cpu_us", 60, at_least=False),
    ),
)
