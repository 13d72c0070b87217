"""One log in three places: readers cross between sealed parts, journal files and cache while their borders move."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed import build, claim, run_virtual

from danube.history.catalogue import HistoryCatalogue
from danube.history.parts import ObjectRef
from danube.history.reader import SegmentReader
from danube.log import BatchCache, Entry, Journal, StoredBatch, TopicLog
from danube.metadata.memory import MemoryStore
from danube.model.batch import check_part, encode_part
from danube.model.errors import DanubeError, DataLossError
from danube.model.limits import Limits
from danube.model.policies import Durability
from danube.storage import MemoryBackend, Storage
from danube.testing.disk import SimulatedDisk

FILE_SIZE = 16 * 1024
LIMITS = Limits(
    max_batch_bytes=8 * 1024,
    journal_max_bytes=64 * FILE_SIZE,
    journal_reserve_bytes=2 * FILE_SIZE,
    journal_pending_bytes=64 * 1024,
    journal_commit_bytes=8 * 1024,
    cache_bytes=9 * 1024,
    segment_cache_bytes=0,
)


class House:
    """Two topics in one journal, with what is sealed of them in a memory backend, and the truth."""

    def __init__(self, random: Random, catalogue: HistoryCatalogue) -> None:
        self.random = random
        self.catalogue = catalogue
        self.disk = SimulatedDisk(random)
        self.backend = MemoryBackend(url="memory://box", latency_s=random.choice((0, 0.0005, 0.003)))
        self.storage = Storage(self.backend, random=random, limits=LIMITS)
        self.reader = SegmentReader(
            catalogue,
            {"default": self.storage},
            LIMITS,
            chunk_bytes=random.choice((500, 4000)),
            first_bytes=random.choice((100, 2000)),
        )
        self.journal = Journal(
            self.disk, LIMITS, file_size=FILE_SIZE, on_commit=self.on_commit, snapshot=lambda topic_id: b""
        )
        cache = BatchCache(LIMITS.cache_bytes)
        self.logs = {
            topic_id: TopicLog(topic_id, Durability.DISK, self.journal, cache, sealed=self.reader)
            for topic_id in (1, 2)
        }
        self.truth: dict[int, list[StoredBatch]] = {1: [], 2: []}
        self.objects = 0
        self.writing = True

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        assert error is None
        for entry in entries:
            self.logs[entry.topic_id].settled(entry)

    async def pause(self) -> None:
        await trio.sleep(self.random.choice((0, 0.0005, 0.004)) * self.random.random())

    async def append(self, topic_id: int, count: int) -> None:
        log = self.logs[topic_id]
        for number in range(count):
            size = self.random.choice((5, 300, 1500))
            part = encode_part(
                [self.random.randbytes(size)] * self.random.randrange(1, 4),
                producer_id=1,
                producer_epoch=1,
                base_sequence=number,
                publish_time_us=1,
            )
            await self.journal.admit(len(part))
            self.truth[topic_id].append(log.append(part, check_part(part), 1000 + number))
            if self.random.random() < 0.5:
                await self.pause()

    async def seal(self, topic_id: int) -> None:
        """Seal some of what the journal has, in the order in which the sealer does it."""
        log = self.logs[topic_id]
        batches: list[StoredBatch] = []
        offset = log.journal_start
        until = self.random.randrange(offset, log.end_offset + 1)
        while offset < until:
            batches += await log.read(offset, 3000)
            offset = batches[-1].end_offset
        if not batches or batches[0].base_offset < log.journal_start:
            return  # nothing, or expired meanwhile, in the middle of a batch
        self.objects += 1
        ref = ObjectRef("default", f"segments/c/{self.objects:04}.seg")
        data, footer = build({topic_id: batches})
        await self.storage.put(ref.key, data)
        if footer.parts[0].base_offset < log.journal_start:
            return
        await self.catalogue.enter(ref, len(data), 50, footer.parts)
        await self.pause()
        log.sealed_up_to(footer.parts[0].end_offset, footer.parts[0].size_bytes)

    async def expire(self, topic_id: int) -> None:
        log = self.logs[topic_id]
        start = self.random.randrange(log.start_offset, log.end_offset + 1)
        if self.random.random() < 0.7:
            start = min(start, log.start_offset + 5)
        await self.catalogue.expire(topic_id, start, 60)
        log.expire(start)
        for garbage in self.catalogue.garbage_until(61):
            await self.storage.delete([garbage.key])
            await self.catalogue.forget_objects([garbage])

    async def keep_sealing(self) -> None:
        while self.writing:
            await self.pause()
            topic_id = self.random.choice((1, 2))
            if self.random.random() < 0.8:
                await self.seal(topic_id)
            else:
                await self.expire(topic_id)

    async def replay(self, topic_id: int, offset: int) -> None:
        """Read to the end, and compare."""
        log, truth = self.logs[topic_id], self.truth[topic_id]
        while True:
            low = max(offset, log.start_offset)
            batches = await log.read(offset, self.random.choice((1, 2000, 9000)))
            high = max(offset, log.start_offset)
            if not batches:
                return
            # It holds the offset asked for, or, if that has expired, the first one that is left.
            assert low < batches[0].end_offset
            assert batches[0].base_offset <= high
            at = next(at for at, batch in enumerate(truth) if batch.base_offset == batches[0].base_offset)
            for batch, expected in zip(batches, truth[at:], strict=False):
                assert (batch.base_offset, batch.stamp, batch.part) == (
                    expected.base_offset,
                    expected.stamp,
                    expected.part,
                )
            offset = batches[-1].end_offset
            if self.random.random() < 0.2:
                await self.pause()

    async def keep_reading(self) -> None:
        while self.writing:
            topic_id = self.random.choice((1, 2))
            log, truth = self.logs[topic_id], self.truth[topic_id]
            if not truth or self.random.random() < 0.7:
                low = max(0, log.start_offset - 3)
                await self.replay(topic_id, self.random.randrange(low, log.end_offset + 1))
            else:
                settled = [batch for batch in truth if batch.end_offset <= log.end_offset]
                if settled:
                    wanted = self.random.choice(settled)
                    low = max(wanted.base_offset, log.start_offset)
                    found = await log.offset_at(wanted.append_time_us)
                    assert low <= found <= max(wanted.base_offset, log.start_offset)
            await self.pause()


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32))
def test_readers_cross_moving_borders(seed: int) -> None:
    run_virtual(readers_cross_moving_borders, seed)


async def readers_cross_moving_borders(seed: int) -> None:
    random = Random(seed)
    async with MemoryStore() as store, trio.open_nursery() as life:
        house = House(random, await claim(store, "one"))
        await house.journal.recover()
        await life.start(house.journal.run)
        await life.start(house.reader.run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(house.keep_sealing)
            for _ in range(3):
                nursery.start_soon(house.keep_reading)
            async with trio.open_nursery() as writers:
                for topic_id in (1, 2):
                    writers.start_soon(house.append, topic_id, 60)
            with trio.fail_after(60):
                while any(  # noqa: ASYNC110 - of virtual time
                    log.end_offset < house.truth[each][-1].end_offset for each, log in house.logs.items()
                ):
                    await trio.sleep(0.02)
            house.writing = False
        for topic_id, log in house.logs.items():
            assert log.end_offset == house.truth[topic_id][-1].end_offset
            await house.replay(topic_id, 0)
            await house.seal(topic_id)
            await house.replay(topic_id, log.start_offset)
        life.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["sealed", "expired"])
async def test_the_border_passes_a_reader_in_the_journal(how: str, autojump_clock: object) -> None:
    """A read from the disk is under way when everything it wants next leaves the journal's index."""
    random = Random(4)
    async with MemoryStore() as store, trio.open_nursery() as life:
        house = House(random, await claim(store, "one"))
        await house.journal.recover()
        await life.start(house.journal.run)
        await life.start(house.reader.run)
        async with trio.open_nursery() as writers:
            for topic_id in (1, 2):  # the other one keeps the files alive
                writers.start_soon(house.append, topic_id, 90)
        await trio.sleep(0.1)
        log, truth = house.logs[1], house.truth[1]
        assert log.get_cached(truth[70].base_offset) is None
        house.disk.read_delay_s = 1.0
        for first in (3, 20, 50):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(house.replay, 1, truth[first].base_offset)
                await trio.sleep(0.01)
                border = truth[min(first + 30, 80)].base_offset
                if how == "expired":
                    log.expire(border)
                else:
                    batches = [batch for batch in truth if log.journal_start <= batch.base_offset < border]
                    house.objects += 1
                    ref = ObjectRef("default", f"segments/c/{house.objects:04}.seg")
                    data, footer = build({1: batches})
                    house.backend.space.store(ref.key, data, 0)
                    await house.catalogue.enter(ref, len(data), 50, footer.parts)
                    log.sealed_up_to(border, footer.parts[0].size_bytes)
        life.cancel_scope.cancel()


