"""Each rule of danube.raft.core by name. Random worlds (test_raft_worlds) do not reach all of them."""

from __future__ import annotations

import pytest
from raft_group import SETTINGS, Group, carry_out, conf, entries_of, group_of, make_node, node_ids, take

from danube.raft import (
    Append,
    AppendReply,
    Base,
    Conf,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    NodeId,
    PreVote,
    PreVoteReply,
    Raft,
    ReadIndex,
    ReadIndexReply,
    Refusal,
    Role,
    Settings,
    TimeoutNow,
    Vote,
    VoteReply,
)

N1, N2, N3, N4, N5 = node_ids(1, 2, 3, 4, 5)


def vote(
    sender: int, term: int, *, last: tuple[int, int] = (0, 0), commit: tuple[int, int] = (0, 0), transfer: bool = False
) -> Vote:
    return Vote(N1, NodeId(sender), term, *last, *commit, transfer)


def pre_vote(sender: int, term: int, *, last: tuple[int, int] = (0, 0)) -> PreVote:
    return PreVote(N1, NodeId(sender), term, *last, 0, 0)


def append(
    sender: int, term: int, previous: tuple[int, int] = (0, 0), terms: tuple[int, ...] = (), commit: int = 0
) -> Append:
    return Append(N1, NodeId(sender), term, *previous, entries_of(*terms, after=previous[0]), commit)


def only(messages: list[Message], kind: type) -> Message:
    found = [message for message in messages if isinstance(message, kind)]
    assert len(found) == 1, messages
    return found[0]


def leader_of_three(*, terms: tuple[int, ...] = (), settings: Settings = SETTINGS) -> Raft:
    """Node 1 of three leads, in the term after the last one of its log; nothing of its term is committed."""
    node = make_node(1, 1, 2, 3, terms=terms, settings=settings)
    for _ in range(SETTINGS.election_ticks):
        node.tick()
    carry_out(node)
    node.step(PreVoteReply(N1, N2, node.term + 1, True, 0, 0))
    carry_out(node)
    node.step(VoteReply(N1, N2, node.term, True, 0, 0))
    carry_out(node)
    assert node.is_leader
    return node


class TestR1Votes:
    def test_one_vote_a_term(self) -> None:
        node = make_node(1, 1, 2, 3)
        assert only(take(node, vote(2, 1)), VoteReply).granted
        assert not only(take(node, vote(3, 1)), VoteReply).granted
        assert only(take(node, vote(2, 1)), VoteReply).granted, "the same candidate may ask again"

    def test_a_vote_survives_a_restart(self) -> None:
        node = make_node(1, 1, 2, 3)
        node.step(vote(2, 7))
        hard = node.ready().hard
        assert hard == HardState(7, N2, 0)
        again = make_node(1, 1, 2, 3, hard=hard)
        assert not only(take(again, vote(3, 7)), VoteReply).granted

    def test_a_vote_is_answered_only_when_it_is_durable(self) -> None:
        node = make_node(1, 1, 2, 3)
        node.step(vote(2, 1))
        ready = node.ready()
        assert ready.messages == ()
        assert ready.must_sync
        assert only(list(node.persisted(ready)), VoteReply).granted

    def test_a_candidate_asks_only_when_its_own_vote_is_durable(self) -> None:
        node = make_node(1, 1, 2, 3)
        node.step(TimeoutNow(N1, N2, 0))
        ready = node.ready()
        assert ready.hard == HardState(1, N1, 0)
        assert not [each for each in ready.messages if isinstance(each, Vote)]
        assert {each.to for each in node.persisted(ready)} == {N2, N3}

    def test_the_own_vote_counts_only_when_it_is_durable(self) -> None:
        node = make_node(1, 1)
        for _ in range(SETTINGS.election_ticks):
            node.tick()
        ready = node.ready()
        assert not node.is_leader
        node.persisted(ready)
        assert node.is_leader

    def test_votes_count_by_identity(self) -> None:
        node = make_node(1, 1, 2, 3, 4, 5)
        node.step(TimeoutNow(N1, N2, 0))
        carry_out(node)
        for _ in range(3):
            node.step(VoteReply(N1, N2, 1, True, 0, 0))
        assert node.role is Role.CANDIDATE
        node.step(VoteReply(N1, N3, 1, True, 0, 0))
        assert node.is_leader

    def test_a_majority_of_four_is_three(self) -> None:
        node = make_node(1, 1, 2, 3, 4)
        node.step(TimeoutNow(N1, N2, 0))
        carry_out(node)
        node.step(VoteReply(N1, N2, 1, True, 0, 0))
        assert node.role is Role.CANDIDATE

    def test_a_node_that_knows_the_leader_of_a_term_gives_no_vote_in_it(self) -> None:
        node = make_node(1, 1, 2, 3)
        take(node, append(2, 4))
        node.leader_lost(N3)
        assert not only(take(node, vote(3, 4)), VoteReply).granted


class TestR2Terms:
    def test_a_higher_term_ends_a_leader(self) -> None:
        node = leader_of_three()
        node.step(AppendReply(N1, N3, 9, 0, refused=True))
        assert (node.role, node.term, node.leader) == (Role.FOLLOWER, 9, None)

    def test_replies_of_a_lower_term_elect_no_candidate(self) -> None:
        node = make_node(1, 1, 2, 3, hard=HardState(4))
        node.step(TimeoutNow(N1, N2, 4))
        carry_out(node)
        node.step(VoteReply(N1, N2, 4, True, 0, 0))
        assert node.role is Role.CANDIDATE

    def test_replies_of_a_lower_term_commit_nothing(self) -> None:
        node = leader_of_three(terms=(1, 1))
        node.step(AppendReply(N1, N2, 1, 3))
        assert node.commit == 0
        node.step(AppendReply(N1, N2, 2, 3))
        assert node.commit == 3

    def test_a_granted_pre_vote_changes_no_term(self) -> None:
        node = make_node(1, 1, 2, 3)
        node.step(PreVoteReply(N1, N2, 5, True, 0, 0))
        assert node.term == 0

    def test_a_refused_pre_vote_tells_the_term(self) -> None:
        node = make_node(1, 1, 2, 3)
        node.step(PreVoteReply(N1, N2, 5, False, 0, 0))
        assert node.term == 5


