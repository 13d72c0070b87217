"""Tables agree with the store, and no change is applied twice or lost, whatever happens to requests and answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from danube.metadata import (
    Capabilities,
    Change,
    Condition,
    HexNames,
    MemoryStore,
    MetadataStore,
    Put,
    RowChange,
    Table,
    TableWriter,
    TextNames,
    Watch,
)
from danube.metadata._mirror import Mirror
from danube.metadata.table import ROWS_PER_TURN
from danube.model import Limits
from danube.model.errors import (
    ClosedError,
    DataLossError,
    InvalidArgumentError,
    MetadataConflictError,
    OwnerFencedError,
    UnavailableError,
)
from danube.testing.metadata import FaultyMetadataStore

NAMES = ("a", "b", "c")


class Row(msgspec.Struct, frozen=True, array_like=True):
    """The changes that a row has had, by number."""

    changes: tuple[int, ...]


async def rows_of(store: MetadataStore, prefix: str) -> dict[str, Row]:
    items, _ = await store.list(prefix)
    return {item.key.removeprefix(prefix): msgspec.msgpack.decode(item.value, type=Row) for item in items}


class Member:
    """A process with a writer, a table of its own and one that others change, too."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.store = FaultyMetadataStore(world.store, Random(number))
        self.writer: TableWriter | None = None
        self.scope = trio.CancelScope()
        self.own: Table[Row]
        self.shared: Table[Row]

    async def start(self) -> None:
        """Begin a new life: what the former one has sent may still arrive."""
        self.scope.cancel()
        self.writer = None
        own: Table[Row] = Table(self.store, f"/own/{self.number}/", Row)
        seen: dict[str, Row] = {}

        def changed(change: RowChange[Row]) -> None:
            assert seen.get(change.name) == change.before
            seen[change.name] = change.after  # type: ignore[assignment]
            if change.after is None:
                del seen[change.name]

        self.seen = seen
        packed = TextNames() if self.number else None
        self.shared = Table(self.store, "/shared", Row, watched=True, on_change=changed, packed=packed)
        writer = await TableWriter.open(self.store, f"/writers/{self.number}")
        await own.load()
        self.own, self.writer = own, writer
        self.scope = trio.CancelScope()
        self.world.nursery.start_soon(self.follow, self.scope, self.shared)

    async def follow(self, scope: trio.CancelScope, table: Table[Row]) -> None:
        with scope:
            await table.follow()

    async def change(self, kind: str, name: str, other: str, patience: float) -> None:
        """Add a number to two rows, one of them shared; or delete them."""
        world = self.world
        if self.writer is None:
            return
        number = world.next_number()
        try:
            with trio.move_on_after(patience):
                async with self.writer.changing():
                    assert not self.writer.in_doubt
                    await self.agree()
                    if kind == "delete":
                        await self.writer.apply(self.own.delete(name), self.shared.delete("/" + other))
                        return
                    changes = [
                        table.put(each, Row((*(row.changes if row is not None else ()), number)))
                        for table, each in ((self.own, name), (self.shared, "/" + other))
                        for row in [table.values.get(each)]
                    ]
                    if kind == "create":
                        changes[0] = self.own.create(name, Row((number,)))
                    world.outcomes[number] = None
                    revision = await self.writer.apply(*changes)
                    world.outcomes[number] = True
                    assert revision > 0
                    await self.agree()
        except MetadataConflictError:
            assert not self.writer.in_doubt
            world.outcomes[number] = False
        except UnavailableError:
            if number in world.outcomes and not self.writer.in_doubt:
                world.outcomes[number] = False

    async def agree(self) -> None:
        """Nothing is in doubt: the table that only this process changes is what the store has."""
        assert dict(self.own.values) == await rows_of(self.world.store, f"/own/{self.number}/")

    async def settle(self) -> None:
        if self.writer is not None:
            with suppress(UnavailableError):
                await self.writer.settle()
                assert not self.writer.in_doubt
                await self.agree()


