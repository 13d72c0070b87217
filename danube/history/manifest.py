r"""Manifests: what a reader who has only the bucket needs, to find and verify everything in it.

The metadata store is the truth about history while the cluster lives; manifests are its shadow, beside the objects. A
manifest is an object of its own, in a sequence under the epoch of the broker that wrote it::

    manifests/<cluster>/<epoch, 16 hex digits>/<sequence, 16 hex digits>

The first of an epoch is a *snapshot* of everything; those behind it are *deltas*, each for one group of changes; from
time to time a snapshot begins anew. To read: take the highest epoch that has a snapshot, its newest snapshot, and the
deltas behind it in their order, without a gap. What a former owner still writes has a lower epoch and does not count.

An owner that does not know yet that it is a former one may still delete. So nothing that a manifest has ever named is
deleted before :meth:`ManifestLog.confirm` has written a manifest without it, and has *then* found no later owner in the
bucket. A later owner leaves its mark there first (a claim, or a manifest) and reads the manifests afterwards. So either
its mark is found, and nothing is deleted, or it reads of nothing that is going to be deleted, however late that is.

The bytes of a manifest (numbers little-endian)::

    0             8         10     12         16              20     24
    +-------------+---------+------+----------+---------------+------+-------~~-------+
    | "DNB-MAN\n" | version | kind | reserved | body length   | CRC  | body (msgpack) |
    |             |  u16    | u16  |   u32    |  u32          |  u32 | Manifest       |
    +-------------+---------+------+----------+---------------+------+-------~~-------+

The CRC32C is over everything else: the 20 bytes before it, and the body. Magic, version, length and CRC stay where they
are in all versions. A manifest that is larger than an object may be is stored in pieces (``<sequence>-<number>``), and
the object under its own name has the kind PIECES and says how many; put together they are a manifest as drawn above.
Sealing waits for its manifest before it lets local data go, so after the loss of a machine the bucket tells of
everything that was sealed.
"""

from __future__ import annotations

import enum
import logging
import re
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import trio

from danube.history.parts import PartRecord
from danube.history.pieces import cut, join_pieces, piece_bytes, put_pieces
from danube.history.segment import SegmentPart, extend_crc
from danube.model.batch import crc32c
from danube.model.errors import DataLossError, FailedPreconditionError, OwnerFencedError, StorageNotFoundError
from danube.storage import Storage

__all__ = [
    "Bucket",
    "Everything",
    "Manifest",
    "ManifestKind",
    "ManifestLog",
    "Subscriptions",
    "decode_manifest",
    "encode_manifest",
    "is_piece",
    "load_manifest",
    "manifest_prefix",
    "read_bucket",
]

_log = logging.getLogger("danube.history")

FORMAT_VERSION: Final = 1
_MAGIC: Final = b"DNB-MAN\n"
_HEAD = struct.Struct("<8sHHII")
_CRC = struct.Struct("<I")
_BODY_START: Final = _HEAD.size + _CRC.size
_KEY = re.compile("([0-9a-f]{16})/([0-9a-f]{16})")
_PIECE_KEY = re.compile("[0-9a-f]{16}/[0-9a-f]{16}-[0-9a-f]{8}")
_LOOKS: Final = 50
"""How often a listing is repeated because what it names is not there, 0.1 s apart."""
_DELTAS_PER_SNAPSHOT: Final = 64


class ManifestKind(enum.IntEnum):
    """What a manifest says."""

    SNAPSHOT = 1
    """Everything."""
    DELTA = 2
    """What has changed since the manifest before."""
    PIECES = 3
    """Only how many pieces it is in."""


Subscriptions = dict[int, dict[str, tuple[bytes, bytes]]]
"""Topic id, subscription name, (record, cursor)."""


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The body of a manifest."""

    kind: int
    incarnation: str
    """Of the metadata store whose shadow this is."""
    epoch: int
    sequence: int
    created_us: int
    removed: list[tuple[int, int]]
    """(topic id, base offset) of parts that are gone. Applied before ``added``."""
    added: dict[str, list[SegmentPart]]
    """Object key to the parts in it that are referenced."""
    starts: dict[int, int]
    """Topic id to its first offset, where retention has moved it."""
    topics: dict[str, bytes | None]
    """Topic name to its record; None: it was deleted. A name without a slash at its beginning is that of a namespace,
    and the empty one is the broker's: what they say of policies counts for their topics, too."""
    subscriptions: Subscriptions
    """Topic id, subscription name, (record, cursor): of all topics in a snapshot, of those that were sealed in a delta.
    A topic's subscriptions are given as a whole."""


