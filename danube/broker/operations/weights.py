"""What this broker tells others about the load of its topics, and about those that cannot move.

The traffic of topics is measured between two questions; one that comes soon after another gets the same answer. The
topics are read in turns, so that the event loop is never kept busy for long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from danube.cluster.asking import HinderedTopic, LeavingTold, LoadsTold, TopicWeight
from danube.cluster.hindrance import hindrance_of
from danube.cluster.records import topic_key
from danube.model.ids import TopicId

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.moving import MoveFigures
    from danube.broker.runtime.pulse import Pulse
    from danube.broker.topic.topic import Topic

__all__ = ["SHORTEST_S", "Weights"]

SHORTEST_S: Final = 4.0
"""Time between two measurements, at least."""
_PER_TURN: Final = 200
"""Topics that are read before other tasks run."""


class _Counts(NamedTuple):
    in_bytes: int
    out_bytes: float
    """Estimated: messages that were delivered, times the mean size of those that were accepted."""


class Weights:
    """See the module.

    Args:
        directory: of the topics.
        pulse: of this broker.
        moves: counts how moves of its topics end.
        staged: returns the topics for which batches are staged that have to stay with them.
    """

    def __init__(
        self, directory: Directory, pulse: Pulse, moves: MoveFigures, staged: Callable[[], Collection[TopicId]]
    ) -> None:
        self._directory = directory
        self._pulse = pulse
        self._moves = moves
        self._staged = staged
        self._lock = trio.Lock()
        self._counts: dict[TopicId, _Counts] = {}
        self._rates: dict[TopicId, tuple[float, float]] = {}
        self._cpu_s = 0.0
        self._cpu = 0.0
        self._measured_s = -1.0
        """When the counts were taken; below 0: not yet."""
        self._interval_s = 0.0

    def hindrance(self, topic: Topic, staged: Collection[TopicId]) -> str:
        """Say why a topic of this broker cannot be moved to another one; empty: it can.

        Args:
            topic: of this broker.
            staged: the topics for which batches are staged that have to stay with them.
        """
        history, record = self._directory.history, topic.storage
        sealed = None if topic.lossy else history.catalogue.find(topic.topic_id)
        storage = history.storages.get(record)
        return hindrance_of(
            topic.durability,
            record,
            self._directory.broker,
            shared=storage is not None and storage.capabilities.shared,
            sealed=sealed is not None and bool(sealed.parts),
            staged=topic.topic_id in staged,
        )

    async def loads(self, most: int) -> LoadsTold:
        """Return the load of this broker, and of at most so many of its topics that can move."""
        async with self._lock:
            await self._measure()
        rates, usage = self._pulse.rates(), self._directory.runtime.journal.usage()
        told = LoadsTold(
            in_bytes_s=rates.received,
            out_bytes_s=rates.sent,
            cpu=self._cpu,
            journal_used_bytes=usage.used_bytes,
            journal_limit_bytes=usage.limit_bytes,
            interval_s=self._interval_s,
        )
        if most <= 0:
            return told
        moves = self._directory.membership.moves.values
        busy = set(nlargest(most // 2 + 1, self._rates, key=lambda each: sum(self._rates[each])))
        first, others, staged = list[TopicWeight](), list[TopicWeight](), self._staged()
        for count, topic in enumerate(self._directory.topics(), 1):
            if count % _PER_TURN == 0:
                await trio.lowlevel.checkpoint()
            is_busy = topic.topic_id in busy
            if topic.gone or topic_key(topic.topic_id) in moves or (not is_busy and len(others) >= most):
                continue
            if self.hindrance(topic, staged):
                continue
            in_, out = self._rates.get(topic.topic_id, (0.0, 0.0))
            (first if is_busy else others).append(
                TopicWeight(
                    topic.topic_id,
                    topic.name,
                    None if topic.lossy else topic.storage,
                    in_,
                    out,
                    0 if topic.lossy else topic.stored_bytes,
                )
            )
        first.sort(key=lambda each: -each.in_bytes_s - each.out_bytes_s)
        told.topics = (first + others)[:most]
        return told

    async def leaving(self, most: int) -> LeavingTold:
        """Return how many topics this broker serves, and which of them cannot move."""
        told, staged = LeavingTold(0, 0), self._staged()
        for count, topic in enumerate(self._directory.topics(), 1):
            if count % _PER_TURN == 0:
                await trio.lowlevel.checkpoint()
            told.topics += 1
            why = self.hindrance(topic, staged)
            if why:
                told.hindered += 1
                if len(told.named) < most:
                    told.named.append(HinderedTopic(topic.name, why))
            elif topic.topic_id in self._moves.failures and len(told.failed) < most:
                told.failed.append(HinderedTopic(topic.name, self._moves.failures[topic.topic_id]))
        return told

    async def _measure(self) -> None:
        """Measure what has passed since the last time, if that is long ago."""
        now = trio.current_time()
        if self._measured_s >= 0 and now - self._measured_s < SHORTEST_S:
            return
        passed_s = now - self._measured_s if self._measured_s >= 0 else 0.0
        counts, rates = dict[TopicId, _Counts](), dict[TopicId, tuple[float, float]]()
        for count, topic in enumerate(self._directory.topics(), 1):
            if count % _PER_TURN == 0:
                await trio.lowlevel.checkpoint()
            found = _counts(topic)
            if not found.in_bytes and not found.out_bytes:
                continue
            counts[topic.topic_id] = found
            before = self._counts.get(topic.topic_id)
            if before is not None and passed_s:
                in_, out = found.in_bytes - before.in_bytes, found.out_bytes - before.out_bytes
                if in_ > 0 or out > 0:
                    rates[topic.topic_id] = max(0.0, in_ / passed_s), max(0.0, out / passed_s)
        _, cpu_s = self._directory.runtime.seams.process_usage()
        self._cpu = max(0.0, cpu_s - self._cpu_s) / passed_s if passed_s else 0.0
        self._counts, self._rates, self._cpu_s = counts, rates, cpu_s
        self._measured_s, self._interval_s = now, passed_s


def _counts(topic: Topic) -> _Counts:
    intake = topic.intake
    delivered = sum(each.machine.delivered_messages for each in topic.subscriptions.values())
    mean = intake.accepted_bytes / intake.settled_messages if intake.settled_messages else 0.0
    return _Counts(intake.accepted_bytes, delivered * mean)
