"""The option ``commitScope=partition``: each topic or partition commits its rows by itself, as a producer of its own.

An interrupted commit is completed by a repetition, which must send each row to the same partition again, although the
topic may have got more partitions meanwhile. So the driver records the number of partitions that rows were routed to
before it commits the first of them, and the tasks of a repetition route by that number.

The record is the label of a commit without stages, by one more producer for each partitioned topic.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from danube.model.errors import FailedPreconditionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danube.client.sync import Client

__all__ = ["former_targets", "record_routing", "scoped"]


@dataclass(frozen=True)
class _Routing:
    """How the last batch of a producer was routed in one topic."""

    batch_id: int
    partitions: int
    run: str
    """The label of the batch."""

    @classmethod
    def parse(cls, text: str) -> _Routing:
        batch_id, partitions, run = text.split(" ", 2)
        return cls(int(batch_id), int(partitions), run)

    def __str__(self) -> str:
        return f"{self.batch_id} {self.partitions} {self.run}"


def scoped(producer: str, topic: str) -> str:
    """Return the producer of the rows of one topic or partition, if each commits by itself."""
    digest = hashlib.blake2b(f"{producer} {topic}".encode(), digest_size=8).hexdigest()
    return f"{producer[:200]}-{digest}"


def former_targets(client: Client, producer: str, batch_id: int, topic: str, targets: Sequence[str]) -> list[str]:
    """Return the partitions to which the rows of a batch are routed: all, or, in a repetition, those of the first time.

    Args:
        client: for the calls.
        producer, batch_id: of the batch.
        topic: a partitioned topic.
        targets: all its partitions, in order.

    Raises:
        DanubeError: that is not known now.
    """
    name = _recorder(producer, topic)
    # A broker becomes the home of a producer by a stage, and only one broker may keep the record.
    with client.stages.open(targets[0], producer=name, batch_id=batch_id) as stage:
        if not stage.committed:
            return list(targets)
    recorded = _Routing.parse(client.stages.commit(name, batch_id, ()).label)
    return list(targets[: recorded.partitions] if recorded.batch_id == batch_id else targets)


def record_routing(
    client: Client, producer: str, batch_id: int, topic: str, partitions: int, label: str, taken: str
) -> bool:
    """Record how many partitions the rows of a batch were routed to, before any of them is committed.

    Args:
        client: for the calls.
        producer, batch_id, label: of the batch.
        topic: a partitioned topic.
        partitions: the number of partitions, at least 1.
        taken: the error text if the last batch has another label.

    Returns:
        Whether the rows may be committed; False: a later batch was committed, so this one counts as committed.

    Raises:
        FailedPreconditionError: the last batch has another label, or the rows of this one were routed to another number
            of partitions when it was committed in part.
    """
    routing = _Routing(batch_id, partitions, label)
    outcome = client.stages.commit(_recorder(producer, topic), batch_id, (), label=str(routing))
    recorded = routing if outcome.committed else _Routing.parse(outcome.label)
    if recorded.run != label:
        raise FailedPreconditionError(taken)
    if recorded.batch_id > batch_id:
        return False
    if recorded.partitions != partitions:
        raise FailedPreconditionError(
            f"batch {batch_id} of producer {producer!r} is being committed to {recorded.partitions} partitions of"
            f" {topic}, and these rows were routed to {partitions}: none of them was written; write the batch again"
        )
    return True


def _recorder(producer: str, topic: str) -> str:
    """Return the producer that records the routing; a space is in no topic's name."""
    return scoped(producer, f"{topic} routing")
