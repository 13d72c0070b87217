"""Enters the records and assignments of new topics into the metadata, many waiting ones in one transaction.

The record and the assignments of a topic are written in one transaction. That is conditional on the free name, on the
namespace, and on the sessions of all owners. If there are too many partitions for one transaction, the creation is
announced first, and the record comes last: until then nothing of it is visible, and the coordinator removes what is
left of a creation that was interrupted.

**Group commit.** A transaction takes as long as a majority of disks needs to sync it. So creations that wait while one
transaction is under way go into the next one together (:mod:`danube.broker.catalogue.grouping`). Whichever of the
waiting tasks gets its turn makes the transaction for all of them; the others find that they are done. If a condition
does not hold, or the store refuses a record, it is unknown which creation it belongs to: each of them is then tried by
itself. If the task that makes the transaction is cancelled, the outcome is settled by the next one, as for every change
in doubt.

**Quotas.** Topics of a namespace with a quota of topics are created one at a time. Alone, a broker knows the number of
them. In a cluster it may not have heard of all of them; so it lists them, and the transaction writes the namespace's
row again, on condition that this has not changed since before the list. So of two brokers that create the last topic,
one counts again, and is refused. Restored topics are not refused: they are what exists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from danube.broker.catalogue.assigning import TOPICS_PER_TRANSACTION, Assigning, groups
from danube.broker.catalogue.catalogue_records import CatalogueRecords
from danube.broker.catalogue.changes import MAY_BE_STALE, SETTLE_S, Changes, Row, Step, noted
from danube.broker.catalogue.grouping import Group
from danube.broker.catalogue.tables import Tables
from danube.cluster.membership import Membership
from danube.cluster.records import CREATING, CreatingRecord, Reason
from danube.metadata import Change, Condition, MetadataStore, Put, decode_record
from danube.model import Limits, validate_topic
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    MetadataConflictError,
    OwnerFencedError,
    PermissionDeniedError,
    UnavailableError,
)
from danube.model.ids import BrokerId, OwnerEpoch, TopicId
from danube.model.log_events import log_event
from danube.model.quotas import check_topics
from danube.model.records import TopicRecord, decode_topic

__all__ = ["Entering", "NewTopic", "Place"]

_log = logging.getLogger("danube.broker")

_ROWS_PER_TURN: Final = 500
"""Records that are counted before other tasks run."""

_REFUSALS: Final = (InvalidArgumentError, LimitExceededError, PermissionDeniedError)
"""Errors of the store that may be due to one record of a transaction."""

Place = Callable[[int, Sequence[BrokerId]], Sequence[BrokerId]]
"""``place(count, existing)`` chooses the owners of so many new partitions, beside those of the existing ones."""


class NewTopic:
    """A topic that is created, enlarged or restored: its new partitions, and how far that has come.

    Args:
        entering: whose tables are used.
        topic: its name.
        number: how many new partitions, about.
        make: checks whether it is possible, and returns the record; its argument is the number of partitions that are
            created in the same transaction.
        reason, epoch: of the assignments.
        place: chooses the owners; None: this broker owns all of them.
        wal: of the assignments; see :class:`~danube.cluster.records.Assignment`.
    """

    def __init__(
        self,
        entering: Entering,
        topic: str,
        number: int,
        make: Callable[[int], TopicRecord],
        reason: Reason,
        epoch: OwnerEpoch,
        place: Place | None = None,
        wal: str = "",
    ) -> None:
        self.topic = topic
        self.wal = wal
        self.number = number
        self.record: TopicRecord
        self.owners: dict[TopicId, BrokerId] = {}
        """Of the new partitions."""
        self.reason = reason
        self.epoch = epoch
        self.failure: DanubeError | None = None
        self.is_done = False
        self.is_single = False
        """Whether it is to be tried by itself."""
        self.namespace = validate_topic(topic).namespace
        self._counted: Counted | None = None
        """What :meth:`count` has found."""
        self._entering = entering
        self._make = make
        self._place = place

    @property
    def is_open(self) -> bool:
        """Whether it can go into the next transaction."""
        return not (self.is_done or self.is_single or self.failure is not None)

    def begin(self, reserved: int = 0) -> None:
        """Check that it is possible; choose ids and owners."""
        membership = self._entering.membership
        known = self._entering.tables.topics.values.get(self.topic)
        self.record = self._make(reserved)
        added = self.record.topic_ids[len(known.topic_ids) if known is not None else 0 :]
        present = [membership.owner(each) for each in known.topic_ids] if known is not None else []
        chosen: Sequence[BrokerId] = [membership.me] * len(added)
        if self._place is not None:
            chosen = self._place(len(added), [each for each in present if each is not None])
        self.owners = dict(zip(added, chosen, strict=True))
        self.check_quota()

    @property
    def is_limited(self) -> bool:
        """Whether its namespace has a quota of topics."""
        record = self._entering.tables.namespaces.values.get(self.namespace)
        return record is not None and record.quota.max_topics is not None

    async def count(self) -> None:
        """Count the topics of its namespace, if that has a quota. Call this before :meth:`begin` or :meth:`fixed`.

        Raises:
            DanubeError: the store cannot answer.
        """
        self._counted = await self._entering.count(self.namespace) if self.is_limited else None

    def check_quota(self) -> None:
        """Check that the quota of its namespace has room for it, after :meth:`count`.

        Raises:
            LimitExceededError: it has not.
            MetadataConflictError: the namespace has changed since its topics were counted.
        """
        if not self.is_limited or not self.owners or self.reason is not Reason.CREATED:
            return
        table, counted = self._entering.tables.namespaces, self._counted
        if counted is None or counted.revision != table.revision(self.namespace):
            raise MetadataConflictError(f"namespace {self.namespace!r} has changed while its topics were counted")
        check_topics(self.namespace, table.values[self.namespace].quota, counted.topics, len(self.owners))

    def fixed(self) -> list[Step]:
        """Return the conditions that the namespace exists, and that all owners run."""
        table, namespace = self._entering.tables.namespaces, self.namespace
        condition = Condition(f"/namespaces/{namespace}", table.revision(namespace))
        step = Step(table, namespace, Change((condition,), (), noted))
        if self.is_limited and not self._entering.membership.is_alone:
            # A count by another broker that does not include this topic is void.
            step = Step(table, namespace, table.put(namespace, table.values[namespace]))
        return [step, *self._entering.assigning.running(self.owners.values())]

    def finish(self) -> list[Step]:
        """Return the step that makes it visible."""
        table = self._entering.tables.topics
        return [Step(table, self.topic, table.put(self.topic, self.record))]

    def at_once(self, reserved: int = 0) -> list[Step]:
        """Begin, and return all steps; none if nothing is new."""
        self.begin(reserved)
        if not self.owners:
            return []
        assigned = self._entering.assigning.assigned(self.owners, self.reason, self.epoch, self.wal)
        return [*self.finish(), *assigned, *self.fixed()]

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that the checks depend on."""
        tables = self._entering.tables
        return Row(tables.topics, self.topic), Row(tables.namespaces, self.namespace), Row(tables.creating, self.topic)


