"""The decisions about wals whose owner has died."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from cluster.cluster_views import view
from hypothesis import given
from hypothesis import strategies as st

from danube.cluster.absences import Absences
from danube.cluster.coordinator import FollowWal, Picture, RemoteTopic, TakeWal, Wals, decide
from danube.cluster.explain import explain_topic, place_of
from danube.cluster.failover import (
    FAILOVER_GRACE_S,
    UNSEEN_GRACE_S,
    decide_failover,
    next_overdue_s,
    overdue,
)
from danube.cluster.placement import Candidate
from danube.cluster.records import (
    Assignment,
    BrokerRecord,
    BrokerState,
    Reason,
    SessionRecord,
    Wal,
    WalRecord,
    beginner_of,
    broker_name,
    topic_key,
    wal_name,
    wal_of,
)
from danube.cluster.status import KnownTopic
from danube.model import Durability
from danube.model.errors import InvalidArgumentError
from danube.model.ids import BrokerId, OwnerEpoch, TopicId

B1, B2, B3, B4 = map(BrokerId, (1, 2, 3, 4))
FIRST = Wal("s3", "b1")


def topic(owner: BrokerId, wal: Wal = FIRST, epoch: int = 1, revision: int = 10) -> RemoteTopic:
    name = "" if wal.name == broker_name(owner) else wal.name
    return RemoteTopic(
        "/default/t", "/topics/default/t", 5, wal, Assignment(owner, OwnerEpoch(epoch), wal=name), revision
    )


def candidates(*brokers: BrokerId, topics: Mapping[BrokerId, int] | None = None) -> dict[BrokerId, Candidate]:
    storages = frozenset({"s3"})
    return {
        each: Candidate(broker=each, storages=storages, shared=storages, topics=(topics or {}).get(each, 0))
        for each in brokers
    }


def dead(*topics: RemoteTopic, rows: Mapping[Wal, tuple[WalRecord, int]] | None = None, **changes: object) -> Wals:
    wals = Wals(
        topics={TopicId(number): each for number, each in enumerate(topics, 1)},
        rows=rows or {},
        overdue={B1},
        shared={each: {"s3"} for each in (B1, B2, B3)},
    )
    return msgspec.structs.replace(wals, **changes)


def test_all_topics_of_a_wal_get_one_successor_with_few_topics() -> None:
    found = list(decide_failover(dead(topic(B1), topic(B1)), {B2: 20, B3: 30}, candidates(B2, B3, topics={B2: 5})))
    assert found == [TakeWal(wal=FIRST, record=WalRecord(B3, B1, 1), revision=0, session=30, topics=2)]


def test_several_wals_are_spread_the_largest_first() -> None:
    small, large = Wal("s3", "b1-2"), FIRST
    wals = dead(topic(B1, small), topic(B1), topic(B1))
    found = list(decide_failover(wals, {B2: 20, B3: 30}, candidates(B2, B3)))
    assert [(each.wal, each.record.owner) for each in found if isinstance(each, TakeWal)] == [(large, B2), (small, B3)]


def part(number: int, wal: Wal = FIRST, name: str = "/default/p", **spread: int) -> RemoteTopic:
    """A partition in a wal of b1; how many of its topic each broker has."""
    partitions = {BrokerId(int(broker[1:])): count for broker, count in spread.items()}
    return topic(B1, wal)._replace(name=f"{name}-part-{number}", partitions=partitions)


def in_racks(**racks: str) -> dict[BrokerId, Candidate]:
    """Brokers that run, each with its rack; a later one has fewer topics."""
    named = {BrokerId(int(broker[1:])): rack for broker, rack in racks.items()}
    plain = candidates(*named, topics={each: 10 - each for each in named})
    return {each: msgspec.structs.replace(plain[each], rack=rack) for each, rack in named.items()}


def heirs(wals: Wals, able: Mapping[BrokerId, Candidate]) -> dict[Wal, BrokerId]:
    found = decide_failover(wals, dict.fromkeys(able, 20), able)
    return {each.wal: each.record.owner for each in found if isinstance(each, TakeWal)}


def test_partitions_stay_spread_over_racks_first_and_over_brokers_second() -> None:
    able = in_racks(b2="east", b3="west", b4="west")
    assert heirs(dead(part(0, b1=1)), able) == {FIRST: B4}  # the one with the fewest topics
    assert heirs(dead(part(0, b1=1, b3=1)), able) == {FIRST: B2}
    assert heirs(dead(part(0, b1=1, b2=1)), able) == {FIRST: B4}
    assert heirs(dead(part(0, b1=1, b2=1, b4=1)), able) == {FIRST: B3}
    assert heirs(dead(part(0, b1=1, b2=2, b3=1, b4=0)), able) == {FIRST: B4}
    # Each of three topics has one partition in the wal; two of them have another one in the west.
    three = dead(
        *(part(0, name=f"/default/{name}", b1=1, **{at: 1}) for name, at in zip("abc", ("b2", "b3", "b4"), strict=True))
    )
    assert heirs(three, able) == {FIRST: B2}


def test_a_plain_topic_is_in_no_crowd() -> None:
    able = in_racks(b2="east", b3="west", b4="west")
    plain = topic(B1)._replace(name="/default/p-part-7", partitions={})
    assert heirs(dead(plain), able) == {FIRST: B4}


def test_what_a_wal_brings_counts_for_the_next_one_and_what_dead_brokers_have_does_not() -> None:
    other = Wal("s3", "b1-2")
    able = in_racks(b2="east", b3="west")
    wals = dead(part(0, b1=3, b4=9), part(1, b1=3, b4=9), part(2, other, b1=3, b4=9))
    assert heirs(wals, able) == {FIRST: B3, other: B2}
    assert heirs(dead(part(2, other, b1=1, b4=9)), able) == {other: B3}
    # Nor does what a drained broker still has: it goes elsewhere.
    b5 = BrokerId(5)
    three = in_racks(b2="east", b3="west", b5="east")
    three[B2] = msgspec.structs.replace(three[B2], state=BrokerState.DRAINING)
    assert heirs(dead(part(0, b1=1, b2=2, b3=1)), three) == {FIRST: b5}


def test_a_topic_whose_wal_was_given_away_is_about_to_follow_it() -> None:
    rows = {FIRST: (WalRecord(B3, B1, 1), 9)}
    wals = dead(rows=rows)
    assert wals.heir("s3", Assignment(B1, OwnerEpoch(1))) == B3
    assert wals.heir("s3", Assignment(B3, OwnerEpoch(2), wal="b1")) is None  # it has
    assert wals.heir("s3", Assignment(B4, OwnerEpoch(1))) is None  # another wal, without a row
    assert wals.heir("s3", None) is None


@pytest.mark.parametrize(
    "changes", [{"overdue": frozenset()}, {"shared": {B2: {"s3"}}}, {"shared": {B1: {"other"}, B2: {"s3"}}}]
)
def test_topics_wait_for_the_grace_and_in_storages_that_others_do_not_reach(changes: dict[str, object]) -> None:
    assert list(decide_failover(dead(topic(B1), **changes), {B2: 20}, candidates(B2))) == []


def test_no_broker_gets_a_wal_that_cannot_take_it() -> None:
    able = candidates(B2)[B2]
    for refused in (
        msgspec.structs.replace(able, state=BrokerState.DRAINING),
        msgspec.structs.replace(able, shared=frozenset()),
        msgspec.structs.replace(able, journal_share=0.95),
        msgspec.structs.replace(able, storages=frozenset()),
    ):
        assert list(decide_failover(dead(topic(B1)), {B2: 20}, {B2: refused})) == []


def test_topics_follow_their_wal_although_their_former_owner_is_back() -> None:
    rows = {FIRST: (WalRecord(B2, B1), 77)}
    wals = dead(topic(B1, epoch=4, revision=11), rows=rows, overdue=frozenset())
    for sessions in ({B2: 20}, {B1: 40, B2: 20}):
        (found,) = decide_failover(wals, sessions, candidates(*sessions))
        assert found == FollowWal(
            topic_id=TopicId(1),
            record="/topics/default/t",
            record_revision=5,
            assignment=Assignment(B2, OwnerEpoch(5), Reason.FAILOVER, wal="b1"),
            revision=11,
            wal=FIRST,
            wal_revision=77,
        )


def test_a_wal_whose_successor_has_died_goes_on_to_another() -> None:
    rows = {FIRST: (WalRecord(B2, B1), 77)}
    half = [topic(B1), topic(B2, epoch=2)]
    assert list(decide_failover(dead(*half, rows=rows), {B3: 30}, candidates(B3))) == [], "its grace is not over"
    wals = dead(*half, rows=rows, overdue={B2})
    (found,) = decide_failover(wals, {B1: 41, B3: 30}, candidates(B1, B3, topics={B3: 9}))
    assert found == TakeWal(wal=FIRST, record=WalRecord(B1, B2, 2), revision=77, session=41, topics=2)


def test_the_coordinator_decides_it_with_everything_else() -> None:
    picture = Picture(
        topics={}, assignments={}, sessions={B2: 20}, candidates=candidates(B2), wals=dead(topic(B1), topic(B1))
    )
    assert [type(each) for each in decide(picture, 0.0)] == [TakeWal]


def test_the_grace_depends_on_what_the_coordinator_has_seen() -> None:
    brokers = {name: BrokerRecord(identity=name) for name in ("b1", "b2", "b3")}
    absences = Absences()
    absences.note(brokers, {"b1": SessionRecord(address="x"), "b2": SessionRecord(address="y")}, 0.0)
    absences.note(brokers, {"b2": SessionRecord(address="y")}, 5.0)
    assert overdue(brokers, absences, 5.0) == set()
    assert next_overdue_s(brokers, absences, 5.0) == FAILOVER_GRACE_S
    assert overdue(brokers, absences, 5.0 + FAILOVER_GRACE_S) == {B1}
    assert next_overdue_s(brokers, absences, 5.0 + FAILOVER_GRACE_S) == UNSEEN_GRACE_S - 5.0 - FAILOVER_GRACE_S
    assert overdue(brokers, absences, UNSEEN_GRACE_S) == {B1, B3}
    assert next_overdue_s(brokers, absences, UNSEEN_GRACE_S) is None
    gone = {**brokers, "b3": BrokerRecord(identity="b3", state=BrokerState.GONE)}
    assert overdue(gone, absences, 5.0) == {B3}


def test_names_of_wals() -> None:
    assert [wal_name(B1, number) for number in (1, 2, 10)] == ["b1", "b1-2", "b1-10"]
    assert [beginner_of(each) for each in ("b1", "b12-3")] == [BrokerId(1), BrokerId(12)]
    assert wal_of(Assignment(B2, OwnerEpoch(1))) == "b2"
    assert wal_of(Assignment(B2, OwnerEpoch(1), wal="b1-2")) == "b1-2"
    with pytest.raises(InvalidArgumentError):
        beginner_of("x")
    old = msgspec.msgpack.encode((2, 7, "created", 0))  # as it was before wals had names
    assert msgspec.msgpack.decode(old, type=Assignment) == Assignment(B2, OwnerEpoch(7))


def test_a_topic_that_gets_another_owner_is_moving() -> None:
    shared = {name: BrokerRecord(identity=name, shared=("s3",)) for name in ("b1", "b2", "b3")}
    found = view(brokers=shared)
    place = place_of(found, TopicId(4), KnownTopic("/default/t4", Durability.REMOTE, "s3"))
    assert place.state == "moving"
    sentence = explain_topic(found, "/default/t4", [place]).sentence
    assert "is in a storage that other brokers reach and is about to move: b3, which owns it in epoch 2," in sentence
    for storage, brokers in (("other", shared), ("s3", {**shared, "b3": BrokerRecord(identity="b3")})):
        waits = view(brokers=brokers)
        assert place_of(waits, TopicId(4), KnownTopic("t", Durability.REMOTE, storage)).state == "waiting"
    assert place_of(found, TopicId(4), KnownTopic("t", Durability.DISK, "s3")).state == "waiting"
    assert topic_key(TopicId(4)) in found.assignments


class World:
    """Metadata with wals and topics, to which actions are applied as the coordinator's shell does it."""

    def __init__(self, topics: list[tuple[int, int]]) -> None:
        self.sessions: dict[BrokerId, int] = {}
        self.revision = 100
        self.rows: dict[Wal, tuple[WalRecord, int]] = {}
        self.topics = {
            TopicId(number): topic(BrokerId(owner), Wal(f"s{storage}", f"b{owner}"), revision=number)
            for number, (owner, storage) in enumerate(topics, 1)
        }

    def picture(self, overdue: set[BrokerId]) -> Picture:
        storages = frozenset({"s1", "s2"})
        wals = Wals(rows=self.rows, shared=dict.fromkeys((B1, B2, B3, B4), storages), overdue=overdue)
        moving = {
            number: each
            for number, each in self.topics.items()
            if wals.owner(each.wal) not in self.sessions or wals.owner(each.wal) != each.assignment.owner
        }
        known = {each: Candidate(broker=each, storages=storages, shared=storages) for each in self.sessions}
        wals = msgspec.structs.replace(wals, topics=moving)
        return Picture(topics={}, assignments={}, sessions=dict(self.sessions), candidates=known, wals=wals)

    def apply(self, action: TakeWal | FollowWal) -> None:
        self.revision += 1
        if isinstance(action, TakeWal):
            owner = action.record.former
            assert owner not in self.sessions
            assert self.sessions.get(action.record.owner) == action.session
            row = self.rows.get(action.wal)
            assert (row[1] if row is not None else 0) == action.revision
            assert (row[0].owner if row is not None else beginner_of(action.wal.name)) == owner
            self.rows[action.wal] = action.record, self.revision
            return
        known = self.topics[action.topic_id]
        if known.revision != action.revision or self.rows[action.wal][1] != action.wal_revision:
            return  # refused
        assert action.assignment.epoch == known.assignment.epoch + 1
        self.topics[action.topic_id] = known._replace(assignment=action.assignment, revision=self.revision)


