"""The owner of one topic: its log, its producers (:mod:`danube.broker.producing`), and its subscriptions.

There is exactly one for each plain topic or partition. A durable topic writes to the journal and shows a batch to its
subscriptions when the batch has reached the topic's durability. A topic of durability ``none`` hands it to them at once
and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
import trio

from danube.broker.catalogue import SubscriptionRecord, TopicRecord
from danube.broker.memory_log import MemoryLog
from danube.broker.opened import OpenedBatches
from danube.broker.producing import Intake
from danube.broker.settling import Settling
from danube.broker.state import TopicSnapshot, TopicState, new_cursor
from danube.broker.subscription import Subscription
from danube.dispatch import Cursor, make_subscription
from danube.history import RemoteJournal, RemoteTopicState, SubscriptionDeleted, SubscriptionStored, encode_change
from danube.log import (
    BatchCache,
    Entry,
    EntryType,
    Journal,
    ProducerTable,
    RecoveredTopic,
    StoredBatch,
    TopicLog,
)
from danube.model import (
    EARLIEST,
    LATEST,
    Durability,
    Retention,
    SubscriptionType,
    api,
    partition_name,
)
from danube.model.errors import (
    DanubeError,
    DataLossError,
    InvalidArgumentError,
    LimitExceededError,
    SubscriptionNotFoundError,
    SubscriptionTypeMismatchError,
)

if TYPE_CHECKING:
    from danube.broker.broker import Broker

__all__ = ["Topic", "members"]


class Topic:
    """One plain topic or partition."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        topic_id: int,
        durability: Durability,
        created_us: int,
        log: TopicLog | MemoryLog,
        producers: ProducerTable,
        storage: str,
        retention: Retention,
        journal: Journal | RemoteJournal,
    ) -> None:
        self._broker = broker
        self._journal = journal
        self._creating = trio.Lock()
        self.name = name
        self.topic_id = topic_id
        self.durability = durability
        self.created_us = created_us
        self.kept = log
        """Its log: in the journal and the storages, or in memory only."""
        self.storage = storage
        """Name of the storage that its history goes to."""
        self.retention = retention
        self.producers = producers
        self.subscriptions: dict[str, Subscription] = {}
        self.deleted: DanubeError | None = None
        """What its users are told once it is deleted."""
        self.failure: DanubeError | None = None
        """Set when stored data is damaged: the topic stops, loudly."""
        self.intake = Intake(
            self,
            producers,
            journal,
            broker,
            broker.config.limits,
            broker.seams.wall_clock_us,
            broker.catalogue.new_id,
        )
        """Where producers are, and what they send."""

    def __repr__(self) -> str:
        return f"<Topic {self.name} {self.durability} end={self.end_offset}>"

    @classmethod
    def fresh(cls, broker: Broker, name: str, topic_id: int, record: TopicRecord, cache: BatchCache) -> Topic:
        """Bring a new topic to life."""
        return cls.restored(broker, name, topic_id, record, cache, None, None)

    @classmethod
    def restored(
        cls,
        broker: Broker,
        name: str,
        topic_id: int,
        record: TopicRecord,
        cache: BatchCache,
        recovered: RecoveredTopic | None,
        found: TopicState | None,
    ) -> Topic:
        """Bring a topic to life from what recovery found of it."""
        producers = found.producers if found is not None else ProducerTable(broker.config.limits, name)
        if recovered is not None:
            producers.apply_batches(recovered.producers)
        log: TopicLog | MemoryLog
        failure: DataLossError | None = None
        if record.durability is Durability.NONE:
            log = MemoryLog(topic_id)
        else:
            history = broker.history.catalogue.find(topic_id)
            start = history.start_offset if history is not None else 0
            sealed = max(start, history.end_offset if history is not None else 0)
            # What the journal holds is the truth about the end; a snapshot only speaks for batches that it has lost.
            known_end = found.end_offset if found is not None and recovered is None else 0
            first = recovered.first_offset if recovered is not None else known_end
            if first > sealed and record.durability is Durability.DISK:
                failure = DataLossError(
                    f"topic {name!r}: offsets [{sealed}, {first}) are neither sealed nor in the journal; restore the"
                    " journal's files from a copy, or delete the topic"
                )
            log = TopicLog(
                topic_id,
                record.durability,
                broker.journal,
                cache,
                broker.history.catalogue.epoch,
                known_end,
                start,
                recovered,
                sealed_offset=max(sealed, first) if failure is None else sealed,
                sealed=broker.history.reader,
                on_unsealed=broker.history.sealer.unsealed,
                seal_bytes=broker.config.limits.segment_bytes,
            )
        topic = cls(
            broker,
            name,
            topic_id,
            record.durability,
            record.created_us,
            log,
            producers,
            record.storage,
            record.retention,
            broker.journal,
        )
        topic.failure = failure
        return topic

    @classmethod
    def remote(
        cls,
        broker: Broker,
        name: str,
        topic_id: int,
        record: TopicRecord,
        journal: RemoteJournal,
        recovered: RemoteTopicState,
        found: TopicState | None,
    ) -> Topic:
        """Bring a topic of durability ``remote`` to life, from what its bucket tells of it."""
        producers = found.producers if found is not None else ProducerTable(broker.config.limits, name)
        producers.apply_batches(recovered.producers)
        history = broker.history.catalogue.find(topic_id)
        end = recovered.next_offset
        log = TopicLog(
            topic_id,
            Durability.REMOTE,
            broker.journal,
            broker.cache,
            broker.history.catalogue.epoch,
            end,
            history.start_offset if history is not None else 0,
            sealed_offset=end,
            sealed=broker.history.reader,
            submitter=journal,
        )
        return cls(
            broker,
            name,
            topic_id,
            Durability.REMOTE,
            record.created_us,
            log,
            producers,
            record.storage,
            record.retention,
            journal,
        )

    def snapshot(self) -> bytes:
        """Return what a checkpoint stores."""
        return msgspec.msgpack.encode(TopicSnapshot(self.end_offset, self.producers.snapshot()))

    @property
    def end_offset(self) -> int:
        """The offset behind the last message that consumers may see."""
        return self.kept.end_offset

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self.kept.start_offset

    @property
    def log(self) -> TopicLog:
        """The log of a topic that is kept (of any durability but ``none``)."""
        assert isinstance(self.kept, TopicLog)
        return self.kept

    @property
    def gone(self) -> bool:
        """Whether the topic was deleted, or has stopped because stored data is damaged."""
        return self.deleted is not None or self.failure is not None

    def stop(self, error: DataLossError) -> None:
        """Accept nothing more: stored data is damaged."""
        self.failure = error

    def floors(self) -> list[int]:
        """Return the cursor floors of its subscriptions."""
        return [subscription.cursor.floor for subscription in self.subscriptions.values()]

    @property
    def stored_bytes(self) -> int:
        """Bytes that the topic holds in the journal."""
        return self._broker.journal.stored_bytes(self.topic_id)

    @property
    def max_send_buffer_bytes(self) -> int:
        """How much may wait for one consumer to read."""
        return self._broker.config.limits.max_send_buffer_bytes

    @property
    def opened(self) -> OpenedBatches:
        """Opened batches, shared by all topics."""
        return self._broker.opened

    def submit(self, entry: Entry) -> None:
        """Submit a control entry to the journal."""
        self._journal.submit(entry)

    async def next_commit(self) -> None:
        """Wait until the journal has settled something."""
        await self._broker.next_commit()

    def start_task(self, run: Callable[[trio.CancelScope], Awaitable[None]], scope: trio.CancelScope) -> None:
        """Run a task of a subscription inside the broker's nursery."""
        self._broker.nursery.start_soon(run, scope)

    # --- Producers ---

    def check_not_deleted(self) -> None:
        """Raise if the topic was deleted while somebody was about to use it."""
        if self.deleted is not None:
            raise self.deleted

    def check_alive(self) -> None:
        """Raise if the topic was deleted, or has stopped because stored data is damaged.

        Raises:
            TopicNotFoundError: it was deleted.
            DataLossError: it has stopped.
        """
        self.check_not_deleted()
        if self.failure is not None:
            raise self.failure

    def arrived(self, batch: StoredBatch) -> None:
        """A batch has reached its durability: show it to the subscriptions, the kept ones at the end of the commit."""
        if isinstance(self.kept, MemoryLog):
            for subscription in self.subscriptions.values():
                subscription.offer(batch)
            return
        if self.deleted:
            self.kept.drop()  # it was on its way when the topic went; its file must not wait for it
        if self.subscriptions:
            self._broker.touch(self)

    def producer_name(self, producer_id: int) -> str:
        """Return the name of the producer of a batch; one that is forgotten goes by its id."""
        return self.producers.name_of(producer_id) or f"{producer_id:016x}"

    # --- Subscriptions ---

    async def subscribe(self, request: api.ConsumeOpen) -> Subscription:
        """Return the subscription that a consumer asks for; create it if there is none.

        Raises:
            SubscriptionTypeMismatchError: it exists with another type.
            LimitExceededError: too many subscriptions.
        """
        found = self.subscriptions.get(request.subscription)
        if found is None:
            async with self._creating:
                found = self.subscriptions.get(request.subscription)
                if found is None:
                    found = await self._create_subscription(request)
        if found.creation is not None:
            await found.creation.wait()
        if found.kind is not request.type:
            raise SubscriptionTypeMismatchError(
                f"subscription {request.subscription!r} of topic {self.name!r} is {found.kind.value}, not"
                f" {request.type.value}; its type is fixed by its first consumer"
            )
        return found

    async def _create_subscription(self, request: api.ConsumeOpen) -> Subscription:
        limit = self._broker.config.limits.max_subscriptions_per_topic
        if len(self.subscriptions) >= limit:
            raise LimitExceededError(f"topic {self.name!r}: limit max_subscriptions_per_topic = {limit} is reached")
        start = await self.resolve_position(request.start, request.start_time_us)
        if self.durability is Durability.NONE:
            return self.add_subscription(
                request.subscription, self._broker.catalogue.new_id(), request.type, Cursor(start)
            )
        if self.durability is Durability.REMOTE:
            return self._create_remote(request.subscription, request.type, start)
        record = await self._broker.catalogue.create_subscription(
            self.topic_id, request.subscription, request.type, start
        )
        self.check_not_deleted()
        return self.restore_subscription(request.subscription, record, None)

    def _create_remote(self, name: str, kind: SubscriptionType, start: int) -> Subscription:
        # It is there before its entry is submitted: a snapshot of the journal must not know less than its commits.
        broker = self._broker
        record = SubscriptionRecord(broker.catalogue.new_id(), kind, start, broker.seams.wall_clock_us())
        found = self.restore_subscription(name, record, None)
        found.creation = Settling()
        self._submit_change(SubscriptionStored(self.topic_id, name, broker.catalogue.encode(record)), found.creation)
        return found

    def _submit_change(self, change: SubscriptionStored | SubscriptionDeleted, owner: Settling) -> None:
        self.submit(Entry(EntryType.TOPIC, self.topic_id, self.durability, (encode_change(change),), owner))

    def restore_subscription(self, name: str, record: SubscriptionRecord, cursor: Cursor | None) -> Subscription:
        """Bring a stored subscription to life: with its recovered cursor, or as a new one."""
        found = cursor if cursor is not None else new_cursor(record, self._broker.config.limits)
        subscription = self.add_subscription(name, record.subscription_id, record.type, found)
        subscription.record = record
        if cursor is not None:
            subscription.restored()
        return subscription

    def add_subscription(self, name: str, subscription_id: int, kind: SubscriptionType, cursor: Cursor) -> Subscription:
        """Register a subscription."""
        machine = make_subscription(
            kind,
            cursor,
            self._broker.config.limits,
            self._broker.config.subscription_policy,
            lossy=self.durability is Durability.NONE,
        )
        subscription = Subscription(self, name, subscription_id, kind, cursor, machine)
        self.subscriptions[name] = subscription
        return subscription

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription and disconnect its consumers."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is None:
            raise SubscriptionNotFoundError(f"topic {self.name!r} has no subscription {name!r}")
        if self.durability is Durability.REMOTE:
            deletion = Settling()
            self._submit_change(SubscriptionDeleted(self.topic_id, name), deletion)
            await deletion.wait()
        elif self.durability is not Durability.NONE:
            await self._broker.catalogue.delete_subscription(self.topic_id, name, subscription.subscription_id)
        subscription.end(SubscriptionNotFoundError(f"subscription {name!r} of topic {self.name!r} was deleted"))

    async def resolve_position(self, position: str | int, time_us: int) -> int:
        """Turn ``earliest``, ``latest``, an offset or (if not 0) a time into an offset within the log."""
        if time_us:
            return await self.kept.offset_at(time_us)
        if position == EARLIEST:
            return self.start_offset
        if position == LATEST:
            return self.end_offset
        if isinstance(position, int) and position >= 0:
            return min(max(position, self.start_offset), self.end_offset)
        raise InvalidArgumentError(
            f"start position {position!r} is not valid; use 'earliest', 'latest', an offset of 0 or more, or a time"
        )

    def pump(self) -> None:
        """Let every subscription deliver what it can."""
        for subscription in self.subscriptions.values():
            if subscription.consumers:
                subscription.pump()

    def end(self, error: DanubeError) -> None:
        """Disconnect everybody: the topic is deleted."""
        self.deleted = error
        self.disconnect(error)

    def disconnect(self, error: DanubeError) -> None:
        """End the streams of all producers and consumers with an error."""
        self.intake.end(error)
        for subscription in self.subscriptions.values():
            subscription.end(error)


def members(name: str, record: TopicRecord) -> list[tuple[str, int]]:
    """Return the names and ids of the topics and partitions that a record stands for."""
    if not record.partitions:
        return [(name, record.topic_ids[0])]
    return [(partition_name(name, index), topic_id) for index, topic_id in enumerate(record.topic_ids)]
