"""Blocking forms of the calls for query engines; behaviour and errors as in :class:`danube.client.Client`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from danube.model.limits import MIB
from danube.model.query_api import LogParts, LogState, RawBatch

if TYPE_CHECKING:
    from danube.client._client import Client
    from danube.client.sync._loop import Loop

__all__ = ["QueryCalls"]


class QueryCalls:
    """The part of :class:`Client` for query engines."""

    _client: Client
    _loop: Loop

    def log_state(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str = "",
        beyond: Mapping[str, int] | None = None,
        timeout_s: float = 0,
    ) -> list[LogState]:
        """Return the ends of logs; with ``beyond``, wait until one grows beyond its known end."""
        return self._loop.run(self._client.log_state, topics, pattern=pattern, beyond=beyond, timeout_s=timeout_s)

    def log_parts(self, topic: str, start: int = 0, end: int | None = None) -> LogParts:
        """Return the places of the sealed batches of a range of offsets."""
        return self._loop.run(self._client.log_parts, topic, start, end)

    def offsets_at(self, topic: str, time: int | datetime) -> int:
        """Return the offset of the first message that was appended at or after a time; the end if there is none."""
        return self._loop.run(self._client.offsets_at, topic, time)

    def read_log(
        self, topic: str, start: int, end: int, *, topic_id: int = 0, credit_bytes: int = 16 * MIB
    ) -> Iterator[RawBatch]:
        """Yield the stored batches of a range of a log, from the broker; arguments as of the asynchronous call.

        Batches that have arrived are fetched from the event loop together. An iterator that is not exhausted closes its
        stream when it is closed (``close()``, or its deletion).
        """
        opening = self._client.read_log(topic, start, end, topic_id=topic_id, credit_bytes=credit_bytes)
        with self._loop.enter(opening) as reading:
            while batches := self._loop.run(reading.next_batches):
                yield from batches
