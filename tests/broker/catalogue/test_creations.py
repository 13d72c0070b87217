"""Topics that are created at the same time: one transaction for those that wait, and an outcome for each."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import trio
from broker.catalogue.test_catalogue import AwayStore, loaded

from danube.broker.catalogue.catalogue import Catalogue
from danube.cluster.records import CREATING
from danube.metadata import MemoryStore, TransactionResult
from danube.model import Durability, Limits
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    PermissionDeniedError,
    UnavailableError,
)
from danube.model.ids import TopicId
from danube.model.records import TopicRecord
from danube.testing.metadata import FaultyMetadataStore

pytestmark = pytest.mark.virtual


class CountingStore(FaultyMetadataStore):
    """Counts transactions."""

    count = 0

    async def transact(self, conditions: Any, operations: Any) -> TransactionResult:
        self.count += 1
        return await super().transact(conditions, operations)


class Outcomes:
    """What came of each creation."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.made: list[str] = []
        self.failed: dict[str, type[DanubeError]] = {}

    async def create(self, name: str, partitions: int = 0) -> None:
        try:
            await self.catalogue.creations.create(name, Durability.DISK, partitions)
            self.made.append(name)
        except DanubeError as error:
            self.failed[name] = type(error)


def names(count: int) -> list[str]:
    return [f"/default/t{number:03}" for number in range(count)]


async def check(catalogue: Catalogue, store: FaultyMetadataStore) -> None:
    """Check that tables and store agree, and that each topic has its assignments."""
    again = await loaded(store)
    assert list(catalogue.topics()) == list(again.topics())
    assert dict(catalogue.membership.assignments.values) == dict(again.membership.assignments.values)
    ids = [topic_id for _, record in again.topics() for topic_id in record.topic_ids]
    assert sorted(ids) == sorted(int(name, 16) for name in again.membership.assignments.values)
    assert catalogue._partitions == again._partitions == len(ids)
    assert sum(catalogue.membership.placing.values()) == 0


async def test_creations_that_wait_go_into_one_transaction() -> None:
    async with CountingStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.latency_s = 0.01
        outcomes = Outcomes(catalogue)
        before = store.count
        async with trio.open_nursery() as nursery:
            for name in names(200):
                nursery.start_soon(outcomes.create, name)
        assert sorted(outcomes.made) == names(200)
        assert store.count - before <= 6, "the first one, and four with as many as fit"
        store.latency_s = 0.0
        await check(catalogue, store)


async def test_a_creation_that_fails_does_not_fail_its_neighbours() -> None:
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.latency_s = 0.01
        outcomes = Outcomes(catalogue)
        async with trio.open_nursery() as nursery:
            for name in ["/default/t007", "/nowhere/t", *names(20), "/default/t013"]:
                nursery.start_soon(outcomes.create, name)
        assert sorted(outcomes.made) == names(20), "each name once"
        assert outcomes.failed.pop("/nowhere/t") is not None
        assert set(outcomes.failed.values()) == {AlreadyExistsError}
        store.latency_s = 0.0
        await check(catalogue, store)


async def test_a_condition_that_does_not_hold_fails_only_its_own_creation() -> None:
    """Another broker has created two of the topics, and this one does not know of them yet."""
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        await loaded(store)
        await store.put("/brokers/b2", (await store.get("/brokers/b1")).value)  # type: ignore[union-attr]
        catalogue = await loaded(store)
        record = TopicRecord(Durability.DISK, 0, [TopicId(1)], 0)
        for name in ("/default/t003", "/default/t009"):
            await store.put("/topics" + name, msgspec.msgpack.encode(record))
        store.latency_s = 0.01
        outcomes = Outcomes(catalogue)
        async with trio.open_nursery() as nursery:
            for name in names(20):
                nursery.start_soon(outcomes.create, name)
        assert outcomes.failed == {"/default/t003": AlreadyExistsError, "/default/t009": AlreadyExistsError}
        assert len(outcomes.made) == 18


