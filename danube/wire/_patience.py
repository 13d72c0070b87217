"""How long a server waits for the peer of a connection, and when it cuts it off. Pure: the time is passed in.

A peer must complete the preface and each block of headers in time, answer a PING when it has been silent, and accept
what is written. One that has more queued than its limit must accept some of it within the same time as for a write.
"""

from __future__ import annotations

import math
from typing import Final

from danube.model.limits import Limits

__all__ = ["CLOSING_TIMEOUT_S", "Patience"]

CLOSING_TIMEOUT_S: Final = 1.0
"""Time limit for writing the last data of a connection that has ended."""


class Patience:
    """The times of one connection. Times are in seconds, of one clock.

    Args:
        limits: ``*_timeout_s`` and ``keepalive_idle_s`` are used.
        now: when the connection was accepted.

    Attributes:
        last_read: when data arrived last.
        write_began: when the transport began to wait for the peer; infinity if it does not.
    """

    __slots__ = (
        "_framed",
        "_full_since",
        "_header_block_began",
        "_limits",
        "_opened",
        "_pinged",
        "last_read",
        "write_began",
    )

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._opened = self.last_read = now
        self.write_began = math.inf
        self._pinged = -math.inf
        self._header_block_began = math.inf
        self._framed = 0
        self._full_since = math.inf

    def lost(self, now: float, *, closing: bool, established: bool, in_header_block: bool) -> str | None:
        """Return why to cut the connection now, None if there is no reason.

        Args:
            now: the time.
            closing: whether only the last data is being written.
            established: whether the peer has completed the preface.
            in_header_block: whether a block of headers is incomplete.
        """
        limits = self._limits
        began = self._header_block_began = min(self._header_block_began, now) if in_header_block else math.inf
        if closing:
            if now - self.write_began > CLOSING_TIMEOUT_S:
                return f"it did not accept the last data within {CLOSING_TIMEOUT_S:g} s"
        elif now - self.write_began > limits.write_timeout_s:
            return f"it accepted no bytes for {limits.write_timeout_s} s (write_timeout_s)"
        if not established:
            if now - self._opened > limits.handshake_timeout_s:
                return f"no HTTP/2 preface within {limits.handshake_timeout_s} s (handshake_timeout_s)"
        elif in_header_block:
            if now - began > limits.headers_timeout_s:
                return f"headers not complete within {limits.headers_timeout_s} s (headers_timeout_s)"
        elif self._is_pinged and now - self._pinged > limits.keepalive_timeout_s:
            return f"no answer to a PING within {limits.keepalive_timeout_s} s (keepalive_timeout_s)"
        return None

    @property
    def _is_pinged(self) -> bool:
        return self._pinged > self.last_read

    def pings(self, now: float, *, established: bool, in_header_block: bool) -> bool:
        """Return whether to send a PING now, because nothing has arrived for long; it counts as sent."""
        if (
            not established
            or in_header_block
            or self._is_pinged
            or now - self.last_read <= self._limits.keepalive_idle_s
        ):
            return False
        self._pinged = now
        return True

    def moves(self, framed: int) -> bool:
        """Return whether the peer has accepted anything since the last call.

        Args:
            framed: bytes of messages that were put into frames, in all.
        """
        moved, self._framed = framed != self._framed, framed
        if moved:
            self._full_since = math.inf
        return moved

    def is_stuck(self, now: float, *, full: bool) -> bool:
        """Return whether too much has been queued for too long, without anything being accepted.

        Args:
            now: the time.
            full: whether too much is queued.
        """
        if not full:
            self._full_since = math.inf
        elif self._full_since == math.inf:
            self._full_since = now
        return now - self._full_since > self._limits.write_timeout_s
