"""A topic: owns its log, its producers (:mod:`danube.broker.intake.intake`), and its subscriptions.

There is exactly one instance for each plain topic or partition. A durable topic writes to the journal and makes a batch
visible to its subscriptions once the batch has reached the topic's durability. A topic of durability ``none`` passes it
to them at once and stores nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import trio

from danube.broker.delivery.pump import Pump
from danube.broker.delivery.subscription import Subscription
from danube.broker.delivery.topic_reader import TopicReader
from danube.broker.intake.composer import Composer
from danube.broker.intake.effective_policies import EffectivePolicies
from danube.broker.intake.intake import Intake
from danube.broker.runtime.opened_batches import OpenedBatches
from danube.broker.runtime.token_bucket import SharedBucket
from danube.broker.security.caller import require_dead_letters
from danube.broker.topic.recovered import TopicSnapshot, new_cursor
from danube.cluster.gaps import GapState, open_ranges
from danube.dispatch import MOST_PAST, Cursor, PastDelivery, ReaderMachine, make_subscription
from danube.history.tenure import offset_life
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
from danube.model.dead_letters import dead_letter_topic, first_policy, sets_dead_letters
from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    SubscriptionNotFoundError,
    SubscriptionTypeMismatchError,
)
from danube.model.ids import Offset, OwnerEpoch, ProducerId, TopicId
from danube.model.records import SubscriptionRecord, TopicRecord

if TYPE_CHECKING:
    from danube.broker.delivery.forwarding import ForwardedTopic
    from danube.broker.runtime.runtime import Runtime
    from danube.broker.runtime.subjects import SubjectSchemas
    from danube.cluster.gaps import GapRecord
    from danube.history import RemoteJournal
    from danube.model.records import SubscriptionRecord, TopicRecord

__all__ = ["Home", "Level", "Topic"]

_QUIET_POLL_S: Final = 0.01


class Home(Protocol):
    """The part of the directory that a topic uses."""

    def planned_for(self, name: str, topic_id: TopicId, subscription: str) -> Mapping[str, Any]:
        """Return the policy changes that were planned for a subscription that does not exist yet."""
        ...

    def gaps_of(self, topic_id: TopicId) -> Sequence[GapRecord]:
        """Return the declared gaps of a topic or partition, in order."""
        ...

    async def dead_letter_topics(self, source: Topic, name: str) -> Sequence[Topic | ForwardedTopic]:
        """Return the topic of a name, or its partitions, for dead letters; create it, like ``source``, if it is absent.

        Raises:
            FailedPreconditionError: it stores no messages.
            DanubeError: it cannot be created or found now.
        """
        ...


class Level(Protocol):
    """The part of the durability level that a topic uses."""

    checkpointed: bool
    """Whether snapshots in the journal hold the state of its topics and cursors."""
    commits_to_storage: bool
    """Whether batches of its topics are committed to their storage, and sealed there."""
    sessions_may_move: bool
    """Whether another machine may take its topics over, with the sessions of their producers."""
    forgets_unsynced: bool
    """Whether a power loss may lose acknowledged messages, so that an offset may stand for another message after it."""

    def check_states(self, what: str, topics: int = 0) -> None:
        """Raise LimitExceededError if the states of topics take so much space that nothing may be added."""
        ...

    async def create_subscription(
        self, topic: Topic, name: str, kind: SubscriptionType, start: Offset, policy: SubscriptionPolicy
    ) -> Subscription:
        """Store a new subscription, and add it to the topic."""
        ...

    async def delete_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Delete a subscription, and call :meth:`Topic.remove_subscription`."""
        ...

    async def change_subscription(self, topic: Topic, subscription: Subscription, policy: SubscriptionPolicy) -> None:
        """Store another policy of a subscription, and apply it."""
        ...


