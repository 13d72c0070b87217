"""Collects the metrics of a broker, and writes them.

A scrape goes through all topics. Those that have series of their own are read first; of too many topics, the others are
summed (:mod:`danube.metrics.tallies`). After some tens of subscriptions or topics it lets other tasks run, so the
figures of one scrape are of some moments, not of one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import trio

from danube.broker.metrics.parts import (
    write_cluster,
    write_history,
    write_journal,
    write_memory,
    write_metadata,
    write_process,
    write_publishing,
    write_storages,
    write_wire,
)
from danube.broker.metrics.topics import moved_messages, subscription_tally, topic_tally
from danube.metrics import families as of
from danube.metrics.busiest import Busiest
from danube.metrics.tallies import OTHER, Rest, TopicTally
from danube.metrics.text import Exposition
from danube.metrics.topic_series import write_subscription, write_topic
from danube.model.metrics_api import GetMetrics, MetricsText
from danube.model.names import split_partition

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.moving import MoveFigures
    from danube.broker.runtime.pulse import Pulse
    from danube.broker.topic.topic import Topic
    from danube.metadata import ObservedStore
    from danube.metrics.process import ProcessFigures
    from danube.storage import Storage
    from danube.wire import Server

__all__ = ["Metrics", "Sources"]

_T = TypeVar("_T")

_READ_AT_ONCE: Final = 40
"""Topics and subscriptions read between two checkpoints; reading one takes 10 to 50 µs."""
_LOOKED_AT_ONCE: Final = 250
"""Topics whose names and numbers of messages are looked at between two checkpoints."""


class Sources(NamedTuple):
    """The parts of a broker that metrics are read from, beside its topics."""

    store: ObservedStore
    """The metadata."""
    servers: Callable[[], list[Server]]
    """Those of its ports."""
    pulse: Pulse
    lanes: dict[str, Storage]
    """The storages, in front of commits; those in front of history are the directory's."""
    moves: MoveFigures
    staged_bytes: Callable[[], int]
    draining: Callable[[], bool]
    read_process: Callable[[], ProcessFigures | None]
    denials: Callable[[], tuple[int, int] | None]
    """Denied calls and refused credentials; None: there is no access control."""
    certificate_expires_s: Callable[[], float | None]
    """When the certificate of the ports expires, Unix time; None: they have none."""


