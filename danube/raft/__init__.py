"""Raft consensus as a pure state machine, without clock, I/O or randomness. See :mod:`danube.raft.core`."""

from danube.raft.conf import Conf
from danube.raft.core import Raft, Ready, Refusal, Role, Settings
from danube.raft.log import Base
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
    NodeId,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    TimeoutNow,
    Vote,
    VoteReply,
)

__all__ = [
    # the state machine
    "Raft",
    "Ready",
    "Refusal",
    "Role",
    "Settings",
    # stored records
    "Base",
    "Conf",
    "Entry",
    "EntryKind",
    "HardState",
    "NodeId",
    # messages
    "Append",
    "AppendReply",
    "Heartbeat",
    "HeartbeatReply",
    "InstallSnapshot",
    "Message",
    "PreVote",
    "PreVoteReply",
    "ReadIndex",
    "ReadIndexReply",
    "TimeoutNow",
    "Vote",
    "VoteReply",
]
