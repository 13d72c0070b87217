"""Applies the publish rate of a topic or a namespace: decides which producer may publish now, and queues the others.

All producers of a topic share one bucket. While it is in debt they wait in the order of their arrival; no batch is
refused, and no producer overtakes another. The first in the queue still has to ask the journal for room, and keeps its
place meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from danube.broker.runtime.token_bucket import TokenBucket
from danube.model import Rate

__all__ = ["Pace"]


class Pace:
    """The publish rate of one topic, or of one namespace; see the module.

    Args:
        rate: at least one of its sides is set.
    """

    __slots__ = ("_bucket", "_changed", "_turns", "_waiting")

    def __init__(self, rate: Rate) -> None:
        self._bucket: TokenBucket | None = TokenBucket(rate, trio.current_time())
        self._changed = trio.Event()
        self._turns = trio.StrictFIFOLock()
        self._waiting = 0

    def change(self, rate: Rate | None) -> None:
        """Change the rate; None or a rate without limits lets all waiting producers publish."""
        if not rate or self._bucket is None:
            self._bucket = None
        elif rate != self._bucket.rate:
            self._bucket.change(rate, trio.current_time())
        self._changed.set()
        self._changed = trio.Event()

    @property
    def is_free(self) -> bool:
        """Whether a producer that has not waited may publish now."""
        return not self._waiting and self.is_paid

    @property
    def is_paid(self) -> bool:
        """Whether the producer whose turn it is may publish now."""
        return self._bucket is None or self._bucket.paid_at <= trio.current_time()

    def take(self, messages: int, size_bytes: int) -> None:
        """Count published messages."""
        if self._bucket is not None:
            self._bucket.take(messages, size_bytes, trio.current_time())

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait in the queue; it is the caller's turn during the body."""
        self._waiting += 1
        try:
            async with self._turns:
                yield
        finally:
            self._waiting -= 1

    async def pay(self, messages: int, size_bytes: int) -> None:
        """Wait for the rate, in the queue, and count messages that are published later."""
        if not self.is_free:
            async with self.turn():
                while not self.is_paid:
                    await self.until_paid()
        self.take(messages, size_bytes)

    async def until_paid(self) -> None:
        """Return when :attr:`is_paid` is true, or may be."""
        bucket = self._bucket
        if bucket is not None and not self.is_paid:
            with trio.move_on_at(bucket.paid_at):
                await self._changed.wait()
