"""The owner of one topic: its log, its producers (:mod:`danube.broker.intake.intake`), and its subscriptions.

There is exactly one for each plain topic or partition. A durable topic writes to the journal and shows a batch to its
subscriptions when the batch has reached the topic's durability. A topic of durability ``none`` hands it to them at once
and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio

from danube.broker.delivery.dead_letters import first_policy
from danube.broker.delivery.pump import Pump
from danube.broker.delivery.reader import Reader
from danube.broker.delivery.subscription import Subscription
from danube.broker.intake.composer import Composer
from danube.broker.intake.effective_policies import EffectivePolicies
from danube.broker.intake.intake import Intake
from danube.broker.runtime.opened_batches import OpenedBatches
from danube.broker.topic.recovered import TopicSnapshot, new_cursor
from danube.dispatch import Cursor, ReaderMachine, make_subscription
from danube.log import (
    Entry,
    Journal,
    MemoryLog,
    ProducerTable,
    StoredBatch,
    TopicLog,
)
from danube.model import (
    EARLIEST,
    LATEST,
    Rate,
    Retention,
    SubscriptionPolicy,
    SubscriptionType,
    api,
)
from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    SubscriptionNotFoundError,
    SubscriptionTypeMismatchError,
)
from danube.model.records import SubscriptionRecord, TopicRecord

if TYPE_CHECKING:
    from danube.broker.runtime.runtime import Runtime
    from danube.history import RemoteJournal
    from danube.model.records import SubscriptionRecord, TopicRecord

__all__ = ["Home", "Level", "Topic"]


class Home(Protocol):
    """What a topic asks of the directory that it is in."""

    def planned_for(self, name: str, topic_id: int, subscription: str) -> Mapping[str, Any]:
        """Return what was set for the policy of a subscription that does not exist yet."""
        ...

    async def dead_letter_topics(self, source: Topic, name: str) -> Sequence[Topic]:
        """Return the topic of a name, or its partitions, for dead letters; create it, like ``source``, if it is absent.

        Raises:
            FailedPreconditionError: it keeps nothing.
            DanubeError: it cannot be created or found now.
        """
        ...


class Level(Protocol):
    """What the durability of a topic decides about its subscriptions."""

    checkpointed: bool
    """Whether checkpoints store what its topics and cursors are."""
    sessions_may_move: bool
    """Whether another machine may take its topics over, with the sessions of their producers."""
    forgets_unsynced: bool
    """Whether a power loss may take what was acknowledged, so that an offset may stand for another message after it."""

    async def create_subscription(
        self, topic: Topic, name: str, kind: SubscriptionType, start: int, policy: SubscriptionPolicy
    ) -> Subscription:
        """Store a new subscription, and add it to the topic."""
        ...

    async def delete_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Delete a subscription, and call :meth:`Topic.remove_subscription`."""
        ...

    async def change_subscription(self, topic: Topic, subscription: Subscription, policy: SubscriptionPolicy) -> None:
        """Store another policy of a subscription, and put it into effect."""
        ...