_BODY = msgspec.msgpack.Decoder(Manifest)


class _Pieces(msgspec.Struct, frozen=True, array_like=True):
    """The body of an object of kind PIECES."""

    count: int


_PIECES = msgspec.msgpack.Decoder(_Pieces)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the object."""
    return _wrap(manifest.kind, msgspec.msgpack.encode(manifest))


def _wrap(kind: int, body: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, kind, 0, len(body))
    return head + _CRC.pack(extend_crc(crc32c(head), body)) + body


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest that is not in pieces, or was put together; ``where`` names it in errors.

    Raises:
        DataLossError: damaged.
        FailedPreconditionError: written by a newer version.
    """
    kind, body = _unwrap(data, where)
    if kind == ManifestKind.PIECES:
        raise DataLossError(f"{where}: the manifest is in pieces of which one is another such object")
    return _BODY.decode(body)


async def load_manifest(storage: Storage, key: str) -> Manifest:
    """Read a manifest, and its pieces if it is in some.

    Raises:
        DataLossError, FailedPreconditionError: as :func:`decode_manifest`.
        StorageNotFoundError: it is not there, or a piece of it.
        StorageError: the backend failed.
    """
    data, where = await storage.get(key), f"{storage.url}/{key}"
    kind, body = _unwrap(data, where)
    if kind == ManifestKind.PIECES:
        data = await join_pieces(storage, key, _PIECES.decode(body).count)
    return decode_manifest(data, where)


def is_piece(cluster: str, key: str) -> bool:
    """Whether a key is that of a piece of a manifest."""
    return _PIECE_KEY.fullmatch(key.removeprefix(manifest_prefix(cluster))) is not None


def _unwrap(data: bytes, where: str) -> tuple[int, bytes]:
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
    """Return where the manifests of a cluster are."""
    return f"manifests/{cluster}/"


