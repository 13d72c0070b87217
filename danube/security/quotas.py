"""What principals use at one broker, against their quotas. Pure; the caller passes the time.

The quotas are of :class:`danube.model.quotas.PrincipalQuota`. A refusal names the quota, its value and who may change
it. What is open stays, also when a quota is lowered. Each broker counts for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from danube.model.errors import LimitExceededError
from danube.model.quotas import PrincipalQuota
from danube.security.pace import Pace
from danube.security.roles import Principal

__all__ = ["PrincipalUsage"]


class _Calls(NamedTuple):
    """The calls of one principal that has a quota of them."""

    per_s: float
    paid_at: float


class PrincipalUsage:
    """What the principals use at one broker.

    Args:
        quotas: by subject; may change at any time.
    """

    def __init__(self, quotas: Mapping[str, PrincipalQuota]) -> None:
        self._quotas = quotas
        self._streams: Counter[Principal] = Counter()
        self._calls: dict[str, _Calls] = {}

    def call(self, principal: Principal, now: float) -> None:
        """Count a unary call. A refused call does not count.

        Args:
            principal: makes it.
            now: the time in seconds, of a clock that never steps back.

        Raises:
            LimitExceededError: it makes more than ``calls_per_s``. The call may be repeated later.
        """
        if not self._quotas:
            return
        subject = str(principal)
        quota = self._quotas.get(subject)
        per_s = quota.calls_per_s if quota is not None else None
        known = self._calls.get(subject)
        if per_s is None:
            if known is not None:
                del self._calls[subject]
            return
        pace = Pace(per_s, max(1.0, per_s))
        # A debt that was made at another rate is forgiven.
        paid_at = known.paid_at if known is not None and known.per_s == per_s else 0.0
        allowed_at = pace.allowed_at(paid_at)
        if allowed_at > now:
            raise LimitExceededError(
                f"{principal} makes more calls than its quota calls_per_s = {per_s:g}; try again in"
                f" {allowed_at - now:.2g} s, or ask an administrator to raise it (danube principals quota set {subject}"
                " calls_per_s=N)"
            )
        if len(self._calls) > len(self._quotas):
            self._calls = {each: calls for each, calls in self._calls.items() if each in self._quotas}
        self._calls[subject] = _Calls(per_s, pace.take(paid_at, 1, now))

    @contextmanager
    def stream(self, principal: Principal) -> Iterator[None]:
        """Count a stream that is open during the body.

        Raises:
            LimitExceededError: ``max_streams`` are open.
        """
        streams = self._streams
        if self._quotas and (quota := self._quotas.get(str(principal))) is not None:
            most = quota.max_streams
            if most is not None and streams[principal] >= most:
                raise LimitExceededError(
                    f"{principal} has {streams[principal]} open streams at this broker, and its quota max_streams is"
                    f" {most}; close some, or ask an administrator to raise it (danube principals quota set"
                    f" {principal} max_streams=N)"
                )
        streams[principal] += 1
        try:
            yield
        finally:
            streams[principal] -= 1
            if not streams[principal]:
                del streams[principal]
