"""Detects that the broker itself did not run: a paused virtual machine, a stopped process, a blocked loop. Pure.

A broker that does not run reads no acknowledgements and no answers to PINGs. When it goes on, timeouts of messages may
have passed although their consumers did all they could; and consumers whose connections broke long ago still look
connected, so a message that never reached them would count as failed. So after a stall no acknowledgement times out
until the time has passed in which keepalive finds a broken connection::

    beats   |   |   |   |   |                       |   |   |   |   |   |   |   |   |   |
                             ◀────── stall ────────▶ ◀─ keepalive_idle_s + _timeout_s ─▶
    timeouts  fire            the broker does not run  postponed                        fire
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["STALL_S", "Stalls"]

STALL_S: Final = 3.0
"""The broker has stalled if it did not run for longer than this. The time between the default timeout of keepalive and
that of acknowledgements is larger."""


class Stalls:
    """The last stall of one broker. Times are in seconds, of one clock.

    Args:
        patience_s: how long timeouts are postponed after a stall.
    """

    __slots__ = ("_beat_due_s", "_patience_s", "_patient_until_s")

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._beat_due_s = math.inf
        self._patient_until_s = -math.inf

    def expect(self, due_s: float) -> None:
        """Announce when the next beat is due; the beat itself calls :meth:`patient_until`."""
        self._beat_due_s = due_s

    def patient_until(self, now_s: float) -> float:
        """Return until when no acknowledgement times out; a time in the past if there was no stall.

        The caller may be the first task that runs after a stall, before the beat.
        """
        if now_s - self._beat_due_s > STALL_S:
            self._patient_until_s = now_s + self._patience_s
            self._beat_due_s = math.inf
        return self._patient_until_s
