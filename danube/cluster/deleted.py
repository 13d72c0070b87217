"""What the notes of deleted topics mean: who has to remove something, and what of a wal does not exist any more.

A deletion is made in the metadata, with a note; the brokers with something of the topic remove that afterwards. Until
all have, it must not be forgotten: a journal of which nothing is known is kept, and a wal says what exists::

    record -> note ──▶ journal or wal of each owner has noted it ──▶ its assignments go ──▶ note goes

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from danube.cluster.records import Assignment, BrokerRecord, BrokerState, DeletedRecord, broker_name, topic_key, wal_of
from danube.model.ids import BrokerId, TopicId

__all__ = ["burying", "doomed", "existing"]


def burying(
    deleted: Iterable[DeletedRecord],
    owner_of: Callable[[TopicId], BrokerId | None],
    brokers: Mapping[str, BrokerRecord],
) -> set[TopicId]:
    """Return those of some deleted topics of which their owner, or one that gets its wal, may still have something.

    Args:
        deleted: the notes.
        owner_of: returns the owner of a topic; None: it has none, so nothing is left of it.
        brokers: the records of all brokers by name.
    """
    found = set()
    there = [record for record in brokers.values() if record.state is not BrokerState.GONE]
    for note in deleted:
        has_heirs = any(note.storage in record.shared for record in there)
        for topic_id in note.topic_ids:
            owner = owner_of(topic_id)
            record = brokers.get(broker_name(owner)) if owner is not None else None
            if record is None:
                continue
            if record.state is not BrokerState.GONE or (has_heirs and note.storage in record.shared):
                found.add(topic_id)
    return found


def existing(
    topic_ids: Iterable[TopicId],
    wal: str,
    assignments: Mapping[str, Assignment],
    deleted: Collection[TopicId],
    may_lack: Callable[[TopicId], bool],
) -> list[TopicId]:
    """Return which topics of a wal exist, and are in it.

    Args:
        topic_ids: of topics that the wal has.
        wal: its name.
        assignments: of all topics, by key.
        deleted: topics whose deletion is noted in the metadata.
        may_lack: whether the metadata may lack a topic without an assignment although it exists. Else it was deleted
            after it had moved away from here.
    """
    found = []
    for topic_id in topic_ids:
        given = assignments.get(topic_key(topic_id))
        is_here = wal_of(given) == wal if given is not None else may_lack(topic_id)
        if is_here and topic_id not in deleted:
            found.append(topic_id)
    return found


def doomed(topics: Mapping[str, Collection[TopicId]], deleted: Collection[TopicId]) -> dict[TopicId, str]:
    """Return the deleted topics that a wal still has: their ids, with the names of the topics as a whole."""
    return {topic_id: name for name, topic_ids in topics.items() for topic_id in topic_ids if topic_id in deleted}
