"""Exclusive, failover and shared against the model, through everything that may happen to a subscription."""

from __future__ import annotations

from dispatch_models import NAMES, RECORD_BYTES, flat_of, offsets_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ranged_model import RangedModel

from danube.dispatch import Cursor, Span, make_subscription
from danube.model.limits import Limits
from danube.model.policies import PoisonPolicy, SubscriptionPolicy, SubscriptionType, change_policy

LIMITS = Limits(max_unacked_messages=14, max_ack_ranges=4, max_delayed_ranges=3)
POLICY = SubscriptionPolicy(ack_timeout_s=5.0, max_redelivery_count=1, max_redelivery_delay_s=4.0)
POLICIES = {
    "max_redelivery_count": [-1, 0, 0, 1, 3],
    "ack_timeout_s": [0, 3, 5, 12],
    "backoff": ["fixed", "exponential"],
    "redelivery_delay_s": [0, 1.5, 6],
    "max_redelivery_delay_s": [0, 2, 60],
    "poison": ["block", "drop", "dead_letter"],
    "max_unacked_messages": [0, 3, 9],
    "unmatched": ["skip"],
}
SIZES = st.integers(1, 7)
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), min_size=1, max_size=3)
DELAYS = st.sampled_from([None, None, 0.0, 3.0, 8.0])


