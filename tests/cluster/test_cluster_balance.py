"""Balance: each rule directed, and any static load becomes even, without a topic that moves back and forth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.cluster.balance import (
    DEFAULT_RULES,
    Balancer,
    BrokerLoad,
    Loads,
    Move,
    Rules,
    TopicLoad,
    load_of,
    plan_moves,
)
from danube.model.ids import BrokerId, TopicId
from danube.model.names import split_partition

B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)
ROUND_S = 20.0
JOURNAL = 10_000


def idle(number: int, name: str = "") -> TopicLoad:
    return TopicLoad(TopicId(number), name or f"/default/t{number}")


def broker(number: int, topics: int = 0, **parts: Any) -> BrokerLoad:
    first = number * 1_000
    parts.setdefault("busiest", tuple(idle(first + each) for each in range(topics)))
    return BrokerLoad(broker=BrokerId(number), topics=topics, **parts)


def plan(*brokers: BrokerLoad, rules: Rules = DEFAULT_RULES, **parts: Any) -> list[Move]:
    return plan_moves(Loads(brokers=brokers, **parts), rules)


def test_even_brokers_stay_as_they_are() -> None:
    assert plan(broker(1, 40), broker(2, 40), broker(3, 40)) == []


def test_less_than_the_gain_is_not_worth_it() -> None:
    assert plan(broker(1, 49), broker(2, 40)) == []
    assert plan(broker(1, 52), broker(2, 40)) != []


def test_a_new_broker_gets_a_fifth_of_the_gap() -> None:
    moves = plan(broker(1, 100), broker(2, 0))
    assert len(moves) == 20
    assert {(each.source, each.target) for each in moves} == {(B1, B2)}
    assert moves[0].reason == "b1 has 100% of the topics, b2 0%"


@pytest.mark.parametrize(
    ("counts", "even"),
    [
        ((1, 0), (1, 0)),
        ((2, 0), (1, 1)),
        ((4, 0), (2, 2)),
        ((3, 1), (2, 2)),
        ((4, 2), (4, 2)),
        ((5, 2), (4, 3)),
        ((2, 0, 4), (2, 2, 2)),
        ((3, 0, 3), (2, 2, 2)),
        ((2, 1, 3), (2, 2, 2)),
        ((1, 1, 0), (1, 1, 0)),
        ((9, 9, 0), (6, 6, 6)),
    ],
)
def test_a_broker_gives_topics_to_one_with_less_than_half_as_many(
    counts: tuple[int, ...], even: tuple[int, ...]
) -> None:
    """Little by little, or at once: shares of so few topics say nothing."""
    world, balancer = World([[(0.0, 0.0, 0)] * count for count in counts], partitioned=False), Balancer()
    for round_ in range(60):
        loads = world.loads(balancer, round_ * ROUND_S)
        world.carry_out(balancer.round(loads), round_ * ROUND_S)
    assert world.counts() == list(even)
    at_once = World([[(0.0, 0.0, 0)] * count for count in counts], partitioned=False)
    at_once.carry_out(plan_moves(at_once.loads(balancer, 0.0), Rules(gap_share=1.0)), 0.0)
    assert max(at_once.counts()) <= max(even)
    assert sorted(at_once.counts()) == sorted(even)


def test_few_topics_move_one_at_a_time_and_say_why() -> None:
    assert [each.reason for each in plan(broker(1, 4), broker(2, 0))] == ["b1 has 4 topics, b2 0"]


def test_few_topics_go_where_the_load_is_less() -> None:
    """b2 has one topic with all the traffic: it gets none of the idle ones."""
    heavy = (TopicLoad(TopicId(1), "/default/h", None, 20e6),)
    busy = broker(2, 1, in_bytes_s=20e6, busiest=heavy)
    assert plan(broker(1, 4), busy) == []
    assert [(each.source, each.target) for each in plan(broker(1, 4), busy, broker(3))] == [(B1, B3)]


def test_the_idle_topic_of_a_busy_broker_goes_to_an_empty_one() -> None:
    both = (TopicLoad(TopicId(1), "/default/h", None, 20e6), idle(2))
    moves = plan(broker(1, 2, in_bytes_s=20e6, busiest=both), broker(2))
    assert [each.topic_id for each in moves] == [2]


def test_a_new_broker_that_is_busy_with_itself_gets_topics() -> None:
    assert plan(broker(1, 4, cpu=0.02), broker(2, cpu=0.2)) != []
    assert plan(broker(1, 4, cpu=0.02), broker(2, cpu=0.9)) == []


def test_a_pair_that_is_even_is_left_alone_though_another_broker_has_less() -> None:
    """The partition may not move to b3; between b1 and b2 it would go back and forth."""
    part, spread = TopicLoad(TopicId(1), "/default/p-part-0", None, 1e5), {"/default/p": {B1: 2, B2: 1, B3: 2}}
    even = [broker(1, 30, in_bytes_s=10.1e6, busiest=(part,)), broker(2, 30, in_bytes_s=9.9e6), broker(3, 30)]
    assert plan(*even, partitions=spread) == []


def test_the_only_topic_of_a_broker_stays() -> None:
    only = (TopicLoad(TopicId(1), "/default/h", None, 1e6),)
    assert plan(broker(1, 1, in_bytes_s=1e6, cpu=2.0, busiest=only), broker(2)) == []


def test_one_heavy_topic_may_move_though_it_is_more_than_a_fifth() -> None:
    heavy = tuple(TopicLoad(TopicId(each), f"/default/h{each}", None, 10e6) for each in (1, 2))
    moves = plan(broker(1, 2, in_bytes_s=20e6, busiest=heavy), broker(2))
    assert [each.topic_id for each in moves] == [1]


def test_the_only_heavy_topic_stays() -> None:
    heavy = (TopicLoad(TopicId(1), "/default/h", None, 10e6),)
    assert plan(broker(1, 1, in_bytes_s=10e6, busiest=heavy), broker(2)) == []


def test_the_processor_counts_by_the_traffic_of_topics() -> None:
    busy = tuple(TopicLoad(TopicId(each), f"/default/h{each}", None, 5e4) for each in range(1, 21))
    moves = plan(broker(1, 20, in_bytes_s=1e6, cpu=0.95, busiest=busy), broker(2, 20))
    assert moves
    assert "of the processor" in moves[0].reason


def test_idle_topics_move_first_if_topics_are_what_is_uneven() -> None:
    topics = (TopicLoad(TopicId(1), "/default/busy", None, 5_000.0), *(idle(each) for each in range(2, 100)))
    moves = plan(broker(1, 99, in_bytes_s=5_000.0, busiest=topics), broker(2))
    assert TopicId(1) not in {each.topic_id for each in moves}


def test_a_full_journal_and_a_drained_broker_are_no_targets() -> None:
    full = broker(2, journal_used_bytes=9_100, journal_limit_bytes=JOURNAL)
    assert plan(broker(1, 100), full, broker(3, is_target=False)) == []


def test_a_topic_that_would_fill_the_journal_stays() -> None:
    topics = tuple(TopicLoad(TopicId(each), f"/default/t{each}", journal_bytes=600) for each in range(1, 101))
    moves = plan(
        broker(1, 100, busiest=topics, journal_used_bytes=3_000, journal_limit_bytes=JOURNAL),
        broker(2, journal_used_bytes=2_000, journal_limit_bytes=3_000),
    )
    assert len(moves) == 1  # the second one would be more than 90 %


def test_a_storage_that_the_target_lacks_keeps_a_topic() -> None:
    topics = tuple(TopicLoad(TopicId(each), f"/default/t{each}", "cold") for each in range(1, 101))
    assert plan(broker(1, 100, busiest=topics), broker(2)) == []
    assert plan(broker(1, 100, busiest=topics), broker(2, storages=frozenset({"cold"}))) != []


def test_partitions_stay_spread_over_brokers_and_racks() -> None:
    parts = tuple(idle(each, f"/default/p-part-{each}") for each in range(20))
    assert all(split_partition(each.name) for each in parts)
    spread = {"/default/p": {B1: 2, B2: 2}}
    assert plan(broker(1, 20, busiest=parts), broker(2), partitions=spread) == []
    spread = {"/default/p": {B1: 3, B2: 1, B3: 2}}
    brokers = [broker(1, 20, busiest=parts), broker(2), broker(3)]
    assert plan(*brokers, partitions=spread, racks={B1: "x", B2: "y", B3: "y"}) == []
    racks = {B1: "x", B2: "y", B3: "z"}
    assert [each.target for each in plan(*brokers, partitions=spread, racks=racks)] == [B2]
    # A broker that does not answer is in a rack all the same.
    away = {"/default/p": {B1: 3, B2: 1, BrokerId(4): 2}}
    assert plan(*brokers, partitions=away, racks={B1: "x", B2: "y", B3: "z", BrokerId(4): "y"})[0].target == B3


def test_resting_topics_stay() -> None:
    resting = frozenset(TopicId(1_000 + each) for each in range(99))
    moves = plan(broker(1, 100), broker(2), resting=resting)
    assert [each.topic_id for each in moves] == [TopicId(1_099)]


def test_work_is_bounded() -> None:
    many = [broker(each, 100) for each in range(1, 30)] + [broker(each) for each in range(30, 60)]
    assert len(plan(*many)) <= 64
    assert len(plan(*many, rules=Rules(most_checks=10))) <= 1


def test_nothing_moves_before_the_imbalance_has_stood_for_three_rounds() -> None:
    uneven, even = (Loads(brokers=(broker(1, 100), broker(2, other))) for other in (0, 100))
    balancer = Balancer()
    assert [len(balancer.round(each)) for each in (uneven, uneven, even, uneven, uneven, uneven)] == [0] * 5 + [20]
    balancer.begin(0.0)
    assert balancer.round(uneven) == ()


def test_topics_that_have_moved_rest() -> None:
    balancer = Balancer()
    balancer.begin(1_000.0)
    balancer.note_moving([TopicId(1)], 1_400.0)
    assert balancer.rests(TopicId(1), 1_699.0, was_moved=True)
    assert not balancer.rests(TopicId(1), 1_700.0, was_moved=True)
    assert balancer.rests(TopicId(2), 1_299.0, was_moved=True)  # when it has moved is not known
    assert not balancer.rests(TopicId(2), 1_299.0, was_moved=False)


class World:
    """Brokers whose topics have a load that does not change, and what a coordinator does with them."""

    def __init__(
        self, brokers: list[list[tuple[float, float, int]]], partitioned: bool, own: Sequence[float] = ()
    ) -> None:
        self.own = own
        """Processors that each broker uses for other things than topics."""
        self.owner: dict[TopicId, int] = {}
        self.topics: dict[TopicId, TopicLoad] = {}
        for number, topics in enumerate(brokers, 1):
            for in_, out, journal in topics:
                topic_id = TopicId(len(self.topics) + 1)
                name = f"/default/p-part-{topic_id}" if partitioned and topic_id % 2 else f"/default/t{topic_id}"
                self.topics[topic_id] = TopicLoad(topic_id, name, None, in_, out, journal)
                self.owner[topic_id] = number
        self.count = len(brokers)
        self.moved: dict[TopicId, float] = {}

    def counts(self) -> list[int]:
        owned = Counter(self.owner.values())
        return [owned[number] for number in range(1, self.count + 1)]

    def carry_out(self, moves: Sequence[Move], now: float) -> None:
        for move in moves:
            assert now - self.moved.get(move.topic_id, -1e9) >= DEFAULT_RULES.rest_s
            assert self.owner[move.topic_id] == move.source
            self.owner[move.topic_id] = move.target
            self.moved[move.topic_id] = now

    def loads(self, balancer: Balancer, now: float) -> Loads:
        owned: dict[int, list[TopicLoad]] = {number: [] for number in range(1, self.count + 1)}
        spread: Counter[BrokerId] = Counter()
        for topic_id, number in self.owner.items():
            owned[number].append(self.topics[topic_id])
            if split_partition(self.topics[topic_id].name):
                spread[BrokerId(number)] += 1
        return Loads(
            brokers=tuple(
                BrokerLoad(
                    broker=BrokerId(number),
                    topics=len(topics),
                    in_bytes_s=sum(each.in_bytes_s for each in topics),
                    out_bytes_s=sum(each.out_bytes_s for each in topics),
                    cpu=sum(each.in_bytes_s + each.out_bytes_s for each in topics) / 50e6
                    + (self.own[number - 1] if self.own else 0.0),
                    journal_used_bytes=sum(each.journal_bytes for each in topics),
                    journal_limit_bytes=JOURNAL,
                    busiest=tuple(sorted(topics, key=lambda each: -each.in_bytes_s - each.out_bytes_s)[:100]),
                )
                for number, topics in owned.items()
            ),
            partitions={"/default/p": spread},
            resting=frozenset(each for each in self.topics if balancer.rests(each, now, was_moved=each in self.moved)),
        )


_TOPIC = st.tuples(
    st.sampled_from([0.0, 0.0, 1e3, 1e5, 3e6, 20e6]), st.sampled_from([0.0, 0.0, 1e4, 5e6]), st.integers(0, 40)
)


_FEW_OR_MANY = st.lists(_TOPIC, max_size=4) | st.lists(_TOPIC, max_size=40)


@given(st.lists(_FEW_OR_MANY, min_size=2, max_size=4), st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_static_load_becomes_even(brokers: list[list[tuple[float, float, int]]], partitioned: bool) -> None:
    world, balancer = World(brokers, partitioned), Balancer()
    now, quiet = 0.0, 0
    balancer.begin(now)
    for _ in range(2_000):
        loads = world.loads(balancer, now)
        before = max(load_of(loads, balancer.rules).values())
        moves = balancer.round(loads)
        world.carry_out(moves, now)
        balancer.note_moving([each.topic_id for each in moves], now)
        assert max(load_of(world.loads(balancer, now), balancer.rules).values()) <= before + 1e-9
        now += ROUND_S
        quiet = 0 if moves else quiet + 1
        if quiet * ROUND_S > 2 * balancer.rules.rest_s:
            break
    else:
        raise AssertionError("topics still move")
    loads = msgspec.structs.replace(world.loads(balancer, now), resting=frozenset())
    assert plan_moves(loads, balancer.rules) == []
    if not partitioned:
        counts = world.counts()
        idle_at = {world.owner[each.topic_id] for each in world.topics.values() if not any(each[3:])}
        # A broker that has two topics, one of them without any load, leaves no broker empty.
        assert 0 not in counts or all(counts[number - 1] < 2 for number in idle_at)


_SMALL, _LARGE = 1e5, 5e6


@pytest.mark.parametrize("own", [(0.0, 1.0, 0.02), (0.02, 1.0, 0.02)])
def test_processor_time_that_topics_do_not_cause_moves_no_topic_for_ever(own: Sequence[float]) -> None:
    """It was attributed to topics as a whole: two of them were swapped every five minutes."""
    outs = [
        [_SMALL, 1e4, _SMALL, _SMALL, 0.0, 1e4, _SMALL, _SMALL, _SMALL, _SMALL, 1e4],
        [0.0, _SMALL, 0.0, _SMALL, _SMALL, _SMALL, _SMALL, _LARGE, 1e4, _LARGE, 1e4],
    ]
    journals = [[30, 15, 30, 33, 11, 5, 33, 6, 6, 33, 38], [24, 15, 23, 31, 7, 26, 0, 30, 2, 26, 15]]
    brokers = [[(_SMALL, *each) for each in zip(*both, strict=True)] for both in zip(outs, journals, strict=True)]
    world, balancer = World([[], *brokers], False, own), Balancer()
    now, quiet = 0.0, 0
    balancer.begin(now)
    while quiet * ROUND_S <= 2 * balancer.rules.rest_s:
        moves = balancer.round(world.loads(balancer, now))
        world.carry_out(moves, now)
        balancer.note_moving([each.topic_id for each in moves], now)
        now += ROUND_S
        quiet = 0 if moves else quiet + 1
        assert now < 10_000, "topics still move"
