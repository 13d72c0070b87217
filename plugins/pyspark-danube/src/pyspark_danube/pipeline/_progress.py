"""Follows a running stream: progress, lag, and the reason of its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danube.model import errors

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Progress", "follow", "plain_errors"]

_POLL_S: Final = 1


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a stream since it was started."""

    rows: int = 0
    """Messages read."""
    batches: int = 0
    """Micro-batches that had messages."""
    rows_per_s: float = 0.0
    """Speed of the last batch that had messages."""
    lag: int = 0
    """Unread messages in the topics, when the last batch was planned."""
    offsets: dict[str, dict[str, int]] = {}
    """For each topic and partition, the first unread offset."""


def follow(query: StreamingQuery, show: Callable[[Progress], object] = lambda _: None) -> Progress:
    """Wait until a query ends; call ``show`` whenever it has made progress.

    Ctrl-C, or any other exception in this thread, stops the query after the current batch and is raised.

    Returns:
        The totals of this run.

    Raises:
        DanubeError: the query failed; see :func:`plain_errors`.
    """
    known = Progress()
    seen = ""
    try:
        with plain_errors():
            ended = False
            while not ended:
                ended = bool(query.awaitTermination(_POLL_S))
                for report in query.recentProgress:
                    if report["timestamp"] > seen:
                        seen = report["timestamp"]
                        latest = _add(known, msgspec.json.decode(report.json))
                        if latest != known:
                            known = latest
                            show(known)
    finally:
        if query.isActive:
            query.stop()
    return known


def _add(known: Progress, report: Mapping[str, Any]) -> Progress:
    """Return the progress after one more report of Spark."""
    rows = report["numInputRows"]
    offsets: dict[str, dict[str, int]] = {}
    lag = 0
    for source in report["sources"]:
        reached, there = _positions(source["endOffset"]), _positions(source["latestOffset"])
        offsets |= reached
        for topic, partitions in there.items():
            behind = reached.get(topic, {})
            lag += sum(max(0, end - behind.get(partition, 0)) for partition, end in partitions.items())
    return Progress(
        rows=known.rows + rows,
        batches=known.batches + (1 if rows else 0),
        rows_per_s=report["processedRowsPerSecond"] if rows else known.rows_per_s,
        lag=lag,
        offsets=offsets or known.offsets,
    )


def _positions(offset: Any) -> dict[str, dict[str, int]]:
    """Return the offsets of topics in a report; other sources have other values there."""
    if not isinstance(offset, dict):
        return {}
    return {topic: row for topic, row in offset.items() if topic.startswith("/") and isinstance(row, dict)}


_OURS: Final = re.compile(r"danube\.model\.errors\.(\w+): ([^\n]*)")
_NOISE: Final = re.compile(r"\s*SQLSTATE: \w+")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Convert Spark's errors to Danube's: to the one raised inside a Python worker, if there is one.

    Raises:
        InvalidArgumentError: Spark did not understand a query, an option or a schema.
        DanubeError: any other failure of Spark, or the error of a worker itself.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        ours = _OURS.search(text)
        kind = getattr(errors, ours[1], None) if ours else None
        if ours and isinstance(kind, type) and issubclass(kind, errors.DanubeError):
            raise kind(_NOISE.sub("", ours[2])) from error
        said = _said(text)
        if isinstance(error, AnalysisException | ParseException) or "[DATA_SOURCE_NOT_FOUND]" in said:
            raise errors.InvalidArgumentError(said) from error
        raise errors.DanubeError(f"Spark failed: {said}") from error


def _said(text: str) -> str:
    """Return the line with the error, without the stack or the plan (with all options) that follow it."""
    lines = text.strip().splitlines()
    first = lines[0] if lines else "no reason given"
    if first.startswith("An error occurred while calling") and len(lines) > 1:  # py4j; the next line is Java's
        first = lines[1].removeprefix(": ")
    return _NOISE.sub("", first)
