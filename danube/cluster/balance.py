"""Which topics should move so that no broker has much more load than another. Pure.

**Load.** A broker's load in one dimension (topics, bytes in, bytes out, processor, journal) is its share of what all
active brokers have together; its load as such is the largest of these shares. Where there is little of something, a
share of it says nothing: each dimension counts at least :class:`Rules.least` a broker. The processor time of a broker
is attributed to its topics by their traffic. Some of it may be for other things (HTTP, metadata), and stays when they
move: a source is certain to be rid only of what the same traffic costs at the broker where it costs least.

**A plan** (:func:`plan_moves`) takes topics from the broker with the most load, or the next one if none of its topics
fits, to the one with the least. It cannot oscillate, because each of its moves makes the larger of the two loads
smaller, and a pair of brokers is left alone unless evening it out would lower the larger load by more than
:attr:`Rules.gain`. A plan closes at most :attr:`Rules.gap_share` of the gap, so that what was measured badly is
measured again before the rest follows; a single topic that is larger than that may move if it alone lowers the load by
more than :attr:`Rules.gain`.

**Few topics.** Shares say nothing about two brokers with four topics and none. So a broker also gives a topic to one
that has less than half as many and at least two fewer: the broker that has just joined gets some, however few there
are. The receiver must have no more load than the giver afterwards, unless it has almost none. The only topic of a
broker stays.

**Rounds** (:class:`Balancer`). Nothing moves before the imbalance has stood for :attr:`Rules.rounds` rounds. A topic
that has moved rests for :attr:`Rules.rest_s`, whatever it moved for.

Partitions of a topic stay spread: none moves to a rack that then has more of them than the former one had, nor to a
broker that then has more, unless that evens out the racks. A broker that has used more than 90 % of its journal's limit
gets no topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from danube.cluster.placement import FULL_JOURNAL, Racks, keeps_spread
from danube.cluster.records import broker_name
from danube.model.ids import BrokerId, TopicId
from danube.model.names import split_partition
from danube.model.spoken import spoken_count

__all__ = [
    "DEFAULT_RULES",
    "DIMENSIONS",
    "Balancer",
    "BrokerLoad",
    "Loads",
    "Move",
    "Rules",
    "TopicLoad",
    "load_of",
    "plan_and_loads",
    "plan_moves",
]

DIMENSIONS: Final = ("topics", "bytes in", "bytes out", "processor", "journal")
"""In the order of a :data:`Vector`."""
Vector = tuple[float, float, float, float, float]
_LOWEST: Final = 3
"""Targets that are tried for a topic: those with the least load."""
_ROUNDING: Final = 1e-9


class TopicLoad(NamedTuple):
    """A topic or partition that its owner could move."""

    topic_id: TopicId
    name: str
    storage: str | None = None
    """Of its history; None: it stores nothing."""
    in_bytes_s: float = 0.0
    out_bytes_s: float = 0.0
    journal_bytes: int = 0
    """What it has in the journal."""


class BrokerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that runs."""

    broker: BrokerId
    is_target: bool = True
    """It may get topics: it is active."""
    storages: frozenset[str] = frozenset()
    topics: int = 0
    in_bytes_s: float = 0.0
    out_bytes_s: float = 0.0
    cpu: float = 0.0
    """Processors that it uses: 1.0 is one of them, fully."""
    journal_used_bytes: int = 0
    journal_limit_bytes: int = 0
    busiest: tuple[TopicLoad, ...] = ()
    """Topics that it could move, those with the most traffic first, and some others."""

    @property
    def journal_share(self) -> float:
        """The used share of its journal's limit."""
        return self.journal_used_bytes / self.journal_limit_bytes if self.journal_limit_bytes else 0.0


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is made from."""

    brokers: tuple[BrokerLoad, ...]
    """All that have answered. One that has not neither gives nor gets topics."""
    partitions: Mapping[str, Mapping[BrokerId, int]] = {}
    """Of partitioned topics: how many partitions each broker has."""
    racks: Mapping[BrokerId, str] = {}
    """Of all brokers that have one, those that have not answered included."""
    resting: frozenset[TopicId] = frozenset()
    """Topics that must not move."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When topics move, and how many of them."""

    gain: float = 0.1
    """By which share the larger of two loads must become smaller by evening them out."""
    gap_share: float = 0.2
    """Largest share of the gap between two brokers that one plan closes."""
    most_moves: int = 64
    """Most moves of a plan."""
    most_checks: int = 10_000
    """How often a plan looks at a topic: the bound of its work, some 20 ms."""
    rounds: int = 3
    """How many plans in a row must find something before the first topic moves."""
    rest_s: float = 300.0
    """How long a topic stays where it has moved to."""
    least: Vector = (10.0, 1e6, 1e6, 0.5, 0.5)
    """What each broker counts at least in each dimension: 10 topics, 1 MB/s in and out, half a processor, half a
    journal. A broker with less than half of that in every dimension gives topics only if it has many more of them than
    another, see :attr:`count_factor`."""
    count_factor: float = 2.0
    """A broker with more than this times as many topics as another, and at least two more, gives it one."""


