"""Takes away the file descriptors of the test's own process."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["descriptors_left"]


@contextmanager
def descriptors_left(spare: int) -> Iterator[None]:
    """Leave only so many file descriptors to the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + spare + 2, hard))
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