class World:
    def __init__(self, store: MemoryStore, nursery: trio.Nursery) -> None:
        self.store = store
        self.nursery = nursery
        self.numbers = 0
        self.outcomes: dict[int, bool | None] = {}
        self.members = [Member(self, number) for number in range(2)]

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    async def step(self, step: tuple[Any, ...]) -> None:
        kind, member, *arguments = step
        each = self.members[member]
        match kind:
            case "weather":
                each.store.refuse, each.store.lose_answer, each.store.hold, each.store.break_watch = arguments
            case "start":
                with suppress(UnavailableError):
                    await each.start()
            case "arrive":
                await each.store.arrive()
            case "wait":
                await trio.sleep(*arguments)
            case "settle":
                await each.settle()
            case "both":
                async with trio.open_nursery() as nursery:
                    for other in self.members:
                        nursery.start_soon(other.change, *arguments)
            case _:
                await each.change(kind, *arguments)

    async def calm(self) -> None:
        """The store answers: every doubt ends, and every mirror has what the store has."""
        for each in self.members:
            each.store.refuse = each.store.lose_answer = each.store.hold = each.store.break_watch = 0.0
            if each.writer is None:
                await each.start()
            await each.settle()
            assert each.writer is not None
            assert not each.writer.in_doubt
        before = await self.store.list("/")
        for each in self.members:
            await each.store.arrive()
        assert await self.store.list("/") == before, "what is on its way when a doubt ends never arrives"
        await trio.sleep(5)
        shared = await rows_of(self.store, "/shared")
        for each in self.members:
            await each.agree()
            assert dict(each.shared.values) == each.seen == shared
            assert all(each.shared.revision(name) for name in shared)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with (
        MemoryStore(limits=Limits(metadata_history_revisions=6)) as store,
        trio.open_nursery() as nursery,
    ):
        world = World(store, nursery)
        for each in world.members:
            await each.start()
        yield world
        nursery.cancel_scope.cancel()


MEMBER = st.integers(0, 1)
CHANCE = st.sampled_from((0.0, 0.3, 1.0))
CHANGE = (st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from((0.004, 9.0)))
STEPS = st.one_of(
    st.tuples(st.sampled_from(("put", "put", "create", "delete")), MEMBER, *CHANGE),
    st.tuples(st.just("both"), MEMBER, st.just("put"), *CHANGE),
    st.tuples(st.just("weather"), MEMBER, CHANCE, CHANCE, CHANCE, CHANCE),
    st.tuples(st.just("weather"), MEMBER, *[st.just(0.0)] * 4),
    st.tuples(st.just("arrive"), MEMBER),
    st.tuples(st.just("start"), MEMBER),
    st.tuples(st.just("settle"), MEMBER),
    st.tuples(st.just("wait"), MEMBER, st.just(1.5)),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(STEPS, max_size=25), st.booleans())
def test_any_history_of_changes_and_faults(steps: list[tuple[Any, ...]], slow: bool) -> None:
    trio.run(any_history, steps, slow, clock=MockClock(autojump_threshold=0))


async def any_history(steps: list[tuple[Any, ...]], slow: bool) -> None:
    async with world() as w:
        for each in w.members:
            each.store.latency_s = 0.005 if slow else 0.0
        for step in steps:
            await w.step(step)
        await w.calm()
        for prefix in ("/own/0/", "/own/1/", "/shared/"):
            for row in (await rows_of(w.store, prefix)).values():
                assert len(set(row.changes)) == len(row.changes), "nothing is made twice"
                assert all(w.outcomes[number] is not False for number in row.changes), "what failed was not made"


# One thing at a time


class Tricky(FaultyMetadataStore):
    """Does something at the next transaction, once."""

    at_transaction: Callable[[Callable[[], Any]], Any] | None = None

    async def transact(self, conditions: Any, operations: Any) -> Any:
        trick, self.at_transaction = self.at_transaction, None
        if trick is None:
            return await super().transact(conditions, operations)
        return await trick(lambda: self._store.transact(conditions, operations))


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[tuple[Tricky, TableWriter, Table[Row]]]:
    async with Tricky(MemoryStore(), Random(1)) as store:
        table: Table[Row] = Table(store, "/rows/", Row, **options)
        writer = await TableWriter.open(store, "/writers/test")
        await table.load()
        yield store, writer, table


async def lost(call: Callable[[], Any]) -> None:
    await call()
    raise UnavailableError("lost")


async def test_a_lost_answer_is_found_within_the_call() -> None:
    async with opened() as (store, writer, table):
        store.at_transaction = lost
        async with writer.changing():
            revision = await writer.apply(table.create("a", Row((1,))))
        found = await store.get("/rows/a")
        assert found is not None
        assert (table.revision("a"), found.mod_revision) == (revision, revision)
        assert dict(table.values) == {"a": Row((1,))}


