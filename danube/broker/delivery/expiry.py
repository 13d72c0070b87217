"""Message TTL: what was not acknowledged for too long counts as acknowledged.

One task looks after all topics whose policy ``message_ttl_s`` says so. A quarter of the time after which messages
expire, and half a minute at most, is how late they may go; a subscription that comes upon one before that leaves it
out by itself. Messages go in the order in which they were appended, so each topic has one offset below which all is too
old, and each of its subscriptions is told that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from danube.model.errors import DanubeError, StorageError

__all__ = ["Expiring", "MessageExpiry", "round_s"]

_log = logging.getLogger("danube.broker")

_SHORTEST_S = 1.0
_LONGEST_S = 30.0


class Expiring(Protocol):
    """What is needed of a topic."""

    name: str
    storage: str

    @property
    def message_ttl_s(self) -> float:
        """After how long its messages expire; 0: never."""
        ...

    async def expire_messages(self, before_us: int) -> None:
        """Settle what was appended before a time in all subscriptions."""
        ...


def round_s(ttl_s: float) -> float:
    """Return how often messages are looked for that expire after ``ttl_s``."""
    return min(max(ttl_s / 4, _SHORTEST_S), _LONGEST_S)


class MessageExpiry:
    """See the module.

    Args:
        topics: returns the living topics.
        wall_clock_us: the seam; append times are of it.
    """

    def __init__(self, topics: Callable[[], Sequence[Expiring]], wall_clock_us: Callable[[], int]) -> None:
        self._topics = topics
        self._clock_us = wall_clock_us
        self._wake = trio.Event()
        self._failing: set[str] = set()

    def look_again(self) -> None:
        """Policies have changed, or a topic has come."""
        self._wake.set()

    async def run(self) -> None:
        """Let messages expire, until cancelled."""
        due_at: dict[float, float] = {}
        while True:
            self._wake = trio.Event()
            # A time to live that is new has its first round now.
            wanted = {topic.message_ttl_s for topic in self._topics()} - {0.0}
            due_at = {ttl_s: due_at.get(ttl_s, -math.inf) for ttl_s in wanted}
            now = trio.current_time()
            due = {ttl_s for ttl_s, at in due_at.items() if at <= now}
            if due:
                await self._round(due)
                due_at.update((ttl_s, trio.current_time() + round_s(ttl_s)) for ttl_s in due)
            with trio.move_on_at(min(due_at.values(), default=math.inf)):
                await self._wake.wait()

    async def _round(self, due: set[float]) -> None:
        """One round, of each storage by itself: one that does not answer delays no other."""
        lines: dict[str, list[Expiring]] = {}
        for topic in self._topics():
            if topic.message_ttl_s in due:
                lines.setdefault(topic.storage, []).append(topic)
        async with trio.open_nursery() as nursery:
            for storage, topics in lines.items():
                nursery.start_soon(self._expire, storage, topics)

    async def _expire(self, storage: str, topics: Sequence[Expiring]) -> None:
        for topic in topics:
            ttl_s = topic.message_ttl_s
            try:
                if ttl_s:
                    await topic.expire_messages(self._clock_us() - int(ttl_s * 1e6))
                self._failing.discard(topic.name)
            except StorageError as error:
                self._tell_once(topic, error)
                return  # the others there would fail, too; they have their turn in the next round
            except (DanubeError, OSError) as error:
                self._tell_once(topic, error)
            await trio.lowlevel.checkpoint()

    def _tell_once(self, topic: Expiring, error: Exception) -> None:
        if topic.name not in self._failing:
            _log.error("messages of topic %r do not expire, as they cannot be read; tried again: %s", topic.name, error)
        self._failing.add(topic.name)
