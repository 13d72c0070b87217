"""What a key-shared subscription promises, message by message: a line for each key, and what may become of a message.

Much slower than the machine and without its cleverness: no flights, no heaps, no ring. Who owns a key is given.
"""

from __future__ import annotations

import math

from danube.model.policies import PoisonPolicy


class KeyModel:
    def __init__(self, policy, acked):
        self.policy = policy
        self.acked = acked
        self.dropped = 0
        self.forget()

    def forget(self):
        self.keys = {}  # offset -> key, of all that were read
        self.lines = {}  # key -> offsets in order of arrival
        self.flying = {}  # offset -> [consumer, deadline, since, extended]
        self.remembered = set()  # acknowledged before their turn
        self.attempts = {}  # offset -> what its next or current delivery is, if not the first
        self.failures = {}  # offset -> (how many, when the last, the pause that was asked for)
        self.due = {}  # offset -> not before; infinite: poison that blocks
        self.aside = set()
        self.delayed = {}  # offset -> due time
        self.returned = []  # offsets that were delayed and are due, in order
        self.settled_itself = set()

    def line(self, offset):
        return self.lines[self.keys[offset]]

    def window(self):
        return sum(map(len, self.lines.values())) + len(self.aside)

    def sent(self, line):
        """How many of a line have had their turn."""
        for count, offset in enumerate(line):
            if offset not in self.flying and offset not in self.remembered:
                return count
        return len(line)

    def first_waiting(self, now):
        """Yield the key, and the first that waits of its line, if only its owner is missing."""
        for key, line in self.lines.items():
            sent = self.sent(line)
            if sent < len(line) and self.due.get(line[sent], 0.0) <= now:
                yield key, line[sent], self.flying[line[0]][0] if sent else None

    # --- what happens to messages ------------------------------------------------------------------------------------

    def arrive(self, offset, key):
        self.keys[offset] = key
        self.lines.setdefault(key, []).append(offset)

    def let_due(self, now):
        late = sorted((due, offset) for offset, due in self.delayed.items() if due <= now)
        for _, offset in late:
            del self.delayed[offset]
            self.returned.append(offset)

    def deliver(self, offset, consumer, now):
        line = self.line(offset)
        index = line.index(offset)
        if self.attempts.get(offset, 1) > 1:
            self.remembered -= set(line[index:])
        timeout = self.policy.ack_timeout_s or math.inf
        self.flying[offset] = [consumer, now + timeout, now, False]

    def settle(self, offset):
        """Take it out of all books, and what has its turn then; return all of it."""
        self.acked.add(offset)
        for books in (self.flying, self.attempts, self.failures, self.due, self.delayed):
            books.pop(offset, None)
        self.remembered.discard(offset)
        self.aside.discard(offset)
        if offset in self.returned:
            self.returned.remove(offset)
        if offset not in self.keys:
            return {offset}
        line = self.line(offset)
        if offset in line:
            line.remove(offset)
        return {offset} | (self.settle(line[0]) if line and line[0] in self.remembered else set())

    def ack(self, offset):
        if offset in self.aside:
            return self.settle(offset)
        if offset in self.flying or (offset in self.attempts and offset not in self.acked):
            if self.line(offset)[0] == offset:
                return self.settle(offset)
            self.remembered.add(offset)
        return set()

    def take_back(self, line, index):
        for offset in line[index:]:
            if self.flying.pop(offset, None):
                self.attempts[offset] = self.attempts.get(offset, 1) + 1

    def lose(self, consumer):
        for line in self.lines.values():
            if line and line[0] in self.flying and self.flying[line[0]][0] == consumer:
                self.take_back(line, 0)

    def fail(self, offset, delay, now):
        line = self.line(offset)
        self.take_back(line, line.index(offset))
        self.failures[offset] = (self.failures.get(offset, (0,))[0] + 1, now, delay)
        self.judge(offset)

    def judge(self, offset):
        policy = self.policy
        failures, at, delay = self.failures[offset]
        if not policy.is_poison(failures) or policy.poison is PoisonPolicy.BLOCK:
            pause = policy.redelivery_delay(failures) if delay is None else delay
            self.due[offset] = math.inf if policy.is_poison(failures) else at + pause
            if offset in self.aside:
                self.aside.remove(offset)
                line = self.line(offset)
                lower = [index for index, other in enumerate(line) if other < offset]
                line.insert(max(self.sent(line), *[index + 1 for index in lower], 0), offset)
        elif offset in self.remembered:  # whatever happens to what is before it, this one is done
            self.settled_itself |= self.settle(offset)
        elif policy.poison is PoisonPolicy.DROP:
            self.settled_itself |= self.settle(offset)
            self.dropped += 1
        elif offset not in self.aside:
            line = self.line(offset)
            line.remove(offset)
            self.aside.add(offset)
            if line and line[0] in self.remembered:
                self.settled_itself |= self.settle(line[0])

    def change_policy(self, policy, now):
        self.policy = policy
        for flight in self.flying.values():
            if not flight[3]:
                flight[1] = flight[2] + (policy.ack_timeout_s or math.inf)
        for offset in sorted(self.failures):
            if offset in self.failures and offset not in self.flying:
                over = offset not in self.aside and self.due[offset] <= now
                if not over or policy.is_poison(self.failures[offset][0]):
                    self.judge(offset)

    def postpone(self, until):
        for flight in self.flying.values():
            if flight[1] < until:
                flight[1], flight[3] = until, True

    def extend(self, consumer, offsets, deadline):
        for offset in offsets:
            flight = self.flying.get(offset)
            if flight and flight[0] == consumer and flight[1] < deadline:
                flight[1], flight[3] = deadline, True

    def time_out(self, now):
        """Return whose messages timed out."""
        late = {o for o, flight in self.flying.items() if flight[1] <= now and o not in self.remembered}
        silent = {self.flying[offset][0] for offset in late}
        for line in list(self.lines.values()):
            first = next((offset for offset in line if offset in late), None)
            if first is not None:
                self.fail(first, None, now)
        return silent

    def deadlines(self, now):
        found = [flight[1] for offset, flight in self.flying.items() if offset not in self.remembered]
        found += self.delayed.values()
        for line in self.lines.values():
            sent = self.sent(line)
            if sent < len(line) and self.due.get(line[sent], 0.0) > now:
                found.append(self.due[line[sent]])
        return [deadline for deadline in found if deadline < math.inf]