class TestR3Stale:
    @pytest.mark.parametrize(
        "message",
        [append(2, 3), Heartbeat(N1, N2, 3, 0, 0), InstallSnapshot(N1, N2, 3, 9, 3, conf(1, 2, 3))],
        ids=["append", "heartbeat", "snapshot"],
    )
    def test_a_stale_leader_hears_of_our_term_and_steps_down(self, message: Message) -> None:
        node = make_node(1, 1, 2, 3, hard=HardState(5))
        (answer,) = take(node, message)
        assert answer.term == 5
        assert node.log.last_index == 0
        stale = make_node(2, 1, 2, 3, hard=HardState(3))
        stale.step(answer)
        assert stale.term == 5

    def test_a_stale_candidate_hears_of_our_term(self) -> None:
        node = make_node(1, 1, 2, 3, hard=HardState(5))
        assert only(take(node, vote(2, 3)), VoteReply).term == 5
        reply = only(take(node, pre_vote(2, 3)), PreVoteReply)
        assert (reply.term, reply.granted) == (5, False)


class TestR4Complete:
    @pytest.mark.parametrize(
        ("own", "candidate", "granted"),
        [
            ((1, 1), (2, 1), True),
            ((1, 1), (1, 1), False),
            ((1, 1), (1, 2), True),
            ((1, 2), (3, 1), False),
            ((1, 2), (2, 2), True),
            ((1, 2), (1, 3), True),
            ((1, 1, 1), (2, 1), False),
        ],
    )
    def test_a_vote_goes_to_a_log_that_is_as_complete(
        self, own: tuple[int, ...], candidate: tuple[int, int], granted: bool
    ) -> None:
        for request in (vote(2, 9, last=candidate), pre_vote(2, 9, last=candidate)):
            reply = take(make_node(1, 1, 2, 3, terms=own), request)[0]
            assert reply.granted is granted


class TestR5PreVote:
    def test_a_pre_vote_changes_nothing(self) -> None:
        node = make_node(1, 1, 2, 3, hard=HardState(2, N3))
        reply = only(take(node, pre_vote(2, 9)), PreVoteReply)
        assert (reply.granted, reply.term) == (True, 9)
        assert node.term == 2
        assert only(take(node, pre_vote(3, 9)), PreVoteReply).granted, "two may be told yes"

    def test_a_pre_vote_is_refused_while_a_leader_is_heard(self) -> None:
        node = make_node(1, 1, 2, 3, chance=lambda most: most - 1)
        take(node, append(3, 1))
        assert not only(take(node, pre_vote(2, 2)), PreVoteReply).granted
        for _ in range(SETTINGS.election_ticks):
            node.tick()
            carry_out(node)
        assert only(take(node, pre_vote(2, 2)), PreVoteReply).granted

    def test_a_vote_is_ignored_while_a_leader_is_heard_unless_it_hands_over(self) -> None:
        node = make_node(1, 1, 2, 3)
        take(node, append(3, 1))
        assert take(node, vote(2, 2)) == []
        assert node.term == 1
        assert only(take(node, vote(2, 2, transfer=True)), VoteReply).granted

    def test_a_leader_is_not_disturbed(self) -> None:
        node = leader_of_three()
        assert not only(take(node, pre_vote(3, 9, last=(9, 9))), PreVoteReply).granted
        assert take(node, vote(3, 9, last=(9, 9))) == []
        assert node.is_leader

    def test_a_lost_leader_is_not_heard_any_more_at_voters_too(self) -> None:
        group = group_of(1, 2, 3)
        group.elect(1)
        group.away.add(1)
        group[3].leader_lost(N2)  # not the leader: no hint
        group[2].leader_lost(N1)
        group.run()
        assert not group[2].is_leader, "node 3 has heard the leader"
        group[3].leader_lost(N1)
        group.run()
        assert group[3].is_leader or group[2].is_leader
        assert max(group[2].term, group[3].term) == group[1].term + 1

    def test_a_node_that_was_cut_off_does_not_end_the_leader(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away.add(3)
        for _ in range(200):
            group.tick(1)
            group.tick(2)
            group.tick(3)
        group.away.clear()
        for _ in range(30):
            group.tick(3)
            group.tick(1)
        assert leader.is_leader
        assert group[3].term == leader.term


class TestR6Heard:
    def test_an_append_that_is_refused_counts_as_hearing_the_leader(self) -> None:
        node = make_node(1, 1, 2, 3)
        for _ in range(3):
            for _ in range(SETTINGS.election_ticks - 1):
                node.tick()
            assert node.role is Role.FOLLOWER
            assert only(take(node, append(2, 1, previous=(7, 1))), AppendReply).refused
            assert not only(take(node, pre_vote(3, 2)), PreVoteReply).granted
        assert node.role is Role.FOLLOWER

    def test_an_append_ends_a_candidate_of_its_term(self) -> None:
        node = make_node(1, 1, 2, 3)
        node.step(TimeoutNow(N1, N2, 0))
        take(node, append(3, 1))
        assert (node.role, node.leader) == (Role.FOLLOWER, N3)

    def test_a_heartbeat_ends_a_pre_candidate(self) -> None:
        node = make_node(1, 1, 2, 3)
        take(node, append(3, 1))
        for _ in range(SETTINGS.election_ticks):
            node.tick()
        carry_out(node)
        assert node.role is Role.PRE_CANDIDATE
        take(node, Heartbeat(N1, N3, 1, 0, 0))
        assert (node.role, node.leader) == (Role.FOLLOWER, N3)


class TestR7CheckQuorum:
    def test_a_leader_that_hears_no_majority_steps_down(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away |= {2, 3}
        group.tick(1, 2 * SETTINGS.election_ticks)
        assert not leader.is_leader

    def test_a_leader_that_hears_one_of_two_others_goes_on(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away.add(3)
        group.tick(1, 5 * SETTINGS.election_ticks)
        assert leader.is_leader

    def test_a_joint_leader_needs_both_halves(self) -> None:
        base = Base(0, 0, Conf(node_ids(1, 4, 5), outgoing=node_ids(1, 2, 3)))
        group = Group(*(make_node(number, base=base) for number in (1, 2, 3, 4, 5)))
        leader = group.elect(1)
        group.run()
        assert not leader.conf.is_joint
        joint = Group(*(make_node(number, base=base) for number in (1, 2, 3, 4, 5)))
        joint.away |= {4, 5}
        joint.tick(1, 3 * SETTINGS.election_ticks)
        assert not joint[1].is_leader


class TestR8Cut:
    def test_entries_that_match_stay_with_all_that_follows(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1, 1, 1))
        reply = only(take(node, append(2, 1, previous=(1, 1), terms=(1,))), AppendReply)
        assert reply.index == 2
        assert node.log.last_index == 5

    def test_a_late_empty_append_cuts_nothing(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1))
        take(node, append(2, 3, previous=(1, 1)))
        assert node.log.last_index == 3

    def test_a_conflict_cuts_what_follows(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1, 1))
        take(node, append(2, 2, previous=(1, 1), terms=(2,)))
        assert [node.log.term(index) for index in range(1, 4)] == [1, 2, None]

    def test_a_committed_entry_is_never_replaced(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1), hard=HardState(1, None, 2))
        with pytest.raises(AssertionError, match="committed"):
            node.log.merge(entries_of(2, after=1), node.commit)

    def test_entries_below_the_commit_index_are_answered_with_it(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1), hard=HardState(1, None, 3))
        reply = only(take(node, append(2, 2, previous=(1, 1), terms=(2,))), AppendReply)
        assert (reply.refused, reply.index) == (False, 3)

    @pytest.mark.parametrize(
        ("follower", "leader"),
        [  # figure 7 of the Raft paper: a new leader brings every follower's log into line
            ((1, 1, 1, 4, 4, 5, 5, 6, 6), (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)),
            ((1, 1, 1, 4), (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)),
            ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6), (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)),
            ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7), (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)),
            ((1, 1, 1, 4, 4, 4, 4), (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)),
            ((1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3), (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)),
        ],
    )
    def test_a_leader_brings_logs_into_line(self, follower: tuple[int, ...], leader: tuple[int, ...]) -> None:
        group = Group(
            make_node(1, 1, 2, 3, terms=leader, hard=HardState(8)),
            make_node(2, 1, 2, 3, terms=follower, hard=HardState(8)),
            make_node(3, 1, 2, 3, hard=HardState(8)),
        )
        group.elect(1)
        group.tick(1, 4)
        terms = [[node.log.term(index) for index in range(1, node.log.last_index + 1)] for node in group.nodes.values()]
        assert terms[1] == terms[0] == terms[2]

    def test_a_refusal_skips_whole_terms(self) -> None:
        """One message for each term of the two logs, not one for each entry."""
        group = Group(
            make_node(1, 1, 2, terms=(1,) * 50 + (5,) * 50, hard=HardState(7)),
            make_node(2, 1, 2, terms=(1,) * 50 + (3,) * 60, hard=HardState(6)),
        )
        group.elect(1)
        group.tick(1, 2)
        assert group[2].log.last_term == group[1].term
        assert sum(isinstance(each, AppendReply) and each.refused for each in group.seen) <= 3