class Bucket:
    """What the manifests of a bucket say, put together.

    Attributes:
        epoch: of the last owner; 0 if there is no manifest.
        incarnation: of the metadata store that they shadow.
        created_us: when the newest manifest was written.
        snapshot_key: the object that it begins with.
        parts: topic id, base offset, (object key, part).
        starts, topics, subscriptions: as in :class:`Manifest`.
        namespaces: name to record; of the broker itself, under the empty name, its policies.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.incarnation = ""
        self.created_us = 0
        self.snapshot_key = ""
        self._empty()

    def _empty(self) -> None:
        self.parts: dict[int, dict[int, tuple[str, SegmentPart]]] = {}
        self.starts: dict[int, int] = {}
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
        """Return the keys of all objects that are referenced."""
        return {key for parts in self.parts.values() for key, _ in parts.values()}


async def read_bucket(storage: Storage, cluster: str) -> Bucket:
    """Read the manifests of a cluster; nothing else is needed to find its history.

    Raises:
        DataLossError: a manifest is damaged or missing.
        FailedPreconditionError: a manifest was written by a newer version of Danube.
        StorageError: the backend cannot be read.
    """
    for _ in range(_LOOKS):
        epochs = await _list_epochs(storage, cluster)
        if not epochs:
            return Bucket()
        manifests = await _newest(storage, epochs[max(epochs)])
        if manifests is not None:
            bucket = Bucket()
            for _, manifest in manifests:
                bucket.apply(manifest)
            bucket.snapshot_key = manifests[0][0]
            return bucket
        await trio.sleep(0.1)  # a new snapshot has replaced what was listed: look again
    raise DataLossError(f"{storage.url}: manifests of cluster {cluster!r} are listed, but are not there when read")


async def _list_epochs(storage: Storage, cluster: str) -> dict[int, list[tuple[int, str]]]:
    """Return (sequence, key) of all manifests by epoch, each epoch in order."""
    prefix = manifest_prefix(cluster)
    epochs: dict[int, list[tuple[int, str]]] = {}
    async for page in storage.list_all(prefix):
        for item in page.objects:
            found = _KEY.fullmatch(item.key.removeprefix(prefix))
            if found is not None:  # what else lies here is not ours
                epochs.setdefault(int(found[1], 16), []).append((int(found[2], 16), item.key))
    return epochs


async def _newest(storage: Storage, found: Sequence[tuple[int, str]]) -> list[tuple[str, Manifest]] | None:
    """Return the newest snapshot of an epoch and what follows it; None if something went away while it was read."""
    manifests: list[tuple[str, Manifest]] = []
    before = -1
    for sequence, key in reversed(found):
        if manifests and sequence != before:
            break
        try:
            manifests.append((key, await load_manifest(storage, key)))
        except StorageNotFoundError:
            return None
        if manifests[-1][1].kind == ManifestKind.SNAPSHOT:
            return manifests[::-1]
        before = sequence - 1
    raise DataLossError(f"{storage.url}: the manifest before {manifests[-1][0]} is missing; restore it from a copy")


Everything = tuple[Iterable[PartRecord], dict[int, int], dict[str, bytes], Subscriptions]
"""What a snapshot holds: parts, starts, topics, subscriptions."""


class ManifestLog:
    """Writes the manifests of one storage. Changes gather until :meth:`flush` writes them as one object.

    Whenever a write has failed, or its answer was lost, the next manifest is a snapshot under the next number: whatever
    is there of the failed one is superseded, and no change can be forgotten.

    Args:
        storage: where to.
        cluster: its name.
        incarnation, epoch: of the owner.
        everything: returns what a snapshot holds.
        wall_clock_us: for ``created_us``.
    """

    def __init__(
        self,
        storage: Storage,
        cluster: str,
        incarnation: str,
        epoch: int,
        everything: Callable[[], Everything],
        wall_clock_us: Callable[[], int],
    ) -> None:
        self._storage = storage
        self._cluster = cluster
        self._prefix = manifest_prefix(cluster)
        self._incarnation = incarnation
        self._epoch = epoch
        self._everything = everything
        self._clock_us = wall_clock_us
        self._lock = trio.Lock()
        self._checked = False
        self._sequence = 0
        self._until_snapshot = 0
        self._previous_snapshot = ""
        self._noted = 0
        self._told = 0
        self.check_owner: Callable[[], Awaitable[None]] | None = None
        """Raises OwnerFencedError if somebody else has claimed the bucket, in a way that manifests do not tell of."""
        self._clear()

    @property
    def pending(self) -> bool:
        """Whether anything was noted that no manifest in the bucket tells of yet."""
        return self._told < self._noted

    @property
    def written(self) -> bool:
        """Whether this owner has written a manifest, or has tried to."""
        return self._sequence > 0

    def _clear(self) -> None:
        self._removed: list[tuple[int, int]] = []
        self._added: dict[str, list[SegmentPart]] = {}
        self._starts: dict[int, int] = {}
        self._topics: dict[str, bytes | None] = {}
        self._subscriptions: Subscriptions = {}

    def note(
        self,
        *,
        added: Mapping[str, list[SegmentPart]] | None = None,
        removed: Iterable[PartRecord] = (),
        starts: Mapping[int, int] | None = None,
        topics: Mapping[str, bytes | None] | None = None,
        subscriptions: Subscriptions | None = None,
    ) -> None:
        """Take note of a change that the catalogue has made."""
        self._noted += 1
        gone = {(record.part.topic_id, record.part.base_offset) for record in removed}
        if gone:
            # What was added since the last manifest goes without a word.
            for key, parts in self._added.items():
                self._added[key] = [part for part in parts if (part.topic_id, part.base_offset) not in gone]
            self._removed += sorted(gone)
        for key, parts in (added or {}).items():
            self._added.setdefault(key, []).extend(parts)
        self._subscriptions.update(subscriptions or {})
        self._starts.update(starts or {})
        self._topics.update(topics or {})

    def _is_checked(self) -> bool:
        # A call, because it changes while others wait: a type checker takes a plain attribute for unchanged.
        return self._checked

    async def check(self) -> None:
        """Make sure that the place is ours: no other cluster, and no later owner, has written manifests here.

        Raises:
            FailedPreconditionError: it is somebody else's; nothing is to be written here.
            OwnerFencedError: it is a later owner's.
        """
        if self._is_checked():
            return
        try:
            bucket = await read_bucket(self._storage, self._cluster)
        except DataLossError as error:
            bucket = await self._what_is_readable(error)
        if self._is_checked():
            return  # another upload has found the place to be ours meanwhile; what was read may be our own manifest
        if bucket.epoch and bucket.incarnation != self._incarnation:
            raise FailedPreconditionError(
                f"{self._storage.url} holds the history of another life of cluster {self._cluster!r}; bring it back "
                f"with: danube topics restore --from {self._storage.url} - or choose another prefix or cluster name"
            )
        if bucket.epoch >= self._epoch:
            raise OwnerFencedError(
                f"{self._storage.url}: a broker of epoch {bucket.epoch} owns this history; this one has epoch "
                f"{self._epoch} and stops"
            )
        self._previous_snapshot = bucket.snapshot_key
        self._checked = True

    async def _what_is_readable(self, error: DataLossError) -> Bucket:
        """Return epoch and incarnation from a place where manifests are damaged: our snapshot will replace them."""
        for epoch, found in sorted((await _list_epochs(self._storage, self._cluster)).items(), reverse=True):
            for _, key in reversed(found):
                try:
                    manifest = await load_manifest(self._storage, key)
                except (DataLossError, StorageNotFoundError):
                    continue
                _log.error("%s; what this broker knows of its history is written anew", error)
                bucket = Bucket()
                bucket.epoch, bucket.incarnation = epoch, manifest.incarnation
                return bucket
        raise error

    async def take_over(self, bucket: Bucket, epoch: int) -> None:
        """Make the place ours, whoever it belonged to: write a snapshot under a higher epoch.

        The caller has entered what ``bucket`` tells of. The former owner, should it come back, finds that the place is
        somebody else's.

        Raises:
            StorageError: the backend failed; it may have happened. The next :meth:`flush` tries again.
        """
        assert epoch > bucket.epoch
        async with self._lock:
            if not self._checked or self._epoch <= bucket.epoch:
                self._epoch, self._sequence, self._until_snapshot = epoch, 0, 0
                self._previous_snapshot = bucket.snapshot_key
            self._checked = True
            self._noted += 1
        await self.flush()

    async def confirm(self) -> None:
        """Make sure that what was removed before this call may be deleted; see the module.

        Raises:
            FailedPreconditionError: the place is somebody else's.
            OwnerFencedError: another owner has come.
            StorageError: the backend failed.
        """
        await self.check()
        await self.flush()
        behind_ours = self._storage.list_all(self._prefix, f"{self._prefix}{self._epoch:016x}/g")
        keys = [item.key async for page in behind_ours for item in page.objects]
        later = [key for key in keys if _KEY.fullmatch(key.removeprefix(self._prefix))]
        if later:
            raise OwnerFencedError(
                f"{self._storage.url}: a later broker owns this history, as {later[0]} tells; this one, of epoch"
                f" {self._epoch}, stops"
            )
        if self.check_owner is not None:
            await self.check_owner()

    async def flush(self) -> None:
        """Write what has gathered, if anything. A failed call may be repeated: nothing is lost.

        Raises:
            FailedPreconditionError, OwnerFencedError: as :meth:`check`.
            StorageError: the backend failed.
        """
        async with self._lock:
            if not self.pending:
                return
            await self.check()
            manifest = self._next()
            key = f"{self._prefix}{self._epoch:016x}/{self._sequence:016x}"
            self._sequence += 1
            is_snapshot = manifest.kind == ManifestKind.SNAPSHOT
            left, self._until_snapshot = self._until_snapshot, 0  # should this one fail, the next is a snapshot
            noted = self._noted
            self._clear()
            await self._write(key, encode_manifest(manifest))
            self._told = noted
            self._until_snapshot = _DELTAS_PER_SNAPSHOT if is_snapshot else left - 1
        if is_snapshot:
            await self._drop_older(key)

    async def _write(self, key: str, data: bytes) -> None:
        most = piece_bytes(self._storage)
        if len(data) > most:
            pieces = cut(data, most)
            await put_pieces(key, pieces, self._put)
            data = _wrap(ManifestKind.PIECES, msgspec.msgpack.encode(_Pieces(len(pieces))))
        await self._put(key, data)

    async def _put(self, key: str, data: bytes) -> None:
        await self._storage.put(key, data, if_absent=self._storage.capabilities.conditional_put)

    def _next(self) -> Manifest:
        head = (self._incarnation, self._epoch, self._sequence, self._clock_us())
        if self._until_snapshot:
            added = {key: parts for key, parts in self._added.items() if parts}
            return Manifest(
                ManifestKind.DELTA, *head, self._removed, added, self._starts, self._topics, self._subscriptions
            )
        records, starts, topics, subscriptions = self._everything()
        added = {}
        for record in records:
            added.setdefault(record.object, []).append(record.part)
        return Manifest(ManifestKind.SNAPSHOT, *head, [], added, starts, dict(topics), subscriptions)

    async def _drop_older(self, key: str) -> None:
        """Delete what two snapshots have superseded: the one before stays for those who are reading it."""
        previous, self._previous_snapshot = self._previous_snapshot, key
        if previous:
            pages = self._storage.list_all(self._prefix)
            old = [item.key async for page in pages for item in page.objects if item.key < previous]
            await self._storage.delete(old)
