"""What a scenario is: arms that do the same thing with different systems, and targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks._run import Run, Sample

__all__ = ["Arm", "Scenario", "Target"]


@dataclass(frozen=True)
class Arm:
    """One system's part in a scenario."""

    system: str
    """Which server it needs; a key of :data:`benchmarks.systems.ALL_SYSTEMS`."""
    count: int
    """Messages of a repetition in a full run; slow systems get fewer, so that all take a few seconds."""
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

    @property
    def name(self) -> str:
        """The arm's name in the results."""
        return self.label or self.system


@dataclass(frozen=True)
class Target:
    """What Danube has to reach: a number, or a multiple of what a peer reached in the same run."""

    scenario: str
    metric: str
    limit: float
    at_least: bool = True
    """Whether more is better."""
    against: str = ""
    """The arm to compare with; empty for an absolute limit."""


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
