"""C1: the metadata of a cluster of three, replicated: puts, gets and watches."""

from __future__ import annotations

from dataclasses import replace

from benchmarks._run import Run, Sample
from benchmarks._stats import percentile
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.metadata import Members

__all__ = ["SCENARIO"]


def _repeat(run: Run, *, leads: bool = True) -> Sample:
    work = run.work("load")
    if run.server.system == "members":
        work.settings |= {"directory": str(run.directory / "member-3"), "leads": int(leads)}
    work.role = "metadata.load"
    sample, outcomes, _ = run.flow([work], own_topic=False)
    (outcome,) = outcomes
    sample.values = dict(outcome.values)
    for name, found in outcome.latencies_us.items():
        sample.values |= {f"{name}_p50_us": percentile(found, 50), f"{name}_p99_us": percentile(found, 99)}
    return sample


def _repeat_following(run: Run) -> Sample:
    return _repeat(run, leads=False)


_HOW = "put and get by 1 and by 64 callers, then a watch"
_MEMBERS = Arm("members", 20_000, 100, f"{_HOW}, at the leader", _repeat, label="danube", server=Members(leads=True))

SCENARIO = Scenario(
    name="c1",
    title="Replicated metadata, 3 members on one machine: durable puts, linearizable gets, delay of a watch, 100 B",
    metrics=(
        "put_1_per_s",
        "put_64_per_s",
        "get_1_per_s",
        "get_64_per_s",
        "put_1_p50_us",
        "put_1_p99_us",
        "watch_p50_us",
    ),
    arms=(
        _MEMBERS,
        replace(
            _MEMBERS,
            how=f"{_HOW}, at a follower",
            repeat=_repeat_following,
            label="danube-follower",
            server=Members(leads=False),
        ),
        Arm("etcd", 5_000, 100, f"{_HOW}, at the leader, over gRPC", _repeat),
    ),
    targets=(
        Target("c1", "put_1_per_s", 1_200),
        Target("c1", "put_1_p50_us", 1_000, at_least=False),
        Target("c1", "put_64_per_s", 2.0, against="etcd"),
        Target("c1", "get_64_per_s", 20_000),
        Target("c1", "watch_p50_us", 1_000, at_least=False),
    ),
    usual=False,
)
