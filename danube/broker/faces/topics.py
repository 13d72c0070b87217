"""A topic and its subscriptions as faces publish and deliver. Interfaces only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from danube.broker.delivery.connected_consumer import AckWaiter, ConnectedConsumer, Origin
    from danube.dispatch import Machine
    from danube.model import Durability, SubscriptionPolicy, SubscriptionType, api
    from danube.model.batch import CompositeRecord, SchemaRef
    from danube.model.errors import DanubeError
    from danube.model.ids import Offset, ProducerId, TopicId

__all__ = ["ServedComposer", "ServedComposing", "ServedIntake", "ServedProducers", "ServedSubscription", "ServedTopic"]


class ServedComposer(Protocol):
    """Collects the messages of one topic that are sent one at a time."""

    def add(
        self,
        record: CompositeRecord,
        publish_time_us: int,
        size: int,
        told: Callable[[DanubeError | None], None],
        schema: SchemaRef = ...,
    ) -> None:
        """Accept a message.

        Args:
            record: without its ``publish_delta_us``, which is filled in.
            publish_time_us: when it was sent, by its producer's clock.
            size: bytes of its payload, key, attributes and producer's name; within the topic's limits.
            told: called when it has settled, perhaps before this returns.
            schema: a change of schema starts another batch.
        """
        ...


class ServedComposing(Protocol):
    """The composers of the broker's topics."""

    def of(self, topic: Any, /) -> ServedComposer:
        """Return the composer of a topic, a :class:`ServedTopic` of this broker."""
        ...


class ServedIntake(Protocol):
    """The producers of a topic."""

    max_message_bytes: int
    """Largest message, in bytes."""

    def said_max_message_bytes(self) -> str:
        """Return the limit of messages, and where it is set, for an error."""
        ...

    async def register(self, name: str) -> ProducerId:
        """Return the id of a producer without sessions; create it if it does not exist.

        Raises:
            LimitExceededError: too many producers.
        """
        ...

    def seen(self, producer_id: ProducerId) -> str:
        """Note that a producer is alive; return its name, or an empty string if the id is unknown."""
        ...


class ServedProducers(Protocol):
    """The known producers of a topic."""

    def ids(self) -> Iterable[ProducerId]:
        """Return the ids of all known producers."""
        ...

    def name_of(self, producer_id: ProducerId) -> str:
        """Return the name of a producer; empty if its state has expired."""
        ...


class ServedTopic(Protocol):
    """A plain topic or a partition, as seen by a face."""

    name: str
    topic_id: TopicId
    durability: Durability
    deleted: DanubeError | None
    """Why it is gone, if it was deleted."""

    @property
    def intake(self) -> ServedIntake:
        """Its producers and their batches."""
        ...

    @property
    def producers(self) -> ServedProducers:
        """Its known producers."""
        ...

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
    def end_offset(self) -> Offset:
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
    def topic(self) -> Origin:
        """Its topic."""
        ...

    @property
    def consumers(self) -> Mapping[int, ConnectedConsumer]:
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

    def join(self, consumer: ConnectedConsumer) -> None:
        """Connect a consumer; a connected one of the same name is displaced.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: it was deleted while it was being opened.
            SubscriptionBusyError: exclusive, and another consumer is connected.
            DataLossError: the subscription stopped because stored data is damaged, and it still is.
        """
        ...

    def leave(self, consumer: ConnectedConsumer) -> None:
        """Disconnect a consumer; its messages are redelivered to others. No-op if it has been displaced."""
        ...

    def credit(self, consumer: ConnectedConsumer, messages: int, size_bytes: int) -> None:
        """Allow a consumer to receive more."""
        ...

    def ack_for(self, waiter: AckWaiter, offset: int, consumer: ConnectedConsumer | None, generation: int) -> None:
        """Acknowledge a message on behalf of a caller, which is notified when that is durable."""
        ...

    def nack_for(self, offset: int, least_delay_s: float | None, reason: str, generation: int) -> None:
        """Redeliver a message; the delay is that of the policy, but at least ``least_delay_s``."""
        ...

    def refuse(self, consumer: ConnectedConsumer, offset: int, reason: str) -> None:
        """Record a failure that a consumer has reported during delivery: it cannot take the message."""
        ...

    def extend(
        self, consumer: ConnectedConsumer, ranges: Sequence[int], lease_s: float | None, generation: int
    ) -> None:
        """Move the ack timeout of flat ranges to ``lease_s`` seconds from now; None: the policy's ack timeout."""
        ...
