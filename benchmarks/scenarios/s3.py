"""S3: latency of one durable message at a time."""

from __future__ import annotations

from benchmarks._run import Run, Sample, latency_values
from benchmarks.scenarios._base import Arm, Scenario, Target

__all__ = ["SCENARIO", "repeat"]

RATE_PER_S = 500.0


def repeat(run: Run) -> Sample:
    """Send messages at a fixed rate, then one after the other."""
    # With a slow disk the schedule must leave room: a tenth of the time goes to everything but the disk.
    rate = min(RATE_PER_S, 500.0 / run.sync_delay_ms) if run.sync_delay_ms else RATE_PER_S
    sample, sent, _ = run.flow([run.work("latency", rate=rate)])
    sample.values = latency_values(sent, "paced", "paced_") | latency_values(sent, "back_to_back", "back_to_back_")
    # The CPU time is that of the back-to-back half for the producer, and of both halves for the broker.
    sample.cpu_s["producer"] *= 2
    return sample


SCENARIO = Scenario(
    name="s3",
    title="One durable message at a time, 100 B: paced (from the intended send time) and back to back",
    metrics=("paced_p50_us", "paced_p99_us", "back_to_back_p50_us", "back_to_back_p99_us"),
    arms=(
        Arm("danube", 2_500, 100, "await send()", repeat),
        Arm("jetstream", 2_500, 100, "await publish()", repeat),
        Arm("redis", 2_500, 100, "XADD", repeat),
    ),
    targets=(
        Target("s3", "paced_p50_us", 3, at_least=False, against="jetstream"),
        Target("s3", "back_to_back_p50_us", 3, at_least=False, against="jetstream"),
    ),
)
