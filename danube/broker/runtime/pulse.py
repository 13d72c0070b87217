"""Takes a sample of the broker's traffic, and of the lag of its loop, twice a second; these beats reveal stalls."""

from __future__ import annotations

from collections.abc import Callable

import trio

from danube.broker.runtime.samples import SAMPLE_S, Samples, Traffic
from danube.broker.runtime.stalls import Stalls

__all__ = ["Pulse"]


class Pulse:
    """See the module.

    Args:
        traffic: returns the bytes that have arrived at the broker's port since its start, and those it has sent.
        stalls: is told of each beat.
    """

    def __init__(self, traffic: Callable[[], tuple[int, int]], stalls: Stalls) -> None:
        self._traffic = traffic
        self._stalls = stalls
        self._samples = Samples()

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            due = trio.current_time() + SAMPLE_S
            self._stalls.expect(due)
            await trio.sleep_until(due)
            now = trio.current_time()
            self._stalls.patient_until(now)
            self._samples.add(now, *self._traffic(), max(0.0, now - due))

    def rates(self) -> Traffic:
        """Return bytes per second, in the mean of the last seconds."""
        return self._samples.rates(trio.current_time(), *self._traffic())

    def lag_s(self) -> float | None:
        """Return by how much the loop's timers were late: 99 of 100 by less, in the last minute. None: not known."""
        return self._samples.lag_s()
