"""The pure parts of a member: the books of its calls, its clock, its payloads, its copies, and how they play together.

Everything here is values: no event loop, no disk, no clock.
"""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.metadata import TransactionResult
from danube.metadata._contract import LeaseId
from danube.metadata._machine import Effects
from danube.metadata.raft.calls import Call, Change, Read, Renewal, Waiting
from danube.metadata.raft.commands import Grant, Revoke, decode_proposal, encode_command
from danube.metadata.raft.comparing import Comparison, Finding, Verdict
from danube.metadata.raft.confirmations import Confirmations, EndingLeases, KeptAlive
from danube.metadata.raft.cutting import cut_index, is_cut_due
from danube.metadata.raft.leases import Leases
from danube.metadata.raft.messages import (
    Forward,
    ForwardReply,
    KeepAlive,
    KeepAliveReply,
    SnapshotReply,
    decode_payload,
    encode_payload,
)
from danube.metadata.raft.options import NodeOptions
from danube.metadata.raft.pace import Pace
from danube.metadata.raft.posts import PAYLOAD_BYTES, Posts
from danube.metadata.raft.proposals import Proposals
from danube.metadata.raft.records import Contents, Standing
from danube.metadata.raft.renewals import Renewals
from danube.metadata.raft.replica import Replica
from danube.metadata.raft.start import Repair, first_base, start_of
from danube.metadata.raft.state import FIRST_BOUNDS, Applied, Mark
from danube.metadata.raft.transfer import Copy, Incoming, Outgoing, Step
from danube.model.errors import (
    ClosedError,
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    UnavailableError,
)
from danube.raft import Append, Base, Conf, Entry, EntryKind, HardState, NodeId, Raft, Role
from danube.raft.messages import AppendReply, PreVoteReply, VoteReply

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)
ALONE = Conf((ME,))
THREE = Conf((ME, OTHER, THIRD))
OPTIONS = NodeOptions(proposals=2, proposal_bytes=10, resend_s=0.5, call_s=10.0)


def change(data=b"abcd", deadline=10.0):
    return Change(data, deadline)


def entries(first, end, term=1, size=0):
    return [Entry(index, term, EntryKind.NOOP, bytes(size)) for index in range(first, end)]


# Calls


def test_the_first_answer_counts_and_wakes_the_caller_once():
    woken = []
    call = Call(1.0)
    call.on_answer = lambda: woken.append(call.result)
    call.answer(7)
    call.fail(ClosedError("later"))
    call.answer(8)
    assert (call.result, call.error, woken) == (7, None, [7])


def test_calls_are_overdue_once_and_failed_with_errors_of_their_own():
    waiting = Waiting()
    calls = [Call(deadline) for deadline in (1.0, 2.0, 3.0)]
    for call in calls:
        waiting.add(call)
    calls[0].answer(None)
    assert waiting.overdue(0.5) == []
    assert waiting.overdue(2.0) == [calls[1]]
    assert waiting.overdue(2.0) == []
    other = Call(4.0)
    waiting.add(other)
    waiting.fail(ClosedError("the end"))
    assert str(calls[2].error) == str(other.error) == "the end"
    assert calls[2].error is not other.error


# Proposals


def commands_in(forward):
    return [len(decode_proposal(data).commands) for data in forward.proposals]


def encoded(number):
    return b"\x92\x02" + bytes([number])  # Revoke: 3 bytes


def test_commands_that_wait_share_a_proposal_up_to_its_size():
    book = Proposals(ME, 7, OPTIONS)
    book.enter(3)
    calls = [change(encoded(number)) for number in range(9)]
    for call in calls:
        book.add(call)
    calls[1].is_withdrawn = True
    book.form()
    message = book.to_send(3, to_self=False, now=0.0)
    assert commands_in(message) == [3, 3]  # two on their way, the rest waits
    assert not book.is_queued(calls[6])
    assert book.is_queued(calls[7])
    assert book.to_send(3, to_self=False, now=0.1) is None


