"""Deadlines of leases, at the leader only. Pure: the time is passed in.

Members agree on which leases exist, because that is decided by the log. *When* a lease ends is decided by the clock of
one member, the leader, which then proposes the end. Nobody else looks at a clock: a member with a wrong clock, or one
that applies the log late, changes nothing.

* A new leader gives each lease its full time, beginning when the first entry of its term is applied: until then it
  does not know what former leaders have still ended.
* A leader whose own loop stood still has not seen the keep-alives that arrived meanwhile, so it extends all deadlines
  by that time before it looks at any.
* A leader proposes the end of a lease only if it has confirmed its leadership after the deadline, and no keep-alive
  came meanwhile. Otherwise one that can send but hears nothing would leave ends in the logs of others.
* A lease whose end is proposed cannot be renewed any more; the log decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from danube.metadata._contract import LeaseId

__all__ = ["LeaseClock"]

_CONFIRM_S: Final = 0.5
"""The leadership is confirmed again if that was not possible for so long."""


class LeaseClock:
    """The deadlines of all leases while this member leads.

    Attributes:
        term: the term in which it leads; 0: it does not, and there are no deadlines.
    """

    def __init__(self) -> None:
        self.term = 0
        self._ttls: dict[LeaseId, float] = {}
        self._deadlines: dict[LeaseId, float] = {}
        self._ending: set[LeaseId] = set()
        self._heap: list[tuple[float, LeaseId]] = []  # hints; the deadlines decide

    @property
    def is_empty(self) -> bool:
        """Whether no lease has a deadline."""
        return not self._deadlines

    def lead(self, term: int, leases: Mapping[LeaseId, float], now: float) -> None:
        """Give each lease its full time."""
        self.follow()
        self.term = term
        for lease, ttl_s in leases.items():
            self.granted(lease, ttl_s, now)

    def follow(self) -> None:
        """Forget all deadlines: another member has them."""
        self.term = 0
        self._ttls.clear()
        self._deadlines.clear()
        self._ending.clear()
        self._heap.clear()

    def granted(self, lease: LeaseId, ttl_s: float, now: float) -> None:
        """Add a lease."""
        if self.term:
            self._ttls[lease] = ttl_s
            self._deadlines[lease] = now + ttl_s
            heappush(self._heap, (now + ttl_s, lease))

    def ended(self, lease: LeaseId) -> None:
        """Remove a lease that has ended."""
        self._ttls.pop(lease, None)
        self._deadlines.pop(lease, None)
        self._ending.discard(lease)

    def keep_alive(self, lease: LeaseId, now: float) -> bool:
        """Renew a lease; False if it is not known, or its end is proposed."""
        ttl_s = self._ttls.get(lease)
        if ttl_s is None or lease in self._ending:
            return False
        self._deadlines[lease] = now + ttl_s
        return True

    def postpone(self, gap_s: float) -> None:
        """Extend all deadlines: the leader's loop stood still for so long."""
        for lease in self._deadlines:
            self._deadlines[lease] += gap_s
        self._heap = [(deadline, lease) for lease, deadline in self._deadlines.items() if lease not in self._ending]
        heapify(self._heap)

    def due(self, now: float) -> list[LeaseId]:
        """Return the leases whose time is up: when the leadership is confirmed, they :meth:`end`.

        They are returned again a little later.
        """
        found: list[LeaseId] = []
        while self._heap and self._heap[0][0] <= now:
            _, lease = heappop(self._heap)
            deadline = self._deadlines.get(lease)
            if deadline is None or lease in self._ending:
                continue
            if deadline > now:
                heappush(self._heap, (deadline, lease))
                continue
            found.append(lease)
        self._heap += [(now + _CONFIRM_S, lease) for lease in found]
        heapify(self._heap)
        return found

    def end(self, lease: LeaseId, now: float) -> bool:
        """Return whether the end of a lease is to be proposed now: its time is still up. It is not renewed any more."""
        deadline = self._deadlines.get(lease)
        if deadline is None or deadline > now or lease in self._ending:
            return False
        self._ending.add(lease)
        return True

    def next_look(self) -> float:
        """Return when :meth:`due` may have news; infinity if there is nothing to wait for."""
        return self._heap[0][0] if self._heap else math.inf
