"""Back-pressure of the journal: admits batches, or queues their publishers while the journal is full.

Publishes wait while too many bytes are pending or the disk limit is reached (:mod:`danube.log._quota`). Control entries
are never queued. The queue is served in order; each waiter that is served wakes the next one, so no wake-up is lost
when a waiter is cancelled or submits nothing.
"""

from __future__ import annotations

import math
from collections import deque

import trio

from danube.log._quota import Quota
from danube.model.errors import DanubeError
from danube.model.limits import Limits

__all__ = ["Admission"]


class Admission(Quota):
    """The queue in front of ``Journal.submit``; see :class:`~danube.log._quota.Quota` for its numbers."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._line: deque[trio.Event] = deque()

    async def admit(self, size: int) -> None:
        """Wait in the queue until ``size`` bytes may be submitted.

        Raises:
            JournalFullError: no disk space for ``journal_full_wait_s``.
            DanubeError: the journal was fenced or closed.
        """
        arrived = trio.current_time()
        turn = trio.Event()
        self._line.append(turn)
        self.waiting += 1
        try:
            while True:
                deadline = math.inf
                if self._line[0] is turn:
                    until = self.wait_until(size, arrived, trio.current_time())
                    if until is None:
                        return
                    deadline = until
                    if turn.is_set():
                        turn = self._line[0] = trio.Event()
                with trio.move_on_at(deadline):
                    await turn.wait()
        finally:
            self._line.remove(turn)
            self.waiting -= 1
            self.wake()

    def wake(self) -> None:
        """Let the first waiter check again, after bytes were settled or freed."""
        if self._line:
            self._line[0].set()

    def close(self, failure: DanubeError | None) -> None:
        """Stop admitting batches; fail all waiters with ``failure``."""
        self.end(failure)
        self.wake()
