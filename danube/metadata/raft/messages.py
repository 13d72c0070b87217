"""Messages between the members of a group, and how a link carries them. Pure.

A link transports *payloads*, bytes that arrive whole or not at all, in any order. A payload is a msgpack array::

    [sender, [message, ...]]

of messages of the Raft core (tags 0 to 11, :mod:`danube.raft.messages`) and those of this module (from 32). Fields are
only appended, with defaults, so that adjacent versions understand each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danube.metadata._contract import LeaseId
from danube.raft import Base, Conf, Message, NodeId

__all__ = [
    "AddLearner",
    "AnyMessage",
    "ChangeMembers",
    "Differs",
    "Digest",
    "Forward",
    "ForwardReply",
    "KeepAlive",
    "KeepAliveReply",
    "MembersChanged",
    "MembersRequest",
    "Promote",
    "Remove",
    "SetMembers",
    "SnapshotPiece",
    "SnapshotReply",
    "decode_payload",
    "encode_payload",
]


class _Own(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    term: int
    """In which the sender has sent it."""


class Forward(_Own, frozen=True, tag=32):
    """Proposals of a member for the leader of ``term``; see :mod:`danube.metadata.raft.forwarding`."""

    life: int
    """Of the sender's process."""
    first: int
    """Number of the first one in this term."""
    proposals: tuple[bytes, ...]


class ForwardReply(_Own, frozen=True, tag=33):
    """Which proposals of a member the leader has appended to its log in ``term``."""

    life: int
    taken: int
    """Number of the last one. All before were appended, too."""


class KeepAlive(_Own, frozen=True, tag=34):
    """Leases of clients of the sender, to be renewed by the leader."""

    token: int
    leases: tuple[LeaseId, ...]


class KeepAliveReply(_Own, frozen=True, tag=35):
    """The answer to :class:`KeepAlive`, sent by a leader that has confirmed its leadership since the receipt."""

    token: int
    ended: tuple[LeaseId, ...]
    """Leases that have ended. All others were renewed."""


class SnapshotPiece(_Own, frozen=True, tag=36):
    """A piece of a copy of the leader's table."""

    base: Base
    """Of which index the copy is."""
    size: int
    """Of the copy, in bytes."""
    digest: bytes
    """SHA-256 of the copy."""
    position: int
    piece: bytes
    crc: int
    """CRC32C of the piece."""


class SnapshotReply(_Own, frozen=True, tag=37):
    """How far the copy of ``index`` has arrived."""

    index: int
    digest: bytes
    position: int
    """Everything below it is there."""


class AddLearner(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """Add a member that receives the log and has no vote."""

    member: NodeId


class Promote(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Make a learner a voter."""

    member: NodeId


class Remove(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Remove a member."""

    member: NodeId


class SetMembers(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Have exactly these members."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    instead_of: Conf | None = None
    """The members that these were worked out from: if there are others now, nothing is changed. None: from none."""


MembersRequest = AddLearner | Promote | Remove | SetMembers
"""A change of the members of a group."""


class ChangeMembers(_Own, frozen=True, tag=38):
    """A change of the members, for the leader of ``term``; see :mod:`danube.metadata.raft.members`."""

    life: int
    """Of the sender's process."""
    number: int
    """Of the request in this life."""
    request: MembersRequest


class MembersChanged(_Own, frozen=True, tag=39):
    """The answer to :class:`ChangeMembers`."""

    life: int
    number: int
    conf: Conf | None
    """In force now; None: the change failed."""
    code: str = ""
    """Of the error."""
    message: str = ""


class Digest(_Own, frozen=True, tag=40):
    """The checksum of the sender's table at an entry that asked for it."""

    index: int
    digest: int


class Differs(_Own, frozen=True, tag=41):
    """The receiver's table differs from those of a majority: it is to replace it by the copy that follows."""

    index: int
    """Of the entry with which that was found."""


AnyMessage = (
    Message
    | Forward
    | ForwardReply
    | KeepAlive
    | KeepAliveReply
    | SnapshotPiece
    | SnapshotReply
    | ChangeMembers
    | MembersChanged
    | Digest
    | Differs
)


class _Payload(msgspec.Struct, frozen=True, array_like=True):
    sender: NodeId
    messages: tuple[AnyMessage, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Payload).decode


def encode_payload(sender: NodeId, messages: Sequence[AnyMessage]) -> bytes:
    """Return the payload of messages to one member."""
    return _encode((sender, messages))


def decode_payload(payload: bytes) -> tuple[NodeId, tuple[AnyMessage, ...]]:
    """Return sender and messages of a payload.

    Raises:
        msgspec.MsgspecError: it is not one.
    """
    found = _decode(payload)
    return found.sender, found.messages
