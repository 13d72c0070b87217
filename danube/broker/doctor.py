"""Diagnostic checks of a machine and of a broker: fsync, clock, file descriptors, disk space, sealing, storages.

A machine must have a real fsync, a running clock, and enough file descriptors and disk space. Journal and metadata in
the data directory must match, as a start would require. A running broker must keep up with sealing, and its storages
must answer.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

from danube.broker.directory.bond import read_record
from danube.broker.directory.identity import read_broker_file
from danube.broker.directory.losses import find_losses
from danube.log import Journal, RealDisk
from danube.metadata import read_incarnation
from danube.metadata.embedded import DIRECTORY
from danube.metadata.raft.inspection import inspect
from danube.model import Limits
from danube.model.checks import Check
from danube.model.errors import DanubeError, DataDirectoryError
from danube.model.history_api import SealingFigures, StoragesStatus, StorageStatus
from danube.model.limits import MIB

__all__ = ["Check", "check_broker", "check_machine", "doctor"]

_SYNC_ROUNDS = 50
_WRITE_BYTES = 4096
_REAL_SYNC_FLOOR_US = 10.0
"""A faster sync has not left the kernel (the fastest NVMe with power-loss protection needs about 15 us)."""
_MIN_OPEN_FILES = 4096
_MIN_FREE_RATIO = 1.25
_LATE_RATIO = 1.5
"""Sealing is late when unsealed data is older than this many times the age at which it was due."""


def doctor(data_directory: str, limits: Limits | None = None) -> list[Check]:
    """Check the machine for a broker with this data directory. Blocks for about a second.

    A temporary file is written to the directory and removed. If the directory does not exist, it is not created: the
    file is in the nearest directory above, on the same file system.
    """
    limits = limits or Limits()
    present = _present(Path(data_directory))
    return [
        _python(),
        _directory(data_directory, present),
        *_data(data_directory, limits),
        *_storage(str(present), limits),
        _clock(),
        _open_files(limits),
    ]


def check_machine(data_directory: str, limits: Limits) -> list[Check]:
    """As :func:`doctor`, for the broker whose data directory it is, while it runs: journal and metadata stay closed."""
    return [
        _python(),
        _directory(data_directory, Path(data_directory).absolute()),
        *_storage(data_directory, limits),
        _clock(),
        _open_files(limits),
    ]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", sys.version_info >= (3, 11), f"Python {version}", "install Python 3.11 or newer")


def _present(directory: Path) -> Path:
    """Return a directory, or the nearest one above it that exists."""
    full = directory.absolute()
    return next((each for each in (full, *full.parents) if each.exists()), full)


def _directory(data_directory: str, present: Path) -> Check:
    try:
        with tempfile.NamedTemporaryFile(dir=present, prefix=".doctor-"):
            pass
    except OSError as error:
        return Check(
            "data directory",
            False,
            f"{data_directory}: {error.strerror}",
            "make the directory writable for this user, or choose another one with --data-dir",
        )
    if present != Path(data_directory).absolute():
        return Check("data directory", True, f"{data_directory} does not exist yet; {present} is writable")
    return Check("data directory", True, f"{data_directory} is writable")


def _data(data_directory: str, limits: Limits) -> list[Check]:
    """Compare journal and metadata; no check if there is no journal yet. Changes nothing."""
    directory = Path(data_directory)
    if not any(directory.glob("journal-*.log")) and not (directory / DIRECTORY).exists():
        return []
    name = "journal and metadata"
    remedy = (
        "restore what is missing or damaged from a copy; docs/architecture.md says how to go on without it. If the"
        " configuration keeps the metadata elsewhere, only a start of the broker can tell"
    )

    async def compare() -> Check:
        async with RealDisk(directory) as disk, inspect(directory, limits) as found:
            if not found.is_alone:
                return Check(name, True, "not compared: other brokers have the metadata, too; a start compares them")
            standing = await Journal(disk, limits).survey()
            broker = await read_broker_file(disk, data_directory)
            if broker is None:
                return Check(name, False, "the metadata belong to a broker whose journal and identity are gone", remedy)
            record, _, revision = await read_record(found.store, broker.identity)
            incarnation = await read_incarnation(found.store)
        losses = find_losses(standing, record, revision, incarnation.incarnation_id)
        fits = f"both are consistent; metadata at revision {revision}"
        return Check(name, not losses, "; ".join(losses) or fits, remedy)

    try:
        return [trio.run(compare)]
    except Exception as error:
        found: BaseException = error
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if not isinstance(found, DanubeError):
            raise
        running = isinstance(found, DataDirectoryError) and "in use" in str(found)
        return [Check(name, running, f"not compared: {found}" if running else str(found), remedy)]


def _storage(data_directory: str, limits: Limits) -> list[Check]:
    try:
        samples = _time_syncs(data_directory)
        usage = shutil.disk_usage(data_directory)
    except OSError as error:
        return [Check("fsync", False, f"cannot be timed: {error.strerror}", "see the data directory check")]
    median_us = statistics.median(samples) * 1e6
    worst_us = max(samples) * 1e6
    detail = f"fdatasync of {_WRITE_BYTES} bytes: median {median_us:.0f} us, worst {worst_us:.0f} us"
    real = median_us >= _REAL_SYNC_FLOOR_US
    needed = int((limits.journal_max_bytes + limits.journal_reserve_bytes) * _MIN_FREE_RATIO)
    gib = 1024**3
    return [
        Check(
            "fsync",
            real,
            detail + ("" if real else "; too fast to have reached a device"),
            "the file system does not sync (tmpfs, or a mount or VM that ignores flushes); use another disk",
        ),
        Check(
            "free disk",
            usage.free >= needed,
            f"{usage.free / gib:.1f} GiB free, {needed / gib:.1f} GiB wanted for the journal",
            "free some space, or lower limits.journal_max_bytes",
        ),
    ]


def _time_syncs(directory: str) -> list[float]:
    samples = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(_WRITE_BYTES * (_SYNC_ROUNDS + 1)), 0)
        os.fdatasync(descriptor)
        for number in range(_SYNC_ROUNDS):
            os.pwrite(descriptor, os.urandom(_WRITE_BYTES), number * _WRITE_BYTES)
            begin = time.perf_counter()
            os.fdatasync(descriptor)
            samples.append(time.perf_counter() - begin)
    return samples


def _clock() -> Check:
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.2)
    drift = abs((time.time() - wall) - (time.monotonic() - steady))
    sane = wall > 1_577_836_800  # 2020-01-01: a machine whose clock is not set starts in 1970
    return Check(
        "clock",
        sane and drift < 0.01,
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(wall))} UTC, drift {drift * 1e3:.2f} ms in 0.2 s",
        "run a time service (chrony, systemd-timesyncd): publish times and expiries depend on it",
    )


def _open_files(limits: Limits) -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    wanted = min(_MIN_OPEN_FILES, limits.max_connections)
    return Check(
        "open files",
        hard == resource.RLIM_INFINITY or hard >= wanted,  # a broker raises its soft limit by itself
        f"limit {shown} (hard limit {hard}), {wanted} wanted",
        f"raise the hard limit before starting the broker: ulimit -Hn {wanted}, or LimitNOFILE; with less, fewer"
        " connections are taken",
    )


def check_broker(status: StoragesStatus) -> list[Check]:
    """Check the sealing and the storages that a running broker reports."""
    return [_sealing(status.sealing), *(_reachable(storage) for storage in status.storages)]


def _sealing(sealing: SealingFigures) -> Check:
    used = sealing.journal_used_bytes / sealing.journal_limit_bytes
    detail = (
        f"{sealing.unsealed_bytes / MIB:.1f} MiB of {sealing.unsealed_topics} topics not sealed, the oldest for"
        f" {sealing.oldest_age_s:.0f} s (due after {sealing.max_age_s:.0f} s); journal {used:.0%} full"
    )
    remedy = (
        "see danube storage status; publishing waits when the journal is full: until the storage works again,"
        " limits.journal_max_bytes buys time"
    )
    if sealing.failing_for_s:
        return Check(
            "sealing", False, f"{detail}; failing for {sealing.failing_for_s:.0f} s: {sealing.last_error}", remedy
        )
    return Check("sealing", sealing.oldest_age_s <= _LATE_RATIO * sealing.max_age_s, detail, remedy)


def _reachable(storage: StorageStatus) -> Check:
    name = f"storage {storage.storage}"
    if not storage.healthy:
        detail = f"{storage.url}: failing for {storage.failing_for_s:.0f} s: {storage.last_error}"
        return Check(name, False, detail, "check address, credentials and network of the storage from this machine")
    detail = f"{storage.url}: {storage.objects} objects, {storage.object_bytes / MIB:.1f} MiB"
    if not storage.durable:
        detail += "; it is not durable: durable topics are not sealed into it and stay in the journal"
    return Check(name, True, detail)
