"""Mistakes planted in the Raft core, each with the test or the seed that finds it.

A mutant is one replacement in one file. It is loaded in a forked process in place of the real module, so tests and
worlds run on it as they are. ``python -m raft_mutants`` (in this folder) runs all of them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest  # noqa: F401 - once, not in each fork

import danube.model  # noqa: F401

__all__ = ["MUTANTS", "Mutant", "is_killed"]

_HERE = Path(__file__).parent
_RAFT = _HERE.parent.parent / "danube" / "raft"


class Mutant(NamedTuple):
    """One planted mistake."""

    file: str
    old: str
    """Occurs once in the file."""
    new: str
    killer: str | int
    """A test of test_raft_rules, or the seed of a world."""


MUTANTS = {
    "candidates of the same moment prefer each other": Mutant(
        "core.py",
        "                and not self._goes_first(request)\n",
        "",
        "TestR27Preference::test_of_two_candidates_at_the_same_moment_one_wins",
    ),
    "a candidate is preferred for ever": Mutant(
        "core.py",
        "            and self._elapsed < self.settings.heartbeat_ticks\n            and request.term",
        "            and request.term",
        "TestR27Preference::test_a_node_is_preferred_for_one_heartbeat_time",
    ),
    "a refused candidate is preferred": Mutant(
        "core.py",
        "            and self._votes.get(request.sender, True)\n",
        "",
        "TestR5PreVote::test_a_lost_leader_is_not_heard_any_more_at_voters_too",
    ),
    "a candidate is preferred to one with a longer log": Mutant(
        "core.py",
        "            and (request.last_index, request.last_term) == self._log_point()\n            and self.node_id <",
        "            and self.node_id <",
        "TestR27Preference::test_only_nodes_with_higher_ids_and_equal_logs_wait",
    ),
    "hint counts as silence": Mutant(
        "core.py",
        "            self._since_heard = self.settings.election_ticks\n            if campaign",
        "            self._since_heard = self._silent = self.settings.election_ticks\n            if campaign",
        "TestR26Silence::test_a_hint_that_the_leader_is_dead_is_no_silence",
    ),
    "only the own silence counts": Mutant(
        "core.py",
        "            self._silence = min(self._silence, reply.silent)",
        "            pass",
        "TestR26Silence::test_a_leader_knows_the_shortest_silence_of_its_voters",
    ),
    "a leader is silent while it leads": Mutant(
        "core.py",
        "            self._silent = 0\n            self._tick_leader()",
        "            self._tick_leader()",
        "TestR26Silence::test_a_leader_has_not_been_silent_when_it_steps_down",
    ),
    "a leader is silent before its first tick": Mutant(
        "core.py",
        "        self._silent = 0  # it may step down before its first tick (R26)\n",
        "",
        "TestR26Silence::test_a_leader_that_steps_down_before_its_first_tick_has_not_been_silent",
    ),
    "vote not synced before it is answered": Mutant(
        "core.py",
        "        self._after.append(VoteReply(request.sender, self.node_id, self.term, granted, "
        "*commit, self._silent))",
        "        self._messages.append(VoteReply(request.sender, self.node_id, self.term, granted, "
        "*commit, self._silent))",
        "TestR1Votes::test_a_vote_is_answered_only_when_it_is_durable",
    ),
    "candidate asks before its vote is synced": Mutant(
        "core.py",
        "            self._after.append(\n                Vote(",
        "            self._messages.append(\n                Vote(",
        "TestR1Votes::test_a_candidate_asks_only_when_its_own_vote_is_durable",
    ),
    "own vote counts before it is synced": Mutant(
        "core.py",
        "        self._after.append(VoteReply(self.node_id, self.node_id, self.term, True, 0, 0, self._silent))",
        "        self._count(VoteReply(self.node_id, self.node_id, self.term, True, 0, 0, self._silent))",
        "TestR1Votes::test_the_own_vote_counts_only_when_it_is_durable",
    ),
    "two votes a term": Mutant(
        "core.py",
        "granted = is_complete and (self._vote == request.sender or (self._vote is None and self.leader is None))",
        "granted = is_complete",
        "TestR1Votes::test_one_vote_a_term",
    ),
    "vote although the leader of the term is known": Mutant(
        "core.py",
        "(self._vote is None and self.leader is None)",
        "self._vote is None",
        "TestR1Votes::test_a_node_that_knows_the_leader_of_a_term_gives_no_vote_in_it",
    ),
    "vote forgotten at the start": Mutant(
        "core.py",
        "self._vote = hard.vote if self.term == hard.term else None",
        "self._vote = None",
        "TestR1Votes::test_a_vote_survives_a_restart",
    ),
    "vote kept in a new term": Mutant(
        "core.py",
        "            self.term, self._vote = term, None",
        "            self.term = term",
        "TestR5PreVote::test_a_lost_leader_is_not_heard_any_more_at_voters_too",
    ),
    "votes counted without identity": Mutant(
        "core.py",
        "        self._votes.setdefault(reply.sender, reply.granted)",
        "        free = [each for each in self.conf.electors if each not in self._votes]\n"
        "        self._votes[free[0] if free else reply.sender] = reply.granted",
        "TestR1Votes::test_votes_count_by_identity",
    ),
    "half of the voters is a majority": Mutant(
        "conf.py",
        "    majority = len(voters) // 2 + 1",
        "    majority = (len(voters) + 1) // 2",
        "TestR1Votes::test_a_majority_of_four_is_three",
    ),
    "half of the disks is a majority": Mutant(
        "conf.py",
        "values[len(values) // 2]",
        "values[(len(values) - 1) // 2]",
        "TestR9Commit::test_a_majority_of_four_disks_is_three",
    ),
    "replies of lower terms count": Mutant(
        "core.py",
        "        elif message.term < self.term:\n            self._answer_stale(message)\n            return\n",
        "        elif message.term < self.term and not isinstance(message, AppendReply | "
        "VoteReply):\n"
        "            self._answer_stale(message)\n"
        "            return\n",
        "TestR2Terms::test_replies_of_a_lower_term_elect_no_candidate",
    ),
    "higher term of a reply is ignored": Mutant(
        "core.py",
        "        is_leaders = isinstance(message, Append | Heartbeat | InstallSnapshot)\n",
        "        is_leaders = isinstance(message, Append | Heartbeat | InstallSnapshot)\n"
        "        if isinstance(message, AppendReply):\n"
        "            return False\n",
        "TestR2Terms::test_a_higher_term_ends_a_leader",
    ),
    "stale leader is not answered": Mutant(
        "core.py",
        "                self._messages.append(AppendReply(message.sender, self.node_id, self.term, 0, refused=True))",
        "                pass",
        "TestR3Stale::test_a_stale_leader_hears_of_our_term_and_steps_down",
    ),
    "stale candidate is not answered": Mutant(
        "core.py",
        "                self._reply_pre_vote(message.sender, self.term, granted=False)",
        "                pass",
        "TestR3Stale::test_a_stale_candidate_hears_of_our_term",
    ),
    "no check that the candidate's log is complete": Mutant(
        "core.py",
        "is_complete = self.log.is_up_to_date(request.last_index, request.last_term)",
        "is_complete = True",
        "TestR4Complete::test_a_vote_goes_to_a_log_that_is_as_complete",
    ),
    "logs compared by length alone": Mutant(
        "log.py",
        "(last_term, last_index) >= (self.last_term, self.last_index)",
        "last_index >= self.last_index",
        "TestR4Complete::test_a_vote_goes_to_a_log_that_is_as_complete",
    ),
    "pre-vote raises the term": Mutant(
        "core.py",
        "            case PreVote():\n                return True\n",
        "            case PreVote() if False:\n                return True\n",
        "TestR5PreVote::test_a_pre_vote_changes_nothing",
    ),
    "pre-vote although a leader is heard": Mutant(
        "core.py",
        "                and not self._hears_leader()\n",
        "",
        "TestR5PreVote::test_a_pre_vote_is_refused_while_a_leader_is_heard",
    ),
    "vote although a leader is heard": Mutant(
        "core.py",
        "            case Vote(transfer=False) if self._hears_leader():",
        "            case Vote(transfer=False) if False:",
        "TestR5PreVote::test_a_vote_is_ignored_while_a_leader_is_heard_unless_it_hands_over",
    ),
    "refused append does not count as hearing the leader": Mutant(
        "core.py",
        "            case Append():\n                self._hear(message.sender)\n",
        "            case Append():\n"
        "                if self.role is not Role.FOLLOWER or self.leader is None or "
        "self.log.term(message.prev_index) == message.prev_term:\n"
        "                    self._hear(message.sender)\n",
        "TestR6Heard::test_an_append_that_is_refused_counts_as_hearing_the_leader",
    ),
    "lonely leader stays": Mutant(
        "core.py",
        "for node in self.conf.electors}) is not True:",
        "for node in self.conf.electors}) is not True and False:",
        "TestR7CheckQuorum::test_a_leader_that_hears_no_majority_steps_down",
    ),
    "log cut without a conflict": Mutant(
        "log.py",
        "            if own != entry.term:\n",
        "            if True:\n",
        "TestR8Cut::test_entries_that_match_stay_with_all_that_follows",
    ),
    "commit of an old term by counting": Mutant(
        "core.py",
        "if agreed <= self.commit or self.log.term(agreed) != self.term:",
        "if agreed <= self.commit:",
        "TestR9Commit::test_an_entry_of_an_older_term_is_not_committed_by_counting",
    ),
    "leader begins without a no-op": Mutant(
        "core.py",
        '        self._append(EntryKind.NOOP, b"")\n',
        "",
        "TestR9Commit::test_the_first_entry_of_a_leader_is_a_no_op",
    ),
    "learners count": Mutant(
        "core.py",
        "            agreed = self.conf.agreed(self._match_of)\n",
        "            agreed = Conf(tuple(sorted(self.conf.members))).agreed(self._match_of)\n",
        "TestR9Commit::test_a_learner_does_not_count",
    ),
    "follower commits what it has not verified": Mutant(
        "core.py",
        "self._commit_to(min(message.commit, verified))",
        "self._commit_to(min(message.commit, self.log.last_index))",
        "TestR10FollowerCommit::test_a_follower_commits_only_what_it_has_verified",
    ),
    "match falls": Mutant(
        "progress.py",
        "self.match = max(self.match, index)",
        "self.match = index",
        "TestR11Match::test_a_late_answer_does_not_lower_what_is_known",
    ),
    "late refusal lowers what is sent next": Mutant(
        "progress.py",
        "if self.stage is Stage.SNAPSHOT or previous <= self.match:",
        "if self.stage is Stage.SNAPSHOT:",
        "TestR11Match::test_a_late_refusal_does_not_lower_it",
    ),
    "heartbeat commits what its receiver may lack": Mutant(
        "core.py",
        "commit = min(member.match, self.commit)",
        "commit = self.commit",
        "TestR12HeartbeatCommit::test_a_heartbeat_commits_nothing_that_its_receiver_may_lack",
    ),
    "own disk counts before its sync": Mutant(
        "core.py",
        "            self._members_match(self.node_id, self.log.synced)",
        "            self._members_match(self.node_id, self.log.last_index)",
        "TestR13Disk::test_a_write_counts_for_its_own_entries_only",
    ),
    "follower answers before its sync": Mutant(
        "core.py",
        "        self._after.append(AppendReply(to, self.node_id, self.term, index))",
        "        self._messages.append(AppendReply(to, self.node_id, self.term, index))",
        "TestR13Disk::test_a_follower_answers_only_when_it_has_synced",
    ),
    "applied before its sync": Mutant(
        "core.py",
        "else min(self.commit, self.log.synced)",
        "else self.commit",
        "TestR13Disk::test_nothing_is_applied_that_is_not_durable_here",
    ),
    "a replaced write counts (A-B-A)": Mutant(
        "log.py",
        "        for write in self._writes:\n            write.end = min(write.end, last)\n",
        "",
        "TestR13Disk::test_a_write_of_entries_that_were_replaced_and_came_back_does_not_count",
    ),
    "entries without the commit index that came with them": Mutant(
        "core.py",
        "        now = HardState(self.term, self._vote, self.commit)\n",
        "        now = HardState(self.term, self._vote, self._written_hard.commit)\n",
        "TestR13Disk::test_entries_are_written_with_the_commit_index_that_came_with_them",
    ),
    "snapshot drops a suffix that matches": Mutant(
        "core.py",
        "        if self.log.term(message.index) == message.index_term:\n",
        "        if False:\n",
        "TestR14Snapshots::test_a_snapshot_keeps_a_suffix_that_matches",
    ),
    "old snapshot is installed": Mutant(
        "core.py",
        "        if message.index <= self.commit or self._snapshot is not None:",
        "        if self._snapshot is not None:",
        "TestR14Snapshots::test_an_old_snapshot_is_ignored",
    ),
    "snapshot acknowledged before it is durable": Mutant(
        "core.py",
        "        self._confs = [(message.index, message.conf)]\n"
        "        self._reply_append(message.sender, message.index)",
        "        self._confs = [(message.index, message.conf)]\n"
        "        self._messages.append(AppendReply(message.sender, self.node_id, self.term, "
        "message.index))",
        "TestR14Snapshots::test_a_snapshot_replaces_a_log_that_does_not_match",
    ),
    "snapshot forgets the configuration": Mutant(
        "core.py",
        "        self._confs = [(message.index, message.conf)]\n",
        "",
        "TestR14Snapshots::test_a_snapshot_replaces_a_log_that_does_not_match",
    ),
    "lost snapshot is not sent again": Mutant(
        "core.py",
        "            if member.stage is Stage.SNAPSHOT and member.silent_ticks >= self.settings.snapshot_ticks:",
        "            if False:",
        "TestR14Snapshots::test_a_snapshot_that_is_silent_is_sent_again",
    ),
    "failed snapshot is not sent again": Mutant(
        "core.py",
        "        if member is not None and member.stage is Stage.SNAPSHOT:\n            member.probe()\n",
        "        if member is not None and member.stage is Stage.SNAPSHOT:\n",
        "TestR14Snapshots::test_a_snapshot_that_failed_is_sent_again",
    ),
    "read before a commit of the own term": Mutant(
        "core.py",
        "return self._reads.is_asking and self.commit >= self._first_of_term",
        "return self._reads.is_asking",
        "TestR15Reads::test_a_read_waits_for_a_commit_of_the_leaders_term",
    ),
    "read without a majority": Mutant(
        "core.py",
        "        confirmed = self.conf.agreed(self._confirmed_round_of)\n",
        "        confirmed = self._reads.round\n",
        "TestR15Reads::test_a_read_waits_for_a_majority_that_answers_after_it_was_asked",
    ),
    "read confirmed by an answer from before": Mutant(
        "core.py",
        "        member.confirmed_round = max(member.confirmed_round, reply.round)\n",
        "        member.confirmed_round = self._reads.round\n",
        "TestR15Reads::test_an_answer_without_a_round_confirms_no_read",
    ),
    "reads survive the loss of the lead": Mutant(
        "core.py",
        "        self._transfer = None\n        self._reads.lose(self.node_id)\n",
        "        self._transfer = None\n",
        "TestR15Reads::test_the_reads_of_a_leader_that_loses_its_place_are_lost",
    ),
    "change of voters without a joint phase": Mutant(
        "conf.py",
        "            outgoing=self.voters,\n",
        "            outgoing=(),\n",
        "TestR16Changes::test_voters_change_through_a_joint_configuration",
    ),
    "joint commit by the new voters alone": Mutant(
        "conf.py",
        "        return min(agreed, _middle(self.outgoing, value_of)) if self.outgoing else agreed",
        "        return agreed",
        "TestR16Changes::test_a_joint_commit_needs_a_majority_of_both",
    ),
    "joint election by the new voters alone": Mutant(
        "conf.py",
        "        if self.outgoing:\n            results",
        "        if False:\n            results",
        "TestR16Changes::test_a_joint_election_needs_a_majority_of_both",
    ),
    "second change in flight": Mutant(
        "core.py",
        "(self._last_change > self.commit or self.conf.is_joint)",
        "self.conf.is_joint",
        "TestR16Changes::test_one_change_at_a_time",
    ),
    "inherited change does not count": Mutant(
        "core.py",
        "        self._last_change = self.log.last_index  # an",
        "        self._last_change = 0  # an",
        "TestR16Changes::test_an_inherited_change_counts",
    ),
    "change before a commit of the own term": Mutant(
        "core.py",
        "        if refusal is None and self.commit < self._first_of_term:",
        "        if False:",
        "TestR16Changes::test_no_change_before_a_commit_of_the_own_term",
    ),
    "configuration holds before its commit": Mutant(
        "core.py",
        "        if kind is EntryKind.CONF:\n            self._last_change = entry.index\n",
        "        if kind is EntryKind.CONF:\n"
        "            self._last_change = entry.index\n"
        "            self._confs.append((entry.index, _decode_conf(entry.data)))\n"
        "            self._fit_members()\n",
        "TestR16Changes::test_a_configuration_holds_from_its_commit",
    ),
    "removed leader goes on": Mutant(
        "core.py",
        "        if self.node_id not in self.conf.electors:\n            self._send_last_commit()",
        "        if False:\n            self._send_last_commit()",
        "TestR16Changes::test_a_leader_that_is_removed_steps_down_and_the_rest_goes_on",
    ),
    "joint configuration is never left": Mutant(
        "core.py",
        "            self._append(EntryKind.CONF, _encode_conf(self.conf.left()))",
        "            pass",
        "TestR17Leave::test_a_new_leader_leaves_a_joint_configuration",
    ),
    "smaller configuration commits nothing by itself": Mutant(
        "core.py",
        "            changed = self._commit_to(agreed)\n",
        "            changed = self._commit_to(agreed) and False\n",
        "TestR16Changes::test_a_smaller_configuration_commits_what_it_has",
    ),
    "commit does not travel with votes": Mutant(
        "core.py",
        "        if commit <= self.commit or self.role is Role.LEADER or self.log.term(commit) != commit_term:",
        "        if True:",
        "TestR18CommitTravels::test_a_voter_learns_from_a_request_what_is_committed",
    ),
    "commit by vote without comparing the entry": Mutant(
        "core.py",
        "self.role is Role.LEADER or self.log.term(commit) != commit_term:",
        "self.role is Role.LEADER or commit > self.log.last_index:",
        "TestR18CommitTravels::test_a_voter_learns_from_a_request_what_is_committed",
    ),
    "candidate keeps votes of an old configuration": Mutant(
        "core.py",
        "        if changed and self.role is not Role.FOLLOWER:",
        "        if False:",
        "TestR18CommitTravels::test_a_candidate_asks_again_when_it_learns_of_another_configuration",
    ),
    "no vote by a node that knows itself as no voter": Mutant(
        "core.py",
        "        is_complete = self.log.is_up_to_date(",
        "        is_complete = self.node_id in self.conf.electors and self.log.is_up_to_date(",
        "TestR19Judgement::test_a_node_that_knows_itself_as_no_voter_votes",
    ),
    "learner campaigns": Mutant(
        "core.py",
        "return self.node_id in self.conf.electors and",
        "return self.node_id in self.conf.members and",
        "TestR19Judgement::test_but_it_never_campaigns",
    ),
    "campaign while a snapshot is installed": Mutant(
        "core.py",
        " and self._snapshot is None and",
        " and",
        "TestR20NoCampaign::test_not_while_a_snapshot_is_being_installed",
    ),
    "campaign before the start is applied": Mutant(
        "core.py",
        " and self._applied >= self._commit_at_start",
        "",
        "TestR20NoCampaign::test_not_before_what_was_committed_at_the_start_is_applied",
    ),
    "proposals during a transfer": Mutant(
        "core.py",
        "        if self._transfer is not None:\n            return Refusal.TRANSFERRING\n",
        "",
        "TestR21Transfer::test_a_transfer_waits_for_the_log_and_hands_over",
    ),
    "transfer never ends": Mutant(
        "core.py",
        "        if self._transfer_ticks >= self.settings.election_ticks:\n",
        "        if False:\n",
        "TestR21Transfer::test_a_transfer_that_fails_ends_after_an_election_time",
    ),
    "transfer before the log is there": Mutant(
        "core.py",
        "        if self._members[to].match == self.log.last_index:\n",
        "        if True:\n",
        "TestR21Transfer::test_a_transfer_waits_for_the_log_and_hands_over",
    ),
    "no bound on messages on their way": Mutant(
        "progress.py",
        "return len(self._sent) >= self._max_messages or self._bytes >= self._max_bytes",
        "return self._bytes >= self._max_bytes",
        "TestR22Flow::test_entries_on_their_way_are_bounded_by_messages",
    ),
    "no bound on bytes on their way": Mutant(
        "progress.py",
        "return len(self._sent) >= self._max_messages or self._bytes >= self._max_bytes",
        "return len(self._sent) >= self._max_messages",
        "TestR22Flow::test_and_by_bytes",
    ),
    "no bound on what is not committed": Mutant(
        "core.py",
        "        if self._uncommitted_bytes >= self.settings.max_uncommitted_bytes:\n",
        "        if False:\n",
        "TestR22Flow::test_a_leader_that_commits_nothing_says_that_it_is_busy",
    ),
    "lost messages are not noticed": Mutant(
        "core.py",
        "        if member.match < self.log.last_index:\n            self._send_append(reply.sender, empty=True)",
        "        pass",
        "TestR22Flow::test_a_lost_message_is_found_by_the_next_heartbeat",
    ),
}


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with the replacement made."""

    mutant: Mutant

    def path_stats(self, path: str) -> dict[str, int]:
        raise OSError  # no compiled file, neither read nor written

    def get_data(self, path: str) -> bytes:
        text = Path(path).read_text()
        if Path(path).name == self.mutant.file:
            if text.count(self.mutant.old) != 1:
                raise ImportError(f"{self.mutant.old!r} occurs {text.count(self.mutant.old)} times in {path}")
            text = text.replace(self.mutant.old, self.mutant.new)
        return text.encode()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "danube.raft" and not name.startswith("danube.raft."):
            return None
        file = _RAFT / ("__init__.py" if name == "danube.raft" else f"{name.rpartition('.')[2]}.py")
        loader = _Loader(name, str(file))
        loader.mutant = self._mutant
        return importlib.util.spec_from_file_location(
            name, file, loader=loader, submodule_search_locations=[str(_RAFT)] if name == "danube.raft" else None
        )


