"""No part enters the catalogue before its schemas are in the bucket, wherever the broker dies, whatever fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

import msgspec
import pytest
from history_lives import Cut, World, run_lives
from test_history_crash import busy_day
from test_history_weather import day_in_bad_weather

from danube.history import schemas
from danube.history.changes import SEGMENTS
from danube.history.parts import PartRecord
from danube.history.schemas import SchemaKeeper
from danube.metadata import Delete, Put
from danube.model.errors import StorageError, UnavailableError
from danube.model.limits import Limits
from danube.schema.modes import SchemaType
from danube.schema.objects import SchemaObject, SubjectNote, decode_object, encode_object
from danube.schema.records import NumberRecord, VersionRecord
from danube.storage import MemoryBackend, MemorySpace, Storage, StorageBackend
from danube.testing.storage_faults import FaultyStorage

UNKNOWN = 4_000_000_000
NUMBERS = (3, 5, UNKNOWN, 8, 0)
KNOWN = {3, 5, 8}


def schema(number: int, text: str = "") -> SchemaObject:
    return SchemaObject(number, NumberRecord(SchemaType.STRING, text, b"%d%s" % (number, text.encode())))


class Source:
    """A registry that knows some numbers, and counts how often it is asked."""

    def __init__(self, *known: int) -> None:
        self.known = known
        self.asked: list[list[int]] = []
        self.failure: Exception | None = None

    async def schema_objects(self, numbers: Collection[int]) -> Mapping[int, SchemaObject]:
        self.asked.append(sorted(numbers))
        if self.failure is not None:
            raise self.failure
        return {number: schema(number) for number in sorted(numbers) if number in self.known}


def with_schemas(world: World) -> list[int]:
    """Have the batches of a world carry schemas; return the number of parts that were entered, as its only item."""
    world.schemas, world.schema_ids = Source(*KNOWN), NUMBERS
    entered = [0]

    def watch(operations: Sequence[Put | Delete]) -> None:
        for operation in operations:
            if not isinstance(operation, Put) or not operation.key.startswith(SEGMENTS):
                continue
            part = msgspec.msgpack.decode(operation.value, type=PartRecord).part
            batches = world.topics[part.topic_id].batches
            carried = {b.header.schema_id for b in batches if part.base_offset <= b.base_offset < part.end_offset}
            for number in carried & KNOWN:
                data, _ = world.space.objects[f"schemas/c/{number}"]
                assert decode_object(data, "") == schema(number)
            entered[0] += bool(carried & KNOWN)

    world.watch = watch
    return entered


def kept(world: World) -> list[str]:
    return sorted(key for key in world.space.objects if key.startswith("schemas/"))


def test_schemas_come_first_wherever_the_broker_dies() -> None:
    cut = Cut(1 << 60)

    async def count(world: World) -> None:
        entered = with_schemas(world)
        assert await world.live(busy_day, cut)
        assert entered[0] > 5
        assert kept(world) == ["schemas/c/3", "schemas/c/5", "schemas/c/8"]
        assert len(world.schemas.asked) > 3  # type: ignore[attr-defined]
        assert world.schemas.asked[-1] == [UNKNOWN], "what is stored is not asked for again"  # type: ignore[attr-defined]

    run_lives(count, 0)
    for at in range(0, cut.steps, 3):

        async def work(world: World, at: int = at) -> None:
            with_schemas(world)
            assert not await world.live(busy_day, Cut(at))
            await world.check(f"death at step {at} of {cut.steps}")
            assert len(kept(world)) == len(KNOWN)

        run_lives(work, 0)


@pytest.mark.parametrize("seed", range(3))
def test_schemas_come_first_in_bad_weather(seed: int) -> None:
    async def scenario(world: World) -> None:
        with_schemas(world)

        def wrap(backend: StorageBackend) -> StorageBackend:
            return FaultyStorage(backend, world.random, latency_s=0.02, unavailable=0.2, lose_answer=0.2, corrupt=0.02)

        for life in range(3):
            await world.live(day_in_bad_weather(world.random), Cut(world.random.choice((20, 60))), wrap=wrap)
            await world.check(f"seed {seed}, life {life}")
        assert set(kept(world)) <= {f"schemas/c/{number}" for number in KNOWN}

    run_lives(scenario, seed)


# --- One keeper, on its own


def stored(source: Source, backend: MemoryBackend | None = None) -> tuple[SchemaKeeper, MemorySpace]:
    space = MemorySpace()
    if backend is None:
        backend = MemoryBackend(space, url="memory://box", durable=True, wall_clock_us=lambda: 1)
    storage = Storage(backend, random=Random(1), limits=Limits(storage_max_attempts=1))
    return SchemaKeeper(storage, "c", source), space


async def test_what_is_stored_is_not_asked_for_again_and_what_is_unknown_is() -> None:
    source = Source(1, 2)
    keeper, space = stored(source)
    await keeper.keep(set())
    await keeper.keep({1, 9})
    await keeper.keep({1})
    await keeper.keep({1, 2, 9})
    assert source.asked == [[1, 9], [2, 9]]
    assert sorted(space.objects) == ["schemas/c/1", "schemas/c/2"]


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_REMEMBERED", 2)
    source = Source(*range(1, 6))
    keeper, space = stored(source)
    await keeper.keep(range(1, 6))
    await keeper.keep([4, 5])
    assert len(source.asked) == 1
    await keeper.keep([1])
    assert source.asked[-1] == [1]
    assert len(space.objects) == 5


async def test_metadata_that_do_not_answer_delay_the_history() -> None:
    source = Source(1)
    source.failure = UnavailableError("no leader")
    keeper, space = stored(source)
    with pytest.raises(UnavailableError, match="no leader"):
        await keeper.keep({1})
    source.failure = None
    await keeper.keep({1})
    assert list(space.objects) == ["schemas/c/1"]


async def test_the_first_of_two_brokers_counts() -> None:
    space = MemorySpace()
    first = SchemaObject(1, schema(1).schema, (SubjectNote("a", 2, (VersionRecord(1, 1),)),))

    class Raced(MemoryBackend):
        async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
            assert if_absent
            if not space.objects:
                space.store(key, encode_object(first), 1)
            await super().put(key, data, if_absent=if_absent)

    keeper, _ = stored(Source(1), Raced(space, url="memory://box", durable=True, wall_clock_us=lambda: 1))
    await keeper.keep({1})
    assert decode_object(space.objects["schemas/c/1"][0], "") == first


async def test_another_schema_with_the_number_stays_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    keeper, space = stored(Source(1))
    other = encode_object(SchemaObject(1, schema(1, "other").schema))
    space.store("schemas/c/1", other, 1)
    await keeper.keep({1})
    assert space.objects["schemas/c/1"][0] == other
    assert "memory://box/schemas/c/1 is another schema than number 1 of the registry" in caplog.text


async def test_a_storage_that_does_not_keep_what_it_was_given_is_not_believed() -> None:
    space = MemorySpace()

    class Liar(MemoryBackend):
        async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
            space.store(key, bytes(data[:-1]), 1)

    keeper, _ = stored(Source(1), Liar(space, url="memory://box", durable=True, wall_clock_us=lambda: 1))
    for _ in range(2):
        with pytest.raises(StorageError, match=r"memory://box/schemas/c/1 differs.*will be retried"):
            await keeper.keep({1})
