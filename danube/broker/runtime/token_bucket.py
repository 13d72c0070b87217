"""Rate limits: token buckets that delay and never drop. Pure; the time is given in.

Batches cannot be cut, so a bucket works on credit: what comes while it holds tokens goes, even if it takes more than
there are, and the next one waits until the debt is paid. Up to one second's worth may come at once. The state of a
bucket is a single number, the time at which it is (or was) paid: nothing has to be filled up meanwhile, and whoever
sleeps until that time may go when it wakes, however the floating-point numbers round.
"""

from __future__ import annotations

from danube.model import Rate

__all__ = ["BURST_S", "TokenBucket"]

BURST_S = 1.0
"""What was not used for this long may be used at once."""


class TokenBucket:
    """Two buckets, for messages and for bytes; who goes needs both to hold something.

    Args:
        rate: tokens per second; a side that is 0 has no limit.
        now: the time in seconds, of a clock that does not step back. It begins full.
    """

    __slots__ = ("_byte_s", "_bytes_paid_at", "_message_s", "_messages_paid_at", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self._messages_paid_at = self._bytes_paid_at = now - BURST_S
        self._set(rate)

    def _set(self, rate: Rate) -> None:
        self.rate = rate
        self._message_s = 1 / rate.messages_per_s if rate.messages_per_s else 0.0
        self._byte_s = 1 / rate.bytes_per_s if rate.bytes_per_s else 0.0

    @property
    def paid_at(self) -> float:
        """From this time on the next batch may go."""
        return max(self._messages_paid_at, self._bytes_paid_at)

    def take(self, messages: int, size_bytes: int, now: float) -> None:
        """Take tokens for a batch that goes now. It may take more than there are."""
        earliest = now - BURST_S
        self._messages_paid_at = max(self._messages_paid_at, earliest) + messages * self._message_s
        self._bytes_paid_at = max(self._bytes_paid_at, earliest) + size_bytes * self._byte_s

    def change(self, rate: Rate, now: float) -> None:
        """Go on with another rate. What is owed, or left, in tokens stays so; what had no limit begins full."""
        messages = (self._messages_paid_at - now) / self._message_s if self._message_s else None
        size_bytes = (self._bytes_paid_at - now) / self._byte_s if self._byte_s else None
        self._set(rate)
        self._messages_paid_at = now + (-BURST_S if messages is None else messages * self._message_s)
        self._bytes_paid_at = now + (-BURST_S if size_bytes is None else size_bytes * self._byte_s)
