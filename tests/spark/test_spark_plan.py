"""Planning: every message in exactly one task, tasks of one size, and the meaning of offsets. No Spark runs."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

import pytest

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark_danube._filters import Bounds, bounds_of
from pyspark_danube._options import EARLIEST, LATEST, At, read_options
from pyspark_danube._plan import Source, check_named, choose_spans, pack
from pyspark_danube._positions import LogKey, Span

from danube.history.direct import DirectPart
from danube.history.segment import SegmentPart
from danube.model.errors import ConfigurationError
from danube.model.limits import MIB
from danube.model.policies import Durability
from danube.model.query_api import LogState

STORAGES = {"default": "disk:///history"}


def part(topic_id: int, base: int, end: int, size: int) -> DirectPart:
    inside = SegmentPart(topic_id, base, end, 0, 0, 1, 32, 32 + size, 0, 0, 0, 0, 1)
    return DirectPart("/default/t", "default", f"object-{topic_id}-{base}", 0, inside)


def source(
    number: int, start: int, end: int, parts: Sequence[tuple[int, int, int]], sealed: int | None = None
) -> Source:
    made = [part(number, *one) for one in parts]
    last = made[-1].part.end_offset if made else start
    return Source(Span(LogKey("/default/t", number), start, end), f"t{number}", number, sealed or last, made)


@st.composite
def sources(draw: st.DrawFn) -> list[Source]:
    made = []
    for number in range(draw(st.integers(0, 5))):
        base = draw(st.integers(0, 100))
        parts, at = [], base
        for count in draw(st.lists(st.integers(1, 2000), max_size=6)):
            parts.append((at, at + count, count * draw(st.integers(1, 1000))))
            at += count + draw(st.sampled_from([0, 0, 0, 5]))
        sealed = parts[-1][1] if parts else base
        end = sealed + draw(st.integers(0, 500))
        start = draw(st.integers(base, max(base, end - 1)))
        if start < end:
            inside = [one for one in parts if one[1] > start and one[0] < end]
            made.append(source(number, start, end, inside, max(sealed, start)))
    return made


@settings(deadline=None, max_examples=100)
@given(given=sources(), target=st.integers(1, 2_000_000), least=st.integers(1, 20))
def test_every_message_is_in_one_task(given: list[Source], target: int, least: int) -> None:
    tasks = pack(given, STORAGES, target_bytes=target, min_tasks=least)
    read: dict[LogKey, list[tuple[int, int]]] = {}
    for task in tasks:
        assert task.slices
        assert task.storages == STORAGES
        for one in task.slices:
            assert one.start < one.end
            read.setdefault(LogKey(one.topic, one.partition), []).append((one.start, one.end))
            for found in one.parts:
                assert found.part.base_offset < one.end
                assert found.part.end_offset > one.start
    for one in given:
        pieces = read.pop(one.span.key)
        assert pieces[0][0] == one.span.start
        assert pieces[-1][1] == one.span.end
        assert all(before[1] == after[0] for before, after in pairwise(pieces))
    assert not read


@settings(deadline=None, max_examples=100)
@given(given=sources(), target=st.integers(50_000, 2_000_000))
def test_no_task_is_much_larger_than_the_target(given: list[Source], target: int) -> None:
    tasks = pack(given, STORAGES, target_bytes=target)
    weights = {one.span.key: one.runs() for one in given}
    total = sum((end - start) * weight for runs in weights.values() for start, end, weight in runs)
    assert len(tasks) <= total // target + 1
    for task in tasks:
        size = sum(
            max(0, min(one.end, end) - max(one.start, start)) * weight
            for one in task.slices
            for start, end, weight in weights[LogKey(one.topic, one.partition)]
        )
        # Cuts move by 5 % at either end, and a message is not divided.
        assert size <= target * 1.11 + 1000


def test_a_large_scan_has_as_many_tasks_as_its_size_asks_for() -> None:
    messages = 5_000_000
    parts = [(at, at + 100_000, 100_000 * 151) for at in range(0, messages, 100_000)]
    tasks = pack([source(0, 0, messages, parts)], STORAGES, target_bytes=96 * MIB)
    assert len(tasks) == 8
    counts = [task.slices[0].end - task.slices[0].start for task in tasks]
    assert max(counts) < 1.12 * min(counts)


def test_a_thousand_tiny_topics_are_one_task_and_one_huge_part_is_many() -> None:
    tiny = [source(number, 0, 10, [(0, 10, 1000)]) for number in range(1000)]
    assert len(pack(tiny, STORAGES, target_bytes=96 * MIB)) == 1
    assert len(pack(tiny, STORAGES, target_bytes=96 * MIB, min_tasks=4)) == 4
    huge = [source(0, 0, 1000, [(0, 1000, 1000 * MIB)])]
    assert len(pack(huge, STORAGES, target_bytes=100 * MIB)) == 10
    assert len(pack([source(0, 0, 3, [(0, 3, 30)])], STORAGES, target_bytes=MIB, min_tasks=50)) == 3
    assert pack([], STORAGES, target_bytes=MIB) == []


def test_a_span_in_a_gap_is_no_task_and_moves_no_cut() -> None:
    lost = source(0, 40, 60, [], sealed=100)
    there = source(1, 0, 100, [(0, 100, 10_000)])
    tasks = pack([lost, there], STORAGES, target_bytes=5_000)
    assert [[(one.name, one.start, one.end) for one in task.slices] for task in tasks] == [
        [("t1", 0, 50)],
        [("t1", 50, 100)],
    ]
    assert pack([lost], STORAGES, target_bytes=5_000) == []


def test_a_declared_gap_in_the_tail_is_no_work() -> None:
    gap = (10, 10 + (1 << 42))
    part = source(0, 0, gap[1] + 5, [(0, 2, 200)], sealed=2)._replace(gaps=[gap])
    assert part.runs() == [(0, 2, 100.0), (2, 10, 100.0), (gap[1], gap[1] + 5, 100.0)]
    assert len(pack([part], STORAGES, target_bytes=5_000)) == 1
    tasks = pack([part], STORAGES, target_bytes=500)
    assert [(one.start, one.end) for task in tasks for one in task.slices] == [(0, 5), (5, 10), (10, gap[1] + 5)]


def test_cuts_keep_to_the_edges_of_parts() -> None:
    parts = [(0, 100, 100_000), (100, 202, 102_000), (202, 300, 98_000)]
    tasks = pack([source(0, 0, 300, parts)], STORAGES, target_bytes=100_000)
    assert [(one.start, one.end) for task in tasks for one in task.slices] == [(0, 100), (100, 202), (202, 300)]
    assert [len(task.slices[0].parts) for task in tasks] == [1, 1, 1]


def test_tasks_are_small_and_go_anywhere() -> None:
    (task,) = pack([source(0, 5, 10, [(0, 10, 100)])], STORAGES, target_bytes=MIB)
    copy = pickle.loads(pickle.dumps(task))
    assert copy.slices == task.slices
    assert repr(copy) == "ReadTask(t0[5:10])"
    assert len(pickle.dumps(task)) < 1000


# --- Spans ---


def state(partition: int, start: int, sealed: int, end: int, topic: str = "/default/t") -> tuple[LogKey, LogState]:
    key = LogKey(topic, partition)
    return key, LogState(
        topic=topic,
        partition=partition,
        name=f"{topic}-{partition}",
        topic_id=1,
        durability=Durability.DISK,
        start_offset=start,
        sealed_offset=sealed,
        end_offset=end,
        storage="default",
        storage_url="x",
    )


STATES = dict([state(0, 10, 50, 80), state(1, 0, 0, 20)])


def spans(
    starting: At = EARLIEST, ending: At = LATEST, *, tail: bool = True
) -> tuple[list[tuple[int, int]], list[str]]:
    def find_time(key: LogKey, time_us: int) -> int:
        return min(STATES[key].end_offset, time_us)

    found, losses = choose_spans(starting, ending, STATES, find_time, include_tail=tail)
    by_partition = {span.key.partition: (span.start, span.end) for span in found}
    return [by_partition.get(partition, (0, 0)) for partition in (0, 1)], losses


def offsets(**partitions: int) -> At:
    return At("offsets", offsets={"/default/t": {int(name[1:]): offset for name, offset in partitions.items()}})


def test_spans() -> None:
    assert spans() == ([(10, 80), (0, 20)], [])
    assert spans(tail=False) == ([(10, 50), (0, 0)], [])
    assert spans(LATEST) == ([(0, 0), (0, 0)], [])
    assert spans(ending=EARLIEST) == ([(0, 0), (0, 0)], [])
    assert spans(offsets(p0=30, p1=-1)) == ([(30, 80), (0, 0)], [])
    assert spans(offsets(p0=-2), offsets(p0=40)) == ([(10, 40), (0, 20)], [])
    assert spans(offsets(p0=60), offsets(p0=40)) == ([(0, 0), (0, 20)], [])
    assert spans(At("time", 15), At("time", 30)) == ([(15, 30), (15, 20)], [])
    assert spans(At("time", 500)) == ([(0, 0), (0, 0)], [])


def test_requested_offsets_that_are_missing_count_as_loss() -> None:
    found, losses = spans(offsets(p0=3))
    assert found == [(10, 80), (0, 20)]
    assert losses == ["topic /default/t, partition 0: offsets [3, 10) have expired; it begins at 10"]
    found, losses = spans(ending=offsets(p1=25))
    assert found == [(10, 80), (0, 20)]
    assert losses == ["topic /default/t, partition 1: offsets [20, 25) do not exist; it ends at 20"]
    found, losses = spans(offsets(p0=2), offsets(p0=7))
    assert found[0] == (0, 0)
    assert losses == ["topic /default/t, partition 0: offsets [2, 7) have expired; it begins at 10"]
    # Without the tail an end beyond what is sealed is no loss.
    assert spans(ending=offsets(p0=80), tail=False)[1] == []


def test_offsets_are_for_what_is_read() -> None:
    base = {"servers": "danube://localhost", "topic": "/default/t"}
    for given_offsets, said in (
        ('{"/default/u": {"0": 1}}', "'/default/u', which is not read; did you mean '/default/t'?"),
        ('{"/default/t": {"2": 1}}', "partition 2, which it does not have; it has 2"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            check_named(read_options(base | {"endingOffsets": given_offsets}), STATES)
        assert said in str(caught.value)
    check_named(read_options(base | {"startingOffsets": '{"/default/t": {"1": 1}}'}), STATES)


# --- Filters ---

OFFSET, PARTITION, TOPIC, TIME = ("offset",), ("partition",), ("topic",), ("publish_time",)
MOMENT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([GreaterThanOrEqual(OFFSET, 5), LessThan(OFFSET, 9)], Bounds(offsets=(5, 9))),
        ([GreaterThan(OFFSET, 5), LessThanOrEqual(OFFSET, 9), GreaterThan(OFFSET, 3)], Bounds(offsets=(6, 10))),
        ([In(OFFSET, (7, 3, None))], Bounds(offsets=(3, 8))),  # type: ignore[arg-type]
        ([EqualTo(PARTITION, 2), IsNotNull(PARTITION)], Bounds(partitions=(2, 3))),
        ([EqualTo(TOPIC, "/a/b"), In(TOPIC, ("/a/b", "/a/c"))], Bounds(topics=frozenset({"/a/b"}))),
        ([StringStartsWith(TOPIC, "/a/")], Bounds(topic_prefix="/a/")),
        ([GreaterThan(TIME, MOMENT)], Bounds(published_us=1_700_000_000_000_000)),
        ([LessThan(TIME, MOMENT), GreaterThan(TIME, MOMENT.replace(tzinfo=None))], Bounds()),
        ([Not(EqualTo(OFFSET, 5)), EqualTo(("key",), "x"), EqualTo(("attributes", "offset"), 1)], Bounds()),
    ],
)
def test_filters_prune_only_what_is_certain(filters: list[Filter], bounds: Bounds) -> None:
    assert bounds_of(filters) == bounds


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            lambda kind, value: kind(OFFSET, value),
            st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
            st.integers(0, 20),
        ),
        max_size=4,
    )
)
def test_bounds_hold_all_that_pass_the_filters(filters: list[Filter]) -> None:
    holds = {
        EqualTo: lambda offset, value: offset == value,
        GreaterThan: lambda offset, value: offset > value,
        GreaterThanOrEqual: lambda offset, value: offset >= value,
        LessThan: lambda offset, value: offset < value,
        LessThanOrEqual: lambda offset, value: offset <= value,
    }
    passing = [offset for offset in range(25) if all(holds[type(one)](offset, one.value) for one in filters)]  # type: ignore[attr-defined]
    narrowed = bounds_of(filters).narrow(Span(LogKey("/a/b", 0), 0, 25))
    assert passing == ([] if narrowed is None else list(range(narrowed.start, narrowed.end)))