class TestR9Commit:
    def test_an_entry_of_an_older_term_is_not_committed_by_counting(self) -> None:
        """Figure 8 of the Raft paper."""
        node = leader_of_three(terms=(1, 2))
        node.step(AppendReply(N1, N2, node.term, 2))
        assert node.commit == 0
        node.step(AppendReply(N1, N2, node.term, 3))
        assert node.commit == 3

    def test_the_first_entry_of_a_leader_is_a_no_op(self) -> None:
        node = leader_of_three(terms=(1,))
        assert node.log.between(2, 3) == (Entry(2, 2, EntryKind.NOOP, b""),)

    def test_a_majority_of_four_disks_is_three(self) -> None:
        group = group_of(1, 2, 3, 4)
        leader = group.elect(1)
        before = leader.commit
        group.away |= {3, 4}
        leader.propose(b"x")
        group.run()
        assert leader.commit == before

    def test_a_learner_does_not_count(self) -> None:
        group = Group(*(make_node(number, 1, 2, 3, learners=(4, 5)) for number in (1, 2, 3, 4, 5)))
        leader = group.elect(1)
        group.away |= {2, 3}
        before = leader.commit
        leader.propose(b"x")
        group.run()
        assert group[4].log.last_index == leader.log.last_index
        assert leader.commit == before


class TestR10FollowerCommit:
    def test_a_leader_tells_of_a_commit_with_the_next_entry_or_once_it_has_applied_it(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.run()
        index = leader.propose(b"x")
        assert isinstance(index, int)
        ready = leader.ready()
        leader.persisted(ready)
        leader.step(AppendReply(N1, N2, leader.term, index))
        committed = leader.ready()
        assert [entry.data for entry in committed.committed] == [b"x"]
        assert not committed.messages
        assert not leader.has_ready
        leader.propose(b"y")
        assert [(each.to, each.commit) for each in leader.ready().messages] == [(N2, index), (N3, index)]
        leader.applied(index)
        assert not leader.has_ready  # that has told them
        leader.step(AppendReply(N1, N2, leader.term, index + 1))
        leader.persisted(leader.ready())
        leader.applied(leader.ready().committed[-1].index)
        told = leader.ready().messages
        assert [(each.to, each.entries, each.commit) for each in told] == [(N2, (), index + 1), (N3, (), index + 1)]

    def test_a_follower_commits_only_what_it_has_verified(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1))
        take(node, append(2, 2, previous=(1, 1), commit=3))
        assert node.commit == 1
        take(node, append(2, 2, previous=(1, 1), terms=(2,), commit=1))
        assert node.commit == 1
        take(node, append(2, 2, previous=(2, 2), commit=9))
        assert node.commit == 2

    def test_a_commit_index_never_falls(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1), hard=HardState(1, None, 3))
        take(node, Heartbeat(N1, N2, 1, 1, 0))
        take(node, append(2, 1, previous=(3, 1), commit=1))
        assert node.commit == 3


class TestR11Match:
    def test_a_late_answer_does_not_lower_what_is_known(self) -> None:
        node = leader_of_three(terms=(1, 1, 1))
        node.step(AppendReply(N1, N2, node.term, 4))
        node.step(AppendReply(N1, N2, node.term, 2))
        assert node.matches()[N2] == 4

    def test_a_late_refusal_does_not_lower_it(self) -> None:
        node = leader_of_three(terms=(1, 1, 1))
        node.step(AppendReply(N1, N2, node.term, 4))
        node.step(AppendReply(N1, N2, node.term, 3, refused=True, hint_index=1, hint_term=1))
        assert node.matches()[N2] == 4
        for previous in (4, 5):  # sent ahead, without an answer
            node.propose(b"x")
            assert only([each for each in carry_out(node) if each.to == N2], Append).prev_index == previous


