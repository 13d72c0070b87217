"""Shared base of blocking consumers and readers: taking messages and batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

import anyio

from danube.client import _message
from danube.client._checks import check_seconds
from danube.client._inflow import Inflow, OpenBatch
from danube.client._message import Source
from danube.client._receiver import Receiver as AsyncReceiver
from danube.client.sync._loop import Loop
from danube.client.sync._messages import Batch, Message
from danube.model.errors import DeadlineExceededError

__all__ = ["Receiver"]

F = TypeVar("F", bound=Inflow)
T = TypeVar("T")


class Receiver(Generic[F]):
    """Common base of :class:`Consumer` and :class:`Reader`. Iterate over it for messages."""

    def __init__(self, receiver: AsyncReceiver[F], loop: Loop) -> None:
        self._receiver = receiver
        self._loop = loop
        self._open: OpenBatch[Message] | None = None
        self._open_lock = threading.Lock()
        self.topic = receiver.topic
        """The topic as requested."""
        self.name = receiver.name
        """Name of this consumer within the subscription; a reader may have none."""

    @property
    def caught_up(self) -> bool:
        """Whether all messages that were in the topic have been taken."""
        return self._receiver.caught_up

    @property
    def dropped_messages(self) -> int:
        """Messages of a ``none`` topic that the broker dropped because they were not taken fast enough."""
        return self._receiver.dropped_messages

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return self.receive()

    def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message; wait for one if necessary.

        Raises:
            DeadlineExceededError: none came within ``timeout_s`` seconds.
            InvalidArgumentError: ``timeout_s`` is no number of seconds.
            DataLossError, DanubeError: as :meth:`danube.client.Consumer.receive`.
        """
        with self._open_lock:
            while True:
                message = None if self._open is None else next(self._open.messages, None)
                if message is not None:
                    return message
                # Batches handed out one by one are opened at the inflow, which keeps the other messages from timing
                # out.
                self._open = self._take(lambda feed, batch: feed.open(batch, Message), timeout_s=timeout_s)

    def receive_batch(self, timeout_s: float | None = None) -> Batch:
        """Return the next batch; as :meth:`receive`."""
        batch = self._take(_whole, timeout_s=timeout_s)
        assert batch is not None
        return batch

    def batches(self, *, until_caught_up: bool = False) -> Iterator[Batch]:
        """Iterate over batches; with ``until_caught_up``, end when the backlog has been taken."""
        while (batch := self._take(_whole, until_caught_up=until_caught_up)) is not None:
            yield batch

    def _source(self, feed: F) -> Source:
        """Return the thread-safe receiver of acknowledgements, refusals and lease extensions for ``feed``."""
        return feed

    def _take(
        self, hand_out: Callable[[F, Batch], T], *, until_caught_up: bool = False, timeout_s: float | None = None
    ) -> T | None:
        receiver = self._receiver
        if timeout_s is not None:
            timeout_s = check_seconds("timeout_s", timeout_s, zero=True)

        async def take() -> T | None:
            taken: _message.Batch | None = None
            with anyio.move_on_after(timeout_s) as scope:
                taken = await receiver._next_batch(until_caught_up=until_caught_up)
                if taken is None:
                    return None
            if taken is None:
                assert scope.cancelled_caught
                raise DeadlineExceededError(f"{self.topic}: no message within {timeout_s:g} s")
            feed = receiver._feeds[taken.partition]
            return hand_out(feed, Batch.adopt(taken, self._source(feed)))

        return self._loop.run(take)


def _whole(feed: Inflow, batch: Batch) -> Batch:
    return batch
