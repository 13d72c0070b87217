"""C4: planned moves of a topic in a cluster of three, while one message at a time is published to it."""

from __future__ import annotations

from benchmarks._machine import CpuWatch
from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.cluster import Cluster

__all__ = ["SCENARIO"]

MOVES = 200


def _repeat(run: Run) -> Sample:
    watch = CpuWatch()
    work = run.work("move", count=max(3, int(MOVES * run.scale)))
    work.role = "moving.move"
    found = run.alone(work)
    return Sample(found.count, dict(found.values), load_1m=watch.load_1m)


SCENARIO = Scenario(
    name="c4",
    title=(
        f"{MOVES} planned moves of a topic with durability disk among three brokers on one machine, while one message "
        "at a time is published: the longest time between two acknowledgements of each move (pause), from the order of "
        "a move until the cluster shows the new owner (move), and of a send"
    ),
    metrics=("pause_p50_ms", "pause_p99_ms", "move_p50_ms", "send_p50_ms"),
    arms=(Arm("cluster", 0, 100, "send; move_topic", _repeat, label="danube", server=Cluster(shared=True)),),
    targets=(
        Target("c4", "pause_p50_ms", 30, at_least=False),
        Target("c4", "pause_p99_ms", 100, at_least=False),
    ),
    usual=False,
    warm_up=False,
)