class TestR12HeartbeatCommit:
    def test_a_heartbeat_commits_nothing_that_its_receiver_may_lack(self) -> None:
        node = leader_of_three(terms=(1, 1, 1))
        node.step(AppendReply(N1, N2, node.term, 4))
        carry_out(node)
        for _ in range(SETTINGS.heartbeat_ticks):
            node.tick()
        beats = {each.to: each.commit for each in carry_out(node) if isinstance(each, Heartbeat)}
        assert beats == {N2: 4, N3: 0}


class TestR13Disk:
    def test_the_leaders_own_disk_counts_only_when_it_has_synced(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away.add(3)
        group.held.add(1)
        index = leader.propose(b"x")
        group.run()
        assert group[2].log.last_index == index, "sending overlaps the write"
        assert leader.commit < index
        group.release(1)
        assert leader.commit == index

    def test_a_write_counts_for_its_own_entries_only(self) -> None:
        node = leader_of_three()
        node.propose(b"x")
        first = node.ready()
        node.propose(b"y")
        second = node.ready()
        node.persisted(first)
        assert node.matches()[N1] == 2
        node.persisted(second)
        assert node.matches()[N1] == 3

    def test_a_follower_answers_only_when_it_has_synced(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away.add(3)
        group.held.add(2)
        index = leader.propose(b"x")
        group.run()
        assert leader.commit < index
        for answer in group.release(2):
            leader.step(answer)
        assert leader.commit == index

    def test_nothing_is_applied_that_is_not_durable_here(self) -> None:
        node = make_node(1, 1, 2, 3)
        node.step(append(2, 1, terms=(1, 1), commit=2))
        ready = node.ready()
        assert ready.committed == ()
        node.persisted(ready)
        assert [entry.index for entry in node.ready().committed] == [1, 2]

    def test_a_write_of_entries_that_were_replaced_and_came_back_does_not_count(self) -> None:
        """The A-B-A case: the first write ends while the third one, of the same entry, is still under way."""
        node = make_node(1, 1, 2, 3)
        node.step(append(2, 1, terms=(1,)))
        first = node.ready()
        node.step(append(3, 2, terms=(2,)))
        second = node.ready()
        node.step(append(2, 3, terms=(1,)))  # the leader of term 3 has the entry of term 1
        third = node.ready()
        assert [ready.entries[0].term for ready in (first, second, third)] == [1, 2, 1]
        node.persisted(first)
        assert node.log.synced == 0
        node.persisted(second)
        assert node.log.synced == 0
        node.persisted(third)
        assert node.log.synced == 1

    def test_entries_are_written_with_the_commit_index_that_came_with_them(self) -> None:
        node = make_node(1, 1, 2, 3)
        take(node, append(2, 1, terms=(1, 1)))
        node.step(append(2, 1, previous=(2, 1), terms=(1,), commit=2))
        ready = node.ready()
        assert ready.entries
        assert ready.hard == HardState(1, None, 2)


class TestR14Snapshots:
    def behind(self) -> Base:
        return Base(5, 2, conf(1, 2, 3))

    def test_a_snapshot_keeps_a_suffix_that_matches(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 2, 2, 2, 2, 2))
        reply = only(take(node, InstallSnapshot(N1, N2, 2, 5, 2, conf(1, 2, 3))), AppendReply)
        assert (reply.index, node.commit, node.log.last_index) == (5, 5, 7)

    def test_a_snapshot_replaces_a_log_that_does_not_match(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1, 1, 1, 1, 1))
        node.step(InstallSnapshot(N1, N2, 2, 5, 2, conf(1, 2, 3, 4)))
        ready = node.ready()
        assert ready.snapshot == Base(5, 2, conf(1, 2, 3, 4))
        assert ready.must_sync
        assert only(list(node.persisted(ready)), AppendReply).index == 5
        assert (node.log.last_index, node.commit, node.applied_index) == (5, 5, 5)
        assert node.conf == conf(1, 2, 3, 4)

    def test_an_old_snapshot_is_ignored(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1, 1), hard=HardState(1, None, 4))
        reply = only(take(node, InstallSnapshot(N1, N2, 1, 3, 1, conf(1, 2))), AppendReply)
        assert (reply.index, node.log.last_index, node.conf) == (4, 4, conf(1, 2, 3))

    def leader_with_a_short_log(self) -> Raft:
        node = leader_of_three(terms=(1, 1, 1, 1))
        node.step(AppendReply(N1, N2, node.term, 5))
        carry_out(node)
        node.compact(4)
        return node

    def refuse(self, node: Raft) -> tuple[NodeId, ...]:
        node.step(AppendReply(N1, N3, node.term, 4, refused=True))
        ready = node.ready()
        node.persisted(ready)
        return ready.need_snapshot

    def test_a_member_that_needs_what_is_not_kept_gets_a_snapshot(self) -> None:
        node = self.leader_with_a_short_log()
        assert self.refuse(node) == (N3,)
        node.propose(b"x")
        assert not [each for each in carry_out(node) if each.to == N3 and isinstance(each, Append)]
        node.step(AppendReply(N1, N3, node.term, 5))
        assert [each.prev_index for each in carry_out(node) if each.to == N3 and isinstance(each, Append)] == [5]

    def test_a_snapshot_that_failed_is_sent_again(self) -> None:
        node = self.leader_with_a_short_log()
        self.refuse(node)
        node.snapshot_failed(N3)
        node.step(HeartbeatReply(N1, N3, node.term, 0))
        assert node.ready().need_snapshot == (N3,)

    def test_a_snapshot_that_is_silent_is_sent_again(self) -> None:
        node = self.leader_with_a_short_log()
        self.refuse(node)
        asked: list[NodeId] = []
        for tick in range(2 * SETTINGS.snapshot_ticks):
            if tick == SETTINGS.snapshot_ticks - 5:
                assert not asked
                node.snapshot_progress(N3)
            node.tick()
            for follower in (N2, N3):
                node.step(HeartbeatReply(N1, follower, node.term, 0))
            ready = node.ready()
            node.persisted(ready)
            asked += ready.need_snapshot
            if tick < 2 * SETTINGS.snapshot_ticks - 10:
                assert not asked, "it was getting on"
        assert asked == [N3]

    def test_a_snapshot_tells_the_configuration_of_its_index(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        before = leader.applied_index
        leader.propose_conf(node_ids(1, 2, 3), node_ids(4))
        group.run()
        assert leader.snapshot_at(before) == Base(before, leader.term, conf(1, 2, 3))
        after = leader.snapshot_at(leader.applied_index)
        assert after is not None
        assert after.conf == conf(1, 2, 3, learners=(4,))
        leader.compact(before)
        assert leader.snapshot_at(before - 1) is None
        assert leader.conf_at(before) == conf(1, 2, 3)


class TestR15Reads:
    def test_a_read_waits_for_a_commit_of_the_leaders_term(self) -> None:
        node = leader_of_three(terms=(1,))
        node.read_index(7)
        carry_out(node)
        assert not any(isinstance(each, Heartbeat) for each in take(node, HeartbeatReply(N1, N2, node.term, 0)))
        node.step(AppendReply(N1, N2, node.term, 2))
        carry_out(node)
        node.step(HeartbeatReply(N1, N2, node.term, 1))
        assert node.ready().reads == ((7, 2),)

    def test_a_read_waits_for_a_majority_that_answers_after_it_was_asked(self) -> None:
        node = leader_of_three()
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        node.read_index(1)
        carry_out(node)
        node.read_index(2)
        node.step(HeartbeatReply(N1, N2, node.term, 1))
        ready = node.ready()
        node.persisted(ready)
        assert ready.reads == ((1, 1),), "round 1 was sent before the second read"
        node.step(HeartbeatReply(N1, N3, node.term, 2))
        assert node.ready().reads == ((2, 1),)

    def test_an_answer_without_a_round_confirms_no_read(self) -> None:
        node = leader_of_three()
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        node.read_index(1)
        carry_out(node)
        node.step(HeartbeatReply(N1, N2, node.term, 0))
        assert node.ready().reads == ()

    def test_a_leader_alone_answers_at_once(self) -> None:
        group = group_of(1)
        group.elect(1)
        group[1].read_index(5)
        group.run()
        assert group.reads[1] == [(5, 1)]

    def test_a_follower_asks_its_leader(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        assert group[2].read_index(9)
        group.run()
        assert group.reads[2] == [(9, leader.commit)]

    def test_a_node_without_leader_says_so(self) -> None:
        assert not make_node(1, 1, 2, 3).read_index(1)

    def test_the_reads_of_a_leader_that_loses_its_place_are_lost(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away |= {2, 3}
        leader.read_index(3)
        group.tick(1, 2 * SETTINGS.election_ticks)
        assert group.lost_reads[1] == [3]
        assert group.reads[1] == []

    def test_an_old_leader_answers_no_read(self) -> None:
        group = group_of(1, 2, 3)
        old = group.elect(1)
        group.away.add(1)
        group[2].leader_lost(N1)
        group.elect(2)
        assert old.is_leader, "it has not noticed"
        old.read_index(4)
        group.run()
        group.away.clear()
        group.tick(1, SETTINGS.heartbeat_ticks)
        assert group.reads[1] == []

    def test_a_forwarded_answer_comes_back_to_its_asker(self) -> None:
        node = leader_of_three()
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        node.step(ReadIndex(N1, N3, node.term, 77))
        carry_out(node)
        answers = take(node, HeartbeatReply(N1, N2, node.term, 1))
        assert only(answers, ReadIndexReply) == ReadIndexReply(N3, N1, node.term, 77, 1)


class TestR16Changes:
    def test_voters_change_through_a_joint_configuration(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        for number in (4, 5):
            group.nodes[NodeId(number)] = make_node(number, 1, 2, 3)
        assert isinstance(leader.propose_conf(node_ids(1, 4, 5)), int)
        group.run()
        changes = [entry for entry in group.applied[1] if entry.kind is EntryKind.CONF]
        assert len(changes) == 2
        first = leader.conf_at(changes[0].index)
        assert (first.voters, first.outgoing) == (node_ids(1, 4, 5), node_ids(1, 2, 3))
        assert leader.conf == conf(1, 4, 5)

    def test_a_joint_commit_needs_a_majority_of_both(self) -> None:
        base = Base(0, 0, Conf(node_ids(1, 4, 5), outgoing=node_ids(1, 2, 3)))
        for heard, committed in (((2, 4), True), ((4, 5), False), ((2, 3), False)):
            node = make_node(1, base=base)
            node.step(TimeoutNow(N1, N2, 0))
            carry_out(node)
            for voter in (2, 4):
                node.step(VoteReply(N1, NodeId(voter), 1, True, 0, 0))
            assert node.is_leader
            carry_out(node)
            for follower in heard:
                node.step(AppendReply(N1, NodeId(follower), 1, 1))
            assert (node.commit == 1) is committed

    def test_a_joint_election_needs_a_majority_of_both(self) -> None:
        base = Base(0, 0, Conf(node_ids(1, 4, 5), outgoing=node_ids(1, 2, 3)))
        node = make_node(1, base=base)
        node.step(TimeoutNow(N1, N2, 0))
        carry_out(node)
        node.step(VoteReply(N1, N4, 1, True, 0, 0))
        node.step(VoteReply(N1, N5, 1, True, 0, 0))
        assert node.role is Role.CANDIDATE
        node.step(VoteReply(N1, N3, 1, True, 0, 0))
        assert node.is_leader

    def test_one_change_at_a_time(self) -> None:
        node = leader_of_three()
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        assert node.propose_conf(node_ids(1, 2, 3), node_ids(4)) == 2
        assert node.propose_conf(node_ids(1, 2, 3), node_ids(5)) is Refusal.CHANGE_IN_FLIGHT
        carry_out(node)
        node.step(AppendReply(N1, N2, node.term, 2))
        assert isinstance(node.propose_conf(node_ids(1, 2, 3), node_ids(5)), int)

    def test_no_change_while_joint(self) -> None:
        node = leader_of_three()
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        node.propose_conf(node_ids(1, 2))
        carry_out(node)
        node.step(AppendReply(N1, N2, node.term, 2))
        assert node.conf.is_joint
        assert node.propose_conf(node_ids(1)) is Refusal.CHANGE_IN_FLIGHT

    def test_an_inherited_change_counts(self) -> None:
        change = Entry(2, 1, EntryKind.CONF, _encoded(conf(1, 2, 3, learners=(4,))))
        node = Raft(
            N1, Base(0, 0, conf(1, 2, 3)), entries=(*entries_of(1), change), chance=lambda most: 0, settings=SETTINGS
        )
        node.step(TimeoutNow(N1, N2, 1))
        carry_out(node)
        node.step(VoteReply(N1, N2, 2, True, 0, 0))
        carry_out(node)
        assert node.is_leader
        assert node.propose_conf(node_ids(1, 2)) is Refusal.CHANGE_IN_FLIGHT
        node.step(AppendReply(N1, N2, 2, 3))
        assert isinstance(node.propose_conf(node_ids(1, 2)), int)

    def test_no_change_before_a_commit_of_the_own_term(self) -> None:
        """Ongaro 2015, "bug in single-server membership changes"."""
        node = leader_of_three()
        assert node.propose_conf(node_ids(1, 2)) is Refusal.NO_COMMIT_YET or (
            node.propose_conf(node_ids(1, 2)) is Refusal.CHANGE_IN_FLIGHT
        )
        node.step(AppendReply(N1, N2, node.term, 1))
        assert isinstance(node.propose_conf(node_ids(1, 2)), int)

    def test_a_configuration_holds_from_its_commit(self) -> None:
        node = leader_of_three()
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        node.propose_conf(node_ids(1, 2, 3), node_ids(4))
        assert node.conf == conf(1, 2, 3)
        carry_out(node)
        node.step(AppendReply(N1, N2, node.term, 2))
        assert node.conf == conf(1, 2, 3, learners=(4,))
        assert N4 in node.matches()

    def test_a_leader_that_is_removed_steps_down_and_the_rest_goes_on(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        leader.propose_conf(node_ids(2, 3))
        group.run()
        assert not leader.is_leader
        assert leader.conf == conf(2, 3)
        for _ in range(4 * SETTINGS.election_ticks):
            for number in (1, 2, 3):
                group.tick(number)
        assert group[2].is_leader or group[3].is_leader
        assert not leader.is_leader
        assert group[2].conf == group[3].conf == conf(2, 3)

    def test_a_smaller_configuration_commits_what_it_has(self) -> None:
        """What a leader has beyond the change is agreed upon as soon as the change holds; so are its reads."""
        node = leader_of_three()
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        node.propose_conf(node_ids(1))
        carry_out(node)
        node.step(AppendReply(N1, N2, node.term, 2))
        assert node.conf.is_joint
        last = node.propose(b"x")
        node.read_index(6)
        carry_out(node)
        assert node.commit == 2
        node.step(AppendReply(N1, N2, node.term, 3))
        assert node.conf == conf(1)
        assert node.commit == last
        assert node.ready().reads == ((6, 2),)

    @pytest.mark.parametrize(
        "made",
        [
            lambda: Conf(()),
            lambda: Conf(node_ids(2, 1)),
            lambda: Conf(node_ids(1, 1)),
            lambda: Conf(node_ids(1), learners=node_ids(1)),
            lambda: Conf(node_ids(1), next_learners=node_ids(2)),
            lambda: Conf(node_ids(1), outgoing=node_ids(1, 2)).changed(node_ids(1), ()),
        ],
    )
    def test_an_impossible_configuration_is_refused(self, made) -> None:
        with pytest.raises(ValueError, match=r"."):
            made()

    def test_a_voter_becomes_a_learner(self) -> None:
        joint = conf(1, 2, 3).changed(node_ids(1, 2), node_ids(3, 4))
        assert joint == Conf(node_ids(1, 2), outgoing=node_ids(1, 2, 3), learners=N4_ONLY, next_learners=node_ids(3))
        assert joint.left() == conf(1, 2, learners=(3, 4))


N4_ONLY = node_ids(4)


class TestR17Leave:
    def test_a_new_leader_leaves_a_joint_configuration(self) -> None:
        base = Base(0, 0, Conf(node_ids(1, 2, 4), outgoing=node_ids(1, 2, 3)))
        group = Group(*(make_node(number, base=base) for number in (1, 2, 3, 4)))
        leader = group.elect(1)
        group.run()
        assert leader.conf == conf(1, 2, 4)


class TestR18CommitTravels:
    def test_a_voter_learns_from_a_request_what_is_committed(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 2))
        take(node, vote(2, 5, last=(1, 1), commit=(2, 1)))
        assert node.commit == 2
        take(node, vote(2, 6, commit=(3, 1)))
        assert node.commit == 2, "another entry stands there"

    def test_a_candidate_learns_from_a_refusal_that_it_was_removed(self) -> None:
        change = Entry(2, 1, EntryKind.CONF, _encoded(conf(2, 3)))
        node = Raft(
            N1, Base(0, 0, conf(1, 2, 3)), entries=(*entries_of(1), change), chance=lambda most: 0, settings=SETTINGS
        )
        node.step(TimeoutNow(N1, N2, 1))
        carry_out(node)
        node.step(VoteReply(N1, N2, 2, False, 2, 1))
        assert node.conf == conf(2, 3)
        assert node.role is Role.FOLLOWER

    def test_a_candidate_asks_again_when_it_learns_of_another_configuration(self) -> None:
        change = Entry(2, 1, EntryKind.CONF, _encoded(conf(1, 2, 3, 4, 5)))
        node = Raft(
            N1, Base(0, 0, conf(1, 2, 3)), entries=(*entries_of(1), change), chance=lambda most: 0, settings=SETTINGS
        )
        node.step(TimeoutNow(N1, N2, 1))
        carry_out(node)
        node.step(VoteReply(N1, N2, 2, False, 2, 1))
        assert (node.conf, node.role) == (conf(1, 2, 3, 4, 5), Role.FOLLOWER)

    def test_a_refusal_of_a_lower_term_tells_it_too(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1), hard=HardState(9))
        node.step(PreVoteReply(N1, N2, 3, False, 2, 1))
        assert node.commit == 2

    def test_every_answer_carries_it(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1), hard=HardState(1, None, 2))
        assert only(take(node, vote(2, 5)), VoteReply).commit == 2
        assert only(take(node, pre_vote(2, 6)), PreVoteReply).commit == 2
        for _ in range(3 * SETTINGS.election_ticks):
            node.tick()
        node.ready()
        request = only([each for each in _campaigning(node) if each.to == N2], PreVote)
        assert (request.commit, request.commit_term) == (2, 1)


class TestR19Judgement:
    def test_a_node_that_knows_itself_as_no_voter_votes(self) -> None:
        node = make_node(1, 2, 3)
        assert only(take(node, vote(2, 1)), VoteReply).granted
        assert only(take(make_node(1, 2, 3), pre_vote(9, 1)), PreVoteReply).granted

    def test_but_it_never_campaigns(self) -> None:
        for node in (make_node(1, 2, 3), make_node(1, 2, 3, learners=(1,))):
            for _ in range(5 * SETTINGS.election_ticks):
                node.tick()
            node.step(TimeoutNow(N1, N2, 0))
            assert node.role is Role.FOLLOWER
            assert carry_out(node) == []


class TestR20NoCampaign:
    def test_not_while_a_snapshot_is_being_installed(self) -> None:
        node = make_node(1, 1, 2, 3)
        node.step(InstallSnapshot(N1, N2, 1, 5, 1, conf(1, 2, 3)))
        ready = node.ready()
        for _ in range(3 * SETTINGS.election_ticks):
            node.tick()
        node.step(TimeoutNow(N1, N2, 1))
        assert node.role is Role.FOLLOWER
        node.persisted(ready)
        node.step(TimeoutNow(N1, N2, 1))
        assert node.role is Role.CANDIDATE

    def test_not_before_what_was_committed_at_the_start_is_applied(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1), hard=HardState(1, None, 2))
        for _ in range(3 * SETTINGS.election_ticks):
            node.tick()
        assert node.role is Role.FOLLOWER
        ready = node.ready()
        node.persisted(ready)
        assert [entry.index for entry in ready.committed] == [1, 2]
        node.applied(2)
        for _ in range(3 * SETTINGS.election_ticks):
            node.tick()
        assert node.role is Role.PRE_CANDIDATE

    def test_a_node_starts_with_what_its_state_machine_has(self) -> None:
        node = make_node(1, 1, 2, 3, terms=(1, 1, 1), hard=HardState(1, None, 1), applied=2)
        assert node.commit == 2
        assert node.ready().committed == ()


class TestR21Transfer:
    def test_the_first_to_lead_is_one_that_answers_also_just_after_a_check_of_the_quorum(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.run()
        group.away.add(2)
        for ticks in range(1, 4 * SETTINGS.election_ticks):
            group.tick(1, 1)
            assert leader.is_leader
            if ticks > 3 * SETTINGS.heartbeat_ticks:
                assert leader.successors() == [N3, N2], ticks

    def test_a_transfer_waits_for_the_log_and_hands_over(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away.add(2)
        leader.propose(b"x")
        group.run()
        assert leader.transfer(N2)
        assert leader.propose(b"y") is Refusal.TRANSFERRING
        group.run()
        assert leader.is_leader
        assert not any(isinstance(each, TimeoutNow) for each in group.seen)
        group.away.clear()
        group.tick(1, SETTINGS.heartbeat_ticks)
        assert group[2].is_leader
        assert not leader.is_leader

    def test_a_transfer_that_fails_ends_after_an_election_time(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away.add(2)
        leader.transfer(N2)
        group.tick(1, SETTINGS.election_ticks)
        assert leader.is_leader
        assert isinstance(leader.propose(b"y"), int)

    @pytest.mark.parametrize("target", [1, 4, 9])
    def test_only_another_voter_can_take_over(self, target: int) -> None:
        group = Group(*(make_node(number, 1, 2, learners=(4,)) for number in (1, 2, 4)))
        assert not group.elect(1).transfer(NodeId(target))
        assert not group[2].transfer(N1)

    def test_changing_the_target_does_not_keep_a_lonely_leader(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.away |= {2, 3}
        for turn in range(2 * SETTINGS.election_ticks):
            leader.transfer(N2 if turn % 2 else N3)
            group.tick(1)
        assert not leader.is_leader


class TestR22Flow:
    def test_entries_on_their_way_are_bounded_by_messages(self) -> None:
        node = leader_of_three(settings=SETTINGS._replace(max_sent_messages=3, max_append_bytes=1))
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        for _ in range(10):
            node.propose(b"x")
        sent = [each for each in carry_out(node) if each.to == N2 and isinstance(each, Append) and each.entries]
        assert [len(each.entries) for each in sent] == [1, 1, 1]
        node.step(AppendReply(N1, N2, node.term, 2))
        assert [each.prev_index for each in carry_out(node) if each.to == N2 and each.entries] == [4]

    def test_and_by_bytes(self) -> None:
        node = leader_of_three(settings=SETTINGS._replace(max_sent_bytes=300, max_append_bytes=1))
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        for _ in range(10):
            node.propose(b"x" * 100)
        assert len([each for each in carry_out(node) if each.to == N2 and each.entries]) == 3

    def test_a_message_is_bounded_and_takes_one_entry_at_least(self) -> None:
        node = leader_of_three(settings=SETTINGS._replace(max_append_bytes=200))
        node.step(AppendReply(N1, N2, node.term, 1))
        carry_out(node)
        for size in (50, 50, 50, 1000):
            node.propose(b"x" * size)
        sent = [each for each in carry_out(node) if each.to == N2]
        assert [len(each.entries) for each in sent] == [2, 1, 1]

    def test_a_member_that_has_not_answered_gets_one_message(self) -> None:
        node = leader_of_three(terms=(1,))
        for _ in range(5):
            node.propose(b"x")
            assert not [each for each in carry_out(node) if each.to == N3]
        node.step(HeartbeatReply(N1, N3, node.term, 0))
        assert len([each for each in carry_out(node) if each.to == N3]) == 1

    def test_a_lost_message_is_found_by_the_next_heartbeat(self) -> None:
        group = group_of(1, 2, 3)
        leader = group.elect(1)
        group.lost_kinds = (Append,)
        index = leader.propose(b"x")
        group.run()
        group.lost_kinds = ()
        group.tick(1, SETTINGS.heartbeat_ticks)
        assert group[2].log.last_index == group[3].log.last_index == index
        assert leader.commit == index

    def test_a_leader_that_commits_nothing_says_that_it_is_busy(self) -> None:
        node = leader_of_three(settings=SETTINGS._replace(max_uncommitted_bytes=1000))
        taken = 0
        while isinstance(node.propose(b"x" * 100), int):
            taken += 1
            assert taken < 20
        assert node.propose(b"") is Refusal.BUSY
        carry_out(node)
        node.step(AppendReply(N1, N2, node.term, node.log.last_index))
        assert isinstance(node.propose(b"x"), int)

    def test_a_follower_takes_no_proposal(self) -> None:
        assert make_node(1, 1, 2, 3).propose(b"x") is Refusal.NOT_LEADER


class TestR26Silence:
    def test_a_vote_says_for_how_long_no_leader_was_heard(self) -> None:
        node = make_node(1, 1, 2, 3)
        take(node, append(2, 4))
        for _ in range(7):
            node.tick()
        take(node, Heartbeat(N1, N2, 4, 0, 0))
        for _ in range(SETTINGS.election_ticks):
            node.tick()
        assert only(take(node, vote(3, 5)), VoteReply).silent == SETTINGS.election_ticks

    def test_a_hint_that_the_leader_is_dead_is_no_silence(self) -> None:
        node = make_node(1, 1, 2, 3)
        take(node, append(2, 4))
        node.tick()
        node.leader_lost(N2, campaign=False)
        assert only(take(node, vote(3, 5)), VoteReply).silent == 1

    def test_silence_begins_anew_with_each_start(self) -> None:
        node = make_node(1, 1, 2, 3)
        assert only(take(node, vote(3, 1)), VoteReply).silent == 0

    def test_a_leader_has_not_been_silent_when_it_steps_down(self) -> None:
        node = leader_of_three()
        ticks = 0
        while node.is_leader:  # it hears no majority
            node.tick()
            ticks += 1
        for _ in range(3):
            node.tick()
        assert SETTINGS.election_ticks <= ticks
        assert only(take(node, vote(3, 9)), VoteReply).silent == 3

    def test_a_leader_that_steps_down_before_its_first_tick_has_not_been_silent(self) -> None:
        node = leader_of_three()
        take(node, AppendReply(N1, N3, node.term + 1, 1))
        assert not node.is_leader
        assert only(take(node, vote(3, 9)), VoteReply).silent == 0

    def test_a_leader_knows_the_shortest_silence_of_its_voters(self) -> None:
        node = make_node(1, 1, 2, 3, 4, 5)
        take(node, append(2, 4))
        for _ in range(9):
            node.tick()
        node.step(TimeoutNow(N1, N2, 4))
        carry_out(node)
        node.step(VoteReply(N1, N3, 5, True, 0, 0, 6))
        node.step(VoteReply(N1, N4, 5, False, 0, 0, 2))  # did not elect it
        node.step(VoteReply(N1, N5, 5, True, 0, 0, 12))
        assert node.is_leader
        assert node.silence == 6

    def test_its_own_silence_counts_too(self) -> None:
        node = make_node(1, 1, 2, 3)
        take(node, append(2, 4))
        for _ in range(9):
            node.tick()
        node.step(TimeoutNow(N1, N2, 4))
        carry_out(node)
        node.step(VoteReply(N1, N3, 5, True, 0, 0, 12))
        assert node.is_leader
        assert node.silence == 9


def test_followers_learn_of_a_commit_without_a_heartbeat() -> None:
    group = group_of(1, 2, 3)
    leader = group.elect(1)
    index = leader.propose(b"x")
    group.run()
    assert [node.commit for node in group.nodes.values()] == [index] * 3
    assert [entry.data for entry in group.applied[2]] == [b"", b"x"]


def test_entries_applied_at_once_are_bounded() -> None:
    node = make_node(
        1, 1, terms=(1,) * 10, hard=HardState(1, None, 10), settings=SETTINGS._replace(max_apply_entries=4)
    )
    sizes = []
    while node.has_ready:
        ready = node.ready()
        node.persisted(ready)
        sizes.append(len(ready.committed))
        node.applied(ready.committed[-1].index)
    assert sizes == [4, 4, 2]


def test_elections_are_spread_by_chance() -> None:
    node = make_node(1, 1, 2, 3, chance=lambda most: most - 1)
    for _ in range(2 * SETTINGS.election_ticks - 2):
        node.tick()
    assert node.role is Role.FOLLOWER
    node.tick()
    assert node.role is Role.PRE_CANDIDATE


def test_messages_survive_their_encoding() -> None:
    import msgspec

    messages: list[Message] = [
        vote(2, 3, last=(4, 2), commit=(3, 2), transfer=True),
        append(2, 3, previous=(1, 1), terms=(1, 2), commit=4),
        InstallSnapshot(N1, N2, 3, 9, 2, Conf(node_ids(1, 2), outgoing=node_ids(2, 3), next_learners=node_ids(3))),
        ReadIndexReply(N1, N2, 3, 2**63, 5),
    ]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(messages), type=list[Message]) == messages


def _encoded(value: Conf) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(value)


def _campaigning(node: Raft) -> list[Message]:
    """Let a node that has everything applied ask for pre-votes; return its messages."""
    carry_out(node)
    node.applied(node.commit)
    sent: list[Message] = []
    for _ in range(2 * SETTINGS.election_ticks):
        node.tick()
        sent += carry_out(node)
        if sent:
            return sent
    raise AssertionError("it does not campaign")


class TestR27Preference:
    def test_of_two_candidates_at_the_same_moment_one_wins(self) -> None:
        group = group_of(1, 2, 3)
        group.elect(3)
        group.away.add(3)
        for number in (1, 2):
            for _ in range(SETTINGS.election_ticks):
                group[number].tick()
        assert group[1].role is group[2].role is Role.PRE_CANDIDATE
        group.run()
        assert group[1].is_leader
        assert group[2].leader == N1

    def _asked(self, *, after_ticks: int = 0, sender: int = 2, last: tuple[int, int] = (0, 0)) -> bool:
        """Node 1 asks for pre-votes; return whether it grants one then."""
        node = make_node(1, 1, 2, 3, chance=lambda most: most - 1)
        while node.role is not Role.PRE_CANDIDATE:
            node.tick()
        carry_out(node)
        for _ in range(after_ticks):
            node.tick()
        return only(take(node, pre_vote(sender, 1, last=last)), PreVoteReply).granted

    def test_only_nodes_with_higher_ids_and_equal_logs_wait(self) -> None:
        assert not self._asked()
        assert self._asked(last=(1, 1))
        node = make_node(2, 1, 2, 3)
        for _ in range(SETTINGS.election_ticks):
            node.tick()
        carry_out(node)
        request = PreVote(N2, N1, 1, 0, 0, 0, 0)
        assert only(take(node, request), PreVoteReply).granted

    def test_a_node_is_preferred_for_one_heartbeat_time(self) -> None:
        assert not self._asked(after_ticks=SETTINGS.heartbeat_ticks - 1)
        assert self._asked(after_ticks=SETTINGS.heartbeat_ticks)
