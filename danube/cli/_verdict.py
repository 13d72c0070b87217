"""Judges what monitoring asks for: a status, one line, and figures in the notation of Nagios. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from danube.cli._durations import human_duration
from danube.cli._output import human_messages, plural
from danube.cli._overview import Whole
from danube.model.api import BrokerInfo
from danube.model.errors import InvalidArgumentError
from danube.model.overview_api import Finding

__all__ = ["Level", "Status", "line_of", "parse_level", "verdict_of"]

CRITICAL_KINDS: Final = frozenset({"topic-stopped", "topic-unavailable", "disk-full", "silent"})
"""Findings that are critical; the others are warnings."""


class Status(enum.IntEnum):
    """The exit codes that monitoring plugins have."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Level(NamedTuple):
    """From which values on a figure is a warning, and critical; None: never."""

    warning: float | None = None
    critical: float | None = None

    def judge(self, value: float) -> Status:
        """Return the status of a value: a level itself is still good."""
        if self.critical is not None and value > self.critical:
            return Status.CRITICAL
        return Status.WARNING if self.warning is not None and value > self.warning else Status.OK

    def shown(self) -> str:
        """Return the two levels as performance data have them."""
        return ";".join("" if each is None else f"{each:g}" for each in self)


def parse_level(name: str, texts: Sequence[float]) -> Level:
    """Return the levels of an option: without a value none, one value is critical, of two the first one is a warning.

    Raises:
        InvalidArgumentError: there are more, or they are in the wrong order.
    """
    if len(texts) < 2:
        return Level(None, *texts)
    if len(texts) != 2 or texts[0] > texts[1]:
        raise InvalidArgumentError(f"{name} takes one value, or WARNING,CRITICAL in this order")
    return Level(*texts)


def verdict_of(
    info: BrokerInfo, found: Sequence[Whole], findings: Sequence[Finding], lag: Level, age: Level
) -> tuple[Status, str]:
    """Return the status, and the line to print."""
    status, reasons = Status.OK, []
    for finding in findings:
        critical = finding.kind in CRITICAL_KINDS
        status = max(status, Status.CRITICAL if critical else Status.WARNING)
        reasons.append(finding.sentence)
    behind = max(found, key=lambda each: each.backlog_messages, default=None)
    oldest = max(found, key=lambda each: each.oldest_age_s, default=None)
    most = behind.backlog_messages if behind is not None else 0
    age_s = max(0.0, oldest.oldest_age_s) if oldest is not None else 0.0
    if behind is not None and (bad := lag.judge(most)):
        status = max(status, bad)
        reasons.append(f"{behind.topic} {behind.subscription} is behind by {human_messages(most)}")
    if oldest is not None and (bad := age.judge(age_s)):
        status = max(status, bad)
        reasons.append(f"the oldest message of {oldest.topic} {oldest.subscription} is {human_duration(age_s)} old")
    topics = len({each.topic for each in found})
    good = (
        f"{plural(len(found), 'subscription')} of {plural(topics, 'topic')}, {plural(info.connections, 'connection')}"
    )
    used = 100 * info.journal_used_bytes / max(1, info.journal_limit_bytes)
    figures = [
        f"lag={most};{lag.shown()};0",
        f"age={age_s:.0f}s;{age.shown()};0",
        f"connections={info.connections};;;0;{info.max_connections or ''}",
        f"journal={used:.1f}%;80;;0;100",
        f"memory={info.memory_bytes}B;;;0",
    ]
    return status, line_of(status, "; ".join(reasons) or good, figures)


def line_of(status: Status, text: str, figures: Sequence[str] = ()) -> str:
    """Return the one line of a plugin; ``|`` separates the figures, so a text has none."""
    line = f"DANUBE {status.name} - {' '.join(text.split()).replace('|', '/')}"
    return f"{line} | {' '.join(figures)}" if figures else line
