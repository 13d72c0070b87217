"""Locks by name: a task that waits for a slow storage blocks only tasks that work on the same topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

__all__ = ["NamedLocks"]


class NamedLocks:
    """Locks by name. A lock that is neither held nor waited for takes no memory."""

    def __init__(self) -> None:
        self._locks: dict[str, trio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for the lock of a name, and hold it for the block."""
        lock = self._locks.setdefault(name, trio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]
