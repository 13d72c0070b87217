"""Planned moves of topics to other brokers: the shells of :mod:`danube.cluster.moves`, one for each side.

They are imported when another broker has joined: one that is alone moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from danube.metrics.histogram import Histogram

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.model.ids import TopicId
    from danube.peers import Peers

__all__ = ["MoveFigures", "move_topics"]

_MOST_FAILURES: Final = 1_000


class MoveFigures:
    """How the moves of this broker's topics to other brokers have ended, since it was started.

    Attributes:
        moved, stayed: how many topics have moved, and how many moves were given up.
        frozen: for how long publishers had to wait, of each topic that has moved, in seconds.
        failures: why the last move of a topic was given up, of up to 1,000 topics, the latest ones.
    """

    def __init__(self) -> None:
        self.moved = 0
        self.stayed = 0
        self.frozen = Histogram()
        self.failures: dict[TopicId, str] = {}

    def left(self, topic_id: TopicId, frozen_s: float) -> None:
        """Note that a topic has moved."""
        self.moved += 1
        self.frozen.observe(frozen_s)
        self.failures.pop(topic_id, None)

    def failed(self, topic_id: TopicId, why: str) -> None:
        """Note that a topic stays."""
        self.stayed += 1
        self.failures.pop(topic_id, None)
        self.failures[topic_id] = why
        while len(self.failures) > _MOST_FAILURES:
            del self.failures[next(iter(self.failures))]


async def move_topics(
    directory: Directory, peers: Peers, is_staged: Callable[[TopicId], bool], figures: MoveFigures
) -> None:
    """Task: move topics to other brokers, and take theirs, as the metadata order it; until cancelled.

    Args:
        directory: of the topics; the journal runs.
        peers: links to the other brokers.
        is_staged: whether batches are staged for a topic, which cannot move with it.
        figures: counts how the moves end.
    """
    membership, joined = directory.membership, trio.Event()

    def look() -> None:
        if not membership.is_alone:
            joined.set()

    membership.on_change.append(look)
    look()
    await joined.wait()
    membership.on_change.remove(look)
    from danube.broker.moving.inheritance import Inheritance
    from danube.broker.moving.source import Departures
    from danube.broker.moving.target import Arrivals

    async with trio.open_nursery() as nursery:
        arrivals = Arrivals(directory, peers)
        nursery.start_soon(arrivals.run)
        nursery.start_soon(Inheritance(directory, arrivals.void).run)
        nursery.start_soon(Departures(directory, peers, is_staged, figures).run)
