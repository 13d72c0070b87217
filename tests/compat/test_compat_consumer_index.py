"""The index of official clients' consumers by itself: names, places and who makes room."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.compat.consumer_index import ConsumerIndex, ConsumerRecord, is_outdated
from danube.model import SubscriptionType
from danube.model.errors import LimitExceededError
from danube.model.ids import TopicId

STREAM = cast("Any", object())


def record(name: str, subscription: str = "s", topic_id: int = 7) -> ConsumerRecord:
    return ConsumerRecord(TopicId(topic_id), f"/default/{topic_id}", subscription, 5, name, SubscriptionType.SHARED)


def index_of(count: int) -> ConsumerIndex:
    index = ConsumerIndex()
    for number in range(count):
        index.changed(number, record(f"c{number}"), now=float(count - number))
    return index


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([*"abc", ""]))))
def test_the_index_has_what_is_stored_and_nothing_else(changes: list[tuple[int, str]]) -> None:
    """Changes of six ids, which keep their names; an empty text deletes."""
    index, stored = ConsumerIndex(), dict[int, ConsumerRecord]()
    for consumer_id, filters in changes:
        if filters:
            topic_id, subscription = 7 + consumer_id % 2, "st"[consumer_id // 2 % 2]
            before = stored.get(consumer_id, record(f"c{consumer_id}", subscription, topic_id))
            stored[consumer_id] = msgspec.structs.replace(before, key_filters=(filters,))
        else:
            stored.pop(consumer_id, None)
        index.changed(consumer_id, stored.get(consumer_id), 0.0)
    assert {each.consumer_id: each.record for each in index} == stored
    for consumer_id, each in stored.items():
        found = index.named(each.topic_id, each.subscription, each.name)
        assert found is not None
        assert found is index.get(consumer_id)
    assert index._by_topic.keys() == {each.topic_id for each in stored.values()}, "empty topics leave nothing behind"


def test_a_consumer_keeps_its_state_when_its_record_changes() -> None:
    index = index_of(1)
    first = index.get(0)
    index.changed(0, record("c0"), 99.0)
    assert index.get(0) is first
    assert first is not None
    assert first.used == 1.0


def test_present_are_the_connected_ones_and_those_with_a_reserved_place() -> None:
    index = index_of(3)
    index.changed(9, record("other", "t"), 0.0)
    for each in index:
        each.stream = STREAM if each.consumer_id in (0, 9) else None
    reserved = index.get(1)
    assert reserved is not None
    reserved.expected_until = 10.0

    def present(subscription: str, now: float) -> list[int]:
        return [each.consumer_id for each in index.present(TopicId(7), subscription, now)]

    assert present("s", 9.9) == [0, 1]
    assert present("s", 10.0) == [0]
    assert present("", 10.0) == [0, 9]
    assert index.present(TopicId(8), "", 0.0) == []


def test_the_least_recently_used_without_a_stream_make_room() -> None:
    index = index_of(200)
    assert index.to_make_room(201) == []
    newest = index.get(199)
    assert newest is not None
    newest.stream = STREAM  # the least recently used one, but connected
    assert [each.consumer_id for each in index.to_make_room(200)] == [198, 197, 196]
    assert [each.consumer_id for each in index.to_make_room(99)] == [198]
    for each in index:
        each.stream = STREAM
    with pytest.raises(LimitExceededError, match="max_compat_consumers = 200"):
        index.to_make_room(200)


@pytest.mark.parametrize(
    ("used", "stream", "exists", "outdated"),
    [
        (5.0, None, True, False),
        (4.9, None, True, True),
        (4.9, STREAM, True, False),
        (9.0, None, False, True),
        (9.0, STREAM, False, True),
    ],
)
def test_outdated_entries_of_the_index(used: float, stream: Any, exists: bool, outdated: bool) -> None:
    index = ConsumerIndex()
    index.changed(1, record("a"), used)
    consumer = index.get(1)
    assert consumer is not None
    consumer.stream = stream
    assert is_outdated(consumer, 5.0, exists=exists) is outdated
