"""Shared by the scenarios about history: filling and sealing topics, cold caches, figures over time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil
import trio

import danube
from benchmarks._machine import resident_bytes
from benchmarks._payloads import CheckError
from benchmarks._processes import Outcome
from benchmarks._run import Run
from benchmarks._stats import percentile
from benchmarks.systems.danube import DanubeServer
from danube.client import Client
from danube.model.history_api import StoragesStatus

__all__ = ["Gauge", "ask", "broker_of", "directory_bytes", "fill", "go_cold", "seal", "storages_status", "wait_sealed"]

_GAUGE_INTERVAL_S = 1.0
_SEAL_TIMEOUT_S = 300.0
_ENDS = 0.1
"""Share of the time that counts as its beginning, and as its end."""

T = TypeVar("T")


def broker_of(run: Run) -> DanubeServer:
    """The broker of a repetition, which can be restarted."""
    assert isinstance(run.server, DanubeServer)
    return run.server


def ask(run: Run, question: Callable[[Client], Awaitable[T]]) -> T:
    """Run a function with a client of the broker, in this process."""

    async def connected() -> T:
        async with danube.connect(run.server.address) as client:
            return await question(client)

    return trio.run(connected)


def storages_status(run: Run) -> StoragesStatus:
    """The broker's report of its storages and of sealing."""
    return ask(run, lambda client: client.storages.status())


def fill(run: Run, topic: str, count: int) -> Outcome:
    """Create a topic and publish ``count`` numbered messages; return the producer's outcome with their checksum."""
    return run.alone(run.work("fill", topic=topic, count=count))


def seal(run: Run, topic: str) -> None:
    """Seal all messages of a topic.

    Raises:
        CheckError: some messages are still in the journal afterwards.
    """
    rows = ask(run, lambda client: client.admin.seal_topic(topic, timeout_s=_SEAL_TIMEOUT_S))
    for row in rows:
        if row.sealed_offset != row.end_offset:
            raise CheckError(f"{row.topic}: sealed up to {row.sealed_offset} of {row.end_offset}")


def wait_sealed(run: Run, timeout_s: float) -> None:
    """Wait until the journal has no unsealed messages.

    Raises:
        CheckError: sealing does not finish in time.
    """
    end = time.monotonic() + timeout_s
    while (sealing := storages_status(run).sealing).unsealed_bytes:
        if time.monotonic() > end:
            raise CheckError(f"{sealing.unsealed_bytes} bytes are not sealed after {timeout_s} s: {sealing.last_error}")
        time.sleep(0.5)


def go_cold(run: Run) -> float:
    """Restart the broker, and drop its files and those of its storage from the page cache.

    Returns the seconds until the broker was ready. Caches inside the storage server are not dropped.
    """
    seconds = broker_of(run).restart()
    for folder, _, names in os.walk(run.directory):
        for name in names:
            with suppress(FileNotFoundError):
                fd = os.open(os.path.join(folder, name), os.O_RDONLY)
                try:
                    os.fdatasync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)
    return seconds


def directory_bytes(directory: Path) -> int:
    """Disk space of everything in a directory, as it is allocated."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
    return total


class Gauge:
    """Samples the broker once a second, in a thread, during the block.

    It does not query the broker: it reads the kernel's figures for the process and the directory.
    """

    def __init__(self, process: psutil.Process, directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.resident_mb: list[float] = []
        self.disk_mb: list[float] = []

    def _look(self) -> None:
        while True:
            with suppress(psutil.NoSuchProcess):
                self.resident_mb.append(resident_bytes(self._process) / 1e6)
                self.disk_mb.append(directory_bytes(self._directory) / 1e6)
            if self._over.wait(_GAUGE_INTERVAL_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def values(self) -> dict[str, float]:
        """Memory and disk at the start, in the middle, at the end (medians of a tenth of the time), and the maximum."""
        return _over_time("resident", self.resident_mb) | _over_time("disk", self.disk_mb)


def _over_time(name: str, samples: list[float]) -> dict[str, float]:
    share = max(1, int(len(samples) * _ENDS))
    middle = (len(samples) - share) // 2
    return {
        f"{name}_start_mb": percentile(samples[:share], 50),
        f"{name}_middle_mb": percentile(samples[middle : middle + share], 50),
        f"{name}_end_mb": percentile(samples[-share:], 50),
        f"{name}_max_mb": max(samples),
    }
