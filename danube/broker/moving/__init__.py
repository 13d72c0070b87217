"""Planned moves of topics to other brokers: the shells of :mod:`danube.cluster.moves`, one for each side.

They are imported when another broker has joined: one that is alone moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.model.ids import TopicId
    from danube.peers import Peers

__all__ = ["move_topics"]


async def move_topics(directory: Directory, peers: Peers, is_staged: Callable[[TopicId], bool]) -> None:
    """Task: move topics to other brokers, and take theirs, as the metadata order it; until cancelled.

    Args:
        directory: of the topics; the journal runs.
        peers: links to the other brokers.
        is_staged: whether batches are staged for a topic, which cannot move with it.
    """
    membership, joined = directory.membership, trio.Event()

    def look() -> None:
        if not membership.is_alone:
            joined.set()

    membership.on_change.append(look)
    look()
    await joined.wait()
    membership.on_change.remove(look)
    from danube.broker.moving.source import Departures
    from danube.broker.moving.target import Arrivals

    async with trio.open_nursery() as nursery:
        nursery.start_soon(Arrivals(directory, peers).run)
        nursery.start_soon(Departures(directory, peers, is_staged).run)
