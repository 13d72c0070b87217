"""Planned moves of topics of durability ``remote``: what their logs in the bucket have to know of them.

A topic leaves the wal of its owner and goes on in that of the target. Its messages stay where they are: the owner seals
what is in commits only, so the new owner finds all of it in the history that both reach. The state (producers,
subscriptions, cursors) goes into the wal of the target::

    wal of the owner       … │ TopicLeaving │ seals the rest                  │ TopicGone
    wal of the target                       TopicTaken (state, pending)      │ TopicKept │ batches, cursors, …
    metadata                                                        the switch: assignment = (target, move, wal)

Which wal has a topic, its assignment says, and nothing else: what another wal has of it is void when that one is
recovered, whichever broker does that. So ``TopicGone`` may be missing after a crash. ``TopicLeaving`` tells a recovery
that a topic without an assignment was not lost from the metadata: it was deleted after it had moved away.

The metadata may be older than the wals: an operator has put back a backup. So a wal keeps the ids of topics that have
left it, and the epochs of the moves that have brought others. A topic that has left a wal, and is assigned to it, is
refused there; the wal that really has it keeps it, and does not serve it, if the assignment elsewhere has an epoch
below that of the move to here. Both say so, and with metadata that know the move it is served again.

A broker that recovers a wal with a pending state withdraws the order of the move first. Then no switch can be applied
any more, and the assignment says which wal has the topic.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from danube.broker.catalogue.catalogue import Catalogue
from danube.broker.durability.bucket import BucketLevel, records_of
from danube.broker.topic.recovered import RecoveryVisitor, TopicSnapshot
from danube.cluster.ordering import withdraw_move
from danube.cluster.records import MOVES, MoveRecord, Wal, broker_name, topic_key, wal_of
from danube.history import (
    Change,
    RemoteJournal,
    RemoteRecovered,
    RemoteTopicState,
    TopicDeleted,
    TopicGone,
    TopicKept,
    TopicLeaving,
    TopicTaken,
    decode_change,
    encode_change,
)
from danube.log import Entry, EntryType, Settling
from danube.metadata.table import decode_record
from danube.model import Durability
from danube.model.errors import (
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    LimitExceededError,
    UnavailableError,
)
from danube.model.ids import Offset, TopicId
from danube.model.log_events import log_event
from danube.model.names import split_partition
from danube.model.records import decode_subscription, decode_topic

if TYPE_CHECKING:
    from danube.broker.topic.topic import Topic
    from danube.model.records import TopicRecord
    from danube.storage import Storage

__all__ = ["Handover"]

_log = logging.getLogger("danube.remote")

_SHARE: Final = 4
"""The state of a topic may have this part of the largest object of its storage."""
_ORDER: Final = msgspec.msgpack.Decoder(MoveRecord)
_SNAPSHOT: Final = msgspec.msgpack.Decoder(TopicSnapshot)


def _submit(journal: RemoteJournal, topic_id: TopicId, change: Change, owner: Settling) -> None:
    journal.submit(Entry(EntryType.TOPIC, topic_id, Durability.REMOTE, (encode_change(change),), owner))


class Handover:
    """See the module.

    Args:
        level: the topics of this broker.
        storages: by name.
    """

    def __init__(self, level: BucketLevel, storages: Mapping[str, Storage]) -> None:
        self._level = level
        self._storages = storages

    # --- At the owner ---

    def state_of(self, topic: Topic, move: int) -> bytes:
        """Return the state of a topic that is frozen, for the target of a move.

        Raises:
            NotFoundError, FailedPreconditionError: it was deleted in the meantime.
        """
        catalogue = self._level.catalogue
        record, known = catalogue.locate(topic.name)
        assignment = self._level.membership.assignments.values.get(topic_key(topic.topic_id))
        if known != topic.topic_id or assignment is None:
            raise FailedPreconditionError(f"topic {topic.name!r} was deleted, and created again")
        split = split_partition(topic.name)
        base = split[0] if split and catalogue.find(topic.name) is None else topic.name
        taken = TopicTaken(
            topic.topic_id,
            move,
            base,
            Catalogue.encode(record),
            topic.end_offset,
            topic.snapshot(moves=True),
            records_of(topic),
            {found.subscription_id: found.snapshot() for found in topic.subscriptions.values()},
            assignment.epoch + 1,
        )
        return encode_change(taken)

    async def seal(self, topic: Topic) -> None:
        """Seal everything that a topic has in commits only. The topic must take no messages meanwhile.

        Raises:
            UnavailableError: some of it could not be sealed; the log says why.
            DanubeError: the storage or the metadata do not answer.
        """
        history = self._level.history
        for _ in range(3):  # a round of upkeep may have sealed some of it at the same time
            await history.seal_commits(topic)
            if not history.unsealed_bytes(topic.topic_id):
                return
        raise UnavailableError(
            f"topic {topic.name!r} has messages in commits that could not be sealed; the log says why; try again"
        )

    async def announce(self, topic: Topic) -> None:
        """Note in the wal of a topic that it is about to move away; return when that is durable.

        Raises:
            DanubeError: it is not, or not yet.
        """
        self._level.leaving.add(topic.topic_id)
        noted = Settling()
        topic.submit(self._leaving(topic, is_leaving=True, owner=noted))
        await noted.wait()

    def stays(self, topic: Topic) -> None:
        """Note that a topic has not moved away."""
        if topic.topic_id not in self._level.leaving:
            return
        self._level.leaving.discard(topic.topic_id)
        try:
            topic.submit(self._leaving(topic, is_leaving=False, owner=Settling()))
        except DanubeError as error:
            _log.info("that topic %r stays is not noted in its wal: %s", topic.name, error)

    @staticmethod
    def _leaving(topic: Topic, *, is_leaving: bool, owner: Settling) -> Entry:
        payload = encode_change(TopicLeaving(topic.topic_id, is_leaving))
        return Entry(EntryType.TOPIC, topic.topic_id, Durability.REMOTE, (payload,), owner)

    async def left(self, topic: Topic) -> None:
        """Forget a topic that has moved away, and note that in its wal.

        Raises:
            DanubeError: that could not be noted; it does not have to be.
        """
        level = self._level
        wal = level.remove(topic.topic_id)
        if wal is not None:
            level.left.setdefault(wal, set()).add(topic.topic_id)
        journal = level.claims.wals.get(wal) if wal is not None else None
        if journal is None:
            return
        try:
            await level.history.manifests[topic.storage].flush()  # with what was sealed last
        finally:
            gone = Settling(patient=True)
            _submit(journal, topic.topic_id, TopicGone(topic.topic_id, topic.move), gone)
            await gone.wait()

    # --- At the target ---

    async def reserve(self, name: str, record: TopicRecord) -> None:
        """Check that this broker can take a topic, and open the wal that it is to go on in.

        Raises:
            FailedPreconditionError: this broker does not reach the storage of the topic.
            DanubeError: the wal cannot be opened now.
        """
        storage, me = self._storages.get(record.storage), broker_name(self._level.membership.me)
        if storage is None or not storage.capabilities.shared:
            why = "which only its own process reaches" if storage is not None else "which it does not have"
            raise FailedPreconditionError(
                f"topic {name!r} of durability 'remote' cannot move to broker {me}: it is in storage"
                f" {record.storage!r}, {why}; give both brokers the same shared storage"
            )
        await self._level.claims.open(record.storage)

    async def take(self, name: str, record: TopicRecord, topic_id: TopicId, move: int, state: bytes) -> tuple[str, int]:
        """Write the state of a topic to this broker's wal; return the name of the wal, and the end of the topic.

        Raises:
            InvalidArgumentError: this is not the state of that topic.
            LimitExceededError: it is too large for the storage.
            DanubeError: it is not durable, or not yet.
        """
        level, storage = self._level, self._storages[record.storage]
        taken = decode_change(state)
        if not isinstance(taken, TopicTaken) or (taken.topic_id, taken.move) != (topic_id, move):
            raise InvalidArgumentError(f"this is not the state of topic {name!r}, which is to move")
        most = storage.capabilities.max_object_bytes // _SHARE
        if len(state) > most:
            raise LimitExceededError(
                f"the state of topic {name!r} has {len(state)} bytes, and storage {record.storage!r} takes {most}"
            )
        taken.record = Catalogue.encode(record)
        wal = level.claims.home(record.storage)
        journal = level.claims.wals.get(wal)
        if journal is None:
            raise UnavailableError(f"wal {wal.name} of storage {record.storage!r} is not open any more; try again")
        level.copies[topic_id] = wal, taken
        durable = Settling()
        _submit(journal, topic_id, taken, durable)
        await durable.wait()
        return wal.name, taken.next_offset

    def has_copy(self, topic_id: TopicId) -> bool:
        """Whether a wal of this broker has the pending state of a topic."""
        return topic_id in self._level.copies

    def serve(self, name: str, record: TopicRecord, topic_id: TopicId) -> bool:
        """Serve a topic that has moved to this broker, from its pending state.

        Returns:
            False: this broker has lost the wal meanwhile; the broker that recovers it serves the topic.

        Raises:
            DataLossError: the state lacks the seek of a subscription.
            DanubeError: the journal accepts nothing more.
        """
        level = self._level
        found = level.copies.get(topic_id)
        journal = level.claims.wals.get(found[0]) if found is not None else None
        if found is None or journal is None:
            return False
        wal, taken = found
        subscriptions = {each: decode_subscription(encoded) for each, encoded in taken.subscriptions.items()}
        visitor = RecoveryVisitor(
            {topic_id: name}, {topic_id: subscriptions}, level.runtime.limits, {topic_id: taken.snapshot}, taken.cursors
        )
        if visitor.lost_seeks:
            raise DataLossError(f"the state of topic {name!r} lacks a seek of one of its subscriptions")
        state = RemoteTopicState(Offset(taken.next_offset))
        topic = level.revive_topic(name, topic_id, record, journal, state, visitor.topics.get(topic_id))
        topic.move, topic.move_epoch = taken.move, taken.epoch
        level.restore_subscriptions(topic, subscriptions, visitor)
        topic.recall(_SNAPSHOT.decode(taken.snapshot).deliveries)
        del level.copies[topic_id]
        level.add(wal, topic)
        journal.begin_topic(topic_id, state.next_offset)
        # What this topic writes from now on is behind this entry.
        _submit(journal, topic_id, TopicKept(topic_id, taken.move, Catalogue.encode(record)), Settling(patient=True))
        level.registry.adopt(topic)
        return True

    async def drop(self, topic_id: TopicId) -> None:
        """Remove the pending state of a topic whose move was given up. No-op if there is none.

        Raises:
            DanubeError: that could not be noted in the wal; its next owner decides.
        """
        found = self._level.copies.pop(topic_id, None)
        journal = self._level.claims.wals.get(found[0]) if found is not None else None
        if found is None or journal is None:
            return
        gone = Settling(patient=True)
        _submit(journal, topic_id, TopicGone(topic_id, found[1].move), gone)
        await gone.wait()

    # --- Recovery ---

    async def settle_copies(self, wal: Wal, journal: RemoteJournal, recovered: RemoteRecovered) -> None:
        """Decide about the pending states in a wal that this broker has claimed.

        Raises:
            DanubeError: the metadata do not answer.
        """
        membership, catalogue, store = self._level.membership, self._level.catalogue, self._level.catalogue.store
        for topic_id, taken in list(recovered.state.copies.items()):
            key = topic_key(topic_id)
            row = await store.get(MOVES + key)
            if row is not None and decode_record(row, _ORDER.decode).move == taken.move:
                await withdraw_move(store, topic_id, row.mod_revision)
            await membership.assignments.refresh(key)
            assignment = membership.assignments.values.get(key)
            if assignment is None or wal_of(assignment) != wal.name:
                continue
            if catalogue.find(taken.name) is None:
                await catalogue.refresh(taken.name)
            record = catalogue.find(taken.name)
            if record is None or topic_id not in record.topic_ids:
                continue  # it was deleted
            taken.record = Catalogue.encode(record)
            recovered.keep(taken)
            journal.begin_topic(topic_id, taken.next_offset)
        recovered.state.copies.clear()

    def compare(self, wal: Wal, recovered: RemoteRecovered, *, is_foreign: bool) -> None:
        """Compare what a wal says of moves with the assignments, which may be older; note what follows from that.

        Args:
            wal: that this broker has claimed.
            recovered: what it contains.
            is_foreign: whether it is not yet one of these metadata, which may lack all of its topics.
        """
        level, state = self._level, recovered.state
        assignments = level.membership.assignments.values
        if not is_foreign:
            state.left.difference_update([each for each in state.left if topic_key(each) not in assignments])
        for topic_id in [each for each, (_, record) in level.kept.items() if record.storage == wal.storage]:
            if topic_id in state.topic_ids:
                del level.kept[topic_id]  # of an earlier attempt
        for name, (topic_ids, encoded) in state.topics.items():
            for topic_id in topic_ids:
                given = assignments.get(topic_key(topic_id))
                if given is None or wal_of(given) == wal.name:
                    continue
                if state.epochs.get(topic_id, 0) <= given.epoch:
                    state.left.add(topic_id)  # a crash may have come before TopicGone
                    continue
                level.kept[topic_id] = name, msgspec.structs.replace(decode_topic(encoded), storage=wal.storage)
                _log.error(
                    "topic %r is in wal %s of storage %r, and the metadata, which are older than its last move, say"
                    " that it is at broker %s. Nothing of it is removed, and it is not served: start the brokers with"
                    " metadata that know the move, such as a newer backup, or delete the topic to give it up",
                    name,
                    wal.name,
                    wal.storage,
                    broker_name(given.owner),
                    extra=log_event("topic.refused", topic=name, storage=wal.storage),
                )
        for name, record in level.catalogue.topics():
            refused = [each for each in record.topic_ids if each in state.left and level.is_refused(each)]
            if refused and record.storage == wal.storage:
                error = self.refusal(name)
                _log.error("%s", error.message, extra=log_event("topic.refused", topic=name, storage=wal.storage))

    @staticmethod
    def refusal(name: str) -> DanubeError:
        """Return the error for a topic that has left the wal that it is assigned to."""
        return DataLossError(
            f"topic {name!r} is not served: it has moved away from this broker, and the metadata, which are older than"
            " that move, say that it is here. Nothing of it was removed: start the brokers with metadata that know the"
            " move, such as a newer backup, or delete the topic to give it up"
        )

    def deleted(self, topic_id: TopicId) -> None:
        """Note in its wal that a topic was deleted that this broker has kept and did not serve."""
        name, _ = self._level.kept[topic_id]
        wal = self._level.remove(topic_id)
        journal = self._level.claims.wals.get(wal) if wal is not None else None
        if journal is None:
            return
        payload = encode_change(TopicDeleted(name, [topic_id]))
        try:
            journal.submit(Entry(EntryType.TOPIC, topic_id, Durability.REMOTE, (payload,), Settling(patient=True)))
        except DanubeError as error:
            _log.info("that topic %r was deleted is not noted in wal %s: %s", name, wal, error)
