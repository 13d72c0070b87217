"""The command line of the simulation: runs one world or many, or measures their speed.

``--seed 7`` runs one world here; ``--seeds 0-99999`` (or ``--seeds 100``: from 0 on) and ``--minutes 60`` (seeds that
were never run before, from a base derived from the date and the commit, or from ``--base``) run many in ``--jobs``
processes and end with a summary; ``--speed`` measures. The exit code is 1 if a world has a violation; each one that
fails is reported with the command that runs it again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable

from danube.testing.simulation.fresh import fresh_seeds, present_base
from danube.testing.simulation.plan import KINDS, draw_plan
from danube.testing.simulation.runner import Trouble, run_many, work
from danube.testing.simulation.speed import LOADS, measure
from danube.testing.simulation.world import run_world

__all__ = ["main"]

_SPEED_VIRTUAL_S = 60.0


def main() -> int:
    """Execute the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m danube.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one world")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every line of the trace")
    parser.add_argument("--json", action="store_true", help="with --seed: print the report as JSON")
    parser.add_argument("--seeds", type=_seeds, help="run these worlds: 100 (from 0 on), or 500-999")
    parser.add_argument("--minutes", type=float, help="run worlds with fresh seeds for so long")
    parser.add_argument("--base", type=int, help="with --minutes: the first seed (default: by date and commit)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worlds at a time (default: all CPUs)")
    parser.add_argument("--duration", type=float, help="virtual seconds of storm (default: the seed's)")
    parser.add_argument("--kind", choices=list(KINDS), help="kind of the worlds (default: the seed's)")
    parser.add_argument("--watchdog", type=float, default=300.0, help="real seconds that a world may take")
    parser.add_argument("--speed", action="store_true", help="measure how fast virtual time passes in a calm world")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts would have another order in each process.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    if options.worker:
        seeds = iter(sys.stdin.readline, "")
        work(seeds, _say, duration_s=options.duration, kind=options.kind, watchdog_s=options.watchdog)
        return 0
    if options.speed:
        return _speed()
    if options.seed is not None:
        return _one(options.seed, options.duration, options.kind, trace=options.trace, as_json=options.json)
    worlds: Iterable[int] = options.seeds or range(20)
    if options.minutes is not None:
        base = options.base if options.base is not None else present_base()
        _say(f"fresh seeds from {base} on, for {options.minutes:g} minutes")
        worlds = fresh_seeds(base, options.minutes)
    summary = run_many(
        worlds,
        jobs=options.jobs,
        duration_s=options.duration,
        kind=options.kind,
        watchdog_s=options.watchdog,
        found=_tell,
    )
    if options.minutes is not None:
        _say(f"fresh seeds: {base} to {base + summary.worlds - 1}")
    for line in summary.lines():
        _say(line)
    return 1 if summary.troubles else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _tell(trouble: Trouble) -> None:
    _say(trouble.told())


def _seeds(text: str) -> range:
    first, dash, last = text.partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def _one(seed: int, duration_s: float | None, kind: str | None, *, trace: bool, as_json: bool) -> int:
    report = run_world(seed, plan=draw_plan(seed, duration_s=duration_s, kind=kind), show=_say if trace else None)
    if as_json:
        _say(json.dumps(report._replace(story=[])._asdict()))
    else:
        _say(f"seed {seed}: digest {report.digest}, {report.virtual_s:.1f} virtual seconds")
        _say(
            f"published {report.published}, acknowledged {report.acknowledged}, delivered {report.delivered},"
            f" audited {report.audited} messages"
        )
        _say("faults: " + (", ".join(f"{what} {count}" for what, count in report.faults.items()) or "none"))
        _say("what happened: " + ", ".join(f"{what} {count}" for what, count in report.counts.items()))
        for violation in report.violations:
            _say(f"VIOLATION: {violation}")
    return 1 if report.violations else 0


def _speed() -> int:
    for load in LOADS:
        speed = measure(load, _SPEED_VIRTUAL_S)
        _say(
            f"10 {load} a second and client, batches of 10: {speed.factor:.0f} virtual seconds a second"
            f" ({speed.messages} messages delivered in {speed.virtual_s:.0f} virtual seconds and {speed.cpu_s:.2f} s of"
            f" one core; {speed.passes / speed.virtual_s:.0f} passes of the scheduler a virtual second)"
        )
    return 0
