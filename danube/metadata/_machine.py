"""The rules of a metadata store as a pure state machine over a table.

:class:`StoreMachine` implements puts, conditions, leases and revisions. :class:`Rows` is the interface to the data:
a dict, an SQLite file. The machine does no I/O of its own, has no clock and no randomness, so the same
sequence of calls gives the same table everywhere, as a replicated log requires. Conditions and
arguments are checked before the first write, so a call that raises has changed nothing (unless the table itself failed;
then its owner rolls back).

Effects of calls (event batches, leases) are collected in :attr:`StoreMachine.effects` until the owner takes them, after
the change is as durable as promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from danube.metadata._contract import (
    Condition,
    DeleteEvent,
    Event,
    EventBatch,
    KeyValue,
    LeaseId,
    Put,
    PutEvent,
    TransactionResult,
)
from danube.metadata._contract import Delete as DeleteOperation
from danube.metadata._keys import covers
from danube.metadata._requests import RequestChecks, conflict, lease_ended
from danube.model.errors import (
    LimitExceededError,
    MetadataConflictError,
    WatchCompactedError,
)
from danube.model.limits import KIB, Limits

__all__ = [
    "HISTORY_PAGE_BYTES",
    "HISTORY_PAGE_REVISIONS",
    "Effects",
    "HistoryPage",
    "Rows",
    "StoreMachine",
    "changes_under",
]

HISTORY_PAGE_REVISIONS = 256
"""Most revisions that a watch reads from the history in one step."""
HISTORY_PAGE_BYTES = 512 * KIB
"""Bytes of events at which such a step ends early; the revision that reaches it is still read whole."""


class Rows(Protocol):
    """Storage of a machine. Calls are synchronous; each changes only what it documents."""

    revision: int
    """Last revision assigned; 0 in a new table."""
    compacted: int
    """Last revision removed from the history."""
    next_lease: int
    """Number of the next lease; 1 in a new table."""
    history_bytes: int
    """Bytes of events in the history."""

    @property
    def lease_count(self) -> int:
        """Number of active leases."""

    def lookup(self, key: str) -> KeyValue | None:
        """Return an item."""

    def scan(self, prefix: str) -> list[KeyValue]:
        """Return the items that a prefix covers, sorted by key."""

    def write(self, item: KeyValue) -> None:
        """Create or replace an item."""

    def erase(self, key: str) -> None:
        """Remove an item that exists."""

    def record(self, batch: EventBatch) -> None:
        """Append a revision to the history; its number is ``revision``."""

    def replay(self, after: int, max_revisions: int, max_bytes: int) -> list[EventBatch]:
        """Return up to ``max_revisions`` revisions after ``after``, ending with the one that exceeds ``max_bytes``."""

    def forget(self, upto: int) -> None:
        """Drop the history up to and including a revision, and set ``compacted`` to it."""

    def add_lease(self, lease: LeaseId, ttl_s: float) -> None:
        """Add a lease."""

    def drop_lease(self, lease: LeaseId) -> None:
        """Remove an existing lease."""

    def has_lease(self, lease: LeaseId) -> bool:
        """Return whether a lease is active."""

    def leases(self) -> list[tuple[LeaseId, float]]:
        """Return the active leases with their times to live."""

    def keys_of(self, lease: LeaseId) -> list[str]:
        """Return the keys attached to a lease, sorted."""


class Effects(msgspec.Struct):
    """Effects of calls."""

    batches: list[EventBatch] = []
    granted: list[tuple[LeaseId, float]] = []
    revoked: list[LeaseId] = []


class HistoryPage(msgspec.Struct, frozen=True):
    """A section of the history, filtered for one watch."""

    batches: list[EventBatch]
    position: int
    """Last revision that was read; nothing up to it is missing in ``batches``."""


class StoreMachine(RequestChecks):
    """A metadata store without concurrency, durability and time."""

    __slots__ = ("effects", "table")

    def __init__(self, table: Rows, limits: Limits) -> None:
        super().__init__(limits)
        self.table = table
        self.effects = Effects()

    def take_effects(self) -> Effects:
        """Return the effects since the last call."""
        taken, self.effects = self.effects, Effects()
        return taken

    # Reads

    def get(self, key: str) -> KeyValue | None:
        """Return an item."""
        return self.table.lookup(key)

    def scan(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Return the items that a prefix covers, sorted, and the present revision."""
        return self.table.scan(prefix), self.table.revision

    def history(self, prefix: str, after: int) -> HistoryPage:
        """Return the changes under ``prefix`` in the next revisions after ``after``, a bounded number of them.

        Raises :class:`WatchCompactedError` if some of them were removed, or if ``after`` lies in the future.
        """
        table = self.table
        if after < table.compacted:
            raise WatchCompactedError(
                f"the metadata watch of {prefix!r} needs revision {after + 1}, but history begins at"
                f" {table.compacted + 1}; list again and watch from the revision after the list's"
            )
        if after > table.revision:
            raise WatchCompactedError(
                f"the metadata watch of {prefix!r} asks for revision {after + 1}, but the store is at {table.revision}:"
                " the revision comes from another history; list again and watch from there"
            )
        found: list[EventBatch] = []
        position = after
        for batch in table.replay(after, HISTORY_PAGE_REVISIONS, HISTORY_PAGE_BYTES):
            position = batch.revision
            seen = changes_under(prefix, batch)
            if seen is not None:
                found.append(seen)
        return HistoryPage(found, position)

    # Changes

    def transact(
        self, conditions: Sequence[Condition], operations: Sequence[Put | DeleteOperation]
    ) -> TransactionResult:
        """Apply a transaction that :meth:`check_transaction` has accepted."""
        table = self.table
        for condition in conditions:
            item = table.lookup(condition.key)
            present = item.mod_revision if item else 0
            if present != condition.mod_revision:
                raise MetadataConflictError(conflict(condition.key, condition.mod_revision, present))
        for operation in operations:
            if isinstance(operation, Put) and operation.lease is not None and not table.has_lease(operation.lease):
                raise lease_ended(operation.lease)
        revision = table.revision + 1
        events: list[Event] = []
        replaced: list[int] = []
        for operation in operations:
            old = table.lookup(operation.key)
            replaced.append(old.mod_revision if old else 0)
            if isinstance(operation, Put):
                item = KeyValue(
                    operation.key,
                    operation.value,
                    old.create_revision if old else revision,
                    revision,
                    old.version + 1 if old else 1,
                    operation.lease,
                )
                table.write(item)
                events.append(PutEvent(item, replaced[-1]))
            elif old is not None:
                table.erase(operation.key)
                events.append(DeleteEvent(operation.key, revision, old.mod_revision))
        self._commit(events)
        return TransactionResult(table.revision, tuple(replaced))

    def grant(self, ttl_s: float) -> LeaseId:
        """Create a lease."""
        table = self.table
        if table.lease_count >= self.limits.metadata_max_leases:
            raise LimitExceededError(
                f"there are {table.lease_count} metadata leases, as many as metadata_max_leases allows;"
                " revoke some or raise the limit"
            )
        lease = LeaseId(table.next_lease)
        table.next_lease += 1
        table.add_lease(lease, ttl_s)
        self.effects.granted.append((lease, ttl_s))
        return lease

    def revoke(self, lease: LeaseId) -> int | None:
        """End a lease: delete the keys attached to it. Does nothing if it has ended."""
        table = self.table
        if not table.has_lease(lease):
            return None
        revision = table.revision + 1
        events: list[Event] = []
        for key in table.keys_of(lease):
            old = table.lookup(key)
            if old is None or old.lease != lease:
                continue
            table.erase(key)
            events.append(DeleteEvent(key, revision, old.mod_revision))
        table.drop_lease(lease)
        self.effects.revoked.append(lease)
        self._commit(events)
        return revision if events else None

    def _commit(self, events: list[Event]) -> None:
        """Record the events under the next revision, unless there are none, and trim the history to its bounds."""
        if not events:
            return
        table, limits = self.table, self.limits
        table.revision += 1
        batch = EventBatch(table.revision, tuple(events))
        table.record(batch)
        self.effects.batches.append(batch)
        while (kept := table.revision - table.compacted) > 1 and (
            kept > limits.metadata_history_revisions or table.history_bytes > limits.metadata_history_bytes
        ):
            # Trim an eighth at a time: this costs little per change, and the bound holds after every change.
            table.forget(table.compacted + max(1, kept // 8))


def changes_under(prefix: str, batch: EventBatch) -> EventBatch | None:
    """Return the part of a revision that a prefix covers, None if there is none."""
    events = tuple([event for event in batch.events if covers(prefix, event.key)])
    if len(events) == len(batch.events):
        return batch
    return EventBatch(batch.revision, events) if events else None
