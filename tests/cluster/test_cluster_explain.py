"""Explanations of brokers and topics."""

from __future__ import annotations

import re

import pytest
from cluster.cluster_views import B3, gone, session, status, told, topics, view, whole

from danube.cluster.absences import Absences
from danube.cluster.explain import explain_broker, explain_topic, place_of, sorted_places
from danube.cluster.group_memory import MemberRecord
from danube.cluster.records import BrokerRecord, BrokerState, Reason
from danube.cluster.status import Answer, KnownTopic
from danube.model import Durability
from danube.model.ids import BrokerId, TopicId


def place(found, number, durability=Durability.DISK, **fields):
    made = place_of(found, TopicId(number), KnownTopic(f"/default/t{number}", durability))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def explained(found, *places):
    return explain_topic(found, "/default/t", list(places))


def broker(found, name, answers, waiting=()):
    made = status(found, answers, waiting)
    row = next(row for row in made.brokers if row.name == name)
    return explain_broker(found, row, made, [], row.topics)


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
