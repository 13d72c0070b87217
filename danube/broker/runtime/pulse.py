"""Takes a sample of the broker's traffic, and of the lag of its loop, twice a second; these beats reveal stalls."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from danube.broker.runtime.publish_figures import Latencies
from danube.broker.runtime.samples import SAMPLE_S, Samples, Traffic
from danube.broker.runtime.stalls import Stalls
from danube.metrics.histogram import Histogram

__all__ = ["Pulse"]


class Pulse:
    """See the module.

    Args:
        traffic: returns the bytes that have arrived at the broker's port since its start, and those it has sent.
        stalls: is told of each beat.
        latencies: are told, too; None: there are none.
    """

    def __init__(
        self, traffic: Callable[[], tuple[int, int]], stalls: Stalls, latencies: Latencies | None = None
    ) -> None:
        self._latencies = latencies
        self._traffic = traffic
        self._stalls = stalls
        self._samples = Samples()
        self.lags = Histogram()
        """By how much each beat was late, in seconds."""
        self._due_s = math.inf

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            due = trio.current_time() + SAMPLE_S
            self._stalls.expect(due)
            self._due_s = due
            await trio.sleep_until(due)
            now = trio.current_time()
            self._stalls.patient_until(now)
            lag_s = max(0.0, now - due)
            self.lags.observe(lag_s)
            self._samples.add(now, *self._traffic(), lag_s)
            if self._latencies is not None:
                self._latencies.beat(now)

    def silent_s(self) -> float:
        """Return for how many seconds a beat has been due; 0 while none is."""
        return max(0.0, trio.current_time() - self._due_s)

    def rates(self) -> Traffic:
        """Return bytes per second, in the mean of the last seconds."""
        return self._samples.rates(trio.current_time(), *self._traffic())

    def lag_s(self) -> float | None:
        """Return by how much the loop's timers were late: 99 of 100 by less, in the last minute. None: not known."""
        return self._samples.lag_s()