def test_a_proposal_is_sent_again_until_it_is_confirmed():
    book = Proposals(ME, 7, OPTIONS)
    book.enter(3)
    book.add(change(encoded(1)))
    book.form()
    first = book.to_send(3, to_self=False, now=0.0)
    book.resend(0.4)
    assert book.to_send(3, to_self=False, now=0.4) is None
    book.resend(0.5)
    assert book.to_send(3, to_self=False, now=0.5) == first
    book.confirmed(ForwardReply(3, 8, 1))  # of another process
    book.resend(1.0)
    assert book.to_send(3, to_self=False, now=1.0) == first
    book.confirmed(ForwardReply(3, 7, 1))
    book.resend(2.0)
    assert book.to_send(3, to_self=False, now=2.0) is None


def test_void_proposals_go_first_and_in_their_order():
    book = Proposals(ME, 7, OPTIONS)
    book.enter(3)
    calls = [change(encoded(number)) for number in range(7)]
    for call in calls:
        book.add(call)
    book.form()
    book.enter(4)
    book.reached(3)
    assert not book.is_queued(calls[0])  # they may still appear
    book.reached(4)
    assert [book.is_queued(call) for call in calls] == [True] * 7
    calls[0].is_withdrawn = True
    book.form()
    message = book.to_send(4, to_self=True, now=0.0)
    found = [command for data in message.proposals for command in decode_proposal(data).commands]
    assert found == [Revoke(LeaseId(number)) for number in range(1, 7)]


def test_only_own_proposals_have_callers_here():
    book = Proposals(ME, 7, OPTIONS)
    book.enter(3)
    call = change(encoded(1))
    book.add(call)
    book.form()
    (data,) = book.to_send(3, to_self=True, now=0.0).proposals
    proposal = decode_proposal(data)
    book.applied(type(proposal)(OTHER, 7, 1, proposal.commands), (5,))
    book.applied(type(proposal)(ME, 8, 1, proposal.commands), (5,))
    assert not call.is_answered
    book.applied(proposal, (5,))
    book.applied(proposal, (6,))
    assert call.result == 5


# Confirmations and keep-alives


def test_reads_wait_for_an_answer_and_then_for_the_table():
    book = Confirmations()
    read, gone = Read(len, 10.0), Read(len, 10.0)
    gone.is_withdrawn = True
    book.add(read)
    book.add(gone)
    assert book.take_queue() == [read]
    token = book.ask([read], 0.0)
    assert book.confirm(token, 5)
    assert not book.confirm(token, 5)
    here = Read(len, 10.0)
    book.add_confirmed(here)
    assert book.due(4) == [[here]]
    assert book.due(5) == [[read]]
    assert book.due(5) == []


def test_a_question_without_an_answer_is_asked_again_for_reads_only():
    book = Confirmations()
    read = Read(len, 10.0)
    kept = KeptAlive(OTHER, 1, (), (), 3)
    old = book.ask([read], 0.0)
    book.ask(kept, 0.0)
    book.ask_again(before=-1.0)
    assert book.take_queue() == []
    book.ask_again(before=0.0)
    assert book.take_queue() == [read]
    assert not book.confirm(old, 9)  # too late
    book.lost(book.ask([read], 1.0))
    assert book.take_queue() == [read]
    token = book.ask(kept, 2.0)
    assert book.confirm(token, 1)
    assert book.due(2) == []  # what the log held at its receipt comes first
    assert book.due(3) == [kept]


def test_keep_alives_share_a_message_and_learn_what_has_ended():
    book = Renewals()
    calls = [Renewal(LeaseId(number), 10.0) for number in (1, 2, 1)]
    for call in calls:
        book.add(call)
    first = book.to_send(3, 0.0)
    assert first.leases == (1, 2)
    book.send_again(before=0.0)
    again = book.to_send(3, 0.5)
    book.answered(KeepAliveReply(3, first.token, ()))
    assert not calls[0].is_answered
    book.answered(KeepAliveReply(3, again.token, (LeaseId(2),)))
    assert [call.error is None for call in calls] == [True, False, True]
    assert isinstance(calls[1].error, NotFoundError)
    assert book.to_send(3, 1.0) is None


