"""A reader: one consumer that reads a topic from an offset on, without a subscription.

A reader acknowledges, journals and stores nothing; it ends with its connection. It reads the log unfiltered, history
included: also batches whose delivery time has not come, and messages that have expired. On a topic of durability
``none`` it receives messages that are published while it has credit.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from danube.broker.delivery.connected_consumer import ConnectedConsumer
from danube.broker.delivery.pump import Pump
from danube.broker.delivery.source import Source
from danube.dispatch import Machine
from danube.model import api
from danube.model.ids import Offset

__all__ = ["TopicReader"]


class TopicReader(Pump):
    """One reader of one topic or partition."""

    def __init__(self, topic: Source, machine: Machine) -> None:
        super().__init__(topic, machine)
        self.start_offset = Offset(machine.position)
        self._limit_rate(None)

    def __repr__(self) -> str:
        return f"<TopicReader of {self.topic.name} at {self.machine.position}>"

    def join(self, consumer: ConnectedConsumer) -> None:
        """Connect the consumer.

        Raises:
            TopicNotFoundError: the topic was deleted.
            DataLossError: stored data is damaged.
        """
        self.topic.check_not_deleted()
        self.machine.join(consumer.consumer_id, consumer.name, trio.current_time())
        self.topic.readers[self] = None
        self._connected(consumer)

    def share_rate(self) -> None:
        """Apply the changed dispatch rate of the namespace."""
        self._limit_rate(None)
        self.pump()

    def leave(self, consumer: ConnectedConsumer) -> None:
        """Disconnect the consumer."""
        self.topic.readers.pop(self, None)
        super().leave(consumer)

    def flush_acks(self, consumer: ConnectedConsumer, token: int) -> None:
        """Reply at once: there are no acknowledgements to wait for."""
        consumer.send(api.AcksFlushed(token))

    def _skip(self, ranges: Sequence[int]) -> None:
        self.machine.discard(ranges, trio.current_time())
