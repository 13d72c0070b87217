"""The pure parts of the replicated store: what is written and sent, proposals on their way, deadlines, applying."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.metadata import Condition, Delete, Put, TransactionResult
from danube.metadata._contract import LeaseId
from danube.metadata.raft import PeerLinks, SqliteStateTable, digest_of
from danube.metadata.raft.commands import (
    Compare,
    Grant,
    Revoke,
    SetBounds,
    decode_proposal,
    encode_command,
    encode_proposal,
    may_compare,
    transaction,
)
from danube.metadata.raft.forwarding import Inbox, Outbox
from danube.metadata.raft.leases import LeaseClock
from danube.metadata.raft.messages import Forward, KeepAlive, SnapshotPiece, decode_payload, encode_payload
from danube.metadata.raft.records import LOG, STANDING, Standing, encode_entry, encode_standing, recover_contents
from danube.metadata.raft.state import Bounds, ReplicatedState
from danube.model.errors import DataDirectoryError, DataLossError, LimitExceededError, MetadataConflictError
from danube.model.limits import Limits
from danube.raft import Append, Base, Conf, Entry, EntryKind, HardState, Heartbeat, NodeId
from danube.testing.simulated_table import SimulatedTable

ME = NodeId(1)
CONF = Conf((ME,))


def entry(index, *commands, term=1):
    data = encode_proposal(ME, 7, index, [encode_command(command) for command in commands])
    return Entry(index, term, EntryKind.DATA, data)


def make_state(table=None):
    table = table or SimulatedTable(Random(1))
    table.open()
    state = ReplicatedState(table, Limits(), CONF)
    state.load()
    return state


# Commands


def test_commands_survive_their_encoding():
    commands = [
        transaction([Condition("/a", 3)], [Put("/a", b"x", LeaseId(4)), Put("/b", b""), Delete("/c")]),
        Grant(2.5),
        Revoke(LeaseId(9)),
        SetBounds(1, 2, 3),
        Compare(),
    ]
    data = encode_proposal(NodeId(3), 2**63 - 1, 5, [encode_command(each) for each in commands])
    found = decode_proposal(data)
    assert (found.member, found.life, found.number) == (3, 2**63 - 1, 5)
    assert list(found.commands) == commands
    assert may_compare(data)
    assert not may_compare(encode_proposal(NodeId(3), 1, 5, [encode_command(commands[0])]))
    assert found.commands[0].parts() == (
        [Condition("/a", 3)],
        [Put("/a", b"x", LeaseId(4)), Put("/b", b""), Delete("/c")],
    )


def test_messages_survive_their_encoding():
    messages = (
        Heartbeat(NodeId(2), NodeId(1), 5, 4, 1),
        Append(NodeId(2), NodeId(1), 5, 3, 4, (Entry(4, 5, EntryKind.NOOP, b""),), 3),
        Forward(5, 77, 1, (b"abc", b"")),
        KeepAlive(5, 9, (LeaseId(1), LeaseId(2))),
        SnapshotPiece(5, Base(9, 4, CONF), 100, b"d" * 32, 0, b"piece", 1),
    )
    assert decode_payload(encode_payload(NodeId(1), messages)) == (1, messages)


# Applying


def test_applying_gives_each_command_its_outcome():
    state = make_state()
    applied, effects = state.apply(
        [
            Entry(1, 1, EntryKind.NOOP, b""),
            entry(2, Grant(5.0), transaction([], [Put("/a", b"1", LeaseId(1))])),
            entry(3, transaction([Condition("/a", 9)], [Put("/a", b"2")]), transaction([], [Put("/b", b"2")])),
            entry(4, Revoke(LeaseId(1)), Revoke(LeaseId(1))),
        ]
    )
    assert applied[1].outcomes == (1, TransactionResult(1, (0,)))
    assert isinstance(applied[2].outcomes[0], MetadataConflictError)
    assert applied[2].outcomes[1] == TransactionResult(2, (0,))
    assert applied[3].outcomes == (3, None)
    assert [batch.revision for batch in effects.batches] == [1, 2, 3]
    assert (state.mark.index, state.mark.term, state.table.revision) == (4, 1, 3)


def test_bounds_are_part_of_the_state():
    state = make_state()
    state.apply([entry(1, SetBounds(3, 1 << 20, 1), Grant(1.0), Grant(1.0))])
    assert state.mark.bounds == Bounds(3, 1 << 20, 1)
    applied, _ = state.apply([entry(2, Grant(1.0), *(transaction([], [Put("/a", b"")]) for _ in range(9)))])
    assert isinstance(applied[0].outcomes[0], LimitExceededError)
    assert state.table.revision - state.table.compacted <= 3
    state.table.sync()
    again = make_state(state.table.crash(power_loss=True))
    assert again.mark == state.mark
    assert again.machine.limits.metadata_history_revisions == 3


def test_an_entry_of_an_unknown_version_is_not_applied():
    state = make_state()
    with pytest.raises(DataDirectoryError, match=r"entry 2 .* not known"):
        state.apply([entry(1, transaction([], [Put("/a", b"")])), Entry(2, 1, EntryKind.DATA, b"\x94\x01")])
    assert state.mark.index == 0


def _random_command(random):
    kind = random.random()
    if kind < 0.1:
        return Grant(random.choice([0.5, 60.0]))
    if kind < 0.15:
        return Revoke(LeaseId(random.randrange(1, 8)))
    if kind < 0.17:
        return SetBounds(random.choice([5, 50]), 1 << 20, 5)
    keys = random.sample([f"/k/{number}" for number in range(8)], 2)
    conditions = [Condition(keys[0], random.randrange(4))] if random.random() < 0.3 else []
    operations = [
        Delete(key)
        if random.random() < 0.3
        else Put(key, b"v" * random.randrange(40), LeaseId(random.randrange(1, 8)) if random.random() < 0.2 else None)
        for key in keys
    ]
    return transaction(conditions, operations)


@pytest.mark.parametrize("seed", range(5))
def test_tables_of_both_kinds_agree_at_every_entry(seed, tmp_path):
    """However entries are grouped, and whichever transactions a crash undoes."""
    random = Random(seed)
    entries = [
        entry(index, *(_random_command(random) for _ in range(random.randrange(1, 4)))) for index in range(1, 60)
    ]
    one, other = make_state(), make_state(SqliteStateTable(tmp_path))
    digests = {}
    outcomes = {}
    for each in entries:
        applied, _ = one.apply([each])
        outcomes[each.index] = [str(outcome) for outcome in applied[0].outcomes]
        digests[each.index] = digest_of(one.table)
    done = 0
    while done < len(entries):
        count = random.randrange(1, 9)
        applied, _ = other.apply(entries[done : done + count])
        done = other.mark.index
        assert digest_of(other.table) == digests[done]
        assert [[str(outcome) for outcome in each.outcomes] for each in applied] == [
            outcomes[each.index] for each in applied
        ]
        if random.random() < 0.2:
            other.table.close()
            other = make_state(SqliteStateTable(tmp_path))
            assert other.mark.index == done
    other.table.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_copy_is_the_table(kind, tmp_path):
    tables = {
        "memory": lambda name: SimulatedTable(Random(1)),
        "sqlite": lambda name: SqliteStateTable(tmp_path / name),
    }
    source = make_state(tables[kind]("source"))
    random = Random(3)
    source.apply([entry(index, _random_command(random)) for index in range(1, 80)])
    size, digest = source.table.export()
    source.apply([entry(80, transaction([], [Put("/later", b"")]))])
    target = make_state(tables[kind]("target"))
    target.apply([entry(1, transaction([], [Put("/old", b"")]))])
    for attempt in range(2):
        for position in range(0, size, 1000):
            piece = source.table.read_copy(position, 1000)
            if attempt == 0 and position == 1000:
                piece = bytes(byte ^ 1 for byte in piece)
            target.table.receive(position, piece)
        assert target.table.check_received(size, digest) == bool(attempt)
    target.table.install()
    target.load()
    assert target.mark.index == 79
    target.apply([entry(80, transaction([], [Put("/later", b"")]))])
    assert digest_of(target.table) == digest_of(source.table)
    source.table.close()
    target.table.close()
    if kind == "sqlite":
        again = make_state(SqliteStateTable(tmp_path / "target"))
        assert again.mark.index == 80
        again.table.close()


# What is in the journal


def standing(generation=1, base=0, last=0, term=1, installing=0):
    return Standing(generation, ME, HardState(term, ME, base), Base(base, min(base, 1), CONF), last, installing)


def journal(*items):
    return [
        (STANDING, b"".join(encode_standing(item)))
        if isinstance(item, Standing)
        else (LOG, b"".join(encode_entry(Entry(item[0], item[1], EntryKind.DATA, b"%d.%d" % item))))
        for item in items
    ]


def recovered(*items):
    found = recover_contents(journal(*items))
    return None if found is None else [(each.index, each.term) for each in found.entries]


def test_the_log_is_read_as_it_was_written():
    assert recovered() is None
    assert recovered(standing()) == []
    assert recovered(standing(), (1, 1), (2, 1), (3, 2)) == [(1, 1), (2, 1), (3, 2)]
    assert recover_contents(journal(standing(1), (1, 1), standing(2, term=5))).standing.hard.term == 5


def test_replaced_entries_are_void():
    assert recovered(standing(), (1, 1), (2, 1), (3, 1), (2, 2)) == [(1, 1), (2, 2)]
    # Even if what replaced them was released together with its file.
    assert recovered(standing(), (1, 1), (2, 1), (3, 1), standing(2, base=1, last=1)) == []


def test_the_log_begins_where_the_last_standing_says():
    assert recovered(standing(), (1, 1), (2, 1), standing(2, base=1, last=2), (3, 1)) == [(2, 1), (3, 1)]
    # An older file may be gone, or one between two others.
    assert recovered((5, 1), (6, 1), standing(9, base=5, last=6)) == [(6, 1)]
    assert recovered((2, 1), (3, 1), (7, 1), standing(9, base=6, last=7)) == [(7, 1)]
    # An installed copy replaces everything.
    assert recovered(standing(), (1, 1), (2, 1), standing(2, base=9, last=9), (10, 3)) == [(10, 3)]


@pytest.mark.parametrize(
    "items",
    [
        [(1, 1)],
        [standing(base=3, last=3), (5, 1)],
        [standing(), (1, 1), (3, 1)],
        [standing(), (1, 1), standing(2, last=2)],
        [standing(base=3, last=4)],
    ],
)
def test_a_log_with_a_gap_is_refused(items):
    with pytest.raises(DataLossError):
        recovered(*items)


def test_foreign_bytes_are_refused():
    unknown_kind = bytes(7) + b"\1\x63" + bytes(30)
    for payloads in ([(LOG, b"short")], [(STANDING, b"12345678\xc1")], [(5, b"")], [(LOG, unknown_kind)]):
        with pytest.raises(DataLossError):
            recover_contents(payloads)


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=40))
def test_a_log_finds_the_entries_it_has_written(steps):
    """A model writes entries (replacing what follows them) and cuts; the recovery finds the model's log."""
    log: list[tuple[int, int]] = []
    base, generation, term = 0, 1, 1
    written = [standing(1)]
    for position, cuts in steps:
        last = base + len(log)
        if cuts:
            new_base = min(base + position, last)
            log = log[new_base - base :]
            base = new_base
            generation += 1
            written.append(standing(generation, base=base, last=last))
        else:
            first = min(base + position, last + 1)
            if first <= last:
                term += 1
                generation += 1
                written.append(standing(generation, base=base, last=first - 1))
                log = log[: first - base - 1]
            written.append((first, term))
            log.append((first, term))
    assert recovered(*written) == log


