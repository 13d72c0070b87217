"""C7: the owner of many topics of durability ``remote`` is killed, and their producers go on at other brokers."""

from __future__ import annotations

from itertools import count

from benchmarks._machine import CpuWatch
from benchmarks._run import Run, Sample
from benchmarks.roles import moving
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.cluster import Cluster, GroupServer

__all__ = ["SCENARIO"]

TOPICS = 1_000
_victims = count()


def _repeat(run: Run) -> Sample:
    group = run.server
    assert isinstance(group, GroupServer)
    run.alone(run.work("settle"))
    watch = CpuWatch()
    number = next(_victims) % len(group.members)
    work = run.work("kill", count=max(20, int(TOPICS * run.scale)), pids=group.pids, number=number)
    work.role = "moving.kill"
    found = run.alone(work)
    values = dict(found.values)
    group.bring_back(int(values.pop("pid")))
    run.alone(run.work("settle"))
    return Sample(found.count, values, load_1m=watch.load_1m)


SCENARIO = Scenario(
    name="c7",
    title=(
        f"kill -9 of a broker, another one in each repetition, that owns {TOPICS:,} topics of durability remote, "
        f"{moving.FILLED} messages of 100 B each, in a cluster of three on one machine; the producers of all topics "
        f"({moving.CLIENTS} clients) send at that moment: seconds until each has its acknowledgement. Then all topics "
        "are read and compared with what was acknowledged"
    ),
    metrics=("served_p50_s", "served_p99_s", "served_all_s"),
    arms=(Arm("cluster", 0, 100, "send; reader", _repeat, label="danube", server=Cluster(shared=True)),),
    targets=(
        Target("c7", "served_p50_s", 3, at_least=False),
        Target("c7", "served_p99_s", 6, at_least=False),
    ),
    usual=False,
    warm_up=False,
)
