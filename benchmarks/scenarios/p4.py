"""P4: latency of new messages in a Spark stream."""

from __future__ import annotations

from functools import partial

from benchmarks._run import Run, Sample
from benchmarks._spark import SESSIONS, measure, unavailable, worker_settings
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

SAMPLES = 40
EACH = 2_000


def _repeat(run: Run, *, session: str) -> Sample:
    samples = max(5, int(SAMPLES * min(1.0, run.scale)))
    settings = worker_settings(run) | {"session": session, "samples": samples}
    return measure(run, "stream", settings, topic=run.topic(), count=EACH)[0]


def _arm(session: str) -> Arm:
    how = (
        f"{EACH:,} messages to 2 partitions by one send_many, until the query's progress tells of them; checkpoint on "
        f"disk, noop sink, local[2], session {SESSIONS[session]}"
    )
    repeat = partial(_repeat, session=session)
    return Arm("danube", 0, 100, how, repeat, label=session, server=Danube("disk"), needs=unavailable)


SCENARIO = Scenario(
    name="p4",
    title=(
        f"A stream in Spark: from publishing {EACH:,} messages of 100 B to the end of the micro-batch that carried "
        f"them, {SAMPLES} times; and how long that micro-batch took"
    ),
    metrics=("latency_p50_ms", "latency_max_ms", "trigger_p50_ms"),
    arms=(_arm("tuned"), _arm("default")),
    targets=(Target("p4", "latency_p50_ms", 250, at_least=False, arm="tuned"),),
    warm_up=False,
    usual=False,
)
