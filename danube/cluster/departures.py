"""The topics that have to leave drained brokers, a few at a time.

Which topics a broker owns is found by looking at all topics, in bounded turns of the event loop; then they are handed
out one by one, so that a drain of many topics looks at all of them a few times only. A topic whose move was ordered,
and which its owner has not moved, is handed out again after a pause that grows with each attempt: its owner may say
that it cannot move (:mod:`danube.cluster.hindrance`), and that may change. Each reason is reported once a drain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, NamedTuple

import trio

from danube.cluster.coordinator import MOST_DRAIN_MOVES, Departing
from danube.cluster.membership import Membership
from danube.cluster.records import BrokerState, parse_broker, topic_key
from danube.metadata import Table
from danube.metadata.table import ROWS_PER_TURN
from danube.model import Durability
from danube.model.ids import BrokerId, TopicId
from danube.model.names import split_partition
from danube.model.records import TopicRecord, members

__all__ = ["LONGEST_PAUSE_S", "PAUSE_S", "Departures"]

PAUSE_S: Final = 5.0
"""How long a topic is left alone after the first order to move it."""
LONGEST_PAUSE_S: Final = 60.0


class _Attempt(NamedTuple):
    due_s: float
    """When the next one may be made."""
    number: int


class Departures:
    """See the module.

    Args:
        membership: of this broker; joined.
        topics: of the catalogue.

    Attributes:
        worked_s: for how long :meth:`some` has kept the event loop busy, in seconds.
    """

    def __init__(self, membership: Membership, topics: Table[TopicRecord]) -> None:
        self._membership = membership
        self._topics = topics
        self._queue: deque[Departing] = deque()
        self._attempts: dict[TopicId, _Attempt] = {}
        self._reported: set[tuple[BrokerId, str]] = set()
        """Drained brokers, and why topics of theirs cannot move."""
        self._searched: Hashable = None
        """What the last search has seen."""
        self._due_s = 0.0
        """When a topic is due that the last search has left out."""
        self.worked_s = 0.0

    def drained(self) -> set[BrokerId]:
        """Return the brokers that run and are drained."""
        member = self._membership
        return {
            parse_broker(name)
            for name, record in member.brokers.values.items()
            if record.state is BrokerState.DRAINING and name in member.sessions.values
        }

    async def some(self, now: float) -> tuple[Departing, ...]:
        """Return topics that have to move; call :meth:`decided` with the same ones before the next call."""
        drained, self.worked_s = self.drained(), 0.0
        self._reported = {each for each in self._reported if each[0] in drained}
        if not drained:
            self._queue.clear()
            self._attempts.clear()
            self._searched = None
            return ()
        if not self._queue:
            await self._search(drained, now)
        found = list[Departing]()
        spreads: dict[str, Mapping[BrokerId, int]] = {}
        while self._queue and len(found) < MOST_DRAIN_MOVES * len(drained):
            topic = self._queue.popleft()
            owner = self._membership.owner(topic.topic_id)
            if owner in drained and topic_key(topic.topic_id) not in self._membership.moves.values:
                found.append(topic._replace(partitions=self._spread(topic.topic, spreads)))
        return tuple(found)

    def _spread(self, name: str, known: dict[str, Mapping[BrokerId, int]]) -> Mapping[BrokerId, int]:
        """Return where the other partitions of a topic are, as it is now."""
        split = split_partition(name)
        if split is None:
            return {}
        if split[0] not in known:
            record = self._topics.values.get(split[0])
            known[split[0]] = self._membership.spread(record.topic_ids) if record is not None else {}
        return known[split[0]]

    def decided(self, departing: Iterable[Departing], ordered: set[TopicId], now: float) -> None:
        """Note which of the topics of :meth:`some` were ordered to move; the others are handed out again."""
        for topic in departing:
            if topic.topic_id in ordered:
                count = self._attempts[topic.topic_id].number + 1 if topic.topic_id in self._attempts else 1
                pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(count - 1, 10))
                self._attempts[topic.topic_id] = _Attempt(now + pause_s, count)
                self._due_s = min(self._due_s, now + pause_s)  # if the order is not written, no table changes
            else:
                self._queue.append(topic)

    def put_off(self, departing: Iterable[Departing], hindered: Mapping[TopicId, str], now: float) -> list[Departing]:
        """Note which topics of :meth:`some` cannot move, and why, according to their owners.

        Returns:
            One topic of each drained broker and reason that was not returned before in this drain: to be reported.
        """
        found = list[Departing]()
        for topic in departing:
            why = hindered.get(topic.topic_id)
            if why is None:
                continue
            self._attempts[topic.topic_id] = _Attempt(now + LONGEST_PAUSE_S, 0)
            if (topic.owner, why) not in self._reported:
                self._reported.add((topic.owner, why))
                found.append(topic)
        return found

    async def _search(self, drained: set[BrokerId], now: float) -> None:
        member = self._membership
        seen = self._topics.changes, member.assignments.changes, member.moves.changes, frozenset(drained)
        if seen == self._searched and now < self._due_s:
            return
        self._searched, self._due_s = seen, now + LONGEST_PAUSE_S
        attempts: dict[TopicId, _Attempt] = {}
        began = trio.current_time()
        for rows in self._topics.batches(ROWS_PER_TURN):
            for name, record, _ in rows:
                owners = {topic_id: member.owner(topic_id) for topic_id in record.topic_ids}
                if drained.isdisjoint(owners.values()):
                    continue
                storage = None if record.durability is Durability.NONE else record.storage
                for each, topic_id in members(name, record):
                    owner = owners[topic_id]
                    if owner not in drained:
                        continue
                    attempt = self._attempts.get(topic_id)
                    if attempt is not None:
                        attempts[topic_id] = attempt
                    if topic_key(topic_id) in member.moves.values:
                        continue
                    if attempt is not None and attempt.due_s > now:
                        self._due_s = min(self._due_s, attempt.due_s)
                    else:
                        self._queue.append(Departing(topic_id, each, owner, storage))
            self.worked_s += trio.current_time() - began
            await trio.lowlevel.checkpoint()
            began = trio.current_time()
        self._attempts = attempts
