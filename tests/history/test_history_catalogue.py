"""The catalogue: references are counted right despite failures; a former owner changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed import check_catalogue, check_counts, claim, reload, run_virtual

from danube.history.catalogue import HistoryCatalogue
from danube.history.parts import ObjectRef, PartRecord, TopicHistory
from danube.history.segment import SegmentPart
from danube.metadata import Condition, Delete, Put, TransactionResult
from danube.metadata.memory import MemoryStore
from danube.model.errors import MetadataConflictError, OwnerFencedError, UnavailableError
from danube.testing.metadata import FaultyMetadataStore

EPOCH = 1


def make_part(topic_id: int, base: int, end: int, *, first_us: int = 10, last_us: int = 20, start: int = 32):
    return SegmentPart(topic_id, base, end, first_us, last_us, 1, start, start + 10 * (end - base), 0, 0, 1, 0, EPOCH)


def parts_of(topic: TopicHistory | None) -> list[tuple[int, int, str]]:
    return [(r.part.base_offset, r.part.end_offset, r.object) for r in topic.parts] if topic is not None else []


class TrickyStore(FaultyMetadataStore):
    """Goes wrong at one transaction, once: refuses it, loses its answer, or is gone from then on (until ``mend``)."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, Random(0))
        self.mend()
        self.transactions = 0

    def mend(self) -> None:
        self.countdown = -1
        self.refuse = self.lose_answer = 0.0

    def break_at(self, countdown: int, how: str) -> None:
        self.countdown, self.how = countdown, how

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        self.transactions += 1
        self.countdown -= 1
        if self.countdown == -1:
            if self.how == "refused":
                raise UnavailableError("not done; try again")
            if self.how == "down":
                self.refuse = 1.0
                raise UnavailableError("not done; try again")
            result = await self._store.transact(conditions, operations)
            if self.how == "lost, then down":
                self.refuse = 1.0
            if self.how == "cancelled":
                await trio.sleep_forever()
            assert result
            raise UnavailableError("done, but the answer is lost")
        return await super().transact(conditions, operations)


FAULTS = ("refused", "lost", "down", "lost, then down", "cancelled")


@asynccontextmanager
async def opened():
    async with TrickyStore(MemoryStore()) as store:
        yield store, await claim(store, "one")


def ref(number: int, storage: str = "default") -> ObjectRef:
    return ObjectRef(storage, f"segments/c/{number:04x}.seg")


# One thing at a time


async def test_enter_and_find() -> None:
    async with opened() as (store, catalogue):
        assert catalogue.incarnation == "one"
        assert catalogue.find(7) is None
        await catalogue.enter(ref(1), 999, 50, [make_part(7, 10, 20), make_part(8, 0, 5)])
        await catalogue.enter(ref(2, "cold"), 99, 51, [make_part(7, 20, 30), make_part(7, 40, 50)])
        await check_catalogue(store, catalogue)
        topic = catalogue.topic(7)
        found = {offset: topic.find(offset) for offset in (0, 10, 19, 20, 29, 30, 39, 40, 49)}
        assert {o: r.part.base_offset for o, r in found.items() if r is not None} == {
            0: 10, 10: 10, 19: 10, 20: 20, 29: 20, 30: 40, 39: 40, 40: 40, 49: 40,
        }  # fmt: skip
        assert topic.find(50) is None
        assert (topic.end_offset, topic.size_bytes) == (50, 300)
        assert catalogue.objects[ref(1)].live_bytes == 150
        assert catalogue.objects[ref(1)].references == 2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=12), st.randoms())
def test_times_are_found_although_clocks_step_back(times: list[tuple[int, int]], random: Random) -> None:
    topic = TopicHistory()
    numbers = list(range(len(times)))
    random.shuffle(numbers)  # the order of entering does not matter
    for number in numbers:
        low, span = times[number]
        topic.add(PartRecord("", "", make_part(1, number * 10, number * 10 + 10, first_us=low, last_us=low + span)))
    gone = [record for record in topic.parts if random.random() < 0.3]
    topic.remove(gone)
    for time_us in range(37):
        expected = next((record for record in topic.parts if record.part.last_time_us >= time_us), None)
        assert topic.find_time(time_us) == expected


