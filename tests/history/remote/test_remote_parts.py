"""The pure parts of durability ``remote``: the bytes of a commit, the order of commits, and which may be deleted."""

from __future__ import annotations

from collections import deque

import pytest
from history.sealed import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_lives import claim

from danube.history.parts import ObjectRef
from danube.history.remote.format import (
    CommitHead,
    CommitKind,
    Position,
    RemoteState,
    SnapshotBody,
    SubscriptionDeleted,
    SubscriptionStored,
    TopicDeleted,
    TopicStored,
    commit_key,
    decode_change,
    decode_commit,
    decode_snapshot,
    encode_change,
    encode_marker,
    head_entry,
    parse_key,
    snapshot_body,
    snapshot_entry,
)
from danube.history.remote.queue import GATHER_BYTES, Commit, CommitQueue
from danube.history.remote.replay import Replay
from danube.history.remote.settled import Settled
from danube.history.remote.stalls import STEPS_PER_STALL, Stalls
from danube.history.remote.stored import StoredCommits
from danube.history.segment import ControlEntry, SegmentBuilder, SegmentKind, SegmentPart
from danube.log import Entry, EntryType
from danube.metadata.memory import MemoryStore
from danube.model.errors import DataLossError
from danube.model.limits import Limits
from danube.model.policies import Durability

CLUSTER = "main"


def head_of(kind: CommitKind, position: Position, settled: int = 0) -> CommitHead:
    return CommitHead(kind, CLUSTER, "me", position.epoch, *position, None, settled)


def commit_of(position: Position, batches: dict[int, list[int]], *entries: ControlEntry) -> bytes:
    """A commit with one message for each of the given offsets of each topic."""
    builder = SegmentBuilder(SegmentKind.COMMIT, position.epoch, 5)
    for topic_id, offsets in batches.items():
        builder.begin(topic_id, "/default/t")
        for offset in offsets:
            builder.add(make_batch(topic_id, offset, [b"payload"]))
        builder.end({})
    builder.control([head_entry(head_of(CommitKind.ENTRIES, position)), *entries])
    return bytes(builder.finish()[0])


def apply(replay: Replay, position: Position, batches: dict[int, list[int]], *entries: ControlEntry) -> None:
    data = commit_of(position, batches, *entries)
    replay.apply(decode_commit(data, CLUSTER, position, "here"), "here")


def change(topic_id: int, what: TopicStored | TopicDeleted | SubscriptionStored | SubscriptionDeleted) -> ControlEntry:
    return ControlEntry(EntryType.TOPIC, topic_id, encode_change(what))


def entry_of(size: int) -> Entry:
    return Entry(EntryType.CURSOR, 1, Durability.REMOTE, (), size=size)


# --- Format ---


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_keys_sort_like_positions(epoch: int, sequence: int) -> None:
    position = Position(epoch, sequence)
    assert parse_key(CLUSTER, commit_key(CLUSTER, position)) == position
    following = Position(epoch, sequence + 1) if sequence < 2**64 - 1 else Position(epoch, 0)
    assert (commit_key(CLUSTER, position) < commit_key(CLUSTER, following)) == (position < following)


def test_foreign_keys_are_named() -> None:
    with pytest.raises(DataLossError, match=r"wal/main/notes\.txt is not the key of a commit"):
        parse_key(CLUSTER, "wal/main/notes.txt")


@pytest.mark.parametrize(
    "what",
    [
        TopicStored("/default/t", [1, 2], b"record"),
        TopicDeleted("/default/t", [1]),
        SubscriptionStored(1, "s", b"record"),
        SubscriptionDeleted(1, "s"),
    ],
)
def test_changes_come_back(what) -> None:
    assert decode_change(encode_change(what)) == what


def test_every_damaged_byte_is_found() -> None:
    position = Position(3, 4)
    data = commit_of(position, {1: [0, 1]}, ControlEntry(EntryType.CURSOR, 1, b"cursor"))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(DataLossError, match="here"):
            decode_commit(bytes(damaged), CLUSTER, position, "here")
    for cut in (0, 1, 40, len(data) - 1):
        with pytest.raises(DataLossError, match="here"):
            decode_commit(data[:cut], CLUSTER, position, "here")


def test_a_commit_under_a_wrong_key_is_found() -> None:
    data = commit_of(Position(3, 4), {})
    with pytest.raises(DataLossError, match="this is commit 4 of epoch 3 of 'main', under a wrong key"):
        decode_commit(data, CLUSTER, Position(3, 5), "here")
    with pytest.raises(DataLossError, match="wrong key"):
        decode_commit(data, "other", Position(3, 4), "here")


