"""What a scrape reads of all parts of a broker but its topics. No I/O, no clock."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from danube.cluster.records import BrokerState, MoveReason, parse_topic_id
from danube.metrics import families as of
from danube.metrics.histogram import Histogram
from danube.model import api
from danube.model.stage_api import StageMethod
from danube.model.version import __version__

if TYPE_CHECKING:
    from danube.broker.moving import MoveFigures
    from danube.broker.runtime.runtime import Runtime
    from danube.cluster.membership import Membership
    from danube.history import History
    from danube.log import Journal
    from danube.metadata import ObservedStore
    from danube.metrics.process import ProcessFigures
    from danube.metrics.text import Exposition
    from danube.storage import Storage
    from danube.wire import Server

__all__ = [
    "write_cluster",
    "write_history",
    "write_journal",
    "write_memory",
    "write_metadata",
    "write_process",
    "write_publishing",
    "write_storages",
    "write_wire",
]

_STREAMS: Final[Mapping[str, str]] = {
    api.Method.PUBLISH: "publish",
    api.Method.CONSUME: "consume",
    StageMethod.STAGE: "stage",
    "/danube.ConsumerService/ReceiveMessages": "consume",
}
"""What streams do, by path."""


def write_process(text: Exposition, figures: ProcessFigures | None) -> None:
    """Write the figures of the process; without them, only the versions."""
    text.add(of.BUILD_INFO, 1, __version__, platform.python_version())
    if figures is None:
        return
    text.add(of.CPU, figures.cpu_s)
    text.add(of.RESIDENT, figures.resident_bytes)
    text.add(of.VIRTUAL, figures.virtual_bytes)
    text.add(of.OPEN_FDS, figures.open_fds)
    text.add(of.MAX_FDS, figures.max_fds)
    text.add(of.THREADS, figures.threads)
    if figures.started_at_s:
        text.add(of.STARTED_AT, figures.started_at_s)


def write_memory(text: Exposition, runtime: Runtime, servers: Iterable[Server], pending_bytes: int) -> None:
    """Write what holds memory, and what the caches were asked for."""
    queued = sum(server.waiting_bytes for server in servers)
    cache, opened = runtime.cache, runtime.opened
    text.add_each(
        of.MEMORY,
        {
            "cache": cache.used_bytes,
            "opened_batches": opened.used_bytes,
            "send_queues": queued,
            "journal_pending": pending_bytes,
        },
    )
    for name, found in (("batches", cache), ("opened_batches", opened)):
        text.add(of.CACHE, found.hits, name, "hit")
        text.add(of.CACHE, found.misses, name, "miss")


def write_wire(text: Exposition, servers: Iterable[Server]) -> None:
    """Write connections, streams and calls of all ports together."""
    connections: Counter[str] = Counter({"native": 0, "grpc": 0, "peer": 0})
    streams: Counter[str] = Counter({"publish": 0, "consume": 0})
    refused: Counter[str] = Counter({"max_connections": 0, "draining": 0, "blocked": 0, "unproven": 0})
    received: Counter[str] = Counter({"native": 0, "grpc": 0, "peer": 0})
    sent = received.copy()
    calls: Counter[tuple[str, str]] = Counter()
    durations: dict[str, Histogram] = {}
    for server in servers:
        figures = server.figures
        refused.update(figures.refused)
        received.update(figures.received_bytes)
        sent.update(figures.sent_bytes)
        for connection in server.connection_list():
            kind = connection.kind
            connections[kind] += 1
            received[kind] += connection.received_bytes
            sent[kind] += connection.sent_bytes
            streams.update(_STREAMS.get(path, "other") for path in connection.stream_paths)
        for path, found in figures.calls.items():
            calls[path, "OK"] += found.ok
            for status, count in found.failed.items():
                calls[path, status.name] += count
            if any(found.durations.counts):
                durations.setdefault(path, Histogram()).add(found.durations)
    text.add_each(of.CONNECTIONS, connections)
    text.add_each(of.STREAMS, streams)
    text.add_each(of.REFUSED, refused)
    text.add_each(of.RECEIVED, received)
    text.add_each(of.SENT, sent)
    for (path, code), count in calls.items():
        text.add(of.RPCS, count, path, code)
    for path, histogram in durations.items():
        text.add_histogram(of.RPC_SECONDS, histogram, path)


def write_journal(text: Exposition, journal: Journal) -> None:
    """Write what the journal of this broker's disk does."""
    usage = journal.usage()
    text.add(of.JOURNAL_USED, usage.used_bytes)
    text.add(of.JOURNAL_LIMIT, usage.limit_bytes)
    text.add(of.JOURNAL_PENDING, usage.pending_bytes)
    text.add_each(of.JOURNAL_COMMITS, {"disk": usage.disk_commits, "os": usage.os_commits})
    text.add_histogram(of.SYNC_SECONDS, journal.sync_durations)
    text.add_histogram(of.COMMIT_BATCHES, journal.commit_sizes)
    text.add(of.JOURNAL_WAITING, usage.waiting)
    text.add(of.FENCED, int(journal.failure is not None))


