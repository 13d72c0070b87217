"""H4: duration of a restart after a crash with a full journal."""

from __future__ import annotations

from benchmarks._history import ask, broker_of, directory_bytes, fill
from benchmarks._machine import CpuWatch, resident_bytes
from benchmarks._payloads import CheckError
from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube
from danube.model.limits import GIB

__all__ = ["SCENARIO"]

COUNT = GIB // 104
"""As many 100 B messages as fill a GiB of journal: each needs 4 bytes more."""


def _fill(run: Run) -> None:
    topic = run.topic()
    fill(run, topic, run.count)
    run.memory.update(topic=topic, count=str(run.count))


def _repeat(run: Run) -> Sample:
    broker, topic = broker_of(run), run.memory["topic"]
    journal_mb = directory_bytes(broker.directory) / 1e6
    watch = CpuWatch()
    ready_s = broker.restart(kill=True)
    end = ask(run, lambda client: client.admin.describe_topic(topic)).end_offset
    if end != int(run.memory["count"]):
        raise CheckError(f"{run.memory['count']} messages were acknowledged, the broker came back with {end}")
    resident_mb = resident_bytes(broker.process) / 1e6
    values = {"ready_s": ready_s, "journal_mb": journal_mb, "resident_mb": resident_mb}
    return Sample(run.count, values, load_1m=watch.load_1m)


SCENARIO = Scenario(
    name="h4",
    title="Restart after SIGKILL with a journal of 1 GiB of which nothing is sealed: seconds to the ready line",
    metrics=("ready_s", "journal_mb", "resident_mb"),
    arms=(
        Arm(
            "danube",
            COUNT,
            100,
            "one topic; killed and started again in every repetition",
            _repeat,
            _fill,
            server=Danube("memory", {"journal_max_bytes": 2 * GIB}),
        ),
    ),
    targets=(Target("h4", "ready_s", 10, at_least=False),),
    warm_up=False,
    usual=False,
)