class Topic:
    """One plain topic or partition.

    Args:
        runtime: services of the broker.
        home: the directory that serves it.
        level: its durability level.
        name, topic_id: its own; of a partition, not of the topic as a whole.
        record: of the topic as a whole.
        policies: its initial effective policies.
        log: its log, in the journal and the storages, or in memory only.
        producers: its known producers.
        journal: where its control entries and batches are written.
    """

    def __init__(
        self,
        runtime: Runtime,
        home: Home,
        level: Level,
        name: str,
        topic_id: TopicId,
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
        """Its durability level."""
        self._creating = trio.Lock()
        self.name = name
        self.topic_id = topic_id
        self.durability = record.durability
        self.created_us = record.created_us
        self.kept = log
        """Its log: in the journal and the storages, or in memory only."""
        self.storage = record.storage
        """Name of the storage of its history."""
        self.policies = policies
        self.schema_subject = record.schema_subject
        """Subject of the schemas of its messages; empty: none."""
        self.producers = producers
        self.subscriptions: dict[str, Subscription] = {}
        self.readers: dict[TopicReader, None] = {}
        """Its readers (consumers without a subscription)."""
        self.watchers: set[trio.Event] = set()
        """Set when a message has arrived, or the topic was deleted."""
        self._stays_frozen = False
        self.deleted: DanubeError | None = None
        """Error returned to callers after the topic is deleted."""
        self.move = 0
        """The move that has brought it to this broker, if the journal has to tell; 0: none."""
        self.move_epoch = 0
        """The epoch of that move."""
        self.life = offset_life(log.owner_epoch) if level.forgets_unsynced else 0
        """Distinguishes offsets before a power loss from those after it, if one may stand for two messages; else 0. It
        moves with the topic: then each offset stands for the same message."""
        self._gap_states = {gap.start: gap.state for gap in self.gaps}
        self._frozen: trio.Event | None = None
        self.failure: DanubeError | None = None
        """Set when stored data is damaged: the topic stops with this error."""
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
            lambda: runtime.namespace_rates.of_topic(name),
            lambda: runtime.namespace_spaces.of_topic(name),
            runtime.publish_figures,
            self._schemas,
        )
        """Its producers and their batches."""
        self.composer: Composer | None = None
        """Composes messages that are sent one at a time into batches; None until there are any."""

    def __repr__(self) -> str:
        return f"<Topic {self.name} {self.durability} end={self.end_offset}>"

    def snapshot(self, *, moves: bool = False) -> bytes:
        """Return its state without its cursors, for a snapshot in a bucket; ``moves``: as :meth:`whole_snapshot`."""
        state = TopicSnapshot(self.end_offset, self.producers.snapshot())
        if moves:
            state.deliveries = self._past_deliveries()
        return msgspec.msgpack.encode(state)

    def whole_snapshot(self, *, moves: bool = False) -> bytes:
        """Return its state with its cursors, for a snapshot in the journal.

        Args:
            moves: add what is known of messages that were delivered before, which a restart forgets.
        """
        cursors = [subscription.snapshot() for subscription in self.subscriptions.values()]
        state = TopicSnapshot(self.end_offset, self.producers.snapshot(), cursors, self.move, self.move_epoch)
        if moves:
            state.deliveries = self._past_deliveries()
            state.life = self.life
        return msgspec.msgpack.encode(state)

    def _past_deliveries(self) -> dict[int, list[PastDelivery]]:
        found: dict[int, list[PastDelivery]] = {}
        left, now = MOST_PAST, trio.current_time()
        for subscription in self.subscriptions.values():
            past = subscription.machine.past_deliveries(left, now)
            left -= len(past)
            if past:
                found[subscription.subscription_id] = past
        return found

    def recall(self, deliveries: Mapping[int, Sequence[PastDelivery]]) -> None:
        """Have its subscriptions go on with attempts and pauses that they had at another broker, before any consumer.

        Args:
            deliveries: by the ids of the subscriptions.
        """
        for subscription in self.subscriptions.values():
            past = deliveries.get(subscription.subscription_id)
            if past:
                subscription.machine.recall(past, trio.current_time())

    @property
    def end_offset(self) -> Offset:
        """The offset after the last message that consumers may see."""
        return self.kept.end_offset

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""
        return self.kept.start_offset

    @property
    def log(self) -> TopicLog:
        """The log of a topic that stores messages (of any durability but ``none``)."""
        assert isinstance(self.kept, TopicLog)
        return self.kept

    @property
    def owner_epoch(self) -> OwnerEpoch:
        """The epoch under which this broker owns it."""
        return self.kept.owner_epoch

    def check_states(self, what: str) -> None:
        """Raise LimitExceededError if the states of topics take so much space that nothing may be added."""
        self.level.check_states(what)

    @property
    def sessions_may_move(self) -> bool:
        """Whether another machine may take it over, with the sessions of its producers."""
        return self.level.sessions_may_move

    @property
    def commits_to_storage(self) -> bool:
        """Whether its batches are committed to its storage, and sealed there."""
        return self.level.commits_to_storage

    @property
    def lossy(self) -> bool:
        """Whether it has no log: messages without a consumer that has credit are lost."""
        return isinstance(self.kept, MemoryLog)

    @property
    def gone(self) -> bool:
        """Whether the topic was deleted, or has stopped because stored data is damaged."""
        return self.deleted is not None or self.failure is not None

    def stop(self, error: DanubeError) -> None:
        """Stop the topic, because stored data is damaged: nothing more is accepted."""
        self.failure = error
        self._runtime.journal.stop_topic(self.topic_id)

    def floors(self) -> list[Offset]:
        """Return the cursor floors of its subscriptions."""
        return [Offset(subscription.cursor.floor) for subscription in self.subscriptions.values()]

    @property
    def stored_bytes(self) -> int:
        """Bytes that the topic holds in the journal."""
        return self._runtime.journal.stored_bytes(self.topic_id)

    @property
    def opened(self) -> OpenedBatches:
        """The cache of opened batches, shared by all topics."""
        return self._runtime.opened

    def submit(self, entry: Entry) -> None:
        """Submit a control entry to the journal."""
        self._journal.submit(entry)

    async def next_commit(self) -> None:
        """Wait until the journal has settled entries."""
        await self._runtime.commits.next_commit()

    def serves(self, name: str, subscription: object) -> bool:
        """Whether this is still the subscription of that name."""
        return self.subscriptions.get(name) is subscription

    async def dead_letter_topics(self, name: str) -> Sequence[Topic | ForwardedTopic]:
        """Return the topic of a name, or its partitions, for dead letters of this one; see :class:`Home`."""
        return await self._home.dead_letter_topics(self, name)

    def start_task(self, run: Callable[[trio.CancelScope], Awaitable[None]], scope: trio.CancelScope) -> None:
        """Run a task of a subscription that ends with the broker."""
        self._runtime.start(run, scope)

    # --- Moves ---

    @property
    def is_frozen(self) -> bool:
        """Whether it is about to move to another broker, so that nothing of it may change."""
        return self._frozen is not None

    async def until_thawed(self) -> None:
        """Wait while it is frozen.

        Raises:
            DanubeError: it is gone, for example to another broker.
        """
        while self._frozen is not None:
            await self._frozen.wait()
        self.check_not_deleted()

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """Freeze it inside the block: publishers and acknowledgements wait, and nothing of it changes in the journal.

        The block begins when everything that was on its way is settled. Deliveries go on. If the topic was ended inside
        the block, all who wait get its error; else they go on.

        Raises:
            DanubeError: it is gone.
        """
        async with self._creating:  # no subscription is created or deleted meanwhile
            self.check_alive()
            assert self._frozen is None
            frozen = self._frozen = trio.Event()
            self.intake.freeze()
            held = list(self.subscriptions.values())
            for subscription in held:
                subscription.freeze()
            try:
                await self.intake.wait_settled()
                while not all(subscription.is_quiet for subscription in held):
                    with trio.move_on_after(_QUIET_POLL_S):  # no commit here tells that a dead letter has arrived
                        await self._runtime.commits.next_commit()
                self.check_alive()
                yield
            finally:
                if not self._stays_frozen:
                    self._frozen = None
                    frozen.set()
                    self.intake.thaw()
                    for subscription in held:
                        if self.deleted is not None:
                            subscription.give_up(self.deleted)
                        else:
                            subscription.thaw()

    def stay_frozen(self) -> None:
        """Leave it frozen behind the block of :meth:`frozen`: the broker ends, and another one may own it by now."""
        self._stays_frozen = True

    # --- Policies ---

    @property
    def retention(self) -> Retention:
        """Its retention rules."""
        return self.policies.values.retention or Retention()

    @property
    def message_ttl_s(self) -> float:
        """Age at which unacknowledged messages expire; 0: never. Always 0 for ``none``, which stores no messages."""
        return 0.0 if self.lossy else self.policies.values.message_ttl_s or 0.0

    def dispatch_rate(self) -> Rate:
        """Return the rate of each subscription without a rate of its own."""
        return self.policies.values.dispatch_rate or Rate()

    def shared_rate(self) -> SharedBucket | None:
        """Return the dispatch rate that it shares with the other topics of its namespace; None: there is none."""
        return self._runtime.namespace_deliveries.of_topic(self.name)

    def _schemas(self) -> SubjectSchemas | None:
        return self._runtime.subjects.of(self.schema_subject) if self.schema_subject else None

    def apply(self, policies: EffectivePolicies, record: TopicRecord) -> None:
        """Apply other policies, the quotas of its namespace, and the subject of its record, from now on."""
        self.policies, self.schema_subject = policies, record.schema_subject
        self.intake.apply_policies(policies)
        for subscription in self.subscriptions.values():
            subscription.topic_policies_changed()
        for reader in self.readers:
            reader.share_rate()

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

    def check_consumer(self, subscription: str, name: str) -> None:
        """Raise LimitExceededError if no further consumer may connect to a subscription of this topic.

        Args:
            subscription: its name.
            name: of the consumer; it replaces a connected one of the same name, which does not add to the number.
        """
        self.check_subscription_consumers(subscription, name)
        self.check_topic_consumers(subscription, name)

    def check_subscription_consumers(
        self, subscription: str, name: str, expected: Collection[tuple[str, str]] = ()
    ) -> None:
        """Raise LimitExceededError if the limit of a subscription forbids a further consumer.

        Args:
            subscription, name: as for :meth:`check_consumer`.
            expected: consumers that have places while they are not connected, as pairs of subscription and name.
        """
        found = self.subscriptions.get(subscription)
        present = {consumer.name for consumer in found.consumers.values()} if found is not None else set()
        if name in present:
            return
        present.update(each for of, each in expected if of == subscription and each != name)
        self.policies.check_room(
            f"subscription {subscription!r} of topic {self.name!r}",
            "max_consumers_per_subscription",
            len(present),
            "max_consumers_per_subscription",
            self._runtime.limits.max_consumers_per_subscription,
        )

    def check_topic_consumers(self, subscription: str, name: str, expected: Collection[tuple[str, str]] = ()) -> None:
        """Raise LimitExceededError if the limit of the topic forbids a further consumer.

        Args:
            subscription, name, expected: as for :meth:`check_subscription_consumers`.
        """
        if self.policies.values.max_consumers is None:
            return
        present = {(each.name, one.name) for each in self.subscriptions.values() for one in each.consumers.values()}
        if (subscription, name) in present:
            return
        present.update(expected)
        self.policies.check_room(f"topic {self.name!r}", "max_consumers", len(present - {(subscription, name)}))

    async def expire_messages(self, before_us: int) -> None:
        """Settle all messages appended before a time (microseconds since the epoch), in all subscriptions.

        Raises:
            StorageError: history cannot be read now.
            DataLossError: history is damaged.
        """
        end = self.end_offset
        if self.gone or all(floor >= end for floor in self.floors()):
            return
        offset = await self.kept.offset_at(before_us)
        for subscription in list(self.subscriptions.values()):
            subscription.expire_below(offset)

    # --- Producers ---

    def check_not_deleted(self) -> None:
        """Raise the deletion error if the topic was deleted while a caller was about to use it."""
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
        """Show a batch that has reached its durability; subscriptions of durable topics see it after the commit."""
        if isinstance(self.kept, MemoryLog):
            for pump in self.pumps():
                pump.offer(batch)
            self._wake_watchers()
            return
        if self.deleted:
            self.kept.drop()  # it was in flight when the topic was deleted; its file must not wait for it
        if self.subscriptions or self.readers or self.watchers:
            self._runtime.commits.touch(self)

    def producer_name(self, producer_id: ProducerId) -> str:
        """Return the name of the producer of a batch; the id as text if it is forgotten; empty for the id 0."""
        if not producer_id:
            return ""
        return self.producers.name_of(producer_id) or f"{producer_id:016x}"

    # --- Subscriptions ---

    async def subscribe(self, request: api.ConsumeOpen) -> Subscription:
        """Return the subscription that a consumer requests; create it if it does not exist.

        A creation that has begun completes, also if this is cancelled: its record and the topic agree.

        Raises:
            SubscriptionTypeMismatchError: it exists with another type.
            LimitExceededError: too many subscriptions.
        """
        found = self.subscriptions.get(request.subscription)
        if found is None:
            created: list[Subscription] = []

            async def create() -> None:
                async with self._creating:
                    self.check_not_deleted()
                    found = self.subscriptions.get(request.subscription)
                    created.append(found if found is not None else await self._create_subscription(request))

            await self._runtime.finish(create)
            found = created[0]
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
        if sets_dead_letters(policy, request.policy):
            require_dead_letters(dead_letter_topic(self.name, request.subscription, policy))
        start = await self.resolve_position(request.start, request.start_time_us)
        return await self.level.create_subscription(self, request.subscription, request.type, start, policy)

    def planned_for(self, subscription: str) -> Mapping[str, Any]:
        """Return the policy changes that were planned for a subscription before it was created."""
        return self._home.planned_for(self.name, self.topic_id, subscription)

    async def created_subscription(self, name: str) -> Subscription | None:
        """Return a subscription, after waiting for creations under way; None if it does not exist."""
        async with self._creating:
            return self.subscriptions.get(name)

    def restore_subscription(self, name: str, record: SubscriptionRecord, cursor: Cursor | None) -> Subscription:
        """Load a stored subscription: with its recovered cursor, or with its initial one."""
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
        cursor.holes = open_ranges(self.gaps)
        machine = make_subscription(kind, cursor, self._runtime.limits, policy, lossy=self.lossy)
        subscription = Subscription(self._runtime, self, name, subscription_id, kind, cursor, machine)
        self.subscriptions[name] = subscription
        return subscription

    @property
    def gaps(self) -> Sequence[GapRecord]:
        """The declared gaps in its offsets, in order."""
        return self._home.gaps_of(self.topic_id)

    def gaps_changed(self) -> None:
        """Tell the subscriptions that a declared gap was filled or forgotten, or is new."""
        gaps, known = self.gaps, self._gap_states
        self._gap_states = {gap.start: gap.state for gap in gaps}
        changed = [gap for gap in gaps if gap.state is not known.get(gap.start, gap.state)]
        settled: list[int] = []
        for gap in changed:
            if gap.state is GapState.FORGOTTEN:
                settled += (gap.start, gap.end)
            elif gap.state is GapState.FILLED and gap.filled_end < gap.end:
                settled += (gap.filled_end, gap.end)
        filled = any(gap.state is GapState.FILLED and gap.filled_end > gap.start for gap in changed)
        for subscription in self.subscriptions.values():
            subscription.holes_changed(open_ranges(gaps), settled, filled)

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription and disconnect its consumers. Cancellation stops the waiting, not the deletion.

        Raises:
            SubscriptionNotFoundError: it does not exist.
            DanubeError: it cannot be deleted now, and still exists.
        """
        await self._runtime.finish(partial(self._delete_subscription, name))

    async def _delete_subscription(self, name: str) -> None:
        async with self._creating:  # no subscription of the same name is created before this one is removed completely
            self.check_not_deleted()
            subscription = self.subscriptions.get(name)
            if subscription is None:
                raise SubscriptionNotFoundError(f"topic {self.name!r} has no subscription {name!r}")
            await self.level.delete_subscription(self, subscription)

    def remove_subscription(self, subscription: Subscription) -> None:
        """Disconnect the consumers of a deleted subscription, and remove it."""
        self.subscriptions.pop(subscription.name, None)
        subscription.close(
            SubscriptionNotFoundError(f"subscription {subscription.name!r} of topic {self.name!r} was deleted")
        )

    async def resolve_position(self, position: str | int, time_us: int) -> Offset:
        """Convert ``earliest``, ``latest``, an offset or (if not 0) a time to an offset within the log."""
        if time_us:
            return await self.kept.offset_at(time_us)
        if position == EARLIEST:
            return self.start_offset
        if position == LATEST:
            return self.end_offset
        if isinstance(position, int) and position >= 0:
            return min(max(Offset(position), self.start_offset), self.end_offset)
        raise InvalidArgumentError(
            f"start position {position!r} is not valid; use 'earliest', 'latest', an offset of 0 or more, or a time"
        )

    async def open_reader(self, request: api.ConsumeOpen) -> TopicReader:
        """Return a reader, for a consumer without a subscription.

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
            return TopicReader(self, make_subscription(SubscriptionType.EXCLUSIVE, Cursor(start), limits, lossy=True))
        return TopicReader(self, ReaderMachine(limits, start))

    def pumps(self) -> list[Pump]:
        """Return all subscriptions and readers."""
        return [*self.subscriptions.values(), *self.readers]

    def pump(self) -> None:
        """Let every subscription and reader deliver what it can now."""
        for pump in self.pumps():
            if pump.consumers:
                pump.pump()
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for watcher in self.watchers:
            watcher.set()

    def end(self, error: DanubeError) -> None:
        """Disconnect all producers and consumers: the topic is deleted."""
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
