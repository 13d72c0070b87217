"""Answers about partitions are joined to one about their topic."""

from __future__ import annotations

import msgspec
import pytest
from fake_broker import FakeTopic, _info

from danube.client._by_partition import joined_explanation, joined_info, parts_of
from danube.model import Durability
from danube.model.api import Explanation, TopicOwner, TopicPartitions

PARTS = ["/a/t-part-0", "/a/t-part-1"]


@pytest.mark.parametrize(
    ("owners", "asked"),
    [
        ([], ["/a/t"]),
        ([TopicOwner("a:1", 1), TopicOwner("a:1", 2)], ["/a/t"]),
        ([TopicOwner("a:1", 1), TopicOwner("b:1", 1)], PARTS),
        ([TopicOwner("a:1", 1), TopicOwner()], PARTS),
        ([TopicOwner(), TopicOwner()], PARTS),
    ],
)
def test_partitions_are_asked_for_one_by_one_if_no_broker_owns_all(owners: list[TopicOwner], asked: list[str]) -> None:
    assert parts_of(TopicPartitions("/a/t", 2, PARTS, Durability.DISK, owners)) == asked


def test_states_of_partitions_are_summed() -> None:
    one = msgspec.structs.replace(
        _info(FakeTopic(PARTS[0])), topic_id=7, end_offset=3, stored_bytes=10, subscriptions=["b", "a"], created_us=9
    )
    other = msgspec.structs.replace(
        one, topic=PARTS[1], end_offset=4, subscriptions=["c", "a"], created_us=8, readers=1
    )
    found = joined_info("/a/t", [one, other])
    assert (found.topic, found.topic_id, found.partitions, found.end_offset) == ("/a/t", 0, 2, 7)
    assert (found.stored_bytes, found.subscriptions, found.created_us, found.readers) == (20, ["a", "b", "c"], 8, 1)


@pytest.mark.parametrize(("states", "joined"), [(("moving", "moving"), "moving"), (("moving", "no-credit"), "mixed")])
def test_explanations_of_partitions_are_listed(states: tuple[str, str], joined: str) -> None:
    parts = [Explanation(name, "s", state, "because") for name, state in zip(PARTS, states, strict=True)]
    found = joined_explanation("/a/t", parts)
    assert (found.topic, found.state) == ("/a/t", joined)
    assert found.sentence == "/a/t-part-0: because\n/a/t-part-1: because"
