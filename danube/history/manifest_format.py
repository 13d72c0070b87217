r"""The bytes of manifests, and what they tell of a bucket when they are read in order. Pure.

The bytes of a manifest (numbers little-endian)::

    0             8         10     12         16              20     24
    +-------------+---------+------+----------+---------------+------+-------~~-------+
    | "DNB-MAN\n" | version | kind | reserved | body length   | CRC  | body (msgpack) |
    |             |  u16    | u16  |   u32    |  u32          |  u32 | Manifest       |
    +-------------+---------+------+----------+---------------+------+-------~~-------+

The CRC32C is over everything else: the 20 bytes before it, and the body. Magic, version, length and CRC stay in place
in all versions. A manifest larger than the backend's maximum object is stored in pieces (``<sequence>-<number>``), and
the object under its own name has the kind PIECES and says how many; put together they are a manifest as drawn above.
Sealing waits for its manifest before it releases local data, so after the loss of a machine the bucket lists
everything that was sealed.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from danube.history.segment import SegmentPart, extend_crc
from danube.model.batch import crc32c
from danube.model.errors import DataLossError, FailedPreconditionError
from danube.model.ids import NO_OWNER_EPOCH, Offset, OwnerEpoch, TopicId

__all__ = [
    "FORMAT_VERSION",
    "Bucket",
    "Listing",
    "Manifest",
    "ManifestKey",
    "ManifestKind",
    "Stream",
    "Subscriptions",
    "decode_manifest",
    "decode_pieces",
    "encode_manifest",
    "encode_pieces",
    "is_piece",
    "manifest_key",
    "manifest_prefix",
    "parse_manifest_key",
    "stream_prefix",
    "unwrap",
]

FORMAT_VERSION: Final = 1
_MAGIC: Final = b"DNB-MAN\n"
_HEAD = struct.Struct("<8sHHII")
_CRC = struct.Struct("<I")
_BODY_START: Final = _HEAD.size + _CRC.size
_KEY = re.compile("([^/]+)/(b[0-9]+)/([0-9a-f]{16})/([0-9a-f]{16})")
_PIECE_KEY = re.compile("[^/]+/b[0-9]+/[0-9a-f]{16}/[0-9a-f]{16}-[0-9a-f]{8}")


_K = TypeVar("_K")
_V = TypeVar("_V")


class ManifestKind(enum.IntEnum):
    """The kind of a manifest."""

    SNAPSHOT = 1
    """Complete state."""
    DELTA = 2
    """Changes since the previous manifest."""
    PIECES = 3
    """Only the number of its pieces."""


Subscriptions = dict[TopicId, dict[str, tuple[bytes, bytes]]]
"""Topic id, subscription name, (record, cursor)."""


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The body of a manifest."""

    kind: int
    incarnation: str
    """Identity of the metadata store that it describes."""
    epoch: OwnerEpoch
    sequence: int
    created_us: int
    removed: list[tuple[TopicId, Offset]]
    """(topic id, base offset) of removed parts. Applied before ``added``."""
    added: dict[str, list[SegmentPart]]
    """Object key to the referenced parts in it."""
    starts: dict[TopicId, Offset]
    """Topic id to its start offset, where retention has moved it."""
    topics: dict[str, bytes | None]
    """Topic name to its record; None: it was deleted. A name without a leading slash is a namespace,
    and the empty name is the broker: the policies in their records also apply to their topics."""
    subscriptions: Subscriptions
    """Topic id, subscription name, (record, cursor): of all topics in a snapshot, of the sealed topics in a delta.
    A topic's subscriptions are always listed completely."""
    owned: dict[TopicId, OwnerEpoch] = {}
    """The epochs under which the broker owns topics: of all topics in a snapshot, of changed ones in a delta. If
    several brokers list a topic, the one with the highest epoch counts."""
    gaps: dict[TopicId, list[bytes]] = {}
    """The records of declared gaps, in their order: of all topics in a snapshot, of changed ones in a delta. A topic's
    gaps are always listed completely."""


_BODY = msgspec.msgpack.Decoder(Manifest)


class _Pieces(msgspec.Struct, frozen=True, array_like=True):
    """The body of an object of kind PIECES."""

    count: int


_PIECES = msgspec.msgpack.Decoder(_Pieces)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of the object."""
    return _wrap(manifest.kind, msgspec.msgpack.encode(manifest))


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Decode a manifest that is not in pieces, or was joined; ``where`` names it in errors.

    Raises:
        DataLossError: damaged.
        FailedPreconditionError: written by a newer version.
    """
    kind, body = unwrap(data, where)
    if kind == ManifestKind.PIECES:
        raise DataLossError(f"{where}: one of the manifest's pieces is an index of pieces itself")
    try:
        return _BODY.decode(body)
    except msgspec.DecodeError as error:
        raise DataLossError(f"{where}: the manifest does not decode: {error}") from error


