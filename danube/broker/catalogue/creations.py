"""Creates topics, gives them more partitions, and enters topics that existed elsewhere: what each must satisfy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from danube.broker.catalogue.catalogue_records import CatalogueRecords
from danube.broker.catalogue.entering import Entering, NewTopic, Place
from danube.broker.catalogue.subscription_rows import SubscriptionRows
from danube.cluster.membership import Membership
from danube.cluster.records import Reason
from danube.model import Durability, Limits, TopicPolicies, validate_topic
from danube.model.errors import AlreadyExistsError, LimitExceededError, TopicNotFoundError
from danube.model.ids import TopicId
from danube.model.records import SubscriptionRecord, TopicRecord

__all__ = ["Creations", "Place"]


class Creations:
    """Creates topics; see the module.

    Args:
        entering: writes the records and assignments.
        records: of the catalogue.
        subscriptions: the records of all subscriptions.
        membership: this broker in the cluster.
        limits: bound the topics and partitions.
        new_id: returns a random id.
        clock_us: microseconds since 1970.
        create_namespace: creates one.
    """

    def __init__(
        self,
        entering: Entering,
        records: CatalogueRecords,
        subscriptions: SubscriptionRows,
        membership: Membership,
        limits: Limits,
        new_id: Callable[[], int],
        clock_us: Callable[[], int],
        create_namespace: Callable[[str], Awaitable[None]],
    ) -> None:
        self._entering = entering
        self._records = records
        self._subscriptions = subscriptions
        self._membership = membership
        self._limits = limits
        self._new_id = new_id
        self._clock_us = clock_us
        self._create_namespace = create_namespace

    async def create(
        self,
        topic: str,
        durability: Durability,
        partitions: int,
        storage: str = "default",
        policies: TopicPolicies | None = None,
        place: Place | None = None,
        *,
        revocable: bool = False,
        wal: str = "",
    ) -> TopicRecord:
        """Create a plain (0 partitions) or partitioned topic in one step.

        If this is cancelled the topic may exist afterwards, unless the creation is revocable.

        Args:
            topic, durability, partitions, storage, policies: of the new topic.
            place: chooses the owners; by default this broker owns all of it.
            revocable: whether the creation is undone if it turns out that it was applied after this has failed.
            wal: of durability ``remote``; see :class:`~danube.cluster.records.Assignment`.
        """
        self._records.check_base_name(topic)
        self._records.check_partitions(topic, partitions)
        count = max(1, partitions)

        def make(reserved: int) -> TopicRecord:
            self._records.check_new_topic(topic, count + reserved)
            ids = [TopicId(self._new_id()) for _ in range(count)]
            given = policies if policies is not None else TopicPolicies()
            return TopicRecord(durability, partitions, ids, self._clock_us(), storage, given)

        new = NewTopic(self._entering, topic, count, make, Reason.CREATED, self._membership.first_epoch, place, wal)
        return await self._entering.enter(new, revocable=revocable)

    async def enlarge(
        self, topic: str, partitions: int, place: Place | None = None, *, revocable: bool = False, wal: str = ""
    ) -> TopicRecord:
        """Give a partitioned topic more partitions, and return its new record.

        Args:
            topic: its name.
            partitions: their new number; no change if it has as many already.
            place, revocable, wal: of the added ones, as for :meth:`create`.

        Raises:
            TopicNotFoundError: the topic does not exist.
            InvalidArgumentError, LimitExceededError: too many partitions.
        """
        known = self._records.find(topic)
        self._records.check_partitions(topic, partitions)

        def make(reserved: int) -> TopicRecord:
            record = self._records.find(topic)
            if record is None:
                raise TopicNotFoundError(f"topic {topic!r} was deleted while it was to get more partitions")
            added = partitions - record.partitions
            if added <= 0:
                return record
            self._records.check_room(topic, added + reserved)
            ids = [*record.topic_ids, *(TopicId(self._new_id()) for _ in range(added))]
            return msgspec.structs.replace(record, partitions=partitions, topic_ids=ids)

        count = partitions - (known.partitions if known is not None else 0)
        new = NewTopic(self._entering, topic, count, make, Reason.CREATED, self._membership.first_epoch, place, wal)
        return await self._entering.enter(new, revocable=revocable)

    async def restore(
        self,
        topic: str,
        record: TopicRecord,
        subscriptions: Mapping[TopicId, Mapping[str, SubscriptionRecord]],
        wal: str = "",
    ) -> None:
        """Enter a topic that existed elsewhere, with its ids and subscriptions. May be repeated after an interruption.

        Args:
            topic: its name; a namespace that is missing is created.
            record: its former record.
            subscriptions: by topic id and name. Their cursors are elsewhere, and durable.
            wal: as for :meth:`create`.

        Raises:
            AlreadyExistsError: another topic of this name exists.
            LimitExceededError: there are too many topics or namespaces.
        """
        namespace = validate_topic(topic).namespace
        if namespace not in self._records.namespaces:
            with suppress(AlreadyExistsError):
                await self._create_namespace(namespace)
        for topic_id in record.topic_ids:
            for subscription, entry in subscriptions.get(topic_id, {}).items():
                await self._subscriptions.enter(topic_id, subscription, entry)
        epoch = max(self._membership.first_epoch, self._membership.restored_epoch)

        def make(reserved: int) -> TopicRecord:
            if self._records.find(topic) is not None:
                raise AlreadyExistsError(f"topic {topic!r} exists already")
            if not self._records.has_room(len(record.topic_ids) + reserved):
                raise LimitExceededError(
                    f"topic {topic!r} cannot be restored: limit max_topics = {self._limits.max_topics} is reached"
                )
            return record

        # The record comes last: until then nothing of this is visible.
        new = NewTopic(self._entering, topic, len(record.topic_ids), make, Reason.FOUND, epoch, wal=wal)
        await self._entering.enter(new, revocable=True)
