"""Reading sealed parts without an event loop: every range, damage, loss, read-ahead, secrets."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed import build, make_batch, make_batches

from danube.history import _direct_reading as direct_reading
from danube.history import _direct_run as direct_run
from danube.history.direct import DirectPart, DirectStorage, direct_parts, open_direct
from danube.history.segment import SegmentFooter
from danube.log import StoredBatch
from danube.model.batch import CompositeRecord, check_part, encode_composite, write_stamp
from danube.model.errors import (
    ClosedError,
    ConfigurationError,
    DataLossError,
    StorageDeniedError,
    StorageNotFoundError,
    StorageUnavailableError,
)
from danube.model.limits import Limits
from danube.model.query_api import LogPart, LogParts, RawBatch
from danube.storage import SHARED_SPACES, MemoryBackend

TOPIC = "/default/t7"
KEY = "segments/danube/0001.seg"


class Bucket:
    """A memory storage that :func:`open_direct` finds, and segments in it."""

    def __init__(self) -> None:
        name = f"direct-{uuid.uuid4().hex}"
        self.url = f"memory://{name}"
        self.space = SHARED_SPACES.space(name)

    def store(self, batches: list[StoredBatch], key: str = KEY, *, known_size: bool = True) -> DirectPart:
        data, footer = build({3: make_batches(Random(1), 3, 2), 7: batches})
        self.space.store(key, data, 0)
        return part_of(footer, key, len(data) if known_size else 0)

    def damage(self, at: int, key: str = KEY) -> None:
        data, modified_us = self.space.objects[key]
        self.space.store(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], modified_us)


def part_of(footer: SegmentFooter, key: str, size: int) -> DirectPart:
    (part,) = (part for part in footer.parts if part.topic_id == 7)
    return DirectPart(TOPIC, "default", key, size, part)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@contextmanager
def small_pieces(size: int = 3000, whole: int = 0) -> Iterator[None]:
    """Let pieces be small, and every part have its index asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_reading, "_PIECE_BYTES", size)
        patch.setattr(direct_run, "_WHOLE_BYTES", whole)
        yield


@contextmanager
def watched_gets(change: Any = None) -> Iterator[list[tuple[str, int, int | None]]]:
    """Note every read of a memory storage; ``change(key, start, data)`` may give other bytes, or raise."""
    calls: list[tuple[str, int, int | None]] = []
    get = MemoryBackend.get

    async def watched(self: MemoryBackend, key: str, start: int = 0, end: int | None = None) -> bytes:
        calls.append((key, start, end))
        data = await get(self, key, start, end)
        return change(key, start, data) if change is not None else data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryBackend, "get", watched)
        yield calls


def expected(batches: list[StoredBatch], start: int, end: int, producer: str = "maker") -> list[RawBatch]:
    return [
        RawBatch(batch.base_offset, batch.append_time_us, producer, batch.part)
        for batch in batches
        if batch.end_offset > start and batch.base_offset < end
    ]


