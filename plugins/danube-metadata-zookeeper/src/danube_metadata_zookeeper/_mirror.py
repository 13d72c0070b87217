"""This client's copy of the metadata, and drafts of changes to it. Pure: no I/O, no clock.

All clients of a root apply the same entries in the same order, so their copies at a position are equal. A change is
first made on a :class:`Draft`; what it would do becomes an entry; only when ZooKeeper has committed the entry is it
applied to the :class:`Mirror`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from danube.metadata import EventBatch, KeyValue, LeaseId, MemoryTable, PutEvent, Rows, covers
from danube.model.errors import DataLossError
from danube.model.limits import MIB, Limits
from danube_metadata_zookeeper._records import Entry, Snapshot, batches_of

__all__ = ["Draft", "Kept", "Mirror"]

_LEAST_ENTRIES: Final = 1024
_LEAST_BYTES: Final = 1 * MIB
_TRIMMED_AT_ONCE: Final = 128


class Draft:
    """A table with changes that are not committed. Implements :class:`~danube.metadata.Rows`, without a history."""

    def __init__(self, base: Rows) -> None:
        self.revision = base.revision
        self.next_lease = base.next_lease
        self.compacted = base.revision
        self.history_bytes = 0
        self._base = base
        self._changed: dict[str, KeyValue | None] = {}
        self._granted: dict[LeaseId, float] = {}
        self._ended: set[LeaseId] = set()

    @property
    def lease_count(self) -> int:
        """Number of active leases."""
        return self._base.lease_count + len(self._granted) - len(self._ended)

    def lookup(self, key: str) -> KeyValue | None:
        """Return an item."""
        return self._changed[key] if key in self._changed else self._base.lookup(key)

    def scan(self, prefix: str) -> list[KeyValue]:
        """Return the items that a prefix covers, sorted by key."""
        found = {item.key: item for item in self._base.scan(prefix)}
        for key, item in self._changed.items():
            if covers(prefix, key):
                found.pop(key, None)
                if item is not None:
                    found[key] = item
        return [found[key] for key in sorted(found)]

    def write(self, item: KeyValue) -> None:
        """Create or replace an item."""
        self._changed[item.key] = item

    def erase(self, key: str) -> None:
        """Remove an item that exists."""
        self._changed[key] = None

    def record(self, batch: EventBatch) -> None:
        """Take note of a revision; it is in the machine's effects."""
        self.compacted = batch.revision - 1

    def replay(self, after: int, max_revisions: int, max_bytes: int) -> list[EventBatch]:
        """Return revisions of the committed history."""
        return self._base.replay(after, max_revisions, max_bytes)

    def forget(self, upto: int) -> None:
        """Take note that the history was trimmed."""
        self.compacted = upto

    def add_lease(self, lease: LeaseId, ttl_s: float) -> None:
        """Add a lease."""
        self._granted[lease] = ttl_s

    def drop_lease(self, lease: LeaseId) -> None:
        """Remove an existing lease."""
        self._ended.add(lease)

    def has_lease(self, lease: LeaseId) -> bool:
        """Return whether a lease is active."""
        return lease not in self._ended and (lease in self._granted or self._base.has_lease(lease))

    def leases(self) -> list[tuple[LeaseId, float]]:
        """Return the active leases with their times to live."""
        both = [*self._base.leases(), *self._granted.items()]
        return [(lease, ttl_s) for lease, ttl_s in both if lease not in self._ended]

    def keys_of(self, lease: LeaseId) -> list[str]:
        """Return the keys attached to a lease, sorted."""
        found = (
            {key for key in self._base.keys_of(lease) if key not in self._changed}
            if self._base.has_lease(lease)
            else set()
        )
        found |= {key for key, item in self._changed.items() if item is not None and item.lease == lease}
        return sorted(found)


class Kept(NamedTuple):
    """An entry of the log that is in ZooKeeper."""

    position: int
    revision: int
    """The store's revision after it."""
    size: int


