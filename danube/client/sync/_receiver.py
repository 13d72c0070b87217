"""Shared core of blocking consumers and readers: taking messages and batches, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio

from danube.client import _message
from danube.client._checks import check_seconds
from danube.client._delivered import OpenBatch, Source
from danube.client._generics import V
from danube.client._inflow import Inflow
from danube.client._receiver import Receiver
from danube.client.sync._handles import Handle
from danube.client.sync._loop import Loop
from danube.client.sync._messages import Batch, Message
from danube.model.errors import DeadlineExceededError

if TYPE_CHECKING:
    from danube.client._instruments import Processing

__all__ = ["ReceiverCore"]

R = TypeVar("R", bound=Receiver[Any, Any])
T = TypeVar("T")


class ReceiverCore(Handle[R], Generic[R, V]):
    """The part of :class:`Consumer` and :class:`Reader` that is not generated."""

    def __init__(self, inner: R, loop: Loop) -> None:
        super().__init__(inner, loop)
        self._open: OpenBatch[Message[V]] | None = None
        self._open_lock = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[V]:
        return self.receive()

    def receive(self, timeout_s: float | None = None) -> Message[V]:
        """Return the next message; wait for one if necessary.

        Raises:
            DeadlineExceededError: no message arrived within ``timeout_s`` seconds.
            InvalidArgumentError: ``timeout_s`` is not a number of seconds.
            DataLossError, DanubeError: as :meth:`danube.client.Consumer.receive`.
        """
        with self._open_lock:
            while True:
                message = None if self._open is None else next(self._open.messages, None)
                if message is not None:
                    return message
                # Batches handed out one by one are opened at the inflow, which renews the leases of their waiting
                # messages.
                self._open = self._take(lambda feed, batch: feed.open(batch, batch.kind), timeout_s=timeout_s)

    def receive_batch(self, timeout_s: float | None = None) -> Batch[V]:
        """Return the next batch; as :meth:`receive`."""
        batch = self._take(_whole, timeout_s=timeout_s)
        assert batch is not None
        return batch

    def batches(self, *, until_caught_up: bool = False) -> Iterator[Batch[V]]:
        """Iterate over batches; with ``until_caught_up``, end when the backlog has been taken."""
        while (batch := self._take(_whole, until_caught_up=until_caught_up)) is not None:
            yield batch

    def processing(self, message: Message[Any] | Batch[Any]) -> Processing:
        """Handle a message or batch within this block, to have it traced; as :meth:`danube.client.Consumer.processing`.

        What this thread sends within goes on with the trace.
        """
        return self._inner.processing(message)

    def _source(self, feed: Any) -> Source:
        """Return the thread-safe receiver of acknowledgements, refusals and lease extensions for ``feed``."""
        source: Source = feed
        return source

    def _take(
        self,
        hand_out: Callable[[Inflow, Batch[V]], T],
        *,
        until_caught_up: bool = False,
        timeout_s: float | None = None,
    ) -> T | None:
        receiver = self._inner
        if timeout_s is not None:
            timeout_s = check_seconds("timeout_s", timeout_s, zero=True)

        async def take() -> T | None:
            taken: _message.Batch[V] | None = None
            with anyio.move_on_after(timeout_s) as scope:
                taken = await receiver._next_batch(until_caught_up=until_caught_up)
                if taken is None:
                    return None
            if taken is None:
                assert scope.cancelled_caught
                raise DeadlineExceededError(f"{receiver.topic}: no message within {timeout_s:g} s")
            feed = receiver._feeds[taken.partition]
            return hand_out(feed, Batch.adopt(taken, self._source(feed)))

        return self._loop.run(take)


def _whole(feed: Inflow, batch: Batch[V]) -> Batch[V]:
    return batch
