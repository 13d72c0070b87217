"""The Raft state machine of one node (Ongaro, "Consensus: Bridging Theory and Practice", 2014), without I/O.

The driver calls :meth:`Raft.tick`, :meth:`Raft.step` and the requests, and then repeatedly takes a
:class:`Ready` and processes it::

      1. send ready.messages                      at once; they may overlap the write
      2. write ready.hard, entries, snapshot      in the order of Readys, synced where ready.must_sync says so
      3. raft.persisted(ready)                    returns messages that had to wait for the write: send them
      4. apply ready.committed                    then raft.applied(index)
      5. answer ready.reads                       once their index is applied

Several Readys may be in progress; their writes complete in order. After a failed write the driver must stop the node
(R24); the core has no call for it.

Rules, each with a test of its name in ``tests/raft``:

* R1 A node votes once in each term, and its vote is durable before the answer. Votes are counted by node id.
* R2 A node that sees a higher term becomes a follower before it processes the message; replies of lower terms are
  dropped.
* R3 A stale leader or candidate is answered with this node's term.
* R4 A vote goes only to a log that is at least as complete, by (last term, last index).
* R5 A pre-vote changes no term, and is refused while a leader is heard; a leader whose link broke and whose port
  refused a reconnect counts as not heard (:meth:`Raft.leader_lost`), at voters too.
* R6 Any message of the current leader counts as hearing it, even one that is refused.
* R7 A leader that hears no majority within one election time steps down.
* R8 The log is cut only at a real conflict, never at or below the commit index.
* R9 A leader commits by counting only entries of its own term; its first entry is a no-op.
* R10 A follower commits the leader's index, as far as it has verified its log.
* R11 The matching index of a member never decreases.
* R12 The commit index in a heartbeat is at most the matching index of its receiver.
* R13 A node's own entries count once they are synced; sending and appending may overlap with the sync.
* R14 Installing a snapshot keeps a matching suffix of the log; an old snapshot is ignored, a lost one is sent again.
* R15 A read waits for a commit of the leader's own term, and for answers of a majority to heartbeats sent after the
  request.
* R16 Voters change through a joint configuration, one change at a time (an inherited change counts), and only after a
  commit of the leader's own term.
* R17 A new leader completes an inherited joint configuration.
* R18 Votes carry the commit index, so that a removed voter with a longer log does not block both halves.
* R19 A vote is decided by the candidate's configuration: this node answers even if it is not a voter in its own.
* R20 A node does not campaign while it installs a snapshot, or before it has applied the entries known to be committed
  at its start.
* R21 A leadership transfer refuses proposals, waits until the target's log is complete, and is given up after one
  election time.
* R22 Entries in flight to a member are bounded in messages and bytes.
* R26 A vote says for how long its voter has heard no leader, and been none. From the votes that elected it a leader
  knows since when no earlier one can have heard a majority (:attr:`Raft.silence`).
* R27 Of two nodes with equal logs that ask for pre-votes at the same time, the one with the lower id is preferred: the
  other's request is refused for one heartbeat time, unless it has refused the preferred one's. Otherwise each would
  grant the other's request, vote for itself, and wait for another election time.

A configuration is in force from the moment its entry is committed. That is safe because entries are written together
with the commit index that they arrived with. So a node that has the entry that leaves a joint configuration knows, also
after a restart, that the joint configuration was committed, and requests votes from both halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from danube.raft.conf import Conf, NodeId
from danube.raft.log import Base, RaftLog
from danube.raft.messages import (
    Append,
    AppendReply,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    ReadToken,
    TimeoutNow,
    Vote,
    VoteReply,
)
from danube.raft.progress import Progress, Stage
from danube.raft.reads import Reads

__all__ = ["Raft", "Ready", "Refusal", "Role", "Settings"]

_encode_conf = msgspec.msgpack.Encoder().encode
_decode_conf = msgspec.msgpack.Decoder(Conf).decode


class Role(Enum):
    """The present role of a node."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Refusal(Enum):
    """Why a proposal was refused; nothing was appended. The value is the reason in words."""

    NOT_LEADER = "this node is not the leader"
    TRANSFERRING = "the leader hands over to another node"
    BUSY = "too much waits to be committed (max_uncommitted_bytes)"
    CHANGE_IN_FLIGHT = "another change of members is not finished"
    NO_COMMIT_YET = "the leader has not committed an entry of its term yet"