DEFAULT_RULES: Final = Rules()


class Move(NamedTuple):
    """A topic that should move, and why."""

    topic_id: TopicId
    topic: str
    source: BrokerId
    target: BrokerId
    reason: str


def load_of(loads: Loads, rules: Rules) -> dict[BrokerId, float]:
    """Return the load of each broker, 0 to 1: its largest share in any dimension."""
    return _State(loads, rules).loads()


def plan_moves(loads: Loads, rules: Rules = DEFAULT_RULES) -> list[Move]:
    """Return the topics that should move now, and where to; empty: the load is even enough, or no topic fits.

    It never raises the largest load of a broker, and is deterministic.
    """
    return _Plan(loads, rules).make()


def plan_and_loads(loads: Loads, rules: Rules = DEFAULT_RULES) -> tuple[list[Move], dict[BrokerId, float]]:
    """Return the plan, and the load of each broker after it."""
    plan = _Plan(loads, rules)
    return plan.make(), plan.state.loads()


class _State:
    """The shares of all brokers, as they are after the moves that were planned so far."""

    def __init__(self, loads: Loads, rules: Rules) -> None:
        active = max(1, sum(each.is_target for each in loads.brokers))
        totals = [sum(parts) for parts in zip(*map(_amounts, loads.brokers), strict=True)] or [0.0] * len(DIMENSIONS)
        self._divisors = [max(total, least * active) for total, least in zip(totals, rules.least, strict=True)]
        self.vectors = {each.broker: self.shares(_amounts(each)) for each in loads.brokers}
        self.idle = 0.5 / active
        """A broker whose load is below needs no relief."""

    def shares(self, amounts: Vector) -> Vector:
        """Return what amounts are of everything there is."""
        topics, in_, out, cpu, journal = (
            amount / divisor for amount, divisor in zip(amounts, self._divisors, strict=True)
        )
        return topics, in_, out, cpu, journal

    def loads(self) -> dict[BrokerId, float]:
        return {broker: max(vector) for broker, vector in self.vectors.items()}

    def load(self, broker: BrokerId) -> float:
        return max(self.vectors[broker])

    def after(self, source: BrokerId, target: BrokerId, weight: Vector, relief: Vector) -> float:
        """Return the larger load of two brokers after a topic has moved."""
        return max(self.pair_after(source, target, weight, relief))

    def pair_after(self, source: BrokerId, target: BrokerId, weight: Vector, relief: Vector) -> tuple[float, float]:
        """Return the loads of two brokers after a topic has moved from the first to the second."""
        left = max(have - part for have, part in zip(self.vectors[source], relief, strict=True))
        got = max(have + part for have, part in zip(self.vectors[target], weight, strict=True))
        return left, got

    def move(self, source: BrokerId, target: BrokerId, weight: Vector, relief: Vector) -> None:
        self.vectors[source] = _sum(self.vectors[source], relief, -1.0)
        self.vectors[target] = _sum(self.vectors[target], weight, 1.0)


def _amounts(broker: BrokerLoad) -> Vector:
    return float(broker.topics), broker.in_bytes_s, broker.out_bytes_s, broker.cpu, broker.journal_share


def _sum(one: Vector, other: Vector, factor: float) -> Vector:
    topics, in_, out, cpu, journal = (have + factor * part for have, part in zip(one, other, strict=True))
    return topics, in_, out, cpu, journal


def _is_busy(broker: BrokerLoad) -> bool:
    """Whether a broker has so much traffic that its processor time says what a byte costs."""
    return broker.cpu > 0.0 and broker.in_bytes_s + broker.out_bytes_s > 0.0


class _Candidate(NamedTuple):
    topic: TopicLoad
    weight: Vector
    """What it may cost."""
    relief: Vector
    """What its owner is certain to be rid of without it."""


