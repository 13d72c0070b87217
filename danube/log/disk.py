"""Disk interface of the journal: a few file operations, and their implementation on a real file system.

Nothing above this module opens a file or starts a thread, so that a simulated disk (``danube.testing.disk``) can take
the place of the real one. Files are named, live in one flat directory, have a fixed size from creation, and are
recycled by renaming them.

The guarantee that the journal relies on is **order**: writes reach their files in the order in which ``write`` was
called, also while a slow sync of an earlier one is still running. So the return of a synced write means that it and
every earlier write to the same file are durable, and the return of a plain write means that it and every earlier one
survive the death of the process.

The real disk has two dedicated threads, one for writes with a sync and one for writes without. A ticket per write
keeps the order between the two. A thread reports the end of a write through an eventfd, for which the writing task
itself waits: one write, one read and one pass of the scheduler. ``TrioToken.run_sync_soon`` costs a read and a pass
more, because it wakes a task of Trio, which empties a socket and then wakes the writing task.

It also keeps some file descriptors in reserve. A process that has run out of them (because of connections, say) still
gets its next files; when the reserve is used up as well, a creation fails with ``EMFILE``, which is no disk error.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Final, Protocol

import outcome
import trio

from danube.model.descriptors import is_out_of_descriptors, out_of_descriptors
from danube.model.errors import DataDirectoryError, InternalError
from danube.model.limits import MIB

__all__ = ["Disk", "RealDisk"]

LOCK_NAME: Final = "lock"
_FILL_CHUNK: Final = bytes(4 * MIB)
_IOV_MAX: Final = 1024
_READERS: Final = 4
_RESERVED_DESCRIPTORS: Final = 16
_ONE: Final = (1).to_bytes(8, sys.byteorder)
"""The bytes that wake through an eventfd, which requires eight, or through a pipe."""


class Disk(Protocol):
    """Named files of fixed size in one directory. All errors of the medium are ``OSError``."""

    async def list(self) -> dict[str, int]:
        """Return the name and size in bytes of every file."""
        ...

    async def create(self, name: str, size: int) -> None:
        """Create a file of ``size`` zero bytes, allocated and synced, in steps that do not stall other writes.

        A cancelled or failed creation leaves nothing, or a file that is shorter than ``size``.
        """
        ...

    async def rename(self, old: str, new: str) -> None:
        """Rename a file. Durable after :meth:`sync_directory`. Open reads and writes are not disturbed."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a file. May stall the device for long; not for the hot path."""
        ...

    async def sync_directory(self) -> None:
        """Make creations and renames durable."""
        ...

    async def write(self, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        """Write ``buffers`` one after the other from ``position`` on; with ``sync``, return when they are durable.

        Not cancellable once called. At most one call with ``sync`` and one without may be open at a time.
        """
        ...

    async def read(self, name: str, position: int, size: int) -> bytes:
        """Read ``size`` bytes, fewer only at the end of the file. Cancellation abandons the read."""
        ...

    async def free_bytes(self) -> int:
        """Return how many free bytes the file system has for this user."""
        ...


class _Request:
    """One write on its way through a writer thread."""

    __slots__ = ("buffers", "fd", "position", "result", "sync", "ticket")

    def __init__(self, ticket: int, fd: int, position: int, buffers: Sequence[bytes], sync: bool) -> None:
        self.ticket = ticket
        self.fd = fd
        self.position = position
        self.buffers = buffers
        self.sync = sync
        self.result: outcome.Maybe[None] | None = None
        """Set by the thread, before it wakes the task."""


class _Wakeup:
    """Wakes one task of the event loop from a thread: an eventfd, or a pipe on systems that have no eventfd.

    Raises:
        OSError: (on creation) no file descriptor is left. Nothing stays open.
    """

    __slots__ = ("_read_fd", "_write_fd")

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read_fd = self._write_fd = os.eventfd(0)
        else:
            self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)

    def wake(self) -> None:
        """Let :meth:`wait` return. Called by the thread."""
        os.write(self._write_fd, _ONE)

    async def wait(self) -> None:
        """Return after :meth:`wake`, at once if that was called before. One task at a time; cancellation is safe."""
        while True:
            await trio.lowlevel.wait_readable(self._read_fd)
            with suppress(BlockingIOError):
                os.read(self._read_fd, len(_ONE))
                return

    def close(self) -> None:
        """Close the descriptors. The thread has ended."""
        for fd in {self._read_fd, self._write_fd}:
            os.close(fd)


