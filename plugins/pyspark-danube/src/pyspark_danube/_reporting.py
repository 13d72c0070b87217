"""Reports to the broker that a streaming query runs: ``danube jobs list`` shows it.

A source reports every ten seconds from a thread of the driver, a sink with each micro-batch, because its objects live
no longer. A report is a courtesy: one that fails changes nothing for the query. A broker that does not accept any (the
query may not produce to its topic, or the broker is an older one) is not asked again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from danube.model.errors import ClosedError, DanubeError, PermissionDeniedError, UnimplementedError
from danube.model.names import split_partition
from pyspark_danube._positions import messages

if TYPE_CHECKING:
    from danube.client.sync import Client
    from danube.model.query_api import LogState
    from danube.model.stage_api import StagedBatch
    from pyspark_danube._positions import LogKey, Position

__all__ = ["EVERY_S", "MAX_TOPICS", "Reporter", "Standing", "report_batch", "report_failure", "standings"]

EVERY_S: Final = 10.0
"""Time between two reports of a source."""
MAX_TOPICS: Final = 20
"""Topics of a query that are reported; of more, those with the largest lag."""

logger = logging.getLogger("pyspark_danube")


class Standing(NamedTuple):
    """How far a query is in one topic."""

    rows: int
    """Messages that it has read since it began."""
    lag: int
    """Messages that it has still to read."""


def standings(
    first: Mapping[LogKey, Position], now: Mapping[LogKey, Position], states: Mapping[LogKey, LogState]
) -> dict[str, Standing]:
    """Return how far a query is in each of its topics.

    Args:
        first: where it began.
        now: the next messages to read.
        states: of the logs. One that the query has no position in yet is read from its start.
    """
    found: dict[str, Standing] = {}
    for key, state in states.items():
        at = now.get(key)
        offset = state.start_offset if at is None or at.topic_id != state.topic_id else at.offset
        begin = first.get(key)
        since = begin.offset if begin is not None and begin.topic_id == state.topic_id else state.start_offset
        known = found.get(key.topic, Standing(0, 0))
        found[key.topic] = Standing(
            known.rows + messages(since, offset, state.gaps),
            known.lag + messages(max(offset, state.start_offset), state.end_offset, state.gaps),
        )
    return found


class Reporter:
    """Reports a source, in a thread that ends with the process; all methods are thread-safe.

    Args:
        client: connected to the broker.
        name: of the job.
        every_s: time between two reports.
    """

    def __init__(self, client: Client, name: str, *, every_s: float = EVERY_S) -> None:
        self._client = client
        self._name = name
        self._every_s = every_s
        self._lock = threading.Lock()
        self._standings: dict[str, Standing] = {}
        self._told: dict[str, int] = {}
        """Rows of each topic that were reported."""
        self._over = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="danube-report", daemon=True)
        self._thread.start()

    def note(self, found: Mapping[str, Standing]) -> None:
        """Note how far the query is; the first time it is reported at once."""
        with self._lock:
            first = not self._standings
            self._standings = dict(found)
        if first:
            self._wake.set()

    def failed(self, error: Exception) -> None:
        """Report at once why the query fails, unless the broker is away."""
        if self._client.connected:
            self._report(str(error))

    def end(self) -> None:
        """Report nothing more, and wait until the thread has ended; the client may be closed then."""
        self._over = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._every_s)
            self._wake.clear()
            if self._over:
                return
            self._report()

    def _report(self, error: str = "") -> None:
        with self._lock:
            found = sorted(self._standings.items(), key=lambda item: -item[1].lag)[:MAX_TOPICS]
            for topic, standing in found:
                rows = standing.rows - self._told.get(topic, 0)
                try:
                    self._client.jobs.report(
                        self._name,
                        topic,
                        kind="spark-read",
                        rows=max(0, rows),
                        lag=standing.lag,
                        every_s=self._every_s,
                        error=error,
                    )
                except (PermissionDeniedError, UnimplementedError) as refusal:
                    self._over = True
                    logger.info("the query is not in the list of jobs: %s", refusal)
                    return
                except ClosedError:  # the client of the query, which has ended
                    self._over = True
                    return
                except DanubeError as problem:
                    logger.debug("a report of job %s failed: %s", self._name, problem)
                    return
                self._told[topic] = standing.rows


def report_batch(client: Client, job: str, stages: Iterable[StagedBatch]) -> None:
    """Report that a sink has committed a micro-batch. Errors are logged and have no other effect."""
    rows: dict[str, int] = {}
    for stage in stages:
        topic = (split_partition(stage.topic) or (stage.topic, 0))[0]
        rows[topic] = rows.get(topic, 0) + stage.records
    for topic, count in sorted(rows.items(), key=lambda item: -item[1])[:MAX_TOPICS]:
        if not _told(client, job, topic, rows=count):
            return


def report_failure(client: Client, job: str, topics: Iterable[str], error: str) -> None:
    """Report that a sink has dropped a micro-batch; as :func:`report_batch`."""
    for topic in sorted({(split_partition(topic) or (topic, 0))[0] for topic in topics})[:MAX_TOPICS]:
        if not _told(client, job, topic, error=error):
            return


def _told(client: Client, job: str, topic: str, *, rows: int = 0, error: str = "") -> bool:
    try:
        client.jobs.report(job, topic, kind="spark-write", rows=rows, error=error)
    except DanubeError as problem:
        logger.debug("a report of job %s failed: %s", job, problem)
        return False
    return True