class Driver(RuleBasedStateMachine):
    """Rules for all types. A subclass says which type, and what its order means."""

    kind: SubscriptionType

    @initialize(
        floor=st.integers(0, 3),
        holes=st.lists(st.tuples(st.integers(3, 20), st.integers(1, 3)), max_size=2),
        sizes=st.lists(SIZES, min_size=1, max_size=4),
        credit=st.lists(st.sampled_from([0, 3, 100, 100, 100]), min_size=1, max_size=3),
        poison=st.sampled_from(list(PoisonPolicy)),
    )
    def begin(self, floor, holes, sizes, credit, poison):
        self.now = 0.0
        flat = flat_of(holes)
        cursor = Cursor(floor, ranges=zip(flat[::2], flat[1::2], strict=True))
        policy = change_policy(POLICY, {"poison": poison})
        self.model = RangedModel(policy, [*range(floor), *offsets_of(flat)])
        self.machine = make_subscription(self.kind, cursor, LIMITS, policy)
        self.batches = []
        self.end = 0
        self.consumers = {}  # id -> name, in the order of joining
        self.credit_of = {}  # id -> [messages, bytes]
        self.suspended = set()
        self.active = None
        self.next_id = 1
        for size in sizes:
            self.publish(size, 0.0)
        for name, messages in zip(NAMES, credit, strict=False):
            if self.may_join(name):
                self.join(name)
                self.grant(self.next_id - 1, messages, RECORD_BYTES * messages)
        self.pump()

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(size=SIZES, delay=st.sampled_from([0.0, 0.0, 2.0, 7.0, 7.0]))
    def publish_and_pump(self, size, delay):
        self.publish(size, delay)
        self.pump()

    @rule(size=SIZES, delay=st.sampled_from([0.0, 0.0, 5.0]))
    def publish(self, size, delay):
        base, self.end = self.end, self.end + size
        due = self.now + delay if delay else 0.0
        self.batches.append(Span(base, self.end, RECORD_BYTES * size, ("batch", base), None, due))

    def may_join(self, name):
        return True

    @rule(name=st.sampled_from(NAMES))
    def join(self, name):
        if not self.may_join(name):
            return
        consumer_id, self.next_id = self.next_id, self.next_id + 1
        old = next((other for other, known in self.consumers.items() if known == name), None)
        assert self.machine.join(consumer_id, name, self.now) == old
        self.credit_of[consumer_id] = [0, 0]
        if old is None:
            self.consumers[consumer_id] = name
        else:
            self.consumers = {consumer_id if c == old else c: n for c, n in self.consumers.items()}
            if self.active == old:
                self.active = consumer_id
            self.gone(old)
        self.choose()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data):
        consumer_id = data.draw(st.sampled_from(list(self.consumers)))
        self.machine.leave(consumer_id, self.now)
        del self.consumers[consumer_id]
        self.gone(consumer_id)
        self.choose()

    def gone(self, consumer_id):
        del self.credit_of[consumer_id]
        self.suspended.discard(consumer_id)
        self.model.consumer_lost(consumer_id, self.now)

    def choose(self):
        """Find the active consumer, where the type has one."""

    def heard(self, consumer_id):
        if consumer_id in self.suspended:
            self.suspended.remove(consumer_id)
            self.choose()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), messages=st.sampled_from([0, 1, 2, 9, 50]), size=st.sampled_from([0, 15, 90, 500]))
    def credit(self, data, messages, size):
        self.grant(data.draw(st.sampled_from(list(self.consumers))), messages, size)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def withdraw(self, data):
        consumer_id = data.draw(st.sampled_from(list(self.consumers)))
        balance = self.credit_of[consumer_id]
        had = max(0, balance[0]), max(0, balance[1])
        assert self.machine.withdraw(consumer_id) == had
        balance[0] -= had[0]
        balance[1] -= had[1]

    def grant(self, consumer_id, messages, size):
        self.machine.credit(consumer_id, messages, size)
        self.credit_of[consumer_id][0] += messages
        self.credit_of[consumer_id][1] += size
        if messages or size:
            self.heard(consumer_id)

    def any_consumer(self, data):
        return data.draw(st.sampled_from([None, *self.consumers]))

    @rule(data=st.data(), pairs=RANGES)
    def ack(self, data, pairs):
        self.acknowledge(flat_of(pairs), self.any_consumer(data))

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data())
    def ack_in_flight(self, data):
        offset = data.draw(st.sampled_from(sorted(self.model.flying)))
        self.acknowledge([offset, offset + data.draw(st.integers(1, 3))], self.any_consumer(data))

    @precondition(lambda self: self.model.waiting or self.model.aside)
    @rule(data=st.data())
    def ack_late(self, data):
        offset = data.draw(st.sampled_from(sorted([*self.model.waiting, *self.model.aside])))
        self.acknowledge([offset, offset + 1], self.any_consumer(data))

    def acknowledge(self, flat, consumer_id=None):
        self.acked(offsets_of(flat), self.machine.ack(flat, consumer_id, self.now), consumer_id)

    def acked(self, offsets, new, consumer_id):
        expected = self.model.acknowledged_by(offsets)
        assert set(offsets_of(new)) == expected
        self.model.settle(expected)
        self.heard(consumer_id)

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data(), size=st.integers(1, 3), delay=DELAYS)
    def nack_in_flight(self, data, size, delay):
        offset = data.draw(st.sampled_from(sorted(self.model.flying)))
        self.refuse(self.model.flying[offset][0], [offset, offset + size], delay)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), pairs=RANGES)
    def nack_anything(self, data, pairs):
        self.refuse(data.draw(st.sampled_from(list(self.consumers))), flat_of(pairs), 0.0)

    def refuse(self, consumer_id, flat, delay):
        self.machine.nack(consumer_id, flat, delay, self.now, "no")
        for offset in offsets_of(flat):
            if offset in self.model.flying and self.model.flying[offset][0] == consumer_id:
                self.model.fail(offset, delay, self.now)
        self.heard(consumer_id)

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data(), size=st.integers(1, 5), lease=st.sampled_from([6.0, 30.0]))
    def extend_in_flight(self, data, size, lease):
        offset = data.draw(st.sampled_from(sorted(self.model.flying)))
        self.renew(self.model.flying[offset][0], [(offset, size)], lease)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), pairs=RANGES, lease=st.sampled_from([1.0, 30.0]))
    def extend_anything(self, data, pairs, lease):
        self.renew(data.draw(st.sampled_from(list(self.consumers))), pairs, lease)

    def renew(self, consumer_id, pairs, lease):
        self.machine.extend(consumer_id, flat_of(pairs), lease, self.now)
        self.model.extend(consumer_id, offsets_of(flat_of(pairs)), self.now + lease)
        self.heard(consumer_id)

    @rule(data=st.data())
    def change(self, data):
        name = data.draw(st.sampled_from([*POLICIES, "poison", "poison", "max_redelivery_count"]))
        policy = change_policy(self.model.policy, {name: data.draw(st.sampled_from(POLICIES[name]))})
        self.machine.change_policy(policy, self.now)
        self.model.change_policy(policy, self.now)
        self.time_out()

    @rule(data=st.data(), size=st.integers(1, 3))
    def discard(self, data, size):
        start = data.draw(st.integers(min(self.machine.cursor.floor, self.end), self.end))
        if start < self.end:
            self.settle([start, min(start + size, self.end)])

    @precondition(lambda self: self.model.aside)
    @rule(limit=st.integers(1, 5))
    def copy_dead_letters(self, limit):
        """The owner has copied what the machine has set aside."""
        poisoned = self.machine.poisoned(limit)
        if self.model.policy.poison is not PoisonPolicy.DEAD_LETTER:
            assert not poisoned
            return
        assert 1 <= len(poisoned) <= limit
        found = []
        for item in poisoned:
            assert item.reason in ("no", "ack timeout")
            for offset in range(item.start, item.end):
                assert item.failures == self.model.failures[offset]
                assert item.attempt == self.model.attempts[offset] - 1
                found.append(offset)
        assert found == sorted(self.model.aside)[: len(found)]
        self.settle(flat_of((offset, 1) for offset in found))

    def settle(self, flat):
        expected = set(offsets_of(flat)) - self.model.acked
        assert set(offsets_of(self.machine.discard(flat, self.now))) == expected
        self.model.settle(expected)

    @rule(seconds=st.sampled_from([0.5, 2.0, 3.0, 6.0]))
    def wait(self, seconds):
        self.pass_until(self.now + seconds)

    @rule(seconds=st.sampled_from([0.5, 2.0, 3.0]))
    def wait_and_pump(self, seconds):
        self.pass_until(self.now + seconds)
        self.pump()

    @precondition(lambda self: self.machine.next_deadline() is not None)
    @rule(times=st.integers(1, 3))
    def wait_for_deadlines(self, times):
        """The calls of an owner without events."""
        for _ in range(times):
            deadline = self.machine.next_deadline()
            if deadline is not None:
                self.pass_until(max(self.now, deadline))
                self.pump()

    @rule(size=SIZES, seconds=st.sampled_from([0.5, 2.0]))
    def stall(self, size, seconds):
        """Two batches, some time apart, without acknowledgements until the first one times out."""
        self.publish_and_pump(size, 0.0)
        self.pass_until(self.now + seconds)
        self.publish_and_pump(1, 0.0)
        self.wait_for_deadlines(1)

    @rule(seconds=st.sampled_from([3.0, 12.0]), patience=st.sampled_from([0.5, 6.0]))
    def wake_up_after_a_pause(self, seconds, patience):
        """The owner did not run, so it heard no acknowledgements."""
        self.now += seconds
        self.machine.postpone(self.now + patience)
        self.model.postpone(self.now + patience)
        self.pass_until(self.now)

    def pass_until(self, now):
        self.now = now
        self.machine.tick(now)
        self.time_out()

    def time_out(self):
        if self.kind is SubscriptionType.FAILOVER:
            self.suspended |= self.model.time_out(self.now)
            self.choose()
        else:
            self.model.time_out(self.now)
        self.model.let_due(self.now)

    @rule(offset=st.integers(0, 60), sure=st.integers(0, 5))
    def seek(self, offset, sure):
        if sure != 3:
            return  # a seek forgets everything; too many of them and nothing interesting ever builds up
        offset = min(offset, self.end)
        self.machine.seek(offset, self.now)
        self.model.forget()
        self.model.acked = set(range(offset))

    # --- what must follow --------------------------------------------------------------------------------------------

    @rule()
    def pump(self):
        for _ in range(500):
            request = self.machine.next_read(self.now)
            if request is None or request.offset >= self.end:
                break
            span = next(span for span in self.batches if span.base_offset <= request.offset < span.end_offset)
            before = self.machine.position
            delivered = self.offer(span)
            assert delivered or self.machine.position > before, "an answered request moves something"
        else:
            raise AssertionError("the pump never comes to rest")
        self.nothing_is_stuck()

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def offer_unasked(self, data):
        self.offer(data.draw(st.sampled_from(self.batches)))

    def offer(self, span):
        before = self.machine.position
        deliveries = self.machine.offered(span, self.now)
        for delivery in deliveries:
            self.receive(delivery, span)
        for offset in range(before, self.machine.position):
            if offset not in self.model.acked and offset not in self.model.delivered:
                assert span.due > self.now, f"{offset} was passed over"
                self.model.delayed[offset] = span.due
        return deliveries

    def receive(self, delivery, span):
        assert not self.model.blocked
        assert (delivery.token, delivery.base_offset) == (span.token, span.base_offset)
        offsets = offsets_of(delivery.ranges)
        assert span.base_offset <= offsets[0] <= offsets[-1] < span.end_offset
        assert delivery.messages == len(offsets)
        assert delivery.whole == (len(offsets) == span.end_offset - span.base_offset)
        messages, size = self.credit_of[delivery.consumer_id]
        assert messages > 0
        assert size > 0
        self.check_credit(delivery, messages, size)
        self.credit_of[delivery.consumer_id] = [messages - delivery.messages, size - delivery.size_bytes]
        for offset in offsets:
            assert delivery.attempt == self.model.attempts.get(offset, 1)
            assert offset not in self.model.acked
            assert offset not in self.model.flying
            assert offset not in self.model.aside
            assert offset not in self.model.delayed
            if offset in self.model.waiting:
                assert self.model.waiting[offset] <= self.now
            else:
                assert span.due <= self.now, "not before its time"
                self.check_window(offset, span)
            self.check_order(offset, delivery.consumer_id)
            self.model.deliver(offset, delivery.consumer_id, self.now)

    def window(self):
        return self.model.policy.max_unacked_messages or LIMITS.max_unacked_messages

    def check_window(self, offset, span):
        assert self.model.unacked() < self.window()

    def check_credit(self, delivery, messages, size):
        assert delivery.messages <= messages
        assert delivery.size_bytes < size + RECORD_BYTES

    def check_order(self, offset, consumer_id):
        """Raise if this delivery breaks the order that the type promises."""

    def with_credit(self):
        return [consumer_id for consumer_id, (messages, size) in self.credit_of.items() if messages > 0 and size > 0]

    def receivers(self):
        return self.with_credit()

    def nothing_is_stuck(self):
        """After a pump: whatever could be delivered was delivered."""
        if self.model.blocked:
            assert self.machine.next_read(self.now) is None
        elif self.receivers():
            assert not self.model.ready(self.now)
            if self.undelivered():
                assert self.machine.next_read(self.now) is None
                full = self.model.unacked() >= self.window()
                delayed = len(self.machine._delayed)  # each of them has made a hole
                full |= self.machine.cursor.range_count - delayed >= LIMITS.max_ack_ranges
                full |= len({self.batch_of(offset) for offset in self.model.delayed}) >= LIMITS.max_delayed_ranges
                # What was discarded before it was due may count until then.
                assert full or len(self.machine._delayed) >= LIMITS.max_delayed_ranges
                assert self.model.unacked() or self.model.delayed

    def batch_of(self, offset):
        return next(span.base_offset for span in self.batches if span.base_offset <= offset < span.end_offset)

    def undelivered(self):
        return set(range(self.end)) - self.model.acked - self.model.delivered - {*self.model.delayed}

    @invariant()
    def agrees(self):
        if hasattr(self, "machine"):
            self.check()

    def check(self):
        model, cursor = self.model, self.machine.cursor
        settled = self.machine.take_settled()
        assert set(offsets_of(settled)) == model.settled_itself
        model.settled_itself.clear()
        assert not self.machine.settled_itself
        assert all(cursor.is_acked(offset) == (offset in model.acked) for offset in range(self.end + 3))
        facts = self.machine.describe(self.end)
        assert facts.floor == cursor.floor
        assert facts.backlog_messages == len(set(range(self.end)) - model.acked)
        assert facts.in_flight_messages == len(model.flying)
        assert facts.waiting_messages == len(model.waiting)
        assert facts.poisoned_messages == len(model.aside)
        assert facts.delayed_messages == len(model.delayed)
        assert facts.dropped_messages == len(model.dropped)
        assert self.machine._unacked == model.unacked()
        assert [c.consumer_id for c in facts.consumers] == list(self.consumers)
        for consumer in facts.consumers:
            mine = [offset for offset, flight in model.flying.items() if flight[0] == consumer.consumer_id]
            assert consumer.in_flight_messages == len(mine)
            assert [consumer.credit_messages, consumer.credit_bytes] == self.credit_of[consumer.consumer_id]
            assert consumer.suspended == (consumer.consumer_id in self.suspended)
        assert self.machine.active == self.active
        explanation = self.machine.explain(self.now, self.end)
        assert explanation.sentence
        if self.consumers:
            assert (explanation.state == "blocked") == model.blocked
        deadlines = model.deadlines(self.now)
        promised = self.machine.next_deadline()
        if deadlines:
            assert promised is not None
            assert promised <= deadlines[0]
        else:
            assert promised is None or promised <= self.now

    def teardown(self):
        """Drain: with consumers, credit, time and no poison, everything gets delivered and acknowledged."""
        if not hasattr(self, "machine"):
            return
        self.check()
        policy = change_policy(self.model.policy, {"max_redelivery_count": -1})
        self.machine.change_policy(policy, self.now)
        self.model.change_policy(policy, self.now)
        self.time_out()
        if not self.consumers:
            self.join("ann")
        for _ in range(1000):
            for consumer_id in self.consumers:
                self.grant(consumer_id, 100, 10_000)
            self.pump()
            if self.model.flying:
                self.acknowledge(flat_of((offset, 1) for offset in self.model.flying))
            elif self.machine.next_deadline() is not None:
                self.wait_for_deadlines(1)
            elif self.machine.position >= self.end:
                break
        assert self.model.acked >= set(range(self.end))
        assert self.machine.cursor.floor >= self.end
        assert self.machine.explain(self.now, self.end).state == "caught-up"
        assert self.machine.next_deadline() is None


