"""Results as Markdown: one table for the targets, one for each scenario; and the comparison of two results."""

from __future__ import annotations

from benchmarks._results import Machine, Measurement, RunResult, ScenarioResult
from benchmarks._stats import Summary
from benchmarks._targets import Verdict, judge

__all__ = ["compare", "render"]

NOISY = 0.10
"""From this share of foreign CPU time on, a measurement is marked."""


def number(value: float) -> str:
    """Three or more significant digits, thousands separated."""
    magnitude = abs(value)
    return f"{value:,.0f}" if magnitude >= 100 else f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}"


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    return f"**{number(summary.median)}** ({number(summary.low)} - {number(summary.high)})"


def render(result: RunResult) -> str:
    """The whole report."""
    parts = [_head(result), _verdicts(judge(result))]
    parts += [_scenario(one) for one in result.scenarios]
    return "\n\n".join(parts) + "\n"


def _head(result: RunResult) -> str:
    options = result.options
    lines = [
        "# Benchmark",
        "",
        f"{result.started} to {result.finished}. {_machine(result.machine)}",
        "",
        (
            f"Median of {options.repetitions} repetitions (lowest - highest), taken in turns, after a warm-up. "
            "Durability is written beside every figure. CPU is in seconds per million messages. (!) marks "
            f"measurements during which other programs used more than {NOISY:.0%} of the machine's CPU time."
        ),
    ]
    if options.scale != 1:
        lines += ["", f"This was not a full run: message counts were multiplied by {options.scale:g}."]
    if options.sync_delay_ms:
        lines += ["", f"Danube ran with {options.sync_delay_ms:g} ms added to every fdatasync; its peers ran without."]
    return "\n".join(lines)


def _machine(machine: Machine) -> str:
    return (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB, {machine.kernel}, Python "
        f"{machine.python}, {machine.filesystem}; 4 KiB append + fdatasync: p50 {machine.sync_p50_us:.0f} us, "
        f"p99 {machine.sync_p99_us:.0f} us."
    )


def _verdicts(verdicts: list[Verdict]) -> str:
    lines = ["## Targets", "", "| scenario | wanted | measured | |", "|---|---|---|---|"]
    words = {True: "reached", False: "**missed**", None: "not judged"}
    for one in verdicts:
        value = one.reason if one.value is None else number(one.value)
        lines.append(f"| {one.target.scenario} | {one.wanted} | {value} | {words[one.met]} |")
    return "\n".join(lines)


def _scenario(scenario: ScenarioResult) -> str:
    metrics = " | ".join(scenario.metrics)
    lines = [
        f"## {scenario.name}: {scenario.title}",
        "",
        f"| system | durability | {metrics} | broker CPU | producer CPU | consumer CPU | how |",
        "|---|---|" + "---|" * (len(scenario.metrics) + 4),
    ]
    lines += [_row(one, scenario.metrics) for one in scenario.measurements]
    for gone in scenario.missing:
        lines += ["", f"{gone.system}: no figures. {' '.join(gone.reason.split())}"]
    return "\n".join(lines)


def _row(one: Measurement, metrics: list[str]) -> str:
    mark = " (!)" if one.other_cpu > NOISY else ""
    name = one.version if one.system in one.version.lower() else f"{one.system}, {one.version}"
    cells = [_cell(one.summary(metric)) for metric in metrics]
    cpu = [one.cpu(role) for role in ("broker", "producer", "consumer")]
    cells += [number(summary.median) if summary else "-" for summary in cpu]
    return f"| {name}{mark} | {one.durability} | {' | '.join(cells)} | {one.setup} |"


def compare(before: RunResult, after: RunResult) -> str:
    """Two results side by side: every metric that both have, with the change and whether it exceeds the spread."""
    lines = [
        "| scenario | system | metric | before | after | change | beyond the spread |",
        "|---|---|---|---|---|---|---|",
    ]
    for new in after.scenarios:
        old = before.of(new.name)
        for measurement in new.measurements:
            earlier = old.of(measurement.system) if old else None
            if earlier is not None:
                lines += _changes(new, earlier, measurement)
    return "\n".join(lines) + "\n"


def _changes(scenario: ScenarioResult, before: Measurement, after: Measurement) -> list[str]:
    lines = []
    for metric in scenario.metrics:
        old, new = before.summary(metric), after.summary(metric)
        if old is None or new is None or not old.median:
            continue
        apart = "yes" if new.low > old.high or new.high < old.low else "no"
        change = f"{new.median / old.median - 1:+.1%}"
        cells = (scenario.name, after.system, metric, number(old.median), number(new.median), change, apart)
        lines.append(f"| {' | '.join(cells)} |")
    return lines