class _Plan:
    def __init__(self, loads: Loads, rules: Rules) -> None:
        self._rules = rules
        self.state = _State(loads, rules)
        self._brokers = {each.broker: each for each in loads.brokers}
        self._spread = {name: Counter(counts) for name, counts in loads.partitions.items()}
        self._racks = Racks(loads.racks)
        rates = [each.cpu / (each.in_bytes_s + each.out_bytes_s) for each in loads.brokers if _is_busy(each)]
        self._cpu_per_byte = min(rates, default=0.0)
        """What a byte costs where it costs least: more than that may be work of a broker that stays there."""
        self._journal = {each.broker: each.journal_used_bytes for each in loads.brokers}
        self._left = {
            each.broker: [
                _Candidate(topic, *self._weigh(each, topic))
                for topic in each.busiest
                if topic.topic_id not in loads.resting
            ]
            for each in loads.brokers
        }
        self._budget: dict[BrokerId, float] = {}
        self._topics = {each.broker: each.topics for each in loads.brokers}
        self._given: Counter[BrokerId] = Counter()
        """How many topics the plan takes from each broker."""
        self._checks = rules.most_checks

    def _weigh(self, broker: BrokerLoad, topic: TopicLoad) -> tuple[Vector, Vector]:
        """Return what a topic may cost at its target, and what its source is certain to be rid of."""
        traffic, of_topic = broker.in_bytes_s + broker.out_bytes_s, topic.in_bytes_s + topic.out_bytes_s
        cpu = broker.cpu * min(1.0, of_topic / traffic) if traffic else 0.0
        journal = topic.journal_bytes / broker.journal_limit_bytes if broker.journal_limit_bytes else 0.0
        at_least = min(cpu, self._cpu_per_byte * of_topic)
        most = self.state.shares((1.0, topic.in_bytes_s, topic.out_bytes_s, cpu, journal))
        return most, self.state.shares((1.0, topic.in_bytes_s, topic.out_bytes_s, at_least, journal))

    def make(self) -> list[Move]:
        state, moves = self.state, list[Move]()
        sources = set(self._brokers)
        while sources and len(moves) < self._rules.most_moves and self._checks > 0:
            source = min(sources, key=lambda broker: (-state.load(broker), broker))
            found = self._take(source)
            if found is None:
                sources.remove(source)  # and none of its topics fits later: the targets only get more load
            else:
                moves.append(found)
        sources = set(self._brokers)
        while sources and len(moves) < self._rules.most_moves and self._checks > 0:
            source = min(sources, key=lambda broker: (-self._topics[broker], broker))
            found = self._take_by_count(source)
            if found is None:
                sources.remove(source)
            else:
                moves.append(found)
        return moves

    def _take_by_count(self, source: BrokerId) -> Move | None:
        """Plan the move of one topic away from a broker that has many more topics than another."""
        state, topics = self.state, self._topics
        have, highest = topics[source], max(state.loads().values())
        targets = sorted(self._targets(source), key=lambda broker: (topics[broker], state.load(broker), broker))
        for target in targets[:_LOWEST]:
            gap = have - topics[target]
            if gap < 2 or have <= self._rules.count_factor * topics[target]:
                return None  # the others have more
            if self._given[source] >= max(1.0, self._rules.gap_share * (gap + self._given[source])):
                continue
            chosen: tuple[float, int] | None = None
            for place, (topic, weight, relief) in enumerate(self._left[source]):
                self._checks -= 1
                rank = topic.in_bytes_s + topic.out_bytes_s, place
                if chosen is not None and chosen <= rank:
                    continue
                left, got = state.pair_after(source, target, weight, relief)
                # The other rule takes it back neither from a broker with less load, nor from an idle one.
                fits = got <= max(left, min(state.idle, highest)) + _ROUNDING
                if fits and self._may_get(source, target, topic):
                    chosen = rank
            if chosen is not None:
                reason = (
                    f"{broker_name(source)} has {spoken_count(have, 'topic')}, {broker_name(target)} {topics[target]:,}"
                )
                return self._plan(source, target, chosen[1], reason)
        return None

    def _take(self, source: BrokerId) -> Move | None:
        """Plan the best move of one topic away from a broker."""
        state, load = self.state, self.state.load(source)
        targets = self._targets(source)
        if not targets or load < state.idle or self._topics[source] < 2:
            return None
        least = state.load(targets[0])
        is_first = source not in self._budget
        budget = self._budget.get(source, self._rules.gap_share * (load - least))
        best: tuple[float, float, int] | None = None
        chosen: tuple[int, BrokerId, float] | None = None
        for target in targets[:_LOWEST]:
            # Each pair is judged by itself: of two that are nearly even, either would give the other one its topic.
            if (load - state.load(target)) / 2 <= self._rules.gain * load:
                break
            for place, (topic, weight, relief) in enumerate(self._left[source]):
                self._checks -= 1
                heaviest, after = max(weight), state.after(source, target, weight, relief)
                fits = heaviest <= budget + _ROUNDING or (is_first and after < (1 - self._rules.gain) * load)
                if after >= load or not fits or not self._may_get(source, target, topic):
                    continue
                # Equally good ones: rather an idle topic, whose clients notice nothing.
                rank = after, topic.in_bytes_s + topic.out_bytes_s, place
                if best is None or rank < best:
                    best, chosen = rank, (place, target, heaviest)
            if chosen is not None:
                break
        if chosen is None:
            return None
        place, target, heaviest = chosen
        self._budget[source] = budget - heaviest
        dimension = max(range(len(DIMENSIONS)), key=lambda index: state.vectors[source][index])
        reason = (
            f"{broker_name(source)} has {state.vectors[source][dimension]:.0%} of the {DIMENSIONS[dimension]},"
            f" {broker_name(target)} {state.vectors[target][dimension]:.0%}"
        )
        return self._plan(source, target, place, reason)

    def _plan(self, source: BrokerId, target: BrokerId, place: int, reason: str) -> Move:
        topic, weight, relief = self._left[source].pop(place)
        self.state.move(source, target, weight, relief)
        self._topics[source] -= 1
        self._topics[target] += 1
        self._given[source] += 1
        self._journal[target] += topic.journal_bytes
        split = split_partition(topic.name)
        if split is not None and split[0] in self._spread:
            counts = self._spread[split[0]]
            counts[source] -= 1
            counts[target] += 1
        return Move(topic.topic_id, topic.name, source, target, reason)

    def _targets(self, source: BrokerId) -> list[BrokerId]:
        """Return the brokers that may get topics, those with the least load first."""
        able = [
            each.broker
            for each in self._brokers.values()
            if each.is_target and each.broker != source and self._has_room(each, 0)
        ]
        return sorted(able, key=lambda broker: (self.state.load(broker), broker))

    def _has_room(self, broker: BrokerLoad, more_bytes: int) -> bool:
        used = self._journal[broker.broker] + more_bytes
        return not broker.journal_limit_bytes or used <= FULL_JOURNAL * broker.journal_limit_bytes

    def _may_get(self, source: BrokerId, target: BrokerId, topic: TopicLoad) -> bool:
        """Whether a broker may get a topic, whatever the load."""
        broker = self._brokers[target]
        if topic.storage is not None and topic.storage not in broker.storages:
            return False
        if not self._has_room(broker, topic.journal_bytes):
            return False
        split = split_partition(topic.name)
        counts = self._spread.get(split[0]) if split is not None else None
        return counts is None or keeps_spread(counts, self._racks, source, target)


