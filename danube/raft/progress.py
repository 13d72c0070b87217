"""Replication progress of one member, as seen by the leader: matching index, and messages in flight.

::

    PROBE ──answer that fits──▶ REPLICATE ──refusal──▶ PROBE
      │                                                  ▲
      └──entries are compacted──────▶ SNAPSHOT ──installed, failed, or silent too long──┘

PROBE sends one message and waits for its answer (or the next heartbeat's); REPLICATE sends ahead, up to its limits;
SNAPSHOT sends nothing but heartbeats.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

__all__ = ["Progress", "Stage"]


class Stage(Enum):
    """How entries are sent to a member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """Progress of one member, as seen by the leader.

    Attributes:
        match: the highest index that is durable at the member, and equal to the leader's. Never falls (R11).
        next: the index of the next entry to send.
        stage: how entries are sent to it.
        unheard_ticks: ticks since it has answered any message.
        sent_commit: the commit index last sent to it.
        confirmed_round: the highest round of heartbeats that it has answered.
        silent_ticks: ticks since a snapshot began, or since the driver last reported progress of it.
    """

    __slots__ = (
        "_bytes",
        "_max_bytes",
        "_max_messages",
        "_sent",
        "confirmed_round",
        "is_waiting",
        "match",
        "next",
        "sent_commit",
        "silent_ticks",
        "stage",
        "unheard_ticks",
    )

    def __init__(self, next_index: int, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._sent: deque[tuple[int, int]] = deque()  # (last index, bytes) of each message in flight
        self._bytes = 0
        self.match = 0
        self.next = next_index
        self.stage = Stage.PROBE
        self.unheard_ticks = 0
        self.is_waiting = False
        """PROBE: a message is in flight."""
        self.sent_commit = 0
        self.confirmed_round = 0
        self.silent_ticks = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing may be sent now."""
        if self.stage is Stage.SNAPSHOT:
            return True
        if self.stage is Stage.PROBE:
            return self.is_waiting
        return len(self._sent) >= self._max_messages or self._bytes >= self._max_bytes

    def sent(self, last: int, size: int, commit: int) -> None:
        """Record a message whose last entry is ``last`` (or that had none, with ``size`` 0)."""
        self.sent_commit = max(self.sent_commit, min(commit, last))
        if self.stage is Stage.PROBE:
            self.is_waiting = True
        elif size:
            self.next = last + 1
            self._sent.append((last, size))
            self._bytes += size

    def accepted(self, index: int) -> bool:
        """Record that the member matches up to ``index``; return whether that is an advance."""
        while self._sent and self._sent[0][0] <= index:
            self._bytes -= self._sent.popleft()[1]
        news = index > self.match
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        if self.stage is Stage.PROBE:
            self.is_waiting = False
            self.replicate()
        elif self.stage is Stage.SNAPSHOT and news:
            self.probe()
        return news

    def refused(self, previous: int, hint: int) -> bool:
        """Record that the member refused entries behind ``previous`` and matches at most ``hint``; False if stale."""
        if self.stage is Stage.SNAPSHOT or previous <= self.match:
            return False
        if self.stage is Stage.REPLICATE:
            self.probe()
            self.next = self.match + 1
            return True
        if previous != self.next - 1:
            return False
        self.next = max(min(previous, hint + 1), self.match + 1)
        self.is_waiting = False
        return True

    def answered_heartbeat(self) -> None:
        """Allow one more message: those in flight may be lost."""
        self.is_waiting = False
        if self.stage is Stage.REPLICATE and self.is_full and self._sent:
            self._bytes -= self._sent.popleft()[1]

    def probe(self) -> None:
        """Send one message at a time until one is answered."""
        self._forget_sent()
        self.stage = Stage.PROBE
        self.next = max(self.match + 1, 1)

    def replicate(self) -> None:
        """Send ahead without waiting for answers."""
        self._forget_sent()
        self.stage = Stage.REPLICATE
        self.next = self.match + 1

    def snapshot(self) -> None:
        """Send nothing while a snapshot is in flight."""
        self._forget_sent()
        self.stage = Stage.SNAPSHOT
        self.silent_ticks = 0

    def _forget_sent(self) -> None:
        self._sent.clear()
        self._bytes = 0
        self.is_waiting = False
