"""The interfaces of a consumer for a pump, and of its topic for a consumer, for all protocols. Pure: no I/O, no clock.

The native implementation is ``danube.broker.calls.consumer.Consumer``; a face has its own, and gets
these interfaces from ``danube.broker.faces``.
"""

from __future__ import annotations

from typing import Protocol

from danube.broker.runtime.opened_batches import OpenedBatches
from danube.dispatch import Delivery, Machine
from danube.log.cache import StoredBatch
from danube.model import api
from danube.model.errors import DanubeError
from danube.model.ids import Offset, ProducerId, TopicId

__all__ = ["AckWaiter", "ConnectedConsumer", "Delivery", "Feeding", "Origin", "StoredBatch"]


class Origin(Protocol):
    """The topic of delivered messages, as seen by the consumer that gets them."""

    @property
    def name(self) -> str:
        """The name of the topic or partition."""
        ...

    @property
    def topic_id(self) -> TopicId:
        """Its id."""
        ...

    @property
    def schema_subject(self) -> str:
        """Subject of the schemas of its messages; empty: none."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether it has no log: messages without a consumer that has credit are lost."""
        ...

    @property
    def end_offset(self) -> Offset:
        """The offset after the last message that consumers may see."""
        ...

    @property
    def opened(self) -> OpenedBatches:
        """The cache of opened batches, shared by all topics."""
        ...

    def producer_name(self, producer_id: ProducerId) -> str:
        """Return the name of the producer of a batch; empty for the id 0."""
        ...


class Feeding(Protocol):
    """The interface of a pump for its consumers."""

    machine: Machine
    """The state machine that receives credit."""

    def resume_soon(self, consumer: ConnectedConsumer, /) -> None:
        """The consumer reads again, and credit of it was withheld: call its :meth:`ConnectedConsumer.resume` soon."""
        ...

    def stalled(self) -> None:
        """The consumer has not read for a while."""
        ...


class AckWaiter(Protocol):
    """A caller that waits until acknowledgements are durable."""

    def send(self, reply: api.ConsumeReply, /) -> None:
        """Report success, an :class:`danube.model.api.AcksFlushed`."""
        ...

    def end(self, error: DanubeError, /) -> None:
        """Report failure: the acknowledgements will never be durable."""
        ...


class ConnectedConsumer(AckWaiter, Protocol):
    """One connected consumer of a subscription, or a reader. No method blocks."""

    caught_up_at: Offset | None
    """Offset at which it has caught up and is to be notified; None if it need not be notified."""

    @property
    def wants_caught_up(self) -> bool:
        """Whether it is notified when it has caught up, also after a redelivery."""
        ...

    @property
    def consumer_id(self) -> int:
        """Its id, unique in this process."""
        ...

    @property
    def name(self) -> str:
        """Its name; a new consumer of the same name displaces it."""
        ...

    @property
    def key_filters(self) -> tuple[str, ...]:
        """Its key filters (key-shared only)."""
        ...

    def deliver(self, topic: Origin, batch: StoredBatch, delivery: Delivery, sliced: bool, /) -> None:
        """Deliver messages of a batch.

        Args:
            topic: of the messages.
            batch: that contains them.
            delivery: selects the messages. It has used up credit.
            sliced: whether the consumer shares its subscription with others and must receive only these messages.

        Raises:
            InvalidArgumentError: the batch cannot be opened.
        """
        ...

    def send(self, reply: api.ConsumeReply, /) -> None:
        """Send a reply; one that it has no use for is ignored."""
        ...

    def end(self, error: DanubeError, /) -> None:
        """Disconnect it with an error. It leaves by itself."""
        ...

    def crowded(self, lossy: bool, /) -> bool:
        """Whether so much waits to be read by it that its credit is to be withheld.

        Args:
            lossy: whether messages that are not delivered now are lost.
        """
        ...

    @property
    def holds(self) -> bool:
        """Whether credit is withheld from it."""
        ...

    def hold(self, pump: Feeding, messages: int, size_bytes: int, /) -> None:
        """Withhold credit, and call :meth:`Feeding.resume_soon` when it reads again."""
        ...

    def resume(self, pump: Feeding, lossy: bool, /) -> None:
        """Return the withheld credit to the pump's machine, unless it is crowded again."""
        ...

    def resumed(self) -> None:
        """Handle that the pump has used that credit, or had no messages for it."""
        ...
