"""Runs many worlds on several cores: worker processes that run one seed after the other, and a summary.

A worker reads seeds from its standard input and writes one line of JSON for each to its standard output. Every world
has a watchdog of real time: one that hangs prints its stacks and ends its worker; the
seed is reported, and another worker continues. Workers run with ``PYTHONHASHSEED=0``, so that a seed is the same world
in each of them, and are replaced after some worlds, because garbage is collected between worlds only.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec

from danube.testing.simulation.plan import draw_plan
from danube.testing.simulation.world import Report, run_world

__all__ = ["Summary", "Trouble", "run_many", "work"]

_WORLDS_OF_A_WORKER = 200
_WATCHDOG_S = 300.0
"""Real seconds that a world may take; most take one."""


class Trouble(NamedTuple):
    """A world that failed."""

    seed: int
    what: list[str]
    """Its violations, or how it broke or hung."""
    duration_s: float | None = None
    """Duration of its faults, if not drawn from the seed."""
    kind: str | None = None
    """Its kind, if not drawn from the seed."""

    def told(self) -> str:
        """Return a description for people, with the command that runs the world again."""
        duration = f" --duration {self.duration_s:g}" if self.duration_s is not None else ""
        kind = f" --kind {self.kind}" if self.kind is not None else ""
        again = f"python -m danube.testing.simulation --seed {self.seed}{duration}{kind}"
        return "\n  ".join([f"seed {self.seed} FAILED; run it again with: {again}", *self.what])


class Summary(msgspec.Struct):
    """Totals of many worlds."""

    worlds: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    published: int = 0
    acknowledged: int = 0
    checked: int = 0
    """Messages that were delivered or audited, and compared with what was published."""
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    """How many were injected, by kind."""
    events: Counter[str] = msgspec.field(default_factory=Counter)
    """How often what was traced."""
    troubles: list[Trouble] = []

    def add(self, report: Report, duration_s: float | None = None, kind: str | None = None) -> None:
        """Add the report of a world; ``duration_s`` and ``kind``: as far as they were not drawn from the seed."""
        self.worlds += 1
        self.virtual_s += report.virtual_s
        self.published += report.published
        self.acknowledged += report.acknowledged
        self.checked += report.delivered + report.audited
        self.faults.update(report.faults)
        self.events.update(report.counts)
        if report.violations:
            self.troubles.append(Trouble(report.seed, report.violations, duration_s, kind))

    def lines(self) -> list[str]:
        """Return the summary for a person."""
        speed = self.virtual_s / max(self.real_s, 0.001)
        time_passed = f"{self.virtual_s / 3600:.2f} virtual hours in {self.real_s:.0f} s"
        found = [
            f"{self.worlds} worlds, {time_passed}, {speed:.0f} virtual seconds a second",
            f"messages: {self.published} published, {self.acknowledged} acknowledged, {self.checked} checked",
            f"{sum(self.faults.values())} faults injected: {_listed(self.faults)}",
            f"what happened: {_listed(self.events)}",
            f"{len(self.troubles)} worlds with violations",
        ]
        if self.troubles:
            found.append("failing seeds: " + " ".join(str(each.seed) for each in sorted(self.troubles)))
        return found


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))


def run_many(
    seeds: Iterable[int],
    *,
    jobs: int,
    duration_s: float | None = None,
    kind: str | None = None,
    watchdog_s: float = _WATCHDOG_S,
    found: Callable[[Trouble], None] = lambda trouble: None,
) -> Summary:
    """Run the worlds of many seeds in ``jobs`` processes; blocks.

    Args:
        seeds: may be endless; they are taken as workers become free.
        jobs: worlds at a time.
        duration_s: of the stormy part; None leaves it to the seed.
        kind: of the worlds; None leaves it to the seed.
        watchdog_s: real seconds that one world may take.
        found: called with each world that fails, as soon as it does.
    """
    began_s = time.monotonic()
    waiting, results = iter(seeds), SimpleQueue[Report | Trouble | None]()
    lock = threading.Lock()

    def following() -> int | None:
        with lock:
            return next(waiting, None)

    threads = [
        threading.Thread(target=_feed_workers, args=(following, results, duration_s, kind, watchdog_s), daemon=True)
        for _ in range(jobs)
    ]
    for thread in threads:
        thread.start()
    summary, running = Summary(), jobs
    while running:
        result = results.get()
        if result is None:
            running -= 1
        elif isinstance(result, Trouble):
            summary.worlds += 1
            summary.troubles.append(result)
            found(result)
        else:
            summary.add(result, duration_s, kind)
            if result.violations:
                found(summary.troubles[-1])
    summary.real_s = time.monotonic() - began_s
    return summary


def _feed_workers(
    following: Callable[[], int | None],
    results: SimpleQueue[Report | Trouble | None],
    duration_s: float | None,
    kind: str | None,
    watchdog_s: float,
) -> None:
    """Give seeds to one worker after the other."""
    try:
        seed = following()
        while seed is not None:
            with tempfile.TemporaryFile("w+") as said, _started(said, duration_s, kind, watchdog_s) as worker:
                assert worker.stdin is not None
                assert worker.stdout is not None
                for _ in range(_WORLDS_OF_A_WORKER):
                    line = ""
                    try:
                        worker.stdin.write(f"{seed}\n")
                        worker.stdin.flush()
                        line = worker.stdout.readline()
                    except BrokenPipeError:
                        pass  # it has said why on its standard error
                    if not line:
                        worker.wait()
                        said.seek(0)
                        what = "the world broke or hung:\n" + said.read()[-6000:]
                        results.put(Trouble(seed, [what], duration_s, kind))
                    else:
                        results.put(Report(**json.loads(line)))
                    seed = following()
                    if seed is None or not line:
                        break
                worker.stdin.close()
    finally:
        results.put(None)


def _started(said: Any, duration_s: float | None, kind: str | None, watchdog_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "danube.testing.simulation", "--worker", "--watchdog", str(watchdog_s)]
    if duration_s is not None:
        command += ["--duration", str(duration_s)]
    if kind is not None:
        command += ["--kind", kind]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )


def work(
    seeds: Iterator[str],
    say: Callable[[str], None],
    *,
    duration_s: float | None,
    kind: str | None = None,
    watchdog_s: float,
) -> None:
    """Be a worker: run the worlds of the seeds that come in, and answer each with its report."""
    gc.collect()
    gc.freeze()  # each world begins with a collection, and need not look at the modules again
    for line in seeds:
        seed = int(line)
        faulthandler.dump_traceback_later(watchdog_s, exit=True)
        report = run_world(seed, plan=draw_plan(seed, duration_s=duration_s, kind=kind), keep=1)
        faulthandler.cancel_dump_traceback_later()
        say(json.dumps(report._replace(story=[])._asdict()))
