"""The command line: run, report, compare."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._plot import plot
from benchmarks._processes import interrupt
from benchmarks._render import compare, render
from benchmarks._results import Options, RunResult, load
from benchmarks._targets import judge
from benchmarks.runner import choose, run_all
from benchmarks.scenarios import ALL_SCENARIOS
from benchmarks.systems import ALL_SYSTEMS

__all__ = ["main"]

QUICK_SCALE = 0.1
QUICK_REPETITIONS = 2
TOOLS = {"redis-benchmark": "redis-tools", "h2load": "nghttp2-client"}
"""Debian packages of load generators."""


def _parser() -> argparse.ArgumentParser:
    titles = "\n".join(f"  {one.name:8}{one.title}" for one in ALL_SCENARIOS.values())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Danube and its peers side by side.",
        epilog=f"scenarios:\n{titles}\n\n"
        "exit status: 0 done; 1 --check and a target was missed or could not be judged, or a system failed; "
        "2 wrong usage; 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="names of scenarios to run; or 'report' and a result file, to render it again",
    )
    parser.add_argument(
        "-s",
        "--scenario",
        action="append",
        default=[],
        metavar="NAME",
        help="a scenario to run; may be repeated; default: all but c1-c7, d1, h1-h6, p1-p7, t1-t3, u1, u2, w1 and w3,"
        " which must be named",
    )
    parser.add_argument("--systems", default="", metavar="A,B", help=f"default: {','.join(ALL_SYSTEMS)}")
    parser.add_argument("-r", "--repetitions", type=int, default=None, help="default 5, in quick mode 2")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages: a look, not a result")
    parser.add_argument("--scale", type=float, default=None, help="factor on message counts; overrides --quick's")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="how long a fixed rate is kept up (d1, h1, h6); default 30",
    )
    parser.add_argument(
        "--sync-delay-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="added to every fdatasync of Danube: 1 and 6 are ordinary disks",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("benchmarks/results"),
        metavar="DIR",
        help="for result.json, report.md and plot.png; default %(default)s",
    )
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="where brokers store (about 6 GB in a full run, h1 40 MB for each second; removed again)",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("A.json", "B.json"),
        help="print the changes from A to B and do nothing else",
    )
    parser.add_argument(
        "--install-tools",
        action="store_true",
        help="as root: fetch redis-benchmark and h2load with apt-get if they are missing",
    )
    return parser


def _install_tools() -> None:
    missing = {program: package for program, package in TOOLS.items() if not shutil.which(program)}
    if not missing or not shutil.which("apt-get"):
        return
    names = " and ".join(missing)
    if os.geteuid() != 0:
        print(f"--install-tools needs root; going on without {names}", file=sys.stderr)
        return
    subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing.values()]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
        print(f"apt-get failed; going on without {names}", file=sys.stderr)


def _write(result: RunResult, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    result.save(directory / "result.json")
    (directory / "report.md").write_text(render(result))
    if problem := plot(result, directory / "plot.png"):
        print(problem, file=sys.stderr)


def _status(result: RunResult, *, check: bool) -> int:
    failed = any(not verdict.met for verdict in judge(result)) or any(one.missing for one in result.scenarios)
    return 1 if check and failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.compare:
            print(compare(load(given.compare[0]), load(given.compare[1])), end="")
            return 0
        if given.words[:1] == ["report"]:
            if len(given.words) != 2:
                parser.error("report needs one result file")
            path = Path(given.words[1])
            result = load(path)
            print(render(result), end="")
            plot(result, path.with_name("plot.png"))
            return _status(result, check=given.check)
        named = [*(word for word in given.words if word != "run"), *given.scenario]
        usual = [name for name, one in ALL_SCENARIOS.items() if one.usual]
        options = Options(
            scenarios=choose(named or usual, list(ALL_SCENARIOS), "scenario"),
            systems=choose([one for one in given.systems.split(",") if one], list(ALL_SYSTEMS), "system"),
            repetitions=given.repetitions or (QUICK_REPETITIONS if given.quick else 5),
            scale=given.scale or (QUICK_SCALE if given.quick else 1.0),
            sync_delay_ms=given.sync_delay_ms,
            seconds=given.seconds,
        )
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if given.install_tools:
        _install_tools()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        result = run_all(options, given.work_dir)
    except KeyboardInterrupt:
        print("interrupted; everything was stopped and removed", file=sys.stderr)
        return 130
    _write(result, given.output)
    print(render(result), end="")
    return _status(result, check=given.check)


if __name__ == "__main__":
    sys.exit(main())
