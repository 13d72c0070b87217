"""``danube jobs``: the jobs that read or write topics, as far as they report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import human_duration
from danube.cli._output import Output, OutputOption, print_json, show_rows

if TYPE_CHECKING:
    from danube.model.job_api import Job

__all__ = ["jobs_app"]

jobs_app = typer.Typer(no_args_is_help=True, help="List jobs, such as Spark queries, that report to the broker.")

_COLUMNS = ["job", "topic", "kind", "state", "lag", "rows", "rows/s", "last error"]


@jobs_app.command("list")
def list_jobs(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List jobs with their lag, their rate, and their last error.

    A job is missing if two of its reports are overdue, and forgotten after an hour (limit job_expiry_s). Brokers keep
    reports in memory: after a restart, a job is listed again with its next report.
    """
    found = run_with_client(lambda client: client.jobs.describe(), url, context)
    if output is Output.JSON:
        print_json([to_plain(job) for job in found])
        return
    show_rows([_row(job) for job in found], _COLUMNS, output)


def _row(job: Job) -> dict[str, Any]:
    error = f"{human_duration(job.error_s)} ago: {job.error}" if job.error_s is not None else ""
    return {
        "job": job.name,
        "topic": job.topic,
        "kind": job.kind,
        "state": f"missing for {human_duration(job.silent_s)}" if job.missing else "reports",
        "lag": job.lag,
        "rows": job.rows,
        "rows/s": round(job.rows_per_s, 1),
        "last error": error,
    }