class Counted(NamedTuple):
    """How many topics and partitions a namespace has."""

    topics: int
    revision: int
    """Of the namespace's row, read before they were counted."""


class Entering:
    """Enters new topics; see the module.

    Args:
        store: the metadata.
        tables, records: of the catalogue.
        changes: of this broker.
        assigning: makes the assignments.
        membership: this broker in the cluster.
        limits: bound the size of a transaction.
    """

    def __init__(
        self,
        store: MetadataStore,
        tables: Tables,
        records: CatalogueRecords,
        changes: Changes,
        assigning: Assigning,
        membership: Membership,
        limits: Limits,
    ) -> None:
        self._store = store
        self._records = records
        self.tables = tables
        self.membership = membership
        self.assigning = assigning
        self._changes = changes
        self._limits = limits
        self._waiting: list[NewTopic] = []
        self._abandoned: dict[tuple[TopicId, ...], str] = {}
        """Interrupted creations whose announcements may be left: their new ids, and the name."""
        self._wake = trio.Event()

    async def enter(self, new: NewTopic, *, revocable: bool) -> TopicRecord:
        """Store the record of a topic with new ids, and their assignments, in one transaction if they are few."""
        if new.number > TOPICS_PER_TRANSACTION:
            await self._enter_in_steps(new)
        elif revocable:
            await self._changes.change(new.at_once, *new.rows, revocable=True, prepare=new.count)
        else:
            await self._enter_together(new)
        return new.record

    async def _enter_together(self, new: NewTopic) -> None:
        """Store it in one transaction with others that wait."""
        self._waiting.append(new)
        try:
            async with self._changes.changing():
                while new.is_open:
                    await self._commit_waiting()
        finally:
            self._waiting.remove(new)
        if new.failure is not None:
            raise new.failure
        if new.is_single:
            await self._changes.change(new.at_once, *new.rows, prepare=new.count)

    async def count(self, namespace: str) -> Counted:
        """Count the topics and partitions of a namespace.

        Raises:
            DataLossError: a record does not decode.
            DanubeError: the store cannot answer.
        """
        table = self.tables.namespaces
        if self.membership.is_alone:
            return Counted(self._records.topics_of(namespace), table.revision(namespace))
        await table.refresh(namespace)
        revision = table.revision(namespace)
        items, _ = await self._store.list(f"/topics/{namespace}/")
        topics = 0
        for index, item in enumerate(items, 1):
            topics += len(decode_record(item, decode_topic).topic_ids)
            if not index % _ROWS_PER_TURN:
                await trio.lowlevel.checkpoint()
        return Counted(topics, revision)

    async def _commit_waiting(self) -> None:
        """Make one transaction for the first that waits, and for all others that fit; or refuse the first one."""
        limits, placing = self._limits, self.membership.placing
        group = Group(limits.metadata_max_transaction_changes, limits.metadata_max_transaction_bytes)
        members: list[NewTopic] = []
        steps: list[Step] = []
        conditions: set[str] = set()
        added = 0
        try:
            for new in [new for new in self._waiting if new.is_open]:
                if new.is_limited:
                    new.is_single = True
                    continue
                try:
                    own = new.at_once(added)
                except MAY_BE_STALE as error:
                    if self.membership.is_alone:
                        new.failure = error
                    else:
                        new.is_single = True
                    continue
                except DanubeError as error:
                    new.failure = error
                    continue
                if not own:
                    new.is_done = True
                    continue
                if not group.add(*_keys(own)):
                    if group.is_full:
                        break
                    continue
                members.append(new)
                steps += [
                    step
                    for step in own
                    if step.change.operations or not {each.key for each in step.change.conditions} <= conditions
                ]
                conditions.update(each.key for step in own for each in step.change.conditions)
                added += len(new.owners)
                placing.update(new.owners.values())
            if members:
                await self._apply(members, steps)
        finally:
            for new in members:
                placing.subtract(new.owners.values())

    async def _apply(self, members: Sequence[NewTopic], steps: Sequence[Step]) -> None:
        def applied(_revision: int) -> None:
            for new in members:
                new.is_done = True

        try:
            await self._changes.apply(*steps, then=applied)
        except DanubeError as error:
            is_refusal = isinstance(error, _REFUSALS) and len(members) > 1 and not self._changes.in_doubt
            if is_refusal or isinstance(error, MetadataConflictError):
                _log.debug("%d topics are created one by one: %s", len(members), error)
                for new in members:
                    new.is_single = True
                return
            for new in members:
                new.failure = type(error)(error.message)

    async def _enter_in_steps(self, new: NewTopic) -> None:
        """Store it in several transactions, and announce it before."""
        changes, creating, topic = self._changes, self.tables.creating, new.topic

        def announce() -> list[Step]:
            new.begin()
            if topic in creating.values:
                raise AlreadyExistsError(f"topic {topic!r} is being created or enlarged by another call")
            session = self.membership.session_condition.mod_revision
            record = CreatingRecord(creator=self.membership.me, session=session, topic_ids=tuple(new.owners))
            return [Step(creating, topic, creating.create(topic, record)), *new.fixed()]

        try:
            await changes.change(announce, *new.rows, prepare=new.count)
            still = Step(creating, topic, Change((Condition(CREATING + topic, creating.revision(topic)),), (), noted))
            async with changes.changing():
                for ids in groups(list(new.owners)):
                    group = {each: new.owners[each] for each in ids}
                    await changes.apply(still, *self.assigning.assigned(group, new.reason, new.epoch, new.wal))
                await new.count()  # others may have created topics since it was announced
                new.check_quota()
                await changes.apply(Step(creating, topic, creating.delete(topic)), *new.finish(), *new.fixed())
        except DanubeError as error:
            self._abandon(new)
            with suppress(DanubeError):  # then the task tries it again
                await self._give_up(topic, tuple(new.owners))
            if isinstance(error, MetadataConflictError):
                raise UnavailableError(
                    f"topic {topic!r} was not created or enlarged: something changed meanwhile; try again"
                ) from error
            raise
        except trio.Cancelled:
            self._abandon(new)
            raise

    def _abandon(self, new: NewTopic) -> None:
        """Note that a creation was interrupted: once its announcement is gone the coordinator removes what is left."""
        if new.owners:
            self._abandoned[tuple(new.owners)] = new.topic
            self._wake.set()

    async def _give_up(self, topic: str, topic_ids: tuple[TopicId, ...]) -> None:
        """Remove the announcement of an interrupted creation."""
        table = self.tables.creating

        def make() -> list[Step]:
            record = table.values.get(topic)
            if record is None or record.topic_ids != topic_ids:
                return []  # another creation of the same name, or this one was applied although it failed
            return [Step(table, topic, table.delete(topic))]

        await self._changes.change(make, Row(table, topic))
        self._abandoned.pop(topic_ids, None)

    async def run(self) -> None:
        """Task: remove the announcements of interrupted creations, until cancelled.

        Those of a broker that has ended are removed by the coordinator.

        Raises:
            OwnerFencedError: another process with the identity of this broker has taken over.
        """
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            for topic_ids, topic in list(self._abandoned.items()):
                try:
                    await self._give_up(topic, topic_ids)
                except OwnerFencedError:
                    raise
                except DanubeError as error:
                    _log.warning(
                        "the interrupted creation of topic %r is given up later: %s",
                        topic,
                        error,
                        extra=log_event("topic.creation_left", topic=topic),
                    )
                    self._wake.set()
            if self._wake.is_set():
                await trio.sleep(SETTLE_S)


def _keys(steps: Sequence[Step]) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Return the conditions of some steps, and their operations with the sizes of new values."""
    conditions = [(each.key, each.mod_revision) for step in steps for each in step.change.conditions]
    operations = {
        each.key: len(each.value) if isinstance(each, Put) else 0 for step in steps for each in step.change.operations
    }
    return conditions, operations
