"""The leases of a table, and their deadlines at the leader only. Pure: the time is passed in.

Members agree on which leases exist, because that is decided by the log. *When* a lease ends is decided by the clock of
one member, the leader, which then proposes the end. No other member looks at its clock: one with a wrong clock, or one
that applies the log late, changes nothing.

* A new leader begins with the deadlines when the first entry of its term is applied: until then it does not know what
  former leaders have still ended. Nor does it know when they have heard which keep-alive. But those that were
  *answered* had arrived before a majority heard the leader for the last time: it answers only after that. So a lease
  gets its full time, less the *silence*: the time for which none of the voters that elected the new leader had heard
  another one. It gets half of its time in any case, so that its holder finds the new leader.
* A leader whose own loop stood still has not seen the keep-alives that arrived meanwhile, so it extends all deadlines
  by that time before it looks at any.
* A leader proposes the end of a lease only if it has confirmed its leadership after the deadline, and no keep-alive
  came meanwhile. Otherwise one that can send but hears nothing would leave ends in the logs of others.
* A lease whose end is proposed cannot be renewed any more; the log decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from danube.metadata._contract import LeaseId
from danube.metadata._machine import Effects
from danube.metadata.raft.confirmations import EndingLeases, KeptAlive
from danube.metadata.raft.messages import KeepAlive
from danube.raft import NodeId

__all__ = ["LeaseClock", "Leases"]

_LEAST_SHARE: Final = 1 / 2
"""Of its time that a lease gets from a new leader: its holder, whose keep-alives waited for one, sends them at once."""
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

    def lead(self, term: int, leases: Mapping[LeaseId, float], now: float, silence_s: float = 0.0) -> None:
        """Give each lease its full time, less ``silence_s``; see the module."""
        self.follow()
        self.term = term
        for lease, ttl_s in leases.items():
            self._ttls[lease] = ttl_s
            self._begin(lease, now + max(ttl_s - silence_s, ttl_s * _LEAST_SHARE))

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
            self._begin(lease, now + ttl_s)

    def _begin(self, lease: LeaseId, deadline: float) -> None:
        self._deadlines[lease] = deadline
        heappush(self._heap, (deadline, lease))

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


class Leases:
    """The leases of a member's table; while it leads, they are renewed and ended here.

    Args:
        leases: of the table, with their times in seconds.
    """

    def __init__(self, leases: Iterable[tuple[LeaseId, float]]) -> None:
        self._ttls = dict(leases)
        self._clock = LeaseClock()

    @property
    def term(self) -> int:
        """The term in which this member decides about leases; 0: it does not."""
        return self._clock.term

    @property
    def need_time(self) -> bool:
        """Whether a lease has a deadline."""
        return not self._clock.is_empty

    @property
    def next_look(self) -> float:
        """When :meth:`due` may have news; infinity if there is nothing to wait for."""
        return self._clock.next_look() if self._clock.term else math.inf

    def replace(self, leases: Iterable[tuple[LeaseId, float]]) -> None:
        """Take over the leases of another table."""
        self._ttls = dict(leases)

    def changed(self, effects: Effects, now: float) -> None:
        """Record leases that applied entries have created and ended."""
        for lease, ttl_s in effects.granted:
            self._ttls[lease] = ttl_s
            self._clock.granted(lease, ttl_s, now)
        for lease in effects.revoked:
            self._ttls.pop(lease, None)
            self._clock.ended(lease)

    def lead(self, term: int, now: float, silence_s: float = 0.0) -> None:
        """Begin with the deadlines: an entry of this member's own term is applied.

        Args:
            term: this member's term.
            now: the time.
            silence_s: for how long no leader had been heard when this member was elected; see the module.
        """
        self._clock.lead(term, self._ttls, now, silence_s)

    def follow(self) -> None:
        """Leave the deadlines to another member."""
        if self._clock.term:
            self._clock.follow()

    def postpone(self, gap_s: float) -> None:
        """Extend all deadlines: the loop stood still for so long."""
        self._clock.postpone(gap_s)

    def renew(self, sender: NodeId, message: KeepAlive, last_index: int, now: float) -> KeptAlive:
        """Renew leases at once; to be answered when the leadership is confirmed: another leader may have ended them.

        Args:
            sender: the member whose callers they are.
            message: its message.
            last_index: the end of the log.
            now: the time.
        """
        doubtful = tuple(lease for lease in message.leases if not self._clock.keep_alive(lease, now))
        return KeptAlive(sender, message.token, message.leases, doubtful, last_index)

    def renewed(self, kept: KeptAlive, now: float) -> tuple[LeaseId, ...] | None:
        """Return which of these leases have ended; None: that is not decided yet, and the sender asks again."""
        ended = tuple(lease for lease in kept.leases if lease not in self._ttls)
        for lease in kept.doubtful:
            if lease in self._ttls and not self._clock.keep_alive(lease, now):
                return None  # its end is proposed
        return ended

    def due(self, now: float) -> EndingLeases | None:
        """Return the leases whose time is up, to be ended once the leadership is confirmed."""
        if not self._clock.term:
            return None
        due = self._clock.due(now)
        return EndingLeases(tuple(due)) if due else None

    def end(self, due: EndingLeases, now: float) -> list[LeaseId]:
        """Return those of them whose end is to be proposed: they were not renewed meanwhile."""
        return [lease for lease in due.leases if self._clock.end(lease, now)]
