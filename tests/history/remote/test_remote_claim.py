"""Claiming a bucket with prepared contents: which commits are read, fenced, deleted and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import trio
from history.sealed import make_batch
from remote_lives import claim

from danube.history.parts import ObjectRef
from danube.history.remote import RemoteJournal, RemoteRecovered
from danube.history.remote.claim import Claim, highest_epoch, put_once
from danube.history.remote.format import (
    CommitHead,
    CommitKind,
    Position,
    RemoteState,
    SnapshotBody,
    SnapshotObject,
    TopicStored,
    commit_key,
    decode_commit,
    encode_change,
    encode_marker,
    head_entry,
    parse_key,
    parse_pieces_key,
    pieces_entry,
    pieces_key,
    snapshot_body,
    snapshot_entry,
    wal_prefix,
)
from danube.history.segment import ControlEntry, SegmentBuilder, SegmentKind, SegmentPart
from danube.log import Entry, EntryType
from danube.metadata.memory import MemoryStore
from danube.model.errors import DanubeError, DataLossError, OwnerFencedError
from danube.model.limits import Limits
from danube.storage import MemoryBackend, MemorySpace, Storage

CLUSTER = "main"


class Flaky(MemoryBackend):
    """Answers the first get of each of these keys with a byte flipped."""

    def __init__(self, space: MemorySpace) -> None:
        super().__init__(space, url="memory://box", durable=True, wall_clock_us=lambda: 1)
        self.damage_once: set[str] = set()
        self.gets: list[str] = []

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets.append(key)
        data = await super().get(key, start, end)
        if key in self.damage_once:
            self.damage_once.remove(key)
            data = data[:40] + bytes([data[40] ^ 1]) + data[41:]
        return data


class Bucket:
    """Commits by hand."""

    def __init__(self) -> None:
        self.space = MemorySpace()
        self.backend = Flaky(self.space)
        self.storage = Storage(self.backend, random=Random(1), limits=Limits(storage_max_attempts=1))
        self.parts: dict[Position, list[SegmentPart]] = {}

    def put(
        self,
        epoch: int,
        sequence: int,
        kind: CommitKind,
        *entries: ControlEntry,
        settled: int | None = None,
        snapshot: tuple[int, int] | None = None,
        writer: int | None = None,
        offsets: tuple[int, ...] = (),
    ) -> None:
        head = CommitHead(
            kind,
            CLUSTER,
            "former",
            writer or epoch,
            epoch,
            sequence,
            snapshot,
            sequence if settled is None else settled,
        )
        builder = SegmentBuilder(SegmentKind.COMMIT, epoch, 5)
        if offsets:
            builder.begin(1, "/default/t")
            for offset in offsets:
                builder.add(make_batch(1, offset, [b"payload"], producer_id=3))
            builder.end({})
        builder.control([head_entry(head), *entries])
        data, footer = builder.finish()
        self.parts[Position(epoch, sequence)] = footer.parts
        self.space.store(commit_key(CLUSTER, Position(epoch, sequence)), bytes(data), 1)

    def begin(self, epoch: int, *, first: bool = True) -> None:
        """A claim, and an entry that creates topic 1."""
        self.put(epoch, 0, CommitKind.CLAIM)
        if first:
            change = ControlEntry(EntryType.TOPIC, 1, encode_change(TopicStored("/default/t", [1], b"record")))
            self.put(epoch, 1, CommitKind.ENTRIES, change)

    def snapshot(self, epoch: int, sequence: int, settled: int, mentioned: Position, next_offset: int) -> None:
        objects = [SnapshotObject(*mentioned, 100, 5, self.parts[mentioned])]
        state = RemoteState({"/default/t": ([1], b"record")}, {}, {}, {})
        body = snapshot_body(SnapshotBody(state, {1: next_offset}, objects))
        self.put(epoch, sequence, CommitKind.SNAPSHOT, snapshot_entry(body), settled=settled)

    async def claim(self, epoch: int) -> Claim:
        claim = Claim(self.storage, CLUSTER, epoch, "me", lambda: 9)
        with trio.fail_after(10):
            await claim.run()
        return claim

    def positions(self) -> list[tuple[int, int]]:
        return [
            tuple(parse_key(CLUSTER, key)) for key in sorted(self.space.objects) if key.startswith(wal_prefix(CLUSTER))
        ]

    def head(self, epoch: int, sequence: int) -> CommitHead:
        position = Position(epoch, sequence)
        data, _ = self.space.objects[commit_key(CLUSTER, position)]
        return decode_commit(data, CLUSTER, position, "here").head


def fence_of(bucket: Bucket, epoch: int, sequence: int) -> tuple[int, int]:
    head = bucket.head(epoch, sequence)
    return head.kind, head.writer_epoch


async def test_an_empty_bucket_is_claimed() -> None:
    b = Bucket()
    assert await highest_epoch(b.storage, CLUSTER) == 0
    claim = await b.claim(4)
    assert (claim.snapshot, claim.stored, claim.in_pieces) == (None, [(4, 0)], False)
    assert b.positions() == [(4, 0)]
    assert b.head(4, 0) == CommitHead(CommitKind.CLAIM, CLUSTER, "me", 4, 4, 0, None, 0)
    assert (claim.replay.recovered.commits, claim.replay.recovered.topics) == (0, {})
    assert await highest_epoch(b.storage, CLUSTER) == 4
    with pytest.raises(OwnerFencedError, match="epoch 4"):
        await b.claim(4)
    with pytest.raises(OwnerFencedError, match="epoch 4"):
        await b.claim(3)
    assert b.positions() == [(4, 0)]


async def test_former_epochs_are_read_to_their_ends_and_fenced() -> None:
    b = Bucket()
    b.begin(1)
    for sequence in range(2, 8):
        b.put(1, sequence, CommitKind.ENTRIES, offsets=(sequence - 2,))
    b.begin(3, first=False)
    b.put(3, 1, CommitKind.ENTRIES, offsets=(6, 7))
    b.put(3, 2, CommitKind.FENCE)
    claim = await b.claim(5)
    assert claim.replay.recovered.topics[1].next_offset == 8
    assert claim.replay.recovered.commits == 10
    assert claim.replay.recovered.batches == 8
    assert fence_of(b, 1, 8) == (CommitKind.FENCE, 5)
    assert fence_of(b, 3, 2) == (CommitKind.FENCE, 3), "that epoch has ended by itself"
    assert (5, 0) in b.positions()
    former = [(1, number) for number in range(8)]
    assert claim.stored == [*former, (3, 0), (3, 1), (3, 2), (5, 0)], "fences of others stay"
    assert sorted(claim.replay.objects) == [*((1, number) for number in range(2, 8)), (3, 1)]
    assert [b.backend.gets.count(commit_key(CLUSTER, Position(1, number))) for number in (0, 3, 7)] == [1, 1, 1]
    item = claim.replay.objects[Position(1, 3)]
    size = len(b.space.objects[commit_key(CLUSTER, Position(1, 3))][0])
    assert (item.position, item.size_bytes, item.created_us) == ((1, 3), size, 5)
    assert item.parts == b.parts[Position(1, 3)]
    again = await b.claim(6)
    assert again.replay.recovered.topics[1].next_offset == 8
    assert fence_of(b, 1, 8) == (CommitKind.FENCE, 5), "it is there"
    assert again.stored == [*former, (3, 0), (3, 1), (3, 2), (5, 0), (6, 0)]
    assert fence_of(b, 5, 1) == (CommitKind.FENCE, 6)


async def test_commits_behind_a_gap_were_never_acknowledged_and_are_removed() -> None:
    b = Bucket()
    b.begin(1)
    b.put(1, 2, CommitKind.ENTRIES, offsets=(0,))
    b.put(1, 4, CommitKind.ENTRIES, offsets=(2,), settled=2)
    b.put(1, 5, CommitKind.ENTRIES, offsets=(3,), settled=3)
    claim = await b.claim(2)
    assert b.positions() == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert claim.replay.recovered.topics[1].next_offset == 1
    assert claim.stored == [(1, 0), (1, 1), (1, 2), (2, 0)]


async def test_a_commit_that_is_missing_and_had_settled_is_lost() -> None:
    b = Bucket()
    b.begin(1)
    b.put(1, 3, CommitKind.ENTRIES, offsets=(1,), settled=2)
    b.put(1, 4, CommitKind.ENTRIES, offsets=(2,), settled=3)
    with pytest.raises(DataLossError, match=rf"{commit_key(CLUSTER, Position(1, 2))}: this commit is missing"):
        await b.claim(2)
    assert (1, 3) in b.positions()
    assert (1, 4) in b.positions()


async def test_the_last_commit_behind_a_gap_proves_that_a_settled_one_is_missing() -> None:
    b = Bucket()
    b.begin(1)
    for sequence, settled in ((3, 2), (4, 2), (5, 2), (6, 3)):
        b.put(1, sequence, CommitKind.ENTRIES, offsets=(sequence - 2,), settled=settled)
    with pytest.raises(DataLossError, match="this commit is missing"):
        await b.claim(2)
    assert (1, 6) in b.positions()


async def test_the_lower_of_two_concurrent_claims_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Bucket()
    b.begin(1)
    put = b.storage.put

    async def at_the_same_time(key: str, data: bytes, *, if_absent: bool = False) -> None:
        await put(key, data, if_absent=if_absent)
        if parse_key(CLUSTER, key) == (4, 0):
            b.put(9, 0, CommitKind.CLAIM)

    monkeypatch.setattr(b.storage, "put", at_the_same_time)
    with pytest.raises(OwnerFencedError, match="epoch 9"):
        await b.claim(4)
    assert b.positions() == [(1, 0), (1, 1), (4, 0), (9, 0)], "it has fenced nothing"


class Broker:
    """Knows what it was told at first, and nothing else."""

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        pass

    def on_stall(self, entries: Sequence[Entry], error: DanubeError) -> None:
        pass

    def remote_state(self) -> RemoteState:
        return RemoteState({"/default/t": ([1], b"record")}, {}, {}, {})

    def topic_name(self, topic_id: int) -> str:
        return "/default/t"

    def producer_name(self, topic_id: int, producer_id: int) -> str:
        return ""


async def test_a_journal_continues_from_the_state_that_a_claim_has_found() -> None:
    b = Bucket()
    b.begin(1)
    b.put(1, 2, CommitKind.ENTRIES, offsets=(0,))
    b.snapshot(1, 3, 3, Position(1, 2), 1)
    b.put(1, 4, CommitKind.ENTRIES, offsets=(1,), snapshot=(1, 3))
    async with MemoryStore() as store:
        catalogue = await claim(store, "one", 5)
        journal = RemoteJournal(
            b.storage,
            catalogue,
            Broker(),
            Limits(),
            place=CLUSTER,
            owner="me",
            wall_clock_us=lambda: 9,
            manifests_current=lambda: True,
        )
        stale = SegmentPart(1, 7, 8, 1, 1, 1, 0, 10, 0, 0, 1, 0, 1)
        catalogue.add_commit(ObjectRef("default", "wal/main/of-an-attempt"), 10, 1, [stale])
        entered: list[tuple[int, int]] = []

        async def enter(recovered: RemoteRecovered) -> None:
            await trio.lowlevel.checkpoint()
            entered.append((recovered.topics[1].next_offset, len(catalogue.commits)))
            assert fence_of(b, 1, 5) == (CommitKind.FENCE, 5), "behind the fences"

        recovered = await journal.recover(enter)
        assert entered == [(2, 0)]
        assert recovered.topics[1].next_offset == 2
        assert [record.part.base_offset for record in catalogue.topic(1).parts] == [0, 1]
        keys = {commit_key(CLUSTER, Position(1, sequence)) for sequence in (2, 4)}
        assert {ref.key for ref in catalogue.commits} == keys
        commit = journal._queue.take_marker(CommitKind.SNAPSHOT)
        journal._build(commit)
        head = decode_commit(bytes(commit.data), CLUSTER, Position(5, 1), "here").head
        assert (head.snapshot, head.settled, head.kind) == ((1, 3), 1, CommitKind.SNAPSHOT)


async def test_a_fence_of_a_later_owner_ends_it() -> None:
    b = Bucket()
    b.begin(1)
    b.put(1, 2, CommitKind.FENCE, writer=7)
    with pytest.raises(OwnerFencedError, match="epoch 7"):
        await b.claim(2)


async def test_recovery_begins_with_the_newest_snapshot_that_was_named() -> None:
    b = Bucket()
    b.begin(1)
    b.put(1, 2, CommitKind.FENCE)
    b.begin(2)
    for sequence in (2, 3):
        b.put(2, sequence, CommitKind.ENTRIES, offsets=(sequence - 2,))
    b.snapshot(2, 4, 4, Position(2, 3), 2)
    b.put(2, 5, CommitKind.ENTRIES, offsets=(2,), snapshot=(2, 4))
    b.snapshot(2, 6, 6, Position(2, 5), 3)
    b.put(2, 7, CommitKind.ENTRIES, offsets=(3,), snapshot=(2, 4))
    claim = await b.claim(3)
    assert claim.snapshot == (2, 4)
    assert sorted(claim.replay.objects) == [(2, 3), (2, 5), (2, 7)]
    assert claim.replay.recovered.topics[1].next_offset == 4
    assert claim.replay.recovered.commits == 4, "those from what the snapshot covers on"
    assert claim.stored == [(1, 0), (1, 1), (1, 2), *((2, number) for number in range(8)), (3, 0)]
    left = [b.backend.gets.count(commit_key(CLUSTER, Position(1, number))) for number in range(3)]
    assert left == [0, 0, 1], "of an epoch that the snapshot covers only the end is looked at"
    b.put(2, 8, CommitKind.FENCE, snapshot=(2, 6), writer=9)
    with pytest.raises(OwnerFencedError):
        await b.claim(4)


async def test_a_snapshot_that_is_named_behind_the_listing_is_read_again_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Bucket()
    b.begin(1)
    b.put(1, 2, CommitKind.ENTRIES, offsets=(0,))
    put = b.storage.put

    async def faster(key: str, data: bytes, *, if_absent: bool = False) -> None:
        if parse_key(CLUSTER, key) == (1, 3):
            # The former owner is faster than the fence: a snapshot, and a commit that names it.
            b.snapshot(1, 3, 3, Position(1, 2), 1)
            b.put(1, 4, CommitKind.ENTRIES, offsets=(1,), snapshot=(1, 3))
            monkeypatch.undo()
        await put(key, data, if_absent=if_absent)

    monkeypatch.setattr(b.storage, "put", faster)
    claim = await b.claim(2)
    assert claim.snapshot == (1, 3)
    assert claim.replay.recovered.topics[1].next_offset == 2
    assert sorted(claim.replay.objects) == [(1, 2), (1, 4)]
    assert fence_of(b, 1, 5) == (CommitKind.FENCE, 2)


@pytest.mark.parametrize("sequence", [1, 2, 3])
async def test_damage_on_the_way_is_read_again_and_damage_is_named(sequence: int) -> None:
    b = Bucket()
    b.begin(1)
    for number in (2, 3):
        b.put(1, number, CommitKind.ENTRIES, offsets=(number - 2,))
    key = commit_key(CLUSTER, Position(1, sequence))
    b.backend.damage_once.add(key)
    claim = await b.claim(2)
    assert claim.replay.recovered.topics[1].next_offset == 2
    data, _ = b.space.objects[key]
    b.space.store(key, data[:40] + bytes([data[40] ^ 1]) + data[41:], 1)
    with pytest.raises(DataLossError, match=key):
        await b.claim(3)


async def test_an_object_under_the_key_of_a_commit_that_is_none_is_refused() -> None:
    b = Bucket()
    b.begin(1)
    head = CommitHead(CommitKind.ENTRIES, CLUSTER, "me", 1, 1, 2, None, 2)
    builder = SegmentBuilder(SegmentKind.SEGMENT, 1, 5)
    builder.control([head_entry(head)])
    b.space.store(commit_key(CLUSTER, Position(1, 2)), bytes(builder.finish()[0]), 1)
    with pytest.raises(DataLossError, match="this is not a commit"):
        await b.claim(2)


async def test_a_commit_without_a_valid_head_is_refused() -> None:
    b = Bucket()
    b.begin(1)
    for entries in ([], [ControlEntry(EntryType.CURSOR, 1, b"x")]):
        builder = SegmentBuilder(SegmentKind.COMMIT, 1, 5)
        builder.control(entries)
        b.space.store(commit_key(CLUSTER, Position(1, 2)), bytes(builder.finish()[0]), 1)
        with pytest.raises(DataLossError, match="has no valid head"):
            await b.claim(2)
        b.space.remove(commit_key(CLUSTER, Position(2, 0)))


async def test_objects_are_put_once_and_known_again() -> None:
    b = Bucket()
    assert await put_once(b.storage, "k", b"mine")
    assert await put_once(b.storage, "k", b"mine"), "the answer was lost"
    assert not await put_once(b.storage, "k", b"another's")
    assert not await put_once(b.storage, "k", b"mind")
    assert b.space.objects["k"][0] == b"mine"


class Hanging(MemoryBackend):
    """Never answers the first get."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if not self.hung:
            self.hung = True
            await trio.sleep_forever()
        return await super().get(key, start, end)

    hung = False


