"""Seeds that were never run before: counted from a base derived from the date and the commit.

A fixed range of seeds shows that nothing got worse; new bugs are found by new seeds. They need no list of used
ones: another day or another commit has another base, and a run prints its base, so that it can be repeated.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import count

__all__ = ["fresh_base", "fresh_seeds", "present_base"]

_SEEDS_OF_A_COMMIT = 100_000
_COMMITS_OF_A_DAY = 10_000


def fresh_base(day: date, commit: str) -> int:
    """Return the first seed of a day and a commit (hexadecimal; empty if there is none, as in an installed package)."""
    of_the_commit = int(commit[:12] or "0", 16) % _COMMITS_OF_A_DAY
    return (int(f"{day:%Y%m%d}") * _COMMITS_OF_A_DAY + of_the_commit) * _SEEDS_OF_A_COMMIT


def present_base() -> int:
    """Return the base of today and of the commit that is checked out here, if there is one."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10)
    return fresh_base(datetime.now(UTC).date(), found.stdout.strip() if found.returncode == 0 else "")


def fresh_seeds(base: int, minutes: float) -> Iterator[int]:
    """Yield seeds from a base on, for this many real minutes."""
    end_s = time.monotonic() + minutes * 60
    for seed in count(base):
        if time.monotonic() >= end_s:
            return
        yield seed
