"""Describes the machine, and measures its load from other processes."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import psutil

from benchmarks._results import Machine
from benchmarks._stats import percentile

__all__ = ["CpuWatch", "cpu_seconds", "describe_machine", "resident_bytes"]


def describe_machine(data_directory: Path) -> Machine:
    """Name the hardware and measure what an fdatasync costs in ``data_directory`` (about 0.1 s on a quick disk)."""
    samples = _sync_samples(data_directory)
    return Machine(
        cpu=_cpu_name(),
        cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        filesystem=_filesystem(data_directory),
        sync_p50_us=percentile(samples, 50),
        sync_p99_us=percentile(samples, 99),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _filesystem(directory: Path) -> str:
    resolved = directory.resolve()
    holders = [one for one in psutil.disk_partitions(all=True) if resolved.is_relative_to(one.mountpoint)]
    return max(holders, key=lambda one: len(one.mountpoint)).fstype if holders else "unknown"


def _sync_samples(directory: Path, rounds: int = 200, budget_s: float = 2.0) -> list[float]:
    path = directory / "sync-probe"
    block = os.urandom(4096)
    samples: list[float] = []
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        end = time.monotonic() + budget_s
        while len(samples) < rounds and time.monotonic() < end:
            before = time.perf_counter_ns()
            os.write(fd, block)
            os.fdatasync(fd)
            samples.append((time.perf_counter_ns() - before) / 1000)
    finally:
        os.close(fd)
        path.unlink()
    return samples


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process and its children, ended ones included."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            if one is process:
                raise
            continue  # a child that has ended just now counts with its parent's ended ones
        total += times.user + times.system
        if one is process:
            total += times.children_user + times.children_system
    return total


def resident_bytes(process: psutil.Process) -> int:
    """Resident memory of a process and its children."""
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))


class CpuWatch:
    """How much CPU time the whole machine used since the watch was made."""

    def __init__(self) -> None:
        self._busy = self._busy_seconds()
        self._start = time.monotonic()
        self.load_1m = os.getloadavg()[0]

    @staticmethod
    def _busy_seconds() -> float:
        times = psutil.cpu_times()
        return float(times.user + times.nice + times.system + times.irq + times.softirq + getattr(times, "steal", 0.0))

    def other_share(self, ours_s: float) -> float:
        """Share (0..1) of the machine's CPU time that was used, but not by the benchmark."""
        capacity = (time.monotonic() - self._start) * (os.cpu_count() or 1)
        other = self._busy_seconds() - self._busy - ours_s
        return min(1.0, max(0.0, other / capacity)) if capacity > 0 else 0.0
