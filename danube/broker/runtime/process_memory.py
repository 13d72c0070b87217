"""Memory of a broker's process: tunes Python's collector and glibc's allocator, returns freed memory to the kernel.

All of it changes the whole process, so only :func:`danube.broker.run_broker` uses it, no part that may run in a
host's process. Without glibc, only the collector is tuned.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from typing import Final

import trio

from danube.model.limits import MIB

__all__ = ["FreedMemory", "collect_rarely", "keep_large_buffers", "process_usage"]

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

YOUNG_OBJECTS: Final = 10_000
"""Objects allocated, minus objects freed, from one garbage collection to the next (Python's default: 700)."""

LOOK_INTERVAL_S: Final = 2.0
"""Interval of the checks for memory to return."""
LEAST_BYTES: Final = 32 * MIB
"""Smaller amounts are not returned."""
MUCH_BYTES: Final = 256 * MIB
"""This much is returned even while the process is busy, which may cost it some 20 ms ..."""
BUSY_INTERVAL_S: Final = 10.0
"""... but not more often than this."""
QUIET_SHARE: Final = 0.5
"""The process counts as quiet while it uses less than this share of one processor."""


def collect_rarely() -> None:
    """Exclude all objects loaded so far from garbage collection, and collect the others less often.

    Reference counts free messages; cycles remain only of ended connections and calls, about 100 objects each. With
    Python's default, the collector ran once for 130 messages that came alone, and took 3.8 % of the broker's time
    while its cache filled; with :data:`YOUNG_OBJECTS` it takes 1.9 %.

    The memory of uncollected cycles stays bounded: young ones are those of some 100 connections, and the ones that
    have survived a collection are collected after ten more. A collection of the young objects takes about 3 ms. With
    50,000 objects it took 17 ms, and as much in total.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def keep_large_buffers() -> None:
    """Configure glibc to keep freed megabytes instead of returning them to the kernel each time.

    Every batch passes through a few buffers of its size. By default each may be mapped, touched page by page and
    unmapped again. With these settings in the broker and in both clients, publishing and consuming 1 KiB messages
    went from 203 to 258 MB/s; the broker can only configure itself. Larger buffers (segments on their way to a storage)
    are still mapped and unmapped: in the heap they would leave holes. A C library without ``mallopt`` is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 8 * MIB)
        mallopt(_M_TRIM_THRESHOLD, 256 * MIB)
        # One heap for all threads: the loop frees what worker threads have read, and must be able to reuse it.
        mallopt(_M_ARENA_MAX, 1)


def process_usage() -> tuple[int, float]:
    """Return the resident memory of this process in bytes (0 without ``/proc``), and its processor time in seconds."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except OSError:
        pages = 0
    return pages * os.sysconf("SC_PAGE_SIZE"), time.process_time()


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip
    hblkhd: int
    uordblks: int


class FreedMemory:
    """Returns memory that was freed and is still resident to the kernel, once the process is quiet or it is much."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._info = getattr(library, "mallinfo2", None)  # glibc 2.33 and later
        if self._info is not None:
            self._info.restype = _MallInfo
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._beside = 0
        """Resident bytes beyond those in use after the last trim: the part that it cannot return."""
        self._busy_until = 0.0
        self.give_back()

    def give_back(self) -> None:
        """Return all memory that can be returned, now."""
        if self._trim is not None:
            self._trim(0)
            if self._info is not None:
                self._beside = self._wasted()

    def look(self, *, quiet: bool, now: float) -> bool:
        """Return freed memory if it is time to; return whether it was.

        Args:
            quiet: whether the process is mostly idle.
            now: monotonic seconds.
        """
        if self._trim is None or self._info is None:
            return False
        wasted = self._wasted()
        self._beside = min(self._beside, wasted)
        freed = wasted - self._beside
        if freed < LEAST_BYTES or (not quiet and (freed < MUCH_BYTES or now < self._busy_until)):
            return False
        self._busy_until = now + BUSY_INTERVAL_S
        self.give_back()
        return True

    def _wasted(self) -> int:
        assert self._info is not None
        with open("/proc/self/statm", "rb") as file:
            resident = int(file.read().split()[1]) * self._page_bytes
        info: _MallInfo = self._info()
        return resident - info.uordblks - info.hblkhd

    async def run(self) -> None:
        """Check every two seconds, until cancelled."""
        used = time.process_time()
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            before, used = used, time.process_time()
            self.look(quiet=used - before < QUIET_SHARE * LOOK_INTERVAL_S, now=trio.current_time())
