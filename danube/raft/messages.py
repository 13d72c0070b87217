"""Stored records of Raft nodes, and the messages between them.

All are encoded as msgpack arrays; fields are only appended, with a default, so that nodes of adjacent
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
"""Identifies one linearizable read of one node; a node uses each value once per process."""


class EntryKind(IntEnum):
    """The kind of a log entry."""

    DATA = 0
    """A command of the state machine."""
    NOOP = 1
    """The first entry of each leader: committing it commits all earlier entries."""
    CONF = 2
    """An encoded :class:`~danube.raft.conf.Conf`, in force from the moment it is committed."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log."""

    index: int
    term: int
    kind: EntryKind
    data: bytes

    @property
    def size(self) -> int:
        """Bytes that count against limits for this entry."""
        return len(self.data) + 32


class HardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Durable state of a node besides its log."""

    term: int = 0
    vote: NodeId | None = None
    """The node that it voted for in ``term``."""
    commit: int = 0
    """The highest index known to be committed; written together with the entries that it arrived with."""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    to: NodeId
    sender: NodeId
    term: int


class PreVote(_Message, frozen=True, tag=0):
    """Requests a promise of a vote in ``term`` before a campaign; changes no node's term."""

    last_index: int
    last_term: int
    commit: int
    commit_term: int


class PreVoteReply(_Message, frozen=True, tag=1):
    """The answer to :class:`PreVote`. ``term`` is the requested term if granted, else the sender's own."""

    granted: bool
    commit: int
    commit_term: int


class Vote(_Message, frozen=True, tag=2):
    """Requests a vote in ``term``."""

    last_index: int
    last_term: int
    commit: int
    commit_term: int
    transfer: bool
    """The leader itself requested this campaign (a transfer), so receivers grant it although they hear the leader."""


class VoteReply(_Message, frozen=True, tag=3):
    """The answer to :class:`Vote`."""

    granted: bool
    commit: int
    commit_term: int
    silent: int = 0
    """Ticks for which the sender has heard no leader, and been none; never more than have passed."""


class Append(_Message, frozen=True, tag=4):
    """Entries that follow ``prev_index``; without entries it carries the commit index, or asks where the logs match."""

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


class AppendReply(_Message, frozen=True, tag=5):
    """How far the sender's synced log matches the leader's, or a hint where to search for the matching position."""

    index: int
    """Granted: the logs match up to here. Refused: the ``prev_index`` that was refused."""
    refused: bool = False
    hint_index: int = 0
    """Refused: the highest index at which the sender's term is not above that of the leader's entry."""
    hint_term: int = 0
    """The sender's term at ``hint_index``."""


class Heartbeat(_Message, frozen=True, tag=6):
    """Periodic sign of life of the leader."""

    commit: int
    """Never above the index that the receiver is known to have."""
    round: int
    """Round of reads that an answer confirms, together with all lower rounds."""


class HeartbeatReply(_Message, frozen=True, tag=7):
    """The answer to :class:`Heartbeat`, with its round."""

    round: int


class InstallSnapshot(_Message, frozen=True, tag=8):
    """The state machine up to ``index`` has arrived at the receiver, whole and verified, and waits to be installed.

    The driver transfers the state itself and passes this message to the core when all of it has arrived.
    """

    index: int
    index_term: int
    conf: Conf


class TimeoutNow(_Message, frozen=True, tag=9):
    """The leader transfers its leadership: campaign at once."""


class ReadIndex(_Message, frozen=True, tag=10):
    """A follower requests an index from its leader from which a read is linearizable."""

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
