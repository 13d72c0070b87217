"""C2: failover in a cluster of three, when the leader of the metadata is killed (SIGKILL) or paused (SIGSTOP)."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Callable

from benchmarks._machine import CpuWatch
from benchmarks._run import Run, Sample
from benchmarks._stats import percentile
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.cluster import GroupServer
from benchmarks.systems.metadata import etcd_leader

__all__ = ["SCENARIO"]

FAILOVERS = 20
"""Of each kind in a repetition of a full run."""
_KINDS = (("killed", signal.SIGKILL), ("paused", signal.SIGSTOP))
_SHARES = (50, 99)


def _repeat(run: Run, one: Callable[[Run, GroupServer, str, signal.Signals], dict[str, float]]) -> Sample:
    group = run.server
    assert isinstance(group, GroupServer)
    watch = CpuWatch()
    found: dict[str, list[float]] = defaultdict(list)
    failovers = max(1, int(FAILOVERS * run.scale))
    for number in range(failovers):
        for kind, number_of_signal in _KINDS:
            for name, value in one(run, group, f"-{kind}-{number}", number_of_signal).items():
                found[f"{kind}_{name.removesuffix('_s')}"].append(value)
    values = {f"{name}_p{share}_s": percentile(each, share) for name, each in found.items() for share in _SHARES}
    return Sample(len(_KINDS) * failovers, values, load_1m=watch.load_1m)


def _fail_broker(run: Run, group: GroupServer, suffix: str, number: signal.Signals) -> dict[str, float]:
    values = run.alone(run.work("failover", topic=run.topic(suffix), pids=group.pids, signal=int(number))).values
    began = time.monotonic_ns()
    group.bring_back(int(values.pop("pid")))
    values["back_s"] = (run.alone(run.work("settle")).finished_ns - began) / 1e9
    return values


def _fail_etcd(run: Run, group: GroupServer, _suffix: str, number: signal.Signals) -> dict[str, float]:
    leader = etcd_leader(group.ports)
    pid = group.members[group.ports.index(leader)].pid
    work = run.work("failover", pid=pid, signal=int(number))
    work.address = f"127.0.0.1:{next(port for port in group.ports if port != leader)}"
    values = run.alone(work).values
    group.bring_back(pid)
    etcd_leader(group.ports)
    return values


def _repeat_brokers(run: Run) -> Sample:
    return _repeat(run, _fail_broker)


def _repeat_etcd(run: Run) -> Sample:
    return _repeat(run, _fail_etcd)


SCENARIO = Scenario(
    name="c2",
    title=(
        "Failover in a cluster of three on one machine, its metadata leader killed or paused: time until the next "
        "metadata change succeeds, until another broker shows it as away, until a topic without durability is served "
        "by another one, and until the cluster is whole again"
    ),
    metrics=(
        "killed_write_p50_s",
        "killed_write_p99_s",
        "paused_write_p50_s",
        "killed_noticed_p50_s",
        "paused_noticed_p50_s",
        "killed_served_p50_s",
        "paused_served_p50_s",
        "killed_back_p50_s",
        "paused_back_p50_s",
    ),
    arms=(
        Arm(
            "cluster",
            0,
            100,
            f"{FAILOVERS} of each kind, scaled; create_topic, cluster_status and send at the other brokers",
            _repeat_brokers,
            label="danube",
        ),
        Arm("etcd", 0, 100, f"{FAILOVERS} of each kind, scaled; put through another member, over gRPC", _repeat_etcd),
    ),
    targets=(
        Target("c2", "killed_write_p50_s", 0.6, at_least=False),
        Target("c2", "killed_write_p99_s", 2.0, at_least=False),
        Target("c2", "paused_write_p50_s", 2.0, at_least=False),
        Target("c2", "killed_noticed_p50_s", 0.5, at_least=False),
        Target("c2", "paused_noticed_p50_s", 3.5, at_least=False),
    ),
    usual=False,
    warm_up=False,
)
