"""Raft as a pure state machine: no clock, no I/O, no own randomness. The rules are in :mod:`danube.raft.core`."""

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
    # the machine
    "Raft",
    "Ready",
    "Refusal",
    "Role",
    "Settings",
    # what it keeps
    "Base",
    "Conf",
    "Entry",
    "EntryKind",
    "HardState",
    "NodeId",
    # what it sends
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
