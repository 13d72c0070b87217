"""Collects from the tables of the cluster what the coordinator has to decide about, in bounded turns of the event loop.

A cluster may have 100,000 topics, and almost none of them needs a decision. So a picture has only those that may:
topics without durability whose owner does not run, with their assignments, topics of wals whose owner does not run or
is another one than theirs, and assignments that seem to have no topic.
If nothing was to be decided, the tables are not read again before one of them has changed.

The tables may change while they are read. What is decided then depends on rows of different moments, as it does between
tables anyway: each action is conditional on the revisions of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from danube.cluster.coordinator import AssignedTopic, Garbage, OrderedMove, Picture, PicturedTopic, RemoteTopic, Wals
from danube.cluster.deleted import burying
from danube.cluster.features import FAILOVER_LEVEL
from danube.cluster.membership import Membership
from danube.cluster.placement import Candidate
from danube.cluster.records import (
    DELETED,
    TOPICS,
    Assignment,
    BrokerState,
    CreatingRecord,
    DeletedRecord,
    Wal,
    WalRecord,
    parse_broker,
    parse_topic_id,
    topic_key,
    wal_of,
)
from danube.metadata import Table
from danube.metadata.table import ROWS_PER_TURN
from danube.model import Durability
from danube.model.ids import BrokerId, TopicId
from danube.model.records import TopicRecord, members

if TYPE_CHECKING:
    from danube.cluster.absences import Absences
    from danube.cluster.departures import Departures

__all__ = ["Survey"]

_REST_S: Final = 2.0
"""How long topics are not looked at again if nothing has changed but assignments."""
_SETTLES_S: Final = 1.0
"""How long an order to move a topic is left alone: by then what it depends on has arrived, too."""


class Survey:
    """See the module.

    Args:
        membership: of this broker; joined.
        topics, creating, deleted: the tables of the catalogue.
        candidates: returns the load of the brokers that is known at the moment.
        garbage: returns the objects of storages that wait for their deletion.
        clock: seconds of a clock that never goes back.

    Attributes:
        worked_s: for how long the last picture has kept the event loop busy, in seconds.
    """

    def __init__(
        self,
        membership: Membership,
        topics: Table[TopicRecord],
        creating: Table[CreatingRecord],
        deleted: Table[DeletedRecord],
        candidates: Callable[[], Mapping[BrokerId, Candidate]],
        garbage: Callable[[], Sequence[Garbage]],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._membership = membership
        self._topics = topics
        self._creating = creating
        self._deleted = deleted
        self._candidates = candidates
        self._garbage = garbage
        self._orders: dict[TopicId, tuple[int, float]] = {}
        """The orders to move a topic that are known: revision, and when it was first seen."""
        self._clock = clock
        self._absences: Absences | None = None
        self._overdue: frozenset[BrokerId] = frozenset()
        self._seen: Hashable = None
        """State of everything that the last picture depends on; None: it has changed meanwhile."""
        self._looked_at: Hashable = None
        """The state without the assignments when the topics were looked at last, at :attr:`_looked_s`."""
        self._looked_s = -_REST_S
        self._calm: Hashable = None
        """The state of which it is known that nothing is to be decided about it."""
        self.worked_s = 0.0
        self._began = 0.0

    @cached_property
    def departures(self) -> Departures:
        """The topics that have to leave drained brokers; loaded when there is one."""
        from danube.cluster.departures import Departures

        return Departures(self._membership, self._topics)

    async def picture(self) -> Picture:
        """Return everything that may need a decision, as this broker knows it."""
        self.worked_s, self._began = 0.0, trio.current_time()
        member = self._membership
        candidates = self._known()
        self.note_absences()
        state = self._state(candidates)
        picture = Picture(
            topics={},
            assignments={},
            sessions={parse_broker(name): member.sessions.revision(name) for name in member.sessions.values},
            candidates=candidates,
            garbage=tuple(self._garbage()),
            epoch_base=member.cluster.epoch_base,
            racks=member.racks(),
        )
        # A drain changes assignments all the time, and almost none of these changes needs a decision about its topic.
        others = state[1:]
        rests = others == self._looked_at and self._began - self._looked_s < _REST_S
        if state != self._calm and not rests:
            self._looked_at, self._looked_s = others, self._began
            picture = await self._with_topics(picture)
        self.worked_s += trio.current_time() - self._began
        drains = any(record.state is BrokerState.DRAINING for record in member.brokers.values.values())
        if drains or "departures" in vars(self):  # once loaded they are told that a drain is over, too
            departing = await self.departures.some(trio.current_time())
            self.worked_s += self.departures.worked_s
            picture = msgspec.structs.replace(picture, departing=departing)
        self._began = trio.current_time()
        picture = msgspec.structs.replace(picture, moves=self._moves())
        self._seen = state if state == self._state(candidates) and not rests else None
        self.worked_s += trio.current_time() - self._began
        return picture

    def note_absences(self) -> None:
        """Note which brokers have a session. To be called all the time: who becomes the coordinator has to know."""
        member, now = self._membership, self._clock()
        if member.is_alone:
            return  # and loads nothing of this
        from danube.cluster.absences import Absences
        from danube.cluster.failover import overdue

        self._absences = self._absences or Absences()
        self._absences.note(member.brokers.values, member.sessions.values, now)
        self._overdue = frozenset(overdue(member.brokers.values, self._absences, now))

    def next_overdue_s(self) -> float | None:
        """Return in how many seconds another broker has been away for its grace; None: none is away for a shorter time.

        See :mod:`danube.cluster.failover`.
        """
        if self._absences is None:
            return None
        from danube.cluster.failover import next_overdue_s

        return next_overdue_s(self._membership.brokers.values, self._absences, self._clock())

    def note_calm(self) -> None:
        """Note that nothing was to be decided about the topics of the last picture."""
        if self._seen is not None:
            self._calm = self._seen

    def burying(self, deleted: Iterable[DeletedRecord]) -> set[TopicId]:
        """Return those of some deleted topics of which their owner, or one that gets its wal, may have something."""
        return burying(deleted, self._membership.owner, self._membership.brokers.values)

    def _state(self, candidates: Mapping[BrokerId, Candidate]) -> tuple[Hashable, ...]:
        member = self._membership
        tables: tuple[Table[Any], ...] = (
            self._topics,
            self._creating,
            self._deleted,
            member.sessions,
            member.brokers,
            member.wals,
        )
        able = tuple(broker for broker, candidate in candidates.items() if candidate.refusal(None) is None)
        changes = tuple(table.changes for table in tables)
        assigned = member.assignments.changes, member.assignments.position
        cluster = member.cluster.epoch_base, member.cluster.feature_level
        return assigned, changes, able, self._overdue, cluster

    def _known(self) -> dict[BrokerId, Candidate]:
        """Return the load of each running broker."""
        member, candidates = self._membership, self._candidates()
        known = {}
        for name in member.sessions.values:
            broker, record = parse_broker(name), member.brokers.values.get(name)
            known[broker] = msgspec.structs.replace(
                candidates.get(broker, Candidate(broker=broker)),
                state=record.state if record is not None else BrokerState.GONE,
                rack=record.rack if record is not None else "",
                storages=frozenset(record.storages) if record is not None else frozenset(),
                shared=frozenset(record.shared) if record is not None else frozenset(),
                topics=member.topics[broker],
            )
        return known

    def _moves(self) -> dict[TopicId, OrderedMove]:
        """Return all orders to move a topic."""
        member, now = self._membership, trio.current_time()
        deleted = {topic_id for note in self._deleted.values.values() for topic_id in note.topic_ids}
        moves, known = dict[TopicId, OrderedMove](), dict[TopicId, tuple[int, float]]()
        for name, record in member.moves.values.items():
            topic_id, revision = parse_topic_id(name), member.moves.revision(name)
            earlier, seen_at = self._orders.get(topic_id, (0, now))
            known[topic_id] = revision, seen_at if earlier == revision else now
            assignment = member.assignments.values.get(name)
            assigned = AssignedTopic(assignment, member.assignments.revision(name)) if assignment is not None else None
            settled = now - known[topic_id][1] >= _SETTLES_S
            moves[topic_id] = OrderedMove(record, revision, assigned, topic_id not in deleted, settled)
        self._orders = known
        return moves

    async def _with_topics(self, picture: Picture) -> Picture:
        """Add the topics that may need a decision."""
        table = self._membership.assignments
        creating = {name: (record, self._creating.revision(name)) for name, record in self._creating.values.items()}
        position = table.position
        topics: dict[TopicId, PicturedTopic] = {}
        assignments: dict[TopicId, AssignedTopic] = {}
        existing: set[TopicId] = set()
        wals = self._wals()
        remote: dict[TopicId, RemoteTopic] = {}
        for rows in self._topics.batches(ROWS_PER_TURN):
            for name, record, revision in rows:
                existing.update(record.topic_ids)
                spread: Mapping[BrokerId, int] | None = None
                if record.durability is Durability.REMOTE:
                    remote.update(self._moving(name, record, revision, wals, picture))
                if record.durability is not Durability.NONE:
                    continue
                for each, topic_id in members(name, record):
                    key = topic_key(topic_id)
                    assignment = table.values.get(key)
                    if assignment is not None and assignment.owner in picture.sessions:
                        continue
                    if spread is None:
                        spread = self._membership.spread(record.topic_ids)
                    topics[topic_id] = PicturedTopic(each, record.durability, revision, spread)
                    if assignment is not None:
                        assignments[topic_id] = AssignedTopic(assignment, table.revision(key))
            await self._give_way()
        remote.update(self._deleted_remotely(wals, picture))
        for names in table.batches(ROWS_PER_TURN):
            for name, assignment, revision in names:
                topic_id = parse_topic_id(name)
                # A newer one may have a topic that was not read above.
                if topic_id not in existing and revision <= position:
                    assignments[topic_id] = AssignedTopic(assignment, revision)
            await self._give_way()
        return msgspec.structs.replace(
            picture,
            topics=topics,
            assignments=assignments,
            creating=creating,
            wals=msgspec.structs.replace(wals, topics=remote),
            burying=self.burying(self._deleted.values.values()),
        )

    def _wals(self) -> Wals:
        """Return the rows of the wals, and what is known of the brokers that are away; no topics."""
        member = self._membership
        rows: dict[Wal, tuple[WalRecord, int]] = {}
        for name, record in member.wals.values.items():
            storage, _, wal = name.rpartition("/")
            rows[Wal(storage, wal)] = record, member.wals.revision(name)
        shared = {parse_broker(name): record.shared for name, record in member.brokers.values.items()}
        may_take = member.cluster.feature_level >= FAILOVER_LEVEL
        return Wals(rows=rows, overdue=self._overdue if may_take else frozenset(), shared=shared)

    def _moving(
        self, name: str, record: TopicRecord, revision: int, wals: Wals, picture: Picture
    ) -> Iterator[tuple[TopicId, RemoteTopic]]:
        """Yield what belongs to a topic of durability ``remote`` and may need another owner."""
        spread: Mapping[BrokerId, int] | None = None if record.partitions else {}
        for each, topic_id in members(name, record):
            stray = self._stray(topic_id, record.storage, wals, picture)
            if stray is not None:
                if spread is None:
                    spread = self._remote_spread(record, wals)
                yield topic_id, RemoteTopic(each, TOPICS + name, revision, *stray, spread)

    def _deleted_remotely(self, wals: Wals, picture: Picture) -> Iterator[tuple[TopicId, RemoteTopic]]:
        """Yield deleted topics of durability ``remote`` whose deletion is another owner's to note."""
        for name, note in self._deleted.values.items():
            for topic_id in note.topic_ids if note.storage else ():
                stray = self._stray(topic_id, note.storage, wals, picture)
                if stray is not None:
                    yield topic_id, RemoteTopic("", DELETED + name, self._deleted.revision(name), *stray)

    def _stray(
        self, topic_id: TopicId, storage: str, wals: Wals, picture: Picture
    ) -> tuple[Wal, Assignment, int] | None:
        """Return wal, assignment and its revision if the owner of the wal is away, or is not that of the topic."""
        table, key = self._membership.assignments, topic_key(topic_id)
        assignment: Assignment | None = table.values.get(key)
        if assignment is None:
            return None
        wal = Wal(storage, wal_of(assignment))
        owner = wals.owner(wal)
        if owner in picture.sessions and owner == assignment.owner:
            return None
        return wal, assignment, table.revision(key)

    def _remote_spread(self, record: TopicRecord, wals: Wals) -> Counter[BrokerId]:
        """Return how many partitions each broker has or is about to get, because of a move or as the owner of a wal."""
        member = self._membership
        brokers = (
            wals.heir(record.storage, member.assignments.values.get(topic_key(topic_id)))
            or member.destination(topic_id)
            for topic_id in record.topic_ids
        )
        return Counter(broker for broker in brokers if broker is not None)

    async def _give_way(self) -> None:
        self.worked_s += trio.current_time() - self._began
        await trio.lowlevel.checkpoint()
        self._began = trio.current_time()
