"""Message TTL: settles messages that were not acknowledged within the policy ``message_ttl_s`` of their topic.

One task serves all topics with this policy. Messages may expire late, by a quarter of their time to live and at most
half a minute; a subscription that meets an expired message earlier skips it by itself. Messages expire in the order in
which they were appended, so each topic has one offset below which all messages are too old; all its subscriptions are
advanced to it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from danube.model.errors import DanubeError, StorageError
from danube.model.log_events import log_event

__all__ = ["Expiring", "MessageExpiry", "round_s"]

_log = logging.getLogger("danube.broker")

_SHORTEST_S = 1.0
_LONGEST_S = 30.0


class Expiring(Protocol):
    """The part of a topic that expiry uses."""

    name: str
    storage: str

    @property
    def message_ttl_s(self) -> float:
        """The time to live of its messages; 0: they never expire."""
        ...

    async def expire_messages(self, before_us: int) -> None:
        """Settle all messages appended before a time, in all subscriptions."""
        ...


def round_s(ttl_s: float) -> float:
    """Return the interval of the rounds for messages that expire after ``ttl_s``."""
    return min(max(ttl_s / 4, _SHORTEST_S), _LONGEST_S)


class MessageExpiry:
    """Expires the messages of all topics with a time to live; see the module.

    Args:
        topics: returns the served topics.
        wall_clock_us: the wall clock, a seam; append times are taken from it.
    """

    def __init__(self, topics: Callable[[], Sequence[Expiring]], wall_clock_us: Callable[[], int]) -> None:
        self._topics = topics
        self._clock_us = wall_clock_us
        self._wake = trio.Event()
        self._failing: set[str] = set()

    def look_again(self) -> None:
        """Re-evaluate the topics: policies have changed, or a topic was added."""
        self._wake.set()

    async def run(self) -> None:
        """Expire messages, until cancelled."""
        due_at: dict[float, float] = {}
        while True:
            self._wake = trio.Event()
            # A new time to live has its first round now.
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
        """Run one round, for each storage separately: one that does not answer delays no other."""
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
                return  # its other topics would fail, too; the next round tries them again
            except (DanubeError, OSError) as error:
                self._tell_once(topic, error)
            await trio.lowlevel.checkpoint()

    def _tell_once(self, topic: Expiring, error: Exception) -> None:
        if topic.name not in self._failing:
            _log.error(
                "messages of topic %r cannot be read, so they expire later; retrying: %s",
                topic.name,
                error,
                extra=log_event("expiry.delayed", topic=topic.name),
            )
        self._failing.add(topic.name)
