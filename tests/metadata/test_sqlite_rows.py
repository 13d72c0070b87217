"""Rows of the embedded store's file: what is written is read, and what cannot be right is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.metadata import KeyValue, PutEvent
from danube.metadata._contract import LeaseId
from danube.metadata._sqlite_rows import APPLICATION_ID, FORMAT, TABLES, Lease, RowCodec, State
from danube.model.errors import DataDirectoryError, DataLossError

CODEC = RowCodec("/data/metadata.db")
ITEM = KeyValue("/a", b"value", 3, 7, 2, LeaseId(4))


def test_rows_are_read_as_they_were_written():
    state = State(9, 4, 3, 1, 1, b"mark")
    assert CODEC.state([CODEC.seal(state)]) == state
    assert CODEC.item("/a", CODEC.seal(ITEM)) == ITEM
    CODEC.check_item("/a", LeaseId(4), CODEC.seal(ITEM))
    assert CODEC.lease(4, CODEC.seal(Lease(LeaseId(4), 2.5))) == Lease(LeaseId(4), 2.5)
    events = (PutEvent(ITEM, 0),)
    assert CODEC.events(7, CODEC.seal(events)) == events


@given(st.integers(0, len(CODEC.seal(ITEM)) * 8 - 1))
def test_every_flipped_bit_of_a_row_is_found(bit):
    body = bytearray(CODEC.seal(ITEM))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DataLossError, match=r"^/data/metadata.db is damaged: key '/a' does not match its checksum"):
        CODEC.item("/a", bytes(body))


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda: CODEC.item("/b", CODEC.seal(ITEM)), "row of key '/b' holds '/a'"),
        (lambda: CODEC.check_item("/a", None, CODEC.seal(ITEM)), "names lease None instead of 4"),
        (lambda: CODEC.lease(5, CODEC.seal(Lease(LeaseId(4), 2.5))), "row of lease 5 holds 4"),
        (lambda: CODEC.events(7, CODEC.seal([1])), "history of revision 7 does not decode"),
        (lambda: CODEC.events(7, b""), "history of revision 7 does not match"),
        (lambda: CODEC.state([]), "0 states instead of one"),
        (lambda: CODEC.check_counts(State(items=2), 1, 0), "should have 2 keys and 0 leases, and has 1 and 0"),
        (lambda: CODEC.check_history(State(9, 4), 4, 5, 8), "revisions 5 to 9, and has 4 from 5 to 8"),
        (lambda: CODEC.check_history(State(9, 4), 5, 4, 8), "has 5 from 4 to 8"),
        (lambda: CODEC.check_format(APPLICATION_ID, 7000, TABLES), "application id 0x44414e55 and version 7000"),
        (lambda: CODEC.check_format(APPLICATION_ID, FORMAT, TABLES[:-1]), "schema is not the one"),
        (lambda: CODEC.check_format(0, FORMAT, TABLES), "application id 0x0"),
    ],
)
def test_what_contradicts_itself_is_damaged(read, what):
    with pytest.raises(DataLossError, match=what):
        read()


def test_files_of_others_and_of_other_versions_are_left_alone():
    assert not CODEC.check_format(0, 0, ())
    assert CODEC.check_format(APPLICATION_ID, FORMAT, TABLES)
    CODEC.check_history(State(9, 9), 0, None, None)
    for application, version, found, what in (
        (5, 0, ("CREATE TABLE x (y)",), "not one of Danube's"),
        (APPLICATION_ID, FORMAT + 1, TABLES, "start the newer Danube"),
        (APPLICATION_ID, FORMAT - 1, TABLES, "start the older Danube"),
    ):
        with pytest.raises(DataDirectoryError, match=what):
            CODEC.check_format(application, version, found)