class Balancer:
    """Remembers what plans need of the past; of one term of a coordinator.

    Attributes:
        standing: how many rounds in a row have found that topics should move.
    """

    def __init__(self, rules: Rules = DEFAULT_RULES) -> None:
        self.rules = rules
        self.standing = 0
        self._moved_s: dict[TopicId, float] = {}
        self._began_s = 0.0

    def begin(self, now: float) -> None:
        """Begin a term: what the former coordinator knew is not known."""
        self.standing = 0
        self._moved_s.clear()
        self._began_s = now

    def note_moving(self, topic_ids: Iterable[TopicId], now: float) -> None:
        """Note topics that are moving."""
        for topic_id in topic_ids:
            self._moved_s[topic_id] = now
        if len(self._moved_s) > 1_000:
            self._moved_s = {each: at for each, at in self._moved_s.items() if now - at < self.rules.rest_s}

    def rests(self, topic_id: TopicId, now: float, *, was_moved: bool) -> bool:
        """Whether a topic must stay where it is for now.

        Args:
            topic_id: of the topic.
            now: seconds of the clock of the other calls.
            was_moved: whether its owner got it by a move, at a time that may not be known.
        """
        if was_moved and now - self._began_s < self.rules.rest_s:
            return True
        return now - self._moved_s.get(topic_id, -self.rules.rest_s) < self.rules.rest_s

    def round(self, loads: Loads) -> Sequence[Move]:
        """Return the topics that are to move now; none before the imbalance has stood for some rounds."""
        plan = plan_moves(loads, self.rules)
        self.standing = self.standing + 1 if plan else 0
        return plan if self.standing >= self.rules.rounds else ()
