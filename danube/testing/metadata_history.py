"""Records what callers saw of a metadata store, and finds violations of its contract, in time linear in the history.

Rules (their names are those of the design of the cluster):

* C1. The store is linearizable. Each change has a revision of its own, and revisions respect real time: a change that
  was acknowledged before another one began has the lower one. A conditional change saw the revisions that it names, at
  the revision before its own. A read returns the state at a revision inside its interval: not older than what was
  acknowledged before it began, not younger than what had begun when it ended.
* C2. A lease lives for its time after each keep-alive that was answered, unless it was revoked.
* C7. All watches, on all members and across all their lives, tell the same story, without a gap and without a repeat.

A change whose answer was lost may have happened; whether it did is what the watches say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from danube.metadata import Condition, Delete, EventBatch, KeyValue, LeaseId, Put, PutEvent
from danube.metadata._keys import covers

__all__ = ["MetadataHistory"]

_MOST_VIOLATIONS = 20
_ROUNDING_S = 0.001


class _Change(msgspec.Struct, gc=False):
    """A change that was acknowledged."""

    start: float
    end: float
    revision: int
    conditions: Sequence[Condition]
    operations: Sequence[Put | Delete]


class _Read(msgspec.Struct, gc=False):
    """A read that was answered."""

    start: float
    end: float
    prefix: str
    is_list: bool
    items: tuple[KeyValue, ...]
    revision: int
    """Of a list; of the item that was read, or 0."""


class MetadataHistory:
    """The history of one store; see the module. Times are seconds of one clock."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.story: dict[int, EventBatch] = {}
        """What watches of everything have told, by revision."""
        self.seen_at: dict[int, float] = {}
        """When the first of them did."""
        self.position: defaultdict[str, int] = defaultdict(int)
        """The last revision that a member has told."""
        self.leases_ended = 0
        self._changes: list[_Change] = []
        self._reads: list[_Read] = []
        self._kept: defaultdict[LeaseId, list[tuple[float, float]]] = defaultdict(list)
        self._ttls: dict[LeaseId, float] = {}
        self._revoked: set[LeaseId] = set()

    @property
    def changes(self) -> int:
        """How many changes were acknowledged."""
        return len(self._changes)

    @property
    def reads(self) -> int:
        """How many reads were answered."""
        return len(self._reads)

    def violation(self, text: str) -> None:
        """Record a violation."""
        if len(self.violations) < _MOST_VIOLATIONS:
            self.violations.append(text)

    # --- What callers see

    def changed(
        self,
        start: float,
        end: float,
        conditions: Sequence[Condition],
        operations: Sequence[Put | Delete],
        revision: int,
    ) -> None:
        """Record a change that was acknowledged, and has changed something."""
        self._changes.append(_Change(start, end, revision, tuple(conditions), tuple(operations)))

    def read(self, start: float, end: float, key: str, item: KeyValue | None) -> None:
        """Record the answer to a read of one key."""
        found = (item,) if item is not None else ()
        self._reads.append(_Read(start, end, key, False, found, item.mod_revision if item is not None else 0))

    def listed(self, start: float, end: float, prefix: str, items: Iterable[KeyValue], revision: int) -> None:
        """Record the answer to a list."""
        self._reads.append(_Read(start, end, prefix, True, tuple(items), revision))

    def kept(self, lease: LeaseId, ttl_s: float, start: float, end: float) -> None:
        """Record a lease that was granted, or a keep-alive that was answered."""
        self._ttls[lease] = ttl_s
        self._kept[lease].append((start, end))

    def ttl(self, lease: LeaseId) -> float:
        """Return the time of a lease that was granted to a caller who got the answer; else 0."""
        return self._ttls.get(lease, 0.0)

    def revoking(self, lease: LeaseId) -> None:
        """Record that a lease is about to be revoked: it may end at any time from now on."""
        self._revoked.add(lease)

    # --- What watches tell

    def told(self, member: str, batch: EventBatch, now: float) -> None:
        """Record the next batch of a watch of everything on a member, whose watches resume where the last one was."""
        expected = self.position[member] + 1
        if batch.revision != expected:
            self.violation(f"C7: {member} tells of revision {batch.revision} where {expected} should follow")
        self.position[member] = batch.revision
        known = self.story.setdefault(batch.revision, batch)
        self.seen_at.setdefault(batch.revision, now)
        if known != batch:
            self.violation(f"C7: {member} tells of revision {batch.revision} otherwise than another member: {batch}")

    # --- The end

    def check(self, final: Sequence[KeyValue], revision: int) -> list[str]:
        """Return all violations.

        Args:
            final: everything, listed when all was over.
            revision: of that list. The watches must have told everything up to it.
        """
        missing = [each for each in range(1, revision + 1) if each not in self.story]
        if missing:
            self.violation(f"C7: no watch has told of revision {missing[0]}, nor of {len(missing) - 1} others")
            return self.violations
        self._check_order()
        self._check_states(final, revision)
        self._check_leases()
        return self.violations

    def _check_order(self) -> None:
        latest_start, before = 0.0, 0
        for change in sorted(self._changes, key=lambda each: each.revision):
            if change.revision == before:
                self.violation(f"C1: two changes have revision {before}")
            before = change.revision
            if change.end < latest_start:
                self.violation(
                    f"C1: revision {change.revision} was acknowledged at {change.end:.3f}, before an earlier one began"
                )
            latest_start = max(latest_start, change.start)

    def _check_states(self, final: Sequence[KeyValue], revision: int) -> None:
        """Replay the story, and compare it with changes and reads at their revisions."""
        changes: defaultdict[int, list[_Change]] = defaultdict(list)
        for change in self._changes:
            changes[change.revision].append(change)
        lists: defaultdict[int, list[_Read]] = defaultdict(list)
        for read in self._reads:
            if read.is_list:
                lists[read.revision].append(read)
        versions: defaultdict[str, list[tuple[int, KeyValue | None]]] = defaultdict(list)
        state: dict[str, KeyValue] = {}
        for number in range(revision + 1):
            if number:
                self._check_changes(number, changes.get(number, ()), state)
                for event in self.story[number].events:
                    former = state.pop(event.key, None)
                    if event.previous_revision != (former.mod_revision if former is not None else 0):
                        self.violation(f"C1: revision {number} says that {event.key} was at {event.previous_revision}")
                    item = event.item if isinstance(event, PutEvent) else None
                    if item is not None:
                        state[event.key] = item
                    versions[event.key].append((number, item))
            for read in lists.get(number, ()):
                present = tuple(state[key] for key in sorted(state) if covers(read.prefix, key))
                if tuple(sorted(read.items, key=lambda each: each.key)) != present:
                    self.violation(f"C1: the list of {read.prefix} at revision {number} is not the state there")
        if state != {item.key: item for item in final}:
            self.violation("C1: what is there at the end is not what the watches have told")
        self._check_reads(versions)

    def _check_changes(self, number: int, changes: Iterable[_Change], before: Mapping[str, KeyValue]) -> None:
        for change in changes:
            for condition in change.conditions:
                item = before.get(condition.key)
                at = item.mod_revision if item is not None else 0
                if at != condition.mod_revision:
                    self.violation(
                        f"C1: the change of revision {number} was conditional on revision {condition.mod_revision} of"
                        f" {condition.key}, which was at {at}"
                    )
            events = {event.key: event for event in self.story[number].events}
            for operation in change.operations:
                event = events.pop(operation.key, None)
                value = event.item.value if isinstance(event, PutEvent) else None
                if value != (operation.value if isinstance(operation, Put) else None):
                    self.violation(f"C1: revision {number} is not the change of {operation.key} that was acknowledged")
            if events:
                self.violation(f"C1: revision {number} changes {', '.join(events)}, too")

    def _check_reads(self, versions: Mapping[str, list[tuple[int, KeyValue | None]]]) -> None:
        acknowledged: list[float] = []
        highest: list[int] = []
        for change in sorted(self._changes, key=lambda each: each.end):
            acknowledged.append(change.end)
            highest.append(max(change.revision, highest[-1] if highest else 0))
        begun = {change.revision: change.start for change in self._changes}
        for read in self._reads:
            place = bisect_left(acknowledged, read.start)
            least = highest[place - 1] if place else 0
            if read.is_list:
                if read.revision < least:
                    self.violation(
                        f"C1: a list of {read.prefix} is stale: at {read.revision}, {least} was acknowledged"
                    )
                elif begun.get(read.revision, 0.0) > read.end:
                    self.violation(f"C1: a list of {read.prefix} has seen revision {read.revision} before it began")
                continue
            item = read.items[0] if read.items else None
            # The version that was read holds from its revision to the next one of the key.
            spans = _spans(versions.get(read.prefix, []))
            fitting = [(first, last) for first, last, version in spans if version == item]
            if not fitting:
                self.violation(f"C1: a read of {read.prefix} has found {item}, which was never there")
            elif all(last is not None and last <= least for _, last in fitting):
                self.violation(
                    f"C1: a read of {read.prefix} is stale: {item} at {read.start:.3f}, {least} was acknowledged"
                )
            elif all(begun.get(first, 0.0) > read.end for first, _ in fitting):
                self.violation(f"C1: a read of {read.prefix} has seen {item} before that change began")

    def _check_leases(self) -> None:
        holder: dict[str, LeaseId] = {}
        for number in sorted(self.story):
            for event in self.story[number].events:
                lease = holder.pop(event.key, None)
                if isinstance(event, PutEvent):
                    if event.item.lease is not None:
                        holder[event.key] = event.item.lease
                elif lease is not None:
                    self._check_end(event.key, lease, self.seen_at[number], number)

    def _check_end(self, key: str, lease: LeaseId, gone_at: float, number: int) -> None:
        self.leases_ended += 1
        if lease in self._revoked or any(
            isinstance(operation, Delete) and operation.key == key
            for change in self._changes
            if change.revision == number
            for operation in change.operations
        ):
            return
        ttl_s = self._ttls.get(lease, 0.0)
        for start, end in self._kept.get(lease, ()):
            if end < gone_at < start + ttl_s - _ROUNDING_S:
                self.violation(
                    f"C2: the lease of {key} was renewed at {start:.3f} for {ttl_s:g} s, and had ended at {gone_at:.3f}"
                )


def _spans(versions: Sequence[tuple[int, KeyValue | None]]) -> list[tuple[int, int | None, KeyValue | None]]:
    """Return the versions of a key: from which revision, to which, and what."""
    firsts: list[tuple[int, KeyValue | None]] = [(0, None), *versions]
    return [
        (number, firsts[index + 1][0] if index + 1 < len(firsts) else None, item)
        for index, (number, item) in enumerate(firsts)
    ]