# Proposals on their way


def test_a_leader_takes_each_proposal_once_and_in_order():
    inbox = Inbox()
    inbox.enter(3)
    assert inbox.news(2, 7, 1, (b"a", b"b")) == (b"a", b"b")
    assert inbox.took(2, 7, 2) == 2
    assert inbox.news(2, 7, 1, (b"a", b"b", b"c")) == (b"c",)  # sent again
    assert inbox.news(2, 7, 4, (b"d",)) == ()  # the third one is missing
    assert inbox.news(2, 8, 1, (b"x",)) == (b"x",)  # another process of that member
    inbox.enter(4)
    assert inbox.news(2, 7, 1, (b"e",)) == (b"e",)


def test_a_proposal_is_void_only_when_a_later_term_is_applied():
    outbox: Outbox[str] = Outbox()
    outbox.enter(3)
    outbox.add(b"a", "a")
    outbox.add(b"b", "b")
    assert outbox.to_send() == (1, [b"a", b"b"])
    outbox.confirmed(3, 1)
    assert outbox.to_send() == (2, [b"b"])
    assert outbox.void(3) == []
    outbox.enter(4)
    assert outbox.to_send() == (1, [])
    assert outbox.void(3) == []
    assert outbox.appeared("b")  # the new leader had it
    assert outbox.void(4) == ["a"]
    assert not outbox.appeared("a")
    assert len(outbox) == 0


