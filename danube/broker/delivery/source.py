"""The interface of a topic for delivery. Dependencies point this way: topics import subscriptions, not vice versa."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import trio

from danube.broker.delivery.forwarding import ForwardedTopic
from danube.broker.intake.internal_producer import Target
from danube.broker.runtime.opened_batches import OpenedBatches
from danube.broker.runtime.token_bucket import SharedBucket
from danube.log import Entry, MemoryLog, TopicLog
from danube.model import Durability, Rate
from danube.model.ids import Offset, OwnerEpoch, ProducerId, TopicId

__all__ = ["Source"]


class Source(Target, Protocol):
    """One plain topic or partition, as seen by its subscriptions and readers."""

    topic_id: TopicId
    durability: Durability
    storage: str
    kept: TopicLog | MemoryLog
    """Its log."""
    readers: dict[Any, None]
    """Its readers (consumers without a subscription); they add and remove themselves."""

    @property
    def schema_subject(self) -> str:
        """Subject of the schemas of its messages; empty: none."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether it has no log: messages without a consumer that has credit are lost."""
        ...

    @property
    def life(self) -> int:
        """Distinguishes offsets before a power loss from those after it, if one may stand for two messages; else 0."""
        ...

    @property
    def start_offset(self) -> Offset:
        """The first offset that can be read."""
        ...

    @property
    def end_offset(self) -> Offset:
        """The offset after the last message that consumers may see."""
        ...

    @property
    def owner_epoch(self) -> OwnerEpoch:
        """The epoch under which this broker owns it."""
        ...

    @property
    def opened(self) -> OpenedBatches:
        """The cache of opened batches, shared by all topics."""
        ...

    @property
    def message_ttl_s(self) -> float:
        """Age at which unacknowledged messages expire; 0: never."""
        ...

    def dispatch_rate(self) -> Rate:
        """Return the rate of each subscription without a rate of its own."""
        ...

    def shared_rate(self) -> SharedBucket | None:
        """Return the dispatch rate that all topics of its namespace share; None: there is none."""
        ...

    def producer_name(self, producer_id: ProducerId) -> str:
        """Return the name of the producer of a batch; empty for the id 0."""
        ...

    def check_not_deleted(self) -> None:
        """Raise TopicNotFoundError if the topic was deleted."""
        ...

    @property
    def is_frozen(self) -> bool:
        """Whether it is about to move to another broker, so that nothing of it may change."""
        ...

    async def until_thawed(self) -> None:
        """Wait while it is frozen; raise if it is gone then."""
        ...

    def serves(self, name: str, subscription: object) -> bool:
        """Whether this is still the subscription of that name."""
        ...

    def submit(self, entry: Entry) -> None:
        """Submit a control entry to its journal."""
        ...

    async def next_commit(self) -> None:
        """Wait until the journal has settled entries."""
        ...

    def start_task(self, run: Callable[[trio.CancelScope], Awaitable[None]], scope: trio.CancelScope) -> None:
        """Run a task that ends with the broker."""
        ...

    async def dead_letter_topics(self, name: str) -> Sequence[Target | ForwardedTopic]:
        """Return the topic of a name, or its partitions, for dead letters of this one; create it if it does not exist.

        Raises:
            FailedPreconditionError: it stores no messages.
            DanubeError: it cannot be created or found now.
        """
        ...
