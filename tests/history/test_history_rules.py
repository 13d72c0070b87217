"""When sealers, keeper, janitor and catalogue act, by themselves, with topics that are only numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from sealed import build, check_catalogue, claim, make_batch
from trio.testing import MockClock, wait_all_tasks_blocked

from danube.history import History, HistoryCatalogue, read_bucket
from danube.history.manifest import ManifestLog
from danube.history.objects import load_footer, object_name
from danube.history.packing import segment_prefix
from danube.history.parts import GarbageRecord, ObjectRecord, ObjectRef, PartRecord
from danube.history.reader import SegmentReader
from danube.history.remote import RemoteJournal, RemoteState
from danube.history.remote.format import CommitKind, Position, commit_key, pieces_prefix, wal_prefix
from danube.history.restore import enter, survey_bucket, survey_topics, verify_chains
from danube.history.sealer import Sealer, _Request
from danube.history.segment import TRAILER_SIZE, SegmentBuilder, SegmentKind, SegmentPart, read_trailer
from danube.log import Entry, EntryType, StoredBatch
from danube.log.index import TopicIndex
from danube.metadata import Condition, Delete, Put, TransactionResult
from danube.metadata.memory import MemoryStore
from danube.model.errors import (
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    MetadataConflictError,
    OwnerFencedError,
    StorageError,
    StorageUnavailableError,
)
from danube.model.limits import KIB, MIB, Limits
from danube.model.policies import Durability, Retention
from danube.storage import MemoryBackend, MemorySpace, Storage

LIMITS = Limits(
    segment_bytes=1000,
    segment_max_age_s=100.0,
    segment_grace_s=50.0,
    segment_merge_parts=3,
    segment_retry_max_s=1.0,
    journal_max_bytes=10_000_000,
    segment_journal_ratio=0.5,
    storage_max_attempts=1,
)
NOW_US = 1_000_000_000


def clock_us() -> int:
    return NOW_US + int(trio.current_time() * 1e6)


class Log:
    """As much of a topic's log as history looks at."""

    def __init__(self, topic_id: int, unsealed: int = 0, since_us: int = 0) -> None:
        self.topic_id = topic_id
        self.unsealed_bytes = unsealed
        self.unsealed_surplus_bytes = 0
        self.unsealed_since_us = since_us
        self.start_offset = 0
        self.journal_start = 0
        self.end_offset = 100
        self.index = TopicIndex()
        self.sealed: list[tuple[int, int | None]] = []
        self.expired: list[int] = []
        self.batches: list[StoredBatch] = []
        self.asked: list[int] = []

    def sealed_up_to(self, offset: int, size_bytes: int | None) -> None:
        self.sealed.append((offset, size_bytes))
        self.journal_start = offset

    def expire(self, offset: int) -> None:
        self.expired.append(offset)
        self.start_offset = self.journal_start = offset

    async def read(self, offset: int, max_bytes: int) -> list[StoredBatch]:
        self.asked.append(max_bytes)
        await trio.lowlevel.checkpoint()
        return [batch for batch in self.batches if batch.base_offset >= offset][:1]


class Topic:
    """A topic that history keeps."""

    def __init__(self, topic_id: int, log: Log | None = None, **more: Any) -> None:
        self.topic_id = topic_id
        self.name = f"/default/t{topic_id}"
        self.log: Any = log or Log(topic_id)
        self.storage = "default"
        self.lossy = self.commits_to_storage = False
        self.retention = Retention()
        self.gone = False
        self.cursors: list[int] = []
        self.__dict__.update(more)

    def producer_name(self, producer_id: int) -> str:
        return f"maker-{producer_id}"

    def floors(self) -> Sequence[int]:
        return self.cursors

    def stop(self, error: DataLossError) -> None:
        self.gone = True


class Journal:
    """A journal that is as full as a test wants it."""

    def __init__(self) -> None:
        self.on_roll: list[Any] = []
        self.used_bytes = 0
        self.oldest: list[int] = []
        self.asked: list[int] = []
        self.sequence = 7
        self.synced: list[int] = []

    async def sync(self, sequence: int) -> None:
        await trio.lowlevel.checkpoint()
        self.synced.append(sequence)

    def topics_of_oldest(self, size_bytes: int) -> list[int]:
        self.asked.append(size_bytes)
        return self.oldest


class Store(MemoryStore):
    """Counts transactions."""

    transactions = 0

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        self.transactions += 1
        return await super().transact(conditions, operations)


class World:
    """History with two storages, and what it is told of topics."""

    def __init__(self, store: Store, catalogue: HistoryCatalogue, spaces: Mapping[str, MemorySpace]) -> None:
        self.store = store
        self.catalogue = catalogue
        self.journal = Journal()
        self.spaces = spaces
        self.records: dict[str, bytes] = {}
        self.storages = {
            name: Storage(
                MemoryBackend(space, url=f"memory://{name}", durable=name != "volatile", wall_clock_us=clock_us),
                random=Random(1),
                limits=LIMITS,
                name=name,
            )
            for name, space in spaces.items()
        }
        self.history = History(
            catalogue,
            self.storages,
            self.journal,  # type: ignore[arg-type]
            self,
            "c",
            LIMITS,
            Random(2),
            clock_us,
        )

    def of_topics(self, names: Iterable[str]) -> tuple[dict[str, bytes], dict[int, dict[str, tuple[bytes, bytes]]]]:
        return {name: b"record of " + name.encode() for name in names}, {}

    def record_of(self, name: str) -> bytes | None:
        return self.records.get(name)

    def gaps_of(self, topic_ids: Iterable[int]) -> dict[int, list[bytes]]:
        return {}

    def everything(self, storage: str) -> tuple[dict[str, bytes], dict[int, dict[str, tuple[bytes, bytes]]]]:
        return dict(self.records), {}

    async def store_object(
        self, parts: Mapping[int, Sequence[StoredBatch]], *, storage: str = "default", created_us: int = 77
    ) -> ObjectRef:
        """Bring an object into a storage, and enter it."""
        data, footer = build(parts, created_us=created_us, epoch=self.catalogue.epoch)
        number = len(self.catalogue.objects)
        ref = ObjectRef(storage, object_name("c", created_us + number, "b1", self.catalogue.epoch, Random(number)))
        self.spaces[storage].store(ref.key, data, created_us)
        await self.catalogue.enter(ref, len(data), created_us, footer.parts)
        return ref

    @property
    def sealer(self) -> Sealer:
        return self.history.sealer._sealers["default"]


@asynccontextmanager
async def world(*names: str, spaces: Mapping[str, MemorySpace] | None = None) -> AsyncIterator[World]:
    async with Store() as store:
        catalogue = await claim(store, "one")
        yield World(store, catalogue, spaces or {name: MemorySpace() for name in names or ("default",)})


def batches(topic_id: int, base: int, count: int, size: int = 50, time_us: int = 1000) -> list[StoredBatch]:
    return [make_batch(topic_id, base + number, [bytes(size)], time_us) for number in range(count)]


# --- The sealer: what is due ---


def woken(sealer: Sealer) -> bool:
    """Whether the sealer was woken since this was asked last."""
    was = sealer._wake.is_set()
    sealer._wake = trio.Event()
    return was


async def test_a_sealer_wakes_up_for_the_first_batch_and_for_whole_segments() -> None:
    async with world() as w:
        sealer, log, other = w.sealer, Log(1), Log(2)
        sealer.watch(Topic(1, log))
        sealer.watch(Topic(2, other))
        sealer.unsealed(log)
        sealer.unsealed(Log(3, 5000))
        assert (woken(sealer), list(sealer._unsealed)) == (False, []), "there is nothing, or it is not its topic"
        log.unsealed_bytes = 1
        sealer.unsealed(log)
        assert woken(sealer), "its age matters from now on"
        other.unsealed_bytes = 999
        sealer.unsealed(other)
        assert (woken(sealer), list(sealer._full)) == (False, [])
        other.unsealed_bytes = 1000
        sealer.unsealed(other)
        assert (woken(sealer), list(sealer._full), list(sealer._unsealed)) == (True, [2], [1, 2])
        sealer.forget(2)
        assert (list(sealer._full), list(sealer._unsealed)) == ([], [1])
        sealer.journal_rolled()
        assert woken(sealer)


def due(sealer: Sealer, *asks: Sequence[int]) -> tuple[list[int], set[int]]:
    topics, whole = sealer._due([_Request(ids) for ids in asks])
    return [topic.topic_id for topic in topics], whole & {topic.topic_id for topic in topics}


async def test_requested_remaining_and_full_topics_are_due(autojump_clock: MockClock) -> None:
    async with world() as w:
        logs = {number: Log(number, 10, NOW_US) for number in range(1, 6)}
        topics = {number: Topic(number, log) for number, log in logs.items()}
        for topic in topics.values():
            w.sealer.watch(topic)
        assert due(w.sealer) == ([], set())
        assert due(w.sealer, [2, 9], [3]) == ([2, 3], {2, 3})
        w.sealer._left = {4: True, 5: False}
        assert due(w.sealer, [2]) == ([2, 4, 5], {2, 4})
        assert due(w.sealer) == ([], set()), "once"
        logs[3].unsealed_bytes = 1000
        w.sealer.unsealed(logs[3])
        assert due(w.sealer) == ([3], set()), "whole segments of it"
        logs[3].unsealed_bytes = 999
        assert due(w.sealer) == ([], set())
        assert not w.sealer._full
        logs[3].unsealed_bytes = 1000
        w.sealer.unsealed(logs[3])
        topics[3].gone = True
        assert due(w.sealer, [3]) == ([], set())
        assert not w.sealer._full


