"""A scenario: arms that do the same with different systems, and targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks._run import Run, Sample
from benchmarks.systems import ALL_SYSTEMS, System

__all__ = ["Arm", "Scenario", "Target"]


@dataclass(frozen=True)
class Arm:
    """One system's part in a scenario."""

    system: str
    """Which server it needs; a key of :data:`benchmarks.systems.ALL_SYSTEMS`."""
    count: int
    """Messages of a repetition in a full run; slow systems get fewer, so that all take a few seconds. 0: not fixed."""
    size: int
    """Payload bytes."""
    how: str
    """The calls that are used, for the report."""
    repeat: Callable[[Run], Sample]
    """Does one repetition."""
    prepare: Callable[[Run], None] | None = None
    """Done once before the first repetition."""
    label: str = ""
    """Name in the results; by default that of the system."""
    server: System | None = None
    """Starts the server, if it is not to be started as usual."""
    needs: Callable[[], str | None] | None = None
    """Says why the arm cannot run here, beyond what its system says."""

    @property
    def name(self) -> str:
        """The arm's name in the results."""
        return self.label or self.system

    @property
    def starter(self) -> System:
        """The function that starts the server."""
        return self.server or ALL_SYSTEMS[self.system]

    def unavailable(self) -> str | None:
        """The reason why the arm cannot run here, with the remedy; None if it can."""
        return self.starter.unavailable() or (self.needs() if self.needs is not None else None)


@dataclass(frozen=True)
class Target:
    """A goal for Danube: a number, or a multiple of another arm's result in the same run, or so much more than it."""

    scenario: str
    metric: str
    limit: float
    at_least: bool = True
    """Whether more is better."""
    against: str = ""
    """The arm to compare with; empty for an absolute limit."""
    arm: str = "danube"
    """The arm that has to reach it."""
    difference: bool = False
    """Whether ``limit`` is what this arm may have more than ``against``, instead of a factor."""


@dataclass(frozen=True)
class Scenario:
    """A row of the report."""

    name: str
    title: str
    metrics: tuple[str, ...]
    """Metrics to print, the most important one first."""
    arms: tuple[Arm, ...]
    targets: tuple[Target, ...]
    repetitions_limit: int = 100
    """Never more repetitions than this, for scenarios that take long and vary little."""
    warm_up: bool = True
    """Whether a first, shorter repetition is thrown away."""
    usual: bool = True
    """Whether it is run when none is named."""
