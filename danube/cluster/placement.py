"""Which broker gets a new topic, or a topic whose owner has died.

A topic goes to the broker on which it leaves the least load. The load of a broker is the larger of two shares: of all
topics of the cluster, and of its traffic. A topic that is placed is expected to bring the mean traffic of a topic, so
ten thousand new topics are spread over all brokers even though one of them has all the traffic of the moment: only
fewer go there.

Partitions of one topic are spread first, over racks before brokers: no rack gets a second one while another one has
none, and no broker while another one of its rack has none. Brokers with the same rack are expected to fail together; a
broker without a rack is a rack of its own. What a drained broker still has does not count: it goes elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from danube.cluster.records import BrokerState
from danube.model.errors import FailedPreconditionError
from danube.model.ids import BrokerId

__all__ = ["FULL_JOURNAL", "Candidate", "Placement", "Racks", "keeps_spread"]

FULL_JOURNAL: Final = 0.9
"""A broker that has used more than this share of its journal's limit gets no topics."""


class Racks:
    """Which brokers fail together.

    Args:
        names: the racks of those brokers that have one.
    """

    def __init__(self, names: Mapping[BrokerId, str]) -> None:
        self._names = names

    def of(self, broker: BrokerId) -> str | BrokerId:
        """Return what brokers of one rack have in common; a broker without a rack has nothing in common with others."""
        return self._names.get(broker) or broker

    def count(self, partitions: Mapping[BrokerId, int]) -> Counter[str | BrokerId]:
        """Return how many partitions each rack has, given those of each broker."""
        counts: Counter[str | BrokerId] = Counter()
        for broker, count in partitions.items():
            counts[self.of(broker)] += count
        return counts


def keeps_spread(partitions: Mapping[BrokerId, int], racks: Racks, source: BrokerId, target: BrokerId) -> bool:
    """Whether a partition may move without its topic being spread worse: over racks first, over brokers second.

    Args:
        partitions: how many partitions of the topic each broker has.
        racks: of the brokers.
        source, target: of the move.
    """
    if racks.of(source) != racks.of(target):
        counts = racks.count(partitions)
        here, there = counts[racks.of(source)], counts[racks.of(target)]
        if there + 1 != here:
            return there + 1 < here
    return partitions.get(target, 0) + 1 <= partitions.get(source, 0)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A broker with a session, and its load."""

    broker: BrokerId
    state: BrokerState = BrokerState.ACTIVE
    rack: str = ""
    """Brokers with the same rack fail together. Empty: this one fails alone."""
    storages: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    """Those of its storages that other brokers reach, too."""
    topics: int = 0
    """Topics and partitions assigned to it."""
    traffic_bytes_s: float = 0.0
    """In and out, in the last interval that it has reported."""
    journal_share: float = 0.0
    """Used share of the limit of its journal, 0 to 1."""

    def refusal(self, storage: str | None) -> str | None:
        """Say why it cannot get a topic with that storage (None: the topic needs none), or return None if it can."""
        if self.state is not BrokerState.ACTIVE:
            return f"is {self.state}"
        if storage is not None and storage not in self.storages:
            return f"has no storage {storage!r}"
        if self.journal_share > FULL_JOURNAL:
            return f"has used {self.journal_share:.0%} of its journal's limit"
        return None


class Placement:
    """Places topics one after the other; each one counts for those that follow.

    Args:
        candidates: all brokers that run.
        racks: of others, which may have partitions of the topics, too.
    """

    def __init__(self, candidates: Iterable[Candidate], racks: Mapping[BrokerId, str] = MappingProxyType({})) -> None:
        self._candidates = sorted(candidates, key=lambda candidate: candidate.broker)
        self._racks = Racks({**racks, **{each.broker: each.rack for each in self._candidates}})
        self._leaving = {each.broker for each in self._candidates if each.state is not BrokerState.ACTIVE}
        self._topics = {each.broker: each.topics for each in self._candidates}
        self._traffic = {each.broker: max(0.0, each.traffic_bytes_s) for each in self._candidates}
        self._expected = sum(self._traffic.values()) / max(1, sum(self._topics.values()))

    def place(self, storage: str | None = None, *, partitions: Mapping[BrokerId, int] | None = None) -> BrokerId:
        """Choose the broker of one topic or partition.

        Args:
            storage: name of the storage of its history; None: it stores nothing.
            partitions: how many partitions of the same topic each broker has.

        Raises:
            FailedPreconditionError: no broker can take it; the message says why, for each.
        """
        able = [each.broker for each in self._candidates if each.refusal(storage) is None]
        if not able:
            reasons = [f"b{each.broker} {each.refusal(storage)}" for each in self._candidates]
            raise FailedPreconditionError(
                f"no broker can take the topic: {'; '.join(reasons) or 'none is running'}. Start a broker that can, or"
                " activate one (danube cluster activate)"
            )
        spread = {broker: count for broker, count in (partitions or {}).items() if broker not in self._leaving}
        in_rack = self._racks.count(spread)

        def rank(broker: BrokerId) -> tuple[int, int]:
            return in_rack[self._racks.of(broker)], spread.get(broker, 0)

        fewest = min(map(rank, able))
        # Ties go to the lowest number, so that all brokers decide alike.
        chosen = min(
            (broker for broker in able if rank(broker) == fewest),
            key=lambda broker: (self.load(broker), broker),
        )
        self._topics[chosen] += 1
        self._traffic[chosen] += self._expected
        return chosen

    def place_partitions(self, count: int, storage: str | None, existing: Sequence[BrokerId] = ()) -> list[BrokerId]:
        """Choose the brokers of ``count`` more partitions of a topic that has some on ``existing`` already.

        Raises:
            FailedPreconditionError: as :meth:`place`.
        """
        spread = Counter(existing)
        chosen = []
        for _ in range(count):
            broker = self.place(storage, partitions=spread)
            spread[broker] += 1
            chosen.append(broker)
        return chosen

    def load(self, broker: BrokerId) -> float:
        """Return what the load of a broker would be with one more topic, 0 to 1."""
        topics = sum(self._topics.values()) + 1
        traffic = sum(self._traffic.values()) + self._expected
        topic_share = (self._topics[broker] + 1) / topics
        traffic_share = (self._traffic[broker] + self._expected) / traffic if traffic else 0.0
        return max(topic_share, traffic_share)