def test_a_leader_answers_for_leases_only_what_the_log_has_decided():
    leases = Leases([(LeaseId(1), 3.0), (LeaseId(2), 3.0)])
    assert not leases.need_time
    leases.lead(4, 0.0)
    due = leases.due(3.0)
    assert due == EndingLeases((LeaseId(1), LeaseId(2)))
    kept = leases.renew(OTHER, KeepAlive(4, 9, (LeaseId(1), LeaseId(7))), 20, 3.1)
    assert (kept.doubtful, kept.index) == ((LeaseId(7),), 20)
    assert leases.end(due, 3.2) == [2]
    assert leases.renewed(kept, 3.2) == (LeaseId(7),)
    doubtful = leases.renew(OTHER, KeepAlive(4, 10, (LeaseId(2),)), 21, 3.3)
    assert leases.renewed(doubtful, 3.3) is None
    leases.changed(Effects([], [], [LeaseId(2)]), 3.4)
    assert leases.renewed(doubtful, 3.4) == (LeaseId(2),)
    leases.follow()
    assert (leases.term, leases.next_look) == (0, math.inf)


# The clock


@given(st.lists(st.floats(0.001, 30.0), max_size=30))
def test_however_time_passes_it_passes_in_single_ticks(steps):
    pace = Pace(OPTIONS)
    now, ticks = 100.0, 0
    pace.begin(now, alone=False)
    for step in steps:
        due = pace.next_look
        now += step
        passed = pace.look(now, alone=False, idle=False)
        assert passed.ticks == (now >= due)
        assert passed.gap_s == pytest.approx(step if now - due > OPTIONS.gap_s else 0.0)
        assert now < pace.next_look <= now + OPTIONS.tick_s + 1e-9
        ticks += passed.ticks
    assert ticks * OPTIONS.tick_s <= now - 100.0 + 1e-6


def test_an_idle_member_has_no_ticks_and_a_campaign_comes_once():
    pace = Pace(OPTIONS)
    pace.begin(0.0, alone=True)
    assert not pace.look(50.0, alone=True, idle=True).ticks
    assert pace.next_look == 50.0 + OPTIONS.lone_tick_s
    pace.campaign_at(50.1)
    assert pace.next_look == 50.1
    assert pace.look(50.1, alone=True, idle=False).campaigns
    assert not pace.look(50.2, alone=True, idle=False).campaigns


# Payloads


@given(st.lists(st.tuples(st.sampled_from([OTHER, THIRD]), st.integers(0, PAYLOAD_BYTES)), max_size=8))
def test_messages_keep_their_order_and_payloads_their_size(sizes):
    posts = Posts(ME)
    sent = {OTHER: [], THIRD: []}
    for number, (to, size) in enumerate(sizes):
        message = Append(to, ME, number, 0, 0, (Entry(1, 1, EntryKind.DATA, bytes(size)),), 0)
        sent[to].append(message)
        posts.add(to, message)
    got = {OTHER: [], THIRD: []}
    for to, payload in posts.take():
        sender, messages = decode_payload(payload)
        assert sender == ME
        assert sum(message.entries[0].size for message in messages[:-1]) < PAYLOAD_BYTES
        got[to] += messages
    assert got == sent
    assert posts.take() == ()


# What is forgotten


def led(conf=THREE, count=100, applied=100, size=0, matches=None):
    """Return the core of a leader with entries 1 to ``count``."""
    raft = Raft(ME, Base(0, 0, conf), entries=entries(1, count + 1, size=size), applied=applied, chance=lambda n: 0)
    raft._lead()
    for node, match in (matches or {}).items():
        raft._members[node].match = match
    return raft


def test_the_log_is_cut_when_enough_was_written():
    options = NodeOptions(cut_entries=10, cut_bytes=100)
    assert not is_cut_due(options, entries=9, size=99)
    assert is_cut_due(options, entries=10, size=0)
    assert is_cut_due(options, entries=0, size=100)


