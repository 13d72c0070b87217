"""A broker's share of history on a simulated disk, life after life, and what every next life must find.

A :class:`World` is what outlives a broker: the disk, the bucket, the metadata, and the truth. A :class:`Life` is a
journal, its topics and their :class:`~danube.history.History`, without a network. The world can end a life at any step
that changes something in the bucket or in the metadata: it is done, but the answer comes no more.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random

import trio
from sealed import check_catalogue, check_counts, claim
from tenures import BrokerTenure, open_catalogue
from trio.testing import MockClock

from danube.history import History, HistoryCatalogue, read_bucket
from danube.history.packing import segment_prefix
from danube.history.schemas import NO_SCHEMAS, SchemaSource
from danube.log import BatchCache, Entry, Journal, StoredBatch, TopicLog
from danube.metadata import Condition, Delete, Put, TransactionResult
from danube.metadata.memory import MemoryStore
from danube.model.batch import check_part, encode_part
from danube.model.errors import DanubeError, JournalFencedError
from danube.model.limits import Limits
from danube.model.policies import Durability, Retention
from danube.storage import MemoryBackend, MemorySpace, Storage, StorageBackend
from danube.testing.disk import SimulatedDisk
from danube.testing.metadata import FaultyMetadataStore

FILE_SIZE = 16 * 1024
GRACE_S = 100.0
LIMITS = Limits(
    max_batch_bytes=8 * 1024,
    journal_max_bytes=64 * FILE_SIZE,
    journal_reserve_bytes=2 * FILE_SIZE,
    journal_pending_bytes=64 * 1024,
    journal_commit_bytes=8 * 1024,
    cache_bytes=4 * 1024,
    segment_bytes=6 * 1024,
    segment_merge_parts=3,
    segment_grace_s=GRACE_S,
    segment_max_age_s=1e6,
    storage_max_attempts=4,
    storage_attempt_timeout_s=1.0,
    storage_max_backoff_s=0.1,
)


class Cut:
    """Counts the steps of a life, and ends it at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.steps = 0
        self.end_life: Callable[[], None] | None = None

    async def step(self) -> None:
        if self.end_life is None:
            return
        self.steps += 1
        if self.steps > self.at:
            self.end_life()
            await trio.sleep_forever()


class CutBackend(MemoryBackend):
    """Each change is a step: the life may end after it is made and before it is reported."""

    def __init__(self, space: MemorySpace, cut: Cut) -> None:
        super().__init__(space, url="memory://box", durable=True, wall_clock_us=wall_clock_us)
        self._cut = cut

    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        await super().put(key, data, if_absent=if_absent)
        await self._cut.step()

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        await self._cut.step()


class CutStore(FaultyMetadataStore):
    """Each transaction is a step. Another object opens and closes the inner store."""

    def __init__(
        self, store: MemoryStore, random: Random, cut: Cut, watch: Callable[[Sequence[Put | Delete]], None]
    ) -> None:
        super().__init__(store, random)
        self._cut = cut
        self._watch = watch

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        self._watch(operations)
        result = await super().transact(conditions, operations)
        await self._cut.step()
        return result


def wall_clock_us() -> int:
    return int(trio.current_time() * 1e6) + 1


class TopicTruth:
    """What must be true of one topic."""

    def __init__(self, topic_id: int) -> None:
        self.topic_id = topic_id
        self.batches: list[StoredBatch] = []
        self.acked_end = 0
        self.floor = 0
        """Retention may go up to here."""
        self.dropped = False


class LiveTopic:
    """What history sees of a topic."""

    def __init__(self, truth: TopicTruth, log: TopicLog) -> None:
        self.truth = truth
        self.name = f"/default/t{truth.topic_id}"
        self.topic_id = truth.topic_id
        self.log = log
        self.storage = "default"
        self.lossy = self.commits_to_storage = False
        self.retention = Retention(acknowledged=True)
        self.gone = False

    def producer_name(self, producer_id: int) -> str:
        return f"maker-{producer_id}"

    def floors(self) -> Sequence[int]:
        return [self.truth.floor]

    def stop(self, error: Exception) -> None:
        raise AssertionError(f"nothing is damaged here: {error}")


