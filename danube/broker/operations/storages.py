"""Operations on sealed history: sealing, retention, storages, restore.

A check takes as long as reading a whole storage. It runs inside its call: a client that disconnects cancels it, and
nothing is left half done, because a check changes nothing and a repair only deletes objects that are not referenced.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
import trio

from danube.broker.directory.policies import change_policies
from danube.broker.directory.restore import restore_topics
from danube.history import ObjectRef, StorageReport
from danube.model import TopicPolicies, api, history_api, validate_topic
from danube.model.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from danube.model.history_api import MOST_NAMES
from danube.model.log_events import log_event
from danube.model.policies import check_policy

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic
    from danube.storage import Storage

__all__ = ["StorageOperations", "sealed_part_of", "sealing_figures"]

_log = logging.getLogger("danube.broker")


class StorageOperations:
    """Operations on sealed history; see the module.

    Args:
        directory: of the topics.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    # --- Topics ---

    async def seal_topic(self, request: history_api.SealTopic) -> history_api.SealedTopics:
        """Seal all messages of a topic."""
        topics = self._sealable(request.topic)
        await self._directory.history.seal_now(topics)
        return history_api.SealedTopics([self._sealed(topic) for topic in topics])

    async def unload_topic(self, request: history_api.UnloadTopic) -> history_api.SealedTopics:
        """Disconnect all clients from a topic, and seal it."""
        topics = self._sealable(request.topic)
        await self._directory.unload(request.topic)
        return history_api.SealedTopics([self._sealed(topic) for topic in topics])

    def _kept(self, name: str) -> list[Topic]:
        """Return the topics behind a name; all of them have a log."""
        validate_topic(name)
        topics = self._directory.resolve(name)
        if topics[0].lossy:
            raise FailedPreconditionError(f"topic {name!r} has durability 'none': it stores nothing")
        return topics

    def _sealable(self, name: str) -> list[Topic]:
        topics = self._kept(name)
        for topic in topics:
            if topic.failure is not None:
                raise DataLossError(f"topic {topic.name!r} has stopped: {topic.failure}")
        storage = topics[0].storage
        if not self._directory.history.can_seal(storage):
            found = self._directory.history.storages.get(storage)
            raise FailedPreconditionError(
                f"topic {name!r} cannot be sealed: storage {storage!r} ({found.url}) is not durable: its objects are"
                " lost when the broker stops; configure a durable one"
                if found is not None
                else f"topic {name!r} cannot be sealed: its storage {storage!r} is not configured; add it to [storages]"
            )
        return topics

    def _sealed(self, topic: Topic) -> history_api.SealedTopic:
        parts, objects, size_bytes = sealed_part_of(self._directory, [topic])
        return history_api.SealedTopic(
            topic.name, topic.start_offset, topic.log.journal_start, topic.end_offset, parts, objects, size_bytes
        )

    async def change_retention(self, request: history_api.ChangeRetention) -> history_api.RetentionPlans:
        """Change the rules of retention, apply them, or report their effect."""
        if request.retention is None:
            # Another broker may just have changed them; what it has answered applies here, too.
            await self._directory.refresh(request.topic)
        topics = self._kept(request.topic)
        history = self._directory.history
        await self.set_retention(request)
        rules = request.retention if request.retention is not None else topics[0].retention
        plans = []
        for topic in topics:
            plan = await history.expire(topic) if request.now else history.plan(topic, rules)
            plans.append(
                history_api.RetentionOutcome(
                    topic.name,
                    plan.start_offset,
                    plan.new_start_offset,
                    topic.end_offset,
                    plan.freed_bytes,
                    plan.freed_parts,
                )
            )
        return history_api.RetentionPlans(rules, request.now, plans)

    async def set_retention(self, request: history_api.ChangeRetention) -> history_api.ChangeRetention:
        """Change the rules of a topic, if the request says so; return the request that applies or reports them.

        Raises:
            InvalidArgumentError: the rules, or the request, are invalid.
            DanubeError: as :func:`~danube.broker.directory.policies.change_policies`.
        """
        rules = request.retention
        if request.dry_run and request.now:
            raise InvalidArgumentError("dry_run and now exclude each other: one changes nothing, the other does")
        if rules is None:
            return request
        check_policy(TopicPolicies(retention=rules))
        if request.dry_run:
            return request
        changes = {"retention": msgspec.to_builtins(rules)}
        await self._directory.runtime.finish(lambda: change_policies(self._directory, request.topic, changes))
        return msgspec.structs.replace(request, retention=None)

    async def restore_topics(self, request: history_api.RestoreTopics) -> history_api.RestoreReport:
        """Restore topics from a bucket."""
        return await restore_topics(self._directory, request)

    async def list_stranded(self, _request: api.Empty) -> history_api.StrandedTopics:
        """Return the topics in the journal that the metadata do not know."""
        found = self._directory.runtime.journal.stranded()
        return history_api.StrandedTopics(
            [history_api.StrandedTopic(topic_id, size, end) for topic_id, (size, end) in found.items()]
        )

    async def forget_stranded(self, request: history_api.ForgetStranded) -> history_api.StrandedTopics:
        """Delete the entries of stranded topics from the journal, with the consent of an operator."""
        journal = self._directory.runtime.journal
        known = journal.stranded()
        for topic_id in request.topic_ids:
            if topic_id not in known:
                raise NotFoundError(
                    f"topic {topic_id:016x} is not stranded: nothing was deleted; list those that are with:"
                    " danube topics stranded"
                )
        wanted = set(request.topic_ids)
        chosen = [topic for topic in (await self.list_stranded(api.Empty())).topics if topic.topic_id in wanted]
        if not request.accept_loss:
            raise FailedPreconditionError(
                f"the journal holds {sum(topic.journal_bytes for topic in chosen)} bytes of messages of {len(chosen)}"
                " stranded topic(s), which would be lost for good; to accept that, repeat the call with accept_loss"
                " (danube topics forget-stranded --accept-loss)"
            )
        for topic in chosen:
            _log.critical(
                "stranded topic %016x is deleted with consent: %d bytes of messages up to offset %d are given up",
                topic.topic_id,
                topic.journal_bytes,
                topic.end_offset,
                extra=log_event("journal.stranded_deleted"),
            )
        await self._directory.runtime.finish(lambda: journal.bury(wanted))
        return history_api.StrandedTopics(chosen)

    # --- Storages ---

    def _storage(self, name: str) -> Storage:
        storages = self._directory.history.storages
        if name not in storages:
            raise NotFoundError(f"there is no storage {name!r}; configured are {', '.join(sorted(storages))}")
        return storages[name]

    async def storages_status(self, _request: api.Empty) -> history_api.StoragesStatus:
        """Return the known status of all storages, without accessing them."""
        directory = self._directory
        by_storage: dict[str, list[Topic]] = {name: [] for name in directory.history.storages}
        for topic in directory.kept_topics():
            by_storage.setdefault(topic.storage, []).append(topic)
        tallies = _tally(directory)
        return history_api.StoragesStatus(
            sealing_figures(directory),
            [
                self._status(storage, by_storage[name], tallies.get(name, _Tally()))
                for name, storage in sorted(directory.history.storages.items())
            ],
        )

    def _status(self, storage: Storage, topics: list[Topic], tally: _Tally) -> history_api.StorageStatus:
        stats, can = storage.stats(), storage.capabilities
        health = stats.health
        now_s, now_us = trio.current_time(), self._directory.runtime.clock_us()
        oldest_us = min((since for topic in topics if (since := topic.log.unsealed_since_us)), default=now_us)
        return history_api.StorageStatus(
            storage=storage.name,
            url=storage.url,
            durable=can.durable,
            conditional_put=can.conditional_put,
            shared=can.shared,
            max_object_bytes=can.max_object_bytes,
            topics=len(topics),
            parts=tally.parts,
            objects=tally.objects,
            object_bytes=tally.object_bytes,
            garbage_objects=tally.garbage,
            unsealed_bytes=sum(topic.log.unsealed_bytes for topic in topics),
            oldest_unsealed_age_s=max(0.0, (now_us - oldest_us) / 1e6),
            healthy=health.ok,
            failing_for_s=0.0 if health.failing_since_s is None else now_s - health.failing_since_s,
            last_error=health.last_error or "",
            last_error_age_s=0.0 if health.last_error_at_s is None else now_s - health.last_error_at_s,
            max_concurrency=stats.max_concurrency,
            in_flight=stats.in_flight,
            waiting=stats.waiting,
            operations={
                name: history_api.OperationFigures(
                    figures.calls, figures.failures, figures.retries, figures.bytes, figures.busy_s
                )
                for name, figures in sorted(stats.operations.items())
            },
        )

    async def check_storage(self, request: history_api.CheckStorage) -> history_api.StorageFindings:
        """Compare a storage with the catalogue."""
        storage = self._storage(request.storage)
        janitor = self._directory.history.janitor
        report = await janitor.check(storage.name, deep=request.deep)
        damaged = list(report.damaged)
        manifests = 0
        try:
            manifests = await janitor.check_manifests(storage.name)
        except DataLossError as error:
            damaged.append(str(error))
        return _findings(report, manifests, damaged, request.deep)

    async def repair_storage(self, request: history_api.RepairStorage) -> history_api.StorageFindings:
        """Check a storage, and remove objects that are not referenced."""
        storage = self._storage(request.storage)
        if request.adopt:
            await storage.adopt()
        report = await self._directory.history.janitor.repair(storage.name)
        return _findings(report, 0, report.damaged, deep=False)


