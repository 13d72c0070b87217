"""Key-shared: every key has one owner at a time, and its messages keep their order.

Each key with unsettled messages has a *line*: their offsets in order. The first ``sent`` of them are in flight at the
key's owner, the others wait::

    line   17  21  22 | 40  41          acknowledged: 3, 9 and all other offsets of this key below 17
           in flight  | waiting

The rules, and what they give:

* Only the first waiting offset of a line may be delivered next, and only to the owner of what is in flight. A key moves
  to the owner that the ring names when nothing of it is in flight. So order holds across joins and leaves.
* When a message is refused, times out or loses its consumer, it and everything of its key behind it waits again. So a
  message is never delivered while an earlier one of its key waits.
* An acknowledgement takes effect in line order. One that comes early (22 before 17 and 21) is remembered and takes
  effect with the last one before it; if one before it must be delivered again, it is forgotten, and 22 comes again
  after it. So the effect of a key's messages is in their order, also when a consumer works ahead. A late
  acknowledgement of the first of a line counts although it waits again; the others are ignored until it is their turn.

A key whose owner has no credit, or that waits for a delay or a move, holds back nobody else: its messages wait in
their line (offsets only; the batch is read again later), and the window of ``max_unacked_messages`` bounds them all.

A waiting line is registered in exactly one place: the ready heap of its owner (by its first waiting offset), the heap
of delayed keys, or, if it waits for a move, nowhere: the settlement of its last message in flight registers it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby

from danube.dispatch.cursor import Cursor
from danube.dispatch.explain import Facts, explain
from danube.dispatch.inflight import Member
from danube.dispatch.machine import Machine
from danube.dispatch.ring import Ring, ring_hash
from danube.dispatch.spans import Delivery, Explanation, ReadRequest, Span
from danube.dispatch.turns import merge, share_of
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

__all__ = ["KeySharedMachine"]

_IDLE_KEYS = 65_536
"""Keys without messages whose place on the ring is remembered."""


class _Key:
    """One key and its line."""

    __slots__ = ("due", "line", "name", "owner", "place", "ring_version", "sent", "target")

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = ring_hash(name)
        self.line: deque[int] = deque()
        self.sent = 0
        self.owner: Member | None = None
        """Has the messages in flight; meaningless while ``sent`` is 0."""
        self.target: Member | None = None
        """Whom the ring named when its version was ``ring_version``."""
        self.ring_version = -1
        self.due = 0.0
        """Nothing of the line is delivered before this time."""


class _Flight:
    """What one consumer got of one batch at one time."""

    __slots__ = ("deadline", "member", "offsets", "open", "since")

    def __init__(self, member: Member, since: float, deadline: float, offsets: list[int]) -> None:
        self.member = member
        self.since = since
        self.deadline = deadline
        self.offsets = offsets
        self.open = len(offsets)
        """How many of them are still in flight by this delivery."""


class KeySharedMachine(Machine):
    """Machine of key-shared subscriptions."""

    def __init__(self, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        super().__init__(SubscriptionType.KEY_SHARED, cursor, limits, policy)
        self._ring = Ring()
        self._ring_version = 0
        self._keys: dict[str, _Key] = {}
        self._of: dict[int, _Key] = {}
        """The key of every offset in the window: read and not acknowledged."""
        self._flights: dict[int, _Flight] = {}
        """The current delivery of every offset in flight."""
        self._early: set[int] = set()
        """Offsets in flight that are acknowledged before their turn."""
        self._attempts: dict[int, int] = {}
        """Which attempt the next or current delivery is, where it is not the first. Also: it was delivered before."""
        self._deadlines: deque[_Flight] = deque()
        """Deliveries in order of time (the timeout is the same for all); pruned lazily."""
        self._open_flights = 0
        self._ready: dict[int, list[tuple[int, str]]] = {}
        """For each consumer a heap of (first waiting offset, key) of keys that it may have now."""
        self._delayed: list[tuple[float, int, str]] = []
        """Heap of (due time, first waiting offset, key)."""

    # --- consumers ---------------------------------------------------------------------------------------------------

    def _joined(self, member: Member, now: float) -> None:
        self._ready[member.consumer_id] = []
        self._ring.add(member)
        self._ring_changed(now)

    def _left(self, member: Member, now: float) -> None:
        self._ring.remove(member)
        for key in self._busy():
            if key.sent and key.owner is member:
                for offset in list(key.line)[: key.sent]:
                    self._attempts[offset] = self._attempts.get(offset, 1) + 1
                self._unsend(key, 0)
                key.due = now
        self._ready.pop(member.consumer_id)
        self._ring_changed(now)

    def _ring_changed(self, now: float) -> None:
        """Register all waiting lines anew: their owners may have changed."""
        self._ring_version += 1
        for heap in self._ready.values():
            heap.clear()
        self._delayed.clear()
        for key in self._busy():
            if key.sent < len(key.line):
                self._register(key, now)

    def _busy(self) -> list[_Key]:
        return [key for key in self._keys.values() if key.line]

    def _target(self, key: _Key) -> Member | None:
        """Return the consumer that the ring names for a key."""
        if key.ring_version != self._ring_version:
            key.ring_version = self._ring_version
            key.target = self._ring.owner(key.place)
        return key.target

    def _register(self, key: _Key, now: float) -> None:
        """Put a line with waiting messages where it will be found, see the module's docstring."""
        first = key.line[key.sent]
        if key.due > now:
            heapq.heappush(self._delayed, (key.due, first, key.name))
            return
        target = self._target(key)
        if target is not None and (not key.sent or key.owner is target):
            heapq.heappush(self._ready[target.consumer_id], (first, key.name))

    def _unsend(self, key: _Key, keep: int) -> None:
        """Let all but the first ``keep`` messages of a line wait (again). The caller registers it."""
        line = list(key.line)
        for offset in line[keep : key.sent]:
            flight = self._flights.pop(offset)
            flight.member.in_flight -= 1
            flight.open -= 1
            if not flight.open:
                self._close(flight)
            self._early.discard(offset)
            # A message that only comes again because of one before it has not failed itself.
            self._attempts.setdefault(offset, 2)
        key.sent = keep

    # --- messages ----------------------------------------------------------------------------------------------------

    def next_read(self, now: float) -> ReadRequest | None:
        """Return what to read; see :meth:`Machine.next_read`."""
        self._promote(now)
        first: int | None = None
        any_credit = False
        for member in self._members.values():
            if member.has_credit:
                any_credit = True
                offset = self._first_ready(member, now)
                if offset is not None and (first is None or offset < first):
                    first = offset
        if first is not None:
            return ReadRequest(first, redelivery=True)
        if not any_credit or self._full():
            return None
        return ReadRequest(self.position, redelivery=False)

    def _promote(self, now: float) -> None:
        """Register the keys whose delay is over."""
        while (due := self._next_due()) is not None and due <= now:
            self._register(self._keys[heapq.heappop(self._delayed)[2]], now)

    def _next_due(self) -> float | None:
        """Return when the next delay is over; entries that a later failure or a late acknowledgement outdated go."""
        delayed = self._delayed
        while delayed:
            due, first, name = delayed[0]
            key = self._keys.get(name)
            if key is not None and key.due == due and key.sent < len(key.line) and key.line[key.sent] == first:
                return due
            heapq.heappop(delayed)
        return None

    def _first_ready(self, member: Member, now: float) -> int | None:
        """Return the lowest offset that may be delivered to a consumer; drop outdated entries of its heap."""
        heap = self._ready[member.consumer_id]
        while heap:
            offset, name = heap[0]
            if self._is_ready(offset, self._keys.get(name), member, now):
                return offset
            heapq.heappop(heap)
        return None

    def _is_ready(self, offset: int, key: _Key | None, member: Member, now: float) -> bool:
        return (
            key is not None
            and key.sent < len(key.line)
            and key.line[key.sent] == offset
            and key.due <= now
            and self._target(key) is member
            and (not key.sent or key.owner is member)
        )

    def _full(self) -> str | None:
        """Return which bound stops new messages, or None."""
        if not self._of:
            return None
        limits = self._limits
        if len(self._of) >= limits.max_unacked_messages:
            return (
                f"the window of {limits.max_unacked_messages:,} unacknowledged messages is full (max_unacked_messages)"
            )
        if self.cursor.range_count >= limits.max_ack_ranges:
            return f"{self.cursor.range_count:,} acknowledged ranges wait for older messages (max_ack_ranges)"
        return None

    def offered(self, span: Span, now: float) -> list[Delivery]:
        """Take a batch; see :meth:`Machine.offered`."""
        self._promote(now)
        taken: dict[Member, list[int]] = {}
        for member in self._members.values():
            if member.has_credit and self._ready[member.consumer_id]:
                self._take_ready(member, span, taken.setdefault(member, []), now)
        if span.base_offset <= self.position < span.end_offset and not self._full():
            self._take_new(span, taken, now)
        out: list[Delivery] = []
        for member, offsets in taken.items():
            if offsets:
                self._deliver(member, span, offsets, now, out)
        return out

    def _take_ready(self, member: Member, span: Span, offsets: list[int], now: float) -> None:
        """Take what waited for this consumer and is in the batch, as far as its message credit goes."""
        heap = self._ready[member.consumer_id]
        room = self._room(member, span)
        while len(offsets) < room:
            offset = self._first_ready(member, now)
            if offset is None or not span.base_offset <= offset < span.end_offset:
                return
            key = self._keys[heapq.heappop(heap)[1]]
            key.owner = member
            key.sent += 1
            offsets.append(offset)
            if key.sent < len(key.line):
                self._register(key, now)

    def _room(self, member: Member, span: Span) -> int:
        """Return how many messages of a batch a consumer's credit allows: bytes may be overdrawn by one message."""
        average = max(1, span.size_bytes // (span.end_offset - span.base_offset))
        return min(member.credit_messages, -(-member.credit_bytes // average)) if member.has_credit else 0

    def _take_new(self, span: Span, taken: dict[Member, list[int]], now: float) -> None:
        """Put new messages into the lines of their keys; take those that nothing holds back."""
        keys, known, of = span.keys, self._keys, self._of
        base, most = span.base_offset, self._limits.max_unacked_messages
        version = self._ring_version
        room = {member: self._room(member, span) for member in self._members.values()}
        for member, offsets in taken.items():
            room[member] -= len(offsets)
        for member in room:
            taken.setdefault(member, [])
        if len(known) > _IDLE_KEYS + most:
            self._keys = known = {name: key for name, key in known.items() if key.line}
        position = self.position
        window = len(of)
        for start, end in self.cursor.live(position, span.end_offset):
            for offset in range(start, end):
                if window >= most:
                    self.position = offset
                    return
                name = "" if keys is None else keys[offset - base]
                key = known.get(name)
                if key is None:
                    key = known[name] = _Key(name)
                line = key.line
                of[offset] = key
                window += 1
                line.append(offset)
                if key.sent != len(line) - 1:
                    continue  # others wait before it, and their line is registered
                key.due = 0.0
                target = key.target if key.ring_version == version else self._target(key)
                if target is None or (key.sent and key.owner is not target):
                    continue
                if room[target] > 0:
                    room[target] -= 1
                    key.owner = target
                    key.sent += 1
                    taken[target].append(offset)
                else:
                    heapq.heappush(self._ready[target.consumer_id], (offset, name))
        self.position = self.cursor.next_live(span.end_offset)

    def _deliver(self, member: Member, span: Span, offsets: list[int], now: float, out: list[Delivery]) -> None:
        """Hand offsets that were taken to their consumer: one delivery for each run of equal attempts."""
        offsets.sort()
        flight = _Flight(member, now, now + self.policy.ack_timeout_s, offsets)
        self._open_flights += 1
        if self.policy.ack_timeout_s:
            self._deadlines.append(flight)
            if len(self._deadlines) > 2 * self._open_flights + 64:
                self._deadlines = deque(old for old in self._deadlines if old.open)
        self._flights.update(dict.fromkeys(offsets, flight))
        member.in_flight += len(offsets)
        attempts = self._attempts
        runs: list[tuple[int, list[int]]] = [(1, offsets)]
        if attempts:  # runs, not groups: the order of offsets is the order of every key
            runs = [(attempt, list(run)) for attempt, run in groupby(offsets, lambda offset: attempts.get(offset, 1))]
        size = span.end_offset - span.base_offset
        for attempt, run in runs:
            count = len(run)
            share = share_of(span, count)
            member.charge(count, share)
            if attempt > 1:
                self._redelivered += count
            out.append(
                Delivery(
                    member.consumer_id, span.token, span.base_offset, _flat(run), attempt, count == size, count, share
                )
            )

    # --- acknowledgements --------------------------------------------------------------------------------------------

    def ack(self, ranges: Sequence[int], consumer_id: int | None, now: float) -> list[int]:
        """Acknowledge ranges; see :meth:`Machine.ack`."""
        of, flights, early, attempts = self._of, self._flights, self._early, self._attempts
        done: list[int] = []
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            for offset in self._window(start, end):
                key = of.get(offset)
                if key is None:
                    continue
                line = key.line
                if line[0] != offset:
                    if offset in flights:
                        early.add(offset)
                elif key.sent or offset in attempts:
                    if not key.sent:
                        key.due = 0.0  # the message that failed is done after all; no delay for the others
                    self._settle(key, done)
                    if line and not key.sent:
                        self._register(key, now)
        return self._acknowledge(done)

    def _window(self, start: int, end: int) -> Iterable[int]:
        """Return at least those offsets of a range that are in the window, in order, however wide the range is."""
        start, end = max(start, self.cursor.floor), min(end, self.position)
        if end - start <= 2 * len(self._of) + 16:
            return range(start, end)
        return sorted(offset for offset in self._of if start <= offset < end)

    def _settle(self, key: _Key, done: list[int]) -> None:
        """Take the first message of a line out of the books, and what was acknowledged early behind it."""
        line, early = key.line, self._early
        while True:
            offset = line.popleft()
            del self._of[offset]
            if key.sent:
                key.sent -= 1
                flight = self._flights.pop(offset)
                member = flight.member
                member.in_flight -= 1
                member.acked += 1
                flight.open -= 1
                if not flight.open:
                    self._close(flight)
            if self._attempts:
                self._attempts.pop(offset, None)
            done.append(offset)
            if not early:
                return
            early.discard(offset)
            if not line or line[0] not in early:
                return

    def _close(self, flight: _Flight) -> None:
        """Nothing of a delivery is in flight any more."""
        self._open_flights -= 1
        flight.offsets = []
        deadlines = self._deadlines
        while deadlines and not deadlines[0].open:
            deadlines.popleft()

    def _acknowledge(self, done: list[int]) -> list[int]:
        """Acknowledge single offsets; return them as a flat list."""
        if not done:
            return []
        done.sort()
        new = _flat(done)
        for index in range(0, len(new), 2):
            # The window bounds how many ranges there can be, so the cursor need not refuse any.
            self.cursor.ack(new[index], new[index + 1], force=True)
        return new

    def nack(
        self, consumer_id: int | None, ranges: Sequence[int], delay_s: float | None, now: float, reason: str = ""
    ) -> None:
        """Have ranges delivered again; see :meth:`Machine.nack`."""
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            for offset in self._window(start, end):
                flight = self._flights.get(offset)
                if flight is not None and (consumer_id is None or flight.member.consumer_id == consumer_id):
                    self._fail(offset, now + (delay_s or 0.0), now)

    def _fail(self, offset: int, due: float, now: float) -> None:
        """Let a message in flight, and what was sent of its key behind it, wait again until ``due``."""
        key = self._of[offset]
        self._attempts[offset] = self._attempts.get(offset, 1) + 1
        self._unsend(key, key.line.index(offset))
        key.due = due
        self._register(key, now)

    def discard(self, ranges: Sequence[int], now: float) -> list[int]:
        """Settle ranges without a consumer; see :meth:`Machine.discard`."""
        done: list[int] = []
        fresh: list[int] = []
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            for offset in self._window(start, end):
                key = self._of.get(offset)
                if key is None:
                    continue
                line = key.line
                index = line.index(offset)
                del line[index]
                if index < key.sent:  # whatever its place, it is settled now, as the first of its line
                    line.appendleft(offset)
                    self._settle(key, done)
                else:
                    if index == key.sent:
                        key.due = 0.0
                    self._attempts.pop(offset, None)
                    del self._of[offset]
                    done.append(offset)
                if key.sent < len(line):
                    self._register(key, now)
            for low, high in self.cursor.ack(max(start, self.position), end, force=True):
                fresh += (low, high)
        self.position = self.cursor.next_live(self.position)
        return merge(self._acknowledge(done) + fresh)

    def seek(self, offset: int, now: float) -> None:
        """Begin again from ``offset``; see :meth:`Machine.seek`."""
        self.cursor.seek(offset)
        self.position = offset
        for books in (self._keys, self._of, self._flights, self._early, self._attempts):
            books.clear()
        self._deadlines.clear()
        self._delayed.clear()
        self._open_flights = 0
        for heap in self._ready.values():
            heap.clear()
        for member in self._members.values():
            member.in_flight = 0

    # --- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Time out deliveries and let delayed messages become ready."""
        deadlines = self._deadlines
        while deadlines and deadlines[0].deadline <= now:
            flight = deadlines.popleft()
            for offset in list(flight.offsets):
                # The first of a key takes the later ones with it, so one that was acknowledged early never gets here.
                if self._flights.get(offset) is flight:
                    self._fail(offset, now, now)
        self._promote(now)

    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` has something to do."""
        due = self._next_due()
        if not self._deadlines:
            return due
        deadline = self._deadlines[0].deadline
        return deadline if due is None else min(due, deadline)

    # --- explanations ------------------------------------------------------------------------------------------------

    def waiting_messages(self) -> int:
        """Count the messages that wait for redelivery or for the owner of their key."""
        return len(self._of) - len(self._flights)

    def explain(self, now: float, end_offset: int) -> Explanation:
        """Say why the subscription moves or does not."""
        oldest = None
        if self._flights:
            start = end = min(self._flights)
            flight = self._flights[start]
            while self._flights.get(end) is flight:
                end += 1
            oldest = (start, end, flight.member.name, flight.since)
        return explain(
            Facts(
                description=self.describe(end_offset),
                now=now,
                end_offset=end_offset,
                wants=self.next_read(now),
                full=self._full(),
                next_due=self._next_due(),
                oldest=oldest,
                blocked=self._blocked(now),
            )
        )

    def _blocked(self, now: float) -> tuple[str, str] | None:
        """Say why the key with the oldest waiting message waits."""
        key = min((key for key in self._busy() if key.sent < len(key.line)), key=_first_waiting, default=None)
        if key is None:
            return None
        count = len(key.line) - key.sent
        subject = f"{count:,} message{'s' * (count > 1)} of key {key.name!r} "
        verb = "wait" if count > 1 else "waits"
        target = self._target(key)
        if key.due > now:
            return "waiting-for-retry", f"{subject}{verb} for redelivery in {key.due - now:.1f} s"
        if key.sent and key.owner is not None and key.owner is not target:
            return (
                "waiting-for-acks",
                f"{subject}{verb} until {key.owner.name!r} has settled {key.sent:,} before the key moves",
            )
        return "no-credit", f"{subject}{verb} for credit of consumer {target.name if target else '?'!r}"


def _first_waiting(key: _Key) -> int:
    return key.line[key.sent]


def _flat(offsets: list[int]) -> list[int]:
    """Turn sorted offsets into flat ranges."""
    start, last = offsets[0], offsets[-1]
    if last - start + 1 == len(offsets):
        return [start, last + 1]
    flat = [start]
    end = start
    for offset in offsets:
        if offset != end:
            flat.append(end)
            flat.append(offset)
        end = offset + 1
    flat.append(end)
    return flat
