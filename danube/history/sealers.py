"""Combines the sealers of a broker, one for each storage, behind one interface.

Each has its own loop, its own pauses after a failure, and its own objects in flight, so a slow or unavailable backend
delays only the topics that are sealed into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import trio

from danube.history.sealer import Sealable, Sealer, SealingStatus
from danube.log import TopicLog
from danube.model.ids import TopicId

__all__ = ["Sealers"]


class Sealers:
    """All sealers, by the name of their storage."""

    def __init__(self, sealers: Mapping[str, Sealer]) -> None:
        self._sealers = sealers
        self._of_topic: dict[TopicId, Sealer] = {}

    def watch(self, topic: Sealable) -> None:
        """Seal a topic from now on, into its storage."""
        sealer = self._of_topic[topic.topic_id] = self._sealers[topic.storage]
        sealer.watch(topic)

    def forget(self, topic_id: TopicId) -> None:
        """Remove a deleted topic."""
        sealer = self._of_topic.pop(topic_id, None)
        if sealer is not None:
            sealer.forget(topic_id)

    def unsealed(self, log: TopicLog) -> None:
        """Note that a topic has unsealed batches, or another segment's worth of them."""
        sealer = self._of_topic.get(log.topic_id)
        if sealer is not None:
            sealer.unsealed(log)

    def journal_rolled(self) -> None:
        """Note that the journal has begun another file, so that it may need relief."""
        for sealer in self._sealers.values():
            sealer.journal_rolled()

    async def seal_now(self, topics: Iterable[Sealable]) -> None:
        """Seal all data of topics, and return when that is done. May be cancelled.

        Raises:
            StorageError: a backend failed; topics of other storages are sealed.
        """
        groups: dict[Sealer, list[Sealable]] = {}
        for topic in topics:
            sealer = self._of_topic.get(topic.topic_id)
            if sealer is not None:
                groups.setdefault(sealer, []).append(topic)
        for sealer, group in groups.items():
            await sealer.seal_now(group)

    def status(self, storage: str | None = None) -> SealingStatus:
        """Return the progress of sealing, into one storage or all of them."""
        found = [sealer.status() for name, sealer in self._sealers.items() if storage in (None, name)]
        worst = max(found, key=lambda one: one.failing_for_s)
        return SealingStatus(
            sum(one.unsealed_bytes for one in found),
            sum(one.unsealed_topics for one in found),
            max(one.oldest_age_s for one in found),
            sum(one.sealed_objects for one in found),
            sum(one.sealed_bytes for one in found),
            worst.failing_for_s,
            worst.last_error,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Seal what is due, until cancelled.

        Raises:
            OwnerFencedError: another broker owns the history now.
        """
        async with trio.open_nursery() as nursery:
            for sealer in self._sealers.values():
                await nursery.start(sealer.run)
            task_status.started()