def write_publishing(text: Exposition, runtime: Runtime) -> None:
    """Write what all topics count of publishing together."""
    figures = runtime.publish_figures
    for durability, histogram in figures.durations.items():
        text.add_histogram(of.PUBLISH_SECONDS, histogram, durability.value)
    text.add(of.DUPLICATES, figures.duplicates)
    text.add(of.MISMATCHES, figures.mismatches)
    text.add_each(of.PAUSED, figures.paused_s)


def write_storages(text: Exposition, storages: Mapping[str, Storage], now: float) -> None:
    """Write what storages answer, by the names that their callers have: one name for each line in front of them."""
    for name, storage in storages.items():
        stats = storage.stats()
        for operation, found in stats.operations.items():
            text.add_histogram(of.STORAGE_SECONDS, found.durations, name, operation)
            text.add(of.STORAGE_OPERATIONS, found.calls - found.failures, name, operation, "ok")
            text.add(of.STORAGE_OPERATIONS, found.failures, name, operation, "failed")
            text.add(of.STORAGE_RETRIES, found.retries, name, operation)
        since = stats.health.failing_since_s
        text.add(of.STORAGE_FAILING, 0.0 if since is None else now - since, name)


def write_history(text: Exposition, history: History, max_age_s: float) -> None:
    """Write how far sealing is, for storages into which topics are sealed."""
    text.add(of.UNSEALED_MOST, max_age_s)
    for name in history.storages:
        if not history.can_seal(name):
            continue
        status = history.sealer.status(name)
        text.add(of.UNSEALED, status.unsealed_bytes, name)
        text.add(of.UNSEALED_AGE, status.oldest_age_s, name)
        text.add(of.SEALING_FAILING, status.failing_for_s, name)
        text.add(of.SEALED, status.sealed_bytes, name)


def write_metadata(text: Exposition, store: ObservedStore) -> None:
    """Write how the metadata answer, and where their group is."""
    for operation, histogram in store.durations.items():
        text.add_histogram(of.METADATA_SECONDS, histogram, operation)
    standing = store.standing()
    if standing.member:
        text.add(of.HAS_LEADER, int(standing.leader != 0))
        text.add(of.LEADS, int(standing.leader == standing.member))
        text.add(of.TERM, standing.term)
        text.add(of.COMMITTED, standing.committed)
        text.add(of.APPLIED, standing.applied)


def write_cluster(text: Exposition, membership: Membership, moves: MoveFigures, topics: int) -> None:
    """Write who is in the cluster, as far as this broker knows."""
    text.add(of.MEMBERS, len(membership.brokers.values))
    text.add(of.SESSIONS, len(membership.sessions.values))
    text.add(of.SESSION_CERTAIN, int(membership.is_certain()))
    text.add(of.OWNED, topics)
    own = membership.brokers.values.get(membership.broker)
    text.add(of.DRAINED, int(own is not None and own.state is BrokerState.DRAINING))
    ordered = Counter({reason.value: 0 for reason in MoveReason})
    for key, move in membership.moves.values.items():
        ordered[move.reason.value] += membership.owner(parse_topic_id(key)) == membership.me
    text.add_each(of.ORDERED_MOVES, ordered)
    text.add_each(of.ENDED_MOVES, {"moved": moves.moved, "stayed": moves.stayed})
    text.add_histogram(of.MOVE_PAUSES, moves.frozen)
