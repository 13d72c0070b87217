"""The command line: ``python -m tests.mutation --sample 1000 --seed 7 --packages log dispatch``."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from .judged import Judged
from .operators import mutants_of
from .recording import RecordingError, record
from .report import Summary, survivor_text, table
from .sampling import choose, draw
from .session import Session, Task, Verdict
from .targets import PACKAGES, ROOT, TESTS, own_tests, package_of, sources_of

_PLACEBO_EACH = 25


def main() -> int:
    """Try mistakes; return 1 if fewer than ``--floor`` of them are noticed, or some could not be tried."""
    arguments = _arguments()
    seed = _fresh_seed() if arguments.seed is None else arguments.seed
    sources = {source.name: source for source in sources_of(arguments.packages)}
    everything = {name: list(mutants_of(source)) for name, source in sources.items()}
    drawn = draw(everything, None if arguments.all else arguments.sample, seed)
    if arguments.only:
        drawn = [mutant for mutant in drawn if arguments.only in f"{mutant.module}.{mutant.function}"]
    print(f"{len(drawn)} of {sum(map(len, everything.values()))} mistakes, seed {seed}", flush=True)  # noqa: T201
    try:
        known = record(arguments.tests, arguments.cache, arguments.jobs)
    except RecordingError as error:
        print(f"no mistake was tried: {error}", file=sys.stderr)  # noqa: T201
        return 1

    judged = Judged()
    outcomes: list[tuple[str, str]] = []
    tasks: list[Task] = []
    for index, mutant in enumerate(drawn):
        source = sources[mutant.module]
        if not source.changes(mutant):
            continue
        if judged.reason(source, mutant) is not None:
            outcomes.append((mutant.module, "equivalent"))
            continue
        reaching = known.tests(str(source.path.relative_to(ROOT)), mutant.lines, math.inf)
        tests = choose(reaching, known.durations, own_tests(package_of(mutant.module)), arguments.budget)
        tasks.append(Task(source, mutant, tests))
        if index % _PLACEBO_EACH == _PLACEBO_EACH - 1:
            tasks.append(Task(None, None, tests))

    survivors: list[Verdict] = []
    unsteady: list[Verdict] = []
    begun = time.monotonic()
    done = 0
    log = arguments.cache / "verdicts.jsonl"

    def tell(verdict: Verdict) -> None:
        nonlocal done
        done += 1
        mutant = verdict.task.mutant
        if mutant is None:
            if verdict.outcome not in {"survived", "unreached"}:
                unsteady.append(verdict)
            return
        outcomes.append((mutant.module, verdict.outcome))
        if verdict.outcome in {"survived", "unreached"}:
            survivors.append(verdict)
            print("\n".join(survivor_text(verdict)), flush=True)  # noqa: T201
        with log.open("a") as out:
            out.write(
                json.dumps(
                    [
                        mutant.module,
                        mutant.function,
                        mutant.operator,
                        mutant.start[0],
                        verdict.outcome,
                        verdict.by,
                        round(verdict.took_s, 2),
                        len(verdict.task.tests),
                    ]
                )
                + "\n"
            )
        if done % 50 == 0:
            print(f"... {done} of {len(tasks)} after {time.monotonic() - begun:.0f} s", flush=True)  # noqa: T201

    session = Session(tasks, known, arguments.jobs, tell)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "tests.mutation.examples"]
    ended = pytest.ExitCode.OK
    if tasks:
        ended = pytest.ExitCode(
            pytest.main([*options, *(str(ROOT / name) for name in arguments.tests)], plugins=[session])
        )
    if done < len(tasks):
        print(f"pytest ended ({ended.name}) after {done} of {len(tasks)} mistakes: the others were not tried")  # noqa: T201
        return 1

    print("\n".join(table(outcomes)))  # noqa: T201
    for verdict in unsteady:
        print(f"fails without any mistake, so what it noticed is in doubt: {verdict.by} ({verdict.outcome})")  # noqa: T201
    for identity in judged.stale(sources) if set(arguments.packages) == set(PACKAGES) else []:
        print(f"listed as equivalent, but no longer there: {identity}")  # noqa: T201
    total = Summary(outcome for _, outcome in outcomes)
    if total["impossible"]:
        print(f"{total['impossible']} could not be made in modules that are loaded")  # noqa: T201
    print(f"noticed {total.ratio:.1%} of {total.tried} in {time.monotonic() - begun:.0f} s; seed {seed}")  # noqa: T201
    return int(total.ratio < arguments.floor)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=100, help="how many mistakes to draw (default: 100)")
    parser.add_argument("--all", action="store_true", help="try all there are")
    parser.add_argument("--seed", type=int, help="which to draw (default: by today's date and the commit)")
    parser.add_argument("--packages", nargs="+", choices=list(PACKAGES), default=list(PACKAGES))
    parser.add_argument("--only", help="of those drawn, the ones whose module and function contain this")
    parser.add_argument(
        "--floor", type=float, default=0.0, help="exit with 1 if a smaller share is noticed, such as 0.95"
    )
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests to run for one mistake at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".mutants", help="where to keep which test reaches which line"
    )
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def _fresh_seed() -> int:
    """A different one for each day and commit, and the same one for a repetition."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    day = datetime.now(UTC).strftime("%Y%m%d")
    return int(day) * 10_000 + int(commit[:4] or "0", 16) % 10_000


if __name__ == "__main__":
    sys.exit(main())
