"""Recovery of topics at the start of a broker, and checkpoints of their state from then on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, cast

import trio

from danube.broker.topic.recovered import RecoveryVisitor
from danube.dispatch import encode_entry
from danube.model.batch import crc32c
from danube.model.errors import DataLossError
from danube.model.ids import FIRST_OFFSET, TopicId
from danube.model.records import SubscriptionRecord, members

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from danube.broker.directory.directory import Directory
    from danube.broker.topic.recovered import TopicState
    from danube.broker.topic.topic import Topic
    from danube.history import TopicHistory
    from danube.log import Recovered, RecoveredTopic

__all__ = ["Checkpoints", "recover"]

_log = logging.getLogger("danube.broker")

_SNAPSHOTS_PER_TURN: Final = 100
"""A checkpoint lets other tasks run after this many topics."""


async def recover(directory: Directory, *, identity: int | None, synced: int, loss_accepted: bool) -> None:
    """Build the topics from the catalogue, the snapshots and the journal; topics of ``remote`` come from their buckets.

    Args:
        directory: receives the topics.
        identity, synced: of the journal, see :meth:`danube.log.Journal.recover`.
        loss_accepted: whether an operator has accepted, for this start, that something is lost.

    Raises:
        DataLossError: the journal has lost entries that do not belong to a single topic.
    """
    catalogue, runtime, history = directory.catalogue, directory.runtime, directory.history
    subscriptions = await catalogue.subscriptions()
    names = {
        topic_id: topic_name for name, record in catalogue.topics() for topic_name, topic_id in members(name, record)
    }
    visitor = RecoveryVisitor(
        names,
        subscriptions,
        cast("dict[TopicId, bytes]", await catalogue.snapshots.load("topics")),
        await catalogue.snapshots.load("cursors"),
        runtime.limits,
    )
    report = await runtime.journal.recover(visitor, identity=identity, synced=synced)
    _tell(report)
    loss_known = loss_accepted or bool(report.corruptions or report.missing_files)
    _check_seeks(visitor.lost_seeks, subscriptions, names, loss_known=loss_known)
    stopped = report.stopped_topics(
        {topic_id: max(found.start_offset, found.end_offset) for topic_id, found in history.catalogue.topics.items()}
    )
    await history.sweep(catalogue.alive())
    changed: list[tuple[str, int, bytes]] = []
    for name, record in catalogue.topics():
        level = directory.level(record)
        if level.recovers_itself:
            continue
        for topic_name, topic_id in members(name, record):
            recovered = report.topics.pop(topic_id, None)
            topic = level.build(topic_name, topic_id, record, recovered, visitor.topics.get(topic_id))
            if report.corruptions or report.missing_files:
                lost = topic.producers.note_lost_names()
                if lost:
                    _log.error(
                        "topic %r: the names of %d producers were lost in a damaged part of the journal",
                        topic_name,
                        lost,
                    )
                _note_unread(topic, history.catalogue.find(topic_id), recovered, visitor.topics.get(topic_id))
            failure = topic.failure or stopped.get(topic_id)
            if failure is not None:
                topic.stop(failure)
                _log.error("topic %r stops: %s", topic_name, failure)
            changed += _restore_subscriptions(topic, subscriptions.get(topic_id, {}), visitor)
            directory.adopt(topic)
    # Before new messages get offsets that these cursors had acknowledged, and before the damage that explains a lost
    # seek is recycled: another crash would find neither.
    await catalogue.snapshots.save(changed)
    for topic_id in report.topics:
        runtime.journal.drop_topic(topic_id)  # deleted topics


def _note_unread(
    topic: Topic, history: TopicHistory | None, recovered: RecoveredTopic | None, state: TopicState | None
) -> None:
    """Note sealed batches since the last checkpoint that a damaged journal does not show any more."""
    if history is not None:
        low = max(history.start_offset, state.end_offset if state is not None else FIRST_OFFSET)
        high = min(history.end_offset, recovered.first_offset if recovered is not None else history.end_offset)
        if low < high:
            topic.producers.note_unread(low, high)


def _tell(report: Recovered) -> None:
    if report.torn is not None:
        _log.warning(
            "%d bytes at the end of journal file %d are incomplete, as a crash leaves the last write; nothing after"
            " them says that they were synced. If neither broker nor machine crashed, the file was damaged",
            report.torn.size,
            report.torn.file,
        )
    for corruption in report.corruptions:
        _log.error("%s", corruption.error())


def _check_seeks(
    lost: Container[int],
    subscriptions: Mapping[TopicId, Mapping[str, SubscriptionRecord]],
    names: Mapping[TopicId, str],
    *,
    loss_known: bool,
) -> None:
    """Log which subscriptions have lost a seek.

    Raises:
        DataLossError: no part of the journal is damaged or missing, and no loss was accepted.
    """
    for topic_id, records in subscriptions.items():
        for name, record in records.items():
            if record.subscription_id not in lost:
                continue
            what = f"a seek of subscription {name!r} of topic {names.get(topic_id, f'{topic_id:016x}')!r}"
            if not loss_known:
                raise DataLossError(f"{what} is missing from the journal, but later entries exist")
            _log.error("%s is lost with a part of the journal: the subscription keeps its position; seek again", what)


def _restore_subscriptions(
    topic: Topic, records: Mapping[str, SubscriptionRecord], visitor: RecoveryVisitor
) -> list[tuple[str, int, bytes]]:
    """Restore the subscriptions of a topic; return the snapshots of cursors that differ from their entries."""
    changed = []
    for name, record in records.items():
        cursor = visitor.cursors[record.subscription_id]
        clamped = cursor.clamp(topic.end_offset)
        if clamped:
            _log.warning(
                "subscription %r of topic %r was beyond the recovered end %d and is set back to it",
                name,
                topic.name,
                topic.end_offset,
            )
        if clamped or record.subscription_id in visitor.lost_seeks:
            changed.append(("cursors", record.subscription_id, encode_entry(cursor.snapshot(record.subscription_id))))
        topic.restore_subscription(name, record, cursor)
    return changed


class Checkpoints:
    """Stores the state that the journal's control entries describe, so that their files can be recycled."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        # Checksums of the stored snapshots: most topics do not change between two checkpoints.
        self._saved: dict[tuple[str, int], int] = {}

    async def store(self) -> None:
        """Store the snapshots that have changed.

        Raises:
            DanubeError: the metadata cannot be written.
        """
        known: dict[tuple[str, int], int] = {}
        changed: list[tuple[str, int, bytes]] = []

        def note(kind: str, number: int, value: bytes) -> None:
            known[kind, number] = crc = crc32c(value)
            if self._saved.get((kind, number)) != crc:
                changed.append((kind, number, value))

        for count, topic in enumerate(self._directory.topics()):
            if not topic.level.checkpointed or topic.deleted:
                continue
            note("topics", topic.topic_id, topic.snapshot())
            for subscription in topic.subscriptions.values():
                note("cursors", subscription.subscription_id, subscription.snapshot())
            if not count % _SNAPSHOTS_PER_TURN:
                await trio.lowlevel.checkpoint()
        # A snapshot must not outlive the batches of topics of durability os that it describes.
        journal = self._directory.runtime.journal
        await journal.sync(journal.sequence)
        await self._directory.catalogue.snapshots.save(changed)
        self._saved = known
