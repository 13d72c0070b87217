"""Key-shared subscriptions against the model: the guarantees for each key under random events."""

from __future__ import annotations

import re
import sys

from dispatch_models import NAMES, RECORD_BYTES, flat_of, offsets_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from key_model import KeyModel

from danube.dispatch import Cursor, Span, make_subscription
from danube.dispatch.ring import ring_hash
from danube.model.limits import Limits
from danube.model.policies import SubscriptionPolicy, SubscriptionType, Unmatched, change_policy

LIMITS = Limits(max_unacked_messages=14, max_ack_ranges=4, max_delayed_ranges=3)
POLICY = SubscriptionPolicy(ack_timeout_s=10.0, max_redelivery_count=1, max_redelivery_delay_s=4.0)
POLICIES = {
    "max_redelivery_count": [-1, 0, 1, 3],
    "ack_timeout_s": [0, 4, 10, 25],
    "backoff": ["fixed", "exponential"],
    "redelivery_delay_s": [0, 1.5, 6],
    "max_redelivery_delay_s": [0, 2, 60],
    "poison": ["block", "drop", "dead_letter"],
    "max_unacked_messages": [0, 3, 9],
    "unmatched": ["hold", "skip"],
}
KEYS = st.lists(st.sampled_from("aaabbc"), min_size=1, max_size=7)
DUE = st.sampled_from([0.0, 0.0, 0.0, 0.5, 5.0])
FILTERS = st.sampled_from([(), (), (), ("a",), ("?",), ("b*", "c"), ("*z",)])
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), min_size=1, max_size=3)
DELAYS = st.sampled_from([None, None, 0.0, 3.0, 8.0])


