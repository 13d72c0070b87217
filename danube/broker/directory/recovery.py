"""Recovery of topics at the start of a broker.

The metadata say which topics exist, the journal what is in them. The two are compared when the catalogue has been
listed: a list of a linearizable engine contains every change that was acknowledged before, by any broker, so a topic
that is missing in it did not exist then. No other read is needed for that.

Entries of a topic that the metadata do not know, and whose deletion neither of the two has noted, are *stranded*: the
metadata are an old copy, or another incarnation. They are reported and stay in the journal, so that they can be served
again with the right metadata.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from danube.broker.topic.recovered import RecoveryVisitor, TopicSnapshot
from danube.cluster.records import DeletedRecord, Reason, topic_key
from danube.dispatch import encode_entry
from danube.model.errors import DataLossError
from danube.model.ids import FIRST_OFFSET, TopicId
from danube.model.log_events import log_event
from danube.model.records import SubscriptionRecord, members

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping, Sequence

    from danube.broker.directory.directory import Directory
    from danube.broker.topic.recovered import TopicState
    from danube.broker.topic.topic import Topic
    from danube.history import TopicHistory
    from danube.log import Journal, Recovered, RecoveredTopic

__all__ = ["Unsettled", "recover", "settle"]

_log = logging.getLogger("danube.broker")

_MOST_NAMED: Final = 10
"""Most topics that are named in one line of the log."""


class Unsettled(NamedTuple):
    """What a recovery has found and the journal does not contain yet; to be passed to :func:`settle`."""

    changed: list[Topic]
    """Topics whose state is not the one that their entries describe."""
    deleted: list[DeletedRecord]
    void: list[TopicId]
    """Topics whose entries count for nothing: they have moved away, or their move to this broker was given up."""
    kept: dict[TopicId, bytes]
    """Snapshots of topics that stay in the journal, though the metadata do not say that their move is confirmed."""


async def recover(
    directory: Directory, *, identity: int | None, synced: int, loss_accepted: bool, reconciling: bool = False
) -> Unsettled:
    """Build the topics from the catalogue and the journal; topics of ``remote`` come from their buckets.

    Args:
        directory: receives the topics.
        identity, synced: of the journal, see :meth:`danube.log.Journal.recover`.
        loss_accepted: whether an operator has accepted, for this start, that something is lost.
        reconciling: whether the metadata are a new incarnation; topics of which nothing else is known are reported.

    Raises:
        DataLossError: the journal has lost entries that do not belong to a single topic.
    """
    catalogue, runtime, history = directory.catalogue, directory.runtime, directory.history
    subscriptions = await catalogue.subscriptions.every()
    names = {
        topic_id: topic_name for name, record in catalogue.topics() for topic_name, topic_id in members(name, record)
    }
    visitor = RecoveryVisitor(
        names,
        subscriptions,
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
    void = _void(directory, visitor, report, is_changed=loss_accepted or reconciling)
    changed: list[Topic] = []
    bare: list[str] = []
    for name, record in catalogue.topics():
        level = directory.level(record)
        if level.recovers_itself:
            continue
        for topic_name, topic_id in members(name, record):
            if not directory.membership.owns(topic_id):
                continue
            if topic_id not in visitor.topics and _is_inherited(directory, topic_id):
                continue  # it begins behind a declared gap (danube.broker.moving.inheritance)
            recovered = report.topics.pop(topic_id, None)
            topic = level.build(topic_name, topic_id, record, recovered, visitor.topics.get(topic_id))
            if report.corruptions or report.missing_files:
                lost = topic.producers.note_lost_names()
                if lost:
                    _log.error(
                        "topic %r: the names of %d producers were lost in a damaged part of the journal",
                        topic_name,
                        lost,
                        extra=log_event("topic.producers_lost", topic=topic_name),
                    )
                _note_unread(topic, history.catalogue.find(topic_id), recovered, visitor.topics.get(topic_id))
            failure = topic.failure or stopped.get(topic_id) or void.missing.get(topic_id)
            if failure is not None:
                topic.stop(failure)
                _log.error(
                    "topic %r stops: %s", topic_name, failure, extra=log_event("topic.stopped", topic=topic_name)
                )
            if (
                _restore_subscriptions(topic, subscriptions.get(topic_id, {}), visitor)
                or report.corruptions
                or report.missing_files
                or runtime.journal.is_buried(topic_id)
            ):
                changed.append(topic)
            if recovered is None and topic_id not in visitor.topics and history.catalogue.find(topic_id) is None:
                bare.append(topic_name)
            directory.adopt(topic)
    if bare and (reconciling or loss_accepted):
        _log.critical(
            "%d topics of the metadata have nothing in the journal, and no history: they were never used, or deleted"
            " since these metadata were saved, or lost; they begin at offset 0 (%s)",
            len(bare),
            _some(bare),
            extra=log_event("topic.without_messages", count=len(bare)),
        )
    deleted = catalogue.deletions.noted()
    for note in deleted:
        for topic_id in note.topic_ids:
            if topic_id not in names:  # else it was restored from a bucket
                runtime.journal.drop_topic(topic_id)
    _strand(runtime.journal, runtime.journal.topic_ids() - catalogue.alive())
    kept = {each: _kept(each, visitor, report, subscriptions) for each in void.unconfirmed}
    return Unsettled(changed, deleted, void.buried, kept)


def _kept(
    topic_id: TopicId,
    visitor: RecoveryVisitor,
    report: Recovered,
    subscriptions: Mapping[TopicId, Mapping[str, SubscriptionRecord]],
) -> bytes:
    """Return the snapshot of a topic that was moved here, without the note that the move is not confirmed."""
    state, found = visitor.topics[topic_id], report.topics.get(topic_id)
    if found is not None:
        state.producers.apply_batches(found.producers)
        state.end_offset = max(state.end_offset, found.next_offset)
    ids = [each.subscription_id for each in subscriptions.get(topic_id, {}).values()]
    cursors = [encode_entry(visitor.cursors[each].snapshot(each)) for each in ids]
    return msgspec.msgpack.encode(
        TopicSnapshot(state.end_offset, state.producers.snapshot(), cursors, state.move, state.epoch)
    )


class _Void(NamedTuple):
    """Topics whose entries in the journal are not those that the metadata name."""

    buried: list[TopicId]
    missing: dict[TopicId, DataLossError]
    unconfirmed: list[TopicId]
    """Copies of other brokers' topics that would be buried if the metadata were not changed."""


