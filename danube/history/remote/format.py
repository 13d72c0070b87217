"""Byte format of remote commits: object keys, kinds of commits, and their control entries. Pure.

A commit is a segment object of kind ``COMMIT`` (:mod:`danube.history.segment`) under the key::

    wal/<cluster>/<broker>/<epoch, 16 hex digits>/<sequence, 16 hex digits>

Each broker has a log of its own; ``<cluster>/<broker>`` is its *place* (:func:`wal_place`).

Its control section begins with a :class:`CommitHead` that identifies the object, so that an object under a wrong key,
or of another cluster, is detected. Behind it are the control entries of the topics (``danube.log.EntryType``: CURSOR,
PRODUCER, TOPIC), in the order of their submission; the batches are the parts. There are four kinds of commits:

* ``CLAIM``, sequence 0 of each epoch: marks the takeover by an owner.
* ``ENTRIES``: the entries of topics.
* ``SNAPSHOT``: the combined state of all commits that had settled before it. Batches that are still needed are not
  copied: the snapshot lists their parts and objects. If it is larger than the maximum object, it is first stored in
  pieces, and the commit contains only their number and a checksum::

      wal-pieces/<cluster>/<broker>/<epoch, 16 hex digits>/<sequence, 16 hex digits>-<number, 8 hex digits>

* ``FENCE``: the end of an epoch. Written by the owner itself when it closes, or by a later owner that takes over.

A change of metadata is the payload of a TOPIC entry: one of the structs of :data:`Change`.

A topic that moves to this log by plan begins in it with its state (``TopicTaken``), which is *pending* until its owner
serves it (``TopicKept``); it ends with ``TopicGone``. In the log that it leaves, ``TopicLeaving`` precedes the change
of the owner. Its batches stay where they are: they are sealed before. The log that it has left remembers its id until
it returns or is deleted, 9 bytes of each snapshot, because metadata that were set back may say that it is still there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from danube.history.segment import (
    TRAILER_SIZE,
    ControlEntry,
    SegmentBuilder,
    SegmentKind,
    SegmentPart,
    read_control,
    read_footer,
    read_header,
    read_trailer,
)
from danube.log.cache import StoredBatch
from danube.log.format import Entry, EntryType
from danube.model.batch import crc32c, read_stamp
from danube.model.errors import DataLossError
from danube.model.ids import NO_TOPIC, Offset, OwnerEpoch, ProducerId, TopicId

__all__ = [
    "Change",
    "CommitHead",
    "CommitKind",
    "DecodedCommit",
    "Position",
    "RemoteState",
    "SnapshotBody",
    "SnapshotObject",
    "SnapshotPieces",
    "SubscriptionDeleted",
    "SubscriptionStored",
    "TopicDeleted",
    "TopicGone",
    "TopicKept",
    "TopicLeaving",
    "TopicStored",
    "TopicTaken",
    "commit_key",
    "decode_change",
    "decode_commit",
    "decode_snapshot",
    "encode_change",
    "encode_entries",
    "encode_marker",
    "head_entry",
    "parse_key",
    "parse_pieces_key",
    "pieces_entry",
    "pieces_key",
    "pieces_prefix",
    "snapshot_body",
    "snapshot_entry",
    "snapshot_pieces",
    "wal_place",
    "wal_prefix",
]

_HEAD_TYPE: Final = 64
"""Above all journal entry types: these three types exist only in commits."""
_SNAPSHOT_TYPE: Final = 65
_PIECES_TYPE: Final = 66


class Position(NamedTuple):
    """The place of a commit. Positions compare in the order of the log."""

    epoch: OwnerEpoch
    sequence: int


def wal_place(cluster: str, broker: str) -> str:
    """Return the place of a broker's commits, in keys and in each commit."""
    return f"{cluster}/{broker}"


def wal_prefix(place: str) -> str:
    """Return the key prefix of the commits of a broker, or of all brokers of a cluster."""
    return f"wal/{place}/"


def commit_key(place: str, position: Position) -> str:
    """Return the key of a commit."""
    return f"wal/{place}/{position.epoch:016x}/{position.sequence:016x}"


