"""Reading sealed parts: exactly the sealed batches, for any bounds, faults and concurrent readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed import build, claim, make_batch, make_batches, run_virtual, same

from danube.history.catalogue import HistoryCatalogue
from danube.history.parts import ObjectRef, PartRecord
from danube.history.reader import SegmentReader
from danube.log import StoredBatch
from danube.metadata.memory import MemoryStore
from danube.model.errors import (
    CorruptBatchError,
    DataLossError,
    StorageDeniedError,
    StorageError,
    StorageNotFoundError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import Limits
from danube.storage import MemoryBackend, Storage


class WatchedBackend(MemoryBackend):
    """Notes every get; ``before`` may raise, or wait."""

    def __init__(self) -> None:
        super().__init__(url="memory://box")
        self.gets: list[tuple[str, int, int | None]] = []
        self.before: Callable[[str, int, int | None], Awaitable[None]] | None = None
        self.change: Callable[[str, int, bytes], bytes] | None = None

    async def get(self, key, start=0, end=None):
        self.gets.append((key, start, end))
        if self.before is not None:
            await self.before(key, start, end)
        data = await super().get(key, start, end)
        return self.change(key, start, data) if self.change is not None else data


class World:
    """A catalogue, a backend with sealed objects, a reader, and the truth: every batch by topic."""

    def __init__(self, catalogue: HistoryCatalogue, *, chunk_bytes: int, first_bytes: int, cache_bytes: int) -> None:
        self.catalogue = catalogue
        self.backend = WatchedBackend()
        limits = Limits(storage_max_attempts=1, segment_cache_bytes=cache_bytes)
        self.storage = Storage(self.backend, random=Random(1), limits=limits)
        self.reader = SegmentReader(
            catalogue, {"default": self.storage}, limits, chunk_bytes=chunk_bytes, first_bytes=first_bytes
        )
        self.truth: dict[int, list[StoredBatch]] = {}
        self.objects = 0

    async def seal(self, parts: dict[int, list[StoredBatch]]) -> ObjectRef:
        """Store an object and enter it."""
        self.objects += 1
        ref = ObjectRef("default", f"segments/c/{self.objects:04}.seg")
        data, footer = build(parts)
        self.backend.space.store(ref.key, data, 0)
        await self.catalogue.enter(ref, len(data), 50, footer.parts)
        for topic_id, batches in parts.items():
            self.truth.setdefault(topic_id, []).extend(batches)
        return ref

    async def merge(self, topic_id: int, at: int = 0, count: int = 2) -> None:
        """Rewrite neighbours as one part, and delete their former objects."""
        old = self.catalogue.topic(topic_id).parts[at : at + count]
        low, high = old[0].part.base_offset, old[-1].part.end_offset
        self.objects += 1
        ref = ObjectRef("default", f"segments/c/{self.objects:04}.seg")
        data, footer = build({topic_id: [b for b in self.truth[topic_id] if low <= b.base_offset < high]})
        self.backend.space.store(ref.key, data, 0)
        assert await self.catalogue.replace(old, ref, len(data), 60, footer.parts[0])
        for garbage in self.catalogue.garbage_until(61):
            self.backend.space.remove(garbage.key)
            await self.catalogue.forget_objects([garbage])

    def damage(self, ref: ObjectRef, at: int) -> None:
        data, time_us = self.backend.space.objects[ref.key]
        self.backend.space.store(ref.key, data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :], time_us)

    def from_offset(self, topic_id: int, offset: int) -> list[StoredBatch]:
        return [batch for batch in self.truth.get(topic_id, []) if batch.end_offset > offset]

    async def replay(self, topic_id: int, offset: int, max_bytes: int = 1000) -> list[StoredBatch]:
        """Read to the end."""
        found: list[StoredBatch] = []
        while batches := await self.reader.read(topic_id, offset, max_bytes):
            found += batches
            offset = batches[-1].end_offset
        return found

    def record(self, topic_id: int, number: int = 0) -> PartRecord:
        return self.catalogue.topic(topic_id).parts[number]


@asynccontextmanager
async def opened(
    *, chunk_bytes: int = 1000, first_bytes: int = 300, cache_bytes: int = 0, running: bool = True
) -> AsyncIterator[World]:
    async with MemoryStore() as store:
        catalogue = await claim(store, "one")
        world = World(catalogue, chunk_bytes=chunk_bytes, first_bytes=first_bytes, cache_bytes=cache_bytes)
        async with trio.open_nursery() as nursery:
            if running:
                await nursery.start(world.reader.run)
            yield world
            nursery.cancel_scope.cancel()


# Against a model


async def random_world(world: World, random: Random) -> None:
    """Three topics in several objects, some alone, some shared; offsets with holes between some parts."""
    ends = dict.fromkeys((1, 2, 3), 0)
    time_us = 1000
    for _ in range(random.randrange(1, 7)):
        parts = {}
        for topic_id in random.sample(list(ends), random.randrange(1, 4)):
            base = ends[topic_id] + (random.randrange(1, 9) if random.random() < 0.2 else 0)
            sizes = random.choice(((0, 5), (5, 80, 700), (1300,)))
            count = random.choice((1, 3, 12))
            parts[topic_id] = make_batches(random, topic_id, count, base=base, time_us=time_us, sizes=sizes)
            ends[topic_id] = parts[topic_id][-1].end_offset
        time_us += random.randrange(-300, 2000)
        await world.seal(parts)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(200, 4000), st.integers(1, 2000), st.sampled_from((0, 30_000)))
def test_any_read_from_anywhere(seed: int, chunk_bytes: int, first_bytes: int, cache_bytes: int) -> None:
    run_virtual(any_read_from_anywhere, seed, chunk_bytes, first_bytes, cache_bytes)


async def any_read_from_anywhere(seed: int, chunk_bytes: int, first_bytes: int, cache_bytes: int) -> None:
    random = Random(seed)
    async with opened(chunk_bytes=chunk_bytes, first_bytes=first_bytes, cache_bytes=cache_bytes) as world:
        await random_world(world, random)
        places = [(topic_id, 0) for topic_id in (1, 2, 3)]
        for _ in range(40):
            topic_id, offset = random.choice(places)
            if random.random() < 0.3:
                offset = random.randrange(world.reader.end_offset(topic_id) + 2)
            max_bytes = random.choice((1, 500, 3000, 100_000))
            expected = world.from_offset(topic_id, offset)
            found = await world.reader.read(topic_id, offset, max_bytes)
            assert same(found, expected[: len(found)])
            assert bool(found) == bool(expected)
            assert sum(len(batch.part) for batch in found[:-1]) < max_bytes
            if found:
                places.append((topic_id, found[-1].end_offset))
        for topic_id in (1, 2, 3):
            found = await world.replay(topic_id, 0, random.choice((1, 900, 100_000)))
            assert same(found, world.from_offset(topic_id, 0))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_any_time(seed: int) -> None:
    run_virtual(any_time, seed)


async def any_time(seed: int) -> None:
    random = Random(seed)
    async with opened(chunk_bytes=random.choice((100, 1000)), first_bytes=random.choice((90, 400))) as world:
        await random_world(world, random)
        for topic_id, batches in world.truth.items():
            times = {batch.append_time_us for batch in batches}
            wanted = sorted({0, 10**9} | {time + step for time in times for step in (-1, 0, 1)})
            for time_us in random.sample(wanted, min(12, len(wanted))):
                expected = next((b.base_offset for b in batches if b.append_time_us >= time_us), None)
                assert await world.reader.offset_at(topic_id, time_us) == expected
        assert await world.reader.offset_at(99, 0) is None


async def test_nothing_sealed() -> None:
    async with opened() as world:
        assert await world.reader.read(1, 0, 1000) == []
        assert world.reader.end_offset(1) == 0
        await world.seal({1: make_batches(Random(1), 1, 3)})
        end = world.reader.end_offset(1)
        assert await world.reader.read(1, end, 1000) == []
        assert await world.reader.read(1, end + 5, 1000) == []
        assert await world.reader.read(2, 0, 1000) == []


async def test_expired_batches_are_not_read() -> None:
    async with opened() as world:
        batches = make_batches(Random(1), 1, 12)
        await world.seal({1: batches[:4]})
        await world.seal({1: batches[4:]})
        await world.replay(1, 0)
        await world.catalogue.expire(1, batches[6].base_offset, 60)
        assert same(await world.replay(1, 0), batches[4:])  # what is left of the part; the log begins at its start
        assert same(await world.replay(1, batches[6].base_offset), batches[6:])


# How it fetches


async def test_a_jump_is_one_small_range() -> None:
    async with opened(chunk_bytes=100_000, first_bytes=10_000, cache_bytes=10**6) as world:
        batches = make_batches(Random(1), 1, 400, sizes=(900,))
        ref = await world.seal({1: batches})
        target = batches[300]
        (found, *_) = await world.reader.read(1, target.base_offset, 1)
        assert same([found], [target])
        part = world.record(1).part
        (index, data) = world.backend.gets
        assert index == (ref.key, part.index_start, part.index_end)
        assert data[2] is not None
        assert data[2] - data[1] == 10_000
        # The index is kept.
        await world.reader.read(1, batches[100].base_offset, 1)
        assert len(world.backend.gets) == 3


async def test_going_on_reads_ahead_each_byte_once() -> None:
    async with opened(chunk_bytes=10_000, first_bytes=2000, cache_bytes=10**6) as world:
        batches = make_batches(Random(1), 1, 200, sizes=(900,))
        await world.seal({1: batches[:100]})
        ref = await world.seal({1: batches[100:]})
        assert same(await world.replay(1, 0, 3000), batches)
        chunks = Counter((key, start) for key, start, _ in world.backend.gets)
        assert max(chunks.values()) == 1
        # Two parts of 180 kB in chunks of 10 kB, a small range to begin with, and at most one more behind each.
        assert len(world.backend.gets) < 2 * (180_000 // 10_000 + 3)
        size = len(world.backend.space.objects[ref.key][0])
        assert all(end is not None and end <= size for key, _, end in world.backend.gets if key == ref.key)
        # Another reader of the same finds it in the cache, but for what it jumps into.
        before = len(world.backend.gets)
        assert same(await world.replay(1, 0, 3000), batches)
        assert len(world.backend.gets) - before <= 2


async def test_small_parts_cost_one_range_each() -> None:
    async with opened(chunk_bytes=100_000, first_bytes=10_000) as world:
        batches = make_batches(Random(1), 1, 30, sizes=(50,))
        for at in range(0, 30, 3):
            other = make_batches(Random(at), 2, 3, base=100 * at, sizes=(50,))
            await world.seal({2: other, 1: batches[at : at + 3]})
        assert same(await world.replay(1, 0), batches)
        ranges = [(record.object, record.part.start, record.part.end) for record in world.catalogue.topic(1).parts]
        assert world.backend.gets == ranges


async def test_the_cache_is_bounded() -> None:
    async with opened(chunk_bytes=1000, first_bytes=100, cache_bytes=20_000) as world:
        batches = make_batches(Random(1), 1, 200, sizes=(900,))
        await world.seal({1: batches})
        assert same(await world.replay(1, 0, 3000), batches)
        reader = world.reader
        assert 0 < len(reader._chunks) <= 20
        assert sum(map(len, reader._chunks.values())) <= 20_000
        assert not reader._fetches
        assert len(reader._streams) <= 2


async def test_indexes_of_many_parts_do_not_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danube.history.reader._INDEX_CACHE_BYTES", 2000)
    async with opened(first_bytes=100) as world:
        batches = make_batches(Random(1), 1, 60, sizes=(900,))
        for at in range(0, 60, 6):
            await world.seal({1: batches[at : at + 6]})
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for batch in batches:  # several at a time want the same index
                    nursery.start_soon(world.reader.read, 1, batch.base_offset, 1)
        indexes = world.reader._indexes
        assert world.reader._index_bytes == sum(index.size_bytes for index in indexes.values())
        assert 1 < len(indexes) < 5


async def test_readers_of_the_same_share_fetches(autojump_clock: object) -> None:
    async with opened(chunk_bytes=10_000, first_bytes=1, cache_bytes=10**6) as world:
        world.backend.latency_s = 0.01
        batches = make_batches(Random(1), 1, 60, sizes=(900,))
        await world.seal({1: batches})
        results: list[list[StoredBatch]] = []

        async def read() -> None:
            results.append(await world.replay(1, 0, 5000))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(read)
        assert all(same(found, batches) for found in results)
        chunks = Counter((key, start) for key, start, _ in world.backend.gets if start % 10_000 == 0)
        assert len(chunks) >= 4
        assert max(chunks.values()) == 1


async def test_a_cancelled_reader_takes_nothing_from_the_others(autojump_clock: object) -> None:
    async with opened(chunk_bytes=10_000, first_bytes=1, cache_bytes=10**6) as world:
        world.backend.latency_s = 1
        batches = make_batches(Random(1), 1, 30, sizes=(900,))
        await world.seal({1: batches})
        results: list[list[StoredBatch]] = []
        scope = trio.CancelScope()
        behind = (await world.reader.read(1, 0, 1))[-1].end_offset  # who goes on from there reads chunks

        async def impatient() -> None:
            with scope:
                await world.reader.read(1, behind, 5000)

        async def patient() -> None:
            await trio.sleep(0.2)
            results.append(await world.reader.read(1, behind, 5000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(impatient)
            nursery.start_soon(patient)
            await trio.sleep(0.5)
            assert world.reader._fetches  # the first one's chunk is on its way
            scope.cancel()
        assert scope.cancelled_caught
        assert results[0]
        assert results[0][0].base_offset == behind
        chunks = Counter((key, start) for key, start, _ in world.backend.gets if start % 10_000 == 0)
        assert max(chunks.values()) == 1


# What changes under a reader


@pytest.mark.parametrize("seed", range(6))
async def test_parts_are_merged_under_readers(seed: int, autojump_clock: object) -> None:
    random = Random(seed)
    async with opened(chunk_bytes=random.choice((200, 2000)), first_bytes=random.choice((1, 500))) as world:
        batches = make_batches(random, 1, 60, sizes=(5, 80, 700))
        for at in range(0, 60, 5):
            await world.seal({1: batches[at : at + 5], 2: make_batches(random, 2, 2, base=100 * at)})
        world.backend.latency_s = 0.001

        async def read() -> None:
            for _ in range(6):
                offset = random.randrange(batches[-1].end_offset)
                assert same(await world.replay(1, offset, random.choice((500, 2000))), world.from_offset(1, offset))
                time_us = random.choice(batches).append_time_us
                expected = next(batch.base_offset for batch in batches if batch.append_time_us >= time_us)
                assert await world.reader.offset_at(1, time_us) == expected

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read)
            while len(world.catalogue.topic(1).parts) > 2:
                await trio.sleep(random.random() * 0.02)
                await world.merge(1, random.randrange(len(world.catalogue.topic(1).parts) - 1))


async def test_an_object_that_is_gone_is_named() -> None:
    async with opened() as world:
        batches = make_batches(Random(1), 1, 12, sizes=(700,))
        ref = await world.seal({1: batches})
        world.backend.space.remove(ref.key)
        for offset in (0, batches[8].base_offset):  # without, and with its index
            with pytest.raises(DataLossError) as caught:
                await world.reader.read(1, offset, 1)
            message = str(caught.value)
            assert f"{1:016x}" in message
            assert f"[{offset}, {batches[-1].end_offset})" in message
            assert f"memory://box/{ref.key}" in message
            assert "missing" in message
        with pytest.raises(DataLossError, match="missing"):
            await world.reader.offset_at(1, batches[-1].append_time_us)


async def test_an_object_that_was_cut_off_is_named() -> None:
    async with opened(cache_bytes=10**6) as world:
        batches = make_batches(Random(1), 1, 12, sizes=(700,))
        ref = await world.seal({1: batches})
        data, _ = world.backend.space.objects[ref.key]
        for size in (0, 10, 500, world.record(1).part.end - 1):
            world.backend.space.store(ref.key, data[:size], 0)
            world.reader._chunks.clear()
            with pytest.raises(DataLossError, match=f"box/{ref.key}.*missing or truncated"):
                await world.replay(1, 0)
            with pytest.raises(DataLossError, match="missing or truncated"):
                await world.reader.read(1, batches[8].base_offset, 1)


async def test_a_part_that_ends_before_an_offset_that_it_should_hold_is_named() -> None:
    async with opened() as world:
        batches = make_batches(Random(1), 1, 3)
        data, footer = build({1: batches})
        end = batches[-1].end_offset
        part = msgspec.structs.replace(footer.parts[0], end_offset=end + 10)
        world.backend.space.store("segments/c/x.seg", data, 0)
        await world.catalogue.enter(ObjectRef("default", "segments/c/x.seg"), len(data), 50, [part])
        assert same(await world.reader.read(1, 0, 10**6), batches)
        with pytest.raises(DataLossError, match=rf"\[{end}, {end + 10}\) .*the part ends before offset {end};"):
            await world.reader.read(1, end, 10**6)


async def test_a_part_that_goes_on_behind_the_end_of_its_object_is_damaged() -> None:
    async with opened() as world:
        batches = make_batches(Random(1), 1, 3, sizes=(80,))
        data, footer = build({1: batches})
        ref, size = ObjectRef("default", "segments/c/x.seg"), footer.parts[0].end - len(batches[-1].part)
        world.backend.space.store(ref.key, data, 0)
        await world.catalogue.enter(ref, size, 50, footer.parts)
        record = world.record(1)
        assert await world.reader._bytes_at(record, size - 1, 1, 0, fresh=False) == (data[:size], size - 1, size)
        for behind in (size, size + 1):
            with pytest.raises(CorruptBatchError, match="the object is truncated"):
                await world.reader._bytes_at(record, behind, 1, 0, fresh=False)


# Damage


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(200, 4000), st.integers(1, 2000))
def test_any_damage_is_found_and_named_and_never_delivered(seed: int, chunk_bytes: int, first_bytes: int) -> None:
    run_virtual(any_damage, seed, chunk_bytes, first_bytes)


async def any_damage(seed: int, chunk_bytes: int, first_bytes: int) -> None:
    random = Random(seed)
    async with opened(chunk_bytes=chunk_bytes, first_bytes=first_bytes) as world:
        batches = make_batches(random, 1, 20, sizes=(5, 80, 700))
        await world.seal({2: make_batches(random, 2, 3), 1: batches[:8]})
        ref = await world.seal({2: make_batches(random, 2, 3, base=100), 1: batches[8:16]})
        await world.seal({1: batches[16:]})
        part = world.record(1, 1).part
        at = random.randrange(part.start, part.end)
        world.damage(ref, at)
        position, good = part.start, 8
        while position + len(batches[good].part) + 48 <= at:
            position += len(batches[good].part) + 48
            good += 1
        # Everything up to the damaged batch comes; then it is named.
        found = []
        while sum(len(batch.part) for batch in found) < sum(len(batch.part) for batch in batches[:good]):
            offset = found[-1].end_offset if found else 0
            found += await world.reader.read(1, offset, random.choice((1, 1000, 5000)))
        assert same(found, batches[:good])
        with pytest.raises(DataLossError) as caught:
            await world.reader.read(1, found[-1].end_offset, random.choice((1, 1000, 5000)))
        message = str(caught.value)
        assert f"offsets [{batches[good].base_offset}, {part.end_offset})" in message
        assert f"{1:016x}" in message
        assert f"memory://box/{ref.key}, bytes [{part.start}, {part.end})" in message
        assert f"at byte {position}" in message
        # A reader that seeks behind it continues; other topics are not affected.
        assert same(await world.replay(1, part.end_offset), batches[16:])
        assert same(await world.replay(2, 0), world.from_offset(2, 0))


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 2**32), st.integers(200, 4000), st.integers(1, 2000), st.integers(0, 10))
def test_damage_on_the_way_is_fetched_again(seed: int, chunk_bytes: int, first_bytes: int, passed: int) -> None:
    run_virtual(damage_on_the_way, seed, chunk_bytes, first_bytes, passed)


async def damage_on_the_way(seed: int, chunk_bytes: int, first_bytes: int, passed: int) -> None:
    random = Random(seed)
    async with opened(chunk_bytes=chunk_bytes, first_bytes=first_bytes, cache_bytes=10**6) as world:
        batches = make_batches(random, 1, 20, sizes=(5, 80, 700))
        await world.seal({1: batches[:10]})
        await world.seal({1: batches[10:]})
        answers = 0

        def hurt(_key: str, _start: int, data: bytes) -> bytes:
            """Damage one answer. It may be used much later, because it is cached; two cannot be made good."""
            nonlocal answers
            answers += 1
            if answers != passed + 1 or not data:
                return data
            at = random.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

        world.backend.change = hurt
        for _ in range(5):
            offset = random.randrange(batches[-1].end_offset)
            expected = world.from_offset(1, offset)
            found: list[StoredBatch] = []
            while offset < batches[-1].end_offset:
                found += await world.reader.read(1, offset, random.choice((1, 1000, 5000)))
                offset = found[-1].end_offset
            assert same(found, expected)


async def test_a_damaged_index_is_named() -> None:
    async with opened() as world:
        batches = make_batches(Random(1), 1, 20, sizes=(700,))
        ref = await world.seal({1: batches})
        part = world.record(1).part
        for at in range(part.index_start, part.index_end):
            world.damage(ref, at)
            with pytest.raises(DataLossError, match=f"{ref.key}: the index of topic {1:016x}"):
                await world.reader.read(1, batches[15].base_offset, 1)
            with pytest.raises(DataLossError, match="index"):
                await world.reader.check_index(world.record(1))
            world.damage(ref, at)
        assert same(await world.replay(1, batches[15].base_offset), batches[15:])
        await world.reader.check_index(world.record(1))


# The backend


async def test_a_backend_that_is_down_is_told_to_every_reader(autojump_clock: object) -> None:
    async with opened(chunk_bytes=10_000, first_bytes=1, cache_bytes=10**6) as world:
        batches = make_batches(Random(1), 1, 40, sizes=(900,))
        await world.seal({1: batches})
        offset = batches[25].base_offset

        async def down(key: str, start: int, end: int | None) -> None:
            await trio.sleep(1)
            raise StorageTimeoutError(f"{key}: no answer")

        world.backend.before = down
        errors: list[StorageError] = []

        async def read() -> None:
            with pytest.raises(StorageError) as caught:
                await world.reader.read(1, offset, 5000)
            errors.append(caught.value)

        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(read)
        assert len(errors) == 12
        assert all(isinstance(error, StorageTimeoutError) for error in errors)
        with pytest.raises(StorageTimeoutError):
            await world.reader.offset_at(1, batches[20].append_time_us)

        async def denied(key: str, start: int, end: int | None) -> None:
            raise StorageDeniedError(f"{key}: who are you?")

        world.backend.before = denied
        with pytest.raises(StorageDeniedError):
            await world.reader.read(1, offset, 5000)
        world.backend.before = None
        assert same(await world.replay(1, 0), batches)


async def test_a_storage_that_is_not_configured_is_not_damage() -> None:
    async with opened() as world:
        _, footer = build({1: make_batches(Random(1), 1, 3)})
        await world.catalogue.enter(ObjectRef("cold", "segments/c/x.seg"), 99, 50, footer.parts)
        with pytest.raises(StorageError, match="'cold' is not configured") as caught:
            await world.reader.read(1, 0, 1)
        assert not isinstance(caught.value, StorageNotFoundError)


async def test_the_end_of_the_reader_is_not_damage(autojump_clock: object) -> None:
    async with opened(running=False, first_bytes=1) as world:
        await world.seal({1: make_batches(Random(1), 1, 30, sizes=(900,))})
        world.backend.latency_s = 1

        async def read() -> None:
            behind = (await world.reader.read(1, 0, 1))[-1].end_offset
            with pytest.raises(StorageUnavailableError, match="closed"):
                await world.reader.read(1, behind, 1)

        async with trio.open_nursery() as nursery, trio.open_nursery() as life:
            await life.start(world.reader.run)
            nursery.start_soon(read)
            await trio.sleep(2.5)  # index, first read, and half of a chunk
            life.cancel_scope.cancel()


async def test_names_come_out_of_the_footer() -> None:
    async with opened() as world:
        many = {topic_id: [make_batch(topic_id, 0, [b"x"])] for topic_id in range(1, 1500)}
        await world.seal(many)
        assert await world.reader.names(world.record(7)) == ("/default/t7", {1: "maker"})
        assert len(world.backend.gets) == 2  # the footer was larger than the guess
        assert await world.reader.names(world.record(8)) == ("/default/t8", {1: "maker"})
        assert len(world.backend.gets) == 2
        ref = await world.seal({7: [make_batch(7, 1, [b"x"])]})
        size = len(world.backend.space.objects[ref.key][0])
        for at in (size - 50, size - 5):
            world.damage(ref, at)
            with pytest.raises(DataLossError, match=f"box/{ref.key}"):
                await world.reader.names(world.record(7, 1))
            world.damage(ref, at)
        assert await world.reader.names(world.record(7, 1)) == ("/default/t7", {1: "maker"})