def test_only_a_snapshot_is_a_snapshot() -> None:
    position = Position(1, 2)
    body = SnapshotBody(RemoteState({"/default/t": ([1], b"r")}, {}, {1: b"t"}, {2: b"c"}), {1: 7}, [])
    data = encode_marker(head_of(CommitKind.SNAPSHOT, position), 5, [snapshot_entry(snapshot_body(body))])
    assert decode_snapshot(decode_commit(data, CLUSTER, position, "here"), "here") == body
    fence = encode_marker(head_of(CommitKind.FENCE, position), 5)
    with pytest.raises(DataLossError, match="is not a snapshot"):
        decode_snapshot(decode_commit(fence, CLUSTER, position, "here"), "here")


# --- Order ---


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_commits_settle_in_order_whatever_lands_first(data: st.DataObject) -> None:
    queue = CommitQueue(1, 4, 1000)
    submitted: list[Entry] = []
    settled: list[Entry] = []
    on_the_way: list[Commit] = []
    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["submit", "take", "marker", "land"])):
            case "submit":
                submitted.append(entry_of(data.draw(st.integers(0, 1500))))
                queue.submit(submitted[-1])
            case "take" if queue.has_room and queue.submitted > queue.settled + sum(
                len(commit.entries) for commit in queue.in_flight
            ):
                commit = queue.take()
                assert commit.size <= 1000 or len(commit.entries) == 1
                on_the_way.append(commit)
            case "marker" if queue.has_room:
                commit = queue.take_marker(CommitKind.SNAPSHOT)
                assert commit.settled == (queue.in_flight[0].sequence)
                on_the_way.append(commit)
            case "land" if on_the_way:
                commit = on_the_way.pop(data.draw(st.integers(0, len(on_the_way) - 1)))
                for one in queue.landed(commit):
                    settled += one.entries
        assert len(queue.in_flight) <= 4
        assert settled == submitted[: len(settled)]
        assert len(settled) == queue.settled
        assert list(queue.unsettled()) == submitted[len(settled) :]
        assert bool(queue) == bool(on_the_way or len(settled) < len(submitted))
    left, size = queue.give_up()
    assert left == submitted[len(settled) :]
    assert size == sum(entry.size for entry in left)
    assert not queue


def test_the_next_commit_waits_for_more_the_more_are_on_their_way() -> None:
    queue = CommitQueue(1, 3, 10 * GATHER_BYTES)
    assert not queue.ready
    queue.submit(entry_of(1))
    assert queue.ready  # with nothing on its way: at once
    first = queue.take()
    for in_flight in (1, 2):
        queue.submit(entry_of(in_flight * GATHER_BYTES - 1))
        assert not queue.ready
        queue.submit(entry_of(1))
        assert queue.ready
        queue.take()
    queue.submit(entry_of(20 * GATHER_BYTES))
    assert not queue.ready  # there is no room
    assert [commit.sequence for commit in queue.landed(first)] == [1]
    assert queue.ready
    assert queue.take().sequence == 4


# --- Deletion ---


def test_superseded_commits_are_removed_when_a_later_commit_names_the_snapshot() -> None:
    def at(sequence: int) -> Position:
        return Position(2, sequence)

    stored = StoredCommits([Position(1, 7), Position(1, 9), at(0)])
    stored.add_snapshot(at(3), at(2), {Position(1, 9)})
    for sequence in (1, 2, 3):
        stored.add(at(sequence))
        assert not stored.named(Position(1, 7))
        assert stored.superseded() == []
    assert stored.named(at(3))
    gone = stored.superseded()
    assert gone == [Position(1, 7), at(0), at(1)]  # 2 had not settled when the snapshot was made
    assert stored.named(at(3))  # it was not done: try again
    stored.deleted(gone)
    assert stored.positions == [Position(1, 9), at(2), at(3)]
    assert not stored.named(at(3))
    stored.add_snapshot(at(9), at(9), set())
    assert stored.named(at(9))
    assert stored.superseded() == [Position(1, 9), at(2), at(3)]


def test_commits_of_a_snapshot_that_was_named_while_others_were_deleted_are_deleted_later() -> None:
    """They were taken for deleted, and a round that failed was not repeated."""
    stored = StoredCommits([Position(2, number) for number in range(6)])
    stored.add_snapshot(Position(2, 3), Position(2, 2), set())
    stored.add_snapshot(Position(2, 5), Position(2, 4), set())
    assert stored.named(Position(2, 3))
    gone = stored.superseded()
    assert stored.named(Position(2, 5))  # while they are being deleted
    stored.deleted(gone)
    assert stored.named(Position(2, 5))
    later = stored.superseded()
    assert later == [Position(2, 2), Position(2, 3)]
    assert stored.named(Position(2, 5)), "the round has failed"
    stored.deleted(later)
    assert not stored.named(Position(2, 5))