# --- Figures ---


class _Tally:
    """Totals of one storage, from the catalogue."""

    __slots__ = ("garbage", "object_bytes", "objects", "parts")

    def __init__(self) -> None:
        self.parts = self.objects = self.object_bytes = self.garbage = 0


def _tally(directory: Directory) -> dict[str, _Tally]:
    found: dict[str, _Tally] = {}
    for ref, record in directory.history.catalogue.objects.items():
        tally = found.setdefault(ref.storage, _Tally())
        tally.objects += 1
        tally.object_bytes += record.size_bytes
        tally.parts += record.references
    for ref in directory.history.catalogue.garbage:
        found.setdefault(ref.storage, _Tally()).garbage += 1
    return found


def sealed_part_of(directory: Directory, topics: list[Topic]) -> tuple[int, int, int]:
    """Return the sealed totals of topics: parts, the objects that hold them, and their bytes."""
    parts = size_bytes = 0
    objects: set[ObjectRef] = set()
    for topic in topics:
        history = directory.history.catalogue.find(topic.topic_id)
        if history is not None:
            parts += len(history.parts)
            size_bytes += history.size_bytes
            objects.update(record.ref for record in history.parts)
    return parts, len(objects), size_bytes


def sealing_figures(directory: Directory) -> history_api.SealingFigures:
    """Return the progress of sealing."""
    status, usage = directory.history.sealer.status(), directory.runtime.journal.usage()
    return history_api.SealingFigures(
        unsealed_bytes=status.unsealed_bytes,
        unsealed_topics=status.unsealed_topics,
        oldest_age_s=status.oldest_age_s,
        max_age_s=directory.runtime.limits.segment_max_age_s,
        sealed_objects=status.sealed_objects,
        sealed_bytes=status.sealed_bytes,
        failing_for_s=status.failing_for_s,
        last_error=status.last_error,
        journal_used_bytes=usage.used_bytes,
        journal_limit_bytes=usage.limit_bytes,
        stranded_topics=usage.stranded_topics,
        stranded_bytes=usage.stranded_bytes,
    )


def _findings(report: StorageReport, manifests: int, damaged: list[str], deep: bool) -> history_api.StorageFindings:
    return history_api.StorageFindings(
        storage=report.storage,
        url=report.url,
        ok=not report.missing and not damaged,
        objects=report.objects,
        size_bytes=report.size_bytes,
        referenced=report.referenced,
        garbage=report.garbage,
        recent=report.recent,
        manifests=manifests,
        orphans=len(report.orphans),
        missing=len(report.missing),
        damaged=len(damaged),
        deleted=report.deleted,
        abandoned_uploads=report.abandoned_uploads,
        orphan_keys=report.orphans[:MOST_NAMES],
        missing_objects=report.missing[:MOST_NAMES],
        damaged_parts=damaged[:MOST_NAMES],
        deep=deep,
    )
