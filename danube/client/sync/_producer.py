"""The blocking producer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from danube.client import _producer
from danube.client import _receipt as receipts
from danube.client._payloads import BytesLike
from danube.client.sync._loop import Loop

__all__ = ["Pending", "Producer"]


class Pending:
    """A message that was passed to :meth:`Producer.send_nowait`."""

    __slots__ = ("_loop", "_pending")

    def __init__(self, pending: receipts.Pending, loop: Loop) -> None:
        self._pending = pending
        self._loop = loop

    @property
    def done(self) -> bool:
        """Whether the message is stored or has failed."""
        return self._pending.done

    def result(self) -> receipts.Receipt:
        """Wait for the receipt; raise the error if the message has failed."""
        return self._loop.run(self._pending.receipt)


class Producer:
    """Sends messages to one topic; made by :meth:`Client.producer`. See :class:`danube.client.Producer`."""

    def __init__(self, producer: _producer.Producer, loop: Loop) -> None:
        self._producer = producer
        self._loop = loop
        self.topic = producer.topic
        """The topic as requested."""
        self.name = producer.name
        """Name by which the broker identifies it."""

    @property
    def partitions(self) -> int:
        """Number of partitions; 0 for a plain topic."""
        return self._producer.partitions

    @property
    def stored_before(self) -> list[int]:
        """For each partition: how many messages of this name the broker had when it was opened."""
        return self._producer.stored_before

    def send(
        self,
        payload: BytesLike,
        *,
        key: str | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> receipts.Receipt:
        """Send one message and wait until it is durable."""
        return self._loop.run(
            self._producer.send,
            payload,
            key=key,
            attributes=attributes,
            deliver_at=deliver_at,
            deliver_after_s=deliver_after_s,
        )

    def send_many(
        self,
        payloads: Sequence[bytes],
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> receipts.RangeReceipt:
        """Send many messages and wait until all are durable. The fastest way to publish."""
        return self._loop.run(
            self._producer.send_many,
            payloads,
            key=key,
            keys=keys,
            attributes=attributes,
            deliver_at=deliver_at,
            deliver_after_s=deliver_after_s,
        )

    def send_nowait(
        self,
        payload: BytesLike,
        *,
        key: str | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> Pending:
        """Accept one message and return without waiting for the broker."""

        def accept() -> receipts.Pending:
            return self._producer.send_nowait(
                payload, key=key, attributes=attributes, deliver_at=deliver_at, deliver_after_s=deliver_after_s
            )

        return Pending(self._loop.call(accept), self._loop)

    def flush(self) -> None:
        """Wait until every message accepted so far is settled; raise the first failure that was not reported before."""
        self._loop.run(self._producer.flush)
