"""What principals use at one broker, against their quotas. Pure; the caller passes the time.

The quotas are of :class:`danube.model.quotas.PrincipalQuota`. A refusal names the quota, its value and who may change
it. What is open stays, also when a quota is lowered. Each broker counts for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import NamedTuple
from weakref import WeakValueDictionary

from danube.model.errors import LimitExceededError
from danube.model.quotas import PrincipalQuota
from danube.security.pace import Pace
from danube.security.roles import Principal

__all__ = ["Flow", "PrincipalUsage"]


class _Calls(NamedTuple):
    """The calls of one principal that has a quota of them."""

    per_s: float
    paid_at: float


class Flow:
    """The bytes of one principal in one direction.

    Args:
        rate: returns its quota in bytes per second; None: it has none.
    """

    __slots__ = ("__weakref__", "_paid_at", "_per_s", "_rate")

    def __init__(self, rate: Callable[[], float | None]) -> None:
        self._rate = rate
        self._per_s: float | None = None
        self._paid_at = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether there is a quota."""
        return self._rate() is not None

    def _pace(self) -> Pace | None:
        per_s = self._rate()
        if per_s != self._per_s:
            self._per_s, self._paid_at = per_s, 0.0  # a debt that was made at another rate is forgiven
        return None if per_s is None else Pace(per_s, per_s)

    def pause_s(self, now: float) -> float:
        """Return after how many seconds more may flow; 0: at once."""
        pace = self._pace()
        if pace is None:
            return 0.0
        # A batch may take more than there is: the next one waits until all of it is paid.
        return max(0.0, pace.allowed_at(self._paid_at) - now)

    def take(self, size_bytes: int, now: float) -> None:
        """Count bytes; there may be more than the quota allows, which delays the next ones."""
        pace = self._pace()
        if pace is not None:
            self._paid_at = pace.take(self._paid_at, size_bytes, now)


class PrincipalUsage:
    """What the principals use at one broker.

    Args:
        quotas: by subject; may change at any time.
    """

    def __init__(self, quotas: Mapping[str, PrincipalQuota]) -> None:
        self._quotas = quotas
        self._streams: Counter[Principal] = Counter()
        self._calls: dict[str, _Calls] = {}
        self._flows: WeakValueDictionary[tuple[Principal, str], Flow] = WeakValueDictionary()
        """In use, by principal and field of the quota."""
        self._kept: dict[tuple[Principal, str], Flow] = {}
        """Those with a quota: what is owed outlasts calls and streams."""

    def publishing(self, principal: Principal) -> Flow:
        """Return what a principal publishes; all its streams share it."""
        return self._flow(principal, "publish_bytes_per_s")

    def consuming(self, principal: Principal) -> Flow:
        """Return what a principal is sent; all its streams share it."""
        return self._flow(principal, "consume_bytes_per_s")

    def _flow(self, principal: Principal, name: str) -> Flow:
        key = principal, name
        found = self._flows.get(key)
        if found is None:
            quotas, subject, get = self._quotas, str(principal), attrgetter(name)

            def rate() -> float | None:
                quota = quotas.get(subject) if quotas else None
                return None if quota is None else get(quota)

            found = self._flows[key] = Flow(rate)
        if self._quotas and found.is_limited:
            self._kept[key] = found
        if len(self._kept) > 2 * len(self._quotas):
            self._kept = {each: flow for each, flow in self._kept.items() if flow.is_limited}
        return found

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
