"""The file of a backup of the metadata, and what a restore makes of it. Pure: no I/O, no clock.

A backup holds all keys at one revision, whatever the engine. The file is a sequence of frames::

    0        4        8
    +--------+--------+---------------------------+
    | length | CRC32C | msgpack: a frame, tagged  |     Head, then Items as often as needed, then End
    +--------+--------+---------------------------+
      little endian; the checksum is over the msgpack bytes

Metadata that are put back are another incarnation (:mod:`danube.metadata.incarnation`): what happened after the backup
is unknown, so every epoch rises by :data:`EPOCH_STEP`, and no owner can write under an epoch that was used before. Keys
with a lease, such as sessions, are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from danube.cluster.group_memory import MEMBERS, MemberRecord
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    CLUSTER_KEY,
    SESSIONS,
    Assignment,
    BrokerRecord,
    BrokerState,
    ClusterRecord,
    SessionRecord,
)
from danube.metadata._contract import KeyValue
from danube.model.batch import crc32c
from danube.model.cluster_api import BackupPiece
from danube.model.decoding import UNDECODABLE
from danube.model.errors import DataLossError
from danube.model.ids import OwnerEpoch

__all__ = [
    "EPOCH_STEP",
    "PIECE_BYTES",
    "Backup",
    "Head",
    "KeptBackup",
    "KnownBroker",
    "another_incarnation",
    "decode_backup",
    "encode_end",
    "encode_head",
    "encode_items",
    "known_brokers",
    "take_piece",
]

EPOCH_STEP: Final = 1 << 32
"""By which all epochs rise in another incarnation."""
PIECE_BYTES: Final = 512 * 1024
"""Keys and values of about so many bytes are in one frame."""
_FORMAT: Final = 1
_FRAME: Final = struct.Struct("<II")


class Head(msgspec.Struct, frozen=True, array_like=True, tag="danube metadata backup"):
    """The first frame."""

    format: int
    cluster: str
    """The name of the cluster."""
    revision: int
    """Of the metadata."""
    time_us: int
    """When the backup was made."""


class _Items(msgspec.Struct, frozen=True, array_like=True, tag="items"):
    items: tuple[KeyValue, ...]


class _End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    count: int
    """Of all keys."""


class Backup(msgspec.Struct, frozen=True):
    """The content of a file."""

    head: Head
    items: tuple[KeyValue, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Head | _Items | _End).decode
_CLUSTER: Final = msgspec.msgpack.Decoder(ClusterRecord)
_ASSIGNMENT: Final = msgspec.msgpack.Decoder(Assignment)
_BROKER: Final = msgspec.msgpack.Decoder(BrokerRecord)
_SESSION: Final = msgspec.msgpack.Decoder(SessionRecord)
_MEMBER: Final = msgspec.msgpack.Decoder(MemberRecord)


def _frame(content: object) -> bytes:
    body = _encode(content)
    return _FRAME.pack(len(body), crc32c(body)) + body


def encode_head(cluster: str, revision: int, time_us: int) -> bytes:
    """Return the first frame."""
    return _frame(Head(_FORMAT, cluster, revision, time_us))


def encode_items(items: Sequence[KeyValue]) -> bytes:
    """Return a frame of keys."""
    return _frame(_Items(tuple(items)))


def encode_end(count: int) -> bytes:
    """Return the last frame.

    Args:
        count: of the keys in all frames.
    """
    return _frame(_End(count))


def take_piece(items: Sequence[KeyValue], position: int) -> Sequence[KeyValue]:
    """Return the keys from a position on that make one frame; nothing at the end."""
    size, end = 0, position
    while end < len(items) and size < PIECE_BYTES:
        size += len(items[end].key) + len(items[end].value)
        end += 1
    return items[position:end]


class KeptBackup:
    """The keys of a backup that is fetched piece by piece.

    Args:
        items: all keys.
        revision: of the metadata that had them.
    """

    def __init__(self, items: Sequence[KeyValue], revision: int) -> None:
        self.revision = revision
        self._items = items
        self._count = len(items)
        """Outlives the keys: the last piece is asked for again if its answer is lost."""

    @property
    def has_keys(self) -> bool:
        """Whether there are keys to fetch still."""
        return bool(self._items)

    def drop(self) -> None:
        """Keep the keys no longer."""
        self._items = ()

    def piece(self, position: int) -> BackupPiece | None:
        """Return the piece from a position on; None: the keys were dropped, as they are with the last piece."""
        if position >= self._count:
            self.drop()
            return BackupPiece(self.revision, position, encode_end(self._count), last=True)
        if not self._items:
            return None
        items = take_piece(self._items, position)
        return BackupPiece(self.revision, position + len(items), encode_items(items))


def decode_backup(content: bytes, name: str) -> Backup:
    """Return what a file holds.

    Args:
        content: of the file.
        name: of the file, for messages.

    Raises:
        DataLossError: it is damaged, cut off, or no backup.
    """
    head: Head | None = None
    items: list[KeyValue] = []
    ended = False
    for position, frame in _frames(content, name):
        match frame:
            case Head() if position == 0 and frame.format == _FORMAT:
                head = frame
            case Head() if position == 0:
                raise DataLossError(f"{name} is a backup of format {frame.format}, and this Danube reads {_FORMAT}")
            case _Items() if head is not None and not ended:
                items += frame.items
            case _End() if head is not None and frame.count == len(items) and not ended:
                ended = True
            case _:
                raise _damaged(name, position)
    if head is None or not ended:
        raise DataLossError(f"{name} is not a whole backup: its end is missing; make another one")
    return Backup(head, tuple(items))


def _frames(content: bytes, name: str) -> Iterator[tuple[int, object]]:
    position = 0
    while position < len(content):
        if len(content) - position < _FRAME.size:
            raise _damaged(name, position)
        size, crc = _FRAME.unpack_from(content, position)
        body = content[position + _FRAME.size : position + _FRAME.size + size]
        if len(body) != size or crc32c(body) != crc:
            raise _damaged(name, position)
        try:
            yield position, _decode(body)
        except UNDECODABLE as error:
            raise _damaged(name, position) from error
        position += _FRAME.size + size


def _damaged(name: str, position: int) -> DataLossError:
    return DataLossError(f"{name} is damaged, or no backup of metadata, at byte {position}; use another copy of it")


class KnownBroker(NamedTuple):
    """A broker of which metadata have a record."""

    name: str
    identity: str
    address: str
    """The last one that the metadata know; empty if they know none."""


def known_brokers(items: Iterable[KeyValue]) -> tuple[KnownBroker, ...]:
    """Return the brokers of some metadata that have not been declared gone, by their numbers.

    A record that does not decode is left out: this is for messages, and those that use the record report the damage.
    """
    records: dict[str, BrokerRecord] = {}
    sessions: dict[str, str] = {}
    members: dict[str, str] = {}
    for item in items:
        with suppress(*UNDECODABLE):
            if item.key.startswith(BROKERS):
                records[item.key.removeprefix(BROKERS)] = _BROKER.decode(item.value)
            elif item.key.startswith(SESSIONS):
                sessions[item.key.removeprefix(SESSIONS)] = _SESSION.decode(item.value).address
            elif item.key.startswith(MEMBERS):
                member = _MEMBER.decode(item.value)
                members[member.identity] = member.address
    return tuple(
        KnownBroker(name, record.identity, sessions.get(name) or members.get(record.identity, ""))
        for name, record in sorted(records.items(), key=lambda each: (len(each[0]), each[0]))
        if record.state is not BrokerState.GONE
    )


def another_incarnation(items: Iterable[KeyValue], incarnation: int) -> tuple[ClusterRecord | None, list[KeyValue]]:
    """Return the record of the cluster and all keys as they begin another incarnation.

    Args:
        items: those of the former one.
        incarnation: random, not 0.

    Raises:
        DataLossError: a record does not decode.
    """
    found: list[KeyValue] = []
    cluster: ClusterRecord | None = None
    for item in items:
        if item.lease is not None or item.key.startswith(MEMBERS):
            continue
        value = item.value
        try:
            if item.key == CLUSTER_KEY:
                record = _CLUSTER.decode(value)
                cluster = msgspec.structs.replace(
                    record, incarnation=incarnation, epoch_base=record.epoch_base + EPOCH_STEP
                )
                value = _encode(cluster)
            elif item.key.startswith(ASSIGNMENTS):
                row = _ASSIGNMENT.decode(value)
                value = _encode(msgspec.structs.replace(row, epoch=OwnerEpoch(row.epoch + EPOCH_STEP)))
        except UNDECODABLE as error:
            raise DataLossError(f"the metadata record {item.key} does not decode: {error}") from error
        found.append(msgspec.structs.replace(item, value=value))
    return cluster, found