class Settings(NamedTuple):
    """Times and limits of a node. All nodes of a group should have the same times."""

    heartbeat_ticks: int = 3
    """Ticks between two heartbeats of a leader."""
    election_ticks: int = 20
    """A follower that hears no leader for a random time, from this many ticks to twice as many, requests votes."""
    snapshot_ticks: int = 200
    """A snapshot without progress for this many ticks is sent again."""
    max_append_bytes: int = 1 << 20
    """Bytes of entries in one message; a larger entry is sent alone."""
    max_sent_messages: int = 64
    """Messages with entries in flight to one member."""
    max_sent_bytes: int = 4 << 20
    """Bytes of these messages."""
    max_uncommitted_bytes: int = 16 << 20
    """Bytes of entries that a leader has accepted and not committed; the next proposal is refused as busy."""
    max_apply_entries: int = 1024
    """Entries in one :attr:`Ready.committed`."""


class Ready(NamedTuple):
    """Work for the driver."""

    number: int
    messages: tuple[Message, ...]
    """To be sent at once, without waiting for the write."""
    hard: HardState | None
    """To be written before the entries, if not None: no entry may survive a crash without it."""
    entries: tuple[Entry, ...]
    """To be written. They replace existing entries from the first one's index on."""
    snapshot: Base | None
    """Replaces the state machine; the log then starts behind it."""
    must_sync: bool
    """Whether the write must be synced before :meth:`Raft.persisted`."""
    committed: tuple[Entry, ...]
    """To be applied, in order. All of them are durable on this node."""
    reads: tuple[tuple[ReadToken, int], ...]
    """Reads of this node that may be answered once the index is applied."""
    lost_reads: tuple[ReadToken, ...]
    """Reads of this node that will not be answered, to be requested again."""
    need_snapshot: tuple[NodeId, ...]
    """Members to which the driver must send the state machine; see :meth:`Raft.snapshot_at`."""


