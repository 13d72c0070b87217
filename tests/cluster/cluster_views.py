"""Tables of a cluster for tests of what is composed from them: three brokers, b3 away, and what they tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danube.cluster.absences import Absences
from danube.cluster.records import (
    Assignment,
    BrokerRecord,
    BrokerState,
    ClusterRecord,
    Reason,
    SessionRecord,
    broker_name,
    topic_key,
)
from danube.cluster.status import Answer, KnownTopic, View, compose_status
from danube.model import Durability
from danube.model.cluster_api import BrokerFigures, ClusterStatus, MetadataStanding
from danube.model.ids import BrokerId, OwnerEpoch, TopicId

B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)
GIB = 1 << 30
VOTERS = [101, 102, 103]


def session(broker: int, **fields: Any) -> SessionRecord:
    return SessionRecord(address=f"10.0.0.{broker}:6650", version="0.3.0", feature_level=1, life=1, **fields)


def standing(member: int, *, leader: int = 101, applied: int = 50, **fields: Any) -> MetadataStanding:
    told = {"engine": "raft", "term": 7, "committed": 50, "voters": VOTERS, **fields}
    return MetadataStanding(member=member, leader=leader, applied=applied, **told)


def figures(broker: int, **fields: Any) -> BrokerFigures:
    told = {
        "version": "0.3.0",
        "feature_level": 1,
        "uptime_s": 100.0,
        "time_us": 0,
        "in_bytes_s": 12e6,
        "out_bytes_s": 31e6,
        "journal_used_bytes": 2 * GIB,
        "journal_limit_bytes": 12 * GIB,
        "loop_lag_s": 0.002,
        "session": 10 + broker,
        "metadata": standing(100 + broker),
        **fields,
    }
    return BrokerFigures(broker=broker, **told)


def assignments(*owners: int, first: int = 1) -> dict[str, Assignment]:
    """Topics numbered from ``first``, each of the broker at its place."""
    return {
        topic_key(TopicId(number)): Assignment(BrokerId(owner), OwnerEpoch(2), Reason.CREATED)
        for number, owner in enumerate(owners, first)
    }


def view(**changes: Any) -> View:
    """b1 answers; b3 was there, and has been away for 720 s."""
    brokers = {broker_name(BrokerId(each)): BrokerRecord(identity=f"i{each}", life=each) for each in (1, 2, 3)}
    absences = Absences()
    absences.note(brokers, {name: session(int(name[1:])) for name in brokers}, 0.0)
    sessions = {"b1": session(1), "b2": session(2)}
    absences.note(brokers, sessions, 1_000.0)
    fields: dict[str, Any] = {
        "me": B1,
        "cluster": ClusterRecord(name="danube", incarnation=0xABC, feature_level=1, next_broker=4),
        "brokers": brokers,
        "sessions": sessions,
        "session_revisions": {"b1": 11, "b2": 12, "b3": 13},
        "assignments": assignments(1, 1, 2, 3, 3),
        "coordinator": B2,
        "absences": absences,
        "now": 1_720.0,
        **changes,
    }
    fields["session_revisions"] = {
        name: revision for name, revision in fields["session_revisions"].items() if name in fields["sessions"]
    }
    return View(**fields)


def whole(**changes: Any) -> View:
    """All three run."""
    return view(sessions={"b1": session(1), "b2": session(2), "b3": session(3)}, **changes)


def told(*brokers: int, **fields: Any) -> dict[BrokerId, Answer]:
    return {BrokerId(each): Answer(figures=figures(each, topics=9, **fields), rtt_s=0.001) for each in brokers}


def topics(found: View, *ids: int, durability: Durability = Durability.DISK) -> dict[TopicId, Any]:
    return {
        TopicId(each): (KnownTopic(f"/default/t{each}", durability), found.assignments[topic_key(TopicId(each))])
        for each in ids
    }


def status(found: View, answers: Mapping[BrokerId, Answer], waiting: Any = ()) -> ClusterStatus:
    return compose_status(found, answers, dict(waiting))


def gone(found: View, name: str) -> dict[str, BrokerRecord]:
    return {**found.brokers, name: BrokerRecord(identity=name, state=BrokerState.GONE)}
