"""Runs the repetitions: each runs all systems once before the next one begins."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks._machine import describe_machine
from benchmarks._payloads import CheckError
from benchmarks._processes import Processes, WorkerError
from benchmarks._render import number as in_digits
from benchmarks._results import (
    SCHEMA,
    Measurement,
    Missing,
    Options,
    Repetition,
    RunResult,
    ScenarioResult,
)
from benchmarks._run import Run, Sample
from benchmarks.scenarios import ALL_SCENARIOS, Arm, Scenario
from benchmarks.systems import Server

__all__ = ["choose", "run_all"]

WARM_UP_SHARE = 0.25


@dataclass
class _Lane:
    """The state of an arm."""

    arm: Arm
    server: Server
    directory: Path
    memory: dict[str, str]
    repetitions: list[Repetition]
    failure: str = ""


def run_all(
    options: Options, work_directory: Path | None = None, say: Callable[[str], None] | None = None
) -> RunResult:
    """Run the chosen scenarios.

    Args:
        options: what to run.
        work_directory: directory for data (removed at the end); None means the system's temporary directory.
        say: receives progress messages; None prints to stderr.
    """
    say = say or (lambda text: print(text, file=sys.stderr, flush=True))
    started = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="danube-benchmark-", dir=work_directory) as name:
        base = Path(name).resolve()
        machine = describe_machine(base)
        say(f"{machine.cpu}, {machine.cores} cores; {machine.filesystem}, fdatasync p50 {machine.sync_p50_us:.0f} us")
        if machine.filesystem in ("tmpfs", "ramfs"):
            say("warning: the data directory is in memory, so nothing here is durable; choose another with --work-dir")
        scenarios = [_run_scenario(ALL_SCENARIOS[one], options, base, say) for one in options.scenarios]
    finished = datetime.now(UTC)
    return RunResult(
        SCHEMA,
        started.isoformat(timespec="seconds"),
        finished.isoformat(timespec="seconds"),
        machine,
        options,
        scenarios,
    )


def _run_scenario(scenario: Scenario, options: Options, base: Path, say: Callable[[str], None]) -> ScenarioResult:
    say(f"{scenario.name}: {scenario.title}")
    missing: list[Missing] = []
    lanes: list[_Lane] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{scenario.name}-", dir=base)))
        processes = stack.enter_context(Processes(directory))
        for arm in scenario.arms:
            if arm.system not in options.systems:
                continue
            lane = arm.unavailable() or _open_lane(arm, processes, directory, options)
            if isinstance(lane, str):
                missing.append(Missing(arm.name, lane.partition("\n")[0]))
                say(f"  {arm.name}: {lane}")
            else:
                lanes.append(lane)
        repetitions = min(options.repetitions, scenario.repetitions_limit)
        for number in range(0 if scenario.warm_up else 1, repetitions + 1):
            for lane in lanes:
                if not lane.failure:
                    _repeat(scenario, lane, number, processes, options, say)
    missing += [Missing(lane.arm.name, lane.failure.partition("\n")[0]) for lane in lanes if lane.failure]
    return ScenarioResult(
        scenario.name,
        scenario.title,
        list(scenario.metrics),
        [_measurement(lane, options) for lane in lanes if not lane.failure],
        missing,
    )


def _open_lane(arm: Arm, processes: Processes, directory: Path, options: Options) -> _Lane | str:
    folder = directory / arm.name
    folder.mkdir()
    try:
        server = arm.starter.start(processes, folder, options.sync_delay_ms)
        lane = _Lane(arm, server, folder, {}, [])
        if arm.prepare is not None:
            arm.prepare(_run_of(lane, "prepare", processes, options, options.scale))
    except (WorkerError, CheckError) as error:
        return str(error)
    return lane


def _run_of(lane: _Lane, tag: str, processes: Processes, options: Options, scale: float) -> Run:
    return Run(
        processes=processes,
        server=lane.server,
        scale=scale,
        directory=lane.directory,
        tag=tag,
        full_count=lane.arm.count,
        size=lane.arm.size,
        sync_delay_ms=options.sync_delay_ms,
        seconds=options.seconds,
        memory=lane.memory,
    )


def _repeat(
    scenario: Scenario, lane: _Lane, number: int, processes: Processes, options: Options, say: Callable[[str], None]
) -> None:
    warm_up = number == 0
    scale = options.scale * (WARM_UP_SHARE if warm_up else 1.0)
    run = _run_of(lane, f"{scenario.name}-{number}", processes, options, scale)
    try:
        sample = lane.arm.repeat(run)
    except (WorkerError, CheckError) as error:
        lane.failure = str(error)
        say(f"  {lane.arm.name}: failed: {error}")
        return
    if warm_up:
        return
    lane.repetitions.append(_to_repetition(sample))
    shown = ", ".join(f"{in_digits(sample.values[one])} {one}" for one in scenario.metrics if one in sample.values)
    busy = f" (other CPU {sample.other_cpu:.0%})" if sample.other_cpu >= 0.1 else ""
    say(f"  {lane.arm.name} #{number}: {shown}{busy}")


def _to_repetition(sample: Sample) -> Repetition:
    per_million = {role: seconds / sample.messages * 1e6 for role, seconds in sample.cpu_s.items() if seconds}
    return Repetition(sample.values, per_million, sample.load_1m, sample.other_cpu)


def _measurement(lane: _Lane, options: Options) -> Measurement:
    arm = lane.arm
    count = _run_of(lane, "", _NO_PROCESSES, options, options.scale).count
    setup = f"{f'{count:,} x ' if arm.count else ''}{arm.size} B; {arm.how}"
    return Measurement(arm.name, lane.server.version, lane.server.durability, setup, lane.repetitions)


_NO_PROCESSES = Processes(Path())
"""For looking at a run's numbers without running anything."""


def choose(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Check names given by the user; none means all.

    Raises:
        ValueError: a name is not known.
    """
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}; known are {', '.join(known)}")
    return [name for name in known if name in names] if names else list(known)
