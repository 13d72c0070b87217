"""The directory: the topics that this broker serves; finds, creates, enlarges, unloads and deletes them.

A name stands for a plain topic, for a partition, or (as the base name of a partitioned topic) for all its partitions.
The catalogue holds the records; the directory holds the topics that are served. A topic with a record that is not in
the directory is being created or deleted, or its storage is unavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from danube.broker.delivery.expiry import MessageExpiry
from danube.broker.durability import Levels
from danube.broker.runtime.config import DEFAULT_STORAGE
from danube.broker.runtime.named_locks import NamedLocks
from danube.broker.topic.topic import Topic
from danube.model import Durability, TopicPolicies, api, partition_name, validate_name, validate_topic
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import TopicId
from danube.model.names import split_partition
from danube.model.records import TopicRecord, members

if TYPE_CHECKING:
    from danube.broker.catalogue.catalogue import Catalogue
    from danube.broker.catalogue.policy_book import PolicyBook
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.durability.level import Level
    from danube.broker.runtime.runtime import Runtime
    from danube.history import History

__all__ = ["Directory", "names_behind"]

_log = logging.getLogger("danube.broker")

_METADATA_RETRY_S: Final = 1.0


class Directory:
    """The topics of one broker.

    Args:
        runtime: of the broker.
        catalogue, policies: the stored records and policies of topics.

    Attributes:
        history: the sealed history of all topics that have one.
        levels: one object for each durability.
        expiry: expires messages of topics with a time to live.
        version: changes whenever a topic or partition is added or removed, and with each start of the broker.
        watchers: events to set when a topic or partition is added or removed.
        restoring: held while topics are restored from a bucket.
    """

    history: History
    levels: Levels

    def __init__(self, runtime: Runtime, catalogue: Catalogue, policies: PolicyBook) -> None:
        self.runtime = runtime
        self.catalogue = catalogue
        self.policies = policies
        self.expiry = MessageExpiry(self.kept_topics, runtime.clock_us)
        self.version = runtime.clock_us()
        self.watchers: set[trio.Event] = set()
        self.restoring = trio.Lock()
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._creating = NamedLocks()
        self._deleting = NamedLocks()

    def level(self, record: TopicRecord) -> Level:
        """Return the level of a topic, by its durability."""
        return self.levels.of(record.durability)

    # --- Lookup ---

    def __len__(self) -> int:
        return len(self._topics)

    def topics(self) -> list[Topic]:
        """Return all topics and partitions."""
        return list(self._topics.values())

    def kept_topics(self) -> list[Topic]:
        """Return the topics and partitions that have a log."""
        return [topic for topic in self._topics.values() if not topic.lossy]

    def living(self, name: str, record: TopicRecord) -> list[Topic]:
        """Return the topic of a record, or its partitions, as far as they are served."""
        return [self._topics[each] for each, _ in members(name, record) if each in self._topics]

    def find(self, name: str) -> Topic:
        """Return a plain topic or a partition.

        Raises:
            TopicNotFoundError: it does not exist.
            InvalidArgumentError: it is the base name of a partitioned topic.
            StorageUnavailableError: its storage is unavailable.
        """
        topic = self._topics.get(name)
        if topic is None:
            validate_topic(name)
            record, _ = self.catalogue.locate(name)
            raise self.level(record).unavailable(name, record) or TopicNotFoundError(
                f"topic {name!r} is being created or deleted; try again"
            )
        return topic

    def snapshot_of(self, topic_id: TopicId) -> bytes | None:
        """Return the state of a topic for the journal; None if the topic is not served, or stored elsewhere."""
        topic = self._by_id.get(topic_id)
        if topic is None or topic.deleted is not None or not topic.level.checkpointed:
            return None
        return topic.whole_snapshot()

    def resolve(self, name: str) -> list[Topic]:
        """Return the topic, or all partitions of a partitioned base name; raises as :meth:`find`."""
        record = self.catalogue.find(name)
        return [self.find(each) for each in names_behind(name, record)]

    def subscriptions(self, topic: str, subscription: str) -> list[tuple[Topic, Subscription]]:
        """Return a subscription of a topic, or of all partitions that have it, each with its topic or partition.

        Raises:
            SubscriptionNotFoundError: neither the topic nor a partition has it.
            TopicNotFoundError: the topic does not exist.
        """
        validate_topic(topic)
        validate_name("subscription", subscription)
        topics = self.resolve(topic)
        found = [(each, each.subscriptions[subscription]) for each in topics if subscription in each.subscriptions]
        if not found:
            raise SubscriptionNotFoundError(
                f"topic {topic!r} has no subscription {subscription!r}; list them with:"
                f" danube subscriptions list {topic}"
            )
        return found

    # --- Changes ---

    def adopt(self, topic: Topic) -> None:
        """Add a topic, which is served from now on."""
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._changed()
        if not topic.lossy:
            self.history.add_topic(topic)
        if topic.message_ttl_s:
            self.expiry.look_again()

    def _changed(self) -> None:
        self.version += 1
        for watcher in self.watchers:
            watcher.set()

    async def for_producer(self, request: api.PublishOpen) -> Topic:
        """Return the topic that a producer publishes to; create it if the configuration allows that.

        Raises:
            TopicNotFoundError: it does not exist, and may not be created.
            DanubeError: it cannot be created now.
        """
        name = request.topic
        validate_name("producer", request.producer_name)
        found = self._topics.get(name)
        if found is not None:
            return found
        validate_topic(name)
        try:
            self.catalogue.locate(name)
        except TopicNotFoundError:
            if not self.runtime.config.auto_create_topics:
                raise
            split = split_partition(name)
            base, partitions = (split[0], request.partitions) if split else (name, 0)
            if split and not partitions:
                raise
            async with self._creating.hold(base):
                if self.catalogue.find(base) is None:
                    await self.create(base, request.durability, partitions)
        return self.find(name)

    async def ensure(self, name: str, durability: Durability) -> Topic:
        """Return a topic or a partition; create or enlarge its topic on demand, for clients that never create topics.

        A client of the upstream protocol opens a producer on each partition by its full name, and never states the
        number of partitions. A missing partition therefore creates its partitioned topic, or enlarges it.

        Args:
            name: of a plain topic or of a partition.
            durability: of a topic that is created.

        Raises:
            AlreadyExistsError: a partition of a plain topic, or the base name of a partitioned one.
            TopicNotFoundError: it does not exist, and may not be created.
            UnavailableError: it is being created or deleted; try again.
            InvalidArgumentError, LimitExceededError: there would be too many partitions or topics.
        """
        with suppress(TopicNotFoundError, InvalidArgumentError):
            return self.find(name)  # without waiting for topics that are being created
        validate_topic(name)
        split = split_partition(name)
        base, wanted = (split[0], split[1] + 1) if split else (name, 0)
        async with self._creating.hold(base):
            record = self.catalogue.find(base)
            if record is not None and bool(record.partitions) is not bool(split):
                raise AlreadyExistsError(
                    f"topic {base!r} has {record.partitions or 'no'} partitions; {name!r} cannot be created beside it"
                )
            if record is None or record.partitions < wanted:
                if not self.runtime.config.auto_create_topics:
                    self.catalogue.locate(name)  # raises, with advice
                if record is None:
                    await self.create(base, durability, wanted)
                else:
                    await self.level(record).enlarge(base, record, wanted)
        try:
            return self.find(name)
        except TopicNotFoundError as error:
            raise UnavailableError(error.message) from error

    async def create(
        self,
        name: str,
        durability: Durability | None,
        partitions: int,
        storage: str = "",
        policies: TopicPolicies | None = None,
    ) -> TopicRecord:
        """Create a topic, and serve it.

        Args:
            name: of a plain topic, or the base name of a partitioned one.
            durability: None: the broker's default.
            partitions: how many; 0: a plain topic.
            storage: the storage of its history; empty: the default one.
            policies: of the topic.

        Raises:
            InvalidArgumentError: the storage is not configured, or the name or a value is invalid.
            AlreadyExistsError: a topic of this name exists.
            DanubeError: it cannot be created now.
        """
        storage = storage or DEFAULT_STORAGE
        if storage not in self.history.storages:
            known = ", ".join(sorted(self.history.storages))
            raise InvalidArgumentError(
                f"topic {name!r} cannot be created: storage {storage!r} is not configured; configured are {known}"
            )
        durability = durability or self.runtime.config.durability
        return await self.levels.of(durability).create(name, durability, partitions, storage, policies)

    async def unload(self, name: str) -> None:
        """Disconnect all producers and consumers of a topic (they reconnect), and seal all its messages.

        Raises:
            StorageError: sealing failed.
        """
        record = self.catalogue.find(name)
        topics = [self.find(each) for each, _ in members(name, record)] if record is not None else [self.find(name)]
        for topic in topics:
            topic.disconnect(UnavailableError(f"topic {topic.name!r} was unloaded; connect again"))
            for subscription in topic.subscriptions.values():
                subscription.forget_failure()
            await topic.intake.wait_settled()
        await self.history.seal_now(topics)

    async def delete(self, name: str) -> None:
        """Delete a topic: none of its data is reachable when this returns. Cancellation stops the waiting only."""
        known = self.catalogue.find(name)
        if known is not None:
            await self.level(known).prepare_change(known)
        done = trio.Event()
        failed: list[Exception] = []

        async def delete() -> None:
            try:
                await self._delete(name)
            except Exception as error:  # noqa: BLE001 - raised to the caller, as if it had called this itself
                failed.append(error)
            finally:
                done.set()

        # A topic that lost only its record would be sealed and merged forever.
        self.runtime.start(delete)
        await done.wait()
        if failed:
            raise failed[0]

    async def _delete(self, name: str) -> None:
        async with self._deleting.hold(name):
            record = await self.level(self.catalogue.expect(name)).delete(name, self._end)
            self._changed()
            await self.levels.bucket.serve_withheld(name)
        if self.level(record).checkpointed:
            await self.runtime.journal.bury(record.topic_ids)
        await self._forget(name, record)
        for topic_id in record.topic_ids:
            while True:
                try:
                    await self.history.drop_topic(topic_id, name)
                    break
                except UnavailableError as error:
                    _log.warning(
                        "the history of deleted topic %r cannot be removed from the catalogue; retrying later: %s",
                        name,
                        error,
                    )
                    await trio.sleep(_METADATA_RETRY_S)

    async def _forget(self, name: str, record: TopicRecord) -> None:
        """Remove the catalogue's note of a deletion, which the journal has noted; else the next start does it."""
        try:
            await self.catalogue.buried(record.topic_ids)
        except UnavailableError as error:
            _log.warning("the note that topic %r was deleted is removed at the next start: %s", name, error)

    async def _end(self, name: str, record: TopicRecord) -> None:
        """Serve a topic that is being deleted no longer; return when nothing that was submitted is pending."""
        # Remove all of them first: while one settles, a topic of the same name may be created.
        gone = [self._topics.pop(topic_name, None) for topic_name, _ in members(name, record)]
        for topic in filter(None, gone):
            self._by_id.pop(topic.topic_id, None)
        self._changed()
        for topic in filter(None, gone):
            topic.end(TopicNotFoundError(f"topic {topic.name!r} was deleted"))
        for topic in filter(None, gone):
            await topic.intake.wait_settled()  # a submitted batch keeps its journal file in use once it is written

    # --- Requests of topics ---

    def planned_for(self, name: str, topic_id: TopicId, subscription: str) -> Mapping[str, Any]:
        """Return the policy changes that were planned for a subscription that does not exist yet."""
        try:
            record, _ = self.catalogue.locate(name)
        except DanubeError:
            return {}  # deleted; its callers detect that themselves
        return record.planned_for(topic_id, subscription)

    async def dead_letter_topics(self, source: Topic, name: str) -> Sequence[Topic]:
        """Return the topic of a name, or its partitions, for dead letters; create it, like ``source``, if it is absent.

        Raises:
            FailedPreconditionError: it stores no messages.
            DanubeError: it cannot be created or found now.
        """
        if self.catalogue.find(name) is None and split_partition(name) is None:
            try:
                await self.create(name, source.durability, 0, source.storage)
            except AlreadyExistsError:
                _log.debug("another subscription has just created %s", name)
        topics = self.resolve(name)
        if topics[0].lossy:
            raise FailedPreconditionError(
                f"topic {name!r} keeps nothing (durability 'none') and cannot hold dead letters; name another"
                " dead_letter_topic"
            )
        return topics


def names_behind(name: str, record: TopicRecord | None) -> list[str]:
    """Return the names of the topics behind a name: itself, or all partitions if ``record`` is of a partitioned topic.

    Raises:
        TopicNotFoundError: a partitioned topic has no partitions.
    """
    if record is None or not record.partitions:
        return [name]
    if not record.topic_ids:
        raise TopicNotFoundError(f"topic {name!r} has no partitions")
    return [partition_name(name, index) for index in range(record.partitions)]
