"""Sends on a schedule, and measures latencies from the scheduled times."""

from __future__ import annotations

import time

__all__ = ["Pace"]

_SLACK_NS = 150_000


class Pace:
    """A schedule of one message every ``1 / rate_per_s`` seconds, independent of delays of previous messages.

    Only for one message in flight: between messages nothing waits in the event loop, so the thread may sleep. Event
    loops round their timers up to a whole millisecond, which would be the largest part of the result.
    """

    def __init__(self, rate_per_s: float) -> None:
        self._interval_ns = 1e9 / rate_per_s
        self._start_ns = time.monotonic_ns()
        self._sent = 0

    def wait(self) -> int:
        """Sleep until the next message is due; return its due time, which may be in the past."""
        due = self._start_ns + int(self._sent * self._interval_ns)
        self._sent += 1
        left = due - time.monotonic_ns()
        if left > _SLACK_NS:
            time.sleep((left - _SLACK_NS) / 1e9)
        while time.monotonic_ns() < due:
            pass
        return due
