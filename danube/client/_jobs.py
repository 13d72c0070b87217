"""Jobs that report to the broker that they run: ``client.jobs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.client._checks import check_count, check_seconds
from danube.client._everywhere import everywhere
from danube.model import api
from danube.model.job_api import Job, JobList, JobMethod, ListJobs, ReportJob
from danube.model.names import validate_name, validate_topic

if TYPE_CHECKING:
    from danube.client._pool import Pool

__all__ = ["Jobs"]


class Jobs:
    """Reports jobs and lists them; it is :attr:`Client.jobs`.

    A job is a program that reads or writes topics for long, such as a Spark query. It reports every few seconds that it
    runs, and people see it in ``danube jobs list``. Brokers keep reports in memory only.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def report(
        self,
        name: str,
        topic: str,
        *,
        kind: str,
        rows: int = 0,
        lag: int | None = None,
        every_s: float = 0.0,
        error: str = "",
        over: bool = False,
    ) -> None:
        """Report that a job runs; one call for each of its topics. Takes the right to produce on the topic.

        Args:
            name: of the job.
            topic: that it reads or writes.
            kind: what it is, for example ``"spark-read"``: letters, digits and dashes.
            rows: since its last report.
            lag: messages that it has still to read; None: it does not read, or does not know.
            every_s: it reports again within this time, and is shown as missing if it does not; 0: no promise.
            error: what has failed since its last report; empty: nothing.
            over: it has ended, and is not to be listed any more.

        Raises:
            InvalidArgumentError: a value is out of range.
            LimitExceededError: the broker lists ``limits.max_jobs`` jobs already.
        """
        validate_name("job", name)
        validate_topic(topic)
        check_count("rows", rows)
        check_seconds("every_s", every_s, zero=True)
        if lag is not None:
            check_count("lag", lag)
        request = ReportJob(name, topic, kind, rows, lag, every_s, error, over)
        timeout_s = self._pool.options.request_timeout_s
        await self._pool.unary(JobMethod.REPORT, request, api.Done, timeout_s=timeout_s, route=self._pool.route(topic))

    async def describe(self) -> list[Job]:
        """Return the jobs that have reported to any broker, sorted by name and topic; of each, the last report.

        Raises:
            DanubeError: a broker does not answer.
        """
        latest: dict[tuple[str, str], Job] = {}
        for found in await everywhere(self._pool, JobMethod.LIST, ListJobs(), JobList):
            for job in found.jobs:
                known = latest.get((job.name, job.topic))
                if known is None or job.silent_s < known.silent_s:
                    latest[job.name, job.topic] = job
        return [job for _, job in sorted(latest.items())]
