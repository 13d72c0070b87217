"""Manages the history of one broker: its storages, and the tasks that seal, merge, expire and clean up.

These tasks run here: the reader's fetches, a sealer for each storage, and the keeper, which applies retention, merges
small parts and collects garbage. They are started by :meth:`History.run` and end with it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.janitor import Janitor
from danube.history.manifest import Everything, ManifestLog
from danube.history.manifest_format import Bucket, Stream, Subscriptions
from danube.history.merger import Merger
from danube.history.parts import PartRecord
from danube.history.reader import SegmentReader
from danube.history.retention import RetentionPlan, plan_retention
from danube.history.schemas import NO_SCHEMAS, SchemaKeeper, SchemaSource
from danube.history.sealer import Sealable, Sealer
from danube.history.sealers import Sealers
from danube.history.segment import SegmentPart
from danube.log import Journal, StoredBatch
from danube.model.errors import DanubeError, FailedPreconditionError, NotOwnerError, OwnerFencedError
from danube.model.ids import Offset, OwnerEpoch, TopicId
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.model.policies import Retention
from danube.storage import Storage

__all__ = ["History", "ManagedTopic", "RecordSource"]

_log = logging.getLogger("danube.history")

_KEEP_INTERVAL_S: Final = 30.0
"""Interval at which retention is applied, small parts are merged, and failed work is retried. Deadlines of
garbage are met exactly."""
_ORPHANS_INTERVAL_S: Final = 6 * 3600.0


class ManagedTopic(Sealable, Protocol):
    """A topic as seen by its history: what the sealer needs, retention rules, durability and cursor floors."""

    @property
    def retention(self) -> Retention:
        """Its retention rules."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether it has no log: there is nothing to seal or to expire."""
        ...

    @property
    def commits_to_storage(self) -> bool:
        """Whether its batches are committed to its storage and sealed there, by merging; else the sealer seals them."""
        ...

    def floors(self) -> Sequence[Offset]:
        """Return the cursor floors of its durable subscriptions."""
        ...


class RecordSource(Protocol):
    """Provides the records of topics and subscriptions that manifests contain. Implemented by the broker."""

    def of_topics(self, names: Iterable[str]) -> tuple[dict[str, bytes], Subscriptions]:
        """Return the records of the topics that own these plain topics and partitions, by topic name.

        Includes the records of their namespaces and the policies of the broker, in the form used by manifests; and the
        subscriptions of these topics and partitions themselves.
        """
        ...

    def record_of(self, name: str) -> bytes | None:
        """Return the record of a topic, None if there is none of that name."""
        ...

    def gaps_of(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, list[bytes]]:
        """Return the records of the declared gaps of topics, in their order, of those that have any."""
        ...

    def everything(self, storage: str) -> tuple[dict[str, bytes], Subscriptions]:
        """Return the records of a storage's topics by name, those of namespaces and broker, and all subscriptions."""
        ...