def encode_pieces(count: int) -> bytes:
    """Return the bytes of an object that says in how many pieces a manifest is."""
    return _wrap(ManifestKind.PIECES, msgspec.msgpack.encode(_Pieces(count)))


def decode_pieces(body: bytes) -> int:
    """Return the number of pieces; see :func:`unwrap`."""
    return _PIECES.decode(body).count


def _wrap(kind: int, body: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, kind, 0, len(body))
    return head + _CRC.pack(extend_crc(crc32c(head), body)) + body


def is_piece(cluster: str, key: str) -> bool:
    """Whether a key is that of a piece of a manifest."""
    return _PIECE_KEY.fullmatch(key.removeprefix(manifest_prefix(cluster))) is not None


def unwrap(data: bytes, where: str) -> tuple[int, bytes]:
    """Verify an object, and return its kind and body."""
    if len(data) < _BODY_START or not data.startswith(_MAGIC):
        raise DataLossError(f"{where}: this is not a Danube manifest, or its header is damaged")
    _, version, kind, _, length = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    body = data[_BODY_START:]
    if len(body) != length or extend_crc(crc32c(data[: _HEAD.size]), body) != crc:
        raise DataLossError(f"{where}: the manifest is damaged")
    if version > FORMAT_VERSION:
        raise FailedPreconditionError(
            f"{where}: format version {version} is newer than {FORMAT_VERSION}, the newest that this version of Danube "
            "reads; upgrade Danube"
        )
    return kind, body


class Stream(NamedTuple):
    """The manifests of one broker of one cluster."""

    incarnation: str
    """Identity of the metadata that they describe."""
    broker: str


class ManifestKey(NamedTuple):
    """The place of a manifest."""

    stream: Stream
    epoch: OwnerEpoch
    sequence: int


def manifest_key(cluster: str, key: ManifestKey) -> str:
    """Return the key of a manifest."""
    return f"{stream_prefix(cluster, key.stream)}{key.epoch:016x}/{key.sequence:016x}"


def parse_manifest_key(cluster: str, key: str) -> ManifestKey | None:
    """Return the place of a manifest; None for other objects, and for pieces."""
    found = _KEY.fullmatch(key.removeprefix(manifest_prefix(cluster)))
    if found is None:
        return None
    return ManifestKey(Stream(found[1], found[2]), OwnerEpoch(int(found[3], 16)), int(found[4], 16))


def stream_prefix(cluster: str, stream: Stream) -> str:
    """Return the key prefix of the manifests of one broker."""
    return f"{manifest_prefix(cluster)}{stream.incarnation}/{stream.broker}/"


class Listing:
    """The manifests in a bucket, from their keys.

    The bucket belongs to the metadata with the highest epoch: other metadata that take it over begin above all epochs
    that they have found.

    Attributes:
        streams: of each broker, (sequence, key) of all manifests by epoch.
    """

    def __init__(self) -> None:
        self.streams: dict[Stream, dict[OwnerEpoch, list[tuple[int, str]]]] = {}

    def add(self, cluster: str, key: str) -> None:
        """Add a key, in the order of the bucket. Foreign objects are ignored."""
        found = parse_manifest_key(cluster, key)
        if found is not None:
            self.streams.setdefault(found.stream, {}).setdefault(found.epoch, []).append((found.sequence, key))

    @property
    def epoch(self) -> OwnerEpoch:
        """The highest epoch; 0: there are no manifests."""
        return max((max(epochs) for epochs in self.streams.values()), default=NO_OWNER_EPOCH)

    @property
    def incarnation(self) -> str:
        """Identity of the metadata that the bucket belongs to; empty: there are no manifests."""
        return max(((max(epochs), stream.incarnation) for stream, epochs in self.streams.items()), default=(0, ""))[1]

    def epoch_of(self, stream: Stream) -> OwnerEpoch:
        """Return the epoch of the last life of a broker; 0: it has written no manifest."""
        return max(self.streams.get(stream, ()), default=NO_OWNER_EPOCH)

    def newest(self) -> dict[Stream, list[tuple[int, str]]]:
        """Return the manifests of the last life of each broker of the metadata that the bucket belongs to."""
        ours = self.incarnation
        return {stream: epochs[max(epochs)] for stream, epochs in self.streams.items() if stream.incarnation == ours}


def manifest_prefix(cluster: str) -> str:
    """Return the key prefix of a cluster's manifests."""
    return f"manifests/{cluster}/"