class Metrics:
    """The metrics of one broker; see the module.

    Args:
        directory: of its topics.
        sources: everything else.
    """

    def __init__(self, directory: Directory, sources: Sources) -> None:
        self._directory = directory
        self._sources = sources
        self._limits = directory.runtime.limits
        self._busiest = Busiest(self._limits.metrics_topics)
        self._rest = Rest()
        self._turn = trio.Lock()

    async def read(self, request: GetMetrics) -> MetricsText:
        """Return the metrics as one text; see :meth:`metrics`."""
        pieces = self.metrics(request.detailed, request.topic, openmetrics=request.openmetrics)
        return MetricsText(b"".join([piece async for piece in pieces]))

    async def metrics(
        self, detailed: bool = False, topic_glob: str = "*", *, openmetrics: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield the metrics in pieces, with a checkpoint after each.

        Args:
            detailed: the series of topics, subscriptions and consumers only, by partition, at most ``metrics_series``
                of them; else those of the whole broker, and of the ``metrics_topics`` busiest topics.
            topic_glob: of the names of topics, for ``detailed``: ``*`` matches any characters, slashes included.
            openmetrics: whether the text is OpenMetrics; else it is the Prometheus text format.
        """
        text = Exposition(openmetrics=openmetrics)
        if detailed:
            await self._collect_detailed(text, topic_glob)
        else:
            async with self._turn:  # one scrape at a time: each changes the sums of the rest
                await self._collect(text)
        for piece in text.pieces():
            yield piece
            await trio.lowlevel.checkpoint()

    # --- The whole broker

    async def _collect(self, text: Exposition) -> None:
        directory, sources, runtime = self._directory, self._sources, self._directory.runtime
        servers, now = sources.servers(), trio.current_time()
        write_process(text, sources.read_process())
        text.add_histogram(of.LOOP_LAG, sources.pulse.lags)
        text.add(of.DRAINING, int(sources.draining()))
        write_journal(text, runtime.journal)
        write_memory(text, runtime, servers, runtime.journal.usage().pending_bytes)
        write_publishing(text, runtime)
        history = directory.history
        write_storages(text, history.storages, now)
        write_storages(text, {f"{name}:commits": lane for name, lane in sources.lanes.items()}, now)
        write_history(text, history, self._limits.segment_max_age_s)
        text.add(of.STAGED, sources.staged_bytes())
        write_metadata(text, sources.store)
        write_cluster(text, directory.membership, sources.moves, len(directory))
        denials = sources.denials()
        if denials is not None:
            text.add(of.DENIALS, denials[0])
            text.add(of.BAD_PROOFS, denials[1])
        expires_s = sources.certificate_expires_s()
        if expires_s is not None:
            text.add(of.CERTIFICATE_EXPIRY, expires_s)
        await trio.lowlevel.checkpoint()
        write_wire(text, servers)
        await trio.lowlevel.checkpoint()
        await self._collect_topics(text)

    async def _collect_topics(self, text: Exposition) -> None:
        topics = await self._by_name()
        shown = await self._choose(topics)
        rest, sums = TopicTally(), self._rest
        read = 0
        for name, parts in topics.items():
            found = TopicTally()
            for part in parts:
                read = await self._read(part, found, read, whole=len(parts) == 1, sizes=name in shown)
            if name in shown:
                write_topic(text, name, found)
                for subscription, tally in found.subscriptions.items():
                    write_subscription(text, name, subscription, tally)
            else:
                sums.add(name, found.counts())
                rest.absorb(found)
        sums.finish()
        text.add(of.OMITTED, len(sums))
        if sums:
            write_topic(text, OTHER, rest, sums.counts)
            for subscription, tally in rest.subscriptions.items():
                write_subscription(text, OTHER, subscription, tally, sums.counts.subscriptions)

    async def _by_name(self) -> dict[str, list[Topic]]:
        """Return the topics by name, and partitions by the name of their topic."""
        find = self._directory.catalogue.find
        found: dict[str, list[Topic]] = {}
        for some in _batched(self._directory.topics(), _LOOKED_AT_ONCE):
            for topic in some:
                split = split_partition(topic.name)
                name = topic.name if split is None or find(topic.name) is not None else split[0]
                found.setdefault(name, []).append(topic)
            await trio.lowlevel.checkpoint()
        return found

    async def _choose(self, topics: Mapping[str, list[Topic]]) -> frozenset[str]:
        """Return the names of the topics that have series of their own."""
        busiest = self._busiest
        busiest.begin(len(topics), trio.current_time())
        for some in _batched(topics.items(), _LOOKED_AT_ONCE):
            busiest.offer({name: sum(map(moved_messages, parts)) for name, parts in some})
            await trio.lowlevel.checkpoint()
        return busiest.end()

    async def _read(
        self, topic: Topic, into: TopicTally, read: int, *, whole: bool, sizes: bool, consumers: bool = False
    ) -> int:
        """Read a topic or partition; return how much was read since the last checkpoint.

        Args:
            topic: the topic or partition.
            into: to which it is added.
            read: what was read since the last checkpoint.
            whole: whether nothing else is added.
            sizes, consumers: whether to measure what it stores, and to list consumers.
        """
        sealed = self._directory.history.catalogue.find(topic.topic_id)
        found = topic_tally(topic, sealed, sizes=sizes)
        now, now_us = trio.current_time(), self._directory.runtime.clock_us()
        for name, subscription in list(topic.subscriptions.items()):
            found.subscriptions[name] = subscription_tally(
                subscription, topic, sealed, now, now_us, consumers=consumers
            )
            read = await self._count(read)
        into.add(found)
        if whole:
            into.offsets = found.offsets
        return await self._count(read)

    @staticmethod
    async def _count(read: int) -> int:
        """Return what was read since the last checkpoint, after one more; a checkpoint if that is much."""
        if read < _READ_AT_ONCE:
            return read + 1
        await trio.lowlevel.checkpoint()
        return 0

    # --- Details

    async def _collect_detailed(self, text: Exposition, topic_glob: str) -> None:
        matches = _matcher(topic_glob)
        read = omitted = 0
        for some in _batched(self._directory.topics(), _LOOKED_AT_ONCE):
            for topic in some:
                if not matches(topic.name):
                    continue
                if text.series >= self._limits.metrics_series:
                    omitted += 1
                    continue
                found = TopicTally()
                read = await self._read(topic, found, read, whole=True, sizes=True, consumers=True)
                self._write_detailed(text, topic.name, found)
            await trio.lowlevel.checkpoint()
        text.add(of.OMITTED, omitted)

    def _write_detailed(self, text: Exposition, name: str, found: TopicTally) -> None:
        """Write a topic, with as many of its subscriptions and consumers as there may be series."""
        write_topic(text, name, found)
        for subscription, tally in found.subscriptions.items():
            if text.series >= self._limits.metrics_series:
                return
            write_subscription(text, name, subscription, tally)
            for consumer, figures in tally.consumers:
                labels = (name, subscription, consumer)
                text.add(of.MESSAGES_OUT, figures.messages_out, *labels)
                text.add(of.BYTES_OUT, figures.bytes_out, *labels)
                text.add(of.CONSUMER_ACKED, figures.acked, *labels)
                text.add(of.CONSUMER_IN_FLIGHT, figures.in_flight, *labels)


def _matcher(glob: str) -> Callable[[str], bool]:
    return lambda name: fnmatch.fnmatchcase(name, glob)


def _batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield lists of as many items."""
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
