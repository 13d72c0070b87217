"""Placement: spread over brokers, by load, never on one that cannot take the topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cluster.placement import FULL_JOURNAL, Candidate, Placement, Racks, keeps_spread
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


def test_partitions_are_spread_over_racks_before_brokers() -> None:
    racks = {1: "x", 2: "y", 3: "y", 4: "y"}
    placement = Placement([broker(number, rack=rack) for number, rack in racks.items()])
    assert Counter(placement.place_partitions(6, "default")) == {1: 3, 2: 1, 3: 1, 4: 1}
    # A topic that is not partitioned goes where the load is least.
    assert Counter(placement.place() for _ in range(6)) == {2: 2, 3: 2, 4: 2}


def test_a_broker_without_a_rack_is_one_of_its_own() -> None:
    placement = Placement([broker(1, rack="x"), broker(2, rack="x"), broker(3), broker(4)])
    assert Counter(placement.place_partitions(6, "default")) == {1: 1, 2: 1, 3: 2, 4: 2}


def test_the_rack_of_a_broker_that_is_away_counts_and_what_a_drained_one_gives_away_does_not() -> None:
    running = [broker(1, rack="x"), broker(2, rack="y")]
    assert Placement(running).place(partitions={BrokerId(3): 1}) == 1
    assert Placement(running, {BrokerId(3): "x"}).place(partitions={BrokerId(3): 1}) == 2
    # b1 is drained: its partition goes to b2, in the same rack, though b2 has one already.
    drained = [
        broker(1, rack="x", state=BrokerState.DRAINING),
        broker(2, rack="x"),
        broker(3, rack="y"),
        broker(4, rack="y"),
    ]
    spread = {BrokerId(number): 1 for number in (1, 2, 3, 4)}
    assert Placement(drained).place(partitions=spread) == 2


def test_a_move_keeps_the_spread_over_racks_before_that_over_brokers() -> None:
    b1, b2, b3 = BrokerId(1), BrokerId(2), BrokerId(3)
    racks = Racks({b1: "x", b2: "x", b3: "y"})
    assert keeps_spread({b1: 2, b2: 2, b3: 2}, racks, b1, b3)  # from 4 and 2 to 3 and 3
    assert not keeps_spread({b1: 1, b2: 1, b3: 2}, racks, b1, b3)
    assert not keeps_spread({b1: 2, b2: 0, b3: 2}, racks, b2, b3)
    assert keeps_spread({b1: 2, b2: 1, b3: 1}, racks, b1, b3)  # from 3 and 1 to 2 and 2
    assert keeps_spread({b1: 3, b2: 0, b3: 2}, racks, b1, b3)  # 3 and 2 become 2 and 3: as good as before
    assert not keeps_spread({b1: 2, b2: 1, b3: 2}, racks, b1, b3)  # and so do they here, but b3 has three then
    assert keeps_spread({b1: 2, b2: 1, b3: 2}, racks, b1, b2)
    assert not keeps_spread({b1: 1, b2: 1, b3: 2}, racks, b1, b2)


_RACKS = st.lists(st.sampled_from(["", "x", "y", "z"]), min_size=1, max_size=7)


def _unevenness(counts: Iterable[int]) -> int:
    """Return what is less for a better spread."""
    return sum(count * count for count in counts)


@given(_RACKS, st.integers(1, 40), st.lists(st.integers(0, 500), min_size=7, max_size=7))
def test_new_partitions_are_even_over_racks_and_within_each(names: list[str], count: int, topics: list[int]) -> None:
    brokers = [broker(number, rack=rack, topics=topics[number - 1]) for number, rack in enumerate(names, 1)]
    racks = Racks({each.broker: each.rack for each in brokers})
    placed = Counter(Placement(brokers).place_partitions(count, "default"))
    in_rack = [racks.count(placed)[racks.of(each.broker)] for each in brokers]
    assert max(in_rack) - min(in_rack) <= 1
    for one in brokers:
        for other in brokers:
            if racks.of(one.broker) == racks.of(other.broker):
                assert abs(placed[one.broker] - placed[other.broker]) <= 1


@given(_RACKS.filter(lambda names: len(names) > 1), st.data())
def test_a_move_that_keeps_the_spread_makes_neither_racks_nor_brokers_more_uneven(
    names: list[str], data: st.DataObject
) -> None:
    brokers = [BrokerId(number) for number in range(1, len(names) + 1)]
    racks = Racks(dict(zip(brokers, names, strict=True)))
    counts = Counter({each: data.draw(st.integers(0, 5)) for each in brokers})
    source, target = data.draw(st.permutations(brokers))[:2]
    if not counts[source]:
        return
    after = counts.copy()
    after[source] -= 1
    after[target] += 1
    before_, after_ = (
        (_unevenness(racks.count(each).values()), _unevenness(each.values())) for each in (counts, after)
    )
    assert keeps_spread(counts, racks, source, target) == (after_ <= before_)


@given(_RACKS.filter(lambda names: len(set(names)) > 1), st.integers(1, 20), st.data())
def test_a_drain_leaves_the_rest_as_even_as_a_new_topic(names: list[str], count: int, data: st.DataObject) -> None:
    brokers = [broker(number, rack=rack) for number, rack in enumerate(names, 1)]
    placed = Counter(Placement(brokers).place_partitions(count, "default"))
    leaving = data.draw(st.sampled_from(brokers))
    left = [each for each in brokers if each is not leaving]
    now = [msgspec.structs.replace(leaving, state=BrokerState.DRAINING), *left]
    placement, spread = Placement(now), Counter(placed)
    for _ in range(placed[leaving.broker]):
        target = placement.place("default", partitions=spread)
        spread[leaving.broker] -= 1
        spread[target] += 1
    racks = Racks({each.broker: each.rack for each in brokers})
    in_rack = racks.count(+spread)
    # A rack that is left may have more than another only if it had before.
    for one in left:
        for other in left:
            difference = in_rack[racks.of(one.broker)] - in_rack[racks.of(other.broker)]
            assert difference <= 1