async def test_more_parts_than_one_transaction_holds() -> None:
    async with opened() as (store, catalogue):
        changes: list[tuple[int, int, dict[int, int]]] = []
        catalogue.on_change = lambda added, removed, starts: changes.append((len(added), len(removed), dict(starts)))
        await catalogue.enter(ref(1), 9, 50, [make_part(topic_id, 0, 10) for topic_id in range(1, 201)])
        assert catalogue.objects[ref(1)].references == 200
        await check_catalogue(store, catalogue)
        for number in range(1, 151):
            await catalogue.enter(ref(number + 1), 9, 50, [make_part(1, number * 10, number * 10 + 10)])
        await check_catalogue(store, catalogue)
        before = store.transactions
        await catalogue.expire(1, 1395, 60)
        assert store.transactions - before == 4
        assert parts_of(catalogue.topic(1))[0][:2] == (1390, 1400)
        assert catalogue.topic(1).start_offset == 1395
        await check_catalogue(store, catalogue)
        assert changes[-4:] == [(0, 40, {1: 400}), (0, 40, {1: 800}), (0, 40, {1: 1200}), (0, 19, {1: 1395})]
        assert sorted(catalogue.garbage_until(61)) == [ref(number + 1) for number in range(1, 139)]
        assert catalogue.garbage_until(60) == []
        await catalogue.drop_topic(1, 70)
        await check_catalogue(store, catalogue)
        assert catalogue.find(1) is None
        assert not catalogue.objects[ref(1)].tainted  # of this topic there was nothing left in it
        await catalogue.drop_topic(2, 71)
        assert catalogue.objects[ref(1)].tainted
        assert catalogue.objects[ref(1)].references == 198


async def test_a_start_never_goes_back() -> None:
    async with opened() as (store, catalogue):
        await catalogue.expire(1, 100, 60)
        await catalogue.enter(ref(1), 9, 50, [make_part(1, 0, 50)])  # was on its way
        await catalogue.expire(1, 60, 61)
        assert parts_of(catalogue.topic(1)) == []
        assert catalogue.topic(1).start_offset == 100
        await check_catalogue(store, catalogue)


async def test_replace() -> None:
    async with opened() as (store, catalogue):
        for number in range(4):
            await catalogue.enter(ref(number), 9, 50, [make_part(1, number * 10, number * 10 + 10)])
        old = catalogue.topic(1).parts[1:3]
        assert await catalogue.replace(old, ref(9), 99, 60, make_part(1, 10, 30))
        assert parts_of(catalogue.topic(1)) == [
            (0, 10, ref(0).key), (10, 30, ref(9).key), (30, 40, ref(3).key),
        ]  # fmt: skip
        assert catalogue.garbage_until(61) == [ref(1), ref(2)]
        await check_catalogue(store, catalogue)
        # One of the old ones is gone: nothing happens.
        assert not await catalogue.replace(old, ref(10), 99, 61, make_part(1, 10, 30))
        assert ref(10) not in catalogue.objects
        await check_catalogue(store, catalogue)
        await catalogue.forget_objects([ref(1)])
        await catalogue.forget_objects([ref(1)])
        await check_catalogue(store, catalogue)
        assert ref(1) not in catalogue.garbage
        with pytest.raises(AssertionError, match="still referenced"):
            await catalogue.forget_objects([ref(9)])


async def test_a_sealed_range_is_not_sealed_again() -> None:
    async with opened() as (store, catalogue):
        await catalogue.enter(ref(1), 9, 50, [make_part(1, 10, 20), make_part(1, 30, 40)])
        for base, end in ((10, 20), (0, 11), (15, 16), (19, 25), (0, 100), (20, 31)):
            with pytest.raises(MetadataConflictError, match="sealed already"):
                await catalogue.enter(ref(2), 9, 50, [make_part(1, base, end)])
        assert ref(2) not in catalogue.objects
        await catalogue.enter(ref(2), 9, 50, [make_part(1, 20, 30), make_part(1, 0, 10), make_part(1, 40, 41)])
        await check_catalogue(store, catalogue)


# Owners


async def test_a_former_owner_changes_nothing() -> None:
    async with opened() as (store, former):
        await former.enter(ref(1), 9, 50, [make_part(1, 0, 10), make_part(2, 0, 10)])
        await former.enter(ref(2), 9, 50, [make_part(1, 10, 20)])
        await former.expire(2, 10, 50)
        owner = await claim(store, "another")
        assert owner.incarnation == "one"
        await check_catalogue(store, owner)
        picture = await store.list("/")
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: former.enter(ref(3), 9, 50, [make_part(1, 20, 30)]),
            lambda: former.replace(former.topic(1).parts, ref(3), 9, 50, make_part(1, 0, 20)),
            lambda: former.expire(1, 10, 60),
            lambda: former.drop_topic(1, 60),
            lambda: former.drop_topic(2, 60),
        ]
        for attempt in attempts * 2:  # it stays so
            with pytest.raises(OwnerFencedError, match="/writers/b1/history"):
                await attempt()
        assert await store.list("/") == picture
        await owner.enter(ref(3), 9, 50, [make_part(1, 20, 30)])
        await check_catalogue(store, owner)


