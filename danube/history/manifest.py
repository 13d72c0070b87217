r"""Manifests: objects that describe a bucket's history, so that it can be found and verified without metadata.

The metadata store is authoritative while the cluster exists; manifests are a copy beside the objects. A
manifest is an object of its own. Each broker writes a stream of them about its topics, under the identity of its
metadata and the epoch of its life::

    manifests/<cluster>/<incarnation>/<broker>/<epoch, 16 hex digits>/<sequence, 16 hex digits>

The first of an epoch is a *snapshot* of everything; those after it are *deltas*, each for one group of changes; from
time to time a new snapshot is written. To read: take the metadata with the highest epoch, and of each of its brokers
the highest epoch, the newest snapshot in it, and the deltas after that in order, without a gap. Of a topic that several
brokers list, the one that has owned it under the highest epoch knows all. Manifests that a former life of a broker
still writes have a lower epoch and are ignored, as are those of metadata from which the bucket was taken.

An owner that does not know yet that it has been superseded may still delete. So an object ever named in a manifest is
deleted only after :meth:`ManifestLog.confirm` has written a manifest without it, and has *then* found no later owner in
the bucket. A later owner first writes to the bucket (a claim, or a manifest) and then reads the manifests. So either
this write is found and nothing is deleted, or the later owner reads manifests that no longer list the objects, no
matter when they are deleted. The bytes of manifests are drawn in
:mod:`danube.history.manifest_format`. Sealing waits for its manifest before it releases local data, so after the loss
of a machine the bucket lists all sealed data.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

import trio

from danube.history.manifest_format import (
    Bucket,
    Listing,
    Manifest,
    ManifestKey,
    ManifestKind,
    Stream,
    Subscriptions,
    decode_manifest,
    decode_pieces,
    encode_manifest,
    encode_pieces,
    is_piece,
    manifest_key,
    manifest_prefix,
    parse_manifest_key,
    stream_prefix,
    unwrap,
)
from danube.history.parts import PartRecord
from danube.history.pieces import cut, join_pieces, piece_bytes, put_pieces
from danube.history.segment import SegmentPart
from danube.model.errors import (
    DataLossError,
    FailedPreconditionError,
    OwnerFencedError,
    StorageNotFoundError,
)
from danube.model.ids import NO_OWNER_EPOCH, Offset, OwnerEpoch, TopicId
from danube.model.log_events import log_event
from danube.storage import Storage

__all__ = ["Everything", "ManifestLog", "load_manifest", "read_bucket", "read_streams"]

_log = logging.getLogger("danube.history")

_LOOKS: Final = 50
"""How often a listing is repeated because a listed object is missing, 0.1 s apart."""
_DELTAS_PER_SNAPSHOT: Final = 64


async def load_manifest(storage: Storage, key: str) -> Manifest:
    """Read a manifest, and its pieces if there are any.

    Raises:
        DataLossError, FailedPreconditionError: as :func:`decode_manifest`.
        StorageNotFoundError: it, or one of its pieces, does not exist.
        StorageError: the backend failed.
    """
    data, where = await storage.get(key), f"{storage.url}/{key}"
    kind, body = unwrap(data, where)
    if kind == ManifestKind.PIECES:
        data = await join_pieces(storage, key, decode_pieces(body))
    return decode_manifest(data, where)


async def read_bucket(storage: Storage, cluster: str) -> Bucket:
    """Read the manifests of a cluster; they suffice to find its history.

    Raises:
        DataLossError: a manifest is damaged or missing.
        FailedPreconditionError: a manifest was written by a newer version of Danube.
        StorageError: the backend cannot be read.
    """
    merged = Bucket()
    for bucket in await read_streams(storage, cluster):
        merged.merge(bucket)
    return merged


async def read_streams(storage: Storage, cluster: str) -> list[Bucket]:
    """Read the manifests of a cluster, those of each broker by themselves.

    Raises:
        DataLossError: a manifest is damaged or missing.
        FailedPreconditionError: a manifest was written by a newer version of Danube.
        StorageError: the backend cannot be read.
    """
    for _ in range(_LOOKS):
        buckets: list[Bucket] = []
        for stream, found in (await _list(storage, cluster)).newest().items():
            bucket = await _read_stream(storage, found)
            if bucket is None:
                break
            bucket.epochs = {stream.broker: bucket.epoch}
            buckets.append(bucket)
        else:
            return buckets
        await trio.sleep(0.1)  # a new snapshot has replaced the listed objects: list again
    raise DataLossError(f"{storage.url}: manifests of cluster {cluster!r} are listed, but do not exist when read")


async def _read_stream(storage: Storage, found: Sequence[tuple[int, str]]) -> Bucket | None:
    """Return what one broker has written; None if an object was deleted during the reading."""
    manifests = await _newest(storage, found)
    if manifests is None:
        return None
    bucket = Bucket()
    for _, manifest in manifests:
        bucket.apply(manifest)
    bucket.last_keys = [manifests[-1][0]]
    return bucket


async def _list(storage: Storage, cluster: str) -> Listing:
    found = Listing()
    async for page in storage.list_all(manifest_prefix(cluster)):
        for item in page.objects:
            found.add(cluster, item.key)
    return found


async def _newest(storage: Storage, found: Sequence[tuple[int, str]]) -> list[tuple[str, Manifest]] | None:
    """Return the newest snapshot of an epoch and its deltas; None if an object was deleted during the reading."""
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


Everything = tuple[Iterable[PartRecord], dict[TopicId, Offset], dict[str, bytes], Subscriptions]
"""Contents of a snapshot: parts, starts, topics, subscriptions."""


class ManifestLog:
    """Writes the manifests of one storage. Changes are collected until :meth:`flush` writes them as one object.

    After a write that failed, or whose answer was lost, the next manifest is a snapshot under the next number. It
    supersedes the failed one even if that was stored, so no change is lost.

    Args:
        storage: the storage to write to.
        cluster: name of the cluster.
        stream: the broker that writes, and its metadata.
        epoch: of this life of the broker.
        everything: returns the contents of a snapshot.
        wall_clock_us: for ``created_us``.
        epochs: returns the epochs under which the broker owns topics, of those that it owns.
        gaps: returns the records of the declared gaps of topics, of those that have any.
    """

    def __init__(
        self,
        storage: Storage,
        cluster: str,
        stream: Stream,
        epoch: OwnerEpoch,
        everything: Callable[[], Everything],
        wall_clock_us: Callable[[], int],
        epochs: Callable[[Iterable[TopicId]], dict[TopicId, OwnerEpoch]],
        gaps: Callable[[Iterable[TopicId]], dict[TopicId, list[bytes]]],
    ) -> None:
        self._storage = storage
        self._cluster = cluster
        self._stream = stream
        self._epoch = epoch
        self._epochs = epochs
        self._gaps = gaps
        self._everything = everything
        self._clock_us = wall_clock_us
        self._lock = trio.Lock()
        self._checked = False
        self._sequence = 0
        self._until_snapshot = 0
        self._previous_snapshot = ""
        self._noted = 0
        self._flushed = 0
        self.check_owner: Callable[[], Awaitable[None]] | None = None
        """Optional further check: raises OwnerFencedError if another broker has claimed the bucket without writing a
        manifest."""
        self._held: Callable[[], Awaitable[None]] | None = None
        self._clear()

    @property
    def pending(self) -> bool:
        """Whether there are changes that no manifest in the bucket contains yet."""
        return self._flushed < self._noted

    @property
    def written(self) -> bool:
        """Whether this owner has written a manifest, or has tried to."""
        return self._sequence > 0

    def _clear(self) -> None:
        self._removed: list[tuple[TopicId, Offset]] = []
        self._added: dict[str, list[SegmentPart]] = {}
        self._starts: dict[TopicId, Offset] = {}
        self._topics: dict[str, bytes | None] = {}
        self._subscriptions: Subscriptions = {}

    def note(
        self,
        *,
        added: Mapping[str, list[SegmentPart]] | None = None,
        removed: Iterable[PartRecord] = (),
        starts: Mapping[TopicId, Offset] | None = None,
        topics: Mapping[str, bytes | None] | None = None,
        subscriptions: Subscriptions | None = None,
    ) -> None:
        """Add a change of the catalogue to the next manifest."""
        self._noted += 1
        gone = {(record.part.topic_id, record.part.base_offset) for record in removed}
        if gone:
            # Parts that were added and removed since the last manifest are left out.
            for key, parts in self._added.items():
                self._added[key] = [part for part in parts if (part.topic_id, part.base_offset) not in gone]
            self._removed += sorted(gone)
        for key, parts in (added or {}).items():
            self._added.setdefault(key, []).extend(parts)
        self._subscriptions.update(subscriptions or {})
        self._starts.update(starts or {})
        self._topics.update(topics or {})

    @property
    def held(self) -> bool:
        """Whether nothing may be written now; see :meth:`hold`."""
        return self._held is not None

    def hold(self, claimed: Callable[[], Awaitable[None]]) -> None:
        """Write nothing until :meth:`release`: this broker is about to claim the place, or to learn that it need not.

        A manifest that is made from what was read before the claim's fences would hide what another owner has written
        in the meantime.

        Args:
            claimed: waits for the next attempt to claim it, and raises if that has failed.
        """
        self._held = claimed

    def release(self, epoch: OwnerEpoch = NO_OWNER_EPOCH) -> None:
        """Write again: the former owner is fenced, or there is none.

        Args:
            epoch: of the claim, under which manifests are written from now on; 0: there is no claim.
        """
        self._held = None
        if epoch > self._epoch:
            self._epoch, self._sequence, self._until_snapshot = epoch, 0, 0
            self._checked = False

    def _is_checked(self) -> bool:
        # A call, because another task may change it: a type checker treats a plain attribute as unchanged.
        return self._checked

    async def check(self) -> None:
        """Verify that neither another cluster nor a later owner has written manifests under this prefix.

        Raises:
            FailedPreconditionError: the manifests belong to another metadata store; nothing may be written here.
            OwnerFencedError: a later owner has written manifests.
            StorageUnavailableError: nothing may be written yet; see :meth:`hold`.
        """
        if self._held is not None:
            await self._held()
        if self._is_checked():
            return
        found = await _list(self._storage, self._cluster)
        if self._is_checked():
            return  # another upload has verified it in the meantime; the newest manifest may be our own
        if found.epoch and found.incarnation != self._stream.incarnation:
            raise FailedPreconditionError(
                f"{self._storage.url} holds history that cluster {self._cluster!r} has written with other metadata;"
                f" restore it with: danube topics restore --from {self._storage.url} - or choose another prefix or"
                " cluster name"
            )
        former = found.epoch_of(self._stream)
        if former >= self._epoch:
            raise self._fenced(former)
        previous = await self._newest_snapshot(found)
        if not self._is_checked():
            self._previous_snapshot = previous
            self._checked = True

    def _fenced(self, epoch: OwnerEpoch) -> OwnerFencedError:
        return OwnerFencedError(
            f"{self._storage.url}: a broker of epoch {epoch} owns this history; this one has epoch {self._epoch} and"
            " stops"
        )

    async def _newest_snapshot(self, found: Listing) -> str:
        """Return the key of the newest snapshot of a former life; empty if there is none, or it is damaged."""
        epochs = found.streams.get(self._stream)
        if not epochs:
            return ""
        try:
            manifests = await _newest(self._storage, epochs[max(epochs)])
        except DataLossError as error:
            _log.error(
                "%s; the manifests are replaced by a snapshot of this broker's catalogue",
                error,
                extra=log_event("storage.manifests_replaced"),
            )
            return ""
        return manifests[0][0] if manifests is not None else ""

    async def take_over(self, bucket: Bucket, epoch: OwnerEpoch) -> None:
        """Take over the bucket from a former owner, or continue it under a higher epoch, by writing a snapshot.

        The caller must have entered everything that ``bucket`` lists. A former owner that returns finds the new owner's
        manifest and stops; manifests that it writes before that have a lower epoch and are ignored.

        Raises:
            OwnerFencedError: ``bucket`` has a later owner.
            StorageError: the backend failed; the write may have succeeded. The next :meth:`flush` retries it.
        """
        async with self._lock:
            former = bucket.former_epoch(self._stream)
            if former >= epoch and not (self._checked and self._epoch == epoch == former):
                raise self._fenced(former)
            if not self._checked or self._epoch < epoch:
                self._epoch, self._sequence, self._until_snapshot = epoch, 0, 0
                self._previous_snapshot = ""
            self._checked = True
            self._noted += 1
        await self.flush()

    async def confirm(self) -> None:
        """Verify that objects removed before this call may be deleted; see the module.

        Raises:
            FailedPreconditionError: the manifests belong to another metadata store.
            OwnerFencedError: there is a later owner.
            StorageError: the backend failed.
        """
        await self.check()
        await self.flush()
        found = await _list(self._storage, self._cluster)
        is_foreign = bool(found.epoch) and found.incarnation != self._stream.incarnation
        if is_foreign or found.epoch_of(self._stream) > self._epoch:
            raise OwnerFencedError(
                f"{self._storage.url}: a later broker owns this history (epoch {found.epoch}); this one, of epoch"
                f" {self._epoch}, stops"
            )
        if self.check_owner is not None:
            await self.check_owner()

    async def flush(self) -> None:
        """Write the collected changes, if any. A failed call loses none of them and may be repeated.

        Raises:
            FailedPreconditionError, OwnerFencedError, StorageUnavailableError: as :meth:`check`.
            StorageError: the backend failed.
        """
        async with self._lock:
            if not self.pending:
                return
            await self.check()
            manifest = self._next()
            key = manifest_key(self._cluster, ManifestKey(self._stream, self._epoch, self._sequence))
            self._sequence += 1
            is_snapshot = manifest.kind == ManifestKind.SNAPSHOT
            left, self._until_snapshot = self._until_snapshot, 0  # if this one fails, the next is a snapshot
            noted = self._noted
            self._clear()
            await self._write(key, encode_manifest(manifest))
            self._flushed = noted
            self._until_snapshot = _DELTAS_PER_SNAPSHOT if is_snapshot else left - 1
        if is_snapshot:
            await self._drop_older(key)

    async def _write(self, key: str, data: bytes) -> None:
        most = piece_bytes(self._storage)
        if len(data) > most:
            pieces = cut(data, most)
            await put_pieces(key, pieces, self._put)
            data = encode_pieces(len(pieces))
        await self._put(key, data)

    async def _put(self, key: str, data: bytes) -> None:
        await self._storage.put(key, data, if_absent=self._storage.capabilities.conditional_put)

    def _next(self) -> Manifest:
        head = (self._stream.incarnation, self._epoch, self._sequence, self._clock_us())
        if self._until_snapshot:
            added = {key: parts for key, parts in self._added.items() if parts}
            changed = {part.topic_id for parts in added.values() for part in parts} | self._starts.keys()
            owned = self._epochs(changed | self._subscriptions.keys())
            return Manifest(
                ManifestKind.DELTA,
                *head,
                self._removed,
                added,
                self._starts,
                self._topics,
                self._subscriptions,
                owned,
                self._gaps(owned),
            )
        records, starts, topics, subscriptions = self._everything()
        added = {}
        for record in records:
            added.setdefault(record.object, []).append(record.part)
        listed = {part.topic_id for parts in added.values() for part in parts}
        owned = self._epochs(listed | starts.keys() | subscriptions.keys())
        gaps = self._gaps(owned)
        return Manifest(ManifestKind.SNAPSHOT, *head, [], added, starts, dict(topics), subscriptions, owned, gaps)

    async def _drop_older(self, key: str) -> None:
        """Delete manifests superseded by two snapshots: the previous one is kept for readers in progress."""
        previous, self._previous_snapshot = self._previous_snapshot, key
        if not previous:
            return
        ours = stream_prefix(self._cluster, self._stream)
        metadata = f"{manifest_prefix(self._cluster)}{self._stream.incarnation}/"
        old: list[str] = []
        async for page in self._storage.list_all(manifest_prefix(self._cluster)):
            for item in page.objects:
                known = parse_manifest_key(self._cluster, item.key) or is_piece(self._cluster, item.key)
                if item.key < previous if item.key.startswith(ours) else known and not item.key.startswith(metadata):
                    old.append(item.key)  # those of other metadata, too, which had this bucket before
        await self._storage.delete(old)