class _Lane:
    """A writer thread's queue, which holds at most one write, and the wake-up of the task that waits for it."""

    __slots__ = ("ended", "queue")

    def __init__(self, ended: _Wakeup) -> None:
        self.queue: SimpleQueue[_Request | None] = SimpleQueue()
        self.ended = ended


class RealDisk:
    """The :class:`Disk` of a running broker: an ``async with`` over one directory.

    Entering creates the directory if needed, locks it and starts the writer threads; leaving stops them and unlocks.

    Args:
        directory: where the files live.
        sync_delay_s: extra latency of every sync in seconds, for benchmarks that model a slower device (default 0).
        reserved_descriptors: file descriptors that are kept for further files.

    Raises:
        DataDirectoryError: (on entering) locked by another broker, read-only, or not a directory.
        OutOfDescriptorsError: (on entering) no file descriptor is left. Nothing stays open; try again.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        sync_delay_s: float = 0.0,
        reserved_descriptors: int = _RESERVED_DESCRIPTORS,
    ) -> None:
        self.directory = Path(directory)
        self._sync_delay_s = sync_delay_s
        self._fds: dict[str, int] = {}
        self._reserve: list[int] = []
        self._reserved = reserved_descriptors
        self._lock_fd: int
        self._directory_fd: int
        self._limiter = trio.CapacityLimiter(_READERS)
        self._lanes: dict[bool, _Lane] = {}
        self._threads: list[threading.Thread] = []
        self._tickets = 0
        self._written = 0
        self._order_broken = False
        self._order = threading.Condition()

    async def __aenter__(self) -> RealDisk:
        await trio.to_thread.run_sync(self._open_directory)
        for sync, lane in self._lanes.items():
            thread = threading.Thread(
                target=self._work, args=(lane,), name=f"danube-{'sync' if sync else 'write'}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for lane in self._lanes.values():
            lane.queue.put(None)
        with trio.CancelScope(shield=True):  # bounded: the lanes hold at most their last write
            await trio.to_thread.run_sync(self._close)

    def _open_directory(self) -> None:
        directory = self.directory
        with ExitStack() as opened:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                lock_fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                opened.callback(os.close, lock_fd)
                directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.callback(os.close, directory_fd)
                lanes: dict[bool, _Lane] = {}
                for sync in (False, True):
                    lanes[sync] = _Lane(_Wakeup())
                    opened.callback(lanes[sync].ended.close)
            except OSError as error:
                if is_out_of_descriptors(error):
                    raise out_of_descriptors(f"data directory {directory}", error) from error
                raise DataDirectoryError(
                    f"data directory {directory}: cannot write there ({error.strerror}); "
                    "make it writable for the broker's user, or choose another one with --data-dir"
                ) from error
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise DataDirectoryError(
                    f"data directory {directory} is in use by another broker (process {holder}); "
                    "stop that one, or choose another directory with --data-dir"
                ) from error
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
            opened.pop_all()
        self._lock_fd = lock_fd
        self._directory_fd = directory_fd
        self._lanes = lanes
        self._fill_reserve()

    def _close(self) -> None:
        for thread in self._threads:
            thread.join()
        for lane in self._lanes.values():
            lane.ended.close()
        for fd in (*self._fds.values(), *self._reserve, self._directory_fd, self._lock_fd):
            os.close(fd)
        self._fds.clear()
        self._reserve.clear()

    def _fd(self, name: str) -> int:
        fd = self._fds.get(name)
        if fd is None:
            fd = self._fds[name] = self._open(name, os.O_RDWR | os.O_CLOEXEC)
        return fd

    def _open(self, name: str, flags: int) -> int:
        """Open a file; if no descriptor is left, use one of the reserve. May run in any thread."""
        while True:
            try:
                fd = os.open(self.directory / name, flags, 0o644)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                try:
                    os.close(self._reserve.pop())
                except IndexError:
                    raise error from None
                continue  # another thread may have been faster
            self._fill_reserve()
            return fd

    def _fill_reserve(self) -> None:
        with suppress(OSError):  # no descriptor left to reserve; retried at the next open
            while len(self._reserve) < self._reserved:
                self._reserve.append(os.dup(self._directory_fd))

    # Writing

    async def write(self, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        """See :meth:`Disk.write`."""
        fd = self._fd(name)  # before the ticket: later writes would wait indefinitely for an unused one
        self._tickets += 1
        request = _Request(self._tickets, fd, position, buffers, sync)
        lane = self._lanes[sync]
        lane.queue.put(request)
        result: outcome.Maybe[None] | None = None
        with trio.CancelScope(shield=True):  # bounded: by the write
            while result is None:  # once, unless Ctrl-C has interrupted the wait for an earlier write
                await lane.ended.wait()
                result = request.result
            result.unwrap()

    def _work(self, lane: _Lane) -> None:
        """Body of a writer thread."""
        while (request := lane.queue.get()) is not None:
            request.result = outcome.capture(self._write, request)
            lane.ended.wake()

    def _write(self, request: _Request) -> None:
        ticket = request.ticket
        with self._order:
            while self._written != ticket - 1:
                self._order.wait()
            broken = self._order_broken
        try:
            if broken:
                raise OSError(errno.EIO, "an earlier write failed")
            if request.buffers:
                write_all(request.fd, request.position, request.buffers)
        except BaseException:
            self._order_broken = True
            raise
        finally:
            with self._order:
                self._written = ticket
                self._order.notify_all()
        if request.sync:
            if self._sync_delay_s:
                time.sleep(self._sync_delay_s)
            os.fdatasync(request.fd)

    # Everything else runs in Trio's threads

    async def list(self) -> dict[str, int]:
        """See :meth:`Disk.list`."""

        def scan() -> dict[str, int]:
            with os.scandir(self.directory) as found:
                return {item.name: item.stat().st_size for item in found if item.is_file() and item.name != LOCK_NAME}

        return await trio.to_thread.run_sync(scan)

    async def create(self, name: str, size: int) -> None:
        """See :meth:`Disk.create`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = await trio.to_thread.run_sync(self._open, name, flags)
        self._fds[name] = fd
        try:
            for position in range(0, size, len(_FILL_CHUNK)):
                await trio.to_thread.run_sync(_fill, fd, position, min(len(_FILL_CHUNK), size - position))
        except BaseException:
            with trio.CancelScope(shield=True):  # bounded: one unlink
                await self.remove(name)
            raise

    async def rename(self, old: str, new: str) -> None:
        """See :meth:`Disk.rename`."""
        if new in self._fds:
            raise InternalError(f"journal file {new} exists already and would be overwritten by a rename")
        fd = self._fd(old)
        with trio.CancelScope(shield=True):  # bounded: one system call; the table below must follow it
            await trio.to_thread.run_sync(os.rename, self.directory / old, self.directory / new)
        del self._fds[old]
        self._fds[new] = fd

    async def remove(self, name: str) -> None:
        """See :meth:`Disk.remove`."""
        fd = self._fds.pop(name, None)
        if fd is not None:
            os.close(fd)
        await trio.to_thread.run_sync(os.unlink, self.directory / name)

    async def sync_directory(self) -> None:
        """See :meth:`Disk.sync_directory`."""
        await trio.to_thread.run_sync(os.fsync, self._directory_fd)

    async def read(self, name: str, position: int, size: int) -> bytes:
        """See :meth:`Disk.read`."""
        return await trio.to_thread.run_sync(
            _read, self._fd(name), position, size, abandon_on_cancel=True, limiter=self._limiter
        )

    async def free_bytes(self) -> int:
        """See :meth:`Disk.free_bytes`."""
        stats = await trio.to_thread.run_sync(os.fstatvfs, self._directory_fd)
        return stats.f_bavail * stats.f_frsize