async def test_of_lives_that_race_one_wins() -> None:
    async with opened() as (store, first):
        lives: list[HistoryCatalogue] = []

        async def begin() -> None:
            lives.append(await claim(store, "one", at_least=5))

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(begin)
        assert sorted(life.tenure.life for life in lives) == [5, 6, 7, 8, 9, 10]
        outcomes = Counter[str]()
        for life in [first, *lives]:
            try:
                await life.enter(ref(life.tenure.life), 9, 50, [make_part(life.tenure.life, 0, 1)])
                outcomes["entered"] += 1
            except OwnerFencedError:
                outcomes["fenced"] += 1
        assert outcomes == {"entered": 1, "fenced": 6}
        assert len(list((await reload(store)).all_parts())) == 1


async def test_a_change_that_arrives_late_does_not_happen() -> None:
    """The answer does not come, the caller gives up, and only then the transaction reaches the store."""

    class SlowStore(TrickyStore):
        slow = False
        late: tuple[Sequence[Condition], Sequence[Put | Delete]] | None = None

        async def transact(self, conditions, operations):
            if self.slow and self.late is None:
                self.late = conditions, operations
                raise UnavailableError("no answer")
            return await super().transact(conditions, operations)

    async with SlowStore(MemoryStore()) as store:
        catalogue = await claim(store, "one")
        store.slow = True
        with pytest.raises(UnavailableError):
            await catalogue.enter(ref(1), 9, 50, [make_part(1, 0, 10)])
        assert store.late is not None
        with pytest.raises(MetadataConflictError):
            await store._store.transact(*store.late)
        await catalogue.enter(ref(2), 9, 50, [make_part(1, 0, 10)])
        await check_catalogue(store, catalogue)
        assert parts_of(catalogue.topic(1)) == [(0, 10, ref(2).key)]


# Faults


async def attempt(store: TrickyStore, call: Callable[[], Awaitable[object]], countdown: int, how: str) -> bool:
    """Make a change while the store misbehaves; return whether it succeeded."""
    store.break_at(countdown, how)
    try:
        with trio.move_on_after(0.001) as scope:
            await call()
    except UnavailableError:
        return False
    finally:
        store.mend()
    return not scope.cancelled_caught


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("countdown", [0, 1, 2])
async def test_a_change_in_three_steps_is_cut_off(how: str, countdown: int, autojump_clock) -> None:
    parts = [make_part(topic_id, 0, 10) for topic_id in range(1, 151)]
    async with opened() as (store, catalogue):
        done = await attempt(store, lambda: catalogue.enter(ref(1), 9, 50, parts), countdown, how)
        assert done == (how == "lost")
        # Whatever has happened: the next change finds it, and entering the rest completes it.
        await catalogue.enter(ref(2), 9, 51, [make_part(999, 0, 1)])
        await check_catalogue(store, catalogue)
        steps = countdown + how.startswith(("lost", "cancelled"))
        entered = [part for part in parts if parts_of(catalogue.find(part.topic_id))]
        assert entered == (parts if done else parts[: 40 * steps])
        missing = [part for part in parts if part not in entered]
        await catalogue.enter(ref(3), 9, 52, missing)
        await check_catalogue(store, catalogue)

        for number in range(1, 151):
            await catalogue.enter(ref(100 + number), 9, 50, [make_part(1, number * 10, number * 10 + 10)])
        done = await attempt(store, lambda: catalogue.expire(1, 1500, 60), countdown, how)
        assert done == (how == "lost")
        await catalogue.expire(1, 1500, 61)
        await check_catalogue(store, catalogue)
        assert catalogue.topic(1).start_offset == 1500
        assert parts_of(catalogue.topic(1)) == [(1500, 1510, ref(250).key)]


OPERATIONS = st.one_of(
    st.tuples(st.just("enter"), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=70)),
    st.tuples(st.just("replace"), st.integers(1, 4), st.integers(0, 9), st.integers(1, 5)),
    st.tuples(st.just("expire"), st.integers(1, 4), st.floats(0, 1.2)),
    st.tuples(st.just("drop"), st.integers(1, 4)),
    st.tuples(st.just("forget")),
    st.tuples(st.just("restart")),
)


