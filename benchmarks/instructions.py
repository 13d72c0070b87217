"""Instructions per message, counted: ``python -m benchmarks.instructions`` tells two commits apart on a busy machine.

Times on a shared machine differ by tens of percent from run to run, so they cannot show that a change costs 2 %.
Instructions can. Each scenario is a fixed program (:mod:`benchmarks.counting.programs`), a broker and its clients in
one process on a simulated disk and network in virtual time, so it does the same in every run; Valgrind counts its
instructions, those of the interpreter and of all libraries included. Two runs of one checkout count the same; two
checkouts of one commit differ by up to 0.8 %, as objects at other addresses have other hashes.

A program is warmed up, and then runs with n and with 2n messages; the difference divided by n is free of what it costs
to begin and to end. To compare a change with the commit before it, with the same programs on the same simulation:

    git worktree add /tmp/before HEAD~1
    python -m benchmarks.instructions --tree /tmp/before -o /tmp/before.results
    python -m benchmarks.instructions --compare /tmp/before.results

What it leaves out: real system calls, sockets, threads and disks; Python's garbage collector, which is off; caches and
branches, so an instruction is not always as long as another; and batches are as large as the simulated delays make
them, which is shown as writes per message. Figures are for comparisons, not for predictions of time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from benchmarks._render import number
from benchmarks.counting import callgrind
from benchmarks.counting.programs import PROGRAMS
from benchmarks.runner import choose

__all__ = ["Count", "Result", "compare", "count_instructions", "load", "main", "render"]

SCHEMA = 1
FILE = "instructions.json"
_HERE = Path(__file__).resolve().parents[1]
_TIMEOUT_S = 3600.0
_WARM_UP_SHARE = 0.5


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a program that was counted by itself."""

    messages: int
    instructions: int
    writes: int
    """Of the journal, to the simulated disk."""
    syncs: int
    network_bytes: int
    """That arrived, in both directions."""
    virtual_s: float


class Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scenario: the same with n and with 2n messages."""

    name: str
    title: str
    calls: str
    small: Part
    large: Part

    def per_message(self, value: Callable[[Part], float]) -> float:
        """What each further message adds to a value of the parts."""
        return (value(self.large) - value(self.small)) / (self.large.messages - self.small.messages)

    @property
    def instructions(self) -> float:
        """Instructions per message."""
        return self.per_message(lambda part: part.instructions)


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole run."""

    schema: int
    commit: str
    """What ``git describe`` says of the measured tree; its directory's name without Git."""
    python: str
    valgrind: str
    scale: float
    counts: list[Count]

    def of(self, name: str) -> Count | None:
        """The count of a scenario, or None."""
        return next((one for one in self.counts if one.name == name), None)

    def save(self, directory: Path) -> None:
        """Write the file, as indented JSON, into a directory that is made if missing."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def load(path: Path) -> Result:
    """Read a result file, or that of a directory.

    Raises:
        ValueError: it is not a result file, or one of another schema.
        OSError: it cannot be read.
    """
    path = path / FILE if path.is_dir() else path
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not a result of benchmarks.instructions: {error}") from error
    if result.schema != SCHEMA:
        raise ValueError(f"{path} has schema {result.schema}, this program reads {SCHEMA}; count again")
    return result


def count_instructions(name: str, tree: Path, scale: float = 1.0) -> Count:
    """Count one scenario with the broker and client of a tree; takes Valgrind some ten seconds, at full scale.

    Raises:
        RuntimeError: the program failed, or Valgrind did.
        subprocess.TimeoutExpired: it took more than an hour.
    """
    program = PROGRAMS[name]
    count = max(20, int(program.messages * scale))
    counts = (max(10, int(count * _WARM_UP_SHARE)), count, 2 * count)
    with tempfile.TemporaryDirectory(prefix="danube-instructions-") as folder:
        output = Path(folder) / "callgrind"
        command = callgrind.command([sys.executable, "-m", "benchmarks.counting", name, *map(str, counts)], output)
        # Nothing of the caller's environment: its size moves the stack.
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(_HERE),
            "DANUBE_TREE": str(tree.resolve()),
        }
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False)
        if ran.returncode:
            raise RuntimeError(f"{name} ended with status {ran.returncode}:\n{ran.stderr.decode()[-4000:]}")
        found = callgrind.read_counts(output)
    done = msgspec.json.decode(ran.stdout.splitlines()[-1], type=list[dict[str, int | float]])
    if len(found) != len(done):
        raise RuntimeError(
            f"{name}: Valgrind counted {len(found)} of {len(done)} parts:\n{ran.stderr.decode()[-4000:]}"
        )
    parts = [msgspec.convert({**one, "instructions": found[str(index)]}, Part) for index, one in enumerate(done)]
    return Count(name, program.title, program.calls, parts[1], parts[2])


def _said(*command: str) -> str:
    """What a command prints; empty if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _count_all(names: Sequence[str], tree: Path, scale: float, jobs: int) -> Iterator[Count]:
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda name: count_instructions(name, tree, scale), names)