async def test_a_change_that_arrives_after_its_doubt_was_settled_does_not_happen() -> None:
    async with opened() as (store, writer, table):
        late: list[Callable[[], Any]] = []

        async def never(call: Callable[[], Any]) -> None:
            late.append(call)
            raise UnavailableError("no answer")

        store.at_transaction = never
        async with writer.changing():
            with pytest.raises(UnavailableError, match="no answer"):
                await writer.apply(table.create("a", Row((1,))))
        assert not writer.in_doubt
        with pytest.raises(MetadataConflictError):
            await late[0]()
        assert dict(table.values) == {}
        async with writer.changing():
            await writer.apply(table.create("a", Row((2,))))
        assert await rows_of(store, "/rows/") == {"a": Row((2,))}


async def test_a_change_in_doubt_is_settled_before_the_next_one() -> None:
    async with opened() as (store, writer, table):

        async def lost_and_away(call: Callable[[], Any]) -> None:
            store.refuse = 1.0
            await lost(call)

        store.at_transaction = lost_and_away
        async with writer.changing():
            with pytest.raises(UnavailableError):
                await writer.apply(table.create("a", Row((1,))))
        assert writer.in_doubt
        assert dict(table.values) == {}, "it is not certain yet"
        with pytest.raises(UnavailableError):
            await writer.settle()
        store.refuse = 0.0
        async with writer.changing():
            assert dict(table.values) == {"a": Row((1,))}
            await writer.apply(table.put("a", Row((1, 2))))
        assert await rows_of(store, "/rows/") == {"a": Row((1, 2))}


async def test_a_value_that_another_member_has_written_is_not_taken_for_the_own_one() -> None:
    """Both members write the same bytes: reading the row cannot tell whose change has happened."""
    async with opened() as (store, writer, table):
        async with writer.changing():
            await writer.apply(table.put("a", Row((1,))))

        async def other_was_faster(call: Callable[[], Any]) -> None:
            await store._store.put("/rows/a", msgspec.msgpack.encode(Row((1, 2))))
            await call()

        store.at_transaction = other_was_faster
        async with writer.changing():
            with pytest.raises(MetadataConflictError):
                await writer.apply(table.put("a", Row((1, 2))))
        assert not writer.in_doubt


async def test_transactions_are_conditional_and_whole() -> None:
    async with opened() as (store, writer, table):
        texts: Table[str] = Table(store, "/texts", str, encode=str.encode, decode=bytes.decode)
        await texts.load()
        async with writer.changing():
            await writer.apply(table.create("a", Row(())), texts.put("/x", "one"))
            for refused in (table.create("a", Row(())), table.put("b", Row(()))):
                if refused.operations[0].key == "/rows/b":
                    await store.put("/rows/b", b"\x91\x90")  # by another member, not seen by this one
                with pytest.raises(MetadataConflictError):
                    await writer.apply(texts.put("/x", "two"), refused)
            with pytest.raises(InvalidArgumentError):
                await writer.apply(Change((), (Put("bad key", b""),), lambda _: None))
            assert not writer.in_doubt
            await writer.apply(texts.delete("/x"), texts.delete("/unknown"))
        assert (dict(texts.values), list(table.values)) == ({}, ["a"])
        assert (await store.list("/texts"))[0] == []


async def test_a_writer_that_was_displaced_changes_nothing() -> None:
    async with opened() as (store, writer, table):
        store.hold = 1.0
        async with writer.changing():
            with pytest.raises(UnavailableError):
                await writer.apply(table.create("a", Row(())))
        store.hold = 0.0
        await TableWriter.open(store, "/writers/test")
        await store.arrive()
        assert await rows_of(store, "/rows/") == {}
        for _ in range(2):
            with pytest.raises(OwnerFencedError, match="/writers/test"):
                await writer.settle()
        other = await TableWriter.open(store, "/writers/test")
        newest = await TableWriter.open(store, "/writers/test")
        async with other.changing():
            with pytest.raises(OwnerFencedError):
                await other.apply(table.create("a", Row(())))
        async with newest.changing():
            await newest.apply(table.create("a", Row(())))


