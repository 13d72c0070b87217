"""Objects in process memory, without a backend's calls. Pure: no I/O, no clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

__all__ = ["MemorySpace", "MemorySpaces"]


class MemorySpace:
    """The equivalent of a bucket: objects by key, in order."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        """Bytes and time of the put (microseconds since the epoch), by key."""
        self._keys: list[str] = []

    def store(self, key: str, data: bytes, modified_us: int) -> None:
        """Put an object; replaces an existing one."""
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = (data, modified_us)

    def remove(self, key: str) -> None:
        """Delete an object if it exists."""
        if self.objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def keys(self, prefix: str, start_after: str, limit: int) -> list[str]:
        """Return the first ``limit`` keys after ``start_after`` that begin with ``prefix``."""
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        found = self._keys[first : first + limit]
        # All keys with the prefix are adjacent: the first one without it ends them.
        return found[: bisect_right(found, prefix, key=lambda key: key[: len(prefix)])]


class MemorySpaces:
    """Spaces by name."""

    def __init__(self) -> None:
        self._spaces: dict[str, MemorySpace] = {}

    def space(self, name: str) -> MemorySpace:
        """Return the space of that name; created on first use."""
        return self._spaces.setdefault(name, MemorySpace())

    def forget(self, name: str) -> None:
        """Drop the space of that name, if there is one: it is empty when opened again."""
        self._spaces.pop(name, None)
