"""Queries the extents and parts of logs, from a broker or from the manifests in a storage.

Both sources provide the same three queries: the extents of logs, the locations of sealed parts, and the offset at a
time. The driver uses them to plan; a task repeats a query when one of its parts no longer exists.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from danube.model.errors import FailedPreconditionError, TopicNotFoundError
from danube.model.policies import Durability
from pyspark_danube._connecting import broker_client
from pyspark_danube._options import ReadOptions, nearest
from pyspark_danube._plan import Source, data_loss
from pyspark_danube._positions import LogKey, Span, pieces

if TYPE_CHECKING:
    from danube.client.sync import Client
    from danube.history.direct import DirectPart, DirectStorage
    from danube.model.query_api import LogParts, LogState

__all__ = ["BrokerLogs", "BucketLogs", "Logs", "locate", "log_states", "open_logs", "parts_of", "report_losses"]

logger = logging.getLogger("pyspark_danube")


class Logs(Protocol):
    """Source of information about logs."""

    def log_state(self, topics: Sequence[str] = (), *, pattern: str = "") -> list[LogState]:
        """Return the extents of logs."""

    def log_parts(self, topic: str, start: int = 0, end: int | None = None) -> LogParts:
        """Return the parts with the sealed batches of a range."""

    def find_time(self, name: str, time_us: int) -> int:
        """Return the first offset that was appended at or after a time."""


class BrokerLogs:
    """Queries a broker."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def log_state(self, topics: Sequence[str] = (), *, pattern: str = "") -> list[LogState]:
        """Return the extents of logs."""
        return self.client.logs.states(topics, pattern=pattern)

    def log_parts(self, topic: str, start: int = 0, end: int | None = None) -> LogParts:
        """Return the parts with the sealed batches of a range."""
        return self.client.logs.parts(topic, start, end)

    def find_time(self, name: str, time_us: int) -> int:
        """Return the first offset that was appended at or after a time."""
        return self.client.logs.offset_at(name, time_us)


class BucketLogs:
    """Queries a snapshot of the manifests in a storage."""

    def __init__(self, storage: DirectStorage, cluster: str) -> None:
        self._storage = storage
        self._bucket = storage.bucket(cluster)

    def log_state(self, topics: Sequence[str] = (), *, pattern: str = "") -> list[LogState]:
        """Return the extents of logs."""
        return self._bucket.log_state(topics, pattern=pattern)

    def log_parts(self, topic: str, start: int = 0, end: int | None = None) -> LogParts:
        """Return the parts with the sealed batches of a range."""
        return self._bucket.log_parts(topic, start, end)

    def find_time(self, name: str, time_us: int) -> int:
        """Return the first offset that was appended at or after a time: the part is read up to there."""
        found = self._bucket.log_parts(name)
        for part in parts_of(found):
            if part.part.last_time_us < time_us:
                continue
            for batch in self._storage.read(part, found.start, producers=False):
                if batch.append_time_us >= time_us:
                    return max(batch.base_offset, found.start)
        return found.end


@contextmanager
def open_logs(options: ReadOptions, *, patience_s: float = 0.0) -> Iterator[Logs]:
    """Connect to the broker, or read the manifests if no broker is configured.

    Raises:
        ConnectionLostError: no broker answers.
        StorageError: the storage cannot be read.
    """
    if options.servers:
        with broker_client(options.servers, patience_s=patience_s) as client:
            yield BrokerLogs(client)
    else:
        from danube.history.direct import open_direct

        with open_direct(options.storage_url, options.storage_options) as storage:
            yield BucketLogs(storage, options.cluster)


def log_states(logs: Logs, options: ReadOptions) -> dict[LogKey, LogState]:
    """Return the states of the logs of a query.

    Raises:
        TopicNotFoundError: a topic does not exist (the message names the nearest one), or none matches the pattern.
        FailedPreconditionError: a named topic stores nothing.
    """
    try:
        states = logs.log_state(options.topics, pattern=options.topics_pattern)
    except TopicNotFoundError as error:
        known = sorted({state.topic for state in logs.log_state()})
        missing = [topic for topic in options.topics if topic not in known]
        remedy = nearest(missing[0], known) if missing else ""
        raise TopicNotFoundError(f"{error.message};{remedy}" if remedy else error.message) from None
    if not states and options.topics_pattern:
        raise TopicNotFoundError(
            f"no topic matches topicsPattern {options.topics_pattern!r}; the expression must match a whole name such as"
            " /default/orders"
        )
    readable = {}
    for state in states:
        if state.durability != Durability.NONE:
            readable[LogKey(state.topic, state.partition)] = state
        elif options.topics_pattern:
            logger.warning("topic %s stores no messages (durability none) and is skipped", state.name)
        else:
            raise FailedPreconditionError(
                f"topic {state.name!r} stores no messages (durability none) and cannot be read; consume it instead"
            )
    return readable


def locate(
    logs: Logs, options: ReadOptions, spans: Sequence[Span], states: Mapping[LogKey, LogState]
) -> tuple[list[Source], dict[str, str]]:
    """Locate the messages of spans; return the locations, and the URLs of the storages.

    Raises:
        DataLossError: some messages are gone, and ``failOnDataLoss`` is true.
    """
    sources, storages, losses = [], {}, []
    for span in spans:
        state = states[span.key]
        found = logs.log_parts(state.name, span.start, span.end)
        where = f"topic {span.key.topic}, partition {span.key.partition}"
        if found.topic_id != state.topic_id:
            raise FailedPreconditionError(f"{where}: the topic was deleted and created again; run the query again")
        if found.start > span.start:
            gone = pieces(span.start, min(found.start, span.end), state.gaps)
            losses += [f"{where}: offsets [{low}, {high}) have expired" for low, high in gone]
        losses += [f"{where}: offsets [{start}, {end}) were lost" for start, end in found.gaps]
        storages.update(found.storages)
        start = min(max(span.start, found.start_offset), span.end)
        sealed = max(found.end, start)
        if start < span.end:
            remaining = Span(span.key, start, span.end)
            sources.append(
                Source(remaining, state.name, state.topic_id, sealed, parts_of(found), state.is_framed, state.gaps)
            )
    report_losses(losses, options)
    if options.storage_url:
        storages = dict.fromkeys(storages, options.storage_url)
    return sources, storages


def parts_of(found: LogParts) -> list[DirectPart]:
    """Return the parts of an answer, for reading them directly."""
    if not found.parts:
        return []  # a topic that is not sealed yet: the code that reads storages is not even imported
    from danube.history.direct import direct_parts

    return direct_parts(found)


def report_losses(losses: Sequence[str], options: ReadOptions) -> None:
    """Raise or log a warning, according to ``failOnDataLoss``.

    Raises:
        DataLossError: there are losses, and ``failOnDataLoss`` is true.
    """
    if losses and options.fail_on_data_loss:
        raise data_loss(losses)
    for loss in losses:
        logger.warning("%s; the query continues after them (failOnDataLoss=false)", loss)
