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
from typing import Final

import msgspec

from danube.history.segment import SegmentPart, extend_crc
from danube.model.batch import crc32c
from danube.model.errors import DataLossError, FailedPreconditionError
from danube.model.ids import NO_OWNER_EPOCH, Offset, OwnerEpoch, TopicId

__all__ = [
    "FORMAT_VERSION",
    "Bucket",
    "Manifest",
    "ManifestKind",
    "Subscriptions",
    "decode_manifest",
    "decode_pieces",
    "encode_manifest",
    "encode_pieces",
    "is_piece",
    "manifest_prefix",
    "unwrap",
]

FORMAT_VERSION: Final = 1
_MAGIC: Final = b"DNB-MAN\n"
_HEAD = struct.Struct("<8sHHII")
_CRC = struct.Struct("<I")
_BODY_START: Final = _HEAD.size + _CRC.size
_PIECE_KEY = re.compile("[0-9a-f]{16}/[0-9a-f]{16}-[0-9a-f]{8}")


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
    return _BODY.decode(body)


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


def manifest_prefix(cluster: str) -> str:
    """Return the key prefix of a cluster's manifests."""
    return f"manifests/{cluster}/"


class Bucket:
    """The combined contents of a bucket's manifests.

    Attributes:
        epoch: epoch of the last owner; 0 if there is no manifest.
        incarnation: identity of the metadata store that they describe.
        created_us: when the newest manifest was written.
        snapshot_key: key of the snapshot that it starts from.
        parts: topic id, base offset, (object key, part).
        starts, topics, subscriptions: as in :class:`Manifest`.
        namespaces: name to record; the empty name has the policies of the broker itself.
    """

    def __init__(self) -> None:
        self.epoch = NO_OWNER_EPOCH
        self.incarnation = ""
        self.created_us = 0
        self.snapshot_key = ""
        self._empty()

    def _empty(self) -> None:
        self.parts: dict[TopicId, dict[Offset, tuple[str, SegmentPart]]] = {}
        self.starts: dict[TopicId, Offset] = {}
        self.topics: dict[str, bytes] = {}
        self.namespaces: dict[str, bytes] = {}
        self.subscriptions: Subscriptions = {}

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
        for name, record in manifest.topics.items():
            records = self.topics if name.startswith("/") else self.namespaces
            if record is None:
                records.pop(name, None)
            else:
                records[name] = record

    def objects(self) -> set[str]:
        """Return the keys of all referenced objects."""
        return {key for parts in self.parts.values() for key, _ in parts.values()}
