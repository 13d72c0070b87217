"""H5: the cost of many topics with little traffic."""

from __future__ import annotations

import time

from benchmarks._history import Gauge, broker_of, storages_status
from benchmarks._machine import CpuWatch
from benchmarks._payloads import CheckError
from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

TOPICS = 10_000
MESSAGES_PER_TOPIC = 10
IDLE_S = 120.0
MAX_AGE_S = 20
_LOOK_INTERVAL_S = 2.0


def _repeat(run: Run) -> Sample:
    broker = broker_of(run)
    share = min(1.0, run.scale)
    topics = max(10, int(TOPICS * share))
    watch = CpuWatch()
    with Gauge(broker.process, broker.directory) as gauge:
        before = _puts(run)
        began = time.monotonic()
        filled = run.alone(run.work("fill_topics", count=MESSAGES_PER_TOPIC, topics=topics))
        fill_s = time.monotonic() - began
        puts = [(0.0, _puts(run) - before)]
        began = time.monotonic()
        while (now := time.monotonic() - began) < max(MAX_AGE_S + 5.0, IDLE_S * share):
            time.sleep(_LOOK_INTERVAL_S)
            puts.append((now, _puts(run) - before))
    status = storages_status(run)
    if status.sealing.unsealed_bytes:
        raise CheckError(f"{status.sealing.unsealed_bytes} bytes of quiet topics are still not sealed")
    ready_s = broker.restart(kill=True)
    return Sample(
        filled.count,
        {
            "objects_per_minute": float(_most_in_a_minute(puts)),
            "resident_mb": max(gauge.resident_mb),
            "resident_idle_mb": gauge.resident_mb[-1],
            "ready_s": ready_s,
            "fill_s": fill_s,
        },
        load_1m=watch.load_1m,
    )


def _puts(run: Run) -> int:
    """Objects of all kinds (segments, manifests) that were put so far."""
    counted = (storage.operations.get("put") for storage in storages_status(run).storages)
    return sum(figures.calls for figures in counted if figures is not None)


def _most_in_a_minute(puts: list[tuple[float, int]]) -> int:
    return max(
        later - sooner for at, sooner in puts for then, later in puts if at <= then <= at + 60.0 + _LOOK_INTERVAL_S
    )


SCENARIO = Scenario(
    name="h5",
    title=(
        f"{TOPICS:,} topics with {MESSAGES_PER_TOPIC} messages each, then {IDLE_S:.0f} s idle while they are sealed by "
        f"age ({MAX_AGE_S} s); then a restart after SIGKILL"
    ),
    metrics=("objects_per_minute", "resident_mb", "resident_idle_mb", "ready_s", "fill_s"),
    arms=(
        Arm(
            "danube",
            0,
            100,
            "objects of all kinds in the busiest minute; memory at most, and at the end",
            _repeat,
            server=Danube("disk", {"segment_max_age_s": MAX_AGE_S}),
        ),
    ),
    targets=(
        Target("h5", "objects_per_minute", 100, at_least=False),
        Target("h5", "resident_mb", 250, at_least=False),
        Target("h5", "ready_s", 15, at_least=False),
    ),
    repetitions_limit=1,
    warm_up=False,
    usual=False,
)
