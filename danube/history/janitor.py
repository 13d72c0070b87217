"""The janitor: deletes unreferenced objects, and reports orphaned, missing and damaged ones.

Objects become garbage when their last part is merged away, expires, or belongs to a deleted topic; they are deleted
``segment_grace_s`` later, first in the backend and then in the catalogue, so that an interruption in between only
repeats the deletion. Which objects are garbage is decided in the metadata: the object has no row there, and while its
garbage has one, no owner can enter it. The broker that has removed the last part deletes the object.

*Orphans* are objects that no broker has entered: uploads whose broker died before that. The name of an object says when
it was stored, and by which life of which broker. A broker looks for its own orphans only, because it alone knows which
of its uploads are in progress. They become garbage, too, before they are deleted. *Missing* objects are in the
catalogue and not in the storage; only this problem cannot be repaired. :meth:`Janitor.check` finds both;
:meth:`Janitor.repair` removes orphans and the remains of interrupted uploads.

An object that is referenced, or may be, is never deleted: an object in progress is not an orphan, and a change of
the catalogue whose answer was lost is settled first. Each deletion checks the reference count in the catalogue and then
the parts themselves. Nothing is deleted where the manifests belong to another broker: to a new broker that is
given the bucket of a lost one, all objects in it would look like orphans. An owner that
was superseded without knowing it deletes nothing either (:meth:`danube.history.manifest.ManifestLog.confirm`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec
import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.manifest import ManifestLog, load_manifest
from danube.history.manifest_format import is_piece, manifest_prefix
from danube.history.packing import object_origin, schema_prefix, segment_prefix
from danube.history.parts import ObjectRef
from danube.history.reader import SegmentReader
from danube.history.segment import extend_crc
from danube.model.errors import DataLossError, StorageNotFoundError
from danube.model.limits import MIB, Limits
from danube.model.log_events import log_event
from danube.storage import Storage

__all__ = ["Janitor", "StorageReport"]

_log = logging.getLogger("danube.history")

_DELETES_AT_ONCE = 500


class StorageReport(msgspec.Struct, kw_only=True):
    """Result of a check of one storage."""

    storage: str
    url: str
    objects: int = 0
    """Segment objects in the backend."""
    size_bytes: int = 0
    referenced: int = 0
    garbage: int = 0
    """Known, unreferenced, within their grace."""
    orphans: list[str] = []
    """Stored by this broker, not in the catalogue, and older than the grace."""
    recent: int = 0
    """Unknown and younger, or of other brokers or later lives: possibly uploads in progress, or entered by them."""
    missing: list[str] = []
    """Referenced, but absent or of another size."""
    damaged: list[str] = []
    """With ``deep``: parts whose bytes do not match their checksums, each with its topic and offsets."""
    abandoned_uploads: int = 0
    """Repair only: removed remains of interrupted uploads."""
    deleted: int = 0
    """Repair only: deleted orphans."""

    @property
    def ok(self) -> bool:
        """Whether all history is present."""
        return not self.missing and not self.damaged


class Janitor:
    """Deletes garbage from the storages of one broker, and checks and repairs them."""

    def __init__(
        self,
        catalogue: HistoryCatalogue,
        storages: Mapping[str, Storage],
        manifests: Mapping[str, ManifestLog],
        reader: SegmentReader,
        cluster: str,
        limits: Limits,
        wall_clock_us: Callable[[], int],
    ) -> None:
        self._catalogue = catalogue
        self._storages = storages
        self._manifests = manifests
        self._reader = reader
        self._cluster = cluster
        self._grace_us = int(limits.segment_grace_s * 1e6)
        self._clock_us = wall_clock_us

    async def collect(self, name: str) -> int:
        """Delete the objects of a storage whose grace is over; return their number.

        Raises:
            FailedPreconditionError: the storage holds the history of another broker.
            StorageError: the backend failed; the rest is retried next time.
            OwnerFencedError: another broker owns the history now.
        """
        deleted = 0
        until_us = self._clock_us() - self._grace_us
        garbage = [ref for ref in self._catalogue.garbage_until(until_us) if ref.storage == name]
        if garbage:
            await self._manifests[name].confirm()
        for ref in garbage:
            if not await self._catalogue.condemn(ref) or self._is_referenced(ref):
                continue
            await self._storages[name].delete([ref.key])
            await self._catalogue.forget_objects([ref])
            deleted += 1
        return deleted

    def next_deadline_us(self, since_us: int) -> int | None:
        """Return when the next grace ends, at or after a time; None if there is no such garbage.

        Garbage whose grace ended before is stuck: its storage is unavailable, or no longer configured. It must not
        cause frequent rounds.
        """
        ends = [
            record.since_us + self._grace_us
            for ref, record in self._catalogue.garbage.items()
            if ref.storage in self._storages
        ]
        return min((end for end in ends if end >= since_us), default=None)

    def _is_referenced(self, ref: ObjectRef) -> bool:
        if any(record.ref == ref for record in self._catalogue.all_parts()):
            _log.error(
                "object %s of storage %r has no references, but parts are in it; not deleted",
                ref.key,
                ref.storage,
                extra=log_event("storage.unreferenced_parts", storage=ref.storage, object=ref.key),
            )
            return True
        return False

    async def check(self, name: str, *, deep: bool = False) -> StorageReport:
        """Compare a storage with the catalogue. Changes nothing.

        Args:
            name: of the storage.
            deep: read every referenced part and compare its checksum.

        Raises:
            StorageError: the backend failed.
        """
        storage = self._storages[name]
        report = StorageReport(storage=name, url=storage.url)
        known = {ref.key: record for ref, record in self._catalogue.objects.items() if ref.storage == name}
        garbage = {ref.key for ref in self._catalogue.garbage if ref.storage == name}
        candidates: dict[str, int] = {}
        unseen = set(known)
        before_us = self._clock_us() - self._grace_us
        async for page in storage.list_all(segment_prefix(self._cluster)):
            for item in page.objects:
                report.objects += 1
                report.size_bytes += item.size_bytes
                record = known.get(item.key)
                if item.key in garbage:
                    report.garbage += 1
                elif record is None:
                    if self._may_be_orphan(item.key, before_us):
                        candidates[item.key] = item.size_bytes
                    else:
                        report.recent += 1
                elif record.size_bytes != item.size_bytes:
                    report.missing.append(f"{item.key}: {item.size_bytes} bytes instead of {record.size_bytes}")
                    unseen.discard(item.key)
                else:
                    report.referenced += 1
                    unseen.discard(item.key)
        # Objects entered or deleted during the listing are neither missing nor orphans.
        report.orphans = [key for key in candidates if await self._catalogue.is_unknown(ObjectRef(name, key))]
        report.recent += len(candidates) - len(report.orphans)
        for key in sorted(unseen):
            if ObjectRef(name, key) in self._catalogue.objects:
                report.missing.append(f"{key}: not there")
        if deep:
            await self._check_parts(storage, report)
        return report

    def _may_be_orphan(self, key: str, before_us: int) -> bool:
        """Whether an unknown object was stored by this broker, long enough ago. Other names belong to the user."""
        origin, tenure = object_origin(key), self._catalogue.tenure
        return (
            origin is not None
            and origin.created_us < before_us
            and origin.broker == tenure.broker
            and origin.life <= tenure.life
        )

    async def _check_parts(self, storage: Storage, report: StorageReport) -> None:
        for record in sorted(self._catalogue.all_parts(), key=lambda record: (record.object, record.part.start)):
            if record.storage != report.storage:
                continue
            part = record.part
            crc = 0
            try:
                for at in range(part.start, part.end, MIB):
                    crc = extend_crc(crc, await storage.get(record.object, at, min(at + MIB, part.end)))
                await self._reader.check_index(record)
            except (StorageNotFoundError, DataLossError) as error:
                crc = -1
                why = str(error)
            else:
                why = "the checksum does not match"
            if crc != part.crc:
                report.damaged.append(
                    f"topic {part.topic_id:016x}, offsets [{part.base_offset}, {part.end_offset}), in {record.object},"
                    f" bytes [{part.start}, {part.end}): {why}"
                )
            await trio.lowlevel.checkpoint()

    async def repair(self, name: str) -> StorageReport:
        """Check a storage, and remove orphans and the remains of interrupted uploads.

        Raises:
            FailedPreconditionError: the storage holds the history of another broker.
            StorageError: the backend failed.
            DanubeError: the metadata store failed, and the outcome of a change is unknown: nothing is deleted then.
        """
        report = await self.check(name)
        await self._manifests[name].confirm()  # after the listing, so a later owner whose objects are listed is found
        storage = self._storages[name]
        origins = {ObjectRef(name, key): object_origin(key) for key in report.orphans}
        created_us = {ref: origin.created_us for ref, origin in origins.items() if origin is not None}
        for at in range(0, len(created_us), _DELETES_AT_ONCE):
            some = dict(list(created_us.items())[at : at + _DELETES_AT_ONCE])
            given_up = await self._catalogue.give_up(some, self._clock_us())
            await storage.delete([ref.key for ref in given_up])
            await self._catalogue.forget_objects(given_up)
            report.deleted += len(given_up)
        for prefix in (segment_prefix(self._cluster), manifest_prefix(self._cluster), schema_prefix(self._cluster)):
            report.abandoned_uploads += await storage.abandon_uploads(prefix, self._grace_us / 1e6)
        return report

    async def check_manifests(self, name: str) -> int:
        """Read every manifest of a storage, and return their number.

        Raises:
            DataLossError: one is damaged.
            StorageError: the backend failed.
        """
        storage = self._storages[name]
        pages = storage.list_all(manifest_prefix(self._cluster))
        keys = [item.key async for page in pages for item in page.objects if not is_piece(self._cluster, item.key)]
        count = 0
        for key in keys:
            try:
                await load_manifest(storage, key)
            except StorageNotFoundError:
                continue  # superseded by a new snapshot in the meantime
            count += 1
        return count
