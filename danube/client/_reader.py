"""The reader: reads a topic from a given position on, without a subscription."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import anyio.lowlevel

from danube.client._checks import start_position
from danube.client._reader_feed import ReaderFeed
from danube.client._receiver import Receiver
from danube.model.errors import InvalidArgumentError
from danube.model.policies import EARLIEST

__all__ = ["Reader", "Start", "start_positions"]

Start = str | int | datetime | Mapping[int, str | int | datetime]
"""Start of a reader: ``"earliest"``, ``"latest"``, an offset, a date with a time zone, or one of these for each
partition; a partition that is not named begins at the earliest message."""


class Reader(Receiver[ReaderFeed]):
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


def start_positions(start: Start, partitions: int) -> list[tuple[str | int, int]]:
    """Return ``(position, time_us)`` for each partition.

    Raises:
        InvalidArgumentError: an invalid position, or a partition that does not exist.
    """
    if not isinstance(start, Mapping):
        return [start_position(start)] * partitions
    unknown = sorted(set(start) - set(range(partitions)), key=str)
    if unknown:
        raise InvalidArgumentError(
            f"start names partition {unknown[0]!r}, but the topic has {partitions}, counted from 0 (a plain topic is 0)"
        )
    return [start_position(start.get(index, EARLIEST)) for index in range(partitions)]
