"""Durability ``remote``: topics whose commits are stored in a bucket, in one remote journal for each wal in use.

A journal is opened (:mod:`danube.broker.durability.claims`) when the broker starts, if the metadata or the storage
itself contains such topics, or when the first one is created. So a broker on a new machine, with only the configuration
of the lost one, finds the topics in the bucket and serves them; and a broker that never had any does not access its
storages. A storage that cannot be reached at the start does not stop the broker from serving other topics: its own
topics are unavailable until it answers, and opening it is retried.

The bucket is the source of truth about these topics; the records in the metadata store are a copy for lookups. A
creation or change is made in the metadata first and then written to the bucket, because a snapshot must not know less
than what has settled. A deletion is written to the bucket first, so that no other topic takes the name of one that the
bucket still has. So the metadata has a record of each topic of the bucket, and those that the bucket does not have are
removed at the next start: their creation was not finished, or their deletion had begun.

Older messages of these topics are in segments, like those of other topics. If the metadata was lost, the segments are
entered into it from the bucket's manifests. These are read after the fences are written, because a former owner that
still runs seals, writes manifests, and deletes commits, until it finds the fence::

    claim, fences -> manifests -> catalogue -> commits that are not sealed -> topics -> manifest of the new owner

In a cluster the metadata say which broker owns a wal, and its topics are assigned to that one. A broker that goes on
with the wal of a dead one (:mod:`danube.broker.durability.adoption`) recovers its topics in the same way; the
manifests are not needed then, because the metadata have the whole catalogue.

The last step is taken at each start, so no manifest that a fenced owner still writes has the highest epoch. The bucket
as a whole is taken over as soon as it holds no data of topics that were not restored; until then nothing in it is
merged or deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.broker.catalogue.catalogue import Catalogue
from danube.broker.durability.claims import Claims
from danube.broker.durability.level import Level, Surroundings
from danube.broker.topic.recovered import RecoveryVisitor
from danube.broker.topic.topic import Topic
from danube.cluster.ownership import Elsewhere
from danube.cluster.records import Reason, Wal, broker_name, parse_topic_id, topic_key, wal_of
from danube.history import (
    Bucket,
    RemoteJournal,
    RemoteRecovered,
    RemoteState,
    RemoteTopicState,
    SubscriptionDeleted,
    SubscriptionStored,
    TopicDeleted,
    TopicStored,
    TopicTaken,
    encode_change,
    highest_epoch,
    read_bucket,
)
from danube.history.tenure import owner_epoch
from danube.log import Entry, EntryType, ProducerTable, Settling, TopicLog
from danube.model import Durability, TopicPolicies, validate_topic
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    DataLossError,
    InternalError,
    NotOwnerError,
    OwnerFencedError,
    StorageError,
    StorageUnavailableError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import FIRST_OFFSET, NO_OWNER_EPOCH, Offset, OwnerEpoch, ProducerId, TopicId
from danube.model.log_events import log_event
from danube.model.records import (
    SubscriptionRecord,
    TopicRecord,
    check_topic_ids,
    decode_subscription,
    members,
)
from danube.storage import Storage

if TYPE_CHECKING:
    from danube.broker.catalogue.entering import Place
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.durability.adoption import Adoption
    from danube.broker.durability.handover import Handover
    from danube.broker.durability.reconciliation import Reconciliation
    from danube.broker.topic.recovered import TopicState
    from danube.cluster.records import Assignment
    from danube.log import RecoveredTopic
    from danube.metadata import RowChange
    from danube.model import SubscriptionPolicy, SubscriptionType

__all__ = ["BucketLevel", "records_of"]

_log = logging.getLogger("danube.remote")

_RETRY_S: Final = 1.0
_FOLLOW_S: Final = 10.0
"""How long the owner of a wal that was claimed waits for the assignments of the topics in it."""


class _Face:
    """The part of the broker that one remote journal may use."""

    def __init__(self, topics: BucketLevel, wal: Wal) -> None:
        self._topics = topics
        self._commits = topics.runtime.commits
        self._wal = wal

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        self._commits.settled(entries, error)

    def on_stall(self, entries: Sequence[Entry], error: DanubeError) -> None:
        self._commits.stalled(entries, error)

    def remote_state(self) -> RemoteState:
        topics, wal = self._topics, self._wal
        records = topics.kept_records(wal)
        known = topics.living(wal)
        return RemoteState(
            {name: (topics.ids_in(wal, record), Catalogue.encode(record)) for name, record in records.items()},
            {topic.topic_id: records_of(topic) for topic in known if topic.subscriptions},
            {topic.topic_id: topic.snapshot() for topic in known},
            {found.subscription_id: found.snapshot() for topic in known for found in topic.subscriptions.values()},
            {topic_id: taken for topic_id, (at, taken) in topics.copies.items() if at == wal},
            {topic.topic_id: topic.move for topic in known if topic.move},
            [topic.topic_id for topic in known if topic.topic_id in topics.leaving],
            {topic.topic_id: topic.move_epoch for topic in known if topic.move_epoch},
            set(topics.left.get(wal, ())),
        )

    def topic_name(self, topic_id: TopicId) -> str:
        topic = self._topics.by_id.get(topic_id)
        return topic.name if topic is not None else ""

    def producer_name(self, topic_id: TopicId, producer_id: ProducerId) -> str:
        topic = self._topics.by_id.get(topic_id)
        return topic.producers.name_of(producer_id) if topic is not None else ""


def records_of(topic: Topic) -> dict[str, bytes]:
    """Return the records of the subscriptions of a topic, encoded, by their names."""
    return {
        name: Catalogue.encode(found.record) for name, found in topic.subscriptions.items() if found.record is not None
    }


class BucketLevel(Level):
    """Creates and serves the topics of durability ``remote``; see the module.

    Args:
        surroundings: dependencies shared by all levels.
        storages: by name; used for the commits only, so that they do not wait behind segments.

    Attributes:
        by_id: the served topics by id.
        copies: the states of topics that are moving to this broker, by id, each with the wal that has it.
        leaving: topics that are about to move away, and are frozen.
        left: topics that have moved away, by the wals that they have left.
        kept: topics of wals of this broker that older metadata assign to another wal: not served, and not removed.
        claims: the wals of this broker.
    """

    checkpointed = False
    recovers_itself = True
    commits_to_storage = True
    needs_manifests = True
    sessions_may_move = True

    def __init__(self, surroundings: Surroundings, storages: Mapping[str, Storage]) -> None:
        super().__init__(surroundings)
        self._storages = storages
        self.by_id: dict[int, Topic] = {}
        self.copies: dict[TopicId, tuple[Wal, TopicTaken]] = {}
        self.leaving: set[TopicId] = set()
        self.left: dict[Wal, set[TopicId]] = {}
        self.kept: dict[TopicId, tuple[str, TopicRecord]] = {}
        self._handover: Handover | None = None
        self._reconciliation: Reconciliation | None = None
        self._wal_of: dict[int, Wal] = {}
        """The wals of topics that were built."""
        self._assigned = trio.Event()
        """Set, and replaced, whenever a topic was assigned to a broker."""
        self._tried: dict[Wal, OwnerEpoch] = {}
        """The epoch of the last attempt to claim a wal."""
        self._deleting: set[int] = set()
        """First ids of topics whose deletion has begun."""
        self.claims = Claims(
            self.runtime,
            self.history,
            self.membership,
            storages,
            has_topics=lambda wal: bool(self.records(wal)),
            recover=self._recover,
            take_over=lambda name, bucket: self.reconciliation.take_over(name, bucket),
            claimed=self._claimed,
            lost=self._lose,
        )
        self._adoption: Adoption | None = None
        self._adopts = False
        self._tasks: trio.Nursery | None = None
        """For adopting wals; not before this broker has begun to open its own."""
        self._background: trio.Nursery | None = None
        self.claims.on_started = self._look_for_wals
        self.membership.on_wal = self._look_for_wals
        self.membership.on_assigned.append(self._assignment_changed)

    # --- Life cycle ---

    async def start(self, tasks: trio.Nursery, journals: trio.Nursery) -> None:
        """Load the topics; return when that is done, or when it takes too long (then it continues in the background).

        Args:
            tasks: for loading in the background.
            journals: for the journals; they end last.
        """
        is_new = not any(self.catalogue.topics())
        if is_new:
            self.catalogue.unknown = self.claims.unknown
        self._background = tasks
        await self.claims.start(tasks, journals, is_new=is_new)
        self._tasks = tasks
        self._look_for_wals()

    async def aclose(self) -> None:
        """Commit pending entries, and close the journals."""
        await self.claims.aclose()

    async def _claimed(self, wal: Wal) -> None:
        for topic in self.catalogue.withheld(wal.storage):
            await self.reconciliation.serve_withheld(topic)  # the other one may have been deleted while this was opened
        if self._background is not None:
            self._background.start_soon(self.reconciliation.bury_noted, wal)

    # --- Recovery ---

    async def _recover(self, wal: Wal, is_home: bool) -> tuple[RemoteJournal, Bucket | None]:
        """Claim a wal, recover its topics, and serve them; return its journal, which does not run yet.

        And the bucket, if its history is to be taken over. Nothing is awaited after the topics are served: their
        publishers need the journal.
        """
        name, runtime, storage = wal.storage, self.runtime, self._storages[wal.storage]
        history, cluster, reconciliation = self.history, runtime.config.cluster, self.reconciliation
        if not self.membership.is_alone:
            await self.membership.check_wal(*wal)
        bucket = await read_bucket(storage, cluster)  # a bucket that cannot be read must not be fenced
        place = self.claims.place(wal)
        former = await highest_epoch(storage, place)
        known = self.records(wal)
        if known and not former:  # before the fence, which would make the next attempt take them for deleted
            raise DataLossError(
                f"{storage.url} knows nothing of its topics of durability 'remote', {min(known)} for one; restore the"
                " objects below wal/ from a copy"
            )
        tried = self._tried.get(wal, NO_OWNER_EPOCH)  # what an attempt has put may arrive after it was given up
        await history.catalogue.raise_epoch(OwnerEpoch(max(former, bucket.former_epoch(history.stream), tried) + 1))
        self._tried[wal] = history.catalogue.epoch
        await self.membership.raise_epoch(max(bucket.highest_epoch(), owner_epoch(history.catalogue.epoch, 0)))
        journal = RemoteJournal(
            storage,
            history.catalogue,
            _Face(self, wal),
            runtime.limits,
            place=place,
            owner=f"{runtime.seams.random.getrandbits(64):016x}",
            wall_clock_us=runtime.clock_us,
            manifests_current=lambda: not history.manifests[name].pending,
        )
        if is_home:
            history.manifests[name].check_owner = partial(self._check_owner, wal, journal)

        async def enter_history(recovered: RemoteRecovered) -> None:
            nonlocal bucket
            bucket = await read_bucket(storage, cluster)
            await self.membership.raise_epoch(max(bucket.highest_epoch(), journal.recovered_epoch))
            # The fences are there: what is read from now on is complete.
            if is_home:
                self.claims.release_manifests(name, history.catalogue.epoch)
            if reconciliation.is_foreign(bucket):
                await reconciliation.enter_history(wal, bucket, recovered, restoring)
            if recovered.state.copies:
                await self.handover.settle_copies(wal, journal, recovered)
            if not self.membership.is_alone:
                await self._wait_followed(wal, recovered)
            await history.catalogue.adopt_all(self._adopted(recovered))

        try:
            async with AsyncExitStack() as restoring:
                recovered = await journal.recover(enter_history)
                is_foreign = reconciliation.is_foreign(bucket)
                records = await reconciliation.agree(wal, recovered, is_foreign=is_foreign)
            others = await reconciliation.unrestored(name, bucket) if is_home and is_foreign else []
            if not self.membership.is_alone:
                await self.membership.check_wal(*wal)  # the claim may have come so late that it has fenced a successor
        except BaseException:
            history.catalogue.forget_commits(name, f"wal/{place}/")  # the topics may go on, and return, in another wal
            raise
        self._revive(wal, journal, reconciliation.undeleted(wal, recovered, records), recovered)
        return journal, bucket if is_home and not others else None

    async def _wait_followed(self, wal: Wal, recovered: RemoteRecovered) -> None:
        """Wait until all topics in a wal are assigned to its owner, this broker: a topic that is not would be dropped.

        Raises:
            UnavailableError: one still belongs to the former owner of the wal.
            DanubeError: the metadata cannot answer.
        """
        for topic in recovered.state.topics:
            if self.catalogue.find(topic) is None:
                await self.catalogue.refresh(topic)  # it was created a moment before its broker died
        with trio.move_on_after(_FOLLOW_S):
            while self._not_followed(wal, recovered):
                await self._assigned.wait()
        behind = self._not_followed(wal, recovered)
        if behind:
            raise UnavailableError(f"wal {wal.name}: {behind}; retry")

    def _not_followed(self, wal: Wal, recovered: RemoteRecovered) -> str:
        assignments = self.membership.assignments.values
        for topic, (topic_ids, _) in recovered.state.topics.items():
            for topic_id in topic_ids:
                given = assignments.get(topic_key(topic_id))
                if given is not None and given.owner != self.membership.me and wal_of(given) == wal.name:
                    return f"topic {topic!r} still belongs to broker {broker_name(given.owner)}"
        return ""

    def _adopted(self, recovered: RemoteRecovered) -> list[TopicId]:
        """Return the recovered topics whose history was not read when this broker started, or was released since."""
        assignments, catalogue = self.membership.assignments.values, self.history.catalogue
        found = []
        for topic_id in (each for topic_ids, _ in recovered.state.topics.values() for each in topic_ids):
            given = assignments.get(topic_key(topic_id))
            if given is None or given.owner != self.membership.me:
                continue
            if given.reason in (Reason.FAILOVER, Reason.MOVED) or catalogue.was_released(topic_id):
                found.append(topic_id)
        return found

    async def _check_owner(self, wal: Wal, journal: RemoteJournal) -> None:
        """Verify that no other owner has claimed a wal, before a manifest is written.

        In a cluster the topics of a wal that was lost are given up, and the manifest has those that are left.

        Raises:
            OwnerFencedError: another process has claimed the bucket of this broker, which is alone.
            StorageError: the backend cannot be read.
        """
        try:
            if journal.failure is None:
                await journal.check_owner()
        except OwnerFencedError as error:
            if not self.claims.gives_way(wal):
                raise
            journal.abandon(error)

    # --- Wals that are lost ---

    def _assignment_changed(self, change: RowChange[Assignment]) -> None:
        """Give up a wal whose topics are assigned to its new owner."""
        after, me = change.after, self.membership.me
        self._assigned.set()
        self._assigned = trio.Event()
        topic_id = parse_topic_id(change.name)
        if after is None:
            self._deleted(topic_id)
            return
        wal = self._wal_of.get(topic_id)
        if wal is not None and wal_of(after) == wal.name and (after.owner != me or self._is_later(topic_id)):
            error = OwnerFencedError(
                f"wal {wal.name} of storage {wal.storage!r} was given to another broker while this one had no session"
            )
            self.claims.lose(wal, error)

    def _deleted(self, topic_id: TopicId) -> None:
        """Forget a topic that was deleted, and that is not in the wals of this broker according to the metadata."""
        for left in self.left.values():
            left.discard(topic_id)
        if topic_id in self.kept:
            self.handover.deleted(topic_id)

    def _is_later(self, topic_id: TopicId) -> bool:
        """Whether a topic of this broker had another owner since it was built."""
        topic = self.by_id.get(topic_id)
        return topic is not None and topic.owner_epoch not in (NO_OWNER_EPOCH, self.membership.epoch(topic_id))

    def _lose(self, wal: Wal) -> None:
        """Serve the topics of a wal no longer; their history is the business of another broker."""
        gone = [topic_id for topic_id, at in self._wal_of.items() if at == wal]
        self.registry.withdraw(map(TopicId, gone), self._moved)
        for topic_id in gone:
            self.remove(TopicId(topic_id))
            self.history.release_topic(TopicId(topic_id))
        for copied in [topic_id for topic_id, (at, _) in self.copies.items() if at == wal]:
            del self.copies[copied]  # whichever broker reads the wal decides what becomes of it
        self.left.pop(wal, None)
        self.history.catalogue.forget_commits(wal.storage, f"wal/{self.claims.place(wal)}/")
        self._look_for_wals()

    @property
    def reconciliation(self) -> Reconciliation:
        """Makes the metadata agree with the buckets."""
        if self._reconciliation is None:
            from danube.broker.durability.reconciliation import Reconciliation  # only where there are such topics

            self._reconciliation = Reconciliation(self, self._storages)
        return self._reconciliation

    @property
    def handover(self) -> Handover:
        """Gives topics to other brokers by plan, and takes theirs."""
        if self._handover is None:
            from danube.broker.durability.handover import Handover  # a broker that is alone needs none

            self._handover = Handover(self, self._storages)
        return self._handover

    @property
    def adoption(self) -> Adoption:
        """Opens the wals that this broker gets from others."""
        if self._adoption is None:
            from danube.broker.durability.adoption import Adoption  # a broker that is alone needs none

            tables = self.catalogue.tables
            self._adoption = Adoption(self.membership, tables.topics, tables.deleted, self.claims)
        return self._adoption

    def _look_for_wals(self) -> None:
        """A wal has another owner, or was lost, or this broker has begun to open wals."""
        has_others = not self.membership.is_alone or self.membership.wals.values or self.claims.has_others
        if self._tasks is None or not has_others:
            return
        if not self._adopts:
            self._adopts = True
            self._tasks.start_soon(self.adoption.run)
        self.adoption.look_again()

    def _moved(self, name: str) -> DanubeError:
        """Return the error for those who use a topic that this broker has lost."""
        _, topic_id = self.catalogue.locate(name)
        owner = self.membership.owners.owner_of(topic_id)
        address = owner.address if isinstance(owner, Elsewhere) else ""
        return NotOwnerError(
            f"topic {name!r} has another owner: broker {self.membership.broker} was taken for dead",
            {"address": address},
        )

    async def restore_schemas(self, storage: Storage) -> None:
        """Bring the schemas of a bucket into the registry."""
        await self._restore_schemas(storage)

    def _revive(
        self,
        wal: Wal,
        journal: RemoteJournal,
        records: Mapping[str, tuple[list[TopicId], TopicRecord]],
        recovered: RemoteRecovered,
    ) -> None:
        """Build the topics, also the withheld ones for snapshots of the journal; serve those of ``records``."""
        subscriptions = {
            number: {subscription: decode_subscription(encoded) for subscription, encoded in found.items()}
            for number, found in recovered.state.subscriptions.items()
        }
        withheld = {
            topic: (record.topic_ids, record)
            for topic, record in self.catalogue.withheld(wal.storage).items()
            if topic in recovered.state.topics
        }
        kept: dict[str, tuple[list[TopicId], TopicRecord]] = {}
        for topic_id, (topic, record) in self.kept.items():
            if topic_id in recovered.state.topic_ids:
                kept.setdefault(topic, ([], record))[0].append(topic_id)
        # The bucket says what exists: a deletion that had failed when the wal was lost has not happened.
        self._deleting.difference_update(record.topic_ids[0] for _, record in records.values())
        everything = [
            (topic, each, number, record)
            for known in (records, withheld, kept)
            for topic, (ids, record) in known.items()
            for each, number in members(topic, record)
            if number in ids
        ]
        names = {number: each for _, each, number, _ in everything}
        left = (recovered.topics.keys() | recovered.state.topic_ids) - names.keys()
        prefix = f"wal/{self.claims.place(wal)}/"
        self.history.catalogue.forget_commits_of(map(TopicId, left), wal.storage, prefix)
        visitor = RecoveryVisitor(
            names,
            subscriptions,
            self.runtime.limits,
            recovered.state.topic_snapshots,
            recovered.state.cursor_snapshots,
        )
        recovered.replay(visitor)
        if visitor.lost_seeks:
            raise DataLossError(
                f"the commits of durability 'remote' lack a seek of {len(visitor.lost_seeks)} subscriptions, and have"
                " entries after it; restore the objects below wal/ from a copy"
            )
        for topic, each, number, record in everything:
            state = recovered.topics.get(number, RemoteTopicState())
            revived = self.revive_topic(each, number, record, journal, state, visitor.topics.get(number))
            revived.move = recovered.state.moves.get(number, 0)
            revived.move_epoch = recovered.state.epochs.get(number, 0)
            self.restore_subscriptions(revived, subscriptions.get(number, {}), visitor)
            self.add(wal, revived)
            if topic in records and number not in self.kept:
                self.registry.adopt(revived)

    def restore_subscriptions(
        self, topic: Topic, subscriptions: Mapping[str, SubscriptionRecord], visitor: RecoveryVisitor
    ) -> None:
        """Give a topic its subscriptions, with the cursors that were recovered."""
        for name, record in subscriptions.items():
            cursor = visitor.cursors[record.subscription_id]
            if cursor.clamp(topic.end_offset):
                _log.error(
                    "subscription %r of topic %r was beyond the end %d",
                    name,
                    topic.name,
                    topic.end_offset,
                    extra=log_event("subscription.set_back", topic=topic.name, subscription=name),
                )
            topic.restore_subscription(name, record, cursor)

    # --- Topics ---

    def build(
        self,
        name: str,
        topic_id: TopicId,
        record: TopicRecord,
        recovered: RecoveredTopic | None = None,
        found: TopicState | None = None,
    ) -> Topic:
        """Raise InternalError: these topics are built from their bucket."""
        raise InternalError(f"topic {name!r} has durability 'remote' and is built from its bucket")

    def revive_topic(
        self,
        name: str,
        topic_id: TopicId,
        record: TopicRecord,
        journal: RemoteJournal,
        recovered: RemoteTopicState,
        found: TopicState | None,
    ) -> Topic:
        """Build a topic from its state in the bucket."""
        runtime, history = self.runtime, self.history
        producers = found.producers if found is not None else ProducerTable(runtime.limits, name)
        producers.apply_batches(recovered.producers)
        known = history.catalogue.find(topic_id)
        end = recovered.next_offset
        log = TopicLog(
            topic_id,
            record.durability,
            runtime.journal,
            runtime.cache,
            # A topic that is withheld has no owner: nothing is written to it before it is served.
            self.membership.epoch(topic_id) if self.membership.owns(topic_id) else NO_OWNER_EPOCH,
            end,
            known.start_offset if known is not None else FIRST_OFFSET,
            sealed_offset=end,
            sealed=history.reader,
            submitter=journal,
        )
        policies = self.policies.of_topic(name, record)
        return Topic(runtime, self.registry, self, name, topic_id, record, policies, log, producers, journal)

    def add(self, wal: Wal, topic: Topic) -> None:
        """Note a topic that is in a wal of this broker."""
        self.by_id[topic.topic_id] = topic
        self._wal_of[topic.topic_id] = wal
        self.left.get(wal, set()).discard(topic.topic_id)

    def remove(self, topic_id: TopicId) -> Wal | None:
        """Forget a topic; return the wal in which it is. No-op if it is unknown."""
        self.by_id.pop(topic_id, None)
        self.leaving.discard(topic_id)
        self.kept.pop(topic_id, None)
        return self._wal_of.pop(topic_id, None)

    def wal_with(self, topic_id: TopicId) -> Wal | None:
        """Return the wal of a topic that is served here."""
        return self._wal_of.get(topic_id)

    def noted(self, wal: Wal) -> str:
        """Return how an assignment to this broker names a wal."""
        return "" if wal.name == self.membership.broker else wal.name

    def records(self, wal: Wal) -> dict[str, TopicRecord]:
        """Return the records of the topics of this durability in a wal, without those of other brokers."""
        return {
            name: record
            for name, record in self.catalogue.topics()
            if record.durability is Durability.REMOTE
            and record.storage == wal.storage
            and any(self._is_in(wal, topic_id) for topic_id in record.topic_ids)
        }

    def ids_in(self, wal: Wal, record: TopicRecord) -> list[TopicId]:
        """Return the ids of a topic that are in a wal of this broker, also of one that is withheld."""
        return [each for each in record.topic_ids if self._wal_of.get(each) == wal or self._is_in(wal, each)]

    def _is_in(self, wal: Wal, topic_id: TopicId) -> bool:
        """Whether a topic that has the storage of a wal is in it, and belongs to this broker or to none."""
        assignment = self.membership.assignments.values.get(topic_key(topic_id))
        copied = self.copies.get(topic_id)
        # A pending state in another wal says nothing about this one: this broker may be the heir of its source.
        if (copied is not None and copied[0] == wal) or topic_id in self.left.get(wal, ()):
            return False  # its state is pending, or the metadata are older than the wal
        if assignment is None:
            return wal == self.claims.home(wal.storage)
        return assignment.owner == self.membership.me and wal_of(assignment) == wal.name

    def is_refused(self, topic_id: TopicId) -> bool:
        """Whether the metadata say that a topic is in a wal of this broker which it has left."""
        assignment = self.membership.assignments.values.get(topic_key(topic_id))
        if assignment is None or assignment.owner != self.membership.me:
            return False
        return any(topic_id in left for wal, left in self.left.items() if wal.name == wal_of(assignment))

    def has_noted(self, storage: str, topic_id: TopicId) -> bool:
        """Whether the wal of a topic is open, so that :meth:`bury` has noted there that the topic was deleted."""
        name = self.membership.wal_of(topic_id)
        wal = Wal(storage, name or "")
        return wal in self.claims.wals and not self.reconciliation.owes(wal, topic_id)

    def kept_records(self, wal: Wal) -> dict[str, TopicRecord]:
        """Return the records of the topics in a wal, also withheld ones, but none whose deletion has begun."""
        withheld = {
            name: record
            for name, record in self.catalogue.withheld(wal.storage).items()
            if self._wal_of.get(record.topic_ids[0]) == wal
        }
        kept = {name: record for each, (name, record) in self.kept.items() if self._wal_of.get(each) == wal}
        records = {**kept, **withheld, **self.records(wal)}
        return {name: record for name, record in records.items() if record.topic_ids[0] not in self._deleting}

    def living(self, wal: Wal) -> list[Topic]:
        """Return the topics of a wal that are served."""
        return [topic for topic in self.by_id.values() if self._wal_of[topic.topic_id] == wal]

    async def _journal_of(self, record: TopicRecord) -> tuple[Wal, RemoteJournal]:
        """Return the wal of a topic, and its journal; raises as :meth:`Claims.open`, or NotOwnerError."""
        name = self.membership.wal_of(record.topic_ids[0])
        if name is not None and not self.membership.is_alone:
            self.membership.epoch(record.topic_ids[0])
        wal = Wal(record.storage, name) if name is not None else self.claims.home(record.storage)
        journal = self.claims.wals.get(wal)
        if journal is not None:
            return wal, journal
        if wal != self.claims.home(record.storage):
            raise self.adoption.unavailable(wal)
        journal = await self.claims.open(record.storage)
        return self.claims.home(record.storage), journal

    def unavailable(self, name: str, record: TopicRecord) -> DanubeError:
        """Return why a topic of this durability is not served."""
        if any(map(self.is_refused, record.topic_ids)):
            return self.handover.refusal(name)
        at = self.membership.wal_of(record.topic_ids[0])
        wal = Wal(record.storage, at) if at is not None else self.claims.home(record.storage)
        if wal not in self.claims.wals and wal != self.claims.home(record.storage):
            return self.adoption.unavailable(wal)
        failure = self.claims.failures.get(record.storage)
        why = failure.message if failure is not None else "its creation or deletion is in progress"
        if failure is not None and not failure.retryable and not isinstance(failure, StorageError):
            return type(failure)(f"topic {name!r} cannot be served: {why}")
        return StorageUnavailableError(f"topic {name!r} waits for storage {record.storage!r}: {why}; try again")

    async def create(
        self,
        name: str,
        durability: Durability,
        partitions: int,
        storage: str,
        policies: TopicPolicies | None,
        place: Place | None = None,
    ) -> TopicRecord:
        """Create a topic; return when that is durable in its storage.

        Raises as :meth:`Claims.open`, and StorageUnavailableError: the creation has to wait, and may happen later.
        """
        journal = await self.claims.open(storage)
        await self.reconciliation.serve_withheld(name)
        if name in self.catalogue.withheld(storage):
            raise AlreadyExistsError(
                f"topic {name!r} exists already in {self._storages[storage].url}, and is not served: another topic has"
                " its name, or the metadata is unavailable; the log of the broker says which"
            )
        wal = self.claims.home(storage)
        record = await self.catalogue.creations.create(
            name, durability, partitions, storage, policies, revocable=True, wal=self.noted(wal)
        )

        def bring_to_life() -> None:
            latest = self._latest(name, record)
            if latest is None:
                return
            for each, number in members(name, record):
                topic = self.revive_topic(each, number, latest, journal, RemoteTopicState(), None)
                self.add(wal, topic)
                self.registry.adopt(topic)

        change = TopicStored(name, record.topic_ids, Catalogue.encode(record))
        await self._submit(journal, record, change, Settling(bring_to_life))
        catalogue = self.catalogue
        above = (catalogue.namespace_policies(validate_topic(name).namespace), catalogue.broker_policies)
        if above != (TopicPolicies(), TopicPolicies()):
            # Commits contain only topics.
            self.history.note_records(storage, catalogue.records_above(name), always=True)
        return record

    async def enlarge(self, name: str, record: TopicRecord, partitions: int, place: Place | None = None) -> None:
        """Give a partitioned topic more partitions; return when that is durable in its storage.

        Raises as :meth:`create`.
        """
        wal, journal = await self._journal_of(record)
        record = await self.catalogue.creations.enlarge(name, partitions, revocable=True, wal=self.noted(wal))
        if self._latest(name, record) is None:
            raise TopicNotFoundError(f"topic {name!r} was deleted while it was to get more partitions")

        def bring_to_life() -> None:
            latest = self._latest(name, record)
            if latest is None:
                return
            for each, number in members(name, record):
                if number not in self.by_id and self.membership.owns(number):
                    topic = self.revive_topic(each, number, latest, journal, RemoteTopicState(), None)
                    self.add(wal, topic)
                    self.registry.adopt(topic)

        change = TopicStored(name, self.ids_in(wal, record), Catalogue.encode(record))
        await self._submit(journal, record, change, Settling(bring_to_life))

    def _latest(self, name: str, record: TopicRecord) -> TopicRecord | None:
        """Return the current record: its policies may have been changed since. None: its deletion has begun."""
        latest, first = self.catalogue.find(name), record.topic_ids[0]
        return latest if latest is not None and latest.topic_ids[0] == first and first not in self._deleting else None

    async def changed(self, name: str, record: TopicRecord) -> None:
        """Write a record that was changed in the catalogue to the storage; return when that is durable.

        Raises as :meth:`Claims.open`, StorageUnavailableError as :meth:`create`, and TopicNotFoundError: the topic was
        deleted in the meantime.
        """
        wal, journal = await self._journal_of(record)
        latest = self._latest(name, record)  # the last caller has to store the last change
        if latest is None or latest.topic_ids != record.topic_ids:
            raise TopicNotFoundError(f"topic {name!r} was deleted while it was being changed")
        change = TopicStored(name, self.ids_in(wal, latest), Catalogue.encode(latest))
        await self._submit(journal, latest, change, Settling())

    async def prepare_change(self, record: TopicRecord) -> None:
        """Wait until the records have been read from the bucket, which replace what is changed here meanwhile.

        Raises what :meth:`Claims.open` does.
        """
        await self._journal_of(record)

    async def delete(
        self,
        name: str,
        end: Callable[[str, TopicRecord], Awaitable[None]],
        topic_ids: Collection[TopicId] = (),
    ) -> TopicRecord:
        """Delete a topic; first in the bucket, see the module. Until both have it, its name is taken.

        Raises as :meth:`Claims.open`, and DanubeError: the metadata cannot be written at all; the deletion may be
        repeated.
        """
        wal, journal = await self._journal_of(self.catalogue.expect(name))
        record = self.catalogue.expect(name)
        check_topic_ids(name, topic_ids, record.topic_ids[0])
        # From here on no change of the record is submitted, and a snapshot does not contain it.
        self._deleting.add(record.topic_ids[0])
        await end(name, record)
        await self.bury(name, record.topic_ids, {wal: journal})
        while True:
            try:
                record = await self.catalogue.deletions.delete(name, storage=record.storage)
                break
            except DanubeError as error:
                if not error.retryable:
                    raise
                _log.warning(
                    "topic %r is deleted in its bucket, and its record is not yet; retrying: %s",
                    name,
                    error,
                    extra=log_event("topic.deletion_left", topic=name),
                )
                await trio.sleep(_RETRY_S)
        self._deleting.discard(record.topic_ids[0])
        return record

    async def bury(
        self, name: str, topic_ids: Collection[TopicId], journals: Mapping[Wal, RemoteJournal] | None = None
    ) -> None:
        """Note the deletion of a topic in the wals of this broker; return when that is durable.

        Args:
            name: of the topic as a whole.
            topic_ids: its ids; those of other brokers are theirs to bury.
            journals: of wals that have to note it in any case.

        Raises:
            DanubeError: a journal accepts nothing more.
        """
        found = dict(journals or {})
        for topic_id in topic_ids:
            for left in self.left.values():
                left.discard(topic_id)
            wal = self.remove(topic_id)
            if wal is not None and wal in self.claims.wals:
                found.setdefault(wal, self.claims.wals[wal])
        owners: list[Settling] = []
        for journal in found.values():
            owners.append(Settling(patient=True))
            payload = encode_change(TopicDeleted(name, list(topic_ids)))
            journal.submit(Entry(EntryType.TOPIC, next(iter(topic_ids)), Durability.REMOTE, (payload,), owners[-1]))
        for owner in owners:
            await owner.wait()

    @staticmethod
    async def _submit(journal: RemoteJournal, record: TopicRecord, change: TopicStored, owner: Settling) -> None:
        payload = encode_change(change)
        journal.submit(Entry(EntryType.TOPIC, record.topic_ids[0], Durability.REMOTE, (payload,), owner))
        await owner.wait()

    # --- Subscriptions ---

    async def create_subscription(
        self, topic: Topic, name: str, kind: SubscriptionType, start: Offset, policy: SubscriptionPolicy
    ) -> Subscription:
        """Add a subscription, and submit it; :attr:`Subscription.creation` settles when it is durable."""
        # Add it before its entry is submitted: a snapshot of the journal must not know less than its commits.
        record = SubscriptionRecord(self.runtime.new_id(), kind, start, self.runtime.clock_us(), policy)
        found = topic.restore_subscription(name, record, None)
        found.creation = Settling()
        self._change(topic, SubscriptionStored(topic.topic_id, name, Catalogue.encode(record)), found.creation)
        return found

    async def delete_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Delete a subscription; return when that is durable."""
        # Remove it here first: a snapshot of the journal must not contain what a commit has deleted.
        topic.remove_subscription(subscription)
        deletion = Settling()
        self._change(topic, SubscriptionDeleted(topic.topic_id, subscription.name), deletion)
        await deletion.wait()

    async def change_subscription(self, topic: Topic, subscription: Subscription, policy: SubscriptionPolicy) -> None:
        """Apply a policy, and store it."""
        assert subscription.record is not None
        # First here, then in the storage: a snapshot of the journal must not know less than its commits.
        record = subscription.record = msgspec.structs.replace(subscription.record, policy=policy)
        subscription.change_policy(policy)
        stored = Settling()
        self._change(topic, SubscriptionStored(topic.topic_id, subscription.name, Catalogue.encode(record)), stored)
        await stored.wait()

    @staticmethod
    def _change(topic: Topic, change: SubscriptionStored | SubscriptionDeleted, owner: Settling) -> None:
        topic.submit(Entry(EntryType.TOPIC, topic.topic_id, topic.durability, (encode_change(change),), owner))