class Topic:
    """One plain topic or partition.

    Args:
        runtime: what it may rely on.
        home: the directory it is in.
        level: what its durability decides.
        name, topic_id: its own; of a partition, not of the topic as a whole.
        record: of the topic as a whole.
        policies: what counts for it, to begin with.
        log: its log, in the journal and the storages, or in memory only.
        producers: the producers that are known.
        journal: where its control entries and batches go.
    """

    def __init__(
        self,
        runtime: Runtime,
        home: Home,
        level: Level,
        name: str,
        topic_id: int,
        record: TopicRecord,
        policies: EffectivePolicies,
        log: TopicLog | MemoryLog,
        producers: ProducerTable,
        journal: Journal | RemoteJournal,
    ) -> None:
        self._runtime = runtime
        self._home = home
        self._journal = journal
        self.level = level
        """What its durability decides."""
        self._creating = trio.Lock()
        self.name = name
        self.topic_id = topic_id
        self.durability = record.durability
        self.created_us = record.created_us
        self.kept = log
        """Its log: in the journal and the storages, or in memory only."""
        self.storage = record.storage
        """Name of the storage that its history goes to."""
        self.policies = policies
        self.producers = producers
        self.subscriptions: dict[str, Subscription] = {}
        self.readers: dict[Reader, None] = {}
        """Who reads it without a subscription."""
        self.watchers: set[trio.Event] = set()
        """Set when a message has come, or the topic has gone."""
        self.deleted: DanubeError | None = None
        """What its users are told once it is deleted."""
        self.failure: DanubeError | None = None
        """Set when stored data is damaged: the topic stops, loudly."""
        self.intake = Intake(
            self,
            producers,
            journal,
            runtime.commits,
            runtime.limits,
            self.policies,
            runtime.clock_us,
            runtime.new_id,
            runtime.held_producers,
        )
        """Where producers are, and what they send."""
        self.composer: Composer | None = None
        """Puts messages together that are sent one at a time, if there are any."""

    def __repr__(self) -> str:
        return f"<Topic {self.name} {self.durability} end={self.end_offset}>"

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
    def owner_epoch(self) -> int:
        """Under which epoch this broker owns it; 0 if it keeps nothing."""
        return self.kept.owner_epoch if isinstance(self.kept, TopicLog) else 0

    @property
    def life(self) -> int:
        """Tells offsets before a power loss from those after it, if one offset may stand for two messages; else 0."""
        return self.owner_epoch if self.level.forgets_unsynced else 0

    @property
    def sessions_may_move(self) -> bool:
        """Whether another machine may take it over, with the sessions of its producers."""
        return self.level.sessions_may_move

    @property
    def lossy(self) -> bool:
        """Whether it has no log: what finds no consumer with credit is lost."""
        return isinstance(self.kept, MemoryLog)

    @property
    def gone(self) -> bool:
        """Whether the topic was deleted, or has stopped because stored data is damaged."""
        return self.deleted is not None or self.failure is not None

    def stop(self, error: DanubeError) -> None:
        """Accept nothing more: stored data is damaged."""
        self.failure = error
        self._runtime.journal.stop_topic(self.topic_id)

    def floors(self) -> list[int]:
        """Return the cursor floors of its subscriptions."""
        return [subscription.cursor.floor for subscription in self.subscriptions.values()]

    @property
    def stored_bytes(self) -> int:
        """Bytes that the topic holds in the journal."""
        return self._runtime.journal.stored_bytes(self.topic_id)

    @property
    def opened(self) -> OpenedBatches:
        """Opened batches, shared by all topics."""
        return self._runtime.opened

    def submit(self, entry: Entry) -> None:
        """Submit a control entry to the journal."""
        self._journal.submit(entry)

    async def next_commit(self) -> None:
        """Wait until the journal has settled something."""
        await self._runtime.commits.next_commit()

    def serves(self, name: str, subscription: object) -> bool:
        """Whether the subscription of a name is still this one."""
        return self.subscriptions.get(name) is subscription

    async def dead_letter_topics(self, name: str) -> Sequence[Topic]:
        """Return the topic of a name, or its partitions, for dead letters of this one; see :class:`Home`."""
        return await self._home.dead_letter_topics(self, name)

    def start_task(self, run: Callable[[trio.CancelScope], Awaitable[None]], scope: trio.CancelScope) -> None:
        """Run a task of a subscription that ends with the broker."""
        self._runtime.start(run, scope)

    # --- Policies ---

    @property
    def retention(self) -> Retention:
        """How long it keeps messages."""
        return self.policies.values.retention or Retention()

    @property
    def message_ttl_s(self) -> float:
        """After how long messages that were not acknowledged expire; 0: never. Nothing is kept of ``none`` anyway."""
        return 0.0 if self.lossy else self.policies.values.message_ttl_s or 0.0

    def dispatch_rate(self) -> Rate:
        """Return the rate of each subscription that has none of its own."""
        return self.policies.values.dispatch_rate or Rate()

    def apply_policies(self, policies: EffectivePolicies) -> None:
        """Take other policies into account from now on."""
        self.policies = policies
        self.intake.apply_policies(policies)
        for subscription in self.subscriptions.values():
            subscription.topic_policies_changed()

    def check_subscription(self) -> None:
        """Raise LimitExceededError if no further subscription may be created."""
        limits = self._runtime.limits
        self.policies.check_room(
            f"topic {self.name!r}",
            "max_subscriptions",
            len(self.subscriptions),
            "max_subscriptions_per_topic",
            limits.max_subscriptions_per_topic,
        )

    def check_consumer(self, subscription: Subscription, name: str = "") -> None:
        """Raise LimitExceededError if no further consumer may connect to a subscription of this topic.

        Args:
            subscription: which one.
            name: of the consumer; one of the same name that is connected is replaced, so there will not be more.
        """
        present = subscription.consumers.values()
        if any(consumer.name == name for consumer in present):
            return
        limits, policies = self._runtime.limits, self.policies
        policies.check_room(
            f"subscription {subscription.name!r} of topic {self.name!r}",
            "max_consumers_per_subscription",
            len(present),
            "max_consumers_per_subscription",
            limits.max_consumers_per_subscription,
        )
        if policies.values.max_consumers is not None:
            policies.check_room(
                f"topic {self.name!r}",
                "max_consumers",
                sum(len(each.consumers) for each in self.subscriptions.values()),
            )

    async def expire_messages(self, before_us: int) -> None:
        """Settle, in all subscriptions, what was appended before a time (microseconds since the epoch).

        Raises:
            StorageError: history cannot be read now.
            DataLossError: it is damaged.
        """
        end = self.end_offset
        if self.gone or all(floor >= end for floor in self.floors()):
            return
        offset = await self.kept.offset_at(before_us)
        for subscription in list(self.subscriptions.values()):
            subscription.expire_below(offset)

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
        if self.deleted is not None:
            raise self.deleted
        if self.failure is not None:
            raise self.failure

    def arrived(self, batch: StoredBatch) -> None:
        """A batch has reached its durability: show it to the subscriptions, the kept ones at the end of the commit."""
        if isinstance(self.kept, MemoryLog):
            for pump in self.pumps():
                pump.offer(batch)
            self._wake_watchers()
            return
        if self.deleted:
            self.kept.drop()  # it was on its way when the topic went; its file must not wait for it
        if self.subscriptions or self.readers or self.watchers:
            self._runtime.commits.touch(self)

    def producer_name(self, producer_id: int) -> str:
        """Return the name of the producer of a batch; one that is forgotten goes by its id, and 0 is nobody's."""
        if not producer_id:
            return ""
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
        await found.look_again()
        return found

    async def _create_subscription(self, request: api.ConsumeOpen) -> Subscription:
        self.check_subscription()
        wanted = {**request.policy, **self.planned_for(request.subscription)}
        default = self._runtime.config.subscription_policy
        policy = first_policy(self.name, request.subscription, default, wanted)
        start = await self.resolve_position(request.start, request.start_time_us)
        return await self.level.create_subscription(self, request.subscription, request.type, start, policy)

    def planned_for(self, subscription: str) -> Mapping[str, Any]:
        """Return what was set for the policy of a subscription before it existed."""
        return self._home.planned_for(self.name, self.topic_id, subscription)

    async def created_subscription(self, name: str) -> Subscription | None:
        """Return a subscription, once those that are just being created are there; None if it does not exist."""
        async with self._creating:
            return self.subscriptions.get(name)

    def restore_subscription(self, name: str, record: SubscriptionRecord, cursor: Cursor | None) -> Subscription:
        """Bring a stored subscription to life: with its recovered cursor, or as a new one."""
        found = cursor if cursor is not None else new_cursor(record, self._runtime.limits)
        subscription = self.add_subscription(name, record.subscription_id, record.type, found, record.policy)
        subscription.record = record
        if cursor is not None:
            subscription.restored()
        return subscription

    def add_subscription(
        self, name: str, subscription_id: int, kind: SubscriptionType, cursor: Cursor, policy: SubscriptionPolicy
    ) -> Subscription:
        """Register a subscription."""
        machine = make_subscription(kind, cursor, self._runtime.limits, policy, lossy=self.lossy)
        subscription = Subscription(self._runtime, self, name, subscription_id, kind, cursor, machine)
        self.subscriptions[name] = subscription
        return subscription

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription and disconnect its consumers. Cancelling gives up the waiting, not the deletion.

        Raises:
            SubscriptionNotFoundError: there is none of this name.
            DanubeError: it cannot be deleted now, and is still there.
        """
        await self._runtime.finish(partial(self._delete_subscription, name))

    async def _delete_subscription(self, name: str) -> None:
        async with self._creating:  # one of the same name is not made before all of this one has gone
            subscription = self.subscriptions.get(name)
            if subscription is None:
                raise SubscriptionNotFoundError(f"topic {self.name!r} has no subscription {name!r}")
            await self.level.delete_subscription(self, subscription)

    def remove_subscription(self, subscription: Subscription) -> None:
        """Disconnect the consumers of a subscription that is deleted, and forget it."""
        self.subscriptions.pop(subscription.name, None)
        subscription.close(
            SubscriptionNotFoundError(f"subscription {subscription.name!r} of topic {self.name!r} was deleted")
        )

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

    async def open_reader(self, request: api.ConsumeOpen) -> Reader:
        """Return a reader for who reads without a subscription.

        Raises:
            LimitExceededError: too many readers.
        """
        limits = self._runtime.limits
        if len(self.readers) >= limits.max_readers_per_topic:
            raise LimitExceededError(
                f"topic {self.name!r}: limit max_readers_per_topic = {limits.max_readers_per_topic} is reached"
            )
        start = await self.resolve_position(request.start, request.start_time_us)
        if self.lossy:
            return Reader(self, make_subscription(SubscriptionType.EXCLUSIVE, Cursor(start), limits, lossy=True))
        return Reader(self, ReaderMachine(limits, start))

    def pumps(self) -> list[Pump]:
        """Return everything that takes messages out of the topic."""
        return [*self.subscriptions.values(), *self.readers]

    def pump(self) -> None:
        """Let every subscription and reader deliver what it can."""
        for pump in self.pumps():
            if pump.consumers:
                pump.pump()
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for watcher in self.watchers:
            watcher.set()

    def end(self, error: DanubeError) -> None:
        """Disconnect everybody: the topic is deleted."""
        self.deleted = error
        self.disconnect(error)
        for subscription in self.subscriptions.values():
            subscription.close(error)
        self._wake_watchers()

    def disconnect(self, error: DanubeError) -> None:
        """End the streams of all producers and consumers with an error."""
        self.intake.end(error)
        for pump in self.pumps():
            pump.end(error)