async def test_topics_that_hold_the_oldest_files_of_a_full_journal_are_due(autojump_clock: MockClock) -> None:
    async with world() as w:
        for number in range(1, 4):
            w.sealer.watch(Topic(number, Log(number, 10 * (number < 3), NOW_US)))
        w.journal.oldest = [2, 3, 9]
        w.journal.used_bytes = 5_000_000
        assert due(w.sealer) == ([], set())
        assert w.journal.asked == [], "half full is not more than half"
        w.journal.used_bytes += 1
        assert due(w.sealer) == ([2], {2}), "of topic 3 nothing is left to seal"
        assert w.journal.asked == [1]


async def test_an_old_topic_is_due_with_all_that_are_half_as_old(autojump_clock: MockClock) -> None:
    async with world() as w:
        ages = {1: 100.0, 2: 50.0, 3: 49.0, 4: 10.0}
        for number, age_s in ages.items():
            w.sealer.watch(Topic(number, Log(number, 10, NOW_US - int(age_s * 1e6))))
        assert due(w.sealer) == ([1, 2], {1, 2})
        w.sealer._topics[1].log.unsealed_since_us += 1
        assert due(w.sealer) == ([], set())
        assert w.sealer._next_age_s() == pytest.approx(0.001)
        w.sealer._topics[1].log.unsealed_since_us = NOW_US - 40_000_000
        assert w.sealer._next_age_s() == pytest.approx(60.0)
        w.sealer._topics[1].log.unsealed_since_us = NOW_US + 10_000_000
        assert w.sealer._next_age_s() == pytest.approx(100.0), "the clock was set back"
        w.sealer._topics[1].log.unsealed_bytes = 0
        w.sealer._topics[2].gone = True
        assert w.sealer._next_age_s() == pytest.approx(51.0)
        assert list(w.sealer._unsealed) == [3, 4], "what has nothing does not wait in line"
        w.sealer._unsealed.clear()
        assert w.sealer._next_age_s() == math.inf


async def test_how_far_sealing_is(autojump_clock: MockClock) -> None:
    async with world("default", "cold") as w:
        for number, since_us in ((1, NOW_US - 5_000_000), (2, NOW_US - 7_000_000), (3, 0)):
            w.sealer.watch(Topic(number, Log(number, 10 * number, since_us)))
        status = w.sealer.status()
        assert (status.unsealed_bytes, status.unsealed_topics) == (60, 3)
        assert status.oldest_age_s == pytest.approx(7.0, abs=0.1)
        assert (status.sealed_objects, status.sealed_bytes, status.failing_for_s, status.last_error) == (0, 0, 0.0, "")
        cold = w.history.sealer._sealers["cold"]
        cold.watch(Topic(9, Log(9, 5, NOW_US - 9_000_000)))
        cold._failed(StorageError("the bucket is gone"), 1.0)
        await trio.sleep(3)
        both = w.history.sealer.status()
        assert (both.unsealed_bytes, both.unsealed_topics) == (65, 4)
        assert both.oldest_age_s == pytest.approx(12.0, abs=0.1)
        assert both.failing_for_s == pytest.approx(3.0, abs=0.1)
        assert both.last_error == "the bucket is gone"
        assert w.history.sealer.status("default").unsealed_bytes == 60
        assert w.history.sealer.status("cold").unsealed_bytes == 5
        w.sealer._topics[1].log.unsealed_since_us = NOW_US + 60_000_000
        w.sealer.forget(2)
        assert w.sealer.status().oldest_age_s == 0.0


