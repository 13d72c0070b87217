"""Back-pressure of the journal: admits batches, or queues their publishers while the journal is full.

Publishes wait while too many bytes are pending or the disk limit is reached. Control entries are never queued. The
queue is served in order; each waiter that is served wakes the next one, so no wake-up is lost when a waiter is
cancelled or submits nothing.
"""

from __future__ import annotations

import math
from collections import deque

import trio

from danube.model.errors import DanubeError, JournalFullError, UnavailableError
from danube.model.limits import Limits

__all__ = ["Admission"]


class Admission:
    """The queue in front of ``Journal.submit``.

    Args:
        limits: ``journal_pending_bytes``, ``journal_max_bytes`` and ``journal_full_wait_s`` are used.

    The journal updates three numbers: ``pending_bytes``, submitted but not settled; ``used_bytes``, the part of the
    disk limit in use; and ``space_left``, the disk space that batches may still use.
    """

    def __init__(self, limits: Limits) -> None:
        self.pending_bytes = 0
        self.used_bytes = 0
        self.space_left = math.inf
        self._limits = limits
        self._pending_limit = limits.journal_pending_bytes
        self._used_limit = limits.journal_max_bytes
        self._line: deque[trio.Event] = deque()
        self._closed: DanubeError | None = None
        self._full_since = -math.inf

    def try_admit(self, size: int) -> bool:
        """Return whether ``size`` bytes may be submitted now and no waiter is queued."""
        pending = self.pending_bytes + size
        return (
            (pending <= self._pending_limit or pending == size)
            and self.used_bytes + pending <= self._used_limit
            and pending <= self.space_left
            and not self._line
            and self._closed is None
        )

    def _fits(self, size: int) -> bool:
        return not self.pending_bytes or self.pending_bytes + size <= self._pending_limit

    def _is_full(self, size: int) -> bool:
        pending = self.pending_bytes + size
        return self.used_bytes + pending > self._used_limit or pending > self.space_left

    async def admit(self, size: int) -> None:
        """Wait in the queue until ``size`` bytes may be submitted.

        Raises:
            JournalFullError: no disk space for ``journal_full_wait_s``.
            DanubeError: the journal was fenced or closed.
        """
        arrived = trio.current_time()
        turn = trio.Event()
        self._line.append(turn)
        try:
            while True:
                deadline = math.inf
                if self._line[0] is turn:
                    if self._closed is not None:
                        raise self._closed
                    if not self._is_full(size):
                        self._full_since = -math.inf
                        if self._fits(size):
                            return
                    else:
                        now = trio.current_time()
                        if self._full_since == -math.inf:
                            self._full_since = now
                        # Time spent in the queue while the journal was full counts as waiting for space.
                        deadline = max(arrived, self._full_since) + self._limits.journal_full_wait_s
                        if now >= deadline:
                            raise self._full_error(size)
                    if turn.is_set():
                        turn = self._line[0] = trio.Event()
                with trio.move_on_at(deadline):
                    await turn.wait()
        finally:
            self._line.remove(turn)
            self.wake()

    def wake(self) -> None:
        """Let the first waiter check again, after bytes were settled or freed."""
        if self._line:
            self._line[0].set()

    def close(self, failure: DanubeError | None) -> None:
        """Stop admitting batches; fail all waiters with ``failure``."""
        if self._closed is None:
            self._closed = failure or UnavailableError("the journal is closing; nothing was written")
        self.wake()

    def _full_error(self, size: int) -> JournalFullError:
        if self.pending_bytes + size > self.space_left:
            return JournalFullError(
                f"the disk of the journal is full ({self.used_bytes} bytes of journal are in use); "
                "free space on it, or delete topics and subscriptions that are not needed"
            )
        return JournalFullError(
            f"the journal uses {self.used_bytes} of {self._used_limit} bytes and no space came free in "
            f"{self._limits.journal_full_wait_s:g} s; delete topics and subscriptions that are not needed, or raise "
            "limits.journal_max_bytes"
        )
