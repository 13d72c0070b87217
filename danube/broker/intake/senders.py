"""Who publishes to a topic, as its intake (:mod:`danube.broker.intake.intake`) sees it.

A sender has a session, hands in batches, and is told what becomes of them::

    session = await topic.intake.open(request)     # durable: fences whoever had the name
    topic.intake.attach(sender)
    await topic.intake.admit(len(part))            # waits for the publish rate and for room in the journal
    topic.intake.take(sender, token, part, header) # in the same turn of the loop
    ...                                            # sender.settled(token, batch, error)
    topic.intake.detach(sender)
"""

from __future__ import annotations

from typing import Any, Protocol

from danube.log import ProducerSession, StoredBatch
from danube.model.errors import DanubeError

__all__ = ["Sender", "Waiter"]


class Waiter(Protocol):
    """Somebody who has handed in batches and is told what becomes of them."""

    in_flight: int
    """Batches that were taken and have not settled. The intake keeps this number; it begins with 0."""

    def settled(self, token: Any, batch: StoredBatch, error: DanubeError | None, /) -> None:
        """A batch has reached its durability, or (``error``) will not, or not soon. Called in sequence order.

        Args:
            token: what came with the batch in :meth:`Intake.take` or :meth:`Intake.compose`.
            batch: as it was appended: ``base_offset`` is where it is.
            error: why it is not durable; one that is retryable may still become so, and may be sent again.
        """
        ...


class Sender(Waiter, Protocol):
    """Somebody who publishes to a topic under one producer's session."""

    @property
    def session(self) -> ProducerSession:
        """What :meth:`Intake.open` gave."""
        ...

    def end(self, error: DanubeError | None, /) -> None:
        """Stop: a newer session has taken over, or the topic is gone. None: another connection of this session came."""
        ...
