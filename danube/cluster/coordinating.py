"""The coordinator's shell: elected through the metadata, it carries out what the pure rules decide.

Every broker runs :meth:`Coordinating.run`. One of them holds the key ``/coordinator/holder``, which is attached to its
session: when the session ends the key vanishes, and whichever broker creates it next is the coordinator. Its changes
are conditional on that key's revision, so those of a former one that are still on their way are refused.

The coordinator follows the tables of the cluster and decides again when one has changed, and every :data:`LOOK_S`; less
often if there are so many topics that looking at all of them takes long, and none waits for an owner
(:mod:`danube.cluster.survey`). The tables are followed one by one, so
together they may show a state that never was. An action names the revisions of all rows that it depends on. The
absence of a row has no revision: before an assignment is deleted because its topic does not exist, the topics are
listed. A deleted topic is listed in a note until all owners have removed what they have of it, and then their
assignments.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.cluster.conditions import assign_conditions, follow_conditions, grouped
from danube.cluster.coordinator import (
    Action,
    AssignTopic,
    DeleteAssignment,
    DeleteObject,
    FollowWal,
    Garbage,
    GiveUpCreation,
    OrderMove,
    Picture,
    TakeWal,
    WithdrawMove,
    decide,
)
from danube.cluster.membership import Membership
from danube.cluster.noticing import Noticing
from danube.cluster.records import (
    ASSIGNMENTS,
    COORDINATOR,
    CREATING,
    DELETED,
    MOVES,
    SESSIONS,
    TOPICS,
    WALS,
    CoordinatorRecord,
    CreatingRecord,
    DeletedRecord,
    broker_name,
    is_topic_key,
    is_topic_name,
    topic_key,
    wal_key,
)
from danube.cluster.survey import Survey
from danube.metadata import Condition, Delete, KeyValue, MetadataStore, Put, RowChange, Table, may_pass
from danube.metadata.table import decode_record
from danube.model.errors import DanubeError, MetadataConflictError, NotFoundError, UnavailableError
from danube.model.ids import BrokerId, TopicId
from danube.model.log_events import log_event
from danube.model.records import TopicRecord, decode_topic
from danube.peers import Peers

if TYPE_CHECKING:
    from danube.cluster.placement import Candidate
    from danube.cluster.weighing import Weighing

__all__ = ["LOOK_S", "Coordinating"]

_log = logging.getLogger("danube.cluster")

LOOK_S: Final = 1.0
"""How often the coordinator decides although no table has changed."""
_SETTLE_S: Final = 0.05
"""Pause after a change, so that one decision covers all changes of a moment."""
_HOLDER: Final = "holder"
_WORK_SHARE: Final = 0.05
"""Share of the time of this process that looking may take."""
_AT_ONCE: Final = 4
"""Transactions that assign the topics of a wal at the same time."""
_CREATING: Final = msgspec.msgpack.Decoder(CreatingRecord)
_NOTE: Final = msgspec.msgpack.Decoder(DeletedRecord)
_encode = msgspec.msgpack.encode


def _is_below(prefix: str, item: KeyValue) -> bool:
    """Whether a key is that of a row by the name of a topic; the tables log others."""
    return is_topic_name(item.key.removeprefix(prefix))


async def _delete_nothing(storage: str, object_: str) -> None:
    raise UnavailableError(f"object {object_} of storage {storage!r} cannot be deleted: no storage is attached")


class Coordinating:
    """One broker's part in coordination.

    Args:
        store: the metadata.
        membership: of this broker; joined, and running while this runs.
        topics, creating, deleted: the records of topics, the topics that are being created, and the notes of those
            that were deleted, as this broker follows them.
        random: draws the ids of moves.
        weighing: makes what asks the brokers for their loads, and plans moves so that they become even; called when
            this broker coordinates others. None: what the brokers have is not known, and nothing moves for that.
        hindrances: returns why topics cannot be moved, as their owners say; such topics are not ordered to move when a
            broker is drained. None: all are, and their owners withdraw the orders.
        garbage: returns the objects of storages that wait for their deletion.
        delete_object: deletes an object of a storage; no error if it does not exist.
        clock_s: seconds since 1970, for the age of garbage.
        peers: the links of this broker, with which dead brokers are noticed early (:mod:`danube.cluster.noticing`);
            None: their sessions end with their time to live.
    """

    def __init__(
        self,
        store: MetadataStore,
        membership: Membership,
        *,
        topics: Table[TopicRecord],
        creating: Table[CreatingRecord],
        deleted: Table[DeletedRecord],
        random: Random,
        weighing: Callable[[], Weighing] | None = None,
        hindrances: Callable[[Sequence[tuple[str, TopicId]]], Awaitable[Mapping[TopicId, str]]] | None = None,
        garbage: Callable[[], Sequence[Garbage]] = tuple,
        delete_object: Callable[[str, str], Awaitable[None]] = _delete_nothing,
        clock_s: Callable[[], float] = trio.current_time,
        peers: Peers | None = None,
    ) -> None:
        self._store = store
        self._membership = membership
        self._delete_object = delete_object
        self._clock_s = clock_s
        self._changed = trio.Event()
        self._rest_s = 0.0
        self._term = 0
        """Revision of the coordinator's key when this broker last decided."""
        self._random = random
        self._hindrances = hindrances
        self._make_weighing = weighing
        self._weighing: Weighing | None = None
        self._survey = Survey(membership, topics, creating, deleted, self._candidates, garbage)
        self._holder = Table(
            store,
            COORDINATOR,
            CoordinatorRecord,
            watched=True,
            on_change=self._look_again,
            is_name=lambda name: name == _HOLDER,
        )
        self._noticing = Noticing(store, membership, peers, lambda: self.coordinator) if peers is not None else None

    @property
    def coordinator(self) -> BrokerId | None:
        """The broker that coordinates, as far as this one knows."""
        record = self._holder.values.get(_HOLDER)
        return record.broker if record is not None else None

    @property
    def is_coordinator(self) -> bool:
        """Whether this broker coordinates, as far as it knows."""
        return self.coordinator == self._membership.me

    def look_again(self) -> None:
        """Decide again soon: a topic was created or deleted, or something that is not in the metadata has changed."""
        self._changed.set()

    def _look_again(self, change: RowChange[CoordinatorRecord]) -> None:
        self._changed.set()
        if self._noticing is not None:
            self._noticing.look_again()

    # --- The task ---

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Task: coordinate whenever this broker is elected. It counts as started once the tables are loaded.

        Raises:
            DataLossError: a record of the cluster does not decode.
            DanubeError: the metadata store failed for good, for example because it was closed.
        """
        async with trio.open_nursery() as nursery:
            await nursery.start(self._holder.follow)
            self._membership.on_session.append(self.look_again)
            self._membership.on_change.append(self.look_again)
            if self._noticing is not None:
                nursery.start_soon(self._noticing.run)
            task_status.started()
            while True:
                self._changed = trio.Event()
                if self._weighing is None and self._make_weighing is not None and self._coordinates_others():
                    self._weighing = self._make_weighing()
                    nursery.start_soon(self._weighing.run, lambda: self.is_coordinator, self.look_again)
                try:
                    await self._look()
                except (MetadataConflictError, NotFoundError):
                    pass  # Something has changed meanwhile; the tables will show it.
                except UnavailableError as error:
                    _log.info("coordination waits: %s", error)
                except DanubeError as error:
                    if not may_pass(error):
                        raise
                    _log.warning("coordination waits: %s", error, extra=log_event("cluster.coordination_waits"))
                with trio.move_on_after(self._pause_s()):
                    await self._changed.wait()
                    await trio.sleep(max(_SETTLE_S, self._rest_s))

    def _pause_s(self) -> float:
        """Return how long to wait if nothing changes."""
        pause_s = max(LOOK_S, self._rest_s)
        due_s = self._survey.next_overdue_s() if self.is_coordinator else None
        return pause_s if due_s is None else min(pause_s, due_s + _SETTLE_S)

    async def _look(self) -> None:
        """Become the coordinator if there is none; decide and act if it is this one."""
        self._survey.note_absences()
        if not self._membership.session_revision:
            return
        if self.coordinator is None:
            record = CoordinatorRecord(broker=self._membership.me)
            condition = self._membership.session_condition
            put = Put(COORDINATOR + _HOLDER, _encode(record), self._membership.lease)
            await self._store.transact([condition, Condition(put.key, 0)], [put])
            _log.info("broker %s coordinates the cluster", broker_name(self._membership.me))
            return  # The table follows in a moment.
        if self.is_coordinator:
            self._term = self._holder.revision(_HOLDER)
            picture = await self.picture()
            actions = decide(picture, self._clock_s())
            ordered = {action.topic_id for action in actions if isinstance(action, OrderMove)}
            if picture.departing:
                self._survey.departures.decided(picture.departing, ordered, trio.current_time())
            self._rest_s = self._survey.worked_s / _WORK_SHARE
            if all(isinstance(action, DeleteObject | OrderMove | WithdrawMove) for action in actions):
                self._survey.note_calm()
            if any(isinstance(action, AssignTopic | OrderMove | TakeWal | FollowWal) for action in actions):
                self._rest_s = 0.0  # Topics are waiting.
            await self._act(actions)

    def _coordinates_others(self) -> bool:
        return self.is_coordinator and len(self._membership.sessions.values) > 1

    def _candidates(self) -> Mapping[BrokerId, Candidate]:
        return {} if self._weighing is None else self._weighing.candidates()

    async def picture(self) -> Picture:
        """Return everything that may need a decision, as this broker knows it."""
        picture = await self._survey.picture()
        if picture.departing and self._hindrances is not None:
            found = await self._hindrances([(each.topic, each.topic_id) for each in picture.departing])
            for topic in self._survey.departures.put_off(picture.departing, found, trio.current_time()):
                name = broker_name(topic.owner)
                _log.warning(
                    "broker %s is drained and keeps topics that cannot move, for example %s: %s."
                    " `danube cluster drain %s` names all such topics",
                    name,
                    topic.topic,
                    found[topic.topic_id],
                    name,
                    extra=log_event("cluster.topics_stay", broker=name),
                )
            able = tuple(each for each in picture.departing if each.topic_id not in found)
            picture = msgspec.structs.replace(picture, departing=able)
        if self._weighing is None:
            return picture
        self._weighing.note_moving(picture.moves)
        return msgspec.structs.replace(picture, plan=self._weighing.plan())

    # --- Actions ---

    async def _act(self, actions: Sequence[Action]) -> None:
        assigned = [action for action in actions if isinstance(action, AssignTopic)]
        for group in grouped(assigned, assign_conditions):
            await self._assign(group)
        await self._fail_over(actions)
        for action in actions:
            if isinstance(action, GiveUpCreation):
                key = CREATING + action.topic
                _log.warning(
                    "the creation of topic %s is given up: its broker has died meanwhile",
                    action.topic,
                    extra=log_event("topic.creation_left", topic=action.topic),
                )
                await self._change([Condition(key, action.revision)], [Delete(key)])
        orphans = [action for action in actions if isinstance(action, DeleteAssignment)]
        if orphans:
            await self._delete_orphans(orphans)
        for action in actions:
            if isinstance(action, WithdrawMove):
                await self._withdraw(action)
        async with trio.open_nursery() as nursery:
            for action in actions:
                if isinstance(action, OrderMove):
                    nursery.start_soon(self._order, action)
        for action in actions:
            if isinstance(action, DeleteObject):
                await self._delete_object(action.storage, action.object)

    async def _assign(self, actions: Sequence[AssignTopic]) -> None:
        """Assign topics in one transaction; if one of them has changed, each in its own."""
        conditions: dict[str, Condition] = {}
        operations: list[Put | Delete] = []
        for action in actions:
            for condition in assign_conditions(action):
                assert conditions.setdefault(condition.key, condition) == condition
            operations.append(Put(ASSIGNMENTS + topic_key(action.topic_id), _encode(action.assignment)))
        try:
            await self._change(list(conditions.values()), operations)
        except MetadataConflictError:
            if len(actions) > 1:
                for action in actions:
                    await self._assign([action])
            # Else it has changed, and the next look decides again.
        else:
            for action in actions:
                _log.info(
                    "topic %s is assigned to broker %s (%s, epoch %d)",
                    action.topic,
                    broker_name(action.assignment.owner),
                    action.assignment.reason,
                    action.assignment.epoch,
                )

    async def _fail_over(self, actions: Sequence[Action]) -> None:
        """Give wals to other brokers, and their topics to these."""
        for action in actions:
            if isinstance(action, TakeWal):
                await self._take_wal(action)
        following = [action for action in actions if isinstance(action, FollowWal)]
        groups = grouped(following, follow_conditions)
        failures: list[DanubeError] = []

        async def follow() -> None:
            try:
                for group in groups:
                    await self._follow_wals(group)
            except DanubeError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(_AT_ONCE):
                nursery.start_soon(follow)
        if failures:
            raise failures[0]

    async def _take_wal(self, action: TakeWal) -> None:
        key = WALS + wal_key(*action.wal)
        former, owner = broker_name(action.record.former), broker_name(action.record.owner)
        conditions = [
            Condition(key, action.revision),
            Condition(SESSIONS + former, 0),
            Condition(SESSIONS + owner, action.session),
        ]
        try:
            await self._change(conditions, [Put(key, _encode(action.record))])
        except MetadataConflictError:
            return  # Something has changed, and the next look decides again.
        _log.warning(
            "broker %s has had no session for too long: %s goes on with wal %s of storage %r, which has %d topics",
            former,
            owner,
            action.wal.name,
            action.wal.storage,
            action.topics,
            extra=log_event("cluster.wal_taken", broker=former),
        )

    async def _follow_wals(self, actions: Sequence[FollowWal]) -> None:
        """Assign topics to the owners of their wals in one transaction; if one of them has changed, each in its own."""
        conditions: dict[str, Condition] = {}
        operations: list[Put | Delete] = []
        for action in actions:
            conditions.update({each.key: each for each in follow_conditions(action)})
            operations.append(Put(ASSIGNMENTS + topic_key(action.topic_id), _encode(action.assignment)))
        try:
            await self._change(list(conditions.values()), operations)
        except MetadataConflictError:
            if len(actions) > 1:
                for action in actions:
                    await self._follow_wals([action])

    async def _delete_orphans(self, actions: Sequence[DeleteAssignment]) -> None:
        """Delete assignments of topics that do not exist according to a list that is newer than they are.

        The creations are listed first: one that has ended before that has its topic in the second list.
        """
        creating, _ = await self._store.list(CREATING)
        deleted, _ = await self._store.list(DELETED)
        topics, _ = await self._store.list(TOPICS)
        records = [decode_record(item, _CREATING.decode) for item in creating if _is_below(CREATING, item)]
        existing = {each for record in records for each in record.topic_ids}
        for item in topics:
            if _is_below(TOPICS, item):
                existing.update(decode_record(item, decode_topic).topic_ids)
        notes = [decode_record(item, _NOTE.decode) for item in deleted if is_topic_key(item.key.removeprefix(DELETED))]
        existing.update(self._survey.burying(notes))
        for action in actions:
            if action.topic_id not in existing:
                key = ASSIGNMENTS + topic_key(action.topic_id)
                _log.info("the assignment of topic %s, which does not exist, is deleted", topic_key(action.topic_id))
                await self._change([Condition(key, action.revision)], [Delete(key)])

    async def _order(self, action: OrderMove) -> None:
        """Order a move. What is refused, or not known to be ordered, is decided again."""
        from danube.cluster.ordering import order_move  # not imported by a broker alone

        if self._membership.owner(action.topic_id) != action.source:
            return
        try:
            await order_move(
                self._store,
                self._membership,
                action.topic_id,
                action.target,
                random=self._random,
                reason=action.reason,
                ordered_s=self._clock_s(),
                conditions=[Condition(COORDINATOR + _HOLDER, self._term)],
            )
        except DanubeError as error:
            if not may_pass(error):
                raise
            _log.info("topic %s is not ordered to move: %s", action.topic, error)
            return
        if self._weighing is not None:
            self._weighing.note_moving([action.topic_id])
        _log.info(
            "topic %s is ordered to move from broker %s to %s (%s)",
            action.topic,
            broker_name(action.source),
            broker_name(action.target),
            action.reason,
        )

    async def _withdraw(self, action: WithdrawMove) -> None:
        key = MOVES + topic_key(action.topic_id)
        try:
            await self._change([Condition(key, action.revision)], [Delete(key)])
        except MetadataConflictError:
            return  # it has ended meanwhile
        _log.warning(
            "the order to move topic %s is withdrawn: %s",
            topic_key(action.topic_id),
            action.why,
            extra=log_event("topic.order_withdrawn", topic_id=topic_key(action.topic_id)),
        )

    async def _change(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> None:
        """Change the metadata as the coordinator that this broker was when it decided."""
        await self._store.transact([Condition(COORDINATOR + _HOLDER, self._term), *conditions], operations)
