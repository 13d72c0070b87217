"""The pure parts of ``zookeeper://``: records, drafts, copies, the clock of leases; and what the plugin refuses."""

from __future__ import annotations

import math
from random import Random

import pytest
from danube_metadata_zookeeper._group import Request as GroupRequest
from danube_metadata_zookeeper._group import form_group, transact
from danube_metadata_zookeeper._leases import GONE, LeaseClock
from danube_metadata_zookeeper._mirror import Draft, Mirror
from danube_metadata_zookeeper._nodes import CheckNode, CreateNode, DeleteNode, SetNode
from danube_metadata_zookeeper._records import (
    FORMAT,
    LEASE_BYTES,
    PIECE_BYTES,
    Entry,
    Head,
    Paths,
    Snapshot,
    decode,
    decode_items,
    encode,
    entry_of,
    event_bytes,
    pieces,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.metadata import (
    Condition,
    Delete,
    EventBatch,
    KeyValue,
    LeaseId,
    MemoryTable,
    Put,
    PutEvent,
    StoreMachine,
    open_store,
)
from danube.model.errors import ConfigurationError, DanubeError, DataLossError, FailedPreconditionError
from danube.model.limits import Limits

EMPTY = Snapshot(FORMAT, 0, 0, 1, (), (), 1, 0)
HEAD = Head(FORMAT, "s", 0, 0)
PATHS = Paths("/d")
LIMITS = Limits(metadata_history_revisions=20, metadata_max_leases=5)
MOST = 1_000_000

keys = st.sampled_from([f"/k/{number}" for number in range(6)] + ["/k", "/ü/ö"])
leases = st.one_of(st.none(), st.integers(1, 6).map(LeaseId))
operations = st.lists(
    st.one_of(st.builds(Put, keys, st.binary(max_size=20), leases), st.builds(Delete, keys)),
    max_size=4,
    unique_by=lambda part: part.key,
)
conditions = st.lists(st.builds(Condition, keys, st.integers(0, 6)), max_size=1)
steps = st.one_of(
    st.tuples(st.just("transact"), conditions, operations),
    st.tuples(st.just("grant"), st.floats(0.5, 100)),
    st.tuples(st.just("revoke"), st.integers(1, 6).map(LeaseId)),
)


def perform(machine: StoreMachine, step) -> object:
    try:
        match step:
            case ("transact", wanted, parts):
                return transact(machine, wanted, parts, MOST)
            case ("grant", ttl_s):
                return machine.grant(ttl_s)
            case (_, lease):
                return machine.revoke(lease)
    except DanubeError as error:
        return type(error), error.message


def contents(table) -> object:
    leases = sorted(table.leases())
    return (
        table.revision,
        table.next_lease,
        table.scan("/"),
        table.scan("/k"),
        leases,
        [table.keys_of(lease) for lease, _ in leases],
        table.lease_count,
    )


@given(st.lists(st.lists(steps, min_size=1, max_size=6), max_size=12))
def test_drafts_that_are_applied_are_as_good_as_direct_changes(groups) -> None:
    """A group on a draft, and its entry on a copy, give what the same steps give on a table."""
    direct = StoreMachine(MemoryTable(), LIMITS)
    mirror = Mirror(EMPTY, [], LIMITS)
    for group in groups:
        draft = StoreMachine(Draft(mirror.table), LIMITS)
        outcomes = [perform(draft, step) for step in group]
        assert outcomes == [perform(direct, step) for step in group]
        assert contents(draft.table) == contents(direct.table)
        effects = draft.take_effects()
        told = direct.take_effects().batches
        if effects.batches or effects.granted or effects.revoked:
            data = encode(entry_of(effects.granted, effects.batches, effects.revoked))
            entry = decode(Entry, data, "/d/log/1")
            assert mirror.apply(mirror.position + 1, entry, len(data)) == told == effects.batches
        assert contents(mirror.table) == contents(direct.table)
        assert mirror.items == len(mirror.table.scan("/"))
        assert mirror.state_bytes == sum(len(item.key) + len(item.value) for item in mirror.table.scan("/"))
        assert mirror.table.revision - mirror.table.compacted <= 20


@given(st.lists(steps, max_size=60), st.data())
def test_a_copy_that_is_read_again_is_the_same(actions, data) -> None:
    """From any snapshot, with the entries that are kept, a new copy has the state, and its history is as long."""
    mirror = Mirror(EMPTY, [], LIMITS)
    log: dict[int, bytes] = {}
    stored, items = EMPTY, []
    for step in actions:
        machine = StoreMachine(Draft(mirror.table), LIMITS)
        perform(machine, step)
        effects = machine.take_effects()
        if effects.batches or effects.granted or effects.revoked:
            encoded = encode(entry_of(effects.granted, effects.batches, effects.revoked))
            log[mirror.position + 1] = encoded
            mirror.apply(mirror.position + 1, decode(Entry, encoded, "e"), len(encoded))
        if data.draw(st.integers(0, 9)) == 0:
            mirror.learn(stored)
            stored, items = mirror.picture()
            items = [item for piece in pieces(items, MOST) for item in decode_items(piece, "p")]
            stored = decode(Snapshot, encode(stored), "s")
            mirror.learn(stored)
        if data.draw(st.integers(0, 5)) == 0:
            trimmed = mirror.trimmed(data.draw(st.one_of(st.none(), st.integers(1, 5))))
            assert stored.first <= trimmed.first <= stored.position + 1
            for position in range(stored.first, trimmed.first):
                del log[position]
            stored = trimmed
            mirror.learn(stored)
    again = Mirror(stored, items, LIMITS)
    for position in sorted(log):
        entry = decode(Entry, log[position], "e")
        if position <= stored.position:
            again.recall(position, entry, len(log[position]))
        else:
            again.apply(position, entry, len(log[position]))
    assert again.position == mirror.position
    assert contents(again.table) == contents(mirror.table)
    least = max(again.table.compacted, mirror.table.compacted)
    assert again.table.replay(least, 1000, MOST) == mirror.table.replay(least, 1000, MOST)
    # What is trimmed at once is an eighth of the bound.
    assert again.table.revision - again.table.compacted >= min(mirror.table.revision, 20 - 20 // 8 - 1)


@given(st.lists(st.builds(Put, keys, st.binary(max_size=2000), leases), max_size=8, unique_by=lambda part: part.key))
def test_an_entry_has_at_most_the_bytes_that_were_expected(parts) -> None:
    machine = StoreMachine(MemoryTable(), Limits())
    for _ in range(7):
        machine.grant(1)
    machine.take_effects()
    machine.table.revision = 2**62
    size = sum(event_bytes(part.key, part.value) for part in parts)
    transact(machine, [], parts, MOST)
    effects = machine.take_effects()
    assert len(encode(entry_of((), effects.batches, ()))) <= size + 32


def test_a_snapshot_has_at_most_the_bytes_of_leases_that_were_expected() -> None:
    many = tuple((LeaseId(2**62 + number), 0.1 + number) for number in range(1000))
    assert len(encode(Snapshot(FORMAT, 0, 0, 1, many, (), 1, 0))) <= 1000 * LEASE_BYTES + 64


@settings(max_examples=30)
@given(st.lists(st.integers(0, 700_000), max_size=12))
def test_pieces_fit_and_lose_nothing(sizes) -> None:
    items = [KeyValue(f"/k/{number}", bytes(size), 1, 1, 1, None) for number, size in enumerate(sizes)]
    found = list(pieces(items, 800_000))
    assert [item for piece in found for item in decode_items(piece, "p")] == items
    for piece in found:
        assert len(piece) <= PIECE_BYTES + 16 or len(decode_items(piece, "p")) == 1
        assert len(piece) <= 800_000


def test_paths() -> None:
    assert Paths("").parents() == []
    assert Paths("/a/b").parents() == ["/a", "/a/b"]
    assert Paths("").revision == "/revision"
    positions = [1, 9, 10, 99, 12345678901234567890]
    assert sorted(map(PATHS.entry, positions)) == [PATHS.entry(position) for position in positions]
    assert Paths.piece_position(Paths.piece_name(77, "ab", 3)) == 77


def test_records_that_are_none() -> None:
    with pytest.raises(DataLossError, match="/d/revision does not hold Danube's metadata"):
        decode(Head, b"\xc1", "/d/revision")
    with pytest.raises(FailedPreconditionError, match="below /d have format 2; this version reads 1"):
        decode(Head, encode(Head(2, "", 0, 0)), "/d/revision")


@pytest.mark.parametrize(
    "entry",
    [
        Entry((), ((2, (PutEvent(KeyValue("/a", b"", 2, 2, 1, None), 0),)),), ()),
        Entry((), ((1, (PutEvent(KeyValue("/a", b"", 1, 1, 1, LeaseId(7)), 0),)),), ()),
        Entry((), ((1, (PutEvent(KeyValue("/a", b"", 1, 1, 1, None), 5),)),), ()),
        Entry((), (), (LeaseId(3),)),
    ],
    ids=["gap", "lease", "previous", "end"],
)
def test_an_entry_that_does_not_follow_is_refused(entry: Entry) -> None:
    with pytest.raises(DataLossError, match="entry 1 of the metadata in ZooKeeper does not follow"):
        Mirror(EMPTY, [], LIMITS).apply(1, entry, 10)


# Groups


def put(key: str, value: bytes = b"", size: int = 100, lease: LeaseId | None = None) -> GroupRequest:
    return GroupRequest(
        lambda machine: transact(machine, [], [Put(key, value, lease)], MOST), size=lambda _machine: size
    )


def formed(requests, most_bytes: int = 1000, mirror: Mirror | None = None, missing=frozenset()):
    return form_group(
        mirror or Mirror(EMPTY, [], LIMITS), HEAD, 17, requests, paths=PATHS, limits=LIMITS, most_bytes=most_bytes,
        missing=missing,
    )  # fmt: skip


def test_a_group_is_one_commit_on_the_condition_of_the_version() -> None:
    read = GroupRequest(lambda machine: machine.get("/a"), is_read=True)
    group = formed([put("/a"), read, put("/b"), GroupRequest(lambda machine: machine.grant(5))])
    head, log, lease = group.operations
    assert isinstance(head, SetNode)
    assert (head.path, head.version) == ("/d/revision", 17)
    assert decode(Head, head.data, "h") == Head(FORMAT, "s", 1, 2)
    assert isinstance(log, CreateNode)
    assert decode(Entry, log.data, "e") == group.entry
    assert lease == CreateNode("/d/leases/1")
    assert [revision for revision, _ in group.entry.changes] == [1, 2]
    assert formed([read]).operations == [CheckNode("/d/revision", 17)]


def test_what_does_not_fit_is_left_and_what_was_given_up_is_not_sent() -> None:
    requests = [put("/a", size=600), put("/b", size=300), put("/c", size=300), put("/d", size=10)]
    requests[1].is_withdrawn = True
    group = formed(requests)
    assert group.taken == [requests[0], requests[2], requests[3]]
    group = formed([put("/z", size=2000), *requests])
    assert len(group.taken) == 1
    assert group.left == requests
    requests[1].is_sent = True  # it may have been applied: its outcome matters
    assert formed(requests).taken == [requests[0], requests[1]]


def test_the_end_of_a_lease_depends_on_its_renewals() -> None:
    mirror = Mirror(EMPTY, [], LIMITS)
    mirror.apply(1, Entry(((LeaseId(1), 5.0), (LeaseId(2), 5.0)), (), ()), 10)
    ends = [
        GroupRequest(lambda machine: machine.revoke(LeaseId(1)), renewals=4),
        GroupRequest(lambda machine: machine.revoke(LeaseId(2))),
        GroupRequest(lambda machine: machine.revoke(LeaseId(3)), renewals=1),
    ]
    group = formed(ends, mirror=mirror)
    assert group.operations[2:] == [DeleteNode("/d/leases/1", 4), DeleteNode("/d/leases/2", -1)]
    assert group.ends == {2: (1, ends[0]), 3: (2, None)}
    assert formed(ends, mirror=mirror, missing=frozenset({LeaseId(1)})).operations[2:] == [DeleteNode("/d/leases/2")]


# Leases


@given(st.lists(st.floats(0.01, 3.0), max_size=30), st.floats(0.1, 1.0), st.integers(0, 1000))
def test_a_lease_ends_after_its_time_and_not_before(pauses, delay_s, seed) -> None:
    """However long the pauses between keep-alives, and reads take."""
    ttl_s, lease = 2.0, LeaseId(1)
    clock, random = LeaseClock(), Random(seed)
    renewals: list[float] = []
    at = 0.0
    for pause in pauses:
        at += pause
        renewals.append(at)
    clock.follow([(lease, ttl_s)], 0.0)
    now = 0.0
    while True:
        look = clock.next_look()
        assert look <= now + ttl_s / 4 + 1e-9
        now = max(now, look)
        assert clock.take(now) == lease
        assert clock.take(now) is None
        sent, read = now, now + random.random() * delay_s
        now = read + random.random() * delay_s
        version = sum(renewal <= read for renewal in renewals)
        if clock.seen(lease, version, sent, now):
            break
    last = max([renewal for renewal in renewals if renewal <= read], default=0.0)
    assert read - last >= ttl_s
    # One look finds it, the next ones come in time, and each may take twice the delay.
    assert sent - last <= ttl_s + ttl_s / 4 + 4 * delay_s + 1e-9


def test_leases_that_come_and_go() -> None:
    clock = LeaseClock()
    assert clock.next_look() == math.inf
    assert clock.take(0) is None
    clock.follow([(LeaseId(1), 4.0), (LeaseId(2), 4.0)], 10)
    assert {clock.take(10), clock.take(10)} == {1, 2}
    assert not clock.seen(LeaseId(1), 0, 10, 10)
    clock.again(LeaseId(2), 10)
    assert clock.next_look() == 11
    clock.follow([(LeaseId(1), 4.0)], 10)
    assert not clock.seen(LeaseId(2), GONE, 10, 10)
    assert clock.take(13.5) == 1
    clock.reset(13.5)
    assert not clock.seen(LeaseId(1), 0, 14.5, 14.5)
    assert clock.take(17.5) == 1
    assert clock.seen(LeaseId(1), 0, 17.5, 17.5)
    assert clock.take(17.6) is None


# The plugin


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("zookeeper://u:p@h/d", {}, "contains user information"),
        ("zookeeper:///d", {}, "names no host; write zookeeper://host:port,host:port/prefix"),
        ("zookeeper://a,,b/d", {}, "names no host"),
        ("zookeeper://h:x/d", {}, "'h:x' is not valid"),
        ("zookeeper://h/a//b", {}, "the prefix of the metadata URL is not valid"),
        ("zookeeper://h/" + "x" * 600, {}, "longer than"),
        ("zookeeper://h?password=p", {}, "'password' .* is a secret"),
        ("zookeeper://h?request_timeout_s=0", {}, "'request_timeout_s' .* is 0.0; it must be from 0.1 to 600.0"),
        ("zookeeper://h?max_packet_bytes=1000", {}, "'max_packet_bytes' .* must be from 524288"),
        ("zookeeper://h", {"password": "p"}, "'password' .* needs the option 'username'"),
        ("zookeeper://h", {"username": "u"}, "'username' .* needs the option 'password'"),
        ("zookeeper://h", {"username": "u:v", "password": "p"}, "'username' .* must not contain ':'"),
        ("zookeeper://h", {"key_file": "k"}, "'key_file' .* needs the option 'cert_file'"),
        ("zookeeper://h", {"ca_file": "/not/there"}, "'ca_file' .* '/not/there', is not a file"),
    ],
)
async def test_what_the_plugin_refuses(url, options, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        async with open_store(url, options=options):
            pass


def test_events_as_watches_tell_them() -> None:
    mirror = Mirror(EMPTY, [], LIMITS)
    event = PutEvent(KeyValue("/a", b"1", 1, 1, 1, None), 0)
    assert mirror.apply(1, Entry((), ((1, (event,)),), ()), 10) == [EventBatch(1, (event,))]
