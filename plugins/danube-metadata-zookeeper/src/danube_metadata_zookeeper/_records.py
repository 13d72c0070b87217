"""What is stored in ZooKeeper's nodes, and their paths. Pure: no I/O, no clock.

Below the root, the prefix of the URL::

    revision          Head: the position of the last entry of the log. Each change sets it, if its version is the one
                      that was read: so all changes have one order
    log/<position>    Entry: the changes that were committed together
    leases/<id>       empty; its version counts the keep-alives of the lease
    snapshot          Snapshot: where the state after one entry is, and the first entry that is kept
    pieces/<name>     a part of the state: KeyValue items

Values are msgpack. A node holds at most one packet (``jute.maxbuffer``, 1 MiB by default), so a state is cut into
pieces. There is no node for a key: the names of a node's children must fit into one packet, too, and values that are
stored both in the log and in a node of their own would halve the largest change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from danube.metadata import Event, EventBatch, KeyValue, LeaseId
from danube.model.errors import DataLossError, FailedPreconditionError
from danube.model.limits import KIB

__all__ = [
    "FORMAT",
    "LEASE_BYTES",
    "PIECE_BYTES",
    "Entry",
    "Head",
    "Paths",
    "Snapshot",
    "batches_of",
    "decode",
    "decode_items",
    "encode",
    "entry_of",
    "event_bytes",
    "pieces",
]

FORMAT: Final = 1
"""Of everything below the root."""
PIECE_BYTES: Final = 512 * KIB
"""Most bytes of items in a piece of a snapshot that has more than one."""
LEASE_BYTES: Final = 24
"""Most bytes of a lease in a snapshot."""
_EVENT_OVERHEAD: Final = 96
"""Most bytes of an encoded event besides key and value."""

T = TypeVar("T")


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The value of ``revision``."""

    format: int
    store: str
    """Random id, made when the root was founded: tells another history from this one."""
    position: int
    """Of the last entry of the log; 0: there is none."""
    revision: int
    """The store's revision after that entry."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What was committed together. Applied in this order: leases begin, keys change, leases end."""

    granted: tuple[tuple[LeaseId, float], ...]
    """Leases and their times to live, in seconds."""
    changes: tuple[tuple[int, tuple[Event, ...]], ...]
    """Revisions, and their events."""
    ended: tuple[LeaseId, ...]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The value of ``snapshot``."""

    format: int
    position: int
    """The state is the one after this entry of the log."""
    revision: int
    next_lease: int
    leases: tuple[tuple[LeaseId, float], ...]
    pieces: tuple[str, ...]
    """Names of the nodes that have the items."""
    first: int
    """Position of the first entry of the log that is kept; at most ``position + 1``."""
    compacted: int
    """Last revision of the entries before that one."""


_encoder = msgspec.msgpack.Encoder()


def encode(record: Head | Entry | Snapshot) -> bytes:
    """Return the bytes of a record."""
    return _encoder.encode(record)


def decode(kind: type[T], data: bytes, path: str) -> T:
    """Return the record in a node.

    Raises:
        DataLossError: the bytes are not such a record.
        FailedPreconditionError: they were written by a version with another format.
    """
    try:
        record = msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise DataLossError(
            f"ZooKeeper's node {path} does not hold Danube's metadata: {error}; was it written by another program? Use"
            " another prefix, or restore ZooKeeper's data from a backup"
        ) from error
    found = getattr(record, "format", FORMAT)
    if found != FORMAT:
        raise FailedPreconditionError(
            f"the metadata in ZooKeeper below {path.rpartition('/')[0]} have format {found}; this version reads"
            f" {FORMAT}: upgrade danube-metadata-zookeeper"
        )
    return record


def entry_of(
    granted: Iterable[tuple[LeaseId, float]], batches: Iterable[EventBatch], ended: Iterable[LeaseId]
) -> Entry:
    """Return the entry for what a machine has done."""
    return Entry(tuple(granted), tuple((batch.revision, batch.events) for batch in batches), tuple(ended))


def batches_of(entry: Entry) -> list[EventBatch]:
    """Return the changes of an entry as a watch tells them."""
    return [EventBatch(revision, events) for revision, events in entry.changes]


def event_bytes(key: str, value: bytes = b"") -> int:
    """Return how many bytes of an entry an event needs at most."""
    return len(key.encode()) + len(value) + _EVENT_OVERHEAD


def pieces(items: Iterable[KeyValue], most_bytes: int) -> Iterator[bytes]:
    """Cut items into pieces of at most ``PIECE_BYTES``; a larger item, of at most ``most_bytes``, is one of its own."""
    most = min(PIECE_BYTES, most_bytes)
    found: list[bytes] = []
    size = 0
    for item in items:
        data = _encoder.encode(item)
        if found and size + len(data) > most:
            yield _joined(found)
            found, size = [], 0
        found.append(data)
        size += len(data)
    if found:
        yield _joined(found)


def _joined(items: list[bytes]) -> bytes:
    return _encoder.encode([msgspec.Raw(item) for item in items])


def decode_items(data: bytes, path: str) -> list[KeyValue]:
    """Return the items of a piece; DataLossError if it is none."""
    return decode(list[KeyValue], data, path)


class Paths:
    """The nodes' paths.

    Args:
        root: the prefix; empty for ZooKeeper's root.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.revision = f"{root}/revision"
        self.log = f"{root}/log"
        self.leases = f"{root}/leases"
        self.snapshot = f"{root}/snapshot"
        self.pieces = f"{root}/pieces"

    def parents(self) -> list[str]:
        """Return the root and its parents, outermost first."""
        parts = self.root.split("/")[1:]
        return ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]

    def entry(self, position: int) -> str:
        """Return the path of an entry."""
        return f"{self.log}/{position:020d}"

    def lease(self, lease: LeaseId) -> str:
        """Return the path of a lease."""
        return f"{self.leases}/{lease}"

    def piece(self, name: str) -> str:
        """Return the path of a piece."""
        return f"{self.pieces}/{name}"

    @staticmethod
    def piece_name(position: int, nonce: str, number: int) -> str:
        """Return the name of a piece of the snapshot at a position."""
        return f"{position:020d}-{nonce}-{number}"

    @staticmethod
    def piece_position(name: str) -> int:
        """Return the position in the name of a piece."""
        return int(name.partition("-")[0])
