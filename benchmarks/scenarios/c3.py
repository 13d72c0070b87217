"""C3: many topics in a cluster of three: how fast they are created, and the memory that they take in each broker."""

from __future__ import annotations

import time

from benchmarks._machine import CpuWatch, resident_bytes
from benchmarks._run import Run, Sample
from benchmarks._stats import percentile
from benchmarks.roles import cluster
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.cluster import GroupServer

__all__ = ["SCENARIO"]

TOPICS = 10_000
SECONDS = 60.0
KNOWN = 100_000
"""Topics of the view."""
SETTLE_S = 2.0


def _resident_mb(group: GroupServer) -> list[float]:
    time.sleep(SETTLE_S)
    return [resident_bytes(member) / 1e6 for member in group.members]


def _repeat(run: Run) -> Sample:
    group = run.server
    assert isinstance(group, GroupServer)
    run.alone(run.work("settle"))
    watch = CpuWatch()
    before = _resident_mb(group)
    created = run.alone(run.work("create_topics"))
    after = _resident_mb(group)
    seconds = (created.finished_ns - created.started_ns) / 1e9
    directory = run.directory / f"view-{run.tag}"
    directory.mkdir()
    known = max(1_000, int(KNOWN * min(1.0, run.scale)))
    run.alone(run.work("fill_view", count=known, directory=str(directory)))
    view = run.alone(run.work("view", count=known, directory=str(directory)))
    live = run.alone(run.work("view", count=known, directory=str(directory), traced=1))
    values = {
        "topics_per_s": created.count / seconds,
        "create_s": seconds,
        "create_p50_us": percentile(created.latencies_us["create"], 50),
        "create_p99_us": percentile(created.latencies_us["create"], 99),
        "before_mb": max(before),
        "after_mb": max(after),
        "added_mb": max(later - earlier for earlier, later in zip(before, after, strict=True)),
        **view.values,
        **live.values,
    }
    return Sample(created.count, values, load_1m=watch.load_1m)


SCENARIO = Scenario(
    name="c3",
    title=(
        f"{TOPICS:,} plain topics created through one client by {cluster.CALLERS} callers in a cluster of three on one "
        f"machine, the largest resident memory of a broker before and after; and what the view of {KNOWN:,} topics "
        "takes (the tables of one broker, loaded from a store in a process of its own: resident, and objects alone)"
    ),
    metrics=(
        "topics_per_s",
        "create_s",
        "create_p50_us",
        "create_p99_us",
        "before_mb",
        "after_mb",
        "added_mb",
        "view_mb",
        "view_live_mb",
    ),
    arms=(Arm("cluster", TOPICS, 0, "create_topic", _repeat, label="danube"),),
    targets=(
        Target("c3", "topics_per_s", TOPICS / SECONDS),
        Target("c3", "view_mb", 40, at_least=False),
    ),
    repetitions_limit=3,
    usual=False,
    warm_up=False,
)
