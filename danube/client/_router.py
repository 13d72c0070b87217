"""Selects the partition of a message.

A key always maps to partition FNV-1a 64 (key) mod N, as in the upstream clients. Messages without a key stay with one
partition until its open batch is closed and then move to the next one: an even spread in large batches.
"""

from __future__ import annotations

from danube.model.names import route_key

__all__ = ["Router"]

_MAX_CACHED_KEYS = 65_536


class Router:
    """Partitions of keys, remembered: hashing in Python costs a microsecond per ten characters."""

    __slots__ = ("_cache", "_partitions")

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._cache: dict[bytes, int] = {}

    def partition(self, key: bytes) -> int:
        """Return the partition of ``key``."""
        index = self._cache.get(key)
        if index is None:
            if len(self._cache) >= _MAX_CACHED_KEYS:
                self._cache.clear()
            index = self._cache[key] = route_key(key, self._partitions)
        return index
