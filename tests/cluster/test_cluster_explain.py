"""Explanations of brokers and topics."""

from __future__ import annotations

import re

import pytest
from cluster.cluster_views import B3, gone, session, status, told, topics, view, whole

from danube.cluster.absences import Absences
from danube.cluster.explain import explain_broker, explain_topic, place_of, sorted_places
from danube.cluster.gaps import GapRecord, GapState
from danube.cluster.group_memory import MemberRecord
from danube.cluster.records import BrokerRecord, BrokerState, Reason
from danube.cluster.status import Answer, KnownTopic
from danube.model import Durability
from danube.model.cluster_api import MOST_PLACES
from danube.model.ids import BrokerId, Offset, TopicId


def place(found, number, durability=Durability.DISK, **fields):
    made = place_of(found, TopicId(number), KnownTopic(f"/default/t{number}", durability))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def explained(found, *places):
    return explain_topic(found, "/default/t", list(places))


def broker(found, name, answers, waiting=(), known=None):
    made = status(found, answers, waiting)
    row = next(row for row in made.brokers if row.name == name)
    return explain_broker(found, row, made, [], row.topics, known or {})


def test_a_topic_that_is_served():
    found = explained(whole(), place(whole(), 3, state="served"))
    assert found.state == "served"
    assert found.sentence == (
        "Topic /default/t3 is served by broker b2 at 10.0.0.2:6650, which owns it in epoch 2 (it was created there)."
    )
    assert found.remedy == ""


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_for_an_owner_can_be_said(reason):
    found = explained(whole(), place(whole(), 3, state="served", reason=reason.value))
    assert re.search(r"in epoch 2 \([a-z ]+\)\.$", found.sentence)


def test_a_topic_waits_for_the_broker_whose_disk_has_it():
    found = explained(view(), place(view(), 4, sealed_end=8113))
    assert found.state == "waiting"
    assert found.sentence == (
        "Topic /default/t4 waits for broker b3 at 10.0.0.3:6650, whose disk holds its messages from offset 8,113 on: b3"
        " has had no session for 12 min."
    )
    assert found.remedy == "Start b3 on its data directory; the topic is served again as soon as it is back."
    assert "goes on with it from its storage" in explained(view(), place(view(), 4, Durability.REMOTE)).sentence


def test_a_topic_that_stores_nothing_moves():
    found = explained(view(), place(view(), 4, Durability.NONE))
    assert (found.state, found.remedy) == ("moving", "")
    assert "is about to move: b3, which owns it in epoch 2, has had no session for 12 min." in found.sentence
    leaderless = view(coordinator=None)
    assert "no coordinator" in explained(leaderless, place(leaderless, 4, Durability.NONE)).remedy
    nowhere = view(brokers={name: BrokerRecord(identity=name, state=BrokerState.DRAINING) for name in view().brokers})
    waits = explained(nowhere, place(nowhere, 4, Durability.NONE))
    assert (waits.state, waits.remedy) == ("waiting", "Start or activate a broker.")
    assert "waits for any broker" in waits.sentence


def test_an_owner_that_does_not_answer_or_cannot_serve():
    silent = explained(whole(), place(whole(), 3, detail="no answer within 1.5 s"))
    assert silent.state == "unknown"
    assert silent.sentence.endswith(
        "b2 does not answer b1: no answer within 1.5 s. It has a session: clients that reach b2 may be served."
    )
    assert "danube doctor --cluster" in silent.remedy
    broken = explained(whole(), place(whole(), 3, state="unavailable", detail="its storage does not answer"))
    assert broken.sentence.endswith(": its storage does not answer.")
    assert broken.remedy == "See the log of b2."


def test_a_topic_without_an_owner():
    found = explained(whole(), place(whole(), 77))
    assert (found.state, found.remedy) == ("unassigned", "")
    assert "has no owner" in found.sentence


@pytest.mark.parametrize(("brokers", "says"), [("gone", "was declared gone for good"), ("forgotten", "was forgotten")])
def test_an_owner_that_will_not_return(brokers, says):
    records = gone(view(), "b3") if brokers == "gone" else {"b1": view().brokers["b1"], "b2": view().brokers["b2"]}
    found = view(brokers=records)
    made = explained(found, place(found, 4))
    assert says in made.sentence
    if brokers == "gone":  # forgetting it was cut off
        assert made.remedy == "Have other brokers go on with its topics: danube cluster forget b3 --accept-loss."
    else:
        assert made.remedy == "If the disk of b3 still exists, start a broker on its data directory."


def test_partitions_are_summed_up_and_the_bad_ones_come_first():
    found = view()
    served = [place(found, number, state="served") for number in (1, 2, 3)]
    all_served = explained(found, *served)
    assert (all_served.state, all_served.sentence) == ("served", "All 3 partitions are served, by 2 brokers.")
    mixed = explained(found, *served, place(found, 4), place(found, 5))
    assert mixed.state == "mixed"
    assert mixed.sentence.startswith("2 of 5 partitions are not served. Topic /default/t4 waits for broker b3")
    assert [each.state for each in mixed.topics] == ["waiting", "waiting", "served", "served", "served"]
    assert explained(found, place(found, 4), place(found, 5)).state == "waiting"
    assert sorted_places([served[0], place(found, 5)])[0].topic == "/default/t5"