def test_the_log_is_kept_for_slow_members_up_to_a_bound():
    options = NodeOptions(kept_entries=10, most_kept_entries=50)
    assert cut_index(led(matches={OTHER: 100, THIRD: 95}), options, 100, []) == 90
    assert cut_index(led(matches={OTHER: 100, THIRD: 70}), options, 100, []) == 70
    assert cut_index(led(matches={OTHER: 100, THIRD: 20}), options, 100, []) == 50
    assert cut_index(led(matches={OTHER: 100, THIRD: 95}), options, 100, [60]) == 60
    assert cut_index(led(ALONE), options, 100, []) == 100
    big = led(size=1000, matches={OTHER: 100, THIRD: 20})
    assert cut_index(big, options._replace(most_kept_bytes=20 * 1032), 100, []) == 80
    follower = Raft(ME, Base(90, 1, THREE), entries=entries(91, 101), applied=90, chance=lambda n: 0)
    assert cut_index(follower, options, 95, []) == 90
    assert cut_index(follower, options, 80, []) == 90  # a copy is about to replace the table


# The start


def contents(base=0, upto=0, installing=0, member=ME):
    standing = Standing(1, member, HardState(1, None, base), Base(base, min(base, 1), THREE), upto, installing)
    return Contents(standing, tuple(entries(base + 1, upto + 1)))


def mark(index, term=1):
    return Mark(index, term if index else 0, THREE, FIRST_BOUNDS)


def test_a_member_begins_with_what_it_has():
    assert first_base(ME, None, THREE) == Base(0, 0, THREE)
    with pytest.raises(FailedPreconditionError, match="no log"):
        first_base(ME, None, None)
    with pytest.raises(FailedPreconditionError, match="belongs to member 2"):
        first_base(ME, contents(member=OTHER), THREE)
    new = start_of(None, Base(0, 0, THREE), mark(0))
    assert (new.hard, new.repair) == (None, None)
    found = contents(4, 9)
    start = start_of(found, found.standing.base, mark(7))
    assert (start.base.index, len(start.entries), start.repair) == (4, 5, None)


@pytest.mark.parametrize(
    ("found", "index", "term"), [(contents(4, 9), 3, 1), (contents(4, 9), 10, 1), (contents(4, 9), 7, 2)]
)
def test_a_table_of_another_log_is_refused(found, index, term):
    with pytest.raises(DataLossError, match="does not fit"):
        start_of(found, found.standing.base, mark(index, term))


def test_an_interrupted_installation_is_finished_or_undone():
    found = contents(4, 9, installing=30)
    done = start_of(found, found.standing.base, mark(30))
    assert (done.base, list(done.entries), done.repair) == (mark(30).base, [], Repair(mark(30).base))
    undone = start_of(found, found.standing.base, mark(7))
    assert (undone.base.index, len(undone.entries), undone.repair) == (4, 5, Repair(None))


# Copies


COPY = Copy(Base(9, 1, THREE), 100, b"d")


def test_a_piece_is_repeated_until_it_arrives_or_the_member_is_given_up():
    outgoing = Outgoing()
    assert outgoing.claim(OTHER)
    assert not outgoing.claim(OTHER)
    outgoing.copy = COPY
    sending = outgoing.begin(OTHER, COPY)
    outgoing.arrived(OTHER, SnapshotReply(1, 9, b"d", 40))
    assert sending.step(0) is Step.NEXT
    outgoing.arrived(OTHER, SnapshotReply(1, 9, b"other", 90))
    outgoing.arrived(THIRD, SnapshotReply(1, 9, b"d", 90))
    assert [sending.step(40) for _ in range(11)] == [Step.AGAIN] * 10 + [Step.GIVE_UP]
    outgoing.arrived(OTHER, SnapshotReply(1, 9, b"d", 1000))
    assert sending.is_done
    assert list(outgoing.indexes) == [9]
    outgoing.end(OTHER)
    assert outgoing.claim(OTHER)


def test_a_copy_is_shared_while_it_is_sent_and_the_log_continues_it():
    outgoing = Outgoing()
    outgoing.copy = COPY
    assert outgoing.usable(0) is None  # nothing is sent: a new one is better
    outgoing.copy = COPY
    outgoing.begin(OTHER, COPY)
    assert outgoing.usable(9) is COPY
    assert outgoing.is_present(COPY)
    assert outgoing.usable(10) is None
    assert not outgoing.is_present(COPY)