def render(result: Result) -> str:
    """The result as a table."""
    lines = [
        "| scenario | instructions per message | writes | bytes on the network | counted |",
        "|---|---|---|---|---|",
    ]
    for one in result.counts:
        cells = (
            f"{one.name}: {one.title}; {one.calls}",
            f"**{one.instructions:,.0f}**",
            number(one.per_message(lambda part: part.writes)),
            number(one.per_message(lambda part: part.network_bytes)),
            f"{one.small.messages:,} and {one.large.messages:,} messages",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def compare(before: Result, after: Result) -> str:
    """Two results side by side: each scenario that both have, with the ratio of their instructions."""
    lines = [
        f"| instructions per message | {before.commit or 'before'} | {after.commit or 'after'} | ratio | writes |",
        "|---|---|---|---|---|",
    ]
    for new in after.counts:
        old = before.of(new.name)
        if old is None:
            continue
        writes = [number(one.per_message(lambda part: part.writes)) for one in (old, new)]
        cells = (
            new.name,
            f"{old.instructions:,.0f}",
            f"{new.instructions:,.0f}",
            f"**{new.instructions / old.instructions:.4f}**",
            writes[0] if writes[0] == writes[1] else " → ".join(writes),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description=__doc__,
        epilog="exit status: 0 done; 1 a program failed; 2 wrong usage, or Valgrind is missing.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios to count; default: all")
    parser.add_argument(
        "--tree", type=Path, default=_HERE, metavar="DIR", help="a checkout, whose package danube is counted"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of messages")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="scenarios at a time; the counts do not change"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("benchmarks/results"),
        metavar="DIR",
        help=f"for {FILE}; default %(default)s",
    )
    parser.add_argument(
        "--compare", type=Path, metavar="DIR", help="print the ratios to the result there, too; may be a file"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        names = choose(given.names or list(PROGRAMS), list(PROGRAMS), "scenario")
        before = load(given.compare) if given.compare else None
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if not (given.tree / "danube" / "__init__.py").is_file():
        parser.error(f"{given.tree} has no package danube")
    if reason := callgrind.unavailable():
        print(reason, file=sys.stderr)
        return 2
    counts = []
    try:
        for one in _count_all(names, given.tree, given.scale, given.jobs):
            print(f"{one.name}: {one.instructions:,.0f} instructions per message", file=sys.stderr, flush=True)
            counts.append(one)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    commit = _said("git", "-C", str(given.tree), "describe", "--always", "--dirty") or given.tree.resolve().name
    version = _said("valgrind", "--version")
    result = Result(SCHEMA, commit, sys.version.partition(" ")[0], version, given.scale, counts)
    result.save(given.output)
    print(render(result), end="")
    if before is not None:
        print()
        print(compare(before, result), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
