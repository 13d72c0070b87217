"""A simple model of a subscription, message by message, and a driver that holds a machine against it."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from danube.dispatch import Cursor, Span, make_subscription
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType

LIMITS = Limits(max_unacked_messages=14, max_ack_ranges=4)
POLICY = SubscriptionPolicy(ack_timeout_s=10.0)
RECORD_BYTES = 10
NAMES = ["ann", "bob", "cyd", "dan"]
KEYS = st.lists(st.sampled_from("aaabbc"), min_size=1, max_size=7)
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), min_size=1, max_size=3)


def offsets_of(flat):
    assert len(flat) % 2 == 0
    found = [offset for index in range(0, len(flat), 2) for offset in range(flat[index], flat[index + 1])]
    assert found == sorted(set(found))
    return found


def flat_of(pairs):
    """Sorted, disjoint, flat ranges from (start, size) pairs."""
    wanted = sorted({offset for start, size in pairs for offset in range(start, start + size)})
    flat = []
    for offset in wanted:
        if flat and flat[-1] == offset:
            flat[-1] = offset + 1
        else:
            flat += [offset, offset + 1]
    return flat


class Model(RuleBasedStateMachine):
    """Rules for all types. A subclass says which type, and what its order means."""

    kind: SubscriptionType

    @initialize(
        floor=st.integers(0, 3),
        holes=st.lists(st.tuples(st.integers(3, 20), st.integers(1, 3)), max_size=2),
        batches=st.lists(KEYS, min_size=1, max_size=4),
        credit=st.lists(st.sampled_from([0, 3, 100]), max_size=3),
    )
    def begin(self, floor, holes, batches, credit):
        self.now = 0.0
        flat = flat_of(holes)
        cursor = Cursor(floor, ranges=zip(flat[::2], flat[1::2], strict=True))
        self.acked = set(range(floor)) | set(offsets_of(flat))
        self.machine = make_subscription(self.kind, cursor, LIMITS, POLICY)
        self.batches = []
        self.keys = []
        self.consumers = {}  # id -> name, in the order of joining
        self.credit_of = {}  # id -> [messages, bytes]
        self.next_id = 1
        self.flying = {}  # offset -> (consumer id, deadline)
        self.waiting = {}  # offset -> due
        self.delivered = set()
        self.early = set()
        for keys in batches:
            self.publish(keys)
        for name, messages in zip(NAMES, credit, strict=False):
            if self.may_join(name):
                self.join(name)
                self.grant(self.next_id - 1, messages, RECORD_BYTES * messages)
        self.pump()

    @property
    def end(self):
        return len(self.keys)

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(keys=KEYS)
    def publish_and_pump(self, keys):
        self.publish(keys)
        self.pump()

    @rule(keys=KEYS)
    def publish(self, keys):
        base = self.end
        self.keys += keys
        self.batches.append(Span(base, self.end, RECORD_BYTES * len(keys), ("batch", base), keys))

    def may_join(self, name):
        return True

    @rule(name=st.sampled_from(NAMES))
    def join(self, name):
        if not self.may_join(name):
            return
        consumer_id, self.next_id = self.next_id, self.next_id + 1
        old = next((other for other, known in self.consumers.items() if known == name), None)
        assert self.machine.join(consumer_id, name, self.now) == old
        if old is None:
            self.consumers[consumer_id] = name
        else:
            self.consumers = {consumer_id if c == old else c: n for c, n in self.consumers.items()}
            self.gone(old)
        self.credit_of[consumer_id] = [0, 0]

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data):
        consumer_id = data.draw(st.sampled_from(list(self.consumers)))
        self.machine.leave(consumer_id, self.now)
        del self.consumers[consumer_id]
        self.gone(consumer_id)

    def gone(self, consumer_id):
        del self.credit_of[consumer_id]
        self.fail({offset for offset, (owner, _) in self.flying.items() if owner == consumer_id}, self.now)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), messages=st.sampled_from([0, 1, 2, 9, 50]), size=st.sampled_from([0, 15, 90, 500]))
    def credit(self, data, messages, size):
        self.grant(data.draw(st.sampled_from(list(self.consumers))), messages, size)

    def grant(self, consumer_id, messages, size):
        self.machine.credit(consumer_id, messages, size)
        self.credit_of[consumer_id][0] += messages
        self.credit_of[consumer_id][1] += size

    @rule(pairs=RANGES)
    def ack(self, pairs):
        self.acknowledge(flat_of(pairs))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def ack_in_flight(self, data):
        offset = data.draw(st.sampled_from(sorted(self.flying)))
        self.acknowledge([offset, offset + data.draw(st.integers(1, 3))])

    def acknowledge(self, flat):
        new = offsets_of(self.machine.ack(flat, None, self.now))
        expected = set(self.effect_of_ack(offsets_of(flat)))
        assert set(new) == expected
        self.settled(expected)

    def settled(self, offsets):
        self.acked |= offsets
        for offset in offsets:
            self.flying.pop(offset, None)
            self.waiting.pop(offset, None)
            self.early.discard(offset)

    def effect_of_ack(self, offsets):
        return [offset for offset in offsets if offset in self.delivered and offset not in self.acked]

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), size=st.integers(1, 3), delay=st.sampled_from([0.0, 3.0, 8.0]))
    def nack_in_flight(self, data, size, delay):
        offset = data.draw(st.sampled_from(sorted(self.flying)))
        self.refuse(self.flying[offset][0], [offset, offset + size], delay)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), pairs=RANGES)
    def nack_anything(self, data, pairs):
        self.refuse(data.draw(st.sampled_from(list(self.consumers))), flat_of(pairs), 0.0)

    def refuse(self, consumer_id, flat, delay):
        self.machine.nack(consumer_id, flat, delay, self.now)
        for offset in offsets_of(flat):
            if self.flying.get(offset, (None,))[0] == consumer_id:
                self.fail({offset}, self.now + delay)

    def fail(self, offsets, due):
        for offset in offsets:
            del self.flying[offset]
            self.waiting[offset] = due

    @rule(data=st.data(), size=st.integers(1, 3))
    def discard(self, data, size):
        start = data.draw(st.integers(min(self.machine.cursor.floor, self.end), self.end))
        if start == self.end:
            return
        flat = [start, min(start + size, self.end)]
        new = set(offsets_of(self.machine.discard(flat, self.now)))
        expected = set(self.effect_of_discard(set(offsets_of(flat)) - self.acked))
        assert new == expected
        self.settled(expected)

    def effect_of_discard(self, offsets):
        return offsets

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0, 11.0]))
    def wait(self, seconds):
        self.now += seconds
        self.machine.tick(self.now)
        late = sorted(offset for offset, (_, deadline) in self.flying.items() if deadline <= self.now)
        for offset in late:
            if offset in self.flying:
                self.fail({offset}, self.now)

    @rule(offset=st.integers(0, 60), sure=st.integers(0, 5))
    def seek(self, offset, sure):
        if sure != 3:
            return  # a seek forgets everything; too many of them and nothing interesting ever builds up
        offset = min(offset, self.end)
        self.machine.seek(offset, self.now)
        self.acked = set(range(offset))
        self.flying.clear()
        self.waiting.clear()
        self.delivered.clear()
        self.early.clear()

    # --- what must follow --------------------------------------------------------------------------------------------

    @rule()
    def pump(self):
        for _ in range(500):
            request = self.machine.next_read(self.now)
            if request is None or request.offset >= self.end:
                break
            span = next(span for span in self.batches if span.base_offset <= request.offset < span.end_offset)
            before = self.machine.position
            deliveries = self.machine.offered(span, self.now)
            assert deliveries or self.machine.position > before, "an answered request moves something"
            for delivery in deliveries:
                self.receive(delivery, span)
        else:
            raise AssertionError("the pump never comes to rest")
        self.nothing_is_stuck()

    @rule(data=st.data())
    def offer_unasked(self, data):
        if self.batches:
            span = data.draw(st.sampled_from(self.batches))
            for delivery in self.machine.offered(span, self.now):
                self.receive(delivery, span)

    def receive(self, delivery, span):
        assert delivery.token == span.token
        assert delivery.base_offset == span.base_offset
        offsets = offsets_of(delivery.ranges)
        assert offsets
        assert span.base_offset <= offsets[0]
        assert offsets[-1] < span.end_offset
        assert delivery.messages == len(offsets)
        assert delivery.whole == (len(offsets) == span.end_offset - span.base_offset)
        messages, size = self.credit_of[delivery.consumer_id]
        assert messages > 0
        assert size > 0
        self.check_credit(delivery, messages, size)
        self.credit_of[delivery.consumer_id] = [messages - delivery.messages, size - delivery.size_bytes]
        for offset in offsets:
            assert offset not in self.acked
            assert offset not in self.flying
            assert self.waiting.get(offset, self.now) <= self.now
            assert (delivery.attempt > 1) == (offset in self.delivered)
            self.check_order(offset, delivery.consumer_id)
            self.waiting.pop(offset, None)
            self.delivered.add(offset)
            self.flying[offset] = (delivery.consumer_id, self.now + POLICY.ack_timeout_s)

    def check_credit(self, delivery, messages, size):
        assert delivery.messages <= messages
        assert delivery.size_bytes < size + RECORD_BYTES

    def check_order(self, offset, consumer_id):
        """Raise if this delivery breaks the order that the type promises."""

    def with_credit(self):
        return [consumer_id for consumer_id, (messages, size) in self.credit_of.items() if messages > 0 and size > 0]

    def nothing_is_stuck(self):
        """After a pump: whatever could be delivered was delivered."""
        if not self.receivers():
            return
        assert not [offset for offset, due in self.waiting.items() if due <= self.now]
        undelivered = set(range(self.end)) - self.acked - self.delivered
        if undelivered:
            assert self.machine.next_read(self.now) is None
            self.check_full()

    def receivers(self):
        return self.with_credit()

    def check_full(self):
        unacked = len(self.flying) + len(self.waiting)
        assert unacked
        ranges = self.machine.cursor.range_count
        assert unacked >= LIMITS.max_unacked_messages or ranges >= LIMITS.max_ack_ranges

    def check(self):
        cursor = self.machine.cursor
        assert all(cursor.is_acked(offset) == (offset in self.acked) for offset in range(self.end + 3))
        facts = self.machine.describe(self.end)
        assert facts.floor == cursor.floor
        assert facts.backlog_messages == len(set(range(self.end)) - self.acked)
        assert facts.in_flight_messages == len(self.flying)
        assert {c.consumer_id: c.in_flight_messages for c in facts.consumers} == {
            consumer_id: sum(owner == consumer_id for owner, _ in self.flying.values())
            for consumer_id in self.consumers
        }
        assert [c.consumer_id for c in facts.consumers] == list(self.consumers)
        assert {c.consumer_id: [c.credit_messages, c.credit_bytes] for c in facts.consumers} == self.credit_of
        assert self.machine.explain(self.now, self.end).sentence
        deadlines = [d for _, d in self.flying.values()] + [d for d in self.waiting.values() if d > self.now]
        promised = self.machine.next_deadline()
        if deadlines:
            assert promised is not None
            assert promised <= min(deadlines)

    def teardown(self):
        """Drain: with consumers, credit and time, everything gets delivered and acknowledged."""
        if not hasattr(self, "machine"):
            return
        self.check()
        if not self.consumers:
            self.join("ann")
        for _ in range(1000):
            for consumer_id in self.consumers:
                self.grant(consumer_id, 100, 10_000)
            self.pump()
            if self.flying:
                self.acknowledge(flat_of((offset, 1) for offset in self.flying))
            elif self.waiting:
                self.now = self.machine.next_deadline()
                self.machine.tick(self.now)
            elif self.machine.position >= self.end:
                break
        assert self.acked >= set(range(self.end))
        assert self.machine.cursor.floor >= self.end
        assert self.machine.explain(self.now, self.end).state == "caught-up"
        assert self.machine.next_deadline() is None
