"""The stream of a reader: delivers messages from a position on; it sends only credit. Pure: no I/O, no clock.

Deliveries that have arrived stay valid when the stream breaks, so a new one starts after them: no gap and no repeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from danube.client._delivered import live_ranges
from danube.client._inflow import Inflow
from danube.model import api
from danube.model.errors import FailedPreconditionError
from danube.model.policies import LATEST, Durability

if TYPE_CHECKING:
    from danube.client._inflow import RequestStream

__all__ = ["ReaderFeed"]


class ReaderFeed(Inflow):
    """A topic (or one partition) as seen by one reader."""

    damage_advice = "The reader goes on behind them; seek() to read them again"

    seeking = False
    """Whether a seek was requested and no stream has started there yet."""
    _next_offset = 0  # after the deliveries that have arrived
    _seeks = 0  # the number of requested seeks
    _opened_for = 0  # the same number when the stream was opened

    @property
    def position(self) -> int:
        """Offset of the next message to be handed out."""
        for opened in self.open_batches:
            offset = opened.next_offset
            if offset is not None:
                return offset
        for item in self.queue:
            if isinstance(item, api.ConsumeBatch):
                return live_ranges(item)[0]
        return self._next_offset

    def seek(self, start: str | int, time_us: int) -> None:
        """Drop all deliveries, and open a new stream at another position."""
        self.drop_waiting()
        self.seeking = True
        self._seeks += 1
        self.caught_up = False
        self.open_message.start, self.open_message.start_time_us = start, time_us
        self.stream = None  # later deliveries of the old stream are ignored
        self.interrupt()

    def ack(self, start: int, end: int, moves: int) -> NoReturn:
        """Refuse: a reader has nothing to acknowledge."""
        self._refuse()

    def nack(self, ranges: list[int], delay_s: float | None, reason: str, moves: int) -> NoReturn:
        """Refuse: a reader has nothing to acknowledge."""
        self._refuse()

    def extend(self, ranges: list[int], lease_s: float | None, moves: int) -> NoReturn:
        """Refuse: messages of a reader do not time out."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise FailedPreconditionError(
            f"{self.topic}: messages of a reader are neither acknowledged nor refused, and do not time out; use"
            " client.consumer() to consume a subscription"
        )

    def opening(self) -> None:
        """Note which seek the next stream begins at."""
        self._opened_for = self._seeks

    def _attach(self, stream: RequestStream, answer: api.ConsumeOpened) -> None:
        # The reply to a request from before a seek may arrive in the same turn as the seek. The stream is then
        # cancelled, and nothing that it has sent is valid, in particular its start offset.
        if self._opened_for == self._seeks:
            super()._attach(stream, answer)

    def _resume(self, answer: api.ConsumeOpened) -> None:
        self.seeking = False
        self._move_to(answer.start_offset)
        self.caught_up = False
        if answer.start_offset >= answer.end_offset:
            if self.queue:
                self.queue.append(api.CaughtUp(answer.end_offset))
            else:
                self.caught_up = True

    def _move_to(self, offset: int) -> None:
        """Start the next stream at ``offset``."""
        self._next_offset = offset
        message = self.open_message
        message.start, message.start_time_us = (LATEST if self.durability is Durability.NONE else offset), 0

    def take(self, reply: api.ConsumeReply) -> None:
        """Handle a reply; as :meth:`Inflow.take`."""
        if isinstance(reply, api.ConsumeBatch):
            self._move_to(live_ranges(reply)[-1])
        super().take(reply)
