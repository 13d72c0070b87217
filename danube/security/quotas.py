"""Quotas of principals: ledgers of counts and rates. Pure; the caller passes the time.

Those of namespaces are in :mod:`danube.model.quotas`.

A count that has reached its quota refuses what would add to it, and nothing else: what exists stays, also when a quota
is lowered. A rate delays, as other rates of the broker do; only single calls are refused. A refusal names the quota,
its value and who may change it. Each broker counts for itself: it does not ask others for each message.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.security.pace import Pace

__all__ = [
    "PrincipalLedger",
    "PrincipalQuota",
    "check_quota",
]

_BURST_S: Final = 1.0
"""Unused parts of a rate are kept for this long."""


class PrincipalQuota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a principal may use at most, at each broker; None: no quota."""

    max_connections: int | None = None
    """Connections to one broker."""
    max_streams: int | None = None
    """Open streams at one broker: producers and consumers."""
    calls_per_s: float | None = None
    """Unary calls. More are refused."""
    publish_bytes_per_s: float | None = None
    consume_bytes_per_s: float | None = None


def check_quota(quota: PrincipalQuota) -> None:
    """Raise InvalidArgumentError if a value is out of range: counts are not negative, rates are positive and finite."""
    for name in quota.__struct_fields__:
        value = getattr(quota, name)
        if value is None:
            continue
        if name.endswith("_per_s"):
            if not 0 < value < math.inf:
                raise InvalidArgumentError(f"{name} = {value:g} must be greater than 0 and finite, or absent")
        elif value < 0:
            raise InvalidArgumentError(f"{name} = {value} must not be negative")


class _Rate:
    """A rate that may change."""

    __slots__ = ("_pace", "paid_at")

    def __init__(self) -> None:
        self._pace = Pace(0, 0)
        self.paid_at = -math.inf

    def change(self, per_s: float | None, now: float) -> None:
        """Set the rate. A debt of more than a second is cut to one, as it was made at another rate."""
        rate = per_s or 0
        self._pace = Pace(rate, max(1.0, rate * _BURST_S))
        self.paid_at = min(self.paid_at, now + _BURST_S)

    def allowed_at(self, now: float) -> float:
        """Return when the next amount may be taken; now if at once. It may be larger than what is left."""
        allowed_at = self._pace.allowed_at(self.paid_at)
        return allowed_at if allowed_at > now else now

    def take(self, amount: float, now: float) -> None:
        self.paid_at = self._pace.take(self.paid_at, amount, now)


class PrincipalLedger:
    """What a principal uses at one broker, against its quota.

    Args:
        principal: its name.
        quota: its quota.
        now: the time in seconds, of a clock that never steps back.
    """

    def __init__(self, principal: str, quota: PrincipalQuota, now: float) -> None:
        self._principal = principal
        self.connections = 0
        """Kept current by its owner, like the next one."""
        self.streams = 0
        self._calls, self._published, self._consumed = _Rate(), _Rate(), _Rate()
        self.quota = quota
        self.change(quota, now)

    def change(self, quota: PrincipalQuota, now: float) -> None:
        """Set the quota. What is in use stays."""
        self.quota = quota
        self._calls.change(quota.calls_per_s, now)
        self._published.change(quota.publish_bytes_per_s, now)
        self._consumed.change(quota.consume_bytes_per_s, now)

    @property
    def is_idle(self) -> bool:
        """Whether it has neither connections nor streams."""
        return not self.connections and not self.streams

    def check_connections(self) -> None:
        """Check that it may connect once more.

        Raises:
            LimitExceededError: the quota is reached.
        """
        self._check("max_connections", self.connections, "connections")

    def check_streams(self) -> None:
        """Check that it may open one more stream; raises as :meth:`check_connections`."""
        self._check("max_streams", self.streams, "open streams")

    def call(self, now: float) -> None:
        """Count a unary call, or refuse it; raises as :meth:`check_connections`. A refused call does not count."""
        allowed_at = self._calls.allowed_at(now)
        if allowed_at > now:
            raise LimitExceededError(
                f"{self._principal} makes more calls than its quota calls_per_s, which is {self.quota.calls_per_s:g};"
                f" try again in {allowed_at - now:.2g} s, or ask an administrator to raise it"
            )
        self._calls.take(1, now)

    def publish_at(self, now: float) -> float:
        """Return when the next batch may be accepted; ``now`` if at once."""
        return self._published.allowed_at(now)

    def published(self, size_bytes: int, now: float) -> None:
        """A batch was accepted; it may exceed the rate, which delays the next ones."""
        self._published.take(size_bytes, now)

    def consume_at(self, now: float) -> float:
        """Return when the next batch may be sent; ``now`` if at once."""
        return self._consumed.allowed_at(now)

    def consumed(self, size_bytes: int, now: float) -> None:
        """A batch was sent; it may exceed the rate, which delays the next ones."""
        self._consumed.take(size_bytes, now)

    def _check(self, name: str, used: int, what: str) -> None:
        most = getattr(self.quota, name)
        if most is not None and used >= most:
            raise LimitExceededError(
                f"{self._principal} has {used} {what} at this broker, and its quota {name} is {most}; close some, or"
                " ask an administrator to raise it"
            )