# --- What has settled ---


def a_part(topic_id: int, base: int, end: int) -> SegmentPart:
    return SegmentPart(topic_id, base, end, 1, 1, 1, 0, 10, 0, 0, 1, 0, 1)


def state_of(*topic_ids: int) -> RemoteState:
    return RemoteState({f"/default/t{number}": ([number], b"") for number in topic_ids}, {}, {}, {})


def settle(settled: Settled, sequence: int, *parts: SegmentPart, snapshot: Position | None = None) -> bool:
    commit = Commit(sequence, CommitKind.ENTRIES, sequence, [], 0)
    commit.data, commit.parts, commit.snapshot = b"x" * 100, list(parts), snapshot
    settled.built(100)
    return settled.settle(commit)


def take_snapshot(
    settled: Settled, sequence: int, state: RemoteState, unsealed: dict[Position, list[SegmentPart]] | None
) -> tuple[Commit, SnapshotBody]:
    commit = Commit(sequence, CommitKind.SNAPSHOT, sequence, [], 0)
    return commit, settled.build_snapshot(commit, state, unsealed)


def test_a_snapshot_mentions_what_no_manifest_lists() -> None:
    settled = Settled(4, Limits())
    one, two, three = a_part(1, 0, 5), a_part(2, 0, 7), a_part(1, 5, 9)
    settle(settled, 1, one, two)
    settle(settled, 2, three)
    _, body = take_snapshot(settled, 3, state_of(1, 2), None)
    assert [item.parts for item in body.objects] == [[one, two], [three]]
    assert body.next_offsets == {1: 9, 2: 7}
    # The manifests list the second commit by now, and topic 2 was deleted.
    _, body = take_snapshot(settled, 4, state_of(1), {Position(4, 1): [one, two]})
    assert [(item.sequence, item.parts) for item in body.objects] == [(1, [one])]
    assert body.next_offsets == {1: 9}
    # What a snapshot has left out does not come back.
    _, body = take_snapshot(settled, 5, state_of(1, 2), None)
    assert [(item.sequence, item.parts) for item in body.objects] == [(1, [one])]


def test_a_snapshot_is_due_at_the_start_and_after_so_much() -> None:
    settled = Settled(4, Limits(remote_snapshot_commits=3, remote_snapshot_bytes=1000))
    assert settled.is_snapshot_due
    take_snapshot(settled, 1, state_of(), None)
    due = []
    for sequence in (2, 3, 4):
        settle(settled, sequence)
        due.append(settled.is_snapshot_due)
    assert due == [False, False, True]
    take_snapshot(settled, 5, state_of(), None)
    settled.built(1000)
    assert settled.is_snapshot_due


def test_a_snapshot_supersedes_once_a_later_commit_names_it() -> None:
    settled = Settled(4, Limits(), stored=StoredCommits([Position(3, 1)]))
    settle(settled, 1, a_part(1, 0, 5))
    snapshot, _ = take_snapshot(settled, 2, state_of(1), None)
    snapshot.pieces = [None]
    assert not settled.settle(snapshot)
    assert (settled.snapshot, settled.in_pieces) == (Position(4, 2), True)
    assert settle(settled, 3, snapshot=settled.snapshot)
    assert settled.stored.superseded() == [Position(3, 1)]


# --- Stalls ---


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_each_entry_is_late_when_it_has_waited_for_a_multiple_of_the_time(steps: list[tuple[int, int]]) -> None:
    stalls = Stalls()
    marked: list[int] = []  # the step at which each entry was marked
    settled = 0
    for step, (more, done) in enumerate(steps):
        marked += [step] * more
        stalls.mark(len(marked))
        settled = min(len(marked), settled + done)
        late = [number for begin, end in stalls.step(settled) for number in range(settled + begin, settled + end)]
        waiting = range(settled, len(marked))
        assert late == [number for number in waiting if (step + 1 - marked[number]) % STEPS_PER_STALL == 0]


# --- Replay ---


