"""Whether the session of this broker is certain to be alive. Pure: the clock's readings are passed in.

A session ends in the metadata, on the clock of the leader there: a time to live after the last keep-alive that it has
received. The broker cannot know when one was received, but not before it was sent. So from the keep-alive that was sent
at time ``t`` and *answered* follows that the session lives until ``t + TTL`` at least::

    broker   ──sent t──────────────────────answered──────────────┤ is_certain until t + TTL - margin
    leader         ──received──┤ deadline: received + TTL ≥ t + TTL

The margin covers clocks of different rates, and the time between a check and what depends on it. A topic without
durability may have a new owner as soon as the session has ended; so its old one checks :meth:`SessionClock.is_certain`
at each admission and delivery. A timer would not do: a process that was stopped (SIGSTOP) for a minute runs its next
instruction before any timer. The clock has to go on while the process is stopped. CLOCK_MONOTONIC does, but it stops
while the *machine* is suspended: then the owner learns only with its next keep-alive that its session has ended.
"""

from __future__ import annotations

from typing import Final

__all__ = ["KEEP_ALIVE_S", "SESSION_MARGIN_S", "SESSION_TTL_S", "SessionClock"]

SESSION_TTL_S: Final = 3.0
"""How long a session lives without a keep-alive."""
KEEP_ALIVE_S: Final = 0.75
"""Pause between keep-alives: three may be lost."""
SESSION_MARGIN_S: Final = 0.3
"""How long before its possible end a session is not certain any more."""


class SessionClock:
    """The times of one session's keep-alives, in seconds of a clock that never goes back.

    Args:
        granted_at: when the request for the lease was sent.
        ttl_s: its time to live.
        margin_s: see the module.
    """

    def __init__(self, granted_at: float, ttl_s: float = SESSION_TTL_S, margin_s: float = SESSION_MARGIN_S) -> None:
        assert 0 <= margin_s < ttl_s
        self._ttl_s = ttl_s
        self._margin_s = margin_s
        self._proven = granted_at
        self._ended = False

    @property
    def certain_until(self) -> float:
        """The time from which the session may have ended; it has passed if the session *has* ended."""
        return float("-inf") if self._ended else self._proven + self._ttl_s - self._margin_s

    def is_certain(self, now: float) -> bool:
        """Whether the session is alive at ``now``, whatever happened to messages and to other machines."""
        return now < self.certain_until

    def answered(self, sent_at: float) -> None:
        """A keep-alive sent at ``sent_at`` was answered. Answers may come in any order."""
        self._proven = max(self._proven, sent_at)

    def end(self) -> None:
        """The metadata say that the session has ended. Answers to earlier keep-alives prove nothing any more."""
        self._ended = True

    @property
    def has_ended(self) -> bool:
        """Whether the metadata have said that it has ended."""
        return self._ended

    def next_keep_alive(self, last_sent: float) -> float:
        """Return when the next keep-alive is to be sent, after one at ``last_sent``."""
        return last_sent + min(KEEP_ALIVE_S, self._ttl_s / 4)