def write_all(fd: int, position: int, buffers: Sequence[bytes]) -> None:
    """``pwritev`` all of ``buffers``, regardless of their number and of partial writes."""
    for first in range(0, len(buffers), _IOV_MAX):
        group: Sequence[bytes | memoryview] = buffers[first : first + _IOV_MAX]
        left = sum(map(len, group))
        while left:
            done = os.pwritev(fd, group, position)
            if not done:
                raise OSError(errno.EIO, "pwritev wrote nothing")
            position += done
            left -= done
            if left:
                group = _after(group, done)


def _after(buffers: Sequence[bytes | memoryview], done: int) -> list[bytes | memoryview]:
    """Return the rest of ``buffers`` after their first ``done`` bytes."""
    rest: list[bytes | memoryview] = []
    for buffer in buffers:
        if done < len(buffer):
            rest.append(memoryview(buffer)[done:] if done else buffer)
            done = 0
        else:
            done -= len(buffer)
    return rest


def _fill(fd: int, position: int, size: int) -> None:
    write_all(fd, position, [_FILL_CHUNK[:size] if size < len(_FILL_CHUNK) else _FILL_CHUNK])
    os.fdatasync(fd)


def _read(fd: int, position: int, size: int) -> bytes:
    data = os.pread(fd, size, position)
    if not data or len(data) == size:
        return data
    pieces = [data]
    done = len(data)
    while done < size and (data := os.pread(fd, size - done, position + done)):
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)
