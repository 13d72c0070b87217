"""What Raft nodes store and what they say to each other.

All of it is encoded as msgpack arrays; a field is only ever appended, with a default, so that nodes of neighbouring
versions understand each other. Messages are a tagged union, :data:`Message`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

import msgspec

from danube.raft.conf import Conf, NodeId

__all__ = [
    "Append",
    "AppendReply",
    "Entry",
    "EntryKind",
    "HardState",
    "Heartbeat",
    "HeartbeatReply",
    "InstallSnapshot",
    "Message",
    "NodeId",
    "PreVote",
    "PreVoteReply",
    "ReadIndex",
    "ReadIndexReply",
    "ReadToken",
    "TimeoutNow",
    "Vote",
    "VoteReply",
]

ReadToken = NewType("ReadToken", int)
"""Names one linearizable read of one node; a node uses each value once in its life."""


class EntryKind(IntEnum):
    """What an entry of the log is for."""

    DATA = 0
    """A command of the state machine."""
    NOOP = 1
    """The first entry of each leader: with it, everything before it is committed."""
    CONF = 2
    """An encoded :class:`~danube.raft.conf.Conf`, which holds from the moment it is committed."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log."""

    index: int
    term: int
    kind: EntryKind
    data: bytes

    @property
    def size(self) -> int:
        """Bytes that limits count for this entry."""
        return len(self.data) + 32


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node must not forget, beside its log."""

    term: int = 0
    vote: NodeId | None = None
    """For whom it voted in ``term``."""
    commit: int = 0
    """The highest index known to be committed. It is written together with the entries that came with it."""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    to: NodeId
    sender: NodeId
    term: int


class PreVote(_Message, frozen=True, tag=0):
    """Would you vote for me in ``term``? Asked before a campaign; changes nobody's term."""

    last_index: int
    last_term: int
    commit: int
    commit_term: int


class PreVoteReply(_Message, frozen=True, tag=1):
    """``term`` is the term that was asked about if granted, and the sender's own if not."""

    granted: bool
    commit: int
    commit_term: int


class Vote(_Message, frozen=True, tag=2):
    """Vote for me in ``term``."""

    last_index: int
    last_term: int
    commit: int
    commit_term: int
    transfer: bool
    """The leader itself asked for this campaign, so that it is heard of is no reason to refuse."""


class VoteReply(_Message, frozen=True, tag=3):
    """The answer to :class:`Vote`."""

    granted: bool
    commit: int
    commit_term: int


class Append(_Message, frozen=True, tag=4):
    """Entries that follow ``prev_index``; without entries it carries the commit index, or asks where the logs match."""

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendReply(_Message, frozen=True, tag=5):
    """How far the sender's synced log matches the leader's, or where to look for the place where they do."""

    index: int
    """Granted: they match up to here. Refused: the ``prev_index`` that was refused."""
    refused: bool = False
    hint_index: int = 0
    """Refused: the highest index at which the sender's term is not above that of the leader's entry."""
    hint_term: int = 0
    """Its term at ``hint_index``."""


class Heartbeat(_Message, frozen=True, tag=6):
    """The leader is here."""

    commit: int
    """Never above what the receiver is known to have."""
    round: int
    """Names the reads that an answer confirms: all of this and of lower rounds."""


class HeartbeatReply(_Message, frozen=True, tag=7):
    """The answer to :class:`Heartbeat`, with its round."""

    round: int


class InstallSnapshot(_Message, frozen=True, tag=8):
    """The state machine up to ``index`` is at the receiver, whole and verified, and waits to be installed.

    The driver transfers the state by itself and gives this message to the core when all of it has arrived.
    """

    index: int
    index_term: int
    conf: Conf


class TimeoutNow(_Message, frozen=True, tag=9):
    """The leader hands over: campaign at once."""


class ReadIndex(_Message, frozen=True, tag=10):
    """A follower asks its leader for an index from which a read is linearizable."""

    token: ReadToken


class ReadIndexReply(_Message, frozen=True, tag=11):
    """The answer to :class:`ReadIndex`."""

    token: ReadToken
    index: int


Message = (
    PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | InstallSnapshot
    | TimeoutNow
    | ReadIndex
    | ReadIndexReply
)
