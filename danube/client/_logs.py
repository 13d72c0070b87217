"""Reading ranges of topics, for query engines: ``client.logs``.

All of these calls only read, so they are repeated when the connection breaks. In a cluster they are made to the owners
of the topics.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from danube.client._checks import (
    LARGEST,
    check_count,
    check_list,
    check_mapping,
    check_offset,
    check_seconds,
    check_text,
)
from danube.client._log_pages import has_news, join_parts
from danube.client._log_reading import LogReading
from danube.client._log_states import StateGatherer
from danube.client._retry import Retry
from danube.model.errors import FailedPreconditionError, InvalidArgumentError, TopicNotFoundError
from danube.model.ids import NO_TOPIC, Offset, TopicId
from danube.model.limits import MIB
from danube.model.names import validate_topic
from danube.model.query_api import (
    FindOffset,
    FoundOffset,
    GetLogParts,
    GetTopicNames,
    LogParts,
    LogPartsPage,
    LogState,
    QueryMethod,
    TopicNames,
    gaps_of,
    name_matcher,
    undeclared_of,
)

if TYPE_CHECKING:
    from danube.client._pool import Pool

__all__ = ["Logs"]

T = TypeVar("T")


class Logs:
    """Finds and reads ranges of topics, for query engines; it is :attr:`Client.logs`.

    Offsets are of messages; ranges are half-open.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._states = StateGatherer(pool)

    async def states(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str = "",
        beyond: Mapping[str, int] | None = None,
        timeout_s: float = 0,
    ) -> list[LogState]:
        """Return the ends of logs: one row for each plain topic or partition, in the order of their names.

        Args:
            topics: plain topics, partitions, or base names of partitioned topics, which stand for all partitions. An
                empty list means all topics, or those that ``pattern`` matches.
            pattern: a Python regular expression that must match the whole plain or base name.
            beyond: known end offsets, by the ``name`` of the rows. The call then waits until a log reaches beyond its
                known end, or there is a log that is not in the mapping: the broker replies when it happens, and is idle
                until then.
            timeout_s: maximum duration of that wait; after it the present states are returned.

        Raises:
            TopicNotFoundError: a named topic does not exist.
            LimitExceededError: more than ``max_log_states`` rows.
            InvalidArgumentError: ``topics`` and ``pattern`` together, or an invalid pattern.
        """
        topics, pattern = check_list("topics", topics, "names"), check_text("pattern", pattern)
        known = None if beyond is None else check_mapping("beyond", beyond, "names to offsets")
        timeout_s = check_seconds("timeout_s", timeout_s, zero=True)
        matches = name_matcher(topics, pattern)
        deadline = anyio.current_time() + timeout_s
        while True:
            names, version = topics, 0
            if not topics:
                found = await self._query(QueryMethod.NAMES, GetTopicNames(), TopicNames)
                names, version = [name for name in found.names if matches is None or matches(name)], found.version
            wait_s = 0.0 if known is None else max(0.0, deadline - anyio.current_time())
            try:
                states = await self._states.states(names, known, wait_s, version)
            except TopicNotFoundError:
                if topics:
                    raise
                continue  # deleted since: it is no longer among the names
            if not wait_s or known is None or has_news(states, known):
                return states

    async def parts(self, topic: str, start: int = 0, end: int | None = None) -> LogParts:
        """Return the places of the sealed batches of a range of offsets, for reading them from the storage.

        Args:
            topic: a plain topic or one partition.
            start, end: the range; None is the end of the log.

        Raises:
            TopicNotFoundError: the topic does not exist.
            FailedPreconditionError: it stores no messages (durability ``none``), or was recreated during the call.
        """
        validate_topic(topic)
        begin = Offset(check_offset("start", start))
        limit = Offset(LARGEST if end is None else check_offset("end", end))
        pages: list[LogPartsPage] = []
        offset = begin
        while not pages or pages[-1].more:
            page = await self._query(QueryMethod.PARTS, GetLogParts(topic, offset, limit), LogPartsPage, topic)
            if pages and page.topic_id != pages[0].topic_id:
                raise FailedPreconditionError(f"topic {topic!r} was deleted and created again meanwhile; ask again")
            pages.append(page)
            if page.parts:
                offset = page.parts[-1].end_offset
        last = pages[-1]
        low, high = max(begin, last.start_offset), max(begin, min(limit, pages[0].sealed_offset))
        low = min(low, high)
        parts = [part for part in join_parts(page.parts for page in pages) if part.end_offset > low]
        storages = {name: url for page in pages for name, url in page.storages.items()}
        return LogParts(
            topic,
            last.topic_id,
            low,
            high,
            last.start_offset,
            pages[0].sealed_offset,
            last.end_offset,
            parts,
            undeclared_of(gaps_of(parts, low, high), last.declared),
            storages,
        )

    async def offset_at(self, topic: str, time: int | datetime) -> int:
        """Return the offset of the first message that was appended at or after a time; the end if there is none.

        Args:
            topic: a plain topic or one partition.
            time: microseconds since the epoch, or a date with a time zone.

        Raises:
            TopicNotFoundError, FailedPreconditionError: as :meth:`parts`.
            StorageError, DataLossError: the broker cannot read the history that it has to search.
        """
        validate_topic(topic)
        if isinstance(time, datetime):
            if time.tzinfo is None:
                raise InvalidArgumentError(f"time {time} has no time zone; use datetime(..., tzinfo=timezone.utc)")
            time = max(0, round(time.timestamp() * 1_000_000))
        request = FindOffset(topic, check_count("time", time))
        return (await self._query(QueryMethod.OFFSET_AT, request, FoundOffset, topic)).offset

    @asynccontextmanager
    async def read(
        self, topic: str, start: int, end: int, *, topic_id: TopicId = NO_TOPIC, credit_bytes: int = 16 * MIB
    ) -> AsyncIterator[LogReading]:
        """Read a range of a log from the broker, as stored batches: ``async with client.logs.read(...) as batches``.

        Iterating over the result yields each :class:`~danube.model.query_api.RawBatch`, verified and not decoded, and
        ends at ``end``. The first one may begin before ``start``, the last one end after ``end``; messages that
        retention has removed in the meantime show as a batch that begins later than the one before has ended. After a
        reconnect it continues where it was.

        Args:
            topic: a plain topic or one partition.
            start, end: offsets; ``end`` is at most the end of the log.
            topic_id: read only this incarnation of the topic, as named by :attr:`LogState.topic_id`; 0: the present
                one.
            credit_bytes: maximum number of bytes that have arrived and were not taken yet.

        Raises:
            TopicNotFoundError: the topic does not exist.
            FailedPreconditionError: it stores no messages (durability ``none``), or was deleted and created again.
            DataLossError: the log ends before ``end``, or a batch is damaged.
        """
        validate_topic(topic)
        if not check_offset("start", start) <= check_offset("end", end):
            raise InvalidArgumentError(f"offsets [{start}, {end}) are not a range")
        check_count("credit_bytes", credit_bytes, 1)
        check_count("topic_id", topic_id)
        reading = LogReading(self._pool, topic, topic_id, start, end, credit_bytes)
        try:
            yield reading
        finally:
            await reading._close()

    async def _query(self, path: str, request: Any, kind: type[T], topic: str = "") -> T:
        """Ask any broker, or about a topic its owner."""
        options, route = self._pool.options, self._pool.route(topic)
        return await Retry(self._pool).repeat(
            partial(self._pool.attempt, path, request, kind, timeout_s=options.request_timeout_s, route=route),
            options.request_timeout_s,
        )
