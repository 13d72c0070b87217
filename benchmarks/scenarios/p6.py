"""P6: separate executor processes give the same results as threads of the driver."""

from __future__ import annotations

from benchmarks._payloads import CheckError
from benchmarks._run import Run, Sample
from benchmarks._spark import load_and_seal, measure, unavailable, worker_settings
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

COUNT = 1_000_000
CLUSTER = "local-cluster[2,1,2048]"
THREADS = "local[2]"
EXECUTORS = 2


def _repeat(run: Run) -> Sample:
    settings = worker_settings(run)
    _, threads = measure(run, "aggregate", settings | {"master": THREADS, "tag": f"{run.tag}-threads"})
    sample, cluster = measure(run, "aggregate", settings | {"master": CLUSTER, "tag": f"{run.tag}-cluster"})
    if cluster.checksum != threads.checksum:
        raise CheckError(f"{CLUSTER} and {THREADS} give different results")
    sample.values["local_rows_per_s"] = threads.values["rows_per_s"]
    return sample


SCENARIO = Scenario(
    name="p6",
    title=(
        f"Spark on {CLUSTER} and on {THREADS}: an aggregate, a stream into Parquet and a scan of {COUNT:,} sealed "
        "messages give the same, or there are no figures"
    ),
    metrics=("rows_per_s", "local_rows_per_s", "executors"),
    arms=(
        Arm(
            "danube",
            COUNT,
            100,
            "sum, count and max by groups; availableNow; scan to the noop sink; tuned sessions",
            _repeat,
            load_and_seal,
            server=Danube("disk"),
            needs=unavailable,
        ),
    ),
    targets=(Target("p6", "executors", EXECUTORS),),
    warm_up=False,
    usual=False,
)
