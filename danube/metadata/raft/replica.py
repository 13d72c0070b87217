"""What one member of a group says and does, given what arrives and when. Pure: sans-I/O, as the core that it drives.

:class:`Replica` composes the books of a member around its Raft core: calls, proposals, confirmations, renewals, leases,
copies, and the messages between members. :class:`~danube.metadata.raft.node.Node` owns disk, table, links and clock,
and executes what is returned here. One *turn* of its loop::

    begin_turn(now, payloads)          time, messages, calls go in
    while work := next_work():         what the core asks for
        write work.ready; writing(...)     begin to write the log
        install work.copy; installed(...)  replace the table, in the background: no other work is to be written
        send copies to work.copies         in the background
    end_turn() -> payloads             to be sent now

Behind a turn, or beside the turns, :meth:`next_batch` is taken, and reported with :meth:`applied`, :meth:`confirmed`;
the receiver takes :meth:`next_piece` and reports :meth:`received`. After each of these another turn is due.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from danube.metadata._contract import LeaseId
from danube.metadata._machine import Effects, StoreMachine
from danube.metadata.raft.calls import Call, Change, Read, Renewal, Waiting
from danube.metadata.raft.commands import Compare, Revoke, SetBounds
from danube.metadata.raft.comparing import Comparison, Verdict
from danube.metadata.raft.confirmations import Confirmations, Confirmed, EndingLeases, KeptAlive
from danube.metadata.raft.cutting import cut_index
from danube.metadata.raft.forwarding import Inbox
from danube.metadata.raft.leases import Leases
from danube.metadata.raft.members import MembersBook, MembersCall, MembersMaker
from danube.metadata.raft.messages import (
    AnyMessage,
    ChangeMembers,
    Differs,
    Digest,
    Forward,
    ForwardReply,
    KeepAlive,
    KeepAliveReply,
    MembersChanged,
    MembersRequest,
    SnapshotPiece,
    SnapshotReply,
    decode_payload,
)
from danube.metadata.raft.options import NodeOptions
from danube.metadata.raft.pace import Pace
from danube.metadata.raft.posts import Posts
from danube.metadata.raft.proposals import Proposals
from danube.metadata.raft.renewals import Renewals
from danube.metadata.raft.state import Applied, Bounds
from danube.metadata.raft.transfer import Incoming, Outgoing, Receiving
from danube.model.decoding import UNDECODABLE
from danube.model.errors import DanubeError, UnavailableError
from danube.model.log_events import log_event
from danube.raft import Base, Entry, EntryKind, InstallSnapshot, Message, NodeId, Raft, Ready, Refusal, Role
from danube.raft.messages import ReadToken

__all__ = ["Batch", "Piece", "Replica", "Work"]

_log = logging.getLogger("danube.metadata")

_COMPARES: Final = (Compare(),)
_MOST_SUCCESSORS: Final = 4
"""A leader that stops asks so many voters to lead."""


class Work(NamedTuple):
    """What is to be done now."""

    ready: Ready | None
    """To be written to the log."""
    copy: Base | None
    """The table is to be replaced by the copy that was received, which ends here."""
    copies: tuple[NodeId, ...]
    """Members to which the table is to be sent."""


class Batch(NamedTuple):
    """What is to be applied and answered next, in this order."""

    entries: Sequence[Entry]
    due: Sequence[Confirmed]

    @property
    def reads(self) -> list[Read]:
        """The reads among what is due."""
        return [read for what in self.due if isinstance(what, list) for read in what]


class Piece(NamedTuple):
    """A piece of a copy, to be written if it is :meth:`expected <Receiving.expects>`."""

    sender: NodeId
    message: SnapshotPiece
    receiving: Receiving


class _Written(NamedTuple):
    ready: Ready
    pending: bool


class Replica:
    """A member of a group. See the module.

    Args:
        raft: the core.
        life: of this process: a random number.
        leases: of the table.
        bounds: that this member asks for when it leads.
        options: times and sizes.
        chance: returns random numbers in [0, 1).
    """

    def __init__(
        self,
        raft: Raft,
        *,
        life: int,
        leases: Iterable[tuple[LeaseId, float]],
        bounds: Bounds,
        options: NodeOptions,
        chance: Callable[[], float],
    ) -> None:
        self.raft = raft
        self.outgoing = Outgoing()
        """Copies to other members."""
        self._life = life
        self._bounds = bounds
        self._options = options
        self._chance = chance
        self._waiting = Waiting()
        self._proposals = Proposals(raft.node_id, life, options)
        self._inbox = Inbox()
        self._confirmations = Confirmations()
        self._renewals = Renewals()
        self._leases = Leases(leases)
        self._members_book = MembersBook(life)
        self._members_maker = MembersMaker(raft)
        self._comparison = Comparison(options.compare_s)
        self._copies_due: list[NodeId] = []
        self._replacing = 0
        """Entry of the comparison for which this member's table is to be replaced; 0: it is not."""
        self._pace = Pace(options)
        self._posts = Posts(raft.node_id)
        self._incoming = Incoming()
        self._followed: tuple[int, NodeId | None] = (0, None)
        """Term and leader to which everything was last adapted."""
        self._being_written: deque[_Written] = deque()
        self._written = 0
        self._held: deque[Ready] = deque()
        """To be written behind the installation of a copy."""
        self._is_installing = False
        self._to_apply: deque[Entry] = deque()
        self._puts_off = False
        """Nothing is to be applied before the next turn."""
        self.has_begun_write = False
        """Whether a write of the log began in the last turn."""

    # --- What it is

    @property
    def member(self) -> NodeId:
        """The id of this member."""
        return self.raft.node_id

    @property
    def is_alone(self) -> bool:
        """Whether this is the only member."""
        return self.raft.conf.is_only(self.raft.node_id)

    @property
    def is_idle(self) -> bool:
        """Whether no timer is needed: a lone leader without leases has nothing to wait for."""
        return self.raft.is_leader and self.is_alone and not self._leases.need_time

    @property
    def next_turn(self) -> float:
        """When a turn is due although nothing has arrived."""
        return min(self._pace.next_look, self._leases.next_look)

    # --- Calls

    def execute(self, data: bytes, now: float) -> Call:
        """Have an encoded command applied."""
        call = Change(data, now + self._options.call_s)
        self._proposals.add(call)
        self._waiting.add(call)
        return call

    def read(self, work: Callable[[StoreMachine], Any], now: float, *, is_brief: bool = False) -> Call:
        """Have a function run on a table that has everything that was acknowledged before."""
        call = Read(work, now + self._options.call_s, is_brief=is_brief)
        self._confirmations.add(call)
        self._waiting.add(call)
        return call

    def read_here(self, work: Callable[[StoreMachine], Any], now: float, *, is_brief: bool = False) -> Call:
        """Have a function run on the table as it is."""
        call = Read(work, now + self._options.call_s, is_brief=is_brief)
        self._confirmations.add_confirmed(call)
        self._waiting.add(call)
        return call

    def keep_alive(self, lease: LeaseId, now: float) -> Call:
        """Have a lease renewed."""
        call = Renewal(lease, now + self._options.call_s)
        self._renewals.add(call)
        self._waiting.add(call)
        return call

    def fail(self, error: DanubeError) -> None:
        """Answer all calls with an error."""
        self._waiting.fail(error)

    def _give_up(self, call: Call) -> None:
        after = f"within {self._options.call_s} s"
        if self.raft.leader is None:
            after += ", and no leader is known: a majority of the metadata members is needed"
        if isinstance(call, MembersCall):
            self._members_book.give_up(call, after)
        elif not isinstance(call, Change):
            call.fail(UnavailableError(f"the metadata did not answer {after}; try again"))
        elif self._proposals.is_queued(call):
            call.fail(UnavailableError(f"the metadata did not take the change {after}; it was not made, try again"))
        else:
            call.fail(
                UnavailableError(
                    f"the metadata did not answer {after}; whether the change was or will be made is unknown, read it"
                    " back"
                )
            )

    def refused(self, node: NodeId, now: float) -> None:
        """Note that a member's process is dead: if it leads, campaign soon (R5)."""
        self.raft.leader_lost(node, campaign=False)
        self._pace.campaign_at(now + self._chance() * self._options.campaign_s)

    # --- Members

    def change_members(self, request: MembersRequest, now: float) -> Call:
        """Have the members changed; the result is the configuration then in force."""
        call = MembersCall(request, now + self._options.call_s)
        self._members_book.add(call)
        self._waiting.add(call)
        return call

    def _send_members_requests(self, leader: NodeId, now: float) -> None:
        for message in self._members_book.to_send(self.raft.term, now, self._options.resend_s):
            if leader == self.member:
                self._take_change(leader, message)
            else:
                self._posts.add(leader, message)

    def _take_change(self, sender: NodeId, message: ChangeMembers) -> None:
        reply = self._members_maker.begin(sender, message)
        if reply is not None:
            self._answer_change(sender, reply)

    def _answer_change(self, sender: NodeId, reply: MembersChanged) -> None:
        if sender == self.member:
            self._members_book.answered(reply)
        else:
            self._posts.add(sender, reply)

    def successors(self) -> list[NodeId]:
        """Return the voters that should lead if this member stops, the best first; none if it does not lead."""
        return self.raft.successors()[:_MOST_SUCCESSORS]

    @property
    def has_successor(self) -> bool:
        """Whether another member leads."""
        return self.raft.leader not in (None, self.member)

    # --- A turn

    def begin(self, now: float) -> None:
        """Let the time begin, before the first turn."""
        self._pace.begin(now, alone=self.is_alone)

    def begin_turn(self, now: float, payloads: Iterable[bytes]) -> None:
        """Take what has arrived.

        Args:
            now: the present time.
            payloads: from other members.
        """
        self.has_begun_write = False
        self._take_time(now)
        for payload in payloads:
            self._take_payload(payload, now)
        self._follow()
        leader = self.raft.leader
        if leader is not None:
            self._send_proposals(leader, now)
            reads = self._confirmations.take_queue()
            if reads:
                self._ask(reads, now)
            self._send_renewals(leader, now)
            self._send_members_requests(leader, now)
        self._settle_written()

    def next_work(self) -> Work | None:
        """Return what the core asks for next; None if that is all.

        What is to be written waits while a copy is being installed; messages that promise nothing do not.
        """
        if self._held and not self._is_installing:
            return Work(self._held.popleft(), None, ())
        if not self.raft.has_ready:
            return None
        ready = self.raft.ready()
        self._post_all(ready.messages)
        self._to_apply += ready.committed
        for token, index in ready.reads:
            self._confirmations.confirm(token, index)
        for token in ready.lost_reads:
            self._confirmations.lost(token)
        if ready.snapshot is not None:
            self._is_installing = True
        if self._is_installing:
            self._held.append(ready)
        return Work(
            None if self._is_installing else ready,
            ready.snapshot,
            tuple(node for node in ready.need_snapshot if self.outgoing.claim(node)),
        )

    def writing(self, ready: Ready, *, pending: bool) -> None:
        """Record that the writing of a Ready has begun.

        Args:
            ready: of the last :meth:`next_work`.
            pending: whether its number will be reported as :meth:`written`; otherwise there is nothing to wait for.
        """
        self._being_written.append(_Written(ready, pending))
        self.has_begun_write = self.has_begun_write or pending
        self._settle_written()

    def written(self, number: int) -> None:
        """Record that a Ready, and all before it, are durable; the next turn makes use of it."""
        self._written = number

    def _settle_written(self) -> None:
        waiting = self._being_written
        while waiting and (not waiting[0].pending or waiting[0].ready.number <= self._written):
            self._post_all(self.raft.persisted(waiting.popleft().ready))

    def _may_put_off(self) -> bool:
        """Whether what is to be applied may wait for the write that has just begun, but not for two in a row.

        A thread makes that write, and applying would keep the interpreter from it: then the leader, and those that wait
        for the majority there, would wait for a table that no caller here waits for.
        """
        if not self.has_begun_write or not self._has_applicable:
            return False
        return not (self._puts_off or self.raft.is_leader or self._waiting.is_any_open)

    def end_turn(self) -> Sequence[tuple[NodeId, bytes]]:
        """Return the payloads to be sent, with their receivers."""
        self._follow()
        for sender, reply in self._members_maker.settle():
            self._answer_change(sender, reply)
        self._puts_off = self._may_put_off()
        return self._posts.take()

    def _follow(self) -> None:
        """Adapt to a change of term or leader."""
        raft = self.raft
        if not (raft.is_leader and raft.term == self._leases.term):
            self._leases.follow()
        now = (raft.term, raft.leader)
        if now == self._followed:
            return
        self._followed = now
        self._log_leader()
        self._proposals.enter(raft.term)
        if raft.is_leader:
            self._inbox.enter(raft.term)
        if raft.leader is not None:
            self._confirmations.ask_again()
            self._renewals.send_again()
        self._members_book.enter(raft.term)
        self._replacing = 0

    def _log_leader(self) -> None:
        raft = self.raft
        if raft.is_leader and not self.is_alone:
            _log.info("member %d leads the metadata in term %d", self.member, raft.term)
        elif raft.leader not in (None, self.member):
            _log.info("member %d follows member %d in term %d", self.member, raft.leader, raft.term)

    # Time

    def _take_time(self, now: float) -> None:
        raft = self.raft
        passed = self._pace.look(now, alone=self.is_alone, idle=self.is_idle)
        if passed.gap_s:
            self._leases.postpone(passed.gap_s)
        if passed.ticks:
            raft.tick()
            for call in self._waiting.overdue(now):
                self._give_up(call)
            before = now - self._options.resend_s
            self._confirmations.ask_again(before=before)
            self._renewals.send_again(before=before)
            self._proposals.resend(now)
        if passed.campaigns:
            raft.campaign_if_lost()
        if not raft.is_leader and self.is_alone:
            self._lead_alone()
        due = self._leases.due(now)
        if due is not None:
            self._ask(due, now)
        if self._decides_leases and not self.is_alone and self._comparison.is_due(now):
            self._proposals.propose(Compare())

    def _lead_alone(self) -> None:
        """Campaign at once: there is no other member whose election could be disturbed."""
        raft = self.raft
        for _ in range(2 * self._options.settings.election_ticks):
            if raft.role is not Role.FOLLOWER or raft.applied_index < raft.commit:
                return  # asked again when everything is applied
            raft.tick()

    # Messages

    def _post_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._posts.add(message.to, message)

    def _take_payload(self, payload: bytes, now: float) -> None:
        try:
            sender, messages = decode_payload(payload)
        except UNDECODABLE as error:
            _log.warning(
                "a metadata message does not decode and is ignored: %s",
                error,
                extra=log_event("metadata.message_undecodable", repeating=True),
            )
            return
        for message in messages:
            self._take_message(sender, message, now)

    def _take_message(self, sender: NodeId, message: AnyMessage, now: float) -> None:
        match message:
            case Forward():
                self._take_forward(sender, message)
            case ForwardReply():
                self._proposals.confirmed(message)
            case KeepAlive():
                self._take_keep_alive(sender, message, now)
            case KeepAliveReply():
                self._renewals.answered(message)
            case ChangeMembers():
                self._take_change(sender, message)
            case MembersChanged():
                self._members_book.answered(message)
            case Digest():
                self._take_digest(sender, message)
            case Differs():
                self._take_difference(message)
            case SnapshotPiece():
                self._incoming.add(sender, message)
            case SnapshotReply():
                if message.term == self.raft.term:
                    self.outgoing.arrived(sender, message)
            case _:
                if message.to == self.member:
                    self.raft.step(message)

    # Commands

    def _send_proposals(self, leader: NodeId, now: float) -> None:
        """Form proposals of the commands that wait, and bring them to the leader."""
        self._proposals.form()
        is_own = leader == self.member
        message = self._proposals.to_send(self.raft.term, to_self=is_own, now=now)
        if message is None:
            return
        if is_own:
            self._take_forward(self.member, message)
        else:
            self._posts.add(leader, message)

    def _take_forward(self, sender: NodeId, message: Forward) -> None:
        raft = self.raft
        if not raft.is_leader or message.term != raft.term:
            return
        self._inbox.enter(raft.term)
        count = 0
        for data in self._inbox.news(sender, message.life, message.first, message.proposals):
            if isinstance(raft.propose(data), Refusal):
                break  # it is sent again
            count += 1
        reply = ForwardReply(raft.term, message.life, self._inbox.took(sender, message.life, count))
        if sender == self.member:
            self._proposals.confirmed(reply)
        else:
            self._posts.add(sender, reply)

    # Leases

    def _send_renewals(self, leader: NodeId, now: float) -> None:
        message = self._renewals.to_send(self.raft.term, now)
        if message is None:
            return
        if leader == self.member:
            self._take_keep_alive(self.member, message, now)
        else:
            self._posts.add(leader, message)

    def _take_keep_alive(self, sender: NodeId, message: KeepAlive, now: float) -> None:
        if self._decides_leases:  # otherwise it is sent again
            self._ask(self._leases.renew(sender, message, self.raft.log.last_index, now), now)

    @property
    def _silence_s(self) -> float:
        """For how long no leader had been heard when this member was elected, at least."""
        # A lone member's ticks pass at once when it campaigns. The first of the others may have been a shorter one.
        return 0.0 if self.is_alone else max(0, self.raft.silence - 1) * self._options.tick_s

    @property
    def _decides_leases(self) -> bool:
        return self.raft.is_leader and self._leases.term == self.raft.term

    # Confirmations

    def _ask(self, what: Confirmed, now: float) -> None:
        token = self._confirmations.ask(what, now)
        if not self.raft.read_index(ReadToken(token)):
            self._confirmations.lost(token)

    def confirmed(self, due: Iterable[Confirmed], now: float) -> bool:
        """Act on what a :class:`Batch` has made due, besides its reads; return whether a turn is due."""
        needs_turn = False
        for what in due:
            if isinstance(what, KeptAlive):
                needs_turn = self._answer_keep_alive(what, now) or needs_turn
            elif isinstance(what, EndingLeases):
                needs_turn = self._end_leases(what, now) or needs_turn
        return needs_turn

    def _answer_keep_alive(self, kept: KeptAlive, now: float) -> bool:
        ended = self._leases.renewed(kept, now) if self._decides_leases else None
        if ended is None:
            return False
        reply = KeepAliveReply(self.raft.term, kept.token, ended)
        if kept.sender == self.member:
            self._renewals.answered(reply)
            return False
        self._posts.add(kept.sender, reply)
        return True

    def _end_leases(self, due: EndingLeases, now: float) -> bool:
        """Propose the end of leases whose time is up: this member still leads, and was not asked to renew them."""
        if not self._decides_leases or self._proposals.term != self.raft.term:
            return False
        for lease in self._leases.end(due, now):
            self._proposals.propose(Revoke(lease))
        return True

    # --- Applying

    @property
    def has_entries(self) -> bool:
        """Whether committed entries wait to be applied."""
        return bool(self._to_apply)

    @property
    def is_applicable(self) -> bool:
        """Whether :meth:`next_batch` may return something now; otherwise a turn comes before that."""
        return self._has_applicable and not self._puts_off

    @property
    def _has_applicable(self) -> bool:
        return bool(self._to_apply) or self._confirmations.has_confirmed

    def next_batch(self, applied: int) -> Batch:
        """Return, and forget, what is to be applied, and answered from the table behind it.

        Args:
            applied: the last entry that the table has.
        """
        entries: list[Entry] = []
        while self._to_apply and len(entries) < self._options.settings.max_apply_entries:
            entries.append(self._to_apply.popleft())
            if entries[-1].kind is EntryKind.NOOP:
                break  # what a new leader grants behind it gets its full time (:meth:`Leases.lead`)
        return Batch(entries, self._confirmations.due(entries[-1].index if entries else applied))

    def put_back(self, batch: Batch) -> None:
        """Undo :meth:`next_batch`: the same is returned again."""
        entries = batch.entries
        self._to_apply.extendleft(reversed(entries))
        self._confirmations.put_back(entries[-1].index if entries else 0, batch.due)

    def applied(self, applied: Sequence[Applied], effects: Effects, bounds: Bounds, now: float) -> None:
        """Answer the callers of entries that were applied; a turn is due.

        Args:
            applied: what came of them.
            effects: of all of them.
            bounds: of the table behind them.
            now: the present time.
        """
        raft = self.raft
        self._leases.changed(effects, now)
        for entry in applied:
            if entry.proposal is not None:
                self._proposals.applied(entry.proposal, entry.outcomes)
                if entry.proposal.commands == _COMPARES:
                    self._tell_digest(entry)
        last = applied[-1]
        raft.applied(last.index)
        self._proposals.reached(last.term)
        if raft.is_leader and last.term == raft.term != self._leases.term:
            self._leases.lead(raft.term, now, self._silence_s)
            self._comparison.lead(now)
            if bounds != self._bounds:
                own = self._bounds
                self._proposals.propose(SetBounds(own.history_revisions, own.history_bytes, own.leases))

    # --- Comparing tables

    def _tell_digest(self, entry: Applied) -> None:
        (digest,) = entry.outcomes
        assert isinstance(digest, int)
        leader = self.raft.leader
        if leader is not None:
            message = Digest(self.raft.term, entry.index, digest)
            if leader == self.member:
                self._take_digest(leader, message)
            else:
                self._posts.add(leader, message)

    def _take_digest(self, sender: NodeId, message: Digest) -> None:
        raft = self.raft
        if not raft.is_leader or message.term != raft.term:
            return
        for verdict, member in self._comparison.take(sender, message.index, message.digest, raft.conf):
            if verdict is Verdict.NO_MAJORITY:
                _log.critical(
                    "the metadata tables of the members differ at entry %d, and no majority agrees: nothing is changed."
                    " Stop the brokers, compare what they hold, and restore the metadata from a backup",
                    message.index,
                    extra=log_event("metadata.differs", index=message.index),
                )
            elif member == self.member:
                _log.critical(
                    "the metadata table of this member differs at entry %d from that of the majority: another member is"
                    " asked to lead, and will replace it",
                    message.index,
                    extra=log_event("metadata.differs", index=message.index),
                )
                for successor in raft.successors()[:1]:
                    raft.transfer(successor)
            else:
                _log.critical(
                    "the metadata table of member %d differs at entry %d from that of the majority; it is replaced",
                    member,
                    message.index,
                    extra=log_event("metadata.differs", index=message.index, member=member),
                )
                self._posts.add(member, Differs(raft.term, message.index))
                self._copies_due.append(member)

    def _take_difference(self, message: Differs) -> None:
        if message.term == self.raft.term and not self.raft.is_leader:
            _log.critical(
                "the metadata table of this member differs at entry %d from that of the majority: it is replaced by a"
                " copy. Check this machine's memory and disk",
                message.index,
                extra=log_event("metadata.differs", index=message.index),
            )
            self._replacing = message.index

    def take_copies(self) -> list[NodeId]:
        """Return, and forget, the members to which a copy is to be sent because their tables differ."""
        due, self._copies_due = self._copies_due, []
        return [member for member in due if self.outgoing.claim(member)]

    def is_replaceable(self, base: Base) -> bool:
        """Return whether the table may be replaced by a copy of the past: the log has what follows."""
        log = self.raft.log
        return (
            self._replacing > 0
            and log.base_index <= base.index <= self.raft.applied_index
            and log.term(base.index) == base.term
            and not self.raft.is_installing
        )

    def entries_behind(self, base: Base) -> Sequence[Entry]:
        """Return the entries that this member has applied, and that a copy lacks."""
        return self.raft.log.between(base.index + 1, self.raft.applied_index + 1)

    def replaced(self, leases: Iterable[tuple[LeaseId, float]]) -> None:
        """Record that the table was replaced by a copy, and has everything again that it had before."""
        self._replacing = 0
        self.outgoing.copy = None
        self._leases.replace(leases)
        self._incoming.installed()

    # --- Copies

    def cut_index(self, applied: int) -> int:
        """Return up to which entry the log is not needed any more; the table durably holds so much."""
        needed = [*self.outgoing.indexes, self._replacing] if self._replacing else self.outgoing.indexes
        return cut_index(self.raft, self._options, applied, needed)

    @property
    def has_pieces(self) -> bool:
        """Whether pieces of a copy wait to be written."""
        return self._incoming.has_pieces

    def next_piece(self) -> Piece | None:
        """Return, and forget, the next piece of a copy; None if it is of no use."""
        raft = self.raft
        sender, message = self._incoming.take()
        if message.term != raft.term or raft.is_leader or raft.is_installing:
            return None
        if self._replacing and raft.log.term(message.base.index) == message.base.term:
            if not self.is_replaceable(message.base):
                return None  # not applied yet; it is sent again
        elif message.base.index <= raft.commit:
            return None
        receiving = self._incoming.of(message)
        return Piece(sender, message, receiving) if receiving is not None else None

    def received(self, piece: Piece, *, whole: bool) -> None:
        """Answer a piece, and have the copy installed if it is whole; a turn is due.

        Args:
            piece: was written, if it was expected.
            whole: whether all of the copy is there, and has its digest.
        """
        raft = self.raft
        sender, message, receiving = piece
        base = message.base
        if receiving.is_complete and not whole:
            receiving.restart()
        self._posts.add(sender, SnapshotReply(raft.term, base.index, message.digest, receiving.position))
        if whole and message.term == raft.term and not raft.is_leader and base.index > raft.commit:
            raft.step(InstallSnapshot(self.member, sender, message.term, base.index, base.term, base.conf))

    def installing(self) -> None:
        """Drop what was to be applied to the table that is about to be replaced."""
        self._to_apply.clear()

    def installed(self, leases: Iterable[tuple[LeaseId, float]]) -> None:
        """Record that the table was replaced by a copy with these leases; a turn is due."""
        self._is_installing = False
        self._leases.replace(leases)
        self._incoming.installed()