def test_damaged_pieces_and_pieces_of_other_copies_do_not_mix():
    outgoing, incoming = Outgoing(), Incoming()
    sending = outgoing.begin(OTHER, COPY)
    piece = sending.piece(1, 0, b"x" * 60)
    receiving = incoming.of(piece)
    assert receiving.expects(0)
    receiving.took(60)
    assert incoming.of(sending.piece(1, 60, b"y" * 40)) is receiving
    assert not receiving.expects(0)
    other = outgoing.begin(OTHER, COPY._replace(digest=b"e")).piece(1, 0, b"z")
    assert incoming.of(other).position == 0
    damaged = type(piece)(1, COPY.base, 100, b"d", 0, b"x" * 60, piece.crc ^ 1)
    assert incoming.of(damaged) is None


# Comparing tables


def test_what_a_majority_has_is_right_and_each_other_member_is_found_once():
    comparison = Comparison(600.0)
    assert not comparison.is_due(1e9)
    comparison.lead(100.0)
    assert not comparison.is_due(699.0)
    assert comparison.is_due(700.0)
    assert not comparison.is_due(1299.0)
    conf = Conf((ME, OTHER, THIRD), learners=(NodeId(4),))
    assert comparison.take(OTHER, 9, 1, conf) == []
    assert comparison.take(ME, 9, 2, conf) == []
    assert comparison.take(NodeId(9), 9, 2, conf) == []  # no member
    assert comparison.take(NodeId(4), 9, 3, conf) == []
    wrong = [Finding(Verdict.DIFFERS, OTHER), Finding(Verdict.DIFFERS, NodeId(4))]
    assert comparison.take(THIRD, 9, 2, conf) == wrong
    assert comparison.take(OTHER, 9, 1, conf) == []
    assert comparison.take(OTHER, 20, 7, conf) == []
    assert comparison.take(ME, 9, 1, conf) == []  # too late
    assert comparison.take(ME, 20, 7, conf) == []


def test_without_a_majority_nobody_is_right():
    comparison = Comparison(600.0)
    joint = Conf((ME, OTHER), outgoing=(ME, THIRD))
    assert comparison.take(ME, 9, 1, joint) == []
    assert comparison.take(OTHER, 9, 1, joint) == []
    assert comparison.take(THIRD, 9, 2, joint) == [Finding(Verdict.NO_MAJORITY, THIRD)]
    assert comparison.take(THIRD, 9, 2, joint) == []


# All of it


class _World:
    """Replicas without disks and tables: what they write is durable at once, every command returns its index."""

    def __init__(self, conf=THREE, options=NodeOptions()):  # noqa: B008 - immutable
        self.now = 0.0
        self.random = Random(5)
        self.conf = conf
        self.replicas = {}
        self.installing = {}
        self.lost = set()
        for member in conf.voters:
            raft = Raft(member, Base(0, 0, conf), chance=self.random.randrange)
            replica = Replica(
                raft, life=member, leases=(), bounds=FIRST_BOUNDS, options=options, chance=self.random.random
            )
            replica.begin(0.0)
            self.replicas[member] = replica
        self.boxes = {member: [] for member in conf.voters}

    def run(self, seconds, step_s=0.05):
        end = self.now + seconds
        while self.now < end:
            self.now += step_s
            for _ in range(6):
                for member in self.replicas:
                    self.turn(member)

    def turn(self, member):
        replica = self.replicas[member]
        payloads, self.boxes[member] = self.boxes[member], []
        replica.begin_turn(self.now, payloads)
        while (work := replica.next_work()) is not None:
            if work.copy is not None:
                replica.installing()
                self.installing[member] = work.copy.index
            if work.ready is not None:
                assert member not in self.installing
                replica.writing(work.ready, pending=work.ready.must_sync)
                replica.written(work.ready.number)
        for to, payload in replica.end_turn():
            if not {member, to} & self.lost:
                self.boxes[to].append(payload)
        while True:
            batch = replica.next_batch(replica.raft.applied_index)
            if not batch.entries and not batch.due:
                return
            if batch.entries:
                effects, applied = Effects([], [], []), []
                for entry in batch.entries:
                    proposal = decode_proposal(entry.data) if entry.kind is EntryKind.DATA else None
                    outcomes = (TransactionResult(entry.index, ()),) * (len(proposal.commands) if proposal else 0)
                    applied.append(Applied(entry.index, entry.term, entry.kind, proposal, outcomes))
                replica.applied(applied, effects, FIRST_BOUNDS, self.now)
            for read in batch.reads:
                read.result = replica.raft.applied_index
                read.finish()
            replica.confirmed(batch.due, self.now)

    def leader(self):
        return next(each for each in self.replicas.values() if each.raft.is_leader)

    def follower(self):
        return next(each for each in self.replicas.values() if not each.raft.is_leader)


