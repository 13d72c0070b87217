"""Durability levels: how the topics of each durability are created, changed and deleted, and where their entries go.

::

    none        MemoryLevel    offsets in memory; a subscription lives as long as the broker
    os, disk    JournalLevel   batches in the journal; records in the catalogue
    remote      BucketLevel    batches and records in commits of a bucket; the catalogue has copies of the records

All decisions that depend on the durability of a topic are made here, and nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from danube.broker.topic.topic import Home, Topic
from danube.model.ids import Offset, TopicId
from danube.model.records import members

if TYPE_CHECKING:
    from danube.broker.catalogue.catalogue import Catalogue
    from danube.broker.catalogue.entering import Place
    from danube.broker.catalogue.policy_book import PolicyBook
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.runtime.runtime import Runtime
    from danube.broker.topic.recovered import TopicState
    from danube.cluster.membership import Membership
    from danube.dispatch import Cursor
    from danube.history import History
    from danube.log import RecoveredTopic
    from danube.model import Durability, SubscriptionPolicy, SubscriptionType, TopicPolicies
    from danube.model.errors import DanubeError
    from danube.model.records import SubscriptionRecord, TopicRecord
    from danube.storage import Storage

__all__ = ["Level", "Registry", "Surroundings"]


class Registry(Home, Protocol):
    """The part of the directory that a level uses."""

    def adopt(self, topic: Topic) -> None:
        """Add a topic, which is served from now on."""
        ...

    def withdraw(self, topic_ids: Iterable[TopicId], error_of: Callable[[str], DanubeError]) -> list[Topic]:
        """Serve some topics or partitions no longer, and return them; all who use them get an error, by their name."""
        ...

    def living(self, name: str, record: TopicRecord) -> list[Topic]:
        """Return the topic of a record, or its partitions, as far as they are served."""
        ...


class Surroundings(NamedTuple):
    """Dependencies shared by all levels."""

    runtime: Runtime
    catalogue: Catalogue
    policies: PolicyBook
    history: History
    membership: Membership
    registry: Registry
    restore_schemas: Callable[[Storage], Awaitable[None]]
    """Brings the schemas of a storage into the schema registry, once the broker has begun to serve; raises
    FailedPreconditionError if their numbers mean something else there, and DanubeError."""


class Level(ABC):
    """Interface of a durability level; see the module.

    Attributes:
        keeps: whether its topics have a log.
        checkpointed: whether snapshots in the journal hold the state of its topics and cursors; other levels store it
            elsewhere, or not at all.
        recovers_itself: whether its topics are recovered without the journal and the catalogue.
        commits_to_storage: whether batches are committed to the storage of their topic, and sealed there; else they are
            in the journal until the sealer moves them.
        needs_manifests: whether a bucket learns the policies of namespaces and of the broker from manifests alone.
        sessions_may_move: whether another machine may take its topics over, with the sessions of their producers.
        forgets_unsynced: whether a power loss may lose acknowledged messages, so that an offset may stand for another
            message afterwards.
    """

    keeps = True
    checkpointed = True
    recovers_itself = False
    commits_to_storage = False
    needs_manifests = False
    sessions_may_move = False
    forgets_unsynced = False

    def __init__(self, surroundings: Surroundings) -> None:
        (
            self.runtime,
            self.catalogue,
            self.policies,
            self.history,
            self.membership,
            self.registry,
            self._restore_schemas,
        ) = surroundings

    # --- Topics ---

    @abstractmethod
    def build(
        self,
        name: str,
        topic_id: TopicId,
        record: TopicRecord,
        recovered: RecoveredTopic | None = None,
        found: TopicState | None = None,
    ) -> Topic:
        """Build a plain topic or a partition: new, or from its recovered state.

        Args:
            name, topic_id: its own.
            record: of the topic as a whole.
            recovered: its batches in the journal.
            found: its state from snapshots and control entries.
        """

    def check_states(self, what: str, topics: int = 0) -> None:
        """Check that the place where the states of topics are kept has space for more; ``what``: for the message.

        Raises:
            LimitExceededError: it has none.
        """
        return

    async def create(
        self,
        name: str,
        durability: Durability,
        partitions: int,
        storage: str,
        policies: TopicPolicies | None,
        place: Place | None = None,
    ) -> TopicRecord:
        """Create a topic and serve what this broker owns of it; return when that is durable.

        Args:
            name: of the topic as a whole.
            durability: one of this level.
            partitions: how many; 0: a plain topic.
            storage: the storage of its history.
            policies: of the topic.
            place: chooses its owners; None: this broker.

        Raises:
            AlreadyExistsError: a topic of this name exists.
            DanubeError: it cannot be created now.
        """
        if place is None:
            self.check_states(f"topic {name!r}", max(1, partitions))
        record = await self.catalogue.creations.create(name, durability, partitions, storage, policies, place)
        self._adopt_new(name, record)
        return record

    async def enlarge(self, name: str, record: TopicRecord, partitions: int, place: Place | None = None) -> None:
        """Give a partitioned topic more partitions; return when that is durable.

        Args:
            name, record: of the topic.
            partitions: their new number.
            place: chooses the owners of the added ones; None: this broker.

        Raises:
            DanubeError: it cannot be changed now.
        """
        if place is None:
            self.check_states(f"partitions of topic {name!r}", partitions - record.partitions)
        self._adopt_new(name, await self.catalogue.creations.enlarge(name, partitions, place))

    def _adopt_new(self, name: str, record: TopicRecord) -> None:
        present = {topic.name for topic in self.registry.living(name, record)}
        for each, topic_id in members(name, record):
            if each not in present and self.membership.owns(topic_id):
                self.registry.adopt(self.build(each, topic_id, record))

    def revive(
        self,
        name: str,
        record: TopicRecord,
        subscriptions: Mapping[TopicId, Mapping[str, tuple[SubscriptionRecord, Cursor]]],
    ) -> None:
        """Serve a topic whose history is in the catalogue; ``subscriptions`` are by topic id and name."""
        for each, topic_id in members(name, record):
            topic = self.build(each, topic_id, record)
            for subscription, (entry, cursor) in subscriptions.get(topic_id, {}).items():
                topic.restore_subscription(subscription, entry, cursor)
            self.registry.adopt(topic)

    async def changed(self, name: str, record: TopicRecord) -> None:
        """Handle a change of a topic's record in the catalogue; return when it is durable everywhere.

        Raises:
            DanubeError: it is not durable, or not yet.
        """
        return

    async def prepare_change(self, record: TopicRecord) -> None:
        """Check that the record of a topic can be changed or deleted, before it is.

        Raises:
            DanubeError: it cannot be deleted now.
        """
        return

    async def delete(
        self,
        name: str,
        end: Callable[[str, TopicRecord], Awaitable[None]],
        topic_ids: Collection[TopicId] = (),
    ) -> TopicRecord:
        """Delete a topic; return its last record when that is durable everywhere.

        Args:
            name: of the topic as a whole; it has a record.
            end: with name and record; ends the served topics, and returns when nothing of them is pending. Without it
                they end when the record is gone.
            topic_ids: one of them is the first id of the topic; empty: any may be.

        Raises:
            TopicReplacedError: it has none of the ids.
        """
        return await self.catalogue.deletions.delete(name, topic_ids)  # what is served of it ends with its record

    def unavailable(self, name: str, record: TopicRecord) -> DanubeError | None:
        """Return why a topic that has a record is not served; None: it is being created or deleted."""
        return None

    # --- Subscriptions ---

    @abstractmethod
    async def create_subscription(
        self, topic: Topic, name: str, kind: SubscriptionType, start: Offset, policy: SubscriptionPolicy
    ) -> Subscription:
        """Store a new subscription, and add it to the topic.

        Raises:
            TopicNotFoundError: the topic was deleted in the meantime.
            DanubeError: it cannot be stored now.
        """

    @abstractmethod
    async def delete_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Delete a subscription, and disconnect its consumers."""

    @abstractmethod
    async def change_subscription(self, topic: Topic, subscription: Subscription, policy: SubscriptionPolicy) -> None:
        """Store another policy of a subscription, and apply it; return when it is durable."""
