"""Statistics of a storage, for metrics and for the doctor."""

from __future__ import annotations

import msgspec

from danube.metrics.histogram import Histogram

__all__ = ["OperationStats", "StorageHealth", "StorageStats"]


class OperationStats(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of operation, since the storage was opened."""

    calls: int
    """Operations that have ended, successfully or not; cancelled ones are not counted."""
    failures: int
    """Operations that ended with an error of the backend. "No such object", "exists already" and "out of range" are
    answers, not failures."""
    retries: int
    """Attempts beyond the first."""
    bytes: int
    """Bytes of objects transferred by successful operations."""
    busy_s: float
    """Total seconds spent in attempts; pauses and queueing not included."""
    durations: Histogram
    """How long the attempts took; it continues to count."""


class StorageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a backend answers, according to the latest attempts. Times are of Trio's clock."""

    consecutive_failures: int
    """Failed attempts since the last one that was answered; 0 means that the backend is healthy."""
    failing_since_s: float | None
    """When the first of them failed; None if the backend is healthy."""
    last_error: str | None
    """Class and message of the last failure, however long ago; None if there was none."""
    last_error_at_s: float | None
    """Time of the last failure."""

    @property
    def ok(self) -> bool:
        """Whether the last attempt was answered."""
        return self.consecutive_failures == 0


class StorageStats(msgspec.Struct, frozen=True, kw_only=True):
    """State of a storage at one moment."""

    name: str
    url: str
    """The URL without secrets."""
    max_concurrency: int
    in_flight: int
    """Attempts in progress."""
    waiting: int
    """Queued operations."""
    operations: dict[str, OperationStats]
    """By method name: put, get, get_ranges, head, list, delete, abandon_uploads."""
    health: StorageHealth
