"""Checks whether the targets were reached."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks._results import RunResult
from benchmarks.scenarios import ALL_SCENARIOS, Target

__all__ = ["Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """One target with the measured value."""

    target: Target
    value: float | None
    """The median, or the ratio or difference of two medians; None if it was not measured."""
    reason: str = ""
    """Why it could not be judged."""

    @property
    def met(self) -> bool | None:
        """None if it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.target.limit if self.target.at_least else self.value <= self.target.limit

    @property
    def wanted(self) -> str:
        """The target in words."""
        arm = f"{self.target.arm}: " if self.target.arm != "danube" else ""
        sign = ">=" if self.target.at_least else "<="
        if self.target.difference:
            return f"{arm}{self.target.metric} {sign} {self.target.against} + {self.target.limit:,.10g}"
        unit = f" x {self.target.against}" if self.target.against else ""
        return f"{arm}{self.target.metric} {sign} {self.target.limit:,.10g}{unit}"


def judge(result: RunResult) -> list[Verdict]:
    """Judge every target of the scenarios that were run."""
    targets = [
        target for one in result.scenarios if one.name in ALL_SCENARIOS for target in ALL_SCENARIOS[one.name].targets
    ]
    return [_judge(target, result) for target in targets]


def _judge(target: Target, result: RunResult) -> Verdict:
    ours = _median(result, target.scenario, target.arm, target.metric)
    if ours is None:
        return Verdict(target, None, f"no figure for {target.arm}")
    if not target.against:
        return Verdict(target, ours)
    if result.options.sync_delay_ms and _is_peer(target):
        return Verdict(target, None, "peers run without the injected delay")
    theirs = _median(result, target.scenario, target.against, target.metric)
    if target.difference and theirs is not None:
        return Verdict(target, ours - theirs)
    return Verdict(target, ours / theirs) if theirs else Verdict(target, None, f"no figure for {target.against}")


def _is_peer(target: Target) -> bool:
    arms = ALL_SCENARIOS[target.scenario].arms
    return any(arm.name == target.against and arm.system != "danube" for arm in arms)


def _median(result: RunResult, scenario: str, system: str, metric: str) -> float | None:
    found = result.of(scenario)
    measurement = found.of(system) if found else None
    summary = measurement.summary(metric) if measurement else None
    return summary.median if summary else None
