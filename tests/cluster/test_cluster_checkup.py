"""The checks of ``danube doctor --cluster``: what brokers answered in, checks out."""

from __future__ import annotations

import msgspec
from cluster.cluster_views import B2, figures, session, standing, status, told, topics, view, whole

from danube.cluster.checkup import Visit, check_cluster
from danube.cluster.status import Answer
from danube.model.cluster_api import MetadataStanding, StorageFace
from danube.model.ids import BrokerId

SHARED = StorageFace(storage="default", url="s3://bucket/danube", shared=True)


def seen_by(number, made):
    """The same status as another broker would answer it."""
    return msgspec.structs.replace(made, broker=number)


def visits(made, **changed):
    found = {
        name: Visit(name, seen_by(number, made), rtt_s=0.001) for number, name in ((1, "b1"), (2, "b2"), (3, "b3"))
    }
    return list({**found, **changed}.values())


def checks(made, found):
    return {check.name: check for check in check_cluster(made, found)}


def bad(made, found):
    return {check.name: check.detail for check in check_cluster(made, found) if not check.ok}


def test_a_healthy_cluster():
    made = status(whole(), told(1, 2, 3, storages=[SHARED]))
    found = checks(made, visits(made))
    assert bad(made, visits(made)) == {}
    assert found["cluster"].detail == "danube: 3 brokers, 3 with a session; coordinator b2"
    assert found["metadata"].detail == "leader b1, term 7, 3 voters; all members are up to date"
    assert found["broker b1"].detail == "10.0.0.1:6650 answers in 1.0 ms; 2 topics"
    assert found["links of b1"].detail == "reaches b2 in 1.0 ms, b3 in 1.0 ms"
    assert found["loop of b3"].detail == "timers late by 2.0 ms (p99 of the last minute)"
    assert found["versions"].detail == "Danube 0.3.0; feature level of the cluster 1"
    assert found["storage default"].detail == "s3://bucket/danube, on all brokers that answered"
    assert next(iter(found)) == "cluster"


def test_a_broker_that_is_away_and_the_topics_that_wait_for_it():
    made = status(view(), told(1, 2), topics(view(), 4, 5))
    found = bad(made, visits(made)[:2])
    assert found["broker b3"] == "has had no session for 12 min; 2 topics wait for it"
    assert found["metadata"] == "leader b1, term 7, 3 voters; 1 voter not heard: no other may fail now"
    assert "broker b1" not in found


def test_a_broker_that_the_doctor_cannot_reach():
    made = status(whole(), told(1, 2, 3))
    found = bad(made, visits(made, b2=Visit("b2", None, "connection refused")))
    assert found == {
        "broker b2": "10.0.0.2:6650: it has a session, but does not answer here: connection refused",
    }


def test_a_link_that_is_broken_in_one_direction():
    made = status(whole(), told(1, 2, 3))
    seen = status(whole(), {**told(1, 3), B2: Answer(problem="the link is down")})
    found = bad(made, visits(made, b3=Visit("b3", seen_by(3, seen))))
    assert found == {"links of b3": "reaches b1 in 1.0 ms; does not reach b2: the link is down"}


def test_clocks_are_compared_with_each_other():
    made = status(whole(), told(1, 2, 3))
    off = Visit("b2", seen_by(2, made), rtt_s=0.001, clock_offset_s=3602.5)
    alike = {name: Visit(name, seen_by(1, made), rtt_s=0.001, clock_offset_s=3600.0) for name in ("b1", "b3")}
    assert bad(made, visits(made, b2=off, **alike)) == {"clock of b2": "+2.500 s beside the others"}
    slow = Visit("b2", seen_by(2, made), rtt_s=4.0, clock_offset_s=2.5)
    assert bad(made, visits(made, b2=slow)) == {}  # its answer took too long to tell


def test_tables_that_differ():
    made = status(whole(), told(1, 2, 3))
    other = status(view(), told(1, 2))
    found = bad(made, visits(made, b3=Visit("b3", seen_by(3, other), rtt_s=0.001)))
    assert found == {"tables": "b3: sessions, coordinator or cluster differ from those that b1 sees"}


def test_metadata_without_leader_or_far_behind_or_kept_elsewhere():
    made = status(whole(coordinator=None), told(1, 2, 3, metadata=standing(101, leader=0)))
    found = bad(made, visits(made))
    assert found["cluster"].endswith("; no coordinator")
    assert found["metadata"] == "term 7, 3 voters; no leader is known, so the metadata cannot be changed"
    slow = {
        **told(1, 2),
        BrokerId(3): Answer(figures=figures(3, topics=2, metadata=standing(103, applied=0)), rtt_s=0.001),
        BrokerId(1): Answer(figures=figures(1, topics=2, metadata=standing(101, committed=5_000, applied=5_000))),
        BrokerId(2): Answer(figures=figures(2, topics=1, metadata=standing(102, applied=4_900)), rtt_s=0.001),
    }
    made = status(whole(), slow)
    assert bad(made, visits(made))["metadata"] == "leader b1, term 7, 3 voters; entries behind: b3 5,000"
    made = status(whole(), told(1, 2, 3, metadata=MetadataStanding(engine="etcd", kept_by="etcd at e:2379")))
    assert checks(made, visits(made))["metadata"].detail == "kept by etcd at e:2379, which is not checked"


def test_storages_that_are_configured_differently():
    other = StorageFace(storage="default", url="s3://other", shared=True)
    local = StorageFace(storage="local", url="disk:///x", shared=False)
    answers = {
        **told(1, 2, 3, storages=[SHARED]),
        B2: Answer(figures=figures(2, topics=1, storages=[other, local]), rtt_s=0.001),
    }
    made = status(whole(), answers)
    assert bad(made, visits(made)) == {
        "storage default": "configured differently: b1 s3://bucket/danube; b2 s3://other; b3 s3://bucket/danube"
    }
    answers[B2] = Answer(figures=figures(2, topics=1), rtt_s=0.001)
    made = status(whole(), answers)
    assert bad(made, visits(made)) == {"storage default": "b2 has no such storage"}


def test_versions_that_differ_and_loops_that_are_late():
    sessions = {**whole().sessions, "b3": msgspec.structs.replace(session(3), version="0.4.0", feature_level=2)}
    made = status(view(sessions=sessions), told(1, 2, 3, loop_lag_s=0.4))
    found = bad(made, visits(made))
    assert found["versions"].endswith("they differ: b1 0.3.0 (level 1), b2 0.3.0 (level 1), b3 0.4.0 (level 2)")
    assert found["loop of b1"].startswith("timers late by 400.0 ms")


def test_sessions_that_a_broker_and_the_metadata_see_differently():
    answers = {**told(1, 3), B2: Answer(figures=figures(2, topics=0, session=0), rtt_s=0.001)}
    made = status(whole(), answers)
    assert bad(made, visits(made))["broker b2"] == (
        "10.0.0.2:6650 answers in 1.0 ms; 1 topic; serves 0 of them; believes that it has no session"
    )
    answers[B2] = Answer(figures=figures(2, topics=1, session=99, journal_used_bytes=12 << 30), rtt_s=0.001)
    made = status(whole(), answers)
    assert bad(made, visits(made))["broker b2"] == (
        "10.0.0.2:6650 answers in 1.0 ms; 1 topic; has another session than the metadata say; its journal is 100% full"
    )
