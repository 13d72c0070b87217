"""A real ext4 file system on a loop device, whose power can be cut.

``FS_IOC_SHUTDOWN`` without a flush of the file system's log stops it where it stands: nothing more reaches the device,
every later write or sync fails with EIO, and after unmounting and mounting again only that is there which was synced
(or written back by chance). What it does not show is a device that lies about flushes: a loop device has no volatile
cache.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pytest

_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = (2).to_bytes(4, "little")
_UNMOUNT_PATIENCE_S = 10.0


def require_loop_disks() -> None:
    """Skip the calling test where there can be no loop devices."""
    if os.geteuid() != 0:
        pytest.skip("mounting file systems needs root")
    for tool in ("mkfs.ext4", "losetup", "mount", "umount"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing: run tests/extended/install-debian-packages")
    probe = subprocess.run(["losetup", "--find"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no loop devices here: {probe.stderr.strip()}")


class LoopDisk:
    """A context manager: a fresh file system of ``size`` bytes in an image file, mounted at ``mount_point``."""

    def __init__(self, directory: Path, size: int) -> None:
        self.mount_point = directory / "disk"
        self._image = directory / "disk.img"
        self._size = size
        self._mounted = False

    def __enter__(self) -> LoopDisk:
        self.mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._size)
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._mounted:
            self.unmount()
        self._image.unlink()

    def mount(self) -> None:
        """Mount it, which replays the file system's own journal."""
        _run("mount", "-o", "loop", str(self._image), str(self.mount_point))
        self._mounted = True

    def cut_power(self) -> None:
        """Stop the file system at once; nothing that is not synced is kept."""
        descriptor = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _FS_IOC_SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Unmount it; processes with open files on it must have ended, or end within moments."""
        deadline = time.monotonic() + _UNMOUNT_PATIENCE_S
        while subprocess.run(["umount", str(self.mount_point)], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, f"{self.mount_point} is still in use"
            time.sleep(0.02)
        self._mounted = False


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
