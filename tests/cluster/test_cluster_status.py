"""The status of a cluster, composed from tables and answers."""

from __future__ import annotations

from cluster.cluster_views import (
    B1,
    B2,
    B3,
    assignments,
    figures,
    gone,
    session,
    standing,
    status,
    told,
    topics,
    view,
    whole,
)

from danube.cluster.absences import Absences
from danube.cluster.gaps import GapRecord, GapState
from danube.cluster.group_memory import MemberRecord
from danube.cluster.records import BrokerRecord, BrokerState
from danube.cluster.status import Answer, shown_gaps, unserved
from danube.model import Durability
from danube.model.cluster_api import MetadataStanding
from danube.model.ids import BrokerId, Offset, TopicId


def test_brokers_that_run_and_one_that_is_away():
    found = view()
    made = status(found, told(1, 2), topics(found, 4, 5))
    assert (made.cluster, made.incarnation, made.broker, made.coordinator, made.topics) == (
        "danube",
        f"{0xABC:016x}",
        1,
        2,
        5,
    )
    rows = [(row.name, row.address, row.state, row.topics, row.coordinator, row.away_s) for row in made.brokers]
    assert rows == [
        ("b1", "10.0.0.1:6650", "active", 2, False, -1),
        ("b2", "10.0.0.2:6650", "active", 1, True, -1),
        ("b3", "10.0.0.3:6650", "away", 2, False, 720.0),
    ]
    (waiting,) = made.waiting
    assert (waiting.broker, waiting.durability, waiting.count) == (3, Durability.DISK, 2)
    assert waiting.topics == ["/default/t4", "/default/t5"]
    assert made.warnings == [
        "1 of 3 voters of the metadata not heard; if another fails, nothing can be created, moved or sealed",
        "2 topics of durability 'disk' wait for broker b3, away for 12 min; see: danube cluster explain b3",
    ]


def test_a_whole_cluster_warns_of_nothing():
    made = status(whole(), told(1, 2, 3))
    assert made.warnings == []
    assert made.waiting == []
    assert [(each.member, each.role, each.broker, each.behind) for each in made.metadata.members] == [
        (101, "leader", 1, 0),
        (102, "voter", 2, 0),
        (103, "voter", 3, 0),
    ]
    assert (made.metadata.leader, made.metadata.term) == (101, 7)


def test_a_broker_that_does_not_answer_is_shown_with_the_reason():
    answers = {**told(1, 3), B2: Answer(problem="no answer within 1.5 s")}
    made = status(whole(), answers)
    assert [row.state for row in made.brokers] == ["active", "silent", "active"]
    assert made.brokers[1].problem == "no answer within 1.5 s"
    assert made.brokers[1].address == "10.0.0.2:6650"
    assert made.brokers[1].topics == 1
    assert "broker b2 has a session, but does not answer b1: no answer within 1.5 s" in made.warnings


def test_a_broker_at_the_address_of_one_that_is_away_is_named():
    found = view()
    replaced = view(
        brokers={**found.brokers, "b4": BrokerRecord(identity="i4", life=1)},
        sessions={**found.sessions, "b4": session(3)},
    )
    made = status(replaced, told(1, 2), topics(found, 4, 5))
    assert [(row.name, row.address, row.successor) for row in made.brokers[2:]] == [
        ("b3", "10.0.0.3:6650", 4),
        ("b4", "10.0.0.3:6650", 0),
    ]
    assert (
        "2 topics of durability 'disk' wait for broker b3, away for 12 min; at its address runs b4, from another data"
        " directory; see: danube cluster explain b3"
    ) in made.warnings


def test_states_of_brokers():
    found = whole()
    drains = whole(brokers={**found.brokers, "b2": BrokerRecord(identity="i2", state=BrokerState.DRAINING)})
    assert [row.state for row in status(drains, told(1, 2, 3)).brokers] == ["active", "draining", "active"]
    assert status(found, told(1, 2, draining=True)).brokers[1].state == "stopping"
    assert [row.state for row in status(view(brokers=gone(view(), "b3")), told(1, 2)).brokers][2] == "gone"


