"""Which entries have waited too long for their storage. Pure: a clock that counts steps.

A *mark* records how many entries had been submitted at a step, so the age of every entry is known to one step without a
time for each.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["STEPS_PER_STALL", "Stalls"]

STEPS_PER_STALL: Final = 4
"""Resolution of waiting times: a stall is reported after at most 1.25 times ``remote_stall_s``."""


class Stalls:
    """The ages of entries that wait. Call :meth:`mark`, let a step pass, and call :meth:`step`, again and again."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque()  # number of submitted entries, and the step
        self._step = 0

    def mark(self, submitted: int) -> None:
        """Record how many entries were submitted until now, counted from the start."""
        if not self._marks or submitted > self._marks[-1][0]:
            self._marks.append((submitted, self._step))

    def step(self, settled: int) -> list[tuple[int, int]]:
        """Let a step pass; return the ranges of entries that have waited for a multiple of the time.

        Args:
            settled: how many entries have settled until now; the ranges count from there.
        """
        self._step += 1
        marks = self._marks
        while marks and marks[0][0] <= settled:
            marks.popleft()
        late: list[tuple[int, int]] = []
        begin = settled
        for until, since in marks:
            if (self._step - since) % STEPS_PER_STALL == 0:
                late.append((begin - settled, until - settled))
            begin = until
        return late
