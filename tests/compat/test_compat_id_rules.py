"""The ids of official clients' consumers by themselves: how they are assigned, kept and freed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from danube.compat.consumer_ids import ConsumerIds
from danube.compat.consumer_index import ConsumerRecord, KnownConsumer
from danube.metadata import Delete, MemoryStore, Put
from danube.model import Limits, SubscriptionType
from danube.model.errors import LimitExceededError, UnavailableError

SHARED, FAILOVER = SubscriptionType.SHARED, SubscriptionType.FAILOVER
STREAM = cast("Any", object())


class Store(MemoryStore):
    """Counts what is written; may refuse it, or lose the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[str] = []
        self.deleted: list[int] = []
        self.refuses = self.loses = False

    async def transact(self, conditions: Sequence[Any], operations: Sequence[Any]) -> Any:
        if self.refuses:
            raise UnavailableError("away")
        records = [each for each in operations if not each.key.startswith("/writers/")]
        self.puts += [each.key for each in records if isinstance(each, Put)]
        if records and all(isinstance(each, Delete) for each in records):
            self.deleted.append(len(records))
        result = await super().transact(conditions, operations)
        if self.loses:
            self.refuses = True
            raise UnavailableError("lost")
        return result


class World:
    def __init__(self, store: Store, **limits: Any) -> None:
        self.store = store
        self.gone: set[str] = set()
        """Subscriptions that do not exist (any more)."""
        self.next_id = 0
        self.limits = Limits(**limits)
        self.ids = self.life()

    def life(self) -> ConsumerIds:
        return ConsumerIds(self.store, "b1", self.limits, self.new_id, self.exists)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def exists(self, consumer: KnownConsumer) -> bool:
        return consumer.record.subscription not in self.gone

    async def register(self, name: str, subscription: str = "s", topic_id: int = 7, **changed: Any) -> KnownConsumer:
        fields: dict[str, Any] = {"subscription_id": 5, "name": name, "type": SHARED, **changed}
        record = ConsumerRecord(topic_id=topic_id, topic=f"/default/{topic_id}", subscription=subscription, **fields)
        return await self.ids.register(record, 55)

    async def stored(self) -> dict[int, str]:
        """Names by id, as the next life of the broker will find them."""
        found = {}
        for item in (await self.store.list("/compat/consumers/"))[0]:
            record = msgspec.msgpack.decode(item.value, type=ConsumerRecord)
            found[int(item.key.rpartition("/")[2], 16)] = record.name
        return found

    async def agrees(self) -> None:
        """What is known is what is stored."""
        stored = await self.stored()
        assert len(self.ids) == len(stored)
        for consumer_id, name in stored.items():
            known = self.ids._index._known[consumer_id]
            record = known.record
            assert record.name == name
            assert self.ids._index._by_topic[record.topic_id][record.subscription, name] is known
        assert sum(map(len, self.ids._index._by_topic.values())) == len(stored)
        assert all(self.ids._index._by_topic.values()), "a topic without consumers leaves nothing behind"


@asynccontextmanager
async def world_of(**limits: Any) -> AsyncGenerator[World, None]:
    async with Store() as store:
        world = World(store, **limits)
        await world.ids.load()
        yield world


async def test_a_name_has_one_id_in_each_subscription_and_topic() -> None:
    async with world_of() as world:
        ann = await world.register("ann")
        assert (ann.consumer_id, ann.subscription_id, ann.stream, ann.active) == (1, 55, None, True)
        others = [
            await world.register("bob"),
            await world.register("ann", "t"),
            await world.register("ann", topic_id=8),
        ]
        assert [each.consumer_id for each in others] == [2, 3, 4]
        assert await world.register("ann") is ann
        assert len(world.store.puts) == 4, "nothing is written where nothing has changed"
        assert world.ids.find(1) is ann
        assert world.ids.named(7, "s", "ann") is ann
        assert world.ids.named(7, "s", "eve") is world.ids.named(9, "s", "ann") is world.ids.find(99) is None
        await world.agrees()


async def test_another_record_of_a_name_is_written_and_kept_under_its_id() -> None:
    async with world_of() as world:
        ann = await world.register("ann")
        assert (await world.register("ann", type=FAILOVER, key_filters=("a*",))) is ann
        assert (ann.record.type, ann.record.key_filters) == (FAILOVER, ("a*",))
        world.ids = world.life()
        await world.ids.load()
        known = world.ids.find(1)
        assert known is not None
        assert known.record == ann.record
        assert known.subscription_id == 5, "until it is seen in this life, the one that is written down"
        world.store.refuses = True
        with pytest.raises(UnavailableError):
            await world.register("ann", type=SHARED)
        assert known.record.type is FAILOVER, "what is not stored does not count"
        with pytest.raises(UnavailableError):
            await world.register("bob")
        await world.agrees()


async def test_an_id_whose_answer_was_lost_is_the_one_that_is_given_next() -> None:
    async with world_of() as world:
        world.store.loses = True
        with pytest.raises(UnavailableError, match="away"):
            await world.register("ann")
        assert len(world.ids) == 0
        world.store.refuses = world.store.loses = False
        assert (await world.register("ann")).consumer_id == 1
        assert await world.stored() == {1: "ann"}
        world.store.loses = True
        world.gone.add("s")
        with pytest.raises(UnavailableError):
            await world.ids.sweep()
        assert len(world.ids) == 1, "it is not certain yet"
        world.store.refuses = world.store.loses = False
        assert await world.ids.sweep() == 0
        await world.agrees()


