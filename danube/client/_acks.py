"""Collects the acknowledgements of a consumer until they are sent and confirmed. Pure: no I/O, no clock.

Acknowledgements are ranges and most arrive in order, so :meth:`AckLedger.add` usually changes one integer. An
acknowledgement that was sent is kept until the broker has confirmed it (with a FlushAcks token): if the connection
breaks before, it is sent again on the next one, and messages that the broker redelivers are dropped::

    collected --take()--> sent --token()--> awaiting --confirmed()--> forgotten
        ^                   |                   |
        +---------------- lost() ---------------+

For the broker, a cumulative acknowledgement covers all messages that it has delivered so far, possibly more than the
client has received. A repeated acknowledgement, possibly to a restarted broker, must not cover messages that were not
handed to the application (such as delayed messages, which others overtake). So it is repeated as the ranges that were
handed out (:class:`HandedOut`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from danube.model.ranges import RangeSet

__all__ = ["AckLedger", "HandedOut"]


class HandedOut:
    """Messages of one topic that were handed to the application and are not covered by a cumulative acknowledgement.

    Messages come in order, so adding usually changes one integer. Beyond ``max_ranges`` the lowest are forgotten; at
    worst they are delivered again.
    """

    __slots__ = ("_end", "_max_ranges", "_ranges", "_start")

    def __init__(self, max_ranges: int) -> None:
        self._start = self._end = -1
        self._ranges = RangeSet()
        self._max_ranges = max_ranges

    def add(self, ranges: list[int]) -> None:
        """Add flat ranges."""
        if len(ranges) == 2 and ranges[0] == self._end:
            self._end = ranges[1]
            return
        self._close()
        self._start, self._end = ranges[-2:]
        for index in range(0, len(ranges) - 2, 2):
            self._ranges.add(ranges[index], ranges[index + 1])
        while len(self._ranges) > self._max_ranges:
            self._ranges.remove(*self._ranges.first())

    def take_below(self, end: int) -> list[tuple[int, int]]:
        """Remove and return the ranges below ``end``."""
        self._close()
        found = list(self._ranges.overlap(0, end))
        self._ranges.remove(0, end)
        return found

    def clear(self) -> None:
        """Remove all ranges."""
        self._start = self._end = -1
        self._ranges.clear()

    def _close(self) -> None:
        if self._end >= 0:
            self._ranges.add(self._start, self._end)
            self._start = self._end = -1


class AckLedger:
    """Acknowledged offsets of one topic that are not confirmed yet."""

    __slots__ = (
        "_awaiting",
        "_covered",
        "_cumulative",
        "_end",
        "_next_token",
        "_ranges",
        "_sent",
        "_start",
        "_token",
    )

    def __init__(self) -> None:
        self._start = self._end = -1
        self._ranges = RangeSet()
        self._sent = RangeSet()
        self._awaiting = RangeSet()
        self._cumulative = -1
        self._covered = RangeSet()  # covered by the collected cumulative acknowledgement
        self._token = 0
        self._next_token = 1

    def add(self, start: int, end: int) -> bool:
        """Acknowledge ``[start, end)``. Return True if nothing was collected before: then wake the sender."""
        if start == self._end:
            self._end = end
            return False
        first = self._end < 0
        if not first:
            self._ranges.add(self._start, self._end)
        self._start, self._end = start, end
        return first

    def add_cumulative(self, offset: int, handed_out: Iterable[tuple[int, int]]) -> None:
        """Acknowledge everything up to and including ``offset``; ``handed_out`` are the ranges that this client had."""
        self._cumulative = max(self._cumulative, offset)
        self._covered.add(offset, offset + 1)
        for start, end in handed_out:
            self._covered.add(start, end)

    @property
    def collected(self) -> bool:
        """Whether there are acknowledgements to send."""
        return self._end >= 0 or self._cumulative >= 0

    @property
    def unconfirmed(self) -> bool:
        """Whether acknowledgements were sent after the last token."""
        return bool(self._sent)

    @property
    def sent_ranges(self) -> int:
        """Number of separate ranges sent after the last token, which determines the memory that they take."""
        return len(self._sent)

    @property
    def token_pending(self) -> bool:
        """Whether a token is in flight."""
        return self._token != 0

    @property
    def next_token(self) -> int:
        """The number of the next token."""
        return self._next_token

    @property
    def settled(self) -> bool:
        """Whether the broker has confirmed everything."""
        return not (self.collected or self.unconfirmed or self._token)

    def take(self) -> tuple[list[int], int]:
        """Return ``(ranges to acknowledge, offset to acknowledge up to or -1)`` and mark them as sent."""
        if self._end >= 0:
            self._ranges.add(self._start, self._end)
            self._start = self._end = -1
        flat = self._ranges.to_flat()
        for ranges in (self._ranges, self._covered):
            for start, end in ranges:
                self._sent.add(start, end)
            ranges.clear()
        cumulative, self._cumulative = self._cumulative, -1
        return flat, cumulative

    def token(self) -> int:
        """Return a token; the broker's reply to it confirms all acknowledgements sent so far."""
        self._token = self._next_token
        self._next_token += 1
        if self._awaiting:
            for start, end in self._sent:
                self._awaiting.add(start, end)
        else:
            self._awaiting = self._sent
        self._sent = RangeSet()
        return self._token

    def confirmed(self, token: int) -> None:
        """Handle the broker's reply to ``token``; tokens older than the last are ignored."""
        if token == self._token:
            self._token = 0
            self._awaiting = RangeSet()

    def lost(self) -> None:
        """Collect unconfirmed acknowledgements again: the connection broke."""
        for pairs in (self._awaiting, self._sent, self._covered):
            for start, end in pairs:
                self._ranges.add(start, end)
        if self._ranges and self._end < 0:
            self._start, self._end = self._ranges.first()
        self._cumulative = -1
        self._sent, self._awaiting, self._covered = RangeSet(), RangeSet(), RangeSet()
        self._token = 0

    def forget(self) -> None:
        """Forget everything but a token in flight: the subscription was moved, and all acknowledgements are void."""
        self._start = self._end = -1
        for ranges in (self._ranges, self._sent, self._awaiting, self._covered):
            ranges.clear()
        self._cumulative = -1

    def unacknowledged(self, pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the parts of ``pairs`` that have not been acknowledged here, for a redelivery."""
        known = RangeSet(self._ranges)
        for others in (self._sent, self._awaiting, self._covered):
            for start, end in others:
                known.add(start, end)
        if self._end >= 0:
            known.add(self._start, self._end)
        for start, end in pairs:
            yield from known.gaps(start, end)