class Bucket:
    """The combined contents of a bucket's manifests.

    Attributes:
        epoch: highest epoch of any broker that has written manifests; 0 if there is none.
        incarnation: identity of the metadata store that they describe.
        created_us: when the newest manifest was written.
        last_keys: keys of the newest manifest of each broker.
        epochs: of the last life of each broker.
        owned: the epoch under which the last owner of a topic has listed it.
        parts: topic id, base offset, (object key, part).
        starts, topics, subscriptions, gaps: as in :class:`Manifest`.
        namespaces: name to record; the empty name has the policies of the broker itself.
    """

    def __init__(self) -> None:
        self.epoch = NO_OWNER_EPOCH
        self.incarnation = ""
        self.created_us = 0
        self.last_keys: list[str] = []
        self.epochs: dict[str, OwnerEpoch] = {}
        self._stated: dict[str, int] = {}
        """When the record of a name was stated last, also that it was deleted."""
        self._empty()

    def is_foreign(self, incarnation: str) -> bool:
        """Whether the bucket was written with other metadata than those of an incarnation."""
        return bool(self.epoch) and self.incarnation != incarnation

    def _empty(self) -> None:
        self.parts: dict[TopicId, dict[Offset, tuple[str, SegmentPart]]] = {}
        self.starts: dict[TopicId, Offset] = {}
        self.topics: dict[str, bytes] = {}
        self.namespaces: dict[str, bytes] = {}
        self.subscriptions: Subscriptions = {}
        self.gaps: dict[TopicId, list[bytes]] = {}
        self.owned: dict[TopicId, OwnerEpoch] = {}
        self._stated = {}

    def apply(self, manifest: Manifest) -> None:
        """Apply the next manifest."""
        if manifest.kind == ManifestKind.SNAPSHOT:
            self._empty()
        self.subscriptions.update(manifest.subscriptions)
        self.epoch, self.incarnation, self.created_us = manifest.epoch, manifest.incarnation, manifest.created_us
        for topic_id, base in manifest.removed:
            self.parts.get(topic_id, {}).pop(base, None)
        for key, parts in manifest.added.items():
            for part in parts:
                self.parts.setdefault(part.topic_id, {})[part.base_offset] = (key, part)
        self.starts.update(manifest.starts)
        self.owned.update(manifest.owned)
        self.gaps.update(manifest.gaps)
        for name, record in manifest.topics.items():
            self._stated[name] = manifest.created_us
            records = self.topics if name.startswith("/") else self.namespaces
            if record is None:
                records.pop(name, None)
            else:
                records[name] = record

    def merge(self, other: Bucket) -> None:
        """Add what another broker of the same metadata has written. Of a topic, its last owner knows all."""
        ours = self.topic_epochs()
        for topic_id, epoch in other.topic_epochs().items():
            if epoch < ours.get(topic_id, NO_OWNER_EPOCH):
                continue
            _take(self.parts, other.parts, topic_id)
            _take(self.starts, other.starts, topic_id)
            _take(self.subscriptions, other.subscriptions, topic_id)
            _take(self.gaps, other.gaps, topic_id)
            self.owned[topic_id] = epoch
        for name, stated_us in other._stated.items():
            if stated_us >= self._stated.get(name, 0):
                self._stated[name] = stated_us
                if name.startswith("/"):
                    _take(self.topics, other.topics, name)
                else:
                    _take(self.namespaces, other.namespaces, name)
        self.epoch = max(self.epoch, other.epoch)
        self.created_us = max(self.created_us, other.created_us)
        self.incarnation = other.incarnation
        self.epochs |= other.epochs
        self.last_keys = sorted(self.last_keys + other.last_keys)

    def topic_epochs(self) -> dict[TopicId, OwnerEpoch]:
        """Return the epochs of all topics of which anything is listed."""
        epochs = dict.fromkeys([*self.starts, *self.subscriptions], NO_OWNER_EPOCH)
        for topic_id, parts in self.parts.items():
            epochs[topic_id] = max((part.epoch for _, part in parts.values()), default=NO_OWNER_EPOCH)
        return epochs | self.owned

    def former_epoch(self, stream: Stream) -> OwnerEpoch:
        """Return the epoch that a broker has to exceed to write here: of its last life, or of all former owners."""
        if self.incarnation and self.incarnation != stream.incarnation:
            return self.epoch
        return self.epochs.get(stream.broker, NO_OWNER_EPOCH)

    def highest_epoch(self) -> OwnerEpoch:
        """Return the highest epoch of any part; 0: there are none."""
        return max((part.epoch for parts in self.parts.values() for _, part in parts.values()), default=NO_OWNER_EPOCH)

    def objects(self) -> set[str]:
        """Return the keys of all referenced objects."""
        return {key for parts in self.parts.values() for key, _ in parts.values()}


def _take(mine: dict[_K, _V], theirs: Mapping[_K, _V], key: _K) -> None:
    """Replace the value of a key by another one, or by none."""
    if key in theirs:
        mine[key] = theirs[key]
    else:
        mine.pop(key, None)