def _void(directory: Directory, visitor: RecoveryVisitor, report: Recovered, *, is_changed: bool) -> _Void:
    """Find the entries that count for nothing, and forget what was read of them.

    Args:
        directory: of the topics.
        visitor, report: what the journal holds.
        is_changed: whether the metadata are a new incarnation, or a loss was accepted: then nothing is removed.
    """
    membership, found = directory.membership, _Void([], {}, [])
    if membership.is_alone:
        return found
    from danube.cluster.moves import Copied, Fate, fate_at_recovery  # a broker that is alone moves nothing

    for topic_id in directory.runtime.journal.topic_ids() | visitor.topics.keys():
        assignment = membership.assignments.values.get(topic_key(topic_id))
        state = visitor.topics.get(topic_id)
        copied = Copied(state.move, state.epoch, state.pending) if state is not None else Copied()
        fate = fate_at_recovery(membership.me, assignment, copied)
        if assignment is not None and assignment.owner != membership.me and copied.epoch > assignment.epoch:
            # The metadata may be older than the move that has brought it: this may be all that there is.
            if fate is Fate.KEEP or (fate is Fate.BURY and is_changed):
                directory.kept.add(topic_id)
            if fate is Fate.BURY and is_changed:
                found.unconfirmed.append(topic_id)
        if fate is Fate.BURY and not is_changed:
            found.buried.append(topic_id)
            report.topics.pop(topic_id, None)
            visitor.forget(topic_id)
        elif fate is Fate.MISSING and not is_changed:
            found.missing[topic_id] = DataLossError(
                f"topic {topic_id:016x} was moved to this broker, and its journal does not hold what was moved; restore"
                " the files of the journal from a copy, or delete the topic"
            )
    if directory.kept:
        _log.error(
            "the journal holds %d topics that were moved to this broker, and the metadata, which are older than that,"
            " say that others own them (%s): they are kept, and not served; start the brokers with metadata that know"
            " the moves, such as a newer backup, or delete the topics to give them up",
            len(directory.kept),
            _some([f"{topic_id:016x}" for topic_id in sorted(directory.kept)]),
            extra=log_event("journal.moves_unknown", count=len(directory.kept)),
        )
    if found.buried:
        _log.info("%d topics that are not on this broker any more leave its journal", len(found.buried))
    return found


