"""The blocking consumer."""

from __future__ import annotations

import threading

from danube.client import _consumer
from danube.client._acks import AckLedger
from danube.client._feed import Feed
from danube.client._message import Source
from danube.client.sync._loop import Loop
from danube.client.sync._messages import Message
from danube.client.sync._receiver import Receiver
from danube.model.errors import InvalidArgumentError

__all__ = ["Consumer"]


class _SafeFeed:
    """The feed of messages and batches, for acknowledging from any thread."""

    __slots__ = ("_consumer", "feed", "ledger", "ledger_moves", "partition", "topic")

    def __init__(self, feed: Feed, consumer: Consumer) -> None:
        self.feed = feed
        self.topic = feed.topic
        self.partition = feed.partition
        self.ledger = AckLedger()
        self.ledger_moves = 0
        """Number of seeks before the delivery of the messages in the ledger; others' acknowledgements are void."""
        self._consumer = consumer

    @property
    def generation(self) -> int:
        """Number of the stream: messages delivered on an older one may be delivered again."""
        return self.feed.generation

    @property
    def moves(self) -> int:
        """Number of observed seeks of the subscription: messages delivered before a seek are void after it."""
        return self.feed.moves

    def ack(self, start: int, end: int, moves: int) -> None:
        """Acknowledge ``[start, end)``, delivered after ``moves`` seeks, soon."""
        self._consumer._tell(self, start, end, moves)

    def nack(self, ranges: list[int], delay_s: float | None, reason: str, moves: int) -> None:
        """Refuse ranges."""
        self._consumer._loop.call(self.feed.nack, ranges, delay_s, reason, moves)

    def extend(self, ranges: list[int], lease_s: float | None, moves: int) -> None:
        """Move the ack timeout of ranges."""
        self._consumer._loop.call(self.feed.extend, ranges, lease_s, moves)


class Consumer(Receiver[Feed]):
    """Receives the messages of one subscription; made by :meth:`Client.consumer`. Iterate over it for messages."""

    def __init__(self, consumer: _consumer.Consumer, loop: Loop) -> None:
        super().__init__(consumer, loop)
        self._consumer = consumer
        self._lock = threading.Lock()
        self._safe = [_SafeFeed(feed, self) for feed in consumer._feeds]
        self._told = False
        self.subscription = consumer.subscription

    @property
    def active(self) -> bool:
        """False for a failover consumer on standby."""
        return self._consumer.active

    def ack_cumulative(self, message: Message) -> None:
        """Acknowledge everything in the message's topic (partition) up to and including it."""
        if not isinstance(message, Message):
            raise InvalidArgumentError(f"ack_cumulative takes a message, not {type(message).__name__}")
        self._loop.call(self._safe[message.partition].feed.ack_cumulative, message.offset, message._batch)

    def flush_acks(self) -> None:
        """Wait until every acknowledgement given so far is durable at the broker."""

        async def flush() -> None:
            self._hand_over()
            await self._consumer.flush_acks()

        self._loop.run(flush)

    def _source(self, feed: Feed) -> Source:
        return self._safe[feed.partition]

    def _tell(self, safe: _SafeFeed, start: int, end: int, moves: int) -> None:
        with self._lock:
            if moves != safe.ledger_moves:
                if moves < safe.ledger_moves:
                    return
                safe.ledger, safe.ledger_moves = AckLedger(), moves
            safe.ledger.add(start, end)
            first, self._told = not self._told, True
        if first:
            # Until the loop's thread runs this, further acknowledgements are collected.
            self._loop.soon(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            self._told = False
            taken = []
            for safe in self._safe:
                taken.append((safe.feed, safe.ledger.take()[0], safe.ledger_moves))
                safe.ledger.confirmed(safe.ledger.token())
        for feed, ranges, moves in taken:
            for start, end in zip(ranges[::2], ranges[1::2], strict=True):
                feed.ack(start, end, moves)