def parse_key(place: str, key: str) -> Position:
    """Return the position that a key encodes.

    Raises:
        DataLossError: not a key of a commit.
    """
    pieces = key.removeprefix(wal_prefix(place)).split("/")
    try:
        epoch, sequence = (int(piece, 16) for piece in pieces)
    except ValueError:
        raise DataLossError(
            f"{key} is not the key of a commit; remove objects that are not Danube's from {wal_prefix(place)}"
        ) from None
    return Position(OwnerEpoch(epoch), sequence)


def pieces_prefix(place: str) -> str:
    """Return the key prefix of the pieces of large snapshots."""
    return f"wal-pieces/{place}/"


def pieces_key(place: str, position: Position) -> str:
    """Return the key prefix of a snapshot's pieces."""
    return f"{pieces_prefix(place)}{position.epoch:016x}/{position.sequence:016x}"


def parse_pieces_key(place: str, key: str) -> Position | None:
    """Return the position of the snapshot that a piece belongs to; None for other keys."""
    epoch, _, rest = key.removeprefix(pieces_prefix(place)).partition("/")
    try:
        return Position(OwnerEpoch(int(epoch, 16)), int(rest.partition("-")[0], 16))
    except ValueError:
        return None


class CommitKind(enum.IntEnum):
    """The purpose of a commit."""

    CLAIM = 1
    ENTRIES = 2
    SNAPSHOT = 3
    FENCE = 4


class CommitHead(msgspec.Struct, frozen=True, array_like=True):
    """The first control entry of every commit."""

    kind: int
    place: str
    """Cluster and broker in whose log it is."""
    owner: str
    """Unique name of one broker process: two owners never write the same bytes."""
    writer_epoch: OwnerEpoch
    """Epoch of the owner that wrote it."""
    epoch: OwnerEpoch
    """Epoch of the owner whose log it is in; differs only in a FENCE."""
    sequence: int
    snapshot: tuple[OwnerEpoch, int] | None
    """Epoch and sequence of the newest snapshot that had settled when this commit was built."""
    settled: int
    """Every commit of its epoch below this sequence had settled, too. A SNAPSHOT is the combined state of these, and
    of all former epochs."""

    @property
    def position(self) -> Position:
        """Its position in the log."""
        return Position(self.epoch, self.sequence)


# --- Metadata changes ---


class _Change(msgspec.Struct, array_like=True, tag_field="change"):
    """Base of the payloads of TOPIC entries."""


class TopicStored(_Change, tag=1):
    """A topic was created, or its record has changed. A partitioned topic is one record with several ids."""

    name: str
    topic_ids: list[TopicId]
    """Those that are in this log; other partitions may be in others."""
    record: bytes


class TopicDeleted(_Change, tag=2):
    """A topic was deleted, with everything that belongs to it."""

    name: str
    topic_ids: list[TopicId]


class SubscriptionStored(_Change, tag=3):
    """A subscription was created, or its record has changed."""

    topic_id: TopicId
    name: str
    record: bytes


class SubscriptionDeleted(_Change, tag=4):
    """A subscription was deleted."""

    topic_id: TopicId
    name: str


class TopicTaken(_Change, tag=5):
    """A topic or partition is moving to this log, and this is its state; pending until :class:`TopicKept`."""

    topic_id: TopicId
    move: int
    """The id of the move."""
    name: str
    """Of the topic as a whole."""
    record: bytes
    next_offset: Offset
    """Behind its last message; those before are sealed."""
    snapshot: bytes
    """Offsets and producers."""
    subscriptions: dict[str, bytes]
    """Subscription name to its record."""
    cursors: dict[int, bytes]
    """Subscription id to its cursor."""
    epoch: int = 0
    """Of the assignment that the move makes."""


class TopicKept(_Change, tag=6):
    """The topic that a move has brought is served by the owner of this log; what follows continues its state."""

    topic_id: TopicId
    move: int
    record: bytes


class TopicGone(_Change, tag=7):
    """A topic or partition is in this log no longer: it has moved away, or its move to here was given up."""

    topic_id: TopicId
    move: int
    """The move that had brought it; 0: none had."""


class TopicLeaving(_Change, tag=8):
    """A topic or partition is about to move away; the metadata say whether it has, or whether it was deleted since."""

    topic_id: TopicId
    is_leaving: bool
    """False: it stays."""


