"""Base of the key-shared machine: acknowledgements, failures, leases and poison handling on the lines of keys.

Every change of a message changes the line of its key, see :mod:`danube.dispatch.keys`. Poison that must be
copied to a dead-letter topic is *set aside*: it leaves its line, which continues, and stays in the window until it is
copied. Poison under the policy ``block`` stays in its line, with an infinite pause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from danube.dispatch.cursor import Cursor
from danube.dispatch.delayed import Delayed
from danube.dispatch.failures import FIRST, NACKED, TIMED_OUT, PastDelivery, Recalled, retry_at
from danube.dispatch.inflight import Member
from danube.dispatch.keys import Key, Lines, Past
from danube.dispatch.machine import Machine
from danube.dispatch.spans import ACKNOWLEDGED, DELAYED, IN_FLIGHT, POISONED, WAITING, Place, Poisoned
from danube.model.limits import Limits
from danube.model.policies import PoisonPolicy, SubscriptionPolicy, SubscriptionType
from danube.model.ranges import RangeSet

__all__ = ["KeyedMachine", "flat_of"]


class KeyedMachine(Machine):
    """A machine that manages lines; subclasses decide which consumer gets their messages."""

    def __init__(self, cursor: Cursor, limits: Limits, policy: SubscriptionPolicy) -> None:
        super().__init__(SubscriptionType.KEY_SHARED, cursor, limits, policy)
        self._lines = Lines()
        self._flights = self._lines.flights
        self._delayed = Delayed()
        self._recalled = Recalled((), 0.0)
        self._aside: set[int] = set()
        """Poison that waits to be copied: in the window, but in no line."""
        self._hungry: dict[int, float] = {}
        """Consumers without credit for messages that wait for them, and since when. Includes those suspended for it."""

    def _heard(self, consumer_id: int | None) -> None:
        """Record a sign of life of a consumer. One that is suspended for lack of credit must grant some."""
        if self._suspended and consumer_id not in self._hungry:
            self._resume(consumer_id)

    def _in_window(self, start: int, end: int) -> Sequence[int]:
        """Return at least the offsets of a range that are in the window, in order, whatever the size of the range."""
        of = self._lines.of
        start, end = max(start, self.cursor.floor), min(end, self.position)
        if end - start <= 2 * len(of) + 16:
            return range(start, end)
        return sorted(offset for offset in of if start <= offset < end)

    # --- acknowledgements --------------------------------------------------------------------------------------------

    def ack(self, ranges: Sequence[int], consumer_id: int | None, now: float) -> list[int]:
        """Acknowledge ranges; see :meth:`Machine.ack`."""
        if self._suspended:
            self._heard(consumer_id)
        lines = self._lines
        of, settle = lines.of, lines.settle
        done: list[int] = []
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            for offset in self._in_window(start, end):
                key = of.get(offset)
                if key is None:
                    continue
                if key.sent and key.line[0] == offset:
                    settle(key, done)
                    if key.line and not key.sent:
                        lines.register(key)
                elif offset in self._aside:
                    self._release(offset)
                    done.append(offset)
                else:
                    lines.acknowledge_out_of_turn(key, offset, done)
        self.acked_messages += len(done)
        return self._acknowledge(done)

    def _acknowledge(self, done: list[int]) -> list[int]:
        """Acknowledge single offsets; return them as a flat list."""
        if not done:
            return []
        done.sort()
        new = flat_of(done)
        for index in range(0, len(new), 2):
            # The window bounds how many ranges there can be, so the cursor need not refuse any.
            self.cursor.ack(new[index], new[index + 1], force=True)
        return new

    def _settled(self, done: list[int]) -> None:
        """Acknowledge offsets that were settled without a consumer's call."""
        if done:
            self.settled_itself += self._acknowledge(done)

    def _release(self, offset: int) -> None:
        """Remove poison that was set aside."""
        self._aside.remove(offset)
        self._lines.forget([offset])

    def discard(self, ranges: Sequence[int], now: float) -> list[int]:
        """Settle ranges without a consumer; see :meth:`Machine.discard`."""
        lines = self._lines
        gone: dict[Key, set[int]] = {}
        new = RangeSet()
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            for offset in self._in_window(start, end):
                if offset in self._aside:
                    self._release(offset)
                elif offset in lines.of:
                    gone.setdefault(lines.of[offset], set()).add(offset)
            self._delayed.discard(start, end)
            for low, high in self.cursor.ack(start, end, force=True):
                new.add(low, high)
        done: list[int] = []
        for key, offsets in gone.items():
            lines.withdraw(key, offsets, done)
            lines.forget(offsets)
        self.acked_messages += len(done)  # early acknowledgements whose turn has come
        flat = self._acknowledge(done)
        for low, high in zip(flat[::2], flat[1::2], strict=True):
            new.add(low, high)
        self.position = self.cursor.next_live(self.position)
        return new.to_flat()

    def past_deliveries(self, limit: int, now: float) -> list[PastDelivery]:
        """Return attempts and failures; see :meth:`Machine.past_deliveries`."""
        lines = self._lines
        found: list[PastDelivery] = []
        for offset, past in sorted(lines.past.items()):
            if self.cursor.is_acked(offset) or past.history.attempt == 1:
                continue
            flies = offset in self._flights.of or not past.history.failures
            since, delay_s = (now, 0.0) if flies else (past.failed_at, past.delay_s)
            item = PastDelivery(offset, offset + 1, *past.history, now - since, delay_s)
            if found and found[-1].end == offset and found[-1][2:] == item[2:]:
                found[-1] = found[-1]._replace(end=offset + 1)
            elif len(found) == limit:
                return found
            else:
                found.append(item)
        found += (item._replace(ago_s=now - item.ago_s) for item in self._recalled.items if item.end > self.position)
        return found[:limit]

    def recall(self, past: Sequence[PastDelivery], now: float) -> None:
        """Go on with attempts and failures; see :meth:`Machine.recall`."""
        self._recalled = Recalled(past, now)

    def _recall(self, offset: int, now: float) -> bool:
        """Give a new message in a line what is recalled of it; return whether it must not go out now."""
        item = self._recalled.at(offset)
        if item is None:
            return False
        past = self._lines.past[offset] = Past(item.history)
        past.failed_at, past.delay_s = item.ago_s, item.delay_s
        due = retry_at(self.policy, item.failures, item.delay_s, item.ago_s)
        past.due = math.inf if due is None else due
        return past.due > now

    # --- failures ----------------------------------------------------------------------------------------------------

    def nack(
        self, consumer_id: int | None, ranges: Sequence[int], delay_s: float | None, now: float, reason: str = ""
    ) -> None:
        """Record failures; see :meth:`Machine.nack`."""
        self._heard(consumer_id)
        flights, early = self._flights.of, self._lines.early
        done: list[int] = []
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            for offset in self._in_window(start, end):
                flight = flights.get(offset)
                if (
                    flight is not None
                    and (consumer_id is None or flight.member.consumer_id == consumer_id)
                    and offset not in early  # an acknowledged message cannot fail
                ):
                    self.nacked_messages += 1
                    self._fail(offset, delay_s, now, reason or NACKED, done)
        self._settled(done)

    def failures(self, offset: int) -> int:
        """Return the failures so far of a message in flight; see :meth:`Machine.failures`."""
        past = self._lines.past.get(offset) if offset in self._flights.of else None
        return past.history.failures if past is not None else 0

    def extend(self, consumer_id: int, ranges: Sequence[int], lease_s: float, now: float) -> None:
        """Extend leases; see :meth:`Machine.extend`."""
        self._heard(consumer_id)
        offsets: list[int] = []
        for start, end in zip(ranges[::2], ranges[1::2], strict=True):
            offsets += self._in_window(start, end)
        self._flights.extend(consumer_id, offsets, now + lease_s, self._limits.max_in_flight_ranges)

    def _time_out(self, now: float) -> list[Member]:
        """Fail messages that were not acknowledged in time; return the consumers that had them."""
        lines = self._lines
        silent: dict[Member, None] = {}
        late: dict[Key, set[int]] = {}
        for flight in self._flights.expired(now):
            for offset in flight.offsets:
                if self._flights.of.get(offset) is flight and offset not in lines.early:
                    late.setdefault(lines.of[offset], set()).add(offset)
                    silent[flight.member] = None
        done: list[int] = []
        self.timed_out_messages += sum(map(len, late.values()))
        for key, offsets in late.items():  # the first of a key takes the others with it
            self._fail(next(offset for offset in key.line if offset in offsets), None, now, TIMED_OUT, done)
        self._settled(done)
        return list(silent)

    def _fail(self, offset: int, delay_s: float | None, now: float, reason: str, done: list[int]) -> None:
        """Fail a message in flight: it waits again with the sent ones of its key behind it, or is treated as poison."""
        lines = self._lines
        key = lines.of[offset]
        lines.unsend(key, key.line.index(offset))
        past = lines.past[offset]
        history = past.history
        past.history = history._replace(failures=history.failures + 1, reason=reason)
        past.failed_at, past.delay_s = now, delay_s
        self._judge(offset, done)
        lines.register(key)

    def _judge(self, offset: int, done: list[int]) -> None:
        """Apply the policy to a message that has failed and is not in flight."""
        lines = self._lines
        past = lines.past[offset]
        due = retry_at(self.policy, past.history.failures, past.delay_s, past.failed_at)
        poison = self.policy.poison if due is None else None
        past.due = math.inf if due is None else due
        if poison is None or poison is PoisonPolicy.BLOCK:
            if offset in self._aside:
                self._aside.remove(offset)
                lines.put_back(offset)
            return
        acknowledged = False
        if offset not in self._aside:
            acknowledged = lines.is_acknowledged(offset)
            before = len(done)
            lines.withdraw(lines.of[offset], {offset}, done)
            self.acked_messages += len(done) - before + acknowledged
            self._aside.add(offset)
        if acknowledged or poison is PoisonPolicy.DROP:
            self._release(offset)
            self._dropped += not acknowledged
            done.append(offset)

    def _judge_all(self, now: float) -> None:
        """Apply a changed policy to all messages that have failed."""
        lines = self._lines
        self._flights.retime(self.policy.ack_timeout_s)
        done: list[int] = []
        for offset in sorted(lines.past):
            past = lines.past.get(offset)
            if past is None or not past.history.failures or offset in self._flights.of:
                continue
            over = past.due <= now and not self.policy.is_poison(past.history.failures)
            if not over:  # a pause that is over stays over, however long the new one may be
                self._judge(offset, done)
        self._settled(done)

    def poisoned(self, limit: int) -> list[Poisoned]:
        """Return poison that was set aside; see :meth:`Machine.poisoned`."""
        found: list[Poisoned] = []
        for offset in sorted(self._aside):
            history = self._lines.past[offset].history
            fresh = Poisoned(offset, offset + 1, history.attempt - 1, history.failures, history.reason)
            if found and found[-1].end == offset and found[-1][2:] == fresh[2:]:
                found[-1] = found[-1]._replace(end=offset + 1)
            elif len(found) == limit:
                break
            else:
                found.append(fresh)
        return found

    def _place_of(self, offset: int, now: float) -> Place:
        lines = self._lines
        if offset in lines.early:
            return Place(ACKNOWLEDGED)  # it takes effect with the last message of its key before it
        past = lines.past.get(offset)
        attempt, failures, reason = FIRST if past is None else past.history
        flight = self._flights.of.get(offset)
        if flight is not None:
            name = flight.member.name
            return Place(IN_FLIGHT, name, flight.since, flight.deadline, None, attempt, failures, reason)
        if offset in self._aside or (past is not None and past.due == math.inf):
            return Place(POISONED, attempt=attempt - 1, failures=failures, reason=reason)
        due = self._delayed.due_of(offset)
        if due is not None:
            return Place(DELAYED, due=due)
        pause = past.due if past is not None and past.due > now else None
        return Place(WAITING, due=pause, attempt=attempt - 1, failures=failures, reason=reason)

    def poisoned_messages(self) -> int:
        """Return the number of messages that block their key, or are set aside."""
        return sum(past.due == math.inf for past in self._lines.past.values())


def flat_of(offsets: list[int]) -> list[int]:
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
