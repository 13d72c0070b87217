"""Pure parts of history by themselves: exact numbers and bounds, which tests of whole lives do not check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec
import pytest
from sealed import build, make_batch

from danube.history._direct_bucket import DirectBucket
from danube.history._direct_reading import DirectPart, Span, cut_range
from danube.history.manifest_format import Bucket, Manifest, ManifestKind
from danube.history.merge_plan import runs_to_merge
from danube.history.packing import object_origin
from danube.history.parts import ObjectRecord, PartRecord, TopicHistory
from danube.history.pieces import cut, piece_bytes, piece_key
from danube.history.remote.format import CommitKind, Position
from danube.history.remote.queue import GATHER_BYTES, CommitQueue
from danube.history.remote.stored import StoredCommits
from danube.history.segment import (
    HEADER_SIZE,
    INDEX_ENTRY_SIZE,
    INDEX_STEP_BYTES,
    PartIndex,
    SegmentBuilder,
    SegmentKind,
    SegmentPart,
    cut_batches,
    read_index,
)
from danube.log import Entry, EntryType
from danube.model import Durability
from danube.model.errors import InvalidArgumentError, InvalidNameError, TopicNotFoundError
from danube.storage import MemoryBackend, Storage


def part(
    base: int,
    end: int,
    *,
    topic_id: int = 1,
    size: int | None = None,
    last_us: int = 20,
    start: int = 32,
    epoch: int = 1,
) -> SegmentPart:
    stop = start + (10 * (end - base) if size is None else size)
    return SegmentPart(topic_id, base, end, 10, last_us, 1, start, stop, 0, 0, 1, 0, epoch)


def history_of(*parts: SegmentPart, objects: Sequence[str] = (), storage: str = "default") -> TopicHistory:
    history = TopicHistory()
    for number, each in enumerate(parts):
        history.add(PartRecord(storage, objects[number] if objects else f"o{number}", each))
    return history


# --- The parts of a topic ---


def test_an_empty_history() -> None:
    history = TopicHistory()
    assert (history.end_offset, history.size_bytes, history.start_offset) == (0, 0, 0)
    assert (history.find(0), history.find_time(0), history.between(0, 99, 5)) == (None, None, ([], False))


def test_parts_are_found_by_offset() -> None:
    history = history_of(part(30, 40), part(0, 10), part(10, 20))
    assert [record.part.base_offset for record in history.parts] == [0, 10, 30]
    assert (history.end_offset, history.size_bytes) == (40, 300)
    found = {offset: history.find(offset) for offset in (0, 9, 10, 19, 20, 29, 30, 39, 40)}
    assert {offset: record.part.base_offset if record else None for offset, record in found.items()} == {
        0: 0,
        9: 0,
        10: 10,
        19: 10,
        20: 30,
        29: 30,
        30: 30,
        39: 30,
        40: None,
    }


@pytest.mark.parametrize(
    ("start", "end", "most", "bases", "more"),
    [
        (0, 100, 9, [5, 15, 30, 40], False),
        (0, 100, 4, [5, 15, 30, 40], False),
        (0, 100, 3, [5, 15, 30], True),
        (0, 5, 9, [], False),
        (0, 6, 9, [5], False),
        (5, 15, 9, [5], False),
        (14, 15, 9, [5], False),
        (14, 16, 9, [5, 15], False),
        (14, 16, 1, [5], True),
        (15, 30, 9, [15], False),
        (25, 30, 9, [], False),
        (24, 31, 9, [15, 30], False),
        (25, 31, 9, [30], False),
        (49, 60, 9, [40], False),
        (50, 60, 9, [], False),
        (60, 70, 1, [], False),
    ],
)
def test_parts_of_a_range(start: int, end: int, most: int, bases: list[int], more: bool) -> None:
    history = history_of(part(5, 15), part(15, 25), part(30, 40), part(40, 50))
    found, is_more = history.between(start, end, most)
    assert ([record.part.base_offset for record in found], is_more) == (bases, more)


def test_parts_are_found_by_time_also_after_some_have_come_or_gone() -> None:
    history = history_of(part(0, 10, last_us=100), part(20, 30, last_us=300), part(30, 40, last_us=50))
    history.add(PartRecord("default", "between", part(10, 20, last_us=200)))

    def bases(*times: int) -> list[int | None]:
        found = [history.find_time(time_us) for time_us in times]
        return [record.part.base_offset if record else None for record in found]

    assert bases(0, 100, 101, 200, 201, 300, 301) == [0, 0, 10, 10, 20, 20, None]
    history.remove([history.parts[1], history.parts[2]])
    assert [record.part.base_offset for record in history.parts] == [0, 30]
    assert bases(100, 101) == [0, None]
    assert history.find(10) is history.parts[1]


def test_records_of_objects_begin_referenced_and_clean() -> None:
    record = ObjectRecord(100, 1, 50, 7)
    assert (record.references, record.tainted) == (1, False)
    assert PartRecord("s", "k", part(0, 1)).ref == ("s", "k")


# --- What is merged ---


def merged(
    *sizes: int | None, tainted: Sequence[int] = (), segment_bytes: int = 400, least: int = 3
) -> list[list[int]]:
    """Return the runs of parts of such sizes, as numbers of parts; None is a hole."""
    parts = [part(offset, offset + 1, size=size) for offset, size in enumerate(sizes) if size is not None]
    history = history_of(*parts)
    must = {f"o{number}" for number in tainted}
    runs = runs_to_merge(history, lambda record: record.object in must, segment_bytes, least)
    return [[int(record.object[1:]) for record in run] for run in runs]


def test_runs_of_small_neighbours_are_merged() -> None:
    assert merged(1, 1) == []
    assert merged(1, 1, 1) == [[0, 1, 2]]
    assert merged(1, 1, None, 1) == [], "a hole parts them"
    assert merged(1, 1, None, 1, 1, 1) == [[2, 3, 4]]
    assert merged(100, 100, 100) == [[0, 1, 2]], "a quarter of a segment is small"
    assert merged(100, 101, 100, 100, 100) == [[2, 3, 4]]
    assert merged(100, 100, 100, 100, 100) == [[0, 1, 2, 3]], "a segment's worth at most"
    assert merged(99, 99, 99, 99, 99) == [[0, 1, 2, 3]]
    assert merged(*[60] * 9) == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]


def test_runs_have_a_bounded_number_of_parts() -> None:
    assert [len(run) for run in merged(*[1] * 115, segment_bytes=10_000)] == [40, 40, 35]


def test_a_tainted_part_is_rewritten_whatever_its_size_and_even_alone() -> None:
    assert merged(1, 1, tainted=[1]) == [[0, 1]]
    assert merged(1, tainted=[0]) == [[0]]
    assert merged(300, tainted=[0]) == [[0]]
    assert merged(300, 1, 300, tainted=[0, 2]) == [[0, 1], [2]]
    assert merged(9000, 1, 1, 1, tainted=[0]) == [[0], [1, 2, 3]]


def test_parts_of_several_storages_are_not_merged() -> None:
    history = TopicHistory()
    for number in range(6):
        history.add(PartRecord("a" if number < 3 else "b", f"o{number}", part(number, number + 1)))
    runs = runs_to_merge(history, lambda record: False, 400, 2)
    assert [[record.object for record in run] for run in runs] == [["o0", "o1", "o2"], ["o3", "o4", "o5"]]


# --- The bytes of a segment ---


def test_an_index_entry_for_the_first_batch_and_every_step() -> None:
    batches = []
    for number, size in enumerate((1000, 2800, 100, 4000, 3000, 10)):
        batches.append(make_batch(1, number, [bytes(size)], 100 * (number % 3)))
    data, footer = build({1: batches})
    (found,) = footer.parts
    position, expected, before, last = 0, [], 0, -INDEX_STEP_BYTES
    for batch in batches:
        if position - last >= INDEX_STEP_BYTES:
            expected.append((batch.base_offset, before, position))
            last = position
        position += len(batch.stamp) + len(batch.part)
        before = max(before, batch.append_time_us)
    assert 2 < len(expected) < len(batches)
    assert (found.start, found.end, found.batches) == (HEADER_SIZE, HEADER_SIZE + position, 6)
    assert (found.first_time_us, found.last_time_us, found.size_bytes) == (0, 200, position)
    assert (found.index_count, found.index_end - found.index_start) == (len(expected), len(expected) * INDEX_ENTRY_SIZE)
    index = read_index(data[found.index_start : found.index_end], found, "here")
    for number, (offset, time_us, where) in enumerate(expected):
        behind = expected[number + 1][2] if number + 1 < len(expected) else -1
        assert index.find(offset) == (where, behind)
        assert index.before_time(time_us)[1] <= where
    assert index.size_bytes == 24 * len(expected) + 400


def test_a_step_is_counted_from_the_last_entry() -> None:
    for size, entries in ((INDEX_STEP_BYTES - 1, 1), (INDEX_STEP_BYTES, 2)):
        first = make_batch(1, 0, [bytes(100)])
        padding = size - len(first.stamp) - len(first.part)
        first = make_batch(1, 0, [bytes(100 + padding)])
        while len(first.stamp) + len(first.part) > size:
            padding -= 1
            first = make_batch(1, 0, [bytes(100 + padding)])
        assert len(first.stamp) + len(first.part) == size
        _, footer = build({1: [first, make_batch(1, 1, [b""])], 2: [make_batch(2, 0, [b""])]})
        assert [each.index_count for each in footer.parts] == [entries, 1]


def test_times_lead_to_the_batch_before_which_all_is_older() -> None:
    raw = b"".join(
        offset.to_bytes(8, "little") + time_us.to_bytes(8, "little") + position.to_bytes(4, "little")
        for offset, time_us, position in ((5, 0, 0), (10, 100, 5000), (15, 200, 9000))
    )
    index = PartIndex(raw)
    assert [index.before_time(at) for at in (0, 1, 100, 101, 200, 201)] == [
        (5, 0),
        (5, 0),
        (5, 0),
        (10, 5000),
        (10, 5000),
        (15, 9000),
    ]
    assert [index.find(at) for at in (0, 5, 9, 10, 14, 15, 99)] == [
        (0, 5000),
        (0, 5000),
        (0, 5000),
        (5000, 9000),
        (5000, 9000),
        (9000, -1),
        (9000, -1),
    ]


def test_batches_are_cut_and_the_number_of_missing_bytes_is_known() -> None:
    one, two = make_batch(1, 0, [bytes(50)]), make_batch(1, 1, [bytes(70)])
    data = one.stamp + one.part + two.stamp + two.part
    first = len(one.stamp) + len(one.part)

    def ends(at: int, size: int) -> tuple[int, int, int]:
        *whole, (nothing, position, missing) = cut_batches(data, at, size, 1)
        assert nothing is None
        return len(whole), position, missing

    assert ends(0, len(data)) == (2, len(data), 0)
    assert ends(first, len(data)) == (1, len(data), 0)
    assert ends(0, first) == (1, first, 0)
    assert ends(0, first + 1) == (1, first, 47)
    assert ends(0, first + 47) == (1, first, 1)
    assert ends(0, first + 48) == (1, first, len(two.part))
    assert ends(0, len(data) - 1) == (1, first, 1)
    assert ends(0, 0) == (0, 0, 0)


def test_an_abandoned_part_is_not_in_the_object() -> None:
    builder = SegmentBuilder(SegmentKind.SEGMENT, 3, 77)
    assert (builder.size_bytes, builder.part_count) == (HEADER_SIZE, 0)
    builder.begin(1, "/default/a")
    builder.add(make_batch(1, 0, [bytes(50)], 900))
    builder.abandon()
    at = builder.size_bytes
    builder.begin(2, "/default/b")
    builder.add(make_batch(2, 7, [bytes(50)], 100))
    found = builder.end({5: "maker"})
    assert (found.start, found.base_offset, found.end_offset, found.batches) == (at, 7, 8, 1)
    assert (found.first_time_us, found.last_time_us, found.epoch) == (100, 100, 3)
    _, footer = builder.finish()
    assert [each.topic_id for each in footer.parts] == [2]
    assert footer.producers == {5: "maker"}


# --- Names and pieces ---


def test_names_say_when_and_by_whom_an_object_was_begun() -> None:
    assert object_origin("segments/c/00000000000000ff-b12.1f-0123456789abcdef.seg") == (255, "b12", 31)
    for foreign in ("segments/c/x.seg", "segments/c/00000000000000ff-b1.1f-0123456789abcdef", "00000000000000ff"):
        assert object_origin(foreign) is None


def test_data_is_cut_into_pieces() -> None:
    assert cut(b"abcdefg", 3) == [b"abc", b"def", b"g"]
    assert cut(b"abcdef", 3) == [b"abc", b"def"]
    assert cut(b"", 3) == []
    assert piece_key("k", 26) == "k-0000001a"


def test_pieces_fit_the_objects_of_their_storage() -> None:
    mib = 1 << 20
    for most, expected in ((mib, mib), (32 * mib, 32 * mib), (100 * mib, 32 * mib)):
        storage = Storage(MemoryBackend(max_object_bytes=most), random=Random(1))
        assert piece_bytes(storage) == expected


def test_spans_are_cut_into_pieces_of_four_to_eight_mib() -> None:
    mib = 1 << 20
    assert cut_range(5, 5) == [(5, 5)]
    assert cut_range(5, 5 + 8 * mib - 1) == [(5, 5 + 8 * mib - 1)]
    assert cut_range(5, 5 + 8 * mib) == [(5, 5 + 4 * mib), (5 + 4 * mib, 5 + 8 * mib)]
    pieces = cut_range(0, 23 * mib)
    assert (len(pieces), pieces[0][0], pieces[-1][1]) == (5, 0, 23 * mib)
    whole = DirectPart("/default/t", "default", "o", 0, part(10, 20))
    assert [Span(whole, *ends).is_whole for ends in ((10, 20), (9, 21), (11, 20), (10, 19))] == [
        True,
        True,
        False,
        False,
    ]


# --- What a bucket tells without a broker ---


def record(partitions: int, ids: list[int], storage: str = "box") -> bytes:
    return msgspec.msgpack.encode(["disk", partitions, ids, 7, storage, "more that is passed over"])


def bucket_of(
    parts: Mapping[int, Sequence[SegmentPart]],
    starts: Mapping[int, int] | None = None,
    gaps: Mapping[int, Sequence[tuple[int, int]]] | None = None,
) -> DirectBucket:
    bucket = Bucket()
    added: dict[str, list[SegmentPart]] = {}
    for topic_id, some in parts.items():
        for each in some:
            added[f"o{topic_id}-{each.base_offset}"] = [each]
    topics: dict[str, bytes | None] = {
        "/default/plain": record(0, [1]),
        "/default/many": record(3, [11, 12, 13]),
        "/other/empty": record(0, [2]),
    }
    bucket.apply(
        Manifest(
            ManifestKind.SNAPSHOT,
            "one",
            4,
            0,
            999,
            [],
            added,
            dict(starts or {}),
            topics,
            {},
            gaps={topic_id: [gap_record(*gap) for gap in some] for topic_id, some in (gaps or {}).items()},
        ),
    )
    return DirectBucket(bucket, "s3://bucket")


def gap_record(start: int, end: int) -> bytes:
    return msgspec.msgpack.encode([start, end, 3, "more that is passed over"])


def test_declared_gaps_are_no_losses() -> None:
    """What was filled of them is there, and what else is missing is lost."""
    parts = [part(0, 10), part(20, 25), part(40, 50), part(60, 70)]
    bucket = bucket_of({1: parts}, gaps={1: [(10, 15), (20, 40)], 2: [(0, 5)]})
    (state,) = bucket.log_state(["/default/plain"])
    assert state.gaps == [(10, 15), (25, 40)]
    assert bucket.log_parts("/default/plain").gaps == [(15, 20), (50, 60)]
    assert bucket.log_parts("/default/plain", 12, 18).gaps == [(15, 18)]
    assert bucket.log_state(["/other/empty"])[0].gaps == [], "beyond the end"
    assert bucket_of({1: parts}, {1: 30}, {1: [(10, 15), (20, 40), (70, 90)]}).log_state()[3].gaps == [(30, 40)]
    old = bucket_of({1: parts})
    assert old.log_state(["/default/plain"])[0].gaps == []
    assert old.log_parts("/default/plain").gaps == [(10, 20), (25, 40), (50, 60)]


def test_a_bucket_tells_how_far_logs_reach() -> None:
    parts = {
        1: [part(10, 20), part(20, 30), part(30, 40)],
        12: [part(0, 5, topic_id=12)],
        13: [part(7, 9, topic_id=13)],
    }
    bucket = bucket_of(parts, {1: 25, 13: 50})
    assert (bucket.url, bucket.epoch, bucket.created_us) == ("s3://bucket", 4, 999)
    states = {
        state.name: (state.topic, state.partition, state.topic_id, state.start_offset, state.end_offset)
        for state in bucket.log_state()
    }
    assert states == {
        "/default/plain": ("/default/plain", 0, 1, 25, 40),
        "/default/many-part-0": ("/default/many", 0, 11, 0, 0),
        "/default/many-part-1": ("/default/many", 1, 12, 0, 5),
        "/default/many-part-2": ("/default/many", 2, 13, 50, 50),
        "/other/empty": ("/other/empty", 0, 2, 0, 0),
    }
    (state,) = bucket.log_state(["/default/plain"])
    assert (state.sealed_offset, state.storage, state.storage_url) == (40, "box", "s3://bucket")
    assert state.durability == Durability.DISK
    (first,) = bucket_of({1: [part(10, 20)]}).log_state(["/default/plain"])
    assert (first.start_offset, first.end_offset) == (10, 20), "without a start of its own it begins with its parts"
    assert len(bucket.log_state(["/default/many"])) == 3
    assert [state.name for state in bucket.log_state(pattern="/other/.*")] == ["/other/empty"]
    with pytest.raises(InvalidArgumentError):
        bucket.log_state(["/default/plain"], pattern="/other/.*")


def test_a_bucket_tells_where_a_range_is() -> None:
    bucket = bucket_of({1: [part(10, 20), part(20, 30), part(35, 40)]}, {1: 12})

    def look(start: int, end: int | None = None) -> tuple[int, int, list[int], list[tuple[int, int]]]:
        found = bucket.log_parts("/default/plain", start, end)
        assert (found.topic_id, found.start_offset, found.sealed_offset, found.end_offset) == (1, 12, 40, 40)
        assert found.storages == ({"box": "s3://bucket"} if found.parts else {})
        assert all(each.object == f"o1-{each.base_offset}" and each.storage == "box" for each in found.parts)
        return found.start, found.end, [each.base_offset for each in found.parts], [tuple(gap) for gap in found.gaps]

    assert look(0) == (12, 40, [10, 20, 35], [(30, 35)])
    assert look(0, 20) == (12, 20, [10], [])
    assert look(19, 21) == (19, 21, [10, 20], [])
    assert look(20, 30) == (20, 30, [20], [])
    assert look(30, 35) == (30, 35, [], [(30, 35)])
    assert look(20, 20) == (20, 20, [], [])
    assert look(0, 5) == (5, 5, [], []), "it has expired"
    assert look(39, 99) == (39, 40, [35], [])
    assert look(60) == (60, 60, [], [])
    with pytest.raises(InvalidArgumentError, match="not a range"):
        look(-1, 5)


def test_a_range_that_ends_before_it_begins_is_refused_as_by_a_broker() -> None:
    bucket = bucket_of({1: [part(10, 20)]})
    with pytest.raises(InvalidArgumentError, match=r"offsets \[9, 8\) are not a range"):
        bucket.log_parts("/default/plain", 9, 8)


def test_a_bucket_knows_its_topics_and_partitions() -> None:
    bucket = bucket_of({})
    names = [state.name for state in bucket.log_state(["/default/many"])]
    assert [bucket.log_state([name])[0].topic_id for name in names] == [11, 12, 13]
    assert bucket.log_parts(names[2]).topic_id == 13
    with pytest.raises(InvalidArgumentError, match="is partitioned"):
        bucket.log_parts("/default/many")
    wrong = names[2].replace("2", "3")
    for unknown in ("/default/nothing", wrong, names[0].replace("many", "plain"), names[0].replace("many", "nothing")):
        with pytest.raises(TopicNotFoundError, match="/default/many, /default/plain, /other/empty"):
            bucket.log_parts(unknown)
    for invalid in ("", "plain", "/default", "/default/pla in"):
        with pytest.raises(InvalidNameError):
            bucket.log_parts(invalid)
        with pytest.raises(InvalidNameError):
            bucket.log_state([invalid])


def test_manifests_applied_in_order_give_the_present_contents() -> None:
    bucket = Bucket()
    one, two = part(0, 10), part(10, 20)
    head = ("one", 4)
    bucket.apply(
        Manifest(
            ManifestKind.SNAPSHOT,
            *head,
            0,
            5,
            [],
            {"a": [one, two]},
            {1: 3},
            {"/d/t": b"r", "d": b"n", "": b"p"},
            {1: {}},
        )
    )
    assert bucket.objects() == {"a"}
    assert (bucket.topics, bucket.namespaces) == ({"/d/t": b"r"}, {"d": b"n", "": b"p"})
    longer = part(10, 30)
    bucket.apply(
        Manifest(
            ManifestKind.DELTA,
            *head,
            1,
            6,
            [(1, 10), (9, 9)],
            {"b": [longer]},
            {2: 4},
            {"/d/t": None, "/d/u": b"u", "d": None, "/d/x": None},
            {1: {"s": (b"r", b"c")}},
        )
    )
    assert bucket.parts == {1: {0: ("a", one), 10: ("b", longer)}}
    assert bucket.objects() == {"a", "b"}
    assert (bucket.starts, bucket.topics, bucket.namespaces) == ({1: 3, 2: 4}, {"/d/u": b"u"}, {"": b"p"})
    assert bucket.subscriptions == {1: {"s": (b"r", b"c")}}
    assert (bucket.epoch, bucket.incarnation, bucket.created_us) == (4, "one", 6)
    bucket.apply(Manifest(ManifestKind.SNAPSHOT, *head, 2, 7, [], {}, {}, {}, {}))
    assert (bucket.parts, bucket.starts, bucket.topics, bucket.subscriptions) == ({}, {}, {}, {})


# --- The order of remote commits ---


def entry(size: int) -> Entry:
    return Entry(EntryType.CURSOR, 1, Durability.REMOTE, (b"",), size=size)


def test_a_commit_takes_the_entries_that_fit() -> None:
    queue = CommitQueue(5, 4, 100)
    assert not queue
    assert (queue.next_sequence, queue.first_unsettled, queue.ready) == (5, 5, False)
    for size in (60, 40, 1, 500, 100):
        queue.submit(entry(size))
    assert queue
    assert (queue.waiting_bytes, queue.submitted, queue.ready) == (701, 5, True)
    taken = []
    for left in (601, 600, 100, 0):
        taken.append(queue.take())
        assert queue.waiting_bytes == left
    assert [(commit.sequence, len(commit.entries), commit.size, commit.settled) for commit in taken] == [
        (5, 2, 100, 5),
        (6, 1, 1, 5),
        (7, 1, 500, 5),
        (8, 1, 100, 5),
    ]
    assert all(commit.kind is CommitKind.ENTRIES for commit in taken)
    assert not queue.has_room
    assert list(queue.landed(taken[1])) == []
    assert list(queue.landed(taken[0])) == taken[:2]
    assert (queue.settled, queue.first_unsettled, queue.has_room) == (3, 7, True)
    assert list(queue.unsettled()) == taken[2].entries + taken[3].entries
    queue.submit(entry(9))
    left_over, size = queue.give_up()
    assert (len(left_over), size, bool(queue), queue.waiting_bytes) == (3, 609, False, 0)
    marker = queue.take_marker(CommitKind.FENCE)
    assert (marker.sequence, marker.entries, marker.size, marker.settled) == (9, [], 0, 9)


def test_the_next_commit_starts_when_enough_has_gathered() -> None:
    queue = CommitQueue(1, 3, 1 << 30)
    queue.take_marker(CommitKind.SNAPSHOT)
    queue.submit(entry(GATHER_BYTES - 1))
    assert not queue.ready
    queue.submit(entry(1))
    assert queue.ready
    queue.take()
    queue.submit(entry(2 * GATHER_BYTES - 1))
    assert not queue.ready
    queue.submit(entry(1))
    assert queue.ready
    queue.take()
    queue.submit(entry(99 * GATHER_BYTES))
    assert not queue.ready, "no more than so many are on their way"


def test_commits_go_when_a_snapshot_without_them_was_named() -> None:
    at = [Position(3, number) for number in range(9)]
    stored = StoredCommits(at[:3])
    for position in at[3:7]:
        stored.add(position)
    stored.add_snapshot(at[4], at[4], {at[1]})
    stored.add_snapshot(at[6], at[6], set())
    assert stored.superseded() == []
    assert stored.oldest_needed is None
    assert not stored.named(None)
    assert not stored.named(at[3])
    assert stored.named(at[4])
    assert stored.oldest_needed == at[4]
    gone = stored.superseded()
    assert gone == [at[0], at[2], at[3]]
    stored.deleted(gone)
    assert stored.positions == [at[1], at[4], at[5], at[6]]
    assert not stored.named(at[4]), "nothing has changed since"
    assert stored.named(at[6])
    gone = stored.superseded()
    assert gone == [at[1], at[4], at[5]]
    stored.deleted(gone)
    assert stored.positions == [at[6]]
    assert not stored.named(at[4]), "an older one is not known any more"
