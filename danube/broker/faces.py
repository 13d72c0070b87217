"""Faces: additional protocols served by a broker, built on its shared operations.

The broker serves its native calls itself. A face adds services of another protocol on the same port (distinguished by
their codec), and admin services on the admin port. The broker knows nothing about the protocol of a face::

    run_broker(config, faces=(danube.compat.face,))     # a function: a broker in, its face out

A face uses two things of the broker: its operations, and this module, which is all of the rest that faces may know:
the topics and subscriptions that they are served, and the interface of a consumer, which they implement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio

from danube.broker.delivery.receiver import AckWaiter, Delivery, Feeding, Receiver, Source, StoredBatch
from danube.wire import Codec, Service

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.intake.composer import Composer, Composing
    from danube.broker.intake.intake import Intake
    from danube.broker.operations import Operations
    from danube.broker.runtime.runtime import Runtime
    from danube.dispatch import Machine
    from danube.log import ProducerTable
    from danube.metadata import MetadataStore
    from danube.model import Durability, SubscriptionPolicy, SubscriptionType, api
    from danube.model.errors import DanubeError

__all__ = [
    "AckWaiter",
    "Delivery",
    "Face",
    "FaceMaker",
    "Feeding",
    "Receiver",
    "Served",
    "ServedSubscription",
    "ServedTopic",
    "Source",
    "StoredBatch",
]


class Served(Protocol):
    """The part of a broker that a face may use."""

    runtime: Runtime
    directory: Directory
    operations: Operations
    composing: Composing
    admin_addresses: list[str]
    """Addresses of the admin port."""

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, for records of the face, below a prefix of its own."""
        ...

    @property
    def draining(self) -> bool:
        """Whether the broker is shutting down."""
        ...

    async def wait_draining(self) -> None:
        """Wait until the broker starts to shut down."""
        ...


class ServedTopic(Protocol):
    """A plain topic or a partition, as seen by a face."""

    name: str
    topic_id: int
    durability: Durability
    intake: Intake
    """Its producers and their batches."""
    composer: Composer | None
    """For messages that are sent one at a time; made by :attr:`Served.composing`."""
    producers: ProducerTable
    """Its known producers."""
    deleted: DanubeError | None
    """Why it is gone, if it was deleted."""

    @property
    def subscriptions(self) -> Mapping[str, ServedSubscription]:
        """Its subscriptions by name."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether it has no log: messages without a consumer that has credit are lost."""
        ...

    @property
    def gone(self) -> bool:
        """Whether it was deleted, or has stopped because stored data is damaged."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after the last message that consumers may see."""
        ...

    def check_alive(self) -> None:
        """Raise if it was deleted, or has stopped because stored data is damaged.

        Raises:
            TopicNotFoundError: it was deleted.
            DataLossError: it has stopped.
        """
        ...

    def check_subscription(self) -> None:
        """Raise LimitExceededError if no further subscription may be created."""
        ...

    def check_consumer(self, subscription: str, name: str) -> None:
        """Raise LimitExceededError if no further consumer may connect to a subscription.

        Args:
            subscription: its name.
            name: of the consumer; it replaces a connected one of the same name, which does not add to the number.
        """
        ...

    def check_subscription_consumers(
        self, subscription: str, name: str, expected: Collection[tuple[str, str]] = ()
    ) -> None:
        """Raise LimitExceededError if the limit of a subscription forbids a further consumer.

        Args:
            subscription, name: as for :meth:`check_consumer`.
            expected: consumers that have places while they are not connected, as pairs of subscription and name.
        """
        ...

    def check_topic_consumers(self, subscription: str, name: str, expected: Collection[tuple[str, str]] = ()) -> None:
        """Raise LimitExceededError if the limit of the topic forbids a further consumer.

        Args:
            subscription, name, expected: as for :meth:`check_subscription_consumers`.
        """
        ...

    async def subscribe(self, request: api.ConsumeOpen) -> ServedSubscription:
        """Return the subscription that a consumer requests; create it if it does not exist.

        Raises:
            SubscriptionTypeMismatchError: it exists with another type.
            LimitExceededError: too many subscriptions.
        """
        ...

    def planned_for(self, subscription: str) -> Mapping[str, Any]:
        """Return the policy changes that were planned for a subscription before it was created."""
        ...


class ServedSubscription(Protocol):
    """A subscription of one topic or partition, as seen by a face: consumers join it, and answer for messages."""

    name: str
    subscription_id: int
    kind: SubscriptionType
    machine: Machine
    """Its state machine, which receives credit while messages are delivered."""

    @property
    def topic(self) -> Source:
        """Its topic."""
        ...

    @property
    def consumers(self) -> Mapping[int, Receiver]:
        """Its connected consumers, by their ids."""
        ...

    @property
    def generation(self) -> int:
        """Number of times that it was moved; acknowledgements of earlier deliveries are void."""
        ...

    @property
    def policy(self) -> SubscriptionPolicy:
        """Its policy for redelivery, poison and rates."""
        ...

    def join(self, consumer: Receiver) -> None:
        """Connect a consumer; a connected one of the same name is displaced.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: it was deleted while it was being opened.
            SubscriptionBusyError: exclusive, and another consumer is connected.
            DataLossError: the subscription stopped because stored data is damaged, and it still is.
        """
        ...

    def leave(self, consumer: Receiver) -> None:
        """Disconnect a consumer; its messages are redelivered to others. No-op if it has been displaced."""
        ...

    def credit(self, consumer: Receiver, messages: int, size_bytes: int) -> None:
        """Allow a consumer to receive more."""
        ...

    def ack_for(self, waiter: AckWaiter, offset: int, consumer: Receiver | None, generation: int) -> None:
        """Acknowledge a message on behalf of a caller, who is told when that is durable."""
        ...

    def nack_for(self, offset: int, least_delay_s: float | None, reason: str, generation: int) -> None:
        """Redeliver a message; the delay is that of the policy, but at least ``least_delay_s``."""
        ...

    def refuse(self, consumer: Receiver, offset: int, reason: str) -> None:
        """Record a failure that a consumer has reported during delivery: it cannot take the message."""
        ...

    def extend(self, consumer: Receiver, ranges: Sequence[int], lease_s: float | None, generation: int) -> None:
        """Move the ack timeout of flat ranges to ``lease_s`` seconds from now; None: the policy's ack timeout."""
        ...


class Face(Protocol):
    """One face of one broker. It is created once, after the topics are loaded and before clients can connect."""

    @property
    def services(self) -> Service:
        """Methods served on the client port."""
        ...

    @property
    def admin_services(self) -> Service:
        """Methods served on the admin port."""
        ...

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs by content subtype, in addition to the native codec."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the background work of the face until cancelled.

        Calls are served once ``task_status`` has been started. The task is cancelled after the last call has ended.
        """
        ...


FaceMaker = Callable[["Served"], Face]
"""Factory of the face of a broker."""