def test_many_partitions_are_cut_and_counted():
    found = view()
    made = explained(found, *(place(found, 1, state="served", topic=f"/default/t-part-{n:04}") for n in range(250)))
    assert (len(made.topics), made.more) == (200, 50)


def test_a_broker_without_a_session_doubts_its_tables():
    alone = view(sessions={"b2": session(2)})
    made = explained(alone, place(alone, 3, state="served"))
    assert made.sentence.endswith(
        "But b1, which answers this, has no session itself at the moment, so this may be outdated."
    )


def test_a_broker_that_runs():
    made = broker(whole(), "b2", told(1, 2, 3))
    assert made.state == "active"
    assert made.sentence == (
        "Broker b2 at 10.0.0.2:6650 runs Danube 0.3.0 (started 2 times). It coordinates the cluster and votes on the"
        " metadata. It owns 1 topic."
    )
    assert made.remedy == ""


def test_a_broker_that_is_away():
    found = view()
    made = broker(found, "b3", told(1, 2), topics(found, 4, 5))
    assert made.state == "away"
    assert made.sentence == (
        "Broker b3 has had no session for 12 min (started 3 times). It was last at 10.0.0.3:6650. 2 topics wait for it."
    )
    assert made.remedy == "Start b3 on its data directory; its topics are served again as soon as it is back."
    assert broker(found, "b3", told(1, 2)).remedy == ""


def wiped(**changes):
    """b4 runs at the address of b3, whose member of the metadata was removed for it."""
    brokers = {**view().brokers, "b4": BrokerRecord(identity="i4", life=1)}
    sessions = {**view().sessions, "b4": session(3)}
    members = {str(100 + each): MemberRecord(address=f"10.0.0.{each}:6650", identity=f"i{each}") for each in (1, 2)}
    members["104"] = MemberRecord(address="10.0.0.3:6650", identity="i4")
    return view(brokers=brokers, sessions=sessions, members=members, **changes)


def test_a_broker_whose_data_directory_was_replaced():
    found = wiped()
    remedy = (
        "If the data directory of b3 still exists somewhere: remove the directory 'metadata' and the files 'group-*'"
        " from it, and nothing else (the rest holds its messages), and start b3 on it at an address of its own with"
        " --join 10.0.0.1:6650; {} again as soon as it is back."
    )
    made = broker(found, "b3", told(1, 2), topics(found, 4, 5))
    assert made.sentence == (
        "Broker b3 has had no session for 12 min (started 3 times). At its address, 10.0.0.3:6650, runs b4 now, from"
        " another data directory: the directory of b3 was replaced, and b4 has none of its messages. 2 topics wait for"
        " it."
    )
    assert made.remedy == remedy.format("its topics are served")
    topic = explained(found, place(found, 4))
    assert topic.sentence.startswith("Topic /default/t4 waits for broker b3, whose disk holds its messages: b3 has had")
    assert topic.sentence.endswith("the directory of b3 was replaced, and b4 has none of its messages.")
    assert topic.remedy == remedy.format("the topic is served")


def test_a_broker_whose_metadata_are_of_a_former_incarnation():
    found = view(members={"101": MemberRecord(address="10.0.0.1:6650", identity="i1")})
    made = broker(found, "b3", told(1, 2), topics(found, 4, 5))
    assert "It was last at 10.0.0.3:6650." in made.sentence
    assert made.remedy.startswith("The metadata in the data directory of b3 are not those of this cluster any more:")
    assert "remove the directory 'metadata' and the files 'group-*'" in made.remedy
    assert "start b3 on it with --join 10.0.0.1:6650" in made.remedy


def test_the_address_of_a_broker_that_was_away_before_this_one_started():
    members = {"103": MemberRecord(address="10.0.0.3:6650", identity="i3")}
    found = view(absences=Absences(), members=members)
    made = broker(found, "b3", told(1, 2), topics(found, 4, 5))
    assert "It was last at 10.0.0.3:6650." in made.sentence
    assert made.remedy.startswith("Start b3 on its data directory;")


def test_a_broker_without_a_leader_of_the_metadata_may_have_ended():
    leaderless = whole(has_leader=False)
    answers = {**told(1), BrokerId(2): Answer(problem="the link is down")}
    silent = broker(leaderless, "b2", answers)
    assert "It may have ended: it still has a session only because none can end" in silent.sentence
    assert silent.remedy.startswith("Start b2, if it does not run, or other brokers that vote")
    topic = explained(leaderless, place(leaderless, 3, detail="the link is down"))
    assert "It may have ended" in topic.sentence
    assert topic.remedy == silent.remedy