async def test_a_time_that_is_sealed_while_it_is_looked_for(autojump_clock: object) -> None:
    """Sealed history was asked, and did not have it; when the journal is asked it has left."""

    class Slow(SegmentReader):
        async def offset_at(self, topic_id: int, time_us: int) -> int | None:
            found = await super().offset_at(topic_id, time_us)
            await trio.sleep(1)
            return found

    random = Random(4)
    async with MemoryStore() as store, trio.open_nursery() as life:
        house = House(random, await claim(store, "one"))
        house.reader.__class__ = Slow
        await house.journal.recover()
        await life.start(house.journal.run)
        await life.start(house.reader.run)
        await house.append(1, 40)
        await trio.sleep(0.1)
        log, truth = house.logs[1], house.truth[1]

        async def seal(number: int) -> None:
            batches = [b for b in truth if log.journal_start <= b.base_offset < truth[number].base_offset]
            data, footer = build({1: batches})
            house.backend.space.store(f"segments/c/{number}", data, 0)
            await house.catalogue.enter(ObjectRef("default", f"segments/c/{number}"), len(data), 50, footer.parts)
            log.sealed_up_to(truth[number].base_offset, footer.parts[0].size_bytes)

        await seal(10)
        found: list[int] = []

        async def look() -> None:
            found.append(await log.offset_at(truth[12].append_time_us))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await trio.sleep(0.5)
            await seal(20)
        assert found == [truth[12].base_offset]
        life.cancel_scope.cancel()


async def test_damage_in_the_journal_hides_nothing_before_it(autojump_clock: object) -> None:
    random = Random(4)
    async with MemoryStore() as store, trio.open_nursery() as life:
        house = House(random, await claim(store, "one"))
        await house.journal.recover()
        await life.start(house.journal.run)
        await house.append(1, 40)
        await trio.sleep(0.1)
        log, truth = house.logs[1], house.truth[1]
        hurt = truth[5]
        (name,) = (name for name in house.disk.names() if hurt.part in house.disk.content(name))
        house.disk.flip(name, house.disk.content(name).index(hurt.part) + 70)
        offset = 0
        while offset < hurt.base_offset:
            batches = await log.read(offset, 100_000)
            assert batches[0].base_offset == offset
            offset = batches[-1].end_offset
        assert offset == hurt.base_offset
        for _ in range(2):
            with pytest.raises(DataLossError, match=rf"offsets \[{offset}, "):
                await log.read(offset, 100_000)
        life.cancel_scope.cancel()
