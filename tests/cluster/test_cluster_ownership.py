"""Owners of topics, and the names of rows."""

from __future__ import annotations

import msgspec
import pytest

from danube.cluster.ownership import Away, Elsewhere, Mine, Owners, Unassigned
from danube.cluster.records import (
    Assignment,
    BrokerRecord,
    BrokerState,
    ClusterRecord,
    CoordinatorRecord,
    CreatingRecord,
    Reason,
    SessionRecord,
    broker_name,
    parse_broker,
    parse_topic_id,
    topic_key,
)
from danube.model.errors import InvalidArgumentError
from danube.model.ids import BrokerId, OwnerEpoch, TopicId


def test_a_topic_is_here_elsewhere_away_or_unassigned() -> None:
    assignments = {topic_key(TopicId(n)): Assignment(BrokerId(n), OwnerEpoch(10 + n)) for n in (1, 2, 3, 4)}
    brokers = {"b3": BrokerRecord(identity="3", state=BrokerState.DRAINING)}
    sessions = {"b1": SessionRecord(address="h1:1"), "b2": SessionRecord(address="h2:1")}
    owners = Owners(BrokerId(1), assignments, brokers, sessions)
    assert owners.owner_of(TopicId(1)) == Mine(OwnerEpoch(11))
    assert owners.owner_of(TopicId(2)) == Elsewhere(BrokerId(2), OwnerEpoch(12), "h2:1")
    assert owners.owner_of(TopicId(3)) == Away(BrokerId(3), OwnerEpoch(13), BrokerState.DRAINING)
    assert owners.owner_of(TopicId(4)) == Away(BrokerId(4), OwnerEpoch(14), None)
    assert owners.owner_of(TopicId(5)) == Unassigned()
    assert list(owners.addresses()) == [(1, "h1:1"), (2, "h2:1")]


def test_a_broker_owns_its_topics_also_without_a_session() -> None:
    owners = Owners(BrokerId(1), {topic_key(TopicId(1)): Assignment(BrokerId(1), OwnerEpoch(1))}, {}, {})
    assert owners.owner_of(TopicId(1)) == Mine(OwnerEpoch(1))


def test_answers_follow_the_rows() -> None:
    sessions = {"b2": SessionRecord(address="h2:1")}
    assignments = {topic_key(TopicId(1)): Assignment(BrokerId(2), OwnerEpoch(1))}
    owners = Owners(BrokerId(1), assignments, {}, sessions)
    sessions.clear()
    assert owners.owner_of(TopicId(1)) == Away(BrokerId(2), OwnerEpoch(1), None)
    assignments[topic_key(TopicId(1))] = Assignment(BrokerId(1), OwnerEpoch(2), Reason.FAILOVER)
    assert owners.owner_of(TopicId(1)) == Mine(OwnerEpoch(2))


def test_names_of_brokers_and_rows_are_read_back() -> None:
    assert [parse_broker(broker_name(BrokerId(n))) for n in (1, 10, 999_999_999)] == [1, 10, 999_999_999]
    assert [parse_topic_id(topic_key(TopicId(n))) for n in (1, 2**63 - 1)] == [1, 2**63 - 1]


@pytest.mark.parametrize("name", ["", "b", "1", "b0", "b01", "B1", "b-1", "b1 ", "b1_0", "b²", "b1000000000"])
def test_another_text_is_no_broker(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not the name of a broker"):
        parse_broker(name)


@pytest.mark.parametrize(
    "name", ["", "0", "0" * 15, "0" * 17, "000000000000000G", "00000000000000_1", "+000000000000001"]
)
def test_another_text_is_no_topic_id(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a topic id"):
        parse_topic_id(name)


RECORDS = [
    ClusterRecord(name="danube", incarnation=2**64 - 1, feature_level=1),
    BrokerRecord(identity="x", storages=("default", "hot@b1"), life=3),
    SessionRecord(address="h:1", life=2),
    CoordinatorRecord(broker=BrokerId(1)),
    Assignment(BrokerId(1), OwnerEpoch(2**32), Reason.FOUND),
    CreatingRecord(creator=BrokerId(1), session=7, topic_ids=(TopicId(1), TopicId(2))),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_grow_at_their_end(record: msgspec.Struct) -> None:
    encoded = msgspec.msgpack.encode(record)
    assert msgspec.msgpack.decode(encoded, type=type(record)) == record
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encoded), "a field of a later version"])
    assert msgspec.msgpack.decode(longer, type=type(record)) == record