Change = (
    TopicStored
    | TopicDeleted
    | SubscriptionStored
    | SubscriptionDeleted
    | TopicTaken
    | TopicKept
    | TopicGone
    | TopicLeaving
)

_encode = msgspec.msgpack.encode
_CHANGE: msgspec.msgpack.Decoder[Change] = msgspec.msgpack.Decoder(Change)
_HEAD = msgspec.msgpack.Decoder(CommitHead)


def encode_change(change: Change) -> bytes:
    """Return the payload of a TOPIC entry."""
    return _encode(change)


def decode_change(payload: bytes) -> Change:
    """Read the payload of a TOPIC entry."""
    return _CHANGE.decode(payload)


# --- Snapshots ---


class RemoteState(msgspec.Struct, array_like=True):
    """The broker's state of its topics of durability ``remote``; the payloads are opaque here."""

    topics: dict[str, tuple[list[TopicId], bytes]]
    """Topic name to its ids in this log, and its record."""
    subscriptions: dict[TopicId, dict[str, bytes]]
    """Topic id to subscription name to its record."""
    topic_snapshots: dict[TopicId, bytes]
    """Topic id to offsets and producers."""
    cursor_snapshots: dict[int, bytes]
    """Subscription id to its cursor."""
    copies: dict[TopicId, TopicTaken] = {}
    """Topics that are moving to this log, and are pending."""
    moves: dict[TopicId, int] = {}
    """The moves that have brought topics."""
    leaving: list[TopicId] = []
    """Topics that may have moved away."""
    epochs: dict[TopicId, int] = {}
    """The epochs of the moves that have brought topics: an assignment elsewhere under a lower one is an old copy."""
    left: set[TopicId] = set()
    """Topics that have moved away, and were neither deleted nor have they returned."""

    @property
    def topic_ids(self) -> set[TopicId]:
        """The ids of all topics."""
        return {topic_id for topic_ids, _ in self.topics.values() for topic_id in topic_ids}


class SnapshotObject(msgspec.Struct, frozen=True, array_like=True):
    """An older commit some of whose parts are still needed."""

    epoch: OwnerEpoch
    sequence: int
    size_bytes: int
    created_us: int
    parts: list[SegmentPart]


class SnapshotBody(msgspec.Struct, frozen=True, array_like=True):
    """Contents of a SNAPSHOT."""

    state: RemoteState
    next_offsets: dict[TopicId, Offset]
    """Topic id to the offset after its last settled record."""
    objects: list[SnapshotObject]


class SnapshotPieces(msgspec.Struct, frozen=True, array_like=True):
    """Contents of a SNAPSHOT whose body is in pieces."""

    count: int
    crc: int
    """CRC32C of the body."""


_BODY = msgspec.msgpack.Decoder(SnapshotBody)
_PIECES = msgspec.msgpack.Decoder(SnapshotPieces)


# --- Objects ---


class DecodedCommit(NamedTuple):
    """A commit that was read and verified completely."""

    head: CommitHead
    created_us: int
    data: bytes
    parts: list[SegmentPart]
    entries: list[ControlEntry]
    """Without the head."""


def head_entry(head: CommitHead) -> ControlEntry:
    """Return the first entry of every control section."""
    return ControlEntry(_HEAD_TYPE, NO_TOPIC, _encode(head))


def snapshot_body(body: SnapshotBody) -> bytes:
    """Return the contents of a SNAPSHOT as bytes."""
    return _encode(body)


def snapshot_entry(body: bytes) -> ControlEntry:
    """Return the entry after the head of a SNAPSHOT, for the result of :func:`snapshot_body`."""
    return ControlEntry(_SNAPSHOT_TYPE, NO_TOPIC, body)


def pieces_entry(body: bytes, count: int) -> ControlEntry:
    """Return the entry after the head of a SNAPSHOT whose body is in pieces."""
    return ControlEntry(_PIECES_TYPE, NO_TOPIC, _encode(SnapshotPieces(count, crc32c(body))))


def encode_marker(head: CommitHead, created_us: int, entries: Iterable[ControlEntry] = ()) -> bytes:
    """Return a commit without parts: a CLAIM, a FENCE or, with its entry, a SNAPSHOT."""
    builder = SegmentBuilder(SegmentKind.COMMIT, head.writer_epoch, created_us)
    builder.control([head_entry(head), *entries])
    return bytes(builder.finish()[0])


