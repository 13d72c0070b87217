"""Small parts of dispatch, each by itself against a model that fits on a few lines."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from danube.dispatch import Description, ReadRequest
from danube.dispatch.delayed import Delayed
from danube.dispatch.explain import Facts, explain
from danube.dispatch.inflight import Member
from danube.dispatch.key_flights import KeyFlights
from danube.dispatch.keyed import flat_of
from danube.dispatch.spans import ConsumerState

OFFSETS = st.integers(0, 30)
SIZES = st.integers(1, 8)


class DelayedAgainstDictionary(RuleBasedStateMachine):
    """Batches that are not due: offset -> due time; and what became due and was not delivered."""

    @initialize()
    def begin(self):
        self.delayed = Delayed()
        self.pending = {}
        self.undelivered = set()
        self.now = 0.0
        self.next = 0

    @rule(size=SIZES, hole=st.integers(0, 8), due=st.integers(1, 20))
    def add(self, size, hole, due):
        """A batch, as the log has them: each behind the one before; some of its offsets may be settled."""
        base, self.next = self.next, self.next + size + 1
        offsets = [offset for offset in range(base, base + size) if offset != base + hole]
        pairs = [(flat[0], flat[1]) for flat in pairs_of(offsets)]
        self.delayed.add(pairs, self.now + due)
        self.pending.update(dict.fromkeys(offsets, self.now + due))
        self.undelivered.update(offsets)

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds):
        self.now += seconds
        late = {offset: due for offset, due in self.pending.items() if due <= self.now}
        found = [offset for start, end in self.delayed.take_due(self.now) for offset in range(start, end)]
        assert sorted(found) == sorted(late)
        assert [late[offset] for offset in found] == sorted(late.values()), "in order of time"
        for offset in late:
            del self.pending[offset]

    @rule(start=st.integers(0, 60), size=SIZES)
    def deliver(self, start, size):
        """Only what is due is delivered."""
        some = [o for o in range(start, start + size) if o in self.undelivered and o not in self.pending]
        for low, high in pairs_of(some):
            self.delayed.deliver(low, high)
        self.undelivered.difference_update(some)

    @rule(start=st.integers(0, 60), size=SIZES)
    def discard(self, start, size):
        gone = set(range(start, start + size))
        assert self.delayed.discard(start, start + size) == len(gone & set(self.pending))
        self.pending = {offset: due for offset, due in self.pending.items() if offset not in gone}
        self.undelivered -= gone

    @rule()
    def clear(self):
        self.delayed.clear()
        self.pending.clear()
        self.undelivered.clear()

    @rule(starts=st.lists(st.integers(0, 60), max_size=4, unique=True), size=st.integers(1, 4))
    def delivered_part(self, starts, size):
        wanted = {offset for start in starts for offset in range(start, start + size)}
        flat = [number for pair in pairs_of(sorted(wanted)) for number in pair]
        part = self.delayed.delivered_part(flat)
        found = {offset for low, high in zip(part[::2], part[1::2], strict=True) for offset in range(low, high)}
        assert found == wanted - self.undelivered

    @invariant()
    def agrees(self):
        assert self.undelivered or not len(self.delayed), "what is over leaves nothing behind"
        assert self.delayed.messages() == len(self.pending)
        assert self.delayed.some is bool(self.undelivered)
        assert self.delayed.next_due() == min(self.pending.values(), default=None)


def pairs_of(offsets):
    """Sorted offsets as pairs of start and end."""
    found = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


class KeyFlightsAgainstDictionary(RuleBasedStateMachine):
    """Offsets in flight: [member, since, deadline, whether that was extended]; flights end as wholes."""

    @initialize()
    def begin(self):
        self.flights = KeyFlights()
        self.members = [Member(number, f"c{number}") for number in (1, 2)]
        self.model = {}
        self.now = 0.0

    @rule(
        start=OFFSETS,
        size=SIZES,
        step=st.integers(1, 3),
        index=st.integers(0, 1),
        timeout=st.sampled_from([0.0, 5.0, 9.0]),
    )
    def add(self, start, size, step, index, timeout):
        offsets = [offset for offset in range(start, start + size * step, step) if offset not in self.model]
        if offsets:
            self.flights.add(self.members[index], list(offsets), self.now, timeout)
            for offset in offsets:
                self.model[offset] = [self.members[index], self.now, self.now + timeout if timeout else math.inf, False]

    @rule(offset=OFFSETS)
    def take(self, offset):
        flight = self.flights.take(offset)
        expected = self.model.pop(offset, None)
        assert (flight is None) == (expected is None)
        if flight is not None and expected is not None:
            assert flight.member is expected[0]

    @rule(offsets=st.lists(OFFSETS, unique=True), index=st.integers(0, 1), lease=st.sampled_from([1.0, 7.0, 30.0]))
    def extend(self, offsets, index, lease):
        deadline = self.now + lease
        self.flights.extend(index + 1, offsets, deadline, most=10**6)
        for offset in offsets:
            known = self.model.get(offset)
            if known is not None and known[0] is self.members[index] and known[2] < deadline:
                known[2:] = [deadline, True]

    @rule(offset=OFFSETS)
    def extend_at_the_bound(self, offset):
        """No flight is cut then: all of it gets the lease, and there are no more flights than before."""
        flight = self.flights.of.get(offset)
        if flight is None or flight.deadline >= self.now + 50:
            return
        before = len(self.flights)
        self.flights.extend(flight.member.consumer_id, [offset], self.now + 50, most=before)
        assert len(self.flights) == before
        for other, its in self.flights.of.items():
            if its is flight:
                self.model[other][2:] = [self.now + 50, True]

    @rule(timeout=st.sampled_from([0.0, 3.0, 20.0]))
    def retime(self, timeout):
        self.flights.retime(timeout)
        for known in self.model.values():
            if not known[3]:
                known[2] = known[1] + timeout if timeout else math.inf

    @rule(seconds=st.sampled_from([1.0, 4.0, 12.0]))
    def wait(self, seconds):
        """What has timed out is told once, and stays until it is taken."""
        self.now += seconds
        late = {offset for offset, known in self.model.items() if known[2] <= self.now}
        found = set()
        for flight in self.flights.expired(self.now):
            mine = [offset for offset in flight.offsets if self.flights.of.get(offset) is flight]
            assert flight.open == len(mine) > 0
            assert not found & set(mine)
            found |= set(mine)
        assert found == late
        for offset in late:
            self.take(offset)

    @rule()
    def clear(self):
        self.flights.clear()
        self.model.clear()

    @invariant()
    def agrees(self):
        flights = self.flights
        assert set(flights.of) == set(self.model)
        assert len(flights) == len(set(flights.of.values()))
        for offset, flight in flights.of.items():
            assert [flight.member, flight.since, flight.deadline, flight.extended] == self.model[offset]
        for flight in set(flights.of.values()):
            assert flight.open == sum(other is flight for other in flights.of.values())
        for member in self.members:
            assert member.in_flight == sum(known[0] is member for known in self.model.values())
        deadlines = [known[2] for known in self.model.values() if known[2] < math.inf]
        assert flights.next_deadline() == min(deadlines, default=None)
        assert len(flights._deadlines) <= 2 * len(flights) + 64


for machine in (DelayedAgainstDictionary, KeyFlightsAgainstDictionary):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDelayed = DelayedAgainstDictionary.TestCase
TestKeyFlights = KeyFlightsAgainstDictionary.TestCase


def test_a_heap_of_deadlines_that_are_over_is_pruned():
    flights, member = KeyFlights(), Member(1, "c")
    for offset in range(1000):
        flights.add(member, [offset], 0.0, 10.0)
        flights.take(offset)
    assert len(flights._deadlines) <= 65
    flights.add(member, [7], 0.0, 10.0)
    for lease in range(1000):
        flights.extend(1, [7], 20.0 + lease, most=1000)
    assert len(flights._deadlines) <= 67
    assert flights.next_deadline() == 1019.0


@pytest.mark.parametrize(
    ("offsets", "flat"),
    [([3], [3, 4]), ([3, 4, 5], [3, 6]), ([3, 5], [3, 4, 5, 6]), ([1, 2, 5, 6, 9], [1, 3, 5, 7, 9, 10])],
)
def test_offsets_as_ranges(offsets, flat):
    assert flat_of(offsets) == flat


def consumer(name="c1", *, active=True, messages=10, size=10):
    return ConsumerState(1, name, active, messages, size, 0, 0, 0)


def facts(*, consumers=None, backlog=5, waiting=0, delayed=0, poisoned=0, dropped=0, **fields):
    description = Description(
        floor=0,
        position=20,
        generation=0,
        backlog_messages=backlog,
        in_flight_messages=0,
        waiting_messages=waiting,
        acked_ranges=0,
        redelivered_messages=0,
        dropped_messages=dropped,
        consumers=[consumer()] if consumers is None else consumers,
        delayed_messages=delayed,
        poisoned_messages=poisoned,
    )
    given = {"now": 100.0, "end_offset": 20, "wants": None, "full": None, "next_due": None, "oldest": None}
    return Facts(description=description, **(given | fields))


STARVED = [consumer("c1", messages=0), consumer("c2", size=0)]
HALF = [consumer("c1", messages=0), consumer("c2")]
OLDEST = (3, 5, "c1", 90.0)
SINCE = "waiting for the acknowledgement of 3\N{EN DASH}4 by 'c1' for 10.0 s"
FULL, BLOCKED, POISON = "the window is full", ("blocked", "key 'a' is blocked"), "offset 3 is poison"


@pytest.mark.parametrize(
    ("what", "state", "sentence"),
    [
        (
            facts(consumers=[], lossy=True, dropped=1200),
            "no-consumer",
            "no consumer is connected; messages are dropped, 1,200 so far",
        ),
        (facts(consumers=[], backlog=1), "no-consumer", "no consumer is connected; 1 message in the backlog"),
        (
            facts(consumers=STARVED, lossy=True),
            "no-credit",
            "none of the 2 consumers has credit; messages are dropped, 0 so far",
        ),
        (facts(consumers=HALF, lossy=True), "caught-up", "caught up: everything is delivered or dropped"),
        (facts(lossy=True, backlog=9), "caught-up", "caught up: everything is delivered or dropped"),
        (facts(backlog=0, poison=POISON), "caught-up", "caught up: everything is acknowledged"),
        (facts(backlog=1, poison=POISON), "blocked", POISON),
        (facts(wants=ReadRequest(7, True), poison=POISON), "blocked", POISON),
        (facts(wants=ReadRequest(7, True)), "moving", "moving: messages from offset 7 on are about to be redelivered"),
        (
            facts(wants=ReadRequest(20, False), end_offset=21),
            "moving",
            "moving: messages from offset 20 on are about to be delivered",
        ),
        (facts(wants=ReadRequest(20, False)), "waiting-for-acks", "everything is delivered"),
        (
            facts(consumers=STARVED, end_offset=21),
            "no-credit",
            "none of the 2 consumers has credit; 1 message to be delivered",
        ),
        (
            facts(consumers=STARVED[:1], waiting=2),
            "no-credit",
            "consumer 'c1' has no credit; 2 messages to be delivered",
        ),
        (
            facts(consumers=STARVED[:1], waiting=2, next_due=100.0),
            "no-credit",
            "consumer 'c1' has no credit; 2 messages to be delivered",
        ),
        (
            facts(consumers=STARVED[:1], waiting=2, next_due=107.5),
            "waiting-for-retry",
            "2 messages wait for redelivery, the next in 7.5 s",
        ),
        (facts(consumers=STARVED[:1]), "waiting-for-acks", "everything is delivered"),
        (facts(consumers=HALF, end_offset=21, full=FULL), "window-full", FULL),
        (
            facts(end_offset=21, full=FULL, blocked=BLOCKED, oldest=OLDEST),
            "window-full",
            f"{FULL}; {BLOCKED[1]}; {SINCE}",
        ),
        (facts(full=FULL, oldest=OLDEST), "waiting-for-acks", f"everything is delivered; {SINCE}"),
        (facts(blocked=BLOCKED, poisoned=1, oldest=OLDEST), "blocked", f"{BLOCKED[1]}; {SINCE}"),
        (facts(poisoned=1), "dead-lettering", "1 message waits to be copied to the dead-letter topic"),
        (
            facts(poisoned=2, oldest=OLDEST),
            "dead-lettering",
            f"2 messages wait to be copied to the dead-letter topic; {SINCE}",
        ),
        (facts(waiting=1, next_due=99.0), "waiting-for-retry", "1 message waits for redelivery, the next in 0.0 s"),
        (facts(waiting=1, next_due=109.0, oldest=OLDEST), "waiting-for-acks", f"everything is delivered; {SINCE}"),
        (
            facts(delayed=1, next_delivery=103.0),
            "waiting-for-delivery-time",
            "1 message waits for its delivery time, the next in 3.0 s",
        ),
        (
            facts(delayed=3, next_delivery=90.0),
            "waiting-for-delivery-time",
            "3 messages wait for their delivery time, the next in 0.0 s",
        ),
        (facts(delayed=3, next_delivery=90.0, oldest=OLDEST), "waiting-for-acks", f"everything is delivered; {SINCE}"),
        (
            facts(oldest=(3, 4, "c1", 99.0)),
            "waiting-for-acks",
            "everything is delivered; waiting for the acknowledgement of 3 by 'c1' for 1.0 s",
        ),
    ],
)
def test_the_first_reason_that_applies_is_given(what, state, sentence):
    found = explain(what)
    assert (found.state, found.sentence) == (state, sentence)


def test_an_explanation_has_its_numbers_too():
    found = explain(facts(oldest=OLDEST, next_due=107.5))
    assert (found.oldest_start, found.oldest_end, found.oldest_consumer, found.oldest_age_s) == (3, 5, "c1", 10.0)
    assert found.next_retry_s == 7.5
    found = explain(facts())
    assert (found.oldest_start, found.oldest_age_s, found.next_retry_s) == (None, None, None)
