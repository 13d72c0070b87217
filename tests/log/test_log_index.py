"""The sparse index and the cache, against models."""

from __future__ import annotations

import inspect
import tracemalloc
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from log_lives import make_part

from danube.log import BatchCache, Location, StoredBatch, TopicIndex
from danube.log.cache import TopicCache
from danube.log.index import REGION_BYTES
from danube.model.batch import check_part

PART = make_part([b"x" * 40])
HEADER = check_part(PART)

steps = st.lists(
    st.tuples(st.integers(1, 50), st.sampled_from([200, 3000, 70_000]), st.booleans(), st.integers(-5, 20)),
    max_size=60,
)


def batches_of(plan: list[tuple[int, int, bool, int]]) -> list[tuple[int, Location, int]]:
    offset, file, position, time = 0, 1, 4096, 100
    found = []
    for count, size, roll, later in plan:
        if roll:
            file, position = file + 1, 4096
        time += later
        found.append((offset, Location(file, position), time))
        offset += count
        position += size
    return found


@given(steps, st.data())
@settings(deadline=None, max_examples=80)
def test_index_leads_to_a_place_at_or_just_before_the_batch(
    plan: list[tuple[int, int, bool, int]], data: st.DataObject
) -> None:
    batches = batches_of(plan)
    index = TopicIndex()
    for base, location, time in batches:
        index.add(base, *location, time, 1)
    start = 0
    if batches and data.draw(st.booleans()):
        start = batches[data.draw(st.integers(0, len(batches) - 1))][0]
        index.drop_before(start)
    for base, location, _ in batches:
        if base < start:
            continue
        place = index.find(base)
        assert place is not None
        assert place <= location
        assert place.file == location.file
        assert place.position // REGION_BYTES == location.position // REGION_BYTES
        following = index.after(place)
        if following is not None:
            assert following[0] > base or following[1] <= location
    for time in {t for _, _, t in batches}:
        known = index.before_time(time)
        first = next((base for base, _, t in batches if t >= time), None)
        if known is not None and first is not None:
            # Never behind the first batch of that time, unless the clock has stepped back before it.
            times = [t for _, _, t in batches]
            if times == sorted(times):
                assert known <= first
    for first, second in pairwise(sorted({location.file for _, location, _ in batches})):
        index.drop_file(first)
        place = index.find(0)
        assert place is None or place.file >= second or place.file != first


@given(steps, st.data())
@settings(max_examples=80)
def test_index_knows_sizes(plan: list[tuple[int, int, bool, int]], data: st.DataObject) -> None:
    """To a region whose first batch alone is known."""
    batches = batches_of(plan)
    sizes = {base: size for (base, _, _), (_, size, _, _) in zip(batches, plan, strict=True)}
    index = TopicIndex()
    for base, location, time in batches:
        index.add(base, *location, time, sizes[base])
    if not batches:
        assert index.bytes_from(0) == index.offset_keeping(0) == 0
        return
    start = data.draw(st.sampled_from(list(sizes)))
    if data.draw(st.booleans()):
        index.drop_before(start)
    exact = sum(size for base, size in sizes.items() if base >= start)
    assert exact <= index.bytes_from(start) < exact + REGION_BYTES + max(sizes.values())
    assert index.bytes_from(start) - index.surplus(start) <= exact
    kept = index.offset_keeping(exact)
    assert sum(size for base, size in sizes.items() if base >= kept) >= exact
    assert kept <= start
    assert index.bytes_from(index.offset_keeping(exact)) >= exact


def test_ten_million_messages_cost_next_to_nothing() -> None:
    tracemalloc.start()
    try:
        index = TopicIndex()
        # Batches of 640 messages of 100 bytes: one for each region.
        for number in range(10_000_000 // 640):
            index.add(number * 640, 1 + number // 1000, 4096 + number % 1000 * REGION_BYTES, number, REGION_BYTES)
        # Only what the index allocates: other threads of the test run allocate, too.
        of_index = tracemalloc.Filter(inclusive=True, filename_pattern=inspect.getfile(TopicIndex))
        traces = tracemalloc.take_snapshot().filter_traces([of_index])
    finally:
        tracemalloc.stop()
    used = sum(trace.size for trace in traces.traces)
    assert len(index) > 15_000
    assert 15_000 * 8 < used < 600_000


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=80), st.integers(0, 20_000))
@settings(deadline=None, max_examples=80)
def test_cache_keeps_the_newest_batches_without_gaps(plan: list[tuple[int, int]], limit: int) -> None:
    cache = BatchCache(limit)
    topics = [TopicCache() for _ in range(3)]
    everything: list[tuple[int, StoredBatch]] = []
    ends = [0, 0, 0]
    for topic, count in plan:
        batch = StoredBatch(ends[topic], ends[topic] + count, b"", PART, HEADER, 0)
        ends[topic] += count
        cache.append(topics[topic], batch)
        everything.append((topic, batch))
        assert cache.used_bytes <= limit
    kept = sum(len(topic) for topic in topics)
    for number, (topic, batch) in enumerate(everything):
        for offset in range(batch.base_offset, batch.end_offset):
            found = topics[topic].get(offset)
            assert found is (batch if number >= len(everything) - kept else None)
    for topic in range(3):
        assert topics[topic].get(ends[topic]) is None


def test_a_cleared_topic_leaves_the_cache_in_turn() -> None:
    cache = BatchCache(3000)
    gone, other = TopicCache(), TopicCache()
    cache.append(gone, StoredBatch(0, 1, b"", PART, HEADER, 0))
    gone.clear()
    assert gone.get(0) is None
    for number in range(5):
        cache.append(other, StoredBatch(number, number + 1, b"", PART, HEADER, 0))
    cache.append(gone, StoredBatch(1, 2, b"", PART, HEADER, 0))
    assert gone.get(1) is not None
    assert other.get(4) is not None
    assert other.get(0) is None
