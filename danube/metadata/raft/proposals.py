"""The commands of a member's callers, from the call to the outcome. Pure: the time is passed in.

Load makes the batches: commands that arrive while :attr:`~danube.metadata.raft.options.NodeOptions.proposals` are on
their way form the next proposal together. What was not confirmed in time is sent again to the leader of the same term;
what is certainly void (:mod:`danube.metadata.raft.forwarding`) is queued again, ahead of everything else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from danube.metadata.raft.calls import Call, Change
from danube.metadata.raft.commands import Command, Proposal, encode_command, encode_proposal
from danube.metadata.raft.forwarding import Outbox
from danube.metadata.raft.messages import Forward, ForwardReply
from danube.metadata.raft.options import NodeOptions
from danube.raft import NodeId

__all__ = ["Proposals"]


class _Group:
    """The calls of one proposal; none if this member itself has proposed it."""

    __slots__ = ("calls", "number")

    def __init__(self, number: int, calls: Sequence[Change]) -> None:
        self.number = number
        self.calls = calls


class Proposals:
    """The book of this member's commands.

    Args:
        member: this member.
        life: of this process.
        options: ``proposals``, ``proposal_bytes`` and ``resend_s`` are used.
    """

    def __init__(self, member: NodeId, life: int, options: NodeOptions) -> None:
        self._member = member
        self._life = life
        self._options = options
        self._queue: deque[Change] = deque()
        self._outbox: Outbox[_Group] = Outbox()
        self._groups: dict[int, _Group] = {}
        self._numbers = 0
        self._sent = 0
        """Number of the last proposal sent in this term."""
        self._resend_at = math.inf

    @property
    def term(self) -> int:
        """For which proposals are numbered."""
        return self._outbox.term

    def add(self, call: Change) -> None:
        """Queue the command of a call."""
        self._queue.append(call)

    def is_queued(self, call: Call) -> bool:
        """Return whether a command is in no proposal: it was certainly not applied."""
        return call in self._queue

    def propose(self, command: Command) -> None:
        """Propose a command of this member itself."""
        self._form((), (encode_command(command),))

    def enter(self, term: int) -> None:
        """Send to another leader, or in another term."""
        self._sent = 0
        self._outbox.enter(term)

    def form(self) -> None:
        """Form proposals of what is queued, as far as enough others are done."""
        queue, options = self._queue, self._options
        while queue and len(self._outbox) < options.proposals:
            calls: list[Change] = []
            size = 0
            while queue and (not calls or size + len(queue[0].data) <= options.proposal_bytes):
                call = queue.popleft()
                if call.is_open:
                    size += len(call.data)
                    calls.append(call)
            if calls:
                self._form(calls, [call.data for call in calls])

    def _form(self, calls: Sequence[Change], commands: Sequence[bytes]) -> None:
        self._numbers += 1
        group = self._groups[self._numbers] = _Group(self._numbers, calls)
        self._outbox.add(encode_proposal(self._member, self._life, self._numbers, commands), group)

    def to_send(self, term: int, *, to_self: bool, now: float) -> Forward | None:
        """Return what the leader of a term does not have yet, None if there is nothing.

        Args:
            term: the present one.
            to_self: whether this member leads: then the message cannot be lost.
            now: the time.
        """
        if not self._outbox.unconfirmed:
            return None
        first, proposals = self._outbox.to_send(after=self._sent)
        if not proposals:
            return None
        if not to_self:
            self._sent = first + len(proposals) - 1
            self._resend_at = now + self._options.resend_s
        return Forward(term, self._life, first, tuple(proposals))

    def resend(self, now: float) -> None:
        """Send again what was sent long ago and not confirmed."""
        if now >= self._resend_at:
            self._sent = 0

    def confirmed(self, reply: ForwardReply) -> None:
        """Record what a leader has in its log."""
        if reply.life == self._life:
            self._outbox.confirmed(reply.term, reply.taken)

    def applied(self, proposal: Proposal, outcomes: Sequence[object]) -> None:
        """Answer the callers of a proposal that was applied, if they are callers of this member."""
        if proposal.life != self._life or proposal.member != self._member:
            return
        group = self._groups.pop(proposal.number, None)
        if group is not None:
            self._outbox.appeared(group)
            for call, outcome in zip(group.calls, outcomes, strict=False):
                call.answer(outcome)

    def reached(self, term: int) -> None:
        """Queue the commands again, in their order, that can no longer be applied: an entry of this term was."""
        for group in reversed(self._outbox.void(term)):
            del self._groups[group.number]
            self._queue.extendleft(reversed([call for call in group.calls if not call.is_withdrawn]))
