"""Key-shared subscriptions against the model: what is promised for each key, through everything that may happen."""

from __future__ import annotations

from dispatch_models import LIMITS, Model
from hypothesis import settings
from hypothesis.stateful import invariant

from danube.dispatch.ring import ring_hash
from danube.model.policies import SubscriptionType


class KeyShared(Model):
    """Per key: in order, one owner at a time, acknowledged in order."""

    kind = SubscriptionType.KEY_SHARED

    def __init__(self):
        super().__init__()
        self.due = {}

    def line(self, key):
        """What is not acknowledged of a key."""
        return [offset for offset in range(self.end) if self.keys[offset] == key and offset not in self.acked]

    def check_order(self, offset, consumer_id):
        for other in self.line(self.keys[offset]):
            if other < offset:
                assert other in self.flying, "an earlier message of the key waits"
                assert self.flying[other][0] == consumer_id, "an earlier message of the key is elsewhere"
            elif other > offset:
                assert other not in self.flying, "a later message of the key is out already"

    def effect_of_ack(self, offsets):
        effective = []
        for offset in offsets:
            if offset in self.acked or offset >= self.end:
                continue
            key = self.keys[offset]
            line = [other for other in self.line(key) if other not in effective]
            if offset in self.flying or (line[0] == offset and offset in self.delivered):
                self.early.add(offset)
            effective += self.in_turn(key, effective)
        return effective

    def in_turn(self, key, effective):
        taken = []
        for offset in self.line(key):
            if offset not in effective:
                if offset not in self.early:
                    break
                taken.append(offset)
        return taken

    def settled(self, offsets):
        for offset in sorted(offsets):
            due = self.waiting.get(offset)
            line = [other for other in self.line(self.keys[offset]) if other in self.waiting]
            super().settled({offset})
            if due is not None and line[0] == offset:  # what failed is done after all: no delay for the others
                for other in line[1:]:
                    self.waiting[other] = min(self.waiting[other], self.now)

    def effect_of_discard(self, offsets):
        effective = sorted(offsets)
        for key in {self.keys[offset] for offset in offsets}:
            effective += self.in_turn(key, effective)
        return effective

    def fail(self, offsets, due):
        for offset in sorted(offsets):
            if offset not in self.flying:
                continue  # went with an earlier one of its key
            line = self.line(self.keys[offset])
            for other in line:
                if other >= offset:
                    if other in self.flying:
                        del self.flying[other]
                        self.early.discard(other)
                        self.waiting[other] = due
                    elif other in self.waiting:
                        self.waiting[other] = due

    def nothing_is_stuck(self):
        able = self.with_credit()
        for key in "abcd":
            line = self.line(key)
            sent = [offset for offset in line if offset in self.flying]
            waiting = [offset for offset in line if offset not in self.flying and offset < self.machine.position]
            if not waiting or self.waiting.get(waiting[0], self.now) > self.now:
                continue
            owner = self.machine._ring.owner(ring_hash(key))
            if owner is not None and owner.consumer_id in able:
                assert sent, f"{waiting[0]} of key {key} could be delivered"
                assert self.flying[sent[0]][0] != owner.consumer_id, f"{waiting[0]} of key {key} could be delivered"
        undelivered = {offset for offset in range(self.machine.position, self.end) if offset not in self.acked}
        if able and undelivered:
            assert self.machine.next_read(self.now) is None
            window = [offset for offset in range(self.machine.position) if offset not in self.acked]
            assert window
            full = len(window) >= LIMITS.max_unacked_messages
            assert full or self.machine.cursor.range_count >= LIMITS.max_ack_ranges

    @invariant()
    def agrees(self):
        if hasattr(self, "machine"):
            self.check()
            window = [offset for offset in range(self.machine.position) if offset not in self.acked]
            assert len(window) <= LIMITS.max_unacked_messages
            assert self.machine.describe(self.end).waiting_messages == len(window) - len(self.flying)


KeyShared.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestKeyShared = KeyShared.TestCase