class Life:
    """One life; made by :meth:`World.live`."""

    def __init__(self, world: World, catalogue: HistoryCatalogue, journal: Journal, storage: Storage) -> None:
        self.world = world
        self.random = world.random
        self.catalogue = catalogue
        self.journal = journal
        self.storage = storage
        self.topics: dict[int, LiveTopic] = {}
        self.dead = False
        self.committed = trio.Event()
        self.history = History(
            catalogue, {"default": storage}, journal, self, "c", LIMITS, world.random, wall_clock_us, world.schemas
        )

    # What history asks

    def of_topics(self, names: Iterable[str]) -> tuple[dict[str, bytes], dict[int, dict[str, tuple[bytes, bytes]]]]:
        return {name: b"record of " + name.encode() for name in names}, {}

    def record_of(self, name: str) -> bytes | None:
        return next((b"record of " + name.encode() for topic in self.topics.values() if topic.name == name), None)

    def gaps_of(self, topic_ids: Iterable[int]) -> dict[int, list[bytes]]:
        return {}

    def everything(self, storage: str) -> tuple[dict[str, bytes], dict[int, dict[str, tuple[bytes, bytes]]]]:
        return {topic.name: b"record of " + topic.name.encode() for topic in self.topics.values()}, {}

    # What a broker does

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        if self.dead:
            return
        assert error is None
        for entry in entries:
            topic = self.topics[entry.topic_id]
            topic.log.settled(entry)
            topic.truth.acked_end = topic.log.end_offset
        self.committed.set()
        self.committed = trio.Event()

    def restore(self) -> None:
        """Build the topics from what the journal and the catalogue have."""
        recovered = self.journal.recovered
        assert recovered is not None
        assert not recovered.corruptions
        cache = BatchCache(LIMITS.cache_bytes)
        for truth in self.world.topics.values():
            found = recovered.topics.get(truth.topic_id)
            if truth.dropped:
                self.journal.drop_topic(truth.topic_id)
                continue
            history = self.catalogue.find(truth.topic_id)
            start = history.start_offset if history is not None else 0
            sealed = max(start, history.end_offset if history is not None else 0)
            first = found.first_offset if found is not None else 0
            assert first <= sealed, "the journal has let go of what is not sealed"
            log = TopicLog(
                truth.topic_id,
                Durability.DISK,
                self.journal,
                cache,
                self.catalogue.tenure.epoch(truth.topic_id),
                0,
                start,
                found,
                sealed_offset=sealed,
                sealed=self.history.reader,
                on_unsealed=self.history.sealer.unsealed,
                seal_bytes=LIMITS.segment_bytes,
            )
            assert log.end_offset >= truth.acked_end, f"{log} lost acknowledged messages"
            # What was not acknowledged and is gone will be given out again.
            truth.batches = [batch for batch in truth.batches if batch.end_offset <= log.end_offset]
            truth.acked_end = log.end_offset
            self.topics[truth.topic_id] = LiveTopic(truth, log)

    def adopt(self) -> None:
        for topic in self.topics.values():
            self.history.add_topic(topic)

    async def append(self, topic_id: int, count: int, sizes: Sequence[int] = (5, 300, 900)) -> None:
        topic = self.topics[topic_id]
        for _ in range(count):
            payloads = [self.random.randbytes(self.random.choice(sizes))] * self.random.randrange(1, 4)
            schema_id = self.world.schema_ids[len(topic.truth.batches) % len(self.world.schema_ids)]
            part = encode_part(
                payloads, producer_id=7, producer_epoch=1, base_sequence=0, publish_time_us=1, schema_id=schema_id
            )
            await self.journal.admit(len(part))
            topic.truth.batches.append(topic.log.append(part, check_part(part), wall_clock_us()))
        while topic.log.end_offset < topic.log.next_offset:
            await self.committed.wait()

    async def seal(self, *topic_ids: int) -> None:
        await self.history.sealer.seal_now([self.topics[topic_id] for topic_id in topic_ids])

    async def drop(self, topic_id: int) -> None:
        topic = self.topics.pop(topic_id)
        topic.truth.dropped = topic.gone = True
        topic.log.drop()
        await self.history.drop_topic(topic_id, topic.name)

    # What must be true

    async def check_content(self, where: str) -> None:
        """Every acknowledged batch that is still wanted, once, and in order."""
        for topic in self.topics.values():
            log, truth = topic.log, topic.truth
            assert log.end_offset >= truth.acked_end, f"{where}: {log} lost acknowledged messages"
            assert log.start_offset <= truth.floor, f"{where}: {log} has expired too much"
            start = -1
            found: list[StoredBatch] = []
            while start != log.start_offset:  # retention may be at work
                offset = start = log.start_offset
                found = []
                while offset < log.end_offset:
                    batches = await log.read(offset, self.random.choice((500, 9000)))
                    assert batches, f"{where}: {log} has nothing at {offset}"
                    found += batches
                    offset = batches[-1].end_offset
            expected = [b for b in truth.batches if log.start_offset < b.end_offset <= log.end_offset]
            assert [(b.base_offset, b.stamp, b.part) for b in found] == [
                (b.base_offset, b.stamp, b.part) for b in expected
            ], f"{where}: {log}"

    async def check_order(self, where: str) -> None:
        """Seal everything, let the keeper and the janitor work: then bucket, catalogue and manifests agree."""
        await self.seal(*self.topics)
        await self.history.keep()
        await trio.sleep(2 * GRACE_S)
        await self.history.keep()
        await self.history.janitor.repair("default")
        await check_catalogue(self.world.metadata, self.catalogue)
        segments = {key for key in self.world.space.objects if key.startswith(segment_prefix("c"))}
        assert segments == {ref.key for ref in self.catalogue.objects}, where
        report = await self.history.janitor.check("default", deep=True)
        assert report.ok, f"{where}: {report}"
        assert (report.orphans, report.garbage, report.recent) == ([], 0, 0), f"{where}: {report}"
        bucket = await read_bucket(self.storage, "c")
        assert {
            (topic_id, base): (key, part)
            for topic_id, parts in bucket.parts.items()
            for base, (key, part) in parts.items()
        } == {(r.part.topic_id, r.part.base_offset): (r.object, r.part) for r in self.catalogue.all_parts()}, where
        for topic in self.topics.values():
            assert topic.log.journal_start == topic.log.end_offset, where
            assert self.catalogue.topic(topic.topic_id).end_offset in (topic.log.end_offset, 0), where
            if bucket.parts.get(topic.topic_id):
                assert topic.name in bucket.topics, where