class History:
    """The sealed history of one broker: catalogue, sealers, reader, manifests, retention, merging and clean-up.

    Args:
        catalogue: of the topics that this broker owns.
        storages: by name; ``default`` is used for topics that name none.
        journal: the journal whose batches are sealed, so that its files become free.
        records: source of the records of topics and subscriptions.
        cluster: name of the cluster: the folder in each storage.
        limits, rng, wall_clock_us: configuration and seams.
        schemas: source of the schemas of batches.
    """

    def __init__(
        self,
        catalogue: HistoryCatalogue,
        storages: Mapping[str, Storage],
        journal: Journal,
        records: RecordSource,
        cluster: str,
        limits: Limits,
        rng: random.Random,
        wall_clock_us: Callable[[], int],
        schemas: SchemaSource = NO_SCHEMAS,
    ) -> None:
        self.catalogue = catalogue
        self.storages = storages
        self.cluster = cluster
        self._limits = limits
        self._records = records
        self._clock_us = wall_clock_us
        self._topics: dict[TopicId, ManagedTopic] = {}
        self._wake = trio.Event()
        self._keeping = trio.Lock()
        self.stream = Stream(catalogue.incarnation, catalogue.tenure.broker)
        """Where this broker writes its manifests."""
        self.manifests = {
            name: ManifestLog(
                storage,
                cluster,
                self.stream,
                catalogue.epoch,
                self._snapshot_of(name),
                wall_clock_us,
                self._epochs,
                records.gaps_of,
            )
            for name, storage in storages.items()
        }
        self.reader = SegmentReader(catalogue, storages, limits)
        keepers = {name: SchemaKeeper(storage, cluster, schemas) for name, storage in storages.items()}
        self._keepers, self._rng = keepers, rng
        self.sealer = Sealers(
            {
                name: Sealer(
                    catalogue,
                    self.manifests[name],
                    storage,
                    keepers[name],
                    journal,
                    cluster,
                    limits,
                    rng,
                    wall_clock_us,
                    records.of_topics,
                    self._expire_before_sealing,
                )
                for name, storage in storages.items()
            }
        )
        self.merger = Merger(
            catalogue, self.manifests, storages, keepers, self.reader, cluster, limits, rng, wall_clock_us
        )
        self.janitor = Janitor(catalogue, storages, self.manifests, self.reader, cluster, limits, wall_clock_us)
        journal.on_roll.append(self.sealer.journal_rolled)
        catalogue.on_change = self._note_change
        # The previous process may have ended between a change of the catalogue and its manifest: begin with a snapshot.
        # Also without any objects left: manifests may still list topics that were deleted.
        for name in self.manifests:
            if self._has_manifests(name) or storages[name].was_written:
                self.manifests[name].note()

    def _snapshot_of(self, storage: str) -> Callable[[], Everything]:
        def everything() -> Everything:
            parts = [record for record in self.catalogue.all_parts() if record.storage == storage]
            starts = {number: topic.start_offset for number, topic in self.catalogue.topics.items()}
            topics, subscriptions = self._records.everything(storage)
            return parts, {number: start for number, start in starts.items() if start}, topics, subscriptions

        return everything

    def _epochs(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, OwnerEpoch]:
        """Return the epochs under which this broker owns topics, of those that it owns."""
        tenure = self.catalogue.tenure
        return {topic_id: tenure.epoch(topic_id) for topic_id in topic_ids if tenure.owns(topic_id)}

    def _note_change(
        self, added: Sequence[PartRecord], removed: Sequence[PartRecord], starts: Mapping[TopicId, Offset]
    ) -> None:
        """Pass a change of the catalogue to the manifests."""
        for storage in {record.storage for record in (*added, *removed)} & self.manifests.keys():
            objects: dict[str, list[SegmentPart]] = {}
            for record in added:
                if record.storage == storage:
                    objects.setdefault(record.object, []).append(record.part)
            gone = [record for record in removed if record.storage == storage]
            self.manifests[storage].note(added=objects, removed=gone, starts=starts)

    def _has_manifests(self, storage: str) -> bool:
        """Whether a storage has manifests, or objects that its manifests must list."""
        known = (self.catalogue.objects, self.catalogue.garbage)
        return self.manifests[storage].written or any(ref.storage == storage for refs in known for ref in refs)

    def note_records(self, storage: str, records: Mapping[str, bytes], *, always: bool = False) -> None:
        """Add changed records of topics, namespaces or the broker to the next manifest of a storage.

        Args:
            storage: its name; ignored if it is not configured.
            records: by name, in the form used by manifests.
            always: also if the storage has neither manifests nor objects yet.
        """
        if storage in self.manifests and (always or self._has_manifests(storage)):
            self.manifests[storage].note(topics=records)

    # --- Topics ---

    def can_seal(self, storage: str) -> bool:
        """Whether durable topics may be sealed into a storage: it is configured, and is durable."""
        found = self.storages.get(storage)
        return found is not None and found.capabilities.durable

    def add_topic(self, topic: ManagedTopic) -> None:
        """Manage a topic's history from now on."""
        self._topics[topic.topic_id] = topic
        if not topic.commits_to_storage and self.can_seal(topic.storage):
            self.sealer.watch(topic)

    async def adopt_topic(self, topic_id: TopicId) -> None:
        """Read the history of a topic that this broker owns now; :meth:`add_topic` follows. No-op if it is known.

        Raises:
            DanubeError: the metadata cannot be read.
        """
        await self.catalogue.adopt(topic_id)

    async def pause_topic(self, topic_id: TopicId) -> None:
        """Seal nothing of a topic any more, until :meth:`add_topic`; parts that are being entered are entered first.

        Raises:
            DanubeError: whether a part was entered is unknown, and the metadata do not answer.
        """
        self.sealer.forget(topic_id)
        await self.catalogue.settle()

    def release_topic(self, topic_id: TopicId) -> None:
        """Forget the history of a topic that another broker owns now."""
        self.sealer.forget(topic_id)
        self._topics.pop(topic_id, None)
        self.catalogue.release(topic_id)

    async def drop_topic(self, topic_id: TopicId, name: str) -> None:
        """Remove a deleted topic; objects shared with other topics are rewritten later.

        Raises:
            OwnerFencedError: another broker owns the history now.
        """
        known = self._topics.get(topic_id)
        self.sealer.forget(topic_id)
        history = self.catalogue.find(topic_id)
        storages = {record.storage for record in history.parts} if history is not None else set()
        if known is not None:
            storages.add(known.storage)  # manifests may still list it, even if all of it has expired
        if history is not None:
            await self.catalogue.drop_topic(topic_id, self._clock_us())
        self._topics.pop(topic_id, None)
        for storage in storages & self.manifests.keys():
            if self._has_manifests(storage):
                # A new topic may have this name by now: record_of() then returns its record.
                self.manifests[storage].note(topics={name: self._records.record_of(name)})
        self._wake.set()

    async def sweep(self, alive: set[TopicId]) -> None:
        """Remove the history of topics that no longer exist (after an interrupted deletion)."""
        for topic_id in set(self.catalogue.topics) - alive:
            await self.catalogue.drop_topic(topic_id, self._clock_us())

    async def take_over(self, storage: str, bucket: Bucket) -> None:
        """Take ownership of a storage, after everything listed in ``bucket`` was entered in the catalogue.

        Raises:
            StorageError: the backend failed; the change may have been applied, and is retried with the next sealing.
        """
        await self.manifests[storage].take_over(bucket, self.catalogue.epoch)
        self._wake.set()

    # --- Retention ---

    def plan(self, topic: ManagedTopic, rules: Retention | None = None) -> RetentionPlan:
        """Return the effect that retention would have on a topic now; with ``rules`` instead of its own, if given."""
        history = self.catalogue.find(topic.topic_id)
        rules = topic.retention if rules is None else rules
        return plan_retention(topic.name, rules, topic.log, history, topic.floors(), self._clock_us())

    async def expire(self, topic: ManagedTopic) -> RetentionPlan:
        """Apply retention to a topic now.

        Raises:
            OwnerFencedError: another broker owns the history now.
        """
        plan = self.plan(topic)
        if plan.new_start_offset > plan.start_offset:
            await self.catalogue.expire(topic.topic_id, plan.new_start_offset, self._clock_us())
            topic.log.expire(plan.new_start_offset)
        return plan

    async def _expire_before_sealing(self, topic: Sealable) -> None:
        known = self._topics.get(topic.topic_id)
        if known is not None and known.retention:
            await self.expire(known)

    # --- Tasks ---

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Seal, merge, expire and collect, until cancelled.

        Raises:
            OwnerFencedError: another broker owns the history now; this one must end.
        """
        async with trio.open_nursery() as nursery:
            await nursery.start(self.reader.run)
            await nursery.start(self.sealer.run)
            nursery.start_soon(self._keep)
            task_status.started()

    def keep_now(self) -> None:
        """Start the next round of retention, merging and collecting at once."""
        self._wake.set()

    async def _keep(self) -> None:
        failing = False
        begun_us = 0
        orphans_at = trio.current_time() + _ORPHANS_INTERVAL_S
        while True:
            with trio.move_on_after(self._pause_s(begun_us)):
                await self._wake.wait()
            self._wake = trio.Event()
            begun_us = self._clock_us()
            try:
                await self.keep()
                if trio.current_time() >= orphans_at:
                    orphans_at = trio.current_time() + _ORPHANS_INTERVAL_S
                    await self._remove_orphans()
                failing = False
            except OwnerFencedError:
                raise
            except (DanubeError, OSError) as error:
                if not failing:
                    _log.error(
                        "merging or garbage collection failed and will be retried: %s",
                        error,
                        extra=log_event("history.upkeep_failing"),
                    )
                failing = True

    def _pause_s(self, begun_us: int) -> float:
        deadline_us = self.janitor.next_deadline_us(begun_us)
        if deadline_us is None:
            return _KEEP_INTERVAL_S
        return min(max(1.0, (deadline_us - self._clock_us()) / 1e6), _KEEP_INTERVAL_S)

    async def keep(self) -> None:
        """Run one round: apply retention, merge small parts, delete garbage whose grace has ended.

        If merging fails in a storage, its manifests are still updated and its garbage is still deleted: otherwise one
        damaged object would let garbage accumulate for as long as it exists.

        Raises:
            StorageError: a backend failed.
            OwnerFencedError: another broker owns the history now.
        """
        async with self._keeping:  # concurrent rounds would merge the same parts twice
            await self._keep_once()

    async def _keep_once(self) -> None:
        for topic in list(self._topics.values()):
            if topic.retention and not topic.gone and not topic.lossy:
                with suppress(NotOwnerError):  # it is about to be released
                    await self.expire(topic)
        errors: list[Exception] = []

        async def keep_storage(name: str) -> None:
            if self.manifests[name].held:
                return
            try:
                await self.catalogue.refresh_shared(name)
                await self.merger.merge(name)
            except OwnerFencedError as error:
                errors.append(error)
                return  # only the other broker can decide what is garbage
            except (DanubeError, OSError) as error:
                errors.append(error)
            try:
                await self.manifests[name].flush()
                await self.janitor.collect(name)
            except (DanubeError, OSError) as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:  # a failing storage does not delay the others
            for name in self.storages:
                nursery.start_soon(keep_storage, name)
        errors.sort(key=lambda error: not isinstance(error, OwnerFencedError))
        for error in errors[1:]:  # only one can be raised
            _log.error(
                "merging or garbage collection also failed with: %s", error, extra=log_event("history.upkeep_failing")
            )
        for error in errors:
            raise error

    async def seal_now(self, topics: Iterable[ManagedTopic]) -> None:
        """Seal all data of topics, including commits of durability ``remote``; return when that is done.

        Raises:
            StorageError: a backend failed.
            OwnerFencedError: another broker owns the history now.
        """
        stored = [topic for topic in topics if not topic.lossy]
        await self.sealer.seal_now(topic for topic in stored if not topic.commits_to_storage)
        remote: dict[str, set[TopicId]] = {}
        for topic in stored:
            if topic.commits_to_storage:
                remote.setdefault(topic.storage, set()).add(topic.topic_id)
        for storage, topic_ids in remote.items():
            async with self._keeping:
                await self.merger.merge(storage, frozenset(topic_ids))
                await self.manifests[storage].flush()

    async def seal_commits(self, topic: ManagedTopic) -> None:
        """Seal what a topic of durability ``remote`` has in commits only, without waiting for upkeep or a manifest.

        Raises:
            StorageError: the backend failed.
            NotOwnerError, UnavailableError, OwnerFencedError: another broker owns the history now.
        """
        await self.merger.seal_commits(topic.storage, topic.topic_id)
        await self.catalogue.settle()

    def unsealed_bytes(self, topic_id: TopicId) -> int:
        """Return how many bytes a topic of durability ``remote`` has in commits only."""
        history, commits = self.catalogue.find(topic_id), self.catalogue.commits
        parts = history.parts if history is not None else ()
        return sum(record.part.size_bytes for record in parts if record.ref in commits)

    async def fill(self, topic: ManagedTopic, batches: Sequence[StoredBatch]) -> None:
        """Seal batches at offsets that were missing, below those of the journal; return when they can be read.

        Args:
            topic: of the batches, which this broker owns.
            batches: in order; not empty.

        Raises:
            FailedPreconditionError: the topic cannot be sealed here.
            MetadataConflictError: some of the offsets are sealed already.
            StorageError: a backend failed.
            DanubeError: the metadata cannot be changed now.
        """
        from danube.history.filling import build_object
        from danube.history.objects import upload

        if not self.can_seal(topic.storage):
            raise FailedPreconditionError(f"storage {topic.storage!r} of topic {topic.name!r} cannot hold its history")
        storage, manifests = self.storages[topic.storage], self.manifests[topic.storage]
        await manifests.check()
        built = build_object(self.catalogue.tenure, self.cluster, topic, batches, self._clock_us(), self._rng)
        ref = built.ref(storage.name)
        with self.catalogue.storing(ref):
            await self._keepers[topic.storage].keep(built.schemas)
            await upload(storage, built)
            records, subscriptions = self._records.of_topics({topic.name})
            manifests.note(topics=records, subscriptions=subscriptions)
            await self.catalogue.enter(ref, len(built.data), built.created_us, built.footer.parts)
            await manifests.flush()

    async def _remove_orphans(self) -> None:
        for name in self.storages:
            try:
                report = await self.janitor.repair(name)
            except OwnerFencedError:
                raise
            except (DanubeError, OSError) as error:  # no reason to leave it in other storages
                _log.error(
                    "storage %r: unreferenced objects are removed later: %s",
                    name,
                    error,
                    extra=log_event("history.upkeep_failing"),
                )
                continue
            if report.orphans or report.abandoned_uploads:
                _log.warning(
                    "storage %r: removed %d unreferenced objects and %d interrupted uploads",
                    name,
                    report.deleted,
                    report.abandoned_uploads,
                    extra=log_event("storage.cleaned", storage=name),
                )
            for missing in report.missing:
                _log.error(
                    "storage %r: history is missing: %s",
                    name,
                    missing,
                    extra=log_event("storage.history_missing", storage=name),
                )
