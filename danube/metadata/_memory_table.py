"""The table of a metadata machine in Python objects. Pure: no I/O, no clock."""

from __future__ import annotations

from bisect import bisect_left, insort

from danube.metadata._contract import EventBatch, KeyValue, LeaseId, PutEvent
from danube.metadata._keys import below

__all__ = ["MemoryTable"]


class MemoryTable:
    """The table of a :class:`~danube.metadata._machine.StoreMachine` in Python objects."""

    def __init__(self) -> None:
        self.revision = 0
        self.compacted = 0
        self.next_lease = 1
        self.history_bytes = 0
        self._items: dict[str, KeyValue] = {}
        self._keys: list[str] = []  # sorted
        self._history: list[tuple[EventBatch, int]] = []  # the first one is revision ``compacted + 1``; none is missing
        self._leases: dict[LeaseId, tuple[float, set[str]]] = {}

    @property
    def lease_count(self) -> int:
        return len(self._leases)

    def lookup(self, key: str) -> KeyValue | None:
        return self._items.get(key)

    def scan(self, prefix: str) -> list[KeyValue]:
        items, keys = self._items, self._keys
        start, end = below(prefix)
        found = [items[key] for key in keys[bisect_left(keys, start) : bisect_left(keys, end)]]
        if prefix in items:
            found.insert(0, items[prefix])
        return found

    def write(self, item: KeyValue) -> None:
        old = self._items.get(item.key)
        if old is None:
            insort(self._keys, item.key)
        else:
            self._detach(old)
        self._items[item.key] = item
        if item.lease is not None:
            self._leases[item.lease][1].add(item.key)

    def erase(self, key: str) -> None:
        self._detach(self._items.pop(key))
        del self._keys[bisect_left(self._keys, key)]

    def _detach(self, item: KeyValue) -> None:
        if item.lease is not None:
            self._leases[item.lease][1].discard(item.key)

    def record(self, batch: EventBatch) -> None:
        size = sum(
            len(event.key) + (len(event.item.value) if isinstance(event, PutEvent) else 0) for event in batch.events
        )
        self._history.append((batch, size))
        self.history_bytes += size

    def replay(self, after: int, max_revisions: int, max_bytes: int) -> list[EventBatch]:
        first = after - self.compacted
        found: list[EventBatch] = []
        for batch, size in self._history[first : first + max_revisions]:
            found.append(batch)
            max_bytes -= size
            if max_bytes <= 0:
                break
        return found

    def forget(self, upto: int) -> None:
        count = upto - self.compacted
        self.history_bytes -= sum(size for _, size in self._history[:count])
        del self._history[:count]
        self.compacted = upto

    def add_lease(self, lease: LeaseId, ttl_s: float) -> None:
        self._leases[lease] = (ttl_s, set())

    def drop_lease(self, lease: LeaseId) -> None:
        del self._leases[lease]

    def has_lease(self, lease: LeaseId) -> bool:
        return lease in self._leases

    def leases(self) -> list[tuple[LeaseId, float]]:
        return [(lease, ttl_s) for lease, (ttl_s, _) in self._leases.items()]

    def keys_of(self, lease: LeaseId) -> list[str]:
        return sorted(self._leases[lease][1])
