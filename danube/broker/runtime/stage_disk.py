"""The disk seam of staged publishing: growing files, and the real implementation.

Differs from the journal's :class:`danube.log.Disk` in its needs: there are many files, each is written once from
beginning to end and read once, and no hot path waits for any of them. Therefore each call runs in a Trio worker thread,
and holds a file open only for its own duration. Every write is synced in the call that makes it, on the same
descriptor: errors of the medium show there, and the speed of the disk limits the speed of the staging client.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import trio

from danube.log.disk import write_all

__all__ = ["RealStageDisk", "StageDisk"]

_THREADS: Final = 4


class StageDisk(Protocol):
    """Named growing files in one directory. All errors of the medium are ``OSError``."""

    async def list(self) -> dict[str, int]:
        """Return the name and size in bytes of every file."""
        ...

    async def create(self, name: str, size: int) -> None:
        """Create a file of ``size`` zero bytes. Durable after :meth:`sync_directory`."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a file."""
        ...

    async def sync_directory(self) -> None:
        """Make creations durable."""
        ...

    async def write(self, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        """Write ``buffers`` one after the other at ``position``, which may be the end of the file.

        With ``sync``, return when they are durable. Not cancellable once called.
        """
        ...

    async def read(self, name: str, position: int, size: int) -> bytes:
        """Read ``size`` bytes, fewer only at the end of the file. Cancellation abandons the read."""
        ...


class RealStageDisk:
    """The :class:`StageDisk` of a running broker. Its directory is created when the first file is.

    Args:
        directory: where the files live; inside the data directory, whose lock protects it.
        sync_delay_s: extra latency of every sync in seconds, as of the journal's disk (default 0).
    """

    def __init__(self, directory: str | os.PathLike[str], *, sync_delay_s: float = 0.0) -> None:
        self.directory = Path(directory)
        self._sync_delay_s = sync_delay_s
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def list(self) -> dict[str, int]:
        """See :meth:`StageDisk.list`."""
        return await trio.to_thread.run_sync(self._list, limiter=self._limiter)

    def _list(self) -> dict[str, int]:
        if not self.directory.exists():
            return {}
        with os.scandir(self.directory) as found:
            return {item.name: item.stat().st_size for item in found if item.is_file()}

    async def create(self, name: str, size: int) -> None:
        """See :meth:`StageDisk.create`."""
        await trio.to_thread.run_sync(self._create, name, size, limiter=self._limiter)

    def _create(self, name: str, size: int) -> None:
        if not self.directory.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            _sync_directory(self.directory.parent)
        fd = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    async def remove(self, name: str) -> None:
        """See :meth:`StageDisk.remove`."""
        await trio.to_thread.run_sync(os.unlink, self.directory / name, limiter=self._limiter)

    async def sync_directory(self) -> None:
        """See :meth:`StageDisk.sync_directory`."""
        await trio.to_thread.run_sync(_sync_directory, self.directory, limiter=self._limiter)

    async def write(self, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        """See :meth:`StageDisk.write`."""
        await trio.to_thread.run_sync(self._write, name, position, buffers, sync, limiter=self._limiter)
        if sync and self._sync_delay_s:
            await trio.sleep(self._sync_delay_s)

    def _write(self, name: str, position: int, buffers: Sequence[bytes], sync: bool) -> None:
        fd = os.open(self.directory / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            write_all(fd, position, buffers)
            if sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    async def read(self, name: str, position: int, size: int) -> bytes:
        """See :meth:`StageDisk.read`."""
        return await trio.to_thread.run_sync(
            self._read, name, position, size, abandon_on_cancel=True, limiter=self._limiter
        )

    def _read(self, name: str, position: int, size: int) -> bytes:
        fd = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(fd, size, position)
            while len(data) < size and (more := os.pread(fd, size - len(data), position + len(data))):
                data += more
            return data
        finally:
            os.close(fd)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
