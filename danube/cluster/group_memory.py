"""What a broker remembers of its place in the metadata's group, and the messages by which it gets one. Pure: no I/O.

It is stored in the data directory, synced, before the broker acts on it: after a crash it must not form another group,
and not ask for a place under another member id. Each version has a file of its own, ``group-`` and 16 hexadecimal
digits; the highest one that is whole counts. A file is::

    0        4        8                              n
    +--------+--------+------------------------------+---
    | CRC32C | length | msgpack: GroupMemory         | zeros
    +--------+--------+------------------------------+---
      little endian; the checksum is over the msgpack bytes

Founders are members 1, 2, ... in the order of the list. Members that join later draw their id: it is never used again,
so a member whose log was lost cannot vote for the one that it was.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from danube.cluster.forming import Founding, voters_of
from danube.model.batch import crc32c
from danube.model.decoding import UNDECODABLE
from danube.model.errors import DataLossError
from danube.raft import Conf, NodeId

__all__ = [
    "MEMBERS",
    "Add",
    "Admitted",
    "GroupMemory",
    "MemberRecord",
    "decode_memory",
    "encode_memory",
    "file_name",
    "file_number",
    "founded",
    "is_member_name",
    "newest",
    "next_number",
]

MEMBERS: Final = "/members/"
"""Prefix of the records of members in the metadata; the rest of a key is the member's id."""
_NAME: Final = re.compile(r"group-([0-9a-f]{16})")
_HEAD: Final = struct.Struct("<II")
_BLOCK: Final = 4096


def is_member_name(name: str) -> bool:
    """Whether this can be the rest of a key below :data:`MEMBERS`."""
    return name.isascii() and name.isdecimal()


class MemberRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A member of the group, in the metadata."""

    address: str
    """``host:port`` at which other members reach its broker."""
    identity: str
    """Of its data directory."""


class GroupMemory(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The place of a broker in the group."""

    cluster: str
    """The name of the cluster."""
    member: NodeId
    """Its member id."""
    incarnation: int = 0
    """64 bits, of the cluster; 0: the broker has asked for a place, and has none yet."""
    conf: Conf | None = None
    """The first configuration for its log."""
    addresses: dict[NodeId, str] = {}
    """Of the members at that time. Later ones are in the metadata."""
    founding: Founding | None = None
    """How the cluster began, if this broker is a founder."""
    is_opened: bool = False
    """Whether its log was begun: then it may have voted, and must not begin another one."""


class Add(msgspec.Struct, frozen=True, array_like=True, tag="add"):
    """Asks the leader for a place in the group. May be repeated."""

    cluster: str
    member: NodeId
    identity: str
    address: str
    hops: int = 0
    """How often it was passed on."""

    def replaces(
        self, members: Iterable[NodeId], address: Callable[[NodeId], str | None], identities: Mapping[NodeId, str]
    ) -> list[NodeId]:
        """Return which members the broker takes the place of: those at its address, or with its identity, in order.

        Args:
            members: candidates; the broker itself may be one of them.
            address: returns the address of a member, None if it is not known.
            identities: of the members' data directories, as far as they are known.
        """
        return [
            member
            for member in sorted(members)
            if member != self.member and (address(member) == self.address or identities.get(member) == self.identity)
        ]


class Admitted(msgspec.Struct, frozen=True, array_like=True):
    """The answer: the members now."""

    incarnation: int
    conf: Conf
    addresses: dict[NodeId, str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GroupMemory).decode


def founded(founding: Founding, identity: str) -> GroupMemory:
    """Return the place of a founder.

    Args:
        founding: of the cluster.
        identity: of the founder's data directory.
    """
    number = founding.broker(identity)
    assert number is not None
    members = [NodeId(each) for each in range(1, len(founding.addresses) + 1)]
    votes = voters_of(len(members))
    return GroupMemory(
        cluster=founding.cluster,
        member=NodeId(number),
        incarnation=founding.incarnation,
        conf=Conf(tuple(members[:votes]), learners=tuple(members[votes:])),
        addresses=dict(zip(members, founding.addresses, strict=True)),
        founding=founding,
    )


def file_name(number: int) -> str:
    """Return the name of a version's file."""
    return f"group-{number:016x}"


def file_number(name: str) -> int | None:
    """Return the number of a version's file; None if it is none."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def encode_memory(memory: GroupMemory) -> bytes:
    """Return the content of a file."""
    body = _encode(memory)
    content = _HEAD.pack(crc32c(body), len(body)) + body
    return content.ljust(-(-len(content) // _BLOCK) * _BLOCK, b"\0")


def decode_memory(content: bytes) -> GroupMemory | None:
    """Return what a file says; None if it is damaged or was not written completely."""
    if len(content) < _HEAD.size:
        return None
    crc, size = _HEAD.unpack_from(content)
    body = content[_HEAD.size : _HEAD.size + size]
    if len(body) != size or not body or crc32c(body) != crc:
        return None
    try:
        return _decode(body)
    except UNDECODABLE:
        return None


def newest(files: Mapping[int, bytes], place: str) -> GroupMemory | None:
    """Return what the highest whole version says; None if there are no files.

    Args:
        files: contents by number.
        place: the data directory, for messages.

    Raises:
        DataLossError: no file is whole.
    """
    for number in sorted(files, reverse=True):
        memory = decode_memory(files[number])
        if memory is not None:
            return memory
    if any(any(content) for content in files.values()):
        raise DataLossError(
            f"data directory {place}: the file {file_name(max(files))!r}, which says to which cluster the broker"
            " belongs, is damaged. Nothing was changed. Restore it from a copy of the directory, or start the broker"
            " with an empty one: then it joins as a new broker"
        )
    return None


def next_number(numbers: Iterable[int]) -> int:
    """Return the number of the next version."""
    return max(numbers, default=0) + 1
