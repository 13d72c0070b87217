"""Shared by the scenarios about Spark: topics with rows of an exact size, and sessions in processes of their own.

A Spark session belongs to one worker process (:mod:`benchmarks.roles.spark`), and only one is alive at a time: two on a
machine with few cores would measure each other. Each repetition has a session of its own, measures both
sides in turns, and reports a ratio, so that variations between sessions (for example of Java's compiler) affect both.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

import psutil

from benchmarks._history import seal
from benchmarks._machine import CpuWatch, cpu_seconds
from benchmarks._processes import Outcome, Work
from benchmarks._run import READY_TIMEOUT_S, Run, Sample

__all__ = [
    "ROW_OVERHEAD_BYTES",
    "SESSIONS",
    "load_and_seal",
    "measure",
    "worker_settings",
    "unavailable",
]

SESSIONS = {
    "tuned": "tuned",
    "plain": "as pyspark_danube.session() makes it",
    "archive": "as pyspark_danube.session() makes it once there is an archive of Spark's classes",
    "warm": "as pyspark_danube.session(warm_up=True) makes it, without an archive",
    "default": "as Spark makes it",
}
"""Kinds of sessions: the setting ``session`` of a worker, and what it means. Tuned is what
``pyspark_danube.session()`` makes with all options for faster queries, plain what it makes without any. The archive is
another thing, since a command makes it: all but one kind do without."""

_PRODUCER = "benchmark"
_TOPIC = "events"

ROW_OVERHEAD_BYTES = 72
"""Of a row without key and attributes in Arrow, beside its payload: names of topic and producer, numbers, bounds."""

_SESSION_TIMEOUT_S = 600.0
"""The first session with an archive makes it before, which takes about a minute on an idle machine."""


def unavailable() -> str | None:
    """Why Spark cannot run here, with the remedy; None if it can."""
    for module, remedy in (
        ("pyspark", "pip install --group spark"),
        ("pyspark_danube", "pip install ./plugins/pyspark-danube"),
    ):
        if find_spec(module) is None:
            return f"the package {module} is not installed; {remedy}"
    from pyspark_danube._java import find_java

    from danube.model.errors import ConfigurationError

    try:
        find_java()
    except ConfigurationError as error:
        return str(error)
    return None


def load_and_seal(run: Run, *, uneven: int = 0) -> None:
    """Store the arm's messages, seal all of them, and remember the topic, their number, and their checksum.

    With ``uneven``, the sizes of payloads differ by up to so many bytes.
    """
    topic = f"/default/{_TOPIC}"  # its name is in every row, so its length counts
    outcome = run.alone(_work(run, "fill", {"name": _PRODUCER, "uneven": uneven}, topic=topic))
    seal(run, topic)
    run.memory.update(topic=topic, count=str(outcome.count), checksum=str(outcome.checksum))


def worker_settings(run: Run) -> dict[str, int | float | str]:
    """Settings of a worker: the checksum of the loaded topic (0 without one), and the directory for files."""
    return {"expected": run.memory.get("checksum", "0"), "directory": str(run.directory), "tag": run.tag}


def measure(
    run: Run, role: str, settings: Mapping[str, int | float | str], *, topic: str = "", count: int | None = None
) -> tuple[Sample, Outcome]:
    """Let a worker open a session, prepare, warm up, and then measure.

    Returns its results, with a sample of the other load on the machine.
    """
    worker = run.processes.worker(_work(run, role, settings, topic=topic, count=count))
    worker.wait_for("ready", max(READY_TIMEOUT_S, _SESSION_TIMEOUT_S))
    worker.send(b"go")
    worker.wait_for("holding", run.result_timeout_s)
    ours = [psutil.Process(worker.pid), run.server.process]
    watch, before = CpuWatch(), sum(map(cpu_seconds, ours))
    worker.send(b"go on")
    worker.wait_for("holding", run.result_timeout_s)
    other = watch.other_share(sum(map(cpu_seconds, ours)) - before)
    worker.send(b"go on")
    outcome = worker.outcome(run.result_timeout_s)
    return Sample(outcome.count, dict(outcome.values), {}, watch.load_1m, other), outcome


def _work(
    run: Run, role: str, settings: Mapping[str, int | float | str], *, topic: str = "", count: int | None = None
) -> Work:
    return Work(
        role=f"spark.{role}",
        address=run.server.address,
        topic=topic or run.memory.get("topic", ""),
        count=run.count if count is None else count,
        size=run.size,
        settings=dict(settings),
    )
