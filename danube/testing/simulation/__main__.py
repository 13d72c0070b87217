"""``python -m danube.testing.simulation``: one world, a number of them, or as many as fit into some time.

Each world runs in a process of its own, with ``PYTHONHASHSEED=0``: what a seed does depends on nothing else then.
The exit code is 1 if a world has a violation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from danube.testing.simulation.world import run_world

_WORLD_TIMEOUT_S = 600
"""Real seconds after which a world is taken to be in an endless loop."""


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m danube.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one world")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every line of the trace")
    parser.add_argument("--json", action="store_true", help="with --seed: print the report as JSON")
    parser.add_argument("--seeds", type=int, help="run so many worlds, from --first on")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--minutes", type=float, help="run worlds with random seeds for so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worlds at a time (default: all CPUs)")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts would have another order in each process.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    if options.seed is not None:
        return _one(options.seed, trace=options.trace, as_json=options.json)
    if options.minutes is not None:
        return _many(_until(time.monotonic() + options.minutes * 60), options.jobs)
    return _many(iter(range(options.first, options.first + (options.seeds or 20))), options.jobs)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _one(seed: int, *, trace: bool, as_json: bool) -> int:
    report = run_world(seed, show=_say if trace else None)
    if as_json:
        _say(json.dumps(report._replace(story=[])._asdict()))
    else:
        _say(f"seed {seed}: digest {report.digest}, {report.virtual_s:.1f} virtual seconds")
        _say(
            f"published {report.published}, acknowledged {report.acknowledged}, delivered {report.delivered},"
            f" audited {report.audited} messages"
        )
        _say(", ".join(f"{what} {count}" for what, count in report.counts.items()))
        for violation in report.violations:
            _say(f"VIOLATION: {violation}")
    return 1 if report.violations else 0


def _until(end_s: float) -> Iterator[int]:
    while time.monotonic() < end_s:
        yield random.getrandbits(32)


def _many(seeds: Iterator[int], jobs: int) -> int:
    totals: Counter[str] = Counter()
    virtual_s = 0.0
    messages = worlds = 0
    failed: list[int] = []
    began_s = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(_in_process, seed) for seed, _ in zip(seeds, range(jobs), strict=False)}
        while running:
            done = next(as_completed(running))
            running.remove(done)
            seed, report, trouble = done.result()
            worlds += 1
            violations = [trouble] if report is None else report["violations"]
            if report is not None:
                totals.update(report["counts"])
                virtual_s += report["virtual_s"]
                messages += report["audited"] + report["delivered"]
            if violations:
                failed.append(seed)
                _say(f"seed {seed} FAILED:")
                for violation in violations:
                    _say(f"  {violation}")
            for following in seeds:
                running.add(pool.submit(_in_process, following))
                break
    elapsed_s = time.monotonic() - began_s
    _say(
        f"{worlds} worlds, {virtual_s / 3600:.2f} virtual hours in {elapsed_s:.0f} s"
        f" ({virtual_s / elapsed_s:.0f} virtual seconds a second), {messages} messages checked, {len(failed)} failed"
    )
    _say("what happened: " + ", ".join(f"{what} {count}" for what, count in sorted(totals.items())))
    if failed:
        _say("failing seeds: " + " ".join(map(str, sorted(failed))))
    return 1 if failed else 0


def _in_process(seed: int) -> tuple[int, dict[str, Any] | None, str]:
    """Run a world in a process of its own; return (seed, report or None, what went wrong without a report)."""
    command = [sys.executable, "-m", "danube.testing.simulation", "--seed", str(seed), "--json"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_WORLD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return seed, None, f"the world did not end within {_WORLD_TIMEOUT_S} s: an endless loop?"
    try:
        return seed, json.loads(ended.stdout), ""
    except ValueError:
        return seed, None, f"the world broke: {ended.stderr[-2000:]}"


if __name__ == "__main__":
    sys.exit(main())
