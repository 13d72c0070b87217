"""When a link connects again, and when the broker at its end counts as lost. Pure: times are arguments."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["Attempts"]

FIRST_PAUSE_S: Final = 0.05
LASTING_S: Final = 1.0
"""A link that was up for this long is opened again at once; a shorter one after a pause, like a failed attempt."""
REFUSALS: Final = 2
"""Refused connections after which a broker counts as lost: one alone may be a process that starts again."""


class Attempts:
    """The attempts of one link.

    Args:
        reconnect_max_s: longest pause; they begin with 50 ms and double.
        loss_window_s: see :meth:`refused`.
    """

    def __init__(self, reconnect_max_s: float, loss_window_s: float) -> None:
        self._reconnect_max_s = reconnect_max_s
        self._loss_window_s = loss_window_s
        self._pause_s = 0.0
        self._up_at = math.inf
        self._broke_at = -math.inf
        self._refusals = 0

    def linked(self, now: float) -> None:
        """The link is up."""
        self._up_at = now
        self._broke_at = -math.inf

    def broke(self, now: float) -> None:
        """The link that was up has broken, for a reason other than this broker's own."""
        self._broke_at = now
        self._refusals = 0
        if now - self._up_at >= LASTING_S:
            self._pause_s = 0.0

    def closed(self) -> None:
        """This broker has closed the link itself, and opens it again at once."""
        self._broke_at = -math.inf
        self._pause_s = 0.0

    def refused(self, now: float) -> bool:
        """The port has refused a connection. Return whether the broker now counts as lost.

        That is the case once for each time the link broke, at the second refusal in a row, if it is not later than
        ``loss_window_s`` after the break.
        """
        self._refusals += 1
        if self._refusals < REFUSALS or not self._may_be_lost(now):
            return False
        self._broke_at = -math.inf
        return True

    def failed(self) -> None:
        """An attempt has failed in another way: the port was not reached, or the connection broke.

        The process may live. But the kernel closes the connections of one that was killed first, and its port last: it
        still accepts connections then, and resets them.
        """
        self._refusals = 0

    def answered(self) -> None:
        """A process has answered, and has refused the link: it lives."""
        self._broke_at = -math.inf

    def next_pause_s(self, now: float) -> float:
        """Return the time from the begin of the last attempt, or from the break, to the next attempt.

        They grow only when the process does not count as lost any more.
        """
        pause_s = self._pause_s
        self._pause_s = FIRST_PAUSE_S if self._may_be_lost(now) else 2 * pause_s
        self._pause_s = min(self._reconnect_max_s, max(FIRST_PAUSE_S, self._pause_s))
        return pause_s

    def _may_be_lost(self, now: float) -> bool:
        return now - self._broke_at <= self._loss_window_s
