"""The unary calls about sealed history: sealing, retention, and the storages. Restoring is next door.

Checks take as long as a storage takes to be read through. They run inside their call: a client that goes away cancels
them, and nothing is left half done, because a check changes nothing and a repair only deletes what nobody needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from danube.broker.directory.policies import change_policies
from danube.broker.directory.restore import restore_topics
from danube.broker.runtime.settling import to_the_end
from danube.history import ObjectRef, StorageReport
from danube.model import Durability, TopicPolicies, api, history_api, validate_topic
from danube.model.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from danube.model.history_api import MOST_NAMES, HistoryMethod
from danube.model.policies import check_policy
from danube.wire import Context, Method, Service, UnaryHandler

if TYPE_CHECKING:
    from danube.broker.broker import Broker
    from danube.broker.calls.admin import Administration
    from danube.broker.topic.topic import Topic
    from danube.storage import Storage

__all__ = ["StorageAdministration", "sealed_part_of", "sealing_figures"]


class StorageAdministration:
    """Handlers of the calls of :mod:`danube.model.history_api`."""

    def __init__(self, broker: Broker, administration: Administration) -> None:
        self._broker = broker
        self._resolve = administration.resolve

    def service(self) -> Service:
        """Return the methods, by path."""
        table: list[tuple[str, UnaryHandler, type]] = [
            (HistoryMethod.SEAL_TOPIC, self.seal_topic, history_api.SealTopic),
            (HistoryMethod.UNLOAD_TOPIC, self.unload_topic, history_api.UnloadTopic),
            (HistoryMethod.CHANGE_RETENTION, self.change_retention, history_api.ChangeRetention),
            (HistoryMethod.RESTORE_TOPICS, self.restore_topics, history_api.RestoreTopics),
            (HistoryMethod.STORAGES_STATUS, self.storages_status, api.Empty),
            (HistoryMethod.CHECK_STORAGE, self.check_storage, history_api.CheckStorage),
            (HistoryMethod.REPAIR_STORAGE, self.repair_storage, history_api.RepairStorage),
        ]
        return {
            path: Method(path=path, kind="unary", handler=handler, request_type=request)
            for path, handler, request in table
        }

    # --- Topics ---

    async def seal_topic(self, request: history_api.SealTopic, _context: Context) -> history_api.SealedTopics:
        """Seal everything that a topic has."""
        topics = self._sealable(request.topic)
        await self._broker.history.seal_now(topics)
        return history_api.SealedTopics([self._sealed(topic) for topic in topics])

    async def unload_topic(self, request: history_api.UnloadTopic, _context: Context) -> history_api.SealedTopics:
        """Disconnect everybody from a topic, and seal it."""
        topics = self._sealable(request.topic)
        await self._broker.unload_topic(request.topic)
        return history_api.SealedTopics([self._sealed(topic) for topic in topics])

    def _kept(self, name: str) -> list[Topic]:
        """Return the topics behind a name; all of them have a log."""
        validate_topic(name)
        topics = self._resolve(name)
        if topics[0].durability is Durability.NONE:
            raise FailedPreconditionError(f"topic {name!r} has durability 'none': it keeps nothing")
        return topics

    def _sealable(self, name: str) -> list[Topic]:
        topics = self._kept(name)
        for topic in topics:
            if topic.failure is not None:
                raise DataLossError(f"topic {topic.name!r} has stopped: {topic.failure}")
        storage = topics[0].storage
        if not self._broker.history.can_seal(storage):
            found = self._broker.history.storages.get(storage)
            raise FailedPreconditionError(
                f"topic {name!r} cannot be sealed: storage {storage!r} ({found.url}) forgets what it holds when the"
                " broker stops; configure a durable one"
                if found is not None
                else f"topic {name!r} cannot be sealed: its storage {storage!r} is not configured; add it to [storages]"
            )
        return topics

    def _sealed(self, topic: Topic) -> history_api.SealedTopic:
        parts, objects, size_bytes = sealed_part_of(self._broker, [topic])
        return history_api.SealedTopic(
            topic.name, topic.start_offset, topic.log.journal_start, topic.end_offset, parts, objects, size_bytes
        )

    async def change_retention(
        self, request: history_api.ChangeRetention, _context: Context
    ) -> history_api.RetentionPlans:
        """Change rules, apply them, or say what they would do."""
        topics = self._kept(request.topic)
        history = self._broker.history
        if request.dry_run and request.now:
            raise InvalidArgumentError("dry_run and now exclude each other: one changes nothing, the other does")
        rules = request.retention
        if rules is not None:
            check_policy(TopicPolicies(retention=rules))
            if not request.dry_run:
                changes = {"retention": msgspec.to_builtins(rules)}
                await to_the_end(self._broker.nursery, lambda: change_policies(self._broker, request.topic, changes))
        else:
            rules = topics[0].retention
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

    async def restore_topics(self, request: history_api.RestoreTopics, _context: Context) -> history_api.RestoreReport:
        """Bring topics back from a bucket."""
        return await restore_topics(self._broker, request)

    # --- Storages ---

    def _storage(self, name: str) -> Storage:
        storages = self._broker.history.storages
        if name not in storages:
            raise NotFoundError(f"there is no storage {name!r}; configured are {', '.join(sorted(storages))}")
        return storages[name]

    async def storages_status(self, _request: api.Empty, _context: Context) -> history_api.StoragesStatus:
        """Return what is known of all storages, without asking them anything."""
        broker = self._broker
        by_storage: dict[str, list[Topic]] = {name: [] for name in broker.history.storages}
        for topic in broker.kept_topics():
            by_storage.setdefault(topic.storage, []).append(topic)
        tallies = _tally(broker)
        return history_api.StoragesStatus(
            sealing_figures(broker),
            [
                self._status(storage, by_storage[name], tallies.get(name, _Tally()))
                for name, storage in sorted(broker.history.storages.items())
            ],
        )

    def _status(self, storage: Storage, topics: list[Topic], tally: _Tally) -> history_api.StorageStatus:
        stats, can = storage.stats(), storage.capabilities
        health = stats.health
        now_s, now_us = trio.current_time(), self._broker.seams.wall_clock_us()
        oldest_us = min((since for topic in topics if (since := topic.log.unsealed_since_us)), default=now_us)
        return history_api.StorageStatus(
            storage.name,
            storage.url,
            can.durable,
            can.conditional_put,
            can.shared,
            can.max_object_bytes,
            len(topics),
            tally.parts,
            tally.objects,
            tally.object_bytes,
            tally.garbage,
            sum(topic.log.unsealed_bytes for topic in topics),
            max(0.0, (now_us - oldest_us) / 1e6),
            health.ok,
            0.0 if health.failing_since_s is None else now_s - health.failing_since_s,
            health.last_error or "",
            0.0 if health.last_error_at_s is None else now_s - health.last_error_at_s,
            stats.max_concurrency,
            stats.in_flight,
            stats.waiting,
            {
                name: history_api.OperationFigures(
                    figures.calls, figures.failures, figures.retries, figures.bytes, figures.busy_s
                )
                for name, figures in sorted(stats.operations.items())
            },
        )

    async def check_storage(self, request: history_api.CheckStorage, _context: Context) -> history_api.StorageFindings:
        """Compare a storage with the catalogue."""
        storage = self._storage(request.storage)
        janitor = self._broker.history.janitor
        report = await janitor.check(storage.name, deep=request.deep)
        damaged = list(report.damaged)
        manifests = 0
        try:
            manifests = await janitor.check_manifests(storage.name)
        except DataLossError as error:
            damaged.append(str(error))
        return _findings(report, manifests, damaged, request.deep)

    async def repair_storage(
        self, request: history_api.RepairStorage, _context: Context
    ) -> history_api.StorageFindings:
        """Check a storage, and remove what nothing refers to."""
        storage = self._storage(request.storage)
        if request.adopt:
            await storage.adopt()
        report = await self._broker.history.janitor.repair(storage.name)
        return _findings(report, 0, report.damaged, deep=False)


# --- Figures ---


class _Tally:
    """What one storage holds, by the catalogue."""

    __slots__ = ("garbage", "object_bytes", "objects", "parts")

    def __init__(self) -> None:
        self.parts = self.objects = self.object_bytes = self.garbage = 0


def _tally(broker: Broker) -> dict[str, _Tally]:
    found: dict[str, _Tally] = {}
    for ref, record in broker.history.catalogue.objects.items():
        tally = found.setdefault(ref.storage, _Tally())
        if record.references:
            tally.objects += 1
            tally.object_bytes += record.size_bytes
            tally.parts += record.references
        else:
            tally.garbage += 1
    return found


def sealed_part_of(broker: Broker, topics: list[Topic]) -> tuple[int, int, int]:
    """Return what is sealed of topics: parts, the objects that hold them, and their bytes."""
    parts = size_bytes = 0
    objects: set[ObjectRef] = set()
    for topic in topics:
        history = broker.history.catalogue.find(topic.topic_id)
        if history is not None:
            parts += len(history.parts)
            size_bytes += history.size_bytes
            objects.update(record.ref for record in history.parts)
    return parts, len(objects), size_bytes


def sealing_figures(broker: Broker) -> history_api.SealingFigures:
    """Return how far sealing is."""
    status, usage = broker.history.sealer.status(), broker.journal.usage()
    return history_api.SealingFigures(
        status.unsealed_bytes,
        status.unsealed_topics,
        status.oldest_age_s,
        broker.config.limits.segment_max_age_s,
        status.sealed_objects,
        status.sealed_bytes,
        status.failing_for_s,
        status.last_error,
        usage.used_bytes,
        usage.limit_bytes,
    )


def _findings(report: StorageReport, manifests: int, damaged: list[str], deep: bool) -> history_api.StorageFindings:
    return history_api.StorageFindings(
        report.storage,
        report.url,
        not report.missing and not damaged,
        report.objects,
        report.size_bytes,
        report.referenced,
        report.garbage,
        report.recent,
        manifests,
        len(report.orphans),
        len(report.missing),
        len(damaged),
        report.deleted,
        report.abandoned_uploads,
        report.orphans[:MOST_NAMES],
        report.missing[:MOST_NAMES],
        damaged[:MOST_NAMES],
        deep,
    )
