"""Commit notifications: what the broker does once for each group of journal entries that has settled.

A commit settles the batches of many topics and producers at once. Acknowledgements and deliveries that follow from it
are collected while the owners of the entries are notified, and sent once at the end::

    journal -> settled(entries)
                 entry.owner.settled() ...      a topic shows a batch: touch(topic); a stream has an ack: queue(stream)
                 flush()                        one message with all acknowledgements for each stream
                 topic.pump()                   one round of delivery for each topic that was touched
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import trio

from danube.log import Entry
from danube.model.errors import DanubeError

__all__ = ["Commits", "Flushed", "Pumped"]


class Flushed(Protocol):
    """A stream that collects acknowledgements."""

    def flush(self) -> None:
        """Send the collected acknowledgements."""
        ...


class Pumped(Protocol):
    """A topic."""

    def pump(self) -> None:
        """Deliver what can be delivered now."""
        ...


class Commits:
    """Notifies the owners of settled entries, flushes streams and pumps topics; see the module.

    Args:
        settling: called before the owners of a group of entries are notified.
    """

    def __init__(self, settling: Callable[[], None] = lambda: None) -> None:
        self._settling = settling
        self._touched: dict[Pumped, None] = {}
        self._queued: list[Flushed] = []
        self._settled = trio.Event()

    def settled(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        """Notify the owners of settled entries, then flush the queued streams and pump the touched topics, once each.

        Args:
            entries: in the order in which they were submitted.
            error: why they are not durable, and never will be; None: they are durable.
        """
        self._settling()
        for entry in entries:
            owner: Any = entry.owner
            owner.settled(entry, error)
        self._settled.set()
        self._settled = trio.Event()
        self.flush()
        if error is None:
            touched, self._touched = self._touched, {}
            for topic in touched:
                topic.pump()

    def stalled(self, entries: Sequence[Entry], error: DanubeError) -> None:
        """Notify the owners of entries that these wait for their storage, and may still become durable."""
        for entry in entries:
            owner: Any = entry.owner
            owner.stalled(entry, error)
        self.flush()

    def touch(self, topic: Pumped) -> None:
        """Schedule a topic for delivery at the end of the commit."""
        self._touched[topic] = None

    def queue(self, stream: Flushed) -> None:
        """Schedule a flush of a stream at the end of the commit, or at the next :meth:`flush`. Call it once each."""
        self._queued.append(stream)

    def flush(self) -> None:
        """Flush the queued streams."""
        streams, self._queued = self._queued, []
        for stream in streams:
            stream.flush()

    async def next_commit(self) -> None:
        """Wait until the journal has settled entries."""
        await self._settled.wait()