async def test_an_id_goes_with_its_subscription() -> None:
    async with world_of() as world:
        await world.register("ann")
        await world.register("ann", "other")
        world.gone.add("s")
        assert world.ids.find(1) is world.ids.named(7, "s", "ann") is None
        assert world.ids.find(2) is not None
        world.gone.clear()
        assert world.ids.find(1) is not None, "it may have been away, and not deleted"
        world.gone.add("s")
        assert (await world.register("ann")).consumer_id == 3, "one of a deleted subscription is not the new one's"
        assert await world.stored() == {2: "ann", 3: "ann"}
        await world.agrees()


async def test_two_that_register_one_name_at_once_get_one_id() -> None:
    async with world_of() as world:
        found: list[int] = []

        async def register() -> None:
            found.append((await world.register("ann")).consumer_id)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(register)
        assert found == [1, 1, 1]
        await world.agrees()


async def test_who_is_there_or_expected(autojump_clock: trio.testing.MockClock) -> None:
    async with world_of() as world:
        ann, bob, cyd = [await world.register(name) for name in ("ann", "bob", "cyd")]
        other = await world.register("dan", "t")
        assert world.ids.of(7) == []
        ann.stream = other.stream = STREAM
        bob.expected_until = trio.current_time() + 5.0
        assert world.ids.of(7) == [ann, bob, other]
        assert world.ids.of(7, "s") == [ann, bob]
        assert world.ids.of(7, "t") == [other]
        assert world.ids.of(8) == []
        await trio.sleep(5.0)
        assert world.ids.of(7, "s") == [ann]
        assert cyd.stream is None


async def test_the_least_recently_used_make_room(autojump_clock: trio.testing.MockClock) -> None:
    async with world_of(max_compat_consumers=3) as world:
        for name in ("a", "b", "c"):
            await world.register(name)
            await trio.sleep(1)
        assert world.ids.named(7, "s", "a") is not None  # it is heard of
        await trio.sleep(1)
        assert (await world.register("d")).consumer_id == 4
        assert sorted((await world.stored()).values()) == ["a", "c", "d"]
        world.ids.find(3)
        connected = world.ids.find(4)
        assert connected is not None
        connected.stream = STREAM
        await trio.sleep(1)
        world.ids.find(3)
        await world.register("e")
        assert sorted((await world.stored()).values()) == ["c", "d", "e"]
        for each in world.ids._index._known.values():
            each.stream = STREAM
        with pytest.raises(LimitExceededError, match="max_compat_consumers = 3"):
            await world.register("f")
        assert (await world.register("e")).consumer_id == 5, "who has an id needs no room"
        await world.agrees()


async def test_room_is_made_for_some_at_a_time_and_by_the_outdated_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world_of(max_compat_consumers=200, compat_consumer_expiry_s=1000.0) as world:
        for number in range(200):
            await world.register(f"c{number}", "gone" if number in (50, 60) else "s")
            await trio.sleep(0.01)
        world.gone.add("gone")
        await world.register("one")
        assert len(world.ids) == 199, "the two whose subscription is gone were enough"
        await world.register("two")
        assert world.ids.named(7, "s", "c0") is not None
        await world.register("three")
        assert len(world.ids) == 198, "one in a hundred and one more go together"
        assert world.ids.find(2) is world.ids.find(3) is world.ids.find(4) is None, "the oldest that were not heard of"
        assert world.ids.find(5) is not None
        await world.agrees()


async def test_a_sweep_removes_ids_that_are_idle_and_disconnected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with world_of(compat_consumer_expiry_s=100.0) as world:
        for name in ("idle", "connected", "used"):
            await world.register(name)
        orphan = await world.register("orphan", "t")
        world.ids._index._known[2].stream = orphan.stream = STREAM
        await trio.sleep(100.0)
        assert await world.ids.sweep() == 0
        world.ids.find(3)
        await trio.sleep(0.5)
        assert await world.ids.sweep() == 1
        assert await world.stored() == {2: "connected", 3: "used", 4: "orphan"}
        world.gone.add("t")
        assert await world.ids.sweep() == 1, "without its subscription no consumer exists"
        assert await world.stored() == {2: "connected", 3: "used"}
        await world.agrees()


async def test_many_are_forgotten_in_several_transactions() -> None:
    async with world_of() as world:
        for number in range(250):
            await world.register(f"c{number}")
        await world.register("stays", "t")
        world.gone.add("s")
        assert await world.ids.sweep() == 250
        assert world.store.deleted == [100, 100, 50]
        assert await world.stored() == {251: "stays"}
        await world.agrees()
        world.gone.add("t")
        assert await world.ids.sweep() == 1
        assert len(world.ids) == 0
        await world.agrees()


async def test_an_id_that_is_being_removed_is_not_found(autojump_clock: trio.testing.MockClock) -> None:
    """A client opened a stream under an id that was then removed below it."""
    async with world_of(max_compat_consumers=2, compat_consumer_expiry_s=1.0) as world:
        ann, bob = await world.register("ann"), await world.register("bob")
        await trio.sleep(2)
        transact, seen = world.store.transact, []

        async def slow(conditions: Sequence[Any], operations: Sequence[Any]) -> Any:
            seen.append(world.ids.find(ann.consumer_id))
            return await transact(conditions, operations)

        world.store.transact = slow  # type: ignore[method-assign]
        bob.stream = STREAM
        assert await world.ids.sweep() >= 1
        assert seen == [None]
        assert world.ids.find(bob.consumer_id) is bob
        await world.agrees()


async def test_an_id_that_could_not_be_removed_is_found_again(autojump_clock: trio.testing.MockClock) -> None:
    async with world_of(compat_consumer_expiry_s=1.0) as world:
        ann = await world.register("ann")
        await trio.sleep(2)
        world.store.refuses = True
        with pytest.raises(UnavailableError):
            await world.ids.sweep()
        assert world.ids.find(ann.consumer_id) is ann
