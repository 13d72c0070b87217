"""S7: fan-out to many subscriptions."""

from __future__ import annotations

from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target

__all__ = ["SCENARIO"]

SUBSCRIPTIONS = 10
PROCESSES = 2


def _repeat(run: Run) -> Sample:
    each = SUBSCRIPTIONS // PROCESSES
    readers = [run.work("consume", subscriptions=each, prefix=f"process{one}") for one in range(PROCESSES)]
    sample, _, _ = run.flow([run.work("publish")], readers, each=SUBSCRIPTIONS)
    sample.values["deliveries_per_s"] = sample.values["messages_per_s"] * SUBSCRIPTIONS
    return sample


SCENARIO = Scenario(
    name="s7",
    title="Fan-out: one producer, 10 exclusive subscriptions in 2 consumer processes, 100 B",
    metrics=("deliveries_per_s",),
    arms=(
        Arm("danube", 600_000, 100, "send_many; batches(), batch.ack()", _repeat),
        Arm("jetstream", 10_000, 100, "publish_async; push consumer, ack all", _repeat),
        Arm("redis", 20_000, 100, "pipelined XADD; XREADGROUP, XACK", _repeat),
    ),
    targets=(Target("s7", "deliveries_per_s", 2_000_000),),
)
