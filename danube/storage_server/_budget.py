"""Bounds the memory of a server: calls that hold an object in memory queue for its size."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

__all__ = ["ByteBudget"]


class ByteBudget:
    """A limited number of bytes, granted in the order of requests: small requests cannot starve a large one."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.free_bytes = total_bytes
        self._line: deque[tuple[int, trio.Event]] = deque()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._line)

    @asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold ``size_bytes`` inside the block, after waiting for them. More than the total counts as the total."""
        size = min(size_bytes, self.total_bytes)
        if self._line or size > self.free_bytes:
            place = (size, trio.Event())
            self._line.append(place)
            try:
                await place[1].wait()
            except trio.Cancelled:
                if place[1].is_set():
                    self._give_back(size)
                else:
                    self._line.remove(place)
                    self._advance()
                raise
        else:
            self.free_bytes -= size
        try:
            yield
        finally:
            self._give_back(size)

    def _give_back(self, size: int) -> None:
        self.free_bytes += size
        self._advance()

    def _advance(self) -> None:
        while self._line and self._line[0][0] <= self.free_bytes:
            size, turn = self._line.popleft()
            self.free_bytes -= size
            turn.set()
