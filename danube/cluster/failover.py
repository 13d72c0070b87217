"""Failover of topics with durability ``remote``: which broker goes on with the wal of a dead one. Pure.

The unit is a *wal*: everything that one broker at a time commits to one storage (:mod:`danube.cluster.records`). Its
topics stay in it, whichever broker writes it, so all of them get the same successor. That happens in two steps::

    TakeWal      the row of the wal names the successor      if the former owner has no session, for its grace
    FollowWal    each of its topics is assigned to it        as long as the row says so

The successor is the broker that spreads the partitions of these topics best: over racks first, over brokers second. Of
several it is the one with the fewest topics.

The first step is one transaction, so a wal never has two owners, even if the coordinator dies in between: a former
owner that comes back before its topics have followed has lost all of them. The second step is the only change of an
assignment that does not depend on the absence of the former owner. It is conditional on the row of the wal, which no
broker loses while it has a session.

Nothing here decides who may *write*: the successor puts a fence into the wal (:mod:`danube.history.remote.claim`), and
from then on the former owner acknowledges nothing, whatever it believes.

**The grace.** A broker that only lost its session opens another one at once, and a failover would take its topics away
for a second or two. So its wals are taken :data:`FAILOVER_GRACE_S` after its session has ended. A longer
grace would save the topics of a broker that is restarted without having been drained, but each crash would cost the
same time; such a restart takes several seconds, and the topics are back sooner at a successor. A coordinator that has
never seen a broker with a session has just started, perhaps as the first one after a power failure of all: it grants
:data:`UNSEEN_GRACE_S`, or the first broker that is back would get the topics of all others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from danube.cluster.coordinator import FollowWal, RemoteTopic, TakeWal, Wals
from danube.cluster.placement import Candidate, Racks
from danube.cluster.records import Assignment, BrokerRecord, BrokerState, Reason, Wal, WalRecord, parse_broker
from danube.model.ids import BrokerId, OwnerEpoch
from danube.model.names import split_partition

if TYPE_CHECKING:
    from danube.cluster.absences import Absences

__all__ = [
    "FAILOVER_GRACE_S",
    "UNSEEN_GRACE_S",
    "decide_failover",
    "may_fail_over",
    "overdue",
    "next_overdue_s",
    "successor",
]

FAILOVER_GRACE_S: Final = 0.5
"""For how long a broker must have had no session before another one gets its wals."""
UNSEEN_GRACE_S: Final = 30.0
"""The same for a broker that the coordinator has never seen with a session."""


def decide_failover(
    wals: Wals, sessions: Mapping[BrokerId, int], candidates: Mapping[BrokerId, Candidate]
) -> Iterator[TakeWal | FollowWal]:
    """Yield what is to be done about wals whose owner has died; the topics of the first wals first."""
    lost: Counter[Wal] = Counter()
    crowds = _Crowds(candidates.values(), sessions)
    for topic_id, topic in wals.topics.items():
        owner, row = wals.owner(topic.wal), wals.rows.get(topic.wal)
        if owner not in sessions:
            lost[topic.wal] += 1
            crowds.add(topic)
        elif row is not None and owner != topic.assignment.owner:
            yield FollowWal(
                topic_id=topic_id,
                record=topic.record,
                record_revision=topic.record_revision,
                assignment=Assignment(
                    owner, OwnerEpoch(topic.assignment.epoch + 1), Reason.FAILOVER, wal=topic.wal.name
                ),
                revision=topic.revision,
                wal=topic.wal,
                wal_revision=row[1],
            )
    given: Counter[BrokerId] = Counter()
    for wal, topics in sorted(lost.items(), key=lambda item: (-item[1], item[0])):
        owner, row = wals.owner(wal), wals.rows.get(wal)
        if owner not in wals.overdue or wal.storage not in wals.shared.get(owner, ()):
            continue
        chosen = successor(wal.storage, candidates.values(), given, crowds.of(wal))
        if chosen is None or chosen not in sessions:
            continue
        given[chosen] += topics
        crowds.give(wal, chosen)
        changes = row[0].changes + 1 if row is not None else 1
        yield TakeWal(
            wal=wal,
            record=WalRecord(chosen, owner, changes),
            revision=row[1] if row is not None else 0,
            session=sessions[chosen],
            topics=topics,
        )


def successor(
    storage: str,
    candidates: Iterable[Candidate],
    given: Mapping[BrokerId, int],
    crowds: Mapping[BrokerId, tuple[int, int]] = MappingProxyType({}),
) -> BrokerId | None:
    """Choose the broker that gets a wal, of those that share its storage.

    Args:
        storage: of the wal.
        candidates: the brokers that run.
        given: how many topics some of them have been given in the same round.
        crowds: for each broker, the number of pairs of a partition in the wal and another one of the same topic that
            would share its rack, and the number of those that would share the broker.

    Returns:
        The one with the smallest crowd; of several, the one with the fewest topics. None: no broker can take it.
    """
    able = [each for each in candidates if each.refusal(storage) is None and storage in each.shared]
    if not able:
        return None
    return min(
        able,
        key=lambda each: (crowds.get(each.broker, (0, 0)), each.topics + given.get(each.broker, 0), each.broker),
    ).broker


class _Crowds:
    """Counts what partitioned topics have where, while their wals are given away."""

    def __init__(self, candidates: Iterable[Candidate], sessions: Collection[BrokerId]) -> None:
        self._running = [each for each in candidates if each.broker in sessions and each.state is BrokerState.ACTIVE]
        self._racks = Racks({each.broker: each.rack for each in self._running})
        self._in_wal: defaultdict[Wal, Counter[str]] = defaultdict(Counter)
        """How many partitions of each topic a wal has."""
        self._spread: dict[str, Counter[BrokerId]] = {}
        """How many of its partitions each broker has that runs and is not drained."""

    def add(self, topic: RemoteTopic) -> None:
        """Count a topic or partition of a wal whose owner has died."""
        split = split_partition(topic.name) if topic.partitions else None
        if split is None:
            return
        self._in_wal[topic.wal][split[0]] += 1
        if split[0] not in self._spread:
            running = {each.broker for each in self._running}
            self._spread[split[0]] = Counter({at: count for at, count in topic.partitions.items() if at in running})

    def of(self, wal: Wal) -> dict[BrokerId, tuple[int, int]]:
        """Return the crowds for :func:`successor`."""
        in_racks: Counter[str | BrokerId] = Counter()
        at_brokers: Counter[BrokerId] = Counter()
        for name, mine in self._in_wal[wal].items():
            for broker, count in self._spread[name].items():
                at_brokers[broker] += mine * count
                in_racks[self._racks.of(broker)] += mine * count
        return {each.broker: (in_racks[self._racks.of(each.broker)], at_brokers[each.broker]) for each in self._running}

    def give(self, wal: Wal, broker: BrokerId) -> None:
        """Note that a broker gets a wal."""
        for name, mine in self._in_wal[wal].items():
            self._spread[name][broker] += mine


def may_fail_over(storage: str, owner: Collection[str], candidates: Iterable[Candidate]) -> bool:
    """Whether another broker can go on with topics in a storage, of a broker that shares these storages with others."""
    return storage in owner and successor(storage, candidates, {}) is not None


def overdue(brokers: Mapping[str, BrokerRecord], absences: Absences, now: float) -> set[BrokerId]:
    """Return the brokers without a session whose grace is over, according to what this coordinator has seen."""
    return {parse_broker(name) for name, left in _left(brokers, absences, now) if left <= 0}


def next_overdue_s(brokers: Mapping[str, BrokerRecord], absences: Absences, now: float) -> float | None:
    """Return in how many seconds the grace of another broker ends; None: none has one."""
    return min((left for _, left in _left(brokers, absences, now) if left > 0), default=None)


def _left(brokers: Mapping[str, BrokerRecord], absences: Absences, now: float) -> Iterator[tuple[str, float]]:
    for name, record in brokers.items():
        away_s = absences.away_s(name, now)
        if away_s is None:
            continue
        if record.state is BrokerState.GONE:
            yield name, 0.0
        else:
            seen = absences.last_session(name) is not None
            yield name, (FAILOVER_GRACE_S if seen else UNSEEN_GRACE_S) - away_s
