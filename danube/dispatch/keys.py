"""The lines of a key-shared subscription: per key, the messages that were read and not settled, in order.

Each key with unsettled messages has a *line*: their offsets in order of arrival (a delayed message arrives when it is
due, so offsets may be out of order). The first ``sent`` of them had their turn, the others wait::

    line   17  21  22 | 40  41          acknowledged: 3, 9 and all other offsets of this key that arrived before 17
           sent       | waiting

A message that had its turn is in flight at the key's owner, or acknowledged *early*: before its turn, which comes when
all messages before it are settled. The head of a line is never early, so if ``sent`` is not 0, the head is in flight.

A waiting message may have been delivered before. If it is acknowledged nevertheless, that is recorded as *late*: it is
skipped when its turn comes, unless a message before it is delivered again, which makes the record void.

A waiting line is registered in exactly one place: the ready heap of its owner (by its first waiting offset), the heap
of paused lines, or nowhere, if it waits for a move, for a consumer that matches, or behind poison: the event that ends
this state registers it. Outdated entries of the heaps are recognised and dropped when they surface.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Set

from danube.dispatch.failures import FIRST, DeliveryHistory
from danube.dispatch.inflight import Member
from danube.dispatch.key_flights import KeyFlights
from danube.dispatch.ring import Ring, ring_hash

__all__ = ["Key", "Lines", "Past"]

_IDLE_KEYS = 65_536
"""Number of keys without messages whose place on the ring is cached."""


class Key:
    """One key and its line."""

    __slots__ = ("line", "name", "owner", "place", "ring_version", "sent", "target")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.place = ring_hash(name)
        self.line: deque[int] = deque()
        self.sent = 0
        """Number of messages of the line that had their turn: they are in flight, or acknowledged early."""
        self.owner: Member | None = None
        """Consumer of the messages in flight; undefined while ``sent`` is 0."""
        self.target: Member | None = None
        """The ring's owner of the key when the ring's version was ``ring_version``."""
        self.ring_version = -1


class Past:
    """History of a message that was delivered before."""

    __slots__ = ("delay_s", "due", "failed_at", "history")

    def __init__(self, history: DeliveryHistory) -> None:
        self.history = history
        self.failed_at = 0.0
        """Time of its last failure ..."""
        self.delay_s: float | None = None
        """... and the pause requested then; None: the policy's."""
        self.due = 0.0
        """It is not delivered before this time; infinite for poison that blocks its key."""


