"""Key-shared subscriptions: every key has one owner at a time, and its messages stay in order.

See :mod:`danube.dispatch.keys` for the line of a key. The rules and their effects:

* Only the first waiting offset of a line may be delivered next, and only to the owner of the messages in flight. A key
  moves to the owner named by the ring when none of its messages is in flight. So order holds across joins and leaves.
* When a message fails or loses its consumer, it and all messages of its key behind it wait again. So a message is never
  delivered while an earlier one of its key waits. Only the message itself has failed; the others are repeated.
* An acknowledgement takes effect in line order. An early one (22 before 17 and 21) takes effect with the last
  one before it, even if that message waits again by then; if a message before it is delivered again, the early
  acknowledgement is void, and 22 follows it again. So messages of a key take effect in order, even if a consumer works
  ahead.
* Poison stops its own key only (``block``), or leaves its line, which goes on at once (``drop``, ``dead_letter``).

A key whose owner has no credit, or that waits for a delay or a move, does not block other keys: its messages wait in
their line (offsets only; the batch is read again later), and the window of ``max_unacked_messages`` bounds them all.
To keep them from filling the window, a consumer is *suspended*, which gives its keys to other consumers, in two cases:
after it let a message time out, until it sends a sign of life; or after messages have waited for its credit as long as
the ack timeout, until it grants some.

A message that matches no consumer's key filters waits in its line without owner, or is skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, groupby

from danube.dispatch.cursor import Cursor
from danube.dispatch.explain import Facts, explain
from danube.dispatch.failures import Recalled
from danube.dispatch.inflight import Member
from danube.dispatch.key_reasons import oldest_in_flight, why_keys_wait
from danube.dispatch.keyed import KeyedMachine, flat_of
from danube.dispatch.keys import Key
from danube.dispatch.spans import Delivery, Explanation, ReadRequest, Span
from danube.dispatch.turns import share_of
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, Unmatched

__all__ = ["KeySharedMachine"]


class KeySharedMachine(KeyedMachine):
    """Machine of key-shared subscriptions."""

    def __init__(self, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        super().__init__(cursor, limits, policy)
        self._ring = self._lines.ring
        self._due: deque[tuple[int, int]] = deque()
        """Delayed ranges that are due and must be read again, in order of time; some may have been discarded since."""

    # --- consumers ---------------------------------------------------------------------------------------------------

    def _joined(self, member: Member, now: float) -> None:
        self._lines.ready[member.consumer_id] = []
        self._ring.add(member)
        self._keys_moved()

    def _left(self, member: Member, now: float) -> None:
        self._take_back(member)
        self._keys_moved()

    def _replaced(self, old: Member, fresh: Member, now: float) -> None:
        self._take_back(old)  # so its keys always have an owner
        self._joined(fresh, now)

    def _take_back(self, member: Member) -> None:
        lines = self._lines
        self._ring.remove(member)
        for key in lines.busy():
            if key.sent and key.owner is member:
                lines.unsend(key, 0)
        del lines.ready[member.consumer_id]
        self._hungry.pop(member.consumer_id, None)

    def _credited(self, member: Member) -> None:
        self._hungry.pop(member.consumer_id, None)

    def _resumed(self, member: Member) -> None:
        self._hungry.pop(member.consumer_id, None)
        self._ring.resume(member)
        self._keys_moved()

    def _keys_moved(self) -> None:
        """Update owners and lines after the ring has changed."""
        if self._ring.filtered and self.policy.unmatched is Unmatched.SKIP:
            lines = self._lines
            done: list[int] = []
            for key in lines.busy():
                if lines.target(key) is None:  # none of its messages is in flight: a former owner would match
                    done += key.line
                    lines.withdraw(key, set(key.line), [])
            lines.forget(done)
            self._settled(done)
        self._lines.register_all()

    def _policy_changed(self, now: float) -> None:
        self._judge_all(now)
        self._keys_moved()
        self.tick(now)

    # --- messages ----------------------------------------------------------------------------------------------------

    def next_read(self, now: float) -> ReadRequest | None:
        """Return what to read; see :meth:`Machine.next_read`."""
        self._promote(now)
        first: int | None = None
        any_credit = False
        lines = self._lines
        for member in self._members.values():
            offset = lines.first_ready(member) if lines.ready[member.consumer_id] else None
            if member.has_credit:
                any_credit = True
                if offset is not None and (first is None or offset < first):
                    first = offset
            elif offset is None:
                if not member.suspended:
                    self._hungry.pop(member.consumer_id, None)
            else:
                self._hungry.setdefault(member.consumer_id, now)
        if first is not None:
            return ReadRequest(first, redelivery=True)
        if not any_credit:
            return None
        due = self._first_due()
        if due is not None and not self._window_full():
            return ReadRequest(due[0], redelivery=True)
        if self._full():
            return None
        return ReadRequest(self.position, redelivery=False)

    def _promote(self, now: float) -> None:
        """Make ranges ready that are due by now."""
        self._lines.promote(now)
        if self._delayed.some:
            self._due += self._delayed.take_due(now)

    def _first_due(self) -> tuple[int, int] | None:
        """Return the next delayed range to be read again."""
        due = self._due
        while due:
            start, end = due[0]
            start = self.cursor.next_live(start)
            if start < end:
                due[0] = start, end
                return due[0]
            due.popleft()
        return None

    def _window(self) -> int:
        return self.policy.max_unacked_messages or self._limits.max_unacked_messages

    def _window_full(self) -> str | None:
        if len(self._lines.of) < self._window():
            return None
        return f"the window of {self._window():,} unacknowledged messages is full (max_unacked_messages)"

    def _full(self) -> str | None:
        """Return the bound that stops new messages, or None."""
        limits, delayed = self._limits, self._delayed
        if not self._lines.of and not delayed.some:
            return None
        if len(delayed) >= limits.max_delayed_ranges:
            return f"{len(delayed):,} delayed batches wait for their time (max_delayed_ranges)"
        # If the window is empty, holes in the cursor may still be filled: that does not add ranges without limit.
        # Each delayed batch makes one, too, and has a bound of its own.
        ranges = self.cursor.range_count - len(delayed)
        if ranges >= limits.max_ack_ranges and (self._lines.of or self.position >= self.cursor.end):
            return f"{ranges:,} acknowledged ranges wait for older messages (max_ack_ranges)"
        return self._window_full()

    def offered(self, span: Span, now: float) -> list[Delivery]:
        """Take a batch; see :meth:`Machine.offered`."""
        self._promote(now)
        lines = self._lines
        lines.prune(self._window())
        taken: dict[Member, list[int]] = {}
        room: dict[Member, int] = {}
        for member in self._members.values():
            offsets = taken[member] = []
            room[member] = _room(member, span)
            if room[member] and lines.ready[member.consumer_id]:
                self._take_ready(member, span, offsets, room[member])
                room[member] -= len(offsets)
        while (due := self._first_due()) and span.base_offset <= due[0] < span.end_offset and not self._window_full():
            stop = self._admit_new(span, due[0], min(due[1], span.end_offset), taken, room, now)
            self._delayed.deliver(due[0], stop)
            self._due[0] = stop, due[1]
        if span.base_offset <= self.position < span.end_offset and not self._full():
            if span.due > now:
                self._delayed.add(self.cursor.live(self.position, span.end_offset), span.due)
                self.position = self.cursor.next_live(span.end_offset)
            else:
                stop = self._admit_new(span, self.position, span.end_offset, taken, room, now)
                self.position = self.cursor.next_live(stop)
        out: list[Delivery] = []
        for member, offsets in taken.items():
            if offsets:
                self._deliver(member, span, offsets, now, out)
        return out

    def _take_ready(self, member: Member, span: Span, offsets: list[int], room: int) -> None:
        """Take the messages of this batch that wait for this consumer, as far as its credit goes."""
        lines = self._lines
        while len(offsets) < room:
            offset = lines.first_ready(member)
            if offset is None or not span.base_offset <= offset < span.end_offset:
                return
            lines.take_ready(member)
            offsets.append(offset)

    def _admit_new(
        self, span: Span, start: int, end: int, taken: dict[Member, list[int]], room: dict[Member, int], now: float
    ) -> int:
        """Put new messages into the lines of their keys; take those that may go out at once; return where it ends."""
        lines = self._lines
        keys, known, of = span.keys, lines.keys, lines.of
        base, most, version = span.base_offset, self._window(), self._ring.version
        skip = self._ring.filtered and self.policy.unmatched is Unmatched.SKIP
        skipped: list[int] = []
        recalled, held = bool(self._recalled), list[int]()
        window = len(of)
        for offset in chain.from_iterable(range(*pair) for pair in self.cursor.live(start, end)):
            if window >= most:
                end = offset
                break
            name = b"" if keys is None else keys[offset - base]
            key = known.get(name)
            if key is None:
                key = known[name] = Key(name)
            target = key.target if key.ring_version == version else lines.target(key)
            if skip and target is None:
                skipped.append(offset)
                continue
            line = key.line
            of[offset] = key
            window += 1
            line.append(offset)
            if recalled and self._recall(offset, now):
                held.append(offset)
                lines.register(key)
                continue
            if key.sent != len(line) - 1 or target is None or (key.sent and key.owner is not target):
                continue  # behind other waiting messages of a registered line, or without owner
            if room[target] > 0:
                room[target] -= 1
                key.owner = target
                key.sent += 1
                taken[target].append(offset)
            else:
                lines.register(key)
        done: list[int] = []
        for offset in held:
            self._judge(offset, done)
        self._settled(sorted({*skipped, *done}))
        return end

    def _deliver(self, member: Member, span: Span, offsets: list[int], now: float, out: list[Delivery]) -> None:
        """Deliver offsets that were taken to their consumer: one delivery for each run of equal attempts."""
        offsets.sort()  # messages of one batch are in offset order in every line
        self._flights.add(member, offsets, now, self.policy.ack_timeout_s)
        past = self._lines.past
        runs: list[tuple[int, list[int]]] = [(1, offsets)]
        if past:  # runs, not groups: the order of offsets is the order of every key
            attempts = [past[offset].history.attempt if offset in past else 1 for offset in offsets]
            pairs = zip(attempts, offsets, strict=True)
            runs = [(attempt, [offset for _, offset in run]) for attempt, run in groupby(pairs, lambda pair: pair[0])]
        size = span.end_offset - span.base_offset
        for attempt, run in runs:
            count = len(run)
            share = share_of(span, count)
            member.charge(count, share)
            if attempt > 1:
                self._redelivered += count
            out.append(
                Delivery(
                    member.consumer_id, span.token, span.base_offset, flat_of(run), attempt, count == size, count, share
                )
            )

    # --- time --------------------------------------------------------------------------------------------------------

    def seek(self, offset: int, now: float) -> None:
        """Begin again from ``offset``; see :meth:`Machine.seek`."""
        self.cursor.seek(offset)
        self.rewind(now)

    def rewind(self, now: float) -> None:
        """Read again all that is not acknowledged; see :meth:`Machine.rewind`."""
        self.position = self.cursor.floor
        self.settled_itself.clear()
        self._lines.clear()
        self._aside.clear()
        self._delayed.clear()
        self._recalled = Recalled((), now)
        self._due.clear()

    def postpone(self, until: float) -> None:
        """Postpone timeouts; see :meth:`Machine.postpone`."""
        self._flights.postpone(until)

    def tick(self, now: float) -> None:
        """Process due events; see :meth:`Machine.tick`."""
        silent = self._time_out(now)
        timeout_s = self.policy.ack_timeout_s
        if timeout_s:
            silent += [self._members[starved] for starved, since in self._hungry.items() if since + timeout_s <= now]
        self._rest([member for member in silent if not member.suspended])
        self._promote(now)

    def _rest(self, silent: Sequence[Member]) -> None:
        """Suspend silent consumers, so that other consumers get their keys."""
        for member in silent:
            self._suspend(member)
            self._ring.suspend(member)
        if silent:
            self._keys_moved()

    def give_back(self, consumer_id: int, ranges: Sequence[int], now: float) -> None:
        """Redeliver the messages of a stuck consumer; see :meth:`Machine.give_back`."""
        member = self._members.get(consumer_id)
        if member is None:
            return
        lines, flights = self._lines, self._flights.of
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            for offset in self._in_window(start, end):
                flight = flights.get(offset)
                if flight is not None and flight.member is member:
                    key = lines.of[offset]
                    lines.unsend(key, key.line.index(offset))
                    lines.register(key)
        if not member.suspended:
            self._rest([member])

    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` must be called."""
        deadlines = [self._flights.next_deadline(), self._lines.next_due(), self._delayed.next_due()]
        if self._hungry and self.policy.ack_timeout_s:
            deadlines += [
                since + self.policy.ack_timeout_s
                for consumer_id, since in self._hungry.items()
                if not self._members[consumer_id].suspended
            ]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # --- explanations ------------------------------------------------------------------------------------------------

    def waiting_messages(self) -> int:
        """Count the messages that wait for redelivery or for the owner of their key."""
        return len(self._lines.of) - len(self._flights.of) - len(self._aside)

    def goes_on(self) -> bool:
        """See :meth:`Machine.goes_on`."""
        return self.waiting_messages() > 0 and any(map(self._lines.goes_on, self._lines.busy()))

    def shift_delayed(self, by_s: float) -> bool:
        """See :meth:`Machine.shift_delayed`."""
        return self._delayed.shift(by_s)

    def delayed_messages(self) -> int:
        """Return the number of messages that were read and are not due yet."""
        return self._delayed.messages()

    def explain(self, now: float, end_offset: int) -> Explanation:
        """Explain why the subscription moves or does not."""
        wants = self.next_read(now)
        return explain(
            Facts(
                description=self.describe(end_offset),
                now=now,
                end_offset=end_offset,
                wants=wants,
                full=self._full(),
                next_due=self._lines.next_due(),
                oldest=oldest_in_flight(self._flights),
                blocked=why_keys_wait(self._lines, self.policy, now),
                next_delivery=self._delayed.next_due(),
            )
        )


def _room(member: Member, span: Span) -> int:
    """Return how many messages of a batch fit a consumer's credit: bytes may be overdrawn by one message."""
    if not member.has_credit:
        return 0
    average = max(1, span.size_bytes // (span.end_offset - span.base_offset))
    return min(member.credit_messages, -(-member.credit_bytes // average))
