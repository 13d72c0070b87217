"""Changes of a group's members: asked at any member, made by its leader. Pure.

The leader works out what a request means from the members as it knows them, proposes that, and answers when the new
configuration is in force. A request that is lost is sent again, under its number, and made once. It is not passed on to
another leader: when the term ends before the answer, its caller is told to look.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from danube.metadata.raft.calls import Call
from danube.metadata.raft.messages import (
    AddLearner,
    ChangeMembers,
    MembersChanged,
    MembersRequest,
    Promote,
    Remove,
)
from danube.model.errors import (
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    from_wire,
    to_wire,
)
from danube.raft import Conf, NodeId, Raft, Refusal

__all__ = ["MembersBook", "MembersCall", "MembersMaker"]

_MOST_BEHIND: Final = 100
"""Entries that a learner may lack when it is promoted."""
_MOST_REMEMBERED: Final = 64
"""Answers that a leader keeps, to be sent again."""
_UNKNOWN: Final = (
    "the change of the metadata members was not confirmed; it may still happen: look at them, and try again"
)


class MembersCall(Call):
    """A change of the members.

    Attributes:
        request: what is wanted.
        sent_in: the term in which it was sent; 0: it was not.
    """

    __slots__ = ("request", "sent_in")

    def __init__(self, request: MembersRequest, deadline: float) -> None:
        super().__init__(deadline)
        self.request = request
        self.sent_in = 0


class MembersBook:
    """The changes that callers of this member have asked for.

    Args:
        life: of this process.
    """

    def __init__(self, life: int) -> None:
        self._life = life
        self._calls: dict[int, MembersCall] = {}
        self._numbers = 0
        self._send_at = 0.0

    def add(self, call: MembersCall) -> None:
        """Add a call."""
        self._numbers += 1
        self._calls[self._numbers] = call
        self._send_at = 0.0

    def to_send(self, term: int, now: float, resend_s: float) -> list[ChangeMembers]:
        """Return the requests for the leader of a term: new ones at once, others again after a while."""
        if not self._calls or now < self._send_at:
            return []
        self._send_at = now + resend_s
        self._calls = {number: call for number, call in self._calls.items() if call.is_open}
        for call in self._calls.values():
            call.sent_in = term
        return [ChangeMembers(term, self._life, number, call.request) for number, call in self._calls.items()]

    def answered(self, reply: MembersChanged) -> None:
        """Answer a caller."""
        call = self._calls.pop(reply.number, None) if reply.life == self._life else None
        if call is not None:
            call.answer(reply.conf if reply.conf is not None else from_wire(0, reply.code, reply.message))

    def enter(self, term: int) -> None:
        """Tell the callers whose leader has ended; other requests wait for a leader."""
        for number, call in list(self._calls.items()):
            if 0 < call.sent_in < term:
                del self._calls[number]
                call.fail(UnavailableError(_UNKNOWN))

    def give_up(self, call: MembersCall, after: str) -> None:
        """Answer a call that was not answered in time."""
        if call.sent_in:
            call.fail(UnavailableError(_UNKNOWN))
        else:
            call.fail(UnavailableError(f"the metadata members were not changed {after}; try again"))


_Key = tuple[NodeId, int, int]


class _Making(NamedTuple):
    term: int
    entry: int
    """Index of the entry that begins it."""
    wanted: tuple[tuple[NodeId, ...], tuple[NodeId, ...]]


class MembersMaker:
    """The changes that this member makes as leader.

    Args:
        raft: the core.
    """

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._making: dict[_Key, _Making] = {}
        self._made: dict[_Key, MembersChanged] = {}

    def begin(self, sender: NodeId, message: ChangeMembers) -> MembersChanged | None:
        """Begin a change; return an answer if there is one already."""
        raft = self._raft
        key = (sender, message.life, message.number)
        if not raft.is_leader or message.term != raft.term or key in self._making:
            return None  # it is sent again, or its caller is told that this leader has ended
        if key in self._made:
            return self._made[key]
        try:
            voters, learners = _wanted(raft, message.request)
            index = raft.propose_conf(voters, learners)
            if isinstance(index, Refusal):
                raise UnavailableError(f"the metadata members cannot be changed now: {index.value}; try again")
        except DanubeError as error:
            return _failed(raft, key, error)
        except ValueError as error:
            return _failed(raft, key, InvalidArgumentError(f"these metadata members are not possible: {error}"))
        self._making[key] = _Making(raft.term, index, (tuple(sorted(set(voters))), tuple(sorted(set(learners)))))
        return None

    def settle(self) -> list[tuple[NodeId, MembersChanged]]:
        """Return the answers to changes that are complete, or are not this member's any more, with their receivers."""
        if not self._making:
            return []
        raft = self._raft
        conf = raft.conf
        found: list[tuple[NodeId, MembersChanged]] = []
        for key, making in list(self._making.items()):
            sender, life, number = key
            if raft.commit >= making.entry and not conf.is_joint and (conf.voters, conf.learners) == making.wanted:
                reply = self._made[key] = MembersChanged(making.term, life, number, conf)
            elif raft.term != making.term or not raft.is_leader:
                reply = _failed(raft, key, UnavailableError(_UNKNOWN))
            else:
                continue
            del self._making[key]
            found.append((sender, reply))
        while len(self._made) > _MOST_REMEMBERED:
            del self._made[next(iter(self._made))]
        return found


def _failed(raft: Raft, key: _Key, error: DanubeError) -> MembersChanged:
    return MembersChanged(raft.term, key[1], key[2], None, to_wire(error).code, error.message)


def _wanted(raft: Raft, request: MembersRequest) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    """Return voters and learners after a change.

    Raises:
        FailedPreconditionError: a member to be promoted is no learner, or too far behind the log.
        UnavailableError: the members that the request was made for have changed.
    """
    conf = raft.conf
    match request:
        case AddLearner(member):
            return conf.voters, (*conf.learners, member)
        case Promote(member):
            _check_learner(raft, conf, member)
            return (*conf.voters, member), tuple(each for each in conf.learners if each != member)
        case Remove(member):
            voters = tuple(each for each in conf.voters if each != member)
            return voters, tuple(each for each in conf.learners if each != member)
        case _:
            if request.instead_of not in (None, conf):
                raise UnavailableError("the metadata members have changed meanwhile; look at them, and try again")
            return request.voters, request.learners


def _check_learner(raft: Raft, conf: Conf, member: NodeId) -> None:
    if member not in conf.learners:
        raise FailedPreconditionError(f"metadata member {member} is not a learner; add it as one first")
    behind = raft.log.last_index - raft.matches().get(member, 0)
    if behind > _MOST_BEHIND:
        raise FailedPreconditionError(
            f"metadata member {member} is {behind} entries behind; it is promoted at {_MOST_BEHIND} or less"
        )
