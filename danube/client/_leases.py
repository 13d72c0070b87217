"""Which messages a consumer keeps from timing out, and when. Pure: no I/O, no clock.

A message times out at the broker when it was not acknowledged for ``ack_timeout_s``. Some of that time passes before
the application sees the message: it waits in the client's queue. So the client renews the leases of what waits, every
third of the timeout, and once more those of what was handed out since the last renewal: the timeout counts from the
hand-out (and is up to a third longer)::

    arrives       handed out                  fails, unless acknowledged
       |---- waits ----|---- ack_timeout_s ... + 1/3 ----|
           ^      ^      ^  renewals

An application that is stuck shall not keep the messages that wait here from others: when it has given no sign of life
(taken, acknowledged, refused or extended something) for the timeout, what waits is given back to the broker, without
having failed. With ``keep`` (``renew_leases=True``) what was handed out and not settled is renewed, too, for as long as
it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from danube.model.ranges import RangeSet

__all__ = ["Leases", "RenewalClock", "chunks", "clip"]

_MAX_FRESH_NUMBERS = 20_000
_CHUNK_NUMBERS = 20_000


class RenewalClock:
    """When a consumer renews its leases next, and whether its application is alive. One for all partitions."""

    __slots__ = ("_alive_s", "alive", "next_s")

    def __init__(self) -> None:
        self.next_s = math.inf
        """Time of the next renewal; infinite if there is nothing to renew."""
        self.alive = False
        """Set by whoever sees a sign of life."""
        self._alive_s = -math.inf

    @property
    def idle(self) -> bool:
        """Whether there is nothing to renew."""
        return self.next_s == math.inf

    def arm(self, now_s: float, timeout_s: float) -> None:
        """See to it that a renewal comes in time for something that arrives now."""
        if self.idle:
            self._alive_s = now_s  # nothing waited, so that nothing is known against the application
        self.next_s = min(self.next_s, now_s + timeout_s / 3)

    def stuck(self, now_s: float, timeout_s: float) -> bool:
        """Tell whether the application has given no sign of life for ``timeout_s`` although something waits for it."""
        if self.alive:
            self.alive = False
            self._alive_s = now_s
        return now_s - self._alive_s >= timeout_s

    def rest(self) -> None:
        """There is nothing to renew until something arrives."""
        self.next_s = math.inf


class Leases:
    """Messages of one topic (or partition) that were handed out and whose leases are to be renewed."""

    __slots__ = ("_fresh", "_held", "_max_ranges")

    def __init__(self, *, keep: bool, max_ranges: int) -> None:
        self._fresh: list[int] = []
        self._held: RangeSet | None = RangeSet() if keep else None
        self._max_ranges = max_ranges

    def handed_out(self, ranges: list[int]) -> bool:
        """Take note of messages that the application has from now on.

        Returns whether so much was handed out since the last renewal that it is time for the next one.
        """
        held = self._held
        if held is not None:
            for start, end in zip(ranges[::2], ranges[1::2], strict=True):
                held.add(start, end)
            while len(held) > self._max_ranges:  # the oldest go first: most likely nobody thinks of them any more
                held.remove(*held.first())
            return False
        fresh = self._fresh
        if fresh and fresh[-1] == ranges[0]:
            fresh[-1:] = ranges[1:]
        else:
            fresh += ranges
        return len(fresh) > _MAX_FRESH_NUMBERS

    def settled(self, ranges: list[int]) -> None:
        """Forget messages that were acknowledged or refused."""
        if self._held is not None:
            for start, end in zip(ranges[::2], ranges[1::2], strict=True):
                self._held.remove(start, end)

    def lost(self) -> None:
        """Forget what was handed out since the last renewal: its stream is gone, and everything comes again.

        What is kept until it is settled stays: when it comes again, it waits here behind a handler that still runs.
        """
        self._fresh = []

    def forget(self) -> None:
        """Forget everything: the subscription was moved, and no message that was handed out means anything to it."""
        self._fresh = []
        if self._held is not None:
            self._held.clear()

    def renewal(self) -> list[int]:
        """Return what was handed out and is to be renewed now."""
        if self._held is None:
            fresh, self._fresh = self._fresh, []
            return fresh
        return self._held.to_flat()


def clip(ranges: list[int], start: int, end: int | None = None) -> list[int]:
    """Return what of sorted ``ranges`` lies in ``[start, end)``; None has no end."""
    found: list[int] = []
    for low, high in zip(ranges[::2], ranges[1::2], strict=True):
        low = max(low, start)
        if end is not None:
            high = min(high, end)
        if low < high:
            found += low, high
    return found


def chunks(flat: list[int]) -> Iterator[list[int]]:
    """Cut a long list of ranges into pieces that fit into one request each."""
    for start in range(0, len(flat), _CHUNK_NUMBERS):
        yield flat[start : start + _CHUNK_NUMBERS]
