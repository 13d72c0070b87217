"""What a storage counts about itself, for metrics and for the doctor."""

from __future__ import annotations

import msgspec

__all__ = ["OperationStats", "StorageHealth", "StorageStats"]


class OperationStats(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of operation, since the storage was opened."""

    calls: int
    """Operations that have ended, well or not; cancelled ones are not counted."""
    failures: int
    """Operations that ended with an error of the backend. "No such object", "exists already" and "out of range" are
    answers, not failures."""
    retries: int
    """Attempts beyond the first."""
    bytes: int
    """Bytes of objects that were carried by operations that succeeded."""
    busy_s: float
    """Seconds spent in attempts, all together; pauses and waiting in line not included."""


class StorageHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How the latest attempts went. Times are of Trio's clock."""

    consecutive_failures: int
    """Attempts that failed since the last one that was answered; 0 means that the backend is well."""
    failing_since_s: float | None
    """When the first of them failed; None if the backend is well."""
    last_error: str | None
    """Class and message of the last failure, however long ago; None if there was none."""
    last_error_at_s: float | None
    """When that was."""

    @property
    def ok(self) -> bool:
        """Whether the last attempt was answered."""
        return self.consecutive_failures == 0


class StorageStats(msgspec.Struct, frozen=True, kw_only=True):
    """A storage at one moment."""

    name: str
    url: str
    """Without secrets."""
    max_concurrency: int
    in_flight: int
    """Attempts under way."""
    waiting: int
    """Operations that wait in line for a free place."""
    operations: dict[str, OperationStats]
    """By method name: put, get, get_ranges, head, list, delete, abandon_uploads."""
    health: StorageHealth
