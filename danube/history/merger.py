"""Merges small adjacent parts of a topic into one, and rewrites objects that hold data of deleted topics.

A topic with little traffic gets a small part with each seal, in an object that many topics share. When a topic has
``segment_merge_parts`` such parts in a row (none larger than a quarter of ``segment_bytes``), they are rewritten as one
part. Topics that are due at the same time share the new objects, so that there are few of them. An object that holds
data of a deleted topic is *tainted*: the parts in it that are still needed are moved out, and then it is deleted like
every unreferenced object.

Commits of durability ``remote`` are sealed here, too: when a topic has enough for a segment, or they are old enough.

The old objects are kept for a grace period, so that queries in progress are not disturbed.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence

import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.manifest import ManifestLog
from danube.history.merge_plan import Run, adjacent, runs_to_merge
from danube.history.objects import object_name, upload
from danube.history.packing import BuiltObject, build
from danube.history.parts import PartRecord, TopicHistory
from danube.history.reader import SegmentReader
from danube.history.schemas import SchemaKeeper
from danube.history.segment import SegmentBuilder, SegmentKind
from danube.model.errors import DataLossError, StorageNotFoundError, StorageRangeError
from danube.model.ids import OwnerEpoch, ProducerId, TopicId
from danube.model.limits import MIB, Limits
from danube.model.log_events import log_event
from danube.storage import Storage

__all__ = ["Merger"]

_log = logging.getLogger("danube.history")


class Merger:
    """Merges small parts, seals commits of durability ``remote``, and rewrites tainted objects, for all topics."""

    def __init__(
        self,
        catalogue: HistoryCatalogue,
        manifests: Mapping[str, ManifestLog],
        storages: Mapping[str, Storage],
        schemas: Mapping[str, SchemaKeeper],
        reader: SegmentReader,
        cluster: str,
        limits: Limits,
        rng: random.Random,
        wall_clock_us: Callable[[], int],
    ) -> None:
        self._catalogue = catalogue
        self._manifests = manifests
        self._storages = storages
        self._schemas = schemas
        self._reader = reader
        self._cluster = cluster
        self._limits = limits
        self._rng = rng
        self._clock_us = wall_clock_us
        self.merged_parts = 0
        """Number of parts merged since the broker was started."""

    async def merge(self, storage: str, wanted: frozenset[TopicId] = frozenset()) -> int:
        """Merge the due parts of a storage now; return the number of merged parts.

        Args:
            storage: its name.
            wanted: ids of topics whose commits of durability ``remote`` are all sealed, whatever their age.

        Damaged runs, and runs with a missing object, are logged and skipped; the others are merged.

        Raises:
            FailedPreconditionError: the storage holds the history of another broker.
            StorageError: the backend failed; parts merged before stay merged.
            OwnerFencedError: another broker owns the history now.
        """
        before = self.merged_parts
        runs = [
            run
            for topic_id, history in list(self._catalogue.topics.items())
            if self._catalogue.tenure.owns(topic_id)
            for run in self._runs(history, topic_id in wanted)
            if run[0].storage == storage
        ]
        if runs:
            await self._manifests[storage].check()
            await self._merge_into(storage, runs)
        return self.merged_parts - before

    async def seal_commits(self, storage: str, topic_id: TopicId) -> None:
        """Seal what a topic of durability ``remote`` has in commits only; the next manifest that is written lists it.

        A round of :meth:`merge` may run meanwhile: of two that seal the same commits one succeeds.

        Raises:
            StorageError: the backend failed.
            NotOwnerError, UnavailableError, OwnerFencedError: another broker owns the history now.
        """
        commits, history = self._catalogue.commits, self._catalogue.find(topic_id)
        unsealed = [record for record in history.parts if record.ref in commits] if history is not None else []
        for run in adjacent(unsealed, self._limits.segment_bytes):
            await self._write(storage, [run], flush=False)

    def _runs(self, history: TopicHistory, is_wanted: bool) -> list[Run]:
        objects, commits = self._catalogue.objects, self._catalogue.commits
        unsealed = [record.part for record in history.parts if record.ref in commits] if commits else []
        seal = bool(unsealed) and (
            is_wanted
            or sum(part.size_bytes for part in unsealed) >= self._limits.segment_bytes
            or self._clock_us() - unsealed[0].first_time_us >= self._limits.segment_max_age_s * 1e6
        )

        def must_move(record: PartRecord) -> bool:
            found = objects.get(record.ref)
            return found.tainted if found is not None else seal and record.ref in commits

        return runs_to_merge(history, must_move, self._limits.segment_bytes, self._limits.segment_merge_parts)

    async def _merge_into(self, storage: str, runs: Sequence[Run]) -> None:
        """Write runs into as few objects as possible."""
        group: list[Run] = []
        size = 0
        for run in runs:
            run_bytes = sum(record.part.size_bytes for record in run)
            if group and size + run_bytes > self._limits.segment_bytes:
                await self._write(storage, group, flush=True)
                group, size = [], 0
            group.append(run)
            size += run_bytes
        if group:
            await self._write(storage, group, flush=True)

    async def _write(self, storage: str, runs: Sequence[Run], *, flush: bool) -> None:
        created_us = self._clock_us()
        tenure = self._catalogue.tenure
        key = object_name(self._cluster, created_us, tenure.broker, tenure.life, self._rng)
        builder = SegmentBuilder(SegmentKind.SEGMENT, OwnerEpoch(tenure.life), created_us)
        copied: list[Run] = []
        schemas: set[int] = set()
        for run in runs:
            try:
                if await self._copy(builder, run, schemas):
                    copied.append(run)
            except (DataLossError, StorageNotFoundError, StorageRangeError) as error:
                # A missing or truncated object counts as damage, too: waiting would not restore it. The other runs
                # continue: otherwise the next round would combine the same runs again.
                _log.error(
                    "damaged history was not merged, and its objects are unchanged: %s",
                    error,
                    extra=log_event("storage.history_damaged"),
                )
                builder.abandon()
        if not copied:
            return
        built = build(key, builder, created_us, schemas)
        with self._catalogue.storing(built.ref(storage)):
            await self._schemas[storage].keep(built.schemas)
            await upload(self._storages[storage], built)
            await self._enter(storage, built, copied, flush=flush)

    async def _copy(self, builder: SegmentBuilder, run: Run, schemas: set[int]) -> bool:
        """Copy a run's batches as one part, and note their schemas; False if the topic has changed in the meantime."""
        topic_id = run[0].part.topic_id
        offset, end = run[0].part.base_offset, run[-1].part.end_offset
        names = await self._reader.names(run[0])
        producers: dict[ProducerId, str] = {}
        for record in run:
            producers |= (await self._reader.names(record))[1]
        seen: set[ProducerId] = set()
        builder.begin(topic_id, names[0], self._catalogue.tenure.epoch(topic_id))
        while offset < end:
            batches = await self._reader.read(topic_id, offset, MIB)
            if not batches or batches[0].base_offset != offset or batches[-1].end_offset > end:
                builder.abandon()  # expired or deleted in the meantime
                return False
            for batch in batches:
                builder.add(batch)
                seen.add(batch.header.producer_id)
                if batch.header.schema_id:
                    schemas.add(batch.header.schema_id)
            offset = batches[-1].end_offset
            await trio.lowlevel.checkpoint()
        builder.end({number: name for number, name in producers.items() if number in seen})
        return True

    async def _enter(self, storage: str, built: BuiltObject, runs: Sequence[Run], *, flush: bool) -> None:
        before = self.merged_parts
        for run, part in zip(runs, built.footer.parts, strict=True):
            assert part.base_offset == run[0].part.base_offset
            assert part.end_offset == run[-1].part.end_offset
            if await self._catalogue.replace(run, built.ref(storage), len(built.data), built.created_us, part):
                self.merged_parts += len(run)
        if self.merged_parts == before:
            await self._storages[storage].delete([built.key])  # all topics in it have changed in the meantime
        if flush:
            await self._manifests[storage].flush()
