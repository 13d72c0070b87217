"""When leases end, as one client observes them. Pure: times are passed in.

A lease is a node whose version is raised by each keep-alive. A client that has seen the same version for the lease's
whole time ends the lease, on the condition that the version is still the same. So clocks of different machines are
never compared, and a client that was cut off, or slept, cannot end a lease that was renewed meanwhile. All clients of
a root look at all leases: the first one that finds one over ends it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from typing import Final

from danube.metadata import LeaseId

__all__ = ["GONE", "LeaseClock"]

GONE: Final = -1
"""Version of a node that does not exist."""
_LOOKS: Final = 4
"""How often a lease is looked at in its time to live: so it ends a quarter later than it might, at most."""


class _Watched:
    __slots__ = ("deadline", "ttl_s", "version")

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.version: int | None = None
        """The last one seen; None: not seen yet."""
        self.deadline = math.inf


class LeaseClock:
    """The leases of a store, and when to look at each."""

    def __init__(self) -> None:
        self._leases: dict[LeaseId, _Watched] = {}
        self._looks: list[tuple[float, LeaseId]] = []

    def follow(self, leases: Iterable[tuple[LeaseId, float]], now: float) -> None:
        """Take the active leases: new ones are looked at now, others that are missing are forgotten."""
        active = dict(leases)
        for lease in self._leases.keys() - active.keys():
            del self._leases[lease]
        for lease, ttl_s in active.items():
            if lease not in self._leases:
                self._leases[lease] = _Watched(ttl_s)
                heapq.heappush(self._looks, (now, lease))

    def reset(self, now: float) -> None:
        """Give every lease its full time again: the owners may have been cut off, like this client."""
        for watched in self._leases.values():
            watched.deadline = now + watched.ttl_s

    def next_look(self) -> float:
        """Return when the next lease is to be looked at; infinite if there is none."""
        while self._looks and self._looks[0][1] not in self._leases:
            heapq.heappop(self._looks)
        return self._looks[0][0] if self._looks else math.inf

    def take(self, now: float) -> LeaseId | None:
        """Return a lease that is to be looked at now. The caller passes what it finds to :meth:`seen`."""
        if self.next_look() > now:
            return None
        return heapq.heappop(self._looks)[1]

    def seen(self, lease: LeaseId, version: int, sent: float, now: float) -> bool:
        """Take the version of a lease that was read.

        Args:
            lease: what was looked at.
            version: of its node; ``GONE`` if there is none.
            sent: when the read was sent.
            now: when it was answered.

        Returns:
            Whether the lease's time is up.
        """
        watched = self._leases.get(lease)
        if watched is None:
            return False
        if version != watched.version:
            watched.version, watched.deadline = version, now + watched.ttl_s
        over = sent >= watched.deadline
        heapq.heappush(self._looks, (now + watched.ttl_s / _LOOKS if over else self._next(watched, now), lease))
        return over

    def again(self, lease: LeaseId, now: float) -> None:
        """Look at a lease again later: it could not be read."""
        watched = self._leases.get(lease)
        if watched is not None:
            heapq.heappush(self._looks, (now + watched.ttl_s / _LOOKS, lease))

    def _next(self, watched: _Watched, now: float) -> float:
        return min(now + watched.ttl_s / _LOOKS, max(watched.deadline, now))
