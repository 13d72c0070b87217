"""Memory of the broker: idle, with many topics, many connections, a long backlog."""

from __future__ import annotations

import time

from benchmarks._machine import CpuWatch, resident_bytes
from benchmarks._run import READY_TIMEOUT_S, RESULT_TIMEOUT_S, Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from danube.model import Limits

__all__ = ["SCENARIO"]

TOPICS = 1_000
MESSAGES_PER_TOPIC = 100
CONNECTIONS = 1_000
SETTLE_S = 1.0


def _resident_mb(run: Run) -> float:
    time.sleep(SETTLE_S)
    return resident_bytes(run.server.process) / 1e6


def _scaled(run: Run, full: int) -> int:
    return max(10, int(full * min(1.0, run.scale)))


def _repeat(run: Run) -> Sample:
    watch = CpuWatch()
    values = {}
    with run.fresh_server():
        values["idle_mb"] = _resident_mb(run)
        run.alone(run.work("fill_topics", count=MESSAGES_PER_TOPIC, topics=_scaled(run, TOPICS)))
        values["topics_mb"] = _resident_mb(run)
    with run.fresh_server():
        holder = run.processes.worker(run.work("hold_connections", connections=_scaled(run, CONNECTIONS)))
        holder.wait_for("ready", READY_TIMEOUT_S)
        holder.send(b"go")
        holder.wait_for("holding", RESULT_TIMEOUT_S)
        values["connections_mb"] = _resident_mb(run)
        holder.send(b"go on")
        holder.outcome(RESULT_TIMEOUT_S)
    with run.fresh_server():
        before = _resident_mb(run)
        run.alone(run.work("backlog"))
        values["backlog_added_mb"] = _resident_mb(run) - before
    return Sample(run.count, values, load_1m=watch.load_1m)


SCENARIO = Scenario(
    name="memory",
    title=(
        f"Resident memory of the broker: idle; {TOPICS:,} topics with {MESSAGES_PER_TOPIC} messages each; "
        f"{CONNECTIONS:,} idle connections; what a backlog of 10 million messages adds"
    ),
    metrics=("idle_mb", "topics_mb", "connections_mb", "backlog_added_mb"),
    arms=(Arm("danube", 10_000_000, 100, "a fresh broker for topics, connections and backlog", _repeat),),
    targets=(
        Target("memory", "idle_mb", 55, at_least=False),
        Target("memory", "topics_mb", 120, at_least=False),
        Target("memory", "connections_mb", 120, at_least=False),
        Target("memory", "backlog_added_mb", Limits().cache_bytes / 1e6, at_least=False),
    ),
    repetitions_limit=2,
    warm_up=False,
)
