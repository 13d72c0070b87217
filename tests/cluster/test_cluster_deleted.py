"""What the notes of deleted topics mean."""

from __future__ import annotations

import pytest

from danube.cluster.deleted import burying, doomed, existing
from danube.cluster.records import Assignment, BrokerRecord, BrokerState, DeletedRecord, topic_key
from danube.model.ids import BrokerId, OwnerEpoch, TopicId

T1, T2, T3, T4 = map(TopicId, (1, 2, 3, 4))
B1, B2 = map(BrokerId, (1, 2))


def broker(state: BrokerState = BrokerState.ACTIVE, shared: tuple[str, ...] = ()) -> BrokerRecord:
    return BrokerRecord(identity="x", life=1, state=state, shared=shared)


@pytest.mark.parametrize(
    ("storage", "state", "shared", "found"),
    [
        ("", BrokerState.ACTIVE, (), {T1}),
        ("", BrokerState.DRAINING, (), {T1}),
        ("", BrokerState.GONE, ("s3",), set()),
        ("s3", BrokerState.ACTIVE, (), {T1}),
        ("s3", BrokerState.GONE, ("gcs",), set()),
        ("s3", BrokerState.GONE, ("gcs", "s3"), {T1}),
        ("gcs", BrokerState.GONE, ("gcs",), set()),
    ],
)
def test_an_assignment_is_kept_for_its_owner_and_for_an_heir_of_its_wal(
    storage: str, state: BrokerState, shared: tuple[str, ...], found: set[TopicId]
) -> None:
    brokers = {"b1": broker(state, ("s3",)), "b2": broker(shared=shared)}
    owners = {T1: B1, T3: BrokerId(9)}
    assert burying([DeletedRecord((T1, T2), storage), DeletedRecord((T3,), storage)], owners.get, brokers) == found


def test_a_broker_that_is_gone_is_no_heir() -> None:
    brokers = {"b1": broker(BrokerState.GONE, ("s3",)), "b2": broker(BrokerState.GONE, ("s3",))}
    assert burying([DeletedRecord((T1,), "s3")], {T1: B1}.get, brokers) == set()


def test_what_exists_in_a_wal_is_assigned_to_it_or_unknown_and_not_deleted() -> None:
    assignments = {
        topic_key(T1): Assignment(B1, OwnerEpoch(1)),
        topic_key(T2): Assignment(B1, OwnerEpoch(1), wal="b1-2"),
        topic_key(T3): Assignment(B1, OwnerEpoch(1)),
    }
    every = [T1, T2, T3, T4]
    assert existing(every, "b1", assignments, {T3}, lambda topic_id: True) == [T1, T4]
    assert existing(every, "b1", assignments, {T3, T4}, lambda topic_id: True) == [T1]
    assert existing(every, "b1", assignments, set(), lambda topic_id: topic_id != T4) == [T1, T3]
    assert existing(every, "b1-2", assignments, set(), lambda topic_id: False) == [T2]


def test_a_wal_still_has_topics_that_were_deleted() -> None:
    assert doomed({"/default/a": [T1, T2], "/default/b": [T3]}, {T2, T3, T4}) == {T2: "/default/a", T3: "/default/b"}
