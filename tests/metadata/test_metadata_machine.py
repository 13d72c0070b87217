"""The machine over both tables, step by step against a model of dicts: values, revisions, leases, history."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from danube.metadata import (
    Condition,
    Delete,
    DeleteEvent,
    EventBatch,
    KeyValue,
    Put,
    PutEvent,
    covers,
)
from danube.metadata._machine import StoreMachine
from danube.metadata._memory_table import MemoryTable
from danube.metadata._sqlite import SqliteTable
from danube.model.errors import MetadataConflictError, NotFoundError, WatchCompactedError
from danube.model.limits import Limits

LIMITS = Limits(metadata_history_revisions=12, metadata_history_bytes=400)
KEYS = ["/a", "/a/b", "/a/b/c", "/ab", "/a0", "/b"]
PREFIXES = ["/", "/a", "/a/", "/a/b", "/b", "/c"]
keys = st.sampled_from(KEYS)
values = st.binary(max_size=30)
slots = st.integers(0, 3)


class MachineModel(RuleBasedStateMachine):
    """``items``, ``history`` and ``leases`` are what the machine should hold."""

    def __init__(self):
        super().__init__()
        self.items: dict[str, KeyValue] = {}
        self.history: list[EventBatch] = []  # all of it, from revision 1
        self.leases: list[int] = []  # ever granted
        self.living: set[int] = set()
        self.open()

    def open(self):
        self.machine = StoreMachine(MemoryTable(), LIMITS)

    def transaction(self):
        return nullcontext()

    def apply(self, conditions, operations):
        """Do it in the model; return whether the conditions hold."""
        for condition in conditions:
            item = self.items.get(condition.key)
            if (item.mod_revision if item else 0) != condition.mod_revision:
                return False
        revision = len(self.history) + 1
        events = []
        for operation in operations:
            old = self.items.pop(operation.key, None)
            before = old.mod_revision if old else 0
            if isinstance(operation, Put):
                created, version = (old.create_revision, old.version + 1) if old else (revision, 1)
                new = KeyValue(operation.key, operation.value, created, revision, version, operation.lease)
                self.items[operation.key] = new
                events.append(PutEvent(new, before))
            elif old:
                events.append(DeleteEvent(operation.key, revision, before))
        if events:
            self.history.append(EventBatch(revision, tuple(events)))
        return True

    def transact(self, conditions, operations):
        self.machine.check_transaction(conditions, operations)
        before = [self.items[o.key].mod_revision if o.key in self.items else 0 for o in operations]
        if any(isinstance(o, Put) and o.lease is not None and o.lease not in self.living for o in operations):
            with pytest.raises((NotFoundError, MetadataConflictError)), self.transaction():
                self.machine.transact(conditions, operations)
        elif self.apply(conditions, operations):
            with self.transaction():
                result = self.machine.transact(conditions, operations)
            assert result.revision == len(self.history)
            assert list(result.replaced) == before
        else:
            with pytest.raises(MetadataConflictError), self.transaction():
                self.machine.transact(conditions, operations)

    def lease(self, slot):
        return self.leases[-slot] if slot and slot <= len(self.leases) else None

    @rule(key=keys, value=values, slot=slots)
    def put(self, key, value, slot):
        self.transact([], [Put(key, value, self.lease(slot))])

    @rule(key=keys)
    def delete(self, key):
        self.transact([], [Delete(key)])

    @rule(data=st.data())
    def transaction_of_many(self, data):
        conditions = [
            Condition(key, data.draw(st.sampled_from([0, self.items[key].mod_revision if key in self.items else 1])))
            for key in data.draw(st.lists(keys, unique=True, max_size=2))
        ]
        operations = [
            data.draw(st.one_of(st.just(Delete(key)), st.builds(Put, st.just(key), values)))
            for key in data.draw(st.lists(keys, unique=True, max_size=4))
        ]
        self.transact(conditions, operations)

    @rule()
    def grant(self):
        with self.transaction():
            lease = self.machine.grant(10.0)
        assert lease not in self.leases
        self.leases.append(lease)
        self.living.add(lease)

    @precondition(lambda self: self.leases)
    @rule(slot=st.integers(1, 3))
    def revoke(self, slot):
        lease = self.lease(slot) or self.leases[0]
        attached = sorted(key for key, item in self.items.items() if item.lease == lease)
        self.living.discard(lease)
        self.apply([], [Delete(key) for key in attached])
        with self.transaction():
            assert self.machine.revoke(lease) == (len(self.history) if attached else None)

    @rule(prefix=st.sampled_from(PREFIXES), back=st.integers(0, 15))
    def watch(self, prefix, back):
        """Reading the history page by page gives what the model says, or the truth that it is gone."""
        position = max(0, len(self.history) - back)
        compacted = self.machine.table.compacted
        if position < compacted:
            with pytest.raises(WatchCompactedError):
                self.machine.history(prefix, position)
            return
        expected = []
        for batch in self.history[position:]:
            events = tuple(event for event in batch.events if covers(prefix, event.key))
            if events:
                expected.append(EventBatch(batch.revision, events))
        found = []
        while position < len(self.history):
            page = self.machine.history(prefix, position)
            assert page.position > position
            position = page.position
            found.extend(page.batches)
        assert found == expected
        with pytest.raises(WatchCompactedError):
            self.machine.history(prefix, len(self.history) + 1)

    @invariant()
    def same_contents(self):
        for prefix in PREFIXES:
            items, revision = self.machine.scan(prefix)
            assert items == sorted(
                (item for key, item in self.items.items() if covers(prefix, key)), key=lambda item: item.key
            )
            assert revision == len(self.history)
        assert {lease for lease, _ in self.machine.table.leases()} == self.living
        assert self.machine.table.lease_count == len(self.living)

    @invariant()
    def bounded_history(self):
        table = self.machine.table
        kept = table.revision - table.compacted
        assert kept <= LIMITS.metadata_history_revisions
        assert table.history_bytes <= LIMITS.metadata_history_bytes or kept == 1
        assert kept >= 1 or not self.history


class SqliteModel(MachineModel):
    def open(self):
        self.directory = Path(tempfile.mkdtemp())
        self.table = SqliteTable(self.directory)
        self.table.open()
        self.machine = StoreMachine(self.table, LIMITS)

    def transaction(self):
        return self.table.transaction()

    @rule()
    def reopen(self):
        self.table.close()
        self.table = SqliteTable(self.directory)
        self.table.open()
        self.machine = StoreMachine(self.table, LIMITS)

    @rule(key=keys, value=values)
    def roll_back(self, key, value):
        """What fails on its way to the disk has not happened, counters included."""

        def fail():
            with self.table.transaction():
                self.machine.transact([], [Put(key, value)])
                self.machine.grant(5.0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()

    def teardown(self):
        self.table.close()
        shutil.rmtree(self.directory)


TestMemoryMachine = MachineModel.TestCase
TestMemoryMachine.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)
TestSqliteMachine = SqliteModel.TestCase
TestSqliteMachine.settings = settings(deadline=None, max_examples=25, stateful_step_count=30)