async def test_a_round_that_fails_is_repeated_after_pauses_that_grow(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as w:
        rounds: list[tuple[float, list[int], set[int]]] = []
        failing = True

        async def seal(topics: Sequence[Any], whole: set[int]) -> None:
            await trio.lowlevel.checkpoint()
            rounds.append((trio.current_time(), [topic.topic_id for topic in topics], set(whole)))
            if failing:
                raise StorageUnavailableError("no writing today")
            for topic in topics:
                topic.log.journal_start, topic.log.unsealed_bytes = 100, 0

        monkeypatch.setattr(w.sealer, "_seal", seal)
        first, second = Topic(1, Log(1, 10, clock_us())), Topic(2, Log(2, 2000, clock_us()))
        w.sealer.watch(first)
        async with trio.open_nursery() as nursery:
            await nursery.start(w.sealer.run)
            begun = trio.current_time()
            with pytest.raises(StorageError, match="no writing today"):
                await w.sealer.seal_now([first])
            w.sealer.watch(second)
            await trio.sleep(3.5)
            times = [round(at - begun, 3) for at, _, _ in rounds]
            assert times == pytest.approx([0.0, 0.2, 0.6, 1.4, 2.4, 3.4], abs=0.01), "not more than retry_max_s"
            assert rounds[0][1:] == ([1], {1})
            assert rounds[1][1:] == ([1, 2], {1}), "what was asked for is wanted as a whole, also the next time"
            assert w.sealer.status().failing_for_s == pytest.approx(3.5, abs=0.01)
            failing = False
            await trio.sleep(1.0)
            assert len(rounds) == 7
            assert (w.sealer.status().failing_for_s, w.sealer.status().last_error) == (0.0, "")
            failing = True
            begun = trio.current_time()
            second.log.unsealed_bytes, second.log.journal_start = 2000, 0
            w.sealer.unsealed(second.log)
            await trio.sleep(0.5)
            assert [round(at - begun, 3) for at, _, _ in rounds[7:]] == pytest.approx([0.0, 0.2], abs=0.01)
            nursery.cancel_scope.cancel()
        assert sum("sealing fails" in record.message for record in caplog.records) == 2
        assert sum("sealing works again" in record.message for record in caplog.records) == 1


async def test_a_sealer_that_was_fenced_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:

        async def seal(topics: Sequence[Any], whole: set[int]) -> None:
            await trio.lowlevel.checkpoint()
            raise ExceptionGroup("uploads", [StorageError("one"), OwnerFencedError("another broker")])

        monkeypatch.setattr(w.sealer, "_seal", seal)
        w.sealer.watch(Topic(1, Log(1, 5000, NOW_US)))
        with trio.fail_after(5), pytest.raises(OwnerFencedError, match="another broker"):
            await w.sealer.run()


async def test_buffers_are_as_large_as_needed_and_used_again() -> None:
    async with world() as w:
        whole = LIMITS.segment_bytes + 2 * MIB

        def take(*sizes: int) -> bytearray:
            return w.sealer._take_buffer([Topic(1, Log(1, size)) for size in sizes])

        assert len(take(800, 800)) == 1600 + 200 + 64 * KIB
        assert len(take(10 * MIB)) == whole
        for size in (999, 1000, 5000, 6000, 7000):
            w.sealer._keep_buffer(bytearray(size))
        assert [len(buffer) for buffer in w.sealer._buffers] == [1000, 5000], "as many as are under way at a time"
        kept = w.sealer._buffers[-1]
        assert take(10 * MIB) is kept
        assert len(kept) == whole
        assert len(take(10)) < whole
        assert len(w.sealer._buffers) == 1


async def test_a_part_fits_if_it_holds_where_the_journal_begins() -> None:
    async with world() as w:
        topic = Topic(1, Log(1, 10))
        w.sealer.watch(topic)

        def fits(base: int, end: int, topic_id: int = 1) -> bool:
            return w.sealer._fits(SegmentPart(topic_id, base, end, 1, 1, 1, 0, 10, 0, 0, 1, 0, 1))

        topic.log.journal_start = 20
        assert [fits(*ends) for ends in ((20, 30), (10, 21), (10, 20), (21, 30), (19, 30))] == [
            True,
            True,
            False,
            False,
            True,
        ]
        assert not fits(20, 30, 2), "it was deleted"
        topic.gone = True
        assert not fits(20, 30)


async def test_so_many_bytes_are_read_and_whole_batches() -> None:
    async with world() as w:
        log = Log(1)
        log.batches = batches(1, 0, 6, 100)
        size = len(log.batches[0].stamp) + len(log.batches[0].part)
        topic = Topic(1, log)

        async def read(size_bytes: int) -> list[int]:
            log.asked.clear()
            return [batch.base_offset async for some in w.sealer._batches(topic, size_bytes) for batch in some]

        assert await read(0) == []
        assert await read(1) == [0]
        assert await read(2 * size) == [0, 1]
        assert log.asked == [2 * size, size]
        assert await read(2 * size + 1) == [0, 1, 2]
        log.end_offset = 6
        assert await read(10 * MIB) == [0, 1, 2, 3, 4, 5]
        assert set(log.asked) == {MIB}
        log.end_offset, log.journal_start = 4, 2
        assert await read(10 * MIB) == [2, 3]
        log.end_offset = 100
        assert await read(10 * MIB) == [2, 3, 4, 5], "it ends where nothing is read any more"
        topic.gone = True
        assert await read(10 * MIB) == []


async def test_topics_share_objects_up_to_a_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        topics = []
        for number in range(1, 6):
            log = Log(number, 100, NOW_US)
            log.batches, log.end_offset = batches(number, 0, 1), 1
            topics.append(Topic(number, log))

        async def built() -> list[list[int]]:
            objects = [item async for item in w.sealer._build(topics, {1, 2, 3, 4, 5})]
            return [[part.topic_id for part in item.footer.parts] for item in objects]

        assert await built() == [[1, 2, 3, 4, 5]]
        monkeypatch.setattr("danube.history.sealer._PARTS_PER_OBJECT", 2)
        assert await built() == [[1, 2, 3], [4, 5]]
        assert [item async for item in w.sealer._build(topics, set())] == [], "less than a segment's worth gathers on"
        topics[1].log.unsealed_bytes = 1000
        topics[1].log.batches, topics[1].log.end_offset = batches(2, 0, 9, 100), 9
        (item,) = [item async for item in w.sealer._build(topics, set())]
        (part,) = item.footer.parts
        assert (part.topic_id, part.batches) == (2, 1 + 999 // (part.size_bytes // part.batches))


async def test_sealed_batches_are_counted_and_name_their_producers() -> None:
    async with world() as w:
        log = Log(1, 1000, NOW_US)
        log.batches = [
            make_batch(1, 0, [b"x"], producer_id=3),
            make_batch(1, 1, [b"x"], producer_id=0),
            make_batch(1, 5, [b"x"], producer_id=4),
        ]
        log.end_offset = 6
        topic = Topic(1, log)
        w.sealer.watch(topic)
        await w.sealer._seal([topic], {1})
        records = w.catalogue.topic(1).parts
        footer = await load_footer(w.storages["default"], records[0].object)
        ranges = [(part.base_offset, part.end_offset) for part in footer.parts]
        assert ranges == [(0, 2), (5, 6)], "a hole parts them"
        assert [each.part for each in records] == footer.parts[:1], "what lies behind it does not continue the journal"
        assert footer.producers == {3: "maker-3", 4: "maker-4"}, "of composite batches the records have the names"
        status = w.sealer.status()
        size = len(w.spaces["default"].objects[records[0].object][0])
        assert (status.sealed_objects, status.sealed_bytes) == (1, size)
        assert log.sealed == [(2, records[0].part.size_bytes)]


async def test_batches_in_the_catalogue_leave_the_journal() -> None:
    async with world() as w:
        log = Log(1, 10, NOW_US)
        topic, other = Topic(1, log), Topic(2, Log(2, 10, NOW_US))
        w.sealer.watch(topic)
        w.sealer.watch(other)
        w.sealer._release_sealed(topic)
        assert log.sealed == []
        await w.store_object({1: batches(1, 0, 3)})
        await w.store_object({1: batches(1, 3, 2)})
        sizes = [record.part.size_bytes for record in w.catalogue.topic(1).parts]
        log.journal_start = 3
        w.sealer._release_sealed(topic)
        assert log.sealed == [(5, sizes[1])], "what was sealed before was let go of before"
        assert list(w.sealer._unsealed) == [2, 1], "what it has now is young"
        w.sealer._release_sealed(topic)
        assert len(log.sealed) == 1
        log.journal_start, log.unsealed_bytes = 0, 0
        w.sealer._release_sealed(topic)
        assert log.sealed[1] == (5, sum(sizes))
        assert list(w.sealer._unsealed) == [2]
        for log.journal_start in (2, 4):
            w.sealer._release_sealed(topic)
            assert log.sealed.pop() == (5, None), "a part was cut by retention: its bytes from there on are unknown"
        log.journal_start = 0
        w.sealer.forget(1)
        w.sealer._release_sealed(topic)
        assert len(log.sealed) == 2


# --- History ---


async def test_manifests_begin_where_something_may_be_wrong() -> None:
    async with world("default", "cold", "empty") as w:
        await w.store_object({1: batches(1, 0, 1)}, storage="cold")
        w.storages["empty"]._marker = SimpleNamespace(known=True)  # type: ignore[assignment]
        again = History(w.catalogue, w.storages, w.journal, w, "c", LIMITS, Random(1), clock_us)  # type: ignore[arg-type]
        assert {name: log.pending for name, log in again.manifests.items()} == {
            "default": False,
            "cold": True,
            "empty": True,  # what it told of may be gone
        }


async def test_changes_are_noted_for_the_storage_that_they_are_in() -> None:
    async with world("default", "cold") as w:
        hot, cold = w.history.manifests["default"], w.history.manifests["cold"]
        ref = await w.store_object({1: batches(1, 0, 2), 2: batches(2, 0, 1)})
        assert (hot.pending, cold.pending) == (True, False)
        await hot.flush()
        other = await w.store_object({1: batches(1, 2, 1)})
        await w.catalogue.expire(1, 2, 5)
        assert (hot.pending, cold.pending) == (True, False)
        await hot.flush()
        bucket = await read_bucket(w.storages["default"], "c")
        assert {
            (topic_id, base): key for topic_id, parts in bucket.parts.items() for base, (key, _) in parts.items()
        } == {
            (1, 2): other.key,
            (2, 0): ref.key,
        }
        assert bucket.starts == {1: 2}
        await w.catalogue.expire(2, 1, 5)
        await hot.flush()
        assert (await read_bucket(w.storages["default"], "c")).starts == {1: 2, 2: 1}


async def test_manifests_are_told_of_topics_where_there_are_some() -> None:
    async with world("default", "cold") as w:
        manifests = w.history.manifests
        w.history.note_records("elsewhere", {"/d/t": b"r"}, always=True)
        w.history.note_records("default", {"/d/t": b"r"})
        assert not manifests["default"].pending, "nothing is there that they would have to tell of"
        w.history.note_records("default", {"/d/t": b"r"}, always=True)
        assert manifests["default"].pending
        assert not manifests["cold"].pending
        await manifests["default"].flush()
        w.history.note_records("default", {"/d/t": b"s"})
        assert manifests["default"].pending, "there is a manifest"
        await w.store_object({1: batches(1, 0, 1)}, storage="cold")
        await manifests["cold"].flush()
        w.catalogue.objects.clear()
        w.history.note_records("cold", {"/d/u": b"u"})
        assert manifests["cold"].pending
        stream = w.history.stream
        fresh = ManifestLog(w.storages["cold"], "c", stream, 9, lambda: ([], {}, {}, {}), clock_us, *[lambda _: {}] * 2)
        manifests["cold"] = fresh
        w.history.note_records("cold", {"/d/u": b"u"})
        assert not fresh.pending
        w.catalogue.objects[ObjectRef("cold", "k")] = ObjectRecord(1, 1, 1, 1)
        w.history.note_records("cold", {"/d/u": b"u"})
        assert fresh.pending, "there is an object"


async def test_topics_are_sealed_if_they_are_to_be_and_their_storage_keeps_it() -> None:
    async with world("default", "volatile") as w:
        assert [w.history.can_seal(name) for name in ("default", "volatile", "elsewhere")] == [True, False, False]
        for number, more in enumerate(({}, {"commits_to_storage": True}, {"storage": "volatile"}, {"storage": "x"})):
            w.history.add_topic(Topic(number, **more))
        assert list(w.history.sealer._of_topic) == [0]
        assert list(w.history._topics) == [0, 1, 2, 3]


async def test_a_topic_that_is_dropped_is_forgotten_everywhere() -> None:
    async with world("default", "cold") as w:
        shared = await w.store_object({1: batches(1, 0, 2), 2: batches(2, 0, 2)})
        await w.store_object({1: batches(1, 2, 1)}, storage="cold")
        topic = Topic(1, Log(1, 10, NOW_US))
        w.history.add_topic(topic)
        for log in w.history.manifests.values():
            await log.flush()
        w.records[topic.name] = b"another of that name"
        await w.history.drop_topic(1, topic.name)
        assert w.history._topics == {}
        assert w.sealer._topics == {}
        assert w.catalogue.find(1) is None
        assert w.catalogue.objects[shared].tainted
        assert w.history._wake.is_set()
        for name, log in w.history.manifests.items():
            assert log.pending
            await log.flush()
            bucket = await read_bucket(w.storages[name], "c")
            assert bucket.topics == {topic.name: b"another of that name"}
            assert bucket.parts.get(1, {}) == {}
        await check_catalogue(w.store, w.catalogue)


async def test_manifests_are_told_of_a_dropped_topic_of_which_nothing_is_left() -> None:
    async with world("default", "cold") as w:
        await w.store_object({2: batches(2, 0, 2)})
        for log in w.history.manifests.values():
            await log.flush()
        w.history.add_topic(Topic(1))
        await w.history.drop_topic(1, "/default/t1")
        assert w.history.manifests["default"].pending
        assert not w.history.manifests["cold"].pending
        await w.history.manifests["default"].flush()
        w.history.add_topic(Topic(3, storage="elsewhere"))
        await w.history.drop_topic(3, "/default/t3")
        await w.history.drop_topic(4, "/default/t4")
        assert not w.history.manifests["default"].pending
        w.history.add_topic(Topic(5, storage="cold"))
        await w.history.drop_topic(5, "/default/t5")
        assert not w.history.manifests["cold"].pending, "there is no manifest that would have to tell of it"


async def test_a_sweep_removes_remains_of_deleted_topics() -> None:
    async with world() as w:
        await w.store_object({1: batches(1, 0, 2), 2: batches(2, 0, 2)})
        await w.history.sweep({2, 3})
        assert list(w.catalogue.topics) == [2]


async def test_retention_is_applied_where_it_takes_something() -> None:
    async with world() as w:
        await w.store_object({1: batches(1, 0, 4)})
        topic = Topic(1, retention=Retention(acknowledged=True), cursors=[40, 30])
        topic.log.journal_start = 4
        before = w.store.transactions
        assert w.history.plan(topic, Retention()).new_start_offset == 0
        assert w.history.plan(topic).new_start_offset == 30
        assert w.store.transactions == before
        plan = await w.history.expire(topic)
        assert (plan.start_offset, plan.new_start_offset, plan.freed_parts) == (0, 30, 1)
        assert (topic.log.expired, w.catalogue.topic(1).start_offset, w.catalogue.topic(1).parts) == ([30], 30, [])
        before = w.store.transactions
        await w.history.expire(topic)
        assert (w.store.transactions, topic.log.expired) == (before, [30])
        topic.cursors = [50]
        await w.history._expire_before_sealing(topic)
        assert topic.log.expired == [30], "it is not known"
        w.history.add_topic(topic)
        topic.retention = Retention()
        await w.history._expire_before_sealing(topic)
        assert topic.log.expired == [30], "it has no rules"
        topic.retention = Retention(acknowledged=True)
        await w.history._expire_before_sealing(topic)
        assert topic.log.expired == [30, 50]


async def test_a_round_applies_retention_to_topics_with_rules() -> None:
    async with world() as w:
        rules = {"retention": Retention(acknowledged=True), "cursors": [30]}
        kinds: dict[int, dict[str, Any]] = {
            1: {},
            2: {"gone": True},
            3: {"lossy": True},
            4: {"retention": Retention()},
            5: {"commits_to_storage": True},
        }
        topics = [Topic(number, **(rules | more)) for number, more in kinds.items()]
        for topic in topics:
            w.history.add_topic(topic)
        await w.history.keep()
        assert [topic.topic_id for topic in topics if topic.log.expired] == [1, 5]


async def test_the_next_round_comes_with_the_end_of_a_grace(autojump_clock: MockClock) -> None:
    async with world() as w:
        pause = w.history._pause_s
        assert pause(0) == 30.0
        ref = ObjectRef("default", "k")
        for since_s, expected in ((-40.0, 10.0), (-49.5, 1.0), (-50.0, 1.0), (0.0, 30.0), (-30.0, 20.0)):
            w.catalogue.garbage[ref] = GarbageRecord("b1", 1, 1, NOW_US + int(since_s * 1e6))
            assert pause(0) == pytest.approx(expected)
        assert w.history.janitor.next_deadline_us(NOW_US + 20_000_000) == NOW_US + 20_000_000
        assert w.history.janitor.next_deadline_us(NOW_US + 20_000_001) is None, "it is stuck"
        w.catalogue.garbage[ObjectRef("elsewhere", "k")] = GarbageRecord("b1", 1, 1, NOW_US)
        assert w.history.janitor.next_deadline_us(NOW_US + 20_000_001) is None
        del w.catalogue.garbage[ref]
        assert w.history.janitor.next_deadline_us(0) is None


async def test_the_keeper_goes_on_after_a_failure_and_looks_for_orphans_every_six_hours(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world("default", "cold") as w:
        rounds: list[float] = []
        repairs: list[tuple[str, float]] = []
        trouble: Exception | None = StorageError("away")

        async def keep() -> None:
            await trio.lowlevel.checkpoint()
            rounds.append(trio.current_time())
            if trouble is not None:
                raise trouble

        repair = w.history.janitor.repair

        async def repaired(name: str) -> Any:
            repairs.append((name, trio.current_time()))
            return await repair(name)

        monkeypatch.setattr(w.history, "keep", keep)
        monkeypatch.setattr(w.history.janitor, "repair", repaired)
        begun = trio.current_time()
        old = object_name("c", 1, "b1", 1, Random(5))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.history._keep)
            await trio.sleep(95)
            assert [round(at - begun) for at in rounds] == [30, 60, 90]
            assert sum("will be retried: away" in record.message for record in caplog.records) == 1
            w.history.keep_now()
            await trio.sleep(1)
            assert len(rounds) == 4
            trouble = None
            await trio.sleep(60)
            trouble = OSError("the disk")
            await trio.sleep(60)
            assert sum("will be retried: the disk" in record.message for record in caplog.records) == 1
            trouble = None
            w.spaces["cold"].store(old, b"x", 0)
            await trio.sleep(6 * 3600 - (trio.current_time() - begun) - 31)
            assert repairs == []
            await trio.sleep(70)
            assert [name for name, _ in repairs] == ["default", "cold"]
            assert old not in w.spaces["cold"].objects
            assert (
                sum(
                    "removed 1 unreferenced objects and 0 interrupted uploads" in each.message
                    for each in caplog.records
                )
                == 1
            )
            await trio.sleep(3600)
            assert len(repairs) == 2
            nursery.cancel_scope.cancel()
        trouble = OwnerFencedError("another broker")
        with trio.fail_after(100), pytest.raises(OwnerFencedError):
            await w.history._keep()


async def test_trouble_in_one_storage_is_told_and_the_worst_of_it_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world("a", "b", "c") as w:
        done: list[str] = []
        troubles: dict[str, Exception] = {"a": StorageError("a is away"), "b": OwnerFencedError("b is another's")}

        async def merge(name: str, wanted: frozenset[int] = frozenset()) -> int:
            await trio.lowlevel.checkpoint()
            if name in troubles:
                raise troubles[name]
            return 0

        async def collect(name: str) -> int:
            await trio.lowlevel.checkpoint()
            done.append(name)
            return 0

        monkeypatch.setattr(w.history.merger, "merge", merge)
        monkeypatch.setattr(w.history.janitor, "collect", collect)
        with pytest.raises(OwnerFencedError):
            await w.history.keep()
        assert sorted(done) == ["a", "c"], "what is garbage in the third one is for the other broker to say"
        assert caplog.text.count("also failed with: ") == 1
        assert "also failed with: a is away" in caplog.text
        del troubles["b"]
        caplog.clear()
        with pytest.raises(StorageError, match="a is away"):
            await w.history.keep()
        assert "also failed" not in caplog.text, "it is raised"
        troubles.clear()
        await w.history.keep()

        async def stuck(name: str) -> int:
            await trio.lowlevel.checkpoint()
            raise StorageError(f"{name} deletes nothing")

        monkeypatch.setattr(w.history.janitor, "collect", stuck)
        with pytest.raises(StorageError, match="deletes nothing"):
            await w.history.keep()


@pytest.mark.parametrize("to_the_last_byte", [False, True])
async def test_runs_that_are_due_together_share_objects_up_to_a_segment(
    to_the_last_byte: bool, autojump_clock: MockClock
) -> None:
    async with world() as w, trio.open_nursery() as nursery:
        await nursery.start(w.history.reader.run)
        for number in range(3):
            await w.store_object({topic_id: batches(topic_id, number, 1, 8) for topic_id in range(1, 5)})
        sizes = {
            sum(record.part.size_bytes for record in w.catalogue.topic(topic_id).parts) for topic_id in range(1, 5)
        }
        (size,) = sizes
        assert 2 * size <= LIMITS.segment_bytes < 3 * size
        if to_the_last_byte:
            w.history.merger._limits = msgspec.structs.replace(LIMITS, segment_bytes=2 * size)
        assert await w.history.merger.merge("default") == 12
        assert await w.history.merger.merge("default") == 0
        parts = {topic_id: w.catalogue.topic(topic_id).parts for topic_id in range(1, 5)}
        assert [len(some) for some in parts.values()] == [1, 1, 1, 1]
        objects = [some[0].object for some in parts.values()]
        assert objects[0] == objects[1] != objects[2] == objects[3]
        assert w.history.merger.merged_parts == 12
        nursery.cancel_scope.cancel()


async def test_a_merged_part_names_the_producers_of_its_batches_and_no_others(autojump_clock: MockClock) -> None:
    async with world() as w, trio.open_nursery() as nursery:
        await nursery.start(w.history.reader.run)
        for number in range(3):
            builder = SegmentBuilder(SegmentKind.SEGMENT, w.catalogue.epoch, 77)
            for topic_id in (1, 2)[: 3 - number]:  # topic 2 has too few parts to be merged
                producer_id = 10 * topic_id + number
                builder.begin(topic_id, f"/default/t{topic_id}")
                builder.add(make_batch(topic_id, number, [b"x"], producer_id=producer_id))
                builder.end({producer_id: f"maker-{producer_id}"})
            data, footer = builder.finish()
            ref = ObjectRef("default", object_name("c", 77 + number, "b1", w.catalogue.epoch, Random(number)))
            w.spaces["default"].store(ref.key, bytes(data), 77)
            await w.catalogue.enter(ref, len(data), 77, footer.parts)
        assert await w.history.merger.merge("default") == 3
        (record,) = w.catalogue.topic(1).parts
        merged = await load_footer(w.storages["default"], record.object)
        assert merged.producers == {10: "maker-10", 11: "maker-11", 12: "maker-12"}
        nursery.cancel_scope.cancel()


async def test_a_request_seals_each_topic_by_its_durability(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world("default", "cold") as w:
        merged: list[tuple[str, frozenset[int]]] = []
        sealed: list[int] = []

        async def merge(name: str, wanted: frozenset[int] = frozenset()) -> int:
            await trio.lowlevel.checkpoint()
            merged.append((name, wanted))
            w.history.manifests[name].note()
            return 0

        async def seal_now(topics: Iterable[Any]) -> None:
            await trio.lowlevel.checkpoint()
            sealed.extend(topic.topic_id for topic in topics)

        monkeypatch.setattr(w.history.merger, "merge", merge)
        monkeypatch.setattr(w.history.sealer, "seal_now", seal_now)
        await w.history.seal_now(
            [
                Topic(1),
                Topic(2, commits_to_storage=True),
                Topic(3, commits_to_storage=True, storage="cold"),
                Topic(4, lossy=True),
                Topic(5, commits_to_storage=True),
                Topic(6),
            ]
        )
        assert sealed == [1, 6]
        assert merged == [("default", frozenset({2, 5})), ("cold", frozenset({3}))]
        assert not any(log.pending for log in w.history.manifests.values()), "and the manifests tell of it"


async def test_commits_are_sealed_when_they_are_a_segment_or_old_enough(autojump_clock: MockClock) -> None:
    async with world() as w:
        ref, young = ObjectRef("default", "wal/c/1"), NOW_US - 99_999_000

        def runs(*sizes: int, wanted: bool = False, first_us: int = young) -> int:
            w.catalogue.commits.clear()
            w.catalogue.topics.clear()
            parts = [
                SegmentPart(1, base, base + 1, first_us + base * 10**9, NOW_US, 1, 0, size, 0, 0, 1, 0, 1)
                for base, size in enumerate(sizes)
            ]
            w.catalogue.add_commit(ref, 5000, NOW_US, parts)
            return len(w.history.merger._runs(w.catalogue.topic(1), wanted))

        assert runs(10, 10) == 0
        assert runs(10, 10, wanted=True) == 1
        assert runs(500, 499) == 0
        assert runs(500, 500) == 1
        assert runs(10, 10, first_us=NOW_US - 100_000_000) == 1
        await w.store_object({2: batches(2, 0, 2)})
        assert w.history.merger._runs(w.catalogue.topic(2), True) == [], "it is a segment"


# --- Remote commits ---


class RemoteBroker:
    """Has nothing, and is told of nothing."""

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        pass

    def on_stall(self, entries: Sequence[Entry], error: DanubeError) -> None:
        pass

    def remote_state(self) -> RemoteState:
        return RemoteState({}, {}, {}, {})

    def topic_name(self, topic_id: int) -> str:
        return "/default/t"

    def producer_name(self, topic_id: int, producer_id: int) -> str:
        return "maker"


def remote(w: World, limits: Limits = LIMITS) -> RemoteJournal:
    return RemoteJournal(
        w.storages["default"],
        w.catalogue,
        RemoteBroker(),
        limits,
        place="c",
        owner="me",
        wall_clock_us=clock_us,
        manifests_current=lambda: True,
    )


async def test_a_storage_that_is_away_is_tried_again_and_those_who_wait_are_told(autojump_clock: MockClock) -> None:
    async with world() as w:
        journal = remote(w)
        stalls: list[tuple[float, int]] = []
        settled: list[Entry] = []
        broker = journal._broker
        broker.on_stall = lambda entries, error: stalls.append((trio.current_time(), len(entries)))  # type: ignore[method-assign]
        broker.on_commit = lambda entries, error: settled.extend(entries)  # type: ignore[method-assign]
        await journal.recover()
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            await trio.sleep(100)
            assert (stalls, len(journal._queue.in_flight)) == ([], 0)
            puts: list[float] = []
            put = w.storages["default"].put

            async def away(key: str, data: bytes, *, if_absent: bool = False) -> None:
                await trio.lowlevel.checkpoint()
                puts.append(trio.current_time())
                raise StorageUnavailableError("away")

            w.storages["default"].put = away  # type: ignore[method-assign]
            begun = trio.current_time()
            journal.submit(Entry(EntryType.CURSOR, 1, Durability.REMOTE, (b"x",)))
            await trio.sleep(70)
            pauses = [round(puts[at + 1] - puts[at], 3) for at in range(8)]
            assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
            assert [count for _, count in stalls] == [1, 1], "and again, as long as it takes"
            assert 30 <= stalls[0][0] - begun <= 38
            assert stalls[1][0] - stalls[0][0] == pytest.approx(30)
            w.storages["default"].put = put  # type: ignore[method-assign]
            await trio.sleep(10)
            assert len(settled) == 1
            await trio.sleep(100)
            assert len(stalls) == 2
            await journal.aclose()


async def test_a_snapshot_follows_so_many_commits(autojump_clock: MockClock) -> None:
    limits = msgspec.structs.replace(LIMITS, remote_snapshot_commits=3)
    async with world() as w:
        journal = remote(w, limits)
        await journal.recover()
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            await trio.sleep(1)
            kinds = []
            for _ in range(7):
                journal.submit(Entry(EntryType.CURSOR, 1, Durability.REMOTE, (b"x",)))
                await trio.sleep(1)
                kinds.append((journal._settled.commits_since, journal._queue.next_sequence))
            assert kinds == [(1, 3), (2, 4), (0, 6), (1, 7), (2, 8), (0, 10), (1, 11)]
            await journal.aclose()


async def test_a_snapshot_follows_so_many_bytes(autojump_clock: MockClock) -> None:
    limits = msgspec.structs.replace(LIMITS, remote_snapshot_commits=1000, remote_snapshot_bytes=3000)
    async with world() as w:
        journal = remote(w, limits)
        await journal.recover()
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            await trio.sleep(1)
            kinds = []
            for _ in range(7):
                journal.submit(Entry(EntryType.CURSOR, 1, Durability.REMOTE, (bytes(1000),)))
                await trio.sleep(1)
                kinds.append((journal._settled.commits_since, journal._queue.next_sequence))
            assert kinds == [(1, 3), (2, 4), (0, 6), (1, 7), (2, 8), (0, 10), (1, 11)]
            await journal.aclose()


async def test_a_commit_is_deleted_once(autojump_clock: MockClock) -> None:
    async with world() as w:
        storage = w.storages["default"]
        delete = storage.delete
        deleted: list[str] = []

        async def noted(keys: Sequence[str]) -> None:
            deleted.extend(keys)
            await delete(keys)

        storage.delete = noted  # type: ignore[method-assign, assignment]
        journal = remote(w, msgspec.structs.replace(LIMITS, remote_snapshot_commits=3))
        await journal.recover()
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            for _ in range(12):
                journal.submit(Entry(EntryType.CURSOR, 1, Durability.REMOTE, (b"x",)))
                await trio.sleep(1)
            assert len(deleted) > 10
            assert len(set(deleted)) == len(deleted)
            positions = {commit_key("c", position) for position in journal._settled.stored.positions}
            assert positions == {key for key in w.spaces["default"].objects if key.startswith(wal_prefix("c"))}
            await journal.aclose()


async def test_pieces_are_looked_for_as_long_as_there_are_some(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as w:
        storage = w.storages["default"]
        list_all = storage.list_all
        listed: list[str] = []

        def noted(prefix: str = "", *rest: str) -> Any:
            listed.append(prefix)
            return list_all(prefix, *rest)

        def pieces() -> list[str]:
            return [key for key in w.spaces["default"].objects if key.startswith(pieces_prefix("c"))]

        storage.list_all = noted  # type: ignore[method-assign]
        journal = remote(w, msgspec.structs.replace(LIMITS, remote_snapshot_commits=3))
        await journal.recover()
        async with trio.open_nursery() as nursery:

            async def commit(count: int) -> None:
                for _ in range(count):
                    journal.submit(Entry(EntryType.CURSOR, 1, Durability.REMOTE, (b"x",)))
                    await trio.sleep(1)

            with monkeypatch.context() as patch:
                patch.setattr("danube.history.remote.journal.piece_bytes", lambda _: 10)
                await nursery.start(journal.run)
                await commit(2)
            assert pieces(), "the first snapshot is in pieces, and is needed"
            await commit(6)
            assert not pieces()
            listed.clear()
            await commit(6)
            assert pieces_prefix("c") not in listed
            await journal.aclose()


async def test_pieces_that_come_while_others_are_deleted_go_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as w:
        storage = w.storages["default"]
        delete = storage.delete
        slow_s = 0.0

        async def slowly(keys: Sequence[str]) -> None:
            if any(key.startswith(pieces_prefix("c")) for key in keys):
                await trio.sleep(slow_s)
            await delete(keys)

        def pieces() -> list[str]:
            return [key for key in w.spaces["default"].objects if key.startswith(pieces_prefix("c"))]

        storage.delete = slowly  # type: ignore[method-assign, assignment]
        journal = remote(w, msgspec.structs.replace(LIMITS, remote_snapshot_commits=3))
        await journal.recover()
        async with trio.open_nursery() as nursery:

            async def commit(count: int) -> None:
                for _ in range(count):
                    journal.submit(Entry(EntryType.CURSOR, 1, Durability.REMOTE, (b"x",)))
                    await trio.sleep(1)

            with monkeypatch.context() as patch:
                patch.setattr("danube.history.remote.journal.piece_bytes", lambda _: 10)
                await nursery.start(journal.run)
                await commit(2)
            assert pieces(), "the first snapshot is in pieces"
            slow_s = 3.5  # its pieces are deleted while the next snapshot in pieces is written
            await commit(3)
            with monkeypatch.context() as patch:
                patch.setattr("danube.history.remote.journal.piece_bytes", lambda _: 10)
                await commit(3)
            await commit(20)
            assert not pieces(), "no snapshot in pieces is needed any more"
            await journal.aclose()


async def test_no_commit_of_the_owner_s_epoch_is_one_of_a_later_owner() -> None:
    async with world() as w:
        journal, epoch = remote(w), w.catalogue.epoch
        for sequence in (0, 1, 2**63, 2**64 - 1):
            w.spaces["default"].store(commit_key("c", Position(epoch, sequence)), b"", 0)
        await journal.check_owner()
        w.spaces["default"].store(commit_key("c", Position(epoch + 1, 0)), b"", 0)
        with pytest.raises(OwnerFencedError, match="another broker has taken over"):
            await journal.check_owner()


async def test_parts_of_commits_are_needed_until_they_are_sealed_or_expired() -> None:
    async with world() as w:
        journal = remote(w)

        def part(base: int, end: int) -> SegmentPart:
            return SegmentPart(1, base, end, 1, 1, 1, 0, 10, 0, 0, 1, 0, 1)

        assert journal._is_needed(part(0, 5))
        await w.store_object({1: batches(1, 10, 10)})
        needed = {(base, base + 5): journal._is_needed(part(base, base + 5)) for base in (0, 5, 10, 15, 20)}
        assert needed == {(0, 5): True, (5, 10): True, (10, 15): False, (15, 20): False, (20, 25): True}
        await w.catalogue.expire(1, 5, 9)
        assert not journal._is_needed(part(0, 5))
        assert journal._is_needed(part(0, 6))


async def test_a_snapshot_waits_until_another_commit_may_be_on_its_way() -> None:
    async with world() as w:
        journal = remote(w)
        queue = journal._queue
        while queue.has_room:
            queue.take_marker(CommitKind.SNAPSHOT)
        waiting = len(queue.in_flight)
        assert waiting == LIMITS.remote_in_flight
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal._start_commits, nursery)
            await wait_all_tasks_blocked()
            assert len(queue.in_flight) == waiting
            list(queue.landed(queue.in_flight[0]))
            journal._wake()
            await wait_all_tasks_blocked()
            assert queue.next_sequence == waiting + 2
            nursery.cancel_scope.cancel()


# --- The janitor ---


async def test_the_janitor_counts_the_objects(autojump_clock: MockClock) -> None:
    async with world("default", "cold") as w:
        kept = await w.store_object({1: batches(1, 0, 2)})
        gone = await w.store_object({2: batches(2, 0, 2)})
        await w.store_object({3: batches(3, 0, 2)}, storage="cold")
        await w.catalogue.expire(2, 2, clock_us())
        lost = await w.store_object({4: batches(4, 0, 2)})
        w.spaces["default"].remove(lost.key)
        unknown = object_name("c", 5, "b1", 1, Random(9))
        w.spaces["default"].store(unknown, b"xyz", 0)
        report = await w.history.janitor.check("default")
        assert (report.storage, report.url) == ("default", "memory://default")
        assert (report.objects, report.referenced, report.garbage, report.recent) == (3, 1, 1, 0)
        assert report.size_bytes == sum(len(data) for data, _ in w.spaces["default"].objects.values())
        assert (report.orphans, report.missing) == ([unknown], [f"{lost.key}: not there"])
        assert (report.damaged, report.abandoned_uploads, report.deleted, report.ok) == ([], 0, 0, False)
        assert {kept.key, gone.key, unknown} == set(w.spaces["default"].objects), "nothing was changed"
        cold = await w.history.janitor.check("cold", deep=True)
        assert (cold.objects, cold.referenced, cold.ok) == (1, 1, True)
        assert (await w.history.janitor.check_manifests("default")) == 0
        await w.history.manifests["default"].flush()
        w.spaces["default"].store("manifests/c/one/b1/0000000000000001/0000000000000000-00000000", b"a piece", 0)
        assert (await w.history.janitor.check_manifests("default")) == 1


async def test_a_damaged_manifest_is_found() -> None:
    async with world() as w:
        await w.store_object({1: batches(1, 0, 2)})
        await w.history.manifests["default"].flush()
        (key,) = [key for key in w.spaces["default"].objects if key.startswith("manifests/")]
        data, time_us = w.spaces["default"].objects[key]
        w.spaces["default"].store(key, data[:-1] + bytes([data[-1] ^ 1]), time_us)
        with pytest.raises(DataLossError, match="the manifest is damaged"):
            await w.history.janitor.check_manifests("default")


async def test_objects_may_come_and_go_while_the_janitor_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        first = await w.store_object({1: batches(1, 0, 2)})
        second = await w.store_object({2: batches(2, 0, 2)})
        storage = w.storages["default"]
        list_all = storage.list_all
        unknown = object_name("c", 5, "b1", 1, Random(9))

        async def listed(prefix: str, start_after: str = "") -> Any:
            w.spaces["default"].remove(first.key)
            w.spaces["default"].remove(second.key)
            w.spaces["default"].store(unknown, b"xyz", 0)
            async for page in list_all(prefix, start_after):
                yield page
            await w.catalogue.expire(1, 2, clock_us())
            w.catalogue._forget([first], 0)
            await w.catalogue.expire(2, 2, clock_us())
            w.catalogue.objects[ObjectRef("default", unknown)] = ObjectRecord(3, 1, 1, 1)

        monkeypatch.setattr(storage, "list_all", listed)
        report = await w.history.janitor.check("default")
        assert (report.missing, report.orphans, report.recent) == ([], [], 1)


async def test_garbage_goes_after_its_grace_and_only_from_its_storage(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world("default", "cold") as w:
        first = await w.store_object({1: batches(1, 0, 2)})
        cold = await w.store_object({2: batches(2, 0, 2)}, storage="cold")
        for topic_id in (1, 2):
            await w.catalogue.expire(topic_id, 2, clock_us())
        assert w.catalogue.garbage_until(clock_us()) == []
        assert w.catalogue.garbage_until(clock_us() + 1) == [first, cold]
        await trio.sleep(50)
        assert await w.history.janitor.collect("default") == 0, "to the very end"
        await trio.sleep(0.001)
        parts_of = w.catalogue.all_parts
        w.catalogue.all_parts = lambda: iter([PartRecord(*first, SegmentPart(1, 0, 1, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1))])  # type: ignore[method-assign]
        assert await w.history.janitor.collect("default") == 0
        assert "has no references, but parts are in it; not deleted" in caplog.text
        w.catalogue.all_parts = parts_of  # type: ignore[method-assign]
        assert await w.history.janitor.collect("default") == 1
        assert first not in w.catalogue.garbage
        assert first.key not in w.spaces["default"].objects
        assert cold in w.catalogue.garbage
        assert cold.key in w.spaces["cold"].objects
        assert await w.history.janitor.collect("default") == 0
        await check_catalogue(w.store, w.catalogue)


async def test_orphans_go_five_hundred_at_a_time(autojump_clock: MockClock) -> None:
    async with world() as w:
        rng = Random(5)
        for number in range(1100):
            w.spaces["default"].store(object_name("c", 1 + number, "b1", 1, rng), b"x", 0)
        deletions: list[int] = []
        storage = w.storages["default"]
        delete = storage.delete

        async def counted(keys: Sequence[str]) -> None:
            deletions.append(len(keys))
            await delete(keys)

        storage.delete = counted  # type: ignore[method-assign]
        abandoned: list[tuple[str, float]] = []

        async def abandon(prefix: str, older_than_s: float) -> int:
            await trio.lowlevel.checkpoint()
            abandoned.append((prefix, older_than_s))
            return 3

        storage.abandon_uploads = abandon  # type: ignore[method-assign]
        report = await w.history.janitor.repair("default")
        assert abandoned == [("segments/c/", 50.0), ("manifests/c/", 50.0), ("schemas/c/", 50.0)]
        assert report.abandoned_uploads == 9
        assert (report.deleted, len(report.orphans), deletions) == (1100, 1100, [500, 500, 100])
        assert not any(key.startswith(segment_prefix("c")) for key in w.spaces["default"].objects)


# --- The catalogue ---


async def test_many_parts_are_withdrawn_and_others_left_out() -> None:
    async with world() as w:
        for base in range(0, 130, 10):
            await w.store_object({1: batches(1, base, 1), 2: batches(2, base, 1)})
        wide = [SegmentPart(3, base, base + 1, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1) for base in range(150)]
        await w.catalogue.enter(ObjectRef("default", "wide"), 150, 1, wide)
        records = list(w.catalogue.topic(3).parts)
        stranger = PartRecord("default", "another", wide[7])
        before = w.store.transactions
        await w.catalogue.withdraw(3, [*records[:140], stranger], 5)
        assert w.store.transactions == before + 4
        assert w.catalogue.topic(3).parts == records[140:]
        await w.catalogue.withdraw(3, records[:140], 5)
        await w.catalogue.withdraw(3, [], 5)
        assert w.store.transactions == before + 4, "they are not there any more"
        assert len(w.catalogue.topic(1).parts) == 13
        await check_catalogue(w.store, w.catalogue)


async def test_a_start_moves_step_by_step_and_only_if_it_moves() -> None:
    async with world() as w:
        parts = [SegmentPart(1, base, base + 1, 1, 1, 1, base, base + 1, 0, 0, 1, 0, 1) for base in range(150)]
        await w.catalogue.enter(ObjectRef("default", "o"), 150, 1, parts)
        starts: list[tuple[int, int]] = []
        w.catalogue.on_change = lambda added, removed, moved: starts.append((len(removed), moved[1]))
        await w.catalogue.expire(1, 131, 5)
        assert starts == [(40, 40), (40, 80), (40, 120), (11, 131)]
        await w.catalogue.expire(1, 131, 5)
        await w.catalogue.expire(1, 100, 5)
        assert len(starts) == 4
        await w.catalogue.expire(1, 132, 5)
        await w.catalogue.expire(1, 500, 5)
        await w.catalogue.expire(1, 501, 5)
        assert starts[4:] == [(1, 132), (18, 500), (0, 501)]
        assert not w.catalogue.objects
        assert w.catalogue.garbage == {ObjectRef("default", "o"): GarbageRecord("b1", 150, 1, 5)}
        await check_catalogue(w.store, w.catalogue)


async def test_parts_that_another_has_entered_are_not_replaced() -> None:
    """Memory does not know them: the store does."""
    async with world() as w:
        other = w.catalogue
        (one,) = build({1: batches(1, 0, 2)})[1].parts
        await other.enter(ObjectRef("default", "a"), 10, 1, [one])
        other.topics.clear()
        with pytest.raises(MetadataConflictError):
            await other.enter(ObjectRef("default", "b"), 10, 1, [one])
        assert ObjectRef("default", "b") not in other.objects


async def test_commits_are_forgotten_storage_by_storage_and_with_their_last_part() -> None:
    async with world("default", "cold") as w:
        sealed = await w.store_object({1: batches(1, 0, 2)})
        refs = [ObjectRef("default", "wal/c/1"), ObjectRef("default", "wal/c/2"), ObjectRef("cold", "wal/c/1")]
        for number, ref in enumerate(refs):
            parts = [
                SegmentPart(topic_id, 2 + number, 3 + number, 1, 1, 1, 0, 10 * topic_id, 0, 0, 1, 0, 1)
                for topic_id in (1, 2)
            ]
            w.catalogue.add_commit(ref, 500, 7, parts)
        assert w.catalogue.commits[refs[0]] == ObjectRecord(500, 2, 30, 7)
        assert [record.ref for record in w.catalogue.all_parts()] == [sealed], "they are not sealed yet"
        changes: list[tuple[int, int]] = []
        w.catalogue.on_change = lambda added, removed, starts: changes.append((len(added), len(removed)))
        before = w.store.transactions
        await w.catalogue.withdraw(2, w.catalogue.topic(2).parts[:1], 9)
        assert (w.store.transactions, changes) == (before, [(0, 1)]), "nothing of it is in the store"
        assert w.catalogue.commits[refs[0]] == ObjectRecord(500, 1, 10, 7)
        await w.catalogue.withdraw(1, w.catalogue.topic(1).parts[1:2], 9)
        assert list(w.catalogue.commits) == refs[1:]
        w.catalogue.forget_commits("default", "wal/d/")
        assert list(w.catalogue.commits) == refs[1:], "those of another wal stay"
        w.catalogue.forget_commits("default", "wal/c/")
        assert list(w.catalogue.commits) == [refs[2]]
        assert [record.ref for record in w.catalogue.topic(1).parts] == [sealed, refs[2]]
        assert [record.ref for record in w.catalogue.topic(2).parts] == [refs[2]]
        w.catalogue.forget_commits("cold", "wal/")
        assert w.catalogue.commits == {}
        assert w.catalogue.topic(2).parts == []
        await check_catalogue(w.store, w.catalogue)


async def test_objects_of_a_dropped_topic_are_tainted_and_counted() -> None:
    async with world() as w:
        shared = await w.store_object({1: batches(1, 0, 2), 2: batches(2, 0, 3)})
        alone = await w.store_object({1: batches(1, 2, 1)})
        await w.catalogue.drop_topic(1, 9)
        await w.catalogue.drop_topic(7, 9)
        objects = w.catalogue.objects
        (left,) = w.catalogue.topic(2).parts
        assert (objects[shared].references, objects[shared].live_bytes) == (1, left.part.size_bytes)
        assert objects[shared].tainted
        assert alone not in objects
        assert w.catalogue.garbage[alone].since_us == 9
        assert w.catalogue.find(1) is None
        await check_catalogue(w.store, w.catalogue)


# --- Manifests and what a bucket holds ---


async def test_a_bucket_that_is_taken_over_is_told_of_by_a_snapshot() -> None:
    async with world() as w:
        await w.store_object({1: batches(1, 0, 2)})
        w.records["/default/t1"] = b"record"
        former = w.history.manifests["default"]
        await former.flush()
        bucket = await read_bucket(w.storages["default"], "c")
        assert bucket.epoch == w.catalogue.epoch
        async with Store() as store:
            catalogue = await claim(store, "two", bucket.epoch + 1)
            heir = World(store, catalogue, w.spaces)
            heir.history.manifests["default"].note()
            with pytest.raises(FailedPreconditionError, match="cluster 'c' has written with other metadata"):
                await heir.history.manifests["default"].flush()
            survey = await survey_bucket(heir.storages["default"], "c")
            await enter(catalogue, "default", survey, [survey.chain(1)], 5)
            await heir.history.take_over("default", bucket)
            assert heir.history._wake.is_set()
            assert heir.history.manifests["default"].written
            after = await read_bucket(heir.storages["default"], "c")
            assert (after.epoch, after.incarnation) == (catalogue.epoch, "two")
            assert after.parts == bucket.parts
            keys = [key for key in w.spaces["default"].objects if key.startswith("manifests/c/")]
            await heir.history.take_over("default", bucket)
            again = [key for key in w.spaces["default"].objects if key.startswith("manifests/c/")]
            assert len(again) == len(keys) + 1, "once more, under the next number"
            assert again[-1].endswith("/0000000000000001")
        with pytest.raises(OwnerFencedError):
            await former.confirm()


async def test_parts_that_were_merged_since_an_interrupted_attempt_are_not_entered_twice(
    autojump_clock: MockClock,
) -> None:
    async with world() as w, trio.open_nursery() as nursery:
        await nursery.start(w.history.reader.run)
        for number in range(4):
            await w.store_object({1: batches(1, number, 1, 5 if number < 3 else 300)})
        former = await survey_bucket(w.storages["default"], "c")
        assert await w.history.merger.merge("default") == 3
        survey = await survey_bucket(w.storages["default"], "c")
        async with Store() as store:
            catalogue = await claim(store, "two", w.catalogue.epoch + 1)
            await enter(catalogue, "default", former, [former.chain(1)], 5)
            assert len(catalogue.topic(1).parts) == 4
            before = store.transactions
            await enter(catalogue, "default", survey, [survey.chain(1)], 6)
            assert catalogue.topic(1).parts == w.catalogue.topic(1).parts
            assert len(catalogue.garbage_until(7)) == 3
            assert store.transactions == before + 2, "what is there already stays"
            await check_catalogue(store, catalogue)
        nursery.cancel_scope.cancel()


async def test_a_survey_finds_listed_missing_and_unlisted_objects(autojump_clock: MockClock) -> None:
    async with world() as w:
        refs = [await w.store_object({1: batches(1, 10 * n, 10), 2: batches(2, 10 * n, 1)}) for n in range(4)]
        await w.history.manifests["default"].flush()
        storage, space = w.storages["default"], w.spaces["default"]
        fine = await survey_bucket(storage, "c")
        assert set(fine.objects) == {ref.key for ref in refs}
        assert (fine.damage, fine.broken) == ({}, [])
        for key, found in fine.objects.items():
            assert (found.key, found.size_bytes) == (key, len(space.objects[key][0]))
        assert [len(fine.chain(topic_id).parts) for topic_id in (1, 2)] == [4, 4]
        space.remove(refs[0].key)
        data, time_us = space.objects[refs[1].key]
        space.store(refs[1].key, data[:-5], time_us)
        other = build({1: batches(1, 500, 10), 2: batches(2, 20, 1)})[0]
        space.store(refs[2].key, other, time_us)
        space.store(segment_prefix("c") + "foreign.seg", b"short", 0)
        unlisted = build({1: batches(1, 40, 5)}, created_us=10**15)[0]
        space.store(segment_prefix("c") + "unlisted.seg", unlisted, 0)
        survey = await survey_bucket(storage, "c")
        assert {topic_id: len(texts) for topic_id, texts in survey.damage.items()} == {1: 3, 2: 2}, (
            "one of topic 2 is the same"
        )
        texts = "\n".join(survey.damage[1])
        assert f"offsets [0, 10): memory://default/{refs[0].key} is missing" in texts
        assert "offsets [10, 20): " in texts
        assert f"offsets [20, 30): memory://default/{refs[2].key} has other contents" in texts
        assert [key for key, _ in survey.broken] == [segment_prefix("c") + "foreign.seg"]
        chain = survey.chain(1)
        assert (chain.unlisted, chain.end_offset, chain.parts[-1][0]) == (1, 45, segment_prefix("c") + "unlisted.seg")
        only = await survey_topics(storage, "c", survey.bucket, [2])
        assert set(only.damage) == {2}
        assert set(only.objects) <= {ref.key for ref in refs}
        assert (await survey_topics(storage, "c", survey.bucket, [99])).objects == {}


async def test_broken_objects_are_named_in_order_and_a_survey_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with world() as w:
        keys = [f"{segment_prefix('c')}{number}.seg" for number in range(3)]
        for key in keys:
            w.spaces["default"].store(key, b"short", 0)
        storage = w.storages["default"]
        get = storage.get

        async def slow(key: str, start: int = 0, end: int | None = None) -> bytes:
            await trio.sleep(9 if key == keys[0] else 1)
            return await get(key, start, end)

        storage.get = slow  # type: ignore[method-assign]
        survey = await survey_bucket(storage, "c")
        assert [key for key, _ in survey.broken] == keys
        with trio.move_on_after(0.5) as patience:
            await survey_bucket(storage, "c")
        assert patience.cancelled_caught

        async def away(key: str, start: int = 0, end: int | None = None) -> bytes:
            await trio.sleep(1)
            raise StorageUnavailableError("away")

        storage.get = away  # type: ignore[method-assign]
        with pytest.raises(StorageUnavailableError, match="away"):
            await survey_bucket(storage, "c")


async def test_checksums_of_unlisted_objects_are_compared_and_of_all_on_request() -> None:
    async with world() as w:
        ref = await w.store_object({1: batches(1, 0, 10)})
        await w.history.manifests["default"].flush()
        storage, space = w.storages["default"], w.spaces["default"]
        key = segment_prefix("c") + "unlisted.seg"
        space.store(key, build({1: batches(1, 10, 5)}, created_us=10**15)[0], 0)
        fine = await survey_bucket(storage, "c")
        await verify_chains(storage, fine, [fine.chain(1)], deep=True)
        assert fine.damage == {}

        async def damage(where: str, at: int, *, deep: bool) -> list[str]:
            kept, time_us = space.objects[where]
            space.store(where, kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :], time_us)
            survey = await survey_bucket(storage, "c")
            await verify_chains(storage, survey, [survey.chain(1)], deep=deep)
            space.store(where, kept, time_us)
            return survey.damage.get(1, [])

        listed, unlisted = fine.bucket.parts[1][0][1], fine.objects[key].footer.parts[0]
        assert await damage(ref.key, listed.start, deep=False) == []
        for part, where in ((listed, ref.key), (unlisted, key)):
            for at in (part.start, part.end - 1):
                (text,) = await damage(where, at, deep=True)
                assert f"the bytes [{part.start}, {part.end}) of memory://default/{where} do not match" in text
            (text,) = await damage(where, part.index_start, deep=True)
            assert "the index of topic" in text
        assert len(await damage(key, unlisted.start, deep=False)) == 1


@pytest.mark.parametrize("more", [-1, 0, 1, 40])
async def test_a_footer_at_the_edge_of_the_first_look_is_read(more: int) -> None:
    """With the trailer it is as large as what is read at first, or by a byte less or more."""

    def object_of(name: str) -> tuple[bytes, int]:
        builder = SegmentBuilder(SegmentKind.SEGMENT, 1, 5)
        builder.begin(1, name)
        builder.add(make_batch(1, 0, [b"x"]))
        builder.end({})
        data = bytes(builder.finish()[0])
        return data, read_trailer(data, "here").footer_length

    _, least = object_of("n" * 60_000)
    name = "n" * (60_000 + 64 * KIB - TRAILER_SIZE - least + more)
    data, length = object_of(name)
    assert length + TRAILER_SIZE == 64 * KIB + more
    async with world() as w:
        key = segment_prefix("c") + "x.seg"
        w.spaces["default"].store(key, data, 0)
        survey = await survey_bucket(w.storages["default"], "c")
        assert survey.broken == []
        assert survey.objects[key].footer.names == {1: name}
        assert (await load_footer(w.storages["default"], key)).names == {1: name}
        assert (await load_footer(w.storages["default"], key, len(data))).names == {1: name}


async def test_a_footer_that_is_larger_than_the_first_look_is_read() -> None:
    async with world() as w:
        ref = await w.store_object({number: batches(number, 0, 1) for number in range(1, 1500)})
        data, _ = w.spaces["default"].objects[ref.key]
        await w.history.manifests["default"].flush()
        survey = await survey_bucket(w.storages["default"], "c")
        assert len(survey.objects[ref.key].footer.parts) == 1499
        assert len(data) - survey.objects[ref.key].footer.parts[0].index_start > 64 * KIB
        assert survey.damage == {}


# --- The reader ---


@asynccontextmanager
async def reading(w: World, *, chunk_bytes: int = 1000, first_bytes: int = 300, chunks: int = 8) -> AsyncIterator[Any]:
    """A reader, and the ranges that it asks the storage for."""
    limits = msgspec.structs.replace(LIMITS, segment_cache_bytes=chunks * chunk_bytes)
    reader = SegmentReader(w.catalogue, w.storages, limits, chunk_bytes=chunk_bytes, first_bytes=first_bytes)
    asked: list[tuple[str, int, int]] = []
    get = w.storages["default"].get

    async def noted(key: str, start: int = 0, end: int | None = None) -> bytes:
        asked.append((key, start, end or 0))
        return await get(key, start, end)

    w.storages["default"].get = noted  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        await nursery.start(reader.run)
        yield reader, asked
        nursery.cancel_scope.cancel()


async def test_names_of_the_last_32_objects_are_kept() -> None:
    async with world() as w, reading(w) as (reader, asked):
        for number in range(33):
            await w.store_object({1: batches(1, number, 1)})
        records = w.catalogue.topic(1).parts
        for _ in range(2):
            for record in records[:32]:
                assert await reader.names(record) == ("/default/t1", {1: "maker"})
        assert len(asked) == 32
        await reader.names(records[32])
        await reader.names(records[31])
        assert len(asked) == 33
        await reader.names(records[0])
        assert len(asked) == 34, "the oldest one has gone"


async def test_indexes_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w, reading(w) as (reader, asked):
        for number in range(3):
            await w.store_object({1: batches(1, 20 * number, 20, 400)})
        records = w.catalogue.topic(1).parts
        size = (await reader._index(records[0])).size_bytes
        monkeypatch.setattr("danube.history.reader._INDEX_CACHE_BYTES", 2 * size)
        await reader._index(records[1])
        assert (len(asked), reader._index_bytes) == (2, 2 * size), "what fits exactly fits"
        await reader._index(records[0])
        await reader._index(records[2])
        assert (len(asked), reader._index_bytes, len(reader._indexes)) == (3, 2 * size, 2)
        await reader._index(records[0])
        assert len(asked) == 3, "it was used last but one"
        await reader._index(records[1])
        assert len(asked) == 4
        monkeypatch.setattr("danube.history.reader._INDEX_CACHE_BYTES", 1)
        await reader._index(records[2])
        assert (len(reader._indexes), reader._index_bytes) == (1, size), "the one that is in use stays"


async def test_chunks_reach_to_the_end_of_their_object_and_into_the_next_part(autojump_clock: MockClock) -> None:
    async with world() as w, reading(w, chunk_bytes=1500, first_bytes=50) as (reader, asked):
        ref = await w.store_object({1: batches(1, 0, 10, 100), 2: batches(2, 0, 1)})
        following = await w.store_object({3: batches(3, 0, 9, 100), 1: batches(1, 10, 10, 100)})
        sizes = {key: w.catalogue.objects[ObjectRef("default", key)].size_bytes for key in (ref.key, following.key)}
        parts = [record.part for record in w.catalogue.topic(1).parts]
        assert parts[1].start > 1500
        await reader.read(1, 0, 10)
        asked.clear()
        await reader.read(1, 1, 100)
        await trio.sleep(1)
        assert set(asked) == {(ref.key, 0, 1500), (ref.key, 1500, min(3000, sizes[ref.key]))}
        offset = 2
        while offset < 20:
            offset = (await reader.read(1, offset, 100))[-1].end_offset
        await trio.sleep(1)
        chunks = [each for each in asked if each[0] == following.key]
        assert len(asked) == len(set(asked)), "each once"
        first = parts[1].start // 1500
        last = (parts[1].end - 1) // 1500
        assert {start // 1500 for _, start, _ in chunks} == set(range(first, last + 1))
        assert max(end for *_, end in chunks) == min((last + 1) * 1500, sizes[following.key])


async def test_commits_are_read_in_whole_chunks_too(autojump_clock: MockClock) -> None:
    async with world() as w, reading(w, chunk_bytes=4000, first_bytes=50) as (reader, asked):
        data, footer = build({1: batches(1, 0, 5, 100), 2: batches(2, 0, 5, 100)})
        w.spaces["default"].store("wal/c/1", data, 0)
        w.catalogue.add_commit(ObjectRef("default", "wal/c/1"), len(data), 5, footer.parts)
        await reader.read(1, 0, 10)
        await reader.read(1, 1, 10)
        await reader.read(2, 0, 10)
        await reader.read(2, 1, 10)
        assert [each for each in asked if each[2] == len(data)] == [("wal/c/1", 0, len(data))], "one for both topics"


async def test_chunks_that_were_used_last_are_kept() -> None:
    async with world() as w, reading(w, chunk_bytes=1000, chunks=1) as (reader, _):
        assert reader._max_chunks == 8, "less would not do for reading ahead"
        await w.store_object({1: batches(1, 0, 100, 100)})
        record = w.catalogue.topic(1).parts[0]
        for number in range(8):
            await reader._chunk(record, number)
        assert [number for _, number in reader._chunks] == list(range(8))
        await reader._chunk(record, 0)
        await reader._chunk(record, 8)
        assert [number for _, number in reader._chunks] == [2, 3, 4, 5, 6, 7, 0, 8]


async def test_who_goes_on_is_read_ahead_for_more_and_more(autojump_clock: MockClock) -> None:
    async with world() as w, reading(w, chunk_bytes=1000, first_bytes=300, chunks=50) as (reader, asked):
        await w.store_object({1: batches(1, 0, 100, 100)})
        ahead, offset = [], 0
        for _ in range(6):
            found = await reader.read(1, offset, 200)
            offset = found[-1].end_offset
            ahead.append(reader._streams[(1, offset)].ahead)
            await trio.sleep(1)
        assert ahead == [1, 2, 4, 4, 4, 4]
        assert len(reader._streams) == 1, "one place for each reader"
        first, *chunks = [end - start for _, start, end in asked[1:]]  # behind the index
        assert 4096 <= first < 5000, "a jump reads up to the next batch in the index"
        assert set(chunks) == {1000}
        await reader.read(1, 50, 200)
        assert len(reader._streams) == 2
