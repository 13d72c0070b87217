"""What an exclusive, failover or shared subscription owes each message, message by message and without any cleverness.

Every offset that was read is in one of ``acked``, ``flying``, ``waiting``, ``aside`` and ``delayed``.
"""

from __future__ import annotations

import math

from danube.model.policies import PoisonPolicy


class RangedModel:
    """The rules about messages. Who gets which is not said here."""

    def __init__(self, policy, acked):
        self.policy = policy
        self.acked = set(acked)
        self.dropped = set()
        self.settled_itself = set()
        self.forget()

    def forget(self):
        self.flying = {}  # offset -> [consumer, since, deadline, end of the lease]
        self.waiting = {}  # offset -> due
        self.aside = set()
        self.delayed = {}  # offset -> due
        self.delivered = set()
        self.attempts, self.failures, self.came_back = {}, {}, {}
        self.settled_itself.clear()

    def deliver(self, offset, consumer_id, now):
        self.waiting.pop(offset, None)
        self.delivered.add(offset)
        self.flying[offset] = [consumer_id, now, now + (self.policy.ack_timeout_s or math.inf), 0.0]

    def settle(self, offsets):
        self.acked |= offsets
        for offset in offsets:
            for place in (self.flying, self.waiting, self.delayed):
                place.pop(offset, None)
            self.aside.discard(offset)

    def acknowledged_by(self, offsets):
        return {offset for offset in offsets if offset in self.delivered and offset not in self.acked}

    def fail(self, offset, delay, now):
        self.failures[offset] = self.failures.get(offset, 0) + 1
        self.come_back(offset, delay, now)

    def come_back(self, offset, delay, now):
        del self.flying[offset]
        self.attempts[offset] = self.attempts.get(offset, 1) + 1
        self.came_back[offset] = (now, delay)
        self.retry(offset)

    def retry(self, offset):
        since, delay = self.came_back[offset]
        failures = self.failures.get(offset, 0)
        if failures and self.policy.is_poison(failures):
            if self.policy.poison is PoisonPolicy.DROP:
                self.settle({offset})
                self.dropped.add(offset)
                self.settled_itself.add(offset)
            else:
                self.aside.add(offset)
        else:
            if delay is None:
                delay = self.policy.redelivery_delay(failures)
            self.waiting[offset] = since + delay

    def consumer_lost(self, consumer_id, now):
        for offset in sorted(self.flying):
            if self.flying[offset][0] == consumer_id:
                self.come_back(offset, 0.0, now)

    def postpone(self, until):
        for flight in self.flying.values():
            if flight[2] < until:
                flight[2:] = [until, until]

    def extend(self, consumer_id, offsets, deadline):
        for offset in offsets:
            flight = self.flying.get(offset)
            if flight is not None and flight[0] == consumer_id and flight[2] < deadline:
                flight[2:] = [deadline, deadline]

    def time_out(self, now):
        """Fail what is late and return whose it was."""
        late = [offset for offset, flight in sorted(self.flying.items()) if flight[2] <= now]
        owners = {self.flying[offset][0] for offset in late}
        for offset in late:
            self.fail(offset, None, now)
        return owners

    def let_due(self, now):
        for offset, due in list(self.delayed.items()):
            if due <= now:
                del self.delayed[offset]
                self.waiting[offset] = due

    def change_policy(self, policy, now):
        if policy == self.policy:
            return
        self.policy = policy
        for flight in self.flying.values():
            flight[2] = max(flight[1] + (policy.ack_timeout_s or math.inf), flight[3])
        for offset in [*self.waiting, *self.aside]:
            ready = self.waiting.get(offset, math.inf) <= now
            if not ready or policy.is_poison(self.failures.get(offset, 0) or -1):
                self.waiting.pop(offset, None)
                self.aside.discard(offset)
                self.retry(offset)

    @property
    def blocked(self):
        return bool(self.aside) and self.policy.poison is PoisonPolicy.BLOCK

    def unacked(self):
        return len(self.flying) + len(self.waiting) + len(self.aside)

    def ready(self, now):
        return sorted(offset for offset, due in self.waiting.items() if due <= now)

    def deadlines(self, now):
        """Return when something happens by itself, from ``now`` on."""
        times = [flight[2] for flight in self.flying.values()] + list(self.delayed.values())
        times += [due for due in self.waiting.values() if due > now]
        return sorted(time for time in times if time < math.inf)
