"""What a broker reports about itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from danube.model import api
from danube.model.names import split_partition
from danube.model.version import __version__

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.operations.wellness import BrokerFacts

__all__ = ["broker_info", "facts_of"]


def broker_info(
    directory: Directory,
    *,
    connections: int,
    uptime_s: float,
    admin_addresses: Sequence[str] = (),
    traffic: tuple[int, int] = (0, 0),
    loop_lag_s: float | None = None,
    publishes: tuple[float, float] = (-1.0, -1.0),
    syncs: tuple[float, float] = (-1.0, -1.0),
) -> api.BrokerInfo:
    """Return the status of a broker.

    Args:
        directory: of its topics.
        connections: open ones of clients.
        uptime_s: seconds since its start.
        admin_addresses: of its admin port.
        traffic: bytes that have arrived at its client port, and those sent.
        loop_lag_s: lag of its loop; None: not known.
        publishes: within which half, and 99 of 100, of the last minute's were done; below 0: there were none.
        syncs: the same of the journal's.
    """
    runtime = directory.runtime
    config, limits = runtime.config, runtime.limits
    journal, sealing = runtime.journal.usage(), directory.history.sealer.status()
    memory_bytes, cpu_s = runtime.seams.process_usage()
    brokers = sorted(address for _, address in directory.catalogue.membership.owners.addresses())
    return api.BrokerInfo(
        version=__version__,
        pid=os.getpid(),
        data_directory=config.data_directory,
        uptime_s=uptime_s,
        default_durability=config.durability,
        connections=connections,
        topics=len(directory),
        journal_used_bytes=journal.used_bytes,
        journal_limit_bytes=journal.limit_bytes,
        journal_files=journal.files,
        commits=journal.commits,
        syncs=journal.syncs,
        max_message_bytes=limits.max_message_bytes,
        max_batch_bytes=limits.max_batch_bytes,
        unsealed_bytes=sealing.unsealed_bytes,
        oldest_unsealed_age_s=sealing.oldest_age_s,
        sealing_failing_s=sealing.failing_for_s,
        sealing_error=sealing.last_error,
        sealed_objects=sealing.sealed_objects,
        sealed_bytes=sealing.sealed_bytes,
        stranded_topics=journal.stranded_topics,
        stranded_bytes=journal.stranded_bytes,
        brokers=brokers if len(brokers) > 1 else [],
        broker=directory.broker,
        addresses=list(runtime.addresses),
        admin_addresses=list(admin_addresses),
        memory_bytes=memory_bytes,
        cpu_s=cpu_s,
        received_bytes=traffic[0],
        sent_bytes=traffic[1],
        loop_lag_s=-1.0 if loop_lag_s is None else loop_lag_s,
        named_topics=sum(1 for _ in directory.catalogue.topics()),
        partitions=sum(split_partition(topic.name) is not None for topic in directory.topics()),
        max_connections=limits.max_connections,
        publish_p50_s=publishes[0],
        publish_p99_s=publishes[1],
        sync_p50_s=syncs[0],
        sync_p99_s=syncs[1],
    )


def facts_of(
    directory: Directory, *, connections: int, loop_lag_s: float | None, certificate_ends_s: float | None
) -> BrokerFacts:
    """Return the figures of a broker that may need attention.

    Args:
        directory: of its topics.
        connections: open ones of clients.
        loop_lag_s: lag of its loop; None: not known.
        certificate_ends_s: seconds until its certificate expires; None: it has none.
    """
    from danube.broker.operations.wellness import BrokerFacts  # most brokers are never asked

    runtime = directory.runtime
    journal, sealing = runtime.journal.usage(), directory.history.sealer.status()
    return BrokerFacts(
        broker=directory.broker,
        journal_used_bytes=journal.used_bytes,
        journal_limit_bytes=journal.limit_bytes,
        disk_full=journal.disk_full,
        sealing_failing_s=sealing.failing_for_s,
        sealing_error=sealing.last_error,
        stranded_topics=journal.stranded_topics,
        stranded_bytes=journal.stranded_bytes,
        connections=connections,
        max_connections=runtime.limits.max_connections,
        loop_lag_s=loop_lag_s,
        certificate_ends_s=certificate_ends_s,
    )