def test_a_command_and_a_read_at_a_follower_go_through_the_leader():
    world = _World()
    world.run(5.0)
    follower = world.follower()
    call = follower.execute(encoded(1), world.now)
    world.run(0.1)
    index = call.result.revision
    read = follower.read(len, world.now)
    world.run(0.1)
    assert read.result >= index
    here = follower.read_here(len, world.now)
    world.run(0.05)
    assert here.is_answered


def test_calls_without_a_majority_say_what_is_known_of_them():
    world = _World()
    world.run(5.0)
    leader = world.leader()
    world.lost = {replica.member for replica in world.replicas.values() if replica is not leader}
    sent = leader.execute(encoded(1), world.now)
    world.run(3.0)  # it steps down
    queued = leader.execute(encoded(2), world.now)
    read = leader.read(len, world.now)
    world.run(11.0)
    assert "is unknown" in str(sent.error)
    assert "was not made" in str(queued.error)
    assert "no leader is known" in str(read.error)
    assert all(isinstance(call.error, UnavailableError) for call in (sent, queued, read))
    world.lost = set()
    world.run(5.0)
    assert world.follower().raft.log.last_index == world.leader().raft.log.last_index


def test_a_lone_replica_leads_at_once_and_then_needs_no_time():
    world = _World(ALONE)
    world.run(0.3)
    replica = world.replicas[ME]
    assert replica.raft.is_leader
    assert replica.is_idle
    call = replica.execute(encoded(1), world.now)
    world.turn(ME)
    world.turn(ME)
    assert call.is_answered


def test_a_replica_that_installs_a_copy_writes_nothing_and_still_answers():
    world = _World()
    world.run(5.0)
    leader, follower = world.leader(), world.follower()
    world.lost = {follower.member}
    for number in range(20):
        leader.execute(encoded(number), world.now)
    world.run(1.0)
    base = Base(leader.raft.commit, leader.raft.term, THREE)
    world.lost = {follower.member}
    sending = Outgoing().begin(follower.member, Copy(base, 4, b"d"))
    world.boxes[follower.member] = [encode_payload(leader.member, (sending.piece(leader.raft.term, 0, b"copy"),))]
    world.turn(follower.member)
    piece = follower.next_piece()
    piece.receiving.took(4)
    follower.received(piece, whole=True)
    world.turn(follower.member)
    assert world.installing == {follower.member: base.index}
    other = Outgoing().begin(follower.member, Copy(base, 4, b"e")).piece(leader.raft.term, 0, b"copy")
    world.boxes[follower.member] = [encode_payload(leader.member, (other,))]
    world.turn(follower.member)
    assert follower.next_piece() is None  # it would replace what is being installed
    world.lost = {each for each in world.replicas if each not in (leader.member, follower.member)}
    term = leader.raft.term
    world.run(3.0)  # the leader leads by the answers of the one that installs
    assert (leader.raft.term, leader.raft.is_leader) == (term, True)
    assert leader.raft.matches()[follower.member] < base.index
    world.installing.clear()
    follower.installed(())
    world.run(1.0)
    assert leader.raft.matches()[follower.member] == leader.raft.log.last_index


