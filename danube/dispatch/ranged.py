"""Base of the exclusive, failover and shared machines: everything but the choice of the receiver.

Messages are tracked by range. An offset below ``position`` is in exactly one place::

    new ──┬─────────────▶ in flight ──ack──▶ acknowledged ◀── drop, discard, late ack
          └─▶ delayed ─┐    │   ▲                              │
              until due│    ▼   │                              │
                       └─▶ waiting ───── too many failures ──▶ set aside (block, dead_letter)

Ready messages among the waiting ones go out lowest offset first, and before new messages. A message that is
acknowledged while it waits, or while it is set aside, is not delivered again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from danube.dispatch.cursor import Cursor
from danube.dispatch.delayed import Delayed
from danube.dispatch.explain import Facts, explain
from danube.dispatch.failures import FIRST, NACKED, TIMED_OUT, PastDelivery, Recalled, retry_at
from danube.dispatch.inflight import InFlight, Member, Piece
from danube.dispatch.machine import Machine
from danube.dispatch.spans import DELAYED, IN_FLIGHT, POISONED, WAITING, Explanation, Place, Poisoned, ReadRequest, Span
from danube.dispatch.turns import merge
from danube.dispatch.waiting import Aside, Redelivery, Waiting
from danube.model.limits import Limits
from danube.model.policies import PoisonPolicy, SubscriptionPolicy, SubscriptionType

__all__ = ["RangedMachine"]


class RangedMachine(Machine):
    """A machine that tracks messages by range."""

    def __init__(self, kind: SubscriptionType, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        super().__init__(kind, cursor, limits, policy)
        self._window = self._window_of(policy)
        """Maximum of delivered and unacknowledged messages; None: no limit."""
        self._unacked = 0
        """Number of unacknowledged offsets below ``position``, without those that are not due."""
        self._flights = InFlight(cursor, policy.ack_timeout_s)
        self._waiting = Waiting(cursor)
        self._aside = Aside(cursor)
        self._delayed = Delayed()
        self._recalled = Recalled((), 0.0)

    def _window_of(self, policy: SubscriptionPolicy) -> int | None:
        return policy.max_unacked_messages or None

    @abstractmethod
    def _any_credit(self) -> bool:
        """Return whether some consumer may get messages now."""

    # --- messages ----------------------------------------------------------------------------------------------------

    def next_read(self, now: float) -> ReadRequest | None:
        """Return what to read; see :meth:`Machine.next_read`."""
        if self._recalled:
            self._reach_recalled(now)
        if not self._any_credit() or (self._aside.items and self._blocking() is not None):
            return None
        if self._delayed.some:
            self._let_due(now)
        waiting = self._waiting
        if waiting.ready or waiting.paused:
            waiting.promote(now)
            item = waiting.peek()
            if item is not None:
                return ReadRequest(item.start, redelivery=True)
        if (self._unacked or self._delayed.some) and self._full():
            return None
        return ReadRequest(self.position, False)

    def past_deliveries(self, limit: int, now: float) -> list[PastDelivery]:
        """Return attempts and failures; see :meth:`Machine.past_deliveries`."""
        found = [PastDelivery(start, end, *flight.history, 0.0, 0.0) for start, end, flight in self._flights.repeated()]
        found += [
            PastDelivery(item.start, item.end, *item.history, now - item.since, item.delay_s)
            for item in (*self._waiting.repeated(), *self._aside.parts())
        ]
        found += (item._replace(ago_s=now - item.ago_s) for item in self._recalled.items)
        return sorted(found)[:limit]

    def recall(self, past: Sequence[PastDelivery], now: float) -> None:
        """Go on with attempts and failures; see :meth:`Machine.recall`."""
        self._recalled = Recalled(past, now)

    def _reach_recalled(self, now: float) -> None:
        """Have messages wait that were delivered before, by another machine, once all before them were delivered."""
        while (item := self._recalled.until(self.position)) is not None:
            for start, end in self.cursor.live(max(item.start, self.position), item.end):
                self._unacked += end - start
                self._retry(Redelivery(start, end, item.history, None, item.ago_s, item.delay_s), now)
            self.position = self.cursor.next_live(max(item.end, self.position))

    def _blocking(self) -> Redelivery | None:
        """Return the poison that stops the subscription. Call it only if messages are set aside."""
        return self._aside.first() if self.policy.poison is PoisonPolicy.BLOCK else None

    def _full(self) -> str | None:
        """Return the bound that stops new messages; None while nothing is outstanding."""
        if not self._unacked and not self._delayed.some:
            return None
        limits = self._limits
        if self._window is not None and self._unacked >= self._window:
            return f"the window of {self._window:,} unacknowledged messages is full (max_unacked_messages)"
        # Each delayed batch makes a hole in the cursor, and has a bound of its own.
        ranges = self.cursor.range_count - len(self._delayed)
        if ranges >= limits.max_ack_ranges:
            return f"{ranges:,} acknowledged ranges wait for older messages (max_ack_ranges)"
        if self._tracked() >= limits.max_in_flight_ranges:
            return f"{limits.max_in_flight_ranges:,} separate ranges are unacknowledged (max_in_flight_ranges)"
        if len(self._delayed) >= limits.max_delayed_ranges:
            return f"{limits.max_delayed_ranges:,} batches wait for their delivery time (max_delayed_ranges)"
        return None

    def _tracked(self) -> int:
        waiting = self._waiting
        return len(self._flights.starts) + len(waiting.ready) + len(waiting.paused) + len(self._aside.items)

    def _delay(self, span: Span) -> None:
        """Store the part of a new batch from ``position`` on until it is due."""
        self._delayed.add(self.cursor.live(self.position, span.end_offset), span.due)
        self.position = self.cursor.next_live(span.end_offset)

    def _let_due(self, now: float) -> None:
        """Make delayed messages that are due by now wait for their first delivery."""
        for start, end in self._delayed.take_due(now):
            self._unacked += end - start
            self._waiting.add(Redelivery(start, end, FIRST, None, now, 0.0), now, now)

    # --- acknowledgements --------------------------------------------------------------------------------------------

    def ack(self, ranges: Sequence[int], consumer_id: int | None, now: float) -> list[int]:
        """Acknowledge ranges; see :meth:`Machine.ack`."""
        if self._suspended:
            self._resume(consumer_id)
        if self._delayed.some:
            ranges = self._delayed.delivered_part(ranges)
        unacked = self._unacked
        new = self._acknowledge(ranges)
        self.acked_messages += unacked - self._unacked
        return new

    def _acknowledge(self, ranges: Sequence[int], *, force: bool = False) -> list[int]:
        new: list[int] = []
        cursor_ack, settle, position = self.cursor.ack, self._flights.settle, self.position
        count = 0
        for index in range(0, len(ranges), 2):
            high = ranges[index + 1]
            for start, end in cursor_ack(ranges[index], high if high < position else position, force=force):
                settle(start, end)
                new.append(start)
                new.append(end)
                count += end - start
        self._unacked -= count
        return new

    def discard(self, ranges: Sequence[int], now: float) -> list[int]:
        """Settle ranges without a consumer; see :meth:`Machine.discard`."""
        if self._delayed.some:
            for index in range(0, len(ranges), 2):
                # Messages that are not due do not count as unacknowledged: compensate the subtraction below.
                self._unacked += self._delayed.discard(ranges[index], ranges[index + 1])
        new = self._acknowledge(ranges, force=True)
        position = self.position
        for index in range(0, len(ranges), 2):
            for start, end in self.cursor.ack(max(ranges[index], position), ranges[index + 1], force=True):
                new += (start, end)
        self.position = self.cursor.next_live(position)
        return merge(new)

    def seek(self, offset: int, now: float) -> None:
        """Start again from ``offset``; see :meth:`Machine.seek`."""
        self.cursor.seek(offset)
        self.rewind(now)

    def rewind(self, now: float) -> None:
        """Read again all that is not acknowledged; see :meth:`Machine.rewind`."""
        self._flights.clear()
        self._waiting.clear()
        self._aside.clear()
        self._delayed.clear()
        self._recalled = Recalled((), now)
        self.settled_itself.clear()
        self._unacked = 0
        self.position = self.cursor.floor

    # --- failures ----------------------------------------------------------------------------------------------------

    def nack(
        self, consumer_id: int | None, ranges: Sequence[int], delay_s: float | None, now: float, reason: str = ""
    ) -> None:
        """Redeliver ranges after a failure; see :meth:`Machine.nack`."""
        if self._suspended:
            self._resume(consumer_id)
        for index in range(0, len(ranges), 2):
            # At the bound a nack takes the whole flight back: neighbours may come twice, memory does not grow.
            whole = self._tracked() >= self._limits.max_in_flight_ranges
            released = self._flights.release(ranges[index], ranges[index + 1], consumer_id, whole=whole)
            self.nacked_messages += _messages_of(released)
            self._failed(released, reason or NACKED, delay_s, now)

    def failures(self, offset: int) -> int:
        """Return the failures so far of a message in flight; see :meth:`Machine.failures`."""
        return self._flights.failures(offset)

    def extend(self, consumer_id: int, ranges: Sequence[int], lease_s: float, now: float) -> None:
        """Extend the timeout of messages in flight; see :meth:`Machine.extend`."""
        if self._suspended:
            self._resume(consumer_id)
        for index in range(0, len(ranges), 2):
            whole = self._tracked() >= self._limits.max_in_flight_ranges
            self._flights.extend(ranges[index], ranges[index + 1], consumer_id, now + lease_s, whole=whole)

    def give_back(self, consumer_id: int, ranges: Sequence[int], now: float) -> None:
        """Redeliver the messages of a stuck consumer; see :meth:`Machine.give_back`."""
        member = self._members.get(consumer_id)
        if member is None:
            return
        for index in range(0, len(ranges), 2):
            whole = self._tracked() >= self._limits.max_in_flight_ranges
            self._lost(self._flights.release(ranges[index], ranges[index + 1], consumer_id, whole=whole), now)
        self._timed_out([member], now)

    def _failed(self, pieces: Iterable[Piece], reason: str, delay_s: float | None, now: float) -> None:
        for start, end, flight in pieces:
            history = flight.history.failed(reason)
            self._retry(Redelivery(start, end, history, flight.member.consumer_id, now, delay_s), now)

    def _lost(self, pieces: Iterable[Piece], now: float) -> None:
        for start, end, flight in pieces:
            history = flight.history.lost()
            self._retry(Redelivery(start, end, history, flight.member.consumer_id, now, 0.0), now)

    def _retry(self, item: Redelivery, now: float) -> None:
        """Add a returned range to the waiting ones, or to the poison."""
        due = retry_at(self.policy, item.history.failures, item.delay_s, item.since)
        if due is not None:
            self._waiting.add(item, due, now)
        elif self.policy.poison is PoisonPolicy.DROP:
            settled = self._acknowledge([item.start, item.end], force=True)
            self.settled_itself += settled
            self._dropped += item.end - item.start
        else:
            self._aside.add(item)

    def poisoned(self, limit: int) -> list[Poisoned]:
        """Return poison for the dead-letter topic; see :meth:`Machine.poisoned`."""
        if not self._aside.items or self.policy.poison is not PoisonPolicy.DEAD_LETTER:
            return []
        return self._aside.poisoned(limit)

    def _policy_changed(self, now: float) -> None:
        policy = self.policy
        self._window = self._window_of(policy)
        self._flights.change_timeout(policy.ack_timeout_s)
        waiting = self._waiting
        waiting.promote(now)
        for item in waiting.take_ready():
            if item.history.failures and policy.is_poison(item.history.failures):
                self._retry(item, now)
            else:
                waiting.put_back(item)  # its pause is over, however long the new one may be
        for item in [*waiting.take_paused(), *self._aside.take()]:
            self._retry(item, now)
        self.tick(now)

    # --- consumers and time ------------------------------------------------------------------------------------------

    def _left(self, member: Member, now: float) -> None:
        self._lost(self._flights.release_all(member), now)

    def postpone(self, until: float) -> None:
        """Postpone timeouts; see :meth:`Machine.postpone`."""
        self._flights.postpone(until)

    def tick(self, now: float) -> None:
        """Process due events; see :meth:`Machine.tick`."""
        expired = self._flights.expire(now)
        if expired:
            self.timed_out_messages += _messages_of(expired)
            self._failed(expired, TIMED_OUT, None, now)
            self._timed_out(dict.fromkeys(flight.member for _, _, flight in expired), now)
        self._let_due(now)
        self._waiting.promote(now)

    def _timed_out(self, members: Iterable[Member], now: float) -> None:
        """Called after consumers let messages time out."""

    def next_deadline(self) -> float | None:
        """Return when :meth:`tick` must be called."""
        first = self._flights.next_deadline()
        if self._waiting.paused:
            second = self._waiting.next_due()
            if second is not None and (first is None or second < first):
                first = second
        if self._delayed.some:
            second = self._delayed.next_due()
            if second is not None and (first is None or second < first):
                first = second
        return first

    # --- explanations ------------------------------------------------------------------------------------------------

    def _place_of(self, offset: int, now: float) -> Place:
        flight = self._flights.at(offset)
        if flight is not None:
            attempt, failures, reason = flight.history
            name = flight.member.name
            return Place(IN_FLIGHT, name, flight.since, flight.deadline, None, attempt, failures, reason)
        poison = self._aside.at(offset)
        if poison is not None:
            attempt, failures, reason = poison.history
            return Place(POISONED, attempt=attempt - 1, failures=failures, reason=reason)
        waiting = self._waiting.at(offset)
        if waiting is not None:
            (attempt, failures, reason), due = waiting[0].history, waiting[1]
            return Place(WAITING, due=due, attempt=attempt - 1, failures=failures, reason=reason)
        due = self._delayed.due_of(offset)
        return Place(WAITING) if due is None else Place(DELAYED, due=due)

    def waiting_messages(self) -> int:
        """Return the number of messages that wait for redelivery or for the owner of their key."""
        return self._waiting.messages()

    def shift_delayed(self, by_s: float) -> bool:
        """See :meth:`Machine.shift_delayed`."""
        return self._delayed.shift(by_s)

    def delayed_messages(self) -> int:
        """Return the number of messages that were read and are not due yet."""
        return self._delayed.messages()

    def poisoned_messages(self) -> int:
        """Return the number of messages that have failed too often and are still stored."""
        return self._aside.messages()

    def explain(self, now: float, end_offset: int) -> Explanation:
        """Explain why the subscription moves or does not."""
        oldest = self._flights.oldest()
        return explain(
            Facts(
                description=self.describe(end_offset),
                now=now,
                end_offset=end_offset,
                wants=self.next_read(now),
                full=self._full(),
                next_due=self._waiting.next_due(),
                next_delivery=self._delayed.next_due(),
                poison=self._explain_poison(),
                oldest=oldest and (oldest[0], oldest[1], oldest[2].member.name, oldest[2].since),
            )
        )

    def _explain_poison(self) -> str | None:
        item = self._blocking() if self._aside.items else None
        if item is None:
            return None
        (start, end), *_ = self.cursor.live(item.start, item.end)
        one = end == start + 1
        what = f"message {start} has" if one else f"{end - start:,} messages from {start} on have"
        failures, reason = item.history.failures, item.history.reason
        often = f"failed once ({reason})" if failures == 1 else f"failed {failures:,} times (the last: {reason})"
        return (
            f"{what} {often} and the poison policy is {self.policy.poison}; acknowledge or discard"
            f" {'it' if one else 'them'}, change the policy, or seek"
        )


def _messages_of(pieces: Iterable[Piece]) -> int:
    return sum(end - start for start, end, _ in pieces)