def test_the_newest_term_tells_who_leads():
    answers = {
        B1: Answer(figures=figures(1, metadata=standing(101, leader=101, applied=40, committed=40))),
        B2: Answer(figures=figures(2, metadata=standing(102, leader=103, term=8, applied=55, committed=60))),
        B3: Answer(figures=figures(3, metadata=standing(103, leader=103, term=8, applied=62, committed=62))),
    }
    metadata = status(whole(), answers).metadata
    assert (metadata.leader, metadata.term, metadata.committed) == (103, 8, 62)
    assert [(each.broker, each.role, each.behind) for each in metadata.members] == [
        (1, "voter", 22),
        (2, "voter", 7),
        (3, "leader", 0),
    ]


def test_members_of_brokers_that_do_not_answer_have_no_broker():
    members = status(view(), told(1, 2)).metadata.members
    assert [(each.member, each.broker, each.behind) for each in members] == [(101, 1, 0), (102, 2, 0), (103, 0, -1)]


def test_the_records_of_members_name_the_brokers_that_do_not_answer():
    records = {"103": MemberRecord(address="10.0.0.3:6650", identity="i3"), "9": MemberRecord(address="", identity="")}
    (_, _, third) = status(view(members=records), told(1, 2)).metadata.members
    assert (third.member, third.broker, third.address, third.behind) == (103, 3, "10.0.0.3:6650", -1)


def test_learners_and_voters_that_leave():
    told_ = standing(101, voters=[101, 102], leaving=[103], learners=[104])
    members = status(view(), {B1: Answer(figures=figures(1, metadata=told_))}).metadata.members
    assert {each.member: each.role for each in members} == {101: "leader", 102: "voter", 103: "leaving", 104: "learner"}


def test_metadata_that_others_keep():
    made = status(whole(), told(1, 2, 3, metadata=MetadataStanding(engine="etcd", kept_by="etcd at 10.0.0.9:2379")))
    assert (made.metadata.engine, made.metadata.kept_by, made.metadata.members) == ("etcd", "etcd at 10.0.0.9:2379", [])
    assert made.warnings == []


def test_metadata_without_a_leader_and_a_cluster_without_a_coordinator():
    made = status(whole(coordinator=None), told(1, 2, 3, metadata=standing(101, leader=0)))
    needed = "nothing can be created, moved or sealed, and no session ends, until 2 of 3 voters run. Start the brokers"
    assert made.warnings[0].startswith(f"the metadata have no leader: {needed}")
    # A leader that has just lost the majority steps down within seconds, and can change nothing until then.
    alone = status(whole(), told(1))
    assert alone.metadata.leader
    assert alone.warnings[0].startswith(f"the metadata have lost 2 of their voters: {needed}")
    made = status(whole(coordinator=None), told(1, 2, 3, metadata=standing(101, leader=0)))
    assert made.warnings[1].startswith("no broker coordinates the cluster")


def test_two_brokers_have_one_voter():
    brokers = {name: record for name, record in whole().brokers.items() if name != "b3"}
    found = view(brokers=brokers, assignments=assignments(1, 2))
    follows = {BrokerId(2): Answer(figures=figures(2, topics=1, metadata=standing(102, voters=[101], learners=[102])))}
    made = status(found, told(1, metadata=standing(101, voters=[101], learners=[102])) | follows)
    assert made.warnings == ["only b1 votes on the metadata: while it is away, nothing can be created, moved or sealed"]


def test_topics_that_store_nothing_move_and_do_not_wait():
    found = view()
    assert status(found, told(1, 2), topics(found, 4, durability=Durability.NONE)).waiting == []
    drained = {name: BrokerRecord(identity=name, state=BrokerState.DRAINING) for name in found.brokers}
    nowhere = view(brokers=drained)
    (waiting,) = status(nowhere, told(1, 2), topics(nowhere, 4, durability=Durability.NONE)).waiting
    assert (waiting.broker, waiting.count) == (0, 1)