# Deadlines


def test_a_new_leader_gives_leases_their_full_time():
    clock = LeaseClock()
    clock.granted(LeaseId(1), 3.0, 0.0)
    assert clock.is_empty  # it does not lead
    clock.lead(5, {LeaseId(1): 3.0}, 100.0)
    assert clock.next_look() == 103.0
    assert clock.due(102.9) == []
    assert clock.due(103.0) == [1]
    clock.follow()
    assert clock.due(1e9) == []


def test_a_new_leader_takes_the_silence_before_its_election_off_the_leases():
    clock = LeaseClock()
    clock.lead(5, {LeaseId(1): 3.0, LeaseId(2): 60.0}, 100.0, silence_s=1.25)
    assert clock.due(101.7) == []
    assert clock.due(101.75) == [1]
    assert clock.due(158.7) == [1]  # again: its end was not proposed
    assert 2 in clock.due(158.75)
    assert clock.keep_alive(LeaseId(1), 158.8)  # a renewed one gets all of its time again
    assert clock.due(161.7) == [2]
    assert 1 in clock.due(161.8)


def test_half_of_its_time_is_left_to_a_lease_after_any_silence():
    clock = LeaseClock()
    clock.lead(5, {LeaseId(1): 3.0}, 100.0, silence_s=9.0)
    assert clock.due(101.4) == []
    assert clock.due(101.5) == [1]


