"""P5: throughput of Spark's writes to a topic."""

from __future__ import annotations

from functools import partial

from benchmarks._run import Run, Sample
from benchmarks._spark import SESSIONS, measure, unavailable, worker_settings
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

COUNT = 2_000_000
SIZE = 100


def _repeat(run: Run, *, session: str) -> Sample:
    return measure(run, "sink", worker_settings(run) | {"session": session}, topic=run.topic())[0]


def _arm(session: str) -> Arm:
    how = (
        "rows with a payload, from Parquet (zstd) into a topic and into Parquet (zstd), A B B A, local[2], session "
        f"{SESSIONS[session]}"
    )
    repeat = partial(_repeat, session=session)
    return Arm("danube", COUNT, SIZE, how, repeat, label=session, server=Danube("disk"), needs=unavailable)


SCENARIO = Scenario(
    name="p5",
    title=f"Spark writes {COUNT:,} payloads of {SIZE} B into a topic, all of them visible at once, and into Parquet",
    metrics=("rows_per_s", "parquet_rows_per_s", "times_parquet"),
    arms=(_arm("tuned"), _arm("default")),
    targets=(Target("p5", "rows_per_s", 500_000, arm="tuned"),),
    warm_up=False,
    usual=False,
)
