"""Estimates the bytes of messages in a log, for limits in bytes, from known sizes.

The broker knows size and count of sealed parts. The tail is unknown before it is read: it is assumed to be like
the last sealed part, or, in a log without one, like its first batch; without that, a default is used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from danube.model.batch import STAMP_SIZE
from danube.model.errors import DataLossError, FailedPreconditionError, TopicNotFoundError
from danube.model.ids import TopicId
from pyspark_danube._plan import GUESSED_MESSAGE_BYTES
from pyspark_danube._positions import pieces

if TYPE_CHECKING:
    from danube.client.sync import Client
    from danube.model.query_api import LogPart, LogState

__all__ = ["Weights"]

logger = logging.getLogger("pyspark_danube")


class Weights:
    """Estimates for the logs of one query."""

    def __init__(self) -> None:
        self._tails: dict[TopicId, float] = {}
        """Bytes per message of the tail, by topic id."""

    def runs(self, client: Client, log: LogState, start: int, end: int) -> list[tuple[int, int, float]]:
        """Return estimates for the messages ``[start, end)``: ``(start, end, bytes per message)`` in their order.

        Raises:
            DanubeError: the broker does not answer.
        """
        found: list[tuple[int, int, float]] = []
        at = start
        if start < log.sealed_offset:
            for part in self._parts(client, log, start, end):
                weight = part.size_bytes / max(1, part.end_offset - part.base_offset)
                self._tails[log.topic_id] = weight
                found.append((part.base_offset, part.end_offset, weight))
                at = max(at, part.end_offset)
        for begin, stop in pieces(at, end, log.gaps):
            found.append((begin, stop, self._tail(client, log, begin)))
        return found

    def _parts(self, client: Client, log: LogState, start: int, end: int) -> list[LogPart]:
        try:
            return client.logs.parts(log.name, start, end).parts
        except (FailedPreconditionError, TopicNotFoundError) as error:
            # Deleted since the states were queried, and possibly created again: that is handled when it is read.
            logger.debug("no known sizes of %s in [%d, %d): %s", log.name, start, end, error.message)
            return []

    def _tail(self, client: Client, log: LogState, at: int) -> float:
        weight = self._tails.get(log.topic_id)
        if weight is None:
            try:
                with client.logs.read(log.name, at, at + 1, topic_id=log.topic_id) as reading:
                    batches = list(reading)
            except (DataLossError, FailedPreconditionError, TopicNotFoundError) as error:
                logger.debug("no known sizes of %s at offset %d: %s", log.name, at, error.message)
                batches = []
            if not batches:
                # Expired, in a gap, or of a deleted topic: whether that is a loss is decided when it is planned
                # and read. The default is not cached, so that the next limit uses the state at that time.
                return GUESSED_MESSAGE_BYTES
            weight = max((STAMP_SIZE + len(batch.part)) / batch.record_count for batch in batches)
            self._tails[log.topic_id] = weight
        return weight
