"""The in-flight window against a dictionary: offset -> (consumer, deadline)."""

from __future__ import annotations

import math

from dispatch_models import flat_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from danube.dispatch.cursor import Cursor
from danube.dispatch.failures import FIRST
from danube.dispatch.inflight import InFlight, Member

OFFSETS = st.integers(0, 40)
SIZES = st.integers(1, 12)


class Window(RuleBasedStateMachine):
    """What is in flight, at whom, and until when."""

    @initialize(timeout=st.sampled_from([0.0, 10.0]))
    def begin(self, timeout):
        self.now = 0.0
        self.timeout = timeout or math.inf
        self.cursor = Cursor()
        self.window = InFlight(self.cursor, timeout)
        self.members = [Member(number, f"c{number}") for number in (1, 2)]
        self.model = {}  # offset -> [member, since, deadline, end of the lease]
        self.acked = set()

    @rule(start=OFFSETS, size=SIZES, index=st.integers(0, 1))
    def add(self, start, size, index):
        """Deliver what of a range is neither acknowledged nor in flight."""
        free = [(o, 1) for o in range(start, start + size) if o not in self.acked and o not in self.model]
        flat = flat_of(free)
        for low, high in zip(flat[::2], flat[1::2], strict=True):
            self.window.add(low, high, self.members[index], FIRST, self.now)
            for offset in range(low, high):
                self.model[offset] = [self.members[index], self.now, self.now + self.timeout, 0.0]

    @rule(start=OFFSETS, size=SIZES)
    def settle(self, start, size):
        for low, high in self.cursor.ack(start, start + size):
            self.window.settle(low, high)
        for offset in range(start, start + size):
            self.acked.add(offset)
            self.model.pop(offset, None)

    @rule(start=OFFSETS, size=SIZES, consumer=st.sampled_from([None, 1, 2]), whole=st.booleans())
    def release(self, start, size, consumer, whole):
        pieces = self.window.release(start, start + size, consumer, whole=whole)
        touched = set(range(start, start + size))
        expected = {o for o in self.model if o in touched and consumer in (None, self.model[o][0].consumer_id)}
        found = self.take(pieces)
        assert found == expected if not whole else found >= expected

    @rule(index=st.integers(0, 1))
    def release_all(self, index):
        mine = {o for o, (member, *_) in self.model.items() if member is self.members[index]}
        assert self.take(self.window.release_all(self.members[index])) == mine

    @rule(start=OFFSETS, size=SIZES, index=st.integers(0, 1), lease=st.sampled_from([1.0, 9.0, 40.0]))
    def extend(self, start, size, index, lease):
        deadline = self.now + lease
        self.window.extend(start, start + size, index + 1, deadline)
        for offset in range(start, start + size):
            flight = self.model.get(offset)
            if flight is not None and flight[0] is self.members[index] and flight[2] < deadline:
                flight[2:] = [deadline, deadline]

    @rule(start=OFFSETS, size=SIZES, lease=st.sampled_from([9.0, 40.0]))
    def extend_whole(self, start, size, lease):
        """At the bound of ranges no flight is cut: more may be extended, nothing less, and no range is added."""
        before = len(self.window.starts)
        deadline = self.now + lease
        self.window.extend(start, start + size, 1, deadline, whole=True)
        assert len(self.window.starts) == before
        for low, flight in zip(self.window.starts, self.window._flights, strict=True):
            if flight.lease == deadline:
                for offset in range(low, flight.end):
                    if offset in self.model and self.model[offset][2] < deadline:
                        self.model[offset][2:] = [deadline, deadline]
        for offset in range(start, start + size):
            if offset in self.model and self.model[offset][0].consumer_id == 1:
                assert self.model[offset][2] >= deadline

    @rule(seconds=st.sampled_from([1.0, 4.0, 15.0]))
    def wait(self, seconds):
        self.now += seconds
        late = {offset for offset, flight in self.model.items() if flight[2] <= self.now}
        assert self.take(self.window.expire(self.now)) == late

    @rule(timeout=st.sampled_from([0.0, 3.0, 10.0, 20.0]))
    def change_timeout(self, timeout):
        self.window.change_timeout(timeout)
        self.timeout = timeout or math.inf
        for flight in self.model.values():
            flight[2] = max(flight[1] + self.timeout, flight[3])

    @precondition(lambda self: self.model)
    @rule()
    def clear(self):
        self.window.clear()
        self.model.clear()

    def take(self, pieces):
        found = set()
        for low, high, flight in pieces:
            assert flight.open == 0
            for offset in range(low, high):
                assert self.model.pop(offset)[0] is flight.member
                found.add(offset)
        return found

    @invariant()
    def agrees(self):
        if not hasattr(self, "window"):
            return
        window = self.window
        assert window.messages == len(self.model)
        for member in self.members:
            assert member.in_flight == sum(flight[0] is member for flight in self.model.values())
        covered = {}
        for start, flight in zip(window.starts, window._flights, strict=True):
            assert start == flight.start
            live = [o for low, high in self.cursor.live(flight.start, flight.end) for o in range(low, high)]
            assert flight.open == len(live) > 0
            for offset in live:
                assert offset not in covered
                covered[offset] = [flight.member, flight.since, flight.deadline, flight.lease]
        assert covered == self.model
        deadlines = [flight[2] for flight in self.model.values() if flight[2] < math.inf]
        assert window.next_deadline() == min(deadlines, default=None)
        oldest = window.oldest()
        assert (oldest and oldest[0]) == min(self.model, default=None)
        assert len(window._deadlines) <= 64 + 2 * len(window.starts) + 1


Window.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestWindow = Window.TestCase