class CatalogueModel:
    """Does to a catalogue what brokers do, and keeps count of what must be there."""

    def __init__(self, store: TrickyStore, catalogue: HistoryCatalogue) -> None:
        self.store, self.catalogue = store, catalogue
        self.now_us = 100
        self.objects = 0
        # What the changes say that were reported: must be what the catalogue has.
        self.reported: dict[tuple[int, int], PartRecord] = {}
        self.starts: dict[int, int] = {}
        catalogue.on_change = self.changed

    def changed(self, added, removed, starts) -> None:
        for record in removed:
            assert self.reported.pop((record.part.topic_id, record.part.base_offset)) == record
        for record in added:
            key = (record.part.topic_id, record.part.base_offset)
            assert key not in self.reported
            self.reported[key] = record
        for topic_id, start in starts.items():
            assert start >= self.starts.get(topic_id, 0)
            self.starts[topic_id] = start

    def fresh_ref(self) -> ObjectRef:
        self.objects += 1
        return ref(self.objects, "default" if self.objects % 3 else "cold")

    async def do(self, operation) -> None:
        """One operation, as its caller would do it again after an error."""
        kind, *arguments = operation
        catalogue = self.catalogue
        self.now_us += 10
        if kind == "enter":
            parts, ends = [], {}
            for topic_id, count in arguments[0]:
                topic = catalogue.topic(topic_id)
                base = ends.get(topic_id, max(topic.end_offset, topic.start_offset))
                ends[topic_id] = base + count
                parts.append(make_part(topic_id, base, base + count))
            await catalogue.enter(self.fresh_ref(), 9999, self.now_us, parts)
        elif kind == "replace":
            topic_id, at, count = arguments
            old = catalogue.topic(topic_id).parts[at : at + count]
            if old:
                part = make_part(topic_id, old[0].part.base_offset, old[-1].part.end_offset)
                assert await catalogue.replace(old, self.fresh_ref(), 9999, self.now_us, part)
        elif kind == "expire":
            topic_id, share = arguments
            await catalogue.expire(topic_id, int(catalogue.topic(topic_id).end_offset * share), self.now_us)
        elif kind == "drop":
            self.starts.pop(arguments[0], None)
            await catalogue.drop_topic(arguments[0], self.now_us)
            assert catalogue.find(arguments[0]) is None
        elif kind == "forget":
            for garbage in catalogue.garbage_until(self.now_us):
                await catalogue.forget_objects([garbage])
        else:
            self.catalogue = await claim(self.store, "one")
            self.catalogue.on_change = self.changed
            found = {(r.part.topic_id, r.part.base_offset): r for r in self.catalogue.all_parts()}
            assert all(found.get(key) == record for key, record in self.reported.items() if key in found)
            self.reported = found

    async def check(self) -> None:
        await check_catalogue(self.store, self.catalogue)
        assert {(r.part.topic_id, r.part.base_offset): r for r in self.catalogue.all_parts()} == self.reported


@settings(deadline=None, max_examples=80)
@given(
    st.lists(
        st.tuples(OPERATIONS, st.one_of(st.none(), st.tuples(st.integers(0, 2), st.sampled_from(FAULTS)))), max_size=12
    )
)
def test_any_history_of_changes_and_faults(steps) -> None:
    run_virtual(any_history, steps)


async def any_history(steps) -> None:
    async with opened() as (store, catalogue):
        model = CatalogueModel(store, catalogue)
        for operation, fault in steps:
            done = False
            if fault is not None and operation[0] != "restart":
                done = await attempt(store, lambda operation=operation: model.do(operation), *fault)
                check_counts(model.catalogue)
                check_counts(await reload(store))
            if not done:
                for _ in range(3):
                    try:
                        await model.do(operation)
                        break
                    except MetadataConflictError:
                        continue  # what was in doubt has happened: the caller looks again
                    except AssertionError:
                        if operation[0] != "replace":
                            raise
                        break  # the first attempt has happened
                else:
                    pytest.fail("it does not come to an end")
            await model.check()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32))
def test_bad_weather(seed: int) -> None:
    """Any call may fail, those that find out what has happened, too."""
    run_virtual(bad_weather, seed)


async def bad_weather(seed: int) -> None:
    random = Random(seed)
    async with FaultyMetadataStore(MemoryStore(), random, latency_s=0.01) as store:
        catalogue = await claim(store, "one")
        model = CatalogueModel(store, catalogue)
        store.refuse = store.lose_answer = 0.2
        for number in range(40):
            kind = random.choice(("enter", "enter", "enter", "expire", "drop", "forget"))
            topics = [(random.randrange(1, 4), random.randrange(1, 5)) for _ in range(random.choice((1, 3, 70)))]
            operation = {
                "enter": ("enter", topics),
                "expire": ("expire", number % 3 + 1, random.random()),
                "drop": ("drop", number % 3 + 1),
                "forget": ("forget",),
            }[kind]
            try:
                with trio.move_on_after(random.choice((0.01, 1.0))):
                    await model.do(operation)
            except (UnavailableError, MetadataConflictError):
                pass  # the next change finds out what has happened
            check_counts(model.catalogue)
        store.refuse = store.lose_answer = 0.0
        await catalogue.enter(ref(9999), 9, 50, [make_part(99, 0, 1)])
        await model.check()
