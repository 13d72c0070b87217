"""Allowances that limit cheap requests with expensive effects (Rapid Reset and related attacks). Pure."""

from __future__ import annotations

__all__ = ["Allowance"]


class Allowance:
    """Holds up to ``capacity`` tokens, refilled evenly over ``period_s`` seconds. The caller passes the time.

    It polices: a peer that takes more than there is has exceeded the limit, and its connection ends. Publish and
    delivery rates are shaped instead, by ``danube.broker.runtime.token_bucket.TokenBucket``: it lends tokens, and says
    when the debt is paid. An allowance counts tokens, so that rounding never refuses the hundredth of a hundred
    requests; a token bucket stores a time, so that rounding never delays a batch whose caller wakes at that time.

    Args:
        name: of the limit, for the error.
        capacity: most tokens; it begins with these.
        period_s: seconds in which an empty one fills up.
        now: the time in seconds, of a clock that never steps back.
    """

    __slots__ = ("_capacity", "_rate", "_tokens", "_updated", "name")

    def __init__(self, name: str, capacity: int, period_s: float, now: float) -> None:
        self.name = name
        self._capacity = float(capacity)
        self._rate = capacity / period_s
        self._tokens = float(capacity)
        self._updated = now

    def take(self, count: int, now: float) -> bool:
        """Take ``count`` tokens at time ``now`` (seconds); False if there are fewer."""
        tokens = self._tokens
        if tokens < count:
            # Refilled only when too few tokens are left, so the common case is one comparison.
            tokens = min(self._capacity, tokens + (now - self._updated) * self._rate)
            self._updated = now
        self._tokens = tokens - count
        return tokens >= count
