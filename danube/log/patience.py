"""Waits for file descriptors at the start of a broker, as the running journal does when it needs its next file.

A process that has no descriptor left has no broken disk. At a start nothing is served yet, so each step that finds none
is repeated until one is available, and the log says so. After a bounded time (``start_descriptor_wait_s``) the start is
refused with an error of its own, :class:`~danube.model.errors.OutOfDescriptorsError`: nothing is lost, and a
supervisor may start the broker again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import trio

from danube.log.disk import Disk
from danube.model.descriptors import is_out_of_descriptors, out_of_descriptors
from danube.model.log_events import log_event

__all__ = ["PatientDisk", "with_descriptors"]

_log = logging.getLogger("danube.broker")

_T = TypeVar("_T")
_RETRY_S: Final = 1.0


async def with_descriptors(what: str, work: Callable[[], Awaitable[_T]], wait_s: float) -> _T:
    """Run ``work``; repeat it, and log that, while it fails for want of a file descriptor.

    Args:
        what: needs the descriptor; for messages.
        work: has no effect when it fails so.
        wait_s: for how long it is repeated, in seconds.

    Raises:
        OutOfDescriptorsError: no descriptor was available for so long.

    Other errors of ``work`` pass. May be cancelled if ``work`` may.
    """
    deadline = trio.current_time() + wait_s
    while True:
        try:
            return await work()
        except Exception as error:
            if not is_out_of_descriptors(error):
                raise
            ours = out_of_descriptors(what, error) if isinstance(error, OSError) else error
            now = trio.current_time()
            if now >= deadline:
                raise ours from error
            _log.error(
                "the start waits for a file descriptor, and is refused in %.0f s: %s",
                deadline - now,
                ours,
                extra=log_event("descriptors.start_waits"),
            )
        await trio.sleep(min(_RETRY_S, deadline - now))


class PatientDisk:
    """A :class:`Disk` whose operations wait for file descriptors; for recovery.

    A descriptor is needed before an operation has any effect, so that it can be repeated.

    Args:
        disk: the disk.
        what: is done with it; for messages.
        wait_s: for how long one operation waits, in seconds.
    """

    def __init__(self, disk: Disk, what: str, wait_s: float) -> None:
        self._disk = disk
        self._what = what
        self._wait_s = wait_s

    async def _try(self, work: Callable[[], Awaitable[_T]]) -> _T:
        return await with_descriptors(self._what, work, self._wait_s)

    async def list(self) -> dict[str, int]:
        """See :meth:`Disk.list`."""
        return await self._try(self._disk.list)

    async def create(self, name: str, size: int) -> None:
        """See :meth:`Disk.create`."""
        await self._try(lambda: self._disk.create(name, size))

    async def rename(self, old: str, new: str) -> None:
        """See :meth:`Disk.rename`."""
        await self._try(lambda: self._disk.rename(old, new))

    async def remove(self, name: str) -> None:
        """See :meth:`Disk.remove`."""
        await self._try(lambda: self._disk.remove(name))

    async def sync_directory(self) -> None:
        """See :meth:`Disk.sync_directory`."""
        await self._try(self._disk.sync_directory)

    async def write(self, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        """See :meth:`Disk.write`. Waits before the write is called, and only then."""
        await self._try(lambda: self._disk.write(name, position, buffers, sync=sync))

    async def read(self, name: str, position: int, size: int) -> bytes:
        """See :meth:`Disk.read`."""
        return await self._try(lambda: self._disk.read(name, position, size))

    async def free_bytes(self) -> int:
        """See :meth:`Disk.free_bytes`."""
        return await self._try(self._disk.free_bytes)
