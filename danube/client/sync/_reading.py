"""The core of the blocking form of :class:`LogReading`: fetches batches that have arrived together."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

from danube.client._log_reading import LogReading
from danube.client.sync._handles import Handle

if TYPE_CHECKING:
    from danube.client.sync._loop import Loop
    from danube.model.query_api import RawBatch

__all__ = ["LogReadingCore"]


class LogReadingCore(Handle[LogReading]):
    """The part of :class:`LogReading` that is not generated."""

    def __init__(self, inner: LogReading, loop: Loop) -> None:
        super().__init__(inner, loop)
        self._arrived: deque[RawBatch] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RawBatch:
        if not self._arrived:
            self._arrived.extend(self.next_batches())
            if not self._arrived:
                raise StopIteration
        return self._arrived.popleft()

    def next_batches(self) -> list[RawBatch]:
        """Return the next batch and others that have arrived; an empty list at the end. Raises as iteration does."""
        if self._arrived:
            batches = list(self._arrived)
            self._arrived.clear()
            return batches
        return self._loop.run(self._inner.next_batches)
