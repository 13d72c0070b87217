"""How topics come to life: new, from what recovery found in the journal, or from what their bucket tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.broker.topic.memory_log import MemoryLog
from danube.broker.topic.recovered import TopicState
from danube.broker.topic.topic import Topic
from danube.history import RemoteJournal, RemoteTopicState
from danube.log import ProducerTable, RecoveredTopic, TopicLog
from danube.model import Durability
from danube.model.errors import DataLossError

if TYPE_CHECKING:
    from danube.broker.broker import Broker
    from danube.broker.directory.records import TopicRecord

__all__ = ["build_remote_topic", "build_topic"]


def build_topic(
    broker: Broker,
    name: str,
    topic_id: int,
    record: TopicRecord,
    recovered: RecoveredTopic | None = None,
    found: TopicState | None = None,
) -> Topic:
    """Bring a topic to life: a new one, or what recovery found of it.

    Args:
        broker: whose topic it is.
        name, topic_id: of the plain topic or partition.
        record: of the topic as a whole.
        recovered: what the journal holds of it.
        found: what snapshots and control entries say.
    """
    producers = found.producers if found is not None else ProducerTable(broker.config.limits, name)
    if recovered is not None:
        producers.apply_batches(recovered.producers)
    if record.durability is Durability.NONE:
        return Topic(broker, name, topic_id, record, MemoryLog(topic_id), producers, broker.journal)
    history = broker.history.catalogue.find(topic_id)
    start = history.start_offset if history is not None else 0
    sealed = max(start, history.end_offset if history is not None else 0)
    # What the journal holds is the truth about the end; a snapshot only speaks for batches that it has lost.
    known_end = found.end_offset if found is not None and recovered is None else 0
    first = recovered.first_offset if recovered is not None else known_end
    failure = None
    if first > sealed and record.durability is Durability.DISK:
        failure = DataLossError(
            f"topic {name!r}: offsets [{sealed}, {first}) are neither sealed nor in the journal; restore the"
            " journal's files from a copy, or delete the topic"
        )
    log = TopicLog(
        topic_id,
        record.durability,
        broker.journal,
        broker.cache,
        broker.history.catalogue.epoch,
        known_end,
        start,
        recovered,
        sealed_offset=max(sealed, first) if failure is None else sealed,
        sealed=broker.history.reader,
        on_unsealed=broker.history.sealer.unsealed,
        seal_bytes=broker.config.limits.segment_bytes,
    )
    topic = Topic(broker, name, topic_id, record, log, producers, broker.journal)
    topic.failure = failure
    return topic


def build_remote_topic(
    broker: Broker,
    name: str,
    topic_id: int,
    record: TopicRecord,
    journal: RemoteJournal,
    recovered: RemoteTopicState,
    found: TopicState | None,
) -> Topic:
    """Bring a topic of durability ``remote`` to life, from what its bucket tells of it."""
    producers = found.producers if found is not None else ProducerTable(broker.config.limits, name)
    producers.apply_batches(recovered.producers)
    history = broker.history.catalogue.find(topic_id)
    end = recovered.next_offset
    log = TopicLog(
        topic_id,
        Durability.REMOTE,
        broker.journal,
        broker.cache,
        broker.history.catalogue.epoch,
        end,
        history.start_offset if history is not None else 0,
        sealed_offset=end,
        sealed=broker.history.reader,
        submitter=journal,
    )
    return Topic(broker, name, topic_id, record, log, producers, journal)