def test_a_replay_puts_metadata_and_batches_together() -> None:
    replay = Replay()
    apply(replay, Position(1, 1), {}, change(5, TopicStored("/default/a", [5, 6], b"a")))
    apply(replay, Position(1, 2), {5: [0, 1], 6: [0]}, change(5, SubscriptionStored(5, "s", b"one")))
    apply(replay, Position(1, 3), {5: [2]}, ControlEntry(EntryType.CURSOR, 5, b"c"), ControlEntry(2, 5, b"d"))
    apply(replay, Position(1, 4), {}, change(5, SubscriptionStored(5, "t", b"two")))
    apply(replay, Position(1, 5), {}, change(5, SubscriptionDeleted(5, "s")))
    replay.finish()
    recovered = replay.recovered
    assert recovered.state.topics == {"/default/a": ([5, 6], b"a")}
    assert recovered.state.subscriptions == {5: {"t": b"two"}}
    assert {number: topic.next_offset for number, topic in recovered.topics.items()} == {5: 3, 6: 1}
    assert recovered.topics[5].producers[1] == deque([(1, 0, 1, 0, 1000), (1, 1, 1, 1, 1000), (1, 2, 1, 2, 1000)])
    assert {at.sequence: [part.topic_id for part in item.parts] for at, item in replay.objects.items()} == {
        2: [5, 6],
        3: [5],
    }
    assert [entry.payload for entry in recovered.control] == [b"c", b"d"]


def test_of_a_deleted_topic_nothing_is_left_and_its_name_is_free() -> None:
    replay = Replay()
    apply(replay, Position(1, 1), {}, change(5, TopicStored("/default/a", [5], b"old")))
    apply(replay, Position(1, 2), {5: [0]}, change(5, SubscriptionStored(5, "s", b"r")))
    apply(replay, Position(1, 3), {5: [1]}, change(5, TopicDeleted("/default/a", [5])))
    apply(replay, Position(1, 4), {5: [2]}, change(6, TopicStored("/default/a", [6], b"new")))
    apply(replay, Position(1, 5), {6: [0]}, change(5, SubscriptionStored(5, "late", b"r")))
    replay.finish()
    assert replay.recovered.state.topics == {"/default/a": ([6], b"new")}
    assert replay.recovered.state.subscriptions == {}
    assert list(replay.recovered.topics) == [6]
    assert list(replay.objects) == [Position(1, 5)]


def test_a_snapshot_that_was_ahead_does_no_harm() -> None:
    """The broker knew of the deletion, and of the new topic of that name, before their entries had settled."""
    replay = Replay()
    replay.begin(SnapshotBody(RemoteState({"/default/a": ([6], b"new")}, {}, {}, {}), {6: 0}, []))
    apply(replay, Position(1, 3), {5: [4]})
    apply(replay, Position(1, 4), {}, change(5, TopicDeleted("/default/a", [5])))
    apply(replay, Position(1, 5), {}, change(6, TopicStored("/default/a", [6], b"new")))
    apply(replay, Position(1, 6), {6: [0]})
    replay.finish()
    assert replay.recovered.state.topics == {"/default/a": ([6], b"new")}
    assert list(replay.objects) == [Position(1, 6)]


@pytest.mark.parametrize("offset", [0, 2])
def test_offsets_that_are_missing_or_there_twice_are_named(offset: int) -> None:
    replay = Replay()
    apply(replay, Position(1, 1), {}, change(5, TopicStored("/default/a", [5], b"a")))
    apply(replay, Position(1, 2), {5: [0]})
    with pytest.raises(DataLossError, match=f"continues at offset {offset} instead of 1"):
        apply(replay, Position(1, 3), {5: [offset]})


# --- The catalogue ---


async def test_commits_are_counted_in_memory_and_replaced_by_segments() -> None:
    async with MemoryStore() as store:
        catalogue = await claim(store, "x")
        for sequence in range(3):
            data = commit_of(Position(1, sequence), {5: [2 * sequence, 2 * sequence + 1], 6: [sequence]})
            parts = decode_commit(data, CLUSTER, Position(1, sequence), "here").parts
            ref = ObjectRef("default", commit_key(CLUSTER, Position(1, sequence)))
            catalogue.add_commit(ref, len(data), 5, parts)
        assert list(catalogue.all_parts()) == []
        assert catalogue.objects == {}
        assert [record.references for record in catalogue.commits.values()] == [2, 2, 2]
        old = catalogue.topic(5).parts
        builder = SegmentBuilder(SegmentKind.SEGMENT, 1, 5)
        builder.begin(5, "/default/t")
        for offset in range(6):
            builder.add(make_batch(5, offset, [b"payload"]))
        new = builder.end({})
        assert await catalogue.replace(old, ObjectRef("default", "segments/a"), 100, 5, new)
        assert [record.references for record in catalogue.commits.values()] == [1, 1, 1]
        assert [record.part for record in catalogue.all_parts()] == [new]
        await catalogue.expire(6, 1, 5)
        assert [ref.key[-1] for ref in catalogue.commits] == ["1", "2"]
        await catalogue.drop_topic(6, 5)
        assert catalogue.commits == {}
        again = await claim(store, "x")
        assert [record.part for record in again.all_parts()] == [new]
        assert [ref.key for ref in again.objects] == ["segments/a"]
