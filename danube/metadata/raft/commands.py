"""Commands of the replicated metadata store, as data, and how a log entry contains them. Pure.

A log entry holds a *proposal*: the commands that one member collected while its last proposal was on its way. All
members apply the same commands in the same order, so applying them uses no clock, no randomness and no callback::

    proposal     [member, life, number, [command, ...]]
    command      Transact  [0, [[key, revision], ...], [[key, value | nil, lease | nil], ...]]     value nil: delete
                 Grant     [1, ttl]
                 Revoke    [2, lease]               requested by a client, or by the leader when the time is up
                 SetBounds [3, revisions, bytes, leases]
                 Compare   [4]                      asks each member for a checksum of its table there

``member``, ``life`` and ``number`` say whose proposal it is: the member that recognises its own answers its callers.
Only the leader decides when a lease has ended; members learn about it from the log.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danube.metadata._contract import Condition, Delete, LeaseId, Put
from danube.raft import NodeId

__all__ = [
    "Command",
    "Compare",
    "Grant",
    "Proposal",
    "Revoke",
    "SetBounds",
    "Transact",
    "decode_proposal",
    "encode_command",
    "encode_proposal",
    "may_compare",
    "transaction",
]


class Transact(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Apply all operations at one revision if all conditions hold."""

    conditions: tuple[tuple[str, int], ...]
    operations: tuple[tuple[str, bytes | None, LeaseId | None], ...]

    def parts(self) -> tuple[list[Condition], list[Put | Delete]]:
        """Return conditions and operations in the terms of the contract."""
        return (
            [Condition(key, revision) for key, revision in self.conditions],
            [Delete(key) if value is None else Put(key, value, lease) for key, value, lease in self.operations],
        )


class Grant(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Create a lease."""

    ttl_s: float


class Revoke(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """End a lease. Does nothing if it has ended."""

    lease: LeaseId


class SetBounds(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Change the bounds that are part of the replicated state."""

    history_revisions: int
    history_bytes: int
    leases: int


class Compare(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Have all members compare their tables as of here; see :mod:`danube.metadata.raft.comparing`."""


Command = Transact | Grant | Revoke | SetBounds | Compare
"""One command."""


class Proposal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content of one log entry; see the module."""

    member: NodeId
    life: int
    """Distinguishes the processes of a member: a random number."""
    number: int
    """Counts the proposals of a life, from 1."""
    commands: tuple[Command, ...]


class _Sent(msgspec.Struct, array_like=True, gc=False):
    """A proposal with commands that are encoded already."""

    member: NodeId
    life: int
    number: int
    commands: Sequence[msgspec.Raw]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Proposal).decode
_COMPARE = _encode(Compare())


def transaction(conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> Transact:
    """Return the command of a transaction."""
    return Transact(
        tuple([(condition.key, condition.mod_revision) for condition in conditions]),
        tuple(
            [
                (part.key, part.value, part.lease) if isinstance(part, Put) else (part.key, None, None)
                for part in operations
            ]
        ),
    )


def encode_command(command: Command) -> bytes:
    """Return a command as it will be part of a proposal; its length counts against the size of an entry."""
    return _encode(command)


def may_compare(data: bytes) -> bool:
    """Return whether a proposal may end with :class:`Compare`, which reads all of the table; it may also not."""
    return data.endswith(_COMPARE)


def encode_proposal(member: NodeId, life: int, number: int, commands: Sequence[bytes]) -> bytes:
    """Return the data of a log entry."""
    return _encode(_Sent(member, life, number, [msgspec.Raw(each) for each in commands]))


def decode_proposal(data: bytes) -> Proposal:
    """Return the proposal of a log entry.

    Raises:
        msgspec.MsgspecError: it is not one. The entry passed its checksums, so it comes from an unknown version.
    """
    return _decode(data)