async def test_writers_that_open_at_the_same_time() -> None:
    async with opened() as (store, _, table):
        writers: list[TableWriter] = []

        async def another() -> None:
            writers.append(await TableWriter.open(store, "/writers/test"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(another)
        able = 0
        for number, writer in enumerate(writers):
            async with writer.changing():
                with suppress(OwnerFencedError):
                    await writer.apply(table.create(str(number), Row(())))
                    able += 1
        assert able == len(table.values) == 1


async def test_damage_is_told_with_its_key() -> None:
    async with opened() as (store, _, table):
        await store.put("/rows/bad", b"\xc1")
        with pytest.raises(DataLossError, match="/rows/bad"):
            await table.load()
        await store.put("/writers/test", b"\xc1")
        with pytest.raises(DataLossError, match="/writers/test"):
            await TableWriter.open(store, "/writers/test")


# Changes by others


class NoReplay(FaultyMetadataStore):
    """An engine without history, and with another change between any two calls."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=False, linearizable=True, watch_replay=False, leases=True)

    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        assert start_revision is None
        return super().watch(prefix)

    async def list(self, prefix: str) -> Any:
        await self.put("/rows/between", msgspec.msgpack.encode(Row((1,))))
        await self.delete("/rows/between")
        return await super().list(prefix)


@pytest.mark.parametrize("kind", [FaultyMetadataStore, NoReplay])
async def test_a_table_follows_others(kind: type[FaultyMetadataStore], autojump_clock: object) -> None:
    async with MemoryStore(limits=Limits(metadata_history_revisions=3)) as inner:
        store = kind(inner, Random(3))
        changes: list[RowChange[Row]] = []
        table: Table[Row] = Table(store, "/rows/", Row, watched=True, on_change=changes.append)
        await inner.put("/rows/a", msgspec.msgpack.encode(Row((1,))))
        async with trio.open_nursery() as nursery:
            await nursery.start(table.follow)
            assert dict(table.values) == {"a": Row((1,))}
            await inner.put("/rows/b", msgspec.msgpack.encode(Row((2,))))
            with trio.fail_after(5):
                await table.reached(await inner.put("/rows/a", msgspec.msgpack.encode(Row((1, 3)))))
            assert table.values["b"] == Row((2,))
            store.refuse = store.break_watch = 1.0
            await inner.delete("/rows/a")
            for _ in range(9):
                revision = await inner.put("/rows/c", msgspec.msgpack.encode(Row((4,))))
            await trio.sleep(10)
            store.refuse = store.break_watch = 0.0
            with trio.fail_after(5):
                await table.reached(revision)
            assert dict(table.values) == {"b": Row((2,)), "c": Row((4,))}
            assert changes[:3] == [
                RowChange("a", None, Row((1,))),
                RowChange("b", None, Row((2,))),
                RowChange("a", Row((1,)), Row((1, 3))),
            ]
            assert {change.name for change in changes[3:]} == {"a", "c"}
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [FaultyMetadataStore, NoReplay])
@pytest.mark.parametrize("options", [{"packed": HexNames(2)}, {"is_name": lambda name: len(name) == 2}])
async def test_keys_that_name_no_row_are_logged_and_ignored(
    kind: type[FaultyMetadataStore], options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with MemoryStore() as inner:
        store = kind(inner, Random(3))
        changes: list[RowChange[Row]] = []
        table: Table[Row] = Table(store, "/rows/", Row, watched=True, on_change=changes.append, **options)
        value = msgspec.msgpack.encode(Row((1,)))
        await inner.put("/rows/0a", value)
        await inner.put("/rows/first", b"of another program")
        async with trio.open_nursery() as nursery:
            await nursery.start(table.follow)
            await inner.put("/rows/second", b"of another program")
            await inner.delete("/rows/second")
            with trio.fail_after(5):
                await table.reached(await inner.put("/rows/0b", value))
            nursery.cancel_scope.cancel()
        assert dict(table.values) == {"0a": Row((1,)), "0b": Row((1,))}
        assert [change.name for change in changes if change.name[:1] == "0"] == ["0a", "0b"]
        assert len(changes) == 2
        assert {"/rows/first", "/rows/second"} <= {key for key in caplog.text.split("'") if key.startswith("/rows")}


async def test_other_tasks_run_while_many_rows_are_loaded() -> None:
    count = 5 * ROWS_PER_TURN
    async with MemoryStore() as store:
        value = msgspec.msgpack.encode(Row((1,)))
        for begin in range(0, count, 100):
            await store.transact([], [Put(f"/rows/{number:04}", value) for number in range(begin, begin + 100)])
        entered = 0

        def changed(change: RowChange[Row]) -> None:
            nonlocal entered
            entered += 1

        table: Table[Row] = Table(store, "/rows/", Row, watched=True, on_change=changed)
        steps = []

        async def look() -> None:
            nonlocal entered
            while len(table.values) < count or entered:
                steps.append(entered)
                entered = 0
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await table.load()
        assert max(steps) <= 2 * ROWS_PER_TURN, "the tasks of one turn run in any order"
        assert len(table.values) == count
        # What is known already takes time, too.
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn)
            await table.load()
            nursery.cancel_scope.cancel()
        assert turns >= 5


async def test_changes_while_rows_are_loaded_and_a_load_that_was_cancelled(autojump_clock: object) -> None:
    count = 3 * ROWS_PER_TURN
    async with MemoryStore() as inner:
        store = FaultyMetadataStore(inner, Random(3))
        value = msgspec.msgpack.encode(Row((1,)))
        names = [f"{number:04}" for number in range(count)]
        for begin in range(0, count, 100):
            await store.transact([], [Put("/rows/" + name, value) for name in names[begin : begin + 100]])
        table: Table[Row] = Table(store, "/rows/", Row, watched=True)
        scope = trio.CancelScope()

        async def change() -> None:
            while not table.values:
                await trio.lowlevel.checkpoint()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            with scope:
                await table.load()
        assert 0 < len(table.values) < count
        assert not table.position
        writer = await TableWriter.open(store, "/guard")

        async def change_meanwhile() -> None:
            while names[ROWS_PER_TURN] not in table.values:
                await trio.lowlevel.checkpoint()
            async with writer.changing():
                await writer.apply(
                    table.delete(names[0]), table.put(names[2], Row((1, 2))), table.create("new", Row((3,)))
                )

        await inner.delete("/rows/" + names[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change_meanwhile)
            await table.load()
        assert dict(table.values) == await rows_of(inner, "/rows/")
        assert len(table.values) == count - 1


async def test_following_ends_with_the_store() -> None:
    async with MemoryStore() as store:
        table: Table[Row] = Table(store, "/rows/", Row, watched=True)
        with pytest.RaisesGroup(ClosedError):
            async with trio.open_nursery() as nursery:
                await nursery.start(table.follow)
                await store.aclose()


async def test_a_store_that_is_behind_is_not_asked_in_a_loop(autojump_clock: object) -> None:
    """Its list is older than what the table has seen already."""

    class Behind(FaultyMetadataStore):
        lists = 0

        async def list(self, prefix: str) -> Any:
            self.lists += 1
            items, revision = await super().list(prefix)
            return items, revision + (100 if self.lists == 1 else 0)

    async with Behind(MemoryStore(), Random(1)) as store:
        table: Table[Row] = Table(store, "/rows/", Row, watched=True)
        with trio.move_on_after(10):
            await table.follow()
        assert 2 <= store.lists <= 12


# The mirror by itself


def entered(steps: Iterable[RowChange[Any] | None]) -> list[RowChange[Any]]:
    """Return the changes among the rows of a snapshot."""
    return [change for change in steps if change is not None]


def test_the_later_change_wins_in_any_order() -> None:
    mirror: Mirror[str] = Mirror(watched=True)
    assert entered(mirror.reset([("a", "1", 3), ("b", "1", 4)], 5)) == [("a", None, "1"), ("b", None, "1")]
    assert mirror.delete("a", 8) == ("a", "1", None)  # an own change, answered before the watch tells of it
    assert mirror.put("a", "2", 7) is None  # told later
    assert mirror.revision("a") == 0
    assert entered(mirror.reset([("a", "2", 7), ("b", "1", 4)], 7)) == []
    assert mirror.put("a", "0", 6) is None
    mirror.passed(8)
    assert mirror.put("a", "2", 7) is None, "an own change, answered after the watch told that the row was deleted"
    assert entered(mirror.reset([("a", "2", 7)], 7)) == [], "an old snapshot"
    assert mirror.put("c", "1", 12) == ("c", None, "1")
    assert entered(mirror.reset([("b", "9", 10)], 11)) == [("b", "1", "9")], "what is newer than the snapshot stays"
    assert sorted(entered(mirror.reset([], 13))) == [("b", "9", None), ("c", "1", None)]
    assert (mirror.values, mirror.position) == ({}, 13)


def test_a_mirror_of_own_changes_remembers_no_deletions() -> None:
    mirror: Mirror[str] = Mirror(watched=False)
    assert entered(mirror.reset([], 1)) == []
    for revision in range(2, 100, 2):
        mirror.put(str(revision), "", revision)
        mirror.delete(str(revision), revision + 1)
    assert mirror._gone == {}
    assert list(mirror.every()) == []


def test_conditions_of_changes() -> None:
    table: Table[Row] = Table(MemoryStore(), "/rows/", Row)
    table._mirror.put("a", Row(()), 7)
    assert table.put("a", Row(())).conditions == (Condition("/rows/a", 7),)
    assert table.create("a", Row(())).conditions == (Condition("/rows/a", 0),)
    assert table.delete("b").conditions == (Condition("/rows/b", 0),)