@given(seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_range_of_every_part(seed: int, data: st.DataObject) -> None:
    rng = Random(seed)
    bucket = Bucket()
    batches = make_batches(rng, 7, rng.randrange(1, 60), base=rng.choice((0, 1000)), sizes=(5, 300, 9000))
    cut = rng.randrange(0, len(batches) + 1)
    parts = [bucket.store(some, f"{KEY}{number}") for number, some in enumerate((batches[:cut], batches[cut:])) if some]
    first, last = batches[0].base_offset, batches[-1].end_offset
    with small_pieces(data.draw(st.sampled_from((500, 3000, 20_000)))), open_direct(bucket.url) as storage:
        for _ in range(4):
            start = data.draw(st.integers(first, last))
            end = data.draw(st.integers(start, last))
            found = list(storage.read_all([(part, start, end) for part in parts]))
            assert found == (expected(batches, start, end) if start < end else [])
        assert list(storage.read_all([(part, 0, 1 << 62) for part in parts])) == expected(batches, first, last)


def test_a_read_fetches_only_the_bytes_that_it_needs(bucket: Bucket) -> None:
    batches = make_batches(Random(3), 7, 400, sizes=(3000,))
    part = bucket.store(batches)
    end = part.part.end_offset
    with open_direct(bucket.url) as storage:
        with watched_gets() as gets:
            assert list(storage.read(part)) == expected(batches, 0, end)
        assert {key for key, _, _ in gets} == {KEY}
        assert len(gets) == 2  # the footer, and all of the part
        with watched_gets() as gets:
            assert list(storage.read(part, end - 10, end - 8)) == expected(batches, end - 10, end - 8)
        # The footer is known; an index, and a little of the end.
        assert (part.object, part.part.index_start, part.part.index_end) in gets
        assert sum(high - low for _, low, high in gets if high is not None) < 60_000
        with watched_gets() as gets:
            assert list(storage.read(part, 5, 5)) == list(storage.read(part, end, end + 7)) == []
        assert gets == []
    with open_direct(bucket.url) as storage, watched_gets() as gets:
        assert list(storage.read(part, producers=False)) == expected(batches, 0, end, "")
        assert len(gets) == 1


def test_names_of_producers(bucket: Bucket) -> None:
    batches = [make_batch(7, 0, [b"a"]), make_batch(7, 1, [b"b"], producer_id=255), make_batch(7, 2, [b"c"])]
    part = encode_composite([CompositeRecord(b"d", producer="one")], publish_time_us=1)
    stamp = write_stamp(len(part), 7, 3, 1000, 1)
    batches.append(StoredBatch(3, 4, stamp, part, check_part(part), 1000))
    found = bucket.store(batches, known_size=False)  # its size is asked for
    with open_direct(bucket.url) as storage:
        names = [batch.producer for batch in storage.read(found)]
    assert names == ["maker", f"{255:016x}", "maker", ""]


def test_names_in_the_objects_that_were_read_last_are_kept(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_run, "_MAX_FOOTERS", 2)
    parts = {key: bucket.store([make_batch(7, 0, [b"x"])], key) for key in "abc"}
    with watched_gets() as gets, open_direct(bucket.url) as storage:
        for key, with_footer in (("a", True), ("b", True), ("c", True), ("c", False), ("b", False), ("a", True)):
            gets.clear()
            assert [batch.producer for batch in storage.read(parts[key])] == ["maker"]
            assert len(gets) == 1 + with_footer, key


def test_a_small_part_is_read_whole_unless_it_is_damaged_before_the_requested_range(bucket: Bucket) -> None:
    batches = make_batches(Random(6), 7, 20, sizes=(3000,))
    part = bucket.store(batches)
    inner, start = part.part, batches[10].base_offset
    with open_direct(bucket.url) as storage:
        with watched_gets() as gets:
            assert list(storage.read(part, start, producers=False)) == expected(batches, start, 1 << 60, "")
        assert gets == [(KEY, inner.start, inner.end)]
        bucket.damage(inner.start + 300)
        with watched_gets() as gets:
            assert list(storage.read(part, start, producers=False)) == expected(batches, start, 1 << 60, "")
        whole, index, rest = gets
        assert (whole, index) == ((KEY, inner.start, inner.end), (KEY, inner.index_start, inner.index_end))
        assert inner.start + 300 < rest[1]
        assert rest[2] == inner.end


def test_pieces_are_fetched_ahead_and_not_without_bound(bucket: Bucket) -> None:
    batches = make_batches(Random(4), 7, 300, sizes=(3000,))
    parts = [bucket.store(batches[:150], "a"), bucket.store(batches[150:], "b")]
    with small_pieces(20_000, 1 << 30), watched_gets() as gets, open_direct(bucket.url) as storage:
        reading = storage.read_all([(part, 0, 1 << 60) for part in parts], producers=False)
        next(reading)
        deadline = time.monotonic() + 5
        while len(gets) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        assert len(gets) == 4  # the one at hand, two in line, one that waits to be put there
        rest = list(reading)
    assert len(rest) == len(batches) - 1
    assert len(gets) > 30


def test_bytes_that_were_damaged_on_the_way_are_read_again(bucket: Bucket) -> None:
    batches = make_batches(Random(5), 7, 100, sizes=(3000,))
    part = bucket.store(batches)
    inner = part.part
    damaged = {inner.index_start + 3} | set(range(inner.start + 11_000, inner.end, 40_000))
    count = len(damaged)

    def change(key: str, start: int, data: bytes) -> bytes:
        """Damage some bytes, each the first time that it is read."""
        for at in sorted(damaged):
            if start <= at < start + len(data):
                damaged.remove(at)
                data = data[: at - start] + bytes([data[at - start] ^ 4]) + data[at - start + 1 :]
        return data

    with small_pieces(10_000), watched_gets(change) as gets, open_direct(bucket.url) as storage:
        end = inner.end_offset
        assert list(storage.read(part, 3, end - 1, producers=False)) == expected(batches, 3, end - 1, "")
    assert not damaged
    assert count > 10
    assert len(gets) > (inner.end - inner.start) // 20_000 + count


def test_damage_is_told_with_all_that_is_known(bucket: Bucket) -> None:
    batches = make_batches(Random(6), 7, 30, sizes=(3000,))
    part = bucket.store(batches)
    third = batches[2]
    position = part.part.start + sum(48 + len(batch.part) for batch in batches[:2])
    bucket.damage(position + 300)
    with open_direct(bucket.url) as storage:
        reading = storage.read(part)
        assert [next(reading), next(reading)] == expected(batches[:2], 0, 1 << 60)
        with pytest.raises(DataLossError) as caught:
            next(reading)
        message = str(caught.value)
        for detail in (TOPIC, f"the batch at offset {third.base_offset} ", f"{bucket.url}/{KEY}", f"byte {position}:"):
            assert detail in message
        assert "the checksum does not match" in message
        assert "restore the object from a copy" in message
        # Everything before and behind it can still be read.
        assert list(storage.read(part, 0, third.base_offset)) == expected(batches, 0, third.base_offset)
        behind = batches[5].base_offset
        assert list(storage.read(part, behind)) == expected(batches, behind, 1 << 60)


@pytest.mark.parametrize("what", ["stamp", "index", "footer", "order", "topic"])
def test_every_kind_of_damage(bucket: Bucket, what: str) -> None:
    batches = make_batches(Random(6), 7, 30, sizes=(3000,))
    part = bucket.store(batches)
    start = 0
    fields = {name: getattr(part.part, name) for name in part.part.__struct_fields__}
    if what == "stamp":
        bucket.damage(part.part.start + 20)
    elif what == "index":
        bucket.damage(part.part.index_start + 1)
        start = 3
    elif what == "footer":
        bucket.damage(part.object_bytes - 60)
    else:
        fields |= {"base_offset": 1} if what == "order" else {"topic_id": 9}
        part = DirectPart(TOPIC, "default", KEY, part.object_bytes, type(part.part)(**fields))
    with small_pieces(10_000), open_direct(bucket.url) as storage, pytest.raises(DataLossError) as caught:
        list(storage.read(part, start))
    assert TOPIC in str(caught.value)
    assert KEY in str(caught.value)
    assert "restore the object from a copy" in str(caught.value)


def test_a_part_that_ends_too_early(bucket: Bucket) -> None:
    batches = make_batches(Random(6), 7, 30, sizes=(3000,))
    part = bucket.store(batches)
    fields = {name: getattr(part.part, name) for name in part.part.__struct_fields__}
    for change, why in (({"end": part.part.end - 10}, "extends beyond"), ({"end_offset": 99_999}, "ends before")):
        wrong = DirectPart(TOPIC, "default", KEY, part.object_bytes, type(part.part)(**(fields | change)))
        with open_direct(bucket.url) as storage, pytest.raises(DataLossError, match=why):
            list(storage.read(wrong))
    data, _ = bucket.space.objects[KEY]
    bucket.space.store(KEY, data[: part.part.end - 10], 0)
    with open_direct(bucket.url) as storage, pytest.raises(DataLossError, match="the object is truncated"):
        list(storage.read(part, producers=False))


def test_errors_about_missing_and_forbidden_objects_say_what_to_do(bucket: Bucket) -> None:
    part = bucket.store(make_batches(Random(6), 7, 3))

    def deny(key: str, start: int, data: bytes) -> bytes:
        raise StorageDeniedError(f"{bucket.url}: get {key}: access denied")

    with open_direct(bucket.url) as storage:
        with watched_gets(deny), pytest.raises(StorageDeniedError) as caught:
            list(storage.read(part))
        assert "credentials that may read and list the objects below memory://" in str(caught.value)
        bucket.space.remove(KEY)
        with pytest.raises(StorageNotFoundError) as gone:
            list(storage.read(part))
        assert KEY in str(gone.value)
        assert "merged or has expired since" in str(gone.value)


def test_a_storage_in_trouble_is_tried_again(bucket: Bucket) -> None:
    batches = make_batches(Random(6), 7, 30, sizes=(3000,))
    part = bucket.store(batches)
    failures = [1, 2, 3]

    def fail(key: str, start: int, data: bytes) -> bytes:
        if failures:
            failures.pop()
            raise StorageUnavailableError("out of order")
        return data

    with watched_gets(fail), open_direct(bucket.url) as storage:
        assert list(storage.read(part)) == expected(batches, 0, 1 << 60)
    assert not failures
    failures.extend(range(99))
    limits = Limits(storage_max_attempts=2)
    with (
        watched_gets(fail),
        open_direct(bucket.url, limits=limits) as storage,
        pytest.raises(StorageUnavailableError, match="out of order"),
    ):
        list(storage.read(part))


def test_leaving_half_way_stops_the_fetching(bucket: Bucket) -> None:
    part = bucket.store(make_batches(Random(4), 7, 200, sizes=(3000,)))
    with small_pieces(10_000), open_direct(bucket.url) as storage:
        for how in ("close", "collect"):
            reading: Any = storage.read(part, producers=False)
            next(reading)
            if how == "close":
                reading.close()
            else:
                del reading
                gc.collect()
            nursery = storage._loop._nursery
            deadline = time.monotonic() + 5
            while nursery.child_tasks and time.monotonic() < deadline:
                time.sleep(0.005)
            assert not nursery.child_tasks
        left = storage.read(part, producers=False)
        next(left)
    with pytest.raises(ClosedError):
        list(left)
    with pytest.raises(ClosedError, match="open_direct"):
        next(storage.read(part))
    assert not [thread for thread in threading.enumerate() if thread.name == "danube-direct"]


def test_an_error_of_the_caller_closes_the_storage(bucket: Bucket) -> None:
    part = bucket.store(make_batches(Random(4), 7, 20))
    with pytest.raises(ZeroDivisionError), open_direct(bucket.url) as storage:
        next(storage.read(part)).base_offset // 0
    assert not [thread for thread in threading.enumerate() if thread.name == "danube-direct"]


def test_several_threads_may_read(bucket: Bucket) -> None:
    batches = make_batches(Random(4), 7, 200, sizes=(3000,))
    part = bucket.store(batches)
    found: dict[int, list[RawBatch]] = {}
    with small_pieces(10_000), open_direct(bucket.url) as storage:

        def read(number: int) -> None:
            found[number] = list(storage.read(part, number))

        threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {number: expected(batches, number, 1 << 60) for number in range(6)}


async def test_it_does_not_block_an_event_loop(bucket: Bucket) -> None:
    part = bucket.store(make_batches(Random(4), 7, 2))
    with open_direct(bucket.url) as storage, pytest.raises(RuntimeError, match="blocking"):
        next(storage.read(part))


def test_parts_travel_to_other_processes(bucket: Bucket) -> None:
    part = bucket.store(make_batches(Random(4), 7, 5))
    packed = pickle.dumps(part)
    assert pickle.loads(packed) == part
    assert len(packed) < 1000
    found = LogParts(TOPIC, 7, 0, 9, 0, 9, 9, [LogPart("s", KEY, 77, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)], [], {})
    assert pickle.loads(pickle.dumps(found)) == found
    (made,) = direct_parts(found)
    assert (made.topic, made.storage, made.object, made.object_bytes) == (TOPIC, "s", KEY, 77)
    inner = made.part
    assert (inner.topic_id, inner.base_offset, inner.end_offset, inner.first_time_us, inner.last_time_us) == (
        7,
        0,
        9,
        1,
        2,
    )
    assert (inner.batches, inner.start, inner.end, inner.crc) == (3, 4, 5, 6)
    assert (inner.index_start, inner.index_count, inner.index_crc, inner.epoch) == (7, 8, 9, 10)


def test_offsets_by_time(bucket: Bucket) -> None:
    batches = make_batches(Random(8), 7, 40, sizes=(3000,))
    made = [bucket.store(batches[:20], "a"), bucket.store(batches[20:], "b")]
    rows = [
        LogPart("default", one.object, one.object_bytes, *[getattr(one.part, name) for name in PART_FIELDS])
        for one in made
    ]
    end = made[1].part.end_offset
    whole = LogParts(TOPIC, 7, 0, end, 0, end, end, rows, [], {})
    later = LogParts(TOPIC, 7, 30, end, 30, end, end, rows, [], {})
    with open_direct(bucket.url) as storage:
        for time_us in (0, 1000, 1700, 1701, batches[20].append_time_us, batches[-1].append_time_us, 10**9):
            wanted = next((batch.base_offset for batch in batches if batch.append_time_us >= time_us), end)
            assert storage.offset_at(whole, time_us) == wanted
            assert storage.offset_at(later, time_us) == max(wanted, 30)


PART_FIELDS = (
    "base_offset",
    "end_offset",
    "first_time_us",
    "last_time_us",
    "batches",
    "start",
    "end",
    "crc",
    "index_start",
    "index_count",
    "index_crc",
    "epoch",
)


def test_a_directory(tmp_path: Path) -> None:
    batches = make_batches(Random(9), 7, 50)
    data, footer = build({7: batches})
    path = tmp_path / "store" / KEY
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    part = part_of(footer, KEY, len(data))
    with open_direct(f"disk://{tmp_path}/store") as storage:
        assert repr(storage) == f"<DirectStorage disk://{tmp_path}/store>"
        assert list(storage.read(part)) == expected(batches, 0, 1 << 60)
        path.unlink()
        with pytest.raises(StorageNotFoundError, match="merged or has expired"):
            list(storage.read(part))
    with (
        pytest.raises(StorageNotFoundError, match="no such directory on this machine"),
        open_direct(f"disk://{tmp_path}/elsewhere"),
    ):
        raise AssertionError("opened")
    assert not (tmp_path / "elsewhere").exists()


def test_errors_about_options_contain_no_secrets() -> None:
    secret = "sesame-open-sesame"

    def opening(url: str, **options: Any) -> str:
        with pytest.raises(ConfigurationError) as caught, open_direct(url, options):
            raise AssertionError("opened")
        return str(caught.value)

    assert "storage URL is not valid" in opening("no-url")
    assert "no storage backend for 'nothing'" in opening("nothing://x")
    said = opening("s3://bucket/prefix", secrets=secret)
    assert "no option 'secrets'; did you mean" in said
    assert secret not in said
    assert secret not in opening(f"s3://me:{secret}@bucket/prefix?retries={secret}", secret=secret)
    with open_direct(f"s3://bucket/prefix?secret={secret}", {"key": "KEYID", "region": "eu-west-1"}) as storage:
        assert secret not in repr(storage) + str(vars(storage)) + storage.url
        assert isinstance(storage, DirectStorage)