def test_a_broker_in_trouble():
    answers = {**told(1, 3), BrokerId(2): Answer(problem="the link is down")}
    silent = broker(whole(), "b2", answers)
    assert silent.state == "silent"
    assert "does not answer b1: the link is down. It has a session: it cannot" in silent.sentence
    sick = broker(whole(), "b1", {**told(1, 2, sealing_failing_s=70.0, stranded_topics=1, draining=True)})
    assert "It is shutting down. Sealing has been failing for 70 s." in sick.sentence
    assert "Its journal has messages of 1 topic that do not exist." in sick.sentence
    assert sick.remedy == "See danube storage status --url danube://10.0.0.1:6650"
    assert B3 == 3


def lost(*starts, broker=B3, state=GapState.OPEN, by="ann"):
    return [
        GapRecord(
            start=Offset(start),
            end=Offset(start + 8),
            broker=broker,
            since_s=1_000.0,
            by=by,
            state=state,
            filled_end=start,
        )
        for start in starts
    ]


def test_what_a_topic_has_lost_is_named():
    made = whole(gaps={TopicId(3): lost(2)}, wall_clock_s=11_800.0)
    found = explained(made, place(made, 3, state="served"))
    assert found.sentence.endswith(
        " Offsets 2 to 9 of /default/t3 were lost with broker b3, which was declared gone 3 h ago by ann: subscriptions"
        " wait for them."
    )
    assert found.remedy == (
        "To give back what the disk of b3 has, if it still exists: danube cluster return-tail --data-dir DIRECTORY,"
        " while no broker runs on it. To give it up: danube topics forget-gap /default/t"
    )
    assert [(each.topic, each.start, each.end, each.broker, each.open) for each in found.gaps] == [
        ("/default/t3", 2, 10, "b3", True)
    ]
    forgotten = whole(gaps={TopicId(3): lost(2, 40, by="", state=GapState.FORGOTTEN)}, wall_clock_s=1_012.0)
    found = explained(forgotten, place(forgotten, 3, state="served"))
    assert found.sentence.endswith(
        " Offsets 2 to 9 of /default/t3 were lost with broker b3, which was declared gone 12 s ago; they were given up,"
        " and nothing waits for them; so it is with 1 more gap."
    )
    assert (found.remedy, len(found.gaps)) == ("", 2)
    filled = whole(gaps={TopicId(3): lost(2, state=GapState.FILLED)})
    found = explained(filled, place(filled, 3, state="served"))
    assert "lost" not in found.sentence
    assert found.gaps == []


def test_gaps_of_partitions_are_counted_and_come_after_what_else_is_to_do():
    gaps = {TopicId(3): lost(2, state=GapState.FORGOTTEN), TopicId(4): lost(2), TopicId(5): lost(30)}
    made = view(gaps=gaps, wall_clock_s=2_000.0)
    places = [place(made, number) for number in (4, 5)]
    found = explained(made, place(made, 3, state="served"), *places)
    assert "Offsets 2 to 9 of /default/t4 were lost with broker b3" in found.sentence
    assert found.sentence.endswith(": subscriptions wait for them, and for 1 more gap.")
    assert found.remedy.startswith(
        "Start b3 on its data directory; the topic is served again as soon as it is back. To"
    )
    assert [each.topic for each in found.gaps] == ["/default/t4", "/default/t5", "/default/t3"]
    many = whole(gaps={TopicId(3): lost(*range(0, 10 * (MOST_PLACES + 7), 10))})
    found = explained(many, place(many, 3, state="served"))
    assert (len(found.gaps), found.more_gaps) == (MOST_PLACES, 7)


def test_what_was_lost_with_a_broker_is_named():
    gaps = {TopicId(number): lost(2) for number in (1, 2, 3)} | {TopicId(4): lost(2, broker=BrokerId(9))}
    made = view(brokers=gone(view(), "b3"), assignments={}, gaps=gaps, wall_clock_s=2_000.0)
    known = {TopicId(each): KnownTopic(f"/default/t{each}", Durability.DISK) for each in (2, 3, 4)}
    found = broker(made, "b3", told(1, 2), known=known)
    assert found.state == "gone"
    assert found.sentence == (
        "Broker b3 was declared gone for good (started 0 times). It was last at 10.0.0.3:6650. Offsets 2 to 9 of"
        " /default/t2 were lost with broker b3, which was declared gone 17 min ago by ann: subscriptions wait for them,"
        " and for 1 more gap."
    )
    assert found.remedy.endswith("To give it up: danube topics forget-gap TOPIC")
    assert [each.topic for each in found.gaps] == ["/default/t2", "/default/t3"]
    del known[TopicId(3)]
    assert broker(made, "b3", told(1, 2), known=known).remedy.endswith("danube topics forget-gap /default/t2")
    assert broker(made, "b2", told(1, 2), known=known).gaps == []
