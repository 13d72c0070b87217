"""Manifests: the bucket alone has the contents of the catalogue, despite failures and manifests of other owners."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed import run_virtual
from trio.testing import wait_all_tasks_blocked

from danube.history.manifest import ManifestLog, read_bucket
from danube.history.manifest_format import (
    Bucket,
    Manifest,
    ManifestKind,
    Stream,
    decode_manifest,
    encode_manifest,
    encode_pieces,
    manifest_prefix,
)
from danube.history.parts import PartRecord
from danube.history.segment import SegmentPart, extend_crc
from danube.model.batch import crc32c
from danube.model.errors import (
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    OwnerFencedError,
    StorageError,
    StorageNotFoundError,
    StorageTimeoutError,
)
from danube.model.limits import Limits
from danube.storage import MemoryBackend, MemorySpace, Storage

PREFIX = manifest_prefix("c") + "one/b1/"


class TrickyBackend(MemoryBackend):
    """Calls ``before`` and ``after`` with (operation, key) around the work of puts and gets; they may raise."""

    before: Callable[[str, str], Awaitable[None]] | None = None
    after: Callable[[str, str], Awaitable[None]] | None = None

    async def put(self, key, data, *, if_absent=False):
        if self.before is not None:
            await self.before("put", key)
        await super().put(key, data, if_absent=if_absent)
        if self.after is not None:
            await self.after("put", key)

    async def get(self, key, start=0, end=None):
        if self.before is not None:
            await self.before("get", key)
        return await super().get(key, start, end)


def open_storage(space: MemorySpace, *, attempts: int = 1) -> tuple[Storage, TrickyBackend]:
    backend = TrickyBackend(space, url="memory://box")
    return Storage(backend, random=Random(1), limits=Limits(storage_max_attempts=attempts)), backend


def make_part(topic_id: int, base: int, end: int) -> SegmentPart:
    return SegmentPart(topic_id, base, end, 1, 2, 3, 32, 99, 7, 100, 1, 8, 1)


class Truth:
    """What the catalogue and the broker know, and a manifest log that follows it."""

    def __init__(self, storage: Storage, epoch: int = 1, incarnation: str = "one", broker: str = "b1") -> None:
        self.parts: dict[tuple[int, int], PartRecord] = {}
        self.starts: dict[int, int] = {}
        self.topics: dict[str, bytes] = {}
        self.subscriptions: dict[int, dict[str, tuple[bytes, bytes]]] = {}
        self.time_us = 0
        self.epochs: dict[int, int] = {}
        self.gaps: dict[int, list[bytes]] = {}
        stream = Stream(incarnation, broker)
        self.log = ManifestLog(storage, "c", stream, epoch, self.everything, self.clock, self.epochs_of, self.gaps_of)

    def clock(self) -> int:
        self.time_us += 1
        return self.time_us

    def everything(self):
        return list(self.parts.values()), dict(self.starts), dict(self.topics), dict(self.subscriptions)

    def add(self, key: str, *parts: SegmentPart) -> None:
        for part in parts:
            self.parts[part.topic_id, part.base_offset] = PartRecord("default", key, part)
        self.log.note(added={key: list(parts)})

    def remove(self, *keys: tuple[int, int]) -> None:
        self.log.note(removed=[self.parts.pop(key) for key in keys])

    def replace(self, old: list[tuple[int, int]], key: str, part: SegmentPart) -> None:
        removed = [self.parts.pop(item) for item in old]
        self.parts[part.topic_id, part.base_offset] = PartRecord("default", key, part)
        self.log.note(removed=removed, added={key: [part]})

    def epochs_of(self, topic_ids):
        return {topic_id: self.epochs[topic_id] for topic_id in topic_ids if topic_id in self.epochs}

    def gaps_of(self, topic_ids):
        return {topic_id: self.gaps[topic_id] for topic_id in topic_ids if topic_id in self.gaps}

    def check(self, bucket: Bucket, *, epoch: int = 1) -> None:
        assert (bucket.epoch, bucket.incarnation) == (epoch, "one")
        found = {(t, b): PartRecord("default", *item) for t, parts in bucket.parts.items() for b, item in parts.items()}
        assert found == self.parts
        assert bucket.starts == self.starts
        assert bucket.topics == self.topics
        assert bucket.objects() == {record.object for record in self.parts.values()}


def kinds(space: MemorySpace) -> list[int]:
    return [decode_manifest(data, key).kind for key, (data, _) in sorted(space.objects.items())]


# Bytes


def example() -> Manifest:
    return Manifest(
        ManifestKind.DELTA,
        "one",
        3,
        4,
        5,
        [(1, 10), (1 << 63, 0)],
        {"segments/x": [make_part(1, 0, 10), make_part(2, 5, 6)]},
        {1: 5},
        {"/default/a": b"record", "/default/b": None},
        {1: {"sub": (b"record", b"cursor")}},
        {1: 7},
        {1: [b"gap", b"another"]},
    )


def test_round_trip() -> None:
    assert decode_manifest(encode_manifest(example()), "x") == example()


def test_every_flipped_or_missing_byte_is_noticed_and_named() -> None:
    data = encode_manifest(example())
    for at in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= mask
            with pytest.raises(DataLossError, match="memory://box/m1"):
                decode_manifest(bytes(damaged), "memory://box/m1")
        with pytest.raises(DataLossError, match="memory://box/m1"):
            decode_manifest(data[:at], "memory://box/m1")


def newer(manifest: Manifest) -> bytes:
    body = msgspec.msgpack.encode([9, "unknown"])
    head = b"DNB-MAN\n" + (2).to_bytes(2, "little") + encode_manifest(manifest)[10:16] + len(body).to_bytes(4, "little")
    return head + extend_crc(crc32c(head), body).to_bytes(4, "little") + body


def test_pieces_are_not_in_pieces_again() -> None:
    with pytest.raises(DataLossError, match="x: one of the manifest's pieces is an index of pieces itself"):
        decode_manifest(encode_pieces(2), "x")


async def test_a_newer_version_is_refused_with_a_sentence() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    truth = Truth(storage)
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()
    space.store(f"{PREFIX}{5:016x}/{0:016x}", newer(example()), 0)
    with pytest.raises(FailedPreconditionError, match=r"box/manifests.*version 2 is newer than 1.*upgrade Danube"):
        await read_bucket(storage, "c")
    # Who does not understand what is there writes nothing.
    later = Truth(storage, epoch=6)
    later.add("o2", make_part(1, 10, 20))
    with pytest.raises(FailedPreconditionError, match="upgrade Danube"):
        await later.log.flush()
    assert len(space.objects) == 2


# One writer


async def test_a_snapshot_and_then_deltas() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    assert (await read_bucket(storage, "c")).epoch == 0
    truth = Truth(storage)
    await truth.log.flush()
    assert not space.objects
    truth.subscriptions[1] = {"sub": (b"r", b"c")}
    truth.topics["/default/a"] = b"known before"
    truth.add("o1", make_part(1, 0, 10), make_part(2, 0, 5))
    await truth.log.flush()
    truth.check(await read_bucket(storage, "c"))
    truth.add("o2", make_part(1, 10, 20))
    await truth.log.flush()
    truth.replace([(1, 0), (1, 10)], "o3", make_part(1, 0, 20))
    truth.topics["/default/b"] = b"new"
    truth.starts[2] = 5
    truth.log.note(topics={"/default/b": b"new"}, starts={2: 5})
    truth.remove((2, 0))
    assert truth.log.pending
    await truth.log.flush()
    assert not truth.log.pending
    del truth.topics["/default/a"]
    truth.log.note(topics={"/default/a": None, "/default/never": None})
    await truth.log.flush()
    assert kinds(space) == [ManifestKind.SNAPSHOT, ManifestKind.DELTA, ManifestKind.DELTA, ManifestKind.DELTA]
    bucket = await read_bucket(storage, "c")
    truth.check(bucket)
    assert bucket.subscriptions == {1: {"sub": (b"r", b"c")}}
    assert bucket.created_us == truth.time_us
    assert bucket.last_keys == [f"{PREFIX}{1:016x}/{3:016x}"]


async def test_parts_added_and_removed_between_two_manifests() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    truth = Truth(storage)
    truth.add("o0", make_part(9, 0, 10))
    await truth.log.flush()
    truth.add("o1", make_part(1, 0, 10), make_part(2, 0, 10))
    truth.remove((1, 0))
    truth.add("o2", make_part(3, 0, 10))
    truth.replace([(3, 0)], "o3", make_part(3, 0, 10))
    truth.replace([(3, 0)], "o4", make_part(3, 0, 10))
    truth.replace([(9, 0)], "o5", make_part(9, 0, 10))
    truth.remove((9, 0))
    await truth.log.flush()
    truth.check(await read_bucket(storage, "c"))
    delta = decode_manifest(space.objects[max(space.objects)][0], "x")
    assert set(delta.added) == {"o1", "o4"}


async def test_snapshots_follow_from_time_to_time_and_the_old_ones_go() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    space.store("manifests/c-another/x", b"", 0)
    space.store("segments/c/x", b"", 0)
    truth = Truth(storage)
    most = 0
    for number in range(300):
        truth.add(f"o{number}", make_part(1, number, number + 1))
        await truth.log.flush()
        most = max(most, len(space.objects))
    truth.check(await read_bucket(storage, "c"))
    assert 66 < most < 140
    assert "segments/c/x" in space.objects
    assert "manifests/c-another/x" in space.objects


async def test_changes_during_a_flush_are_in_the_next_one() -> None:
    space = MemorySpace()
    storage, backend = open_storage(space)
    truth = Truth(storage)
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()

    async def change(operation: str, key: str) -> None:
        backend.before = None
        truth.add("o3", make_part(1, 20, 30))
        truth.remove((1, 0))

    backend.before = change
    truth.add("o2", make_part(1, 10, 20))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(truth.log.flush)
        nursery.start_soon(truth.log.flush)
    await truth.log.flush()
    truth.check(await read_bucket(storage, "c"))
    assert len(space.objects) == 3


async def test_a_manifest_that_is_larger_than_an_object_may_be(autojump_clock: trio.abc.Clock) -> None:
    space = MemorySpace()
    backend = MemoryBackend(space, url="memory://box", max_object_bytes=4000)
    storage = Storage(backend, random=Random(1), limits=Limits(storage_max_attempts=1))
    truth = Truth(storage)
    for number in range(200):
        truth.add(f"o{number}", make_part(1, number, number + 1))
    await truth.log.flush()
    assert len(space.objects) == 3
    truth.check(await read_bucket(storage, "c"))
    truth.remove(*[(1, number) for number in range(1, 100)])
    for number in range(200, 400):
        truth.add(f"o{number}", make_part(1, number, number + 1))
    await truth.log.flush()
    truth.check(await read_bucket(storage, "c"))
    snapshots = {truth.log._previous_snapshot}
    for number in range(400, 600):
        truth.add("o", make_part(1, number, number + 1))
        await truth.log.flush()
        snapshots.add(truth.log._previous_snapshot)
    assert min(space.objects) == sorted(snapshots)[-2]  # the pieces of what was superseded are gone, too
    truth.check(await read_bucket(storage, "c"))
    space.remove(f"{max(snapshots)}-{1:08x}")
    with pytest.raises(DataLossError):
        await read_bucket(storage, "c")


# Trouble


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(("fine", "refused", "lost", "cancelled")), st.integers(1, 3)), max_size=12),
    st.integers(0, 2**32),
)
def test_any_put_may_fail(steps: list[tuple[str, int]], seed: int) -> None:
    run_virtual(any_put_may_fail, steps, seed)


async def any_put_may_fail(steps: list[tuple[str, int]], seed: int) -> None:
    random = Random(seed)
    space = MemorySpace()
    storage, backend = open_storage(space)
    truth = Truth(storage)
    base = 0

    async def refuse(operation: str, key: str) -> None:
        if operation == "put":
            raise StorageTimeoutError(f"{key}: no answer")

    async def hang(operation: str, key: str) -> None:
        if operation == "put":
            await trio.sleep_forever()

    failed = True
    for how, changes in steps:
        for _ in range(changes):
            if truth.parts and random.random() < 0.4:
                truth.remove(random.choice(list(truth.parts)))
            else:
                truth.add(f"o{base}", make_part(1, base, base + 1))
                base += 1
        backend.before = refuse if how == "refused" else None
        backend.after = {"lost": refuse, "cancelled": hang}.get(how)
        before = set(space.objects)
        try:
            with trio.move_on_after(1):
                await truth.log.flush()
        except StorageTimeoutError:
            pass  # expected: it failed, or the outcome is unknown
        new = set(space.objects) - before
        if how == "fine":
            assert not truth.log.pending
            truth.check(await read_bucket(storage, "c"))
            (key,) = new
            assert (decode_manifest(space.objects[key][0], key).kind == ManifestKind.SNAPSHOT) == failed
        else:
            assert truth.log.pending
        failed = how != "fine"
        backend.before = backend.after = None
        if space.objects:
            await read_bucket(storage, "c")  # what is there is whole, at any time
    await truth.log.flush()
    if truth.parts:
        truth.check(await read_bucket(storage, "c"))


async def test_a_put_that_arrives_late_is_superseded() -> None:
    space = MemorySpace()
    storage, backend = open_storage(space)
    truth = Truth(storage)
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()
    late: list[str] = []

    async def refuse(operation: str, key: str) -> None:
        late.append(key)
        raise StorageTimeoutError(f"{key}: no answer")

    backend.before = refuse
    truth.remove((1, 0))
    with pytest.raises(StorageTimeoutError):
        await truth.log.flush()
    backend.before = None
    truth.add("o2", make_part(1, 0, 10))
    await truth.log.flush()
    delta = msgspec.structs.replace(example(), epoch=1, sequence=1, removed=[(1, 0)], added={}, starts={}, topics={})
    space.store(late[0], encode_manifest(delta), 0)
    truth.check(await read_bucket(storage, "c"))
    truth.add("o3", make_part(1, 10, 20))
    await truth.log.flush()
    truth.check(await read_bucket(storage, "c"))


async def test_missing_manifests_are_named() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    truth = Truth(storage)
    for number in range(4):
        truth.add(f"o{number}", make_part(1, number, number + 1))
        await truth.log.flush()
    keys = sorted(space.objects)
    for missing, named in ((keys[0], keys[1]), (keys[1], keys[2]), (keys[2], keys[3])):
        kept = space.objects[missing]
        space.remove(missing)
        with pytest.raises(DataLossError, match=f"before {named} is missing"):
            await read_bucket(storage, "c")
        space.store(missing, *kept)
    # An older epoch does not stand in for a newer one whose beginning is gone.
    later = Truth(storage, epoch=2)
    for number in range(2):
        later.add("x", make_part(2, number, number + 1))
        await later.log.flush()
    space.remove(f"{PREFIX}{2:016x}/{0:016x}")
    with pytest.raises(DataLossError, match=f"before {PREFIX}{2:016x}/{1:016x} is missing"):
        await read_bucket(storage, "c")


async def test_damage_is_named_and_does_not_stop_the_owner() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    truth = Truth(storage)
    for number in range(3):
        truth.add(f"o{number}", make_part(1, number, number + 1))
        await truth.log.flush()
    for key in sorted(space.objects):
        kept, time_us = space.objects[key]
        space.store(key, kept[:-1] + b"\xff", time_us)
        with pytest.raises(DataLossError, match=f"memory://box/{key}"):
            await read_bucket(storage, "c")
        space.store(key, kept, time_us)
    space.store(max(space.objects), b"", 0)
    # The bucket of another owner stays with that owner.
    other = Truth(storage, epoch=9, incarnation="two")
    other.add("x", make_part(1, 0, 1))
    with pytest.raises(FailedPreconditionError, match="topics restore"):
        await other.log.flush()
    later = Truth(storage, epoch=2)
    later.parts = truth.parts
    later.add("o9", make_part(1, 9, 10))
    await later.log.flush()
    later.check(await read_bucket(storage, "c"), epoch=2)
    # Whose manifests they are, their names say.
    for key in list(space.objects):
        space.store(key, b"", 0)
    third = Truth(storage, epoch=3)
    third.parts = later.parts
    third.add("x", make_part(1, 10, 11))
    await third.log.flush()
    third.check(await read_bucket(storage, "c"), epoch=3)


async def test_foreign_objects_do_not_disturb() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    truth = Truth(storage)
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()
    for name in ("README.txt", "a/b/c", "zz/1", f"{7:016x}", f"{7:016x}/{0:016x}.tmp"):
        space.store(PREFIX + name, b"hello", 0)
    truth.check(await read_bucket(storage, "c"))


# Owners


async def test_a_former_owner_does_not_count() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    former = Truth(storage, epoch=1)
    former.add("o1", make_part(1, 0, 10))
    await former.log.flush()
    owner = Truth(storage, epoch=2)
    owner.parts = dict(former.parts)
    owner.add("o2", make_part(1, 10, 20))
    await owner.log.flush()
    for number in range(200):  # it does not know yet
        former.add(f"zombie{number}", make_part(1, 10 + number, 11 + number))
        await former.log.flush()
        owner.check(await read_bucket(storage, "c"), epoch=2)
    owner.add("o3", make_part(1, 20, 30))
    await owner.log.flush()
    owner.check(await read_bucket(storage, "c"), epoch=2)


@pytest.mark.parametrize("epoch", [1, 2])
async def test_who_comes_back_under_a_used_epoch_is_fenced(epoch: int) -> None:
    """Metadata from an old backup gives out epochs again: what is in the bucket was not written by this owner."""
    space = MemorySpace()
    storage, _ = open_storage(space)
    truth = Truth(storage, epoch=2)
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()
    again = Truth(storage, epoch=epoch)
    again.add("o2", make_part(1, 0, 10))
    for _ in range(2):
        with pytest.raises(OwnerFencedError, match="epoch 2"):
            await again.log.flush()
    truth.check(await read_bucket(storage, "c"), epoch=2)


async def test_removed_objects_may_be_deleted_after_a_manifest_and_without_a_new_owner() -> None:
    storage, backend = open_storage(MemorySpace())
    truth, calls = Truth(storage), []

    async def check_owner() -> None:
        calls.append(truth.log.pending)

    truth.log.check_owner = check_owner
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()
    truth.remove((1, 0))
    assert truth.log.pending
    await truth.log.confirm()
    assert calls == [False]  # who comes later, and looks, reads of nothing that was removed
    assert (await read_bucket(storage, "c")).objects() == set()

    async def is_away(operation: str, key: str) -> None:
        raise StorageTimeoutError("no answer")

    truth.add("o2", make_part(1, 10, 20))
    truth.remove((1, 10))
    backend.before = is_away
    with pytest.raises(StorageError):
        await truth.log.confirm()
    assert (truth.log.pending, calls) == (True, [False])
    backend.before = None
    later = Truth(storage, epoch=2)
    later.add("o3", make_part(1, 20, 30))
    await later.log.flush()
    with pytest.raises(OwnerFencedError, match="a later broker owns this history"):
        await truth.log.confirm()


async def test_an_owner_is_not_fenced_by_its_own_first_manifest() -> None:
    """Two first uploads look at once whose place it is; one is slow, and finds what the other has written."""
    space = MemorySpace()
    storage, backend = open_storage(space)
    truth = Truth(storage, epoch=2)
    list_objects = backend.list
    slow = trio.Event()

    async def list_slowly(*args: Any, **options: Any) -> Any:
        backend.list = list_objects  # type: ignore[method-assign]
        await slow.wait()
        return await list_objects(*args, **options)

    backend.list = list_slowly  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(truth.log.check)
        await wait_all_tasks_blocked()
        truth.add("o1", make_part(1, 0, 10))
        await truth.log.flush()
        slow.set()
    truth.check(await read_bucket(storage, "c"), epoch=2)


@pytest.mark.parametrize("written", [True, False])
async def test_a_manifest_of_a_fenced_owner_does_not_count(written: bool) -> None:
    """An owner that continues under a higher epoch leaves none below it, where a fenced owner may still write."""
    storage, _ = open_storage(MemorySpace())
    before = Truth(storage, epoch=1)
    before.add("o1", make_part(1, 0, 10))
    await before.log.flush()
    owner = Truth(storage, epoch=2)
    owner.parts = dict(before.parts)
    if written:
        owner.add("o2", make_part(1, 10, 20))
        await owner.log.flush()
    bucket = await read_bucket(storage, "c")
    await owner.log.take_over(bucket, 4)
    fenced = Truth(storage, epoch=3, incarnation="two")
    await fenced.log.take_over(bucket, 3)
    owner.check(await read_bucket(storage, "c"), epoch=4)
    owner.add("o3", make_part(1, 20, 30))
    await owner.log.confirm()
    await owner.log.take_over(await read_bucket(storage, "c"), 4)
    owner.check(await read_bucket(storage, "c"), epoch=4)


async def test_an_owner_that_claims_a_higher_epoch_looks_again_for_a_later_one() -> None:
    storage, _ = open_storage(MemorySpace())
    owner = Truth(storage, epoch=1)
    owner.add("o1", make_part(1, 0, 10))
    await owner.log.flush()

    async def claimed() -> None:
        raise AssertionError("nothing is written before the claim")

    owner.log.hold(claimed)
    later = Truth(storage, epoch=5)
    later.add("o2", make_part(2, 0, 10))
    await later.log.flush()
    owner.log.release(4)
    owner.add("o3", make_part(1, 10, 20))
    with pytest.raises(OwnerFencedError, match="a broker of epoch 5 owns this history; this one has epoch 4"):
        await owner.log.flush()
    later.check(await read_bucket(storage, "c"), epoch=5)
    owner.log.release(6)
    await owner.log.flush()
    owner.check(await read_bucket(storage, "c"), epoch=6)


async def test_a_place_with_a_later_owner_is_not_taken_over() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    later = Truth(storage, epoch=3)
    later.add("o1", make_part(1, 0, 10))
    await later.log.flush()
    bucket, before = await read_bucket(storage, "c"), dict(space.objects)
    for epoch in (2, 3):
        with pytest.raises(OwnerFencedError, match="a broker of epoch 3 owns this history"):
            await Truth(storage, epoch=1).log.take_over(bucket, epoch)
    assert space.objects == before


async def test_another_life_of_the_cluster_is_left_alone() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    truth = Truth(storage)
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()
    other = Truth(storage, epoch=7, incarnation="two")
    other.add("o2", make_part(1, 0, 10))
    with pytest.raises(FailedPreconditionError, match="topics restore --from memory://box"):
        await other.log.flush()
    assert other.log.pending
    truth.check(await read_bucket(storage, "c"))


# Readers


async def test_reading_while_snapshots_replace_the_manifests_being_read(autojump_clock: object) -> None:
    space = MemorySpace()
    storage, backend = open_storage(space)
    truth = Truth(storage)
    random = Random(5)

    async def write() -> None:
        for number in range(400):
            truth.add(f"o{number}", make_part(1, number, number + 1))
            await truth.log.flush()
            await trio.sleep(random.choice((0, 0, 0.01)))

    ends: list[int] = []

    async def read() -> None:
        slow, mine = open_storage(space)
        mine.latency_s = 0.003
        while not ends or ends[-1] < 400:
            low = len(truth.parts)
            bucket = await read_bucket(slow, "c")
            parts = bucket.parts.get(1, {})
            assert list(parts) == list(range(len(parts)))
            assert low - 1 <= len(parts) <= len(truth.parts)
            ends.append(len(parts))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        nursery.start_soon(read)
    assert len(ends) > 5
    assert backend.latency_s == 0


async def test_a_listing_that_lies_is_told(autojump_clock: object) -> None:
    space = MemorySpace()
    storage, backend = open_storage(space)
    truth = Truth(storage)
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()

    async def gone(operation: str, key: str) -> None:
        raise StorageNotFoundError(f"{key}: no such object")

    backend.before = gone
    with pytest.raises(DataLossError, match="listed"):
        await read_bucket(storage, "c")


async def test_a_backend_that_is_down_is_not_damage() -> None:
    space = MemorySpace()
    storage, backend = open_storage(space)
    truth = Truth(storage)
    truth.add("o1", make_part(1, 0, 10))
    await truth.log.flush()

    async def down(operation: str, key: str) -> None:
        raise StorageTimeoutError(f"{key}: no answer")

    backend.before = down
    later = Truth(storage, epoch=2)
    later.add("o2", make_part(1, 10, 20))
    attempts: list[Callable[[], Awaitable[object]]] = [lambda: read_bucket(storage, "c"), later.log.flush]
    for attempt in attempts:
        with pytest.raises(StorageError) as caught:
            await attempt()
        assert isinstance(caught.value, DanubeError)
        assert caught.value.retryable


# Several brokers


async def test_brokers_describe_their_own_topics_and_a_reader_sees_all_of_them() -> None:
    storage, _ = open_storage(MemorySpace())
    first, second = Truth(storage, broker="b1"), Truth(storage, epoch=7, broker="b2")
    second.time_us = 1000
    first.epochs, second.epochs = {1: 10}, {2: 20}
    for number in range(70):  # several snapshots of each
        first.add(f"a{number}", make_part(1, number, number + 1))
        second.add(f"b{number}", make_part(2, number, number + 1))
        await first.log.flush()
        await second.log.flush()
    first.log.note(topics={"/default/a": b"of a", "": b"old"}, subscriptions={1: {"s": (b"r", b"c")}})
    second.log.note(topics={"/default/b": b"of b", "": b"new"}, starts={2: 5})
    await first.log.flush()
    await second.log.flush()
    bucket = await read_bucket(storage, "c")
    assert {number: len(parts) for number, parts in bucket.parts.items()} == {1: 70, 2: 70}
    assert (bucket.topics, bucket.namespaces) == ({"/default/a": b"of a", "/default/b": b"of b"}, {"": b"new"})
    assert (bucket.starts, bucket.subscriptions) == ({2: 5}, {1: {"s": (b"r", b"c")}})
    assert (bucket.epoch, bucket.epochs) == (7, {"b1": 1, "b2": 7})
    assert (await read_bucket(storage, "c")).last_keys == bucket.last_keys
    await first.log.confirm()
    await second.log.confirm()
    # A later life of one of them continues its stream, and the other one does not notice.
    later = Truth(storage, epoch=2, broker="b1")
    later.parts, later.epochs = dict(first.parts), {1: 11}
    later.add("a70", make_part(1, 70, 71))
    await later.log.flush()
    with pytest.raises(OwnerFencedError):
        await first.log.confirm()
    await second.log.confirm()
    bucket = await read_bucket(storage, "c")
    assert {number: len(parts) for number, parts in bucket.parts.items()} == {1: 71, 2: 70}


async def test_of_a_topic_that_has_moved_its_last_owner_knows_all() -> None:
    storage, _ = open_storage(MemorySpace())
    first, second = Truth(storage, broker="b1"), Truth(storage, broker="b2")
    first.epochs = {1: 10, 2: 10}
    first.add("a", make_part(1, 0, 10), make_part(2, 0, 10))
    first.add("b", make_part(1, 10, 20))
    first.subscriptions = {1: {"s": (b"r", b"old")}}
    first.gaps = {1: [b"of before"], 2: [b"kept"]}
    await first.log.flush()
    # Topic 1 goes to the second broker, which merges its parts; the first one dies before it can say so.
    second.epochs = {1: 11}
    second.gaps = {1: [b"gap"]}
    second.add("c", make_part(1, 0, 20))
    second.subscriptions = {1: {"s": (b"r", b"new")}}
    await second.log.flush()
    bucket = await read_bucket(storage, "c")
    assert {base: key for base, (key, _) in bucket.parts[1].items()} == {0: "c"}
    assert {base: key for base, (key, _) in bucket.parts[2].items()} == {0: "a"}
    assert bucket.subscriptions == {1: {"s": (b"r", b"new")}}
    assert bucket.gaps == {1: [b"gap"], 2: [b"kept"]}
    assert bucket.owned == {1: 11, 2: 10}


async def test_other_metadata_take_over_from_all_brokers_at_once() -> None:
    space = MemorySpace()
    storage, _ = open_storage(space)
    formers = [Truth(storage, epoch=number, broker=f"b{number}") for number in (1, 5)]
    for number, former in enumerate(formers):
        former.add(f"o{number}", make_part(number, 0, 10))
        await former.log.flush()
    bucket = await read_bucket(storage, "c")
    heir = Truth(storage, epoch=bucket.epoch + 1, incarnation="two")
    for key, part in [item for parts in bucket.parts.values() for item in parts.values()]:
        heir.add(key, part)
    await heir.log.take_over(bucket, bucket.epoch + 1)
    after = await read_bucket(storage, "c")
    assert (after.incarnation, after.parts) == ("two", bucket.parts)
    for former in formers:
        former.add("late", make_part(9, 0, 10))
        await former.log.flush()  # they do not know
        with pytest.raises(OwnerFencedError):
            await former.log.confirm()
    assert (await read_bucket(storage, "c")).parts == bucket.parts
    # Another broker of the new metadata begins to write there: it needs no higher epoch than theirs.
    other = Truth(storage, incarnation="two", broker="b5")
    other.add("x", make_part(7, 0, 10))
    await other.log.flush()
    assert set((await read_bucket(storage, "c")).parts) == {0, 1, 7}
    for number in range(140):
        heir.add(f"n{number}", make_part(8, number, number + 1))
        await heir.log.flush()
    assert not [key for key in space.objects if key.startswith(manifest_prefix("c") + "one/")]
    assert set((await read_bucket(storage, "c")).parts) == {0, 1, 7, 8}


async def test_a_delta_lists_all_gaps_of_the_topics_that_it_changes() -> None:
    storage, _ = open_storage(MemorySpace())
    truth = Truth(storage)
    truth.epochs, truth.gaps = {1: 10, 2: 10}, {2: [b"first"]}
    truth.add("a", make_part(1, 0, 10), make_part(2, 0, 10))
    await truth.log.flush()
    truth.gaps = {1: [b"new"], 2: [b"first", b"second"]}
    truth.add("b", make_part(2, 30, 40))
    await truth.log.flush()
    assert (await read_bucket(storage, "c")).gaps == {2: [b"first", b"second"]}
    truth.add("c", make_part(1, 20, 40))
    await truth.log.flush()
    assert (await read_bucket(storage, "c")).gaps == {1: [b"new"], 2: [b"first", b"second"]}
