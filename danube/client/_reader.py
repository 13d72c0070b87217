"""The reader: reads a topic from a given position on, without a subscription."""

from __future__ import annotations

import anyio.lowlevel

from danube.client._consume_options import Start, start_positions
from danube.client._generics import V
from danube.client._reader_feed import ReaderFeed
from danube.client._receiver import Receiver

__all__ = ["Reader"]


class Reader(Receiver[ReaderFeed, V]):
    """Reads a topic from a given position on; made by :meth:`Client.reader`.

    Iterate over it for messages, or over :meth:`batches` for the fast path. Partitions are served in turn, one
    delivery each. Nothing is acknowledged, and the broker stores nothing: to continue later, keep :attr:`position`.
    After a reconnect the reader continues where it was, without gap or repeat (in a topic of durability ``none``: with
    messages published from then on).
    """

    def __init__(self, topic: str, name: str, max_batch_bytes: int) -> None:
        super().__init__("reader", topic, name, max_batch_bytes)

    @property
    def position(self) -> dict[int, int]:
        """For each partition (a plain topic is partition 0) the offset of the next message to be handed out.

        ``client.reader(topic, start=position)`` continues there. While several tasks take messages, or a seek is under
        way, it is only a momentary value.
        """
        return {feed.partition: feed.position for feed in self._feeds}

    async def seek(self, start: Start) -> None:
        """Move to another position; return when the broker has started there.

        Messages that were read ahead are dropped. Cancellation stops the waiting, not the move.

        Raises:
            InvalidArgumentError: the position is invalid.
            DanubeError: the reader has ended.
        """
        places = start_positions(start, len(self._feeds))
        self._check()
        for feed, (position, time_us) in zip(self._feeds, places, strict=True):
            feed.seek(position, time_us)
        await anyio.lowlevel.checkpoint()
        await self._wait_for(lambda: not any(feed.seeking for feed in self._feeds))