class Raft:
    """One node of a Raft group.

    Args:
        node_id: this node.
        base: start of the log, with the configuration there.
        hard: the last written hard state; a new node has none.
        entries: the entries behind the base, all durable.
        applied: durably applied index of the state machine; at least the base.
        chance: returns a random integer in ``[0, n)``, for election times.

    Attributes:
        term: the current term.
        role: its present role.
        leader: leader of the current term, if known.
        commit: the highest index known to be committed.
    """

    def __init__(
        self,
        node_id: NodeId,
        base: Base,
        *,
        hard: HardState | None = None,
        entries: Sequence[Entry] = (),
        applied: int | None = None,
        chance: Callable[[int], int],
        settings: Settings = Settings(),  # noqa: B008 - immutable
    ) -> None:
        hard = hard or HardState()
        self.node_id = node_id
        self.settings = settings
        self._chance = chance
        self.log = RaftLog(base.index, base.term, entries)
        self.term = max(hard.term, self.log.last_term)
        self._vote = hard.vote if self.term == hard.term else None
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self._applied = base.index if applied is None else applied
        assert base.index <= self._applied <= self.log.last_index, "the state machine does not fit the log"
        self.commit = max(base.index, self._applied, min(hard.commit, self.log.last_index))
        self._given = self._applied
        self._commit_at_start = self.commit
        self._confs: list[tuple[int, Conf]] = [(base.index, base.conf)]
        self._take_confs(base.index, self.commit)

        self._members: dict[NodeId, Progress] = {}
        self._votes: dict[NodeId, bool] = {}
        self._reads = Reads()
        self._elapsed = 0
        self._since_heard = settings.election_ticks
        """Ticks since the last message of the leader; at the start as if none had been heard."""
        self._silent = 0
        """Ticks since a message of a leader, or since this node led; never more than have passed (R26)."""
        self._silence = 0
        self._timeout = 0
        self._last_change = 0
        """Index of the newest entry that may change the configuration."""
        self._first_of_term = 0
        self._transfer: NodeId | None = None
        self._transfer_ticks = 0
        self._uncommitted_bytes = 0

        self._written_hard = HardState(hard.term, hard.vote, hard.commit)
        self._snapshot: Base | None = None
        self._snapshot_write = 0
        self._number = 0
        self._messages: list[Message] = []
        self._after: list[Message] = []
        self._waiting: list[tuple[int, list[Message]]] = []
        self._need_snapshot: list[NodeId] = []
        self._restart_election_timer()

    # ---------------------------------------------------------------------------------------------------------- state

    @property
    def conf(self) -> Conf:
        """The configuration in force."""
        return self._confs[-1][1]

    @property
    def applied_index(self) -> int:
        """The index that the driver has applied."""
        return self._applied

    @property
    def is_leader(self) -> bool:
        """Whether this node leads its term."""
        return self.role is Role.LEADER

    @property
    def is_installing(self) -> bool:
        """Whether a snapshot has arrived, and does not yet replace the state machine."""
        return self._snapshot is not None

    @property
    def silence(self) -> int:
        """Ticks for which, when this node was elected, none of its voters had heard a leader, or been one (R26).

        No earlier leader has had an answer of a majority to a message that it sent within this time: each majority has
        one of these voters.
        """
        return self._silence

    def conf_at(self, index: int) -> Conf:
        """Return the configuration as of an index between the base and the commit index."""
        return next(conf for since, conf in reversed(self._confs) if since <= index)

    def matches(self) -> dict[NodeId, int]:
        """Return, at a leader, the matching index of each member; otherwise nothing."""
        return {node: member.match for node, member in self._members.items()}

    # --------------------------------------------------------------------------------------------------------- inputs

    def tick(self) -> None:
        """Advance time by one unit."""
        self._elapsed += 1
        self._since_heard += 1
        self._silent += 1
        if self.role is Role.LEADER:
            self._silent = 0
            self._tick_leader()
        elif self._elapsed >= self._timeout:
            self._restart_election_timer()
            if self._may_campaign():
                self._pre_campaign()

    def leader_lost(self, node: NodeId, *, campaign: bool = True) -> None:
        """Report that ``node`` is unreachable and its port refuses connections: campaign at once if it leads (R5).

        Without ``campaign`` it only counts as not heard, so that others get this node's vote; :meth:`campaign_if_lost`
        follows a little later, at a different time on each node, because candidates of the same moment split the votes.
        """
        if node == self.leader and self.role is Role.FOLLOWER:
            self._since_heard = self.settings.election_ticks
            if campaign:
                self.campaign_if_lost()

    def campaign_if_lost(self) -> None:
        """Campaign if the leader that this node follows is not heard."""
        if self.role is Role.FOLLOWER and self.leader is not None and not self._hears_leader() and self._may_campaign():
            self._restart_election_timer()
            self._pre_campaign()

    def propose(self, data: bytes) -> int | Refusal:
        """Append a command; return its index, or the refusal. It is committed once it is in :attr:`Ready.committed`.

        If another entry appears at that index (with another term), the command is lost.
        """
        refusal = self._refusal()
        return self._append(EntryKind.DATA, data) if refusal is None else refusal

    def propose_conf(self, voters: Iterable[NodeId], learners: Iterable[NodeId] = ()) -> int | Refusal:
        """Append a change of members; a joint configuration is left automatically.

        Raises:
            ValueError: the members are invalid.
        """
        refusal = self._refusal()
        if refusal is None and (self._last_change > self.commit or self.conf.is_joint):
            refusal = Refusal.CHANGE_IN_FLIGHT
        if refusal is None and self.commit < self._first_of_term:
            refusal = Refusal.NO_COMMIT_YET
        if refusal is not None:
            return refusal
        return self._append(EntryKind.CONF, _encode_conf(self.conf.changed(voters, learners)))

    def read_index(self, token: ReadToken) -> bool:
        """Request an index from which a read is linearizable; False if no leader is known.

        The answer is in :attr:`Ready.reads`, or the read is reported in :attr:`Ready.lost_reads`. Both may be missing
        if a message is lost: the driver then requests again with another token.
        """
        if self.role is Role.LEADER:
            self._reads.ask(self.node_id, token)
        elif self.leader is not None:
            self._messages.append(ReadIndex(self.leader, self.node_id, self.term, token))
        else:
            return False
        return True

    def transfer(self, to: NodeId) -> bool:
        """Transfer the leadership to another voter (R21); False if this node does not lead or ``to`` is not a voter."""
        if self.role is not Role.LEADER or to == self.node_id or to not in self.conf.voters:
            return False
        self._transfer, self._transfer_ticks = to, 0
        if self._members[to].match == self.log.last_index:
            self._messages.append(TimeoutNow(to, self.node_id, self.term))
        return True

    def successors(self) -> list[NodeId]:
        """Return, at a leader, the other voters: those that answer first, then those with the longest log."""
        if self.role is not Role.LEADER:
            return []
        most = 2 * self.settings.heartbeat_ticks
        members = [(self._members[node], node) for node in self.conf.voters if node != self.node_id]
        ranks = [(member.unheard_ticks > most, -member.match, node) for member, node in members]
        return [node for _, _, node in sorted(ranks)]

    def snapshot_at(self, index: int) -> Base | None:
        """Return the description of a snapshot at ``index``, or None if the log does not reach back to it."""
        term = self.log.term(index)
        return None if term is None or index > self._applied else Base(index, term, self.conf_at(index))

    def snapshot_progress(self, to: NodeId) -> None:
        """Record that a snapshot in flight to a member makes progress."""
        if to in self._members:
            self._members[to].silent_ticks = 0

    def snapshot_failed(self, to: NodeId) -> None:
        """Record that a snapshot did not arrive; it is sent again when the member answers (R14)."""
        member = self._members.get(to)
        if member is not None and member.stage is Stage.SNAPSHOT:
            member.probe()
            member.is_waiting = True  # nothing is sent until it answers a heartbeat

    def applied(self, index: int) -> None:
        """Record the applied index of the state machine."""
        assert self._applied <= index <= self._given
        self._applied = index

    def compact(self, index: int) -> None:
        """Drop the log up to ``index``, which the state machine holds durably."""
        assert index <= self._applied
        self.log.compact(index)
        while len(self._confs) > 1 and self._confs[1][0] <= index:
            del self._confs[0]

    # -------------------------------------------------------------------------------------------------------- Ready

    @property
    def has_ready(self) -> bool:
        """Whether :meth:`ready` has anything to do."""
        return bool(
            self._messages
            or self._after
            or self._need_snapshot
            or self.log.has_unhanded
            or self._snapshot_to_hand is not None
            or self._hard_changed
            or self._given < self._may_apply
            or self._reads.has_news
            or (self.role is Role.LEADER and (self._may_ask_for_reads or self._has_to_send()))
        )

    def ready(self) -> Ready:
        """Return the work to be done now; see the docstring of the module."""
        if self.role is Role.LEADER:
            if self._may_ask_for_reads:
                self._ask_for_reads()
            for node in self._members:
                while self._send_append(node):
                    pass
        self._number += 1
        snapshot = self._snapshot_to_hand
        if snapshot is not None:
            self._snapshot_write = self._number
        entries = self.log.hand_out(self._number)
        now = HardState(self.term, self._vote, self.commit)
        hard_changed = (now.term, now.vote) != (self._written_hard.term, self._written_hard.vote)
        write_hard = hard_changed or now.commit != self._written_hard.commit
        self._written_hard = now
        must_sync = bool(entries or hard_changed or snapshot is not None)
        committed = self._take_committed()
        messages, self._messages = tuple(self._messages), []
        if self._after:
            self._waiting.append((self._number, self._after))
            self._after = []
        reads, lost = self._reads.take_news()
        need_snapshot, self._need_snapshot = tuple(self._need_snapshot), []
        return Ready(
            self._number,
            messages,
            now if write_hard else None,
            entries,
            snapshot,
            must_sync,
            committed,
            reads,
            lost,
            need_snapshot,
        )

    def persisted(self, ready: Ready) -> tuple[Message, ...]:
        """Record that the writes of this Ready, and of all before it, are durable; return messages to be sent now."""
        self.log.written(ready.number)
        if self._snapshot is not None and 0 < self._snapshot_write <= ready.number:
            self.log.synced = max(self.log.synced, self._snapshot.index)
            self._applied = self._given = self._snapshot.index
            self._snapshot, self._snapshot_write = None, 0
        out: list[Message] = []
        while self._waiting and self._waiting[0][0] <= ready.number:
            for message in self._waiting.pop(0)[1]:
                if message.to == self.node_id:
                    self.step(message)
                else:
                    out.append(message)
        if self.role is Role.LEADER:
            self._members_match(self.node_id, self.log.synced)
        return tuple(out)

    @property
    def _hard_changed(self) -> bool:
        # A change of the commit index alone is written with the next write, because losing it is harmless.
        return (self.term, self._vote) != (self._written_hard.term, self._written_hard.vote)

    @property
    def _snapshot_to_hand(self) -> Base | None:
        return self._snapshot if self._snapshot_write == 0 else None

    @property
    def _may_apply(self) -> int:
        return self._given if self._snapshot is not None else min(self.commit, self.log.synced)

    def _take_committed(self) -> tuple[Entry, ...]:
        end = min(self._may_apply, self._given + self.settings.max_apply_entries)
        if end <= self._given:
            return ()
        committed = self.log.between(self._given + 1, end + 1)
        self._given = end
        return committed

    # ----------------------------------------------------------------------------------------------------- messages

    def step(self, message: Message) -> None:
        """Process a message sent to this node."""
        assert message.to == self.node_id, f"a message for node {message.to} came to node {self.node_id}"
        if message.term > self.term:
            if not self._takes_higher_term(message):
                return
        elif message.term < self.term:
            self._answer_stale(message)
            return
        match message:
            case PreVote() | Vote():
                self._judge(message)
            case PreVoteReply() | VoteReply():
                self._count(message)
            case Append():
                self._hear(message.sender)
                self._take_entries(message)
            case Heartbeat():
                self._hear(message.sender)
                self._take_heartbeat(message)
            case InstallSnapshot():
                self._hear(message.sender)
                self._take_snapshot(message)
            case AppendReply():
                self._take_append_reply(message)
            case HeartbeatReply():
                self._take_heartbeat_reply(message)
            case TimeoutNow():
                if self.role is not Role.LEADER and self._may_campaign():
                    self._campaign(transfer=True)
            case ReadIndex():
                if self.role is Role.LEADER:
                    self._reads.ask(message.sender, message.token)
            case ReadIndexReply():
                self._reads.answer(message.token, message.index)

    def _takes_higher_term(self, message: Message) -> bool:
        """Adopt a higher term (R2); return False for a message to be ignored."""
        match message:
            case PreVote():
                return True
            case PreVoteReply(granted=True):
                return True  # the requested term, not that of the sender
            case Vote(transfer=False) if self._hears_leader():
                return False
        is_leaders = isinstance(message, Append | Heartbeat | InstallSnapshot)
        self._follow(message.term, message.sender if is_leaders else None)
        return True

    def _answer_stale(self, message: Message) -> None:
        """Answer a sender with an older term with the current one (R3); drop its replies (R2)."""
        match message:
            case Append() | Heartbeat() | InstallSnapshot():
                # A leader of the current term cannot misread this refusal: it is sent only to leaders of older terms.
                self._messages.append(AppendReply(message.sender, self.node_id, self.term, 0, refused=True))
            case PreVote():
                self._reply_pre_vote(message.sender, self.term, granted=False)
            case Vote():
                self._after.append(VoteReply(message.sender, self.node_id, self.term, False, *self._commit_point()))
            case PreVoteReply() | VoteReply():
                self._commit_by_vote(message.commit, message.commit_term)

    # ---------------------------------------------------------------------------------------------------- elections

    def _hears_leader(self) -> bool:
        if self.role is Role.LEADER:
            return True  # a leader steps down when it hears no majority (R7)
        return self.leader is not None and self._since_heard < self.settings.election_ticks

    def _restart_election_timer(self) -> None:
        self._elapsed = 0
        self._timeout = self.settings.election_ticks + self._chance(self.settings.election_ticks)

    def _may_campaign(self) -> bool:
        """Whether this node may start a campaign (R20)."""
        return self.node_id in self.conf.electors and self._snapshot is None and self._applied >= self._commit_at_start

    def _follow(self, term: int, leader: NodeId | None) -> None:
        """Become a follower of ``term``."""
        assert term >= self.term
        if term > self.term:
            self.term, self._vote = term, None
        self.role, self.leader = Role.FOLLOWER, leader
        self._votes.clear()
        self._members.clear()
        self._need_snapshot.clear()
        self._transfer = None
        self._reads.lose(self.node_id)
        self._restart_election_timer()
        if leader is not None:
            self._since_heard = self._silent = 0

    def _hear(self, leader: NodeId) -> None:
        """Record a message of this term's leader (R6)."""
        assert self.role is not Role.LEADER, f"nodes {self.node_id} and {leader} both lead term {self.term}"
        if self.role is not Role.FOLLOWER or self.leader is None:
            self._follow(self.term, leader)
        assert self.leader == leader, f"nodes {self.leader} and {leader} both lead term {self.term}"
        self._elapsed = 0
        self._since_heard = self._silent = 0

    def _pre_campaign(self) -> None:
        self.role, self.leader = Role.PRE_CANDIDATE, None
        self._votes = {self.node_id: True}
        if self.conf.won(self._votes):
            self._campaign(transfer=False)
            return
        for node in self.conf.electors - {self.node_id}:
            self._messages.append(PreVote(node, self.node_id, self.term + 1, *self._log_point(), *self._commit_point()))

    def _campaign(self, *, transfer: bool) -> None:
        self.term += 1
        self._vote = self.node_id
        self.role, self.leader = Role.CANDIDATE, None
        self._votes = {}
        self._silence = self._silent
        self._reads.lose(self.node_id)
        self._restart_election_timer()
        # Requests and this node's own vote wait until the vote is durable (R1).
        self._after.append(VoteReply(self.node_id, self.node_id, self.term, True, 0, 0, self._silent))
        for node in self.conf.electors - {self.node_id}:
            self._after.append(
                Vote(node, self.node_id, self.term, *self._log_point(), *self._commit_point(), transfer=transfer)
            )

    def _judge(self, request: PreVote | Vote) -> None:
        """Grant or refuse a vote. The candidate's own configuration decides whether it is a voter (R19)."""
        self._commit_by_vote(request.commit, request.commit_term)
        is_complete = self.log.is_up_to_date(request.last_index, request.last_term)
        if isinstance(request, PreVote):
            granted = (
                is_complete
                and not self._hears_leader()
                and (request.term > self.term or self._vote in (None, request.sender))
                and not self._goes_first(request)
            )
            self._reply_pre_vote(request.sender, request.term if granted else self.term, granted=granted)
            return
        granted = is_complete and (self._vote == request.sender or (self._vote is None and self.leader is None))
        if granted:
            self._follow(self.term, None)
            self._vote = request.sender
        commit = self._commit_point()
        self._after.append(VoteReply(request.sender, self.node_id, self.term, granted, *commit, self._silent))

    def _goes_first(self, request: PreVote) -> bool:
        """Whether this node has just asked for the same pre-votes, and is preferred (R27)."""
        return (
            self.role is Role.PRE_CANDIDATE
            and self._elapsed < self.settings.heartbeat_ticks
            and request.term == self.term + 1
            and (request.last_index, request.last_term) == self._log_point()
            and self.node_id < request.sender
            and self._votes.get(request.sender, True)
        )

    def _reply_pre_vote(self, to: NodeId, term: int, *, granted: bool) -> None:
        self._messages.append(PreVoteReply(to, self.node_id, term, granted, *self._commit_point()))

    def _count(self, reply: PreVoteReply | VoteReply) -> None:
        self._commit_by_vote(reply.commit, reply.commit_term)
        if isinstance(reply, PreVoteReply):
            if self.role is not Role.PRE_CANDIDATE or (reply.granted and reply.term != self.term + 1):
                return
        elif self.role is not Role.CANDIDATE:
            return
        elif reply.granted:
            self._silence = min(self._silence, reply.silent)
        self._votes.setdefault(reply.sender, reply.granted)
        won = self.conf.won(self._votes)
        if won and self.role is Role.PRE_CANDIDATE:
            self._campaign(transfer=False)
        elif won:
            self._lead()
        elif won is False:
            self._follow(self.term, None)

    def _commit_by_vote(self, commit: int, commit_term: int) -> None:
        """Commit an entry that a vote reports as committed, if the log has the same entry (R18)."""
        if commit <= self.commit or self.role is Role.LEADER or self.log.term(commit) != commit_term:
            return
        changed = self._commit_to(commit)
        if changed and self.role is not Role.FOLLOWER:
            self._follow(self.term, None)  # the votes were requested under another configuration

    def _log_point(self) -> tuple[int, int]:
        return self.log.last_index, self.log.last_term

    def _commit_point(self) -> tuple[int, int]:
        term = self.log.term(self.commit)
        return (self.commit, term) if term is not None else (0, 0)

    # ----------------------------------------------------------------------------------------------------- followers

    def _take_entries(self, message: Append) -> None:
        if message.prev_index < self.commit:
            # Up to the commit index all logs are equal.
            self._reply_append(message.sender, min(self.commit, self.log.last_index))
            return
        if self.log.term(message.prev_index) != message.prev_term:
            hint = self.log.last_not_above(message.prev_index, message.prev_term)
            self._after.append(
                AppendReply(
                    message.sender,
                    self.node_id,
                    self.term,
                    message.prev_index,
                    refused=True,
                    hint_index=hint,
                    hint_term=self.log.term(hint) or 0,
                )
            )
            return
        self.log.merge(message.entries, self.commit)
        verified = message.prev_index + len(message.entries)
        self._commit_to(min(message.commit, verified))
        self._reply_append(message.sender, verified)

    def _take_heartbeat(self, message: Heartbeat) -> None:
        assert message.commit <= self.log.last_index, "a heartbeat commits what this node was never known to have"
        self._commit_to(message.commit)
        # The reply needs no write: it states that this node has not voted in a higher term, and promises nothing.
        self._messages.append(HeartbeatReply(message.sender, self.node_id, self.term, message.round))

    def _take_snapshot(self, message: InstallSnapshot) -> None:
        if message.index <= self.commit or self._snapshot is not None:
            self._reply_append(message.sender, self.commit)
            return
        if self.log.term(message.index) == message.index_term:
            self._commit_to(message.index)  # the log has all of it, possibly more
            self._reply_append(message.sender, message.index)
            return
        self.log.reset(message.index, message.index_term, self.commit)
        self.commit = message.index
        self._snapshot = Base(message.index, message.index_term, message.conf)
        self._confs = [(message.index, message.conf)]
        self._reply_append(message.sender, message.index)

    def _reply_append(self, to: NodeId, index: int) -> None:
        self._after.append(AppendReply(to, self.node_id, self.term, index))

    def _commit_to(self, index: int) -> bool:
        """Advance the commit index; return whether the configuration changed."""
        if index <= self.commit:
            return False
        assert index <= self.log.last_index, f"entry {index} is committed, and the log ends at {self.log.last_index}"
        before, self.commit = self.commit, index
        return self._take_confs(before, index)

    def _take_confs(self, after: int, upto: int) -> bool:
        changed = False
        for entry in self.log.between(after + 1, upto + 1):
            if entry.kind is EntryKind.CONF:
                self._confs.append((entry.index, _decode_conf(entry.data)))
                changed = True
        return changed

    # ------------------------------------------------------------------------------------------------------- leaders

    def _lead(self) -> None:
        self.role, self.leader = Role.LEADER, self.node_id
        self._votes.clear()
        self._elapsed = 0
        self._silent = 0  # it may step down before its first tick (R26)
        self._transfer = None
        self._last_change = self.log.last_index  # an inherited change counts as in progress (R16)
        self._uncommitted_bytes = sum(
            entry.size for entry in self.log.between(self.commit + 1, self.log.last_index + 1)
        )
        self._fit_members()
        self._first_of_term = self.log.last_index + 1
        self._append(EntryKind.NOOP, b"")
        self._reads.begin()

    def _append(self, kind: EntryKind, data: bytes) -> int:
        entry = Entry(self.log.last_index + 1, self.term, kind, data)
        self.log.append((entry,))
        self._uncommitted_bytes += entry.size
        if kind is EntryKind.CONF:
            self._last_change = entry.index
        return entry.index

    def _refusal(self) -> Refusal | None:
        if self.role is not Role.LEADER:
            return Refusal.NOT_LEADER
        if self._transfer is not None:
            return Refusal.TRANSFERRING
        if self._uncommitted_bytes >= self.settings.max_uncommitted_bytes:
            return Refusal.BUSY
        return None

    def _fit_members(self) -> None:
        """Create and remove progress records, one for each member of the configuration."""
        members = self.conf.members | {self.node_id}
        for node in list(self._members):
            if node not in members:
                del self._members[node]
        for node in sorted(members - self._members.keys()):
            self._members[node] = Progress(
                self.log.last_index + 1,
                max_messages=self.settings.max_sent_messages,
                max_bytes=self.settings.max_sent_bytes,
            )
        self._members[self.node_id].stage = Stage.REPLICATE

    def _tick_leader(self) -> None:
        self._transfer_ticks += 1
        if self._transfer_ticks >= self.settings.election_ticks:
            self._transfer = None
        for member in self._members.values():
            member.silent_ticks += 1
            member.unheard_ticks += 1
            if member.stage is Stage.SNAPSHOT and member.silent_ticks >= self.settings.snapshot_ticks:
                member.probe()
        most = self.settings.election_ticks
        if self._elapsed % most == 0:
            heard = {node: member.unheard_ticks <= most for node, member in self._members.items()}
            heard[self.node_id] = True
            if self.conf.won({node: heard.get(node, False) for node in self.conf.electors}) is not True:
                self._follow(self.term, None)
                return
        if self._elapsed % self.settings.heartbeat_ticks == 0:
            self._send_heartbeats()

    def _send_heartbeats(self) -> None:
        for node, member in self._members.items():
            if node != self.node_id:
                commit = min(member.match, self.commit)
                self._messages.append(Heartbeat(node, self.node_id, self.term, commit, self._reads.round))

    @property
    def _may_ask_for_reads(self) -> bool:
        return self._reads.is_asking and self.commit >= self._first_of_term

    def _ask_for_reads(self) -> None:
        self._reads.start_round(self.commit)
        self._confirm_reads()  # at once if this node is the only voter
        if self._reads.is_waiting:
            self._send_heartbeats()

    def _confirm_reads(self) -> None:
        confirmed = self.conf.agreed(self._confirmed_round_of)
        for node, token, index in self._reads.confirm(confirmed):
            if node == self.node_id:
                self._reads.answer(token, index)
            else:
                self._messages.append(ReadIndexReply(node, self.node_id, self.term, token, index))

    def _confirmed_round_of(self, node: NodeId) -> int:
        if node == self.node_id:
            return self._reads.round
        member = self._members.get(node)
        return member.confirmed_round if member is not None else 0

    def _has_to_send(self) -> bool:
        return any(
            node != self.node_id and not member.is_full and self._lacks(member)
            for node, member in self._members.items()
        )

    def _lacks(self, member: Progress) -> bool:
        # A commit index alone is sent once it is applied here: by then, a caller that waited for the entry may have
        # proposed the next one, and one message carries both.
        return member.next <= self.log.last_index or member.sent_commit < min(self._applied, member.next - 1)

    def _send_append(self, node: NodeId, *, empty: bool = False) -> bool:
        """Send a member its missing entries, within its limits; return whether a message was sent.

        ``empty`` sends one without entries if there are none, to find out where the logs match.
        """
        member = self._members[node]
        if node == self.node_id or member.is_full or not (empty or self._lacks(member)):
            return False
        previous = member.next - 1
        term = self.log.term(previous)
        if term is None:
            member.snapshot()
            self._need_snapshot.append(node)
            return False
        entries = self.log.between(member.next, self.log.last_index + 1, max_bytes=self.settings.max_append_bytes)
        self._messages.append(Append(node, self.node_id, self.term, previous, term, entries, self.commit))
        member.sent(previous + len(entries), sum(entry.size for entry in entries), self.commit)
        return True

    def _take_append_reply(self, reply: AppendReply) -> None:
        member = self._members.get(reply.sender)
        if self.role is not Role.LEADER or member is None:
            return
        member.unheard_ticks = 0
        if reply.refused:
            hint = min(reply.hint_index, self.log.last_index)
            if hint > self.log.base_index:
                # Above this index, the member's log cannot have the terms of this node's entries.
                hint = self.log.last_not_above(hint, reply.hint_term)
            if member.refused(reply.index, hint):
                self._send_append(reply.sender, empty=True)
            return
        assert reply.index <= self.log.last_index, "a member matches more than the leader has"
        self._members_match(reply.sender, reply.index)
        if self._transfer == reply.sender and member.match == self.log.last_index:
            self._messages.append(TimeoutNow(reply.sender, self.node_id, self.term))

    def _members_match(self, node: NodeId, index: int) -> None:
        """Record how far a member, or this node's own disk (R13), matches; commit accordingly (R9)."""
        member = self._members.get(node)
        if member is not None and member.accepted(index):
            self._commit_agreed()

    def _commit_agreed(self) -> None:
        """Commit the index that a majority has reached; repeated if that puts a configuration in force."""
        changed = True
        while changed and self.role is Role.LEADER:
            agreed = self.conf.agreed(self._match_of)
            if agreed <= self.commit or self.log.term(agreed) != self.term:
                return
            before = self.commit
            changed = self._commit_to(agreed)
            self._uncommitted_bytes -= sum(entry.size for entry in self.log.between(before + 1, agreed + 1))
            if changed:
                self._follow_conf()
            self._leave_joint()

    def _match_of(self, node: NodeId) -> int:
        member = self._members.get(node)
        return member.match if member is not None else 0

    def _follow_conf(self) -> None:
        """Adapt the leader to a configuration that was just committed."""
        if self.node_id not in self.conf.electors:
            self._send_last_commit()
            self._follow(self.term, None)
            return
        self._fit_members()
        self._confirm_reads()
        if self._transfer is not None and self._transfer not in self.conf.voters:
            self._transfer = None

    def _send_last_commit(self) -> None:
        """Notify the members that this node's removal is committed; it is no longer a member itself."""
        for node in self.conf.members:
            if node in self._members:
                self._send_append(node, empty=True)

    def _leave_joint(self) -> None:
        """Leave a joint configuration once it is committed, also if another leader began it (R17)."""
        if self.role is Role.LEADER and self.conf.is_joint and self._last_change <= self.commit:
            self._append(EntryKind.CONF, _encode_conf(self.conf.left()))

    def _take_heartbeat_reply(self, reply: HeartbeatReply) -> None:
        member = self._members.get(reply.sender)
        if self.role is not Role.LEADER or member is None:
            return
        member.unheard_ticks = 0
        member.answered_heartbeat()
        member.confirmed_round = max(member.confirmed_round, reply.round)
        self._confirm_reads()
        if member.match < self.log.last_index:
            self._send_append(reply.sender, empty=True)