class OneReceiver(Driver):
    """Exclusive and failover: in order, whole batches."""

    def choose(self):
        if self.active in self.consumers and self.active not in self.suspended:
            return
        able = [consumer_id for consumer_id in self.consumers if consumer_id not in self.suspended]
        if not able and self.active in self.consumers:
            return
        before, self.active = self.active, next(iter([*able, *self.consumers]), None)
        self.model.consumer_lost(before, self.now)

    @rule(offset=st.integers(0, 60), data=st.data())
    def ack_cumulative(self, offset, data):
        consumer_id = self.any_consumer(data)
        new = self.machine.ack_cumulative(offset, consumer_id, self.now)
        self.acked(list(range(offset + 1)), new, consumer_id)

    def receivers(self):
        return [self.active] if self.active in self.with_credit() else []

    def window(self):
        return self.model.policy.max_unacked_messages or 10**9

    def check_window(self, offset, span):
        older = {other for other in self.model.flying if other < span.base_offset or other >= offset}
        older |= {*self.model.waiting, *self.model.aside}
        assert len(older) < self.window(), "a whole batch only while there is room"

    def check_credit(self, delivery, messages, size):
        """A batch is delivered whole while there is any credit."""

    def check_order(self, offset, consumer_id):
        assert consumer_id == self.active
        ready = self.model.ready(self.now)
        if offset in self.model.waiting:
            assert offset == ready[0]
        else:
            assert not ready
            assert offset == min(self.undelivered())


class Exclusive(OneReceiver):
    kind = SubscriptionType.EXCLUSIVE

    def may_join(self, name):
        return not self.consumers or name in self.consumers.values()


class Failover(OneReceiver):
    kind = SubscriptionType.FAILOVER


class Shared(Driver):
    kind = SubscriptionType.SHARED


for _case in (Exclusive, Failover, Shared):
    _case.TestCase.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)

TestExclusive = Exclusive.TestCase
TestFailover = Failover.TestCase
TestShared = Shared.TestCase
