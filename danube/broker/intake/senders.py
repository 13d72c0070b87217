"""Interfaces of the senders that publish to a topic, for its intake (:mod:`danube.broker.intake.intake`).

A sender has a session, hands in batches, and is notified of their outcome::

    session = await topic.intake.open(request)     # durable: fences the previous session of this name
    topic.intake.attach(sender)
    await topic.intake.admit(len(part))            # waits for the publish rate and for room in the journal
    topic.intake.take(sender, token, part, header) # in the same turn of the loop
    ...                                            # sender.settled(token, batch, error)
    topic.intake.detach(sender)
"""

from __future__ import annotations

from typing import Any, Protocol

from danube.log.cache import StoredBatch
from danube.log.producers import ProducerSession
from danube.model.errors import DanubeError

__all__ = ["Sender", "Waiter"]


class Waiter(Protocol):
    """An object that has handed in batches and is notified of their outcome."""

    in_flight: int
    """Number of batches that were taken and have not settled. Maintained by the intake; initially 0."""

    def settled(self, token: Any, batch: StoredBatch, error: DanubeError | None, /) -> None:
        """A batch has reached its durability, or (``error``) will not, or is delayed. Called in sequence order.

        Args:
            token: passed with the batch to :meth:`Intake.take` or :meth:`Intake.compose`.
            batch: as it was appended, at its ``base_offset``.
            error: why it is not durable; if retryable, it may still become durable, and may be sent again.
        """
        ...


class Sender(Waiter, Protocol):
    """An object that publishes to a topic under one producer's session."""

    @property
    def session(self) -> ProducerSession:
        """Its session, from :meth:`Intake.open`."""
        ...

    def end(self, error: DanubeError | None, /) -> None:
        """Stop: a newer session has taken over, or the topic was deleted. None: this session has another connection."""
        ...