class KeyShared(RuleBasedStateMachine):
    """Drives the machine and the model through the same things."""

    @initialize(
        floor=st.integers(0, 3),
        holes=st.lists(st.tuples(st.integers(3, 20), st.integers(1, 3)), max_size=2),
        batches=st.lists(KEYS, min_size=2, max_size=5),
        consumers=st.lists(st.tuples(st.sampled_from([100, 100, 3, 0]), FILTERS), min_size=1, max_size=3),
        changes=st.fixed_dictionaries(
            {"poison": st.sampled_from(POLICIES["poison"]), "unmatched": st.sampled_from(POLICIES["unmatched"])}
        ),
        eager=st.sampled_from([True, True, False]),
    )
    def begin(self, floor, holes, batches, consumers, changes, eager):
        self.now = 0.0
        self.eager = eager  # pump after every step, as the broker does
        policy = change_policy(POLICY, changes)
        flat = flat_of(holes)
        cursor = Cursor(floor, ranges=zip(flat[::2], flat[1::2], strict=True))
        self.model = KeyModel(policy, set(range(floor)) | set(offsets_of(flat)))
        self.machine = make_subscription(SubscriptionType.KEY_SHARED, cursor, LIMITS, policy)
        self.position = cursor.next_live(floor)
        self.batches = []
        self.keys = []
        self.consumers = {}  # id -> (name, filters), in the order of joining
        self.credit_of = {}  # id -> [messages, bytes]
        self.suspended = set()
        self.hungry = {}  # id -> since when it has no credit for what waits for it
        self.next_id = 1
        for keys in batches:
            self.publish(keys, 0.0)
        for name, (messages, filters) in zip(NAMES, consumers, strict=False):
            self.join(name, filters)
            self.grant(self.next_id - 1, messages, RECORD_BYTES * messages)
        self.pump()

    @property
    def end(self):
        return len(self.keys)

    def matching(self, key):
        return [
            consumer_id
            for consumer_id, (_, filters) in self.consumers.items()
            if not filters or any(re.fullmatch(f.replace("*", ".*").replace("?", "."), key) for f in filters)
        ]

    def owner(self, key):
        """Whom the ring names, which is tested elsewhere; here only whether it may be that one."""
        member = self.machine._ring.owner(ring_hash(key.encode()), key.encode())
        matching = self.matching(key)
        able = set(matching) - self.suspended or set(matching)
        assert (member is None and not able) or member.consumer_id in able
        return member and member.consumer_id

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(keys=KEYS, delay=DUE)
    def publish_and_pump(self, keys, delay):
        self.publish(keys, delay)
        self.pump()

    @rule(keys=KEYS, delay=DUE)
    def publish(self, keys, delay):
        base = self.end
        self.keys += keys
        due = self.now + delay if delay else 0.0
        names = [key.encode() for key in keys]
        self.batches.append(Span(base, self.end, RECORD_BYTES * len(keys), ("batch", base), names, due))

    @rule(name=st.sampled_from(NAMES), filters=FILTERS)
    def join(self, name, filters):
        consumer_id, self.next_id = self.next_id, self.next_id + 1
        old = next((other for other, (known, _) in self.consumers.items() if known == name), None)
        assert self.machine.join(consumer_id, name, self.now, filters) == old
        if old is None:
            self.consumers[consumer_id] = name, filters
        else:
            self.consumers = {
                (consumer_id if c == old else c): ((name, filters) if c == old else known)
                for c, known in self.consumers.items()
            }
            self.gone(old)
        self.credit_of[consumer_id] = [0, 0]
        self.skip_unmatched()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data):
        consumer_id = data.draw(st.sampled_from(list(self.consumers)))
        self.machine.leave(consumer_id, self.now)
        del self.consumers[consumer_id]
        self.gone(consumer_id)
        self.skip_unmatched()

    def gone(self, consumer_id):
        del self.credit_of[consumer_id]
        self.suspended.discard(consumer_id)
        self.hungry.pop(consumer_id, None)
        self.model.lose(consumer_id)

    def skip_unmatched(self):
        if self.consumers and self.model.policy.unmatched is Unmatched.SKIP:
            for key, line in self.model.lines.items():
                if not self.matching(key):
                    for offset in list(line):
                        self.model.settled_itself |= self.model.settle(offset)

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
        balance = self.credit_of[consumer_id]
        balance[0] += messages
        balance[1] += size
        if (messages or size) and consumer_id in self.suspended:
            self.suspended.remove(consumer_id)
            self.hungry.pop(consumer_id, None)
        if min(balance) > 0:
            self.hungry.pop(consumer_id, None)

    def heard(self, consumer_id):
        if consumer_id not in self.hungry:
            self.suspended.discard(consumer_id)

    def any_consumer(self, data):
        return data.draw(st.sampled_from([None, *self.consumers]))

    @rule(data=st.data(), pairs=RANGES, what=st.sampled_from(["ack", "nack", "discard"]))
    def anything(self, data, pairs, what):
        """Ranges out of the blue: delivered or not, known or not."""
        if what == "ack":
            self.acknowledge(flat_of(pairs), self.any_consumer(data))
        elif what == "nack":
            self.refuse(self.any_consumer(data), flat_of(pairs), 0.0)
        else:
            self.settle(flat_of((start, size) for start, size in pairs if start + size <= self.end))

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data())
    def ack_in_flight(self, data):
        offset = data.draw(st.sampled_from(sorted(self.model.flying)))
        self.acknowledge([offset, offset + 1], self.model.flying[offset][0])

    @precondition(lambda self: len(self.model.flying) > 1)
    @rule(data=st.data())
    def ack_early(self, data):
        behind = [line[-1] for line in self.model.lines.values() if line]
        offset = data.draw(st.sampled_from([o for o in behind if o in self.model.flying] or [0]))
        self.acknowledge([offset, offset + 1], None)

    @precondition(lambda self: self.model.attempts)
    @rule(data=st.data())
    def ack_late(self, data):
        offset = data.draw(st.sampled_from(sorted(self.model.attempts)))
        self.acknowledge([offset, offset + 1], self.any_consumer(data))

    def acknowledge(self, flat, consumer_id):
        expected = set()
        new = self.machine.ack(flat, consumer_id, self.now)
        for offset in offsets_of(flat):
            expected |= self.model.ack(offset)
        assert set(offsets_of(new)) == expected
        self.heard(consumer_id)

    @precondition(lambda self: self.model.flying)
    @rule(data=st.data(), size=st.integers(1, 3), delay=DELAYS)
    def nack_in_flight(self, data, size, delay):
        offset = data.draw(st.sampled_from(sorted(self.model.flying)))
        self.refuse(self.model.flying[offset][0], [offset, offset + size], delay)

    def refuse(self, consumer_id, flat, delay):
        self.machine.nack(consumer_id, flat, delay, self.now, "no")
        for offset in offsets_of(flat):
            flight = self.model.flying.get(offset)
            if flight and consumer_id in (None, flight[0]) and offset not in self.model.remembered:
                self.model.fail(offset, delay, self.now)
        self.heard(consumer_id)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), pairs=RANGES, lease=st.sampled_from([1.0, 6.0, 30.0]))
    def extend(self, data, pairs, lease):
        consumer_id = data.draw(st.sampled_from(list(self.consumers)))
        self.machine.extend(consumer_id, flat_of(pairs), lease, self.now)
        self.model.extend(consumer_id, offsets_of(flat_of(pairs)), self.now + lease)
        self.heard(consumer_id)

    @rule(data=st.data())
    def change(self, data):
        name = data.draw(st.sampled_from(sorted(POLICIES)))
        policy = change_policy(self.model.policy, {name: data.draw(st.sampled_from(POLICIES[name]))})
        changed = policy != self.model.policy
        self.machine.change_policy(policy, self.now)
        if changed:
            self.model.change_policy(policy, self.now)
            self.skip_unmatched()
            self.time_out()

    @precondition(lambda self: self.model.aside)
    @rule(limit=st.integers(1, 5))
    def copy_dead_letters(self, limit):
        poisoned = self.machine.poisoned(limit)
        assert 1 <= len(poisoned) <= limit
        found = []
        for item in poisoned:
            assert item.reason in ("no", "ack timeout")
            for offset in range(item.start, item.end):
                assert item.failures == self.model.failures[offset][0]
                assert item.attempt == self.model.attempts[offset] - 1
                found.append(offset)
        assert found == sorted(self.model.aside)[: len(found)]
        self.settle(flat_of((offset, 1) for offset in found))

    def settle(self, flat):
        expected = set()
        new = self.machine.discard(flat, self.now)
        for offset in offsets_of(flat):
            if offset not in self.model.acked:
                expected |= self.model.settle(offset)
        assert set(offsets_of(new)) == expected
        self.position = self.machine.cursor.next_live(self.position)

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0, 11.0]))
    def wait(self, seconds):
        self.now += seconds
        self.machine.tick(self.now)
        self.time_out()

    @rule(seconds=st.sampled_from([3.0, 12.0]), patience=st.sampled_from([0.5, 6.0]))
    def wake_up_after_a_pause(self, seconds, patience):
        """The owner did not run, so it heard no acknowledgements."""
        self.now += seconds
        self.machine.postpone(self.now + patience)
        self.model.postpone(self.now + patience)
        self.machine.tick(self.now)
        self.time_out()

    @precondition(lambda self: (self.machine.next_deadline() or 0.0) > self.now)
    @rule()
    def wait_for_the_deadline(self):
        self.now = max(self.now, self.machine.next_deadline())
        self.machine.tick(self.now)
        self.time_out()

    def time_out(self):
        """What a tick does."""
        self.suspended |= self.model.time_out(self.now)
        timeout = self.model.policy.ack_timeout_s
        if timeout:
            self.suspended |= {starved for starved, since in self.hungry.items() if since + timeout <= self.now}
        self.model.let_due(self.now)
        again = self.machine.next_deadline()
        assert again is None or again > self.now, "a tick leaves nothing behind that is due"

    @precondition(lambda self: self.end > 30)  # a seek forgets everything; let something interesting build up
    @rule(offset=st.integers(0, 30))
    def seek(self, offset):
        self.machine.seek(offset, self.now)
        self.model.forget()
        self.model.acked = set(range(offset))
        self.position = offset

    # --- what must follow --------------------------------------------------------------------------------------------

    def ask(self):
        """What next_read takes note of."""
        self.model.let_due(self.now)
        waits = {self.owner(key) for key, _, holder in self.model.first_waiting(self.now) if self.may_go(key, holder)}
        for consumer_id in self.consumers:
            if min(self.credit_of[consumer_id]) <= 0:
                if consumer_id in waits:
                    self.hungry.setdefault(consumer_id, self.now)
                elif consumer_id not in self.suspended:
                    self.hungry.pop(consumer_id, None)
        return self.machine.next_read(self.now)

    def may_go(self, key, holder):
        owner = self.owner(key)
        return owner is not None and holder in (None, owner)

    @precondition(lambda self: not self.eager)
    @rule()
    def pump_now(self):
        self.pump()

    def pump(self):
        for _ in range(500):
            request = self.ask()
            if request is None or request.offset >= self.end:
                break
            span = next(span for span in self.batches if span.base_offset <= request.offset < span.end_offset)
            before = self.machine.position, len(self.model.returned)
            delivered = self.offer(span)
            assert delivered or before != (self.machine.position, len(self.model.returned)), "something moves"
        else:
            raise AssertionError("the pump never comes to rest")
        self.nothing_is_stuck()

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def offer_unasked(self, data):
        self.offer(data.draw(st.sampled_from(self.batches)))

    def offer(self, span):
        model = self.model
        model.let_due(self.now)
        full = self.full()  # taken before: what follows adds to it only as the machine does
        deliveries = self.machine.offered(span, self.now)
        while model.returned and span.base_offset <= model.returned[0] < span.end_offset and not self.window_full():
            self.arrive(model.returned.pop(0))
        full = full or self.window_full()
        if span.base_offset <= self.position < span.end_offset and not full:
            for offset in range(self.position, span.end_offset):
                if offset not in model.acked:
                    if span.due > self.now:
                        model.delayed[offset] = span.due
                    elif self.window_full():
                        break
                    else:
                        self.arrive(offset)
                self.position = offset + 1
        while self.position in model.acked:
            self.position += 1
        assert self.position == self.machine.position
        for delivery in deliveries:
            self.receive(delivery, span)
        return deliveries

    def arrive(self, offset):
        key = self.keys[offset]
        if self.consumers and self.model.policy.unmatched is Unmatched.SKIP and not self.matching(key):
            self.model.settled_itself |= self.model.settle(offset)
        else:
            self.model.arrive(offset, key)

    def window_full(self):
        return self.model.window() >= (self.model.policy.max_unacked_messages or LIMITS.max_unacked_messages)

    def full(self):
        outstanding = self.model.delayed or self.model.returned
        if not self.model.window() and not outstanding:
            return False
        cursor = self.machine.cursor
        ranges = cursor.range_count - len(self.machine._delayed) >= LIMITS.max_ack_ranges
        return (
            self.window_full()
            or (ranges and (self.model.window() > 0 or self.position >= cursor.end))
            or len(self.machine._delayed) >= LIMITS.max_delayed_ranges
        )

    def receive(self, delivery, span):
        assert (delivery.token, delivery.base_offset) == (span.token, span.base_offset)
        offsets = offsets_of(delivery.ranges)
        assert span.base_offset <= offsets[0] <= offsets[-1] < span.end_offset
        assert delivery.messages == len(offsets)
        assert delivery.whole == (len(offsets) == span.end_offset - span.base_offset)
        messages, size = self.credit_of[delivery.consumer_id]
        assert messages >= delivery.messages
        assert size > 0
        assert delivery.size_bytes < size + RECORD_BYTES
        self.credit_of[delivery.consumer_id] = [messages - delivery.messages, size - delivery.size_bytes]
        model = self.model
        for offset in offsets:
            line = model.line(offset)
            index = model.sent(line)
            assert line[index] == offset, "the first that waits, and never what blocks, is acknowledged or set aside"
            assert model.due.get(offset, 0.0) <= self.now
            assert span.due <= self.now
            assert delivery.attempt == model.attempts.get(offset, 1)
            assert delivery.consumer_id in self.matching(self.keys[offset])
            holders = {model.flying[other][0] for other in line if other in model.flying}
            assert holders <= {delivery.consumer_id}, "never two consumers with messages of one key"
            model.deliver(offset, delivery.consumer_id, self.now)

    def nothing_is_stuck(self):
        """After a pump: whatever could be delivered was delivered."""
        able = [consumer_id for consumer_id, balance in self.credit_of.items() if min(balance) > 0]
        for key, offset, holder in self.model.first_waiting(self.now):
            assert not (self.may_go(key, holder) and self.owner(key) in able), f"{offset} could be delivered"
        if able and self.model.returned:
            assert self.window_full()
        elif able and self.position < self.end:
            assert self.full()
            assert self.model.window() or self.model.delayed

    @invariant()
    def agrees(self):
        if not hasattr(self, "machine"):
            return
        if self.eager:
            self.pump()
        model, cursor = self.model, self.machine.cursor
        assert set(offsets_of(self.machine.take_settled())) == model.settled_itself
        model.settled_itself.clear()
        assert not self.machine.settled_itself
        assert all(cursor.is_acked(offset) == (offset in model.acked) for offset in range(self.end + 3))
        assert self.machine.position == self.position
        window = sorted([*model.aside, *[offset for line in model.lines.values() for offset in line]])
        places = [*window, *model.delayed, *model.returned]
        assert sorted(places) == [o for o in range(self.position) if o not in model.acked], "each in exactly one place"
        facts = self.machine.describe(self.end)
        assert facts.in_flight_messages == len(model.flying)
        assert facts.waiting_messages == len(window) - len(model.flying) - len(model.aside)
        blocking = {offset for offset, due in model.due.items() if due == float("inf")}
        fronts = {key: line[model.sent(line)] for key, line in model.lines.items() if model.sent(line) < len(line)}
        assert self.machine.goes_on() == any(
            offset not in blocking and self.matching(key) for key, offset in fronts.items()
        )
        assert facts.poisoned_messages == len(model.aside | blocking)
        assert facts.delayed_messages == len(model.delayed)
        assert facts.dropped_messages == model.dropped
        assert [c.consumer_id for c in facts.consumers] == list(self.consumers)
        for consumer in facts.consumers:
            mine = [offset for offset, flight in model.flying.items() if flight[0] == consumer.consumer_id]
            assert consumer.in_flight_messages == len(mine)
            assert [consumer.credit_messages, consumer.credit_bytes] == self.credit_of[consumer.consumer_id]
            assert consumer.suspended == (consumer.consumer_id in self.suspended)
            assert consumer.key_filters == self.consumers[consumer.consumer_id][1]
        assert bool(self.machine.poisoned(1)) == bool(model.aside)
        self.ask()
        explanation = self.machine.explain(self.now, self.end)
        assert explanation.sentence
        if explanation.state == "no-matching-consumer":
            assert [key for key, line in model.lines.items() if line and not self.matching(key)]
        deadlines = model.deadlines(self.now)
        timeout = model.policy.ack_timeout_s
        if timeout:
            deadlines += [since + timeout for c, since in self.hungry.items() if c not in self.suspended]
        promised = self.machine.next_deadline()
        if deadlines:
            assert promised is not None
            assert promised <= min(deadlines), "no wake-up is lost"

    def teardown(self):
        """Drain: with a consumer for all keys, credit, time and no poison, everything is delivered and acknowledged."""
        if not hasattr(self, "machine") or sys.exc_info()[0] is not None:
            return  # it has failed already: let that be told
        policy = change_policy(self.model.policy, {"max_redelivery_count": -1, "unmatched": "hold"})
        if policy != self.model.policy:
            self.machine.change_policy(policy, self.now)
            self.model.change_policy(policy, self.now)
            self.time_out()
        self.join("ann", ())
        for _ in range(1000):
            for consumer_id in self.consumers:
                self.grant(consumer_id, 100, 10_000)
            self.pump()
            if self.model.flying:
                self.acknowledge(flat_of((offset, 1) for offset in self.model.flying), None)
            elif self.machine.next_deadline() is not None:
                self.wait_for_the_deadline()
            elif self.machine.position >= self.end:
                break
            self.agrees()
        assert self.model.acked >= set(range(self.end))
        assert self.machine.cursor.floor >= self.end
        assert self.machine.explain(self.now, self.end).state == "caught-up"
        assert self.machine.next_deadline() is None


KeyShared.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestKeyShared = KeyShared.TestCase
