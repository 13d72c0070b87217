"""The C load generator of Redis: many connections, pipelined XADD, no readers."""

from __future__ import annotations

import csv
import shutil

from benchmarks._processes import WorkerError
from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm

__all__ = ["LABEL", "redis_benchmark", "unavailable"]

LABEL = "redis-benchmark"


def unavailable() -> str | None:
    """Why the program cannot be used; None if it can."""
    if shutil.which(LABEL) is None:
        return "redis-benchmark was not found; apt-get install redis-tools (as root: --install-tools)"
    return None


def redis_benchmark(count: int, size: int, *, clients: int = 50, pipeline: int = 16) -> Arm:
    """An arm that adds ``count`` entries of ``size`` bytes to one stream."""

    def repeat(run: Run) -> Sample:
        command = [LABEL, "-p", str(run.server.port), "-n", str(run.count), "-c", str(clients), "-P", str(pipeline)]
        command += ["--csv", "XADD", run.topic(), "*", "p", "x" * size]
        printed, sample = run.program(command, LABEL)
        run.alone(run.work("delete"))
        rows = list(csv.reader(printed.splitlines()))
        if len(rows) < 2 or "rps" not in rows[0]:
            raise WorkerError(f"redis-benchmark printed something unexpected: {printed[:200]!r}")
        row = dict(zip(rows[0], rows[-1], strict=True))
        rate = float(row["rps"])
        sample.values["messages_per_s"] = rate
        sample.values["mb_per_s"] = rate * size / 1e6
        for name, column in (("p50_us", "p50_latency_ms"), ("p99_us", "p99_latency_ms")):
            if column in row:
                sample.values[name] = float(row[column]) * 1000
        if pipeline == 1:
            sample.values["broker_cpu_us"] = sample.cpu_s["broker"] / sample.messages * 1e6
        return sample

    how = f"{LABEL} -c {clients} -P {pipeline}, XADD only, the same payload, no consumer"
    return Arm("redis", count, size, how, repeat, label=LABEL, needs=unavailable)