OWNERS = st.tuples(st.integers(1, 4), st.integers(1, 2))
STEPS = st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 3)), max_size=25)


@given(st.lists(OWNERS, min_size=1, max_size=8), STEPS)
def test_a_wal_never_has_two_owners_and_every_topic_finds_one(
    topics: list[tuple[int, int]], steps: list[tuple[int, bool, int]]
) -> None:
    world = World(topics)
    for number, up, actions in steps:
        broker = BrokerId(number)
        if up and broker not in world.sessions:
            world.revision += 1
            world.sessions[broker] = world.revision
        elif not up:
            world.sessions.pop(broker, None)
        away = {each for each in (B1, B2, B3, B4) if each not in world.sessions}
        decided = [each for each in decide(world.picture(away), 0.0) if isinstance(each, TakeWal | FollowWal)]
        for action in decided[:actions]:  # the coordinator may die in between
            world.apply(action)
    if not world.sessions:
        world.sessions[B3] = 1
    away = {each for each in (B1, B2, B3, B4) if each not in world.sessions}
    for _ in range(3):
        for action in decide(world.picture(away), 0.0):
            assert isinstance(action, TakeWal | FollowWal)
            world.apply(action)
    assert decide(world.picture(away), 0.0) == []
    for each in world.topics.values():
        row = world.rows.get(each.wal)
        assert each.assignment.owner in world.sessions
        assert each.assignment.owner == (row[0].owner if row is not None else beginner_of(each.wal.name))
        assert wal_of(each.assignment) == each.wal.name
