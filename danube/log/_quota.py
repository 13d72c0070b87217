"""What the journal may hold: the bytes that are pending, used and left, and whether another batch is admitted. Pure.

A batch is admitted while all of this holds:

* It fits into ``journal_pending_bytes`` together with the bytes that are submitted and not settled. A batch that is
  larger than this limit is admitted by itself.
* It fits into ``journal_max_bytes`` together with these and with what the files use.
* It fits into the space that the disk has left.
* The journal is neither fenced nor closing, and no publisher waits in front of it.

A publisher that has to wait for one of the last two is refused after ``journal_full_wait_s``, with the limit's name.
Control entries are never refused: they count as pending, and that is all.
"""

from __future__ import annotations

import math

from danube.model.errors import DanubeError, JournalFullError, UnavailableError
from danube.model.limits import Limits

__all__ = ["Quota"]


class Quota:
    """The numbers by which batches are admitted.

    Args:
        limits: ``journal_pending_bytes``, ``journal_max_bytes`` and ``journal_full_wait_s`` are used.

    Attributes:
        pending_bytes: submitted but not settled.
        used_bytes: the part of the disk limit in use.
        space_left: the disk space that batches may still use.
        waiting: publishers that wait; none is admitted past them.
    """

    def __init__(self, limits: Limits) -> None:
        self.pending_bytes = 0
        self.used_bytes = 0
        self.space_left = math.inf
        self.waiting = 0
        self._limits = limits
        self._pending_limit = limits.journal_pending_bytes
        self._used_limit = limits.journal_max_bytes
        self._closed: DanubeError | None = None
        self._full_since = -math.inf

    def try_admit(self, size: int) -> bool:
        """Return whether ``size`` bytes may be submitted now and no waiter is queued."""
        pending = self.pending_bytes + size
        return (
            (pending <= self._pending_limit or pending == size)
            and self.used_bytes + pending <= self._used_limit
            and pending <= self.space_left
            and not self.waiting
            and self._closed is None
        )

    def wait_until(self, size: int, arrived: float, now: float) -> float | None:
        """Decide about the first publisher that waits; return until when it waits at most, None if it is admitted.

        Args:
            size: of its batch, in bytes.
            arrived: when it began to wait, in seconds.
            now: the present time, in seconds.

        Raises:
            JournalFullError: no disk space for ``journal_full_wait_s``.
            DanubeError: the journal was fenced or closed.
        """
        if self._closed is not None:
            raise self._closed
        if self._is_full(size):
            if self._full_since == -math.inf:
                self._full_since = now
            # Time spent in the queue while the journal was full counts as waiting for space.
            deadline = max(arrived, self._full_since) + self._limits.journal_full_wait_s
            if now >= deadline:
                raise self._full_error(size)
            return deadline
        self._full_since = -math.inf
        return None if self._fits(size) else math.inf

    def end(self, failure: DanubeError | None) -> None:
        """Admit no more batches; ``failure`` is the reason, None if the journal is closing. The first one counts."""
        if self._closed is None:
            self._closed = failure or UnavailableError("the journal is closing; nothing was written")

    def _fits(self, size: int) -> bool:
        return not self.pending_bytes or self.pending_bytes + size <= self._pending_limit

    def _is_full(self, size: int) -> bool:
        pending = self.pending_bytes + size
        return self.used_bytes + pending > self._used_limit or pending > self.space_left

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
