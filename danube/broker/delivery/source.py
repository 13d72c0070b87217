"""What delivery needs of a topic. The arrow points this way: a topic knows its subscriptions, they know a source."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import trio

from danube.broker.intake.internal_producer import Target
from danube.broker.runtime.opened_batches import OpenedBatches
from danube.log import Entry, MemoryLog, TopicLog
from danube.model import Durability, Rate

__all__ = ["Source"]


class Source(Target, Protocol):
    """One plain topic or partition, as its subscriptions and readers see it."""

    topic_id: int
    durability: Durability
    storage: str
    kept: TopicLog | MemoryLog
    """Its log."""
    readers: dict[Any, None]
    """Those that read it without a subscription; they add and remove themselves."""

    @property
    def lossy(self) -> bool:
        """Whether it has no log: what finds no consumer with credit is lost."""
        ...

    @property
    def life(self) -> int:
        """Tells offsets before a power loss from those after it, if one offset may stand for two messages; else 0."""
        ...

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset behind the last message that consumers may see."""
        ...

    @property
    def owner_epoch(self) -> int:
        """Under which epoch this broker owns it; 0 if it keeps nothing."""
        ...

    @property
    def opened(self) -> OpenedBatches:
        """Opened batches, shared by all topics."""
        ...

    @property
    def message_ttl_s(self) -> float:
        """After how long messages that were not acknowledged expire; 0: never."""
        ...

    def dispatch_rate(self) -> Rate:
        """Return the rate of each subscription that has none of its own."""
        ...

    def producer_name(self, producer_id: int) -> str:
        """Return the name of the producer of a batch; empty for the id 0."""
        ...

    def check_not_deleted(self) -> None:
        """Raise TopicNotFoundError if the topic was deleted."""
        ...

    def serves(self, name: str, subscription: object) -> bool:
        """Whether the subscription of a name is still this one."""
        ...

    def submit(self, entry: Entry) -> None:
        """Submit a control entry to its journal."""
        ...

    async def next_commit(self) -> None:
        """Wait until the journal has settled something."""
        ...

    def start_task(self, run: Callable[[trio.CancelScope], Awaitable[None]], scope: trio.CancelScope) -> None:
        """Run a task that ends with the broker."""
        ...

    async def dead_letter_topics(self, name: str) -> Sequence[Target]:
        """Return the topic of a name, or its partitions, for dead letters of this one; create it if there is none.

        Raises:
            FailedPreconditionError: it keeps nothing.
            DanubeError: it cannot be created or found now.
        """
        ...
