"""Token buckets that limit cheap requests with expensive effects (Rapid Reset and related attacks)."""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """Holds up to ``capacity`` tokens, refilled evenly over ``period_s`` seconds. The caller passes the time."""

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
