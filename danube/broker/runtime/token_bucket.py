"""Rate limits: token buckets that delay and never refuse. Pure; the caller passes the time.

Batches cannot be split, so a bucket works on credit: a batch may go while the bucket holds tokens, even if it takes
more than there are, and the next one waits until the debt is paid. Up to one second's worth may go at once. The state
of a bucket is a single number, the time at which the debt is (or was) paid: no refill is needed, and a caller that
sleeps until that time may go when it wakes, regardless of floating-point rounding.
"""

from __future__ import annotations

from typing import Final, Protocol

from danube.model import Rate

__all__ = ["BURST_S", "BothBuckets", "Bucket", "Share", "SharedBucket", "TokenBucket"]

BURST_S = 1.0
"""Unused tokens are kept for this long."""
_SPACING_GAIN: Final = 0.25
"""Weight of the newest batch in the mean that spaces the tickets of a shared bucket."""


class Bucket(Protocol):
    """A rate, as seen by what it delays."""

    @property
    def paid_at(self) -> float:
        """The time from which the next batch may go."""
        ...

    def take(self, messages: int, size_bytes: int, now: float) -> None:
        """Take tokens for a batch that goes now."""
        ...

    def look_at(self, now: float) -> float:
        """Return when to look again, now that no batch may go."""
        ...


class TokenBucket:
    """Two buckets, for messages and for bytes; a batch may go while both hold tokens.

    Args:
        rate: tokens per second; a side that is 0 has no limit.
        now: the time in seconds, of a clock that never steps back. Both buckets begin full.
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
        """The time from which the next batch may go."""
        return max(self._messages_paid_at, self._bytes_paid_at)

    def take(self, messages: int, size_bytes: int, now: float) -> None:
        """Take tokens for a batch that goes now. It may take more than the bucket holds."""
        earliest = now - BURST_S
        self._messages_paid_at = max(self._messages_paid_at, earliest) + messages * self._message_s
        self._bytes_paid_at = max(self._bytes_paid_at, earliest) + size_bytes * self._byte_s

    def look_at(self, now: float) -> float:
        """Return when to look again, now that no batch may go."""
        return self.paid_at

    def change(self, rate: Rate, now: float) -> None:
        """Change the rate. Owed or remaining tokens are carried over; a side that had no limit begins full."""
        messages = (self._messages_paid_at - now) / self._message_s if self._message_s else None
        size_bytes = (self._bytes_paid_at - now) / self._byte_s if self._byte_s else None
        self._set(rate)
        self._messages_paid_at = now + (-BURST_S if messages is None else messages * self._message_s)
        self._bytes_paid_at = now + (-BURST_S if size_bytes is None else size_bytes * self._byte_s)


class SharedBucket(TokenBucket):
    """A bucket from which many take, each through a :class:`Share` of its own.

    Shares that wait have tickets, and look again when the tickets before theirs should have been used: without them
    those that wake first take all there is, and others starve. If the owner of a ticket does not come, the tokens stay,
    and its successor goes as soon as they suffice for both.
    """

    __slots__ = ("_issued", "_served", "_spacing_s")

    def __init__(self, rate: Rate, now: float) -> None:
        super().__init__(rate, now)
        self._issued = 0
        """Number of the next ticket."""
        self._served = 0
        """Number of the first ticket that has not been used."""
        self._spacing_s = 0.0
        """What recent batches took from the bucket, as time."""

    def share(self) -> Share:
        """Return a further share."""
        return Share(self)

    def change(self, rate: Rate, now: float) -> None:
        """Change the rate, and void all tickets: the shares have to be replaced."""
        super().change(rate, now)
        self._issued = self._served = 0
        self._spacing_s = 0.0

    def issue(self) -> int:
        """Return a ticket behind all others."""
        self._issued += 1
        return self._issued - 1

    def due(self, ticket: int | None) -> float:
        """Return the time from which the owner of a ticket may take; None: it has none, and comes behind all others."""
        before = (self._issued if ticket is None else ticket) - self._served
        return self.paid_at + before * self._spacing_s if before > 0 else self.paid_at

    def use(self, ticket: int | None, messages: int, size_bytes: int, now: float) -> None:
        """Take tokens for a batch that goes now, for the owner of a ticket."""
        self.take(messages, size_bytes, now)
        took_s = max(messages * self._message_s, size_bytes * self._byte_s)
        self._spacing_s += (took_s - self._spacing_s) * _SPACING_GAIN
        if ticket is not None:
            self._served = max(self._served, ticket + 1)


class Share:
    """One of those that take from a shared bucket.

    Args:
        bucket: the bucket.
    """

    __slots__ = ("_bucket", "_ticket")

    def __init__(self, bucket: SharedBucket) -> None:
        self._bucket = bucket
        self._ticket: int | None = None

    @property
    def paid_at(self) -> float:
        """The time from which the next batch may go."""
        return self._bucket.due(self._ticket)

    def take(self, messages: int, size_bytes: int, now: float) -> None:
        """Take tokens for a batch that goes now."""
        self._bucket.use(self._ticket, messages, size_bytes, now)
        self._ticket = None

    def look_at(self, now: float) -> float:
        """Return when to look again, now that no batch may go: it has a ticket from now on."""
        if self._ticket is None:
            self._ticket = self._bucket.issue()
        return self.paid_at


class BothBuckets:
    """A bucket of its own, and a share of another; a batch may go while both hold tokens.

    Args:
        own, shared: the buckets.
    """

    __slots__ = ("_own", "_shared")

    def __init__(self, own: TokenBucket, shared: Share) -> None:
        self._own = own
        self._shared = shared

    @property
    def paid_at(self) -> float:
        """The time from which the next batch may go."""
        return max(self._own.paid_at, self._shared.paid_at)

    def take(self, messages: int, size_bytes: int, now: float) -> None:
        """Take tokens for a batch that goes now, from both."""
        self._own.take(messages, size_bytes, now)
        self._shared.take(messages, size_bytes, now)

    def look_at(self, now: float) -> float:
        """Return when to look again, now that no batch may go."""
        return self._own.paid_at if self._shared.paid_at <= now else max(self._own.paid_at, self._shared.look_at(now))
