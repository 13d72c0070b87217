"""The trace of a world, line by line: a digest that is equal for two runs of a seed, and a readable story."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable

import trio

__all__ = ["Trace"]


class Trace:
    """A running digest of lines ``time what details``, the last of them, and how often each thing happened.

    ``show`` gets every line as it comes, if given; ``keep`` is how many are remembered.
    """

    def __init__(self, *, show: Callable[[str], None] | None = None, keep: int = 2_000) -> None:
        self.counts: Counter[str] = Counter()
        """Number of lines for each ``what``."""
        self.faults: Counter[str] = Counter()
        """How many faults were injected, by kind."""
        self.lines: deque[str] = deque(maxlen=keep)
        self._show = show
        self._hash = hashlib.blake2b(digest_size=16)

    def __call__(self, what: str, *details: object) -> None:
        """Add a line. The details must print the same in every process: no addresses, no sets."""
        line = f"{trio.current_time():.6f} {what} {' '.join(map(str, details))}"
        self.counts[what] += 1
        self.lines.append(line)
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        if self._show is not None:
            self._show(line)

    def fault(self, kind: str, *details: object) -> None:
        """Add a line for a fault that is being injected, and count it."""
        self.faults[kind] += 1
        self(kind, *details)

    @property
    def digest(self) -> str:
        """Return the digest of all lines so far."""
        return self._hash.hexdigest()