def test_conditions_of_a_broker_are_warnings():
    answers = {
        B1: Answer(figures=figures(1, topics=1, sealing_failing_s=90.0, stranded_topics=2)),
        B2: Answer(figures=figures(2, topics=1), rtt_s=0.002, clock_offset_s=-5.0),
    }
    made = status(view(), answers)
    serves, sealing, stranded, clock = made.warnings[1:]
    assert serves == "broker b1 serves 1 of its 2 topics; see: danube cluster explain b1"
    assert sealing.startswith("sealing has been failing at b1 for 90 s; see: danube storage status --url danube://10.0")
    assert stranded.startswith("the journal of b1 has messages of 2 topics that do not exist; see: danube topics")
    assert clock == "the clock of b2 is 5.0 s behind that of b1"


def test_what_was_lost_with_a_broker_is_a_warning_until_it_is_settled():
    def gap(broker, state=GapState.OPEN):
        return GapRecord(start=Offset(2), end=Offset(1_026), broker=broker, since_s=1_000.0, by="ann", state=state)

    settled = [gap(B3, GapState.FILLED), gap(B3, GapState.FORGOTTEN)]
    gaps = {TopicId(1): settled, TopicId(2): [*settled, gap(B3)], TopicId(3): [gap(BrokerId(9))]}
    made = whole(gaps=gaps, wall_clock_s=11_800.0)
    assert shown_gaps(made) == [TopicId(2), TopicId(3)]
    found = status(made, told(1, 2, 3), topics(made, 2))
    assert [(each.broker, each.topics, len(each.gaps)) for each in found.lost] == [(3, 1, 1), (9, 1, 0)]
    assert (found.lost[0].gaps[0].topic, found.lost[0].gaps[0].since_us) == ("/default/t2", 1_000_000_000)
    known, unknown = found.warnings
    assert known == (
        "subscriptions of 1 topic wait for what was lost with broker b3, declared gone 3 h ago by ann: offsets 2 to"
        " 1,025 of /default/t2; see: danube cluster explain b3"
    )
    assert unknown == (
        "subscriptions of 1 topic wait for what was lost with broker b9, declared gone: ...; see: danube cluster"
        " explain b9"
    )
    many = whole(gaps={TopicId(number): [gap(B3)] for number in (1, 2, 3, 4, 5)}, wall_clock_s=1_000.0)
    (warning,) = status(many, told(1, 2, 3), topics(many, 1, 2, 3, 4, 5)).warnings
    assert warning.startswith("subscriptions of 5 topics wait for")
    assert "of /default/t2, offsets 2 to 1,025 of /default/t3, ...; see" in warning
    assert status(whole(gaps={TopicId(1): settled}), told(1, 2, 3)).lost == []


def test_unserved_topics_are_those_of_brokers_without_a_session():
    assert unserved(view()) == [TopicId(4), TopicId(5)]
    assert unserved(whole()) == []


def test_absences_remember_where_a_broker_was():
    absences = Absences()
    brokers = {"b1": BrokerRecord(identity="a"), "b2": BrokerRecord(identity="b")}
    absences.note(brokers, {"b1": session(1)}, 5.0)
    assert (absences.away_s("b1", 9.0), absences.away_s("b2", 9.0)) == (None, 4.0)
    assert absences.last_session("b2") is None
    absences.note(brokers, {"b1": session(1), "b2": session(2)}, 10.0)
    absences.note(brokers, {"b1": session(1)}, 20.0)
    absences.note(brokers, {"b1": session(1)}, 30.0)
    assert absences.away_s("b2", 32.0) == 12.0
    last = absences.last_session("b2")
    assert last is not None
    assert last.address == "10.0.0.2:6650"
    absences.note({"b1": brokers["b1"]}, {"b1": session(1)}, 40.0)
    assert absences.away_s("b2", 41.0) is None
    assert absences.last_session("b2") is None