def test_a_lease_is_renewed_until_its_end_is_proposed():
    clock = LeaseClock()
    clock.lead(5, {LeaseId(1): 3.0}, 0.0)
    assert clock.due(3.0) == [1]
    assert clock.keep_alive(LeaseId(1), 3.1)  # while the leadership is being confirmed
    assert not clock.end(LeaseId(1), 3.2)
    assert clock.due(6.1) == [1]
    assert clock.end(LeaseId(1), 6.2)
    assert not clock.end(LeaseId(1), 6.3)
    assert not clock.keep_alive(LeaseId(1), 6.3)
    assert clock.due(7.0) == []
    clock.ended(LeaseId(1))
    assert clock.is_empty


def test_a_gap_of_the_loop_extends_all_leases():
    clock = LeaseClock()
    clock.lead(5, {LeaseId(1): 3.0, LeaseId(2): 9.0}, 0.0)
    clock.postpone(20.0)
    assert clock.due(22.9) == []
    assert clock.due(23.0) == [1]


# Links between brokers


class _Peers:
    def __init__(self):
        self.sent = []
        self.sinks = {}

    def send(self, to, channel, payload):
        self.sent.append((to, channel, payload))
        return True

    def divert(self, channel, sink):
        self.sinks[channel] = sink

    def on_lost(self, listener):
        self.lost = listener


class _Member:
    def __init__(self):
        self.heard = []

    def deliver(self, payload):
        self.heard.append(payload)

    def refused(self, node):
        self.heard.append(node)


def test_members_speak_over_the_links_between_brokers():
    peers, member = _Peers(), _Member()
    links = PeerLinks(peers, {2: "b:6650"}.get)
    links.send(NodeId(2), b"heartbeat")
    links.send(NodeId(2), b"piece", bulk=True)
    links.send(NodeId(3), b"to nowhere")
    assert peers.sent == [("b:6650", "raft", b"heartbeat"), ("b:6650", "raft-copy", b"piece")]
    peers.sinks["raft"](None, b"too early")
    links.connect(member)
    peers.sinks["raft"](None, b"one")
    peers.sinks["raft-copy"](None, b"two")
    peers.lost(SimpleNamespace(peer=SimpleNamespace(member=2)))
    peers.lost(SimpleNamespace(peer=SimpleNamespace(member=None)))
    assert member.heard == [b"one", b"two", 2]