async def settle(directory: Directory, found: Unsettled) -> None:
    """Write what a recovery has found to the journal, which runs now; from then on it may free files.

    The end of this is the end of the recovery: topics that were assigned to this broker since may be built.

    To be called before anything is served: before new messages get offsets that cursors had acknowledged. Damage that
    explains a lost seek or unknown producers is still in the journal until this returns, so a crash repeats it all.

    Raises:
        DanubeError: the journal has failed, or the metadata cannot be reached.
    """
    journal, catalogue = directory.runtime.journal, directory.catalogue
    await journal.bury(found.void)
    await journal.save({topic.topic_id: topic.whole_snapshot() for topic in found.changed} | found.kept)
    alive = catalogue.alive()
    for note in found.deleted:
        ids = note.topic_ids
        if not alive.isdisjoint(ids):
            await catalogue.deletions.restored(note)
        elif not note.storage:  # else the wal is asked first, see Reconciliation.bury_noted
            here = {each for each in ids if directory.membership.owns(each)} | (journal.topic_ids() & set(ids))
            await journal.bury([topic_id for topic_id in ids if topic_id in here])
            await catalogue.deletions.buried(ids)
    journal.snapshot = directory.snapshot_of
    directory.following.recovered()


def _is_inherited(directory: Directory, topic_id: TopicId) -> bool:
    assignment = directory.membership.assignments.values[topic_key(topic_id)]
    return assignment.reason is Reason.FORGOTTEN


def _strand(journal: Journal, topic_ids: Collection[TopicId]) -> None:
    """Keep and report the entries of unknown topics."""
    journal.strand(topic_ids)
    if topic_ids:
        _log.critical(
            "the journal holds %d bytes of %d topics that the metadata do not know (%s): they are kept, and not"
            " served; start with the metadata that know them",
            journal.usage().stranded_bytes,
            len(topic_ids),
            _some([f"{topic_id:016x}" for topic_id in sorted(topic_ids)]),
            extra=log_event("journal.stranded", count=len(topic_ids)),
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def _note_unread(
    topic: Topic, history: TopicHistory | None, recovered: RecoveredTopic | None, state: TopicState | None
) -> None:
    """Note sealed batches since the last snapshot that a damaged journal does not show any more."""
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
            extra=log_event("journal.torn"),
        )
    for corruption in report.corruptions:
        _log.error("%s", corruption.error(), extra=log_event("journal.damaged"))


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
            _log.error(
                "%s is lost with a part of the journal: the subscription keeps its position; seek again",
                what,
                extra=log_event("subscription.seek_lost", topic=names.get(topic_id), subscription=name),
            )


def _restore_subscriptions(topic: Topic, records: Mapping[str, SubscriptionRecord], visitor: RecoveryVisitor) -> bool:
    """Restore the subscriptions of a topic; return whether a cursor differs from its entries."""
    changed = False
    for name, record in records.items():
        cursor = visitor.cursors[record.subscription_id]
        clamped = cursor.set_back(topic.end_offset)
        if clamped:
            _log.warning(
                "subscription %r of topic %r was beyond the recovered end %d and is set back to it",
                name,
                topic.name,
                topic.end_offset,
                extra=log_event("subscription.set_back", topic=topic.name, subscription=name),
            )
        changed = changed or clamped or record.subscription_id in visitor.lost_seeks
        topic.restore_subscription(name, record, cursor)
    return changed