class World:
    """See the module."""

    def __init__(self, seed: int, metadata: MemoryStore) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.metadata = metadata
        self.space = MemorySpace()
        self.disk = SimulatedDisk(self.random)
        self.topics = {topic_id: TopicTruth(topic_id) for topic_id in (1, 2, 3)}
        self.lives = 0
        self.tenure: BrokerTenure | None = None
        """What the broker owns; None: everything, in a new life each time."""
        self.schemas: SchemaSource = NO_SCHEMAS
        self.schema_ids: Sequence[int] = (0,)
        """What the batches of a topic carry, in turn."""
        self.watch: Callable[[Sequence[Put | Delete]], None] = lambda _operations: None
        """Called with each change of the metadata, before it is made."""

    async def live(
        self,
        work: Callable[[Life], Awaitable[None]],
        cut: Cut | None = None,
        *,
        wrap: Callable[[StorageBackend], StorageBackend] = lambda backend: backend,
        bad_metadata: Callable[[FaultyMetadataStore], None] = lambda store: None,
    ) -> bool:
        """Recover, ``work``, and die; return whether the work came to its end."""
        self.lives += 1
        cut = cut if cut is not None else Cut(1 << 60)
        done = False
        async with trio.open_nursery() as nursery:
            life: Life | None = None

            def end_life() -> None:
                # The disk goes first, so that nothing that is cleaned up now reaches it.
                self.disk = self.disk.crash(power_loss=self.random.random() < 0.5)
                if life is not None:
                    life.dead = True
                nursery.cancel_scope.cancel()

            store = CutStore(self.metadata, self.random, cut, self.watch)
            cut.end_life = end_life
            storage = Storage(wrap(CutBackend(self.space, cut)), random=self.random, limits=LIMITS)
            journal = Journal(self.disk, LIMITS, file_size=FILE_SIZE, snapshot=lambda topic_id: b"")
            catalogue = await (claim(store, "one") if self.tenure is None else open_catalogue(store, self.tenure))
            life = Life(self, catalogue, journal, storage)
            bad_metadata(store)
            journal.on_commit = life.on_commit
            try:
                async with trio.open_nursery() as tasks:
                    await journal.recover()
                    life.restore()
                    await life.history.sweep(set(life.topics))
                    await tasks.start(journal.run)
                    await tasks.start(life.history.run)
                    life.adopt()
                    await work(life)
                    done = not life.dead
                    end_life()
            except* (OSError, JournalFencedError):
                assert life.dead, "only the end of the disk may end the journal"
        cut.end_life = None
        return done

    async def check(self, where: str) -> None:
        """A life without trouble, in which everything must be right."""

        async def work(life: Life) -> None:
            check_counts(life.catalogue)
            await life.check_content(where)
            await life.check_order(where)
            await life.check_content(where)

        assert await self.live(work), where


@asynccontextmanager
async def new_world(seed: int) -> AsyncIterator[World]:
    async with MemoryStore() as metadata:
        yield World(seed, metadata)


def run_lives(work: Callable[[World], Awaitable[None]], seed: int) -> None:
    """Run something in a world of its own; the seed repeats it."""

    async def main() -> None:
        async with new_world(seed) as world:
            await work(world)

    # Trio orders tasks by chance on purpose; these two private names (Hypothesis uses them) make it repeatable.
    scheduler = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = True, Random(seed)
    logging.getLogger("danube").setLevel(logging.CRITICAL)
    try:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = before
        logging.getLogger("danube").setLevel(logging.NOTSET)