class Lines:
    """All keys, their lines, and where each waiting line is registered."""

    __slots__ = ("early", "flights", "keys", "late", "of", "past", "paused", "ready", "ring", "time")

    def __init__(self) -> None:
        self.ring = Ring()
        self.flights = KeyFlights()
        self.keys: dict[bytes, Key] = {}
        self.of: dict[int, Key] = {}
        """The key of every offset in the window: read and not acknowledged. All are in the line of their key, except
        poison that was withdrawn."""
        self.past: dict[int, Past] = {}
        """History of messages that were taken out of flight at least once."""
        self.early: set[int] = set()
        self.late: dict[Key, set[int]] = {}
        self.ready: dict[int, list[tuple[int, Key]]] = {}
        """For each consumer a heap of (first waiting offset, key) of keys whose messages it may get now."""
        self.paused: list[tuple[float, int, Key]] = []
        """Heap of (due time, first waiting offset, key)."""
        self.time = 0.0
        """Pauses that end by this time are over."""

    def busy(self) -> list[Key]:
        """Return the keys that have a line."""
        return [key for key in self.keys.values() if key.line]

    def prune(self, window: int) -> None:
        """Drop unused keys, if there are many. Call it between batches."""
        if len(self.keys) > _IDLE_KEYS + window:
            self.keys = {key.name: key for key in self.of.values()}

    def target(self, key: Key) -> Member | None:
        """Return the ring's owner of a key."""
        ring = self.ring
        if key.ring_version != ring.version:
            key.ring_version = ring.version
            key.target = ring.owner(key.place, key.name)
        return key.target

    def goes_on(self, key: Key) -> bool:
        """Return whether messages of a key wait, not behind poison, and a consumer matches it."""
        return key.sent < len(key.line) and self.due(key.line[key.sent]) != math.inf and self.target(key) is not None

    # --- registration of waiting lines
    # ---------------------------------------------------------------------------------

    def register(self, key: Key) -> None:
        """Register a line whose first waiting message has changed, or that may move now."""
        line = key.line
        if self.late and key.sent:
            self._pass_over(key)
        if key.sent == len(line):
            return
        first = line[key.sent]
        due = self.due(first)
        if due > self.time:
            if due != math.inf:
                heapq.heappush(self.paused, (due, first, key))
                if len(self.paused) > 2 * len(self.of) + 64:
                    self.paused = [entry for entry in self.paused if self._is_paused(*entry)]
                    heapq.heapify(self.paused)
            return
        target = self.target(key)
        if target is not None and (not key.sent or key.owner is target):
            heapq.heappush(self.ready[target.consumer_id], (first, key))

    def _pass_over(self, key: Key) -> None:
        late = self.late.get(key)
        line = key.line
        while late and key.sent < len(line) and line[key.sent] in late:
            offset = line[key.sent]
            late.remove(offset)
            self.early.add(offset)
            key.sent += 1
        if late is not None and not late:
            del self.late[key]

    def register_all(self) -> None:
        """Register all waiting lines again: their owners, or their pauses, may have changed."""
        for heap in self.ready.values():
            heap.clear()
        self.paused.clear()
        for key in self.busy():
            self.register(key)

    def due(self, offset: int) -> float:
        """Return the time before which an offset is not delivered."""
        past = self.past.get(offset) if self.past else None
        return past.due if past is not None else 0.0

    def promote(self, now: float) -> None:
        """Register the lines whose pause is over."""
        self.time = now
        while self.paused and (due := self.next_due()) is not None and due <= now:
            self.register(heapq.heappop(self.paused)[2])

    def next_due(self) -> float | None:
        """Return when the next pause is over."""
        while self.paused:
            if self._is_paused(*self.paused[0]):
                return self.paused[0][0]
            heapq.heappop(self.paused)
        return None

    def _is_paused(self, due: float, first: int, key: Key) -> bool:
        return key.sent < len(key.line) and key.line[key.sent] == first and self.due(first) == due

    def first_ready(self, member: Member) -> int | None:
        """Return the lowest offset that may be delivered to a consumer now."""
        heap = self.ready[member.consumer_id]
        while heap:
            offset, key = heap[0]
            if (
                key.sent < len(key.line)
                and key.line[key.sent] == offset
                and self.target(key) is member
                and (not key.sent or key.owner is member)
                and self.due(offset) <= self.time
            ):
                return offset
            heapq.heappop(heap)
        return None

    def take_ready(self, member: Member) -> None:
        """Mark the message that :meth:`first_ready` returned as sent."""
        offset, key = heapq.heappop(self.ready[member.consumer_id])
        key.owner = member
        key.sent += 1
        if self.late and offset in self.past:
            self.late.pop(key, None)  # it is delivered again, so its successors must be, too
        if key.sent < len(key.line):
            self.register(key)

    # --- changes of messages
    # -------------------------------------------------------------------------------------------

    def unsend(self, key: Key, keep: int) -> None:
        """Make all but the first ``keep`` messages of a line wait (again). The caller registers the line."""
        for offset in list(key.line)[keep : key.sent]:
            if self.flights.take(offset) is not None:
                past = self.past.get(offset)
                if past is None:
                    self.past[offset] = Past(FIRST.lost())
                else:
                    past.history = past.history.lost()
            if offset in self.early:
                self.early.remove(offset)
                self.late.setdefault(key, set()).add(offset)
        key.sent = keep

    def settle(self, key: Key, done: list[int]) -> None:
        """Remove the head of a line, and the messages behind it that were acknowledged early."""
        line = key.line
        while True:
            offset = line.popleft()
            del self.of[offset]
            if key.sent:
                key.sent -= 1
                flight = self.flights.of.pop(offset, None)
                if flight is not None:
                    member = flight.member
                    member.in_flight -= 1
                    member.acked += 1
                    flight.open -= 1
                    if not flight.open:
                        self.flights.close(flight)
            done.append(offset)
            if self.past:
                self.past.pop(offset, None)
            if not self.early and not self.late:
                return
            self.early.discard(offset)
            self._forget_late(key, offset)
            if not line or not self._acknowledged(key, line[0]):
                return

    def _acknowledged(self, key: Key, offset: int) -> bool:
        return offset in self.early or offset in self.late.get(key, ())

    def _forget_late(self, key: Key, offset: int) -> None:
        late = self.late.get(key)
        if late is not None:
            late.discard(offset)
            if not late:
                del self.late[key]

    def acknowledge_out_of_turn(self, key: Key, offset: int, done: list[int]) -> None:
        """Acknowledge an offset in a line that is not at the head of its sent messages."""
        if offset in self.flights.of:
            self.early.add(offset)
        elif offset in self.past and offset not in self.early:  # it waits, after an earlier delivery
            if key.line[0] == offset:
                self.settle(key, done)
                self.register(key)
            else:
                self.late.setdefault(key, set()).add(offset)
                if key.line[key.sent] == offset:
                    self.register(key)

    def is_acknowledged(self, offset: int) -> bool:
        """Return whether an offset in a line is acknowledged, before its turn."""
        return self._acknowledged(self.of[offset], offset)

    def withdraw(self, key: Key, gone: Set[int], done: list[int]) -> None:
        """Take messages out of the line of their key, at any place. They keep their history. Registers the line.

        Early acknowledged messages whose turn has come are added to ``done``.
        """
        sent = key.sent
        for index, offset in enumerate(key.line):
            if offset in gone:
                key.sent -= index < sent
                self.flights.take(offset)
                self.early.discard(offset)
                self._forget_late(key, offset)
        key.line = deque(offset for offset in key.line if offset not in gone)
        if key.line and self._acknowledged(key, key.line[0]):
            self.settle(key, done)
        self.register(key)

    def put_back(self, offset: int) -> None:
        """Make a withdrawn message wait again: behind the last one of its key with a lower offset."""
        key = self.of[offset]
        line = key.line
        index = len(line)
        while index > key.sent and line[index - 1] > offset:
            index -= 1
        line.insert(index, offset)
        self.register(key)

    def forget(self, offsets: Iterable[int]) -> None:
        """Delete the records of messages that are in no line (any more)."""
        for offset in offsets:
            del self.of[offset]
            self.past.pop(offset, None)

    def clear(self) -> None:
        """Delete all lines (after a seek); the ring is kept."""
        self.flights.clear()
        self.keys.clear()
        self.of.clear()
        self.past.clear()
        self.early.clear()
        self.late.clear()
        self.paused.clear()
        for heap in self.ready.values():
            heap.clear()
