"""C5: a broker of a cluster of three is drained that owns many topics; then their producers, idle meanwhile, send."""

from __future__ import annotations

from benchmarks._machine import CpuWatch
from benchmarks._run import Run, Sample
from benchmarks.roles import moving
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.cluster import Cluster

__all__ = ["SCENARIO"]

TOPICS = 1_000


def _repeat(run: Run) -> Sample:
    run.alone(run.work("settle"))
    watch = CpuWatch()
    work = run.work("drain", count=max(20, int(TOPICS * run.scale)))
    work.role = "moving.drain"
    found = run.alone(work)
    run.alone(run.work("settle"))
    return Sample(found.count, dict(found.values), load_1m=watch.load_1m)


SCENARIO = Scenario(
    name="c5",
    title=(
        f"Drain of a broker with {TOPICS:,} topics of durability disk, {moving.FILLED} messages of 100 B each, in a "
        "cluster of three on one machine: seconds until it has no topics, and from then on until the producers of all "
        f"topics ({moving.CLIENTS} clients, idle during the drain, told at once) have sent again (settle), and "
        "the most redirects that a call took"
    ),
    metrics=("drain_s", "topics_per_s", "settle_s", "hops"),
    arms=(Arm("cluster", 0, 100, "drain_broker; send", _repeat, label="danube", server=Cluster(shared=True)),),
    targets=(
        Target("c5", "drain_s", 30, at_least=False),
        Target("c5", "settle_s", 2, at_least=False),
        Target("c5", "hops", 3, at_least=False),
    ),
    usual=False,
    warm_up=False,
)
