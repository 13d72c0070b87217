"""Collects from the tables of the cluster what the coordinator has to decide about, in bounded turns of the event loop.

A cluster may have 100,000 topics, and almost none of them needs a decision. So a picture has only those that may:
topics without durability whose owner does not run, with their assignments, and assignments that seem to have no topic.
If nothing was to be decided, the tables are not read again before one of them has changed.

The tables may change while they are read. What is decided then depends on rows of different moments, as it does between
tables anyway: each action is conditional on the revisions of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec
import trio

from danube.cluster.coordinator import AssignedTopic, Garbage, Picture, PicturedTopic
from danube.cluster.membership import Membership
from danube.cluster.placement import Candidate
from danube.cluster.records import BrokerState, CreatingRecord, broker_name, parse_broker, parse_topic_id, topic_key
from danube.metadata import Table
from danube.metadata.table import ROWS_PER_TURN
from danube.model import Durability
from danube.model.ids import BrokerId, TopicId
from danube.model.records import TopicRecord, members

__all__ = ["Survey"]


class Survey:
    """See the module.

    Args:
        membership: of this broker; joined.
        topics, creating, deleted: the tables of the catalogue.
        candidates: returns the load of the brokers that is known at the moment.
        garbage: returns the objects of storages that wait for their deletion.

    Attributes:
        worked_s: for how long the last picture has kept the event loop busy, in seconds.
    """

    def __init__(
        self,
        membership: Membership,
        topics: Table[TopicRecord],
        creating: Table[CreatingRecord],
        deleted: Table[list[TopicId]],
        candidates: Callable[[], Mapping[BrokerId, Candidate]],
        garbage: Callable[[], Sequence[Garbage]],
    ) -> None:
        self._membership = membership
        self._topics = topics
        self._creating = creating
        self._deleted = deleted
        self._candidates = candidates
        self._garbage = garbage
        self._seen: Hashable = None
        """State of everything that the last picture depends on; None: it has changed meanwhile."""
        self._calm: Hashable = None
        """The state of which it is known that nothing is to be decided about it."""
        self.worked_s = 0.0
        self._began = 0.0

    async def picture(self) -> Picture:
        """Return everything that may need a decision, as this broker knows it."""
        self.worked_s, self._began = 0.0, trio.current_time()
        member = self._membership
        candidates = self._known()
        state = self._state(candidates)
        picture = Picture(
            topics={},
            assignments={},
            sessions={parse_broker(name): member.sessions.revision(name) for name in member.sessions.values},
            candidates=candidates,
            garbage=tuple(self._garbage()),
            epoch_base=member.cluster.epoch_base,
        )
        if state != self._calm:
            picture = await self._with_topics(picture)
        self._seen = state if state == self._state(candidates) else None
        self.worked_s += trio.current_time() - self._began
        return picture

    def note_calm(self) -> None:
        """Note that nothing was to be decided about the topics of the last picture."""
        self._calm = self._seen

    def burying(self, deleted: Sequence[Sequence[TopicId]]) -> set[TopicId]:
        """Return those of some deleted topics of which their owner may still have something."""
        found = set()
        for topic_ids in deleted:
            for topic_id in topic_ids:
                owner = self._membership.owner(topic_id)
                record = self._membership.brokers.values.get(broker_name(owner)) if owner is not None else None
                if record is not None and record.state is not BrokerState.GONE:
                    found.add(topic_id)
        return found

    def _state(self, candidates: Mapping[BrokerId, Candidate]) -> Hashable:
        member = self._membership
        tables: tuple[Table[Any], ...] = (
            self._topics,
            self._creating,
            self._deleted,
            member.assignments,
            member.sessions,
            member.brokers,
        )
        able = tuple(broker for broker, candidate in candidates.items() if candidate.refusal(None) is None)
        changes = tuple(table.changes for table in tables)
        return changes, member.assignments.position, able, member.cluster.epoch_base

    def _known(self) -> dict[BrokerId, Candidate]:
        """Return the load of each running broker."""
        member, candidates = self._membership, self._candidates()
        known = {}
        for name in member.sessions.values:
            broker, record = parse_broker(name), member.brokers.values.get(name)
            known[broker] = msgspec.structs.replace(
                candidates.get(broker, Candidate(broker=broker)),
                state=record.state if record is not None else BrokerState.GONE,
                storages=frozenset(record.storages) if record is not None else frozenset(),
                topics=member.topics[broker],
            )
        return known

    async def _with_topics(self, picture: Picture) -> Picture:
        """Add the topics that may need a decision."""
        table = self._membership.assignments
        creating = {name: (record, self._creating.revision(name)) for name, record in self._creating.values.items()}
        position = table.position
        topics: dict[TopicId, PicturedTopic] = {}
        assignments: dict[TopicId, AssignedTopic] = {}
        existing: set[TopicId] = set()
        for rows in self._topics.batches(ROWS_PER_TURN):
            for name, record, revision in rows:
                existing.update(record.topic_ids)
                if record.durability is not Durability.NONE:
                    continue
                for each, topic_id in members(name, record):
                    key = topic_key(topic_id)
                    assignment = table.values.get(key)
                    if assignment is not None and assignment.owner in picture.sessions:
                        continue
                    topics[topic_id] = PicturedTopic(each, record.durability, revision)
                    if assignment is not None:
                        assignments[topic_id] = AssignedTopic(assignment, table.revision(key))
            await self._give_way()
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
            burying=self.burying(list(self._deleted.values.values())),
        )

    async def _give_way(self) -> None:
        self.worked_s += trio.current_time() - self._began
        await trio.lowlevel.checkpoint()
        self._began = trio.current_time()
