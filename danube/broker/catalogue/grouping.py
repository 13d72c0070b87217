"""Which changes fit together into one transaction of the metadata. Pure: values in, values out.

The conditions of a change are what its checks have seen. Changes that are made together have one revision, so none of
them may change a key that another one has read, and all must have seen the same revision of a key that they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["RESERVED", "Group"]

RESERVED: Final = 2
"""Conditions and operations that are left for the guard of the writer, and for its fence."""


class Group:
    """Changes that are made in one transaction.

    Args:
        most: conditions, and operations, of one transaction.
        most_bytes: keys and values of one transaction together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most - RESERVED
        self._most_bytes = most_bytes - 4096  # of the guard
        self._conditions: dict[str, int] = {}
        self._changed: set[str] = set()
        self._own: set[str] = set()
        """Keys that a change of the group reads and no later one may change."""
        self._bytes = 0
        self.is_full = False
        """Whether a change was refused because there is no more room."""

    def add(self, conditions: Iterable[tuple[str, int]], operations: Mapping[str, int]) -> bool:
        """Add a change, if it fits.

        Args:
            conditions: keys, and the revisions that they must have.
            operations: keys that are changed, and the sizes of their new values in bytes.

        Returns:
            Whether it was added. The first one always is: a change that is too large by itself is refused by the store.
        """
        wanted = dict(conditions)
        read = wanted.keys() - operations.keys()
        if self._changed & (wanted.keys() | operations.keys()) or self._own & operations.keys():
            return False
        if any(self._conditions.get(key, revision) != revision for key, revision in wanted.items()):
            return False
        added = wanted.keys() - self._conditions.keys()
        size = sum(map(len, added)) + sum(len(key) + value for key, value in operations.items())
        if self._conditions and (
            len(self._conditions) + len(added) > self._most
            or len(self._changed) + len(operations) > self._most
            or self._bytes + size > self._most_bytes
        ):
            self.is_full = True
            return False
        self._conditions.update(wanted)
        self._changed.update(operations)
        self._own |= read
        self._bytes += size
        return True
