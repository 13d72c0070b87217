"""Decides which leases a consumer renews, and when, to keep messages from timing out. Pure: no I/O, no clock.

A message times out at the broker when it was not acknowledged for ``ack_timeout_s``. Part of that time passes before
the application sees the message, while it waits in the client's queue. So the client renews the leases of waiting
messages every third of the timeout, and once more those of messages handed out since the last renewal: the timeout
counts from the hand-out (and is up to a third longer)::

    arrives       handed out                  fails, unless acknowledged
       |---- waits ----|---- ack_timeout_s ... + 1/3 ----|
           ^      ^      ^  renewals

A stuck application must not withhold waiting messages from other consumers: when it has given no sign of life (taken,
acknowledged, refused or extended a message) for the duration of the timeout, waiting messages are given back to the
broker, without having failed. With ``keep`` (``renew_leases=True``) messages that were handed out and not settled are
renewed, too, without a time limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from danube.model.ranges import RangeSet

__all__ = ["Leases", "RenewalClock", "chunks", "clip"]

_MAX_FRESH_NUMBERS = 20_000
_CHUNK_NUMBERS = 20_000


class RenewalClock:
    """When a consumer renews its leases next, and whether its application is alive. One clock for all partitions."""

    __slots__ = ("_alive_s", "alive", "next_s")

    def __init__(self) -> None:
        self.next_s = math.inf
        """Time of the next renewal; infinite if there is nothing to renew."""
        self.alive = False
        """Set at each sign of life."""
        self._alive_s = -math.inf

    @property
    def idle(self) -> bool:
        """Whether there is nothing to renew."""
        return self.next_s == math.inf

    def arm(self, now_s: float, timeout_s: float) -> None:
        """Schedule a renewal in time for a message that arrives now."""
        if self.idle:
            self._alive_s = now_s  # no message was waiting, so the application is not stuck
        self.next_s = min(self.next_s, now_s + timeout_s / 3)

    def stuck(self, now_s: float, timeout_s: float) -> bool:
        """Return whether the application has given no sign of life for ``timeout_s`` although messages wait for it."""
        if self.alive:
            self.alive = False
            self._alive_s = now_s
        return now_s - self._alive_s >= timeout_s

    def rest(self) -> None:
        """Stop the clock until a message arrives."""
        self.next_s = math.inf


class Leases:
    """Messages of one topic (or partition) that were handed out and whose leases are to be renewed."""

    __slots__ = ("_fresh", "_held", "_max_ranges")

    def __init__(self, *, keep: bool, max_ranges: int) -> None:
        self._fresh: list[int] = []
        self._held: RangeSet | None = RangeSet() if keep else None
        self._max_ranges = max_ranges

    def handed_out(self, ranges: list[int]) -> bool:
        """Add messages that were handed to the application.

        Return whether so many were handed out since the last renewal that the next one is due.
        """
        held = self._held
        if held is not None:
            for start, end in zip(ranges[::2], ranges[1::2], strict=True):
                held.add(start, end)
            while len(held) > self._max_ranges:  # the oldest are dropped first: they are the least likely to be in use
                held.remove(*held.first())
            return False
        fresh = self._fresh
        if fresh and fresh[-1] == ranges[0]:
            fresh[-1:] = ranges[1:]
        else:
            fresh += ranges
        return len(fresh) > _MAX_FRESH_NUMBERS

    def settled(self, ranges: list[int]) -> None:
        """Remove messages that were acknowledged or refused."""
        if self._held is not None:
            for start, end in zip(ranges[::2], ranges[1::2], strict=True):
                self._held.remove(start, end)

    def lost(self) -> None:
        """Remove messages handed out since the last renewal: their stream is gone, and all are delivered again.

        Messages that are renewed until settled remain: their redelivery waits here while a handler may still run.
        """
        self._fresh = []

    def forget(self) -> None:
        """Remove all messages: the subscription was moved, and messages handed out before are void."""
        self._fresh = []
        if self._held is not None:
            self._held.clear()

    def renewal(self) -> list[int]:
        """Return the handed-out messages to be renewed now."""
        if self._held is None:
            fresh, self._fresh = self._fresh, []
            return fresh
        return self._held.to_flat()


def clip(ranges: list[int], start: int, end: int | None = None) -> list[int]:
    """Return the part of sorted ``ranges`` within ``[start, end)``; None: no end."""
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
