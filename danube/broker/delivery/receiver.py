"""What a pump needs of a consumer, whichever protocol leads to it.

The native one is ``danube.broker.calls.consumer.Consumer``; a face brings its own (``danube.broker.faces``), and finds
the values that are passed to it here, too.
"""

from __future__ import annotations

from typing import Protocol

from danube.broker.delivery.source import Source
from danube.dispatch import Delivery, Machine
from danube.log import StoredBatch
from danube.model import api
from danube.model.errors import DanubeError

__all__ = ["AckWaiter", "Delivery", "Feeding", "Receiver", "Source", "StoredBatch"]


class Feeding(Protocol):
    """What a receiver says to the pump that feeds it."""

    machine: Machine
    """Takes its credit."""

    def resume_soon(self, consumer: Receiver, /) -> None:
        """The consumer reads again, and its credit was kept back: call its :meth:`Receiver.resume` soon."""
        ...

    def stalled(self) -> None:
        """The consumer has not read for a while."""
        ...


class AckWaiter(Protocol):
    """Somebody who waits until acknowledgements are durable."""

    def send(self, reply: api.ConsumeReply, /) -> None:
        """Take the good news, an :class:`danube.model.api.AcksFlushed`."""
        ...

    def end(self, error: DanubeError, /) -> None:
        """Take the bad news: they never will be."""
        ...


class Receiver(AckWaiter, Protocol):
    """One connected consumer of a subscription, or a reader. Nothing here waits."""

    caught_up_at: int | None
    """Where it has caught up, and is to be told so; None if it need not be told."""

    @property
    def wants_caught_up(self) -> bool:
        """Whether it is told when it has caught up, also after something was delivered again."""
        ...

    @property
    def consumer_id(self) -> int:
        """Its id; no other consumer of this process has it."""
        ...

    @property
    def name(self) -> str:
        """Its name, by which it displaces itself."""
        ...

    @property
    def key_filters(self) -> tuple[str, ...]:
        """Its key filters (key-shared only)."""
        ...

    def deliver(self, topic: Source, batch: StoredBatch, delivery: Delivery, sliced: bool, /) -> None:
        """Take messages of a batch.

        Args:
            topic: which they are of.
            batch: in which they are.
            delivery: which of it. It has used up credit.
            sliced: whether the consumer shares its subscription with others and must get no more than these.

        Raises:
            InvalidArgumentError: the batch cannot be opened.
        """
        ...

    def send(self, reply: api.ConsumeReply, /) -> None:
        """Tell it something; what it has no use for it passes over."""
        ...

    def end(self, error: DanubeError, /) -> None:
        """Disconnect it with an error. It leaves by itself."""
        ...

    def crowded(self, lossy: bool, /) -> bool:
        """Whether so much waits for it to read that its credit is to be kept back.

        Args:
            lossy: what it is not given now is lost.
        """
        ...

    @property
    def holds(self) -> bool:
        """Whether credit is kept back for it."""
        ...

    def hold(self, pump: Feeding, messages: int, size_bytes: int, /) -> None:
        """Keep credit back, and call :meth:`Feeding.resume_soon` when it reads again."""
        ...

    def resume(self, pump: Feeding, lossy: bool, /) -> None:
        """Give the pump's machine what was kept back, unless it is crowded again."""
        ...

    def resumed(self) -> None:
        """The pump has made use of that credit, or had none for it."""
        ...
