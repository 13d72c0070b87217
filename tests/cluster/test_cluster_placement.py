"""Placement: spread over brokers, by load, never on one that cannot take the topic."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cluster.placement import FULL_JOURNAL, Candidate, Placement
from danube.cluster.records import BrokerState
from danube.model.errors import FailedPreconditionError
from danube.model.ids import BrokerId

STORES = frozenset({"default"})


def broker(number: int, **load: object) -> Candidate:
    return Candidate(**{"broker": BrokerId(number), "storages": STORES, **load})  # type: ignore[arg-type]


def test_topics_of_idle_brokers_are_spread_evenly() -> None:
    placement = Placement([broker(1), broker(2), broker(3)])
    assert [placement.place("default") for _ in range(6)] == [1, 2, 3, 1, 2, 3]


def test_a_new_broker_gets_topics_until_it_has_as_many() -> None:
    placement = Placement([broker(1, topics=30), broker(2, topics=30), broker(3)])
    assert Counter(placement.place() for _ in range(33)) == {1: 1, 2: 1, 3: 31}


def test_a_broker_with_all_the_traffic_gets_fewer_topics() -> None:
    placement = Placement([broker(1, topics=10, traffic_bytes_s=90e6), broker(2, topics=10), broker(3, topics=10)])
    placed = Counter(placement.place() for _ in range(30))
    assert placed[BrokerId(1)] == 0
    assert placed[BrokerId(2)] == placed[BrokerId(3)] == 15
    more = Counter(placement.place() for _ in range(270))
    assert more[BrokerId(1)] > 0, "it is not left out for ever: others grow"


def test_a_partitioned_topic_is_spread_first() -> None:
    placement = Placement([broker(1, topics=1000), broker(2), broker(3)])
    assert Counter(placement.place_partitions(6, "default")) == {1: 2, 2: 2, 3: 2}
    assert placement.place_partitions(2, "default", [BrokerId(2), BrokerId(3), BrokerId(3)]) == [1, 2]
    fewer_topics = Placement([broker(1), broker(2, topics=1000), broker(3)])
    assert fewer_topics.place_partitions(2, "default", [BrokerId(2), BrokerId(3), BrokerId(3)]) == [1, 1]


def test_the_load_is_the_larger_share_with_one_more_topic() -> None:
    placement = Placement([broker(1, topics=3, traffic_bytes_s=40.0), broker(2, topics=1)])
    assert (placement.load(BrokerId(1)), placement.load(BrokerId(2))) == (1.0, 0.4)
    placement = Placement([broker(1, topics=1, traffic_bytes_s=30.0), broker(2, topics=3, traffic_bytes_s=10.0)])
    assert (placement.load(BrokerId(1)), placement.load(BrokerId(2))) == (0.8, 0.8)
    placement = Placement([broker(1, traffic_bytes_s=10.0), broker(2)])
    assert (placement.load(BrokerId(1)), placement.load(BrokerId(2))) == (1.0, 1.0), "without topics all bring as much"
    assert Placement([broker(1)]).load(BrokerId(1)) == 1.0
    placement = Placement([broker(1, topics=1, traffic_bytes_s=30.0), broker(2, traffic_bytes_s=30.0)])
    assert placement.load(BrokerId(2)) == 0.75


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ({"state": BrokerState.DRAINING}, "b1 is draining"),
        ({"state": BrokerState.GONE}, "b1 is gone"),
        ({"storages": frozenset({"hot"})}, "b1 has no storage 'default'"),
        ({"journal_share": 0.93}, "b1 has used 93% of its journal's limit"),
    ],
)
def test_a_broker_that_cannot_take_a_topic_is_named_with_the_reason(load: dict[str, object], reason: str) -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        Placement([broker(1, **load)]).place("default")
    assert reason in str(caught.value)
    assert Placement([broker(1, **load), broker(2, topics=10**6)]).place("default") == 2


def test_a_journal_at_its_bound_still_takes_topics() -> None:
    assert Placement([broker(1, journal_share=FULL_JOURNAL)]).place("default") == 1


def test_a_topic_that_stores_nothing_needs_no_storage() -> None:
    assert Placement([broker(1, storages=frozenset())]).place() == 1


def test_without_brokers_the_message_says_so() -> None:
    with pytest.raises(FailedPreconditionError, match="no broker can take the topic: none is running"):
        Placement([]).place()


loads: st.SearchStrategy[list[dict[str, float]]] = st.lists(
    st.builds(dict, topics=st.integers(0, 500), traffic_bytes_s=st.floats(0, 1e9), journal_share=st.floats(0, 1)),
    min_size=1,
    max_size=6,
)


@given(loads, st.integers(1, 60))
def test_partitions_differ_by_one_at_most(drawn: list[dict[str, float]], count: int) -> None:
    candidates = [broker(number + 1, **load) for number, load in enumerate(drawn)]
    able = [each.broker for each in candidates if each.refusal("default") is None]
    if not able:
        return
    placed = Counter(Placement(candidates).place_partitions(count, "default"))
    assert set(placed) <= set(able)
    numbers = [placed[each] for each in able]
    assert max(numbers) - min(numbers) <= 1


@given(loads, st.integers(1, 60))
def test_the_largest_load_does_not_grow_while_another_broker_could_take_the_topic(
    drawn: list[dict[str, float]], count: int
) -> None:
    """Without traffic the broker with most topics gets one only if all have as many."""
    candidates = [broker(number + 1, topics=load["topics"]) for number, load in enumerate(drawn)]
    topics = {each.broker: each.topics for each in candidates}
    placement = Placement(candidates)
    for _ in range(count):
        chosen = placement.place()
        assert topics[chosen] == min(topics.values())
        topics[chosen] += 1