class Mirror:
    """The state after one entry of the log, and the history before it.

    Args:
        snapshot: where the copy begins.
        items: of the snapshot.
        limits: ``metadata_history_revisions`` and ``metadata_history_bytes`` bound the history.
    """

    def __init__(self, snapshot: Snapshot, items: Iterable[KeyValue], limits: Limits) -> None:
        self.table = MemoryTable()
        self.position = snapshot.position
        self.snapshot = snapshot
        """The last one known; another client may have written a later one."""
        self.items = 0
        self.state_bytes = 0
        self._limits = limits
        self._kept: deque[Kept] = deque()
        self._entries = 0  # since the snapshot
        self._bytes = 0
        for lease, ttl_s in snapshot.leases:
            self.table.add_lease(lease, ttl_s)
        self.table.next_lease = snapshot.next_lease
        for item in items:
            self._write(item)
        self.table.revision = snapshot.revision
        self.table.compacted = snapshot.compacted

    def recall(self, position: int, entry: Entry, size: int) -> None:
        """Take an entry before the snapshot into the history. They come in their order, before all others."""
        revision = self._kept[-1].revision if self._kept else self.table.compacted
        for batch in batches_of(entry):
            self._check(batch.revision, revision + 1, position)
            revision = batch.revision
            self.table.record(batch)
        self._kept.append(Kept(position, revision, size))

    def apply(self, position: int, entry: Entry, size: int) -> list[EventBatch]:
        """Apply the next entry, and return what it changes.

        Raises:
            DataLossError: the entry does not follow from the state: the log is not the one that was read before.
        """
        table = self.table
        self._check(position, self.position + 1, position)
        for lease, ttl_s in entry.granted:
            table.add_lease(lease, ttl_s)
            table.next_lease = max(table.next_lease, lease + 1)
        batches = batches_of(entry)
        for batch in batches:
            self._check(batch.revision, table.revision + 1, position)
            for event in batch.events:
                old = table.lookup(event.key)
                self._check(event.previous_revision, old.mod_revision if old is not None else 0, position)
                if isinstance(event, PutEvent):
                    if event.item.lease is not None and not table.has_lease(event.item.lease):
                        raise _broken(position)
                    self._write(event.item)
                else:
                    self._erase(event.key)
            table.revision = batch.revision
            table.record(batch)
        for lease in entry.ended:
            if not table.has_lease(lease):
                raise _broken(position)
            table.drop_lease(lease)
        self.position = position
        self._kept.append(Kept(position, table.revision, size))
        self._entries += 1
        self._bytes += size
        self._trim()
        return batches

    def _check(self, found: int, expected: int, position: int) -> None:
        if found != expected:
            raise _broken(position)

    def _write(self, item: KeyValue) -> None:
        old = self.table.lookup(item.key)
        if old is None:
            self.items += 1
            self.state_bytes += len(item.key) + len(item.value)
        else:
            self.state_bytes += len(item.value) - len(old.value)
        self.table.write(item)

    def _erase(self, key: str) -> None:
        old = self.table.lookup(key)
        assert old is not None
        self.items -= 1
        self.state_bytes -= len(key) + len(old.value)
        self.table.erase(key)

    def _trim(self) -> None:
        """Keep the history in its bounds: those of :class:`~danube.metadata.StoreMachine`."""
        table, limits = self.table, self._limits
        while (kept := table.revision - table.compacted) > 1 and (
            kept > limits.metadata_history_revisions or table.history_bytes > limits.metadata_history_bytes
        ):
            table.forget(table.compacted + max(1, kept // 8))

    # What is to be tidied up in ZooKeeper

    @property
    def needs_snapshot(self) -> bool:
        """Whether the log after the snapshot has as much as the state itself: then writing it costs as much again."""
        return self._entries >= max(_LEAST_ENTRIES, self.items) or self._bytes >= max(_LEAST_BYTES, self.state_bytes)

    @property
    def needs_trimming(self) -> bool:
        """Whether entries of the log can be deleted, enough to be worth it."""
        return self.trimmed().first - self.snapshot.first >= _TRIMMED_AT_ONCE

    def trimmed(self, most: int | None = None) -> Snapshot:
        """Return the known snapshot with the first entry that must be kept: for the history, and to read the state.

        Args:
            most: how many entries may be given up; None: all that can be.
        """
        old = self.snapshot
        last = min(old.position, self.position - 1) if most is None else min(old.position, old.first + most - 1)
        oldest = self.position - self._limits.metadata_history_revisions
        first, compacted = old.first, old.compacted
        for kept in self._kept:
            if kept.position < old.first:
                continue
            if kept.position > last or (kept.revision > self.table.compacted and kept.position > oldest):
                break
            first, compacted = kept.position + 1, kept.revision
        return Snapshot(
            old.format, old.position, old.revision, old.next_lease, old.leases, old.pieces, first, compacted
        )

    def picture(self) -> tuple[Snapshot, Sequence[KeyValue]]:
        """Return a snapshot of the present state, still without pieces, and its items."""
        table, old = self.table, self.snapshot
        return (
            Snapshot(
                old.format,
                self.position,
                table.revision,
                table.next_lease,
                tuple(table.leases()),
                (),
                old.first,
                old.compacted,
            ),
            table.scan("/"),
        )

    def learn(self, snapshot: Snapshot) -> None:
        """Take note of the snapshot in ZooKeeper."""
        self.snapshot = snapshot
        while self._kept and self._kept[0].position < snapshot.first:
            self._kept.popleft()
        later = [kept for kept in self._kept if kept.position > snapshot.position]
        self._entries = len(later)
        self._bytes = sum(kept.size for kept in later)


def _broken(position: int) -> DataLossError:
    return DataLossError(
        f"entry {position} of the metadata in ZooKeeper does not follow from those before it: the nodes were changed by"
        " another program, or ZooKeeper was restored from a backup while this broker ran; restart the broker"
    )
