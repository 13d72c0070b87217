"""The result file: the measurements of a run, the machine, and the options.

JSON, written by msgspec from the Structs below. ``SCHEMA`` is raised when a field changes its meaning; a reader
refuses any other number. Raw values of every repetition are kept; medians are computed when a report is rendered.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks._stats import Summary, summarise

__all__ = [
    "SCHEMA",
    "Machine",
    "Measurement",
    "Missing",
    "Options",
    "Repetition",
    "RunResult",
    "ScenarioResult",
    "load",
]

SCHEMA = 1


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run took place."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    filesystem: str
    """Type of the file system that held the data, for example ``ext4``; on ``tmpfs`` an fsync costs nothing."""
    sync_p50_us: float
    """Median of a 4 KiB append with fdatasync in the data directory, before anything was started."""
    sync_p99_us: float


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The requested options."""

    scenarios: list[str]
    systems: list[str]
    repetitions: int
    scale: float
    """Factor on all message counts; 1 is a full run."""
    sync_delay_ms: float
    """Added by the Danube broker to every fdatasync; peers have no such option and run without."""
    seconds: float = 30.0
    """How long the scenarios at a fixed rate last."""


class Repetition(msgspec.Struct, forbid_unknown_fields=True):
    """One repetition of one system."""

    values: dict[str, float]
    """By metric; the unit is the end of the metric's name."""
    cpu_s_per_million: dict[str, float]
    """CPU seconds per million messages by role: broker, producer, consumer."""
    load_1m: float
    """The machine's load average when the repetition began."""
    other_cpu: float
    """Share (0..1) of the machine's CPU time during the repetition that none of the measured processes used."""


class Measurement(msgspec.Struct, forbid_unknown_fields=True):
    """One system in one scenario."""

    system: str
    version: str
    durability: str
    setup: str
    """Number and size of messages, and the calls used."""
    repetitions: list[Repetition]

    def summary(self, metric: str) -> Summary | None:
        """Median and extremes of a metric; None if this system does not have it."""
        values = [one.values[metric] for one in self.repetitions if metric in one.values]
        return summarise(values) if values else None

    def cpu(self, role: str) -> Summary | None:
        """CPU seconds per million messages of a role; None if it was not measured."""
        values = [one.cpu_s_per_million[role] for one in self.repetitions if role in one.cpu_s_per_million]
        return summarise(values) if values else None

    @property
    def other_cpu(self) -> float:
        """The worst share of foreign CPU time among the repetitions."""
        return max((one.other_cpu for one in self.repetitions), default=0.0)


class Missing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A system without figures, and the reason."""

    system: str
    reason: str


class ScenarioResult(msgspec.Struct, forbid_unknown_fields=True):
    """One row of the report: a scenario with every system that took part."""

    name: str
    title: str
    metrics: list[str]
    """Metrics to print, the most important one first."""
    measurements: list[Measurement]
    missing: list[Missing]

    def of(self, system: str) -> Measurement | None:
        """The measurement of a system, or None."""
        return next((one for one in self.measurements if one.system == system), None)


class RunResult(msgspec.Struct, forbid_unknown_fields=True):
    """A whole run."""

    schema: int
    started: str
    """UTC, ISO 8601."""
    finished: str
    machine: Machine
    options: Options
    scenarios: list[ScenarioResult]

    def of(self, scenario: str) -> ScenarioResult | None:
        """The result of a scenario, or None."""
        return next((one for one in self.scenarios if one.name == scenario), None)

    def save(self, path: Path) -> None:
        """Write the file as indented JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def load(path: Path) -> RunResult:
    """Read a result file.

    Raises:
        ValueError: it is not a result file, or one of another schema.
        OSError: it cannot be read.
    """
    try:
        result = msgspec.json.decode(path.read_bytes(), type=RunResult)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is not a benchmark result: {error}") from error
    if result.schema != SCHEMA:
        raise ValueError(f"{path} has schema {result.schema}, this program reads {SCHEMA}; run the benchmark again")
    return result
