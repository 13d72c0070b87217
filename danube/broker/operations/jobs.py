"""Operations on jobs, which report to a broker that they run."""

from __future__ import annotations

import trio

from danube.broker.operations.job_book import JobBook
from danube.model import api
from danube.model.job_api import JobList, ListJobs, ReportJob
from danube.model.limits import Limits

__all__ = ["JobOperations"]


class JobOperations:
    """Operations on jobs. They are in this broker's memory alone.

    Args:
        limits: of the broker.
    """

    def __init__(self, limits: Limits) -> None:
        self._book = JobBook(limits)

    async def report(self, request: ReportJob) -> api.Done:
        """Note a heartbeat.

        Raises:
            InvalidArgumentError, LimitExceededError: see :meth:`JobBook.note`.
        """
        self._book.note(request, trio.current_time())
        await trio.lowlevel.checkpoint()
        return api.Done()

    async def list(self, _request: ListJobs) -> JobList:
        """List the jobs."""
        await trio.lowlevel.checkpoint()
        return JobList(self._book.jobs(trio.current_time()))
