"""The progress of reading a range of a log: what has arrived, and the credit for more. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from danube.model import api
from danube.model.batch import check_part
from danube.model.errors import CorruptBatchError, DataLossError, FailedPreconditionError
from danube.model.ids import TopicId
from danube.model.policies import Durability
from danube.model.query_api import RawBatch

if TYPE_CHECKING:
    from danube.client._inflow import RequestStream

__all__ = ["LogRange"]

_encode = msgspec.msgpack.Encoder().encode

_MOST_MESSAGES: Final = 1_000_000
"""Maximum credit in messages granted at a time."""


class LogRange:
    """A range of a log.

    Args:
        topic: the name of the topic or partition.
        topic_id: its id; 0: any.
        start, end: the range of offsets.
        credit_bytes: bytes that may be under way.

    Attributes:
        next_offset: all messages below it have arrived or were removed.
        arrived: batches that were not taken yet.
    """

    def __init__(self, topic: str, topic_id: TopicId, start: int, end: int, credit_bytes: int) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self.next_offset = start
        self._end = end
        self._credit_bytes = credit_bytes
        self._granted = 0
        self._charged = 0
        self._stream: RequestStream
        self.arrived: deque[RawBatch] = deque()

    @property
    def is_exhausted(self) -> bool:
        """Whether the whole range has arrived."""
        return self.next_offset >= self._end

    def check(self, answer: api.ConsumeOpened) -> None:
        """Check that the broker has the range.

        Raises:
            FailedPreconditionError: the topic stores nothing, or was deleted and created again.
            DataLossError: its log ends before the range does.
        """
        if answer.durability is Durability.NONE:
            raise FailedPreconditionError(
                f"topic {self._topic!r} has durability 'none': it stores nothing, so nothing can be read"
            )
        if answer.topic_id != (self._topic_id or answer.topic_id):
            raise FailedPreconditionError(
                f"topic {self._topic!r} was deleted and created again, so its messages are gone; plan the query again"
            )
        self._topic_id = answer.topic_id
        if answer.end_offset < self._end:
            first = max(self.next_offset, answer.end_offset)
            raise DataLossError(
                f"topic {self._topic!r}: offsets [{first}, {self._end}) are not there: its log ends at"
                f" {answer.end_offset}"
            )

    def begin(self, stream: RequestStream, answer: api.ConsumeOpened) -> None:
        """Use a stream that the broker has opened at :attr:`next_offset`."""
        self._stream = stream
        self._granted = 0
        self._charged = 0
        self._move_to(answer.start_offset)
        self._grant(self._credit_bytes)

    def _lacks_messages(self) -> bool:
        """Return whether the broker may soon lack credit in messages to send the rest of the range."""
        return self._granted < min(self._end - self.next_offset, _MOST_MESSAGES // 2)

    def _grant(self, size_bytes: int) -> None:
        messages = min(self._end - self.next_offset - self._granted, _MOST_MESSAGES - self._granted)
        if messages > 0 or size_bytes:
            self._granted += max(0, messages)
            self._stream.send_nowait(_encode(api.Credit(max(0, messages), size_bytes)))

    def _move_to(self, offset: int) -> None:
        """Record that all messages below an offset have arrived or were removed."""
        self.next_offset = max(self.next_offset, offset)

    def take(self, reply: api.ConsumeReply) -> None:
        """Handle a reply of the current stream.

        Raises:
            DataLossError: a batch arrived damaged.
        """
        if isinstance(reply, api.CaughtUp):
            # All messages below it were delivered or removed.
            self._move_to(reply.end_offset)
        elif isinstance(reply, api.ConsumeBatch) and reply.base_offset < self._end:
            part = reply.part
            try:
                count = check_part(part).record_count
            except CorruptBatchError as error:
                raise DataLossError(
                    f"topic {self._topic!r}: the batch at offset {reply.base_offset} arrived damaged: {error.message};"
                    " read it again"
                ) from error
            batch = RawBatch(reply.base_offset, reply.append_time_us, reply.producer_name, part)
            self._granted = max(0, self._granted - (reply.ranges[-1] - reply.ranges[0] if reply.ranges else count))
            self._move_to(reply.base_offset + count)
            self.arrived.append(batch)
            self._charged += reply.charged_bytes
            if self.next_offset < self._end and (self._charged * 4 >= self._credit_bytes or self._lacks_messages()):
                charged, self._charged = self._charged, 0
                self._grant(charged)
        elif isinstance(reply, api.ConsumeBatch):
            self._move_to(reply.base_offset)  # the requested messages were removed; this batch is behind them
