"""What jobs have reported: the last report of each, for a bounded time and of a bounded number. Pure."""

from __future__ import annotations

import math
import re
from typing import Final

from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.job_api import MAX_ERROR_CHARACTERS, Job, ReportJob
from danube.model.limits import Limits
from danube.model.names import validate_name, validate_topic

__all__ = ["JobBook"]

_KIND: Final = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
_OVERDUE: Final = 2
"""So many missing reports make a job a missing one."""


class _Entry:
    __slots__ = ("error", "error_at", "first_at", "last_at", "rate", "report", "rows")

    def __init__(self, report: ReportJob, now: float) -> None:
        self.report = report
        self.first_at = self.last_at = now
        self.rows = report.rows
        self.rate = 0.0
        self.error = ""
        self.error_at: float | None = None

    def again(self, report: ReportJob, now: float) -> None:
        """Note a further report."""
        passed = now - self.last_at
        self.rate = report.rows / passed if passed > 0 else self.rate
        self.report = report
        self.last_at = now
        self.rows += report.rows


class JobBook:
    """The jobs that have reported to a broker.

    Args:
        limits: ``max_jobs`` and ``job_expiry_s``.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: dict[tuple[str, str], _Entry] = {}
        """By name and topic; that which has been silent for the longest time is the first."""

    def note(self, report: ReportJob, now: float) -> None:
        """Note a report.

        Args:
            report: of a job.
            now: seconds, of a clock that never goes back.

        Raises:
            InvalidArgumentError, InvalidNameError: the report is invalid.
            LimitExceededError: ``max_jobs`` are known already.
        """
        _check(report)
        self._forget_silent(now)
        key = report.name, report.topic
        entry = self._entries.pop(key, None)
        if report.over:
            return
        if entry is None:
            if len(self._entries) >= self._limits.max_jobs:
                raise LimitExceededError(
                    f"job {report.name!r} cannot be listed: {len(self._entries)} jobs and topics are, and"
                    f" limits.max_jobs is {self._limits.max_jobs}; those that are silent for limits.job_expiry_s are"
                    " forgotten"
                )
            entry = _Entry(report, now)
        else:
            entry.again(report, now)
        self._entries[key] = entry
        if report.error:
            entry.error, entry.error_at = report.error[:MAX_ERROR_CHARACTERS], now

    def jobs(self, now: float) -> list[Job]:
        """Return the jobs, sorted by name and topic."""
        self._forget_silent(now)
        return [_shown(entry, now) for _, entry in sorted(self._entries.items())]

    def _forget_silent(self, now: float) -> None:
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if now - entry.last_at < self._limits.job_expiry_s:
                return
            del self._entries[key]


def _shown(entry: _Entry, now: float) -> Job:
    report, silent_s = entry.report, now - entry.last_at
    missing = bool(report.every_s) and silent_s > (_OVERDUE + 1) * report.every_s
    return Job(
        name=report.name,
        topic=report.topic,
        kind=report.kind,
        silent_s=silent_s,
        missing=missing,
        known_s=now - entry.first_at,
        rows=entry.rows,
        rows_per_s=0.0 if missing else entry.rate,
        lag=report.lag,
        error=entry.error,
        error_s=None if entry.error_at is None else now - entry.error_at,
    )


def _check(report: ReportJob) -> None:
    validate_name("job", report.name)
    validate_topic(report.topic)
    if not _KIND.fullmatch(report.kind):
        raise InvalidArgumentError(f"the kind {report.kind!r} of a job is not a name of letters, digits and dashes")
    if report.rows < 0 or (report.lag is not None and report.lag < 0):
        raise InvalidArgumentError(f"job {report.name!r}: rows and lag must not be negative")
    if not 0 <= report.every_s < math.inf:
        raise InvalidArgumentError(f"job {report.name!r}: every_s = {report.every_s} must be at least 0 and finite")