@pytest.mark.parametrize("refusal", [InvalidArgumentError, LimitExceededError, PermissionDeniedError])
async def test_a_record_that_the_store_refuses_fails_only_its_own_creation(refusal: type[DanubeError]) -> None:
    class Refusing(CountingStore):
        async def transact(self, conditions: Any, operations: Any) -> TransactionResult:
            if any(each.key.endswith("/t007") for each in operations):
                self.count += 1
                raise refusal("the value of t007 is refused")
            return await super().transact(conditions, operations)

    async with Refusing(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.latency_s = 0.01
        outcomes = Outcomes(catalogue)
        async with trio.open_nursery() as nursery:
            for name in names(20):
                nursery.start_soon(outcomes.create, name)
        assert outcomes.failed == {"/default/t007": refusal}
        assert sorted(outcomes.made) == [name for name in names(20) if name != "/default/t007"]
        store.latency_s = 0.0
        await check(catalogue, store)


async def test_a_store_that_does_not_answer_is_not_asked_for_each_creation_of_a_group() -> None:
    async with CountingStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.latency_s = 0.01
        outcomes = Outcomes(catalogue)
        async with trio.open_nursery() as nursery:
            for name in names(20):
                nursery.start_soon(outcomes.create, name)
            store.refuse = 1.0
            before = store.count
        assert set(outcomes.failed.values()) == {UnavailableError}
        assert store.count - before <= 3


async def test_if_the_task_that_commits_goes_away_the_others_settle_it() -> None:
    for after_ms in range(1, 40, 3):
        async with FaultyMetadataStore(MemoryStore(), random.Random(after_ms)) as store:
            catalogue = await loaded(store)
            store.latency_s = 0.02
            outcomes = Outcomes(catalogue)
            async with trio.open_nursery() as nursery:
                leaving = trio.CancelScope()

                async def leave(leaving: trio.CancelScope = leaving, outcomes: Outcomes = outcomes) -> None:
                    with leaving:
                        async with trio.open_nursery() as inner:
                            for name in ["/default/gone0", "/default/gone1"]:
                                inner.start_soon(outcomes.create, name)

                nursery.start_soon(leave)
                await trio.sleep(0.0001)
                for name in names(10):
                    nursery.start_soon(outcomes.create, name)
                await trio.sleep(after_ms / 1000)
                leaving.cancel()
            assert not outcomes.failed
            assert set(names(10)) <= set(outcomes.made)
            store.latency_s = 0.0
            await catalogue.create_namespace("next")
            await check(catalogue, store)


@pytest.mark.parametrize("how", ["lost", "late"])
async def test_a_transaction_of_several_creations_in_doubt_is_settled(how: str, autojump_clock: object) -> None:
    async with AwayStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        outcomes = Outcomes(catalogue)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(catalogue.run)
            store.how = how
            async with trio.open_nursery() as inner:
                for name in names(10):
                    inner.start_soon(outcomes.create, name)
            assert set(outcomes.failed.values()) == {UnavailableError}
            assert len(outcomes.failed) == 10
            await trio.sleep(5)
            store.refuse = 0.0
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        await store.arrive()
        assert len(list(catalogue.topics())) in (1, 10) if how == "lost" else not list(catalogue.topics())
        await check(catalogue, store)


async def test_the_limit_of_topics_holds_for_those_that_are_created_together() -> None:
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        catalogue._limits = catalogue.creations._limits = Limits(max_topics=11)
        store.latency_s = 0.01
        outcomes = Outcomes(catalogue)
        async with trio.open_nursery() as nursery:
            for name in names(20):
                nursery.start_soon(outcomes.create, name, 2)
        assert len(outcomes.made) == 5
        assert set(outcomes.failed.values()) == {LimitExceededError}


async def test_owners_of_topics_that_are_created_together_are_spread() -> None:
    """Each one counts for the next, although none is in the tables yet."""
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        placed: list[int] = []

        def place(count: int, existing: object) -> list[Any]:
            placed.append(catalogue.membership.candidates()[0].topics)
            return [catalogue.membership.me] * count

        async with trio.open_nursery() as nursery:
            for name in names(30):
                nursery.start_soon(catalogue.creations.create, name, Durability.DISK, 0, "default", None, place)
        assert placed == list(range(30))
        await check(catalogue, store)


async def test_a_creation_in_several_transactions_that_is_cancelled_leaves_all_or_nothing() -> None:
    """The name was taken until the end of this broker's session.

    A creation that is cancelled while the answer to its last transaction is on its way may have been applied.
    """
    applied = set()
    for after_ms in (1, 25, 60, 110, *range(140, 300, 20)):
        async with FaultyMetadataStore(MemoryStore(), random.Random(after_ms)) as store:
            catalogue = await loaded(store)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(catalogue.run)
                store.latency_s = 0.02
                with trio.move_on_after(after_ms / 1000):
                    await catalogue.creations.create("/default/parts", Durability.DISK, 500)
                store.latency_s = 0.0
                await trio.sleep(5)
                assert (await store.list(CREATING))[0] == []
                found = catalogue.find("/default/parts")
                applied.add(found is not None)
                if found is not None:
                    await check(catalogue, store)
                else:  # the coordinator removes the assignments that are left
                    found = await catalogue.creations.create("/default/parts", Durability.DISK, 500)
                assert len(found.topic_ids) == 500
                assert (await loaded(store)).find("/default/parts") == found
                nursery.cancel_scope.cancel()
    assert applied == {True, False}


async def test_creations_enlargements_and_deletions_at_random() -> None:
    """With lost, late and refused answers and cancelled callers: in the end tables and store agree."""
    for seed in range(40):
        chance = random.Random(seed)
        async with FaultyMetadataStore(MemoryStore(), random.Random(seed)) as store:
            catalogue = await loaded(store)
            store.latency_s = 0.01
            counts: Counter[str] = Counter()

            async def one(
                chance: random.Random = chance, catalogue: Catalogue = catalogue, counts: Counter[str] = counts
            ) -> None:
                await trio.sleep(chance.random() / 10)
                name = f"/default/{chance.randrange(12)}"
                with suppress(DanubeError), trio.move_on_after(chance.choice([0.005, 0.02, 10.0, 10.0])) as scope:
                    match chance.randrange(4):
                        case 0:
                            await catalogue.deletions.delete(name)
                        case 1:
                            await catalogue.creations.enlarge(name, chance.randrange(1, 6))
                        case _:
                            await catalogue.creations.create(name, Durability.DISK, chance.choice([0, 3, 70]))
                    counts["done"] += 1
                counts["cancelled"] += scope.cancelled_caught

            async with trio.open_nursery() as nursery:
                nursery.start_soon(catalogue.run)
                async with trio.open_nursery() as inner:
                    for _ in range(60):
                        inner.start_soon(one)
                    await trio.sleep(0.03)
                    store.lose_answer, store.refuse, store.hold = 0.1, 0.05, 0.05
                    await trio.sleep(0.05)
                    store.lose_answer = store.refuse = store.hold = 0.0
                await trio.sleep(10)
                await store.arrive()
                await trio.sleep(10)
                nursery.cancel_scope.cancel()
            assert counts["done"] > 5
            assert counts["cancelled"]
            store.latency_s = 0.0
            again = await loaded(store)
            assert list(catalogue.topics()) == list(again.topics())
            assert dict(catalogue.membership.assignments.values) == dict(again.membership.assignments.values)
            assert not catalogue.tables.creating.values
            assert catalogue._partitions == again._partitions
            assigned = {int(name, 16) for name in again.membership.assignments.values}
            assert {each for _, record in again.topics() for each in record.topic_ids} <= assigned
