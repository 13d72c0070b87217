"""A seek that the journal lacks: tolerated if a loss is known, an error otherwise."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.broker.directory.recovery import _check_seeks
from danube.broker.topic.recovered import RecoveryVisitor, TopicSnapshot
from danube.dispatch import Cursor, encode_entry
from danube.log.format import EntryType
from danube.log.producers import ProducerTable
from danube.model import Durability, Limits, SubscriptionPolicy, SubscriptionType
from danube.model.errors import DataLossError
from danube.model.records import SubscriptionRecord

SUBSCRIPTIONS = {7: {"s": SubscriptionRecord(70, SubscriptionType.SHARED, 0, 0, SubscriptionPolicy())}}
NAMES = {7: "/default/t"}


def test_a_known_loss_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    _check_seeks({70}, SUBSCRIPTIONS, NAMES, loss_known=True)
    assert "a seek of subscription 's' of topic '/default/t' is lost" in caplog.text


def test_without_a_known_loss_it_is_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match="subscription 's' of topic '/default/t' is missing"):
        _check_seeks({70}, SUBSCRIPTIONS, NAMES, loss_known=False)
    _check_seeks({71}, SUBSCRIPTIONS, NAMES, loss_known=False)
    assert not caplog.text


Logged = tuple[str, bytes]
"""An entry of the journal: a snapshot of the topic, or an entry of its cursor."""


def recovered(log: list[Logged]) -> RecoveryVisitor:
    visitor = RecoveryVisitor(NAMES, SUBSCRIPTIONS, Limits())
    for kind, data in log:
        if kind == "snapshot":
            visitor.snapshot(7, data)
        else:
            visitor.control(EntryType.CURSOR, 7, data, Durability.DISK)
    return visitor


def snapshot_of(cursor: Cursor) -> Logged:
    producers = ProducerTable(Limits(), "/default/t").snapshot()
    return "snapshot", msgspec.msgpack.encode(TopicSnapshot(100, producers, [encode_entry(cursor.snapshot(70))]))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ack"), st.integers(0, 99)),
            st.tuples(st.just("seek"), st.integers(0, 100)),
            st.tuples(st.sampled_from(("take", "write")), st.just(0)),
            st.tuples(st.just("free"), st.integers(0, 30)),
        ),
        max_size=40,
    )
)
def test_a_seek_whose_file_was_freed_is_not_missing(steps: list[tuple[str, int]]) -> None:
    """A snapshot is written a while after it was taken; then any file may be freed with entries that it covers."""
    cursor = Cursor(0)
    log: list[Logged | None] = []
    taken: tuple[Logged, int] | None = None
    covered = 0
    for kind, value in steps:
        match kind:
            case "ack":
                cursor.ack(value, value + 1)
                log.append(("cursor", encode_entry(cursor.delta(70, [value, value + 1]))))
            case "seek":
                cursor.seek(value)
                log.append(("cursor", encode_entry(cursor.reset(70))))
            case "take":
                taken = snapshot_of(cursor), len(log)
            case "write" if taken is not None:
                log.append(taken[0])
                covered, taken = taken[1], None
            case "free":
                log[value : min(value + 5, covered)] = [None] * max(0, min(value + 5, covered) - value)
    visitor = recovered([entry for entry in log if entry is not None])
    assert not visitor.lost_seeks
    assert visitor.cursors[70].snapshot(70) == cursor.snapshot(70)


def test_a_seek_without_a_snapshot_is_missing() -> None:
    cursor = Cursor(0)
    before = snapshot_of(cursor)
    cursor.seek(50)
    cursor.ack(60, 61)
    ack = "cursor", encode_entry(cursor.delta(70, [60, 61]))
    assert recovered([before, ack]).lost_seeks == {70: 1}
    assert recovered([before, ack, snapshot_of(cursor)]).lost_seeks == {}
    covering = snapshot_of(cursor)
    cursor.seek(20)
    assert recovered([ack, ("cursor", encode_entry(cursor.reset(70)))]).lost_seeks == {70: 1}
    # World 20261124569800013: the snapshot came behind the next seek.
    assert recovered([ack, ("cursor", encode_entry(cursor.reset(70))), covering]).lost_seeks == {}
