"""The native API of jobs: Spark queries and other programs report that they run, how far they are, and what failed.

A report is a heartbeat. The broker keeps the last one of each job and topic in memory, until the job says that it is
over, or is silent for ``limits.job_expiry_s``; nothing is stored, so a restarted broker knows a job with its next
report.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["MAX_ERROR_CHARACTERS", "Job", "JobList", "JobMethod", "ListJobs", "ReportJob"]

MAX_ERROR_CHARACTERS: Final = 1_000
"""Longest error that is kept; a longer one is cut."""


class JobMethod:
    """Paths of the native calls."""

    REPORT: Final = "/danube.native.v1.Jobs/Report"
    LIST: Final = "/danube.native.v1.Jobs/List"


class ReportJob(msgspec.Struct, array_like=True, gc=False):
    """A heartbeat of a job, about one of its topics. Answered with Done."""

    name: str
    """Of the job."""
    topic: str
    """That it reads or writes."""
    kind: str
    """What it is, such as ``spark-read``: letters, digits and dashes."""
    rows: int = 0
    """Rows since its last report."""
    lag: int | None = None
    """Messages that it has still to read; None: it does not read, or does not know."""
    every_s: float = 0.0
    """It reports again within this time; 0: it makes no promise."""
    error: str = ""
    """What has failed since its last report; empty: nothing."""
    over: bool = False
    """The job has ended and is forgotten."""


class ListJobs(msgspec.Struct, array_like=True, gc=False):
    """Asks for the jobs that have reported to the answering broker. Answered with a JobList."""


class Job(msgspec.Struct, array_like=True, gc=False):
    """A job, as of its last report about a topic."""

    name: str
    topic: str
    kind: str
    silent_s: float
    """Seconds since its last report."""
    missing: bool
    """Whether two reports are overdue: it may have died."""
    known_s: float
    """Seconds since its first report to this broker."""
    rows: int
    """Since then."""
    rows_per_s: float
    """Between its last two reports."""
    lag: int | None = None
    error: str = ""
    """Its last error; it may have gone on since."""
    error_s: float | None = None
    """Seconds since that; None: there was none."""


class JobList(msgspec.Struct, array_like=True, gc=False):
    """Jobs, sorted by name and topic."""

    jobs: list[Job]
