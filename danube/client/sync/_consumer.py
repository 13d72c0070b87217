"""The core of the blocking consumer: collects acknowledgements from all threads, and passes them on together."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from danube.client._acks import AckLedger
from danube.client._consumer import Consumer
from danube.client._generics import V
from danube.client.sync._messages import LoopSource, Message
from danube.client.sync._receiver import ReceiverCore
from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from danube.client._delivered import Source
    from danube.client._feed import Feed
    from danube.client.sync._loop import Loop

__all__ = ["ConsumerCore"]


class _SafeFeed(LoopSource):
    """A thread-safe receiver of the acknowledgements of one feed."""

    __slots__ = ("_consumer", "ledger", "ledger_moves")

    def __init__(self, feed: Feed, loop: Loop, consumer: ConsumerCore[Any]) -> None:
        super().__init__(feed, loop)
        self.ledger = AckLedger()
        self.ledger_moves = 0
        """Number of seeks before the messages in the ledger were delivered; acknowledgements of older messages are
        void."""
        self._consumer = consumer

    def ack(self, start: int, end: int, moves: int) -> None:
        """Acknowledge ``[start, end)``, delivered after ``moves`` seeks, soon."""
        self._consumer._collect(self, start, end, moves)


class ConsumerCore(ReceiverCore[Consumer[V], V]):
    """The part of :class:`Consumer` that is not generated."""

    def __init__(self, inner: Consumer[V], loop: Loop) -> None:
        super().__init__(inner, loop)
        self._lock = threading.Lock()
        self._safe = [_SafeFeed(feed, loop, self) for feed in inner._feeds]
        self._is_scheduled = False

    def ack_cumulative(self, message: Message[Any]) -> None:
        """Acknowledge all messages delivered from the message's topic (partition), up to and including this one.

        Delayed messages that were not delivered yet are excluded. For exclusive and failover subscriptions only.
        """
        if not isinstance(message, Message):
            raise InvalidArgumentError(f"ack_cumulative takes a message, not {type(message).__name__}")
        feed = self._inner._feeds[message.partition]
        self._loop.call(feed.ack_cumulative, message.offset, message._batch)

    def flush_acks(self) -> None:
        """Wait until every acknowledgement given so far is durable at the broker.

        In a key-shared subscription acknowledgements take effect in the order of their key: one that precedes the
        acknowledgement of an earlier message of its key becomes durable together with that, and is not waited for here.

        Raises:
            DanubeError: the subscription has ended, so the acknowledgements will never arrive.
        """

        async def flush() -> None:
            self._hand_over()
            await self._inner.flush_acks()

        self._loop.run(flush)

    def _leave(self) -> None:
        self._loop.call(self._hand_over)

    def _source(self, feed: Any) -> Source:
        return self._inner._observed(self._safe[feed.partition])

    def _collect(self, safe: _SafeFeed, start: int, end: int, moves: int) -> None:
        with self._lock:
            if moves != safe.ledger_moves:
                if moves < safe.ledger_moves:
                    return
                safe.ledger, safe.ledger_moves = AckLedger(), moves
            safe.ledger.add(start, end)
            first, self._is_scheduled = not self._is_scheduled, True
        if first:
            # Until the loop's thread runs this, further acknowledgements are collected.
            self._loop.soon(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            self._is_scheduled = False
            taken = []
            for safe in self._safe:
                taken.append((safe.feed, safe.ledger.take()[0], safe.ledger_moves))
                safe.ledger.confirmed(safe.ledger.token())
        for feed, ranges, moves in taken:
            for start, end in zip(ranges[::2], ranges[1::2], strict=True):
                feed.ack(start, end, moves)