def is_killed(mutant: Mutant, killer: str | int) -> bool:
    """Return whether a test or a world finds the mutant. Forks; the caller has not imported danube.raft."""
    assert "danube.raft" not in sys.modules
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = _run(mutant, killer)
        except ImportError as error:
            sys.stderr.write(f"{error}\n")
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, 1):
        raise RuntimeError(f"a mutant could not be tried: exit code {status}")
    return status == 1


def _run(mutant: Mutant, killer: str | int) -> int:
    sys.meta_path.insert(0, _Finder(mutant))
    try:
        if isinstance(killer, int):
            importlib.import_module("raft_simulator").run_world(killer)
        else:
            _run_test(killer)
    except ImportError:
        raise
    except Exception:  # noqa: BLE001 - a test, or a world, that does not end well
        return 1
    return 0


def _run_test(name: str) -> None:
    """Run one test of test_raft_rules, with each of its parameters. pytest itself would take a second."""
    class_name, _, method_name = name.partition("::")
    tests = importlib.import_module("test_raft_rules")
    method = getattr(getattr(tests, class_name)(), method_name)
    cases: list[dict[str, Any]] = [{}]
    for mark in getattr(method, "pytestmark", []):
        names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
        cases = [dict(zip(names, values if len(names) > 1 else [values], strict=True)) for values in mark.args[1]]
    for case in cases:
        method(**case)


def main() -> int:
    """Try every mutant with its killer; print and return how many live."""
    living = [name for name, mutant in MUTANTS.items() if not is_killed(mutant, mutant.killer)]
    for name in living:
        sys.stdout.write(f"lives: {name}\n")
    sys.stdout.write(f"{len(MUTANTS)} mutants, {len(MUTANTS) - len(living)} killed\n")
    return len(living)


if __name__ == "__main__":
    sys.exit(main())