def test_a_lease_that_a_new_leader_grants_gets_its_full_time_after_any_silence():
    """It is granted after the silence, although it may be committed with the first entry of the leader."""
    options = NodeOptions()
    raft = Raft(ME, Base(0, 0, THREE), chance=lambda most: 0)
    replica = Replica(raft, life=1, leases=(), bounds=FIRST_BOUNDS, options=options, chance=lambda: 0.5)
    now, silent = 0.0, 0

    def turn(*messages):
        replica.begin_turn(now, [encode_payload(message.sender, (message,)) for message in messages])
        while (work := replica.next_work()) is not None:
            replica.writing(work.ready, pending=work.ready.must_sync)
            replica.written(work.ready.number)
        replica.end_turn()

    replica.begin(now)
    while raft.role is Role.FOLLOWER:
        now += options.tick_s
        silent += 1
        turn()
    turn(PreVoteReply(ME, OTHER, raft.term + 1, True, 0, 0))
    turn(VoteReply(ME, OTHER, raft.term, True, 0, 0, silent))
    assert raft.is_leader
    call = replica.execute(encode_command(Grant(3.0)), now)
    turn()
    turn(AppendReply(ME, OTHER, raft.term, raft.log.last_index))
    assert raft.commit == raft.log.last_index == 2
    while entries := replica.next_batch(raft.applied_index).entries:
        effects, applied = Effects([], [], []), []
        for entry in entries:
            proposal = decode_proposal(entry.data) if entry.kind is EntryKind.DATA else None
            if proposal is not None:
                effects.granted.append((LeaseId(entry.index), 3.0))
            outcomes = (LeaseId(entry.index),) * (proposal is not None)
            applied.append(Applied(entry.index, entry.term, entry.kind, proposal, outcomes))
        replica.applied(applied, effects, FIRST_BOUNDS, now)
    assert call.result == 2
    assert replica._leases.next_look == pytest.approx(now + 3.0)


def test_messages_that_do_not_decode_or_are_for_others_change_nothing():
    world = _World()
    world.run(5.0)
    follower = world.follower()
    before = follower.raft.term
    stranger = encode_payload(OTHER, (Append(NodeId(9), OTHER, 99, 0, 0, (), 0),))
    forward = encode_payload(OTHER, (Forward(before, 1, 1, (b"x",)),))  # for a leader
    follower.begin_turn(world.now, [b"nonsense", stranger, forward])
    assert follower.raft.term == before
    assert follower.raft.log.last_index == world.leader().raft.log.last_index


class TestPuttingOff:
    """A follower begins to write before it applies."""

    @pytest.fixture
    def follower(self):
        raft = Raft(NodeId(2), Base(0, 0, THREE), chance=lambda most: 0)
        replica = Replica(raft, life=1, leases=(), bounds=FIRST_BOUNDS, options=NodeOptions(), chance=lambda: 0.5)
        replica.begin(0.0)
        self.take(replica, 1, commit=0)
        replica.written(1)
        return replica

    def take(self, replica, index, *, commit):
        """Take an entry, and begin to write it."""
        entry = Entry(index, 1, EntryKind.NOOP, b"")
        message = Append(NodeId(2), NodeId(1), 1, index - 1, min(index - 1, 1), (entry,), commit)
        self.turn(replica, encode_payload(NodeId(1), (message,)))

    def turn(self, replica, *payloads):
        replica.begin_turn(0.0, payloads)
        while (work := replica.next_work()) is not None:
            replica.writing(work.ready, pending=work.ready.must_sync)
        return replica.end_turn()

    def test_until_the_next_turn(self, follower):
        self.take(follower, 2, commit=1)
        assert follower.has_begun_write
        assert not follower.is_applicable
        follower.written(2)
        assert self.turn(follower)  # it answers first
        assert follower.is_applicable
        assert [entry.index for entry in follower.next_batch(0).entries] == [1]

    def test_not_for_two_writes_in_a_row(self, follower):
        self.take(follower, 2, commit=1)
        assert not follower.is_applicable
        self.take(follower, 3, commit=1)
        assert follower.is_applicable

    def test_not_while_a_caller_waits(self, follower):
        call = follower.read(lambda machine: None, 0.0)
        self.take(follower, 2, commit=1)
        assert follower.is_applicable
        call.answer(None)
        self.take(follower, 3, commit=1)
        assert not follower.is_applicable

    def test_what_is_put_back_comes_again(self, follower):
        follower.read_here(lambda machine: None, 0.0)
        self.turn(follower)
        self.take(follower, 2, commit=1)
        batch = follower.next_batch(0)
        assert ([entry.index for entry in batch.entries], len(batch.reads)) == ([1], 1)
        assert not follower.is_applicable
        follower.put_back(batch)
        assert follower.is_applicable
        assert follower.next_batch(0) == batch