def encode_entries(
    head: CommitHead,
    created_us: int,
    entries: Iterable[Entry],
    topic_name: Callable[[TopicId], str],
    producer_name: Callable[[TopicId, ProducerId], str],
) -> tuple[bytes | bytearray, list[SegmentPart]]:
    """Return a commit of entries, and its parts: one for each topic that has batches.

    Args:
        head: of the commit.
        created_us: now.
        entries: of topics, in the order of their submission.
        topic_name: returns the name of a topic; empty if it is deleted.
        producer_name: returns the name of a producer; empty if its state has expired.
    """
    builder = SegmentBuilder(SegmentKind.COMMIT, head.writer_epoch, created_us)
    topics: dict[TopicId, list[StoredBatch]] = {}
    control = [head_entry(head)]
    for entry in entries:
        if entry.type is EntryType.BATCH:
            assert isinstance(entry.batch, StoredBatch)
            topics.setdefault(entry.topic_id, []).append(entry.batch)
        else:
            control.append(ControlEntry(entry.type, entry.topic_id, b"".join(entry.buffers)))
    for topic_id, batches in topics.items():
        builder.begin(topic_id, topic_name(topic_id), read_stamp(batches[0].stamp).owner_epoch)
        for batch in batches:
            builder.add(batch)
        producers = {batch.header.producer_id for batch in batches}
        names = {producer_id: producer_name(topic_id, producer_id) for producer_id in producers}
        builder.end({producer_id: name for producer_id, name in names.items() if name})
    builder.control(control)
    data, footer = builder.finish()
    return data, footer.parts


def decode_commit(data: bytes, place: str, position: Position, where: str) -> DecodedCommit:
    """Decode a whole object and verify that it is the commit of ``position``; ``where`` names it in errors.

    Raises:
        DataLossError: damaged, of another version, or not the commit of its key.
    """
    kind, _ = read_header(data, where)
    trailer = read_trailer(data[-TRAILER_SIZE:], where)
    if kind is not SegmentKind.COMMIT or trailer.kind is not kind:
        raise DataLossError(f"{where}: this is not a commit of durability 'remote'; restore the object from a copy")
    if crc32c(data[: trailer.footer_start]) != trailer.body_crc:
        raise DataLossError(f"{where}: the commit is damaged; restore the object from a copy")
    footer = read_footer(data[trailer.footer_start : -TRAILER_SIZE], trailer, where)
    entries = read_control(data[footer.control_start : footer.control_end], footer, where)
    if not entries or entries[0].type != _HEAD_TYPE:
        raise DataLossError(f"{where}: the commit has no valid head; restore the object from a copy")
    head = _HEAD.decode(entries[0].payload)
    if head.place != place or head.position != position:
        raise DataLossError(
            f"{where}: this is commit {head.sequence} of epoch {head.epoch} of {head.place!r}, under a wrong"
            " key; restore the object from a copy"
        )
    return DecodedCommit(head, footer.created_us, data, footer.parts, entries[1:])


def snapshot_pieces(commit: DecodedCommit) -> SnapshotPieces | None:
    """Return number and checksum of the pieces of a SNAPSHOT; None if it is not in pieces."""
    if [entry.type for entry in commit.entries] != [_PIECES_TYPE]:
        return None
    return _PIECES.decode(commit.entries[0].payload)


def decode_snapshot(commit: DecodedCommit, where: str, joined: bytes | None = None) -> SnapshotBody:
    """Return the contents of a SNAPSHOT; ``joined`` are its joined pieces, if there are any.

    Raises:
        DataLossError: the commit is not a snapshot, or its pieces are damaged.
    """
    pieces = snapshot_pieces(commit)
    if commit.head.kind == CommitKind.SNAPSHOT and pieces is not None and joined is not None:
        if crc32c(joined) != pieces.crc:
            raise DataLossError(f"{where}: the pieces of the snapshot are damaged; restore them from a copy")
        return _BODY.decode(joined)
    if commit.head.kind != CommitKind.SNAPSHOT or [entry.type for entry in commit.entries] != [_SNAPSHOT_TYPE]:
        raise DataLossError(f"{where}: this commit is not a snapshot; restore the object from a copy")
    return _BODY.decode(commit.entries[0].payload)