async def test_a_read_that_hangs_does_not_hold_commits_back_for_longer_than_their_size_takes() -> None:
    """The deadline of an object of unknown size is more than a minute; meanwhile no message became durable."""
    limits = Limits(storage_attempt_timeout_s=0.02)
    backend = Hanging(MemorySpace(), url="memory://box", durable=True, wall_clock_us=lambda: 1)
    storage = Storage(backend, random=Random(1), limits=limits)
    await storage.put("k", b"mine")
    with trio.fail_after(10):
        assert await put_once(storage, "k", b"mine")
    assert backend.hung


def test_only_commits_have_these_entries() -> None:
    head = CommitHead(CommitKind.CLAIM, CLUSTER, "me", 1, 1, 0, None, 0)
    types = [head_entry(head).type, snapshot_entry(b"").type, pieces_entry(b"", 1).type]
    assert types == [64, 65, 66], "they are in buckets"
    assert max(EntryType) < 64
    assert [int(kind) for kind in (CommitKind.CLAIM, CommitKind.ENTRIES, CommitKind.SNAPSHOT, CommitKind.FENCE)] == [
        1,
        2,
        3,
        4,
    ]
    assert decode_commit(encode_marker(head, 7), CLUSTER, Position(1, 0), "here").created_us == 7


def test_keys_of_pieces_say_whose_they_are() -> None:
    position = Position(26, 255)
    key = pieces_key(CLUSTER, position)
    assert key == "wal-pieces/main/000000000000001a/00000000000000ff"
    assert parse_pieces_key(CLUSTER, key + "-00000007") == position
    assert parse_pieces_key(CLUSTER, "wal-pieces/main/README") is None
